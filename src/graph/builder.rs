//! Building a graph node by node.

use std::collections::HashSet;
use std::sync::Arc;

use super::expr::Expr;
use super::op::Op;
use super::value::{Constant, Graph, Node, NodeId, Origin, Port, Value, ValueId, ValueType};
use crate::error::Error;
use crate::tensor::Dtype;

/// Builds a [`Graph`]. Each method adds an input, a constant, an operation or a layer, and returns its value. Layers
/// are operations with their weights: a layer's name is also the prefix of its tensors' names, as in a PyTorch state
/// dict.
///
/// [`finish`](Self::finish) reports all mistakes at once. Operations on the result of a mistake are not reported again.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, GraphBuilder}};
/// let mut g = GraphBuilder::new();
/// let x = g.input("tokens", Dtype::F32, &[4, 64]);
/// let y = g.linear("fc", x, 10); // a layer, which reads `fc.weight` and `fc.bias`
/// let scale = g.weight("scale", Dtype::F32, &[10]);
/// let y = g.map("scaled", Expr::arg(0) * Expr::arg(1), &[y, scale]); // any operation, of any values
/// assert_eq!(g.value(y).dims, [4, 10]);
/// g.output("scores", y);
/// assert_eq!(g.finish()?.weights().count(), 3);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    /// The names of nodes, inputs and outputs.
    names: [HashSet<String>; 3],
    /// The values that stand for the results of mistakes.
    broken: HashSet<ValueId>,
    mistakes: Vec<(String, String)>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, dtype: Dtype, dims: &[usize]) -> ValueId {
        if !self.names[1].insert(name.to_owned()) {
            self.mistake(name, "two inputs have this name");
        }
        let value = self.add_value(ValueType::new(dtype, dims), Origin::Input(self.graph.inputs.len()));
        self.graph.inputs.push(Port { name: name.to_owned(), value });
        value
    }

    /// Adds a weight, under its name in the model's files.
    pub fn weight(&mut self, name: &str, dtype: Dtype, dims: &[usize]) -> ValueId {
        self.add_value(ValueType::new(dtype, dims), Origin::Constant(Constant::Weight(name.to_owned())))
    }

    /// Adds a constant: its elements as little-endian bytes, the last dimension innermost.
    pub fn constant(&mut self, dtype: Dtype, dims: &[usize], bytes: impl Into<Arc<[u8]>>) -> ValueId {
        let (of, bytes) = (ValueType::new(dtype, dims), bytes.into());
        if of.bytes() != bytes.len() {
            self.mistake("constant", &format!("expected {} bytes of {of}, found {}", of.bytes(), bytes.len()));
        }
        self.add_value(of, Origin::Constant(Constant::Bytes(bytes)))
    }

    /// Adds an operation with one output.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.node_with(name, op, &inputs, 1)[0]
    }

    /// Adds an operation with several outputs. Optional operands may be `None`.
    pub fn node_with(&mut self, name: &str, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Vec<ValueId> {
        let written = match inputs.iter().flatten().all(|&id| self.is_known(id)) {
            true => {
                let types: Vec<_> = inputs.iter().map(|id| id.map(|id| self.graph.value(id))).collect();
                op.infer(&types, outputs).map_err(|what| format!("{}: {what}", op.kind()))
            }
            false => Err(String::new()), // told where the operand was made, or by its number
        };
        if let Some(stranger) = inputs.iter().flatten().find(|id| id.0 >= self.graph.values.len()) {
            self.mistake(name, &format!("reads value {}, which is of another graph", stranger.0));
        }
        if !self.names[0].insert(name.to_owned()) {
            self.mistake(name, "two nodes have this name");
        }
        match written {
            Ok(written) => self.push(name, op, inputs, written),
            Err(what) => {
                if !what.is_empty() {
                    self.mistake(name, &what);
                }
                self.broken(outputs)
            }
        }
    }

    /// Adds an expression of operands that are broadcast to one shape.
    pub fn map(&mut self, name: &str, expr: Expr, inputs: &[ValueId]) -> ValueId {
        self.node(name, Op::Map(expr), inputs)
    }

    /// Makes a value an output.
    pub fn output(&mut self, name: &str, value: ValueId) {
        if !self.names[2].insert(name.to_owned()) {
            self.mistake(name, "two outputs have this name");
        }
        if value.0 >= self.graph.values.len() {
            return self.mistake(name, &format!("shows value {}, which is of another graph", value.0));
        }
        self.graph.outputs.push(Port { name: name.to_owned(), value });
    }

    /// The type of a value; an empty type for the result of a mistake.
    ///
    /// # Panics
    /// If the value belongs to another builder.
    pub fn value(&self, id: ValueId) -> &ValueType {
        self.graph.value(id)
    }

    /// The graph as built so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The graph.
    ///
    /// # Errors
    /// [`Error::Graph`] with every mistake that was made, or if there is no output.
    pub fn finish(mut self) -> Result<Graph, Error> {
        if self.graph.outputs.is_empty() {
            self.mistake("", "the graph has no output");
        }
        let Some(((node, first), rest)) = self.mistakes.split_first() else { return Ok(self.graph) };
        let rest = rest.iter().map(|(node, what)| format!("; {}", Error::graph(node, what))).collect::<String>();
        Err(Error::graph(node, format!("{first}{rest}")))
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[Option<ValueId>], written: Vec<ValueType>) -> Vec<ValueId> {
        let node = NodeId(self.graph.nodes.len());
        let outputs: Vec<ValueId> =
            written.into_iter().enumerate().map(|(i, of)| self.add_value(of, Origin::Node(node, i))).collect();
        let node = Node { name: name.to_owned(), op, inputs: inputs.to_vec(), outputs: outputs.clone() };
        self.graph.nodes.push(node);
        outputs
    }

    fn add_value(&mut self, of: ValueType, origin: Origin) -> ValueId {
        self.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.graph.values.len() - 1)
    }

    /// Whether a value belongs to this graph and is no result of a mistake.
    pub(super) fn is_known(&self, id: ValueId) -> bool {
        id.0 < self.graph.values.len() && !self.broken.contains(&id)
    }

    /// Records a mistake; returns a value that stands for the result of the node.
    pub(super) fn refused(&mut self, node: &str, what: &str) -> ValueId {
        self.mistake(node, what);
        self.broken(1)[0]
    }

    /// Values that stand for results that could not be made.
    fn broken(&mut self, count: usize) -> Vec<ValueId> {
        let nothing = || (ValueType::new(Dtype::F32, &[0]), Origin::Constant(Constant::Bytes([].into())));
        let ids: Vec<ValueId> = (0..count).map(|_| nothing()).map(|(of, origin)| self.add_value(of, origin)).collect();
        self.broken.extend(&ids);
        ids
    }

    fn mistake(&mut self, node: &str, what: &str) {
        self.mistakes.push((node.to_owned(), what.to_owned()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, Unary};

    fn told(g: GraphBuilder) -> Vec<String> {
        g.finish().unwrap_err().to_string().split("; ").map(str::to_owned).collect()
    }

    #[test]
    fn every_mistake_is_told_once_and_none_of_what_is_built_on_it() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 3]);
        let y = g.input("y", Dtype::F16, &[3]);
        let broken = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        let after = g.node("after", Op::Transpose(vec![7]), &[broken]);
        let twice = g.map("twice", Expr::arg(0).unary(Unary::Not), &[after]);
        g.node("split", Op::Concat(2), &[x]);
        g.output("z", twice);
        let lines = told(g);
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[0].contains("`sum`") && lines[0].contains("f32 and f16"), "{lines:#?}");
        assert!(lines[1].contains("`split`") && lines[1].contains("axis 2"), "{lines:#?}");
    }

    #[test]
    fn names_bytes_strangers_and_outputs_are_checked() {
        let mut other = GraphBuilder::new();
        let strange = (0..9).map(|_| other.weight("w", Dtype::F32, &[1])).last().expect("nine");
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::I32, &[2]);
        g.input("x", Dtype::I32, &[2]);
        g.constant(Dtype::I32, &[2], [0_u8; 7]);
        g.map("a", Expr::arg(0), &[x]);
        g.map("a", Expr::arg(0), &[x]);
        g.map("b", Expr::arg(0), &[strange]);
        g.output("y", strange);
        let lines = told(g);
        let expected = ["two inputs", "expected 8 bytes", "two nodes", "another graph", "another graph", "no output"];
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        assert!(lines.iter().zip(expected).all(|(line, part)| line.contains(part)), "{lines:#?}");
    }

    #[test]
    fn expressions_are_typed() {
        let both = [Dtype::F32, Dtype::I32];
        let compared = Expr::arg(0).binary(Binary::Less, Expr::arg(0));
        assert_eq!(compared.clone().dtype(&both), Ok(Dtype::Bool));
        assert_eq!(compared.clone().select(Expr::arg(1), Expr::Axis(0).cast(Dtype::I32)).dtype(&both), Ok(Dtype::I32));
        for (wrong, part) in [
            (Expr::arg(2), "operand 2 of 2"),
            (Expr::arg(0) + Expr::arg(1), "f32 and i32"),
            (Expr::arg(1).unary(Unary::Exp), "takes floats"),
            (Expr::arg(0).unary(Unary::Not), "bools and integers"),
            (Expr::arg(1).binary(Binary::ShiftLeft, Expr::arg(1)), "unsigned integers"),
            (Expr::arg(0).binary(Binary::And, Expr::arg(0)), "bools and integers"),
            (compared.clone() + compared.clone(), "takes numbers"),
            (compared.clone().select(Expr::arg(0), Expr::arg(1)), "found bool, f32 and i32"),
            (Expr::arg(0).select(Expr::arg(0), Expr::arg(0)), "expected a bool"),
            (Expr::int(Dtype::U8, 256), "expected 0 to 255"),
            (Expr::int(Dtype::I8, -129), "expected -128 to 127"),
            (Expr::int(Dtype::F32, 1), "expected a float"),
            (Expr::float(Dtype::I32, 1.0), "expected a whole number"),
        ] {
            let told = wrong.dtype(&both).unwrap_err();
            assert!(told.contains(part), "{wrong:?}: {told}");
        }
        assert_eq!((Expr::Axis(3) + Expr::Axis(1)).axes(), 4);
        assert!(Expr::int(Dtype::U64, u64::MAX.into()).dtype(&[]).is_ok());
    }
}
