//! Elements in other dimensions, parts of values, and the dimensions as values.

use super::Operator::{Items, Many, Moves, One};
use super::{Item, Outcome, Table};
use crate::graph::{Binary, Expr, Number, Op, Pad, PadMode, Slice, Tensor, ValueId};
use crate::onnx::import::{Call, Counted, axes_of, axis_of, number, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("Shape", Items(shape)),
    ("Size", One(size)),
    ("Reshape", Moves(reshape)),
    ("Flatten", Moves(flatten)),
    ("Squeeze", Moves(squeeze)),
    ("Unsqueeze", Moves(unsqueeze)),
    ("Transpose", Moves(transpose)),
    ("Expand", Moves(expand)),
    ("Tile", Moves(tile)),
    ("Concat", Moves(concat)),
    ("Split", Many(split)),
    ("Slice", Moves(slice)),
    ("Pad", One(pad)),
    ("CenterCropPad", One(center_crop_pad)),
    ("DepthToSpace", One(depth_to_space)),
    ("SpaceToDepth", One(space_to_depth)),
    ("ReverseSequence", One(reverse_sequence)),
    ("Trilu", One(trilu)),
];

fn shape(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let x = c.x(0)?;
    let dims: Vec<i64> = c.dims(x).iter().map(|&dim| dim as i64).collect();
    let rank = dims.len() as i64;
    let bound = |at: i64| (if at < 0 { at + rank } else { at }).clamp(0, rank) as usize;
    let [start, end] = [bound(c.int_or("start", 0)), bound(c.int_or("end", rank))];
    let part = |axes: std::ops::Range<usize>| dims.get(axes).unwrap_or(&[]);
    match c.counted.get(&x).copied().filter(|of| (start..end).contains(&of.axis)) {
        None => Ok(vec![c.vector(part(start..end)).into()]),
        Some(Counted { axis, count }) => {
            let all = [c.vector(part(start..axis)), c.reshape(count, &[1])?, c.vector(part(axis + 1..end))];
            Ok(vec![c.concat(&all, 0)?.into()])
        }
    }
}

fn size(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let elems = c.of(x).elems();
    match c.counted.get(&x).copied() {
        None => Ok(c.constant(&Tensor::of(&[], &[elems as i64]))),
        Some(Counted { axis, count }) => {
            let others = elems / c.dims(x)[axis].max(1);
            c.scaled(count, others as f64)
        }
    }
}

/// A size of 0 stands for the operand's size unless `allowzero` is set; -1 stands for the remaining size.
fn reshape(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let wanted = c.ints_at(1, "the new shape")?.ok_or("expected a shape")?;
    let (old, elems) = (c.dims(x), c.of(x).elems());
    let mut dims = Vec::with_capacity(wanted.len());
    for (axis, &dim) in wanted.iter().enumerate() {
        dims.push(match dim {
            0 if !c.flag("allowzero") => *old.get(axis).ok_or("shape: 0 behind the operand's last axis")?,
            -1 => 1,
            dim => size_of_dim(dim, "shape")?,
        });
    }
    let left: Vec<usize> = wanted.iter().enumerate().filter(|(_, dim)| **dim == -1).map(|(axis, _)| axis).collect();
    match left[..] {
        [] => {}
        [axis] => {
            let others = dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim)).ok_or("shape: overflows")?;
            dims[axis] = elems.checked_div(others).unwrap_or(0);
        }
        _ => return Err(format!("shape {wanted:?}: expected one -1 at most")),
    }
    c.cx.reshape(x, &dims)
}

fn flatten(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let axis = match c.int_or("axis", 1) {
        axis if axis == dims.len() as i64 => dims.len(),
        axis => axis_of(axis, dims.len())?,
    };
    c.cx.reshape(x, &[dims[..axis].iter().product(), dims[axis..].iter().product()])
}

/// Axes are an attribute up to version 12, an input later.
fn axes(c: &Call<'_, '_>) -> Outcome<Option<Vec<i64>>> {
    match c.version < 13 {
        true => Ok(c.ints_attr("axes").map(<[i64]>::to_vec)),
        false => c.ints_at(1, "axes"),
    }
}

fn squeeze(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let mut dims = c.dims(x);
    let axes = match axes(c)? {
        Some(axes) => axes_of(&axes, dims.len())?,
        None => (0..dims.len()).filter(|&axis| dims[axis] == 1).collect(),
    };
    if let Some(axis) = axes.iter().find(|&&axis| dims[axis] != 1) {
        return Err(format!("axis {axis}: expected a size of 1, found {}", dims[*axis]));
    }
    for &axis in axes.iter().rev() {
        dims.remove(axis);
    }
    c.cx.reshape(x, &dims)
}

fn unsqueeze(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let mut dims = c.dims(x);
    let new = axes(c)?.ok_or("expected axes")?;
    for axis in axes_of(&new, dims.len() + new.len())? {
        dims.insert(axis, 1);
    }
    c.cx.reshape(x, &dims)
}

fn transpose(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let rank = c.rank(x);
    let order = match c.ints_attr("perm") {
        Some(order) => order.iter().map(|&axis| axis_of(axis, rank)).collect::<Outcome<Vec<_>>>()?,
        None => (0..rank).rev().collect(),
    };
    c.cx.transpose(x, &order)
}

fn expand(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let wanted = c.ints_at(1, "the new shape")?.ok_or("expected a shape")?;
    let old = c.dims(x);
    let rank = wanted.len().max(old.len());
    let mut dims = vec![1; rank];
    dims[rank - old.len()..].copy_from_slice(&old);
    for (dim, wanted) in dims[rank - wanted.len()..].iter_mut().zip(&wanted) {
        if *wanted != 1 {
            *dim = size_of_dim(*wanted, "shape")?;
        }
    }
    c.broadcast(x, &dims)
}

fn tile(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let mut x = c.x(0)?;
    let repeats = c.ints_at(1, "repeats")?.ok_or("expected repeats")?;
    if repeats.len() != c.rank(x) {
        return Err(format!("repeats: expected {}, found {repeats:?}", c.rank(x)));
    }
    for (axis, &count) in repeats.iter().enumerate() {
        let count = size_of_dim(count, "repeats")?;
        if count != 1 {
            let mut dims = c.dims(x);
            let one = c.cx.unsqueeze(x, axis)?;
            let many = [&dims[..axis], &[count], &dims[axis..]].concat();
            x = c.broadcast(one, &many)?;
            dims[axis] = dims[axis].checked_mul(count).ok_or("repeats: overflow")?;
            x = c.cx.reshape(x, &dims)?;
        }
    }
    Ok(x)
}

fn concat(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let all = c.all()?;
    let rank = c.rank(*all.first().ok_or("expected operands, found none")?);
    let axis = axis_of(c.int("axis").ok_or("axis: expected one")?, rank)?;
    c.cx.concat(&all, axis)
}

/// Sizes are an attribute up to version 12, an input later. Without sizes the parts are equal; the last one may be
/// smaller.
fn split(c: &mut Call<'_, '_>) -> Outcome<Vec<ValueId>> {
    let x = c.x(0)?;
    let axis = c.axis_attr("axis", 0, c.rank(x))?;
    let given = match c.version < 13 {
        true => c.ints_attr("split").map(<[i64]>::to_vec),
        false => c.ints_at(1, "split")?,
    };
    let parts = c.size("num_outputs")?.unwrap_or(c.node.outputs.len()).max(1);
    let size = c.dims(x)[axis];
    c.step(parts)?;
    let sizes = match given {
        Some(sizes) => sizes.iter().map(|&size| size_of_dim(size, "split")).collect::<Outcome<Vec<_>>>()?,
        None => equal_parts(size, parts),
    };
    if sizes.iter().try_fold(0_usize, |sum, &size| sum.checked_add(size)) != Some(size) {
        return Err(format!("split {sizes:?}: expected a sum of {size}"));
    }
    pieces(c, x, axis, &sizes)
}

/// `parts` sizes, all equal except the last one, which may be smaller.
fn equal_parts(size: usize, parts: usize) -> Vec<usize> {
    let each = size.div_ceil(parts);
    (0..parts).map(|part| each.min(size.saturating_sub(part * each))).collect()
}

/// Parts of these sizes along an axis, one after the other.
pub(super) fn pieces(c: &mut Call<'_, '_>, x: ValueId, axis: usize, sizes: &[usize]) -> Outcome<Vec<ValueId>> {
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for &size in sizes {
        parts.push(c.slice(x, axis, start, size)?);
        start += size;
    }
    Ok(parts)
}

/// Starts and ends are attributes up to version 9; later they are inputs, and there are steps.
fn slice(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let attribute = |name| c.ints_attr(name).map(<[i64]>::to_vec);
    let [starts, ends, axes, steps] = match c.version < 10 {
        true => [attribute("starts"), attribute("ends"), attribute("axes"), None],
        false => [c.ints_at(1, "starts")?, c.ints_at(2, "ends")?, c.ints_at(3, "axes")?, c.ints_at(4, "steps")?],
    };
    let (starts, ends) = (starts.ok_or("expected starts")?, ends.ok_or("expected ends")?);
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err("starts, ends, axes and steps: expected as many of each".into());
    }
    let mut of = Slice { start: vec![0; dims.len()], step: vec![1; dims.len()], dims: dims.clone() };
    for (index, &axis) in axes.iter().enumerate() {
        let axis = axis_of(axis, dims.len())?;
        let (start, step, len) = range(starts[index], ends[index], steps[index], dims[axis])?;
        (of.start[axis], of.step[axis], of.dims[axis]) = (start, step, len);
    }
    c.op(Op::Slice(of), &[x])
}

/// The first index, the step and the number of indices of a slice. Negative bounds count from the end; bounds are
/// clamped.
fn range(start: i64, end: i64, step: i64, size: usize) -> Outcome<(usize, isize, usize)> {
    let size = i64::try_from(size).map_err(|e| e.to_string())?;
    let counted = |at: i64| if at < 0 { at.saturating_add(size) } else { at };
    let (low, high) = if step < 0 { (-1, size - 1) } else { (0, size) };
    let (start, end) = (counted(start).clamp(low.max(0), high.max(0)), counted(end).clamp(low, high));
    let len = match step {
        0 => return Err("steps: expected others than 0".into()),
        step if step > 0 => (end - start).max(0).unsigned_abs().div_ceil(step.unsigned_abs()),
        step => (start - end).max(0).unsigned_abs().div_ceil(step.unsigned_abs()),
    };
    let len = if size == 0 { 0 } else { len };
    // With one index the step does not matter, with none the start does not either; a step of any size is then legal.
    let step = if len > 1 { step as isize } else { 1 };
    Ok((if len == 0 { 0 } else { start as usize }, step, len as usize))
}

/// Sizes and the constant are attributes up to version 10, inputs later; axes are an input from version 18 on.
fn pad(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (rank, dtype) = (c.rank(x), c.dtype(x));
    let (pads, value) = match c.version < 11 {
        true => (c.ints_attr("pads").map(<[i64]>::to_vec), c.float("value").map(Number::Float)),
        false => {
            let value = c.maybe(2).map(|value| c.first(value, "the constant")).transpose()?;
            (c.ints_at(1, "pads")?, value.flatten())
        }
    };
    let pads = pads.ok_or("expected pads")?;
    let axes = match c.ints_at(3, "axes")? {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Outcome<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(format!("pads: expected {}, found {}", 2 * axes.len(), pads.len()));
    }
    let mode = match c.text_or("mode", "constant") {
        "constant" => PadMode::Constant(match (value.unwrap_or(Number::Int(0)), dtype.is_float()) {
            (Number::Int(value), true) => Number::Float(value as f64),
            (Number::Float(value), false) => Number::Int(value as i128),
            (value, _) => value,
        }),
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(format!("mode: expected constant, reflect, edge or wrap, found `{other}`")),
    };
    let mut of = Pad { before: vec![0; rank], after: vec![0; rank], mode };
    for (index, &axis) in axes.iter().enumerate() {
        of.before[axis] = pads[index] as isize;
        of.after[axis] = pads[index + axes.len()] as isize;
    }
    c.op(Op::Pad(of), &[x])
}

fn center_crop_pad(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (dims, dtype) = (c.dims(x), c.dtype(x));
    let wanted = c.ints_at(1, "shape")?.ok_or("expected a shape")?;
    let axes = match c.ints_attr("axes") {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, dims.len())).collect::<Outcome<Vec<_>>>()?,
        None => (0..dims.len()).collect(),
    };
    if wanted.len() != axes.len() {
        return Err(format!("shape: expected {} sizes, found {}", axes.len(), wanted.len()));
    }
    let zero = if dtype.is_float() { Number::Float(0.0) } else { Number::Int(0) };
    let mut of = Pad { before: vec![0; dims.len()], after: vec![0; dims.len()], mode: PadMode::Constant(zero) };
    for (&axis, &size) in axes.iter().zip(&wanted) {
        let more = size_of_dim(size, "shape")? as isize - dims[axis] as isize;
        of.before[axis] = if more < 0 { -(-more / 2) } else { more / 2 };
        of.after[axis] = more - of.before[axis];
    }
    c.op(Op::Pad(of), &[x])
}

/// The operand `[N, C, H, W]`, its dimensions, and the size of a block.
fn blocks(c: &Call<'_, '_>) -> Outcome<(ValueId, [usize; 4], usize)> {
    let x = c.x(0)?;
    let dims = <[usize; 4]>::try_from(c.dims(x)).map_err(|dims| format!("expected four axes, found {}", dims.len()))?;
    let block = c.size("blocksize")?.filter(|&size| size > 0).ok_or("blocksize: expected 1 or more")?;
    Ok((x, dims, block))
}

fn depth_to_space(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, [n, channels, h, w], b) = blocks(c)?;
    let depth = channels / (b * b);
    let (dims, order) = match c.text_or("mode", "DCR") {
        "DCR" => ([n, b, b, depth, h, w], [0, 3, 4, 1, 5, 2]),
        "CRD" => ([n, depth, b, b, h, w], [0, 1, 4, 2, 5, 3]),
        other => return Err(format!("mode: expected DCR or CRD, found `{other}`")),
    };
    let apart = c.cx.reshape(x, &dims)?;
    let turned = c.cx.transpose(apart, &order)?;
    c.cx.reshape(turned, &[n, depth, h * b, w * b])
}

fn space_to_depth(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, [n, channels, h, w], b) = blocks(c)?;
    let order = match c.text_or("mode", "DCR") {
        "DCR" => [0, 3, 5, 1, 2, 4],
        "CRD" => [0, 1, 3, 5, 2, 4],
        other => return Err(format!("mode: expected DCR or CRD, found `{other}`")),
    };
    let apart = c.cx.reshape(x, &[n, channels, h / b, b, w / b, b])?;
    let turned = c.cx.transpose(apart, &order)?;
    c.cx.reshape(turned, &[n, channels * b * b, h / b, w / b])
}

/// Reverses the first elements along the time axis, a number that each entry of the batch gives.
fn reverse_sequence(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, lens) = (c.x(0)?, c.x(1)?);
    let dims = c.dims(x);
    let time = c.axis_attr("time_axis", 0, dims.len())?;
    let batch = c.axis_attr("batch_axis", 1, dims.len())?;
    let mut along = vec![1; dims.len()];
    along[batch] = dims[batch];
    let lens = c.cast(lens, Dtype::I64)?;
    let lens = c.cx.reshape(lens, &along)?;
    let at = c.indices(&dims, time)?;
    let reversed = Expr::arg(1) - number(Dtype::I64, 1.0) - Expr::arg(0);
    let inside = Expr::arg(0).binary(Binary::Less, Expr::arg(1));
    let at = c.map(inside.select(reversed, Expr::arg(0)), &[at, lens])?;
    c.op(Op::GatherElements(time), &[x, at])
}

fn trilu(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let (rank, dtype) = (c.rank(x), c.dtype(x));
    if rank < 2 {
        return Err(format!("expected two axes or more, found {rank}"));
    }
    let [rows, columns] = [rank - 2, rank - 1].map(|axis| c.of(x).dims[axis] as i64);
    let k = c.int_at(1, "k")?.unwrap_or(0).clamp(-rows, columns);
    let diagonal = Expr::Axis(rank - 2) + Expr::int(Dtype::I64, k.into());
    let kept = match c.int_or("upper", 1) {
        0 => Expr::Axis(rank - 1).binary(Binary::LessEqual, diagonal),
        _ => diagonal.binary(Binary::LessEqual, Expr::Axis(rank - 1)),
    };
    c.map(kept.select(Expr::arg(0), number(dtype, 0.0)), &[x])
}
