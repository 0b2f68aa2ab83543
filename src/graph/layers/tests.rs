use super::*;
use crate::graph::{Graph, Op, Tensor, ValueType};
use crate::loops;
use crate::tensor::{Activation, Shape};

fn of_image(shape: Shape) -> (GraphBuilder, ValueId) {
    let mut g = GraphBuilder::new();
    let x = g.image("image", shape);
    (g, x)
}

fn finished(mut g: GraphBuilder, y: ValueId) -> Graph {
    g.output("y", y);
    g.finish().unwrap()
}

/// The only mistake of a graph.
fn mistake(mut g: GraphBuilder, y: ValueId) -> String {
    g.output("y", y);
    let told = g.finish().unwrap_err().to_string();
    assert!(!told.contains("; node"), "several: {told}");
    told
}

fn evaluated(graph: &Graph, weight: impl Fn(&str, usize) -> f32, inputs: &[Tensor]) -> Vec<f64> {
    let mut read = |name: &str, of: &ValueType| {
        let values: Vec<f32> = (0..of.elems()).map(|at| weight(name, at)).collect();
        Ok(Tensor::of(&of.dims, &values))
    };
    loops::evaluate(graph, &mut read, inputs).unwrap().remove(0).to_f64s()
}

#[test]
fn weights_are_named_by_the_module() {
    let (mut g, x) = of_image(Shape::new(4, 4, 2));
    let x = g.conv2d("layer1.0.conv1", x, 3, Window::square(1, 1, 0));
    let x = g.batch_norm("layer1.0.bn1", x, 1e-5);
    let x = g.global_avg_pool("pool", x);
    let x = g.linear("fc", x, 5);
    let graph = finished(g, x);
    let found: Vec<(&str, &[usize])> = graph.weights().map(|(name, of)| (name, &of.dims[..])).collect();
    let expected: [(&str, &[usize]); 7] = [
        ("layer1.0.conv1.weight", &[3, 2, 1, 1]),
        ("layer1.0.bn1.weight", &[3]),
        ("layer1.0.bn1.bias", &[3]),
        ("layer1.0.bn1.running_mean", &[3]),
        ("layer1.0.bn1.running_var", &[3]),
        ("fc.weight", &[5, 3]),
        ("fc.bias", &[5]),
    ];
    assert_eq!(found, expected);
    let nodes: Vec<&str> = graph.nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(nodes, ["layer1.0.conv1", "layer1.0.bn1", "pool", "fc", "fc + bias"]);
    assert_eq!(graph.value(graph.outputs[0].value).dims, [1, 1, 1, 5]);
}

#[test]
fn windows_slide_as_in_pytorch() {
    let (mut g, x) = of_image(Shape::new(9, 12, 4));
    let window = Window { size: vec![3, 2], stride: vec![2, 3], pad: vec![[1, 2], [0, 1]], dilation: vec![2, 1] };
    let conv = Conv2d { groups: 2, bias: Some("b".into()), ..Conv2d::named("conv", 6, window.clone()) };
    let y = g.conv2d_with("conv", x, conv);
    assert_eq!(g.value(y).dims, [1, (12 - 5) / 2 + 1, (13 - 2) / 3 + 1, 6]);
    let pooled = g.max_pool("max", x, Window::square(3, 2, 1));
    assert_eq!(g.value(pooled).dims, [1, 5, 6, 4]);
    let averaged = g.avg_pool("mean", x, window, true);
    assert_eq!(g.value(averaged).dims, [1, 4, 4, 4]);
    let both = g.concat("both", &[pooled, pooled]);
    assert_eq!(g.value(both).dims, [1, 5, 6, 8]);
}

#[test]
fn each_mistake_is_told_at_its_layer_and_nothing_behind_it() {
    let x = Shape::new(8, 8, 4);
    let told = |layer: fn(&mut GraphBuilder, ValueId) -> ValueId| {
        let (mut g, x) = of_image(x);
        let y = layer(&mut g, x);
        let y = g.relu6("behind", y);
        let y = g.batch_norm("norm behind", y, 1e-5);
        let y = g.linear("linear behind", y, 2);
        mistake(g, y)
    };
    for (told, part) in [
        (told(|g, x| g.conv2d("here", x, 4, Window::square(11, 1, 1))), "11"),
        (
            told(|g, x| {
                g.conv2d_with("here", x, Conv2d { groups: 3, ..Conv2d::named("c", 4, Window::square(3, 1, 1)) })
            }),
            "3 groups of 4 channels",
        ),
        (
            told(|g, x| {
                g.conv2d_with("here", x, Conv2d { groups: 0, ..Conv2d::named("c", 4, Window::square(3, 1, 1)) })
            }),
            "groups: expected 1 or more",
        ),
        (told(|g, x| g.conv2d("here", x, 4, Window::all(1, 3, 1, 1))), "filter"),
        (told(|g, x| g.batch_norm("here", x, f64::NAN)), "eps"),
        (told(|g, x| g.max_pool("here", x, Window::all(3, 3, 1, 1))), "axes"),
        (
            told(|g, x| {
                let small = g.max_pool("small", x, Window::square(2, 2, 0));
                g.add("here", x, small)
            }),
            "operands of one shape expected, found f32[1,8,8,4] and f32[1,4,4,4]",
        ),
        (
            told(|g, x| {
                let small = g.max_pool("small", x, Window::square(2, 2, 0));
                g.concat("here", &[x, small])
            }),
            "concat",
        ),
        (
            told(|g, _| {
                let tokens = g.input("tokens", Dtype::F32, &[2, 3, 4]);
                g.global_avg_pool("here", tokens)
            }),
            "expected f32[rows,height,width,channels], found f32[2,3,4]",
        ),
        (
            told(|g, _| {
                let ids = g.input("ids", Dtype::I64, &[2, 3]);
                g.layer_norm("here", ids, 1e-5)
            }),
            "found i64[2,3]",
        ),
        (told(|g, _| g.linear("here", ValueId(99), 3)), "another graph"),
    ] {
        assert!(told.contains("`here`") && told.contains(part), "expected {part:?}: {told}");
    }
}

#[test]
fn a_batch_norm_is_known_by_its_expression() {
    assert_eq!(eps_of_batch_norm(&batch_norm(1e-3)), Some(1e-3));
    assert_eq!(eps_of_batch_norm(&(batch_norm(1e-3) + Expr::arg(0))), None);
    assert_eq!(eps_of_batch_norm(&Expr::arg(0).gelu()), None);
    let [x, factor, offset] = [0, 1, 2].map(Expr::arg);
    assert_eq!(eps_of_batch_norm(&(x * factor + offset)), None);
}

#[test]
fn layers_compute_what_their_documents_say() {
    let (mut g, x) = of_image(Shape::vector(2));
    let x = g.batch_norm("bn", x, 0.25);
    let x = g.relu6("six", x);
    let x = g.linear("fc", x, 1);
    let graph = finished(g, x);
    let weight = |name: &str, at: usize| match name {
        "bn.weight" => [3.0, 2.0][at],
        "bn.bias" => 1.0,
        "bn.running_mean" => 0.5,
        "bn.running_var" => 3.75,
        "fc.weight" => [1.0, 10.0][at],
        _ => 0.125,
    };
    // (4.5 - 0.5) / 2 * 3 + 1 = 7 is 6; (-0.5 - 0.5) / 2 * 2 + 1 = 0.
    assert_eq!(evaluated(&graph, weight, &[Tensor::of(&[1, 1, 1, 2], &[4.5_f32, -0.5])]), [6.125]);
}

#[test]
fn attention_is_that_of_one_head_after_the_other() {
    let mut g = GraphBuilder::new();
    let q = g.input("q", Dtype::F32, &[1, 2, 1, 4]);
    let k = g.input("k", Dtype::F32, &[1, 3, 1, 4]);
    let v = g.input("v", Dtype::F32, &[1, 3, 1, 4]);
    let mask = g.constant(Dtype::F32, &[1, 1, 1, 3], bytemuck::cast_slice(&[0.0_f32, 0.0, -1e9]).to_vec());
    let y = g.attention("attention", [q, k, v], Some(mask));
    let graph = finished(g, y);
    let q: Vec<f32> = (0..8).map(|i| i as f32 / 4.0).collect();
    let k: Vec<f32> = (0..12).map(|i| (i as f32 - 6.0) / 5.0).collect();
    let v: Vec<f32> = (0..12).map(|i| (i * i) as f32).collect();
    let tensors = [Tensor::of(&[1, 2, 1, 4], &q), Tensor::of(&[1, 3, 1, 4], &k), Tensor::of(&[1, 3, 1, 4], &v)];
    let found = evaluated(&graph, |_, _| 0.0, &tensors);
    for (token, found) in found.chunks(4).enumerate() {
        let score =
            |key: usize| (0..4).map(|i| f64::from(q[4 * token + i]) * f64::from(k[4 * key + i])).sum::<f64>() / 2.0;
        let weights = [score(0).exp(), score(1).exp()];
        for (i, found) in found.iter().enumerate() {
            let sum = weights[0] * f64::from(v[i]) + weights[1] * f64::from(v[4 + i]);
            let expected = sum / (weights[0] + weights[1]);
            assert!((found - expected).abs() < 1e-4, "token {token}, {i}: {found}, {expected}");
        }
    }
}

#[test]
fn an_activation_of_nothing_is_an_identity() {
    let (mut g, x) = of_image(Shape::vector(3));
    let y = g.activation("same", x, Activation::None);
    assert_eq!(finished(g, y).nodes[0].op, Op::Map(Expr::arg(0)));
}
