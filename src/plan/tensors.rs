//! The tensors of a plan: which tensor each step writes, which tensor holds each node's value, and the parts of
//! tensors.

use std::collections::BTreeMap;

use super::concat::ConcatPart;
use super::context::{Context, Match};
use super::work::Operand;
use super::{Kernel, PartOf, Place, Plan, Step, StepOp, Tensor, TensorId};
use crate::model::{NodeId, Op};

/// A step without its name and its tensors.
pub(super) struct Draft {
    pub(super) op: StepOp,
    pub(super) kernel: Kernel,
    /// The one or two results of the step.
    pub(super) outputs: Vec<Operand>,
    pub(super) flops: u64,
    pub(super) weight_bytes: u64,
}

/// A plan to which steps are added one at a time, each with the tensors that it writes.
pub(super) struct Growing<'a> {
    context: &'a Context<'a>,
    /// The part of a concatenation that each node writes; `None` if the kernels of its step cannot write parts.
    parts: Vec<Option<ConcatPart>>,
    /// The tensor of each concatenation for which one has been added.
    of_concat: BTreeMap<NodeId, TensorId>,
    /// The tensors that hold nodes' values.
    of_node: BTreeMap<NodeId, TensorId>,
    pub(super) plan: Plan,
}

impl<'a> Growing<'a> {
    /// Begins to add `steps` to a plan.
    pub(super) fn new(context: &'a Context<'a>, steps: &[Match], plan: Plan) -> Self {
        let mut parts = context.parts.clone();
        for node in steps.iter().filter(|step| !step.op.writes_parts()).flat_map(|step| &step.writes) {
            if let Some(part) = parts.get_mut(node.0) {
                *part = None; // the node's kernel writes whole pixels
            }
        }
        Self { context, parts, of_concat: BTreeMap::new(), of_node: BTreeMap::new(), plan }
    }

    /// The tensor that holds a node's value.
    pub(super) fn of(&self, node: NodeId) -> TensorId {
        self.of_node[&node]
    }

    /// Records that a tensor holds a node's value.
    pub(super) fn bind(&mut self, node: NodeId, value: TensorId) {
        self.of_node.insert(node, value);
    }

    /// Whether a node's own step writes its part of a concatenation.
    pub(super) fn is_part(&self, node: NodeId, concat: NodeId) -> bool {
        self.parts[node.0].is_some_and(|part| part.of == concat)
    }

    /// Adds the step of a match, whose first result may be a part of a concatenation.
    pub(super) fn push(&mut self, step: &Match, draft: Draft, inputs: Vec<TensorId>) {
        let part = self.part_of(step.writes[0]);
        self.push_into(&step.name, draft, inputs, part);
        let outputs = self.plan.steps.last().expect("just pushed").outputs.clone();
        for (&node, output) in step.writes.iter().zip(outputs) {
            self.bind(node, output);
            if let Op::Emit(_) = self.context.node(node).op {
                let (batch, pitch) = (self.plan.batch, self.plan.output.row_pitch);
                let tensor = &mut self.plan.tensors[output.0];
                (tensor.place, tensor.bytes) = (Place::Output(0), batch * pitch);
            }
        }
    }

    /// Adds a step. Its first result is a part of another tensor if `part_of` is given.
    pub(super) fn push_into(&mut self, name: &str, draft: Draft, inputs: Vec<TensorId>, part_of: Option<PartOf>) {
        let mut results: Vec<Tensor> = draft.outputs.iter().map(|&output| self.activations(output)).collect();
        results[0].part_of = part_of;
        let read: usize = inputs.iter().map(|&id| self.plan.tensors[id.0].bytes).sum();
        let written: usize = results.iter().map(|tensor| tensor.bytes).sum();
        let bytes = draft.weight_bytes + (read + written) as u64;
        let outputs = results.into_iter().map(|tensor| self.add_tensor(tensor)).collect();
        self.plan.steps.push(Step {
            name: name.to_owned(),
            op: draft.op,
            inputs,
            outputs,
            kernel: draft.kernel,
            lane: 0,
            after: Vec::new(),
            flops: draft.flops,
            bytes,
            weight_bytes: draft.weight_bytes,
        });
    }

    /// The tensor of a concatenation, which is added if it is not there yet.
    pub(super) fn holder(&mut self, concat: NodeId) -> TensorId {
        if let Some(&there) = self.of_concat.get(&concat) {
            return there;
        }
        let part_of = self.part_of(concat);
        let tensor = self.activations(self.context.operand(concat));
        let id = self.add_tensor(Tensor { part_of, ..tensor });
        self.of_concat.insert(concat, id);
        id
    }

    /// The part of a concatenation's tensor into which a node writes its value; `None` if it writes a tensor of its
    /// own.
    fn part_of(&mut self, node: NodeId) -> Option<PartOf> {
        let ConcatPart { of, first_channel } = (*self.parts.get(node.0)?)?;
        Some(PartOf { of: self.holder(of), first_channel })
    }

    /// A tensor in the arena for an operand, without an offset yet.
    fn activations(&self, of: Operand) -> Tensor {
        tensor(of, self.plan.images * of.stored().elems() * of.dtype.bytes())
    }

    /// Adds the tensor of a node's rows, which lie at a byte offset in each row that a run reads.
    pub(super) fn push_rows(&mut self, node: NodeId, offset: usize) {
        let (rows, bytes) = (self.context.operand(node), self.plan.batch * self.plan.input.row_pitch);
        let id = self.add_tensor(Tensor { place: Place::Input(offset), ..tensor(rows, bytes) });
        self.bind(node, id);
    }

    fn add_tensor(&mut self, tensor: Tensor) -> TensorId {
        self.plan.tensors.push(tensor);
        TensorId(self.plan.tensors.len() - 1)
    }
}

fn tensor(of: Operand, bytes: usize) -> Tensor {
    let Operand { shape, stored_channels, dtype } = of;
    let (pitch, place) = (stored_channels, Place::Arena(0));
    Tensor { shape, value: None, stored_channels, dtype, pitch, part_of: None, bytes, place, lifetime: [0, 0] }
}
