//! An overload as tables and as a plot.

use std::io::{self, Write};

use super::{Figures, INCLUDES, Row, Times};
use crate::bench::plot::{Axis, Chart, Panel, Series};
use crate::report;
use crate::table::Column::{Figure, Word};
use crate::table::Table;

pub fn print(figures: &Figures, out: &mut dyn Write) -> io::Result<()> {
    let print = |heads: &[&'static str], cells: &dyn Fn(&Row) -> Vec<String>, out: &mut dyn Write| -> io::Result<()> {
        let heads = heads.iter().copied().map(Figure);
        let mut table = Table::new(&[Word("run")].into_iter().chain(heads).collect::<Vec<_>>());
        figures.rows.iter().for_each(|row| table.row([row.run.to_owned()].into_iter().chain(cells(row))));
        table.print(out)?;
        writeln!(out)
    };
    print(
        &["due/s", "load", "goodput/s", "ratio", "queue", "batch", "p50", "p99", "high p50", "high p99"],
        &rates,
        out,
    )?;
    print(&["asked", "answered", "refused", "expired", "given up", "held back", "late", "wrong"], &counts, out)?;
    print(&["Jain", "chance", "least", "most", "late p50", "late max", "told p99", "sent p99"], &fairness, out)?;
    let (most, least) = (figures.most_queued, figures.least);
    for line in [
        "load: rows due over the goodput of the saturated batcher. goodput: rows uploaded by their deadline, and \
         answered. ratio: over the mean goodput of the saturated batcher before and after.",
        &format!(
            "queue: the most rows that were queued, of {most}. batch: mean rows of a batch. p50, p99: latencies in ms, also of high priority."
        ),
        "expired: not uploaded by the deadline, and told so. late: answered after the deadline, uploaded before it. held \
         back: due, but not asked for before the end.",
        "Jain, least, most: the index of the clients' shares of answers, and the shares; chance: the index if chance \
         alone decides. late, told: ms from a deadline to the answer, to the error. sent: ms from when a request is due.",
        &format!("With the upload: {INCLUDES}."),
    ] {
        writeln!(out, "{line}")?;
    }
    match &figures.failed[..] {
        [] => writeln!(out, "All rows are accounted for, and the goodput is at least {least} of the best."),
        failed => failed.iter().try_for_each(|what| writeln!(out, "failed: {what}")),
    }
}

/// A figure, or a dash where there is none.
fn or_dash(figure: Option<f64>, digits: usize) -> String {
    figure.map_or_else(|| "-".to_owned(), |figure| format!("{figure:.digits$}"))
}

fn time(times: &Times, of: fn(&Times) -> f64) -> String {
    if times.count == 0 { "-".to_owned() } else { report::ms(of(times)) }
}

fn rates(row: &Row) -> Vec<String> {
    let [p50, p99]: [fn(&Times) -> f64; 2] = [|times| times.p50_seconds, |times| times.p99_seconds];
    let (normal, high) = (&row.normal, &row.high);
    let rates = [or_dash(row.due_per_second, 0), or_dash(row.load, 2), format!("{:.0}", row.answered_per_second)];
    let times = [time(normal, p50), time(normal, p99), time(high, p50), time(high, p99)];
    let rows = [or_dash(row.ratio, 3), row.most_queued.to_string(), format!("{:.1}", row.mean_batch)];
    rates.into_iter().chain(rows).chain(times).collect()
}

fn counts(row: &Row) -> Vec<String> {
    let of = &row.counts;
    let counts = [of.asked, of.answered, of.refused, of.expired, of.given_up, of.held_back, of.late, of.wrong];
    counts.map(|count| count.to_string()).into()
}

fn fairness(row: &Row) -> Vec<String> {
    let of = row.load.and(row.fairness.as_ref());
    let indices = [of.map(|of| of.jain), of.map(|of| of.jain_by_chance)].map(|index| or_dash(index, 4));
    let shares = [of.map(|of| of.least_share), of.map(|of| of.most_share)].map(|share| or_dash(share, 3));
    let times = [
        time(&row.late, |late| late.p50_seconds),
        time(&row.late, |late| late.max_seconds),
        time(&row.told, |told| told.p99_seconds),
        time(&row.sent, |sent| sent.p99_seconds),
    ];
    indices.into_iter().chain(shares).chain(times).collect()
}

pub fn plot(figures: &Figures, about: &str) -> Chart {
    let mut panel = Panel::new(
        "Shares of the clients",
        Axis::new("clients, by their share"),
        Axis::new("answered rows, % of those asked for").with_zero(),
    );
    for row in figures.rows.iter().filter(|row| row.load.is_some()) {
        let shares = row.fairness.iter().flat_map(|fairness| &fairness.shares);
        for (client, share) in shares.enumerate() {
            panel.point(Series::solid(row.run), (client + 1) as f64, 100.0 * share);
        }
    }
    let title = "Overload: equal clients of one batcher (with the upload)";
    Chart { title: title.into(), about: about.into(), panels: vec![panel] }
}
