//! Weights by name: from safetensors and ONNX files, or made in code.
//!
//! Only the header is kept in memory. A tensor is read when it is asked for, at its place in the file, so that a
//! load never holds a second copy of all weights, and a file that changes meanwhile gives an error, not a signal.
//!
//! The file is long because a quarter of it is the documentation of what is public.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};

use super::names::nearest;
use super::safetensors_header::{Header, StoredTensor};
use crate::error::Error;
use crate::files::{Opened, Source, SourcePart, zeros};
use crate::fnv::fnv1a64;
use crate::graph::{Constant, Expr, Op, Tensor, ValueType};
use crate::loops;
use crate::tensor::Dtype;

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
    /// The sources in which the tensors lie.
    sources: Vec<Arc<Source>>,
    header: Header,
}

/// The type of a stored tensor's elements.
///
/// ```
/// use trefoil::{Dtype, model::{WeightDtype, Weights}};
/// let weights = Weights::from_tensors([("fc.bias", vec![2], vec![0.5, -1.0])])?;
/// let dtype = WeightDtype::Element(Dtype::F32);
/// assert_eq!((weights.dtype("fc.bias"), weights.dtype("fc.weight")), (Some(dtype), None));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightDtype {
    /// A type that values have.
    Element(Dtype),
    /// The name of a type that files may have but values do not.
    Other(&'static str),
}

/// A tensor in a source: dense little-endian elements.
pub(super) struct Placed {
    pub name: String,
    pub of: ValueType,
    pub source: Arc<Source>,
    /// The offset of the first byte in the source.
    pub offset: u64,
}

/// The number of bytes that are read from a file at a time: a multiple of every element's size.
const CHUNK_BYTES: usize = 64 << 10;

/// The text in place of a path for weights that are not in a file.
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
    /// [`Error::Tensor`] if a name is repeated or the elements do not match the dimensions.
    pub fn from_tensors<N: Into<String>>(
        tensors: impl IntoIterator<Item = (N, Vec<usize>, Vec<f32>)>,
    ) -> Result<Self, Error> {
        let mut weights = Self { path: IN_MEMORY.into(), sources: Vec::new(), header: Header::default() };
        for (name, dims, values) in tensors {
            let name = name.into();
            let elems = dims.iter().try_fold(1_usize, |n, &dim| n.checked_mul(dim));
            if elems != Some(values.len()) {
                return Err(weights.error(&name, format!("{dims:?}"), format!("{} elements", values.len())));
            }
            weights.insert(&name, &Tensor::of(&dims, &values))?;
        }
        Ok(weights)
    }

    /// These weights together with others that are made in code. Both objects share the open files.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if a name exists already.
    ///
    /// ```
    /// use trefoil::{graph::Tensor, model::Weights};
    /// let one = Weights::from_tensors([("a", vec![1], vec![0.5])])?;
    /// let both = one.with([("ids", Tensor::of(&[2], &[3_i64, 4]))])?;
    /// assert_eq!(both.read("ids")?.elems::<i64>(), [3, 4]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn with<N: Into<String>>(&self, tensors: impl IntoIterator<Item = (N, Tensor)>) -> Result<Self, Error> {
        let Self { path, sources, header } = self;
        let mut all = Self { path: path.clone(), sources: sources.clone(), header: header.clone() };
        tensors.into_iter().try_for_each(|(name, tensor)| all.insert(&name.into(), &tensor))?;
        Ok(all)
    }

    /// These weights, of which some also have other names and dimensions: (new name, name, dimensions).
    pub(super) fn with_views(
        &self,
        views: impl IntoIterator<Item = (String, String, Vec<usize>)>,
    ) -> Result<Self, Error> {
        let mut all = self.with(std::iter::empty::<(String, Tensor)>())?;
        for (name, of, dims) in views {
            let Some(entry) = self.header.tensors.get(&of) else { return Err(self.missing(&of, format!("{dims:?}"))) };
            if dims.iter().product::<usize>() != entry.elems {
                return Err(self.error(&of, format!("{dims:?}"), format!("{:?}", entry.dims)));
            }
            if all.header.tensors.insert(name.clone(), StoredTensor { dims, ..entry.clone() }).is_some() {
                return Err(self.error(&name, "one tensor of this name", "two"));
            }
        }
        Ok(all)
    }

    /// Whether one of these weights also has this other name and these dimensions.
    pub(super) fn has_view(&self, name: &str, of: &str, dims: &[usize]) -> bool {
        let [view, entry] = [name, of].map(|name| self.header.tensors.get(name));
        view.zip(entry).is_some_and(|(view, entry)| {
            let place = |entry: &StoredTensor| (entry.source, entry.offset, entry.transposed);
            view.dims == dims && view.dtype == entry.dtype && place(view) == place(entry)
        })
    }

    /// These weights, with some matrices also as filters of one tap, under the names that [`filter_of`] gives. A matrix
    /// is given by its name and whether the sum goes over its first axis.
    ///
    /// # Errors
    /// [`Error::Tensor`] if there is no such matrix.
    pub(super) fn with_filters(&self, matrices: &BTreeSet<(String, bool)>) -> Result<Self, Error> {
        let mut all = self.with(std::iter::empty::<(String, Tensor)>())?;
        for &(ref of, transposed) in matrices {
            let Some(entry) = self.header.tensors.get(of) else { return Err(self.missing(of, "a matrix")) };
            let [first, second] = entry.dims[..] else {
                return Err(self.error(of, "a matrix", format!("{:?}", entry.dims)));
            };
            let dims = if transposed { vec![second, first, 1, 1] } else { vec![first, second, 1, 1] };
            all.header.tensors.insert(filter_of(of, transposed), StoredTensor { dims, transposed, ..entry.clone() });
        }
        Ok(all)
    }

    /// These weights together with tensors that join several of them along the first axis, by name.
    ///
    /// # Errors
    /// [`Error::Tensor`] if one of them does not exist, or if they differ in their types or other axes.
    pub(super) fn with_joined(&self, joins: &BTreeMap<String, Vec<String>>) -> Result<Self, Error> {
        let mut all = self.with(std::iter::empty::<(String, Tensor)>())?;
        for (name, names) in joins {
            let mut parts = Vec::new();
            let mut whole: Option<StoredTensor> = None;
            for name in names {
                let Some(entry) = self.header.tensors.get(name) else { return Err(self.missing(name, "a tensor")) };
                let source = self.sources[entry.source].clone();
                parts.push(SourcePart { source, offset: entry.offset, bytes: entry.bytes as u64 });
                whole = Some(match whole {
                    None => StoredTensor { source: all.sources.len(), offset: 0, ..entry.clone() },
                    Some(whole) => self.behind(whole, name, entry)?,
                });
            }
            all.header.tensors.extend(whole.map(|whole| (name.clone(), whole)));
            all.sources.push(Arc::new(Source::Parts(parts)));
        }
        Ok(all)
    }

    /// The tensor that joins `whole` and `next` along the first axis.
    fn behind(&self, whole: StoredTensor, name: &str, next: &StoredTensor) -> Result<StoredTensor, Error> {
        let is_like = whole.dtype == next.dtype && whole.dims.get(1..) == next.dims.get(1..) && !next.dims.is_empty();
        if !is_like {
            let found = format!("{} {:?}", next.dtype, next.dims);
            return Err(self.error(
                name,
                format!("{} {:?}, as the others that it is joined with", whole.dtype, whole.dims),
                found,
            ));
        }
        let mut dims = whole.dims;
        dims[0] += next.dims[0];
        Ok(StoredTensor { dims, elems: whole.elems + next.elems, bytes: whole.bytes + next.bytes, ..whole })
    }

    /// These weights together with others, of which those that have a name of these get `prefix` and a slash in front;
    /// and the new names by the old ones. Both objects share the open files.
    pub(super) fn joined(&self, other: &Self, prefix: &str) -> (Self, BTreeMap<String, String>) {
        let path = match self.path == other.path {
            true => self.path.clone(),
            false => format!("{} + {}", self.path.display(), other.path.display()).into(),
        };
        let mut header = self.header.clone();
        let mut renamed = BTreeMap::new();
        for (name, entry) in &other.header.tensors {
            let mut distinct = name.clone();
            while header.tensors.contains_key(&distinct)
                || distinct != *name && other.header.tensors.contains_key(&distinct)
            {
                distinct = format!("{prefix}/{distinct}");
            }
            let entry = StoredTensor { source: self.sources.len() + entry.source, ..entry.clone() };
            header.tensors.insert(distinct.clone(), entry);
            if distinct != *name {
                renamed.insert(name.clone(), distinct);
            }
        }
        (Self { path, sources: [&self.sources[..], &other.sources[..]].concat(), header }, renamed)
    }

    fn insert(&mut self, name: &str, tensor: &Tensor) -> Result<(), Error> {
        let of = tensor.value_type();
        let entry = StoredTensor {
            dtype: WeightDtype::Element(of.dtype),
            dims: of.dims.clone(),
            elems: of.elems(),
            source: self.sources.len(),
            offset: 0,
            bytes: of.bytes(),
            transposed: false,
        };
        if self.header.tensors.insert(name.to_owned(), entry).is_some() {
            return Err(self.error(name, "one tensor of this name", "two"));
        }
        self.sources.push(Arc::new(Source::Memory(tensor.bytes().to_vec())));
        Ok(())
    }

    /// The weights of a file with known places of its tensors.
    pub(super) fn of_places(path: &Path, places: Vec<Placed>) -> Result<Self, Error> {
        let mut all = Self { path: path.to_owned(), sources: Vec::new(), header: Header::default() };
        let mut numbers = HashMap::new();
        for Placed { name, of, source, offset } in places {
            let number = *numbers.entry(Arc::as_ptr(&source)).or_insert(all.sources.len());
            let (elems, bytes) = (of.elems(), of.bytes());
            let dtype = WeightDtype::Element(of.dtype);
            let entry = StoredTensor { dtype, dims: of.dims, elems, source: number, offset, bytes, transposed: false };
            if all.header.tensors.insert(name.clone(), entry).is_some() {
                return Err(all.error(&name, "one tensor of this name", "two"));
            }
            if number == all.sources.len() {
                all.sources.push(source);
            }
        }
        Ok(all)
    }

    /// The path of the file; `<memory>` if there is no file.
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

    /// The one of f16, bf16 and f32 in which most elements are stored; f32 if no elements are.
    pub(crate) fn most_stored(&self) -> Dtype {
        let elems = |dtype: Dtype| {
            let of_type = |entry: &&StoredTensor| entry.dtype == WeightDtype::Element(dtype);
            self.header.tensors.values().filter(of_type).map(|entry| entry.elems).sum::<usize>()
        };
        [Dtype::F16, Dtype::Bf16, Dtype::F32].into_iter().max_by_key(|&dtype| elems(dtype)).expect("there are three")
    }

    /// The free text in the file's header, by key; the format calls it `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.header.metadata
    }

    /// Checks that a tensor exists, has these dimensions, and has a type that [`read_f32`](Self::read_f32) reads.
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
        self.read_at(out, entry, 0)
    }

    /// Reads a tensor in its own type. Its elements may be any, such as the infinities of a mask.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if there is no such tensor or values cannot have its type; [`Error::Io`] if the file cannot be
    /// read; [`Error::OutOfMemory`] if there is no room for it.
    ///
    /// ```
    /// use trefoil::model::Weights;
    /// let weights = Weights::from_tensors([("mask", vec![2], vec![0.0, f32::NEG_INFINITY])])?;
    /// assert_eq!(weights.read("mask")?.elems::<f32>()[1], f32::NEG_INFINITY);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn read(&self, name: &str) -> Result<Tensor, Error> {
        let Some(entry) = self.header.tensors.get(name) else { return Err(self.missing(name, "a tensor")) };
        let WeightDtype::Element(dtype) = entry.dtype else {
            return Err(self.error(name, "a type that values have", entry.dtype.to_string()));
        };
        let mut tensor = Tensor::zeros(ValueType::new(dtype, &entry.dims))?;
        self.read_at(tensor.bytes_mut(), entry, 0)?;
        Ok(tensor)
    }

    /// Reads the bytes of a matrix of codes, under its name as a [filter](filter_of).
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Tensor`] if it is not of u8.
    #[cfg(feature = "cuda")]
    pub(crate) fn read_codes(&self, name: &str) -> Result<Vec<u8>, Error> {
        let tensor = self.read(name)?;
        if tensor.value_type().dtype != Dtype::U8 {
            return Err(self.error(name, "codes of u8", tensor.value_type().to_string()));
        }
        let (stored, entry) = (tensor.bytes(), &self.header.tensors[name]);
        if !entry.transposed {
            return Ok(stored.to_vec());
        }
        let (rows, columns) = (entry.dims[1], entry.dims[0]);
        Ok((0..columns).flat_map(|column| (0..rows).map(move |row| stored[row * columns + column])).collect())
    }

    /// Reads a tensor of these dimensions, converted to this type.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read); [`Error::Tensor`] if the tensor has other dimensions.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::ValueType, model::Weights};
    /// let weights = Weights::from_tensors([("w", vec![2], vec![0.5, -1.0])])?;
    /// assert_eq!(weights.read_as("w", &ValueType::new(Dtype::F64, &[2]))?.elems::<f64>(), [0.5, -1.0]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn read_as(&self, name: &str, of: &ValueType) -> Result<Tensor, Error> {
        let tensor = self.read(name)?;
        let found = tensor.value_type();
        if found.dims != of.dims {
            return Err(self.error(name, format!("{:?}", of.dims), format!("{:?}", found.dims)));
        }
        if found.dtype == of.dtype {
            return Ok(tensor);
        }
        let cast = Op::Map(Expr::arg(0).cast(of.dtype));
        Ok(loops::compute(&cast, &[Some(&tensor)], std::slice::from_ref(of))?.remove(0))
    }

    /// Reads a tensor of f16, bf16, f32 or f64 elements as f32, the last dimension innermost.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if there is no such tensor, if it has other dimensions or another type, if an element is not
    /// finite (the error has its index), or if `out` does not have exactly its length; [`Error::Io`] if the file cannot
    /// be read, also if it has been cut short since it was opened.
    pub fn read_f32(&self, name: &str, expected_dims: &[usize], out: &mut [f32]) -> Result<(), Error> {
        let entry = self.entry_of(name, expected_dims)?;
        if entry.elems != out.len() {
            return Err(self.error(name, format!("{} elements", out.len()), format!("{} elements", entry.elems)));
        }
        if entry.transposed {
            let mut stored = zeros(entry.elems).map_err(|e| Error::io("read", &self.path, e))?;
            self.read_stored(name, entry, &mut stored)?;
            let (rows, columns) = (entry.dims[1], entry.dims[0]);
            for (column, out) in out.chunks_exact_mut(rows.max(1)).enumerate() {
                out.iter_mut().enumerate().for_each(|(row, out)| *out = stored[row * columns + column]);
            }
            return Ok(());
        }
        self.read_stored(name, entry, out)
    }

    /// Reads all elements of an entry as f32, in the order in which they are stored.
    fn read_stored(&self, name: &str, entry: &StoredTensor, out: &mut [f32]) -> Result<(), Error> {
        let WeightDtype::Element(dtype) = entry.dtype else { unreachable!("checked to be floats") };
        let elem_bytes = dtype.bytes();
        let mut buffer = vec![0; CHUNK_BYTES.min(entry.bytes)];
        for (i, chunk) in out.chunks_mut(CHUNK_BYTES / elem_bytes).enumerate() {
            let bytes = &mut buffer[..chunk.len() * elem_bytes];
            self.read_at(bytes, entry, (i * CHUNK_BYTES) as u64)?;
            decode(dtype, bytes, chunk);
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

    /// The [`Error::Tensor`] for a tensor that does not exist.
    pub(super) fn missing(&self, name: &str, expected: impl Into<String>) -> Error {
        let near = nearest(name, self.names(), 3);
        let found = if near.is_empty() { "no such tensor".into() } else { format!("only {}", near.join(", ")) };
        self.error(name, expected, found)
    }

    /// These weights with all files in memory.
    pub(super) fn in_memory(this: &Arc<Self>) -> Result<Arc<Self>, Error> {
        let read = |source: &Arc<Source>| match &**source {
            Source::Memory(_) => Ok(source.clone()),
            Source::File(file) => {
                let mut bytes = zeros(file.metadata()?.len() as usize)?;
                file.read_exact_at(&mut bytes, 0)?;
                Ok(Arc::new(Source::Memory(bytes)))
            }
            Source::Parts(parts) => {
                let mut bytes = zeros(parts.iter().map(|part| part.bytes as usize).sum())?;
                source.read_at(&mut bytes, 0)?;
                Ok(Arc::new(Source::Memory(bytes)))
            }
        };
        let sources = this.sources.iter().map(read).collect::<io::Result<_>>();
        let sources = sources.map_err(|e| Error::io("read", &this.path, e))?;
        Ok(Arc::new(Self { path: this.path.clone(), sources, header: this.header.clone() }))
    }

    fn new(path: PathBuf, source: Source, file_bytes: u64) -> Result<Self, Error> {
        let header = Header::read(&path, file_bytes, |out, offset| source.read_at(out, offset))?;
        Ok(Self { path, sources: vec![Arc::new(source)], header })
    }

    fn entry_of(&self, name: &str, expected_dims: &[usize]) -> Result<&StoredTensor, Error> {
        let Some(entry) = self.header.tensors.get(name) else {
            return Err(self.missing(name, format!("{expected_dims:?}")));
        };
        if entry.dims != expected_dims {
            return Err(self.error(name, format!("{expected_dims:?}"), format!("{:?}", entry.dims)));
        }
        if !matches!(entry.dtype, WeightDtype::Element(dtype) if dtype.is_float()) {
            return Err(self.error(name, FLOATS, entry.dtype.to_string()));
        }
        Ok(entry)
    }

    /// Reads bytes of an entry from its byte `at` on.
    fn read_at(&self, out: &mut [u8], entry: &StoredTensor, at: u64) -> Result<(), Error> {
        self.sources[entry.source].read_at(out, entry.offset + at).map_err(|e| Error::io("read", &self.path, e))
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Element(dtype) => dtype.fmt(f),
            Self::Other(name) => f.write_str(name),
        }
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Weights({}, {} tensors)", self.path.display(), self.header.tensors.len())
    }
}

/// The name of a graph's constant among the weights: its own name, or one that depends on its type and elements.
pub(crate) fn name_of(constant: &Constant, of: &ValueType) -> String {
    match constant {
        Constant::Weight(name) => name.clone(),
        Constant::Bytes(bytes) => format!("constant {of} {}", fnv1a64(bytes)),
    }
}

/// The name of a matrix as the filter of a convolution of one tap; `transposed` if the sum goes over its first axis.
pub(crate) fn filter_of(matrix: &str, transposed: bool) -> String {
    format!("{matrix} ({})", if transposed { "transposed, 1x1" } else { "1x1" })
}

/// The types that [`Weights::read_f32`] reads.
const FLOATS: &str = "f16, bf16, f32 or f64";

/// Converts elements to f32; `bytes` has exactly the elements of `out`.
fn decode(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
        let (elems, rest) = bytes.as_chunks::<N>();
        debug_assert!(rest.is_empty() && elems.len() == out.len());
        for (out, elem) in out.iter_mut().zip(elems) {
            *out = to_f32(*elem);
        }
    }
    match dtype {
        Dtype::F16 => each(bytes, out, |elem| f16::from_le_bytes(elem).to_f32()),
        Dtype::Bf16 => each(bytes, out, |elem| bf16::from_le_bytes(elem).to_f32()),
        Dtype::F32 => each(bytes, out, f32::from_le_bytes),
        Dtype::F64 => each(bytes, out, |elem| f64::from_le_bytes(elem) as f32),
        _ => unreachable!("other types are refused before"),
    }
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
