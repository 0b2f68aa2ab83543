//! Rows that lie side by side: the threads of a block read neighbouring rows, some by each thread, and divide the points
//! of reductions; so do the blocks of a cluster.

use super::PtxTarget;
use super::fold::Fold;
use super::function::divided_by;
use super::memory::neighbours;
use super::nest::{Nest, Reduction};
use super::team::{Member, bytes, get, get_from, put};
use super::text::{Class, Reg, Text, place_bytes};
use crate::loops::ir::TermId;

/// Neighbouring rows of a thread at most.
const MOST_SIDE: usize = 8;
/// Rows side by side of a block at most, and threads that have them; the fewest threads, where some units have no block.
const MOST_ROWS: usize = 128;
const MOST_ACROSS: usize = 32;
const LEAST_ACROSS: usize = 2;
/// Threads of a block at most, and so many for each unit.
const MOST_THREADS: usize = 512;
const THREADS_OF_UNIT: usize = 1024;
/// Blocks of a cluster at most, on this compute capability and later ones.
const MOST_BLOCKS: usize = 8;
const CLUSTERS_SINCE: [u32; 2] = [9, 0];
/// Points of a member, and members of a row at least.
const LEAST_POINTS: usize = 4;
const LEAST_MEMBERS: usize = 4;
/// Members whose parts a thread combines one after the other.
const SEGMENT: usize = 8;
/// Bytes of shared memory at most.
const SHARED: usize = 47 << 10;

/// How blocks share rows that lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// Neighbouring rows of each thread.
    pub side: usize,
    /// Threads side by side, with rows of their own.
    pub across: usize,
    /// Threads of a block that share rows: a power of two.
    pub members: usize,
    /// Blocks of a cluster that share rows: a power of two.
    pub blocks: usize,
}

impl Columns {
    /// How reductions of so many points at most are shared, if a thread has not enough to do for itself.
    pub fn plan(nest: &Nest, tops: &[Reduction], rows: &[usize], longest: usize, target: &PtxTarget) -> Option<Self> {
        let parts: Vec<usize> = tops.iter().flat_map(|of| bytes_of(nest, of)).collect();
        let count: usize = rows.iter().map(|&axis| nest.extents[axis]).product();
        let along = rows.last().map_or(1, |&axis| nest.extents[axis]);
        let most_side = neighbours(nest, &rows[rows.len().saturating_sub(1)..], MOST_SIDE);
        let sides = powers().take_while(|&side| side <= most_side).collect::<Vec<_>>();
        let of_side = |side: usize| {
            let most = MOST_ACROSS.min(MOST_ROWS / side);
            let runs = along / side;
            let divides = |across: &usize| runs.is_multiple_of(*across);
            let wide = (most / 2 + 1..=most).rev().find(divides).unwrap_or(runs.min(most));
            let narrower = (LEAST_ACROSS..wide).rev().filter(divides);
            let of = |across: usize| Self::of([count, longest], [side, across], &parts, target);
            let busy = |of: &Self| (count / side).div_ceil(of.across) * of.blocks >= target.units;
            let all: Vec<Self> = [wide].into_iter().chain(narrower).map(of).collect();
            all.iter().copied().find(busy).unwrap_or(all[all.len() - 1])
        };
        // A thread for each output of a block is to be there.
        let fits = |of: &Self| of.members >= of.side && of.members * of.blocks >= LEAST_MEMBERS;
        sides.into_iter().rev().map(of_side).find(fits)
    }

    /// So many threads side by side with so many rows each: as many members as units have threads for, and their memory.
    fn of([rows, points]: [usize; 2], [side, across]: [usize; 2], parts: &[usize], target: &PtxTarget) -> Self {
        let most = (target.units * THREADS_OF_UNIT * side / rows.max(1)).min(points / LEAST_POINTS);
        let shared = |members: usize| -> usize {
            let slots = [members, members.div_ceil(SEGMENT), 1, 1].map(|count| across * side * count);
            parts.iter().flat_map(|bytes| slots.map(|slots| place_bytes(slots * bytes))).sum()
        };
        let fits = |&members: &usize| across * members <= MOST_THREADS && members <= most && shared(members) <= SHARED;
        let members = powers().take_while(fits).last().unwrap_or(0); // none: it is not taken
        let cluster = if target.compute_capability >= CLUSTERS_SINCE { MOST_BLOCKS } else { 1 };
        let blocks = powers().take_while(|&blocks| blocks <= cluster && members * blocks <= most).last().unwrap_or(1);
        Self { side, across, members, blocks }
    }

    /// Threads of a block, and the groups of rows that they have.
    pub const fn block(self) -> [usize; 2] {
        [self.across * self.members, self.across]
    }

    /// Which thread this is; its row is the number of its group.
    pub fn member(self, text: &mut Text, groups: usize) -> Member {
        let block = text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
        let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let [mut number, slot] = divided_by(text, thread, self.across as i64);
        let [cluster, rank] = divided_by(text, block, self.blocks as i64);
        if self.blocks > 1 {
            number = text.op(Class::Word, "mad.lo.s32", &[&rank, &self.members, &number]);
        }
        let row = text.op(Class::Word, "mad.lo.s32", &[&cluster, &self.across, &slot]);
        if groups.is_multiple_of(self.across) {
            return Member { row, number: Some(number), valid: None };
        }
        let valid = text.op(Class::Pred, "setp.lt.s32", &[&row, &groups]);
        let row = text.op(Class::Word, "min.s32", &[&row, &(groups - 1)]);
        Member { row, number: Some(number), valid: Some(valid) }
    }

    /// Combines what all members have of each of their rows, always in the same order; each has the whole then.
    pub fn join(self, text: &mut Text, fold: &Fold, rows: &[Vec<Reg>]) {
        let [threads, _] = self.block();
        let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let (outputs, segment) = (self.across * rows.len(), self.members.min(SEGMENT));
        let segments = self.members / segment;
        let mut places = shared(text, &rows[0], threads * rows.len());
        for (number, parts) in rows.iter().enumerate() {
            parts
                .iter()
                .zip(&places)
                .for_each(|(&part, &place)| put(text, part, place, thread, number * threads, None));
        }
        text.put(format_args!("bar.sync 0"));
        // A thread for each output and each segment of the members, then one for each output.
        let [of, output] = divided_by(text, thread, outputs as i64);
        let [row, slot] = divided_by(text, output, self.across as i64);
        let first = text.op(Class::Word, "mad.lo.s32", &[&row, &threads, &slot]);
        let first = text.op(Class::Word, "mad.lo.s32", &[&of, &(segment * self.across), &first]);
        let own = Own { thread, fold, like: &rows[0] };
        let get_all = |text: &mut Text, parts: &[Reg], from: &[u32], slot: Reg, behind: usize| {
            parts.iter().zip(from).for_each(|(&part, &place)| get(text, part, place, slot, behind));
        };
        places = own.combined(text, outputs * segments, segment, |text, parts, number| {
            get_all(text, parts, &places, first, number * self.across);
        });
        if segments > 1 {
            places = own.combined(text, outputs, segments, |text, parts, number| {
                get_all(text, parts, &places, thread, number * outputs);
            });
        }
        if self.blocks > 1 {
            meet(text);
            places = own.combined(text, outputs, self.blocks, |text, parts, number| {
                parts.iter().zip(&places).for_each(|(&part, &place)| get_from(text, number, part, place, thread));
            });
        }
        let slot = divided_by(text, thread, self.across as i64)[1];
        for (number, parts) in rows.iter().enumerate() {
            parts.iter().zip(&places).for_each(|(&part, &place)| get(text, part, place, slot, number * self.across));
        }
    }

    /// Waits until no block of the cluster reads another's memory any more.
    pub fn finish(self, text: &mut Text) {
        if self.blocks > 1 {
            meet(text);
        }
    }
}

/// A thread that combines parts of others, and how.
struct Own<'a> {
    thread: Reg,
    fold: &'a Fold,
    /// Registers like those of the parts.
    like: &'a [Reg],
}

impl Own<'_> {
    /// So many threads combine `count` parts each, which a function reads by their number; each puts what it gets into its
    /// slot of new places, which the whole block can read then.
    fn combined(
        &self,
        text: &mut Text,
        threads: usize,
        count: usize,
        read: impl Fn(&mut Text, &[Reg], usize),
    ) -> Vec<u32> {
        let places = shared(text, self.like, threads);
        let behind = text.label();
        let idle = text.op(Class::Pred, "setp.ge.s32", &[&self.thread, &threads]);
        text.put(format_args!("@{idle} bra {behind}"));
        let one = |text: &mut Text, number: usize| {
            let parts: Vec<Reg> = self.like.iter().map(|part| text.reg(part.class)).collect();
            read(text, &parts, number);
            parts
        };
        let whole = one(text, 0);
        for number in 1..count {
            let other = one(text, number);
            self.fold.combine(text, &whole, &other);
        }
        whole.iter().zip(&places).for_each(|(&part, &place)| put(text, part, place, self.thread, 0, None));
        text.place(behind);
        text.put(format_args!("bar.sync 0"));
        places
    }
}

/// New places for so many of each part.
fn shared(text: &mut Text, like: &[Reg], slots: usize) -> Vec<u32> {
    like.iter().map(|&part| text.share((slots * bytes(part)) as u32)).collect()
}

/// Waits for the blocks of the cluster; what they wrote before can be read then.
fn meet(text: &mut Text) {
    text.put(format_args!("barrier.cluster.arrive.release.aligned"));
    text.put(format_args!("barrier.cluster.wait.acquire.aligned"));
}

/// Bytes in shared memory of each part of what a reduction combines.
fn bytes_of(nest: &Nest, of: &Reduction) -> Vec<usize> {
    let of_body = |&id: &TermId| if Class::of(nest.machine(id)) == Class::Long { 8 } else { 4 };
    let place = (of.body.len() > 1).then_some(8);
    of.body.iter().map(of_body).chain(place).collect()
}

/// Powers of two.
fn powers() -> impl Iterator<Item = usize> {
    (0..).map(|bit| 1 << bit)
}
