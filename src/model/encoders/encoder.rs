//! The trait of all encoders, and the step from an encoder to a model.

use std::collections::BTreeMap;

use super::block::{Block, Stack};
use super::options::Embedding;
use super::pixels::Pixels;
use super::settings::Settings;
use super::text::Text;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::model::Model;
use crate::model::values::Values;
use crate::model::weights::{WeightDtype, Weights};
use crate::tensor::{Dims, Dtype, Packing, Size};

/// An encoder, ready to be built.
pub(super) trait Encoder: Send + Sync {
    /// The graph for `rows` rows.
    fn block(&self, rows: usize) -> Block;

    /// Checks that the requested sizes are possible.
    ///
    /// # Errors
    /// [`Error::Option`].
    fn check(&self, asked: &Embedding) -> Result<(), Error>;

    /// The layers of a transformer; empty for an encoder that is none.
    fn stacks(&self) -> &[Stack] {
        &[]
    }

    /// The number of elements of the largest table that depends on sizes only.
    fn made(&self) -> usize {
        0
    }

    /// The beginning of the names of the layers' tensors.
    fn layers(&self) -> String;

    /// The encoder of texts; `None` for any other encoder.
    fn texts(&self) -> Option<&Text> {
        None
    }

    /// The pixels that the encoder reads; `None` for texts.
    fn pixels(&mut self) -> Option<&mut Pixels> {
        None
    }

    /// Weights that are computed once from stored weights.
    ///
    /// # Errors
    /// [`Error::Io`] if weights cannot be read; [`Error::Tensor`] if they are not floats.
    fn computed(&self, _weights: &Weights) -> Result<Vec<(String, Tensor)>, Error> {
        Ok(Vec::new())
    }
}

/// Records errors for sizes that are too large or do not fit together, before tables of these sizes are made.
pub(super) fn check_sizes(encoder: &dyn Encoder, settings: &Settings) {
    for Stack { width, heads, layers, .. } in encoder.stacks() {
        if *heads == 0 || *width == 0 || !width.is_multiple_of(*heads) {
            settings.refuse(format!("{width} values of a token for {heads} heads: expected some, as many for each"));
        }
        if *layers > MOST_LAYERS {
            settings.refuse(format!("{layers} layers: expected up to {MOST_LAYERS}"));
        }
    }
    let made = encoder.made();
    if made > MOST_MADE {
        settings
            .refuse(format!("a table of {made} numbers for its tokens: expected up to {MOST_MADE}, of fewer tokens"));
    }
}

/// The largest number of layers of an encoder.
const MOST_LAYERS: usize = 1024;
/// The largest number of elements of a table that depends on sizes only: those of 16,384 tokens by as many.
const MOST_MADE: usize = 1 << 28;

/// The model of an encoder with complete weights, for rows of one length or for rows that lie end to end.
///
/// # Errors
/// [`Error::Format`] with every tensor that does not fit; the errors of [`Encoder::computed`]; [`Error::Graph`]; for
/// packed rows the errors of [`Text::packed`].
pub(super) fn model(encoder: Box<dyn Encoder>, weights: &Weights, packed: Option<Packing>) -> Result<Model, Error> {
    let block = match packed {
        Some(of) => packed_block(&*encoder, of)?,
        None => encoder.block(1),
    };
    check(weights, &block.needs(), &encoder.layers())?;
    let zeros = block.zeros();
    let Block { g, joins, .. } = block;
    g.finish()?;
    let weights =
        weights.with(encoder.computed(weights)?)?.with(absent(weights, &zeros, &joins)?)?.with_joined(&joins)?;
    Model::of_values(values(encoder, packed)?, weights.into())
}

/// The network of an encoder for rows of one length, or for rows that lie end to end.
pub(super) fn values(encoder: Box<dyn Encoder>, packed: Option<Packing>) -> Result<Values, Error> {
    match packed {
        Some(of) => Values::unbatched(of.dims(), move |size| {
            let of = Packing::of(size.dims()).expect("the model's own dimensions");
            packed_block(&*encoder, of)?.g.finish()
        }),
        None => Values::built(Dims::new(), move |size: &Size| encoder.block(size.batch()).g.finish()),
    }
}

fn packed_block(encoder: &dyn Encoder, of: Packing) -> Result<Block, Error> {
    encoder.texts().expect("it was seen to be one").packed(of)
}

/// Zeros for biases that are not stored, in the type of the tensors that they are joined with, or else of their
/// matrices.
fn absent(
    weights: &Weights,
    zeros: &BTreeMap<String, Vec<usize>>,
    joins: &BTreeMap<String, Vec<String>>,
) -> Result<Vec<(String, Tensor)>, Error> {
    let mut all = Vec::new();
    for (name, dims) in zeros {
        let joined = joins.values().filter(|parts| parts.contains(name)).flatten().cloned();
        let matrix = name.strip_suffix("bias").map(|module| format!("{module}weight"));
        let dtype = joined.chain(matrix).find_map(|beside| match weights.dtype(&beside) {
            Some(WeightDtype::Element(dtype)) => Some(dtype),
            _ => None,
        });
        let dtype = dtype.unwrap_or(Dtype::F32);
        all.push((name.clone(), Tensor::zeros(ValueType::new(dtype, dims))?));
    }
    Ok(all)
}

/// Checks that all tensors exist with these dimensions, and that no tensor of the layers is left over, because its
/// layer would not be computed.
fn check(weights: &Weights, needs: &BTreeMap<String, Vec<usize>>, layers: &str) -> Result<(), Error> {
    let mut problems = Vec::new();
    for (name, dims) in needs {
        match weights.check(name, dims) {
            Ok(()) => {}
            Err(Error::Tensor { tensor, expected, found, .. }) => {
                problems.push(format!("`{tensor}`: expected {expected}, found {found}"));
            }
            Err(other) => return Err(other),
        }
    }
    let is_old = |name: &str| name.ends_with("LayerNorm.gamma") || name.ends_with("LayerNorm.beta");
    for name in weights.names().filter(|name| name.starts_with(layers) && !is_old(name)) {
        if !needs.contains_key(name) {
            problems.push(format!("`{name}`: expected none of this name, as the configuration says"));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Error::format(
        weights.path(),
        format!("{} tensors do not fit the configuration: {}", problems.len(), problems.join("; ")),
    ))
}
