//! Tests of the batcher with a program that can be held, counted and broken. Tests without such a program are in
//! `tests/batcher.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Poll, Waker};
use std::thread;
use std::time::Duration;

use super::*;
use crate::device::cpu::Work;
use crate::device::{Access, Device, DeviceBuffer, Kind, Priority, Program, Run, Span};
use crate::error::Credits;
use crate::ring::{Buckets, RingSpec, Waiting};
use crate::sync::{Condvar, Mutex, lock, wait};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN};

const SLOTS: usize = 2;
const CAPACITY: usize = 4;
const LONG: Duration = Duration::from_secs(20);
pub(super) const SHORT: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
fn spec() -> RowSpec {
    RowSpec::new([("bytes", Dtype::U8, vec![8])])
}

/// Copies its input to its output, one run for each permit, and remembers the first byte of each row.
pub(super) struct Held {
    device: Device,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

#[derive(Default)]
struct Gate {
    permits: usize,
    panics: bool,
    seen: Vec<Vec<u8>>,
}

impl Held {
    pub(super) fn permit(&self, runs: usize) {
        lock(&self.gate).permits += runs;
        self.changed.notify_all();
    }

    /// The batches that ran, by the rows' first bytes, in order.
    fn seen(&self) -> Vec<Vec<u8>> {
        let mut seen = lock(&self.gate).seen.clone();
        seen.iter_mut().for_each(|batch| batch.sort_unstable());
        seen
    }
}

impl Work for Held {
    fn run(&self, run: Run) {
        let mut gate = lock(&self.gate);
        while gate.permits == 0 && !gate.panics {
            gate = wait(&self.changed, gate);
        }
        assert!(!gate.panics, "told to");
        gate.permits -= 1;
        let bytes = run.rows * ROW_ALIGN;
        let (input, output) = (self.inputs[run.slot].addr() as *const u8, self.outputs[run.slot].addr() as *mut u8);
        // SAFETY: the slot's buffers hold CAPACITY rows in host memory, and this stream alone accesses them now.
        let rows = unsafe {
            std::ptr::copy_nonoverlapping(input, output, bytes);
            std::slice::from_raw_parts(input, bytes)
        };
        gate.seen.push(rows.chunks(ROW_ALIGN).map(|row| row[0]).collect());
    }
}

impl Program for Held {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn batch_sizes(&self) -> &[usize] {
        &[CAPACITY]
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        &self.inputs[slot]
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        let bytes = run.rows * ROW_ALIGN;
        let (input, output) = (&self.inputs[run.slot], &self.outputs[run.slot]);
        vec![(input.span_of(bytes), Access::Read), (output.span_of(bytes), Access::Write)]
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let device = self.device.clone();
        let Kind::Cpu(cpu) = device.kind() else { unreachable!("opened as a CPU") };
        cpu.enqueue(stream, self, run)
    }
}

pub(super) fn ring(results: usize) -> (Arc<Core>, Arc<Held>) {
    ring_within(results, LONG)
}

/// A ring for tests in which something waits for longer than `acquire_limit`.
pub(super) fn ring_within(results: usize, acquire_limit: Duration) -> (Arc<Core>, Arc<Held>) {
    let device = Device::cpu(1).checked();
    let buffers = || (0..SLOTS).map(|_| DeviceBuffer::new(&device, CAPACITY * ROW_ALIGN).unwrap()).collect();
    let (inputs, outputs) = (buffers(), buffers());
    let held = Held { device: device.clone(), inputs, outputs, gate: Mutex::default(), changed: Condvar::new() };
    let held = Arc::new(held);
    let spec = RingSpec {
        staging: 3,
        results,
        priority: Priority::Normal,
        acquire_limit,
        waiting: Waiting::default(),
        output_kind: OutputKind::Features,
        buckets: Buckets::one(held.batch_sizes(), spec(), vec![spec()]),
        classes: vec![0],
        device_results: false,
        freed: None,
    };
    (Core::build(&device, held.clone(), spec).unwrap(), held)
}

pub(super) fn batcher(core: &Arc<Core>, max_delay: Duration) -> BatcherBuilder {
    BatcherBuilder::new(core).max_delay(max_delay)
}

pub(super) fn answer(ticket: RowTicket) -> Result<RowOutput, Error> {
    ticket.wait_for(LONG).map(|answer| answer.expect("no answer: it hangs"))
}

fn submit(batcher: &Batcher, number: u8) -> RowTicket {
    batcher.submit(&[number; 8]).unwrap()
}

/// Submits a batch of one row that is held on the device, so that a batcher with `in_flight(1)` sends no other batch.
fn busy(batcher: &Batcher, number: u8) -> RowTicket {
    let ticket = submit(batcher, number);
    until(|| batcher.queued() == 0);
    ticket
}

#[test]
fn who_commits_sends_what_leaves_at_once() {
    let (core, held) = ring(4);
    let batcher = batcher(&core, HOUR).build().unwrap();
    held.permit(2);
    answer(submit(&batcher, 1)).unwrap(); // sent by the batching thread, which measures the upload
    until(|| batcher.shared[0].sender.try_lock().is_ok());
    let ticket = submit(&batcher, 2);
    assert_eq!(batcher.queued(), 0, "this thread has sent it");
    answer(ticket).unwrap();
}

/// The process's other threads have Linux's default slack of 50 us.
#[cfg(all(feature = "cuda", target_os = "linux"))]
#[test]
fn timed_waits_of_a_batchers_threads_end_when_they_are_over() {
    let (core, _held) = ring(4);
    let _batcher = batcher(&core, HOUR).build().unwrap();
    for name in ["trefoil-batch-", "trefoil-rows-"] {
        let of_threads = || {
            let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().file_name());
            let named = threads.filter(|thread| {
                let path = format!("/proc/self/task/{}/comm", thread.display());
                std::fs::read_to_string(path).is_ok_and(|comm| comm.starts_with(name))
            });
            let slack = |thread: std::ffi::OsString| {
                std::fs::read_to_string(format!("/proc/{}/timerslack_ns", thread.display())).ok()
            };
            named.filter_map(slack).map(|slack| slack.trim().parse::<u64>().unwrap()).collect::<Vec<_>>()
        };
        until(|| of_threads().contains(&1));
    }
}

fn until(condition: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < end, "it never came");
        thread::yield_now();
    }
}

pub(super) fn all_credits_return(core: &Core) {
    until(|| {
        let Credits { filling, in_flight, unread, quarantined, .. } = core.credits().unwrap();
        (filling, in_flight, unread, quarantined) == (0, 0, 0, 0)
    });
}

#[test]
fn a_batch_leaves_at_once_while_the_device_is_idle_and_gathers_while_it_is_busy() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::MAX).build().unwrap();
    let mut tickets = vec![busy(&batcher, 1), busy(&batcher, 2)]; // one to run, one to be uploaded meanwhile
    tickets.extend([submit(&batcher, 3), submit(&batcher, 4)]);
    thread::sleep(Duration::from_millis(20));
    assert_eq!(batcher.queued(), 2);
    tickets.extend([submit(&batcher, 5), submit(&batcher, 6)]);
    until(|| batcher.queued() == 0); // a full batch queues behind them
    held.permit(100);
    for (number, ticket) in (1..).zip(tickets) {
        assert_eq!(answer(ticket).unwrap().bytes(), [number; 8]);
    }
    assert_eq!(held.seen(), [vec![1], vec![2], vec![3, 4, 5, 6]]);
    assert_eq!((batcher.stats().batches(), batcher.stats().runs), (3, 3));
    all_credits_return(&core);
}

#[test]
fn an_uncommitted_row_delays_nobody_is_not_read_and_joins_a_later_batch() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, HOUR).in_flight(1).build().unwrap();
    let first = busy(&batcher, 1);
    let before = submit(&batcher, 2);
    let mut open = batcher.row().unwrap();
    open.bytes_mut().fill(99);
    let behind: Vec<_> = (3..6).map(|number| submit(&batcher, number)).collect();
    held.permit(2);
    [first, before].into_iter().chain(behind).for_each(|ticket| drop(answer(ticket).unwrap()));
    assert_eq!((held.seen(), batcher.stats().runs), (vec![vec![1], vec![2, 3, 4, 5]], 3));
    open.bytes_mut().fill(9); // still its owner's
    let late = open.submit().unwrap();
    drop(submit(&batcher, 10)); // the device is idle: it leaves with the one before, or is left out
    held.permit(100);
    assert_eq!(answer(late).unwrap().bytes(), [9; 8]);
    all_credits_return(&core);
}

#[test]
fn rows_of_one_call_leave_together_and_each_has_its_answer() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, HOUR).rows(6).in_flight(1).build().unwrap();
    let first = busy(&batcher, 1);
    let pixels: Vec<[u8; 8]> = (2..6).map(|number| [number; 8]).collect();
    let rows: Vec<&[u8]> = pixels.iter().map(|row| &row[..]).collect();
    let tickets = batcher.submit_rows(&[&rows[..3], &[&[0; 7]], &rows[3..]].concat());
    assert!(matches!(tickets[3], Err(Error::Option { option: "pixels", .. })), "{:?}", tickets[3]);
    held.permit(100);
    answer(first).unwrap();
    let answers = tickets.into_iter().flatten().map(|ticket| answer(ticket).unwrap().bytes().to_vec());
    assert_eq!(answers.collect::<Vec<_>>(), pixels);
    assert_eq!((held.seen(), batcher.stats().runs), (vec![vec![1], vec![2, 3, 4, 5]], 2));
    all_credits_return(&core);
}

#[test]
fn rows_of_one_call_that_have_no_place_wait_or_are_refused_one_by_one() {
    let (core, held) = ring(8);
    held.permit(100);
    let pixels: Vec<[u8; 8]> = (0..20).map(|number| [number; 8]).collect();
    let rows: Vec<&[u8]> = pixels.iter().map(|row| &row[..]).collect();
    let waits = batcher(&core, HOUR).rows(3).build().unwrap();
    for (ticket, pixels) in waits.submit_rows(&rows).into_iter().zip(&pixels) {
        assert_eq!(answer(ticket.unwrap()).unwrap().bytes(), pixels);
    }
    let rejects = batcher(&core, HOUR).rows(3).when_full(WhenFull::Reject).build().unwrap();
    let held_back = rejects.row().unwrap();
    lock(&held.gate).permits = 0;
    let tickets = rejects.submit_rows(&rows);
    assert!(tickets[..2].iter().all(Result::is_ok));
    assert!(tickets[2..].iter().all(|ticket| matches!(ticket, Err(Error::Full { rows: 3 }))));
    held.permit(100);
    drop((held_back, tickets));
    all_credits_return(&core);
}

#[test]
fn rows_given_up_come_back() {
    let (core, _held) = ring(8);
    let batcher = batcher(&core, HOUR).rows(2).when_full(WhenFull::Reject).build().unwrap();
    for _ in 0..5 {
        let rows = [batcher.row().unwrap(), batcher.row().unwrap()];
        assert!(matches!(batcher.row(), Err(Error::Full { rows: 2 })));
        drop(rows);
        let panicked = thread::scope(|scope| {
            let panics = || {
                let _row = batcher.row().unwrap();
                panic!("a producer's own");
            };
            scope.spawn(panics).join()
        });
        assert!(panicked.is_err());
    }
    assert_eq!((batcher.stats().rejected, batcher.stats().rows()), (5, 0));
}

#[test]
fn a_row_past_its_deadline_is_answered_and_never_uploaded() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).in_flight(1).build().unwrap();
    let first = busy(&batcher, 1);
    let late = batcher.request().deadline(Duration::from_millis(20)).submit(&[2; 8]).unwrap();
    let mut row = batcher.row().unwrap();
    row.bytes_mut().fill(3);
    let in_place = row.deadline(Duration::from_millis(10)).submit().unwrap();
    let in_time = batcher.request().deadline(HOUR).submit(&[4; 8]).unwrap();
    for ticket in [late, in_place] {
        assert!(matches!(answer(ticket), Err(Error::Deadline { .. })));
    }
    assert_eq!(batcher.stats().expired, 2);
    held.permit(100);
    assert_eq!(answer(in_time).unwrap().bytes(), [4; 8]);
    answer(first).unwrap();
    assert_eq!(held.seen(), [[1], [4]]);
    all_credits_return(&core);
}

#[test]
fn a_deadline_is_not_spent_on_waiting_for_company() {
    let (core, held) = ring(8);
    held.permit(1);
    let batcher = batcher(&core, HOUR).build().unwrap();
    let ticket = batcher.request().deadline(Duration::from_secs(2)).submit(&[1; 8]).unwrap();
    answer(ticket).unwrap();
}

#[test]
fn high_priority_goes_first_and_dropped_tickets_not_at_all() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).in_flight(1).build().unwrap();
    let mut tickets = vec![busy(&batcher, 1)];
    tickets.extend((0..4).map(|_| submit(&batcher, 2)));
    drop(submit(&batcher, 99));
    let high = |_| batcher.request().priority(RowPriority::High).submit(&[3; 8]).unwrap();
    tickets.extend((0..3).map(high));
    held.permit(100);
    tickets.into_iter().for_each(|ticket| drop(answer(ticket).unwrap()));
    assert_eq!(held.seen(), [vec![1], vec![2, 3, 3, 3], vec![2; 3]]);
    all_credits_return(&core);
}

#[test]
fn without_room_a_submission_waits_or_times_out_or_expires() {
    let (core, held) = ring(8);
    let limit = Duration::from_millis(20);
    let patient = batcher(&core, Duration::ZERO).rows(1).in_flight(1).when_full(WhenFull::WaitFor(limit));
    let batcher = patient.build().unwrap();
    let first = busy(&batcher, 1);
    let start = Instant::now();
    assert!(matches!(batcher.submit(&[2; 8]), Err(Error::Timeout { operation: "row", .. })));
    assert!(start.elapsed() >= limit);
    let soon = Duration::from_millis(1);
    assert!(matches!(batcher.request().deadline(soon).submit(&[2; 8]), Err(Error::Deadline { .. })));
    assert_eq!((batcher.stats().rejected, batcher.stats().expired), (1, 1));
    held.permit(1);
    answer(first).unwrap();
    drop(busy(&batcher, 3)); // abandoned in flight
    held.permit(1);
    all_credits_return(&core);
}

#[test]
fn results_held_by_the_caller_are_an_error_not_a_hang() {
    let (core, held) = ring_within(1, SHORT);
    held.permit(100);
    let batcher = batcher(&core, Duration::ZERO).build().unwrap();
    let unread = answer(submit(&batcher, 1)).unwrap();
    let starved = answer(submit(&batcher, 2));
    assert!(matches!(starved, Err(Error::Timeout { operation: "acquire", .. })), "{starved:?}");
    drop(unread);
    assert_eq!(answer(submit(&batcher, 3)).unwrap().bytes(), [3; 8]);
}

#[test]
fn a_fault_answers_everything() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).in_flight(1).rows(3).build().unwrap();
    let in_flight = busy(&batcher, 1);
    let (queued, open) = (submit(&batcher, 2), batcher.row().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| batcher.row().map(drop)); // no room
        thread::sleep(Duration::from_millis(20));
        lock(&held.gate).panics = true;
        held.changed.notify_all();
        waiting.join().unwrap().unwrap_err();
    });
    for ticket in [in_flight, queued] {
        let error = answer(ticket).unwrap_err();
        assert!(error.to_string().contains("told to"), "{error}");
    }
    assert!(matches!(open.submit(), Err(Error::Fault { .. })));
    assert!(matches!(batcher.submit(&[3; 8]), Err(Error::Fault { .. })));
}

#[test]
fn dropped_in_any_state_it_answers_every_ticket() {
    let (core, held) = ring(8);
    let idle = batcher(&core, HOUR).build().unwrap();
    drop(idle);
    let busy_one = batcher(&core, Duration::ZERO).in_flight(1).build().unwrap();
    let mut tickets = vec![busy(&busy_one, 1)];
    tickets.extend((0..6).map(|_| submit(&busy_one, 2)));
    let mut open = busy_one.row().unwrap();
    drop(busy_one);
    open.bytes_mut().fill(7);
    assert!(matches!(open.submit(), Err(Error::Closed)));
    held.permit(100);
    tickets.into_iter().for_each(|ticket| drop(answer(ticket).unwrap()));
    assert_eq!(held.seen().len(), 3);
    all_credits_return(&core);
    until(|| Arc::strong_count(&core) == 1); // both threads are gone
}

#[test]
fn closed_by_draining_it_answers_all_that_is_committed() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, HOUR).in_flight(1).build().unwrap();
    let mut tickets = vec![busy(&batcher, 1)];
    tickets.extend((2..=7).map(|number| submit(&batcher, number)));
    let open = batcher.row().unwrap();
    let late = batcher.close(Close::Drain, Duration::from_millis(20)).unwrap_err();
    assert!(matches!(late, Error::Timeout { operation: "close", .. }), "{late}");
    assert!(matches!(open.submit(), Err(Error::Closed)));
    assert!(matches!(batcher.row(), Err(Error::Closed)));
    thread::scope(|scope| {
        let closing = scope.spawn(|| batcher.close(Close::Drain, LONG));
        held.permit(100);
        closing.join().unwrap().unwrap();
    });
    for (number, ticket) in (1..).zip(tickets) {
        assert!(ticket.is_ready());
        assert_eq!(answer(ticket).unwrap().bytes(), [number; 8]);
    }
    batcher.close(Close::Drain, Duration::ZERO).unwrap();
    core.acquire(LONG).unwrap(); // the ring is open
    all_credits_return(&core);
}

#[test]
fn closed_by_aborting_it_answers_the_queue_at_once_and_the_flights_when_they_land() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).rows(3).in_flight(1).build().unwrap();
    let flying = busy(&batcher, 1);
    let queued = [submit(&batcher, 2), submit(&batcher, 3)];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| batcher.row().map(drop)); // no room
        thread::sleep(Duration::from_millis(20));
        let late = batcher.close(Close::Drain, Duration::ZERO).unwrap_err();
        assert!(matches!(late, Error::Timeout { .. }), "{late}");
        assert!(matches!(waiting.join().unwrap(), Err(Error::Closed)));
    });
    assert!(matches!(batcher.close(Close::Abort, Duration::ZERO), Err(Error::Timeout { .. })));
    for ticket in queued {
        assert!(ticket.is_ready() && matches!(answer(ticket), Err(Error::Closed)));
    }
    assert!(!flying.is_ready());
    held.permit(100);
    batcher.close(Close::Abort, LONG).unwrap();
    assert!(matches!(answer(flying), Err(Error::Closed)));
    assert_eq!(held.seen(), [[1]]);
    all_credits_return(&core);
}

#[test]
fn an_engine_closed_under_it_ends_it() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).in_flight(1).build().unwrap();
    let flying = busy(&batcher, 1);
    until(|| core.credits().unwrap().in_flight == 1);
    let queued = submit(&batcher, 2);
    assert!(matches!(core.close(Close::Abort, Duration::ZERO), Err(Error::Timeout { .. })));
    held.permit(100);
    for ticket in [flying, queued] {
        assert!(matches!(answer(ticket), Err(Error::Closed)));
    }
    assert!(matches!(batcher.submit(&[3; 8]), Err(Error::Closed)));
    batcher.close(Close::Drain, LONG).unwrap();
    drop(batcher);
    until(|| Arc::strong_count(&core) == 1);
    all_credits_return(&core);
}

#[test]
fn a_fault_of_an_engine_that_was_closed_under_it_is_told_at_once() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).build().unwrap();
    let flying = busy(&batcher, 1);
    until(|| core.credits().unwrap().in_flight == 1);
    assert!(matches!(core.close(Close::Abort, Duration::ZERO), Err(Error::Timeout { .. })));
    assert!(matches!(answer(submit(&batcher, 2)), Err(Error::Closed)));
    lock(&held.gate).panics = true;
    held.changed.notify_all();
    assert!(matches!(answer(flying), Err(Error::Fault { .. })));
    let closing = Instant::now();
    assert!(matches!(batcher.close(Close::Drain, LONG), Err(Error::Fault { .. })));
    assert!(closing.elapsed() < LONG / 4, "closing took {:?}", closing.elapsed());
}

#[test]
fn a_panic_of_the_delivering_thread_answers_every_ticket() {
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).in_flight(2).build().unwrap();
    let (first, flying) = (busy(&batcher, 1), busy(&batcher, 2));
    let shared = &batcher.shared[0];
    until(|| core.credits().unwrap().in_flight == 2);
    drop(lock(&shared.sender)); // the second is among the flights now, and the first is soon waited for
    until(|| lock(&shared.state).flights.len() == 1);
    lock(&shared.state).flights[0].rows[0].entry = usize::MAX; // as by a bug
    let queued = submit(&batcher, 3);
    held.permit(100);
    assert_eq!(answer(first).unwrap().bytes(), [1; 8]);
    for ticket in [flying, queued] {
        let error = answer(ticket).unwrap_err();
        assert!(error.to_string().contains("the delivering thread panicked"), "{error}");
    }
    assert!(matches!(batcher.submit(&[4; 8]), Err(Error::Internal { .. })));
    assert!(matches!(batcher.close(Close::Drain, LONG), Err(Error::Internal { .. })));
    drop(batcher); // which may hold a batch that is being filled
    all_credits_return(&core);
}

/// A waker that submits a row, and returns when this has its answer.
struct Asks {
    batcher: Arc<Batcher>,
    called: AtomicBool,
    told: mpsc::Sender<Vec<u8>>,
}

impl std::task::Wake for Asks {
    fn wake(self: Arc<Self>) {
        self.called.store(true, Ordering::Release);
        let output = answer(submit(&self.batcher, 9)).unwrap();
        self.told.send(output.bytes().to_vec()).unwrap();
    }
}

/// If the submission of a batch times out, its rows are answered, and the thread that sent it, the batching thread or a
/// committing one, calls their wakers. Other threads may send meanwhile.
#[test]
fn a_waker_may_wait_for_a_row_of_its_own() {
    for commits in [false, true] {
        let (core, gate) = ring_within(8, SHORT);
        let batcher = Arc::new(batcher(&core, HOUR).build().unwrap());
        gate.permit(100);
        answer(submit(&batcher, 1)).unwrap(); // what a run takes is known, and no upload is measured
        let (tell, told) = mpsc::channel();
        let asks = Arc::new(Asks { batcher: batcher.clone(), called: AtomicBool::new(false), told: tell });
        thread::scope(|scope| {
            let sender = lock(&batcher.shared[0].sender); // the batching thread waits for it, with the next row
            let mut late = Box::pin(submit(&batcher, 2));
            let waker = asks.clone().into();
            assert!(Future::poll(late.as_mut(), &mut std::task::Context::from_waker(&waker)).is_pending());
            let (taken, is_taken) = mpsc::channel();
            let (core, asks) = (&core, &asks);
            scope.spawn(move || {
                let turn = core.order.take(); // no submission gets through before the waker is called
                taken.send(()).unwrap();
                until(|| asks.called.load(Ordering::Acquire));
                drop(turn);
            });
            is_taken.recv().unwrap();
            drop(sender);
            if commits {
                match answer(submit(&batcher, 3)) {
                    Err(Error::Timeout { operation: "submit", .. }) => {} // sent from here, with the row before it
                    Ok(output) => assert_eq!(output.bytes(), [3; 8]), // left by the batching thread to the next batch
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(told.recv_timeout(2 * LONG), Ok(vec![9; 8]), "the waker's row is not answered");
            let Poll::Ready(answer) = Future::poll(late.as_mut(), &mut std::task::Context::from_waker(Waker::noop()))
            else {
                panic!("its waker was called")
            };
            assert!(matches!(answer, Err(Error::Timeout { operation: "submit", .. })), "{answer:?}");
        });
    }
}

#[test]
fn a_waker_is_told_once_the_row_is_there() {
    struct Flag(Mutex<usize>);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            *lock(&self.0) += 1;
            panic!("a waker's own");
        }
    }
    let (core, held) = ring(8);
    let batcher = batcher(&core, Duration::ZERO).build().unwrap();
    let flag = Arc::new(Flag(Mutex::new(0)));
    let waker = flag.clone().into();
    let mut context = std::task::Context::from_waker(&waker);
    let mut ticket = Box::pin(submit(&batcher, 5));
    assert!(Future::poll(ticket.as_mut(), &mut context).is_pending());
    held.permit(100);
    until(|| *lock(&flag.0) == 1);
    assert!(Future::poll(ticket.as_mut(), &mut context).is_ready());
    answer(submit(&batcher, 6)).unwrap(); // the panic harmed nobody
}
