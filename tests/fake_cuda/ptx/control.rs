//! Branches, calls, ends and barriers.

use super::body::{Body, Symbol};
use super::lex::Token;
use super::module::Global;
use super::opcode::Opcode;
use super::program::{Barrier, Call, Holder, Op, Pass, Reduce, Slot};
use super::types::Type;

impl<'t> Body<'_, 't> {
    /// Reads `bra label`, possibly under a predicate or its negation.
    pub fn branch_operands(&mut self, opcode: &mut Opcode<'t>, when: Option<(Slot, bool)>) -> Result<(), String> {
        opcode.takes("uni");
        opcode.finish(0)?;
        let label = self.tokens.word()?;
        let op = match when {
            None => Op::Jump(0),
            Some((predicate, negated)) => Op::Branch { predicate, unless: negated, target: 0 },
        };
        self.emit_jump(op, label);
        Ok(())
    }

    /// Reads `brx.idx index, list`.
    pub fn branch_by_table(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        opcode.takes("uni");
        let is_known = opcode.takes("idx");
        opcode.finish(0)?;
        let index = self.source(Type::U32, false)?;
        self.tokens.expect(',')?;
        let name = self.tokens.word()?;
        let Some(Symbol::Targets(list)) = self.lookup(name).filter(|_| is_known) else {
            return Err(format!("{name} is no list of labels"));
        };
        let labels = self.targets[list].clone();
        for (which, label) in labels.iter().enumerate() {
            self.jump_later(which, label);
        }
        self.emit(Op::Table { index, targets: vec![0; labels.len()].into() });
        Ok(())
    }

    /// Reads `call (results), function, (arguments)`.
    pub fn call(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        opcode.takes("uni");
        opcode.finish(0)?;
        let results = if self.tokens.peek() == Some(Token::Mark('(')) { self.actuals_ahead()? } else { Vec::new() };
        if !results.is_empty() {
            self.tokens.expect(',')?;
        }
        let name = self.tokens.word()?;
        let Some(&Global::Function(function)) = self.module.names.get(name) else {
            return Err(format!("{name} is no function"));
        };
        let of = |formals: &[super::declare::Formal<'_>]| formals.iter().map(|f| (f.ty, f.holder, f.bytes)).collect();
        let signature = &self.module.signatures[function];
        let (to, from): (Vec<Formal>, Vec<Formal>) = (of(&signature.results), of(&signature.arguments));
        let results = self.results(&results, &to)?;
        let arguments = if self.comma() { self.arguments(&from)? } else { Vec::new() };
        match (arguments.len(), results.len()) == (from.len(), to.len()) {
            true => self.emit(Op::Call(Box::new(Call { function, arguments, results }))),
            false => return Err(format!("{name} has other parameters")),
        }
        Ok(())
    }

    /// The names of results; they are matched once the function's name is known.
    fn actuals_ahead(&mut self) -> Result<Vec<&'t str>, String> {
        self.tokens.expect('(')?;
        let mut names = vec![self.tokens.word()?];
        while self.comma() {
            names.push(self.tokens.word()?);
        }
        self.tokens.expect(')')?;
        Ok(names)
    }

    fn results(&mut self, names: &[&str], formals: &[Formal]) -> Result<Vec<Pass>, String> {
        let pass = |(name, &(ty, callee, bytes)): (&&str, &Formal)| match self.lookup(name) {
            Some(Symbol::Param(offset, size)) if size == bytes => {
                Ok(Pass { caller: Holder::Param(offset), callee, bytes })
            }
            Some(Symbol::Register(slot, of)) if ty.takes(of) => Ok(Pass { caller: Holder::Slot(slot), callee, bytes }),
            _ => Err(format!("{name} does not take the result")),
        };
        names.iter().zip(formals).map(pass).collect::<Result<_, _>>().and_then(|passed: Vec<_>| {
            if passed.len() == names.len() { Ok(passed) } else { Err("the function has fewer results".into()) }
        })
    }

    fn arguments(&mut self, formals: &[Formal]) -> Result<Vec<Pass>, String> {
        self.tokens.expect('(')?;
        let mut passed = Vec::new();
        while !self.tokens.takes(')') {
            if !passed.is_empty() {
                self.tokens.expect(',')?;
            }
            let formal = formals.get(passed.len()).ok_or("the function has fewer parameters")?;
            passed.push(self.argument(formal)?);
        }
        Ok(passed)
    }

    fn argument(&mut self, &(ty, callee, bytes): &Formal) -> Result<Pass, String> {
        let symbol = match self.tokens.peek() {
            Some(Token::Word(name)) => self.lookup(name),
            _ => None,
        };
        let caller = match symbol {
            Some(Symbol::Param(offset, size)) if size == bytes => {
                self.tokens.next()?;
                Holder::Param(offset)
            }
            _ => Holder::Slot(self.source(ty, false)?),
        };
        Ok(Pass { caller, callee, bytes })
    }

    pub fn end(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        if opcode.name == "ret" {
            opcode.takes("uni");
        }
        opcode.finish(0)?;
        self.emit(match opcode.name {
            "ret" => Op::Return,
            "exit" => Op::Exit,
            _ => Op::Trap,
        });
        Ok(())
    }

    /// Reads `bar.sync`, `barrier.sync`, `bar.warp.sync` or `bar.red`.
    pub fn barrier(&mut self, opcode: &mut Opcode<'t>) -> Result<(), String> {
        opcode.ignore(&["aligned", "cta"]);
        if opcode.takes("warp") {
            return self.warp_barrier(opcode);
        }
        let reduces = opcode.takes("red");
        if !reduces && !opcode.takes("sync") {
            return Err("only .sync and .red are known".into());
        }
        let how = if reduces { Some(reduction(opcode)?) } else { None };
        opcode.finish(usize::from(reduces))?;
        let to = match how {
            Some((ty, _)) => Some(self.destination(ty, false)?),
            None => None,
        };
        if to.is_some() {
            self.tokens.expect(',')?;
        }
        let number = self.source(Type::U32, false)?;
        let mut rest = Vec::new();
        while self.comma() {
            let is_last = how.is_some() && self.tokens.ahead().nth(1) == Some(Token::Mark(';'));
            rest.push(self.source(if is_last { Type::Pred } else { Type::U32 }, false)?);
        }
        let reduce = match (how, to) {
            (Some((_, function)), Some(to)) => {
                let predicate = rest.pop().ok_or("it has no predicate")?;
                Some(Reduce { function, predicate, to })
            }
            _ => None,
        };
        self.emit(Op::Barrier(Box::new(Barrier { number, threads: rest.first().copied(), reduce })));
        Ok(())
    }
}

/// The type, place and bytes of a function's parameter or result.
type Formal = (Type, Holder, usize);

type Counted = fn(u64, u64) -> u64;

fn reduction(opcode: &mut Opcode<'_>) -> Result<(Type, Counted), String> {
    let (popc, and, or): (Counted, Counted, Counted) =
        (|holding, _| holding, |holding, all| u64::from(holding == all), |holding, _| u64::from(holding > 0));
    let found = opcode.one_of(&[("popc", (Type::U32, popc)), ("and", (Type::Pred, and)), ("or", (Type::Pred, or))]);
    found.filter(|(ty, _)| opcode.types == [*ty]).ok_or("it names no known reduction".into())
}
