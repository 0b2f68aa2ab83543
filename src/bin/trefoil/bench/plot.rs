//! Plots as SVG: lines in panels and horizontal bars, with units, readable on light and on dark.
//!
//! Written by hand, for colours that follow the reader's scheme: the crate `plotters` draws with fixed ones, and has
//! had no release since 2024.

use std::fmt::Write;

use trefoil::printable;

/// A drawing of panels one below the other, which also fits narrow screens.
pub struct Chart {
    pub title: String,
    /// The small print: which device, model and options the figures belong to.
    pub about: String,
    pub panels: Vec<Panel>,
}

/// Lines over one pair of axes.
pub struct Panel {
    pub title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    /// Horizontal lines to compare with, each with its name.
    levels: Vec<(f64, String)>,
}

/// The label of an axis, with its unit, and its scale.
pub struct Axis {
    label: String,
    log2: bool,
    has_zero: bool,
}

/// One line of a panel.
pub struct Series {
    name: String,
    dashed: bool,
    points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 70.0;
const GAP: f64 = 24.0;
/// The width of the whole drawing, and the number of characters of small print that fit into it.
const PAGE: f64 = LEFT + WIDTH + GAP;
const PRINT: usize = 78;
const LINE: f64 = 18.0;
/// The most characters of a text that are drawn.
const MOST_OF_A_TEXT: usize = 300;
/// Colours of series: on light paper, and on dark.
const COLOURS: [[&str; 2]; 6] = [
    ["#0969da", "#58a6ff"],
    ["#bc4c00", "#f0883e"],
    ["#1a7f37", "#56d364"],
    ["#8250df", "#bc8cff"],
    ["#9a6700", "#e3b341"],
    ["#bf3989", "#f778ba"],
];
const LIGHT: &str = "\
svg { font: 12px system-ui, sans-serif; max-width: 100%; height: auto; }
.paper { fill: #ffffff; } .ink { fill: #1f2328; } .small { fill: #59636e; font-size: 11px; } .title { font-size: 14px; }
.frame { stroke: #8c959f; fill: none; } .grid { stroke: #d1d9e0; } .level { stroke: #59636e; stroke-dasharray: 2 3; }
.line { fill: none; stroke-width: 2; } .dashed { stroke-dasharray: 6 4; }
";
const DARK: &str = "\
.paper { fill: #0d1117; } .ink { fill: #f0f6fc; } .small { fill: #9198a1; }
.frame { stroke: #6e7681; } .grid { stroke: #30363d; } .level { stroke: #9198a1; }
";

/// The style sheet, with colours that follow the reader's scheme.
fn style() -> String {
    let lines = |scheme: usize| -> String {
        let line = |(index, colours): (usize, &[&str; 2])| {
            let colour = colours[scheme];
            format!(".c{index}.line {{ stroke: {colour}; }} .c{index}.dot {{ fill: {colour}; }}\n")
        };
        COLOURS.iter().enumerate().map(line).collect()
    };
    let (light, dark) = (lines(0), lines(1));
    format!("<style>\n{LIGHT}{light}@media (prefers-color-scheme: dark) {{\n{DARK}{dark}}}\n</style>\n")
}

impl Axis {
    /// A linear axis; the label includes the unit.
    pub fn new(label: &str) -> Self {
        Self { label: label.into(), log2: false, has_zero: false }
    }

    /// Makes the axis logarithmic: each doubling has the same length.
    pub fn log2(self) -> Self {
        Self { log2: true, ..self }
    }

    /// Makes the axis begin at zero.
    pub fn with_zero(self) -> Self {
        Self { has_zero: true, ..self }
    }

    fn scale(&self, value: f64) -> f64 {
        if self.log2 { value.max(f64::MIN_POSITIVE).log2() } else { value }
    }

    /// The ends of the axis, and its marked values.
    fn range(&self, values: impl Iterator<Item = f64>) -> (f64, f64, Vec<f64>) {
        let finite = values.filter(|value| value.is_finite());
        let (least, most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        if least > most {
            return (0.0, 1.0, vec![0.0, 1.0]);
        }
        if self.log2 {
            let (low, high) = (least.log2().floor(), most.log2().ceil().max(least.log2().floor() + 1.0));
            return (low, high, (low as i32..=high as i32).map(|power| f64::from(power).exp2()).collect());
        }
        let least = if self.has_zero { least.min(0.0) } else { least };
        let span = if most > least { most - least } else { most.abs().max(1.0) };
        let rough = span / 5.0;
        let decade = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade).into_iter().find(|step| *step >= rough).unwrap_or(rough);
        let (low, high) = ((least / step).floor() * step, ((least + span) / step).ceil() * step);
        let marks = ((high - low) / step).round() as usize;
        (low, high, (0..=marks).map(|mark| low + step * mark as f64).collect())
    }
}

impl Series {
    pub fn solid(name: &str) -> Self {
        Self { name: name.into(), dashed: false, points: Vec::new() }
    }

    pub fn dashed(name: &str) -> Self {
        Self { dashed: true, ..Self::solid(name) }
    }
}

impl Panel {
    pub fn new(title: &str, x: Axis, y: Axis) -> Self {
        Self { title: title.into(), x, y, series: Vec::new(), levels: Vec::new() }
    }

    /// Adds a horizontal line to compare with.
    pub fn line(mut self, at: f64, name: &str) -> Self {
        self.levels.push((at, name.into()));
        self
    }

    /// Adds a point to the series of the same name, which is added if there is none.
    pub fn point(&mut self, series: Series, x: f64, y: f64) {
        let index = self.series.iter().position(|known| known.name == series.name).unwrap_or_else(|| {
            self.series.push(series);
            self.series.len() - 1
        });
        self.series[index].points.push((x, y));
    }

    /// The height of the panel, with its title, axes and names of series.
    fn height(&self) -> f64 {
        GAP + HEIGHT + 60.0 + LINE * self.series.len() as f64
    }

    fn draw(&self, top: f64, out: &mut String) {
        let (left, top) = (LEFT, top + GAP);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let (x_low, x_high, x_marks) = self.x.range(points().map(|point| point.0));
        let levels = self.levels.iter().map(|level| level.0);
        let (y_low, y_high, y_marks) = self.y.range(points().map(|point| point.1).chain(levels));
        let x = |value: f64| left + WIDTH * (self.x.scale(value) - x_low) / (x_high - x_low);
        let y = |value: f64| top + HEIGHT * (1.0 - (self.y.scale(value) - y_low) / (y_high - y_low));
        let (right, bottom, middle) = (left + WIDTH, top + HEIGHT, left + WIDTH / 2.0);
        text(out, middle, top - 10.0, "ink", "middle", &self.title);
        for mark in y_marks {
            let at = y(mark);
            let _ = writeln!(out, r#"<path class="grid" d="M{left:.1} {at:.1}H{right:.1}"/>"#);
            text(out, left - 6.0, at + 4.0, "small", "end", &number(mark));
        }
        for mark in x_marks {
            let at = x(mark);
            let _ = writeln!(out, r#"<path class="grid" d="M{at:.1} {top:.1}V{bottom:.1}"/>"#);
            text(out, at, bottom + 16.0, "small", "middle", &number(mark));
        }
        let _ = writeln!(out, r#"<rect class="frame" x="{left:.1}" y="{top:.1}" width="{WIDTH}" height="{HEIGHT}"/>"#);
        text(out, middle, bottom + 34.0, "ink", "middle", &self.x.label);
        let (label_x, label_y) = (left - 52.0, top + HEIGHT / 2.0);
        let _ = writeln!(
            out,
            r#"<text class="ink" text-anchor="middle" transform="translate({label_x:.1} {label_y:.1}) rotate(-90)">{}</text>"#,
            escaped(&self.y.label)
        );
        for (at, name) in &self.levels {
            let at = y(*at);
            let _ = writeln!(out, r#"<path class="level" d="M{left:.1} {at:.1}H{right:.1}"/>"#);
            text(out, right - 4.0, at - 4.0, "small", "end", name);
        }
        for (index, series) in self.series.iter().enumerate() {
            let kind = format!("c{}", self.colour(index));
            let dashed = if series.dashed { " dashed" } else { "" };
            let places: Vec<_> = series.points.iter().filter(|p| p.0.is_finite() && p.1.is_finite()).collect();
            let path: Vec<String> = places.iter().map(|p| format!("{:.1} {:.1}", x(p.0), y(p.1))).collect();
            let key = bottom + 54.0 + LINE * index as f64;
            let line = if path.is_empty() { String::new() } else { format!("M{}", path.join("L")) };
            let _ = writeln!(out, r#"<path class="{kind} line{dashed}" d="{line}M{left:.1} {key:.1}h26"/>"#);
            for place in places.iter().filter(|_| !series.dashed) {
                let (at_x, at_y) = (x(place.0), y(place.1));
                let _ = writeln!(out, r#"<circle class="{kind} dot" cx="{at_x:.1}" cy="{at_y:.1}" r="3.5"/>"#);
            }
            text(out, left + 34.0, key + 4.0, "ink", "start", &series.name);
        }
    }

    /// The colour of a series; a dashed line has that of the solid line before it.
    fn colour(&self, index: usize) -> usize {
        let solid = self.series[..=index].iter().filter(|series| !series.dashed).count();
        solid.saturating_sub(1) % COLOURS.len()
    }
}

impl Chart {
    pub fn svg(&self) -> String {
        let height = self.panels.iter().map(Panel::height).sum();
        let (mut out, mut top) = open(height, &self.title, &self.about);
        for panel in &self.panels {
            panel.draw(top, &mut out);
            top += panel.height();
        }
        out + "</svg>\n"
    }
}

/// One horizontal bar.
pub struct Bar {
    pub label: String,
    pub value: f64,
    /// Bars of the same group have the same colour.
    pub group: usize,
}

/// Horizontal bars, each below its name, with its value written beside it.
pub fn bars(title: &str, about: &str, unit: &str, bars: &[Bar]) -> String {
    const BAR: f64 = 42.0;
    let most = bars.iter().map(|bar| bar.value).filter(|value| value.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    let (mut out, top) = open(LINE + BAR * bars.len() as f64, title, about);
    text(&mut out, GAP, top + 8.0, "small", "start", unit);
    for (index, bar) in bars.iter().enumerate() {
        let (y, kind) = (top + LINE + BAR * index as f64, bar.group % COLOURS.len());
        let length = if bar.value.is_finite() { WIDTH * bar.value / most } else { 0.0 };
        text(&mut out, GAP, y + 12.0, "ink", "start", &bar.label);
        let at = y + 17.0;
        let _ = writeln!(out, r#"<rect class="c{kind} dot" x="{GAP}" y="{at:.1}" width="{length:.1}" height="16"/>"#);
        text(&mut out, GAP + length + 8.0, y + 30.0, "ink", "start", &number(bar.value));
    }
    out + "</svg>\n"
}

/// Begins a drawing with this height below the head; returns its text, and where the part below begins.
fn open(below: f64, title: &str, about: &str) -> (String, f64) {
    let about = lines(about);
    let top = 40.0 + LINE * about.len() as f64;
    let height = top + below + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PAGE:.0} {height:.0}\" width=\"{PAGE:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<title>{}</title>\n{}",
        escaped(title),
        style()
    );
    let _ = writeln!(out, r#"<rect class="paper" width="{PAGE:.0}" height="{height:.0}"/>"#);
    text(&mut out, GAP, 26.0, "ink title", "start", title);
    for (index, line) in about.iter().enumerate() {
        text(&mut out, GAP, 46.0 + LINE * index as f64, "small", "start", line);
    }
    (out, top)
}

/// Breaks small print between words.
fn lines(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + 1 + word.len() <= PRINT => {
                *line += if line.is_empty() { "" } else { " " };
                *line += word;
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn text(out: &mut String, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
    let text = escaped(text);
    let _ = writeln!(out, r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

/// Escapes a text for XML and removes its control characters.
fn escaped(text: &str) -> String {
    printable(text, MOST_OF_A_TEXT)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// A number in as few digits as its size needs.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.4}M", value * 1e-6).replace(".0000", ""),
        size if size >= 100.0 || value.fract().abs() < 1e-9 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_hold_their_values_at_round_marks() {
        let (low, high, marks) = Axis::new("x").range([3.0, 17.0].into_iter());
        assert_eq!((low, high, marks[1] - marks[0]), (0.0, 20.0, 5.0));
        let (low, high, marks) = Axis::new("x").log2().range([1.0, 200.0].into_iter());
        assert_eq!((low, high, marks.len(), marks[8]), (0.0, 8.0, 9, 256.0));
        assert_eq!(Axis::new("x").range([].into_iter()).0, 0.0);
        let (low, high, _) = Axis::new("x").range([5.0].into_iter());
        assert!(low <= 5.0 && high > 5.0);
    }

    #[test]
    fn small_print_is_broken_between_words() {
        let text = "word ".repeat(40);
        let broken = lines(&text);
        assert!(broken.len() == 3 && broken.iter().all(|line| line.len() <= PRINT), "{broken:?}");
        assert_eq!(broken.join(" "), text.trim_end());
        assert_eq!(lines("x".repeat(100).as_str()).len(), 1);
    }

    #[test]
    fn drawings_are_whole_and_escaped() {
        let mut panel =
            Panel::new("a < b\x1b & c", Axis::new("threads"), Axis::new("ms").with_zero()).line(2.0, "limit");
        panel.point(Series::solid("p99"), 1.0, 3.0);
        panel.point(Series::solid("p99"), 2.0, f64::NAN);
        panel.point(Series::dashed("bound"), 1.0, 4.0);
        let svg = Chart { title: "t".into(), about: "\"x\"".into(), panels: vec![panel] }.svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN"));
        assert!(svg.contains(r"a &lt; b\u{1b} &amp; c") && svg.contains("prefers-color-scheme: dark"));
        let bar = Bar { label: "one".into(), value: 12_345.0, group: 0 };
        assert!(bars("t", "", "images/s", &[bar]).contains("12345"));
    }
}
