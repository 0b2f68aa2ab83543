//! Each thread computes one result or a few neighbouring results. It also computes neighbours along a second axis if
//! they share what they read, as windows of a row do that overlap and have one filter.

use super::emit::{Emitter, Lanes};
use super::function::divided_by;
use super::memory::WIDEST;
use super::nest::Nest;
use super::reduce::is_whole;
use super::sum::Sum;
use super::text::{Class, Reg};
use crate::loops::ir::{TermId, TermKind};

/// The number of threads of a block.
pub(super) const THREADS: usize = 256;

/// The largest number of neighbouring points of a thread along an axis.
const SIDE: usize = 8;
/// The largest number of sums that a thread computes.
const SUMS: usize = 32;
/// The largest extent of an axis of which each thread computes all points, such as the colours of a pixel.
const SHORT: usize = 3;

/// Writes the code of a thread for each run of neighbouring results, and returns the number of threads. Runs are short
/// enough for all `units` units of the device to have threads, if there are enough results.
pub(super) fn write(emitter: &mut Emitter<'_>, units: usize) -> usize {
    let nest = emitter.nest;
    let axes = nest.result_axes();
    let sides = sides(nest, &axes, units);
    let runs: Vec<usize> = axes.iter().zip(&sides).map(|(&axis, side)| nest.extents[axis] / side).collect();
    let threads = runs.iter().product::<usize>();
    let number = number(emitter, threads, threads * sides.iter().product::<usize>());
    let indices = unravelled(emitter, number, &runs);
    for ((&axis, index), side) in axes.iter().zip(indices).zip(sides) {
        if side == 1 {
            emitter.bind(axis, Some(index), 1);
            continue;
        }
        let first = (side < nest.extents[axis]).then(|| scaled(emitter, index, side));
        emitter.bind_lanes(first, side as i64, Lanes::neighbours(axis, side));
    }
    emitter.store(None);
    threads
}

/// The number of points of a thread along each axis. It can be more than 1 along the last axis and one other: the axis
/// before it, or an axis whose neighbours share what they read.
fn sides(nest: &Nest, axes: &[usize], units: usize) -> Vec<usize> {
    let mut sides = vec![1; axes.len()];
    let side = side(nest, axes, units);
    let pixels = if side == 1 { pixels(nest, axes, units) } else { None };
    match (pixels, &mut sides[..]) {
        (Some(of_both), [.., before, last]) => [*before, *last] = of_both,
        (_, [before @ .., last]) => {
            *last = side;
            if let Some(place) = axes[..before.len()].iter().rposition(|&axis| shares(nest, axis)) {
                before[place] = across(nest, axes[place], side, units);
            }
        }
        _ => {}
    }
    sides
}

/// Whether neighbours along an axis share what reductions read: some loads do not depend on the axis, and all others
/// read windows that overlap by half or more.
fn shares(nest: &Nest, axis: usize) -> bool {
    let is_reduced = |id: &TermId| nest.deps[id.0].range(nest.of.rank..).next().is_some();
    let indices = nest.needed().filter(is_reduced).filter_map(|id| match nest.term(id).kind {
        TermKind::Load { index, .. } => Some((nest.index(index), nest.deps[id.0].contains(&axis))),
        _ => None,
    });
    let overlaps = |sum: &Sum| {
        let stride = sum.stride(axis);
        let mut along = sum.axes.range(nest.of.rank..);
        along.any(|(&other, by)| stride % by == 0 && (1..=nest.extents[other] as i64 / 2).contains(&(stride / by)))
    };
    let (hanging, free): (Vec<_>, Vec<_>) = indices.partition(|&(_, hangs)| hangs);
    !free.is_empty() && hanging.iter().all(|(sum, _)| overlaps(sum))
}

/// The number of neighbours that a thread computes along an axis at each of `points` other points, if the neighbours
/// share what they read: as many as it has registers for, but so few that all units have threads.
fn across(nest: &Nest, axis: usize, points: usize, units: usize) -> usize {
    let threads = elems(nest, &nest.result_axes()) / points;
    let fits = |across: &usize| {
        nest.extents[axis].is_multiple_of(*across)
            && points * across <= SUMS
            && nest.reductions().all(|of| is_whole(of.points, points * across))
            && threads / across >= units * THREADS / 2
    };
    (2..=SIDE).rev().find(fits).unwrap_or(1)
}

/// The numbers of points of a thread along the last two axes: some neighbours along the first of them, and all points
/// of the last. `None` unless the last axis is short, a load is dense along both, and there are enough threads.
fn pixels(nest: &Nest, axes: &[usize], units: usize) -> Option<[usize; 2]> {
    let &[.., before, last] = axes else { return None };
    let (points, elems) = (nest.extents[last], elems(nest, axes));
    let is_one = |id| match nest.term(id).kind {
        TermKind::Load { index, .. } => {
            nest.index(index).stride(last) == 1 && nest.index(index).stride(before) == points as i64
        }
        _ => false,
    };
    let fits =
        |side: &usize| nest.extents[before].is_multiple_of(*side) && elems / (side * points) >= units * 2 * THREADS;
    let is_pixel = (2..=SHORT).contains(&points) && nest.needed().any(is_one);
    is_pixel.then(|| [SIDE, 4, 2].into_iter().find(fits)).flatten().map(|side| [side, points])
}

/// The number of points of the result.
fn elems(nest: &Nest, axes: &[usize]) -> usize {
    axes.iter().map(|&axis| nest.extents[axis]).product()
}

fn scaled(emitter: &mut Emitter<'_>, index: Reg, by: usize) -> Reg {
    let kind = if index.class == Class::Long { "s64" } else { "s32" };
    emitter.text.op(index.class, &format!("mul.lo.{kind}"), &[&index, &by])
}

/// The number of neighbours that a thread computes along the last axis: as many as its widest access holds, but so few
/// that all units have threads.
fn side(nest: &Nest, axes: &[usize], units: usize) -> usize {
    let Some(&last) = axes.last() else { return 1 };
    let elems = elems(nest, axes);
    let neighbours = nest.needed().filter_map(|id| match nest.term(id).kind {
        TermKind::Load { operand, index, .. } if nest.index(index).stride(last) == 1 => {
            Some(nest.of.operands[operand].dtype)
        }
        _ => None,
    });
    let bytes = neighbours.chain([nest.of.dtype()]).map(|dtype| dtype.bytes()).min().unwrap_or(1);
    let fits = |side: &usize| {
        nest.extents[last].is_multiple_of(*side) && side * bytes <= WIDEST && elems / side >= units * 2 * THREADS
    };
    [SIDE, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The number of the thread, in a register that can hold numbers below `end`. Threads beyond the last one return.
fn number(emitter: &mut Emitter<'_>, threads: usize, end: usize) -> Reg {
    let text = &mut emitter.text;
    let block = text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
    let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
    let (class, kind) = if end < 1 << 31 { (Class::Word, "s32") } else { (Class::Long, "s64") };
    let number = match class {
        Class::Long => {
            let thread = text.op(Class::Long, "cvt.u64.u32", &[&thread]);
            text.op(class, "mad.wide.u32", &[&block, &THREADS, &thread])
        }
        _ => text.op(class, "mad.lo.s32", &[&block, &THREADS, &thread]),
    };
    if !threads.is_multiple_of(THREADS) {
        let beyond = text.op(Class::Pred, &format!("setp.ge.{kind}"), &[&number, &threads]);
        text.put(format_args!("@{beyond} ret"));
    }
    number
}

/// The index along each axis of the point with this row-major number, for axes of these extents.
pub(super) fn unravelled(emitter: &mut Emitter<'_>, number: Reg, extents: &[usize]) -> Vec<Reg> {
    let text = &mut emitter.text;
    let mut indices = Vec::with_capacity(extents.len());
    let mut left = number;
    for (place, &extent) in extents.iter().enumerate().rev() {
        if place == 0 {
            indices.push(left);
            break;
        }
        let [quotient, index] = match left.class {
            Class::Word => divided_by(text, left, extent as i64),
            class => ["div.u64", "rem.u64"].map(|name| text.op(class, name, &[&left, &extent])),
        };
        indices.push(if index.class == Class::Long && extent < 1 << 31 {
            text.op(Class::Word, "cvt.u32.u64", &[&index])
        } else {
            index
        });
        left = quotient;
    }
    indices.reverse();
    indices
}
