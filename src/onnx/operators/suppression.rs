//! Non-maximum suppression: selects boxes that do not overlap a better one.

use super::Operator::One;
use super::found::where_found;
use super::{Outcome, Table};
use crate::graph::{ArgReduce, Binary, Expr, Op, Unary, ValueId};
use crate::onnx::import::{Call, Context, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[("NonMaxSuppression", One(non_max_suppression))];

/// The most boxes of a class: each box is found by a step of its own.
const MOST_STEPS: usize = 1024;

/// The best boxes of each class, as rows of image, class and box. A box that overlaps a better one is left out. After
/// the last row, rows are -1.
fn non_max_suppression(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (boxes, scores) = (c.x(0)?, c.x(1)?);
    let (box_dims, dims) = (c.dims(boxes), c.dims(scores));
    let [images, _, count] = dims[..] else { return Err(format!("scores: expected three axes, found {dims:?}")) };
    if box_dims != [images, count, 4] {
        return Err(format!("boxes: expected [{images}, {count}, 4], found {box_dims:?}"));
    }
    let most = c.int_at(2, "the most boxes")?.unwrap_or(0).max(0) as usize;
    let steps = most.min(count);
    if steps > MOST_STEPS {
        return Err(format!("{steps} boxes of a class: expected {MOST_STEPS} at most, each of which is a step"));
    }
    if steps == 0 {
        return c.filled(Dtype::I64, &[0, 3], 0.0);
    }
    let limit = |c: &mut Call<'_, '_>, at: usize, or: f64| match c.maybe(at) {
        Some(limit) => c.reshape(limit, &[]),
        None => c.scalar(Dtype::F32, or),
    };
    let [iou, least] = [limit(c, 3, 0.0)?, limit(c, 4, f64::NEG_INFINITY)?];
    let centred = c.flag("center_point_box");
    let corners = corners(c, boxes, centred, &dims)?;
    let mut alive = c.binary(Binary::Less, least, scores)?;
    let (mut best, mut found) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
    for _ in 0..steps {
        let next = next(c, scores, alive)?;
        best.push(next);
        found.push(c.op(Op::GatherElements(2), &[alive, next])?);
        alive = left(c, alive, next, corners, iou)?;
    }
    let [best, found] = [c.concat(&best, 2)?, c.concat(&found, 2)?];
    rows(c, best, found)
}

/// The lower and upper corners of boxes, four values of these dimensions. Along their last axis boxes have two corners,
/// or their middle and size.
fn corners(c: &mut Context<'_>, boxes: ValueId, centred: bool, dims: &[usize]) -> Outcome<[ValueId; 4]> {
    let mut all = [boxes; 4];
    for (corner, to) in all.iter_mut().enumerate() {
        let [a, b] = [c.at(boxes, 2, corner % 2)?, c.at(boxes, 2, corner % 2 + 2)?];
        let half = Expr::arg(1) / number(Dtype::F32, 2.0);
        let of = match (centred, corner < 2) {
            (true, true) => Expr::arg(0) - half,
            (true, false) => Expr::arg(0) + half,
            (false, true) => Expr::arg(0).binary(Binary::Min, Expr::arg(1)),
            (false, false) => Expr::arg(0).binary(Binary::Max, Expr::arg(1)),
        };
        let of = c.map(of, &[a, b])?;
        let of = c.unsqueeze(of, 1)?;
        *to = c.broadcast(of, dims)?;
    }
    Ok(all)
}

/// The best of the remaining boxes, the first of equal ones: `[images, classes, 1]`.
fn next(c: &mut Context<'_>, scores: ValueId, alive: ValueId) -> Outcome<ValueId> {
    let lowest = number(Dtype::F32, f64::NEG_INFINITY);
    let scores = c.map(Expr::arg(0).select(Expr::arg(1), lowest), &[alive, scores])?;
    c.op(Op::ArgReduce(ArgReduce { largest: true, axis: 2, keep: true, last: false }), &[scores])
}

/// The boxes that remain after one is chosen: without the chosen one, and without those that overlap it by more than a
/// limit.
fn left(c: &mut Context<'_>, alive: ValueId, chosen: ValueId, corners: [ValueId; 4], iou: ValueId) -> Outcome<ValueId> {
    let mut operands = vec![alive, chosen, iou];
    operands.extend(corners);
    for corner in corners {
        operands.push(c.op(Op::GatherElements(2), &[corner, chosen])?);
    }
    let [own, other] = [3, 7].map(|first| [0, 1, 2, 3].map(|corner| Expr::arg(first + corner)));
    let is_chosen = Expr::arg(1).binary(Binary::Equal, Expr::Axis(2));
    let stays = overlap(own, other).binary(Binary::LessEqual, Expr::arg(2));
    let stays = stays.binary(Binary::And, is_chosen.unary(Unary::Not));
    c.map(Expr::arg(0).binary(Binary::And, stays), &operands)
}

/// The common area of two boxes as a part of the area that they cover together.
fn overlap(a: [Expr; 4], b: [Expr; 4]) -> Expr {
    let zero = || number(Dtype::F32, 0.0);
    let area =
        |[y, x, to_y, to_x]: [Expr; 4]| (to_y - y).binary(Binary::Max, zero()) * (to_x - x).binary(Binary::Max, zero());
    let both = [Binary::Max, Binary::Max, Binary::Min, Binary::Min];
    let mut at = 0..4;
    let common = area(both.map(|op| {
        let corner = at.next().expect("four corners");
        a[corner].clone().binary(op, b[corner].clone())
    }));
    let union = area(a) + area(b) - common.clone();
    zero().binary(Binary::Less, union.clone()).select(common / union, zero())
}

/// The rows of the boxes that were found, `[images, classes, steps]`, in their order.
fn rows(c: &mut Context<'_>, best: ValueId, found: ValueId) -> Outcome<ValueId> {
    let dims = c.dims(best);
    let elems = c.of(best).elems();
    let [best, found] = [c.reshape(best, &[elems])?, c.reshape(found, &[elems])?];
    let places = c.places(found)?;
    let boxes = c.op(Op::Gather(0), &[best, places])?;
    let index = |value: usize| Expr::int(Dtype::I64, value as i128);
    let image = Expr::arg(0) / index(dims[1] * dims[2]);
    let class = (Expr::arg(0) / index(dims[2])).binary(Binary::Rem, index(dims[1]));
    let mut columns = Vec::with_capacity(3);
    for column in [image, class, Expr::arg(1)] {
        let column = c.map(where_found(column), &[places, boxes])?;
        columns.push(c.unsqueeze(column, 1)?);
    }
    c.concat(&columns, 1)
}
