//! Reports on the host's accesses, for wrappers of a device. Devices themselves order only the work on their streams.

use super::CallerStream;

/// A range of host or device memory, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub addr: u64,
    pub bytes: usize,
}

/// The kind of an access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A report on what the calling thread does. Credits lend page-locked memory; a credit passes on what its holder knows
/// of the device, as the lock behind it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// The thread takes the memory's credit, and with it what the last holder knew.
    Taken(Span),
    /// The thread's accesses to the memory begin.
    Begin(Span, Access),
    /// The thread's accesses are over; it gives the credit back, or passes the memory to the device.
    End(Span),
    /// The thread knows that the device is done with the memory, and gives the credit back.
    Freed(Span),
    /// The work enqueued so far on a caller's stream reads the memory.
    ReadOn(Span, CallerStream),
    /// All that the thread knows is also known to every thread that uses the ring that is now handed out.
    Published,
    /// The work that the thread enqueues from now on belongs to a batch, until [`Note::Enqueued`].
    Batch {
        /// The number of the ring's batch, from 0.
        number: u64,
        /// The slot of the batch.
        slot: usize,
        /// The index of the ring's size that it runs at.
        size: usize,
        /// The number of submitted rows.
        rows: usize,
        /// The page-locked input; rows of a batcher lie elsewhere.
        staging: Span,
        /// The page-locked output.
        result: Span,
    },
    /// The batch is enqueued, or its enqueueing has failed.
    Enqueued,
}
