//! Kernels that the stand-in interprets, called through the driver's functions: their results, in streams and in
//! graphs, and the consequences of a bad kernel.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys;
use trefoil::Error;

use crate::cuda::{Context, Memory, Stream, cuda};
use crate::harness::{Scenario, for_each_number};

const ELEMS: usize = 100;
const THREADS: u32 = 32;

/// `to[i] = 2 from[i] + 1` for i below `elems`, by blocks of 32 threads.
const DOUBLE: &CStr = c"
.version 8.0
.target sm_80
.address_size 64

.visible .entry double(.param .u64 to, .param .u64 from, .param .u32 elems)
.maxntid 32, 1, 1
{
    .reg .pred %past;
    .reg .b32 %i, %elems, %x;
    .reg .b64 %at, %offset;
    ld.param.u32 %elems, [elems];
    mov.u32 %x, %ctaid.x;
    mad.lo.u32 %i, %x, 32, %tid.x;
    setp.ge.u32 %past, %i, %elems;
    @%past ret;
    mul.wide.u32 %offset, %i, 4;
    ld.param.u64 %at, [from];
    add.u64 %at, %at, %offset;
    ld.global.u32 %x, [%at];
    mad.lo.u32 %x, %x, 2, 1;
    ld.param.u64 %at, [to];
    add.u64 %at, %at, %offset;
    st.global.u32 [%at], %x;
}
";

struct Loaded {
    module: sys::CUmodule,
    function: sys::CUfunction,
}

impl Loaded {
    fn new(text: &CStr, name: &CStr) -> Result<Self, Error> {
        let (mut module, mut function) = (null_mut(), null_mut());
        cuda!(cuModuleLoadDataEx(&mut module, text.as_ptr().cast(), 0, null_mut(), null_mut()))?;
        cuda!(cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
        cuda!(cuFuncLoad(function))?;
        Ok(Self { module, function })
    }

    /// Launches the kernel on `elems` elements.
    fn launch(&self, stream: &Stream, mut to: u64, mut from: u64, mut elems: u32) -> Result<(), Error> {
        let place = |value: *mut u64| value.cast::<c_void>();
        let mut parameters = [place(&mut to), place(&mut from), (&raw mut elems).cast()];
        let config = sys::CUlaunchConfig {
            gridDimX: elems.div_ceil(THREADS),
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: THREADS,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: stream.0,
            attrs: null_mut(),
            numAttrs: 0,
        };
        cuda!(cuLaunchKernelEx(&config, self.function, parameters.as_mut_ptr(), null_mut()))
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let _ = cuda!(cuModuleUnload(self.module));
    }
}

/// Page-locked memory of `ELEMS` words.
struct Words(*mut u32);

impl Words {
    fn new() -> Self {
        let mut start = null_mut();
        cuda!(cuMemHostAlloc(&mut start, 4 * ELEMS, 0)).unwrap();
        Self(start.cast())
    }

    fn all(&mut self) -> &mut [u32] {
        // SAFETY: so many were allocated; a caller has waited for all work on them.
        unsafe { std::slice::from_raw_parts_mut(self.0, ELEMS) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        cuda!(cuMemFreeHost(self.0.cast())).unwrap();
    }
}

/// A graph that launches the kernel from `a` to `b` and back.
fn there_and_back(double: &Loaded, stream: &Stream, a: u64, b: u64) -> sys::CUgraphExec {
    let (mut graph, mut exec) = (null_mut(), null_mut());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    cuda!(cuStreamBeginCapture_v2(stream.0, mode)).unwrap();
    double.launch(stream, b, a, ELEMS as u32).unwrap();
    double.launch(stream, a, b, ELEMS as u32).unwrap();
    cuda!(cuStreamEndCapture(stream.0, &mut graph)).unwrap();
    cuda!(cuGraphInstantiateWithFlags(&mut exec, graph, 0)).unwrap();
    cuda!(cuGraphDestroy(graph)).unwrap();
    exec
}

#[test]
fn kernels_compute_in_streams_and_in_graphs() {
    let scenario = Scenario::new("interpreter::kernels_compute_in_streams_and_in_graphs", || {
        let _context = Context::new().unwrap();
        let (stream, double) = (Stream::new().unwrap(), Loaded::new(DOUBLE, c"double").unwrap());
        let (a, b) = (Memory::new(4 * ELEMS).unwrap(), Memory::new(4 * ELEMS).unwrap());
        let mut words = Words::new();
        (0..).zip(words.all()).for_each(|(i, word)| *word = i);
        let exec = there_and_back(&double, &stream, a.0, b.0);
        cuda!(cuMemcpyHtoDAsync_v2(a.0, words.0.cast(), 4 * ELEMS, stream.0)).unwrap();
        double.launch(&stream, b.0, a.0, ELEMS as u32).unwrap();
        double.launch(&stream, a.0, b.0, ELEMS as u32 - 1).unwrap();
        cuda!(cuGraphLaunch(exec, stream.0)).unwrap();
        cuda!(cuGraphLaunch(exec, stream.0)).unwrap();
        cuda!(cuMemcpyDtoHAsync_v2(words.0.cast(), a.0, 4 * ELEMS, stream.0)).unwrap();
        stream.synchronize().unwrap();
        // All words go through 2x + 1 six times, but the last one four times, because the second launch leaves it out.
        for (i, word) in (0..).zip(words.all()) {
            assert_eq!(*word, if i == ELEMS as u32 - 1 { 16 * i + 15 } else { 64 * i + 63 });
        }
        cuda!(cuGraphExecDestroy(exec)).unwrap();
    });
    scenario.run(&[]).assert_clean();
    scenario.run(&[("FAKE_CUDA_EVENTS", "own")]).assert_clean();
    for_each_number(3, |seed| {
        scenario.run(&[("FAKE_CUDA_EVENTS", "held"), ("FAKE_CUDA_SEED", &seed.to_string())]).assert_clean();
    });
}

/// All later calls return the status of the kernel's fault, and results computed before it stay.
#[test]
fn a_bad_address_is_a_fault_that_lasts() {
    let scenario = Scenario::new("interpreter::a_bad_address_is_a_fault_that_lasts", || {
        let _context = Context::new().unwrap();
        let (stream, double) = (Stream::new().unwrap(), Loaded::new(DOUBLE, c"double").unwrap());
        let memory = Memory::new(4 * ELEMS).unwrap();
        let launched = double.launch(&stream, memory.0, memory.0, ELEMS as u32 + 1);
        let said = launched.and_then(|()| stream.synchronize()).unwrap_err().to_string();
        assert!(said.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{said}");
        assert!(double.launch(&stream, memory.0, memory.0, 1).is_err() && Memory::new(4).is_err());
        // SAFETY: the stand-in's device memory is the host's; no work is under way.
        let first = unsafe { *(memory.0 as *const u32) };
        assert_eq!(first, 0xCDCD_CDCD_u32.wrapping_mul(2) + 1);
    });
    for events in ["instant", "held", "own"] {
        let report = scenario.run(&[("FAKE_CUDA_EVENTS", events)]);
        assert!(report.status.success(), "{report}");
        let [violation] = &report.violations[..] else { panic!("{:?}\n{report}", report.violations) };
        for part in ["double runs: a load of 4 bytes at Global address", "block [3, 0, 0], thread [4, 0, 0]"] {
            assert!(violation.contains(part), "{violation}");
        }
    }
}

#[test]
fn a_text_with_what_is_unknown_is_refused_by_name() {
    let scenario = Scenario::new("interpreter::a_text_with_what_is_unknown_is_refused_by_name", || {
        let _context = Context::new().unwrap();
        let text = c".version 8.0\n.target sm_80\n.entry k() { .reg .b32 %r1;\n frobnicate.b32 %r1, 5; }";
        let mut said = [0_u8; 200];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut load = |bytes: usize| {
            let (mut module, mut values) = (null_mut(), [said.as_mut_ptr().cast::<c_void>(), bytes as *mut c_void]);
            let image = text.as_ptr().cast();
            let status = cuda!(cuModuleLoadDataEx(&mut module, image, 2, options.as_mut_ptr(), values.as_mut_ptr()));
            assert!(status.unwrap_err().to_string().contains("CUDA_ERROR_INVALID_PTX"));
            CStr::from_bytes_until_nul(&said).unwrap().to_str().unwrap().to_owned()
        };
        assert_eq!(load(200), "ptx line 4: frobnicate.b32: the interpreter does not know this instruction");
        assert_eq!(load(12), "ptx line 4:");
    });
    scenario.run(&[]).assert_clean();
}
