//! Tables that are fitted to the width of the terminal.

use std::io::{self, Write};

use console::measure_text_width as wide;
use trefoil::printable;

use crate::out;

/// The kind and the head of a column.
#[derive(Clone, Copy)]
pub enum Column {
    /// Names and other texts, left-aligned: they may be shortened, or moved to a line below their row.
    Text(&'static str),
    /// Words, left-aligned; they are never shortened.
    Word(&'static str),
    /// Figures, right-aligned; they are never shortened.
    Figure(&'static str),
}

/// A table whose texts are shortened as much as the width requires.
pub struct Table {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

enum Row {
    Cells(Vec<String>),
    /// A text in a line of its own below a row.
    Line(String),
}

/// The arrangement of columns for a given width.
struct Layout {
    /// The columns in a row's first line, and those in the line below it.
    lines: [Vec<usize>; 2],
    /// The width of each column.
    widths: Vec<usize>,
    /// Spaces between figures.
    gap: usize,
}

/// The fewest characters that a text is shortened to; a text with less room moves below its row.
const LEAST: usize = 16;
/// The most characters of a cell that are shown.
const MOST: usize = 1000;

impl Table {
    /// A table without rows.
    pub fn new(columns: &[Column]) -> Self {
        Self { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row, with a cell for each column.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| printable(&cell, MOST)).collect();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(Row::Cells(cells));
    }

    /// Adds a line below the last row.
    pub fn line(&mut self, text: &str) {
        self.rows.push(Row::Line(format!("  {}", printable(text, MOST))));
    }

    /// Prints the table, as wide as the terminal.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        self.lines(out::width()).iter().try_for_each(|line| writeln!(out, "{line}"))
    }

    /// The lines of the table, fitted to the width if there is one.
    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let layout = self.layout(width.unwrap_or(usize::MAX));
        let heads: Vec<String> = self.columns.iter().map(|column| column.head().to_owned()).collect();
        let mut lines = self.cells(&layout, &heads);
        for row in &self.rows {
            match row {
                Row::Cells(cells) => lines.extend(self.cells(&layout, cells)),
                Row::Line(text) => lines.push(text.clone()),
            }
        }
        lines
    }

    fn layout(&self, width: usize) -> Layout {
        let of = |row: &Row, column: usize| if let Row::Cells(cells) = row { wide(&cells[column]) } else { 0 };
        let natural = |(index, column): (usize, &Column)| {
            self.rows.iter().map(|row| of(row, index)).fold(wide(column.head()), usize::max)
        };
        let natural: Vec<usize> = self.columns.iter().enumerate().map(natural).collect();
        let lines = [(0..self.columns.len()).collect(), Vec::new()];
        let mut layout = Layout { lines, widths: natural.clone(), gap: 2 };
        if self.taken(&layout, 0) > width {
            layout.gap = 1;
        }
        while !self.shrink(&mut layout, 0, width) {
            let is_text = |index: &&usize| matches!(self.columns[**index], Column::Text(_));
            let Some(&last) = layout.lines[0].iter().filter(is_text).skip(1).last() else { break };
            layout.lines[0].retain(|index| *index != last);
            layout.lines[1].insert(0, last);
            layout.widths.clone_from(&natural);
        }
        let left = width.saturating_sub(self.indent(&layout));
        self.shrink(&mut layout, 1, left);
        layout
    }

    /// Shortens the widest texts of a line until it fits; returns whether it does.
    fn shrink(&self, layout: &mut Layout, line: usize, width: usize) -> bool {
        while self.taken(layout, line) > width {
            let shortens = |index: &&usize| {
                let Column::Text(head) = self.columns[**index] else { return false };
                layout.widths[**index] > LEAST.max(wide(head))
            };
            let widest = layout.lines[line].iter().filter(shortens).max_by_key(|index| layout.widths[**index]);
            let Some(&widest) = widest else { return false };
            layout.widths[widest] -= 1;
        }
        true
    }

    /// The width that a line takes.
    fn taken(&self, layout: &Layout, line: usize) -> usize {
        let columns = &layout.lines[line];
        columns.iter().map(|index| layout.widths[*index]).sum::<usize>() + self.gaps(layout, line).iter().sum::<usize>()
    }

    /// The gap before each column of a line.
    fn gaps(&self, layout: &Layout, line: usize) -> Vec<usize> {
        let is_figure = |index: &usize| matches!(self.columns[*index], Column::Figure(_));
        let columns = &layout.lines[line];
        let between = columns.windows(2).map(|pair| if pair.iter().all(is_figure) { layout.gap } else { 2 });
        columns.iter().take(1).map(|_| 0).chain(between).collect()
    }

    /// The indent of the line below a row: a little to the right of its first text.
    fn indent(&self, layout: &Layout) -> usize {
        let columns = layout.lines[0].iter().zip(self.gaps(layout, 0));
        let before = columns.take_while(|(index, _)| !matches!(self.columns[**index], Column::Text(_)));
        before.map(|(index, gap)| layout.widths[*index] + gap).sum::<usize>() + 4
    }

    /// The lines of a row: one or two.
    fn cells(&self, layout: &Layout, cells: &[String]) -> Vec<String> {
        let line = |line: usize| {
            let mut text = String::new();
            for (&index, gap) in layout.lines[line].iter().zip(self.gaps(layout, line)) {
                let cell = shorten(&cells[index], layout.widths[index]);
                let (gap, rest) = (" ".repeat(gap), " ".repeat(layout.widths[index] - wide(&cell)));
                match self.columns[index] {
                    Column::Figure(_) => text.extend([gap, rest, cell]),
                    _ => text.extend([gap, cell, rest]),
                }
            }
            text.truncate(text.trim_end().len());
            text
        };
        match [line(0), line(1)] {
            [first, below] if below.is_empty() => vec![first],
            [first, below] => vec![first, " ".repeat(self.indent(layout)) + &below],
        }
    }
}

impl Column {
    fn head(&self) -> &'static str {
        let (Self::Text(head) | Self::Word(head) | Self::Figure(head)) = self;
        head
    }
}

/// Shortens a text by its middle where it is wider than `width`.
fn shorten(text: &str, width: usize) -> String {
    if wide(text) <= width {
        return text.to_owned();
    }
    let room = width.saturating_sub(1);
    let within = |characters: &mut dyn Iterator<Item = char>, room: usize| -> Vec<char> {
        let mut left = room;
        let fits = |character: &char| {
            let taken = wide(character.encode_utf8(&mut [0; 4]));
            let fits = taken <= left;
            left -= taken.min(left);
            fits
        };
        characters.take_while(fits).collect()
    };
    let end = within(&mut text.chars().rev(), room / 2);
    let start = within(&mut text.chars(), room - room / 2);
    start.into_iter().chain(['…']).chain(end.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let columns = [Column::Figure("#"), Column::Text("name"), Column::Text("kernel"), Column::Figure("us")];
        let mut table = Table::new(&columns);
        let name = "a layer's name that is long".to_owned();
        table.row(["0".into(), name, "kernel of 128 x 64".into(), "12.5".into()]);
        table.row(["10".into(), "short".into(), String::new(), "3".into()]);
        table.line("below");
        table
    }

    #[test]
    fn a_table_is_as_wide_as_it_needs_to_be() {
        let whole = [
            " #  name                         kernel                us",
            " 0  a layer's name that is long  kernel of 128 x 64  12.5",
            "10  short                                               3",
            "  below",
        ];
        assert_eq!(table().lines(None), whole);
        assert_eq!(table().lines(Some(57)), whole);
    }

    #[test]
    fn long_texts_are_shortened_in_the_middle_and_figures_are_not() {
        let lines = table().lines(Some(50));
        assert_eq!(lines[1], " 0  a layer's …t is long  kernel of 128 x 64  12.5");
        assert_eq!(table().lines(Some(44))[1], " 0  a layer'…is long  kernel o…28 x 64  12.5");
        assert!(lines.iter().all(|line| wide(line) <= 50), "{lines:?}");
    }

    #[test]
    fn the_last_text_goes_below_its_row_where_there_is_no_room() {
        let lines = [
            " #  name                 us",
            "      kernel",
            " 0  a layer'… is long  12.5",
            "      kernel of 128 x 64",
            "10  short                 3",
            "  below",
        ];
        assert_eq!(table().lines(Some(27)), lines);
    }

    #[test]
    fn names_are_measured_in_columns_and_steer_no_terminal() {
        assert_eq!(shorten("層の名前です", 7), "層…す");
        assert_eq!(shorten("abc", 1), "…");
        let mut table = Table::new(&[Column::Text("name"), Column::Figure("us")]);
        table.row(["層\u{1b}[2J".into(), "1".into()]);
        assert_eq!(table.lines(None), ["name         us", "層\\u{1b}[2J   1"]);
    }
}
