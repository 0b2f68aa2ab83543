//! From a plan's steps to launches: addresses are filled in, and the launchers check every legal range.

use super::LAUNCHERS;
use super::launch::Launch;
use super::loops::Written;
use super::pack::Layout;
use crate::error::Error;
use crate::plan::work::Work;
use crate::plan::{Kernel, Limits, Place, Plan, Step, StepOp, Tensor, TensorId, kernels};
use crate::tensor::{RowSpec, Shape};

/// The addresses of a slot's buffers, and of those of the program.
#[derive(Clone, Debug)]
pub(super) struct Addresses {
    pub input: u64,
    pub output: u64,
    pub arena: u64,
    pub weights: u64,
    pub states: Vec<u64>,
}

/// The launches of `plan` on the buffers at `addresses`.
pub(super) fn launches(
    plan: &Plan,
    layout: &Layout,
    written: &Written,
    addresses: &Addresses,
) -> Result<Vec<Launch>, Error> {
    (0..plan.steps.len()).map(|index| launch(plan, index, layout, written, addresses)).collect()
}

/// The launch of one step of the plan.
pub(super) fn launch(
    plan: &Plan,
    index: usize,
    layout: &Layout,
    written: &Written,
    addresses: &Addresses,
) -> Result<Launch, Error> {
    let step = &plan.steps[index];
    // A step reads first what the previous step wrote last, because this is most likely still in the L2 cache.
    let backward = index % 2 == 1;
    Operands { plan, step, layout, written, addresses, backward }.launch().map_err(|error| at_step(error, step))
}

impl Addresses {
    /// Whether a step touches memory that has another address in `to`.
    pub fn is_moved(&self, to: &Self, plan: &Plan, step: usize) -> bool {
        let Step { inputs, outputs, .. } = &plan.steps[step];
        inputs.iter().chain(outputs).any(|id| match plan.tensors[id.0].place {
            Place::Input(_) => self.input != to.input,
            Place::Output(_) => self.output != to.output,
            Place::Arena(_) => self.arena != to.arena,
            Place::State(number) => self.states[number] != to.states[number],
            Place::Constant(_) => self.weights != to.weights,
        })
    }
}

/// Adds the step's name to an error about its ranges.
fn at_step(error: Error, step: &Step) -> Error {
    match error {
        Error::Unsupported { what, instead } => {
            Error::Unsupported { what: format!("node `{}`: {what}", step.name), instead }
        }
        other => other,
    }
}

/// A step with everything that it refers to.
pub(super) struct Operands<'a> {
    plan: &'a Plan,
    step: &'a Step,
    layout: &'a Layout,
    written: &'a Written,
    addresses: &'a Addresses,
    /// Whether the step computes its last pixels first, if its kernel has an order.
    pub backward: bool,
}

impl Operands<'_> {
    /// The launch of the step by the kernel that it was planned for.
    fn launch(&self) -> Result<Launch, Error> {
        let def = kernels::of(&self.work(), self.kernel());
        let launcher = def.and_then(|def| LAUNCHERS.iter().find(|launcher| launcher.name() == def.name()));
        launcher.ok_or_else(|| self.wrong_kernel())?.launch(self)
    }

    /// The error for a step whose kernel does not compute it.
    pub fn wrong_kernel(&self) -> Error {
        Error::Internal { what: format!("step {} planned for {:?}", self.step.name, self.step.kernel) }
    }

    /// The step's operation and operands, as the planner sees them.
    pub fn work(&self) -> Work<'_> {
        self.plan.work(self.step)
    }

    pub fn name(&self) -> &str {
        &self.step.name
    }

    pub fn kernel(&self) -> Kernel {
        self.step.kernel
    }

    /// The number of rows of a run.
    pub fn batch(&self) -> usize {
        self.plan.batch
    }

    /// The number of images of a run.
    pub fn images(&self) -> usize {
        self.plan.images
    }

    pub fn limits(&self) -> &Limits {
        &self.plan.limits
    }

    /// The rows that the plan reads.
    pub fn input_rows(&self) -> &RowSpec {
        &self.plan.input
    }

    /// The rows that the plan writes.
    pub fn output_rows(&self) -> &RowSpec {
        &self.plan.output
    }

    pub fn op(&self) -> &StepOp {
        &self.step.op
    }

    /// The bytes from one row of the first operand to the next. Rows of photos that are no input lie end to end, at
    /// multiples of 4 bytes if there are several.
    pub fn photo_pitch(&self) -> usize {
        match self.x().place {
            Place::Input(_) => self.plan.input.row_pitch,
            Place::Output(_) | Place::Constant(_) | Place::State(_) | Place::Arena(_) => {
                (self.x().bytes / self.plan.images).next_multiple_of(4)
            }
        }
    }

    /// One of the tensors that the step reads.
    pub fn input(&self, index: usize) -> &Tensor {
        &self.plan.tensors[self.step.inputs[index].0]
    }

    pub fn x(&self) -> &Tensor {
        self.input(0)
    }

    pub fn y(&self) -> &Tensor {
        &self.plan.tensors[self.step.outputs[0].0]
    }

    fn address(&self, id: TensorId) -> u64 {
        match self.plan.tensors[id.0].place {
            Place::Input(offset) => self.addresses.input + offset as u64,
            Place::Output(offset) => self.addresses.output + offset as u64,
            Place::Constant(number) => {
                self.addresses.weights + self.layout.constant(&self.plan.constants[number]) as u64
            }
            Place::State(number) => self.addresses.states[number],
            Place::Arena(offset) => self.addresses.arena + offset as u64,
        }
    }

    /// Addresses of the step's first input, of its second input if there is one, and of its output.
    pub fn pointers(&self) -> (u64, Option<u64>, u64) {
        let second = self.step.inputs.get(1).map(|&id| self.address(id));
        (self.address(self.step.inputs[0]), second, self.output_address(0))
    }

    /// The number of tensors that the step reads.
    pub fn inputs(&self) -> usize {
        self.step.inputs.len()
    }

    /// Address of one of the tensors that the step reads.
    pub fn input_address(&self, index: usize) -> u64 {
        self.address(self.step.inputs[index])
    }

    /// The plan's loops as kernels.
    pub fn written(&self) -> &Written {
        self.written
    }

    /// Address of the step's second output, if there is one.
    pub fn second_output(&self) -> Option<u64> {
        self.step.outputs.get(1).map(|&id| self.address(id))
    }

    /// Address of one of the tensors that the step writes.
    pub fn output_address(&self, index: usize) -> u64 {
        self.address(self.step.outputs[index])
    }

    /// Addresses of filter and bias.
    pub fn weights(&self) -> (u64, u64) {
        (self.filter(&self.step.name), self.bias(0))
    }

    /// Address of the bias of one of the step's sums.
    pub fn bias(&self, sum: usize) -> u64 {
        self.addresses.weights + self.layout.bias(self.plan, self.step, sum) as u64
    }

    /// Address of the filter of a node that the step computes.
    pub fn filter(&self, node: &str) -> u64 {
        self.addresses.weights + self.layout.filter(self.plan, self.step, node) as u64
    }
}

/// The tensor's shape with its stored channels.
pub(super) fn stored(tensor: &Tensor) -> Shape {
    Shape { channels: tensor.stored_channels, ..tensor.shape }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::plan::{Choices, Request, TailTile, plan};
    use crate::tensor::{InputFormat, OutputKind};

    const ADDRESSES: Addresses =
        Addresses { input: 1 << 20, output: 2 << 20, arena: 1 << 30, weights: 1 << 40, states: Vec::new() };

    fn launches_of(limits: &Limits, batch: usize, output: OutputKind) -> (Plan, Vec<Launch>) {
        let model = Model::open("weights/efficientnet-lite0").unwrap();
        let request = Request {
            limits,
            batch,
            input: InputFormat::U8Nhwc,
            preprocessing: model.preprocessing().unwrap(),
            output,
            choices: &Choices::default(),
        };
        let plan = plan(model.image_network().unwrap(), &request).unwrap();
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        let launches = launches(&plan, &layout, &Written::default(), &ADDRESSES).unwrap();
        (plan, launches)
    }

    #[test]
    fn every_step_becomes_a_launch_that_the_gpu_takes() {
        for limits in [Limits::a100(), Limits::rtx4090(), Limits::h200()] {
            for batch in [1, 3, 32, 256, 1024] {
                let (plan, launches) = launches_of(&limits, batch, OutputKind::TopK(5));
                assert_eq!(launches.len(), plan.steps.len());
                for (step, launch) in plan.steps.iter().zip(&launches) {
                    let [x, y, z] = launch.grid;
                    let name = &step.name;
                    assert!((1..=0x7fff_ffff).contains(&x) && y == 1 && z == 1, "{name}: grid {:?}", launch.grid);
                    assert!(launch.block[0] % 32 == 0 && launch.block[0] <= 1024, "{name}: block {:?}", launch.block);
                    let granted = limits.shared_bytes;
                    assert!(
                        launch.shared_bytes as usize <= granted,
                        "{name} on {limits}: {} bytes",
                        launch.shared_bytes
                    );
                }
            }
        }
    }

    /// Slots that share an arena differ only in launches that touch rows. With another arena all launches of this plan
    /// differ.
    #[test]
    fn launches_differ_in_what_lies_elsewhere_alone() {
        let (plan, here) = launches_of(&Limits::h200(), 32, OutputKind::TopK(5));
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        let differing = |to: Addresses| {
            let there = launches(&plan, &layout, &Written::default(), &to).unwrap();
            let differ: Vec<bool> = here.iter().zip(&there).map(|(here, there)| here != there).collect();
            let moved = (0..plan.steps.len()).map(|step| ADDRESSES.is_moved(&to, &plan, step)).collect::<Vec<_>>();
            assert_eq!(moved, differ);
            differ.into_iter().filter(|&differs| differs).count()
        };
        assert_eq!(differing(ADDRESSES), 0);
        assert_eq!(differing(Addresses { input: 5 << 20, output: 6 << 20, ..ADDRESSES }), 2);
        assert_eq!(differing(Addresses { arena: 2 << 30, ..ADDRESSES }), plan.steps.len());
    }

    /// Kernels of another operation or of a CPU are refused; no other kernel is launched instead.
    #[test]
    fn a_kernel_that_does_not_compute_a_step_is_refused() {
        let limits = Limits::h200();
        let others = [Kernel::Cpu, Kernel::Joined, Kernel::Sm90Tail(TailTile { images: 1, blocks: 8 })];
        for output in [OutputKind::TopK(5), OutputKind::Logits] {
            let (plan, _) = launches_of(&limits, 8, output);
            let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
            for (step, other) in (0..plan.steps.len()).flat_map(|step| others.map(|other| (step, other))) {
                let mut wrong = plan.clone();
                wrong.steps[step].kernel = other;
                let refused = launches(&wrong, &layout, &Written::default(), &ADDRESSES);
                let name = &plan.steps[step].name;
                assert!(matches!(refused, Err(Error::Internal { .. })), "{name} by {other:?}");
            }
        }
    }

    #[test]
    fn a_batch_beyond_the_kernels_indices_is_an_error_that_names_the_step() {
        let model = Model::open("weights/efficientnet-lite0").unwrap();
        let limits = Limits::h200();
        let request = Request {
            limits: &limits,
            batch: 1 << 20,
            input: InputFormat::U8Nhwc,
            preprocessing: model.preprocessing().unwrap(),
            output: OutputKind::Logits,
            choices: &Choices::default(),
        };
        let plan = plan(model.image_network().unwrap(), &request).unwrap();
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        match launches(&plan, &layout, &Written::default(), &ADDRESSES) {
            Err(Error::Unsupported { what, .. }) => assert!(what.starts_with("node `"), "{what}"),
            other => panic!("{:?}", other.map(|l| l.len())),
        }
    }
}
