//! Teams: threads that compute a row together, and the ways in which they combine their parts.

use super::columns::Columns;
use super::emit::Emitter;
use super::fold::Fold;
use super::text::{Class, Reg, Text};

/// The number of threads of a warp.
pub(super) const WARP: usize = 32;

/// The division of rows among the threads of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Team {
    /// One thread for each row.
    Thread,
    /// This number of lanes of a warp, a power of two, for each row.
    Lanes(usize),
    /// A block of this number of threads for each row.
    Block(usize),
    /// Several threads for neighbouring rows that lie side by side.
    Columns(Columns),
}

/// A thread in its team.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// The row of the thread.
    pub row: Reg,
    /// The number of the thread in its team; `None` for 0.
    pub number: Option<Reg>,
    /// Whether the thread has a row; `None` if it certainly has one.
    pub valid: Option<Reg>,
}

/// The number of threads of a block with several teams.
const SMALL_TEAMS: usize = 256;

impl Team {
    /// The number of threads that share a row.
    pub const fn members(self) -> usize {
        match self {
            Self::Thread => 1,
            Self::Lanes(members) | Self::Block(members) => members,
            Self::Columns(of) => of.members * of.blocks,
        }
    }

    /// The number of threads of a block, and of the rows that they compute.
    pub const fn block(self) -> [usize; 2] {
        match self {
            Self::Thread => [SMALL_TEAMS, SMALL_TEAMS],
            Self::Lanes(members) => [SMALL_TEAMS, SMALL_TEAMS / members],
            Self::Block(members) => [members, 1],
            Self::Columns(of) => of.block(),
        }
    }

    /// The number of blocks that share rows.
    pub const fn cluster(self) -> usize {
        if let Self::Columns(of) = self { of.blocks } else { 1 }
    }

    /// The number of neighbouring rows of a thread.
    pub const fn side(self) -> usize {
        if let Self::Columns(of) = self { of.side } else { 1 }
    }

    /// The row and number of the current thread. Threads without a row return, unless other threads of the block wait
    /// for them. If a thread has several rows, `rows` is the number of their groups.
    pub fn member(self, text: &mut Text, rows: usize) -> Member {
        if let Self::Columns(of) = self {
            return of.member(text, rows);
        }
        let block = text.op(Class::Word, "mov.u32", &[&"%ctaid.x"]);
        let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
        let of_block = self.block()[1];
        let (slot, number) = match self {
            Self::Thread => (thread, None),
            Self::Lanes(members) => {
                let lane = text.op(Class::Word, "and.b32", &[&thread, &(members - 1)]);
                (text.op(Class::Word, "shr.u32", &[&thread, &members.ilog2()]), Some(lane))
            }
            Self::Block(_) => return Member { row: block, number: Some(thread), valid: None },
            Self::Columns(_) => unreachable!("they are told above"),
        };
        let row = text.op(Class::Word, "mad.lo.s32", &[&block, &of_block, &slot]);
        if rows.is_multiple_of(of_block) {
            return Member { row, number, valid: None };
        }
        let valid = text.op(Class::Pred, "setp.lt.s32", &[&row, &rows]);
        text.put(format_args!("@!{valid} ret"));
        Member { row, number, valid: None }
    }

    /// Writes the code that ends the sharing of threads.
    pub fn finish(self, text: &mut Text) {
        if let Self::Columns(of) = self {
            of.finish(text);
        }
    }

    /// Combines the parts of each row from all members; then each member has the result.
    pub fn join(self, emitter: &mut Emitter<'_>, fold: &Fold, rows: &[Vec<Reg>]) {
        let (text, parts) = (&mut emitter.text, &rows[0]);
        match self {
            Self::Thread => {}
            Self::Lanes(members) => shuffled(text, fold, parts, members),
            Self::Block(members) => {
                shuffled(text, fold, parts, WARP);
                let thread = text.op(Class::Word, "mov.u32", &[&"%tid.x"]);
                let lane = text.op(Class::Word, "and.b32", &[&thread, &(WARP - 1)]);
                let warp = text.op(Class::Word, "shr.u32", &[&thread, &WARP.ilog2()]);
                let first = text.op(Class::Pred, "setp.eq.s32", &[&lane, &0]);
                let warps = members / WARP;
                let read = text.op(Class::Word, "and.b32", &[&lane, &(warps - 1)]);
                through_memory(text, parts, warps, warp, Some(first), |text, places| {
                    for (&part, &place) in parts.iter().zip(places) {
                        get(text, part, place, read, 0);
                    }
                });
                shuffled(text, fold, parts, warps);
            }
            Self::Columns(of) => of.join(text, fold, rows),
        }
    }
}

/// Combines the parts of `lanes` neighbouring lanes, a power of two.
fn shuffled(text: &mut Text, fold: &Fold, parts: &[Reg], lanes: usize) {
    let mut distance = lanes / 2;
    while distance > 0 {
        let others: Vec<Reg> = parts.iter().map(|&part| shuffle(text, part, distance)).collect();
        fold.combine(text, parts, &others);
        distance /= 2;
    }
}

/// The value of the lane whose number differs in this bit.
fn shuffle(text: &mut Text, x: Reg, bit: usize) -> Reg {
    let word = |text: &mut Text, x: Reg| text.op(Class::Word, "shfl.sync.bfly.b32", &[&x, &bit, &31, &-1]);
    match x.class {
        Class::Pred => {
            let x = text.op(Class::Word, "selp.u32", &[&1, &0, &x]);
            let other = word(text, x);
            text.op(Class::Pred, "setp.ne.u32", &[&other, &0])
        }
        Class::Long => {
            let [low, high] = [text.reg(Class::Word), text.reg(Class::Word)];
            text.put(format_args!("mov.b64 {{{low}, {high}}}, {x}"));
            let [low, high] = [low, high].map(|part| word(text, part));
            text.op(Class::Long, "mov.b64", &[&format!("{{{low}, {high}}}")])
        }
        _ => word(text, x),
    }
}

/// Writes parts to new shared memory with `slots` slots, waits for all threads of the block, and calls `read` with the
/// places.
fn through_memory(
    text: &mut Text,
    parts: &[Reg],
    slots: usize,
    slot: Reg,
    predicate: Option<Reg>,
    read: impl FnOnce(&mut Text, &[u32]),
) {
    let places: Vec<u32> = parts.iter().map(|part| text.share((slots * bytes(*part)) as u32)).collect();
    for (&part, &place) in parts.iter().zip(&places) {
        put(text, part, place, slot, 0, predicate);
    }
    text.put(format_args!("bar.sync 0"));
    read(text, &places);
}

/// The number of bytes of a part in shared memory.
pub(super) const fn bytes(part: Reg) -> usize {
    if matches!(part.class, Class::Long) { 8 } else { 4 }
}

fn address(text: &mut Text, slot: Reg, bytes: usize) -> Reg {
    let base = text.op(Class::Word, "mov.u32", &[&"shared"]);
    text.op(Class::Word, "mad.lo.s32", &[&slot, &bytes, &base])
}

/// Writes a part to the slot that is `behind` slots after `slot`.
pub(super) fn put(text: &mut Text, part: Reg, place: u32, slot: Reg, behind: usize, predicate: Option<Reg>) {
    let part = if part.class == Class::Pred { text.op(Class::Word, "selp.u32", &[&1, &0, &part]) } else { part };
    let (address, offset) = (address(text, slot, bytes(part)), place as usize + behind * bytes(part));
    let guard = predicate.map(|predicate| format!("@{predicate} ")).unwrap_or_default();
    text.put(format_args!("{guard}st.shared.{} [{address}+{offset}], {part}", part.class.bits()));
}

/// Reads a part from the slot that is `behind` slots after `slot`.
pub(super) fn get(text: &mut Text, part: Reg, place: u32, slot: Reg, behind: usize) {
    let address = address(text, slot, bytes(part));
    read(text, part, "ld.shared", &format!("[{address}+{}]", place as usize + behind * bytes(part)));
}

/// Reads a part from a slot in the shared memory of another block of the cluster.
pub(super) fn get_from(text: &mut Text, block: usize, part: Reg, place: u32, slot: Reg) {
    let own = address(text, slot, bytes(part));
    let address = text.op(Class::Word, "mapa.shared::cluster.u32", &[&own, &block]);
    read(text, part, "ld.shared::cluster", &format!("[{address}+{place}]"));
}

fn read(text: &mut Text, part: Reg, load: &str, from: &str) {
    match part.class {
        Class::Pred => {
            let word = text.op(Class::Word, &format!("{load}.b32"), &[&from]);
            text.set(part, "setp.ne.u32", &[&word, &0]);
        }
        class => text.set(part, &format!("{load}.{}", class.bits()), &[&from]),
    }
}
