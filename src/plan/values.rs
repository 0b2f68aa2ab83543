//! The plan of a graph of values: a step for each step of its schedule, which reads and writes rows in place.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Constant, HandOp, Kernel, Limits, LoopOp, Place, Plan, RowPitch, Step, StepOp, Tensor, TensorId};
use crate::error::Error;
use crate::graph::{Expr, Graph, Node, NodeId, Op, Origin, Port, Slice, Value, ValueId, ValueType};
use crate::loops::{self, Schedule};
use crate::tensor::{RowSpec, Shape};

/// Plans a graph for `batch` rows.
///
/// # Errors
/// [`Error::Unsupported`] with every operation that no kernel of the device computes.
pub(crate) fn plan(
    graph: &Graph,
    limits: &Limits,
    batch: usize,
    [input, output]: [&RowSpec; 2],
) -> Result<Plan, Error> {
    let graph = with_rows(graph, batch, input);
    let schedule = loops::schedule(&graph);
    let mut growing = Growing::new(&graph, &schedule, limits, batch, [input, output]);
    schedule.steps.iter().for_each(|step| growing.push(step));
    let mut plan = growing.plan;
    plan.place(true);
    Ok(plan)
}

/// The graph with inputs as they lie in rows, and with nodes that write its outputs alone.
fn with_rows(graph: &Graph, batch: usize, input: &RowSpec) -> Graph {
    let mut graph = graph.clone();
    for (index, port) in input.ports().iter().enumerate() {
        let pitch = input.row_pitch / port.dtype.bytes();
        if batch > 1 && port.elems() != pitch {
            let dense = graph.value(graph.inputs[index].value).dims.clone();
            let cut = Slice { start: vec![0; 2], step: vec![1; 2], dims: vec![batch, port.elems()] };
            let rows = ValueType::new(port.dtype, &[batch, pitch]);
            graph = graph.with_input_made(index, rows, &[Op::Slice(cut), Op::Reshape(dense)]);
        }
    }
    (0..graph.outputs.len()).for_each(|index| copy_out(&mut graph, index));
    graph
}

/// Lets an output be a value that nobody reads, which a node copies: whatever computes the value writes it there.
fn copy_out(graph: &mut Graph, index: usize) {
    let Port { name, value } = &graph.outputs[index];
    let (name, from) = (format!("{name} (output)"), *value);
    let (to, node) = (ValueId(graph.values.len()), NodeId(graph.nodes.len()));
    let of = graph.value(from).clone();
    graph.values.push(Value { of, origin: Origin::Node(node, 0), quantization: None });
    graph.nodes.push(Node { name, op: Op::Map(Expr::arg(0)), inputs: vec![Some(from)], outputs: vec![to] });
    graph.outputs[index].value = to;
}

/// A plan that grows by a step at a time.
struct Growing<'a> {
    graph: &'a Graph,
    rows: [&'a RowSpec; 2],
    of_value: HashMap<ValueId, TensorId>,
    /// The number of the output that each of these values is.
    outputs: HashMap<ValueId, usize>,
    plan: Plan,
}

impl<'a> Growing<'a> {
    fn new(graph: &'a Graph, schedule: &Schedule, limits: &Limits, batch: usize, rows: [&'a RowSpec; 2]) -> Self {
        let outputs = graph.outputs.iter().enumerate().map(|(index, port)| (schedule.view_of(port.value), index));
        let plan = Plan {
            limits: limits.clone(),
            batch,
            input: rows[0].clone(),
            output: rows[1].clone(),
            steps: Vec::new(),
            tensors: Vec::new(),
            constants: Vec::new(),
            arena_bytes: 0,
            arena_bytes_without_reuse: 0,
        };
        Self { graph, rows, of_value: HashMap::new(), outputs: outputs.collect(), plan }
    }

    fn push(&mut self, step: &loops::Step) {
        let nodes: Vec<String> = step.nodes.iter().map(|id| self.graph.nodes[id.0].name.clone()).collect();
        let name = step.nodes.iter().rev().map(|id| &self.graph.nodes[id.0].name).find(|name| !is_copy(name));
        let name = name.or(nodes.last()).cloned().unwrap_or_default();
        let (op, kernel, flops) = match &step.kernel {
            loops::Kernel::Loop(of) => {
                let flops = of.operations();
                let (kinds, pitch) = (self.kinds(step), self.pitch(step.writes[0]));
                (StepOp::Loop(LoopOp { kinds, nodes, of: Arc::new(of.clone()), pitch, flops }), Kernel::Loop, flops)
            }
            loops::Kernel::ByHand(node) => (StepOp::Hand(self.by_hand(*node)), Kernel::Hand, 0),
        };
        let inputs: Vec<TensorId> = step.reads.iter().map(|&id| self.tensor(id)).collect();
        let outputs: Vec<TensorId> = step.writes.iter().map(|&id| self.tensor(id)).collect();
        let bytes = inputs.iter().chain(&outputs).map(|id| self.plan.tensors[id.0].bytes as u64).sum();
        let (lane, after) = (0, Vec::new());
        self.plan.steps.push(Step { name, op, inputs, outputs, kernel, lane, after, flops, bytes, weight_bytes: 0 });
    }

    /// What the nodes of a step are, those of one kind once in a row.
    fn kinds(&self, step: &loops::Step) -> String {
        let of = |id: &NodeId| &self.graph.nodes[id.0];
        let mut kinds: Vec<&str> =
            step.nodes.iter().map(of).filter(|node| !is_copy(&node.name)).map(|node| node.op.kind()).collect();
        kinds.dedup();
        if kinds.is_empty() { "copy".into() } else { kinds.join("+") }
    }

    /// Where rows of a value begin that is an output.
    fn pitch(&self, id: ValueId) -> Option<RowPitch> {
        let port = &self.rows[1].ports()[*self.outputs.get(&id)?];
        let of = RowPitch { elems: port.elems(), pitch: self.rows[1].row_pitch / port.dtype.bytes() };
        (self.plan.batch > 1 && of.elems != of.pitch).then_some(of)
    }

    fn by_hand(&self, node: NodeId) -> HandOp {
        let node = &self.graph.nodes[node.0];
        let of = |id: &ValueId| self.graph.value(*id).clone();
        let inputs = node.inputs.iter().map(|id| id.as_ref().map(of)).collect();
        HandOp { op: node.op.clone(), inputs, outputs: node.outputs.iter().map(of).collect() }
    }

    /// The tensor that holds a value.
    fn tensor(&mut self, id: ValueId) -> TensorId {
        if let Some(&there) = self.of_value.get(&id) {
            return there;
        }
        let of = self.graph.value(id).clone();
        let place = match (&self.graph.values[id.0].origin, self.outputs.get(&id)) {
            (_, Some(&output)) => Place::Output(self.rows[1].ports()[output].offset),
            (Origin::Input(input), _) => Place::Input(self.rows[0].ports()[*input].offset),
            (Origin::Constant(source), _) => {
                self.plan.constants.push(Constant { of: of.clone(), source: source.clone() });
                Place::Constant(self.plan.constants.len() - 1)
            }
            (Origin::Node(..), None) => Place::Arena(0),
        };
        self.plan.tensors.push(Tensor {
            shape: Shape::vector(of.elems()),
            stored_channels: of.elems(),
            dtype: of.dtype,
            pitch: of.elems(),
            part_of: None,
            bytes: of.bytes(),
            place,
            lifetime: [0, 0],
            value: Some(of),
        });
        let tensor = TensorId(self.plan.tensors.len() - 1);
        self.of_value.insert(id, tensor);
        tensor
    }
}

/// Whether a node of this name only writes an output.
fn is_copy(name: &str) -> bool {
    name.ends_with(" (output)")
}
