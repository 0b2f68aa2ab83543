//! What happened when: the intervals of recorded batches as plain data, the overlap in them, and timelines of them.

mod chrome;
mod lanes;
mod page;
mod report;
mod spans;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

pub use report::{TraceGaps, TraceLatency, TraceReport, TraceStageReport};

/// What finished on an engine that records, batch by batch; [`Engine::trace`](crate::Engine::trace) gives it.
///
/// Times are seconds on the host's clock, from the engine's build. Device times are those of timing events, moved to
/// the host's clock by an event that was recorded at the build and, where that put a copy before its submission or a
/// result behind its wait, by the little that is needed to undo it.
///
/// ```
/// use trefoil::model::Model;
/// use trefoil::trace::TraceStage;
/// use trefoil::{Device, Engine, Target};
/// let model = Model::open("weights/convnet28")?;
/// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// for _ in 0..3 {
///     engine.acquire()?.submit(4)?.wait()?;
/// }
/// let trace = engine.trace().expect("the engine records");
/// let computed = trace.intervals().iter().filter(|interval| interval.stage == TraceStage::Compute);
/// assert_eq!(computed.count(), 3);
/// println!("{}", trace.report());
/// std::fs::write(std::env::temp_dir().join("trace.html"), trace.to_html()).unwrap(); // opens in any browser
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    intervals: Vec<TraceInterval>,
    device: String,
    /// In the order of a batch.
    streams: Vec<TracedStream>,
    dropped: u64,
    model: TracedModel,
}

/// What a batch does on the device, and its stream or streams.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TracedStream {
    pub stage: TraceStage,
    /// Of several models: which.
    pub model: Option<Arc<str>>,
    /// Slots take them in turn.
    pub names: Vec<String>,
}

/// What ran, as far as it is known: for readers of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct TracedModel {
    #[serde(rename = "model")]
    pub name: String,
    /// The name of the device, as the driver gives it.
    pub device_name: String,
    /// Of each of the engine's sizes.
    pub programs: Vec<TracedProgram>,
}

/// What runs for batches at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TracedProgram {
    /// Rows of one run.
    pub batch: usize,
    /// Bytes copied in and out for each row.
    pub row_bytes: [usize; 2],
    pub layers: Vec<TracedLayer>,
}

/// A step of a program, with the work of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TracedLayer {
    /// Of several models: which.
    pub model: Option<String>,
    pub name: String,
    pub operation: String,
    pub kernel: String,
    pub flops: u64,
    pub bytes: u64,
}

/// A stage of one batch.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).batch(4).trace(true).build()?;
/// # for _ in 0..8 {
/// #     engine.acquire()?.submit(4)?.wait()?;
/// # }
/// # let trace = engine.trace().expect("the engine records");
/// let first = &trace.intervals()[0];
/// assert_eq!((first.batch, first.rows), (0, 4));
/// assert!(first.begin <= first.end);
/// assert_eq!(first.seconds(), first.end - first.begin);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TraceInterval {
    /// Counts the engine's batches, from 0.
    pub batch: u64,
    /// The slot that served it.
    pub slot: usize,
    /// Which of the engine's sizes it ran at, as [`Engine::sizes`](crate::Engine::sizes) has them.
    pub size: usize,
    /// Rows submitted.
    pub rows: usize,
    /// What was done.
    pub stage: TraceStage,
    /// Of an engine of several models: which one computed, by its name, or `mean`; the names are distinct.
    pub model: Option<Arc<str>>,
    /// The host thread that did it, for the host's stages; the names are distinct.
    pub thread: Option<Arc<str>>,
    /// Seconds from the engine's build.
    pub begin: f64,
    /// Seconds from the engine's build.
    pub end: f64,
}

/// What is done with a batch, in order.
///
/// ```
/// use trefoil::trace::TraceStage;
/// assert!(TraceStage::CopyIn.is_device() && !TraceStage::Fill.is_device());
/// assert!(TraceStage::ALL.is_sorted()); // in the order of a batch
/// assert_eq!(TraceStage::CopyOut.to_string(), "copy-out");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceStage {
    /// The host has the batch: from its acquisition to its submission.
    Fill,
    /// The host enqueues it.
    Submit,
    /// Staging → device.
    CopyIn,
    /// The model's program; of several models each one's.
    Compute,
    /// Device → result.
    CopyOut,
    /// A host thread blocks on the result.
    Wait,
    /// The host has the result: from its delivery to the drop of the output.
    Read,
}

impl TraceStage {
    /// All, in order.
    pub const ALL: [Self; 7] =
        [Self::Fill, Self::Submit, Self::CopyIn, Self::Compute, Self::CopyOut, Self::Wait, Self::Read];
    /// Those of the device, in order.
    pub const DEVICE: [Self; 3] = [Self::CopyIn, Self::Compute, Self::CopyOut];

    /// Whether the device does it.
    pub fn is_device(self) -> bool {
        Self::DEVICE.contains(&self)
    }
}

impl fmt::Display for TraceStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Fill => "fill",
            Self::Submit => "submit",
            Self::CopyIn => "copy-in",
            Self::Compute => "compute",
            Self::CopyOut => "copy-out",
            Self::Wait => "wait",
            Self::Read => "read",
        })
    }
}

impl TraceInterval {
    /// How long it took, in seconds.
    pub fn seconds(&self) -> f64 {
        self.end - self.begin
    }
}

impl Trace {
    pub(crate) fn new(intervals: Vec<TraceInterval>, device: String, streams: Vec<TracedStream>, dropped: u64) -> Self {
        Self { intervals, device, streams, dropped, model: TracedModel::default() }
    }

    /// Notes what ran.
    pub(crate) fn of(self, model: TracedModel) -> Self {
        Self { model, ..self }
    }

    /// Every interval that finished, by batch, then by stage. A batch is there once the device has finished it; its
    /// wait and its read are there when they are over.
    pub fn intervals(&self) -> &[TraceInterval] {
        &self.intervals
    }

    /// Those of one stage, by batch.
    pub fn stage(&self, stage: TraceStage) -> impl Iterator<Item = &TraceInterval> {
        self.intervals.iter().filter(move |interval| interval.stage == stage)
    }

    /// Batches that were finished before the oldest one here, and are forgotten.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How busy the stages were and how much of the copying lay under compute.
    pub fn report(&self) -> TraceReport {
        report::report(self)
    }

    /// The timeline in the trace event format, as Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open it:
    /// rows for the streams, the slots and the host's threads.
    pub fn to_chrome_json(&self) -> String {
        chrome::json(self)
    }

    /// The timeline as a page of its own, for any browser: streams, slots and threads over time, with the figures of
    /// the report on top. It holds everything that it shows and asks nothing of a network.
    pub fn to_html(&self) -> String {
        page::page(self)
    }
}

#[cfg(test)]
mod tests;
