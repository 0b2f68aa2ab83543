//! Weights as kernels read them: the order of each filter's values, and the values that are added to sums.

use super::kernels::{StemLayers, packed_channel, packed_channels};
use super::transformer::stored_terms;
use super::work::{Layer, Weights, Work, taps};
use super::{FILTER_ORDER, NormWithin, STEM_FILTER_BYTES, STEM_TAPS, StepOp, stem_filter_index};
use crate::model::Window;
use crate::tensor::Dtype;

/// The weights that go into one sum.
pub(crate) struct PackedSum<'a> {
    /// The filter of each layer.
    pub(crate) filters: Vec<Packing<'a>>,
    /// The type of the biases' sum, one value for each stored output channel; `None` if it is not stored beside the
    /// filters.
    pub(crate) bias: Option<Dtype>,
}

/// A layer's filter as a kernel reads it.
pub(crate) struct Packing<'a> {
    /// The layer.
    pub(crate) layer: Layer<'a>,
    /// The order of the values.
    pub(crate) order: FilterOrder,
    /// The type of the values.
    pub(crate) dtype: Dtype,
    /// How the values are rounded to bytes; `None` if they are not bytes.
    pub(crate) bytes: Option<ByteWeights<'a>>,
    /// The norm of the rows that the layer multiplies, if the step computes it.
    pub(crate) norm: Option<&'a NormWithin>,
}

/// One of the filters of a step of bytes. Its rounding depends on all filters that go into the step's sums.
#[derive(Clone, Debug)]
pub(crate) struct ByteWeights<'a> {
    /// The operation of the step.
    pub(crate) op: &'a StepOp,
    /// The number of input channels of each filter.
    pub(crate) channels: Vec<usize>,
    /// The index of this filter. The first filter is followed by the biases and scales of the sums.
    pub(crate) index: usize,
}

/// The order of a filter's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FilterOrder {
    /// `[K][taps][C]` with the stored channels, for a convolution or a linear layer; zeros for input channels outside
    /// of the output channel's group.
    Dense,
    /// As [`Dense`](Self::Dense), multiplied by the factors of a norm. The sums of each output channel's values follow, in
    /// f32, and then what is added to its results.
    Normed,
    /// As [`Dense`](Self::Dense), with input channels at the places of the sm90 convolution's steps, and zeros at other
    /// places.
    Taps,
    /// As [`Dense`](Self::Dense), with rows of zeros behind each window whose number of values is no multiple of 8.
    Eights,
    /// `[taps][K]`.
    Depthwise,
    /// As [`Dense`](Self::Dense), with each 16 output channels in the order of the kernels of bytes. After the first
    /// filter of a sum follow a bias in i32 and a scale in f32 for each output channel.
    Bytes,
    /// As [`Depthwise`](Self::Depthwise), in bytes. Behind them are a bias in i32 and a scale in f32 for each channel.
    DepthwiseBytes,
    /// As [`Dense`](Self::Dense), with the even ones of each 16 output channels before the odd ones.
    EvenFirst,
    /// The order of the kernel of a network's first layers in bytes; biases and scales follow the filter.
    StemBytes,
    /// The order of the kernel of a network's first layers; the bias in f32 follows the filter.
    Stem(StemLayers),
}

/// The usual weights of a step: filters in bf16 for inputs of bf16, else in f16; biases in f32.
pub(super) fn usual<'a>(work: &Work<'a>) -> Vec<PackedSum<'a>> {
    let packing = |layer: Layer<'a>| {
        let order = if layer.is_depthwise() { FilterOrder::Depthwise } else { FilterOrder::Dense };
        let dtype = if layer.input.dtype == Dtype::Bf16 { Dtype::Bf16 } else { Dtype::F16 };
        Packing { layer, order, dtype, bytes: None, norm: None }
    };
    let sum = |layers: Vec<Layer<'a>>| PackedSum {
        filters: layers.into_iter().map(packing).collect(),
        bias: Some(Dtype::F32),
    };
    work.sums().into_iter().map(sum).collect()
}

/// The filters of a step of bytes in this order; biases and scales follow the first filter.
pub(super) fn in_bytes<'a>(work: &Work<'a>, order: FilterOrder) -> Vec<PackedSum<'a>> {
    let layers: Vec<Layer<'a>> = work.sums().into_iter().flatten().collect();
    let channels: Vec<usize> = layers.iter().map(|layer| layer.input.shape.channels).collect();
    let packing = |(index, layer)| {
        let bytes = Some(ByteWeights { op: work.op, channels: channels.clone(), index });
        Packing { layer, order, dtype: Dtype::I8, bytes, norm: None }
    };
    vec![PackedSum { filters: layers.into_iter().enumerate().map(packing).collect(), bias: None }]
}

/// The place of output channel `k` where the even ones of each 16 come before the odd ones.
pub(crate) fn even_first(k: usize) -> usize {
    k / 16 * 16 + k % 2 * 8 + k % 16 / 2
}

impl Packing<'_> {
    /// The numbers of output channels, of input channels for each output channel, and of taps.
    pub(crate) fn dims(&self) -> [usize; 3] {
        let channels = self.layer.input.shape.channels;
        match self.layer.weights {
            Weights::Conv(conv) => [conv.out_channels, channels / conv.groups, taps(conv)],
            Weights::Linear(linear) => [linear.out_features, channels, 1],
        }
    }

    /// The number of stored output channels.
    pub(crate) fn k_stored(&self) -> usize {
        self.layer.output.stored_channels
    }

    /// The number of stored input channels for each output channel.
    pub(crate) fn c_stored(&self) -> usize {
        if self.layer.is_depthwise() { 1 } else { self.layer.input.stored_channels }
    }

    /// Bytes of the filter, with padding, and of the biases and scales after it.
    pub(crate) fn bytes(&self) -> usize {
        match self.order {
            FilterOrder::Stem(layers) => layers.weight_bytes(),
            FilterOrder::Bytes | FilterOrder::DepthwiseBytes | FilterOrder::StemBytes
                if self.bias_behind().is_some() =>
            {
                self.filter_bytes() + self.k_stored() * (size_of::<i32>() + size_of::<f32>())
            }
            FilterOrder::Normed => self.filter_bytes() + 2 * self.k_stored() * size_of::<f32>(),
            FilterOrder::Dense
            | FilterOrder::EvenFirst
            | FilterOrder::Taps
            | FilterOrder::Eights
            | FilterOrder::Depthwise
            | FilterOrder::Bytes
            | FilterOrder::DepthwiseBytes
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
            FilterOrder::Eights => self.k_stored() * self.eights() * self.dtype.bytes(),
            FilterOrder::Dense
            | FilterOrder::Normed
            | FilterOrder::EvenFirst
            | FilterOrder::Depthwise
            | FilterOrder::Bytes
            | FilterOrder::DepthwiseBytes => self.k_stored() * taps * self.c_stored() * self.dtype.bytes(),
        }
    }

    /// The number of values of an output channel with the zeros that follow.
    fn eights(&self) -> usize {
        let [_, _, taps] = self.dims();
        let terms = taps * self.c_stored();
        match self.layer.weights {
            Weights::Conv(conv) => stored_terms(&conv.window, terms),
            Weights::Linear(_) => stored_terms(&Window::square(1, 1, 0), terms),
        }
    }

    /// The input channel of an output channel's first weight.
    fn first_channel(&self, k: usize) -> usize {
        match self.layer.weights {
            Weights::Conv(conv) => conv.first_channel(k, self.layer.input.shape.channels),
            Weights::Linear(_) => 0,
        }
    }

    /// A function that gives the index of a weight of output channel `k` from the weight's input channel, counted from
    /// the first of its group, and tap.
    pub(crate) fn places(&self, k: usize) -> impl Fn(usize, usize) -> usize {
        let [_, _, taps] = self.dims();
        let (order, stored) = (self.order, [self.k_stored(), self.c_stored()]);
        let first = match order {
            FilterOrder::Dense | FilterOrder::Normed => k * taps * stored[1] + self.first_channel(k),
            FilterOrder::EvenFirst => even_first(k) * taps * stored[1],
            FilterOrder::Eights => k * self.eights(),
            FilterOrder::Taps => k * taps * packed_channels(stored[1]),
            FilterOrder::Bytes => {
                let [group, place] = [k / FILTER_ORDER.len(), k % FILTER_ORDER.len()];
                let place = FILTER_ORDER.iter().position(|&of| of == place).expect("all places are in the order");
                (group * FILTER_ORDER.len() + place) * taps * stored[1]
            }
            FilterOrder::Depthwise | FilterOrder::DepthwiseBytes | FilterOrder::Stem(_) | FilterOrder::StemBytes => k,
        };
        let first_channel = self.first_channel(k);
        move |c, tap| match order {
            FilterOrder::Taps => {
                first + tap * packed_channels(stored[1]) + packed_channel(stored[1], first_channel + c)
            }
            FilterOrder::Dense
            | FilterOrder::Normed
            | FilterOrder::EvenFirst
            | FilterOrder::Eights
            | FilterOrder::Bytes => first + tap * stored[1] + c,
            FilterOrder::Depthwise | FilterOrder::DepthwiseBytes => first + tap * stored[0],
            FilterOrder::Stem(layers) => layers.filter_index([tap / layers.taps, tap % layers.taps], k, c),
            FilterOrder::StemBytes => stem_filter_index([tap / STEM_TAPS, tap % STEM_TAPS, c], k),
        }
    }

    /// The byte offset of the bias that is stored after the filter; `None` if there is none.
    pub(crate) fn bias_behind(&self) -> Option<usize> {
        match self.order {
            FilterOrder::Dense
            | FilterOrder::EvenFirst
            | FilterOrder::Taps
            | FilterOrder::Eights
            | FilterOrder::Depthwise => None,
            FilterOrder::Bytes | FilterOrder::DepthwiseBytes | FilterOrder::StemBytes => {
                self.bytes.as_ref().is_some_and(|of| of.index == 0).then(|| self.filter_bytes())
            }
            FilterOrder::Normed | FilterOrder::Stem(_) => Some(self.filter_bytes()),
        }
    }

    /// Whether the weights are in the order of a checkpoint.
    pub(crate) fn is_in_order(&self) -> bool {
        let [_, c, taps] = self.dims();
        matches!(self.order, FilterOrder::Dense | FilterOrder::Normed) && taps == 1 && c == self.c_stored()
    }
}
