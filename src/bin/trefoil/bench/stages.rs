//! `trefoil bench` without a subcommand: each stage of a model alone, and all of them end to end.

use std::cell::Cell;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use indicatif::ProgressBar;
use serde::Serialize;
use trefoil::model::Model;
use trefoil::{Device, Engine, Stage};

use super::args::{BenchStage, StagesArgs};
use crate::report::{self, Spread};
use crate::setup::{self, Ring, Sizes};
use crate::throughput::{self, Load};
use crate::{Outcome, out, stop};

const GPU_BATCHES: [usize; 3] = [1, 32, 256];
const CPU_BATCHES: [usize; 2] = [1, 8];
const STAGES: [BenchStage; 4] = [BenchStage::Upload, BenchStage::Compute, BenchStage::Download, BenchStage::EndToEnd];
const DEFAULT_PRODUCERS: usize = 4;
/// Number of different random rows that producers copy.
const RANDOM_ROWS: usize = 16;
/// The least number of runs of a stage, however long they take.
const LEAST_RUNS: usize = 3;
/// The most runs of a stage between two looks at the clock.
const MOST_RUNS: usize = 500;

/// One line of the report.
#[derive(Serialize)]
struct Figure<'a> {
    model: &'a str,
    device: &'a str,
    device_name: &'a str,
    stage: &'static str,
    batch: usize,
    slots: usize,
    compute_streams: usize,
    producers: Option<usize>,
    /// Number of batches of which a sample is the mean.
    batches_per_sample: usize,
    samples: usize,
    seconds_median: f64,
    seconds_p10: f64,
    seconds_p90: f64,
    images_per_second: f64,
    /// Bytes that a copy moves.
    bytes: Option<usize>,
    gigabytes_per_second: Option<f64>,
    includes: &'static str,
}

/// The parts that all runs share.
struct Bench<'a> {
    args: &'a StagesArgs,
    model: &'a Model,
    device: &'a Device,
    producers: usize,
    bar: ProgressBar,
    /// Whether a figure was printed.
    printed: Cell<bool>,
}

pub fn run(args: &StagesArgs) -> Result<Outcome> {
    let (model, path) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let defaults = if setup::is_cpu(&device) { &CPU_BATCHES[..] } else { &GPU_BATCHES };
    let batches = if args.batch.is_empty() { defaults } else { &args.batch };
    let producers = args.producers.unwrap_or_else(|| setup::cores().min(DEFAULT_PRODUCERS));
    if !args.json {
        let mut out = out::stdout();
        writeln!(out, "device  {}", setup::describe(device.info()))?;
        writeln!(out, "model   {} from {}, input {}", model.name(), report::path(&path), model.preprocessing()?.input)?;
        let (slots, streams) = (args.on_device.slots(), args.on_device.compute_streams);
        let what = "times of one batch: median (10th to 90th percentile)";
        writeln!(out, "        {slots} slots, {streams} computed side by side; {what}")?;
    }
    let wanted = STAGES.iter().filter(|stage| args.only.is_none_or(|only| only == **stage)).count();
    let bar = report::progress_bar((batches.len() * wanted) as u64, "bench    {pos} of {len}, {eta} left, {msg}");
    let bench = Bench { args, model: &model, device: &device, producers, bar, printed: Cell::new(false) };
    batches.iter().try_for_each(|&batch| bench.run_batch(batch))?;
    bench.bar.finish_and_clear();
    if stop::requested() {
        ensure!(bench.printed.get(), "interrupted before a stage was over: nothing was measured");
        let _ = writeln!(io::stderr(), "interrupted: these stages were complete before");
    }
    if !args.json {
        explain(args, &device)?;
    }
    Ok(Outcome::AllGood)
}

impl Bench<'_> {
    fn run_batch(&self, batch: usize) -> Result<()> {
        if stop::requested() {
            return Ok(());
        }
        self.bar.set_message(format!("batch {batch}: building"));
        let ring = Ring {
            slots: self.args.on_device.slots(),
            compute_streams: self.args.on_device.compute_streams,
            producers: self.producers,
            ..Ring::new(Sizes::Exactly(vec![batch]), self.args.place.kernels)
        };
        let engine = setup::build_engine(self.model, self.device, &ring)?;
        let rows = throughput::random_rows(RANDOM_ROWS, engine.input().row_bytes);
        check_one_batch(&engine, &rows, batch)?;

        let mut medians = Vec::new();
        for stage in STAGES {
            if self.args.only.is_none_or(|only| only == stage) {
                self.bar.set_message(format!("batch {batch}: {}", name(stage)));
                let measured = stop::complete(self.measure(&engine, &rows, batch, stage))?;
                let Some(figure) = measured else { return Ok(()) };
                medians.push(figure.seconds_median);
                self.bar.suspend(|| self.print(&figure))?;
                self.bar.inc(1);
            }
        }
        // On the CPU a copy is host work too, which nothing can hide.
        let say_hidden = !self.args.json && !setup::is_cpu(self.device);
        if let ([copy_in, compute, copy_out, together], true) = (&medians[..], say_hidden) {
            let hidden = 100.0 * throughput::hidden_part(*together, *copy_in, *compute, *copy_out);
            let line = format!("{:>6}  copies hidden under compute: {hidden:.0} % (estimated from these four)", "");
            self.bar.suspend(|| writeln!(out::stdout(), "{line}"))?;
        }
        Ok(())
    }

    fn measure(&self, engine: &Engine, rows: &[Vec<u8>], batch: usize, stage: BenchStage) -> Result<Figure<'_>> {
        let (samples, batches_per_sample) = match alone(stage) {
            Some(stage) => (self.repeat(engine, stage, batch)?, 1),
            None => {
                let limit = Duration::from_secs_f64(self.args.seconds);
                let load = Load { engine, rows, batch, producers: self.producers, limit };
                load.run(|| ())?.grouped()
            }
        };
        let spread =
            Spread::of(&samples).ok_or_else(|| anyhow!("batch {batch}: no batch in {} s", self.args.seconds))?;
        ensure!(spread.median > 0.0, "batch {batch}: a batch took no measurable time; measure larger batches");
        let bytes = match stage {
            BenchStage::Upload => Some(batch * engine.input().row_pitch),
            BenchStage::Download => Some(batch * engine.output().row_pitch),
            _ => None,
        };
        let info = self.device.info();
        Ok(Figure {
            model: self.model.name(),
            device: &info.target,
            device_name: &info.name,
            stage: name(stage),
            batch,
            slots: engine.slots(),
            compute_streams: engine.compute_streams(),
            producers: (stage == BenchStage::EndToEnd).then_some(self.producers),
            batches_per_sample,
            samples: spread.samples,
            seconds_median: spread.median,
            seconds_p10: spread.p10,
            seconds_p90: spread.p90,
            images_per_second: batch as f64 / spread.median,
            bytes,
            gigabytes_per_second: bytes.map(|bytes| bytes as f64 / spread.median * 1e-9),
            includes: includes(stage),
        })
    }

    /// Runs one stage alone, in rounds that each have a warm-up, until the time is over.
    fn repeat(&self, engine: &Engine, stage: Stage, batch: usize) -> Result<Vec<f64>> {
        let start = Instant::now();
        let mut samples = engine.measure(stage, batch, LEAST_RUNS)?;
        loop {
            let left = self.args.seconds - start.elapsed().as_secs_f64();
            let each = (samples.iter().sum::<f64>() / samples.len() as f64).max(1e-7);
            let runs = ((left / each) as usize).min(MOST_RUNS);
            if runs == 0 || stop::requested() {
                return Ok(samples);
            }
            samples.extend(engine.measure(stage, batch, runs)?);
        }
    }

    fn print(&self, figure: &Figure) -> Result<()> {
        let is_first = !self.printed.replace(true);
        if self.args.json {
            writeln!(io::stdout(), "{}", serde_json::to_string(figure)?)?;
            return Ok(());
        }
        let mut out = out::stdout();
        if is_first {
            writeln!(
                out,
                "\n{:>6}  {:<11} {:>11} {:<27} {:>11} {:>8}",
                "batch", "stage", "median", "(spread)", "images/s", "GB/s"
            )?;
        }
        let spread = format!("({} to {})", report::time(figure.seconds_p10), report::time(figure.seconds_p90));
        let rate = figure.gigabytes_per_second.map_or_else(String::new, |rate| format!("{rate:.2}"));
        let median = report::time(figure.seconds_median);
        let line = format!(
            "{:>6}  {:<11} {median:>11} {spread:<27} {:>11.1} {rate:>8}",
            figure.batch, figure.stage, figure.images_per_second
        );
        writeln!(out, "{}", line.trim_end())?;
        Ok(())
    }
}

/// Runs a batch through the ring, to make sure that the measured engine works.
fn check_one_batch(engine: &Engine, rows: &[Vec<u8>], batch: usize) -> Result<()> {
    let mut filling = engine.acquire()?;
    for (row, source) in filling.rows_mut().zip(rows.iter().cycle()) {
        row.copy_from_slice(source);
    }
    let output = filling.submit(batch)?.wait()?;
    (0..output.rows()).try_for_each(|row| {
        let checked = report::check_probabilities(output.values(row));
        checked.map_err(|what| anyhow!("wrong output in row {row} of a batch of {batch}: {what}"))
    })
}

/// The ring's stage; `None` for end to end.
fn alone(stage: BenchStage) -> Option<Stage> {
    match stage {
        BenchStage::Upload => Some(Stage::CopyIn),
        BenchStage::Compute => Some(Stage::Compute),
        BenchStage::Download => Some(Stage::CopyOut),
        BenchStage::EndToEnd => None,
    }
}

fn name(stage: BenchStage) -> &'static str {
    match stage {
        BenchStage::Upload => "upload",
        BenchStage::Compute => "compute",
        BenchStage::Download => "download",
        BenchStage::EndToEnd => "end-to-end",
    }
}

fn includes(stage: BenchStage) -> &'static str {
    match stage {
        BenchStage::Upload => "page-locked rows to the device, back to back, nothing else running",
        BenchStage::Compute => {
            "normalisation, network and probabilities on rows already on the device, back to back, nothing else running"
        }
        BenchStage::Download => "probabilities to page-locked rows, back to back, nothing else running",
        BenchStage::EndToEnd => {
            "copying rows into page-locked memory, upload, compute, download, and checking every probability, \
             overlapped by many producers; no decoding"
        }
    }
}

/// Explains which steps each figure includes.
fn explain(args: &StagesArgs, device: &Device) -> Result<()> {
    let mut out = out::stdout();
    writeln!(out)?;
    for stage in STAGES {
        if args.only.is_none_or(|only| only == stage) {
            writeln!(out, "{:<11} {}", name(stage), includes(stage))?;
        }
    }
    if setup::is_cpu(device) {
        writeln!(out, "On the CPU a copy is one within the host's memory, and partly within its caches.")?;
    }
    Ok(())
}
