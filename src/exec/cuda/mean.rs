//! Launches of `kernels/mean.cu`, and the program that makes them: the mean of other programs' outputs.

use std::sync::Arc;

use super::launch::{Launch, aligned, in_range, kernel_args, product};
use super::{Kernels, UntilFault};
use crate::device::cuda::Cuda;
use crate::device::{Access, Device, DeviceBuffer, Program, Run, Span};
use crate::error::Error;
use crate::exec::mean::Averaged;

kernel_args! {
    /// `MeanArgs`.
    MeanArgs, 80 bytes {
        x: [u64; MOST_SOURCES],
        y: u64,
        quads: u32,
        sources: u32,
    }
}

/// The most programs whose outputs one launch averages: `kMaxSources`.
const MOST_SOURCES: usize = 8;
/// Bytes that a thread computes.
const QUAD: usize = 16;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernel.
pub(super) const ENTRY: &str = "sm80_mean";

/// The launch for `bytes` of floats at each of the addresses `x`, to `y`.
fn launch(x: &[u64], y: u64, bytes: usize) -> Result<Launch, Error> {
    let sources = in_range("models to average", x.len(), 1, MOST_SOURCES + 1)? as u32;
    let quads = product("floats / 4", &[bytes / QUAD])?;
    let mut args = MeanArgs { x: [0; MOST_SOURCES], y: aligned("y", y, QUAD as u64)?, quads, sources };
    for (target, address) in args.x.iter_mut().zip(x) {
        *target = aligned("x", *address, QUAD as u64)?;
    }
    Ok(Launch::flat(ENTRY, quads.div_ceil(THREADS), THREADS, &args))
}

/// Averages the outputs of programs.
pub(super) struct MeanProgram {
    averaged: Averaged,
    /// `[slot][size]`.
    launches: Vec<Vec<Launch>>,
    kernels: UntilFault<Kernels>,
}

impl MeanProgram {
    pub fn new(device: &Device, cuda: &Arc<Cuda>, averaged: Averaged) -> Result<Self, Error> {
        let Averaged { programs, outputs, .. } = &averaged;
        let of_slot = |(slot, output): (usize, &DeviceBuffer)| {
            let x: Vec<u64> = programs.iter().map(|program| program.output(slot).addr()).collect();
            let sizes = averaged.batch_sizes().iter().enumerate();
            sizes.map(|(size, &rows)| launch(&x, output.addr(), averaged.bytes(size, rows))).collect()
        };
        let launches: Vec<Vec<Launch>> = outputs.iter().enumerate().map(of_slot).collect::<Result<_, _>>()?;
        let mut kernels = UntilFault::new(device, Kernels::new(cuda));
        launches.iter().try_for_each(|of_slot| kernels.load(of_slot))?;
        Ok(Self { averaged, launches, kernels })
    }
}

impl Program for MeanProgram {
    fn slots(&self) -> usize {
        self.averaged.outputs.len()
    }

    fn batch_sizes(&self) -> &[usize] {
        self.averaged.batch_sizes()
    }

    fn input(&self, slot: usize) -> &DeviceBuffer {
        self.averaged.input(slot)
    }

    fn output(&self, slot: usize) -> &DeviceBuffer {
        &self.averaged.outputs[slot]
    }

    fn touches(&self, run: Run) -> Vec<(Span, Access)> {
        self.averaged.touches(run.slot, run.size, self.batch_sizes()[run.size])
    }

    unsafe fn launch(self: Arc<Self>, run: Run, stream: u64) -> Result<(), Error> {
        let launch = &self.launches[run.slot][run.size];
        // SAFETY: the addresses are of buffers that self and the programs it keeps own; the stream is live by the caller,
        // who orders what else touches them.
        unsafe { self.kernels.launch(launch, stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&[0x100, 0x200, 0x300], 0x400, 5 * 256).unwrap();
        let args: MeanArgs = launch.args.read();
        let x = [0x100, 0x200, 0x300, 0, 0, 0, 0, 0];
        assert_eq!(args, MeanArgs { x, y: 0x400, quads: 80, sources: 3 });
        assert_eq!((&*launch.entry, launch.grid), (ENTRY, [1, 1, 1]));
    }

    #[test]
    fn out_of_range_is_an_error() {
        assert!(launch(&[0x100; 9], 0x400, 256).is_err());
        assert!(launch(&[0x108], 0x400, 256).is_err());
        assert!(launch(&[], 0x400, 256).is_err());
    }
}
