//! Convolutions of bytes: their sizes, their kernels with tiles, and the order of the filters that the kernels read.

use std::fmt;

use super::kernels::{ConvShape, ConvTile, HaloTile, check_sm90, out_size};
use super::{Family, Limits};
use crate::error::Error;
use crate::model::Window;
use crate::tensor::Shape;

/// A dense convolution of bytes. A scale of each output channel turns the sums back into bytes.
///
/// ```
/// use trefoil::{Shape, model::images::Window, plan::{Limits, S8Conv}};
/// let shape = Shape::new(28, 28, 128);
/// let conv = S8Conv { batch: 8, input: shape, output: shape, window: Window::square(3, 1, 1) };
/// let kernels = conv.kernels(&Limits::h200());
/// assert_eq!(kernels[0].to_string(), "sm90 s8 conv 192x256/128");
/// assert_eq!(conv.kernels(&Limits::a100())[0].to_string(), "sm80 s8 conv 256x128");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct S8Conv {
    /// The number of images.
    pub batch: usize,
    /// Height, width and channels of the input; the channels are a multiple of 16.
    pub input: Shape,
    /// Height, width and channels of the output; the channels are a multiple of 16.
    pub output: Shape,
    /// The window: size, stride, padding and dilation.
    pub window: Window,
}

/// The tile of a thread block: output pixels x output channels, and the input channels of a step.
///
/// ```
/// use trefoil::plan::S8Tile;
/// assert_eq!(S8Tile::ALL[0].to_string(), "192x256/128");
/// assert_eq!(S8Tile::ALL[10].to_string(), "64x256/128 kept");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct S8Tile {
    /// The number of output pixels.
    pub pixels: usize,
    /// The number of output channels.
    pub channels: usize,
    /// The number of input channels of a step, which are the bytes of a row in shared memory.
    pub row_bytes: usize,
    /// Whether a block keeps the filters of all steps in shared memory: its tiles have the same channels, and two teams
    /// of warpgroups compute them, each by itself.
    pub kept: bool,
}

/// A kernel that computes convolutions of bytes.
///
/// ```
/// use trefoil::plan::{S8Kernel, S8Tile};
/// let tile = S8Tile { pixels: 128, channels: 64, row_bytes: 128, kept: false };
/// assert_eq!(S8Kernel::Tiled { tile, cluster: 2 }.to_string(), "sm90 s8 conv 128x64/128, pairs");
/// let tile = S8Tile { pixels: 32, channels: 64, row_bytes: 128, kept: false };
/// assert_eq!(S8Kernel::Tiled { tile, cluster: 4 }.to_string(), "sm90 s8 conv 32x64/128, 4 blocks");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum S8Kernel {
    /// The kernel in `kernels/sm90_conv2d_s8.cu`.
    Tiled {
        /// The tile of a thread block.
        tile: S8Tile,
        /// The number of blocks of a cluster, one of [`S8Tile::clusters`].
        cluster: usize,
    },
    /// The kernel in `kernels/conv2d_s8.cu`, for any GPU, with one of [`ConvTile::OF_BYTES`].
    Sm80Gemm(ConvTile),
    /// The kernel in `kernels/sm90_conv2d_s8_halo.cu`, for 3x3 windows of up to 128 channels.
    Halo,
}

/// The division of a tile's work within a block, as in `kernels/sm90_conv2d_s8.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct S8Pipeline {
    /// The number of warpgroups among which the tile's channels are divided.
    pub(crate) channel_groups: usize,
    /// The number of warpgroups among which the tile's pixels are divided.
    pub(crate) pixel_groups: usize,
    /// The output channels of each warpgroup, in units of 64.
    pub(crate) slabs: usize,
    /// The number of pixels of a product.
    pub(crate) product_pixels: usize,
    /// The number of stages: those in flight, and those that kept filters take.
    pub(crate) stages: usize,
    /// The number of blocks that fit on a multiprocessor.
    pub(crate) blocks: usize,
}

impl S8Pipeline {
    /// The number of warpgroups that multiply.
    pub(crate) const fn groups(&self) -> usize {
        self.channel_groups * self.pixel_groups
    }

    /// The number of output channels of each warpgroup.
    pub(crate) const fn group_channels(&self) -> usize {
        self.slabs * 64
    }

    /// The output channels of a chunk of results, which are the bytes of its rows. Two warpgroups with 64 channels each of
    /// the same pixels fill its halves; others have chunks of their own.
    pub(crate) const fn out_channels(&self) -> usize {
        self.joined() * self.group_channels()
    }

    /// The number of warpgroups that fill a chunk.
    const fn joined(&self) -> usize {
        if self.channel_groups == 2 && self.slabs == 1 { 2 } else { 1 }
    }

    /// Whether the warpgroup that multiplies also stores the tile, and the blocks of a cluster share each tile.
    pub(crate) const fn shares(&self) -> bool {
        self.groups() == 1
    }

    /// The number of buffers for chunks of results that a warpgroup has, or two together: one for each chunk of a tile,
    /// but at least three.
    const fn chunks(&self) -> usize {
        let of_tile = self.product_pixels / CHUNK_PIXELS;
        if of_tile < 3 { 3 } else { of_tile }
    }
}

impl S8Tile {
    /// Every tile that the kernel is compiled for.
    pub const ALL: [Self; 12] = [
        Self { pixels: 192, channels: 256, row_bytes: 128, kept: false },
        Self { pixels: 256, channels: 128, row_bytes: 128, kept: false },
        Self { pixels: 192, channels: 128, row_bytes: 128, kept: false },
        Self { pixels: 128, channels: 128, row_bytes: 128, kept: false },
        Self { pixels: 128, channels: 128, row_bytes: 64, kept: false },
        Self { pixels: 128, channels: 64, row_bytes: 128, kept: false },
        Self { pixels: 256, channels: 64, row_bytes: 64, kept: false },
        Self { pixels: 64, channels: 128, row_bytes: 128, kept: false },
        Self { pixels: 64, channels: 64, row_bytes: 128, kept: false },
        Self { pixels: 32, channels: 64, row_bytes: 128, kept: false },
        Self { pixels: 64, channels: 256, row_bytes: 128, kept: true },
        Self { pixels: 64, channels: 256, row_bytes: 64, kept: true },
    ];

    /// The numbers of thread blocks that a cluster may have. With a tile of one warpgroup, the blocks of a cluster
    /// share each tile, and each computes a part of the sum. With other tiles, two blocks have neighbouring pixels, and
    /// each copies half of the filters for both. Blocks that keep their filters are by themselves.
    pub fn clusters(self) -> &'static [usize] {
        match (self.pipeline(), self.pixels) {
            (Some(_), _) if self.kept => &[1],
            (Some(pipeline), 64..) if pipeline.shares() => &[1, 2, 4, 8],
            (Some(pipeline), _) if pipeline.shares() => &[1, 2, 4],
            (Some(_), _) => &[1, 2],
            (None, _) => &[],
        }
    }

    /// Whether the blocks of a cluster share a tile.
    fn shares(self) -> bool {
        self.pipeline().is_some_and(|pipeline| pipeline.shares())
    }

    /// Whether clusters of `cluster` blocks can compute a sum of `steps` steps. Each block that shares a tile needs a
    /// step; where filters are kept, all steps need a place.
    pub(crate) fn takes(self, cluster: usize, steps: usize) -> bool {
        self.clusters().contains(&cluster) && (!self.shares() || cluster <= steps) && steps <= self.most_steps()
    }

    /// The largest number of steps. Kept filters leave each team three stages or more for pixels.
    pub(crate) fn most_steps(self) -> usize {
        match self.pipeline() {
            Some(of) if self.kept => (of.stages - 3 * self.teams()) / (self.channels / self.pixels),
            _ => usize::MAX,
        }
    }

    /// The division of work for this tile; `None` if the kernel is not compiled for the tile.
    pub(crate) const fn pipeline(self) -> Option<S8Pipeline> {
        let shape = (self.pixels, self.channels, self.row_bytes);
        let (groups, slabs, product_pixels, stages, blocks) = match shape {
            (64, 256, 128) if self.kept => ([2, 1], 2, 64, 22, 1),
            (64, 256, 64) if self.kept => ([2, 1], 2, 64, 44, 1),
            _ if self.kept => return None,
            (192, 256, 128) => ([2, 1], 2, 192, 3, 1),
            (256, 128, 128) => ([2, 1], 1, 256, 4, 1),
            (192, 128, 128) => ([2, 1], 1, 192, 5, 1),
            (128, 128, 128) => ([2, 1], 1, 128, 3, 2),
            (128, 128, 64) => ([1, 2], 2, 64, 5, 2),
            (128, 64, 128) => ([1, 2], 1, 64, 4, 2),
            (256, 64, 64) => ([1, 2], 1, 128, 4, 2),
            (64, 128, 128) => ([2, 1], 1, 64, 4, 2),
            (64, 64, 128) => ([1, 1], 1, 64, 6, 2),
            (32, 64, 128) => ([1, 1], 1, 32, 8, 2),
            _ => return None,
        };
        let [channel_groups, pixel_groups] = groups;
        Some(S8Pipeline { channel_groups, pixel_groups, slabs, product_pixels, stages, blocks })
    }

    /// The number of threads of a block: the warpgroups that multiply, a warp that copies and, if several warpgroups
    /// multiply, a warp that stores. For large tiles, these two warps get a whole warpgroup, which leaves its registers
    /// to the others.
    #[cfg_attr(not(any(feature = "cuda", test)), expect(dead_code, reason = "nothing is launched"))]
    pub(crate) const fn threads(self) -> Option<usize> {
        match self.pipeline() {
            Some(of) if of.slabs * of.product_pixels > 256 => Some((of.groups() + 1) * 128),
            Some(of) if of.shares() => Some(128 + 32),
            Some(of) => Some(self.teams() * (of.groups() * 128 + 64)),
            None => None,
        }
    }

    /// The number of teams: of the warpgroups, of a warp that copies and of one that stores.
    pub(crate) const fn teams(self) -> usize {
        if self.kept { 2 } else { 1 }
    }

    /// Bytes of dynamic shared memory of a block: its stages, and the chunks of its results, with two barriers each. If
    /// blocks share tiles: the stages, and the sums of a tile with one barrier. Kept filters take stages, which are as
    /// large as their pixels.
    pub(crate) const fn shared_bytes(self) -> Option<usize> {
        let of_stage = if self.kept { self.pixels } else { self.channels + self.pixels };
        let stage = of_stage * self.row_bytes;
        match self.pipeline() {
            Some(of) if of.shares() => Some(of.stages * (stage + 16) + self.pixels * self.channels * 4 + 8),
            Some(of) => {
                let (chunk, rings) = (CHUNK_PIXELS * of.out_channels(), self.teams() * of.groups() / of.joined());
                Some(of.stages * (stage + 16) + rings * of.chunks() * (chunk + 16))
            }
            None => None,
        }
    }
}

/// The number of pixels of a chunk of results, which is stored at once.
pub(crate) const CHUNK_PIXELS: usize = 32;

impl fmt::Display for S8Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kept = if self.kept { " kept" } else { "" };
        write!(f, "{}x{}/{}{kept}", self.pixels, self.channels, self.row_bytes)
    }
}

impl fmt::Display for S8Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tiled { tile, cluster: 1 } => write!(f, "sm90 s8 conv {tile}"),
            Self::Tiled { tile, cluster } if tile.shares() => write!(f, "sm90 s8 conv {tile}, {cluster} blocks"),
            Self::Tiled { tile, .. } => write!(f, "sm90 s8 conv {tile}, pairs"),
            Self::Sm80Gemm(tile) => write!(f, "sm80 s8 conv {tile}"),
            Self::Halo => f.write_str("sm90 s8 conv halo"),
        }
    }
}

impl S8Conv {
    /// Every kernel that computes this convolution.
    pub fn kernels(&self, limits: &Limits) -> Vec<S8Kernel> {
        let is_granted = |bytes: usize| bytes <= limits.shared_bytes;
        let fits = |tile: &S8Tile| tile.shared_bytes().is_some_and(is_granted);
        let on_sm90 = limits.has_sm90_kernels() && self.check().is_ok();
        let tiles = S8Tile::ALL.into_iter().filter(|tile| on_sm90 && fits(tile));
        let clusters =
            |tile: S8Tile| tile.clusters().iter().filter(move |&&blocks| tile.takes(blocks, self.steps(tile)));
        let tiled = tiles.flat_map(|tile| clusters(tile).map(move |&cluster| S8Kernel::Tiled { tile, cluster }));
        let on_sm80 = limits.family == Family::Sm80 && self.check_sizes().is_ok();
        let gemm = ConvTile::OF_BYTES.into_iter().filter(|tile| {
            on_sm80 && tile.pipeline_of_bytes().is_some_and(|pipeline| is_granted(pipeline.shared_bytes))
        });
        let halo = HaloTile::of_bytes(&self.shape(), limits).filter(|_| on_sm90).map(|_| S8Kernel::Halo);
        tiled.chain(gemm.map(S8Kernel::Sm80Gemm)).chain(halo).collect()
    }

    /// Whether a kernel that computes this convolution can also add the sums of `second`.
    pub fn adds(&self, second: &Self, kernel: S8Kernel) -> bool {
        self.check_sum(second).is_ok()
            && match kernel {
                S8Kernel::Tiled { tile, cluster } => {
                    second.check().is_ok() && tile.takes(cluster, self.steps(tile) + second.steps(tile))
                }
                S8Kernel::Sm80Gemm(_) => second.check_sizes().is_ok(),
                S8Kernel::Halo => false,
            }
    }

    /// The number of products that an output value sums.
    pub(crate) fn products(&self) -> usize {
        self.taps() * self.input.channels
    }

    /// The number of taps of the window.
    pub(crate) fn taps(&self) -> usize {
        self.window.size.iter().product()
    }

    /// The number of steps of the sum with this tile.
    pub(crate) fn steps(&self, tile: S8Tile) -> usize {
        self.taps() * self.input.channels.div_ceil(tile.row_bytes)
    }

    /// The convolution's shape as the kernels' code has it.
    pub(crate) fn shape(&self) -> ConvShape {
        let Self { batch, input, output, window } = *self;
        ConvShape { batch, input, output, window }
    }

    /// An error unless the sums of `second` can be added to these: both have the same outputs, and the sums fit 32 bits.
    pub(crate) fn check_sum(&self, second: &Self) -> Result<(), Error> {
        if (self.batch, self.output) != (second.batch, second.output) {
            let what = format!("sum of {} x {} and {} x {}", self.batch, self.output, second.batch, second.output);
            return Err(Error::Unsupported { what, instead: "both convolutions have the same outputs".into() });
        }
        let products = self.products() + second.products();
        if products > MOST_PRODUCTS {
            let what = format!("products of a value of two convolutions = {products}");
            return Err(Error::Unsupported { what, instead: "the kernels of bytes take up to 65536".into() });
        }
        Ok(())
    }

    /// An error that names what the sm90 kernels cannot do, if there is anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_sm90(&self.shape())?;
        self.check_sizes()
    }

    /// An error that names the size that no kernel takes, if there is one.
    pub(crate) fn check_sizes(&self) -> Result<(), Error> {
        let Self { input, output, window, .. } = self;
        let follows = |size, out, axis| out_size(size, window, axis) == Some(out);
        let (height, width) = (follows(input.height, output.height, 0), follows(input.width, output.width, 1));
        let sizes = [
            ("images", self.batch, self.batch > 0, "one or more"),
            ("output height", output.height, height, "what follows from size and window"),
            ("output width", output.width, width, "what follows from size and window"),
            ("input channels", self.input.channels, self.input.channels.is_multiple_of(16), "a multiple of 16"),
            ("output channels", self.output.channels, self.output.channels.is_multiple_of(16), "a multiple of 16"),
            ("products of a value", self.products(), self.products() <= MOST_PRODUCTS, "up to 65536"),
        ];
        match sizes.into_iter().find(|(_, _, takes, _)| !takes) {
            Some((what, value, _, takes)) => Err(Error::Unsupported {
                what: format!("{what} = {value}"),
                instead: format!("the kernels of bytes take {takes}"),
            }),
            None => Ok(()),
        }
    }
}

/// The largest number of products of a sum of bytes that fits 32 bits.
pub(super) const MOST_PRODUCTS: usize = 1 << 16;

/// The output channel, of 16, at each place of the kernel's filters. A thread has the sums of a row and of the row
/// eight below it; with this order they are two neighbouring channels.
#[cfg(feature = "cuda")]
pub(crate) const FILTER_ORDER: [usize; 16] = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_fits_the_device() {
        for tile in S8Tile::ALL {
            let pipeline = tile.pipeline().unwrap();
            assert_eq!(pipeline.pixel_groups * pipeline.product_pixels, tile.pixels);
            assert_eq!(pipeline.channel_groups * pipeline.group_channels(), tile.channels);
            // The device reserves 1 KiB for each block beyond what the block asks for.
            let (granted, taken) = (Limits::h200().shared_bytes + 1024, tile.shared_bytes().unwrap() + 1024);
            assert!(pipeline.blocks * taken <= granted, "{tile}");
        }
        let none = S8Tile { pixels: 32, channels: 32, row_bytes: 128, kept: false };
        for other in [none, S8Tile { kept: true, ..S8Tile::ALL[0] }] {
            assert!(other.clusters().is_empty());
            assert!(other.pipeline().is_none() && other.threads().is_none() && other.shared_bytes().is_none());
        }
    }

    /// Filters are kept where they leave stages for pixels: those of both sources together.
    #[test]
    fn kept_filters_are_of_few_steps() {
        let of = |channels| {
            let (input, output) = (Shape::new(14, 14, channels), Shape::new(14, 14, 512));
            S8Conv { batch: 2, input, output, window: Window::square(1, 1, 0) }
        };
        let kept = |conv: S8Conv, second: Option<S8Conv>| -> Vec<String> {
            let kernels = conv.kernels(&Limits::h200()).into_iter();
            let adds = |kernel: &S8Kernel| second.is_none_or(|second| conv.adds(&second, *kernel));
            let kept = |kernel: &S8Kernel| matches!(kernel, S8Kernel::Tiled { tile, .. } if tile.kept);
            kernels.filter(|kernel| kept(kernel) && adds(kernel)).map(|of| of.to_string()).collect()
        };
        let all = ["64x256/128", "64x256/64"].map(|tile| format!("sm90 s8 conv {tile} kept"));
        assert_eq!([64, 512, 528, 576, 592].map(|channels| kept(of(channels), None).len()), [2, 2, 1, 1, 0]);
        assert_eq!(kept(of(512), None), all);
        assert_eq!(kept(of(528), None), all[1..]);
        assert_eq!(kept(of(128), Some(of(256))), all);
        assert_eq!(kept(of(16), Some(of(512))), all[1..]);
        assert!(kept(of(256), Some(of(512))).is_empty());
    }

    #[test]
    fn each_block_that_shares_a_tile_has_a_step() {
        let shape = Shape::new(14, 14, 256);
        let conv = S8Conv { batch: 1, input: shape, output: shape, window: Window::square(1, 1, 0) };
        let shared: Vec<String> = conv.kernels(&Limits::h200()).iter().map(S8Kernel::to_string).collect();
        let of_tile = |tile: &str| shared.iter().filter(|name| name.contains(tile)).count();
        assert_eq!([of_tile(" 64x64/128"), of_tile(" 32x64/128"), of_tile(" 64x128/128")], [2; 3]); // of 2 steps
    }

    #[cfg(feature = "cuda")]
    #[test]
    fn a_thread_has_two_channels_that_follow_each_other() {
        for row in 0..8 {
            assert_eq!([row, row + 8].map(|place| FILTER_ORDER[place]), [2 * row, 2 * row + 1]);
        }
    }

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let shape = Shape::new(14, 14, 256);
        let conv = S8Conv { batch: 2, input: shape, output: shape, window: Window::square(3, 1, 1) };
        let refused = |conv: S8Conv| {
            assert!(conv.kernels(&Limits::h200()).is_empty());
            matches!(conv.check(), Err(Error::Unsupported { .. }))
        };
        let channels = |channels| Shape { channels, ..shape };
        let clusters = S8Tile::ALL.iter().filter(|tile| !tile.kept).map(|tile| tile.clusters().len()).sum::<usize>();
        assert!(conv.check().is_ok() && conv.kernels(&Limits::h200()).len() == clusters + ConvTile::OF_BYTES.len());
        let few = S8Conv { input: channels(64), ..conv };
        assert_eq!(few.kernels(&Limits::h200()).last(), Some(&S8Kernel::Halo));
        assert!(refused(S8Conv { input: channels(24), ..conv }) && refused(S8Conv { output: channels(24), ..conv }));
        assert!(refused(S8Conv { input: channels(7296), ..conv }) && refused(S8Conv { batch: 0, ..conv }));
        assert!(refused(S8Conv { window: Window::square(3, 2, 1), ..conv }));
    }
}
