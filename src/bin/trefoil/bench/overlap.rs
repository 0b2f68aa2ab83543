//! `trefoil bench overlap`: the ring compared with its slowest engine alone and with the simulator's prediction.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use trefoil::model::Model;
use trefoil::onnx::Sizes;
use trefoil::simulate::simulate;
use trefoil::{Device, Engine};

use super::args::{OverlapArgs, Regime};
use super::engines::{Engines, PRODUCERS, ahead, buffers, measure_alone, simulated};
use super::load::{RingLoad, median};
use super::network::{Buffers, Calibration, Layers};
use super::plot::{Axis, Chart, Panel, Series};
use super::record::Record;
use super::sources::Sources;
use crate::Outcome;
use crate::table::Column::{Figure, Word};
use crate::table::Table;
use crate::{models, report, setup, stop};

const GPU_BATCHES: [usize; 3] = [8, 32, 128];
const CPU_BATCHES: [usize; 1] = [8];
/// A regime counts as missed when the time of compute is off by more than this part.
const REGIME_OFF: f64 = 0.15;
/// Idle compute may take this part less time than loaded compute, for the noise of two measurements; else there is a
/// warning.
const IDLE_FASTER: f64 = 0.99;
/// Number of different batches.
const SOURCES: usize = 3;
const ON_GPUS: &str = "If compute is faster under load than idle, there is a warning. ratio: the throughput of the ring over that of its \
                       slowest engine alone. off: the difference of the simulator's prediction and the measurement. gain: the \
                       throughput over that with one slot, measured and predicted.";
const ON_THE_CPU: &str = "On the CPU copies and compute share the cores, so no engine alone is a bound of the ring, and the \
                          simulator, whose engines do not slow each other down, cannot predict it: there is no ratio and no \
                          prediction. The figures show the times of the stages and the gain over one slot.";
const INCLUDES: &str = "upload, compute and download of batches that lie in page-locked memory, overlapped by the ring; \
                        alone: back to back with no host wait, while the other two stages run as in the ring";

/// The word for the regime of a given model.
const OF_A_MODEL: &str = "model";

/// A network that is measured.
enum Network<'a> {
    /// One that was made: its layers, their number, and the wanted regime.
    Made(Layers, usize, Regime),
    /// A given model.
    Given(&'a Model),
}

impl Network<'_> {
    fn regime(&self) -> &'static str {
        match self {
            Self::Made(_, _, regime) => regime.name(),
            Self::Given(_) => OF_A_MODEL,
        }
    }

    /// The wanted time of compute, in times of a copy.
    fn copies(&self) -> Option<f64> {
        match self {
            Self::Made(_, _, regime) => Some(regime.copies()),
            Self::Given(_) => None,
        }
    }

    fn depth(&self) -> Option<usize> {
        match self {
            Self::Made(_, depth, _) => Some(*depth),
            Self::Given(_) => None,
        }
    }

    fn engine(&self, device: &Device, batch: usize, buffers: Buffers) -> Result<Engine> {
        match self {
            Self::Made(layers, depth, _) => layers.engine(device, *depth, batch, buffers),
            Self::Given(model) => {
                let Buffers { slots, staging, results } = buffers;
                let builder = Engine::builder(model).on(device).batch_sizes(&[batch]);
                Ok(builder.slots(slots).staging(staging).results(results).build()?)
            }
        }
    }
}

/// The parts that all rows share.
struct Bench<'a> {
    device: &'a Device,
    repetitions: usize,
    batches: usize,
    slots: &'a [usize],
    bar: ProgressBar,
}

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    shows: &'static str,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    /// The wanted regime, and whether it was reached; [`OF_A_MODEL`] for a given model, which has none.
    regime: &'static str,
    regime_reached: bool,
    batch: usize,
    slots: usize,
    /// Number of convolutions of a network that was made.
    depth: Option<usize>,
    upload: bool,
    /// The time of compute, in times of a copy, measured and wanted.
    compute_in_copies: f64,
    compute_in_copies_wanted: Option<f64>,
    /// The best times of all repetitions on this network, each engine alone under load.
    alone_seconds: Engines,
    /// The best times with nothing else running; compute is the figure that `bench` gives for a resident input.
    idle_seconds: Engines,
    ring_seconds: f64,
    ring_seconds_median: f64,
    ring_seconds_all: Vec<f64>,
    images_per_second: f64,
    /// The throughput over that with one slot, if one slot was measured.
    gain: Option<f64>,
    /// The comparison with the slowest engine and with the prediction; `None` on the CPU, see [`ON_THE_CPU`].
    #[serde(flatten)]
    beside: Option<Beside>,
}

/// The ring compared with its slowest engine alone and with the simulated run.
#[derive(Serialize)]
struct Beside {
    slowest: &'static str,
    slowest_seconds: f64,
    slowest_images_per_second: f64,
    /// The ring's rate over the slowest engine's rate.
    ratio: f64,
    predicted_images_per_second: f64,
    /// The deviation of the prediction from the measurement.
    deviation_percent: f64,
    /// The predicted throughput over that with one slot, if one slot was measured.
    predicted_gain: Option<f64>,
}

impl Beside {
    /// Compares a ring's seconds of a batch with the predicted images a second, for its slots and for one slot.
    fn new(batch: usize, alone: Engines, ring_seconds: f64, predicted: f64, predicted_one: Option<f64>) -> Self {
        let (slowest, slowest_seconds) = alone.slowest();
        Self {
            slowest,
            slowest_seconds,
            slowest_images_per_second: batch as f64 / slowest_seconds,
            ratio: slowest_seconds / ring_seconds,
            predicted_images_per_second: predicted,
            deviation_percent: 100.0 * (predicted * ring_seconds / batch as f64 - 1.0),
            predicted_gain: predicted_one.map(|one| predicted / one),
        }
    }
}

pub fn run(args: &OverlapArgs) -> Result<Outcome> {
    let device = setup::open_device(args.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let defaults = if small { &CPU_BATCHES[..] } else { &GPU_BATCHES };
    let batches = if args.batch.is_empty() { defaults } else { &args.batch };
    let layers = Layers::of(&device);
    let dim = |sizes: Sizes, (name, size): &(String, usize)| sizes.dim(name, *size);
    let open = |path: &PathBuf| models::open_at(Some(path), &args.sizes.iter().fold(Sizes::new(), dim));
    let model = args.model.as_ref().map(open).transpose()?.map(|(model, _)| model);
    let repetitions = args.repetitions.unwrap_or(if small { 2 } else { 5 });
    let each = args.batches.unwrap_or(if small { 10 } else { 200 });
    let options = json!({
        "batch": batches, "slots": args.slots, "regime": if model.is_some() { &[] } else { &args.regime[..] },
        "repetitions": repetitions, "batches": each, "size": args.sizes,
        "producers": PRODUCERS, "ahead": batches.iter().map(|&batch| ahead(batch)).collect::<Vec<_>>(),
    });
    let what = model.as_ref().map_or_else(|| layers.describe(), |model| model.name().to_owned());
    let mut record = Record::start("overlap", &device, Some(&what), options, &args.report)?;
    let networks = batches.len() * if model.is_some() { 1 } else { args.regime.len() };
    let steps = networks * (1 + args.slots.len() * repetitions);
    let bar = report::progress_bar(steps as u64, "overlap  {pos} of {len}, {eta} left, {msg}");
    let bench = Bench { device: &device, repetitions, batches: each, slots: &args.slots, bar };

    let mut rows = Vec::new();
    'all: for &batch in batches {
        if let Some(model) = &model {
            let Some(measured) = stop::complete(bench.network(&Network::Given(model), batch))? else { break 'all };
            rows.extend(measured);
            record.note(&format!("batch {batch}"));
            continue;
        }
        bench.bar.set_message(format!("calibrating a batch of {batch}"));
        let mut calibration = Calibration::new(&device, layers, batch, each.div_ceil(4))?;
        for &regime in &args.regime {
            let network = Network::Made(layers, calibration.depth(regime)?, regime);
            bench.bar.inc(1);
            let Some(measured) = stop::complete(bench.network(&network, batch))? else { break 'all };
            rows.extend(measured);
            record.note(&format!("{}, batch {batch}", regime.name()));
        }
    }
    bench.bar.finish_and_clear();
    let shows = if setup::is_cpu(&device) { ON_THE_CPU } else { ON_GPUS };
    let figures = Figures { upload: true, includes: INCLUDES, shows, rows };
    record.finish(&args.report, &figures, |out| print(&figures, out), |about| plot(&figures, about).svg())?;
    Ok(Outcome::AllGood)
}

impl Bench<'_> {
    /// The rows of one network. Each repetition measures the ring with every number of slots, and the engines alone on
    /// one of these rings, another one each time: all figures are spread over the same time, so a disturbance from
    /// outside affects all alike. The measurements of the engines alone are pooled, because their work does not depend
    /// on the slots.
    fn network(&self, network: &Network<'_>, batch: usize) -> Result<Vec<Row>> {
        let engine = |&slots: &usize| network.engine(self.device, batch, buffers(slots, batch));
        let engines = self.slots.iter().map(engine).collect::<Result<Vec<_>>>()?;
        let sources = engines.iter().map(|engine| Sources::learn(engine, batch, SOURCES));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let (mut alone, mut idle) = (Engines::none(), Engines::none());
        let mut rings = vec![Vec::new(); engines.len()];
        for repetition in 0..self.repetitions {
            for (index, (engine, sources)) in engines.iter().zip(&sources).enumerate() {
                stop::check()?;
                self.bar.set_message(format!("{}, batch {batch}, {} slots", network.regime(), engine.slots()));
                if index == repetition % engines.len() {
                    let (loaded, quiet) = measure_alone(engine, batch, self.batches)?;
                    alone = alone.best(loaded);
                    idle = idle.best(quiet);
                    // The measurement has left other rows in a staging buffer.
                    sources.restore(engine)?;
                }
                let load = RingLoad { engine, sources, rows: batch, producers: PRODUCERS, ahead: ahead(batch) };
                rings[index].push(load.seconds_a_batch(self.batches)?);
                self.bar.inc(1);
            }
        }
        let row_bytes = [engines[0].input(), engines[0].output()].map(|row| row.row_bytes);
        let rings: Vec<(usize, Vec<f64>)> = self.slots.iter().copied().zip(rings).collect();
        let predict = |slots| -> Result<f64> {
            let rows = simulated(batch, slots, row_bytes, self.batches, alone, idle);
            Ok(simulate(&rows).context("cannot simulate what was measured")?.images_per_s)
        };
        let one = rings.iter().find(|ring| ring.0 == 1).map(|(_, ring)| best(ring));
        let beside = |slots, ring_seconds| -> Result<Option<Beside>> {
            if setup::is_cpu(self.device) {
                return Ok(None);
            }
            let predicted_one = one.map(|_| predict(1)).transpose()?;
            Ok(Some(Beside::new(batch, alone, ring_seconds, predict(slots)?, predicted_one)))
        };
        let compute_in_copies = alone.compute / alone.copy_in.max(alone.copy_out);
        let row = |(slots, ring): (usize, Vec<f64>)| -> Result<Row> {
            let ring_seconds = best(&ring);
            Ok(Row {
                regime: network.regime(),
                regime_reached: network
                    .copies()
                    .is_none_or(|copies| (compute_in_copies / copies - 1.0).abs() <= REGIME_OFF),
                batch,
                slots,
                depth: network.depth(),
                upload: true,
                compute_in_copies,
                compute_in_copies_wanted: network.copies(),
                alone_seconds: alone,
                idle_seconds: idle,
                ring_seconds,
                ring_seconds_median: median(&ring),
                ring_seconds_all: ring,
                images_per_second: batch as f64 / ring_seconds,
                gain: one.map(|seconds| seconds / ring_seconds),
                beside: beside(slots, ring_seconds)?,
            })
        };
        rings.into_iter().map(row).collect()
    }
}

fn best(seconds: &[f64]) -> f64 {
    seconds.iter().copied().fold(f64::INFINITY, f64::min)
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let first_slots = || figures.rows.iter().filter(|row| row.slots == figures.rows[0].slots);
    let name = |row: &Row| {
        if row.regime_reached { row.regime.to_owned() } else { format!("({})", row.regime) }
    };
    let stages = ["copy in", "compute", "(idle)", "copy out"].map(Figure);
    let mut alone = Table::new(&[&[Word("regime"), Figure("batch")][..], &stages].concat());
    for row in first_slots() {
        let Engines { copy_in, compute, copy_out } = row.alone_seconds;
        let times = [copy_in, compute, row.idle_seconds.compute, copy_out].map(report::time);
        alone.row([name(row), row.batch.to_string()].into_iter().chain(times));
    }
    let gains = ["ratio", "off", "gain", "predicted"].map(Figure);
    let of_ring = ["batch", "slots", "ring", "images/s"].map(Figure);
    let mut rings = Table::new(&[&[Word("regime")][..], &of_ring, &gains].concat());
    for row in &figures.rows {
        let beside = row.beside.as_ref();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let gain = |gain: Option<f64>| or_dash(gain.map(|gain| format!("{gain:.2}x")));
        rings.row([
            name(row),
            row.batch.to_string(),
            row.slots.to_string(),
            report::time(row.ring_seconds),
            format!("{:.0}", row.images_per_second),
            or_dash(beside.map(|beside| format!("{:.3}", beside.ratio))),
            or_dash(beside.map(|beside| format!("{:+.1} %", beside.deviation_percent))),
            gain(row.gain),
            gain(beside.and_then(|beside| beside.predicted_gain)),
        ]);
    }
    writeln!(out, "a batch on each engine, the others loaded")?;
    alone.print(out)?;
    writeln!(out, "\na batch in the ring, all engines at once")?;
    rings.print(out)?;
    for row in first_slots().filter(|row| !row.regime_reached) {
        let (Some(depth), Some(wanted)) = (row.depth, row.compute_in_copies_wanted) else { continue };
        let (regime, batch, is) = (row.regime, row.batch, row.compute_in_copies);
        writeln!(
            out,
            "({regime}), batch {batch}: not reached; compute takes {is:.2} copies with {depth} convolutions, not {wanted}"
        )?;
    }
    let is_faster_loaded = |row: &&Row| row.alone_seconds.compute < IDLE_FASTER * row.idle_seconds.compute;
    for row in first_slots().filter(|row| row.beside.is_some()).filter(is_faster_loaded) {
        let (regime, batch) = (row.regime, row.batch);
        let [loaded, idle] = [row.alone_seconds, row.idle_seconds].map(|of| report::time(of.compute));
        writeln!(
            out,
            "warning: {regime}, batch {batch}: compute takes {loaded} loaded, and {idle} with nothing beside it"
        )?;
    }
    writeln!(out, "\nWith the upload: {INCLUDES}.")?;
    writeln!(out, "(idle): compute with nothing else running, without the upload.")?;
    writeln!(out, "{}", figures.shows)
}

/// A panel for each regime: measured and predicted ratio by slots; without a ratio, images a second.
fn plot(figures: &Figures, about: &str) -> Chart {
    let mut panels: Vec<Panel> = Vec::new();
    for row in &figures.rows {
        let title = row.regime;
        let index = panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            let of = if row.beside.is_some() { "throughput / slowest engine alone" } else { "images/s" };
            let panel = Panel::new(title, Axis::new("slots"), Axis::new(of).with_zero());
            panels.push(if row.beside.is_some() { panel.line(1.0, "slowest engine alone") } else { panel });
            panels.len() - 1
        });
        let (slots, measured) = (row.slots as f64, format!("batch {}", row.batch));
        let Some(beside) = &row.beside else {
            panels[index].point(Series::solid(&measured), slots, row.images_per_second);
            continue;
        };
        let predicted = beside.predicted_images_per_second / beside.slowest_images_per_second;
        panels[index].point(Series::solid(&measured), slots, beside.ratio);
        panels[index].point(Series::dashed(&format!("{measured}, predicted")), slots, predicted);
    }
    let title = match figures.rows.iter().any(|row| row.beside.is_some()) {
        true => "Overlap: the ring beside its slowest engine (with the upload)",
        false => "Overlap: the ring by slots (with the upload)",
    };
    Chart { title: title.into(), about: about.into(), panels }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_beside_its_slowest_engine_and_the_run_on_paper() {
        let alone = Engines { copy_in: 0.5, compute: 2.0, copy_out: 0.25 };
        let beside = Beside::new(8, alone, 2.5, 4.0, Some(2.0));
        assert_eq!((beside.slowest, beside.slowest_seconds, beside.slowest_images_per_second), ("compute", 2.0, 4.0));
        assert_eq!((beside.ratio, beside.predicted_images_per_second, beside.predicted_gain), (0.8, 4.0, Some(2.0)));
        assert!((beside.deviation_percent - 25.0).abs() < 1e-9, "{}", beside.deviation_percent); // of 3.2 images/s
        assert_eq!(Beside::new(8, alone, 2.5, 4.0, None).predicted_gain, None);
    }
}
