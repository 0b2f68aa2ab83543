//! The plan of a graph of values: the steps of a network of images, and a step for each loop of the schedule. Loops
//! read and write rows in place.

mod blocks;
#[cfg(test)]
mod encoder_tests;
mod fused;
mod images;
#[cfg(test)]
mod images_tests;
mod layered;
mod layers;
#[cfg(test)]
mod op_set;
mod operands;
mod order;
mod patterns;
mod places;
mod rounded;
mod states;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use self::layered::Layered;
use self::order::LoopOrder;
use super::context::{Context, PlanTarget};
use super::lower::Lowering;
use super::work::Work;
use super::{
    Choices, Constant, Family, HandOp, Kernel, Limits, LoopOp, Place, Plan, Step, StepOp, Tensor, TensorId, concat,
    cover, kernels,
};
use crate::error::Error;
use crate::graph::{Graph, NodeId, Number, Op, Origin, Slice, ValueId, ValueType, expand_but, narrowed, unrolled};
use crate::loops::{self, Loop, LoopBuilder, Schedule, ptx};
use crate::model;
use crate::tensor::{Dtype, RowPort, RowSpec, Shape};

#[cfg(feature = "cuda")]
pub(crate) use blocks::blocks_of;
pub(crate) use rounded::{Rounded, exact, rounded};

/// Plans a graph for `batch` rows.
///
/// # Errors
/// [`Error::Unsupported`] with every operation that no kernel of the device can compute.
pub(crate) fn plan(given: &Graph, request: &ValuesRequest<'_>) -> Result<Plan, Error> {
    let &ValuesRequest { limits, batch, rows, states, precision, in_f32, choices } = request;
    let on_gpu = limits.family != Family::Cpu;
    let narrowed = narrowed(given);
    let given = narrowed.as_ref().unwrap_or(given);
    let images = if on_gpu { images_of(given, batch) } else { batch };
    let target = PlanTarget { limits, batch: images, choices };
    let graph = match on_gpu {
        true => expanded(given, request, target),
        false => with_rows(&unrolled(given, &HashSet::new()), batch, rows[0]),
    };
    let in_f32 = &with_parts([given, &graph], in_f32);
    let of = match precision {
        Dtype::F16 | Dtype::Bf16 if on_gpu => Layered::of(&graph, precision, target, in_f32),
        _ => Layered::of_loops(&graph, precision, in_f32),
    };
    let machine = if on_gpu { loops::Machine::GPU } else { loops::Machine::CPU };
    let schedule = loops::schedule_apart(&of.graph, machine, &|id| of.is_apart(id));
    let network = model::optimize(&of.network);
    let shapes = model::infer(&network)?;
    let parts = concat::parts(&network, &shapes, limits.family)?;
    let context = Context::new(&network, &shapes, target, parts);
    let steps = cover::cover(&context)?;
    let order = LoopOrder::new(&of, &network, &steps);
    let due = order.due(&schedule);
    let states = states.to_vec();
    let plan = Plan { states, images, ..Plan::new(limits, batch, rows.map(RowSpec::clone)) };
    let lowering = Lowering::new(&context, steps, plan);
    let mut growing = Growing::new(&of, &schedule, order, lowering, request);
    for node in (0..network.nodes.len()).map(model::NodeId) {
        growing.push_images(&network, node)?;
        let mut now = schedule.steps.iter().zip(&due).filter(|(_, due)| **due == node);
        now.try_for_each(|(step, _)| growing.push(step))?;
    }
    match is_dense(batch, rows[1]) {
        true => growing.copy_out(&schedule),
        false => growing.pack(&schedule),
    }
    growing.keep_states(&schedule);
    let mut plan = growing.lowering.growing.plan;
    if on_gpu {
        all_written(&plan)?;
        places::leave(&mut plan, request.choices);
    }
    plan.place(true);
    Ok(plan)
}

/// The number of images in one run of `batch` rows that kernels for layers compute: the number of rows, or a multiple of
/// it at which they compute more, because rows have several images each.
fn images_of(graph: &Graph, batch: usize) -> usize {
    let mut convolved = BTreeMap::<usize, usize>::new();
    let mut products = Vec::new(); // rows of matrices, and operations
    for node in &graph.nodes {
        let y = graph.value(node.outputs[0]);
        let (Some(Some(x)), Some(Some(weights))) = (node.inputs.first(), node.inputs.get(1)) else { continue };
        let filter = graph.value(*weights);
        match &node.op {
            Op::Conv(_) => {
                *convolved.entry(y.dims[0]).or_default() += y.elems() * filter.elems() / filter.dims[0].max(1)
            }
            Op::Contract(_) if graph.constant(*weights).is_some() => {
                let columns = y.dims.last().copied().unwrap_or(1).max(1);
                products.push((y.elems() / columns, graph.value(*x).elems() * columns));
            }
            _ => {}
        }
    }
    let computed = |images: usize| {
        let of_products = products.iter().filter(|(rows, _)| rows.is_multiple_of(images)).map(|(_, work)| work);
        convolved.get(&images).copied().unwrap_or(0) + of_products.sum::<usize>()
    };
    let several = convolved.keys().copied().filter(|&images| images > batch && images.is_multiple_of(batch));
    several.fold(batch, |best, images| if computed(images) > computed(best) { images } else { best })
}

/// The names of nodes that stay in f32, with those of the nodes that stand for one of them in the new graph.
fn with_parts([old, new]: [&Graph; 2], in_f32: &BTreeSet<String>) -> BTreeSet<String> {
    let old: HashSet<&str> = old.nodes.iter().map(|node| &*node.name).collect();
    let is_part = |name: &str| name.match_indices('.').any(|(dot, _)| in_f32.contains(&name[..dot]));
    let parts = new.nodes.iter().map(|node| &node.name).filter(|name| is_part(name) && !old.contains(&***name));
    in_f32.iter().chain(parts).cloned().collect()
}

/// The graph for a GPU, which has no functions over values: inputs as they lie in rows, and loops for every operation
/// that no kernel can compute.
fn expanded(graph: &Graph, request: &ValuesRequest<'_>, target: PlanTarget<'_>) -> Graph {
    let &ValuesRequest { batch, rows, precision, in_f32, .. } = request;
    let in_kernels = |graph: &Graph| patterns::kept(graph, precision, target, in_f32);
    let without = |kept: &HashSet<String>| with_rows(&expand_but(graph, kept), batch, rows[0]);
    let kept = in_kernels(&with_rows(graph, batch, rows[0]));
    let graph = without(&kept);
    // When loops compute an operation, views of its operands may have another layout, so other kernels may apply.
    if kept.is_empty() || in_kernels(&graph) == kept { graph } else { without(&HashSet::new()) }
}

/// Returns an error for a plan for a GPU with steps that no kernel computes.
fn all_written(plan: &Plan) -> Result<(), Error> {
    // Every other operation has got a kernel already.
    let refused = |step: &Step| {
        if let StepOp::Loop(of) = &step.op {
            ptx::check(&of.of).err().map(|error| format!("node `{}` ({}): {error}", step.name, of.kinds))
        } else if let StepOp::Hand(of) = &step.op {
            Some(format!("node `{}`: {} is no loop", step.name, of.op.kind()))
        } else {
            None
        }
    };
    let refused: Vec<String> = plan.steps.iter().filter_map(refused).collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Error::Unsupported {
            what: format!("{} operations on a GPU: {}", refused.len(), refused.join("; ")),
            instead: "run the model with `--device cpu`".into(),
        }),
    }
}

/// The arguments of `plan`.
pub(crate) struct ValuesRequest<'a> {
    /// The hardware.
    pub limits: &'a Limits,
    /// Rows of one run.
    pub batch: usize,
    /// The rows that a run reads and writes.
    pub rows: [&'a RowSpec; 2],
    /// The port of a row for each state. States are the last inputs and outputs of the graph.
    pub states: &'a [RowPort],
    /// The type in which layers read their operands.
    pub precision: Dtype,
    /// The names of nodes that stay in f32 whatever the precision.
    pub in_f32: &'a BTreeSet<String>,
    /// Kernels that overrule the planner's.
    pub choices: &'a Choices,
}

/// Whether each port of a batch of rows is a dense value in memory.
fn is_dense(batch: usize, rows: &RowSpec) -> bool {
    batch == 1 || matches!(rows.ports(), [only] if only.bytes() == rows.row_pitch)
}

/// The outputs that are ports of rows; the outputs of states follow them.
fn row_outputs<'a>(graph: &'a Graph, rows: &RowSpec) -> std::slice::Iter<'a, crate::graph::Port> {
    graph.outputs[..rows.ports().len()].iter()
}

/// The graph with inputs in the layout of rows.
fn with_rows(graph: &Graph, batch: usize, input: &RowSpec) -> Graph {
    let mut graph = graph.clone();
    for (index, port) in input.ports().iter().enumerate() {
        let pitch = input.row_pitch / port.dtype.bytes();
        if !is_dense(batch, input) {
            let dense = graph.value(graph.inputs[index].value).dims.clone();
            let cut = Slice { start: vec![0; 2], step: vec![1; 2], dims: vec![batch, port.elems()] };
            let rows = ValueType::new(port.dtype, &[batch, pitch]);
            graph = graph.with_input_made(index, rows, &[Op::Slice(cut), Op::Reshape(dense)]);
        }
    }
    graph
}

/// A plan to which steps are added one at a time.
struct Growing<'a> {
    graph: &'a Graph,
    of: &'a Layered,
    order: LoopOrder<'a>,
    request: &'a ValuesRequest<'a>,
    of_value: HashMap<ValueId, TensorId>,
    /// For each value that a step writes directly to its output, the index of the output.
    outputs: HashMap<ValueId, usize>,
    lowering: Lowering<'a>,
}

impl<'a> Growing<'a> {
    fn new(
        of: &'a Layered,
        schedule: &Schedule,
        order: LoopOrder<'a>,
        lowering: Lowering<'a>,
        request: &'a ValuesRequest<'a>,
    ) -> Self {
        let &ValuesRequest { batch, rows, .. } = request;
        let graph = &of.graph;
        let mut outputs = HashMap::new();
        for (index, port) in row_outputs(graph, rows[1]).enumerate().filter(|_| is_dense(batch, rows[1])) {
            let of = schedule.view_of(port.value);
            if matches!(graph.values[of.0].origin, Origin::Node(..)) {
                outputs.entry(of).or_insert(index);
            }
        }
        Self { graph, of, order, request, of_value: HashMap::new(), outputs, lowering }
    }

    fn plan(&mut self) -> &mut Plan {
        &mut self.lowering.growing.plan
    }

    /// Adds the steps whose place is a node of the network. If the node is given, binds it to its tensor.
    fn push_images(&mut self, network: &model::images::Network, node: model::NodeId) -> Result<(), Error> {
        self.lowering.at(node)?;
        let given = self.of.given.get(&network.nodes[node.0].name);
        if let Some(value) = given.and_then(|given| given.value) {
            let tensor = self.tensor(value);
            self.lowering.growing.bind(node, tensor);
        }
        Ok(())
    }

    /// Adds a step, unless the network computes it.
    fn push(&mut self, step: &loops::Step) -> Result<(), Error> {
        if let loops::Kernel::Apart(node) = &step.kernel {
            if self.order.is_image(step) {
                return Ok(());
            }
            if let Some(op) = self.of.fused.get(node) {
                return self.push_fused(step, *node, op);
            }
        }
        let nodes: Vec<String> = step.nodes.iter().map(|id| self.graph.nodes[id.0].name.clone()).collect();
        let name = nodes.last().cloned().unwrap_or_default();
        let (op, kernel, flops) = match &step.kernel {
            loops::Kernel::Loop(of) => {
                let flops = of.operations();
                let of = Arc::new(of.clone());
                (StepOp::Loop(LoopOp { kinds: self.kinds(step), nodes, of, flops }), Kernel::Loop, flops)
            }
            loops::Kernel::Apart(node) => (StepOp::Hand(self.by_hand(*node)), Kernel::Hand, 0),
        };
        let inputs: Vec<TensorId> = step.reads.iter().map(|&id| self.tensor(id)).collect();
        let outputs: Vec<TensorId> = step.writes.iter().map(|&id| self.tensor(id)).collect();
        self.add(name, op, kernel, inputs, outputs, flops);
        Ok(())
    }

    /// Adds a step that computes several nodes; the weights of its products are no tensors.
    fn push_fused(&mut self, step: &loops::Step, node: NodeId, op: &StepOp) -> Result<(), Error> {
        let name = &self.graph.nodes[node.0].name;
        let [inputs, outputs] =
            [&step.reads, &step.writes].map(|ids| ids.iter().map(|&id| self.tensor(id)).collect::<Vec<_>>());
        let &ValuesRequest { limits, choices, precision, .. } = self.request;
        let batch = self.plan().images;
        let tensors = &self.plan().tensors;
        let operands = |ids: &[TensorId]| ids.iter().map(|id| tensors[id.0].operand()).collect();
        let work = Work { name, op, batch, inputs: operands(&inputs), outputs: operands(&outputs) };
        let (kernel, flops) = (kernels::choose(&work, limits, choices)?, work.flops());
        let weight_bytes = work.weight_bytes(precision);
        self.add(name.clone(), op.clone(), kernel, inputs, outputs, flops);
        let step = self.plan().steps.last_mut().expect("just added");
        (step.weight_bytes, step.bytes) = (weight_bytes, step.bytes + weight_bytes);
        Ok(())
    }

    /// Brings the outputs to their places that no loop has written there. A value that the network computes is written
    /// to its output; inputs, constants, and values that are also another output are copied.
    fn copy_out(&mut self, schedule: &Schedule) {
        for (index, port) in row_outputs(self.graph, self.request.rows[1]).enumerate() {
            let id = schedule.view_of(port.value);
            let (from, to) = (self.tensor(id), Place::Output(self.request.rows[1].ports()[index].offset));
            let is_first = self.outputs.get(&id) == Some(&index);
            let tensor = &mut self.plan().tensors[from.0];
            match tensor.place {
                Place::Arena(_) if is_first && tensor.part_of.is_none() => tensor.place = to,
                place if is_first && place == to => {}
                _ => _ = self.copy(&port.name, id, from, to),
            }
        }
    }

    /// Adds a step that copies a value from its tensor to a place; returns the tensor there.
    fn copy(&mut self, name: &str, id: ValueId, from: TensorId, to: Place) -> TensorId {
        let of = self.graph.value(id).clone();
        let mut b = LoopBuilder::new(std::slice::from_ref(&of), &of.dims);
        let point = b.point();
        let elem = b.load(0, &point);
        let to = self.add_tensor(of, to);
        let op = LoopOp { kinds: "copy".into(), nodes: Vec::new(), of: Arc::new(b.finish(elem)), flops: 0 };
        self.add(name.to_owned(), StepOp::Loop(op), Kernel::Loop, vec![from], vec![to], 0);
        to
    }

    /// Adds a step that writes all outputs into rows, word by word.
    fn pack(&mut self, schedule: &Schedule) {
        let rows = self.request.rows[1];
        let outputs = row_outputs(self.graph, rows).map(|port| schedule.view_of(port.value));
        let inputs: Vec<TensorId> = outputs.map(|id| self.tensor(id)).collect();
        let of = packing(self.plan().batch, rows);
        let words = ValueType::new(of.dtype(), &of.axes);
        let output = self.add_tensor(words, Place::Output(0));
        let op = LoopOp { kinds: "pack".into(), nodes: Vec::new(), of: Arc::new(of), flops: 0 };
        self.add("output".into(), StepOp::Loop(op), Kernel::Loop, inputs, vec![output], 0);
    }

    fn add(
        &mut self,
        name: String,
        op: StepOp,
        kernel: Kernel,
        inputs: Vec<TensorId>,
        outputs: Vec<TensorId>,
        flops: u64,
    ) {
        let touched: BTreeSet<&TensorId> = inputs.iter().chain(&outputs).collect();
        let bytes = touched.iter().map(|id| self.plan().tensors[id.0].bytes as u64).sum();
        let (lane, after) = (0, Vec::new());
        self.plan().steps.push(Step { name, op, inputs, outputs, kernel, lane, after, flops, bytes, weight_bytes: 0 });
    }

    /// The kinds of the nodes of a step, without repetitions of neighbours.
    fn kinds(&self, step: &loops::Step) -> String {
        let of = |id: &NodeId| &self.graph.nodes[id.0];
        let mut kinds: Vec<&str> = step.nodes.iter().map(|id| of(id).op.kind()).collect();
        kinds.dedup();
        kinds.join("+")
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
        if let Some(&image) = self.order.images.get(&id) {
            return self.lowering.growing.of(image);
        }
        let of = self.graph.value(id).clone();
        let place = match (&self.graph.values[id.0].origin, self.outputs.get(&id)) {
            (_, Some(&output)) => Place::Output(self.request.rows[1].ports()[output].offset),
            (Origin::Input(input), _) => self.place_of_input(*input),
            (Origin::Constant(source), _) => {
                let constants = &mut self.plan().constants;
                constants.push(Constant { of: of.clone(), source: source.clone() });
                Place::Constant(constants.len() - 1)
            }
            (Origin::Node(..), None) => Place::Arena(0),
        };
        let tensor = self.add_tensor(of, place);
        if let Some(&channels) = self.of.channels.get(&id) {
            let of = &mut self.plan().tensors[tensor.0];
            let image = layers::image(&of.value.as_ref().expect("a tensor of a value").dims);
            (of.stored_channels, of.pitch) = (image.channels, image.channels);
            of.shape = Shape { channels, ..image };
        }
        if let Some(&image) = self.of.rows.get(&id) {
            let of = &mut self.plan().tensors[tensor.0];
            (of.shape, of.stored_channels, of.pitch) = (image, image.channels, image.channels);
        }
        self.of_value.insert(id, tensor);
        tensor
    }

    /// The place of an input: in the rows, or as a state. States follow the inputs of rows.
    fn place_of_input(&self, input: usize) -> Place {
        let ports = self.request.rows[0].ports();
        ports.get(input).map_or_else(|| Place::State(input - ports.len()), |port| Place::Input(port.offset))
    }

    fn add_tensor(&mut self, of: ValueType, place: Place) -> TensorId {
        self.plan().tensors.push(Tensor {
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
        TensorId(self.plan().tensors.len() - 1)
    }
}

/// The loop that writes dense values into rows, in words of the largest type of which all ports are multiples.
fn packing(batch: usize, rows: &RowSpec) -> Loop {
    let fits = |dtype: &Dtype| rows.ports().iter().all(|port| port.bytes().is_multiple_of(dtype.bytes()));
    let word = [Dtype::U64, Dtype::U32, Dtype::U16].into_iter().find(fits).unwrap_or(Dtype::U8);
    let words = |bytes: usize| bytes / word.bytes();
    let operands: Vec<ValueType> =
        rows.ports().iter().map(|port| ValueType::new(word, &[batch, words(port.bytes())])).collect();
    let mut b = LoopBuilder::new(&operands, &[batch, words(rows.row_pitch)]);
    let [row, at] = [0, 1].map(|axis| b.axis(axis));
    let mut result = b.number(word, Number::Int(0));
    for (operand, port) in rows.ports().iter().enumerate() {
        let index = b.shifted(at, -(words(port.offset) as i64));
        let is_inside = b.within(index, words(port.bytes()));
        result = b.load_if(operand, &[row, index], is_inside, result);
    }
    b.finish(result)
}
