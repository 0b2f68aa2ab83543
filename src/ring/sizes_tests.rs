//! Tests of rings of several sizes whose programs read one another, on the simulated device with the hazard checker.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::bucket::Extent;
use super::{BatcherBuilder, Buckets, Close, Core, Node, RingSpec, RowBucket, Ticket, Waiting};
use crate::device::sim::{Link, SideBySide, Sim, SimOptions, SimProgram};
use crate::device::{Device, Inputs, Kind, Priority, Program};
use crate::tensor::{Bucket, Dtype, OutputKind, ROW_ALIGN, RowSpec, Size};

const LONG: Duration = Duration::from_secs(20);

/// The sizes, with the time of a batch of each in picoseconds: those of short rows first.
const SIZES: [(usize, u64); 3] = [(1, 2_000_000), (3, 5_000_000), (4, 9_000_000)];

fn bucket(length: usize, batch_sizes: &[usize], outputs: usize) -> RowBucket {
    let row = |name| RowSpec::new([(name, Dtype::U8, vec![length])]);
    assert_eq!(row("x").row_pitch, ROW_ALIGN, "what a simulated program moves");
    let sizes = Bucket { dims: [("length".to_owned(), length)].into(), batch_sizes: batch_sizes.to_vec() };
    RowBucket { sizes, input: row("x"), outputs: vec![row("y"); outputs] }
}

/// A ring of four programs: one, two that read its output, and one that reads the output of the second. Rows have 40
/// elements in batches of 1 and 3, and 200 elements in batches of 4.
fn ring(streams: usize) -> (Device, Arc<Core>) {
    let link = Link { in_alone: 1e9, in_duplex: 1e9, out_alone: 1e9, out_duplex: 1e9, overhead: 1000 };
    let side_by_side = SideBySide { most: 4, gain: 0.5 };
    let (sim, info) = Sim::new(SimOptions { link, side_by_side, injections: Vec::new(), polls_advance: true });
    let sim = Arc::new(sim);
    let device = Device::new(Kind::Sim(sim.clone()), info).checked();
    let program = || {
        let program = SimProgram::new(&device, &sim, &SIZES, ROW_ALIGN, 2 * streams).unwrap();
        program.on_streams(&device, streams).unwrap()
    };
    let first: Arc<dyn Program> = Arc::new(program());
    let after = |program: &Arc<dyn Program>, of: SimProgram| -> Arc<dyn Program> {
        Arc::new(of.reading(Inputs::OutputOf(program.clone())))
    };
    let (second, third) = (after(&first, program()), after(&first, program()));
    let last = after(&second, program());
    let nodes = [(first, vec![]), (second, vec![0]), (third, vec![0]), (last, vec![1])];
    let spec = RingSpec {
        staging: 4,
        results: 6,
        priority: Priority::Normal,
        acquire_limit: LONG,
        waiting: Waiting::default(),
        output_kind: OutputKind::Features,
        buckets: Buckets::new(vec![bucket(40, &[1, 3], 2), bucket(200, &[4], 2)], BTreeSet::new()),
        classes: vec![0; 2],
        device_results: false,
        freed: None,
    };
    let nodes = nodes.into_iter().map(|(program, reads)| Node { program, reads }).collect();
    let core = Core::build_flow(&device, nodes, spec).unwrap();
    (device, core)
}

/// Checks that both programs whose outputs are downloaded have answered a batch of `rows` rows.
fn check(ticket: Ticket, number: u8, rows: usize, length: usize) {
    let output = ticket.wait().unwrap();
    assert_eq!((output.rows(), output.parts()), (rows, 2));
    for part in 0..2 {
        assert_eq!(output.part(part).spec().row_bytes, length);
        (0..rows).for_each(|row| assert_eq!(output.part(part).row(row), vec![number + row as u8; length]));
    }
}

#[test]
fn batches_of_all_sizes_pass_through_programs_that_read_one_another() {
    for streams in [1, 2] {
        let (device, core) = ring(streams);
        let mut tickets = VecDeque::new();
        for number in 0..60_u8 {
            let (length, rows) = [(40, 1), (200, 4), (40, 3), (200, 2), (40, 2)][usize::from(number) % 5];
            let wanted = core.spec().buckets.holding(&Size::new(rows).dim("length", length)).unwrap();
            let mut batch = core.acquire(LONG).unwrap().in_bucket(wanted);
            assert_eq!((batch.capacity(), batch.spec().row_bytes), (if length == 40 { 3 } else { 4 }, length));
            batch.rows_mut().take(rows).enumerate().for_each(|(row, bytes)| bytes.fill(number + row as u8));
            tickets.push_back((batch.submit(rows).unwrap(), number, rows, length));
            if tickets.len() > 4 {
                let (ticket, number, rows, length) = tickets.pop_front().expect("just counted");
                check(ticket, number, rows, length);
            }
        }
        tickets.into_iter().for_each(|(ticket, number, rows, length)| check(ticket, number, rows, length));
        assert!(device.fault().is_none(), "{:?}", device.fault());
    }
}

/// Every program runs a batch at the size of the batch's bucket.
#[test]
fn sizes_are_numbered_one_bucket_after_the_other() {
    let (_, core) = ring(1);
    let size = |bucket, rows| core.spec().buckets.size_for(Extent { bucket, rows });
    assert_eq!([size(0, 1), size(0, 2), size(0, 3), size(1, 1), size(1, 4)], [0, 1, 1, 2, 2]);
    assert!(core.runners.iter().all(|runner| runner.program.batch_sizes() == SIZES.map(|(rows, _)| rows)));
}

#[test]
fn a_batcher_feeds_all_buckets_of_programs_that_read_one_another() {
    let (device, core) = ring(2);
    let batcher = BatcherBuilder::new(&core).rows(24).max_delay(Duration::ZERO).build().unwrap();
    let mut tickets = VecDeque::new();
    for number in 0..200_u8 {
        let length = if number % 3 == 0 { 200 } else { 40 };
        let mut row = batcher.request().size(&Size::new(1).dim("length", length)).unwrap().row().unwrap();
        row.bytes_mut().fill(number);
        tickets.push_back((row.submit().unwrap(), number, length));
        // Each batch in flight has a result of its own; the ring has six.
        if tickets.len() > 5 {
            let (ticket, number, length) = tickets.pop_front().expect("just counted");
            assert_eq!(ticket.wait().unwrap().bytes(), vec![number; length]);
        }
    }
    tickets
        .into_iter()
        .for_each(|(ticket, number, length)| assert_eq!(ticket.wait().unwrap().bytes(), vec![number; length]));
    batcher.close(Close::Drain, LONG).unwrap();
    assert!(device.fault().is_none(), "{:?}", device.fault());
}
