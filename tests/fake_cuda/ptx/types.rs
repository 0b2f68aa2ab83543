//! Types of registers and instructions, and state spaces.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Pred,
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
}

const NAMES: [(&str, Type); 19] = [
    ("pred", Type::Pred),
    ("b8", Type::B8),
    ("b16", Type::B16),
    ("b32", Type::B32),
    ("b64", Type::B64),
    ("u8", Type::U8),
    ("u16", Type::U16),
    ("u32", Type::U32),
    ("u64", Type::U64),
    ("s8", Type::S8),
    ("s16", Type::S16),
    ("s32", Type::S32),
    ("s64", Type::S64),
    ("f16", Type::F16),
    ("f16x2", Type::F16x2),
    ("bf16", Type::Bf16),
    ("bf16x2", Type::Bf16x2),
    ("f32", Type::F32),
    ("f64", Type::F64),
];

impl Type {
    /// The type of this name, without its dot.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, ty)| *ty)
    }

    /// The type at this place in the list, as [`Type::number`] gives it.
    pub fn numbered(number: u64) -> Self {
        NAMES[number as usize].1
    }

    pub fn number(self) -> u64 {
        self as u64
    }

    /// Size in memory, in bytes; 0 for a predicate.
    pub fn bytes(self) -> usize {
        match self {
            Self::Pred => 0,
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F16x2 | Self::Bf16x2 | Self::F32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub fn is_integer(self) -> bool {
        self.is_signed() || matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
    }

    pub fn is_bits(self) -> bool {
        matches!(self, Self::B8 | Self::B16 | Self::B32 | Self::B64)
    }

    pub fn is_float(self) -> bool {
        !self.is_integer() && !self.is_bits() && self != Self::Pred
    }

    /// Whether an instruction of this type takes a register of the type `register`.
    pub fn takes(self, register: Self) -> bool {
        self.bytes() == register.bytes() && self.agrees(register)
    }

    /// Whether a load, store or conversion of this type, which allow wider registers, takes a register of the type
    /// `register`.
    pub fn takes_wider(self, register: Self) -> bool {
        self.takes(register) || self.bytes() < register.bytes() && self.agrees(register) && !register.is_float()
    }

    fn agrees(self, register: Self) -> bool {
        let either_is_bits = (self.is_bits() && register != Self::Pred) || (register.is_bits() && self != Self::Pred);
        self == register || either_is_bits || self.is_integer() && register.is_integer()
    }
}

/// A state space: the kind of memory that an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Any space except parameters; the window of the address says which.
    Generic,
    /// Global memory, which includes constant memory.
    Global,
    Shared,
    /// The thread's own memory.
    Local,
    /// Parameters of the running function, and of the functions that it calls.
    Param,
}

impl Space {
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "global" | "const" => Some(Self::Global),
            "shared" | "shared::cta" => Some(Self::Shared),
            "local" => Some(Self::Local),
            "param" | "param::entry" | "param::func" => Some(Self::Param),
            _ => None,
        }
    }

    /// The number to add to an address of this space to make it generic.
    pub fn window(self) -> u64 {
        match self {
            Self::Generic | Self::Global => 0,
            Self::Shared => 1 << 60,
            Self::Local => 2 << 60,
            Self::Param => 3 << 60,
        }
    }

    /// The space of a generic address.
    pub fn of(generic: u64) -> Self {
        match generic >> 60 {
            1 => Self::Shared,
            2 => Self::Local,
            3 => Self::Param,
            _ => Self::Global,
        }
    }
}
