//! From a folder to a model.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;

use super::block::Block;
use super::families::{self, CLIP, FAMILIES, TIMM};
use super::images::Images;
use super::modules;
use super::options::{Embedding, Pooling, Tower};
use super::pictures;
use super::settings::Settings;
use super::text::Text;
use crate::error::Error;
use crate::graph::Graph;
use crate::model::Model;
use crate::model::preprocessing::Preprocessing;
use crate::model::values::Values;
use crate::model::weights::Weights;
use crate::tensor::{Dims, Size};

/// An encoder, ready to be built.
enum Encoder {
    Texts(Box<Text>),
    Images(Box<Images>),
}

/// The families, for messages.
pub(in crate::model) fn known() -> impl Iterator<Item = String> {
    let timm = TIMM.iter().map(|beginning| format!("{beginning}*"));
    FAMILIES.iter().copied().chain([CLIP]).map(str::to_owned).chain(timm)
}

/// The encoder in a folder; none if the folder's model is of no family here.
///
/// # Errors
/// Those of [`Model::open_encoder`].
pub(in crate::model) fn open(folder: &Path, asked: &Embedding) -> Result<Option<Model>, Error> {
    let settings = Settings::open(&folder.join("config.json"))?;
    let Some(kind) = kind(&settings) else { return Ok(None) };
    let weights = in_new_names(&Weights::open(folder.join("model.safetensors"))?)?;
    let asked = modules::told(folder, asked)?;
    let (encoder, pictures) = encoder(folder, &settings, &weights, &asked, &kind)?;
    settings.check()?;
    encoder.check_options(&asked)?;
    encoder.model(&weights).map(|model| Some(Model { name: kind.as_str().into(), pictures, ..model }))
}

/// The family or, of timm's, the architecture of a configuration.
fn kind(settings: &Settings) -> Option<String> {
    let name = |key: &str| settings.get(key).and_then(Value::as_str).unwrap_or("");
    let (family, architecture) = (name("model_type"), name("architecture"));
    let is_known = FAMILIES.contains(&family) || family == CLIP;
    let is_timm = TIMM.iter().any(|beginning| architecture.starts_with(beginning));
    is_known.then_some(family).or(is_timm.then_some(architecture)).map(str::to_owned)
}

fn encoder(
    folder: &Path,
    settings: &Settings,
    weights: &Weights,
    asked: &Embedding,
    kind: &str,
) -> Result<(Encoder, Option<Arc<Preprocessing>>), Error> {
    let texts = |of: Text| Ok((Encoder::Texts(of.into()), None));
    let mut images = match kind {
        CLIP if asked.tower == Some(Tower::Texts) => {
            let inner = settings.inner("text_config");
            let of = families::clip_texts(settings, &inner, asked);
            settings.include(&inner);
            return texts(of);
        }
        CLIP => {
            let inner = settings.inner("vision_config");
            let of = families::clip_images(settings, &inner, asked);
            settings.include(&inner);
            of
        }
        "vit" | "deit" | "dinov2" | "dinov2_with_registers" => families::vit(settings, weights, asked, kind),
        _ if FAMILIES.contains(&kind) => {
            let sentences = Settings::beside(folder, "sentence_bert_config.json")?;
            let longest = sentences.count(&["max_seq_length"], usize::MAX);
            sentences.check()?;
            return texts(families::bert(settings, weights, asked, kind, longest));
        }
        timm => families::timm(settings, weights, asked, timm),
    };
    let preprocessing = match settings.get("model_type") {
        None => pictures::by_timm(&settings.inner("pretrained_cfg"), &mut images),
        Some(_) => pictures::by_transformers(&Settings::beside(folder, "preprocessor_config.json")?, &mut images),
    }?;
    Ok((Encoder::Images(images.into()), Some(preprocessing.into())))
}

/// The weights, with the names that norms have today beside those that they had once.
fn in_new_names(weights: &Weights) -> Result<Weights, Error> {
    let renamed = |name: &str| {
        let old = [("LayerNorm.gamma", "weight"), ("LayerNorm.beta", "bias")];
        let (old, new) = old.into_iter().find(|(old, _)| name.ends_with(old))?;
        let module = &name[..name.len() - old.len() + "LayerNorm.".len()];
        Some((format!("{module}{new}"), name.to_owned(), weights.dims(name)?.to_vec()))
    };
    weights.with_views(weights.names().filter_map(renamed).collect::<Vec<_>>())
}

impl Encoder {
    fn block(&self, rows: usize) -> Block {
        match self {
            Self::Texts(of) => of.block(rows),
            Self::Images(of) => of.block(rows),
        }
    }

    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        self.block(rows).g.finish()
    }

    /// Whether the sizes that are asked for are possible.
    fn check_options(&self, asked: &Embedding) -> Result<(), Error> {
        match self {
            Self::Texts(of) => {
                let most = of.places.1.saturating_sub(of.first_place);
                if asked.image.is_some() {
                    return Err(Error::option("image", "given", "none, for an encoder of texts"));
                }
                if !(1..=most).contains(&of.sequence) {
                    return Err(Error::option("sequence", of.sequence, format!("1 to {most} tokens")));
                }
            }
            Self::Images(of) => {
                let (patch, [height, width]) = (of.patch, of.size);
                if asked.sequence.is_some() {
                    return Err(Error::option("sequence", "given", "none, for an encoder of images"));
                }
                if of.size.iter().any(|&side| side == 0 || !side.is_multiple_of(patch)) {
                    let expected = format!("sides that are multiples of the patches' {patch}");
                    return Err(Error::option("image", format_args!("{height} x {width}"), expected));
                }
                if of.pooling == Pooling::Last {
                    return Err(Error::option("pooling", "Last", "Mean, Class or Tokens, for an encoder of images"));
                }
            }
        }
        Ok(())
    }

    /// The model, of weights that have everything that it needs.
    fn model(self, weights: &Weights) -> Result<Model, Error> {
        let block = self.block(1);
        check(weights, &block.needs(), self.layers())?;
        let Block { g, joins, .. } = block;
        g.finish()?;
        let computed = match &self {
            Self::Texts(_) => Vec::new(),
            Self::Images(of) => of.computed(weights)?,
        };
        let weights = weights.with(computed)?.with_joined(&joins)?;
        let build = move |size: &Size| self.graph(size.batch());
        Model::of_values(Values::built(Dims::new(), build)?, weights.into())
    }

    /// What the names of the tensors of layers begin with.
    fn layers(&self) -> String {
        let stack = match self {
            Self::Texts(of) => &of.stack,
            Self::Images(of) => &of.stack,
        };
        stack.name(stack.names.layers)
    }
}

/// Whether all tensors are there in these dimensions, and none of the layers is left over, which would be one that is
/// not computed.
fn check(weights: &Weights, needs: &BTreeMap<String, Vec<usize>>, layers: String) -> Result<(), Error> {
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
    for name in weights.names().filter(|name| name.starts_with(&layers) && !is_old(name)) {
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
