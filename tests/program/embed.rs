//! Texts and photos as vectors: their order, where they are written, and the errors of inputs that fail.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use trefoil::model::{Embedding, Model};
use trefoil::{Device, Engine, Target};

use super::embedding::Problem;
use super::embedding::folder::Folder;
use super::embedding::problems::all;
use super::{expect_code, json_lines, program, run, stderr, stdout};

const WORDS: [&str; 8] = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cats", "purr", "dogs", "##s"];
pub const TEXTS: [&str; 5] = ["Cats purr", "dogs", "cats purr, cats purr, dogs purr", "", "CATS PURR"];

pub fn problem(name: &str) -> Problem {
    all().into_iter().find(|problem| problem.name == name).expect("a problem of this name")
}

/// A folder with an encoder of texts and a tokenizer of [`WORDS`].
pub fn of_texts() -> Folder {
    let folder = problem("BERT, mean, unit").folder();
    add_tokenizer(&folder, 3);
    folder
}

/// Writes a tokenizer of [`WORDS`]; its token that ends a text gets the number `end`.
pub fn add_tokenizer(folder: &Folder, end: usize) {
    let number = |index: usize| if index == 3 { end } else { index };
    let special = |id: usize| {
        json!({
            "id": number(id), "content": WORDS[id], "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true,
        })
    };
    let token = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    let known = |id: usize| json!({"id": WORDS[id], "ids": [number(id)], "tokens": [WORDS[id]]});
    let vocabulary: serde_json::Map<String, Value> =
        WORDS.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(number(id)))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "decoder": null,
        "padding": {"strategy": {"Fixed": 128}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": [token("[CLS]"), sequence, token("[SEP]")], "pair": [sequence],
            "special_tokens": {"[CLS]": known(2), "[SEP]": known(3)},
        },
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
            "vocab": vocabulary,
        },
    });
    fs::write(folder.0.join("tokenizer.json"), tokenizer.to_string()).unwrap();
}

pub fn path(folder: &Folder) -> &str {
    folder.0.to_str().unwrap()
}

/// Writes a file with these texts, one on each line; returns its path.
pub fn lines(folder: &Folder, texts: &[&str]) -> String {
    let path = folder.0.join("texts.txt");
    fs::write(&path, texts.join("\n") + "\n").unwrap();
    path.to_str().unwrap().to_owned()
}

pub fn vectors(lines: &[Value]) -> Vec<Vec<f32>> {
    let number = |value: &Value| value.as_f64().unwrap() as f32;
    lines.iter().map(|line| line["embedding"].as_array().unwrap().iter().map(number).collect()).collect()
}

/// The library's vector for these numbers of tokens.
fn by_library(folder: &Path, ids: &[i64]) -> Vec<f32> {
    let model = Model::open_encoder(folder, &Embedding::new().sequence(16)).unwrap();
    let engine = Engine::builder(&model).on(&Device::open(Target::Cpu).unwrap()).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.row_mut(0).fill(0);
    batch.port_mut::<i64>(0, "input_ids").unwrap()[..ids.len()].copy_from_slice(ids);
    batch.port_mut::<i64>(0, "attention_mask").unwrap()[..ids.len()].fill(1);
    batch.submit(1).unwrap().wait().unwrap().port::<f32>(0, "embedding").unwrap().to_vec()
}

/// Whether two vectors differ by no more than sums of f32 in another order.
fn is_near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
}

/// An encoder whose numbers overflow gives an error instead of a vector.
#[test]
fn a_vector_that_is_not_finite_is_an_error() {
    let mut spoilt = problem("BERT, mean, unit");
    let (name, scale) = spoilt.tensors.iter_mut().rfind(|(name, _)| name.ends_with("LayerNorm.weight")).unwrap();
    scale.1.fill(f32::MAX);
    println!("{name} is spoilt");
    let folder = spoilt.folder();
    add_tokenizer(&folder, 3);
    let texts = lines(&folder, &TEXTS[..2]);
    let output = run(&["embed", path(&folder), &texts, "--device", "cpu"]);
    expect_code(&output, 1);
    for line in json_lines(&output) {
        assert_eq!(line["error"], "its vector is not finite", "{line}");
    }
}

/// The system refuses a thread that turns texts into tokens.
#[test]
fn texts_without_a_thread_are_an_error() {
    let folder = of_texts();
    let texts = lines(&folder, &TEXTS);
    let mut command = program();
    command.args(["embed", path(&folder), &texts, "--device", "cpu"]);
    let output = command.env("RUST_MIN_STACK", (1_u64 << 60).to_string()).output().unwrap();
    expect_code(&output, 1);
    let said = stderr(&output);
    assert!(said.contains("cannot start the thread trefoil-tokens-0") && !said.contains("panicked"), "{said}");
}

#[test]
fn texts_become_vectors_in_their_order() {
    let folder = of_texts();
    let file = lines(&folder, &TEXTS);
    let output = run(&["embed", path(&folder), &file, "--device", "cpu", "--batch", "2"]);
    expect_code(&output, 0);
    let told = json_lines(&output);
    let inputs: Vec<&str> = told.iter().map(|line| line["input"].as_str().unwrap()).collect();
    assert_eq!(inputs, TEXTS);
    let vectors = vectors(&told);
    assert_eq!(vectors[0], vectors[4], "case does not count");
    for (index, ids) in
        [&[2, 4, 5, 3][..], &[2, 6, 3], &[2, 4, 5, 1, 4, 5, 1, 6, 5, 3], &[2, 3]].into_iter().enumerate()
    {
        assert!(is_near(&vectors[index], &by_library(&folder.0, ids)), "{}", TEXTS[index]);
    }
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    assert!((length(&vectors[0]) - 1.0).abs() > 1e-3);
    let units = run(&["embed", path(&folder), &file, "--device", "cpu", "--normalize", "on"]);
    assert!(self::vectors(&json_lines(&units)).iter().all(|vector| (length(vector) - 1.0).abs() < 1e-5));
}

#[test]
fn the_standard_input_and_an_array_are_the_same_vectors() {
    let folder = of_texts();
    let file = lines(&folder, &TEXTS);
    let lines = vectors(&json_lines(&run(&["embed", path(&folder), &file, "--device", "cpu"])));
    let array = folder.0.join("vectors.npy");
    let mut command = program();
    command.args(["embed", path(&folder), "-", "--device", "cpu", "--output", array.to_str().unwrap()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(TEXTS.join("\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    expect_code(&output, 0);
    assert_eq!(stdout(&output), "");
    let file = fs::read(&array).unwrap();
    let start = 10 + usize::from(u16::from_le_bytes([file[8], file[9]]));
    assert!(String::from_utf8_lossy(&file[..start]).contains("'<f4', 'fortran_order': False, 'shape': (5, 64,)"));
    let all: Vec<f32> =
        file[start..].chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(all, lines.concat());
}

#[test]
fn long_texts_are_cut_before_their_end() {
    let folder = of_texts();
    let file = lines(&folder, &["cats purr dogs purr cats", "cats purr"]);
    let output = run(&["embed", path(&folder), &file, "--device", "cpu", "--sequence", "4"]);
    expect_code(&output, 0);
    let vectors = vectors(&json_lines(&output));
    assert_eq!(vectors[0], vectors[1]);
    assert!(stderr(&output).contains("one text is longer than 4 tokens and is cut"), "{}", stderr(&output));
    let long = lines(&folder, &["cats ".repeat(100).as_str()]);
    expect_code(&run(&["embed", path(&folder), &long, "--device", "cpu"]), 0);
}

/// Texts in many packs of few tokens, and all in one pack; a text that is too long is cut as a row is.
#[test]
fn packed_texts_have_the_vectors_of_padded_ones() {
    let folder = of_texts();
    let file = lines(&folder, &[&TEXTS[..], &["cats ".repeat(100).as_str(), "purr"]].concat());
    for more in [&["--sequence", "12"][..], &[]] {
        let embed = |packed: &[&str]| {
            let output = run(&[&["embed", path(&folder), &file, "--device", "cpu"], packed, more].concat());
            expect_code(&output, 0);
            vectors(&json_lines(&output))
        };
        let padded = embed(&[]);
        for tokens in ["40", "200"] {
            let packed = embed(&["--packed", tokens]);
            assert_eq!(packed.len(), padded.len());
            assert!(packed.iter().zip(&padded).all(|(a, b)| is_near(a, b)), "{tokens} tokens: {packed:?}, {padded:?}");
            assert_eq!(packed[0], packed[4], "the same text in the same size has the same bits");
        }
    }
}

#[test]
fn photos_become_vectors_and_a_broken_one_is_told() {
    let folder = problem("ViT, classes").folder();
    let photos = folder.0.join("photos");
    fs::create_dir(&photos).unwrap();
    for name in ["chelsea.png", "rocket.jpg"] {
        fs::copy(super::root().join("weights/photos").join(name), photos.join(name)).unwrap();
    }
    fs::write(photos.join("empty.png"), b"").unwrap();
    let photos = photos.to_str().unwrap();
    let output = run(&["embed", path(&folder), photos, "--device", "cpu"]);
    expect_code(&output, 2);
    let told = json_lines(&output);
    let ends = ["chelsea.png", "empty.png", "rocket.jpg"];
    assert!(told.iter().zip(ends).all(|(line, end)| line["input"].as_str().unwrap().ends_with(end)), "{told:?}");
    assert!(told[1]["error"].as_str().unwrap().contains("empty.png"), "{told:?}");
    assert!(told[0]["embedding"].as_array().unwrap().len() == 64 && told[0]["embedding"] != told[2]["embedding"]);
    let texts = of_texts();
    let output = run(&["embed", path(&texts), photos, "--device", "cpu"]);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("the inputs are photos"), "{}", stderr(&output));
}

#[test]
fn what_is_missing_is_named() {
    let folder = problem("BERT, mean, unit").folder();
    let file = lines(&folder, &TEXTS);
    let refused = |args: &[&str], part: &str| {
        let output = run(args);
        expect_code(&output, 1);
        assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
    };
    refused(&["embed", path(&folder), &file, "--device", "cpu"], "tokenizer.json");
    refused(&["embed", path(&of_texts()), "no/such/file", "--device", "cpu"], "no/such/file");
    refused(&["embed", path(&of_texts()), &file, "--device", "cpu", "--sequence", "41"], "1 to 40 tokens");
    let photos = super::root().join("weights/photos").join("chelsea.png");
    let images = problem("ViT, classes").folder();
    refused(&["embed", path(&images), photos.to_str().unwrap(), "--device", "cpu", "--packed", "9"], "are for texts");
    let none = lines(&folder, &[]);
    fs::write(&none, "").unwrap();
    refused(&["embed", path(&of_texts()), &none, "--device", "cpu"], "one on each line");
}

/// A pipe that is never written to would be read for ever.
#[test]
fn a_pipe_in_place_of_a_file_is_an_error() {
    for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "texts.txt"] {
        let folder = of_texts();
        let texts = lines(&folder, &TEXTS);
        let tokenizer = folder.0.join("tokenizer.json");
        let mut without_padding: Value = serde_json::from_slice(&fs::read(&tokenizer).unwrap()).unwrap();
        without_padding["padding"] = Value::Null; // then it is looked for in tokenizer_config.json
        fs::write(&tokenizer, without_padding.to_string()).unwrap();
        let pipe = folder.0.join(file);
        let _ = fs::remove_file(&pipe);
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let mut embed = Command::new("timeout");
        embed.args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_trefoil")]);
        embed.args(["embed", path(&folder), &texts, "--device", "cpu"]);
        let output = embed.output().unwrap();
        expect_code(&output, 1);
        let said = stderr(&output);
        assert!(said.contains(pipe.to_str().unwrap()) && said.contains("expected a file, found a pipe"), "{said}");
    }
}

/// Texts of which one is not UTF-8, after a byte order mark: from a file and from the standard input, padded and packed.
#[test]
fn a_line_that_is_not_utf8_fails_alone() {
    let folder = of_texts();
    let good = vectors(&json_lines(&run(&["embed", path(&folder), &lines(&folder, &TEXTS[..2]), "--device", "cpu"])));
    let bytes = b"\xef\xbb\xbfCats purr\r\npurr \xff\xfe\ndogs\n";
    let file = folder.0.join("bad.txt");
    fs::write(&file, bytes).unwrap();
    for (input, name) in [(file.to_str().unwrap(), file.to_str().unwrap()), ("-", "the standard input")] {
        for packed in [&[][..], &["--packed", "40"]] {
            let mut command = program();
            command.args([&["embed", path(&folder), input, "--device", "cpu"], packed].concat());
            let mut child =
                command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            let _ = child.stdin.take().unwrap().write_all(bytes); // not read where the input is the file
            let output = child.wait_with_output().unwrap();
            expect_code(&output, 2);
            let told = json_lines(&output);
            let inputs: Vec<&str> = told.iter().map(|line| line["input"].as_str().unwrap()).collect();
            assert_eq!(inputs, ["Cats purr", "purr \u{fffd}\u{fffd}", "dogs"]);
            assert_eq!(told[1]["error"], format!("{name}, line 2: byte 6 of the line is 0xff: expected text in UTF-8"));
            let found = vectors(&[told[0].clone(), told[2].clone()]);
            assert!(found.iter().zip(&good).all(|(a, b)| is_near(a, b)), "{packed:?}: {found:?}, {good:?}");
        }
    }
    let array = folder.0.join("vectors.npy");
    let output =
        run(&["embed", path(&folder), file.to_str().unwrap(), "--device", "cpu", "--output", array.to_str().unwrap()]);
    expect_code(&output, 2);
    assert!(stderr(&output).contains("bad.txt, line 2: byte 6"), "{}", stderr(&output));
    let array = fs::read(&array).unwrap();
    let values: Vec<f32> = array[array.len() - 3 * 64 * 4..]
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
        .collect();
    assert_eq!([0, 1, 2].map(|row| values[row * 64..][..64].iter().all(|value| value.is_nan())), [false, true, false]);
}

#[test]
fn one_of_several_files_of_texts_fails_alone() {
    let folder = of_texts();
    let good = lines(&folder, &TEXTS[..2]);
    let wide = folder.0.join("wide.txt");
    fs::write(&wide, b"\xff\xfec\0a\0t\0\n\0").unwrap();
    let wide = wide.to_str().unwrap();
    let output = run(&["embed", path(&folder), "no/such/file.txt", &good, wide, "--device", "cpu"]);
    expect_code(&output, 2);
    let told = json_lines(&output);
    let inputs: Vec<&str> = told.iter().map(|line| line["input"].as_str().unwrap()).collect();
    assert_eq!(inputs, ["no/such/file.txt", TEXTS[0], TEXTS[1], wide]);
    let error = |line: &Value| line["error"].as_str().unwrap_or_default().to_owned();
    assert!(error(&told[0]).contains("no/such/file.txt") && error(&told[3]).contains("UTF-16"), "{told:?}");
    assert!(told[1..3].iter().all(|line| line["embedding"].is_array()), "{told:?}");
    expect_code(&run(&["embed", path(&folder), "no/such/file.txt", "nor/this.txt", "--device", "cpu"]), 1);
    let alone = run(&["embed", path(&folder), wide, "--device", "cpu"]);
    expect_code(&alone, 1);
    assert!(stderr(&alone).contains("expected UTF-8"), "{}", stderr(&alone));
}
