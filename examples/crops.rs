//! Finds things in photos and recognises each of them, in one flow that stays on the device: a detector (a YOLO network,
//! YOLOv8 or later, as Ultralytics exports it to ONNX), then the crops of its best boxes, then a recogniser of all crops
//! at once. The number of boxes is fixed, so every batch is the same work.
//!
//! ```sh
//! pip download nudenet==3.4.2 --no-deps && unzip -o nudenet-*.whl 'nudenet/320n.onnx'
//! cargo run --release --example crops -- nudenet/320n.onnx weights/efficientnet-lite0 weights/photos/*.png \
//!     height=320 width=320
//! ```
//!
//! usage: crops DETECTOR.onnx RECOGNISER PHOTO... [NAME=SIZE...] [boxes=N] [batch=N] [seconds=S]
//!
//! NAME=SIZE gives the size of a free dimension of the detector. The recogniser is a network of images of three channels:
//! a folder or an ONNX file. Photos are uploaded as bytes, and boxes, scores and classes are downloaded. The program
//! compares the results with those of two engines with crops that the host makes between them; with `seconds` it then
//! measures the flow's throughput beside that of its two parts.

#[path = "side_by_side.rs"]
#[allow(dead_code, clippy::duplicate_mod, reason = "the example measures a pipeline only; a test loads both examples")]
mod side_by_side;

use std::time::Duration;

use trefoil::graph::{ArgReduce, Binary, Expr, Graph, GraphBuilder, Op, Reduce, ReduceOp, Slice, TopK, Unary, ValueId};
use trefoil::image::{Area, Picture};
use trefoil::model::{Interpolation, Model, Weights};
use trefoil::onnx::Sizes;
use trefoil::{Device, Dtype, Engine, Error, InputFormat, OutputKind, Target};

/// Boxes with the best scores that are compared with each other.
const CANDIDATES: usize = 64;
/// A box is left out if its common area with a better one of its class is more than this part of the area that both
/// cover together.
const MOST_IN_COMMON: f64 = 0.45;
/// The colour beside a letterboxed photo, as in the detector's training.
const GRAY: [u8; 3] = [114; 3];

/// A recogniser of crops.
#[derive(Clone, Debug)]
pub struct Recogniser {
    /// A model of values with one input of f32, `[3, height, width]`.
    pub model: Model,
    /// The mean of each channel, of pixels from 0 to 1; it is subtracted.
    pub mean: [f32; 3],
    /// What each channel is divided by then.
    pub std: [f32; 3],
    /// Whether the channels are blue, green, red.
    pub reversed: bool,
}

impl Recogniser {
    /// A network of images that reads red, green and blue.
    pub fn of_images(model: &Model) -> Result<Self, Error> {
        let [mean, std] = [&model.preprocessing()?.mean, &model.preprocessing()?.std];
        let [mean, std] = [mean, std].map(|of| <[f32; 3]>::try_from(&of[..]).map_err(|_| other("three channels")));
        let (mean, std) = (mean?, std?);
        let model = model.to_values(InputFormat::F32Nchw, OutputKind::Probabilities)?;
        Ok(Self { model, mean, std, reversed: false })
    }
}

/// A detector and a recogniser of its crops, as models of a flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// From `pixels`, the bytes of photos `[height, width, 3]`, to the detector's columns, and to the same `pixels`.
    pub detector: Model,
    /// From the detector's columns and `pixels` to `boxes` `[N, 4]`, which are left, top, right and bottom edges in
    /// pixels, their `scores` and `classes` `[N]`, and the recogniser's results `[N, ...]`. Where fewer boxes than N
    /// were found, the scores of the others are -1.
    pub recogniser: Model,
    /// Both as one model.
    pub whole: Model,
}

/// The flow of a detector with one input `[3, height, width]` of pixels from 0 to 1 and one output `[4 + classes, places]`,
/// and a recogniser of its `boxes` best boxes.
pub fn flow(detector: &Model, recogniser: &Recogniser, boxes: usize) -> Result<Flow, Error> {
    let one_row = detector.graph(1)?;
    let [image, columns] = [&one_row.inputs[0], &one_row.outputs[0]];
    let (&[_, 3, height, width], &[_, rows, places]) =
        (&one_row.value(image.value).dims[..], &one_row.value(columns.value).dims[..])
    else {
        return Err(other("a detector of [3, height, width] that answers [4 + classes, places]"));
    };
    let plan = Crops { boxes, sides: [height, width], rows, places, of: sides_of(&recogniser.model)? };
    let (mean, std, reversed) = (recogniser.mean, recogniser.std, recogniser.reversed);
    let nothing = || Weights::from_tensors::<String>([]);
    let planes = Model::of_graphs(nothing()?, move |batch| plan.planes(batch))?.with_name("planes");
    let crops = Model::of_graphs(nothing()?, move |batch| plan.graph(batch, [mean, std], reversed))?.with_name("crops");
    let name = recogniser.model.graph(1)?.inputs[0].name.clone();

    let detector = planes.join(detector, &[("planes", &image.name)])?;
    let recogniser = crops.join(&recogniser.model.each(boxes)?, &[("crops", &name)])?;
    let whole = detector.join(&recogniser, &[(&columns.name, "columns"), ("pixels", "pixels")])?;
    Ok(Flow { detector: detector.passing("pixels")?, recogniser, whole })
}

/// The height and width of a recogniser's images.
fn sides_of(recogniser: &Model) -> Result<[usize; 2], Error> {
    let graph = recogniser.graph(1)?;
    match graph.value(graph.inputs[0].value).dims[..] {
        [_, 3, height, width] => Ok([height, width]),
        _ => Err(other("a recogniser of [3, height, width]")),
    }
}

/// The error for other networks.
fn other(expected: &str) -> Error {
    Error::Unsupported { what: "these networks".into(), instead: format!("take {expected}") }
}

/// The choice of the best boxes, and their crops.
#[derive(Clone, Copy)]
struct Crops {
    /// The number of boxes.
    boxes: usize,
    /// Height and width of the detector's images.
    sides: [usize; 2],
    /// Rows and columns of the detector's result.
    rows: usize,
    places: usize,
    /// Height and width of a crop.
    of: [usize; 2],
}

impl Crops {
    /// The graph from bytes to planes of numbers from 0 to 1.
    fn planes(self, batch: usize) -> Result<Graph, Error> {
        let (mut g, [height, width]) = (GraphBuilder::new(), self.sides);
        let pixels = g.input("pixels", Dtype::U8, &[batch, height, width, 3]);
        let x = g.map("numbers", Expr::arg(0).cast(Dtype::F32) * number(1.0 / 255.0), &[pixels]);
        let planes = g.node("planes", Op::Transpose(vec![0, 3, 1, 2]), &[x]);
        g.output("planes", planes);
        g.finish()
    }

    /// The graph from the detector's columns and the photo to boxes and crops.
    fn graph(self, batch: usize, [mean, std]: [[f32; 3]; 2], reversed: bool) -> Result<Graph, Error> {
        let (mut g, [height, width]) = (GraphBuilder::new(), self.sides);
        let columns = g.input("columns", Dtype::F32, &[batch, self.rows, self.places]);
        let pixels = g.input("pixels", Dtype::U8, &[batch, height, width, 3]);
        let (edges, scores, classes) = self.best(&mut g, batch, columns);

        // Places in the photo between whole pixels, along each axis of a crop.
        let [ys, xs] = [0, 1].map(|axis| {
            let (count, dims) = (self.of[axis], [[self.of[0], 1], [1, self.of[1]]][axis]);
            let parts = (0..count).map(|i| (i as f32 + 0.5) / count as f32);
            let parts = g.constant(Dtype::F32, &dims, parts.flat_map(f32::to_le_bytes).collect::<Vec<_>>());
            let [low, high] = [edges[1 - axis], edges[3 - axis]].map(|edge| {
                g.node(&format!("edge {}", edge.0), Op::Reshape(vec![batch, self.boxes, 1, 1, 1]), &[edge])
            });
            let at = Expr::arg(0) + Expr::arg(2) * (Expr::arg(1) - Expr::arg(0)) - number(0.5);
            let last = number(self.sides[axis] as f64 - 1.0);
            let inside = at.binary(Binary::Max, number(0.0)).binary(Binary::Min, last);
            g.map(["rows", "columns"][axis], inside, &[low, high, parts])
        });
        let order: [i32; 3] = if reversed { [2, 1, 0] } else { [0, 1, 2] };
        let channels = g.constant(Dtype::I32, &[3, 1, 1], order.map(i32::to_le_bytes).concat());
        let flat = g.node("bytes", Op::Reshape(vec![batch * height * width * 3]), &[pixels]);
        let int = |value: usize| Expr::int(Dtype::I32, value as i128);
        let mut corner = |down: usize, right: usize| {
            let step = |arg: usize, by: usize, size: usize| {
                (Expr::arg(arg).cast(Dtype::I32) + int(by)).binary(Binary::Min, int(size - 1))
            };
            let row = Expr::Axis(0).cast(Dtype::I32) * int(height) + step(0, down, height);
            let at = (row * int(width) + step(1, right, width)) * int(3) + Expr::arg(2);
            let at = g.map(&format!("place {down}{right}"), at, &[ys, xs, channels]);
            g.node(&format!("pixel {down}{right}"), Op::Gather(0), &[flat, at])
        };
        let corners = [corner(0, 0), corner(0, 1), corner(1, 0), corner(1, 1)];
        let [factor, summand] = [|_, s: f32| 1.0 / (255.0 * s), |m: f32, s: f32| -m / s].map(|of| {
            let numbers: Vec<f32> = order.iter().map(|&c| of(mean[c as usize], std[c as usize])).collect();
            g.constant(Dtype::F32, &[3, 1, 1], numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>())
        });
        let fraction = |arg: usize| Expr::arg(arg) - Expr::arg(arg).unary(Unary::Floor);
        let pixel = |arg: usize| Expr::arg(arg).cast(Dtype::F32);
        let between = |a: Expr, b: Expr, t: Expr| a.clone() + (b - a) * t;
        let [upper, lower] = [0, 2].map(|arg| between(pixel(arg), pixel(arg + 1), fraction(5)));
        let value = between(upper, lower, fraction(4)) * Expr::arg(6) + Expr::arg(7);
        let crops = g.map("crops", value, &[&corners[..], &[ys, xs, factor, summand]].concat());

        let edges = edges
            .map(|edge| g.node(&format!("edge {} of all", edge.0), Op::Reshape(vec![batch, self.boxes, 1]), &[edge]));
        let boxes = g.node("boxes", Op::Concat(2), &edges);
        g.output("crops", crops);
        g.output("boxes", boxes);
        g.output("scores", scores);
        g.output("classes", classes);
        g.finish()
    }

    /// The edges `[batch, boxes]` of the best boxes, their scores and their classes. A candidate is left out if a better
    /// one of its class has too much in common with it, whether or not that one is left out itself.
    fn best(self, g: &mut GraphBuilder, batch: usize, columns: ValueId) -> ([ValueId; 4], ValueId, ValueId) {
        let count = CANDIDATES.min(self.places);
        let part = |first: usize, rows: usize, count: usize| {
            Op::Slice(Slice { start: vec![0, first, 0], step: vec![1; 3], dims: vec![batch, rows, count] })
        };
        let of_classes = g.node("of classes", part(4, self.rows - 4, self.places), &[columns]);
        let most = Op::Reduce(Reduce { op: ReduceOp::Max, axes: vec![1], keep: false });
        let scores = g.node("most", most, &[of_classes]);
        let of_places = Op::TopK(TopK { axis: 1, k: count, largest: true });
        let [best, at] = g.node_with("candidates", of_places, &[Some(scores)], 2)[..] else { unreachable!("two") };
        let at = g.node("candidate", Op::Reshape(vec![batch, 1, count]), &[at]);
        let at = g.node("candidate of each row", Op::Broadcast(vec![batch, self.rows, count]), &[at]);
        let columns = g.node("candidate columns", Op::GatherElements(2), &[columns, at]);
        let of_classes = g.node("candidates of classes", part(4, self.rows - 4, count), &[columns]);
        let class = ArgReduce { largest: true, axis: 1, keep: false, last: false };
        let class = g.node("class", Op::ArgReduce(class), &[of_classes]);
        let [x, y, w, h] = [0, 1, 2, 3].map(|row| {
            let of_row = g.node(&format!("row {row}"), part(row, 1, count), &[columns]);
            g.node(&format!("centre and size {row}"), Op::Reshape(vec![batch, count]), &[of_row])
        });
        let half = |sign: f64| Expr::arg(0) + Expr::arg(1) * number(0.5 * sign);
        let edges = [("left", x, w, -1.0), ("top", y, h, -1.0), ("right", x, w, 1.0), ("bottom", y, h, 1.0)];
        let edges = edges.map(|(name, centre, size, sign)| g.map(name, half(sign), &[centre, size]));

        let of_pairs = [edges[0], edges[1], edges[2], edges[3], class];
        let pairs = [[batch, count, 1], [batch, 1, count]].map(|dims| {
            of_pairs.map(|of| g.node(&format!("pairs {} {dims:?}", of.0), Op::Reshape(dims.to_vec()), &[of]))
        });
        let arg = |of: usize, index: usize| Expr::arg(5 * of + index);
        let length = |low: Expr, high: Expr| (high - low).binary(Binary::Max, number(0.0));
        let area = |of: usize| length(arg(of, 0), arg(of, 2)) * length(arg(of, 1), arg(of, 3));
        let along = |low: usize| {
            let high = arg(0, low + 2).binary(Binary::Min, arg(1, low + 2));
            length(arg(0, low).binary(Binary::Max, arg(1, low)), high)
        };
        let common = along(0) * along(1);
        let is_much = (number(MOST_IN_COMMON) * (area(0) + area(1) - common.clone())).binary(Binary::Less, common);
        let is_better = Expr::Axis(2).binary(Binary::Less, Expr::Axis(1));
        let hides =
            is_better.binary(Binary::And, arg(0, 4).binary(Binary::Equal, arg(1, 4))).binary(Binary::And, is_much);
        let hides = g.map("hides", hides, &pairs.concat());
        let any = Op::Reduce(Reduce { op: ReduceOp::Max, axes: vec![2], keep: false });
        let hidden = g.node("hidden", any, &[hides]);
        let seen = g.map("seen", Expr::arg(0).select(number(-1.0), Expr::arg(1)), &[hidden, best]);
        let of_seen = Op::TopK(TopK { axis: 1, k: self.boxes, largest: true });
        let [scores, at] = g.node_with("best", of_seen, &[Some(seen)], 2)[..] else { unreachable!("two") };
        let mut chosen =
            |name: &str, of: ValueId| g.node(&format!("{name} of the best"), Op::GatherElements(1), &[of, at]);
        let edges = [("left", 0), ("top", 1), ("right", 2), ("bottom", 3)].map(|(name, i)| chosen(name, edges[i]));
        (edges, scores, chosen("class", class))
    }
}

/// A number of f32 in an expression.
fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// What a flow answers for one photo.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Left, top, right and bottom edges.
    pub boxes: Vec<[f32; 4]>,
    /// The scores of the boxes, -1 for boxes that are none.
    pub scores: Vec<f32>,
    /// The detector's classes.
    pub classes: Vec<i64>,
    /// The recogniser's result for each box.
    pub results: Vec<Vec<f32>>,
}

/// The answers of a flow's engine for photos of the detector's size, all in one batch.
pub fn answers(engine: &Engine, photos: &[Picture]) -> Result<Vec<Answer>, Error> {
    let mut batch = engine.acquire()?;
    for (row, photo) in photos.iter().enumerate() {
        batch.write_port(row, "pixels", photo.pixels())?;
    }
    let output = batch.submit(photos.len())?.wait()?;
    let answer = |row: usize| {
        let scores = output.port::<f32>(row, "scores")?.to_vec();
        let boxes = output.port::<f32>(row, "boxes")?.chunks_exact(4).map(|of| [of[0], of[1], of[2], of[3]]).collect();
        let results = output.port::<f32>(row, 3)?;
        let results = results.chunks_exact(results.len() / scores.len()).map(<[f32]>::to_vec).collect();
        Ok(Answer { boxes, scores, classes: output.port::<i64>(row, "classes")?.to_vec(), results })
    };
    (0..photos.len()).map(answer).collect()
}

/// The results of the recogniser's own engine for crops that the host makes of these boxes.
pub fn recognised_by_host(
    engine: &Engine,
    of: &Recogniser,
    photo: &Picture,
    boxes: &[[f32; 4]],
) -> Result<Vec<Vec<f32>>, Error> {
    let [height, width] = sides_of(&of.model)?;
    let result = |edges: &[f32; 4]| {
        let mut batch = engine.acquire()?;
        for (index, value) in batch.port_mut::<f32>(0, 0)?.iter_mut().enumerate() {
            let (plane, y, x) = (index / (height * width), index / width % height, index % width);
            let channel = if of.reversed { 2 - plane } else { plane };
            let place = |i: usize, count: usize, [low, high]: [f32; 2], size: usize| {
                (low + (i as f32 + 0.5) / count as f32 * (high - low) - 0.5).clamp(0.0, size as f32 - 1.0)
            };
            let y = place(y, height, [edges[1], edges[3]], photo.height());
            let x = place(x, width, [edges[0], edges[2]], photo.width());
            let pixel = |down: usize, right: usize| {
                let y = (y as usize + down).min(photo.height() - 1);
                let x = (x as usize + right).min(photo.width() - 1);
                f32::from(photo.pixels()[(y * photo.width() + x) * 3 + channel])
            };
            let row = |down| pixel(down, 0) + (pixel(down, 1) - pixel(down, 0)) * x.fract();
            let between = row(0) + (row(1) - row(0)) * y.fract();
            *value = (between / 255.0 - of.mean[channel]) / of.std[channel];
        }
        Ok(batch.submit(1)?.wait()?.port::<f32>(0, 0)?.to_vec())
    };
    boxes.iter().map(result).collect()
}

/// The best boxes in the detector's columns, as the host finds them: edges, score and class.
pub fn boxes_by_host(columns: &[f32], rows: usize, count: usize) -> Vec<([f32; 4], f32, i64)> {
    let places = columns.len() / rows;
    let at = |row: usize, place: usize| columns[row * places + place];
    let candidate = |place: usize| {
        let first = |best: (usize, f32), row: usize| if at(row, place) > best.1 { (row, at(row, place)) } else { best };
        let (class, score) = (4..rows).fold((4, f32::NEG_INFINITY), first);
        let [x, y, w, h] = [0, 1, 2, 3].map(|row| at(row, place));
        ([x - w * 0.5, y - h * 0.5, x + w * 0.5, y + h * 0.5], score, class as i64 - 4)
    };
    let mut all: Vec<_> = (0..places).map(candidate).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(CANDIDATES);
    let area = |[left, top, right, bottom]: [f32; 4]| (right - left).max(0.0) * (bottom - top).max(0.0);
    let is_much = |a: [f32; 4], b: [f32; 4]| {
        let common = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
        MOST_IN_COMMON as f32 * (area(a) + area(b) - common) < common
    };
    let is_hidden = |i: usize| all[..i].iter().any(|better| better.2 == all[i].2 && is_much(better.0, all[i].0));
    let mut seen: Vec<_> =
        (0..all.len()).map(|i| (all[i].0, if is_hidden(i) { -1.0 } else { all[i].1 }, all[i].2)).collect();
    seen.sort_by(|a, b| b.1.total_cmp(&a.1));
    seen.truncate(count);
    seen
}

/// Checks the answers of a flow against two engines with the host's boxes and crops in between. Returns the largest
/// difference of a recogniser's result.
///
/// # Panics
/// If the boxes are others, or a result differs by more than the rounding of f16 explains.
pub fn check(
    device: &Device,
    flow: &Flow,
    recogniser: &Recogniser,
    photos: &[Picture],
    answers: &[Answer],
) -> Result<f32, Error> {
    let detector = Engine::builder(&flow.detector).on(device).batch_sizes(&[photos.len()]).build()?;
    let alone = Engine::builder(&recogniser.model).on(device).batch_sizes(&[1]).build()?;
    let mut batch = detector.acquire()?;
    for (row, photo) in photos.iter().enumerate() {
        batch.write_port(row, "pixels", photo.pixels())?;
    }
    let output = batch.submit(photos.len())?.wait()?;
    let mut most = 0.0_f32;
    for (row, (photo, answer)) in photos.iter().zip(answers).enumerate() {
        let found =
            boxes_by_host(output.port::<f32>(row, 0)?, detector.output().ports()[0].dims[0], answer.boxes.len());
        for (index, (edges, score, class)) in found.iter().enumerate() {
            assert_eq!((*score, *class), (answer.scores[index], answer.classes[index]), "box {index} of photo {row}");
            let close = edges.iter().zip(answer.boxes[index]).all(|(a, b)| (a - b).abs() < 1e-3);
            assert!(close, "box {index} of photo {row}: {edges:?}, not {:?}", answer.boxes[index]);
        }
        let expected = recognised_by_host(&alone, recogniser, photo, &answer.boxes)?;
        for (index, (expected, found)) in expected.iter().zip(&answer.results).enumerate() {
            let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let differ = expected.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            // On a GPU both round their values to f16, by other kernels.
            assert!(differ <= 2e-2 * largest.max(1e-3), "crop {index} of photo {row} differs by {differ}");
            most = most.max(differ);
        }
    }
    Ok(most)
}

/// A photo in the middle of a gray canvas of this height and width.
pub fn letterboxed(photo: &Picture, [height, width]: [usize; 2]) -> Result<Picture, Error> {
    let scale = (width as f32 / photo.width() as f32).min(height as f32 / photo.height() as f32);
    let fit = |side: usize, most: usize| ((side as f32 * scale).round() as usize).clamp(1, most);
    let drawn = [fit(photo.height(), height), fit(photo.width(), width)];
    let mut canvas = Picture::filled(width, height, GRAY)?;
    let (left, top) = ((width - drawn[1]) / 2, (height - drawn[0]) / 2);
    let middle = Area { left, top, width: drawn[1], height: drawn[0] };
    canvas.draw(middle, photo, photo.area(), Interpolation::Bilinear)?;
    Ok(canvas)
}

#[allow(dead_code, reason = "a test calls what main calls")]
fn main() -> Result<(), Error> {
    let (options, paths): (Vec<String>, Vec<String>) = std::env::args().skip(1).partition(|text| text.contains('='));
    let [detector, recogniser, photos @ ..] = &paths[..] else {
        eprintln!("usage: crops DETECTOR.onnx RECOGNISER PHOTO... [NAME=SIZE...] [boxes=N] [batch=N] [seconds=S]");
        std::process::exit(64);
    };
    let (mut sizes, mut boxes, mut batch, mut seconds) = (Sizes::new(), 4, photos.len(), None);
    for (name, value) in options.iter().filter_map(|option| option.split_once('=')) {
        let number = || value.parse::<usize>().expect("a number");
        match name {
            "boxes" => boxes = number(),
            "batch" => batch = number(),
            "seconds" => seconds = Some(value.parse::<f64>().expect("seconds")),
            _ => sizes = sizes.dim(name, number()),
        }
    }
    let device = Device::open(Target::Auto)?;
    let labels = Model::open(recogniser)?;
    let recogniser = Recogniser::of_images(&labels)?;
    let flow = flow(&Model::open_at(detector, &sizes)?, &recogniser, boxes)?;
    let engine =
        Engine::builder(&flow.detector).then(&flow.recogniser).on(&device).batch_sizes(&[photos.len()]).build()?;
    let sides = &engine.input().ports()[0].dims;
    let canvases = photos.iter().map(|photo| letterboxed(&Picture::open(photo)?, [sides[0], sides[1]]));
    let canvases = canvases.collect::<Result<Vec<_>, Error>>()?;
    let all = answers(&engine, &canvases)?;
    for (photo, answer) in photos.iter().zip(&all) {
        println!("{photo}:");
        for (index, edges) in answer.boxes.iter().enumerate().filter(|(index, _)| answer.scores[*index] >= 0.0) {
            let best = answer.results[index].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
            let (class, probability) = best.expect("classes");
            let (found, score, label) = (answer.classes[index], answer.scores[index], labels.label(class));
            println!("  class {found} {score:.2} at {edges:.0?}: {label} {probability:.2}");
        }
    }
    let most = check(&device, &flow, &recogniser, &canvases, &all)?;
    println!("as two engines with the host's crops between them: at most {most:.1e} apart");
    if let Some(seconds) = seconds {
        let time = Duration::from_secs_f64(seconds);
        let run = side_by_side::Run { model: &flow.whole, urgent: &flow.whole, time, batch };
        run.pipeline(&device, &format!("crops, {boxes} boxes"), [&flow.detector, &flow.recogniser])?;
    }
    Ok(())
}
