//! A network of images with loops between its layers, on whole numbers: f16 holds all its values exactly, so that every
//! device gives the same bits.

use trefoil::graph::{Binary, Contract, Conv, Expr, Graph, GraphBuilder, Op, Pool, PoolOp, Reduce, ReduceOp, Tensor};
use trefoil::graph::{ValueId, ValueType, Window};
use trefoil::model::{Model, Weights};
use trefoil::{Device, Dtype, Engine, loops};

/// The largest number up to which f16 holds all whole numbers.
const LARGEST: f32 = 2048.0;

/// Filters by name, with their dimensions; one in this many of their numbers is not 0.
const FILTERS: [(&str, &[usize], usize); 9] = [
    ("stem", &[13, 3, 3, 3], 4),
    ("down", &[24, 13, 3, 3], 8),
    ("single", &[24, 24, 1, 1], 8),
    ("depthwise", &[24, 1, 3, 3], 2),
    ("wide", &[40, 24, 1, 1], 8),
    ("square", &[40, 40, 3, 3], 64),
    ("narrow", &[16, 24, 1, 1], 8),
    ("last", &[24, 40, 1, 1], 16),
    ("matrix", &[24, 5], 12),
];

/// Every output equals that of the graph's loops, for each number of rows.
pub fn images_between_loops_are_exact(device: &Device) {
    let weights = || FILTERS.map(|(name, dims, one_in)| (name, dims.to_vec(), numbers(name, dims, one_in)));
    let model = Model::of_graphs(Weights::from_tensors(weights()).unwrap(), network).unwrap();
    let engine = Engine::builder(&model).on(device).batch_sizes(&[1, 3]).check(true).build().unwrap();
    for rows in [1, 3] {
        let image: Vec<f32> = numbers("image", &[rows, 15, 8, 3], 1);
        let mut weight = |name: &str, of: &ValueType| {
            let (_, dims, one_in) = FILTERS.into_iter().find(|(filter, ..)| *filter == name).unwrap();
            Ok(Tensor::of(dims, &numbers(name, dims, one_in)).cast(of.clone()))
        };
        let input = Tensor::of(&[rows, 15, 8, 3], &image);
        let graph = network(rows).unwrap();
        let expected = loops::evaluate(&graph, &mut weight, &[input]).unwrap();
        let mut batch = engine.acquire().unwrap();
        for (row, pixels) in image.chunks(image.len() / rows).enumerate() {
            batch.port_mut::<f32>(row, "image").unwrap().copy_from_slice(pixels);
        }
        let output = batch.submit(rows).unwrap().wait().unwrap();
        for (port, expected) in graph.outputs.iter().zip(&expected) {
            let expected = expected.elems::<f32>();
            let most = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            assert!(most > 0.0 && most <= LARGEST, "`{}` is up to {most}", port.name);
            for (row, expected) in expected.chunks(expected.len() / rows).enumerate() {
                assert_eq!(
                    output.port::<f32>(row, port.name.as_str()).unwrap(),
                    expected,
                    "row {row} of {}",
                    port.name
                );
            }
        }
    }
}

/// Odd numbers of channels and pixels, residuals whose convolution has other readers too, values in the middle that are
/// outputs or that loops read, a concatenation, a mean and a product.
fn network(rows: usize) -> Result<Graph, trefoil::Error> {
    let mut g = GraphBuilder::new();
    let x = g.input("image", Dtype::F32, &[rows, 15, 8, 3]);
    let x = conv(&mut g, "stem", x, [1, 1, 1]);
    let x = relu(&mut g, "stem", x);
    let x = conv(&mut g, "down", x, [2, 1, 1]);
    let down = relu(&mut g, "down", x);
    let x = conv(&mut g, "single", down, [1, 0, 1]);
    let x = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, down]);
    let sum = relu(&mut g, "sum", x);
    let x = conv(&mut g, "depthwise", sum, [1, 1, 24]);
    let x = relu(&mut g, "depthwise", x);
    let six = g.map("six", Expr::arg(0).binary(Binary::Min, Expr::float(Dtype::F32, 6.0)), &[x]);
    let wide = conv(&mut g, "wide", six, [1, 0, 1]);
    let twice = g.map("twice", Expr::arg(0) + Expr::arg(0), &[wide]);
    let x = conv(&mut g, "square", twice, [1, 1, 1]);
    let residual = g.map("residual", Expr::arg(0) + Expr::arg(1), &[wide, x]);
    let narrow = conv(&mut g, "narrow", six, [1, 0, 1]);
    let both = g.node("both", Op::Concat(3), &[six, narrow]);
    let x = conv(&mut g, "last", both, [1, 0, 1]);
    let pool = g.node("pool", Op::Pool(Pool { op: PoolOp::Max, window: Window::all(2, 3, 2, 1) }), &[x]);
    let mean = Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: true };
    let mean = g.node("mean", Op::Reduce(mean), &[six]);
    let flat = g.node("flat", Op::Reshape(vec![rows, 24]), &[mean]);
    let matrix = g.weight("matrix", Dtype::F32, &[24, 5]);
    let product = g.node("product", Op::Contract(Contract::matmul(2, 2)), &[flat, matrix]);
    let outputs = [("sum", sum), ("wide", wide), ("residual", residual), ("pool", pool), ("product", product)];
    outputs.into_iter().for_each(|(name, value)| g.output(name, value));
    g.finish()
}

/// A convolution with a stride, padding and groups.
fn conv(g: &mut GraphBuilder, name: &str, x: ValueId, [stride, pad, groups]: [usize; 3]) -> ValueId {
    let (_, dims, _) = FILTERS.into_iter().find(|(filter, ..)| *filter == name).unwrap();
    let filter = g.weight(name, Dtype::F32, dims);
    g.node(name, Op::Conv(Conv { window: Window::all(2, dims[2], stride, pad), groups }), &[x, filter])
}

fn relu(g: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
    g.map(&format!("{name} (relu)"), Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, 0.0)), &[x])
}

/// Numbers of which one in `one_in` is -1 or 1, and the others are 0.
fn numbers(name: &str, dims: &[usize], one_in: usize) -> Vec<f32> {
    let mut state =
        name.bytes().fold(0x9e37_79b9_7f4a_7c15_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(31));
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize
    };
    let number = |random: usize| if random.is_multiple_of(one_in) { [-1.0, 1.0][random / one_in % 2] } else { 0.0 };
    (0..dims.iter().product()).map(|_| number(next())).collect()
}
