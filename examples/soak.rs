//! A soak test: sixteen threads use one engine and its batcher in every way at random, for a given time: sizes, drops,
//! time-outs, futures, deadlines. Every answer must belong to its own submission, every credit must be free at the end,
//! and neither device memory, page-locked memory nor host memory may grow.
//!
//! ```sh
//! soak 480 cuda:0      # seconds (default 10), device (default auto)
//! ```

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

#[path = "../tests/support/echo.rs"]
mod echo;
#[path = "../src/bin/trefoil/smi.rs"]
mod smi;
#[path = "../src/bin/trefoil/vitals.rs"]
mod vitals;

use trefoil::{Batcher, Device, Engine, Error, OutputKind, Ticket};
use vitals::Vitals;

const THREADS: usize = 16;
const LARGEST: usize = 16;
/// Number of tickets that a thread leaves unread.
const AHEAD: usize = 3;

/// Numbers of submissions and of their outcomes.
#[derive(Default)]
struct Counts {
    submitted: AtomicU64,
    answered: AtomicU64,
    abandoned: AtomicU64,
    rows: AtomicU64,
    rows_answered: AtomicU64,
    rows_abandoned: AtomicU64,
    rows_expired: AtomicU64,
    timed_out: AtomicU64,
    given_back: AtomicU64,
}

fn main() -> Result<(), Box<dyn StdError>> {
    let mut arguments = std::env::args().skip(1);
    let seconds: f64 = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let device = Device::open(arguments.next().as_deref().unwrap_or("auto").parse()?)?;
    let before = device.memory_use();
    let engine = Engine::builder(&echo::echo())
        .on(&device)
        .output(OutputKind::Features)
        .batch(LARGEST)
        .staging(THREADS + 3)
        .results(THREADS * (AHEAD + 4))
        .build()?;
    let batcher = engine.batcher().max_delay(Duration::from_micros(200)).rows(4 * LARGEST).build()?;
    println!("{} ({}), {THREADS} threads, {seconds} s", device.info().name, device.info().target);

    let (counts, stop, samples) = (Counts::default(), AtomicBool::new(false), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for thread in 0..THREADS as u64 {
            let (engine, batcher, counts, stop) = (&engine, &batcher, &counts, &stop);
            scope.spawn(move || {
                let mut user = User { engine, batcher, counts, random: thread + 1, unread: VecDeque::new() };
                while !stop.load(Ordering::Relaxed) {
                    user.act();
                }
                while !user.unread.is_empty() {
                    user.read_oldest();
                }
            });
        }
        let start = Instant::now();
        while start.elapsed().as_secs_f64() < seconds {
            thread::sleep(Duration::from_secs_f64((seconds / 40.0).min(5.0)));
            samples.lock().unwrap().push(Vitals::take(&device));
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(batcher);
    report(&engine, &counts, &samples.into_inner()?)?;
    drop(engine);
    let deadline = Instant::now() + Duration::from_secs(5);
    while device.memory_use() != before {
        assert!(Instant::now() < deadline, "not all memory was given back: {:?}", device.memory_use());
        thread::sleep(Duration::from_millis(1)); // the ring's own threads end
    }
    Ok(())
}

/// A thread that uses the engine at random.
struct User<'a> {
    engine: &'a Engine,
    batcher: &'a Batcher,
    counts: &'a Counts,
    random: u64,
    unread: VecDeque<(u32, Ticket)>,
}

impl User<'_> {
    /// The next number of the xorshift64 generator, less than `below`.
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % below
    }

    fn act(&mut self) {
        match self.random(12) {
            0 => self.give_up_early(),
            1 => {
                if let Some((_, ticket)) = self.submit() {
                    drop(ticket);
                    count(&self.counts.abandoned);
                }
            }
            2 => self.wait_in_steps(),
            3 => self.await_it(),
            4..8 => {
                let submitted = self.submit();
                self.unread.extend(submitted);
                if self.unread.len() > AHEAD {
                    self.read_oldest();
                }
            }
            8 => drop(self.batcher.row().unwrap()),
            _ => self.single_row(),
        }
    }

    fn submit(&mut self) -> Option<(u32, Ticket)> {
        let (rows, number) = (1 + self.random(LARGEST as u64) as usize, self.random(1 << 32) as u32);
        let ticket = match echo::submit(self.engine, rows, number) {
            Err(Error::Timeout { .. }) => {
                count(&self.counts.timed_out);
                return None;
            }
            ticket => ticket.unwrap(),
        };
        count(&self.counts.submitted);
        Some((number, ticket))
    }

    /// Asks for a batch with a very short limit, and returns it without submitting it.
    fn give_up_early(&mut self) {
        let limit = Duration::from_micros(self.random(200));
        match self.engine.acquire_within(limit) {
            Err(Error::Timeout { .. }) => count(&self.counts.timed_out),
            batch => {
                drop(batch.unwrap());
                count(&self.counts.given_back);
            }
        }
    }

    fn wait_in_steps(&mut self) {
        let Some((number, mut ticket)) = self.submit() else { return };
        loop {
            match ticket.wait_for(Duration::from_micros(self.random(100))).unwrap() {
                Ok(output) => break assert_eq!(echo::read(&output), number),
                Err(again) => ticket = again,
            }
            if self.random(8) == 0 {
                drop(ticket);
                return count(&self.counts.abandoned);
            }
        }
        count(&self.counts.answered);
    }

    fn await_it(&mut self) {
        if let Some((number, ticket)) = self.submit() {
            assert_eq!(echo::read(&block_on(ticket).unwrap()), number);
            count(&self.counts.answered);
        }
    }

    fn read_oldest(&mut self) {
        let Some((number, ticket)) = self.unread.pop_front() else { return };
        assert_eq!(echo::read(&ticket.wait().unwrap()), number);
        count(&self.counts.answered);
    }

    fn single_row(&mut self) {
        let mut pixels = vec![0; self.batcher.input().row_bytes];
        let value = self.random(256) as u8;
        pixels.fill(value);
        let limit = Duration::from_micros(50 + self.random(2000));
        count(&self.counts.rows);
        let answer = match self.batcher.request().deadline(limit).submit(&pixels) {
            Ok(ticket) if self.random(8) == 0 => {
                drop(ticket);
                return count(&self.counts.rows_abandoned);
            }
            Ok(ticket) => ticket.wait(),
            Err(error) => Err(error),
        };
        match answer {
            Ok(output) => {
                assert!(output.values().iter().all(|&v| v.round() as u8 == value), "another row's answer");
                count(&self.counts.rows_answered);
            }
            Err(Error::Deadline { .. }) => count(&self.counts.rows_expired),
            Err(error) => panic!("{error}"),
        }
    }
}

fn count(of: &AtomicU64) {
    of.fetch_add(1, Ordering::Relaxed);
}

/// Waits for a future on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn report(engine: &Engine, counts: &Counts, samples: &[Vitals]) -> Result<(), Box<dyn StdError>> {
    let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
    println!(
        "{} batches: {} answered, {} abandoned; {} rows: {} answered, {} abandoned, {} past their deadline; \
         {} acquires timed out, {} batches given back",
        of(&counts.submitted),
        of(&counts.answered),
        of(&counts.abandoned),
        of(&counts.rows),
        of(&counts.rows_answered),
        of(&counts.rows_abandoned),
        of(&counts.rows_expired),
        of(&counts.timed_out),
        of(&counts.given_back),
    );
    assert_eq!(of(&counts.submitted), of(&counts.answered) + of(&counts.abandoned));
    assert_eq!(of(&counts.rows), of(&counts.rows_answered) + of(&counts.rows_abandoned) + of(&counts.rows_expired));

    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let credits = engine.credits()?;
        if (credits.filling, credits.in_flight, credits.unread) == (0, 0, 0) {
            break;
        }
        assert!(Instant::now() < deadline, "credits are lost: {credits}");
        thread::sleep(Duration::from_millis(1));
    }
    // The first tenth of the samples is the warm-up; of the rest, the first third is compared with the last.
    let warm = &samples[samples.len() / 10..];
    let (early, late) = (&warm[..warm.len().div_ceil(3)], &warm[warm.len() - warm.len().div_ceil(3)..]);
    let largest = |samples: &[Vitals]| samples.iter().map(|s| s.resident_bytes).max().unwrap_or(0);
    let growth = largest(late).saturating_sub(largest(early));
    println!(
        "resident memory: {} KiB early, {} KiB more late; {:?}",
        largest(early) >> 10,
        growth >> 10,
        samples[samples.len() - 1]
    );
    let held = |vitals: &Vitals| [vitals.device_bytes, vitals.page_locked_bytes, vitals.descriptors, vitals.threads];
    assert!(
        warm.iter().all(|vitals| held(vitals) == held(&warm[0])),
        "buffers, files or threads were made while it ran"
    );
    // Other processes may use the GPU for a while: the least value of a third is the memory that stays in use.
    let least = |samples: &[Vitals]| samples.iter().filter_map(|sample| sample.gpu_mib).min();
    assert!(least(late) <= least(early), "GPU memory grew from {:?} to {:?} MiB", least(early), least(late));
    assert!(growth < 1 << 20, "memory grew by {growth} bytes");
    println!("nothing lost, nothing grown");
    Ok(())
}
