//! Tests of a device that fails under a ring in full use: every call is answered, with the first failure; no result is
//! handed out afterwards; closing and dropping end.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;
mod peers;
mod rebuilds;
mod sim;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Wake};
use std::thread;
use std::time::{Duration, Instant};

use super::{BatcherBuilder, Buckets, Close, Core, Output, RingSpec, Ticket, Waiting};
use crate::device::{Device, Priority, Program};
use crate::error::{Error, FaultClass};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

const LONG: Duration = Duration::from_secs(20);
const ROWS: usize = 4;
const SLOTS: usize = 2;
const WAYS: [Waiting; 3] = [Waiting::Block, Waiting::Callback, Waiting::Spin];

fn row() -> RowSpec {
    RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])])
}

fn ring(device: &Device, program: Arc<dyn Program>, waiting: Waiting) -> Arc<Core> {
    let spec = spec(program.batch_sizes(), waiting);
    Core::build(device, program, spec).unwrap()
}

fn spec(batch_sizes: &[usize], waiting: Waiting) -> RingSpec {
    RingSpec {
        staging: 3,
        results: 6,
        priority: Priority::Normal,
        acquire_limit: LONG,
        waiting,
        output_kind: OutputKind::Features,
        buckets: Buckets::one(batch_sizes, row(), vec![row()]),
        classes: vec![0],
        device_results: false,
        freed: None,
    }
}

/// Fails the test if `body` does not end in time.
fn in_time<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = mpsc::channel();
    let ran = thread::spawn(move || send.send(body()));
    match receive.recv_timeout(3 * LONG) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(ran.join().unwrap_err()),
    }
}

fn block_on(mut ticket: Ticket) -> Result<Output, Error> {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let end = Instant::now() + LONG;
    loop {
        match Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park_timeout(end.saturating_duration_since(Instant::now())),
        }
        assert!(Instant::now() < end, "a ticket is never woken");
    }
}

/// Uses a ring in every way until its device fails or all rounds are done; returns the errors.
fn use_up(core: &Arc<Core>, rounds: usize) -> Vec<Error> {
    let submit = |rows: usize| core.acquire(LONG).and_then(|batch| batch.submit(rows));
    let batcher = BatcherBuilder::new(core).rows(6).in_flight(1).build();
    let errors: Vec<Error> = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            (0..rounds).filter_map(|n| submit(1 + n % ROWS).and_then(Ticket::wait).err()).collect::<Vec<_>>()
        });
        let a_while = |ticket: Ticket| ticket.wait_for(LONG).map(|answer| drop(answer.expect("it is never answered")));
        let waits_a_while =
            scope.spawn(move || (0..rounds).filter_map(|_| submit(1).and_then(a_while).err()).collect());
        let awaits = scope.spawn(|| {
            let tickets: Vec<_> = (0..rounds.min(2)).map(|_| submit(2)).collect();
            tickets.into_iter().filter_map(|ticket| ticket.and_then(block_on).err()).collect()
        });
        let drops = scope.spawn(|| (0..rounds).filter_map(|_| submit(ROWS).map(drop).err()).collect());
        let rows = scope.spawn(|| {
            let batcher = match &batcher {
                Ok(batcher) => batcher,
                Err(error) => return vec![error.clone()],
            };
            let tickets: Vec<_> = (0..rounds).map(|_| batcher.submit(&[7; ROW_ALIGN])).collect();
            let answer = |ticket: super::RowTicket| {
                ticket.wait_for(LONG).map(|answer| drop(answer.expect("a row is never answered")))
            };
            tickets.into_iter().filter_map(|ticket| ticket.and_then(answer).err()).collect()
        });
        let threads = [waits, waits_a_while, awaits, drops, rows];
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    if let Ok(batcher) = batcher {
        let closed = batcher.close(Close::Abort, LONG);
        assert!(!matches!(closed, Err(Error::Timeout { .. })), "{closed:?}");
    }
    errors
}

/// Checks the ring after a fault whose cause names `operation`.
fn check_faulted(core: &Arc<Core>, errors: &[Error], operation: &str, class: FaultClass) {
    assert!(!errors.is_empty(), "nobody heard of the fault");
    for error in errors {
        let Error::Fault { cause, .. } = error else { panic!("not the fault: {error}") };
        assert!(cause.to_string().contains(operation), "{error} does not name {operation}");
        assert_eq!(error.class(), class, "{error}");
    }
    assert!(matches!(core.acquire(Duration::ZERO), Err(Error::Fault { .. })), "handed out after a fault");
    let closing = Instant::now();
    assert!(matches!(core.close(Close::Drain, LONG), Err(Error::Fault { .. })));
    assert!(closing.elapsed() < Duration::from_secs(1), "closing took {:?}", closing.elapsed());
    let end = Instant::now() + LONG;
    let health = loop {
        let health = core.health();
        if health.credits.in_flight == 0 && health.credits.unread == 0 {
            break health; // the ring's thread has settled what was dropped
        }
        assert!(Instant::now() < end, "never settled: {health}");
        thread::yield_now();
    };
    assert!(!health.is_ok() && health.class() == Some(class), "{health}");
    let text = health.to_string();
    assert!(text.contains(operation) && text.contains(class.name()), "{text}");
    assert_eq!(health.credits.filling, 0, "{health}");
    assert!(health.quarantined >= health.credits.quarantined, "{health}");
}

/// Checks the ring after a use without failures.
fn check_clean(core: &Arc<Core>, errors: &[Error]) {
    assert!(errors.is_empty(), "{errors:?}");
    core.close(Close::Drain, LONG).unwrap();
    let end = Instant::now() + LONG;
    while core.health().credits != (crate::error::Credits { staging: 3, results: 6, ..Default::default() }) {
        assert!(Instant::now() < end, "credits lost: {}", core.health());
        thread::yield_now();
    }
}
