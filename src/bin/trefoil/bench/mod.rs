//! `trefoil bench`: measures the stages of a model, and runs the benchmarks that are subcommands.

pub mod args;
mod arrivals;
mod clients;
mod cold;
mod engines;
mod forum;
mod latencies;
mod load;
mod network;
mod orders;
mod overlap;
mod overload;
mod plot;
mod record;
mod server;
mod soak;
mod sources;
mod stages;

use anyhow::Result;

use crate::Outcome;
use args::{BenchArgs, BenchCommand};

pub fn run(args: &BenchArgs) -> Result<Outcome> {
    match &args.command {
        None => stages::run(&args.stages),
        Some(BenchCommand::Overlap(args)) => overlap::run(args),
        Some(BenchCommand::Forum(args)) => forum::run(args),
        Some(BenchCommand::Clients(args)) => clients::run(args),
        Some(BenchCommand::Server(args)) => server::run(args),
        Some(BenchCommand::Soak(args)) => soak::run(args),
        Some(BenchCommand::Overload(args)) => overload::run(args),
        Some(BenchCommand::Cold(args)) => cold::run(args),
    }
}
