//! Leaves out each ordering edge of the ring's table in turn, and checks that the hazard checker finds a hazard. With
//! all edges it must find none. The file is long because of its tables of edges.

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use super::{BatcherBuilder, Buckets, Core, DeviceOutput, Node, RingSpec, Ticket, Waiting};
use crate::device::sim::{Link, SideBySide, Sim, SimOptions, SimProgram};
use crate::device::{Access, Backend, CallerStream, Device, DeviceBuffer, DeviceRows, Inputs, Kind, Note};
use crate::device::{Priority, Program, RowCopy, Run, Signal, Span, StateBuffer, Stream};
use crate::error::Error;
use crate::sync::{Mutex, lock};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

/// An edge that orders one access before another.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Edge {
    /// The n-th wait of a batch on a stream.
    Wait(&'static str, usize),
    /// The record of a batch on a stream.
    Record(&'static str),
    /// The host's look at an event that a stream recorded, before it goes on.
    Seen(&'static str),
}

const COPY_IN: &str = "trefoil-copy-in";
const COPY_OUT: &str = "trefoil-copy-out";
const COMPUTE: &str = "trefoil-compute";

/// The second stream of the first program.
const BESIDE: &str = "trefoil-compute.1";
const SECOND: &str = "trefoil-compute-1";
const THIRD: &str = "trefoil-compute-2";

const EDGES: [Edge; 9] = [
    Edge::Wait(COPY_IN, 0),  // `computed`: the slot's input has been read
    Edge::Record(COPY_IN),   // `uploaded`
    Edge::Wait(COMPUTE, 0),  // `uploaded`: the input is there
    Edge::Wait(COMPUTE, 1),  // `done`: the slot's output has been read
    Edge::Record(COMPUTE),   // `computed`
    Edge::Wait(COPY_OUT, 0), // `computed`: the output is there
    Edge::Record(COPY_OUT),  // `done`
    Edge::Seen(COPY_IN),     // `uploaded`: the staging is free
    Edge::Seen(COPY_OUT),    // `done`: the result is there
];

/// The edges of a ring with two compute streams in addition to [`EDGES`]: those of the second stream, which has every
/// other batch.
const BESIDE_EDGES: [Edge; 3] = [
    Edge::Wait(BESIDE, 0), // `uploaded`
    Edge::Wait(BESIDE, 1), // `done`
    Edge::Record(BESIDE),  // `computed`
];

/// The edges of a ring of three programs: the second reads the output of the first, the third reads the uploaded rows
/// too.
const FLOW_EDGES: [Edge; 17] = [
    Edge::Wait(COPY_IN, 0),  // `computed` of the first: it has read the slot's input
    Edge::Wait(COPY_IN, 1),  // `computed` of the third: so has it
    Edge::Record(COPY_IN),   // `uploaded`
    Edge::Wait(COMPUTE, 0),  // `uploaded`
    Edge::Wait(COMPUTE, 1),  // `computed` of the second: it has read the first's output
    Edge::Record(COMPUTE),   // `computed`
    Edge::Wait(SECOND, 0),   // `computed` of the first: its output is there
    Edge::Wait(SECOND, 1),   // `done`: the slot's output has been read
    Edge::Record(SECOND),    // `computed`
    Edge::Wait(THIRD, 0),    // `uploaded`
    Edge::Wait(THIRD, 1),    // `done`
    Edge::Record(THIRD),     // `computed`
    Edge::Wait(COPY_OUT, 0), // `computed` of the second
    Edge::Wait(COPY_OUT, 1), // `computed` of the third
    Edge::Record(COPY_OUT),  // `done`
    Edge::Seen(COPY_IN),     // `uploaded`: the staging is free
    Edge::Seen(COPY_OUT),    // `done`: the result is there
];

/// The edges of a ring of three programs, of which the third reads the outputs of the other two, as the mean of an
/// ensemble does.
const MEAN_EDGES: [Edge; 17] = [
    Edge::Wait(COPY_IN, 0),  // `computed` of the first: it has read the slot's input
    Edge::Wait(COPY_IN, 1),  // `computed` of the second: so has it
    Edge::Record(COPY_IN),   // `uploaded`
    Edge::Wait(COMPUTE, 0),  // `uploaded`
    Edge::Wait(COMPUTE, 1),  // `computed` of the third: it has read the first's output
    Edge::Record(COMPUTE),   // `computed`
    Edge::Wait(SECOND, 0),   // `uploaded`
    Edge::Wait(SECOND, 1),   // `computed` of the third: it has read the second's output
    Edge::Record(SECOND),    // `computed`
    Edge::Wait(THIRD, 0),    // `computed` of the first: its output is there
    Edge::Wait(THIRD, 1),    // `computed` of the second: so is its
    Edge::Wait(THIRD, 2),    // `done`: the slot's output has been read
    Edge::Record(THIRD),     // `computed`
    Edge::Wait(COPY_OUT, 0), // `computed` of the third
    Edge::Record(COPY_OUT),  // `done`
    Edge::Seen(COPY_IN),     // `uploaded`: the staging is free
    Edge::Seen(COPY_OUT),    // `done`: the result is there
];

/// The edges of a batcher, whose rows replace the staging buffers: they are free when the answer is there.
const BATCHER_EDGES: [Edge; 8] = [
    Edge::Wait(COPY_IN, 0),
    Edge::Record(COPY_IN),
    Edge::Wait(COMPUTE, 0),
    Edge::Wait(COMPUTE, 1),
    Edge::Record(COMPUTE),
    Edge::Wait(COPY_OUT, 0),
    Edge::Record(COPY_OUT),
    Edge::Seen(COPY_OUT), // `done`: the answers are there, and the rows free
];

const WRITER: &str = "a caller that writes";
const READER: &str = "a caller that reads";

/// The edges with rows that come from device memory and results that stay there.
const DEVICE_EDGES: [Edge; 10] = [
    Edge::Wait(WRITER, 0),   // `computed`: the slot's input has been read
    Edge::Record(WRITER),    // `uploaded`
    Edge::Wait(COMPUTE, 0),  // `uploaded`: the input is there
    Edge::Wait(COMPUTE, 1),  // `done`: the slot's output has been read
    Edge::Record(COMPUTE),   // `computed`
    Edge::Wait(COPY_OUT, 0), // `read`: the last result there has been read
    Edge::Wait(COPY_OUT, 1), // `computed`: the output is there
    Edge::Record(COPY_OUT),  // `done`
    Edge::Wait(READER, 0),   // `done`: the result is there
    Edge::Record(READER),    // `read`
];

/// A wrapper that passes on all calls except those of one edge.
struct Without {
    inner: Arc<dyn Backend>,
    edge: Option<Edge>,
    state: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    names: HashMap<u64, String>,
    /// The number of waits of the batch so far, by stream.
    waits: HashMap<u64, usize>,
    /// The stream that recorded each event last.
    recorded_on: HashMap<u64, u64>,
}

impl Without {
    /// Whether the edge that `make` makes from a stream's name is the one to leave out.
    fn leaves_out(&self, state: &Seen, stream: u64, make: impl FnOnce(&'static str) -> Edge) -> bool {
        let known = [COPY_IN, COPY_OUT, COMPUTE, BESIDE, SECOND, THIRD, WRITER, READER];
        let name = known.into_iter().find(|name| state.names[&stream] == *name);
        name.is_some_and(|name| self.edge == Some(make(name)))
    }

    fn is_seen_too_early(&self, event: u64) -> bool {
        let state = lock(&self.state);
        state.recorded_on.get(&event).is_some_and(|&stream| self.leaves_out(&state, stream, Edge::Seen))
    }
}

// SAFETY-relevant calls are all passed on as they come; each `unsafe` below is by the caller's contract.
impl Backend for Without {
    fn stream_create(&self, priority: Priority, name: &str) -> Result<u64, Error> {
        let stream = self.inner.stream_create(priority, name)?;
        lock(&self.state).names.insert(stream, name.into());
        Ok(stream)
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.stream_destroy(stream) }
    }

    fn event_create(&self, timing: bool) -> Result<u64, Error> {
        self.inner.event_create(timing)
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.event_destroy(event) }
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        let mut state = lock(&self.state);
        state.recorded_on.insert(event, stream);
        if self.leaves_out(&state, stream, Edge::Record) {
            return Ok(());
        }
        // SAFETY: by the caller.
        unsafe { self.inner.event_record(event, stream) }
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let count = state.waits.entry(stream).or_default();
        let index = std::mem::replace(count, *count + 1);
        if self.leaves_out(&state, stream, |name| Edge::Wait(name, index)) {
            return Ok(());
        }
        // SAFETY: by the caller.
        unsafe { self.inner.stream_wait(stream, event) }
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        if self.is_seen_too_early(event) {
            return Ok(true);
        }
        // SAFETY: by the caller.
        unsafe { self.inner.event_query(event) }
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        if self.is_seen_too_early(event) {
            return Ok(());
        }
        // SAFETY: by the caller.
        unsafe { self.inner.event_wait(event) }
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.elapsed_ms(start, end) }
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.notify(stream, signal) }
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        self.inner.host_alloc(bytes)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.host_free(ptr, bytes) }
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        self.inner.device_alloc(bytes)
    }

    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.device_free(addr, bytes) }
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.copy_in(dst, src, bytes, stream) }
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.copy_out(dst, src, bytes, stream) }
    }

    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.copy_rows(dst, dst_pitch, rows) }
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.copy_on_device(dst, src, bytes, stream) }
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.admit_stream(stream) }
    }

    fn admit_memory(&self, addr: u64) -> Result<(), Error> {
        self.inner.admit_memory(addr)
    }

    unsafe fn launch(&self, program: &Arc<dyn Program>, run: Run, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.inner.launch(program, run, stream) }
    }

    fn note(&self, note: Note) -> Result<(), Error> {
        if matches!(note, Note::Batch { .. }) {
            lock(&self.state).waits.clear();
        }
        self.inner.note(note)
    }
}

const ROWS: usize = 4;
const SPEC: fn() -> RowSpec = || RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);

/// The programs of a ring.
#[derive(Clone, Copy, Debug)]
enum Programs {
    One,
    /// One program on two compute streams.
    SideBySide,
    /// One program on two compute streams that write the same memory.
    OneArena,
    /// One program, in a ring of a fleet.
    OneOfAFleet,
    /// One program with a state.
    WithState,
    /// Three programs with the edges of [`FLOW_EDGES`].
    Flow,
    /// Three programs with the edges of [`MEAN_EDGES`].
    Mean,
}

/// A state of eight bytes for each row.
fn state(device: &Device) -> StateBuffer {
    let row = RowSpec::new([("state", Dtype::U8, vec![8])]).ports()[0].clone();
    StateBuffer::new(device, row, ROWS).unwrap()
}

/// A program that reads the outputs of two others, and copies that of the first.
struct ReadsTwo {
    first: Arc<SimProgram>,
    other: Arc<dyn Program>,
}

impl Program for ReadsTwo {
    fn slots(&self) -> usize {
        self.first.slots()
    }

    fn batch_sizes(&self) -> &[usize] {
        self.first.batch_sizes()
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        self.first.input(slot)
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        self.first.output(slot)
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        let other = self.other.output(run.slot).span_of(run.rows * ROW_ALIGN);
        [self.first.touches(run), vec![(other, Access::Read)]].concat()
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        // SAFETY: by the caller.
        unsafe { self.first.clone().launch(run, stream) }
    }
}

/// A checked ring of two slots and one program on the simulated device, without one of the edges.
fn ring(edge: Option<Edge>, results: usize) -> (Device, Result<Arc<Core>, Error>) {
    ring_of(edge, results, Programs::One)
}

/// A checked ring of two slots on the simulated device, of one program or several, without one of the edges.
fn ring_of(edge: Option<Edge>, results: usize, programs: Programs) -> (Device, Result<Arc<Core>, Error>) {
    let rate = 1e9;
    let link = Link { in_alone: rate, in_duplex: rate, out_alone: rate, out_duplex: rate, overhead: 1000 };
    let side_by_side = SideBySide { most: 2, gain: 0.5 };
    let (sim, info) = Sim::new(SimOptions { link, side_by_side, injections: Vec::new(), polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let device = device.wrapped(|inner| Arc::new(Without { inner, edge, state: Mutex::default() }));
    let program = || SimProgram::new(&device, &sim, &[(ROWS, 1_000_000)], ROW_ALIGN, 2).unwrap();
    let first: Arc<dyn Program> = Arc::new(match programs {
        Programs::SideBySide => program().on_streams(&device, 2).unwrap(),
        Programs::OneArena => program().on_streams(&device, 2).unwrap().with_one_arena(),
        Programs::WithState => program().with_state(state(&device)),
        _ => program(),
    });
    let mut nodes = vec![Node { program: first.clone(), reads: Vec::new() }];
    let after = || program().reading(Inputs::OutputOf(first.clone()));
    let beside = || -> Arc<dyn Program> { Arc::new(program().reading(Inputs::InputOf(first.clone()))) };
    match programs {
        Programs::One | Programs::SideBySide | Programs::OneArena | Programs::OneOfAFleet | Programs::WithState => {}
        Programs::Flow => {
            nodes.push(Node { program: Arc::new(after()), reads: vec![0] });
            nodes.push(Node { program: beside(), reads: Vec::new() });
        }
        Programs::Mean => {
            let other = beside();
            nodes.push(Node { program: other.clone(), reads: Vec::new() });
            nodes.push(Node { program: Arc::new(ReadsTwo { first: Arc::new(after()), other }), reads: vec![0, 1] });
        }
    }
    let outputs = if matches!(programs, Programs::Flow) { 2 } else { 1 };
    let spec = RingSpec {
        staging: 3,
        results,
        priority: Priority::Normal,
        acquire_limit: Duration::from_secs(10),
        waiting: Waiting::default(),
        output_kind: OutputKind::Features,
        buckets: Buckets::one(nodes[0].program.batch_sizes(), SPEC(), vec![SPEC(); outputs]),
        classes: vec![0; outputs],
        device_results: true,
        freed: matches!(programs, Programs::OneOfAFleet).then(Arc::default),
    };
    let core = Core::build_flow(&device, nodes, spec);
    (device, core)
}

/// Submits twenty batches of changing rows; up to four answers are left unread. Returns whether each was answered with
/// its own rows.
fn use_ring(core: &Arc<Core>) -> Result<bool, Error> {
    let mut right = true;
    let mut tickets: VecDeque<(u8, Ticket)> = VecDeque::new();
    for number in 0..20_u8 {
        let rows = 1 + usize::from(number) % ROWS;
        let mut batch = core.acquire(Duration::from_secs(1))?;
        batch.rows_mut().take(rows).for_each(|row| row.fill(number));
        tickets.push_back((number, batch.submit(rows)?));
        if tickets.len() > 4 {
            let (number, ticket) = tickets.pop_front().expect("just counted");
            let output = ticket.wait()?;
            let is_echo = |part: usize| {
                (0..output.rows()).all(|row| output.part(part).row(row).iter().all(|&byte| byte == number))
            };
            right &= (0..output.parts()).all(is_echo);
        }
    }
    tickets.into_iter().try_for_each(|(_, ticket)| ticket.wait().map(drop))?;
    Ok(right)
}

#[test]
fn the_ring_has_no_hazard() {
    for programs in [Programs::One, Programs::SideBySide, Programs::OneOfAFleet, Programs::Flow, Programs::Mean] {
        let (device, core) = ring_of(None, 6, programs);
        assert!(use_ring(&core.unwrap()).unwrap(), "{programs:?}");
        assert!(device.fault().is_none(), "{programs:?}: {:?}", device.fault());
    }
}

#[test]
fn each_edge_is_missed_when_it_is_left_out() {
    // In a ring of a fleet, the staging is free when the answer is there.
    let of_a_fleet = EDGES.into_iter().filter(|edge| *edge != Edge::Seen(COPY_IN));
    let with = |programs| move |edge| (edge, programs);
    let edges = EDGES.into_iter().map(with(Programs::One));
    let beside = EDGES.into_iter().chain(BESIDE_EDGES);
    let edges = edges.chain(beside.map(with(Programs::SideBySide)));
    let edges = edges.chain(of_a_fleet.map(with(Programs::OneOfAFleet)));
    let edges = edges.chain(FLOW_EDGES.into_iter().map(with(Programs::Flow)));
    for (edge, programs) in edges.chain(MEAN_EDGES.into_iter().map(with(Programs::Mean))) {
        let (device, core) = ring_of(Some(edge), 6, programs);
        // Without an edge, rows may be wrong before the checker finds the hazard; it must find it all the same.
        let used = use_ring(&core.unwrap());
        let fault = device.fault().unwrap_or_else(|| panic!("{edge:?} of {programs:?} is not missed: {used:?}"));
        let Error::Fault { cause, .. } = &fault else { panic!("{fault:?}") };
        assert!(matches!(**cause, Error::Hazard { .. }), "{edge:?} of {programs:?}: {fault}");
    }
}

/// No edge orders the runs of two compute streams, so that each needs memory of its own.
#[test]
fn an_arena_that_two_compute_streams_share_is_a_hazard() {
    let (device, core) = ring_of(None, 6, Programs::OneArena);
    let used = use_ring(&core.unwrap());
    let fault = device.fault().unwrap_or_else(|| panic!("not found: {used:?}")).to_string();
    assert!(fault.contains("a write by launch on trefoil-compute.1 after a write by launch"), "{fault}");
}

/// States are zeros at first; then they are read, written and reset between batches in flight.
#[test]
fn states_are_in_the_order_of_the_batches() {
    let (device, core) = ring_of(None, 6, Programs::WithState);
    let core = core.unwrap();
    let mut found = [1; 8 * ROWS];
    let mut batches = |wanted: u8| {
        let submit = || core.acquire(Duration::from_secs(1)).unwrap().submit(ROWS).unwrap();
        let tickets = [(); 3].map(|()| submit());
        core.read_state("state", &mut found).unwrap();
        assert_eq!(found, [wanted; 8 * ROWS]);
        tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    };
    batches(0);
    core.write_state("state", &[7; 8 * ROWS]).unwrap();
    batches(7);
    core.reset_states();
    batches(0);
    assert!(device.fault().is_none(), "{:?}", device.fault());
}

/// Only the stream orders the runs of a program with a state: runs on another stream are a hazard.
#[test]
fn batches_with_a_state_side_by_side_are_a_hazard() {
    let (device, core) = ring_of(None, 6, Programs::WithState);
    let core = core.unwrap();
    let program = core.runners[0].program.clone();
    let [one, other] = ["one", "other"].map(|name| Stream::new(&device, Priority::Normal, name).unwrap());
    one.launch(&program, Run { slot: 0, size: 0, rows: 1 }).unwrap();
    let hazard = other.launch(&program, Run { slot: 1, size: 0, rows: 1 }).unwrap_err().to_string();
    assert!(hazard.contains("nothing orders a write by launch on other"), "{hazard}");
}

/// In a ring of a fleet, the event after the answer frees the staging, not the event after the upload.
#[test]
fn staging_of_a_fleet_is_free_when_the_answer_is_there() {
    let (device, core) = ring_of(Some(Edge::Seen(COPY_IN)), 6, Programs::OneOfAFleet);
    assert!(use_ring(&core.unwrap()).unwrap());
    assert!(device.fault().is_none(), "{:?}", device.fault());
    let (device, core) = ring_of(Some(Edge::Seen(COPY_OUT)), 6, Programs::OneOfAFleet);
    // No answer is waited for: the hazard is the fourth producer's turn at the first staging buffer.
    let core = core.unwrap();
    let tickets: Vec<_> = (0..3).map(|_| core.acquire(Duration::ZERO).unwrap().submit(1).unwrap()).collect();
    drop(core.acquire(Duration::ZERO));
    let fault = device.fault().expect("the edge is missed").to_string();
    assert!(fault.contains("a write by the host after a read by copy_in"), "{fault}");
    drop(tickets);
}

/// Submits twenty batches of changing rows that a caller's stream writes on the device; another stream reads the
/// results there. Up to four results are held. Returns whether each was right.
fn use_on_device(device: &Device, core: &Arc<Core>) -> Result<bool, Error> {
    let [writer, reader] = [WRITER, READER].map(|name| Stream::new(device, Priority::Normal, name).unwrap());
    let [from, to] = [&writer, &reader].map(CallerStream::of);
    const PITCH: usize = ROW_ALIGN + 32;
    let memory: Vec<[u8; ROWS * PITCH]> = (0..20).map(|number| [number; _]).collect();
    let mut right = true;
    let mut outputs: VecDeque<(u8, DeviceOutput)> = VecDeque::new();
    let mut check = |(number, output): (u8, DeviceOutput)| {
        output.wait()?;
        // SAFETY: the simulated device's memory is the host's, and the output keeps it.
        let bytes = unsafe { std::slice::from_raw_parts(output.addr() as *const u8, output.rows() * ROW_ALIGN) };
        right &= bytes.iter().all(|&byte| byte == number);
        Ok(())
    };
    for (number, memory) in (0..).zip(&memory) {
        let mut batch = core.acquire(Duration::from_secs(1))?;
        // SAFETY: the memory lives as long as this function, which waits for all batches but after a fault, when the
        // simulated device does nothing more.
        unsafe { batch.read_from(DeviceRows { addr: memory.as_ptr() as u64, pitch: PITCH, stream: from })? };
        let mut output = batch.submit_to_device(1 + usize::from(number) % ROWS)?;
        output.wait_on(to)?;
        output.read_on(to)?;
        outputs.push_back((number, output));
        if outputs.len() > 4 {
            check(outputs.pop_front().expect("just counted"))?;
        }
    }
    outputs.into_iter().try_for_each(check)?;
    Ok(right)
}

#[test]
fn rows_and_results_on_the_device_have_no_hazard_and_miss_each_edge() {
    for edge in std::iter::once(None).chain(DEVICE_EDGES.map(Some)) {
        let (device, core) = ring(edge, 6);
        let core = core.unwrap();
        let used = use_on_device(&device, &core);
        let ring = Arc::downgrade(&core);
        core.leave();
        drop(core);
        while ring.strong_count() > 0 {
            std::thread::yield_now(); // what was handed back keeps it until it was read
        }
        match (edge, device.fault()) {
            (None, None) => assert!(used.unwrap()),
            (Some(_), Some(Error::Fault { cause, .. })) if matches!(*cause, Error::Hazard { .. }) => {}
            (edge, fault) => panic!("{edge:?}: {fault:?}, {used:?}"),
        }
    }
}

/// Rows are submitted a few batches ahead of their answers, which are held for a while.
#[test]
fn a_batcher_has_no_hazard_and_misses_each_edge() {
    for edge in std::iter::once(None).chain(BATCHER_EDGES.map(Some)) {
        let (device, core) = ring(edge, 18); // as many as there are tickets and answers
        let core = core.unwrap();
        let batcher = BatcherBuilder::new(&core).rows(24).max_delay(Duration::ZERO).build().unwrap();
        let (mut tickets, mut answers) = (VecDeque::new(), VecDeque::new());
        let _stopped_at_a_fault = (0..400_u16).try_for_each(|number| {
            let mut row = batcher.row()?;
            row.bytes_mut().fill(number as u8);
            tickets.push_back(row.submit()?);
            if tickets.len() > 12 {
                answers.push_back(tickets.pop_front().expect("just counted").wait()?);
            }
            if answers.len() > 4 {
                answers.pop_front();
            }
            Ok::<_, Error>(())
        });
        drop((tickets, answers));
        drop((batcher, core));
        match (edge, device.fault()) {
            (None, None) => {}
            (Some(_), Some(Error::Fault { cause, .. })) if matches!(*cause, Error::Hazard { .. }) => {}
            (edge, fault) => panic!("{edge:?}: {fault:?}"),
        }
    }
}

#[test]
fn a_hazard_says_what_where_and_who() {
    let (device, core) = ring(Some(Edge::Wait(COMPUTE, 0)), 6);
    let error = use_ring(&core.unwrap()).unwrap_err();
    let text = device.fault().unwrap().to_string();
    for part in ["device memory", "bytes 0 to 256 of 1024", "a read by launch on trefoil-compute", "a write by copy_in"]
    {
        assert!(text.contains(part), "`{part}` is missing: {text} ({error})");
    }
}
