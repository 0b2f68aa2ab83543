//! Layers of a graph of values that the kernels for images compute: convolutions, and products with constants, which are
//! convolutions of one tap whose pixels are tokens. They read and write f16, between conversions that loops take in.

use std::collections::HashMap;

use super::patterns::{self, Mask};
use crate::graph::{
    self, Expr, Graph, Node, NodeId, Number, Op, Origin, Pad, PadMode, Slice, Value, ValueId, ValueType,
};
use crate::model::{Conv2d, Pad as Sides, Window, filter_of, name_of};
use crate::plan::work::{Operand, Work};
use crate::plan::{Family, Limits, StepOp, kernels};
use crate::tensor::{Dtype, Shape};

/// Channels are stored in multiples of this.
const ALIGN: usize = Family::Sm80.channel_align();

/// A graph with such layers as nodes of their own.
pub(super) struct Layered {
    pub graph: Graph,
    /// What such a node computes of its first operand; the others are weights.
    pub layers: HashMap<NodeId, StepOp>,
    /// Channels of values that are stored with more.
    pub channels: HashMap<ValueId, usize>,
    /// Masks that steps read.
    pub masks: Vec<(Mask, ValueId)>,
}

/// The graph for `batch` rows with every layer that a kernel of the device computes in f16.
pub(super) fn layered(graph: &Graph, limits: &Limits, batch: usize) -> Layered {
    let mut to = Layered::of(empty(graph));
    let mut halves = HashMap::new();
    let found = patterns::find(graph, limits, batch);
    let needed = patterns::needed(graph, &found);
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| needed[*index]) {
        if let Some(found) = found.get(&NodeId(index)) {
            to.push_found(&graph.nodes[found.named.0], found, &mut halves);
            continue;
        }
        match layer(graph, node, batch).filter(|of| has_kernel(graph, node, of, limits)) {
            Some(of) => to.push_layer(node, of, &mut halves),
            None => to.push(node.clone()),
        }
    }
    to
}

/// The same values and ports without nodes.
fn empty(graph: &Graph) -> Graph {
    Graph { nodes: Vec::new(), ..graph.clone() }
}

/// The convolution that a node is, of an operand whose last axis is channels.
fn layer(graph: &Graph, node: &Node, batch: usize) -> Option<Conv2d> {
    let of = |number: usize| node.inputs.get(number).copied().flatten();
    let [x, y] = [of(0)?, node.outputs[0]].map(|id| graph.value(id));
    let weight = |id: ValueId| {
        let of = graph.value(id);
        graph.constant(id).filter(|_| of.dtype == Dtype::F32).map(|constant| name_of(constant, of))
    };
    let filter = weight(of(1)?)?;
    let is_batch = x.dims.first() == Some(&batch) && x.elems() > 0 && y.elems() > 0;
    if !is_batch || [x.dtype, y.dtype] != [Dtype::F32; 2] || x.rank() < 2 {
        return None;
    }
    match &node.op {
        Op::Conv(conv) if x.rank() == 4 => {
            let bias = match of(2) {
                Some(id) => Some(weight(id)?),
                None => None,
            };
            let channels = [x.dims[3], y.dims[3]];
            let is_depthwise = conv.groups == channels[0] && channels[0] == channels[1];
            if conv.groups > 1 && !is_depthwise {
                return None;
            }
            let (window, groups) = (window(&conv.window)?, conv.groups);
            let named = Conv2d::named(&node.name, channels[1], window);
            Some(Conv2d { filter, bias, groups, ..named })
        }
        Op::Contract(of) => {
            let filter = filter_of(&filter, of.sums_first()?);
            Some(Conv2d { filter, ..Conv2d::named(&node.name, *y.dims.last()?, Window::square(1, 1, 0)) })
        }
        _ => None,
    }
}

/// Whether a kernel of the device computes a layer.
fn has_kernel(graph: &Graph, node: &Node, of: &Conv2d, limits: &Limits) -> bool {
    let operand = |id: ValueId| Operand::activations(image(&graph.value(id).dims), Dtype::F16, limits.family);
    let (op, x) = (step(of), node.inputs[0].expect("a layer reads"));
    let (inputs, outputs) = (vec![operand(x)], vec![operand(node.outputs[0])]);
    let work = Work { name: &node.name, op: &op, batch: graph.value(x).dims[0], inputs, outputs };
    kernels::best(&work, limits).is_some()
}

/// The step of a layer.
fn step(of: &Conv2d) -> StepOp {
    if of.groups > 1 { StepOp::Depthwise(of.clone()) } else { StepOp::Conv(of.clone()) }
}

/// The image that a row of a value is as kernels see it: the last axis has its channels, the others are its pixels.
pub(super) fn image(dims: &[usize]) -> Shape {
    match dims {
        [_, height, width, channels] => Shape::new(*height, *width, *channels),
        [_, pixels @ .., channels] => Shape::new(1, pixels.iter().product(), *channels),
        _ => Shape::vector(dims.iter().product()),
    }
}

fn window(of: &graph::Window) -> Option<Window> {
    let pair = |of: &[usize]| <[usize; 2]>::try_from(of).ok();
    let [[top, bottom], [left, right]] = <[[usize; 2]; 2]>::try_from(&of.pad[..]).ok()?;
    let pad = Sides { top, left, bottom, right };
    Some(Window { size: pair(&of.size)?, stride: pair(&of.stride)?, dilation: pair(&of.dilation)?, pad })
}

impl Layered {
    /// A graph without layers.
    pub fn of(graph: Graph) -> Self {
        Self { graph, layers: HashMap::new(), channels: HashMap::new(), masks: Vec::new() }
    }

    /// A node as it is.
    pub(super) fn push(&mut self, node: Node) {
        let id = NodeId(self.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.graph.nodes.push(node);
    }

    /// A layer, between conversions of what it reads and writes.
    fn push_layer(&mut self, node: &Node, conv: Conv2d, halves: &mut HashMap<ValueId, ValueId>) {
        let (x, y) = (node.inputs[0].expect("a layer reads"), node.outputs[0]);
        let half = *halves.entry(x).or_insert_with(|| self.half(x, &node.name));
        let of = self.graph.value(y).clone();
        let channels = *of.dims.last().expect("it has channels");
        let stored = self.add(with_channels(&of, channels.next_multiple_of(ALIGN)));
        self.channels.insert(stored, channels);
        self.layers.insert(NodeId(self.graph.nodes.len()), step(&conv));
        self.push(Node { inputs: vec![Some(half)], outputs: vec![stored], ..node.clone() });
        let cut = match channels.is_multiple_of(ALIGN) {
            true => stored,
            false => {
                let slice = Slice { start: vec![0; of.rank()], step: vec![1; of.rank()], dims: of.dims.clone() };
                self.node(&node.name, "channels", Op::Slice(slice), stored, with_channels(&of, channels))
            }
        };
        let name = format!("{} (f32)", node.name);
        let cast = Op::Map(Expr::arg(0).cast(Dtype::F32));
        self.push(Node { name, op: cast, inputs: vec![Some(cut)], outputs: vec![y] });
    }

    /// A value in f16, its channels padded.
    pub(super) fn half(&mut self, x: ValueId, name: &str) -> ValueId {
        let of = self.graph.value(x).clone();
        let channels = *of.dims.last().expect("it has channels");
        let cast = Op::Map(Expr::arg(0).cast(Dtype::F16));
        let mut half = self.node(name, "f16", cast, x, with_channels(&of, channels));
        let stored = channels.next_multiple_of(ALIGN);
        if stored > channels {
            let mut after = vec![0; of.rank()];
            *after.last_mut().expect("it has channels") = (stored - channels) as isize;
            let (before, mode) = (vec![0; of.rank()], PadMode::Constant(Number::Float(0.0)));
            half = self.node(name, "padded", Op::Pad(Pad { before, after, mode }), half, with_channels(&of, stored));
        }
        self.channels.insert(half, channels);
        half
    }

    pub(super) fn node(&mut self, of: &str, part: &str, op: Op, x: ValueId, to: ValueType) -> ValueId {
        let y = self.add(to);
        self.push(Node { name: format!("{of} ({part})"), op, inputs: vec![Some(x)], outputs: vec![y] });
        y
    }

    pub(super) fn add(&mut self, of: ValueType) -> ValueId {
        let origin = Origin::Node(NodeId(self.graph.nodes.len()), 0);
        self.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.graph.values.len() - 1)
    }
}

/// f16 in these dimensions, but for the last.
fn with_channels(of: &ValueType, channels: usize) -> ValueType {
    let mut dims = of.dims.clone();
    *dims.last_mut().expect("it has channels") = channels;
    ValueType { dtype: Dtype::F16, dims }
}
