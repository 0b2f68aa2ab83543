//! Launches of `kernels/linear.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    FastDivide, Launch, activation_code, aligned, chunks_of, in_range, kernel_args, product, unsupported,
};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::{ConvTile, Kernel};
use crate::tensor::Activation;

kernel_args! {
    /// `LinearArgs`.
    LinearArgs, 56 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        y: u64,
        images: i32,
        c_chunks: i32,
        k_stored: i32,
        activation: i32,
        by_n_tiles: FastDivide,
    }
}

/// Linear layers on any GPU.
pub(super) struct Linear;

impl Launcher for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("linear", &ENTRIES.map(|(_, name)| name), THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Sm80Gemm(tile) = step.kernel() else { return Err(step.wrong_kernel()) };
        launch(&LinearProblem::of(step), tile, &LinearPointers::of(step))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<LinearArgs>("linear.cu", "LinearArgs", LinearArgs::FIELDS)]
    }
}

/// A fully connected layer with bias.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearProblem {
    /// Images.
    pub(crate) batch: usize,
    /// Stored channels of the input.
    pub(crate) in_stored: usize,
    /// Stored channels of the output.
    pub(crate) out_stored: usize,
    /// Applied last.
    pub(crate) activation: Activation,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinearPointers {
    /// Halves [batch][C].
    pub(crate) x: u64,
    /// Halves [K][C].
    pub(crate) filter: u64,
    /// Floats [K].
    pub(crate) bias: u64,
    /// Floats [batch][K].
    pub(crate) y: u64,
}

impl LinearProblem {
    pub(super) fn of(step: &Operands<'_>) -> Self {
        let [in_stored, out_stored] = [step.x(), step.y()].map(|tensor| tensor.stored_channels);
        Self { batch: step.images(), in_stored, out_stored, activation: Activation::None }
    }
}

impl LinearPointers {
    pub(super) fn of(step: &Operands<'_>) -> Self {
        let ((x, _, y), (filter, bias)) = (step.pointers(), step.weights());
        Self { x, filter, bias, y }
    }
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernel for each tile.
pub(super) const ENTRIES: [(ConvTile, &str); ConvTile::LINEAR.len()] = [
    (ConvTile { m: 64, n: 32 }, "sm80_linear_64x32"),
    (ConvTile { m: 32, n: 32 }, "sm80_linear_32x32"),
    (ConvTile { m: 32, n: 16 }, "sm80_linear_32x16"),
    (ConvTile { m: 32, n: 8 }, "sm80_linear_32x8"),
    (ConvTile { m: 16, n: 8 }, "sm80_linear_16x8"),
];

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &LinearProblem, tile: ConvTile, pointers: &LinearPointers) -> Result<Launch, Error> {
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, entry)| *entry);
    let entry = entry.ok_or_else(|| unsupported("linear tile", tile, "use one of ConvTile::LINEAR"))?;
    let LinearProblem { batch, in_stored, out_stored, activation } = *problem;
    chunks_of("output channels", out_stored)?;
    let n_tiles = out_stored.div_ceil(tile.n);
    let args = LinearArgs {
        x: aligned("x", pointers.x, 16)?,
        filter: aligned("filter", pointers.filter, 16)?,
        bias: aligned("bias", pointers.bias, 16)?,
        y: aligned("y", pointers.y, 16)?,
        images: in_range("images", batch, 1, 1 << 28)?,
        c_chunks: in_range("channels / 8", chunks_of("channels", in_stored)?, 1, 1 << 25)?,
        k_stored: in_range("output channels", out_stored, 1, 1 << 20)?,
        activation: activation_code(activation)?,
        by_n_tiles: FastDivide::by(n_tiles as u32),
    };
    let blocks = product("blocks", &[batch.div_ceil(tile.m), n_tiles])?;
    Ok(Launch::flat(entry, blocks, THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const POINTERS: LinearPointers = LinearPointers { x: 0x100, filter: 0x200, bias: 0x300, y: 0x400 };

    #[test]
    fn every_field_gets_its_own_value() {
        let problem = LinearProblem { batch: 33, in_stored: 2048, out_stored: 1000, activation: Activation::Relu6 };
        let launch = launch(&problem, ConvTile { m: 32, n: 16 }, &POINTERS).unwrap();
        let args: LinearArgs = launch.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.y], [0x100, 0x200, 0x300, 0x400]);
        assert_eq!([args.images, args.c_chunks, args.k_stored, args.activation], [33, 256, 1000, 2]);
        assert_eq!(args.by_n_tiles.divide(126), 2);
        assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([2 * 63, 1, 1], [256, 1, 1], 0));
        assert_eq!(launch.entry, "sm80_linear_32x16");
    }

    #[test]
    fn tiles_that_are_not_compiled_are_refused() {
        let problem = LinearProblem { batch: 1, in_stored: 8, out_stored: 8, activation: Activation::None };
        let tile = ConvTile { m: 32, n: 64 };
        assert!(matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("linear.cu");
        let tiles = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_LINEAR(")?.strip_suffix(')'));
        let tiles: Vec<_> = tiles.map(|tile| tile.replace(", ", "x")).collect();
        assert_eq!(tiles, ConvTile::LINEAR.map(|tile| tile.to_string()));
        assert_eq!(ENTRIES.map(|(tile, _)| tile), ConvTile::LINEAR);
    }
}
