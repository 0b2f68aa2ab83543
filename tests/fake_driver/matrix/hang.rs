//! A driver call that never returns: what other threads can still do, each within its limit.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use trefoil::{Batcher, Close, Device, Engine, Error, Target, Waiting};

use super::Cell;
use super::table::Hangs;
use crate::engine::small_model;
use crate::faults::{CLOSES, IN_USE, live};
use crate::harness::{ChildReport, mark};
use crate::what::{Built, LONG, MOMENT, What, hang_is_logged};

/// The operations that are asked for, each on a thread of its own; closing comes last.
const ASKED: [&str; 6] = ["acquire", "close", "close batcher", "health", "row", "submit"];
/// The line of a child whose call hung after closing had begun.
const TOO_LATE: &str = "the call hung in closing";
/// How long an operation with a very short limit may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// In a child process: opens, builds, uses and drops on a thread of its own, until a call there does not return. Then
/// tries the operations on the engine in use, or on an engine of the same device that existed before, and prints which
/// ended.
pub fn live_beside() {
    let beside = Beside::new();
    mark("start");
    thread::spawn(live);
    wait_for_hang();
    match IN_USE.get().filter(|_| env::var("HANGS").unwrap() == "use") {
        Some(_) if CLOSES.load(Ordering::SeqCst) => println!("{TOO_LATE}"),
        Some((built, batcher)) => {
            Beside { built: built.upgrade().unwrap(), batcher: batcher.upgrade().unwrap() }.ask();
        }
        None => beside.ask(),
    }
    std::process::exit(0); // what hangs is left as it is
}

/// Waits until the stand-in says that a call does not return.
fn wait_for_hang() {
    let end = Instant::now() + LONG;
    while !hang_is_logged() {
        assert!(Instant::now() < end, "no call hangs");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The engine and the batcher that are asked.
struct Beside {
    built: Arc<Built>,
    batcher: Arc<Batcher>,
}

impl Beside {
    fn new() -> Self {
        let device = Device::open(Target::Cuda(0)).unwrap();
        let model = small_model();
        let builder = Engine::builder(&model).on(&device).batch_sizes(&[1, 4]).waiting(Waiting::Block);
        let engine = Arc::new(builder.acquire_limit(MOMENT).build().unwrap());
        let batcher = Arc::new(engine.batcher().rows(4).build().unwrap());
        Self { built: Arc::new(Built::Engine(engine)), batcher }
    }

    fn ask(&self) {
        let mut questions = Questions::new();
        let built = || self.built.clone();
        let (health, acquire, submit, batcher) = (built(), built(), built(), self.batcher.clone());
        questions.ask("health", move || {
            health.engines().iter().for_each(|engine| drop(engine.health()));
            Ok(())
        });
        questions.ask("acquire", move || acquire.acquire_within(MOMENT).map(drop));
        questions.ask("submit", move || submits(&submit));
        questions.ask("row", move || {
            let pixels = vec![7; batcher.input().row_bytes];
            batcher.request().deadline(MOMENT).submit(&pixels)?.wait_for(MOMENT).map(drop)
        });
        questions.tell();
        let (batcher, closed) = (self.batcher.clone(), built());
        questions.ask("close batcher", move || batcher.close(Close::Drain, MOMENT));
        questions.ask("close", move || closed.close(MOMENT));
        questions.tell();
    }
}

/// Submits a batch, at most one for each ring until one is answered. In a fleet the first one may go to the ring that is
/// held up, where it stays, so that the ring has more batches than the other one, to which the next batch goes.
fn submits(built: &Built) -> Result<(), Error> {
    let submit = || built.acquire_within(MOMENT)?.submit(1)?.wait_for(MOMENT).map(drop);
    let mut answer = submit();
    for _ in 1..built.engines().len() {
        answer = answer.or_else(|_| submit());
    }
    answer
}

/// The operations, each on a thread of its own, which may never end.
struct Questions {
    send: Sender<(&'static str, Result<(), Error>)>,
    ended: Receiver<(&'static str, Result<(), Error>)>,
    open: usize,
}

impl Questions {
    fn new() -> Self {
        let (send, ended) = mpsc::channel();
        Self { send, ended, open: 0 }
    }

    fn ask(&mut self, name: &'static str, ask: impl FnOnce() -> Result<(), Error> + Send + 'static) {
        let send = self.send.clone();
        thread::spawn(move || send.send((name, ask())));
        self.open += 1;
    }

    /// Prints which operations end in time, and their errors.
    fn tell(&mut self) {
        let end = Instant::now() + PATIENCE;
        while let Ok((name, answer)) = self.ended.recv_timeout(end.saturating_duration_since(Instant::now())) {
            println!("ended: {name}: {}", answer.err().map_or("ok".into(), |error| error.to_string()));
            self.open -= 1;
            if self.open == 0 {
                return;
            }
        }
    }
}

/// Whether the call hung while the engine that makes it was in use.
pub fn is_in_use(cell: &Cell, report: &ChildReport) -> bool {
    let late = format!("late {}", cell.call);
    report.log.contains(&late) && !report.stdout.contains(TOO_LATE)
}

/// Reads the outcome from a child's lines. If a call holds a ring up, everyone who submits to the ring or closes it
/// gets an error with the call's name; a fleet has another ring to submit to. If nothing is held up, everyone is
/// answered.
pub fn found(cell: &Cell, report: &ChildReport) -> Hangs {
    assert!(report.status.success(), "{cell:?}: {}\n{report}", report.status);
    let ended = report.stdout.lines().filter_map(|line| line.strip_prefix("ended: ")?.split_once(": "));
    let ended: BTreeMap<&str, &str> = ended.collect();
    let names: BTreeSet<&str> = ended.keys().copied().collect();
    assert_eq!(names, BTreeSet::from(ASKED), "{cell:?}: what ends in time\n{report}");
    let behind = format!("{}, which another thread has called, did not return", cell.call);
    let hears = |name: &str| ended[name].contains(&behind);
    // A busy machine can reach a very short limit, too; an operation that the call holds up names the call in its
    // error.
    let is_late =
        |name: &str| !hears(name) && ["timed out", "its deadline passed"].iter().any(|late| ended[name].contains(late));
    let is_answered = |name: &str| ended[name] == "ok" || is_late(name);
    assert!(is_answered("health"), "{cell:?}\n{report}");
    if hears("close") {
        let submitted = is_late("submit") || hears("submit") != (cell.what == What::Fleet);
        let wrong = ASKED.into_iter().find(|name| !hears(name) && !is_answered(name));
        assert!(submitted && wrong.is_none(), "{cell:?} holds its ring up: {wrong:?} of {ended:?}\n{report}");
        return Hangs::Ring;
    }
    let held_up: Vec<_> = ASKED.into_iter().filter(|name| !is_answered(name)).collect();
    assert!(held_up.is_empty(), "{cell:?} holds nobody up, but {held_up:?} of {ended:?}\n{report}");
    let answered = ASKED.into_iter().filter(|name| ended[name] == "ok").count();
    assert!(answered >= ASKED.len() / 2, "{cell:?} holds nobody up, but most are late: {ended:?}\n{report}");
    Hangs::Alone
}
