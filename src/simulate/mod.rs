//! Predictions of throughput and latency: the ring itself runs on a simulated device, in virtual time.

mod arrivals;
mod batcher;
mod driver;
mod random;
mod report;

use std::sync::Arc;
use std::time::Duration;

use crate::device::sim::{self, Link, Picos, SideBySide, Sim, SimOptions, SimProgram, Unit, picos};
use crate::device::{Device, HOST_MEMORY, Kind, Priority, Program};
use crate::error::Error;
use crate::ring::{Buckets, Core, RingSpec, Stage, Waiting};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

pub use report::{SimBound, SimLatency, SimReport, SimStage};

/// The input of [`simulate`]: rates, times, buffers and load. [`SimSpec::new`] has the defaults.
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// let overlapped = SimSpec { batches: 100, ..SimSpec::new(vec![(256, 1_000.0)]) };
/// let serial = SimSpec { slots: 1, ..overlapped.clone() };
/// assert!(simulate(&overlapped)?.images_per_s > 1.3 * simulate(&serial)?.images_per_s);
/// assert!(SimSpec { slots: 0, ..serial }.check().is_err());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SimSpec {
    /// The rate from host to device while nothing is downloaded, in GB/s.
    pub h2d_gbps: f64,
    /// The rate from device to host while nothing is uploaded, in GB/s.
    pub d2h_gbps: f64,
    /// The rate of each direction while both move bytes, in GB/s; a direction is never faster than alone.
    pub duplex_gbps: f64,
    /// The time of a copy before its first byte moves, in microseconds.
    pub copy_overhead_us: f64,
    /// Batch sizes, ascending, each with the time that the model takes alone, in microseconds.
    pub compute_us: Vec<(usize, f64)>,
    /// Bytes of an input row. Rows are padded to multiples of [`ROW_ALIGN`], and copied so.
    pub input_bytes_per_row: usize,
    /// Bytes of an output row.
    pub output_bytes_per_row: usize,
    /// Slots: batches on the device at once.
    pub slots: usize,
    /// [`EngineBuilder::compute_streams`](crate::EngineBuilder::compute_streams): batches that are computed side by side.
    /// `slots` is a multiple of it.
    pub compute_streams: usize,
    /// The gain from computing batches side by side. Together they are computed at 1 + `side_by_side` x (1 - part)
    /// times the rate of batches one after the other, where part is that rate divided by the highest rate in
    /// `compute_us`. With 0.5, batches of a size that reaches half of the highest rate gain a quarter.
    pub side_by_side: f64,
    /// Staging buffers.
    pub staging: usize,
    /// Result buffers. There must be more than producers x ahead, or all could be unread while every producer waits for
    /// one.
    pub results: usize,
    /// Threads that acquire, fill, submit and wait, each with a core of its own.
    pub producers: usize,
    /// The number of its submissions that a producer leaves unanswered while it fills the next batch: 0 for a producer
    /// that waits for each batch before it fills the next, 1 for one that waits for the previous batch after each
    /// submission.
    pub ahead: usize,
    /// The numbers of rows of the submissions, used in turn; empty for the largest batch.
    pub rows: Vec<usize>,
    /// The time to fill a batch, in microseconds.
    pub fill_us: f64,
    /// When batches are asked for.
    pub arrival: Arrival,
    /// Submissions in all; with a batcher, rows.
    pub batches: usize,
    /// A batcher between producers and ring, if there is one. Producers then have single rows.
    pub batcher: Option<SimBatcher>,
    /// Delays and faults.
    pub injections: Vec<Injection>,
    /// Whether the hazard checker checks every access, see [`EngineBuilder::check`](crate::EngineBuilder::check). It
    /// changes no figure, but the simulation takes longer.
    pub checked: bool,
}

/// A simulated [`Batcher`](crate::Batcher), which decides with the code of the library's batcher.
/// [`SimBatcher::default`] has the library's defaults.
///
/// Producers are the batcher's clients: each has one row at a time, fills it in [`SimSpec::fill_us`], and waits for the
/// answer. In a closed loop there are [`SimSpec::producers`] clients, otherwise as many as there are rows under way.
///
/// ```
/// use trefoil::simulate::{SimBatcher, SimSpec, simulate};
/// let sizes = vec![(1, 160.0), (8, 330.0), (32, 670.0)];
/// let clients = |producers| SimSpec { producers, batcher: Some(SimBatcher::default()), ..SimSpec::new(sizes.clone()) };
/// let (alone, crowd) = (simulate(&clients(1))?, simulate(&clients(64))?);
/// assert!(alone.latency.p50_us < 250.0); // a single request does not wait for company
/// assert!(crowd.mean_batch > 30.0);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimBatcher {
    /// [`BatcherBuilder::max_delay`](crate::BatcherBuilder::max_delay), in microseconds.
    pub max_delay_us: f64,
    /// [`BatcherBuilder::in_flight`](crate::BatcherBuilder::in_flight).
    pub in_flight: usize,
    /// The time that a sleeping thread takes to wake up, in microseconds: the batching thread after a commit, the
    /// delivering thread after a download, a client after its answer.
    pub wake_us: f64,
    /// The mean of a random time that is added to each wake-up and to the filling of each row, in microseconds. Without
    /// it all clients of a batch return at the same moment.
    pub jitter_us: f64,
    /// The seed of the jitter; equal seeds give equal jitter.
    pub seed: u64,
    /// Whether a row is refused if no page-locked row is free, as by [`WhenFull::Reject`](crate::WhenFull::Reject);
    /// otherwise it waits. Not possible in a closed loop, where a refused client would ask again at the same moment.
    pub rejects: bool,
    /// [`Request::deadline`](crate::Request::deadline) of every row, in microseconds; infinite for none.
    pub deadline_us: f64,
}

impl Default for SimBatcher {
    /// The options for an engine with three slots, without jitter and deadlines; rows wait for a place.
    fn default() -> Self {
        let (rejects, deadline_us) = (false, f64::INFINITY);
        Self { max_delay_us: 5_000.0, in_flight: 4, wake_us: 10.0, jitter_us: 0.0, seed: 1, rejects, deadline_us }
    }
}

/// When batches are asked for.
///
/// ```
/// use trefoil::simulate::{Arrival, SimSpec, simulate};
/// let spec = SimSpec { batches: 200, ..SimSpec::new(vec![(1, 500.0)]) };
/// let regular = simulate(&SimSpec { arrival: Arrival::Periodic { images_per_s: 1_500.0 }, ..spec.clone() })?;
/// let random = simulate(&SimSpec { arrival: Arrival::Poisson { images_per_s: 1_500.0, seed: 7 }, ..spec })?;
/// assert!(random.latency.p99_us > 2.0 * regular.latency.p99_us); // at the same mean rate some have to queue
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrival {
    /// As soon as a producer is free.
    Closed,
    /// At random and independent of each other. Requests queue for a producer.
    Poisson {
        /// Images a second, in the mean.
        images_per_s: f64,
        /// The same seed gives the same times.
        seed: u64,
    },
    /// At equal intervals. Requests queue for a producer.
    Periodic {
        /// Images a second.
        images_per_s: f64,
    },
}

/// Something that happens to one operation of the simulated device.
///
/// ```
/// use trefoil::simulate::{Effect, Injection, SimSpec, simulate};
/// # use trefoil::Stage;
/// let delay = Injection { stage: Stage::Compute, nth: 5, effect: Effect::DelayUs(3_000.0) };
/// let spec = SimSpec { batches: 20, ..SimSpec::new(vec![(32, 1_000.0)]) };
/// let delayed = simulate(&SimSpec { injections: vec![delay], ..spec.clone() })?;
/// let lost_us = 1e6 * (delayed.makespan_s - simulate(&spec)?.makespan_s);
/// assert!((lost_us - 3_000.0).abs() < 1.0); // compute is the bottleneck: what it loses, all lose
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Injection {
    /// The stage whose operations are counted.
    pub stage: Stage,
    /// The number of the affected operation, counted from 1 in the order of the calls.
    pub nth: usize,
    /// The effect.
    pub effect: Effect,
}

/// The effect of an [`Injection`].
///
/// ```
/// use trefoil::simulate::{Effect, Injection, SimSpec, simulate};
/// # use trefoil::Stage;
/// let fails = Injection { stage: Stage::Compute, nth: 5, effect: Effect::FailRun };
/// let report = simulate(&SimSpec { batches: 20, injections: vec![fails], ..SimSpec::new(vec![(32, 1_000.0)]) })?;
/// assert_eq!(report.answered, 4); // those before it
/// assert!(report.failed > 0 && report.fault.is_some());
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Effect {
    /// The call that enqueues the operation fails.
    RefuseCall,
    /// The operation fails when it has run, and the device with it.
    FailRun,
    /// The operation takes this many microseconds longer.
    DelayUs(f64),
}

impl SimSpec {
    /// A ring of three slots, one compute stream and four producers on a PCIe 5 x16 link. Its input is 224 x 224 RGB
    /// images, its output a thousand f32; the model takes `compute_us` microseconds at each batch size.
    pub fn new(compute_us: Vec<(usize, f64)>) -> Self {
        Self {
            h2d_gbps: 55.0,
            d2h_gbps: 55.0,
            duplex_gbps: 49.0,
            copy_overhead_us: 2.0,
            compute_us,
            input_bytes_per_row: 224 * 224 * 3,
            output_bytes_per_row: 4_000,
            slots: 3,
            compute_streams: 1,
            side_by_side: 0.5,
            staging: 7,
            results: 28,
            producers: 4,
            ahead: 1,
            rows: Vec::new(),
            fill_us: 0.0,
            arrival: Arrival::Closed,
            batches: 1_000,
            batcher: None,
            injections: Vec::new(),
            checked: false,
        }
    }

    /// Checks that the values are possible together.
    ///
    /// # Errors
    /// [`Error::Option`], which names the field.
    pub fn check(&self) -> Result<(), Error> {
        for (option, rate) in
            [("h2d_gbps", self.h2d_gbps), ("d2h_gbps", self.d2h_gbps), ("duplex_gbps", self.duplex_gbps)]
        {
            in_range(option, rate, 1e-3, 1e6, "GB/s")?;
        }
        in_range("copy_overhead_us", self.copy_overhead_us, 0.0, MOST_US, "microseconds")?;
        in_range("fill_us", self.fill_us, 0.0, MOST_US, "microseconds")?;
        for (option, value) in [
            ("input_bytes_per_row", self.input_bytes_per_row),
            ("output_bytes_per_row", self.output_bytes_per_row),
            ("slots", self.slots),
            ("compute_streams", self.compute_streams),
            ("staging", self.staging),
            ("producers", self.producers),
            ("batches", self.batches),
        ] {
            if value == 0 {
                return Err(Error::option(option, value, "at least 1"));
            }
        }
        if !self.slots.is_multiple_of(self.compute_streams) {
            let expected = format!("a multiple of the {} compute streams", self.compute_streams);
            return Err(Error::option("slots", self.slots, expected));
        }
        in_range("side_by_side", self.side_by_side, 0.0, 64.0, "times what is left")?;
        let held = if self.batcher.is_some() { 0 } else { self.producers.saturating_mul(self.ahead) };
        if self.results <= held {
            let expected = format!("more than producers x ahead, {held}: a blocked producer keeps its tickets");
            return Err(Error::option("results", self.results, expected));
        }
        self.check_sizes()?;
        if let Some(batcher) = &self.batcher {
            batcher.check(self)?;
        }
        if let Arrival::Poisson { images_per_s, .. } | Arrival::Periodic { images_per_s } = self.arrival {
            in_range("images_per_s", images_per_s, 1e-3, 1e12, "images a second")?;
        }
        for injection in &self.injections {
            if let Effect::DelayUs(delay) = injection.effect {
                in_range("delay", delay, 0.0, MOST_US, "microseconds")?;
            }
        }
        self.check_duration()
    }

    /// An error if the simulated time may be longer than the simulated clock counts.
    fn check_duration(&self) -> Result<(), Error> {
        let largest = self.largest() as f64;
        let copy =
            |(row, alone): (f64, f64)| 1e-3 * row * largest / alone.min(self.duplex_gbps) + self.copy_overhead_us;
        let copies: f64 = self.pitches().into_iter().zip([self.h2d_gbps, self.d2h_gbps]).map(copy).sum();
        let compute = self.compute_us.iter().fold(0.0, |most: f64, size| most.max(size.1));
        let batcher = self.batcher.map_or(0.0, |of| of.max_delay_us + 3.0 * of.wake_us + 4.0 * of.jitter_us);
        let arrival = match self.arrival {
            Arrival::Closed => 0.0,
            Arrival::Poisson { images_per_s, .. } | Arrival::Periodic { images_per_s } => 1e6 * largest / images_per_s,
        };
        let delays = self.injections.iter().filter_map(|injection| match injection.effect {
            Effect::DelayUs(delay) => Some(delay),
            Effect::RefuseCall | Effect::FailRun => None,
        });
        let batch = self.fill_us + copies + compute + batcher + arrival;
        let most = ((MOST_DURATION_US - delays.sum::<f64>()) / batch).floor() - FEW_BATCHES;
        if self.batches as f64 <= most {
            return Ok(());
        }
        let expected = format!("at most {}: with these times, more may take over 100 days", most.max(0.0));
        Err(Error::option("batches", self.batches, expected))
    }

    fn check_sizes(&self) -> Result<(), Error> {
        let sizes: Vec<usize> = self.compute_us.iter().map(|size| size.0).collect();
        if sizes.first().is_none_or(|&size| size == 0) || sizes.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::option("compute_us", format!("{sizes:?}"), "batch sizes of at least 1, ascending"));
        }
        for &(_, time) in &self.compute_us {
            in_range("compute_us", time, 0.0, MOST_US, "microseconds")?;
        }
        let largest = self.largest();
        match self.rows.iter().find(|rows| !(1..=largest).contains(rows)) {
            Some(rows) => Err(Error::option("rows", rows, format!("1 to {largest}, the largest batch size"))),
            None => Ok(()),
        }
    }

    fn largest(&self) -> usize {
        self.compute_us.last().map_or(0, |size| size.0)
    }

    /// The number of rows of submission `number`.
    fn rows_of(&self, number: usize) -> usize {
        if self.batcher.is_some() {
            return 1;
        }
        if self.rows.is_empty() { self.largest() } else { self.rows[number % self.rows.len()] }
    }
}

impl SimBatcher {
    fn check(&self, spec: &SimSpec) -> Result<(), Error> {
        in_range("max_delay_us", self.max_delay_us, 0.0, MOST_US, "microseconds")?;
        in_range("wake_us", self.wake_us, 0.0, MOST_US, "microseconds")?;
        in_range("jitter_us", self.jitter_us, 0.0, MOST_US, "microseconds")?;
        in_range("deadline_us", self.deadline_us, 0.0, f64::INFINITY, "microseconds")?;
        if self.rejects && spec.arrival == Arrival::Closed {
            return Err(Error::option("rejects", true, "false in a closed loop"));
        }
        if self.in_flight == 0 {
            return Err(Error::option("in_flight", 0, "at least 1"));
        }
        if !spec.rows.is_empty() {
            return Err(Error::option("rows", format!("{:?}", spec.rows), "none: a batcher takes single rows"));
        }
        match spec.injections.len() {
            0 => Ok(()),
            some => Err(Error::option("injections", some, "none with a batcher")),
        }
    }
}

/// The longest time of a single operation: an hour, in microseconds.
const MOST_US: f64 = 3.6e9;
/// The longest simulated time by the means of random times: 100 days, in microseconds. The clock counts 213 days of
/// picoseconds.
const MOST_DURATION_US: f64 = 100.0 * 24.0 * MOST_US;
/// A random time is at most 37 times its mean.
const FEW_BATCHES: f64 = 37.0;

fn in_range(option: &'static str, value: f64, least: f64, most: f64, unit: &str) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::option(option, value, format!("{least} to {most} {unit}")))
}

/// Runs the ring on a simulated device, in virtual time: the same code that runs on a GPU, with copies and compute
/// that take as long as `spec` says. The same spec gives the same report.
///
/// Host code takes no time except [`SimSpec::fill_us`], and the calls of a submission take effect at once.
///
/// ```
/// use trefoil::simulate::{SimSpec, simulate};
/// let spec = SimSpec { batches: 100, ..SimSpec::new(vec![(256, 9_200.0)]) };
/// let report = simulate(&spec)?;
/// assert!(report.images_per_s > 0.99 * 256.0 / 9.2e-3);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Option`] for what [`SimSpec::check`] says; [`Error::OutOfMemory`] for more buffers or producers than there is
/// memory for, whose rows take 256 bytes each; [`Error::Internal`] if the ring breaks one of its promises: a
/// wrong or reordered result, a lost credit, nothing left that could happen; [`Error::Fault`] with an
/// [`Error::Hazard`], where [`SimSpec::checked`] finds one. An injected fault is no error: the report has it.
pub fn simulate(spec: &SimSpec) -> Result<SimReport, Error> {
    spec.check()?;
    let (sim, device, core) = build(spec, false)?;
    let log = match &spec.batcher {
        None => driver::run(spec, &sim, &core)?,
        Some(batcher) => batcher::run(spec, batcher, &sim, &core)?,
    };
    drop(core); // what it frees is checked too
    match device.fault() {
        Some(fault) if is_hazard(&fault) => Err(fault),
        _ => Ok(report::report(spec, &sim, log)),
    }
}

fn is_hazard(fault: &Error) -> bool {
    matches!(fault, Error::Fault { cause, .. } if matches!(**cause, Error::Hazard { .. }))
}

/// The bytes of a row in the memory of the simulated device. The link is slower by the factor by which real rows are
/// longer.
const ROW_BYTES: usize = ROW_ALIGN;

/// An error if the simulation takes more host memory than is free.
fn afford(spec: &SimSpec, device: &Device) -> Result<(), Error> {
    device.afford(HOST_MEMORY, needed_bytes(spec, spec.largest())).map_err(|error| match error {
        Error::OutOfMemory { device, what, needed_bytes, free_bytes, .. } => {
            let left = free_bytes.saturating_sub(self::needed_bytes(spec, 0));
            let fitting = left / bytes_per_row(spec);
            let fitting_batch = Some(usize::try_from(fitting).unwrap_or(usize::MAX));
            Error::OutOfMemory { device, what, needed_bytes, free_bytes, fitting_batch }
        }
        other => other,
    })
}

/// The bytes that a run takes with batches of `largest` rows.
fn needed_bytes(spec: &SimSpec, largest: usize) -> u64 {
    let rows = bytes_per_row(spec).saturating_mul(largest as u64);
    rows.saturating_add(buffers(spec).saturating_mul(HANDLE_BYTES)).saturating_add(driver::bytes(spec))
}

/// The bytes that a run takes for each row of the largest batch.
fn bytes_per_row(spec: &SimSpec) -> u64 {
    let of_batcher = spec.batcher.as_ref().map_or(0, batcher::bytes_per_row);
    buffers(spec).saturating_mul(ROW_BYTES as u64).saturating_add(of_batcher)
}

/// The number of buffers: staging, results, and inputs and outputs of slots.
fn buffers(spec: &SimSpec) -> u64 {
    [spec.staging, spec.results, spec.slots, spec.slots].iter().fold(0, |sum, &n| n.saturating_add(sum)) as u64
}

/// The bytes of a buffer besides its rows: its handle, its event, its credit.
const HANDLE_BYTES: u64 = 512;

/// Makes the simulated device and a ring on it.
fn build(spec: &SimSpec, polls_advance: bool) -> Result<(Arc<Sim>, Device, Arc<Core>), Error> {
    let injections = spec.injections.iter().map(Injection::on_device).collect();
    let side_by_side = spec.side_by_side();
    let (sim, info) = Sim::new(SimOptions { link: spec.link(), side_by_side, injections, polls_advance });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info);
    afford(spec, &device)?;
    let device = if spec.checked { device.checked() } else { device };
    let sizes: Vec<(usize, Picos)> = spec.compute_us.iter().map(|&(size, us)| (size, picos(us * 1e-6))).collect();
    let program = SimProgram::new(&device, &sim, &sizes, ROW_BYTES, spec.slots)?;
    let program = program.on_streams(&device, spec.compute_streams)?;
    let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_BYTES])]);
    let ring = RingSpec {
        staging: spec.staging,
        results: spec.results,
        priority: Priority::Normal,
        acquire_limit: Duration::from_secs(10),
        waiting: Waiting::default(),
        output_kind: OutputKind::Features,
        buckets: Buckets::one(program.batch_sizes(), row.clone(), vec![row]),
        classes: vec![0],
        device_results: false,
        freed: None,
    };
    let core = Core::build(&device, Arc::new(program), ring)?;
    Ok((sim, device, core))
}

impl SimSpec {
    /// The bytes of an input row and of an output row that cross the link.
    fn pitches(&self) -> [f64; 2] {
        [self.input_bytes_per_row, self.output_bytes_per_row].map(|bytes| bytes.next_multiple_of(ROW_ALIGN) as f64)
    }

    fn side_by_side(&self) -> SideBySide {
        SideBySide { most: self.compute_streams, gain: self.side_by_side }
    }

    fn link(&self) -> Link {
        let [scale_in, scale_out] = self.pitches().map(|pitch| pitch / ROW_BYTES as f64);
        Link {
            in_alone: 1e9 * self.h2d_gbps / scale_in,
            in_duplex: 1e9 * self.duplex_gbps.min(self.h2d_gbps) / scale_in,
            out_alone: 1e9 * self.d2h_gbps / scale_out,
            out_duplex: 1e9 * self.duplex_gbps.min(self.d2h_gbps) / scale_out,
            overhead: picos(self.copy_overhead_us * 1e-6),
        }
    }
}

impl Injection {
    fn on_device(&self) -> sim::Injection {
        let effect = match self.effect {
            Effect::RefuseCall => sim::Effect::RefuseCall,
            Effect::FailRun => sim::Effect::FailRun,
            Effect::DelayUs(delay) => sim::Effect::Delay(picos(delay * 1e-6)),
        };
        sim::Injection { unit: unit(self.stage), nth: self.nth, effect }
    }
}

fn unit(stage: Stage) -> Unit {
    match stage {
        Stage::CopyIn => Unit::CopyIn,
        Stage::Compute => Unit::Compute,
        Stage::CopyOut => Unit::CopyOut,
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
