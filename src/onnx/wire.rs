//! Reads Protobuf's wire format at positions of a file.
//!
//! A message is a sequence of fields: a varint with the field's number and the kind of its value, then the value. A
//! value of variable length begins with its length, which must not reach beyond the message around it.

use std::fmt;
use std::path::Path;

use crate::error::Error;
use crate::files::Source;

/// Bytes of a file: from `at` up to `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub at: u64,
    pub end: u64,
}

impl Span {
    pub fn bytes(self) -> u64 {
        self.end - self.at
    }
}

/// A message's name, and the fields that are read, by number; all others are skipped.
pub(super) struct Schema {
    pub message: &'static str,
    pub fields: &'static [(u32, &'static str)],
}

/// A place in a file, for errors.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub at: u64,
    pub message: &'static str,
    /// The field's number; 0 for the message itself.
    pub number: u32,
    /// The field's name; empty for one that is not read.
    pub name: &'static str,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.message)?;
        match (self.number, self.name) {
            (0, _) => Ok(()),
            (number, "") => write!(f, ", field {number}"),
            (_, name) => write!(f, ".{name}"),
        }
    }
}

/// The kind of a value, with the number if the value is a single number.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Varint(u64),
    Fixed64,
    Fixed32(u32),
    Bytes,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub place: Place,
    pub value: Value,
    /// The value's bytes, without its length.
    pub payload: Span,
}

/// A file that is read in pieces.
pub(super) struct Wire<'a> {
    path: &'a Path,
    source: &'a Source,
    file_bytes: u64,
    piece: Vec<u8>,
    piece_at: u64,
}

/// The bytes that are read at a time. Longer values are skipped, or read when they are needed.
const PIECE_BYTES: u64 = 16 << 10;

/// The most bytes of a varint: 64 bits at seven per byte.
pub(super) const VARINT_BYTES: u64 = 10;

impl<'a> Wire<'a> {
    /// The file at `path`, which has this many bytes.
    pub fn new(path: &'a Path, source: &'a Source, file_bytes: u64) -> Self {
        Self { path, source, file_bytes, piece: Vec::new(), piece_at: 0 }
    }

    /// The path of the file.
    pub fn path(&self) -> &'a Path {
        self.path
    }

    /// An [`Error::Format`].
    pub fn fail(&self, place: Place, what: impl fmt::Display) -> Error {
        Error::format(self.path, format!("{place}: {what}"))
    }

    /// The next field of `rest`, the rest of a message, which then begins after this field; `None` at its end.
    pub fn next(&mut self, rest: &mut Span, schema: &Schema) -> Result<Option<Field>, Error> {
        if rest.at == rest.end {
            return Ok(None);
        }
        let mut place = Place { at: rest.at, message: schema.message, number: 0, name: "" };
        let tag = self.varint(rest, place)?;
        let number = u32::try_from(tag).unwrap_or(0) >> 3;
        if number == 0 {
            return Err(self.fail(place, format_args!("expected the number of a field, found the tag {tag}")));
        }
        place.number = number;
        place.name = schema.fields.iter().find(|(known, _)| *known == number).map_or("", |(_, name)| name);
        let mut payload = *rest;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint(rest, place)?),
            1 => {
                self.fixed::<8>(rest, place)?;
                Value::Fixed64
            }
            2 => {
                payload = self.delimited(rest, place)?;
                Value::Bytes
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.fixed(rest, place)?)),
            3 | 4 => return Err(self.fail(place, "expected a value, found a group, which ONNX has none of")),
            kind => return Err(self.fail(place, format_args!("expected a wire type from 0 to 5, found {kind}"))),
        };
        payload.end = rest.at;
        Ok(Some(Field { place, value, payload }))
    }

    /// The varint at the beginning of `rest`, which then begins after it.
    pub fn varint(&mut self, rest: &mut Span, place: Place) -> Result<u64, Error> {
        let most = rest.bytes().min(VARINT_BYTES);
        let bytes = &self.at_least(rest.at, most)?[..most as usize];
        let mut value = 0;
        for (i, &byte) in bytes.iter().enumerate() {
            let bits = u64::from(byte & 0x7F);
            value |= bits << (7 * i);
            if byte < 0x80 && (bits << (7 * i)) >> (7 * i) == bits {
                rest.at += i as u64 + 1;
                return Ok(value);
            }
        }
        Err(match most == VARINT_BYTES {
            true => self.fail(place, format_args!("the varint at byte {} has more than 64 bits", rest.at)),
            false => self.fail(place, format_args!("the varint at byte {} is cut short", rest.at)),
        })
    }

    /// The `N` bytes at the beginning of `rest`, which then begins after them.
    pub fn fixed<const N: usize>(&mut self, rest: &mut Span, place: Place) -> Result<[u8; N], Error> {
        if rest.bytes() < N as u64 {
            return Err(self.fail(place, format_args!("expected {N} bytes, found {}", rest.bytes())));
        }
        let mut bytes = [0; N];
        self.read(Span { at: rest.at, end: rest.at + N as u64 }, &mut bytes)?;
        rest.at += N as u64;
        Ok(bytes)
    }

    /// The bytes after the length at the beginning of `rest`, which then begins after them.
    fn delimited(&mut self, rest: &mut Span, place: Place) -> Result<Span, Error> {
        let length = self.varint(rest, place)?;
        if length > rest.bytes() {
            return Err(self.fail(
                place,
                format_args!(
                    "expected {} bytes at most, to the end of {}, found a length of {length}; is the file \
                     cut short?",
                    rest.bytes(),
                    place.message
                ),
            ));
        }
        let payload = Span { at: rest.at, end: rest.at + length };
        rest.at = payload.end;
        Ok(payload)
    }

    /// Fills `out` with the bytes of `span`, which has the same length.
    pub fn read(&mut self, span: Span, out: &mut [u8]) -> Result<(), Error> {
        if span.bytes() <= PIECE_BYTES {
            out.copy_from_slice(&self.at_least(span.at, span.bytes())?[..out.len()]);
            return Ok(());
        }
        self.read_at(out, span.at)
    }

    /// The piece from byte `at` on, with at least `bytes` bytes, which the file has and a piece can hold.
    fn at_least(&mut self, at: u64, bytes: u64) -> Result<&[u8], Error> {
        let held = Span { at: self.piece_at, end: self.piece_at + self.piece.len() as u64 };
        if at < held.at || at + bytes > held.end {
            let mut piece = std::mem::take(&mut self.piece);
            piece.resize(PIECE_BYTES.min(self.file_bytes - at) as usize, 0);
            self.read_at(&mut piece, at)?;
            (self.piece, self.piece_at) = (piece, at);
        }
        Ok(&self.piece[(at - self.piece_at) as usize..])
    }

    fn read_at(&self, out: &mut [u8], at: u64) -> Result<(), Error> {
        self.source.read_at(out, at).map_err(|e| Error::io("read", self.path, e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: Schema = Schema { message: "M", fields: &[(1, "one"), (16, "sixteen")] };

    /// All fields of a message, or the error text.
    fn fields(bytes: &[u8]) -> Result<Vec<Field>, String> {
        let source = Source::Memory(bytes.to_vec());
        let mut wire = Wire::new(Path::new("m"), &source, bytes.len() as u64);
        let (mut rest, mut found) = (Span { at: 0, end: bytes.len() as u64 }, Vec::new());
        while let Some(field) = wire.next(&mut rest, &SCHEMA).map_err(|e| e.to_string())? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn every_wire_type_is_read() {
        let bytes = [
            &[0x08, 0xAC, 0x02][..],
            &[0x09, 1, 0, 0, 0, 0, 0, 0, 0x80],
            &[0x82, 0x01, 2, 7, 8],
            &[0x15, 1, 2, 3, 4],
            &[0x08, 0x81, 0x80, 0x00],
        ]
        .concat();
        let found = fields(&bytes).unwrap();
        assert!(matches!(found[0].value, Value::Varint(300)) && found[0].place.to_string() == "byte 0: M.one");
        assert!(matches!(found[1].value, Value::Fixed64) && found[1].payload == Span { at: 4, end: 12 });
        assert!(matches!(found[2].value, Value::Bytes) && found[2].payload == Span { at: 15, end: 17 });
        assert_eq!(found[2].place.to_string(), "byte 12: M.sixteen");
        assert!(matches!(found[3].value, Value::Fixed32(0x0403_0201)));
        assert_eq!(found[3].place.to_string(), "byte 17: M, field 2");
        assert!(matches!(found[4].value, Value::Varint(1)), "zeros on the left are legal");
    }

    #[test]
    fn varints_have_64_bits() {
        let of = |bytes: &[u8]| fields(&[&[0x08], bytes].concat());
        let most = [&[0xFF; 9][..], &[1]].concat();
        assert!(matches!(of(&most).unwrap()[0].value, Value::Varint(u64::MAX)));
        for (bytes, what) in [
            (&[0xFF; 10][..], "has more than 64 bits"),
            (&[&[0xFF; 9][..], &[2]].concat(), "has more than 64 bits"),
            (&[0x80; 11], "has more than 64 bits"),
            (&[0x80; 3], "is cut short"),
            (&[], "is cut short"),
        ] {
            assert_eq!(of(bytes).unwrap_err(), format!("m: byte 0: M.one: the varint at byte 1 {what}"));
        }
    }

    #[test]
    fn what_is_no_field_is_refused() {
        for (bytes, what) in [
            (&[0x00, 0x00][..], "byte 0: M: expected the number of a field, found the tag 0"),
            (&[0x80, 0x80, 0x80, 0x80, 0x10, 0], "byte 0: M: expected the number of a field, found the tag 4294967296"),
            (&[0x0B], "byte 0: M.one: expected a value, found a group"),
            (&[0x0C], "byte 0: M.one: expected a value, found a group"),
            (&[0x08, 0x01, 0x0F], "byte 2: M.one: expected a wire type from 0 to 5, found 7"),
            (&[0x09, 1, 2], "byte 0: M.one: expected 8 bytes, found 2"),
            (&[0x0A, 3, 1, 2], "byte 0: M.one: expected 2 bytes at most, to the end of M, found a length of 3"),
            (
                &[0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1],
                "expected 0 bytes at most, to the end of M, found a length of 18446744073709551615",
            ),
        ] {
            let said = fields(bytes).unwrap_err();
            assert!(said.contains(what), "{said}");
        }
    }

    #[test]
    fn values_longer_than_a_piece_are_skipped_and_read() {
        let long: Vec<u8> = (0..3 * PIECE_BYTES).map(|i| i as u8).collect();
        let bytes = [&[0x0A, 0x80, 0x80, 0x03], &long[..], &[0x08, 5]].concat();
        let found = fields(&bytes).unwrap();
        assert!(matches!(found[1].value, Value::Varint(5)) && found[0].payload.bytes() == long.len() as u64);
        let source = Source::Memory(bytes);
        let mut wire = Wire::new(Path::new("m"), &source, 3 * PIECE_BYTES + 6);
        for span in [found[0].payload, Span { at: 10, end: 20 }, Span { at: 4, end: 5 }] {
            let mut out = vec![0; span.bytes() as usize];
            wire.read(span, &mut out).unwrap();
            assert_eq!(out, long[span.at as usize - 4..span.end as usize - 4]);
        }
    }
}
