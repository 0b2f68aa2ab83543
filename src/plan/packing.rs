//! Weights as kernels read them: how each filter's values follow one another, and what is added to the sums.

use super::kernels::{StemLayers, packed_channel, packed_channels};
use super::work::{Layer, Weights, Work, taps};
use super::{FILTER_ORDER, STEM_FILTER_BYTES, STEM_TAPS, StepOp, stem_filter_index};
use crate::tensor::Dtype;

/// The weights that go into one sum.
pub(crate) struct PackedSum<'a> {
    /// A filter for each node.
    pub(crate) filters: Vec<Packing<'a>>,
    /// Type of the sum of their biases, one value for each stored output channel, if it is read beside the filters.
    pub(crate) bias: Option<Dtype>,
}

/// A node's filter as a kernel reads it.
pub(crate) struct Packing<'a> {
    /// The node.
    pub(crate) layer: Layer<'a>,
    /// How its values follow one another.
    pub(crate) order: FilterOrder,
    /// Their type.
    pub(crate) dtype: Dtype,
    /// How they are rounded to bytes, if they are.
    pub(crate) bytes: Option<ByteWeights<'a>>,
}

/// One of the filters of a step of bytes: how it is rounded depends on all that goes into the step's sums.
#[derive(Clone, Debug)]
pub(crate) struct ByteWeights<'a> {
    /// What the step computes.
    pub(crate) op: &'a StepOp,
    /// Channels of what each filter reads.
    pub(crate) channels: Vec<usize>,
    /// Which one it is; the first has the sums' biases and scales behind it.
    pub(crate) index: usize,
}

/// How a filter's values follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FilterOrder {
    /// `[K][taps][C]`, of a convolution or a linear layer, with the stored channels; zeros where others than its group's
    /// would be.
    Dense,
    /// As [`Dense`](Self::Dense) with the channels of a Hopper convolution's steps, zeros between.
    Taps,
    /// `[taps][K]`.
    Depthwise,
    /// As [`Dense`](Self::Dense), the output channels of each sixteen in the order in which the kernels of bytes take them;
    /// behind those of a sum's first filter a bias in i32 for each output channel, and a scale in f32.
    Bytes,
    /// As the kernel of a network's first layers of bytes reads them; behind them biases and scales, too.
    StemBytes,
    /// As the kernel of a network's first layers reads them, with the bias in f32 behind.
    Stem(StemLayers),
}

/// Filters in the type of what they multiply, bf16 or else f16; biases in f32.
pub(super) fn usual<'a>(work: &Work<'a>) -> Vec<PackedSum<'a>> {
    let packing = |layer: Layer<'a>| {
        let order = if layer.is_depthwise() { FilterOrder::Depthwise } else { FilterOrder::Dense };
        let dtype = if layer.input.dtype == Dtype::Bf16 { Dtype::Bf16 } else { Dtype::F16 };
        Packing { layer, order, dtype, bytes: None }
    };
    let sum = |layers: Vec<Layer<'a>>| PackedSum {
        filters: layers.into_iter().map(packing).collect(),
        bias: Some(Dtype::F32),
    };
    work.sums().into_iter().map(sum).collect()
}

/// The filters of a step of bytes in this order, with biases and scales behind the first.
pub(super) fn in_bytes<'a>(work: &Work<'a>, order: FilterOrder) -> Vec<PackedSum<'a>> {
    let layers: Vec<Layer<'a>> = work.sums().into_iter().flatten().collect();
    let channels: Vec<usize> = layers.iter().map(|layer| layer.input.shape.channels).collect();
    let packing = |(index, layer)| {
        let bytes = Some(ByteWeights { op: work.op, channels: channels.clone(), index });
        Packing { layer, order, dtype: Dtype::I8, bytes }
    };
    vec![PackedSum { filters: layers.into_iter().enumerate().map(packing).collect(), bias: None }]
}

impl Packing<'_> {
    /// Output channels, input channels that each has weights of, and taps.
    pub(crate) fn dims(&self) -> [usize; 3] {
        let channels = self.layer.input.shape.channels;
        match self.layer.weights {
            Weights::Conv(conv) => [conv.out_channels, channels / conv.groups, taps(conv)],
            Weights::Linear(linear) => [linear.out_features, channels, 1],
        }
    }

    /// Output channels as they are stored.
    pub(crate) fn k_stored(&self) -> usize {
        self.layer.output.stored_channels
    }

    /// Of each output channel's weights, the input channels as they are stored.
    pub(crate) fn c_stored(&self) -> usize {
        if self.layer.is_depthwise() { 1 } else { self.layer.input.stored_channels }
    }

    /// Bytes of the filter, padding included, and of what lies behind it.
    pub(crate) fn bytes(&self) -> usize {
        match self.order {
            FilterOrder::Stem(layers) => layers.weight_bytes(),
            FilterOrder::Bytes | FilterOrder::StemBytes if self.bias_behind().is_some() => {
                self.filter_bytes() + self.k_stored() * (size_of::<i32>() + size_of::<f32>())
            }
            FilterOrder::Dense
            | FilterOrder::Taps
            | FilterOrder::Depthwise
            | FilterOrder::Bytes
            | FilterOrder::StemBytes => self.filter_bytes(),
        }
    }

    /// Bytes of the filter alone.
    fn filter_bytes(&self) -> usize {
        let [_, _, taps] = self.dims();
        match self.order {
            FilterOrder::StemBytes => STEM_FILTER_BYTES,
            FilterOrder::Taps => self.k_stored() * taps * packed_channels(self.c_stored()) * self.dtype.bytes(),
            FilterOrder::Stem(layers) => layers.filter_elems() * self.dtype.bytes(),
            FilterOrder::Dense | FilterOrder::Depthwise | FilterOrder::Bytes => {
                self.k_stored() * taps * self.c_stored() * self.dtype.bytes()
            }
        }
    }

    /// The input channel that an output channel's first weight is of.
    fn first_channel(&self, k: usize) -> usize {
        match self.layer.weights {
            Weights::Conv(conv) => conv.first_channel(k, self.layer.input.shape.channels),
            Weights::Linear(_) => 0,
        }
    }

    /// Where the weights of an output channel lie, in values: by one of the input channels that it has weights of, and a tap.
    pub(crate) fn places(&self, k: usize) -> impl Fn(usize, usize) -> usize {
        let [_, _, taps] = self.dims();
        let (order, stored) = (self.order, [self.k_stored(), self.c_stored()]);
        let first = match order {
            FilterOrder::Dense => k * taps * stored[1] + self.first_channel(k),
            FilterOrder::Taps => k * taps * packed_channels(stored[1]),
            FilterOrder::Bytes => {
                let [group, place] = [k / FILTER_ORDER.len(), k % FILTER_ORDER.len()];
                let place = FILTER_ORDER.iter().position(|&of| of == place).expect("all places are in the order");
                (group * FILTER_ORDER.len() + place) * taps * stored[1]
            }
            FilterOrder::Depthwise | FilterOrder::Stem(_) | FilterOrder::StemBytes => k,
        };
        let first_channel = self.first_channel(k);
        move |c, tap| match order {
            FilterOrder::Taps => {
                first + tap * packed_channels(stored[1]) + packed_channel(stored[1], first_channel + c)
            }
            FilterOrder::Dense | FilterOrder::Bytes => first + tap * stored[1] + c,
            FilterOrder::Depthwise => first + tap * stored[0],
            FilterOrder::Stem(layers) => layers.filter_index([tap / layers.taps, tap % layers.taps], k, c),
            FilterOrder::StemBytes => stem_filter_index([tap / STEM_TAPS, tap % STEM_TAPS, c], k),
        }
    }

    /// Where the bias lies that is read with the filter, in bytes.
    pub(crate) fn bias_behind(&self) -> Option<usize> {
        match self.order {
            FilterOrder::Dense | FilterOrder::Taps | FilterOrder::Depthwise => None,
            FilterOrder::Bytes | FilterOrder::StemBytes => {
                self.bytes.as_ref().is_some_and(|of| of.index == 0).then(|| self.filter_bytes())
            }
            FilterOrder::Stem(_) => Some(self.filter_bytes()),
        }
    }

    /// Whether the weights lie as a checkpoint has them.
    pub(crate) fn is_in_order(&self) -> bool {
        let [_, c, taps] = self.dims();
        self.order == FilterOrder::Dense && taps == 1 && c == self.c_stored()
    }
}
