//! ONNX files as models.

use std::path::Path;
use std::sync::Arc;

use super::config::{self, Config};
use super::recognise::{self, Recognised};
use super::shaped::{Images, Shaped};
use super::values::Values;
use super::weights::{Placed, Weights};
use super::{MOST_OF_A_NAME, Model, Preprocessing};
use crate::error::{Error, printable};
use crate::files::Source;
use crate::graph as values;
use crate::onnx::{Dim, File, Sizes, ValueType, dtype_of};
use crate::tensor::{Dims, Dtype};

/// The model in an ONNX file: a network of images if it is one and `finds_images`, else a model of values. A
/// `config.json` in the same folder is read too.
///
/// # Errors
/// The errors of [`Model::open`].
pub(super) fn open(path: &Path, sizes: &Sizes, finds_images: bool) -> Result<Model, Error> {
    let file = File::open(path)?;
    let weights = Arc::new(weights(&file)?);
    let name = path.file_stem().map(|stem| printable(&stem.to_string_lossy(), MOST_OF_A_NAME)).unwrap_or_default();
    let batch = batch_dims(&file, sizes);
    let metadata = file.model().metadata.as_slice().into();
    let values = Values::of_file(file, sizes.clone(), batch)?;
    let config_path = path.with_file_name("config.json");
    let in_f32 = config::nodes_in_f32(&config_path)?;
    let with_f32 = |model: Model| {
        let what = "nodes_in_f32 is for the nodes of the files beside it";
        model
            .with_f32(&in_f32)
            .map_err(|error| Error::format(&config_path, format!("{what}, and in {}: {error}", path.display())))
    };
    // Kernels for images are in f16.
    let found = match finds_images && in_f32.is_empty() {
        false => None,
        true => match recognise::network(&values.graph(1)?, &weights) {
            Ok(found) if found.is_vector()? => Some(found),
            Ok(_) => {
                log::info!("{name}: no network of images: its result is an image");
                None
            }
            Err(Error::Unsupported { what, .. }) => {
                log::info!("{name}: no network of images: {what}");
                None
            }
            Err(other) => return Err(other),
        },
    };
    let model = match found {
        Some(found) => of_images(path, values, found, &weights)?,
        None => with_f32(Model::of_values(values, weights)?)?,
    };
    Ok(Model { metadata, ..model.with_name(&name) })
}

/// The model of a network of images that was found in a network of values, with the settings of the `config.json` in
/// the file's folder.
fn of_images(path: &Path, values: Values, found: Recognised, weights: &Arc<Weights>) -> Result<Model, Error> {
    let config_path = path.with_file_name("config.json");
    let (labels, preprocessing) = match config_path.exists() {
        true => {
            let Config { labels, preprocessing, .. } = Config::open(&config_path, |_| Ok(found.network.input))?;
            (labels, preprocessing)
        }
        false => (Vec::new(), Preprocessing::new(found.network.input)),
    };
    let (first, weights) = Shaped::found(found, preprocessing.clone(), weights)?;
    let dims = values.dims().clone();
    let at = move |dims: &Dims, weights: &Arc<Weights>| {
        let found = recognise::network(&values.at(dims)?.graph(1)?, weights)?;
        let preprocessing = preprocessing.for_input(found.network.input);
        Shaped::found(found, preprocessing, weights)
    };
    Model::of_shaped(Images::new(dims, first, at), weights, labels)
}

/// The names of the free dimensions without a size that are the batch, one of each input: the dimension whose name
/// contains `batch`, or else the first.
fn batch_dims(file: &File, sizes: &Sizes) -> Vec<String> {
    let mut names = Vec::new();
    for input in &file.model().graph.inputs {
        let ValueType::Tensor { dims: Some(dims), .. } = &input.kind else { continue };
        let free = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Named(name) if name != "?" => Some((axis, name.clone())),
            Dim::Named(_) | Dim::Unknown => Some((axis, format!("{}:{axis}", input.name))),
            Dim::Fixed(_) => None,
        };
        let unsized_dims = || dims.iter().enumerate().filter_map(free).filter(|(_, name)| sizes.get(name).is_none());
        let called = unsized_dims().find(|(_, name)| name.to_ascii_lowercase().contains("batch"));
        match called.or_else(|| unsized_dims().find(|(axis, _)| *axis == 0)) {
            Some((_, name)) if !names.contains(&name) => names.push(name),
            _ => {}
        }
    }
    names
}

/// The initializers of the file's graph, at their places in the file. Those that are not stored in one piece are read
/// now; texts are left out.
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
