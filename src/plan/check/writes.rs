//! Which steps of a plan write which memory.

use std::collections::HashMap;
use std::ops::Range;

use super::super::{Place, Plan, TensorId};
use crate::tensor::RowPort;

/// The steps that write each tensor, state, byte of the arena and byte of the output.
pub(super) struct Writes<'a> {
    plan: &'a Plan,
    /// The steps of each lane.
    lanes: &'a [Vec<usize>],
    /// For each tensor that is no part, the steps that write it or a part of it, ascending.
    of_tensor: Vec<Vec<usize>>,
    of_state: HashMap<usize, Vec<usize>>,
    /// For each lane, the bytes of the arena that its steps write.
    of_arena: Vec<Spans>,
    /// The bytes that steps write of each row of the output, by their starts; each ends with the last of those before.
    of_output: Vec<Range<usize>>,
}

impl<'a> Writes<'a> {
    /// The writes of a plan whose lanes have these steps.
    pub fn of(plan: &'a Plan, lanes: &'a [Vec<usize>]) -> Self {
        let (mut of_tensor, mut of_state) = (vec![Vec::new(); plan.tensors.len()], HashMap::<_, Vec<usize>>::new());
        let mut of_output = Vec::new();
        for (index, step) in plan.steps.iter().enumerate() {
            for &id in &step.outputs {
                let tensor = &plan.tensors[id.0];
                of_tensor[plan.holder(id).0].push(index);
                match tensor.place {
                    Place::State(number) => of_state.entry(number).or_default().push(index),
                    Place::Output(offset) => of_output.push(offset..offset + tensor.bytes),
                    Place::Arena(_) | Place::Input(_) | Place::Constant(_) => (),
                }
            }
        }
        of_output.sort_unstable_by_key(|bytes| bytes.start);
        let mut end = 0;
        for bytes in &mut of_output {
            end = bytes.end.max(end);
            bytes.end = end;
        }
        let of_arena = lanes.iter().map(|steps| Spans::of(steps.iter().map(|&step| plan.span(step)))).collect();
        Self { plan, lanes, of_tensor, of_state, of_arena, of_output }
    }

    /// The steps that write a tensor, or another part of the same tensor, ascending.
    pub fn of_tensor(&self, id: TensorId) -> &[usize] {
        &self.of_tensor[self.plan.holder(id).0]
    }

    /// The first step that writes to the bytes of a tensor as another tensor, among the steps with these numbers in
    /// each lane. A part counts as the whole tensor.
    pub fn of_others(&self, id: TensorId, within: impl Fn(usize) -> Range<usize>) -> Option<usize> {
        let is_other = |&step: &usize| self.plan.steps[step].outputs.iter().any(|&output| self.are_others(output, id));
        let in_lane =
            |(lane, steps): (usize, &Vec<usize>)| match (self.plan.tensors[id.0].place, self.plan.bytes_of(id)) {
                (_, Some(bytes)) => {
                    let is_found = &|number: usize| is_other(&steps[number]);
                    self.of_arena[lane]
                        .first(&Sought { numbers: within(lane), bytes, is_found })
                        .map(|number| steps[number])
                }
                (Place::State(number), None) => {
                    let within = steps.get(within(lane))?;
                    self.of_state
                        .get(&number)?
                        .iter()
                        .copied()
                        .filter(|step| within.binary_search(step).is_ok())
                        .find(is_other)
                }
                _ => None,
            };
        self.lanes.iter().enumerate().filter_map(in_lane).min()
    }

    /// Whether two tensors are not the same, but share a byte of a state or of the arena.
    fn are_others(&self, a: TensorId, b: TensorId) -> bool {
        let is_same_state = matches!(self.plan.tensors[a.0].place, Place::State(_))
            && self.plan.tensors[a.0].place == self.plan.tensors[b.0].place;
        let overlap = match (self.plan.bytes_of(a), self.plan.bytes_of(b)) {
            (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
            _ => is_same_state,
        };
        overlap && self.plan.holder(a) != self.plan.holder(b)
    }

    /// A port of the output of which no single step writes all bytes.
    pub fn missing_port(&self) -> Option<&'a RowPort> {
        let is_missing = |port: &&RowPort| {
            let before = self.of_output.partition_point(|bytes| bytes.start <= port.offset);
            before == 0 || self.of_output[before - 1].end < port.offset + port.bytes()
        };
        self.plan.output.ports().iter().find(is_missing)
    }
}

impl Plan {
    /// The bytes of the arena that a tensor has, a part those of the whole.
    fn bytes_of(&self, id: TensorId) -> Option<Range<usize>> {
        let whole = &self.tensors[self.holder(id).0];
        match whole.place {
            Place::Arena(offset) => Some(offset..offset + whole.bytes),
            Place::Input(_) | Place::Output(_) | Place::Constant(_) | Place::State(_) => None,
        }
    }

    /// The first byte of the arena that a step writes, and the end of the last one.
    fn span(&self, step: usize) -> [usize; 2] {
        let bytes = self.steps[step].outputs.iter().filter_map(|&id| self.bytes_of(id));
        bytes.map(|bytes| [bytes.start, bytes.end]).fold(NOTHING, joined)
    }
}

const NOTHING: [usize; 2] = [usize::MAX, 0];

fn joined(a: [usize; 2], b: [usize; 2]) -> [usize; 2] {
    [a[0].min(b[0]), a[1].max(b[1])]
}

/// The spans of the steps of a lane, as a tree: each node has the span of both its halves.
struct Spans {
    /// The root is node 1; the halves of node n are nodes 2n and 2n + 1. There are as many leaves as nodes before them.
    nodes: Vec<[usize; 2]>,
}

/// What is searched for in a lane.
struct Sought<'a> {
    /// Numbers of steps.
    numbers: Range<usize>,
    bytes: Range<usize>,
    is_found: &'a dyn Fn(usize) -> bool,
}

impl Spans {
    fn of(steps: impl ExactSizeIterator<Item = [usize; 2]>) -> Self {
        let leaves = steps.len().next_power_of_two();
        let mut nodes = vec![NOTHING; leaves];
        nodes.extend(steps);
        nodes.resize(2 * leaves, NOTHING);
        for node in (1..leaves).rev() {
            nodes[node] = joined(nodes[2 * node], nodes[2 * node + 1]);
        }
        Self { nodes }
    }

    /// The first number of a step that is sought, whose span has some of the bytes and for which `is_found` is true.
    fn first(&self, sought: &Sought<'_>) -> Option<usize> {
        self.first_of(1, 0..self.nodes.len() / 2, sought)
    }

    fn first_of(&self, node: usize, numbers: Range<usize>, sought: &Sought<'_>) -> Option<usize> {
        let [start, end] = self.nodes[node];
        let is_within = sought.numbers.start < numbers.end && numbers.start < sought.numbers.end;
        if !is_within || sought.bytes.end <= start || end <= sought.bytes.start {
            return None;
        }
        if numbers.len() == 1 {
            return (sought.is_found)(numbers.start).then_some(numbers.start);
        }
        let middle = numbers.start.midpoint(numbers.end);
        let first = self.first_of(2 * node, numbers.start..middle, sought);
        first.or_else(|| self.first_of(2 * node + 1, middle..numbers.end, sought))
    }
}
