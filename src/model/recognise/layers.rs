//! Layers: convolutions, pools, means, concatenations, linear layers, and the softmax that follows them.

use super::{Failed, Recogniser, Why, read};
use crate::graph::{self as values, PoolOp, ReduceOp, ValueId, ValueType};
use crate::loops;
use crate::model::images::{Conv2d, Linear, NodeId, Op, Pad, Pool, Window};

impl Recogniser<'_> {
    pub(super) fn conv(&mut self, node: &values::Node, conv: &values::Conv, x: NodeId) -> Result<NodeId, Failed> {
        let [_, filter, ..] = node.inputs[..] else { return Err("it has no filter".into()) };
        let filter = filter.filter(|&id| self.is_constant(id)).ok_or(Failed::Why("its filter is not a constant"))?;
        let bias = node.inputs.get(2).copied().flatten();
        if bias.is_some_and(|id| !self.is_constant(id)) {
            return Err("its bias is not a constant".into());
        }
        let op = Op::Conv2d(Conv2d {
            groups: conv.groups,
            filter: self.named(node, "filter", filter)?,
            bias: bias.map(|bias| self.named(node, "bias", bias)).transpose()?,
            ..Conv2d::named(&node.name, self.from.value(filter).dims[0], window_of(&conv.window)?)
        });
        Ok(self.push(node, op, vec![x]))
    }

    pub(super) fn pool(&mut self, node: &values::Node, pool: &values::Pool, x: NodeId) -> Result<NodeId, Failed> {
        Ok(self.push(node, pool_of(node, pool)?, vec![x]))
    }

    pub(super) fn mean(&mut self, node: &values::Node, of: &values::Reduce, x: NodeId) -> Result<NodeId, Failed> {
        let op = mean_of(of, self.from.value(read(node)).rank())?;
        Ok(self.push(node, op, vec![x]))
    }

    pub(super) fn concat(&mut self, node: &values::Node, axis: usize, images: &[NodeId]) -> Result<NodeId, Failed> {
        if images.len() != node.inputs.len() || axis + 1 != self.from.value(read(node)).rank() || axis == 0 {
            return Err("it does not concatenate channels".into());
        }
        Ok(self.push(node, Op::Concat, images.to_vec()))
    }

    pub(super) fn linear(
        &mut self,
        node: &values::Node,
        of: &values::Contract,
        images: &[NodeId],
    ) -> Result<NodeId, Failed> {
        let (&[x], [_, Some(weight)]) = (images, &node.inputs[..]) else {
            return Err("it has no constant operand".into());
        };
        let (out_features, weight) = self.linear_weight(node, of, *weight)?;
        Ok(self.push(node, Op::Linear(Linear { out_features, weight, bias: None }), vec![x]))
    }

    /// The number of outputs of a linear layer, and the name of its weight `[out, in]`.
    pub(super) fn linear_weight(
        &mut self,
        node: &values::Node,
        of: &values::Contract,
        weight: ValueId,
    ) -> Result<(usize, String), Failed> {
        let x = self.from.value(read(node));
        let is_vector = x.dims.last() == Some(&x.elems());
        let sums_first = of.sums_first().filter(|_| is_vector && self.is_constant(weight));
        let sums_first = sums_first.ok_or(Failed::Why("it is not a linear layer of the kernels for images"))?;
        let dims = self.from.value(weight).dims.clone();
        if !sums_first {
            return Ok((dims[0], self.named(node, "weight", weight)?));
        }
        let tensor = self.tensor(weight)?;
        let turned = ValueType::new(tensor.value_type().dtype, &[dims[1], dims[0]]);
        let turn = values::Op::Transpose(vec![1, 0]);
        let tensor = loops::compute(&turn, &[Some(&tensor)], &[turned])?.remove(0);
        Ok((dims[1], self.keep(node, "weight", tensor)))
    }

    /// The reshape of a vector to an image of one pixel, or the reverse.
    pub(super) fn reshape(&mut self, node: &values::Node, x: NodeId) -> Result<NodeId, Failed> {
        let [from, to] = [read(node), node.outputs[0]].map(|id| self.from.value(id));
        let is_vector = |of: &ValueType| of.dims.last() == Some(&of.elems());
        if from.dims != to.dims && !(is_vector(from) && is_vector(to)) {
            return Err("it turns pixels into channels".into());
        }
        Ok(x)
    }

    pub(super) fn end(&mut self, node: &values::Node, axis: usize, x: NodeId) -> Result<NodeId, Failed> {
        let of = self.from.value(read(node));
        let is_last = node.outputs[0] == self.from.outputs[0].value && axis + 1 == of.rank();
        if !is_last || of.elems() != of.dims[axis] {
            return Err("it is not a softmax of the result".into());
        }
        self.softmax = Some(read(node));
        Ok(x)
    }
}

/// The pooling operation that a node is.
pub(crate) fn pool_of(node: &values::Node, pool: &values::Pool) -> Result<Op, Why> {
    let window = window_of(&pool.window)?;
    if node.outputs.len() > 1 {
        return Err("its second output, the indices of the maxima, is used");
    }
    match pool.op {
        PoolOp::Max => Ok(Op::MaxPool(Pool { window, count_pad: false })),
        PoolOp::Mean => Ok(Op::AvgPool(Pool { window, count_pad: false })),
        PoolOp::MeanOfTaps => Ok(Op::AvgPool(Pool { window, count_pad: true })),
        PoolOp::Sum => Err("no kernel computes such windows"),
    }
}

/// The mean over all pixels that a reduction is, of a value of this rank.
fn mean_of(of: &values::Reduce, rank: usize) -> Result<Op, Why> {
    match (of.op, &of.axes[..], rank) {
        (ReduceOp::Mean, [1, 2], 4) => Ok(Op::GlobalAvgPool),
        _ => Err("it is not a mean over all pixels"),
    }
}

/// A window over the two axes of an image.
pub(crate) fn window_of(window: &values::Window) -> Result<Window, Why> {
    let pair = |of: &[usize]| <[usize; 2]>::try_from(of).map_err(|_| "its window does not have two axes");
    let [size, stride, dilation] = [pair(&window.size)?, pair(&window.stride)?, pair(&window.dilation)?];
    let [[top, bottom], [left, right]] = window.pad[..] else {
        return Err("its window does not have two axes");
    };
    Ok(Window { size, stride, dilation, pad: Pad { top, bottom, left, right } })
}
