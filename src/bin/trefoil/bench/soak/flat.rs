//! Checks whether memory, threads or latency grow.

use super::Row;

/// Increase of resident memory that does not count as growth: an allocator keeps some of the freed memory.
const RESIDENT_BYTES: f64 = (1 << 20) as f64;
const RESIDENT_PART: f64 = 0.01;
/// Increase of latency that does not count as growth: other programs may use the machine.
const LATENCY_PART: f64 = 1.0;
/// The least number of periods that show growth.
const LEAST: usize = 4;

/// A quantity, how several periods make one figure, and by how much it may increase.
struct Quantity {
    name: &'static str,
    of: fn(&Row) -> f64,
    /// Whether the figure of several periods is their least value; otherwise it is the largest.
    least: bool,
    free: f64,
    free_part: f64,
}

const fn exact(name: &'static str, of: fn(&Row) -> f64) -> Quantity {
    Quantity { name, of, least: false, free: 0.0, free_part: 0.0 }
}

/// Other programs may take and free GPU memory and cores: for these quantities the least value of some periods counts.
const QUANTITIES: [Quantity; 7] = [
    Quantity {
        free: RESIDENT_BYTES,
        free_part: RESIDENT_PART,
        ..exact("resident_bytes", |row| row.vitals.resident_bytes as f64)
    },
    exact("descriptors", |row| row.vitals.descriptors as f64),
    exact("threads", |row| row.vitals.threads as f64),
    exact("device_bytes", |row| row.vitals.device_bytes as f64),
    exact("page_locked_bytes", |row| row.vitals.page_locked_bytes as f64),
    Quantity { least: true, ..exact("gpu_mib", |row| row.vitals.gpu_mib.unwrap_or(0) as f64) },
    Quantity { least: true, free_part: LATENCY_PART, ..exact("p50_seconds", p50_seconds) },
];

/// The median latency; infinite for a period without answers, so that other periods count before it.
fn p50_seconds(row: &Row) -> f64 {
    if row.answers == 0 { f64::INFINITY } else { row.p50_seconds }
}

/// The quantities that are larger in the last third of the periods than in the first. The very first period is left
/// out, because everything happens there for the first time.
pub fn grown(rows: &[Row]) -> Vec<String> {
    if rows.len() < LEAST {
        return Vec::new();
    }
    let rows = &rows[1..];
    let third = rows.len().div_ceil(3);
    let (early, late) = (&rows[..third], &rows[rows.len() - third..]);
    QUANTITIES.iter().filter_map(|quantity| quantity.grown(early, late)).collect()
}

impl Quantity {
    fn stands(&self, rows: &[Row]) -> f64 {
        let values = rows.iter().map(self.of);
        if self.least { values.fold(f64::INFINITY, f64::min) } else { values.fold(0.0, f64::max) }
    }

    fn grown(&self, early: &[Row], late: &[Row]) -> Option<String> {
        let [early, late] = [early, late].map(|rows| self.stands(rows));
        let most = early * (1.0 + self.free_part) + self.free;
        (late > most).then(|| format!("{}: {early} early, {late} late", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vitals::Vitals;

    /// Periods with these descriptors, resident MiB and medians in milliseconds.
    fn rows(figures: &[(u64, f64, f64)]) -> Vec<Row> {
        let row = |&(descriptors, mib, p50_ms): &(u64, f64, f64)| Row {
            answers: u64::from(p50_ms > 0.0),
            p50_seconds: p50_ms * 1e-3,
            vitals: Vitals { descriptors, resident_bytes: (mib * RESIDENT_BYTES) as u64, ..Vitals::default() },
            ..Row::default()
        };
        figures.iter().map(row).collect()
    }

    #[test]
    fn what_is_more_in_the_end_has_grown() {
        let flat = [(9, 50.0, 1.0), (7, 90.0, 3.0), (7, 91.0, 2.0), (6, 90.0, 2.0), (7, 91.5, 3.9)];
        assert_eq!(grown(&rows(&flat)), [""; 0]);
        let with = |last| grown(&rows(&[&flat[..4], &[last, last]].concat()));
        assert_eq!(with((8, 90.0, 2.0)), ["descriptors: 7 early, 8 late"]);
        assert!(with((7, 93.0, 2.0))[0].starts_with("resident_bytes: 95420416 early, 97517568"));
        assert_eq!(with((7, 90.0, 5.0)), ["p50_seconds: 0.002 early, 0.005 late"]);
        assert_eq!(with((7, 90.0, 0.0)), ["p50_seconds: 0.002 early, inf late"]);
        assert_eq!(with((8, 93.0, 9.0)).len(), 3);
    }

    #[test]
    fn few_periods_show_nothing() {
        assert_eq!(grown(&rows(&[(1, 1.0, 1.0), (2, 9.0, 9.0), (3, 99.0, 99.0)])), [""; 0]);
    }
}
