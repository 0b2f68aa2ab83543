//! Points side by side: how indices run over them.

use std::ops::Range;

/// How an index runs over the lanes of a block of consecutive points of axes.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lanes {
    /// It is the same in each.
    Same,
    /// The number of the point, times this.
    Linear(i64),
    /// As the table of this number has it.
    Table(usize),
    /// It runs by ones, again and again.
    Runs(RunsOfLanes),
}

/// An index that is the next whole number at each lane of a run, and elsewhere in the next one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunsOfLanes {
    /// Lanes of a run.
    run: usize,
    /// The axes of runs.
    extents: Vec<usize>,
    strides: Vec<i64>,
}

impl RunsOfLanes {
    /// The runs of a sum of these strides over axes of these extents, if it has any.
    pub fn of(extents: &[usize], strides: &[i64]) -> Option<Self> {
        let (mut outer, mut run) = (extents.len(), 1);
        while outer > 0 && strides[outer - 1] == run as i64 {
            outer -= 1;
            run *= extents[outer];
        }
        (run > 1).then(|| Self { run, extents: extents[..outer].to_vec(), strides: strides[..outer].to_vec() })
    }

    /// Calls `each` with the lanes of each run of a block, whose first lane is the point of number `start`, and with the
    /// index of the first of them.
    pub fn each(&self, start: usize, lanes: usize, mut each: impl FnMut(Range<usize>, i64)) {
        let (mut first, mut at) = (start % self.run, point(&self.extents, start / self.run));
        let mut lane = 0;
        while lane < lanes {
            let end = lanes.min(lane + self.run - first);
            let index: i64 = at.iter().zip(&self.strides).map(|(&i, stride)| i as i64 * stride).sum();
            each(lane..end, index + first as i64);
            (lane, first) = (end, 0);
            step(&self.extents, &mut at);
        }
    }
}

/// What the sums of strides are at consecutive points of axes, from the point of this number on.
pub(super) fn tabulate(extents: &[usize], strides: &[i64], start: usize, table: &mut [i64]) {
    let [.., inner_extent] = extents else { return table.fill(0) };
    let (outer, inner) = (extents.len() - 1, strides[extents.len() - 1]);
    let mut first = start % inner_extent;
    let mut at = point(&extents[..outer], start / inner_extent);
    let mut rest = table;
    while !rest.is_empty() {
        let (run, behind) = rest.split_at_mut((inner_extent - first).min(rest.len()));
        let base: i64 = at.iter().zip(strides).map(|(&i, stride)| i as i64 * stride).sum();
        run.iter_mut().zip(first as i64..).for_each(|(to, i)| *to = base + i * inner);
        (rest, first) = (behind, 0);
        step(&extents[..outer], &mut at);
    }
}

/// The indices of the point of this number, the last axis running fastest.
pub(super) fn point(extents: &[usize], mut number: usize) -> Vec<usize> {
    let mut at = vec![0; extents.len()];
    for (at, extent) in at.iter_mut().zip(extents).rev() {
        (*at, number) = (number % extent, number / extent);
    }
    at
}

/// Goes to the next point, the last axis running fastest; false behind the last one.
pub(super) fn step(extents: &[usize], at: &mut [usize]) -> bool {
    for (i, &extent) in at.iter_mut().zip(extents).rev() {
        *i += 1;
        if *i < extent {
            return true;
        }
        *i = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_the_indices_of_a_table() {
        let (extents, strides) = ([3, 2, 4, 5], [100, 0, 5, 1]);
        let runs = RunsOfLanes::of(&extents, &strides).unwrap();
        assert_eq!((runs.run, &runs.extents[..]), (20, &[3, 2][..]));
        assert_eq!(RunsOfLanes::of(&extents, &[1, 1, 1, 2]), None);
        for start in 0..120 {
            let mut table = vec![0; (120 - start).min(47)];
            tabulate(&extents, &strides, start, &mut table);
            let mut found = Vec::new();
            runs.each(start, table.len(), |lanes, index| found.extend((index..).take(lanes.len())));
            assert_eq!(found, table, "from {start}");
        }
    }

    #[test]
    fn a_table_has_each_point_of_each_block() {
        let (extents, strides) = ([3, 1, 4, 5], [100, 7, -10, 3]);
        let mut all = vec![0; 60];
        tabulate(&extents, &strides, 0, &mut all);
        let expected: Vec<i64> = (0..60).map(|p| p / 20 * 100 + p / 5 % 4 * -10 + p % 5 * 3).collect();
        assert_eq!(all, expected);
        for start in 0..60 {
            let mut part = vec![0; (60 - start).min(7)];
            tabulate(&extents, &strides, start, &mut part);
            assert_eq!(part, expected[start..start + part.len()]);
        }
    }
}
