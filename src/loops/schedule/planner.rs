//! The choice of the values that are stored. It goes from the outputs backwards, so that all steps that read a value
//! are known.

use std::collections::BTreeSet;

use super::draft::{Costs, Draft};
use super::{Kernel, Machine, Schedule, Step};
use crate::graph::{Graph, Node, NodeId, ValueId, ValueType};
use crate::loops::lower::{Lowered, lower};
use crate::loops::rewrite::collapsed;
use crate::loops::work::{only_moves, same_as};

/// The largest number of values, each computed from the next, that are examined to find out whether all of them can be
/// fused.
const MOST_FOLLOWING: usize = 8;

pub(super) struct Planner<'g> {
    graph: &'g Graph,
    machine: Machine,
    /// The value whose bytes each value has.
    views: Vec<ValueId>,
    /// The loop that writes each value, if there is one: at first that of its node alone, then with all that was fused
    /// into it.
    drafts: Vec<Option<Draft>>,
    /// The nodes whose operations were fused into the loop that writes each value, as often as values of them were.
    fused: Vec<Vec<NodeId>>,
    /// The values that are in memory in any case.
    kept: Vec<bool>,
    /// For each value, the number of loops of single nodes that read it.
    uses: Vec<usize>,
    /// The steps that read each value, by the values that they write.
    readers: Vec<BTreeSet<ValueId>>,
    /// For each node, whether it is a step of its own; for each value, whether a loop writes it.
    apart: Vec<bool>,
    steps: Vec<bool>,
}

impl<'g> Planner<'g> {
    /// `is_apart` says which nodes are steps of their own.
    pub fn new(graph: &'g Graph, machine: Machine, is_apart: &dyn Fn(NodeId) -> bool) -> Self {
        let values = graph.values.len();
        let mut planner = Self {
            graph,
            machine,
            views: (0..values).map(ValueId).collect(),
            drafts: (0..values).map(|_| None).collect(),
            fused: vec![Vec::new(); values],
            kept: vec![false; values],
            uses: vec![0; values],
            readers: vec![BTreeSet::new(); values],
            apart: vec![false; graph.nodes.len()],
            steps: vec![false; values],
        };
        (0..graph.nodes.len()).map(NodeId).filter(|&id| !is_apart(id)).for_each(|node| planner.lower(node));
        graph.outputs.iter().for_each(|port| planner.kept[planner.views[port.value.0].0] = true);
        planner
    }

    pub fn schedule(mut self) -> Schedule {
        for (index, node) in self.graph.nodes.iter().enumerate().rev() {
            for &value in node.outputs.iter().rev() {
                if self.is_needed(value) {
                    self.place(NodeId(index), value);
                }
            }
        }
        let steps = self.graph.nodes.iter().enumerate().flat_map(|(index, node)| self.written(NodeId(index), node));
        Schedule { steps: steps.collect(), views: self.views.clone() }
    }

    /// Lowers a node to loops or views.
    fn lower(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id.0];
        let types: Vec<Option<&ValueType>> = node.inputs.iter().map(|id| id.map(|id| self.graph.value(id))).collect();
        let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| self.graph.value(id).clone()).collect();
        let Lowered::Loops(loops) = lower(&node.op, &types, &outputs) else { return };
        let operands = self.inputs(node);
        for (of, &value) in loops.iter().zip(&node.outputs) {
            match same_as(of) {
                Some(operand) => self.views[value.0] = operands[operand],
                None => {
                    let draft = Draft::of_node(self.graph, of, &operands);
                    draft.reads.iter().for_each(|read| self.uses[read.0] += 1);
                    self.drafts[value.0] = Some(draft);
                }
            }
        }
    }

    /// The values whose bytes a node reads.
    fn inputs(&self, node: &Node) -> Vec<ValueId> {
        node.inputs.iter().flatten().map(|id| self.views[id.0]).collect()
    }

    fn is_needed(&self, id: ValueId) -> bool {
        self.kept[id.0] || !self.readers[id.0].is_empty()
    }

    /// Decides whether a value is stored or computed by its readers.
    fn place(&mut self, node: NodeId, value: ValueId) {
        if self.views[value.0] != value {
            return;
        }
        let Some(draft) = &self.drafts[value.0] else {
            let inputs = self.inputs(&self.graph.nodes[node.0]);
            inputs.iter().for_each(|id| self.kept[id.0] = true);
            self.apart[node.0] = true;
            return;
        };
        let reads = draft.reads.clone();
        let steps = match self.absorbed(value, draft) {
            None => {
                self.steps[value.0] = true;
                vec![value]
            }
            Some(fused) => fused.into_iter().map(|(step, draft)| self.replace(step, node, draft)).collect(),
        };
        reads.iter().for_each(|read| self.readers[read.0].extend(&steps));
    }

    /// Replaces a step by one into which an operation of a node is fused.
    fn replace(&mut self, step: ValueId, node: NodeId, draft: Draft) -> ValueId {
        self.drafts[step.0] = Some(draft);
        self.fused[step.0].push(node);
        step
    }

    /// The steps that read a value with its producer fused into each; `None` if that does not pay.
    fn absorbed(&self, value: ValueId, producer: &Draft) -> Option<Vec<(ValueId, Draft)>> {
        if self.kept[value.0] {
            return None;
        }
        let step = |id: &ValueId| (*id, self.drafts[id.0].as_ref().expect("a step that reads"));
        let readers: Vec<(ValueId, &Draft)> = self.readers[value.0].iter().map(step).collect();
        let times: f64 = readers.iter().map(|(_, reader)| reader.times(value)).sum();
        let fused = self.joined(value, producer, &readers)?;
        let once = only_moves(&producer.of) || times <= self.graph.value(value).elems() as f64;
        (once || self.is_followed(value, producer, &fused, MOST_FOLLOWING)).then_some(fused)
    }

    /// The steps with a value's producer fused into each, if this takes no longer than before.
    fn joined(&self, value: ValueId, producer: &Draft, readers: &[(ValueId, &Draft)]) -> Option<Vec<(ValueId, Draft)>> {
        let (mut before, mut after) = (producer.costs, Costs::default());
        let mut fused = Vec::new();
        for &(step, reader) in readers {
            let both = reader.with(self.graph, value, producer)?;
            (before, after) = (before.plus(reader.costs), after.plus(both.costs));
            fused.push((step, both));
        }
        after.are_within(before, self.machine).then_some(fused)
    }

    /// Whether steps into which a value was fused can also compute the values that its producer reads, through at most
    /// `most` values. If not, a separate step for the value is better: it moves no more bytes and computes the value
    /// only once.
    fn is_followed(&self, value: ValueId, producer: &Draft, steps: &[(ValueId, Draft)], most: usize) -> bool {
        let elems = self.graph.value(value).elems();
        let steps: Vec<(ValueId, &Draft)> = steps.iter().map(|(step, draft)| (*step, draft)).collect();
        let follows = |read: ValueId, draft: &Draft| {
            let next = self.joined(read, draft, &steps).filter(|_| most > 0);
            next.is_some_and(|next| self.is_followed(read, draft, &next, most - 1))
        };
        producer.reads.iter().all(|&read| match &self.drafts[read.0] {
            Some(draft) if self.uses[read.0] == 1 && !self.kept[read.0] && self.graph.value(read).elems() >= elems => {
                follows(read, draft) || producer.with(self.graph, read, draft).is_none()
            }
            _ => true,
        })
    }

    /// The steps that write the results of a node.
    fn written(&self, id: NodeId, node: &Node) -> Vec<Step> {
        if self.apart[id.0] {
            let (reads, writes) = (self.inputs(node), node.outputs.clone());
            return vec![Step { kernel: Kernel::Apart(id), reads, writes, nodes: vec![id] }];
        }
        let step = |&value: &ValueId| {
            let draft = self.drafts[value.0].as_ref().filter(|_| self.steps[value.0])?;
            let mut nodes = [&[id], &self.fused[value.0][..]].concat();
            nodes.sort_unstable();
            nodes.dedup();
            Some(Step {
                kernel: Kernel::Loop(collapsed(&draft.of)),
                reads: draft.reads.clone(),
                writes: vec![value],
                nodes,
            })
        };
        node.outputs.iter().filter_map(step).collect()
    }
}
