//! Networks made for `bench overlap`: features as large as the input, and an adjustable amount of compute.

use anyhow::{Result, ensure};
use trefoil::graph::{GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Device, Engine, InputFormat, OutputKind, Shape, Stage};

use super::args::Regime;
use crate::random::Random;
use crate::setup;

/// The layers that are stacked: 1x1 convolutions with as many channels out as in, each added to its input. They are
/// bound by memory: a GPU whose power limit lowers its clocks would run compute-bound layers faster in a ring that
/// leaves it idle now and then than alone.
#[derive(Clone, Copy, Debug)]
pub struct Layers {
    shape: Shape,
}

/// Slots and buffers of the ring around a network.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    pub slots: usize,
    pub staging: usize,
    pub results: usize,
}

/// The largest number of convolutions.
const MOST_DEPTH: usize = 1_000;
/// Depths at which compute is measured first.
const PROBES: [usize; 2] = [2, 12];
/// How often a depth is corrected after it is measured.
const CORRECTIONS: usize = 3;
/// A depth is not corrected where compute is off by no more than this part.
const CLOSE: f64 = 0.02;

impl Layers {
    /// Layers for a device: rows of 588 KiB, like 224 x 224 RGB images in f32; on the CPU each layer has few
    /// operations.
    pub fn of(device: &Device) -> Self {
        let shape = if setup::is_cpu(device) { Shape::new(112, 168, 8) } else { Shape::new(48, 49, 64) };
        Self { shape }
    }

    /// A network of `depth` convolutions. Each adds a little to its input, so that at any depth the result stays within
    /// range and still depends on the input.
    fn model(self, depth: usize) -> Result<Model> {
        let channels = self.shape.channels;
        let scale = (0.003 * 3.0 / channels as f32).sqrt();
        let mut random = Random::new(depth as u64);
        let mut graph = GraphBuilder::new();
        let mut x = graph.image("image", self.shape);
        let mut tensors = Vec::with_capacity(depth);
        for layer in 0..depth {
            let name = format!("conv{layer}");
            let y = graph.conv2d(&name, x, channels, Window::square(1, 1, 0));
            x = graph.add(&format!("add{layer}"), y, x);
            let filter = (0..channels * channels).map(|_| scale * random.signed()).collect();
            tensors.push((format!("{name}.weight"), vec![channels, channels, 1, 1], filter));
        }
        let weights = Weights::from_tensors(tensors)?;
        graph.output("y", x);
        let model = Model::new(graph.finish()?, weights, Preprocessing::new(self.shape), vec![])?;
        Ok(model.with_name(&format!("{depth} convolutions 1x1 on {}", self.shape)))
    }

    /// An engine of a network of `depth` convolutions.
    pub fn engine(self, device: &Device, depth: usize, batch: usize, buffers: Buffers) -> Result<Engine> {
        let model = self.model(depth)?;
        let Buffers { slots, staging, results } = buffers;
        let builder = Engine::builder(&model).on(device).batch_sizes(&[batch]);
        let builder = builder.input(InputFormat::F32Nchw).output(OutputKind::Features);
        let engine = builder.slots(slots).staging(staging).results(results).build()?;
        let (input, output) = (engine.input(), engine.output());
        ensure!(input.row_pitch == output.row_pitch, "internal error, please report it: {input:?} but {output:?}");
        Ok(engine)
    }

    /// Describes the layers in words.
    pub fn describe(self) -> String {
        format!("1x1 convolutions on {}, f32 in and out", self.shape)
    }
}

impl Regime {
    /// The time of compute, in times of a copy.
    pub fn copies(self) -> f64 {
        match self {
            Self::ComputeBound => 4.0,
            Self::CopyBound => 0.25,
            Self::Balanced => 1.0,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::ComputeBound => "compute-bound",
            Self::CopyBound => "copy-bound",
            Self::Balanced => "balanced",
        }
    }
}

/// Finds the depth at which compute takes a given multiple of a copy's time, by measurement.
pub struct Calibration<'a> {
    device: &'a Device,
    layers: Layers,
    batch: usize,
    batches: usize,
    /// Measured depths with seconds of compute, in ascending order.
    known: Vec<(usize, f64)>,
    /// Seconds of the slower copy while the other one runs: the least value seen.
    copy: f64,
}

impl<'a> Calibration<'a> {
    /// Measures copies, and compute at two depths.
    pub fn new(device: &'a Device, layers: Layers, batch: usize, batches: usize) -> Result<Self> {
        let mut this = Self { device, layers, batch, batches, known: Vec::new(), copy: f64::INFINITY };
        PROBES.into_iter().try_for_each(|depth| this.measure(depth).map(drop))?;
        Ok(this)
    }

    /// The number of convolutions that comes nearest to a regime.
    pub fn depth(&mut self, regime: Regime) -> Result<usize> {
        let mut depth = self.guess(regime.copies() * self.copy);
        for _ in 0..CORRECTIONS {
            if self.known.iter().any(|known| known.0 == depth) {
                break;
            }
            let compute = self.measure(depth)?;
            let wanted = regime.copies() * self.copy; // the copies were measured once more
            if (compute / wanted - 1.0).abs() <= CLOSE {
                break;
            }
            depth = self.guess(wanted);
        }
        Ok(depth)
    }

    fn measure(&mut self, depth: usize) -> Result<f64> {
        let buffers = Buffers { slots: 1, staging: 1, results: 1 };
        let engine = self.layers.engine(self.device, depth, self.batch, buffers)?;
        let time = |stage| engine.measure_loaded(stage, self.batch, self.batches);
        self.copy = self.copy.min(time(Stage::CopyIn)?.max(time(Stage::CopyOut)?));
        // The lesser of two, because a device that was idle before may still be slow in the first.
        let compute = time(Stage::Compute)?.min(time(Stage::Compute)?);
        self.known.push((depth, compute));
        self.known.sort_by_key(|known| known.0);
        Ok(compute)
    }

    /// The depth for a time of compute, on the line through the two measured depths that are nearest in time.
    fn guess(&self, wanted: f64) -> usize {
        let mut near = self.known.clone();
        near.sort_by(|a, b| (a.1 - wanted).abs().total_cmp(&(b.1 - wanted).abs()));
        let [(depth, seconds), (other, other_seconds)] = [near[0], near[1]];
        let slope = (seconds - other_seconds) / (depth as f64 - other as f64);
        if slope.is_nan() || slope <= 0.0 {
            return depth; // noise: a deeper network was not slower
        }
        let guess = depth as f64 + (wanted - seconds) / slope;
        guess.round().clamp(1.0, MOST_DEPTH as f64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_lie_on_the_line() {
        let device = Device::cpu(1);
        let known = vec![(2, 3.0), (12, 8.0)];
        let calibration =
            Calibration { device: &device, layers: Layers::of(&device), batch: 1, batches: 1, known, copy: 1.0 };
        assert_eq!([8.0, 10.0, 3.0, 0.1, 1e9].map(|wanted| calibration.guess(wanted)), [12, 16, 2, 1, MOST_DEPTH]);
    }
}
