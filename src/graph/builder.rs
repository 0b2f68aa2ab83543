//! Building a graph node by node.

use std::collections::HashSet;
use std::sync::Arc;

use super::expr::Expr;
use super::op::Op;
use super::value::{Constant, Graph, Node, NodeId, Origin, Port, Value, ValueId, ValueType};
use crate::error::Error;
use crate::tensor::Dtype;

/// Builds a [`Graph`]. Each method adds something and returns its value.
///
/// Mistakes are reported by [`finish`](Self::finish), all at once; what is built on a mistake is none of its own.
///
/// ```
/// use trefoil::{Dtype, graph::{Contract, GraphBuilder, Op}};
/// let mut g = GraphBuilder::new();
/// let x = g.input("tokens", Dtype::F32, &[4, 64]);
/// let w = g.weight("fc.weight", Dtype::F32, &[10, 64]);
/// let product = Contract { left: vec![0, 2], right: vec![1, 2], result: vec![0, 1] };
/// let y = g.node("fc", Op::Contract(product), &[x, w]);
/// assert_eq!(g.value(y).dims, [4, 10]);
/// g.output("scores", y);
/// assert_eq!(g.finish()?.nodes.len(), 1);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct GraphBuilder {
    graph: Graph,
    names: HashSet<String>,
    /// Values that a mistake gave.
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
        if self.graph.inputs.iter().any(|port| port.name == name) {
            self.mistake(name, "two inputs have this name");
        }
        let value = self.add(ValueType::new(dtype, dims), Origin::Input(self.graph.inputs.len()));
        self.graph.inputs.push(Port { name: name.to_owned(), value });
        value
    }

    /// Adds a weight: what it is named in the model's files.
    pub fn weight(&mut self, name: &str, dtype: Dtype, dims: &[usize]) -> ValueId {
        self.add(ValueType::new(dtype, dims), Origin::Constant(Constant::Weight(name.to_owned())))
    }

    /// Adds a constant: its elements as little-endian bytes, the last dimension innermost.
    pub fn constant(&mut self, dtype: Dtype, dims: &[usize], bytes: impl Into<Arc<[u8]>>) -> ValueId {
        let (of, bytes) = (ValueType::new(dtype, dims), bytes.into());
        if of.bytes() != bytes.len() {
            self.mistake("constant", &format!("expected {} bytes of {of}, found {}", of.bytes(), bytes.len()));
        }
        self.add(of, Origin::Constant(Constant::Bytes(bytes)))
    }

    /// Adds an operation of one output.
    pub fn node(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        self.node_with(name, op, &inputs, 1)[0]
    }

    /// Adds an operation of so many outputs, some of whose operands may be left out.
    pub fn node_with(&mut self, name: &str, op: Op, inputs: &[Option<ValueId>], outputs: usize) -> Vec<ValueId> {
        let known = inputs.iter().flatten().all(|id| id.0 < self.graph.values.len() && !self.broken.contains(id));
        let written = match known {
            true => {
                let types: Vec<_> = inputs.iter().map(|id| id.map(|id| self.graph.value(id))).collect();
                op.infer(&types, outputs).map_err(|what| format!("{}: {what}", op.kind()))
            }
            false => Err(String::new()), // told where the operand was made, or by its number
        };
        if let Some(stranger) = inputs.iter().flatten().find(|id| id.0 >= self.graph.values.len()) {
            self.mistake(name, &format!("reads value {}, which is of another graph", stranger.0));
        }
        if !self.names.insert(name.to_owned()) {
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
        if self.graph.outputs.iter().any(|port| port.name == name) {
            self.mistake(name, "two outputs have this name");
        }
        if value.0 >= self.graph.values.len() {
            return self.mistake(name, &format!("shows value {}, which is of another graph", value.0));
        }
        self.graph.outputs.push(Port { name: name.to_owned(), value });
    }

    /// The type of a value; an empty one of a mistake.
    ///
    /// # Panics
    /// If the value is of another builder.
    pub fn value(&self, id: ValueId) -> &ValueType {
        self.graph.value(id)
    }

    /// What is built so far.
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
        let rest = rest.iter().map(|(node, what)| format!("\nnode `{node}`: {what}")).collect::<String>();
        Err(Error::graph(node, format!("{first}{rest}")))
    }

    fn push(&mut self, name: &str, op: Op, inputs: &[Option<ValueId>], written: Vec<ValueType>) -> Vec<ValueId> {
        let node = NodeId(self.graph.nodes.len());
        let outputs: Vec<ValueId> =
            written.into_iter().enumerate().map(|(i, of)| self.add(of, Origin::Node(node, i))).collect();
        let node = Node { name: name.to_owned(), op, inputs: inputs.to_vec(), outputs: outputs.clone() };
        self.graph.nodes.push(node);
        outputs
    }

    fn add(&mut self, of: ValueType, origin: Origin) -> ValueId {
        self.graph.values.push(Value { of, origin, quantization: None });
        ValueId(self.graph.values.len() - 1)
    }

    /// Values that stand for what could not be made.
    fn broken(&mut self, count: usize) -> Vec<ValueId> {
        let nothing = || (ValueType::new(Dtype::F32, &[0]), Origin::Constant(Constant::Bytes([].into())));
        let ids: Vec<ValueId> = (0..count).map(|_| nothing()).map(|(of, origin)| self.add(of, origin)).collect();
        self.broken.extend(&ids);
        ids
    }

    fn mistake(&mut self, node: &str, what: &str) {
        self.mistakes.push((node.to_owned(), what.to_owned()));
    }
}
