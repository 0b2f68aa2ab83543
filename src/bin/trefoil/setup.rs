//! From arguments to a device and an engine, with the defaults that depend on the device.

use std::io::{self, Write};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, anyhow};
use trefoil::model::Model;
use trefoil::{Device, DeviceInfo, Engine, EngineBuilder, Error, OutputKind, Size, Target, Tuning, TuningProgress};

use crate::cli::{Kernels, Tune};
use crate::{report, smi, stop};

/// A producer that finds no free batch for so long gives up: nothing here computes longer.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(300);

/// The batch sizes that an engine is built for.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// What the library finds good for the device.
    Default,
    /// One, and smaller ones for what does not fill it.
    UpTo(usize),
    /// These alone.
    Exactly(Vec<usize>),
    /// These, with free dimensions.
    Each(Vec<Size>),
}

/// Rows of a batch, and how many batches are under way.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Batch sizes.
    pub sizes: Sizes,
    /// Batches on the device at once.
    pub slots: usize,
    /// Of them, those that are computed side by side.
    pub compute_streams: usize,
    /// Threads that fill batches.
    pub producers: usize,
    /// What comes out.
    pub output: OutputKind,
    /// How its plans are made.
    pub kernels: Kernels,
}

impl Ring {
    /// Three slots, one compute stream, one producer, and probabilities where the network gives classes.
    pub fn new(sizes: Sizes, kernels: Kernels) -> Self {
        Self { sizes, slots: 3, compute_streams: 1, producers: 1, output: OutputKind::Probabilities, kernels }
    }
}

/// Opens the device asked for.
pub fn open_device(target: Target) -> Result<Device> {
    Device::open(target).map_err(|error| match error {
        Error::NoDevice { .. } => {
            anyhow!(
                "--device: {error}; `trefoil doctor` says what is there and what is wrong, `--device cpu` needs no GPU"
            )
        }
        other => match holders(&other, if let Target::Cuda(ordinal) = target { ordinal } else { 0 }) {
            holders if holders.is_empty() => other.into(),
            holders => anyhow!("{other}{holders}"),
        },
    })
}

/// Who holds the memory of the GPU of this ordinal, to be added to an error by which there is too little of it.
pub fn holders(error: &Error, ordinal: usize) -> String {
    const OUT_OF_MEMORY: i32 = 2;
    if !matches!(error, Error::Driver { code: OUT_OF_MEMORY, .. }) {
        return String::new();
    }
    let mut nvidia_smi = Command::new("nvidia-smi");
    nvidia_smi.arg(format!("--id={}", smi::visible(&ordinal.to_string())));
    nvidia_smi.args(["--query-compute-apps=pid,used_memory,process_name", "--format=csv,noheader"]);
    let text = smi::all_said(&mut nvidia_smi).unwrap_or_default();
    let holder = |line: &str| {
        let mut fields = line.splitn(3, ',').map(str::trim);
        let (process, bytes, name) = (fields.next()?, fields.next()?, fields.next()?.escape_debug());
        Some(format!("{name} (process {process}) has {bytes}"))
    };
    let holders: Vec<String> = text.lines().filter_map(holder).collect();
    if holders.is_empty() { String::new() } else { format!("; {}", holders.join(", ")) }
}

/// Builds an engine whose producers do not wait for each other.
pub fn build_engine(model: &Model, device: &Device, ring: &Ring) -> Result<Engine> {
    build(engine_builder(model, device, ring))
}

/// Builds with a bar: weights take as long as they are large.
pub fn build(builder: EngineBuilder<'_>) -> Result<Engine> {
    Ok(seen("engine   weights, kernels, memory: {elapsed}", || builder.build())?)
}

/// Does something of which nobody knows how long it takes.
pub fn seen<T>(template: &str, something: impl FnOnce() -> T) -> T {
    let bar = report::progress_bar(0, template);
    let done = something();
    bar.finish_and_clear();
    done
}

/// The builder of such an engine.
pub fn engine_builder<'a>(model: &'a Model, device: &Device, ring: &Ring) -> EngineBuilder<'a> {
    builder(model, ring).on(device)
}

/// The builder without a device.
pub fn builder<'a>(model: &'a Model, ring: &Ring) -> EngineBuilder<'a> {
    let builder = Engine::builder(model)
        .slots(ring.slots)
        .compute_streams(ring.compute_streams)
        .staging(ring.producers + ring.slots)
        .output(ring.output)
        .acquire_limit(ACQUIRE_LIMIT);
    let builder = tuned(builder, ring.kernels);
    match &ring.sizes {
        Sizes::Default => builder,
        Sizes::UpTo(largest) => builder.batch(*largest),
        Sizes::Exactly(sizes) => builder.batch_sizes(sizes),
        Sizes::Each(sizes) => builder.sizes(sizes),
    }
}

/// The builder with a precision and a choice of kernels and lanes; what is measured is seen as a bar.
pub fn tuned(builder: EngineBuilder<'_>, Kernels { tune, lanes, precision }: Kernels) -> EngineBuilder<'_> {
    let builder = builder.precision(precision.into());
    let builder = match lanes {
        Some(lanes) => builder.lanes(lanes),
        None => builder,
    };
    match tune {
        Tune::Off => builder.tuning(Tuning::Off),
        Tune::Cached => builder.tuning(Tuning::Cached),
        Tune::Full => {
            let bar = LazyLock::new(|| report::progress_bar(0, TUNING_BAR));
            let told = move |progress: &TuningProgress| {
                if progress.done == 0 {
                    bar.reset();
                    bar.set_length(progress.of as u64);
                    bar.set_prefix(progress.batch.to_string());
                }
                bar.set_position(progress.done as u64);
                bar.set_message(progress.shape.clone());
                if progress.shape.is_empty() {
                    bar.finish_and_clear();
                    bar.suspend(|| say_if_interrupted(progress));
                }
            };
            builder.tuning(Tuning::Full).on_tuning(told).tune_while(|| !stop::requested())
        }
    }
}

/// What is kept of a measurement that Ctrl-C has ended.
fn say_if_interrupted(progress: &TuningProgress) {
    let TuningProgress { batch, done, of, .. } = progress;
    if stop::requested() {
        let _ =
            writeln!(io::stderr(), "interrupted: {done} of {of} shapes of batch {batch} were measured and are kept");
    }
}

const TUNING_BAR: &str = "tuning batch {prefix} [{bar:30}] {pos}/{len} shapes, {rate}/s, {eta} left  {msg}";

/// Whether it is the host itself.
pub fn is_cpu(device: &Device) -> bool {
    device.info().target == "cpu"
}

/// Host threads that run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The device in words.
pub fn describe(info: &DeviceInfo) -> String {
    if info.memory_bytes == 0 {
        return format!("{} ({}), {} threads", info.target, info.name, info.units);
    }
    let [major, minor] = info.compute_capability;
    let (driver_major, driver_minor) = (info.driver_version / 1000, info.driver_version % 1000 / 10);
    format!(
        "{} ({}), compute capability {major}.{minor}, {} multiprocessors, {:.0} GiB, driver for CUDA \
         {driver_major}.{driver_minor}",
        info.target,
        info.name,
        info.units,
        info.memory_bytes as f64 / f64::from(1 << 30),
    )
}
