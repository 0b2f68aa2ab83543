//! The times of a ring's engines, each measured alone, and the simulated run that follows from them.

use std::cmp::Ordering;

use anyhow::Result;
use serde::Serialize;
use trefoil::simulate::SimSpec;
use trefoil::{Engine, Stage};

use super::network::Buffers;

/// Threads that submit and wait; they fill nothing.
pub const PRODUCERS: usize = 4;
/// How many submissions a producer leaves unanswered while it takes the next batch. All of them together have to last
/// longer than a thread that sleeps in the driver needs to learn of an answer; small batches do not last long.
pub fn ahead(batch: usize) -> usize {
    if batch <= 16 { 3 } else { 1 }
}

/// Seconds of a batch on each engine.
#[derive(Serialize, Clone, Copy, Default)]
pub struct Engines {
    pub copy_in: f64,
    pub compute: f64,
    pub copy_out: f64,
}

impl Engines {
    /// Infinite times, from which `best` starts.
    pub fn none() -> Self {
        Self { copy_in: f64::INFINITY, compute: f64::INFINITY, copy_out: f64::INFINITY }
    }

    /// The shorter time of each engine.
    pub fn best(self, other: Self) -> Self {
        Self {
            copy_in: self.copy_in.min(other.copy_in),
            compute: self.compute.min(other.compute),
            copy_out: self.copy_out.min(other.copy_out),
        }
    }

    /// The slowest engine and its time.
    pub fn slowest(self) -> (&'static str, f64) {
        let stages = [("copy-in", self.copy_in), ("compute", self.compute), ("copy-out", self.copy_out)];
        stages.into_iter().fold(stages[0], |slowest, stage| if stage.1 > slowest.1 { stage } else { slowest })
    }
}

/// Seconds of a batch on each engine: under load as in a run, and with nothing else running.
pub fn measure_alone(engine: &Engine, batch: usize, batches: usize) -> Result<(Engines, Engines)> {
    let loaded = |stage| engine.measure_loaded(stage, batch, batches);
    let idle = |stage| -> Result<f64> {
        let samples = engine.measure(stage, batch, batches)?;
        Ok(samples.iter().sum::<f64>() / samples.len() as f64)
    };
    let engines = Engines {
        copy_in: loaded(Stage::CopyIn)?,
        compute: loaded(Stage::Compute)?,
        copy_out: loaded(Stage::CopyOut)?,
    };
    let idle =
        Engines { copy_in: idle(Stage::CopyIn)?, compute: idle(Stage::Compute)?, copy_out: idle(Stage::CopyOut)? };
    Ok((engines, idle))
}

/// Staging and result buffers, enough that no producer waits for page-locked memory.
pub fn buffers(slots: usize, batch: usize) -> Buffers {
    let ahead = ahead(batch);
    Buffers { slots, staging: PRODUCERS * (ahead + 1) + 1, results: PRODUCERS * (ahead + 2) }
}

/// The simulated run of rows of these bytes, read and written. Link rates are those of the measured copies: idle, and
/// with both directions busy, the slower one if both have as many bytes, and else that of the direction with more bytes,
/// because a short copy is mostly latency.
pub fn simulated(
    batch: usize,
    slots: usize,
    row_bytes: [usize; 2],
    batches: usize,
    alone: Engines,
    idle: Engines,
) -> SimSpec {
    let [read, written] = row_bytes.map(|bytes| (batch * bytes.next_multiple_of(trefoil::ROW_ALIGN)) as f64);
    let gbps = |bytes: f64, seconds: f64| bytes / seconds * 1e-9;
    let [busy_in, busy_out] = [gbps(read, alone.copy_in), gbps(written, alone.copy_out)];
    let Buffers { slots, staging, results } = buffers(slots, batch);
    SimSpec {
        h2d_gbps: gbps(read, idle.copy_in),
        d2h_gbps: gbps(written, idle.copy_out),
        duplex_gbps: match read.total_cmp(&written) {
            Ordering::Greater => busy_in,
            Ordering::Less => busy_out,
            Ordering::Equal => busy_in.min(busy_out),
        },
        copy_overhead_us: 0.0,
        input_bytes_per_row: row_bytes[0],
        output_bytes_per_row: row_bytes[1],
        slots,
        staging,
        results,
        producers: PRODUCERS,
        ahead: ahead(batch),
        batches: batches.max(100),
        ..SimSpec::new(vec![(batch, alone.compute * 1e6)])
    }
}
