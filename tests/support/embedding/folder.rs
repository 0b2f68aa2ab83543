//! Folders of encoders with random weights.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::super::random::Random;
use super::style::{BERT, Style, VIT};

/// Tensors by name: dimensions and values.
pub type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// The sizes of an encoder.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of values of a token.
    pub width: usize,
    pub heads: usize,
    /// Number of values inside a layer.
    pub inner: usize,
    pub layers: usize,
    /// Number of tokens in the vocabulary.
    pub words: usize,
    /// The side of an image, and that of its patches.
    pub side: usize,
    pub patch: usize,
}

/// A folder that exists as long as this value.
pub struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    /// Writes a folder with this configuration and these tensors.
    pub fn new(config: &Value, tensors: &Tensors) -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trefoil-encoder-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let folder = Self(path);
        fs::write(folder.0.join("config.json"), config.to_string()).unwrap();
        fs::write(folder.0.join("model.safetensors"), file(tensors)).unwrap();
        folder
    }
}

/// The content of a safetensors file.
fn file(tensors: &Tensors) -> Vec<u8> {
    let (mut header, mut bytes) = (serde_json::Map::new(), Vec::<u8>::new());
    for (name, (dims, values)) in tensors {
        let start = bytes.len();
        bytes.extend_from_slice(bytemuck::cast_slice(values)); // little-endian, as every host here
        header.insert(name.clone(), json!({"dtype": "F32", "shape": dims, "data_offsets": [start, bytes.len()]}));
    }
    let header = Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes].concat()
}

/// Random tensors of a folder, which are added one by one.
pub struct Stored {
    pub tensors: Tensors,
    random: Random,
    size: Size,
}

impl Stored {
    pub fn new(name: &str, size: Size) -> Self {
        Self { tensors: Tensors::new(), random: Random::new(name), size }
    }

    /// Adds a tensor: a matrix keeps the size of values, norms have factors near 1, and other values are from -0.5 to
    /// 0.5.
    pub fn add(&mut self, name: &str, dims: &[usize]) -> &mut Self {
        let elems = dims.iter().product();
        let is_table = name.contains("embedding") && !name.contains("patch");
        let values = match dims[..] {
            [_, k] if !is_table => self.random.singles(elems, (3.0 / k as f64).sqrt()),
            [_, c, r, s] => self.random.singles(elems, (3.0 / (c * r * s) as f64).sqrt()),
            [_] if name.to_lowercase().contains("norm") && name.ends_with("weight") => {
                self.random.singles(elems, 0.5).iter().map(|x| 1.0 + x).collect()
            }
            _ => self.random.singles(elems, 0.5),
        };
        self.tensors.insert(name.to_owned(), (dims.to_vec(), values));
        self
    }

    pub fn linear(&mut self, name: &str, n: usize, k: usize) -> &mut Self {
        self.add(&format!("{name}.weight"), &[n, k]).add(&format!("{name}.bias"), &[n])
    }

    pub fn norm(&mut self, name: &str) -> &mut Self {
        let width = self.size.width;
        self.add(&format!("{name}.weight"), &[width]).add(&format!("{name}.bias"), &[width])
    }

    pub fn layers(&mut self, prefix: &str, style: &Style) -> &mut Self {
        let Size { width, inner, layers, .. } = self.size;
        for layer in 0..layers {
            let name = |part: &str| format!("{prefix}.{layer}.{part}");
            let is_joined = style.qkv[0] == style.qkv[1];
            for part in style.qkv {
                self.linear(&name(part), if is_joined { 3 * width } else { width }, width);
            }
            self.linear(&name(style.out), width, width);
            self.linear(&name(style.fc[0]), inner, width).linear(&name(style.fc[1]), width, inner);
            for part in style.norms {
                self.norm(&name(part));
            }
            for part in style.scales.iter().flatten() {
                self.add(&name(part), &[width]);
            }
        }
        self
    }

    pub fn text(&mut self, prefix: &str, places: usize, types: usize) -> &mut Self {
        let (at, Size { width, words, .. }) = (|part: &str| format!("{prefix}embeddings.{part}"), self.size);
        self.add(&at("word_embeddings.weight"), &[words, width])
            .add(&at("position_embeddings.weight"), &[places, width]);
        if types > 0 {
            self.add(&at("token_type_embeddings.weight"), &[types, width]);
        }
        self.norm(&at("LayerNorm"))
    }

    pub fn image(&mut self, prefix: &str, before: &[(&str, usize)], places: usize) -> &mut Self {
        let (at, Size { width, patch, .. }) = (|part: &str| format!("{prefix}{part}"), self.size);
        for (name, count) in before {
            self.add(&at(&format!("embeddings.{name}")), &[1, *count, width]);
        }
        self.add(&at("embeddings.patch_embeddings.projection.weight"), &[width, 3, patch, patch]);
        self.add(&at("embeddings.patch_embeddings.projection.bias"), &[width]);
        self.add(&at("embeddings.position_embeddings"), &[1, places, width]).norm(&at("layernorm"))
    }
}

/// A configuration of the library `transformers`.
pub fn config(kind: &str, size: Size, more: Value) -> Value {
    let Size { width, heads, inner, layers, words, side, patch } = size;
    let mut all = json!({
        "model_type": kind, "hidden_size": width, "num_attention_heads": heads, "num_hidden_layers": layers,
        "intermediate_size": inner, "hidden_act": "gelu", "vocab_size": words, "image_size": side, "patch_size": patch,
    });
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// A BERT with this many positions.
pub fn bert(size: Size, prefix: &str, places: usize) -> (Value, Stored) {
    let mut stored = Stored::new("bert", size);
    stored.text(prefix, places, 2).layers(&format!("{prefix}encoder.layer"), &BERT);
    stored.linear(&format!("{prefix}pooler.dense"), size.width, size.width);
    (config("bert", size, json!({"max_position_embeddings": places})), stored)
}

/// A vision transformer with this many classes.
pub fn vit(size: Size, classes: usize) -> (Value, Stored) {
    let mut stored = Stored::new("vit", size);
    let patches = (size.side / size.patch).pow(2);
    stored.image("vit.", &[("cls_token", 1)], 1 + patches).layers("vit.encoder.layer", &VIT);
    stored.linear("classifier", classes, size.width);
    (config("vit", size, json!({})), stored)
}
