//! `trefoil bench cold`: from the start of a process to its first result, phase after phase.

use std::io::{self, Write};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use trefoil::Phase;

use super::args::ColdArgs;
use super::record::ensure_some;
use crate::setup::{self, Ring, Sizes};
use crate::{Outcome, out, report, stop};

/// The times of one process, from its start to its first result.
#[derive(Serialize, Deserialize)]
struct Start {
    device: String,
    /// Names of phases with their seconds, in order.
    phases: Vec<(String, f64)>,
    /// Seconds from before the process was started to its first result.
    seconds: f64,
}

/// The phases that the driver spends: trefoil cannot shorten them.
const OF_DRIVER: [&str; 2] = ["driver", "context"];

impl Start {
    fn of_driver(&self) -> f64 {
        self.phases.iter().filter(|(name, _)| OF_DRIVER.contains(&&name[..])).map(|(_, seconds)| seconds).sum()
    }

    fn above_driver(&self) -> f64 {
        self.seconds - self.of_driver()
    }
}

pub fn run(args: &ColdArgs) -> Result<Outcome> {
    match args.since {
        Some(nanoseconds) => first_result(args, UNIX_EPOCH + Duration::from_nanos(nanoseconds)),
        None => starts(args),
    }
}

/// Starts processes, one after the other, and prints the one with the median time above driver and context.
fn starts(args: &ColdArgs) -> Result<Outcome> {
    let bar = report::progress_bar(args.runs as u64, "cold     {pos} of {len} starts, {eta} left");
    let mut starts = Vec::new();
    while starts.len() < args.runs {
        let Some(start) = stop::complete(start(args))? else { break };
        starts.push(start);
        bar.inc(1);
    }
    bar.finish_and_clear();
    ensure_some(&starts, "a start")?;
    starts.sort_by(|a, b| a.above_driver().total_cmp(&b.above_driver()));
    let [least, most] = [&starts[0], &starts[starts.len() - 1]].map(Start::above_driver);
    let median = &starts[starts.len() / 2];
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(&starts)?)?;
        return Ok(Outcome::AllGood);
    }
    let mut out = out::stdout();
    writeln!(out, "{}: the median of {} starts", median.device, starts.len())?;
    for (name, seconds) in &median.phases {
        writeln!(out, "{name:<34} {:>9.2} ms", 1e3 * seconds)?;
    }
    writeln!(out, "{:<34} {:>9.2} ms", "to the first result", 1e3 * median.seconds)?;
    writeln!(
        out,
        "{:<34} {:>9.2} ms ({:.2} to {:.2})",
        "above driver and context",
        1e3 * median.above_driver(),
        1e3 * least,
        1e3 * most
    )?;
    Ok(Outcome::AllGood)
}

/// Starts this program once more, to run `first_result`.
fn start(args: &ColdArgs) -> Result<Start> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new(program);
    command.args(["bench", "cold", "--device", &args.place.device.to_string()]);
    if let Some(tune) = args.place.kernels.tune.to_possible_value() {
        command.args(["--tune", tune.get_name()]);
    }
    if let Some(lanes) = args.place.kernels.lanes {
        command.args(["--lanes", if lanes { "on" } else { "off" }]);
    }
    if let Some(precision) = args.place.kernels.precision.to_possible_value() {
        command.args(["--precision", precision.get_name()]);
    }
    if let Some(model) = &args.place.model {
        command.arg("--model").arg(model);
    }
    for (name, size) in &args.place.sizes {
        command.args(["--size", &format!("{name}={size}")]);
    }
    if let Some(batch) = args.batch {
        command.args(["--batch", &batch.to_string()]);
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let done = command.args(["--since", &since.to_string()]).output().context("cannot start this program")?;
    if !done.status.success() {
        let told = String::from_utf8_lossy(&done.stderr);
        let last = told.lines().rev().find_map(|line| line.strip_prefix("error: ")).unwrap_or(told.trim());
        bail!("a start failed: {last}");
    }
    serde_json::from_slice(&done.stdout).context("a start printed something else")
}

/// Classifies one image as early as possible, and prints the time of each phase.
fn first_result(args: &ColdArgs, since: SystemTime) -> Result<Outcome> {
    let process = SystemTime::now().duration_since(since)?.as_secs_f64();
    let mut phases = vec![("process".to_owned(), process)];
    let mut last = Instant::now();
    let mut lap = |name: &str, inner: &[Phase]| {
        let now = Instant::now();
        let of_inner: Duration = inner.iter().map(|phase| phase.took).sum();
        phases.extend(inner.iter().map(|phase| (phase.name.to_owned(), phase.took.as_secs_f64())));
        phases.push((name.to_owned(), (now - last).saturating_sub(of_inner).as_secs_f64()));
        last = now;
    };
    let (model, _) = args.place.open_images()?;
    lap("model's header and graph", &[]);
    let device = setup::open_device(args.place.device)?;
    lap("rest of the device", device.opening());
    let ring = Ring::new(args.batch.map_or(Sizes::Default, Sizes::UpTo), args.place.kernels);
    let engine = setup::build_engine(&model, &device, &ring)?;
    lap("rest of the engine", engine.building());
    let mut batch = engine.acquire()?;
    batch.row_mut(0).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 % 251) as u8);
    let output = batch.submit(1)?.wait()?;
    let sum: f32 = output.values(0).iter().sum();
    if (sum - 1.0).abs() > 0.01 {
        bail!("the probabilities add up to {sum}");
    }
    lap("first batch", &[]);
    let seconds = phases.iter().map(|(_, seconds)| seconds).sum();
    let start = Start { device: setup::describe(device.info()), phases, seconds };
    serde_json::to_writer(io::stdout(), &start)?;
    Ok(Outcome::AllGood)
}
