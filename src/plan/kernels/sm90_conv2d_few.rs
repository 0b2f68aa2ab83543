//! Convolutions of images of few channels on sm90 hardware, the first layers of many graphs of values: what the kernel
//! can compute, its tile and its predicted time.

use super::{Kernel, KernelDef, Variant};
use crate::model::{Conv2d, Window};
#[cfg(feature = "cuda")]
use crate::plan::packing::{PackedSum, Packing, usual};
use crate::plan::roofline::LAUNCH;
use crate::plan::work::{Operand, Work, taps};
use crate::plan::{Limits, ProductActivation, Rates, StepOp};
use crate::tensor::{Dtype, Shape};

/// The kernel in `kernels/sm90_conv2d_few.cu`.
pub(super) struct Sm90Conv2dFew;

impl KernelDef for Sm90Conv2dFew {
    fn name(&self) -> &'static str {
        "sm90_conv2d_few"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        let StepOp::Few(of) = work.op else { return false };
        let is_f32 = work.inputs.iter().all(|input| input.dtype == Dtype::F32);
        is_f32 && (work.writes(Dtype::F16) || work.writes(Dtype::Bf16)) && of.has_kernel()
    }

    fn has(&self, kernel: Kernel) -> bool {
        kernel == Kernel::Sm90Few
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let StepOp::Few(of) = work.op else { return Vec::new() };
        vec![Variant { kernel: Kernel::Sm90Few, clocks: of.clocks(work.batch, limits) }]
    }

    /// The filter without a bias, in the type of the result: biases are tensors.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let in_type = |filter| Packing { dtype: work.outputs[0].dtype, ..filter };
        let alone =
            |PackedSum { filters, .. }| PackedSum { filters: filters.into_iter().map(in_type).collect(), bias: None };
        usual(work).into_iter().map(alone).collect()
    }
}

/// A convolution of images of few channels. Its step reads images in f32 in any layout, then biases if there are any,
/// and writes pixels of f16 or bf16.
///
/// ```
/// use trefoil::Shape;
/// use trefoil::model::images::{Conv2d, Window};
/// use trefoil::plan::{FewOp, ImagesAt, ProductActivation, StepOp};
/// let first = FewOp {
///     conv: Conv2d::named("model.0.conv", 16, Window::square(3, 2, 1)),
///     input: Shape::new(640, 640, 3),
///     output: Shape::new(320, 320, 16),
///     x: ImagesAt { first: 0, strides: [3 * 640 * 640, 640, 1, 640 * 640] },
///     factor: 1.0,
///     activation: ProductActivation::Silu,
///     bias: true,
/// };
/// assert_eq!(StepOp::Few(first).label(2), "conv3x3+silu");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FewOp {
    /// The convolution, without its bias and activation.
    pub conv: Conv2d,
    /// The shape of an image.
    pub input: Shape,
    /// The shape of the result.
    pub output: Shape,
    /// The place of the images in the operand.
    pub x: ImagesAt,
    /// The factor of the values that are read.
    pub factor: f32,
    /// The activation, applied after the bias is added.
    pub activation: ProductActivation,
    /// Whether a bias for each output channel is added to the sums.
    pub bias: bool,
}

/// The place of images in an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImagesAt {
    /// The index of the first value.
    pub first: usize,
    /// The distances from one image, row, column and channel to the next, in values.
    pub strides: [usize; 4],
}

/// The part of an output that a thread block computes, as in `kernels/sm90_conv2d_few.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FewTile {
    /// Rows and columns of the input pixels that the tile's windows read.
    pub(crate) patch: [usize; 2],
    /// Bytes of shared memory from one of the patch's rows to the next.
    pub(crate) pitch: usize,
    /// The number of tiles of an image along its height and width.
    pub(crate) tiles: [usize; 2],
}

/// Rows and columns of the result that a block computes.
const TILE: [usize; 2] = [8, 32];
/// The number of channels of a pixel in shared memory. The image may have fewer.
const STORED: usize = 4;
/// The largest number of taps of a window.
pub(crate) const MOST_FEW_TAPS: usize = 64;
/// The largest number of output channels.
pub(crate) const MOST_FEW_OUTPUTS: usize = 64;
/// The largest number of bytes of shared memory of a block: any kernel may have these without asking for more.
const MOST_SHARED: usize = 48 << 10;

impl FewTile {
    /// The tile for a window and an output of this shape; `None` if the patch does not fit into shared memory.
    pub(crate) fn of(window: &Window, output: Shape) -> Option<Self> {
        let axis = |axis: usize| {
            let reach = window.size[axis].checked_sub(1)?.checked_mul(window.dilation[axis])?;
            (TILE[axis] - 1).checked_mul(window.stride[axis])?.checked_add(reach)?.checked_add(1)
        };
        let patch = [axis(0)?, axis(1)?];
        // Neighbouring rows begin half of the banks apart, so that a product reads the taps of several rows from
        // different banks.
        let pitch = patch[1].checked_mul(STORED * 2)?.checked_add(64)? / 128 * 128 + 64;
        let tiles = [output.height.div_ceil(TILE[0]), output.width.div_ceil(TILE[1])];
        let this = Self { patch, pitch, tiles };
        (patch[0].checked_mul(pitch)? <= MOST_SHARED).then_some(this)
    }

    /// Bytes of dynamic shared memory of a block.
    #[cfg(feature = "cuda")]
    pub(crate) const fn shared_bytes(&self) -> usize {
        self.patch[0] * self.pitch
    }
}

impl FewOp {
    /// Whether the kernel can compute the convolution.
    pub(crate) fn has_kernel(&self) -> bool {
        let Self { conv, input, output, x, .. } = self;
        let channels = (1..=STORED).contains(&input.channels) && conv.groups == 1;
        let outputs = output.channels.is_multiple_of(8) && (1..=MOST_FEW_OUTPUTS).contains(&output.channels);
        let window = (1..=MOST_FEW_TAPS).contains(&taps(conv)) && FewTile::of(&conv.window, *output).is_some();
        let last = [input.height, input.width, input.channels].into_iter().zip(&x.strides[1..]);
        let last = last.map(|(dim, stride)| (dim - 1).checked_mul(*stride)).sum::<Option<usize>>();
        channels && outputs && window && last.is_some_and(|last| last < MOST) && output.elems() < MOST
    }

    /// The pixels in shared memory from which a sum takes its terms, as an operand.
    pub(in crate::plan) fn pixels(&self, dtype: Dtype) -> Operand {
        Operand { shape: self.input, stored_channels: STORED, dtype }
    }

    /// A short text of the operation.
    pub(crate) fn label(&self) -> String {
        let [r, s] = self.conv.window.size;
        format!("conv{r}x{s}{}", self.activation.suffix())
    }

    /// Clocks of the multiprocessor with the most blocks, or of the memory if they are more. `None` on unknown
    /// hardware.
    pub(in crate::plan) fn clocks(&self, batch: usize, limits: &Limits) -> Option<f64> {
        let FewTile { patch, tiles, .. } = FewTile::of(&self.conv.window, self.output)?;
        let blocks = (batch * tiles[0] * tiles[1]).div_ceil(limits.units.max(1)) as f64;
        let groups = self.output.channels.div_ceil(8) as f64;
        let products = PRODUCT * taps(&self.conv).div_ceil(4) as f64 * (1.0 + groups);
        let block = PIXEL * (patch[0] * patch[1]) as f64 + products + OUTPUT * self.output.channels as f64;
        let rates = Rates::of(limits)?;
        let bytes = batch * (4 * self.input.elems() + 2 * self.output.elems());
        let memory = bytes as f64 / rates.memory_bytes * rates.clock_hz;
        Some((blocks * block).max(memory))
    }

    /// Clocks of the loop that any other kernel needs first, which converts the images to pixels of type `dtype`.
    pub(in crate::plan) fn clocks_of_pixels(&self, batch: usize, dtype: Dtype, limits: &Limits) -> Option<f64> {
        let rates = Rates::of(limits)?;
        let made = Operand::activations(self.input, dtype, limits.family);
        let made = self.input.height * self.input.width * made.stored_channels * dtype.bytes();
        let bytes = batch * (self.input.elems() * Dtype::F32.bytes() + made);
        Some((LAUNCH + bytes as f64 / rates.memory_bytes) * rates.clock_hz)
    }
}

/// The limit below which offsets in an image stay.
const MOST: usize = 1 << 31;

/// Clocks by counts of instructions: of a pixel that a block copies, of a step of a block's products for each group of
/// channels, and of an output channel. A full multiprocessor takes up to twice as long. So does the kernel for images,
/// with which this one is compared (benches/notes/2026-11-24-few-channels.md).
const PIXEL: f64 = 0.4;
const PRODUCT: f64 = 32.0;
const OUTPUT: f64 = 24.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Pad;

    fn first(size: usize, stride: usize) -> FewOp {
        let conv = Conv2d::named("first", 16, Window::square(size, stride, size / 2));
        let [input, output] = [Shape::new(640, 640, 3), Shape::new(640 / stride, 640 / stride, 16)];
        let x = ImagesAt { first: 0, strides: [1_228_800, 640, 1, 409_600] };
        FewOp { conv, input, output, x, factor: 1.0, activation: ProductActivation::Silu, bias: true }
    }

    #[test]
    fn a_block_has_what_its_windows_see() {
        let of = |size, stride| FewTile::of(&first(size, stride).conv.window, first(size, stride).output).unwrap();
        assert_eq!(of(3, 2), FewTile { patch: [17, 65], pitch: 576, tiles: [40, 10] });
        assert_eq!(of(7, 2), FewTile { patch: [21, 69], pitch: 576, tiles: [40, 10] });
        assert_eq!(of(3, 1), FewTile { patch: [10, 34], pitch: 320, tiles: [80, 20] });
        for tile in [of(1, 1), of(1, 2), of(3, 1), of(5, 3), of(7, 4)] {
            assert!(tile.pitch >= 8 * tile.patch[1] && tile.pitch % 128 == 64, "{tile:?}");
        }
    }

    #[test]
    fn what_the_kernel_does_not_compute_is_known() {
        assert!(first(3, 2).has_kernel() && first(7, 2).has_kernel() && first(7, 4).has_kernel());
        let with = |change: &dyn Fn(&mut FewOp)| {
            let mut of = first(3, 2);
            change(&mut of);
            of.has_kernel()
        };
        assert!(!first(9, 1).has_kernel() && !first(3, 64).has_kernel());
        assert!(with(&|of| of.input.channels = 4) && !with(&|of| of.input.channels = 5));
        assert!(with(&|of| of.output.channels = 64) && !with(&|of| of.output.channels = 72));
        assert!(!with(&|of| of.output.channels = 12) && !with(&|of| of.conv.groups = 3));
        assert!(!with(&|of| of.x.strides[3] = 1 << 30) && !with(&|of| of.conv.window.dilation = [usize::MAX; 2]));
        assert!(with(&|of| of.conv.window.pad = Pad::all(1 << 20)));
    }

    #[test]
    fn large_batches_take_as_long_as_memory_does() {
        let of = |batch| first(3, 2).clocks(batch, &Limits::h200()).unwrap();
        assert!(of(32) / of(1) > 15.0 && of(32) > 1e5 && of(32) < 2e5, "{} {}", of(1), of(32));
    }
}
