//! Hands work to many threads and takes their answers in order, with a limit on how far threads run ahead.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Turns 0, 1, … `total` - 1: each is claimed once, and none is `window` or more past the oldest unfinished turn.
pub struct Turns {
    total: usize,
    window: usize,
    state: Mutex<OrderedState>,
    changed: Condvar,
}

#[derive(Default)]
struct OrderedState {
    next: usize,
    finished: usize,
    stopped: bool,
}

impl Turns {
    pub fn new(total: usize, window: usize) -> Self {
        Self { total, window: window.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Claims the next turn; `None` if none may begin now.
    pub fn try_claim(&self) -> Option<usize> {
        self.take(&mut self.lock())
    }

    /// Waits until the next turn may begin, and claims it; `None` after the last turn or after [`Turns::stop`]. The
    /// calling thread must hold no unfinished turn: it could wait for itself.
    pub fn claim(&self) -> Option<usize> {
        let mut state = self.lock();
        while !state.stopped && state.next < self.total {
            if let Some(turn) = self.take(&mut state) {
                return Some(turn);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        None
    }

    /// Marks the oldest unfinished turn as finished.
    pub fn finish_oldest(&self) {
        self.lock().finished += 1;
        self.changed.notify_all();
    }

    /// Ends the turns: no more can be claimed.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Stops the turns when the thread that holds the guard panics, so that other threads do not wait forever.
    pub fn stop_on_panic(&self) -> impl Drop {
        StopOnPanic(self)
    }

    fn take(&self, state: &mut OrderedState) -> Option<usize> {
        let free = !state.stopped && state.next < self.total && state.next < state.finished + self.window;
        free.then(|| {
            state.next += 1;
            state.next - 1
        })
    }

    fn lock(&self) -> MutexGuard<'_, OrderedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct StopOnPanic<'a>(&'a Turns);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop();
        }
    }
}

/// Puts numbered items back into the order of their numbers.
pub struct Reorder<T> {
    next: usize,
    early: BTreeMap<usize, T>,
}

impl<T> Reorder<T> {
    pub fn new() -> Self {
        Self { next: 0, early: BTreeMap::new() }
    }

    /// Keeps an item until its turn comes.
    pub fn push(&mut self, turn: usize, item: T) {
        self.early.insert(turn, item);
    }

    /// The next item in order; `None` if it is not there yet.
    pub fn pop(&mut self) -> Option<T> {
        let item = self.early.remove(&self.next)?;
        self.next += 1;
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn threads_in_any_order_give_answers_in_order_within_the_window() {
        const TOTAL: usize = 500;
        let turns = Turns::new(TOTAL, 3);
        let (sender, receiver) = mpsc::sync_channel(0);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (turns, sender) = (&turns, sender.clone());
                scope.spawn(move || {
                    while let Some(turn) = turns.claim() {
                        (0..(turn * 7 + thread) % 5).for_each(|_| std::thread::yield_now());
                        sender.send(turn).unwrap();
                    }
                });
            }
            drop(sender);
            let (mut reorder, mut expected) = (Reorder::new(), 0);
            for turn in receiver {
                assert!(turn < expected + 3, "turn {turn} began while {expected} was the oldest");
                reorder.push(turn, turn);
                while let Some(turn) = reorder.pop() {
                    assert_eq!(turn, expected);
                    expected += 1;
                    turns.finish_oldest();
                }
            }
            assert_eq!(expected, TOTAL);
        });
    }

    #[test]
    fn a_full_window_and_a_stop_end_claims() {
        let turns = Turns::new(5, 2);
        assert_eq!([turns.try_claim(), turns.try_claim(), turns.try_claim()], [Some(0), Some(1), None]);
        turns.finish_oldest();
        assert_eq!(turns.claim(), Some(2));
        turns.stop();
        turns.finish_oldest();
        assert_eq!((turns.try_claim(), turns.claim()), (None, None));
    }
}
