//! The rings of a fleet, each on a device of its own, used as one: a batch goes to the ring that has the fewest. When a
//! device fails, the batches that it has not answered run again on the others, or on the ring that replaces its own.
//!
//! The rows of these batches still exist, because such a ring frees staging when the answer is known to be there, not
//! when the upload is done. So a submission of a failed device is either known to be done and has a good result, or its
//! staging is unchanged. The ring's lock decides which, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bucket::Extent;
use super::rings::{Past, Rings};
use super::waiting::{FAULT_CHECK, Waiting, pause};
use super::{Batch, Core, Ticket};
use crate::device::Signal;
use crate::error::{Credits, Error};
use crate::sync::after;

/// Counts of a [`Fleet`](crate::Fleet)'s work on one device, and the state of the device.
///
/// ```
/// # use trefoil::{Device, Engine, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// let fleet = Engine::builder(&model).build_on(&[Device::cpu(1), Device::cpu(1)])?;
/// fleet.acquire()?.submit(1)?.wait()?;
/// let stats = fleet.stats(); // one for each device
/// assert_eq!(stats.iter().map(|device| device.rows).sum::<u64>(), 1);
/// assert!(stats.iter().all(|device| device.fault.is_none() && device.run_again == 0));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceStats {
    /// The device: `"cuda:1"`.
    pub target: String,
    /// Batches submitted to it.
    pub batches: u64,
    /// Rows of these batches.
    pub rows: u64,
    /// The number of batches that ran on this device because another device, or this one before it was rebuilt, had
    /// failed to answer them.
    pub run_again: u64,
    /// Batches that the device has now, in flight or being filled.
    pub load: usize,
    /// The reason why the device takes no more batches, if it does not.
    pub fault: Option<Error>,
    /// How often its engine was rebuilt after a fault, see
    /// [`EngineBuilder::rebuild_on_fault`](crate::EngineBuilder::rebuild_on_fault).
    pub rebuilt: u64,
    /// Whether its engine is being rebuilt now, or will be.
    pub is_rebuilding: bool,
    /// The fault after which its engine was last rebuilt.
    pub last_fault: Option<Error>,
}

/// The rings of a fleet.
pub(crate) struct Peers {
    pub(super) rings: Arc<Rings>,
    /// A counter that selects one of equally loaded rings.
    turn: AtomicUsize,
    /// The counts of each ring.
    counts: Vec<Counts>,
}

#[derive(Default)]
struct Counts {
    batches: AtomicU64,
    rows: AtomicU64,
    run_again: AtomicU64,
}

/// One ring of a fleet.
#[derive(Clone)]
pub(super) struct Member {
    peers: Arc<Peers>,
    index: usize,
}

/// The staging that has a submission's rows while it is not answered, and the fleet that can run them again.
pub(super) struct Again {
    member: Member,
    /// The index of the staging buffer, which the ring keeps.
    pub staging: usize,
}

impl Peers {
    /// A fleet of rings that were all built with `freed`. A thread that calls [`Rings::next_due`] may rebuild each ring
    /// up to `rebuilds` times.
    pub fn new(cores: Vec<Arc<Core>>, freed: Arc<Signal>, rebuilds: usize) -> Arc<Self> {
        let counts = cores.iter().map(|_| Counts::default()).collect();
        Arc::new(Self { rings: Rings::new(cores, freed, rebuilds), turn: AtomicUsize::new(0), counts })
    }

    pub fn rings(&self) -> &Arc<Rings> {
        &self.rings
    }

    /// Takes a batch of the least loaded ring that has one, waiting for one until `limit` has passed.
    pub fn acquire(self: &Arc<Self>, limit: Duration) -> Result<Batch, Error> {
        let (start, deadline) = (Instant::now(), after(limit));
        let mut looks = 0;
        loop {
            let seen = self.rings.freed.count(); // before the look: what comes free after it is not slept through
            let rings = self.rings.now();
            if let Some(batch) = self.try_acquire(&rings)? {
                return Ok(batch);
            }
            if Instant::now() >= deadline {
                let is_rebuilding = self.rings.with_past().1.iter().any(|past| past.is_rebuilding);
                let operation = if is_rebuilding { "acquire while a failed device is rebuilt" } else { "acquire" };
                let (waited, credits) = (start.elapsed(), credits(&rings));
                return Err(Error::Timeout { operation, waited, behind: None, credits });
            }
            if rings[0].spec.waiting == Waiting::Spin {
                pause(&mut looks);
                continue;
            }
            rings.iter().for_each(Core::sleeper_came);
            self.rings.freed.wait_past(seen, deadline.min(Instant::now() + FAULT_CHECK));
            rings.iter().for_each(|core| core.sleeper_left());
        }
    }

    /// Takes a batch of the least loaded ring that has one. An error if no ring is left that is open and whose device
    /// works, and none is being rebuilt.
    fn try_acquire(self: &Arc<Self>, rings: &[Arc<Core>]) -> Result<Option<Batch>, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let order = (0..rings.len()).map(|offset| turn.wrapping_add(offset) % rings.len());
        let load = |index: usize| match rings[index].load() {
            Ok(load) => (!rings[index].is_closed()).then_some((load, index)),
            Err(_) => {
                self.rings.is_coming(index, &rings[index]); // also while another one has a batch
                None
            }
        };
        let least = order.clone().filter_map(load).min_by_key(|(load, _)| *load).map(|(_, index)| index);
        let (mut refused, mut is_any_left) = (None, false);
        for index in least.into_iter().chain(order.filter(|index| Some(*index) != least)) {
            match rings[index].try_acquire() {
                Ok(Some(batch)) => return Ok(Some(batch.of(Member { peers: self.clone(), index }))),
                Ok(None) => is_any_left = true,
                Err(fault @ Error::Fault { .. }) => match self.rings.is_coming(index, &rings[index]) {
                    true => is_any_left = true,
                    false => refused = refused.or(Some(fault)),
                },
                Err(Error::Closed) => refused = Some(Error::Closed),
                Err(error) => return Err(error),
            }
        }
        refused.filter(|_| !is_any_left).map_or(Ok(None), Err)
    }

    /// The counts and the state of each device.
    pub fn stats(&self) -> Vec<DeviceStats> {
        let now = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let of = |((core, counts), past): ((&Arc<Core>, &Counts), Past)| DeviceStats {
            target: core.device.info().target.clone(),
            batches: now(&counts.batches),
            rows: now(&counts.rows),
            run_again: now(&counts.run_again),
            load: core.load().unwrap_or(0),
            fault: core.device.fault(),
            rebuilt: past.rebuilt,
            is_rebuilding: past.is_rebuilding,
            last_fault: past.last_fault,
        };
        let (rings, past) = self.rings.with_past();
        rings.iter().zip(&self.counts).zip(past).map(of).collect()
    }
}

/// The credits of all rings whose devices work.
fn credits(rings: &[Arc<Core>]) -> Credits {
    let mut sum = Credits::default();
    for credits in rings.iter().filter_map(|core| core.credits().ok()) {
        sum.filling += credits.filling;
        sum.in_flight += credits.in_flight;
        sum.unread += credits.unread;
        sum.quarantined += credits.quarantined;
        sum.staging += credits.staging;
        sum.results += credits.results;
    }
    sum
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.rings.end();
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("rings", &self.counts.len()).finish_non_exhaustive()
    }
}

impl Member {
    /// Registers a submission of its ring to run again if the device fails, also if it has failed already.
    pub fn submitted(
        self,
        ring: &Core,
        staging: usize,
        extent: Extent,
        submitted: Result<Ticket, Error>,
        deadline: Option<Instant>,
    ) -> Result<Ticket, Error> {
        match submitted {
            Ok(ticket) => {
                let counts = &self.peers.counts[self.index];
                counts.batches.fetch_add(1, Ordering::Relaxed);
                counts.rows.fetch_add(extent.rows as u64, Ordering::Relaxed);
                Ok(ticket.or_again(Again { member: self, staging }))
            }
            Err(Error::Fault { .. }) => {
                let deadline = deadline.unwrap_or_else(|| after(ring.spec.acquire_limit));
                Again { member: self, staging }.submit(ring, extent, deadline)
            }
            Err(error) => Err(error),
        }
    }
}

impl Again {
    /// Submits the rows again, on another ring than the failed one, which still has them. Waits for a batch until the
    /// deadline. It is called for tickets whose device failed before the answer was known to be there, and for
    /// submissions that failed: their staging is lent to no other producer.
    pub fn submit(&self, failed: &Core, extent: Extent, deadline: Instant) -> Result<Ticket, Error> {
        let peers = &self.member.peers;
        let Extent { bucket, rows } = extent;
        let mut batch = peers.acquire(deadline.saturating_duration_since(Instant::now()))?.in_bucket(bucket);
        let bytes = rows * failed.bucket(bucket).input.row_pitch;
        // SAFETY: the staging is the caller's alone, which no longer writes it; the device only ever reads it.
        let rows_there = unsafe { &failed.staging[self.staging].buffer.bytes()[..bytes] };
        batch.bytes_mut()[..bytes].copy_from_slice(rows_there);
        let ticket = batch.submit_until(rows, Some(deadline))?;
        if let Some(again) = ticket.again() {
            peers.counts[again.member.index].run_again.fetch_add(1, Ordering::Relaxed);
        }
        Ok(ticket)
    }
}
