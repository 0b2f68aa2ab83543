//! One schedule: a device, one or two rings, the producers, and the dice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use super::producer::Producer;
use super::{LEAST_PRODUCERS, LEAST_SLOTS, LEAST_SUBMISSIONS};
use crate::device::sim::{Effect, Injection, Link, Picos, SideBySide, Sim, SimOptions, SimProgram, Unit};
use crate::device::{Device, Kind, Priority, Program};
use crate::ring::completion::Completion;
use crate::ring::{Buckets, Close, Core, Node, RingSpec, Waiting};
use crate::tensor::{Dtype, OutputKind, ROW_ALIGN, RowSpec};

/// The counts of one schedule, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// A hash of the order of all steps of the host and the device.
    pub hash: u64,
    pub submitted: usize,
    pub answered: usize,
    pub abandoned: usize,
    /// Submissions and tickets that were answered with the device's fault.
    pub errors: usize,
    /// Batches that were dropped without a submission.
    pub given_back: usize,
    /// Acquires and waits that reached their limit.
    pub timeouts: usize,
    /// Waits that blocked until the device was done.
    pub blocked: usize,
    /// Wakers that were woken.
    pub woken: usize,
    pub closed: usize,
}

impl Outcome {
    pub fn add(&mut self, other: &Self) {
        self.hash ^= other.hash;
        for (sum, more) in [
            (&mut self.submitted, other.submitted),
            (&mut self.answered, other.answered),
            (&mut self.abandoned, other.abandoned),
            (&mut self.errors, other.errors),
            (&mut self.given_back, other.given_back),
            (&mut self.timeouts, other.timeouts),
            (&mut self.blocked, other.blocked),
            (&mut self.woken, other.woken),
            (&mut self.closed, other.closed),
        ] {
            *sum += more;
        }
    }

    /// Adds an event to the hash of the order.
    pub fn mark(&mut self, what: u64) {
        self.hash = (self.hash ^ what).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(17);
    }
}

/// A splitmix64 generator.
pub(super) struct Dice(u64);

impl Dice {
    /// A number below `bound`.
    pub fn roll(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    /// True once in `often` rolls, at random.
    pub fn once_in(&mut self, often: u64) -> bool {
        self.roll(often) == 0
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.roll(of.len() as u64) as usize]
    }
}

/// Counts its wake-ups.
pub(super) struct Bell(pub AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The parts of the world that a producer's step uses.
pub(super) struct Scene<'a> {
    pub core: &'a Arc<Core>,
    pub dice: &'a mut Dice,
    pub outcome: &'a mut Outcome,
    pub waker: &'a Waker,
    /// The next submission of the producer's ring, counted by the host.
    pub next: &'a mut u64,
    /// Whether the device may fail.
    pub faults: bool,
}

pub(super) struct World {
    dice: Dice,
    sim: Arc<Sim>,
    device: Device,
    rings: Vec<Ring>,
    producers: Vec<Producer>,
    outcome: Outcome,
    faults: bool,
    /// The share of steps in which the device moves, in 64ths.
    device_share: u64,
}

struct Ring {
    core: Arc<Core>,
    bell: Arc<Bell>,
    waker: Waker,
    next: u64,
}

const US: Picos = 1_000_000;

impl World {
    pub fn new(seed: u64, faults: bool) -> Self {
        let mut dice = Dice(seed.wrapping_mul(2).wrapping_add(u64::from(faults)));
        let slots = LEAST_SLOTS + dice.roll(3) as usize;
        let producers = LEAST_PRODUCERS + dice.roll(4) as usize;
        let two_rings = dice.once_in(4);
        let bytes_per_us = dice.pick(&[16, 256, 4096]) as f64 * 1e6;
        let duplex = bytes_per_us * dice.pick(&[0.5, 0.9, 1.0]);
        let overhead = dice.pick(&[0, 1, 20]) * US;
        let link =
            Link { in_alone: bytes_per_us, in_duplex: duplex, out_alone: bytes_per_us, out_duplex: duplex, overhead };
        let (injections, polls_advance) = (injections(&mut dice, faults), dice.once_in(3));
        let side_by_side = SideBySide { most: 1 + dice.roll(2) as usize, gain: dice.pick(&[0.0, 0.5, 1.0]) };
        let options = SimOptions { link, side_by_side, injections, polls_advance };
        let (sim, info) = Sim::new(options);
        let sim = Arc::new(sim);
        let device = Device::new(Kind::Sim(sim.clone()), info).checked();
        let rings: Vec<Ring> = (0..1 + usize::from(two_rings))
            .map(|index| {
                let priority = if index == 1 { Priority::High } else { Priority::Normal };
                ring(&mut dice, &device, &sim, slots, producers, priority)
            })
            .collect();
        // The first ring has enough producers and submissions; the second one has one more of each.
        let each = LEAST_SUBMISSIONS.div_ceil(producers);
        let mut producers: Vec<Producer> = (0..producers)
            .map(|id| Producer::new(id as u64, 0, each + dice.roll(3) as usize, dice.roll(4) as usize))
            .collect();
        if two_rings {
            producers.push(Producer::new(producers.len() as u64, 1, 1 + dice.roll(6) as usize, 1));
        }
        let device_share = dice.pick(&[1, 4, 16, 32, 60]);
        Self { dice, sim, device, rings, producers, outcome: Outcome::default(), faults, device_share }
    }

    pub fn play(mut self) -> Outcome {
        loop {
            let busy: Vec<usize> = (0..self.producers.len()).filter(|&p| !self.producers[p].is_done()).collect();
            if busy.is_empty() {
                break;
            }
            if self.dice.roll(64) < self.device_share {
                self.device_step();
                self.serve();
            } else {
                let index = busy[self.dice.roll(busy.len() as u64) as usize];
                if !self.producer_step(index) && !busy.iter().any(|&p| self.producer_step(p)) {
                    // All producers wait for the device.
                    let moved = self.device_step();
                    let served = self.serve();
                    let went_on = moved || served || busy.iter().any(|&p| self.producer_step(p));
                    assert!(went_on, "deadlock: {:?}, {:?}", self.producers, self.rings[0].core.credits());
                }
            }
        }
        self.end()
    }

    /// Runs the device's next step, if there is one.
    fn device_step(&mut self) -> bool {
        let next = self.sim.next_step();
        if let Some(next) = next {
            self.sim.advance_to(next);
        }
        let finished = self.sim.finished();
        self.outcome.mark(1 << 32 | finished);
        next.is_some()
    }

    /// Runs the rings' own threads once; returns whether a waker was woken.
    fn serve(&mut self) -> bool {
        let mut woken = 0;
        for ring in &self.rings {
            ring.core.serve_by_hand();
            woken += ring.bell.0.swap(0, Ordering::Relaxed);
        }
        self.outcome.woken += woken;
        woken > 0
    }

    /// Makes a step of a producer; returns whether it could make one.
    fn producer_step(&mut self, index: usize) -> bool {
        let producer = &mut self.producers[index];
        let ring = &mut self.rings[producer.ring];
        let scene = Scene {
            core: &ring.core,
            dice: &mut self.dice,
            outcome: &mut self.outcome,
            waker: &ring.waker,
            next: &mut ring.next,
            faults: self.faults,
        };
        let did = producer.step(scene);
        self.outcome.mark(2 << 32 | (index as u64) << 16 | did.unwrap_or(0));
        self.outcome.mark(self.sim.finished());
        did.is_some()
    }

    /// Ends the schedule, and checks that every credit is free.
    fn end(mut self) -> Outcome {
        self.sim.drain();
        self.serve();
        let faulted = self.device.fault().is_some();
        assert!(self.faults || !faulted, "{:?}", self.device.fault());
        for ring in &self.rings {
            if !faulted {
                let credits = ring.core.credits().unwrap();
                let held = (credits.filling, credits.in_flight, credits.unread, credits.quarantined);
                assert_eq!(held, (0, 0, 0, 0), "credits are lost: {credits}");
                // All batches can be acquired at the same time.
                let most = credits.staging.min(credits.results);
                let all: Vec<_> = (0..most).map(|_| ring.core.acquire(Duration::ZERO).unwrap()).collect();
                drop(all);
            }
            if self.dice.once_in(2) {
                let how = self.dice.pick(&[Close::Drain, Close::Abort]);
                assert_eq!(ring.core.close(how, Duration::from_secs(1)).is_ok(), !faulted);
                assert!(ring.core.acquire(Duration::ZERO).is_err());
                self.outcome.closed += 1;
            }
        }
        let Outcome { submitted, answered, abandoned, errors, .. } = self.outcome;
        assert_eq!(submitted, answered + abandoned + errors, "an answer is missing, or there is one too many");
        let (device, outcome) = (self.device.clone(), self.outcome);
        drop(self);
        let cause = device.fault().map(|fault| fault.to_string());
        assert!(!cause.as_ref().is_some_and(|cause| cause.contains("hazard")), "{cause:?}");
        outcome
    }
}

fn injections(dice: &mut Dice, faults: bool) -> Vec<Injection> {
    const UNITS: [Unit; 3] = [Unit::CopyIn, Unit::Compute, Unit::CopyOut];
    let mut all: Vec<Injection> = (0..dice.roll(4))
        .map(|_| Injection {
            unit: dice.pick(&UNITS),
            nth: 1 + dice.roll(20) as usize,
            effect: Effect::Delay(dice.pick(&[5, 100, 5000]) * US),
        })
        .collect();
    if faults {
        let effect = dice.pick(&[Effect::RefuseCall, Effect::FailRun]);
        all.push(Injection { unit: dice.pick(&UNITS), nth: 1 + dice.roll(20) as usize, effect });
    }
    all
}

fn ring(dice: &mut Dice, device: &Device, sim: &Arc<Sim>, slots: usize, producers: usize, priority: Priority) -> Ring {
    let took = dice.pick(&[1, 10, 100]) * US;
    let sizes: &[(usize, Picos)] = &[(1, took), (3, 2 * took)];
    let sizes = dice.pick(&[&sizes[..1], &sizes[1..], sizes]);
    let row = RowSpec::new([("bytes", Dtype::U8, vec![ROW_ALIGN])]);
    let program = SimProgram::new(device, sim, sizes, ROW_ALIGN, slots).unwrap();
    let program = program.on_streams(device, 1 + dice.roll(2) as usize).unwrap();
    let spec = RingSpec {
        staging: 1 + dice.roll(2 * slots as u64) as usize,
        // A producer holds at most three tickets and an output. It needs one more result, or it might wait for itself.
        results: producers * dice.pick(&[5, 6, 8]),
        priority,
        acquire_limit: Duration::from_secs(1),
        waiting: dice.pick(&[Waiting::Block, Waiting::Callback]),
        output_kind: OutputKind::Features,
        buckets: Buckets::one(program.batch_sizes(), row.clone(), vec![row]),
        classes: vec![0],
        device_results: false,
        freed: None,
    };
    let core = Core::build_with(
        device,
        vec![Node { program: Arc::new(program), reads: Vec::new() }],
        spec,
        Completion::by_hand(),
    )
    .unwrap();
    let bell = Arc::new(Bell(AtomicUsize::new(0)));
    Ring { core, waker: Waker::from(bell.clone()), bell, next: 0 }
}
