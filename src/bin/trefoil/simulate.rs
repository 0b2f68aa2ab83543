//! `trefoil simulate`: predicts throughput and latency by running the ring itself in virtual time.

use std::io::{self, Write};

use anyhow::Result;
use serde::Serialize;
use trefoil::simulate::{Arrival, SimBatcher, SimBound, SimLatency, SimReport, SimSpec, SimStage, simulate};
use trefoil::{Error, Stage};

use crate::cli::{self, SimArrival, SimulateArgs};
use crate::report::time;
use crate::table::Column::{Figure, Word};
use crate::table::Table;
use crate::{Outcome, out};

/// The figures of the report.
#[derive(Serialize)]
struct Figures {
    batches: usize,
    slots: usize,
    compute_streams: usize,
    staging: usize,
    results: usize,
    producers: usize,
    answered: usize,
    refused: usize,
    expired: usize,
    mean_batch: f64,
    images_per_second: f64,
    /// `None` if no batch was submitted.
    bound: Option<Bound>,
    /// `None` if nothing was answered.
    latency_seconds: Option<Latency>,
    makespan_seconds: f64,
    /// Seconds of a batch if nothing overlaps.
    serial_seconds: f64,
    stages: [Engine; 3],
}

#[derive(Serialize)]
struct Bound {
    stage: &'static str,
    images_per_second: f64,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

#[derive(Serialize)]
struct Engine {
    stage: &'static str,
    /// Seconds of a batch while everything else is idle.
    alone_seconds: f64,
    /// Seconds of a batch while the other copy engine is busy.
    loaded_seconds: f64,
    busy_seconds: f64,
    utilisation: f64,
}

pub fn run(args: &SimulateArgs) -> Result<Outcome> {
    if args.rate.is_some() && matches!(args.arrival, SimArrival::Closed) {
        return Err(cli::wrong(&["simulate"], "--rate is for --arrival poisson and --arrival periodic".into()).into());
    }
    let spec = spec(args);
    spec.check().map_err(|error| usage(&error))?;
    let figures = Figures::of(&spec, &simulate(&spec)?);
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(&figures)?)?;
    } else {
        print(&figures, &mut out::stdout())?;
    }
    Ok(Outcome::AllGood)
}

fn spec(args: &SimulateArgs) -> SimSpec {
    let images_per_s = args.rate.unwrap_or_default();
    let filled_at_once = if args.batcher { 1 } else { args.producers };
    let staging = args.staging.unwrap_or(filled_at_once + args.on_device.slots());
    let batcher = SimBatcher {
        max_delay_us: args.max_delay,
        in_flight: args.in_flight.unwrap_or(args.on_device.slots() + 1),
        wake_us: args.wake,
        jitter_us: args.jitter,
        seed: args.seed,
        rejects: args.rejects,
        deadline_us: args.deadline.unwrap_or(f64::INFINITY),
    };
    SimSpec {
        h2d_gbps: args.h2d,
        d2h_gbps: args.d2h,
        duplex_gbps: args.duplex,
        copy_overhead_us: args.copy_overhead,
        input_bytes_per_row: args.input_bytes,
        output_bytes_per_row: args.output_bytes,
        slots: args.on_device.slots(),
        compute_streams: args.on_device.compute_streams,
        side_by_side: args.side_by_side,
        staging,
        results: args.results.unwrap_or((4 * staging).max(args.producers * args.ahead + 1)),
        producers: args.producers,
        ahead: args.ahead,
        rows: args.rows.clone(),
        fill_us: args.fill,
        arrival: match args.arrival {
            SimArrival::Closed => Arrival::Closed,
            SimArrival::Poisson => Arrival::Poisson { images_per_s, seed: args.seed },
            SimArrival::Periodic => Arrival::Periodic { images_per_s },
        },
        batches: args.batches,
        batcher: args.batcher.then_some(batcher),
        ..SimSpec::new(args.compute.clone())
    }
}

/// Turns a combination of options that is not allowed into an error of the command line.
fn usage(error: &Error) -> clap::Error {
    let what = match error {
        Error::Option { option, value, expected } => {
            let option = match *option {
                "h2d_gbps" => "h2d",
                "d2h_gbps" => "d2h",
                "duplex_gbps" => "duplex",
                "copy_overhead_us" => "copy-overhead",
                "compute_us" => "compute",
                "input_bytes_per_row" => "input-bytes",
                "output_bytes_per_row" => "output-bytes",
                "fill_us" => "fill",
                "images_per_s" => "rate",
                "max_delay_us" => "max-delay",
                "wake_us" => "wake",
                "jitter_us" => "jitter",
                "in_flight" => "in-flight",
                "deadline_us" => "deadline",
                "side_by_side" => "side-by-side",
                same => same,
            };
            format!("invalid value '{value}' for '--{option}': expected {expected}")
        }
        other => other.to_string(),
    };
    cli::wrong(&["simulate"], what)
}

impl Figures {
    fn of(spec: &SimSpec, report: &SimReport) -> Self {
        let engine = |stage, engine: SimStage| Engine {
            stage: name(stage),
            alone_seconds: engine.alone_us * 1e-6,
            loaded_seconds: engine.loaded_us * 1e-6,
            busy_seconds: engine.busy_s,
            utilisation: engine.utilisation,
        };
        let latency = |latency: SimLatency| Latency {
            p50: latency.p50_us * 1e-6,
            p90: latency.p90_us * 1e-6,
            p99: latency.p99_us * 1e-6,
            max: latency.max_us * 1e-6,
        };
        let bound = |bound: SimBound| Bound { stage: name(bound.stage), images_per_second: bound.images_per_s };
        Self {
            batches: report.submitted,
            slots: spec.slots,
            compute_streams: spec.compute_streams,
            staging: spec.staging,
            results: spec.results,
            producers: spec.producers,
            answered: report.answered,
            refused: report.refused,
            expired: report.expired,
            mean_batch: report.mean_batch,
            images_per_second: report.images_per_s,
            bound: (report.submitted > 0).then(|| bound(report.bound)),
            latency_seconds: (report.answered > 0).then(|| latency(report.latency)),
            makespan_seconds: report.makespan_s,
            serial_seconds: report.serial_s,
            stages: [
                engine(Stage::CopyIn, report.copy_in),
                engine(Stage::Compute, report.compute),
                engine(Stage::CopyOut, report.copy_out),
            ],
        }
    }
}

/// The stage's name in `trefoil bench`.
fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::CopyIn => "upload",
        Stage::Compute => "compute",
        Stage::CopyOut => "download",
    }
}

fn print(figures: &Figures, out: &mut impl Write) -> Result<()> {
    let Figures { batches, slots, staging, results, producers, .. } = figures;
    writeln!(
        out,
        "simulated  {batches} batches, {slots} slots, {staging} staging, {results} results, {producers} producers"
    )?;
    writeln!(out)?;
    let mut table = Table::new(&[Word("stage"), Figure("alone"), Figure("loaded"), Figure("busy"), Figure("used")]);
    for engine in &figures.stages {
        let [alone, loaded, busy] = [engine.alone_seconds, engine.loaded_seconds, engine.busy_seconds].map(time);
        let used = 100.0 * engine.utilisation;
        table.row([engine.stage.to_owned(), alone, loaded, busy, format!("{used:.1} %")]);
    }
    table.print(out)?;
    writeln!(out)?;
    match (&figures.bound, &figures.latency_seconds) {
        (Some(bound), Some(latency)) => print_speed(figures, bound, latency, out)?,
        _ => writeln!(out, "throughput none: no row was answered")?,
    }
    let Figures { answered, refused, expired, .. } = figures;
    if refused + expired > 0 {
        writeln!(out, "answered   {answered}; {refused} refused, {expired} past their deadline")?;
    }
    writeln!(
        out,
        "makespan   {}; {} with nothing overlapping",
        time(figures.makespan_seconds),
        time(figures.serial_seconds)
    )?;
    writeln!(out, "\nalone: everything else idle. loaded: the other copy engine as busy as a batch's copy makes it.")?;
    writeln!(out, "latency: from the request, in a closed loop from when a producer is free, to the result.")?;
    Ok(())
}

fn print_speed(figures: &Figures, bound: &Bound, latency: &Latency, out: &mut impl Write) -> Result<()> {
    let [p50, p90, p99, max] = [latency.p50, latency.p90, latency.p99, latency.max].map(time);
    let rate = figures.images_per_second;
    let part = 100.0 * rate / bound.images_per_second;
    writeln!(out, "throughput {rate:.0} images/s, {part:.1} % of the bound, {:.1} images a batch", figures.mean_batch)?;
    writeln!(out, "bound      {:.0} images/s: {} without a gap", bound.images_per_second, bound.stage)?;
    writeln!(out, "latency    p50 {p50}, p90 {p90}, p99 {p99}, max {max}")?;
    Ok(())
}
