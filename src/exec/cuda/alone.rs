//! Kernels apart from any model, on operands that the caller brings: what their tests and benchmarks run.

use super::launch::Launch;
use super::{Kernels, UntilFault};
use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Kind, Priority, Stream};
use crate::error::Error;

/// Several kernels that each compute the same of some operands, of which there are copies that runs take in turns, so that
/// none stays in a cache.
pub(super) struct Alone {
    kernels: UntilFault<Kernels>,
    /// `[kernel][copy]`.
    launches: Vec<Vec<Launch>>,
    copies: Vec<Vec<DeviceBuffer>>,
    stream: Stream,
    device: Device,
}

impl Alone {
    /// Uploads `copies` of the operands, one or more, and loads the kernels whose launches `launches` makes of a copy.
    ///
    /// # Errors
    /// [`Error::Unsupported`] on another device than a GPU; those of `launches`; any of the device.
    pub(super) fn new(
        device: &Device,
        what: &str,
        operands: &[&[u8]],
        copies: usize,
        launches: impl Fn(&[DeviceBuffer]) -> Result<Vec<Launch>, Error>,
    ) -> Result<Self, Error> {
        let Kind::Cuda(cuda) = device.kind() else {
            let what = format!("{what} alone on {}", device.info().target);
            return Err(Error::Unsupported { what, instead: "run it on a GPU".into() });
        };
        let stream = Stream::new(device, Priority::default(), "trefoil-alone")?;
        let mut kernels = UntilFault::new(device, Kernels::new(cuda));
        let copy = || operands.iter().map(|bytes| uploaded(device, &stream, bytes)).collect::<Result<Vec<_>, _>>();
        let copies = (0..copies.max(1)).map(|_| copy()).collect::<Result<Vec<_>, _>>()?;
        let mut of_kernels = Vec::<Vec<Launch>>::new();
        for copy in &copies {
            let mut launches = launches(copy)?;
            kernels.load(&launches)?;
            kernels.encode(&mut launches)?;
            of_kernels.resize_with(launches.len(), Vec::new);
            of_kernels.iter_mut().zip(launches).for_each(|(of_kernel, launch)| of_kernel.push(launch));
        }
        Ok(Self { kernels, launches: of_kernels, copies, stream, device: device.clone() })
    }

    /// Runs a kernel so many times, on one copy after the other, and waits; the seconds that all took.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn run(&mut self, kernel: usize, times: usize) -> Result<f64, Error> {
        let [start, end] = [Event::with_timing(&self.device)?, Event::with_timing(&self.device)?];
        start.record(&self.stream)?;
        for launch in self.launches[kernel].iter().cycle().take(times) {
            // SAFETY: the stream and all buffers live in self; whoever made the launches held the addresses and sizes
            // against the buffers; runs are in the order of the stream.
            self.device.latch(unsafe { self.kernels.launch(launch, self.stream.raw()) })?;
        }
        end.record(&self.stream)?;
        end.wait()?;
        Ok(1e-3 * f64::from(end.ms_since(&start)?))
    }

    /// An operand of the first copy, as it is now.
    ///
    /// # Errors
    /// Any of the device.
    pub(super) fn download(&self, operand: usize) -> Result<Vec<u8>, Error> {
        let buffer = &self.copies[0][operand];
        let host = HostBuffer::new(&self.device, buffer.len())?;
        let copied = Event::new(&self.device)?;
        // SAFETY: both buffers outlive the copy, whose event is waited for; the stream orders it behind the runs.
        unsafe { self.stream.copy_out(&host, buffer, buffer.len())? };
        copied.record(&self.stream)?;
        copied.wait()?;
        // SAFETY: the copy is done, nobody else knows the buffer.
        Ok(unsafe { host.bytes() }.to_vec())
    }
}

/// A device buffer with these bytes at its beginning.
fn uploaded(device: &Device, stream: &Stream, bytes: &[u8]) -> Result<DeviceBuffer, Error> {
    let host = HostBuffer::new(device, bytes.len())?;
    // SAFETY: the buffer was just made, nothing else refers to it yet.
    let begin = &mut unsafe { host.bytes_mut() }[..bytes.len()];
    begin.copy_from_slice(bytes);
    let buffer = DeviceBuffer::new(device, bytes.len())?;
    let copied = Event::new(device)?;
    // SAFETY: both buffers outlive the copy, whose event is waited for.
    unsafe { stream.copy_in(&buffer, &host, bytes.len())? };
    copied.record(stream)?;
    copied.wait()?;
    Ok(buffer)
}
