//! Reads and writes of neighbouring elements between memory and registers.

use std::fmt::Display;

use super::nest::Nest;
use super::number::kind;
use super::text::{Class, Reg, Text};
use crate::loops::ir::TermKind;
use crate::tensor::Dtype;

/// The number of bytes of the widest access.
pub(super) const WIDEST: usize = 16;

/// The number of neighbours along each of these axes that a thread reads at once: at most `most`, and as many as the
/// widest access holds.
pub(super) fn neighbours(nest: &Nest, axes: &[usize], most: usize) -> usize {
    let sizes = nest.needed().filter_map(|id| match nest.term(id).kind {
        TermKind::Load { operand, index, .. } if axes.iter().any(|&axis| nest.index(index).stride(axis) == 1) => {
            Some(nest.of.operands[operand].dtype.bytes())
        }
        _ => None,
    });
    let bytes = sizes.min().unwrap_or(WIDEST);
    let divides = |count: usize| axes.iter().all(|&axis| nest.extents[axis].is_multiple_of(count));
    let fits = |&count: &usize| count <= most && count * bytes <= WIDEST && divides(count);
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The place of elements in memory: an address, and an offset in bytes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub address: Reg,
    pub offset: i64,
}

impl Place {
    /// The place as an operand. An offset that does not fit into an instruction is added first.
    fn operand(self, text: &mut Text) -> String {
        match i32::try_from(self.offset) {
            Ok(offset) => format!("[{}+{offset}]", self.address),
            Err(_) => format!("[{}]", text.op(Class::Long, "add.s64", &[&self.address, &self.offset])),
        }
    }
}

fn guarded(predicate: Option<Reg>) -> String {
    predicate.map(|predicate| format!("@{predicate} ")).unwrap_or_default()
}

/// Reads `count` neighbouring elements, a power of two; their bytes are aligned. The result is zeros if the predicate
/// is false.
pub(super) fn read(text: &mut Text, place: Place, dtype: Dtype, count: usize, predicate: Option<Reg>) -> Vec<Reg> {
    let bytes = count * dtype.bytes();
    let (class, words) = match (dtype.bytes(), bytes) {
        (8, _) => (Class::Long, count),
        (_, 4..) => (Class::Word, bytes / 4),
        (2, _) if !dtype.is_integer() => (Class::Half, 1),
        _ => (Class::Word, 1),
    };
    let raw: Vec<Reg> = (0..words).map(|_| text.reg(class)).collect();
    if predicate.is_some() {
        raw.iter().for_each(|&raw| text.set(raw, &format!("mov.{}", class.bits()), &[&0]));
    }
    let name = match (bytes, dtype.is_signed()) {
        (1, true) => "s8",
        (1, false) => "u8",
        (2, true) if class == Class::Word && count == 1 => "s16",
        (2, _) if class == Class::Word => "u16",
        _ => class.bits(),
    };
    let (vector, operand) = (vector(words), place.operand(text));
    text.put(format_args!("{}ld.global{vector}.{name} {}, {operand}", guarded(predicate), listed(&raw)));
    let is_packed = count > 1 && dtype.bytes() < 4;
    let elems = if is_packed { unpacked(text, dtype, count, &raw) } else { raw };
    match dtype {
        Dtype::Bool => elems.iter().map(|elem| text.op(Class::Pred, "setp.ne.u32", &[elem, &0])).collect(),
        _ => elems,
    }
}

/// Writes neighbouring elements in the layout of [`read`].
pub(super) fn write(text: &mut Text, place: Place, dtype: Dtype, elems: &[Reg], predicate: Option<Reg>) {
    let elems: Vec<Reg> = match dtype {
        Dtype::Bool => elems.iter().map(|elem| text.op(Class::Word, "selp.u32", &[&1, &0, elem])).collect(),
        _ => elems.to_vec(),
    };
    let is_packed = elems.len() > 1 && dtype.bytes() < 4;
    let name = match (elems.len() * dtype.bytes(), elems[0].class) {
        (1, _) => "u8",
        (2, Class::Word) => "u16",
        (_, Class::Half) if !is_packed => "b16",
        (_, Class::Long) => "b64",
        _ => "b32",
    };
    let raw = if is_packed { packed(text, dtype, &elems) } else { elems };
    let (vector, operand) = (vector(raw.len()), place.operand(text));
    text.put(format_args!("{}st.global{vector}.{name} {operand}, {}", guarded(predicate), listed(&raw)));
}

fn vector(count: usize) -> &'static str {
    match count {
        1 => "",
        2 => ".v2",
        _ => ".v4",
    }
}

fn listed(regs: &[Reg]) -> String {
    let names: Vec<String> = regs.iter().map(ToString::to_string).collect();
    if let [one] = &names[..] { one.clone() } else { format!("{{{}}}", names.join(", ")) }
}

/// The elements of one or two bytes that are packed in words.
fn unpacked(text: &mut Text, dtype: Dtype, count: usize, words: &[Reg]) -> Vec<Reg> {
    let of_word = (4 / dtype.bytes()).min(count);
    let bits = 8 * dtype.bytes();
    let mut elems = Vec::with_capacity(count);
    for word in words {
        if Class::of(dtype) == Class::Half {
            let pair = [text.reg(Class::Half), text.reg(Class::Half)];
            text.put(format_args!("mov.b32 {}, {word}", listed(&pair)));
            elems.extend(pair);
            continue;
        }
        let kind = if dtype.is_signed() { kind(dtype) } else { "u32" };
        let extract =
            |text: &mut Text, i: usize| text.op(Class::Word, &format!("bfe.{kind}"), &[word, &(i * bits), &bits]);
        elems.extend((0..of_word).map(|i| extract(text, i)));
    }
    elems
}

/// The words in which these elements of one or two bytes are packed.
fn packed(text: &mut Text, dtype: Dtype, elems: &[Reg]) -> Vec<Reg> {
    let bits = 8 * dtype.bytes();
    let word = |elems: &[Reg]| {
        if Class::of(dtype) == Class::Half {
            return text.op(Class::Word, "mov.b32", &[&listed(elems)]);
        }
        let (&first, rest) = elems.split_first().expect("a word has elements");
        rest.iter().zip(1..).fold(first, |word, (elem, i)| {
            let args: [&dyn Display; 4] = [elem, &word, &(i * bits), &bits];
            text.op(Class::Word, "bfi.b32", &args)
        })
    };
    elems.chunks(4 / dtype.bytes()).map(word).collect()
}
