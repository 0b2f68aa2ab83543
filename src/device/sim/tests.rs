//! Tests of streams, events and units in virtual time.

use std::sync::Arc;

use super::*;
use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Kind, Program, Run, Stream};

const MS: Picos = 1_000_000_000;
const BYTES: usize = 4096;

/// A link on which 4 KiB take a millisecond alone and two in duplex.
fn link() -> Link {
    let (alone, duplex) = (BYTES as f64 * 1e3, BYTES as f64 * 5e2);
    Link { in_alone: alone, in_duplex: duplex, out_alone: alone, out_duplex: duplex, overhead: 0 }
}

struct Setup {
    sim: Arc<Sim>,
    device: Device,
    host: HostBuffer,
    there: DeviceBuffer,
    back: HostBuffer,
    other: DeviceBuffer,
}

impl Setup {
    fn new(link: Link, injections: Vec<Injection>) -> Self {
        Self::with(SideBySide::default(), link, injections)
    }

    fn with(side_by_side: SideBySide, link: Link, injections: Vec<Injection>) -> Self {
        let (sim, info) = Sim::new(SimOptions { link, side_by_side, injections, polls_advance: false });
        let sim = Arc::new(sim);
        let device = Device::new(Kind::Sim(sim.clone()), info);
        let (host, back) = (HostBuffer::new(&device, BYTES).unwrap(), HostBuffer::new(&device, BYTES).unwrap());
        let (there, other) = (DeviceBuffer::new(&device, BYTES).unwrap(), DeviceBuffer::new(&device, BYTES).unwrap());
        Self { sim, device, host, there, back, other }
    }

    fn stream(&self, priority: Priority) -> Stream {
        Stream::new(&self.device, priority, "").unwrap()
    }

    fn event(&self) -> Event {
        Event::with_timing(&self.device).unwrap()
    }

    fn copy_in(&self, stream: &Stream, bytes: usize) -> Result<(), Error> {
        // SAFETY: the tests touch the buffers from this thread only and drain before they drop them.
        unsafe { stream.copy_in(&self.there, &self.host, bytes) }
    }

    fn copy_out(&self, stream: &Stream, bytes: usize) -> Result<(), Error> {
        // SAFETY: as above.
        unsafe { stream.copy_out(&self.back, &self.other, bytes) }
    }

    fn program(&self, took: Picos) -> Arc<dyn Program> {
        Arc::new(SimProgram::new(&self.device, &self.sim, &[(1, took)], 256, 1).unwrap())
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.sim.drain();
    }
}

const RUN: Run = Run { slot: 0, size: 0, rows: 1 };

#[test]
fn time_stands_still_until_somebody_waits() {
    let setup = Setup::new(link(), Vec::new());
    let (stream, done) = (setup.stream(Priority::Normal), setup.event());
    setup.copy_in(&stream, BYTES).unwrap();
    done.record(&stream).unwrap();
    assert!(!done.is_done().unwrap() && setup.sim.now() == 0);
    setup.sim.advance_to(MS / 2);
    assert!(!done.is_done().unwrap() && setup.sim.now() == MS / 2);
    done.wait().unwrap();
    assert_eq!(setup.sim.now(), MS);
    assert_eq!((setup.sim.next_step(), setup.sim.busy(Unit::CopyIn)), (None, MS));
}

#[test]
fn both_directions_share_the_link_while_both_move_bytes() {
    let setup = Setup::new(Link { overhead: MS / 4, ..link() }, Vec::new());
    let (a, b) = (setup.stream(Priority::Normal), setup.stream(Priority::Normal));
    let (in_done, out_done) = (setup.event(), setup.event());
    setup.copy_in(&a, BYTES).unwrap();
    in_done.record(&a).unwrap();
    setup.copy_out(&b, BYTES / 2).unwrap();
    out_done.record(&b).unwrap();
    // Both start at 0.25 ms; half the bytes of each at half the rate take 1 ms; the other half of one alone, 0.5 ms.
    out_done.wait().unwrap();
    assert_eq!(setup.sim.now(), MS + MS / 4);
    in_done.wait().unwrap();
    assert_eq!(setup.sim.now(), MS + 3 * MS / 4);
    assert_eq!(in_done.ms_since(&out_done).unwrap(), 0.5);
}

#[test]
fn a_wait_takes_the_record_that_was_last_when_it_was_enqueued() {
    let setup = Setup::new(link(), Vec::new());
    let (a, b) = (setup.stream(Priority::Normal), setup.stream(Priority::Normal));
    let (first, second) = (setup.event(), setup.event());
    b.wait(&first).unwrap(); // never recorded: no wait
    second.record(&b).unwrap();
    assert!(second.is_done().unwrap());
    setup.copy_in(&a, BYTES).unwrap();
    first.record(&a).unwrap();
    b.wait(&first).unwrap();
    setup.copy_in(&a, BYTES).unwrap();
    first.record(&a).unwrap(); // later than the wait: b does not see it
    second.record(&b).unwrap();
    second.wait().unwrap();
    assert_eq!(setup.sim.now(), MS);
    assert!(!first.is_done().unwrap());
}

#[test]
fn one_program_at_a_time_high_priority_first() {
    let setup = Setup::new(link(), Vec::new());
    let (low, high) = (setup.stream(Priority::Normal), setup.stream(Priority::High));
    let (low_done, high_done) = (setup.event(), setup.event());
    let program = setup.program(2 * MS);
    low.launch(&program, RUN).unwrap();
    low.launch(&program, RUN).unwrap();
    low_done.record(&low).unwrap();
    high.launch(&program, RUN).unwrap(); // after the one that runs, before the one that is ready then
    high_done.record(&high).unwrap();
    high_done.wait().unwrap();
    assert_eq!(setup.sim.now(), 4 * MS);
    low_done.wait().unwrap();
    assert_eq!(setup.sim.now(), 6 * MS);
    setup.sim.drain();
}

/// The first run has run alone for 2 ms when the second one comes: each has 4 ms of work left, at a speed of 0.8.
#[test]
fn programs_side_by_side_slow_each_other_down() {
    let setup = Setup::with(SideBySide { most: 2, gain: 1.2 }, link(), Vec::new());
    let streams = [(); 3].map(|()| setup.stream(Priority::Normal));
    let done = [(); 3].map(|()| setup.event());
    // The first size reaches half of the highest rate: two such runs do not fill the device.
    let sizes = [(1, 6 * MS), (2, 6 * MS)];
    let program: Arc<dyn Program> = Arc::new(SimProgram::new(&setup.device, &setup.sim, &sizes, 256, 1).unwrap());
    streams[0].launch(&program, RUN).unwrap();
    done[0].record(&streams[0]).unwrap();
    setup.sim.advance_to(2 * MS);
    for index in 1..3 {
        streams[index].launch(&program, RUN).unwrap();
        done[index].record(&streams[index]).unwrap();
    }
    let ends = done.map(|done| {
        done.wait().unwrap();
        setup.sim.now() / 1_000_000
    });
    // The third run begins when the first is over; the second then has 2 ms left, which take 2.5 ms beside the third.
    assert_eq!(ends, [7_000, 9_500, 13_500]);
    assert_eq!(setup.sim.busy(Unit::Compute), 13_500_000_000, "time in which two ran counts once");
    setup.sim.drain();
}

#[test]
fn programs_side_by_side_are_no_faster_than_a_full_device() {
    let setup = Setup::with(SideBySide { most: 2, gain: 1.2 }, link(), Vec::new());
    let streams = [(); 2].map(|()| setup.stream(Priority::Normal));
    let program = setup.program(2 * MS);
    streams.iter().for_each(|stream| stream.launch(&program, RUN).unwrap());
    setup.sim.drain();
    assert_eq!(setup.sim.now(), 4 * MS);
}

#[test]
fn bytes_move_half_at_the_start_and_half_at_the_end() {
    let setup = Setup::new(link(), Vec::new());
    let stream = setup.stream(Priority::Normal);
    // SAFETY: the timeline moves bytes on this thread only, in the calls below.
    unsafe { setup.host.bytes_mut() }.fill(7);
    setup.copy_in(&stream, BYTES).unwrap();
    // SAFETY: as above; device memory of the simulation is the host's, of this length.
    let there = unsafe { std::slice::from_raw_parts(setup.there.addr() as *const u8, BYTES) };
    assert!(there[..BYTES / 2].iter().all(|&b| b == 7) && there[BYTES / 2..].iter().all(|&b| b == 0));
    setup.sim.drain();
    // SAFETY: as above.
    let there = unsafe { std::slice::from_raw_parts(setup.there.addr() as *const u8, BYTES) };
    assert!(there.iter().all(|&b| b == 7));
}

#[test]
fn a_delay_delays_and_a_fault_stops_everything() {
    let inject = |nth, effect| Injection { unit: Unit::CopyIn, nth, effect };
    let setup = Setup::new(link(), vec![inject(1, Effect::Delay(3 * MS)), inject(2, Effect::FailRun)]);
    let (stream, done) = (setup.stream(Priority::Normal), setup.event());
    setup.copy_in(&stream, BYTES).unwrap();
    done.record(&stream).unwrap();
    done.wait().unwrap();
    assert_eq!(setup.sim.now(), 4 * MS);
    setup.copy_in(&stream, BYTES).unwrap();
    setup.copy_in(&stream, BYTES).unwrap();
    done.record(&stream).unwrap();
    let error = done.wait().unwrap_err();
    assert!(matches!(error, Error::Driver { operation: "copy_in", code: 2, .. }), "{error}");
    assert_eq!((setup.sim.now(), setup.sim.next_step()), (5 * MS, None));
    assert!(done.is_done().is_err() && setup.device.fault().is_some() && setup.copy_in(&stream, 1).is_err());
}

#[test]
fn a_refused_call_enqueues_nothing() {
    let refuse = Injection { unit: Unit::Compute, nth: 2, effect: Effect::RefuseCall };
    let setup = Setup::new(link(), vec![refuse]);
    let (stream, program) = (setup.stream(Priority::Normal), setup.program(MS));
    stream.launch(&program, RUN).unwrap();
    assert!(matches!(stream.launch(&program, RUN), Err(Error::Driver { operation: "launch", .. })));
    setup.sim.drain();
    assert_eq!(setup.sim.now(), MS);
}
