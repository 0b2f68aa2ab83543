//! Bytes as a model's configuration: the text of a `config.json` in the header of a weight file without weights.

use std::fs;

use trefoil::model::Model;

use super::{check_error, scratch};

pub fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut header = String::from("{\"__metadata__\":{\"config\":\"");
    text.chars().for_each(|character| put(&mut header, character));
    header.push_str("\"}}");
    let path = scratch(".safetensors");
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(&path, file).expect("a folder for temporary files");
    let opened = Model::open(&path);
    fs::remove_file(&path).expect("it was written");
    match opened {
        Ok(model) => panic!("{} without a weight", model.name()),
        Err(error) => check_error(&error),
    }
}

/// A character as JSON has it in a text.
fn put(text: &mut String, character: char) {
    match character {
        '"' | '\\' => text.extend(['\\', character]),
        character if character < ' ' => text.push_str(&format!("\\u{:04x}", character as u32)),
        character => text.push(character),
    }
}
