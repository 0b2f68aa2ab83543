//! The tensors of a plan: which one each step writes, which one holds each node's value, and what is a part of what.

use std::collections::BTreeMap;

use super::concat::Part;
use super::{Kernel, PartOf, Place, Plan, Request, Step, StepOp, Tensor, TensorId};
use crate::model::NodeId;
use crate::tensor::{Dtype, Shape, TensorSpec};

/// A step without its name, and without tensors.
pub(super) struct Draft {
    pub(super) op: StepOp,
    pub(super) kernel: Kernel,
    pub(super) shape: Shape,
    /// Of the second result.
    pub(super) also: Option<Shape>,
    pub(super) dtype: Dtype,
    pub(super) flops: u64,
    pub(super) weight_bytes: u64,
}

/// A plan that grows by a step at a time, each with the tensors that it writes. Nodes come in their order.
pub(super) struct Growing<'a> {
    request: &'a Request<'a>,
    shapes: &'a [Shape],
    /// The part of a concatenation that each node writes, if it does.
    parts: Vec<Option<Part>>,
    /// The tensors of concatenations that something has been written to.
    of_concat: BTreeMap<NodeId, TensorId>,
    /// The tensor that holds each node's value.
    of_node: Vec<TensorId>,
    plan: Plan,
}

impl<'a> Growing<'a> {
    /// No steps yet; the only tensor is the input rows.
    pub(super) fn new(request: &'a Request<'a>, shapes: &'a [Shape], parts: Vec<Option<Part>>) -> Self {
        let input = TensorSpec::new(request.input.dtype(), shapes[0]);
        let rows = Tensor {
            shape: input.shape,
            stored_channels: input.shape.channels,
            pitch: input.shape.channels,
            part_of: None,
            dtype: input.dtype,
            bytes: request.batch * input.row_pitch,
            place: Place::Input,
            lifetime: [0, 0],
        };
        let plan = Plan {
            limits: request.limits.clone(),
            batch: request.batch,
            input: request.input,
            output: request.output,
            steps: Vec::new(),
            tensors: vec![rows],
            arena_bytes: 0,
            arena_bytes_without_reuse: 0,
        };
        Self { request, shapes, parts, of_concat: BTreeMap::new(), of_node: Vec::new(), plan }
    }

    /// The plan, when all steps are there.
    pub(super) fn finish(self) -> Plan {
        self.plan
    }

    pub(super) fn tensor(&self, id: TensorId) -> &Tensor {
        &self.plan.tensors[id.0]
    }

    /// The tensor that holds a node's value.
    pub(super) fn of(&self, node: NodeId) -> TensorId {
        self.of_node[node.0]
    }

    /// How many nodes have had their turn.
    pub(super) fn nodes(&self) -> usize {
        self.of_node.len()
    }

    /// Lets the next node have no step, and a tensor that is there.
    pub(super) fn pass(&mut self, value: TensorId) {
        self.of_node.push(value);
    }

    /// Whether a node writes its part of a concatenation by itself.
    pub(super) fn is_part(&self, node: NodeId, concat: NodeId) -> bool {
        self.parts[node.0].is_some_and(|part| part.of == concat)
    }

    /// The second result of the chain that writes this tensor.
    pub(super) fn also_of(&self, output: TensorId) -> TensorId {
        let step = self.plan.steps.iter().find(|step| step.output == output);
        step.and_then(|step| step.also).expect("a chain comes before what reads it")
    }

    /// The step of the next node.
    pub(super) fn push(&mut self, name: &str, draft: Draft, mut inputs: Vec<TensorId>) {
        if inputs.is_empty() {
            inputs.push(TensorId(0)); // the graph's input node reads the slot's input rows
        }
        let part = self.part_of(NodeId(self.of_node.len())); // none for the output rows, which are no node
        let output = self.push_into(name, draft, inputs, part);
        self.of_node.push(output);
    }

    /// The step of the first `nodes`, which are next. Of their values only the last is a tensor.
    pub(super) fn push_first(&mut self, nodes: usize, name: &str, draft: Draft) {
        self.parts[..nodes].fill(None); // the kernel writes whole pixels
        self.push(name, draft, Vec::new());
        self.of_node = vec![self.of_node[0]; nodes];
    }

    /// The step that writes output rows, after all nodes.
    pub(super) fn push_last(&mut self, name: &str, draft: Draft, input: TensorId, spec: &TensorSpec) {
        self.push(name, draft, vec![input]);
        let tensor = self.plan.tensors.last_mut().expect("just pushed");
        tensor.place = Place::Output;
        (tensor.stored_channels, tensor.pitch) = (spec.shape.channels, spec.shape.channels);
        tensor.bytes = self.request.batch * spec.row_pitch;
    }

    /// A step whose result is a part of another tensor, if it says so.
    pub(super) fn push_into(
        &mut self,
        name: &str,
        draft: Draft,
        inputs: Vec<TensorId>,
        part_of: Option<PartOf>,
    ) -> TensorId {
        let is_stored_in_chunks = draft.dtype == Dtype::F16 || matches!(draft.op, StepOp::Linear(_));
        let align = if is_stored_in_chunks { self.request.limits.family.channel_align() } else { 1 };
        let tensor = Tensor { part_of, ..self.activations(draft.shape, draft.dtype, align) };
        let second = draft.also.map(|shape| self.activations(shape, draft.dtype, align));
        let read: usize = inputs.iter().map(|&id| self.tensor(id).bytes).sum();
        let written = tensor.bytes + second.as_ref().map_or(0, |second| second.bytes);
        let bytes = draft.weight_bytes + (read + written) as u64;
        let output = self.add_tensor(tensor);
        let also = second.map(|second| self.add_tensor(second));
        self.plan.steps.push(Step {
            name: name.to_owned(),
            op: draft.op,
            inputs,
            output,
            also,
            kernel: draft.kernel,
            lane: 0,
            after: Vec::new(),
            flops: draft.flops,
            bytes,
            weight_bytes: draft.weight_bytes,
        });
        output
    }

    /// The tensor of a concatenation.
    pub(super) fn whole(&mut self, concat: NodeId) -> TensorId {
        if let Some(&there) = self.of_concat.get(&concat) {
            return there;
        }
        let part_of = self.part_of(concat);
        let family = self.request.limits.family;
        let tensor = self.activations(self.shapes[concat.0], family.dtype(), family.channel_align());
        let id = self.add_tensor(Tensor { part_of, ..tensor });
        self.of_concat.insert(concat, id);
        id
    }

    /// The part of a concatenation's tensor that a node's value is.
    fn part_of(&mut self, node: NodeId) -> Option<PartOf> {
        let Part { of, first_channel } = (*self.parts.get(node.0)?)?;
        Some(PartOf { of: self.whole(of), first_channel })
    }

    /// A tensor in the arena with its channels stored in multiples of `align`.
    fn activations(&self, shape: Shape, dtype: Dtype, align: usize) -> Tensor {
        let stored_channels = shape.channels.next_multiple_of(align);
        Tensor {
            shape,
            stored_channels,
            dtype,
            pitch: stored_channels,
            part_of: None,
            bytes: self.request.batch * shape.pixels() * stored_channels * dtype.bytes(),
            place: Place::Arena(0),
            lifetime: [0, 0],
        }
    }

    fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.plan.tensors.push(tensor);
        TensorId(self.plan.tensors.len() - 1)
    }
}
