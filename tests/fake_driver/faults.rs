//! A failure of each call in turn, while everything that an engine offers is in use: every ticket, future, producer and
//! row is answered, with a fault that names a failed call and its class; nothing is handed out after it; closing and
//! dropping end.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use trefoil::{Close, Device, Engine, Error, FaultClass, Target, Waiting};

use crate::engine::{POISON, small_model};
use crate::harness::{Scenario, for_each_number, mark, wait_for_release};

const LONG: Duration = Duration::from_secs(20);

fn block_on<T>(mut future: impl Future<Output = T> + Unpin) -> T {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let end = Instant::now() + LONG;
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park_timeout(end.saturating_duration_since(Instant::now())),
        }
        assert!(Instant::now() < end, "a future is never woken");
    }
}

/// Uses an engine in every way, from several threads; the errors that it gave, or what building it gave.
fn use_everything(device: &Device, waiting: Waiting) -> Result<(), Vec<Error>> {
    let model = small_model();
    let builder = Engine::builder(&model).on(device).batch_sizes(&[1, 4]).staging(2).results(6);
    let engine = builder.waiting(waiting).acquire_limit(LONG).build().map_err(|error| vec![error])?;
    let batcher = engine.batcher().rows(6).in_flight(1).build().map_err(|error| vec![error])?;
    mark("built");
    let submit = |rows| engine.acquire().and_then(|batch| batch.submit(rows));
    let pixels = vec![7; batcher.input().row_bytes];
    let errors: Vec<Error> = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let answers = (0..6).map(|round| submit(1 + round % 4)?.wait());
            answers.filter_map(|answer| answer.map(|output| assert_eq!(output.values(0)[0], POISON)).err()).collect()
        });
        let awaits = scope.spawn(|| {
            let tickets: Vec<_> = (0..3).map(|_| submit(2)).collect();
            let answers = tickets.into_iter().map(|ticket| block_on(ticket?).map(drop));
            answers.filter_map(Result::err).collect()
        });
        let drops = scope.spawn(|| (0..4).filter_map(|_| submit(1).map(drop).err()).collect::<Vec<_>>());
        let rows = scope.spawn(|| {
            let tickets: Vec<_> = (0..8).map(|_| batcher.submit(&pixels)).collect();
            let answer = |ticket: trefoil::RowTicket| match ticket.wait_for(LONG) {
                Ok(Ok(_)) => None,
                Ok(Err(_)) => panic!("a row is never answered"),
                Err(error) => Some(error),
            };
            tickets.into_iter().filter_map(|ticket| ticket.map_or_else(Some, answer)).collect()
        });
        [waits, awaits, drops, rows].into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    mark("used");
    let mut errors = errors;
    for closed in [batcher.close(Close::Drain, LONG), engine.close(Close::Drain, LONG)] {
        match closed {
            Err(error @ Error::Timeout { .. }) => panic!("{error}: {}", engine.health()),
            closed => errors.extend(closed.err()),
        }
    }
    let end = Instant::now() + LONG;
    while engine.health().credits.unread > 0 {
        assert!(Instant::now() < end, "an output is never dropped: {}", engine.health());
        thread::yield_now(); // the batcher's thread drops its own view of the last rows
    }
    let health = engine.health();
    let credits = health.credits;
    assert_eq!(credits.filling, 0, "{health}");
    assert!(health.closed.is_some() && credits.in_flight + credits.quarantined <= credits.results, "{health}");
    match &health.fault {
        None => assert_eq!((credits.in_flight, health.quarantined), (0, 0), "{health}"),
        Some(_) => {
            assert!(engine.try_acquire().is_err() && batcher.submit(&pixels).is_err(), "handed out after a fault");
            while engine.health().credits.in_flight > 0 {
                assert!(Instant::now() < end, "dropped tickets are never settled: {}", engine.health());
                thread::yield_now();
            }
        }
    }
    mark("drop");
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// In a child: says what became of it, one line each.
fn tell(device: Device, waiting: Waiting) {
    let told = use_everything(&device, waiting);
    let fault = device.fault();
    for error in told.err().into_iter().flatten() {
        let expected = match error {
            Error::Fault { .. } => FaultClass::Process,
            Error::Driver { .. } => FaultClass::Process,  // in building
            Error::Internal { .. } => FaultClass::Device, // in building, with the driver's words
            Error::Closed => FaultClass::Request,
            _ => panic!("{error:?}"),
        };
        assert_eq!(error.class(), expected, "{error}");
        println!("error: {error}");
    }
    if let Some(fault) = fault {
        assert_eq!(fault.class(), FaultClass::Process);
        println!("faulted: {fault}");
        return; // its threads may hold the device a while longer, and its memory stays
    }
    drop(device);
    wait_for_release();
}

#[test]
fn every_failing_call_answers_everybody() {
    let scenario = Scenario::new("faults::every_failing_call_answers_everybody", || {
        let waiting = match std::env::var("WAITING").unwrap().as_str() {
            "0" => Waiting::Block,
            "1" => Waiting::Callback,
            _ => Waiting::Spin,
        };
        match Device::open(Target::Cuda(0)) {
            Ok(device) => tell(device, waiting),
            Err(error) => println!("error: {error}"),
        }
    });
    let report = scenario.run(&[("WAITING", "0")]);
    let log = &report.assert_clean().log;
    let calls = |until: &str| log.iter().take_while(|line| *line != until).filter(|l| l.starts_with("cu")).count();
    let (built, used) = (calls("# built"), calls("# drop"));
    assert!(built > 100 && used > built + 150, "{built} calls in building, {used} in all");
    for_each_number(2 * used, |number| {
        // Each call in turn, alone and for good; the ways of waiting take turns.
        let (call, sticky) = (number.div_ceil(2), ["0", "1"][number % 2]);
        let waiting = ["0", "1", "2"][(call + number % 2) % 3];
        let (call, events) = (call.to_string(), ["instant", "own"][usize::from(number % 4 > 1)]);
        let fails = [("FAKE_CUDA_FAIL_CALL", &*call), ("FAKE_CUDA_FAIL_STICKY", sticky)];
        let report = scenario.run(&[&[("WAITING", waiting), ("FAKE_CUDA_EVENTS", events)], &fails[..]].concat());
        let faulted = report.stdout.contains("faulted");
        // What is enqueued when one call fails may still run when the context ends; its memory is left to it.
        let may_be = |what: &&String| faulted && what.starts_with("the context ends with");
        let violations: Vec<&String> = report.violations.iter().filter(|what| !may_be(what)).collect();
        assert!(
            report.status.success() && violations.is_empty(),
            "call {call}: {}, {violations:?}\n{report}",
            report.status
        );
        let injected = report.log.iter().filter(|line| line.ends_with("injected"));
        let failed: BTreeSet<&str> = injected.filter_map(|line| line.split(' ').next()).collect();
        for line in report.stdout.lines().filter(|line| line.starts_with("error") || line.starts_with("faulted")) {
            let named =
                failed.iter().any(|name| line.contains(&format!("{name} failed with CUDA_ERROR_LAUNCH_FAILED")));
            assert!(named, "call {call}: not one of {failed:?}: {line}\n{report}");
        }
        assert!(faulted || report.leaks.is_empty(), "call {call}: {:?}\n{report}", report.leaks);
    });
}

/// Building an engine and a batcher that fails at any call leaves nothing behind, and the device is as good as before.
#[test]
fn what_fails_to_build_leaves_nothing() {
    let scenario = Scenario::new("faults::what_fails_to_build_leaves_nothing", || {
        let device = Device::open(Target::Cuda(0)).unwrap();
        mark("open");
        let build = || {
            let engine =
                Engine::builder(&small_model()).on(&device).batch_sizes(&[1, 4]).staging(2).results(3).build()?;
            let batcher = engine.batcher().rows(4).build()?;
            Ok::<_, Error>((engine, batcher))
        };
        let first = build();
        match &first {
            Ok(_) => {}
            Err(error @ Error::OutOfMemory { .. }) => {
                assert_eq!(error.class(), FaultClass::Request);
                println!("out of memory");
            }
            Err(error) => println!("{error}"),
        }
        let built = first.is_ok();
        drop(first);
        mark("again");
        if device.fault().is_some() {
            println!("faulted");
        } else {
            // A build's calls vary by a few (its threads bind the context when they first run), so that the one that
            // fails may be among these: but never one of each.
            let used = || build().and_then(|(engine, _)| engine.acquire()?.submit(1)?.wait());
            if let Err(error) = used() {
                assert!(built, "{error}, after a build that failed");
            }
            if device.fault().is_some() {
                // The first engine's threads may have dropped it after that, which leaves it and its context alone.
                println!("faulted");
                return;
            }
        }
        drop(device);
        wait_for_release();
    });
    let report = scenario.run(&[]);
    let log = &report.assert_clean().log;
    let calls = |until: &str| log.iter().take_while(|line| *line != until).filter(|l| l.starts_with("cu")).count();
    let (opened, built) = (calls("# open"), calls("# again"));
    for_each_number(built - opened, |number| {
        let call = (opened + number).to_string();
        let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", &*call), ("FAKE_CUDA_FAIL_CODE", "2")]);
        report.assert_sound();
        // Uploading the weights is enqueued work: its failure is a fault, after which memory is left to the device.
        let faults = report.stdout.contains("faulted");
        assert!(faults || report.leaks.is_empty(), "call {call}: {:?}\n{report}", report.leaks);
    });
}
