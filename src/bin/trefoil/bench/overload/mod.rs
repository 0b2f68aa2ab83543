//! `trefoil bench overload`: offers a batcher more rows than the device can compute, and checks what becomes of them.

mod account;
mod ask;
mod collect;
mod run;
mod table;

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use trefoil::{Batcher, Close, WhenFull};

use super::args::{OverloadArgs, Policy};
use super::clients::{RingFigure, Served, batch_of, batcher_of, since};
use super::latencies::Latencies;
use super::load::median;
use super::record::{Record, ensure_some};
use crate::{Outcome, report, setup, stop};
use account::{Account, Counts, Fairness, Told};
use ask::Mix;
use run::{Gauges, Run};

/// Threads that make requests for the clients of a batcher that refuses rows, and threads that take answers.
const SENDERS: usize = 8;
/// Rows of the batcher, in full batches: those that may be in flight by default, and four more.
const BATCHES: usize = 8;
/// The part of a run's time before its answers count.
const WARM_UP: f64 = 0.1;
/// A run of the saturated batcher lasts for this part of a run under overload.
const SATURATED: f64 = 0.25;
/// The longest time that a batcher may take to answer what it has.
const DRAINED: Duration = Duration::from_secs(60);
const INCLUDES: &str = "copying rows from ordinary memory into page-locked ones, the queue, upload, normalisation, \
                        network, probabilities, download; every answer is compared with that of a run of one batch at \
                        a time, bit for bit";

#[derive(Serialize)]
struct Figures {
    upload: bool,
    includes: &'static str,
    ring: RingFigure,
    /// The most rows that the batcher's queue may have.
    most_queued: usize,
    /// The least goodput under overload, over that of the saturated batcher.
    least: f64,
    rows: Vec<Row>,
    /// What is not as it should be.
    failed: Vec<String>,
    good: bool,
}

/// What a run measured.
#[derive(Serialize)]
struct Row {
    /// `saturated`, or what the batcher does when it is full.
    run: &'static str,
    /// The time within which answers count.
    seconds: f64,
    /// Rows due in a second, and those over the goodput of the saturated batcher before; `None` in a closed loop.
    due_per_second: Option<f64>,
    load: Option<f64>,
    /// The goodput: rows a second that were uploaded by their deadline and answered before their client gave up.
    answered_per_second: f64,
    /// The goodput over the mean of those of the saturated batcher before and after.
    ratio: Option<f64>,
    counts: Counts,
    batcher: Told,
    /// Disagreements between these counts.
    disagree: Vec<String>,
    most_queued: usize,
    mean_batch: f64,
    fairness: Option<Fairness>,
    normal: Times,
    high: Times,
    /// How long after its deadline a late answer came.
    late: Times,
    /// How long after its deadline the error came that tells of it.
    told: Times,
    /// How long after it was due a request was made.
    sent: Times,
    wrong: Option<String>,
}

/// Percentiles of latencies.
#[derive(Serialize, Clone, Copy, Default)]
struct Times {
    count: u64,
    p50_seconds: f64,
    p99_seconds: f64,
    max_seconds: f64,
}

impl Times {
    fn of(latencies: &Latencies) -> Self {
        let counted = latencies.take();
        let [p50_seconds, p99_seconds, max_seconds] = [0.5, 0.99, 1.0].map(|part| counted.percentile(part));
        Self { count: counted.answers(), p50_seconds, p99_seconds, max_seconds }
    }
}

pub fn run(args: &OverloadArgs) -> Result<Outcome> {
    let (model, _) = args.place.open_images()?;
    let device = setup::open_device(args.place.device)?;
    let small = args.report.quick || setup::is_cpu(&device);
    let seconds = args.seconds.unwrap_or(if small { 10.0 } else { 60.0 });
    let batch = batch_of(&args.batcher, &device);
    let rows = args.rows.unwrap_or(BATCHES * batch);
    let threads = SENDERS.min(setup::cores());
    let options = json!({
        "clients": args.clients, "load": args.load, "seconds": seconds, "when_full": args.when_full, "rows": rows,
        "request_rows": args.request_rows, "least": args.least, "seed": args.seed, "senders": threads,
        "batch": batch, "slots": args.batcher.on_device.slots(),
        "compute_streams": args.batcher.on_device.compute_streams,
        "max_delay_ms": args.batcher.max_delay, "spin": args.batcher.spin,
    });
    let mut record = Record::start("overload", &device, Some(model.name()), options, &args.report)?;
    let served = Served::build(&model, &device, &args.batcher, args.place.kernels, seconds.min(2.0))?;
    record.note("ring");
    let mix = Mix { most_rows: args.request_rows, batch_seconds: batch as f64 / served.ring_images_per_second };
    let overload = Overload { args, served: &served, mix, seconds, rows, threads };
    let mut measured = overload.rows(|run| record.note(run))?;
    ensure_some(&measured, "a run")?;
    compare(&mut measured);
    let failed = failed(&measured, rows, args.least);
    let figures = Figures {
        upload: true,
        includes: INCLUDES,
        ring: served.ring_figure(),
        most_queued: rows,
        least: args.least,
        good: failed.is_empty(),
        failed,
        rows: measured,
    };
    let plot = |about: &str| table::plot(&figures, about).svg();
    record.finish(&args.report, &figures, |out| table::print(&figures, out), plot)?;
    Ok(if figures.good { Outcome::AllGood } else { Outcome::SomeFailed })
}

/// The runs, one after the other.
struct Overload<'a> {
    args: &'a OverloadArgs,
    served: &'a Served,
    mix: Mix,
    seconds: f64,
    /// Rows of the batcher under overload.
    rows: usize,
    threads: usize,
}

impl Overload<'_> {
    /// Saturates a batcher before and after each run under overload; ends early when it is interrupted.
    fn rows(&self, mut note: impl FnMut(&str)) -> Result<Vec<Row>> {
        let (saturated, policies) = (SATURATED * self.seconds, &self.args.when_full);
        let all = (self.seconds + saturated) * policies.len() as f64 + saturated;
        let bar = report::timed_bar(Duration::from_secs_f64(all), "overload {eta} left, {msg}");
        let mut rows = Vec::new();
        let mut measure = |rows: &mut Vec<Row>, name: &str, run: &dyn Fn() -> Result<Row>| -> Result<bool> {
            bar.set_message(name.to_owned());
            let Some(row) = stop::complete(run())? else { return Ok(false) };
            rows.push(row);
            note(name);
            Ok(true)
        };
        let mut goes_on = measure(&mut rows, "saturated", &|| self.saturate(saturated))?;
        for &policy in policies {
            let best = rows.last().map_or(0.0, |row: &Row| row.answered_per_second);
            goes_on = goes_on && measure(&mut rows, policy.name(), &|| self.offer(policy, best))?;
            goes_on = goes_on && measure(&mut rows, "saturated", &|| self.saturate(saturated))?;
        }
        bar.finish_and_clear();
        Ok(rows)
    }

    /// Measures the most that a batcher answers: clients wait for their answers and ask again, with just enough rows for
    /// full batches, so that nobody waits for a free row.
    fn saturate(&self, seconds: f64) -> Result<Row> {
        let rows = BATCHES * self.served.batch;
        let batcher = self.batcher(rows, WhenFull::Wait)?;
        self.measure("saturated", &batcher, self.mix, seconds, |run| {
            run.closed_loop((rows / self.mix.most_rows).max(1))
        })
    }

    /// Offers a batcher more rows than the `best` rate.
    fn offer(&self, policy: Policy, best: f64) -> Result<Row> {
        // A client that waits for a free row needs a thread of its own. It asks for one row at a time: while it waited
        // for a second one, it would hold the answer to the first, and with it a result buffer of the engine.
        let (when_full, senders, mix) = match policy {
            Policy::Reject => (WhenFull::Reject, self.threads.min(self.args.clients), self.mix),
            Policy::Wait => (WhenFull::Wait, self.args.clients, Mix { most_rows: 1, ..self.mix }),
        };
        ensure!(best > 0.0, "the saturated batcher answered nothing in {} s; measure longer", SATURATED * self.seconds);
        let batcher = self.batcher(self.rows, when_full)?;
        let rate = self.args.load * best;
        let open_loop = |run: &Run| run.open_loop(self.args.clients, rate, senders, self.threads);
        let row = self.measure(policy.name(), &batcher, mix, self.seconds, open_loop)?;
        let due_per_second = (row.counts.asked + row.counts.held_back) as f64 / (self.seconds * (1.0 + WARM_UP));
        Ok(Row { due_per_second: Some(due_per_second), load: Some(due_per_second / best), ..row })
    }

    fn batcher(&self, rows: usize, when_full: WhenFull) -> Result<Batcher> {
        Ok(batcher_of(&self.served.engine, &self.args.batcher).rows(rows).when_full(when_full).build()?)
    }

    fn measure(
        &self,
        name: &'static str,
        batcher: &Batcher,
        mix: Mix,
        seconds: f64,
        clients: impl FnOnce(&Run) -> Result<Vec<Account>>,
    ) -> Result<Row> {
        let start = Instant::now();
        let begin = start + Duration::from_secs_f64(WARM_UP * seconds);
        let counts = begin..begin + Duration::from_secs_f64(seconds);
        let (images, seed) = (&self.served.images, self.args.seed);
        let run = Run { images, batcher, mix, seed, start, counts, gauges: Gauges::new() };
        let accounts = clients(&run)?;
        batcher.close(Close::Drain, DRAINED)?;
        let mut counts = Counts::default();
        accounts.iter().for_each(|account| counts += account.counts);
        let (stats, gauges) = (batcher.stats(), run.gauges);
        let told = Told::of(&stats);
        let [normal, high] = gauges.latencies.each_ref().map(Times::of);
        Ok(Row {
            run: name,
            seconds,
            due_per_second: None,
            load: None,
            answered_per_second: counts.counted as f64 / seconds,
            ratio: None,
            counts,
            batcher: told,
            disagree: counts.disagree(&told),
            most_queued: gauges.queued.load(Ordering::Relaxed),
            mean_batch: since(None, &stats).0,
            fairness: Fairness::of(&accounts),
            normal,
            high,
            late: Times::of(&gauges.late),
            told: Times::of(&gauges.told),
            sent: Times::of(&gauges.sent),
            wrong: gauges.wrong.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }
}

/// Compares the goodput of each run under overload with the mean of the saturated batcher before and after it.
fn compare(rows: &mut [Row]) {
    let goodput: Vec<f64> = rows.iter().map(|row| row.answered_per_second).collect();
    for index in (1..rows.len()).step_by(2) {
        let beside = [Some(goodput[index - 1]), goodput.get(index + 1).copied()];
        let best = median(&beside.into_iter().flatten().collect::<Vec<_>>());
        rows[index].ratio = Some(goodput[index] / best);
    }
}

/// What is not as it should be.
fn failed(rows: &[Row], most_queued: usize, least: f64) -> Vec<String> {
    let mut failed = Vec::new();
    for row in rows {
        let mut fails = |fails: bool, what: String| {
            if fails {
                failed.push(format!("{}: {what}", row.run));
            }
        };
        let Counts { wrong, unanswered, .. } = row.counts;
        fails(wrong > 0, format!("{wrong} wrong answers; {}", row.wrong.as_deref().unwrap_or_default()));
        fails(unanswered > 0, format!("{unanswered} rows were never answered"));
        row.disagree.iter().for_each(|what| fails(true, what.clone()));
        let is_bounded = row.load.is_none() || row.most_queued <= most_queued;
        fails(!is_bounded, format!("{} rows were queued, of {most_queued} that there are", row.most_queued));
        let ratio = row.ratio.unwrap_or(f64::INFINITY);
        fails(ratio.is_nan() || ratio < least, format!("goodput {ratio:.3} of the best, less than {least}"));
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(run: &'static str, answered_per_second: f64) -> Row {
        Row {
            run,
            seconds: 1.0,
            due_per_second: None,
            load: (run != "saturated").then_some(2.0),
            answered_per_second,
            ratio: None,
            counts: Counts::default(),
            batcher: Told { rejected: 0, expired: 0, uploaded: 0 },
            disagree: Vec::new(),
            most_queued: 0,
            mean_batch: 0.0,
            fairness: None,
            normal: Times::default(),
            high: Times::default(),
            late: Times::default(),
            told: Times::default(),
            sent: Times::default(),
            wrong: None,
        }
    }

    #[test]
    fn goodput_is_compared_with_that_before_and_after() {
        let mut rows = [row("saturated", 90.0), row("reject", 100.0), row("saturated", 110.0), row("wait", 55.0)];
        compare(&mut rows);
        assert_eq!(rows.each_ref().map(|row| row.ratio), [None, Some(1.0), None, Some(0.5)]);
        assert_eq!(failed(&rows, 8, 0.95), ["wait: goodput 0.500 of the best, less than 0.95"]);
        let mut nothing = [row("saturated", 0.0), row("reject", 0.0)];
        compare(&mut nothing);
        assert_eq!(failed(&nothing, 8, 0.0).len(), 1, "not a number");
    }

    #[test]
    fn what_fails_is_told() {
        let good = || Row { most_queued: 8, ratio: Some(0.95), ..row("reject", 1.0) };
        assert_eq!(failed(&[good()], 8, 0.95), [""; 0]);
        let wrong = Counts { wrong: 1, ..Counts::default() };
        let unanswered = Counts { unanswered: 2, ..Counts::default() };
        let rows = [
            Row { counts: wrong, wrong: Some("image 3".into()), ..good() },
            Row { counts: unanswered, ..good() },
            Row { disagree: vec!["one refused, two counted".into()], ..good() },
            Row { most_queued: 9, ..good() },
        ];
        let told = failed(&rows, 8, 0.95);
        let parts = ["1 wrong answers; image 3", "2 rows were never", "one refused", "9 rows were queued, of 8"];
        assert!(told.len() == 4 && told.iter().zip(parts).all(|(told, part)| told.contains(part)), "{told:?}");
    }
}
