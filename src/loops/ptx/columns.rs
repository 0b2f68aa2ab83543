//! Teams for rows that lie side by side in memory. Each thread of a block reads a few neighbouring rows. The points of
//! reductions are divided among threads of a block and among blocks of a cluster.

use super::PtxTarget;
use super::fold::Fold;
use super::function::divided_by;
use super::memory::neighbours;
use super::nest::{Nest, Reduction};
use super::team::{Member, bytes, get, get_from, put};
use super::text::{Class, Reg, Text, place_bytes};
use crate::loops::ir::TermId;

/// The largest number of neighbouring rows of a thread.
const MOST_SIDE: usize = 8;
/// The largest number of rows side by side of a block.
const MOST_ROWS: usize = 128;
/// The largest number of threads side by side of a block.
const MOST_ACROSS: usize = 32;
/// The least number of threads side by side of a block, for rows so few that some units would have no block.
const LEAST_ACROSS: usize = 2;
/// The largest number of threads of a block.
const MOST_THREADS: usize = 512;
/// The largest number of threads for each unit.
const THREADS_OF_UNIT: usize = 1024;
/// The largest number of blocks of a cluster.
const MOST_BLOCKS: usize = 8;
/// The first compute capability on which blocks form clusters.
const CLUSTERS_SINCE: [u32; 2] = [9, 0];
/// The least number of points of a member.
const LEAST_POINTS: usize = 4;
/// The least number of members that share a row.
const LEAST_MEMBERS: usize = 4;
/// The largest number of members whose parts a thread combines one after the other.
const SEGMENT: usize = 8;
/// The largest number of bytes of shared memory of a block.
const SHARED: usize = 47 << 10;

/// The division of rows that lie side by side among threads and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    /// The number of neighbouring rows of each thread.
    pub side: usize,
    /// The number of threads side by side, each with rows of its own.
    pub across: usize,
    /// The number of threads of a block that share a row, a power of two.
    pub members: usize,
    /// The number of blocks of a cluster, which share their rows: a power of two.
    pub blocks: usize,
}

impl Columns {
    /// The division of rows if the longest reduction has `longest` points; `None` if too few threads would share a row.
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
        // A block needs a thread for each of its outputs.
        let fits = |of: &Self| of.members >= of.side && of.members * of.blocks >= LEAST_MEMBERS;
        sides.into_iter().rev().map(of_side).find(fits)
    }

    /// The division with `across` threads side by side that have `side` rows each. It has as many members and blocks as
    /// the units' threads, the points of reductions and shared memory allow.
    fn of([rows, points]: [usize; 2], [side, across]: [usize; 2], parts: &[usize], target: &PtxTarget) -> Self {
        let most = (target.units * THREADS_OF_UNIT * side / rows.max(1)).min(points / LEAST_POINTS);
        let shared = |members: usize| -> usize {
            let slots = [members, members.div_ceil(SEGMENT), 1, 1].map(|count| across * side * count);
            parts.iter().flat_map(|bytes| slots.map(|slots| place_bytes(slots * bytes))).sum()
        };
        let fits = |&members: &usize| across * members <= MOST_THREADS && members <= most && shared(members) <= SHARED;
        let members = powers().take_while(fits).last().unwrap_or(0); // 0 if not even one fits
        let cluster = if target.compute_capability >= CLUSTERS_SINCE { MOST_BLOCKS } else { 1 };
        let blocks = powers().take_while(|&blocks| blocks <= cluster && members * blocks <= most).last().unwrap_or(1);
        Self { side, across, members, blocks }
    }

    /// The number of threads of a block, and the number of groups of neighbouring rows that they have.
    pub const fn block(self) -> [usize; 2] {
        [self.across * self.members, self.across]
    }

    /// The current thread as a member. Its row is the number of its group of neighbouring rows.
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

    /// Combines the parts of each row from all members, always in the same order; then each member has the results.
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
        // First, one thread combines each segment of members for each output; then one thread combines each output's
        // segments.
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

    /// Waits until no block of the cluster reads another block's shared memory any more.
    pub fn finish(self, text: &mut Text) {
        if self.blocks > 1 {
            meet(text);
        }
    }
}

/// The current thread, and the fold by which it combines parts of others.
struct Own<'a> {
    thread: Reg,
    fold: &'a Fold,
    /// Registers like those of the parts.
    like: &'a [Reg],
}

impl Own<'_> {
    /// Lets `threads` threads combine `count` parts each, which `read` reads by their number. Each thread puts its
    /// result into its slot of new places, which the whole block can then read.
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

/// New places in shared memory, with `slots` slots for each part.
fn shared(text: &mut Text, like: &[Reg], slots: usize) -> Vec<u32> {
    like.iter().map(|&part| text.share((slots * bytes(part)) as u32)).collect()
}

/// Waits for all blocks of the cluster; then each block can read what the others wrote before.
fn meet(text: &mut Text) {
    text.put(format_args!("barrier.cluster.arrive.release.aligned"));
    text.put(format_args!("barrier.cluster.wait.acquire.aligned"));
}

/// The bytes in shared memory of each part that a reduction combines.
fn bytes_of(nest: &Nest, of: &Reduction) -> Vec<usize> {
    let of_body = |&id: &TermId| if Class::of(nest.machine(id)) == Class::Long { 8 } else { 4 };
    let place = (of.body.len() > 1).then_some(8);
    of.body.iter().map(of_body).chain(place).collect()
}

/// The powers of two, from 1 on.
fn powers() -> impl Iterator<Item = usize> {
    (0..).map(|bit| 1 << bit)
}
