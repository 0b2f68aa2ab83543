//! Finds models and photos.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};
use trefoil::model::Model;
use trefoil::onnx::Sizes;
use trefoil::{Error, files};

const DEFAULT_MODEL: &str = "efficientnet-lite0";
const WEIGHTS_FILE: &str = "model.safetensors";
/// Extensions of files that are models without a folder.
const MODEL_FILES: [&str; 2] = ["safetensors", "onnx"];
/// Where users get models.
const GET_ONE: &str = "a model is a folder with model.safetensors and config.json: one comes with trefoil's sources, in \
                       weights/, others are at https://huggingface.co/timm";

/// Opens the requested model, or the default one; also returns its path.
pub fn open(wanted: Option<&Path>) -> Result<(Model, PathBuf)> {
    opened(find(wanted)?, |path| Model::open(path))
}

/// Opens the requested model, or the default one, at these sizes; also returns its path.
pub fn open_at(wanted: Option<&Path>, sizes: &Sizes) -> Result<(Model, PathBuf)> {
    opened(find(wanted)?, |path| of_sizes(path, sizes))
}

/// Opens the requested model at these sizes, an ONNX file as a model of values, whichever kind it is; also returns its
/// path.
pub fn open_values(wanted: &Path, sizes: &Sizes) -> Result<(Model, PathBuf)> {
    opened(find(Some(wanted))?, |path| match is_onnx(path) {
        true => Model::open_values(path, sizes),
        false => of_sizes(path, sizes),
    })
}

/// An error for a model of values.
pub fn check_images(model: &Model, path: &Path) -> Result<()> {
    ensure!(
        model.image_network().is_ok(),
        "{} is a model of values, and this command measures networks of images: `trefoil run MODEL --repeat N` measures any \
         model",
        path.display()
    );
    Ok(())
}

/// The model at these sizes, or at its own where there are none.
fn of_sizes(path: &Path, sizes: &Sizes) -> Result<Model, Error> {
    if sizes.is_empty() { Model::open(path) } else { Model::open_at(path, sizes) }
}

fn opened(path: PathBuf, open: impl FnOnce(&Path) -> Result<Model, Error>) -> Result<(Model, PathBuf)> {
    let model = open(&path).map_err(|error| {
        let of = match &error {
            Error::Option { option: "sizes", .. } => "--size NAME=N",
            Error::Option { option: "constants", .. } => "--constant NAME=FILE.npy",
            _ => "cannot use the model",
        };
        anyhow::Error::from(error).context(of)
    })?;
    log::info!("model {} from {}", model.name(), path.display());
    Ok((model, path))
}

/// Reads a configuration: the entries of a JSON object.
pub fn read_config(path: &Path) -> Result<Map<String, Value>> {
    const MOST_BYTES: u64 = 16 << 20;
    let text = files::read("read the configuration", path, MOST_BYTES)?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// Whether a path is named like an ONNX file.
pub fn is_onnx(path: &Path) -> bool {
    path.extension() == Some(OsStr::new("onnx"))
}

/// The folder `photos` beside a model or in one of the folders with weights; `None` if there is none.
pub fn photos_folder(model: &Path) -> Option<PathBuf> {
    let beside = model.parent().map(Path::to_owned);
    beside.into_iter().chain(weights_folders()).map(|folder| folder.join("photos")).find(|folder| folder.is_dir())
}

/// The folders where models are searched: `TREFOIL_WEIGHTS`, `./weights`, and `weights` beside the executable.
fn weights_folders() -> Vec<PathBuf> {
    let beside = env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("weights")));
    from_environment().into_iter().chain([PathBuf::from("weights")]).chain(beside).collect()
}

fn from_environment() -> Option<PathBuf> {
    env::var_os("TREFOIL_WEIGHTS").filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// The path of the requested model, or of the default one.
pub fn find(wanted: Option<&Path>) -> Result<PathBuf> {
    match wanted {
        Some(path) if path.exists() => in_path(path)?.with_context(|| no_model(path)),
        Some(path) => by_name(path),
        None => by_default(),
    }
}

/// The path of a model by its name in one of the folders with models.
fn by_name(name: &Path) -> Result<PathBuf> {
    let folders = weights_folders();
    if name.components().count() == 1 {
        if let Some(found) = folders.iter().map(|folder| folder.join(name)).find(|path| is_model(path)) {
            return Ok(found);
        }
        let name = name.display();
        bail!("no model `{name}`: neither a file or folder of that name, nor in {}; {GET_ONE}", list(&folders));
    }
    bail!("no model at {}: no such file or folder; {GET_ONE}", name.display());
}

fn by_default() -> Result<PathBuf> {
    // A setting of the user is an error where it does not work; it is not skipped.
    if let Some(path) = from_environment() {
        return in_path(&path)?.with_context(|| format!("TREFOIL_WEIGHTS is {}: {}", path.display(), no_model(&path)));
    }
    let folders = weights_folders();
    for folder in &folders {
        if let Some(found) = in_path(folder)? {
            return Ok(found);
        }
    }
    bail!(
        "no model found: --model and TREFOIL_WEIGHTS are not set, and there is none in {}; {GET_ONE}; \
         then name it by --model, or run where the weights are",
        list(&folders)
    );
}

/// The model at `path`: `path` itself, or the default or only model of a folder; `None` if there is none.
fn in_path(path: &Path) -> Result<Option<PathBuf>> {
    if is_model(path) {
        return Ok(Some(path.to_owned()));
    }
    let default = path.join(DEFAULT_MODEL);
    if is_model(&default) {
        return Ok(Some(default));
    }
    let Ok(entries) = fs::read_dir(path) else { return Ok(None) };
    let mut models: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|p| is_model(p)).collect();
    models.sort();
    match &models[..] {
        [] => Ok(None),
        [only] => Ok(Some(only.clone())),
        _ => bail!("{} holds several models: name one of {}", path.display(), list(&models)),
    }
}

/// Whether `path` may be a model. A file may have any name, since its content decides later; in a folder the file's
/// name decides.
fn is_model(path: &Path) -> bool {
    let is_named = MODEL_FILES.iter().any(|extension| path.extension() == Some(OsStr::new(extension)));
    path.join(WEIGHTS_FILE).is_file() || path.is_file() && is_named
}

/// Whether a file lies beside the weights of a model.
pub fn is_part(file: &Path) -> bool {
    file.with_file_name(WEIGHTS_FILE).is_file()
        && file.extension().is_some_and(|found| found == "json" || found == "safetensors")
}

fn no_model(path: &Path) -> String {
    if path.is_file() {
        return format!("{} is no model: expected a .safetensors or .onnx file", path.display());
    }
    format!("{} holds no model: expected {WEIGHTS_FILE} in it, or folders with one", path.display())
}

fn list(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_found_in_folders_and_by_path() {
        let folder = env::temp_dir().join(format!("trefoil-models-{}", std::process::id()));
        let make = |name: &str| {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join(WEIGHTS_FILE), b"").unwrap();
        };
        make("b");
        assert_eq!(in_path(&folder).unwrap(), Some(folder.join("b")));
        assert_eq!(in_path(&folder.join("b")).unwrap(), Some(folder.join("b")));
        make("a");
        let several = in_path(&folder).unwrap_err().to_string();
        assert!(several.contains("several models"), "{several}");
        make(DEFAULT_MODEL);
        assert_eq!(in_path(&folder).unwrap(), Some(folder.join(DEFAULT_MODEL)));
        assert_eq!(in_path(&folder.join("none")).unwrap(), None);
        fs::remove_dir_all(folder).unwrap();
    }
}
