//! The steps of a plan of values, with their constants: loops and functions over values.

use std::ops::Range;
use std::sync::Arc;

use super::packed::Packed;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::loops::{self, Loop, Team, View};
use crate::plan::{HandOp, Place, Plan, Step, StepOp, TensorId};

/// A network of values, ready to run.
pub(super) struct Values {
    steps: Vec<Ready>,
    /// The tensors that lie in the input row, with the byte at which each begins.
    inputs: Vec<(TensorId, usize)>,
    /// The tensors that are read from states, with the number of the state.
    states: Vec<(TensorId, usize)>,
    /// The constants, by tensor; `None` for other tensors.
    constants: Vec<Option<Arc<Tensor>>>,
    /// The range of the arena's bytes of each tensor; `None` for tensors that lie elsewhere.
    places: Vec<Option<Range<usize>>>,
    arena_bytes: usize,
    types: Vec<ValueType>,
}

/// A step, ready to run.
struct Ready {
    kernel: Kernel,
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
    /// The written tensors that are outputs or states, with the place that each is copied to.
    leaves: Vec<(TensorId, Left)>,
}

enum Kernel {
    Loop(Arc<Loop>),
    Hand(HandOp),
}

/// The place that a value is copied to.
enum Left {
    /// In the output row, from this byte on.
    Row(usize),
    /// The state of this number.
    State(usize),
}

impl Values {
    /// Makes the steps of `plan`, which is for one row, ready to run.
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
        let place = |tensor: &crate::plan::Tensor| match tensor.place {
            Place::Arena(offset) => Some(offset..offset + tensor.value.as_ref().map_or(0, ValueType::bytes)),
            Place::Input(_) | Place::Output(_) | Place::Constant(_) | Place::State(_) => None,
        };
        let is_written = |id: &TensorId| plan.steps.iter().any(|step| step.outputs.contains(id));
        let states = plan.tensors.iter().enumerate().filter_map(|(id, tensor)| match tensor.place {
            Place::State(state) => Some((TensorId(id), state)),
            Place::Input(_) | Place::Output(_) | Place::Arena(_) | Place::Constant(_) => None,
        });
        Ok(Self {
            steps: plan.steps.iter().map(|step| Ready::new(plan, step)).collect(),
            inputs: inputs.collect(),
            states: states.filter(|(id, _)| !is_written(id)).collect(),
            constants: plan.tensors.iter().map(|tensor| constant(&tensor.place)).collect::<Result<_, _>>()?,
            places: plan.tensors.iter().map(place).collect(),
            arena_bytes: plan.arena_bytes,
            types: plan.tensors.iter().map(|tensor| tensor.value.clone().expect("a tensor of a value")).collect(),
        })
    }

    /// Bytes of the arena that a run takes.
    pub const fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Computes the output row of one input row, and the next row of each state. Tensors between steps lie in `arena`.
    /// The team shares out each loop.
    ///
    /// # Panics
    /// If there is no memory for a value that is not in the arena, or for what a step computes in between.
    pub fn run(&self, x: &[u8], y: &mut [u8], states: &mut [&mut [u8]], arena: &mut [u8], team: &dyn Team) {
        let mut own: Vec<Option<Tensor>> = vec![None; self.types.len()];
        let inputs = self.inputs.iter().map(|&(id, offset)| (id, &x[offset..]));
        for (id, bytes) in inputs.chain(self.states.iter().map(|&(id, state)| (id, &*states[state]))) {
            let of = self.types[id.0].clone();
            own[id.0] = Some(Tensor::from_bytes(of.clone(), &bytes[..of.bytes()]));
        }
        for step in &self.steps {
            self.compute(step, &mut own, arena, team).unwrap_or_else(|error| panic!("{error}"));
            for (id, to) in &step.leaves {
                let value = own[id.0].as_ref().expect("it was just written");
                match to {
                    Left::Row(offset) => y[*offset..][..value.bytes().len()].copy_from_slice(value.bytes()),
                    Left::State(state) => states[*state].copy_from_slice(value.bytes()),
                }
            }
        }
    }

    fn compute(
        &self,
        step: &Ready,
        own: &mut [Option<Tensor>],
        arena: &mut [u8],
        team: &dyn Team,
    ) -> Result<(), Error> {
        match &step.kernel {
            Kernel::Loop(of) => {
                let id = step.writes[0];
                match self.places[id.0].clone() {
                    Some(range) => {
                        let (around, to) = Around::of(arena, range);
                        loops::run_into(team, of, &self.views(step, own, &around), to)
                    }
                    None => {
                        let mut value = Tensor::zeros(self.types[id.0].clone())?;
                        loops::run_into(team, of, &self.views(step, own, &Around::all(arena)), value.bytes_mut())?;
                        own[id.0] = Some(value);
                        Ok(())
                    }
                }
            }
            Kernel::Hand(of) => {
                let views = self.views(step, own, &Around::all(arena));
                let mut operands = views.into_iter();
                let mut next =
                    |of: &ValueType| operands.next().map(|value| Tensor::from_bytes(of.clone(), value.bytes));
                let inputs: Vec<_> = of.inputs.iter().map(|of| of.as_ref().and_then(&mut next)).collect();
                let inputs: Vec<_> = inputs.iter().map(Option::as_ref).collect();
                for (id, value) in step.writes.iter().zip(loops::compute_by(team, &of.op, &inputs, &of.outputs)?) {
                    match &self.places[id.0] {
                        Some(range) => arena[range.clone()].copy_from_slice(value.bytes()),
                        None => own[id.0] = Some(value),
                    }
                }
                Ok(())
            }
        }
    }

    /// Views of the tensors that a step reads.
    fn views<'v>(&'v self, step: &Ready, own: &'v [Option<Tensor>], around: &Around<'v>) -> Vec<View<'v>> {
        let view = |id: &TensorId| match (&self.constants[id.0], &self.places[id.0]) {
            (Some(constant), _) => (&**constant).into(),
            (None, Some(range)) => View { of: &self.types[id.0], bytes: around.bytes(range.clone()) },
            (None, None) => own[id.0].as_ref().expect("steps are in an order that was checked").into(),
        };
        step.reads.iter().map(view).collect()
    }
}

/// The arena without the range that a step writes.
struct Around<'a> {
    before: &'a [u8],
    behind: &'a [u8],
    /// The arena's byte at which `behind` begins.
    end: usize,
}

impl<'a> Around<'a> {
    /// The whole arena, for a step that writes elsewhere.
    const fn all(arena: &'a [u8]) -> Self {
        Self { before: arena, behind: &[], end: arena.len() }
    }

    /// Splits the arena into `range` and the bytes around it.
    fn of(arena: &'a mut [u8], range: Range<usize>) -> (Self, &'a mut [u8]) {
        let (rest, behind) = arena.split_at_mut(range.end);
        let (before, to) = rest.split_at_mut(range.start);
        (Self { before, behind, end: range.end }, to)
    }

    fn bytes(&self, range: Range<usize>) -> &'a [u8] {
        match range {
            range if range.end <= self.before.len() => &self.before[range],
            range if range.start >= self.end => &self.behind[range.start - self.end..range.end - self.end],
            range => {
                panic!("a step reads {range:?} of the arena, of which it writes {}..{}", self.before.len(), self.end)
            }
        }
    }
}

impl Ready {
    fn new(plan: &Plan, step: &Step) -> Self {
        let kernel = match &step.op {
            StepOp::Loop(of) => Kernel::Loop(loops::in_parts(&of.of).map_or_else(|| of.of.clone(), Arc::new)),
            StepOp::Hand(of) => Kernel::Hand(of.clone()),
            other => unreachable!("{} in a plan of values", other.label(step.inputs.len())),
        };
        let to = |&id: &TensorId| match plan.tensors[id.0].place {
            Place::Output(offset) => Some((id, Left::Row(offset))),
            Place::State(state) => Some((id, Left::State(state))),
            Place::Input(_) | Place::Arena(_) | Place::Constant(_) => None,
        };
        let leaves = step.outputs.iter().filter_map(to).collect();
        Self { kernel, reads: step.inputs.clone(), writes: step.outputs.clone(), leaves }
    }
}
