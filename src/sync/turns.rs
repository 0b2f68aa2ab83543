//! A value that threads take in turn and keep during calls that may never return: a thread that waits for it can give
//! up.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Calling, Condvar, Mutex, MutexGuard, after, lock, wait, wait_until};

pub(crate) struct Turns<T> {
    /// Locked for a few instructions.
    place: Mutex<Place<T>>,
    /// Notified when the value is back, while threads wait for it.
    returned: Condvar,
}

struct Place<T> {
    /// The value; `None` while a thread has it.
    value: Option<T>,
    /// The record of the thread that took it last.
    taker: Option<Arc<Calling>>,
    /// The number of times that it was taken.
    taken: u64,
    waiting: usize,
}

/// The turn that was under way at some moment, if one was.
#[derive(Clone, Copy)]
pub(crate) struct Underway(Option<u64>);

/// The value while this thread has it.
pub(crate) struct Turn<'a, T> {
    of: &'a Turns<T>,
    value: Option<T>,
}

impl<T> Turns<T> {
    pub fn new(value: T) -> Self {
        let place = Place { value: Some(value), taker: None, taken: 0, waiting: 0 };
        Self { place: Mutex::new(place), returned: Condvar::new() }
    }

    /// Waits for the value.
    pub fn take(&self) -> Turn<'_, T> {
        self.take_until(|| None).unwrap_or_else(|_| unreachable!("it is waited for until it is there"))
    }

    /// Waits for the value up to `limit`. The error is the driver call of the thread that had it all the time, if that
    /// thread was in one.
    pub fn take_within(&self, limit: Duration) -> Result<Turn<'_, T>, Option<&'static str>> {
        self.take_until(|| Some(after(limit)))
    }

    /// Takes the value if no thread has it.
    pub fn try_take(&self) -> Option<Turn<'_, T>> {
        self.take_until(|| Some(Instant::now())).ok()
    }

    /// Takes the value. If another thread has it, asks for the deadline and waits until then, or without a limit.
    fn take_until(&self, deadline: impl FnOnce() -> Option<Instant>) -> Result<Turn<'_, T>, Option<&'static str>> {
        let mut place = lock(&self.place);
        if place.value.is_none() {
            place = self.wait_until(place, deadline())?;
        }
        (place.taker, place.taken) = (Calling::mine(), place.taken + 1);
        let value = place.value.take();
        Ok(Turn { of: self, value })
    }

    /// Waits until the value is there. If the deadline comes first, the error is the driver call of the thread that had
    /// the value.
    fn wait_until<'a>(
        &'a self,
        mut place: MutexGuard<'a, Place<T>>,
        deadline: Option<Instant>,
    ) -> Result<MutexGuard<'a, Place<T>>, Option<&'static str>> {
        let (underway, mut is_late) = (place.underway(), false);
        place.waiting += 1;
        while place.value.is_none() && !is_late {
            (place, is_late) = match deadline {
                None => (wait(&self.returned, place), false),
                Some(deadline) => wait_until(&self.returned, place, deadline),
            };
        }
        place.waiting -= 1;
        if place.value.is_some() { Ok(place) } else { Err(place.call_of(underway)) }
    }

    /// The turn that is under way now, if there is one.
    pub fn underway(&self) -> Underway {
        lock(&self.place).underway()
    }

    /// The driver call of the thread that has the value, if it is still the same turn.
    pub fn call_of(&self, turn: Underway) -> Option<&'static str> {
        lock(&self.place).call_of(turn)
    }
}

impl<T> Place<T> {
    fn underway(&self) -> Underway {
        Underway(self.value.is_none().then_some(self.taken))
    }

    fn call_of(&self, Underway(turn): Underway) -> Option<&'static str> {
        let is_same = turn.is_some() && turn == self.underway().0;
        self.taker.as_ref().filter(|_| is_same).and_then(|taker| taker.name())
    }
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("given back by the drop alone")
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("given back by the drop alone")
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        let mut place = lock(&self.of.place);
        place.value = self.value.take();
        if place.waiting > 0 {
            self.of.returned.notify_one();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::super::calling::calling;
    use super::*;
    use crate::sync::thread;

    const MOMENT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn who_waits_for_a_turn_can_give_up_and_hears_of_the_call() {
        let turns = Turns::new(1);
        let free = turns.underway();
        let (begin, (took, taken), (end, ended)) = (Instant::now(), channel(), channel());
        thread::scope(|scope| {
            let turns = &turns;
            scope.spawn(move || {
                let mut turn = turns.take();
                let called = calling(&"cuTest_v2");
                took.send(()).unwrap();
                ended.recv().unwrap();
                drop(called);
                *turn += 1;
            });
            taken.recv().unwrap();
            let underway = turns.underway();
            assert!(turns.try_take().is_none() && turns.take_within(MOMENT).err() == Some(Some("cuTest")));
            assert!(begin.elapsed() < LONG / 2);
            assert_eq!((turns.call_of(free), turns.call_of(underway)), (None, Some("cuTest")));
            end.send(()).unwrap();
            assert_eq!(turns.take_within(LONG).as_deref(), Ok(&2));
            assert_eq!(turns.call_of(underway), None);
        });
    }

    #[test]
    fn everybody_has_a_turn() {
        let turns = Turns::new(0);
        let count = |limit: Option<Duration>| match limit {
            None => *turns.take() += 1,
            Some(limit) => *turns.take_within(limit).unwrap() += 1,
        };
        thread::scope(|scope| {
            for limit in [None, Some(LONG), None, Some(LONG)] {
                scope.spawn(move || (0..1000).for_each(|_| count(limit)));
            }
        });
        assert_eq!(*turns.take(), 4000);
    }
}
