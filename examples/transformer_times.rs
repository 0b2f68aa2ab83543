//! Times encoders of transformers with random weights, and their steps.
//!
//! usage: transformer_times [tuned] [RUNS [ROWS...]]
//!
//! For vision transformers and a text encoder prints the milliseconds of a batch and the rows of a second, the median of
//! so many runs of compute alone, and for each kind of step how many there are, what they take together, and their
//! roofline. `tuned` takes kernels that are measured to be the fastest.

#[path = "../tests/support/encoder.rs"]
#[expect(dead_code, reason = "tests have one more")]
mod encoder;
#[path = "../tests/support/random.rs"]
#[expect(dead_code, reason = "tests draw other numbers too")]
mod random;

use std::collections::BTreeMap;

use encoder::{Encoder, Style};
use trefoil::plan::Rates;
use trefoil::{Device, Engine, Error, Stage, Target, Tuning};

/// Name, encoder.
const NETWORKS: [(&str, Encoder); 3] = [
    ("ViT-tiny/16", Encoder { tokens: 197, heads: 3, dims: 64, layers: 12, style: Style::Images(16) }),
    ("ViT-B/16", Encoder { tokens: 197, heads: 12, dims: 64, layers: 12, style: Style::Images(16) }),
    ("BERT-base, 128 tokens", Encoder { tokens: 128, heads: 12, dims: 64, layers: 12, style: Style::Text }),
];

fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1).peekable();
    let tuning = arguments.next_if(|argument| argument == "tuned").map_or(Tuning::Off, |_| Tuning::Full);
    let arguments = arguments.map(|argument| argument.parse().expect("RUNS and ROWS are numbers"));
    let arguments: Vec<usize> = arguments.collect();
    let runs = arguments.first().copied().unwrap_or(50);
    let rows = arguments.get(1..).filter(|rows| !rows.is_empty()).unwrap_or(&[1, 32, 128]);
    let device = Device::open(Target::Cuda(0))?;
    for (name, of) in NETWORKS {
        let model = of.model()?;
        for &batch in rows {
            let builder = || Engine::builder(&model).on(&device).batch_sizes(&[batch]).tuning(tuning);
            let engine = builder().build()?;
            let mut times = engine.measure(Stage::Compute, batch, runs)?;
            times.sort_by(f64::total_cmp);
            let seconds = times[times.len() / 2];
            println!("{name}, {batch} rows: {:.4} ms, {:.0} a second", 1e3 * seconds, batch as f64 / seconds);
            drop(engine);
            print_steps(builder(), runs)?;
        }
    }
    Ok(())
}

/// Kinds of steps: how many, microseconds together, and of the roofline.
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
