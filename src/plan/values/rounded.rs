//! A graph with the roundings to f16 of a GPU's plan as operations, which any device computes.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::images_of;
use super::layered::{Halves, Layered};
use crate::graph::{Expr, Graph, Node, NodeId, Op, Origin, Port, Value, ValueId};
use crate::plan::context::PlanTarget;
use crate::plan::{Choices, Limits};
use crate::tensor::Dtype;

/// A graph with the roundings of a GPU.
pub(crate) struct Rounded<'a> {
    from: &'a Graph,
    halves: Halves,
    /// The values of `from` as the GPU computes them, as outputs of this graph in ascending order.
    pub graph: Graph,
    /// The values of `from` that are outputs.
    pub shown: Vec<ValueId>,
    /// Each value of `from` after its rounding.
    after: HashMap<ValueId, ValueId>,
}

/// `graph` for one row as a GPU computes it with these nodes in f32. All values of f32 are outputs.
pub(crate) fn rounded<'a>(graph: &'a Graph, limits: &Limits, in_f32: &BTreeSet<String>) -> Rounded<'a> {
    let target = PlanTarget { limits, batch: images_of(graph, 1), choices: &Choices::new() };
    let halves = Layered::of(graph, Dtype::F16, target, in_f32).halves;
    Rounded::new(graph, halves)
}

/// `graph` without roundings. All values of f32 are outputs.
pub(crate) fn exact(graph: &Graph) -> Rounded<'_> {
    Rounded::new(graph, Halves::default())
}

impl<'a> Rounded<'a> {
    fn new(from: &'a Graph, halves: Halves) -> Self {
        let graph = Graph { nodes: Vec::new(), outputs: Vec::new(), ..from.clone() };
        let mut new = Self { from, halves, graph, shown: Vec::new(), after: HashMap::new() };
        for (index, node) in from.nodes.iter().enumerate() {
            let inputs = node.inputs.iter().map(|input| input.map(|id| new.operand(NodeId(index), id))).collect();
            new.push(Node { inputs, ..node.clone() });
            for &id in &node.outputs {
                if new.halves.written.contains(&id) {
                    new.round(id);
                }
                new.show(id);
            }
        }
        new
    }

    /// The nodes of the graph that are computed in f16.
    pub fn nodes(&self) -> &HashSet<NodeId> {
        &self.halves.nodes
    }

    /// The values in f16 of a node: the operands that it reads in f16, including constants, and its results.
    pub fn halves_of(&self, id: NodeId) -> impl Iterator<Item = ValueId> {
        let node = &self.from.nodes[id.0];
        let written = node.outputs.iter().copied().filter(|id| self.halves.written.contains(id));
        node.inputs.iter().flatten().copied().filter(move |&input| self.is_rounded(id, input)).chain(written)
    }

    /// Whether a node reads a value in f16.
    fn is_rounded(&self, node: NodeId, x: ValueId) -> bool {
        let is_half = self.halves.read.contains(&x) || self.is_weight(node, x);
        let makes_codes = self.from.nodes[node.0].outputs.iter().any(|id| self.halves.codes.contains(id));
        !makes_codes && (self.halves.written.contains(&x) || (is_half && self.halves.nodes.contains(&node)))
    }

    /// Whether a value is the matrix or the filter of a layer; biases are in f32.
    fn is_weight(&self, node: NodeId, x: ValueId) -> bool {
        let node = &self.from.nodes[node.0];
        let multiplies = matches!(node.op, Op::Conv(_) | Op::Contract(_) | Op::Recurrent(_));
        let is_layer = multiplies && node.inputs.get(1) == Some(&Some(x));
        is_layer && self.from.constant(x).is_some() && self.from.value(x).dtype == Dtype::F32
    }

    /// The value that a node reads in the new graph instead of `x`.
    fn operand(&mut self, node: NodeId, x: ValueId) -> ValueId {
        match (self.is_rounded(node, x), self.after.get(&x)) {
            (false, _) => x,
            (true, Some(&there)) => there,
            (true, None) => self.round(x),
        }
    }

    fn round(&mut self, x: ValueId) -> ValueId {
        let id = ValueId(self.graph.values.len());
        let of = self.from.value(x).clone();
        let op = Op::Map(Expr::arg(0).cast(Dtype::F16).cast(of.dtype));
        self.graph.values.push(Value { of, origin: Origin::Node(NodeId(0), 0), quantization: None });
        self.push(Node { name: format!("{} (f16)", id.0), op, inputs: vec![Some(x)], outputs: vec![id] });
        self.after.insert(x, id);
        id
    }

    fn push(&mut self, node: Node) {
        let id = NodeId(self.graph.nodes.len());
        for (number, output) in node.outputs.iter().enumerate() {
            self.graph.values[output.0].origin = Origin::Node(id, number);
        }
        self.graph.nodes.push(node);
    }

    /// Makes a value of f32 an output of the new graph.
    fn show(&mut self, id: ValueId) {
        if self.from.value(id).dtype == Dtype::F32 {
            let rounded = self.halves.written.contains(&id).then(|| self.after[&id]);
            self.graph.outputs.push(Port { name: id.0.to_string(), value: rounded.unwrap_or(id) });
            self.shown.push(id);
        }
    }
}
