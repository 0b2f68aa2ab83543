//! A thread for each result, or for a few neighbours.

use super::emit::{Emitter, Lanes};
use super::function::divided_by;
use super::memory::WIDEST;
use super::nest::Nest;
use super::text::{Class, Reg};
use crate::loops::ir::TermKind;

/// Threads of a block.
pub(super) const THREADS: usize = 256;

/// Points of a thread side by side at most.
const SIDE: usize = 8;

/// Writes out a thread for each run of neighbouring results; how many threads there are. `units` of the device are to
/// have enough of them.
pub(super) fn write(emitter: &mut Emitter<'_>, units: usize) -> usize {
    let nest = emitter.nest;
    let axes = nest.result_axes();
    let side = side(nest, &axes, units);
    let threads = axes.iter().map(|&axis| nest.extents[axis]).product::<usize>() / side;
    let number = number(emitter, threads, threads * side);
    let indices = unravelled(emitter, number, &extents(nest, &axes, side));
    for (place, (&axis, index)) in axes.iter().zip(indices).enumerate() {
        if side == 1 || place + 1 < axes.len() {
            emitter.bind(axis, Some(index), 1);
            continue;
        }
        let first = scaled(emitter, index, side);
        emitter.bind_lanes(Some(first), side as i64, Lanes::neighbours(axis, side));
    }
    emitter.store(None);
    threads
}

/// Points along each axis that are counted: of the last one in runs.
fn extents(nest: &Nest, axes: &[usize], side: usize) -> Vec<usize> {
    let mut extents: Vec<usize> = axes.iter().map(|&axis| nest.extents[axis]).collect();
    extents.last_mut().into_iter().for_each(|last| *last /= side);
    extents
}

fn scaled(emitter: &mut Emitter<'_>, index: Reg, by: usize) -> Reg {
    let kind = if index.class == Class::Long { "s64" } else { "s32" };
    emitter.text.op(index.class, &format!("mul.lo.{kind}"), &[&index, &by])
}

/// How many neighbours along the last axis a thread computes: as many as its widest access holds, but so few that all
/// units have threads.
fn side(nest: &Nest, axes: &[usize], units: usize) -> usize {
    let Some(&last) = axes.last() else { return 1 };
    let elems: usize = axes.iter().map(|&axis| nest.extents[axis]).product();
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

/// The number of the thread, in a register for numbers below `end`; threads beyond the last one end.
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

/// The index along each axis of these extents that a number stands for.
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
