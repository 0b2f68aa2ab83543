//! `trefoil calibrate --precision e4m3`: finds scales of an encoder's products on photos or texts, and writes a folder with
//! the encoder and these.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};
use trefoil::model::{Embedding, Model, Tower};
use trefoil::{Device, Engine, files};

use super::{CalibrateArgs, config_of, in_folder};
use crate::embed::source::Source;
use crate::embed::{check_photos, open_for, stream};
use crate::{Outcome, models, out, report, setup, stop};

pub fn run(args: &CalibrateArgs) -> Result<Outcome> {
    let folder = models::find(Some(&args.model))?;
    let config = config_of(&folder)?;
    ensure!(!config.contains_key("quantization"), "{} is calibrated already", folder.display());
    let source = Source::collect(&folder, &args.inputs)?;
    ensure!(source.len() > 0, "no photo was found");
    let asked = Embedding::new().tower(source.tower());
    let open = |asked: &Embedding| Model::open_encoder(&folder, asked).context("cannot use the model");
    let reads_photos = |tower| open(&asked.clone().tower(tower)).map(|model| model.preprocessing().is_ok());
    ensure!(
        reads_photos(Tower::Images)? == reads_photos(Tower::Texts)?,
        "{} has an encoder of images and one of texts: expected a model with one encoder",
        folder.display()
    );
    let model = match &source {
        Source::Texts(texts) => open_for(&folder, &asked, texts)?,
        Source::Photos(_) => open(&asked)?,
    };
    if let Source::Photos(_) = &source {
        check_photos(&model, &folder)?;
    }
    in_folder(&folder, &args.out, || calibrate(args, &folder, &model, config, &source))
}

fn calibrate(
    args: &CalibrateArgs,
    folder: &Path,
    model: &Model,
    mut config: Map<String, Value>,
    source: &Source,
) -> Result<Outcome> {
    let (rows, failed) = rows(model, source)?;
    ensure!(!rows.is_empty(), "no input could be read");
    let scales = setup::seen("products in f32 on the CPU: {elapsed}", || model.e4m3_scales(&rows))?;
    ensure!(!scales.is_empty(), "the model has no product of several rows with a matrix of multiples of 16");
    if stop::requested() {
        bail!("interrupted: nothing was written");
    }
    let about = json!({"by": concat!("trefoil ", env!("CARGO_PKG_VERSION")), "rows": rows.len()});
    config.insert("quantization".into(), json!({"e4m3": scales, "calibration": about}));
    copy_files(folder, &args.out)?;
    files::write(args.out.join("config.json"), serde_json::to_string_pretty(&config)? + "\n")?;
    let mut out = out::stdout();
    writeln!(out, "{} products in e4m3 after {} rows", scales.len(), rows.len())?;
    writeln!(out, "wrote {}", report::path(&args.out))?;
    Ok(if failed > 0 { Outcome::SomeFailed } else { Outcome::AllGood })
}

/// The rows of all inputs that can be read, and the number of the others.
fn rows(model: &Model, source: &Source) -> Result<(Vec<Vec<u8>>, usize)> {
    let engine = Engine::builder(model).on(&Device::cpu(1)).batch(1).build()?;
    let mut batch = engine.acquire()?;
    let (mut rows, mut failed) = (Vec::new(), 0);
    for input in (0..source.len()).take_while(|_| !stop::requested()) {
        match stream::fill(model, source, input, &mut batch, 0) {
            Ok(()) => rows.push(batch.row_mut(0).to_vec()),
            Err(error) => {
                failed += 1;
                writeln!(io::stderr(), "error: {}: {}", report::message(&source.name(input)), report::message(&error))?;
            }
        }
    }
    Ok((rows, failed))
}

/// Copies the weights and all JSON files of a model's folder and of the folders in it, but for its configuration.
fn copy_files(from: &Path, to: &Path) -> Result<()> {
    let read = |folder: &Path| fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()));
    let is_kept = |path: &Path| path.is_file() && path.extension().is_some_and(|kind| kind == "json");
    for entry in read(from)? {
        let path = entry?.path();
        let name = path.file_name().expect("an entry of a folder has a name");
        if path.is_dir() {
            for inner in read(&path)? {
                let inner = inner?.path();
                if is_kept(&inner) {
                    fs::create_dir_all(to.join(name))?;
                    files::copy(&inner, to.join(name).join(inner.file_name().expect("a file has a name")))?;
                }
            }
        } else if is_kept(&path) && name != "config.json" {
            files::copy(&path, to.join(name))?;
        }
    }
    Ok(files::copy(from.join("model.safetensors"), to.join("model.safetensors"))?)
}
