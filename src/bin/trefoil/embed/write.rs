//! Writes vectors: as lines of JSON, or as an array in a file.

use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;
use trefoil::{Dtype, Engine, files};

use crate::{npy, report};

/// Receives the results of the inputs, in order.
pub struct Sink<'a> {
    /// The file with the values collected for it; `None` where lines are printed.
    file: Option<(&'a Path, Vec<f32>)>,
    width: usize,
    counts: Counts,
}

/// Whether a vector is an answer: none of its numbers is NaN or infinite.
pub fn is_finite(vector: &[f32]) -> bool {
    vector.iter().all(|value| value.is_finite())
}

/// Number of inputs received, and number of failed ones.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub done: usize,
    pub failed: usize,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Vector { input: &'a str, embedding: &'a [f32] },
    Error { input: &'a str, error: &'a str },
}

impl<'a> Sink<'a> {
    pub fn new(engine: &Engine, path: Option<&'a Path>) -> Result<Self> {
        let port = engine.output().port("embedding").context("the model gives no embedding")?;
        let width = *port.dims.last().context("the model's embedding is no vector")?; // of packed texts the rows come before
        Ok(Self { file: path.map(|path| (path, Vec::new())), width, counts: Counts::default() })
    }

    /// Number of inputs received.
    pub fn done(&self) -> usize {
        self.counts.done
    }

    /// Receives an input's vector, or the reason why it has none.
    pub fn add(&mut self, input: &str, result: Result<&[f32], &str>) -> Result<()> {
        let result =
            result.and_then(|vector| if is_finite(vector) { Ok(vector) } else { Err("its vector is not finite") });
        self.counts.done += 1;
        self.counts.failed += usize::from(result.is_err());
        match (&mut self.file, result) {
            (None, result) => {
                let line = match result {
                    Ok(embedding) => Line::Vector { input, embedding },
                    Err(error) => Line::Error { input, error },
                };
                writeln!(io::stdout(), "{}", serde_json::to_string(&line)?)?;
            }
            (Some((_, values)), Ok(embedding)) => values.extend_from_slice(embedding),
            (Some((_, values)), Err(error)) => {
                values.resize(values.len() + self.width, f32::NAN);
                let _ = writeln!(io::stderr(), "error: {}", report::message(&format!("{input}: {error}")));
            }
        }
        Ok(())
    }

    /// Writes the file, if there is one and an input was done: else the old file stays.
    pub fn finish(self) -> Result<Counts> {
        if let Some((path, values)) = self.file
            && self.counts.done > 0
        {
            let dims = [self.counts.done, self.width];
            files::write(path, npy::write(Dtype::F32, &dims, bytemuck::cast_slice(&values)))?;
        }
        Ok(self.counts)
    }
}
