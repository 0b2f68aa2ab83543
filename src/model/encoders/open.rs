//! Opening a model of a folder.

use std::path::Path;

use serde_json::Value;

use super::encoder::{self, Encoder};
use super::families::{self, FAMILIES, TIMM, TOWERS};
use super::modules;
use super::options::{Embedding, Tower};
use super::pictures;
use super::settings::Settings;
use super::{dinov3, modernbert, siglip, staged, timm, whisper};
use crate::error::Error;
use crate::model::Model;
use crate::model::weights::Weights;
use crate::tensor::Packing;

/// The families as texts, for messages.
pub(in crate::model) fn known() -> impl Iterator<Item = String> {
    let timm = TIMM.iter().map(|beginning| format!("{beginning}*"));
    FAMILIES.into_iter().chain(TOWERS).map(str::to_owned).chain(timm)
}

/// The error for a path where [`open`] finds no encoder.
pub(in crate::model) fn unknown(path: &Path) -> Error {
    let named = |settings: Settings| {
        let name = |key| Some(format!("its config.json has the {key} `{}`", settings.get(key)?.as_str()?));
        ["model_type", "architecture"].into_iter().find_map(name)
    };
    let why = match Settings::open(&path.join("config.json")) {
        Ok(settings) => {
            named(settings).unwrap_or_else(|| "its config.json has no model_type and no architecture".into())
        }
        Err(_) => "it is no folder with a config.json".into(),
    };
    Error::Unsupported {
        what: format!("{} as an encoder ({why})", path.display()),
        instead: format!("open an ONNX file, or a folder of one of {}", known().collect::<Vec<_>>().join(", ")),
    }
}

/// The encoder in a folder; `None` if its model is of no supported family.
///
/// # Errors
/// The errors of [`Model::open_encoder`].
pub(in crate::model) fn open(folder: &Path, asked: &Embedding) -> Result<Option<Model>, Error> {
    let settings = Settings::open(&folder.join("config.json"))?;
    let Some(kind) = kind(&settings) else { return Ok(None) };
    let weights = in_new_names(&Weights::open(folder.join("model.safetensors"))?)?;
    let asked = modules::told(folder, asked)?;
    let mut encoder = encoder(folder, &settings, &weights, &asked, &kind)?;
    let pictures = match (encoder.pixels(), settings.get("model_type")) {
        (None, _) => None,
        (Some(pixels), None) => Some(pictures::by_timm(&settings.inner("pretrained_cfg"), pixels)?),
        (Some(pixels), Some(_)) => {
            Some(pictures::by_transformers(&Settings::in_folder(folder, "preprocessor_config.json")?, pixels)?)
        }
    };
    encoder::check_sizes(&*encoder, &settings);
    let quantization = settings.inner("quantization");
    let scales = quantization.numbers("e4m3");
    settings.include(&quantization);
    if !scales.is_empty() && TOWERS.contains(&&*kind) {
        settings.refuse("`quantization.e4m3`: expected an encoder of one kind of input".into());
    }
    settings.check()?;
    encoder.check(&asked)?;
    let packed = packing(&*encoder, &asked, &kind)?;
    let model = encoder::model(encoder, &weights, packed)?;
    let model =
        if scales.is_empty() { model } else { model.in_e4m3_as_kept(&scales, |what| settings.misfit(&what))? };
    Ok(Some(Model { name: kind.as_str().into(), pictures: pictures.map(Into::into), ..model }))
}

/// Whether the model in a folder is an encoder.
///
/// # Errors
/// [`Error::Io`] or [`Error::Format`] if the configuration cannot be read.
pub(in crate::model) fn is_one(folder: &Path) -> Result<bool, Error> {
    Ok(kind(&Settings::open(&folder.join("config.json"))?).is_some())
}

/// The family of a configuration, or the architecture for a model of timm; `None` if it is not supported.
fn kind(settings: &Settings) -> Option<String> {
    let name = |key: &str| settings.get(key).and_then(Value::as_str).unwrap_or("");
    let (family, architecture) = (name("model_type"), name("architecture"));
    let is_known = FAMILIES.contains(&family) || TOWERS.contains(&family);
    let is_timm = TIMM.iter().any(|beginning| architecture.starts_with(beginning));
    is_known.then_some(family).or(is_timm.then_some(architecture)).map(str::to_owned)
}

fn encoder(
    folder: &Path,
    settings: &Settings,
    weights: &Weights,
    asked: &Embedding,
    kind: &str,
) -> Result<Box<dyn Encoder>, Error> {
    if TOWERS.contains(&kind) {
        return Ok(tower(settings, asked, kind));
    }
    Ok(match kind {
        "vit" | "deit" | "dinov2" | "dinov2_with_registers" => Box::new(families::vit(settings, weights, asked, kind)),
        "dinov3_vit" => Box::new(dinov3::images(settings, weights, asked)),
        "whisper" => Box::new(whisper::sounds(settings, weights, asked)),
        "swin" => Box::new(staged::swin(settings, weights, asked)),
        "convnext" => Box::new(staged::convnext(settings, weights, asked)),
        "modernbert" => Box::new(modernbert::texts(settings, weights, asked, longest(folder)?)),
        _ if FAMILIES.contains(&kind) => Box::new(families::bert(settings, weights, asked, kind, longest(folder)?)),
        name if name.starts_with("swin_") => Box::new(staged::timm_swin(settings, weights, asked)),
        name if name.starts_with("convnext_") => Box::new(staged::timm_convnext(settings, weights, asked)),
        name => Box::new(timm::images(settings, weights, asked, name)),
    })
}

/// The requested packed size; `None` if rows of one length are requested.
///
/// # Errors
/// [`Error::Unsupported`] for an encoder whose rows cannot lie end to end.
fn packing(encoder: &dyn Encoder, asked: &Embedding, kind: &str) -> Result<Option<Packing>, Error> {
    let Some([tokens, rows]) = asked.packed else { return Ok(None) };
    let refused = |why: &str| Error::Unsupported {
        what: format!("packed rows of `{kind}`: {why}"),
        instead: "open it for rows of one length".into(),
    };
    let texts = encoder.texts().ok_or_else(|| refused("it is no encoder of texts"))?;
    match texts.is_not_packed() {
        Some(why) => Err(refused(why)),
        None => Ok(Some(Packing { tokens, rows, longest: texts.sequence.min(tokens) })),
    }
}

/// The requested tower of a model of images and texts.
fn tower(settings: &Settings, asked: &Embedding, kind: &str) -> Box<dyn Encoder> {
    let is_of_texts = asked.tower == Some(Tower::Texts);
    let of = settings.inner(if is_of_texts { "text_config" } else { "vision_config" });
    let encoder: Box<dyn Encoder> = match (kind, is_of_texts) {
        ("siglip", true) => Box::new(siglip::texts(&of, asked)),
        ("siglip", false) => Box::new(siglip::images(&of, asked)),
        (_, true) => Box::new(families::clip_texts(settings, &of, asked)),
        (_, false) => Box::new(families::clip_images(settings, &of, asked)),
    };
    settings.include(&of);
    encoder
}

/// The network of a configuration, for the longest texts that it allows, without weights.
#[cfg(test)]
pub(crate) fn network(config: &Value, asked: &Embedding) -> crate::model::Values {
    let (folder, map) = (Path::new("of a test"), config.as_object().cloned().unwrap_or_default());
    let settings = Settings::of(folder, map);
    let kind = kind(&settings).expect("a family's configuration");
    let weights = Weights::from_tensors(Vec::<(String, _, _)>::new()).expect("none");
    let encoder = encoder(folder, &settings, &weights, asked, &kind).expect("an encoder");
    settings.check().expect("settings that fit");
    let packed = packing(&*encoder, asked, &kind).expect("rows that may lie end to end");
    encoder::values(encoder, packed).expect("a graph")
}

/// The number of tokens of the longest texts in the file of sentence-transformers; no limit if there is no such file.
fn longest(folder: &Path) -> Result<usize, Error> {
    let sentences = Settings::in_folder(folder, "sentence_bert_config.json")?;
    let longest = sentences.count(&["max_seq_length"], usize::MAX);
    sentences.check().map(|()| longest)
}

/// The weights with the present names of norms in addition to the former ones.
fn in_new_names(weights: &Weights) -> Result<Weights, Error> {
    let renamed = |name: &str| {
        let old = [("LayerNorm.gamma", "weight"), ("LayerNorm.beta", "bias")];
        let (old, new) = old.into_iter().find(|(old, _)| name.ends_with(old))?;
        let module = &name[..name.len() - old.len() + "LayerNorm.".len()];
        Some((format!("{module}{new}"), name.to_owned(), weights.dims(name)?.to_vec()))
    };
    weights.with_views(weights.names().filter_map(renamed).collect::<Vec<_>>())
}
