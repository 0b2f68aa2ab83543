//! `trefoil embed`: turns texts or pictures into vectors, in the order of the inputs.

pub mod source;
pub mod stream;
pub mod tokens;
pub mod write;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use trefoil::Target;
use trefoil::model::{Embedding, Model, Pooling};

use crate::cli::{Kernels, MAX_BATCH, count};
use crate::setup::{self, Ring, Sizes};
use crate::{Outcome, models, outputs, stop};
use source::Source;
use stream::stream;
use tokens::Texts;
use write::Sink;

/// Arguments of `embed`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trefoil embed all-MiniLM-L6-v2 sentences.txt --output sentences.npy
  trefoil embed all-MiniLM-L6-v2 sentences.txt --packed 4096
  trefoil embed clip-vit-base-patch32 photos/ --normalize on
  generate | trefoil embed all-MiniLM-L6-v2 -

A file of texts has one text on each line; `-` reads texts from the standard input. An encoder of images takes photos and \
folders of photos. Without --output the command prints a line of JSON for each input: {\"input\", \"embedding\"} or {\"input\", \"error\"}.")]
pub struct EmbedArgs {
    /// A folder with model.safetensors and config.json of an encoder; an encoder of texts also needs tokenizer.json
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A file with a text on each line, or - for the standard input; or photos and folders of photos
    #[arg(value_name = "FILE|-", required = true)]
    inputs: Vec<PathBuf>,
    /// Write an array [inputs, values] to this file; the row of an input that failed holds NaN
    #[arg(long, value_name = "FILE.npy")]
    output: Option<PathBuf>,
    /// Tokens that texts are cut to and padded to [default: those of the longest text, at most what the model takes]
    #[arg(long, value_name = "N", value_parser = count::<65_536>)]
    sequence: Option<usize>,
    /// Lay texts end to end, in packs of so many tokens, instead of padding each of them
    #[arg(long, value_name = "TOKENS", value_parser = count::<1_048_576>, conflicts_with = "batch")]
    packed: Option<usize>,
    /// How the vectors of all tokens become one [default: as the files in the model's folder say]
    #[arg(long, value_name = "HOW")]
    pooling: Option<Pool>,
    /// Whether vectors are divided by their length [default: as the files in the model's folder say]
    #[arg(long, value_name = "ON", value_parser = crate::cli::on_or_off())]
    normalize: Option<bool>,
    /// auto (the first GPU, else the CPU), cuda:N or cpu
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: Target,
    /// Inputs in a batch [default: 32 on a GPU, 8 on the CPU]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BATCH>)]
    batch: Option<usize>,
    #[command(flatten)]
    kernels: Kernels,
}

/// How the vectors of all tokens become one.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Pool {
    /// The mean of the tokens, or patches
    Mean,
    /// The first token
    Class,
    /// The last token of a text
    Last,
}

pub fn run(args: &EmbedArgs) -> Result<Outcome> {
    if let Some(path) = &args.output {
        outputs::check(path, "npy", args.inputs.iter().map(PathBuf::as_path))?; // before the run, which may be long
    }
    let folder = models::find(Some(&args.model))?;
    ensure!(folder.is_dir(), "{} is a file, and an encoder is a folder: `trefoil run` runs any file", folder.display());
    let source = Source::collect(&folder, &args.inputs)?;
    let model = args.open(&folder, &source)?;
    warn_of_cuts(&model, &source)?;
    let device = setup::open_device(args.device)?;
    let ring = Ring::new(args.batch.map_or(Sizes::Default, Sizes::UpTo), args.kernels);
    let engine = setup::build_engine(&model, &device, &ring)?;
    let mut sink = Sink::new(&engine, args.output.as_deref())?;
    stream(&engine, &model, &source, &mut sink)?;
    let counts = sink.finish()?;
    if stop::requested() {
        let (done, of) = (counts.done, source.len());
        let kept = match &args.output {
            Some(path) if done > 0 => format!("; {} has these", path.display()),
            Some(path) => format!("; {} was not written", path.display()),
            None => String::new(),
        };
        let _ = writeln!(io::stderr(), "interrupted: {done} of {of} inputs were done{kept}");
    }
    Ok(match (counts.done - counts.failed, counts.failed) {
        (_, 0) => Outcome::AllGood,
        (0, _) => Outcome::NothingDone,
        _ => Outcome::SomeFailed,
    })
}

impl EmbedArgs {
    /// Opens the encoder at the sizes that the inputs need.
    fn open(&self, folder: &std::path::Path, source: &Source) -> Result<Model> {
        let mut asked = Embedding::new().tower(source.tower());
        if let Some(pool) = self.pooling {
            asked = asked.pooling(match pool {
                Pool::Mean => Pooling::Mean,
                Pool::Class => Pooling::Class,
                Pool::Last => Pooling::Last,
            });
        }
        if let Some(normalized) = self.normalize {
            asked = asked.normalized(normalized);
        }
        let open = |asked: &Embedding| Model::open_encoder(folder, asked).context("cannot use the model");
        let Source::Texts(texts) = source else {
            let is_of_texts = self.sequence.is_some() || self.packed.is_some();
            ensure!(!is_of_texts, "--sequence and --packed are for texts, and the inputs are photos");
            ensure!(self.pooling != Some(Pool::Last), "--pooling last is for texts, and the inputs are photos");
            let model = open(&asked)?;
            check_photos(&model, folder)?;
            return Ok(model);
        };
        let model = match self.sequence {
            Some(sequence) => open(&asked.clone().sequence(sequence))?,
            None => open_for(folder, &asked, texts)?,
        };
        let Some(tokens) = self.packed else { return Ok(model) };
        let longest = tokens_of(&model)?.min(tokens);
        open(&asked.sequence(longest).packed(tokens, texts.most_rows(tokens, longest)))
    }
}

/// An error for an encoder that reads no photos.
pub fn check_photos(model: &Model, folder: &std::path::Path) -> Result<()> {
    ensure!(
        model.preprocessing().is_ok(),
        "the inputs are photos, and {} reads none: an encoder of texts takes files with a text on each line",
        folder.display()
    );
    Ok(())
}

/// Opens the encoder with rows as long as the longest text. Without a mask the padding would change the result: such an
/// encoder keeps the longest row that it was made for.
pub fn open_for(folder: &std::path::Path, asked: &Embedding, texts: &Texts) -> Result<Model> {
    let open = |asked: &Embedding| Model::open_encoder(folder, asked).context("cannot use the model");
    let longest = open(asked)?;
    let most = tokens_of(&longest)?;
    let sequence = texts.longest().next_multiple_of(GRAIN).min(most);
    if sequence == most || !longest.graph(1)?.inputs.iter().any(|port| port.name == "attention_mask") {
        return Ok(longest);
    }
    open(&asked.clone().sequence(sequence))
}

/// Says how many texts have more tokens than a row, whose ends are not read.
fn warn_of_cuts(model: &Model, source: &Source) -> Result<()> {
    let Source::Texts(texts) = source else { return Ok(()) };
    let most = match model.packing() {
        Some(packing) => packing.longest,
        None => tokens_of(model)?,
    };
    match texts.longer_than(most) {
        0 => {}
        1 => log::warn!("one text is longer than {most} tokens and is cut"),
        cut => log::warn!("{cut} of {} texts are longer than {most} tokens and are cut", texts.len()),
    }
    Ok(())
}

/// The number of tokens in a row.
fn tokens_of(model: &Model) -> Result<usize> {
    let graph = model.graph(1)?;
    let ids = graph.inputs.iter().find(|port| port.name == "input_ids").context("the model reads no texts")?;
    Ok(graph.value(ids.value).elems())
}

/// Rows are a multiple of this number of tokens, so that similar inputs have the same plan.
const GRAIN: usize = 16;
