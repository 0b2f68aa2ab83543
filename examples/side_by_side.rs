//! Measures engines side by side: what two gain over taking turns, how long an urgent model's answers take beside a bulk
//! one, what a pipeline of two stages does beside its slower stage, and how throughput grows with GPUs.
//!
//! ```sh
//! cargo run --release --example side_by_side [MODEL [NODE [URGENT [SECONDS [BATCH [ONLY]]]]]]
//! ```
//! MODEL is cut in two at NODE for the pipeline; ONLY is `rings`, `urgent`, `pipeline` or `fleets`. Rows are bytes in ordinary memory, copied into page-locked memory by as
//! many threads as it takes; every figure has the copy, the upload and the download inside, but for "compute of the
//! stages alone".

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use trefoil::{Batch, Device, Engine, EngineBuilder, Error, OutputKind, Target, Ticket, model::Model};

#[allow(dead_code, reason = "a test runs the measurements")]
fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |index: usize, default: &str| arguments.get(index).map_or(default, String::as_str).to_owned();
    let (model, urgent) = (argument(0, "weights/convnet28"), argument(2, "weights/convnet28"));
    let run = Run {
        model: &Model::open(model)?,
        node: &argument(1, "pool2"),
        urgent: &Model::open(urgent)?,
        time: Duration::from_secs_f64(argument(3, "1").parse().unwrap_or(1.0)),
        batch: argument(4, "32").parse().unwrap_or(32),
    };
    let device = Device::open(Target::Auto)?;
    let wanted = |what: &str| arguments.get(5).is_none_or(|only| only == what);
    if wanted("rings") {
        run.two_rings(&device)?;
    }
    if wanted("urgent") {
        run.urgent_beside_bulk(&device)?;
    }
    if wanted("pipeline") {
        run.pipeline(&device)?;
    }
    if wanted("fleets") {
        let gpus: Vec<Device> = (0..).map_while(|gpu| Device::open(Target::Cuda(gpu)).ok()).collect();
        run.fleets(&gpus)?;
    }
    Ok(())
}

/// What is measured.
pub struct Run<'a> {
    /// The bulk model.
    pub model: &'a Model,
    /// Where it is cut for the pipeline.
    pub node: &'a str,
    /// The urgent one.
    pub urgent: &'a Model,
    /// How long each measurement takes.
    pub time: Duration,
    /// Rows of a bulk batch.
    pub batch: usize,
}

impl Run<'_> {
    /// Two engines of batches of 8: in turn, and at once. Gives the gain.
    pub fn two_rings(&self, device: &Device) -> Result<f64, Error> {
        let build = || Engine::builder(self.model).on(device).batch_sizes(&[8]).staging(8).build();
        let (one, two) = (build()?, build()?);
        let acquire = |engine: &Engine| engine.acquire();
        let mut gains = Vec::new();
        for round in 0..3 {
            let alone = [&one, &two].map(|engine| self.rate(2, &|| acquire(engine)));
            let [first, second] = alone;
            let in_turn = 2.0 / (1.0 / first? + 1.0 / second?);
            let turn = AtomicUsize::new(0);
            let either = || acquire(if turn.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) { &one } else { &two });
            let at_once = self.rate(4, &either)?;
            println!(
                "two rings, batch 8, round {round}, with the upload: in turn {in_turn:.0}/s, at once {at_once:.0}/s, {:.3}",
                at_once / in_turn
            );
            gains.push(at_once / in_turn);
        }
        Ok(median(gains))
    }

    /// The time from submitting a row of the urgent model to its answer: alone, and beside a bulk load, with and without
    /// priority. Gives the 99th percentiles in seconds.
    pub fn urgent_beside_bulk(&self, device: &Device) -> Result<[f64; 3], Error> {
        let urgent = || Engine::builder(self.urgent).on(device).batch_sizes(&[1]);
        let (first, plain) = (urgent().high_priority().build()?, urgent().build()?);
        let bulk = Engine::builder(self.model).on(device).batch_sizes(&[self.batch]).staging(8).build()?;
        let beside = |engine: &Engine| self.beside(&|| bulk.acquire(), || self.latencies(engine));
        let cases = [
            ("alone", self.latencies(&first)?),
            ("beside bulk, high priority", beside(&first)?),
            ("beside bulk, no priority", beside(&plain)?),
        ];
        Ok(cases.map(|(what, mut times)| {
            times.sort_by(f64::total_cmp);
            let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
            let [p50, p99, most] = [0.5, 0.99, 1.0].map(at).map(|time| time * 1e3);
            println!(
                "urgent {what}, with the upload: p50 {p50:.3} ms, p99 {p99:.3} ms, at most {most:.3} ms, of {}",
                times.len()
            );
            p99 * 1e-3
        }))
    }

    /// A pipeline of the model's two parts, and each part alone. Gives its rate by that of the slower part.
    pub fn pipeline(&self, device: &Device) -> Result<f64, Error> {
        let (front, back) = self.model.split_at(self.node)?;
        let sizes = [self.batch];
        let build = |builder: EngineBuilder<'_>| builder.on(device).batch_sizes(&sizes).staging(8).build();
        let staged = build(Engine::builder(&front).then(&back))?;
        let whole = build(Engine::builder(self.model))?;
        // Alone, each on what it reads in the pipeline, with nothing that the pipeline does not do.
        let alone = [
            build(Engine::builder(&front).output(OutputKind::Features))?,
            build(Engine::builder(&back).input(trefoil::InputFormat::F32Nhwc))?,
        ];
        let mut ratios = Vec::new();
        for round in 0..3 {
            let stages = alone.each_ref().map(|engine| {
                let seconds = engine.measure(trefoil::Stage::Compute, self.batch, 20);
                seconds.map(|seconds| self.batch as f64 / median(seconds))
            });
            let [first, second] = [stages[0].clone()?, stages[1].clone()?];
            let (slower, in_turn) = (first.min(second), 1.0 / (1.0 / first + 1.0 / second));
            let (rate, whole) = (self.rate(4, &|| staged.acquire())?, self.rate(4, &|| whole.acquire())?);
            println!(
                "cut at {}, batch {}, round {round}: compute of the stages alone {first:.0}/s and {second:.0}/s, in turn \
                 {in_turn:.0}/s; with the upload pipeline {rate:.0}/s: {:.3} of the slower, {:.3} of in turn; the whole model {whole:.0}/s",
                self.node,
                self.batch,
                rate / slower,
                rate / in_turn
            );
            ratios.push(rate / slower);
        }
        Ok(median(ratios))
    }

    /// The model on one GPU, on two, on four, …
    pub fn fleets(&self, gpus: &[Device]) -> Result<(), Error> {
        let mut one = None;
        for count in [1, 2, 4, 8].into_iter().filter(|&count| count <= gpus.len()) {
            let builder = Engine::builder(self.model).batch_sizes(&[self.batch]).staging(12);
            let fleet = builder.build_on(&gpus[..count])?;
            let rates = (0..3).map(|_| self.rate(4 * count, &|| fleet.acquire())).collect::<Result<Vec<_>, _>>()?;
            let rate = median(rates.clone());
            let one = *one.get_or_insert(rate);
            println!(
                "{count} GPUs, batch {}, with the upload: {rate:.0}/s of {rates:.0?}, {:.3} of one",
                self.batch,
                rate / one
            );
            for device in fleet.stats() {
                println!("  {}: {} batches", device.target, device.batches);
            }
        }
        Ok(())
    }

    /// Images a second through `acquire` from threads that each keep two batches in flight.
    fn rate(&self, threads: usize, acquire: &(dyn Fn() -> Result<Batch, Error> + Sync)) -> Result<f64, Error> {
        self.load(threads, acquire, || {
            thread::sleep(self.time);
            Ok(())
        })
        .map(|(rate, ())| rate)
    }

    /// What `measure` gives while threads load the device through `acquire`.
    fn beside<T>(
        &self,
        acquire: &(dyn Fn() -> Result<Batch, Error> + Sync),
        measure: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let (rate, measured) = self.load(4, acquire, measure)?;
        println!("bulk meanwhile, batch {}, with the upload: {rate:.0}/s", self.batch);
        Ok(measured)
    }

    /// The images a second that threads get through `acquire` meanwhile, and what `measure` gives.
    fn load<T>(
        &self,
        threads: usize,
        acquire: &(dyn Fn() -> Result<Batch, Error> + Sync),
        measure: impl FnOnce() -> Result<T, Error>,
    ) -> Result<(f64, T), Error> {
        let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
        let produce = || -> Result<(), Error> {
            let mut tickets = std::collections::VecDeque::<Ticket>::new();
            let pixels =
                (0..self.model.preprocessing().input.elems()).map(|i| (i * 31 % 251) as u8).collect::<Vec<_>>();
            while !stop.load(Ordering::Relaxed) {
                let mut batch = acquire()?;
                batch.rows_mut().for_each(|row| row.copy_from_slice(&pixels));
                let rows = batch.capacity();
                tickets.push_back(batch.submit(rows)?);
                if tickets.len() > 2 {
                    done.fetch_add(tickets.pop_front().expect("just counted").wait()?.rows(), Ordering::Relaxed);
                }
            }
            tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))
        };
        thread::scope(|scope| {
            let producers: Vec<_> = (0..threads).map(|_| scope.spawn(produce)).collect();
            thread::sleep(self.time / 2); // until it is in full swing
            let (start, before) = (Instant::now(), done.load(Ordering::Relaxed));
            let measured = measure();
            let rate = (done.load(Ordering::Relaxed) - before) as f64 / start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            producers.into_iter().try_for_each(|producer| producer.join().expect("no producer panics"))?;
            Ok((rate, measured?))
        })
    }

    /// Seconds from submitting one row to its answer, one at a time, a millisecond apart.
    fn latencies(&self, engine: &Engine) -> Result<Vec<f64>, Error> {
        let mut times = Vec::new();
        let end = Instant::now() + self.time;
        while Instant::now() < end || times.len() < 2 {
            let mut batch = engine.acquire()?;
            batch.row_mut(0).fill(times.len() as u8);
            let start = Instant::now();
            drop(batch.submit(1)?.wait()?);
            times.push(start.elapsed().as_secs_f64());
            thread::sleep(Duration::from_millis(1));
        }
        Ok(times)
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}
