//! Reads the elements of a file's tensors.

use super::context::{Context, Outcome, check_value};
use crate::error::Error;
use crate::graph::{Tensor, ValueId, ValueType};
use crate::onnx::{self, DataType, File};
use crate::tensor::Dtype;

impl File {
    /// The weight of this name: an initializer of the model's graph, as [`Constant::Weight`](crate::graph::Constant) names
    /// it. Types of fewer than 8 bits have a byte for each element.
    ///
    /// # Errors
    /// [`Error::Option`] if there is none of this name, or it has no type that graphs have; others where it cannot be read.
    ///
    /// ```
    /// use trefoil::onnx::File;
    /// let file = File::open("tests/data/onnx/graph.onnx")?;
    /// assert_eq!(file.weight("weight")?.elems::<f32>()[0], 0.5);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn weight(&self, name: &str) -> Result<Tensor, Error> {
        let unknown = || Error::option("weight", name, "the name of an initializer of the model's graph");
        self.elements(self.initializer(name).ok_or_else(unknown)?)
    }

    /// The elements of a tensor that the file holds: of an initializer, or of an attribute.
    ///
    /// # Errors
    /// [`Error::Option`] if it has no type that graphs have; others where it cannot be read.
    pub fn elements(&self, tensor: &onnx::Tensor) -> Result<Tensor, Error> {
        let unknown = || Error::option("tensor", format!("{} of {}", tensor.name, tensor.dtype), "a type of numbers");
        let dtype = dtype_of(tensor.dtype).ok_or_else(unknown)?;
        let mut value = Tensor::zeros(ValueType::new(dtype, &tensor.dims))?;
        match tensor.dtype.bits() {
            Some(bits @ 1..8) => {
                let mut packed = vec![0; tensor.bytes()];
                self.read(tensor, &mut packed)?;
                unpack(&packed, bits, dtype.is_signed(), value.bytes_mut());
            }
            _ => self.read(tensor, value.bytes_mut())?,
        }
        if dtype == Dtype::Bool {
            value.bytes_mut().iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(value)
    }
}

impl Context<'_> {
    /// A tensor of the file as a constant, which is made once.
    pub fn tensor(&mut self, tensor: &onnx::Tensor) -> Outcome<ValueId> {
        if let Some(&known) = self.tensors.get(&std::ptr::from_ref(tensor)) {
            return Ok(known);
        }
        check(tensor)?;
        self.budget.read(tensor.bytes())?;
        let value = self.file.elements(tensor).map_err(|e| e.to_string())?;
        let value = self.constant(&value);
        self.tensors.insert(tensor, value);
        self.store(value, tensor.dtype);
        Ok(value)
    }

    /// An initializer: a constant if it is small, otherwise a weight that is read later.
    pub fn initializer(&mut self, tensor: &onnx::Tensor) -> Outcome<ValueId> {
        match dtype_of(tensor.dtype) {
            Some(dtype) if tensor.bytes() > SMALL_BYTES => {
                check(tensor)?;
                let value = self.builder.weight(&tensor.name, dtype, &tensor.dims);
                self.store(value, tensor.dtype);
                Ok(value)
            }
            _ => self.tensor(tensor),
        }
    }

    /// Records the type of a value if no graph has this type.
    pub fn store(&mut self, value: ValueId, dtype: DataType) {
        if is_storage(dtype) {
            self.stored.insert(value, dtype);
        }
    }
}

/// Checks that a graph may have a value with this tensor's type and dimensions.
fn check(tensor: &onnx::Tensor) -> Outcome<()> {
    let dtype = dtype_of(tensor.dtype).unwrap_or(Dtype::U8);
    check_value(&ValueType::new(dtype, &tensor.dims))
}

/// The most bytes of an initializer that becomes a constant, which shapes may be computed from.
const SMALL_BYTES: usize = 4096;

/// The type that a graph has for a type of ONNX: a type of the same number of bits, or a byte for types of fewer bits.
pub(crate) fn dtype_of(dtype: DataType) -> Option<Dtype> {
    Some(match dtype {
        DataType::Float => Dtype::F32,
        DataType::Uint8 => Dtype::U8,
        DataType::Int8 => Dtype::I8,
        DataType::Uint16 => Dtype::U16,
        DataType::Int16 => Dtype::I16,
        DataType::Int32 => Dtype::I32,
        DataType::Int64 => Dtype::I64,
        DataType::Bool => Dtype::Bool,
        DataType::Float16 => Dtype::F16,
        DataType::Double => Dtype::F64,
        DataType::Uint32 => Dtype::U32,
        DataType::Uint64 => Dtype::U64,
        DataType::Bfloat16 => Dtype::Bf16,
        DataType::Int4 | DataType::Int2 => Dtype::I8,
        DataType::String | DataType::Complex64 | DataType::Complex128 => return None,
        _ => Dtype::U8,
    })
}

/// Whether a graph can only store a type, as bytes, and not compute with it.
pub(in crate::onnx) fn is_storage(dtype: DataType) -> bool {
    let byte = matches!(dtype, DataType::Uint8 | DataType::Int8 | DataType::Bool);
    !byte && matches!(dtype_of(dtype), Some(Dtype::U8 | Dtype::I8))
}

/// Unpacks elements of `bits` bits, the first in the lowest bits, to one byte each.
fn unpack(packed: &[u8], bits: usize, signed: bool, out: &mut [u8]) {
    for (index, byte) in out.iter_mut().enumerate() {
        let at = index * bits;
        let next = packed.get(at / 8 + 1).copied().unwrap_or(0);
        let word = u16::from_le_bytes([packed[at / 8], next]) >> (at % 8);
        let elem = (word as u8) << (8 - bits);
        *byte = if signed { (elem as i8 >> (8 - bits)) as u8 } else { elem >> (8 - bits) };
    }
}
