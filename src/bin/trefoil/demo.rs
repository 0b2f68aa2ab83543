//! `trefoil` without a command: shows the device, the model and some photos with their classes, then measures
//! throughput.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use trefoil::model::Model;
use trefoil::{Device, Engine, Stage, image};

use crate::cli::Place;
use crate::inputs::Inputs;
use crate::report::{self, Class, Spread};
use crate::setup::{self, Ring, Sizes};
use crate::throughput::{self, Load};
use crate::{Outcome, models, out};

const TOP: usize = 5;
/// The most photos that the demonstration shows.
const MOST_PHOTOS: usize = 8;
const SLOTS: usize = 3;
const GPU_BATCH: usize = 128;
const THROUGHPUT_RUN: Duration = Duration::from_secs(5);
/// Number of runs of each stage alone.
const STAGE_RUNS: usize = 50;

pub fn run(args: &Place) -> Result<Outcome> {
    let (model, path) = args.open()?;
    let device = setup::open_device(args.device)?;
    let mut out = out::stdout();
    writeln!(out, "device      {}", setup::describe(device.info()))?;
    let (name, input, classes) = (model.name(), model.preprocessing()?.input, model.classes());
    writeln!(out, "model       {name} from {}: input {input}, {classes} classes", report::path(&path))?;

    let gpu = !setup::is_cpu(&device);
    let producers = if gpu { setup::cores().min(8) } else { 2 };
    let sizes = if gpu { Sizes::UpTo(GPU_BATCH) } else { Sizes::Default };
    let ring = Ring { slots: SLOTS, producers, ..Ring::new(sizes, args.kernels) };
    let engine = setup::build_engine(&model, &device, &ring)?;

    let (rows, outcome) = show_photos(&model, &engine, &path)?;
    let batch_seconds = measure_throughput(&engine, &rows, producers)?;
    if gpu {
        show_overlap(&device, &engine, batch_seconds)?;
    }
    Ok(outcome)
}

/// Prints the top classes of the photos that come with the weights; returns their decoded rows.
fn show_photos(model: &Model, engine: &Engine, model_path: &Path) -> Result<(Vec<Vec<u8>>, Outcome)> {
    let mut out = out::stdout();
    let Some(folder) = models::photos_folder(model_path) else {
        writeln!(out, "\nno photos: there is no folder `photos` beside the model; random bytes are used below")?;
        return Ok((Vec::new(), Outcome::AllGood));
    };
    let (mut rows, mut outcome) = (Vec::new(), Outcome::AllGood);
    for input in Inputs::collect(&[folder]).list.into_iter().take(MOST_PHOTOS) {
        match classify(model, engine, &input.path) {
            Ok((row, top)) => {
                writeln!(out, "\n{}", report::path(&input.path))?;
                top.iter().try_for_each(|class| writeln!(out, "{}", class.line()))?;
                rows.push(row);
            }
            Err(error) => {
                writeln!(io::stderr(), "error: {error:#}")?;
                outcome = Outcome::SomeFailed;
            }
        }
    }
    Ok((rows, outcome))
}

/// Classifies one photo, with the fewest calls of the library.
fn classify(model: &Model, engine: &Engine, path: &PathBuf) -> Result<(Vec<u8>, Vec<Class>)> {
    let mut batch = engine.acquire()?;
    image::load(path, model.preprocessing()?, batch.row_mut(0))?;
    let row = batch.row_mut(0).to_vec();
    let output = batch.submit(1)?.wait()?;
    let top = output.top_k(0, TOP).with_context(|| path.display().to_string())?;
    Ok((row, Class::list(model, &top)))
}

/// Runs many producers for some seconds; prints the rate and returns the seconds of a batch.
fn measure_throughput(engine: &Engine, photos: &[Vec<u8>], producers: usize) -> Result<Option<f64>> {
    let batch = engine.capacity();
    let random = throughput::random_rows(if photos.is_empty() { 3 } else { 0 }, engine.input().row_bytes);
    let rows = if photos.is_empty() { &random } else { photos };
    let bar = report::timed_bar(THROUGHPUT_RUN, "throughput  {pos} images, {rate} a second, {eta} left");
    let load = Load { engine, rows, batch, producers, limit: THROUGHPUT_RUN };
    let run = load.run(|| bar.inc(batch as u64));
    bar.finish_and_clear();
    let run = run?;
    let seconds = run.batch_seconds();
    let mut out = out::stdout();
    match seconds {
        Some(seconds) => writeln!(out, "\nthroughput  {:.1} images/s end to end", batch as f64 / seconds)?,
        None => writeln!(out, "\nthroughput  not one batch in {} s", THROUGHPUT_RUN.as_secs())?,
    }
    writeln!(
        out,
        "            {} batches of {batch}, {producers} producers, {} slots; in it: decoded pixels copied into \
         page-locked rows,\n            upload, normalisation, network, probabilities, download, and reading them",
        run.batches(),
        engine.slots(),
    )?;
    Ok(seconds)
}

/// Prints the time of each stage alone, and which part of the copies was hidden when they overlapped.
fn show_overlap(device: &Device, engine: &Engine, batch_seconds: Option<f64>) -> Result<()> {
    let batch = engine.capacity();
    let median = |stage| -> Result<f64> {
        let samples = engine.measure(stage, batch, STAGE_RUNS)?;
        Ok(Spread::of(&samples).map_or(f64::NAN, |spread| spread.median))
    };
    let [copy_in, compute, copy_out] = [median(Stage::CopyIn)?, median(Stage::Compute)?, median(Stage::CopyOut)?];
    let mut out = out::stdout();
    writeln!(out, "one batch   on {}, each stage alone, median of {STAGE_RUNS}", device.info().target)?;
    writeln!(out, "            copy in   {:>10}", report::time(copy_in))?;
    writeln!(out, "            compute   {:>10}", report::time(compute))?;
    writeln!(out, "            copy out  {:>10}", report::time(copy_out))?;
    if let Some(seconds) = batch_seconds {
        let hidden = throughput::hidden_part(seconds, copy_in, compute, copy_out);
        writeln!(
            out,
            "            together  {:>10}  one batch after the other, all stages overlapping",
            report::time(seconds)
        )?;
        writeln!(
            out,
            "overlap     {:.0} % of the copies hidden under compute (estimated from these four times)",
            100.0 * hidden
        )?;
    }
    Ok(())
}
