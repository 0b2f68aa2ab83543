//! The result of a simulation.

use super::driver::{Answer, Log};
use super::{SimSpec, unit};
use crate::device::sim::{Picos, Sim};
use crate::error::Credits;
use crate::ring::Stage;

/// The result of [`simulate`](super::simulate).
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// let report = simulate(&SimSpec { batches: 100, ..SimSpec::new(vec![(256, 9_200.0)]) })?;
/// assert_eq!((report.submitted, report.answered, report.failed), (100, 100, 0));
/// assert!(report.makespan_s < report.serial_s); // copies were under compute
/// assert_eq!(report.credits.in_flight, 0);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SimReport {
    /// Images a second in the steady state: without the first and the last answers, unless too few would be left.
    pub images_per_s: f64,
    /// The time from the request (in a closed loop: from the moment when a producer is free) to the result.
    pub latency: SimLatency,
    /// The copy engine of uploads.
    pub copy_in: SimStage,
    /// The compute engine.
    pub compute: SimStage,
    /// The copy engine of downloads.
    pub copy_out: SimStage,
    /// The time from the start to the last answer, in seconds.
    pub makespan_s: f64,
    /// The throughput of the slowest engine if it works without a gap.
    pub bound: SimBound,
    /// The time of all batches if nothing overlaps, in seconds: the sum of the three stages.
    pub serial_s: f64,
    /// Batches submitted.
    pub submitted: usize,
    /// The mean number of rows in a batch.
    pub mean_batch: f64,
    /// Submissions that were answered with their own result; with a batcher, rows.
    pub answered: usize,
    /// Rows that a batcher refused because no row was free, see [`SimBatcher::rejects`](super::SimBatcher::rejects).
    pub refused: usize,
    /// Rows of a batcher that were not uploaded by their deadline.
    pub expired: usize,
    /// Submissions answered with an error of the device.
    pub failed: usize,
    /// The fault, if one was injected and occurred.
    pub fault: Option<String>,
    /// The ring's credits at the end.
    pub credits: Credits,
}

/// Percentiles of the latency, in microseconds.
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// let report = simulate(&SimSpec { batches: 100, ..SimSpec::new(vec![(256, 9_200.0)]) })?;
/// let latency = report.latency;
/// assert!(latency.p50_us >= 9_200.0); // never below what the model takes
/// assert!(latency.p50_us <= latency.p99_us && latency.p99_us <= latency.max_us);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SimLatency {
    /// The median.
    pub p50_us: f64,
    /// Nine in ten are answered within it.
    pub p90_us: f64,
    /// 99 in a hundred are answered within it.
    pub p99_us: f64,
    /// All are answered within it.
    pub max_us: f64,
}

/// The figures of one engine of the device.
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// let report = simulate(&SimSpec { batches: 100, ..SimSpec::new(vec![(256, 9_200.0)]) })?;
/// assert!(report.compute.utilisation > 0.99);
/// assert!(report.copy_in.busy_s < report.compute.busy_s);
/// assert!(report.copy_in.alone_us < report.copy_in.loaded_us); // downloads slow an upload down
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimStage {
    /// The time of a batch while everything else is idle, in microseconds; the mean over the submissions.
    pub alone_us: f64,
    /// The time of a batch under load, in microseconds: for a copy engine, while the other copy engine copies a batch
    /// too; for compute, the time of batches side by side divided by their number.
    pub loaded_us: f64,
    /// The time for which it worked, in seconds.
    pub busy_s: f64,
    /// The busy time as a share of the makespan.
    pub utilisation: f64,
}

/// The throughput of the slowest engine if it works without a gap, while the other engines are busy too and share the
/// link.
///
/// A run can be slightly faster if copies have an overhead: during the overhead of one copy, the other has the link
/// alone.
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// # use trefoil::Stage;
/// let report = simulate(&SimSpec { batches: 100, ..SimSpec::new(vec![(256, 9_200.0)]) })?;
/// assert_eq!(report.bound.stage, Stage::Compute);
/// assert!((report.bound.images_per_s - 256.0 / 9.2e-3).abs() < 1.0);
/// assert!(report.images_per_s > 0.99 * report.bound.images_per_s);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimBound {
    /// The engine.
    pub stage: Stage,
    /// Images a second of this engine; 0 if no batch was submitted.
    pub images_per_s: f64,
}

pub(super) fn report(spec: &SimSpec, sim: &Sim, log: Log) -> SimReport {
    let makespan_s = log.answers.last().map_or(0.0, |answer| seconds(answer.at));
    let stages = [Stage::CopyIn, Stage::Compute, Stage::CopyOut];
    let costs = Costs::of(spec, &log.submitted);
    let [copy_in, compute, copy_out] = stages.map(|stage| {
        let busy_s = seconds(sim.busy(unit(stage)));
        let [alone_us, loaded_us] = [&costs.alone_us, &costs.loaded_us].map(|mean| mean[stage as usize]);
        let utilisation = if makespan_s > 0.0 { busy_s / makespan_s } else { 0.0 };
        SimStage { alone_us, loaded_us, busy_s, utilisation }
    });
    let slowest = stages.into_iter().zip(costs.loaded_us).max_by(|a, b| a.1.total_cmp(&b.1));
    let (stage, slowest_us) = slowest.expect("there are three stages");
    let bound = if costs.rows > 0.0 { costs.rows / (slowest_us * 1e-6) } else { 0.0 };
    SimReport {
        images_per_s: throughput(&log.answers, spec.slots + spec.producers),
        latency: latency(&log.answers),
        copy_in,
        compute,
        copy_out,
        makespan_s,
        bound: SimBound { stage, images_per_s: bound },
        serial_s: costs.alone_us.iter().sum::<f64>() * 1e-6 * log.submitted.len() as f64,
        submitted: log.submitted.len(),
        mean_batch: costs.rows,
        answered: log.answers.len(),
        refused: log.refused,
        expired: log.expired,
        failed: log.failed,
        fault: log.fault.map(|fault| fault.to_string()),
        credits: log.credits,
    }
}

fn seconds(time: Picos) -> f64 {
    time as f64 / 1e12
}

/// The mean costs of the submissions.
struct Costs {
    rows: f64,
    /// The mean time of a batch on each engine, in microseconds, in the order of the stages.
    alone_us: [f64; 3],
    loaded_us: [f64; 3],
}

impl Costs {
    fn of(spec: &SimSpec, submitted: &[usize]) -> Self {
        let (mut rows, mut alone_us, mut loaded_us) = (0.0, [0.0; 3], [0.0; 3]);
        for &batch in submitted {
            let (alone, loaded) = times(spec, batch);
            rows += batch as f64;
            alone_us.iter_mut().zip(alone).for_each(|(sum, us)| *sum += us);
            loaded_us.iter_mut().zip(loaded).for_each(|(sum, us)| *sum += us);
        }
        loaded_us[Stage::Compute as usize] /= at_once(spec, submitted);
        let mean = |sum: f64| sum / submitted.len().max(1) as f64;
        Self { rows: mean(rows), alone_us: alone_us.map(mean), loaded_us: loaded_us.map(mean) }
    }
}

/// The largest factor by which batches side by side are faster than one after the other: that of the batches that use
/// the least of the device.
fn at_once(spec: &SimSpec, submitted: &[usize]) -> f64 {
    let rate = |size: &(usize, f64)| size.0 as f64 / size.1.max(1e-9);
    let highest = spec.compute_us.iter().map(rate).fold(1e-9, f64::max);
    let used = |rows: &usize| spec.compute_us.iter().find(|size| size.0 >= *rows).map_or(1.0, rate);
    let least = submitted.iter().map(used).fold(highest, f64::min) / highest;
    let streams = spec.compute_streams;
    streams as f64 * spec.side_by_side().speed(streams, streams as f64 * least)
}

/// The time of a batch of `rows` on each engine, in microseconds: alone, and with the other copy engine loaded.
fn times(spec: &SimSpec, rows: usize) -> ([f64; 3], [f64; 3]) {
    let [bytes_in, bytes_out] = spec.pitches().map(|pitch| rows as f64 * pitch);
    let [in_alone, out_alone] = [spec.h2d_gbps, spec.d2h_gbps].map(|gbps| gbps * 1e3); // bytes a microsecond
    let [in_duplex, out_duplex] = [in_alone, out_alone].map(|alone| alone.min(spec.duplex_gbps * 1e3));
    let both = (bytes_in / in_duplex).min(bytes_out / out_duplex);
    let loaded = |bytes: f64, duplex: f64, alone: f64| both + (bytes - both * duplex).max(0.0) / alone;
    let compute = spec.compute_us.iter().find(|size| size.0 >= rows).map_or(0.0, |size| size.1);
    let overhead = spec.copy_overhead_us;
    let alone = [overhead + bytes_in / in_alone, compute, overhead + bytes_out / out_alone];
    let copy_in = overhead + loaded(bytes_in, in_duplex, in_alone);
    (alone, [copy_in, compute, overhead + loaded(bytes_out, out_duplex, out_alone)])
}

/// Images per second, without the first and the last `under_way` answers if there are enough; otherwise from the start
/// to the last answer.
fn throughput(answers: &[Answer], under_way: usize) -> f64 {
    let rows = |answers: &[Answer]| answers.iter().map(|answer| answer.rows).sum::<usize>() as f64;
    if answers.len() > 4 * under_way {
        let steady = &answers[under_way..answers.len() - under_way];
        let took = seconds(steady[steady.len() - 1].at - steady[0].at);
        if took > 0.0 {
            return rows(&steady[1..]) / took;
        }
    }
    let took = answers.last().map_or(0.0, |answer| seconds(answer.at));
    if took > 0.0 { rows(answers) / took } else { 0.0 }
}

/// The percentiles: each is the smallest latency that is not below that part of all latencies.
fn latency(answers: &[Answer]) -> SimLatency {
    let mut sorted: Vec<Picos> = answers.iter().map(|answer| answer.latency).collect();
    sorted.sort_unstable();
    let Some(last) = sorted.len().checked_sub(1) else { return SimLatency::default() };
    let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).saturating_sub(1).min(last)] as f64 / 1e6;
    SimLatency { p50_us: at(50), p90_us: at(90), p99_us: at(99), max_us: at(100) }
}
