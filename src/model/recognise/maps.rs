//! Expressions: sums, activations, and scales of channels.

use super::affine::affine;
use super::{Failed, Recogniser};
use crate::graph::{self as values, Binary, Constant, Expr, Number, Tensor, ValueId, ValueType, eps_of_batch_norm};
use crate::loops;
use crate::model::images::{BatchNorm, Conv2d, Linear, Node, NodeId, Op, Window};
use crate::tensor::{Activation, Dtype};

impl Recogniser<'_> {
    pub(super) fn map(&mut self, node: &values::Node, expr: &Expr, images: &[NodeId]) -> Result<NodeId, Failed> {
        if let ([a, b], true) = (images, is_sum(expr)) {
            let types = node.inputs.iter().flatten().map(|&id| self.from.value(id));
            let same = types.clone().all(|of| *of == *self.from.value(node.outputs[0]));
            return if same {
                Ok(self.push(node, Op::Add(Activation::None), vec![*a, *b]))
            } else {
                Err("its operands differ in shape".into())
            };
        }
        let &[x] = images else { return Err("no kernel for images computes it from several images".into()) };
        let last = |id: ValueId| self.from.value(id).dims.last().copied();
        let run = node.inputs.iter().flatten().find(|id| !self.is_constant(**id));
        if run.is_some_and(|&id| last(id) != last(node.outputs[0])) {
            return Err("it makes several channels from one".into());
        }
        let at =
            node.inputs.iter().position(|id| id.is_some_and(|id| !self.is_constant(id))).expect("an image is read");
        if let Some(bound) = self.bound(node, expr, at)? {
            return self.activation(node, bound, x);
        }
        if let Some(bias) = self.stored_bias(node, expr, x) {
            return Ok(self.biased(x, bias));
        }
        if let Some(norm) = self.stored_norm(node, expr, x) {
            return Ok(self.push(node, Op::BatchNorm(norm), vec![x]));
        }
        let (slope, offset) = affine(expr, at).ok_or(Failed::Why("no kernel computes this expression"))?;
        let [slope, offset] = [self.vector(node, &slope)?, self.vector(node, &offset)?];
        self.scaled(node, slope, offset, x)
    }

    /// The bound that an expression of one image is: whether it is an upper bound, and the limit. `None` for other
    /// expressions.
    fn bound(&mut self, node: &values::Node, expr: &Expr, at: usize) -> Result<Option<(bool, f64)>, Failed> {
        let Expr::Binary(op @ (Binary::Max | Binary::Min), of) = expr else { return Ok(None) };
        let limit = match (&of[0], &of[1]) {
            (Expr::Arg(x), limit) | (limit, Expr::Arg(x)) if *x == at => limit,
            _ => return Ok(None),
        };
        let limit = match limit {
            Expr::Const(_, Number::Float(limit)) => *limit,
            Expr::Arg(other) if *other != at => {
                let id = node.inputs[*other].expect("an expression reads what is there");
                match self.from.value(id).elems() {
                    1 => self.tensor(id)?.to_f64s()[0],
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some((*op == Binary::Min, limit)))
    }

    fn activation(&mut self, node: &values::Node, bound: (bool, f64), x: NodeId) -> Result<NodeId, Failed> {
        match (bound, &self.nodes[x.0]) {
            ((false, 0.0), _) => Ok(self.push(node, Op::Activation(Activation::Relu), vec![x])),
            ((true, 6.0), Node { op: Op::Activation(Activation::Relu), inputs, .. }) => {
                let inputs = inputs.clone();
                Ok(self.push(node, Op::Activation(Activation::Relu6), inputs))
            }
            _ => Err("its bounds are not 0 and 6".into()),
        }
    }

    /// The name of the weight that an expression adds to a layer's image, if it can become the layer's bias.
    fn stored_bias(&self, node: &values::Node, expr: &Expr, x: NodeId) -> Option<String> {
        let [Some(a), Some(b)] = node.inputs[..] else { return None };
        let bias = self.stored_vector(node, if self.is_constant(a) { a } else { b })?;
        (is_sum(expr) && self.takes_bias(x)).then_some(bias)
    }

    /// Whether an image is the result of a layer without a bias, and no other node reads it.
    fn takes_bias(&self, x: NodeId) -> bool {
        let has_none = matches!(
            &self.nodes[x.0].op,
            Op::Linear(Linear { bias: None, .. }) | Op::Conv2d(Conv2d { bias: None, .. })
        );
        has_none && self.readers(x) == 1
    }

    fn biased(&mut self, x: NodeId, name: String) -> NodeId {
        if let Op::Linear(Linear { bias, .. }) | Op::Conv2d(Conv2d { bias, .. }) = &mut self.nodes[x.0].op {
            *bias = Some(name);
        }
        x
    }

    /// The batch norm of a convolution that no other node reads, if its vectors are stored weights. They are not read
    /// then.
    fn stored_norm(&self, node: &values::Node, expr: &Expr, x: NodeId) -> Option<BatchNorm> {
        let eps = eps_of_batch_norm(expr)?;
        let [_, Some(gamma), Some(beta), Some(mean), Some(var)] = node.inputs[..] else { return None };
        let [gamma, beta, mean, var] = [gamma, beta, mean, var].map(|id| self.stored_vector(node, id));
        let norm = BatchNorm { gamma: gamma?, beta: beta?, mean: mean?, var: var?, eps };
        (matches!(self.nodes[x.0].op, Op::Conv2d(_)) && self.readers(x) == 1).then_some(norm)
    }

    /// The name of a weight that has one element for each channel of a node's value.
    fn stored_vector(&self, node: &values::Node, id: ValueId) -> Option<String> {
        let of = self.from.value(node.outputs[0]);
        match self.from.constant(id) {
            Some(Constant::Weight(name)) if self.from.value(id).dims[..] == of.dims[of.rank().checked_sub(1)?..] => {
                Some(name.clone())
            }
            _ => None,
        }
    }

    /// The node for slope * x + offset with a number for each channel: x with a bias, a convolution with a batch norm,
    /// or a depthwise convolution of one tap.
    fn scaled(&mut self, node: &values::Node, slope: Tensor, offset: Tensor, x: NodeId) -> Result<NodeId, Failed> {
        if self.takes_bias(x) && slope.elems::<f32>().iter().all(|&slope| slope == 1.0) {
            let name = self.keep(node, "bias", offset);
            return Ok(self.biased(x, name));
        }
        match &self.nodes[x.0].op {
            Op::Conv2d(_) if self.readers(x) == 1 => {
                let channels = offset.value_type().dims[0];
                let constant = |value: f32| Tensor::of(&[channels], &vec![value; channels]);
                let norm = BatchNorm {
                    gamma: self.keep(node, "slope", slope),
                    beta: self.keep(node, "offset", offset),
                    mean: self.keep(node, "mean", constant(0.0)),
                    var: self.keep(node, "variance", constant(1.0)),
                    eps: 0.0,
                };
                Ok(self.push(node, Op::BatchNorm(norm), vec![x]))
            }
            _ => {
                let channels = offset.value_type().dims[0];
                let filter = slope.cast(ValueType::new(Dtype::F32, &[channels, 1, 1, 1]));
                let conv = Conv2d {
                    groups: channels,
                    filter: self.keep(node, "slope", filter),
                    bias: Some(self.keep(node, "offset", offset)),
                    ..Conv2d::named(&node.name, channels, Window::square(1, 1, 0))
                };
                Ok(self.push(node, Op::Conv2d(conv), vec![x]))
            }
        }
    }

    /// The number of reads of an image, by nodes that are no views of it and as outputs.
    fn readers(&self, of: NodeId) -> usize {
        let is_it = |id: &ValueId| self.of_value.get(id) == Some(&of);
        let is_view = |node: &values::Node| is_it(&node.outputs[0]) && matches!(node.op, values::Op::Reshape(_));
        let times = |value: ValueId| {
            let nodes = self.readers[value.0].iter().filter(|id| !is_view(&self.from.nodes[id.0]));
            nodes.count() + self.from.outputs.iter().filter(|port| port.value == value).count()
        };
        self.of_value.iter().filter(|(_, node)| **node == of).map(|(&value, _)| times(value)).sum()
    }

    /// An expression of a map's constants, computed in f64, as an f32 for each channel.
    fn vector(&mut self, node: &values::Node, expr: &Expr) -> Result<Tensor, Failed> {
        let of = self.from.value(node.outputs[0]);
        let channels = *of.dims.last().ok_or(Failed::Why("it has no channels"))?;
        let mut tensors = Vec::new();
        for id in &node.inputs {
            let id = id.expect("an expression reads what is there");
            // Neither expression reads the image.
            tensors.push(if self.is_constant(id) { self.tensor(id)? } else { Tensor::of(&[], &[0.0_f32]) });
        }
        let per_channel = |tensor: &Tensor| tensor.value_type().dims.iter().rev().skip(1).all(|&dim| dim == 1);
        if !tensors.iter().all(per_channel) {
            return Err("its constants differ between pixels".into());
        }
        let dims = vec![1; of.rank() - 1].into_iter().chain([channels]).collect::<Vec<_>>();
        let spread = Tensor::of(&dims, &vec![0.0_f64; channels]);
        let all: Vec<Option<&Tensor>> = tensors.iter().chain([&spread]).map(Some).collect();
        let whole = (expr.clone() + Expr::arg(tensors.len())).cast(Dtype::F32);
        let result = loops::compute(&values::Op::Map(whole), &all, &[ValueType::new(Dtype::F32, &dims)])?.remove(0);
        Ok(result.cast(ValueType::new(Dtype::F32, &[channels])))
    }
}

/// Whether an expression is the sum of two operands.
pub(crate) fn is_sum(expr: &Expr) -> bool {
    matches!(expr, Expr::Binary(Binary::Add, of) if matches!(&**of, [Expr::Arg(0), Expr::Arg(1)] | [Expr::Arg(1), Expr::Arg(0)]))
}
