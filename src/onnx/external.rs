//! Files beside a model that hold its tensors.
//!
//! The model names these files, and the model is not trusted: it must not make the reader open a file elsewhere, a
//! device or a pipe.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::reader::NAME;
use crate::error::{Error, printable};
use crate::files::{Opened, Source};

/// The files that a model has named so far.
pub(super) struct External<'a> {
    /// The model's path; `None` if the model is in memory and has no files beside it.
    model: Option<&'a Path>,
    /// The real folders that files may lie in, found on the first use.
    folders: Vec<PathBuf>,
    by_location: BTreeMap<String, usize>,
    /// The files that are open, each once.
    pub files: Vec<ExternalFile>,
}

/// A file that holds tensors.
pub(super) struct ExternalFile {
    /// The file's path without links.
    pub path: PathBuf,
    pub source: Arc<Source>,
    pub bytes: u64,
}

impl<'a> External<'a> {
    pub fn new(model: Option<&'a Path>) -> Self {
        Self { model, folders: Vec::new(), by_location: BTreeMap::new(), files: Vec::new() }
    }

    /// Whether the model has named this location before.
    pub fn knows(&self, location: &str) -> bool {
        self.by_location.contains_key(location)
    }

    /// The index of the file at `location`. `fail` makes the error for a location that is not allowed.
    pub fn file(&mut self, location: &str, fail: impl Fn(String) -> Error) -> Result<usize, Error> {
        if let Some(&file) = self.by_location.get(location) {
            return Ok(file);
        }
        let named = printable(location, NAME);
        let Some(model) = self.model else {
            return Err(fail(format!("external data `{named}` of a model in memory; open the model by its path")));
        };
        if !is_below(Path::new(location)) {
            return Err(fail(format!(
                "external data `{named}`: expected a path that begins in the model's folder and has no `..`"
            )));
        }
        let path = real(&folder(model).join(location))?;
        if !self.folders(model)?.iter().any(|folder| path.starts_with(folder)) {
            let path = path.display();
            return Err(fail(format!(
                "external data `{location}` links to {path}, which is not in the model's folder"
            )));
        }
        let file = self.open(path)?;
        self.by_location.insert(location.into(), file);
        Ok(file)
    }

    /// The index of the file at a path without links, which is opened if it was not open.
    fn open(&mut self, path: PathBuf) -> Result<usize, Error> {
        if let Some(file) = self.files.iter().position(|file| file.path == path) {
            return Ok(file);
        }
        let opened = Opened::new(OPEN, &path, u64::MAX)?;
        self.files.push(ExternalFile { path, source: Arc::new(Source::File(opened.file)), bytes: opened.bytes });
        Ok(self.files.len() - 1)
    }

    /// The model's folder, and, if the model is a link, the folder of its target: in a cache both the model and its
    /// data are links to files of one folder.
    fn folders(&mut self, model: &Path) -> Result<&[PathBuf], Error> {
        if self.folders.is_empty() {
            self.folders = vec![real(folder(model))?, folder(&real(model)?).to_owned()];
        }
        Ok(&self.folders)
    }
}

impl ExternalFile {
    /// Fills `out` with the bytes from `offset` on.
    pub fn read(&self, out: &mut [u8], offset: u64) -> Result<(), Error> {
        self.source.read_at(out, offset).map_err(|e| Error::io("read the external data", &self.path, e))
    }
}

const OPEN: &str = "open the external data";

fn is_below(location: &Path) -> bool {
    let mut parts = location.components().peekable();
    parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

/// The folder that contains a file.
fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn real(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|e| Error::io(OPEN, path, e))
}
