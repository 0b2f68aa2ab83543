//! The operations of a graph of values that the kernels for images compute, as one network of images: layers, and
//! operations between them.

use std::collections::BTreeSet;

use super::layered::{ALIGN, Split, with_channels};
use super::layers::{classifier, image, kernel, layer};
use super::patterns::{float, inlined, writer};
use crate::graph::{Binary, Expr, Node, NodeId, Op, Slice, ValueId, ValueType};
use crate::model::{self, is_sum, pool_of};
use crate::plan::Limits;
use crate::tensor::{Activation, Dtype, Shape};

/// An operation of a network of images, and the values that it reads.
type Operation = (model::Op, Vec<ValueId>);

impl Split<'_> {
    /// The operation of a network of images that a node is, if a kernel of the device computes it.
    pub fn operation(&self, node: &Node, limits: &Limits) -> Option<Operation> {
        let found = match &node.op {
            Op::Map(expr) if !is_sum(expr) => self.activation(node),
            _ => self.layer_or_between(node),
        };
        found.filter(|(op, reads)| self.fits(node, op, reads, limits))
    }

    fn layer_or_between(&self, node: &Node) -> Option<Operation> {
        let reads: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let x = *reads.first()?;
        if let Some(linear) = classifier(self.from, node, self.batch, &self.readers) {
            return Some((model::Op::Linear(linear), vec![x]));
        }
        match &node.op {
            Op::Conv(_) | Op::Contract(_) => Some((model::Op::Conv2d(layer(self.from, node)?), vec![x])),
            Op::Map(_) => Some((model::Op::Add(Activation::None), self.summands(reads)?)),
            Op::Pool(pool) => match pool_of(node, pool).ok()? {
                op @ model::Op::MaxPool(_) => self.is_of_layers(x).then_some((op, reads)),
                op => self.is_image(x).then_some((op, reads)),
            },
            Op::Concat(axis) if axis + 1 == self.from.value(x).rank() => {
                let (_, others) = reads.split_last()?;
                let channels = |id: &ValueId| self.from.value(*id).dims[*axis];
                let are_apart = others.iter().all(|id| channels(id).is_multiple_of(ALIGN));
                (are_apart && reads.iter().all(|&id| self.is_image(id))).then_some((model::Op::Concat, reads))
            }
            _ => None,
        }
    }

    /// The operands of an addition if both are images; else `None`, and a loop adds them.
    fn summands(&self, reads: Vec<ValueId>) -> Option<Vec<ValueId>> {
        let fits = reads.len() == 2 && self.from.value(reads[0]).rank() == 4;
        (fits && reads.iter().all(|&id| self.is_image(id))).then_some(reads)
    }

    /// The activation of an image that a node is: a lower bound, or an upper bound of a value with a lower bound.
    fn activation(&self, node: &Node) -> Option<Operation> {
        let Expr::Binary(op, of) = inlined(self.from, node)? else { return None };
        let ((Expr::Arg(at), limit) | (limit, Expr::Arg(at))) = (&of[0], &of[1]) else { return None };
        let x = node.inputs[*at].filter(|&x| self.is_image(x))?;
        match (op, float(limit)?) {
            (Binary::Max, 0.0) => Some((model::Op::Activation(Activation::Relu), vec![x])),
            (Binary::Min, 6.0) => match self.activation(writer(self.from, x)?)? {
                (model::Op::Activation(Activation::Relu), reads) => {
                    Some((model::Op::Activation(Activation::Relu6), reads))
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the network computes a value in f16.
    fn is_image(&self, id: ValueId) -> bool {
        let node = self.images.get(&id).map(|id| &self.to.network.nodes[id.0].op);
        node.is_some_and(|op| !matches!(op, model::Op::Given(_) | model::Op::Linear(_)))
    }

    /// Whether a value is computed from values of the network, so that it has no more significant digits than they
    /// have.
    fn is_of_layers(&self, id: ValueId) -> bool {
        !self.sources[id.0].is_empty()
    }

    /// Whether the network's image of a value has the value's own dimensions; true if the network does not have the
    /// value.
    fn is_as_stored(&self, id: ValueId) -> bool {
        let own = image(&self.from.value(id).dims);
        self.images.get(&id).is_none_or(|of| image(&self.stored[of.0].1) == own)
    }

    /// Whether a node is exactly this operation of these values, all values are rows in f32, and a kernel computes it.
    fn fits(&self, node: &Node, op: &model::Op, reads: &[ValueId], limits: &Limits) -> bool {
        let is_of_rows = |id: &ValueId| {
            let of = self.from.value(*id);
            of.dtype == Dtype::F32 && of.rank() >= 2 && of.dims[0] == self.batch && of.elems() > 0
        };
        let [y] = node.outputs[..] else { return false };
        if !reads.iter().chain([&y]).all(is_of_rows) {
            return false;
        }
        let shape = |id: ValueId| image(&self.from.value(id).dims);
        let shapes: Vec<Shape> = reads.iter().map(|&id| shape(id)).collect();
        let has_kernel = match op {
            model::Op::Activation(_) => return true, // activations have any dimensions
            model::Op::Conv2d(conv) => kernel(conv, self.dtype, [shapes[0], shape(y)], self.batch, limits).is_some(),
            _ => true,
        };
        has_kernel && op.shape(&shapes) == Ok(shape(y)) && reads.iter().all(|&id| self.is_as_stored(id))
    }

    /// Records that the result of a reshape is the network's image of the operand, if the image can have these
    /// dimensions.
    pub fn show(&mut self, node: &Node) {
        if let (Op::Reshape(dims), [Some(x)], [y]) = (&node.op, &node.inputs[..], &node.outputs[..])
            && let Some(&there) = self.images.get(x)
            && dims.len() >= 2
            && dims[0] == self.batch
            && self.is_shown(&self.stored[there.0].1, dims)
        {
            self.images.insert(*y, there);
        }
    }

    /// Whether an image with dimensions `image_dims` can have the dimensions `dims`: a vector may have any.
    fn is_shown(&self, image_dims: &[usize], dims: &[usize]) -> bool {
        let of = image(image_dims);
        image(dims) == of || (of.pixels() == 1 && dims.iter().product::<usize>() == self.batch * of.channels)
    }

    /// Adds a convolution to the network, which computes a node and the nodes that follow, up to the value `writes`.
    pub fn push_layer(&mut self, node: &Node, conv: &model::Conv2d, x: ValueId, writes: ValueId) {
        if !self.is_as_stored(x) {
            self.images.remove(&x); // so that it is given again, in its own dimensions
        }
        let node = Node { outputs: vec![writes], ..node.clone() };
        self.push_image(&node, model::Op::Conv2d(conv.clone()), self.dtype, &[x]);
    }

    /// Adds a node to the network, with results of type `dtype`, and the conversions that other nodes read.
    pub fn push_image(&mut self, node: &Node, op: model::Op, dtype: Dtype, reads: &[ValueId]) {
        let inputs: Vec<model::NodeId> = reads.iter().map(|&x| self.image(x, &node.name)).collect();
        let y = node.outputs[0];
        let mut of = self.from.value(y).clone();
        let shown = of.dims.clone();
        if let model::Op::Activation(_) = op {
            of.dims.clone_from(&self.stored[inputs[0].0].1);
        }
        let channels = *of.dims.last().expect("it has channels");
        let with_channels = |of: &ValueType, channels| with_channels(of, dtype, channels);
        let stored = self.add(with_channels(&of, channels.next_multiple_of(ALIGN)));
        self.to.channels.insert(stored, channels);
        self.to.apart.insert(NodeId(self.to.graph.nodes.len()));
        let read = inputs.iter().map(|id| Some(self.stored[id.0].0)).collect();
        self.push(Node { inputs: read, outputs: vec![stored], ..node.clone() });
        let image = model::Node { name: node.name.clone(), op, inputs, scale: None };
        let id = self.push_node(image, stored, of.dims.clone());
        self.images.insert(y, id);
        self.sources[y.0] = BTreeSet::from([id]);
        let mut dense = stored;
        if !channels.is_multiple_of(ALIGN) {
            let slice = Slice { start: vec![0; of.rank()], step: vec![1; of.rank()], dims: of.dims.clone() };
            dense = self.node(&node.name, "channels", Op::Slice(slice), dense, with_channels(&of, channels));
        }
        match shown == of.dims {
            true if dtype == Dtype::F16 => _ = self.halves.insert(y, stored),
            true => {}
            false => {
                let to = ValueType { dtype, dims: shown.clone() };
                dense = self.node(&node.name, "dimensions", Op::Reshape(shown), dense, to);
            }
        }
        self.push_f32(&node.name, dense, y);
    }

    /// The network's node for a value. If the network does not compute the value, it is given to it.
    fn image(&mut self, x: ValueId, reader: &str) -> model::NodeId {
        if let Some(&there) = self.images.get(&x) {
            return there;
        }
        let (half, dims) = (self.half(x, reader), self.from.value(x).dims.clone());
        let id = self.give(format!("{reader} (f16)"), Some(half), dims, &self.sources[x.0].clone());
        self.images.insert(x, id);
        id
    }
}
