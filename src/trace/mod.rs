//! Recorded batches as plain data: when each stage of each batch ran, the overlap of copies and compute, and timelines.

mod chrome;
mod lanes;
mod page;
mod report;
mod spans;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

pub use report::{TraceGaps, TraceLatency, TraceReport, TraceStageReport};

/// The finished stages of an engine that records, batch by batch; [`Engine::trace`](crate::Engine::trace) gives it.
///
/// Times are in seconds on the host's clock, counted from the engine's build. Times of the device are measured by
/// timing events. An event that was recorded at the build maps them to the host's clock; if a copy would then begin
/// before its submission, or a result come after its wait, the mapping is shifted by the small amount that corrects
/// this.
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
    /// The streams, in the order of a batch's stages.
    streams: Vec<TracedStream>,
    dropped: u64,
    model: TracedModel,
}

/// A stage of a batch on the device, and the streams on which it runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TracedStream {
    pub stage: TraceStage,
    /// The name of the model, if there are several.
    pub model: Option<Arc<str>>,
    /// The names of the streams; slots use them in turn.
    pub names: Vec<String>,
}

/// A description of the model and the device, for readers of a timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct TracedModel {
    #[serde(rename = "model")]
    pub name: String,
    /// The name of the device, as the driver gives it.
    pub device_name: String,
    /// The program for each of the engine's sizes.
    pub programs: Vec<TracedProgram>,
}

/// The program for batches of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TracedProgram {
    /// The number of rows of one run.
    pub batch: usize,
    /// The bytes that are copied in and out for each row.
    pub row_bytes: [usize; 2],
    pub layers: Vec<TracedLayer>,
}

/// A step of a program, with the work of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct TracedLayer {
    /// The name of the model, if there are several.
    pub model: Option<String>,
    pub name: String,
    pub operation: String,
    pub kernel: String,
    pub flops: u64,
    pub bytes: u64,
}

/// The interval in which one stage of one batch ran.
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
    /// The number of the batch, counted from 0.
    pub batch: u64,
    /// The slot that served the batch.
    pub slot: usize,
    /// The size at which the batch ran, as an index into [`Engine::sizes`](crate::Engine::sizes).
    pub size: usize,
    /// Rows submitted.
    pub rows: usize,
    /// The stage.
    pub stage: TraceStage,
    /// In an engine of several models: the name of the model that computed, or `mean`; the names are distinct.
    pub model: Option<Arc<str>>,
    /// For a stage of the host: the name of the thread that did it; the names are distinct.
    pub thread: Option<Arc<str>>,
    /// Seconds from the engine's build.
    pub begin: f64,
    /// Seconds from the engine's build.
    pub end: f64,
}

/// The stages of a batch, in order.
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
    /// The device runs the model; with several models, each model has a stage of its own.
    Compute,
    /// Device → result.
    CopyOut,
    /// A host thread blocks on the result.
    Wait,
    /// The host has the result: from its delivery to the drop of the output.
    Read,
}

impl TraceStage {
    /// All stages, in order.
    pub const ALL: [Self; 7] =
        [Self::Fill, Self::Submit, Self::CopyIn, Self::Compute, Self::CopyOut, Self::Wait, Self::Read];
    /// The stages of the device, in order.
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
    /// The length of the interval, in seconds.
    pub fn seconds(&self) -> f64 {
        self.end - self.begin
    }
}

impl Trace {
    pub(crate) fn new(intervals: Vec<TraceInterval>, device: String, streams: Vec<TracedStream>, dropped: u64) -> Self {
        Self { intervals, device, streams, dropped, model: TracedModel::default() }
    }

    /// Adds a description of the model and the device.
    pub(crate) fn of(self, model: TracedModel) -> Self {
        Self { model, ..self }
    }

    /// Every finished interval, ordered by batch, then by stage. The intervals of a batch appear once the device has
    /// finished it; its wait and its read appear when they are over.
    pub fn intervals(&self) -> &[TraceInterval] {
        &self.intervals
    }

    /// The intervals of one stage, ordered by batch.
    pub fn stage(&self, stage: TraceStage) -> impl Iterator<Item = &TraceInterval> {
        self.intervals.iter().filter(move |interval| interval.stage == stage)
    }

    /// The number of finished batches that are forgotten, because they are older than the oldest one here.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The report: how busy the stages were, and the share of copy time during which compute ran.
    pub fn report(&self) -> TraceReport {
        report::report(self)
    }

    /// The timeline in the trace event format, as Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing` open it:
    /// rows for the streams, the slots and the host's threads.
    pub fn to_chrome_json(&self) -> String {
        chrome::json(self)
    }

    /// The timeline as an HTML page for any browser: streams, slots and threads over time, with the figures of the
    /// report on top. The page loads nothing from a network.
    pub fn to_html(&self) -> String {
        page::page(self)
    }
}

#[cfg(test)]
mod tests;
