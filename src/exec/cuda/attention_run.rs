//! Attention apart from any model, on operands that the caller brings: what its tests and its benchmark run.

use half::f16;

use super::launch::Launch;
use super::sm90_attention::{AttentionProblem, Heads, Mask, launch};
use super::{Kernels, UntilFault};
use crate::device::{Device, DeviceBuffer, Event, HostBuffer, Kind, Priority, Stream};
use crate::error::Error;
use crate::plan::{AttentionKernel, AttentionSizes};

/// An attention operation and its operands, in host memory.
#[derive(Clone, Debug)]
pub struct AttentionOperands<'a> {
    /// How much of it there is.
    pub sizes: AttentionSizes,
    /// What scores are multiplied by; positive.
    pub scale: f32,
    /// Row i sees keys up to i + `ahead`; none: all.
    pub ahead: Option<usize>,
    /// What has queries, keys and values.
    pub values: &'a [f16],
    /// Where in it the queries, the keys and the values are.
    pub qkv: [HeadsAt; 3],
    /// How many keys of each image count; none: all.
    pub lengths: Option<&'a [i32]>,
    /// What is added to scaled scores, and halves from one head, row and image to the next.
    pub mask: Option<(&'a [f16], [usize; 3])>,
    /// What the result is written into.
    pub result: &'a [f16],
    /// Where in it.
    pub out: HeadsAt,
}

/// Where the heads of an operand are: the first value, and values from one head, row and image to the next.
#[derive(Clone, Copy, Debug)]
pub struct HeadsAt {
    /// Of the first value.
    pub first: usize,
    /// From one head, row and image to the next.
    pub pitches: [usize; 3],
}

/// Attention on a GPU, ready to run: several copies of its operands in turns, so that none stays in a cache.
pub struct AttentionRun {
    kernels: UntilFault<Kernels>,
    launches: Vec<Launch>,
    copies: Vec<OnDevice>,
    stream: Stream,
    device: Device,
}

/// Values, lengths, mask and result on the device.
struct OnDevice {
    operands: [DeviceBuffer; 3],
    result: DeviceBuffer,
}

impl AttentionRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new(
        device: &Device,
        operands: &AttentionOperands<'_>,
        kernel: AttentionKernel,
        copies: usize,
    ) -> Result<Self, Error> {
        let Kind::Cuda(cuda) = device.kind() else {
            let what = format!("attention alone on {}", device.info().target);
            return Err(Error::Unsupported { what, instead: "run it on a GPU".into() });
        };
        operands.check()?;
        let stream = Stream::new(device, Priority::default(), "trefoil-attention")?;
        let mut kernels = UntilFault::new(device, Kernels::new(cuda));
        let copies =
            (0..copies.max(1)).map(|_| OnDevice::new(device, &stream, operands)).collect::<Result<Vec<_>, _>>()?;
        let launches = copies.iter().map(|copy| launch(&copy.problem(operands), kernel, device.info().units));
        let mut launches = launches.collect::<Result<Vec<_>, _>>()?;
        kernels.load(&launches)?;
        kernels.encode(&mut launches)?;
        Ok(Self { kernels, launches, copies, stream, device: device.clone() })
    }

    /// Runs it so many times, on one copy after the other, and waits; the seconds that all took.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        let [start, end] = [Event::with_timing(&self.device)?, Event::with_timing(&self.device)?];
        start.record(&self.stream)?;
        for launch in self.launches.iter().cycle().take(times) {
            // SAFETY: the stream and all buffers live in self; `check` and the launcher hold the addresses and sizes
            // against the buffers; runs are in the order of the stream.
            self.device.latch(unsafe { self.kernels.launch(launch, self.stream.raw()) })?;
        }
        end.record(&self.stream)?;
        end.wait()?;
        Ok(1e-3 * f64::from(end.ms_since(&start)?))
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<f16>, Error> {
        let result = &self.copies[0].result;
        let host = HostBuffer::new(&self.device, result.len())?;
        let copied = Event::new(&self.device)?;
        // SAFETY: both buffers outlive the copy, whose event is waited for; the stream orders it behind the runs.
        unsafe { self.stream.copy_out(&host, result, result.len())? };
        copied.record(&self.stream)?;
        copied.wait()?;
        // SAFETY: the copy is done, nobody else knows the buffer.
        Ok(bytemuck::cast_slice(unsafe { host.bytes() }).to_vec())
    }
}

impl AttentionOperands<'_> {
    /// An error unless every operand is as long as what is read or written of it.
    fn check(&self) -> Result<(), Error> {
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        let end = |at: HeadsAt, rows: usize, dims: usize| {
            let last = [heads, rows, images]
                .into_iter()
                .zip(at.pitches)
                .map(|(count, pitch)| count.saturating_sub(1).checked_mul(pitch));
            last.chain([Some(at.first), Some(dims)]).try_fold(0_usize, |sum, part| sum.checked_add(part?))
        };
        let [q, k, v] = self.qkv;
        let mask = self.mask.map(|(values, pitches)| (values.len(), HeadsAt { first: 0, pitches }));
        let all = [
            ("q", self.values.len(), end(q, rows, dims)),
            ("k", self.values.len(), end(k, keys, dims)),
            ("v", self.values.len(), end(v, keys, dims)),
            ("result", self.result.len(), end(self.out, rows, dims)),
            ("lengths", self.lengths.map_or(images, <[i32]>::len), Some(images)),
            (
                "mask",
                mask.map_or(0, |(len, _)| len),
                mask.map_or(Some(0), |(_, at)| end(at, rows, keys.next_multiple_of(2))),
            ),
        ];
        match all.into_iter().find(|(_, len, end)| end.is_none_or(|end| end > *len)) {
            Some((what, len, end)) => {
                let needed = end
                    .map_or("more than there can be".to_owned(), |end| format!("{end}, as its sizes and pitches say"));
                Err(Error::option(what, format!("{len} values"), needed))
            }
            None => Ok(()),
        }
    }
}

impl OnDevice {
    fn new(device: &Device, stream: &Stream, operands: &AttentionOperands<'_>) -> Result<Self, Error> {
        let upload = |bytes: &[u8]| uploaded(device, stream, bytes);
        Ok(Self {
            operands: [
                upload(bytemuck::cast_slice(operands.values))?,
                upload(bytemuck::cast_slice(operands.lengths.unwrap_or_default()))?,
                upload(bytemuck::cast_slice(operands.mask.map_or(&[] as &[f16], |(values, _)| values)))?,
            ],
            result: upload(bytemuck::cast_slice(operands.result))?,
        })
    }

    fn problem(&self, operands: &AttentionOperands<'_>) -> AttentionProblem {
        let [values, lengths, mask] = &self.operands;
        let heads = |buffer: &DeviceBuffer, at: HeadsAt| Heads {
            address: buffer.addr() + 2 * at.first as u64,
            pitches: at.pitches,
        };
        let [q, k, v] = operands.qkv.map(|at| heads(values, at));
        AttentionProblem {
            sizes: operands.sizes,
            scale: operands.scale,
            ahead: operands.ahead,
            q,
            k,
            v,
            out: heads(&self.result, operands.out),
            lengths: operands.lengths.map(|_| lengths.addr()),
            mask: operands.mask.map(|(_, pitches)| Mask { address: mask.addr(), pitches }),
        }
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
