//! What computes each node of a graph of values: a network of images, a kernel for nodes of a transformer, or a loop. The
//! first two read and write a type of 16 bits with padded channels, the first one f16 alone; loops take in the conversions.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::blocks::Blocks;
use super::layers::image;
use super::patterns::{self, Mask, Read};
use crate::graph::{Expr, Graph, Node, NodeId, Number, Op, Origin, Pad, PadMode, Value, ValueId, ValueType};
use crate::model;
use crate::plan::{Family, Limits, StepOp, rows};
use crate::tensor::{Dtype, Shape};

/// Channels are stored in multiples of this.
pub(super) const ALIGN: usize = Family::Sm80.channel_align();

/// A graph of values, and what computes its nodes that are no loops.
pub(super) struct Layered {
    /// The graph: what the network and fused steps compute are nodes of values in f16 or bf16.
    pub graph: Graph,
    /// The nodes that the network computes.
    pub apart: HashSet<NodeId>,
    /// The nodes that one step computes, and what it is.
    pub fused: HashMap<NodeId, StepOp>,
    /// The network. What others compute is given to it, and its last node stands for all outputs of the graph.
    pub network: model::images::Network,
    /// What is given to it, by the names of its nodes.
    pub given: HashMap<String, Given>,
    /// Channels of values that are stored with more.
    pub channels: HashMap<ValueId, usize>,
    /// The images that inputs have in the rows that a run reads.
    pub rows: HashMap<ValueId, Shape>,
    /// What of the graph that it was made of is in f16 or bf16.
    pub halves: Halves,
}

/// What of a graph kernels compute in f16 or bf16.
#[derive(Default)]
pub(super) struct Halves {
    /// Nodes: their operands are rounded, and their results.
    pub nodes: HashSet<NodeId>,
    /// Values that exist in that type alone.
    pub written: HashSet<ValueId>,
    /// Values that such nodes read in it.
    pub read: HashSet<ValueId>,
}

/// A value that a network reads.
pub(super) struct Given {
    /// The value; none for what stands for the outputs.
    pub value: Option<ValueId>,
    /// What it is computed from of the network's values, in the order of the node's operands.
    pub reads: Vec<ValueId>,
}

impl Layered {
    /// The graph for `batch` rows with all that kernels of the device compute of it in f16 or bf16; nodes of these names stay
    /// in f32. Loops compute the others: of f16 in f32, of bf16 from operands of layers in bf16.
    pub fn of(graph: &Graph, dtype: Dtype, limits: &Limits, batch: usize, in_f32: &BTreeSet<String>) -> Self {
        let mut split = Split::new(graph, dtype, batch);
        let found = patterns::find(graph, dtype, limits, batch, in_f32);
        let needed = patterns::needed(graph, &found);
        for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| needed[*index]) {
            if let Some(found) = found.get(&NodeId(index)) {
                split.to.halves.nodes.extend(patterns::covered(graph, found));
                let named = &graph.nodes[found.named.0];
                split.to.halves.written.extend(if found.is_output() { named.inputs[0] } else { Some(found.writes) });
                match (&found.op, &found.reads[..]) {
                    (StepOp::Conv(conv), [Read::Half(x)]) => split.push_layer(named, conv, *x, found.writes),
                    _ => split.push_found(named, found),
                }
            } else if dtype != Dtype::F16 {
                let operands = if in_f32.contains(&node.name) { Dtype::F32 } else { dtype };
                let node = split.reading(node, operands);
                split.push(node); // there is no network of images
            } else if let Some((op, reads)) = split.operation(node, limits).filter(|_| !in_f32.contains(&node.name)) {
                split.to.halves.nodes.insert(NodeId(index));
                let dtype = rows::dtype(&op, limits.family);
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

    /// A graph of which loops compute everything. Layers read their operands in this type, but for nodes of these names.
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

/// A graph whose nodes become the network's or fused steps, one after the other, or stay.
pub(super) struct Split<'a> {
    pub from: &'a Graph,
    /// The nodes that read each value of it.
    pub readers: Vec<Vec<NodeId>>,
    pub batch: usize,
    /// The type of what kernels read and write.
    pub dtype: Dtype,
    pub to: Layered,
    /// The node of the network that computes each value, or that it is given by.
    pub images: HashMap<ValueId, model::NodeId>,
    /// The values that the network's nodes are in the new graph, and their dimensions there, but for padding.
    pub stored: Vec<(ValueId, Vec<usize>)>,
    /// For each value of the graph the nodes of the network that it is computed from.
    pub sources: Vec<BTreeSet<model::NodeId>>,
    /// Values in that type, their channels padded, by what they are of the graph.
    pub halves: HashMap<ValueId, ValueId>,
    /// Masks that steps read.
    pub masks: Vec<(Mask, ValueId)>,
    /// Blocks of packed rows that steps read.
    pub blocks: Vec<(Blocks, ValueId)>,
    /// Operands of layers in their type, by what they are of the graph.
    pub operands: HashMap<ValueId, ValueId>,
}

impl<'a> Split<'a> {
    fn new(from: &'a Graph, dtype: Dtype, batch: usize) -> Self {
        let input = Shape::vector(1); // of an input, which it has not
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
        let (images, halves, operands) = (HashMap::new(), HashMap::new(), HashMap::new());
        let (readers, stored, masks, blocks) = (from.readers(), Vec::new(), Vec::new(), Vec::new());
        Self { from, readers, batch, dtype, to, images, stored, sources, halves, masks, blocks, operands }
    }

    /// With the node that stands for all outputs.
    fn finish(mut self) -> Layered {
        let sources = self.sources_of(self.from.outputs.iter().map(|port| port.value));
        self.to.network.output = self.give("outputs (f32)".into(), None, vec![1, 1], &sources);
        self.to.halves.read = self.halves.into_keys().collect();
        self.to
    }

    /// The nodes of the network that values are computed from.
    pub fn sources_of(&self, values: impl IntoIterator<Item = ValueId>) -> BTreeSet<model::NodeId> {
        values.into_iter().flat_map(|id| self.sources[id.0].iter().copied()).collect()
    }

    /// A node as it is.
    pub fn push(&mut self, node: Node) {
        let id = NodeId(self.to.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.to.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.to.graph.nodes.push(node);
    }

    /// A node that loops compute. An image that it shows in other dimensions stays one.
    fn push_other(&mut self, node: &Node) {
        let sources = self.sources_of(node.inputs.iter().flatten().copied());
        node.outputs.iter().for_each(|id| self.sources[id.0] = sources.clone());
        self.show(node);
        self.push(node.clone());
    }

    /// A part of what a node becomes: an operation of a value of the new graph.
    pub fn node(&mut self, of: &str, part: &str, op: Op, x: ValueId, to: ValueType) -> ValueId {
        let y = self.add(to);
        self.push(Node { name: format!("{of} ({part})"), op, inputs: vec![Some(x)], outputs: vec![y] });
        y
    }

    /// A value that the next node writes.
    pub fn add(&mut self, of: ValueType) -> ValueId {
        self.add_from(Origin::Node(NodeId(self.to.graph.nodes.len()), 0), of)
    }

    pub fn add_from(&mut self, origin: Origin, of: ValueType) -> ValueId {
        self.to.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.to.graph.values.len() - 1)
    }

    /// A value in the type of kernels, its channels padded.
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

    /// A value that is there in the type of kernels, for whatever reads it as f32.
    pub fn push_f32(&mut self, name: &str, half: ValueId, y: ValueId) {
        let (name, cast) = (format!("{name} (f32)"), Op::Map(Expr::arg(0).cast(Dtype::F32)));
        self.push(Node { name, op: cast, inputs: vec![Some(half)], outputs: vec![y] });
    }

    /// A value that is given to the network.
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

    /// A node of the network.
    pub fn push_node(&mut self, node: model::Node, stored: ValueId, dims: Vec<usize>) -> model::NodeId {
        self.to.network.nodes.push(node);
        self.stored.push((stored, dims));
        model::NodeId(self.stored.len() - 1)
    }
}

/// A type in these dimensions, but for the last.
pub(super) fn with_channels(of: &ValueType, dtype: Dtype, channels: usize) -> ValueType {
    let mut dims = of.dims.clone();
    *dims.last_mut().expect("it has channels") = channels;
    ValueType { dtype, dims }
}
