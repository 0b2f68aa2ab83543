//! `trefoil embed`: texts or pictures to vectors, in the order of the inputs.

mod source;
pub mod tokens;
mod write;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use trefoil::model::{Embedding, Model, Pooling};
use trefoil::{Batch, Engine, Error, Target, Ticket, files, image};

use crate::cli::{Kernels, MAX_BATCH, count};
use crate::setup::{self, Ring, Sizes};
use crate::{Outcome, models, report, stop};
use source::Source;
use tokens::Texts;
use write::Sink;

/// Arguments of `embed`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  trefoil embed all-MiniLM-L6-v2 sentences.txt --output sentences.npy
  trefoil embed clip-vit-base-patch32 photos/ --normalize on
  generate | trefoil embed all-MiniLM-L6-v2 -

A file of texts has one on each line; `-` reads them from the standard input. Photos, and folders of them, are read for an encoder of images. \
Without --output a line of JSON is printed for each input: {\"input\", \"embedding\"} or {\"input\", \"error\"}.")]
pub struct EmbedArgs {
    /// A folder with model.safetensors and config.json of an encoder; one of texts has a tokenizer.json too
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// A file with a text on each line, or - for the standard input; photos and folders of them
    #[arg(value_name = "FILE|-", required = true)]
    inputs: Vec<PathBuf>,
    /// Write an array [inputs, values] to this file; the row of an input that failed holds NaN
    #[arg(long, value_name = "FILE.npy")]
    output: Option<PathBuf>,
    /// Tokens that texts are cut to and padded to [default: those of the longest text, at most what the model takes]
    #[arg(long, value_name = "N", value_parser = count::<65_536>)]
    sequence: Option<usize>,
    /// What stands for all tokens [default: as the model's folder says]
    #[arg(long, value_name = "HOW")]
    pooling: Option<Pool>,
    /// Whether vectors are divided by their length [default: as the model's folder says]
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

/// What stands for all tokens.
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
    args.output.iter().try_for_each(files::check)?; // before the run, which may be long
    let folder = models::find(Some(&args.model))?;
    let source = Source::collect(&folder, &args.inputs)?;
    let model = args.open(&folder, &source)?;
    let device = setup::open_device(args.device)?;
    let ring = Ring::new(args.batch.map_or(Sizes::Default, Sizes::UpTo), args.kernels);
    let engine = setup::build_engine(&model, &device, &ring)?;
    let mut sink = Sink::new(&engine, args.output.as_deref())?;
    stream(&engine, &model, &source, &mut sink)?;
    let counts = sink.finish()?;
    if stop::requested() {
        let _ = writeln!(io::stderr(), "interrupted: {} of {} inputs were done", counts.done, source.len());
    }
    Ok(match (counts.done - counts.failed, counts.failed) {
        (_, 0) => Outcome::AllGood,
        (0, _) => Outcome::NothingDone,
        _ => Outcome::SomeFailed,
    })
}

impl EmbedArgs {
    /// The encoder, at the size that the inputs need.
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
            ensure!(self.sequence.is_none(), "--sequence is for texts, and the inputs are photos");
            let model = open(&asked)?;
            model.preprocessing().context("the inputs are photos")?;
            return Ok(model);
        };
        match self.sequence {
            Some(sequence) => open(&asked.sequence(sequence)),
            None => open_for(folder, &asked, texts),
        }
    }
}

/// The encoder for texts of this length. One without a mask sees what fills a row: its rows keep the length that it was made
/// for.
pub fn open_for(folder: &std::path::Path, asked: &Embedding, texts: &Texts) -> Result<Model> {
    let open = |asked: &Embedding| Model::open_encoder(folder, asked).context("cannot use the model");
    let longest = open(asked)?;
    let graph = longest.graph(1)?;
    let has = |name: &str| graph.inputs.iter().find(|port| port.name == name);
    let ids = has("input_ids").context("the model reads no texts")?;
    let most = graph.value(ids.value).elems();
    let sequence = texts.longest().next_multiple_of(GRAIN).min(most);
    if sequence == most || has("attention_mask").is_none() {
        return Ok(longest);
    }
    open(&asked.clone().sequence(sequence))
}

/// Numbers of tokens are multiples of it, so that like inputs have the same plan.
const GRAIN: usize = 16;

/// A batch under way: for each input why it has no row, if it has none.
struct Pending {
    problems: Vec<Option<String>>,
    ticket: Option<Ticket>,
}

/// Sends all inputs through the engine, batches overlapping, and gives the sink what became of each, in order.
fn stream(engine: &Engine, model: &Model, source: &Source, sink: &mut Sink<'_>) -> Result<()> {
    let bar = report::progress_bar(source.len() as u64, "{bar:30} {pos}/{len} inputs, {rate} a second, {eta} left");
    let mut under_way = VecDeque::new();
    let mut finish = |pending: Pending| -> Result<()> {
        let count = pending.problems.len() as u64;
        bar.suspend(|| pending.finish(source, sink))?;
        bar.inc(count);
        Ok(())
    };
    for first in (0..source.len()).step_by(engine.capacity()) {
        if stop::requested() {
            break; // what was begun is finished
        }
        if under_way.len() > engine.slots() {
            under_way.pop_front().map_or(Ok(()), &mut finish)?;
        }
        let inputs = first..(first + engine.capacity()).min(source.len());
        under_way.push_back(begin(engine, model, source, inputs)?);
    }
    under_way.into_iter().try_for_each(&mut finish)?;
    bar.finish_and_clear();
    Ok(())
}

/// Fills the rows of a batch with the inputs that are sound, one below the other, and submits it.
fn begin(engine: &Engine, model: &Model, source: &Source, inputs: std::ops::Range<usize>) -> Result<Pending> {
    let mut batch = engine.acquire()?;
    let (mut problems, mut rows) = (Vec::new(), 0);
    for input in inputs {
        let filled = match source {
            Source::Texts(texts) => texts.fill(input, &mut batch, rows),
            Source::Photos(photos) => photo(&photos[input], model, &mut batch, rows),
        };
        rows += usize::from(filled.is_ok());
        problems.push(filled.err());
    }
    let ticket = if rows > 0 { Some(batch.submit(rows)?) } else { None };
    Ok(Pending { problems, ticket })
}

/// Decodes a photo into a row.
fn photo(input: &crate::inputs::Input, model: &Model, batch: &mut Batch, row: usize) -> Result<(), String> {
    if let Some(problem) = &input.problem {
        return Err(problem.clone());
    }
    let load = |preprocessing| image::load(&input.path, preprocessing, batch.port_mut::<u8>(row, "pixels")?);
    model.preprocessing().and_then(load).map_err(|error: Error| error.to_string())
}

impl Pending {
    fn finish(self, source: &Source, sink: &mut Sink<'_>) -> Result<()> {
        let output = self.ticket.map(Ticket::wait).transpose()?;
        let mut row = 0;
        for problem in self.problems {
            let name = source.name(sink.done());
            match (problem, &output) {
                (None, Some(output)) => {
                    sink.add(&name, Ok(output.port::<f32>(row, "embedding")?))?;
                    row += 1;
                }
                (problem, _) => sink.add(&name, Err(&problem.unwrap_or_default()))?,
            }
        }
        Ok(())
    }
}
