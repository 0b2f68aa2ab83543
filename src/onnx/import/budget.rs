//! The budget of an import: a small file must not cause much work or take much memory.

use std::cell::Cell;

use super::context::Outcome;
use crate::graph::{Op, ValueType};
use crate::loops;

/// The part of the budget that is left.
pub(super) struct Budget {
    steps: Cell<usize>,
    is_spent: Cell<bool>,
    read_bytes: Cell<usize>,
    folded_bytes: usize,
    folded_ops: f64,
}

/// The most steps of an import: nodes, trips of loops, calls of functions, operations, and elements of sequences
/// together.
const STEPS: usize = 1 << 21;

/// The most bytes of tensors that are read because shapes depend on them or because nodes hold them, in addition to the
/// size of the files.
const READ_BYTES: usize = 256 << 20;

/// The most bytes of all constants that are computed during the import; further ones are left to the graph.
const FOLDED_BYTES: usize = 256 << 20;

/// The most bytes of one such constant.
const MOST_FOLDED_BYTES: usize = 16 << 20;

/// The most work, in operations and bytes moved, for all constants that are computed, and for one of them.
const FOLDED_OPS: f64 = (1_u64 << 31) as f64;
const MOST_FOLDED_OPS: f64 = (1_u64 << 27) as f64;

impl Budget {
    /// The budget for a model whose files have this many bytes.
    pub fn new(file_bytes: u64) -> Self {
        Self {
            steps: Cell::new(STEPS),
            is_spent: Cell::new(false),
            read_bytes: Cell::new(READ_BYTES.saturating_add(file_bytes as usize)),
            folded_bytes: FOLDED_BYTES,
            folded_ops: FOLDED_OPS,
        }
    }

    /// Takes `count` steps; an error if fewer are left.
    pub fn step(&self, count: usize) -> Outcome<()> {
        let left = self.steps.get().checked_sub(count);
        match left {
            Some(left) => self.steps.set(left),
            None => self.spend(),
        }
        left.map(drop).ok_or_else(|| {
            format!(
                "importing takes more than {STEPS} steps, such as nodes and trips of loops: expected a smaller model"
            )
        })
    }

    /// Whether more steps were asked for than were left; then no more is imported.
    pub fn is_spent(&self) -> bool {
        self.is_spent.get()
    }

    /// Ends the import.
    pub fn spend(&self) {
        self.steps.set(0);
        self.is_spent.set(true);
    }

    /// Takes `bytes` bytes of tensors; an error if fewer are left.
    pub fn read(&self, bytes: usize) -> Outcome<()> {
        let left = self.read_bytes.get().checked_sub(bytes).ok_or_else(|| {
            format!("tensors that are read here have {READ_BYTES} bytes more than the files: expected fewer, or smaller ones")
        })?;
        self.read_bytes.set(left);
        Ok(())
    }

    /// Whether an operation on constants is computed now; if so, takes its cost.
    pub fn folds(&mut self, op: &Op, inputs: &[Option<&ValueType>], written: &[ValueType]) -> bool {
        let bytes: usize = written.iter().map(ValueType::bytes).sum();
        if bytes > MOST_FOLDED_BYTES.min(self.folded_bytes) {
            return false;
        }
        let moved = bytes + inputs.iter().flatten().map(|of| of.bytes()).sum::<usize>();
        let ops = loops::operations(op, inputs, written) + moved as f64;
        let folds = ops <= MOST_FOLDED_OPS.min(self.folded_ops);
        if folds {
            self.folded_bytes -= bytes;
            self.folded_ops -= ops;
        }
        folds
    }
}
