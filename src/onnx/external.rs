//! Files beside a model that hold tensors of it.
//!
//! A model names them, and it comes from outside: it must not have the reader open a file elsewhere, a device or a pipe.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use crate::error::Error;
use crate::files::{Opened, Source};

/// The files that a model has named so far.
pub(super) struct External<'a> {
    /// None where the model is in memory, and so has nothing beside it.
    model: Option<&'a Path>,
    /// The real folders that files may lie in, once they were asked for.
    folders: Vec<PathBuf>,
    by_location: BTreeMap<String, usize>,
    /// Each one open, once.
    pub files: Vec<ExternalFile>,
}

/// A file that holds tensors.
pub(super) struct ExternalFile {
    /// Its path without links.
    pub path: PathBuf,
    pub source: Source,
    pub bytes: u64,
}

impl<'a> External<'a> {
    pub fn new(model: Option<&'a Path>) -> Self {
        Self { model, folders: Vec::new(), by_location: BTreeMap::new(), files: Vec::new() }
    }

    /// Whether the model has named it before.
    pub fn knows(&self, location: &str) -> bool {
        self.by_location.contains_key(location)
    }

    /// Which of the files is at `location`; `fail` makes errors of what is wrong with it.
    pub fn file(&mut self, location: &str, fail: impl Fn(String) -> Error) -> Result<usize, Error> {
        if let Some(&file) = self.by_location.get(location) {
            return Ok(file);
        }
        let Some(model) = self.model else {
            return Err(fail(format!("external data `{location}` of a model in memory; open the model by its path")));
        };
        if !is_below(Path::new(location)) {
            return Err(fail(format!(
                "external data `{location}`: expected a path that begins in the model's folder and has no `..`"
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

    /// The file at a path without links, open now if it was not.
    fn open(&mut self, path: PathBuf) -> Result<usize, Error> {
        if let Some(file) = self.files.iter().position(|file| file.path == path) {
            return Ok(file);
        }
        let opened = Opened::new(OPEN, &path, u64::MAX)?;
        self.files.push(ExternalFile { path, source: Source::File(opened.file), bytes: opened.bytes });
        Ok(self.files.len() - 1)
    }

    /// The model's folder, and that of the file which the model may be a link to: in a cache both model and data are
    /// links, to files of one folder.
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

/// The folder that a file is in.
fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn real(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|e| Error::io(OPEN, path, e))
}
