//! The operations of a graph of values that the kernels for images compute, as one network of images: layers, and what comes
//! between them. It reads and writes f16 with padded channels; loops take in the conversions.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::activations::activation;
use super::layers::{has_kernel, image, layer};
use crate::graph::{Expr, Graph, Node, NodeId, Number, Op, Origin, Pad, PadMode, Slice, Value, ValueId, ValueType};
use crate::model::{self, is_sum, pool_of};
use crate::plan::{Family, Limits};
use crate::tensor::{Activation, Dtype, Shape};

/// Channels are stored in multiples of this.
const ALIGN: usize = Family::Sm80.channel_align();

/// A graph of values, and the network of images that computes some of its nodes.
pub(super) struct Layered {
    /// The graph: what the network computes are nodes of values in f16.
    pub graph: Graph,
    /// These nodes.
    pub apart: HashSet<NodeId>,
    /// The network. What loops compute is given to it, and its last node stands for all outputs of the graph.
    pub network: model::Graph,
    /// What is given to it, by the names of its nodes.
    pub given: HashMap<String, Given>,
    /// Channels of values that are stored with more.
    pub channels: HashMap<ValueId, usize>,
}

/// A value that a network reads.
pub(super) struct Given {
    /// The value; none for what stands for the outputs.
    pub value: Option<ValueId>,
    /// What it is computed from of the network's values, in the order of the node's operands.
    pub reads: Vec<ValueId>,
}

/// The graph for `batch` rows, and the network of all that the kernels of the device compute of it in f16.
pub(super) fn layered(graph: &Graph, limits: &Limits, batch: usize) -> Layered {
    let mut split = Split::new(graph, batch);
    for node in &graph.nodes {
        match split.operation(node).filter(|(op, reads)| split.fits(node, op, reads, limits)) {
            Some((op, reads)) => split.push_image(node, op, &reads),
            None => split.push_other(node),
        }
    }
    split.finish()
}

impl Layered {
    /// A graph of which the network computes nothing.
    pub fn without_images(graph: &Graph) -> Self {
        let mut split = Split::new(graph, 0);
        graph.nodes.iter().for_each(|node| split.push(node.clone()));
        split.finish()
    }
}

/// A graph whose nodes become the network's, one after the other, or stay.
struct Split<'a> {
    from: &'a Graph,
    batch: usize,
    to: Layered,
    /// The node of the network that computes each value, or that it is given by.
    images: HashMap<ValueId, model::NodeId>,
    /// The values that the network's nodes are in the new graph, and their dimensions there, but for padding.
    stored: Vec<(ValueId, Vec<usize>)>,
    /// For each value of the graph the nodes of the network that it is computed from.
    sources: Vec<BTreeSet<model::NodeId>>,
}

impl<'a> Split<'a> {
    fn new(from: &'a Graph, batch: usize) -> Self {
        let input = Shape::vector(1); // of an input, which it has not
        let network = model::Graph { nodes: Vec::new(), output: model::NodeId(0), input };
        let to = Layered {
            graph: Graph { nodes: Vec::new(), ..from.clone() },
            apart: HashSet::new(),
            network,
            given: HashMap::new(),
            channels: HashMap::new(),
        };
        let sources = vec![BTreeSet::new(); from.values.len()];
        Self { from, batch, to, images: HashMap::new(), stored: Vec::new(), sources }
    }

    /// With the node that stands for all outputs.
    fn finish(mut self) -> Layered {
        let outputs = &self.from.outputs;
        let sources = outputs.iter().flat_map(|port| self.sources[port.value.0].clone()).collect();
        self.to.network.output = self.give("outputs (f32)".into(), None, vec![1, 1], &sources);
        self.to
    }

    /// What a node is of a network of images, and the values that it is computed from there.
    fn operation(&self, node: &Node) -> Option<(model::Op, Vec<ValueId>)> {
        let reads: Vec<ValueId> = node.inputs.iter().flatten().copied().collect();
        let x = *reads.first()?;
        let rank = self.from.value(x).rank();
        match &node.op {
            Op::Conv(_) | Op::Contract(_) => Some((model::Op::Conv2d(layer(self.from, node)?), vec![x])),
            Op::Map(expr) if is_sum(expr) => Some((model::Op::Add(Activation::None), self.summands(reads)?)),
            Op::Map(_) => self.activation(node),
            Op::Pool(pool) => match pool_of(node, pool).ok()? {
                op @ model::Op::MaxPool(_) => self.is_of_layers(x).then_some((op, reads)),
                op => self.is_image(x).then_some((op, reads)),
            },
            Op::Concat(axis) if axis + 1 == rank => {
                let (_, others) = reads.split_last()?;
                let channels = |id: &ValueId| self.from.value(*id).dims[*axis];
                let are_apart = others.iter().all(|id| channels(id).is_multiple_of(ALIGN));
                (are_apart && reads.iter().all(|&id| self.is_image(id))).then_some((model::Op::Concat, reads))
            }
            _ => None,
        }
    }

    /// What is added, if both are images: a loop adds what it computes itself.
    fn summands(&self, reads: Vec<ValueId>) -> Option<Vec<ValueId>> {
        let fits = reads.len() == 2 && self.from.value(reads[0]).rank() == 4;
        (fits && reads.iter().all(|&id| self.is_image(id))).then_some(reads)
    }

    /// The activation that a node is of an image, or of what another activation is of.
    fn activation(&self, node: &Node) -> Option<(model::Op, Vec<ValueId>)> {
        let sources: BTreeSet<_> = node.inputs.iter().flatten().flat_map(|id| &self.sources[id.0]).collect();
        let &source = sources.first().filter(|_| sources.len() == 1)?;
        let before = match &self.to.network.nodes[source.0] {
            model::Node { op: model::Op::Activation(_), inputs, .. } => inputs.first(),
            _ => None,
        };
        let is_source = |of: &model::NodeId| of == source || Some(of) == before;
        let mut shown: Vec<ValueId> = self.images.iter().filter(|(_, of)| is_source(of)).map(|(&id, _)| id).collect();
        shown.sort_unstable();
        let found = |x: ValueId| Some((model::Op::Activation(activation(self.from, node, x)?), vec![x]));
        shown.into_iter().filter(|&x| self.is_image(x)).find_map(found)
    }

    /// Whether the network computes a value.
    fn is_image(&self, id: ValueId) -> bool {
        let node = self.images.get(&id).map(|id| &self.to.network.nodes[id.0].op);
        node.is_some_and(|op| !matches!(op, model::Op::Given(_)))
    }

    /// Whether a value is computed from some of the network's, so that it has no more digits than they have.
    fn is_of_layers(&self, id: ValueId) -> bool {
        !self.sources[id.0].is_empty()
    }

    /// Whether a node is just that operation of these values, of rows in f32, and a kernel computes it.
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
        let is_as_stored =
            |&id: &ValueId| self.images.get(&id).is_none_or(|of| image(&self.stored[of.0].1) == shape(id));
        matches!(op, model::Op::Activation(_)) // whatever the dimensions
            || (op.shape(&shapes) == Ok(shape(y))
                && reads.iter().all(is_as_stored)
                && has_kernel(op, (shapes[0], shape(y)), self.batch, limits))
    }

    /// A node as it is.
    fn push(&mut self, node: Node) {
        let id = NodeId(self.to.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.to.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.to.graph.nodes.push(node);
    }

    /// A node that loops compute. An image that it shows in other dimensions stays one.
    fn push_other(&mut self, node: &Node) {
        let reads = node.inputs.iter().flatten();
        let sources: BTreeSet<_> = reads.flat_map(|id| self.sources[id.0].clone()).collect();
        node.outputs.iter().for_each(|id| self.sources[id.0] = sources.clone());
        if let (Op::Reshape(dims), [Some(x)], [y]) = (&node.op, &node.inputs[..], &node.outputs[..])
            && let Some(&there) = self.images.get(x)
            && dims.len() >= 2
            && dims[0] == self.batch
            && self.is_shown(&self.stored[there.0].1, dims)
        {
            self.images.insert(*y, there);
        }
        self.push(node.clone());
    }

    /// Whether an image of the first dimensions has the second as well: a vector may have any.
    fn is_shown(&self, image_dims: &[usize], dims: &[usize]) -> bool {
        let of = image(image_dims);
        image(dims) == of || (of.pixels() == 1 && dims.iter().product::<usize>() == self.batch * of.channels)
    }

    /// A node of the network, and what loops read of it in f32.
    fn push_image(&mut self, node: &Node, op: model::Op, reads: &[ValueId]) {
        let inputs: Vec<model::NodeId> = reads.iter().map(|&x| self.image(x, &node.name)).collect();
        let y = node.outputs[0];
        let mut of = self.from.value(y).clone();
        let shown = of.dims.clone();
        if let model::Op::Activation(_) = op {
            of.dims.clone_from(&self.stored[inputs[0].0].1);
        }
        let channels = *of.dims.last().expect("it has channels");
        let stored = self.add(with_channels(&of, channels.next_multiple_of(ALIGN)));
        self.to.channels.insert(stored, channels);
        self.to.apart.insert(NodeId(self.to.graph.nodes.len()));
        let read = inputs.iter().map(|id| Some(self.stored[id.0].0)).collect();
        self.push(Node { inputs: read, outputs: vec![stored], ..node.clone() });
        let id = self.push_node(model::Node { name: node.name.clone(), op, inputs }, stored, of.dims.clone());
        self.images.insert(y, id);
        self.sources[y.0] = BTreeSet::from([id]);
        let cut = match channels.is_multiple_of(ALIGN) {
            true => stored,
            false => {
                let slice = Slice { start: vec![0; of.rank()], step: vec![1; of.rank()], dims: of.dims.clone() };
                self.node(&node.name, "channels", Op::Slice(slice), stored, with_channels(&of, channels))
            }
        };
        let cut = match shown == of.dims {
            true => cut,
            false => {
                let to = ValueType { dtype: Dtype::F16, dims: shown.clone() };
                self.node(&node.name, "dimensions", Op::Reshape(shown), cut, to)
            }
        };
        let (name, cast) = (format!("{} (f32)", node.name), Op::Map(Expr::arg(0).cast(Dtype::F32)));
        self.push(Node { name, op: cast, inputs: vec![Some(cut)], outputs: vec![y] });
    }

    /// The node of the network that has a value, which is given to it if it does not compute it.
    fn image(&mut self, x: ValueId, reader: &str) -> model::NodeId {
        if let Some(&there) = self.images.get(&x) {
            return there;
        }
        let (half, dims) = (self.half(x, reader), self.from.value(x).dims.clone());
        let id = self.give(format!("{reader} (f16)"), Some(half), dims, &self.sources[x.0].clone());
        self.images.insert(x, id);
        id
    }

    /// A value that is given to the network.
    fn give(
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
        self.push_node(model::Node { name, op, inputs }, value.unwrap_or(ValueId(0)), dims)
    }

    fn push_node(&mut self, node: model::Node, stored: ValueId, dims: Vec<usize>) -> model::NodeId {
        self.to.network.nodes.push(node);
        self.stored.push((stored, dims));
        model::NodeId(self.stored.len() - 1)
    }

    /// A value in f16, its channels padded.
    fn half(&mut self, x: ValueId, name: &str) -> ValueId {
        let of = self.from.value(x).clone();
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
        self.to.channels.insert(half, channels);
        half
    }

    fn node(&mut self, of: &str, part: &str, op: Op, x: ValueId, to: ValueType) -> ValueId {
        let y = self.add(to);
        self.push(Node { name: format!("{of} ({part})"), op, inputs: vec![Some(x)], outputs: vec![y] });
        y
    }

    fn add(&mut self, of: ValueType) -> ValueId {
        let origin = Origin::Node(NodeId(self.to.graph.nodes.len()), 0);
        self.to.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.to.graph.values.len() - 1)
    }
}

/// f16 in these dimensions, but for the last.
fn with_channels(of: &ValueType, channels: usize) -> ValueType {
    let mut dims = of.dims.clone();
    *dims.last_mut().expect("it has channels") = channels;
    ValueType { dtype: Dtype::F16, dims }
}
