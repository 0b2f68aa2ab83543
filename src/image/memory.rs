//! One budget of memory for all photos that are being decoded in this process.
//!
//! A picture says in its first bytes how large it is, and a small file can be a picture of gigabytes. What it takes is
//! claimed before any of it is allocated: a photo that does not fit beside the others waits until they are done, and one
//! that does not fit at all is refused alone.

use std::collections::VecDeque;
use std::fs;
use std::sync::LazyLock;

use crate::sync::{Condvar, Mutex, lock, wait};

/// The variable that sets the budget, in MiB.
const VARIABLE: &str = "TREFOIL_DECODE_MEMORY";
/// The budget where nobody says how much memory there is.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// The budget of this process: what `TREFOIL_DECODE_MEMORY` says, but no more than [`most`] of what was free at first;
/// half of that if the variable is not set.
pub(super) static BUDGET: LazyLock<Budget> = LazyLock::new(|| {
    let available = available_bytes();
    let asked = asked_bytes().unwrap_or_else(|| available.unwrap_or(UNKNOWN_BYTES) / 2);
    Budget::new(available.map_or(asked, |available| asked.min(most(available))))
});

/// What decoders may take of so many bytes: the rest is for what they are not asked about.
fn most(available: u64) -> u64 {
    available / 8 * 7
}

/// Bytes to be shared.
#[derive(Debug)]
pub(super) struct Budget {
    bytes: u64,
    state: Mutex<MemoryState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct MemoryState {
    used: u64,
    /// Who waits, in order: nobody is passed over for being large.
    waiting: VecDeque<u64>,
    next: u64,
}

/// Bytes of a budget that are somebody's until this is dropped.
#[derive(Debug)]
pub(super) struct Claim<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl Budget {
    pub fn new(bytes: u64) -> Self {
        Self { bytes, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits until `bytes` are free, and claims them for the photo that `what` describes. Whoever waits must hold no claim.
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

    /// Refuses what is more than there is for all.
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
    /// Makes the claim one of `bytes`, if they are free now.
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

/// Zeros, or that there is no memory for them.
pub(super) fn zeros(bytes: usize) -> Result<Vec<u8>, String> {
    let mut zeros = reserved(bytes)?;
    zeros.resize(bytes, 0);
    Ok(zeros)
}

/// Room for so many bytes.
pub(super) fn reserved(bytes: usize) -> Result<Vec<u8>, String> {
    let mut room = Vec::new();
    match room.try_reserve_exact(bytes) {
        Ok(()) => Ok(room),
        Err(_) => Err(format!("there is no memory for the {bytes} bytes that it takes to decode it")),
    }
}

/// Whether so many bytes are to be had.
pub(super) fn probe(bytes: usize) -> Result<(), String> {
    reserved(bytes).map(drop)
}

/// What the variable says; what is no number is told in the log.
fn asked_bytes() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.trim().is_empty())?;
    let mib = text.trim().parse::<u64>();
    if mib.is_err() {
        log::warn!("{VARIABLE} is {text}: expected a number of MiB; half of what is free is taken");
    }
    Some(mib.ok()?.saturating_mul(1 << 20))
}

/// Memory that this process can still get: of the machine, of its control group, and of its address space; none where nobody
/// says.
fn available_bytes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let group = read("/sys/fs/cgroup/memory.max")
        .trim()
        .parse()
        .ok()
        .map(|most: u64| most.saturating_sub(read("/sys/fs/cgroup/memory.current").trim().parse().unwrap_or(0)));
    let free = kib(&read("/proc/meminfo"), "MemAvailable:");
    let in_use = kib(&read("/proc/self/status"), "VmSize:").unwrap_or(0);
    let space = address_space(&read("/proc/self/limits")).map(|most| most.saturating_sub(in_use));
    [group, free, space].into_iter().flatten().min()
}

/// The bytes of a line such as `MemAvailable:   123 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// The limit of `ulimit -v`, if there is one.
fn address_space(limits: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix("Max address space"))?.split_whitespace().next()?.parse().ok()
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

    #[test]
    fn limits_are_read_as_the_kernel_writes_them() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max address space         3221225472           unlimited            bytes     \n";
        assert_eq!(address_space(limits), Some(3 << 30));
        assert_eq!(address_space(&limits.replace("3221225472", "unlimited ")), None);
        assert_eq!(kib("MemTotal: 9 kB\nMemAvailable:    2048 kB\n", "MemAvailable:"), Some(2 << 20));
    }
}
