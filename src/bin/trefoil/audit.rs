//! `trefoil audit`: the nodes of a model whose numbers f16 does not hold.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use trefoil::model::Model;
use trefoil::{Device, Engine, Target, files};

use crate::feed::Feed;
use crate::outputs::{folder_of, is_same};
use crate::ports::{Inputs, short};
use crate::{Outcome, models, out, report};

/// Arguments of `audit`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil audit network.onnx --rows 4
  trefoil audit network.onnx --input image=images.npy --save

A GPU computes the layers of a model of values in f16, whose largest number is 65,504 and whose significand has 11 bits. \
`audit` computes rows twice on the CPU, in f32 and with the roundings of an H200, and moves nodes to f32 until no number is \
beyond the range of f16 and no output differs by more than the tolerance. --save writes the names of these nodes to the \
config.json beside the file, as `nodes_in_f32`; from then on they are computed in f32 whenever the file is opened. Rows \
should be like those that the model will see.")]
pub struct AuditArgs {
    #[command(flatten)]
    feed: Feed,
    /// Largest error of an output that is allowed, as a share of the output's largest number
    #[arg(long, value_name = "PART", default_value = "1e-2", value_parser = crate::check::tolerance)]
    tolerance: f64,
    /// Write the names of the nodes to the config.json beside the file
    #[arg(long)]
    save: bool,
}

/// The number of random rows without `--rows`.
const ROWS: usize = 1;

pub fn run(args: &AuditArgs) -> Result<Outcome> {
    let (model, path) = args.feed.open()?;
    ensure!(
        model.image_network().is_err(),
        "{}: `audit` is for models of values; a GPU computes all of this network of images in f16",
        report::path(&path)
    );
    let config = args.save.then(|| config_beside(&path)).transpose()?; // before the audit, which may be long
    let (inputs, rows) = rows(args, &model)?;
    let audit = model.audit(&rows, args.tolerance)?;
    let mut out = out::stdout();
    writeln!(out, "model   {} from {}", model.name(), report::path(&path))?;
    for line in inputs.lines() {
        writeln!(out, "input   {}", report::message(&line))?;
    }
    writeln!(out, "rows    {}\n", inputs.rows())?;
    for found in &audit.nodes {
        let [largest, error] = [found.largest, found.error].map(short);
        let line = format!("in f32: `{}` ({}), largest number {largest}, error {error}", found.node, found.kind);
        writeln!(out, "{}", report::message(&line))?;
    }
    let (count, before) = (audit.nodes.len(), model.nodes_in_f32()?.len());
    let beside = if before > 0 { format!(", in f32 before: {before}") } else { String::new() };
    writeln!(out, "nodes moved to f32: {count}{beside}; largest error of the outputs: {}", short(audit.error))?;
    if let Some((path, config)) = config {
        save(&model, audit.names(), &path, config)?;
    }
    Ok(Outcome::AllGood)
}

/// The inputs of the audit, and their rows as bytes.
fn rows(args: &AuditArgs, model: &Model) -> Result<(Inputs, Vec<Vec<u8>>)> {
    let engine = Engine::builder(model).on(&Device::open(Target::Cpu)?).batch_sizes(&[1]).build()?;
    let inputs = Inputs::open(engine.input(), &args.feed.inputs, args.feed.rows.unwrap_or(ROWS))?;
    let rows = (0..inputs.rows()).map(|row| inputs.row(engine.input(), row)).collect::<Result<Vec<_>>>()?;
    Ok((inputs, rows))
}

/// The path of the configuration beside a model's file, and its content; empty where there is no such file yet.
fn config_beside(model_path: &Path) -> Result<(PathBuf, Map<String, Value>)> {
    ensure!(!model_path.is_dir(), "--save is for an ONNX file, and {} is a folder", report::path(model_path));
    let path = model_path.with_file_name("config.json");
    let others = fs::read_dir(folder_of(&path))?;
    let other =
        others.flatten().map(|entry| entry.path()).find(|file| models::is_onnx(file) && !is_same(file, model_path));
    if let Some(other) = other {
        bail!(
            "--save: {} would read {} too: move one of them to another folder",
            report::path(&other),
            report::path(&path)
        );
    }
    let config = if path.exists() { models::read_config(&path)? } else { Map::new() };
    files::check(&path)?;
    Ok((path, config))
}

/// Writes the found nodes, and those that the model already computes in f32, to the configuration.
fn save<'a>(
    model: &'a Model,
    found: impl Iterator<Item = &'a str>,
    path: &Path,
    mut config: Map<String, Value>,
) -> Result<()> {
    let names: BTreeSet<&str> = model.nodes_in_f32()?.iter().map(String::as_str).chain(found).collect();
    config.insert("nodes_in_f32".into(), json!(names));
    files::write(path, serde_json::to_string_pretty(&config)? + "\n")?;
    writeln!(out::stdout(), "wrote {}", report::path(path))?;
    Ok(())
}
