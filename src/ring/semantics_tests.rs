//! Tests of what each call waits for, in virtual time: a call that waits for the device moves the clock to the end of
//! exactly what it waited for; a call that does not wait leaves the clock as it is. `docs/semantics.md` names these
//! tests.
//!
//! Uploads take 1 ms, the model 10 ms, downloads 2 ms; three slots.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::Duration;

use super::{Batch, Buckets, Close, Core, DeviceOutput, RingSpec, Ticket, Waiting};
use crate::device::sim::{Link, Picos, SideBySide, Sim, SimOptions, SimProgram};
use crate::device::{CallerStream, Device, DeviceRows, Event, HostBuffer, Kind, Priority, Stream};
use crate::error::Error;
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

const MS: Picos = 1_000_000_000;
const MODEL: Picos = 10 * MS;
const SOON: Duration = Duration::from_secs(5);

struct Setup {
    sim: Arc<Sim>,
    device: Device,
    core: Arc<Core>,
}

/// A setup of three slots. With `polls_advance`, a look at an event that is not done runs the device's next step.
fn setup(staging: usize, results: usize, polls_advance: bool) -> Setup {
    setup_with(3, staging, results, polls_advance)
}

fn setup_with(slots: usize, staging: usize, results: usize, polls_advance: bool) -> Setup {
    let (rate_in, rate_out) = (ROW_ALIGN as f64 * 1e3, ROW_ALIGN as f64 * 5e2);
    let link = Link { in_alone: rate_in, in_duplex: rate_in, out_alone: rate_out, out_duplex: rate_out, overhead: 0 };
    let (sim, info) =
        Sim::new(SimOptions { link, side_by_side: SideBySide::default(), injections: Vec::new(), polls_advance });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let core = ring(&device, &sim, [slots, staging, results], Waiting::Block);
    Setup { sim, device, core }
}

/// A ring whose threads sleep until the device calls back, and so never move the clock.
fn setup_called_back() -> Setup {
    let setup = setup(8, 8, false);
    let core = ring(&setup.device, &setup.sim, [3, 8, 8], Waiting::Callback);
    Setup { sim: setup.sim.clone(), device: setup.device.clone(), core }
}

fn ring(device: &Device, sim: &Arc<Sim>, buffers: [usize; 3], waiting: Waiting) -> Arc<Core> {
    ring_of(device, sim, MODEL, buffers, waiting)
}

fn ring_of(
    device: &Device,
    sim: &Arc<Sim>,
    model: Picos,
    [slots, staging, results]: [usize; 3],
    waiting: Waiting,
) -> Arc<Core> {
    let program = SimProgram::new(device, sim, &[(1, model)], ROW_ALIGN, slots).unwrap();
    let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);
    let spec = RingSpec {
        staging,
        results,
        priority: Priority::Normal,
        acquire_limit: SOON,
        waiting,
        output_kind: OutputKind::Features,
        buckets: Buckets::one(&[1], row.clone(), vec![row]),
        classes: vec![0],
        device_results: true,
        freed: None,
    };
    Core::build(device, Arc::new(program), spec).unwrap()
}

impl Setup {
    fn batch(&self) -> Batch {
        self.core.acquire(SOON).unwrap()
    }

    fn submit(&self) -> Ticket {
        self.batch().submit(1).unwrap()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.sim.drain(); // whatever a test left in flight
        self.device.assert_healthy();
    }
}

/// A test that fails keeps its message even if its device has met a fault too.
#[test]
fn a_fault_does_not_end_a_test_that_fails_already() {
    let failed = catch_unwind(|| {
        let setup = setup(8, 8, false);
        let _latched = setup.device.latch(Err::<(), _>(Error::Hazard { what: "made up".into() }));
        panic!("what came first");
    });
    assert_eq!(failed.unwrap_err().downcast_ref(), Some(&"what came first"));
}

#[test]
fn acquire_and_submit_wait_for_nothing_while_staging_is_free() {
    let setup = setup(8, 8, false);
    let tickets: Vec<Ticket> = (0..8).map(|_| setup.submit()).collect();
    assert_eq!(setup.sim.now(), 0, "eight batches enqueued on three slots, and no time has passed");
    assert!(tickets.iter().all(|ticket| !ticket.is_ready().unwrap()));
    setup.sim.drain();
}

#[test]
fn acquire_without_staging_waits_for_the_oldest_upload_and_no_longer() {
    let setup = setup(2, 8, true);
    let _tickets = [setup.submit(), setup.submit()];
    let _batch = setup.batch();
    assert_eq!(setup.sim.now(), MS, "the first upload's end; its model has just begun");
}

#[test]
fn page_locked_input_is_free_when_its_upload_ends_and_not_before() {
    let setup = setup(1, 8, false);
    let _ticket = setup.submit();
    setup.sim.advance_to(MS - 1);
    assert!(matches!(setup.core.acquire(Duration::ZERO), Err(Error::Timeout { .. })));
    setup.sim.advance_to(MS);
    drop(setup.core.acquire(Duration::ZERO).unwrap());
}

#[test]
fn a_ticket_waits_for_its_own_batch_only() {
    let setup = setup(8, 8, false);
    let tickets: Vec<Ticket> = (0..4).map(|_| setup.submit()).collect();
    let mut ready = Vec::new();
    for ticket in tickets {
        drop(ticket.wait().unwrap());
        ready.push(setup.sim.now());
    }
    let done = |batch: u64| MS + (batch + 1) * MODEL + 2 * MS;
    assert_eq!(ready, [done(0), done(1), done(2), done(3)], "each at its own download's end");
}

#[test]
fn a_ticket_waits_for_no_other_ring() {
    let setup = setup(8, 8, false);
    let other = ring(&setup.device, &setup.sim, [3, 8, 8], Waiting::Block);
    let mine = setup.submit();
    let theirs: Vec<Ticket> = (0..8).map(|_| other.acquire(SOON).unwrap().submit(1).unwrap()).collect();
    drop(mine.wait().unwrap());
    assert_eq!(setup.sim.now(), MS + MODEL + 2 * MS, "not for the eight batches of the other ring");
    setup.sim.drain();
    drop(theirs);
}

#[test]
fn uploads_run_under_the_model_of_earlier_batches() {
    let setup = setup(8, 8, false);
    let tickets: Vec<Ticket> = (0..3).map(|_| setup.submit()).collect();
    setup.sim.advance_to(3 * MS);
    let is_uploaded = |staging: usize| setup.core.staging[staging].uploaded.is_done().unwrap();
    assert!((0..3).all(is_uploaded), "three uploads done, the first model is running");
    assert!(!tickets[0].is_ready().unwrap());
    setup.sim.drain();
}

#[test]
fn uploads_start_with_downloads_where_these_are_the_slowest() {
    const BATCHES: usize = 12;
    let mut setup = setup(1, 1, false);
    setup.core = ring_of(&setup.device, &setup.sim, MS / 4, [3, BATCHES, BATCHES], Waiting::Block);
    let tickets: Vec<Ticket> = (0..BATCHES).map(|_| setup.submit()).collect();
    let (mut uploaded, mut downloaded) = ([0; BATCHES], [0; BATCHES]);
    for step in 0..4 * 2 * BATCHES as Picos + 8 {
        setup.sim.advance_to(step * MS / 4);
        for batch in 0..BATCHES {
            uploaded[batch] += Picos::from(!setup.core.staging[batch].uploaded.is_done().unwrap());
            downloaded[batch] += Picos::from(!setup.core.results[batch].done.is_done().unwrap());
        }
    }
    // Times are in quarters of a millisecond: the first download ends at 3.25 ms, then one ends every 2 ms.
    let ends: [Picos; BATCHES] = std::array::from_fn(|batch| 13 + 8 * batch as Picos);
    assert_eq!(downloaded, ends, "the slowest engine is never idle");
    // Earlier uploads follow each other without a gap.
    for batch in 7..BATCHES {
        assert_eq!(
            uploaded[batch],
            downloaded[batch - 5] + 4,
            "batch {batch}: a millisecond after that download's end"
        );
    }
    drop(tickets);
}

#[test]
fn looking_and_waiting_with_a_limit_do_not_wait_for_the_device() {
    let setup = setup_called_back();
    let ticket = setup.submit();
    assert!(!ticket.is_ready().unwrap());
    let ticket = ticket.wait_for(Duration::from_millis(1)).unwrap().expect_err("no time passes by itself");
    assert_eq!(setup.sim.now(), 0);
    setup.sim.drain();
    drop(ticket.wait().unwrap());
}

#[test]
fn drops_wait_for_nothing() {
    let setup = setup_called_back();
    let ticket = setup.submit();
    setup.sim.drain();
    let read = ticket.wait().unwrap();
    let before = setup.sim.now();
    drop(setup.batch()); // never submitted
    let mut tickets: Vec<Ticket> = (0..4).map(|_| setup.submit()).collect();
    drop(tickets.pop());
    drop(read);
    assert_eq!(setup.sim.now(), before);
    setup.sim.drain();
}

#[test]
fn a_result_is_free_when_its_output_is_dropped() {
    let setup = setup(8, 1, true);
    let output = setup.submit().wait().unwrap();
    assert!(matches!(setup.core.acquire(Duration::ZERO), Err(Error::Timeout { credits, .. }) if credits.unread == 1));
    drop(output);
    drop(setup.batch());
}

#[test]
fn close_waits_for_what_is_in_flight() {
    for how in [Close::Drain, Close::Abort] {
        let setup = setup(8, 8, true);
        let tickets: Vec<Ticket> = (0..3).map(|_| setup.submit()).collect();
        setup.core.close(how, SOON).unwrap();
        assert_eq!(setup.sim.now(), MS + 3 * MODEL + 2 * MS, "the last download's end");
        assert!(matches!(setup.core.acquire(SOON), Err(Error::Closed)));
        for ticket in tickets {
            assert_eq!(ticket.wait().is_ok(), how == Close::Drain);
        }
    }
}

#[test]
fn one_slot_is_serial_but_for_the_copies() {
    let setup = setup_with(1, 4, 4, false);
    let tickets: Vec<Ticket> = (0..3).map(|_| setup.submit()).collect();
    let mut ready = Vec::new();
    for ticket in tickets {
        drop(ticket.wait().unwrap());
        ready.push(setup.sim.now());
    }
    // The second upload begins when the first run of the model ends, at 11, and runs beside the download, which ends at
    // 13. Only then may the second run write the slot's output.
    assert_eq!(ready, [13 * MS, 25 * MS, 37 * MS]);
}

/// A caller with two streams and device memory, which the simulated device keeps in host memory.
struct Caller {
    writer: Stream,
    reader: Stream,
    rows: Vec<[u8; ROW_ALIGN]>,
    read: Vec<HostBuffer>,
}

impl Caller {
    fn new(device: &Device) -> Self {
        let stream = |name| Stream::new(device, Priority::Normal, name).unwrap();
        let read = (0..8).map(|_| HostBuffer::new(device, ROW_ALIGN).unwrap()).collect();
        Self { writer: stream("writer"), reader: stream("reader"), rows: (1..=8).map(|n| [n; _]).collect(), read }
    }

    fn submit(&self, core: &Arc<Core>, number: usize) -> DeviceOutput {
        let mut batch = core.acquire(SOON).unwrap();
        let (addr, stream) = (self.rows[number].as_ptr() as u64, CallerStream::of(&self.writer));
        // SAFETY: nobody writes the rows, which live until the simulated device has stopped.
        unsafe { batch.read_from(DeviceRows { addr, pitch: ROW_ALIGN, stream }).unwrap() };
        batch.submit_to_device(1).unwrap()
    }

    /// Enqueues a download of the result that takes 2 ms.
    fn read(&self, device: &Device, mut output: DeviceOutput, number: usize) {
        let (reader, to) = (CallerStream::of(&self.reader), self.read[number].span().addr as *mut u8);
        output.wait_on(reader).unwrap();
        // SAFETY: the stream waits for the result, and keeps it until `read_on` is due; the buffer is looked at later.
        unsafe { device.backend().copy_out(to, output.addr(), ROW_ALIGN, self.reader.raw()).unwrap() };
        output.read_on(reader).unwrap();
    }
}

#[test]
fn rows_and_results_on_the_device_wait_for_nothing_on_the_host() {
    let setup = setup(8, 2, false);
    let caller = Caller::new(&setup.device);
    // Two result buffers serve eight batches, none of which has begun: the next owner of a buffer waits on the device.
    (0..8).for_each(|number| caller.read(&setup.device, caller.submit(&setup.core, number), number));
    assert_eq!(setup.sim.now(), 0, "eight batches enqueued, and no time has passed");
    assert_eq!(setup.core.credits().unwrap().in_flight, 2);
    let all_read = Event::new(&setup.device).unwrap();
    all_read.record(&caller.reader).unwrap();
    all_read.wait().unwrap();
    assert_eq!(setup.core.credits().unwrap().in_flight, 0);
    for (number, read) in (1..).zip(&caller.read) {
        // SAFETY: the device is done with it.
        assert!(unsafe { read.bytes() }.iter().all(|&byte| byte == number), "batch {number}");
    }
    setup.core.leave(); // its thread sees the last of it
}

#[test]
fn results_handed_back_on_the_device_keep_the_ring_until_they_were_read() {
    let Setup { sim, device, core } = &setup(8, 8, true);
    let other = ring(device, sim, [3, 8, 8], Waiting::Block);
    let caller = Caller::new(device);
    caller.read(device, caller.submit(&other, 0), 0);
    drop(caller.submit(core, 1)); // read by nobody
    let ring = Arc::downgrade(&other);
    other.leave();
    drop(other);
    while ring.strong_count() > 0 {
        std::thread::yield_now();
    }
    assert!(sim.now() >= MODEL + 2 * MS, "gone while it was read: {}", sim.now());
    core.leave();
}

#[test]
fn a_result_on_the_device_is_refused_where_there_is_no_room_for_it() {
    let setup = setup(1, 1, false);
    let option = |result: Result<(), Error>| match result {
        Err(Error::Option { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let caller = Caller::new(&setup.device);
    let mut batch = setup.batch();
    let stream = CallerStream::of(&caller.writer);
    let rows = DeviceRows { addr: caller.rows[0].as_ptr() as u64, pitch: ROW_ALIGN, stream };
    // SAFETY: nothing is submitted.
    let mut read_from = |rows| option(unsafe { batch.read_from(rows) });
    assert_eq!(read_from(DeviceRows { addr: 0, ..rows }), "rows");
    assert_eq!(read_from(DeviceRows { pitch: ROW_ALIGN - 1, ..rows }), "pitch");
    assert_eq!(read_from(DeviceRows { stream: CallerStream::DEFAULT, ..rows }), "stream");
    assert_eq!(option(batch.submit_to_device(2).map(drop)), "rows");
    let mut output = setup.batch().submit_to_device(1).unwrap(); // from its own rows; the credit came back
    assert_eq!(option(output.wait_on(CallerStream::DEFAULT)), "stream");
    assert_eq!(option(output.read_on(CallerStream::DEFAULT)), "stream");
    setup.core.close(Close::Abort, Duration::ZERO).unwrap_err();
    assert!(matches!(output.wait_on(stream), Err(Error::Closed)));
    setup.sim.drain();
    assert!(matches!(output.is_ready(), Err(Error::Closed)));
    drop(output);
    setup.core.leave();
}
