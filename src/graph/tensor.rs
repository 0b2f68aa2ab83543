//! Values in memory.

use half::{bf16, f16};

use super::value::ValueType;
use crate::error::Error;
use crate::tensor::{Dtype, Element};

/// A value of a graph in host memory: dense elements, the last dimension innermost.
///
/// ```
/// use trefoil::{Dtype, graph::Tensor};
/// let ids = Tensor::of(&[2, 2], &[3_i64, 1, 4, 1]);
/// assert_eq!((ids.value_type().dtype, ids.elems::<i64>()), (Dtype::I64, &[3, 1, 4, 1][..]));
/// assert_eq!(ids.bytes().len(), 32);
/// ```
#[derive(Clone, PartialEq)]
pub struct Tensor {
    of: ValueType,
    /// The tensor's bytes, and zeros up to a whole word, so that elements of each type are aligned.
    words: Vec<u64>,
}

impl Tensor {
    /// A tensor of zeros.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no room for them.
    pub fn zeros(of: ValueType) -> Result<Self, Error> {
        let count = of.bytes().div_ceil(size_of::<u64>());
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::OutOfMemory {
            device: "cpu".into(),
            what: format!("a value of {of}"),
            needed_bytes: of.bytes() as u64,
            free_bytes: 0,
            fitting_batch: None,
        })?;
        words.resize(count, 0);
        Ok(Self { of, words })
    }

    /// A tensor of `elems` with these dimensions.
    ///
    /// # Panics
    /// If the number of elements is not the product of the dimensions.
    pub fn of<T: Element>(dims: &[usize], elems: &[T]) -> Self {
        Self::from_bytes(ValueType::new(T::DTYPES[0], dims), bytemuck::cast_slice(elems))
    }

    /// A tensor of little-endian elements in `bytes`.
    ///
    /// # Panics
    /// If `bytes` has another length than the type.
    pub fn from_bytes(of: ValueType, bytes: &[u8]) -> Self {
        assert_eq!(of.bytes(), bytes.len(), "bytes of {of}");
        let mut words = vec![0_u64; bytes.len().div_ceil(size_of::<u64>())];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
        Self { of, words }
    }

    /// The tensor's type.
    pub const fn value_type(&self) -> &ValueType {
        &self.of
    }

    /// The tensor's bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.of.bytes()]
    }

    /// The tensor's bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.of.bytes()]
    }

    /// The tensor's elements.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn elems<T: Element>(&self) -> &[T] {
        assert!(T::DTYPES.contains(&self.of.dtype), "{} read as {:?}", self.of, T::DTYPES);
        bytemuck::cast_slice(self.bytes())
    }

    /// The tensor's elements, to be written.
    ///
    /// # Panics
    /// If they are of another type.
    pub fn elems_mut<T: Element>(&mut self) -> &mut [T] {
        assert!(T::DTYPES.contains(&self.of.dtype), "{} written as {:?}", self.of, T::DTYPES);
        bytemuck::cast_slice_mut(self.bytes_mut())
    }

    /// The same bytes, as a value of another type with the same number of bytes.
    ///
    /// # Panics
    /// If the other type has another number of bytes.
    pub fn cast(self, of: ValueType) -> Self {
        assert_eq!(self.of.bytes(), of.bytes(), "{} as {of}", self.of);
        Self { of, words: self.words }
    }

    /// The tensor's elements as i64, if they are integers that fit, or bools.
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        fn all<T: Element + TryInto<i64>>(of: &Tensor) -> Option<Vec<i64>> {
            of.elems::<T>().iter().map(|&elem| elem.try_into().ok()).collect()
        }
        match self.of.dtype {
            Dtype::Bool | Dtype::U8 => all::<u8>(self),
            Dtype::U16 => all::<u16>(self),
            Dtype::U32 => all::<u32>(self),
            Dtype::U64 => all::<u64>(self),
            Dtype::I8 => all::<i8>(self),
            Dtype::I16 => all::<i16>(self),
            Dtype::I32 => all::<i32>(self),
            Dtype::I64 => all::<i64>(self),
            Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64 => None,
        }
    }

    /// The tensor's elements as f64, rounded if they are integers that have more digits.
    pub fn to_f64s(&self) -> Vec<f64> {
        fn all<T: Element>(of: &Tensor, to: impl Fn(T) -> f64) -> Vec<f64> {
            of.elems::<T>().iter().map(|&elem| to(elem)).collect()
        }
        match self.of.dtype {
            Dtype::Bool | Dtype::U8 => all::<u8>(self, f64::from),
            Dtype::U16 => all::<u16>(self, f64::from),
            Dtype::U32 => all::<u32>(self, f64::from),
            Dtype::U64 => all::<u64>(self, |elem| elem as f64),
            Dtype::I8 => all::<i8>(self, f64::from),
            Dtype::I16 => all::<i16>(self, f64::from),
            Dtype::I32 => all::<i32>(self, f64::from),
            Dtype::I64 => all::<i64>(self, |elem| elem as f64),
            Dtype::F16 => all::<f16>(self, f64::from),
            Dtype::Bf16 => all::<bf16>(self, f64::from),
            Dtype::F32 => all::<f32>(self, f64::from),
            Dtype::F64 => all::<f64>(self, |elem| elem),
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let first: Vec<f64> = self.to_f64s().into_iter().take(8).collect();
        write!(f, "{} {first:?}{}", self.of, if self.of.elems() > 8 { "…" } else { "" })
    }
}
