//! Writes a graph anew, node by node.

use std::collections::{HashMap, HashSet};

use crate::graph::op::Op;
use crate::graph::tensor::Tensor;
use crate::graph::value::{Constant, Graph, Node, NodeId, Origin, Port, Value, ValueId, ValueType};

/// An operation on values of the new graph.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub name: String,
    pub op: Op,
    pub inputs: Vec<Option<ValueId>>,
    /// The number of values that it writes.
    pub outputs: usize,
}

/// The change that a rule makes to an operation.
pub(super) enum Change {
    /// These existing values replace those of the operation.
    Same(Vec<ValueId>),
    /// This operation replaces it.
    Become(Box<Draft>),
}

/// A graph that is being written from another one.
pub(super) struct Rebuild<'a> {
    from: &'a Graph,
    graph: Graph,
    names: HashSet<String>,
    /// For each name without its number, the number that the next part of this name tries first.
    numbers: HashMap<String, usize>,
    /// The values of the operations that were added, by a text that identifies the operation.
    known: HashMap<String, Vec<ValueId>>,
    /// The constants that were added.
    constants: HashMap<(ValueType, Constant), ValueId>,
}

impl<'a> Rebuild<'a> {
    pub fn new(from: &'a Graph) -> Self {
        let names = from.nodes.iter().map(|node| node.name.clone()).collect();
        let (numbers, known, constants) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { from, graph: Graph::default(), names, numbers, known, constants }
    }

    /// The graph with each node replaced by what `rule` adds for it; `rule` returns the values that replace those of
    /// the node.
    pub fn with(mut self, mut rule: impl FnMut(&mut Self, Draft) -> Vec<ValueId>) -> Graph {
        let from = self.from;
        let mut stands_for: Vec<Option<ValueId>> = vec![None; from.values.len()];
        let of = |old: &Value| matches!(old.origin, Origin::Input(_) | Origin::Constant(_));
        for (index, old) in from.values.iter().enumerate().filter(|(_, old)| of(old)) {
            stands_for[index] = Some(self.value(old.clone()));
        }
        for node in &from.nodes {
            let inputs = node.inputs.iter().map(|input| input.and_then(|id| stands_for[id.0])).collect();
            let draft = Draft { name: node.name.clone(), op: node.op.clone(), inputs, outputs: node.outputs.len() };
            for (old, new) in node.outputs.iter().zip(rule(&mut self, draft)) {
                stands_for[old.0] = Some(new);
                self.graph.values[new.0].quantization = from.values[old.0].quantization.clone();
            }
        }
        renumbered(self.graph, &from.inputs, &from.outputs, |old| stands_for[old.0].expect("nodes are in order"))
    }

    /// Adds an operation, unless an equal one exists; returns the values that it writes.
    pub fn add(&mut self, draft: Draft) -> Vec<ValueId> {
        let key = format!("{:?} {:?} {}", draft.op, draft.inputs, draft.outputs);
        if let Some(there) = self.known.get(&key) {
            return there.clone();
        }
        let types: Vec<Option<&ValueType>> = draft.inputs.iter().map(|id| id.map(|id| self.graph.value(id))).collect();
        let written = draft.op.infer(&types, draft.outputs);
        let written = written.unwrap_or_else(|what| panic!("a rewrite of `{}` is wrong: {what}", draft.name));
        let id = NodeId(self.graph.nodes.len());
        let value = |(i, of)| Value { of, origin: Origin::Node(id, i), quantization: None };
        let outputs: Vec<ValueId> = written.into_iter().enumerate().map(value).map(|new| self.value(new)).collect();
        let Draft { name, op, inputs, .. } = draft;
        self.graph.nodes.push(Node { name, op, inputs, outputs: outputs.clone() });
        self.known.insert(key, outputs.clone());
        outputs
    }

    /// Adds an operation as a part of the node `of`, simplified, under a new name.
    pub fn part(&mut self, of: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs = inputs.iter().copied().map(Some).collect();
        match self.simpler(Draft { name: String::new(), op, inputs, outputs: 1 }) {
            Change::Same(values) => values[0],
            Change::Become(draft) => {
                let name = self.fresh(format!("{of}.{}", draft.op.kind()));
                self.add(Draft { name, ..*draft })[0]
            }
        }
    }

    /// What is left of an operation once its views are simplified: existing values, or an operation.
    pub fn simpler(&self, mut draft: Draft) -> Change {
        loop {
            match super::views::simplify(self, &draft) {
                Some(Change::Become(next)) => draft = *next,
                Some(same) => return same,
                None => return Change::Become(Box::new(draft)),
            }
        }
    }

    /// A name that no node has: this one, or this one with a number.
    fn fresh(&mut self, base: String) -> String {
        let next = self.numbers.entry(base.clone()).or_insert(1);
        loop {
            let name = if *next == 1 { base.clone() } else { format!("{base}.{next}") };
            *next += 1;
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Adds a constant, unless an equal one was added.
    pub fn constant(&mut self, of: &Tensor) -> ValueId {
        let key = (of.value_type().clone(), Constant::Bytes(of.bytes().into()));
        if let Some(&there) = self.constants.get(&key) {
            return there;
        }
        let origin = Origin::Constant(key.1.clone());
        let id = self.value(Value { of: key.0.clone(), origin, quantization: None });
        self.constants.insert(key, id);
        id
    }

    /// The elements of a constant, if its bytes are in the graph.
    pub fn known(&self, id: ValueId) -> Option<Tensor> {
        match self.graph.constant(id)? {
            Constant::Bytes(bytes) => Some(Tensor::from_bytes(self.of(id).clone(), bytes)),
            Constant::Weight(_) => None,
        }
    }

    /// The type of a value of the new graph.
    pub fn of(&self, id: ValueId) -> &ValueType {
        self.graph.value(id)
    }

    /// The operation that writes a value of the new graph, and its first operand.
    pub fn writer(&self, id: ValueId) -> Option<(&Op, ValueId)> {
        match self.graph.values[id.0].origin {
            Origin::Node(node, _) => {
                let node = &self.graph.nodes[node.0];
                Some((&node.op, (*node.inputs.first()?)?))
            }
            Origin::Input(_) | Origin::Constant(_) => None,
        }
    }

    /// Whether a value is a constant, or a view of one.
    pub fn is_constant(&self, id: ValueId) -> bool {
        let mut seen = id;
        while let Some((Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_) | Op::Slice(_), from)) = self.writer(seen)
        {
            seen = from;
        }
        matches!(self.graph.values[seen.0].origin, Origin::Constant(_))
    }

    fn value(&mut self, value: Value) -> ValueId {
        self.graph.values.push(value);
        ValueId(self.graph.values.len() - 1)
    }
}

/// The graph with these inputs and outputs, without nodes and values that none of them needs.
pub(super) fn needed(from: &Graph, inputs: &[Port], outputs: &[Port]) -> Graph {
    let mut needed = vec![false; from.values.len()];
    inputs.iter().chain(outputs).for_each(|port| needed[port.value.0] = true);
    for value in from.values.iter().filter_map(|value| value.quantization.as_ref()) {
        [Some(value.scale), value.zero_point].into_iter().flatten().for_each(|id| needed[id.0] = true);
    }
    for node in from.nodes.iter().rev() {
        if node.outputs.iter().any(|output| needed[output.0]) {
            node.inputs.iter().flatten().for_each(|input| needed[input.0] = true);
            node.outputs.iter().for_each(|output| needed[output.0] = true);
        }
    }
    let mut new_ids = vec![ValueId(0); from.values.len()];
    let mut graph = Graph::default();
    for (index, value) in from.values.iter().enumerate().filter(|(index, _)| needed[*index]) {
        new_ids[index] = ValueId(graph.values.len());
        graph.values.push(value.clone());
    }
    let new_id = |id: ValueId| new_ids[id.0];
    for node in from.nodes.iter().filter(|node| needed[node.outputs[0].0]) {
        let id = NodeId(graph.nodes.len());
        let inputs = node.inputs.iter().map(|input| input.map(new_id)).collect();
        let outputs: Vec<ValueId> = node.outputs.iter().copied().map(new_id).collect();
        outputs.iter().enumerate().for_each(|(i, output)| graph.values[output.0].origin = Origin::Node(id, i));
        graph.nodes.push(Node { inputs, outputs, ..node.clone() });
    }
    renumbered(graph, inputs, outputs, new_id)
}

/// The graph with the ports of `from` and the values that quantisations refer to, by their new numbers.
fn renumbered(mut graph: Graph, inputs: &[Port], outputs: &[Port], new: impl Fn(ValueId) -> ValueId) -> Graph {
    for quantization in graph.values.iter_mut().filter_map(|value| value.quantization.as_mut()) {
        quantization.scale = new(quantization.scale);
        quantization.zero_point = quantization.zero_point.map(&new);
    }
    let ports = |ports: &[Port]| ports.iter().map(|port| Port { value: new(port.value), ..port.clone() }).collect();
    let (inputs, outputs) = (ports(inputs), ports(outputs));
    Graph { inputs, outputs, ..graph }
}
