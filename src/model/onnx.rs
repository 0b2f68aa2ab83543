//! ONNX files of image classifiers, as models.

use std::path::Path;
use std::sync::Arc;

use super::config::Config;
use super::recognise;
use super::weights::{Placed, Weights};
use super::{MOST_OF_A_NAME, Model, Preprocessing};
use crate::error::{Error, printable};
use crate::files::Source;
use crate::graph as values;
use crate::onnx::{Dim, File, Sizes, ValueType, dtype_of};
use crate::tensor::Dtype;

/// The model in an ONNX file, with the `config.json` beside it, if there is one.
///
/// # Errors
/// Those of [`Model::open`].
pub(super) fn open(path: &Path) -> Result<Model, Error> {
    let file = File::open(path)?;
    let weights = weights(&file)?;
    let network = recognise::network(&file.graph(&one_image(&file))?, &weights)?;
    let beside = path.with_file_name("config.json");
    let (labels, preprocessing) = match beside.exists() {
        true => {
            let Config { labels, preprocessing, .. } = Config::open(&beside, |_| Ok(network.graph.input))?;
            (labels, preprocessing)
        }
        false => (Vec::new(), Preprocessing::new(network.graph.input)),
    };
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let weights = weights.with(network.computed)?.with_views(network.views)?;
    let model = Model::new(network.graph, weights, preprocessing, labels)?;
    Ok(model.with_name(&printable(&name, MOST_OF_A_NAME)))
}

/// The sizes for one image: 1 for the first dimension of each input, if it is free.
fn one_image(file: &File) -> Sizes {
    let mut sizes = Sizes::new();
    for input in &file.model().graph.inputs {
        let ValueType::Tensor { dims: Some(dims), .. } = &input.kind else { continue };
        match dims.first() {
            Some(Dim::Named(name)) if name != "?" => sizes = sizes.dim(name, 1),
            Some(Dim::Named(_) | Dim::Unknown) => sizes = sizes.dim(&format!("{}:0", input.name), 1),
            Some(Dim::Fixed(_)) | None => {}
        }
    }
    sizes
}

/// The initializers of the file's graph, where they lie in it; those that lie in pieces are read now. Text is left out.
fn weights(file: &File) -> Result<Weights, Error> {
    let mut places = Vec::new();
    for tensor in &file.model().graph.initializers {
        let Some(dtype) = dtype_of(tensor.dtype) else { continue };
        let is_as_stored = dtype != Dtype::Bool && dtype.bytes() * tensor.elems() == tensor.bytes();
        let (source, offset) = match file.place(tensor).filter(|_| is_as_stored) {
            Some((source, offset)) => (source.clone(), offset),
            None => (Arc::new(Source::Memory(file.elements(tensor)?.bytes().to_vec())), 0),
        };
        let (name, of) = (tensor.name.clone(), values::ValueType::new(dtype, &tensor.dims));
        places.push(Placed { name, of, source, offset });
    }
    Weights::of_places(file.path(), places)
}
