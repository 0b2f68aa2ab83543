//! Texts as the numbers of their tokens.

use std::borrow::Cow;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;
use tokenizers::{Encoding, Tokenizer, TruncationParams};
use trefoil::{Batch, Pack, files};

use crate::setup;
use crate::threads::{join, spawn};

/// The most bytes of a tokenizer's file.
const MOST_BYTES: u64 = 1 << 28;

/// A text, or one that cannot be read.
pub struct Line {
    /// The text; of one that cannot be read, what stands for it in results.
    pub text: String,
    /// The reason why the text cannot be read; `None` for a text.
    pub problem: Option<String>,
}

impl From<String> for Line {
    fn from(text: String) -> Self {
        Self { text, problem: None }
    }
}

/// Texts, and the tokens of each.
pub struct Texts {
    lines: Vec<Line>,
    /// The tokens of each text; none for one that cannot be read.
    tokens: Vec<Encoding>,
    tokenizer: Tokenizer,
    /// The number of the token that pads rows.
    padding: i64,
}

impl Texts {
    /// Encodes texts by the `tokenizer.json` in a model's folder.
    pub fn new(model: &Path, lines: Vec<Line>) -> Result<Self> {
        let path = model.join("tokenizer.json");
        ensure!(path.exists(), "{} is not there: texts need the model's tokenizer", path.display());
        let told = |error: tokenizers::Error| anyhow!("{}: {error}", path.display());
        let text = files::read("read the tokenizer", &path, MOST_BYTES)?;
        let mut tokenizer = Tokenizer::from_bytes(text).map_err(told)?;
        let missing = missing_pieces(&serde_json::to_value(tokenizer.get_post_processor())?);
        ensure!(
            missing.is_empty(),
            "{}: its template of a text names {missing:?}, which are not there",
            path.display()
        );
        let padding = match tokenizer.get_padding() {
            Some(padding) => padding.pad_id,
            None => padding_beside(model, &tokenizer)?.unwrap_or(0),
        };
        tokenizer.with_padding(None).with_truncation(None).map_err(told)?;
        let tokens = encoded(&tokenizer, &lines).with_context(|| path.display().to_string())?;
        Ok(Self { lines, tokens, tokenizer, padding: padding.into() })
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// What stands for a text in results.
    pub fn name(&self, input: usize) -> &str {
        &self.lines[input].text
    }

    /// The number of tokens of the longest text.
    pub fn longest(&self) -> usize {
        self.tokens.iter().map(Encoding::len).max().unwrap_or(1).max(1)
    }

    /// The number of texts with more tokens than so many.
    pub fn longer_than(&self, most: usize) -> usize {
        self.tokens.iter().filter(|text| text.len() > most).count()
    }

    /// Writes a text to the ports of a row; a text that is too long is cut, but keeps the tokens that end it.
    pub fn fill(&self, input: usize, batch: &mut Batch, row: usize) -> Result<(), String> {
        let told = |error: trefoil::Error| error.to_string();
        let room = batch.port_mut::<i64>(row, "input_ids").map_err(told)?.len();
        let tokens = self.cut(input, room)?;
        let parts = [
            ("input_ids", tokens.get_ids(), self.padding),
            ("attention_mask", tokens.get_attention_mask(), 0),
            ("token_type_ids", tokens.get_type_ids(), 0),
        ];
        for (port, values, padding) in parts {
            if batch.spec().port(port).is_err() {
                continue; // of types some models know none
            }
            let to = batch.port_mut::<i64>(row, port).map_err(told)?;
            to.fill(padding);
            to.iter_mut().zip(values).for_each(|(to, value)| *to = i64::from(*value));
        }
        Ok(())
    }

    /// Adds a text to a pack, cut to `longest` tokens; `None` where the pack has no room for it.
    pub fn push(&self, input: usize, pack: &mut Pack, longest: usize) -> Result<Option<usize>, String> {
        let tokens = self.cut(input, longest)?;
        let [ids, types] =
            [tokens.get_ids(), tokens.get_type_ids()].map(|of| of.iter().copied().map(i64::from).collect::<Vec<_>>());
        let inputs = [("input_ids", &ids[..]), ("token_type_ids", &types[..])];
        let known = if pack.has("token_type_ids") { &inputs[..] } else { &inputs[..1] };
        pack.push(known).map_err(|error| error.to_string())
    }

    /// The most texts that one pack of `tokens` tokens holds, if texts follow in order, each cut to `longest` tokens.
    pub fn most_rows(&self, tokens: usize, longest: usize) -> usize {
        let (mut most, mut rows, mut left) = (1, 0, tokens);
        for length in self.tokens.iter().filter(|text| !text.is_empty()).map(|text| text.len().min(longest)) {
            if length > left {
                (rows, left) = (0, tokens);
            }
            (rows, left) = (rows + 1, left - length);
            most = most.max(rows);
        }
        most
    }

    /// The tokens of a text, cut to at most `room`.
    fn cut(&self, input: usize, room: usize) -> Result<Cow<'_, Encoding>, String> {
        let line = &self.lines[input];
        if let Some(problem) = &line.problem {
            return Err(problem.clone());
        }
        if self.tokens[input].len() <= room {
            return Ok(Cow::Borrowed(&self.tokens[input]));
        }
        let mut tokenizer = self.tokenizer.clone();
        let truncation = TruncationParams { max_length: room, ..TruncationParams::default() };
        let cut = tokenizer.with_truncation(Some(truncation)).and_then(|it| it.encode(line.text.as_str(), true));
        cut.map(Cow::Owned).map_err(|error| error.to_string())
    }
}

/// The tokens of each line, none for one that cannot be read; each thread gets at least as many lines as make a thread
/// worthwhile.
fn encoded(tokenizer: &Tokenizer, lines: &[Line]) -> Result<Vec<Encoding>> {
    const FEWEST: usize = 256;
    let encode = |line: &Line| match line.problem {
        Some(_) => Ok(Encoding::default()),
        None => tokenizer.encode(line.text.as_str(), true).map_err(|error| anyhow!("{error}")),
    };
    let parts = lines.chunks(lines.len().div_ceil(setup::cores()).max(FEWEST));
    thread::scope(|scope| {
        let named = parts.enumerate().map(|(number, part)| (format!("trefoil-tokens-{number}"), part));
        let started: Vec<_> = named
            .map(|(name, part)| spawn(scope, name, move || part.iter().map(encode).collect::<Result<Vec<_>>>()))
            .collect();
        let parts = started.into_iter().map(|thread| thread.and_then(join)).collect::<Result<Vec<_>>>()?;
        Ok(parts.into_iter().flatten().collect())
    })
}

/// What the templates of a post-processor name and do not have, at which the tokenizer would panic: special tokens, and
/// a second text.
fn missing_pieces(processor: &Value) -> Vec<String> {
    let within = processor["processors"].as_array().into_iter().flatten().flat_map(missing_pieces);
    let is_missing = |piece: &&Value| match piece["SpecialToken"]["id"].as_str() {
        Some(name) => processor["special_tokens"].get(name).is_none(),
        None => piece["Sequence"]["id"] != "A",
    };
    let name = |piece: &Value| piece["SpecialToken"]["id"].as_str().unwrap_or("a second text").to_owned();
    within.chain(processor["single"].as_array().into_iter().flatten().filter(is_missing).map(name)).collect()
}

/// The padding token, by the `tokenizer_config.json` in a model's folder.
fn padding_beside(model: &Path, tokenizer: &Tokenizer) -> Result<Option<u32>> {
    let path = model.join("tokenizer_config.json");
    if !path.exists() {
        return Ok(None);
    }
    let text = files::read("read the tokenizer's configuration", &path, MOST_BYTES)?;
    let config: Value = serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
    let token = &config["pad_token"];
    let name = token.as_str().or_else(|| token["content"].as_str());
    Ok(name.and_then(|name| tokenizer.token_to_id(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_has_the_tokens_that_it_names() {
        let missing = |processor: Value| {
            let model = serde_json::json!({ "type": "BPE", "vocab": {}, "merges": [] });
            let fields = serde_json::json!({ "model": model, "post_processor": processor });
            let tokenizer = Tokenizer::from_bytes(fields.to_string()).unwrap();
            missing_pieces(&serde_json::to_value(tokenizer.get_post_processor()).unwrap())
        };
        let piece = |kind: &str, id: &str| serde_json::json!({ kind: { "id": id, "type_id": 0 } });
        let template = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [{ "SpecialToken": ["[CLS]", 0] }, piece("Sequence", "A"), piece("SpecialToken", "[SEP]")],
            "pair": [piece("SpecialToken", "[MASK]")],
            "special_tokens": { "[SEP]": { "id": "[SEP]", "ids": [1], "tokens": ["[SEP]"] } },
        });
        let sequence = |of: &Value| serde_json::json!({ "type": "Sequence", "processors": [of] });
        assert_eq!(missing(template.clone()), ["[CLS]"]);
        assert_eq!(missing(sequence(&sequence(&template))), ["[CLS]"]);
        let of_two = serde_json::json!({
            "type": "TemplateProcessing", "single": [piece("Sequence", "B")], "pair": [], "special_tokens": {},
        });
        assert_eq!(missing(of_two), ["a second text"]);
        assert!(missing(Value::Null).is_empty());
    }
}
