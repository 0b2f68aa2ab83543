//! Vector clocks: what each stream and each host thread knows to have happened.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// A sequence of steps in one order: a stream, or the host's turns at one piece of page-locked memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Actor(pub usize);

/// For each actor, the number of its steps that are known to be over.
#[derive(Debug, Default)]
pub(super) struct Clock(Vec<u32>);

impl Clone for Clock {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }

    fn clone_from(&mut self, source: &Self) {
        self.0.clone_from(&source.0);
    }
}

impl Clock {
    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Takes a step of `actor`, whose clock this is. Returns the number of the step, from 1.
    pub fn step(&mut self, actor: Actor) -> u32 {
        if self.0.len() <= actor.0 {
            self.0.resize(actor.0 + 1, 0);
        }
        self.0[actor.0] += 1;
        self.0[actor.0]
    }

    /// Whether step `step` of `actor` is known to be over.
    pub fn knows(&self, actor: Actor, step: u32) -> bool {
        self.0.get(actor.0).is_some_and(|&known| known >= step)
    }
}

/// The identity of a checker: a thread has a clock for each. It is dropped with the checker.
pub(super) type Identity = Arc<()>;

thread_local! {
    /// The clock of this thread for each checker.
    static KNOWN: RefCell<Vec<(Weak<()>, Clock)>> = const { RefCell::new(Vec::new()) };
}

/// Calls `use_it` with the clock of the calling thread for the checker `of`; with `None` when the thread ends and its
/// clocks are gone, as in destructors of static and of other thread-local values.
pub(super) fn with_known<T>(of: &Identity, use_it: impl FnOnce(Option<&mut Clock>) -> T) -> T {
    if KNOWN.try_with(|_| ()).is_err() {
        return use_it(None);
    }
    KNOWN.with_borrow_mut(|all| {
        let at = all.iter().position(|(id, _)| std::ptr::eq(id.as_ptr(), Arc::as_ptr(of))).unwrap_or_else(|| {
            all.retain(|(id, _)| id.strong_count() > 0);
            all.push((Arc::downgrade(of), Clock::default()));
            all.len() - 1
        });
        use_it(Some(&mut all[at].1))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_knows_its_own_steps_and_what_it_joined() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        assert!(!a.knows(Actor(3), 1));
        assert_eq!((a.step(Actor(3)), a.step(Actor(3)), b.step(Actor(0))), (1, 2, 1));
        assert!(a.knows(Actor(3), 2) && !a.knows(Actor(3), 3) && !b.knows(Actor(3), 1));
        b.join(&a);
        assert!(b.knows(Actor(3), 2) && b.knows(Actor(0), 1) && !a.knows(Actor(0), 1));
    }

    #[test]
    fn threads_know_apart_and_checkers_too() {
        let [one, two] = [Identity::default(), Identity::default()];
        with_known(&one, |clock| clock.unwrap().step(Actor(0)));
        assert!(with_known(&one, |clock| clock.unwrap().knows(Actor(0), 1)));
        assert!(!with_known(&two, |clock| clock.unwrap().knows(Actor(0), 1)));
        std::thread::scope(|scope| {
            let other = scope.spawn(|| with_known(&one, |clock| clock.unwrap().knows(Actor(0), 1)));
            assert!(!other.join().unwrap());
        });
    }
}
