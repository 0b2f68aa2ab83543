//! Figures and lines of text: medians, percentiles, top lists.

use std::fmt;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::{Duration, Instant};

use indicatif::{HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde::Serialize;
use trefoil::model::Model;
use trefoil::printable;

/// One class of a photo.
#[derive(Debug, Clone, Serialize)]
pub struct Class {
    pub index: usize,
    pub label: String,
    pub probability: f32,
}

impl Class {
    /// The entries of a top list, with their labels.
    pub fn list(model: &Model, top: &[(usize, f32)]) -> Vec<Self> {
        let class = |&(index, probability): &(usize, f32)| {
            let label = model.label(index).to_owned();
            Self { index, label, probability }
        };
        top.iter().map(class).collect()
    }

    /// A line of text for people.
    pub fn line(&self) -> String {
        format!("{:6.1} %  {:>4} {}", 100.0 * self.probability, self.index, printable(&self.label, MOST_OF_A_LABEL))
    }
}

/// The most characters of a label, a path and a message that are shown to people.
const MOST_OF_A_LABEL: usize = 200;
const MOST_OF_A_PATH: usize = 4096;
const MOST_OF_A_MESSAGE: usize = 6000;

/// A path for people, without characters that control the terminal.
pub fn path(path: &Path) -> String {
    printable(&path.to_string_lossy(), MOST_OF_A_PATH)
}

/// A message for people, without characters that control the terminal.
pub fn message(text: &str) -> String {
    printable(text, MOST_OF_A_MESSAGE)
}

/// Median and spread of samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub samples: usize,
}

impl Spread {
    /// The spread of samples in any order; `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        // The percentile interpolates between the two nearest samples.
        let at = |part: f64| {
            let place = part * last as f64;
            let (low, rest) = (sorted[place as usize], place.fract());
            low + rest * (sorted[(place as usize + 1).min(last)] - low)
        };
        Some(Self { median: at(0.5), p10: at(0.1), p90: at(0.9), samples: sorted.len() })
    }
}

/// Seconds in a unit that fits their size.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s < 1e-3 => format!("{:.1} us", s * 1e6),
        s if s < 1.0 => format!("{:.3} ms", s * 1e3),
        s => format!("{s:.3} s"),
    }
}

/// Seconds in milliseconds, with four digits, or more before the point.
pub fn ms(seconds: f64) -> String {
    let digits = match seconds {
        s if s < 1e-3 => 4,
        s if s < 1e-2 => 3,
        s if s < 0.1 => 2,
        s if s < 1.0 => 1,
        _ => 0,
    };
    format!("{:.digits$}", 1e3 * seconds)
}

/// The look of a word on stdout, on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Good,
    Warning,
    Bad,
    Faint,
}

/// The text in its colour, if stdout is a terminal and `NO_COLOR` is not set; else as it is.
pub fn paint(as_what: Paint, text: &str) -> String {
    static COLOURED: LazyLock<bool> = LazyLock::new(|| {
        let unwanted =
            std::env::var_os("NO_COLOR").is_some() || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        !unwanted && std::io::stdout().is_terminal()
    });
    painted(as_what, text, *COLOURED)
}

fn painted(as_what: Paint, text: &str, coloured: bool) -> String {
    let code = match as_what {
        Paint::Good => "32",
        Paint::Warning => "33",
        Paint::Bad => "1;31",
        Paint::Faint => "2",
    };
    if coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A bar on stderr, visible only on a terminal. In the template `{rate}` is the number done in a second, and `{eta}`
/// the remaining time at that rate; both are a dash until something is done.
pub fn progress_bar(total: u64, template: &str) -> ProgressBar {
    bar(total, template, |state| known(state, format!("{:#}", HumanDuration(state.eta()))))
}

/// A bar for work that takes a known time: `{eta}` is the remaining part of that time.
pub fn timed_bar(limit: Duration, template: &str) -> ProgressBar {
    let end = Instant::now() + limit;
    bar(0, template, move |_| format!("{:#}", HumanDuration(end.saturating_duration_since(Instant::now()))))
}

/// Adds a bar; bars that are visible at the same time are one below the other.
fn bar(
    total: u64,
    template: &str,
    left: impl Fn(&ProgressState) -> String + Clone + Send + Sync + 'static,
) -> ProgressBar {
    static BARS: LazyLock<MultiProgress> =
        LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(10)));
    let bar = BARS.add(ProgressBar::new(total));
    if let Ok(style) = ProgressStyle::with_template(template) {
        let rate = |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&known(state, format!("{:.1}", state.per_sec())));
        };
        let left = move |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = out.write_str(&left(state));
        };
        bar.set_style(style.with_key("rate", rate).with_key("eta", left));
    }
    keep_ticking(&bar);
    bar
}

/// Starts a thread that moves a visible bar while nothing is done. Without a thread the bar moves only with the work.
fn keep_ticking(bar: &ProgressBar) {
    const PERIOD: Duration = Duration::from_millis(200);
    if bar.is_hidden() {
        return;
    }
    let bar = bar.downgrade();
    let tick = move || {
        while let Some(bar) = bar.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            thread::sleep(PERIOD);
        }
    };
    if let Err(error) = thread::Builder::new().name("trefoil-bar".into()).spawn(tick) {
        log::debug!("the progress bar moves with the work alone: {error}");
    }
}

/// A text that depends on the rate; a dash while nothing is done.
fn known(state: &ProgressState, text: String) -> String {
    if state.pos() == 0 { "-".to_owned() } else { text }
}

/// Checks that numbers are probabilities: finite, not negative, and 1 in sum.
pub fn check_probabilities(values: &[f32]) -> Result<(), String> {
    const MOST_OFF: f32 = 1e-2;
    if let Some(class) = values.iter().position(|p| !p.is_finite() || *p < 0.0) {
        return Err(format!("class {class} has the probability {}", values[class]));
    }
    let sum: f32 = values.iter().sum();
    if (sum - 1.0).abs() > MOST_OFF {
        return Err(format!("the probabilities sum to {sum}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_lie_between_samples() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[2.0]), Some(Spread { median: 2.0, p10: 2.0, p90: 2.0, samples: 1 }));
        let samples: Vec<f64> = (0..=10).rev().map(f64::from).collect();
        assert_eq!(Spread::of(&samples), Some(Spread { median: 5.0, p10: 1.0, p90: 9.0, samples: 11 }));
        assert_eq!(Spread::of(&[1.0, 2.0]).unwrap().median, 1.5);
    }

    #[test]
    fn milliseconds_have_four_digits() {
        let said = [12.3456e-6, 1.23456e-3, 12.3456e-3, 0.123_456, 12.3456].map(ms);
        assert_eq!(said, ["0.0123", "1.235", "12.35", "123.5", "12346"]);
    }

    #[test]
    fn colours_are_on_terminals_alone() {
        assert_eq!(painted(Paint::Bad, "bad", false), "bad");
        assert_eq!(painted(Paint::Good, "ok", true), "\x1b[32mok\x1b[0m");
    }

    #[test]
    fn nonsense_is_no_probability() {
        assert!(check_probabilities(&[0.25; 4]).is_ok());
        assert!(check_probabilities(&[0.25; 5]).is_err());
        assert!(check_probabilities(&[f32::NAN, 1.0]).is_err());
        assert!(check_probabilities(&[-0.5, 1.5]).is_err());
        assert!(check_probabilities(&[]).is_err());
    }
}
