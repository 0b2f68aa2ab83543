//! `trefoil bench forum`: threads that share one model, in five orders of locking, and the ring as it is meant to be
//! used.
//!
//! The first five come from a question that is asked again and again: when many threads serve one GPU, which part of a
//! batch's upload, compute and download has to be under the lock? In trefoil all three are one submission, which
//! never waits; before it a thread can acquire page-locked memory and copy its pixels there.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use trefoil::model::Model;
use trefoil::{Device, Engine, InputFormat, OutputKind, Stage};

use super::args::ForumArgs;
use super::load::median;
use super::orders::{Case, IssueOrder, Start, Turns, cases};
use super::plot::{Bar, bars};
use super::record::Record;
use super::sources::Sources;
use crate::table::Column::{Figure, Word};
use crate::table::Table;
use crate::{Outcome, report, setup, stop};

const GPU_BATCH: usize = 32;
const CPU_BATCH: usize = 4;
/// Measurements of compute alone in each round.
const COMPUTE_RUNS: usize = 50;
/// How long a thread waits for a free batch before it gives up.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(300);

#[derive(Serialize)]
struct Figures {
    upload: bool,
    threads: usize,
    batch: usize,
    /// Images a second of compute with nothing else running and without the upload, for each input format and round.
    compute: Vec<Compute>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Compute {
    format: String,
    upload: bool,
    images_per_second: f64,
    images_per_second_all: Vec<f64>,
}

#[derive(Serialize)]
struct Row {
    format: String,
    start: Start,
    order: IssueOrder,
    name: &'static str,
    upload: bool,
    includes: String,
    images_per_second: f64,
    images_per_second_all: Vec<f64>,
    /// The rate over that of compute alone, the median over the rounds.
    ratio: f64,
}

/// An engine for one input format, with its expected answers.
struct Side {
    format: InputFormat,
    engine: Engine,
    sources: Sources,
}

pub fn run(args: &ForumArgs) -> Result<Outcome> {
    let (model, _) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let batch = args.batch.unwrap_or(if setup::is_cpu(&device) { CPU_BATCH } else { GPU_BATCH });
    let rounds = args.rounds.unwrap_or(if small { 1 } else { 3 });
    let seconds = args.seconds.unwrap_or(if small { 0.5 } else { 2.0 });
    let options = json!({
        "batch": batch, "threads": args.threads, "slots": args.slots, "rounds": rounds, "seconds": seconds,
    });
    let mut record = Record::start("forum", &device, Some(model.name()), options, &args.report)?;
    let cases = cases();
    let bar = report::progress_bar((rounds * cases.len()) as u64, "forum    {pos} of {len}, {eta} left, {msg}");
    bar.set_message("learning the answers");
    let sides = [InputFormat::F32Nchw, InputFormat::U8Nhwc]
        .map(|format| Side::build(&model, &device, format, args, batch))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut compute = vec![Vec::new(); sides.len()];
    let mut rates = vec![Vec::new(); cases.len()];
    'all: for round in 0..rounds {
        for (side, rates) in sides.iter().zip(&mut compute) {
            rates.push(side.compute_alone(batch)?);
        }
        for turn in 0..cases.len() {
            let index = (turn + round) % cases.len();
            let case = &cases[index];
            bar.set_message(case.order.name());
            let side = sides.iter().find(|side| side.format == case.format).expect("both formats are built");
            let Side { engine, sources, .. } = side;
            let load = Turns { engine, sources, case, batch, threads: args.threads, seconds };
            let Some(rate) = stop::complete(load.images_per_second())? else {
                // Rows are compared within a round: only complete rounds count.
                compute.iter_mut().chain(&mut rates).for_each(|rates| rates.truncate(round));
                ensure!(round > 0, "interrupted before a round was over: nothing was measured");
                break 'all;
            };
            rates[index].push(rate);
            bar.inc(1);
        }
        record.note(&format!("round {round}"));
    }
    bar.finish_and_clear();
    let row = |(case, rates): (&Case, Vec<f64>)| {
        let alone = &compute[sides.iter().position(|side| side.format == case.format).expect("both are built")];
        let ratios: Vec<f64> = rates.iter().zip(alone).map(|(rate, alone)| rate / alone).collect();
        Row {
            format: case.format.to_string(),
            start: case.start,
            order: case.order,
            name: case.order.name(),
            upload: true,
            includes: case.includes(),
            images_per_second: median(&rates),
            images_per_second_all: rates,
            ratio: median(&ratios),
        }
    };
    let rows = cases.iter().zip(rates).map(row).collect();
    let alone = |(side, rates): (&Side, &Vec<f64>)| Compute {
        format: side.format.to_string(),
        upload: false,
        images_per_second: median(rates),
        images_per_second_all: rates.clone(),
    };
    let compute = sides.iter().zip(&compute).map(alone).collect();
    let figures = Figures { upload: true, threads: args.threads, batch, compute, rows };
    record.finish(&args.report, &figures, |out| print(&figures, out), |about| plot(&figures, about))?;
    Ok(Outcome::AllGood)
}

impl Side {
    /// Builds the engine with two batches for each thread: one to submit and one to fill.
    fn build(model: &Model, device: &Device, format: InputFormat, args: &ForumArgs, batch: usize) -> Result<Self> {
        let builder = Engine::builder(model).on(device).batch_sizes(&[batch]).slots(args.slots);
        let builder = setup::tuned(builder, args.place.kernels);
        let staging = 2 * args.threads + args.slots;
        let builder = builder.input(format).output(OutputKind::Probabilities).staging(staging);
        let engine = setup::build(builder.acquire_limit(ACQUIRE_LIMIT))?;
        let sources = Sources::learn(&engine, batch, args.threads)?;
        Ok(Self { format, engine, sources })
    }

    /// Images a second of compute with nothing else running.
    fn compute_alone(&self, batch: usize) -> Result<f64> {
        let runs = if setup::is_cpu(self.engine.device()) { 3 } else { COMPUTE_RUNS };
        let seconds = median(&self.engine.measure(Stage::Compute, batch, runs)?);
        self.sources.restore(&self.engine)?;
        Ok(batch as f64 / seconds)
    }
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let Figures { threads, batch, .. } = figures;
    writeln!(out, "{threads} threads, batches of {batch}\n")?;
    let columns = [Word("pixels"), Word("start in"), Word("order"), Figure("images/s"), Figure("ratio")];
    let mut table = Table::new(&columns);
    for row in &figures.rows {
        let start = row.start.name();
        let (rate, ratio) = (format!("{:.0}", row.images_per_second), format!("{:.3}", row.ratio));
        table.row([row.format.clone(), start.to_owned(), row.name.to_owned(), rate, ratio]);
    }
    table.print(out)?;
    writeln!(out)?;
    for compute in &figures.compute {
        let Compute { format, images_per_second, .. } = compute;
        writeln!(out, "compute alone on {format} that is on the device: {images_per_second:.0} images/s")?;
    }
    writeln!(out, "ratio: the rate over that of compute alone in the same format. All rows include the upload, and:")?;
    let mut said: Vec<&str> = Vec::new();
    for row in figures.rows.iter().rev() {
        if !said.contains(&row.includes.as_str()) {
            said.push(&row.includes);
            let start = row.start.name();
            writeln!(out, "  {} {start}: {}", row.format, row.includes)?;
        }
    }
    Ok(())
}

fn plot(figures: &Figures, about: &str) -> String {
    let bar = |row: &Row| {
        let start = row.start.name();
        let group = if row.order == IssueOrder::Recommended { 1 } else { 0 };
        Bar { label: format!("{} {start}: {}", row.format, row.name), value: row.images_per_second, group }
    };
    let alone = figures.compute.iter().map(|compute| {
        let label = format!("compute alone, {} (no upload)", compute.format);
        Bar { label, value: compute.images_per_second, group: 2 }
    });
    let all: Vec<Bar> = figures.rows.iter().map(bar).chain(alone).collect();
    let title = format!("{} threads, batches of {} (with the upload)", figures.threads, figures.batch);
    bars(&title, about, "images/s", &all)
}
