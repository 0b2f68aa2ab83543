//! Figures of a trace: utilisation, overlap, latency.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::spans::{Span, common, covered, gaps, total};
use super::{Trace, TraceInterval, TraceStage};

/// The report of a [`Trace`]: how busy the stages were, and how much of the copy time compute ran. Times are in
/// seconds, shares from 0 to 1.
///
/// "The whole" is the time from the first copy-in to the last copy-out. The middle half leaves out a quarter of the
/// whole at each end, where the ring fills and drains.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// # for _ in 0..8 {
/// #     engine.acquire()?.submit(4)?.wait()?;
/// # }
/// # let trace = engine.trace().expect("the engine records");
/// let report = trace.report();
/// assert_eq!((report.batches, report.rows, report.dropped), (8, 32, 0));
/// assert!((0.0..=1.0).contains(&report.copy_under_compute));
/// assert!(report.slowest.is_device());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceReport {
    /// The device.
    pub device: String,
    /// Batches in the trace.
    pub batches: usize,
    /// Rows of these batches.
    pub rows: usize,
    /// Older batches that were forgotten.
    pub dropped: u64,
    /// The length of the whole.
    pub seconds: f64,
    /// The stages that occurred, in order.
    pub stages: Vec<TraceStageReport>,
    /// The device's stage with the longest total time.
    pub slowest: TraceStage,
    /// The gaps of the slowest stage, in the middle half.
    pub gaps: TraceGaps,
    /// The share of the copy time, in both directions, during which compute runs, over the whole.
    pub copy_under_compute: f64,
    /// The share of the copy time during which compute runs, in the middle half.
    pub copy_under_compute_middle: f64,
    /// Rows a second, counted over the batches that finished in the middle half.
    pub images_per_second: f64,
    /// The time from the call of `submit` to the end of the download.
    pub latency: TraceLatency,
}

/// One stage.
///
/// ```
/// # use trefoil::trace::TraceStage;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// # for _ in 0..8 {
/// #     engine.acquire()?.submit(4)?.wait()?;
/// # }
/// # let trace = engine.trace().expect("the engine records");
/// let report = trace.report();
/// let compute = report.stages.iter().find(|stage| stage.stage == TraceStage::Compute).unwrap();
/// assert!(compute.busy_seconds > 0.0 && compute.busy_seconds <= report.seconds);
/// assert!(compute.mean <= compute.spread.max);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TraceStageReport {
    /// The stage.
    pub stage: TraceStage,
    /// In an engine of several models: the model, in the reports that follow the one of all compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The time in which the stage was under way for at least one batch.
    pub busy_seconds: f64,
    /// The busy time as a share of the whole. Stages of several host threads that overlap count once.
    pub busy: f64,
    /// The busy time in the middle half as a share of it.
    pub busy_middle: f64,
    /// The mean time of a batch; with several models, from the beginning of the first one to the end of the last one.
    pub mean: f64,
    /// The percentiles.
    #[serde(flatten)]
    pub spread: TraceLatency,
}

/// Percentiles of a time.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// # for _ in 0..8 {
/// #     engine.acquire()?.submit(4)?.wait()?;
/// # }
/// # let trace = engine.trace().expect("the engine records");
/// let latency = trace.report().latency;
/// assert!(latency.p50 > 0.0 && latency.p50 <= latency.p90);
/// assert!(latency.p90 <= latency.p99 && latency.p99 <= latency.max);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TraceLatency {
    /// The median.
    pub p50: f64,
    /// Nine in ten take no longer.
    pub p90: f64,
    /// 99 in a hundred take no longer.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Times in which a stage had nothing under way.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// # for _ in 0..8 {
/// #     engine.acquire()?.submit(4)?.wait()?;
/// # }
/// # let trace = engine.trace().expect("the engine records");
/// let report = trace.report(); // of batches that were waited for one by one
/// let gaps = report.gaps;
/// assert!(gaps.longest <= gaps.seconds && gaps.seconds <= report.seconds / 2.0 + 1e-9);
/// assert_eq!(gaps.count == 0, gaps.seconds == 0.0);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TraceGaps {
    /// The number of gaps.
    pub count: usize,
    /// Their total length.
    pub seconds: f64,
    /// The length of the longest gap.
    pub longest: f64,
}

pub(super) fn report(trace: &Trace) -> TraceReport {
    let (whole, middle) = windows(trace);
    let spans = |stage, window| covered(trace.stage(stage).map(span), window);
    let under_compute = |window| {
        let copies = covered(trace.stage(TraceStage::CopyIn).chain(trace.stage(TraceStage::CopyOut)).map(span), window);
        share(common(&copies, &spans(TraceStage::Compute, window)), total(&copies))
    };
    let several = trace.streams.iter().filter(|stream| stream.model.is_some());
    let models: Vec<_> = several.map(|stream| (stream.stage, stream.model.clone())).collect();
    let of = |stage| std::iter::once((stage, None)).chain(models.iter().filter(move |of| of.0 == stage).cloned());
    let reports = TraceStage::ALL.into_iter().flat_map(of);
    let stages: Vec<TraceStageReport> =
        reports.filter_map(|(stage, model)| of_stage(trace, stage, model, whole, middle)).collect();
    let on_device = stages.iter().filter(|report| report.stage.is_device() && report.model.is_none());
    let slowest = on_device.max_by(|a, b| a.busy_seconds.total_cmp(&b.busy_seconds));
    let slowest = slowest.map_or(TraceStage::Compute, |report| report.stage);
    let idle = gaps(&spans(slowest, middle), middle);
    TraceReport {
        device: trace.device.clone(),
        batches: trace.stage(TraceStage::CopyOut).count(),
        rows: trace.stage(TraceStage::CopyOut).map(|interval| interval.rows).sum(),
        dropped: trace.dropped,
        seconds: whole.1 - whole.0,
        stages,
        slowest,
        gaps: TraceGaps {
            count: idle.len(),
            seconds: total(&idle),
            longest: idle.iter().map(|gap| gap.1 - gap.0).fold(0.0, f64::max),
        },
        copy_under_compute: under_compute(whole),
        copy_under_compute_middle: under_compute(middle),
        images_per_second: throughput(trace, whole, middle),
        latency: latency(trace),
    }
}

fn span(interval: &TraceInterval) -> Span {
    (interval.begin, interval.end)
}

fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// The span from the first copy-in to the last copy-out, and its middle half.
fn windows(trace: &Trace) -> (Span, Span) {
    let on_device = || trace.intervals.iter().filter(|interval| interval.stage.is_device());
    let begin = on_device().map(|interval| interval.begin).fold(f64::INFINITY, f64::min);
    let end = on_device().map(|interval| interval.end).fold(f64::NEG_INFINITY, f64::max);
    if begin > end {
        return ((0.0, 0.0), (0.0, 0.0));
    }
    let quarter = (end - begin) / 4.0;
    ((begin, end), (begin + quarter, end - quarter))
}

fn of_stage(
    trace: &Trace,
    stage: TraceStage,
    model: Option<Arc<str>>,
    whole: Span,
    middle: Span,
) -> Option<TraceStageReport> {
    let of = || trace.stage(stage).filter(|interval| model.is_none() || interval.model == model);
    let times = times(of());
    if times.is_empty() {
        return None;
    }
    let busy = |window| total(&covered(of().map(span), window));
    Some(TraceStageReport {
        stage,
        model: model.as_deref().map(String::from),
        busy_seconds: busy(whole),
        busy: share(busy(whole), whole.1 - whole.0),
        busy_middle: share(busy(middle), middle.1 - middle.0),
        mean: times.iter().sum::<f64>() / times.len() as f64,
        spread: TraceLatency::of(times),
    })
}

/// The time of each batch, from the beginning of its first interval to the end of its last one.
fn times<'a>(intervals: impl Iterator<Item = &'a TraceInterval>) -> Vec<f64> {
    let mut batches: Vec<(u64, Span)> = Vec::new();
    for &TraceInterval { batch, begin, end, .. } in intervals {
        match batches.last_mut() {
            Some((last, span)) if *last == batch => *span = (span.0.min(begin), span.1.max(end)),
            _ => batches.push((batch, (begin, end))),
        }
    }
    batches.into_iter().map(|(_, (begin, end))| end - begin).collect()
}

/// Rows per second between the first and the last end within the middle half; over the whole if fewer than two batches
/// end there.
fn throughput(trace: &Trace, whole: Span, middle: Span) -> f64 {
    let inside = |interval: &&TraceInterval| (middle.0..=middle.1).contains(&interval.end);
    let ended: Vec<&TraceInterval> = trace.stage(TraceStage::CopyOut).filter(inside).collect();
    if let [first, rest @ .., last] = &ended[..]
        && last.end > first.end
    {
        let rows: usize = rest.iter().chain([last]).map(|interval| interval.rows).sum();
        return rows as f64 / (last.end - first.end);
    }
    let rows: usize = trace.stage(TraceStage::CopyOut).map(|interval| interval.rows).sum();
    share(rows as f64, whole.1 - whole.0)
}

fn latency(trace: &Trace) -> TraceLatency {
    let mut done = trace.stage(TraceStage::CopyOut).peekable();
    let mut times = Vec::new();
    for submit in trace.stage(TraceStage::Submit) {
        while done.next_if(|interval| interval.batch < submit.batch).is_some() {}
        if let Some(interval) = done.next_if(|interval| interval.batch == submit.batch) {
            times.push(interval.end - submit.begin);
        }
    }
    TraceLatency::of(times)
}

impl TraceLatency {
    /// The percentiles: each is the smallest time that is not below that part of all times; zeros without times.
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let Some(last) = times.len().checked_sub(1) else { return Self::default() };
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1).min(last)];
        Self { p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }
}

/// A time in a unit that suits it.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            s if s < 1e-3 => format!("{:.1} us", s * 1e6),
            s if s < 1.0 => format!("{:.3} ms", s * 1e3),
            s => format!("{s:.3} s"),
        };
        f.pad(&text)
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, batches, rows, dropped, .. } = self;
        write!(f, "{device}: {batches} batches, {rows} rows in {}", Time(self.seconds))?;
        writeln!(f, "{}", if *dropped > 0 { format!("; {dropped} older batches forgotten") } else { String::new() })?;
        if *batches == 0 {
            return write!(f, "nothing has finished");
        }
        let heads = ["mean", "median", "90 %", "99 %", "max"];
        let name = |of: &TraceStageReport| of.model.as_ref().map_or(of.stage.to_string(), |model| format!("- {model}"));
        let width = self.stages.iter().map(|of| name(of).chars().count()).fold(9, usize::max);
        write!(f, "{:<width$} {:>7} {:>7}", "stage", "busy", "middle")?;
        heads.iter().try_for_each(|head| write!(f, " {head:>10}"))?;
        for of in &self.stages {
            let TraceStageReport { busy, busy_middle, mean, spread, .. } = of;
            let (busy, middle) = (format!("{:.1} %", 100.0 * busy), format!("{:.1} %", 100.0 * busy_middle));
            write!(f, "\n{:<width$} {busy:>7} {middle:>7}", name(of))?;
            [*mean, spread.p50, spread.p90, spread.p99, spread.max]
                .iter()
                .try_for_each(|&time| write!(f, " {:>10}", Time(time)))?;
        }
        let [under, middle] = [self.copy_under_compute, self.copy_under_compute_middle].map(|part| 100.0 * part);
        write!(f, "\ncopy time under compute: {middle:.1} % in the middle half, {under:.1} % in all")?;
        let TraceGaps { count, seconds, longest } = self.gaps;
        write!(f, "\nslowest stage: {}", self.slowest)?;
        let gaps = if count == 1 { "gap" } else { "gaps" };
        write!(f, "; {count} {gaps} in the middle half, {} in all, the longest {}", Time(seconds), Time(longest))?;
        write!(f, "\n{:.1} rows/s, the upload inside; from submit to done: ", self.images_per_second)?;
        let TraceLatency { p50, p90, p99, max } = self.latency;
        write!(f, "median {}, 90 % {}, 99 % {}, max {}", Time(p50), Time(p90), Time(p99), Time(max))
    }
}
