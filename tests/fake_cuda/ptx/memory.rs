//! Loads, stores and atomic operations; moves of values and addresses.

use super::body::{Body, Symbol};
use super::compute;
use super::lex::Token;
use super::opcode::Opcode;
use super::program::{Atomic, Op, Slot};
use super::types::{Space, Type};

/// Modifiers for caches and memory order, which are ignored: one thread runs at a time, on one memory.
const CACHES: [&str; 22] = [
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "volatile",
    "weak",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "cta",
    "cluster",
    "gpu",
    "sys",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
];

impl<'t> Body<'_, 't> {
    pub fn load(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let (space, count, ty) = access(opcode)?;
        let parts = self.parts(|body| body.destination(ty, true))?;
        self.tokens.expect(',')?;
        let place = self.place(space)?;
        let to = vector(&parts, count)?;
        self.emit(Op::Load { place, bytes: ty.bytes() as u8, signed: ty.is_signed(), count: count as u8, to });
        Ok(())
    }

    pub fn store(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let (space, count, ty) = access(opcode)?;
        let place = self.place(space)?;
        self.tokens.expect(',')?;
        let parts = self.parts(|body| body.source(ty, true))?;
        let of = vector(&parts, count)?;
        self.emit(Op::Store { place, bytes: ty.bytes() as u8, count: count as u8, of });
        Ok(())
    }

    /// Reads `atom`, or `red`, which has no result.
    pub fn atomic(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        opcode.ignore(&CACHES);
        opcode.takes("noftz");
        let space = opcode.find(Space::named).unwrap_or(Space::Generic);
        let ty = opcode.ty()?;
        let names = ["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"];
        let name = *names.iter().find(|name| opcode.takes(name)).ok_or("it names no operation")?;
        let function =
            (if ty.is_bits() || ["inc", "dec"].contains(&name) { compute::replaces(name, ty) } else { None })
                .or_else(|| if ty.is_integer() { compute::combine(name, ty) } else { None })
                .or_else(|| if name == "add" { compute::adds(ty) } else { None });
        let function = function.ok_or("it is not defined for this type")?;
        opcode.finish(1)?;
        let to = if opcode.name == "atom" { self.destination(ty, false)? } else { self.scratch() };
        if opcode.name == "atom" {
            self.tokens.expect(',')?;
        }
        let place = self.place(space)?;
        let mut of = [self.constant(0); 2];
        for operand in &mut of[..if name == "cas" { 2 } else { 1 }] {
            self.tokens.expect(',')?;
            *operand = self.source(ty, false)?;
        }
        self.emit(Op::Atomic(Box::new(Atomic { function, place, bytes: ty.bytes() as u8, to, of })));
        Ok(())
    }

    /// Reads `mov`: of a register, a constant or an address; of parts into a word; or of a word into parts.
    pub fn move_or_pack(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let ty = opcode.ty()?;
        opcode.finish(1)?;
        if self.tokens.peek() == Some(Token::Mark('{')) {
            return self.unpack(ty);
        }
        let to = self.destination(ty, false)?;
        self.tokens.expect(',')?;
        if self.tokens.peek() == Some(Token::Mark('{')) {
            return self.pack(ty, to);
        }
        let from = self.value_or_address(ty)?;
        self.copy(from, to);
        Ok(())
    }

    fn value_or_address(&mut self, ty: Type) -> Result<Slot, String> {
        let symbol = match self.tokens.peek() {
            Some(Token::Word(name)) => self.lookup(name),
            _ => None,
        };
        match symbol {
            None | Some(Symbol::Register(..)) => self.source(ty, false),
            Some(symbol) => self.moved_address(ty, symbol),
        }
    }

    /// The address of a variable, plus an offset if there is one. An address in shared memory also fits in 32 bits.
    fn moved_address(&mut self, ty: Type, symbol: Symbol) -> Result<Slot, String> {
        let name = self.tokens.word()?;
        let is_short = matches!(symbol, Symbol::Variable(Space::Shared, _) | Symbol::Local(_));
        if !(ty.takes(Type::B64) || is_short && ty.takes(Type::B32)) || ty.is_float() {
            return Err(format!("{name} is an address where {ty:?} belongs"));
        }
        let base = self.address(symbol).ok_or(format!("{name} is no address"))?;
        if !self.tokens.takes('+') {
            return Ok(base);
        }
        let offset = self.tokens.count()? as u64;
        let (offset, none, to) = (self.constant(offset), self.constant(0), self.scratch());
        self.emit(Op::Compute { function: |a, b, _, _| a.wrapping_add(b), to, of: [base, offset, none, none] });
        Ok(to)
    }

    fn pack(&mut self, ty: Type, to: Slot) -> Result<(), String> {
        let count = self.parts_ahead();
        let part = part_of(ty, count).ok_or(format!("{count} parts of {ty:?}"))?;
        let parts = self.parts(|body| body.source(part, false))?;
        let function = compute::pack(8 * part.bytes() as u32).expect("parts have a size that words have parts of");
        let of = [0, 1, 2, 3].map(|index| parts.get(index).copied().unwrap_or_else(|| self.constant(0)));
        self.emit(Op::Compute { function, to, of });
        Ok(())
    }

    fn unpack(&mut self, ty: Type) -> Result<(), String> {
        let count = self.parts_ahead();
        let part = part_of(ty, count).ok_or(format!("{count} parts of {ty:?}"))?;
        let parts = self.parts(|body| body.destination(part, false))?;
        self.tokens.expect(',')?;
        let word = self.source(ty, false)?;
        let bits = 8 * part.bytes() as u64;
        let function = compute::unpack(bits as u32).expect("parts have a size that words have parts of");
        for (index, to) in parts.into_iter().enumerate() {
            let (start, none) = (self.constant(bits * index as u64), self.constant(0));
            self.emit(Op::Compute { function, to, of: [word, start, none, none] });
        }
        Ok(())
    }

    /// The number of parts in the braces ahead.
    fn parts_ahead(&self) -> usize {
        let parts = self.tokens.ahead().take_while(|token| *token != Token::Mark('}'));
        1 + parts.filter(|token| *token == Token::Mark(',')).count()
    }

    /// Reads `cvta.shared.u64`, which makes a generic address, or `cvta.to.shared.u64`, which takes one.
    pub fn convert_address(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        let ty = opcode.ty()?;
        let back = opcode.takes("to");
        let space = opcode.find(Space::named).ok_or("it names no space")?;
        opcode.finish(1)?;
        if !ty.takes(Type::U64) {
            return Err("addresses are u64".into());
        }
        let to = self.destination(ty, false)?;
        self.tokens.expect(',')?;
        let from = self.value_or_address(ty)?;
        let window = if back { space.window().wrapping_neg() } else { space.window() };
        let (window, none) = (self.constant(window), self.constant(0));
        self.emit(Op::Compute { function: |a, b, _, _| a.wrapping_add(b), to, of: [from, window, none, none] });
        Ok(())
    }
}

/// The space, the number of elements and their type that a load or store names.
fn access(opcode: &mut Opcode<'_>) -> Result<(Space, usize, Type), String> {
    opcode.ignore(&CACHES);
    let space = opcode.find(Space::named).unwrap_or(Space::Generic);
    let count = opcode.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
    let ty = opcode.ty()?;
    opcode.finish(1)?;
    match ty == Type::Pred || count * ty.bytes() > 16 {
        true => Err("the access is not of 1 to 16 bytes".into()),
        false => Ok((space, count, ty)),
    }
}

fn vector(parts: &[Slot], count: usize) -> Result<[Slot; 4], String> {
    match parts.len() == count {
        true => Ok([0, 1, 2, 3].map(|index| parts[index.min(count - 1)])),
        false => Err(format!("{} registers in place of {count}", parts.len())),
    }
}

fn part_of(ty: Type, count: usize) -> Option<Type> {
    match (ty.bytes() / count.max(1), count) {
        (1, 2 | 4) => Some(Type::B8),
        (2, 2 | 4) => Some(Type::B16),
        (4, 2) => Some(Type::B32),
        _ => None,
    }
}
