//! Captured graphs: many launches at the cost of one.

use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys;

use super::Cuda;
use super::driver::{at_exit, cu};
use crate::error::Error;

/// An instantiated graph. Its owner also owns every buffer that it addresses.
pub(crate) struct CudaGraph {
    exec: sys::CUgraphExec,
    cuda: Arc<Cuda>,
}

// SAFETY: graph handles may be used from any thread, one launch at a time; see `launch`.
unsafe impl Send for CudaGraph {}
// SAFETY: nothing changes the graph after it is made; concurrent launches are excluded by the caller of `launch`.
unsafe impl Sync for CudaGraph {}

impl CudaGraph {
    /// Captures the work that `enqueue` enqueues on `stream`, and makes it launchable. The capture is thread-local:
    /// other threads of the host program may make CUDA calls meanwhile. It also ends if `enqueue` fails.
    pub fn capture(cuda: &Arc<Cuda>, stream: u64, enqueue: impl FnOnce() -> Result<(), Error>) -> Result<Self, Error> {
        let _entered = cuda.enter()?;
        let stream = stream as sys::CUstream;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live and owned by the caller, who enqueues nothing else on it meanwhile.
        unsafe { cu!(cuda.call(), cuStreamBeginCapture_v2(stream, mode))? };
        let mut graph = Captured { raw: null_mut(), cuda };
        let ending = EndCapture { stream, cuda, ended: false };
        let enqueued = enqueue();
        let ended = ending.end(&mut graph.raw);
        enqueued.and(ended)?;
        let mut exec = null_mut();
        // SAFETY: the graph was captured without error.
        unsafe { cu!(cuda.call(), cuGraphInstantiateWithFlags(&mut exec, graph.raw, 0))? };
        let this = Self { exec, cuda: cuda.clone() };
        // SAFETY: both are live; uploading now keeps the first launch from doing it.
        unsafe { cu!(cuda.call(), cuGraphUpload(this.exec, stream))? };
        Ok(this)
    }

    /// Launches the graph on `stream`.
    ///
    /// # Safety
    /// `stream` is live, and all launches of this graph go to it or are ordered otherwise.
    pub unsafe fn launch(&self, stream: u64) -> Result<(), Error> {
        // SAFETY: the graph is live; the rest by the caller.
        unsafe { cu!(self.cuda.call(), cuGraphLaunch(self.exec, stream as sys::CUstream)) }
    }
}

/// A captured graph that is not instantiated yet.
struct Captured<'a> {
    raw: sys::CUgraph,
    cuda: &'a Cuda,
}

impl Drop for Captured<'_> {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: captured once, destroyed once; an instantiated copy does not need it.
        if let Err(error) = at_exit(unsafe { cu!(self.cuda.call(), cuGraphDestroy(self.raw)) }) {
            log::error!("dropping a captured graph: {error}");
        }
    }
}

/// Ends a capture, also when the closure panics.
struct EndCapture<'a> {
    stream: sys::CUstream,
    cuda: &'a Cuda,
    ended: bool,
}

impl EndCapture<'_> {
    fn end(mut self, graph: &mut sys::CUgraph) -> Result<(), Error> {
        self.ended = true;
        // SAFETY: the stream is live and capturing since `capture` began it.
        unsafe { cu!(self.cuda.call(), cuStreamEndCapture(self.stream, graph)) }
    }
}

impl Drop for EndCapture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let mut graph = Captured { raw: null_mut(), cuda: self.cuda };
            // SAFETY: as in `end`. What a panic left of the capture is destroyed; the panic is reported, not this.
            let _ = unsafe { cu!(self.cuda.call(), cuStreamEndCapture(self.stream, &mut graph.raw)) };
        }
    }
}

impl Drop for CudaGraph {
    fn drop(&mut self) {
        // SAFETY: instantiated once, destroyed once; the driver defers it past a running launch.
        if let Err(error) = at_exit(unsafe { cu!(self.cuda.call(), cuGraphExecDestroy(self.exec)) }) {
            log::error!("dropping a graph: {error}");
        }
    }
}
