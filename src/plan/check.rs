//! The proof that a plan's lanes are safe, apart from how they and the arena were made: by vector clocks over lanes.

use super::{Place, Plan, TensorId};
use crate::error::Error;
use crate::tensor::RowPort;

impl Plan {
    /// Checks that every step finds its inputs in memory, whatever the speeds of the lanes. Each step that writes one
    /// of the inputs must end before the step begins. Every other step that writes to the same bytes must end before
    /// these writers begin, or begin after the step has ended. Steps write every output.
    ///
    /// # Errors
    /// [`Error::Hazard`] with the steps and the tensor, or with the output.
    pub fn check(&self) -> Result<(), Error> {
        let clocks = self.clocks();
        let is_before = |a: usize, b: usize| a != b && clocks[b][self.steps[a].lane] >= clocks[a][self.steps[a].lane];
        let hazard = |reader: usize, input: TensorId, writer: usize, what: &str| Error::Hazard {
            what: format!(
                "step {reader} `{}` reads tensor {}: step {writer} `{}` {what}",
                self.steps[reader].name, input.0, self.steps[writer].name
            ),
        };
        for (reader, step) in self.steps.iter().enumerate() {
            for &input in &step.inputs {
                let writers: Vec<usize> = self.writers(|output| self.holder(output) == self.holder(input)).collect();
                if let Some(&late) = writers.iter().find(|&&writer| !is_before(writer, reader)) {
                    return Err(hazard(reader, input, late, "may not have written it yet"));
                }
                let is_other =
                    |output: TensorId| self.holder(output) != self.holder(input) && self.overlap(output, input);
                let is_rewritten = |other: usize| writers.iter().all(|&w| is_before(other, w));
                let is_safe = |other| is_before(reader, other) || (!writers.is_empty() && is_rewritten(other));
                if let Some(other) = self.writers(is_other).find(|&other| !is_safe(other)) {
                    return Err(hazard(reader, input, other, "may have overwritten it"));
                }
            }
        }
        match self.output.ports().iter().find(|port| !self.is_written(port)) {
            Some(port) => Err(Error::Hazard { what: format!("no step writes the output `{}`", port.name) }),
            None => Ok(()),
        }
    }

    /// Whether one step writes all bytes of a port.
    fn is_written(&self, port: &RowPort) -> bool {
        let written = self.steps.iter().flat_map(|step| &step.outputs).map(|id| &self.tensors[id.0]);
        let mut places = written.filter_map(|tensor| match tensor.place {
            Place::Output(offset) => Some(offset..offset + tensor.bytes),
            Place::Arena(_) | Place::Input(_) | Place::Constant(_) | Place::State(_) => None,
        });
        places.any(|bytes| bytes.start <= port.offset && port.offset + port.bytes() <= bytes.end)
    }

    /// The vector clock of each step when it ends: for every lane, how many of the lane's steps have ended.
    fn clocks(&self) -> Vec<Vec<usize>> {
        let mut clocks: Vec<Vec<usize>> = Vec::with_capacity(self.steps.len());
        let mut of_lane = vec![vec![0; self.lanes()]; self.lanes()];
        for step in &self.steps {
            let mut clock = std::mem::take(&mut of_lane[step.lane]);
            for &source in &step.after {
                clock.iter_mut().zip(&clocks[source]).for_each(|(known, other)| *known = (*known).max(*other));
            }
            clock[step.lane] += 1;
            of_lane[step.lane] = clock.clone();
            clocks.push(clock);
        }
        clocks
    }

    fn writers<'a>(&'a self, of: impl Fn(TensorId) -> bool + 'a) -> impl Iterator<Item = usize> + 'a {
        self.steps
            .iter()
            .enumerate()
            .filter(move |(_, step)| step.outputs.iter().copied().any(&of))
            .map(|(index, _)| index)
    }

    /// Whether two tensors share a byte of a state or of the arena. A part counts as the whole tensor.
    fn overlap(&self, a: TensorId, b: TensorId) -> bool {
        let range = |id: TensorId| match self.tensors[self.holder(id).0].place {
            Place::Arena(offset) => Some(offset..offset + self.tensors[self.holder(id).0].bytes),
            Place::Input(_) | Place::Output(_) | Place::Constant(_) | Place::State(_) => None,
        };
        match (range(a), range(b)) {
            (Some(a), Some(b)) => a.start < b.end && b.start < a.end,
            _ => self.is_same_state(a, b),
        }
    }

    /// Whether two tensors are the same state.
    fn is_same_state(&self, a: TensorId, b: TensorId) -> bool {
        let [a, b] = [a, b].map(|id| self.tensors[id.0].place);
        matches!(a, Place::State(_)) && a == b
    }
}
