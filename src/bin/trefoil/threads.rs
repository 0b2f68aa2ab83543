//! Threads of the command line program.

use std::sync::Arc;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use anyhow::{Result, anyhow};
use trefoil::Error;

/// Starts a thread in a scope. Where there is no thread to be had, the error is the library's, which says what to do.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: String,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    let spawned = Builder::new().name(name.clone()).spawn_scoped(scope, run);
    Ok(spawned.map_err(|source| Error::Thread { name, source: Arc::new(source) })?)
}

/// Runs `work` on `count` threads, which are named `name` and a number; when all have ended, returns the first error.
pub fn run_all(count: usize, name: &str, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let work = &work;
        let start = |index| spawn(scope, format!("{name}-{index}"), move || work(index));
        let started: Vec<_> = (0..count).map(start).collect();
        let ended = started.into_iter().map(|thread| thread.and_then(join));
        ended.collect::<Vec<_>>().into_iter().collect()
    })
}

/// The result of a thread; a panic becomes an error.
pub fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| Err(anyhow!("internal error, please report it: a thread panicked")))
}
