//! Prefetch: loads inputs ahead on several threads, and hands the results out in order.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, Scope};

use crate::error::Error;
use crate::sync::{self, Condvar, Mutex, MutexGuard, lock, wait};

/// Runs `load` on each of `inputs` on `threads` threads (`trefoil-load-N`) and gives the results in the inputs' order.
///
/// At any time, at most `ahead` inputs are being loaded, or loaded and not yet consumed. The loader threads take inputs
/// one at a time, so inputs may come slowly, for example from a channel. If `load` fails, its error takes the place of
/// the input's result, and loading continues. A panic of `load`, or of the inputs, resumes in the consumer at the place
/// of that input, and ends the iteration. Inputs, results and `load` are `'static`; [`prefetch_scoped`] may borrow.
///
/// ```
/// let squares = trefoil::prefetch(1..=4, 2, 3, |n: u32| n.checked_mul(n).ok_or("too large"))?;
/// assert_eq!(squares.collect::<Result<Vec<_>, _>>(), Ok(vec![1, 4, 9, 16]));
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Option`] if `threads` or `ahead` is 0; [`Error::Thread`] if a thread cannot be started.
pub fn prefetch<I, T, E, F>(inputs: I, threads: usize, ahead: usize, load: F) -> Result<Prefetch<'static, T, E>, Error>
where
    I: IntoIterator,
    I::IntoIter: Send + 'static,
    F: Fn(I::Item) -> Result<T, E> + Send + Sync + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    start(inputs.into_iter(), threads, ahead, load, |builder, run| builder.spawn(run).map(drop))
}

/// Like [`prefetch`], on threads of `scope`: inputs and `load` may borrow data that outlives the scope.
///
/// ```
/// let words = ["copy in", "compute", "copy out"];
/// let lengths = std::thread::scope(|scope| {
///     let load = |word: &&str| Ok::<_, trefoil::Error>(word.len());
///     trefoil::prefetch_scoped(scope, &words, 2, 2, load)?.collect::<Result<Vec<_>, _>>()
/// })?;
/// assert_eq!(lengths, [7, 7, 8]);
/// # Ok::<(), trefoil::Error>(())
/// ```
/// The iterator cannot leave the scope, because the scope would then wait for loaders that wait for room:
/// ```compile_fail
/// let numbers = std::thread::scope(|scope| trefoil::prefetch_scoped(scope, 0..4, 2, 2, Ok::<i32, trefoil::Error>));
/// ```
/// ```
/// let load = Ok::<i32, trefoil::Error>;
/// let count = std::thread::scope(|scope| trefoil::prefetch_scoped(scope, 0..4, 2, 2, load).map(Iterator::count))?;
/// assert_eq!(count, 4);
/// # Ok::<(), trefoil::Error>(())
/// ```
/// Workers cannot outlive a batcher that they borrow:
/// ```compile_fail
/// # use trefoil::{Engine, Error, prefetch_scoped};
/// # fn f(engine: Engine, jobs: Vec<Vec<u8>>) -> Result<(), Error> {
/// std::thread::scope(|scope| {
///     let batcher = engine.batcher().build()?; // gone before the scope's threads are
///     let work = |job: &Vec<u8>| batcher.submit(job);
///     prefetch_scoped(scope, &jobs, 4, 32, work)?.try_for_each(|ticket| ticket?.wait().map(drop))
/// })
/// # }
/// ```
/// ```no_run
/// # use trefoil::{Engine, Error, prefetch_scoped};
/// # fn f(engine: Engine, jobs: Vec<Vec<u8>>) -> Result<(), Error> {
/// let batcher = engine.batcher().build()?; // outlives them
/// std::thread::scope(|scope| {
///     let work = |job: &Vec<u8>| batcher.submit(job);
///     prefetch_scoped(scope, &jobs, 4, 32, work)?.try_for_each(|ticket| ticket?.wait().map(drop))
/// })
/// # }
/// ```
///
/// # Errors
/// As for [`prefetch`].
pub fn prefetch_scoped<'scope, I, T, E, F>(
    scope: &'scope Scope<'scope, '_>,
    inputs: I,
    threads: usize,
    ahead: usize,
    load: F,
) -> Result<Prefetch<'scope, T, E>, Error>
where
    I: IntoIterator,
    I::IntoIter: Send + 'scope,
    F: Fn(I::Item) -> Result<T, E> + Send + Sync + 'scope,
    T: Send + 'scope,
    E: Send + 'scope,
{
    start(inputs.into_iter(), threads, ahead, load, |builder, run| builder.spawn_scoped(scope, run).map(drop))
}

/// An iterator, in order, over the results that loader threads load ahead; [`prefetch`] makes it.
///
/// Dropping the iterator stops the loaders and waits for them: they finish the inputs in progress and load no more, and
/// the wait includes a loader that is blocked in the inputs' `next`. When the drop returns, the inputs and the closure
/// are dropped too.
///
/// ```
/// use trefoil::{Prefetch, prefetch};
/// let mut numbers: Prefetch<'static, u32, _> = prefetch(["1", "two", "3"], 2, 2, str::parse)?;
/// assert_eq!(numbers.next(), Some(Ok(1)));
/// assert!(numbers.next().unwrap().is_err()); // in its input's place, and the rest goes on
/// assert_eq!(numbers.next(), Some(Ok(3)));
/// # Ok::<(), trefoil::Error>(())
/// ```
pub struct Prefetch<'scope, T, E> {
    shared: Arc<Shared<T, E>>,
    /// Ties the iterator to the loaders' scope.
    scope: PhantomData<&'scope ()>,
}

type Loaded<T, E> = thread::Result<Result<T, E>>;

struct Shared<T, E> {
    state: Mutex<PrefetchState<T, E>>,
    /// Wakes loaders when there is room, and at the end.
    room: Condvar,
    /// Wakes the consumer for the next result, and when a loader ends.
    loaded: Condvar,
}

struct PrefetchState<T, E> {
    ahead: usize,
    /// The number of inputs that are taken, or about to be, and whose result is not consumed.
    outstanding: usize,
    /// The results from the next one to consume on; `None` while a result is being loaded.
    results: VecDeque<Option<Loaded<T, E>>>,
    /// The number of the first of these results.
    first: usize,
    /// The number of inputs, once it is known.
    total: Option<usize>,
    stopped: bool,
    running: usize,
}

/// The state that the loader threads share among themselves.
struct Loader<I, F, T, E> {
    /// The only lock that is held over user code: the inputs' `next` and drop.
    inputs: Mutex<Inputs<I>>,
    load: F,
    shared: Arc<Shared<T, E>>,
}

struct Inputs<I> {
    left: Option<I>,
    taken: usize,
}

fn start<'scope, I, T, E, F>(
    inputs: I,
    threads: usize,
    ahead: usize,
    load: F,
    spawn: impl Fn(thread::Builder, Box<dyn FnOnce() + Send + 'scope>) -> io::Result<()>,
) -> Result<Prefetch<'scope, T, E>, Error>
where
    I: Iterator + Send + 'scope,
    F: Fn(I::Item) -> Result<T, E> + Send + Sync + 'scope,
    T: Send + 'scope,
    E: Send + 'scope,
{
    for (option, value) in [("threads", threads), ("ahead", ahead)] {
        if value == 0 {
            return Err(Error::option(option, value, "at least 1"));
        }
    }
    let results = VecDeque::with_capacity(ahead.min(1024));
    let state = PrefetchState { ahead, outstanding: 0, results, first: 0, total: None, stopped: false, running: 0 };
    let shared = Arc::new(Shared { state: Mutex::new(state), room: Condvar::new(), loaded: Condvar::new() });
    let prefetch = Prefetch { shared: shared.clone(), scope: PhantomData };
    let inputs = Mutex::new(Inputs { left: Some(inputs), taken: 0 });
    let loader = Arc::new(Loader { inputs, load, shared });
    for number in 0..threads.min(ahead) {
        let loader = loader.clone();
        lock(&prefetch.shared.state).running += 1;
        let run = Box::new(move || loader.run_to_end());
        sync::start(format!("trefoil-load-{number}"), |builder| spawn(builder, run))
            .inspect_err(|_| lock(&prefetch.shared.state).running -= 1)?;
    }
    Ok(prefetch)
}

impl<I, F, T, E> Loader<I, F, T, E>
where
    I: Iterator,
    F: Fn(I::Item) -> Result<T, E>,
{
    /// The loop of a loader thread: loads until the end, drops its share of inputs and closure, then counts itself off.
    fn run_to_end(self: Arc<Self>) {
        let shared = self.shared.clone();
        // Panics of `load` and of the inputs' `next` are caught elsewhere, and have a place in the results; this
        // catches those of drops.
        let ended = catch_unwind(AssertUnwindSafe(move || {
            while self.shared.reserve() && self.load_next() {}
            drop(self);
        }));
        if ended.is_err() {
            log::error!("dropping a loader's inputs or closure panicked");
        }
        lock(&shared.state).running -= 1;
        shared.loaded.notify_all();
    }

    /// Takes an input and loads it; false if there is no input left, or no result is wanted any more.
    fn load_next(&self) -> bool {
        let Some((number, input)) = self.take_input() else {
            self.shared.room.notify_all();
            self.shared.loaded.notify_all();
            return false;
        };
        let loaded = input.and_then(|input| {
            if lock(&self.shared.state).stopped {
                return Ok(None);
            }
            catch_unwind(AssertUnwindSafe(|| (self.load)(input))).map(Some)
        });
        match loaded.transpose() {
            Some(loaded) => self.shared.put(number, loaded),
            None => return false,
        }
        true
    }

    /// The next input and its number, or the panic of the inputs, which ends the inputs.
    fn take_input(&self) -> Option<(usize, thread::Result<I::Item>)> {
        let mut inputs = lock(&self.inputs);
        if lock(&self.shared.state).stopped {
            return None;
        }
        let input = catch_unwind(AssertUnwindSafe(|| inputs.left.as_mut()?.next())).transpose();
        let number = inputs.taken;
        inputs.taken += usize::from(input.is_some());
        if !matches!(input, Some(Ok(_))) {
            lock(&self.shared.state).total.get_or_insert(inputs.taken);
            inputs.left = None;
        }
        Some((number, input?))
    }
}

impl<T, E> Shared<T, E> {
    /// Waits for room for one more input; false when no result is wanted any more.
    fn reserve(&self) -> bool {
        let mut state = lock(&self.state);
        while state.outstanding >= state.ahead && !state.stopped && state.total.is_none() {
            state = wait(&self.room, state);
        }
        state.outstanding += 1;
        !state.stopped && state.total.is_none()
    }

    fn put(&self, number: usize, loaded: Loaded<T, E>) {
        let mut state = lock(&self.state);
        let index = number - state.first;
        if state.results.len() <= index {
            state.results.resize_with(index + 1, || None);
        }
        state.results[index] = Some(loaded);
        drop(state);
        if index == 0 {
            self.loaded.notify_all();
        }
    }

    /// Waits for the next result; `None` at the end.
    fn next(&self) -> Option<Loaded<T, E>> {
        let mut state = lock(&self.state);
        loop {
            if state.stopped || state.total == Some(state.first) {
                return None;
            }
            if let Some(Some(_)) = state.results.front() {
                let loaded = state.results.pop_front().flatten();
                state.first += 1;
                state.outstanding -= 1;
                self.room.notify_one();
                return loaded;
            }
            state = wait(&self.loaded, state);
        }
    }

    fn stop(&self) -> MutexGuard<'_, PrefetchState<T, E>> {
        let mut state = lock(&self.state);
        state.stopped = true;
        self.room.notify_all();
        state
    }
}

impl<T, E> Iterator for Prefetch<'_, T, E> {
    type Item = Result<T, E>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.shared.next()? {
            Ok(loaded) => Some(loaded),
            Err(panic) => {
                drop(self.shared.stop());
                resume_unwind(panic)
            }
        }
    }
}

impl<T, E> std::iter::FusedIterator for Prefetch<'_, T, E> {}

impl<T, E> Drop for Prefetch<'_, T, E> {
    fn drop(&mut self) {
        let mut state = self.shared.stop();
        while state.running > 0 {
            state = wait(&self.shared.loaded, state);
        }
        let left = std::mem::take(&mut state.results);
        drop(state);
        drop(left); // user code, so without the lock
    }
}

impl<T, E> std::fmt::Debug for Prefetch<'_, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prefetch").field("consumed", &lock(&self.shared.state).first).finish_non_exhaustive()
    }
}
