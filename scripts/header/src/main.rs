//! Writes `include/trefoil.h` from `src/ffi/`, or with `--check` compares it.

use std::error::Error;
use std::path::Path;
use std::{env, fs};

/// The files with parts of the interface, in the order that the header has them.
const SOURCES: [&str; 19] = [
    "version", "status", "layout", "handles", "device", "model", "engine", "port", "batch", "callback", "ticket",
    "output", "batcher", "sizes", "states", "on_device", "trace", "log", "fleet",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let config = cbindgen::Config::from_file(root.join("scripts/header/cbindgen.toml"))?;
    let builder = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, stem| {
        builder.with_src(root.join("src/ffi").join(stem).with_extension("rs"))
    });
    let mut text = Vec::new();
    builder.generate()?.write(&mut text);
    let text = tidy(&String::from_utf8(text)?);
    let header = root.join("include/trefoil.h");
    if !env::args().any(|argument| argument == "--check") {
        return Ok(fs::write(header, text)?);
    }
    if fs::read_to_string(header)? != text {
        return Err("include/trefoil.h is not what src/ffi gives: run scripts/header.sh".into());
    }
    Ok(())
}

/// What Rust calls safety is about the pointers; a comment of one line is one; blank lines come singly.
fn tidy(text: &str) -> String {
    let text = text.replace("\n # Safety\n", "\n Pointers:\n").replace("\n\n\n", "\n\n");
    let lines: Vec<&str> = text.lines().collect();
    let (mut tidy, mut at) = (String::new(), 0);
    while at < lines.len() {
        match lines[at..] {
            [open, line, close, ..] if open.trim() == "/*" && close.trim() == "*/" => {
                tidy += &format!("{} {} */\n", open, line.trim());
                at += 3;
            }
            [line, ..] => {
                tidy += &format!("{line}\n");
                at += 1;
            }
            [] => {}
        }
    }
    tidy
}
