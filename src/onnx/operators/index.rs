//! Elements that are selected or replaced by index.

use super::Operator::One;
use super::{Outcome, Table};
use crate::graph::{Binary, Expr, Op, Scatter, ValueId};
use crate::onnx::import::{Call, number};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Gather", One(gather)),
    ("GatherElements", One(gather_elements)),
    ("GatherND", One(gather_nd)),
    ("Scatter", One(scatter_elements)),
    ("ScatterElements", One(scatter_elements)),
    ("ScatterND", One(scatter_nd)),
    ("TensorScatter", One(tensor_scatter)),
];

/// The most bytes of indices that are read to be checked: one file may have many nodes that read the same weight.
const CHECKED_BYTES: usize = 4096;

/// Refuses known indices beyond these sizes, of which each index has the next one in turn. All others are clamped where
/// they are beyond, and so are those of a branch that may not be taken.
fn within(c: &Call<'_, '_>, at: ValueId, sizes: &[usize]) -> Outcome<()> {
    if c.may_be_skipped || c.of(at).bytes() > CHECKED_BYTES {
        return Ok(());
    }
    let Some(known) = c.known(at)?.and_then(|known| known.to_i64s()) else { return Ok(()) };
    let is_beyond = |(index, size): &(&i64, &usize)| !(-(**size as i64)..**size as i64).contains(*index);
    match known.iter().zip(sizes.iter().cycle()).find(is_beyond) {
        None => Ok(()),
        Some((index, size)) => {
            Err(format!("index {index} of an axis of {size}: expected one from -{size} to below {size}"))
        }
    }
}

/// Indices as i32 or i64, of axes of these sizes as for [`within`].
fn index(c: &mut Call<'_, '_>, at: ValueId, sizes: &[usize]) -> Outcome<ValueId> {
    within(c, at, sizes)?;
    match c.dtype(at) {
        Dtype::I32 | Dtype::I64 => Ok(at),
        _ => c.cast(at, Dtype::I64),
    }
}

/// The sizes of the axes of `x` from `first` on that the last axis of indices has one index for each of; none where `x`
/// has too few, which is refused for itself.
fn indexed(c: &Call<'_, '_>, x: ValueId, at: ValueId, first: usize) -> Vec<usize> {
    let axes = c.dims(at).last().copied().unwrap_or(0);
    c.dims(x).get(first..first.saturating_add(axes)).unwrap_or_default().to_vec()
}

fn gather(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let at = index(c, at, &[c.dims(x)[axis]])?;
    c.op(Op::Gather(axis), &[x, at])
}

fn gather_elements(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let at = index(c, at, &[c.dims(x)[axis]])?;
    c.op(Op::GatherElements(axis), &[x, at])
}

fn gather_nd(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let batch = c.size("batch_dims")?.unwrap_or(0);
    let at = index(c, at, &indexed(c, x, at, batch))?;
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
    let (at, how) = (index(c, at, &[c.dims(x)[axis]])?, reduction(c)?);
    c.op(Op::ScatterElements(axis, how), &[x, at, from])
}

fn scatter_nd(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at, from) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let (at, how) = (index(c, at, &indexed(c, x, at, 0))?, reduction(c)?);
    c.op(Op::ScatterNd(how), &[x, at, from])
}

/// Writes updates to a cache, from an index of each row on; in a circular cache they wrap around.
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
