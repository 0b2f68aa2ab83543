//! The driver call that each thread is in, so that other threads can name a call that does not return.

use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The driver call that a thread is in.
#[derive(Default)]
pub(crate) struct Calling(AtomicPtr<&'static str>);

thread_local! {
    static MINE: Arc<Calling> = Arc::default();
}

impl Calling {
    /// The record of the calling thread; `None` if the thread is ending.
    pub fn mine() -> Option<Arc<Self>> {
        MINE.try_with(Arc::clone).ok()
    }

    /// The call's name, if the thread is in one.
    pub fn name(&self) -> Option<&'static str> {
        // SAFETY: null, or what `calling` has made of a reference that lives for ever.
        unsafe { self.0.load(Ordering::Relaxed).as_ref() }.map(|name| unversioned(name))
    }
}

/// The name of a driver call as in its manual, without the version of its interface.
pub(crate) fn unversioned(name: &'static str) -> &'static str {
    name.trim_end_matches("_v2")
}

/// Tells others that this thread is in the driver call `name`, until the result is dropped.
#[cfg(any(feature = "cuda", all(test, not(shuttle))))]
#[must_use]
pub(crate) fn calling(name: &'static &'static str) -> Called {
    set(std::ptr::from_ref(name).cast_mut());
    Called(())
}

/// Marks its thread as being in a driver call while it lives.
#[cfg(any(feature = "cuda", all(test, not(shuttle))))]
pub(crate) struct Called(());

#[cfg(any(feature = "cuda", all(test, not(shuttle))))]
impl Drop for Called {
    fn drop(&mut self) {
        set(std::ptr::null_mut());
    }
}

/// Sets the name for the calling thread. A thread that is ending has no record; no other thread waits for it.
#[cfg(any(feature = "cuda", all(test, not(shuttle))))]
fn set(name: *mut &'static str) {
    let _ended = MINE.try_with(|mine| mine.0.store(name, Ordering::Relaxed));
}
