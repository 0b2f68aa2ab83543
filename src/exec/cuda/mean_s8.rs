//! Launches of `kernels/mean_s8.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{INDEX_LIMIT, Launch, aligned, in_range, kernel_args, product, unsupported};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::kernels::MOST_PIXELS;
use crate::plan::{StepOp, mean_factor};
use crate::tensor::{Dtype, Shape};

kernel_args! {
    /// `MeanS8Args`.
    MeanS8Args, 48 bytes {
        x: u64,
        y: u64,
        images: i32,
        pixels: i32,
        c_chunks: i32,
        chunk_blocks: i32,
        scale: f32,
        flip: u32,
        y_words: i32,
        padding: i32,
    }
}

/// A mean over all pixels of images of bytes, by the addresses of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct S8MeanProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and C, a multiple of 16.
    pub(crate) input: Shape,
    /// Bytes [batch][H][W][C].
    pub(crate) x: u64,
    /// Whether the bytes are signed.
    pub(crate) x_signed: bool,
    /// The factor of the sums over pixels.
    pub(crate) scale: f32,
    /// Halves [batch][y_channels].
    pub(crate) y: u64,
    /// The channels of the result, an even number: the first ones of the input.
    pub(crate) y_channels: usize,
}

/// Bytes of a chunk, which a lane reads at once.
const CHUNK_BYTES: usize = 16;
/// Chunks of a block: `kLanes`.
const LANES: usize = 32;
/// Threads of a block.
const THREADS: u32 = 256;
/// The kernel.
const ENTRY: &str = "sm80_mean_s8";

/// Means over all pixels of bytes.
pub(super) struct MeanS8;

impl Launcher for MeanS8 {
    fn name(&self) -> &'static str {
        "mean_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("mean_s8", &[ENTRY], THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::QuantizedMean(scale) = *step.op() else { return Err(step.wrong_kernel()) };
        let ((x, _, y), input) = (step.pointers(), stored(step.x()));
        let (x_signed, scale) = (step.x().dtype == Dtype::I8, mean_factor(scale, input));
        let y_channels = step.y().stored_channels;
        launch(&S8MeanProblem { batch: step.images(), input, x, x_signed, scale, y, y_channels })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<MeanS8Args>("mean_s8.cu", "MeanS8Args", MeanS8Args::FIELDS)]
    }
}

/// The launch of `problem`.
pub(crate) fn launch(problem: &S8MeanProblem) -> Result<Launch, Error> {
    let S8MeanProblem { batch, input, x, x_signed, scale, y, y_channels } = *problem;
    if !input.channels.is_multiple_of(CHUNK_BYTES) {
        return Err(unsupported("channels", input.channels, "the kernel takes a multiple of 16"));
    }
    if !y_channels.is_multiple_of(2) || !(2..=input.channels).contains(&y_channels) {
        return Err(unsupported("channels of the means", y_channels, "the kernel takes an even number of the input's"));
    }
    let c_chunks = input.channels / CHUNK_BYTES;
    let chunk_blocks = c_chunks.div_ceil(LANES);
    let args = MeanS8Args {
        x: aligned("x", x, 16)?,
        y: aligned("y", y, 16)?,
        images: in_range("images", batch, 1, INDEX_LIMIT)?,
        pixels: in_range("pixels", input.pixels(), 1, MOST_PIXELS + 1)?,
        c_chunks: in_range("channels / 16", c_chunks, 1, INDEX_LIMIT)?,
        chunk_blocks: chunk_blocks as i32, // fewer than c_chunks
        scale,
        flip: u32::from(x_signed) * 0x8080_8080,
        y_words: (y_channels / 2) as i32, // at most 8 * c_chunks
        padding: 0,
    };
    Ok(Launch::flat(ENTRY, product("blocks", &[batch, chunk_blocks])?, THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem() -> S8MeanProblem {
        S8MeanProblem {
            batch: 5,
            input: Shape::new(6, 7, 528),
            x: 0x100,
            x_signed: true,
            scale: 0.25,
            y: 0x200,
            y_channels: 520,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem()).unwrap();
        let expected = MeanS8Args {
            x: 0x100,
            y: 0x200,
            images: 5,
            pixels: 42,
            c_chunks: 33,
            chunk_blocks: 2,
            scale: 0.25,
            flip: 0x8080_8080,
            y_words: 260,
            padding: 0,
        };
        assert_eq!((launch.args.read::<MeanS8Args>(), launch.grid), (expected, [10, 1, 1]));
    }

    #[test]
    fn what_the_kernel_does_not_do_is_an_error() {
        let with = |input| launch(&S8MeanProblem { input, ..problem() });
        for input in [Shape::new(0, 7, 16), Shape::new(6, 7, 24), Shape::new(6, 7, 0), Shape::new(4096, 2049, 16)] {
            assert!(matches!(with(input), Err(Error::Unsupported { .. })), "{input}");
        }
        assert!(launch(&S8MeanProblem { y: 0x208, ..problem() }).is_err());
        for y_channels in [0, 519, 530] {
            assert!(launch(&S8MeanProblem { y_channels, ..problem() }).is_err());
        }
    }
}
