//! The element types of ONNX.

use std::fmt;

/// The type of a tensor's elements, by its name in ONNX's specification.
///
/// ```
/// use trefoil::onnx::DataType;
/// assert_eq!((DataType::Float16.to_string(), DataType::Float16.bits()), ("FLOAT16".to_string(), Some(16)));
/// assert_eq!((DataType::Int4.bits(), DataType::String.bits()), (Some(4), None));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// IEEE single precision.
    Float,
    /// 8 bits without a sign.
    Uint8,
    /// 8 bits in two's complement.
    Int8,
    /// 16 bits without a sign.
    Uint16,
    /// 16 bits in two's complement.
    Int16,
    /// 32 bits in two's complement.
    Int32,
    /// 64 bits in two's complement.
    Int64,
    /// Text.
    String,
    /// A byte: 0 is false, all else true.
    Bool,
    /// IEEE half precision.
    Float16,
    /// IEEE double precision.
    Double,
    /// 32 bits without a sign.
    Uint32,
    /// 64 bits without a sign.
    Uint64,
    /// Two `FLOAT`, the real part first.
    Complex64,
    /// Two `DOUBLE`, the real part first.
    Complex128,
    /// The upper half of an IEEE single.
    Bfloat16,
    /// 4 bits of exponent, 3 of mantissa, no infinities.
    Float8E4M3Fn,
    /// As [`Float8E4M3Fn`](Self::Float8E4M3Fn), without a negative zero, and with another bias.
    Float8E4M3Fnuz,
    /// 5 bits of exponent, 2 of mantissa, as in IEEE 754.
    Float8E5M2,
    /// As [`Float8E5M2`](Self::Float8E5M2), without infinities and a negative zero, and with another bias.
    Float8E5M2Fnuz,
    /// 4 bits without a sign, two to a byte, the first in the lower half.
    Uint4,
    /// 4 bits in two's complement, two to a byte, the first in the lower half.
    Int4,
    /// 2 bits of exponent, 1 of mantissa; two to a byte, the first in the lower half.
    Float4E2M1,
    /// A power of two: 8 bits of exponent.
    Float8E8M0,
    /// 2 bits without a sign, four to a byte, the first in the lowest bits.
    Uint2,
    /// 2 bits in two's complement, four to a byte, the first in the lowest bits.
    Int2,
    /// 2 bits of exponent, 3 of mantissa; four to three bytes, the first in the lowest bits.
    Float6E2M3,
    /// 3 bits of exponent, 2 of mantissa; four to three bytes, the first in the lowest bits.
    Float6E3M2,
}

/// The types by number, beginning with 1: the type, its name, and the bits of an element, or 0 if elements have no
/// fixed size.
const TYPES: [(DataType, &str, usize); 28] = [
    (DataType::Float, "FLOAT", 32),
    (DataType::Uint8, "UINT8", 8),
    (DataType::Int8, "INT8", 8),
    (DataType::Uint16, "UINT16", 16),
    (DataType::Int16, "INT16", 16),
    (DataType::Int32, "INT32", 32),
    (DataType::Int64, "INT64", 64),
    (DataType::String, "STRING", 0),
    (DataType::Bool, "BOOL", 8),
    (DataType::Float16, "FLOAT16", 16),
    (DataType::Double, "DOUBLE", 64),
    (DataType::Uint32, "UINT32", 32),
    (DataType::Uint64, "UINT64", 64),
    (DataType::Complex64, "COMPLEX64", 64),
    (DataType::Complex128, "COMPLEX128", 128),
    (DataType::Bfloat16, "BFLOAT16", 16),
    (DataType::Float8E4M3Fn, "FLOAT8E4M3FN", 8),
    (DataType::Float8E4M3Fnuz, "FLOAT8E4M3FNUZ", 8),
    (DataType::Float8E5M2, "FLOAT8E5M2", 8),
    (DataType::Float8E5M2Fnuz, "FLOAT8E5M2FNUZ", 8),
    (DataType::Uint4, "UINT4", 4),
    (DataType::Int4, "INT4", 4),
    (DataType::Float4E2M1, "FLOAT4E2M1", 4),
    (DataType::Float8E8M0, "FLOAT8E8M0", 8),
    (DataType::Uint2, "UINT2", 2),
    (DataType::Int2, "INT2", 2),
    (DataType::Float6E2M3, "FLOAT6E2M3", 6),
    (DataType::Float6E3M2, "FLOAT6E3M2", 6),
];

impl DataType {
    /// The type with this number in the specification; `None` if there is no such type, as for 0, which is `UNDEFINED`.
    ///
    /// ```
    /// use trefoil::onnx::DataType;
    /// assert_eq!((DataType::from_number(7), DataType::from_number(0)), (Some(DataType::Int64), None));
    /// ```
    pub fn from_number(number: i64) -> Option<Self> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        TYPES.get(index).map(|(dtype, ..)| *dtype)
    }

    /// The type's name in the specification.
    pub fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// Bits of one element; `None` for text, which has no size.
    pub fn bits(self) -> Option<usize> {
        Some(TYPES[self as usize].2).filter(|bits| *bits > 0)
    }

    /// The field of a tensor's message that holds the elements if `raw_data` does not.
    pub(super) fn field(self) -> &'static str {
        match self {
            Self::Float | Self::Complex64 => "float_data",
            Self::Double | Self::Complex128 => "double_data",
            Self::Int64 => "int64_data",
            Self::Uint32 | Self::Uint64 => "uint64_data",
            Self::String => "string_data",
            _ => "int32_data",
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_numbers() {
        for (index, (dtype, ..)) in TYPES.iter().enumerate() {
            assert_eq!((*dtype as usize, DataType::from_number(index as i64 + 1)), (index, Some(*dtype)));
        }
        for number in [i64::MIN, -1, 0, 29, i64::MAX] {
            assert_eq!(DataType::from_number(number), None);
        }
    }
}
