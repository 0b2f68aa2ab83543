//! The types of the host for the elements of tensors.

use bytemuck::Pod;
use half::{bf16, f16};

use super::Dtype;

/// A type of the host that elements have: `bool` is `u8`.
///
/// ```
/// use trefoil::{Dtype, Element};
/// assert_eq!(<u8 as Element>::DTYPES, [Dtype::U8, Dtype::Bool]);
/// ```
pub trait Element: Pod {
    /// The type of the elements, or several that look alike.
    const DTYPES: &'static [Dtype];
}

macro_rules! elements {
    ($($of:ty => $($dtype:ident)|+),* $(,)?) => {$(
        impl Element for $of {
            const DTYPES: &'static [Dtype] = &[$(Dtype::$dtype),+];
        }
    )*};
}

elements! {
    u8 => U8 | Bool, u16 => U16, u32 => U32, u64 => U64, i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    f16 => F16, bf16 => Bf16, f32 => F32, f64 => F64,
}
