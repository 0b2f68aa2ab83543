//! Accesses of the host, reported to wrappers of a device. Devices themselves order only the work on their streams.

use super::CallerStream;

/// Some memory, of the host or of the device, by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub addr: u64,
    pub bytes: usize,
}

/// What is done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// Something that the calling thread does. Page-locked memory is lent by credits; a credit passes on what its holder
/// knows of the device, as the lock behind it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// It takes the memory's credit, and with it what the last holder knew.
    Taken(Span),
    /// Its accesses to the memory begin.
    Begin(Span, Access),
    /// They are over, and it gives the credit back, or passes the memory to the device.
    End(Span),
    /// It knows that the device is done with the memory, and gives the credit back.
    Freed(Span),
    /// What was enqueued so far on a caller's stream reads the memory.
    ReadOn(Span, CallerStream),
    /// What it knows, every thread knows that works with a ring now being handed out.
    Published,
    /// What it enqueues from now on belongs to a batch, up to [`Note::Enqueued`].
    Batch {
        /// Counts a ring's batches, from 0.
        number: u64,
        /// The slot that serves it.
        slot: usize,
        /// Which of the ring's sizes it runs at.
        size: usize,
        /// Rows submitted.
        rows: usize,
        /// The page-locked input; a batcher's rows lie elsewhere.
        staging: Span,
        /// The page-locked output.
        result: Span,
    },
    /// The batch is enqueued, as far as it got.
    Enqueued,
}
