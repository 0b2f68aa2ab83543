//! Tests of the recorder on the simulated device, driven by hand so that every time is known.

use std::time::Duration;

use super::*;
use crate::device::sim::{Link, Picos, SideBySide, Sim, SimOptions, SimProgram};
use crate::device::{Access, DeviceBuffer, Event, HostBuffer, Kind, Stream};
use crate::trace::{Trace, TraceStage};

const MS: Picos = 1_000_000_000;
const BYTES: usize = 4096;

/// The objects of a ring with one staging and one result buffer.
struct Setup {
    sim: Arc<Sim>,
    recorder: Arc<Recorder>,
    device: Device,
    streams: [Stream; 3],
    staging: HostBuffer,
    result: HostBuffer,
    inside: DeviceBuffer,
    program: Arc<dyn Program>,
    events: [Event; 3],
}

impl Setup {
    /// A setup in which a copy of 4 KiB takes 1 ms, and a run 3 ms.
    fn new(batches: usize) -> Self {
        let rate = BYTES as f64 * 1e3;
        let link = Link { in_alone: rate, in_duplex: rate, out_alone: rate, out_duplex: rate, overhead: 0 };
        let (sim, info) = Sim::new(SimOptions {
            link,
            side_by_side: SideBySide::default(),
            injections: Vec::new(),
            polls_advance: false,
        });
        let sim = Arc::new(sim);
        sim.advance_to(7 * MS);
        let (device, recorder) = install(&Device::new(Kind::Sim(sim.clone()), info), batches, Vec::new()).unwrap();
        let stream = |name| Stream::new(&device, Priority::Normal, name).unwrap();
        let event = || Event::new(&device).unwrap();
        Self {
            streams: [stream("in"), stream("compute"), stream("out")],
            staging: HostBuffer::new(&device, BYTES).unwrap(),
            result: HostBuffer::new(&device, BYTES).unwrap(),
            inside: DeviceBuffer::new(&device, BYTES).unwrap(),
            program: Arc::new(SimProgram::new(&device, &sim, &[(1, 3 * MS)], 256, 1).unwrap()),
            events: [event(), event(), event()],
            sim,
            recorder,
            device,
        }
    }

    fn fill(&self, took: Picos) {
        self.device.note(Note::Begin(self.staging.span(), Access::Write));
        self.sim.advance_to(self.sim.now() + took);
        self.device.note(Note::End(self.staging.span()));
    }

    /// Enqueues a batch whose upload is `copies` copies of a millisecond each.
    fn submit(&self, number: u64, copies: usize) {
        let ([copy_in, compute, copy_out], [uploaded, computed, done]) = (&self.streams, &self.events);
        let (staging, result) = (self.staging.span(), self.result.span());
        self.device.note(Note::Batch { number, slot: 0, size: 0, rows: 1, staging, result });
        // SAFETY: the buffers live as long as self, which drains the device before it drops them; no host code
        // touches them.
        unsafe {
            for _ in 0..copies {
                copy_in.copy_in(&self.inside, &self.staging, BYTES).unwrap();
            }
            uploaded.record(copy_in).unwrap();
            compute.wait(uploaded).unwrap();
            compute.launch(&self.program, Run { slot: 0, size: 0, rows: 1 }).unwrap();
            computed.record(compute).unwrap();
            copy_out.wait(computed).unwrap();
            copy_out.copy_out(&self.result, &self.inside, BYTES).unwrap();
            done.record(copy_out).unwrap();
        }
        self.device.note(Note::Enqueued);
    }

    fn read(&self, took: Picos) {
        self.device.note(Note::Begin(self.result.span(), Access::Read));
        self.sim.advance_to(self.sim.now() + took);
        self.device.note(Note::End(self.result.span()));
    }

    /// The intervals of a batch: stage, begin and end in milliseconds.
    fn intervals(&self, batch: u64) -> Vec<(TraceStage, f64, f64)> {
        let trace = self.recorder.trace();
        let of_batch = trace.intervals().iter().filter(|interval| interval.batch == batch);
        // Rounded to picoseconds, the resolution of the device.
        let ms = |seconds: f64| (seconds * 1e12).round() / 1e9;
        of_batch.map(|interval| (interval.stage, ms(interval.begin), ms(interval.end))).collect()
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.sim.drain();
    }
}

#[test]
fn every_stage_has_its_virtual_time() {
    use TraceStage::*;
    let setup = Setup::new(4);
    setup.fill(2 * MS);
    setup.submit(0, 1);
    assert_eq!(setup.intervals(0), [], "nothing is finished");
    setup.events[2].wait().unwrap();
    let device = [(CopyIn, 9.0, 10.0), (Compute, 10.0, 13.0), (CopyOut, 13.0, 14.0)];
    let host = [(Fill, 7.0, 9.0), (Submit, 9.0, 9.0)];
    assert_eq!(setup.intervals(0), [&host[..], &device, &[(Wait, 9.0, 14.0)]].concat());
    setup.read(MS);
    assert_eq!(setup.intervals(0).last(), Some(&(Read, 14.0, 15.0)));
    let trace = setup.recorder.trace();
    let threads: Vec<_> = trace.intervals().iter().filter_map(|interval| interval.thread.as_deref()).collect();
    let me = std::thread::current().name().unwrap().to_owned();
    assert_eq!(threads, [me.as_str(); 4], "all by this thread");
    assert!(trace.intervals().iter().all(|interval| interval.thread.is_none() == interval.stage.is_device()));
}

#[test]
fn many_copies_are_one_interval_and_cost_the_same_events() {
    let setup = Setup::new(4);
    setup.submit(0, 5);
    setup.submit(1, 1);
    setup.sim.drain();
    let copied = |batch| setup.intervals(batch).into_iter().find(|interval| interval.0 == TraceStage::CopyIn);
    assert_eq!(copied(0), Some((TraceStage::CopyIn, 7.0, 12.0)));
    assert_eq!(copied(1), Some((TraceStage::CopyIn, 12.0, 13.0)));
}

#[test]
fn the_oldest_batches_are_forgotten_and_counted() {
    let setup = Setup::new(3);
    for number in 0..10 {
        setup.submit(number, 1);
        setup.events[2].wait().unwrap();
    }
    let trace = setup.recorder.trace();
    let numbers: Vec<u64> = trace.stage(TraceStage::Compute).map(|interval| interval.batch).collect();
    assert_eq!((numbers, trace.dropped()), (vec![7, 8, 9], 7));
    assert_eq!(setup.intervals(9)[1], (TraceStage::CopyIn, 7.0 + 9.0 * 5.0, 8.0 + 9.0 * 5.0));
}

#[test]
fn polling_is_waiting_where_it_goes_on_until_the_result_is_read() {
    let setup = Setup::new(4);
    setup.submit(0, 1);
    assert!(!setup.events[2].is_done().unwrap());
    setup.sim.advance_to(setup.sim.now() + 4 * MS); // looked, did something else, came back
    for _ in 0..20 {
        setup.events[2].is_done().unwrap();
        setup.sim.advance_to(setup.sim.now() + MS / 16);
    }
    setup.read(0);
    let wait = setup.intervals(0).into_iter().find(|interval| interval.0 == TraceStage::Wait);
    assert_eq!(wait, Some((TraceStage::Wait, 11.0, 12.25)));
}

#[test]
fn a_stage_between_batches_is_not_recorded() {
    let setup = Setup::new(4);
    // SAFETY: as in `submit`.
    unsafe { setup.streams[0].copy_in(&setup.inside, &setup.staging, BYTES).unwrap() };
    setup.events[0].record(&setup.streams[0]).unwrap();
    setup.events[0].wait().unwrap();
    assert_eq!(setup.recorder.trace().intervals(), []);
    setup.submit(0, 1);
    setup.sim.drain();
    assert_eq!(setup.intervals(0)[1], (TraceStage::CopyIn, 8.0, 9.0));
}

#[test]
fn a_failed_call_of_its_own_ends_the_recording_alone() {
    let setup = Setup::new(4);
    setup.submit(0, 1);
    setup.sim.drain();
    setup.recorder.give_up(&Error::Internal { what: "the recorder's own".into() });
    setup.submit(1, 1);
    setup.events[2].wait().unwrap();
    assert!(setup.device.fault().is_none());
    let trace: Trace = setup.recorder.trace();
    assert_eq!(trace.stage(TraceStage::Compute).count(), 1);
}

#[test]
fn the_cpu_has_its_times_between_those_of_the_host() {
    let (device, recorder) = install(&Device::cpu(1), 2, Vec::new()).unwrap();
    let stream = |name| Stream::new(&device, Priority::Normal, name).unwrap();
    let (copy_in, copy_out) = (stream("in"), stream("out"));
    let [uploaded, computed, done] = [0; 3].map(|_| Event::new(&device).unwrap());
    let (staging, result) = (HostBuffer::new(&device, BYTES).unwrap(), HostBuffer::new(&device, BYTES).unwrap());
    let inside = DeviceBuffer::new(&device, BYTES).unwrap();
    let spans = (staging.span(), result.span());
    device.note(Note::Batch { number: 0, slot: 1, size: 2, rows: 5, staging: spans.0, result: spans.1 });
    // SAFETY: the host touches neither buffer until `done`, which is waited for below.
    unsafe {
        copy_in.copy_in(&inside, &staging, BYTES).unwrap();
        uploaded.record(&copy_in).unwrap();
        // Without a program, the recorder is told of a launch as if there were one.
        let begin = lock(&recorder.book).part_begins(BatchPart::Program, copy_in.raw());
        recorder.mark(begin, copy_in.raw());
        recorder.inner.event_wait(recorder.marks[begin.unwrap()]).unwrap(); // the stream's thread may be late
        std::thread::sleep(Duration::from_millis(2));
        computed.record(&copy_in).unwrap();
        copy_out.wait(&computed).unwrap();
        copy_out.copy_out(&result, &inside, BYTES).unwrap();
        done.record(&copy_out).unwrap();
    }
    device.note(Note::Enqueued);
    done.wait().unwrap();
    let trace = recorder.trace();
    let stages: Vec<TraceStage> = trace.intervals().iter().map(|interval| interval.stage).collect();
    let [submit, copied_in, ran, copied_out, wait] = trace.intervals() else { panic!("{stages:?}") };
    assert!(trace.intervals().iter().all(|interval| interval.begin <= interval.end && interval.rows == 5));
    assert!(submit.begin <= copied_in.begin && copied_in.end <= ran.begin && ran.end <= copied_out.begin);
    assert!(ran.seconds() >= 1.9e-3, "{ran:?}");
    assert!(copied_out.end <= wait.end, "{copied_out:?} {wait:?}");
}
