use super::*;
use crate::graph::{Graph, Op};
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
fn an_activation_of_nothing_is_an_identity() {
    let (mut g, x) = of_image(Shape::vector(3));
    let y = g.activation("same", x, Activation::None);
    assert_eq!(finished(g, y).nodes[0].op, Op::Map(Expr::arg(0)));
}
