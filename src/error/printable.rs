//! Text from outside, made fit for a terminal, a drawing and a page.

use std::fmt::Write;

/// `text` in a form that is safe to print. Control characters, and characters that change the direction of writing or
/// end a line, become escapes such as `\u{1b}`. If `text` has more than `most` characters, the middle is left out, and
/// the result says how many characters there were.
///
/// Use it for names of tensors, labels and files, which come from outside. Errors of the library are already in this
/// form.
///
/// ```
/// use trefoil::printable;
/// assert_eq!(printable("tiger cat", 80), "tiger cat");
/// assert_eq!(printable("tiger\x1b[2J", 80), r"tiger\u{1b}[2J");
/// assert_eq!(printable(&"x".repeat(5_000_000), 9), "xxxxxx… (5000000 characters) …xxx");
/// ```
pub fn printable(text: &str, most: usize) -> String {
    let mut out = String::new();
    if text.char_indices().nth(most).is_none() {
        put(&mut out, text);
        return out;
    }
    let (tail, characters) = (most / 3, text.chars().count());
    let at = |index: usize| text.char_indices().nth(index).map_or(text.len(), |(byte, _)| byte);
    put(&mut out, &text[..at(most - tail)]);
    let _ = write!(out, "… ({characters} characters) …");
    put(&mut out, &text[at(characters - tail)..]);
    out
}

fn put(out: &mut String, text: &str) {
    for character in text.chars() {
        if is_harmful(character) { out.extend(character.escape_unicode()) } else { out.push(character) }
    }
}

/// Controls, ends of lines, marks that turn the direction of writing, and what XML cannot hold.
fn is_harmful(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
        || matches!(character, '\u{FFFE}' | '\u{FFFF}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_written_out() {
        assert_eq!(printable("a\r\n\t\0\u{7f}\u{9b}b", 80), r"a\u{d}\u{a}\u{9}\u{0}\u{7f}\u{9b}b");
        assert_eq!(printable("\u{202e}gpj.exe\u{2028}\u{ffff}", 80), r"\u{202e}gpj.exe\u{2028}\u{ffff}");
        assert_eq!(printable("Größe, 猫, \u{1f408}", 80), "Größe, 猫, \u{1f408}");
    }

    #[test]
    fn long_text_keeps_its_ends() {
        assert_eq!(printable("abcdefghi", 9), "abcdefghi");
        assert_eq!(printable("abcdefghij", 9), "abcdef… (10 characters) …hij");
        assert_eq!(printable("äöüß", 3), "äö… (4 characters) …ß");
        assert_eq!(printable("ab", 0), "… (2 characters) …");
        let cut = printable(&"\x1b".repeat(1 << 20), 300);
        assert!(cut.len() < 2000 && !cut.contains('\x1b'), "{cut}");
    }
}
