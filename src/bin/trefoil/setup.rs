//! Opens devices and builds engines from arguments, with the defaults that depend on the device.

use std::io::{self, Write};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, anyhow};
use trefoil::model::Model;
use trefoil::{Device, DeviceInfo, Engine, EngineBuilder, Error, OutputKind, Size, Target, Tuning, TuningProgress};

use crate::cli::{Kernels, Tune};
use crate::{report, smi, stop};

/// How long a producer waits for a free batch before it gives up: no batch computes longer.
const ACQUIRE_LIMIT: Duration = Duration::from_secs(300);

/// The batch sizes that an engine is built for.
#[derive(Clone, Debug)]
pub enum Sizes {
    /// The library's default for the device.
    Default,
    /// This size, and smaller ones for batches that are not full.
    UpTo(usize),
    /// Only these sizes.
    Exactly(Vec<usize>),
    /// These sizes, with free dimensions.
    Each(Vec<Size>),
}

/// Sizes of batches, and how many are in flight.
#[derive(Clone, Debug)]
pub struct Ring {
    /// Batch sizes.
    pub sizes: Sizes,
    /// Batches on the device at once.
    pub slots: usize,
    /// How many of these batches are computed side by side.
    pub compute_streams: usize,
    /// Threads that fill batches.
    pub producers: usize,
    /// The kind of the engine's output.
    pub output: OutputKind,
    /// How the plans are made.
    pub kernels: Kernels,
}

impl Ring {
    /// Three slots, one compute stream, one producer, and probabilities where the network gives classes.
    pub fn new(sizes: Sizes, kernels: Kernels) -> Self {
        Self { sizes, slots: 3, compute_streams: 1, producers: 1, output: OutputKind::Probabilities, kernels }
    }
}

/// Opens the requested device.
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

/// The processes that hold memory of the GPU with this ordinal, to be appended to an out-of-memory error; empty for
/// other errors.
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

/// Builds an engine with enough buffers that producers do not wait for each other.
pub fn build_engine(model: &Model, device: &Device, ring: &Ring) -> Result<Engine> {
    build(engine_builder(model, device, ring))
}

/// Builds an engine and shows a bar meanwhile: loading large weights takes time.
pub fn build(builder: EngineBuilder<'_>) -> Result<Engine> {
    Ok(seen("engine   weights, kernels, memory: {elapsed}", || builder.build())?)
}

/// Runs `something` and shows a bar with the elapsed time.
pub fn seen<T>(template: &str, something: impl FnOnce() -> T) -> T {
    let bar = report::progress_bar(0, template);
    let done = something();
    bar.finish_and_clear();
    done
}

/// The builder of an engine for this ring on this device.
pub fn engine_builder<'a>(model: &'a Model, device: &Device, ring: &Ring) -> EngineBuilder<'a> {
    builder(model, ring).on(device)
}

/// The builder of an engine for this ring, without a device.
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

/// Sets precision, lanes and the choice of kernels; a measurement shows a bar.
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

/// Says how many measurements are kept if Ctrl-C has ended the tuning.
fn say_if_interrupted(progress: &TuningProgress) {
    let TuningProgress { batch, done, of, .. } = progress;
    if stop::requested() {
        let _ =
            writeln!(io::stderr(), "interrupted: {done} of {of} shapes of batch {batch} were measured and are kept");
    }
}

const TUNING_BAR: &str = "tuning batch {prefix} [{bar:30}] {pos}/{len} shapes, {rate}/s, {eta} left  {msg}";

/// Whether the device is the CPU.
pub fn is_cpu(device: &Device) -> bool {
    device.info().target == "cpu"
}

/// Number of host threads that can run at once.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Describes the device in words.
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
