//! A whole text: directives, variables, functions and kernels.

use std::collections::{BTreeMap, HashMap};

use super::Failure;
use super::body::Body;
use super::declare::Formal;
use super::lex::{Token, Tokens};
use super::program::{Entry, Function, Op, Program, Variable};
use super::types::Space;

/// The meaning of a name of the whole text.
#[derive(Clone, Copy)]
pub enum Global {
    /// The space and address of a variable.
    Variable(Space, u64),
    /// The index in `Module::functions`.
    Function(usize),
}

/// The parts of a text that have been read.
#[derive(Default)]
pub struct Module<'t> {
    pub names: HashMap<&'t str, Global>,
    pub code: Vec<Op>,
    pub lines: Vec<usize>,
    pub signatures: Vec<Signature<'t>>,
    pub bodies: Vec<Option<Function>>,
    pub variables: Vec<Variable>,
    pub static_shared: usize,
    /// Bytes of static shared memory of the kernel that needs most, including variables outside of kernels.
    most_shared: usize,
    entries: BTreeMap<String, Entry>,
}

/// The name, parameters and results of a function.
pub struct Signature<'t> {
    pub name: &'t str,
    pub results: Vec<Formal<'t>>,
    pub arguments: Vec<Formal<'t>>,
}

impl Program {
    /// Reads a text.
    ///
    /// # Errors
    /// For what is no PTX, and what the interpreter does not know.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let mut tokens = Tokens::of(text)?;
        let mut module = Module::default();
        while tokens.peek().is_some() {
            let read = module.item(&mut tokens);
            read.map_err(|what| Failure { line: tokens.line(), what })?;
        }
        module.finish().map_err(|what| Failure { line: tokens.line(), what })
    }
}

impl<'t> Module<'t> {
    /// Reads one directive, variable, function or kernel.
    fn item(&mut self, tokens: &mut Tokens<'t>) -> Result<(), String> {
        while [".visible", ".weak", ".extern"].iter().any(|linkage| tokens.takes_word(linkage)) {}
        match tokens.word()? {
            ".version" | ".target" | ".address_size" | ".file" | ".loc" => tokens.skip_line(),
            ".pragma" => drop((tokens.next()?, tokens.expect(';')?)),
            ".section" => skip_section(tokens)?,
            ".entry" => self.kernel(tokens)?,
            ".func" => self.function(tokens)?,
            space @ (".global" | ".const" | ".shared") => {
                let (name, global) = self.variable(space, tokens)?;
                self.name(name, global)?;
            }
            other => return Err(format!("{other} is not known here")),
        }
        Ok(())
    }

    fn name(&mut self, name: &'t str, global: Global) -> Result<(), String> {
        match self.names.insert(name, global) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is declared twice")),
        }
    }

    fn kernel(&mut self, tokens: &mut Tokens<'t>) -> Result<(), String> {
        let name = tokens.word()?;
        let arguments = if tokens.peek() == Some(Token::Mark('(')) { Formal::list(tokens)? } else { Vec::new() };
        if arguments.iter().any(|formal| formal.param().is_none()) {
            return Err(format!("a parameter of {name} is a register"));
        }
        let parameters = arguments.iter().map(|formal| formal.range()).collect();
        let mut entry = Entry { parameters, most_threads: 1024, threads: None, function: self.bodies.len() };
        bounds(tokens, &mut entry)?;
        self.signatures.push(Signature { name, results: Vec::new(), arguments });
        self.bodies.push(None);
        // Shared variables of a kernel are its own: those of another kernel lie at the same addresses.
        let of_all = self.static_shared;
        Body::read(self, tokens, entry.function)?;
        self.most_shared = self.most_shared.max(std::mem::replace(&mut self.static_shared, of_all));
        match self.entries.insert(name.to_owned(), entry) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is declared twice")),
        }
    }

    /// Reads a function, or the declaration of a function that follows later.
    fn function(&mut self, tokens: &mut Tokens<'t>) -> Result<(), String> {
        let results = if tokens.peek() == Some(Token::Mark('(')) { Formal::list(tokens)? } else { Vec::new() };
        let name = tokens.word()?;
        let arguments = if tokens.peek() == Some(Token::Mark('(')) { Formal::list(tokens)? } else { Vec::new() };
        let arguments = Formal::behind(&results, arguments);
        tokens.takes_word(".noreturn");
        let signature = Signature { name, results, arguments };
        let index = match self.names.get(name) {
            Some(Global::Function(index)) if self.signatures[*index].is_like(&signature) => *index,
            Some(_) => return Err(format!("{name} is declared twice, and differently")),
            None => {
                self.bodies.push(None);
                self.signatures.push(signature);
                self.name(name, Global::Function(self.bodies.len() - 1))?;
                return self.body_if_any(tokens, self.bodies.len() - 1);
            }
        };
        self.signatures[index] = signature;
        self.body_if_any(tokens, index)
    }

    fn body_if_any(&mut self, tokens: &mut Tokens<'t>, function: usize) -> Result<(), String> {
        match tokens.takes(';') {
            true => Ok(()),
            false if self.bodies[function].is_some() => Err("it has a body already".into()),
            false => Body::read(self, tokens, function),
        }
    }

    fn finish(self) -> Result<Program, String> {
        let missing = self.bodies.iter().position(Option::is_none);
        if let Some(index) = missing {
            return Err(format!("{} has no body", self.signatures[index].name));
        }
        Ok(Program {
            entries: self.entries,
            code: self.code,
            lines: self.lines,
            functions: self.bodies.into_iter().flatten().collect(),
            static_shared: self.most_shared.max(self.static_shared),
            variables: self.variables,
        })
    }
}

impl Signature<'_> {
    fn is_like(&self, other: &Self) -> bool {
        let same =
            |a: &[Formal<'_>], b: &[Formal<'_>]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_like(b));
        same(&self.results, &other.results) && same(&self.arguments, &other.arguments)
    }
}

/// Reads the directives between a kernel's parameters and its body.
fn bounds(tokens: &mut Tokens<'_>, entry: &mut Entry) -> Result<(), String> {
    while let Some(Token::Word(directive)) = tokens.peek() {
        tokens.next()?;
        match directive {
            ".maxntid" => entry.most_threads = axes(tokens)?.iter().product(),
            ".reqntid" => {
                let threads = axes(tokens)?;
                (entry.most_threads, entry.threads) = (threads.iter().product(), Some(threads));
            }
            ".minnctapersm" | ".maxnreg" => drop(tokens.count()?),
            ".pragma" => drop((tokens.next()?, tokens.expect(';')?)),
            other => return Err(format!("{other} is not known of a kernel")),
        }
    }
    Ok(())
}

fn axes(tokens: &mut Tokens<'_>) -> Result<[u32; 3], String> {
    let mut threads = [1; 3];
    for (axis, along) in threads.iter_mut().enumerate() {
        if axis > 0 && !tokens.takes(',') {
            break;
        }
        *along = tokens.count()? as u32;
    }
    Ok(threads)
}

/// Skips a section for debuggers.
fn skip_section(tokens: &mut Tokens<'_>) -> Result<(), String> {
    tokens.word()?;
    tokens.expect('{')?;
    while !tokens.takes('}') {
        tokens.next()?;
    }
    Ok(())
}
