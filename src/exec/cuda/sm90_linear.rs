//! Launches of `kernels/sm90_linear.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, activation_code, aligned, chunks_of, in_range, kernel_args,
    product, unsupported,
};
use super::linear::{LinearPointers, LinearProblem};
use super::sm90_conv2d_fprop::MapBytes;
use super::steps::Operands;
use crate::device::cuda::TensorMap;
use crate::error::Error;
use crate::plan::kernels::{BOX_CHANNELS, LINEAR_OUTPUTS};
use crate::plan::{Kernel, LinearTile};

kernel_args! {
    /// `Sm90LinearArgs`; the maps are encoded before the launch.
    Sm90LinearArgs, 320 bytes {
        x: MapBytes,
        filter: MapBytes,
        bias: u64,
        y: u64,
        images: i32,
        k_stored: i32,
        c_boxes: i32,
        activation: i32,
        by_n_tiles: FastDivide,
        padding: [i32; 6],
    }
}

/// Hopper linear layers.
pub(super) struct Sm90Linear;

impl Launcher for Sm90Linear {
    fn name(&self) -> &'static str {
        "sm90_linear"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(tile, name)| {
            let (threads, shared_bytes) = (threads(tile), SM90_SHARED_BYTES);
            EntryPoint { module: "sm90_linear", name, threads, shared_bytes, cluster: 8 }
        };
        ENTRIES.map(of).into()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let Kernel::Sm90Linear(tile) = step.kernel() else { return Err(step.wrong_kernel()) };
        launch(&LinearProblem::of(step), tile, &LinearPointers::of(step))
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<Sm90LinearArgs>("sm90_linear.cu", "Sm90LinearArgs", Sm90LinearArgs::FIELDS)]
    }
}

/// The kernel for each tile.
pub(super) const ENTRIES: [(LinearTile, &str); LinearTile::ALL.len()] = [
    (LinearTile { images: 64, blocks: 4 }, "sm90_linear_64_4"),
    (LinearTile { images: 64, blocks: 8 }, "sm90_linear_64_8"),
    (LinearTile { images: 128, blocks: 4 }, "sm90_linear_128_4"),
    (LinearTile { images: 128, blocks: 8 }, "sm90_linear_128_8"),
];

/// Threads of a block: one warpgroup for each 64 images.
pub(super) const fn threads(tile: LinearTile) -> u32 {
    tile.images as u32 * 2
}

/// The launch of `problem` in tiles of `tile`.
pub(crate) fn launch(problem: &LinearProblem, tile: LinearTile, pointers: &LinearPointers) -> Result<Launch, Error> {
    let entry = ENTRIES.iter().find(|(t, _)| *t == tile).map(|(_, entry)| *entry);
    let entry = entry.ok_or_else(|| unsupported("linear tile", tile, "use one of LinearTile::ALL"))?;
    let LinearProblem { batch, in_stored, out_stored, activation } = *problem;
    for (what, channels) in [("channels", in_stored), ("output channels", out_stored)] {
        chunks_of(what, channels)?;
    }
    let c_boxes = in_range("channels / 64", in_stored.div_ceil(BOX_CHANNELS), 1, 1 << 20)?;
    let Ok(shared_bytes @ ..=SM90_SHARED_BYTES) = u32::try_from(tile.shared_bytes(in_stored)) else {
        return Err(unsupported("channels", in_stored, "a block has no room for so many: use more blocks"));
    };
    let n_tiles = out_stored.div_ceil(LINEAR_OUTPUTS);
    let args = Sm90LinearArgs {
        bias: aligned("bias", pointers.bias, 16)?,
        y: aligned("y", pointers.y, 16)?,
        images: in_range("images", batch, 1, 1 << 28)?,
        k_stored: in_range("output channels", out_stored, 1, 1 << 20)?,
        c_boxes,
        activation: activation_code(activation)?,
        by_n_tiles: FastDivide::by(n_tiles as u32),
        ..Zeroable::zeroed()
    };
    let rows = |address: u64, rows: usize, box_rows: usize| TensorMap::Matrix {
        address,
        dims: [in_stored as u64, rows as u64],
        pitch: in_stored as u64,
        box_dims: [BOX_CHANNELS as u32, box_rows as u32],
    };
    let maps = vec![
        rows(aligned("x", pointers.x, 16)?, batch, tile.images),
        rows(aligned("filter", pointers.filter, 16)?, out_stored, LINEAR_OUTPUTS),
    ];
    Ok(Launch {
        entry: entry.into(),
        grid: [product("blocks", &[batch.div_ceil(tile.images), n_tiles, tile.blocks])?, 1, 1],
        cluster: tile.blocks as u32,
        block: [threads(tile), 1, 1],
        shared_bytes,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::tensor::Activation;

    const POINTERS: LinearPointers = LinearPointers { x: 0x100, filter: 0x200, bias: 0x300, y: 0x400 };
    const PROBLEM: LinearProblem =
        LinearProblem { batch: 70, in_stored: 2056, out_stored: 1000, activation: Activation::Relu6 };

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&PROBLEM, LinearTile { images: 64, blocks: 8 }, &POINTERS).unwrap();
        let args: Sm90LinearArgs = launch.args.read();
        assert_eq!([args.bias, args.y], [0x300, 0x400]);
        assert_eq!([args.images, args.k_stored, args.c_boxes, args.activation], [70, 1000, 33, 2]);
        assert_eq!(args.by_n_tiles.divide(27), 2);
        let map = |address, rows, box_rows| TensorMap::Matrix {
            address,
            dims: [2056, rows],
            pitch: 2056,
            box_dims: [64, box_rows],
        };
        assert_eq!(launch.maps, [map(0x100, 70, 64), map(0x200, 1000, 80)]);
        assert_eq!((launch.grid, launch.cluster, launch.block), ([2 * 13 * 8, 1, 1], 8, [128, 1, 1]));
        assert_eq!(launch.shared_bytes, 5 * (64 + 80) * 128 + 6 * 8);
        assert_eq!((&*launch.entry, launch.waits_itself), ("sm90_linear_64_8", true));
    }

    #[test]
    fn few_channels_leave_room_for_the_sums() {
        let problem = LinearProblem { in_stored: 8, ..PROBLEM };
        let launch = launch(&problem, LinearTile { images: 128, blocks: 4 }, &POINTERS).unwrap();
        assert_eq!((launch.block, launch.shared_bytes), ([256, 1, 1], 2 * (128 + 80) * 128 + 3 * 8));
    }

    #[test]
    fn what_no_kernel_does_is_refused() {
        let refused = |tile: LinearTile, problem: LinearProblem| {
            matches!(launch(&problem, tile, &POINTERS), Err(Error::Unsupported { .. }))
        };
        let tile = LinearTile { images: 64, blocks: 4 };
        assert!(!refused(tile, PROBLEM));
        assert!(refused(LinearTile { images: 64, blocks: 2 }, PROBLEM));
        assert!(refused(LinearTile { images: 32, blocks: 4 }, PROBLEM));
        assert!(refused(tile, LinearProblem { in_stored: 3080, ..PROBLEM }));
        assert!(refused(tile, LinearProblem { in_stored: 1 << 40, ..PROBLEM }));
        assert!(refused(tile, LinearProblem { in_stored: 12, ..PROBLEM }));
        assert!(refused(tile, LinearProblem { out_stored: 12, ..PROBLEM }));
        assert!(refused(tile, LinearProblem { out_stored: 1 << 20, ..PROBLEM }));
        assert!(refused(tile, LinearProblem { batch: 0, ..PROBLEM }));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_linear.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_LINEAR(")?.strip_suffix(')'));
        let listed = ENTRIES.map(|(tile, name)| {
            let LinearTile { images, blocks } = tile;
            assert_eq!(name, format!("sm90_linear_{images}_{blocks}"));
            format!("{images}, {blocks}")
        });
        assert!(found.eq(listed));
        assert_eq!(ENTRIES.map(|(tile, _)| tile), LinearTile::ALL);
        assert!(source.contains(&format!("kTileN = {LINEAR_OUTPUTS};")));
    }
}
