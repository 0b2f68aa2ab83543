//! An operation without a model, on operands that the caller brings, for tests and benchmarks.

use bytemuck::Pod;

use super::launch::{Launch, Rows};
use super::{Kernels, UntilFault};
use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Kind, Priority, Stream};
use crate::error::Error;
use crate::plan::RowsAt;

impl RowsAt {
    /// The index behind the last value of `rows` rows of `columns` values, if it fits a `usize`.
    pub(super) fn end(self, rows: usize, columns: usize) -> Option<usize> {
        let last = rows.saturating_sub(1).checked_mul(self.pitch)?;
        last.checked_add(self.first)?.checked_add(columns)
    }

    /// The rows, in a buffer of 16-bit values at `address`.
    pub(super) const fn on(self, address: u64) -> Rows {
        Rows { address: address + 2 * self.first as u64, pitch: self.pitch }
    }
}

/// The launches of one operation by several kernels, ready to run. They use several copies of the operands in turn, so
/// that no copy stays in a cache.
pub(super) struct Alone {
    kernels: UntilFault<Kernels>,
    /// `[kernel][copy]`.
    launches: Vec<Vec<Launch>>,
    copies: Copies,
}

/// Copies of an operation's operands on a device, and the stream that launches on them use.
pub(super) struct Copies {
    /// The copies of each operand, the result last.
    operands: Vec<Vec<DeviceBuffer>>,
    stream: Stream,
    device: Device,
}

impl Alone {
    /// Uploads `copies` copies, one or more, of the operands, of which the last is the result. `launches` makes the
    /// launches of all kernels for the addresses of one copy; their kernels are loaded.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device cannot; those of `launches`; any of the device.
    pub(super) fn new<const OPERANDS: usize>(
        device: &Device,
        what: &str,
        operands: [&[u8]; OPERANDS],
        copies: usize,
        launches: impl Fn([u64; OPERANDS]) -> Result<Vec<Launch>, Error>,
    ) -> Result<Self, Error> {
        let Kind::Cuda(cuda) = device.kind() else {
            let what = format!("{what} alone on {}", device.info().target);
            return Err(Error::Unsupported { what, instead: "run it on a GPU".into() });
        };
        let mut kernels = UntilFault::new(device, Kernels::new(cuda));
        let copies = Copies::new(device, &operands, copies)?;
        let mut of_kernels = Vec::<Vec<Launch>>::new();
        for addresses in copies.addresses() {
            let addresses = std::array::from_fn(|operand| addresses[operand]);
            let mut launches = launches(addresses)?;
            kernels.load(&launches)?;
            launches.iter_mut().try_for_each(|launch| kernels.encode(launch))?;
            of_kernels.resize_with(launches.len(), Vec::new);
            of_kernels.iter_mut().zip(launches).for_each(|(of_kernel, launch)| of_kernel.push(launch));
        }
        Ok(Self { kernels, launches: of_kernels, copies })
    }

    /// Runs a kernel `times` times, on one copy after the other, and waits. Returns the seconds that all runs took
    /// together.
    ///
    /// # Safety
    /// The launches stay within the operands that were uploaded.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) unsafe fn run(&mut self, kernel: usize, times: usize) -> Result<f64, Error> {
        let mut launches = self.launches[kernel].iter().cycle();
        self.copies.timed(times, |stream| {
            let launch = launches.next().expect("an operation has a copy");
            // SAFETY: the stream and all buffers live in self; the launches stay within them by the caller; runs are in
            // the order of the stream.
            unsafe { self.kernels.launch(launch, stream) }
        })
    }

    /// The first copy's result.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn result<T: Pod>(&self) -> Result<Vec<T>, Error> {
        self.copies.result()
    }

    /// The first copy's operand of this number, as it is now.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn operand<T: Pod>(&self, number: usize) -> Result<Vec<T>, Error> {
        self.copies.operand(number)
    }
}

impl Copies {
    /// Uploads `copies` copies, one or more, of the operands, of which the last is the result.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn new(device: &Device, operands: &[&[u8]], copies: usize) -> Result<Self, Error> {
        let stream = Stream::new(device, Priority::default(), "trefoil-alone")?;
        let uploads = operands.iter().map(|bytes| uploaded(device, &stream, bytes, copies.max(1)));
        let operands = uploads.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { operands, stream, device: device.clone() })
    }

    /// The addresses of each copy's operands.
    pub(super) fn addresses(&self) -> Vec<Vec<u64>> {
        let copies = self.operands.iter().map(Vec::len).min().unwrap_or(0);
        (0..copies).map(|copy| self.operands.iter().map(|buffers| buffers[copy].addr()).collect()).collect()
    }

    /// Calls `enqueue` `times` times with the stream, and waits. Returns the seconds that the enqueued work took.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn timed(&self, times: usize, mut enqueue: impl FnMut(u64) -> Result<(), Error>) -> Result<f64, Error> {
        let [start, end] = [Event::with_timing(&self.device)?, Event::with_timing(&self.device)?];
        start.record(&self.stream)?;
        for _ in 0..times {
            self.device.latch(enqueue(self.stream.raw()))?;
        }
        end.record(&self.stream)?;
        end.wait()?;
        Ok(1e-3 * f64::from(end.ms_since(&start)?))
    }

    /// The first copy's result.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn result<T: Pod>(&self) -> Result<Vec<T>, Error> {
        self.operand(self.operands.len() - 1)
    }

    fn operand<T: Pod>(&self, index: usize) -> Result<Vec<T>, Error> {
        let operand = &self.operands[index][0];
        let host = HostBuffer::new(&self.device, operand.len())?;
        let copied = Event::new(&self.device)?;
        // SAFETY: both buffers outlive the copy, whose event is waited for; the stream orders it behind the runs.
        unsafe { self.stream.copy_out(&host, operand, operand.len())? };
        copied.record(&self.stream)?;
        copied.wait()?;
        // SAFETY: the copy is done, nobody else knows the buffer.
        Ok(bytemuck::cast_slice(unsafe { host.bytes() }).to_vec())
    }
}

/// Checks that each operand is long enough. An operand has a name, its number of values, and the number that is needed;
/// `None` means that the number is too large for a `usize`.
pub(super) fn check_lengths<const OPERANDS: usize>(
    operands: [(&'static str, usize, Option<usize>); OPERANDS],
) -> Result<(), Error> {
    match operands.into_iter().find(|(_, len, end)| end.is_none_or(|end| end > *len)) {
        Some((what, len, end)) => {
            let needed =
                end.map_or("more than there can be".to_owned(), |end| format!("{end}, as its sizes and pitches say"));
            Err(Error::option(what, format!("{len} values"), needed))
        }
        None => Ok(()),
    }
}

/// Makes `copies` device buffers that begin with these bytes.
fn uploaded(device: &Device, stream: &Stream, bytes: &[u8], copies: usize) -> Result<Vec<DeviceBuffer>, Error> {
    let host = HostBuffer::new(device, bytes.len())?;
    // SAFETY: the buffer was just made, nothing else refers to it yet.
    let begin = &mut unsafe { host.bytes_mut() }[..bytes.len()];
    begin.copy_from_slice(bytes);
    let buffers = (0..copies).map(|_| DeviceBuffer::new(device, bytes.len())).collect::<Result<Vec<_>, _>>()?;
    let copied = Event::new(device)?;
    for buffer in &buffers {
        // SAFETY: both buffers outlive the copy, whose event is waited for.
        unsafe { stream.copy_in(buffer, &host, bytes.len())? };
    }
    copied.record(stream)?;
    copied.wait()?;
    Ok(buffers)
}
