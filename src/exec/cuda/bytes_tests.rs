//! A network of bytes, from its plan to launches and weights: first layers, a sum of two convolutions, a mean.

use super::launch::Launch;
use super::loops::Written;
use super::pack::Layout;
use super::sm90_conv2d_s8::packed;
use super::sm90_stem_s8::packed_stem;
use super::steps::{Addresses, launches};
use crate::graph::{Graph, GraphBuilder, Window};
use crate::model::images::Network;
use crate::model::{ByteFilter, ByteSource, Model, Op, Preprocessing, Quantization, Weights};
use crate::model::{byte_filter, byte_filter_of_photos};
use crate::plan::{Choices, Limits, Plan, Request, Step, plan};
use crate::tensor::{InputFormat, OutputKind, Shape};

const ADDRESSES: Addresses =
    Addresses { input: 1 << 20, output: 2 << 20, arena: 1 << 30, weights: 1 << 40, states: Vec::new() };
/// The scale of the photos' maxima, and the scale of the values that the last convolution reads.
const PHOTOS: f32 = 0.5;
const SIDE: f32 = 0.25;

/// First layers, a block whose shortcut is a convolution, and the mean of its results.
fn graph() -> Graph {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(38, 46, 3));
    let x = g.conv2d("first", image, 16, Window::square(7, 2, 3));
    let x = g.relu("relu", x);
    let max = g.max_pool("max", x, Window::square(3, 2, 1));
    let shortcut = g.conv2d("shortcut", max, 32, Window::square(1, 1, 0));
    let x = g.conv2d("middle", max, 48, Window::square(3, 1, 1));
    let x = g.relu("relu2", x);
    let y = g.conv2d("last", x, 32, Window::square(1, 1, 0));
    let y = g.add("sum", y, shortcut);
    let mean = g.global_avg_pool("mean", y);
    g.output("y", mean);
    g.finish().unwrap()
}

fn model() -> Model {
    let graph = graph();
    let value = |at: usize, seed: usize| ((at * 37 + seed * 11) % 101) as f32 / 64.0 - 0.75;
    let tensors = graph.weights().enumerate().map(|(seed, (name, of))| {
        (name.to_owned(), of.dims.clone(), (0..of.elems()).map(|at| value(at, seed)).collect::<Vec<f32>>())
    });
    let weights = Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap();
    let preprocessing = Preprocessing {
        mean: vec![0.485, 0.456, 0.406],
        std: vec![0.229, 0.224, 0.225],
        ..Preprocessing::new(Shape::new(38, 46, 3))
    };
    let scales = [("max", PHOTOS), ("shortcut", 1.0), ("relu2", SIDE), ("sum", 1.0)];
    let scales = scales.map(|(name, scale)| (name.to_owned(), scale)).into();
    let quantization = Quantization { scales, ..Quantization::default() };
    Model::new(graph, weights, preprocessing, Vec::new()).unwrap().quantized(&quantization).unwrap()
}

fn planned(model: &Model) -> Plan {
    let request = Request {
        limits: &Limits::h200(),
        batch: 4,
        input: InputFormat::U8Nhwc,
        preprocessing: model.preprocessing().unwrap(),
        output: OutputKind::Features,
        choices: &Choices::new(),
    };
    plan(model.image_network().unwrap(), &request).unwrap()
}

fn step<'a>(plan: &'a Plan, name: &str) -> &'a Step {
    plan.steps.iter().find(|step| step.name == name).unwrap()
}

fn conv<'a>(graph: &'a Network, name: &str) -> &'a crate::model::Conv2d {
    match &graph.nodes[graph.find(name).unwrap().0].op {
        Op::Conv2d(conv) => conv,
        other => panic!("{name} is {}", other.kind()),
    }
}

#[test]
fn each_step_is_launched_once_by_its_kernel_of_bytes() {
    let plans = [planned(&model())];
    let layout = Layout::new(&plans).unwrap();
    let launches: Vec<Launch> = launches(&plans[0], &layout, &Written::default(), &ADDRESSES).unwrap();
    let entries: Vec<&str> = launches.iter().map(|launch| &*launch.entry).collect();
    assert!(entries[0].starts_with("sm90_stem_u8_") && entries[3] == "sm80_mean_s8", "{entries:?}");
    assert!(entries[1].starts_with("sm90_conv2d_u8_") && !entries[2].contains("_add_"), "{entries:?}");
    // The step of the sum has maps of both convolutions.
    let filter = |name: &str| ADDRESSES.weights + layout.filter(&plans[0], step(&plans[0], "last"), name) as u64;
    let maps = format!("{:?}", launches[2].maps);
    assert!(["last", "shortcut"].iter().all(|name| maps.contains(&format!("address: {},", filter(name)))), "{maps}");
    assert_eq!((entries.len(), launches[2].maps.len()), (5, 6));
}

#[test]
fn weights_of_bytes_are_where_kernels_read_them() {
    let model = model();
    let (graph, plans) = (model.image_network().unwrap(), [planned(&model)]);
    let layout = Layout::new(&plans).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.fill(&model, &plans, &mut bytes).unwrap();
    let at = |of: &str, name: &str| layout.filter(&plans[0], step(&plans[0], of), name);
    let is_there = |at: usize, expected: &[u8], what: &str| assert!(bytes[at..].starts_with(expected), "{what}");
    let behind = |of: &ByteFilter| {
        [bytemuck::cast_slice::<i32, u8>(&of.bias), bytemuck::cast_slice::<f32, u8>(&of.scale)].concat()
    };

    let source = |name, in_channels, scale| ByteSource { conv: conv(graph, name), in_channels, scale };
    let sources = [source("last", 48, SIDE), source("shortcut", 16, PHOTOS)];
    let sum = byte_filter(model.weights(), &sources, 1.0).unwrap();
    let [last, shortcut] = [("last", 48, 0), ("shortcut", 16, 1)].map(|(name, channels, index)| {
        let filter: Vec<u8> = bytemuck::cast_slice(&packed(&sum.filters[index], channels)).to_vec();
        is_there(at("last", name), &filter, name);
        filter
    });
    assert!([&last, &shortcut].iter().all(|filter| filter.iter().any(|byte| *byte > 100)));
    is_there(at("last", "last") + last.len(), &behind(&sum), "biases and scales of the sum");

    let preprocessing = model.preprocessing().unwrap();
    let normalised = [&preprocessing.mean[..], &preprocessing.std];
    let first = byte_filter_of_photos(model.weights(), conv(graph, "first"), normalised, PHOTOS).unwrap();
    // [K][3][7][7] to [K][7][7][3], the order that the packing of a single filter takes.
    let turned: Vec<i8> =
        (0..first.filters[0].len()).map(|at| first.filters[0][at / 147 * 147 + at % 3 * 49 + at % 147 / 3]).collect();
    let filter: Vec<u8> = bytemuck::cast_slice(&packed_stem(&turned)).to_vec();
    is_there(at("first", "first"), &[filter, behind(&first)].concat(), "first layers");
}
