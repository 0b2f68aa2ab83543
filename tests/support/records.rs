//! A model with two inputs and two outputs of different types.

use trefoil::graph::{Contract, Expr, GraphBuilder, Op, Reduce, ReduceOp, TopK};
use trefoil::model::{Model, Weights};
use trefoil::{Batch, Dtype};

/// Number of features of a row.
const FEATURES: usize = 6;
/// Number of indices of a row.
const K: usize = 2;

/// A model of an image and a vector of numbers, which is joined to the image's features; its outputs are the features
/// in f16 and the indices of the largest ones.
pub fn joined() -> Model {
    let filter: Vec<f32> = (0..4 * 3).map(|i| i as f32 / 8.0 - 0.5).collect();
    let weights = Weights::from_tensors([("filter", vec![3, 4], filter)]).unwrap();
    Model::of_graphs(weights, |rows| {
        let mut g = GraphBuilder::new();
        let image = g.input("image", Dtype::U8, &[rows, 5, 7, 3]);
        let numbers = g.input("numbers", Dtype::F32, &[rows, 2]);
        let x = g.map("scale", Expr::arg(0).cast(Dtype::F32) * Expr::float(Dtype::F32, 1.0 / 255.0), &[image]);
        let mean = Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: false };
        let x = g.node("mean", Op::Reduce(mean), &[x]);
        let filter = g.weight("filter", Dtype::F32, &[3, 4]);
        let x = g.node("product", Op::Contract(Contract::matmul(2, 2)), &[x, filter]);
        let x = g.node("join", Op::Concat(1), &[x, numbers]);
        let best = g.node_with("best", Op::TopK(TopK { axis: 1, k: K, largest: true }), &[Some(x)], 2)[1];
        let best = g.map("narrow", Expr::arg(0).cast(Dtype::U32), &[best]);
        let x = g.map("half", Expr::arg(0).cast(Dtype::F16), &[x]);
        g.output("features", x);
        g.output("best", best);
        g.finish()
    })
    .unwrap()
}

/// The outputs of `joined`, by plain loops.
fn expected(image: &[u8], numbers: &[f32]) -> (Vec<f32>, Vec<u32>) {
    let mean = |c: usize| image.chunks(3).map(|pixel| f32::from(pixel[c]) / 255.0).sum::<f32>() / 35.0;
    let means = [mean(0), mean(1), mean(2)];
    let sum = |k: usize| (0..3).map(|c| means[c] * ((c * 4 + k) as f32 / 8.0 - 0.5)).sum::<f32>();
    let features: Vec<f32> = (0..4).map(sum).chain(numbers.iter().copied()).collect();
    let mut order: Vec<u32> = (0..features.len() as u32).collect();
    order.sort_by(|&a, &b| features[b as usize].total_cmp(&features[a as usize]));
    (features, order[..K].to_vec())
}

/// The image of a row.
pub fn image(seed: usize) -> Vec<u8> {
    (0..5 * 7 * 3).map(|i| (i * 37 + seed * 101) as u8).collect()
}

/// Checks that the outputs are those of the row with this number.
pub fn check(features: &[half::f16], best: &[u32], seed: usize) {
    let (wanted, order) = expected(&image(seed), &[seed as f32 / 4.0, -1.0]);
    assert!(features.iter().zip(&wanted).all(|(found, wanted)| (found.to_f32() - wanted).abs() < 2e-3), "{features:?}");
    assert_eq!((features.len(), best), (FEATURES, &order[..]));
}

/// Fills the row with this number.
pub fn fill(batch: &mut Batch, row: usize) {
    batch.port_mut::<u8>(row, "image").unwrap().copy_from_slice(&image(row));
    batch.port_mut::<f32>(row, 1).unwrap().copy_from_slice(&[row as f32 / 4.0, -1.0]);
}
