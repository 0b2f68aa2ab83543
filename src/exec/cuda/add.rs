//! Launches of `kernels/add.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{CHUNK, FastDivide, Launch, activation_code, aligned, chunks_of, kernel_args, pitch, product};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::StepOp;
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `AddArgs`.
    AddArgs, 48 bytes {
        a: u64,
        b: u64,
        out: u64,
        chunks: u32,
        activation: i32,
        c_chunks: i32,
        out_chunks: i32,
        by_c_chunks: FastDivide,
    }
}

/// Elementwise sums and activations.
pub(super) struct Add;

impl Launcher for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("add", &[ENTRY], THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Add(activation) = *step.op() else { return Err(step.wrong_kernel()) };
        let (a, b, out) = step.pointers();
        let (shape, out_pitch) = (stored(step.x()), step.y().pitch);
        launch(&AddProblem { batch: step.images(), shape, out_pitch, activation }, &AddPointers { a, b, out })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<AddArgs>("add.cu", "AddArgs", AddArgs::FIELDS)]
    }
}

/// A sum of two tensors, or one tensor alone, then an activation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels.
    pub(crate) shape: Shape,
    /// Channels from one pixel of the sum to the next.
    pub(crate) out_pitch: usize,
    /// Applied last.
    pub(crate) activation: Activation,
}

/// Device addresses of the operands: halves [batch][H][W][C]. The pixels of the sum are `out_pitch` channels apart.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddPointers {
    /// The first summand.
    pub(crate) a: u64,
    /// The second summand.
    pub(crate) b: Option<u64>,
    /// The sum; may be one of the summands itself if it has no gaps.
    pub(crate) out: u64,
}

/// Threads of a block.
pub(super) const THREADS: u32 = 256;
/// The kernel.
pub(super) const ENTRY: &str = "sm80_add";

/// The launch of `problem`.
pub(crate) fn launch(problem: &AddProblem, pointers: &AddPointers) -> Result<Launch, Error> {
    let AddProblem { batch, shape, out_pitch, activation } = *problem;
    let c_chunks = chunks_of("channels", shape.channels)?;
    let chunks = product("chunks", &[batch, shape.height, shape.width, c_chunks])?;
    let args = AddArgs {
        a: aligned("a", pointers.a, 16)?,
        b: pointers.b.map_or(Ok(0), |b| aligned("b", b, 16))?,
        out: aligned("out", pointers.out, 16)?,
        chunks,
        activation: activation_code(activation)?,
        c_chunks: c_chunks as i32, // a factor of `chunks`
        out_chunks: pitch(out_pitch, shape.channels)? / CHUNK as i32,
        by_c_chunks: FastDivide::by(c_chunks as u32),
    };
    Ok(Launch::flat(ENTRY, chunks.div_ceil(THREADS), THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_gets_its_own_value() {
        let problem =
            AddProblem { batch: 3, shape: Shape::new(5, 7, 32), out_pitch: 72, activation: Activation::Relu6 };
        let launch = launch(&problem, &AddPointers { a: 0x100, b: Some(0x200), out: 0x300 }).unwrap();
        let args: AddArgs = launch.args.read();
        assert_eq!([args.a, args.b, args.out], [0x100, 0x200, 0x300]);
        assert_eq!((args.chunks, args.activation), (420, 2));
        assert_eq!([args.c_chunks, args.out_chunks], [4, 9]);
        assert_eq!(args.by_c_chunks.divide(419), 104);
        assert_eq!(launch.grid, [2, 1, 1]);
    }

    #[test]
    fn the_second_summand_may_be_missing_but_not_misaligned() {
        let problem = AddProblem { batch: 1, shape: Shape::vector(8), out_pitch: 8, activation: Activation::Relu };
        let one = launch(&problem, &AddPointers { a: 0x100, b: None, out: 0x100 }).unwrap();
        assert_eq!(one.args.read::<AddArgs>().b, 0);
        let odd = launch(&problem, &AddPointers { a: 0x100, b: Some(0x104), out: 0x100 });
        assert!(matches!(odd, Err(Error::Option { option: "b", .. })));
    }
}
