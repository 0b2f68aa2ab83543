//! A file of products of codes of e4m3, as `QuantizeLinear` and `DequantizeLinear` write them.

use std::fs;

use serde_json::Value;
use trefoil::graph::{Expr, Op, Unary};
use trefoil::model::Model;
use trefoil::{Device, Engine};

use super::data;

/// The numbers of an array.
fn numbers(of: &Value) -> Vec<f32> {
    of.as_array().unwrap().iter().map(|number| number.as_f64().unwrap() as f32).collect()
}

/// Whether a map is this function, or a number times it.
fn is_map(op: &Op, of: Unary) -> bool {
    fn has(expr: &Expr, of: Unary) -> bool {
        match expr {
            Expr::Unary(op, _) => *op == of,
            Expr::Binary(_, sides) => sides.iter().any(|side| has(side, of)),
            _ => false,
        }
    }
    matches!(op, Op::Map(expr) if has(expr, of))
}

#[test]
fn codes_are_maps_and_the_answers_those_of_the_reference() {
    let model = Model::open(data("e4m3.onnx")).unwrap();
    let graph = model.graph(2).unwrap();
    let count = |of: Unary| graph.nodes.iter().filter(|node| is_map(&node.op, of)).count();
    assert_eq!([Unary::ToE4m3, Unary::OfE4m3].map(count), [2, 4]);
    assert!(!graph.nodes.iter().any(|node| matches!(node.op, Op::Gather(_))));
    let answer: Value = serde_json::from_slice(&fs::read(data("e4m3.json")).unwrap()).unwrap();
    let engine = Engine::builder(&model).on(&Device::cpu(1)).batch(2).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    for row in 0..2 {
        batch.port_mut::<f32>(row, "x").unwrap().copy_from_slice(&numbers(&answer["x"][row]));
    }
    let output = batch.submit(2).unwrap().wait().unwrap();
    let found: Vec<f32> = (0..2).flat_map(|row| output.port::<f32>(row, "y").unwrap().to_vec()).collect();
    let expected: Vec<f32> = (0..2).flat_map(|row| numbers(&answer["y"][row])).collect();
    // Sums in another order may round a number between two codes to the other one: an eighth of a number of about 1, times
    // a weight of about an eleventh.
    let apart: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).collect();
    let other = apart.iter().filter(|apart| **apart > 1e-4).count();
    let largest = apart.iter().copied().fold(0.0, f32::max);
    assert!(found.len() == expected.len() && largest < 0.05 && 20 * other <= apart.len(), "{other}, by {largest}");
}
