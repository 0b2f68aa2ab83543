//! Weight files: safetensors, read tensor by tensor.
//!
//! Only the header is kept in memory. A tensor is read when it is asked for, at its place in the file, so that a
//! load never holds a second copy of all weights, and a file that changes meanwhile gives an error, not a signal.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};

use super::names::nearest;
use super::safetensors_header::{Entry, Header};
use crate::error::Error;
use crate::files::{Opened, Source};

/// The tensors of a model, by name: an open file, or memory.
///
/// Reading needs no lock and is possible from several threads at once.
///
/// ```
/// use trefoil::model::Weights;
/// let weights = Weights::from_tensors([("fc.bias", vec![2], vec![0.5, -1.0])])?;
/// let mut bias = [0.0; 2];
/// weights.read_f32("fc.bias", &[2], &mut bias)?;
/// assert_eq!(bias, [0.5, -1.0]);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub struct Weights {
    path: PathBuf,
    source: Source,
    header: Header,
}

/// The type of a stored tensor's elements.
///
/// ```
/// use trefoil::model::{WeightDtype, Weights};
/// let weights = Weights::from_tensors([("fc.bias", vec![2], vec![0.5, -1.0])])?;
/// assert_eq!((weights.dtype("fc.bias"), weights.dtype("fc.weight")), (Some(WeightDtype::F32), None));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WeightDtype {
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// IEEE single precision.
    F32,
    /// IEEE double precision.
    F64,
    /// A type that a file may hold but no layer can use; its name.
    Other(&'static str),
}

/// Bytes read from a file at a time: a multiple of every element's size.
const CHUNK_BYTES: usize = 64 << 10;

/// What stands for the path where weights are not in a file.
const IN_MEMORY: &str = "<memory>";

impl Weights {
    /// Opens a `.safetensors` file, and reads and checks its header.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it cannot be read or is no regular file; [`Error::Format`] if it is not a safetensors file, is cut short or longer
    /// than its header says, repeats a name, or has offsets that overlap, leave gaps or contradict the shapes.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let opened = Opened::new("open the weights", &path, u64::MAX)?;
        Self::new(path, Source::File(opened.file), opened.bytes)
    }

    /// The weights in `bytes`, the content of a safetensors file.
    ///
    /// # Errors
    ///
    /// [`Error::Format`], as [`open`](Self::open); its path is `<memory>`.
    ///
    /// ```
    /// let json = br#"{"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    /// let file = [&(json.len() as u64).to_le_bytes()[..], json, &1.5_f32.to_le_bytes()].concat();
    /// assert_eq!(trefoil::model::Weights::from_bytes(file)?.dims("w"), Some(&[1][..]));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let file_bytes = bytes.len() as u64;
        Self::new(IN_MEMORY.into(), Source::Memory(bytes), file_bytes)
    }

    /// Weights made in code: for each tensor its name, its dimensions and its elements, the last dimension innermost.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if a name is there twice or the elements do not match the dimensions.
    pub fn from_tensors<N: Into<String>>(
        tensors: impl IntoIterator<Item = (N, Vec<usize>, Vec<f32>)>,
    ) -> Result<Self, Error> {
        let mut weights =
            Self { path: IN_MEMORY.into(), source: Source::Memory(Vec::new()), header: Header::default() };
        let mut data = Vec::new();
        for (name, dims, values) in tensors {
            let name = name.into();
            let elems = dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
            if elems != Some(values.len()) {
                return Err(weights.error(&name, format!("{dims:?}"), format!("{} elements", values.len())));
            }
            let (offset, bytes) = (data.len() as u64, 4 * values.len());
            data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            let entry = Entry { dtype: WeightDtype::F32, dims, elems: values.len(), offset, bytes };
            if weights.header.tensors.insert(name.clone(), entry).is_some() {
                return Err(weights.error(&name, "one tensor of this name", "two"));
            }
        }
        weights.source = Source::Memory(data);
        Ok(weights)
    }

    /// The file; `<memory>` where there is none.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensors' names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// A tensor's dimensions, outermost first; `None` if there is no such tensor.
    pub fn dims(&self, name: &str) -> Option<&[usize]> {
        self.header.tensors.get(name).map(|entry| entry.dims.as_slice())
    }

    /// A tensor's element type; `None` if there is no such tensor.
    pub fn dtype(&self, name: &str) -> Option<WeightDtype> {
        self.header.tensors.get(name).map(|entry| entry.dtype)
    }

    /// The free text in the file's header, by name: `__metadata__` in the format's words.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Checks that a tensor is there, has these dimensions, and is of a type that [`read_f32`](Self::read_f32) reads.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] with what was expected and what was found.
    pub fn check(&self, name: &str, expected_dims: &[usize]) -> Result<(), Error> {
        self.entry_of(name, expected_dims).map(|_| ())
    }

    /// Reads a tensor's bytes as they are stored: little-endian, the last dimension innermost.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if there is no such tensor or `out` has not exactly its length; [`Error::Io`] if the file
    /// cannot be read, also if it has been cut short since it was opened.
    pub fn read_into(&self, name: &str, out: &mut [u8]) -> Result<(), Error> {
        let Some(entry) = self.header.tensors.get(name) else {
            return Err(self.missing(name, format!("{} bytes", out.len())));
        };
        if entry.bytes != out.len() {
            return Err(self.error(name, format!("{} bytes", out.len()), format!("{} bytes", entry.bytes)));
        }
        self.read_at(out, entry.offset)
    }

    /// Reads a tensor of f16, bf16, f32 or f64 elements as f32, the last dimension innermost.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if there is no such tensor, its dimensions or type are others, an element is not finite (its
    /// index is told), or `out` has not exactly its length; [`Error::Io`] if the file cannot be read, also if it has
    /// been cut short since it was opened.
    pub fn read_f32(&self, name: &str, expected_dims: &[usize], out: &mut [f32]) -> Result<(), Error> {
        let entry = self.entry_of(name, expected_dims)?;
        if entry.elems != out.len() {
            return Err(self.error(name, format!("{} elements", out.len()), format!("{} elements", entry.elems)));
        }
        let Some(elem_bytes) = entry.dtype.bytes() else {
            return Err(self.error(name, FLOATS, entry.dtype.to_string()));
        };
        let mut buffer = vec![0; CHUNK_BYTES.min(entry.bytes)];
        for (i, chunk) in out.chunks_mut(CHUNK_BYTES / elem_bytes).enumerate() {
            let bytes = &mut buffer[..chunk.len() * elem_bytes];
            self.read_at(bytes, entry.offset + (i * CHUNK_BYTES) as u64)?;
            decode(entry.dtype, bytes, chunk);
            if let Some(bad) = chunk.iter().position(|value| !value.is_finite()) {
                let index = i * (CHUNK_BYTES / elem_bytes) + bad;
                return Err(self.error(name, "finite f32 values", format!("{} at element {index}", chunk[bad])));
            }
        }
        Ok(())
    }

    /// An [`Error::Tensor`] of this file.
    pub(super) fn error(&self, tensor: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::Tensor {
            path: self.path.clone(),
            tensor: tensor.to_owned(),
            expected: expected.into(),
            found: found.into(),
        }
    }

    /// The [`Error::Tensor`] of a tensor that is not there.
    pub(super) fn missing(&self, name: &str, expected: impl Into<String>) -> Error {
        let near = nearest(name, self.names(), 3);
        let found = if near.is_empty() { "no such tensor".into() } else { format!("only {}", near.join(", ")) };
        self.error(name, expected, found)
    }

    /// The same with the whole file in memory.
    pub(super) fn in_memory(this: &Arc<Self>) -> Result<Arc<Self>, Error> {
        let Source::File(file) = &this.source else { return Ok(this.clone()) };
        let failed = |e| Error::io("read", &this.path, e);
        let mut bytes = vec![0; file.metadata().map_err(failed)?.len() as usize];
        file.read_exact_at(&mut bytes, 0).map_err(failed)?;
        let file_bytes = bytes.len() as u64;
        Self::new(this.path.clone(), Source::Memory(bytes), file_bytes).map(Arc::new)
    }

    fn new(path: PathBuf, source: Source, file_bytes: u64) -> Result<Self, Error> {
        let header = Header::read(&path, file_bytes, |out, offset| source.read_at(out, offset))?;
        Ok(Self { path, source, header })
    }

    fn entry_of(&self, name: &str, expected_dims: &[usize]) -> Result<&Entry, Error> {
        let Some(entry) = self.header.tensors.get(name) else {
            return Err(self.missing(name, format!("{expected_dims:?}")));
        };
        if entry.dims != expected_dims {
            return Err(self.error(name, format!("{expected_dims:?}"), format!("{:?}", entry.dims)));
        }
        if entry.dtype.bytes().is_none() {
            return Err(self.error(name, FLOATS, entry.dtype.to_string()));
        }
        Ok(entry)
    }

    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<(), Error> {
        self.source.read_at(out, offset).map_err(|e| Error::io("read", &self.path, e))
    }
}

impl WeightDtype {
    /// Bytes of one element; `None` for a type that no layer can use.
    pub const fn bytes(self) -> Option<usize> {
        match self {
            Self::F16 | Self::Bf16 => Some(2),
            Self::F32 => Some(4),
            Self::F64 => Some(8),
            Self::Other(_) => None,
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Other(name) => name,
        })
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights({}, {} tensors)", self.path.display(), self.header.tensors.len())
    }
}

/// What [`Weights::read_f32`] reads.
const FLOATS: &str = "f16, bf16, f32 or f64";

/// `bytes` hold exactly the elements of `out`.
fn decode(dtype: WeightDtype, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
        let (elems, rest) = bytes.as_chunks::<N>();
        debug_assert!(rest.is_empty() && elems.len() == out.len());
        for (out, elem) in out.iter_mut().zip(elems) {
            *out = to_f32(*elem);
        }
    }
    match dtype {
        WeightDtype::F16 => each(bytes, out, |elem| f16::from_le_bytes(elem).to_f32()),
        WeightDtype::Bf16 => each(bytes, out, |elem| bf16::from_le_bytes(elem).to_f32()),
        WeightDtype::F32 => each(bytes, out, f32::from_le_bytes),
        WeightDtype::F64 => each(bytes, out, |elem| f64::from_le_bytes(elem) as f32),
        WeightDtype::Other(_) => unreachable!("types without a size are refused before"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of one tensor `w`.
    fn file(dtype: &str, dims: &[usize], data: &[u8]) -> Vec<u8> {
        let json = format!(r#"{{"w":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[0,{}]}}}}"#, data.len());
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
    }

    #[test]
    fn every_float_type_is_read() {
        let values = [0.5, -2.0, 65504.0, 1.0];
        let bytes = |to: fn(f64) -> Vec<u8>| values.iter().flat_map(|&v| to(v)).collect::<Vec<u8>>();
        let cases = [
            ("F16", WeightDtype::F16, bytes(|v| f16::from_f64(v).to_le_bytes().to_vec()), 65504.0),
            ("BF16", WeightDtype::Bf16, bytes(|v| bf16::from_f64(v).to_le_bytes().to_vec()), 65536.0),
            ("F32", WeightDtype::F32, bytes(|v| (v as f32).to_le_bytes().to_vec()), 65504.0),
            ("F64", WeightDtype::F64, bytes(|v| v.to_le_bytes().to_vec()), 65504.0),
        ];
        for (name, dtype, data, third) in cases {
            let weights = Weights::from_bytes(file(name, &[2, 2], &data)).unwrap();
            assert_eq!(weights.dtype("w"), Some(dtype));
            let mut out = [f32::NAN; 4];
            weights.read_f32("w", &[2, 2], &mut out).unwrap();
            assert_eq!(out, [0.5, -2.0, third, 1.0], "{name}");
            let mut raw = vec![0; data.len()];
            weights.read_into("w", &mut raw).unwrap();
            assert_eq!(raw, data);
        }
    }

    #[test]
    fn long_tensors_are_read_in_chunks() {
        let elems = 3 * CHUNK_BYTES / 4 + 7;
        let values: Vec<f32> = (0..elems).map(|i| i as f32).collect();
        let weights = Weights::from_tensors([("pre", vec![1], vec![9.0]), ("w", vec![elems], values.clone())]).unwrap();
        let mut out = vec![f32::NAN; elems];
        weights.read_f32("w", &[elems], &mut out).unwrap();
        assert_eq!(out, values);
    }

    #[test]
    fn values_that_are_not_finite_are_refused_by_index() {
        for (bad, at) in [(f32::NAN, 3), (f32::INFINITY, 0), (f32::NEG_INFINITY, 40_000)] {
            let mut values = vec![1.0; 50_000];
            values[at] = bad;
            let weights = Weights::from_tensors([("w", vec![50_000], values)]).unwrap();
            let error = weights.read_f32("w", &[50_000], &mut vec![0.0; 50_000]).unwrap_err();
            assert!(error.to_string().ends_with(&format!("found {bad} at element {at}")), "{error}");
        }
        let weights = Weights::from_bytes(file("F64", &[1], &1e300_f64.to_le_bytes())).unwrap();
        assert!(matches!(weights.read_f32("w", &[1], &mut [0.0]), Err(Error::Tensor { .. })));
    }

    #[test]
    fn a_wrong_request_says_what_is_there() {
        let weights = Weights::from_tensors([("conv1.weight", vec![2, 1], vec![0.0; 2])]).unwrap();
        let read = |name, dims: &[usize], out: &mut [f32]| weights.read_f32(name, dims, out).unwrap_err().to_string();
        assert!(read("conv1.wieght", &[2], &mut [0.0; 2]).contains("found only `conv1.weight`"));
        assert!(read("conv1.weight", &[1, 2], &mut [0.0; 2]).ends_with("expected [1, 2], found [2, 1]"));
        assert!(read("conv1.weight", &[2, 1], &mut [0.0; 3]).ends_with("expected 3 elements, found 2 elements"));
        assert!(weights.read_into("conv1.weight", &mut [0; 7]).is_err());
        let integers = Weights::from_bytes(file("I64", &[1], &[0; 8])).unwrap();
        let error = integers.read_f32("w", &[1], &mut [0.0]).unwrap_err().to_string();
        assert!(error.ends_with("expected f16, bf16, f32 or f64, found i64"), "{error}");
    }

    #[test]
    fn tensors_made_in_code_are_checked() {
        assert!(Weights::from_tensors([("w", vec![2], vec![0.0; 3])]).is_err());
        assert!(Weights::from_tensors([("w", vec![usize::MAX, 2], vec![0.0; 3])]).is_err());
        assert!(Weights::from_tensors([("w", vec![1], vec![0.0]), ("w", vec![1], vec![0.0])]).is_err());
    }
}
