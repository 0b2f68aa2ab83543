//! The text of an entry point while it is written: instructions, registers, labels, shared memory.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Write};

use super::math;
use crate::tensor::Dtype;

/// The content of a register: a predicate, or 16, 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Class {
    Pred,
    Half,
    Word,
    Long,
}

/// A register. Names with `%c`, `%h`, `%w` and `%l` are for predicates, 16, 32 and 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Reg {
    pub class: Class,
    number: u32,
}

/// A label as the target of branches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(u32);

/// The body of an entry point.
#[derive(Debug, Default)]
pub(super) struct Text {
    body: String,
    registers: [u32; 4],
    labels: u32,
    shared_bytes: u32,
    functions: BTreeSet<String>,
}

const PREFIXES: [char; 4] = ['c', 'h', 'w', 'l'];

impl Class {
    /// The class of the registers in which elements of a type are computed.
    pub const fn of(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bool => Self::Pred,
            Dtype::F16 | Dtype::Bf16 => Self::Half,
            Dtype::I64 | Dtype::U64 | Dtype::F64 => Self::Long,
            _ => Self::Word,
        }
    }

    /// The untyped name of the class in instructions.
    pub const fn bits(self) -> &'static str {
        ["pred", "b16", "b32", "b64"][self as usize]
    }
}

impl Display for Reg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}{}", PREFIXES[self.class as usize], self.number)
    }
}

impl Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "$L{}", self.0)
    }
}

impl Text {
    /// Declares a new register.
    pub fn reg(&mut self, class: Class) -> Reg {
        let count = &mut self.registers[class as usize];
        *count += 1;
        Reg { class, number: *count }
    }

    /// Writes one instruction.
    pub fn put(&mut self, line: fmt::Arguments<'_>) {
        writeln!(self.body, "\t{line};").expect("a string takes all");
    }

    /// Writes an instruction whose result is a new register.
    pub fn op(&mut self, class: Class, name: &str, args: &[&dyn Display]) -> Reg {
        let to = self.reg(class);
        self.set(to, name, args);
        to
    }

    /// Writes an instruction whose result is this register.
    pub fn set(&mut self, to: Reg, name: &str, args: &[&dyn Display]) {
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        self.put(format_args!("{name} {to}, {}", args.join(", ")));
    }

    /// Sets a new register to these bits. A predicate is true if they are not 0.
    pub fn number(&mut self, class: Class, bits: u64) -> Reg {
        let name = format!("mov.{}", class.bits());
        let number = match class {
            Class::Pred => i64::from(bits != 0),
            Class::Half => i64::from(bits as u16),
            Class::Word => i64::from(bits as i32),
            Class::Long => bits as i64,
        };
        self.op(class, &name, &[&number])
    }

    pub fn label(&mut self) -> Label {
        self.labels += 1;
        Label(self.labels)
    }

    pub fn place(&mut self, label: Label) {
        writeln!(self.body, "{label}:").expect("a string takes all");
    }

    /// Reserves `bytes` bytes of shared memory, and returns their offset.
    pub fn share(&mut self, bytes: u32) -> u32 {
        let offset = place_bytes(self.shared_bytes as usize) as u32;
        self.shared_bytes = offset + bytes;
        offset
    }

    /// The result of a function of [`math`]. A function without branches is written in place, any other is called.
    pub fn function(&mut self, name: &str, class: Class, args: &[Reg]) -> Reg {
        let to = self.reg(class);
        match math::lines(name) {
            Some(lines) => math::paste(self, name, &lines, to, args),
            None => self.call(name, to, args),
        }
        to
    }

    fn call(&mut self, name: &str, to: Reg, args: &[Reg]) {
        self.functions.insert(name.to_owned());
        self.body += "\t{\n";
        for (number, arg) in args.iter().enumerate() {
            let bits = arg.class.bits();
            self.put(format_args!(".param .{bits} a{number}"));
            self.put(format_args!("st.param.{bits} [a{number}], {arg}"));
        }
        let names: Vec<String> = (0..args.len()).map(|number| format!("a{number}")).collect();
        let bits = to.class.bits();
        self.put(format_args!(".param .{bits} r0"));
        self.put(format_args!("call (r0), {name}, ({})", names.join(", ")));
        self.put(format_args!("ld.param.{bits} {to}, [r0]"));
        self.body += "\t}\n";
    }

    /// The functions that the text calls.
    pub const fn functions(&self) -> &BTreeSet<String> {
        &self.functions
    }

    /// The declarations, followed by the body.
    pub fn finish(&self) -> String {
        let mut all = String::new();
        for (class, count) in [Class::Pred, Class::Half, Class::Word, Class::Long].into_iter().zip(self.registers) {
            if count > 0 {
                let (prefix, declared) = (PREFIXES[class as usize], count + 1);
                writeln!(all, "\t.reg .{} %{prefix}<{declared}>;", class.bits()).expect("a string takes all");
            }
        }
        if self.shared_bytes > 0 {
            writeln!(all, "\t.shared .align 16 .b8 shared[{}];", self.shared_bytes).expect("a string takes all");
        }
        all + &self.body
    }
}

/// The size in shared memory of a place of `bytes` bytes, with padding.
pub(super) const fn place_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(16)
}
