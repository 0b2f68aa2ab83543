//! Attributes of nodes.

use super::graph::GraphProto;
use super::reader::{Message, NAME, Reader};
use super::tensor::{Tensor, TensorFields};
use super::wire::{Field, Place, Schema};
use crate::error::{Error, printable};

/// A named value of a node, or a function's parameter with its default.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Attribute {
    /// The attribute's name; never empty.
    pub name: String,
    /// The attribute's value.
    pub value: AttributeValue,
}

/// The value of an attribute; it has the type that the file declares.
///
/// ```
/// use trefoil::onnx::AttributeValue;
/// assert_eq!(AttributeValue::String(b"SAME_UPPER".to_vec()).as_str(), Some("SAME_UPPER"));
/// assert_eq!(AttributeValue::Int(1).as_str(), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AttributeValue {
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Text in UTF-8, or bytes if the operator expects bytes.
    String(Vec<u8>),
    /// A tensor, which [`File::read`](super::File::read) reads.
    Tensor(Box<Tensor>),
    /// A graph, such as a branch; its nodes may read values of the graph around it.
    Graph(Box<GraphProto>),
    /// Numbers.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Strings(Vec<Vec<u8>>),
    /// Tensors.
    Tensors(Vec<Tensor>),
    /// Graphs.
    Graphs(Vec<GraphProto>),
    /// A type, which is not read.
    Type,
    /// Types, which are not read.
    Types,
    /// In a function: a reference to the attribute of this name on the calling node. If the node does not have it, and
    /// there is no default, the referring attribute is absent.
    Reference(String),
}

impl AttributeValue {
    /// The text, if the value is text in UTF-8; else `None`.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The number of the attribute's type in the specification, 0 for a reference.
    fn number(&self) -> i64 {
        match self {
            Self::Reference(_) => 0,
            Self::Float(_) => 1,
            Self::Int(_) => 2,
            Self::String(_) => 3,
            Self::Tensor(_) => 4,
            Self::Graph(_) => 5,
            Self::Floats(_) => 6,
            Self::Ints(_) => 7,
            Self::Strings(_) => 8,
            Self::Tensors(_) => 9,
            Self::Graphs(_) => 10,
            Self::Type => 13,
            Self::Types => 14,
        }
    }

    /// The value of an attribute that declares a type and has no value: writers leave out zeros and empty lists.
    fn left_out(number: i64) -> Option<Self> {
        Some(match number {
            1 => Self::Float(0.0),
            2 => Self::Int(0),
            3 => Self::String(Vec::new()),
            6 => Self::Floats(Vec::new()),
            7 => Self::Ints(Vec::new()),
            8 => Self::Strings(Vec::new()),
            9 => Self::Tensors(Vec::new()),
            10 => Self::Graphs(Vec::new()),
            _ => return None,
        })
    }
}

/// The names of attribute types, by number.
const TYPES: [&str; 15] = [
    "UNDEFINED",
    "FLOAT",
    "INT",
    "STRING",
    "TENSOR",
    "GRAPH",
    "FLOATS",
    "INTS",
    "STRINGS",
    "TENSORS",
    "GRAPHS",
    "SPARSE_TENSOR",
    "SPARSE_TENSORS",
    "TYPE_PROTO",
    "TYPE_PROTOS",
];

fn type_name(number: i64) -> &'static str {
    usize::try_from(number).ok().and_then(|number| TYPES.get(number)).unwrap_or(&"of no known number")
}

#[derive(Default)]
pub(super) struct AttributeFields {
    name: String,
    reference: String,
    number: i64,
    value: Option<AttributeValue>,
}

impl AttributeFields {
    /// Takes the attribute's only value; a second one is an error.
    fn one(&mut self, value: AttributeValue, place: Place, reader: &Reader<'_>) -> Result<(), Error> {
        match self.value.replace(value) {
            None => Ok(()),
            Some(_) => Err(self.second(place, reader)),
        }
    }

    fn second(&self, place: Place, reader: &Reader<'_>) -> Error {
        reader.fail(place, format_args!("a second value of the attribute `{}`", printable(&self.name, NAME)))
    }
}

/// The list that a repeated field extends; an error if the attribute already has a value of another type.
macro_rules! list {
    ($fields:ident, $kind:ident, $place:expr, $reader:ident) => {
        match $fields.value.get_or_insert_with(|| AttributeValue::$kind(Vec::new())) {
            AttributeValue::$kind(list) => list,
            _ => return Err($fields.second($place, $reader)),
        }
    };
}

impl Message for AttributeFields {
    type Made = Attribute;
    const SCHEMA: Schema = Schema {
        message: "AttributeProto",
        fields: &[
            (1, "name"),
            (2, "f"),
            (3, "i"),
            (4, "s"),
            (5, "t"),
            (6, "g"),
            (7, "floats"),
            (8, "ints"),
            (9, "strings"),
            (10, "tensors"),
            (11, "graphs"),
            (14, "tp"),
            (15, "type_protos"),
            (20, "type"),
            (21, "ref_attr_name"),
            (22, "sparse_tensor"),
            (23, "sparse_tensors"),
        ],
    };

    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error> {
        let place = field.place;
        let value = match place.name {
            "f" => AttributeValue::Float(reader.float(&field)?),
            "i" => AttributeValue::Int(reader.int(&field)?),
            "s" => AttributeValue::String(reader.bytes(&field)?),
            "t" => {
                let tensor = reader.message::<TensorFields>(&field)?;
                AttributeValue::Tensor(reader.boxed(tensor, place)?)
            }
            "g" => {
                let graph = reader.message::<GraphProto>(&field)?;
                AttributeValue::Graph(reader.boxed(graph, place)?)
            }
            "tp" => AttributeValue::Type,
            "floats" => return reader.floats(list!(self, Floats, place, reader), &field),
            "ints" => return reader.ints(list!(self, Ints, place, reader), &field),
            "strings" => {
                let text = reader.bytes(&field)?;
                return reader.push(list!(self, Strings, place, reader), text, place);
            }
            "tensors" => return reader.push_message::<TensorFields>(list!(self, Tensors, place, reader), &field),
            "graphs" => return reader.push_message::<GraphProto>(list!(self, Graphs, place, reader), &field),
            "type_protos" if self.value == Some(AttributeValue::Types) => return Ok(()),
            "type_protos" => AttributeValue::Types,
            "name" => return reader.string(&field).map(|name| self.name = name),
            "type" => return reader.int(&field).map(|number| self.number = number),
            "ref_attr_name" => return reader.string(&field).map(|name| self.reference = name),
            "sparse_tensor" | "sparse_tensors" => {
                return Err(reader.unsupported(place, "a sparse tensor", "store it as a dense one"));
            }
            _ => return Ok(()),
        };
        self.one(value, place, reader)
    }

    fn finish(mut self, place: Place, reader: &mut Reader<'_>) -> Result<Attribute, Error> {
        if !self.reference.is_empty() {
            let reference = AttributeValue::Reference(std::mem::take(&mut self.reference));
            self.one(reference, place, reader)?;
            self.number = 0;
        }
        let Self { name, number, value, .. } = self;
        let fail = |what| Err(reader.fail(place, format_args!("attribute `{}` {what}", printable(&name, NAME))));
        let Some(value) = value.or_else(|| AttributeValue::left_out(number)) else {
            return fail(format!("has no value; its type is {}", type_name(number)));
        };
        // Files older than version 3 of the format declare no types.
        if number != 0 && number != value.number() {
            return fail(format!("is declared as {}, but is {}", type_name(number), type_name(value.number())));
        }
        Ok(Attribute { name, value })
    }
}
