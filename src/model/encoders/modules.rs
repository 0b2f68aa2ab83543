//! The files that the library `sentence-transformers` writes beside a model.

use std::path::{Component, Path};

use serde_json::Value;

use super::options::{Embedding, Pooling};
use super::settings::Settings;
use crate::error::Error;
use crate::files;

const MAX_FILE_BYTES: u64 = 1 << 20;

/// The requested options. Where an option is not requested, it has the value in the list of modules in the folder.
///
/// # Errors
/// [`Error::Io`]; [`Error::Format`] for impossible values; [`Error::Unsupported`] for a module that is not supported.
pub(super) fn told(folder: &Path, asked: &Embedding) -> Result<Embedding, Error> {
    let path = folder.join("modules.json");
    if !path.exists() {
        return Ok(asked.clone());
    }
    let text = files::read("open the list of modules", &path, MAX_FILE_BYTES)?;
    let modules: Vec<Value> = serde_json::from_slice(&text).map_err(|e| Error::format(&path, e.to_string()))?;
    let mut told = Embedding { normalized: Some(false), ..asked.clone() };
    for module in &modules {
        let name = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or("");
        match name("type").rsplit('.').next() {
            Some("Transformer" | "CLIPModel") => {}
            Some("Normalize") => told.normalized = Some(true),
            Some("Pooling") => told.pooling = Some(pooling(&inside(folder, name("path"))?)?),
            _ => {
                return Err(Error::Unsupported {
                    what: format!("{}: the module `{}`", path.display(), name("type")),
                    instead: "Transformer, Pooling and Normalize are".into(),
                });
            }
        }
    }
    Ok(Embedding { pooling: asked.pooling.or(told.pooling), normalized: asked.normalized.or(told.normalized), ..told })
}

/// The settings of a module in a folder within the model's folder.
fn inside(folder: &Path, module: &str) -> Result<Settings, Error> {
    if Path::new(module).components().any(|part| !matches!(part, Component::Normal(_))) {
        let what = format!("`path`: expected a folder beside the list, found `{module}`");
        return Err(Error::format(&folder.join("modules.json"), what));
    }
    Settings::open(&folder.join(module).join("config.json"))
}

/// The pooling in a module's settings.
fn pooling(settings: &Settings) -> Result<Pooling, Error> {
    let ways = [
        ("cls", "pooling_mode_cls_token", Pooling::Class),
        ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
        ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
    ];
    let mode = settings.name("pooling_mode");
    let told = ways.iter().filter(|(name, flag, _)| mode == *name || settings.flag(flag, false));
    let others = ["pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"];
    let is_other = others.iter().any(|flag| settings.flag(flag, false));
    let told: Vec<Pooling> = told.map(|(_, _, pooling)| *pooling).collect();
    match told[..] {
        [one] if !is_other => {
            settings.check()?;
            Ok(one)
        }
        _ => {
            settings.refuse("expected one way to pool: the first token, the mean of tokens, or the last token".into());
            settings.check().map(|()| Pooling::Mean)
        }
    }
}
