//! ONNX files as models.

use std::collections::HashMap;
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
use crate::onnx::{DataType, Dim, File, Sizes, Tensor, ValueType, dtype_of};
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

/// The initializers of the file's graph, at their places in the file. Those that values do not have as the file stores
/// them are converted now, or left out if no node reads them; texts are left out.
fn weights(file: &File) -> Result<Weights, Error> {
    let graph = &file.model().graph;
    let (read, mut places, mut converted) = (graph.names_read(), Vec::new(), Converted::new(file));
    for tensor in &graph.initializers {
        let Some(dtype) = dtype_of(tensor.dtype) else { continue };
        let is_as_stored = dtype != Dtype::Bool && dtype.bytes() * tensor.elems() == tensor.bytes();
        let (source, offset) = match file.place(tensor).filter(|_| is_as_stored) {
            Some((source, offset)) => (source.clone(), offset),
            None if read.contains(&tensor.name[..]) => (converted.read(tensor, dtype)?, 0),
            None => continue,
        };
        let (name, of) = (tensor.name.clone(), values::ValueType::new(dtype, &tensor.dims));
        places.push(Placed { name, of, source, offset });
    }
    Weights::of_places(file.path(), places)
}

/// Elements of a file's tensors that are converted when the file is opened.
struct Converted<'f> {
    file: &'f File,
    /// The bytes that may still be made.
    left: u64,
    /// The elements that were made, by the source and offset of a tensor, its type and its number of elements, for all
    /// tensors there.
    known: HashMap<(*const Source, u64, DataType, usize), Arc<Source>>,
}

/// The most bytes that are made, in addition to a multiple of the files' size: a byte of a file holds four elements of
/// two bits, or one element of eight bytes.
const CONVERTED_BYTES: u64 = 256 << 20;
const CONVERTED_FOR_A_BYTE: u64 = 8;

impl<'f> Converted<'f> {
    fn new(file: &'f File) -> Self {
        let left = CONVERTED_BYTES.saturating_add(file.all_bytes().saturating_mul(CONVERTED_FOR_A_BYTE));
        Self { file, left, known: HashMap::new() }
    }

    /// The elements of a tensor as elements of this type.
    fn read(&mut self, tensor: &Tensor, dtype: Dtype) -> Result<Arc<Source>, Error> {
        let place = self.file.place(tensor);
        let key = place.map(|(source, offset)| (Arc::as_ptr(source), offset, tensor.dtype, tensor.elems()));
        if let Some(known) = key.and_then(|key| self.known.get(&key)) {
            return Ok(known.clone());
        }
        let bytes = (dtype.bytes() as u64).saturating_mul(tensor.elems() as u64);
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let what = "tensors that are stored otherwise than values have them are larger than the files by far";
            Error::format(
                self.file.path(),
                format!("{what}, up to `{}` of {bytes} bytes", printable(&tensor.name, MOST_OF_A_NAME)),
            )
        })?;
        let made = Arc::new(Source::Memory(self.file.elements(tensor)?.bytes().to_vec()));
        self.known.extend(key.map(|key| (key, made.clone())));
        Ok(made)
    }
}
