//! `trefoil trace`: runs a model with the recorder on, and writes a timeline and an overlap report.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use trefoil::model::Model;
use trefoil::trace::TraceReport;
use trefoil::{Engine, Error, OutputKind, Ticket, Trace, files};

use crate::cli::{MAX_BATCH, MAX_THREADS, Place, SlotsArgs, count, seconds};
use crate::setup::{self, Ring, Sizes};
use crate::threads::run_all;
use crate::{Outcome, out, outputs, report, stop, throughput};

const DEFAULT_PRODUCERS: usize = 4;
const DEFAULT_SECONDS: f64 = 2.0;
/// Number of different random rows that producers copy.
const RANDOM_ROWS: usize = 16;
/// The number of batches that are kept of a run over a time.
const REMEMBERED: usize = 4096;
/// The most batches of a run over a number of batches.
const MOST_BATCHES: usize = 65_536;

/// Arguments of `trace`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil trace --batch 64 --producers 8 --batches 200 --html trace.html
  trefoil trace --seconds 5 --out trace.json --json

Threads fill batches with random bytes, submit them and wait. The files are timelines of streams, slots and threads:
--html writes a self-contained page for any browser, --out a file in the trace event format, for \
https://ui.perfetto.dev. The report says how busy each stage was, in the whole run and in its middle half, and during \
how much of the copy time compute ran.")]
pub struct TraceArgs {
    #[command(flatten)]
    place: Place,
    /// Rows in a batch [default: 32 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BATCH>)]
    batch: Option<usize>,
    #[command(flatten)]
    on_device: SlotsArgs,
    /// Threads that fill batches [default: 4, or as many as there are cores]
    #[arg(long, value_name = "N", value_parser = count::<MAX_THREADS>)]
    producers: Option<usize>,
    /// Batches to run
    #[arg(long, value_name = "N", value_parser = count::<MOST_BATCHES>, conflicts_with = "seconds")]
    batches: Option<usize>,
    /// Seconds to run; the last 4096 batches are kept [default: 2]
    #[arg(long, value_name = "S", value_parser = seconds)]
    seconds: Option<f64>,
    /// The timeline for Perfetto [default: trace.json, unless there is --html]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The timeline as a page
    #[arg(long, value_name = "FILE.html")]
    html: Option<PathBuf>,
    /// Print the report as a JSON object
    #[arg(long)]
    json: bool,
}

impl TraceArgs {
    /// The files that the command writes, by option.
    pub fn files(&self) -> [(&'static str, Option<&Path>); 2] {
        [("--out", self.out.as_deref()), ("--html", self.html.as_deref())]
    }
}

/// The report, with the model and options of the run.
#[derive(Serialize)]
struct Figures<'a> {
    model: &'a str,
    device_name: &'a str,
    batch: usize,
    slots: usize,
    compute_streams: usize,
    producers: usize,
    out: Option<String>,
    html: Option<String>,
    #[serde(flatten)]
    report: &'a TraceReport,
}

pub fn run(args: &TraceArgs) -> Result<Outcome> {
    let (model, path) = args.place.open()?;
    let device = setup::open_device(args.place.device)?;
    let batch = args.batch.unwrap_or(if setup::is_cpu(&device) { 8 } else { 32 });
    let producers = args.producers.unwrap_or_else(|| setup::cores().min(DEFAULT_PRODUCERS));
    let output = OutputKind::Probabilities;
    let files = Files::of(args);
    files.check()?; // before the run, which may be long
    let (sizes, kernels) = (Sizes::Exactly(vec![batch]), args.place.kernels);
    let (slots, compute_streams) = (args.on_device.slots(), args.on_device.compute_streams);
    let ring = Ring { slots, compute_streams, producers, output, ..Ring::new(sizes, kernels) };
    let remembered = args.batches.unwrap_or(REMEMBERED);
    let engine = setup::build(setup::engine_builder(&model, &device, &ring).trace_batches(remembered))?;
    let rows = throughput::random_rows(RANDOM_ROWS, engine.input().row_bytes);
    let seconds = Duration::from_secs_f64(args.seconds.unwrap_or(DEFAULT_SECONDS));
    let load = Load {
        engine: &engine,
        rows: &rows,
        batch,
        batches: args.batches.unwrap_or(usize::MAX),
        limit: args.batches.is_none().then_some(seconds),
        taken: AtomicUsize::new(0),
        bar: match args.batches {
            Some(batches) => {
                report::progress_bar(batches as u64, "trace    {pos}/{len} batches, {rate} a second, {eta} left")
            }
            None => report::timed_bar(seconds, "trace    {pos} batches, {rate} a second, {eta} left"),
        },
    };
    load.run(producers)?;
    load.bar.finish_and_clear();
    if stop::requested() {
        let _ = writeln!(io::stderr(), "interrupted: this is of what was recorded before");
    }

    let trace = engine.trace().context("internal error, please report it: an engine without its recorder")?;
    let report = trace.report();
    ensure!(report.batches > 0, "no batch was finished");
    let run = Run { args, files: &files, engine: &engine, model: &model, path: &path, batch, producers };
    // The figures are printed even if a file cannot be written, and the files are written even if printing fails.
    let printed = run.print(&report);
    files.write(&trace)?;
    printed?;
    if !args.json {
        files.tell()?;
    }
    Ok(Outcome::AllGood)
}

/// The options and the parts of a run.
struct Run<'a> {
    args: &'a TraceArgs,
    files: &'a Files<'a>,
    engine: &'a Engine,
    model: &'a Model,
    path: &'a Path,
    batch: usize,
    producers: usize,
}

impl Run<'_> {
    fn print(&self, report: &TraceReport) -> Result<()> {
        let Self { args, engine, model, batch, producers, .. } = *self;
        let (info, mut out) = (engine.device().info(), out::stdout());
        let (slots, compute_streams) = (engine.slots(), engine.compute_streams());
        if args.json {
            let name = |path: Option<&Path>| path.map(|path| path.display().to_string());
            let (out_file, html) = (name(self.files.perfetto), name(self.files.html));
            let (model, device_name) = (model.name(), &*info.name);
            let figures =
                Figures { model, device_name, batch, slots, compute_streams, producers, out: out_file, html, report };
            writeln!(io::stdout(), "{}", serde_json::to_string(&figures)?)?;
        } else {
            writeln!(out, "device  {}", setup::describe(info))?;
            writeln!(out, "model   {} from {}", model.name(), report::path(self.path))?;
            writeln!(out, "        batches of {batch}, {slots} slots, {producers} producers\n")?;
            writeln!(out, "{report}\n")?;
        }
        Ok(())
    }
}

/// The files for the timelines.
struct Files<'a> {
    perfetto: Option<&'a Path>,
    html: Option<&'a Path>,
}

impl<'a> Files<'a> {
    fn of(args: &'a TraceArgs) -> Self {
        let default = || args.html.is_none().then(|| Path::new("trace.json"));
        Self { perfetto: args.out.as_deref().or_else(default), html: args.html.as_deref() }
    }

    fn check(&self) -> Result<()> {
        let files = [(self.perfetto, "json"), (self.html, "html")];
        files
            .into_iter()
            .filter_map(|(path, ending)| Some((path?, ending)))
            .try_for_each(|(path, ending)| outputs::check(path, ending, None))
    }

    fn write(&self, trace: &Trace) -> Result<(), Error> {
        if let Some(path) = self.perfetto {
            files::write(path, trace.to_chrome_json())?;
        }
        if let Some(path) = self.html {
            files::write(path, trace.to_html())?;
        }
        Ok(())
    }

    fn tell(&self) -> Result<()> {
        let mut out = out::stdout();
        if let Some(path) = self.perfetto {
            writeln!(out, "timeline in {}: open it at https://ui.perfetto.dev", report::path(path))?;
        }
        if let Some(path) = self.html {
            writeln!(out, "timeline in {}: open it in a browser", report::path(path))?;
        }
        Ok(())
    }
}

/// Threads that fill batches, submit them and wait.
struct Load<'a> {
    engine: &'a Engine,
    rows: &'a [Vec<u8>],
    batch: usize,
    batches: usize,
    limit: Option<Duration>,
    /// Number of batches that producers have begun.
    taken: AtomicUsize,
    bar: ProgressBar,
}

impl Load<'_> {
    fn run(&self, producers: usize) -> Result<()> {
        let start = Instant::now();
        run_all(producers, "trefoil-producer", |index| self.produce(index, start))
    }

    /// Runs one producer: it fills a batch while the one before it is computed.
    fn produce(&self, index: usize, start: Instant) -> Result<()> {
        let mut sources = self.rows.iter().cycle().skip(index);
        let mut last: Option<Ticket> = None;
        while !stop::requested()
            && self.limit.is_none_or(|limit| start.elapsed() < limit)
            && self.taken.fetch_add(1, Ordering::Relaxed) < self.batches
        {
            let mut batch = self.engine.acquire()?;
            for (row, source) in batch.rows_mut().zip(sources.by_ref()).take(self.batch) {
                row.copy_from_slice(source);
            }
            if let Some(before) = last.replace(batch.submit(self.batch)?) {
                drop(before.wait()?);
                self.bar.inc(1);
            }
        }
        if let Some(ticket) = last {
            drop(ticket.wait()?);
        }
        Ok(())
    }
}
