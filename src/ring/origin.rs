//! The ring and the batcher to which a ticket belongs.

use std::num::NonZeroUsize;
use std::sync::Arc;

use super::Core;

/// The ring, and for the ticket of a row the batcher, that a ticket belongs to. Origins differ for rings and batchers
/// that exist at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    ring: usize,
    batcher: Option<NonZeroUsize>,
    /// Identifies the fleet, for all its rings, also rebuilt ones.
    fleet: Option<NonZeroUsize>,
}

impl Origin {
    pub fn of_ring(ring: &Arc<Core>) -> Self {
        let fleet = ring.spec.freed.as_ref().and_then(|freed| NonZeroUsize::new(Arc::as_ptr(freed).addr()));
        Self { ring: Arc::as_ptr(ring).addr(), batcher: None, fleet }
    }

    /// The origin of a batcher's tickets; the batcher and its tickets share `batcher`.
    pub fn of_batcher<T>(ring: &Arc<Core>, batcher: &Arc<T>) -> Self {
        Self { batcher: NonZeroUsize::new(Arc::as_ptr(batcher).addr()), ..Self::of_ring(ring) }
    }

    /// Whether both belong to the same ring, even with different batchers.
    pub fn shares_ring(&self, other: Self) -> bool {
        self.ring == other.ring
    }

    /// Whether both belong to the same fleet, even with different rings.
    pub fn shares_fleet(&self, other: Self) -> bool {
        self.fleet.is_some() && self.fleet == other.fleet
    }
}
