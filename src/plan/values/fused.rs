//! Steps that compute several nodes, as nodes of their own: what they read in f16, and what they write.

use std::collections::HashMap;

use super::layers::Layered;
use super::patterns::{Found, Read, ends_in_eights};
use crate::graph::{Expr, Node, NodeId, Number, Op, Origin, Pad, PadMode, ValueId, ValueType};
use crate::tensor::Dtype;

impl Layered {
    /// Adds a step, named after a node, in the place of its nodes, and what it writes as f32 for whatever else reads that.
    pub(super) fn push_found(&mut self, named: &Node, found: &Found, halves: &mut HashMap<ValueId, ValueId>) {
        let inputs = found.reads.iter().map(|read| Some(self.read(read, &named.name, halves))).collect();
        let dims = &self.graph.value(found.writes).dims;
        let (channels, written) = (dims[dims.len() - 1], ValueType::new(Dtype::F16, dims));
        let written = self.add(written);
        self.channels.insert(written, channels);
        self.layers.insert(NodeId(self.graph.nodes.len()), found.op.clone());
        self.push(Node { inputs, outputs: vec![written], ..named.clone() });
        halves.insert(found.writes, written);
        let (name, cast) = (format!("{} (f32)", named.name), Op::Map(Expr::arg(0).cast(Dtype::F32)));
        self.push(Node { name, op: cast, inputs: vec![Some(written)], outputs: vec![found.writes] });
    }

    /// What a step reads.
    fn read(&mut self, read: &Read, name: &str, halves: &mut HashMap<ValueId, ValueId>) -> ValueId {
        match read {
            Read::Half(value) => self.dense_half(*value, name, halves),
            Read::Constant(value) => *value,
            Read::Mask { expr, values, dims, is_odd } => {
                let inputs = values.iter().copied().map(Some).collect();
                let half = self.add(ValueType::new(Dtype::F16, dims));
                let op = Op::Map(expr.clone().cast(Dtype::F16));
                self.push(Node { name: format!("{name} (mask)"), op, inputs, outputs: vec![half] });
                if *is_odd { self.padded(half, name) } else { half }
            }
        }
    }

    /// A value in f16. A reshape of one that is there in f16 is a view of that.
    fn dense_half(&mut self, x: ValueId, name: &str, halves: &mut HashMap<ValueId, ValueId>) -> ValueId {
        if let Some(&there) = halves.get(&x) {
            return there;
        }
        if let Origin::Node(node, 0) = self.graph.values[x.0].origin
            && let Node { op: Op::Reshape(dims), inputs, .. } = &self.graph.nodes[node.0]
            && let Some(from) = inputs[0].filter(|&from| ends_in_eights(&self.graph, from))
        {
            let dims = dims.clone();
            let from = self.dense_half(from, name, halves);
            return self.node(name, "reshape", Op::Reshape(dims.clone()), from, ValueType { dtype: Dtype::F16, dims });
        }
        let half = self.half(x, name);
        halves.insert(x, half);
        half
    }

    /// A value with rows that are one longer.
    fn padded(&mut self, x: ValueId, name: &str) -> ValueId {
        let mut dims = self.graph.value(x).dims.clone();
        let (before, mut after) = (vec![0; dims.len()], vec![0; dims.len()]);
        let last = dims.len() - 1;
        (dims[last], after[last]) = (dims[last] + 1, 1);
        let pad = Pad { before, after, mode: PadMode::Constant(Number::Float(0.0)) };
        self.node(name, "padded", Op::Pad(pad), x, ValueType { dtype: Dtype::F16, dims })
    }
}
