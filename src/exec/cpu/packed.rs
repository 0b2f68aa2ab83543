//! A model's weights as kernels read them: each once, for all plans of the engines that a device has of it.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::network;
use crate::device::Device;
use crate::error::Error;
use crate::exec::Planned;
use crate::graph::Tensor;
use crate::model::Weights;
use crate::plan::{Constant, Plan, Step, StepOp};
use crate::sync::{Mutex, lock};

/// What engines of one model share; there until the last of them is gone.
pub(super) struct Packed {
    from: Arc<Weights>,
    constants: Mutex<HashMap<Constant, Arc<Tensor>>>,
    /// By the step's name.
    filters: Mutex<HashMap<String, Vec<Filter>>>,
}

/// The weights of a step, repacked.
struct Filter {
    of: Layer,
    repacked: Arc<dyn Any + Send + Sync>,
}

/// What the weights of a step of that name depend on, beside the model's.
#[derive(PartialEq)]
struct Layer {
    op: StepOp,
    /// Of what it reads.
    channels: Vec<usize>,
}

impl Layer {
    fn of(plan: &Plan, step: &Step) -> Self {
        let channels = step.inputs.iter().map(|id| plan.tensors[id.0].shape.channels).collect();
        Self { op: step.op.of_any_size(), channels }
    }
}

impl Packed {
    /// Those of a model, of which nothing is there yet.
    pub fn new(from: &Arc<Weights>) -> Self {
        Self { from: from.clone(), constants: Mutex::default(), filters: Mutex::default() }
    }

    /// Those that the engines of a model share on a device.
    pub fn of(from: &Arc<Weights>, device: &Device) -> Result<Arc<Self>, Error> {
        device.share(|there: &Self| Arc::ptr_eq(&there.from, from), || Ok(Self::new(from)))
    }

    /// What they are made of.
    pub fn from(&self) -> &Weights {
        &self.from
    }

    /// A constant, read once.
    pub fn constant(&self, constant: &Constant) -> Result<Arc<Tensor>, Error> {
        let mut constants = lock(&self.constants);
        if let Some(there) = constants.get(constant) {
            return Ok(there.clone());
        }
        let tensor = Arc::new(constant.read(&self.from)?);
        constants.insert(constant.clone(), tensor.clone());
        Ok(tensor)
    }

    /// The weights of a step, repacked once.
    pub fn filter<T: Any + Send + Sync>(
        &self,
        plan: &Plan,
        step: &Step,
        repack: impl FnOnce() -> Result<T, Error>,
    ) -> Result<Arc<T>, Error> {
        let of = Layer::of(plan, step);
        let mut filters = lock(&self.filters);
        let there = filters.get(&step.name).and_then(|all| all.iter().find(|filter| filter.of == of));
        if let Some(filter) = there {
            return Ok(filter.repacked.clone().downcast().expect("an operation has one kernel"));
        }
        let repacked = Arc::new(repack()?);
        filters.entry(step.name.clone()).or_default().push(Filter { of, repacked: repacked.clone() });
        Ok(repacked)
    }

    fn has_filter(&self, name: &str, of: &Layer) -> bool {
        lock(&self.filters).get(name).is_some_and(|all| all.iter().any(|filter| filter.of == *of))
    }
}

/// Bytes that a program of these plans adds to what its model's engines on the device, and those `before` it, have: of
/// weights, and of the largest layer's while it is repacked.
pub(super) fn missing((model, plans): Planned<'_>, before: &[Planned<'_>], device: &Device) -> [u64; 2] {
    let is_same = |(other, _): &&Planned<'_>| Arc::ptr_eq(other.weights(), model.weights());
    let earlier: Vec<&Plan> = before.iter().filter(is_same).flat_map(|(_, plans)| *plans).collect();
    let is_there = |has: &dyn Fn(&Packed) -> bool| {
        device.shares(|there: &Packed| Arc::ptr_eq(&there.from, model.weights()) && has(there))
    };
    let mut constants: HashSet<&Constant> = earlier.iter().flat_map(|plan| &plan.constants).collect();
    let new = plans.iter().flat_map(|plan| &plan.constants).filter(|constant| {
        constants.insert(constant) && !is_there(&|there| lock(&there.constants).contains_key(constant))
    });
    let of_constants: u64 = new.map(|constant| constant.of.bytes() as u64).sum();
    let (mut layers, [mut bytes, mut largest]) = (HashMap::<&str, Vec<Layer>>::new(), [of_constants, 0]);
    let known = earlier.len();
    for (number, plan) in earlier.into_iter().chain(plans).enumerate() {
        for step in plan.steps.iter().filter(|step| step.weight_bytes > 0) {
            let (of, of_name) = (Layer::of(plan, step), layers.entry(&step.name).or_default());
            if of_name.contains(&of) {
                continue;
            }
            if number >= known && !is_there(&|there| there.has_filter(&step.name, &of)) {
                bytes += network::weight_bytes(step);
                largest = largest.max(step.weight_bytes);
            }
            of_name.push(of);
        }
    }
    [bytes, largest]
}
