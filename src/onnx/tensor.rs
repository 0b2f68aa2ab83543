//! Constants: type, dimensions, and the place of the elements.

use super::data_type::DataType;
use super::model::KeyValue;
use super::reader::{Message, NAME, Reader};
use super::wire::{Field, Place, Schema, Span, VARINT_BYTES, Value};
use crate::error::{Error, printable};

/// A tensor in a file, without its elements, which [`File::read`](super::File::read) reads.
///
/// ```
/// use trefoil::onnx::{DataType, File};
/// let file = File::open("tests/data/onnx/graph.onnx")?;
/// let weight = &file.model().graph.initializers[0];
/// assert_eq!((weight.name.as_str(), weight.dtype, &weight.dims[..]), ("weight", DataType::Float, &[2, 3][..]));
/// assert_eq!((weight.elems(), weight.bytes()), (6, 24));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Tensor {
    /// The tensor's name; never empty for a graph's initializer.
    pub name: String,
    /// The type of its elements.
    pub dtype: DataType,
    /// The tensor's dimensions, outermost first; none for a single element.
    pub dims: Vec<usize>,
    pub(super) elems: usize,
    pub(super) bytes: usize,
    pub(super) data: Data,
}

/// The place of a tensor's elements.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Data {
    /// In the file, as little-endian elements, in consecutive pieces; each text is a piece.
    Bytes(Vec<Span>),
    /// In the file, as varints.
    Varints(Vec<Span>),
    /// In an external file, by its index.
    External { file: usize, offset: u64 },
}

impl Tensor {
    /// The number of elements: the product of the dimensions.
    pub fn elems(&self) -> usize {
        self.elems
    }

    /// The bytes of all elements, with the last byte padded if elements are smaller; 0 for text.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[derive(Default)]
pub(super) struct TensorFields {
    name: String,
    dims: Vec<i64>,
    dtype: i64,
    /// The places of the elements, and the name of the field that has them.
    stored: Vec<Span>,
    stored_in: &'static str,
    is_external: bool,
    external: Vec<(String, String)>,
}

impl Message for TensorFields {
    type Made = Tensor;
    const SCHEMA: Schema = Schema {
        message: "TensorProto",
        fields: &[
            (1, "dims"),
            (2, "data_type"),
            (3, "segment"),
            (4, "float_data"),
            (5, "int32_data"),
            (6, "string_data"),
            (7, "int64_data"),
            (8, "name"),
            (9, "raw_data"),
            (10, "double_data"),
            (11, "uint64_data"),
            (13, "external_data"),
            (14, "data_location"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        match (field.place.name, field.value) {
            ("dims", _) => reader.ints(&mut self.dims, &field),
            ("data_type", _) => reader.int(&field).map(|number| self.dtype = number),
            ("name", _) => reader.string(&field).map(|name| self.name = name),
            ("external_data", _) => reader.push_message::<KeyValue>(&mut self.external, &field),
            ("data_location", _) => reader.int(&field).map(|location| self.is_external = location == 1),
            ("segment", _) => Err(reader.unsupported(field.place, "a tensor in segments", "store it as a whole")),
            ("float_data", Value::Fixed32(_))
            | ("double_data", Value::Fixed64)
            | ("int32_data" | "int64_data" | "uint64_data", Value::Varint(_)) => self.store(&field, reader),
            ("string_data" | "raw_data", _)
            | ("float_data" | "double_data" | "int32_data" | "int64_data" | "uint64_data", _) => {
                reader.delimited(&field)?;
                self.store(&field, reader)
            }
            _ => Ok(()),
        }
    }

    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Tensor, Error> {
        let name = printable(&self.name, NAME);
        let fail = |reader: &Reader<'_>, what| Err(reader.fail(place, format_args!("tensor `{name}`: {what}")));
        let Some(dtype) = DataType::from_number(self.dtype) else {
            return fail(reader, format!("expected a data_type from 1 to 28, found {}", self.dtype));
        };
        let dims = match self.dims(place, reader)? {
            Ok(dims) => dims,
            Err(what) => return fail(reader, what),
        };
        let Some((elems, bytes)) = size(&dims, dtype) else {
            return fail(reader, format!("the size of {dtype} of shape {} overflows", shape(&dims)));
        };
        let data = if self.is_external {
            self.external(bytes, place, reader)?
        } else {
            match self.stored(dtype, elems, bytes) {
                Ok(()) => data(self.stored, self.stored_in),
                Err(found) => return fail(reader, format!("{dtype} of shape {}: {found}", shape(&dims))),
            }
        };
        Ok(Tensor { name: self.name, dtype, dims, elems, bytes, data })
    }
}

/// The numbers of elements and bytes; `None` if one of them overflows.
fn size(dims: &[usize], dtype: DataType) -> Option<(usize, usize)> {
    let elems = match dims.contains(&0) {
        true => 0,
        false => dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim))?,
    };
    let bits = elems as u128 * dtype.bits().unwrap_or(0) as u128;
    Some((elems, usize::try_from(bits.div_ceil(8)).ok()?))
}

/// The dimensions for an error; if there are many, only the first ones.
fn shape(dims: &[usize]) -> String {
    match dims.get(..MANY_DIMS) {
        Some(first) if dims.len() > MANY_DIMS => format!("{first:?} and {} more", dims.len() - MANY_DIMS),
        _ => format!("{dims:?}"),
    }
}

const MANY_DIMS: usize = 8;

/// The place of elements that are stored in a field of this name.
fn data(spans: Vec<Span>, stored_in: &str) -> Data {
    match stored_in {
        "int32_data" | "int64_data" | "uint64_data" => Data::Varints(spans),
        _ => Data::Bytes(spans),
    }
}

impl TensorFields {
    /// Takes the elements of one field. Writers may repeat the other fields without elements.
    fn store(&mut self, field: &Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        let (place, span) = (field.place, field.payload);
        if span.bytes() == 0 && place.name != "string_data" {
            return Ok(());
        }
        if !self.stored.is_empty() && (self.stored_in != place.name || place.name == "raw_data") {
            return Err(reader.fail(place, format_args!("elements of the tensor are in {}, too", self.stored_in)));
        }
        self.stored_in = place.name;
        reader.push(&mut self.stored, span, place)
    }

    fn dims(&self, place: Place, reader: &mut Reader<'_>) -> Result<Result<Vec<usize>, String>, Error> {
        let mut dims = Vec::new();
        for &dim in &self.dims {
            match usize::try_from(dim) {
                Ok(dim) => reader.push(&mut dims, dim, place)?,
                Err(_) => return Ok(Err(format!("expected dimensions from 0, found {dim}"))),
            }
        }
        Ok(Ok(dims))
    }

    /// Checks the stored bytes against type and size; for varints, whether there can be enough.
    fn stored(&self, dtype: DataType, elems: usize, bytes: usize) -> Result<(), String> {
        let found: u64 = self.stored.iter().map(|span| span.bytes()).sum();
        let is_raw = self.stored_in == "raw_data" && dtype != DataType::String;
        if !self.stored.is_empty() && !is_raw && self.stored_in != dtype.field() {
            return Err(format!("expected elements in {}, found some in {}", dtype.field(), self.stored_in));
        }
        if dtype == DataType::String {
            return match self.stored.len() == elems {
                true => Ok(()),
                false => Err(format!("expected {elems} texts, found {}", self.stored.len())),
            };
        }
        let entries = entries(dtype, elems, bytes) as u64;
        match data(Vec::new(), self.stored_in) {
            Data::Varints(_) if !(entries..=entries.saturating_mul(VARINT_BYTES)).contains(&found) => {
                Err(format!("expected {entries} varints, found {found} bytes"))
            }
            Data::Bytes(_) if found != bytes as u64 => Err(format!("expected {bytes} bytes, found {found}")),
            _ => Ok(()),
        }
    }

    /// The place of elements in another file.
    fn external(&self, bytes: usize, place: Place, reader: &mut Reader<'_>) -> Result<Data, Error> {
        let entry = |key| self.external.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str());
        let name = printable(&self.name, NAME);
        let fail = |reader: &Reader<'_>, what| Err(reader.fail(place, format_args!("tensor `{name}`: {what}")));
        if !self.stored.is_empty() {
            return fail(reader, format!("elements in external data and in {}", self.stored_in));
        }
        let Some(location) = entry("location") else {
            return fail(reader, "external data without a location".into());
        };
        let (Some(offset), Some(length)) = (number(entry("offset"), 0), number(entry("length"), bytes as u64)) else {
            let [offset, length] = ["offset", "length"].map(|key| printable(entry(key).unwrap_or("none"), NAME));
            return fail(
                reader,
                format!("external data: expected numbers, found offset `{offset}`, length `{length}`"),
            );
        };
        let (file, file_bytes) = reader.external(location, place)?;
        if length != bytes as u64 {
            return fail(reader, format!("external data: expected {bytes} bytes, found a length of {length}"));
        }
        match offset.checked_add(length) {
            Some(end) if end <= file_bytes => Ok(Data::External { file, offset }),
            _ => fail(
                reader,
                format!(
                    "external data `{}`: expected {length} bytes at offset {offset}, found a file of \
                     {file_bytes} bytes; is it cut short?",
                    printable(location, NAME)
                ),
            ),
        }
    }
}

/// The number of varints for these elements: one for each element, or one for each byte of smaller elements.
pub(super) fn entries(dtype: DataType, elems: usize, bytes: usize) -> usize {
    if dtype.bits() < Some(6) { bytes } else { elems }
}

fn number(text: Option<&str>, absent: u64) -> Option<u64> {
    text.map_or(Some(absent), |text| text.parse().ok())
}
