//! The inputs of `embed`: lines of files of texts, or photos.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use trefoil::model::Tower;
use trefoil::{files, image};

use super::tokens::Texts;
use crate::inputs::{Input, Inputs};

/// The inputs, in order.
pub enum Source {
    Texts(Box<Texts>),
    Photos(Vec<Input>),
}

impl Source {
    /// Collects the inputs that the paths name: photos if all paths are folders or named like photos, otherwise files
    /// of texts.
    pub fn collect(model: &Path, paths: &[PathBuf]) -> Result<Self> {
        if paths.iter().all(|path| path.is_dir() || image::is_image(path)) {
            return Ok(Self::Photos(Inputs::collect(paths).list));
        }
        let mut lines = Vec::new();
        for path in paths {
            ensure!(!path.is_dir() && !image::is_image(path), "{} among texts: give photos alone", path.display());
            lines.extend(read(path)?.lines().map(str::to_owned));
        }
        ensure!(!lines.is_empty(), "there are no texts: expected one on each line");
        Ok(Self::Texts(Texts::new(model, lines)?.into()))
    }

    /// Number of inputs.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Photos(photos) => photos.len(),
        }
    }

    /// The name of an input in results and errors.
    pub fn name(&self, input: usize) -> String {
        match self {
            Self::Texts(texts) => texts.line(input).to_owned(),
            Self::Photos(photos) => photos[input].path.to_string_lossy().into_owned(),
        }
    }

    /// The tower that reads these inputs, of a model with two towers.
    pub fn tower(&self) -> Tower {
        match self {
            Self::Texts(_) => Tower::Texts,
            Self::Photos(_) => Tower::Images,
        }
    }
}

/// The text of a file, or of the standard input for `-`.
fn read(path: &Path) -> Result<String> {
    if path == Path::new("-") {
        let mut text = String::new();
        return io::stdin().read_to_string(&mut text).map(|_| text).context("cannot read the standard input");
    }
    let text = files::read("read the texts", path, u64::MAX)?;
    String::from_utf8(text).with_context(|| format!("{} is no text", path.display()))
}
