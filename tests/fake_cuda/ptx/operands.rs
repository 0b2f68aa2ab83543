//! Operands: registers, constants, addresses, vectors; and instructions that are functions of their operands.

use super::body::{Body, Symbol};
use super::compute::{self, Compute};
use super::declare::literal;
use super::lex::Token;
use super::opcode::Opcode;
use super::program::{Carry, LaneMask, Op, Place, Slot, Special};
use super::types::{Space, Type};

impl<'t> Body<'_, 't> {
    /// Reads an operand that is read: a register or a constant.
    pub fn source(&mut self, ty: Type, wider: bool) -> Result<Slot, String> {
        if let Some(bits) = literal(ty, self.tokens)? {
            return Ok(self.constant(bits));
        }
        if self.tokens.takes('!') {
            let of = self.source(Type::Pred, false)?;
            return self.negated(ty, of);
        }
        let name = self.tokens.word()?;
        match self.lookup(name) {
            Some(Symbol::Register(slot, of)) if ty.takes(of) || wider && ty.takes_wider(of) => Ok(slot),
            Some(Symbol::Register(_, of)) => Err(format!("{name} is of type {of:?} where {ty:?} belongs")),
            Some(_) => Err(format!("{name} is no register")),
            None => self.special(name, ty),
        }
    }

    fn negated(&mut self, ty: Type, of: Slot) -> Result<Slot, String> {
        if ty != Type::Pred {
            return Err("only a predicate is negated".into());
        }
        let (to, none) = (self.scratch(), self.constant(0));
        self.emit(Op::Compute { function: |a, _, _, _| u64::from(a == 0), to, of: [of, none, none, none] });
        Ok(to)
    }

    /// Reads an operand that is written: a register, or `_` for none.
    pub fn destination(&mut self, ty: Type, wider: bool) -> Result<Slot, String> {
        let name = self.tokens.word()?;
        match self.lookup(name) {
            _ if name == "_" => Ok(self.scratch()),
            Some(Symbol::Register(slot, of)) if ty.takes(of) || wider && ty.takes_wider(of) => Ok(slot),
            Some(Symbol::Register(_, of)) => Err(format!("{name} is of type {of:?} where {ty:?} belongs")),
            _ => Err(format!("{name} is no register")),
        }
    }

    /// Reads a second destination behind a bar, if there is one.
    pub fn second_predicate(&mut self) -> Result<Option<Slot>, String> {
        match self.tokens.takes('|') {
            true => self.destination(Type::Pred, false).map(Some),
            false => Ok(None),
        }
    }

    /// Emits a read of a special register; returns the slot with its value.
    fn special(&mut self, name: &str, ty: Type) -> Result<Slot, String> {
        let (which, of) = special(name).ok_or(format!("{name} is not known"))?;
        if !ty.takes(of) {
            return Err(format!("{name} is of type {of:?} where {ty:?} belongs"));
        }
        let to = self.scratch();
        self.emit(Op::Special { which, to });
        Ok(to)
    }

    /// Reads an address: `[register+4]`, `[variable+4]` or `[variable]`.
    pub fn place(&mut self, space: Space) -> Result<Place, String> {
        self.tokens.expect('[')?;
        let (base, offset) = match self.tokens.peek() {
            Some(Token::Word(name)) => {
                self.tokens.next()?;
                let base = self.base(name, space)?;
                let offset = if self.tokens.takes('+') { self.tokens.number()? } else { self.minus()? };
                (base, offset)
            }
            _ => (self.constant(0), self.tokens.number()?),
        };
        self.tokens.expect(']')?;
        let offset = i32::try_from(offset).map_err(|_| format!("an offset of {offset}"))?;
        Ok(Place { space, base, offset })
    }

    fn minus(&mut self) -> Result<i128, String> {
        if self.tokens.peek() == Some(Token::Mark('-')) { self.tokens.number() } else { Ok(0) }
    }

    fn base(&mut self, name: &str, space: Space) -> Result<Slot, String> {
        let symbol = self.lookup(name).ok_or(format!("{name} is not known"))?;
        let of = match symbol {
            Symbol::Register(slot, ty) if ty.takes(Type::B64) || ty.takes(Type::B32) => return Ok(slot),
            Symbol::Param(..) => Space::Param,
            Symbol::Local(_) => Space::Local,
            Symbol::Variable(of, _) => of,
            _ => return Err(format!("{name} is no address")),
        };
        match of == space || (of, space) == (Space::Global, Space::Generic) {
            true => self.address(symbol).ok_or(format!("{name} is no address")),
            false => Err(format!("{name} is in {of:?} memory, the instruction's is {space:?}")),
        }
    }

    /// The slot that holds a variable's address in its space; `None` for a name that is no variable.
    pub fn address(&mut self, symbol: Symbol) -> Option<Slot> {
        match symbol {
            Symbol::Param(offset, _) => Some(self.constant(offset as u64)),
            Symbol::Variable(_, address) => Some(self.constant(address)),
            Symbol::Local(offset) => {
                let to = self.scratch();
                self.emit(Op::LocalAddress { offset, to });
                Some(to)
            }
            _ => None,
        }
    }

    /// Reads the parts of `{a, b}`, or one operand without braces.
    pub fn parts<T>(&mut self, mut part: impl FnMut(&mut Self) -> Result<T, String>) -> Result<Vec<T>, String> {
        if !self.tokens.takes('{') {
            return Ok(vec![part(self)?]);
        }
        let mut parts = vec![part(self)?];
        while self.comma() {
            parts.push(part(self)?);
        }
        self.tokens.expect('}')?;
        Ok(parts)
    }

    /// Reads an instruction that is a function of its operands, or that does nothing in the interpreter.
    pub fn compute(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        const NOTHING: [&str; 6] = ["membar", "fence", "griddepcontrol", "nanosleep", "prefetch", "prefetchu"];
        if NOTHING.contains(&opcode.name) {
            while !self.is_at_end() {
                self.tokens.next()?;
            }
            return Ok(());
        }
        let with_carry = ["addc", "subc", "madc"].contains(&opcode.name);
        if with_carry || ["add", "sub", "mad"].contains(&opcode.name) && opcode.has("cc") {
            return self.carry(opcode, with_carry);
        }
        match compute::select(opcode)? {
            Some(compute) => self.function(opcode, &compute),
            None => Err("the interpreter does not know this instruction".into()),
        }
    }

    fn function(&mut self, opcode: &Opcode<'_>, compute: &Compute) -> Result<(), String> {
        let to = self.destination(compute.to, compute.wider)?;
        let second = if opcode.name == "setp" { self.second_predicate()? } else { None };
        let mut constant = compute.constant;
        let mut of = Vec::new();
        for (index, ty) in compute.of.iter().enumerate() {
            self.tokens.expect(',')?;
            if index == 2 && opcode.name == "setp" && self.tokens.takes('!') {
                constant = constant.map(|how| how | compute::NEGATED);
            }
            of.push(self.source(*ty, compute.wider)?);
        }
        let Some(second) = second else {
            self.emit_function(compute, to, &of, constant);
            return Ok(());
        };
        // Each of the two functions reads operands that the other one may overwrite.
        let first = self.scratch();
        self.emit_function(compute, first, &of, constant);
        self.emit_function(compute, second, &of, constant.map(compute::opposite));
        self.copy(first, to);
        Ok(())
    }

    fn emit_function(&mut self, compute: &Compute, to: Slot, of: &[Slot], constant: Option<u64>) {
        let behind = constant.map(|bits| self.constant(bits));
        let none = self.constant(0);
        let mut all = of.iter().copied().chain(behind);
        let of = [(); 4].map(|()| all.next().unwrap_or(none));
        self.emit(Op::Compute { function: compute.function, to, of });
    }

    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.emit(Op::Compute { function: |a, _, _, _| a, to, of: [from; 4] });
    }

    fn carry(&mut self, opcode: &mut Opcode<'_>, reads: bool) -> Result<(), String> {
        let ty = opcode.ty()?;
        let writes = opcode.takes("cc");
        let (function, operands) = compute::carry(opcode, ty).ok_or("it is not defined for this type")?;
        opcode.finish(1)?;
        let to = self.destination(ty, false)?;
        let mut of = [self.constant(0); 3];
        for operand in &mut of[..operands] {
            self.tokens.expect(',')?;
            *operand = self.source(ty, false)?;
        }
        self.emit(Op::Carry(Box::new(Carry { function, to, of, reads, writes })));
        Ok(())
    }
}

fn special(name: &str) -> Option<(Special, Type)> {
    let (base, axis) = match name.rsplit_once('.') {
        Some((base, axis)) => (base, ["x", "y", "z"].iter().position(|known| *known == axis)?),
        None => (name, 3),
    };
    let which = match (base, axis) {
        ("%tid", 0..3) => Special::Thread(axis),
        ("%ctaid", 0..3) => Special::Block(axis),
        ("%ntid", 0..3) => Special::Threads(axis),
        ("%nctaid", 0..3) => Special::Blocks(axis),
        ("%laneid", 3) => Special::Lane,
        ("%warpid", 3) => Special::Warp,
        ("%nwarpid", 3) => Special::Warps,
        ("%lanemask_eq", 3) => Special::LaneMask(LaneMask::Equal),
        ("%lanemask_lt", 3) => Special::LaneMask(LaneMask::Less),
        ("%lanemask_le", 3) => Special::LaneMask(LaneMask::LessOrEqual),
        ("%lanemask_gt", 3) => Special::LaneMask(LaneMask::Greater),
        ("%lanemask_ge", 3) => Special::LaneMask(LaneMask::GreaterOrEqual),
        ("%dynamic_smem_size", 3) => Special::DynamicShared,
        ("%clock", 3) => Special::Clock,
        ("%clock64" | "%globaltimer", 3) => return Some((Special::Clock, Type::U64)),
        ("%smid", 3) => Special::Always(0),
        ("%nsmid", 3) => Special::Always(1),
        ("WARP_SZ", 3) => Special::Always(32),
        _ => return None,
    };
    Some((which, Type::U32))
}
