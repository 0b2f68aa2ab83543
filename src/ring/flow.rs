//! The programs that a ring runs on each batch: one, or several, some of which read the results of others.

use std::sync::Arc;

use crate::device::{Device, Event, Priority, Program, Run, Stream};
use crate::error::Error;

/// A program of a ring. All programs of one ring have the same slots and batch sizes.
pub(crate) struct Node {
    pub program: Arc<dyn Program>,
    /// The indices of the earlier programs whose outputs it reads; empty if it reads the uploaded rows.
    pub reads: Vec<usize>,
}

/// A program with the ring's streams and events for it.
pub(super) struct Runner {
    pub program: Arc<dyn Program>,
    /// The compute streams, as many as the program was built for; the slots use them in turn.
    streams: Vec<Stream>,
    /// For each slot, the event after its last run: the run has read its inputs and written its output.
    pub computed: Vec<Event>,
    pub reads: Vec<usize>,
    /// The indices of the later programs that read its output; if there are none, the output is downloaded.
    pub readers: Vec<usize>,
}

impl Runner {
    /// The runners of `nodes`, in the same order.
    pub fn all(device: &Device, priority: Priority, nodes: Vec<Node>) -> Result<Vec<Self>, Error> {
        let slots = nodes[0].program.slots();
        let readers = |index| (0..nodes.len()).filter(|&reader: &usize| nodes[reader].reads.contains(&index)).collect();
        let readers: Vec<Vec<usize>> = (0..nodes.len()).map(readers).collect();
        let runner = |(index, (Node { program, reads }, readers)): (usize, (Node, Vec<usize>))| {
            assert!(
                reads.iter().all(|&read| read < index) && program.slots() == slots,
                "programs in order, of one ring"
            );
            let name = if index == 0 { "trefoil-compute".into() } else { format!("trefoil-compute-{index}") };
            let name = |turn| if turn == 0 { name.clone() } else { format!("{name}.{turn}") };
            let streams = (0..program.streams()).map(|turn| Stream::new(device, priority, &name(turn)));
            let streams = streams.collect::<Result<_, _>>()?;
            let computed = (0..slots).map(|_| Event::new(device)).collect::<Result<_, _>>()?;
            Ok(Self { program, streams, computed, reads, readers })
        };
        nodes.into_iter().zip(readers).enumerate().map(runner).collect()
    }

    /// The number of streams that it computes on.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// The stream that a slot computes on.
    pub fn stream(&self, slot: usize) -> &Stream {
        &self.streams[slot % self.streams.len()]
    }

    /// Whether it reads the uploaded rows.
    pub fn reads_upload(&self) -> bool {
        self.reads.is_empty()
    }

    /// Whether its output is downloaded.
    pub fn is_downloaded(&self) -> bool {
        self.readers.is_empty()
    }

    /// Makes the next run on a slot wait for the run on the previous slot, unless their stream orders them.
    pub fn wait_for_turn(&self, slot: usize) -> Result<(), Error> {
        if self.streams() == 1 {
            return Ok(());
        }
        let before = slot.checked_sub(1).unwrap_or(self.computed.len() - 1);
        self.stream(slot).wait(&self.computed[before])
    }

    /// Enqueues a run, ordered with the other programs' runs: after `uploaded`, and, if the slot's output is
    /// downloaded, after its `last` download.
    pub fn enqueue(&self, all: &[Self], run: Run, uploaded: &Event, last: Option<&Event>) -> Result<(), Error> {
        let stream = self.stream(run.slot);
        if self.reads_upload() {
            stream.wait(uploaded)?;
        }
        for &other in self.reads.iter().chain(&self.readers) {
            stream.wait(&all[other].computed[run.slot])?;
        }
        if let Some(last) = last.filter(|_| self.is_downloaded()) {
            stream.wait(last)?;
        }
        stream.launch(&self.program, run)?;
        self.computed[run.slot].record(stream)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::cpu::Work;
    use crate::device::{Access, DeviceBuffer, Inputs, Kind, Span, Target};
    use crate::ring::{Buckets, Core, RingSpec, Waiting};
    use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

    const LONG: Duration = Duration::from_secs(20);

    /// A CPU program that runs a closure.
    struct Calls {
        device: Device,
        inputs: Inputs,
        outputs: Vec<DeviceBuffer>,
        call: Box<dyn Fn() + Send + Sync>,
    }

    impl Calls {
        fn program(
            device: &Device,
            inputs: Option<Inputs>,
            call: impl Fn() + Send + Sync + 'static,
        ) -> Arc<dyn Program> {
            let buffers = || (0..2).map(|_| DeviceBuffer::new(device, ROW_ALIGN).unwrap()).collect();
            let inputs = inputs.unwrap_or_else(|| Inputs::Own(buffers()));
            Arc::new(Self { device: device.clone(), inputs, outputs: buffers(), call: Box::new(call) })
        }
    }

    impl Work for Calls {
        fn run(&self, _run: Run) {
            (self.call)();
        }
    }

    impl Program for Calls {
        fn slots(&self) -> usize {
            self.outputs.len()
        }

        fn batch_sizes(&self) -> &[usize] {
            &[1]
        }

        fn input(&self, slot: usize) -> &DeviceBuffer {
            self.inputs.at(slot)
        }

        fn output(&self, slot: usize) -> &DeviceBuffer {
            &self.outputs[slot]
        }

        fn touches(&self, run: Run) -> Vec<(Span, Access)> {
            let read = (self.input(run.slot).span_of(ROW_ALIGN), Access::Read);
            vec![read, (self.output(run.slot).span_of(ROW_ALIGN), Access::Write)]
        }

        unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
            let Kind::Cpu(cpu) = self.device.kind() else { unreachable!("made for the CPU") };
            cpu.clone().enqueue(stream, self, run)
        }
    }

    fn ring(device: &Device, nodes: Vec<Node>, outputs: usize) -> Arc<Core> {
        let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);
        let spec = RingSpec {
            staging: 4,
            results: 4,
            priority: Priority::Normal,
            acquire_limit: LONG,
            waiting: Waiting::Block,
            output_kind: OutputKind::Features,
            buckets: Buckets::one(&[1], row.clone(), vec![row; outputs]),
            classes: vec![0; outputs],
            device_results: false,
            freed: None,
        };
        Core::build_flow(device, nodes, spec).unwrap()
    }

    /// Counts, and waits until the count is `until`.
    fn meet(count: &AtomicUsize, until: usize) {
        let end = Instant::now() + LONG;
        while count.load(Ordering::SeqCst) < until {
            assert!(Instant::now() < end, "nothing ran beside this");
            thread::yield_now();
        }
    }

    /// The second program ends its first run only when the first program has begun its second run.
    #[test]
    fn programs_on_successive_batches_overlap() {
        let device = Device::open(Target::Cpu).unwrap().checked();
        let begun = Arc::new(AtomicUsize::new(0));
        let (counts, waits) = (begun.clone(), begun);
        let first = Calls::program(&device, None, move || {
            counts.fetch_add(1, Ordering::SeqCst);
        });
        let second = Calls::program(&device, Some(Inputs::OutputOf(first.clone())), move || meet(&waits, 2));
        let nodes = vec![Node { program: first, reads: vec![] }, Node { program: second, reads: vec![0] }];
        let core = ring(&device, nodes, 1);
        let tickets = [(); 2].map(|()| core.acquire(LONG).unwrap().submit(1).unwrap());
        tickets.into_iter().for_each(|ticket| drop(ticket.wait().unwrap()));
    }

    /// Each of two programs ends its run only when the other has begun its own.
    #[test]
    fn programs_that_read_the_same_run_at_the_same_time() {
        let device = Device::open(Target::Cpu).unwrap().checked();
        let begun = Arc::new(AtomicUsize::new(0));
        let program = |inputs| {
            let begun = begun.clone();
            Calls::program(&device, inputs, move || {
                begun.fetch_add(1, Ordering::SeqCst);
                meet(&begun, 2);
            })
        };
        let first = program(None);
        let second = program(Some(Inputs::InputOf(first.clone())));
        let nodes = vec![Node { program: first, reads: vec![] }, Node { program: second, reads: vec![] }];
        let core = ring(&device, nodes, 2);
        assert_eq!(core.acquire(LONG).unwrap().submit(1).unwrap().wait().unwrap().parts(), 2);
    }
}
