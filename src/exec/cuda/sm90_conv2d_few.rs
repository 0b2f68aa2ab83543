//! Launches of `kernels/sm90_conv2d_few.cu`.

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{FastDivide, INDEX_LIMIT, Launch, aligned, in_range, kernel_args, product, unsupported};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::kernels::{FewTile, MOST_FEW_OUTPUTS, MOST_FEW_TAPS};
use crate::plan::{ActivationKind, FewOp, Kernel, StepOp};
use crate::tensor::Dtype;

kernel_args! {
    /// `FewArgs`.
    FewArgs, 176 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        y: u64,
        image_stride: i64,
        row_stride: i32,
        column_stride: i32,
        channel_stride: i32,
        channels: i32,
        height: i32,
        width: i32,
        out_height: i32,
        out_width: i32,
        k: i32,
        taps: i32,
        stride_h: i32,
        stride_w: i32,
        dilation_h: i32,
        dilation_w: i32,
        pad_top: i32,
        pad_left: i32,
        patch_rows: i32,
        patch_columns: i32,
        patch_pitch: i32,
        column_tiles: i32,
        row_tiles: i32,
        activation: i32,
        activation_a: f32,
        activation_b: f32,
        factor: f32,
        by_patch_columns: FastDivide,
        by_column_tiles: FastDivide,
        by_row_tiles: FastDivide,
        by_taps_wide: FastDivide,
        taps_wide: i32,
    }
}

/// The modules of f16 and bf16.
const MODULES: [&str; 2] = ["sm90_conv2d_few", "sm90_conv2d_few_bf16"];

/// The names of the kernels in the module with this suffix: for each number of taps, one kernel for each number of
/// output channels.
macro_rules! names {
    ($of:literal) => {
        [
            (
                FEW_TAPS,
                [
                    concat!("sm90_conv2d_few_16x12", $of),
                    concat!("sm90_conv2d_few_32x12", $of),
                    concat!("sm90_conv2d_few_64x12", $of),
                ],
            ),
            (
                MOST_FEW_TAPS,
                [
                    concat!("sm90_conv2d_few_16x64", $of),
                    concat!("sm90_conv2d_few_32x64", $of),
                    concat!("sm90_conv2d_few_64x64", $of),
                ],
            ),
        ]
    };
}

/// The kernels of f16 and bf16: the most taps, and a kernel for each of `OUTPUTS`.
const ENTRIES: [[(usize, [&str; 3]); 2]; 2] = [names!(""), names!("_bf16")];
/// The most output channels of each kernel.
const OUTPUTS: [usize; 3] = [16, 32, MOST_FEW_OUTPUTS];
/// The most taps for which a kernel keeps the filter in registers.
const FEW_TAPS: usize = 12;
/// Threads of a block.
const THREADS: u32 = 128;
/// Shared memory of a block, at most.
const SHARED_BYTES: u32 = 48 << 10;
/// The limit, along each axis, of the pixels that windows may see and of the distances of their taps.
const MOST_PIXELS: usize = 1 << 20;

/// Convolutions of images of few channels.
pub(super) struct Sm90Conv2dFew;

impl Launcher for Sm90Conv2dFew {
    fn name(&self) -> &'static str {
        "sm90_conv2d_few"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |module, name| EntryPoint { module, name, threads: THREADS, shared_bytes: SHARED_BYTES, cluster: 1 };
        let of_type = |(module, names): (_, [(usize, [&'static str; 3]); 2])| {
            names.into_iter().flat_map(|(_, names)| names).map(move |name| of(module, name))
        };
        MODULES.into_iter().zip(ENTRIES).flat_map(of_type).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::Few(of), Kernel::Sm90Few) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        let (x, bias, y) = step.pointers();
        let (dtype, filter) = (step.y().dtype, step.filter(step.name()));
        launch(of, &FewOperands { dtype, batch: step.images(), x, filter, bias, y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<FewArgs>("sm90_conv2d_few.cu", "FewArgs", FewArgs::FIELDS)]
    }
}

/// The addresses that a launch reads and writes, with type and batch.
#[derive(Clone, Copy, Debug)]
struct FewOperands {
    /// The type of filter and result: f16 or bf16.
    dtype: Dtype,
    /// Images.
    batch: usize,
    /// Address of the buffer that has the images.
    x: u64,
    /// Address of the filter, `[k][taps][4]`.
    filter: u64,
    /// Address of a float for each output channel, if the operation has biases.
    bias: Option<u64>,
    /// Address of the result.
    y: u64,
}

/// The launch of the operation.
fn launch(of: &FewOp, operands: &FewOperands) -> Result<Launch, Error> {
    let FewOp { conv, input, output, x, factor, activation, bias } = of;
    let tile = FewTile::of(&conv.window, *output).filter(|_| of.has_kernel());
    let tile = tile.ok_or_else(|| unsupported("a convolution of few channels", of.label(), "the kernel does not"))?;
    let ([r, s], [row_tiles, column_tiles]) = (conv.window.size, tile.tiles);
    let blocks = product("blocks", &[operands.batch, row_tiles, column_tiles])?;
    let (kind, [activation_a, activation_b]) = activation.kind();
    let stride = |what, index: usize, most| in_range(what, x.strides[index], 0, most);
    let pixels = |what, value: usize| in_range(what, value, 0, MOST_PIXELS);
    let size = |what, value: usize| in_range(what, value, 1, MOST_PIXELS);
    let args = FewArgs {
        x: aligned("x", operands.x + 4 * x.first as u64, 4)?,
        filter: aligned("filter", operands.filter, 8)?,
        bias: match (bias, operands.bias) {
            (true, Some(address)) => aligned("bias", address, 8)?,
            _ => 0,
        },
        y: aligned("y", operands.y, 16)?,
        image_stride: i64::from(stride("image stride", 0, INDEX_LIMIT)?),
        row_stride: stride("row stride", 1, INDEX_LIMIT)?,
        column_stride: stride("column stride", 2, INDEX_LIMIT)?,
        channel_stride: stride("channel stride", 3, INDEX_LIMIT)?,
        channels: input.channels as i32,
        height: size("height", input.height)?,
        width: size("width", input.width)?,
        out_height: size("output height", output.height)?,
        out_width: size("output width", output.width)?,
        k: output.channels as i32,
        taps: (r * s) as i32,
        stride_h: size("stride", conv.window.stride[0])?,
        stride_w: size("stride", conv.window.stride[1])?,
        dilation_h: size("dilation", conv.window.dilation[0])?,
        dilation_w: size("dilation", conv.window.dilation[1])?,
        pad_top: pixels("padding", conv.window.pad.top)?,
        pad_left: pixels("padding", conv.window.pad.left)?,
        patch_rows: tile.patch[0] as i32,
        patch_columns: tile.patch[1] as i32,
        patch_pitch: tile.pitch as i32,
        column_tiles: column_tiles as i32,
        row_tiles: row_tiles as i32,
        activation: code(kind),
        activation_a,
        activation_b,
        factor: *factor,
        by_patch_columns: FastDivide::by(tile.patch[1] as u32),
        by_column_tiles: FastDivide::by(column_tiles as u32),
        by_row_tiles: FastDivide::by(row_tiles as u32),
        by_taps_wide: FastDivide::by(s as u32),
        taps_wide: s as i32,
    };
    let entry = entry(operands.dtype, r * s, output.channels)?;
    Ok(Launch { shared_bytes: tile.shared_bytes() as u32, ..Launch::flat(entry, blocks, THREADS, &args) })
}

/// The kernel with the fewest taps and output channels that suffice.
fn entry(dtype: Dtype, taps: usize, outputs: usize) -> Result<&'static str, Error> {
    let [few, many] = of_half(dtype, ENTRIES)?;
    let (_, names) = if taps <= few.0 { few } else { many };
    let index = OUTPUTS.iter().position(|most| outputs <= *most);
    index.map(|index| names[index]).ok_or_else(|| unsupported("output channels", outputs, "the kernel takes up to 64"))
}

/// The kernel's number of a kind of activation.
const fn code(kind: ActivationKind) -> i32 {
    match kind {
        ActivationKind::Clamped => 0,
        ActivationKind::Sigmoid => 1,
        ActivationKind::Ramp => 2,
        ActivationKind::Erf => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::{Conv2d, Pad, Window};
    use crate::plan::{ImagesAt, ProductActivation};
    use crate::tensor::Shape;

    const OPERANDS: FewOperands =
        FewOperands { dtype: Dtype::F16, batch: 5, x: 0x100, filter: 0x208, bias: Some(0x308), y: 0x400 };

    /// A problem whose sizes, strides and distances all differ.
    fn problem() -> FewOp {
        let pad = Pad { top: 6, left: 4, bottom: 1, right: 1 };
        let window = Window { size: [2, 3], stride: [3, 2], pad, dilation: [7, 5] };
        FewOp {
            conv: Conv2d::named("first", 24, window),
            input: Shape::new(91, 87, 3),
            output: Shape::new(31, 41, 24),
            x: ImagesAt { first: 9, strides: [30_000, 100, 1, 9000] },
            factor: 0.25,
            activation: ProductActivation::HardSwish,
            bias: true,
        }
    }

    #[test]
    fn constants_agree_with_the_source() {
        let source = read("sm90_conv2d_few.cu");
        let has = |line: &str| assert!(source.contains(line), "{line}");
        has(&format!("kFewThreads = {THREADS};"));
        has("kWarpRows = 2;");
        has("kTileColumns = 32;");
        has("kPixelBytes = 8;");
        has("kClamped = 0, kSigmoid = 1, kRamp = 2, kErf = 3");
        for (index, most) in OUTPUTS.into_iter().enumerate() {
            for (taps, names) in ENTRIES[0] {
                has(&format!("TREFOIL_SM90_CONV2D_FEW({most}, {taps}, "));
                assert_eq!(names[index], format!("sm90_conv2d_few_{most}x{taps}"));
            }
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&problem(), &OPERANDS).unwrap();
        let args: FewArgs = of.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.y], [0x100 + 36, 0x208, 0x308, 0x400]);
        assert_eq!((args.image_stride, args.row_stride, args.column_stride), (30_000, 100, 1));
        assert_eq!((args.channel_stride, args.channels), (9000, 3));
        assert_eq!([args.height, args.width, args.out_height, args.out_width], [91, 87, 31, 41]);
        assert_eq!([args.k, args.taps, args.taps_wide], [24, 6, 3]);
        assert_eq!([args.stride_h, args.stride_w, args.dilation_h, args.dilation_w], [3, 2, 7, 5]);
        assert_eq!([args.pad_top, args.pad_left], [6, 4]);
        // 7 * 3 + 1 * 7 + 1 rows, 31 * 2 + 2 * 5 + 1 columns.
        assert_eq!([args.patch_rows, args.patch_columns, args.patch_pitch], [29, 73, 704]);
        assert_eq!([args.column_tiles, args.row_tiles], [2, 4]);
        assert_eq!((args.activation, args.activation_a, args.activation_b), (2, 1.0 / 6.0, 0.5));
        assert_eq!(args.factor, 0.25);
        assert_eq!([args.by_patch_columns.divide(146), args.by_column_tiles.divide(7)], [2, 3]);
        assert_eq!([args.by_row_tiles.divide(9), args.by_taps_wide.divide(5)], [2, 1]);
        assert_eq!((&*of.entry, of.grid, of.block), ("sm90_conv2d_few_32x12", [40, 1, 1], [128, 1, 1]));
        assert_eq!((of.shared_bytes, of.waits_itself), (29 * 704, false));
    }

    #[test]
    fn taps_channels_and_type_choose_the_kernel() {
        let of = |dtype, size, outputs| {
            let mut of = problem();
            (of.conv.window, of.conv.out_channels) = (Window::square(size, 2, 1), outputs);
            of.output.channels = outputs;
            launch(&of, &FewOperands { dtype, ..OPERANDS }).map(|launch| launch.entry.into_owned())
        };
        assert_eq!(of(Dtype::F16, 3, 8).unwrap(), "sm90_conv2d_few_16x12");
        assert_eq!(of(Dtype::Bf16, 3, 64).unwrap(), "sm90_conv2d_few_64x12_bf16");
        assert_eq!(of(Dtype::F16, 7, 40).unwrap(), "sm90_conv2d_few_64x64");
        assert!(of(Dtype::F32, 3, 8).is_err() && of(Dtype::F16, 9, 8).is_err() && of(Dtype::F16, 3, 72).is_err());
    }

    #[test]
    fn what_the_kernel_does_not_survive_is_refused() {
        let refused = |operands: FewOperands| launch(&problem(), &operands).is_err();
        assert!(!refused(OPERANDS) && !refused(FewOperands { bias: None, ..OPERANDS }));
        assert!(refused(FewOperands { x: 0x102, ..OPERANDS }) && refused(FewOperands { filter: 0x204, ..OPERANDS }));
        assert!(
            refused(FewOperands { bias: Some(0x304), ..OPERANDS }) && refused(FewOperands { y: 0x408, ..OPERANDS })
        );
        assert!(refused(FewOperands { batch: 0, ..OPERANDS }) && refused(FewOperands { batch: 1 << 28, ..OPERANDS }));
        let mut of = problem();
        of.conv.window.pad.top = 1 << 20;
        assert!(launch(&of, &OPERANDS).is_err());
    }
}
