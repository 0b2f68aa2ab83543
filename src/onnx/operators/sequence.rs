//! Sequences and optionals: lists of tensors whose length is known.

use super::Operator::Items;
use super::shape::pieces;
use super::{Item, Outcome, Table};
use crate::graph::{Tensor, ValueId};
use crate::onnx::import::{Call, axis_of, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("SequenceConstruct", Items(construct)),
    ("SequenceEmpty", Items(empty)),
    ("SequenceAt", Items(at)),
    ("SequenceLength", Items(length)),
    ("SequenceInsert", Items(insert)),
    ("SequenceErase", Items(erase)),
    ("SequenceMap", Items(map)),
    ("SplitToSequence", Items(split)),
    ("ConcatFromSequence", Items(concat)),
    ("Optional", Items(optional)),
    ("OptionalHasElement", Items(has_element)),
    ("OptionalGetElement", Items(element)),
];

fn sequence(c: &Call<'_, '_>, index: usize) -> Outcome<Vec<ValueId>> {
    match c.inputs.get(index) {
        Some(Some(Item::Sequence(all))) => Ok(all.clone()),
        _ => Err(format!("input {index}: expected a sequence")),
    }
}

fn construct(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    Ok(vec![Item::Sequence(c.all()?)])
}

fn empty(_: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    Ok(vec![Item::Sequence(Vec::new())])
}

/// A position in a sequence; a negative one counts from the end. The default is after the last element.
fn place(c: &Call<'_, '_>, index: usize, len: usize, most: usize) -> Outcome<usize> {
    let at = c.int_at(index, "the place")?.unwrap_or(len as i64);
    let counted = if at < 0 { at + len as i64 } else { at };
    usize::try_from(counted).ok().filter(|&at| at < most).ok_or_else(|| format!("place {at} of {len}"))
}

fn at(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let all = sequence(c, 0)?;
    Ok(vec![all[place(c, 1, all.len(), all.len())?].into()])
}

fn length(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let len = sequence(c, 0)?.len() as i64;
    Ok(vec![c.constant(&Tensor::of(&[], &[len])).into()])
}

fn insert(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let mut all = sequence(c, 0)?;
    let at = place(c, 2, all.len(), all.len() + 1)?;
    all.insert(at, c.x(1)?);
    Ok(vec![Item::Sequence(all)])
}

fn erase(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let mut all = sequence(c, 0)?;
    let last = c.maybe(1).is_none().then(|| all.len().checked_sub(1).ok_or("nothing to erase")).transpose()?;
    let at = last.map_or_else(|| place(c, 1, all.len(), all.len()), Ok)?;
    all.remove(at);
    Ok(vec![Item::Sequence(all)])
}

/// Applies a body at each position of the sequences; tensors are the same for all positions.
fn map(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let body = c.graph_attr("body")?;
    let len = sequence(c, 0)?.len();
    let mut outputs = vec![Vec::new(); body.outputs.len()];
    for index in 0..len {
        let of = |item: &Option<Item>| match item {
            Some(Item::Sequence(all)) => {
                all.get(index).map(|&value| value.into()).ok_or("sequences of different lengths")
            }
            other => other.clone().ok_or("an input is left out"),
        };
        let inputs = c.inputs.iter().map(of).collect::<Result<Vec<_>, _>>()?;
        for (all, item) in outputs.iter_mut().zip(c.body(body, inputs)?) {
            match item {
                Item::Tensor(value) => all.push(value),
                Item::Broken => return Ok(vec![Item::Broken; body.outputs.len()]),
                _ => return Err("its body gives no tensor".into()),
            }
        }
    }
    Ok(outputs.into_iter().map(Item::Sequence).collect())
}

/// Splits into parts of given sizes, of one size, or of size 1.
fn split(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let x = c.x(0)?;
    let axis = axis_of(c.int_or("axis", 0), c.rank(x))?;
    let size = c.dims(x)[axis];
    let (sizes, keep) = match c.maybe(1) {
        None => {
            c.step(size)?;
            (vec![1; size], c.int_or("keepdims", 1) != 0)
        }
        Some(value) => {
            let sizes = c.ints(value, "split")?;
            let sizes = sizes.iter().map(|&size| size_of_dim(size, "split")).collect::<Outcome<Vec<_>>>()?;
            match (c.rank(value), &sizes[..]) {
                (0, [each]) if *each > 0 => {
                    c.step(size.div_ceil(*each))?;
                    ((0..size.div_ceil(*each)).map(|part| (size - part * each).min(*each)).collect(), true)
                }
                _ => (sizes, true),
            }
        }
    };
    let mut parts = pieces(c, x, axis, &sizes)?;
    if !keep {
        parts = parts.into_iter().map(|part| c.squeeze(part, axis)).collect::<Outcome<_>>()?;
    }
    Ok(vec![Item::Sequence(parts)])
}

fn concat(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let mut all = sequence(c, 0)?;
    let new = c.flag("new_axis");
    let rank = c.rank(*all.first().ok_or("expected a sequence that is not empty")?);
    let axis = axis_of(c.int("axis").ok_or("axis: expected one")?, rank + usize::from(new))?;
    if new {
        all = all.into_iter().map(|value| c.unsqueeze(value, axis)).collect::<Outcome<_>>()?;
    }
    Ok(vec![c.cx.concat(&all, axis)?.into()])
}

fn optional(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    Ok(vec![c.inputs.first().cloned().flatten().unwrap_or(Item::Nothing)])
}

fn has_element(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    let has = !matches!(c.inputs.first(), None | Some(None | Some(Item::Nothing)));
    let has = c.constant(&Tensor::of(&[], &[u8::from(has)]));
    Ok(vec![c.cast(has, Dtype::Bool)?.into()])
}

fn element(c: &mut Call<'_, '_>) -> Outcome<Vec<Item>> {
    match c.inputs.first().cloned().flatten() {
        None | Some(Item::Nothing) => Err("the optional is empty".into()),
        Some(item) => Ok(vec![item]),
    }
}
