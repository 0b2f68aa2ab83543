//! The threads that wait for a free row, in their order.

use std::collections::VecDeque;

use super::RowPriority;
use crate::sync::thread::Thread;

/// The line of those who wait. A row that comes free is kept for the first of them, high priority first, and nobody else
/// is woken for it; a thread that comes later does not take it. So every thread of a priority waits for as many rows as
/// every other one, and the rows of a batch wake as many threads as there are rows.
#[derive(Default)]
pub(super) struct Line {
    /// The number and the thread of each, oldest first: high priority, normal priority.
    waiting: [VecDeque<(u64, Thread)>; 2],
    /// The numbers of those that a free row is kept for.
    kept: Vec<u64>,
    next: u64,
}

impl Line {
    /// Adds a thread at the end; returns its number.
    pub fn join(&mut self, priority: RowPriority, thread: Thread) -> u64 {
        let number = self.next;
        self.next += 1;
        self.waiting[usize::from(priority == RowPriority::Normal)].push_back((number, thread));
        number
    }

    /// The number of free rows that are kept for somebody.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Keeps a row for the first in the line; returns the thread, which is to be woken.
    pub fn keep(&mut self) -> Option<Thread> {
        let (number, thread) = self.waiting.iter_mut().find_map(VecDeque::pop_front)?;
        self.kept.push(number);
        Some(thread)
    }

    /// Whether a row is kept for this number, which then takes it.
    pub fn take(&mut self, number: u64) -> bool {
        let place = self.kept.iter().position(|kept| *kept == number);
        place.map(|place| self.kept.swap_remove(place)).is_some()
    }

    /// Removes a number that waits no longer.
    pub fn leave(&mut self, number: u64) {
        if !self.take(number) {
            self.waiting.iter_mut().for_each(|line| line.retain(|waiting| waiting.0 != number));
        }
    }

    /// Removes and returns all threads that wait.
    pub fn dismiss(&mut self) -> impl Iterator<Item = Thread> {
        self.waiting.iter_mut().flat_map(|line| line.drain(..)).map(|waiting| waiting.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::thread::current;

    #[test]
    fn rows_are_kept_in_the_order_of_the_line() {
        let mut line = Line::default();
        let mut join = |priority| line.join(priority, current());
        let [first, second, third] = [(); 3].map(|()| join(RowPriority::Normal));
        let high = join(RowPriority::High);
        for number in [high, first] {
            assert!(!line.take(number));
            assert!(line.keep().is_some());
        }
        assert_eq!(line.kept(), 2);
        assert!(line.take(high) && line.take(first) && !line.take(first) && !line.take(second));
        line.leave(second);
        assert!(line.keep().is_some() && line.take(third) && line.keep().is_none());
        let left = line.join(RowPriority::High, current());
        assert!(line.keep().is_some());
        line.leave(left); // what was kept for it is free
        assert_eq!(line.kept(), 0);
        line.join(RowPriority::Normal, current());
        assert_eq!((line.dismiss().count(), line.dismiss().count()), (1, 0));
    }
}
