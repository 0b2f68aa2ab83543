//! `trefoil classify`: many threads decode straight into page-locked rows; answers come in the order of the inputs.

mod likeness;

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use anyhow::{Result, anyhow, ensure};
use serde::Serialize;
use trefoil::model::Model;
use trefoil::{Batch, Engine, Error, Output, OutputKind, Ticket, image};

use crate::cli::ClassifyArgs;
use crate::inputs::{Input, Inputs};
use crate::ordered::{Reorder, Turns};
use crate::report::{self, Class};
use crate::setup::{self, Ring, Sizes};
use crate::threads::spawn;
use crate::{Outcome, stop};
use likeness::{Labels, Likeness};

/// The most classes that are chosen on the device; more are chosen on the host.
const MAX_DEVICE_TOP: usize = 64;
/// How many turns of each thread may be in flight or wait for an earlier one.
const TURNS_AHEAD: usize = 4;

/// The parts that all threads share.
struct Job<'a> {
    model: &'a Model,
    engine: &'a Engine,
    inputs: &'a [Input],
    /// Inputs of one turn: at most a batch.
    share: usize,
    classes: Classes,
    turns: Turns,
}

/// Where the classes of a photo come from.
enum Classes {
    /// The most probable of the network's own classes, this many.
    Network(usize),
    /// The texts that the photo is compared with.
    Texts(Likeness),
}

/// The result of one input, as it is printed.
struct Answer<'a> {
    path: &'a Path,
    result: Result<Vec<Class>, String>,
}

/// A turn whose photos are decoded and submitted.
struct Pending<'a> {
    turn: usize,
    /// Each input with its row, or with the reason why it has none.
    photos: Vec<(&'a Path, Result<usize, String>)>,
    /// The submission of the rows; `None` where there is no row.
    ticket: Option<Result<Ticket, Error>>,
}

pub fn run(args: &ClassifyArgs) -> Result<Outcome> {
    let Inputs { list: inputs, skipped } = Inputs::collect(&args.paths);
    let (model, labels) = match &args.labels_from_text {
        None => (args.place.open()?.0, None),
        Some(labels) => Labels::open(args, labels).map(|(model, labels)| (model, Some(labels)))?,
    };
    ensure!(
        labels.is_some() || model.classes() > 0,
        "{}: it is no network of images with classes; `trefoil run` gives the outputs of any model, `trefoil embed` the \
         vectors of an encoder, and --labels-from-text classifies by CLIP or SigLIP",
        model.name()
    );
    let device = setup::open_device(args.place.device)?;
    let classes = match labels {
        None => Classes::Network(args.top.min(model.classes())),
        Some(labels) => Classes::Texts(labels.likeness(args, &device)?),
    };
    let threads = args.threads.unwrap_or_else(setup::cores).min(inputs.len());
    let sizes = args.batch.map_or(Sizes::Default, Sizes::UpTo);
    let output = match classes {
        Classes::Network(top) if top <= MAX_DEVICE_TOP => OutputKind::TopK(top),
        _ => OutputKind::Probabilities,
    };
    let ring = Ring { slots: args.slots, producers: threads, output, ..Ring::new(sizes, args.place.kernels) };
    let engine = setup::build_engine(&model, &device, &ring)?;

    // A few photos are spread over the threads instead of waiting until one thread has filled a batch.
    let share = inputs.len().div_ceil(threads).clamp(1, engine.capacity());
    let turns = Turns::new(inputs.len().div_ceil(share), TURNS_AHEAD * threads);
    let job = Job { model: &model, engine: &engine, inputs: &inputs, share, classes, turns };
    let outcome = job.run(threads, args.json)?;
    if skipped > 0 {
        let _ =
            writeln!(io::stderr(), "note: {skipped} pictures in folders are neither JPEG nor PNG and were passed over");
    }
    Ok(outcome)
}

impl<'a> Job<'a> {
    fn run(&'a self, threads: usize, json: bool) -> Result<Outcome> {
        thread::scope(|scope| {
            let (sender, receiver) = mpsc::channel();
            let mut workers = Vec::new();
            for index in 0..threads {
                let sender = sender.clone();
                let worker = spawn(scope, format!("trefoil-decode-{index}"), move || self.work(&sender));
                workers.push(worker.inspect_err(|_| self.turns.stop())?);
            }
            drop(sender);
            let printed = self.print_in_order(receiver, json);
            self.turns.stop(); // where printing ended early
            let panicked = workers.into_iter().map(|worker| worker.join()).filter(Result::is_err).count();
            match panicked {
                0 => printed,
                _ => Err(anyhow!("internal error, please report it: {panicked} decoding threads panicked")),
            }
        })
    }

    /// One thread: decodes a turn while the device computes the one before it.
    fn work(&'a self, answers: &Sender<(usize, Vec<Answer<'a>>)>) {
        let _guard = self.turns.stop_on_panic();
        let mut pending: Option<Pending> = None;
        let hand_in = |pending: Option<Pending<'a>>| {
            if let Some(pending) = pending {
                // After a broken pipe the receiver is gone; then no more turns come either.
                let _ = answers.send((pending.turn, pending.finish(self)));
            }
        };
        loop {
            if stop::requested() {
                self.turns.stop(); // what was begun is finished and printed
            }
            let turn = self.turns.try_claim().or_else(|| {
                hand_in(pending.take());
                self.turns.claim()
            });
            let Some(turn) = turn else { break };
            let begun = self.begin(turn);
            hand_in(pending.replace(begun));
        }
        hand_in(pending);
    }

    /// Decodes a turn's photos into the rows of a batch, one after the other, and submits those that were decoded.
    fn begin(&'a self, turn: usize) -> Pending<'a> {
        let first = turn * self.share;
        let inputs = &self.inputs[first..(first + self.share).min(self.inputs.len())];
        let (mut photos, mut rows) = (Vec::with_capacity(inputs.len()), 0);
        let mut batch = match self.engine.acquire() {
            Ok(batch) => batch,
            Err(error) => {
                let why = |input: &'a Input| (input.path.as_path(), Err(error.to_string()));
                return Pending { turn, photos: inputs.iter().map(why).collect(), ticket: None };
            }
        };
        for input in inputs {
            let row = self.decode(input, &mut batch, rows);
            rows += usize::from(row.is_ok());
            photos.push((input.path.as_path(), row));
        }
        Pending { turn, photos, ticket: (rows > 0).then(|| batch.submit(rows)) }
    }

    fn decode(&self, input: &Input, batch: &mut Batch, row: usize) -> Result<usize, String> {
        if let Some(problem) = &input.problem {
            return Err(format!("{}: {problem}", input.path.display()));
        }
        let load = |how| {
            let pixels = match self.classes {
                Classes::Network(_) => batch.row_mut(row),
                Classes::Texts(_) => batch.port_mut::<u8>(row, "pixels")?,
            };
            image::load(&input.path, how, pixels)
        };
        let loaded = self.model.preprocessing().and_then(load);
        loaded.map(|()| row).map_err(|error| error.to_string())
    }

    fn print_in_order(&self, answers: Receiver<(usize, Vec<Answer>)>, json: bool) -> Result<Outcome> {
        let bar =
            report::progress_bar(self.inputs.len() as u64, "{bar:30} {pos}/{len} photos, {rate} a second, {eta} left");
        let (mut reorder, mut done, mut failed) = (Reorder::new(), 0, 0);
        for (turn, turn_answers) in answers {
            reorder.push(turn, turn_answers);
            while let Some(ready) = reorder.pop() {
                for answer in &ready {
                    bar.suspend(|| answer.print(json))?;
                    bar.inc(1);
                    let count = if answer.result.is_ok() { &mut done } else { &mut failed };
                    *count += 1;
                }
                self.turns.finish_oldest();
            }
        }
        bar.finish_and_clear();
        if stop::requested() {
            let _ = writeln!(io::stderr(), "interrupted: {} of {} photos were done", done + failed, self.inputs.len());
        }
        Ok(match (done, failed) {
            (_, 0) => Outcome::AllGood,
            (0, _) => Outcome::NothingDone,
            _ => Outcome::SomeFailed,
        })
    }
}

impl Classes {
    /// The most probable classes of a row.
    fn of(&self, model: &Model, output: &Output, row: usize) -> Result<Vec<Class>> {
        match self {
            Self::Network(top) => Ok(Class::list(model, &output.top_k(row, *top)?)),
            Self::Texts(likeness) => likeness.classes(output.port::<f32>(row, "embedding")?),
        }
    }
}

impl<'a> Pending<'a> {
    /// Waits for the device and reads the answers.
    fn finish(self, job: &Job) -> Vec<Answer<'a>> {
        let output = self.ticket.map(|ticket| ticket.and_then(Ticket::wait).map_err(|error| error.to_string()));
        let classes = |path: &Path, row: usize| match &output {
            Some(Ok(output)) => {
                job.classes.of(job.model, output, row).map_err(|error| format!("{}: {error}", path.display()))
            }
            Some(Err(error)) => Err(error.clone()),
            None => Err("internal error, please report it: decoded but not submitted".to_owned()),
        };
        let answer = |(path, row): (&'a Path, Result<usize, String>)| {
            let result = row.and_then(|row| classes(path, row));
            Answer { path, result }
        };
        self.photos.into_iter().map(answer).collect()
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Line<'a> {
    Top { path: String, top: &'a [Class] },
    Error { path: String, error: &'a str },
}

impl Answer<'_> {
    /// Classes go to stdout, errors to stderr; as JSON both go to stdout.
    fn print(&self, json: bool) -> Result<()> {
        let mut out = io::stdout().lock();
        if json {
            let path = self.path.to_string_lossy().into_owned();
            let line = match &self.result {
                Ok(top) => Line::Top { path, top },
                Err(error) => Line::Error { path, error },
            };
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
            return Ok(());
        }
        match &self.result {
            Ok(top) => {
                writeln!(out, "{}", report::path(self.path))?;
                top.iter().try_for_each(|class| writeln!(out, "{}", class.line()))?;
            }
            Err(error) => {
                let _ = writeln!(io::stderr(), "error: {}", report::message(error));
            }
        }
        Ok(())
    }
}
