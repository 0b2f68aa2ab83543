//! The ring and the batcher to which a ticket belongs.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::Core;

/// Where a ticket is from: a ring, and a batcher if it is a row's. It tells those apart that live at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    ring: usize,
    batcher: Option<NonZeroUsize>,
    /// What all rings of a fleet share, those too that were built again.
    fleet: Option<NonZeroUsize>,
}

impl Origin {
    pub fn of_ring(ring: &Arc<Core>) -> Self {
        let fleet = ring.spec.freed.as_ref().and_then(|freed| NonZeroUsize::new(Arc::as_ptr(freed).addr()));
        Self { ring: Arc::as_ptr(ring).addr(), batcher: None, fleet }
    }

    /// `batcher` is what a batcher and its tickets share.
    pub fn of_batcher<T>(ring: &Arc<Core>, batcher: &Arc<T>) -> Self {
        Self { batcher: NonZeroUsize::new(Arc::as_ptr(batcher).addr()), ..Self::of_ring(ring) }
    }

    /// Whether both are of one ring, whatever their batchers.
    pub fn shares_ring(&self, other: Self) -> bool {
        self.ring == other.ring
    }

    /// Whether both are of one fleet, whatever their rings.
    pub fn shares_fleet(&self, other: Self) -> bool {
        self.fleet.is_some() && self.fleet == other.fleet
    }
}
