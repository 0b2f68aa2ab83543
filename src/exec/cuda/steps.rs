//! From a plan's steps to launches: addresses filled in, every legal range checked by the launchers.

use super::add::{self, AddPointers, AddProblem};
use super::conv2d_depthwise::{self, DepthwisePointers, DepthwiseProblem};
use super::conv2d_fprop::{self, ConvPointers, ConvProblem};
use super::emit::{self, EmitKind, EmitPointers, EmitProblem};
use super::global_avg_pool::{self, GlobalAvgPoolPointers, GlobalAvgPoolProblem};
use super::launch::Launch;
use super::linear::{self, LinearPointers, LinearProblem};
use super::normalize::{self, NormalizePointers, NormalizeProblem};
use super::pack::Layout;
use super::pool2d::{self, PoolKind, PoolPointers, PoolProblem};
use super::sm90_conv2d_chain::{self, ChainPointers, ChainProblem};
use super::sm90_conv2d_depthwise::{self, Expand};
use super::sm90_conv2d_fprop::{self, Second, Tiling};
use super::sm90_conv2d_halo;
use super::sm90_linear;
use super::sm90_stem::{self, StemPointers, StemProblem};
use super::sm90_tail::{self, TailPointers, TailProblem};
use crate::error::Error;
use crate::model::{Conv2d, Pool};
use crate::plan::{
    ChainTile, DepthwiseTile, Joined, Kernel, Place, Plan, Sm90Tile, Step, StepOp, Tail, TailTile, Tensor, TensorId,
};
use crate::tensor::{Activation, Dtype, OutputKind, Shape, TensorSpec};

/// Where a slot's buffers start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub input: u64,
    pub output: u64,
    pub arena: u64,
    pub weights: u64,
}

/// The launches of `plan` on the buffers at `addresses`.
pub(super) fn launches(plan: &Plan, layout: &Layout, addresses: &Addresses) -> Result<Vec<Launch>, Error> {
    let of_step = |(index, step)| {
        // What a step wrote last the next one reads first: as much of it as may be in the L2 cache.
        let backward = index % 2 == 1;
        Operands { plan, step, layout, addresses, backward }.launch().map_err(|error| at_step(error, step))
    };
    plan.steps.iter().enumerate().map(of_step).collect()
}

/// Names the step in an error about its ranges.
fn at_step(error: Error, step: &Step) -> Error {
    match error {
        Error::Unsupported { what, instead } => {
            Error::Unsupported { what: format!("node `{}`: {what}", step.name), instead }
        }
        other => other,
    }
}

/// A step with everything that it refers to.
struct Operands<'a> {
    plan: &'a Plan,
    step: &'a Step,
    layout: &'a Layout,
    addresses: &'a Addresses,
    /// Whether it computes its last pixels first, where its kernel has an order.
    backward: bool,
}

impl Operands<'_> {
    fn tensor(&self, id: TensorId) -> &Tensor {
        &self.plan.tensors[id.0]
    }

    fn x(&self) -> &Tensor {
        self.tensor(self.step.inputs[0])
    }

    fn y(&self) -> &Tensor {
        self.tensor(self.step.output)
    }

    fn address(&self, id: TensorId) -> u64 {
        match self.tensor(id).place {
            Place::Input => self.addresses.input,
            Place::Output => self.addresses.output,
            Place::Arena(offset) => self.addresses.arena + offset as u64,
        }
    }

    /// Addresses of x, of the second input if there is one, and of y.
    fn pointers(&self) -> (u64, Option<u64>, u64) {
        let second = self.step.inputs.get(1).map(|&id| self.address(id));
        (self.address(self.step.inputs[0]), second, self.address(self.step.output))
    }

    /// Addresses of filter and bias.
    fn weights(&self) -> (u64, u64) {
        (self.filter(&self.step.name), self.bias(0))
    }

    /// Address of the bias of one of the step's sums.
    fn bias(&self, sum: usize) -> u64 {
        self.addresses.weights + self.layout.bias(self.step, sum) as u64
    }

    fn filter(&self, node: &str) -> u64 {
        self.addresses.weights + self.layout.filter(self.step, node) as u64
    }

    fn conv_problem(&self, conv: &Conv2d) -> ConvProblem {
        ConvProblem {
            batch: self.plan.batch,
            input: stored(self.x()),
            output: stored(self.y()),
            y_pitch: self.y().pitch,
            window: conv.window,
            activation: conv.activation,
        }
    }

    fn conv_pointers(&self, residual: Option<u64>) -> ConvPointers {
        let (x, _, y) = self.pointers();
        let (filter, bias) = self.weights();
        ConvPointers { x, filter, bias, residual, y }
    }

    /// The sm90 launch of a convolution, with the one joined to it if there is one.
    fn sm90_conv(
        &self,
        conv: &Conv2d,
        (tile, cluster): (Sm90Tile, usize),
        residual: Option<u64>,
        joined: Option<&Joined>,
    ) -> Result<Launch, Error> {
        let second = joined.map(|joined| {
            let id = self.step.inputs[1];
            let (input, window) = (stored(self.tensor(id)), joined.conv.window);
            Second { input, window, x: self.address(id), filter: self.filter(&joined.name) }
        });
        let tiling = Tiling { tile, cluster, units: self.plan.limits.units, backward: self.backward };
        let pointers = self.conv_pointers(residual);
        sm90_conv2d_fprop::launch(&self.conv_problem(conv), second.as_ref(), &tiling, &pointers)
    }

    fn launch(&self) -> Result<Launch, Error> {
        let batch = self.plan.batch;
        let (x, second, y) = self.pointers();
        match (&self.step.op, self.step.kernel) {
            (StepOp::Normalize { mean, std }, Kernel::Sm80) => {
                let TensorSpec { row_pitch, .. } = TensorSpec::new(self.x().dtype, self.x().shape);
                let (format, shape) = (self.plan.input, self.x().shape);
                let c_stored = self.y().stored_channels;
                let problem = NormalizeProblem { batch, format, shape, c_stored, row_pitch, mean, std };
                normalize::launch(&problem, &NormalizePointers { x, y })
            }
            (StepOp::Stem(stem), Kernel::Sm90Stem(tile)) => {
                let filter = self.filter(&self.step.name);
                let TensorSpec { row_pitch, .. } = TensorSpec::new(self.x().dtype, self.x().shape);
                let problem = StemProblem { batch, input: self.x().shape, output: stored(self.y()), row_pitch, stem };
                sm90_stem::launch(&problem, tile, &StemPointers { x, filter, y })
            }
            (StepOp::Conv(conv), Kernel::Sm80Gemm(tile)) => {
                conv2d_fprop::launch(&self.conv_problem(conv), tile, &self.conv_pointers(second))
            }
            (StepOp::Conv(conv), Kernel::Sm90Conv { tile, cluster }) => {
                self.sm90_conv(conv, (tile, cluster), second, None)
            }
            (StepOp::Conv(conv), Kernel::Sm90Halo) => sm90_conv2d_halo::launch(
                &self.conv_problem(conv),
                self.backward,
                &self.plan.limits,
                &self.conv_pointers(second),
            ),
            (StepOp::ConvSum { conv, joined }, Kernel::Sm90Conv { tile, cluster }) => {
                self.sm90_conv(conv, (tile, cluster), None, Some(joined))
            }
            (StepOp::Chain { conv, joined, next }, Kernel::Sm90Chain(tile)) => {
                self.chain(conv, joined.as_deref(), next, tile)
            }
            (StepOp::Depthwise(conv), Kernel::Sm80) => {
                conv2d_depthwise::launch(&self.depthwise_problem(conv), &self.depthwise_pointers())
            }
            (StepOp::Depthwise(conv), Kernel::Sm90Depthwise(tile)) => self.sm90_depthwise(conv, None, tile),
            (StepOp::ExpandDepthwise { expand, conv }, Kernel::Sm90Expand(tile)) => {
                self.sm90_depthwise(conv, Some(expand), tile)
            }
            (StepOp::MaxPool(pool), Kernel::Sm80) => self.pool(PoolKind::Max, *pool),
            (StepOp::AvgPool(pool), Kernel::Sm80) => self.pool(PoolKind::Average, *pool),
            (StepOp::GlobalAvgPool, Kernel::Sm80) => {
                let problem = GlobalAvgPoolProblem { batch, input: stored(self.x()) };
                global_avg_pool::launch(&problem, &GlobalAvgPoolPointers { x, y })
            }
            (StepOp::Linear(_), Kernel::Sm80Gemm(tile)) => {
                linear::launch(&self.linear_problem(), tile, &self.linear_pointers())
            }
            (StepOp::Linear(_), Kernel::Sm90Linear(tile)) => {
                sm90_linear::launch(&self.linear_problem(), tile, &self.linear_pointers())
            }
            (StepOp::Add(activation), Kernel::Sm80) => {
                let (shape, out_pitch) = (stored(self.x()), self.y().pitch);
                let problem = AddProblem { batch, shape, out_pitch, activation: *activation };
                add::launch(&problem, &AddPointers { a: x, b: second, out: y })
            }
            (StepOp::Tail(tail), Kernel::Sm90Tail(tile)) => self.tail(tail, tile),
            (StepOp::Emit(output), Kernel::Sm80) => self.emit(*output),
            (_, kernel) => Err(Error::Internal { what: format!("step {} planned for {kernel:?}", self.step.name) }),
        }
    }

    /// A 1x1 convolution, with the one joined to it if there is one, and another of its result.
    fn chain(&self, conv: &Conv2d, joined: Option<&Joined>, next: &Joined, tile: ChainTile) -> Result<Launch, Error> {
        let (shape, also) = (self.plan.chain(self.step), self.step.also);
        let (shape, also) = shape.zip(also).expect("a chain has two results");
        let (x, second, y) = self.pointers();
        let (filter, bias) = self.weights();
        let joined = joined.map(|joined| self.filter(&joined.name));
        let pointers = ChainPointers {
            x: [Some(x), second.filter(|_| joined.is_some())],
            filter: [Some(filter), joined],
            bias,
            residual: second.filter(|_| shape.has_residual),
            y,
            next_filter: self.filter(&next.name),
            next_bias: self.bias(1),
            z: self.address(also),
        };
        let activations = [conv.activation, next.conv.activation];
        let problem = ChainProblem { shape, activations, backward: self.backward };
        sm90_conv2d_chain::launch(&problem, tile, &self.plan.limits, &pointers)
    }

    fn depthwise_problem(&self, conv: &Conv2d) -> DepthwiseProblem {
        let output = self.y();
        DepthwiseProblem {
            batch: self.plan.batch,
            input: Shape { channels: output.stored_channels, ..self.x().shape },
            output: [output.shape.height, output.shape.width],
            window: conv.window,
            activation: conv.activation,
        }
    }

    fn depthwise_pointers(&self) -> DepthwisePointers {
        let (x, _, y) = self.pointers();
        let (filter, bias) = self.weights();
        DepthwisePointers { x, filter, bias, y }
    }

    /// A depthwise convolution, of its input or of what a 1x1 convolution makes of it.
    fn sm90_depthwise(&self, conv: &Conv2d, expand: Option<&Joined>, tile: DepthwiseTile) -> Result<Launch, Error> {
        let expand = expand.map(|expand| Expand {
            channels: self.x().stored_channels,
            activation: expand.conv.activation,
            filter: self.filter(&expand.name),
            bias: self.bias(1),
        });
        let (problem, pointers) = (self.depthwise_problem(conv), self.depthwise_pointers());
        sm90_conv2d_depthwise::launch(&problem, expand.as_ref(), tile, &self.plan.limits, &pointers)
    }

    fn linear_problem(&self) -> LinearProblem {
        LinearProblem {
            batch: self.plan.batch,
            in_stored: self.x().stored_channels,
            out_stored: self.y().stored_channels,
            activation: Activation::None,
        }
    }

    fn linear_pointers(&self) -> LinearPointers {
        let (x, _, y) = self.pointers();
        let (filter, bias) = self.weights();
        LinearPointers { x, filter, bias, y }
    }

    fn pool(&self, kind: PoolKind, pool: Pool) -> Result<Launch, Error> {
        let (x, _, y) = self.pointers();
        let output = [self.y().shape.height, self.y().shape.width];
        let y_pitch = self.y().pitch;
        let problem = PoolProblem { kind, batch: self.plan.batch, input: stored(self.x()), output, y_pitch, pool };
        pool2d::launch(&problem, &PoolPointers { x, y })
    }

    fn tail(&self, tail: &Tail, tile: TailTile) -> Result<Launch, Error> {
        let (x, _, y) = self.pointers();
        let (filter, bias) = self.weights();
        let problem = TailProblem {
            batch: self.plan.batch,
            input: stored(self.x()),
            channels: tail.linear.out_features,
            output: tail.output,
            row_pitch: TensorSpec::new(Dtype::F32, self.y().shape).row_pitch,
        };
        sm90_tail::launch(&problem, tile, &TailPointers { x, filter, bias, y })
    }

    fn emit(&self, output: OutputKind) -> Result<Launch, Error> {
        let (x, _, y) = self.pointers();
        let source = self.x();
        let kind = match (output, source.dtype) {
            (OutputKind::Logits | OutputKind::Features, Dtype::F32) => EmitKind::ValuesF32,
            (OutputKind::Logits | OutputKind::Features, Dtype::F16) => EmitKind::ValuesF16,
            (OutputKind::Probabilities, Dtype::F32) => EmitKind::Softmax,
            (OutputKind::TopK(k), Dtype::F32) => EmitKind::TopK(k),
            (output, dtype) => {
                return Err(Error::Unsupported {
                    what: format!("output {output:?} of {dtype} values"),
                    instead: "the kernels take f32 values, and f16 ones for logits and features".into(),
                });
            }
        };
        let TensorSpec { row_pitch, .. } = TensorSpec::new(Dtype::F32, self.y().shape);
        let problem = EmitProblem {
            kind,
            rows: self.plan.batch,
            pixels: source.shape.pixels(),
            channels: source.shape.channels,
            stored_channels: source.stored_channels,
            row_pitch,
        };
        emit::launch(&problem, &EmitPointers { x, y })
    }
}

/// Shape with the channels that are stored.
fn stored(tensor: &Tensor) -> Shape {
    Shape { channels: tensor.stored_channels, ..tensor.shape }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use crate::plan::{Choices, Limits, Request, plan};
    use crate::tensor::InputFormat;

    const ADDRESSES: Addresses = Addresses { input: 1 << 20, output: 2 << 20, arena: 1 << 30, weights: 1 << 40 };

    fn launches_of(limits: &Limits, batch: usize, output: OutputKind) -> (Plan, Vec<Launch>) {
        let model = Model::open("weights/efficientnet-lite0").unwrap();
        let request = Request {
            limits,
            batch,
            input: InputFormat::U8Nhwc,
            preprocessing: model.preprocessing(),
            output,
            choices: &Choices::default(),
        };
        let plan = plan(model.graph(), &request).unwrap();
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        let launches = launches(&plan, &layout, &ADDRESSES).unwrap();
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

    /// Of another operation, or of a CPU: nothing else is launched in its place.
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
                let refused = launches(&wrong, &layout, &ADDRESSES);
                let name = &plan.steps[step].name;
                assert!(matches!(refused, Err(Error::Internal { .. })), "{name} by {other:?}");
            }
        }
    }

    #[test]
    fn values_of_a_type_that_no_kernel_writes_out_are_refused() {
        for (output, dtype) in [
            (OutputKind::Logits, Dtype::U8),
            (OutputKind::Probabilities, Dtype::F16),
            (OutputKind::TopK(5), Dtype::F16),
        ] {
            let (mut plan, _) = launches_of(&Limits::h200(), 8, output);
            let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
            let last = plan.steps.last().unwrap().inputs[0];
            plan.tensors[last.0].dtype = dtype;
            let refused = launches(&plan, &layout, &ADDRESSES);
            assert!(matches!(refused, Err(Error::Unsupported { .. })), "{output:?} of {dtype}");
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
            preprocessing: model.preprocessing(),
            output: OutputKind::Logits,
            choices: &Choices::default(),
        };
        let plan = plan(model.graph(), &request).unwrap();
        let layout = Layout::new(std::slice::from_ref(&plan)).unwrap();
        match launches(&plan, &layout, &ADDRESSES) {
            Err(Error::Unsupported { what, .. }) => assert!(what.starts_with("node `"), "{what}"),
            other => panic!("{:?}", other.map(|l| l.len())),
        }
    }
}
