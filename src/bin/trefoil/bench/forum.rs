//! `trefoil bench forum`: threads that share one model, in five orders of locking, and the ring as it is meant to be
//! used.
//!
//! The five are those of a question that comes up again and again: which part of upload, forward pass and download of a
//! batch is to be under the lock, when many threads serve one GPU? In trefoil all three are one submission, which never
//! waits; what a thread can do before it is to acquire page-locked memory and copy its pixels there.

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;
use serde_json::json;
use trefoil::model::Model;
use trefoil::{Batch, Device, Engine, InputFormat, Output, OutputKind, Stage, Ticket};

use super::args::ForumArgs;
use super::load::{median, on_threads, steady};
use super::plot::{Bar, bars};
use super::record::Record;
use super::sources::Sources;
use crate::{Outcome, models, report, setup};

const GPU_BATCH: usize = 32;
const CPU_BATCH: usize = 4;
/// Runs of compute alone in each round.
const COMPUTE_RUNS: usize = 50;
/// A thread that finds no free batch for so long gives up.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(300);

/// What happens under the lock that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// Filled outside; submitted, waited for and read under it.
    FillOutside,
    /// Filled and read outside; submitted and waited for under it.
    FillAndReadOutside,
    /// Everything under it.
    AllInside,
    /// Only the submission under it.
    SubmitInside,
    /// No lock; each thread waits for its batch at once.
    NoLock,
    /// No lock; each thread fills its next batch while the last one is on its way.
    Recommended,
}

const ORDERS: [Order; 6] = [
    Order::FillOutside,
    Order::FillAndReadOutside,
    Order::AllInside,
    Order::SubmitInside,
    Order::NoLock,
    Order::Recommended,
];

/// Where the pixels are when a thread has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Start {
    /// In memory of the thread's own: they are copied.
    Pageable,
    /// In the batch that was acquired, as a camera or decoder would have written them.
    PageLocked,
}

/// A row of the table.
#[derive(Clone, Copy)]
struct Case {
    format: InputFormat,
    start: Start,
    order: Order,
}

#[derive(Serialize)]
struct Figures {
    upload: bool,
    threads: usize,
    batch: usize,
    /// By input format: images a second of compute with nothing else running, in each round. Without the upload.
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
    order: Order,
    name: &'static str,
    upload: bool,
    includes: String,
    images_per_second: f64,
    images_per_second_all: Vec<f64>,
    /// Of compute alone, the median over the rounds.
    ratio: f64,
}

/// An engine for one input format, with what its answers have to be.
struct Side {
    format: InputFormat,
    engine: Engine,
    sources: Sources,
}

pub fn run(args: &ForumArgs) -> Result<Outcome> {
    let (model, _) = models::open(args.place.model.as_deref())?;
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
    let bar = report::progress_bar((rounds * cases.len()) as u64, "forum    {pos} of {len} in {elapsed}, {msg}");
    let sides = [InputFormat::F32Nchw, InputFormat::U8Nhwc]
        .map(|format| Side::build(&model, &device, format, args, batch))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let mut compute = vec![Vec::new(); sides.len()];
    let mut rates = vec![Vec::new(); cases.len()];
    for round in 0..rounds {
        for (side, rates) in sides.iter().zip(&mut compute) {
            rates.push(side.compute_alone(batch)?);
        }
        for turn in 0..cases.len() {
            let index = (turn + round) % cases.len();
            let case = &cases[index];
            bar.set_message(case.order.name());
            let side = sides.iter().find(|side| side.format == case.format).expect("both formats are built");
            let load = Turns { side, case, batch, threads: args.threads, seconds };
            rates[index].push(load.images_per_second()?);
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

/// The five orders and the recommended one from ordinary memory; the recommended one from where the pixels may be else.
fn cases() -> Vec<Case> {
    let forum = ORDERS.map(|order| Case { format: InputFormat::F32Nchw, start: Start::Pageable, order });
    let more = [
        (InputFormat::F32Nchw, Start::PageLocked),
        (InputFormat::U8Nhwc, Start::Pageable),
        (InputFormat::U8Nhwc, Start::PageLocked),
    ];
    let more = more.map(|(format, start)| Case { format, start, order: Order::Recommended });
    forum.into_iter().chain(more).collect()
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::FillOutside => "1 fill | lock: submit, wait, read",
            Self::FillAndReadOutside => "2 fill | lock: submit, wait | read",
            Self::AllInside => "3 lock: fill, submit, wait, read",
            Self::SubmitInside => "4 fill | lock: submit | wait, read",
            Self::NoLock => "5 no lock: fill, submit, wait, read",
            Self::Recommended => "the ring as recommended, one ahead",
        }
    }
}

impl Case {
    fn includes(self) -> String {
        let copied = match self.start {
            Start::Pageable => "copying pixels from ordinary into page-locked memory, ",
            Start::PageLocked => "",
        };
        let converted = match self.format {
            InputFormat::U8Nhwc => "normalisation",
            _ => "conversion of f32 NCHW to the network's type and layout",
        };
        format!("{copied}upload, {converted}, network, probabilities, download, comparing the answers")
    }
}

impl Side {
    /// Every thread has a batch of its own to submit, and one more to fill.
    fn build(model: &Model, device: &Device, format: InputFormat, args: &ForumArgs, batch: usize) -> Result<Self> {
        let builder = Engine::builder(model).on(device).batch_sizes(&[batch]).slots(args.slots);
        let staging = 2 * args.threads + args.slots;
        let builder = builder.input(format).output(OutputKind::Probabilities).staging(staging);
        let engine = builder.acquire_limit(ACQUIRE_LIMIT).build()?;
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

/// Threads that take turns in one order.
struct Turns<'a> {
    side: &'a Side,
    case: &'a Case,
    batch: usize,
    threads: usize,
    seconds: f64,
}

impl Turns<'_> {
    fn images_per_second(&self) -> Result<f64> {
        let (lock, answered) = (Mutex::new(()), Mutex::new(Vec::new()));
        let start = Instant::now();
        let read = |number: usize, output: &Output| -> Result<()> {
            answered.lock().map_err(|_| anyhow!("another thread panicked"))?.push(start.elapsed().as_secs_f64());
            self.side.sources.check_all(number, output)
        };
        on_threads(self.threads, |thread| {
            let mut last: Option<(usize, Ticket)> = None;
            while start.elapsed().as_secs_f64() < self.seconds {
                last = self.turn(thread, &lock, last, &read)?;
            }
            last.map_or(Ok(()), |(number, ticket)| read(number, &ticket.wait()?))
        })?;
        let answered = answered.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
        let under_way = (2 * self.threads + self.side.engine.slots()).min(answered.len().saturating_sub(2) / 2);
        Ok(self.batch as f64 / steady(answered, under_way)?)
    }

    /// One batch of one thread. What is returned is on its way.
    fn turn(
        &self,
        thread: usize,
        lock: &Mutex<()>,
        last: Option<(usize, Ticket)>,
        read: &impl Fn(usize, &Output) -> Result<()>,
    ) -> Result<Option<(usize, Ticket)>> {
        let locked = || -> Result<MutexGuard<'_, ()>> { lock.lock().map_err(|_| anyhow!("another thread panicked")) };
        let outside = if self.case.order == Order::AllInside { Some(locked()?) } else { None };
        let (number, batch) = self.filled(thread)?;
        match self.case.order {
            Order::FillOutside => {
                let _held = locked()?;
                read(number, &batch.submit(self.batch)?.wait()?)?;
            }
            Order::FillAndReadOutside => {
                let held = locked()?;
                let output = batch.submit(self.batch)?.wait()?;
                drop(held);
                read(number, &output)?;
            }
            Order::AllInside => {
                read(number, &batch.submit(self.batch)?.wait()?)?;
                drop(outside);
                thread::yield_now(); // or the thread that has the lock would take it again and again
            }
            Order::SubmitInside => {
                let held = locked()?;
                let ticket = batch.submit(self.batch)?;
                drop(held);
                read(number, &ticket.wait()?)?;
            }
            Order::NoLock => read(number, &batch.submit(self.batch)?.wait()?)?,
            Order::Recommended => {
                let ticket = batch.submit(self.batch)?;
                if let Some((number, before)) = last {
                    read(number, &before.wait()?)?;
                }
                return Ok(Some((number, ticket)));
            }
        }
        Ok(None)
    }

    /// A batch with pixels in it: the thread's own, or what was there.
    fn filled(&self, thread: usize) -> Result<(usize, Batch)> {
        let mut batch = self.side.engine.acquire()?;
        if self.case.start == Start::PageLocked {
            return Ok((self.side.sources.number(&mut batch)?, batch));
        }
        self.side.sources.fill(&mut batch, thread);
        Ok((thread, batch))
    }
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let Figures { threads, batch, .. } = figures;
    writeln!(out, "{threads} threads, batches of {batch}\n")?;
    writeln!(out, "{:<9} {:<12} {:<36} {:>10} {:>8}", "pixels", "start in", "order", "images/s", "ratio")?;
    for row in &figures.rows {
        let start = if row.start == Start::Pageable { "pageable" } else { "page-locked" };
        let Row { format, name, images_per_second, ratio, .. } = row;
        writeln!(out, "{format:<9} {start:<12} {name:<36} {images_per_second:>10.0} {ratio:>8.3}")?;
    }
    writeln!(out)?;
    for compute in &figures.compute {
        let Compute { format, images_per_second, .. } = compute;
        writeln!(out, "compute alone on {format} that is on the device: {images_per_second:.0} images/s")?;
    }
    writeln!(out, "ratio: to compute alone of the same format. Every row but those has the upload in it, and:")?;
    let mut said: Vec<&str> = Vec::new();
    for row in figures.rows.iter().rev() {
        if !said.contains(&row.includes.as_str()) {
            said.push(&row.includes);
            let start = if row.start == Start::Pageable { "pageable" } else { "page-locked" };
            writeln!(out, "  {} {start}: {}", row.format, row.includes)?;
        }
    }
    Ok(())
}

fn plot(figures: &Figures, about: &str) -> String {
    let bar = |row: &Row| {
        let start = if row.start == Start::Pageable { "pageable" } else { "page-locked" };
        let group = if row.order == Order::Recommended { 1 } else { 0 };
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
