//! Declarations: variables of the whole text with their initial values, and parameters.

use std::ops::Range;

use super::lex::{Token, Tokens};
use super::module::{Global, Module};
use super::program::{DYNAMIC_SHARED, Holder, Slot, Variable};
use super::types::{Space, Type};

/// A variable: `.align 8 .b32 name[4][2]`.
pub struct Declared<'t> {
    pub name: &'t str,
    pub ty: Type,
    align: usize,
    /// Number of elements; `None` for `name[]`.
    elems: Option<usize>,
}

impl<'t> Declared<'t> {
    /// Reads a declaration behind its state space.
    pub fn read(tokens: &mut Tokens<'t>) -> Result<Self, String> {
        let align = if tokens.takes_word(".align") { Some(tokens.count()?) } else { None };
        let vector = [(".v2", 2), (".v4", 4)].into_iter().find(|(name, _)| tokens.takes_word(name));
        let lanes = vector.map_or(1, |(_, lanes)| lanes);
        let word = tokens.word()?;
        let ty = word.strip_prefix('.').and_then(Type::named).ok_or(format!("{word} where a type belongs"))?;
        for attribute in [".ptr", ".global", ".shared", ".const", ".local"] {
            tokens.takes_word(attribute);
        }
        if tokens.takes_word(".align") {
            tokens.count()?; // of what a pointer points to
        }
        let name = tokens.word()?;
        let mut elems = Some(lanes);
        while tokens.takes('[') {
            let along = if tokens.peek() == Some(Token::Mark(']')) { None } else { Some(tokens.count()?) };
            elems = elems.zip(along).map(|(elems, along)| elems * along);
            tokens.expect(']')?;
        }
        let align = align.unwrap_or((lanes * ty.bytes()).max(1));
        match align.is_power_of_two() {
            true => Ok(Self { name, ty, align, elems }),
            false => Err(format!("{name} cannot be aligned to {align}")),
        }
    }

    pub fn bytes(&self) -> Result<usize, String> {
        self.elems.map(|elems| elems * self.ty.bytes()).ok_or(format!("{} has no size", self.name))
    }

    /// Places the variable behind `end` bytes of others, and advances `end`.
    pub fn place(&self, end: &mut usize) -> Result<usize, String> {
        let start = end.next_multiple_of(self.align);
        *end = start + self.bytes()?;
        Ok(start)
    }
}

impl<'t> Module<'t> {
    /// A variable of global, constant or shared memory, up to its semicolon.
    pub fn variable(&mut self, space: &str, tokens: &mut Tokens<'t>) -> Result<(&'t str, Global), String> {
        let declared = Declared::read(tokens)?;
        let (space, address) = match space {
            ".shared" => (Space::Shared, self.shared(&declared)?),
            _ => {
                let content = initial(&declared, tokens)?;
                self.variables.push(Variable::new(&content));
                (Space::Global, self.variables.last().expect("just pushed").range().start)
            }
        };
        if space == Space::Global && !address.is_multiple_of(declared.align as u64) {
            return Err(format!("{} is aligned to more than 16 bytes", declared.name));
        }
        tokens.expect(';')?;
        Ok((declared.name, Global::Variable(space, address)))
    }

    /// The address of a variable in shared memory. All variables without a size have one address: that of dynamic
    /// shared memory.
    fn shared(&mut self, declared: &Declared<'_>) -> Result<u64, String> {
        if declared.elems.is_none() {
            return Ok(DYNAMIC_SHARED);
        }
        let start = declared.place(&mut self.static_shared)?;
        match self.static_shared as u64 <= DYNAMIC_SHARED {
            true => Ok(start as u64),
            false => Err(format!("{} does not fit in shared memory", declared.name)),
        }
    }
}

/// The initial bytes of a variable: the values in the text, then zeros.
fn initial(declared: &Declared<'_>, tokens: &mut Tokens<'_>) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    if tokens.takes('=') {
        values(declared.ty, tokens, &mut content)?;
    }
    let bytes = if declared.elems.is_none() { content.len() } else { declared.bytes()? };
    match content.len() <= bytes && bytes > 0 {
        true => content.resize(bytes, 0),
        false => return Err(format!("{} has {} bytes in place of {bytes}", declared.name, content.len())),
    }
    Ok(content)
}

/// Reads one value, or nested lists of values.
fn values(ty: Type, tokens: &mut Tokens<'_>, content: &mut Vec<u8>) -> Result<(), String> {
    if !tokens.takes('{') {
        let bits = literal(ty, tokens)?.ok_or("what is no number where a value belongs")?;
        content.extend(&bits.to_le_bytes()[..ty.bytes()]);
        return Ok(());
    }
    while !tokens.takes('}') {
        values(ty, tokens, content)?;
        if !tokens.takes(',') {
            tokens.expect('}')?;
            return Ok(());
        }
    }
    Ok(())
}

/// A literal number as the bits of a type; `None` if the next token is no number.
pub fn literal(ty: Type, tokens: &mut Tokens<'_>) -> Result<Option<u64>, String> {
    let negative = tokens.takes('-');
    let Some(token @ (Token::Integer(_) | Token::Single(_) | Token::Double(_))) = tokens.peek() else {
        return if negative { Err("a sign without a number".into()) } else { Ok(None) };
    };
    tokens.next()?;
    let bits = match (token, ty) {
        (Token::Integer(number), _) => integer(if negative { -number } else { number }, ty)?,
        (Token::Single(bits), Type::F32 | Type::B32) if !negative => u64::from(bits),
        (Token::Single(bits), Type::F64 | Type::B64) if !negative => f64::from(f32::from_bits(bits)).to_bits(),
        (Token::Double(x), Type::F64 | Type::B64) => if negative { -x } else { x }.to_bits(),
        (Token::Double(x), Type::F32) => u64::from((if negative { -x } else { x } as f32).to_bits()),
        (token, ty) => return Err(format!("{token:?} is no value of {ty:?}")),
    };
    Ok(Some(bits))
}

fn integer(number: i128, ty: Type) -> Result<u64, String> {
    let bits = 8 * ty.bytes() as u32;
    let fits = ty == Type::Pred && (0..=1).contains(&number)
        || !ty.is_float() && ty != Type::Pred && (-(1 << (bits - 1))..1 << bits).contains(&number);
    match fits {
        true => Ok(number as u64 & u64::MAX >> (64 - bits.max(1))),
        false => Err(format!("{number} is no value of {ty:?}")),
    }
}

/// A parameter or result of a function, in parameter memory or in a register.
pub struct Formal<'t> {
    pub name: &'t str,
    pub ty: Type,
    pub holder: Holder,
    pub bytes: usize,
    align: usize,
}

impl<'t> Formal<'t> {
    /// Reads a list of parameters or results in parentheses.
    pub fn list(tokens: &mut Tokens<'t>) -> Result<Vec<Self>, String> {
        tokens.expect('(')?;
        let mut formals = Vec::new();
        while !tokens.takes(')') {
            if !formals.is_empty() {
                tokens.expect(',')?;
            }
            formals.push(Self::one(tokens)?);
        }
        Ok(Self::behind(&[], formals))
    }

    fn one(tokens: &mut Tokens<'t>) -> Result<Self, String> {
        let in_register = match tokens.word()? {
            ".param" => false,
            ".reg" => true,
            other => return Err(format!("{other} where a parameter belongs")),
        };
        let declared = Declared::read(tokens)?;
        let holder = if in_register { Holder::Slot(0) } else { Holder::Param(0) };
        let bytes = declared.bytes()?;
        Ok(Self { name: declared.name, ty: declared.ty, holder, bytes, align: declared.align })
    }

    /// Gives each parameter a place behind `others`.
    pub fn behind(others: &[Self], mut formals: Vec<Self>) -> Vec<Self> {
        let mut slots = others.iter().filter(|formal| formal.param().is_none()).count() as Slot;
        let mut end = others.iter().filter(|formal| formal.param().is_some()).map(|f| f.range().end).max().unwrap_or(0);
        for formal in &mut formals {
            match &mut formal.holder {
                Holder::Slot(slot) => (*slot, slots) = (slots, slots + 1),
                Holder::Param(offset) => {
                    *offset = end.next_multiple_of(formal.align);
                    end = *offset + formal.bytes;
                }
            }
        }
        formals
    }

    /// The offset in parameter memory; `None` for a register.
    pub fn param(&self) -> Option<usize> {
        match self.holder {
            Holder::Param(offset) => Some(offset),
            Holder::Slot(_) => None,
        }
    }

    /// The range of bytes in parameter memory.
    pub fn range(&self) -> Range<usize> {
        let start = self.param().unwrap_or(0);
        start..start + self.bytes
    }

    pub fn is_like(&self, other: &Self) -> bool {
        (self.holder, self.bytes) == (other.holder, other.bytes)
    }
}
