//! The context that is kept with a figure: commit, date, device, driver, clocks, temperature, options, model.

use std::io::{self, Write};
use std::process::Command;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::Value;
use trefoil::{Device, files};

use super::args::ReportArgs;
use crate::setup;
use crate::smi::{query, said, visible};
use crate::stop;
use crate::{out, outputs};

/// A benchmark's record, as `--json` prints and `--record` keeps it.
#[derive(Serialize)]
pub struct Record {
    benchmark: &'static str,
    trefoil: &'static str,
    commit: String,
    /// When the benchmark began, in UTC.
    date: String,
    seconds: f64,
    /// Whether Ctrl-C ended the benchmark: the figures are those measured until then.
    interrupted: bool,
    cores: usize,
    device: String,
    device_name: String,
    /// Version of the GPU's driver, by nvidia-smi.
    driver: Option<String>,
    /// The GPU's states during the benchmark; `None` where nvidia-smi gives none.
    gpu: Option<Vec<GpuState>>,
    model: Option<String>,
    options: Value,
    figures: Value,
    #[serde(skip)]
    began: Instant,
    /// The GPU's name for nvidia-smi.
    #[serde(skip)]
    id: Option<String>,
}

/// The state of the GPU at one moment.
#[derive(Serialize)]
struct GpuState {
    at: String,
    sm_mhz: Option<f64>,
    memory_mhz: Option<f64>,
    celsius: Option<f64>,
    watt: Option<f64>,
    /// The reasons that hold the clocks down, as nvidia-smi's bits.
    clocks_held_by: Option<String>,
}

/// An error if Ctrl-C came before anything was measured.
pub fn ensure_some<T>(measured: &[T], what: &str) -> Result<()> {
    ensure!(!measured.is_empty() || !stop::requested(), "interrupted before {what} was over: nothing was measured");
    Ok(())
}

impl Record {
    /// Starts a record; fails at once if a file that is asked for cannot be written.
    pub fn start(
        benchmark: &'static str,
        device: &Device,
        model: Option<&str>,
        options: Value,
        args: &ReportArgs,
    ) -> Result<Self> {
        for (path, ending) in [(&args.record, "json"), (&args.plot, "svg")] {
            path.iter().try_for_each(|path| outputs::check(path, ending, None))?;
        }
        let info = device.info();
        let id = info.target.strip_prefix("cuda:").map(visible);
        let mut record = Self {
            benchmark,
            trefoil: env!("CARGO_PKG_VERSION"),
            commit: commit(args),
            date: date(SystemTime::now()),
            seconds: 0.0,
            interrupted: false,
            cores: setup::cores(),
            device: info.target.clone(),
            device_name: info.name.clone(),
            driver: id.as_deref().and_then(|id| query(id, &["driver_version"])?.pop()?),
            gpu: None,
            model: model.map(str::to_owned),
            options,
            figures: Value::Null,
            began: Instant::now(),
            id,
        };
        record.note("start");
        Ok(record)
    }

    /// Notes the GPU's clocks and temperature. Call it right after a measurement, while the clocks are still up.
    pub fn note(&mut self, at: &str) {
        let Some(id) = &self.id else { return };
        let fields = ["clocks.sm", "clocks.mem", "temperature.gpu", "power.draw", "clocks_event_reasons.active"];
        let Some(values) = query(id, &fields) else { return };
        let number = |index: usize| values[index].as_ref()?.parse().ok();
        self.gpu.get_or_insert_default().push(GpuState {
            at: at.to_owned(),
            sm_mhz: number(0),
            memory_mhz: number(1),
            celsius: number(2),
            watt: number(3),
            clocks_held_by: values[4].clone(),
        });
    }

    /// One line that names the device, model and options of the figures.
    pub fn headline(&self) -> String {
        let driver = self.driver.as_ref().map_or_else(String::new, |driver| format!(", driver {driver}"));
        let model = self.model.as_ref().map_or_else(String::new, |model| format!("{model} on "));
        format!("{model}{} ({}){driver}, commit {}, {}", self.device, self.device_name, self.commit, self.date)
    }

    /// Prints the record or the table, and writes the files asked for.
    pub fn finish(
        mut self,
        args: &ReportArgs,
        figures: &impl Serialize,
        table: impl FnOnce(&mut dyn Write) -> io::Result<()>,
        plot: impl FnOnce(&str) -> String,
    ) -> Result<()> {
        self.note("end");
        self.figures = serde_json::to_value(figures)?;
        self.seconds = self.began.elapsed().as_secs_f64();
        self.interrupted = stop::requested();
        if self.interrupted {
            let _ = writeln!(io::stderr(), "interrupted: these figures were complete before");
        }
        // The figures are printed even if a file cannot be written, and the files are written even if printing fails.
        let printed = self.print(args.json, table);
        let kept = self.keep(args, plot);
        kept.and(printed)
    }

    fn print(&self, json: bool, table: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        if json {
            writeln!(io::stdout(), "{}", serde_json::to_string(self)?)?;
        } else {
            let mut out = out::stdout();
            writeln!(out, "{}\n", self.headline())?;
            table(&mut out)?;
        }
        Ok(())
    }

    fn keep(&self, args: &ReportArgs, plot: impl FnOnce(&str) -> String) -> Result<()> {
        if let Some(path) = &args.record {
            files::write(path, serde_json::to_string_pretty(self)? + "\n")?;
        }
        if let Some(path) = &args.plot {
            files::write(path, plot(&self.headline()))?;
        }
        Ok(())
    }
}

/// The commit from the option, from TREFOIL_COMMIT, or from git in the folder of the program.
fn commit(args: &ReportArgs) -> String {
    let given = args.commit.clone().or_else(|| std::env::var("TREFOIL_COMMIT").ok());
    let described = || {
        let program = std::env::current_exe().ok()?;
        let mut git = Command::new("git");
        git.arg("-C").arg(program.parent()?);
        git.args(["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]);
        said(&mut git)
    };
    given.filter(|commit| !commit.is_empty()).or_else(described).unwrap_or_else(|| "unknown".into())
}

/// Date and time in UTC, as in 2026-11-21T08:09:10Z.
fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let [hour, minute, second] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    // Days since 1 March of the year 0, in cycles of 400 years, each of 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (cycle, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // 0 is March
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = 400 * cycle + year + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_795_248_550, "2026-11-21T08:09:10Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
