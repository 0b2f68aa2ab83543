//! The time that a step cannot be faster than: its work over what the hardware does in a second.

use super::{HaloTile, Kernel, Limits, Plan, StepOp};

/// What a GPU does in a second.
///
/// ```
/// use trefoil::plan::{Limits, Rates};
/// let rates = Rates::of(&Limits::h200()).expect("an H200 is known");
/// assert!(rates.flops / rates.memory_bytes > 100.0); // operations for each byte, or memory is what takes the time
/// assert_eq!(Rates::of(&Limits::cpu(8)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Clocks of the multiprocessors.
    pub clock_hz: f64,
    /// Operations of the tensor cores on halves with f32 sums.
    pub flops: f64,
    /// Bytes to and from device memory.
    pub memory_bytes: f64,
    /// Bytes from the L2 cache to the multiprocessors.
    pub cache_bytes: f64,
    /// Where the figures are from.
    pub source: &'static str,
}

impl Rates {
    /// Those of a GPU that is known by its name.
    pub fn of(limits: &Limits) -> Option<Self> {
        let known = [("H200", Self::H200), ("A100", Self::A100), ("RTX 4090", Self::RTX4090)];
        known.into_iter().find(|(name, _)| limits.name.contains(name)).map(|(_, rates)| rates)
    }

    const H200: Self =
        Self { clock_hz: 1.83e9, flops: 780e12, memory_bytes: 4.35e12, cache_bytes: 7.8e12, source: "measured" };
    const A100: Self =
        Self { clock_hz: 1.41e9, flops: 312e12, memory_bytes: 2.04e12, cache_bytes: 7.2e12, source: "data sheet" };
    const RTX4090: Self =
        Self { clock_hz: 2.52e9, flops: 165e12, memory_bytes: 1.01e12, cache_bytes: 5.0e12, source: "data sheet" };
}

/// What a step takes at least, in seconds. The first three go on at the same time.
///
/// ```
/// use trefoil::plan::Floor;
/// let floor = Floor { tensor: 3e-6, memory: 8e-6, cache: 5e-6, launch: 2.5e-6 };
/// assert_eq!((floor.bound(), floor.seconds()), ("memory", 8e-6 + 2.5e-6));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// Its products on the tensor cores.
    pub tensor: f64,
    /// Its inputs, residual included, its weights and its output, each through device memory once.
    pub memory: f64,
    /// What a convolution's blocks read from the L2 cache: each pixel once for every tap and 256 output channels, the
    /// most that blocks share, or what the kernel reads that needs it once for all taps; and the filters once for every
    /// multiprocessor.
    pub cache: f64,
    /// Its launch.
    pub launch: f64,
}

/// What a launch is allowed, in seconds.
const LAUNCH: f64 = 2.5e-6;

/// Output channels and output pixels that are computed from one copy of what they share.
const SHARED: usize = 256;

impl Floor {
    /// All of it.
    pub fn seconds(&self) -> f64 {
        self.tensor.max(self.memory).max(self.cache) + self.launch
    }

    /// Which of the three is the largest: `"tensor"`, `"memory"` or `"cache"`.
    pub fn bound(&self) -> &'static str {
        let bounds = [("memory", self.memory), ("tensor", self.tensor), ("cache", self.cache)];
        bounds.into_iter().fold(bounds[0], |most, next| if next.1 > most.1 { next } else { most }).0
    }
}

impl Plan {
    /// The floor of a step. A step that computes several nodes has one floor, and what lies between them does not count.
    ///
    /// ```
    /// use trefoil::plan::{Choices, Limits, Rates, Request, plan};
    /// # use trefoil::{InputFormat, OutputKind, model::Model};
    /// # let model = Model::open("weights/efficientnet-lite0")?;
    /// # let (preprocessing, output) = (model.preprocessing(), OutputKind::Logits);
    /// let (limits, choices) = (Limits::h200(), Choices::new());
    /// let request =
    ///     Request { limits: &limits, batch: 32, input: InputFormat::U8Nhwc, preprocessing, output, choices: &choices };
    /// let plan = plan(model.graph(), &request)?;
    /// let rates = Rates::of(&limits).expect("an H200 is known");
    /// let floor: f64 = (0..plan.steps.len()).map(|step| plan.floor(step, &rates).seconds()).sum();
    /// assert!(floor > 1e-4 && floor < 1e-3, "{floor}");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such step.
    pub fn floor(&self, step: usize, rates: &Rates) -> Floor {
        let step = &self.steps[step];
        let products = match &step.op {
            // Not what else it does with bytes and windows.
            StepOp::Stem(stem) => {
                let terms =
                    stem.conv.window.size.iter().product::<usize>() * self.tensors[step.inputs[0].0].shape.channels;
                (2 * self.batch * terms * stem.conv_shape.elems()) as u64
            }
            StepOp::ExpandDepthwise { .. } => {
                let [x, y] = [step.inputs[0], step.output].map(|id| self.tensors[id.0].shape);
                (2 * self.batch * x.elems() * y.channels) as u64
            }
            // Not its sums and exponentials.
            StepOp::Tail(tail) => {
                let channels = self.tensors[step.inputs[0].0].shape.channels;
                (2 * self.batch * channels * tail.linear.out_features) as u64
            }
            StepOp::Conv(_) | StepOp::ConvSum { .. } | StepOp::Chain { .. } | StepOp::Linear(_) => step.flops,
            _ => 0,
        };
        Floor {
            tensor: products as f64 / rates.flops,
            memory: step.bytes as f64 / rates.memory_bytes,
            cache: self.cache_bytes(step) as f64 / rates.cache_bytes,
            launch: LAUNCH,
        }
    }

    /// See [`Floor::cache`].
    fn cache_bytes(&self, step: &super::Step) -> u64 {
        let elem_bytes = self.limits.family.dtype().bytes();
        let of = |conv: &super::sm90::ConvShape| {
            let pixels = conv.batch * conv.output.pixels();
            let window = conv.window.size.iter().product::<usize>() * conv.input.channels * elem_bytes;
            let filters = window * conv.output.channels * self.limits.units.min(pixels.div_ceil(SHARED));
            (pixels * window * conv.output.channels.div_ceil(SHARED) + filters) as u64
        };
        let convs = self.convs(step);
        if let (Kernel::Sm90Halo, Some(tile)) = (step.kernel, HaloTile::of(&convs[0], &self.limits)) {
            return tile.cache_bytes(&convs[0], &self.limits) as u64;
        }
        // What is between the two convolutions of a chain stays on the multiprocessor.
        let next = step.also.map_or(0, |z| {
            let pixels = self.batch * convs[0].output.pixels();
            let filter = convs[0].output.channels * self.stored(z).channels * elem_bytes;
            (filter * self.limits.units.min(pixels.div_ceil(SHARED))) as u64
        });
        convs.iter().map(of).sum::<u64>() + next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GraphBuilder, Preprocessing, Window};
    use crate::plan::{Choices, Request, plan};
    use crate::tensor::{InputFormat, OutputKind, Shape};

    /// 3x3 with 64 channels at 56x56, batch 128: what an H200 reads from its L2 cache takes longer than its products.
    #[test]
    fn the_floor_of_a_convolution_is_what_its_parts_say() {
        let mut g = GraphBuilder::new(Shape::new(56, 56, 64));
        let conv = g.conv2d("conv", g.input(), 64, Window::square(3, 1, 1));
        let graph = g.finish(conv).unwrap();
        let limits = Limits::h200();
        let request = Request {
            limits: &limits,
            batch: 128,
            input: InputFormat::F16Nhwc,
            preprocessing: &Preprocessing::new(graph.input),
            output: OutputKind::Features,
            choices: &Choices::new(),
        };
        let plan = plan(&graph, &request).unwrap();
        let rates = Rates::of(&limits).unwrap();
        let step = plan.steps.iter().position(|step| step.name == "conv").unwrap();
        let floor = plan.floor(step, &rates);
        let pixels = 128.0 * 56.0 * 56.0;
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-3;
        assert!(near(floor.tensor, 2.0 * pixels * 64.0 * 576.0 / 780e12), "{floor:?}");
        let weights = 64.0 * (576.0 * 2.0 + 4.0);
        assert!(near(floor.memory, (2.0 * pixels * 128.0 + weights) / 4.35e12), "{floor:?}");
        assert!(near(floor.cache, (pixels * 1152.0 + 132.0 * 64.0 * 1152.0) / 7.8e12), "{floor:?}");
        assert_eq!((floor.bound(), floor.seconds()), ("cache", floor.cache + 2.5e-6));
        // Rows are copied, not multiplied.
        let last = plan.floor(plan.steps.len() - 1, &rates);
        assert_eq!((last.tensor, last.cache, last.bound()), (0.0, 0.0, "memory"));
    }

    #[test]
    fn only_known_gpus_have_rates() {
        assert!([Limits::h200(), Limits::a100(), Limits::rtx4090()].iter().all(|limits| Rates::of(limits).is_some()));
        assert_eq!(Rates::of(&Limits::gpu("NVIDIA L4", [8, 9], 58, 101_376)), None);
        assert_eq!(Rates::of(&Limits::cpu(8)), None);
    }
}
