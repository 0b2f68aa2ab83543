//! The memory that a build needs, computed before the first allocation, and compared with the free memory.

use std::cell::Cell;
use std::collections::HashMap;

use super::flow::Flow;
use crate::device::{DEVICE_MEMORY, Device, HOST_MEMORY};
use crate::error::Error;
use crate::plan::Plan;
use crate::sync::{Mutex, lock};
use crate::tensor::Bucket;

/// The memory budget of a build: its device, its models, and the buffers of its ring.
pub(super) struct Budget<'a> {
    pub flow: &'a Flow,
    pub device: &'a Device,
    /// Staging buffers on the host.
    pub staging: usize,
    /// Result buffers on the host.
    pub results: usize,
    /// Result buffers on the device.
    pub kept: usize,
    /// The memory that builds at the same time leave each other.
    pub left: &'a LeftMemory,
    /// The memory that this build has taken from `left`: bytes of the device and of the host.
    pub taken: Cell<[u64; 2]>,
}

/// The memory that builds at the same time leave each other. For each device and for the host it is the memory that was
/// free before the first of them allocated, less the needs of these builds. Weights that several builds on one device
/// will share are counted for each of them.
#[derive(Default)]
pub(super) struct LeftMemory(Mutex<HashMap<String, u64>>);

/// The name of the host in the map of devices.
const HOST: &str = "";

impl LeftMemory {
    /// Takes `needed` bytes for a build on `device` and gives back the `before` bytes that it took earlier. If there is
    /// too little, the error has the bytes that are left. `free` is the memory that is free now.
    fn take(&self, device: &str, needed: [u64; 2], before: [u64; 2], free: [u64; 2]) -> Result<(), [u64; 2]> {
        let mut all = lock(&self.0);
        let places = [device, HOST];
        let left = [0, 1].map(|kind| *all.entry(places[kind].to_owned()).or_insert(free[kind]) + before[kind]);
        if (0..2).any(|kind| needed[kind] > left[kind]) {
            return Err(left);
        }
        all.extend((0..2).map(|kind| (places[kind].to_owned(), left[kind] - needed[kind])));
        Ok(())
    }
}

/// The two kinds of memory that a budget counts.
const KINDS: [&str; 2] = [DEVICE_MEMORY, HOST_MEMORY];

impl Budget<'_> {
    /// The plans of each model. Refuses the build if it needs more memory than is free, or than builds at the same time
    /// leave; the error has the largest batch that fits.
    pub fn plans(&self) -> Result<Vec<Vec<Plan>>, Error> {
        let plans = self.flow.plans(self.flow.sizes())?;
        let needed = self.needed(self.flow.sizes(), &plans)?;
        let device = &self.device.info().target;
        match self.left.take(device, needed, self.taken.get(), self.free()?) {
            Ok(()) => {
                self.taken.set(needed);
                Ok(plans)
            }
            Err(left) => Err(self.short(needed, left).expect("something is short")),
        }
    }

    /// Completes the error of a build that ran out of memory although it was checked: another program may have
    /// allocated memory since. The failed build has freed its own.
    pub fn explain(&self, error: Error) -> Error {
        let Error::OutOfMemory { .. } = error else { return error };
        let short = self.free().ok().and_then(|free| self.short(self.taken.get(), free));
        short.unwrap_or(error)
    }

    /// The bytes that are free now on the device and on the host.
    fn free(&self) -> Result<[u64; 2], Error> {
        Ok([self.device.free_bytes(KINDS[0])?, self.device.free_bytes(KINDS[1])?])
    }

    /// The error of a build that needs more memory than is free; `None` if there is enough.
    fn short(&self, needed: [u64; 2], free: [u64; 2]) -> Option<Error> {
        let short = (0..KINDS.len()).filter(|&kind| needed[kind] > free[kind]);
        let short = short.max_by_key(|&kind| needed[kind] - free[kind])?;
        Some(Error::OutOfMemory {
            device: self.device.info().target.clone(),
            what: KINDS[short].into(),
            needed_bytes: needed[short],
            free_bytes: free[short],
            fitting_batch: Some(self.fitting(free)),
        })
    }

    /// Bytes that a build with these sizes and plans takes.
    fn needed(&self, sizes: &[Bucket], plans: &[Vec<Plan>]) -> Result<[u64; 2], Error> {
        let programs = self.flow.needs(self.device, sizes, plans)?;
        let [input, output] = self.flow.rows().with_sizes(sizes).bytes();
        let rows = |buffers: usize, bytes: u64| (buffers as u64).saturating_mul(bytes);
        let device = programs.device.saturating_add(rows(self.kept, output));
        let ring = rows(self.staging, input).saturating_add(rows(self.results, output));
        // The memory that only the build of the programs needs is freed before the ring is allocated.
        let mut host = programs.host.saturating_add(ring.max(programs.passing));
        if self.device.info().memory_bytes == 0 {
            host = host.saturating_add(device); // which is the host's
        }
        Ok([device, host])
    }

    /// Bytes that a build with these sizes takes, which are planned for this.
    fn needed_for(&self, sizes: &[Bucket]) -> Result<[u64; 2], Error> {
        self.needed(sizes, &self.flow.plans(sizes)?)
    }

    /// The largest batch whose build fits into the free memory; 0 if none does.
    fn fitting(&self, free: [u64; 2]) -> usize {
        let fits = |batch: usize| {
            let capped: Vec<Bucket> = self.flow.sizes().iter().map(|bucket| bucket.capped(batch)).collect();
            let needed = self.needed_for(&capped);
            needed.is_ok_and(|needed| needed[0] <= free[0] && needed[1] <= free[1])
        };
        let largest = self.flow.sizes().iter().map(Bucket::most).max().expect("a build has a size");
        let (mut most, mut too_large) = (0, largest);
        while too_large - most > 1 {
            let middle = most.midpoint(too_large);
            if fits(middle) { most = middle } else { too_large = middle }
        }
        most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Engine, EngineBuilder};
    use crate::exec::Hardware;
    use crate::graph::{GraphBuilder, Window};
    use crate::model::{Model, Preprocessing, Weights};
    use crate::tensor::{OutputKind, Shape, Size};

    /// A model of one convolution of square images.
    fn model(side: usize) -> Model {
        let shape = Shape::new(side, side, 3);
        let mut graph = GraphBuilder::new();
        let image = graph.image("image", shape);
        let x = graph.conv2d("conv", image, 8, Window::square(3, 2, 1));
        let x = graph.global_avg_pool("pool", x);
        let weights = Weights::from_tensors([("conv.weight", vec![8, 3, 3, 3], vec![0.5; 8 * 27])]).unwrap();
        graph.output("y", x);
        Model::new(graph.finish().unwrap(), weights, Preprocessing::new(shape), Vec::new()).unwrap()
    }

    fn builder<'a>(model: &'a Model, device: &Device) -> EngineBuilder<'a> {
        Engine::builder(model).on(device).output(OutputKind::Features)
    }

    /// A budget with these numbers of buffers: staging, results, and results on the device.
    fn budget<'a>(flow: &'a Flow, device: &'a Device, buffers: [usize; 3], left: &'a LeftMemory) -> Budget<'a> {
        let [staging, results, kept] = buffers;
        Budget { flow, device, staging, results, kept, left, taken: Cell::default() }
    }

    /// The device has memory for one and a half builds. The first build plans again, as after tuning.
    #[test]
    fn builds_at_the_same_time_share_what_is_free() {
        let (model, device) = (model(28), Device::cpu(2));
        let builder = builder(&model, &device).batch_sizes(&[64]);
        let flow = Flow::new(&builder, builder.build_spec(Hardware::of(&device)).unwrap()).unwrap();
        let left = LeftMemory::default();
        let [first, second] = [(); 2].map(|()| budget(&flow, &device, [2, 3, 0], &left));
        let [needed, _] = first.needed_for(flow.sizes()).unwrap();
        device.limit_memory(needed * 3 / 2);
        assert!(first.plans().is_ok() && first.plans().is_ok());
        match second.plans().map(drop) {
            Err(Error::OutOfMemory { what, needed_bytes, free_bytes, fitting_batch: Some(fitting), .. }) => {
                assert_eq!((&what[..], needed_bytes, free_bytes), (DEVICE_MEMORY, needed, needed * 3 / 2 - needed));
                assert!((1..64).contains(&fitting), "{fitting}");
            }
            other => panic!("{other:?}"),
        }
        assert!(first.plans().is_ok());
        drop(builder.clone().build().unwrap()); // by itself
        let pair = builder.build_on(&[device.clone(), device.clone()]).map(drop);
        assert!(matches!(pair, Err(Error::OutOfMemory { .. })), "{pair:?}");
        assert_eq!(device.memory_use(), crate::device::MemoryUse::default());
    }

    #[test]
    fn what_no_machine_has_is_refused_before_it_is_touched() {
        let (model, device) = (model(1 << 16), Device::cpu(2));
        match builder(&model, &device).staging(1 << 16).results(1).build() {
            Err(Error::OutOfMemory { what, needed_bytes, free_bytes, fitting_batch: Some(0), .. }) => {
                assert!(what == HOST_MEMORY && needed_bytes > free_bytes && needed_bytes > 8 << 48, "{needed_bytes}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(device.memory_use(), crate::device::MemoryUse::default());
    }

    #[test]
    fn the_batch_that_is_said_to_fit_does_and_one_more_does_not() {
        const STAGING: usize = 1 << 16;
        let (model, device) = (model(28), Device::cpu(2));
        let builder = builder(&model, &device).staging(STAGING).results(1).batch(1 << 20);
        let error = builder.clone().build().unwrap_err();
        let Error::OutOfMemory { free_bytes, fitting_batch: Some(fitting), .. } = error else { panic!("{error}") };
        let spec = builder.build_spec(Hardware::of(&device)).unwrap();
        let flow = Flow::new(&builder, spec).unwrap();
        let left = LeftMemory::default();
        let budget = budget(&flow, &device, [STAGING, 1, 0], &left);
        let needed = |batch| budget.needed_for(&[Bucket::of(vec![batch])]).unwrap()[1];
        assert!(needed(fitting) <= free_bytes && free_bytes < needed(fitting + 1), "{fitting}: {error}");
    }

    /// A build holds exactly the memory that its budget has counted.
    #[test]
    fn what_a_build_holds_was_counted() {
        let device = Device::cpu(1);
        let (model, other) = (model(28), model(28));
        let average = builder(&model, &device).beside(&other).average();
        for builder in [builder(&model, &device), average, builder(&model, &device).device_results(true)] {
            let builder = builder.staging(2).results(3).slots(2).batch_sizes(&[1, 5]);
            let flow = Flow::new(&builder, builder.build_spec(Hardware::of(&device)).unwrap()).unwrap();
            let kept = if builder.options.device_results { 3 } else { 0 };
            let left = LeftMemory::default();
            let budget = budget(&flow, &device, [2, 3, kept], &left);
            let [of_device, of_host] = budget.needed_for(&[Bucket::of(vec![1, 5])]).unwrap();
            let engine = builder.clone().build().unwrap();
            let held = device.memory_use();
            assert_eq!(held.device_bytes, of_device);
            assert!(held.device_bytes + held.page_locked_bytes < of_host, "weights and arenas are not page-locked");
            drop(engine);
        }
    }

    /// For a network of images, weights, arenas and rows are those of the largest size.
    #[test]
    fn what_sizes_of_images_share_is_counted_once() {
        let (device, model) = (Device::cpu(2), Model::open("weights/convnet28").unwrap());
        let size = |side: usize| Size::new(2).dim("height", side).dim("width", side);
        let needed = |sizes: &[Size]| {
            let builder = Engine::builder(&model).on(&device).sizes(sizes);
            let flow = Flow::new(&builder, builder.build_spec(Hardware::of(&device)).unwrap()).unwrap();
            budget(&flow, &device, [2, 3, 0], &LeftMemory::default()).needed_for(flow.sizes()).unwrap()
        };
        let (all, largest) = (needed(&[size(20), size(28), size(12)]), needed(&[size(28)]));
        assert_eq!(all, largest);
        let engine = Engine::builder(&model).on(&device).sizes(&[size(20)]).build().unwrap();
        let weights: u64 = engine.plans()[0].steps.iter().map(|step| step.weight_bytes).sum();
        assert!(needed(&[size(28)])[1] + weights <= largest[1], "another engine's weights are shared");
    }
}
