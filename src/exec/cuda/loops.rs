//! Loops of a plan, written out as PTX and launched.

use std::sync::Arc;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, Launch};
use super::steps::Operands;
use crate::device::cuda::{Cuda, Module};
use crate::error::Error;
use crate::loops::Loop;
use crate::loops::ptx::{self, Kernel, PtxTarget};
use crate::plan::{Limits, Plan, StepOp};

/// The loops of some plans as kernels. A loop that plans share is written once.
#[derive(Default)]
pub(super) struct Written {
    /// Each loop with its kernel, once: plans of the same graph have equal loops.
    kernels: Vec<(Arc<Loop>, Kernel)>,
    /// The text of the module with all kernels; `None` if there are none.
    text: Option<String>,
}

impl Written {
    /// Writes the loops of `plans` as PTX.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a loop that cannot be written out; plans of models have none.
    pub fn new(plans: &[Plan]) -> Result<Self, Error> {
        let Some(limits) = plans.first().map(|plan| &plan.limits) else { return Ok(Self::default()) };
        let target = target(limits);
        let mut written = Self::default();
        for step in plans.iter().flat_map(|plan| &plan.steps) {
            if let StepOp::Loop(of) = &step.op
                && written.find(&of.of).is_none()
            {
                written.kernels.push((of.of.clone(), ptx::kernel(&of.of, &target)?));
            }
        }
        let kernels = || written.kernels.iter().map(|(_, kernel)| kernel);
        let text = (!written.kernels.is_empty()).then(|| ptx::module(kernels(), &target) + "\0");
        Ok(Self { text, ..written })
    }

    /// The module of all kernels, loaded.
    pub fn load(&self, cuda: &Arc<Cuda>) -> Result<Option<Arc<Module>>, Error> {
        self.text.as_ref().map(|text| Module::load(cuda, "loops", text.as_bytes())).transpose()
    }

    fn kernel(&self, of: &Arc<Loop>) -> &Kernel {
        self.find(of).expect("plans of one graph have the same loops")
    }

    fn find(&self, of: &Arc<Loop>) -> Option<&Kernel> {
        let is_it = |known: &Arc<Loop>| Arc::ptr_eq(known, of) || known == of;
        self.kernels.iter().find(|(known, _)| is_it(known)).map(|(_, kernel)| kernel)
    }
}

/// Addresses of operands and of the result as the one argument of a kernel.
///
/// # Errors
/// [`Error::Unsupported`] for more than an argument holds.
pub(super) fn argument(addresses: &[u64]) -> Result<ArgBytes, Error> {
    ArgBytes::of_bytes(bytemuck::cast_slice(addresses)).ok_or_else(|| Error::Unsupported {
        what: format!("a loop of {} operands", addresses.len() - 1),
        instead: "divide the operation into several".into(),
    })
}

fn target(limits: &Limits) -> PtxTarget {
    PtxTarget { compute_capability: limits.compute_capability, units: limits.units }
}

/// The launcher of loops.
pub(super) struct Loops;

impl Launcher for Loops {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        Vec::new() // they are written when a model is built
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Loop(of) = step.op() else { return Err(step.wrong_kernel()) };
        let kernel = step.written().kernel(&of.of);
        let operands = kernel.operands.iter().map(|&operand| step.input_address(operand));
        let addresses: Vec<u64> = operands.chain([step.output_address(0)]).collect(); // it may read nothing
        let args = argument(&addresses)?;
        Ok(Launch {
            entry: kernel.entry.clone().into(),
            grid: [kernel.blocks, 1, 1],
            cluster: kernel.cluster,
            block: [kernel.threads, 1, 1],
            shared_bytes: 0,
            args,
            maps: Vec::new(),
            waits_itself: kernel.waits_itself,
        })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        Vec::new()
    }
}
