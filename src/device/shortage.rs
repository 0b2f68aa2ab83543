//! Takes device memory right before a given allocation, for tests of what a build does without it.

use std::cell::RefCell;

type Take = Box<dyn FnOnce()>;

thread_local! {
    /// The number of allocations that this thread still makes before `Take` is called.
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

/// Runs `f`, and calls `take` right before allocation `nth`, from 0, of the calling thread. Also returns whether `take`
/// was called.
pub(crate) fn before<T>(nth: usize, take: impl FnOnce() + 'static, f: impl FnOnce() -> T) -> (T, bool) {
    NEXT.set(Some((nth, Box::new(take))));
    let done = f();
    (done, NEXT.take().is_none())
}
