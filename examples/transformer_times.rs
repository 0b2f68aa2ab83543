//! Times encoders of transformers with random weights, and their steps.
//!
//! usage: transformer_times [tuned] [f16|bf16|f32|e4m3]... [only=NAME] [RUNS [ROWS...]]
//!
//! The networks are vision transformers and text encoders, as exporters write them and as folders of Hugging Face. For
//! each it prints the milliseconds of a batch and rows a second (the median of RUNS runs of compute alone), and for
//! each kind of step the number of steps, their total time, and their roofline. `only` selects networks whose name
//! contains NAME. `tuned` uses the kernels that measurements find to be the fastest. Of several precisions, f16 if none is
//! named, each network is measured in one beside the other, in turns. `e4m3` is f16 with the products of tokens in e4m3, whose
//! scales are those of one row of random numbers.

#[path = "../tests/support/embedding/mod.rs"]
#[allow(dead_code, reason = "tests compare results too")]
mod embedding;
#[path = "../tests/support/encoder.rs"]
#[expect(dead_code, reason = "tests have one more")]
mod encoder;
#[path = "../tests/support/random.rs"]
#[expect(dead_code, reason = "tests draw other numbers too")]
mod random;
#[path = "../tests/support/tolerance.rs"]
#[allow(dead_code, reason = "tests compare results too")]
mod tolerance;

use std::collections::BTreeMap;

use embedding::folder::{self, Folder, Size};
use encoder::{Encoder, Style};
use trefoil::model::{Embedding, Model};
use trefoil::plan::Rates;
use trefoil::{Device, Dtype, Engine, Error, Precision, Stage, Target, Tuning};

/// Names and encoders as exporters write them.
const EXPORTED: [(&str, Encoder); 3] = [
    ("ViT-tiny/16", Encoder { tokens: 197, heads: 3, dims: 64, layers: 12, style: Style::Images(16) }),
    ("ViT-B/16", Encoder { tokens: 197, heads: 12, dims: 64, layers: 12, style: Style::Images(16) }),
    ("BERT-base, 128 tokens", Encoder { tokens: 128, heads: 12, dims: 64, layers: 12, style: Style::Text }),
];

/// The size of ViT-B/16 and of BERT-base.
const BASE: Size = Size { width: 768, heads: 12, inner: 3072, layers: 12, words: 30_522, side: 224, patch: 16 };
/// The size of BERT-large.
const LARGE: Size = Size { width: 1024, heads: 16, inner: 4096, layers: 24, ..BASE };
/// The size of all-MiniLM-L6.
const MINI: Size = Size { width: 384, inner: 1536, layers: 6, ..BASE };

/// Encoders in folders: the name, the number of tokens of texts or `None` for images, and the size.
const FOLDERS: [(&str, Option<usize>, Size); 4] = [
    ("ViT-B/16 from a folder", None, BASE),
    ("BERT-base from a folder, 128 tokens", Some(128), BASE),
    ("BERT-large from a folder, 384 tokens", Some(384), LARGE),
    ("MiniLM from a folder, 128 tokens", Some(128), MINI),
];

/// Number of turns in which the precisions are measured.
const TURNS: usize = 5;

/// A function that makes a model.
type Open = Box<dyn Fn() -> Result<Model, Error>>;

/// All networks with their names.
fn networks() -> Vec<(&'static str, Open)> {
    let exported = EXPORTED.into_iter().map(|(name, of)| (name, Box::new(move || of.model()) as Open));
    let open = |tokens: Option<usize>, size| {
        let (config, stored) = if tokens.is_some() { folder::bert(size, "", 512) } else { folder::vit(size, 1000) };
        let folder = Folder::new(&config, &stored.tensors);
        let asked = tokens.map_or_else(Embedding::new, |tokens| Embedding::new().sequence(tokens));
        Model::open_encoder(&folder.0, &asked)
    };
    let of_folders =
        FOLDERS.into_iter().map(|(name, tokens, size)| (name, Box::new(move || open(tokens, size)) as Open));
    exported.chain(of_folders).collect()
}

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    let tuning = arguments.next_if(|argument| argument == "tuned").map_or(Tuning::Off, |_| Tuning::Full);
    let mut ways = Vec::new();
    while let Some(way) = arguments.peek().and_then(|name| Way::named(name)) {
        ways.push(way);
        arguments.next();
    }
    let ways = if ways.is_empty() { vec![Way::Floats(Precision::F16)] } else { ways };
    let only = arguments.next_if(|argument| argument.starts_with("only=")).unwrap_or_default();
    let only = only.trim_start_matches("only=");
    let arguments = arguments.map(|argument| argument.parse().expect("RUNS and ROWS are numbers"));
    let arguments: Vec<usize> = arguments.collect();
    let runs = arguments.first().copied().unwrap_or(50);
    let rows = arguments.get(1..).filter(|rows| !rows.is_empty()).unwrap_or(&[1, 32, 128]);
    let device = Device::open(Target::Cuda(0))?;
    for (name, open) in networks().into_iter().filter(|(name, _)| name.contains(only)) {
        let model = open()?;
        let models = ways.iter().map(|way| Ok((*way, way.of(&model)?))).collect::<Result<Vec<_>, Error>>()?;
        for &batch in rows {
            let builder = |at: usize| {
                let (way, model) = &models[at];
                Engine::builder(model).on(&device).batch_sizes(&[batch]).precision(way.precision()).tuning(tuning)
            };
            let engines = (0..models.len()).map(|at| builder(at).build()).collect::<Result<Vec<_>, _>>()?;
            let mut times = vec![Vec::new(); engines.len()];
            for _ in 0..TURNS {
                for (engine, times) in engines.iter().zip(&mut times) {
                    times.extend(engine.measure(Stage::Compute, batch, runs.div_ceil(TURNS))?);
                }
            }
            drop(engines);
            for (at, times) in times.iter_mut().enumerate() {
                times.sort_by(f64::total_cmp);
                let (seconds, rate) = (times[times.len() / 2], batch as f64 / times[times.len() / 2]);
                println!("{name}, {batch} rows, {:?}: {:.4} ms, {rate:.0} a second", models[at].0, 1e3 * seconds);
                print_steps(builder(at), runs)?;
            }
        }
    }
    Ok(())
}

/// The numbers that a network is computed with.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Floats alone.
    Floats(Precision),
    /// Products of e4m3.
    E4m3,
}

impl Way {
    fn named(name: &str) -> Option<Self> {
        match name {
            "f16" => Some(Self::Floats(Precision::F16)),
            "bf16" => Some(Self::Floats(Precision::Bf16)),
            "f32" => Some(Self::Floats(Precision::F32)),
            "e4m3" => Some(Self::E4m3),
            _ => None,
        }
    }

    fn precision(self) -> Precision {
        match self {
            Self::Floats(of) => of,
            Self::E4m3 => Precision::F16,
        }
    }

    /// The model as it is computed.
    fn of(self, model: &Model) -> Result<Model, Error> {
        let Self::E4m3 = self else { return Ok(model.clone()) };
        let cpu = Device::open(Target::Cpu)?;
        let engine = Engine::builder(model).on(&cpu).build()?;
        let mut random = random::Random::new("a row");
        let mut row = vec![0; engine.input().row_bytes];
        for port in engine.input().ports() {
            let bytes = &mut row[port.offset..][..port.bytes()];
            match port.dtype {
                Dtype::F32 => bytes.chunks_exact_mut(4).for_each(|x| {
                    x.copy_from_slice(&(random.signed() as f32).to_le_bytes());
                }),
                Dtype::U8 => bytes.iter_mut().for_each(|x| *x = random.between(0, 255) as u8),
                // Numbers of words, and a mask without padding.
                _ => bytes.chunks_exact_mut(port.dtype.bytes()).for_each(|x| x[0] = 1),
            }
        }
        model.in_e4m3(&model.e4m3_scales(&[row])?)
    }
}

/// Prints for each kind of step the number of steps, their microseconds, and those of their rooflines.
fn print_steps(builder: trefoil::EngineBuilder<'_>, runs: usize) -> Result<(), Error> {
    let times = builder.measure_steps(runs)?;
    let rates = Rates::of(&times.plan.limits);
    let mut kinds = BTreeMap::<String, (usize, f64, f64)>::new();
    for (index, (step, seconds)) in times.plan.steps.iter().zip(&times.steps).enumerate() {
        let label = format!("{}, {}", step.op.label(step.inputs.len()), step.kernel);
        let roofline = rates.map_or(0.0, |rates| times.plan.roofline(index, &rates).seconds());
        let kind = kinds.entry(label).or_default();
        *kind = (kind.0 + 1, kind.1 + seconds - times.mark, kind.2 + roofline);
    }
    println!("  graph {:.1} us, {} steps", 1e6 * times.graph, times.plan.steps.len());
    for (label, (count, seconds, roofline)) in kinds {
        println!("  {count:3} x {label}: {:.1} us, roofline {:.1}", 1e6 * seconds, 1e6 * roofline);
    }
    Ok(())
}
