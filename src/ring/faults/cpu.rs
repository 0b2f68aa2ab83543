//! Faults on the CPU: a program that panics.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::device::cpu::Work;
use crate::device::{Access, DeviceBuffer, Kind, Run, Span, Target};

/// Copies its input to its output, and panics in one run.
struct Panics {
    device: Device,
    inputs: Vec<DeviceBuffer>,
    outputs: Vec<DeviceBuffer>,
    runs: AtomicUsize,
    panics_at: usize,
}

impl Work for Panics {
    fn run(&self, run: Run) {
        thread::sleep(Duration::from_micros(200));
        assert!(self.runs.fetch_add(1, Ordering::Relaxed) != self.panics_at, "told to");
        let (input, output) = (self.inputs[run.slot].addr() as *const u8, self.outputs[run.slot].addr() as *mut u8);
        // SAFETY: the slot's buffers hold ROWS rows in host memory, and this stream alone accesses them now.
        unsafe { std::ptr::copy_nonoverlapping(input, output, run.rows * ROW_ALIGN) };
    }
}

impl Program for Panics {
    fn slots(&self) -> usize {
        self.inputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        &[ROWS]
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        &self.inputs[slot]
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        let bytes = run.rows * ROW_ALIGN;
        let (input, output) = (&self.inputs[run.slot], &self.outputs[run.slot]);
        vec![(input.span_of(bytes), Access::Read), (output.span_of(bytes), Access::Write)]
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let Kind::Cpu(cpu) = self.device.kind() else { unreachable!("made for the CPU") };
        cpu.clone().enqueue(stream, self, run)
    }
}

/// A program that copies its input to its output, and panics in run `panics_at`.
pub(super) fn program(device: &Device, panics_at: usize) -> Arc<dyn Program> {
    let buffers = || (0..SLOTS).map(|_| DeviceBuffer::new(device, ROWS * ROW_ALIGN).unwrap()).collect::<Vec<_>>();
    let (inputs, outputs) = (buffers(), buffers());
    Arc::new(Panics { device: device.clone(), inputs, outputs, runs: AtomicUsize::new(0), panics_at })
}

fn play(panics_at: usize, waiting: Waiting) -> (Arc<Core>, Vec<Error>) {
    let device = Device::open(Target::Cpu).unwrap().checked();
    let core = ring(&device, program(&device, panics_at), waiting);
    let errors = use_up(&core, 6);
    (core, errors)
}

#[test]
fn a_panicking_program_answers_everybody() {
    for waiting in WAYS {
        for panics_at in 0..8 {
            in_time("a panic", move || {
                let (core, errors) = play(panics_at, waiting);
                check_faulted(&core, &errors, "a program on the CPU panicked: told to", FaultClass::Device);
            });
        }
        let (core, errors) = in_time("a clean run", move || play(usize::MAX, waiting));
        check_clean(&core, &errors);
    }
}
