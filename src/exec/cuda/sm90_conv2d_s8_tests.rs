//! Tests of the launches of convolutions of bytes: each argument, and the problems that are refused.

use super::super::entries::tests::read;
use super::*;
use crate::model::{Pad, Window};
use crate::tensor::Shape;

const TILE: S8Tile = tile(192, 256, 128);

pub fn problem() -> S8Problem {
    let pad = Pad { top: 2, left: 1, bottom: 16, right: 32 };
    let conv = S8Conv {
        batch: 3,
        input: Shape::new(30, 40, 144),
        output: Shape::new(11, 19, 272),
        window: Window { size: [5, 7], stride: [3, 2], pad, dilation: [4, 6] },
    };
    S8Problem {
        conv,
        x: 0x100,
        x_signed: false,
        filter: 0x200,
        second: None,
        bias: 0x300,
        scale: 0x400,
        residual: Some(S8Residual { address: 0x500, signed: true, scale: 0.25 }),
        y: 0x600,
        y_signed: true,
        relu: false,
        backward: false,
    }
}

#[test]
fn tiles_agree_with_the_source() {
    let source = read("sm90_conv2d_s8.cu");
    let parse = |line: &str| -> Option<Vec<usize>> {
        let (name, rest) = line.strip_prefix("using Tile")?.split_once(" = S8Tile<")?;
        let (name, rest) = match (name.strip_suffix("_kept"), rest.strip_suffix(">;")?) {
            (Some(name), rest) => (name, rest.strip_suffix(", true")?),
            (None, rest) => (name, rest),
        };
        let numbers = name.split('x').chain(rest.split(", "));
        Some(numbers.map(|number| number.parse().expect("a number")).collect())
    };
    let found: Vec<_> = source.lines().filter_map(parse).collect();
    let listed = ENTRIES.map(|(tile, names)| {
        let S8Tile { pixels, channels, row_bytes, kept } = tile;
        let (ways, kept) = (["u8", "u8_add", "s8", "s8_add"], if kept { "_kept" } else { "" });
        assert_eq!(names, ways.map(|way| format!("sm90_conv2d_{way}_{pixels}x{channels}x{row_bytes}{kept}")));
        let of = tile.pipeline().unwrap();
        let groups = [of.channel_groups, of.pixel_groups, of.slabs, of.product_pixels];
        [[pixels, channels, row_bytes].as_slice(), &groups, &[row_bytes, of.stages, of.blocks]].concat()
    });
    assert_eq!(found, listed);
    assert_eq!(ENTRIES.map(|(tile, _)| tile), S8Tile::ALL);
}

#[test]
fn every_field_gets_its_own_value() {
    let launch = launch(&problem(), TILE, 1, 4).unwrap();
    let args: Sm90ConvS8Args = launch.args.read();
    assert_eq!([args.bias, args.scale], [0x300, 0x400]);
    assert_eq!([args.k_stored, args.tiles, args.channel_tiles, args.steps], [272, 8, 2, 70]);
    assert_eq!([args.out_pixels, args.out_width, args.backward_from], [209, 19, -1]);
    assert_eq!((args.by_channel_tiles.divide(7), args.by_out_pixels.divide(626)), (3, 2));
    assert_eq!((args.by_out_width.divide(56), args.first_steps), (2, 70));
    assert_eq!((args.taps[0].by_c_steps.divide(69), args.taps[0].by_filter_w.divide(34)), (34, 4));
    let first = S8SourceArgs {
        filter_h: 5,
        filter_w: 7,
        c_bytes: 256,
        stride_h: 3,
        stride_w: 2,
        pad_top: 2,
        pad_left: 1,
        dilation_h: 4,
        dilation_w: 6,
        by_windows: 1,
    };
    assert_eq!(args.source, [first, S8SourceArgs::zeroed()]);
    let S8Output { residual_scale, residual_flip, residual_base, result_offset, .. } = args.output;
    assert_eq!((residual_scale, residual_flip, residual_base), (4_194_304.0, 0x8080_8080, 0x0080_0080));
    assert_eq!((result_offset, args.output.result_flip, args.output.result_is_low), (0x80, 0x8080_8080, 0));
    let result = |address| TensorMap::Matrix { address, dims: [136, 627], pitch: 136, box_dims: [64, 32] };
    let filter = TensorMap::Blocks { address: 0x200, dims: [72, 35, 272], box_dims: [64, 1, 256] };
    let x = TensorMap::Windows(Windows {
        address: 0x100,
        dims: [72, 40, 30, 3],
        lower: [-1, -2],
        upper: [32 - 36, 16 - 16],
        strides: [2, 3],
        channels: 64,
        pixels: 192,
    });
    let maps = [filter.clone(), filter, x.clone(), x, result(0x500), result(0x600)];
    assert_eq!(launch.maps, maps);
    assert_eq!((launch.grid, launch.block, launch.shared_bytes), ([4, 1, 1], [384, 1, 1], 221_424));
    assert_eq!((&*launch.entry, launch.cluster, launch.waits_itself), ("sm90_conv2d_u8_add_192x256x128", 1, true));
}

#[test]
fn a_second_convolution_has_steps_maps_and_windows_of_its_own() {
    let first = S8Problem { residual: None, ..problem() };
    let input = Shape::new(22, 57, 80);
    let conv = S8Conv { input, window: Window { stride: [2, 3], ..Window::square(1, 1, 0) }, ..first.conv };
    let second = S8Second { conv, x: 0x700, filter: 0x800 };
    let problem = S8Problem { second: Some(second), ..first };
    let both = launch(&problem, tile(128, 128, 64), 1, 132).unwrap();
    let args: Sm90ConvS8Args = both.args.read();
    assert_eq!((args.steps, &*both.entry), (35 * 3 + 2, "sm90_conv2d_u8_128x128x64"));
    assert_eq!((args.first_steps, args.taps.map(|of| of.by_c_steps.divide(5))), (35 * 3, [1, 2]));
    assert_eq!(args.taps.map(|of| of.by_filter_w.divide(20)), [2, 20]);
    let [first, second] = args.source;
    assert_eq!([first.c_bytes, second.c_bytes, second.filter_h, second.filter_w], [192, 128, 1, 1]);
    assert_eq!([second.stride_h, second.stride_w, second.by_windows], [2, 3, 1]);
    assert_eq!(both.maps[1], TensorMap::Blocks { address: 0x800, dims: [40, 1, 272], box_dims: [32, 1, 128] });
    let x = TensorMap::Windows(Windows {
        address: 0x700,
        dims: [40, 57, 22, 3],
        lower: [0, 0],
        upper: [0, 0],
        strides: [3, 2],
        channels: 32,
        pixels: 128,
    });
    assert_eq!((both.maps.len(), &both.maps[3]), (6, &x));
    let other = |conv: S8Conv| {
        let problem = S8Problem { second: Some(S8Second { conv, x: 0x700, filter: 0x800 }), ..problem };
        launch(&problem, tile(128, 128, 64), 1, 132)
    };
    assert!(other(S8Conv { batch: 2, ..conv }).is_err() && other(S8Conv { output: input, ..conv }).is_err());
    assert!(other(S8Conv { input: Shape { channels: 60_496, ..input }, ..conv }).is_ok());
    assert!(other(S8Conv { input: Shape { channels: 60_512, ..input }, ..conv }).is_err());
}

#[test]
fn a_pair_takes_two_pixel_tiles_and_half_of_the_filters() {
    let problem = S8Problem { x_signed: true, backward: true, ..problem() };
    let launch = launch(&problem, tile(256, 64, 64), 2, 4).unwrap();
    let args: Sm90ConvS8Args = launch.args.read();
    assert_eq!(args.backward_from, 1);
    assert_eq!([args.tiles, args.channel_tiles, args.steps, args.source[0].c_bytes], [10, 5, 105, 192]);
    assert_eq!((launch.grid, launch.cluster, &*launch.entry), ([8, 1, 1], 2, "sm90_conv2d_s8_add_256x64x64"));
    let filter = TensorMap::Blocks { address: 0x200, dims: [72, 35, 272], box_dims: [32, 1, 32] };
    assert_eq!(launch.maps[0], filter);
    assert!(matches!(&launch.maps[2], TensorMap::Windows(Windows { channels: 32, pixels: 256, .. })));
    assert!(matches!(&launch.maps[5], TensorMap::Matrix { box_dims: [32, 32], .. }));
}

#[test]
fn two_warpgroups_of_64_channels_fill_rows_of_128_bytes() {
    for (pixels, stages, chunks) in [(256, 4, 8), (192, 5, 6), (128, 3, 4), (64, 4, 3)] {
        let launch = launch(&problem(), tile(pixels, 128, 128), 1, 132).unwrap();
        assert!(matches!(&launch.maps[4..], [TensorMap::Matrix { box_dims: [64, 32], .. }, _]), "{pixels}");
        assert!(matches!(&launch.maps[5], TensorMap::Matrix { box_dims: [64, 32], .. }), "{pixels}");
        let stage = (128 + pixels) * 128 + 16;
        assert_eq!(launch.shared_bytes as usize, stages * stage + chunks * (32 * 128 + 16), "{pixels}");
    }
}

/// Blocks take tiles of the same channels: the grid is a multiple of the channel tiles.
#[test]
fn kept_filters_are_of_one_channel_tile() {
    let conv = S8Conv { input: Shape::new(11, 19, 400), window: Window::square(1, 1, 0), ..problem().conv };
    let launch = |tile, cluster, units| launch(&S8Problem { conv, ..problem() }, tile, cluster, units);
    let kept = |row_bytes| S8Tile { kept: true, ..tile(64, 256, row_bytes) };
    let single = launch(kept(128), 1, 7).unwrap();
    let args: Sm90ConvS8Args = single.args.read();
    assert_eq!([args.tiles, args.channel_tiles, args.steps, args.first_steps], [20, 2, 4, 4]);
    assert_eq!((single.grid, single.block), ([6, 1, 1], [640, 1, 1]));
    assert_eq!((&*single.entry, single.cluster), ("sm90_conv2d_u8_add_64x256x128_kept", 1));
    assert_eq!(single.shared_bytes, 22 * 8208 + 4 * 3 * (4096 + 16));
    assert_eq!(single.maps[0], TensorMap::Blocks { address: 0x200, dims: [200, 1, 272], box_dims: [64, 1, 256] });
    let x = TensorMap::Matrix { address: 0x100, dims: [200, 627], pitch: 200, box_dims: [64, 64] };
    assert_eq!((&single.maps[2], &single.maps[3]), (&x, &x));
    let grid = |units| launch(kept(128), 1, units).unwrap().grid;
    assert_eq!([grid(132), grid(1)], [[20, 1, 1], [2, 1, 1]]);
    assert!(launch(kept(128), 2, 132).is_err(), "a pair");
    assert_eq!(launch(kept(64), 1, 7).unwrap().shared_bytes, 44 * 4112 + 4 * 3 * (4096 + 16));
    assert!(super::launch(&problem(), kept(128), 1, 132).is_err(), "more steps than fit");
}

#[test]
fn blocks_that_share_a_tile_have_no_other_one() {
    let launch = |cluster| launch(&problem(), tile(64, 64, 128), cluster, 4);
    let shared = launch(8).unwrap();
    let args: Sm90ConvS8Args = shared.args.read();
    assert_eq!([args.tiles, args.channel_tiles, args.steps, args.m_pixels], [50, 5, 70, 627]);
    assert_eq!([args.residual_values, args.y_values], [0x500, 0x600]);
    assert_eq!((shared.grid, shared.cluster, shared.block), ([400, 1, 1], 8, [160, 1, 1]));
    assert_eq!((&*shared.entry, shared.shared_bytes), ("sm90_conv2d_u8_add_64x64x128", 6 * 16_400 + 16_384 + 8));
    assert!(matches!(&shared.maps[0], TensorMap::Blocks { box_dims: [64, 1, 64], .. }));
    assert!(launch(3).is_err() && launch(16).is_err());
    let conv = S8Conv { window: Window::square(1, 1, 0), output: problem().conv.input, ..problem().conv };
    let few = |cluster| super::launch(&S8Problem { conv, ..problem() }, tile(64, 64, 128), cluster, 4);
    assert!(few(2).is_ok() && few(4).is_err(), "a block without a step");
}

#[test]
fn a_matrix_without_a_residual() {
    let shape = Shape::new(60, 20, 32);
    let conv = S8Conv { batch: 3, input: shape, output: shape, window: Window::square(1, 1, 0) };
    let problem = S8Problem { conv, residual: None, y_signed: false, ..problem() };
    let plain = launch(&problem, TILE, 1, 132).unwrap();
    let args: Sm90ConvS8Args = plain.args.read();
    assert_eq!([args.source[0].by_windows, args.tiles], [0, 19]);
    assert_eq!((&*plain.entry, args.output), ("sm90_conv2d_u8_192x256x128", S8Output::zeroed()));
    let x = TensorMap::Matrix { address: 0x100, dims: [16, 3600], pitch: 16, box_dims: [64, 192] };
    assert_eq!((&plain.maps[2], plain.grid), (&x, [19, 1, 1]));
    let signed = launch(&S8Problem { y_signed: true, relu: true, ..problem }, TILE, 1, 132).unwrap();
    let args: Sm90ConvS8Args = signed.args.read();
    assert_eq!(args.output, S8Output { result_is_low: 1, ..S8Output::zeroed() });
}

#[test]
fn filters_are_packed_by_sixteen_channels() {
    let filter: Vec<i8> = (0..96).collect(); // 32 channels of 3 bytes
    let packed = packed(&filter, 3);
    assert_eq!(packed[..9], [0, 1, 2, 6, 7, 8, 12, 13, 14]);
    assert_eq!(packed[24..27], [3, 4, 5]);
    assert_eq!(packed[48..54], [48, 49, 50, 54, 55, 56]);
    let mut sorted = packed.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, filter);
}

#[test]
fn what_no_kernel_does_is_refused() {
    let refused = |problem: S8Problem| launch(&problem, TILE, 1, 132).is_err();
    let good = problem();
    assert!(!refused(good));
    assert!(refused(S8Problem { conv: S8Conv { batch: 0, ..good.conv }, ..good }));
    assert!(refused(S8Problem { conv: S8Conv { input: Shape::new(30, 40, 24), ..good.conv }, ..good }));
    for at in 0..6 {
        let mut addresses = [good.x, good.filter, good.bias, good.scale, 0x500, good.y];
        addresses[at] += 8;
        let [x, filter, bias, scale, residual, y] = addresses;
        let residual = good.residual.map(|of| S8Residual { address: residual, ..of });
        assert!(refused(S8Problem { x, filter, bias, scale, residual, y, ..good }), "operand {at}");
    }
    for scale in [f32::INFINITY, 2f32.powi(104), f32::NAN] {
        let residual = good.residual.map(|of| S8Residual { scale, ..of });
        assert!(refused(S8Problem { residual, ..good }));
    }
    assert!(matches!(launch(&good, tile(32, 32, 128), 1, 132), Err(Error::Unsupported { .. })));
    assert!(matches!(launch(&good, TILE, 0, 132), Err(Error::Unsupported { .. })), "clusters of no block");
}
