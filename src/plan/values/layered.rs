//! The assignment of each node of a graph of values: to a network of images, to a kernel for nodes of a transformer, or
//! to a loop. The network and these kernels read and write a 16-bit type with padded channels, which is always f16 in
//! the network. Loops compute the conversions.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::blocks::Blocks;
use super::layers::image;
use super::patterns::{self, Beside, Found, Mask, Read};
use crate::graph::{Expr, Graph, Node, NodeId, Number, Op, Origin, Pad, PadMode, Value, ValueId, ValueType};
use crate::model;
use crate::plan::context::PlanTarget;
use crate::plan::{Choices, Family, Kernel, StepOp, rows};
use crate::tensor::{Dtype, Shape};

/// Channels are stored in multiples of this number.
pub(super) const ALIGN: usize = Family::Sm80.channel_align();

/// A graph of values, with the nodes that a network of images or fused steps compute.
pub(super) struct Layered {
    /// The graph. Values of nodes that the network or fused steps compute are in f16 or bf16.
    pub graph: Graph,
    /// The nodes that the network computes.
    pub apart: HashSet<NodeId>,
    /// The nodes that a fused step computes, with the step's operation.
    pub fused: HashMap<NodeId, StepOp>,
    /// The network of images. Values that loops or fused steps compute are given to it. Its last node stands for all
    /// outputs of the graph.
    pub network: model::images::Network,
    /// The values that are given to the network, by the names of the network's nodes for them.
    pub given: HashMap<String, Given>,
    /// The number of channels, without padding, of each value that is stored with padded channels.
    pub channels: HashMap<ValueId, usize>,
    /// The images that inputs have in the rows that a run reads.
    pub rows: HashMap<ValueId, Shape>,
    /// The nodes and values of the original graph that are in f16 or bf16.
    pub halves: Halves,
}

/// The nodes of a graph that kernels compute in f16 or bf16, and their values.
#[derive(Default)]
pub(super) struct Halves {
    /// Nodes whose operands and results are rounded to f16 or bf16.
    pub nodes: HashSet<NodeId>,
    /// Codes that steps write beside a value in f16: they are of the value before it is rounded.
    pub codes: HashSet<ValueId>,
    /// Values that exist only in f16 or bf16.
    pub written: HashSet<ValueId>,
    /// Values that kernels read after a conversion to f16 or bf16.
    pub read: HashSet<ValueId>,
}

/// A value that is given to a network.
pub(super) struct Given {
    /// The value; `None` for the node that stands for the outputs.
    pub value: Option<ValueId>,
    /// The network's values from which it is computed, in the order of the node's operands.
    pub reads: Vec<ValueId>,
}

impl Layered {
    /// The graph for the rows of a target, in which kernels of the device compute all that they can in f16 or bf16; nodes in
    /// `in_f32` stay in f32. Loops compute all other nodes. If `dtype` is f16, they read operands in f32; if it is
    /// bf16, operands of layers are in bf16.
    pub fn of(graph: &Graph, dtype: Dtype, target: PlanTarget<'_>, in_f32: &BTreeSet<String>) -> Self {
        let mut split = Split::new(graph, dtype, target.batch);
        let mut found = patterns::find(graph, dtype, target, in_f32);
        found.retain(|_, found| is_chosen(graph, found, target.choices));
        let needed = patterns::needed(graph, &found);
        for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| needed[*index]) {
            if let Some(found) = found.get(&NodeId(index)) {
                split.to.halves.nodes.extend(patterns::covered(graph, found));
                match found.beside {
                    Some(Beside::Codes(codes)) => _ = split.to.halves.codes.insert(codes),
                    Some(Beside::Half(half)) => _ = split.to.halves.written.insert(half),
                    None => {}
                }
                let named = &graph.nodes[found.named.0];
                if !found.writes_its_own() {
                    split.to.halves.written.insert(found.writes);
                }
                match (&found.op, &found.reads[..]) {
                    (StepOp::Conv(conv), [Read::Half(x)]) => split.push_layer(named, conv, *x, found.writes),
                    _ => split.push_found(named, found),
                }
            } else if dtype != Dtype::F16 {
                let operands = if in_f32.contains(&node.name) { Dtype::F32 } else { dtype };
                let node = split.reading(node, operands);
                split.push(node); // kernels for images take only f16
            } else if let Some((op, reads)) =
                split.operation(node, target.limits).filter(|_| !in_f32.contains(&node.name))
            {
                split.to.halves.nodes.insert(NodeId(index));
                let dtype = rows::dtype(&op, target.limits.family);
                if dtype == Dtype::F16 {
                    split.to.halves.written.insert(node.outputs[0]);
                }
                split.push_image(node, op, dtype, &reads);
            } else {
                split.push_other(node);
            }
        }
        split.finish()
    }

    /// The graph with all nodes computed by loops. Layers read operands of type `operands`, except the nodes in
    /// `in_f32`.
    pub fn of_loops(graph: &Graph, operands: Dtype, in_f32: &BTreeSet<String>) -> Self {
        let mut split = Split::new(graph, operands, 0);
        for node in &graph.nodes {
            let dtype = if in_f32.contains(&node.name) { Dtype::F32 } else { operands };
            let node = split.reading(node, dtype);
            split.push(node);
        }
        split.finish()
    }

    /// Whether no loop computes a node.
    pub fn is_apart(&self, id: NodeId) -> bool {
        self.apart.contains(&id) || self.fused.contains_key(&id)
    }
}

/// The state of a division of a graph, node by node: each node goes to the network or a fused step, or stays.
pub(super) struct Split<'a> {
    pub from: &'a Graph,
    /// The nodes that read each value of `from`.
    pub readers: Vec<Vec<NodeId>>,
    pub batch: usize,
    /// The type in which kernels read and write.
    pub dtype: Dtype,
    pub to: Layered,
    /// The network's node for each value that it computes or that is given to it.
    pub images: HashMap<ValueId, model::NodeId>,
    /// For each node of the network, its value in the new graph and the value's dimensions there, without padding.
    pub stored: Vec<(ValueId, Vec<usize>)>,
    /// For each value of `from`, the nodes of the network from which it is computed.
    pub sources: Vec<BTreeSet<model::NodeId>>,
    /// Values in the type of kernels with padded channels, by the value of `from`.
    pub halves: HashMap<ValueId, ValueId>,
    /// Masks that steps read, with their values in the new graph.
    pub masks: Vec<(Mask, ValueId)>,
    /// The statistics of the rows of values of `from`, in the new graph.
    pub statistics: HashMap<ValueId, ValueId>,
    /// Blocks of packed rows that steps read, with their values in the new graph.
    pub blocks: Vec<(Blocks, ValueId)>,
    /// Operands of layers in the operands' type, by the value of `from`.
    pub operands: HashMap<ValueId, ValueId>,
}

impl<'a> Split<'a> {
    fn new(from: &'a Graph, dtype: Dtype, batch: usize) -> Self {
        let input = Shape::vector(1); // a placeholder: the network has no input of its own
        let to = Layered {
            graph: Graph { nodes: Vec::new(), ..from.clone() },
            apart: HashSet::new(),
            fused: HashMap::new(),
            network: model::images::Network { nodes: Vec::new(), output: model::NodeId(0), input },
            given: HashMap::new(),
            channels: HashMap::new(),
            rows: HashMap::new(),
            halves: Halves::default(),
        };
        let sources = vec![BTreeSet::new(); from.values.len()];
        let (images, halves, operands, statistics) = (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (readers, stored, masks, blocks) = (from.readers(), Vec::new(), Vec::new(), Vec::new());
        Self { from, readers, batch, dtype, to, images, stored, sources, halves, masks, statistics, blocks, operands }
    }

    /// Adds the node that stands for all outputs, and returns the result.
    fn finish(mut self) -> Layered {
        let sources = self.sources_of(self.from.outputs.iter().map(|port| port.value));
        self.to.network.output = self.give("outputs (f32)".into(), None, vec![1, 1], &sources);
        self.to.halves.read = self.halves.into_keys().collect();
        self.to
    }

    /// The nodes of the network from which any of these values is computed.
    pub fn sources_of(&self, values: impl IntoIterator<Item = ValueId>) -> BTreeSet<model::NodeId> {
        values.into_iter().flat_map(|id| self.sources[id.0].iter().copied()).collect()
    }

    /// Adds a node unchanged.
    pub fn push(&mut self, node: Node) {
        let id = NodeId(self.to.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.to.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.to.graph.nodes.push(node);
    }

    /// Adds a node that loops compute. The result of a reshape of an image may stay an image.
    fn push_other(&mut self, node: &Node) {
        let sources = self.sources_of(node.inputs.iter().flatten().copied());
        node.outputs.iter().for_each(|id| self.sources[id.0] = sources.clone());
        self.show(node);
        self.push(node.clone());
    }

    /// Adds an operation of one value of the new graph as a part of what the node named `of` becomes. Returns its
    /// result.
    pub fn node(&mut self, of: &str, part: &str, op: Op, x: ValueId, to: ValueType) -> ValueId {
        let y = self.add(to);
        self.push(Node { name: format!("{of} ({part})"), op, inputs: vec![Some(x)], outputs: vec![y] });
        y
    }

    /// Adds the value that the next node writes.
    pub fn add(&mut self, of: ValueType) -> ValueId {
        self.add_from(Origin::Node(NodeId(self.to.graph.nodes.len()), 0), of)
    }

    pub fn add_from(&mut self, origin: Origin, of: ValueType) -> ValueId {
        self.to.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.to.graph.values.len() - 1)
    }

    /// A value of `from` in the type of kernels with padded channels, which is added if it is not there yet.
    pub fn half(&mut self, x: ValueId, name: &str) -> ValueId {
        if let Some(&there) = self.halves.get(&x) {
            return there;
        }
        let of = self.from.value(x).clone();
        let channels = *of.dims.last().expect("it has channels");
        let (dtype, with_channels) = (self.dtype, |channels| with_channels(&of, self.dtype, channels));
        let [dense, padded] = [channels, channels.next_multiple_of(ALIGN)].map(with_channels);
        let cast = Op::Map(Expr::arg(0).cast(dtype));
        let mut half = self.node(name, &dtype.to_string(), cast, x, dense);
        let stored = channels.next_multiple_of(ALIGN);
        if stored > channels {
            let mut after = vec![0; of.rank()];
            *after.last_mut().expect("it has channels") = (stored - channels) as isize;
            let (before, mode) = (vec![0; of.rank()], PadMode::Constant(Number::Float(0.0)));
            half = self.node(name, "padded", Op::Pad(Pad { before, after, mode }), half, padded);
        }
        self.to.channels.insert(half, channels);
        self.halves.insert(x, half);
        half
    }

    /// Adds the conversion of a value in the type of kernels to f32, for other readers.
    pub fn push_f32(&mut self, name: &str, half: ValueId, y: ValueId) {
        let (name, cast) = (format!("{name} (f32)"), Op::Map(Expr::arg(0).cast(Dtype::F32)));
        self.push(Node { name, op: cast, inputs: vec![Some(half)], outputs: vec![y] });
    }

    /// Adds a value that is given to the network, as a node of the network.
    pub fn give(
        &mut self,
        name: String,
        value: Option<ValueId>,
        dims: Vec<usize>,
        sources: &BTreeSet<model::NodeId>,
    ) -> model::NodeId {
        let inputs: Vec<model::NodeId> = sources.iter().copied().collect();
        let reads = inputs.iter().map(|id| self.stored[id.0].0).collect();
        self.to.given.insert(name.clone(), Given { value, reads });
        let op = model::Op::Given(image(&dims));
        self.push_node(model::Node { name, op, inputs, scale: None }, value.unwrap_or(ValueId(0)), dims)
    }

    /// Adds a node of the network.
    pub fn push_node(&mut self, node: model::Node, stored: ValueId, dims: Vec<usize>) -> model::NodeId {
        self.to.network.nodes.push(node);
        self.stored.push((stored, dims));
        model::NodeId(self.stored.len() - 1)
    }
}

/// Whether the program has chosen no other kernel for the convolution of first layers.
fn is_chosen(graph: &Graph, found: &Found, choices: &Choices) -> bool {
    let chosen = choices.get(&graph.nodes[found.named.0].name);
    !matches!((&found.op, chosen), (StepOp::Stem(_), Some(kernel)) if !matches!(kernel, Kernel::Sm90Stem(_)))
}

/// A type with the dimensions of `of`, except that the last one is `channels`.
pub(super) fn with_channels(of: &ValueType, dtype: Dtype, channels: usize) -> ValueType {
    let mut dims = of.dims.clone();
    *dims.last_mut().expect("it has channels") = channels;
    ValueType { dtype, dims }
}
