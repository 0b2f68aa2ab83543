//! Times BERT-large, with random weights, on texts whose lengths are like those of SQuAD: end to end in packs, and padded.
//!
//! usage: packed_times [ROUNDS] [TOKENS] [LAYERS]
//!
//! The lengths are in `benches/data/squad_lengths.txt`, written by `benches/squad_lengths.py`. In each of ROUNDS rounds
//! (5), all texts go through an engine of packs of TOKENS tokens (8192), then through one of batches of 32 rows of 384
//! tokens. A time is from the first submission to the last answer, including copies in and out, with as many batches in
//! flight as the engine has slots. The first round also compares both answers of each text.

#[path = "../tests/support/embedding/mod.rs"]
#[allow(dead_code, reason = "tests compare results too")]
mod embedding;
#[path = "../tests/support/random.rs"]
#[expect(dead_code, reason = "tests draw other numbers too")]
mod random;
#[path = "../tests/support/tolerance.rs"]
#[allow(dead_code, reason = "tests compare results too")]
mod tolerance;

use std::collections::VecDeque;
use std::time::Instant;

use embedding::folder::{self, Folder, Size};
use random::Random;
use trefoil::model::{Embedding, Model};
use trefoil::{Batch, Device, Engine, Error, Output, Pack, Packed, Packing, Target, Ticket};

const LENGTHS: &str = include_str!("../benches/data/squad_lengths.txt");
const LARGE: Size = Size { width: 1024, heads: 16, inner: 4096, layers: 24, words: 30_522, side: 0, patch: 0 };
/// Tokens of a padded row, and rows of a batch of them.
const LONGEST: usize = 384;
const ROWS: usize = 32;
/// The least cosine between both answers of a text: the same that is required of a trained model's rounded sentences.
const LEAST_COSINE: f64 = 0.9999;

fn main() -> Result<(), Error> {
    let arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("all arguments are numbers"));
    let arguments: Vec<usize> = arguments.collect();
    let argument = |index: usize, otherwise: usize| arguments.get(index).copied().unwrap_or(otherwise);
    let (rounds, tokens, layers) = (argument(0, 5), argument(1, 8192), argument(2, LARGE.layers));
    let texts = texts();
    let total: usize = texts.iter().map(Vec::len).sum();
    let mean = total as f64 / texts.len() as f64;
    println!("{} texts, {mean:.1} tokens in the mean, {layers} layers", texts.len());

    let (config, stored) = folder::bert(Size { layers, ..LARGE }, "", 512);
    let folder = Folder::new(&config, &stored.tensors);
    let asked = Embedding::new().sequence(LONGEST);
    let device = Device::open(Target::Cuda(0))?;
    // A pack has room for a quarter more texts than the mean length gives.
    let rows = (tokens as f64 / mean * 1.25).ceil() as usize;
    let packed = Model::open_encoder(&folder.0, &asked.clone().packed(tokens, rows))?;
    let padded = Model::open_encoder(&folder.0, &asked)?;
    let size = packed.packing().expect("packed texts");
    let packed = Engine::builder(&packed).on(&device).build()?;
    let padded = Engine::builder(&padded).on(&device).batch_sizes(&[ROWS]).build()?;
    println!("packs of {size}, {} slots; batches of {ROWS} rows of {LONGEST}", packed.slots());

    let [mut of_packs, mut of_rows] = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        let (seconds, together) = in_packs(&packed, size, &texts)?;
        let (seconds_padded, apart) = in_rows(&padded, &texts)?;
        if round == 0 {
            let worst = together.iter().zip(&apart).map(|(a, b)| cosine(a, b)).fold(f64::INFINITY, f64::min);
            println!("least cosine of both answers of a text: {worst:.6}");
            assert!(together.len() == texts.len() && apart.len() == texts.len() && worst >= LEAST_COSINE);
            continue; // warm-up
        }
        of_packs.push(seconds);
        of_rows.push(seconds_padded);
    }
    for (name, times) in [("packed", &mut of_packs), ("padded", &mut of_rows)] {
        times.sort_by(f64::total_cmp);
        let rate = |seconds: f64| texts.len() as f64 / seconds;
        let (first, median, last) = (times[0], times[times.len() / 2], times[times.len() - 1]);
        let tokens = total as f64 / median;
        println!(
            "{name}: {:.0} rows/s ({:.0} to {:.0}), {:.2} M tokens/s",
            rate(median),
            rate(last),
            rate(first),
            tokens / 1e6
        );
    }
    Ok(())
}

/// Texts of random tokens, with the kept lengths.
fn texts() -> Vec<Vec<i64>> {
    let lengths = LENGTHS.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
    let mut random = Random::new("packed texts");
    let mut text = |length: usize| (0..length).map(|_| random.between(0, LARGE.words - 1) as i64).collect();
    lengths.map(|length| text(length.parse().expect("a length"))).collect()
}

/// The seconds for all texts in packs, in their order, and the answers.
fn in_packs(engine: &Engine, size: Packing, texts: &[Vec<i64>]) -> Result<(f64, Vec<Vec<f32>>), Error> {
    let (mut flight, mut answers) = (VecDeque::new(), Vec::new());
    let mut next = texts.iter().peekable();
    let start = Instant::now();
    while next.peek().is_some() {
        if flight.len() == engine.slots() {
            answer(&mut flight, &mut answers)?;
        }
        let mut pack = Pack::new(engine.acquire()?, size)?;
        while let Some(text) = next.peek()
            && pack.push(&[("input_ids", &text[..])])?.is_some()
        {
            next.next();
        }
        flight.push_back(pack.submit()?);
    }
    while !flight.is_empty() {
        answer(&mut flight, &mut answers)?;
    }
    Ok((start.elapsed().as_secs_f64(), answers))
}

fn answer(flight: &mut VecDeque<(Ticket, Packed)>, answers: &mut Vec<Vec<f32>>) -> Result<(), Error> {
    let (ticket, packed) = flight.pop_front().expect("one is in flight");
    let output: Output = ticket.wait()?;
    for row in 0..packed.len() {
        answers.push(packed.port::<f32>(&output, row, "embedding")?.to_vec());
    }
    Ok(())
}

/// The seconds for all texts in batches of padded rows, and the answers.
fn in_rows(engine: &Engine, texts: &[Vec<i64>]) -> Result<(f64, Vec<Vec<f32>>), Error> {
    let (mut flight, mut answers) = (VecDeque::<(Ticket, usize)>::new(), Vec::new());
    let mut wait = |flight: &mut VecDeque<(Ticket, usize)>| -> Result<(), Error> {
        let (ticket, rows) = flight.pop_front().expect("one is in flight");
        let output = ticket.wait()?;
        for row in 0..rows {
            answers.push(output.port::<f32>(row, "embedding")?.to_vec());
        }
        Ok(())
    };
    let start = Instant::now();
    for rows in texts.chunks(ROWS) {
        if flight.len() == engine.slots() {
            wait(&mut flight)?;
        }
        let mut batch = engine.acquire()?;
        for (row, text) in rows.iter().enumerate() {
            fill(&mut batch, row, "input_ids", text.iter().copied())?;
            fill(&mut batch, row, "attention_mask", text.iter().map(|_| 1))?;
            fill(&mut batch, row, "token_type_ids", [].into_iter())?;
        }
        flight.push_back((batch.submit(rows.len())?, rows.len()));
    }
    while !flight.is_empty() {
        wait(&mut flight)?;
    }
    Ok((start.elapsed().as_secs_f64(), answers))
}

/// Fills a port of a row with these numbers, followed by zeros.
fn fill(batch: &mut Batch, row: usize, port: &str, numbers: impl Iterator<Item = i64>) -> Result<(), Error> {
    let to = batch.port_mut::<i64>(row, port)?;
    to.fill(0);
    to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number);
    Ok(())
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
