//! Layers that loops compute: their operands in a type of fewer bits, their sums in f32.

use super::layered::Split;
use crate::graph::{Constant, Expr, Graph, Node, Op, Origin, ValueId, ValueType};
use crate::tensor::Dtype;

impl Split<'_> {
    /// The node with its two factors converted to `dtype` if it is a layer of f32; any other node unchanged.
    pub fn reading(&mut self, node: &Node, dtype: Dtype) -> Node {
        let mut node = node.clone();
        if dtype != Dtype::F32 && is_layer(self.from, &node) {
            for (factor, name) in node.inputs.iter_mut().zip(["left", "right"]) {
                *factor = factor.map(|x| self.operand(x, dtype, &format!("{}, {name}", node.name)));
            }
        }
        node
    }

    /// The value converted to another type. A weight is converted when it is read from its file.
    fn operand(&mut self, x: ValueId, dtype: Dtype, name: &str) -> ValueId {
        if let Some(&there) = self.operands.get(&x) {
            return there;
        }
        let of = ValueType { dtype, ..self.from.value(x).clone() };
        let made = match self.from.constant(x) {
            Some(weight @ Constant::Weight(_)) => self.add_from(Origin::Constant(weight.clone()), of),
            _ => self.node(name, &dtype.to_string(), Op::Map(Expr::arg(0).cast(dtype)), x, of),
        };
        self.operands.insert(x, made);
        made
    }
}

/// Whether a node is a sum of products of two values, all in f32.
fn is_layer(graph: &Graph, node: &Node) -> bool {
    let is_f32 = |id: &ValueId| graph.value(*id).dtype == Dtype::F32;
    let multiplies = matches!(node.op, Op::Contract(_) | Op::Conv(_) | Op::ConvTranspose(..));
    multiplies && node.inputs.iter().flatten().all(is_f32)
}
