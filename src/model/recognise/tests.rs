use super::*;
use crate::graph::{Binary, Contract, Conv, Expr, GraphBuilder, PoolOp, Reduce, ReduceOp, Unary, ValueType};
use crate::loops;
use crate::model::images::{Pad, Pool};
use crate::model::interpreter::{Tensors, Xorshift, evaluate};
use crate::tensor::Activation;

const F32: Dtype = Dtype::F32;
const TO_PLANES: [usize; 4] = [0, 3, 1, 2];

/// A convolution as importers write it for planes.
fn conv(g: &mut GraphBuilder, name: &str, x: ValueId, [k, c, r]: [usize; 3], groups: usize) -> ValueId {
    let filter = g.weight(&format!("{name}.weight"), F32, &[k, c, r, r]);
    let pixels = g.node(&format!("{name}.in"), values::Op::Transpose(TO_PIXELS.to_vec()), &[x]);
    let window = values::Window::all(2, r, 1, r / 2);
    let y = g.node(name, values::Op::Conv(Conv { window, groups }), &[pixels, filter]);
    g.node(&format!("{name}.out"), values::Op::Transpose(TO_PLANES.to_vec()), &[y])
}

fn scalar(g: &mut GraphBuilder, value: f32) -> ValueId {
    g.constant(F32, &[], value.to_le_bytes().to_vec())
}

fn bounded(g: &mut GraphBuilder, name: &str, x: ValueId, (op, at): (Binary, f32)) -> ValueId {
    let at = scalar(g, at);
    g.map(name, Expr::arg(1).binary(op, Expr::arg(0)), &[x, at])
}

/// (x - mean) / sqrt(var + eps) * gamma + beta, for planes.
fn batch_norm(g: &mut GraphBuilder, name: &str, x: ValueId, channels: usize) -> ValueId {
    let vector = |part: &str| (format!("{name}.{part}"), format!("{name}.{part}.column"));
    let mut inputs = vec![x];
    for part in ["mean", "var", "gamma", "beta"] {
        let (name, column) = vector(part);
        let weight = g.weight(&name, F32, &[channels]);
        inputs.push(g.node(&column, values::Op::Reshape(vec![channels, 1, 1]), &[weight]));
    }
    let [x, mean, var, gamma, beta] = [0, 1, 2, 3, 4].map(Expr::arg);
    let spread = (var + Expr::float(F32, 1e-5)).unary(Unary::Sqrt);
    g.map(name, (x - mean) / spread * gamma + beta, &inputs)
}

/// A network with every operation that is recognised.
fn network_of_planes() -> values::Graph {
    let mut g = GraphBuilder::new();
    let image = g.input("image", F32, &[1, 3, 9, 7]);
    let half = scalar(&mut g, 0.5);
    let x = g.map("centred", Expr::arg(0) - Expr::arg(1), &[image, half]);
    let x = conv(&mut g, "stem", x, [8, 3, 3], 1);
    let x = batch_norm(&mut g, "bn", x, 8);
    let x = bounded(&mut g, "relu", x, (Binary::Max, 0.0));
    let x = bounded(&mut g, "six", x, (Binary::Min, 6.0));
    let y = conv(&mut g, "depthwise", x, [8, 1, 3], 8);
    let y = g.map("relu2", Expr::arg(0).binary(Binary::Max, Expr::float(F32, 0.0)), &[y]);
    let y = conv(&mut g, "pointwise", y, [8, 8, 1], 1);
    let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
    let pixels = g.node("pool.in", values::Op::Transpose(TO_PIXELS.to_vec()), &[sum]);
    let window = values::Window::all(2, 3, 2, 1);
    let pool = values::Pool { op: PoolOp::Max, window };
    let pooled = g.node("pool", values::Op::Pool(pool), &[pixels]);
    let planes = g.node("pool.out", values::Op::Transpose(TO_PLANES.to_vec()), &[pooled]);
    let both = g.node("both", values::Op::Concat(1), &[planes, planes]);
    let mean = Reduce { op: ReduceOp::Mean, axes: vec![2, 3], keep: true };
    let mean = g.node("mean", values::Op::Reduce(mean), &[both]);
    let flat = g.node("flat", values::Op::Reshape(vec![1, 16]), &[mean]);
    let weight = g.weight("fc.weight", F32, &[16, 5]);
    let bias = g.weight("fc.bias", F32, &[5]);
    let fc = g.node("fc", values::Op::Contract(Contract::matmul(2, 2)), &[flat, weight]);
    let logits = g.map("logits", Expr::arg(0) + Expr::arg(1), &[fc, bias]);
    let result = g.node("softmax", values::Op::Softmax { axis: 1, log: false }, &[logits]);
    g.output("probabilities", result);
    g.finish().unwrap()
}

fn random_weights(graph: &values::Graph, random: &mut Xorshift) -> Weights {
    let named = graph.values.iter().filter_map(|value| match &value.origin {
        Origin::Constant(Constant::Weight(name)) => Some((name.clone(), value.of.clone())),
        _ => None,
    });
    let values = named.map(|(name, of)| {
        let var = name.ends_with("var");
        let value = |_| if var { 0.5 + random.signed().abs() } else { random.signed() } as f32;
        (name, of.dims.clone(), (0..of.elems()).map(value).collect())
    });
    Weights::from_tensors(values.collect::<Vec<_>>()).unwrap()
}

#[test]
fn a_network_of_planes_in_pieces_is_one_of_images() {
    let graph = network_of_planes();
    let mut random = Xorshift(9);
    let weights = random_weights(&graph, &mut random);
    let found = network(&graph, &weights).unwrap();
    let kinds: Vec<_> = found.network.nodes.iter().map(|node| node.op.kind()).collect();
    let of = |kind| kinds.iter().filter(|found| **found == kind).count();
    assert_eq!((of("conv2d"), of("batch_norm"), of("activation"), of("add"), of("linear")), (4, 1, 2, 1, 1));

    let pixels: Vec<f32> = (0..9 * 7 * 3).map(|_| random.signed() as f32).collect();
    let turned = values::Op::Transpose(TO_PLANES.to_vec());
    let planes = ValueType::new(F32, &[1, 3, 9, 7]);
    let x = loops::compute(&turned, &[Some(&Tensor::of(&[1, 9, 7, 3], &pixels))], &[planes]).unwrap();
    let expected = loops::evaluate(&graph, &mut |name, of| weights.read_as(name, of), &x).unwrap();

    let weights = weights.with(found.computed).unwrap().with_views(found.views).unwrap();
    let all: Tensors = weights.names().map(|name| (name.to_owned(), weights.read(name).unwrap().to_f64s())).collect();
    let pixels: Vec<f64> = pixels.into_iter().map(f64::from).collect();
    let logits = evaluate(&found.network, &all, &pixels)[found.network.output.0].clone();
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    for (logit, expected) in logits.iter().zip(expected[0].to_f64s()) {
        assert!((logit.exp() / sum - expected).abs() < 1e-5, "{logits:?}, {expected}");
    }
}

/// x times a matrix, `[out, in]`.
fn linear(g: &mut GraphBuilder, name: &str, x: ValueId, matrix: ValueId) -> ValueId {
    let rows = Contract { left: vec![0, 2], right: vec![1, 2], result: vec![0, 1] };
    g.node(name, values::Op::Contract(rows), &[x, matrix])
}

/// Checks that the network of images in a graph of planes computes what the graph does, also when it is found once more
/// with the weights that were made for it.
fn expect_the_same(graph: &values::Graph) {
    let mut random = Xorshift(4);
    let weights = Arc::new(random_weights(graph, &mut random));
    let mut found = network(graph, &weights).unwrap();
    let Shape { height, width, channels } = found.network.input;
    let planes = Tensor::of(&[1, channels, height, width], &vec![0.75_f32; channels * height * width]);
    let expected = loops::evaluate(graph, &mut |name, of| weights.read_as(name, of), &[planes]).unwrap();
    let all = found.weights(&weights).unwrap();
    let again = network(graph, &all).unwrap();
    assert_eq!(again.network, found.network);
    assert!(Arc::ptr_eq(&{ again }.weights(&all).unwrap(), &all), "no weight is missing");
    let tensors: Tensors = all.names().map(|name| (name.to_owned(), all.read(name).unwrap().to_f64s())).collect();
    let pixels = vec![0.75; channels * height * width];
    let result = &evaluate(&found.network, &tensors, &pixels)[found.network.output.0];
    for (result, expected) in result.iter().zip(expected[0].to_f64s()) {
        assert!((result - expected).abs() < 1e-4 * expected.abs().max(1.0), "{result}, {expected}");
    }
}

#[test]
fn two_layers_may_have_one_matrix() {
    let mut g = GraphBuilder::new();
    let x = g.input("image", F32, &[1, 3, 6, 6]);
    let x = conv(&mut g, "stem", x, [8, 3, 3], 1);
    let mean = Reduce { op: ReduceOp::Mean, axes: vec![2, 3], keep: false };
    let x = g.node("mean", values::Op::Reduce(mean), &[x]);
    let matrix = g.weight("matrix", F32, &[8, 8]);
    let x = linear(&mut g, "first", x, matrix);
    let x = bounded(&mut g, "relu", x, (Binary::Max, 0.0));
    let x = linear(&mut g, "second", x, matrix);
    let x = bounded(&mut g, "relu2", x, (Binary::Max, 0.0));
    let last = g.weight("last", F32, &[5, 8]);
    let y = linear(&mut g, "third", x, last);
    g.output("y", y);
    expect_the_same(&g.finish().unwrap());
}

#[test]
fn layers_of_planes_may_have_one_matrix() {
    for (channels, stride) in [(3, 2), (12, 4)] {
        let mut g = GraphBuilder::new();
        let image = g.input("image", F32, &[1, 3, 8, 8]);
        let matrix = g.weight("matrix", F32, &[5, 48]);
        let mut flat = |name: &str, channels: usize, stride: usize| {
            let filter = g.weight(&format!("{name}.weight"), F32, &[channels, 3, 3, 3]);
            let pixels = g.node(&format!("{name}.in"), values::Op::Transpose(TO_PIXELS.to_vec()), &[image]);
            let conv = Conv { window: values::Window::all(2, 3, stride, 1), groups: 1 };
            let y = g.node(name, values::Op::Conv(conv), &[pixels, filter]);
            let planes = g.node(&format!("{name}.out"), values::Op::Transpose(TO_PLANES.to_vec()), &[y]);
            let flat = g.node(&format!("{name}.flat"), values::Op::Reshape(vec![1, 48]), &[planes]);
            linear(&mut g, &format!("{name}.fc"), flat, matrix)
        };
        let (a, b) = (flat("a", 3, 2), flat("b", channels, stride));
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[a, b]);
        g.output("y", sum);
        expect_the_same(&g.finish().unwrap());
    }
}

#[test]
fn computed_weights_have_names_of_their_own() {
    let mut g = GraphBuilder::new();
    let image = g.input("image", F32, &[1, 3, 6, 6]);
    let pixels = g.node("in", values::Op::Transpose(TO_PIXELS.to_vec()), &[image]);
    let filter = g.weight("scale (mean)", F32, &[8, 3, 3, 3]);
    let window = values::Window::all(2, 3, 1, 1);
    let x = g.node("stem", values::Op::Conv(Conv { window, groups: 1 }), &[pixels, filter]);
    let factor = g.weight("scale (offset)", F32, &[8]);
    let x = g.map("scale", Expr::arg(0) * Expr::arg(1), &[x, factor]);
    let mean = Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: false };
    let x = g.node("mean", values::Op::Reduce(mean), &[x]);
    let matrix = g.weight("fc (weight)", F32, &[8, 5]);
    let y = g.node("fc", values::Op::Contract(Contract::matmul(2, 2)), &[x, matrix]);
    g.output("y", y);
    expect_the_same(&g.finish().unwrap());
}

#[test]
fn everything_that_is_not_of_a_network_of_images_is_told_at_once() {
    let mut g = GraphBuilder::new();
    let x = g.input("image", F32, &[1, 3, 8, 8]);
    let x = conv(&mut g, "stem", x, [4, 3, 3], 1);
    let a = g.map("erf", Expr::arg(0).unary(Unary::Erf), &[x]);
    let b = bounded(&mut g, "five", x, (Binary::Min, 5.0));
    let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[a, b]);
    g.output("y", sum);
    let graph = g.finish().unwrap();
    let weights = random_weights(&graph, &mut Xorshift(1));
    let error = network(&graph, &weights).err().unwrap().to_string();
    assert!(error.contains("`erf`") && error.contains("`five`") && !error.contains("`sum`"), "{error}");
}

/// Each constant is the one before it plus itself: a search through both operands of each would take 2^64 steps.
#[test]
fn constants_that_share_operands_are_looked_at_once() {
    let mut g = GraphBuilder::new();
    let image = g.input("image", F32, &[1, 8, 8, 4]);
    let mut sum = g.weight("weight", F32, &[4]);
    for index in 0..64 {
        sum = g.map(&format!("sum{index}"), Expr::arg(0) * Expr::float(F32, 0.5) + Expr::arg(1), &[sum, sum]);
    }
    let y = g.map("scaled", Expr::arg(0) + Expr::arg(1), &[image, sum]);
    g.output("y", y);
    let graph = g.finish().unwrap();
    let weights = Weights::from_tensors([("weight", vec![4], vec![0.0; 4])]).unwrap();
    assert_eq!(network(&graph, &weights).unwrap().network.nodes.len(), 2);
}

#[test]
fn layers_keep_their_names_and_no_weight_is_read() {
    let mut g = GraphBuilder::new();
    let x = g.image("image", Shape::new(9, 7, 3));
    let x = g.conv2d("conv", x, 8, values::Window::square(3, 1, 1));
    let x = g.batch_norm("bn", x, 1e-3);
    let x = g.relu6("six", x);
    let window = values::Window { pad: vec![[0, 1], [1, 0]], ..values::Window::square(2, 2, 0) };
    let x = g.avg_pool("pool", x, window, true);
    let x = g.global_avg_pool("mean", x);
    let x = g.linear("fc", x, 5);
    g.output("logits", x);
    let network = Network::of(&g.finish().unwrap()).unwrap();
    let names: Vec<&str> = network.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["input", "conv", "bn", "six", "pool", "mean", "fc"]);
    assert_eq!(network.nodes[2].op, Op::BatchNorm(values::BatchNorm::named("bn", 1e-3)));
    assert_eq!(network.nodes[3].op, Op::Activation(Activation::Relu6));
    let pad = Pad { top: 0, bottom: 1, left: 1, right: 0 };
    let window = Window { pad, ..Window::square(2, 2, 0) };
    assert_eq!(network.nodes[4].op, Op::AvgPool(Pool { window, count_pad: true }));
    assert_eq!(network.nodes[6].op, Op::Linear(values::Linear::named("fc", 5)));
}

/// Another node reads the convolution's value too, so the batch norm is computed separately, with weights that are
/// read.
#[test]
fn a_batch_norm_that_cannot_be_folded_is_a_convolution_of_each_channel() {
    let mut g = GraphBuilder::new();
    let x = g.image("image", Shape::new(5, 4, 3));
    let x = g.conv2d("conv", x, 4, values::Window::square(1, 1, 0));
    let y = g.batch_norm("bn", x, 1e-5);
    let y = g.add("sum", y, x);
    g.output("y", y);
    let graph = g.finish().unwrap();
    assert!(matches!(Network::of(&graph), Err(Error::Tensor { tensor, .. }) if tensor == "bn.weight"));
    let found = network(&graph, &random_weights(&graph, &mut Xorshift(3))).unwrap();
    let bn = found.network.find("bn").unwrap();
    assert!(matches!(&found.network.nodes[bn.0].op, Op::Conv2d(conv) if conv.groups == 4 && conv.bias.is_some()));
}
