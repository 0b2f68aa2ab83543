//! `trefoil doctor`: checks whether this machine can run trefoil, and says what to do where it cannot.

mod gpu;
mod host;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use trefoil::{Device, Error, FaultClass, Target};

use crate::report::{self, Paint, paint};
use crate::{Outcome, models, out, setup};

/// Arguments of `doctor`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil doctor
  trefoil doctor --device cuda:1 --json

Each line has a verdict: ok, warn (it works, but could be better), or bad, with which the exit code is 1. Advice follows. \
On each GPU the command runs a small network, checks its answers, and times the copies of its batches.")]
pub struct DoctorArgs {
    /// Check this device: auto (every GPU), cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    /// Check this model (as for --model of other commands) instead of the default one
    #[arg(long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Print a JSON object: {"ok", "checks": [{"check", "verdict", "found", "advice"}]}
    #[arg(long)]
    json: bool,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Ok,
    Warn,
    Bad,
}

/// One check with its result.
#[derive(Debug, Serialize)]
struct Check {
    check: String,
    verdict: Verdict,
    found: String,
    /// What the user can do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn warn(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Warn, advice: Some(advice.into()), ..Self::ok(check, found) }
    }

    fn bad(check: &str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { verdict: Verdict::Bad, ..Self::warn(check, found, advice) }
    }
}

/// The findings as `--json` prints them.
#[derive(Serialize)]
struct Findings {
    ok: bool,
    checks: Vec<Check>,
}

pub fn run(args: &DoctorArgs) -> Result<Outcome> {
    let mut checks = vec![host::processor(), host::memory(), host::locked_memory()];
    if args.device != Target::Cpu {
        checks.extend(gpus(args.device));
    }
    checks.push(weights(args.model.as_deref()));
    let ok = checks.iter().all(|check| check.verdict != Verdict::Bad);
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(&Findings { ok, checks })?)?;
    } else {
        let mut out = out::stdout();
        checks.iter().try_for_each(|check| print(&mut out, check))?;
        let count = |verdict| checks.iter().filter(|check| check.verdict == verdict).count();
        let (warnings, faults) = (count(Verdict::Warn), count(Verdict::Bad));
        let plural = if warnings == 1 { "" } else { "s" };
        writeln!(out, "\n{} checks, {warnings} warning{plural}, {faults} bad", checks.len())?;
    }
    Ok(if ok { Outcome::AllGood } else { Outcome::NothingDone })
}

fn print(out: &mut impl Write, check: &Check) -> io::Result<()> {
    let verdict = match check.verdict {
        Verdict::Ok => paint(Paint::Good, "ok  "),
        Verdict::Warn => paint(Paint::Warning, "warn"),
        Verdict::Bad => paint(Paint::Bad, "bad "),
    };
    writeln!(out, "{verdict}  {:<19} {}", check.check, check.found)?;
    check.advice.iter().try_for_each(|advice| writeln!(out, "{:26}{} {advice}", "", paint(Paint::Faint, "do:")))
}

/// Checks the driver, then every GPU, or the one that was asked for.
fn gpus(target: Target) -> Vec<Check> {
    let (wanted, first) = match target {
        Target::Cuda(number) => (true, number),
        _ => (false, 0),
    };
    let device = match Device::open(Target::Cuda(first)) {
        Ok(device) => device,
        // Other GPUs may be there: the error lists them.
        Err(error) if first > 0 && Device::open(Target::Cuda(0)).is_ok() => {
            let advice = "ask for one that is there; CUDA_VISIBLE_DEVICES hides others, where it is set";
            return vec![Check::bad(&target.to_string(), error.to_string(), advice)];
        }
        Err(error) => return vec![host::no_gpu(&error, first, wanted)],
    };
    let mut checks = vec![host::driver(device.info().driver_version)];
    let fault = examine(&device, &mut checks);
    if !wanted && !ends_the_process(fault.as_ref()) {
        examine_others(&mut checks);
    }
    checks
}

/// Checks all GPUs but the first. The first one opens, so a failure of another is that GPU's own.
fn examine_others(checks: &mut Vec<Check>) {
    let count = Device::gpus().unwrap_or_else(|error| {
        checks.push(Check::bad("GPUs", format!("how many there are is not known: {error}"), gpu::LOOK));
        0
    });
    for number in 1..count {
        let error = match Device::open(Target::Cuda(number)) {
            Ok(device) => examine(&device, checks),
            Err(error) => {
                let found = format!("{error}{}", setup::holders(&error, number));
                checks.push(Check::bad(&format!("cuda:{number}"), found, gpu::LEAVE_OUT));
                Some(error)
            }
        };
        if ends_the_process(error.as_ref()) {
            return;
        }
    }
}

/// Checks one GPU; returns the fault that its device has met.
fn examine(device: &Device, checks: &mut Vec<Check>) -> Option<Error> {
    checks.extend(gpu::examine(device));
    device.fault()
}

/// Whether a fault prevents looking at any other GPU in this process.
fn ends_the_process(error: Option<&Error>) -> bool {
    error.is_some_and(|error| error.class() == FaultClass::Process)
}

fn weights(model: Option<&Path>) -> Check {
    match models::open(model) {
        Ok((model, path)) => Check::ok("weights", format!("{} from {}", model.name(), report::path(&path))),
        Err(error) if model.is_some() => Check::bad("weights", format!("{error:#}"), "name another by --model"),
        Err(error) => Check::warn("weights", format!("{error:#}"), "name one by --model or TREFOIL_WEIGHTS"),
    }
}
