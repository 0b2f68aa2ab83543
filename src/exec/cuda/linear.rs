//! Launches of `kernels/linear.cu`.

use super::implicit_gemm::{self, GemmPointers, GemmProblem};
use super::launch::{Launch, unsupported};
use crate::error::Error;
use crate::model::{Pad, Window};
use crate::plan::ConvTile;
use crate::tensor::{Activation, Shape};

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

/// The kernel for each tile.
pub(super) const ENTRIES: [(ConvTile, &str); ConvTile::LINEAR.len()] = [
    (ConvTile { m: 128, n: 64 }, "sm80_linear_128x64"),
    (ConvTile { m: 64, n: 64 }, "sm80_linear_64x64"),
    (ConvTile { m: 32, n: 64 }, "sm80_linear_32x64"),
];

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &LinearProblem, tile: ConvTile, pointers: &LinearPointers) -> Result<Launch, Error> {
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, entry)| *entry);
    let entry = entry.ok_or_else(|| unsupported("linear tile", tile, "use one of ConvTile::LINEAR"))?;
    let LinearProblem { batch, in_stored, out_stored, activation } = *problem;
    let LinearPointers { x, filter, bias, y } = *pointers;
    let window = Window { size: [1; 2], stride: [1; 2], pad: Pad::all(0), dilation: [1; 2] };
    let (input, output) = (Shape::vector(in_stored), Shape::vector(out_stored));
    implicit_gemm::launch(
        entry,
        tile,
        &GemmProblem { batch, input, output, window, activation },
        &GemmPointers { x, filter, bias, residual: 0, y },
    )
}

#[cfg(test)]
mod tests {
    use super::super::implicit_gemm::ImplicitGemmArgs;
    use super::*;

    const POINTERS: LinearPointers = LinearPointers { x: 0x100, filter: 0x200, bias: 0x300, y: 0x400 };

    #[test]
    fn is_a_convolution_of_single_pixels() {
        let problem = LinearProblem { batch: 33, in_stored: 2048, out_stored: 1000, activation: Activation::None };
        let launch = launch(&problem, ConvTile { m: 32, n: 64 }, &POINTERS).unwrap();
        let args: ImplicitGemmArgs = launch.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.residual, args.y], [0x100, 0x200, 0x300, 0, 0x400]);
        assert_eq!([args.m_pixels, args.out_pixels, args.k_chunks, args.k_stored], [33, 1, 256, 1000]);
        assert_eq!([args.step_r, args.step_s, args.step_c], [0, 0, 8]);
        assert_eq!(launch.grid, [2 * 16, 1, 1]);
        assert_eq!(launch.entry, "sm80_linear_32x64");
    }

    #[test]
    fn tiles_that_are_not_compiled_are_refused() {
        let problem = LinearProblem { batch: 1, in_stored: 8, out_stored: 8, activation: Activation::None };
        let tile = ConvTile { m: 256, n: 64 };
        assert!(matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. })));
    }
}
