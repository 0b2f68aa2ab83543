//! Worker threads that share out parts of some work, such as the rows of a batch or of an image. They live as long as
//! the pool; a run allocates nothing. An idle thread looks for work for some microseconds and then sleeps, so that the
//! steps of an image follow each other without a wake-up.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;
use crate::loops::Team;
use crate::sync::thread::JoinHandle;
use crate::sync::{Condvar, Mutex, lock, spawn, wait};

/// The threads `trefoil-cpu-1`, …, and the caller of [`Team::each`], which is worker 0.
pub(super) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Held through a run: runs of one pool follow each other.
    running: Mutex<()>,
}

struct Shared {
    state: Mutex<PoolState>,
    /// Signalled when there are seats, or the pool is closed.
    start: Condvar,
    /// Signalled when no thread works on the job any more.
    done: Condvar,
    /// The next part of the current job. Only the fetch-and-add's atomicity matters: `state` orders everything else.
    next: AtomicUsize,
    /// Copies of `seats` and `working` of `state`, for threads that look for a change without the lock. Nothing depends
    /// on when they see a change.
    seats_seen: AtomicUsize,
    working_seen: AtomicUsize,
}

#[derive(Default)]
struct PoolState {
    /// The job of the run in progress; `None` between runs.
    job: Option<Job>,
    /// The number of threads that may still join the job.
    seats: usize,
    /// The number of threads that joined the job and have not left it.
    working: usize,
    /// The number of threads that sleep until there are seats.
    asleep: usize,
    /// The first panic of a thread during the job.
    panic: Option<Box<dyn Any + Send>>,
    closed: bool,
}

#[derive(Clone, Copy)]
struct Job {
    /// The function that workers call with (worker, part). Its lifetime is erased: `each` does not return before every
    /// thread has left.
    task: *const (dyn Fn(usize, usize) + Sync + 'static),
    parts: usize,
}

// SAFETY: the task is `Sync`, so that any thread may call it, and `each` keeps it alive while one has the job.
unsafe impl Send for Job {}

impl Pool {
    /// A pool of `workers`, the caller of a run included.
    pub fn new(workers: usize) -> Result<Self, Error> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            start: Condvar::new(),
            done: Condvar::new(),
            next: AtomicUsize::new(0),
            seats_seen: AtomicUsize::new(0),
            working_seen: AtomicUsize::new(0),
        });
        // The pool is made first: if a later thread cannot start, dropping the pool ends the earlier ones.
        let mut pool = Self { shared, threads: Vec::new(), running: Mutex::new(()) };
        for worker in 1..workers {
            let shared = pool.shared.clone();
            pool.threads.push(spawn(format!("trefoil-cpu-{worker}"), move || shared.serve(worker))?);
        }
        Ok(pool)
    }
}

// SAFETY: threads take parts by counting them up, each once, and the function returns when no thread has the job (below).
unsafe impl Team for Pool {
    /// Workers, the caller of a run included.
    fn workers(&self) -> usize {
        self.threads.len() + 1
    }

    /// # Panics
    /// With the first panic of a call. Parts that nobody has begun by then are left out.
    fn each(&self, parts: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let _running = lock(&self.running);
        // SAFETY: only the lifetime changes. No thread has the job when this function returns (see below), and it
        // does not unwind before: the caller's own calls are caught.
        let task: &'static (dyn Fn(usize, usize) + Sync) = unsafe { std::mem::transmute(task) };
        let job = Job { task, parts };
        let shared = &*self.shared;
        shared.next.store(0, Ordering::Relaxed);
        let seats = self.threads.len().min(parts.saturating_sub(1));
        if seats > 0 {
            shared.offer(job, seats);
        }
        let mine = shared.work(job, 0);
        let others = if seats > 0 { shared.close_job() } else { None };
        drop(_running);
        if let Some(panic) = mine.err().or(others) {
            resume_unwind(panic);
        }
    }
}

/// How often a thread looks for a change before it sleeps: for some tens of microseconds. It keeps its core meanwhile,
/// because where other threads wait for the core, giving it up costs milliseconds.
/// where others wait for it, to give it up costs milliseconds.
const LOOKS: usize = 2000;

/// Whether `is_so` becomes true within `LOOKS` looks.
fn soon(is_so: impl Fn() -> bool) -> bool {
    (0..LOOKS).any(|_| {
        std::hint::spin_loop();
        is_so()
    })
}

impl Shared {
    /// Lets `seats` threads join a job.
    fn offer(&self, job: Job, seats: usize) {
        let mut state = lock(&self.state);
        (state.job, state.seats) = (Some(job), seats);
        self.seats_seen.store(seats, Ordering::Relaxed);
        let asleep = state.asleep;
        drop(state);
        (0..seats.min(asleep)).for_each(|_| self.start.notify_one());
    }

    /// Waits for all threads that joined; returns the first panic of one.
    fn close_job(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = lock(&self.state);
        (state.job, state.seats) = (None, 0); // from here on nobody joins
        self.seats_seen.store(0, Ordering::Relaxed);
        if state.working > 0 {
            drop(state);
            soon(|| self.working_seen.load(Ordering::Relaxed) == 0);
            state = lock(&self.state);
        }
        while state.working > 0 {
            state = wait(&self.done, state);
        }
        state.panic.take()
    }

    /// The loop of a thread: waits for a job, works on it, until the pool is closed.
    fn serve(&self, worker: usize) {
        loop {
            soon(|| self.seats_seen.load(Ordering::Relaxed) > 0);
            let mut state = lock(&self.state);
            while state.seats == 0 && !state.closed {
                state.asleep += 1;
                state = wait(&self.start, state);
                state.asleep -= 1;
            }
            if state.closed {
                return;
            }
            let job = state.job.expect("seats belong to a job");
            self.count(&mut state, |state| (state.seats, state.working) = (state.seats - 1, state.working + 1));
            drop(state);
            let worked = self.work(job, worker);
            state = lock(&self.state);
            self.count(&mut state, |state| state.working -= 1);
            if let Err(panic) = worked {
                state.panic.get_or_insert(panic);
            }
            if state.working == 0 {
                self.done.notify_one();
            }
        }
    }

    /// Changes the counts under the lock, and their copies that are read without it.
    fn count(&self, state: &mut PoolState, change: impl FnOnce(&mut PoolState)) {
        change(state);
        self.seats_seen.store(state.seats, Ordering::Relaxed);
        self.working_seen.store(state.working, Ordering::Relaxed);
    }

    /// Takes parts until none is left. A panic is caught and returned; it ends the job for all threads.
    fn work(&self, job: Job, worker: usize) -> Result<(), Box<dyn Any + Send>> {
        // SAFETY: `each` is still in progress: it waits for every thread that took a seat.
        let task = unsafe { &*job.task };
        let worked = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let part = self.next.fetch_add(1, Ordering::Relaxed);
                if part >= job.parts {
                    return;
                }
                task(worker, part);
            }
        }));
        if worked.is_err() {
            self.next.store(job.parts, Ordering::Relaxed);
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
                pool.each(rows, &|worker, row| {
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
            pool.each(16, &|worker, _| drop(busy[worker].try_lock().expect("two threads are the same worker")));
        }
    }

    #[test]
    fn rows_run_at_the_same_time() {
        let pool = Pool::new(3).unwrap();
        let barrier = std::sync::Barrier::new(3);
        let threads = Mutex::new(HashSet::new());
        pool.each(3, &|_, _| {
            barrier.wait();
            threads.lock().unwrap().insert(std::thread::current().id());
        });
        assert_eq!(threads.lock().unwrap().len(), 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(3).unwrap();
        for bad in 0..6 {
            let panicked = catch_unwind(AssertUnwindSafe(|| pool.each(6, &|_, row| assert!(row != bad, "bad row"))));
            let panic = panicked.unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"bad row"));
            let done = AtomicUsize::new(0);
            pool.each(20, &|_, _| {
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
                        pool.each(3, &|worker, _| {
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
