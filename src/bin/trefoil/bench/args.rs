//! The command line of `bench`.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use trefoil::Target;

use crate::cli::{MAX_BATCH, MAX_SLOTS, MAX_THREADS, Place, SlotsArgs, count, rate, seconds};
use crate::feed;

/// Arguments of `bench`.
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Example:
  trefoil bench --batch 1,32,256 --only end-to-end --producers 8
  trefoil bench overlap --record r.json --plot r.svg

Without a subcommand, every stage runs on random bytes, after a warm-up; the resulting probabilities are checked. \
Times are for one batch: the median, and the 10th to the 90th percentile."
)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    #[command(flatten)]
    pub stages: StagesArgs,
}

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Compares the ring with its slowest engine and with the prediction of `simulate`, by slots, regime and batch
    Overlap(OverlapArgs),
    /// Compares five orders of locking with the intended use of the ring, for f32 NCHW batches in ordinary memory
    Forum(ForumArgs),
    /// Measures a batcher with many threads, each of which submits single images and waits for the answers
    Clients(ClientsArgs),
    /// Finds the highest rate of random arrivals whose p99 latency stays within a limit
    Server(ServerArgs),
    /// Runs clients for a long time, opens and closes models meanwhile, and exits with 2 if memory, threads or latency
    /// grow
    Soak(SoakArgs),
    /// Offers more rows than the device can compute, checks what becomes of them, and exits with 2 if rows are lost,
    /// goodput is low, or the queue grows
    Overload(OverloadArgs),
    /// Measures the start of a process up to its first result, phase by phase
    Cold(ColdArgs),
}

impl BenchCommand {
    /// The benchmark's name and its report options; `None` for one that only prints its figures.
    pub fn report(&self) -> Option<(&'static str, &ReportArgs)> {
        match self {
            Self::Overlap(args) => Some(("overlap", &args.report)),
            Self::Forum(args) => Some(("forum", &args.report)),
            Self::Clients(args) => Some(("clients", &args.report)),
            Self::Server(args) => Some(("server", &args.report)),
            Self::Soak(args) => Some(("soak", &args.report)),
            Self::Overload(args) => Some(("overload", &args.report)),
            Self::Cold(_) => None,
        }
    }
}

impl ReportArgs {
    /// The files that the report options name, by option.
    pub fn files(&self) -> [(&'static str, Option<&Path>); 2] {
        [("--record", self.record.as_deref()), ("--plot", self.plot.as_deref())]
    }
}

/// What becomes of the figures.
#[derive(Args, Debug)]
pub struct ReportArgs {
    /// Print the record, a JSON object, instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write the record to this file: figures, options, commit, device, clocks, date
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write a plot to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// The commit that the record names [default: TREFOIL_COMMIT, or the commit of the checkout that contains the
    /// program]
    #[arg(long, value_name = "ID")]
    pub commit: Option<String>,
    /// Use the small defaults of the CPU, for a quick run
    #[arg(long)]
    pub quick: bool,
}

/// Arguments of `bench` without a subcommand.
#[derive(Args, Debug)]
pub struct StagesArgs {
    #[command(flatten)]
    pub place: Place,
    /// Batch sizes, one run each [default: 1,32,256 on a GPU, 1,8 on the CPU]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count::<MAX_BATCH>)]
    pub batch: Vec<usize>,
    /// Measure only this stage
    #[arg(long, value_name = "STAGE")]
    pub only: Option<BenchStage>,
    #[command(flatten)]
    pub on_device: SlotsArgs,
    /// Threads that fill batches, for end-to-end [default: 4, or as many as there are cores]
    #[arg(long, value_name = "N", value_parser = count::<MAX_THREADS>)]
    pub producers: Option<usize>,
    /// Seconds measured for each stage and batch size
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    pub seconds: f64,
    /// Print one JSON object on each line
    #[arg(long)]
    pub json: bool,
}

/// What is measured.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum BenchStage {
    /// The network alone, its input already on the device
    Compute,
    /// The copy from host to device alone
    Upload,
    /// The copy from device to host alone
    Download,
    /// Threads fill, submit and wait; copies and compute overlap
    EndToEnd,
}

/// Arguments of `bench overlap`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench overlap --batch 8,128 --regime balanced --record r.json
  trefoil bench overlap --model yolov8n.onnx --size height=640,width=640 --batch 8

With --model that model is measured. Without it the networks are made for this benchmark. Their f32 features are as large as the f32 input, so that a download takes as \
long as an upload, and the number of convolutions makes compute a quarter of a copy, as long, or four times as long. An \
engine alone is its stage back to back with no host wait, while the other two stages run as they do in the ring. \
The prediction is that of `simulate` from the times of the engines alone, with no parameter for a configuration. On the \
CPU, whose cores copy and compute, an engine alone is no bound and nothing is predicted: the benchmark shows the times \
of the stages and the gain over one slot.")]
pub struct OverlapArgs {
    /// auto (the first GPU, else the CPU), cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    pub device: Target,
    /// Batch sizes [default: 8,32,128 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count::<MAX_BATCH>)]
    pub batch: Vec<usize>,
    /// Slots: batches on the device at once
    #[arg(
        long, value_name = "N,..", value_delimiter = ',', default_value = "1,2,3,4", value_parser = count::<MAX_SLOTS>
    )]
    pub slots: Vec<usize>,
    /// Measure this model in place of networks made for the benchmark
    #[arg(long, value_name = "MODEL", conflicts_with = "regime")]
    pub model: Option<PathBuf>,
    /// Sizes of the model's free dimensions, such as height=640,width=640
    #[arg(long = "size", value_name = "NAME=N,..", value_delimiter = ',', value_parser = feed::size, requires = "model")]
    pub sizes: Vec<(String, usize)>,
    /// Regimes
    #[arg(long, value_name = "REGIME,..", value_delimiter = ',', default_value = "compute-bound,copy-bound,balanced")]
    pub regime: Vec<Regime>,
    /// Repetitions of each measurement; the best one counts [default: 5 on a GPU, 2 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<1000>)]
    pub repetitions: Option<usize>,
    /// Batches in each repetition [default: 200 on a GPU, 10 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<100_000>)]
    pub batches: Option<usize>,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Which engine is the slowest.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Regime {
    /// Compute takes four times as long as a copy
    ComputeBound,
    /// Compute takes a quarter of a copy
    CopyBound,
    /// Both copies and compute take equally long
    Balanced,
}

/// Arguments of `bench forum`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench forum --model resnet50 --record r.json

Every thread has a batch of f32 NCHW pixels in ordinary memory, copies it into page-locked memory, submits it and waits. \
Five orders differ in what happens under one lock; the sixth is the intended use of the ring: no lock, and a thread \
fills its next batch while the previous one is computed. Every answer is compared with that of a run of one batch at a \
time. benches/peers/forum/run.py also runs the same five orders in libtorch.")]
pub struct ForumArgs {
    #[command(flatten)]
    pub place: Place,
    /// Images in a batch [default: 32 on a GPU, 4 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BATCH>)]
    pub batch: Option<usize>,
    /// Threads
    #[arg(long, value_name = "N", default_value = "8", value_parser = count::<MAX_THREADS>)]
    pub threads: usize,
    /// Batches on the device at once
    #[arg(long, value_name = "N", default_value = "3", value_parser = count::<MAX_SLOTS>)]
    pub slots: usize,
    /// Rounds; each measures every row of the table once, in rotating order, and the medians count [default: 3 on a
    /// GPU, 1 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<1000>)]
    pub rounds: Option<usize>,
    /// Seconds for each row of the table in each round [default: 2 on a GPU, 0.5 on the CPU]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// How a batcher is built.
#[derive(Args, Debug)]
pub struct BatcherArgs {
    /// Images in the largest batch, or all batch sizes [default: 32 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count::<MAX_BATCH>)]
    pub batch: Vec<usize>,
    #[command(flatten)]
    pub on_device: SlotsArgs,
    /// Longest wait of a batch that is not full while the device is busy, milliseconds [default: the library's]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    pub max_delay: Option<f64>,
    /// Let the library's threads spin while batches are in flight: two cores are busy, and answers come earlier
    #[arg(long)]
    pub spin: bool,
}

/// Arguments of `bench clients`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench clients --threads 1,64,256 --seconds 60 --record r.json

Every thread copies an image from ordinary memory into the batcher, waits for its answer, checks it and takes the next \
one. Latency is from before the copy to the answer.")]
pub struct ClientsArgs {
    #[command(flatten)]
    pub place: Place,
    /// Threads, one run each [default: 1,2,4,8,16,32,64,128,256 on a GPU, 1,4,16 on the CPU]
    #[arg(long, value_name = "N,..", value_delimiter = ',', value_parser = count::<MAX_THREADS>)]
    pub threads: Vec<usize>,
    #[command(flatten)]
    pub batcher: BatcherArgs,
    /// Seconds of each run [default: 10 on a GPU, 1 on the CPU]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Arguments of `bench server`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench server --limit 15 --record r.json

Images arrive at random (Poisson) whether or not earlier ones are answered, and are copied from ordinary memory into the \
batcher. Latency is from the time when an image was due to its answer, so it includes the delay of a late sender.")]
pub struct ServerArgs {
    #[command(flatten)]
    pub place: Place,
    /// The limit on the p99 latency, milliseconds
    #[arg(long, value_name = "MS", default_value = "15", value_parser = milliseconds)]
    pub limit: f64,
    #[command(flatten)]
    pub batcher: BatcherArgs,
    /// Seconds of each rate [default: 5 on a GPU, 1 on the CPU]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// Number of rates to try [default: 10 on a GPU, 5 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<100>)]
    pub steps: Option<usize>,
    /// The highest rate to try, images/s [default: the rate of the ring alone, which is measured first]
    #[arg(long, value_name = "IMAGES/S", value_parser = rate)]
    pub most: Option<f64>,
    /// Seed of the random arrivals
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Arguments of `bench soak`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench soak --seconds 3600 --periods 60 --record r.json

Three in four threads submit single images to a batcher, the others whole batches to its engine. They compare every \
answer bit for bit with that of a run of one batch at a time. Meanwhile the model is opened, run and closed repeatedly. At \
the end of each period, while no other engine is open, the command measures memory, descriptors and threads. A quantity \
grows if it is larger in the last third of the periods than in the first third; the very first period does not count.")]
pub struct SoakArgs {
    #[command(flatten)]
    pub place: Place,
    /// Threads [default: 64 on a GPU, 4 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_THREADS>)]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub batcher: BatcherArgs,
    /// Seconds of the whole run
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub seconds: f64,
    /// Periods that the run is divided into
    #[arg(long, value_name = "N", default_value = "10", value_parser = periods)]
    pub periods: usize,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Arguments of `bench overload`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench overload --clients 256 --load 2 --seconds 120 --record r.json

Measures how many rows a second a saturated batcher answers, then offers it a multiple of that at random times \
(Poisson), whether or not earlier rows are answered, and saturates it again. All clients are equal. A request has 1 to \
--request-rows rows; every second one has a deadline of up to 12 times the time of a full batch, every tenth has high \
priority, and every tenth is given up within 8 such times. Some threads make the requests of all clients, but a client \
that waits for a free row has a thread of its own, and asks for one row at a time.

The command exits with 2 if an answer differs from that of a run of one batch at a time in any bit, a row is never \
answered, the counts of the clients differ from those of the batcher, more rows are queued than there are, or the \
goodput is less than --least of that of the saturated batcher.")]
pub struct OverloadArgs {
    #[command(flatten)]
    pub place: Place,
    /// Number of clients
    #[arg(long, value_name = "N", default_value = "256", value_parser = count::<MAX_THREADS>)]
    pub clients: usize,
    /// Rows offered, as a multiple of what a saturated batcher answers
    #[arg(long, value_name = "X", default_value = "2", value_parser = multiple)]
    pub load: f64,
    /// What the batcher does when it is full, one run each
    #[arg(long, value_name = "POLICY,..", value_delimiter = ',', default_value = "reject,wait")]
    pub when_full: Vec<Policy>,
    /// Rows of the batcher, which bound its queue [default: eight full batches]
    #[arg(long, value_name = "N", value_parser = count::<100_000>)]
    pub rows: Option<usize>,
    /// The most rows of a request
    #[arg(long, value_name = "N", default_value = "4", value_parser = count::<1000>)]
    pub request_rows: usize,
    #[command(flatten)]
    pub batcher: BatcherArgs,
    /// Seconds of each run under overload; a saturated run takes a quarter of that [default: 60 on a GPU, 10 on the CPU]
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<f64>,
    /// The least goodput, as a part of that of the saturated batcher
    #[arg(long, value_name = "PART", default_value = "0.95", value_parser = part)]
    pub least: f64,
    /// Seed of the clients
    #[arg(long, value_name = "N", default_value = "1")]
    pub seed: u64,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// What a full batcher does with a row.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// It refuses the row at once
    Reject,
    /// The client waits for a free row
    Wait,
}

impl Policy {
    pub fn name(self) -> &'static str {
        match self {
            Self::Reject => "reject",
            Self::Wait => "wait",
        }
    }
}

/// Arguments of `bench cold`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil bench cold --model resnet50 --runs 9

Starts this program repeatedly, each time until it has classified one image, and prints the phases of the start with \
the median time. `driver` is cuInit, `context` the creation of the GPU's primary context: both are the driver's part, \
and the last line leaves them out. The very first start may compile kernels, which the driver keeps.")]
pub struct ColdArgs {
    #[command(flatten)]
    pub place: Place,
    /// The largest batch that the engine is built for [default: 32 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BATCH>)]
    pub batch: Option<usize>,
    /// Number of starts
    #[arg(long, value_name = "N", default_value = "5", value_parser = count::<1000>)]
    pub runs: usize,
    /// Print a JSON array of all starts
    #[arg(long)]
    pub json: bool,
    /// What a start is told: when it was made, in nanoseconds of the system's clock
    #[arg(long, hide = true)]
    pub since: Option<u64>,
}

/// Parses a number of periods: at least 4, so that the last third can be compared with the first.
fn periods(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| (4..=10_000).contains(n));
    number.ok_or_else(|| "expected a whole number from 4 to 10000".to_owned())
}

/// Parses milliseconds, up to an hour.
fn milliseconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|ms| (0.0..=3.6e6).contains(ms));
    number.ok_or_else(|| "expected milliseconds from 0 to 3.6e6".to_owned())
}

/// Parses a multiple of a rate.
fn multiple(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|load| (0.01..=100.0).contains(load));
    number.ok_or_else(|| "expected a number from 0.01 to 100".to_owned())
}

/// Parses a part of a whole.
fn part(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|part| (0.0..=1.0).contains(part));
    number.ok_or_else(|| "expected a number from 0 to 1".to_owned())
}
