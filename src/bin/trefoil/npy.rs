//! NumPy's .npy files, versions 1 to 3: one array each, little-endian, the last dimension innermost.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use trefoil::{Dtype, files};

/// An array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    pub dtype: Dtype,
    pub dims: Vec<usize>,
    /// The elements, dense and little-endian.
    pub bytes: Vec<u8>,
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// Types by their names in a header, without the byte order. Types that NumPy does not have are stored as raw bytes, as
/// `ml_dtypes` writes them.
const TYPES: [(&str, Dtype); 13] = [
    ("b1", Dtype::Bool),
    ("u1", Dtype::U8),
    ("u2", Dtype::U16),
    ("u4", Dtype::U32),
    ("u8", Dtype::U64),
    ("i1", Dtype::I8),
    ("i2", Dtype::I16),
    ("i4", Dtype::I32),
    ("i8", Dtype::I64),
    ("f2", Dtype::F16),
    ("V2", Dtype::Bf16),
    ("f4", Dtype::F32),
    ("f8", Dtype::F64),
];

/// Reads the array in a file.
pub fn read(path: &Path) -> Result<Array> {
    let named = || format!("cannot use {}", path.display());
    files::read("read the array", path, u64::MAX).map_err(anyhow::Error::from).and_then(parse).with_context(named)
}

/// Parses the content of a file.
fn parse(mut file: Vec<u8>) -> Result<Array> {
    let header = header_end(&file).context("it is no .npy file: write one by numpy.save")?;
    let text = std::str::from_utf8(&file[header.clone()]).context("its header is no text")?;
    let Header { descr, fortran_order, shape: dims } = Header::parse(text).context("its header is not one of NumPy")?;
    let dtype = dtype(descr)?;
    file.drain(..header.end);
    let bytes = file;
    ensure!(
        !fortran_order,
        "its first dimension is the innermost: save it as numpy.ascontiguousarray(x), the last one innermost"
    );
    let wanted = dims.iter().try_fold(dtype.bytes(), |bytes, &dim| bytes.checked_mul(dim));
    ensure!(
        wanted == Some(bytes.len()),
        "it holds {} bytes of elements, which are not those of {dtype}{dims:?}: it was cut short, or written wrongly",
        bytes.len()
    );
    if dtype == Dtype::Bool {
        ensure!(bytes.iter().all(|&byte| byte < 2), "a bool in it is neither 0 nor 1");
    }
    Ok(Array { dtype, dims, bytes })
}

/// The range of the header's text; `None` if the file has no header.
fn header_end(file: &[u8]) -> Option<std::ops::Range<usize>> {
    let rest = file.strip_prefix(MAGIC)?;
    let (start, length) = match rest.first()? {
        1 => (10, u32::from(u16::from_le_bytes(rest.get(2..4)?.try_into().ok()?))),
        2 | 3 => (12, u32::from_le_bytes(rest.get(2..6)?.try_into().ok()?)),
        _ => return None,
    };
    let end = usize::try_from(length).ok()?.checked_add(start)?;
    (end <= file.len()).then_some(start..end)
}

fn dtype(descr: &str) -> Result<Dtype> {
    let known = |name: &str| TYPES.iter().find(|(known, _)| *known == name).map(|(_, dtype)| *dtype);
    let found = descr.strip_prefix(['<', '|']).and_then(known);
    found.with_context(|| match descr.strip_prefix('>').and_then(known) {
        Some(dtype) => format!("its elements are big-endian: save it as x.astype(x.dtype.newbyteorder('<')), {dtype}"),
        None => format!("its elements are `{descr}`: expected numbers or bools of a fixed size"),
    })
}

/// The entries of a header, which is a Python dictionary of three entries.
struct Header<'a> {
    descr: &'a str,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl<'a> Header<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim_start();
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        while !rest.is_empty() {
            let (key, after) = quoted(rest)?;
            let value = after.trim_start().strip_prefix(':')?.trim_start();
            rest = match key {
                "descr" => taken(&mut descr, quoted(value)?),
                "fortran_order" => taken(&mut fortran_order, truth(value)?),
                "shape" => taken(&mut shape, sizes(value)?),
                _ => return None,
            };
            rest = rest.trim_start();
            rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
        }
        Some(Self { descr: descr?, fortran_order: fortran_order?, shape: shape? })
    }
}

/// Stores a value in `to`; returns the rest of the text.
fn taken<'a, T>(to: &mut Option<T>, (value, rest): (T, &'a str)) -> &'a str {
    *to = Some(value);
    rest
}

/// Parses a text in quotes; returns it with the rest of the text.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

fn truth(text: &str) -> Option<(bool, &str)> {
    let is = |word, value| Some((value, text.strip_prefix(word)?));
    is("True", true).or_else(|| is("False", false))
}

/// Parses a tuple of sizes; returns them with the rest of the text.
fn sizes(text: &str) -> Option<(Vec<usize>, &str)> {
    let (inside, rest) = text.strip_prefix('(')?.split_once(')')?;
    let inside = inside.trim();
    let inside = inside.strip_suffix(',').unwrap_or(inside);
    let sizes = inside.split(',').filter(|_| !inside.is_empty()).map(|size| size.trim().parse().ok());
    Some((sizes.collect::<Option<_>>()?, rest))
}

/// The content of a file that holds this array.
pub fn write(dtype: Dtype, dims: &[usize], bytes: &[u8]) -> Vec<u8> {
    const ALIGN: usize = 64;
    let name = TYPES.iter().find(|(_, known)| *known == dtype).expect("every type has a name").0;
    let order = if dtype.bytes() == 1 { '|' } else { '<' };
    let shape: String = dims.iter().map(|dim| format!("{dim}, ")).collect();
    let header = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({}), }}", shape.trim_end());
    let start = (MAGIC.len() + 4 + header.len() + 1).next_multiple_of(ALIGN);
    let mut file = Vec::with_capacity(start + bytes.len());
    file.extend_from_slice(MAGIC);
    file.extend_from_slice(&[1, 0]);
    file.extend_from_slice(&((start - MAGIC.len() - 4) as u16).to_le_bytes()); // ranks are small
    file.extend_from_slice(header.as_bytes());
    file.resize(start - 1, b' ');
    file.push(b'\n');
    file.extend_from_slice(bytes);
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content of a file of this version, with this header and this many bytes of elements.
    fn file(version: u8, header: &str, bytes: usize) -> Vec<u8> {
        let length = header.len() as u32;
        let length = if version == 1 { (length as u16).to_le_bytes().to_vec() } else { length.to_le_bytes().to_vec() };
        [MAGIC, &[version, 0], &length, header.as_bytes(), &vec![1; bytes]].concat()
    }

    fn refused(file: Vec<u8>) -> String {
        format!("{:#}", parse(file).unwrap_err())
    }

    #[test]
    fn what_is_written_is_read_again() {
        for (_, dtype) in TYPES {
            for dims in [&[][..], &[0], &[3], &[2, 1, 3]] {
                let bytes: Vec<u8> =
                    (0..dims.iter().product::<usize>() * dtype.bytes()).map(|i| (i % 2) as u8).collect();
                let written = write(dtype, dims, &bytes);
                assert_eq!((written.len() - bytes.len()) % 64, 0);
                assert_eq!(parse(written).unwrap(), Array { dtype, dims: dims.to_vec(), bytes });
            }
        }
    }

    /// Headers as NumPy 1, NumPy 2 and other writers write them.
    #[test]
    fn headers_of_all_versions_are_read() {
        let header = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }          \n";
        for version in 1..=3 {
            assert_eq!(parse(file(version, header, 16)).unwrap().dims, [2]);
        }
        let other = r#"{"shape":(1, 2), "descr":"<f2","fortran_order":False}"#;
        assert_eq!(parse(file(1, other, 4)).unwrap().dtype, Dtype::F16);
        let scalar = "{'descr': '|b1', 'fortran_order': False, 'shape': ()}";
        assert_eq!(parse(file(1, scalar, 1)).unwrap().dims, [0; 0]);
    }

    #[test]
    fn what_is_no_array_is_refused_with_what_to_do() {
        let with = |descr: &str, order: &str, shape: &str| {
            file(1, &format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"), 8)
        };
        let said = [
            (with("'>f4'", "False", "(2,)"), "big-endian"),
            (with("'|O'", "False", "(2,)"), "`|O`"),
            (with("[('a', '<f4')]", "False", "(2,)"), "not one of NumPy"),
            (with("'<f4'", "True", "(1, 2)"), "ascontiguousarray"),
            (with("'<f4'", "False", "(3,)"), "cut short"),
            (with("'<f4'", "False", "(-2,)"), "not one of NumPy"),
            (with("'<f4'", "False", "(18446744073709551615, 4)"), "cut short"),
            (with("'<f4'", "Maybe", "(2,)"), "not one of NumPy"),
            (file(1, "{'shape': (2,)}", 8), "not one of NumPy"),
            (file(4, "{}", 0), "no .npy file"),
            (b"\x93NUMPY\x01\x00\xff\xff{".to_vec(), "no .npy file"),
            (b"PK\x03\x04".to_vec(), "numpy.save"),
            (Vec::new(), "no .npy file"),
        ];
        for (file, what) in said {
            assert!(refused(file.clone()).contains(what), "{what}: {}", refused(file));
        }
        let bools = [write(Dtype::Bool, &[1], &[]), vec![7]].concat();
        assert!(refused(bools).contains("neither 0 nor 1"));
    }

    /// Every header that is cut short or has a wrong byte is read or refused, without a panic.
    #[test]
    fn no_header_leads_to_a_panic() {
        let whole = write(Dtype::F32, &[2, 3], &[0; 24]);
        for at in 0..whole.len() {
            let _ = parse(whole[..at].to_vec());
            for byte in [0, b'\'', b'(', b'9', b'}', 0xff] {
                let mut wrong = whole.clone();
                wrong[at] = byte;
                let _ = parse(wrong);
            }
        }
    }
}
