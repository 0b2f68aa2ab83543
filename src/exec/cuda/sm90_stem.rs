//! Launches of `kernels/sm90_stem.cu`.

use half::f16;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{ArgBytes, FastDivide, Launch, aligned, chunks_of, in_range, kernel_args, product, unsupported};
use super::normalize::{self, MAX_MEANS};
use super::steps::{Operands, stored};
use crate::error::Error;
use crate::plan::kernels::StemLayers;
use crate::plan::{Kernel, Stem, StemTile, StepOp};
use crate::tensor::{Activation, Shape};

kernel_args! {
    /// `StemArgs`.
    StemArgs, 168 bytes {
        x: u64,
        filter: u64,
        y: u64,
        row_pitch_bytes: u64,
        height: i32,
        width: i32,
        conv_height: i32,
        conv_width: i32,
        out_height: i32,
        out_width: i32,
        pad_top: i32,
        pad_left: i32,
        k_stored: i32,
        low: u32,
        high: u32,
        band_rows: i32,
        column_tiles: i32,
        bands: i32,
        by_column_tiles: FastDivide,
        by_bands: FastDivide,
        scale: [f32; MAX_MEANS],
        shift: [f32; MAX_MEANS],
    }
}

/// The launcher of a network's first layers.
pub(super) struct Sm90Stem;

impl Launcher for Sm90Stem {
    fn name(&self) -> &'static str {
        "sm90_stem"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(layers, columns, name): (StemLayers, _, _)| {
            let (threads, shared_bytes) = (THREADS, layers.shared_bytes(columns) as u32);
            EntryPoint { module: "sm90_stem", name, threads, shared_bytes, cluster: 1 }
        };
        ENTRIES.map(of).into()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let (StepOp::Stem(stem), Kernel::Sm90Stem(tile)) = (step.op(), step.kernel()) else {
            return Err(step.wrong_kernel());
        };
        let ((x, _, y), rows) = (step.pointers(), step.x());
        let (input, output) = (rows.shape, stored(step.y()));
        let problem = StemProblem { batch: step.images(), input, output, row_pitch: step.photo_pitch(), stem };
        launch(&problem, tile, &StemPointers { x, filter: step.filter(step.name()), y })
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<StemArgs>("sm90_stem.cu", "StemArgs", StemArgs::FIELDS)]
    }
}

/// Rows of bytes that become a network's first activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StemProblem<'a> {
    /// Images.
    pub(crate) batch: usize,
    /// Shape of an image: three channels.
    pub(crate) input: Shape,
    /// Shape of the result, with the stored channels.
    pub(crate) output: Shape,
    /// Distance from one image to the next, in bytes.
    pub(crate) row_pitch: usize,
    /// The layers.
    pub(crate) stem: &'a Stem,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StemPointers {
    /// The images.
    pub(crate) x: u64,
    /// Halves, placed by [`StemLayers::filter_index`], then the bias in floats.
    pub(crate) filter: u64,
    /// Halves [batch][H][W][C].
    pub(crate) y: u64,
}

/// Threads of a block: two warpgroups.
pub(super) const THREADS: u32 = 256;

/// Rows of the convolution whose image rows a block keeps.
pub(super) const STAGES: usize = 4;

/// The kernels: layers, columns, name.
pub(super) const ENTRIES: [(StemLayers, usize, &str); StemLayers::ALL.len() * StemTile::COLUMNS.len()] = [
    (StemLayers { taps: 7, pools: true }, 112, "sm90_stem_7x7_pool_112"),
    (StemLayers { taps: 7, pools: true }, 64, "sm90_stem_7x7_pool_64"),
    (StemLayers { taps: 3, pools: false }, 112, "sm90_stem_3x3_112"),
    (StemLayers { taps: 3, pools: false }, 64, "sm90_stem_3x3_64"),
];

/// The shared memory that the kernel needs for its operands.
impl StemLayers {
    /// Dynamic shared memory of a block: the image rows of some rows of the convolution, the third channel of the last
    /// columns of these rows, and output rows of four warps.
    pub(crate) const fn shared_bytes(self, columns: usize) -> usize {
        let rows = (self.taps - 1 + 2 * STAGES) * (columns + self.pairs() - 1) * 16;
        rows + STAGES * columns * 16 + 4 * self.out_columns(columns)[0] * 32
    }
}

/// The bounds of an activation's results, each as two halves.
fn activation_bounds(activation: Activation) -> Result<[u32; 2], Error> {
    let [low, high] = match activation {
        Activation::None => [f16::NEG_INFINITY, f16::INFINITY],
        Activation::Relu => [f16::ZERO, f16::INFINITY],
        Activation::Relu6 => [f16::ZERO, f16::from_f32(6.0)],
        Activation::Silu | Activation::Gelu => {
            return Err(unsupported("activation", activation, "the stem applies bounds alone"));
        }
    };
    Ok([low, high].map(|bound| u32::from(bound.to_bits()) * 0x1_0001))
}

/// An error unless images of this shape may lie `row_pitch` bytes apart.
pub(super) fn check_row_pitch(row_pitch: usize, input: Shape) -> Result<(), Error> {
    if row_pitch < input.elems() || !row_pitch.is_multiple_of(4) || u32::try_from(row_pitch).is_err() {
        return Err(unsupported("row pitch", row_pitch, "rows must not overlap, nor lie apart by anything but words"));
    }
    Ok(())
}

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &StemProblem<'_>, tile: StemTile, pointers: &StemPointers) -> Result<Launch, Error> {
    let StemProblem { batch, input, output, row_pitch, stem } = *problem;
    let Some(layers) = stem.layers() else {
        return Err(unsupported(
            "window",
            format!("{:?}", stem.conv.window),
            "the stem kernel takes 7x7/2 with pooling, 3x3/2, of bytes that are finite halves once normalised",
        ));
    };
    let entry = ENTRIES.iter().find(|(of, columns, _)| (*of, *columns) == (layers, tile.columns));
    let Some(&(_, columns, entry)) = entry else {
        return Err(unsupported("stem tile", tile, "use one of StemTile::COLUMNS"));
    };
    let extent = |what: &str, value: usize, min: usize| in_range(what, value, min, 1 << 14);
    in_range("channels", input.channels, 3, 4)?;
    check_row_pitch(row_pitch, input)?;
    let column_tiles = layers.column_tiles(columns, output.width);
    let band_rows = extent("rows of a tile", tile.rows, 1)?;
    let bands = output.height.div_ceil(tile.rows);
    let [mean, inv_std] = normalize::constants(input.channels, &stem.mean, &stem.std)?;
    let window = stem.conv.window;
    let [low, high] = activation_bounds(stem.conv.activation)?;
    let args = StemArgs {
        x: aligned("x", pointers.x, 4)?,
        filter: aligned("filter", pointers.filter, 16)?,
        y: aligned("y", pointers.y, 16)?,
        row_pitch_bytes: row_pitch as u64,
        height: extent("height", input.height, 1)?,
        width: extent("width", input.width, 1)?,
        conv_height: extent("rows of the convolution", stem.conv_shape.height, 1)?,
        conv_width: extent("columns of the convolution", stem.conv_shape.width, 1)?,
        out_height: extent("output height", output.height, 1)?,
        out_width: extent("output width", output.width, 1)?,
        pad_top: extent("top padding", window.pad.top, 0)?,
        pad_left: extent("left padding", window.pad.left, 0)?,
        k_stored: in_range("channels", chunks_of("channels", output.channels)? * 8, 8, 65)?,
        low,
        high,
        band_rows,
        column_tiles: extent("tiles of a row", column_tiles, 1)?,
        bands: extent("tiles of a column", bands, 1)?,
        by_column_tiles: FastDivide::by(column_tiles as u32),
        by_bands: FastDivide::by(bands as u32),
        scale: inv_std.map(|factor| factor / 255.0),
        shift: std::array::from_fn(|c| -mean[c] * inv_std[c]),
    };
    Ok(Launch {
        entry: entry.into(),
        grid: [product("blocks", &[batch, bands, column_tiles])?, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: layers.shared_bytes(columns) as u32,
        args: ArgBytes::new(&args),
        maps: Vec::new(),
        waits_itself: false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::{manifest, read};
    use super::*;
    use crate::model::{Conv2d, Pad, Pool, Window};
    use crate::plan::Limits;

    const POINTERS: StemPointers = StemPointers { x: 0x104, filter: 0x200, y: 0x300 };

    fn stem() -> Stem {
        let window = Window { pad: Pad { top: 3, left: 2, bottom: 3, right: 3 }, ..Window::square(7, 2, 3) };
        Stem {
            mean: vec![0.5, 0.75, 0.25],
            std: vec![4.0, 8.0, 16.0],
            conv: Conv2d { activation: Activation::Relu6, ..Conv2d::named("conv", 40, window) },
            conv_shape: Shape::new(20, 130, 40),
            pool: Some(Pool { window: Window::square(3, 2, 1), count_pad: false }),
        }
    }

    fn problem(stem: &Stem) -> StemProblem<'_> {
        let (input, output) = (Shape::new(39, 260, 3), Shape::new(10, 65, 40));
        StemProblem { batch: 5, input, output, row_pitch: 30_464, stem }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let stem = stem();
        let launch = launch(&problem(&stem), StemTile { columns: 112, rows: 4 }, &POINTERS).unwrap();
        let args: StemArgs = launch.args.read();
        assert_eq!([args.x, args.filter, args.y, args.row_pitch_bytes], [0x104, 0x200, 0x300, 30_464]);
        assert_eq!([args.height, args.width, args.conv_height, args.conv_width], [39, 260, 20, 130]);
        assert_eq!([args.out_height, args.out_width, args.pad_top, args.pad_left], [10, 65, 3, 2]);
        assert_eq!((args.k_stored, args.low, args.high, args.band_rows), (40, 0, 0x4600_4600, 4));
        assert_eq!([args.column_tiles, args.bands], [2, 3]);
        assert_eq!([args.by_column_tiles, args.by_bands].map(|d| d.divide(100)), [50, 33]);
        assert_eq!(args.scale[..4], [0.25 / 255.0, 0.125 / 255.0, 0.0625 / 255.0, 0.0]);
        assert_eq!(args.shift[..4], [-0.125, -0.09375, -0.015625, 0.0]);
        assert_eq!((launch.grid, launch.block), ([30, 1, 1], [256, 1, 1]));
        assert_eq!(launch.shared_bytes, 14 * 114 * 16 + 4 * 112 * 16 + 4 * 56 * 32);
        assert_eq!(launch.entry, "sm90_stem_7x7_pool_112");
    }

    #[test]
    fn tiles_meet_where_pooling_windows_overlap() {
        let layers = StemLayers { taps: 7, pools: true };
        assert_eq!([1, 56, 57, 111, 112].map(|width| layers.column_tiles(112, width)), [1, 1, 2, 2, 3]);
        let layers = StemLayers { taps: 3, pools: false };
        assert_eq!([1, 112, 113, 224, 225].map(|width| layers.column_tiles(112, width)), [1, 1, 2, 2, 3]);
    }

    #[test]
    fn a_multiprocessor_has_shared_memory_for_the_blocks_that_it_is_to_hold() {
        const OF_BLOCK: usize = 1024; // that the driver takes for itself
        let granted = Limits::h200().shared_bytes + OF_BLOCK;
        for (layers, columns, entry) in ENTRIES {
            let blocks = layers.resident(columns);
            assert!(blocks * (layers.shared_bytes(columns) + OF_BLOCK) <= granted, "{entry}");
        }
    }

    #[test]
    fn every_weight_has_a_place_of_its_own() {
        for layers in StemLayers::ALL {
            let mut taken = vec![false; layers.filter_elems()];
            let taps = (0..layers.taps).flat_map(|r| (0..layers.taps).map(move |s| [r, s]));
            let weights = taps.flat_map(|tap| (0..64).flat_map(move |k| (0..3).map(move |c| (tap, k, c))));
            for (tap, k, c) in weights {
                assert!(!std::mem::replace(&mut taken[layers.filter_index(tap, k, c)], true), "{tap:?} {k} {c}");
            }
        }
    }

    #[test]
    fn bounds_are_those_of_the_activation() {
        let bounds = [Activation::None, Activation::Relu, Activation::Relu6].map(|of| activation_bounds(of).unwrap());
        assert_eq!(bounds, [[0xfc00_fc00, 0x7c00_7c00], [0, 0x7c00_7c00], [0, 0x4600_4600]]);
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let tile = StemTile { columns: 64, rows: 4 };
        let refused = |change: fn(&mut Stem)| {
            let mut stem = stem();
            change(&mut stem);
            matches!(launch(&problem(&stem), tile, &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(!refused(|_| ()));
        assert!(refused(|stem| stem.conv.window.stride = [2, 1]));
        assert!(refused(|stem| stem.conv.window.size = [7, 5]));
        assert!(refused(|stem| stem.conv.out_channels = 72));
        assert!(refused(|stem| stem.std[1] = 1e-5));
        assert!(!refused(|stem| stem.std[1] = 1e-4));
        assert!(refused(|stem| stem.pool = None));
        assert!(refused(|stem| stem.pool = Some(Pool { window: Window::square(2, 2, 0), count_pad: false })));
        let stem = stem();
        let odd = StemTile { columns: 96, rows: 4 };
        assert!(matches!(launch(&problem(&stem), odd, &POINTERS), Err(Error::Unsupported { .. })));
        for row_pitch in [100, 30_466] {
            let problem = StemProblem { row_pitch, ..problem(&stem) };
            assert!(matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. })), "{row_pitch}");
        }
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_stem.cu");
        let manifest = manifest();
        let lines = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_STEM(")?.strip_suffix(')'));
        let mut found = Vec::new();
        for line in lines {
            // Each thread begins with half of what both warpgroups need together, so that neither waits for the other's
            // registers.
            let [product, image, launched]: [&str; 3] = line.rsplitn(3, ", ").collect::<Vec<_>>().try_into().unwrap();
            let both: u64 = [image, product].iter().map(|count| count.parse::<u64>().unwrap()).sum();
            let name = format!("sm90_stem_{}", launched.split(',').next().unwrap());
            assert_eq!(manifest["modules"]["sm90_stem"][&name]["sm_90a"]["registers"], both / 2, "{name}");
            found.push(launched.to_owned());
        }
        let listed = ENTRIES.map(|(layers, columns, name)| {
            let name = name.strip_prefix("sm90_stem_").expect("the module's name");
            let blocks = layers.resident(columns);
            format!("{name}, {}, {columns}, {}, {blocks}", layers.taps, layers.pools)
        });
        assert_eq!(found, listed);
        assert!(source.contains(&format!("kStages = {};", STAGES)));
        let compiled = StemLayers::ALL.into_iter().flat_map(|of| StemTile::COLUMNS.map(|columns| (of, columns)));
        assert!(compiled.eq(ENTRIES.map(|(layers, columns, _)| (layers, columns))));
    }
}
