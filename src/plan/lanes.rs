//! Independent branches side by side: each step's lane, the steps of other lanes that it waits for, and the resulting
//! order.
//!
//! The steps are cut into chains, in which each step reads a result of the one before it. The longest chain by
//! predicted time comes first, then the longest chain of the remaining steps, and so on. The first chain is lane 0. The
//! other chains are taken in the order of their first steps: a chain goes to the first lane whose last step has to end
//! before the chain anyway, or else to a new lane. So lanes never make a step wait for one that it does not depend on.

mod chains;
mod clock;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use self::chains::chains;
use self::clock::Clock;
use super::{Family, Place, Plan, Step, TensorId};

/// Gives every step its lane, lane 0 unless there are to be `several`, and the steps of other lanes that it waits for,
/// without those that have ended anyway. Returns the resulting order.
pub(super) fn assign(plan: &mut Plan, several: bool) -> LaneOrder {
    // A CPU runs image by image, each on one thread.
    let (mut lanes, sources) = match several && plan.limits.family != Family::Cpu {
        true => {
            let (clocks, sources) = ((0..plan.steps.len()).map(|step| clocks(plan, step)).collect(), sources(plan));
            (Lanes::of(chains(clocks, &sources), plan.steps.len()), sources)
        }
        false => (Lanes::of(Vec::new(), plan.steps.len()), vec![Vec::new(); plan.steps.len()]),
    };
    let mut order = LaneOrder::default();
    for (index, (step, sources)) in plan.steps.iter_mut().zip(&sources).enumerate() {
        step.lane = lanes.at(index, sources, &order);
        step.after = order.push(step.lane, sources);
    }
    order.line_up();
    order
}

/// The choice of lanes, step by step.
struct Lanes {
    chains: Vec<Vec<usize>>,
    /// The chain of each step, and the lane of each chain that has begun.
    of_step: Vec<usize>,
    of_chain: Vec<usize>,
    /// The last step of each lane, from lane 1 on.
    last: Vec<usize>,
}

impl Lanes {
    /// All steps are in lane 0 if there are no chains.
    fn of(chains: Vec<Vec<usize>>, steps: usize) -> Self {
        let mut of_step = vec![0; steps];
        for (number, chain) in chains.iter().enumerate() {
            chain.iter().for_each(|&step| of_step[step] = number);
        }
        Self { of_step, of_chain: vec![0; chains.len().max(1)], last: Vec::new(), chains }
    }

    /// The lane of the next step, all steps before which are in `order`.
    fn at(&mut self, step: usize, sources: &[usize], order: &LaneOrder) -> usize {
        let chain = self.of_step[step];
        if chain > 0 && self.chains[chain][0] == step {
            let (first, ended) = (step, order.ended_with(sources));
            let is_free = |&last: &usize| last < first && order.has_ended(last, &ended);
            let free = self.last.iter().position(is_free).unwrap_or(self.last.len());
            let last = self.chains[chain][self.chains[chain].len() - 1];
            self.last.resize(self.last.len().max(free + 1), last);
            self.last[free] = last;
            self.of_chain[chain] = free + 1;
        }
        self.of_chain[chain]
    }
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
    /// The steps of each lane, ascending.
    lanes: Vec<Vec<usize>>,
    steps: Vec<Ordered>,
    /// The place of each lane's first step on the [line](Self::beside).
    starts: Vec<usize>,
}

/// A step in the order.
#[derive(Debug)]
struct Ordered {
    lane: usize,
    /// The number of steps of its lane before it.
    number: usize,
    /// The steps of other lanes that have ended when it begins.
    ended: Clock,
}

impl LaneOrder {
    /// Adds the next step, in a lane. It begins when the lane's last step and its sources have ended. Returns the
    /// sources that it has to wait for, ascending.
    fn push(&mut self, lane: usize, sources: &[usize]) -> Vec<usize> {
        self.lanes.resize(self.lanes.len().max(lane + 1), Vec::new());
        let mut ended = self.lanes[lane].last().map(|&last| self.steps[last].ended.clone()).unwrap_or_default();
        let mut after = Vec::new();
        // From the last source on: once it is added, the sources that end before it are known to have ended.
        for &source in sources.iter().rev() {
            if self.steps[source].lane != lane && !self.has_ended(source, &ended) {
                self.end(source, &mut ended);
                after.push(source);
            }
        }
        after.reverse();
        let number = self.lanes[lane].len();
        self.lanes[lane].push(self.steps.len());
        self.steps.push(Ordered { lane, number, ended });
        after
    }

    /// The steps that have ended when these and all before them have.
    fn ended_with(&self, steps: &[usize]) -> Clock {
        let mut ended = Clock::default();
        steps.iter().for_each(|&step| self.end(step, &mut ended));
        ended
    }

    fn end(&self, step: usize, ended: &mut Clock) {
        let Ordered { lane, number, ended: before } = &self.steps[step];
        ended.join(before);
        ended.raise(*lane, number + 1);
    }

    fn has_ended(&self, step: usize, ended: &Clock) -> bool {
        ended.of(self.steps[step].lane) > self.steps[step].number
    }

    /// Puts the lanes one behind the other, once all steps are added.
    fn line_up(&mut self) {
        let mut start = 0;
        for lane in &self.lanes {
            self.starts.push(start);
            start += lane.len();
        }
    }

    /// The number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// The places of the steps that neither end before all of `steps` begin, nor begin after all of `steps` have ended.
    /// Places are on a line that has the steps of lane 0 first, then those of lane 1, and so on.
    pub fn beside(&self, steps: &[usize]) -> Vec<Range<usize>> {
        let ends = self.ends(steps);
        let in_lane = |lane: usize| {
            let from = ends.iter().map(|&[first, _]| self.ended(first, lane)).min();
            let to = ends.iter().map(|&[_, last]| self.first_after(last, lane)).max();
            from.unwrap_or(0)..to.unwrap_or(0)
        };
        self.line(in_lane)
    }

    /// The places of `steps` and of all steps between them, which begin after one of `steps` has ended and end before
    /// another one begins. All steps of one set end before all of another begin, or the other way round, unless a place
    /// between the one is [beside](Self::beside) the other.
    pub fn between(&self, steps: &[usize]) -> Vec<Range<usize>> {
        let ends = self.ends(steps);
        let in_lane = |lane: usize| {
            let is_own = |step: usize| usize::from(self.steps[step].lane == lane);
            match ends.iter().map(|&[_, last]| self.ended(last, lane) + is_own(last)).max().unwrap_or(0) {
                0 => 0..0,
                to => {
                    ends.iter().map(|&[first, _]| self.first_after(first, lane) - is_own(first)).min().unwrap_or(to)..to
                }
            }
        };
        self.line(in_lane)
    }

    /// The first and the last of these steps in each lane that has some.
    fn ends(&self, steps: &[usize]) -> Vec<[usize; 2]> {
        let mut ends = BTreeMap::<usize, [usize; 2]>::new();
        for &step in steps {
            let [first, last] = ends.entry(self.steps[step].lane).or_insert([step; 2]);
            (*first, *last) = (step.min(*first), step.max(*last));
        }
        ends.into_values().collect()
    }

    /// How many of a lane's steps have ended when `step` begins.
    fn ended(&self, step: usize, lane: usize) -> usize {
        let Ordered { lane: own, number, ended } = &self.steps[step];
        if *own == lane { *number } else { ended.of(lane) }
    }

    /// The number in a lane of its first step that begins after `step` has ended.
    fn first_after(&self, step: usize, lane: usize) -> usize {
        let Ordered { lane: own, number, .. } = self.steps[step];
        match own == lane {
            true => number + 1,
            false => self.lanes[lane].partition_point(|&other| self.ended(other, own) <= number),
        }
    }

    /// The ranges of the line that have these numbers in each lane.
    fn line(&self, in_lane: impl Fn(usize) -> Range<usize>) -> Vec<Range<usize>> {
        let mut line: Vec<Range<usize>> = Vec::new();
        for (lane, start) in self.starts.iter().enumerate() {
            let numbers = in_lane(lane);
            let places = start + numbers.start..start + numbers.end;
            match line.last_mut() {
                _ if places.is_empty() => (),
                Some(last) if last.end == places.start => last.end = places.end,
                _ => line.push(places),
            }
        }
        line
    }
}

#[cfg(test)]
impl LaneOrder {
    /// Whether `step` has ended when `other` begins.
    pub fn is_before(&self, step: usize, other: usize) -> bool {
        self.ended(other, self.steps[step].lane) > self.steps[step].number
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::graph::{Cumulate, Expr, GraphBuilder, Op, ReduceOp};
    use crate::plan::Limits;
    use crate::plan::values::tests::planned;
    use crate::tensor::{Dtype, RowSpec};

    /// The plan for a CPU of so many blocks, each with three steps that read the same value and one that sums them.
    pub(in crate::plan) fn blocks(count: usize) -> Plan {
        let mut g = GraphBuilder::new();
        let mut x = g.input("x", Dtype::F32, &[1, 3]);
        for block in 0..count {
            let branches = ["a", "b", "c"].map(|branch| {
                let of = Cumulate { op: ReduceOp::Sum, axis: 1, exclusive: false, reverse: branch == "a" };
                g.node(&format!("{block}.{branch}"), Op::Cumulate(of), &[x])
            });
            x = g.map(&format!("{block}.sum"), Expr::arg(0) + Expr::arg(1) * Expr::arg(2), &branches);
        }
        g.output("y", x);
        let [input, output] = ["x", "y"].map(|name| RowSpec::new([(name, Dtype::F32, vec![3])]));
        planned(&g.finish().unwrap(), &Limits::cpu(2), 1, [&input, &output], Dtype::F32)
    }

    #[test]
    fn plans_of_many_steps_are_placed_quickly_and_in_little_memory() {
        let plan = blocks(5000);
        assert_eq!((plan.steps.len(), plan.lanes()), (20_000, 1), "of a CPU");
        let mut plan = Plan { limits: Limits::h200(), ..plan };
        let order = assign(&mut plan, true);
        assert_eq!(plan.lanes(), 3);
        assert_eq!(order.lanes.iter().map(Vec::len).collect::<Vec<_>>(), [10_000, 5000, 5000]);
        let one = assign(&mut plan.clone(), false);
        assert!(one.steps.iter().all(|step| step.ended.is_empty()), "one lane needs no clocks");
        super::super::arena::place(&mut plan, &order);
        assert!(plan.arena_bytes <= 16 * 256, "{} bytes", plan.arena_bytes);
    }
}
