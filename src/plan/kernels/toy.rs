//! A kernel that only tests have, added as in docs/adding-a-kernel.md: means over all pixels, on an imaginary GPU.

use super::{Kernel, KernelDef, Variant};
use crate::plan::work::Work;
use crate::plan::{Limits, StepOp};
use crate::tensor::Dtype;

/// The kernel of the tests. `exec/cuda/toy.rs` launches it.
pub(super) struct Toy;

/// The name of the GPU that has the kernel.
pub(crate) const GPU: &str = "a GPU with a toy";

/// The numbers of images of a block.
const TILES: [usize; 2] = [1, 4];

impl KernelDef for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn runs_on(&self, limits: &Limits) -> bool {
        limits.name == GPU
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        matches!(work.op, StepOp::GlobalAvgPool) && work.is_in(Dtype::F16, Dtype::F16)
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Toy(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let clocks = |images: usize| (work.batch.div_ceil(images).div_ceil(limits.units) * (10 + images)) as f64;
        TILES.map(|images| Variant::modelled((Kernel::Toy(images), clocks(images)))).into()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::error::Error;
    use crate::graph::{GraphBuilder, Window};
    use crate::model::Preprocessing;
    use crate::model::images::Network;
    use crate::plan::{Choices, Plan, Request, plan};
    use crate::tensor::{InputFormat, OutputKind, Shape};

    fn planned(limits: &Limits, batch: usize, choices: &Choices) -> Result<Plan, Error> {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 16));
        let x = g.conv2d("conv", image, 24, Window::square(3, 1, 1));
        let mean = g.global_avg_pool("mean", x);
        g.output("y", mean);
        let graph = Network::of(&g.finish()?)?;
        let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
        let preprocessing = &Preprocessing::new(graph.input);
        plan(&graph, &Request { limits, batch, input, preprocessing, output, choices })
    }

    #[test]
    fn a_kernel_in_the_list_is_chosen_predicted_and_printed() {
        let limits = Limits::gpu(GPU, [8, 0], 4, 100_000);
        let plan = planned(&limits, 64, &Choices::new()).unwrap();
        let at = plan.steps.iter().position(|step| step.name == "mean").unwrap();
        assert_eq!(plan.steps[at].kernel, Kernel::Toy(4));
        let clocks: Vec<_> = plan.candidates(at).iter().map(|found| (found.kernel, found.clocks)).collect();
        assert_eq!(clocks, [(Kernel::Toy(4), 56.0)]); // the other is more than half as long again
        assert_eq!(plan.predicted(at), plan.candidates(at).first().copied());
        assert_eq!(plan.shape_of(at), "global-pool : 8x8x24 f16 -> 1x1x24 f16, batch 64");
        assert!(plan.to_string().contains(" toy global_avg_pool 4 "), "{plan}");
        let few = planned(&limits, 4, &Choices::new()).unwrap();
        assert_eq!(few.steps[at].kernel, Kernel::Toy(1));
        assert_eq!(few.candidates(at).len(), 2);
    }

    #[test]
    fn it_can_be_chosen_where_it_runs_and_nowhere_else() {
        let limits = Limits::gpu(GPU, [8, 0], 4, 100_000);
        let with = |name: &str, kernel| Choices::from([(name.to_owned(), kernel)]);
        let chosen = |choices: &Choices| planned(&limits, 64, choices).map(|plan| plan.steps[2].kernel);
        assert_eq!(chosen(&with("mean", Kernel::Toy(1))).unwrap(), Kernel::Toy(1));
        assert_eq!(chosen(&with("mean", Kernel::Sm80)).unwrap(), Kernel::Sm80);
        assert!(chosen(&with("conv", Kernel::Toy(1))).is_err());
        let elsewhere = planned(&Limits::a100(), 64, &with("mean", Kernel::Toy(1)));
        assert!(matches!(elsewhere, Err(Error::Unsupported { .. })));
        assert_eq!(planned(&Limits::a100(), 64, &Choices::new()).unwrap().steps[2].kernel, Kernel::Sm80);
    }

    /// Besides its own two files, a kernel is named only in two lists.
    #[test]
    fn a_kernel_takes_edits_in_two_files_beside_its_own() {
        fn files(folder: &Path, found: &mut Vec<String>, name: &str) {
            for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                if path.is_dir() {
                    files(&path, found, name);
                } else if fs::read_to_string(&path).is_ok_and(|text| text.to_lowercase().contains(name)) {
                    found.push(path.to_str().unwrap().replace('\\', "/"));
                }
            }
        }
        let lists = ["src/exec/cuda/mod.rs", "src/plan/kernels/mod.rs"];
        for name in ["sm90_conv2d_halo", "toy"] {
            let mut found = Vec::new();
            files(Path::new("src"), &mut found, name);
            // Files about bytes also name the kernel: the kernel of bytes has its tiles.
            let shares = |path: &str| path.contains("s8");
            found.retain(|path| !lists.contains(&&path[..]) && !path.ends_with("kernels/toy.rs") && !shares(path));
            found.sort();
            let own = [format!("src/exec/cuda/{name}.rs"), format!("src/plan/kernels/{name}.rs")];
            assert!(found.iter().all(|path| own.contains(path)), "{name} is named in {found:?}");
        }
    }
}
