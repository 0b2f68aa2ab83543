//! Ctrl-C: the first one has what runs end early and report, the second one quits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// What a shell says of a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on Ctrl-C and SIGTERM are requests.
pub fn listen() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // In this order: the second signal finds the flag that the first one has set.
        let second = flag::register_conditional_shutdown(signal, INTERRUPTED.into(), STOP.clone());
        let first = second.and_then(|_| flag::register(signal, STOP.clone()));
        first.context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// Whether what runs is to end early.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Fails if it is: to leave a measurement that [`complete`] then drops.
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// A measurement; nothing of one that was interrupted, whatever it gave or said.
pub fn complete<T>(measured: Result<T>) -> Result<Option<T>> {
    if requested() { Ok(None) } else { measured.map(Some) }
}
