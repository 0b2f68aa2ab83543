//! Ctrl-C: the first one asks the running work to end early and report, the second one ends the program.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// The exit code that shells use for a program that Ctrl-C ended.
pub const INTERRUPTED: u8 = 130;

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Treats Ctrl-C and SIGTERM as requests to stop from now on.
pub fn listen() -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        // The order matters: a second signal finds the flag that the first one has set.
        let second = flag::register_conditional_shutdown(signal, INTERRUPTED.into(), STOP.clone());
        let first = second.and_then(|_| flag::register(signal, STOP.clone()));
        first.context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}

/// Whether the running work is asked to end early.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Fails if a stop is requested: it ends a measurement that [`complete`] then drops.
pub fn check() -> Result<()> {
    if requested() {
        bail!("interrupted");
    }
    Ok(())
}

/// The result of a measurement; `Ok(None)` if it was interrupted, even if it failed.
pub fn complete<T>(measured: Result<T>) -> Result<Option<T>> {
    if requested() { Ok(None) } else { measured.map(Some) }
}
