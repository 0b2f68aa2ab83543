//! The problems: one struct for each operation, with chosen sizes and with random ones. The file is as long as the list
//! of operations.

use trefoil::graph::{Conv2d, Graph, GraphBuilder, Linear, ValueId, ValueType};
use trefoil::model::images::{Pad, Window, infer};
use trefoil::{Activation, InputFormat, OutputKind, Shape};

use super::problem::{Case, Problem, Tensors};
use super::random::Random;
use super::tolerance::Growth;

/// All problems of all operations.
pub fn all() -> Vec<Case> {
    [
        normalize(),
        conv2d(),
        halo(),
        blocks(),
        stem(),
        depthwise(),
        expanded(),
        chained(),
        pool2d(),
        global_avg_pool(),
        linear(),
        tail(),
        add(),
        concat(),
        outputs(),
        networks(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

const ACTIVATIONS: [Activation; 3] = [Activation::None, Activation::Relu, Activation::Relu6];

/// Weights for every tensor of `graph`: filters of a size that keeps sums near 1, variances positive.
fn tensors(graph: &Graph, random: &mut Random) -> Tensors {
    let tensor = |(name, of): (&str, &ValueType)| {
        let (count, dims) = (of.elems(), of.dims.clone());
        let values = match dims.len() {
            1 if name.ends_with("running_var") => {
                random.singles(count, 1.0).into_iter().map(|v| v.abs() + 0.25).collect()
            }
            1 => random.singles(count, 1.0),
            _ => random.singles(count, (3.0 / dims[1..].iter().product::<usize>() as f64).sqrt()),
        };
        (name.to_owned(), dims, values)
    };
    graph.weights().map(tensor).collect()
}

fn rows(graph: &Graph, count: usize, random: &mut Random) -> Vec<Vec<f64>> {
    let elems = graph.value(graph.inputs[0].value).elems();
    (0..count).map(|_| random.halves(elems, 4.0)).collect()
}

/// A case of the graph with `y` as its result, and random tensors and rows.
fn case(name: String, mut g: GraphBuilder, y: ValueId, count: usize) -> Case {
    g.output("y", y);
    let graph = g.finish().expect("a problem's graph is well-formed");
    let mut random = Random::new(&name);
    let tensors = tensors(&graph, &mut random);
    let rows = rows(&graph, count, &mut random);
    Case::new(name, graph, tensors, rows)
}

/// A window that fits an image; the padding of each side is random, and at most `most_pad`.
fn random_window(random: &mut Random, x: Shape, most_pad: impl Fn(usize) -> usize) -> Window {
    loop {
        let size = [random.between(1, 5), random.between(1, 5)];
        let dilation = [random.between(1, 2), random.between(1, 3)];
        let reach = [(size[0] - 1) * dilation[0] + 1, (size[1] - 1) * dilation[1] + 1];
        let [v, h] = reach.map(&most_pad);
        let pad = Pad {
            top: random.between(0, v),
            left: random.between(0, h),
            bottom: random.between(0, v),
            right: random.between(0, h),
        };
        let stride = [random.between(1, 3), random.between(1, 3)];
        let fits = x.height + pad.top + pad.bottom >= reach[0] && x.width + pad.left + pad.right >= reach[1];
        if fits && dilation[0] <= x.height && dilation[1] <= x.width {
            return Window { size, stride, pad, dilation };
        }
    }
}

/// Bytes, floats in planes, or halves become activations. A graph needs a node, so an activation follows.
struct Normalize {
    x: Shape,
    input: InputFormat,
    rows: usize,
}

impl Problem for Normalize {
    fn case(&self) -> Case {
        let Self { x, input, rows } = *self;
        let name = format!("normalize {x} {input} rows {rows}");
        let mut random = Random::new(&name);
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let y = g.activation("same", image, Activation::None);
        let mut case = case(name, g, y, rows);
        if input == InputFormat::U8Nhwc {
            case.rows = (0..rows).map(|_| (0..x.elems()).map(|_| random.between(0, 255) as f64).collect()).collect();
            case.rows[0][0] = 0.0;
            *case.rows[rows - 1].last_mut().unwrap() = 255.0;
            case.preprocessing.mean = random.singles(x.channels, 0.7);
            case.preprocessing.std = random.singles(x.channels, 0.5).iter().map(|s| s.abs() + 0.1).collect();
        }
        Case { input, ..case }
    }
}

pub fn normalize() -> Vec<Case> {
    use InputFormat::{F16Nhwc, F32Nchw, F32Nhwc, U8Nhwc};
    let shapes = [(1, 1, 1), (5, 7, 3), (9, 13, 4), (33, 37, 3), (4, 3, 8)];
    let wide = [(3, 5, 9), (2, 3, 100)].map(|shape| (shape, [F32Nchw, F16Nhwc, F32Nhwc].as_slice()));
    let all = shapes.map(|shape| (shape, [U8Nhwc, F32Nchw, F16Nhwc, F32Nhwc].as_slice()));
    let each = all.into_iter().chain(wide).flat_map(|((h, w, c), inputs)| {
        let x = Shape::new(h, w, c);
        inputs.iter().flat_map(move |&input| [1, 3].map(|rows| Normalize { x, input, rows }.case()))
    });
    each.collect()
}

/// A convolution with the operations that may be fused into it.
#[derive(Clone, Copy)]
struct Convolution {
    x: Shape,
    k: usize,
    window: Window,
    activation: Activation,
    norm: bool,
    /// Whether a convolution of the same shape that reads the same input is added.
    residual: bool,
    groups: usize,
    rows: usize,
}

impl Convolution {
    fn dense(x: [usize; 3], k: usize, window: Window) -> Self {
        let x = Shape::new(x[0], x[1], x[2]);
        Self { x, k, window, activation: Activation::None, norm: false, residual: false, groups: 1, rows: 1 }
    }

    fn depthwise(x: [usize; 3], window: Window) -> Self {
        Self { groups: x[2], ..Self::dense(x, x[2], window) }
    }

    fn groups(self, groups: usize) -> Self {
        Self { groups, ..self }
    }

    fn and(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    fn norm(self) -> Self {
        Self { norm: true, ..self }
    }

    fn residual(self) -> Self {
        Self { residual: true, ..self }
    }

    fn rows(self, rows: usize) -> Self {
        Self { rows, ..self }
    }
}

impl Problem for Convolution {
    fn case(&self) -> Case {
        let Self { x, k, window, activation, norm, residual, groups, rows } = *self;
        let Window { size: [r, s], stride, pad, dilation } = window;
        let kind = match groups {
            1 => "conv".into(),
            groups if [x.channels, k] == [groups; 2] => "depthwise".into(),
            groups => format!("conv of {groups} groups"),
        };
        let name = format!(
            "{kind} {x} to {k}, {r}x{s} stride {stride:?} pad [{}, {}, {}, {}] dilation {dilation:?}, {activation}{}{}, rows {rows}",
            pad.top,
            pad.left,
            pad.bottom,
            pad.right,
            if norm { ", norm" } else { "" },
            if residual { ", residual" } else { "" },
        );
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let conv = Conv2d { groups, bias: (!norm).then(|| "conv.bias".into()), ..Conv2d::named("conv", k, window) };
        let other = residual.then(|| {
            let other = Conv2d { filter: "other.weight".into(), bias: None, ..conv.clone() };
            g.conv2d_with("other", image, other)
        });
        let mut y = g.conv2d_with("conv", image, conv);
        if norm {
            y = g.batch_norm("norm", y, 1e-3);
        }
        if let Some(other) = other {
            y = g.add("add", y, other);
        }
        if activation != Activation::None {
            y = g.activation("activation", y, activation);
        }
        case(name, g, y, rows)
    }
}

pub fn conv2d() -> Vec<Case> {
    use Activation::{Relu, Relu6};
    let window = |size, stride, [top, left, bottom, right]: [usize; 4], dilation| Window {
        size,
        stride,
        pad: Pad { top, left, bottom, right },
        dilation,
    };
    let square = Window::square;
    let dense = Convolution::dense;
    let chosen = [
        dense([1, 1, 1], 1, square(1, 1, 0)),
        dense([1, 1, 1], 1, square(3, 1, 1)),
        dense([3, 3, 1], 2, square(1, 1, 0)).and(Relu),
        dense([13, 11, 24], 100, square(1, 1, 0)).and(Relu6).rows(2),
        dense([7, 7, 100], 24, square(1, 1, 0)).residual().and(Relu),
        dense([10, 10, 16], 17, square(1, 1, 0)).norm().residual(),
        dense([5, 5, 600], 20, square(1, 1, 0)).residual().norm().and(Relu),
        dense([1, 1, 1152], 33, square(1, 1, 0)),
        dense([8, 9, 8], 8, square(1, 2, 0)).rows(3),
        dense([6, 6, 8], 5, square(1, 1, 1)),
        dense([5, 7, 3], 8, window([3, 3], [2, 2], [0, 1, 1, 0], [1, 1])).norm().and(Relu6),
        dense([32, 31, 3], 64, square(7, 2, 3)).norm().and(Relu),
        dense([12, 13, 8], 32, square(3, 1, 1)).and(Relu).rows(5),
        dense([9, 10, 100], 17, window([3, 3], [1, 1], [2; 4], [2, 2])),
        dense([6, 8, 8], 33, window([5, 3], [1, 2], [3, 0, 1, 2], [1, 1])).and(Relu),
        dense([7, 7, 64], 40, square(3, 1, 1)).residual().norm().and(Relu).rows(2),
        dense([4, 5, 200], 3, window([2, 5], [1, 1], [0, 4, 2, 4], [1, 2])).rows(2),
        dense([5, 5, 8], 9, square(3, 1, 4)), // windows that see padding only
        dense([2, 2, 24], 65, square(5, 1, 2)),
        dense([17, 16, 1], 129, square(5, 3, 2)).rows(3),
        dense([3, 41, 5], 7, window([3, 1], [1, 1], [1, 0, 1, 0], [1, 1])),
        dense([41, 3, 5], 7, window([1, 3], [1, 1], [0, 1, 0, 1], [1, 1])),
        dense([14, 14, 256], 72, square(3, 2, 1)).norm().and(Relu),
        // Large tiles: an odd number of steps, fewer steps than blocks that share a tile, more than stages, one pixel too
        // many, a pair's channels beyond the last.
        dense([65, 65, 24], 136, window([3, 3], [1, 1], [12; 4], [12, 12])).and(Relu),
        dense([33, 31, 16], 264, window([3, 3], [1, 1], [24; 4], [24, 24])).norm().rows(3),
        dense([65, 65, 72], 256, square(1, 1, 0)).residual().and(Relu),
        dense([13, 11, 200], 136, square(3, 1, 1)).residual().norm().and(Relu6).rows(3),
        dense([9, 16, 136], 384, window([3, 3], [1, 1], [36; 4], [36, 36])),
        dense([17, 17, 64], 128, square(1, 1, 0)).and(Relu),
        dense([9, 7, 64], 64, square(3, 1, 1)).groups(4).norm().and(Relu).rows(2),
        dense([8, 9, 24], 36, square(3, 2, 1)).groups(3).rows(3),
        dense([5, 6, 13], 26, square(3, 1, 1)).groups(13).and(Relu6),
        dense([4, 4, 144], 72, square(1, 1, 0)).groups(9).norm(),
    ];
    let mut random = Random::new("conv2d");
    let any = (0..24).map(|_| {
        let x = [random.between(1, 19), random.between(1, 19), random.pick(&[1, 3, 8, 13, 24, 40, 72])];
        let window = random_window(&mut random, Shape::new(x[0], x[1], x[2]), |reach| reach / 2 + 1);
        let conv = dense(x, random.pick(&[1, 7, 8, 16, 31, 48, 65, 100]), window);
        let [norm, residual] = [random.between(0, 1) == 1, random.between(0, 2) == 0];
        Convolution { norm, residual, activation: random.pick(&ACTIVATIONS), rows: random.between(1, 4), ..conv }
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

/// Two convolutions, and a shortcut with a convolution; the results of the last one and the shortcut are added.
#[derive(Clone, Copy)]
struct Block {
    x: Shape,
    inside: usize,
    k: usize,
    /// The stride of the first convolution, which is 3x3, and of the shortcut's.
    stride: usize,
    last: usize,
    shortcut: usize,
    activation: Activation,
    rows: usize,
}

impl Problem for Block {
    fn case(&self) -> Case {
        let Self { x, inside, k, stride, last, shortcut, activation, rows } = *self;
        let name = format!(
            "block {x} to {inside} by {stride}, {last}x{last} to {k}, shortcut {shortcut}x{shortcut}, {activation}, rows {rows}"
        );
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let other = g.conv2d("shortcut", image, k, Window::square(shortcut, stride, shortcut / 2));
        let other = g.batch_norm("shortcut.norm", other, 1e-3);
        let y = g.conv2d("first", image, inside, Window::square(3, stride, 1));
        let y = g.activation("first.activation", y, Activation::Relu);
        let last =
            Conv2d { bias: Some("last.bias".into()), ..Conv2d::named("last", k, Window::square(last, 1, last / 2)) };
        let y = g.conv2d_with("last", y, last);
        let mut y = g.add("add", y, other);
        if activation != Activation::None {
            y = g.activation("activation", y, activation);
        }
        case(name, g, y, rows)
    }
}

pub fn blocks() -> Vec<Case> {
    let block = |x: [usize; 3], inside, k, stride, last, shortcut, rows| {
        let x = Shape::new(x[0], x[1], x[2]);
        Block { x, inside, k, stride, last, shortcut, activation: Activation::Relu, rows }
    };
    let chosen = [
        block([1, 1, 8], 8, 8, 1, 1, 1, 1),
        block([7, 7, 64], 64, 136, 1, 1, 1, 2),
        block([14, 13, 200], 72, 264, 2, 1, 1, 3),
        block([33, 31, 72], 40, 136, 1, 3, 1, 1),
        block([9, 11, 24], 40, 65, 3, 3, 1, 2),
        block([13, 6, 100], 8, 31, 2, 3, 1, 5),
        block([8, 9, 16], 130, 64, 2, 1, 3, 2),
        block([17, 15, 3], 24, 100, 2, 5, 3, 1),
    ];
    let mut random = Random::new("blocks");
    let any = (0..12).map(|_| Block {
        x: Shape::new(random.between(1, 19), random.between(1, 19), random.pick(&[1, 3, 8, 24, 72, 128])),
        inside: random.pick(&[1, 8, 40, 64, 72, 200]),
        k: random.pick(&[7, 8, 31, 64, 100, 128, 136]),
        stride: random.between(1, 3),
        last: random.pick(&[1, 1, 3]),
        shortcut: random.pick(&[1, 1, 3]),
        activation: random.pick(&ACTIVATIONS),
        rows: random.between(1, 5),
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

/// A network's first layers: bytes, a convolution with a stride of 2, and a maximum in some cases. With `read_twice`
/// the convolution's value has another reader besides the maximum.
struct Stem {
    x: Shape,
    k: usize,
    window: Window,
    activation: Activation,
    pool: Option<Window>,
    read_twice: bool,
    rows: usize,
}

impl Problem for Stem {
    fn case(&self) -> Case {
        let Self { x, k, window, activation, pool, read_twice, rows } = *self;
        let Window { size: [r, s], pad, .. } = window;
        let pads = [pad.top, pad.left, pad.bottom, pad.right];
        let pooled = if pool.is_some() { ", max" } else { "" };
        let twice = if read_twice { ", read twice" } else { "" };
        let name = format!("stem {x} to {k}, {r}x{s} pad {pads:?}, {activation}{pooled}{twice}, rows {rows}");
        let mut random = Random::new(&name);
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let mut y =
            g.conv2d_with("conv", image, Conv2d { bias: Some("conv.bias".into()), ..Conv2d::named("conv", k, window) });
        if activation != Activation::None {
            y = g.activation("activation", y, activation);
        }
        let conv = y;
        if let Some(window) = pool {
            y = g.max_pool("pool", y, window);
        }
        if read_twice {
            let again = g.max_pool("again", conv, Window::square(3, 2, 1));
            y = g.add("add", y, again);
        }
        let mut case = case(name, g, y, rows);
        case.input = InputFormat::U8Nhwc;
        case.rows = (0..rows).map(|_| (0..x.elems()).map(|_| random.between(0, 255) as f64).collect()).collect();
        case.preprocessing.mean = random.singles(x.channels, 0.7);
        case.preprocessing.std = random.singles(x.channels, 0.5).iter().map(|s| s.abs() + 0.2).collect();
        case
    }
}

pub fn stem() -> Vec<Case> {
    use Activation::{None, Relu, Relu6};
    let same = |size: usize, [top, left, bottom, right]: [usize; 4]| Window {
        pad: Pad { top, left, bottom, right },
        ..Window::square(size, 2, 0)
    };
    let pool = Some(Window::square(3, 2, 1));
    let no_pool = Option::None;
    let stem = |[h, w]: [usize; 2], k, window, activation, pool, rows| Stem {
        x: Shape::new(h, w, 3),
        k,
        window,
        activation,
        pool,
        read_twice: false,
        rows,
    };
    let seven = |pads| same(7, pads);
    let three = |pads| same(3, pads);
    let unpadded = Some(Window { pad: Pad { top: 1, left: 1, bottom: 0, right: 0 }, ..Window::square(3, 2, 0) });
    let problems = [
        stem([32, 31], 64, seven([3; 4]), Relu, pool, 1),
        stem([33, 38], 13, seven([3; 4]), Relu, pool, 3),
        stem([29, 27], 40, seven([2, 1, 3, 0]), None, pool, 2),
        stem([1, 1], 8, seven([3; 4]), Relu, pool, 1),
        stem([9, 7], 64, seven([6, 7, 5, 6]), Relu6, pool, 5),
        stem([6, 251], 24, seven([3; 4]), Relu6, pool, 2),
        stem([45, 6], 48, seven([3; 4]), Relu, pool, 2),
        stem([24, 26], 16, seven([3; 4]), None, unpadded, 1),
        stem([17, 20], 16, seven([3; 4]), Relu, no_pool, 1),
        stem([17, 20], 16, seven([3; 4]), Relu, Some(Window::square(2, 2, 0)), 1),
        stem([17, 20], 72, seven([3; 4]), Relu, pool, 1),
        Stem { read_twice: true, ..stem([17, 20], 16, seven([3; 4]), Relu, pool, 1) },
        stem([32, 31], 32, three([0, 0, 1, 1]), Relu6, no_pool, 1),
        stem([33, 38], 13, three([1; 4]), Relu, no_pool, 3),
        stem([3, 3], 64, three([0; 4]), None, no_pool, 4),
        stem([1, 1], 5, three([1; 4]), Relu, no_pool, 2),
        stem([7, 262], 24, three([0, 1, 1, 0]), Relu6, no_pool, 2),
        stem([41, 5], 40, three([2, 3, 0, 1]), Relu, no_pool, 2),
        stem([16, 18], 32, three([1; 4]), Relu, pool, 2),
    ];
    problems.iter().map(Problem::case).collect()
}

/// Convolutions whose windows are computed from one copy of their pixels.
pub fn halo() -> Vec<Case> {
    use Activation::{Relu, Relu6};
    let padded = |[top, left, bottom, right]: [usize; 4]| Window {
        pad: Pad { top, left, bottom, right },
        ..Window::square(3, 1, 0)
    };
    let same = padded([1; 4]);
    let dense = Convolution::dense;
    let chosen = [
        dense([1, 1, 8], 8, same),
        dense([3, 1, 64], 64, same).residual(),
        dense([7, 7, 64], 64, same).residual().norm().and(Relu).rows(3),
        dense([14, 14, 64], 64, same).residual().and(Relu6).rows(2),
        dense([28, 28, 40], 48, same).norm().and(Relu).rows(2),
        dense([56, 56, 64], 64, same).residual().norm().and(Relu).rows(2),
        dense([5, 57, 24], 130, same).residual().and(Relu),
        dense([4, 121, 16], 65, same).residual(),
        dense([9, 260, 8], 24, padded([0; 4])).residual().rows(2),
        dense([6, 13, 56], 200, padded([2, 0, 1, 3])).and(Relu6).rows(5),
        // There are more tiles than any GPU has multiprocessors, so that buffers are used repeatedly.
        dense([56, 56, 8], 8, same).residual().and(Relu).rows(32),
        dense([30, 58, 8], 72, same).residual().norm().and(Relu).rows(20),
        dense([57, 23, 8], 8, same).rows(50),
    ];
    let mut random = Random::new("halo");
    let any = (0..12).map(|_| {
        let x = [random.between(3, 40), random.between(3, 70), random.pick(&[1, 8, 24, 33, 60, 64])];
        let window = padded([0; 4].map(|_| random.between(0, 4)));
        let k = random.pick(&[3, 8, 48, 64, 66, 128, 136]);
        let problem = dense(x, k, window).and(random.pick(&ACTIVATIONS)).rows(random.between(1, 6));
        if random.between(0, 1) == 1 { problem.residual() } else { problem }
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

pub fn depthwise() -> Vec<Case> {
    use Activation::{Relu, Relu6};
    let square = Window::square;
    let depthwise = Convolution::depthwise;
    let chosen = [
        depthwise([1, 1, 2], square(3, 1, 1)),
        depthwise([7, 7, 24], square(3, 1, 1)).norm().and(Relu6),
        depthwise([14, 13, 100], square(5, 2, 2)).norm().and(Relu6).rows(3),
        depthwise([9, 9, 8], square(5, 1, 2)).and(Relu),
        depthwise([16, 15, 33], square(3, 2, 1)).rows(2),
        depthwise([8, 10, 17], Window { dilation: [2, 3], ..square(3, 1, 3) }),
        depthwise([2, 30, 144], Window { pad: Pad { top: 0, left: 2, bottom: 1, right: 0 }, ..square(2, 1, 0) }),
        depthwise([5, 5, 3], square(3, 1, 4)),
        depthwise([112, 5, 32], square(3, 1, 1)).norm().and(Relu6),
        depthwise([15, 29, 40], square(5, 1, 2)).norm().and(Relu6).rows(3),
        depthwise([15, 29, 40], Window { pad: Pad { top: 1, left: 1, bottom: 2, right: 2 }, ..square(5, 2, 0) })
            .rows(5),
        depthwise([30, 31, 72], Window { pad: Pad { top: 0, left: 0, bottom: 1, right: 1 }, ..square(3, 2, 0) })
            .rows(3),
        depthwise([9, 40, 136], square(3, 1, 1)).and(Relu).rows(7),
        depthwise([4, 4, 16], square(3, 1, 9)).rows(2),
        depthwise([14, 14, 480], square(5, 1, 2)).norm().and(Relu6).rows(20),
        depthwise([15, 29, 40], square(7, 1, 3)).norm().and(Relu).rows(3),
        depthwise([7, 6, 100], Window { pad: Pad { top: 1, left: 5, bottom: 3, right: 0 }, ..square(7, 1, 0) }),
        depthwise([56, 56, 72], square(7, 1, 3)).rows(9),
    ];
    let mut random = Random::new("depthwise");
    let any = (0..16).map(|_| {
        let x = [random.between(1, 19), random.between(1, 19), random.pick(&[2, 3, 8, 24, 31, 40, 72])];
        let window = random_window(&mut random, Shape::new(x[0], x[1], x[2]), |reach| reach / 2 + 1);
        let norm = random.between(0, 1) == 1;
        let [activation, rows] = [0, 1].map(|_| random.between(0, 2));
        Convolution { norm, ..depthwise(x, window).and(ACTIVATIONS[activation]).rows(rows + 1) }
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

/// A depthwise convolution of the result of a 1x1 convolution. With `read_twice` that result is an output too.
struct Expanded {
    x: Shape,
    inside: usize,
    window: Window,
    activations: [Activation; 2],
    read_twice: bool,
    rows: usize,
}

impl Problem for Expanded {
    fn case(&self) -> Case {
        let Self { x, inside, window, activations: [first, last], read_twice, rows } = *self;
        let Window { size: [r, s], stride, pad, .. } = window;
        let pads = [pad.top, pad.left, pad.bottom, pad.right];
        let twice = if read_twice { ", read twice" } else { "" };
        let name = format!(
            "expanded {x} to {inside}, {first}, {r}x{s} stride {stride:?} pad {pads:?}, {last}{twice}, rows {rows}"
        );
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let conv = |name: &str, groups, window| Conv2d {
            bias: Some(format!("{name}.bias")),
            groups,
            ..Conv2d::named(name, inside, window)
        };
        let mut y = g.conv2d_with("expand", image, conv("expand", 1, Window::square(1, 1, 0)));
        if first != Activation::None {
            y = g.activation("first", y, first);
        }
        let expand = y;
        y = g.conv2d_with("conv", y, conv("conv", inside, window));
        if last != Activation::None {
            y = g.activation("last", y, last);
        }
        if read_twice {
            y = g.add("add", y, expand);
        }
        case(name, g, y, rows)
    }
}

pub fn expanded() -> Vec<Case> {
    use Activation::{None, Relu, Relu6};
    let pads = |[top, left, bottom, right]: [usize; 4]| Pad { top, left, bottom, right };
    let window = |size, stride, pad| Window { pad: pads(pad), ..Window::square(size, stride, 0) };
    let expanded = |[h, w, c]: [usize; 3], inside, window, activations, rows| {
        let x = Shape::new(h, w, c);
        Expanded { x, inside, window, activations, read_twice: false, rows }
    };
    let chosen = [
        expanded([1, 1, 2], 3, window(3, 1, [1; 4]), [None, None], 1),
        expanded([14, 13, 16], 96, window(3, 2, [0, 0, 1, 1]), [Relu6, Relu6], 3),
        expanded([15, 29, 24], 40, window(5, 1, [2; 4]), [Relu6, None], 3),
        expanded([29, 15, 40], 144, window(5, 2, [1, 1, 2, 2]), [Relu6, Relu6], 5),
        expanded([7, 7, 192], 100, window(5, 1, [2; 4]), [Relu, Relu6], 4),
        expanded([9, 33, 33], 31, window(3, 1, [1; 4]), [None, Relu], 2),
        expanded([5, 4, 8], 8, window(3, 1, [4; 4]), [None, None], 7),
        expanded([12, 11, 100], 64, window(3, 3, [1; 4]), [Relu, None], 2),
        expanded([28, 28, 40], 240, window(3, 1, [1; 4]), [Relu6, Relu6], 17),
        Expanded { read_twice: true, ..expanded([8, 9, 24], 48, window(3, 1, [1; 4]), [Relu, None], 2) },
    ];
    let mut random = Random::new("expanded");
    let any = (0..5).map(|_| {
        let x = [random.between(1, 23), random.between(1, 23), random.pick(&[1, 8, 16, 24, 40, 72, 112])];
        let (size, stride) = random.pick(&[(3, 1), (3, 2), (5, 1), (5, 2), (7, 1)]);
        let most = size / 2 + 1;
        let pad = [0; 4].map(|_| random.between(size / 2, most));
        let activations = [0; 2].map(|_| random.pick(&ACTIVATIONS));
        let (inside, rows) = (random.pick(&[2, 8, 30, 32, 65, 96]), random.between(1, 5));
        expanded(x, inside, window(size, stride, pad), activations, rows)
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

/// A block's last 1x1 convolution and the first one of the next block; the end of the next block reads both results.
#[derive(Clone, Copy)]
struct Chained {
    x: Shape,
    k: usize,
    next: usize,
    stride: usize,
    /// The value that is added to the first convolution's result.
    adds: Adds,
    activations: [Activation; 2],
    rows: usize,
}

#[derive(Clone, Copy, Debug)]
enum Adds {
    Nothing,
    Residual,
    Shortcut,
}

impl Problem for Chained {
    fn case(&self) -> Case {
        let Self { x, k, next, stride, adds, activations: [first, second], rows } = *self;
        let name = format!("chained {x} to {k} by {stride} + {adds:?}, {first}, to {next}, {second}, rows {rows}");
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let conv = |name: &str, channels, window| Conv2d {
            bias: Some(format!("{name}.bias")),
            ..Conv2d::named(name, channels, window)
        };
        let single = Window::square(1, 1, 0);
        let before = Conv2d { groups: x.channels, ..conv("before", x.channels, Window::square(3, stride, 1)) };
        let inside = g.conv2d_with("before", image, before);
        let mut y = g.conv2d_with("first", inside, conv("first", k, single));
        let other =
            |g: &mut GraphBuilder| g.conv2d_with("other", image, conv("other", k, Window::square(1, stride, 0)));
        y = match adds {
            Adds::Nothing => y,
            Adds::Residual => {
                let residual = other(&mut g);
                let residual = g.activation("other.activation", residual, Activation::Relu);
                g.add("add", y, residual)
            }
            Adds::Shortcut => {
                let shortcut = other(&mut g);
                g.add("add", y, shortcut)
            }
        };
        if first != Activation::None {
            y = g.activation("first.activation", y, first);
        }
        let mut z = g.conv2d_with("next", y, conv("next", next, single));
        if second != Activation::None {
            z = g.activation("next.activation", z, second);
        }
        z = g.conv2d("last", z, k, single);
        let last = g.add("last.add", z, y);
        case(name, g, last, rows)
    }
}

pub fn chained() -> Vec<Case> {
    use Activation::{None, Relu, Relu6};
    let chained = |x: [usize; 3], k, next, stride, adds, rows| {
        let x = Shape::new(x[0], x[1], x[2]);
        Chained { x, k, next, stride, adds, activations: [Relu, Relu], rows }
    };
    let chosen = [
        chained([1, 1, 8], 8, 8, 1, Adds::Residual, 1),
        chained([8, 8, 64], 64, 64, 1, Adds::Nothing, 1),
        chained([28, 28, 64], 256, 64, 1, Adds::Residual, 3),
        chained([28, 28, 64], 256, 64, 1, Adds::Shortcut, 3),
        chained([28, 28, 64], 256, 128, 1, Adds::Residual, 2),
        chained([14, 14, 128], 512, 128, 1, Adds::Residual, 5),
        chained([15, 27, 128], 512, 128, 2, Adds::Shortcut, 5),
        chained([14, 14, 128], 512, 256, 1, Adds::Residual, 3),
        chained([7, 7, 256], 1024, 256, 1, Adds::Residual, 2),
        // There are more tiles than any GPU has multiprocessors, with filters that stay in shared memory and filters
        // that do not.
        chained([48, 60, 16], 72, 24, 1, Adds::Residual, 7),
        chained([48, 60, 8], 648, 8, 1, Adds::Residual, 6),
        chained([9, 11, 24], 40, 72, 2, Adds::Shortcut, 5),
        chained([17, 13, 200], 136, 100, 1, Adds::Residual, 3),
        Chained { activations: [None, Relu6], ..chained([23, 19, 40], 65, 31, 1, Adds::Residual, 4) },
    ];
    let mut random = Random::new("chained");
    let any = (0..10).map(|_| Chained {
        x: Shape::new(random.between(1, 25), random.between(1, 25), random.pick(&[1, 3, 8, 64, 72, 128, 150])),
        k: random.pick(&[7, 8, 64, 100, 128, 192, 200, 264]),
        next: random.pick(&[3, 8, 40, 64, 72, 128, 130, 250]),
        stride: random.between(1, 3),
        adds: random.pick(&[Adds::Nothing, Adds::Residual, Adds::Shortcut]),
        activations: [0; 2].map(|_| random.pick(&ACTIVATIONS)),
        rows: random.between(1, 6),
    });
    chosen.into_iter().chain(any).map(|problem| problem.case()).collect()
}

/// A maximum or mean over windows.
struct Pooling {
    x: Shape,
    window: Window,
    /// Whether padding counts in a mean; `None` for a maximum.
    count_pad: Option<bool>,
    rows: usize,
}

impl Problem for Pooling {
    fn case(&self) -> Case {
        let Self { x, window, count_pad, rows } = *self;
        let name = format!("pool {x} count_pad {count_pad:?} {window:?} rows {rows}");
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let y = match count_pad {
            None => g.max_pool("pool", image, window),
            Some(count_pad) => g.avg_pool("pool", image, window, count_pad),
        };
        case(name, g, y, rows)
    }
}

pub fn pool2d() -> Vec<Case> {
    let kinds = [None, Some(false), Some(true)];
    let shape = |[h, w, c]: [usize; 3]| Shape::new(h, w, c);
    let chosen = [
        ([1, 1, 1], Window::square(1, 1, 0)),
        ([12, 13, 64], Window::square(3, 2, 1)),
        ([8, 8, 100], Window::square(2, 2, 0)),
        ([5, 9, 3], Window { pad: Pad { top: 2, left: 0, bottom: 1, right: 2 }, ..Window::square(3, 1, 0) }),
        ([9, 9, 24], Window { dilation: [2, 2], ..Window::square(3, 2, 2) }),
    ];
    let mut problems = Vec::new();
    for (x, window) in chosen {
        for count_pad in kinds {
            problems.push(Pooling { x: shape(x), window, count_pad, rows: 2 });
        }
    }
    let mut random = Random::new("pool2d");
    for i in 0..18 {
        let x = shape([random.between(1, 15), random.between(1, 15), random.pick(&[1, 3, 8, 17, 24, 40])]);
        // The padding is smaller than the dilated window, so that no window lies in the padding alone.
        let window = random_window(&mut random, x, |reach| (reach - 1) / 2);
        problems.push(Pooling { x, window, count_pad: kinds[i % 3], rows: random.between(1, 3) });
    }
    problems.iter().map(Problem::case).collect()
}

/// The mean over all pixels.
struct GlobalAvgPool {
    x: Shape,
    rows: usize,
}

impl Problem for GlobalAvgPool {
    fn case(&self) -> Case {
        let mut g = GraphBuilder::new();
        let image = g.image("image", self.x);
        let y = g.global_avg_pool("pool", image);
        case(format!("global_avg_pool {} rows {}", self.x, self.rows), g, y, self.rows)
    }
}

pub fn global_avg_pool() -> Vec<Case> {
    let shapes = [(1, 1, 1, 1), (7, 7, 1280, 1), (7, 7, 100, 5), (1, 19, 3, 2), (57, 61, 24, 1), (13, 1, 33, 3)];
    shapes.map(|(h, w, c, rows)| GlobalAvgPool { x: Shape::new(h, w, c), rows }.case()).into()
}

/// A fully connected layer.
struct Dense {
    inputs: usize,
    outputs: usize,
    bias: bool,
    rows: usize,
}

impl Problem for Dense {
    fn case(&self) -> Case {
        let Self { inputs, outputs, bias, rows } = *self;
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::vector(inputs));
        let linear = Linear { bias: bias.then(|| "fc.bias".into()), ..Linear::named("fc", outputs) };
        let y = g.linear_with("fc", image, linear);
        let name = format!("linear {inputs} to {outputs} bias {bias} rows {rows}");
        Case { output: OutputKind::Logits, ..case(name, g, y, rows) }
    }
}

pub fn linear() -> Vec<Case> {
    let sizes = [
        (1, 1, 1),
        (1, 5, 2),
        (8, 1, 3),
        (24, 10, 1),
        (100, 100, 33),
        (1280, 1000, 2),
        (513, 63, 5),
        (31, 65, 1),
        (2056, 40, 16),
        (264, 75, 130),
        (1288, 170, 70),
        (3072, 88, 65),
        (6144, 16, 3),
        (2048, 168, 128),
    ];
    let problem = |(inputs, outputs, rows)| [true, false].map(|bias| Dense { inputs, outputs, bias, rows }.case());
    sizes.into_iter().flat_map(problem).collect()
}

/// A network's last layers: mean over all pixels, fully connected layer, output rows.
struct Tail {
    x: Shape,
    classes: usize,
    output: OutputKind,
    rows: usize,
}

impl Problem for Tail {
    fn case(&self) -> Case {
        let Self { x, classes, output, rows } = *self;
        let name = format!("tail {x} to {classes} {output:?} rows {rows}");
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let mean = g.global_avg_pool("mean", image);
        let y = g.linear("fc", mean, classes);
        Case { output, ..case(name, g, y, rows) }
    }
}

/// Layers of ResNet-50 and -18, EfficientNet-Lite0 and convnet28, and unusual ones: fewer channels and outputs than
/// blocks, more outputs than a block computes at a time, more channels than threads have columns, rows that do not
/// divide evenly.
pub fn tail() -> Vec<Case> {
    use OutputKind::{Logits, Probabilities, TopK};
    let sizes = [
        ([7, 7, 2048], 1000, 33),
        ([7, 7, 512], 1000, 17),
        ([7, 7, 1280], 1000, 5),
        ([7, 7, 64], 10, 3),
        ([1, 1, 5], 1, 1),
        ([3, 11, 100], 37, 20),
        ([2, 1, 1037], 1013, 35),
        ([1, 3, 4200], 70, 9),
        ([19, 23, 72], 2100, 4),
    ];
    let problem = |([h, w, c], classes, rows): ([usize; 3], usize, usize)| {
        let outputs = [Logits, Probabilities, TopK(5.min(classes))];
        outputs.map(|output| Tail { x: Shape::new(h, w, c), classes, output, rows }.case())
    };
    sizes.into_iter().flat_map(problem).collect()
}

/// An addition or activation that cannot be fused: the sum of the input and its pooled values, the input doubled, or an
/// activation of the input.
struct Addition {
    x: Shape,
    operands: Operands,
    activation: Activation,
    rows: usize,
}

#[derive(Clone, Copy, Debug)]
enum Operands {
    One,
    Two,
    TwiceTheSame,
}

impl Problem for Addition {
    fn case(&self) -> Case {
        let Self { x, operands, activation, rows } = *self;
        let name = format!("add {x} {operands:?} {activation} rows {rows}");
        let mut g = GraphBuilder::new();
        let input = g.image("image", x);
        let y = match operands {
            Operands::One => input,
            Operands::Two => {
                let pooled = g.max_pool("pool", input, Window::square(3, 1, 1));
                g.add("add", input, pooled)
            }
            Operands::TwiceTheSame => g.add("add", input, input),
        };
        let y = g.activation("activation", y, activation);
        case(name, g, y, rows)
    }
}

pub fn add() -> Vec<Case> {
    let mut cases = Vec::new();
    for (h, w, c, rows) in [(1, 1, 1, 1), (5, 7, 3, 2), (9, 11, 24, 3), (6, 6, 100, 1)] {
        for operands in [Operands::One, Operands::Two, Operands::TwiceTheSame] {
            for activation in ACTIVATIONS {
                cases.push(Addition { x: Shape::new(h, w, c), operands, activation, rows }.case());
            }
        }
    }
    cases
}

/// A concatenation, in some cases with a convolution behind it.
struct Concatenation {
    x: Shape,
    operands: Vec<Operand>,
    behind: bool,
    rows: usize,
}

/// An operand of a concatenation, with this many channels or with those of the input.
#[derive(Clone, Copy, Debug)]
enum Operand {
    Conv(usize),
    /// A convolution to which the input's convolution is added.
    Residual(usize),
    Relu,
    Max,
    Mean,
    Sum,
    /// A concatenation of two convolutions.
    Nested(usize),
    // Operands that do not write their channels directly, or that have another reader.
    Depthwise,
    Input,
    Twice(usize),
}

impl Problem for Concatenation {
    fn case(&self) -> Case {
        let Self { x, ref operands, behind, rows } = *self;
        let name = format!("concat {x} {operands:?}{} rows {rows}", if behind { ", conv" } else { "" });
        let mut g = GraphBuilder::new();
        let image = g.image("image", x);
        let (one, three) = (Window::square(1, 1, 0), Window::square(3, 1, 1));
        let values = operands.iter().enumerate().map(|(i, operand)| {
            let (input, name) = (image, |part: &str| format!("{i}.{part}"));
            match *operand {
                Operand::Conv(k) => {
                    let y = g.conv2d(&name("conv"), input, k, if i % 2 == 0 { three } else { one });
                    g.relu(&name("relu"), y)
                }
                Operand::Residual(k) => {
                    let residual = g.conv2d(&name("residual"), input, k, one);
                    let y = g.conv2d(&name("conv"), input, k, three);
                    g.add(&name("add"), y, residual)
                }
                Operand::Relu => g.relu(&name("relu"), input),
                Operand::Max => g.max_pool(&name("max"), input, three),
                Operand::Mean => g.avg_pool(&name("mean"), input, three, false),
                Operand::Sum => {
                    let pooled = g.max_pool(&name("max"), input, three);
                    g.add(&name("sum"), pooled, input)
                }
                Operand::Nested(k) => {
                    let [a, b] = ["a", "b"].map(|part| g.conv2d(&name(part), input, k, one));
                    g.concat(&name("both"), &[a, b])
                }
                Operand::Depthwise => {
                    let conv = Conv2d { groups: x.channels, ..Conv2d::named(&name("depthwise"), x.channels, three) };
                    g.conv2d_with(&name("depthwise"), input, conv)
                }
                Operand::Input => input,
                Operand::Twice(k) => {
                    let y = g.conv2d(&name("conv"), input, k, one);
                    g.concat(&name("twice"), &[y, y])
                }
            }
        });
        let values: Vec<ValueId> = values.collect();
        let mut y = g.concat("concat", &values);
        if behind {
            y = g.conv2d("behind", y, 40, three);
        }
        case(name, g, y, rows)
    }
}

pub fn concat() -> Vec<Case> {
    use Operand::*;
    let chosen = [
        ([1, 1, 8], vec![Conv(8), Conv(3)], false, 1),
        ([7, 9, 24], vec![Conv(64), Conv(136), Conv(72), Max], false, 3),
        ([14, 14, 72], vec![Conv(64), Residual(128), Nested(24), Conv(31)], true, 2),
        ([5, 6, 16], vec![Relu, Max, Mean, Sum, Depthwise, Input, Twice(8), Conv(8)], false, 5),
        ([9, 11, 40], vec![Max, Twice(16), Residual(8), Nested(72), Input], true, 1),
    ];
    let mut random = Random::new("concat");
    let any = (0..10).map(|_| {
        let k = random.pick(&[8, 24, 64, 72, 128, 136]);
        let mut operands: Vec<Operand> = (0..random.between(1, 5))
            .map(|_| {
                random.pick(&[
                    Conv(k),
                    Conv(8),
                    Residual(k),
                    Relu,
                    Max,
                    Mean,
                    Sum,
                    Nested(k),
                    Depthwise,
                    Input,
                    Twice(8),
                ])
            })
            .collect();
        operands.push(Conv(random.pick(&[1, 8, 31, 64])));
        let x = [random.between(1, 15), random.between(1, 15), random.pick(&[8, 24, 40])];
        (x, operands, random.between(0, 2) == 0, random.between(1, 5))
    });
    let all = chosen.into_iter().chain(any.collect::<Vec<_>>());
    all.map(|([h, w, c], operands, behind, rows)| {
        Concatenation { x: Shape::new(h, w, c), operands, behind, rows }.case()
    })
    .collect()
}

/// A classifier with every kind of output, whose logits are those of a linear layer in f32 or means of pixels in the
/// type of activations; with ties, logits are small whole numbers, many of which are equal.
struct Outputs {
    classes: usize,
    is_linear: bool,
    output: OutputKind,
    ties: bool,
    rows: usize,
}

impl Problem for Outputs {
    fn case(&self) -> Case {
        let Self { classes, is_linear, output, ties, rows } = *self;
        let of = if is_linear { "classes" } else { "means" };
        let name = format!("output {output:?} of {classes} {of}, ties {ties}, rows {rows}");
        let mut random = Random::new(&name);
        let inputs = match is_linear {
            true if ties => 3,
            true => 20,
            false => classes,
        };
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(3, 2, inputs));
        let pooled = g.global_avg_pool("pool", image);
        let y = if is_linear { g.linear("fc", pooled, classes) } else { pooled };
        let mut case = case(name, g, y, rows);
        if ties {
            let whole = |random: &mut Random| random.between(0, 4) as f64 - 2.0;
            let pixel = |random: &mut Random| (0..inputs).map(|_| whole(random)).collect::<Vec<f64>>();
            case.rows = (0..rows).map(|_| pixel(&mut random).repeat(6)).collect();
            let tensors = case.graph.weights().map(|(name, of)| {
                (name.to_owned(), of.dims.clone(), (0..of.elems()).map(|_| whole(&mut random) as f32).collect())
            });
            let tensors = tensors.collect();
            case = Case::new(case.name, case.graph, tensors, case.rows);
        }
        Case { output, ..case }
    }
}

pub fn outputs() -> Vec<Case> {
    use OutputKind::{Features, Logits, Probabilities, TopK};
    let mut cases = Vec::new();
    for (classes, rows) in [(1, 1), (2, 3), (10, 2), (100, 5), (1000, 2), (1001, 1)] {
        for output in [Logits, Probabilities, Features, TopK(1), TopK(classes.min(5)), TopK(classes.min(64))] {
            for (is_linear, ties) in [(true, false), (true, true), (false, false), (false, true)] {
                cases.push(Outputs { classes, is_linear, output, ties, rows }.case());
            }
        }
    }
    cases
}

/// A small network: a stem, residual blocks with and without a convolution in the shortcut, an inverted bottleneck,
/// a classifier.
struct Network {
    index: usize,
    input: InputFormat,
    output: OutputKind,
}

impl Problem for Network {
    fn case(&self) -> Case {
        let Self { index, input, output } = *self;
        let name = format!("network {index} {input} {output:?}");
        let mut random = Random::new(&name);
        let x = Shape::new(random.between(17, 33), random.between(17, 33), random.pick(&[1, 3, 4]));
        let mut net = Builder { g: GraphBuilder::new(), random: random.clone(), count: 0 };
        let image = net.g.image("image", x);
        let mut channels = random.pick(&[8, 13, 24]);
        let mut y = net.conv(image, channels, Window::square(3, 2, 1), 1, Activation::Relu);
        if random.between(0, 1) == 1 {
            y = net.g.max_pool("pool", y, Window::square(3, 2, 1));
        }
        for _ in 0..random.between(2, 3) {
            let (wider, stride) = (random.between(0, 1) == 1, random.between(1, 2));
            y = if random.between(0, 2) > 0 {
                net.residual_block(y, &mut channels, wider, stride)
            } else {
                net.bottleneck(y, channels, channels * random.between(2, 4))
            };
        }
        let pooled = net.g.global_avg_pool("global_pool", y);
        let classes = net.g.linear("fc", pooled, random.pick(&[5, 10, 100]));
        let case = case(name, net.g, classes, random.between(1, 4));
        let mut case = Case { growth: Growth::Quadrature, input, output, ..case };
        if input == InputFormat::U8Nhwc {
            case.preprocessing.mean = vec![0.45; x.channels];
            case.preprocessing.std = vec![0.25; x.channels];
            for value in case.rows.iter_mut().flatten() {
                *value = random.between(0, 255) as f64;
            }
        }
        case
    }
}

struct Builder {
    g: GraphBuilder,
    random: Random,
    count: usize,
}

impl Builder {
    fn conv(&mut self, x: ValueId, k: usize, window: Window, groups: usize, activation: Activation) -> ValueId {
        self.count += 1;
        let (name, norm) = (format!("conv{}", self.count), format!("norm{}", self.count));
        let y = self.g.conv2d_with(&name, x, Conv2d { groups, ..Conv2d::named(&name, k, window) });
        let y = self.g.batch_norm(&norm, y, 1e-5);
        match activation {
            Activation::None => y,
            _ => self.g.activation(&format!("activation{}", self.count), y, activation),
        }
    }

    fn residual_block(&mut self, x: ValueId, channels: &mut usize, wider: bool, stride: usize) -> ValueId {
        let before = *channels;
        if wider {
            *channels += self.random.between(1, 16);
        }
        let y = self.conv(x, *channels, Window::square(3, stride, 1), 1, Activation::Relu);
        let y = self.conv(y, *channels, Window::square(3, 1, 1), 1, Activation::None);
        let shortcut = if before != *channels || stride != 1 {
            self.conv(x, *channels, Window::square(1, stride, 0), 1, Activation::None)
        } else {
            x
        };
        self.count += 1;
        let sum = self.g.add(&format!("add{}", self.count), y, shortcut);
        self.g.relu(&format!("relu{}", self.count), sum)
    }

    fn bottleneck(&mut self, x: ValueId, channels: usize, inside: usize) -> ValueId {
        let y = self.conv(x, inside, Window::square(1, 1, 0), 1, Activation::Relu6);
        let size = self.random.pick(&[3, 5]);
        let y = self.conv(y, inside, Window::square(size, 1, size / 2), inside, Activation::Relu6);
        let y = self.conv(y, channels, Window::square(1, 1, 0), 1, Activation::None);
        self.count += 1;
        self.g.add(&format!("add{}", self.count), y, x)
    }
}

pub fn networks() -> Vec<Case> {
    let inputs = [InputFormat::F16Nhwc, InputFormat::U8Nhwc, InputFormat::F32Nchw];
    let outputs = [OutputKind::Logits, OutputKind::Features, OutputKind::Probabilities, OutputKind::TopK(5)];
    let problem = |index| Network { index, input: inputs[index % 3], output: outputs[index % 4] };
    let cases: Vec<Case> = (0..12).map(|index| problem(index).case()).collect();
    for case in &cases {
        infer(&case.network).expect("a problem's graph is well-formed");
    }
    cases
}
