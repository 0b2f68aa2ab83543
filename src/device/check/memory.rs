//! The last accesses to each byte, as far as a later access could still conflict with them.

use std::ops::Range;

use super::clock::{Actor, Clock};
use crate::device::{Access, Span};

/// One access, by a step of an actor.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Offsets in the allocation.
    pub bytes: Range<usize>,
    pub access: Access,
    pub actor: Actor,
    pub step: u32,
    /// The name of the operation: `"copy_in"`, `"the host"`, …
    pub what: &'static str,
}

/// A turn of host code: its access to some bytes, which has begun and not ended.
#[derive(Debug)]
pub(super) struct Turn {
    pub bytes: Range<usize>,
    pub access: Access,
    /// The clock of its thread when the turn began; another thread may end the turn.
    pub known: Clock,
}

/// An allocation, with its accesses.
#[derive(Debug)]
pub(super) struct Memory {
    /// The kind of memory: `"device memory"`, or the name of page-locked memory.
    pub kind: &'static str,
    pub bytes: usize,
    pub records: Vec<Record>,
    pub turns: Vec<Turn>,
    /// The credits of its parts.
    pub credits: Vec<Credit>,
}

#[derive(Debug)]
pub(super) struct Credit {
    pub at: usize,
    pub actor: Actor,
    pub known: Clock,
}

impl Memory {
    pub fn new(kind: &'static str, bytes: usize) -> Self {
        Self { kind, bytes, records: Vec::new(), turns: Vec::new(), credits: Vec::new() }
    }

    /// An earlier access that conflicts with this one and that `known` does not order before it.
    pub fn unordered(&self, bytes: &Range<usize>, access: Access, known: &Clock) -> Option<&Record> {
        self.records
            .iter()
            .find(|old| overlap(&old.bytes, bytes) && conflict(old.access, access) && !known.knows(old.actor, old.step))
    }

    /// The turn of host code that now accesses some of these bytes in conflict with this access.
    pub fn turn_at(&self, bytes: &Range<usize>, access: Access) -> Option<&Turn> {
        self.turns.iter().find(|turn| overlap(&turn.bytes, bytes) && conflict(turn.access, access))
    }

    /// Adds an access. Removes earlier accesses that it replaces: any access that is ordered after the new one is
    /// ordered after them too.
    pub fn add(&mut self, new: Record, known: &Clock) {
        self.records.retain_mut(|old| {
            let replaced = (new.access == Access::Write || old.access == Access::Read)
                && overlap(&old.bytes, &new.bytes)
                && known.knows(old.actor, old.step);
            if !replaced {
                return true;
            }
            let (before, after) = (old.bytes.start < new.bytes.start, old.bytes.end > new.bytes.end);
            match (before, after) {
                (false, false) => return false,
                (true, false) => old.bytes.end = new.bytes.start,
                (false, true) => old.bytes.start = new.bytes.end,
                (true, true) => {}
            }
            true
        });
        self.records.push(new);
    }

    /// Ends the host's turn at exactly these bytes, if there is one.
    pub fn end_turn(&mut self, bytes: &Range<usize>) -> Option<Turn> {
        let at = self.turns.iter().position(|turn| turn.bytes == *bytes)?;
        Some(self.turns.swap_remove(at))
    }
}

/// The offsets of `span` in an allocation that begins at `start`.
pub(super) fn offsets(span: Span, start: u64) -> Range<usize> {
    let at = (span.addr - start) as usize;
    at..at + span.bytes
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

fn conflict(a: Access, b: Access) -> bool {
    a == Access::Write || b == Access::Write
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Actor = Actor(0);
    const B: Actor = Actor(1);

    fn record(bytes: Range<usize>, access: Access, actor: Actor, step: u32) -> Record {
        Record { bytes, access, actor, step, what: "test" }
    }

    #[test]
    fn only_unordered_overlapping_conflicts_count() {
        let (mut memory, nothing) = (Memory::new("memory", 100), Clock::default());
        memory.add(record(10..20, Access::Read, A, 1), &nothing);
        assert!(memory.unordered(&(0..100), Access::Read, &nothing).is_none());
        assert!(memory.unordered(&(20..100), Access::Write, &nothing).is_none());
        assert!(memory.unordered(&(19..100), Access::Write, &nothing).is_some());
        let mut known = Clock::default();
        known.step(A);
        assert!(memory.unordered(&(19..100), Access::Write, &known).is_none());
    }

    #[test]
    fn a_later_access_replaces_what_it_is_ordered_after() {
        let (mut memory, mut known) = (Memory::new("memory", 100), Clock::default());
        let step = known.step(A);
        memory.add(record(0..50, Access::Write, A, step), &known);
        let step = known.step(A);
        memory.add(record(0..20, Access::Write, A, step), &known);
        assert_eq!(memory.records.iter().map(|r| r.bytes.clone()).collect::<Vec<_>>(), [20..50, 0..20]);
        let step = known.step(A);
        memory.add(record(0..50, Access::Read, A, step), &known);
        assert_eq!(memory.records.len(), 3, "a read replaces no write");
        let (mut other, mut stranger) = (known.clone(), Clock::default());
        let step = stranger.step(B);
        memory.add(record(0..50, Access::Read, B, step), &stranger);
        assert_eq!(memory.records.len(), 4, "not ordered after the others");
        other.join(&stranger);
        let step = other.step(A);
        memory.add(record(0..50, Access::Write, A, step), &other);
        assert_eq!(memory.records.len(), 1);
    }
}
