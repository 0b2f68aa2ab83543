//! Teams of threads that divide work.

use std::ops::Range;

/// A team: workers that compute the parts of a task side by side.
///
/// # Safety
/// `each` calls its task once for each part below `parts`, and none of its calls goes on when it has returned.
pub(crate) unsafe trait Team: Sync {
    /// The number of workers.
    fn workers(&self) -> usize;

    /// Calls `task(worker, part)` for each part below `parts`; no two calls at a time have the same worker. Returns when
    /// all calls have.
    fn each(&self, parts: usize, task: &(dyn Fn(usize, usize) + Sync));
}

/// A team of only the calling thread, as the worker of this number.
pub(crate) struct Alone(pub usize);

// SAFETY: each part is called once, before the function returns.
unsafe impl Team for Alone {
    fn workers(&self) -> usize {
        1
    }

    fn each(&self, parts: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        (0..parts).for_each(|part| task(self.0, part));
    }
}

/// The division of a result into lines that may be shared out. A line's content does not depend on the worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    pub count: usize,
    /// The distance from one line to the next, in elements.
    pub pitch: usize,
    /// The number of lines that are best computed together.
    pub together: usize,
    /// The least number of lines, 1 or more, for which a part of the work pays, unless a worker would have none.
    pub least: usize,
    /// The number of multiply-adds, or of operations that take as long, for each line.
    pub ops: usize,
}

/// The work of a worker on some lines of a result: the worker's number, the lines, and their elements.
pub(crate) type Task<'a, T> = dyn Fn(usize, Range<usize>, &mut [T]) + Sync + 'a;

/// The number of operations from which on it pays to hand a part to a thread.
const LEAST_OPS: usize = 1 << 17;

/// The number of parts for each worker, so that others can take parts of a late one.
const PARTS_OF_A_WORKER: usize = 4;

impl Lines {
    /// The number of lines of a part.
    fn in_part(&self, workers: usize) -> usize {
        let least = LEAST_OPS / self.ops.max(1) + 1;
        let most_parts = if workers == 1 { 1 } else { workers * PARTS_OF_A_WORKER };
        let worth = (self.count / self.least).max(workers);
        let parts = (self.count / least).clamp(1, most_parts.min(worth));
        self.count.div_ceil(parts).next_multiple_of(self.together).max(1)
    }

    /// Calls `task(worker, lines, elements)` for parts that together are all lines; `elements` are those of the lines
    /// in `y`.
    pub fn share<T: Send>(&self, team: &dyn Team, y: &mut [T], task: &Task<'_, T>) {
        let in_part = self.in_part(team.workers());
        let (all, y) = (y.len(), Shared(y.as_mut_ptr()));
        team.each(self.count.div_ceil(in_part), &|worker, part| {
            let lines = part * in_part..self.count.min((part + 1) * in_part);
            let [start, end] = [lines.start, lines.end].map(|line| all.min(line.saturating_mul(self.pitch)));
            // SAFETY: start and end are at most the length of y, which is borrowed until all calls have returned. Each
            // part is handed out once, and their lines follow each other, so that no two ranges overlap.
            let y = unsafe { std::slice::from_raw_parts_mut(y.at(start), end - start) };
            task(worker, lines, y);
        });
    }
}

/// Elements of which threads have disjoint parts.
struct Shared<T>(*mut T);

// SAFETY: it is an address alone; who makes slices of it sees to it that no two threads have the same element, and the
// elements may be sent to other threads.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(&self, index: usize) -> *mut T {
        self.0.wrapping_add(index)
    }
}

/// A team of one thread that acts as this number of workers and takes parts from the last to the first.
#[cfg(test)]
pub(super) struct Backwards(pub usize);

#[cfg(test)]
// SAFETY: each part is called once, before the function returns.
unsafe impl Team for Backwards {
    fn workers(&self) -> usize {
        self.0
    }

    fn each(&self, parts: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        (0..parts).rev().for_each(|part| task(part % self.0, part));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn every_line_is_in_one_part() {
        for (count, workers, ops, together) in [(0, 2, 1, 1), (1, 4, 1 << 20, 6), (100, 3, 1 << 16, 6), (97, 2, 1, 1)] {
            let lines = Lines { count, pitch: 5, together, least: 1, ops };
            let mut y = vec![0; (count * 5_usize).saturating_sub(2)];
            let seen = Mutex::new(vec![0; count]);
            lines.share(&Backwards(workers), &mut y, &|_, lines, y| {
                y.iter_mut().for_each(|y| *y += 1);
                assert!(y.len() <= lines.len() * 5 && y.len() + 2 >= lines.len() * 5);
                lines.for_each(|line| seen.lock().unwrap()[line] += 1);
            });
            assert!(y.iter().all(|&y| y == 1) && seen.into_inner().unwrap().iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn little_work_is_one_part_and_much_is_several_for_each_worker() {
        let parts = |ops, workers| {
            let lines = Lines { count: 64, pitch: 1, together: 1, least: 1, ops };
            lines.count.div_ceil(lines.in_part(workers))
        };
        assert_eq!([parts(10, 2), parts(1 << 20, 1), parts(1 << 20, 2)], [1, 1, 8]);
        let parts = |least, workers| {
            let lines = Lines { count: 64, pitch: 1, together: 1, least, ops: 1 << 20 };
            lines.count.div_ceil(lines.in_part(workers))
        };
        assert_eq!([parts(20, 2), parts(20, 4), parts(100, 2)], [3, 4, 2]);
    }
}
