//! Decides which rows leave together, and when: the state of a packer as plain data.

use std::collections::VecDeque;

use crate::tensor::Packing;

/// The number of packs under way from which on only full packs leave: one is computed, and one is ready when it is
/// done.
const AHEAD: usize = 2;
/// The number of packs whose tokens may wait.
const WAITING: usize = 4;

/// The rows that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Queue<T> {
    size: Packing,
    /// The most packs that may be under way at the same time.
    most: usize,
    /// The rows, each with its number of tokens.
    rows: VecDeque<(usize, T)>,
    /// The number of tokens of all rows.
    tokens: usize,
    under_way: usize,
}

impl<T> Queue<T> {
    /// An empty queue for packs of this size, of which `most` may be under way.
    pub fn new(size: Packing, most: usize) -> Self {
        Self { size, most, rows: VecDeque::new(), tokens: 0, under_way: 0 }
    }

    /// Whether a row of `tokens` tokens may be added to those that wait.
    pub fn has_room(&self, tokens: usize) -> bool {
        self.rows.is_empty() || self.tokens + tokens <= WAITING * self.size.tokens
    }

    /// Adds a row behind the others.
    pub fn push(&mut self, tokens: usize, row: T) {
        self.tokens += tokens;
        self.rows.push_back((tokens, row));
    }

    /// The rows of the next pack, which is then under way; `None` if no pack leaves now. Rows leave in their order.
    /// While few packs are under way, they do not wait until a pack is full.
    pub fn take(&mut self) -> Option<Vec<T>> {
        let count = self.next();
        let is_full = count < self.rows.len() || count == self.size.rows;
        if count == 0 || self.under_way >= if is_full { self.most } else { self.most.min(AHEAD) } {
            return None;
        }
        self.under_way += 1;
        let taken = self.rows.drain(..count);
        let tokens = &mut self.tokens;
        Some(taken.map(|(length, row)| (*tokens -= length, row).1).collect())
    }

    /// The number of rows that fit the next pack.
    fn next(&self) -> usize {
        let mut left = self.size.tokens;
        let fits = |(tokens, _): &&(usize, T)| left.checked_sub(*tokens).inspect(|&rest| left = rest).is_some();
        self.rows.iter().take(self.size.rows).take_while(fits).count()
    }

    /// Records that a pack under way is done.
    pub fn done(&mut self) {
        self.under_way -= 1;
    }

    /// Drops all rows that wait.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.tokens = 0;
    }

    /// Whether no row waits.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: Packing = Packing { tokens: 10, rows: 4, longest: 8 };

    fn queue(lengths: &[usize]) -> Queue<usize> {
        let mut queue = Queue::new(SIZE, 3);
        lengths.iter().enumerate().for_each(|(row, &tokens)| queue.push(tokens, row));
        queue
    }

    #[test]
    fn packs_are_filled_by_tokens_and_by_rows_in_their_order() {
        let mut by_tokens = queue(&[6, 4, 8, 3, 1]);
        assert_eq!([by_tokens.take(), by_tokens.take()], [Some(vec![0, 1]), Some(vec![2])]);
        by_tokens.done();
        assert_eq!((by_tokens.take(), by_tokens.is_empty()), (Some(vec![3, 4]), true));
        let mut by_rows = queue(&[1; 5]);
        assert_eq!(by_rows.take(), Some(vec![0, 1, 2, 3]));
        assert_eq!(queue(&[]).take(), None);
    }

    #[test]
    fn rows_leave_at_once_while_few_packs_are_under_way() {
        let mut queue = queue(&[2]);
        assert_eq!(queue.take(), Some(vec![0]));
        queue.push(2, 1);
        assert_eq!(queue.take(), Some(vec![1]));
        queue.push(2, 2);
        assert_eq!(queue.take(), None, "two are under way");
        queue.push(8, 3);
        queue.push(1, 4);
        assert_eq!(queue.take(), Some(vec![2, 3]), "this one is full");
        queue.push(8, 5);
        queue.push(8, 6);
        assert_eq!(queue.take(), None, "three are under way");
        queue.done();
        assert_eq!(queue.take(), Some(vec![4, 5]));
        queue.done();
        queue.done();
        assert_eq!((queue.take(), queue.take(), queue.is_empty()), (Some(vec![6]), None, true));
    }

    #[test]
    fn so_many_tokens_wait_and_no_more() {
        let mut queue = Queue::new(SIZE, 3);
        assert!(queue.has_room(8));
        for row in 0..5 {
            queue.push(8, row);
        }
        assert!(!queue.has_room(1));
        queue.take();
        assert!(queue.has_room(8) && !queue.has_room(9));
    }
}
