//! Layers of a graph of values that the kernels for images compute: convolutions, and products with constants. Such a
//! product is a convolution of one tap, and its pixels are tokens.

use std::collections::HashSet;

use crate::graph::{Graph, Node, NodeId, Op, ValueId};
use crate::model::{Conv2d, Linear, Window, filter_of, name_of, window_of};
use crate::plan::kernels::{self, Variant};
use crate::plan::work::{Operand, Work};
use crate::plan::{Limits, StepOp};
use crate::tensor::{Dtype, Shape};

/// The convolution that a node is, of an operand whose last axis has the channels; `None` if it is none.
pub(super) fn layer(graph: &Graph, node: &Node) -> Option<Conv2d> {
    let of = |number: usize| node.inputs.get(number).copied().flatten();
    let [x, y] = [of(0)?, node.outputs[0]].map(|id| graph.value(id));
    let weight = |id: ValueId| {
        let of = graph.value(id);
        graph.constant(id).filter(|_| of.dtype == Dtype::F32).map(|constant| name_of(constant, of))
    };
    let filter = weight(of(1)?)?;
    match &node.op {
        Op::Conv(conv) if x.rank() == 4 => {
            let bias = match of(2) {
                Some(id) => Some(weight(id)?),
                None => None,
            };
            let named = Conv2d::named(&node.name, y.dims[3], window_of(&conv.window).ok()?);
            Some(Conv2d { filter, bias, groups: conv.groups, ..named })
        }
        Op::Contract(of) => {
            let filter = filter_of(&filter, of.sums_first()?);
            Some(Conv2d { filter, ..Conv2d::named(&node.name, *y.dims.last()?, Window::square(1, 1, 0)) })
        }
        _ => None,
    }
}

/// The linear layer that a node is: of a vector for each of `batch` rows, with a matrix that has a row for each result.
/// `None` if a later layer depends on the result, because the kernels of a linear layer write f32. `readers` are the
/// nodes that read each value.
pub(super) fn classifier(graph: &Graph, node: &Node, batch: usize, readers: &[Vec<NodeId>]) -> Option<Linear> {
    let Op::Contract(of) = &node.op else { return None };
    let ([x, w], y) = ([node.inputs[0]?, node.inputs[1]?], node.outputs[0]);
    let (matrix, x) = (graph.value(w), graph.value(x));
    let is_vector = x.rank() == 2 && x.dims[0] == batch;
    if of.sums_first()? || !is_vector || matrix.dtype != Dtype::F32 || is_read_by_layers(graph, y, readers) {
        return None;
    }
    Some(Linear { out_features: matrix.dims[0], weight: name_of(graph.constant(w)?, matrix), bias: None })
}

/// Whether a layer reads a value, directly or through other nodes.
fn is_read_by_layers(graph: &Graph, of: ValueId, readers: &[Vec<NodeId>]) -> bool {
    let (mut ahead, mut seen) = (readers[of.0].clone(), HashSet::new());
    while let Some(id) = ahead.pop() {
        let node = &graph.nodes[id.0];
        match node.op {
            Op::Conv(_) | Op::Contract(_) => return true,
            _ if seen.insert(id) => ahead.extend(node.outputs.iter().flat_map(|id| &readers[id.0])),
            _ => {}
        }
    }
    false
}

/// The best kernel of the device for a convolution from and to images of these shapes and this type, if there is one.
pub(super) fn kernel(
    conv: &Conv2d,
    dtype: Dtype,
    shapes: [Shape; 2],
    batch: usize,
    limits: &Limits,
) -> Option<Variant> {
    let of = conv.clone();
    let op = if conv.is_depthwise(shapes[0].channels) { StepOp::Depthwise(of) } else { StepOp::Conv(of) };
    let [inputs, outputs] = shapes.map(|of| vec![Operand::activations(of, dtype, limits.family)]);
    kernels::best(&Work { name: "", op: &op, batch, inputs, outputs }, limits)
}

/// A row of a value as an image for kernels: the last axis has its channels, the other axes its pixels.
pub(super) fn image(dims: &[usize]) -> Shape {
    match dims {
        [_, height, width, channels] => Shape::new(*height, *width, *channels),
        [_, pixels @ .., channels] => Shape::new(1, pixels.iter().product(), *channels),
        _ => Shape::vector(dims.iter().product()),
    }
}
