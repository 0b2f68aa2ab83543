//! Encoders of texts and images in folders as Hugging Face and timm write them, with random weights, and their results
//! by plain loops, or as the libraries gave them.

pub mod folder;
pub mod kept;
mod loops;
mod packed;
pub mod problems;
mod references;
mod style;

use std::fmt;

use serde_json::Value;
use trefoil::model::{Embedding, Model};
use trefoil::{Batch, Device, Engine, Error, Precision};

use folder::{Folder, Size, Tensors};
use loops::Net;

use super::random::Random;
use super::tolerance::{BF16, U16, U32};

/// A folder, and the embedding that is asked for.
#[derive(Clone)]
pub struct Problem {
    pub name: &'static str,
    pub config: Value,
    pub tensors: Tensors,
    pub asked: Embedding,
    reference: Reference,
    /// The number of tokens of a text, the sides of an image, or the bands and frames of a sound.
    shape: Shape,
    layers: usize,
}

#[derive(Clone, Copy)]
enum Shape {
    Text { tokens: usize, words: usize, has_mask: bool, has_types: bool },
    Image { height: usize, width: usize },
    Sound { bands: usize, frames: usize },
}

/// The source of the expected results.
#[derive(Clone)]
enum Reference {
    /// The results by plain loops.
    Loops(fn(&Net<'_>, &Row) -> Computed),
    /// The results of a library, one for each row.
    Kept(Vec<Computed>),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Problem {
    /// Writes the folder of the problem.
    pub fn folder(&self) -> Folder {
        Folder::new(&self.config, &self.tensors)
    }

    pub fn open(&self) -> Result<Model, Error> {
        let folder = self.folder();
        Model::open_encoder(&folder.0, &self.asked)
    }

    /// Runs the encoder on a device in a precision, f32, f16 or bf16, and compares with the expected results.
    pub fn run(&self, device: &Device, precision: Precision) -> Result<(), String> {
        let folder = self.folder();
        let told = |error: Error| error.to_string();
        let model = Model::open_encoder(&folder.0, &self.asked).map_err(told)?;
        let engine = Engine::builder(&model).on(device).precision(precision).batch_sizes(&[1, ROWS]).check(true);
        let engine = engine.build().map_err(told)?;
        for count in [ROWS, 1] {
            let mut batch = engine.acquire().map_err(told)?;
            let rows: Vec<Row> = (0..count).map(|index| self.row(index)).collect();
            rows.iter().enumerate().for_each(|(index, row)| self.fill(&mut batch, index, row));
            let output = batch.submit(count).and_then(|ticket| ticket.wait()).map_err(told)?;
            for (index, row) in rows.iter().enumerate() {
                self.compare(index, row, precision, |port| output.port::<f32>(index, port))?;
            }
        }
        Ok(())
    }

    /// A row of the problem; the second text is as long as possible, and other texts are shorter.
    fn row(&self, index: usize) -> Row {
        let mut random = Random::new(&format!("{} {index}", self.name));
        let mut row = Row { ids: vec![], mask: vec![], types: vec![], pixels: vec![], sides: [0; 2], features: vec![] };
        match self.shape {
            Shape::Text { tokens, words, .. } => {
                let seen = if index == 1 { tokens } else { random.between(3, tokens - 1) };
                row.ids = (0..tokens).map(|_| random.between(0, words - 2) as i64).collect();
                row.ids[seen - 1] = words as i64 - 1; // the end of a text
                row.mask = (0..tokens).map(|token| i64::from(token < seen)).collect();
                row.types = (0..tokens).map(|_| random.between(0, 1) as i64).collect();
            }
            Shape::Image { height, width } => {
                row.pixels = (0..height * width * 3).map(|_| random.between(0, 255) as u8).collect();
                row.sides = [height, width];
            }
            Shape::Sound { bands, frames } => row.features = random.singles(bands * frames, 1.0),
        }
        row
    }

    fn fill(&self, batch: &mut Batch, index: usize, row: &Row) {
        match self.shape {
            Shape::Text { has_mask, has_types, .. } => {
                batch.port_mut::<i64>(index, "input_ids").unwrap().copy_from_slice(&row.ids);
                if has_mask {
                    batch.port_mut::<i64>(index, "attention_mask").unwrap().copy_from_slice(&row.mask);
                }
                if has_types {
                    batch.port_mut::<i64>(index, "token_type_ids").unwrap().copy_from_slice(&row.types);
                }
            }
            Shape::Image { .. } => batch.port_mut::<u8>(index, "pixels").unwrap().copy_from_slice(&row.pixels),
            Shape::Sound { .. } => {
                batch.port_mut::<f32>(index, "input_features").unwrap().copy_from_slice(&row.features);
            }
        }
    }

    /// Checks the results. Deviations of independent roundings add as squares; a result may be off by eight of them. A
    /// layer has [`ROUNDINGS`] values between its operations, and their weights. In f32 each is a sum of up to
    /// [`INNER`] terms, each of which is rounded; in f16 and bf16 the rounding of the sum is what counts.
    fn compare<'a>(
        &self,
        index: usize,
        row: &Row,
        precision: Precision,
        found: impl Fn(&str) -> Result<&'a [f32], Error>,
    ) -> Result<(), String> {
        let Computed { ports, scale } = match &self.reference {
            Reference::Loops(computes) => computes(&Net(&self.tensors), row),
            Reference::Kept(rows) => rows[index].clone(),
        };
        let values = (2 * ROUNDINGS * (self.layers + 1)) as f64;
        let unit = match precision {
            Precision::F16 => U16 / 3_f64.sqrt(),
            Precision::Bf16 => BF16.unit / 3_f64.sqrt(),
            Precision::F32 => U32 * ((INNER + 1) as f64).sqrt(),
            Precision::Auto | Precision::Checkpoint => unreachable!("it depends on a device, or on a model"),
        };
        let most = 8.0 * unit * values.sqrt() * scale;
        for (port, wanted) in ports {
            let found = found(port).map_err(|error| error.to_string())?;
            if found.len() != wanted.len() {
                return Err(format!("`{port}` has {} values instead of {}", found.len(), wanted.len()));
            }
            let errors = found.iter().zip(&wanted).map(|(&found, wanted)| (f64::from(found) - wanted).abs());
            if let Some((at, error)) = errors.enumerate().find(|(_, error)| error.is_nan() || *error > most) {
                let [found, wanted] = [f64::from(found[at]), wanted[at]];
                return Err(format!(
                    "row {index}, `{port}` {at}: {found} instead of {wanted}, off by {error} > {most}"
                ));
            }
        }
        Ok(())
    }
}

/// Number of values between the operations of a layer.
const ROUNDINGS: usize = 10;

/// The content of a request.
#[derive(Clone, Debug)]
pub struct Row {
    ids: Vec<i64>,
    mask: Vec<i64>,
    types: Vec<i64>,
    pixels: Vec<u8>,
    sides: [usize; 2],
    features: Vec<f32>,
}

/// Results by their names, and the size of values that rounding errors are relative to.
#[derive(Clone)]
struct Computed {
    ports: Vec<(&'static str, Vec<f64>)>,
    scale: f64,
}

/// Number of rows of a batch.
const ROWS: usize = 3;
/// Sizes of the encoders: values of a token, heads, values inside a layer, layers.
const WIDTH: usize = 64;
const HEADS: usize = 2;
const INNER: usize = 128;
const LAYERS: usize = 2;
const WORDS: usize = 60;
const SMALL: Size = Size { width: WIDTH, heads: HEADS, inner: INNER, layers: LAYERS, words: WORDS, side: 32, patch: 8 };
