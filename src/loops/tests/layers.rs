//! Layers with weights.

use crate::graph::{GraphBuilder, Tensor, ValueId, ValueType};
use crate::loops::evaluate;
use crate::tensor::{Dtype, Shape};

fn evaluated(mut g: GraphBuilder, y: ValueId, weight: impl Fn(&str, usize) -> f32, inputs: &[Tensor]) -> Vec<f64> {
    g.output("y", y);
    let mut read = |name: &str, of: &ValueType| {
        let values: Vec<f32> = (0..of.elems()).map(|at| weight(name, at)).collect();
        Ok(Tensor::of(&of.dims, &values))
    };
    evaluate(&g.finish().unwrap(), &mut read, inputs).unwrap().remove(0).to_f64s()
}

#[test]
fn layers_compute_what_their_documents_say() {
    let mut g = GraphBuilder::new();
    let x = g.image("image", Shape::vector(2));
    let x = g.batch_norm("bn", x, 0.25);
    let x = g.relu6("six", x);
    let x = g.linear("fc", x, 1);
    let weight = |name: &str, at: usize| match name {
        "bn.weight" => [3.0, 2.0][at],
        "bn.bias" => 1.0,
        "bn.running_mean" => 0.5,
        "bn.running_var" => 3.75,
        "fc.weight" => [1.0, 10.0][at],
        _ => 0.125,
    };
    // (4.5 - 0.5) / 2 * 3 + 1 = 7 becomes 6; (-0.5 - 0.5) / 2 * 2 + 1 = 0.
    assert_eq!(evaluated(g, x, weight, &[Tensor::of(&[1, 1, 1, 2], &[4.5_f32, -0.5])]), [6.125]);
}

#[test]
fn attention_is_that_of_one_head_after_the_other() {
    let mut g = GraphBuilder::new();
    let q = g.input("q", Dtype::F32, &[1, 2, 1, 4]);
    let k = g.input("k", Dtype::F32, &[1, 3, 1, 4]);
    let v = g.input("v", Dtype::F32, &[1, 3, 1, 4]);
    let mask = g.constant(Dtype::F32, &[1, 1, 1, 3], bytemuck::cast_slice(&[0.0_f32, 0.0, -1e9]).to_vec());
    let y = g.attention("attention", [q, k, v], Some(mask));
    let q: Vec<f32> = (0..8).map(|i| i as f32 / 4.0).collect();
    let k: Vec<f32> = (0..12).map(|i| (i as f32 - 6.0) / 5.0).collect();
    let v: Vec<f32> = (0..12).map(|i| (i * i) as f32).collect();
    let tensors = [Tensor::of(&[1, 2, 1, 4], &q), Tensor::of(&[1, 3, 1, 4], &k), Tensor::of(&[1, 3, 1, 4], &v)];
    let found = evaluated(g, y, |_, _| 0.0, &tensors);
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
