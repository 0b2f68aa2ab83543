//! The steps of a plan that write states for the next run.

use super::Growing;
use crate::graph::{Origin, ValueId};
use crate::loops::Schedule;
use crate::plan::{Place, TensorId};

impl Growing<'_> {
    /// Adds steps that copy the next values of states to the states' places, after all other steps have read the
    /// present values.
    pub(super) fn keep_states(&mut self, schedule: &Schedule) {
        let rows = self.request.rows[1].ports().len();
        let next: Vec<ValueId> = self.graph.outputs[rows..].iter().map(|port| schedule.view_of(port.value)).collect();
        let kept: Vec<Option<TensorId>> =
            next.iter().enumerate().map(|(state, &id)| self.next_state(state, id)).collect();
        for (state, from) in kept.into_iter().enumerate() {
            if let Some(from) = from {
                let name = self.graph.outputs[rows + state].name.clone();
                self.copy(&name, next[state], from, Place::State(state));
            }
        }
    }

    /// The tensor of the next value of a state; `None` if the state keeps its value. If the next value is the present
    /// value of another state, it is copied to the arena first, because that state is overwritten.
    fn next_state(&mut self, state: usize, id: ValueId) -> Option<TensorId> {
        match self.state_of(id) {
            Some(before) if before == state => None,
            Some(before) => {
                let (name, from) = (format!("{} (before)", self.plan().states[before].name), self.tensor(id));
                Some(self.copy(&name, id, from, Place::Arena(0)))
            }
            None => Some(self.tensor(id)),
        }
    }

    /// The index of the state whose present value this is; `None` for any other value.
    fn state_of(&self, id: ValueId) -> Option<usize> {
        let Origin::Input(input) = self.graph.values[id.0].origin else { return None };
        match self.place_of_input(input) {
            Place::State(state) => Some(state),
            Place::Input(_) | Place::Output(_) | Place::Constant(_) | Place::Arena(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::graph::{Expr, GraphBuilder};
    use crate::plan::values::{ValuesRequest, plan};
    use crate::plan::{Choices, Limits, Place, Plan};
    use crate::tensor::{Dtype, RowSpec};

    /// Two branches sum the state and the input; the state becomes another value.
    fn planned(limits: &Limits) -> Plan {
        let mut g = GraphBuilder::new();
        let [x, h] = ["x", "h"].map(|name| g.input(name, Dtype::F32, &[2, 64]));
        let next = g.map("next", Expr::arg(0) + Expr::float(Dtype::F32, 1.0), &[x]);
        let y = g.map("y", Expr::arg(0) * Expr::arg(1), &[x, h]);
        g.output("y", y);
        g.output("h'", next);
        let [input, output, state] = ["x", "y", "h"].map(|name| RowSpec::new([(name, Dtype::F32, vec![64])]));
        let (rows, states, precision) = ([&input, &output], state.ports(), Dtype::F32);
        let (in_f32, choices) = (&BTreeSet::new(), &Choices::new());
        let request = ValuesRequest { limits, batch: 2, rows, states, precision, in_f32, choices };
        plan(&g.finish().unwrap(), &request).unwrap()
    }

    #[test]
    fn a_state_is_overwritten_when_it_has_been_read() {
        for limits in [Limits::h200(), Limits::a100()] {
            let mut plan = planned(&limits);
            plan.check().unwrap();
            assert_eq!(plan.states[0].to_string(), "`h` of f32[64]");
            let at = |step: usize, inputs: bool| {
                let ids = if inputs { &plan.steps[step].inputs } else { &plan.steps[step].outputs };
                ids.iter().any(|id| plan.tensors[id.0].place == Place::State(0))
            };
            let reader = (0..plan.steps.len()).find(|&step| at(step, true)).unwrap();
            let writer = (0..plan.steps.len()).find(|&step| at(step, false)).unwrap();
            assert_eq!(writer, plan.steps.len() - 1, "{plan}");
            assert!(plan.to_string().contains("state 0"), "{plan}");
            // Without an order between the lanes, the write of the state would be a hazard.
            plan.steps[writer].lane = plan.lanes();
            plan.steps[writer].after.retain(|&source| source != reader);
            let hazard = plan.check().unwrap_err().to_string();
            assert!(hazard.contains("step") && hazard.contains("may have overwritten it"), "{hazard}");
        }
    }
}
