//! Tokens of a text: words, numbers and marks, each with its line.

use std::iter::Peekable;
use std::str::CharIndices;

use super::Failure;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'t> {
    /// A name, a directive, or an opcode with all parts that dots join.
    Word(&'t str),
    Integer(i128),
    /// A single by its bits: `0f3F800000`.
    Single(u32),
    /// A double: `0d...`, or a number with a decimal point.
    Double(f64),
    Text(&'t str),
    Mark(char),
}

/// Reads tokens from left to right.
pub struct Tokens<'t> {
    tokens: Vec<(Token<'t>, usize)>,
    next: usize,
}

impl<'t> Tokens<'t> {
    pub fn of(text: &'t str) -> Result<Self, Failure> {
        let mut tokens = Vec::new();
        for (index, line) in strip_comments(text)?.into_iter().enumerate() {
            scan(line, index + 1, &mut tokens)?;
        }
        Ok(Self { tokens, next: 0 })
    }

    pub fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.next).map(|(token, _)| *token)
    }

    /// The tokens that are not read yet.
    pub fn ahead(&self) -> impl Iterator<Item = Token<'t>> {
        self.tokens[self.next..].iter().map(|(token, _)| *token)
    }

    /// The line of the next token, or of the last one.
    pub fn line(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(1, |(_, line)| *line)
    }

    pub fn next(&mut self) -> Result<Token<'t>, String> {
        let token = self.peek().ok_or("the text ends too early")?;
        self.next += 1;
        Ok(token)
    }

    pub fn word(&mut self) -> Result<&'t str, String> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => Err(format!("{other:?} where a name belongs")),
        }
    }

    pub fn number(&mut self) -> Result<i128, String> {
        let negative = self.takes('-');
        match self.next()? {
            Token::Integer(number) => Ok(if negative { -number } else { number }),
            other => Err(format!("{other:?} where an integer belongs")),
        }
    }

    /// Reads a count of bytes, elements or threads.
    pub fn count(&mut self) -> Result<usize, String> {
        let number = self.number()?;
        usize::try_from(number).map_err(|_| format!("{number} where a count belongs"))
    }

    /// Takes the mark if it is next; returns whether it was.
    pub fn takes(&mut self, mark: char) -> bool {
        self.takes_token(Token::Mark(mark))
    }

    /// Takes the word if it is next; returns whether it was.
    pub fn takes_word(&mut self, word: &str) -> bool {
        self.takes_token(Token::Word(word))
    }

    pub fn expect(&mut self, mark: char) -> Result<(), String> {
        match self.takes(mark) {
            true => Ok(()),
            false => Err(format!("{:?} where {mark:?} belongs", self.peek())),
        }
    }

    /// Skips the rest of the line that the last token is on.
    pub fn skip_line(&mut self) {
        let line = self.tokens[self.next - 1].1;
        while self.tokens.get(self.next).is_some_and(|(_, at)| *at == line) {
            self.next += 1;
        }
    }

    fn takes_token(&mut self, token: Token<'_>) -> bool {
        let found = self.peek() == Some(token);
        self.next += usize::from(found);
        found
    }
}

/// The text's lines without their comments.
fn strip_comments(text: &str) -> Result<Vec<&str>, Failure> {
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        if line.contains("/*") {
            return Err(Failure { line: index + 1, what: "a comment of the form /* */".into() });
        }
        lines.push(line.split_once("//").map_or(line, |(code, _)| code));
    }
    Ok(lines)
}

fn scan<'t>(line: &'t str, number: usize, tokens: &mut Vec<(Token<'t>, usize)>) -> Result<(), Failure> {
    let mut chars = line.char_indices().peekable();
    while let Some((start, first)) = chars.next() {
        let token = match first {
            _ if first.is_whitespace() => continue,
            '0'..='9' => numeral(rest_of_numeral(line, start, &mut chars)),
            '"' => {
                let end = chars.find(|(_, c)| *c == '"').map(|(end, _)| end);
                end.map(|end| Token::Text(&line[start + 1..end])).ok_or_else(|| "a text without end".into())
            }
            _ if is_of_word(first) => Ok(Token::Word(rest_of_word(line, start, &mut chars))),
            _ => Ok(Token::Mark(first)),
        };
        tokens.push((token.map_err(|what| Failure { line: number, what })?, number));
    }
    Ok(())
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_$%.".contains(c)
}

/// Reads the rest of a word, which may contain `::`, as in `L2::128B`.
fn rest_of_word<'t>(line: &'t str, start: usize, chars: &mut Peekable<CharIndices<'_>>) -> &'t str {
    loop {
        while chars.next_if(|(_, c)| is_of_word(*c)).is_some() {}
        let end = chars.peek().map_or(line.len(), |(end, _)| *end);
        if !line[end..].starts_with("::") {
            return &line[start..end];
        }
        chars.nth(1);
    }
}

/// Reads the rest of a number, whose exponent may have a sign.
fn rest_of_numeral<'t>(line: &'t str, start: usize, chars: &mut Peekable<CharIndices<'_>>) -> &'t str {
    let mut last = ' ';
    let mut has_point = false;
    while let Some((_, c)) = chars.next_if(|(_, c)| {
        c.is_ascii_alphanumeric() || *c == '.' || has_point && "eE".contains(last) && "+-".contains(*c)
    }) {
        has_point |= c == '.';
        last = c;
    }
    let end = chars.peek().map_or(line.len(), |(end, _)| *end);
    &line[start..end]
}

fn numeral(text: &str) -> Result<Token<'static>, String> {
    let of_bits = |digits: &str, len: usize| {
        u64::from_str_radix(digits, 16).ok().filter(|_| digits.len() == len).ok_or(format!("{text} is no number"))
    };
    let digits = text.strip_suffix('U').unwrap_or(text);
    match digits.get(..2) {
        Some("0f" | "0F") => Ok(Token::Single(of_bits(&digits[2..], 8)? as u32)),
        Some("0d" | "0D") => Ok(Token::Double(f64::from_bits(of_bits(&digits[2..], 16)?))),
        _ if digits.contains('.') => digits.parse().map(Token::Double).map_err(|_| format!("{text} is no number")),
        _ => integer(digits).map(Token::Integer).ok_or(format!("{text} is no number")),
    }
}

fn integer(digits: &str) -> Option<i128> {
    let (digits, radix) = match digits.get(..2) {
        Some("0x" | "0X") => (&digits[2..], 16),
        Some("0b" | "0B") => (&digits[2..], 2),
        Some(_) if digits.starts_with('0') => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(i128::from)
}
