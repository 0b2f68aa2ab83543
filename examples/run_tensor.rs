//! Runs a model on raw rows and writes raw rows, for comparisons with other frameworks.
//!
//! It reads rows of u8 NHWC pixels, runs them through an [`Engine`] in batches of one size (the last batch may be
//! smaller), and writes the outputs as rows of little-endian f32 in the same order.
//!
//! ```sh
//! run_tensor weights/efficientnet-lite0 images.u8 logits.f32 --device cuda:0 --batch 32
//! run_tensor models/resnet50 images.u8 value --nodes layer1.0.relu,layer2.0.relu   # value.layer1.0.relu, …
//! ```

use std::collections::VecDeque;
use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use trefoil::model::Model;
use trefoil::{Device, Engine, OutputKind, Target, Ticket};

const USAGE: &str = "\
usage: run_tensor MODEL INPUT.u8 OUTPUT.f32 [option...]
  --device D     auto (default), cpu or cuda:N
  --batch N      rows of one batch (default 32)
  --output KIND  logits (default) or features
  --node NAME    the value of one node of the graph, NHWC
  --nodes LIST   the values of several, each written to OUTPUT.NAME: names with commas, or a file with one a line
  --plan         print the plan";

fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(what) => {
            eprintln!("run_tensor: {what}\n{USAGE}");
            return ExitCode::from(64);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("run_tensor: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Arguments {
    model: PathBuf,
    input: PathBuf,
    output: PathBuf,
    device: Target,
    batch: usize,
    what: What,
    plan: bool,
}

/// The values that are written.
enum What {
    Output(OutputKind),
    Node(String),
    Nodes(Vec<String>),
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut files = Vec::new();
        let (mut device, mut batch, mut what, mut plan) = (Target::Auto, 32, What::Output(OutputKind::Logits), false);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--device" => device = value()?.parse()?,
                "--batch" => batch = value()?.parse().map_err(|_| "--batch needs a number")?,
                "--output" => what = What::Output(output_kind(&value()?)?),
                "--node" => what = What::Node(value()?),
                "--nodes" => what = What::Nodes(names(&value()?)?),
                "--plan" => plan = true,
                option if option.starts_with("--") => return Err(format!("unknown option {option}").into()),
                file => files.push(PathBuf::from(file)),
            }
        }
        let [model, input, output] = <[PathBuf; 3]>::try_from(files).map_err(|_| "three paths are needed")?;
        Ok(Self { model, input, output, device, batch, what, plan })
    }
}

fn output_kind(word: &str) -> Result<OutputKind, String> {
    match word {
        "logits" => Ok(OutputKind::Logits),
        "features" => Ok(OutputKind::Features),
        _ => Err(format!("--output {word}: expected logits or features")),
    }
}

fn names(list: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let text = if Path::new(list).is_file() { fs::read_to_string(list)? } else { list.replace(',', "\n") };
    let names: Vec<String> = text.lines().map(str::trim).filter(|n| !n.is_empty()).map(String::from).collect();
    if names.is_empty() {
        return Err(format!("--nodes {list}: no names").into());
    }
    Ok(names)
}

fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let pixels = fs::read(&arguments.input).map_err(|e| format!("{}: {e}", arguments.input.display()))?;
    let model = Model::open(&arguments.model)?;
    let device = Device::open(arguments.device)?;
    eprintln!("{} on {}", arguments.model.display(), device.info().name);
    let job = Job { device: &device, batch: arguments.batch, plan: arguments.plan, pixels: &pixels };
    match &arguments.what {
        What::Output(kind) => job.run(&model, *kind, &arguments.output),
        What::Node(name) => job.run(&model.features_at(name)?, OutputKind::Features, &arguments.output),
        What::Nodes(names) => names.iter().try_for_each(|name| {
            let mut path = arguments.output.clone().into_os_string();
            path.push(".");
            path.push(name);
            job.run(&model.features_at(name)?, OutputKind::Features, Path::new(&path))
        }),
    }
}

/// The rows and options of runs, which are the same for all models.
struct Job<'a> {
    device: &'a Device,
    batch: usize,
    plan: bool,
    pixels: &'a [u8],
}

impl Job<'_> {
    fn run(&self, model: &Model, kind: OutputKind, path: &Path) -> Result<(), Box<dyn Error>> {
        let engine = Engine::builder(model).on(self.device).batch_sizes(&[self.batch]).output(kind).build()?;
        if self.plan {
            engine.plans().iter().for_each(|plan| println!("{plan}"));
        }
        let (input, output) = (engine.input(), engine.output());
        if self.pixels.is_empty() || !self.pixels.len().is_multiple_of(input.row_bytes) {
            let (bytes, row, shape) = (self.pixels.len(), input.row_bytes, input);
            return Err(format!("the input has {bytes} bytes, expected rows of {row} ({shape})").into());
        }
        let rows = self.pixels.len() / input.row_bytes;
        let mut sink = Sink { file: BufWriter::new(File::create(path)?), rows: 0, not_finite: 0 };
        let mut in_flight = VecDeque::new();
        for chunk in self.pixels.chunks(self.batch * input.row_bytes) {
            if in_flight.len() == engine.slots() {
                sink.write(in_flight.pop_front().expect("as many as slots"))?;
            }
            let mut batch = engine.acquire()?;
            let images = chunk.chunks(input.row_bytes);
            let filled = images.len();
            batch.rows_mut().zip(images).for_each(|(row, image)| row.copy_from_slice(image));
            in_flight.push_back(batch.submit(filled)?);
        }
        in_flight.into_iter().try_for_each(|ticket| sink.write(ticket))?;
        sink.file.flush()?;
        assert_eq!(sink.rows, rows, "each row is answered once");
        eprintln!("{rows} rows of {} -> {}, {} not finite", output, path.display(), sink.not_finite);
        Ok(())
    }
}

struct Sink {
    file: BufWriter<File>,
    rows: usize,
    /// Number of values that are NaN or infinite; they are written unchanged.
    not_finite: usize,
}

impl Sink {
    fn write(&mut self, ticket: Ticket) -> Result<(), Box<dyn Error>> {
        let output = ticket.wait()?;
        for row in 0..output.rows() {
            self.not_finite += output.values(row).iter().filter(|value| !value.is_finite()).count();
            self.file.write_all(output.row(row))?;
        }
        self.rows += output.rows();
        Ok(())
    }
}
