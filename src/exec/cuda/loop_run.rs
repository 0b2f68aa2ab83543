//! Loops without a model, written as PTX, on operands that the caller brings, for tests and benchmarks.

use std::sync::Arc;

use super::UntilFault;
use super::alone::Copies;
use super::launch::ArgBytes;
use super::loops::argument;
use crate::device::cuda::{Cuda, Function, LaunchShape, Module};
use crate::device::{Device, Kind};
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::loops::Loop;
use crate::loops::ptx::{self, Kernel, PtxTarget};

/// Loops as one module, loaded on a GPU.
pub struct LoopModule {
    cuda: Arc<Cuda>,
    device: Device,
    kernels: Vec<Kernel>,
    functions: UntilFault<Vec<Function>>,
}

/// A loop of a module with its operands, ready to run: several copies of them in turns, so that none stays in a cache.
pub struct LoopRun<'m> {
    module: &'m LoopModule,
    number: usize,
    /// The argument for each copy of the operands.
    arguments: Vec<ArgBytes>,
    copies: Copies,
    to: ValueType,
}

/// Bytes behind the result that the loop must not write.
const GUARD: usize = 256;
/// The byte that fills the result's memory before a run.
const POISON: u8 = 0xa5;

impl LoopModule {
    /// Writes loops as PTX and loads them.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device is no GPU or a loop cannot be written out; any of the device.
    pub fn new(device: &Device, loops: &[&Loop]) -> Result<Self, Error> {
        let Kind::Cuda(cuda) = device.kind() else {
            let what = format!("a loop alone on {}", device.info().target);
            return Err(Error::Unsupported { what, instead: "run it on a GPU".into() });
        };
        let target = PtxTarget { compute_capability: device.info().compute_capability, units: device.info().units };
        let kernels = loops.iter().map(|of| ptx::kernel(of, &target)).collect::<Result<Vec<_>, _>>()?;
        let text = ptx::module(&kernels, &target) + "\0";
        let module = Module::load(cuda, "loops", text.as_bytes())?;
        let functions = kernels.iter().map(|kernel| module.function(&kernel.entry, 0, 1, false));
        let functions = UntilFault::new(device, functions.collect::<Result<Vec<_>, _>>()?);
        Ok(Self { cuda: cuda.clone(), device: device.clone(), kernels, functions })
    }

    /// Uploads operands of one of the loops, `copies` times, one or more.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for more operands than an argument holds; any of the device.
    ///
    /// # Panics
    /// If the operands are not those of the loop, or it writes another value.
    pub fn run(
        &self,
        number: usize,
        of: &Loop,
        operands: &[&Tensor],
        to: &ValueType,
        copies: usize,
    ) -> Result<LoopRun<'_>, Error> {
        assert!(of.operands.iter().eq(operands.iter().map(|operand| operand.value_type())), "operands of a loop");
        assert_eq!((of.dtype(), of.elems()), (to.dtype, to.elems()), "what a loop writes");
        let kernel = &self.kernels[number];
        let result = vec![POISON; to.bytes() + GUARD];
        let bytes_of = |operand: usize| match operands[operand].bytes() {
            [] => &[0][..], // which nothing reads
            bytes => bytes,
        };
        let loaded = kernel.operands.iter().map(|&operand| bytes_of(operand));
        let bytes: Vec<&[u8]> = loaded.chain([&result[..]]).collect();
        let copies = Copies::new(&self.device, &bytes, copies)?;
        let arguments = copies.addresses().iter().map(|addresses| argument(addresses)).collect::<Result<_, _>>()?;
        Ok(LoopRun { module: self, number, arguments, copies, to: to.clone() })
    }
}

impl LoopRun<'_> {
    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        let kernel = &self.module.kernels[self.number];
        let shape = LaunchShape {
            grid: [kernel.blocks, 1, 1],
            cluster: kernel.cluster,
            block: [kernel.threads, 1, 1],
            shared_bytes: 0,
            waits_itself: kernel.waits_itself,
        };
        let mut arguments = self.arguments.iter().cycle();
        self.copies.timed(if kernel.blocks > 0 { times } else { 0 }, |stream| {
            let argument = arguments.next().expect("an operation has a copy");
            // SAFETY: the kernel was written for a loop whose operands have these types, which `LoopModule::run` compared
            // with those that were uploaded, and the result is as long as it writes; all live in self.
            unsafe { self.module.cuda.launch(&self.module.functions[self.number], &shape, argument.as_bytes(), stream) }
        })
    }

    /// The result of the last run on the first copy.
    ///
    /// # Errors
    /// [`Error::Internal`] if the loop wrote behind the result; any of the device.
    pub fn result(&self) -> Result<Tensor, Error> {
        let bytes = self.copies.result::<u8>()?;
        let (result, behind) = bytes.split_at(self.to.bytes());
        match behind[..GUARD].iter().all(|&byte| byte == POISON) {
            true => Ok(Tensor::from_bytes(self.to.clone(), result)),
            false => Err(Error::Internal { what: format!("a loop wrote behind its result, {}", self.to) }),
        }
    }
}
