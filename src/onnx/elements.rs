//! Reads the elements of tensors when they are asked for.

use std::sync::Arc;

use super::data_type::DataType;
use super::file::File;
use super::tensor::{Data, Tensor, entries};
use super::wire::{Place, Span, Wire};
use crate::error::Error;
use crate::files::Source;

impl File {
    /// Reads a tensor of this file: its elements as little-endian numbers, the last dimension innermost, those smaller
    /// than a byte packed from the lowest bits on.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if `out` has not exactly [`Tensor::bytes`], or the tensor is another file's;
    /// [`Error::Unsupported`] if it holds text; [`Error::Format`] if a stored number is none of its type, or there are
    /// not as many as the dimensions say; [`Error::Io`] if a file cannot be read, also if it has been cut short since it
    /// was opened.
    pub fn read(&self, tensor: &Tensor, out: &mut [u8]) -> Result<(), Error> {
        if out.len() != tensor.bytes {
            return Err(self.error(tensor, format!("{} bytes", out.len()), format!("{} bytes", tensor.bytes)));
        }
        if tensor.dtype == DataType::String {
            let what = format!("{}: tensor `{}`: text", self.path().display(), tensor.name);
            return Err(Error::Unsupported { what, instead: "only numbers are read".into() });
        }
        match &tensor.data {
            Data::External { file, offset } => match self.external.get(*file) {
                Some(file) => file.read(out, *offset),
                None => Err(self.foreign(tensor)),
            },
            Data::Bytes(spans) | Data::Varints(spans) if spans.iter().any(|span| span.end > self.bytes) => {
                Err(self.foreign(tensor))
            }
            Data::Bytes(spans) => self.copy(spans, out),
            Data::Varints(spans) => self.unpack(tensor, spans, out),
        }
    }

    /// The source and offset of the elements of a tensor, if they lie together and in little-endian order.
    pub(crate) fn place(&self, tensor: &Tensor) -> Option<(&Arc<Source>, u64)> {
        match &tensor.data {
            Data::External { file, offset } => self.external.get(*file).map(|file| (&file.source, *offset)),
            Data::Bytes(spans) => match spans[..] {
                [span] => Some((&self.source, span.at)),
                _ => None,
            },
            Data::Varints(_) => None,
        }
    }

    /// Copies pieces of the file to `out`, one after the other; their lengths add up to that of `out`.
    fn copy(&self, spans: &[Span], mut out: &mut [u8]) -> Result<(), Error> {
        for span in spans {
            let (piece, rest) = out.split_at_mut(span.bytes() as usize);
            self.source.read_at(piece, span.at).map_err(|e| Error::io("read", self.path(), e))?;
            out = rest;
        }
        Ok(())
    }

    /// Reads elements that are stored as varints.
    fn unpack(&self, tensor: &Tensor, spans: &[Span], out: &mut [u8]) -> Result<(), Error> {
        let mut wire = Wire::new(self.path(), &self.source, self.bytes);
        let (expected, mut found) = (entries(tensor.dtype, tensor.elems, tensor.bytes), 0);
        let mut packer = Packer { out, held: 0, bits: 0 };
        for span in spans {
            let mut rest = *span;
            while rest.bytes() > 0 && found <= expected {
                let place = Place { at: rest.at, message: "TensorProto", number: 1, name: tensor.dtype.field() };
                let varint = wire.varint(&mut rest, place)?;
                let Some(bits) = element(tensor.dtype, varint) else {
                    let (name, dtype) = (&tensor.name, tensor.dtype);
                    return Err(wire.fail(place, format_args!("tensor `{name}`: {varint} is no {dtype}")));
                };
                packer.push(bits, entry_bits(tensor.dtype));
                found += 1;
            }
        }
        if found != expected {
            let found = if found > expected { "more".into() } else { found.to_string() };
            return Err(self.error(tensor, format!("{expected} varints"), found));
        }
        packer.finish();
        Ok(())
    }

    fn foreign(&self, tensor: &Tensor) -> Error {
        self.error(tensor, "a tensor of this file".into(), "one of another file".into())
    }

    fn error(&self, tensor: &Tensor, expected: String, found: String) -> Error {
        Error::Tensor { path: self.path().to_owned(), tensor: tensor.name.clone(), expected, found }
    }
}

/// The bits that a varint holds: those of an element, or of a byte of smaller elements.
fn entry_bits(dtype: DataType) -> usize {
    match dtype.bits() {
        Some(bits) if bits >= 6 => bits,
        _ => 8,
    }
}

/// The bits of the element that a varint stands for; `None` if the type has no such element.
fn element(dtype: DataType, varint: u64) -> Option<u64> {
    let value = match dtype.field() {
        "int32_data" => i128::from(varint as i32),
        "int64_data" => i128::from(varint as i64),
        _ => i128::from(varint),
    };
    let bits = entry_bits(dtype);
    let range = match dtype {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => -(1 << (bits - 1))..1 << (bits - 1),
        _ => 0..1_i128 << bits,
    };
    range.contains(&value).then_some((value as u128 & ((1 << bits) - 1)) as u64)
}

/// Packs elements of any number of bits into bytes, the first in the lowest bits.
struct Packer<'a> {
    out: &'a mut [u8],
    held: u128,
    bits: usize,
}

impl Packer<'_> {
    /// Adds `bits` bits, at most 64. Bytes that do not fit into `out` are dropped.
    fn push(&mut self, value: u64, bits: usize) {
        self.held |= u128::from(value) << self.bits;
        self.bits += bits;
        while self.bits >= 8 {
            self.byte();
            self.bits -= 8;
        }
    }

    /// Writes the last bits, with zeros above them.
    fn finish(mut self) {
        if self.bits > 0 {
            self.byte();
        }
    }

    fn byte(&mut self) {
        if let Some((first, rest)) = std::mem::take(&mut self.out).split_first_mut() {
            *first = self.held as u8;
            self.out = rest;
        }
        self.held >>= 8;
    }
}
