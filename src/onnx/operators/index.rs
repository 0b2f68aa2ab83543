//! Elements that are picked or replaced by index.

use super::Operator::{Many, One};
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Op, Scatter, Tensor, ValueId};
use crate::onnx::import::{Call, Context, axis_of, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Gather", One(gather)),
    ("GatherElements", One(gather_elements)),
    ("GatherND", One(gather_nd)),
    ("Scatter", One(scatter_elements)),
    ("ScatterElements", One(scatter_elements)),
    ("ScatterND", One(scatter_nd)),
    ("TensorScatter", One(tensor_scatter)),
    ("NonZero", One(non_zero)),
    ("Compress", One(compress)),
    ("NonMaxSuppression", One(non_max_suppression)),
    ("Unique", Many(unique)),
];

/// Indices as i64, which others may not be.
fn index(c: &mut Context<'_>, at: ValueId) -> Outcome<ValueId> {
    match c.dtype(at) {
        Dtype::I32 | Dtype::I64 => Ok(at),
        _ => c.cast(at, Dtype::I64),
    }
}

fn gather(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let at = index(c, at)?;
    c.op(Op::Gather(axis), &[x, at])
}

fn gather_elements(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let at = index(c, at)?;
    c.op(Op::GatherElements(axis), &[x, at])
}

fn gather_nd(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let batch = c.size("batch_dims")?.unwrap_or(0);
    let at = index(c, at)?;
    c.op(Op::GatherNd(batch), &[x, at])
}

fn reduction(c: &Call<'_, '_>) -> Outcome<Scatter> {
    Ok(match c.text_or("reduction", "none") {
        "none" => Scatter::Replace,
        "add" => Scatter::Add,
        "mul" => Scatter::Mul,
        "min" => Scatter::Min,
        "max" => Scatter::Max,
        other => return Err(format!("reduction: expected none, add, mul, min or max, found `{other}`")),
    })
}

fn scatter_elements(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at, from) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let (at, how) = (index(c, at)?, reduction(c)?);
    c.op(Op::ScatterElements(axis, how), &[x, at, from])
}

fn scatter_nd(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at, from) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (at, how) = (index(c, at)?, reduction(c)?);
    c.op(Op::ScatterNd(how), &[x, at, from])
}

/// Updates are written to a cache from an index of each row on, which wraps around if the cache is circular.
fn tensor_scatter(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (cache, update) = (c.x(0)?, c.x(1)?);
    let (dims, new) = (c.dims(cache), c.dims(update));
    let axis = c.axis_attr("axis", -2, dims.len())?;
    if axis == 0 || new.len() != dims.len() {
        return Err(format!("axis {axis} of {} and {}", c.of(cache), c.of(update)));
    }
    let mut at = c.indices(&new, axis)?;
    if let Some(start) = c.maybe(2) {
        let mut rows = vec![1; dims.len()];
        rows[0] = new[0];
        let start = c.reshape(start, &rows)?;
        let start = c.cast(start, Dtype::I64)?;
        at = c.add(at, start)?;
    }
    if c.text_or("mode", "linear") == "circular" {
        let size = number(Dtype::I64, dims[axis] as f64);
        at = c.map(Expr::arg(0).binary(Binary::Mod, size), &[at])?;
    }
    c.op(Op::ScatterElements(axis, Scatter::Replace), &[cache, at, update])
}

/// Where elements are not 0. How many depends on the data, so that the data have to be known.
fn non_zero(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let elems = c.floats(x, "what is not 0")?;
    let places: Vec<usize> = (0..elems.len()).filter(|&place| elems[place] != 0.0).collect();
    let mut inner = elems.len();
    let mut at = Vec::with_capacity(dims.len() * places.len());
    for &dim in &dims {
        inner /= dim.max(1);
        at.extend(places.iter().map(|place| (place / inner.max(1) % dim) as i64));
    }
    Ok(c.constant(&Tensor::of(&[dims.len(), places.len()], &at)))
}

/// The indices along an axis of which a condition holds, which has to be known.
fn compress(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, condition) = (c.x(0)?, c.x(1)?);
    let chosen = c.ints(condition, "the condition")?;
    let at: Vec<i64> = (0..chosen.len() as i64).filter(|&index| chosen[index as usize] != 0).collect();
    let (x, axis) = match c.int("axis") {
        Some(axis) => (x, axis_of(axis, c.rank(x))?),
        None => (c.cx.reshape(x, &[c.of(x).elems()])?, 0),
    };
    let at = c.vector(&at);
    c.op(Op::Gather(axis), &[x, at])
}

/// Boxes, the best first, that do not overlap a better one. How many depends on the data, which have to be known.
fn non_max_suppression(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (boxes, scores) = (c.x(0)?, c.x(1)?);
    let (box_dims, dims) = (c.dims(boxes), c.dims(scores));
    let [batch, classes, count] = dims[..] else { return Err(format!("scores: expected three axes, found {dims:?}")) };
    if box_dims != [batch, count, 4] {
        return Err(format!("boxes: expected [{batch}, {count}, 4], found {box_dims:?}"));
    }
    let boxes = c.floats(boxes, "boxes")?;
    let scores = c.floats(scores, "scores")?;
    let most = c.int_at(2, "the most boxes")?.unwrap_or(0).max(0) as usize;
    let limit = |c: &Call<'_, '_>, index, or: f64| -> Outcome<f64> {
        let found = c.maybe(index).map(|value| c.floats(value, "thresholds")).transpose()?;
        Ok(found.and_then(|found| found.first().copied()).unwrap_or(or))
    };
    let (iou, least) = (limit(c, 3, 0.0)?, limit(c, 4, f64::NEG_INFINITY)?);
    let centred = c.flag("center_point_box");
    let mut chosen = Vec::new();
    for image in 0..batch {
        let corners = |index: usize| corners(&boxes[(image * count + index) * 4..][..4], centred);
        for class in 0..classes {
            let of = &scores[(image * classes + class) * count..][..count];
            let mut order: Vec<usize> = (0..count).filter(|&index| of[index] > least).collect();
            order.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
            let mut kept: Vec<usize> = Vec::new();
            for index in order {
                let free = kept.iter().all(|&other| overlap(corners(index), corners(other)) <= iou);
                if kept.len() < most && free {
                    kept.push(index);
                }
            }
            chosen.extend(kept.into_iter().flat_map(|index| [image as i64, class as i64, index as i64]));
        }
    }
    Ok(c.constant(&Tensor::of(&[chosen.len() / 3, 3], &chosen)))
}

/// Lower and upper corner of a box that is told by two corners, or by its middle and size.
fn corners(of: &[f64], centred: bool) -> [f64; 4] {
    match centred {
        true => [of[0] - of[2] / 2.0, of[1] - of[3] / 2.0, of[0] + of[2] / 2.0, of[1] + of[3] / 2.0],
        false => [of[0].min(of[2]), of[1].min(of[3]), of[0].max(of[2]), of[1].max(of[3])],
    }
}

/// What two boxes have in common of what they cover together.
fn overlap(a: [f64; 4], b: [f64; 4]) -> f64 {
    let area = |of: [f64; 4]| (of[2] - of[0]).max(0.0) * (of[3] - of[1]).max(0.0);
    let common = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let union = area(a) + area(b) - common;
    if union > 0.0 { common / union } else { 0.0 }
}

/// The different slices along an axis, where each was first, which one each is, and how often it is. How many depends on
/// the data, which have to be known.
fn unique(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let (x, axis) = match c.int("axis") {
        Some(axis) => (x, axis_of(axis, c.rank(x))?),
        None => (c.cx.reshape(x, &[c.of(x).elems()])?, 0),
    };
    let dims = c.dims(x);
    let elems = c.floats(x, "what is compared")?;
    let inner: usize = dims[axis + 1..].iter().product();
    let row = |index: usize| -> Vec<f64> {
        let outer = 0..dims[..axis].iter().product::<usize>();
        outer.flat_map(|outer| &elems[(outer * dims[axis] + index) * inner..][..inner]).copied().collect()
    };
    let rows: Vec<Vec<f64>> = (0..dims[axis]).map(row).collect();
    let mut first: Vec<usize> = (0..rows.len()).filter(|&index| !rows[..index].contains(&rows[index])).collect();
    if c.int_or("sorted", 1) != 0 {
        let order = |a: &usize, b: &usize| rows[*a].partial_cmp(&rows[*b]).unwrap_or(std::cmp::Ordering::Equal);
        first.sort_by(order);
    }
    let which = |row: &Vec<f64>| first.iter().position(|&index| rows[index] == *row).unwrap_or(0) as i64;
    let inverse: Vec<i64> = rows.iter().map(which).collect();
    let counts: Vec<i64> =
        (0..first.len() as i64).map(|index| inverse.iter().filter(|&&other| other == index).count() as i64).collect();
    let first: Vec<i64> = first.iter().map(|&index| index as i64).collect();
    let at = c.vector(&first);
    let y = c.op(Op::Gather(axis), &[x, at])?;
    Ok(vec![y, at, c.vector(&inverse), c.vector(&counts)])
}
