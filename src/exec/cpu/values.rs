//! The steps of a plan of values, with their constants: loops and functions over values.

use std::ops::Range;
use std::sync::Arc;

use super::packed::Packed;
use crate::error::Error;
use crate::graph::{Tensor, ValueType};
use crate::loops::{self, Loop, Team, View};
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
    /// Where tensors are in the arena; nothing for those elsewhere.
    places: Vec<Option<Range<usize>>>,
    arena_bytes: usize,
    types: Vec<ValueType>,
}

/// A step made ready.
struct Ready {
    kernel: Kernel,
    reads: Vec<TensorId>,
    writes: Vec<TensorId>,
    /// Those of them that are outputs and states, with where each is left.
    leaves: Vec<(TensorId, Left)>,
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

    /// Computes the output row of one input row, and the next row of each state, in this arena. The team shares out each
    /// loop.
    ///
    /// # Panics
    /// If there is no memory for a value that is in no arena, or for what is computed in between.
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

    /// What a step reads.
    fn views<'v>(&'v self, step: &Ready, own: &'v [Option<Tensor>], around: &Around<'v>) -> Vec<View<'v>> {
        let view = |id: &TensorId| match (&self.constants[id.0], &self.places[id.0]) {
            (Some(constant), _) => (&**constant).into(),
            (None, Some(range)) => View { of: &self.types[id.0], bytes: around.bytes(range.clone()) },
            (None, None) => own[id.0].as_ref().expect("steps are in an order that was checked").into(),
        };
        step.reads.iter().map(view).collect()
    }
}

/// An arena but for the range that is written.
struct Around<'a> {
    before: &'a [u8],
    behind: &'a [u8],
    /// Where what is behind the range begins.
    end: usize,
}

impl<'a> Around<'a> {
    /// All of it.
    const fn all(arena: &'a [u8]) -> Self {
        Self { before: arena, behind: &[], end: arena.len() }
    }

    /// The range, and what is around it.
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
