//! Reads the instructions that the lanes of a warp execute together.

use super::body::Body;
use super::compute;
use super::opcode::Opcode;
use super::program::{LaneMask, Op, Shuffle, Slot, Special, Warp, WarpKind};
use super::types::Type;

/// The source lane of a shuffle, and whether it is within the limits.
type From = fn(u32, u32, u32) -> (u32, bool);

/// A function of the mask of members and the mask of those whose predicate holds.
type Voted = fn(u32, u32) -> u64;

impl<'t> Body<'_, 't> {
    fn emit_warp(&mut self, kind: WarpKind, members: Slot) {
        self.emit(Op::Warp(Box::new(Warp { kind, members })));
    }

    /// Reads `bar.warp.sync members`.
    pub fn warp_barrier(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let is_known = opcode.takes("sync");
        opcode.finish(0)?;
        let members = self.source(Type::B32, false)?;
        self.emit_warp(WarpKind::Sync, members);
        if is_known { Ok(()) } else { Err("only .sync is known".into()) }
    }

    /// Reads `shfl.sync.bfly.b32 to|within, value, by, limits, members`.
    pub fn shuffle(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        const MODES: [(&str, From); 4] = [("up", up), ("down", down), ("bfly", butterfly), ("idx", index)];
        let from = opcode.one_of(&MODES).filter(|_| opcode.takes("sync")).ok_or("it names no known shuffle")?;
        opcode.finish(1)?;
        let to = self.destination(Type::B32, false)?;
        let within = self.second_predicate()?;
        let [value, by, limits, members] = self.four()?;
        self.emit_warp(WarpKind::Shuffle(Shuffle { from, to, within, value, by, limits }), members);
        Ok(())
    }

    fn four(&mut self) -> Result<[Slot; 4], String> {
        let mut slots = [0; 4];
        for slot in &mut slots {
            self.tokens.expect(',')?;
            *slot = self.source(Type::B32, false)?;
        }
        Ok(slots)
    }

    /// Reads `vote.sync.ballot.b32 to, predicate, members`, or a vote whose result is a predicate.
    pub fn vote(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        const KNOWN: [(&str, (Type, Voted)); 4] = [
            ("ballot", (Type::B32, |_, holding| holding as u64)),
            ("all", (Type::Pred, |members, holding| (members == holding) as u64)),
            ("any", (Type::Pred, |_, holding| (holding != 0) as u64)),
            ("uni", (Type::Pred, |members, holding| (holding == 0 || members == holding) as u64)),
        ];
        let found = opcode.one_of(&KNOWN).filter(|_| opcode.takes("sync"));
        let (ty, function) = found.filter(|(ty, _)| opcode.types == [*ty]).ok_or("it names no known vote")?;
        opcode.finish(1)?;
        let to = self.destination(ty, false)?;
        self.tokens.expect(',')?;
        let predicate = self.source(Type::Pred, false)?;
        self.tokens.expect(',')?;
        let members = self.source(Type::B32, false)?;
        self.emit_warp(WarpKind::Vote { function, to, predicate }, members);
        Ok(())
    }

    /// Reads `redux.sync.add.s32 to, value, members`.
    pub fn reduce(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let ty = opcode.ty()?;
        let name = ["add", "min", "max", "and", "or", "xor"].into_iter().find(|name| opcode.takes(name));
        let name = name.filter(|_| opcode.takes("sync") && ty.bytes() == 4).ok_or("it names no known reduction")?;
        let function = if ty.is_bits() { compute::replaces(name, ty) } else { compute::combine(name, ty) };
        let function = function.filter(|_| !ty.is_float()).ok_or("it is not defined for this type")?;
        opcode.finish(1)?;
        let to = self.destination(ty, false)?;
        self.tokens.expect(',')?;
        let value = self.source(ty, false)?;
        self.tokens.expect(',')?;
        let members = self.source(Type::B32, false)?;
        self.emit_warp(WarpKind::Reduce { function, to, value }, members);
        Ok(())
    }

    /// Reads `activemask`. Lanes run one after the other, so each is the only active lane.
    pub fn active_mask(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        opcode.finish(1)?;
        let to = self.destination(Type::B32, false)?;
        let which = Special::LaneMask(LaneMask::Equal);
        self.emit(Op::Special { which, to });
        Ok(())
    }
}

/// The lowest and the highest lane that a shuffle of this lane may read, by its operand of limits.
fn limits_of(lane: u32, limits: u32) -> (u32, u32) {
    let segment = limits >> 8 & 31;
    let least = lane & segment;
    (least, least | limits & 31 & !segment)
}

fn up(lane: u32, by: u32, limits: u32) -> (u32, bool) {
    let (_, most) = limits_of(lane, limits);
    let from = i64::from(lane) - i64::from(by & 31);
    if from >= i64::from(most) { (from as u32, true) } else { (lane, false) }
}

fn down(lane: u32, by: u32, limits: u32) -> (u32, bool) {
    let (_, most) = limits_of(lane, limits);
    let from = lane + (by & 31);
    if from <= most { (from, true) } else { (lane, false) }
}

fn butterfly(lane: u32, by: u32, limits: u32) -> (u32, bool) {
    let (_, most) = limits_of(lane, limits);
    let from = lane ^ (by & 31);
    if from <= most { (from, true) } else { (lane, false) }
}

fn index(lane: u32, by: u32, limits: u32) -> (u32, bool) {
    let segment = limits >> 8 & 31;
    let (least, most) = limits_of(lane, limits);
    let from = least | by & 31 & !segment;
    if from <= most { (from, true) } else { (lane, false) }
}
