//! Operations that move elements.

use super::{counted, elems, output, signed};
use crate::graph::{Number, Op, Pad, PadMode, Scatter, Slice, Tensor};

#[test]
fn views_read_each_element_at_its_place() {
    let x = counted(&[2, 3, 5]);
    assert_eq!(output(&Op::Reshape(vec![5, 6]), &[&x]).elems::<i32>(), x.elems::<i32>());
    let turned = elems::<i32>(&Op::Transpose(vec![2, 0, 1]), &[&x]);
    assert!(turned.iter().enumerate().all(|(i, &x)| x as usize == i / 3 % 2 * 15 + i % 3 * 5 + i / 6));
    let slice = Slice { start: vec![1, 2, 4], step: vec![1, -2, -3], dims: vec![1, 2, 2] };
    assert_eq!(elems::<i32>(&Op::Slice(slice), &[&x]), [29, 26, 19, 16]);
    let none = Slice { start: vec![0, 0, 0], step: vec![1, 1, 1], dims: vec![2, 0, 5] };
    assert_eq!(elems::<i32>(&Op::Slice(none), &[&x]), [0_i32; 0]);
    assert_eq!(elems::<i32>(&Op::Broadcast(vec![2, 3, 2]), &[&counted(&[3, 1])]), [0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]);
    assert_eq!(elems::<i32>(&Op::Reshape(vec![1, 1]), &[&counted(&[])]), [0]);
    let large = counted(&[70, 90]);
    let turned = elems::<i32>(&Op::Transpose(vec![1, 0]), &[&large]);
    assert!(turned.iter().enumerate().all(|(i, &x)| x as usize == i % 70 * 90 + i / 70));
}

#[test]
fn padding_is_of_its_mode_and_may_cut() {
    let x = Tensor::of(&[4], &[1_i16, 2, 3, 4]);
    let pad =
        |before, after, mode| elems::<i16>(&Op::Pad(Pad { before: vec![before], after: vec![after], mode }), &[&x]);
    assert_eq!(pad(2, 1, PadMode::Constant(Number::Int(-7))), [-7, -7, 1, 2, 3, 4, -7]);
    assert_eq!(pad(3, 3, PadMode::Reflect), [4, 3, 2, 1, 2, 3, 4, 3, 2, 1]);
    assert_eq!(pad(2, 1, PadMode::Edge), [1, 1, 1, 2, 3, 4, 4]);
    assert_eq!(pad(5, 2, PadMode::Wrap), [4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
    assert_eq!(pad(-1, -2, PadMode::Constant(Number::Int(0))), [2]);
    assert_eq!(pad(-3, 2, PadMode::Reflect), [4, 3, 2]);
    assert_eq!(pad(1, -3, PadMode::Edge), [1, 1]);
    let both = Op::Pad(Pad { before: vec![1, 0], after: vec![0, 1], mode: PadMode::Constant(Number::Int(9)) });
    assert_eq!(elems::<i32>(&both, &[&counted(&[2, 2])]), [9, 9, 9, 0, 1, 9, 2, 3, 9]);
    let empty = Op::Pad(Pad { before: vec![1], after: vec![2], mode: PadMode::Constant(Number::Float(0.5)) });
    assert_eq!(elems::<f32>(&empty, &[&Tensor::of::<f32>(&[0], &[])]), [0.5; 3]);
}

#[test]
fn concatenations_have_all_operands_in_order() {
    let (a, b, none) = (counted(&[2, 1, 2]), counted(&[2, 3, 2]), counted(&[2, 0, 2]));
    let all = output(&Op::Concat(1), &[&none, &a, &none, &b]);
    assert_eq!(all.value_type().dims, [2, 4, 2]);
    assert_eq!(all.elems::<i32>(), [0, 1, 0, 1, 2, 3, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11]);
    assert_eq!(elems::<i32>(&Op::Concat(0), &[&counted(&[3])]), [0, 1, 2]);
    let many: Vec<Tensor> = (0..40).map(|i| signed(&[3, 29], i)).collect();
    let all = output(&Op::Concat(1), &many.iter().collect::<Vec<_>>());
    let row = |tensor: usize, row: usize| many[tensor].elems::<f32>()[row * 29..][..29].to_vec();
    let expected: Vec<f32> = (0..3).flat_map(|r| (0..40).map(move |t| (t, r))).flat_map(|(t, r)| row(t, r)).collect();
    assert_eq!(all.elems::<f32>(), expected);
}

#[test]
fn gathers_count_from_either_end() {
    let x = counted(&[3, 4]);
    let at = Tensor::of(&[2, 2], &[0_i64, -1, 9, -9]);
    assert_eq!(elems::<i32>(&Op::Gather(0), &[&x, &at]), [0, 1, 2, 3, 8, 9, 10, 11, 8, 9, 10, 11, 0, 1, 2, 3]);
    assert_eq!(elems::<i32>(&Op::Gather(1), &[&x, &Tensor::of(&[], &[2_i32])]), [2, 6, 10]);
    let at = Tensor::of(&[2, 2], &[1_i32, -1, 0, 2]);
    assert_eq!(elems::<i32>(&Op::GatherElements(1), &[&x, &at]), [1, 3, 4, 6]);
    assert_eq!(elems::<i32>(&Op::GatherElements(0), &[&x, &at]), [4, 9, 0, 9]);
    let rows = Tensor::of(&[2, 2], &[0_i64, 3, -1, 0]);
    assert_eq!(elems::<i32>(&Op::GatherNd(0), &[&x, &rows]), [3, 8]);
    let rows = Tensor::of(&[3, 1], &[1_i64, 0, -1]);
    assert_eq!(elems::<i32>(&Op::GatherNd(1), &[&x, &rows]), [1, 4, 11]);
    assert_eq!(elems::<i32>(&Op::GatherNd(0), &[&x, &rows]), [4, 5, 6, 7, 0, 1, 2, 3, 8, 9, 10, 11]);
}

#[test]
fn scattered_elements_go_to_their_places_in_order() {
    let x = counted(&[3, 2]);
    let (at, new) = (Tensor::of(&[2, 2], &[0_i64, -1, 0, 1]), Tensor::of(&[2, 2], &[10_i32, 20, 30, 40]));
    let of = |how| elems::<i32>(&Op::ScatterElements(0, how), &[&x, &at, &new]);
    assert_eq!(of(Scatter::Replace), [30, 1, 2, 40, 4, 20]);
    assert_eq!(of(Scatter::Add), [40, 1, 2, 43, 4, 25]);
    assert_eq!(of(Scatter::Mul), [0, 1, 2, 120, 4, 100]);
    assert_eq!(of(Scatter::Max), [30, 1, 2, 40, 4, 20]);
    assert_eq!(of(Scatter::Min), [0, 1, 2, 3, 4, 5]);
    let (rows, new) = (Tensor::of(&[2, 1], &[-1_i64, 0]), Tensor::of(&[2, 2], &[7_i32, 8, 9, 10]));
    assert_eq!(elems::<i32>(&Op::ScatterNd(Scatter::Replace), &[&x, &rows, &new]), [9, 10, 2, 3, 7, 8]);
    let (rows, new) = (Tensor::of(&[1, 2], &[1_i64, 1]), Tensor::of(&[1], &[5_i32]));
    assert_eq!(elems::<i32>(&Op::ScatterNd(Scatter::Add), &[&x, &rows, &new]), [0, 1, 2, 8, 4, 5]);
}
