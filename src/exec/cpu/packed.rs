//! A model's weights as kernels read them. Each is repacked once, for all plans of a model's engines on a device.

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

/// The repacked weights that the engines of one model share, until the last of them is dropped.
pub(super) struct Packed {
    from: Arc<Weights>,
    constants: Mutex<HashMap<Constant, Arc<Tensor>>>,
    /// The repacked weights of steps, by the step's name.
    filters: Mutex<HashMap<String, Vec<Filter>>>,
}

/// The weights of a step, repacked.
struct Filter {
    of: Layer,
    repacked: Arc<dyn Any + Send + Sync>,
}

/// All that a step's repacked weights depend on, beside the step's name and the model's weights.
#[derive(PartialEq)]
struct Layer {
    op: StepOp,
    /// The channels of each tensor that the step reads.
    channels: Vec<usize>,
}

impl Layer {
    fn of(plan: &Plan, step: &Step) -> Self {
        let channels = step.inputs.iter().map(|id| plan.tensors[id.0].shape.channels).collect();
        Self { op: step.op.of_any_size(), channels }
    }
}

impl Packed {
    /// The empty store of a model's repacked weights.
    pub fn new(from: &Arc<Weights>) -> Self {
        Self { from: from.clone(), constants: Mutex::default(), filters: Mutex::default() }
    }

    /// The store that all engines of a model on this device share.
    pub fn of(from: &Arc<Weights>, device: &Device) -> Result<Arc<Self>, Error> {
        device.share(|there: &Self| Arc::ptr_eq(&there.from, from), || Ok(Self::new(from)))
    }

    /// The weights as the model has them.
    pub fn from(&self) -> &Weights {
        &self.from
    }

    /// A constant, which is read the first time it is asked for.
    pub fn constant(&self, constant: &Constant) -> Result<Arc<Tensor>, Error> {
        let mut constants = lock(&self.constants);
        if let Some(there) = constants.get(constant) {
            return Ok(there.clone());
        }
        let tensor = Arc::new(constant.read(&self.from)?);
        constants.insert(constant.clone(), tensor.clone());
        Ok(tensor)
    }

    /// The weights of a step, which `repack` makes the first time they are asked for.
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

/// Bytes that a program of these plans adds to what its model's engines on the device, and those `before` it, already
/// have: of its repacked weights, and of the largest layer's weights while they are repacked.
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
