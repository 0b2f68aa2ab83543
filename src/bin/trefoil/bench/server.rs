//! `trefoil bench server`: finds the highest rate of random arrivals whose p99 latency keeps a limit.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use serde::Serialize;
use serde_json::json;
use trefoil::RowTicket;

use super::args::ServerArgs;
use super::arrivals::Arrivals;
use super::clients::{RingFigure, Served, batch_of, since};
use super::load::{on_threads, percentile};
use super::plot::{Axis, Chart, Panel, Series};
use super::record::{Record, ensure_some};
use crate::random::Random;
use crate::table::Column::{Figure, Word};
use crate::table::Table;
use crate::threads::{join, spawn};
use crate::{Outcome, report, setup, stop};

/// Threads that send, each a part of the arrivals: copying takes so long that one thread could not send all.
const SENDERS: usize = 8;
/// A rate is given up when an answer is later than this many limits.
const HOPELESS: f64 = 20.0;
/// Two rates that differ by less than this part count as equal.
const CLOSE: f64 = 0.02;
/// For a shorter time a thread spins: a sleep would take more than twice as long.
const SLEEP_LEAST: Duration = Duration::from_micros(200);
const INCLUDES: &str = "copying an image from ordinary memory into a page-locked row, waiting for more rows, upload, \
                        normalisation, network, probabilities, download; from when the image was due";

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    ring: RingFigure,
    limit_seconds: f64,
    /// The highest tried rate that kept the limit; `None` if none did.
    best_images_per_second: Option<f64>,
    /// The highest rate that kept the limit, over the ring's rate with full batches.
    ratio: Option<f64>,
    /// All rates, in the order in which they were tried.
    ladder: Vec<Step>,
}

#[derive(Serialize, Clone)]
struct Step {
    /// Mean number of images due in a second.
    images_per_second: f64,
    answered_per_second: f64,
    images: usize,
    p50_seconds: f64,
    p95_seconds: f64,
    p99_seconds: f64,
    max_seconds: f64,
    mean_batch: f64,
    upload: bool,
    /// Whether the rate was given up early because answers came far too late.
    given_up: bool,
    within_limit: bool,
}

/// One image that was sent and is not answered.
struct Sent {
    number: usize,
    due: Instant,
    ticket: RowTicket,
}

struct Server<'a> {
    served: &'a Served,
    senders: usize,
    seconds: f64,
    limit: f64,
    seed: u64,
}

pub fn run(args: &ServerArgs) -> Result<Outcome> {
    let (model, _) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let seconds = args.seconds.unwrap_or(if small { 1.0 } else { 5.0 });
    let steps = args.steps.unwrap_or(if small { 5 } else { 10 });
    let limit = args.limit * 1e-3;
    let senders = SENDERS.min(setup::cores());
    let options = json!({
        "limit_ms": args.limit, "seconds": seconds, "steps": steps, "most": args.most, "seed": args.seed,
        "senders": senders, "batch": batch_of(&args.batcher, &device), "slots": args.batcher.on_device.slots(),
        "compute_streams": args.batcher.on_device.compute_streams,
        "max_delay_ms": args.batcher.max_delay, "spin": args.batcher.spin,
    });
    let mut record = Record::start("server", &device, Some(model.name()), options, &args.report)?;
    let served = Served::build(&model, &device, &args.batcher, args.place.kernels, seconds.min(2.0))?;
    record.note("ring");
    let server = Server { served: &served, senders, seconds, limit, seed: args.seed };
    let bar = report::progress_bar(steps as u64, "server   rate {pos} of {len}, {eta} left, {msg}");
    let ladder = bisect(args.most.unwrap_or(served.ring_images_per_second), steps, |rate| {
        bar.set_message(format!("{rate:.0} images/s"));
        let step = stop::complete(server.offer(rate))?;
        record.note(&format!("{rate:.0} images/s"));
        bar.inc(1);
        Ok(step)
    })?;
    bar.finish_and_clear();
    ensure_some(&ladder, "a rate")?;
    let kept = ladder.iter().filter(|step| step.within_limit).map(|step| step.images_per_second);
    let best = kept.max_by(f64::total_cmp);
    let figures = Figures {
        upload: true,
        includes: INCLUDES,
        ring: served.ring_figure(),
        limit_seconds: limit,
        best_images_per_second: best,
        ratio: best.map(|best| best / served.ring_images_per_second),
        ladder,
    };
    record.finish(&args.report, &figures, |out| print(&figures, out), |about| plot(&figures, about).svg())?;
    Ok(Outcome::AllGood)
}

/// Bisects between the highest rate that kept the limit and the lowest that did not; the highest of all is tried first.
fn bisect(most: f64, steps: usize, mut offer: impl FnMut(f64) -> Result<Option<Step>>) -> Result<Vec<Step>> {
    let (mut low, mut high, mut rate) = (0.0, most, most);
    let mut ladder = Vec::new();
    for _ in 0..steps {
        let Some(step) = offer(rate)? else { break };
        let kept = step.within_limit;
        ladder.push(step);
        if kept {
            low = rate
        } else {
            high = rate
        }
        if high - low <= CLOSE * high {
            break;
        }
        rate = (low + high) / 2.0;
    }
    Ok(ladder)
}

impl Server<'_> {
    /// Measures one rate. Each sender has arrivals of its own; together they are as random as one stream.
    fn offer(&self, rate: f64) -> Result<Step> {
        let (latencies, hopeless) = (Mutex::new(Vec::<f32>::new()), AtomicBool::new(false));
        let before = self.served.batcher.stats();
        let start = Instant::now();
        on_threads(self.senders, |sender| {
            let (sent, answers) = mpsc::channel();
            let (own, sending) = thread::scope(|scope| -> Result<_> {
                let collect = || self.collect(answers, &hopeless);
                let collector = spawn(scope, format!("trefoil-collect-{sender}"), collect)?;
                let sending = self.send(sender, rate / self.senders as f64, start, &sent, &hopeless);
                drop(sent);
                Ok((join(collector), sending))
            })?;
            sending?;
            let mut own = own?;
            latencies.lock().map_err(|_| anyhow!("another thread panicked"))?.append(&mut own);
            Ok(())
        })?;
        let took = start.elapsed().as_secs_f64();
        let mut sorted = latencies.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
        sorted.sort_by(f32::total_cmp);
        let at = |part| percentile(&sorted, part);
        let given_up = hopeless.into_inner();
        let p99_seconds = at(0.99);
        Ok(Step {
            images_per_second: rate,
            answered_per_second: sorted.len() as f64 / took,
            images: sorted.len(),
            p50_seconds: at(0.5),
            p95_seconds: at(0.95),
            p99_seconds,
            max_seconds: at(1.0),
            mean_batch: since(Some(&before), &self.served.batcher.stats()).0,
            upload: true,
            given_up,
            // Without an answer the percentile is not a number, which keeps no limit.
            within_limit: !given_up && p99_seconds <= self.limit,
        })
    }

    /// Sends each image when it is due, or as soon as possible after that.
    fn send(
        &self,
        sender: usize,
        rate: f64,
        start: Instant,
        sent: &mpsc::Sender<Sent>,
        hopeless: &AtomicBool,
    ) -> Result<()> {
        let random = Random::new(self.seed.wrapping_mul(1_000).wrapping_add(sender as u64));
        let mut number = sender;
        for at in Arrivals::new(random, rate) {
            if at >= self.seconds || hopeless.load(Ordering::Relaxed) || stop::requested() {
                break;
            }
            let due = start + Duration::from_secs_f64(at);
            loop {
                let left = due.saturating_duration_since(Instant::now());
                match left {
                    Duration::ZERO => break,
                    left if left > SLEEP_LEAST => thread::sleep(left - SLEEP_LEAST / 2),
                    _ => thread::yield_now(),
                }
            }
            let ticket = self.served.batcher.submit(self.served.images.pixels(number))?;
            if sent.send(Sent { number, due, ticket }).is_err() {
                break; // the collector's own error counts
            }
            number += self.senders;
        }
        Ok(())
    }

    /// Waits for the answers of one sender, in the order sent, which is also the order of their batches.
    fn collect(&self, answers: mpsc::Receiver<Sent>, hopeless: &AtomicBool) -> Result<Vec<f32>> {
        let mut latencies = Vec::new();
        for Sent { number, due, ticket } in answers {
            let answer = ticket.wait()?;
            let late = due.elapsed().as_secs_f32();
            self.served.images.check(number, answer.bytes())?;
            latencies.push(late);
            if f64::from(late) > HOPELESS * self.limit {
                hopeless.store(true, Ordering::Relaxed);
            }
        }
        Ok(latencies)
    }
}

fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let heads = ["due/s", "answered/s", "images", "p50", "p95", "p99", "max", "batch"].map(Figure);
    let mut table = Table::new(&[&heads[..], &[Word("in limit")]].concat());
    for step in &figures.ladder {
        let [p50, p95, p99, max] =
            [step.p50_seconds, step.p95_seconds, step.p99_seconds, step.max_seconds].map(report::ms);
        let held = match step {
            Step { given_up: true, .. } => "no, given up",
            Step { within_limit: true, .. } => "yes",
            _ => "no",
        };
        let [due, answered] = [step.images_per_second, step.answered_per_second].map(|rate| format!("{rate:.0}"));
        let (images, batch) = (step.images.to_string(), format!("{:.1}", step.mean_batch));
        table.row([due, answered, images, p50, p95, p99, max, batch, held.to_owned()]);
    }
    table.print(out)?;
    writeln!(out, "p50, p95, p99, max: latencies in ms. in limit: whether p99 is within the limit.")?;
    if figures.ladder.iter().any(|step| step.images < 100) {
        writeln!(out, "the p99 of fewer than 100 images is the slowest of them: --seconds measures longer")?;
    }
    let limit = report::time(figures.limit_seconds);
    match (figures.best_images_per_second, figures.ratio) {
        (Some(best), Some(ratio)) => {
            writeln!(
                out,
                "\n{best:.0} images/s with p99 within {limit}, {ratio:.3} of the ring's rate with full batches"
            )?;
        }
        _ => writeln!(out, "\nno rate tried kept p99 within {limit}")?,
    }
    writeln!(out, "With the upload: {INCLUDES}.")
}

fn plot(figures: &Figures, about: &str) -> Chart {
    let late = Axis::new("latency, ms").with_zero();
    let limit = figures.limit_seconds * 1e3;
    let mut panel = Panel::new("Latency by rate", Axis::new("images due/s"), late).line(limit, "limit on p99");
    let mut ladder: Vec<&Step> = figures.ladder.iter().collect();
    ladder.sort_by(|a, b| a.images_per_second.total_cmp(&b.images_per_second));
    for step in ladder.into_iter().filter(|step| step.p99_seconds <= 4.0 * figures.limit_seconds) {
        for (name, seconds) in [("p50", step.p50_seconds), ("p95", step.p95_seconds), ("p99", step.p99_seconds)] {
            panel.point(Series::solid(name), step.images_per_second, seconds * 1e3);
        }
    }
    let title = "Server: Poisson arrivals (with the upload)";
    Chart { title: title.into(), about: about.into(), panels: vec![panel] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rate: f64, within_limit: bool) -> Step {
        Step {
            images_per_second: rate,
            answered_per_second: rate,
            images: 1,
            p50_seconds: 0.0,
            p95_seconds: 0.0,
            p99_seconds: 0.0,
            max_seconds: 0.0,
            mean_batch: 1.0,
            upload: true,
            given_up: false,
            within_limit,
        }
    }

    #[test]
    fn the_highest_rate_is_found() {
        let ladder = bisect(1_000.0, 20, |rate| Ok(Some(step(rate, rate <= 430.0)))).unwrap();
        let kept = ladder.iter().filter(|s| s.within_limit).map(|s| s.images_per_second).fold(0.0, f64::max);
        assert!((430.0 * (1.0 - CLOSE) - 1.0..=430.0).contains(&kept) && ladder.len() < 12, "{kept}");
        assert_eq!(bisect(1_000.0, 20, |rate| Ok(Some(step(rate, true)))).unwrap().len(), 1);
        assert_eq!(bisect(1_000.0, 3, |rate| Ok(Some(step(rate, false)))).unwrap().len(), 3);
    }
}
