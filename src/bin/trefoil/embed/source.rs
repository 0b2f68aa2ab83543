//! The inputs of `embed`: lines of files of texts, or photos.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use trefoil::model::Tower;
use trefoil::{files, image};

use super::tokens::{Line, Texts};
use crate::inputs::{Input, Inputs};

/// The inputs, in order.
pub enum Source {
    Texts(Box<Texts>),
    Photos(Vec<Input>),
}

impl Source {
    /// Collects the inputs that the paths name: photos if all paths are folders or named like photos, otherwise files
    /// of texts. A line that is not UTF-8 is an input that fails, and so is one of several files that cannot be read.
    pub fn collect(model: &Path, paths: &[PathBuf]) -> Result<Self> {
        if paths.iter().all(|path| path.is_dir() || image::is_image(path)) {
            return Ok(Self::Photos(Inputs::collect(paths).list));
        }
        let mut lines = Vec::new();
        for path in paths {
            ensure!(!path.is_dir() && !image::is_image(path), "{} among texts: give photos alone", path.display());
            match read(path) {
                Ok(bytes) => lines.extend(texts(path, &bytes)),
                Err(error) if paths.len() == 1 => return Err(error),
                Err(error) => lines.push(Line { text: name_of(path), problem: Some(format!("{error:#}")) }),
            }
        }
        ensure!(!lines.is_empty(), "there are no texts: expected one on each line");
        Ok(Self::Texts(Texts::new(model, lines)?.into()))
    }

    /// Number of inputs.
    pub fn len(&self) -> usize {
        match self {
            Self::Texts(texts) => texts.len(),
            Self::Photos(photos) => photos.len(),
        }
    }

    /// The name of an input in results and errors.
    pub fn name(&self, input: usize) -> String {
        match self {
            Self::Texts(texts) => texts.name(input).to_owned(),
            Self::Photos(photos) => photos[input].path.to_string_lossy().into_owned(),
        }
    }

    /// The tower that reads these inputs, of a model with two towers.
    pub fn tower(&self) -> Tower {
        match self {
            Self::Texts(_) => Tower::Texts,
            Self::Photos(_) => Tower::Images,
        }
    }
}

/// The bytes of a file, or of the standard input for `-`, without a byte order mark.
fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == Path::new("-") {
        io::stdin().read_to_end(&mut bytes).context("cannot read the standard input")?;
    } else {
        bytes = files::read("read the texts", path, u64::MAX)?;
    }
    let is_utf16 = UTF16_MARKS.iter().any(|mark| bytes.starts_with(mark)) && bytes.contains(&0);
    ensure!(!is_utf16, "{} is text in UTF-16: expected UTF-8", name_of(path));
    if bytes.starts_with(UTF8_MARK) {
        bytes.drain(..UTF8_MARK.len());
    }
    Ok(bytes)
}

/// The texts in a file's bytes, one on each line; a line that is not UTF-8 is a text that cannot be read.
fn texts(path: &Path, bytes: &[u8]) -> Vec<Line> {
    let without_end = |line: &[u8]| match line {
        [text @ .., b'\r', b'\n'] | [text @ .., b'\n'] => text.len(),
        text => text.len(),
    };
    let lines = bytes.split_inclusive(|&byte| byte == b'\n').map(|line| &line[..without_end(line)]);
    let text = |(index, line)| match str::from_utf8(line) {
        Ok(text) => Line::from(text.to_owned()),
        Err(error) => {
            let (at, name) = (error.valid_up_to(), name_of(path));
            let (number, place, byte) = (index + 1, at + 1, line[at]);
            let problem =
                format!("{name}, line {number}: byte {place} of the line is {byte:#04x}: expected text in UTF-8");
            Line { text: String::from_utf8_lossy(line).into_owned(), problem: Some(problem) }
        }
    };
    lines.enumerate().map(text).collect()
}

/// The name of a file of texts in messages.
fn name_of(path: &Path) -> String {
    if path == Path::new("-") { "the standard input".to_owned() } else { path.display().to_string() }
}

const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";
const UTF16_MARKS: [&[u8]; 2] = [b"\xff\xfe", b"\xfe\xff"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_split_as_those_of_a_text() {
        for text in ["", "a", "a\n", "a\r\nb\r\n\r\n", "\n\na\r", "a\rb\n\r", "\u{e4}\n\u{1f343}"] {
            let lines = texts(Path::new("a.txt"), text.as_bytes());
            assert!(lines.iter().all(|line| line.problem.is_none()), "{text:?}");
            let lines: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
            assert_eq!(lines, text.lines().collect::<Vec<_>>(), "{text:?}");
        }
    }

    #[test]
    fn a_line_that_is_no_text_is_told_with_its_place() {
        let lines = texts(Path::new("a.txt"), b"cat\n\xc3\xa4\xff bad\r\ndog\n\xe2\x82\nend \xc3");
        let problems: Vec<Option<&str>> = lines.iter().map(|line| line.problem.as_deref()).collect();
        let expected = [
            None,
            Some("a.txt, line 2: byte 3 of the line is 0xff: expected text in UTF-8"),
            None,
            Some("a.txt, line 4: byte 1 of the line is 0xe2: expected text in UTF-8"),
            Some("a.txt, line 5: byte 5 of the line is 0xc3: expected text in UTF-8"),
        ];
        assert_eq!(problems, expected);
        assert_eq!(lines[1].text, "\u{e4}\u{fffd} bad");
        assert!(
            texts(Path::new("-"), b"\xff")[0].problem.as_deref().unwrap().starts_with("the standard input, line 1")
        );
    }
}
