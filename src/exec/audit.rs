//! The search for nodes whose numbers f16 does not hold, on the CPU with a GPU's roundings.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::error::Error;
use crate::graph::{Graph, NodeId, Origin, Port, Tensor, ValueId};
use crate::loops;
use crate::model::{Model, Weights};
use crate::plan::Limits;
use crate::plan::values::{Rounded, exact, rounded};
use crate::tensor::{RowPort, RowSpec};

/// The result of [`Model::audit`].
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// The nodes that f16 does not hold, in the order in which they were found.
    pub nodes: Vec<NotHeld>,
    /// The largest error of an output when these nodes are computed in f32, divided by the output's largest number.
    pub error: f64,
}

/// A node that f16 does not hold.
#[derive(Clone, Debug, PartialEq)]
pub struct NotHeld {
    /// The node's name.
    pub node: String,
    /// The node's operation.
    pub kind: &'static str,
    /// The largest magnitude among the numbers that it writes, computed in f32.
    pub largest: f64,
    /// The largest error of these numbers when the node was found, divided by their largest magnitude; infinite if a
    /// number is beyond the range of f16.
    pub error: f64,
}

impl Audit {
    /// The nodes' names, for [`Model::with_f32`].
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.nodes.iter().map(|found| &*found.node)
    }
}

/// The largest number of f16.
const MOST: f64 = 65_504.0;

impl Model {
    /// Finds the nodes whose numbers f16 does not hold. Each row is the bytes of an engine's input row. The model is
    /// computed twice on the CPU: in f32, and with the roundings to f16 that the plan for one row on an H200 has. As
    /// long as the error of an output, divided by its largest number, exceeds `limit`, or a number is beyond the range
    /// of f16, nodes are moved to f32: first the nodes with numbers beyond f16, then the nodes at which the error first
    /// exceeds the limit. Nodes that the model already computes in f32 stay in f32.
    ///
    /// The call needs memory for three times all values of a row.
    ///
    /// ```
    /// use trefoil::{Dtype, graph::{Contract, GraphBuilder, Op}, model::{Model, Weights}};
    /// let weights = Weights::from_tensors([("w", vec![8, 8], vec![1e4; 64])])?;
    /// let model = Model::of_graphs(weights, |rows| {
    ///     let mut g = GraphBuilder::new();
    ///     let (x, w) = (g.input("x", Dtype::F32, &[rows, 8]), g.weight("w", Dtype::F32, &[8, 8]));
    ///     let y = g.node("large", Op::Contract(Contract::matmul(2, 2)), &[x, w]);
    ///     g.output("y", y);
    ///     g.finish()
    /// })?;
    /// let row = [2.0_f32; 8].map(f32::to_le_bytes).concat(); // results are 160,000
    /// let audit = model.audit(&[row], 1e-2)?;
    /// assert_eq!(audit.names().collect::<Vec<_>>(), ["large"]);
    /// let model = model.with_f32(audit.names())?;
    /// # assert!(model.nodes_in_f32()?.contains("large") && audit.error == 0.0);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a row of another length; [`Error::Unsupported`] for a network of images, and for a model
    /// with state; [`Error::OutOfMemory`]; otherwise as for an engine of the model on the CPU.
    pub fn audit<R: AsRef<[u8]>>(&self, rows: &[R], limit: f64) -> Result<Audit, Error> {
        let (graph, spec) = (self.graph(1)?, self.values()?.input());
        self.refuse_states("an audit of")?;
        let in_f32 = self.nodes_in_f32()?.clone();
        let mut auditor = Auditor { graph, weights: self.weights(), limit, in_f32, nodes: Vec::new() };
        let mut error: f64 = 0.0;
        for row in rows {
            error = error.max(auditor.row(&auditor.inputs(spec, row.as_ref())?)?);
        }
        Ok(Audit { nodes: auditor.nodes, error })
    }
}

/// A network under audit.
struct Auditor<'a> {
    graph: Graph,
    weights: &'a Weights,
    limit: f64,
    in_f32: BTreeSet<String>,
    nodes: Vec<NotHeld>,
}

/// A value with rounded numbers, compared with the same value in f32: its largest finite magnitude in f32, and the
/// largest error divided by it.
#[derive(Clone, Copy)]
struct Compared {
    largest: f64,
    error: f64,
}

impl Auditor<'_> {
    /// A row's ports as inputs of the graph.
    fn inputs(&self, spec: &RowSpec, row: &[u8]) -> Result<Vec<Tensor>, Error> {
        spec.check(row)?;
        let ports = self.graph.inputs.iter().zip(spec.ports());
        let input =
            |(port, at): (&Port, &RowPort)| Tensor::from_bytes(self.graph.value(port.value).clone(), &row[at.range()]);
        Ok(ports.map(input).collect())
    }

    /// Moves nodes to f32 until one row of inputs holds; returns the largest error of its outputs then.
    fn row(&mut self, inputs: &[Tensor]) -> Result<f64, Error> {
        let expected = self.values(&exact(&self.graph), inputs)?;
        loop {
            let rounded = rounded(&self.graph, &Limits::h200(), &self.in_f32);
            let found = self.values(&rounded, inputs)?;
            let pairs = expected.iter().zip(&found).map(|(expected, found)| Compared::of(expected, found));
            let compared: HashMap<ValueId, Compared> = rounded.shown.iter().copied().zip(pairs).collect();
            let of_outputs = self.graph.outputs.iter().filter_map(|port| compared.get(&port.value));
            let error = of_outputs.map(|of| of.error).fold(0.0, f64::max);
            let holds = error <= self.limit && compared.values().all(|of| of.error.is_finite());
            let next = if holds { BTreeSet::new() } else { self.next(&rounded, &compared) };
            if next.is_empty() {
                return Ok(error);
            }
            drop(rounded);
            next.into_iter().for_each(|id| self.move_to_f32(id, &compared));
        }
    }

    fn values(&self, of: &Rounded<'_>, inputs: &[Tensor]) -> Result<Vec<Tensor>, Error> {
        loops::evaluate(&of.graph, &mut |name, of| self.weights.read_as(name, of), inputs)
    }

    fn move_to_f32(&mut self, id: NodeId, compared: &HashMap<ValueId, Compared>) {
        let node = &self.graph.nodes[id.0];
        let Compared { largest, error } = node
            .outputs
            .first()
            .and_then(|id| compared.get(id))
            .copied()
            .unwrap_or(Compared { largest: 0.0, error: 0.0 });
        self.in_f32.insert(node.name.clone());
        self.nodes.push(NotHeld { node: node.name.clone(), kind: node.op.kind(), largest, error });
    }

    /// The nodes to move to f32 next. If any numbers are beyond f16, these are all nodes that write such numbers; else
    /// the nodes at which the error first exceeds the limit.
    fn next(&self, rounded: &Rounded<'_>, compared: &HashMap<ValueId, Compared>) -> BTreeSet<NodeId> {
        let is_beyond = |id: ValueId| compared.get(&id).is_some_and(|of| of.largest > MOST);
        let beyond = rounded.nodes().iter().copied().filter(|&id| rounded.halves_of(id).any(is_beyond));
        let beyond: BTreeSet<NodeId> = beyond.collect();
        if !beyond.is_empty() {
            return beyond;
        }
        let is_off = |id: &ValueId| compared.get(id).is_some_and(|of| of.error > self.limit);
        let nodes = self.graph.nodes.iter().enumerate();
        let first = nodes.filter(|(_, of)| of.outputs.iter().any(is_off) && !of.inputs.iter().flatten().any(is_off));
        first.flat_map(|(index, _)| self.nearest(NodeId(index), rounded.nodes())).collect()
    }

    /// The node itself if it is in f16, else the nearest nodes in f16 that it reads from, directly or through others.
    fn nearest(&self, node: NodeId, in_f16: &HashSet<NodeId>) -> Vec<NodeId> {
        let (mut ahead, mut seen, mut found) = (vec![node], HashSet::new(), Vec::new());
        while let Some(id) = ahead.pop() {
            if !seen.insert(id) {
                continue;
            }
            if in_f16.contains(&id) {
                found.push(id);
                continue;
            }
            for input in self.graph.nodes[id.0].inputs.iter().flatten() {
                if let Origin::Node(writer, _) = self.graph.values[input.0].origin {
                    ahead.push(writer);
                }
            }
        }
        found
    }
}

impl Compared {
    /// Compares two values number by number. A number that is infinite or NaN in only one of them makes the error
    /// infinite.
    fn of(expected: &Tensor, found: &Tensor) -> Self {
        let (mut largest, mut most): (f64, f64) = (0.0, 0.0);
        for (&a, &b) in expected.elems::<f32>().iter().zip(found.elems::<f32>()) {
            if a.is_finite() {
                largest = largest.max(f64::from(a.abs()));
            }
            if a != b && !(a.is_nan() && b.is_nan()) {
                let apart = f64::from(a) - f64::from(b);
                most = most.max(if apart.is_finite() { apart.abs() } else { f64::INFINITY });
            }
        }
        Self { largest, error: if most == 0.0 { 0.0 } else { most / largest } }
    }
}
