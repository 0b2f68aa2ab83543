//! A launch by its operation and operands, on which the choice of its kernel depends.

use super::{Family, Plan, Step, StepOp};
use crate::model::{Conv2d, Linear};
use crate::tensor::{Activation, Dtype, Shape};

/// A tensor as a kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    /// Logical shape of one row.
    pub(crate) shape: Shape,
    /// Channels stored.
    pub(crate) stored_channels: usize,
    /// Element type.
    pub(crate) dtype: Dtype,
}

/// An operation of a step on operands of known shapes and types.
#[derive(Clone, Debug)]
pub(crate) struct Work<'a> {
    /// Name of the step, and of the node that it is named after.
    pub(crate) name: &'a str,
    /// What is computed.
    pub(crate) op: &'a StepOp,
    /// Rows.
    pub(crate) batch: usize,
    /// What it reads.
    pub(crate) inputs: Vec<Operand>,
    /// What it writes.
    pub(crate) outputs: Vec<Operand>,
}

/// A node with weights, of a step that computes one or more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer<'a> {
    /// Name of the graph's node.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no weights are packed by node"))]
    pub(crate) node: &'a str,
    /// What it computes.
    pub(crate) weights: Weights<'a>,
    /// What it reads, which a step that computes several nodes may keep to itself.
    pub(crate) input: Operand,
    /// What it writes or adds to.
    pub(crate) output: Operand,
}

/// The operation of a layer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Weights<'a> {
    /// A convolution.
    Conv(&'a Conv2d),
    /// A fully connected layer.
    Linear(#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no weights are packed"))] &'a Linear),
}

impl Operand {
    /// Activations of a family.
    pub(super) fn activations(shape: Shape, dtype: Dtype, family: Family) -> Self {
        Self { shape, stored_channels: shape.channels.next_multiple_of(family.channel_align()), dtype }
    }

    /// Rows of an engine's input or output, which have no padding.
    pub(super) const fn rows(shape: Shape, dtype: Dtype) -> Self {
        Self { shape, stored_channels: shape.channels, dtype }
    }

    /// Its shape with the channels that are stored.
    pub(crate) fn stored(&self) -> Shape {
        Shape { channels: self.stored_channels, ..self.shape }
    }
}

impl<'a> Layer<'a> {
    /// Products of an output value, those with the zeros that stand for weights of other groups too.
    pub(crate) fn terms(&self) -> usize {
        let channels = if self.is_depthwise() { 1 } else { self.input.shape.channels };
        match self.weights {
            Weights::Conv(conv) => taps(conv) * channels,
            Weights::Linear(_) => channels,
        }
    }

    /// The convolution, if it is computed as one of one group.
    pub(crate) fn dense_conv(&self) -> Option<&'a Conv2d> {
        match self.weights {
            Weights::Conv(conv) if !self.is_depthwise() => Some(conv),
            Weights::Conv(_) | Weights::Linear(_) => None,
        }
    }

    /// Whether each output channel reads one input channel alone.
    pub(crate) fn is_depthwise(&self) -> bool {
        matches!(self.weights, Weights::Conv(conv) if conv.is_depthwise(self.input.shape.channels))
    }

    /// Multiply-adds of a row, as two operations each, without those of zeros.
    fn flops(&self) -> usize {
        let groups = self.dense_conv().map_or(1, |conv| conv.groups);
        2 * self.output.shape.elems() * self.terms() / groups
    }
}

/// Taps of a convolution's window.
pub(crate) fn taps(conv: &Conv2d) -> usize {
    conv.window.size.iter().product()
}

impl<'a> Work<'a> {
    /// The nodes with weights: those that go into one sum together.
    pub(crate) fn sums(&self) -> Vec<Vec<Layer<'a>>> {
        self.op.sums(self.name, &self.inputs, &self.outputs)
    }

    fn layers(&self) -> impl Iterator<Item = Layer<'a>> {
        self.sums().into_iter().flatten()
    }

    /// The activations that are applied, by layers or to a sum.
    pub(super) fn activations(&self) -> impl Iterator<Item = Activation> {
        let of_sum = if let StepOp::Add(activation) = self.op { Some(*activation) } else { None };
        let of_layer = |layer: Layer<'_>| match layer.weights {
            Weights::Conv(conv) => Some(conv.activation),
            Weights::Linear(_) => None,
        };
        self.layers().filter_map(of_layer).chain(of_sum)
    }

    /// Floating-point operations of a run.
    pub(super) fn flops(&self) -> u64 {
        let products: usize = self.layers().map(|layer| layer.flops()).sum();
        let of_run: usize = self.op.flops_of_run().iter().sum();
        (self.batch * (products + self.op.other_flops(&self.inputs, &self.outputs)) + of_run) as u64
    }

    /// Those that tensor cores do: the products of dense layers and of attention.
    pub(super) fn products(&self) -> u64 {
        let products: usize = self.layers().filter(|layer| !layer.is_depthwise()).map(|layer| layer.flops()).sum();
        let [of_run, _] = self.op.flops_of_run();
        (self.batch * products + of_run) as u64
    }

    /// Bytes of filters of this type, and of a bias in f32 for each sum; or of filters in bytes, with a scale too.
    pub(super) fn weight_bytes(&self, dtype: Dtype) -> u64 {
        let (of_term, of_channel) = match self.op {
            op if op.is_of_bytes() => (Dtype::I8.bytes(), size_of::<i32>() + size_of::<f32>()),
            _ => (dtype.bytes(), size_of::<f32>()),
        };
        let of_sum = |layers: &Vec<Layer<'_>>| {
            let terms: usize = layers.iter().map(Layer::terms).sum();
            layers[0].output.shape.channels * (terms * of_term + of_channel)
        };
        self.sums().iter().map(of_sum).sum::<usize>() as u64
    }

    /// Whether all that it reads is of one type, and all that it writes of another.
    pub(crate) fn is_in(&self, read: Dtype, written: Dtype) -> bool {
        self.inputs.iter().all(|input| input.dtype == read) && self.writes(written)
    }

    /// The type of what its rows are read and written in, if that is f16 or bf16: of its first operand and its results.
    pub(crate) fn half(&self) -> Option<Dtype> {
        let dtype = self.inputs.first()?.dtype;
        (matches!(dtype, Dtype::F16 | Dtype::Bf16) && self.writes(dtype)).then_some(dtype)
    }

    /// Whether all that it writes is of this type.
    pub(crate) fn writes(&self, dtype: Dtype) -> bool {
        self.outputs.iter().all(|output| output.dtype == dtype)
    }

    /// What decides how long it takes in each of its kernels, as text.
    pub(super) fn key(&self) -> String {
        let operand = |operand: &Operand| format!("{} {}", operand.stored(), operand.dtype);
        let all = |operands: &[Operand]| operands.iter().map(operand).collect::<Vec<_>>();
        let (label, detail) = (self.op.label(self.inputs.len()), self.op.detail());
        let [inputs, outputs] = [all(&self.inputs).join(" + "), all(&self.outputs).join(" -> ")];
        format!("{label} {detail}: {inputs} -> {outputs}, batch {}", self.batch)
    }
}

impl super::Tensor {
    /// As a kernel sees it.
    pub(super) const fn operand(&self) -> Operand {
        Operand { shape: self.shape, stored_channels: self.stored_channels, dtype: self.dtype }
    }
}

impl Plan {
    /// A step by its operation and operands.
    pub(crate) fn work<'a>(&self, step: &'a Step) -> Work<'a> {
        let operand = |id: &super::TensorId| self.tensors[id.0].operand();
        Work {
            name: &step.name,
            op: &step.op,
            batch: self.batch,
            inputs: step.inputs.iter().map(operand).collect(),
            outputs: step.outputs.iter().map(operand).collect(),
        }
    }
}
