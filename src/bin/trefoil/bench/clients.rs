//! `trefoil bench clients`: many threads with single images, each waiting for its answer.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::json;
use trefoil::model::Model;
use trefoil::{Batcher, BatcherBuilder, BatcherStats, Device, Engine, Waiting};

use super::args::{BatcherArgs, ClientsArgs};
use super::load::{on_threads, percentile};
use super::plot::{Axis, Chart, Panel, Series};
use super::record::{Record, ensure_some};
use super::sources::Images;
use crate::cli::{Kernels, SlotsArgs};
use crate::setup::{self, Ring, Sizes};
use crate::table::Column::{Figure, Word};
use crate::table::Table;
use crate::throughput::Load;
use crate::{Outcome, report, stop};

const GPU_THREADS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const CPU_THREADS: [usize; 3] = [1, 4, 16];
const GPU_BATCH: usize = 32;
const CPU_BATCH: usize = 8;
/// Number of different images.
const IMAGES: usize = 16;
/// Threads that fill batches when the ring's own rate is measured.
const PRODUCERS: usize = 8;
/// The warm-up before a run, as a part of the run's time: only the steady state is counted.
const WARM_UP: f64 = 0.1;
/// The bound on p99, in times of a full batch.
const BOUND_BATCHES: f64 = 4.0;
const INCLUDES: &str = "copying an image from ordinary memory into a page-locked row, waiting for more rows, upload, \
                        normalisation, network, probabilities, download, and comparing the answer";
const RING_INCLUDES: &str = "the ring alone with full batches: copying rows from ordinary memory, upload, compute, \
                             download, checking probabilities";

/// A model behind a batcher, and the ring's own rate with full batches.
pub struct Served {
    pub images: Images,
    pub engine: Engine,
    pub batcher: Batcher,
    pub batch: usize,
    pub ring_images_per_second: f64,
}

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    ring: RingFigure,
    /// The bound on p99: four times the ring's time of a full batch.
    p99_bound_seconds: f64,
    rows: Vec<Row>,
}

/// The rate of the ring without a batcher.
#[derive(Serialize)]
pub struct RingFigure {
    upload: bool,
    includes: &'static str,
    batch: usize,
    pub images_per_second: f64,
}

#[derive(Serialize)]
struct Row {
    threads: usize,
    seconds: f64,
    images: usize,
    images_per_second: f64,
    /// Images a second over the ring's rate with full batches.
    ratio: f64,
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    mean_batch: f64,
    /// Upload copies for each batch: one for each run of neighbouring rows.
    copies_a_batch: f64,
    upload: bool,
    within_bound: bool,
}

pub fn run(args: &ClientsArgs) -> Result<Outcome> {
    let (model, _) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let defaults = if small { &CPU_THREADS[..] } else { &GPU_THREADS };
    let threads = if args.threads.is_empty() { defaults } else { &args.threads };
    let seconds = args.seconds.unwrap_or(if small { 1.0 } else { 10.0 });
    let batch = batch_of(&args.batcher, &device);
    let options = json!({
        "threads": threads, "seconds": seconds, "batch": batch, "slots": args.batcher.on_device.slots(),
        "compute_streams": args.batcher.on_device.compute_streams,
        "max_delay_ms": args.batcher.max_delay, "spin": args.batcher.spin, "images": IMAGES,
    });
    let mut record = Record::start("clients", &device, Some(model.name()), options, &args.report)?;
    let served = Served::build(&model, &device, &args.batcher, args.place.kernels, seconds.min(2.0))?;
    record.note("ring");
    let ring = served.ring_images_per_second;
    let p99_bound_seconds = BOUND_BATCHES * batch as f64 / ring;

    let all = Duration::from_secs_f64((1.0 + WARM_UP) * seconds * threads.len() as f64);
    let bar = report::timed_bar(all, "clients  {pos} images, {rate} a second, {eta} left, {msg}");
    let mut rows = Vec::new();
    for &count in threads {
        bar.set_message(format!("{count} threads"));
        let measured = stop::complete(measure(&served, count, seconds, p99_bound_seconds, &bar))?;
        let Some(row) = measured else { break };
        rows.push(row);
        record.note(&format!("{count} threads"));
    }
    bar.finish_and_clear();
    ensure_some(&rows, "a number of threads")?;
    let ring = served.ring_figure();
    let figures = Figures { upload: true, includes: INCLUDES, ring, p99_bound_seconds, rows };
    record.finish(&args.report, &figures, |out| print(&figures, out), |about| plot(&figures, about).svg())?;
    Ok(Outcome::AllGood)
}

/// Images in the largest batch.
pub fn batch_of(args: &BatcherArgs, device: &Device) -> usize {
    args.batch.iter().copied().max().unwrap_or(if setup::is_cpu(device) { CPU_BATCH } else { GPU_BATCH })
}

/// The batcher of an engine, before it is built.
pub fn batcher_of(engine: &Engine, args: &BatcherArgs) -> BatcherBuilder {
    let batcher = engine.batcher();
    match args.max_delay {
        Some(ms) => batcher.max_delay(Duration::from_secs_f64(ms * 1e-3)),
        None => batcher,
    }
}

impl Served {
    /// Builds the engine and its batcher, learns the answers, and measures the ring for this many seconds.
    pub fn build(model: &Model, device: &Device, args: &BatcherArgs, kernels: Kernels, seconds: f64) -> Result<Self> {
        let batch = batch_of(args, device);
        let producers = PRODUCERS.min(setup::cores());
        let sizes = match &args.batch[..] {
            [] | [_] if setup::is_cpu(device) => Sizes::Exactly(vec![batch]),
            [] | [_] => Sizes::UpTo(batch),
            all => Sizes::Exactly(all.to_vec()),
        };
        let SlotsArgs { compute_streams, .. } = args.on_device;
        let slots = args.on_device.slots();
        let ring = Ring { slots, compute_streams, producers, ..Ring::new(sizes, kernels) };
        let waiting = if args.spin { Waiting::Spin } else { Waiting::default() };
        let engine = setup::build(setup::engine_builder(model, device, &ring).waiting(waiting))?;
        let images = Images::learn(&engine, IMAGES)?;
        let limit = Duration::from_secs_f64(seconds);
        let bar = report::timed_bar(limit, "ring     {pos} images, {rate} a second, {eta} left");
        let load = Load { engine: &engine, rows: images.all(), batch, producers, limit };
        let run = load.run(|| bar.inc(batch as u64))?;
        bar.finish_and_clear();
        let batch_seconds = run.batch_seconds().context("the ring answered no batch in the time given")?;
        let batcher = batcher_of(&engine, args).build()?;
        Ok(Self { images, engine, batcher, batch, ring_images_per_second: batch as f64 / batch_seconds })
    }

    /// The ring's rate, as an entry of the report.
    pub fn ring_figure(&self) -> RingFigure {
        let images_per_second = self.ring_images_per_second;
        RingFigure { upload: true, includes: RING_INCLUDES, batch: self.batch, images_per_second }
    }
}

fn measure(served: &Served, threads: usize, seconds: f64, bound: f64, bar: &ProgressBar) -> Result<Row> {
    let limit = Duration::from_secs_f64(seconds);
    let warm = limit.mul_f64(WARM_UP);
    let (start, latencies) = (Instant::now(), Mutex::new(Vec::new()));
    let counted = AtomicUsize::new(0);
    let stats = Mutex::new(None);
    on_threads(threads, |thread| {
        let mut own: Vec<f32> = Vec::new();
        let mut number = thread;
        loop {
            let asked = Instant::now();
            let since = asked - start;
            if since >= warm + limit || stop::requested() {
                break;
            }
            if since >= warm && thread == 0 && own.is_empty() {
                let before = served.batcher.stats();
                stats.lock().map_err(|_| anyhow!("another thread panicked"))?.get_or_insert(before);
            }
            let answer = served.batcher.submit(served.images.pixels(number))?.wait()?;
            if since >= warm {
                own.push(asked.elapsed().as_secs_f32());
            }
            // Only images that are answered within the window count.
            if (warm..warm + limit).contains(&start.elapsed()) {
                counted.fetch_add(1, Ordering::Relaxed);
                bar.inc(1);
            }
            served.images.check(number, answer.bytes())?;
            number += threads;
        }
        latencies.lock().map_err(|_| anyhow!("another thread panicked"))?.append(&mut own);
        Ok(())
    })?;
    let before = stats.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
    let mut sorted = latencies.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
    sorted.sort_by(f32::total_cmp);
    let images = counted.into_inner();
    anyhow::ensure!(images > 0, "{threads} threads: no image was answered in {seconds} s; measure longer");
    let (mean_batch, copies_a_batch) = since(before.as_ref(), &served.batcher.stats());
    let images_per_second = images as f64 / seconds;
    let p99_seconds = percentile(&sorted, 0.99);
    Ok(Row {
        threads,
        seconds,
        images,
        images_per_second,
        ratio: images_per_second / served.ring_images_per_second,
        p50_seconds: percentile(&sorted, 0.5),
        p95_seconds: percentile(&sorted, 0.95),
        p99_seconds,
        mean_batch,
        copies_a_batch,
        upload: true,
        within_bound: p99_seconds <= bound,
    })
}

/// Mean images and mean upload copies of a batch between two snapshots of the batcher's counters.
pub fn since(before: Option<&BatcherStats>, after: &BatcherStats) -> (f64, f64) {
    let [rows, runs, batches] = [BatcherStats::rows, |stats: &BatcherStats| stats.runs, BatcherStats::batches]
        .map(|count: fn(&BatcherStats) -> u64| (count(after) - before.map_or(0, count)) as f64);
    (rows / batches.max(1.0), runs / batches.max(1.0))
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let Figures { ring, p99_bound_seconds, .. } = figures;
    let heads = ["threads", "images/s", "ratio", "p50", "p95", "p99", "batch", "copies"].map(Figure);
    let mut table = Table::new(&[&heads[..], &[Word("in bound")]].concat());
    for row in &figures.rows {
        let [p50, p95, p99] = [row.p50_seconds, row.p95_seconds, row.p99_seconds].map(report::time);
        let (threads, ratio) = (row.threads.to_string(), format!("{:.3}", row.ratio));
        let held = if row.within_bound { "yes" } else { "no" };
        let rate = format!("{:.0}", row.images_per_second);
        let [batch, copies] = [row.mean_batch, row.copies_a_batch].map(|mean| format!("{mean:.1}"));
        table.row([threads, rate, ratio, p50, p95, p99, batch, copies, held.to_owned()]);
    }
    table.print(out)?;
    let (batch, rate) = (ring.batch, ring.images_per_second);
    let bound = report::time(*p99_bound_seconds);
    writeln!(out, "\nWith the upload: {INCLUDES}.")?;
    writeln!(out, "ratio: the rate over the ring's {rate:.0} images/s with batches of {batch}, also with the upload.")?;
    writeln!(
        out,
        "in bound: p99 is at most {bound}, the time of {BOUND_BATCHES:.0} batches of {batch} at the ring's rate."
    )
}

fn plot(figures: &Figures, about: &str) -> Chart {
    let ring = figures.ring.images_per_second;
    let rate = Axis::new("images/s").with_zero();
    let mut rates = Panel::new("Throughput", Axis::new("threads").log2(), rate).line(ring, "ring, full batches");
    let bound = figures.p99_bound_seconds * 1e3;
    let late = Axis::new("latency, ms").with_zero();
    let mut latencies = Panel::new("Latency", Axis::new("threads").log2(), late).line(bound, "bound on p99");
    for row in &figures.rows {
        let threads = row.threads as f64;
        rates.point(Series::solid("single images through the batcher"), threads, row.images_per_second);
        for (name, seconds) in [("p50", row.p50_seconds), ("p95", row.p95_seconds), ("p99", row.p99_seconds)] {
            latencies.point(Series::solid(name), threads, seconds * 1e3);
        }
    }
    let title = "Clients: single images, each thread waiting for its answer (with the upload)";
    Chart { title: title.into(), about: about.into(), panels: vec![rates, latencies] }
}
