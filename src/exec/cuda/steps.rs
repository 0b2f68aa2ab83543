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
use crate::plan::{ConvTile, Joined, Kernel, Place, Plan, StemTile, Step, StepOp, Tail, Tensor, TensorId};
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
        self.addresses.weights + self.layout.filter(node) as u64
    }

    fn tile(&self) -> Result<ConvTile, Error> {
        match self.step.kernel {
            Kernel::Sm80Gemm(tile) => Ok(tile),
            _ => Err(self.wrong_kernel()),
        }
    }

    fn stem_tile(&self) -> Result<StemTile, Error> {
        match self.step.kernel {
            Kernel::Sm90Stem(tile) => Ok(tile),
            _ => Err(self.wrong_kernel()),
        }
    }

    fn wrong_kernel(&self) -> Error {
        Error::Internal { what: format!("step {} planned for {:?}", self.step.name, self.step.kernel) }
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
    fn sm90_conv(&self, conv: &Conv2d, residual: Option<u64>, joined: Option<&Joined>) -> Result<Launch, Error> {
        let Kernel::Sm90Conv { tile, cluster } = self.step.kernel else { return Err(self.wrong_kernel()) };
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
        match &self.step.op {
            StepOp::Normalize { mean, std } => {
                let TensorSpec { row_pitch, .. } = TensorSpec::new(self.x().dtype, self.x().shape);
                let (format, shape) = (self.plan.input, self.x().shape);
                let c_stored = self.y().stored_channels;
                let problem = NormalizeProblem { batch, format, shape, c_stored, row_pitch, mean, std };
                normalize::launch(&problem, &NormalizePointers { x, y })
            }
            StepOp::Stem(stem) => {
                let filter = self.addresses.weights + self.layout.stem(&self.step.name) as u64;
                let TensorSpec { row_pitch, .. } = TensorSpec::new(self.x().dtype, self.x().shape);
                let problem = StemProblem { batch, input: self.x().shape, output: stored(self.y()), row_pitch, stem };
                sm90_stem::launch(&problem, self.stem_tile()?, &StemPointers { x, filter, y })
            }
            StepOp::Conv(conv) => match self.step.kernel {
                Kernel::Sm90Conv { .. } => self.sm90_conv(conv, second, None),
                Kernel::Sm90Halo => sm90_conv2d_halo::launch(
                    &self.conv_problem(conv),
                    self.backward,
                    &self.plan.limits,
                    &self.conv_pointers(second),
                ),
                _ => conv2d_fprop::launch(&self.conv_problem(conv), self.tile()?, &self.conv_pointers(second)),
            },
            StepOp::ConvSum { conv, joined } => self.sm90_conv(conv, None, Some(joined)),
            StepOp::Chain { conv, joined, next } => self.chain(conv, joined.as_deref(), next),
            StepOp::Depthwise(conv) => self.depthwise(conv, None),
            StepOp::ExpandDepthwise { expand, conv } => self.depthwise(conv, Some(expand)),
            StepOp::MaxPool(pool) => self.pool(PoolKind::Max, *pool),
            StepOp::AvgPool(pool) => self.pool(PoolKind::Average, *pool),
            StepOp::GlobalAvgPool => {
                let problem = GlobalAvgPoolProblem { batch, input: stored(self.x()) };
                global_avg_pool::launch(&problem, &GlobalAvgPoolPointers { x, y })
            }
            StepOp::Linear(_) => {
                let (filter, bias) = self.weights();
                let problem = LinearProblem {
                    batch,
                    in_stored: self.x().stored_channels,
                    out_stored: self.y().stored_channels,
                    activation: Activation::None,
                };
                let pointers = LinearPointers { x, filter, bias, y };
                match self.step.kernel {
                    Kernel::Sm90Linear(tile) => sm90_linear::launch(&problem, tile, &pointers),
                    _ => linear::launch(&problem, self.tile()?, &pointers),
                }
            }
            StepOp::Add(activation) => {
                let (shape, out_pitch) = (stored(self.x()), self.y().pitch);
                let problem = AddProblem { batch, shape, out_pitch, activation: *activation };
                add::launch(&problem, &AddPointers { a: x, b: second, out: y })
            }
            StepOp::Tail(tail) => self.tail(tail),
            StepOp::Emit(output) => self.emit(*output),
        }
    }

    /// A 1x1 convolution, with the one joined to it if there is one, and another of its result.
    fn chain(&self, conv: &Conv2d, joined: Option<&Joined>, next: &Joined) -> Result<Launch, Error> {
        let (Kernel::Sm90Chain(tile), Some(shape), Some(also)) =
            (self.step.kernel, self.plan.chain(self.step), self.step.also)
        else {
            return Err(self.wrong_kernel());
        };
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

    /// A depthwise convolution, of its input or of what a 1x1 convolution makes of it.
    fn depthwise(&self, conv: &Conv2d, expand: Option<&Joined>) -> Result<Launch, Error> {
        let (x, _, y) = self.pointers();
        let (filter, bias) = self.weights();
        let pointers = DepthwisePointers { x, filter, bias, y };
        let output = self.y();
        let problem = DepthwiseProblem {
            batch: self.plan.batch,
            input: Shape { channels: output.stored_channels, ..self.x().shape },
            output: [output.shape.height, output.shape.width],
            window: conv.window,
            activation: conv.activation,
        };
        let expand = expand.map(|expand| Expand {
            channels: self.x().stored_channels,
            activation: expand.conv.activation,
            filter: self.filter(&expand.name),
            bias: self.bias(1),
        });
        match self.step.kernel {
            Kernel::Sm90Depthwise(tile) | Kernel::Sm90Expand(tile) => {
                sm90_conv2d_depthwise::launch(&problem, expand.as_ref(), tile, &self.plan.limits, &pointers)
            }
            _ => conv2d_depthwise::launch(&problem, &pointers),
        }
    }

    fn pool(&self, kind: PoolKind, pool: Pool) -> Result<Launch, Error> {
        let (x, _, y) = self.pointers();
        let output = [self.y().shape.height, self.y().shape.width];
        let y_pitch = self.y().pitch;
        let problem = PoolProblem { kind, batch: self.plan.batch, input: stored(self.x()), output, y_pitch, pool };
        pool2d::launch(&problem, &PoolPointers { x, y })
    }

    fn tail(&self, tail: &Tail) -> Result<Launch, Error> {
        let Kernel::Sm90Tail(tile) = self.step.kernel else { return Err(self.wrong_kernel()) };
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
        let kind = match output {
            OutputKind::Logits | OutputKind::Features => match source.dtype {
                Dtype::F32 => EmitKind::ValuesF32,
                _ => EmitKind::ValuesF16,
            },
            OutputKind::Probabilities => EmitKind::Softmax,
            OutputKind::TopK(k) => EmitKind::TopK(k),
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
