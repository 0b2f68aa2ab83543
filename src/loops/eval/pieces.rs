//! Loops in pieces. Where conditions on the innermost axis choose what is computed, as those of a concatenation do, the
//! points between two places where a condition changes are a piece: a loop of its own, which has no such condition.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use super::View;
use super::machine::Machine;
use super::program::Program;
use crate::graph::Binary;
use crate::loops::affine::{affine, needed, within};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Term, TermId, TermKind};
use crate::loops::rewrite::Copier;
use crate::loops::team::{Lines, Team};

/// The mean number of elements of a row of a piece from which on pieces pay.
const FEW: usize = 8;

/// The largest number of pieces: each is a loop of its own.
const MOST: usize = 64;

/// A loop in pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    /// The range of each piece along the innermost axis, and its loop.
    pieces: Vec<(Range<usize>, Loop)>,
    /// The number of points along the innermost axis, and of those along all others.
    row: usize,
    rows: usize,
    /// Bytes of an element.
    size: usize,
}

impl Pieces {
    /// The pieces of a loop without reductions; `None` if no condition changes along its innermost axis, or pieces do not
    /// pay.
    pub fn of(of: &Loop) -> Option<Self> {
        let axis = (0..of.rank).rfind(|&axis| of.axes[axis] != 1)?;
        let row = of.axes[axis];
        let conditions = conditions(of, axis);
        let ends = conditions.values().flat_map(|holds| [holds.start, holds.end]).filter(|end| (1..row).contains(end));
        let ends: BTreeSet<usize> = ends.chain([0, row]).collect();
        let ends: Vec<usize> = ends.into_iter().collect();
        let count = ends.len() - 1;
        if !(2..=MOST).contains(&count) || row / count < FEW {
            return None;
        }
        let piece = |ends: &[usize]| (ends[0]..ends[1], piece(of, axis, ends[0]..ends[1], &conditions));
        let pieces: Vec<_> = ends.windows(2).map(piece).collect();
        let are_flat = pieces.iter().all(|(_, of)| Program::if_flat(of).is_some());
        are_flat.then(|| Self { pieces, row, rows: of.elems() / row, size: of.dtype().bytes() })
    }

    /// Writes the elements of the loop.
    pub fn run(&self, operands: &[View<'_>], to: &mut [u8], team: &dyn Team) {
        let programs: Vec<(&Range<usize>, Program)> =
            self.pieces.iter().map(|(range, of)| (range, Program::flat(of))).collect();
        let steps: usize = programs.iter().map(|(range, of)| range.len() * of.steps.iter().flatten().count()).sum();
        let lines = Lines { count: self.rows, pitch: self.row * self.size, together: 1, least: 1, ops: steps };
        lines.share(team, to, &|_, rows, to| {
            for (range, program) in &programs {
                let points = rows.start * range.len()..rows.end * range.len();
                Machine::new(program, operands).each_block(points, &mut |first, block| {
                    self.scatter(range, first, block, to);
                });
            }
        });
    }

    /// Copies elements of a piece, from that of number `first` on, to their places in the rows `to`.
    fn scatter(&self, range: &Range<usize>, first: usize, mut block: &[u8], to: &mut [u8]) {
        let (mut row, mut column) = (first / range.len(), first % range.len());
        while !block.is_empty() {
            let bytes = ((range.len() - column) * self.size).min(block.len());
            let (elems, rest) = block.split_at(bytes);
            to[(row * self.row + range.start + column) * self.size..][..bytes].copy_from_slice(elems);
            (block, row, column) = (rest, row + 1, 0);
        }
    }
}

/// The conditions that depend on this axis alone and hold in one range of it, and this range.
fn conditions(of: &Loop, axis: usize) -> HashMap<TermId, Range<usize>> {
    let sums = affine(of);
    let needed = needed(of, &sums);
    let terms = of.terms.iter().enumerate().filter(|(id, _)| needed[*id]);
    let condition = |(id, term): (usize, &Term)| {
        let TermKind::Binary(Binary::Less, [index, size]) = term.kind else { return None };
        let (of_axis, [first, last]) = within(&of.terms, &sums, index, size)?;
        let end = of.axes[axis] as i64;
        let [first, end] = [first, last.saturating_add(1)].map(|bound| bound.clamp(0, end) as usize);
        (of_axis == axis).then_some((TermId(id), first..end.max(first)))
    };
    terms.filter_map(condition).collect()
}

/// The loop of the points in a range of an axis, in which each condition holds everywhere or nowhere.
fn piece(of: &Loop, axis: usize, range: Range<usize>, conditions: &HashMap<TermId, Range<usize>>) -> Loop {
    let mut extents = of.axes[..of.rank].to_vec();
    extents[axis] = range.len();
    let mut b = LoopBuilder::new(&of.operands, &extents);
    let mut point = b.point();
    point[axis] = b.shifted(point[axis], range.start as i64);
    let decided = conditions.iter().map(|(&id, holds)| (id, holds.contains(&range.start)));
    let mut copier =
        Copier::new(of, point.into_iter().enumerate(), (0..of.operands.len()).collect()).decide(decided.collect());
    let result = copier.term(&mut b, of.result);
    b.finish(result)
}

#[cfg(test)]
mod tests {
    use super::super::machine;
    use super::*;
    use crate::graph::{Tensor, ValueType};
    use crate::loops::team::{Alone, Backwards};
    use crate::tensor::Dtype;

    /// Three values of 9, 8 and 12 channels side by side, each times its own channel, in 5 x 7 rows; and padding behind.
    fn joined(around: usize) -> Loop {
        let types = [9, 8, 12].map(|channels| ValueType::new(Dtype::F32, &[5, 7, channels]));
        let mut b = LoopBuilder::new(&types, &[5, 7, 29 + around]);
        let point = b.point();
        let mut result = b.float(Dtype::F32, -1.0);
        for (operand, (first, channels)) in [(0, 9), (9, 8), (17, 12)].into_iter().enumerate() {
            let mut at = point.clone();
            at[2] = b.shifted(point[2], -first);
            let inside = b.within(at[2], channels);
            let value = b.load_if(operand, &at, inside, result);
            let channel = b.cast(Dtype::F32, at[2]);
            let value = b.binary(Binary::Mul, value, channel);
            result = inside.map_or(value, |inside| b.select(inside, value, result));
        }
        b.finish(result)
    }

    #[test]
    fn pieces_write_what_the_loop_writes() {
        let tensors = [9, 8, 12].map(|channels| {
            let elems: Vec<f32> = (0..35 * channels).map(|i| (i * i % 101) as f32).collect();
            Tensor::of(&[5, 7, channels], &elems)
        });
        let operands = tensors.each_ref().map(View::from);
        for around in [0, 11] {
            let of = joined(around);
            let pieces = Pieces::of(&of).expect("conditions of channels");
            assert_eq!(pieces.pieces.len(), if around == 0 { 3 } else { 4 });
            let without = |of: &Loop| of.terms.iter().all(|term| !matches!(term.kind, TermKind::Select(_)));
            assert!(pieces.pieces.iter().all(|(_, of)| without(of)));
            let mut wanted = vec![0_f32; of.elems()];
            machine::run(&Program::new(&of), &operands, bytemuck::cast_slice_mut(&mut wanted), &Alone(0));
            for workers in [1, 3] {
                let mut found = vec![0_f32; of.elems()];
                pieces.run(&operands, bytemuck::cast_slice_mut(&mut found), &Backwards(workers));
                assert_eq!(found, wanted, "{around} beside, {workers} workers");
            }
        }
    }

    /// A condition whose two parts are the same condition, 60 times over, is looked at once, not 2 to the power of 60 times.
    #[test]
    fn a_condition_that_is_read_often_is_decided_once() {
        let types = [ValueType::new(Dtype::F32, &[2, 16]), ValueType::new(Dtype::Bool, &[2])];
        let mut b = LoopBuilder::new(&types, &[2, 32]);
        let [row, column] = b.point()[..] else { unreachable!() };
        let mut other = b.load(1, &[row]);
        (0..60).for_each(|_| other = b.binary(Binary::And, other, other));
        let (inside, seven) = (b.within(column, 16).unwrap(), b.float(Dtype::F32, 7.0));
        let both = b.binary(Binary::And, other, inside);
        let result = b.load_if(0, &[row, column], Some(both), seven);
        let of = b.finish(result);
        let pieces = Pieces::of(&of).expect("a condition of columns");
        let tensors = [Tensor::of(&[2, 16], &[3.0_f32; 32]), Tensor::from_bytes(types[1].clone(), &[0, 1])];
        let mut found = vec![0_f32; 64];
        pieces.run(&tensors.each_ref().map(View::from), bytemuck::cast_slice_mut(&mut found), &Alone(0));
        let wanted: Vec<f32> = (0..64).map(|i| if (32..48).contains(&i) { 3.0 } else { 7.0 }).collect();
        assert_eq!(found, wanted);
    }

    #[test]
    fn short_pieces_do_not_pay() {
        let types = [ValueType::new(Dtype::F32, &[50, 3]), ValueType::new(Dtype::F32, &[50, 3])];
        let mut b = LoopBuilder::new(&types, &[50, 6]);
        let [row, column] = b.point()[..] else { unreachable!() };
        let behind = b.shifted(column, -3);
        let other = b.load(1, &[row, behind]);
        let inside = b.within(column, 3);
        let result = b.load_if(0, &[row, column], inside, other);
        assert!(Pieces::of(&b.finish(result)).is_none());
    }
}
