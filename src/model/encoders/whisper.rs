//! Whisper's encoder: two convolutions of a spectrogram over time, and layers that read their result.

use super::block::{Activation, Block, Seen, Stack};
use super::encoder::Encoder;
use super::families::prefix;
use super::names;
use super::options::{Embedding, Pooling};
use super::pooling::Counted;
use super::settings::Settings;
use crate::error::Error;
use crate::graph::{Conv, Expr, Op, Tensor, ValueId, ValueType, Window};
use crate::model::weights::Weights;
use crate::tensor::Dtype;

pub(super) struct Whisper {
    stack: Stack,
    /// The number of bands of the spectrogram.
    mels: usize,
    /// The number of tokens, each of which stands for [`STEP`] frames.
    tokens: usize,
    pooling: Pooling,
    normalized: bool,
}

/// The number of frames from one token to the next.
const STEP: usize = 2;
/// The number of frames in the window of a convolution.
const TAPS: usize = 3;
/// The names of the convolutions.
const CONVS: [&str; 2] = ["conv1", "conv2"];

pub(super) fn sounds(settings: &Settings, weights: &Weights, asked: &Embedding) -> Whisper {
    let beginnings = ["model.encoder.", "encoder.", ""];
    let width = settings.count(&["d_model"], 384);
    let heads = settings.count(&["encoder_attention_heads"], 6);
    if !width.is_multiple_of(heads) {
        settings.refuse(format!("{width} values of a token for {heads} heads: expected as many for each"));
    }
    let stack = Stack {
        names: &names::WHISPER,
        prefix: prefix(weights, &beginnings, "conv1.weight"),
        width,
        heads,
        layers: settings.count(&["encoder_layers"], 4),
        inner: settings.count(&["encoder_ffn_dim"], 4 * width),
        eps: 1e-5,
        activation: settings.activation(&["activation_function"], Activation::Gelu),
        gated: false,
        bare_first: false,
        absent: vec!["self_attn.k_proj.bias".into()],
    };
    Whisper {
        stack,
        mels: settings.count(&["num_mel_bins"], 80),
        tokens: settings.count(&["max_source_positions"], 1500),
        pooling: asked.pooling.unwrap_or(Pooling::Tokens),
        normalized: asked.normalized.unwrap_or(false),
    }
}

impl Encoder for Whisper {
    fn block(&self, rows: usize) -> Block {
        let mut block = Block::new(&self.stack);
        let x = self.embedded(&mut block, rows);
        let x = block.layers(&self.stack, x, &[Seen::default()], self.tokens);
        let x = block.g.layer_norm(&self.stack.name("layer_norm"), x, self.stack.eps);
        let x = block.pooled(self.pooling, x, &Counted::From(0));
        let x = if self.normalized { block.unit(x) } else { x };
        block.g.output(if self.pooling == Pooling::Tokens { "tokens" } else { "embedding" }, x);
        block
    }

    fn check(&self, asked: &Embedding) -> Result<(), Error> {
        let given = [("image", asked.image.is_some()), ("sequence", asked.sequence.is_some())];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(Error::option(option, "given", "none, for an encoder of sounds")),
            None => Ok(()),
        }
    }

    fn stacks(&self) -> &[Stack] {
        std::slice::from_ref(&self.stack)
    }

    fn layers(&self) -> String {
        self.stack.name(self.stack.names.layers)
    }

    /// The filters of the convolutions, as filters of images with one line.
    fn computed(&self, weights: &Weights) -> Result<Vec<(String, Tensor)>, Error> {
        let mut all = Vec::new();
        for (conv, channels) in CONVS.into_iter().zip(self.channels()) {
            let dims = [self.stack.width, channels, TAPS];
            let filter = weights.read_as(&self.weight(conv), &ValueType::new(Dtype::F32, &dims))?;
            let of_line = ValueType::new(Dtype::F32, &[dims[0], dims[1], 1, dims[2]]);
            all.push((self.filter(conv), filter.cast(of_line)));
        }
        Ok(all)
    }
}

impl Whisper {
    /// The number of input channels of each convolution.
    fn channels(&self) -> [usize; 2] {
        [self.mels, self.stack.width]
    }

    fn weight(&self, conv: &str) -> String {
        self.stack.name(&format!("{conv}.weight"))
    }

    fn filter(&self, conv: &str) -> String {
        self.stack.name(&format!("{conv} of a line"))
    }

    /// The tokens of the frames, with position embeddings.
    fn embedded(&self, block: &mut Block, rows: usize) -> ValueId {
        let (frames, width) = (STEP * self.tokens, self.stack.width);
        let x = block.g.input("input_features", Dtype::F32, &[rows, self.mels, frames]);
        let x = block.g.node("frames", Op::Transpose(vec![0, 2, 1]), &[x]);
        let mut x = block.g.node("line", Op::Reshape(vec![rows, 1, frames, self.mels]), &[x]);
        for ((conv, channels), step) in CONVS.into_iter().zip(self.channels()).zip([1, STEP]) {
            block.parts.insert(self.weight(conv), vec![width, channels, TAPS]);
            block.made.insert(self.filter(conv));
            let filter = block.g.weight(&self.filter(conv), Dtype::F32, &[width, channels, 1, TAPS]);
            let bias = block.weight(&self.stack.name(&format!("{conv}.bias")), &[width]);
            let window = Window { size: vec![1, TAPS], stride: vec![1, step], dilation: vec![1; 2], pad: PAD.to_vec() };
            x = block.g.node(&self.stack.name(conv), Op::Conv(Conv { window, groups: 1 }), &[x, filter, bias]);
            x = block.g.map(&self.stack.name(&format!("{conv} activation")), Activation::Gelu.expr(), &[x]);
        }
        let x = block.g.node("sounds", Op::Reshape(vec![rows, self.tokens, width]), &[x]);
        let places = block.weight(&self.stack.name("embed_positions.weight"), &[self.tokens, width]);
        block.g.map("placed", Expr::arg(0) + Expr::arg(1), &[x, places])
    }
}

/// The padding before and after a line of frames.
const PAD: [[usize; 2]; 2] = [[0, 0], [1, 1]];
