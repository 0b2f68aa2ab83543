//! Worker threads that share out the rows of a batch. They live as long as the pool; a run allocates nothing.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex, lock, spawn, wait};

/// Threads `trefoil-cpu-1`, … and whoever calls [`Pool::for_each`], which is worker 0.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held through a run: runs of one pool follow each other.
    running: Mutex<()>,
}

struct Shared {
    state: Mutex<State>,
    /// There are seats, or the pool is closed.
    start: Condvar,
    /// Nobody works any more.
    done: Condvar,
    /// The next row of the current job. Only the fetch-and-add's atomicity matters: `state` orders everything else.
    next: AtomicUsize,
}

#[derive(Default)]
struct State {
    /// What to do; nothing between runs.
    job: Option<Job>,
    /// Threads that may still join the job.
    seats: usize,
    /// Threads that joined and have not left.
    working: usize,
    /// The first panic of a thread during the job.
    panic: Option<Box<dyn Any + Send>>,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Job {
    /// Called with (worker, row). Its lifetime is erased: `for_each` does not return before every thread has left.
    task: *const (dyn Fn(usize, usize) + Sync + 'static),
    rows: usize,
}

// SAFETY: the task is `Sync`, so that any thread may call it, and `for_each` keeps it alive while one has the job.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `workers`, the caller of a run included.
    pub fn new(workers: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            start: Condvar::new(),
            done: Condvar::new(),
            next: AtomicUsize::new(0),
        });
        // Made first: if a later thread cannot start, dropping it ends the earlier ones.
        let mut pool = Self { shared, threads: Vec::new(), running: Mutex::new(()) };
        for worker in 1..workers {
            let shared = pool.shared.clone();
            pool.threads.push(spawn(format!("trefoil-cpu-{worker}"), move || shared.serve(worker))?);
        }
        Ok(pool)
    }

    /// Workers, the caller of a run included.
    pub fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `task(worker, row)` for each row below `rows`, on several threads at once; no two threads at a time have
    /// the same `worker`, which is below [`Pool::workers`]. Returns when all calls have.
    ///
    /// # Panics
    /// With the first panic of a call. Rows that nobody has begun by then are left out.
    pub fn for_each(&self, rows: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let _running = lock(&self.running);
        // SAFETY: only the lifetime changes. No thread has the job when this function returns (see below), and it
        // does not unwind before: the caller's own calls are caught.
        let task: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(task) };
        let job = Job { task, rows };
        self.shared.next.store(0, Ordering::Relaxed);
        let seats = self.threads.len().min(rows.saturating_sub(1));
        if seats > 0 {
            let mut state = lock(&self.shared.state);
            (state.job, state.seats) = (Some(job), seats);
            drop(state);
            (0..seats).for_each(|_| self.shared.start.notify_one());
        }
        let mine = self.shared.work(job, 0);
        let mut state = lock(&self.shared.state);
        (state.job, state.seats) = (None, 0); // from here on nobody joins
        while state.working > 0 {
            state = wait(&self.shared.done, state);
        }
        let panic = mine.err().or(state.panic.take());
        state.panic = None;
        drop(state);
        drop(_running);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    /// A thread's life.
    fn serve(&self, worker: usize) {
        let mut state = lock(&self.state);
        loop {
            while state.seats == 0 && !state.closed {
                state = wait(&self.start, state);
            }
            if state.closed {
                return;
            }
            state.seats -= 1;
            state.working += 1;
            let job = state.job.expect("seats belong to a job");
            drop(state);
            let worked = self.work(job, worker);
            state = lock(&self.state);
            state.working -= 1;
            if let Err(panic) = worked {
                state.panic.get_or_insert(panic);
            }
            if state.working == 0 {
                self.done.notify_one();
            }
        }
    }

    /// Takes rows until none is left. A panic is caught, and ends the job for everybody.
    fn work(&self, job: Job, worker: usize) -> Result<(), Box<dyn Any + Send>> {
        // SAFETY: `for_each` is still in progress: it waits for every thread that took a seat.
        let task = unsafe { &*job.task };
        let worked = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let row = self.next.fetch_add(1, Ordering::Relaxed);
                if row >= job.rows {
                    return;
                }
                task(worker, row);
            }
        }));
        if worked.is_err() {
            self.next.store(job.rows, Ordering::Relaxed);
        }
        worked
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.start.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                log::error!("a compute thread ended with a panic");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_row_is_done_once_by_a_worker_in_range() {
        for workers in [1, 2, 5] {
            let pool = Pool::new(workers).unwrap();
            for rows in [0, 1, 2, 3, 7, 100] {
                let done: Vec<AtomicUsize> = (0..rows).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each(rows, &|worker, row| {
                    assert!(worker < pool.workers());
                    done[row].fetch_add(1, Ordering::Relaxed);
                });
                assert!(done.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{workers} workers, {rows} rows");
            }
        }
    }

    #[test]
    fn a_worker_is_on_one_thread_at_a_time() {
        let pool = Pool::new(4).unwrap();
        let busy: Vec<Mutex<()>> = (0..4).map(|_| Mutex::new(())).collect();
        for _ in 0..200 {
            pool.for_each(16, &|worker, _| drop(busy[worker].try_lock().expect("two threads are the same worker")));
        }
    }

    #[test]
    fn rows_run_at_the_same_time() {
        let pool = Pool::new(3).unwrap();
        let barrier = std::sync::Barrier::new(3);
        let threads = Mutex::new(HashSet::new());
        pool.for_each(3, &|_, _| {
            barrier.wait();
            threads.lock().unwrap().insert(std::thread::current().id());
        });
        assert_eq!(threads.lock().unwrap().len(), 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..6 {
            let panicked =
                catch_unwind(AssertUnwindSafe(|| pool.for_each(6, &|_, row| assert!(row != bad, "bad row"))));
            let panic = panicked.unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"bad row"));
            let done = AtomicUsize::new(0);
            pool.for_each(20, &|_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(done.into_inner(), 20);
        }
    }

    #[test]
    fn runs_from_several_threads_follow_each_other() {
        let pool = Pool::new(2).unwrap();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        pool.for_each(3, &|worker, _| {
                            if worker == 0 {
                                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                                inside.fetch_sub(1, Ordering::SeqCst);
                            }
                        });
                    }
                });
            }
        });
    }
}
