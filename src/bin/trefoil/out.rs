//! Standard output for people: lines are folded to the width of the terminal.

use std::env;
use std::io::{self, Stdout, Write};

use console::{Term, measure_text_width as wide};

/// Columns of the terminal on standard output, else by the variable COLUMNS; `None` if nothing is to be folded.
pub fn width() -> Option<usize> {
    let of_terminal = || Some(usize::from(Term::stdout().size_checked()?.1));
    let of_variable = || env::var("COLUMNS").ok()?.parse().ok();
    of_terminal().or_else(of_variable).filter(|columns| *columns > 0)
}

/// Standard output for people. JSON and other output for scripts goes to [`io::stdout`], so that its lines stay whole.
pub fn stdout() -> Folded<Stdout> {
    Folded { inner: io::stdout(), width: width(), line: Vec::new() }
}

/// A writer that breaks lines that are too wide, between words.
pub struct Folded<W: Write> {
    inner: W,
    width: Option<usize>,
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
}

impl<W: Write> Write for Folded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(width) = self.width else { return self.inner.write(bytes) };
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(end) = part.strip_suffix(b"\n") else {
                self.line.extend(part);
                break;
            };
            self.line.extend(end);
            let line = fold(&String::from_utf8_lossy(&self.line), width) + "\n";
            self.line.clear();
            self.inner.write_all(line.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.write_all(&self.line)?;
        self.line.clear();
        self.inner.flush()
    }
}

/// Folds a line to this width. The following lines are indented to the text behind the last gap in the first half, if
/// there is one. A word that is wider, such as a path, stays whole.
fn fold(line: &str, width: usize) -> String {
    if wide(line) <= width {
        return line.to_owned();
    }
    let gaps = line.match_indices("  ").map(|(at, _)| at + line[at..].len() - line[at..].trim_start().len());
    let indent = gaps.map(|at| wide(&line[..at])).take_while(|at| *at <= width / 2).last().unwrap_or(0);
    let (mut folded, mut at) = (String::new(), 0);
    for (index, word) in line.split(' ').enumerate() {
        if at > indent && !word.is_empty() && at + 1 + wide(word) > width {
            folded.truncate(folded.trim_end().len());
            folded += "\n";
            folded += &" ".repeat(indent);
            at = indent;
        } else if index > 0 {
            folded += " ";
            at += 1;
        }
        folded += word;
        at += wide(word);
    }
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(parts: &[&str], width: Option<usize>) -> String {
        let mut out = Folded { inner: Vec::new(), width, line: Vec::new() };
        parts.iter().for_each(|part| out.write_all(part.as_bytes()).unwrap());
        out.flush().unwrap();
        String::from_utf8(out.inner).unwrap()
    }

    #[test]
    fn lines_go_on_below_their_text() {
        let text = "one two three four five\nmodel  one two three\n   a b c d e f g h i j k l\n";
        assert_eq!(folded(&[text], None), text);
        let lines = "one two three\nfour five\nmodel  one two\n       three\n   a b c d e f\n   g h i j k l\n";
        assert_eq!(folded(&[text], Some(14)), lines);
        assert_eq!(folded(&[&text[..20], &text[20..30], &text[30..]], Some(14)), lines);
    }

    #[test]
    fn what_has_no_gap_stays_whole() {
        assert_eq!(folded(&["a /long/path/to/some/file b\n"], Some(10)), "a\n/long/path/to/some/file\nb\n");
        let coloured = "\u{1b}[32mok\u{1b}[0m  fine here\n";
        assert_eq!(folded(&[coloured], Some(14)), coloured);
    }
}
