//! The states of a ring's programs: values that a batch reads as the previous batch has left them, on the only compute
//! stream of the program.

use super::flow::Runner;
use super::{Core, Submitted};
use crate::device::{Access, Device, Event, HostBuffer, Note, StateBuffer, Stream};
use crate::error::Error;
use crate::sync::{Turn, Turns};
use crate::tensor::RowPort;

/// The host's memory for the states of a ring's programs.
pub(super) struct States {
    /// Zeros, as many as the largest state has bytes. They are never written.
    zeros: HostBuffer,
    /// The memory by which threads read and write states, one thread at a time.
    exchange: Turns<Exchange>,
}

/// Page-locked memory that a state is copied from or to, until `done`.
struct Exchange {
    buffer: HostBuffer,
    done: Event,
}

impl States {
    /// The memory for the states of these programs; `None` if they have no states.
    pub fn new(device: &Device, runners: &[Runner]) -> Result<Option<Self>, Error> {
        let Some(bytes) = all(runners).map(|(_, state)| state.bytes()).max() else { return Ok(None) };
        let is_one_stream = |runner: &Runner| runner.program.states().is_empty() || runner.streams() == 1;
        assert!(runners.iter().all(is_one_stream), "states on several compute streams");
        let exchange = Exchange { buffer: HostBuffer::new(device, bytes)?, done: Event::new(device)? };
        let zeros = HostBuffer::new(device, bytes)?;
        Ok(Some(Self { zeros, exchange: Turns::new(exchange) }))
    }

    /// Waits until no other thread uses the exchange, and takes it.
    fn take(&self, device: &Device) -> Turn<'_, Exchange> {
        let exchange = self.exchange.take();
        device.note(Note::Taken(exchange.buffer.span()));
        exchange
    }
}

/// All states, each with its program.
fn all(runners: &[Runner]) -> impl Iterator<Item = (&Runner, &StateBuffer)> {
    runners.iter().flat_map(|runner| runner.program.states().iter().map(move |state| (runner, state)))
}

impl Core {
    /// An error if a batch of `rows` rows of this bucket would also compute rows that were not submitted, with states.
    pub(super) fn keeps_states(&self, bucket: usize, rows: usize) -> Result<(), Error> {
        let sizes = &self.bucket(bucket).sizes.batch_sizes;
        match self.states.is_none() || sizes.contains(&rows) {
            true => Ok(()),
            false => {
                let expected =
                    format!("one of the batch sizes, {sizes:?}: each row goes on with the state of the same row");
                Err(Error::option("rows", rows, expected))
            }
        }
    }

    /// An error if programs have states, so that batches cannot mix rows of many owners.
    pub(super) fn has_no_states(&self, by: &str) -> Result<(), Error> {
        match &self.states {
            None => Ok(()),
            Some(_) => Err(Error::Unsupported {
                what: format!("{by} of a model with state: each row continues the same row of the previous batch"),
                instead: "submit batches to the engine, where row N is always the next of sequence N".into(),
            }),
        }
    }

    /// Sets all states to zeros for the next batch, or for a thread that reads or writes a state before it.
    pub fn reset_states(&self) {
        self.order.take().zeros_are_due = true;
    }

    /// Enqueues the copies of zeros to the states if they are due. The caller, or a ticket, waits for work that is
    /// enqueued after them in the same order.
    pub(super) fn zero_states(&self, order: &mut Submitted) -> Result<(), Error> {
        let Some(states) = self.states.as_ref().filter(|_| order.zeros_are_due) else { return Ok(()) };
        for (runner, state) in all(&self.runners) {
            // SAFETY: both buffers live as long as self, which is held until what comes behind the copy is done; nobody
            // writes the zeros; everything else that touches the state is on this stream.
            unsafe { runner.stream(0).copy_in(&state.buffer, &states.zeros, state.bytes())? };
        }
        order.zeros_are_due = false;
        Ok(())
    }

    /// The row of a state for one request, and the number of rows.
    pub fn state(&self, name: &str) -> Result<(&RowPort, usize), Error> {
        self.find_state(name).map(|(_, state)| (&state.row, state.rows))
    }

    /// An error if the state has another number of bytes.
    #[cfg(any(feature = "ffi", test))]
    pub fn check_state(&self, name: &str, bytes: usize) -> Result<(), Error> {
        check_bytes(self.find_state(name)?.1, bytes)
    }

    /// Reads the bytes of a state as the batches submitted before leave it; waits for these batches.
    pub fn read_state(&self, name: &str, to: &mut [u8]) -> Result<(), Error> {
        let (runner, state) = self.find_state(name)?;
        check_bytes(state, to.len())?;
        let exchange = self.exchange();
        self.behind_batches(&exchange, runner.stream(0), |exchange, stream| {
            // SAFETY: both buffers live as long as self, which the caller holds while it waits; the exchange is this
            // thread's, and everything that writes the state is on this stream.
            unsafe { stream.copy_out(&exchange.buffer, &state.buffer, state.bytes()) }
        })?;
        let buffer = &exchange.buffer;
        self.device.note(Note::Begin(buffer.span(), Access::Read));
        // SAFETY: the exchange is this thread's, and the copy is done.
        to.copy_from_slice(unsafe { &buffer.bytes()[..to.len()] });
        self.device.note(Note::End(buffer.span()));
        Ok(())
    }

    /// Writes a state after the batches submitted before; waits for these batches.
    pub fn write_state(&self, name: &str, from: &[u8]) -> Result<(), Error> {
        let (runner, state) = self.find_state(name)?;
        check_bytes(state, from.len())?;
        let exchange = self.exchange();
        self.device.healthy()?; // after a fault nothing proves that the device leaves the exchange alone
        let buffer = &exchange.buffer;
        self.device.note(Note::Begin(buffer.span(), Access::Write));
        // SAFETY: the exchange is this thread's; what was copied by it before is done, or the device was found at fault.
        unsafe { buffer.bytes_mut()[..from.len()].copy_from_slice(from) };
        self.device.note(Note::End(buffer.span()));
        self.behind_batches(&exchange, runner.stream(0), |exchange, stream| {
            // SAFETY: both buffers live as long as self, which the caller holds while it waits; the exchange is this
            // thread's, and everything that touches the state is on this stream.
            unsafe { stream.copy_in(&state.buffer, &exchange.buffer, state.bytes()) }
        })
    }

    /// Enqueues a copy after the batches submitted before, and waits for it.
    fn behind_batches(
        &self,
        exchange: &Exchange,
        stream: &Stream,
        copy: impl FnOnce(&Exchange, &Stream) -> Result<(), Error>,
    ) -> Result<(), Error> {
        {
            let mut order = self.order.take();
            self.device.healthy()?;
            self.zero_states(&mut order)?;
            copy(exchange, stream)?;
            exchange.done.record(stream)?;
        }
        exchange.done.wait()
    }

    fn exchange(&self) -> Turn<'_, Exchange> {
        self.states.as_ref().expect("a state was found").take(&self.device)
    }

    fn find_state(&self, name: &str) -> Result<(&Runner, &StateBuffer), Error> {
        all(&self.runners).find(|(_, state)| &*state.row.name == name).ok_or_else(|| {
            let names: Vec<String> = all(&self.runners).map(|(_, state)| format!("`{}`", state.row.name)).collect();
            let expected = match names.is_empty() {
                true => "a model with states, see `Model::with_state`".into(),
                false => format!("one of {}", names.join(", ")),
            };
            Error::option("state", format!("`{name}`"), expected)
        })
    }
}

fn check_bytes(state: &StateBuffer, bytes: usize) -> Result<(), Error> {
    if bytes != state.bytes() {
        let expected = format!("{}: {} rows of {}", state.bytes(), state.rows, state.row);
        return Err(Error::option("bytes of a state", bytes, expected));
    }
    Ok(())
}
