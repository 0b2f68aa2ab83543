//! Tests of the places of weights in the buffer, and of its bytes.

use std::collections::BTreeSet;

use super::*;
use crate::graph::{Contract, Conv, Conv2d, Expr, GraphBuilder, Norm, Op, ValueId, Window};
use crate::model::images::Network;
use crate::model::{Preprocessing, Weights};
use crate::plan::values::tests::planned;
use crate::plan::{Choices, Kernel, Limits, Request, plan};
use crate::tensor::{InputFormat, OutputKind, RowSpec, Shape};

fn found(mut g: GraphBuilder, y: ValueId) -> Network {
    g.output("y", y);
    Network::of(&g.finish().unwrap()).unwrap()
}

/// A block whose shortcut is a convolution: one plan computes it with the last convolution, the other by itself.
#[test]
fn every_part_is_in_its_place_whatever_the_plans_share() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(8, 8, 20));
    let x = g.conv2d("first", image, 24, Window::square(3, 1, 1));
    let with_bias =
        |name: &str| Conv2d { bias: Some(format!("{name}.bias")), ..Conv2d::named(name, 16, Window::square(1, 1, 0)) };
    let shortcut = g.conv2d_with("shortcut", image, with_bias("shortcut"));
    let y = g.conv2d_with("last", x, with_bias("last"));
    let sum = g.add("sum", y, shortcut);
    g.output("y", sum);
    let graph = g.finish().unwrap();
    let value = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 64.0 - 0.75;
    let tensor = |name: &str, dims: Vec<usize>, seed| {
        (name.to_owned(), dims.clone(), (0..dims.iter().product()).map(value(seed)).collect::<Vec<f32>>())
    };
    let tensors = graph.weights().enumerate().map(|(seed, (name, of))| tensor(name, of.dims.clone(), seed));
    let tensors: Vec<_> = tensors.collect();
    let read = |name: &str, index: usize| {
        let (_, _, values) = tensors.iter().find(|(tensor, ..)| tensor == name).unwrap();
        values[index]
    };
    let weights = Weights::from_tensors(tensors.clone()).unwrap();
    let preprocessing = Preprocessing::new(Shape::new(8, 8, 20));
    let model = Model::new(graph, weights, preprocessing, Vec::new()).unwrap();
    let limits = Limits::h200();
    let of = |shortcut: Option<Kernel>| {
        let choices: Choices = shortcut.map(|kernel| ("shortcut".to_owned(), kernel)).into_iter().collect();
        let request = Request {
            limits: &limits,
            batch: 2,
            input: InputFormat::F16Nhwc,
            preprocessing: model.preprocessing().unwrap(),
            output: OutputKind::Features,
            choices: &choices,
        };
        plan(model.image_network().unwrap(), &request).unwrap()
    };
    let apart = Kernel::Sm80Gemm(crate::plan::ConvTile { m: 64, n: 64 });
    let plans = [of(Some(Kernel::Joined)), of(Some(apart))];
    assert_eq!(plans[0].steps.len() + 1, plans[1].steps.len());
    let layout = Layout::new(&plans).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.fill(&model, &plans, &mut bytes).unwrap();

    let half_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
    let float_at = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let step = |plan: &Plan, name: &str| plan.steps.iter().position(|step| step.name == name).unwrap();
    let filter = |name: &str| layout.filter(&plans[0], &plans[0].steps[step(&plans[0], name)], name);
    // [24][20][3][3] → [24][9][24], the last four channels zeros.
    for (k, tap, c) in (0..24).flat_map(|k| (0..9).flat_map(move |tap| (0..24).map(move |c| (k, tap, c)))) {
        let expected = if c < 20 { f16::from_f32(read("first.weight", (k * 20 + c) * 9 + tap)).to_f32() } else { 0.0 };
        assert_eq!(half_at(filter("first") + 2 * ((k * 9 + tap) * 24 + c)), expected, "{k} {tap} {c}");
    }
    // [16][24] → [16][64], a step of the kernel: zeros behind the channels.
    for (k, c) in (0..16).flat_map(|k| (0..64).map(move |c| (k, c))) {
        let expected = if c < 24 { f16::from_f32(read("last.weight", k * 24 + c)).to_f32() } else { 0.0 };
        assert_eq!(half_at(filter("last") + 2 * (k * 64 + c)), expected, "{k} {c}");
    }
    let bias =
        |plan: &Plan, name: &str, k: usize| float_at(layout.bias(plan, &plan.steps[step(plan, name)], 0) + 4 * k);
    for k in 0..16 {
        let [last, shortcut] = ["last.bias", "shortcut.bias"].map(|name| read(name, k));
        assert_eq!(bias(&plans[0], "last", k), last + shortcut);
        assert_eq!([bias(&plans[1], "last", k), bias(&plans[1], "shortcut", k)], [last, shortcut]);
    }
}

#[test]
fn what_plans_store_in_different_ways_has_a_place_for_each() {
    let (limits, choices) = (Limits::h200(), Choices::new());
    let of = |channels, window: &Window| {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, channels));
        let x = g.conv2d("conv", image, 8, window);
        let graph = found(g, x);
        let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
        let preprocessing = &Preprocessing::new(graph.input);
        let request = Request { limits: &limits, batch: 2, input, preprocessing, output, choices: &choices };
        plan(&graph, &request).unwrap()
    };
    let square = &Window::square(3, 1, 1);
    let places = |plans: &[Plan]| {
        let layout = Layout::new(plans).unwrap();
        let conv = |plan: &Plan| plan.steps.iter().find(|step| step.name == "conv").unwrap().clone();
        plans.iter().map(|plan| layout.filter(plan, &conv(plan), "conv")).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(places(&[of(16, square), of(16, square)]), 1);
    assert_eq!(places(&[of(16, square), of(24, square), of(16, square)]), 2);
    // Both have the same number of bytes, but in one the last channels are padding, and in the other a row is as long
    // as a column.
    assert_eq!(places(&[of(17, square), of(24, square)]), 2);
    let row = Window { size: vec![1, 9], ..square.clone() };
    assert_eq!(places(&[of(16, square), of(16, &row)]), 2);
    let [one, both] = [vec![of(16, square)], vec![of(24, square), of(16, square)]].map(|p| Layout::new(&p).unwrap());
    assert!(both.covers(&one) && !one.covers(&both));
}

/// The first convolution of a network, of three channels: the kernel that reads f32 stores four, tiles of halves store
/// eight. Sizes of one engine may use both.
#[test]
fn a_filter_that_kernels_store_with_more_or_fewer_channels_is_packed_for_each() {
    let graph = |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 64, 96, 3]);
        let filter = g.weight("filter", Dtype::F32, &[16, 3, 3, 3]);
        let bias = g.weight("bias", Dtype::F32, &[16]);
        let conv = Conv { window: Window::square(3, 2, 1), groups: 1 };
        let y = g.node("first", Op::Conv(conv), &[x, filter, bias]);
        g.output("y", y);
        g.finish()
    };
    let value = |k: usize, c: usize, tap: usize| (k * 27 + c * 9 + tap) as f32 / 8.0; // exact in f16
    let values = (0..16).flat_map(|k| (0..3).flat_map(move |c| (0..9).map(move |tap| value(k, c, tap))));
    let tensors = [("filter", vec![16, 3, 3, 3], values.collect::<Vec<f32>>()), ("bias", vec![16], vec![1.0; 16])];
    let weights = Weights::from_tensors(tensors).unwrap();
    let model = Model::of_graphs(weights, graph).unwrap();
    let rows = [("x", vec![64, 96, 3]), ("y", vec![32, 48, 16])];
    let [x, y] = rows.map(|(name, dims)| RowSpec::new([(name, Dtype::F32, dims)]));
    let planned = |limits| planned(&graph(1).unwrap(), &limits, 1, [&x, &y], Dtype::F16);
    let plans = [Limits::h200(), Limits::a100()].map(planned);
    let layout = Layout::new(&plans).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.fill(&model, &plans, &mut bytes).unwrap();
    assert!(matches!(plans[0].steps[0].op, StepOp::Few(_)) && !matches!(plans[1].steps[0].op, StepOp::Few(_)));
    for (plan, stored) in plans.iter().zip([4, 8]) {
        let step = plan.steps.iter().find(|step| step.name == "first").unwrap();
        let at = layout.filter(plan, step, "first");
        let all = (0..16).flat_map(|k| (0..9).flat_map(move |tap| (0..stored).map(move |c| (k, tap, c))));
        for (k, tap, c) in all {
            let half = &bytes[at + 2 * ((k * 9 + tap) * stored + c)..][..2];
            let found = f16::from_le_bytes(half.try_into().unwrap()).to_f32();
            assert_eq!(found, if c < 3 { value(k, c, tap) } else { 0.0 }, "{k} {tap} {c} of {stored}: {plan}");
        }
    }
}

/// A depthwise convolution has the same weights by itself and with the convolution in front of it.
#[test]
fn plans_that_want_the_same_in_different_steps_share_it() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(56, 56, 64));
    let expand = g.conv2d("expand", image, 144, Window::square(1, 1, 0));
    let depthwise = Conv2d { groups: 144, ..Conv2d::named("depthwise", 144, Window::square(3, 1, 1)) };
    let y = g.conv2d_with("depthwise", expand, depthwise);
    let graph = found(g, y);
    let of = |choices: &Choices| {
        let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
        let preprocessing = &Preprocessing::new(graph.input);
        plan(&graph, &Request { limits: &Limits::h200(), batch: 64, input, preprocessing, output, choices }).unwrap()
    };
    let [both, apart] = [of(&Choices::new()), of(&Choices::from([("depthwise".to_owned(), Kernel::Sm80)]))];
    assert_eq!(both.steps.len() + 1, apart.steps.len());
    let layouts = [vec![both.clone()], vec![apart.clone()], vec![apart, both]];
    let layouts = layouts.map(|plans| Layout::new(&plans).unwrap());
    assert!(layouts.iter().all(|layout| layout.bytes() == layouts[0].bytes()));
    assert!(layouts.iter().all(|layout| layouts.iter().all(|other| layout.covers(other))));
}

#[test]
fn a_weight_beyond_f16_is_named() {
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::new(8, 8, 8));
    let x = g.conv2d("conv", image, 8, Window::square(1, 1, 0));
    g.output("y", x);
    let graph = g.finish().unwrap();
    let tensors = graph.weights().map(|(name, of)| {
        let mut values = vec![0.5; of.elems()];
        *values.last_mut().unwrap() = if name == "conv.weight" { 70_000.0 } else { 1.0 };
        (name.to_owned(), of.dims.clone(), values)
    });
    let weights = Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap();
    let model = Model::new(graph, weights, Preprocessing::new(Shape::new(8, 8, 8)), Vec::new()).unwrap();
    let request = Request {
        limits: &Limits::a100(),
        batch: 1,
        input: InputFormat::F16Nhwc,
        preprocessing: model.preprocessing().unwrap(),
        output: OutputKind::Features,
        choices: &Choices::new(),
    };
    let plans = [plan(model.image_network().unwrap(), &request).unwrap()];
    let layout = Layout::new(&plans).unwrap();
    let error = layout.fill(&model, &plans, &mut vec![0; layout.bytes()]).unwrap_err().to_string();
    assert!(error.contains("`conv`") && error.contains("70000"), "{error}");
}

/// The matrix of a product, packed once for kernels of f16 and once for those of bf16. Only bf16 can hold 10^5.
#[test]
fn a_matrix_is_packed_in_the_type_of_its_rows() {
    let [first, second] = [1.0 + 1.0 / 256.0 + 1.0 / 1024.0, 1e5_f32];
    let weights = |value| Weights::from_tensors([("w", vec![16, 8], vec![value; 128])]).unwrap();
    let graph = |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 4, 16]);
        let w = g.weight("w", Dtype::F32, &[16, 8]);
        let y = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
        g.output("y", y);
        g.finish()
    };
    let models = [first, second].map(|value| Model::of_graphs(weights(value), graph).unwrap());
    let [x, y] = [("x", 16), ("y", 8)].map(|(name, columns)| RowSpec::new([(name, Dtype::F32, vec![4, columns])]));
    let planned = |precision| planned(&graph(1).unwrap(), &Limits::h200(), 1, [&x, &y], precision);
    let plans = [Dtype::F16, Dtype::Bf16].map(planned);
    let layout = Layout::new(&plans).unwrap();
    let places = plans.each_ref().map(|plan| {
        let step = plan.steps.iter().find(|step| step.name == "product").unwrap();
        assert!(matches!(step.kernel, Kernel::Sm90Product(_)), "{plan}");
        layout.filter(plan, step, "product")
    });
    let mut bytes = vec![0; layout.bytes()];
    layout.fill(&models[0], &plans, &mut bytes).unwrap();
    let bits = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    for index in 0..128 {
        let [of_f16, of_bf16] = places.map(|at| bits(at + 2 * index));
        assert_eq!([of_f16, of_bf16], [f16::from_f32(first).to_bits(), bf16::from_f32(1.007_812_5).to_bits()]);
    }
    let fill = |plan: &Plan| {
        let plans = std::slice::from_ref(plan);
        let layout = Layout::new(plans).unwrap();
        layout.fill(&models[1], plans, &mut vec![0; layout.bytes()])
    };
    let [of_f16, of_bf16] = plans.each_ref().map(fill);
    assert!(of_bf16.is_ok() && of_f16.unwrap_err().to_string().contains("beyond the range of f16"));
}

/// A product behind a norm: the norm's factors are in the matrix, its sums and what is added lie behind it.
#[test]
fn a_norm_is_in_the_matrix_of_the_product_behind_it() {
    const K: usize = 192;
    let graph = |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 4, K]);
        let product = |g: &mut GraphBuilder, name: &str, x, columns| {
            let w = g.weight(&format!("{name}.w"), Dtype::F32, &[K, columns]);
            let b = g.weight(&format!("{name}.b"), Dtype::F32, &[columns]);
            let y = g.node(name, Op::Contract(Contract::matmul(3, 2)), &[x, w]);
            g.map(&format!("{name}.sum"), Expr::arg(0) + Expr::arg(1), &[y, b])
        };
        let first = product(&mut g, "first", x, K);
        let vectors = ["norm.w", "norm.b"].map(|name| g.weight(name, Dtype::F32, &[K]));
        let norm = Op::Norm(Norm { axis: 2, eps: 1e-5, centred: true });
        let normed = g.node("norm", norm, &[first, vectors[0], vectors[1]]);
        let y = product(&mut g, "behind", normed, 8);
        g.output("y", y);
        g.finish()
    };
    let value = |seed: usize, i: usize| ((i * 37 + seed) % 101) as f32 / 64.0 - 0.75;
    let names = ["first.w", "first.b", "norm.w", "norm.b", "behind.w", "behind.b"];
    let dims = [vec![K, K], vec![K], vec![K], vec![K], vec![K, 8], vec![8]];
    let tensors = names.into_iter().zip(dims).enumerate().map(|(seed, (name, dims))| {
        let values: Vec<f32> = (0..dims.iter().product()).map(|i| value(seed, i)).collect();
        (name, dims, values)
    });
    let weights = Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap();
    let model = Model::of_graphs(weights, graph).unwrap();
    let [x, y] = [("x", K), ("y", 8)].map(|(name, columns)| RowSpec::new([(name, Dtype::F32, vec![4, columns])]));
    let plans = [planned(&graph(1).unwrap(), &Limits::h200(), 1, [&x, &y], Dtype::F16)];
    let step = plans[0].steps.iter().find(|step| step.name == "behind").unwrap();
    assert!(matches!(&step.op, StepOp::Product(of) if of.norm.is_some() && !of.bias), "{}", plans[0]);
    let layout = Layout::new(&plans).unwrap();
    let mut bytes = vec![0; layout.bytes()];
    layout.fill(&model, &plans, &mut bytes).unwrap();
    let at = layout.filter(&plans[0], step, "behind");
    let float = |index: usize| f32::from_le_bytes(bytes[at + 2 * 8 * K + 4 * index..][..4].try_into().unwrap());
    for n in 0..8 {
        let (mut sum, mut added) = (0.0, f64::from(value(5, n)));
        for k in 0..K {
            let [weight, bias, w] = [value(2, k), value(3, k), value(4, k * 8 + n)];
            let packed = f16::from_f32((f64::from(w) * f64::from(weight)) as f32);
            let place = at + 2 * (n * K + k);
            assert_eq!(bytes[place..place + 2], packed.to_le_bytes(), "{n} {k}");
            (sum, added) = (sum + packed.to_f64(), added + f64::from(w) * f64::from(bias));
        }
        assert_eq!(float(n), sum as f32);
        assert!((f64::from(float(8 + n)) - added).abs() < 1e-5, "{n}");
    }
}
