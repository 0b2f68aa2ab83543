//! The steps of a plan of values, with their constants: loops and functions over values.

use std::sync::Arc;

use super::packed::Packed;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::loops::{self, Loop, Team};
use crate::plan::{HandOp, Place, Plan, Step, StepOp, TensorId};

/// A network of values made ready.
pub(super) struct Values {
    steps: Vec<Ready>,
    /// What a row brings: a tensor and where it begins.
    inputs: Vec<(TensorId, usize)>,
    /// What the run before has left: a tensor and the number of the state.
    states: Vec<(TensorId, usize)>,
    /// By tensor; nothing for what is no constant.
    constants: Vec<Option<Arc<Tensor>>>,
    types: Vec<ValueType>,
}

/// A step made ready.
struct Ready {
    kernel: Kernel,
    reads: Vec<TensorId>,
    /// With where each is left, if it is an output or a state.
    writes: Vec<(TensorId, Option<Left>)>,
    /// What nobody reads behind it.
    last_of: Vec<TensorId>,
}

enum Kernel {
    Loop(Arc<Loop>),
    Hand(HandOp),
}

/// Where a value is left.
enum Left {
    /// In the output row, from this byte on.
    Row(usize),
    /// As the state of this number.
    State(usize),
}

impl Values {
    /// The steps of `plan`, which is for one row.
    pub fn new(packed: &Packed, plan: &Plan) -> Result<Self, Error> {
        assert_eq!(plan.batch, 1, "a CPU runs row by row");
        let constant = |place: &Place| match place {
            Place::Constant(number) => packed.constant(&plan.constants[*number]).map(Some),
            Place::Input(_) | Place::Output(_) | Place::Arena(_) | Place::State(_) => Ok(None),
        };
        let inputs = plan.tensors.iter().enumerate().filter_map(|(id, tensor)| match tensor.place {
            Place::Input(offset) => Some((TensorId(id), offset)),
            Place::Output(_) | Place::Arena(_) | Place::Constant(_) | Place::State(_) => None,
        });
        let is_written = |id: &TensorId| plan.steps.iter().any(|step| step.outputs.contains(id));
        let states = plan.tensors.iter().enumerate().filter_map(|(id, tensor)| match tensor.place {
            Place::State(state) => Some((TensorId(id), state)),
            Place::Input(_) | Place::Output(_) | Place::Arena(_) | Place::Constant(_) => None,
        });
        Ok(Self {
            steps: plan.steps.iter().enumerate().map(|(index, step)| Ready::new(plan, index, step)).collect(),
            inputs: inputs.collect(),
            states: states.filter(|(id, _)| !is_written(id)).collect(),
            constants: plan.tensors.iter().map(|tensor| constant(&tensor.place)).collect::<Result<_, _>>()?,
            types: plan.tensors.iter().map(|tensor| tensor.value.clone().expect("a tensor of a value")).collect(),
        })
    }

    /// Computes the output row of one input row, and the next row of each state. The team shares out each loop.
    ///
    /// # Panics
    /// If there is no memory for a value: what all of them take was looked for when it was built.
    pub fn run(&self, x: &[u8], y: &mut [u8], states: &mut [&mut [u8]], team: &dyn Team) {
        let mut values: Vec<Option<Tensor>> = vec![None; self.types.len()];
        let inputs = self.inputs.iter().map(|&(id, offset)| (id, &x[offset..]));
        for (id, bytes) in inputs.chain(self.states.iter().map(|&(id, state)| (id, &*states[state]))) {
            let of = self.types[id.0].clone();
            values[id.0] = Some(Tensor::from_bytes(of.clone(), &bytes[..of.bytes()]));
        }
        for step in &self.steps {
            let written = self.compute(step, &values, team).unwrap_or_else(|error| panic!("{error}"));
            for ((id, to), value) in step.writes.iter().zip(written) {
                match to {
                    Some(Left::Row(offset)) => y[*offset..][..value.bytes().len()].copy_from_slice(value.bytes()),
                    Some(Left::State(state)) => states[*state].copy_from_slice(value.bytes()),
                    None => {}
                }
                values[id.0] = Some(value); // steps read outputs, too
            }
            step.last_of.iter().for_each(|id| values[id.0] = None);
        }
    }

    fn compute(&self, step: &Ready, values: &[Option<Tensor>], team: &dyn Team) -> Result<Vec<Tensor>, Error> {
        let operand = |id: &TensorId| {
            self.constants[id.0].as_deref().or(values[id.0].as_ref()).expect("steps are in an order that was checked")
        };
        match &step.kernel {
            Kernel::Loop(of) => {
                let operands: Vec<&Tensor> = step.reads.iter().map(operand).collect();
                Ok(vec![loops::run_by(team, of, &operands, self.types[step.writes[0].0.0].clone())?])
            }
            Kernel::Hand(of) => {
                let mut operands = step.reads.iter().map(operand);
                let mut next = |of: &ValueType| operands.next().map(|value| value.clone().cast(of.clone()));
                let inputs: Vec<_> = of.inputs.iter().map(|of| of.as_ref().and_then(&mut next)).collect();
                loops::compute(&of.op, &inputs.iter().map(Option::as_ref).collect::<Vec<_>>(), &of.outputs)
            }
        }
    }
}

impl Ready {
    fn new(plan: &Plan, index: usize, step: &Step) -> Self {
        let kernel = match &step.op {
            StepOp::Loop(of) => Kernel::Loop(of.of.clone()),
            StepOp::Hand(of) => Kernel::Hand(of.clone()),
            other => unreachable!("{} in a plan of values", other.label(step.inputs.len())),
        };
        let to = |id: &TensorId| match plan.tensors[id.0].place {
            Place::Output(offset) => Some(Left::Row(offset)),
            Place::State(state) => Some(Left::State(state)),
            Place::Input(_) | Place::Arena(_) | Place::Constant(_) => None,
        };
        let writes = step.outputs.iter().map(|id| (*id, to(id))).collect();
        let is_last = |id: &&TensorId| plan.tensors[id.0].lifetime[1] == index;
        let last_of = step.inputs.iter().chain(&step.outputs).filter(is_last).copied().collect();
        Self { kernel, reads: step.inputs.clone(), writes, last_of }
    }
}
