//! Launches of `kernels/sm90_squeeze_excite.cu`.

use std::f64::consts::LOG2_E;

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher, of_half};
use super::launch::{ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, aligned, kernel_args, product, unsupported};
use super::steps::Operands;
use crate::error::Error;
use crate::plan::kernels::{MOST_SQUEEZE_BLOCKS, SQUEEZE_LOADS, SQUEEZE_THREADS, SqueezeLayout};
use crate::plan::{ActivationKind, Gate, Kernel, Limits, ProductActivation, SqueezeExciteOp, SqueezeTile, StepOp};
use crate::tensor::Dtype;

kernel_args! {
    /// `SqueezeExciteArgs`.
    SqueezeExciteArgs, 216 bytes {
        x: u64,
        squeeze: u64,
        squeeze_bias: u64,
        excite: u64,
        excite_bias: u64,
        y: u64,
        images: i32,
        pixels: i32,
        chunks: i32,
        hidden: i32,
        channel_parts: i32,
        parts: i32,
        part_chunks: i32,
        part_pixels: i32,
        rows: i32,
        groups: i32,
        squeeze_lanes: i32,
        excite_lanes: i32,
        activation: i32,
        hidden_activation: i32,
        gate: i32,
        activation_a: f32,
        activation_b: f32,
        hidden_a: f32,
        hidden_b: f32,
        gate_slope: f32,
        gate_offset: f32,
        per_pixel: f32,
        by_part_chunks: FastDivide,
        by_hidden_chunks: FastDivide,
        by_channel_parts: FastDivide,
        by_rows: FastDivide,
        squeeze_pitch: i32,
        excite_pitch: i32,
        excite_at: i32,
        sums_at: i32,
        groups_at: i32,
        means_at: i32,
        parts_at: i32,
        hidden_at: i32,
        gates_at: i32,
        biases_at: i32,
        clusters: i32,
        padding: i32,
    }
}

/// The modules of f16 and bf16.
const MODULES: [&str; 2] = ["sm90_squeeze_excite", "sm90_squeeze_excite_bf16"];

/// The names of the kernels in the module with this suffix: one for each of `SQUEEZE_LOADS`.
macro_rules! names {
    ($of:literal) => {
        [
            concat!("sm90_squeeze_excite_2", $of),
            concat!("sm90_squeeze_excite_4", $of),
            concat!("sm90_squeeze_excite_7", $of),
            concat!("sm90_squeeze_excite_9", $of),
        ]
    };
}

/// The kernels of f16 and bf16.
const ENTRIES: [[&str; 4]; 2] = [names!(""), names!("_bf16")];
/// Threads of a block.
const THREADS: u32 = SQUEEZE_THREADS as u32;

/// Squeeze and excitation.
pub(super) struct Sm90SqueezeExcite;

impl Launcher for Sm90SqueezeExcite {
    fn name(&self) -> &'static str {
        "sm90_squeeze_excite"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let (shared_bytes, cluster) = (SM90_SHARED_BYTES, MOST_SQUEEZE_BLOCKS as u32);
        let of = |(module, name)| EntryPoint { module, name, threads: THREADS, shared_bytes, cluster };
        MODULES.into_iter().zip(ENTRIES).flat_map(|(module, names)| names.map(|name| (module, name))).map(of).collect()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::SqueezeExcite(of), Kernel::Sm90SqueezeExcite(tile)) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        let (x, _, y) = step.pointers();
        let filters = [&of.squeeze, &of.excite].map(|layer| step.filter(&layer.name));
        let biases = [0, 1].map(|sum| step.bias(sum));
        let operands = SqueezeOperands { dtype: step.x().dtype, batch: step.images(), x, filters, biases, y };
        launch(of, tile, step.limits(), &operands)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        let fields = SqueezeExciteArgs::FIELDS;
        vec![Arguments::of::<SqueezeExciteArgs>("sm90_squeeze_excite.cu", "SqueezeExciteArgs", fields)]
    }
}

/// The addresses that a launch reads and writes, with type and batch.
#[derive(Clone, Copy, Debug)]
struct SqueezeOperands {
    /// The type of images and filters: f16 or bf16.
    dtype: Dtype,
    /// Images.
    batch: usize,
    /// Address of the images.
    x: u64,
    /// Addresses of the filters of both layers.
    filters: [u64; 2],
    /// Addresses of a float for each value of each layer's result.
    biases: [u64; 2],
    /// Address of the result.
    y: u64,
}

/// The launch of the operation.
fn launch(
    of: &SqueezeExciteOp,
    tile: SqueezeTile,
    limits: &Limits,
    operands: &SqueezeOperands,
) -> Result<Launch, Error> {
    let &SqueezeOperands { dtype, batch, x, filters, biases, y } = operands;
    let layout = of.layout(tile, limits);
    let layout = layout.ok_or_else(|| unsupported("squeeze and excitation", of.label(), "the kernel does not"))?;
    let SqueezeLayout { cluster, chunks, part, rows, loads, groups, lanes, pitches, offsets, shared_bytes } = layout;
    let images = product("images", &[batch])?;
    let clusters = batch.min(layout.at_a_time(limits));
    let blocks = product("blocks", &[clusters, cluster])?;
    let (activation, [activation_a, activation_b]) = numbered(of.activation)?;
    let (hidden_activation, [hidden_a, hidden_b]) = numbered(of.hidden)?;
    let (gate, [gate_slope, gate_offset]) = match of.gate {
        Gate::Sigmoid => (0, [-LOG2_E as f32, 0.0]),
        Gate::HardSigmoid { slope, offset } => (1, [slope, offset]),
    };
    let small = |value: usize| value as i32; // as the layout has checked
    let args = SqueezeExciteArgs {
        x: aligned("x", x, 16)?,
        squeeze: aligned("first filter", filters[0], 16)?,
        squeeze_bias: aligned("first bias", biases[0], 16)?,
        excite: aligned("second filter", filters[1], 16)?,
        excite_bias: aligned("second bias", biases[1], 16)?,
        y: aligned("y", y, 16)?,
        images: images as i32,
        pixels: small(of.input.pixels()),
        chunks: small(chunks[0]),
        hidden: small(8 * chunks[1]),
        channel_parts: small(tile.channel_parts),
        parts: small(tile.channel_parts * tile.pixel_parts),
        part_chunks: small(part[0]),
        part_pixels: small(part[1]),
        rows: small(rows),
        groups: small(groups),
        squeeze_lanes: small(lanes[0]),
        excite_lanes: small(lanes[1]),
        activation,
        hidden_activation,
        gate,
        activation_a,
        activation_b,
        hidden_a,
        hidden_b,
        gate_slope,
        gate_offset,
        per_pixel: (of.input.pixels() as f32).recip(),
        by_part_chunks: FastDivide::by(part[0] as u32),
        by_hidden_chunks: FastDivide::by(chunks[1] as u32),
        by_channel_parts: FastDivide::by(tile.channel_parts as u32),
        by_rows: FastDivide::by(rows as u32),
        squeeze_pitch: small(pitches[0]),
        excite_pitch: small(pitches[1]),
        excite_at: small(offsets[0]),
        sums_at: small(offsets[1]),
        groups_at: small(offsets[2]),
        means_at: small(offsets[3]),
        parts_at: small(offsets[4]),
        hidden_at: small(offsets[5]),
        gates_at: small(offsets[6]),
        biases_at: small(offsets[7]),
        clusters: small(clusters),
        ..Zeroable::zeroed()
    };
    let names = of_half(dtype, ENTRIES)?;
    let index = SQUEEZE_LOADS.iter().position(|&of| of == loads).expect("one of the kernels, by the layout");
    Ok(Launch {
        entry: names[index].into(),
        grid: [blocks, 1, 1],
        cluster: cluster as u32,
        block: [THREADS, 1, 1],
        shared_bytes: shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: true,
    })
}

/// The kernel's number of an activation, with its two parameters.
fn numbered(activation: ProductActivation) -> Result<(i32, [f32; 2]), Error> {
    let (kind, parameters) = activation.kind();
    let code = match kind {
        _ if activation == ProductActivation::None => 0,
        ActivationKind::Clamped => 1,
        ActivationKind::Sigmoid => 2,
        ActivationKind::Ramp => 3,
        ActivationKind::Erf => {
            return Err(unsupported("activation", "GELU", "this kernel has no error function"));
        }
    };
    Ok((code, parameters))
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::{Conv2d, Window};
    use crate::plan::Joined;
    use crate::tensor::Shape;

    const OPERANDS: SqueezeOperands = SqueezeOperands {
        dtype: Dtype::F16,
        batch: 5,
        x: 0x100,
        filters: [0x200, 0x300],
        biases: [0x400, 0x500],
        y: 0x600,
    };
    const TILE: SqueezeTile = SqueezeTile { channel_parts: 3, pixel_parts: 4 };

    fn problem() -> SqueezeExciteOp {
        let layer =
            |name: &str, to| Joined { name: name.into(), conv: Conv2d::named(name, to, Window::square(1, 1, 0)) };
        SqueezeExciteOp {
            input: Shape::new(19, 21, 104),
            activation: ProductActivation::Silu,
            squeeze: layer("squeeze", 27),
            hidden: ProductActivation::HardSwish,
            excite: layer("excite", 104),
            gate: Gate::HardSigmoid { slope: 0.25, offset: 0.75 },
        }
    }

    #[test]
    fn constants_agree_with_the_source() {
        let source = read("sm90_squeeze_excite.cu");
        let has = |line: &str| assert!(source.contains(line), "{line}");
        has(&format!("kThreads = {THREADS};"));
        has("kHighSums = kThreads * 16 + 64;");
        has("kPlain = 0, kBounded = 1, kSigmoidal = 2, kRamped = 3");
        has("kGateSigmoid = 0, kGateRamp = 1");
        for (loads, name) in SQUEEZE_LOADS.into_iter().zip(ENTRIES[0]) {
            has(&format!("TREFOIL_SM90_SQUEEZE_EXCITE({loads}, "));
            assert_eq!(name, format!("sm90_squeeze_excite_{loads}"));
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let of = launch(&problem(), TILE, &Limits::h200(), &OPERANDS).unwrap();
        let args: SqueezeExciteArgs = of.args.read();
        assert_eq!([args.x, args.squeeze, args.excite, args.y], [0x100, 0x200, 0x300, 0x600]);
        assert_eq!([args.squeeze_bias, args.excite_bias], [0x400, 0x500]);
        assert_eq!([args.images, args.pixels, args.chunks, args.hidden], [5, 399, 13, 32]);
        // 13 groups of channels in three parts, 399 pixels in four; 512 threads are 102 rows of 5.
        assert_eq!([args.channel_parts, args.parts, args.part_chunks, args.part_pixels], [3, 12, 5, 100]);
        assert_eq!([args.rows, args.groups, args.squeeze_lanes, args.excite_lanes], [102, 12, 8, 4]);
        assert_eq!([args.activation, args.hidden_activation, args.gate], [2, 3, 1]);
        assert_eq!([args.activation_a, args.activation_b], [-LOG2_E as f32, 0.0]);
        assert_eq!([args.hidden_a, args.hidden_b], [1.0 / 6.0, 0.5]);
        assert_eq!([args.gate_slope, args.gate_offset, args.per_pixel], [0.25, 0.75, 1.0 / 399.0]);
        assert_eq!([args.by_part_chunks.divide(11), args.by_hidden_chunks.divide(11)], [2, 2]);
        assert_eq!([args.by_channel_parts.divide(11), args.by_rows.divide(205)], [3, 2]);
        assert_eq!([args.squeeze_pitch, args.excite_pitch], [5, 5]);
        let of_filters = [32 * 5 * 16, 40 * 5 * 16];
        let sums = of_filters[0] + of_filters[1];
        assert_eq!([args.excite_at, args.sums_at, args.groups_at], [of_filters[0], sums, sums + 16_448]);
        let means = args.groups_at + 12 * 40 * 4;
        assert_eq!([args.means_at, args.parts_at], [means, means + 160]);
        let hidden = args.parts_at + 12 * 32 * 4;
        assert_eq!(args.clusters, 5);
        assert_eq!([args.hidden_at, args.gates_at, args.biases_at], [hidden, hidden + 128, hidden + 288]);
        assert_eq!((&*of.entry, of.grid, of.cluster), ("sm90_squeeze_excite_2", [80, 1, 1], 16));
        assert_eq!((of.block, of.shared_bytes, of.waits_itself), ([512, 1, 1], (args.biases_at + 4096) as u32, true));
    }

    /// Clusters take several images where there are more than run at the same time.
    #[test]
    fn a_launch_has_the_clusters_that_run_at_once() {
        let of = |batch| launch(&problem(), TILE, &Limits::h200(), &SqueezeOperands { batch, ..OPERANDS }).unwrap();
        assert_eq!([1, 5, 11].map(|batch| of(batch).grid[0]), [16, 80, 11 * 16]);
        assert_eq!([12, 1000].map(|batch| of(batch).grid[0]), [11 * 16; 2]);
    }

    #[test]
    fn pixels_and_type_choose_the_kernel() {
        let of = |dtype, side, tile| {
            let problem = SqueezeExciteOp { input: Shape::new(side, side, 104), ..problem() };
            launch(&problem, tile, &Limits::h200(), &SqueezeOperands { dtype, ..OPERANDS })
                .map(|launch| launch.entry.into_owned())
        };
        let tile = |channel_parts, pixel_parts| SqueezeTile { channel_parts, pixel_parts };
        assert_eq!(of(Dtype::F16, 28, TILE).unwrap(), "sm90_squeeze_excite_2");
        assert_eq!(of(Dtype::Bf16, 28, tile(1, 8)).unwrap(), "sm90_squeeze_excite_4_bf16");
        assert_eq!(of(Dtype::F16, 56, tile(1, 13)).unwrap(), "sm90_squeeze_excite_7");
        assert_eq!(of(Dtype::F16, 56, tile(1, 9)).unwrap(), "sm90_squeeze_excite_9");
        assert!(of(Dtype::F32, 28, TILE).is_err() && of(Dtype::F16, 56, tile(1, 1)).is_err());
    }

    #[test]
    fn what_the_kernel_does_not_survive_is_refused() {
        let refused = |operands: SqueezeOperands| launch(&problem(), TILE, &Limits::h200(), &operands).is_err();
        assert!(!refused(OPERANDS) && refused(SqueezeOperands { x: 0x108, ..OPERANDS }));
        assert!(refused(SqueezeOperands { y: 0, ..OPERANDS }));
        assert!(refused(SqueezeOperands { filters: [0x208, 0x300], ..OPERANDS }));
        assert!(refused(SqueezeOperands { biases: [0x400, 0x504], ..OPERANDS }));
        assert!(refused(SqueezeOperands { batch: 0, ..OPERANDS }));
        assert!(refused(SqueezeOperands { batch: 1 << 31, ..OPERANDS }));
        let with = |change: &dyn Fn(&mut SqueezeExciteOp, &mut SqueezeTile)| {
            let (mut of, mut tile) = (problem(), TILE);
            change(&mut of, &mut tile);
            launch(&of, tile, &Limits::h200(), &OPERANDS).is_err()
        };
        assert!(with(&|of, _| of.hidden = ProductActivation::Gelu));
        assert!(with(&|of, _| of.input.channels = 100) && with(&|of, _| of.squeeze.conv.out_channels = 513));
        assert!(with(&|_, tile| tile.channel_parts = 9) && with(&|_, tile| tile.pixel_parts = 6));
        assert!(with(&|_, tile| tile.pixel_parts = 0));
    }
}
