//! Encoders of transformers in f16 or bf16, in kernels of a GPU or loops, compared with the CPU in f32.

use std::fmt;

use trefoil::{Device, Engine, Precision, Target};

use super::encoder::{Encoder, Style};
use super::random::Random;
use super::tolerance::{BF16, F16};

/// An encoder, and batches of some number of rows.
#[derive(Clone, Copy, Debug)]
pub struct Problem {
    of: Encoder,
    rows: usize,
    precision: Precision,
}

/// All problems in f16 or bf16 that kernels compute: short and long rows, one and several, heads of every width, with
/// and without masks.
pub fn all(precision: Precision) -> Vec<Problem> {
    let mut all = Vec::new();
    for style in [Style::Vision, Style::Text] {
        let of = |tokens, heads, dims| Encoder { tokens, heads, dims, layers: 1, style };
        all.extend([1, 3, 77, 197, 257].map(|tokens| Problem { of: of(tokens, 3, 64), rows: 3, precision }));
        all.extend([32, 64, 128].map(|dims| Problem { of: of(77, 2, dims), rows: 1, precision }));
        all.push(Problem { of: of(33, 2, 32), rows: 32, precision });
    }
    let images = Encoder { tokens: 17, heads: 2, dims: 64, layers: 2, style: Style::Images(8) };
    all.push(Problem { of: images, rows: 5, precision });
    all
}

/// Small problems in a precision, which loops compute: no kernel takes rows of 15 values.
pub fn small(precision: Precision) -> Vec<Problem> {
    let of = |tokens, layers, style| Encoder { tokens, heads: 3, dims: 5, layers, style };
    let all = [of(9, 1, Style::Vision), of(7, 2, Style::Text), of(5, 1, Style::Images(4))];
    all.map(|of| Problem { of, rows: 2, precision }).into()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {} rows, {:?}", self.of, self.rows, self.precision)
    }
}

impl Problem {
    /// Number of values of the result.
    pub const fn values(&self) -> usize {
        self.rows * self.of.tokens * self.of.width()
    }

    /// Runs the encoder on a device in its precision and on the CPU in f32, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        let model = self.of.model().map_err(|error| error.to_string())?;
        let cpu = Device::open(Target::Cpu).map_err(|error| error.to_string())?;
        let results = [(device, self.precision), (&cpu, Precision::F32)].map(|(device, precision)| {
            let engine = Engine::builder(&model).on(device).precision(precision);
            let engine = engine.batch_sizes(&[self.rows]).check(true).build().map_err(|error| error.to_string())?;
            let mut batch = engine.acquire().map_err(|error| error.to_string())?;
            for row in 0..self.rows {
                self.fill(row, |port, values| {
                    batch.port_mut::<f32>(row, port).expect("an input").copy_from_slice(values);
                });
            }
            let output = batch.submit(self.rows).and_then(|ticket| ticket.wait()).map_err(|error| error.to_string())?;
            let rows = (0..self.rows).map(|row| output.port::<f32>(row, "y").expect("an output").to_vec());
            Ok::<Vec<f32>, String>(rows.flatten().collect())
        });
        let [found, wanted] = results;
        self.compare(&found?, &wanted?)
    }

    /// Passes the inputs of a row to `put`, by their names. A mask hides the last third of the keys, but never the
    /// first key.
    fn fill(&self, row: usize, mut put: impl FnMut(&str, &[f32])) {
        let mut random = Random::new(&format!("{self} {row}"));
        let Encoder { tokens, .. } = self.of;
        let elems = match self.of.style {
            Style::Images(patch) => 3 * (tokens - 1) * patch * patch,
            Style::Vision | Style::Text => tokens * self.of.width(),
        };
        put("x", &random.singles(elems, 1.5));
        if self.of.style == Style::Text {
            let seen: Vec<f32> = (0..tokens).map(|token| if 3 * token > 2 * tokens { 0.0 } else { 1.0 }).collect();
            put("seen", &seen);
        }
    }

    /// Checks a result. Every value that a step writes or reads as a weight is rounded: this is a deviation of u /
    /// sqrt(3) of its typical size, two for each product. Deviations of independent roundings add as squares; a result
    /// may be off by eight of them.
    fn compare(&self, found: &[f32], wanted: &[f32]) -> Result<(), String> {
        let typical = (wanted.iter().map(|&y| f64::from(y).powi(2)).sum::<f64>() / wanted.len() as f64).sqrt();
        let roundings = (2 * ROUNDINGS * self.of.layers) as f64;
        let unit = if self.precision == Precision::Bf16 { BF16 } else { F16 }.unit;
        let most = 8.0 * unit / 3_f64.sqrt() * roundings.sqrt() * typical;
        let errors = found.iter().zip(wanted).map(|(&found, &wanted)| f64::from((found - wanted).abs()));
        let wrong = errors.enumerate().find(|(_, error)| error.is_nan() || *error > most);
        match wrong {
            _ if found.len() != wanted.len() => Err(format!("{} values instead of {}", found.len(), wanted.len())),
            None => Ok(()),
            Some((at, error)) => {
                Err(format!("value {at}: {} instead of {}, off by {error}, more than {most}", found[at], wanted[at]))
            }
        }
    }
}

/// Number of values between the steps of a layer, with its input.
const ROUNDINGS: usize = 10;
