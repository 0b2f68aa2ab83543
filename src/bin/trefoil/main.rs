//! `trefoil`: classify photos, run models, look at them, measure. Uses the library's public API only.
//!
//! # Environment variables
//!
//! | variable | meaning |
//! |---|---|
//! | `TREFOIL_WEIGHTS` | a folder with models, or a model, looked at after `--model` |
//! | `TREFOIL_CACHE` | where measurements of kernels are kept |
//! | `TREFOIL_DECODE_MEMORY` | MiB that all photos in decoding share |
//! | `COLUMNS` | the width of tables where standard output is no terminal; unset, nothing is cut |
//! | `RUST_LOG` | what to log on stderr: `error`, `warn` (the default), `info`, `debug` |
//! | `NO_COLOR` | no colours, whatever its value |
//!
//! # Exit codes
//!
//! 0 success, 1 nothing could be done, 2 some inputs failed or results differ, 64 a wrong command line, 130 interrupted by Ctrl-C.

mod audit;
mod bench;
mod calibrate;
mod check;
mod classify;
mod cli;
mod completions;
mod demo;
mod doctor;
mod embed;
mod feed;
mod inputs;
mod inspect;
mod models;
mod npy;
mod npz;
mod onnx_file;
mod ordered;
mod out;
mod outputs;
mod ports;
mod random;
mod report;
mod run;
mod search;
mod setup;
mod simulate;
mod smi;
mod steps;
mod stop;
mod table;
mod threads;
mod throughput;
mod trace;
mod vitals;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use cli::{Cli, Command, Kernels, Tune};

/// The outcome for the inputs, from which the exit code follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    AllGood,
    NothingDone,
    SomeFailed,
}

const USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match Cli::try_parse().and_then(Cli::checked) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(answer_instead(&error)),
    };
    start_logging();
    let measures = |kernels: &Kernels| kernels.tune == Tune::Full;
    let listening = match &cli.command {
        None
        | Some(
            Command::Classify(_) | Command::Embed(_) | Command::Calibrate(_) | Command::Bench(_) | Command::Trace(_),
        ) => stop::listen(),
        Some(Command::Inspect(args)) if measures(&args.kernels) => stop::listen(),
        Some(Command::Run(args)) if measures(&args.kernels) => stop::listen(),
        Some(Command::Check(args)) if measures(&args.kernels) => stop::listen(),
        Some(_) => Ok(()),
    };
    let result = listening.and_then(|()| match cli.command {
        None => demo::run(&cli.demo),
        Some(Command::Classify(args)) => classify::run(&args),
        Some(Command::Embed(args)) => embed::run(&args),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Audit(args)) => audit::run(&args),
        Some(Command::Calibrate(args)) => calibrate::run(&args),
        Some(Command::Inspect(args)) => inspect::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Simulate(args)) => simulate::run(&args),
        Some(Command::Trace(args)) => trace::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args),
        Some(Command::Completions(args)) => completions::run(&args),
    });
    let code = match result {
        Ok(Outcome::AllGood) => 0,
        Ok(Outcome::NothingDone) => 1,
        Ok(Outcome::SomeFailed) => 2,
        Err(error) if is_broken_pipe(&error) => 0,
        Err(error) if error.is::<clap::Error>() => error.downcast_ref().map_or(USAGE, answer_instead),
        Err(error) => {
            // Files have errors of the library, which name them.
            let of = if error.is::<io::Error>() { "cannot write the standard output: " } else { "" };
            let _ = writeln!(io::stderr(), "error: {of}{}", report::message(&format!("{error:#}")));
            1
        }
    };
    ExitCode::from(if stop::requested() { stop::INTERRUPTED } else { code })
}

/// Prints help, version or the error in the command line; returns the exit code.
fn answer_instead(error: &clap::Error) -> u8 {
    let printed = error.print().and_then(|()| io::stdout().flush());
    match (error.kind(), printed) {
        (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, Err(error))
            if error.kind() != io::ErrorKind::BrokenPipe =>
        {
            let _ = writeln!(io::stderr(), "error: {error}");
            1
        }
        (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _) => 0,
        _ => USAGE,
    }
}

fn start_logging() {
    let filter = env_logger::Env::default().default_filter_or("warn");
    let line = |out: &mut env_logger::fmt::Formatter, record: &log::Record<'_>| {
        writeln!(out, "{}: {}", record.level().as_str().to_lowercase(), report::message(&record.args().to_string()))
    };
    env_logger::Builder::from_env(filter).format(line).init();
}

/// Whether the reader of the output has closed it, as `head` does: this is no failure of the program.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()).map(io::Error::kind);
    kinds.into_iter().any(|kind| kind == io::ErrorKind::BrokenPipe)
}
