//! `setp` and `set`.

use half::{bf16, f16};

use super::Compute;
use super::float::{FLUSH, single};
use super::integer::{Int, typed};
use super::round::Half;
use crate::ptx::opcode::Opcode;
use crate::ptx::program::Function4;
use crate::ptx::types::Type;

/// The orders of two numbers: a comparison is the set of orders for which it holds.
const LESS: u64 = 1;
const EQUAL: u64 = 2;
const GREATER: u64 = 4;
const UNORDERED: u64 = 8;
const ORDERED: u64 = LESS | EQUAL | GREATER;

const COMPARISONS: [(&str, u64); 14] = [
    ("eq", EQUAL),
    ("ne", LESS | GREATER),
    ("lt", LESS),
    ("le", LESS | EQUAL),
    ("gt", GREATER),
    ("ge", GREATER | EQUAL),
    ("equ", EQUAL | UNORDERED),
    ("neu", LESS | GREATER | UNORDERED),
    ("ltu", LESS | UNORDERED),
    ("leu", LESS | EQUAL | UNORDERED),
    ("gtu", GREATER | UNORDERED),
    ("geu", GREATER | EQUAL | UNORDERED),
    ("num", ORDERED),
    ("nan", UNORDERED),
];

/// Names that only unsigned comparisons have.
const UNSIGNED: [(&str, u64); 4] = [("lo", LESS), ("ls", LESS | EQUAL), ("hi", GREATER), ("hs", GREATER | EQUAL)];

/// The bits of the constant that say how the outcome is combined with a predicate: 0 for not at all.
const COMBINE: u32 = 8;
/// The predicate to combine with is negated.
pub const NEGATED: u64 = 1 << 12;
/// The result of `set` where the comparison holds is 1.0, instead of all bits.
const ONE: u64 = 1 << 13;

pub fn select(opcode: &mut Opcode<'_>) -> Result<Option<Compute>, String> {
    let (to, ty) = match (opcode.name, &opcode.types[..]) {
        ("setp", &[ty]) => (Type::Pred, ty),
        ("set", &[to @ (Type::U32 | Type::S32 | Type::F32), ty]) => (to, ty),
        _ => return Ok(None),
    };
    let comparison = comparison(opcode, ty)?;
    let combine = opcode.one_of(&[("and", 1), ("or", 2), ("xor", 3)]).unwrap_or(0);
    let flush = if ty == Type::F32 && opcode.takes("ftz") { FLUSH << 16 } else { 0 };
    let one = if to == Type::F32 { ONE } else { 0 };
    opcode.finish(if to == Type::Pred { 1 } else { 2 })?;
    let order = order(ty).ok_or("it is not defined for this type")?;
    let of = if combine == 0 { vec![ty, ty] } else { vec![ty, ty, Type::Pred] };
    let constant = comparison | combine << COMBINE | flush | one;
    Ok(Some(Compute { constant: Some(constant), ..Compute::new(order.function(to, combine != 0), to, &of) }))
}

fn comparison(opcode: &mut Opcode<'_>, ty: Type) -> Result<u64, String> {
    let found = opcode.one_of(&COMPARISONS).or_else(|| opcode.one_of(&UNSIGNED));
    let found = found.ok_or("it names no comparison")?;
    let by_size = found & !EQUAL != 0 && found != LESS | GREATER;
    match ty.is_bits() && by_size || !ty.is_float() && found & UNORDERED != 0 {
        true => Err("the comparison is not defined for this type".into()),
        false => Ok(found),
    }
}

/// The functions for one type: with a predicate or a word as the result, each without and with a predicate to combine.
struct Order {
    functions: [Function4; 4],
}

impl Order {
    fn function(&self, to: Type, combined: bool) -> Function4 {
        self.functions[2 * usize::from(to != Type::Pred) + usize::from(combined)]
    }
}

/// The four functions of an order.
macro_rules! order {
    ($order:expr) => {
        Order {
            functions: [
                |a, b, how, _| holds($order(a, b, how), 0, how),
                |a, b, c, how| holds($order(a, b, how), c, how),
                |a, b, how, _| word(holds($order(a, b, how), 0, how), how),
                |a, b, c, how| word(holds($order(a, b, how), c, how), how),
            ],
        }
    };
}

fn order(ty: Type) -> Option<Order> {
    Some(match ty {
        Type::B16 | Type::U16 => order!(integers::<u16>),
        Type::B32 | Type::U32 => order!(integers::<u32>),
        Type::B64 | Type::U64 => order!(integers::<u64>),
        Type::S16 => order!(integers::<i16>),
        Type::S32 => order!(integers::<i32>),
        Type::S64 => order!(integers::<i64>),
        Type::F16 => order!(|a, b, _| floats(f16::widen(a as u16), f16::widen(b as u16))),
        Type::Bf16 => order!(|a, b, _| floats(bf16::widen(a as u16), bf16::widen(b as u16))),
        Type::F32 => order!(|a, b, how: u64| floats(single(a, how >> 16).into(), single(b, how >> 16).into())),
        Type::F64 => order!(|a, b, _| floats(f64::from_bits(a), f64::from_bits(b))),
        _ => return None,
    })
}

fn integers<T: Int>(a: u64, b: u64, _: u64) -> u64 {
    1 << (T::of(a).cmp(&T::of(b)) as i8 + 1)
}

fn floats(a: f64, b: f64) -> u64 {
    a.partial_cmp(&b).map_or(UNORDERED, |order| 1 << (order as i8 + 1))
}

fn holds(order: u64, with: u64, how: u64) -> u64 {
    let holds = order & how & 15 != 0;
    let with = (with != 0) != (how & NEGATED != 0);
    u64::from(match how >> COMBINE & 3 {
        0 => holds,
        1 => holds && with,
        2 => holds || with,
        _ => holds != with,
    })
}

fn word(holds: u64, how: u64) -> u64 {
    match (holds != 0, how & ONE != 0) {
        (false, _) => 0,
        (true, false) => 0xffff_ffff,
        (true, true) => u64::from(1_f32.to_bits()),
    }
}

/// The negated comparison, which gives the second destination; it is made before the combination.
pub fn opposite(how: u64) -> u64 {
    how ^ 15
}

/// The function by which `red` and `atom` combine words of bits, or replace them.
pub fn replaces(name: &str, ty: Type) -> Option<Function4> {
    match name {
        "and" => Some(|a, b, _, _| a & b),
        "or" => Some(|a, b, _, _| a | b),
        "xor" => Some(|a, b, _, _| a ^ b),
        "exch" => Some(|_, b, _, _| b),
        "cas" => typed!(compare_and_swap, ty),
        "inc" => Some(|a, b, _, _| if a as u32 >= b as u32 { 0 } else { a + 1 }),
        "dec" => Some(|a, b, _, _| if a as u32 == 0 || a as u32 > b as u32 { b } else { a - 1 }),
        _ => None,
    }
}

fn compare_and_swap<T: Int>(old: u64, expected: u64, new: u64, _: u64) -> u64 {
    if T::of(old) == T::of(expected) { new } else { old }
}
