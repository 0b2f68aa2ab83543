//! Each call fails in turn while everything that an engine offers is in use: every ticket, future, producer and row is
//! answered, with a fault that names a failed call and its class; no batch is handed out afterwards; closing and
//! dropping end.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use trefoil::{Batcher, CallerStream, Close, Device, Engine, Error, FaultClass, Waiting, WhenFull};

use crate::harness::{ChildReport, Scenario, for_each_number, mark, wait_for_release};
use crate::what::{Built, LONG, What, hang_is_logged, hangs};

/// The engine and the batcher in use, so that another thread can use them too.
pub static IN_USE: OnceLock<(Weak<Built>, Weak<Batcher>)> = OnceLock::new();

/// Whether the use is over and closing has begun.
pub static CLOSES: AtomicBool = AtomicBool::new(false);

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

/// Uses an engine or a fleet in every way, from several threads; returns the errors of the use, or of building it.
fn use_everything(what: What, devices: &[Device], waiting: Waiting) -> Result<(), Vec<Error>> {
    let built = Arc::new(what.build(devices, waiting).map_err(|error| vec![error])?);
    let engine = &built.engines()[0];
    let batcher = Arc::new(engine.batcher().rows(6).in_flight(1).build().map_err(|error| vec![error])?);
    IN_USE.get_or_init(|| (Arc::downgrade(&built), Arc::downgrade(&batcher)));
    mark("use");
    let submit = |rows| {
        let mut batch = built.acquire()?;
        what.fill(&mut batch, rows);
        batch.submit(rows)
    };
    // A separate thread submits before all others, so that its calls are the first of their names.
    let first = thread::scope(|scope| scope.spawn(|| submit(1)).join().unwrap());
    let first = first.and_then(trefoil::Ticket::wait).map(drop);
    let pixels = vec![7; batcher.input().row_bytes];
    let mut errors: Vec<Error> = thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let answers = (0..6).map(|round| submit(1 + round % 4)?.wait());
            answers.filter_map(|answer| answer.map(|output| what.check(&output)).err()).collect()
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
        let stays = scope.spawn(|| match what {
            What::SeveralModels => (0..4).filter_map(|round| stay_on_device(engine, round).err()).collect(),
            What::OneModel | What::Fleet | What::Values => Vec::new(),
        });
        [waits, awaits, drops, rows, stays].into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    drop(engine.trace().map(|trace| trace.to_chrome_json()));
    errors.extend(first.and_then(|()| submit(1)?.wait().map(drop)).err());
    if hangs() {
        close_unless_hanging();
    }
    for closed in [batcher.close(Close::Drain, LONG), built.close(LONG)] {
        match closed {
            Err(error @ Error::Timeout { .. }) => panic!("{error}: {}", engine.health()),
            closed => errors.extend(closed.err()),
        }
    }
    built.engines().iter().for_each(|engine| check_closed(engine));
    if engine.device().fault().is_some() {
        assert!(batcher.submit(&pixels).is_err(), "handed out after a fault");
    }
    mark("end");
    if errors.is_empty() { Ok(()) } else { Err(errors) }
}

/// Sets [`CLOSES`], unless a call hangs already: then this thread stops, and the thread that asks still finds
/// everything in use. The flag is set before the log is read, so the thread that asks sees the flag if the call hangs
/// later.
fn close_unless_hanging() {
    CLOSES.store(true, Ordering::SeqCst);
    if hang_is_logged() {
        CLOSES.store(false, Ordering::SeqCst);
        loop {
            thread::park();
        }
    }
}

/// Keeps a result on the device and reads it there; every other result is waited for as well.
fn stay_on_device(engine: &Engine, round: usize) -> Result<(), Error> {
    let mut output = engine.acquire()?.submit_to_device(2)?;
    output.wait_on(CallerStream::DEFAULT)?;
    output.read_on(CallerStream::DEFAULT)?;
    if round.is_multiple_of(2) { output.wait() } else { Ok(()) }
}

/// Checks an engine that was closed, whether its device has failed or not.
fn check_closed(engine: &Engine) {
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
            assert!(engine.try_acquire().is_err(), "handed out after a fault");
            while engine.health().credits.in_flight > 0 {
                assert!(Instant::now() < end, "dropped tickets are never settled: {}", engine.health());
                thread::yield_now();
            }
        }
    }
}

/// Waits until the rings' threads have seen the end of results handed back on the device, or have met a fault.
fn wait_until_settled(devices: &[Device]) {
    let end = Instant::now() + LONG;
    while devices.iter().any(|device| !device.is_unused() && device.fault().is_none()) {
        assert!(Instant::now() < end, "something is kept in use");
        thread::yield_now();
    }
}

/// In a child process: prints the outcome of the use, one line for each error.
fn tell(what: What, devices: Vec<Device>, waiting: Waiting) {
    let told = use_everything(what, &devices, waiting);
    wait_until_settled(&devices);
    let faults: Vec<Error> = devices.iter().filter_map(Device::fault).collect();
    for error in told.err().into_iter().flatten() {
        let expected = match error {
            Error::Fault { .. } => FaultClass::Process,
            Error::Driver { .. } => FaultClass::Process, // in building
            Error::Closed => FaultClass::Request,
            _ => panic!("{error:?}"),
        };
        assert_eq!(error.class(), expected, "{error}");
        println!("error: {error}");
    }
    for fault in &faults {
        assert_eq!(fault.class(), FaultClass::Process);
        println!("faulted: {fault}");
    }
    drop(devices);
    if faults.is_empty() {
        wait_for_release(); // else its threads may hold a device a while longer, and its memory stays
    }
}

#[test]
fn every_failing_call_answers_everybody() {
    each_call_fails("faults::every_failing_call_answers_everybody", What::OneModel);
}

#[test]
fn every_failing_call_of_several_models_answers_everybody() {
    each_call_fails("faults::every_failing_call_of_several_models_answers_everybody", What::SeveralModels);
}

#[test]
fn every_failing_call_of_a_fleet_answers_everybody() {
    each_call_fails("faults::every_failing_call_of_a_fleet_answers_everybody", What::Fleet);
}

#[test]
fn every_failing_call_of_a_model_of_values_answers_everybody() {
    each_call_fails("faults::every_failing_call_of_a_model_of_values_answers_everybody", What::Values);
}

/// In a child process: opens, builds, uses and drops the kind that the parent chose, with marks in between.
pub fn live() {
    let waiting = match std::env::var("WAITING").unwrap().as_str() {
        "0" => Waiting::Block,
        "1" => Waiting::Callback,
        _ => Waiting::Spin,
    };
    println!(); // behind the name of the test
    mark("open");
    match What::chosen().open() {
        Ok(devices) => {
            mark("build");
            tell(What::chosen(), devices, waiting);
        }
        Err(error) => println!("error: {error}"),
    }
}

/// Checks a run in which calls failed: everyone got an error that names one of them, and nothing is left except what
/// the device may still use.
pub fn check_failed(what: &str, report: &ChildReport) {
    let faulted = report.stdout.contains("faulted");
    // Work that is enqueued when a call fails may still run when the context ends; its memory is left to the device.
    let may_be = |what: &&String| faulted && what.starts_with("the context ends with");
    let violations: Vec<&String> = report.violations.iter().filter(|what| !may_be(what)).collect();
    assert!(report.status.success() && violations.is_empty(), "{what}: {}, {violations:?}\n{report}", report.status);
    let injected = report.log.iter().filter(|line| line.ends_with("injected"));
    let failed: BTreeSet<&str> = injected.filter_map(|line| line.split(' ').next()).collect();
    for line in report.stdout.lines().filter(|line| line.starts_with("error") || line.starts_with("faulted")) {
        let named = failed.iter().any(|name| line.contains(&format!("{name} failed with CUDA_ERROR_LAUNCH_FAILED")));
        assert!(named, "{what}: not one of {failed:?}: {line}\n{report}");
    }
    assert!(faulted || report.leaks.is_empty(), "{what}: {:?}\n{report}", report.leaks);
}

fn each_call_fails(name: &'static str, what: What) {
    let scenario = Scenario::new(name, live);
    let report = what.runs(&scenario, &[("WAITING", "0")]);
    let log = &report.assert_clean().log;
    let calls = |until: &str| log.iter().take_while(|line| *line != until).filter(|l| l.starts_with("cu")).count();
    let (built, used) = (calls("# use"), calls("# end"));
    assert!(built > 100 && used > built + 150, "{built} calls in building, {used} in all");
    for_each_number(2 * used, |number| {
        // Each call fails in turn, alone and for good; the ways of waiting alternate.
        let (call, sticky) = (number.div_ceil(2), ["0", "1"][number % 2]);
        let waiting = ["0", "1", "2"][(call + number % 2) % 3];
        let (call, events) = (call.to_string(), ["instant", "own"][usize::from(number % 4 > 1)]);
        let fails = [("FAKE_CUDA_FAIL_CALL", &*call), ("FAKE_CUDA_FAIL_STICKY", sticky)];
        let report =
            what.runs(&scenario, &[&[("WAITING", waiting), ("FAKE_CUDA_EVENTS", events)], &fails[..]].concat());
        check_failed(&format!("call {call}"), &report);
    });
}

/// Building an engine or a fleet with a batcher fails at any call: nothing is left behind, and the device is as usable
/// as before.
#[test]
fn what_fails_to_build_leaves_nothing() {
    let scenario = Scenario::new("faults::what_fails_to_build_leaves_nothing", || {
        let devices = What::chosen().open().unwrap();
        mark("open");
        let build = || {
            let built = What::chosen().build(&devices, Waiting::Block)?;
            let batcher = built.engines()[0].batcher().rows(4).build()?;
            Ok::<_, Error>((built, batcher))
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
        let was_built = first.is_ok();
        drop(first);
        mark("again");
        let is_faulted = || devices.iter().any(|device| device.fault().is_some());
        if !is_faulted() {
            // The calls of a build vary slightly, because its threads bind the context when they first run. The failing
            // call may therefore belong to the use, but never every time.
            let used = || build().and_then(|(built, _)| built.acquire()?.submit(1)?.wait());
            if let Err(error) = used() {
                assert!(was_built, "{error}, after a build that failed");
            }
        }
        if is_faulted() {
            return println!("faulted"); // what was there before is left alone, and with it the context
        }
        drop(devices);
        wait_for_release();
    });
    for what in What::ALL {
        let report = what.runs(&scenario, &[]);
        let log = &report.assert_clean().log;
        let calls = |until: &str| log.iter().take_while(|line| *line != until).filter(|l| l.starts_with("cu")).count();
        let (opened, built) = (calls("# open"), calls("# again"));
        for_each_number(built - opened, |number| {
            let call = (opened + number).to_string();
            let report = what.runs(&scenario, &[("FAKE_CUDA_FAIL_CALL", &*call), ("FAKE_CUDA_FAIL_CODE", "2")]);
            report.assert_sound();
            // The upload of weights is enqueued work: its failure is a fault, after which memory is left to the device.
            let faults = report.stdout.contains("faulted");
            assert!(faults || report.leaks.is_empty(), "{what:?}, call {call}: {:?}\n{report}", report.leaks);
        });
    }
}

/// With a kernel that never ends, every call still returns within its time limit.
#[test]
fn work_that_never_ends_keeps_every_limit() {
    const LIMIT: Duration = Duration::from_millis(100);
    let scenario = Scenario::new("faults::work_that_never_ends_keeps_every_limit", || {
        let what = What::chosen();
        let devices = what.open().unwrap();
        let built = what.build(&devices, Waiting::Block).unwrap();
        let engine = &built.engines()[0];
        let batcher = engine.batcher().rows(1).in_flight(1).when_full(WhenFull::WaitFor(LIMIT)).build().unwrap();
        let pixels = vec![7; batcher.input().row_bytes];
        let row = batcher.submit(&pixels).unwrap();
        let ticket = built.acquire().unwrap().submit(1).unwrap();
        let timed = |what: &str, limited: &mut dyn FnMut()| {
            let begin = Instant::now();
            limited();
            assert!(begin.elapsed() < LONG / 2, "{what}: {:?}", begin.elapsed());
        };
        let (mut ticket, mut row) = (Some(ticket), Some(row));
        timed("a ticket", &mut || ticket = ticket.take().unwrap().wait_for(LIMIT).unwrap().err());
        timed("a row", &mut || row = row.take().unwrap().wait_for(LIMIT).unwrap().err());
        assert!(ticket.is_some() && row.is_some());
        timed("a full batcher", &mut || {
            assert!(matches!(batcher.submit(&pixels), Err(Error::Timeout { .. })));
        });
        for engine in built.engines() {
            timed("closing", &mut || {
                assert!(matches!(engine.close(Close::Drain, LIMIT), Err(Error::Timeout { .. }) | Ok(())));
            });
        }
        std::process::exit(0); // before anything is freed that the device never is done with
    });
    for what in What::ALL {
        let report = what.runs(&scenario, &[("FAKE_CUDA_EVENTS", "stuck")]);
        assert!(report.status.success(), "{}\n{report}", report.status);
        let is_of_the_stuck = |violation: &String| violation.starts_with("the context ends with");
        assert!(report.violations.iter().all(is_of_the_stuck), "{report}");
    }
}
