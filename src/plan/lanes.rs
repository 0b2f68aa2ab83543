//! Independent branches side by side: each step's lane, the steps of other lanes that it waits for, and the resulting
//! order.
//!
//! The steps are cut into chains, in which each step reads a result of the one before it. The longest chain by
//! predicted time comes first, then the longest chain of the remaining steps, and so on. The first chain is lane 0. The
//! other chains are taken in the order of their first steps: a chain goes to the first lane whose last step has to end
//! before the chain anyway, or else to a new lane. So lanes never make a step wait for one that it does not depend on.

use std::collections::{BTreeSet, HashMap};

use super::{Family, Place, Plan, Step, TensorId};

/// Gives every step its lane, lane 0 unless there are to be `several`, and the steps of other lanes that it waits for,
/// without those that have ended anyway. Returns the resulting order.
pub(super) fn assign(plan: &mut Plan, several: bool) -> LaneOrder {
    let sources = sources(plan);
    let lane_of = if several { lanes_of(plan, &sources) } else { vec![0; plan.steps.len()] };
    let mut order = LaneOrder::default();
    let mut last_of_lane = vec![None; lane_of.iter().max().map_or(0, |last| last + 1)];
    for (index, lane) in lane_of.into_iter().enumerate() {
        let mut before: Vec<usize> = last_of_lane[lane].replace(index).into_iter().collect();
        // From the last source on: once it is added, the sources that end before it are known to have ended.
        let mut after: Vec<usize> = Vec::new();
        for &source in sources[index].iter().rev() {
            if !before.iter().any(|&known| known == source || order.is_before(source, known)) {
                before.push(source);
                after.push(source);
            }
        }
        after.reverse();
        order.push(&before);
        (plan.steps[index].lane, plan.steps[index].after) = (lane, after);
    }
    order
}

fn lanes_of(plan: &Plan, sources: &[Vec<usize>]) -> Vec<usize> {
    let mut lane_of = vec![0; plan.steps.len()];
    if plan.limits.family == Family::Cpu {
        return lane_of; // a CPU runs image by image, each on one thread
    }
    let mut order = LaneOrder::default();
    sources.iter().for_each(|sources| order.push(sources));
    let mut others = chains(plan, sources).split_off(1);
    others.sort_unstable();
    let mut last_of_lane: Vec<usize> = Vec::new(); // the last step of each lane, from lane 1 on
    for chain in others {
        let (first, last) = (chain[0], chain[chain.len() - 1]);
        let free = last_of_lane.iter().position(|&last| order.is_before(last, first)).unwrap_or(last_of_lane.len());
        last_of_lane.resize(last_of_lane.len().max(free + 1), last);
        last_of_lane[free] = last;
        chain.iter().for_each(|&step| lane_of[step] = free + 1);
    }
    lane_of
}

/// For each step, in ascending order, the steps that write what it reads, and those that read the state that it
/// overwrites.
fn sources(plan: &Plan) -> Vec<Vec<usize>> {
    let state = |id: &TensorId| match plan.tensors[id.0].place {
        Place::State(number) => Some(number),
        _ => None,
    };
    let (mut writers, mut readers) = (HashMap::<TensorId, Vec<usize>>::new(), HashMap::<usize, Vec<usize>>::new());
    for (index, step) in plan.steps.iter().enumerate() {
        step.outputs.iter().for_each(|&id| writers.entry(plan.holder(id)).or_default().push(index));
        step.inputs.iter().filter_map(state).for_each(|number| readers.entry(number).or_default().push(index));
    }
    let of_step = |step: &Step| {
        let written = step.inputs.iter().filter_map(|&id| writers.get(&plan.holder(id)));
        let read = step.outputs.iter().filter_map(state).filter_map(|number| readers.get(&number));
        written.chain(read).flatten().copied().collect::<BTreeSet<usize>>().into_iter().collect()
    };
    plan.steps.iter().map(of_step).collect()
}

/// The steps in chains, the longest chain first.
fn chains(plan: &Plan, sources: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let clocks: Vec<f64> = (0..plan.steps.len()).map(|step| clocks(plan, step)).collect();
    let mut left: Vec<usize> = (0..plan.steps.len()).collect();
    let mut chains = Vec::new();
    while !left.is_empty() {
        // For each step the longest chain that ends in it: its clocks, and the step before.
        let mut longest: Vec<Option<(f64, Option<usize>)>> = vec![None; plan.steps.len()];
        for &step in &left {
            let before = sources[step].iter().filter_map(|&source| Some((longest[source]?.0, source)));
            let before = before.max_by(|a, b| a.0.total_cmp(&b.0));
            longest[step] = Some((clocks[step] + before.map_or(0.0, |(sum, _)| sum), before.map(|(_, source)| source)));
        }
        let sum = |step: usize| longest[step].map_or(0.0, |(sum, _)| sum);
        let mut chain = Vec::new();
        let mut end = left.iter().copied().max_by(|&a, &b| sum(a).total_cmp(&sum(b)));
        while let Some(step) = end {
            chain.insert(0, step);
            end = longest[step].and_then(|(_, before)| before);
        }
        left.retain(|step| !chain.contains(step));
        chains.push(chain);
    }
    chains
}

/// Clocks of a step for the choice of lanes: its launch, and its kernel's predicted clocks or those of moving its
/// bytes.
fn clocks(plan: &Plan, step: usize) -> f64 {
    const LAUNCH: f64 = 4000.0;
    const BYTES_A_CLOCK: f64 = 2400.0;
    let kernel = plan.predicted(step).map(|predicted| predicted.clocks);
    LAUNCH + kernel.unwrap_or(plan.steps[step].bytes as f64 / BYTES_A_CLOCK)
}

/// The order of steps: for any two, whether one ends before the other begins.
#[derive(Debug, Default)]
pub(super) struct LaneOrder {
    /// For each step, whether each earlier step ends before it begins.
    before: Vec<Vec<bool>>,
}

impl LaneOrder {
    /// Adds the next step. It begins after the steps `directly` have ended, and so after all that end before those.
    fn push(&mut self, directly: &[usize]) {
        let mut before = vec![false; self.before.len()];
        for &step in directly {
            before[step] = true;
            before.iter_mut().zip(&self.before[step]).for_each(|(before, earlier)| *before |= earlier);
        }
        self.before.push(before);
    }

    /// Whether `step` has ended when `other` begins.
    pub fn is_before(&self, step: usize, other: usize) -> bool {
        self.before[other].get(step).is_some_and(|before| *before)
    }
}
