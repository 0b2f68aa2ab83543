//! Rings beside each other on one device, in virtual time: how long one waits for another, and that none starves.
//! `docs/semantics.md` names these tests.
//!
//! A bulk ring's uploads take 8 ms and its model 4 ms; a small ring's take 1 ms and 0.1 ms.

use std::sync::Arc;
use std::time::Duration;

use super::{Buckets, Core, RingSpec, Ticket, Waiting};
use crate::device::sim::{Link, Picos, SideBySide, Sim, SimOptions, SimProgram};
use crate::device::{Device, Kind, Priority};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

const MS: Picos = 1_000_000_000;
const BULK_UPLOAD: Picos = 8 * MS;
const BULK_MODEL: Picos = 4 * MS;
const SMALL_UPLOAD: Picos = MS;
const SMALL_MODEL: Picos = MS / 10;

struct Setup {
    sim: Arc<Sim>,
    device: Device,
}

/// The load of a ring: the rows of a batch, each of which takes 1 ms to upload, the time of its model, and its
/// priority.
#[derive(Clone, Copy)]
struct Load {
    rows: usize,
    model: Picos,
    priority: Priority,
}

const BULK: Load = Load { rows: 8, model: BULK_MODEL, priority: Priority::Normal };
const SMALL: Load = Load { rows: 1, model: SMALL_MODEL, priority: Priority::Normal };
const URGENT: Load = Load { priority: Priority::High, ..SMALL };

impl Setup {
    /// A device with a link on which a row takes 1 ms, and downloads almost nothing.
    fn new() -> Self {
        let (rate_in, rate_out) = (ROW_ALIGN as f64 * 1e3, ROW_ALIGN as f64 * 1e9);
        let link =
            Link { in_alone: rate_in, in_duplex: rate_in, out_alone: rate_out, out_duplex: rate_out, overhead: 0 };
        let (sim, info) = Sim::new(SimOptions {
            link,
            side_by_side: SideBySide::default(),
            injections: Vec::new(),
            polls_advance: false,
        });
        let sim = Arc::new(sim);
        let device = Device::new(Kind::Sim(sim.clone()), info).checked();
        Self { sim, device }
    }

    fn ring(&self, load: Load) -> Ring {
        let program = SimProgram::new(&self.device, &self.sim, &[(load.rows, load.model)], ROW_ALIGN, 3).unwrap();
        let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);
        let spec = RingSpec {
            staging: 6,
            results: 12,
            priority: load.priority,
            acquire_limit: Duration::ZERO,
            waiting: Waiting::Callback,
            output_kind: OutputKind::Features,
            buckets: Buckets::one(&[load.rows], row.clone(), vec![row]),
            classes: vec![0],
            device_results: false,
            freed: None,
        };
        let core = Core::build(&self.device, Arc::new(program), spec).unwrap();
        Ring { core, rows: load.rows, tickets: Vec::new(), answered: 0 }
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.sim.drain();
        self.device.assert_healthy();
    }
}

struct Ring {
    core: Arc<Core>,
    rows: usize,
    tickets: Vec<Ticket>,
    answered: usize,
}

impl Ring {
    fn submit(&mut self) {
        let batch = self.core.acquire(Duration::ZERO).unwrap();
        self.tickets.push(batch.submit(self.rows).unwrap());
    }

    /// Takes the answers that are there; returns their number.
    fn answers(&mut self) -> usize {
        let ready: Vec<Ticket> = self.tickets.extract_if(.., |ticket| ticket.is_ready().unwrap()).collect();
        ready.into_iter().map(|ticket| ticket.wait().unwrap().rows() / self.rows).sum()
    }

    /// Takes the answers that are there, and submits the same number again, so that four are always in flight.
    fn keep_busy(&mut self) {
        self.answered += self.answers();
        while self.tickets.len() < 4 {
            self.submit();
        }
    }
}

/// The times of many single batches of one ring beside busy others, submitted at irregular times.
fn latencies(load: Load, beside: &[Load]) -> Vec<Picos> {
    let setup = Setup::new();
    let mut bulk: Vec<Ring> = beside.iter().map(|&load| setup.ring(load)).collect();
    let mut ring = setup.ring(load);
    let (mut latencies, mut submitted) = (Vec::new(), 0);
    for step in 0..20_000 {
        let now = step * MS / 20;
        setup.sim.advance_to(now);
        bulk.iter_mut().for_each(Ring::keep_busy);
        if ring.answers() > 0 {
            latencies.push(now - submitted);
        }
        // The intervals fit no rhythm of the other rings.
        if ring.tickets.is_empty() && now >= submitted + MS * (13 + 7 * (latencies.len() as Picos % 11)) / 3 {
            ring.submit();
            submitted = now;
        }
    }
    assert!(latencies.len() > 50 && bulk.iter().all(|ring| ring.answered > 20), "{}", latencies.len());
    latencies
}

#[test]
fn an_urgent_batch_waits_for_one_upload_and_one_run_of_others_at_most() {
    let own = SMALL_UPLOAD + SMALL_MODEL + MS / 20; // to the next look
    let bound = own + BULK_UPLOAD + BULK_MODEL;
    for beside in [&[BULK; 1][..], &[BULK; 3]] {
        let most = latencies(URGENT, beside).into_iter().max().unwrap();
        assert!(most <= bound, "{most} beside {}", beside.len());
        assert!(most > own + BULK_UPLOAD / 2, "never in the way: the test shows nothing");
    }
}

#[test]
fn a_batch_of_no_priority_waits_for_one_upload_and_one_run_of_each_other_ring_at_most() {
    for others in [1, 2] {
        let most = latencies(SMALL, &[BULK; 2][..others]).into_iter().max().unwrap();
        let bound = SMALL_UPLOAD + SMALL_MODEL + others as Picos * (BULK_UPLOAD + BULK_MODEL) + MS / 20;
        assert!(most <= bound, "{most} beside {others}");
    }
}

#[test]
fn equal_rings_get_equal_shares_and_small_ones_do_not_starve() {
    let setup = Setup::new();
    let mut rings = [BULK, BULK, SMALL].map(|load| setup.ring(load));
    for step in 0..4000 {
        setup.sim.advance_to(step * MS / 4);
        rings.iter_mut().for_each(Ring::keep_busy);
    }
    let [one, other, small] = rings.each_ref().map(|ring| ring.answered);
    assert!(one.abs_diff(other) <= 1 && one > 50, "{one} and {other}");
    // Uploads take turns: a small one for each of the bulk ring's.
    assert!(small + 2 >= one, "{small} small ones beside {one}");
}
