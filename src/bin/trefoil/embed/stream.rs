//! Streams inputs through an engine: batches are filled, and their results taken in order.

use std::collections::VecDeque;

use anyhow::Result;
use trefoil::model::Model;
use trefoil::{Batch, Engine, Error, Pack, Packed, Packing, Ticket, image};

use super::source::Source;
use super::tokens::Texts;
use super::write::Sink;
use crate::{report, stop};

/// A batch in flight: for each input the reason why it has no row, or `None`.
struct Pending {
    problems: Vec<Option<String>>,
    ticket: Option<Ticket>,
    /// Where the rows are, if texts lie end to end in one pack.
    packed: Option<Packed>,
}

/// Sends all inputs through the engine in overlapping batches, and gives each result to the sink, in order.
pub fn stream(engine: &Engine, model: &Model, source: &Source, sink: &mut Sink<'_>) -> Result<()> {
    let bar = report::progress_bar(source.len() as u64, "{bar:30} {pos}/{len} inputs, {rate} a second, {eta} left");
    let mut under_way = VecDeque::new();
    let mut finish = |pending: Pending| -> Result<()> {
        let count = pending.problems.len() as u64;
        bar.suspend(|| pending.finish(source, sink))?;
        bar.inc(count);
        Ok(())
    };
    let mut next = 0;
    while next < source.len() && !stop::requested() {
        if under_way.len() > engine.slots() {
            under_way.pop_front().map_or(Ok(()), &mut finish)?;
        }
        let pending = match (source, model.packing()) {
            (Source::Texts(texts), Some(size)) => begin_packed(engine, size, texts, next)?,
            _ => begin(engine, model, source, next)?,
        };
        next += pending.problems.len();
        under_way.push_back(pending);
    }
    under_way.into_iter().try_for_each(&mut finish)?; // what was begun is finished
    bar.finish_and_clear();
    Ok(())
}

/// Fills the rows of a batch with the next valid inputs, one after the other, and submits it.
fn begin(engine: &Engine, model: &Model, source: &Source, first: usize) -> Result<Pending> {
    let mut batch = engine.acquire()?;
    let (mut problems, mut rows) = (Vec::new(), 0);
    for input in first..(first + engine.capacity()).min(source.len()) {
        let filled = fill(model, source, input, &mut batch, rows);
        rows += usize::from(filled.is_ok());
        problems.push(filled.err());
    }
    let ticket = if rows > 0 { Some(batch.submit(rows)?) } else { None };
    Ok(Pending { problems, ticket, packed: None })
}

/// Fills a row with an input.
pub fn fill(model: &Model, source: &Source, input: usize, batch: &mut Batch, row: usize) -> Result<(), String> {
    match source {
        Source::Texts(texts) => texts.fill(input, batch, row),
        Source::Photos(photos) => photo(&photos[input], model, batch, row),
    }
}

/// Fills a pack with the next valid texts, end to end, until one has no room, and submits it.
fn begin_packed(engine: &Engine, size: Packing, texts: &Texts, first: usize) -> Result<Pending> {
    let mut pack = Pack::new(engine.acquire()?, size)?;
    let mut problems = Vec::new();
    for input in first..texts.len() {
        match texts.push(input, &mut pack, size.longest) {
            Ok(None) => break,
            pushed => problems.push(pushed.err()),
        }
    }
    let (ticket, packed) =
        if pack.is_empty() { (None, None) } else { pack.submit().map(|(a, b)| (Some(a), Some(b)))? };
    Ok(Pending { problems, ticket, packed })
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
                    let vector = match &self.packed {
                        Some(rows) => rows.port(output, row, "embedding")?,
                        None => output.port(row, "embedding")?,
                    };
                    sink.add(&name, Ok(vector))?;
                    row += 1;
                }
                (problem, _) => sink.add(&name, Err(&problem.unwrap_or_default()))?,
            }
        }
        Ok(())
    }
}
