//! The body of a function: scopes with names in them, statements, labels.

use std::collections::HashMap;

use super::declare::{Declared, Formal};
use super::lex::{Token, Tokens};
use super::module::{Global, Module};
use super::opcode::Opcode;
use super::program::{Function, Holder, Op, POISON, Slot};
use super::types::{Space, Type};

/// The meaning of a name in a function.
#[derive(Clone, Copy)]
pub enum Symbol {
    Register(Slot, Type),
    /// An offset among the parameters, and a size.
    Param(usize, usize),
    /// An offset in the function's local memory.
    Local(u64),
    Variable(Space, u64),
    /// The index of a list of targets.
    Targets(usize),
}

/// A function while it is read.
pub struct Body<'m, 't> {
    pub tokens: &'m mut Tokens<'t>,
    pub module: &'m mut Module<'t>,
    slots: Vec<u64>,
    constants: HashMap<u64, Slot>,
    scopes: Vec<Scope<'t>>,
    /// Lists of labels for `brx.idx`.
    pub targets: Vec<Vec<&'t str>>,
    param_bytes: usize,
    local_bytes: usize,
}

#[derive(Default)]
struct Scope<'t> {
    names: HashMap<String, Symbol>,
    labels: HashMap<&'t str, usize>,
    /// Jumps to labels that were not found yet: the instruction, the index of its target, the label and the line.
    jumps: Vec<(usize, usize, &'t str, usize)>,
}

impl<'m, 't> Body<'m, 't> {
    /// Reads the body of a function whose signature the module has.
    pub fn read(module: &'m mut Module<'t>, tokens: &'m mut Tokens<'t>, function: usize) -> Result<(), String> {
        let start = module.code.len();
        let mut body = Self {
            tokens,
            module,
            slots: Vec::new(),
            constants: HashMap::new(),
            scopes: vec![Scope::default()],
            targets: Vec::new(),
            param_bytes: 0,
            local_bytes: 0,
        };
        body.declare_formals(function)?;
        body.tokens.expect('{')?;
        while !body.scopes.is_empty() {
            body.statement()?;
        }
        body.emit(Op::Return);
        let Self { module, slots, param_bytes, local_bytes, .. } = body;
        let name = module.signatures[function].name.to_owned();
        let local_bytes = local_bytes.next_multiple_of(16);
        let param_bytes = param_bytes.next_multiple_of(16);
        module.bodies[function] = Some(Function { name, start, slots, param_bytes, local_bytes });
        Ok(())
    }

    fn declare_formals(&mut self, function: usize) -> Result<(), String> {
        let symbol = |formal: &Formal<'t>| {
            let symbol = match formal.holder {
                Holder::Slot(slot) => Symbol::Register(slot, formal.ty),
                Holder::Param(offset) => Symbol::Param(offset, formal.bytes),
            };
            (formal.name, symbol, formal.param().map_or(0, |_| formal.range().end))
        };
        let signature = &self.module.signatures[function];
        let formals: Vec<_> = signature.results.iter().chain(&signature.arguments).map(symbol).collect();
        for (name, symbol, end) in formals {
            self.param_bytes = self.param_bytes.max(end);
            if let Symbol::Register(..) = symbol {
                self.slots.push(POISON);
            }
            self.name(name.to_owned(), symbol)?;
        }
        Ok(())
    }

    fn scope(&mut self) -> &mut Scope<'t> {
        self.scopes.last_mut().expect("the function's own scope is open")
    }

    fn name(&mut self, name: String, symbol: Symbol) -> Result<(), String> {
        match self.scope().names.insert(name.clone(), symbol) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is declared twice")),
        }
    }

    /// The meaning of a name in the innermost scope that declares it.
    pub fn lookup(&self, name: &str) -> Option<Symbol> {
        let local = self.scopes.iter().rev().find_map(|scope| scope.names.get(name)).copied();
        local.or_else(|| match self.module.names.get(name) {
            Some(Global::Variable(space, address)) => Some(Symbol::Variable(*space, *address)),
            _ => None,
        })
    }

    /// The slot of a constant.
    pub fn constant(&mut self, bits: u64) -> Slot {
        let slots = &mut self.slots;
        *self.constants.entry(bits).or_insert_with(|| {
            slots.push(bits);
            slots.len() as Slot - 1
        })
    }

    /// A new slot for an intermediate value.
    pub fn scratch(&mut self) -> Slot {
        self.slots.push(POISON);
        self.slots.len() as Slot - 1
    }

    pub fn emit(&mut self, op: Op) {
        self.module.code.push(op);
        self.module.lines.push(self.tokens.line());
    }

    /// Emits a jump, or a branch, to a label.
    pub fn emit_jump(&mut self, op: Op, label: &'t str) {
        self.jump_later(0, label);
        self.emit(op);
    }

    /// Makes a label the target `target` of the next instruction; it is set when the label is found.
    pub fn jump_later(&mut self, target: usize, label: &'t str) {
        let jump = (self.module.code.len(), target, label, self.tokens.line());
        self.scope().jumps.push(jump);
    }

    /// Reads one statement: the border of a scope, a declaration, a label, or an instruction.
    fn statement(&mut self) -> Result<(), String> {
        if self.tokens.takes('{') {
            self.scopes.push(Scope::default());
            return Ok(());
        }
        if self.tokens.takes('}') {
            return self.close();
        }
        if self.tokens.takes(';') {
            return Ok(());
        }
        if self.tokens.takes('@') {
            return self.guarded();
        }
        let word = self.tokens.word()?;
        if self.tokens.takes(':') {
            return self.label(word);
        }
        match word.starts_with('.') {
            true => self.directive(word),
            false => self.instruction(word),
        }
    }

    /// Ends a scope: sets the jumps to its labels, and leaves the others to the scope around it.
    fn close(&mut self) -> Result<(), String> {
        let scope = self.scopes.pop().expect("the function's own scope is open");
        for (op, target, label, line) in scope.jumps {
            match (scope.labels.get(label), self.scopes.last_mut()) {
                (Some(&place), _) => set_target(&mut self.module.code[op], target, place),
                (None, Some(outer)) => outer.jumps.push((op, target, label, line)),
                (None, None) => return Err(format!("the label {label} of line {line} is not there")),
            }
        }
        Ok(())
    }

    fn label(&mut self, label: &'t str) -> Result<(), String> {
        if self.tokens.takes_word(".branchtargets") {
            return self.branch_targets(label);
        }
        let place = self.module.code.len();
        match self.scope().labels.insert(label, place) {
            None => Ok(()),
            Some(_) => Err(format!("the label {label} is there twice")),
        }
    }

    fn branch_targets(&mut self, name: &'t str) -> Result<(), String> {
        let mut labels = vec![self.tokens.word()?];
        while self.tokens.takes(',') {
            labels.push(self.tokens.word()?);
        }
        self.targets.push(labels);
        self.tokens.expect(';')?;
        self.name(name.to_owned(), Symbol::Targets(self.targets.len() - 1))
    }

    fn directive(&mut self, directive: &str) -> Result<(), String> {
        match directive {
            ".loc" | ".file" => {
                self.tokens.skip_line();
                return Ok(());
            }
            ".pragma" => drop(self.tokens.next()?),
            ".reg" => self.registers()?,
            ".local" | ".param" => self.memory(directive)?,
            ".shared" | ".global" | ".const" => {
                let (name, global) = self.module.variable(directive, self.tokens)?;
                let Global::Variable(space, address) = global else { unreachable!("a variable") };
                return self.name(name.to_owned(), Symbol::Variable(space, address));
            }
            other => return Err(format!("{other} is not known here")),
        }
        self.tokens.expect(';')
    }

    /// Reads a declaration of registers: `.reg .b32 %a, %b<10>;`
    fn registers(&mut self) -> Result<(), String> {
        let word = self.tokens.word()?;
        let ty = word.strip_prefix('.').and_then(Type::named).ok_or(format!("{word} where a type belongs"))?;
        loop {
            let name = self.tokens.word()?;
            if self.tokens.takes('<') {
                let count = self.tokens.count()?;
                self.tokens.expect('>')?;
                for index in 0..count {
                    self.register(format!("{name}{index}"), ty)?;
                }
            } else {
                self.register(name.to_owned(), ty)?;
            }
            if !self.tokens.takes(',') {
                return Ok(());
            }
        }
    }

    fn register(&mut self, name: String, ty: Type) -> Result<(), String> {
        let slot = self.scratch();
        self.name(name, Symbol::Register(slot, ty))
    }

    /// Reads a declaration of local memory, or of arguments and results of calls.
    fn memory(&mut self, directive: &str) -> Result<(), String> {
        let declared = Declared::read(self.tokens)?;
        let symbol = match directive {
            ".local" => Symbol::Local(declared.place(&mut self.local_bytes)? as u64),
            _ => Symbol::Param(declared.place(&mut self.param_bytes)?, declared.bytes()?),
        };
        self.name(declared.name.to_owned(), symbol)
    }

    /// Reads an instruction behind `@p` or `@!p`: as a branch past it, unless it is a branch itself.
    fn guarded(&mut self) -> Result<(), String> {
        let negated = self.tokens.takes('!');
        let predicate = self.register_of(Type::Pred)?;
        let word = self.tokens.word()?;
        if Opcode::of(word).name == "bra" {
            return self.branch(word, Some((predicate, negated)));
        }
        let branch = self.module.code.len();
        self.emit(Op::Branch { predicate, unless: !negated, target: 0 });
        self.instruction(word)?;
        let behind = self.module.code.len();
        set_target(&mut self.module.code[branch], 0, behind);
        Ok(())
    }

    fn register_of(&mut self, ty: Type) -> Result<Slot, String> {
        let name = self.tokens.word()?;
        match self.lookup(name) {
            Some(Symbol::Register(slot, of)) if of == ty => Ok(slot),
            _ => Err(format!("{name} is no register of type {ty:?}")),
        }
    }

    /// Reads one instruction up to its semicolon; an error names its opcode.
    fn instruction(&mut self, opcode: &'t str) -> Result<(), String> {
        let done = self.operation(opcode).and_then(|()| self.tokens.expect(';'));
        done.map_err(|what| format!("{opcode}: {what}"))
    }

    fn operation(&mut self, text: &'t str) -> Result<(), String> {
        let mut opcode = Opcode::of(text);
        match opcode.name {
            "ld" | "ldu" => self.load(&mut opcode),
            "st" => self.store(&mut opcode),
            "atom" | "red" => self.atomic(&mut opcode),
            "mov" => self.move_or_pack(&mut opcode),
            "cvta" => self.convert_address(&mut opcode),
            "bra" => self.branch_operands(&mut opcode, None),
            "brx" => self.branch_by_table(&mut opcode),
            "call" => self.call(&mut opcode),
            "ret" | "exit" | "trap" => self.end(&mut opcode),
            "bar" | "barrier" => self.barrier(&mut opcode),
            "shfl" => self.shuffle(&mut opcode),
            "vote" => self.vote(&mut opcode),
            "redux" => self.reduce(&mut opcode),
            "activemask" => self.active_mask(&mut opcode),
            _ => self.compute(&mut opcode),
        }
    }

    /// Reads a branch with a predicate in front of it.
    fn branch(&mut self, text: &'t str, predicate: Option<(Slot, bool)>) -> Result<(), String> {
        let done = self.branch_operands(&mut Opcode::of(text), predicate).and_then(|()| self.tokens.expect(';'));
        done.map_err(|what| format!("{text}: {what}"))
    }

    /// Takes a comma if it is next, and returns whether another operand follows.
    pub fn comma(&mut self) -> bool {
        self.tokens.takes(',')
    }

    /// Whether the instruction ends here.
    pub fn is_at_end(&self) -> bool {
        self.tokens.peek() == Some(Token::Mark(';'))
    }
}

fn set_target(op: &mut Op, which: usize, place: usize) {
    match op {
        Op::Jump(target) | Op::Branch { target, .. } => *target = place,
        Op::Table { targets, .. } => targets[which] = place,
        _ => unreachable!("only these jump"),
    }
}
