//! The sizes at which a model runs, and the rows that it runs on.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use trefoil::graph::{Tensor, ValueType};
use trefoil::model::Model;
use trefoil::onnx;
use trefoil::{Device, Engine, OutputKind, Size};

use crate::cli::{Kernels, MAX_BATCH, count};
use crate::ports::Inputs;
use crate::setup::{self, Ring, Sizes};
use crate::{models, npy, stop};

/// The name by which `--size` sets the engine's batch size.
const BATCH: &str = "batch";

/// A model's free dimensions.
#[derive(Args, Debug)]
pub struct SizeArgs {
    /// Sizes of an ONNX file's free dimensions, or of height and width, by name; a name that is given again begins
    /// another size of the engine
    #[arg(long = "size", value_name = "NAME=N,..", value_delimiter = ',', value_parser = size)]
    sizes: Vec<(String, usize)>,
    /// An input that is the same for all rows, such as an input on which dimensions depend
    #[arg(long = "constant", value_name = "NAME=FILE.npy", value_parser = named_file)]
    constants: Vec<(String, PathBuf)>,
}

/// A model and its rows.
#[derive(Args, Debug)]
pub struct Feed {
    /// A model, as for --model of other commands; an ONNX file has its own inputs and outputs here, also where other
    /// commands read photos
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The rows of an input: an array with the input's dimensions, or with the number of rows in front; inputs without
    /// an array are random
    #[arg(long = "input", value_name = "NAME=FILE.npy", value_parser = named_file)]
    pub inputs: Vec<(String, PathBuf)>,
    /// Number of rows if no input has a file [default: a batch; for audit 1]
    #[arg(long, value_name = "N", value_parser = count::<1_000_000>, conflicts_with = "inputs")]
    pub rows: Option<usize>,
    #[command(flatten)]
    pub at: SizeArgs,
}

impl SizeArgs {
    /// Opens this model at the sizes of the options; also returns its path.
    pub fn open(&self, model: &Path) -> Result<(Model, PathBuf)> {
        models::open_at(Some(model), &self.first()?)
    }

    /// The first size of the options, but for its batch size, and the constants.
    fn first(&self) -> Result<onnx::Sizes> {
        let first = sizes(&self.sizes).next().unwrap_or_default();
        let dims = first.iter().filter(|(name, _)| name != BATCH);
        let sizes = dims.fold(onnx::Sizes::new(), |sizes, (name, size)| sizes.dim(name, *size));
        let with_constant = |sizes: onnx::Sizes, (name, path): &(String, PathBuf)| -> Result<_> {
            let npy::Array { dtype, dims, bytes } = npy::read(path)?;
            Ok(sizes.constant(name, Tensor::from_bytes(ValueType::new(dtype, &dims), &bytes)))
        };
        self.constants.iter().try_fold(sizes, with_constant)
    }

    /// Whether the options give several sizes that differ in more than their batch size. What a later size does not name
    /// is as in the first.
    pub fn has_several_dims(&self) -> bool {
        let mut all = sizes(&self.sizes);
        let first = all.next().unwrap_or_default();
        all.flatten().any(|told| told.0 != BATCH && !first.contains(told))
    }

    /// The batch of a network that has no other sizes; `None` if the options give others, or several.
    pub fn batch_alone(&self, default: usize) -> Option<usize> {
        match &self.sizes[..] {
            [] => Some(default),
            [(name, rows)] => (name == BATCH).then_some(*rows),
            _ => None,
        }
    }

    /// The sizes of an engine, by the options; `default` without a batch size. Where there are several sizes, one
    /// without a batch size has one row.
    pub fn sizes(&self, default: Sizes, one: fn(usize) -> Sizes) -> Sizes {
        let all: Vec<&[(String, usize)]> = sizes(&self.sizes).collect();
        let rows = |told: &[(String, usize)]| told.iter().find(|(name, _)| name == BATCH).map(|(_, rows)| *rows);
        match all[..] {
            [] => default,
            [only] => rows(only).map_or(default, one),
            _ => {
                let dim = |size: Size, (name, value): &(String, usize)| size.dim(name, *value);
                let size = |told: &&[(String, usize)]| {
                    let dims = told.iter().filter(|(name, _)| name != BATCH);
                    dims.fold(Size::new(rows(told).unwrap_or(1)), dim)
                };
                Sizes::Each(all.iter().map(size).collect())
            }
        }
    }
}

impl Feed {
    /// The files that the command reads.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let arrays = self.inputs.iter().chain(&self.at.constants).map(|(_, path)| path);
        [&self.model].into_iter().chain(arrays).map(PathBuf::as_path)
    }

    /// Opens the model at the sizes of the options, an ONNX file with its own inputs and outputs; also returns its path.
    pub fn open(&self) -> Result<(Model, PathBuf)> {
        models::open_values(&self.model, &self.at.first()?)
    }

    /// Builds an engine of the model; returns it with the rows for each set of dimensions, and the largest size that
    /// has these dimensions. A network of images gives `classes`, or features if its result is no vector. Fails if a stop
    /// is requested.
    pub fn engine(
        &self,
        model: &Model,
        device: &Device,
        classes: OutputKind,
        kernels: Kernels,
    ) -> Result<(Engine, Vec<(Size, Inputs)>)> {
        let sizes = self.at.sizes(Sizes::Default, Sizes::UpTo);
        let ring = Ring { output: output(model, classes), ..Ring::new(sizes, kernels) };
        stop::check()?;
        let engine = setup::build_engine(model, device, &ring)?;
        stop::check()?;
        let mut largest: Vec<Size> = Vec::new();
        for size in engine.sizes() {
            let has_its_dims = |last: &Size| last.clone().rows(size.batch()) == size;
            if largest.last().is_some_and(has_its_dims) {
                largest.pop(); // they ascend
            }
            largest.push(size);
        }
        let open = |size: Size| {
            let (spec, _) = engine.rows_for(&size)?;
            let inputs = Inputs::open(spec, &self.inputs, self.rows.unwrap_or(size.batch()))?;
            Ok((size, inputs))
        };
        // Sizes whose dimensions do not match the files are left out, unless none match.
        let opened: Vec<Result<(Size, Inputs)>> = largest.into_iter().map(open).collect();
        let inputs = match opened.iter().any(Result::is_ok) {
            true => opened.into_iter().flatten().collect(),
            false => opened.into_iter().collect::<Result<Vec<_>>>()?,
        };
        Ok((engine, inputs))
    }
}

/// The output of a model: `classes`, or features of a network of images whose result is no vector.
fn output(model: &Model, classes: OutputKind) -> OutputKind {
    match model.output() {
        Ok(result) if result.pixels() > 1 => OutputKind::Features,
        _ => classes,
    }
}

/// Splits the options into sizes: a name that occurs again begins the next size.
fn sizes(all: &[(String, usize)]) -> impl Iterator<Item = &[(String, usize)]> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let is_again = |&at: &usize| rest[..at].iter().any(|(name, _)| *name == rest[at].0);
        let end = (1..rest.len()).find(is_again).unwrap_or(rest.len());
        let (size, others) = rest.split_at(end);
        rest = others;
        (!size.is_empty()).then_some(size)
    })
}

/// Parses `NAME=N`.
pub fn size(text: &str) -> Result<(String, usize), String> {
    let (name, size) = text.rsplit_once('=').ok_or("expected NAME=N, as in sequence=128")?;
    let size = if name == BATCH { count::<MAX_BATCH>(size) } else { count::<{ usize::MAX }>(size) };
    Ok((name.to_owned(), size?))
}

/// Parses `NAME=FILE.npy`.
fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("expected NAME=FILE.npy, as in x=x.npy")?;
    Ok((name.to_owned(), path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_files_have_names() {
        assert_eq!(size("floor(height/2)=7"), Ok(("floor(height/2)".into(), 7)));
        assert_eq!(named_file("x=a=b.npy"), Ok(("x".into(), "a=b.npy".into())));
        assert!(["batch", "batch=0", "batch=70000", "sequence=-1", "sequence="].iter().all(|text| size(text).is_err()));
        assert!(named_file("x.npy").is_err());
    }

    #[test]
    fn a_name_that_comes_again_begins_another_size() {
        let told = |text: &str| -> Vec<usize> {
            let all: Vec<(String, usize)> = text.split(',').filter_map(|text| size(text).ok()).collect();
            sizes(&all).map(<[_]>::len).collect()
        };
        assert_eq!(told("sequence=2,batch=3"), [2]);
        assert_eq!(told("batch=8,sequence=128,batch=1,sequence=64,sequence=3"), [2, 2, 1]);
        assert!(told("").is_empty());
    }

    #[test]
    fn sizes_may_differ_in_their_batch_alone() {
        let several = |text: &str| {
            let sizes = text.split(',').filter_map(|text| size(text).ok()).collect();
            SizeArgs { sizes, constants: Vec::new() }.has_several_dims()
        };
        assert!(["", "batch=8", "sequence=2,batch=3", "batch=8,batch=1"].into_iter().all(|text| !several(text)));
        assert!(!several("batch=8,sequence=64,batch=1,sequence=64"));
        assert!(!several("batch=8,sequence=64,batch=1"));
        assert!(several("batch=8,sequence=64,batch=8,sequence=32") && several("sequence=64,batch=8,sequence=32"));
    }
}
