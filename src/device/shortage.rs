//! Device memory that somebody else takes right before an allocation, for tests of what a build does then.

use std::cell::RefCell;

type Take = Box<dyn FnOnce()>;

thread_local! {
    /// How many allocations this thread makes before `Take` comes.
    static NEXT: RefCell<Option<(usize, Take)>> = const { RefCell::new(None) };
}

/// Called before each allocation of device memory.
pub(super) fn allocation_begins() {
    let due = NEXT.with_borrow_mut(|next| match next {
        Some((0, _)) => next.take(),
        Some((left, _)) => {
            *left -= 1;
            None
        }
        None => None,
    });
    if let Some((_, take)) = due {
        take();
    }
}

/// Runs `f`, in which `take` runs right before the calling thread's allocation `nth`, from 0; whether it came so far.
pub(crate) fn before<T>(nth: usize, take: impl FnOnce() + 'static, f: impl FnOnce() -> T) -> (T, bool) {
    NEXT.set(Some((nth, Box::new(take))));
    let done = f();
    (done, NEXT.take().is_none())
}
