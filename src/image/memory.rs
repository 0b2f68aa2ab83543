//! The memory budget for all photos that are decoded in this process at the same time.
//!
//! A picture gives its size in its first bytes, and a small file can hold a picture of gigabytes. Its memory is claimed
//! before it is allocated: a photo that does not fit beside those being decoded waits until they are done, and a photo
//! that does not fit at all is refused.

use std::collections::VecDeque;
use std::sync::LazyLock;

use crate::memory;
use crate::sync::{Condvar, Mutex, lock, wait};

/// The variable that sets the budget, in MiB.
const VARIABLE: &str = "TREFOIL_DECODE_MEMORY";
/// The budget if the free memory is not known.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// The budget of this process: the value of `TREFOIL_DECODE_MEMORY`, but at most [`most`] of the memory that was free
/// at first; half of this memory if the variable is not set.
pub(super) static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
    let available = memory::free_bytes();
    let asked = asked_bytes().unwrap_or_else(|| available.unwrap_or(UNKNOWN_BYTES) / 2);
    Budget::new(available.map_or(asked, |available| asked.min(most(available))))
});

/// The most bytes that decoders may take of the free bytes; the rest is for allocations that are not claimed.
fn most(available: u64) -> u64 {
    available / 8 * 7
}

/// The bytes that claims share.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    state: Mutex<MemoryState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct MemoryState {
    used: u64,
    /// The numbers of waiting claims, in order: a large claim is not overtaken.
    waiting: VecDeque<u64>,
    next: u64,
}

/// Claimed bytes of a budget, until this is dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until `bytes` are free, and claims them for the photo that `what` describes. A thread that waits must hold
    /// no claim.
    pub fn claim(&self, bytes: u64, what: &str) -> Result<Claim<'_>, String> {
        self.check(bytes, what)?;
        let mut state = lock(&self.state);
        let ticket = state.next;
        state.next += 1;
        state.waiting.push_back(ticket);
        while state.waiting.front() != Some(&ticket) || state.used + bytes > self.bytes {
            state = wait(&self.changed, state);
        }
        state.waiting.pop_front();
        state.used += bytes;
        self.changed.notify_all();
        Ok(Claim { budget: self, bytes })
    }

    /// An error if `bytes` are more than the whole budget.
    pub fn check(&self, bytes: u64, what: &str) -> Result<(), String> {
        if bytes <= self.bytes {
            return Ok(());
        }
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        Err(format!(
            "{what} takes {} MiB to decode, and all photos in decoding share {} MiB: make it smaller, or set {VARIABLE} \
             to more MiB",
            mib(bytes),
            self.bytes >> 20
        ))
    }
}

impl Claim<'_> {
    /// Grows the claim to `bytes` if they are free now; returns whether they were.
    pub fn grow(&mut self, bytes: u64) -> bool {
        let mut state = lock(&self.budget.state);
        let used = state.used - self.bytes + bytes.max(self.bytes);
        let fits = used <= self.budget.bytes;
        if fits {
            (state.used, self.bytes) = (used, bytes.max(self.bytes));
        }
        fits
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        lock(&self.budget.state).used -= self.bytes;
        self.budget.changed.notify_all();
    }
}

/// Allocates zeros; an error if there is no memory for them.
pub(super) fn zeros(bytes: usize) -> Result<Vec<u8>, String> {
    let mut zeros = reserved(bytes)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// Allocates room for `bytes` bytes; an error if there is no memory for them.
pub(super) fn reserved(bytes: usize) -> Result<Vec<u8>, String> {
    let mut room = Vec::new();
    match room.try_reserve_exact(bytes) {
        Ok(()) => Ok(room),
        Err(_) => Err(format!("there is no memory for the {bytes} bytes that it takes to decode it")),
    }
}

/// Checks that `bytes` bytes can be allocated.
pub(super) fn probe(bytes: usize) -> Result<(), String> {
    reserved(bytes).map(drop)
}

/// The bytes that the variable asks for, if it is set. A value that is no number is logged.
fn asked_bytes() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty())?;
    let mib = text.trim().parse::<u64>();
    if mib.is_err() {
        log::warn!("{VARIABLE} is {text}: expected a number of MiB; half of what is free is taken");
    }
    Some(mib.ok()?.saturating_mul(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn a_photo_waits_for_the_others_and_never_for_itself() {
        let budget = Budget::new(100 << 20);
        let mut first = budget.claim(60 << 20, "a.jpg").unwrap();
        assert!(first.grow(70 << 20) && !first.grow(101 << 20) && first.grow(1));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            let large = scope.spawn(|| {
                let claim = budget.claim(100 << 20, "b.jpg").unwrap();
                assert!(is_done.load(Ordering::SeqCst), "it had what was another's");
                drop(claim);
            });
            while lock(&budget.state).waiting.is_empty() {
                thread::yield_now();
            }
            let small = scope.spawn(|| drop(budget.claim(1, "c.jpg").unwrap()));
            while lock(&budget.state).waiting.len() < 2 {
                thread::yield_now(); // it would fit, but the large one was first
            }
            is_done.store(true, Ordering::SeqCst);
            drop(first);
            large.join().unwrap();
            small.join().unwrap();
        });
        assert_eq!(lock(&budget.state).used, 0);
    }

    #[test]
    fn what_never_fits_is_refused_with_what_to_do() {
        let budget = Budget::new(10 << 20);
        let said = budget.claim((10 << 20) + 1, "a picture of 2000 x 2000").unwrap_err();
        let expected = "a picture of 2000 x 2000 takes 11 MiB to decode, and all photos in decoding share 10 MiB: make it \
                        smaller, or set TREFOIL_DECODE_MEMORY to more MiB";
        assert_eq!(said, expected);
        assert_eq!(lock(&budget.state).used, 0);
        assert!(zeros(usize::MAX / 2).unwrap_err().contains("no memory"));
    }
}
