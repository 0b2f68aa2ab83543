//! Graphs of several graphs, and parts of a graph.

use std::collections::{BTreeMap, HashSet};

use super::rebuild::needed;
use crate::error::Error;
use crate::graph::value::{Constant, Graph, Node, NodeId, Origin, Port, Value, ValueId};

/// The names of a graph that is joined to another one.
pub(crate) struct Names<'a> {
    /// What stands before a name that the other graph has too.
    pub prefix: &'a str,
    /// The new names of weights.
    pub weights: &'a BTreeMap<String, String>,
}

impl Names<'_> {
    /// A name of one of `own` that none of `taken` has.
    pub fn distinct(&self, name: &str, taken: &HashSet<&str>, own: &HashSet<&str>) -> String {
        let (mut distinct, mut is_own) = (name.to_owned(), true);
        while taken.contains(&*distinct) || !is_own && own.contains(&*distinct) {
            (distinct, is_own) = (format!("{}/{distinct}", self.prefix), false);
        }
        distinct
    }
}

/// The graph of `first` and `next`. Each of `links` is a value of `first` and the number of the input of `next` that has
/// this value. The other inputs and outputs of `next` follow those of `first`, whose linked outputs are left out.
///
/// # Errors
/// [`Error::Graph`] for a value that is not as the input.
pub(crate) fn joined(
    first: &Graph,
    next: &Graph,
    links: &[(ValueId, usize)],
    names: &Names<'_>,
) -> Result<Graph, Error> {
    for &(value, input) in links {
        let (port, found) = (&next.inputs[input], first.value(value));
        let expected = next.value(port.value);
        if found != expected {
            return Err(Error::graph(&port.name, format!("an input of {expected} is linked to a value of {found}")));
        }
    }
    let mut graph = first.clone();
    let is_linked = |port: &Port| links.iter().any(|(value, _)| *value == port.value);
    graph.outputs.retain(|port| !is_linked(port));

    // Values of `next` in the new graph: linked inputs are there already.
    let mut ids = vec![None; next.values.len()];
    links.iter().for_each(|&(value, input)| ids[next.inputs[input].value.0] = Some(value));
    let is_new: Vec<bool> = ids.iter().map(Option::is_none).collect();
    let mut count = graph.values.len();
    let ids: Vec<ValueId> = ids
        .into_iter()
        .map(|id| {
            id.unwrap_or_else(|| {
                count += 1;
                ValueId(count - 1)
            })
        })
        .collect();
    let new = |port: &Port, taken: &[Port], own: &[Port]| {
        let [taken, own] = [taken, own].map(|ports| ports.iter().map(|port| &*port.name).collect());
        Port { name: names.distinct(&port.name, &taken, &own), value: ids[port.value.0] }
    };
    let inputs = next.inputs.iter().filter(|port| is_new[port.value.0]);
    let inputs: Vec<Port> = inputs.map(|port| new(port, &first.inputs, &next.inputs)).collect();
    let outputs: Vec<Port> = next.outputs.iter().map(|port| new(port, &graph.outputs, &next.outputs)).collect();
    let input_of = |id: ValueId| inputs.iter().position(|port| port.value == id).expect("each input has a port");
    for (index, value) in next.values.iter().enumerate().filter(|(index, _)| is_new[*index]) {
        let origin = match &value.origin {
            Origin::Input(_) => Origin::Input(first.inputs.len() + input_of(ids[index])),
            Origin::Constant(Constant::Weight(name)) => {
                let name = names.weights.get(name).unwrap_or(name);
                Origin::Constant(Constant::Weight(name.clone()))
            }
            Origin::Constant(Constant::Bytes(bytes)) => Origin::Constant(Constant::Bytes(bytes.clone())),
            Origin::Node(node, output) => Origin::Node(NodeId(first.nodes.len() + node.0), *output),
        };
        let quantization = value.quantization.clone().map(|mut of| {
            of.scale = ids[of.scale.0];
            of.zero_point = of.zero_point.map(|id| ids[id.0]);
            of
        });
        graph.values.push(Value { of: value.of.clone(), origin, quantization });
    }
    let [taken, own] = [first, next].map(|graph| graph.nodes.iter().map(|node| &*node.name).collect());
    for node in &next.nodes {
        graph.nodes.push(Node {
            name: names.distinct(&node.name, &taken, &own),
            op: node.op.clone(),
            inputs: node.inputs.iter().map(|id| id.map(|id| ids[id.0])).collect(),
            outputs: node.outputs.iter().map(|id| ids[id.0]).collect(),
        });
    }
    graph.inputs.extend(inputs);
    graph.outputs.extend(outputs);
    Ok(graph)
}

/// The part of the graph that computes the values of a node.
pub(crate) fn up_to(graph: &Graph, node: NodeId) -> Graph {
    needed(graph, &graph.inputs, &written(&graph.nodes[node.0]))
}

/// The graph without inputs that computes these values, which depend on none.
pub(crate) fn computing(graph: &Graph, constants: &[ValueId]) -> Graph {
    let port = |(number, &value): (usize, &ValueId)| Port { name: format!("constant {number}"), value };
    needed(graph, &[], &constants.iter().enumerate().map(port).collect::<Vec<_>>())
}

/// The graph cut in two behind a node: all nodes up to this one, and all others. The outputs of the first graph are the
/// inputs of the second one: all values that the second one reads, in the order of their computation. Values that depend
/// on no input are computed where they are read.
pub(crate) fn cut(graph: &Graph, node: NodeId) -> [Graph; 2] {
    let mut depends = vec![false; graph.values.len()];
    graph.inputs.iter().for_each(|port| depends[port.value.0] = true);
    for node in &graph.nodes {
        let any = node.inputs.iter().flatten().any(|id| depends[id.0]);
        node.outputs.iter().for_each(|id| depends[id.0] = any);
    }
    let is_before = |id: ValueId| match graph.values[id.0].origin {
        Origin::Input(_) => true,
        Origin::Node(by, _) => by.0 <= node.0 && depends[id.0],
        Origin::Constant(_) => false,
    };
    let read = graph.nodes[node.0 + 1..].iter().flat_map(|node| node.inputs.iter().flatten().copied());
    let read: HashSet<ValueId> = read.chain(graph.outputs.iter().map(|port| port.value)).collect();
    let inputs = graph.inputs.iter().cloned();
    let is_input = |name: &str| graph.inputs.iter().any(|port| port.name == name);
    let computed = graph.nodes.iter().flat_map(written).map(|port| match is_input(&port.name) {
        true => Port { name: format!("{} (result)", port.name), ..port },
        false => port,
    });
    let ports: Vec<Port> = inputs.chain(computed).filter(|p| read.contains(&p.value) && is_before(p.value)).collect();
    let first = needed(graph, &graph.inputs, &ports);

    let mut second = Graph { inputs: ports, outputs: graph.outputs.clone(), ..Graph::default() };
    second.values.clone_from(&graph.values);
    for (index, old) in graph.nodes.iter().enumerate() {
        let is_needed = index > node.0 || !old.outputs.iter().any(|id| depends[id.0]);
        let id = NodeId(second.nodes.len());
        for (output, value) in old.outputs.iter().enumerate() {
            let value = &mut second.values[value.0];
            value.origin = if is_needed { Origin::Node(id, output) } else { Origin::Input(0) }; // not read, or given below
        }
        second.nodes.extend(is_needed.then(|| old.clone()));
    }
    for (index, port) in second.inputs.iter().enumerate() {
        second.values[port.value.0].origin = Origin::Input(index);
    }
    let second = needed(&second, &second.inputs, &second.outputs);
    [first, second]
}

/// A port for each value that a node writes.
fn written(node: &Node) -> Vec<Port> {
    let name = |index| if node.outputs.len() == 1 { node.name.clone() } else { format!("{}:{index}", node.name) };
    node.outputs.iter().enumerate().map(|(index, &value)| Port { name: name(index), value }).collect()
}
