//! A draft of a step, into which other operations may still be fused.

use super::Machine;
use crate::graph::{Graph, ValueId, ValueType};
use crate::loops::affine::{affine, needed};
use crate::loops::fuse::Join;
use crate::loops::ir::{Loop, TermKind};
use crate::loops::rewrite::with_operands;
use crate::loops::work::{Work, only_moves};

/// The largest numbers of terms and of operands of a fused loop.
const MOST_TERMS: usize = 256;
const MOST_OPERANDS: usize = 16;

/// A loop whose operands are values of a graph.
pub(super) struct Draft {
    pub of: Loop,
    /// The operands, each only once.
    pub reads: Vec<ValueId>,
    pub costs: Costs,
    /// For each operand, the number of elements that are read, and whether a reduction reads one more than once.
    times: Vec<f64>,
    reuses: Vec<bool>,
    nests: bool,
    reduces_rows: bool,
}

/// The cost of loops.
#[derive(Clone, Copy, Default)]
pub(super) struct Costs {
    /// The number of operations.
    pub ops: f64,
    /// The operations of reductions among them.
    pub reductions: f64,
    /// The operations of expensive functions among them.
    pub functions: f64,
    /// The operations that a GPU could do in the meantime, because reductions with few results occupy fewer of its
    /// threads.
    pub idle: f64,
    /// The number of bytes that are moved.
    pub bytes: f64,
}

/// The number of results from which on a GPU has enough threads for functions within their reductions.
const MANY_RESULTS: f64 = 800.0;

impl Costs {
    pub fn plus(self, other: Self) -> Self {
        Self {
            ops: self.ops + other.ops,
            reductions: self.reductions + other.reductions,
            functions: self.functions + other.functions,
            idle: self.idle + other.idle,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Whether these costs are not higher than others on a machine, and repeat only what the machine may repeat.
    pub fn are_within(self, other: Self, machine: Machine) -> bool {
        let idle = |of: Self| if machine.repeats_functions { of.idle } else { 0.0 };
        let total = |of: Self| of.ops + idle(of) + machine.ops_of_a_byte * of.bytes;
        self.reductions <= other.reductions
            && (machine.repeats_functions || self.functions <= other.functions)
            && total(self) <= total(other)
    }
}

impl Draft {
    /// The draft of a node's loop, whose operands are these values.
    pub fn of_node(graph: &Graph, of: &Loop, operands: &[ValueId]) -> Self {
        let needed = needed(of, &affine(of));
        let read = |operand: usize| {
            let loads = |(term, needed): (&crate::loops::Term, &bool)| {
                *needed && matches!(term.kind, TermKind::Load { operand: found, .. } if found == operand)
            };
            of.terms.iter().zip(&needed).any(loads)
        };
        let mut reads = Vec::new();
        let numbers = operands.iter().enumerate().map(|(operand, &id)| number(id, read(operand), &mut reads)).collect();
        Self::new(with_operands(of, &types(graph, &reads), numbers), reads)
    }

    fn new(of: Loop, reads: Vec<ValueId>) -> Self {
        let work = Work::of(&of);
        let idle_threads = (MANY_RESULTS / of.elems().max(1) as f64 - 1.0).max(0.0);
        let costs = Costs {
            ops: work.ops(),
            reductions: work.reductions(),
            functions: work.functions(),
            idle: idle_threads * work.reduced_functions(),
            bytes: work.bytes(),
        };
        let reuses = (0..reads.len()).map(|operand| work.reuses(operand)).collect();
        let (times, nests, reduces_rows) = (work.reads(), work.nests(), work.reduces_rows());
        Self { of, reads, costs, times, reuses, nests, reduces_rows }
    }

    /// The number of elements of a value that are read, each counted as often as it is read.
    pub fn times(&self, value: ValueId) -> f64 {
        self.reads.iter().position(|&read| read == value).map_or(0.0, |operand| self.times[operand])
    }

    /// The draft that computes a value in place of reading it, as `producer` does. `None` if that is impossible, or if
    /// the resulting loop is worse whatever it saves.
    pub fn with(&self, graph: &Graph, value: ValueId, producer: &Self) -> Option<Self> {
        let operand = self.reads.iter().position(|&read| read == value)?;
        if self.reuses[operand] && !only_moves(&producer.of) {
            return None;
        }
        let mut reads = Vec::new();
        let of_consumer = self.reads.iter().map(|&id| number(id, id != value, &mut reads)).collect();
        let of_producer = producer.reads.iter().map(|&id| number(id, true, &mut reads)).collect();
        if reads.len() > MOST_OPERANDS.max(self.reads.len()) {
            return None;
        }
        let (operands, numbers) = (types(graph, &reads), [of_consumer, of_producer]);
        let of = Join { consumer: &self.of, operand, producer: &producer.of, operands, numbers }.fused()?;
        if of.terms.len() > MOST_TERMS {
            return None;
        }
        let both = Self::new(of, reads);
        let worse = both.nests || (self.reduces_rows && !both.reduces_rows);
        (!worse).then_some(both)
    }
}

fn types(graph: &Graph, ids: &[ValueId]) -> Vec<ValueType> {
    ids.iter().map(|&id| graph.value(id).clone()).collect()
}

/// The index of a value in `among`. If the value is read, it is added when it is missing.
fn number(id: ValueId, is_read: bool, among: &mut Vec<ValueId>) -> usize {
    let known = among.iter().position(|&other| other == id);
    known.unwrap_or_else(|| {
        if is_read {
            among.push(id);
        }
        among.len().saturating_sub(1)
    })
}
