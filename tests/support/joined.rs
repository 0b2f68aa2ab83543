//! Models made of several models, and parts of models of values, on any device. The hazard checker is always on.

use trefoil::graph::{Contract, Expr, GraphBuilder, Op};
use trefoil::model::{Model, Weights};
use trefoil::onnx::Sizes;
use trefoil::{Device, Dtype, Engine, EngineBuilder, Error, InputFormat, OutputKind, Precision, Size};

/// Numbers of a token.
const WIDTH: usize = 3;

fn build(builder: EngineBuilder<'_>, device: &Device, sizes: &[Size]) -> Engine {
    builder.on(device).precision(Precision::F32).sizes(sizes).check(true).build().unwrap()
}

fn size(batch: usize, length: usize) -> Size {
    Size::new(batch).dim("length", length)
}

/// y = w x + x z and the sums x + z, of tokens; the weights of all such models have the same name.
fn network(weight: f32) -> Model {
    let matrix = (0..WIDTH * WIDTH).map(|i| weight + i as f32 / 8.0).collect();
    let weights = Weights::from_tensors([("w", vec![WIDTH, WIDTH], matrix)]).unwrap();
    let build = |size: &Size| {
        let dims = [size.batch(), size.get("length").expect("it is named"), WIDTH];
        let mut g = GraphBuilder::new();
        let [x, z] = ["x", "z"].map(|name| g.input(name, Dtype::F32, &dims));
        let w = g.weight("w", Dtype::F32, &[WIDTH, WIDTH]);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, z]);
        let product = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
        let y = g.map("y", Expr::arg(0) + Expr::arg(1) * Expr::arg(2), &[product, x, z]);
        g.output("y", y);
        g.output("sum", sum);
        g.finish()
    };
    Model::of_sizes(weights, &Size::new(1).dim("length", 2), build).unwrap().with_name(&format!("of {weight}"))
}

/// Numbers of a row's port, all different, that f32 sums and products of this size hold exactly.
fn numbers(row: usize, port: usize, elems: usize) -> Vec<f32> {
    (0..elems).map(|i| ((row * 7 + port * 5 + i * 3) % 11) as f32 / 4.0 - 1.0).collect()
}

/// The outputs of an engine for rows of `length`, by row, by port. Inputs are `given`, or else made.
fn outputs(engine: &Engine, at: &Size, given: &[Vec<Vec<f32>>]) -> Vec<Vec<Vec<f32>>> {
    let mut batch = engine.acquire_for(at).unwrap();
    let spec = batch.spec().clone();
    for row in 0..at.batch() {
        for (index, port) in spec.ports().iter().enumerate() {
            let made = || numbers(row, index, port.elems());
            let numbers = given.get(row).map_or_else(made, |row| row[index].clone());
            batch.port_mut::<f32>(row, index).unwrap().copy_from_slice(&numbers);
        }
    }
    let output = batch.submit(at.batch()).unwrap().wait().unwrap();
    let ports = 0..output.spec().ports().len();
    let row = |row| ports.clone().map(|port| output.port::<f32>(row, port).unwrap().to_vec()).collect();
    (0..at.batch()).map(row).collect()
}

/// The two models of the same weights' names compute what they compute one after the other, at every size; the second
/// one reads an input of the first one too.
pub fn joined_models_compute_one_after_the_other(device: &Device) {
    let (first, second) = (network(0.5), network(-0.25));
    let both = first.join(&second, &[("y", "x"), ("x", "z")]).unwrap();
    let sizes = [size(1, 2), size(3, 4)];
    let [both, first, second] = [&both, &first, &second].map(|model| build(Engine::builder(model), device, &sizes));
    let names = |row: &trefoil::RowSpec| row.ports().iter().map(|port| port.name.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (names(both.input()), names(both.output())),
        (vec!["x".into(), "z".into()], vec!["sum".to_owned(), "y".into(), "of -0.25/sum".into()])
    );
    for at in &sizes {
        let before = outputs(&first, at, &[]);
        let elems = at.get("length").unwrap() * WIDTH;
        let between: Vec<_> =
            before.iter().enumerate().map(|(row, of)| vec![of[0].clone(), numbers(row, 0, elems)]).collect();
        let after = outputs(&second, at, &between);
        let expected: Vec<_> =
            before.iter().zip(&after).map(|(a, b)| vec![a[1].clone(), b[0].clone(), b[1].clone()]).collect();
        assert_eq!(outputs(&both, at, &[]), expected, "{at}");
    }
}

/// Two models that are a flow: the first one also hands on an input, which the second one reads.
fn parts() -> [Model; 2] {
    let (first, second) = (network(0.5), network(2.0));
    // Reads y, sum and z; twice the sum is an output again.
    let next = Model::of_sizes(Weights::from_tensors::<String>([]).unwrap(), &Size::new(1).dim("length", 2), |size| {
        let dims = [size.batch(), size.get("length").expect("it is named"), WIDTH];
        let mut g = GraphBuilder::new();
        let [y, sum, z] = ["y", "sum", "z"].map(|name| g.input(name, Dtype::F32, &dims));
        let twice = g.map("twice", Expr::arg(0) + Expr::arg(0), &[sum]);
        ["before", "twice", "handed on"].iter().zip([y, twice, z]).for_each(|(name, value)| g.output(name, value));
        g.finish()
    });
    let next = next.unwrap().join(&second, &[("before", "x"), ("handed on", "z")]).unwrap();
    [first, next]
}

/// An engine of a flow of two models.
pub fn flow(device: &Device) -> Engine {
    let [first, next] = parts();
    build(Engine::builder(&first.passing("z").unwrap()).then(&next), device, &[size(2, 3), size(1, 5)])
}

/// A model that hands on an input, then one that reads it: a flow without the host.
pub fn a_flow_hands_on_what_the_first_model_read(device: &Device) {
    let [first, next] = parts();
    let (flow, sizes) = (flow(device), [size(2, 3), size(1, 5)]);
    let whole = first.join(&next, &[("y", "y"), ("sum", "sum"), ("z", "z")]).unwrap();
    let whole = build(Engine::builder(&whole), device, &sizes);
    for at in &sizes {
        let found = outputs(&flow, at, &[]);
        assert_eq!(found, outputs(&whole, at, &[]), "{at}");
        assert!(found.iter().flatten().flatten().any(|number| *number != 0.0));
    }
}

/// Several rows in place of one are these rows.
pub fn each_of_several_rows_is_a_row(device: &Device) {
    let model = network(0.5);
    let (each, sizes) = (model.each(3).unwrap(), [size(2, 4)]);
    let engine = build(Engine::builder(&each), device, &sizes);
    assert_eq!(engine.input().to_string(), "`x` of f32[3,4,3], `z` of f32[3,4,3]");
    let found = outputs(&engine, &sizes[0], &[]);
    let at = size(6, 4);
    let elems = 4 * WIDTH;
    let apart: Vec<Vec<Vec<f32>>> = (0..6)
        .map(|row| [0, 1].map(|port| numbers(row / 3, port, 3 * elems)[row % 3 * elems..][..elems].to_vec()).to_vec())
        .collect();
    let expected = outputs(&build(Engine::builder(&model), device, std::slice::from_ref(&at)), &at, &apart);
    for (row, ports) in expected.iter().enumerate() {
        for (port, numbers) in ports.iter().enumerate() {
            assert_eq!(found[row / 3][port][row % 3 * elems..][..elems], numbers[..], "row {row}, output {port}");
        }
    }
}

/// A model of values may be cut at any of its nodes, and an ONNX file too.
pub fn models_of_values_are_cut_in_two(device: &Device) {
    let models = [
        network(0.5).join(&network(1.5), &[("y", "x"), ("x", "z")]).unwrap(),
        Model::open_at("tests/data/onnx/text.onnx", &Sizes::new().dim("width", 32)).unwrap(),
    ];
    for model in models {
        let graph = model.graph(1).unwrap();
        let (dim, length) = if graph.inputs.len() == 1 { ("width", 32) } else { ("length", 2) };
        let sizes = [1, 2].map(|rows| Size::new(rows).dim(dim, length));
        let whole = build(Engine::builder(&model), device, &sizes);
        let last = graph.nodes.len() - 1;
        for node in &graph.nodes[..last] {
            let (front, back) = model.split_at(&node.name).unwrap();
            let flow = build(Engine::builder(&front).then(&back), device, &sizes);
            for at in &sizes {
                let [expected, found] = [&whole, &flow].map(|engine| outputs(engine, at, &[]));
                for (a, b) in expected.iter().flatten().flatten().zip(found.iter().flatten().flatten()) {
                    assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "cut at {}: {b}, not {a}", node.name);
                }
            }
        }
        let cut = model.features_at(&graph.nodes[0].name).unwrap();
        assert_eq!(*cut.graph(1).unwrap().outputs[0].name, *graph.nodes[0].name);
    }
}

/// A network of images as a model of values answers as it does.
pub fn networks_of_images_become_models_of_values(device: &Device) {
    let model = Model::open("weights/convnet28").unwrap();
    let values = model.to_values(InputFormat::U8Nhwc, OutputKind::Probabilities).unwrap();
    let images = Engine::builder(&model).on(device).batch_sizes(&[3]).check(true).build().unwrap();
    let values = Engine::builder(&values.each(3).unwrap()).on(device).batch_sizes(&[1]).check(true).build().unwrap();
    let pixels: Vec<u8> = (0..3 * 28 * 28).map(|i| (i * 37 % 251) as u8).collect();
    let mut batch = images.acquire().unwrap();
    (0..3).for_each(|row| batch.write_port(row, 0, &pixels[row * 784..][..784]).unwrap());
    let expected = batch.submit(3).unwrap().wait().unwrap();
    let mut batch = values.acquire().unwrap();
    batch.write_port(0, "image", &pixels).unwrap();
    let found = batch.submit(1).unwrap().wait().unwrap();
    let found = found.port::<f32>(0, "result").unwrap();
    for row in 0..3 {
        for (class, expected) in expected.values(row).iter().enumerate() {
            let found = found[row * 10 + class];
            assert!((found - expected).abs() < 1e-2, "image {row}, class {class}: {found}, not {expected}");
        }
    }
}

/// What does not fit together is told.
pub fn what_cannot_be_joined_is_told(_: &Device) {
    let (model, other) = (network(0.5), network(1.0));
    let told = |result: Result<Model, Error>, expected: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    told(model.join(&other, &[("why", "x")]), "`y`, `sum`, `x`, `z`");
    told(model.join(&other, &[("y", "why")]), "an input of the second model: `x`, `z`");
    told(model.join(&other, &[("y", "x"), ("sum", "x")]), "two links of `x`");
    let other = Size::new(1).dim("length", 5);
    told(model.join(&model.at(&other).unwrap(), &[("y", "x")]), "they have 2 and 5");
    let text = Model::open_at("tests/data/onnx/text.onnx", &Sizes::new().dim("width", 32)).unwrap();
    told(model.join(&text, &[("y", "x")]), "an input of f32[1,3,48,32] is linked to a value of f32[1,2,3]");
    told(model.each(0), "1 to 65536");
    told(model.passing("y"), "`y`");
    told(model.split_at("sums").map(|(first, _)| first), "sum");
    let images = Model::open("weights/convnet28").unwrap();
    told(model.join(&images, &[("y", "image")]), "Model::to_values");
    let state = super::states::running_sum();
    told(state.join(&model, &[]), "a model with state");
    told(state.each(2), "a model with state");
}

type Case = (&'static str, fn(&Device));

/// Every case, with its name.
pub const ALL: [Case; 6] = [
    ("joined_models_compute_one_after_the_other", joined_models_compute_one_after_the_other),
    ("a_flow_hands_on_what_the_first_model_read", a_flow_hands_on_what_the_first_model_read),
    ("each_of_several_rows_is_a_row", each_of_several_rows_is_a_row),
    ("models_of_values_are_cut_in_two", models_of_values_are_cut_in_two),
    ("networks_of_images_become_models_of_values", networks_of_images_become_models_of_values),
    ("what_cannot_be_joined_is_told", what_cannot_be_joined_is_told),
];
