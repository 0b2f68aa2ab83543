//! A model's weights on a GPU: packed in ordinary memory, then copied through a little page-locked memory. Page-locking
//! as much memory as the weights take would be slower than packing them.

use std::sync::Arc;

use bytemuck::allocation::try_zeroed_slice_box;

use super::pack::Layout;
use crate::device::{Access, Device, DeviceBuffer, Event, HostBuffer, Note, Span, Stream};
use crate::error::Error;
use crate::model::{Model, Weights};
use crate::phases::Stopwatch;
use crate::plan::Plan;

/// A model's weights on the device, as kernels read them; engines of the same model share them.
pub(super) struct Uploaded {
    from: Arc<Weights>,
    layout: Arc<Layout>,
    buffer: DeviceBuffer,
}

/// The size of a buffer that weights are copied through, in bytes.
const CHUNK: usize = 2 << 20;
/// The number of such buffers: one is filled while the other is copied to the device.
const BUFFERS: usize = 2;

/// Bytes of host memory that an upload of `weights` bytes takes while it lasts.
pub(super) fn passing(weights: u64) -> u64 {
    weights.saturating_add(weights.min((BUFFERS * CHUNK) as u64))
}

/// The weights of `plans` on the device: those of another engine, if it has all of them, else new ones.
pub(super) fn upload(
    model: &Model,
    device: &Device,
    plans: &[Plan],
    stream: &Stream,
    watch: &mut Stopwatch,
) -> Result<Arc<Uploaded>, Error> {
    let layout = Arc::new(Layout::new(plans)?);
    let fits = |there: &Uploaded| there.has(model, &layout);
    device.share(fits, || Uploaded::new(model, device, plans, layout.clone(), stream, watch))
}

impl Uploaded {
    /// Whether these weights are of `model` and have all parts of `layout`.
    pub(super) fn has(&self, model: &Model, layout: &Layout) -> bool {
        Arc::ptr_eq(&self.from, model.weights()) && self.layout.covers(layout)
    }

    /// The buffer's address range on the device.
    pub(super) fn span(&self) -> Span {
        self.buffer.span_of(self.buffer.len())
    }

    /// Where each part lies in the buffer.
    pub(super) fn layout(&self) -> &Layout {
        &self.layout
    }

    fn new(
        model: &Model,
        device: &Device,
        plans: &[Plan],
        layout: Arc<Layout>,
        stream: &Stream,
        watch: &mut Stopwatch,
    ) -> Result<Self, Error> {
        let buffer = DeviceBuffer::new(device, layout.bytes())?;
        let mut packed = try_zeroed_slice_box(layout.bytes()).map_err(|()| {
            device.with_free(Error::OutOfMemory {
                device: device.info().target.clone(),
                what: "host memory for packed weights".into(),
                needed_bytes: layout.bytes() as u64,
                free_bytes: 0,
                fitting_batch: None,
            })
        })?;
        layout.fill(model, plans, &mut packed)?;
        watch.lap("weights read and packed");
        copy(device, stream, &packed, &buffer)?;
        drop(packed);
        watch.lap("weights uploaded");
        Ok(Self { from: model.weights().clone(), layout, buffer })
    }
}

/// Copies `bytes` to the start of `to`, and waits for the end of the copy.
fn copy(device: &Device, stream: &Stream, bytes: &[u8], to: &DeviceBuffer) -> Result<(), Error> {
    let chunk = bytes.len().clamp(1, CHUNK);
    let buffer = |_| Ok((HostBuffer::new(device, chunk)?, Event::new(device)?));
    let buffers = (0..bytes.len().div_ceil(chunk).min(BUFFERS)).map(buffer).collect::<Result<Vec<_>, Error>>()?;
    for (index, part) in bytes.chunks(chunk).enumerate() {
        let (host, copied) = &buffers[index % BUFFERS];
        if index >= BUFFERS {
            copied.wait()?;
        }
        let span = host.span_of(0, part.len());
        device.note(Note::Begin(span, Access::Write));
        // SAFETY: no copy of the buffer is under way: it is new, or the last one was waited for above.
        device.fill(unsafe { host.range_mut(0, part.len()) }, part);
        device.note(Note::End(span));
        // SAFETY: both buffers outlive the copy, whose event is waited for before the next write to `host` and below;
        // nothing else refers to this part of `to` yet.
        unsafe { stream.copy_in_at(to, index * chunk, host, 0, part.len())? };
        copied.record(stream)?;
    }
    buffers.iter().try_for_each(|(_, copied)| copied.wait())
}
