//! The command line.
//!
//! The file is long because it has the arguments of every command that has no file of its own, with their help texts.

use std::path::PathBuf;

use anyhow::Result;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use trefoil::model::Model;
use trefoil::onnx::Sizes;
use trefoil::{Precision, Target};

use crate::audit::AuditArgs;
use crate::bench::args::{BenchArgs, BenchCommand};
use crate::calibrate::CalibrateArgs;
use crate::check::CheckArgs;
use crate::completions::CompletionsArgs;
use crate::doctor::DoctorArgs;
use crate::embed::EmbedArgs;
use crate::feed::{self, SizeArgs};
use crate::run::RunArgs;
use crate::trace::TraceArgs;
use crate::{models, outputs};

/// Classifies photos, runs and inspects models and measures speed, on an NVIDIA GPU or the CPU.
///
/// Without a command it runs a demonstration: three photos and a throughput run.
#[derive(Parser, Debug)]
#[command(
    name = "trefoil",
    version,
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  trefoil
  trefoil doctor
  trefoil classify photos/ --top 3
  trefoil trace --batch 64 --html trace.html

In classify, embed, calibrate, bench and trace, and with --tune full, the first Ctrl-C ends the run early, and the \
second one quits.
Environment: TREFOIL_WEIGHTS (a folder with models, or a model), RUST_LOG (warn), NO_COLOR, COLUMNS.
Exit codes: 0 success, 1 nothing could be done, 2 some inputs failed or results differ, 64 a wrong command line, \
130 interrupted."
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub demo: Place,
}

impl Cli {
    /// Refuses two options that would write the same file.
    pub fn checked(self) -> Result<Self, clap::Error> {
        let (command, files) = match &self.command {
            Some(Command::Trace(args)) => (vec!["trace"], args.files()),
            Some(Command::Bench(args)) => match args.command.as_ref().and_then(BenchCommand::report) {
                Some((name, report)) => (vec!["bench", name], report.files()),
                None => return Ok(self),
            },
            _ => return Ok(self),
        };
        match files {
            [(first, Some(a)), (second, Some(b))] if outputs::is_same(a, b) => {
                Err(wrong(&command, format!("{first} and {second} both write {}: name two files", b.display())))
            }
            _ => Ok(self),
        }
    }
}

/// An error in a command's arguments, in the form of the command line's own errors.
pub fn wrong(command: &[&str], what: String) -> clap::Error {
    let mut cli = Cli::command();
    cli.build(); // so that a subcommand knows its whole name
    let known = |cli, name| clap::Command::find_subcommand_mut(cli, name).expect("the program has it");
    command.iter().fold(&mut cli, known).error(ErrorKind::ValueValidation, what)
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Classifies photos
    Classify(ClassifyArgs),
    /// Turns texts or photos into vectors
    Embed(EmbedArgs),
    /// Runs any model on rows from files, or random ones
    Run(RunArgs),
    /// Runs a model on the CPU and on a GPU and compares, down to the first node that differs
    Check(CheckArgs),
    /// Finds the nodes of a model whose numbers f16 does not hold, and can have them computed in f32
    Audit(AuditArgs),
    /// Finds scales on photos and writes a model whose convolutions are computed in bytes (int8)
    Calibrate(CalibrateArgs),
    /// Prints the operations of a model and its plan for a device
    Inspect(InspectArgs),
    /// Measures copies, compute, and both end to end; subcommands measure overlap, many clients and the load of a
    /// server
    Bench(BenchArgs),
    /// Predicts throughput and latency from the speeds of a link and a model; needs neither GPU nor model
    Simulate(SimulateArgs),
    /// Records when each stage of each batch ran, and reports how much of the copies overlapped with compute
    Trace(TraceArgs),
    /// Checks this machine (driver, GPUs, link, memory) and says what is wrong and what to do
    Doctor(DoctorArgs),
    /// Prints a script that lets a shell complete the command line
    Completions(CompletionsArgs),
}

/// Which model, and where it runs.
#[derive(Args, Debug, Clone)]
pub struct Place {
    /// A model: a folder with model.safetensors and config.json, a .safetensors or .onnx file, a folder with models, or
    /// the name of a model in such a folder. Default: TREFOIL_WEIGHTS, ./weights, then weights beside the program
    #[arg(long, value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Sizes of the model's free dimensions, such as height=160,width=160
    #[arg(long = "size", value_name = "NAME=N,..", value_delimiter = ',', value_parser = feed::size)]
    pub sizes: Vec<(String, usize)>,
    /// auto (the first GPU, else the CPU), cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Target,
    #[command(flatten)]
    pub kernels: Kernels,
}

impl Place {
    /// Opens the model at its sizes; also says where it was.
    pub fn open(&self) -> Result<(Model, PathBuf)> {
        let dim = |sizes: Sizes, (name, size): &(String, usize)| sizes.dim(name, *size);
        models::open_at(self.model.as_deref(), &self.sizes.iter().fold(Sizes::new(), dim))
    }

    /// Opens the model at its sizes, if it is a network of images; also says where it was.
    pub fn open_images(&self) -> Result<(Model, PathBuf)> {
        let (model, path) = self.open()?;
        models::check_images(&model, &path)?;
        Ok((model, path))
    }
}

/// How a plan is made where there is a choice.
#[derive(Args, Clone, Copy, Debug)]
pub struct Kernels {
    /// Whether kernels are chosen by measurement
    #[arg(long, value_name = "HOW", default_value = "cached")]
    pub tune: Tune,
    /// Run independent branches side by side on a GPU: on or off [default: on, unless measured to be slower]
    #[arg(long, value_name = "ON", value_parser = on_or_off())]
    pub lanes: Option<bool>,
    /// The type in which layers read their operands; their sums are f32. Types other than the device's own can be many
    /// times slower
    #[arg(long, value_name = "TYPE", default_value = "auto")]
    pub precision: PrecisionArg,
}

/// The type in which layers read their operands.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrecisionArg {
    /// The device's own: f16 on a GPU, f32 on the CPU
    Auto,
    /// 11 bits of precision, up to 65,504
    F16,
    /// 8 bits of precision, the range of f32
    Bf16,
    /// 24 bits of precision
    F32,
    /// The type that most of the model's weights are stored in
    Checkpoint,
}

impl From<PrecisionArg> for Precision {
    fn from(of: PrecisionArg) -> Self {
        match of {
            PrecisionArg::Auto => Self::Auto,
            PrecisionArg::F16 => Self::F16,
            PrecisionArg::Bf16 => Self::Bf16,
            PrecisionArg::F32 => Self::F32,
            PrecisionArg::Checkpoint => Self::Checkpoint,
        }
    }
}

/// `on` or `off`.
pub fn on_or_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|value| value == "on")
}

/// Whether kernels are chosen by measurement.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tune {
    /// No: the planner chooses by predicted times
    Off,
    /// Yes, by earlier measurements on a GPU of this kind, if there are any
    Cached,
    /// Yes: missing measurements are made now and kept, which takes some seconds for each batch size
    Full,
}

/// What a device does at once.
#[derive(Args, Clone, Copy, Debug)]
pub struct SlotsArgs {
    /// Batches on the device at once, a multiple of the compute streams [default: 3, or two more than compute streams]
    #[arg(long, value_name = "N", value_parser = count::<MAX_SLOTS>)]
    slots: Option<usize>,
    /// Number of batches that are computed side by side
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<MAX_STREAMS>)]
    pub compute_streams: usize,
}

impl SlotsArgs {
    /// Batches on the device at once, by the option or by default.
    pub fn slots(&self) -> usize {
        self.slots.unwrap_or((self.compute_streams + 2).next_multiple_of(self.compute_streams))
    }
}

/// Arguments of `classify`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil classify photos/ more/cat.jpg --top 1 --json
  trefoil classify photos/ --model clip-vit-base-patch32 --labels-from-text cat,dog,\"red car\"

JPEG and PNG are read. A photo that cannot be read is reported, and the others are classified (exit code 2).")]
pub struct ClassifyArgs {
    /// Photos, and folders that are searched recursively for files named like a JPEG or PNG
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    #[command(flatten)]
    pub place: Place,
    /// Photos in a batch [default: 32 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BATCH>)]
    pub batch: Option<usize>,
    /// Batches on the device at once
    #[arg(long, value_name = "N", default_value = "3", value_parser = count::<MAX_SLOTS>)]
    pub slots: usize,
    /// Threads that decode [default: one for each core]
    #[arg(long, value_name = "N", value_parser = count::<MAX_THREADS>)]
    pub threads: Option<usize>,
    /// Classes shown for each photo
    #[arg(long, value_name = "N", default_value = "5", value_parser = count::<{ usize::MAX }>)]
    pub top: usize,
    /// Texts as classes, for a model of images and texts (CLIP, SigLIP): a file with a text on each line, or texts
    /// separated by commas
    #[arg(long, value_name = "LABELS|FILE")]
    pub labels_from_text: Option<String>,
    /// The text that the model reads for a label; the label replaces {}
    #[arg(long, value_name = "TEXT", default_value = "a photo of a {}", requires = "labels_from_text")]
    pub template: String,
    /// Print one JSON object on each line: {"path", "top": [{"index", "label", "probability"}]} or {"path", "error"}
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `inspect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil inspect weights/efficientnet-lite0 --device cuda:0 --batch 128
  trefoil inspect resnet50 --for a100 --batch 32
  trefoil inspect bert.onnx --size batch=8,sequence=128 --size batch=1,sequence=64

With --for, MODEL may also be the name of an architecture, because a plan needs no weights. On a GPU of this machine \
every step is timed inside the whole graph. A step's roofline is the longest of three times (its products on the tensor \
cores, its bytes through device memory, and a convolution's bytes from the L2 cache), plus 2.5 us for its launch and, for a \
recurrent layer, an assumed 0.4 us for each step that waits for the one before. A step that computes several nodes is one row, and \
tensors between these nodes do not count.

For an ONNX file that is no network of images, the command prints the operators, the free dimensions, the nodes that are \
not supported (exit code 1), and the number of steps that only move elements.")]
pub struct InspectArgs {
    /// A model, as for --model of other commands; with --for also the name of an architecture
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The device to plan for: auto, cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Target,
    /// Plan for this GPU, which the machine need not have
    #[arg(long = "for", value_name = "GPU", conflicts_with_all = ["device", "tune"])]
    pub gpu: Option<KnownGpu>,
    /// The batch to plan for
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<MAX_BATCH>)]
    pub batch: usize,
    #[command(flatten)]
    pub at: SizeArgs,
    #[command(flatten)]
    pub kernels: Kernels,
    /// Number of runs in which each step is timed
    #[arg(long, value_name = "N", default_value = "40", value_parser = count::<100_000>)]
    pub runs: usize,
    /// Also print the candidates of each step, with their predicted times
    #[arg(long)]
    pub candidates: bool,
    /// Print only the steps, with all figures, as a JSON object
    #[arg(long)]
    pub json: bool,
}

/// A GPU whose limits are known.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownGpu {
    /// NVIDIA A100 with 80 GB, on SXM4
    A100,
    /// NVIDIA H100 with 80 GB, on SXM5
    H100,
    /// NVIDIA H100 PCIe
    H100Pcie,
    /// NVIDIA H200
    H200,
    /// NVIDIA B200
    B200,
    /// NVIDIA L4
    L4,
    /// NVIDIA L40S
    L40s,
    /// NVIDIA GeForce RTX 4090
    Rtx4090,
    /// NVIDIA GeForce RTX 5090
    Rtx5090,
}

/// Arguments of `simulate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil simulate --compute 32=1263,256=9200 --rows 32 --producers 8 --fill 400
  trefoil simulate --compute 1=159,8=332,32=667 --batcher --producers 16 --fill 20

The ring of the library runs on a simulated device, in virtual time: copies and compute take the given times, and the \
same options give the same result. `trefoil bench --only compute` measures the times of compute.")]
pub struct SimulateArgs {
    /// Times of the model alone: batch sizes, ascending, each with microseconds
    #[arg(long, value_name = "N=US,..", required = true, value_delimiter = ',', value_parser = batch_time)]
    pub compute: Vec<(usize, f64)>,
    /// Rows of the submitted batches, in turn [default: the largest batch size]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count::<MAX_BATCH>)]
    pub rows: Vec<usize>,
    /// Rate from host to device while nothing is downloaded, GB/s
    #[arg(long, value_name = "GB/S", default_value = "55", value_parser = rate)]
    pub h2d: f64,
    /// Rate from device to host while nothing is uploaded, GB/s
    #[arg(long, value_name = "GB/S", default_value = "55", value_parser = rate)]
    pub d2h: f64,
    /// Rate of each direction while both move bytes, GB/s
    #[arg(long, value_name = "GB/S", default_value = "49", value_parser = rate)]
    pub duplex: f64,
    /// Time of a copy before its first byte moves, microseconds
    #[arg(long, value_name = "US", default_value = "2", value_parser = microseconds)]
    pub copy_overhead: f64,
    /// Bytes of an input row
    #[arg(long, value_name = "N", default_value = "150528", value_parser = count::<MAX_ROW_BYTES>)]
    pub input_bytes: usize,
    /// Bytes of an output row
    #[arg(long, value_name = "N", default_value = "4000", value_parser = count::<MAX_ROW_BYTES>)]
    pub output_bytes: usize,
    #[command(flatten)]
    pub on_device: SlotsArgs,
    /// Gain of batches side by side over one after the other, divided by the share of the highest rate that one batch
    /// alone leaves unused
    #[arg(long, value_name = "PART", default_value = "0.5", value_parser = rate)]
    pub side_by_side: f64,
    /// Input buffers [default: producers + slots]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BUFFERS>)]
    pub staging: Option<usize>,
    /// Output buffers; more than producers x ahead are needed [default: 4 x staging, or as many as are needed]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BUFFERS>)]
    pub results: Option<usize>,
    /// Threads that fill batches, each with a core of its own
    #[arg(long, value_name = "N", default_value = "4", value_parser = count::<MAX_THREADS>)]
    pub producers: usize,
    /// Submissions that a producer leaves unanswered while it fills the next batch
    #[arg(long, value_name = "N", default_value = "1", value_parser = ahead)]
    pub ahead: usize,
    /// Time to fill a batch, microseconds
    #[arg(long, value_name = "US", default_value = "0", value_parser = microseconds)]
    pub fill: f64,
    /// When batches arrive
    #[arg(long, value_name = "ARRIVAL", default_value = "closed")]
    pub arrival: SimArrival,
    /// Arrival rate in images per second, for poisson and periodic
    #[arg(
        long, value_name = "IMAGES/S", value_parser = rate,
        required_if_eq_any = [("arrival", "poisson"), ("arrival", "periodic")]
    )]
    pub rate: Option<f64>,
    /// Seed of the random arrivals and of the jitter
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    /// Number of batches to simulate; with --batcher, number of rows
    #[arg(long, value_name = "N", default_value = "1000", value_parser = count::<1_000_000>)]
    pub batches: usize,
    /// Let producers submit single rows, from which a batcher forms batches
    #[arg(long, conflicts_with_all = ["rows", "ahead"])]
    pub batcher: bool,
    /// Longest wait of a batch that is not full while the device is busy, microseconds
    #[arg(long, value_name = "US", default_value = "5000", value_parser = microseconds, requires = "batcher")]
    pub max_delay: f64,
    /// Batches that the batcher hands to the ring at once [default: slots + 1]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BUFFERS>, requires = "batcher")]
    pub in_flight: Option<usize>,
    /// Time that a sleeping thread takes to wake up, microseconds
    #[arg(long, value_name = "US", default_value = "10", value_parser = microseconds, requires = "batcher")]
    pub wake: f64,
    /// Mean of a random time that is added to each wake-up and to the filling of each row, microseconds
    #[arg(long, value_name = "US", default_value = "0", value_parser = microseconds, requires = "batcher")]
    pub jitter: f64,
    /// Refuse a row if none of the batcher's rows is free, instead of letting it wait; with --arrival poisson or
    /// periodic
    #[arg(long, requires_all = ["batcher", "rate"])]
    pub rejects: bool,
    /// How long a row may take from its request to its upload, microseconds [default: no limit]
    #[arg(long, value_name = "US", value_parser = microseconds, requires = "batcher")]
    pub deadline: Option<f64>,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// When batches are asked for.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimArrival {
    /// As soon as a producer is free
    Closed,
    /// At random, at --rate on average
    Poisson,
    /// At equal intervals, at --rate
    Periodic,
}

const MAX_ROW_BYTES: usize = 1 << 30;
const MAX_BUFFERS: usize = 65_536;
pub const MAX_BATCH: usize = 65_536;
pub const MAX_SLOTS: usize = 64;
pub const MAX_STREAMS: usize = 64;
pub const MAX_THREADS: usize = 1_024;

/// Parses a number from 1 to MOST.
pub fn count<const MOST: usize>(text: &str) -> Result<usize, String> {
    let expected = || match MOST {
        usize::MAX => "expected a whole number of at least 1".to_owned(),
        _ => format!("expected a whole number from 1 to {MOST}"),
    };
    text.trim().parse().ok().filter(|n| (1..=MOST).contains(n)).ok_or_else(expected)
}

/// Parses seconds of a measurement, up to an hour.
pub fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.01..=3600.0).contains(s));
    number.ok_or_else(|| "expected seconds from 0.01 to 3600".to_owned())
}

/// Parses a rate of hardware, or of arrivals.
pub fn rate(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (1e-3..=1e9).contains(s));
    number.ok_or_else(|| "expected a number from 0.001 to 1e9".to_owned())
}

/// Parses microseconds of one operation, up to an hour.
fn microseconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|s| (0.0..=3.6e9).contains(s));
    number.ok_or_else(|| "expected microseconds from 0 to 3.6e9".to_owned())
}

/// Parses `N=US`.
fn batch_time(text: &str) -> Result<(usize, f64), String> {
    let (size, time) = text.split_once('=').ok_or_else(|| "expected N=US, as in 32=1263".to_owned())?;
    Ok((count::<MAX_BATCH>(size)?, microseconds(time.trim())?))
}

/// Parses the number of tickets that a producer holds.
fn ahead(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MAX_SLOTS);
    number.ok_or_else(|| format!("expected a whole number from 0 to {MAX_SLOTS}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_sound() {
        Cli::command().debug_assert();
    }

    /// A line break in the source would stay in the help text on every terminal, whatever its width.
    #[test]
    fn a_paragraph_of_a_help_text_is_one_line() {
        let mut commands = vec![Cli::command()];
        while let Some(command) = commands.pop() {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("  ")) {
                assert!(line.ends_with(['.', ':', ')']), "{}: `{line}` goes on", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn counts_have_ranges() {
        assert_eq!(count::<8>("8"), Ok(8));
        assert!(["0", "9", "-1", "1.5", "", "x"].iter().all(|text| count::<8>(text).is_err()));
        assert!(["0", "nan", "inf", "-1", "4000"].iter().all(|text| seconds(text).is_err()));
        assert!(["0", "nan", "inf", "-1"].iter().all(|text| rate(text).is_err()));
        assert!(["nan", "inf", "-1"].iter().all(|text| microseconds(text).is_err()));
        assert_eq!(batch_time("32=1263.5"), Ok((32, 1263.5)));
        assert!(["32", "0=1", "32=", "=1", "32=x"].iter().all(|text| batch_time(text).is_err()));
    }
}
