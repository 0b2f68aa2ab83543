//! Searches sentences by their meaning.
//!
//! usage: sentence_search MODEL FILE QUERY...
//!
//! MODEL is a folder with an encoder of texts and its tokenizer, such as all-MiniLM-L6-v2; FILE has a sentence on each line.

use std::fs;

use anyhow::{Result, anyhow};
use tokenizers::{Tokenizer, TruncationParams};
use trefoil::Engine;
use trefoil::model::{Embedding, Model};

const TOKENS: usize = 64;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let [folder, file] = [(); 2].map(|()| arguments.next().unwrap_or_default());
    let (sentences, query) = (fs::read_to_string(file)?, arguments.collect::<Vec<_>>().join(" "));
    let truncation = TruncationParams { max_length: TOKENS, ..TruncationParams::default() };
    let mut tokenizer = Tokenizer::from_file(format!("{folder}/tokenizer.json")).map_err(|error| anyhow!(error))?;
    tokenizer.with_padding(None).with_truncation(Some(truncation)).map_err(|error| anyhow!(error))?;
    let model = Model::open_encoder(&folder, &Embedding::new().sequence(TOKENS).normalized(true))?;
    let engine = Engine::builder(&model).batch(32).build()?;
    let lines: Vec<&str> = sentences.lines().collect();
    let [wanted, vectors] = [&[&query[..]], &lines[..]].map(|texts| embed(&engine, &tokenizer, texts));
    let (wanted, vectors) = (wanted?.remove(0), vectors?);
    let cosine = |vector: &Vec<f32>| vector.iter().zip(&wanted).map(|(a, b)| a * b).sum::<f32>();
    let mut found: Vec<(f32, &str)> = vectors.iter().map(cosine).zip(lines).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.iter().take(3).for_each(|(cosine, line)| println!("{cosine:.3} {line}"));
    Ok(())
}

/// The vectors of all texts.
fn embed(engine: &Engine, tokenizer: &Tokenizer, texts: &[&str]) -> Result<Vec<Vec<f32>>> {
    let mut vectors = Vec::new();
    for texts in texts.chunks(engine.capacity()) {
        let mut batch = engine.acquire()?;
        for (row, text) in texts.iter().enumerate() {
            let tokens = tokenizer.encode(*text, true).map_err(|error| anyhow!(error))?;
            batch.row_mut(row).fill(0);
            for (port, values) in [("input_ids", tokens.get_ids()), ("attention_mask", tokens.get_attention_mask())] {
                let ids = batch.port_mut::<i64>(row, port)?;
                ids.iter_mut().zip(values).for_each(|(to, value)| *to = i64::from(*value));
            }
        }
        let output = batch.submit(texts.len())?.wait()?;
        for row in 0..texts.len() {
            vectors.push(output.port::<f32>(row, "embedding")?.to_vec());
        }
    }
    Ok(vectors)
}
