//! The proof that a plan's lanes are safe, apart from how they and the arena were made: by vector clocks over lanes.

mod writes;

use std::ops::Range;

use self::writes::Writes;
use super::{Plan, TensorId};
use crate::error::Error;

impl Plan {
    /// Checks that every step finds its inputs in memory, whatever the speeds of the lanes. Each step that writes one
    /// of the inputs must end before the step begins. Every other step that writes to the same bytes must end before
    /// these writers begin, or begin after the step has ended. Steps write every output.
    ///
    /// # Errors
    /// [`Error::Hazard`] with the steps and the tensor, or with the output.
    pub fn check(&self) -> Result<(), Error> {
        let order = Order::of(self);
        let writes = Writes::of(self, &order.lanes);
        let hazard = |reader: usize, input: TensorId, writer: usize, what: &str| Error::Hazard {
            what: format!(
                "step {reader} `{}` reads tensor {}: step {writer} `{}` {what}",
                self.steps[reader].name, input.0, self.steps[writer].name
            ),
        };
        for (reader, step) in self.steps.iter().enumerate() {
            for &input in &step.inputs {
                let writers = writes.of_tensor(input);
                if let Some(&late) = writers.iter().find(|&&writer| !order.is_before(writer, reader)) {
                    return Err(hazard(reader, input, late, "may not have written it yet"));
                }
                if let Some(other) = writes.of_others(input, |lane| order.during(writers, reader, lane)) {
                    return Err(hazard(reader, input, other, "may have overwritten it"));
                }
            }
        }
        match writes.missing_port() {
            Some(port) => Err(Error::Hazard { what: format!("no step writes the output `{}`", port.name) }),
            None => Ok(()),
        }
    }
}

/// The order of a plan's steps.
struct Order<'a> {
    plan: &'a Plan,
    /// The steps of each lane, ascending.
    lanes: Vec<Vec<usize>>,
    /// The vector clock of each step when it ends: for every lane, how many of the lane's steps have ended.
    clocks: Vec<Vec<usize>>,
}

impl<'a> Order<'a> {
    fn of(plan: &'a Plan) -> Self {
        let mut lanes = vec![Vec::new(); plan.lanes()];
        let mut clocks: Vec<Vec<usize>> = Vec::with_capacity(plan.steps.len());
        let mut of_lane = vec![vec![0; lanes.len()]; lanes.len()];
        for (index, step) in plan.steps.iter().enumerate() {
            let mut clock = std::mem::take(&mut of_lane[step.lane]);
            for &source in &step.after {
                clock.iter_mut().zip(&clocks[source]).for_each(|(known, other)| *known = (*known).max(*other));
            }
            clock[step.lane] += 1;
            of_lane[step.lane] = clock.clone();
            clocks.push(clock);
            lanes[step.lane].push(index);
        }
        Self { plan, lanes, clocks }
    }

    /// Whether step `a` has ended when step `b` begins.
    fn is_before(&self, a: usize, b: usize) -> bool {
        let lane = self.plan.steps[a].lane;
        a != b && self.clocks[b][lane] >= self.clocks[a][lane]
    }

    /// The numbers of a lane's steps that neither end before all writers begin, if there are any, nor begin after the
    /// reader has ended.
    fn during(&self, writers: &[usize], reader: usize, lane: usize) -> Range<usize> {
        // A step's clock also counts the step itself, which has not ended when it begins.
        let ended = |writer: usize| self.clocks[writer][lane] - usize::from(self.plan.steps[writer].lane == lane);
        let from = writers.iter().map(|&writer| ended(writer)).min().unwrap_or(0);
        from..self.lanes[lane].partition_point(|&step| !self.is_before(reader, step))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::arena::tests::{network, planned, random};
    use crate::plan::lanes::tests::blocks;
    use crate::plan::{Limits, Place};

    /// The first hazard in the order of readers and their inputs, found by comparing each input with all steps.
    fn compared(plan: &Plan) -> Option<String> {
        let order = Order::of(plan);
        let (holder, place) = (|id| plan.holder(id), |id: TensorId| plan.tensors[plan.holder(id).0].place);
        let overlap = |a: TensorId, b: TensorId| match (place(a), place(b)) {
            (Place::Arena(first), Place::Arena(second)) => {
                let [bytes, others] = [a, b].map(|id| plan.tensors[holder(id).0].bytes);
                first < second + others && second < first + bytes
            }
            _ => matches!(place(a), Place::State(_)) && place(a) == place(b),
        };
        let writers = |of: &dyn Fn(TensorId) -> bool| -> Vec<usize> {
            (0..plan.steps.len()).filter(|&step| plan.steps[step].outputs.iter().any(|&output| of(output))).collect()
        };
        let hazard = |reader: usize, input: TensorId| {
            let own = writers(&|output| holder(output) == holder(input));
            let late = own.iter().find(|&&writer| !order.is_before(writer, reader));
            let others = writers(&|output| holder(output) != holder(input) && overlap(output, input));
            let is_rewritten = |other: usize| !own.is_empty() && own.iter().all(|&own| order.is_before(other, own));
            let other = others.iter().find(|&&other| !order.is_before(reader, other) && !is_rewritten(other));
            let late = late.map(|late| format!("{late} `{}` may not have written it yet", plan.steps[*late].name));
            let other = other.map(|other| format!("{other} `{}` may have overwritten it", plan.steps[*other].name));
            let what = late.or(other)?;
            Some(format!("step {reader} `{}` reads tensor {}: step {what}", plan.steps[reader].name, input.0))
        };
        (0..plan.steps.len()).find_map(|step| plan.steps[step].inputs.iter().find_map(|&input| hazard(step, input)))
    }

    #[test]
    fn hazards_are_those_found_by_comparing_each_input_with_all_steps() {
        let mut hazards = 0;
        for seed in 1..=100 {
            let (graph, mut below) = (network(seed), random(seed));
            for limits in [Limits::h200(), Limits::a100(), Limits::cpu(2)] {
                let good = planned(&graph, &limits);
                for several in [false, true, true, true] {
                    let mut plan = good.clone().with_lanes(several);
                    for _ in 0..below(4) {
                        let (step, tensor) = (below(plan.steps.len()), below(plan.tensors.len()));
                        match plan.tensors[tensor].place {
                            Place::Arena(offset) => plan.tensors[tensor].place = Place::Arena(offset / 2),
                            _ => drop(plan.steps[step].after.pop()),
                        }
                    }
                    let found = plan.check().err().map(|hazard| hazard.to_string());
                    match compared(&plan) {
                        Some(hazard) => {
                            assert!(found.as_ref().is_some_and(|found| found.contains(&hazard)), "{found:?}")
                        }
                        None => assert_eq!(found, None, "{plan}"),
                    }
                    hazards += usize::from(found.is_some());
                }
            }
        }
        assert!(hazards > 100, "{hazards} hazards");
    }

    #[test]
    fn an_output_that_no_step_writes_is_an_error() {
        let mut plan = blocks(1);
        plan.check().unwrap();
        let last = plan.steps.len() - 1;
        let output = plan.steps[last].outputs[0];
        assert_eq!(plan.tensors[output.0].place, Place::Output(0));
        plan.tensors[output.0].place = Place::Output(4);
        let error = plan.check().unwrap_err().to_string();
        assert!(error.contains("no step writes the output `y`"), "{error}");
    }

    #[test]
    fn plans_of_many_steps_are_checked_quickly() {
        let plan = blocks(5000);
        for limits in [Limits::cpu(2), Limits::h200()] {
            let mut plan = Plan { limits, ..plan.clone() }.with_lanes(true);
            plan.check().unwrap();
            let last = plan.steps.len() - 2;
            let output = plan.steps[last].outputs[0];
            plan.tensors[output.0].place = plan.tensors[plan.steps[last].inputs[0].0].place;
            assert!(plan.check().is_err());
        }
    }
}
