//! `config.json`, as timm writes it beside the weights.
//!
//! The keys that are read: `architecture`, `num_classes`, `label_names` or `id2label`; from `pretrained_cfg` (or else
//! from the top level) `input_size`, `mean`, `std`, `crop_pct`, `crop_mode`, `interpolation`, `transform_input`; from
//! `quantization` at the top level `scales`, `means` and `floats`; and for a model of values `nodes_in_f32`. All other
//! keys are ignored, and null counts as absent. Absent keys have the values that timm assumes: the ImageNet mean and
//! deviation for three channels, a crop of 0.875, bicubic interpolation.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::preprocessing::{self, Interpolation, Preprocessing};
use super::quantization::Quantization;
use crate::error::Error;
use crate::files;
use crate::tensor::Shape;

/// A configuration, checked in itself but not yet against weights.
#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The file that the configuration comes from.
    pub path: PathBuf,
    /// The architecture's name, such as `resnet50.a1_in1k`.
    pub architecture: String,
    /// The number of classes; `None` if only the weights tell it.
    pub num_classes: Option<usize>,
    /// A label for each class, or no labels.
    pub labels: Vec<String>,
    /// The conversion of pictures to inputs.
    pub preprocessing: Preprocessing,
    /// The values that are kept in bytes, if the configuration has any.
    pub quantization: Option<Quantization>,
}

/// The mean of ImageNet's pixels, by channel.
const IMAGENET_MEAN: [f32; 3] = [0.485, 0.456, 0.406];
/// The standard deviation of ImageNet's pixels, by channel.
const IMAGENET_STD: [f32; 3] = [0.229, 0.224, 0.225];
/// The part of the resized picture's side that is kept.
const CROP_PCT: f64 = 0.875;

/// The names of nodes under `nodes_in_f32` in the `config.json` at `path`; empty if there is no such file or no such
/// key.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Format`] if the key's value is no list of names.
pub(super) fn nodes_in_f32(path: &Path) -> Result<BTreeSet<String>, Error> {
    if !path.exists() {
        return Ok(BTreeSet::new());
    }
    let root = object(path, &files::read("open the model's configuration", path, MAX_FILE_BYTES)?)?;
    let keys = Keys::new(path, &root)?;
    keys.top("nodes_in_f32").map_or_else(|| Ok(BTreeSet::new()), |(key, names)| keys.names(&key, names))
}

fn object(path: &Path, text: &[u8]) -> Result<Map<String, Value>, Error> {
    serde_json::from_slice(text).map_err(|e| Error::format(path, format!("configuration: {e}")))
}

const MAX_FILE_BYTES: u64 = 64 << 20;
const MAX_SIDE: u64 = 1 << 16;
const MAX_CLASSES: u64 = 1 << 24;

impl Config {
    /// Reads a `config.json`. `default_input` gives the input shape of an architecture for configurations without one;
    /// it fails if the architecture is unknown.
    pub fn open(path: &Path, default_input: impl Fn(&str) -> Result<Shape, Error>) -> Result<Self, Error> {
        let text = files::read("open the model's configuration", path, MAX_FILE_BYTES)?;
        Self::parse(path, &text, default_input)
    }

    /// The configuration in a weight file's `__metadata__`: its text under `config`, or its keys one by one, lists
    /// as JSON. `None` if there is neither `config` nor `architecture`.
    pub fn from_metadata(
        path: &Path,
        metadata: &BTreeMap<String, String>,
        default_input: impl Fn(&str) -> Result<Shape, Error>,
    ) -> Option<Result<Self, Error>> {
        if let Some(text) = metadata.get("config") {
            return Some(Self::parse(path, text.as_bytes(), default_input));
        }
        metadata.get("architecture")?;
        let value = |(key, text): (&String, &String)| {
            let parsed = if key == "architecture" { None } else { serde_json::from_str(text).ok() };
            (key.clone(), parsed.unwrap_or_else(|| Value::String(text.clone())))
        };
        let root = metadata.iter().map(value).collect();
        Some(Self::from_object(path, &root, default_input))
    }

    fn parse(path: &Path, text: &[u8], default_input: impl Fn(&str) -> Result<Shape, Error>) -> Result<Self, Error> {
        Self::from_object(path, &object(path, text)?, default_input)
    }

    fn from_object(
        path: &Path,
        root: &Map<String, Value>,
        default_input: impl Fn(&str) -> Result<Shape, Error>,
    ) -> Result<Self, Error> {
        let keys = Keys::new(path, root)?;
        let architecture = keys.architecture()?;
        let input = keys.input(default_input(&architecture)?)?;
        let labels = keys.labels()?;
        let num_classes = keys.num_classes()?.or((!labels.is_empty()).then_some(labels.len()));
        if let Some(classes) = num_classes.filter(|classes| !labels.is_empty() && *classes != labels.len()) {
            return Err(Error::format(
                path,
                format!("labels: expected {classes}, one for each class, found {}", labels.len()),
            ));
        }
        let (preprocessing, quantization) = (keys.preprocessing(input)?, keys.quantization()?);
        Ok(Self { path: path.to_owned(), architecture, num_classes, labels, preprocessing, quantization })
    }
}

/// The mean and the deviation that have the same effect as the given ones followed by x * (IMAGENET_STD / 0.5) +
/// (IMAGENET_MEAN - 0.5) / 0.5.
fn transformed(mean: &[f32], std: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let of = |c: usize| {
        let [mean, std, net_mean, net_std] = [mean[c], std[c], IMAGENET_MEAN[c], IMAGENET_STD[c]].map(f64::from);
        ((mean - (net_mean - 0.5) / net_std * std) as f32, (0.5 * std / net_std) as f32)
    };
    (0..mean.len()).map(of).unzip()
}

/// Access to a configuration's keys, with errors that name them.
struct Keys<'a> {
    path: &'a Path,
    root: &'a Map<String, Value>,
    pretrained: Option<&'a Map<String, Value>>,
}

/// A key as it is written in the file, and its value.
type Found<'a> = (String, &'a Value);

impl<'a> Keys<'a> {
    fn new(path: &'a Path, root: &'a Map<String, Value>) -> Result<Self, Error> {
        let mut keys = Self { path, root, pretrained: None };
        if let Some((key, value)) = keys.top("pretrained_cfg") {
            keys.pretrained = Some(value.as_object().ok_or_else(|| keys.wrong(&key, "an object", value))?);
        }
        Ok(keys)
    }

    /// The value of a key at the top level.
    fn top(&self, key: &str) -> Option<Found<'a>> {
        self.root.get(key).filter(|value| !value.is_null()).map(|value| (key.to_owned(), value))
    }

    /// The value of a key in `pretrained_cfg`, or else at the top level.
    fn get(&self, key: &str) -> Option<Found<'a>> {
        let inner = self.pretrained.and_then(|map| map.get(key)).filter(|value| !value.is_null());
        inner.map(|value| (format!("pretrained_cfg.{key}"), value)).or_else(|| self.top(key))
    }

    fn architecture(&self) -> Result<String, Error> {
        if let Some((key, value)) = self.get("architecture") {
            return value.as_str().map(str::to_owned).ok_or_else(|| self.wrong(&key, "a name", value));
        }
        // Configurations of the library `transformers` name a class here. It is unknown, and errors report it by this
        // name.
        match self.top("architectures").map(|(_, value)| &value[0]) {
            Some(Value::String(name)) => Ok(name.clone()),
            _ => Err(Error::format(self.path, "configuration: no key `architecture`")),
        }
    }

    fn num_classes(&self) -> Result<Option<usize>, Error> {
        let Some((key, value)) = self.top("num_classes").or_else(|| self.get("num_classes")) else { return Ok(None) };
        match value.as_u64().filter(|n| (1..=MAX_CLASSES).contains(n)) {
            Some(n) => Ok(Some(n as usize)),
            None => Err(self.wrong(&key, &format!("a whole number from 1 to {MAX_CLASSES}"), value)),
        }
    }

    fn labels(&self) -> Result<Vec<String>, Error> {
        if let Some((key, value)) = self.get("label_names") {
            let names = value.as_array().ok_or_else(|| self.wrong(&key, "a list of names", value))?;
            let name = |(i, name): (usize, &Value)| {
                name.as_str().map(str::to_owned).ok_or_else(|| self.wrong(&format!("{key}[{i}]"), "a name", name))
            };
            return names.iter().enumerate().map(name).collect();
        }
        let Some((key, value)) = self.get("id2label") else { return Ok(Vec::new()) };
        let names = value.as_object().ok_or_else(|| self.wrong(&key, "an object of names", value))?;
        let name = |i: usize| {
            let name = names.get(&i.to_string()).unwrap_or(&Value::Null);
            name.as_str().map(str::to_owned).ok_or_else(|| self.wrong(&format!("{key}.{i}"), "a name", name))
        };
        (0..names.len()).map(name).collect()
    }

    fn input(&self, default: Shape) -> Result<Shape, Error> {
        let Some((key, value)) = self.get("input_size") else { return Ok(default) };
        let size = |value: &Value| value.as_u64().filter(|n| (1..=MAX_SIDE).contains(n)).map(|n| n as usize);
        let sizes: Option<Vec<usize>> = value.as_array().and_then(|sizes| sizes.iter().map(size).collect());
        match sizes.as_deref() {
            Some(&[channels, height, width]) => Ok(Shape { height, width, channels }),
            _ => Err(self.wrong(&key, &format!("[channels, height, width], each from 1 to {MAX_SIDE}"), value)),
        }
    }

    fn preprocessing(&self, input: Shape) -> Result<Preprocessing, Error> {
        let mean = self.channel_values("mean", input.channels, IMAGENET_MEAN, &preprocessing::MEAN)?;
        let std = self.channel_values("std", input.channels, IMAGENET_STD, &preprocessing::STD)?;
        if let Some((key, value)) = self.get("crop_mode").filter(|(_, value)| *value != "center") {
            return match value.as_str() {
                Some(mode) => Err(Error::Unsupported {
                    what: format!("{}: {key} `{mode}`", self.path.display()),
                    instead: "use `center`".into(),
                }),
                None => Err(self.wrong(&key, "a name", value)),
            };
        }
        let (mean, std) = if self.transforms_input(input)? { transformed(&mean, &std) } else { (mean, std) };
        let interpolation = match self.get("interpolation") {
            None => Interpolation::Bicubic,
            Some((key, value)) => value.as_str().and_then(Interpolation::from_name).ok_or_else(|| {
                let names = Interpolation::ALL.map(|interpolation| format!("{:?}", interpolation.name()));
                self.wrong(&key, &format!("one of {}", names.join(", ")), value)
            })?,
        };
        let crop = match self.get("crop_pct") {
            None => CROP_PCT,
            Some((key, value)) => value
                .as_f64()
                .filter(|crop| (0.1..=1.0).contains(crop))
                .ok_or_else(|| self.wrong(&key, "a number from 0.1 to 1", value))?,
        };
        let side = input.height.max(input.width); // the cut-out must lie inside the picture
        let resize = (side as f64 / crop).floor() as usize;
        Ok(Preprocessing { input, mean, std, resize, interpolation })
    }

    /// Whether the network itself converts inputs normalised for ImageNet to inputs with a mean and deviation of 0.5,
    /// as torchvision's GoogLeNet does with its published weights.
    fn transforms_input(&self, input: Shape) -> Result<bool, Error> {
        let Some((key, value)) = self.get("transform_input") else { return Ok(false) };
        match value.as_bool() {
            Some(true) if input.channels != 3 => {
                Err(self.wrong(&key, "false where there are not three channels", value))
            }
            Some(transforms) => Ok(transforms),
            None => Err(self.wrong(&key, "true or false", value)),
        }
    }

    /// The values in bytes. Names and scales are not checked yet; a scale that is no number becomes NaN.
    fn quantization(&self) -> Result<Option<Quantization>, Error> {
        let Some((key, value)) = self.top("quantization") else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(&key, "an object", value))?;
        let get = |name: &str| map.get(name).filter(|value| !value.is_null());
        let scales = get("scales").unwrap_or(&Value::Null);
        let wrong = || self.wrong(&format!("{key}.scales"), "an object of numbers, by the names of nodes", scales);
        let scales = scales.as_object().ok_or_else(wrong)?;
        let number = |(name, value): (&String, &Value)| (name.clone(), value.as_f64().map_or(f32::NAN, |n| n as f32));
        let scales = scales.iter().map(number).collect();
        let means = match get("means") {
            None => BTreeMap::new(),
            Some(value) => self.vectors(&format!("{key}.means"), value)?,
        };
        let floats = match get("floats") {
            None => BTreeSet::new(),
            Some(value) => self.names(&format!("{key}.floats"), value)?,
        };
        Ok(Some(Quantization { scales, means, floats }))
    }

    /// Lists of numbers, by name; an entry that is no number becomes NaN.
    fn vectors(&self, key: &str, value: &Value) -> Result<BTreeMap<String, Vec<f32>>, Error> {
        let number = |value: &Value| value.as_f64().map_or(f32::NAN, |n| n as f32);
        let vector = |(name, value): (&String, &Value)| {
            let numbers = value.as_array()?.iter().map(number).collect();
            Some((name.clone(), numbers))
        };
        let vectors = value.as_object().and_then(|map| map.iter().map(vector).collect());
        vectors.ok_or_else(|| self.wrong(key, "an object of lists of numbers, by the names of nodes", value))
    }

    fn names(&self, key: &str, value: &Value) -> Result<BTreeSet<String>, Error> {
        let name = |name: &Value| name.as_str().map(str::to_owned);
        let names = value.as_array().and_then(|names| names.iter().map(name).collect());
        names.ok_or_else(|| self.wrong(key, "a list of names", value))
    }

    /// A list with one number for each channel.
    fn channel_values(
        &self,
        key: &str,
        channels: usize,
        default: [f32; 3],
        range: &RangeInclusive<f32>,
    ) -> Result<Vec<f32>, Error> {
        let expected = preprocessing::one_for_each(channels, range);
        let Some((key, value)) = self.get(key) else {
            return match channels {
                3 => Ok(default.to_vec()),
                _ => Err(self.wrong(key, &expected, &Value::Null)),
            };
        };
        let number = |value: &Value| value.as_f64().map(|n| n as f32).filter(|n| range.contains(n));
        let numbers: Option<Vec<f32>> = value.as_array().and_then(|values| values.iter().map(number).collect());
        numbers.filter(|numbers| numbers.len() == channels).ok_or_else(|| self.wrong(&key, &expected, value))
    }

    fn wrong(&self, key: &str, expected: &str, found: &Value) -> Error {
        let mut text = if found.is_null() { "nothing".to_owned() } else { found.to_string() };
        if let Some((end, _)) = text.char_indices().nth(60) {
            text.truncate(end);
            text.push('…');
        }
        Error::format(self.path, format!("configuration: `{key}`: expected {expected}, found {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Error> {
        let default_input = |architecture: &str| match architecture {
            "unknown" => Err(Error::Closed),
            _ => Ok(Shape::new(224, 224, 3)),
        };
        Config::parse(Path::new("config.json"), text.as_bytes(), default_input)
    }

    #[test]
    fn timm_configurations() {
        let config = parse(
            r#"{"architecture": "net", "num_classes": 2, "label_names": ["cat", "dog"], "pretrained_cfg": {
                "input_size": [1, 28, 32], "mean": [0.25], "std": [0.5], "crop_pct": 0.875,
                "crop_mode": "center", "interpolation": "bilinear", "num_classes": 2, "license": null}}"#,
        )
        .unwrap();
        assert_eq!((config.architecture.as_str(), config.num_classes), ("net", Some(2)));
        assert_eq!(config.labels, ["cat", "dog"]);
        let expected = Preprocessing {
            input: Shape::new(28, 32, 1),
            mean: vec![0.25],
            std: vec![0.5],
            resize: 36,
            interpolation: Interpolation::Bilinear,
        };
        assert_eq!(config.preprocessing, expected);
    }

    #[test]
    fn absent_values_are_those_of_timm() {
        let config = parse(r#"{"architecture": "net", "pretrained_cfg": null}"#).unwrap();
        assert!(config.num_classes.is_none() && config.labels.is_empty());
        let Preprocessing { mean, std, resize, interpolation, .. } = config.preprocessing;
        assert_eq!((mean, std), (IMAGENET_MEAN.to_vec(), IMAGENET_STD.to_vec()));
        assert_eq!((resize, interpolation), (256, Interpolation::Bicubic));
        let error = parse(r#"{"architecture": "net", "input_size": [1, 8, 8]}"#).unwrap_err().to_string();
        assert!(error.contains("`mean`: expected a number from") && error.ends_with("found nothing"), "{error}");
    }

    #[test]
    fn a_transform_of_the_input_is_part_of_the_normalisation() {
        let of =
            |text: &str| parse(&format!(r#"{{"architecture": "net", {text}}}"#)).map(|config| config.preprocessing);
        let plain = of(r#""transform_input": true"#).unwrap();
        for (mean, std) in plain.mean.iter().zip(&plain.std) {
            assert!((mean - 0.5).abs() < 1e-7 && (std - 0.5).abs() < 1e-7, "{plain:?}");
        }
        // A pixel, computed step by step: normalised by the configuration's values, then transformed.
        let other = of(r#""transform_input": true, "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]"#).unwrap();
        let by_hand = ((0.7 - 0.3) / 0.6) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5;
        assert!(((0.7 - other.mean[2]) / other.std[2] - by_hand).abs() < 1e-6, "{other:?}");
        assert_eq!(of(r#""transform_input": false"#).unwrap().mean, IMAGENET_MEAN);
        let error = of(r#""transform_input": 1"#).unwrap_err().to_string();
        assert!(error.contains("`transform_input`: expected true or false"), "{error}");
        let gray = r#""transform_input": true, "input_size": [1, 8, 8], "mean": [0.5], "std": [0.5]"#;
        assert!(of(gray).is_err());
    }

    #[test]
    fn labels_may_be_numbered() {
        let config = parse(r#"{"architecture": "net", "id2label": {"1": "b", "0": "a", "2": "c"}}"#).unwrap();
        assert_eq!((config.labels, config.num_classes), (vec!["a".into(), "b".into(), "c".into()], Some(3)));
        let error = parse(r#"{"architecture": "net", "id2label": {"0": "a", "2": "c"}}"#).unwrap_err().to_string();
        assert!(error.contains("`id2label.1`"), "{error}");
    }

    #[test]
    fn architectures_of_other_libraries_reach_the_lookup() {
        assert!(matches!(parse(r#"{"architectures": ["unknown"]}"#), Err(Error::Closed)));
        let nothing = [r#"{}"#, r#"{"architectures": []}"#, r#"{"architectures": 3}"#, r#"{"architectures": [1]}"#];
        for text in nothing {
            assert!(parse(text).unwrap_err().to_string().ends_with("no key `architecture`"), "{text}");
        }
    }

    #[test]
    fn a_quantisation_is_scales_and_names() {
        let of = |text: &str| parse(&format!(r#"{{"architecture": "net", "quantization": {text}}}"#));
        let scales = r#""scales": {"relu": 0.25, "x": "1"}, "means": {"relu": [0.5, "2"]}"#;
        let full = of(&format!(r#"{{{scales}, "floats": ["fc"], "calibration": {{"photos": 5}}}}"#));
        let quantization = full.unwrap().quantization.unwrap();
        assert_eq!((quantization.scales["relu"], quantization.floats.first().unwrap().as_str()), (0.25, "fc"));
        assert!(quantization.means["relu"][0] == 0.5 && quantization.means["relu"][1].is_nan());
        assert!(quantization.scales["x"].is_nan() && of("null").unwrap().quantization.is_none());
        let cases = [
            ("3", "`quantization`: expected an object"),
            ("{}", "`quantization.scales`: expected an object of numbers"),
            (r#"{"scales": [1]}"#, "`quantization.scales`"),
            (r#"{"scales": {}, "means": {"relu": 1}}"#, "`quantization.means`: expected an object of lists of numbers"),
            (r#"{"scales": {}, "floats": "fc"}"#, "`quantization.floats`: expected a list of names"),
            (r#"{"scales": {}, "floats": [1]}"#, "`quantization.floats`"),
        ];
        for (text, expected) in cases {
            let error = of(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn flat_keys_in_a_weight_file() {
        let pairs = [("architecture", "1234"), ("num_classes", "7"), ("input_size", "[3, 8, 8]"), ("format", "pt")];
        let read = |pairs: &[(&str, &str)]| {
            let metadata = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            Config::from_metadata(Path::new("x"), &metadata, |_| Ok(Shape::vector(3)))
        };
        let config = read(&pairs).unwrap().unwrap();
        assert_eq!((config.architecture.as_str(), config.num_classes), ("1234", Some(7)));
        assert_eq!(config.preprocessing.input, Shape::new(8, 8, 3));
        let config = read(&[("config", r#"{"architecture": "net"}"#)]).unwrap().unwrap();
        assert_eq!(config.architecture, "net");
        assert!(read(&[("format", "pt")]).is_none());
        assert!(read(&[("config", "no JSON")]).unwrap().is_err());
    }

    #[test]
    fn wrong_types_and_lengths_are_named() {
        let cases = [
            (r#""num_classes": "ten""#, r#"`num_classes`: expected a whole number from 1 to 16777216, found "ten""#),
            (r#""num_classes": 0"#, "found 0"),
            (r#""num_classes": -1"#, "found -1"),
            (r#""num_classes": 3, "label_names": ["a"]"#, "labels: expected 3, one for each class, found 1"),
            (r#""label_names": "a""#, "`label_names`: expected a list of names"),
            (r#""label_names": ["a", 1]"#, "`label_names[1]`: expected a name, found 1"),
            (r#""id2label": ["a"]"#, "`id2label`: expected an object of names"),
            (r#""pretrained_cfg": []"#, "`pretrained_cfg`: expected an object"),
            (r#""pretrained_cfg": {"input_size": [3, 224]}"#, "`pretrained_cfg.input_size`: expected [channels"),
            (r#""input_size": [3, 224, 0]"#, "`input_size`"),
            (r#""input_size": [3, 224, 1e3]"#, "`input_size`"),
            (r#""input_size": [3, 18446744073709551616, 1]"#, "`input_size`"),
            (r#""input_size": 224"#, "`input_size`"),
            (
                r#""mean": [0.5, 0.5]"#,
                "`mean`: expected a number from -16 to 16, in units of the full scale, for each of 3 channels, found [0.5,0.5]",
            ),
            (r#""mean": [0.5, 0.5, 1e300]"#, "`mean`"),
            (r#""std": [0.5, 0.5, 0]"#, "`std`"),
            (r#""std": [0.5, 0.5, 1e-300]"#, "`std`"),
            (r#""mean": [123.675, 116.28, 103.53]"#, "`mean`: expected a number from -16 to 16"),
            (r#""std": [1e-38, 1e-38, 1e-38]"#, "`std`: expected a number from 0.001 to 1000"),
            (r#""std": {"0": 1}"#, "`std`"),
            (r#""crop_pct": 1.5"#, "`crop_pct`: expected a number from 0.1 to 1, found 1.5"),
            (r#""crop_pct": 1e-300"#, "`crop_pct`"),
            (r#""interpolation": "magic""#, r#"`interpolation`: expected one of "nearest", "box""#),
            (r#""interpolation": 2"#, "`interpolation`"),
            (r#""crop_mode": 2"#, "`crop_mode`"),
            (r#""crop_mode": "squash""#, "crop_mode `squash` is not supported: use `center`"),
        ];
        for (entry, expected) in cases {
            let error = parse(&format!(r#"{{"architecture": "net", {entry}}}"#)).unwrap_err().to_string();
            assert!(error.contains(expected), "{entry}: {error}");
        }
        for text in ["", "[]", "{", "null", r#"{"architecture": 5}"#, r#"{"architecture": ["a"]}"#] {
            assert!(matches!(parse(text), Err(Error::Format { .. })), "{text}");
        }
        let long = format!(r#"{{"architecture": "net", "num_classes": "{}"}}"#, "ä".repeat(1000));
        assert!(parse(&long).unwrap_err().to_string().len() < 300);
    }
}
