//! The order in which the nodes of a graph are imported.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::onnx::{AttributeValue, NodeProto};

/// The indices of a graph's nodes, in import order.
pub(super) struct NodeOrder {
    /// The nodes that depend on no cycle. Each comes after those that it reads from, otherwise they are in the order of
    /// the file.
    pub sorted: Vec<usize>,
    /// The nodes of cycles, and all nodes that depend on them.
    pub cyclic: Vec<usize>,
}

/// The state of the sort.
struct Sorter<'m> {
    nodes: &'m [NodeProto],
    /// For each name, the number of nodes that write it and are not sorted yet, and the indices of all nodes that read
    /// it.
    names: HashMap<&'m str, (usize, Vec<usize>)>,
    /// For each node, the number of names that it waits for.
    waits: Vec<usize>,
    ready: BinaryHeap<Reverse<usize>>,
}

impl NodeOrder {
    pub fn of(nodes: &[NodeProto]) -> Self {
        let mut sorter = Sorter::new(nodes);
        let mut sorted = Vec::with_capacity(nodes.len());
        while let Some(Reverse(index)) = sorter.ready.pop() {
            sorted.push(index);
            sorter.done(index);
        }
        let cyclic = (0..nodes.len()).filter(|&index| sorter.waits[index] > 0).collect();
        Self { sorted, cyclic }
    }
}

impl<'m> Sorter<'m> {
    fn new(nodes: &'m [NodeProto]) -> Self {
        let mut names: HashMap<&str, (usize, Vec<usize>)> = HashMap::new();
        nodes.iter().flat_map(written).for_each(|name| names.entry(name).or_default().0 += 1);
        let mut waits = vec![0; nodes.len()];
        for (index, node) in nodes.iter().enumerate() {
            for name in read(node) {
                if let Some((_, readers)) = names.get_mut(name) {
                    readers.push(index);
                    waits[index] += 1;
                }
            }
        }
        let ready = (0..nodes.len()).filter(|&index| waits[index] == 0).map(Reverse).collect();
        Self { nodes, names, waits, ready }
    }

    /// Records that a node is sorted. When it is the last one that writes a name, nodes that read the name no longer
    /// wait for it.
    fn done(&mut self, index: usize) {
        for name in written(&self.nodes[index]) {
            let (writers, readers) = self.names.get_mut(name).expect("every name that is written was counted");
            *writers -= 1;
            if *writers == 0 {
                for &reader in &*readers {
                    self.waits[reader] -= 1;
                    if self.waits[reader] == 0 {
                        self.ready.push(Reverse(reader));
                    }
                }
            }
        }
    }
}

fn written(node: &NodeProto) -> impl Iterator<Item = &str> {
    node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty())
}

/// The names that a node reads, with those that its bodies read from the graphs around them.
fn read(node: &NodeProto) -> HashSet<&str> {
    let mut names: HashSet<&str> = node.inputs.iter().map(String::as_str).collect();
    for attribute in &node.attributes {
        if let AttributeValue::Graph(body) = &attribute.value {
            let inside = body.nodes.iter().flat_map(read).chain(body.outputs.iter().map(|value| value.name.as_str()));
            let mut inside: HashSet<&str> = inside.collect();
            let inputs = body.inputs.iter().map(|input| &input.name);
            let constants = body.initializers.iter().map(|tensor| &tensor.name);
            let written = body.nodes.iter().flat_map(|node| &node.outputs);
            for own in inputs.chain(constants).chain(written) {
                inside.remove(own.as_str());
            }
            names.extend(inside);
        }
    }
    names.remove("");
    names
}
