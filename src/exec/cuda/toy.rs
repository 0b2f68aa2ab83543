//! Launches of the kernel that only tests have: see `plan/kernels/toy.rs`. No module has its code.

use super::entries::{Arguments, EntryPoint, Launcher};
use super::launch::{Launch, product};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::Kernel;

pub(super) struct Toy;

const ENTRY: &str = "toy";
const THREADS: u32 = 64;

impl Launcher for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        Vec::new()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Toy(images) = step.kernel() else { return Err(step.wrong_kernel()) };
        let (x, _, y) = step.pointers();
        let blocks = product("blocks", &[step.images().div_ceil(images)])?;
        Ok(Launch::flat(ENTRY, blocks, THREADS, &[x, y]))
    }

    fn arguments(&self) -> Vec<Arguments> {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::pack::Layout;
    use super::super::steps::{Addresses, launches};
    use super::*;
    use crate::model::images::Network;
    use crate::model::{Preprocessing, architecture};
    use crate::plan::{Choices, Limits, Request, kernels, plan};
    use crate::tensor::{InputFormat, OutputKind};

    /// The lists are the only place that names the kernel; planner, packing and launches find it there.
    #[test]
    fn a_kernel_in_the_lists_is_launched() {
        let graph = Network::of(&architecture("resnet18", 10, None).unwrap()).unwrap();
        let limits = Limits::gpu(kernels::TOY_GPU, [8, 0], 4, 100_000);
        let (input, output, choices) = (InputFormat::U8Nhwc, OutputKind::Logits, Choices::new());
        let preprocessing = &Preprocessing::new(graph.input);
        let request = Request { limits: &limits, batch: 30, input, preprocessing, output, choices: &choices };
        let plan = plan(&graph, &request).unwrap();
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        let addresses =
            Addresses { input: 1 << 20, output: 2 << 20, arena: 1 << 30, weights: 1 << 40, states: Vec::new() };
        let launches = launches(&plan, &layout, &crate::exec::cuda::Written::default(), &addresses).unwrap();
        let found: Vec<_> = launches.iter().filter(|launch| launch.entry == ENTRY).collect();
        assert_eq!((found.len(), found[0].grid, found[0].block), (1, [8, 1, 1], [THREADS, 1, 1]));
    }
}
