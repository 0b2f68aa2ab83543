//! The work of a launch: an operation and operands, on which the choice of its kernel depends.

use super::{Family, Plan, Step, StepOp};
use crate::model::{Conv2d, Linear};
use crate::tensor::{Activation, Dtype, Shape};

/// A tensor as a kernel sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operand {
    /// The logical shape of one row.
    pub(crate) shape: Shape,
    /// The number of stored channels.
    pub(crate) stored_channels: usize,
    /// Element type.
    pub(crate) dtype: Dtype,
}

/// An operation of a step on operands of known shapes and types.
#[derive(Clone, Debug)]
pub(crate) struct Work<'a> {
    /// The name of the step.
    pub(crate) name: &'a str,
    /// The operation.
    pub(crate) op: &'a StepOp,
    /// The number of rows.
    pub(crate) batch: usize,
    /// The operands that the step reads.
    pub(crate) inputs: Vec<Operand>,
    /// The operands that the step writes.
    pub(crate) outputs: Vec<Operand>,
}

/// A layer with weights, one of those that a step computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer<'a> {
    /// The name of the graph's node.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "no weights are packed by node"))]
    pub(crate) node: &'a str,
    /// The operation of the layer.
    pub(crate) weights: Weights<'a>,
    /// The input of the layer. A step that computes several nodes may not write it to memory.
    pub(crate) input: Operand,
    /// The operand that the layer writes or adds to.
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
    /// Activations in the layout of a family of kernels.
    pub(super) fn activations(shape: Shape, dtype: Dtype, family: Family) -> Self {
        Self { shape, stored_channels: shape.channels.next_multiple_of(family.channels_of(dtype)), dtype }
    }

    /// Rows of an engine's input or output, which have no padding.
    pub(super) const fn rows(shape: Shape, dtype: Dtype) -> Self {
        Self { shape, stored_channels: shape.channels, dtype }
    }

    /// The shape with the stored channels.
    pub(crate) fn stored(&self) -> Shape {
        Shape { channels: self.stored_channels, ..self.shape }
    }
}

impl<'a> Layer<'a> {
    /// The number of products for each output value, including those with the zeros that stand for weights of other
    /// groups.
    pub(crate) fn terms(&self) -> usize {
        let channels = if self.is_depthwise() { 1 } else { self.input.shape.channels };
        match self.weights {
            Weights::Conv(conv) => taps(conv) * channels,
            Weights::Linear(_) => channels,
        }
    }

    /// The convolution, unless it is depthwise: dense kernels compute convolutions of other groups too, with zeros.
    pub(crate) fn dense_conv(&self) -> Option<&'a Conv2d> {
        match self.weights {
            Weights::Conv(conv) if !self.is_depthwise() => Some(conv),
            Weights::Conv(_) | Weights::Linear(_) => None,
        }
    }

    /// Whether each output channel reads only one input channel.
    pub(crate) fn is_depthwise(&self) -> bool {
        matches!(self.weights, Weights::Conv(conv) if conv.is_depthwise(self.input.shape.channels))
    }

    /// Floating-point operations for a row: two for each multiply-add, without those with zeros.
    fn flops(&self) -> usize {
        let groups = self.dense_conv().map_or(1, |conv| conv.groups);
        2 * self.output.shape.elems() * self.terms() / groups
    }
}

/// The number of taps of a convolution's window.
pub(crate) fn taps(conv: &Conv2d) -> usize {
    conv.window.size.iter().product()
}

impl<'a> Work<'a> {
    /// The layers with weights, grouped by the sum that they go into.
    pub(crate) fn sums(&self) -> Vec<Vec<Layer<'a>>> {
        self.op.sums(self.name, &self.inputs, &self.outputs)
    }

    fn layers(&self) -> impl Iterator<Item = Layer<'a>> {
        self.sums().into_iter().flatten()
    }

    /// The activations of the layers, or of an addition.
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

    /// Floating-point operations of a run on tensor cores: the products of dense layers and of attention.
    pub(super) fn products(&self) -> u64 {
        let products: usize = self.layers().filter(|layer| !layer.is_depthwise()).map(|layer| layer.flops()).sum();
        let [of_run, _] = self.op.flops_of_run();
        (self.batch * products + of_run) as u64
    }

    /// Bytes of the filters in type `dtype`, with a bias in f32 for each sum. Filters in bytes have a bias in i32 and a
    /// scale in f32.
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

    /// Whether all inputs have the type `read`, and all outputs the type `written`.
    pub(crate) fn is_in(&self, read: Dtype, written: Dtype) -> bool {
        self.inputs.iter().all(|input| input.dtype == read) && self.writes(written)
    }

    /// The type of the first input and of all outputs, if it is f16 or bf16 and the same; else `None`.
    pub(crate) fn half(&self) -> Option<Dtype> {
        let dtype = self.inputs.first()?.dtype;
        (matches!(dtype, Dtype::F16 | Dtype::Bf16) && self.writes(dtype)).then_some(dtype)
    }

    /// Whether all outputs have this type.
    pub(crate) fn writes(&self, dtype: Dtype) -> bool {
        self.outputs.iter().all(|output| output.dtype == dtype)
    }

    /// All that decides the time of the work in each of its kernels, as text.
    pub(super) fn key(&self) -> String {
        let operand = |operand: &Operand| format!("{} {}", operand.stored(), operand.dtype);
        let all = |operands: &[Operand]| operands.iter().map(operand).collect::<Vec<_>>();
        let (label, detail) = (self.op.label(self.inputs.len()), self.op.detail());
        let [inputs, outputs] = [all(&self.inputs).join(" + "), all(&self.outputs).join(" -> ")];
        format!("{label} {detail}: {inputs} -> {outputs}, batch {}", self.batch)
    }
}

impl super::Tensor {
    /// The tensor as a kernel sees it.
    pub(super) const fn operand(&self) -> Operand {
        Operand { shape: self.shape, stored_channels: self.stored_channels, dtype: self.dtype }
    }
}

impl Plan {
    /// The work of a step: its operation and operands.
    pub(crate) fn work<'a>(&self, step: &'a Step) -> Work<'a> {
        let operand = |id: &super::TensorId| self.tensors[id.0].operand();
        Work {
            name: &step.name,
            op: &step.op,
            batch: self.images,
            inputs: step.inputs.iter().map(operand).collect(),
            outputs: step.outputs.iter().map(operand).collect(),
        }
    }
}
