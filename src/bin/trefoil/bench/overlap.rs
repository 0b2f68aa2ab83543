//! `trefoil bench overlap`: the ring beside its slowest engine alone, and beside what the simulator says.

use std::io::{self, Write};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use trefoil::Device;
use trefoil::simulate::simulate;

use super::args::{OverlapArgs, Regime};
use super::engines::{Engines, PRODUCERS, ahead, buffers, measure_alone, simulated};
use super::load::{RingLoad, median};
use super::network::{Calibration, Layers};
use super::plot::{Axis, Chart, Panel, Series};
use super::record::Record;
use super::sources::Sources;
use crate::Outcome;
use crate::{report, setup, stop};

const GPU_BATCHES: [usize; 3] = [8, 32, 128];
const CPU_BATCHES: [usize; 1] = [8];
/// A regime counts as missed when compute is off by more than this part.
const REGIME_OFF: f64 = 0.15;
/// Compute with nothing beside it is at least as fast as loaded, but for what two measurements differ by.
const IDLE_FASTER: f64 = 0.99;
/// Different batches.
const SOURCES: usize = 3;
const INCLUDES: &str = "upload, compute and download of batches that lie in page-locked memory, overlapped by the ring; \
                        alone: back to back with no host wait, the other two stages running beside it as in the run";

/// What all rows have in common.
struct Bench<'a> {
    device: &'a Device,
    layers: Layers,
    repetitions: usize,
    batches: usize,
    slots: &'a [usize],
    bar: ProgressBar,
}

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    regime: Regime,
    batch: usize,
    slots: usize,
    /// Convolutions.
    depth: usize,
    upload: bool,
    /// What compute takes, in copies; and what was aimed at.
    compute_in_copies: f64,
    compute_in_copies_wanted: f64,
    /// The best of all repetitions on this network, the other engines loaded.
    alone_seconds: Engines,
    /// The same with nothing else running; compute is what `bench` gives as resident on the device.
    idle_seconds: Engines,
    slowest: &'static str,
    slowest_seconds: f64,
    ring_seconds: f64,
    ring_seconds_median: f64,
    ring_seconds_all: Vec<f64>,
    images_per_second: f64,
    slowest_images_per_second: f64,
    /// Of the ring's rate to the slowest engine's.
    ratio: f64,
    predicted_images_per_second: f64,
    /// Of the prediction from the measurement.
    deviation_percent: f64,
    /// Over one slot, if that was run.
    gain: Option<f64>,
    predicted_gain: Option<f64>,
}

pub fn run(args: &OverlapArgs) -> Result<Outcome> {
    let device = setup::open_device(args.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let defaults = if small { &CPU_BATCHES[..] } else { &GPU_BATCHES };
    let batches = if args.batch.is_empty() { defaults } else { &args.batch };
    let layers = Layers::of(&device);
    let repetitions = args.repetitions.unwrap_or(if small { 2 } else { 5 });
    let each = args.batches.unwrap_or(if small { 10 } else { 200 });
    let options = json!({
        "batch": batches, "slots": args.slots, "regime": args.regime, "repetitions": repetitions, "batches": each,
        "producers": PRODUCERS, "ahead": batches.iter().map(|&batch| ahead(batch)).collect::<Vec<_>>(),
    });
    let mut record = Record::start("overlap", &device, Some(&layers.describe()), options, &args.report)?;
    let networks = batches.len() * args.regime.len();
    let steps = networks * (1 + args.slots.len() * repetitions);
    let bar = report::progress_bar(steps as u64, "overlap  {pos} of {len}, {eta} left, {msg}");
    let bench = Bench { device: &device, layers, repetitions, batches: each, slots: &args.slots, bar };

    let mut rows = Vec::new();
    'all: for &batch in batches {
        bench.bar.set_message(format!("calibrating a batch of {batch}"));
        let mut calibration = Calibration::new(&device, layers, batch, each.div_ceil(4))?;
        for &regime in &args.regime {
            let depth = calibration.depth(regime)?;
            bench.bar.inc(1);
            let Some(measured) = stop::complete(bench.network(regime, batch, depth))? else { break 'all };
            rows.extend(measured);
            record.note(&format!("{}, batch {batch}", regime.name()));
        }
    }
    bench.bar.finish_and_clear();
    let figures = Figures { upload: true, includes: INCLUDES, rows };
    record.finish(&args.report, &figures, |out| print(&figures, out), |about| plot(&figures, about).svg())?;
    Ok(Outcome::AllGood)
}

impl Bench<'_> {
    /// The rows of one network. A repetition measures the ring with each number of slots, and the engines alone on one of
    /// these rings, the next each time: so all figures are spread over the same time, and a disturbance from elsewhere
    /// meets all alike. The measurements of the engines alone are pooled, for it is the same work whatever the slots.
    fn network(&self, regime: Regime, batch: usize, depth: usize) -> Result<Vec<Row>> {
        let engine = |&slots: &usize| self.layers.engine(self.device, depth, batch, buffers(slots, batch));
        let engines = self.slots.iter().map(engine).collect::<Result<Vec<_>>>()?;
        let sources = engines.iter().map(|engine| Sources::learn(engine, batch, SOURCES));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let (mut alone, mut idle) = (Engines::none(), Engines::none());
        let mut rings = vec![Vec::new(); engines.len()];
        for repetition in 0..self.repetitions {
            for (index, (engine, sources)) in engines.iter().zip(&sources).enumerate() {
                stop::check()?;
                self.bar.set_message(format!("{}, batch {batch}, {} slots", regime.name(), engine.slots()));
                if index == repetition % engines.len() {
                    let (loaded, quiet) = measure_alone(engine, batch, self.batches)?;
                    alone = alone.best(loaded);
                    idle = idle.best(quiet);
                    // Measuring leaves other rows in a staging buffer.
                    sources.restore(engine)?;
                }
                let load = RingLoad { engine, sources, rows: batch, producers: PRODUCERS, ahead: ahead(batch) };
                rings[index].push(load.seconds_a_batch(self.batches)?);
                self.bar.inc(1);
            }
        }
        let row_bytes = engines[0].input().row_bytes;
        let rings: Vec<(usize, Vec<f64>)> = self.slots.iter().copied().zip(rings).collect();
        let predict = |slots| -> Result<f64> {
            let rows = simulated(batch, slots, row_bytes, self.batches, alone, idle);
            Ok(simulate(&rows).context("cannot simulate what was measured")?.images_per_s)
        };
        let one = rings.iter().find(|ring| ring.0 == 1);
        let one = one.map(|(_, ring)| Ok::<_, anyhow::Error>((best(ring), predict(1)?))).transpose()?;
        let row = |(slots, ring): (usize, Vec<f64>)| -> Result<Row> {
            let (slowest, slowest_seconds) = alone.slowest();
            let ring_seconds = best(&ring);
            let images_per_second = batch as f64 / ring_seconds;
            let predicted_images_per_second = predict(slots)?;
            Ok(Row {
                regime,
                batch,
                slots,
                depth,
                upload: true,
                compute_in_copies: alone.compute / alone.copy_in.max(alone.copy_out),
                compute_in_copies_wanted: regime.copies(),
                alone_seconds: alone,
                idle_seconds: idle,
                slowest,
                slowest_seconds,
                ring_seconds,
                ring_seconds_median: median(&ring),
                ring_seconds_all: ring,
                images_per_second,
                slowest_images_per_second: batch as f64 / slowest_seconds,
                ratio: slowest_seconds / ring_seconds,
                predicted_images_per_second,
                deviation_percent: 100.0 * (predicted_images_per_second / images_per_second - 1.0),
                gain: one.map(|(seconds, _)| seconds / ring_seconds),
                predicted_gain: one.map(|(_, predicted)| predicted_images_per_second / predicted),
            })
        };
        rings.into_iter().map(row).collect()
    }
}

fn best(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:<13} {:>5} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>10} {:>7} {:>6} {:>6}",
        "regime",
        "batch",
        "slots",
        "copy in",
        "compute",
        "(idle)",
        "copy out",
        "ring",
        "images/s",
        "ratio",
        "predicted",
        "off",
        "gain",
        "pred."
    )?;
    for row in &figures.rows {
        let Engines { copy_in, compute, copy_out } = row.alone_seconds;
        let times = [copy_in, compute, row.idle_seconds.compute, copy_out, row.ring_seconds];
        let [copy_in, compute, idle, copy_out, ring] = times.map(report::time);
        let gain = |gain: Option<f64>| gain.map_or_else(|| "-".into(), |gain| format!("{gain:.2}x"));
        writeln!(
            out,
            "{:<13} {:>5} {:>5} {copy_in:>10} {compute:>10} {idle:>10} {copy_out:>10} {ring:>10} {:>10.0} {:>7.3} {:>10.0} \
             {:>+5.1} % {:>6} {:>6}",
            row.regime.name(),
            row.batch,
            row.slots,
            row.images_per_second,
            row.ratio,
            row.predicted_images_per_second,
            row.deviation_percent,
            gain(row.gain),
            gain(row.predicted_gain),
        )?;
    }
    let off = |row: &&Row| (row.compute_in_copies / row.compute_in_copies_wanted - 1.0).abs() > REGIME_OFF;
    let first_slots = || figures.rows.iter().filter(|row| row.slots == figures.rows[0].slots);
    for row in first_slots().filter(off) {
        let (regime, batch, depth) = (row.regime.name(), row.batch, row.depth);
        let (is, wanted) = (row.compute_in_copies, row.compute_in_copies_wanted);
        writeln!(out, "{regime}, batch {batch}: compute takes {is:.2} copies with {depth} convolutions, not {wanted}")?;
    }
    for row in first_slots().filter(|row| row.alone_seconds.compute < IDLE_FASTER * row.idle_seconds.compute) {
        let (regime, batch) = (row.regime.name(), row.batch);
        let [loaded, idle] = [row.alone_seconds, row.idle_seconds].map(|of| report::time(of.compute));
        writeln!(
            out,
            "warning: {regime}, batch {batch}: compute takes {loaded} loaded, and {idle} with nothing beside it"
        )?;
    }
    writeln!(out, "\nWith the upload: {INCLUDES}.")?;
    writeln!(
        out,
        "(idle): compute with nothing else running, without the upload; no faster when it is loaded, or there is a warning."
    )?;
    writeln!(
        out,
        "ratio: the ring to its slowest engine alone. off: the prediction from the measurement. gain: over one slot."
    )
}

/// A panel for each regime: ratio over slots, measured and predicted.
fn plot(figures: &Figures, about: &str) -> Chart {
    let mut panels: Vec<Panel> = Vec::new();
    for row in &figures.rows {
        let title = row.regime.name();
        let index = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            let y = Axis::new("throughput / slowest engine alone").with_zero();
            panels.push(Panel::new(title, Axis::new("slots"), y).line(1.0, "slowest engine alone"));
            panels.len() - 1
        });
        let slots = row.slots as f64;
        let predicted = row.predicted_images_per_second / row.slowest_images_per_second;
        let measured = format!("batch {}", row.batch);
        panels[index].point(Series::solid(&measured), slots, row.ratio);
        panels[index].point(Series::dashed(&format!("{measured}, predicted")), slots, predicted);
    }
    Chart { title: "Overlap: the ring beside its slowest engine (with the upload)".into(), about: about.into(), panels }
}
