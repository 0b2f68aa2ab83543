//! `trefoil bench soak`: runs an engine and its batcher for long, opens and closes models meanwhile, and checks whether
//! anything grows.

mod beside;
mod flat;
mod table;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use trefoil::Device;

use super::args::SoakArgs;
use super::clients::{Served, batch_of};
use super::latencies::{Counted, Latencies};
use super::record::{Record, ensure_some};
use crate::threads::{join, spawn};
use crate::vitals::Vitals;
use crate::{Outcome, report, setup, stop};
use beside::Beside;

const GPU_THREADS: usize = 64;
const CPU_THREADS: usize = 4;
/// One of this many clients submits whole batches to the ring; the others submit single images to the batcher.
const WITH_BATCHES: usize = 4;
/// Seconds of a run of the ring alone beforehand, which shows that it works.
const WARM_UP: f64 = 1.0;
/// How long the threads of a closed engine may take to end on a busy machine.
const SETTLED: Duration = Duration::from_secs(5);

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    rows: Vec<Row>,
    /// The quantities that grew from the first third of the periods to the last, without the very first period.
    grown: Vec<String>,
    flat: bool,
}

/// The answers of a period, and the vitals at its end.
#[derive(Serialize, Clone, Default)]
struct Row {
    /// Seconds since the start.
    seconds: f64,
    answers: u64,
    answers_per_second: f64,
    /// Number of models opened, run and closed.
    opened: u64,
    p50_seconds: f64,
    p99_seconds: f64,
    #[serde(flatten)]
    vitals: Vitals,
}

const INCLUDES: &str = "single images through the batcher and whole batches through the ring, with copying from \
                        ordinary memory and the upload; every answer is compared with that of a run of one batch at a \
                        time, bit for bit";

pub fn run(args: &SoakArgs) -> Result<Outcome> {
    let (model, _) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let threads = args.threads.unwrap_or(if small { CPU_THREADS } else { GPU_THREADS });
    let batch = batch_of(&args.batcher, &device);
    let options = json!({
        "threads": threads, "seconds": args.seconds, "periods": args.periods, "batch": batch,
        "slots": args.batcher.on_device.slots(), "compute_streams": args.batcher.on_device.compute_streams,
        "max_delay_ms": args.batcher.max_delay, "spin": args.batcher.spin,
    });
    let mut record = Record::start("soak", &device, Some(model.name()), options, &args.report)?;
    let served = Served::build(&model, &device, &args.batcher, args.place.kernels, WARM_UP.min(args.seconds))?;
    let (latencies, is_over) = (Latencies::new(), AtomicBool::new(false));
    let soak = Soak { args, device: &device, served: &served, latencies, is_over };
    let rows = soak.run(threads)?;
    ensure_some(&rows, "a period")?;
    record.note("soaked");
    let grown = flat::grown(&rows);
    let figures = Figures { upload: true, includes: INCLUDES, flat: grown.is_empty(), grown, rows };
    let plot = |about: &str| table::plot(&figures, about).svg();
    record.finish(&args.report, &figures, |out| table::print(&figures, out), plot)?;
    Ok(if figures.flat { Outcome::AllGood } else { Outcome::SomeFailed })
}

/// The parts that all threads of the soak share.
struct Soak<'a> {
    args: &'a SoakArgs,
    device: &'a Device,
    served: &'a Served,
    latencies: Latencies,
    is_over: AtomicBool,
}

impl Soak<'_> {
    /// Runs the clients while models are opened and closed; the first failure ends all of them.
    fn run(&self, clients: usize) -> Result<Vec<Row>> {
        let submit = |client: usize| {
            let ended = match client % WITH_BATCHES == WITH_BATCHES - 1 {
                true => self.submit_batches(client),
                false => self.submit_images(client),
            };
            self.is_over.fetch_or(ended.is_err(), Ordering::Relaxed);
            ended
        };
        thread::scope(|scope| {
            let start = |client| spawn(scope, format!("trefoil-load-{client}"), move || submit(client));
            let started: Vec<_> = (0..clients).map(start).collect();
            self.is_over.fetch_or(started.iter().any(Result::is_err), Ordering::Relaxed);
            let rows = self.periods();
            self.is_over.store(true, Ordering::Relaxed);
            let ended: Vec<_> = started.into_iter().map(|thread| thread.and_then(join)).collect();
            ended.into_iter().collect::<Result<()>>()?;
            rows
        })
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed) && !stop::requested()
    }

    /// Runs a client that submits single images and waits for each answer.
    fn submit_images(&self, client: usize) -> Result<()> {
        let Served { batcher, images, .. } = self.served;
        for number in client.. {
            let asked = Instant::now();
            let answer = batcher.submit(images.pixels(number))?.wait()?;
            self.latencies.add(asked.elapsed());
            images.check(number, answer.bytes())?;
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    /// Runs a client that fills and submits whole batches.
    fn submit_batches(&self, client: usize) -> Result<()> {
        let Served { engine, images, batch: rows, .. } = self.served;
        for first in client.. {
            let asked = Instant::now();
            let mut batch = engine.acquire()?;
            (first..)
                .zip(batch.rows_mut().take(*rows))
                .for_each(|(number, row)| row.copy_from_slice(images.pixels(number)));
            let output = batch.submit(*rows)?.wait()?;
            (0..*rows).for_each(|_| self.latencies.add(asked.elapsed()));
            (0..*rows).try_for_each(|row| images.check(first + row, output.row(row)))?;
            if !self.goes_on() {
                break;
            }
        }
        Ok(())
    }

    /// Opens and closes models, and takes the vitals of the process at the end of each period.
    fn periods(&self) -> Result<Vec<Row>> {
        let (start, period) = (Instant::now(), Duration::from_secs_f64(self.args.seconds / self.args.periods as f64));
        let (mut beside, mut rows) = (Beside::new(&self.args.place, &self.served.images), Vec::new());
        let bar = report::progress_bar(self.args.periods as u64, "soak     {pos} of {len} periods, {eta} left, {msg}");
        let threads = Vitals::take(self.device).threads;
        for number in 1..=self.args.periods as u32 {
            let mut opened = 0;
            while start.elapsed() < period * number && self.goes_on() {
                beside.open_run_close()?;
                opened += 1;
            }
            let (vitals, latencies) = (self.settled(threads), self.latencies.take());
            if !self.goes_on() {
                break; // a part of a period compares with nothing
            }
            let row = Row::of(start.elapsed(), rows.last(), opened, &latencies, vitals);
            bar.set_message(format!("{:.0} answers/s", row.answers_per_second));
            bar.inc(1);
            rows.push(row);
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// The vitals once the threads of closed engines have ended, for which it waits.
    fn settled(&self, threads: u64) -> Vitals {
        let limit = Instant::now() + SETTLED;
        loop {
            let vitals = Vitals::take(self.device);
            if vitals.threads <= threads || Instant::now() > limit {
                return vitals;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Row {
    fn of(since: Duration, before: Option<&Self>, opened: u64, latencies: &Counted, vitals: Vitals) -> Self {
        let (seconds, answers) = (since.as_secs_f64(), latencies.answers());
        let took = seconds - before.map_or(0.0, |before| before.seconds);
        let [p50_seconds, p99_seconds] = [0.5, 0.99].map(|part| latencies.percentile(part));
        Self { seconds, answers, answers_per_second: answers as f64 / took, opened, p50_seconds, p99_seconds, vitals }
    }
}
