//! The memory that a build needs, computed before the first allocation, and compared with the free memory.

use super::flow::Flow;
use crate::device::{DEVICE_MEMORY, Device, HOST_MEMORY};
use crate::error::Error;
use crate::plan::Plan;
use crate::tensor::Bucket;

/// A build, and the buffers of its ring.
pub(super) struct Budget<'a> {
    pub flow: &'a Flow<'a>,
    pub device: &'a Device,
    /// Staging buffers on the host.
    pub staging: usize,
    /// Result buffers on the host.
    pub results: usize,
    /// Result buffers on the device.
    pub kept: usize,
}

/// Of both figures that a budget has, what they are of.
const KINDS: [&str; 2] = [DEVICE_MEMORY, HOST_MEMORY];

impl Budget<'_> {
    /// The plans of each model. Refuses the build if by them it takes more than is free, and says which batch does not.
    pub fn plans(&self) -> Result<Vec<Vec<Plan>>, Error> {
        let plans = self.flow.plans(self.flow.sizes())?;
        let needed = self.needed(self.flow.sizes(), &plans)?;
        let free = [self.device.free_bytes(KINDS[0])?, self.device.free_bytes(KINDS[1])?];
        let short = (0..KINDS.len()).filter(|&kind| needed[kind] > free[kind]);
        let Some(short) = short.max_by_key(|&kind| needed[kind] - free[kind]) else { return Ok(plans) };
        Err(Error::OutOfMemory {
            device: self.device.info().target.clone(),
            what: KINDS[short].into(),
            needed_bytes: needed[short],
            free_bytes: free[short],
            fitting_batch: Some(self.fitting(free)),
        })
    }

    /// Completes the error of a build that ran out of memory all the same: others may have taken some since it was
    /// checked, and the failed build has given back what it had.
    pub fn explain(&self, error: Error) -> Error {
        match error {
            Error::OutOfMemory { .. } => self.plans().err().unwrap_or(error),
            other => other,
        }
    }

    /// Bytes that a build with these sizes and plans takes.
    fn needed(&self, sizes: &[Bucket], plans: &[Vec<Plan>]) -> Result<[u64; 2], Error> {
        let programs = self.flow.needs(sizes, plans)?;
        let [input, output] = self.flow.rows().with_sizes(sizes).bytes();
        let rows = |buffers: usize, bytes: u64| (buffers as u64).saturating_mul(bytes);
        let device = programs.device.saturating_add(rows(self.kept, output));
        let ring = rows(self.staging, input).saturating_add(rows(self.results, output));
        // What is there while the programs are built is gone when the ring is.
        let mut host = programs.host.saturating_add(ring.max(programs.passing));
        if self.device.info().memory_bytes == 0 {
            host = host.saturating_add(device); // which is the host's
        }
        Ok([device, host])
    }

    /// The same for sizes that are not planned yet.
    fn needed_for(&self, sizes: &[Bucket]) -> Result<[u64; 2], Error> {
        self.needed(sizes, &self.flow.plans(sizes)?)
    }

    /// The largest batch whose build fits into what is free; 0 if none does.
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
    use crate::graph::{GraphBuilder, Window};
    use crate::model::{Model, Preprocessing, Weights};
    use crate::tensor::{OutputKind, Shape, Size};

    /// One convolution of square images.
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
        let spec = builder.build_spec().unwrap();
        let flow = Flow::new(&builder, &device, spec).unwrap();
        let budget = Budget { flow: &flow, device: &device, staging: STAGING, results: 1, kept: 0 };
        let needed = |batch| budget.needed_for(&[Bucket::of(vec![batch])]).unwrap()[1];
        assert!(needed(fitting) <= free_bytes && free_bytes < needed(fitting + 1), "{fitting}: {error}");
    }

    /// What is said to be needed is what is held in the end.
    #[test]
    fn what_a_build_holds_was_counted() {
        let device = Device::cpu(1);
        let (model, other) = (model(28), model(28));
        let average = builder(&model, &device).beside(&other).average();
        for builder in [builder(&model, &device), average, builder(&model, &device).device_results(true)] {
            let builder = builder.staging(2).results(3).slots(2).batch_sizes(&[1, 5]);
            let flow = Flow::new(&builder, &device, builder.build_spec().unwrap()).unwrap();
            let kept = if builder.options.device_results { 3 } else { 0 };
            let budget = Budget { flow: &flow, device: &device, staging: 2, results: 3, kept };
            let [of_device, of_host] = budget.needed_for(&[Bucket::of(vec![1, 5])]).unwrap();
            let engine = builder.clone().build().unwrap();
            let held = device.memory_use();
            assert_eq!(held.device_bytes, of_device);
            assert!(held.device_bytes + held.page_locked_bytes < of_host, "weights and arenas are not page-locked");
            drop(engine);
        }
    }

    /// Of a network of images weights, arenas and rows are those of the largest size.
    #[test]
    fn what_sizes_of_images_share_is_counted_once() {
        let (device, model) = (Device::cpu(2), Model::open("weights/convnet28").unwrap());
        let size = |side: usize| Size::new(2).dim("height", side).dim("width", side);
        let needed = |sizes: &[Size]| {
            let builder = Engine::builder(&model).on(&device).sizes(sizes);
            let flow = Flow::new(&builder, &device, builder.build_spec().unwrap()).unwrap();
            Budget { flow: &flow, device: &device, staging: 2, results: 3, kept: 0 }.needed_for(flow.sizes()).unwrap()
        };
        let (all, largest) = (needed(&[size(20), size(28), size(12)]), needed(&[size(28)]));
        assert_eq!(all, largest);
        let engine = Engine::builder(&model).on(&device).sizes(&[size(20)]).build().unwrap();
        let weights: u64 = engine.plans()[0].steps.iter().map(|step| step.weight_bytes).sum();
        assert!(needed(&[size(28)])[1] + weights <= largest[1], "another engine's weights are shared");
    }
}
