//! `trefoil calibrate`: finds scales and means of a model's values on photos, or scales of an encoder's products, and
//! writes a folder with the model and these.

mod e4m3;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::ProgressBar;
use serde_json::{Map, Value, json};
use trefoil::model::{Model, Quantization};
use trefoil::{CalibrationMethod, Calibrator, Sensitivity, files, image};

use crate::inputs::{Input, Inputs};
use crate::threads::{join, spawn};
use crate::{Outcome, cli, models, out, outputs, report, setup, stop};

/// Arguments of `calibrate`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trefoil calibrate weights/efficientnet-lite0 photos/ -o efficientnet-lite0-s8
  trefoil classify photos/ --model efficientnet-lite0-s8
  trefoil calibrate bert-base-uncased texts.txt -o bert-base-e4m3 --precision e4m3
  trefoil embed bert-base-e4m3 texts.txt

Bytes are for networks of images: a few hundred photos like those that the model will see are enough; at least 16 are \
needed. The folder OUT gets the same weights, and a config.json with the scales and means under `quantization` \
(docs/quantization.md). A layer that alone causes an error above --most-error stays in floats, and is listed.

e4m3 is for encoders: it is computed on a few photos, or texts, and OUT gets all files of MODEL that say how it is opened.")]
pub struct CalibrateArgs {
    /// A model: a folder with model.safetensors and config.json, or the name of such a folder
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// Photos, and folders that are searched recursively for files named like a JPEG or PNG; for an encoder of texts files
    /// with a text on each line
    #[arg(required = true, value_name = "INPUTS")]
    inputs: Vec<PathBuf>,
    /// The folder to write
    #[arg(short, long, value_name = "OUT")]
    out: PathBuf,
    /// The numbers that layers are computed on: bytes, or e4m3 for the products of an encoder
    #[arg(long, value_name = "PRECISION", default_value = "s8")]
    precision: Numbers,
    /// How to choose the largest number that a byte stands for [default: mse]
    #[arg(long, value_name = "METHOD")]
    method: Option<Method>,
    /// With --method percentile: the percentage of a value's numbers that bytes represent without clipping [default: 99.99]
    #[arg(long, value_name = "P", value_parser = percent)]
    percent: Option<f64>,
    /// The largest error of a layer in bytes, as a share of the result's variance; layers above it stay in floats
    /// [default: 0.005]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    most_error: Option<f64>,
}

/// The numbers that a calibrated model is computed on.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Bytes: layers of a network of images
    S8,
    /// Numbers of e4m3: products of an encoder of transformers
    E4m3,
}

/// What decides the range of a value's bytes.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// The largest number
    Max,
    /// A percentile: --percent
    Percentile,
    /// The least relative entropy
    Entropy,
    /// The least squared error
    Mse,
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if (50.0..=100.0).contains(&number) { Ok(number) } else { Err("expected 50 to 100".into()) }
}

fn share(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number >= 0.0 { Ok(number) } else { Err("expected 0 or more".into()) }
}

impl CalibrateArgs {
    fn method(&self) -> CalibrationMethod {
        match self.method.unwrap_or(Method::Mse) {
            Method::Max => CalibrationMethod::Max,
            Method::Percentile => CalibrationMethod::Percentile(self.percent.unwrap_or(PERCENT)),
            Method::Entropy => CalibrationMethod::Entropy,
            Method::Mse => CalibrationMethod::Mse,
        }
    }
}

/// The defaults of --percent and --most-error.
const PERCENT: f64 = 99.99;
const MOST_ERROR: f64 = 0.005;

pub fn run(args: &CalibrateArgs) -> Result<Outcome> {
    let wrong = |what: &str| Err(cli::wrong(&["calibrate"], what.into()).into());
    match args.precision {
        Numbers::S8 if args.percent.is_some() && args.method != Some(Method::Percentile) => {
            wrong("--percent is for --method percentile")
        }
        Numbers::S8 => run_in_bytes(args),
        Numbers::E4m3 if args.method.is_some() || args.percent.is_some() || args.most_error.is_some() => {
            wrong("--method, --percent and --most-error are for bytes")
        }
        Numbers::E4m3 => e4m3::run(args),
    }
}

fn run_in_bytes(args: &CalibrateArgs) -> Result<Outcome> {
    let (model, from) = models::open(Some(&args.model))?;
    let config = config_of(&from)?;
    ensure!(
        model.image_network().is_ok(),
        "{} is no network of images: --precision e4m3 calibrates encoders",
        from.display()
    );
    let inputs = Inputs::collect(&args.inputs);
    ensure!(
        inputs.list.len() >= Calibrator::FEWEST_ROWS,
        "photos: {}; expected {} or more, as varied as what the model will see",
        inputs.list.len(),
        Calibrator::FEWEST_ROWS
    );
    in_folder(&from, &args.out, || calibrate(args, &model, config, &inputs))
}

/// Makes the folder first, so that nothing is computed that could not be kept. Of a folder that holds a model, only one
/// that was calibrated is replaced.
fn in_folder(model: &Path, out: &Path, calibrate: impl FnOnce() -> Result<Outcome>) -> Result<Outcome> {
    ensure!(!outputs::is_same(out, model), "{} is the model itself: name another folder", out.display());
    let config = out.join("config.json");
    if config.exists() || out.join("model.safetensors").exists() {
        let is_calibrated = models::read_config(&config).is_ok_and(|config| config.contains_key("quantization"));
        ensure!(is_calibrated, "{} holds a model that was not calibrated: name another folder", out.display());
    }
    let is_new = !out.exists();
    fs::create_dir_all(out).with_context(|| format!("cannot create {}", out.display()))?;
    let calibrated = files::check(config).map_err(Into::into).and_then(|()| calibrate());
    if calibrated.is_err() && is_new {
        let _ = fs::remove_dir(out); // if nothing is in it
    }
    calibrated
}

fn calibrate(args: &CalibrateArgs, model: &Model, config: Map<String, Value>, inputs: &Inputs) -> Result<Outcome> {
    let mut calibrator = Calibrator::new(model)?;
    let failed = observe(&mut calibrator, model, inputs)?;
    let mut quantization = calibrator.quantization(args.method())?;
    let mut layers = sensitivities(&calibrator, &quantization)?;
    if stop::requested() {
        bail!("interrupted: nothing was written");
    }
    let most_error = args.most_error.unwrap_or(MOST_ERROR);
    let bad: Vec<Sensitivity> = layers.extract_if(.., |layer| layer.error > most_error).collect();
    quantization.floats.extend(bad.iter().map(|layer| layer.layer.clone()));
    let error = calibrator.error(&model.quantized(&quantization)?)?;
    let about = json!({
        "by": concat!("trefoil ", env!("CARGO_PKG_VERSION")),
        "method": method_name(args),
        "photos": calibrator.rows(),
        "error": error,
        "most_error": most_error,
        "left_in_floats": bad.iter().map(|of| json!({"layer": of.layer, "error": of.error})).collect::<Vec<_>>(),
    });
    write(&args.out, model, config, &quantization, about)?;
    print(args, &calibrator, &layers, &bad, error)?;
    writeln!(out::stdout(), "wrote {}", report::path(&args.out))?;
    Ok(if failed > 0 { Outcome::SomeFailed } else { Outcome::AllGood })
}

fn method_name(args: &CalibrateArgs) -> String {
    match args.method.unwrap_or(Method::Mse) {
        Method::Percentile => format!("percentile {}", args.percent.unwrap_or(PERCENT)),
        other => other.to_possible_value().expect("no method is hidden").get_name().to_owned(),
    }
}

/// The configuration of a model, unchanged.
fn config_of(model: &Path) -> Result<Map<String, Value>> {
    let path = if model.is_dir() { model.join("config.json") } else { model.with_file_name("config.json") };
    models::read_config(&path).with_context(|| {
        format!("{}: a model to calibrate is a folder with model.safetensors and config.json", path.display())
    })
}

/// Shows all photos to the model, a part of them on each core; returns how many could not be read.
fn observe(calibrator: &mut Calibrator, model: &Model, inputs: &Inputs) -> Result<usize> {
    let count = inputs.list.len();
    let bar = report::progress_bar(count as u64, "{bar:30} {pos}/{len} photos, {rate} a second, {eta} left");
    let parts = inputs.list.chunks(count.div_ceil(setup::cores()));
    let others = parts.clone().map(|_| calibrator.another()).collect::<Result<Vec<_>, _>>()?;
    let failed = thread::scope(|scope| {
        let observe = |(number, (mut other, part))| {
            let (name, bar) = (format!("trefoil-photos-{number}"), &bar);
            spawn(scope, name, move || observe_some(&mut other, model, part, bar).map(|failed| (other, failed)))
        };
        let started: Vec<_> = others.into_iter().zip(parts).enumerate().map(observe).collect();
        let mut all = 0;
        for thread in started {
            let (other, failed) = join(thread?)?;
            calibrator.merge(other)?;
            all += failed;
        }
        Ok::<_, anyhow::Error>(all)
    })?;
    bar.finish_and_clear();
    Ok(failed)
}

/// Shows some photos to the model; returns how many could not be read.
fn observe_some(calibrator: &mut Calibrator, model: &Model, inputs: &[Input], bar: &ProgressBar) -> Result<usize> {
    let mut row = vec![0; calibrator.row_bytes()];
    let mut failed = 0;
    for input in inputs.iter().take_while(|_| !stop::requested()) {
        let loaded = match &input.problem {
            Some(problem) => Err(format!("{}: {problem}", input.path.display())),
            None => image::load(&input.path, model.preprocessing()?, &mut row).map_err(|error| error.to_string()),
        };
        match loaded {
            Ok(()) => calibrator.observe(&row)?,
            Err(error) => {
                failed += 1;
                bar.suspend(|| writeln!(io::stderr(), "error: {}", report::message(&error)))?;
            }
        }
        bar.inc(1);
    }
    Ok(failed)
}

/// The error that bytes cause in each layer, the largest first.
fn sensitivities(calibrator: &Calibrator, quantization: &Quantization) -> Result<Vec<Sensitivity>> {
    let bar = report::progress_bar(0, "{bar:30} {pos}/{len} layers, {eta} left");
    let layers = calibrator.sensitivities(quantization, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
        !stop::requested()
    })?;
    bar.finish_and_clear();
    Ok(layers)
}

/// Writes the folder: the weights unchanged, and the configuration with scales and means.
fn write(
    out: &Path,
    model: &Model,
    mut config: Map<String, Value>,
    quantization: &Quantization,
    about: Value,
) -> Result<()> {
    let Quantization { scales, means, floats } = quantization;
    let all = json!({"scales": scales, "means": means, "floats": floats, "calibration": about});
    config.insert("quantization".into(), all);
    files::copy(model.weights().path(), out.join("model.safetensors"))?;
    files::write(out.join("config.json"), serde_json::to_string_pretty(&config)? + "\n")?;
    Ok(())
}

fn print(
    args: &CalibrateArgs,
    calibrator: &Calibrator,
    layers: &[Sensitivity],
    bad: &[Sensitivity],
    error: f64,
) -> Result<()> {
    let mut out = out::stdout();
    writeln!(
        out,
        "{} layers in bytes after {} photos ({}), {} left in floats; error of the result {:.3} %",
        layers.len(),
        calibrator.rows(),
        method_name(args),
        bad.len(),
        100.0 * error
    )?;
    for Sensitivity { layer, error } in bad {
        writeln!(out, "  in floats: {}, error alone {:.3} %", report::message(layer), 100.0 * error)?;
    }
    for Sensitivity { layer, error } in layers.iter().take(WORST) {
        writeln!(out, "  in bytes:  {}, error alone {:.3} %", report::message(layer), 100.0 * error)?;
    }
    Ok(())
}

/// The most layers in bytes that are listed.
const WORST: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_percentiles_have_bounds() {
        assert_eq!((percent("99.9"), share("0")), (Ok(99.9), Ok(0.0)));
        assert!(["101", "49", "NaN", "x"].iter().all(|text| percent(text).is_err()));
        assert!(["-1", "NaN", ""].iter().all(|text| share(text).is_err()));
    }
}
