//! Times a model on demand, so that another program can measure in equal turns with it.
//!
//! usage: in_turns MODEL ROWS[,ROWS...] [device=D] [precision=f32|bf16] [e4m3=FILE] [NAME=N...]
//!
//! NAME=N gives a size to a free dimension of MODEL. With `e4m3` the products of tokens are in e4m3, and the rows of FILE,
//! the bytes of one record after the other, give their scales. When the engine is built the program prints `{"ready": SECONDS,
//! "input": ..., "output": ...}`, with the ports of both and the bytes of a row. It then reads commands, one a line,
//! and answers each with a line of JSON:
//!
//! - `time ROWS SECONDS`: milliseconds of a batch of compute alone, the mean of back-to-back runs for this time
//! - `run ROWS INPUT OUTPUT`: the rows of the file INPUT, the bytes of one record after the other, through the engine, and
//!   the records that come out into the file OUTPUT
//! - `steps ROWS RUNS`: name, operation, kernel, microseconds and roofline of each step, and those of the whole graph
//!
//! `benches/peers/beside.py` talks to it.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::time::Instant;

use serde_json::{Value, json};
use trefoil::model::Model;
use trefoil::onnx::Sizes;
use trefoil::plan::Rates;
use trefoil::{Device, Engine, EngineBuilder, Precision, RowSpec, Stage, Target};

type Fallible<T> = Result<T, Box<dyn Error>>;

/// Number of runs from which the number of runs for the requested time is computed.
const PROBES: usize = 3;
const MOST_RUNS: f64 = 100_000.0;

fn main() -> Fallible<()> {
    let began = Instant::now();
    let arguments = Arguments::parse(std::env::args().skip(1))?;
    let device = Device::open(arguments.device)?;
    let mut model = Model::open_at(&arguments.model, &arguments.sizes)?;
    if let Some(file) = &arguments.e4m3 {
        let row_bytes = Engine::builder(&model).on(&Device::cpu(1)).build()?.input().row_bytes;
        let records = fs::read(file)?;
        let rows: Vec<&[u8]> = records.chunks_exact(row_bytes).collect();
        model = model.in_e4m3(&model.e4m3_scales(&rows)?)?;
    }
    let builder = || {
        let builder = Engine::builder(&model).on(&device);
        arguments.precision.into_iter().fold(builder, EngineBuilder::precision)
    };
    let engine = builder().batch_sizes(&arguments.rows).build()?;
    let ready = json!({
        "ready": began.elapsed().as_secs_f64(),
        "input": described(engine.input()),
        "output": described(engine.output()),
    });
    say(&ready)?;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["time", rows, seconds] => time(&engine, rows.parse()?, seconds.parse()?)?,
            ["run", rows, input, output] => run(&engine, rows.parse()?, input, output)?,
            ["steps", rows, runs] => steps(builder().batch_sizes(&[rows.parse()?]), runs.parse()?)?,
            _ => return Err(format!("unknown command `{line}`").into()),
        };
        say(&answer)?;
    }
    Ok(())
}

/// The ports of a row.
fn described(row: &RowSpec) -> Value {
    let ports = row.ports().iter().map(
        |port| json!({ "name": *port.name, "dtype": port.dtype.to_string(), "dims": port.dims, "offset": port.offset }),
    );
    json!({ "row_bytes": row.row_bytes, "ports": ports.collect::<Vec<_>>() })
}

fn say(answer: &Value) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "{answer}")?;
    out.flush()
}

struct Arguments {
    model: String,
    rows: Vec<usize>,
    device: Target,
    precision: Option<Precision>,
    e4m3: Option<String>,
    sizes: Sizes,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Fallible<Self> {
        let (Some(model), Some(rows)) = (words.next(), words.next()) else {
            return Err(
                "usage: in_turns MODEL ROWS[,ROWS...] [device=D] [precision=f32|bf16] [e4m3=FILE] [NAME=N...]".into()
            );
        };
        let rows = rows.split(',').map(str::parse).collect::<Result<_, _>>()?;
        let mut this = Self { model, rows, device: Target::Auto, precision: None, e4m3: None, sizes: Sizes::new() };
        for word in words {
            match word.split_once('=').ok_or("options are NAME=VALUE")? {
                ("device", name) => this.device = name.parse()?,
                ("precision", "f32") => this.precision = Some(Precision::F32),
                ("precision", "bf16") => this.precision = Some(Precision::Bf16),
                ("e4m3", file) => this.e4m3 = Some(file.to_owned()),
                (name, size) => this.sizes = this.sizes.dim(name, size.parse()?),
            }
        }
        Ok(this)
    }
}

fn time(engine: &Engine, rows: usize, seconds: f64) -> Fallible<Value> {
    let mean = |times: Vec<f64>| times.iter().sum::<f64>() / times.len() as f64;
    let probe = mean(engine.measure(Stage::Compute, rows, PROBES)?);
    let runs = (seconds / probe).clamp(PROBES as f64, MOST_RUNS) as usize;
    Ok(json!({ "ms": 1e3 * mean(engine.measure(Stage::Compute, rows, runs)?), "runs": runs }))
}

fn run(engine: &Engine, rows: usize, input: &str, output: &str) -> Fallible<Value> {
    let bytes = fs::read(input)?;
    let row_bytes = engine.input().row_bytes;
    if bytes.len() != rows * row_bytes {
        return Err(format!("{input}: {} bytes, expected {rows} rows of {row_bytes}", bytes.len()).into());
    }
    let mut batch = engine.acquire()?;
    batch.rows_mut().zip(bytes.chunks(row_bytes)).for_each(|(row, bytes)| row.copy_from_slice(bytes));
    let results = batch.submit(rows)?.wait()?;
    let records: Vec<&[u8]> = (0..rows).map(|row| results.row(row)).collect();
    fs::write(output, records.concat())?;
    Ok(json!({ "rows": records.len() }))
}

fn steps(builder: EngineBuilder<'_>, runs: usize) -> Fallible<Value> {
    let times = builder.measure_steps(runs)?;
    let rates = Rates::of(&times.plan.limits).ok_or("no rooflines: the rates of this device are not known")?;
    let steps = times.plan.steps.iter().zip(&times.steps).enumerate().map(|(index, (step, seconds))| {
        json!({
            "step": step.name,
            "operation": step.op.label(step.inputs.len()),
            "kernel": step.kernel.to_string(),
            "us": 1e6 * (seconds - times.mark),
            "roofline_us": 1e6 * times.plan.roofline(index, &rates).seconds(),
        })
    });
    Ok(json!({ "graph_us": 1e6 * times.graph, "steps": steps.collect::<Vec<_>>() }))
}
