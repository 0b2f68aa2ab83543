//! An open ONNX file.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::external::{External, ExternalFile};
use super::model::{ModelFields, ModelProto};
use super::reader::Reader;
use super::tensor::Tensor;
use super::wire::{Place, Span, Wire};
use crate::error::Error;
use crate::files::{Opened, Source};

/// An ONNX file: its model as plain data, and access to its tensors.
///
/// Reading needs no lock and is possible from several threads at once. See the [module](super) for an example.
pub struct File {
    path: PathBuf,
    pub(super) source: Arc<Source>,
    pub(super) bytes: u64,
    pub(super) external: Vec<ExternalFile>,
    model: ModelProto,
    /// The indices of the graph's initializers, sorted by name.
    by_name: Vec<usize>,
}

/// The number of bytes that a model may take, unless [`File::open_within`] sets another limit. Real models
/// take about 2,000 bytes for each node; a list that grows counts each time it is copied.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// The path of a model that is not in a file.
const IN_MEMORY: &str = "<memory>";

impl File {
    /// Opens an ONNX file, reads its model and opens the files of its external data. Elements of tensors are not read.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if it, or a file that it names, cannot be read or is no regular file; [`Error::Format`] if it is not
    /// an ONNX file or is cut short, has contradictions that its format rules out, names a file outside of its folder, or
    /// takes more than [`MEMORY_BYTES`] of memory; [`Error::Unsupported`] if it has sparse tensors or tensors in segments.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_within(path, MEMORY_BYTES)
    }

    /// As [`open`](Self::open), with another limit for the memory that the graph may take, in bytes.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    ///
    /// ```
    /// let error = trefoil::onnx::File::open_within("tests/data/onnx/graph.onnx", 500).unwrap_err();
    /// assert!(error.to_string().contains("more than 500 bytes of memory"), "{error}");
    /// ```
    pub fn open_within(path: impl AsRef<Path>, memory_bytes: u64) -> Result<Self, Error> {
        let path = path.as_ref();
        let opened = Opened::new("open the model", path, u64::MAX)?;
        let external = External::new(Some(path));
        Self::new(path.to_owned(), Source::File(opened.file), opened.bytes, external, memory_bytes)
    }

    /// The model in `bytes`, the content of an ONNX file. It cannot have external data.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); the path is `<memory>`.
    ///
    /// ```
    /// let bytes = std::fs::read("tests/data/onnx/graph.onnx").unwrap();
    /// let file = trefoil::onnx::File::from_bytes(bytes)?;
    /// assert_eq!((file.path().to_str(), file.model().graph.name.as_str()), (Some("<memory>"), "main"));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let file_bytes = bytes.len() as u64;
        Self::new(IN_MEMORY.into(), Source::Memory(bytes), file_bytes, External::new(None), MEMORY_BYTES)
    }

    fn new(
        path: PathBuf,
        source: Source,
        bytes: u64,
        external: External<'_>,
        memory_bytes: u64,
    ) -> Result<Self, Error> {
        let mut reader = Reader::new(Wire::new(&path, &source, bytes), external, memory_bytes);
        let place = Place { at: 0, message: "ModelProto", number: 0, name: "" };
        let model = reader.all::<ModelFields>(Span { at: 0, end: bytes }, place)?;
        let external = reader.external.files;
        let initializers = &model.graph.initializers;
        let mut by_name: Vec<usize> = (0..initializers.len()).collect();
        by_name.sort_unstable_by_key(|&index| &initializers[index].name);
        Ok(Self { path, source: Arc::new(source), bytes, external, model, by_name })
    }

    /// The path of the file; `<memory>` if there is none.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The initializer of this name of the model's graph.
    pub(super) fn initializer(&self, name: &str) -> Option<&Tensor> {
        let initializers = &self.model.graph.initializers;
        let found = self.by_name.binary_search_by_key(&name, |&index| &initializers[index].name);
        found.ok().map(|at| &initializers[self.by_name[at]])
    }

    /// The bytes of the file and of those that hold its external data.
    pub(crate) fn all_bytes(&self) -> u64 {
        self.bytes + self.external.iter().map(|file| file.bytes).sum::<u64>()
    }

    /// The model in the file.
    pub fn model(&self) -> &ModelProto {
        &self.model
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "onnx::File({}, {} nodes)", self.path.display(), self.model.graph.nodes.len())
    }
}
