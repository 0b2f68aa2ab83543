//! Reads messages into values, within limits of nesting and memory.

use std::fmt;
use std::mem::size_of;

use super::external::External;
use super::wire::{Field, Place, Schema, Span, Value, Wire};
use crate::error::Error;

/// A message of the format whose fields are being read.
pub(super) trait Message: Default {
    /// The type that the message becomes.
    type Made;
    const SCHEMA: Schema;

    /// Takes one field. A field that the schema does not name comes without a name.
    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error>;

    /// Checks the whole message, which begins at `place`, and makes its value.
    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Self::Made, Error>;
}

/// The state of reading messages.
pub(super) struct Reader<'a> {
    pub wire: Wire<'a>,
    pub external: External<'a>,
    depth: usize,
    /// Whether a field that models have was read.
    has_begun: bool,
    memory: Memory,
}

/// The memory budget: its size in bytes, and the bytes that are left.
struct Memory {
    bytes: u64,
    left: u64,
}

/// The most nested messages, as in Google's implementations: an `If` within an `If` takes three.
const MOST_DEPTH: usize = 100;

/// The most characters of a name in an error: names come from files, and may be as long as the file.
pub(super) const NAME: usize = 100;

/// The bytes that an allocator takes in addition to those that were asked for.
const ALLOCATION_BYTES: usize = 32;

/// The bytes that an external file takes in addition to its path.
const EXTERNAL_BYTES: usize = 512;

impl<'a> Reader<'a> {
    /// A reader with a budget of this many bytes.
    pub fn new(wire: Wire<'a>, external: External<'a>, memory_bytes: u64) -> Self {
        Self { wire, external, depth: 0, has_begun: false, memory: Memory { bytes: memory_bytes, left: memory_bytes } }
    }

    /// Reads the message that fills `span`.
    pub fn all<M: Message>(&mut self, span: Span, place: Place) -> Result<M::Made, Error> {
        if self.depth == MOST_DEPTH {
            return Err(self.fail(place, format_args!("expected at most {MOST_DEPTH} messages within one another")));
        }
        self.depth += 1;
        let (mut message, mut rest) = (M::default(), span);
        self.has_begun |= self.depth > 1;
        while let Some(field) = self.wire.next(&mut rest, &M::SCHEMA).map_err(|e| self.malformed(e))? {
            message.field(field, self)?;
            self.has_begun |= !field.place.name.is_empty();
        }
        self.depth -= 1;
        message.finish(Place { at: place.at, message: M::SCHEMA.message, number: 0, name: "" }, self)
    }

    /// Reads the message in a field.
    pub fn message<M: Message>(&mut self, field: &Field) -> Result<M::Made, Error> {
        let span = self.delimited(field)?;
        self.all::<M>(span, field.place)
    }

    /// Reads the message in a repeated field, and adds it to the list.
    pub fn push_message<M: Message>(&mut self, list: &mut Vec<M::Made>, field: &Field) -> Result<(), Error> {
        let made = self.message::<M>(field)?;
        self.push(list, made, field.place)
    }

    /// Reads the text in a repeated field, and adds it to the list.
    pub fn push_string(&mut self, list: &mut Vec<String>, field: &Field) -> Result<(), Error> {
        let text = self.string(field)?;
        self.push(list, text, field.place)
    }

    /// Reads an integer, or the value of an enumeration.
    pub fn int(&self, field: &Field) -> Result<i64, Error> {
        match field.value {
            Value::Varint(value) => Ok(value as i64),
            _ => Err(self.kind(field, "a varint")),
        }
    }

    pub fn float(&self, field: &Field) -> Result<f32, Error> {
        match field.value {
            Value::Fixed32(bits) => Ok(f32::from_bits(bits)),
            _ => Err(self.kind(field, "four bytes")),
        }
    }

    pub fn string(&mut self, field: &Field) -> Result<String, Error> {
        let bytes = self.bytes(field)?;
        String::from_utf8(bytes).map_err(|e| self.fail(field.place, e))
    }

    pub fn bytes(&mut self, field: &Field) -> Result<Vec<u8>, Error> {
        let span = self.delimited(field)?;
        let mut bytes = Vec::new();
        if span.bytes() > 0 {
            self.reserve(&mut bytes, span.bytes() as usize, field.place)?;
            bytes.resize(span.bytes() as usize, 0);
            self.wire.read(span, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Adds one integer, or many packed ones, to the end of `list`.
    pub fn ints(&mut self, list: &mut Vec<i64>, field: &Field) -> Result<(), Error> {
        let mut rest = field.payload;
        match field.value {
            Value::Varint(value) => self.push(list, value as i64, field.place),
            Value::Bytes => {
                while rest.bytes() > 0 {
                    let value = self.wire.varint(&mut rest, field.place)?;
                    self.push(list, value as i64, field.place)?;
                }
                Ok(())
            }
            _ => Err(self.kind(field, "varints")),
        }
    }

    /// Adds one number, or many packed ones, to the end of `list`.
    pub fn floats(&mut self, list: &mut Vec<f32>, field: &Field) -> Result<(), Error> {
        let mut rest = field.payload;
        match field.value {
            Value::Fixed32(bits) => self.push(list, f32::from_bits(bits), field.place),
            Value::Bytes => {
                while rest.bytes() > 0 {
                    let value = f32::from_le_bytes(self.wire.fixed(&mut rest, field.place)?);
                    self.push(list, value, field.place)?;
                }
                Ok(())
            }
            _ => Err(self.kind(field, "four bytes each")),
        }
    }

    /// The place of the bytes of a value that has a length.
    pub fn delimited(&self, field: &Field) -> Result<Span, Error> {
        match field.value {
            Value::Bytes => Ok(field.payload),
            _ => Err(self.kind(field, "bytes with a length")),
        }
    }

    /// Adds `item` to the end of `list`, within the budget.
    pub fn push<T>(&mut self, list: &mut Vec<T>, item: T, place: Place) -> Result<(), Error> {
        if list.len() == list.capacity() {
            self.reserve(list, list.len().max(1), place)?;
        }
        list.push(item);
        Ok(())
    }

    /// Puts `item` into memory of its own, within the budget.
    pub fn boxed<T>(&mut self, item: T, place: Place) -> Result<Box<T>, Error> {
        self.charge(size_of::<T>() + ALLOCATION_BYTES, place)?;
        Ok(Box::new(item))
    }

    /// Makes room for `more` items, within the budget. The old items count twice, because both copies exist while they
    /// are moved.
    pub fn reserve<T>(&mut self, list: &mut Vec<T>, more: usize, place: Place) -> Result<(), Error> {
        let items = list.len().saturating_add(more);
        self.charge(items.saturating_mul(size_of::<T>()).saturating_add(ALLOCATION_BYTES), place)?;
        list.try_reserve_exact(more).map_err(|e| self.fail(place, e))
    }

    /// The index of the external file at `location`, and its bytes.
    pub fn external(&mut self, location: &str, place: Place) -> Result<(usize, u64), Error> {
        if !self.external.knows(location) {
            self.charge(EXTERNAL_BYTES + location.len(), place)?;
        }
        let file = self.external.file(location, |what| self.wire.fail(place, what))?;
        Ok((file, self.external.files[file].bytes))
    }

    fn charge(&mut self, bytes: usize, place: Place) -> Result<(), Error> {
        let Some(left) = self.memory.left.checked_sub(bytes as u64) else {
            let most = self.memory.bytes;
            let what = format!("the model up to here takes more than {most} bytes of memory");
            return Err(self.fail(place, format_args!("{what}; `onnx::File::open_within` sets the limit")));
        };
        self.memory.left = left;
        Ok(())
    }

    /// An [`Error::Format`].
    pub fn fail(&self, place: Place, what: impl fmt::Display) -> Error {
        self.wire.fail(place, what)
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(&self, place: Place, what: &str, instead: &str) -> Error {
        let what = format!("{}: {place}: {what}", self.wire.path().display());
        Error::Unsupported { what, instead: instead.into() }
    }

    fn kind(&self, field: &Field, expected: &str) -> Error {
        let found = match field.value {
            Value::Varint(_) => "a varint",
            Value::Fixed64 => "eight bytes",
            Value::Fixed32(_) => "four bytes",
            Value::Bytes => "bytes with a length",
        };
        self.malformed(self.fail(field.place, format_args!("expected {expected}, found {found}")))
    }

    /// The error for a malformed field. Where no field of a model comes before it, the file is of another format.
    fn malformed(&self, error: Error) -> Error {
        match error {
            Error::Format { path, what } if !self.has_begun => {
                Error::format(&path, format!("not an ONNX file: {what}"))
            }
            other => other,
        }
    }
}
