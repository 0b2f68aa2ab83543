//! The values of indices over points that lie side by side.

use std::ops::Range;

/// The values of an index over the lanes of a block of consecutive points.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Lanes {
    /// The index is the same in all lanes.
    Same,
    /// The index is this stride times the number of the point.
    Linear(i64),
    /// The index is in the table of this number.
    Table(usize),
    /// The index rises by one in each of several runs.
    Runs(RunsOfLanes),
}

/// The runs of an index that rises by one from lane to lane within a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RunsOfLanes {
    /// The number of lanes of a run.
    run: usize,
    /// The extents and strides of the axes that number the runs.
    extents: Vec<usize>,
    strides: Vec<i64>,
}

impl RunsOfLanes {
    /// The runs of an index with these strides over axes of these extents; `None` if no run has several lanes.
    pub fn of(extents: &[usize], strides: &[i64]) -> Option<Self> {
        let (mut outer, mut run) = (extents.len(), 1);
        while outer > 0 && strides[outer - 1] == run as i64 {
            outer -= 1;
            run *= extents[outer];
        }
        let mut axes: Vec<(usize, i64)> = Vec::new();
        for axis in extents[..outer].iter().copied().zip(strides[..outer].iter().copied()) {
            match axes.last_mut() {
                Some((extent, stride)) if *stride == axis.1 * axis.0 as i64 => {
                    (*extent, *stride) = (*extent * axis.0, axis.1)
                }
                _ => axes.push(axis),
            }
        }
        let (extents, strides) = axes.into_iter().unzip();
        (run > 1).then_some(Self { run, extents, strides })
    }

    /// The number of lanes of a run.
    pub const fn run(&self) -> usize {
        self.run
    }

    /// Moves to the next run; `index` is that in the first lane of the run at this point.
    fn step(&self, at: &mut [usize], index: &mut i64) {
        for ((at, &extent), stride) in at.iter_mut().zip(&self.extents).zip(&self.strides).rev() {
            (*at, *index) = (*at + 1, *index + stride);
            if *at < extent {
                return;
            }
            (*at, *index) = (0, *index - stride * extent as i64);
        }
    }

    /// Calls `each` for each run of a block with the run's lanes and the index in its first lane. The block's first
    /// lane is the point of number `start`.
    pub fn each(&self, start: usize, lanes: usize, mut each: impl FnMut(Range<usize>, i64)) {
        let (mut lane, mut first) = (0, start % self.run);
        let mut at = point(&self.extents, start / self.run);
        let mut index = at.iter().zip(&self.strides).map(|(&at, stride)| at as i64 * stride).sum();
        while lane < lanes {
            let end = lanes.min(lane + self.run - first);
            each(lane..end, index + first as i64);
            (lane, first) = (end, 0);
            self.step(&mut at, &mut index);
        }
    }
}

/// Writes the values of an index with these strides at consecutive points, from the point of number `start` on.
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

/// The indices along all axes of the point of this number. The last axis runs fastest.
pub(super) fn point(extents: &[usize], mut number: usize) -> Vec<usize> {
    let mut at = vec![0; extents.len()];
    for (at, extent) in at.iter_mut().zip(extents).rev() {
        (*at, number) = (number % extent, number / extent);
    }
    at
}

/// Moves to the next point. The last axis runs fastest. Returns false after the last point.
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
        let joined = RunsOfLanes::of(&[3, 4, 2, 5], &[80, 20, 0, 1]).unwrap();
        assert_eq!((&joined.extents[..], &joined.strides[..]), (&[12, 2][..], &[20, 0][..]));
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
