//! Types of values, as a file claims them.

use super::data_type::DataType;
use super::reader::{Message, Reader};
use super::wire::{Field, Place, Schema};
use crate::error::Error;

/// The type of a value as the file claims it. Exporters are often wrong about dimensions in the middle of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ValueInfo {
    /// The value's name; never empty for a graph's input.
    pub name: String,
    /// The value's type.
    pub kind: ValueType,
}

/// The type of a value.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum ValueType {
    /// A type that the file does not give.
    #[default]
    Unknown,
    /// A tensor.
    Tensor {
        /// The type of its elements, if the file has it.
        dtype: Option<DataType>,
        /// The value's dimensions, outermost first, if the file has their number.
        dims: Option<Vec<Dim>>,
    },
    /// Another kind of value, by its name: `"sequence"`, `"map"`, `"optional"`, `"sparse tensor"` or `"opaque"`.
    Other(&'static str),
}

/// One dimension of a value.
///
/// ```
/// use trefoil::onnx::{Dim, File, ValueType};
/// let file = File::open("tests/data/onnx/graph.onnx")?;
/// let ValueType::Tensor { dims: Some(dims), .. } = &file.model().graph.inputs[0].kind else { panic!("no tensor") };
/// assert_eq!(dims[..], [Dim::Named("N".into()), Dim::Fixed(3)]);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Dim {
    /// Any size; also if the file has a negative number.
    #[default]
    Unknown,
    /// Any size, but the same for all dimensions with this name. Exporters also write `?` or an expression here.
    Named(String),
    /// This size.
    Fixed(usize),
}

impl Message for ValueInfo {
    type Made = Self;
    const SCHEMA: Schema = Schema { message: "ValueInfoProto", fields: &[(1, "name"), (2, "type")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "name" => self.name = reader.string(&field)?,
            "type" => self.kind = reader.message::<ValueType>(&field)?,
            _ => {}
        }
        Ok(())
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(self)
    }
}

impl Message for ValueType {
    type Made = Self;
    const SCHEMA: Schema = Schema {
        message: "TypeProto",
        fields: &[
            (1, "tensor_type"),
            (4, "sequence_type"),
            (5, "map_type"),
            (7, "opaque_type"),
            (8, "sparse_tensor_type"),
            (9, "optional_type"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        *self = match field.place.name {
            "tensor_type" => reader.message::<TensorType>(&field)?,
            "sequence_type" => Self::Other("sequence"),
            "map_type" => Self::Other("map"),
            "opaque_type" => Self::Other("opaque"),
            "sparse_tensor_type" => Self::Other("sparse tensor"),
            "optional_type" => Self::Other("optional"),
            _ => return Ok(()),
        };
        Ok(())
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(self)
    }
}

#[derive(Default)]
struct TensorType {
    dtype: Option<DataType>,
    dims: Option<Vec<Dim>>,
}

impl Message for TensorType {
    type Made = ValueType;
    const SCHEMA: Schema = Schema { message: "TypeProto.Tensor", fields: &[(1, "elem_type"), (2, "shape")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "elem_type" => self.dtype = DataType::from_number(reader.int(&field)?),
            "shape" => self.dims = Some(reader.message::<TensorShape>(&field)?),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<ValueType, Error> {
        Ok(ValueType::Tensor { dtype: self.dtype, dims: self.dims })
    }
}

#[derive(Default)]
struct TensorShape(Vec<Dim>);

impl Message for TensorShape {
    type Made = Vec<Dim>;
    const SCHEMA: Schema = Schema { message: "TensorShapeProto", fields: &[(1, "dim")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "dim" => reader.push_message::<Dim>(&mut self.0, &field),
            _ => Ok(()),
        }
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<Vec<Dim>, Error> {
        Ok(self.0)
    }
}

impl Message for Dim {
    type Made = Self;
    const SCHEMA: Schema =
        Schema { message: "TensorShapeProto.Dimension", fields: &[(1, "dim_value"), (2, "dim_param")] };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match field.place.name {
            "dim_value" => *self = usize::try_from(reader.int(&field)?).map_or(Self::Unknown, Self::Fixed),
            "dim_param" => *self = Self::Named(reader.string(&field)?),
            _ => {}
        }
        Ok(())
    }

    fn finish(self, _: Place, _: &mut Reader<'_>) -> Result<Self, Error> {
        Ok(match self {
            Self::Named(name) if name.is_empty() => Self::Unknown,
            dim => dim,
        })
    }
}
