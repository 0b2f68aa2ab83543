//! Messages become values: how deep they nest, and what memory they may take.

use std::fmt;
use std::mem::size_of;

use super::external::External;
use super::wire::{Field, Place, Schema, Span, Value, Wire};
use crate::error::Error;

/// A message of the format, while its fields are read.
pub(super) trait Message: Default {
    /// What it becomes.
    type Made;
    const SCHEMA: Schema;

    /// Takes one field; those that the schema does not name come as well, without a name.
    fn field(&mut self, field: Field, reader: &mut Reader<'_>) -> Result<(), Error>;

    /// Checks the whole, which begins at `place`.
    fn finish(self, place: Place, reader: &mut Reader<'_>) -> Result<Self::Made, Error>;
}

/// What reads messages.
pub(super) struct Reader<'a> {
    pub wire: Wire<'a>,
    pub external: External<'a>,
    depth: usize,
    memory: Memory,
}

/// A budget: bytes in all, and those that are left.
struct Memory {
    bytes: u64,
    left: u64,
}

/// Messages within messages, as in Google's implementations: an `If` within an `If` takes three.
const MOST_DEPTH: usize = 100;

/// What an allocator takes beside what it was asked for.
const ALLOCATION_BYTES: usize = 32;

/// What an external file takes beside its path.
const EXTERNAL_BYTES: usize = 512;

impl<'a> Reader<'a> {
    /// With a budget of this many bytes.
    pub fn new(wire: Wire<'a>, external: External<'a>, memory_bytes: u64) -> Self {
        Self { wire, external, depth: 0, memory: Memory { bytes: memory_bytes, left: memory_bytes } }
    }

    /// The message that all of `span` is.
    pub fn all<M: Message>(&mut self, span: Span, place: Place) -> Result<M::Made, Error> {
        if self.depth == MOST_DEPTH {
            return Err(self.fail(place, format_args!("expected at most {MOST_DEPTH} messages within one another")));
        }
        self.depth += 1;
        let (mut message, mut rest) = (M::default(), span);
        while let Some(field) = self.wire.next(&mut rest, &M::SCHEMA)? {
            message.field(field, self)?;
        }
        self.depth -= 1;
        message.finish(Place { at: place.at, message: M::SCHEMA.message, number: 0, name: "" }, self)
    }

    /// The message in a field.
    pub fn message<M: Message>(&mut self, field: &Field) -> Result<M::Made, Error> {
        let span = self.delimited(field)?;
        self.all::<M>(span, field.place)
    }

    /// The message in a field that a list is made of.
    pub fn push_message<M: Message>(&mut self, list: &mut Vec<M::Made>, field: &Field) -> Result<(), Error> {
        let made = self.message::<M>(field)?;
        self.push(list, made, field.place)
    }

    /// The text in a field that a list is made of.
    pub fn push_string(&mut self, list: &mut Vec<String>, field: &Field) -> Result<(), Error> {
        let text = self.string(field)?;
        self.push(list, text, field.place)
    }

    /// An integer, or an enumeration's value.
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

    /// One integer, or many packed, at the end of `list`.
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

    /// One number, or many packed, at the end of `list`.
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

    /// Where the bytes of a value are that has a length.
    pub fn delimited(&self, field: &Field) -> Result<Span, Error> {
        match field.value {
            Value::Bytes => Ok(field.payload),
            _ => Err(self.kind(field, "bytes with a length")),
        }
    }

    /// `item` at the end of `list`.
    pub fn push<T>(&mut self, list: &mut Vec<T>, item: T, place: Place) -> Result<(), Error> {
        if list.len() == list.capacity() {
            self.reserve(list, list.len().max(1), place)?;
        }
        list.push(item);
        Ok(())
    }

    /// `item` in memory of its own.
    pub fn boxed<T>(&mut self, item: T, place: Place) -> Result<Box<T>, Error> {
        self.charge(size_of::<T>() + ALLOCATION_BYTES, place)?;
        Ok(Box::new(item))
    }

    /// Room for so many more items, out of the budget; what the list had before counts twice, as both are there while it
    /// is copied.
    pub fn reserve<T>(&mut self, list: &mut Vec<T>, more: usize, place: Place) -> Result<(), Error> {
        let items = list.len().saturating_add(more);
        self.charge(items.saturating_mul(size_of::<T>()).saturating_add(ALLOCATION_BYTES), place)?;
        list.try_reserve_exact(more).map_err(|e| self.fail(place, e))
    }

    /// The external file at `location`: which one, and its bytes.
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
        self.fail(field.place, format_args!("expected {expected}, found {found}"))
    }
}
