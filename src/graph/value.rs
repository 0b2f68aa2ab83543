//! Graphs, their nodes and their values.

use std::fmt;
use std::sync::Arc;

use super::op::{Op, place};
use super::tensor::Tensor;
use crate::error::Error;
use crate::tensor::Dtype;

/// Index of a value in [`Graph::values`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub usize);

/// Index of a node in [`Graph::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub usize);

/// A directed acyclic graph whose dimensions are all numbers. Nodes are in topological order: a value that a node reads
/// is an input, a constant, or written by an earlier node. A [`GraphBuilder`](super::GraphBuilder) makes well-formed
/// graphs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The inputs, which a request brings.
    pub inputs: Vec<Port>,
    /// The outputs, which a request gets.
    pub outputs: Vec<Port>,
    /// All values.
    pub values: Vec<Value>,
    /// The operations, in an order in which they can be computed.
    pub nodes: Vec<Node>,
}

/// An input or an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The port's name, which no other input (or output) has.
    pub name: String,
    /// The value of the port.
    pub value: ValueId,
}

/// A tensor that a node reads or writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// The value's type and dimensions.
    pub of: ValueType,
    /// The origin of the value.
    pub origin: Origin,
    /// The real numbers that its integers stand for. A builder may set it; no pass reads it yet, because quantize and
    /// dequantize nodes carry the same numbers.
    pub quantization: Option<Quantization>,
}

/// The element type of a value and its dimensions, the outermost first. Values lie densely, the last dimension innermost.
///
/// ```
/// use trefoil::{Dtype, graph::ValueType};
/// let image = ValueType::new(Dtype::U8, &[2, 224, 224, 3]);
/// assert_eq!((image.elems(), image.bytes()), (301_056, 301_056));
/// assert_eq!(image.to_string(), "u8[2,224,224,3]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ValueType {
    /// The element type.
    pub dtype: Dtype,
    /// Elements along each axis; none for a scalar. A value may be empty: one of them may be 0.
    pub dims: Vec<usize>,
}

/// The origin of a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// It is the input of this number.
    Input(usize),
    /// It is the same for all requests.
    Constant(Constant),
    /// It is the output of this number of a node.
    Node(NodeId, usize),
}

/// A value that is known before the first request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// The weight of this name. If its stored type is another, it is converted when it is read.
    Weight(String),
    /// These bytes: little-endian elements of the value's type.
    Bytes(Arc<[u8]>),
}

/// The meaning of a value's integers: (integer - zero point) x scale.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    /// The scale: a scalar, or one for each index along `axis`.
    pub scale: ValueId,
    /// The integer that stands for 0; `None` means 0.
    pub zero_point: Option<ValueId>,
    /// The axis along which scales differ.
    pub axis: Option<usize>,
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// A name that no other node has.
    pub name: String,
    /// The operation.
    pub op: Op,
    /// The values that it reads; `None` for an optional operand that is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// The values that it writes.
    pub outputs: Vec<ValueId>,
}

impl ValueType {
    /// Elements of `dtype` in these dimensions.
    pub fn new(dtype: Dtype, dims: &[usize]) -> Self {
        Self { dtype, dims: dims.to_vec() }
    }

    /// Elements.
    pub fn elems(&self) -> usize {
        self.dims.iter().product()
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.elems() * self.dtype.bytes()
    }

    /// Axes.
    pub fn rank(&self) -> usize {
        self.dims.len()
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))
    }
}

impl Graph {
    /// Checks that each node reads only earlier values, and writes values of the types that its operation gives.
    ///
    /// # Errors
    /// [`Error::Graph`] with the first node that does not.
    pub(crate) fn check(&self) -> Result<(), Error> {
        for (index, node) in self.nodes.iter().enumerate() {
            let is_there = |id: &ValueId| match self.values.get(id.0).map(|value| &value.origin) {
                Some(Origin::Node(by, _)) => by.0 < index,
                Some(Origin::Input(_) | Origin::Constant(_)) => true,
                None => false,
            };
            if !node.inputs.iter().flatten().all(is_there) {
                return Err(Error::graph(&node.name, "reads a value that is not there before it"));
            }
            let types: Vec<_> = node.inputs.iter().map(|id| id.map(|id| self.value(id))).collect();
            let written = node.op.infer(&types, node.outputs.len()).map_err(|what| Error::graph(&node.name, what))?;
            let noted = node.outputs.iter().map(|id| self.values.get(id.0).map(|value| &value.of));
            if !noted.eq(written.iter().map(Some)) {
                return Err(Error::graph(&node.name, "writes values of other types than its operation gives"));
            }
        }
        Ok(())
    }

    /// The type of a value.
    ///
    /// # Panics
    /// If the value belongs to another graph.
    pub fn value(&self, id: ValueId) -> &ValueType {
        &self.values[id.0].of
    }

    /// The constant that a value is, if it is one.
    ///
    /// # Panics
    /// If the value belongs to another graph.
    pub fn constant(&self, id: ValueId) -> Option<&Constant> {
        match &self.values[id.0].origin {
            Origin::Constant(constant) => Some(constant),
            Origin::Input(_) | Origin::Node(..) => None,
        }
    }

    /// The position along an axis of this size that a value stands for as an index, as a gather reads it; `None` unless the
    /// value is a constant of one element whose bytes are in the graph.
    pub(crate) fn constant_place(&self, index: ValueId, size: usize) -> Option<usize> {
        let of = self.value(index);
        let Constant::Bytes(bytes) = self.constant(index).filter(|_| of.elems() == 1)? else { return None };
        let number = Tensor::from_bytes(of.clone(), bytes).to_i64s()?[0];
        Some(place(number, size))
    }

    /// The names and types of the weights that the graph reads, in the order in which they were added; a weight that
    /// was added twice is there twice.
    ///
    /// ```
    /// let graph = trefoil::model::architecture("resnet50", 1000, None)?;
    /// let (name, of) = graph.weights().next().unwrap();
    /// assert_eq!((name, of.to_string()), ("conv1.weight", "f32[64,3,7,7]".to_string()));
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn weights(&self) -> impl Iterator<Item = (&str, &ValueType)> {
        self.values.iter().filter_map(|value| match &value.origin {
            Origin::Constant(Constant::Weight(name)) => Some((name.as_str(), &value.of)),
            Origin::Constant(Constant::Bytes(_)) | Origin::Input(_) | Origin::Node(..) => None,
        })
    }

    /// The node called `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|node| node.name == name).map(NodeId)
    }

    /// Replaces input `index` by one of type `of`; `ops`, one after the other, then compute the old input from it.
    ///
    /// # Panics
    /// If there is no such input, or the operations do not make it of such a value.
    pub(crate) fn with_input_made(&self, index: usize, of: ValueType, ops: &[Op]) -> Self {
        let mut graph = self.clone();
        for value in &mut graph.values {
            if let Origin::Node(node, _) = &mut value.origin {
                node.0 += ops.len();
            }
        }
        let Port { name, value: made } = graph.inputs[index].clone();
        let mut last = ValueId(graph.values.len());
        graph.values.push(Value { of, origin: Origin::Input(index), quantization: None });
        graph.inputs[index].value = last;
        for (number, op) in ops.iter().enumerate() {
            let written = op.infer(&[Some(graph.value(last))], 1).expect("operations of such an input").remove(0);
            let (origin, is_last) = (Origin::Node(NodeId(number), 0), number + 1 == ops.len());
            let to = if is_last { made } else { ValueId(graph.values.len()) };
            if is_last {
                assert_eq!(*graph.value(made), written, "what input `{name}` was");
                graph.values[made.0].origin = origin;
            } else {
                graph.values.push(Value { of: written, origin, quantization: None });
            }
            let name = format!("{name} ({})", op.kind());
            graph.nodes.insert(number, Node { name, op: op.clone(), inputs: vec![Some(last)], outputs: vec![to] });
            last = to;
        }
        graph
    }

    /// The graph whose output of this number is replaced by the result of `op` on it.
    ///
    /// # Panics
    /// If there is no such output, or the operation does not fit it.
    pub(crate) fn with_output_made(mut self, index: usize, op: Op) -> Self {
        let Port { name, value } = self.outputs[index].clone();
        let of = op.infer(&[Some(self.value(value))], 1).expect("an operation of such an output").remove(0);
        let (node, made) = (NodeId(self.nodes.len()), ValueId(self.values.len()));
        self.values.push(Value { of, origin: Origin::Node(node, 0), quantization: None });
        let name = format!("{name} (output {})", op.kind());
        self.nodes.push(Node { name, op, inputs: vec![Some(value)], outputs: vec![made] });
        self.outputs[index].value = made;
        self
    }

    /// The graph with these inputs and outputs, given by name, moved behind the others, in this order.
    pub(crate) fn with_last(mut self, inputs: &[Arc<str>], outputs: &[Arc<str>]) -> Self {
        let place = |port: &Port, last: &[Arc<str>]| last.iter().position(|name| **name == *port.name);
        self.inputs.sort_by_key(|port| place(port, inputs).map_or(0, |place| place + 1));
        self.outputs.sort_by_key(|port| place(port, outputs).map_or(0, |place| place + 1));
        for (index, port) in self.inputs.iter().enumerate() {
            self.values[port.value.0].origin = Origin::Input(index);
        }
        self
    }

    /// For each value the nodes that read it; a node occurs once for each time that it reads the value.
    pub fn readers(&self) -> Vec<Vec<NodeId>> {
        let mut readers = vec![Vec::new(); self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.inputs.iter().flatten().for_each(|input| readers[input.0].push(NodeId(index)));
        }
        readers
    }
}
