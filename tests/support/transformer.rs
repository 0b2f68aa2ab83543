//! Encoders of transformers in f16 or bf16, in kernels of a GPU or loops, compared with the CPU in f32.

use std::fmt;

use trefoil::model::Model;
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

/// Encoders with products of e4m3 in f16: of every style, with and without tails of tokens.
pub fn in_e4m3() -> Vec<Problem> {
    let of = |tokens, layers, style| Encoder { tokens, heads: 2, dims: 64, layers, style };
    let all = [of(77, 1, Style::Vision), of(50, 2, Style::Text), of(17, 2, Style::Images(8))];
    all.map(|of| Problem { of, rows: 3, precision: Precision::F16 }).into()
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
        let [found, wanted] = self.results(device, &model)?;
        self.compare(&found, &wanted)
    }

    /// Runs the encoder with its products in e4m3, with scales for its own rows, on a device and on the CPU, and compares: both
    /// round the same numbers to codes, but those that lie between two codes differently. On the CPU in f32 it is farther
    /// from its result in floats than the device from the CPU.
    pub fn run_in_e4m3(&self, device: &Device) -> Result<(), String> {
        let floats = self.of.model().map_err(|error| error.to_string())?;
        let rows: Vec<Vec<u8>> = (0..self.rows).map(|row| self.row_bytes(&floats, row)).collect();
        let scales = floats.e4m3_scales(&rows).map_err(|error| error.to_string())?;
        let model = floats.in_e4m3(&scales).map_err(|error| error.to_string())?;
        let [found, wanted] = self.results(device, &model)?;
        let [_, exact] = self.results(device, &floats)?;
        let apart = |a: &[f32], b: &[f32]| {
            let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
            let size = b.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>();
            (squares / size).sqrt()
        };
        let (of_device, of_codes) = (apart(&found, &wanted), apart(&wanted, &exact));
        match of_codes > 1e-3 && of_codes < 0.2 && of_device < of_codes {
            true => Ok(()),
            false => Err(format!("{of_device:.5} from the CPU, whose codes are {of_codes:.5} from floats")),
        }
    }

    /// The bytes of a row.
    fn row_bytes(&self, model: &Model, row: usize) -> Vec<u8> {
        let engine = Engine::builder(model).on(&Device::open(Target::Cpu).expect("a CPU")).build().expect("an engine");
        let spec = engine.input();
        let mut bytes = vec![0; spec.row_bytes];
        self.fill(row, |port, values| {
            let port = spec.port(port).expect("an input");
            bytes[port.offset..][..port.bytes()]
                .copy_from_slice(&values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        });
        bytes
    }

    /// The results of a model on a device in the problem's precision, and on the CPU in f32.
    fn results(&self, device: &Device, model: &Model) -> Result<[Vec<f32>; 2], String> {
        let cpu = Device::open(Target::Cpu).map_err(|error| error.to_string())?;
        let results = [(device, self.precision), (&cpu, Precision::F32)].map(|(device, precision)| {
            let engine = Engine::builder(model).on(device).precision(precision);
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
        Ok([found?, wanted?])
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

/// Runs a file of products of e4m3 on a device and on the CPU, and compares.
pub fn file_in_e4m3(device: &Device) -> Result<(), String> {
    let of = |device: &Device| -> Result<Vec<f32>, trefoil::Error> {
        let model = Model::open("tests/data/onnx/e4m3.onnx")?;
        let engine = Engine::builder(&model).on(device).batch(3).build()?;
        let mut batch = engine.acquire()?;
        let mut random = Random::new("a file in e4m3");
        for row in 0..3 {
            let x = batch.port_mut::<f32>(row, "x")?;
            x.copy_from_slice(&random.singles(x.len(), 2.0));
        }
        let output = batch.submit(3)?.wait()?;
        let rows = (0..3).map(|row| output.port::<f32>(row, "y").map(<[f32]>::to_vec));
        Ok(rows.collect::<Result<Vec<_>, _>>()?.concat())
    };
    let cpu = Device::open(Target::Cpu).map_err(|error| error.to_string())?;
    let [found, wanted] = [device, &cpu].map(|device| of(device).map_err(|error| error.to_string()));
    let (found, wanted) = (found?, wanted?);
    let squares = found.iter().zip(&wanted).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    let error = (squares / wanted.iter().map(|b| f64::from(*b).powi(2)).sum::<f64>()).sqrt();
    // Sums of 14 bits are off by 2^-10 of their size. Codes are a sixteenth of a number apart or more, so that one in fifty lies so
    // near to the middle between two that it may be the other one: errors of a fiftieth of the numbers, by an eighth at most,
    // add up to a fiftieth of an eighth in squares, if half of the result's size is of them to 0.9 % of its size.
    if error < 0.01 { Ok(()) } else { Err(format!("{error} of its size from the CPU")) }
}

/// Number of values between the steps of a layer, with its input.
const ROUNDINGS: usize = 10;
