//! Launches of `kernels/sm90_tail.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, aligned, chunks_of, in_range, kernel_args, product, unsupported,
};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::kernels::{MOST_PIXELS, TAIL_THREADS, TAIL_UNIT, TailShape};
use crate::plan::{Kernel, StepOp, Tail, TailTile, Tensor, mean_factor};
use crate::tensor::{Dtype, OutputKind, Shape};

kernel_args! {
    /// `TailArgs`.
    TailArgs, 96 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        y: u64,
        row_pitch_bytes: u64,
        images: i32,
        pixels: i32,
        c_chunks: i32,
        channels: i32,
        k_stored: i32,
        cluster_images: i32,
        share_chunks: i32,
        share_units: i32,
        rows: i32,
        top_k: i32,
        by_share_chunks: FastDivide,
        scale: f32,
        flip: u32,
    }
}

/// A network's last layers.
pub(super) struct Sm90Tail;

impl Launcher for Sm90Tail {
    fn name(&self) -> &'static str {
        "sm90_tail"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |name| {
            let (threads, shared_bytes) = (THREADS, MOST_SHARED_BYTES);
            EntryPoint { module: "sm90_tail", name, threads, shared_bytes, cluster: 16 }
        };
        ENTRIES.into_iter().flat_map(|(_, names)| names.map(of)).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::Tail(tail @ Tail { output: Some(output), .. }), Kernel::Sm90Tail(tile)) =
            (step.op(), step.kernel())
        else {
            return Err(step.wrong_kernel());
        };
        let ((x, _, y), (filter, bias)) = (step.pointers(), step.weights());
        let input = stored(step.x());
        let problem = TailProblem {
            batch: step.images(),
            input,
            bytes: TailBytes::of(tail, step.x()),
            channels: tail.linear.out_features,
            output: *output,
            row_pitch: step.output_rows().row_pitch,
        };
        launch(&problem, tile, &TailPointers { x, filter, bias, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<TailArgs>("sm90_tail.cu", "TailArgs", TailArgs::FIELDS)]
    }
}

/// Activations that become rows of the result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailProblem {
    /// Images.
    pub(crate) batch: usize,
    /// H, W and the stored channels.
    pub(crate) input: Shape,
    /// The type and scale of activations that are bytes; `None` for halves.
    pub(crate) bytes: Option<TailBytes>,
    /// Logical output channels of the linear layer.
    pub(crate) channels: usize,
    /// The content of an output row; features are refused.
    pub(crate) output: OutputKind,
    /// Distance from one row of the result to the next, in bytes.
    pub(crate) row_pitch: usize,
}

/// Activations in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailBytes {
    /// Whether the bytes are signed.
    pub(crate) signed: bool,
    /// The factor of the sums over pixels.
    pub(crate) scale: f32,
}

impl TailBytes {
    /// Those of a tail that reads `x`; `None` if it reads halves.
    pub(super) fn of(tail: &Tail, x: &Tensor) -> Option<Self> {
        let signed = x.dtype == Dtype::I8;
        tail.x_scale.map(|scale| Self { signed, scale: mean_factor(scale, stored(x)) })
    }
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TailPointers {
    /// Halves or bytes [batch][H][W][C].
    pub(crate) x: u64,
    /// Halves [K][C].
    pub(crate) filter: u64,
    /// Floats [K].
    pub(crate) bias: u64,
    /// The result's rows.
    pub(crate) y: u64,
}

/// Threads of a block.
pub(super) const THREADS: u32 = TAIL_THREADS as u32;
/// The most dynamic shared memory of a block.
pub(super) const MOST_SHARED_BYTES: u32 = SM90_SHARED_BYTES - 256;
/// The kernels of halves and of bytes, with the most images of a cluster.
pub(super) const ENTRIES: [(usize, [&str; 2]); TailTile::IMAGES.len()] =
    [(8, ["sm90_tail_8", "sm90_tail_bytes_8"]), (16, ["sm90_tail_16", "sm90_tail_bytes_16"])];

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &TailProblem, tile: TailTile, pointers: &TailPointers) -> Result<Launch, Error> {
    let TailProblem { batch, input, bytes, channels, output, row_pitch } = *problem;
    let entry = tile.kernel().and_then(|[most, _]| ENTRIES.iter().find(|(images, _)| *images == most));
    let &(most, entries) = entry.ok_or_else(|| unsupported("tail tile", tile, "use TailTile::IMAGES and BLOCKS"))?;
    let c_chunks = chunks_of("channels", input.channels)?;
    let k_stored = channels.next_multiple_of(8);
    let (rows, top_k, row_bytes) = match output {
        OutputKind::Logits => (0, 0, channels * 4),
        OutputKind::Probabilities => (1, 0, channels * 4),
        OutputKind::TopK(k) => (2, in_range("k of top k", k, 1, 64.min(channels) + 1)?, k * 8),
        OutputKind::Features => return Err(unsupported("output", "features", "they have no linear layer")),
    };
    if row_pitch < row_bytes || !row_pitch.is_multiple_of(8) {
        return Err(unsupported("row pitch", row_pitch, &format!("at least {row_bytes} and a multiple of 8")));
    }
    let dtype = bytes.map_or(Dtype::F16, |bytes| if bytes.signed { Dtype::I8 } else { Dtype::U8 });
    let shared = TailShape { batch, input, dtype, k_stored, output }.shared_bytes(tile).map(u32::try_from);
    let Some(Ok(shared_bytes @ ..=MOST_SHARED_BYTES)) = shared else {
        return Err(unsupported("tail tile", tile, "a block has no room for so many channels or outputs"));
    };
    let share_chunks = c_chunks.div_ceil(tile.blocks);
    product("channels of a cluster", &[share_chunks, most, 8])?;
    let most_pixels = if bytes.is_some() { MOST_PIXELS + 1 } else { 1 << 28 };
    let args = TailArgs {
        x: aligned("x", pointers.x, 16)?,
        filter: aligned("filter", pointers.filter, 16)?,
        bias: aligned("bias", pointers.bias, 4)?,
        y: aligned("y", pointers.y, 8)?,
        row_pitch_bytes: row_pitch as u64,
        images: in_range("images", batch, 1, 1 << 28)?,
        pixels: in_range("pixels", product("pixels", &[input.height, input.width])? as usize, 1, most_pixels)?,
        c_chunks: in_range("channels / 8", c_chunks, 1, 1 << 25)?,
        channels: in_range("outputs", channels, 1, 1 << 20)?,
        k_stored: k_stored as i32, // near `channels`
        cluster_images: tile.images as i32,
        share_chunks: share_chunks as i32,
        share_units: k_stored.div_ceil(tile.blocks).div_ceil(TAIL_UNIT) as i32,
        rows,
        top_k,
        by_share_chunks: FastDivide::by(share_chunks as u32),
        scale: bytes.map_or(0.0, |bytes| bytes.scale),
        flip: if bytes.is_some_and(|bytes| bytes.signed) { 0x8080_8080 } else { 0 },
    };
    Ok(Launch {
        entry: entries[usize::from(bytes.is_some())].into(),
        grid: [product("blocks", &[batch.div_ceil(tile.images), tile.blocks])?, 1, 1],
        cluster: tile.blocks as u32,
        block: [THREADS, 1, 1],
        shared_bytes,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;

    const POINTERS: TailPointers = TailPointers { x: 0x100, filter: 0x200, bias: 0x304, y: 0x408 };

    fn problem() -> TailProblem {
        let input = Shape::new(6, 7, 1272);
        TailProblem { batch: 35, input, bytes: None, channels: 1001, output: OutputKind::TopK(5), row_pitch: 256 }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), TailTile { images: 9, blocks: 16 }, &POINTERS).unwrap();
        let args: TailArgs = launch.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.y, args.row_pitch_bytes], [0x100, 0x200, 0x304, 0x408, 256]);
        assert_eq!([args.images, args.pixels, args.c_chunks, args.channels, args.k_stored], [35, 42, 159, 1001, 1008]);
        assert_eq!([args.cluster_images, args.share_chunks, args.share_units], [9, 10, 2]);
        assert_eq!([args.rows, args.top_k], [2, 5]);
        assert_eq!(args.by_share_chunks.divide(159), 15);
        assert_eq!((launch.grid, launch.cluster, launch.block), ([4 * 16, 1, 1], 16, [512, 1, 1]));
        assert_eq!(launch.shared_bytes, 3 * 32768 + 32768 + 9 * 164 * 16 + 1008 * 4);
        assert_eq!((&*launch.entry, launch.waits_itself, args.scale, args.flip), ("sm90_tail_16", true, 0.0, 0));
        let bytes = Some(TailBytes { signed: true, scale: 0.25 });
        let launch = super::launch(&TailProblem { bytes, ..problem() }, TailTile { images: 8, blocks: 8 }, &POINTERS);
        let launch = launch.unwrap();
        let args: TailArgs = launch.args.read();
        assert_eq!((&*launch.entry, args.scale, args.flip), ("sm90_tail_bytes_8", 0.25, 0x8080_8080));
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |change: fn(&mut TailProblem, &mut TailTile)| {
            let (mut problem, mut tile) = (problem(), TailTile { images: 8, blocks: 8 });
            change(&mut problem, &mut tile);
            matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(!refused(|_, _| ()));
        assert!(refused(|_, tile| tile.images = 17));
        assert!(refused(|_, tile| tile.images = 0));
        assert!(refused(|_, tile| tile.blocks = 4));
        assert!(refused(|problem, _| problem.output = OutputKind::Features));
        assert!(refused(|problem, _| problem.output = OutputKind::TopK(65)));
        assert!(refused(|problem, _| problem.row_pitch = 36));
        assert!(refused(|problem, _| problem.input.channels = 1 << 16));
        assert!(refused(|problem, _| problem.channels = 1 << 18));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_tail.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_TAIL(")?.strip_suffix(')'));
        let found: Vec<String> = found.map(str::to_owned).collect();
        let listed = |of: usize, pixels: &str| {
            ENTRIES.map(|(images, names)| {
                let [most, stages] = TailTile { images, blocks: 8 }.kernel().unwrap();
                format!("{}, {most}, {stages}, {pixels}", names[of].strip_prefix("sm90_tail_").unwrap())
            })
        };
        assert_eq!(found, [listed(0, "HalfPixels"), listed(1, "BytePixels")].concat());
    }
}
