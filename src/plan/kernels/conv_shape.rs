//! A dense convolution as its kernels see it, and the limits of the copy engine's window walk.

use crate::error::Error;
use crate::model::Window;
use crate::plan::Limits;
use crate::plan::work::{Layer, Work};
use crate::tensor::{Dtype, Shape};

/// A convolution; the channels of both shapes are the stored ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvShape {
    pub(crate) batch: usize,
    pub(crate) input: Shape,
    pub(crate) output: Shape,
    pub(crate) window: Window,
}

/// The number of channels of a step of the sm90 convolution.
const STEP_CHANNELS: usize = 64;

/// The number of channels of a tap in the filters of the sm90 convolution: a multiple of a step's channels.
#[cfg(feature = "cuda")]
pub(crate) fn packed_channels(channels: usize) -> usize {
    channels.next_multiple_of(STEP_CHANNELS)
}

/// The place of a channel among [`packed_channels`]. The last step covers the last 64 channels; a
/// channel that the step before covers too has its place there.
#[cfg(feature = "cuda")]
pub(crate) fn packed_channel(channels: usize, channel: usize) -> usize {
    let packed = packed_channels(channels);
    let in_last = channels >= STEP_CHANNELS && channel >= packed - STEP_CHANNELS;
    if in_last { channel + packed - channels } else { channel }
}

impl ConvShape {
    /// The shape of a dense convolution in f16; `None` for any other layer.
    pub(super) fn of(layer: &Layer<'_>, batch: usize) -> Option<Self> {
        let is_in_f16 = [layer.input, layer.output].iter().all(|operand| operand.dtype == Dtype::F16);
        let conv = layer.dense_conv().filter(|_| is_in_f16)?;
        Some(Self { batch, input: layer.input.stored(), output: layer.output.stored(), window: conv.window })
    }

    /// The shapes of the convolutions in a step's first sum; `None` if it contains any other layer.
    pub(super) fn all(work: &Work<'_>) -> Option<Vec<Self>> {
        let layers = work.sums().into_iter().next()?;
        layers.iter().map(|layer| Self::of(layer, work.batch)).collect()
    }

    /// The number of steps of the sum, of 64 channels each.
    pub(crate) fn steps(&self) -> usize {
        self.window.size.iter().product::<usize>() * self.input.channels.div_ceil(STEP_CHANNELS)
    }

    /// Whether every output pixel reads just the input pixel at its own place.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "nothing is launched"))]
    pub(crate) fn is_matrix(&self) -> bool {
        let Self { input, output, window, .. } = self;
        window.size == [1; 2]
            && window.stride == [1; 2]
            && [window.pad.top, window.pad.left] == [0; 2]
            && [input.height, input.width] == [output.height, output.width]
    }
}

/// An error that names what the copy engine's window walk cannot do, if there is anything.
pub(crate) fn check(conv: &ConvShape) -> Result<(), Error> {
    let ConvShape { batch, input, output, window } = *conv;
    let refuse = |what: &str, value: String, takes: &str| {
        Err(Error::Unsupported { what: format!("{what} = {value}"), instead: format!("the sm90 kernel takes {takes}") })
    };
    for (what, channels) in [("input channels", input.channels), ("output channels", output.channels)] {
        if channels == 0 || !channels.is_multiple_of(8) || channels >= INDEX_LIMIT {
            return refuse(what, channels.to_string(), "a positive multiple of 8");
        }
    }
    let axes = [
        ("height", input.height, output.height, 0, window.pad.top, window.pad.bottom),
        ("width", input.width, output.width, 1, window.pad.left, window.pad.right),
    ];
    for (axis, size, out, index, before, after) in axes {
        let [taps, stride, dilation] = [window.size[index], window.stride[index], window.dilation[index]];
        if !(1..=8).contains(&stride) {
            return refuse(&format!("{axis}: stride"), stride.to_string(), "1 to 8");
        }
        let reach = taps.saturating_sub(1).saturating_mul(dilation);
        if taps == 0 || dilation == 0 || reach > 127 {
            return refuse(&format!("{axis}: window reach"), reach.to_string(), "up to 127 pixels");
        }
        if before > 127 || after > 127 {
            return refuse(&format!("{axis}: padding"), before.max(after).to_string(), "up to 127 pixels");
        }
        // The engine derives the number of steps from the range of the windows' first pixels; it has to equal the
        // output's size.
        if size >= INDEX_LIMIT || out_size(size, &window, index) != Some(out) {
            return refuse(&format!("{axis}: output size"), out.to_string(), "what follows from size and window");
        }
    }
    let below = |factors: &[usize]| {
        let product = factors.iter().try_fold(1_usize, |product, &factor| product.checked_mul(factor));
        product.is_some_and(|product| (1..INDEX_LIMIT - 1024).contains(&product))
    };
    let pixels = [batch, output.height, output.width];
    let tiles = [batch, output.height, output.width, output.channels.div_ceil(64)];
    if !below(&pixels) || !below(&tiles) || !below(&[batch, input.height, input.width]) {
        return refuse("pixels", format!("{batch} images"), "fewer than 2^31 pixels and tiles");
    }
    Ok(())
}

/// The number of outputs of a window along axis `index`, of rows or of columns, of `size` pixels; `None` if there is none.
pub(crate) fn out_size(size: usize, window: &Window, index: usize) -> Option<usize> {
    let pads = [window.pad.top + window.pad.bottom, window.pad.left + window.pad.right][index];
    let [taps, stride, dilation] = [window.size[index], window.stride[index], window.dilation[index]];
    let reach = taps.checked_sub(1)?.checked_mul(dilation.max(1))?;
    let span = size.checked_add(pads)?.checked_sub(reach + 1)?;
    (size > 0 && dilation > 0).then(|| span.checked_div(stride))?.map(|steps| steps + 1)
}

/// The limit 2^31, below which counts and indices stay.
const INDEX_LIMIT: usize = 1 << 31;

/// Bytes that the blocks of dense convolutions read from the L2 cache: each pixel once for every tap and every 256
/// output channels, and the filters once for each multiprocessor.
pub(super) fn cache_bytes(convs: &[ConvShape], limits: &Limits) -> u64 {
    let of = |conv: &ConvShape| {
        let pixels = conv.batch * conv.output.pixels();
        let window = conv.window.size.iter().product::<usize>() * conv.input.channels * Dtype::F16.bytes();
        let filters = window * conv.output.channels * limits.units.min(pixels.div_ceil(SHARED));
        (pixels * window * conv.output.channels.div_ceil(SHARED) + filters) as u64
    };
    convs.iter().map(of).sum()
}

/// The number of output channels that share one copy of a pixel, and of output pixels that share one copy of the
/// filters.
pub(super) const SHARED: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pad;

    #[test]
    fn only_single_pixels_in_their_places_are_a_matrix() {
        let of = |input: [usize; 2], window| {
            let shape = |[height, width]: [usize; 2]| Shape::new(height, width, 8);
            let conv = ConvShape { batch: 1, input: shape(input), output: shape([6, 8]), window };
            check(&conv).unwrap();
            conv.is_matrix()
        };
        let single = Window::square(1, 1, 0);
        let padded = |top, left, bottom, right| Window { pad: Pad { top, left, bottom, right }, ..single };
        assert!(of([6, 8], single));
        assert!(!of([6, 8], Window::square(3, 1, 1)));
        assert!(!of([6, 15], Window { stride: [1, 2], ..single }));
        assert!(!of([11, 8], Window { stride: [2, 1], ..single }));
        assert!(!of([4, 6], padded(1, 1, 1, 1)));
        assert!(!of([5, 7], padded(1, 1, 0, 0)));
        assert!(!of([6, 7], padded(0, 0, 0, 1)));
        assert!(!of([5, 8], padded(0, 0, 1, 0)));
    }

    #[test]
    fn what_the_walk_cannot_do_is_refused() {
        let good = ConvShape {
            batch: 3,
            input: Shape::new(30, 40, 24),
            output: Shape::new(11, 19, 72),
            window: Window {
                size: [5, 7],
                stride: [3, 2],
                pad: Pad { top: 2, left: 1, bottom: 16, right: 32 },
                dilation: [4, 6],
            },
        };
        check(&good).unwrap();
        let refused = |change: fn(&mut ConvShape)| {
            let mut conv = good;
            change(&mut conv);
            matches!(check(&conv), Err(Error::Unsupported { .. }))
        };
        assert!(refused(|c| c.batch = 0));
        assert!(refused(|c| c.batch = 100_000_000));
        assert!(refused(|c| c.input.channels = 20));
        assert!(refused(|c| c.output.channels = 0));
        assert!(refused(|c| c.output.width = 18));
        assert!(refused(|c| c.window.stride = [9, 2]));
        assert!(refused(|c| c.window.stride = [0, 2]));
        assert!(refused(|c| c.window.dilation = [32, 6]));
        assert!(refused(|c| c.window.pad.left = 128));
        assert!(refused(|c| c.input.height = 1));
    }
}
