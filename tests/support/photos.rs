//! A classifier of photos with a second input of numbers. On a GPU the step of its first layers reads the bytes, and
//! the step of its last layers writes the probabilities.

use trefoil::graph::{Binary, Contract, Conv, Expr, Graph, GraphBuilder, Op, Pool, PoolOp, Reduce, ReduceOp, Tensor};
use trefoil::graph::{ValueType, Window};
use trefoil::model::{Model, Weights};
use trefoil::{Device, Dtype, Engine, Error, loops};

const SIZE: [usize; 2] = [48, 40];
const CLASSES: usize = 300;
const WEIGHTS: [(&str, &[usize]); 5] = [
    ("first", &[16, 3, 7, 7]),
    ("first.bias", &[16]),
    ("second", &[64, 16, 3, 3]),
    ("classes", &[CLASSES, 64]),
    ("classes.bias", &[CLASSES]),
];

/// Numbers from -1 to 1, divided by the square root of the number of terms in a sum.
fn numbers(name: &str, dims: &[usize]) -> Vec<f32> {
    let terms = dims[1..].iter().product::<usize>().max(1) as f32;
    let of = |index: usize| ((index * 2654435761 + name.len() * 97) >> 5) % 2001;
    (0..dims.iter().product()).map(|index| (of(index) as f32 / 1000.0 - 1.0) / terms.sqrt()).collect()
}

fn network(rows: usize) -> Result<Graph, Error> {
    let mut g = GraphBuilder::new();
    let [height, width] = SIZE;
    let photo = g.input("photo", Dtype::U8, &[rows, height, width, 3]);
    let more = g.input("numbers", Dtype::F32, &[rows, 4]);
    let [first, first_bias, second, classes, bias] = WEIGHTS.map(|(name, dims)| g.weight(name, Dtype::F32, dims));
    let vector = |of: [f32; 3]| of.iter().flat_map(|of| of.to_le_bytes()).collect::<Vec<u8>>();
    let mean = g.constant(Dtype::F32, &[3], vector([0.485, 0.456, 0.406]));
    let std = g.constant(Dtype::F32, &[3], vector([0.229, 0.224, 0.225]));
    let x = g.map("unit", Expr::arg(0).cast(Dtype::F32) / Expr::float(Dtype::F32, 255.0), &[photo]);
    let x = g.map("normalised", (Expr::arg(0) - Expr::arg(1)) / Expr::arg(2), &[x, mean, std]);
    let relu = || Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, 0.0));
    let x = g.node("first", Op::Conv(Conv { window: Window::square(7, 2, 3), groups: 1 }), &[x, first, first_bias]);
    let x = g.map("first.relu", relu(), &[x]);
    let x = g.node("pool", Op::Pool(Pool { op: PoolOp::Max, window: Window::square(3, 2, 1) }), &[x]);
    let x = g.node("second", Op::Conv(Conv { window: Window::square(3, 1, 1), groups: 1 }), &[x, second]);
    let x = g.map("second.relu", relu(), &[x]);
    let x = g.node("mean", Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: false }), &[x]);
    let x = g.node(
        "classes",
        Op::Contract(Contract { left: vec![0, 1], right: vec![2, 1], result: vec![0, 2] }),
        &[x, classes],
    );
    let x = g.map("classes.sum", Expr::arg(0) + Expr::arg(1), &[x, bias]);
    let x = g.node("softmax", Op::Softmax { axis: 1, log: false }, &[x]);
    g.output("probabilities", x);
    let doubled = g.map("doubled", Expr::arg(0) * Expr::float(Dtype::F32, 2.0), &[more]);
    g.output("doubled", doubled);
    g.finish()
}

/// For each number of rows, probabilities agree with the graph's loops to the precision of f16.
pub fn photos_are_classified_beside_numbers(device: &Device) {
    let weights = WEIGHTS.map(|(name, dims)| (name, dims.to_vec(), numbers(name, dims)));
    let model = Model::of_graphs(Weights::from_tensors(weights).unwrap(), network).unwrap();
    let engine = Engine::builder(&model).on(device).batch_sizes(&[1, 3]).check(true).build().unwrap();
    let [height, width] = SIZE;
    for rows in [1, 3] {
        let pixels = height * width * 3;
        let photos: Vec<u8> = (0..rows * pixels).map(|index| ((index * 31 + index / 97 * 7) % 251) as u8).collect();
        let more: Vec<f32> = (0..rows * 4).map(|index| index as f32 / 4.0 - 1.0).collect();
        let mut weight = |name: &str, of: &ValueType| {
            let (_, dims) = WEIGHTS.into_iter().find(|(weight, _)| *weight == name).unwrap();
            Ok(Tensor::of(dims, &numbers(name, dims)).cast(of.clone()))
        };
        let photo = Tensor::from_bytes(ValueType::new(Dtype::U8, &[rows, height, width, 3]), &photos);
        let inputs = [photo, Tensor::of(&[rows, 4], &more)];
        let expected = loops::evaluate(&network(rows).unwrap(), &mut weight, &inputs).unwrap();
        let mut batch = engine.acquire().unwrap();
        for row in 0..rows {
            batch.port_mut::<u8>(row, "photo").unwrap().copy_from_slice(&photos[row * pixels..][..pixels]);
            batch.port_mut::<f32>(row, "numbers").unwrap().copy_from_slice(&more[row * 4..][..4]);
        }
        let output = batch.submit(rows).unwrap().wait().unwrap();
        let expected = expected[0].elems::<f32>();
        for row in 0..rows {
            let (found, expected) = (output.port::<f32>(row, 0).unwrap(), &expected[row * CLASSES..][..CLASSES]);
            let most = expected.iter().fold(0.0_f32, |most, &value| most.max(value));
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(off < 5e-3 * most, "row {row} of {rows}: off by {off} of {most}");
            assert!(most > 2.0 / CLASSES as f32, "all classes are alike: {most}");
            let doubled: Vec<f32> = more[row * 4..][..4].iter().map(|number| number * 2.0).collect();
            assert_eq!(output.port::<f32>(row, 1).unwrap(), doubled);
        }
    }
}
