//! Graphs of several graphs, and parts of a graph.

use std::collections::{BTreeMap, HashSet};

use super::rebuild::Rebuild;
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
    let outputs = written(&graph.nodes[node.0]);
    Rebuild::new(&Graph { outputs, ..graph.clone() }).needed()
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
    let first = Rebuild::new(&Graph { outputs: ports.clone(), ..graph.clone() }).needed();

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
    [first, Rebuild::new(&second).needed()]
}

/// A port for each value that a node writes.
fn written(node: &Node) -> Vec<Port> {
    let name = |index| if node.outputs.len() == 1 { node.name.clone() } else { format!("{}:{index}", node.name) };
    node.outputs.iter().enumerate().map(|(index, &value)| Port { name: name(index), value }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Expr, GraphBuilder, Op, Tensor};
    use crate::loops;
    use crate::tensor::Dtype;

    fn numbers(graph: &Graph, inputs: &[[f32; 2]]) -> Vec<Vec<f32>> {
        graph.check().unwrap();
        let inputs: Vec<Tensor> = inputs.iter().map(|numbers| Tensor::of(&[1, 2], numbers)).collect();
        let outputs = loops::evaluate(graph, &mut |name, _| unreachable!("no weight {name}"), &inputs).unwrap();
        outputs.iter().map(|output| output.elems::<f32>().to_vec()).collect()
    }

    /// s = x + y, and p = s x y; both are outputs.
    fn sums() -> Graph {
        let mut g = GraphBuilder::new();
        let [x, y] = ["x", "y"].map(|name| g.input(name, Dtype::F32, &[1, 2]));
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        let two = g.constant(Dtype::F32, &[2], 2.0_f32.to_le_bytes().repeat(2));
        let four = g.map("four", Expr::arg(0) * Expr::arg(0), &[two]);
        let product = g.map("product", Expr::arg(0) * Expr::arg(1) * Expr::arg(2), &[sum, y, four]);
        g.output("s", sum);
        g.output("p", product);
        g.finish().unwrap()
    }

    fn names(ports: &[Port]) -> Vec<&str> {
        ports.iter().map(|port| &*port.name).collect()
    }

    #[test]
    fn joined_graphs_compute_one_after_the_other() {
        let graph = sums();
        let weights = BTreeMap::new();
        let names_of_next = Names { prefix: "next", weights: &weights };
        let links = [(graph.outputs[1].value, 0)]; // p is the second graph's x
        let both = joined(&graph, &graph, &links, &names_of_next).unwrap();
        assert_eq!(names(&both.inputs), ["x", "y", "next/y"]);
        assert_eq!(names(&both.outputs), ["s", "next/s", "p"]);
        let nodes: Vec<&str> = both.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(nodes, ["sum", "four", "product", "next/sum", "next/four", "next/product"]);
        let found = numbers(&both, &[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        assert_eq!(found, [vec![4.0, 6.0], vec![53.0, 102.0], vec![1060.0, 2448.0]]);
        let shared = joined(&graph, &graph, &[(graph.inputs[0].value, 0), (graph.inputs[1].value, 1)], &names_of_next);
        let shared = shared.unwrap();
        assert_eq!(
            (names(&shared.inputs), names(&shared.outputs)),
            (vec!["x", "y"], vec!["s", "p", "next/s", "next/p"])
        );
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let mut g = GraphBuilder::new();
        let x = g.input("wide", Dtype::F32, &[1, 3]);
        let y = g.node("half", Op::Map(Expr::arg(0).cast(Dtype::F16)), &[x]);
        g.output("y", y);
        let (graph, weights) = (sums(), BTreeMap::new());
        let names = Names { prefix: "next", weights: &weights };
        let error = joined(&graph, &g.finish().unwrap(), &[(graph.outputs[0].value, 0)], &names).unwrap_err();
        assert!(error.to_string().contains("an input of f32[1,3] is linked to a value of f32[1,2]"), "{error}");
    }

    #[test]
    fn parts_of_a_graph_hand_over_all_that_is_read() {
        let graph = sums();
        let [first, second] = cut(&graph, graph.find("sum").unwrap());
        assert_eq!(names(&first.outputs), ["y", "sum"]);
        assert_eq!((names(&second.inputs), names(&second.outputs)), (vec!["y", "sum"], vec!["s", "p"]));
        assert_eq!((first.nodes.len(), second.nodes.len()), (1, 2));
        let between = numbers(&first, &[[1.0, 2.0], [3.0, 4.0]]);
        let between: Vec<[f32; 2]> = between.iter().map(|of| [of[0], of[1]]).collect();
        assert_eq!(numbers(&second, &between), numbers(&graph, &[[1.0, 2.0], [3.0, 4.0]]));
        let up_to = up_to(&graph, graph.find("sum").unwrap());
        assert_eq!((up_to.nodes.len(), names(&up_to.outputs)), (1, vec!["sum"]));
        // Behind a node that depends on no input, and behind the last one.
        let [first, second] = cut(&graph, graph.find("four").unwrap());
        assert_eq!((names(&first.outputs), second.nodes.len()), (vec!["y", "sum"], 2));
        let [_, nothing] = cut(&graph, graph.find("product").unwrap());
        assert_eq!((nothing.nodes.len(), names(&nothing.inputs)), (0, vec!["sum", "product"]));
    }
}
