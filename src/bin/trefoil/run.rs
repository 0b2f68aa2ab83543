//! `trefoil run`: runs rows through a model and prints or writes the results.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use trefoil::model::Model;
use trefoil::{Device, Engine, OutputKind, RowPort, Size, Target, files};

use crate::cli::{self, Kernels, count};
use crate::feed::Feed;
use crate::ports::{Inputs, Results, numbers, short, stream};
use crate::table::Column::{Figure, Text};
use crate::table::Table;
use crate::{Outcome, npy, npz, out, outputs, report, setup, stop};

/// Arguments of `run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil run network.onnx
  trefoil run bert.onnx --size sequence=128,batch=8 --input input_ids=ids.npy --output out.npz

Arrays have the element type of their port. Random elements are the same in each run: floats from -1 to 1, bytes of any \
value, and 0 or 1 for other integers and bools. In --size, `batch` is the number of rows that are computed at once \
[default: 32 on a GPU, 8 on the CPU]; other names are those of the file's free dimensions. A name that is given again \
begins another size of the same engine: `--size batch=8,sequence=128 --size batch=1,sequence=64`. Each size runs the \
arrays that have its dimensions, or random rows. bf16, which NumPy does not have, is <V2 in files, as ml_dtypes writes it.")]
pub struct RunArgs {
    #[command(flatten)]
    feed: Feed,
    /// Write the results to this file, an array [rows, ...] for each output, instead of printing a table
    #[arg(long, value_name = "FILE.npz")]
    output: Option<PathBuf>,
    /// auto (the first GPU, else the CPU), cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    /// How often to run all rows
    #[arg(long, value_name = "N", default_value = "1", value_parser = count::<1_000_000>)]
    repeat: usize,
    /// Instead of the results, print the values with NaN or infinity in the order of computation (exit code 2 if there
    /// are any)
    #[arg(long, conflicts_with_all = ["output", "repeat"])]
    check_finite: bool,
    #[command(flatten)]
    pub kernels: Kernels,
}

pub fn run(args: &RunArgs) -> Result<Outcome> {
    let several = args.feed.at.has_several_dims();
    if several && args.check_finite {
        return Err(cli::wrong(&["run"], "--check-finite: give one size".into()).into());
    }
    if let (Some(path), true, []) = (&args.output, several, &args.feed.inputs[..]) {
        return Err(several_sizes(path, "another size"));
    }
    if let Some(path) = &args.output {
        outputs::check(path, "npz", args.feed.files())?; // before the run, which may be long
    }
    let (model, path) = args.feed.open()?;
    let device = setup::open_device(args.device)?;
    if args.check_finite {
        return check_finite(args, &model, &device);
    }
    let (engine, all) = args.feed.engine(&model, &device, OutputKind::Probabilities, args.kernels)?;
    if let (Some(path), [_, other, ..]) = (&args.output, &all[..]) {
        return Err(several_sizes(path, &other.0.to_string()));
    }
    let mut out = out::stdout();
    writeln!(out, "model   {} from {}", model.name(), report::path(&path))?;
    writeln!(out, "device  {}", setup::describe(device.info()))?;
    for (index, rows) in all.iter().enumerate() {
        if engine.sizes().len() > engine.batch_sizes().len() {
            let gap = if index > 0 { "\n" } else { "" };
            writeln!(out, "{gap}size    {}", report::message(&rows.0.to_string()))?;
        }
        run_size(args, &engine, rows)?;
    }
    Ok(Outcome::AllGood)
}

/// The error of arrays of several sizes that are to be written.
fn several_sizes(path: &Path, found: &str) -> anyhow::Error {
    let what = format!(
        "--output: {} takes arrays of one size, but there are also rows of {found}: give one --size, or files for the \
         inputs of one",
        path.display()
    );
    cli::wrong(&["run"], report::message(&what)).into()
}

/// Prints which values are not finite.
fn check_finite(args: &RunArgs, model: &Model, device: &Device) -> Result<Outcome> {
    let (engine, mut all) = args.feed.engine(model, device, OutputKind::Features, args.kernels)?;
    let (spec, (_, inputs)) = (engine.input().clone(), all.swap_remove(0));
    drop(engine); // its memory is for those that hand out every value
    let (mut out, mut found) = (out::stdout(), 0);
    for row in 0..inputs.rows() {
        stop::check()?;
        let builder = setup::tuned(Engine::builder(model).on(device), args.kernels);
        for value in builder.not_finite(&inputs.row(&spec, row)?)? {
            writeln!(out, "row {row}: {}", report::message(&value.to_string()))?;
            found += 1;
        }
    }
    writeln!(out, "rows: {}; values that are not finite: {found}", inputs.rows())?;
    Ok(if found == 0 { Outcome::AllGood } else { Outcome::SomeFailed })
}

/// Runs the rows of one size, and prints or writes the results.
fn run_size(args: &RunArgs, engine: &Engine, rows: &(Size, Inputs)) -> Result<()> {
    let mut results = Results::of(engine.rows_for(&rows.0)?.1);
    let began = Instant::now();
    stream(engine, rows, |output| results.add(output))?;
    (1..args.repeat).try_for_each(|_| stream(engine, rows, |_| {}))?;
    let took = began.elapsed();
    if let Some(path) = &args.output {
        write(path, &results)?; // before all that may fail
    }
    print_rows(rows, args.repeat, took)?;
    match &args.output {
        Some(path) => tell(path, &results),
        None => print(&results),
    }
}

fn print_rows((size, inputs): &(Size, Inputs), repeat: usize, took: Duration) -> Result<()> {
    let mut out = out::stdout();
    for line in inputs.lines() {
        writeln!(out, "input   {}", report::message(&line))?;
    }
    let (rows, seconds) = (inputs.rows() * repeat, took.as_secs_f64());
    let rate = rows as f64 / seconds;
    let (batch, time) = (size.batch(), report::time(seconds));
    writeln!(out, "rows    {rows} in batches of up to {batch}, {time}, {rate:.1} rows/s")?;
    Ok(())
}

/// Writes the results as an archive.
fn write(path: &Path, results: &Results) -> Result<()> {
    let file = |(port, bytes): &(RowPort, Vec<u8>)| {
        let dims = [&[results.rows][..], &port.dims].concat();
        (format!("{}.npy", port.name), npy::write(port.dtype, &dims, bytes))
    };
    let archive = npz::write(&results.ports.iter().map(file).collect::<Vec<_>>())?;
    Ok(files::write(path, archive)?)
}

/// Prints what the archive has.
fn tell(path: &Path, results: &Results) -> Result<()> {
    let names: Vec<&str> = results.ports.iter().map(|(port, _)| &*port.name).collect();
    let said = format!("output  {} in {}", names.join(", "), path.display());
    writeln!(out::stdout(), "{}", report::message(&said))?;
    Ok(())
}

/// Prints the results as a table.
fn print(results: &Results) -> Result<()> {
    let mut out = out::stdout();
    let columns = [Text("output"), Figure("min"), Figure("max"), Figure("mean"), Figure("NaN or inf")];
    let mut table = Table::new(&columns);
    for (port, bytes) in &results.ports {
        let Summary { min, max, mean, bad, first } = Summary::of(port, bytes);
        let [min, max, mean] = [min, max, mean].map(|number| number.map_or_else(|| "-".into(), short));
        table.row([port.name.to_string(), min, max, mean, bad.to_string()]);
        let dims: Vec<String> = [results.rows].iter().chain(&port.dims).map(usize::to_string).collect();
        table.line(&format!("{}[{}]: {first}", port.dtype, dims.join(",")));
    }
    writeln!(out)?;
    Ok(table.print(&mut out)?)
}

/// The number of first elements that are shown.
const FIRST: usize = 5;

/// A summary of elements; extremes and mean are those of finite elements, and `None` where there are none.
struct Summary {
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    /// Number of elements that are NaN or infinite.
    bad: usize,
    first: String,
}

impl Summary {
    fn of(port: &RowPort, bytes: &[u8]) -> Self {
        let all = || numbers(port.dtype, bytes);
        let finite = || all().filter(|number| number.is_finite());
        let (count, sum) = finite().fold((0_usize, 0.0), |(count, sum), number| (count + 1, sum + number));
        let first: Vec<String> = all().take(FIRST).map(short).collect();
        let more = if all().nth(FIRST).is_some() { ", ..." } else { "" };
        Self {
            min: finite().reduce(f64::min),
            max: finite().reduce(f64::max),
            mean: (count > 0).then_some(sum / count as f64),
            bad: all().count() - count,
            first: first.join(", ") + more,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil::{Dtype, RowSpec};

    #[test]
    fn what_is_not_finite_is_counted_apart() {
        let spec = RowSpec::new([("x", Dtype::F32, vec![7])]);
        let summary = |numbers: &[f32]| Summary::of(&spec.ports()[0], bytemuck::cast_slice(numbers));
        let some = summary(&[1.0, f32::NAN, -3.0, f32::INFINITY, 0.5, 0.0, 0.0]);
        assert_eq!((some.min, some.max, some.mean, some.bad), (Some(-3.0), Some(1.0), Some(-0.3), 2));
        assert_eq!(some.first, "1, NaN, -3, inf, 0.50000, ...");
        let none = summary(&[f32::NAN]);
        assert_eq!((none.min, none.mean, none.bad, &none.first[..]), (None, None, 1, "NaN"));
    }
}
