//! Dropping an engine never hangs and never waits, in whatever state the engine and its batches, tickets and outputs
//! are; afterwards the threads of the ring and the batcher are gone, in each way of waiting.

#[path = "support/echo.rs"]
mod echo;

use std::cell::RefCell;
use std::fs;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use echo::{builder_on_cpu, echo, submit};
use trefoil::{Close, Engine, Error, Waiting};

const LONG: Duration = Duration::from_secs(20);

/// A name and a state of an engine to be dropped in; the values that the state returns are dropped after the engine.
type State = (&'static str, fn(&Engine) -> Box<dyn std::any::Any>);

const STATES: [State; 14] = [
    ("unused", |_| Box::new(())),
    ("a batch is being filled", |engine| Box::new(engine.acquire().unwrap())),
    ("a batch was given up", |engine| {
        drop(engine.acquire().unwrap());
        Box::new(())
    }),
    ("a ticket is in flight", |engine| Box::new(submit(engine, 1, 1).unwrap())),
    ("a ticket was dropped in flight", |engine| {
        drop(submit(engine, 1, 1).unwrap());
        Box::new(())
    }),
    ("a ticket was awaited and dropped", |engine| {
        let mut ticket = submit(engine, 1, 1).unwrap();
        let _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
        drop(ticket);
        Box::new(())
    }),
    ("a ticket is awaited", |engine| {
        let mut ticket = submit(engine, 1, 1).unwrap();
        let _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(Waker::noop()));
        Box::new(ticket)
    }),
    ("a wait ran out of time", |engine| {
        Box::new(submit(engine, 1, 1).unwrap().wait_for(Duration::ZERO).unwrap().is_ok())
    }),
    ("an output is held", |engine| Box::new(submit(engine, 1, 1).unwrap().wait().unwrap())),
    ("all credits are out and a producer has given up", |engine| {
        let held: Vec<_> = std::iter::from_fn(|| engine.try_acquire().unwrap()).collect();
        assert!(matches!(engine.acquire_within(Duration::from_millis(5)), Err(Error::Timeout { .. })));
        Box::new(held)
    }),
    ("closed, drained", |engine| {
        let ticket = submit(engine, 1, 1).unwrap();
        engine.close(Close::Drain, LONG).unwrap();
        Box::new(ticket)
    }),
    ("closed, aborted in flight", |engine| {
        let ticket = submit(engine, 1, 1).unwrap();
        let _ = engine.close(Close::Abort, Duration::ZERO);
        Box::new(ticket)
    }),
    ("a batcher has rows claimed, queued, in flight and answered", |engine| {
        let batcher = engine.batcher().in_flight(1).max_delay(Duration::from_millis(1)).build().unwrap();
        let pixels = vec![1; batcher.input().row_bytes];
        let output = batcher.submit(&pixels).unwrap().wait().unwrap();
        let tickets: Vec<_> = (0..9).map(|_| batcher.submit(&pixels).unwrap()).collect();
        Box::new((output, tickets, batcher.row().unwrap(), batcher))
    }),
    ("a batcher was dropped, then its tickets", |engine| {
        let batcher = engine.batcher().max_delay(Duration::from_secs(3600)).build().unwrap();
        let ticket = batcher.submit(&vec![1; batcher.input().row_bytes]).unwrap();
        drop((batcher, ticket));
        Box::new(())
    }),
];

/// The number of threads of rings, batchers and streams in this process.
fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with("trefoil-")).count()
}

#[test]
fn dropping_an_engine_in_any_state_never_hangs() {
    for waiting in [Waiting::Block, Waiting::Callback, Waiting::Spin] {
        for (name, reach) in STATES {
            let (send, receive) = mpsc::channel();
            let dropped = thread::spawn(move || {
                let model = echo();
                let builder = builder_on_cpu(&model).batch_sizes(&[1, 4]).staging(2).results(4);
                let engine = builder.waiting(waiting).build().unwrap();
                let left = reach(&engine);
                let start = Instant::now();
                drop(engine);
                let took = start.elapsed();
                drop(left);
                send.send(took).unwrap();
            });
            match receive.recv_timeout(LONG) {
                Ok(took) => assert!(took < Duration::from_secs(1), "{waiting:?}, {name}: the drop took {took:?}"),
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("{waiting:?}, {name}: it hangs"),
                Err(mpsc::RecvTimeoutError::Disconnected) => panic!("{waiting:?}, {name}: {:?}", dropped.join()),
            }
            let end = Instant::now() + LONG;
            while threads() > 0 {
                assert!(Instant::now() < end, "{waiting:?}, {name}: {} threads stay", threads());
                thread::yield_now();
            }
        }
    }
}

#[test]
fn an_engine_that_lives_as_long_as_its_thread_is_dropped() {
    type Held = RefCell<Option<(Engine, Box<dyn std::any::Any>)>>;
    thread_local! {
        static FIRST: Held = const { RefCell::new(None) };
        static SECOND: Held = const { RefCell::new(None) };
    }
    for (name, reach) in STATES {
        let ended = thread::spawn(move || {
            let hold = |held: &Held| {
                let model = echo();
                let engine = builder_on_cpu(&model).batch_sizes(&[1, 4]).staging(2).results(4).build().unwrap();
                let left = reach(&engine);
                *held.borrow_mut() = Some((engine, left));
            };
            // The checker's own thread-local value comes into use between these two: in either order of the destructors
            // one engine is dropped when that value is gone.
            FIRST.with(|first| {
                hold(first);
                SECOND.with(hold);
            });
        });
        assert!(ended.join().is_ok(), "{name}");
    }
}
