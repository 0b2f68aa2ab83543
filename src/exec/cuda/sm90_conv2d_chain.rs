//! Launches of `kernels/sm90_conv2d_chain.cu`.

use bytemuck::Zeroable;

#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{
    ArgBytes, FastDivide, Launch, SM90_SHARED_BYTES, activation_code, aligned, kernel_args, unsupported,
};
use super::sm90_conv2d_fprop::{MapBytes, backward_from, int};
use super::steps::Operands;
use crate::device::cuda::{TensorMap, Windows};
use crate::error::Error;
use crate::plan::kernels::{ChainLayout, ChainShape, ConvShape, check_sm90};
use crate::plan::{ChainTile, Kernel, Limits, StepOp};
use crate::tensor::Activation;

kernel_args! {
    /// `Sm90ChainSource`.
    Sm90ChainSource, 16 bytes {
        steps: i32,
        stride_h: i32,
        stride_w: i32,
        by_windows: i32,
    }
}

kernel_args! {
    /// `Sm90ChainArgs`; the maps are encoded before the launch.
    Sm90ChainArgs, 1152 bytes {
        filter: [MapBytes; 2],
        x: [MapBytes; 2],
        next_filter: MapBytes,
        residual: MapBytes,
        y: MapBytes,
        z: MapBytes,
        bias: u64,
        next_bias: u64,
        k_stored: i32,
        n_stored: i32,
        slabs: i32,
        tiles: i32,
        out_pixels: i32,
        out_width: i32,
        has_residual: i32,
        activation: i32,
        next_activation: i32,
        filter_stages: i32,
        x_buffers: i32,
        slots: i32,
        by_out_pixels: FastDivide,
        by_out_width: FastDivide,
        source: [Sm90ChainSource; 2],
        backward_from: i32,
        padding: [i32; 3],
    }
}

/// Two 1x1 convolutions, one behind the other.
pub(super) struct Sm90Conv2dChain;

impl Launcher for Sm90Conv2dChain {
    fn name(&self) -> &'static str {
        "sm90_conv2d_chain"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        let of = |(_, _, name)| {
            let (threads, shared_bytes) = (THREADS, SM90_SHARED_BYTES);
            EntryPoint { module: "sm90_conv2d_chain", name, threads, shared_bytes, cluster: 1 }
        };
        ENTRIES.map(of).into()
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        let shape = ChainShape::of(&step.work());
        let (StepOp::Chain { conv, joined, next }, Kernel::Sm90Chain(tile), Some(shape), Some(z)) =
            (step.op(), step.kernel(), shape, step.second_output())
        else {
            return Err(step.wrong_kernel());
        };
        let ((x, second, y), (filter, bias)) = (step.pointers(), step.weights());
        let joined = joined.as_ref().map(|joined| step.filter(&joined.name));
        let pointers = ChainPointers {
            x: [Some(x), second.filter(|_| joined.is_some())],
            filter: [Some(filter), joined],
            bias,
            residual: second.filter(|_| shape.has_residual),
            y,
            next_filter: step.filter(&next.name),
            next_bias: step.bias(1),
            z,
        };
        let activations = [conv.activation, next.conv.activation];
        launch(&ChainProblem { shape, activations, backward: step.backward }, tile, step.limits(), &pointers)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![
            Arguments::of::<Sm90ChainSource>("sm90_conv2d_chain.cu", "Sm90ChainSource", Sm90ChainSource::FIELDS).part(),
            Arguments::of::<Sm90ChainArgs>("sm90_conv2d_chain.cu", "Sm90ChainArgs", Sm90ChainArgs::FIELDS),
        ]
    }
}

/// The kernel for each tile and number of slabs of 64 channels of z.
pub(super) const ENTRIES: [(ChainTile, usize, &str); 5] = [
    (ChainTile { pixels: 128 }, 1, "sm90_conv2d_chain_128_1"),
    (ChainTile { pixels: 128 }, 2, "sm90_conv2d_chain_128_2"),
    (ChainTile { pixels: 128 }, 4, "sm90_conv2d_chain_128_4"),
    (ChainTile { pixels: 256 }, 1, "sm90_conv2d_chain_256_1"),
    (ChainTile { pixels: 256 }, 2, "sm90_conv2d_chain_256_2"),
];

/// Threads of a block: a warpgroup that copies, and the warpgroups that multiply.
pub(super) const THREADS: u32 = 128 * (1 + ChainTile::PARTS as u32);

/// Channels of a slab, which are also those of one step of a sum.
const SLAB: usize = 64;

/// The two convolutions of a launch.
#[derive(Clone, Debug)]
pub(super) struct ChainProblem {
    /// The convolutions.
    pub shape: ChainShape,
    /// The activations of both results.
    pub activations: [Activation; 2],
    /// Whether the last pixels are computed first.
    pub backward: bool,
}

/// Device addresses of the operands.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainPointers {
    /// The input of each source.
    pub x: [Option<u64>; 2],
    pub filter: [Option<u64>; 2],
    /// The bias of all sources together.
    pub bias: u64,
    pub residual: Option<u64>,
    pub y: u64,
    pub next_filter: u64,
    pub next_bias: u64,
    pub z: u64,
}

/// The launch of `problem`.
pub(super) fn launch(
    problem: &ChainProblem,
    tile: ChainTile,
    limits: &Limits,
    pointers: &ChainPointers,
) -> Result<Launch, Error> {
    let ChainProblem { shape, activations, backward } = problem;
    shape.sources.iter().try_for_each(check_sm90)?;
    let layout = shape.layout(tile, limits).filter(|_| shape.fits());
    let entry = |layout: ChainLayout| {
        ENTRIES.iter().find(|(t, next, _)| (*t, *next) == (tile, layout.next_slabs)).map(|(.., name)| (layout, *name))
    };
    let Some((layout, entry)) = layout.and_then(entry) else {
        return Err(unsupported("sm90 chain tile", tile, "use one of ChainTile::ALL, with room for a block"));
    };
    let (output, pixels) = (shape.sources[0].output, shape.pixels());
    let tiles = pixels.div_ceil(tile.pixels);
    let [channels, next_channels] = [output.channels, shape.next_channels];
    let source = |conv: &ConvShape| Sm90ChainSource {
        steps: int(conv.steps()),
        stride_h: int(conv.window.stride[0]),
        stride_w: int(conv.window.stride[1]),
        by_windows: i32::from(!conv.is_matrix()),
    };
    let args = Sm90ChainArgs {
        bias: aligned("bias", pointers.bias, 16)?,
        next_bias: aligned("next_bias", pointers.next_bias, 16)?,
        k_stored: int(channels),
        n_stored: int(next_channels),
        slabs: int(channels.div_ceil(SLAB)),
        tiles: int(tiles),
        out_pixels: int(output.pixels()),
        out_width: int(output.width),
        has_residual: i32::from(pointers.residual.is_some()),
        activation: activation_code(activations[0])?,
        next_activation: activation_code(activations[1])?,
        filter_stages: int(layout.filter_stages),
        x_buffers: int(layout.x_buffers),
        slots: int(layout.slots),
        by_out_pixels: FastDivide::by(output.pixels() as u32),
        by_out_width: FastDivide::by(output.width as u32),
        backward_from: backward_from(*backward, tiles),
        source: [source(&shape.sources[0]), shape.sources.get(1).map_or(Zeroable::zeroed(), source)],
        ..Zeroable::zeroed()
    };
    let filter = |address: u64, c: usize, k: usize| -> Result<TensorMap, Error> {
        let dims = [c as u64, 1, k as u64];
        Ok(TensorMap::Blocks {
            address: aligned("filter", address, 16)?,
            dims,
            box_dims: [SLAB as u32, 1, SLAB as u32],
        })
    };
    let matrix = |name, address: u64, channels: usize| -> Result<TensorMap, Error> {
        let (dims, box_dims) = ([channels as u64, pixels as u64], [SLAB as u32, tile.part_pixels() as u32]);
        Ok(TensorMap::Matrix { address: aligned(name, address, 16)?, dims, pitch: channels as u64, box_dims })
    };
    // Without a second source or a residual their maps are still encoded; the kernel does not use them.
    let mut maps = Vec::with_capacity(8);
    let both = [0, shape.sources.len() - 1];
    let address = |of: [Option<u64>; 2], index: usize| of[index].unwrap_or(0);
    for index in both {
        maps.push(filter(address(pointers.filter, index), shape.sources[index].input.channels, channels)?);
    }
    for index in both {
        let conv = &shape.sources[index];
        maps.push(x_map(conv, aligned("x", address(pointers.x, index), 16)?, tile.part_pixels()));
    }
    maps.push(filter(pointers.next_filter, channels, next_channels)?);
    maps.push(matrix("residual", pointers.residual.unwrap_or(pointers.y), channels)?);
    maps.push(matrix("y", pointers.y, channels)?);
    maps.push(matrix("z", pointers.z, next_channels)?);
    Ok(Launch {
        entry: entry.into(),
        grid: [tiles.min(limits.units.max(1)) as u32, 1, 1],
        cluster: 1,
        block: [THREADS, 1, 1],
        shared_bytes: layout.shared_bytes as u32,
        args: ArgBytes::new(&args),
        maps,
        waits_itself: true,
    })
}

/// The map of an input in columns of `pixels`. The window is 1x1 without padding: `ChainShape::fits` ensures this.
fn x_map(conv: &ConvShape, address: u64, pixels: usize) -> TensorMap {
    let ConvShape { batch, input, window, .. } = *conv;
    if conv.is_matrix() {
        let dims = [input.channels as u64, (batch * input.pixels()) as u64];
        let pitch = input.channels as u64;
        return TensorMap::Matrix { address, dims, pitch, box_dims: [SLAB as u32, pixels as u32] };
    }
    TensorMap::Windows(Windows {
        address,
        dims: [input.channels, input.width, input.height, batch].map(|value| value as u64),
        lower: [0; 2],
        upper: [0; 2],
        strides: [window.stride[1], window.stride[0]].map(|value| value as u32),
        channels: SLAB as u32,
        pixels: pixels as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::super::entries::tests::read;
    use super::*;
    use crate::model::Window;
    use crate::tensor::Shape;

    const TILE: ChainTile = ChainTile { pixels: 128 };
    const POINTERS: ChainPointers = ChainPointers {
        x: [Some(0x100), Some(0x200)],
        filter: [Some(0x300), Some(0x400)],
        bias: 0x500,
        residual: None,
        y: 0x600,
        next_filter: 0x700,
        next_bias: 0x800,
        z: 0x900,
    };

    /// 72 and every third of 200 channels become 264 channels, and these become 120.
    fn problem() -> ChainProblem {
        let single = Window::square(1, 1, 0);
        let conv = |input, window| ConvShape { batch: 3, input, output: Shape::new(11, 19, 264), window };
        let strided = conv(Shape::new(22, 55, 200), Window { stride: [2, 3], ..single });
        let sources = vec![conv(Shape::new(11, 19, 72), single), strided];
        let shape = ChainShape { sources, has_residual: false, next_channels: 120 };
        ChainProblem { shape, activations: [Activation::Relu6, Activation::Relu], backward: false }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem(), TILE, &Limits::h200(), &POINTERS).unwrap();
        let args: Sm90ChainArgs = launch.args.read();
        assert_eq!([args.bias, args.next_bias], [0x500, 0x800]);
        assert_eq!([args.k_stored, args.n_stored, args.slabs, args.tiles], [264, 120, 5, 5]);
        assert_eq!([args.out_pixels, args.out_width, args.has_residual], [209, 19, 0]);
        assert_eq!([args.activation, args.next_activation], [2, 1]);
        let layout = problem().shape.layout(TILE, &Limits::h200()).unwrap();
        assert_eq!([args.filter_stages, args.x_buffers, args.slots].map(|n| n as usize), {
            [layout.filter_stages, layout.x_buffers, layout.slots]
        });
        assert_eq!([args.by_out_pixels.divide(627), args.by_out_width.divide(208)], [3, 10]);
        let source = |steps, stride_h, stride_w, by_windows| Sm90ChainSource { steps, stride_h, stride_w, by_windows };
        assert_eq!(args.source, [source(2, 1, 1, 0), source(4, 2, 3, 1)]);
        assert_eq!((&*launch.entry, launch.grid), ("sm90_conv2d_chain_128_2", [5, 1, 1]));
        assert_eq!((launch.cluster, launch.block), (1, [384, 1, 1]));
        assert_eq!(launch.shared_bytes as usize, layout.shared_bytes);
        let matrix = |address, channels, pixels| TensorMap::Matrix {
            address,
            dims: [channels, 627],
            pitch: channels,
            box_dims: [64, pixels],
        };
        let filter = |address, c, k| TensorMap::Blocks { address, dims: [c, 1, k], box_dims: [64, 1, 64] };
        assert_eq!(
            launch.maps,
            [
                filter(0x300, 72, 264),
                filter(0x400, 200, 264),
                matrix(0x100, 72, 64),
                TensorMap::Windows(Windows {
                    address: 0x200,
                    dims: [200, 55, 22, 3],
                    lower: [0, 0],
                    upper: [0, 0],
                    strides: [3, 2],
                    channels: 64,
                    pixels: 64,
                }),
                filter(0x700, 264, 120),
                matrix(0x600, 264, 64), // not read
                matrix(0x600, 264, 64),
                matrix(0x900, 120, 64),
            ]
        );
    }

    #[test]
    fn a_residual_takes_the_place_of_a_second_source() {
        let ChainProblem { mut shape, activations, .. } = problem();
        shape.sources.truncate(1);
        shape.has_residual = true;
        let pointers = ChainPointers { residual: Some(0xa00), x: [Some(0x100), None], ..POINTERS };
        let limits = Limits { units: 3, ..Limits::h200() };
        let launch = launch(&ChainProblem { shape, activations, backward: true }, TILE, &limits, &pointers).unwrap();
        let args: Sm90ChainArgs = launch.args.read();
        assert_eq!((args.has_residual, args.source[1]), (1, Zeroable::zeroed()));
        assert_eq!(args.backward_from, 4);
        assert_eq!(
            launch.maps[5],
            TensorMap::Matrix { address: 0xa00, dims: [264, 627], pitch: 264, box_dims: [64, 64] }
        );
        assert_eq!(launch.grid, [3, 1, 1]);
    }

    #[test]
    fn out_of_range_is_an_error() {
        let refused = |change: fn(&mut ChainShape)| {
            let mut problem = problem();
            change(&mut problem.shape);
            matches!(launch(&problem, TILE, &Limits::h200(), &POINTERS), Err(Error::Unsupported { .. }))
        };
        assert!(!refused(|_| ()));
        assert!(refused(|shape| shape.next_channels = 264));
        assert!(refused(|shape| shape.next_channels = 100));
        assert!(refused(|shape| shape.sources[0].window = Window::square(3, 1, 1)));
        assert!(refused(|shape| {
            let padded = &mut shape.sources[0];
            (padded.input, padded.window) = (Shape::new(9, 17, 72), Window::square(1, 1, 1));
        }));
        assert!(refused(|shape| shape.sources[1].window.stride = [9, 3]));
        assert!(refused(|shape| shape.sources[1].input.channels = 4096));
        let odd = ChainTile { pixels: 96 };
        assert!(matches!(launch(&problem(), odd, &Limits::h200(), &POINTERS), Err(Error::Unsupported { .. })));
        let shifted = ChainPointers { z: 0x908, ..POINTERS };
        let shifted = launch(&problem(), TILE, &Limits::h200(), &shifted);
        assert!(matches!(shifted, Err(Error::Option { option: "z", .. })));
    }

    #[test]
    fn kernels_agree_with_the_source() {
        let source = read("sm90_conv2d_chain.cu");
        let found = source.lines().filter_map(|line| line.strip_prefix("TREFOIL_SM90_CHAIN(")?.strip_suffix(')'));
        let listed = ENTRIES.map(|(tile, next, name)| {
            assert_eq!(name, format!("sm90_conv2d_chain_{tile}_{next}"));
            format!("{}, {next}", tile.pixels)
        });
        assert!(found.eq(listed));
        let compiled =
            ChainTile::ALL.into_iter().flat_map(|tile| tile.next_slabs().iter().map(move |&next| (tile, next)));
        assert!(compiled.eq(ENTRIES.map(|(tile, next, _)| (tile, next))));
    }
}
