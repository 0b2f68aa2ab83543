//! ConvNeXt: stages of layers with a depthwise convolution, a norm and two products.

use super::block::{Activation, Block};
use super::encoder::Encoder;
use super::ends::Ends;
use super::options::Embedding;
use super::pixels::Pixels;
use crate::error::Error;
use crate::graph::{Conv, Op, ValueId, Window};

pub(super) struct ConvNext {
    pub pixels: Pixels,
    pub patch: usize,
    /// The channels and the number of layers of each stage.
    pub stages: Vec<(usize, usize)>,
    pub names: &'static Names,
    /// The beginning of all tensors' names.
    pub prefix: String,
    pub activation: Activation,
    /// Whether the products of layers are stored as filters of one pixel.
    pub has_filters: bool,
    pub ends: Ends,
}

/// The names of the tensors.
pub(super) struct Names {
    /// The product of patches and the norm that follows.
    pub stem: [&'static str; 2],
    /// The text before a stage's number, and the text between it and a layer's number.
    pub stages: &'static str,
    pub layers: &'static str,
    /// The norm and the product before a stage.
    pub downsample: [&'static str; 2],
    /// The convolution, the norm and both products of a layer.
    pub layer: [&'static str; 4],
    /// The factors of the values that a layer adds.
    pub scale: &'static str,
}

/// The names of the library `transformers`.
pub(super) const NAMES: Names = Names {
    stem: ["embeddings.patch_embeddings", "embeddings.layernorm"],
    stages: "encoder.stages.",
    layers: "layers.",
    downsample: ["downsampling_layer.0", "downsampling_layer.1"],
    layer: ["dwconv", "layernorm", "pwconv1", "pwconv2"],
    scale: "layer_scale_parameter",
};

/// The names of timm.
pub(super) const TIMM: Names = Names {
    stem: ["stem.0", "stem.1"],
    stages: "stages.",
    layers: "blocks.",
    downsample: ["downsample.0", "downsample.1"],
    layer: ["conv_dw", "norm", "mlp.fc1", "mlp.fc2"],
    scale: "gamma",
};

/// The number that every norm except the last adds to the variance.
const EPS: f64 = 1e-6;
/// The number of pixels along each side of the window of a layer's convolution.
const TAPS: usize = 7;

impl Encoder for ConvNext {
    fn block(&self, rows: usize) -> Block {
        let mut block = Block::default();
        let x = self.pixels.normalized(&mut block, rows, self.patch);
        let name = |part: &str| format!("{}{part}", self.prefix);
        let [filter, norm] = self.names.stem.map(name);
        let mut x = reduced(&mut block, &filter, x, self.stages[0].0, self.patch);
        x = block.g.layer_norm(&norm, x, EPS);
        for (index, &(channels, layers)) in self.stages.iter().enumerate() {
            let at = |part: &str| format!("{}{index}.{part}", self.layers());
            if index > 0 {
                let [norm, filter] = self.names.downsample.map(at);
                let y = block.g.layer_norm(&norm, x, EPS);
                x = reduced(&mut block, &filter, y, channels, 2);
            }
            x = (0..layers)
                .fold(x, |x, layer| self.layer(&mut block, &at(&format!("{}{layer}", self.names.layers)), x));
        }
        let [.., height, wide, channels] = block.g.value(x).dims[..] else { return block }; // after another error
        let x = block.g.node("tokens", Op::Reshape(vec![rows, height * wide, channels]), &[x]);
        self.ends.pool(&mut block, x);
        block
    }

    fn check(&self, asked: &Embedding) -> Result<(), Error> {
        self.ends.check(false)?;
        self.pixels.check(asked, self.grain(), "last pixels")
    }

    fn layers(&self) -> String {
        format!("{}{}", self.prefix, self.names.stages)
    }

    fn pixels(&mut self) -> Option<&mut Pixels> {
        Some(&mut self.pixels)
    }
}

impl ConvNext {
    /// The number of image pixels along each side of a pixel of the last stage.
    fn grain(&self) -> usize {
        self.patch << (self.stages.len() - 1)
    }

    fn layer(&self, block: &mut Block, at: &str, x: ValueId) -> ValueId {
        let channels = block.width(x);
        let [conv, norm, fc1, fc2] = self.names.layer.map(|part| format!("{at}.{part}"));
        let filter = block.weight(&format!("{conv}.weight"), &[channels, 1, TAPS, TAPS]);
        let bias = block.weight(&format!("{conv}.bias"), &[channels]);
        let depthwise = Conv { window: Window::all(2, TAPS, 1, TAPS / 2), groups: channels };
        let y = block.g.node(&conv, Op::Conv(depthwise), &[x, filter, bias]);
        let y = block.g.layer_norm(&norm, y, EPS);
        let y = self.product(block, &fc1, y, 4 * channels);
        let y = block.g.map(&format!("{at}.activation"), self.activation.expr(), &[y]);
        let y = self.product(block, &fc2, y, channels);
        block.sum(&format!("{at}.sum"), x, y, Some(&format!("{at}.{}", self.names.scale)))
    }

    /// A product of each pixel's channels with a matrix.
    fn product(&self, block: &mut Block, name: &str, x: ValueId, channels: usize) -> ValueId {
        if self.has_filters { reduced(block, name, x, channels, 1) } else { block.linear(name, x, channels, true) }
    }
}

/// A convolution whose windows lie side by side without overlap.
fn reduced(block: &mut Block, name: &str, x: ValueId, channels: usize, side: usize) -> ValueId {
    let read = block.width(x);
    let filter = block.weight(&format!("{name}.weight"), &[channels, read, side, side]);
    let bias = block.weight(&format!("{name}.bias"), &[channels]);
    let conv = Conv { window: Window::all(2, side, side, 0), groups: 1 };
    block.g.node(name, Op::Conv(conv), &[x, filter, bias])
}
