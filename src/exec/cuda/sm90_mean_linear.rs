//! Launches of `kernels/sm90_mean_linear.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, aligned, chunks_of, in_range, kernel_args, product, unsupported};
use super::sm90_tail::TailBytes;
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::StepOp;
use crate::plan::kernels::{MOST_PIXELS, MeanLinearShape, TAIL_THREADS};
use crate::tensor::{OutputKind, Shape};

kernel_args! {
    /// `MeanLinearArgs`.
    MeanLinearArgs, 72 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        y: u64,
        images: i32,
        pixels: i32,
        c_chunks: i32,
        outputs: i32,
        share_chunks: i32,
        scale: f32,
        flip: u32,
        y_pitch: i32,
        by_share_chunks: FastDivide,
    }
}

/// The launcher of the mean and the linear layer of few images.
pub(super) struct Sm90MeanLinear;

impl Launcher for Sm90MeanLinear {
    fn name(&self) -> &'static str {
        "sm90_mean_linear"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let input = Shape::vector(MeanLinearShape::CHANNELS);
        let most = MeanLinearShape { batch: MeanLinearShape::IMAGES, input };
        let shared_bytes = most.shared_bytes() as u32;
        let of = |name| EntryPoint { module: "sm90_mean_linear", name, threads: THREADS, shared_bytes, cluster: 16 };
        ENTRIES.map(of).to_vec()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let StepOp::Tail(tail) = step.op() else { return Err(step.wrong_kernel()) };
        let ((x, _, y), (filter, bias)) = (step.pointers(), step.weights());
        let input = stored(step.x());
        let [outputs, pitch] = match tail.output {
            None => [step.y().stored_channels, 4 * step.y().stored_channels],
            Some(OutputKind::Logits) => [tail.linear.out_features, step.output_rows().row_pitch],
            Some(_) => return Err(step.wrong_kernel()),
        };
        let problem = MeanLinearProblem {
            shape: MeanLinearShape { batch: step.images(), input },
            bytes: TailBytes::of(tail, step.x()),
            outputs,
            pitch,
        };
        launch(&problem, MeanLinearShape::blocks(step.limits()), [x, filter, bias, y])
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<MeanLinearArgs>("sm90_mean_linear.cu", "MeanLinearArgs", MeanLinearArgs::FIELDS)]
    }
}

/// Threads of a block.
const THREADS: u32 = TAIL_THREADS as u32;
/// The kernels of halves and of bytes.
const ENTRIES: [&str; 2] = ["sm90_mean_linear", "sm90_mean_linear_bytes"];

/// Means and the layer of them.
#[derive(Clone, Copy)]
struct MeanLinearProblem {
    shape: MeanLinearShape,
    /// The type and scale of activations that are bytes; `None` for halves.
    bytes: Option<TailBytes>,
    /// Outputs that are written.
    outputs: usize,
    /// Distance from the outputs of one image to those of the next, in bytes.
    pitch: usize,
}

/// The launch of `problem` in clusters of so many blocks, with x, filter, bias and y at these addresses.
fn launch(problem: &MeanLinearProblem, blocks: usize, [x, filter, bias, y]: [u64; 4]) -> Result<Launch, Error> {
    let MeanLinearProblem { shape, bytes, outputs, pitch } = *problem;
    if !shape.is_few() {
        let instead = format!("at most {} images of {}", MeanLinearShape::IMAGES, MeanLinearShape::CHANNELS);
        return Err(unsupported("images or channels", shape.batch.max(shape.input.channels), &instead));
    }
    if pitch < 4 * outputs || !pitch.is_multiple_of(4) {
        return Err(unsupported("row pitch", pitch, &format!("a multiple of 4 bytes, {} or more", 4 * outputs)));
    }
    let c_chunks = chunks_of("channels", shape.input.channels)?;
    let share_chunks = c_chunks.div_ceil(blocks);
    let most_pixels = if bytes.is_some() { MOST_PIXELS + 1 } else { 1 << 25 };
    let pixels = product("pixels", &[shape.input.height, shape.input.width])? as usize;
    let args = MeanLinearArgs {
        x: aligned("x", x, 16)?,
        filter: aligned("filter", filter, 16)?,
        bias: aligned("bias", bias, 4)?,
        y: aligned("y", y, 4)?,
        images: in_range("images", shape.batch, 1, MeanLinearShape::IMAGES + 1)?,
        pixels: in_range("pixels", pixels, 1, most_pixels)?,
        c_chunks: in_range("channels / 8", c_chunks, 1, MeanLinearShape::CHANNELS / 8 + 1)?,
        outputs: in_range("outputs", outputs, 1, 1 << 20)?,
        share_chunks: share_chunks as i32, // at most `c_chunks`
        scale: bytes.map_or(0.0, |bytes| bytes.scale),
        flip: if bytes.is_some_and(|bytes| bytes.signed) { 0x8080_8080 } else { 0 },
        y_pitch: in_range("row pitch / 4", pitch / 4, 1, 1 << 31)?,
        by_share_chunks: FastDivide::by(share_chunks as u32),
    };
    let grid = outputs.div_ceil(MeanLinearShape::OUTPUTS).next_multiple_of(blocks);
    Ok(Launch {
        entry: ENTRIES[usize::from(bytes.is_some())].into(),
        grid: [product("blocks", &[grid])?, 1, 1],
        cluster: blocks as u32,
        block: [THREADS, 1, 1],
        shared_bytes: shape.shared_bytes() as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MeanLinearShape = MeanLinearShape { batch: 3, input: Shape::new(6, 7, 1272) };
    const PROBLEM: MeanLinearProblem = MeanLinearProblem { shape: SHAPE, bytes: None, outputs: 1001, pitch: 4096 };

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&PROBLEM, 16, [0x100, 0x200, 0x304, 0x404]).unwrap();
        let args: MeanLinearArgs = of.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.y], [0x100, 0x200, 0x304, 0x404]);
        assert_eq!([args.images, args.pixels, args.c_chunks, args.share_chunks], [3, 42, 159, 10]);
        assert_eq!([args.outputs, args.y_pitch], [1001, 1024]);
        assert_eq!((args.by_share_chunks.divide(159), args.scale, args.flip), (15, 0.0, 0));
        assert_eq!((&*of.entry, of.grid, of.cluster, of.block), ("sm90_mean_linear", [128, 1, 1], 16, [512, 1, 1]));
        assert_eq!((of.shared_bytes, of.waits_itself), (16384 + 3 * 164 * 16, true));
        let bytes = Some(TailBytes { signed: true, scale: 0.25 });
        let of = launch(&MeanLinearProblem { bytes, ..PROBLEM }, 8, [0x100, 0x200, 0x304, 0x404]).unwrap();
        let args: MeanLinearArgs = of.args.read();
        assert_eq!((&*of.entry, args.scale, args.flip), ("sm90_mean_linear_bytes", 0.25, 0x8080_8080));
        assert_eq!((of.grid, of.cluster, args.share_chunks), ([128, 1, 1], 8, 20));
    }

    #[test]
    fn what_the_kernel_does_not_do_is_refused() {
        let of = |problem: MeanLinearProblem| launch(&problem, 16, [0x100, 0x200, 0x304, 0x404]);
        let refused = |problem| matches!(of(problem), Err(Error::Unsupported { .. }));
        let shaped = |shape| refused(MeanLinearProblem { shape, ..PROBLEM });
        assert!(of(PROBLEM).is_ok());
        assert!(shaped(MeanLinearShape { batch: 9, ..SHAPE }));
        assert!(shaped(MeanLinearShape { batch: 0, ..SHAPE }));
        assert!(shaped(MeanLinearShape { input: Shape::new(6, 7, 2056), ..SHAPE }));
        assert!(refused(MeanLinearProblem { outputs: 1 << 20, pitch: 4 << 20, ..PROBLEM }));
        assert!(refused(MeanLinearProblem { pitch: 4000, ..PROBLEM }));
        assert!(refused(MeanLinearProblem { pitch: 4098, ..PROBLEM }));
    }
}
