//! A few threads that run one closure together, with nothing allocated for a run.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Condvar, Mutex};

use crate::error::Error;
use crate::sync::{lock, wait};

/// Worker threads, named `trefoil-cpu-K`. The caller of [`Pool::run`] is worker 0.
pub(super) struct Pool {
    shared: Arc<Shared>,
    workers: usize,
}

struct Shared {
    state: Mutex<State>,
    started: Condvar,
    finished: Condvar,
}

#[derive(Default)]
struct State {
    job: Option<Job>,
    /// Counts the jobs, so that a worker takes each once.
    number: u64,
    /// Workers that have not finished the job.
    running: usize,
    panic: Option<Box<dyn Any + Send>>,
    closed: bool,
}

/// The closure of a run, borrowed from the caller of [`Pool::run`].
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn(usize) + Sync));

// SAFETY: the closure is Sync, and `Pool::run` keeps it alive until every worker has finished with it.
unsafe impl Send for Job {}

impl Pool {
    /// Starts `workers - 1` threads.
    pub fn new(workers: usize) -> Result<Self, Error> {
        let state = Mutex::new(State::default());
        let pool =
            Self { shared: Arc::new(Shared { state, started: Condvar::new(), finished: Condvar::new() }), workers };
        for worker in 1..workers {
            let shared = pool.shared.clone();
            std::thread::Builder::new()
                .name(format!("trefoil-cpu-{worker}"))
                .spawn(move || serve(&shared, worker))
                .map_err(|e| Error::Internal { what: format!("cannot start CPU worker {worker}: {e}") })?;
        }
        Ok(pool)
    }

    /// Calls `work` on every worker, with its index, and returns when all are done. One item is not worth waking
    /// anybody for: the caller does it alone. A panic of any worker resumes here.
    pub fn run(&self, items: usize, work: &(dyn Fn(usize) + Sync)) {
        if items <= 1 || self.workers == 1 {
            return work(0);
        }
        {
            let mut state = lock(&self.shared.state);
            // SAFETY: only the lifetime changes; the pointer is used by workers that are counted in `running`, and
            // this function does not return, or unwind, before that is zero.
            let job = unsafe {
                std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(work)
            };
            state.job = Some(Job(job));
            state.number += 1;
            state.running = self.workers - 1;
        }
        self.shared.started.notify_all();
        let own = catch_unwind(AssertUnwindSafe(|| work(0)));
        let mut state = lock(&self.shared.state);
        while state.running > 0 {
            state = wait(&self.shared.finished, state);
        }
        state.job = None;
        let panic = own.err().or(state.panic.take());
        drop(state);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

fn serve(shared: &Shared, worker: usize) {
    let mut seen = 0;
    loop {
        let job = {
            let mut state = lock(&shared.state);
            loop {
                if state.closed {
                    return;
                }
                match state.job {
                    Some(job) if state.number != seen => {
                        seen = state.number;
                        break job;
                    }
                    _ => state = wait(&shared.started, state),
                }
            }
        };
        // SAFETY: `Pool::run` waits for this worker before the closure goes away.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { (*job.0)(worker) }));
        let mut state = lock(&shared.state);
        state.running -= 1;
        if let Err(panic) = outcome {
            state.panic.get_or_insert(panic);
        }
        if state.running == 0 {
            shared.finished.notify_one();
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.started.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn every_worker_runs_each_job_once_and_panics_come_back() {
        let pool = Pool::new(3).unwrap();
        let calls = [const { AtomicUsize::new(0) }; 3];
        for _ in 0..1000 {
            pool.run(3, &|worker| {
                calls[worker].fetch_add(1, Ordering::Relaxed);
            });
        }
        assert!(calls.iter().all(|c| c.load(Ordering::Relaxed) == 1000));
        let panicked = catch_unwind(AssertUnwindSafe(|| pool.run(3, &|worker| assert_ne!(worker, 2))));
        assert!(panicked.is_err());
        pool.run(3, &|_| {});
    }
}
