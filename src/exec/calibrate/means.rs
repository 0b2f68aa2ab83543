//! The means of values, for each channel.

use std::collections::BTreeMap;

/// Sums of the channels' means over rows, by the name of the step that wrote the values. The sums are whole numbers, so
/// that they do not depend on the order of the rows.
/// whichever order rows are counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Sums(BTreeMap<String, Vec<i128>>);

/// The whole number that stands for 1.
const ONE: f64 = (1_u64 << 40) as f64;

impl Sums {
    /// Adds the means of a step's channels in one row; a NaN counts as 0.
    fn add(&mut self, step: &str, means: &[f64]) {
        let sums = match self.0.get_mut(step) {
            Some(sums) => sums,
            None => self.0.entry(step.to_owned()).or_insert_with(|| vec![0; means.len()]),
        };
        let whole = |mean: f64| (mean * ONE) as i128;
        sums.iter_mut().zip(means).for_each(|(sum, &mean)| *sum = sum.saturating_add(whole(mean)));
    }

    /// Adds the sums that another thread has counted.
    pub fn merge(&mut self, other: Self) {
        for (step, more) in other.0 {
            match self.0.get_mut(&step) {
                Some(sums) => sums.iter_mut().zip(more).for_each(|(sum, more)| *sum = sum.saturating_add(more)),
                None => drop(self.0.insert(step, more)),
            }
        }
    }

    /// The means over `rows` rows: all channels of the first of `steps`, then those of the next.
    pub fn means(&self, steps: &[String], rows: usize) -> Vec<f32> {
        let sums = steps.iter().filter_map(|step| self.0.get(step)).flatten();
        sums.map(|sum| (*sum as f64 / ONE / rows as f64) as f32).collect()
    }
}

/// The sums of one row's values, added while its steps write them pixel by pixel: for each step its channels' sums and
/// the number of pixels.
#[derive(Default)]
pub(super) struct OfRow(BTreeMap<String, (Vec<f64>, usize)>);

impl OfRow {
    /// Adds the values of a pixel.
    pub fn add(&mut self, step: &str, pixel: &[f32]) {
        if !self.0.contains_key(step) {
            self.0.insert(step.to_owned(), (vec![0.0; pixel.len()], 0));
        }
        let (sums, pixels) = self.0.get_mut(step).expect("it was just made");
        sums.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += f64::from(*value));
        *pixels += 1;
    }

    /// Adds the means of this row to `all`.
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

    /// Two rows: a step with two channels and two pixels, and a step with one channel.
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
