//! The keys of the JSON files next to a model's weights. All problems of a file are reported in one error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::block::Activation;
use crate::error::Error;
use crate::files;
use crate::model::weights::Weights;

/// A file of settings, or an object in such a file. Null counts as absent.
pub(super) struct Settings {
    path: PathBuf,
    map: Map<String, Value>,
    problems: RefCell<Vec<String>>,
}

const MAX_FILE_BYTES: u64 = 64 << 20;
/// The largest size that a setting may be.
const MOST: u64 = 1 << 24;
/// The longest list of sizes.
const MOST_SIZES: usize = 8;

/// The value as a size; `None` if it is none.
fn size(value: &Value) -> Option<usize> {
    value.as_u64().filter(|n| (1..=MOST).contains(n)).map(|n| n as usize)
}

impl Settings {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] if it is no JSON object.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let text = files::read("open the model's configuration", path, MAX_FILE_BYTES)?;
        let map = serde_json::from_slice(&text).map_err(|e| Error::format(path, format!("configuration: {e}")))?;
        Ok(Self::of(path, map))
    }

    /// Reads a file. A file that does not exist has no settings.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn in_folder(folder: &Path, name: &str) -> Result<Self, Error> {
        let path = folder.join(name);
        if path.exists() { Self::open(&path) } else { Ok(Self::of(&path, Map::new())) }
    }

    pub fn of(path: &Path, map: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), map, problems: RefCell::default() }
    }

    /// The object under a key, empty if it is not there.
    pub fn inner(&self, key: &str) -> Self {
        let map = match self.get(key) {
            Some(Value::Object(map)) => map.clone(),
            None => Map::new(),
            Some(other) => {
                self.wrong(key, "an object", other);
                Map::new()
            }
        };
        Self::of(&self.path, map)
    }

    /// The value of a key; `None` for null.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether a key exists and is null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    /// The size under the first of some keys that exists.
    pub fn count(&self, keys: &[&str], default: usize) -> usize {
        let Some((key, value)) = keys.iter().find_map(|key| Some((key, self.get(key)?))) else { return default };
        size(value).unwrap_or_else(|| {
            self.wrong(key, &format!("a whole number from 1 to {MOST}"), value);
            default
        })
    }

    /// The height and the width under a key: one number for both, or two.
    pub fn sides(&self, key: &str, default: usize) -> [usize; 2] {
        match self.get(key) {
            Some(Value::Array(sides)) if sides.len() == 2 => match [size(&sides[0]), size(&sides[1])] {
                [Some(height), Some(width)] => [height, width],
                _ => [self.count(&[key], default); 2],
            },
            _ => [self.count(&[key], default); 2],
        }
    }

    /// The number from 0 to 1 under a key.
    pub fn fraction(&self, key: &str, default: f64) -> f64 {
        let Some(value) = self.get(key) else { return default };
        value.as_f64().filter(|number| (0.0..=1.0).contains(number)).unwrap_or_else(|| {
            self.wrong(key, "a number from 0 to 1", value);
            default
        })
    }

    /// The positive number, at most a million, under a key.
    pub fn positive(&self, key: &str, default: f64) -> f64 {
        let Some(value) = self.get(key) else { return default };
        value.as_f64().filter(|number| *number > 0.0 && *number <= 1e6).unwrap_or_else(|| {
            self.wrong(key, "a number above 0, at most 1000000", value);
            default
        })
    }

    /// Whether a key has a value other than 0.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some_and(|value| value.as_u64() != Some(0))
    }

    /// The list of sizes under a key.
    pub fn counts(&self, key: &str, default: &[usize]) -> Vec<usize> {
        let Some(value) = self.get(key) else { return default.to_vec() };
        let counts = value.as_array().and_then(|all| all.iter().map(size).collect::<Option<Vec<_>>>());
        counts.filter(|counts| (1..=MOST_SIZES).contains(&counts.len())).unwrap_or_else(|| {
            self.wrong(key, &format!("1 to {MOST_SIZES} whole numbers from 1 to {MOST}"), value);
            default.to_vec()
        })
    }

    /// The numbers by name under a key; none if the key does not exist.
    pub fn numbers(&self, key: &str) -> BTreeMap<String, f32> {
        let Some(value) = self.get(key) else { return BTreeMap::new() };
        let number = |(name, value): (&String, &Value)| Some((name.clone(), value.as_f64()? as f32));
        let numbers = value.as_object().and_then(|all| all.iter().map(number).collect());
        numbers.unwrap_or_else(|| {
            self.wrong(key, "an object of numbers", value);
            BTreeMap::new()
        })
    }

    /// The list of names under a key; `None` if the key does not exist.
    pub fn names(&self, key: &str) -> Option<Vec<String>> {
        let value = self.get(key)?;
        let names = value.as_array().map(|all| all.iter().filter_map(Value::as_str).map(str::to_owned).collect());
        names.or_else(|| {
            self.wrong(key, "a list of names", value);
            None
        })
    }

    /// The truth value under a key.
    pub fn flag(&self, key: &str, default: bool) -> bool {
        let Some(value) = self.get(key) else { return default };
        value.as_bool().unwrap_or_else(|| {
            self.wrong(key, "true or false", value);
            default
        })
    }

    /// The name under a key; empty if the key does not exist.
    pub fn name(&self, key: &str) -> &str {
        match self.get(key) {
            None => "",
            Some(Value::String(name)) => name,
            Some(other) => {
                self.wrong(key, "a name", other);
                ""
            }
        }
    }

    /// The three numbers under a key, one for each channel.
    pub fn channels(&self, key: &str, default: [f32; 3]) -> [f32; 3] {
        let Some(value) = self.get(key) else { return default };
        let numbers = value.as_array().map(|all| all.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
        match numbers.as_deref() {
            Some(&[r, g, b]) => [r, g, b].map(|number| number as f32),
            _ => {
                self.wrong(key, "three numbers", value);
                default
            }
        }
    }

    /// The activation between the two products of a layer.
    pub fn activation(&self, keys: &[&str], default: Activation) -> Activation {
        let Some((key, value)) = keys.iter().find_map(|key| Some((key, self.get(key)?))) else { return default };
        value.as_str().and_then(Activation::from_name).unwrap_or_else(|| {
            self.wrong(key, "gelu, gelu_new, gelu_pytorch_tanh, quick_gelu, relu or silu", value);
            default
        })
    }

    /// The ends of the names of the biases that do not exist, by the keys for these modules or their defaults.
    pub fn without_biases(&self, modules: &[(&str, bool, &str)]) -> Vec<String> {
        let left_out = modules.iter().filter(|(key, default, _)| !self.flag(key, *default));
        left_out.map(|(_, _, module)| format!("{module}.bias")).collect()
    }

    /// The size of a stored tensor along an axis, for files whose settings do not give it; `None` if there is no such
    /// tensor or axis. The size is checked, because tensors without elements may have axes of any size.
    pub fn axis(&self, weights: &Weights, tensor: &str, axis: usize) -> Option<usize> {
        let size = *weights.dims(tensor)?.get(axis)?;
        if (1..=MOST as usize).contains(&size) {
            return Some(size);
        }
        self.refuse(format!("`{tensor}`: expected 1 to {MOST} along axis {axis}, found {size}"));
        None
    }

    /// Records a value that is not as expected.
    pub fn wrong(&self, key: &str, expected: &str, found: &Value) {
        self.problems.borrow_mut().push(format!("`{key}`: expected {expected}, found {found}"));
    }

    /// Records a part of the model that is not supported.
    pub fn refuse(&self, what: String) {
        self.problems.borrow_mut().push(what);
    }

    /// Takes over the problems of an object in the same file.
    pub fn include(&self, inner: &Self) {
        self.problems.borrow_mut().append(&mut inner.problems.borrow_mut());
    }

    /// The error for scales that do not fit the model.
    pub fn misfit(&self, what: &str) -> Error {
        Error::format(&self.path, format!("configuration: `quantization.e4m3`: {what}"))
    }

    /// Checks that no problem was recorded.
    ///
    /// # Errors
    /// [`Error::Format`] with all problems.
    pub fn check(&self) -> Result<(), Error> {
        let problems = self.problems.borrow();
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::format(&self.path, format!("configuration: {}", problems.join("; "))))
    }
}
