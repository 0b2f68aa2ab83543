//! A soak as a table and as a plot.

use std::io::{self, Write};

use super::{Figures, INCLUDES, Row};
use crate::bench::plot::{Axis, Chart, Panel, Series};
use crate::report;

const MIB: f64 = (1 << 20) as f64;

pub fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{:>8} {:>10} {:>7} {:>10} {:>10} {:>12} {:>11} {:>7} {:>10} {:>11} {:>7}",
        "time",
        "answers/s",
        "opened",
        "p50",
        "p99",
        "resident MiB",
        "descriptors",
        "threads",
        "device MiB",
        "locked MiB",
        "GPU MiB"
    )?;
    figures.rows.iter().try_for_each(|row| line(row, out))?;
    writeln!(out, "\nWith the upload: {INCLUDES}.")?;
    match &figures.grown[..] {
        [] => writeln!(out, "Nothing grew."),
        grown => grown.iter().try_for_each(|what| writeln!(out, "grown: {what}")),
    }
}

fn line(row: &Row, out: &mut dyn Write) -> io::Result<()> {
    let Row { seconds, answers_per_second, opened, vitals, .. } = row;
    let [p50, p99] = [row.p50_seconds, row.p99_seconds].map(report::time);
    let [resident, device, locked] =
        [vitals.resident_bytes, vitals.device_bytes, vitals.page_locked_bytes].map(|bytes| bytes as f64 / MIB);
    let gpu = vitals.gpu_mib.map_or_else(|| "-".to_owned(), |mib| mib.to_string());
    let (descriptors, threads) = (vitals.descriptors, vitals.threads);
    writeln!(
        out,
        "{seconds:>6.0} s {answers_per_second:>10.0} {opened:>7} {p50:>10} {p99:>10} {resident:>12.1} {descriptors:>11} \
         {threads:>7} {device:>10.1} {locked:>11.1} {gpu:>7}"
    )
}

pub fn plot(figures: &Figures, about: &str) -> Chart {
    let time = || Axis::new("time, s").with_zero();
    let mut latency = Panel::new("Latency", time(), Axis::new("latency, ms").with_zero());
    let mut memory = Panel::new("Memory of the process", time(), Axis::new("resident, MiB").with_zero());
    for row in &figures.rows {
        for (name, seconds) in [("p50", row.p50_seconds), ("p99", row.p99_seconds)] {
            latency.point(Series::solid(name), row.seconds, seconds * 1e3);
        }
        memory.point(Series::solid("resident"), row.seconds, row.vitals.resident_bytes as f64 / MIB);
    }
    let title = "Soak: clients, and models that are opened and closed (with the upload)";
    Chart { title: title.into(), about: about.into(), panels: vec![latency, memory] }
}
