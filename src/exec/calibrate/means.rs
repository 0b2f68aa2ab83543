//! What values are on average, channel by channel.

use std::collections::BTreeMap;

/// Sums of the values that steps have written, by the steps' names. They are whole numbers, so that they are the same in
/// whichever order rows are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(BTreeMap<String, Vec<i128>>);

/// So much is 1.
const ONE: f64 = (1_u64 << 40) as f64;

impl Sums {
    /// Counts what a row's means of a step's channels are; a NaN counts as 0.
    fn add(&mut self, step: &str, means: &[f64]) {
        let sums = match self.0.get_mut(step) {
            Some(sums) => sums,
            None => self.0.entry(step.to_owned()).or_insert_with(|| vec![0; means.len()]),
        };
        let whole = |mean: f64| (mean * ONE) as i128;
        sums.iter_mut().zip(means).for_each(|(sum, &mean)| *sum = sum.saturating_add(whole(mean)));
    }

    /// Counts what others have counted.
    pub fn merge(&mut self, other: Self) {
        for (step, more) in other.0 {
            match self.0.get_mut(&step) {
                Some(sums) => sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more)),
                None => drop(self.0.insert(step, more)),
            }
        }
    }

    /// The means of so many rows: the channels of one step behind those of another.
    pub fn means(&self, steps: &[String], rows: usize) -> Vec<f32> {
        let sums = steps.iter().filter_map(|step| self.0.get(step)).flatten();
        sums.map(|sum| (*sum as f64 / ONE / rows as f64) as f32).collect()
    }
}

/// Of one row, while its steps write their values pixel by pixel.
#[derive(Default)]
pub(super) struct OfRow(BTreeMap<String, (Vec<f64>, usize)>);

impl OfRow {
    /// Adds up a pixel.
    pub fn add(&mut self, step: &str, pixel: &[f32]) {
        if !self.0.contains_key(step) {
            self.0.insert(step.to_owned(), (vec![0.0; pixel.len()], 0));
        }
        let (sums, pixels) = self.0.get_mut(step).expect("it was just made");
        sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += f64::from(*value));
        *pixels += 1;
    }

    /// Counts the row.
    pub fn count(self, all: &mut Sums) {
        for (step, (mut sums, pixels)) in self.0 {
            sums.iter_mut().for_each(|sum| *sum /= pixels as f64);
            all.add(&step, &sums);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two rows of two pixels of a step with two channels, and of one with one.
    #[test]
    fn means_are_the_same_in_any_order() {
        let rows = [[[0.1_f32, -2.0], [0.3, 4.0]], [[1e-3, 7.0], [f32::NAN, 9.0]]];
        let counted = |rows: &[[[f32; 2]; 2]]| {
            let mut all = Sums::default();
            for row in rows {
                let mut of_row = OfRow::default();
                row.iter().for_each(|pixel| of_row.add("a", pixel));
                of_row.add("b", &[5.0]);
                of_row.count(&mut all);
            }
            all
        };
        let [a, b] = ["a", "b"].map(str::to_owned);
        let means = counted(&rows).means(&[b.clone(), a.clone()], 2);
        assert_eq!(means, [5.0, 0.1, 4.5]); // a NaN counts as 0
        let mut merged = counted(&rows[1..]);
        merged.merge(counted(&rows[..1]));
        merged.merge(Sums::default());
        assert_eq!(merged.means(&[b, a], 2), means);
    }
}
