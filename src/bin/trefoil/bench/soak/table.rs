//! A soak as a table and as a plot.

use std::io::{self, Write};

use super::{Figures, INCLUDES, Row};
use crate::bench::plot::{Axis, Chart, Panel, Series};
use crate::report;
use crate::table::Column::Figure;
use crate::table::Table;

const MIB: f64 = (1 << 20) as f64;

pub fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let heads = ["s", "answers/s", "opened", "p50", "p99", "resident", "files", "threads", "device", "locked", "GPU"];
    let mut table = Table::new(&heads.map(Figure));
    figures.rows.iter().for_each(|row| table.row(cells(row)));
    table.print(out)?;
    writeln!(out, "\ns: seconds since the start. opened: models opened, run and closed. p50, p99: latencies in ms.")?;
    writeln!(
        out,
        "resident, device, locked: MiB of this process, on the device and page-locked. GPU: MiB of all processes on it. \
         files: open descriptors."
    )?;
    writeln!(out, "With the upload: {INCLUDES}.")?;
    match &figures.grown[..] {
        [] => writeln!(out, "Nothing grew."),
        grown => grown.iter().try_for_each(|what| writeln!(out, "grown: {what}")),
    }
}

fn cells(row: &Row) -> [String; 11] {
    let Row { seconds, answers_per_second, opened, vitals, .. } = row;
    let [p50, p99] = [row.p50_seconds, row.p99_seconds].map(report::ms);
    let [resident, device, locked] = [vitals.resident_bytes, vitals.device_bytes, vitals.page_locked_bytes]
        .map(|bytes| format!("{:.0}", bytes as f64 / MIB));
    let gpu = vitals.gpu_mib.map_or_else(|| "-".to_owned(), |mib| mib.to_string());
    let [opened, files, threads] = [*opened, vitals.descriptors, vitals.threads].map(|count| count.to_string());
    let [seconds, rate] = [seconds, answers_per_second].map(|number| format!("{number:.0}"));
    [seconds, rate, opened, p50, p99, resident, files, threads, device, locked, gpu]
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
