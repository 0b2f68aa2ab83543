//! Rooflines: the least time of a step, from its work and the rates of the hardware.

use super::{Limits, Plan, kernels};

/// The rates of a GPU.
///
/// ```
/// use trefoil::plan::{Limits, Rates};
/// let rates = Rates::of(&Limits::h200()).expect("an H200 is known");
/// assert!(rates.flops / rates.memory_bytes > 100.0); // operations for each byte, or memory is what takes the time
/// assert_eq!(Rates::of(&Limits::cpu(8)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Clock frequency of the multiprocessors, in Hz.
    pub clock_hz: f64,
    /// Floating-point operations a second of the tensor cores, on f16 with f32 sums.
    pub flops: f64,
    /// Bytes a second to and from device memory.
    pub memory_bytes: f64,
    /// Bytes a second from the L2 cache to the multiprocessors; `None` if unknown, and then it is no bound.
    pub cache_bytes: Option<f64>,
    /// The source of the figures.
    pub source: &'static str,
}

impl Rates {
    /// The rates of a GPU, found by its exact name and number of multiprocessors: a part of a GPU, or one with a
    /// similar name, is another GPU.
    pub fn of(limits: &Limits) -> Option<Self> {
        let same = |(name, units, _): &&(&str, usize, Self)| limits.name == *name && limits.units == *units;
        KNOWN.iter().find(same).map(|(_, _, rates)| *rates)
    }

    /// Multiply-adds of halves that the tensor cores of one multiprocessor do in a clock, if the GPU has `units` of
    /// them.
    pub(super) fn products_a_clock(&self, units: usize) -> f64 {
        self.flops / (2.0 * self.clock_hz * units.max(1) as f64)
    }

    /// Rates from a data sheet. `tflops` is the rate without sparsity, with f32 sums, and `clock_mhz` the clock at
    /// which it is reached.
    const fn new(clock_mhz: f64, tflops: f64, memory_gb: f64, source: &'static str) -> Self {
        let [clock_hz, flops, memory_bytes] = [clock_mhz * 1e6, tflops * 1e12, memory_gb * 1e9];
        Self { clock_hz, flops, memory_bytes, cache_bytes: None, source }
    }

    const fn with_cache(self, terabytes: f64) -> Self {
        Self { cache_bytes: Some(terabytes * 1e12), ..self }
    }
}

const A100: &str = "NVIDIA's A100 data sheet and white paper";
const H100: &str = "NVIDIA's H100 data sheet";

/// The known GPUs: name, number of multiprocessors and rates.
const KNOWN: [(&str, usize, Rates); 12] = [
    ("NVIDIA H200", 132, Rates::new(1830.0, 780.0, 4350.0, "measured").with_cache(7.8)),
    ("NVIDIA A100-SXM4-80GB", 108, Rates::new(1410.0, 312.0, 2039.0, A100).with_cache(7.2)),
    ("NVIDIA A100-SXM4-40GB", 108, Rates::new(1410.0, 312.0, 1555.0, A100).with_cache(7.2)),
    ("NVIDIA A100 80GB PCIe", 108, Rates::new(1410.0, 312.0, 1935.0, A100).with_cache(7.2)),
    ("NVIDIA A100-PCIE-40GB", 108, Rates::new(1410.0, 312.0, 1555.0, A100).with_cache(7.2)),
    ("NVIDIA H100 80GB HBM3", 132, Rates::new(1830.0, 989.4, 3350.0, H100)),
    ("NVIDIA H100 PCIe", 114, Rates::new(1620.0, 756.5, 2000.0, H100)),
    ("NVIDIA B200", 148, Rates::new(1860.0, 2250.0, 8000.0, "NVIDIA's DGX B200 data sheet")),
    ("NVIDIA L4", 58, Rates::new(2040.0, 121.0, 300.0, "NVIDIA's L4 data sheet")),
    ("NVIDIA L40S", 142, Rates::new(2490.0, 362.0, 864.0, "NVIDIA's L40S data sheet")),
    ("NVIDIA GeForce RTX 4090", 128, Rates::new(2520.0, 165.2, 1008.0, "NVIDIA's Ada white paper")),
    ("NVIDIA GeForce RTX 5090", 170, Rates::new(2407.0, 209.5, 1792.0, "NVIDIA's RTX Blackwell white paper")),
];

/// The least time that a step can take, in seconds. Products, memory traffic and cache traffic run at the same time.
///
/// ```
/// use trefoil::plan::Roofline;
/// let roofline = Roofline { tensor: 3e-6, memory: 8e-6, cache: 5e-6, launch: 2.5e-6 };
/// assert_eq!((roofline.bound(), roofline.seconds()), ("memory", 8e-6 + 2.5e-6));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// The time of its products on the tensor cores.
    pub tensor: f64,
    /// The time to move its inputs, including the residual, its weights and its output through device memory, each
    /// once.
    pub memory: f64,
    /// The time of the reads of a convolution's thread blocks from the L2 cache: each pixel once for every tap and
    /// every 256 output channels, since blocks share reads of up to 256 output channels (or once for all taps, if the
    /// kernel reads it so), and the filters once for every multiprocessor. Zero if the cache's rate is not known.
    pub cache: f64,
    /// The time allowed for a launch, and for the exchanges of a recurrent layer, each of which waits for the one before.
    pub launch: f64,
}

/// The largest ratio of the tensor cores' rates for bytes and halves: above 2, as products of bytes take less power.
const BYTES: f64 = 2.4;

/// The time allowed for a launch, in seconds.
pub(super) const LAUNCH: f64 = 2.5e-6;
/// The time assumed, not measured, for what multiprocessors of a cluster send each other until they can read it, in
/// seconds.
const EXCHANGE: f64 = 0.4e-6;

impl Roofline {
    /// The roofline: the longest of the three times, plus the launch.
    pub fn seconds(&self) -> f64 {
        self.tensor.max(self.memory).max(self.cache) + self.launch
    }

    /// The name of the longest of the three times: `"tensor"`, `"memory"` or `"cache"`.
    pub fn bound(&self) -> &'static str {
        let bounds = [("memory", self.memory), ("tensor", self.tensor), ("cache", self.cache)];
        bounds.into_iter().fold(bounds[0], |most, next| if next.1 > most.1 { next } else { most }).0
    }
}

impl Plan {
    /// The roofline of a step. A step that computes several nodes has one roofline, and tensors between its nodes do
    /// not count.
    ///
    /// ```
    /// use trefoil::plan::{Choices, Limits, Rates, Request, plan};
    /// # use trefoil::{InputFormat, OutputKind, model::Model};
    /// # let model = Model::open("weights/efficientnet-lite0")?;
    /// # let (preprocessing, output) = (model.preprocessing()?, OutputKind::Logits);
    /// let (limits, choices) = (Limits::h200(), Choices::new());
    /// let request =
    ///     Request { limits: &limits, batch: 32, input: InputFormat::U8Nhwc, preprocessing, output, choices: &choices };
    /// let plan = plan(model.image_network()?, &request)?;
    /// let rates = Rates::of(&limits).expect("an H200 is known");
    /// let roofline: f64 = (0..plan.steps.len()).map(|step| plan.roofline(step, &rates).seconds()).sum();
    /// assert!(roofline > 1e-4 && roofline < 1e-3, "{roofline}");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such step.
    pub fn roofline(&self, step: usize, rates: &Rates) -> Roofline {
        let step = &self.steps[step];
        let work = self.work(step);
        let read = kernels::of(&work, step.kernel).map_or(0, |def| def.cache_bytes(&work, &self.limits));
        let rate = if work.op.is_of_bytes() { BYTES * rates.flops } else { rates.flops };
        Roofline {
            tensor: work.products() as f64 / rate,
            memory: step.bytes as f64 / rates.memory_bytes,
            cache: rates.cache_bytes.map_or(0.0, |rate| read as f64 / rate),
            launch: LAUNCH + EXCHANGE * step.op.exchanges() as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Window};
    use crate::model::Preprocessing;
    use crate::model::images::Network;
    use crate::plan::{Choices, Request, plan};
    use crate::tensor::{InputFormat, OutputKind, Shape};

    fn planned(graph: &Network, limits: &Limits, batch: usize, input: InputFormat, output: OutputKind) -> Plan {
        let (preprocessing, choices) = (&Preprocessing::new(graph.input), &Choices::new());
        plan(graph, &Request { limits, batch, input, preprocessing, output, choices }).unwrap()
    }

    /// A layer of 3x3 windows with 72 channels at 56x56, batch 128: an H200 takes longer to read from its L2 cache than
    /// to multiply, unless pixels are copied once for all taps.
    #[test]
    fn the_roofline_of_a_convolution_is_what_its_parts_say() {
        let limits = Limits::h200();
        let rates = Rates::of(&limits).unwrap();
        let of_channels = |channels: usize| {
            let mut g = GraphBuilder::new();
            let image = g.image("image", Shape::new(56, 56, channels));
            let conv = g.conv2d("conv", image, 64, Window::square(3, 1, 1));
            g.output("y", conv);
            let graph = Network::of(&g.finish().unwrap()).unwrap();
            let plan = planned(&graph, &limits, 128, InputFormat::F16Nhwc, OutputKind::Features);
            let step = plan.steps.iter().position(|step| step.name == "conv").unwrap();
            let roofline = plan.roofline(step, &rates);
            (plan, roofline)
        };
        let (plan, roofline) = of_channels(72);
        let pixels = 128.0 * 56.0 * 56.0;
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-3;
        assert!(near(roofline.tensor, 2.0 * pixels * 64.0 * 648.0 / 780e12), "{roofline:?}");
        let weights = 64.0 * (648.0 * 2.0 + 4.0);
        assert!(near(roofline.memory, (2.0 * pixels * 136.0 + weights) / 4.35e12), "{roofline:?}");
        assert!(near(roofline.cache, (pixels * 1296.0 + 132.0 * 64.0 * 1296.0) / 7.8e12), "{roofline:?}");
        assert_eq!((roofline.bound(), roofline.seconds()), ("cache", roofline.cache + 2.5e-6));
        let (_, once) = of_channels(64);
        assert!(once.cache < 0.2 * roofline.cache && once.bound() == "tensor", "{once:?}");
        // The step of the output rows copies, and multiplies nothing.
        let last = plan.roofline(plan.steps.len() - 1, &rates);
        assert_eq!((last.tensor, last.cache, last.bound()), (0.0, 0.0, "memory"));
    }

    #[test]
    fn only_known_gpus_have_rates() {
        let known = [
            Limits::a100(),
            Limits::h100(),
            Limits::h100_pcie(),
            Limits::h200(),
            Limits::b200(),
            Limits::l4(),
            Limits::l40s(),
            Limits::rtx4090(),
            Limits::rtx5090(),
        ];
        for limits in &known {
            let rates = Rates::of(limits).unwrap();
            // The data sheet's multiply-adds of a multiprocessor in a clock; for the H200 the measured ones.
            let products = match (limits.compute_capability, limits.name.contains("GeForce")) {
                ([8 | 12, _], true) => 256.0,
                ([8, 9], _) => 512.0,
                ([8, 0], _) => 1024.0,
                ([9, 0], _) if rates.source == "measured" => 1614.0,
                ([9, 0], _) => 2048.0,
                _ => 4096.0,
            };
            let found = rates.products_a_clock(limits.units);
            assert!((found / products - 1.0).abs() < 0.01, "{limits}: {found}");
        }
        assert_eq!(Rates::of(&Limits::cpu(8)), None);
        // A part of a GPU, or a GPU with a similar name, does not have the GPU's rates.
        let other = |name, capability, units| Rates::of(&Limits::gpu(name, capability, units, 101_376));
        assert_eq!(other("NVIDIA H200 MIG 1g.18gb", [9, 0], 16), None);
        assert_eq!(other("NVIDIA H200", [9, 0], 16), None);
        assert_eq!(other("NVIDIA GH200 480GB", [9, 0], 132), None);
        assert_eq!(other("NVIDIA GeForce RTX 4090 Laptop GPU", [8, 9], 76), None);
        assert_eq!(other("NVIDIA GeForce RTX 4090 D", [8, 9], 114), None);
        let [sxm, pcie] = ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB"].map(|name| other(name, [8, 0], 108));
        assert!(sxm.unwrap().memory_bytes > 1.2 * pcie.unwrap().memory_bytes);
    }

    /// If a GPU's cache rate is unknown, the cache does not bound the roofline.
    #[test]
    fn what_is_not_known_bounds_nothing() {
        let graph = Network::of(&crate::model::architecture("resnet18", 10, None).unwrap()).unwrap();
        let limits = Limits::l4();
        let plan = planned(&graph, &limits, 32, InputFormat::U8Nhwc, OutputKind::Logits);
        let rates = Rates::of(&limits).unwrap();
        assert_eq!(rates.cache_bytes, None);
        for step in 0..plan.steps.len() {
            let roofline = plan.roofline(step, &rates);
            assert!(
                roofline.cache == 0.0 && roofline.bound() != "cache" && roofline.seconds() > LAUNCH,
                "{roofline:?}"
            );
        }
    }
}
