//! Launches of `kernels/global_avg_pool.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{INDEX_LIMIT, Launch, aligned, chunks_of, in_range, kernel_args, product};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::tensor::Shape;

kernel_args! {
    /// `GlobalAvgPoolArgs`.
    GlobalAvgPoolArgs, 32 bytes {
        x: u64,
        y: u64,
        images: i32,
        pixels: i32,
        c_chunks: i32,
        chunk_blocks: i32,
    }
}

/// Means over all pixels.
pub(super) struct GlobalAvgPool;

impl Launcher for GlobalAvgPool {
    fn name(&self) -> &'static str {
        "global_avg_pool"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("global_avg_pool", &[ENTRY], THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (x, _, y) = step.pointers();
        let problem = GlobalAvgPoolProblem { batch: step.images(), input: stored(step.x()) };
        launch(&problem, &GlobalAvgPoolPointers { x, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<GlobalAvgPoolArgs>("global_avg_pool.cu", "GlobalAvgPoolArgs", GlobalAvgPoolArgs::FIELDS)]
    }
}

/// A mean over all pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalAvgPoolProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels.
    pub(crate) input: Shape,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GlobalAvgPoolPointers {
    /// Halves [batch][H][W][C].
    pub(crate) x: u64,
    /// Halves [batch][C].
    pub(crate) y: u64,
}

/// Chunks of a block: `kLanes`.
const LANES: usize = 32;
/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernel.
pub(super) const ENTRY: &str = "sm80_global_avg_pool";

/// The launch of `problem`.
pub(crate) fn launch(problem: &GlobalAvgPoolProblem, pointers: &GlobalAvgPoolPointers) -> Result<Launch, Error> {
    let GlobalAvgPoolProblem { batch, input } = *problem;
    let c_chunks = chunks_of("channels", input.channels)?;
    let chunk_blocks = c_chunks.div_ceil(LANES);
    let blocks = product("blocks", &[batch, chunk_blocks])?;
    let args = GlobalAvgPoolArgs {
        x: aligned("x", pointers.x, 16)?,
        y: aligned("y", pointers.y, 16)?,
        images: in_range("images", batch, 1, INDEX_LIMIT)?,
        pixels: product("pixels", &[input.height, input.width])? as i32,
        c_chunks: in_range("channels / 8", c_chunks, 1, INDEX_LIMIT)?,
        chunk_blocks: chunk_blocks as i32, // fewer than c_chunks
    };
    Ok(Launch::flat(ENTRY, blocks, THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POINTERS: GlobalAvgPoolPointers = GlobalAvgPoolPointers { x: 0x100, y: 0x200 };

    #[test]
    fn every_field_gets_its_own_value() {
        let problem = GlobalAvgPoolProblem { batch: 5, input: Shape::new(6, 7, 264) };
        let launch = launch(&problem, &POINTERS).unwrap();
        let args: GlobalAvgPoolArgs = launch.args.read();
        let expected = GlobalAvgPoolArgs { x: 0x100, y: 0x200, images: 5, pixels: 42, c_chunks: 33, chunk_blocks: 2 };
        assert_eq!(args, expected);
        assert_eq!(launch.grid, [10, 1, 1]);
    }

    #[test]
    fn nothing_to_average_is_an_error() {
        let problem = GlobalAvgPoolProblem { batch: 5, input: Shape::new(0, 7, 8) };
        assert!(matches!(launch(&problem, &POINTERS), Err(Error::Unsupported { .. })));
    }
}
