//! The sm90 convolutions of bytes as the planner sees them: the layers that they compute, and the predicted times.

use super::conv2d_s8::{kernels, sum};
use super::sm90_conv2d_halo::CHANNELS as HALO_CHANNELS;
use super::{HaloTile, Kernel, KernelDef, Variant, not_a_choice};
use crate::error::Error;
use crate::plan::conv_s8::S8Pipeline;
#[cfg(feature = "cuda")]
use crate::plan::packing::{self, FilterOrder, PackedSum};
use crate::plan::work::Work;
use crate::plan::{Limits, S8Conv, S8Kernel, S8Tile};

/// A kernel for convolutions of bytes.
pub(super) struct Sm90Conv2dS8 {
    name: &'static str,
    /// Whether this is the kernel that copies a tile's pixels once for all taps.
    is_halo: bool,
}

/// The kernel in `kernels/sm90_conv2d_s8.cu`.
pub(super) const TILED: Sm90Conv2dS8 = Sm90Conv2dS8 { name: "sm90_conv2d_s8", is_halo: false };

/// The kernel in `kernels/sm90_conv2d_s8_halo.cu`.
pub(super) const HALO: Sm90Conv2dS8 = Sm90Conv2dS8 { name: "sm90_conv2d_s8_halo", is_halo: true };

impl KernelDef for Sm90Conv2dS8 {
    fn name(&self) -> &'static str {
        self.name
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        sum(work).is_some()
    }

    fn has(&self, kernel: Kernel) -> bool {
        match kernel {
            Kernel::S8(S8Kernel::Tiled { .. }) => !self.is_halo,
            Kernel::S8(S8Kernel::Halo) => self.is_halo,
            _ => false,
        }
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let Some(sum) = sum(work) else { return Vec::new() };
        let of = |kernel| Variant { kernel: Kernel::S8(kernel), clocks: Some(clocks(&sum, kernel, limits)) };
        kernels(&sum, limits).filter(|&kernel| self.has(Kernel::S8(kernel))).map(of).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        let sum = sum(work).ok_or_else(|| not_a_choice(work.name, kernel))?;
        sum[0].check()?;
        let is_one = kernels(&sum, limits).any(|of| Kernel::S8(of) == kernel);
        if is_one { Ok(()) } else { Err(not_a_choice(work.name, kernel)) }
    }

    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        packing::in_bytes(work, FilterOrder::Bytes)
    }
}

/// Predicted clocks of the busiest multiprocessor.
fn clocks(sum: &[S8Conv], kernel: S8Kernel, limits: &Limits) -> f64 {
    match kernel {
        S8Kernel::Tiled { tile, cluster } => match tile.pipeline() {
            Some(pipeline) if pipeline.shares() => shared_clocks(sum, tile, &pipeline, cluster, limits),
            Some(pipeline) if tile.kept => kept_clocks(sum, tile, &pipeline, limits),
            Some(pipeline) => tiled_clocks(sum, tile, &pipeline, cluster, limits),
            None => f64::INFINITY,
        },
        S8Kernel::Halo => halo_clocks(&sum[0], limits),
        S8Kernel::Sm80Gemm(_) => f64::INFINITY,
    }
}

/// Clocks of tiles that blocks do not share. Blocks on one multiprocessor take turns at its tensor cores, and one
/// stores its results during the products of the other. `sharing` blocks copy filters for each other.
fn tiled_clocks(sum: &[S8Conv], tile: S8Tile, pipeline: &S8Pipeline, sharing: usize, limits: &Limits) -> f64 {
    let tiles = pixels(sum).div_ceil(tile.pixels * sharing) * sharing * channel_tiles(sum, tile);
    let busiest = tiles.div_ceil(limits.units.max(1));
    let bytes_a_clock = if tile.row_bytes < 128 { NARROW_BYTES_A_CLOCK } else { BYTES_A_CLOCK };
    let copied = |channels: usize| ((channels + tile.pixels) * tile.row_bytes) as f64 / bytes_a_clock;
    let waits = if sharing > 1 && has_windows(sum) { OF_STEP_OF_PAIR } else { 0.0 };
    let step = products(tile).max(copied(tile.channels / sharing)) + waits;
    let latency = LATENCY / (pipeline.stages - 1) as f64;
    let of_round = |blocks: usize| steps(sum, tile) as f64 * (blocks as f64 * step).max(latency);
    let value = match (busiest, pipeline.blocks) {
        (1, _) => OF_VALUE_ALONE,
        (_, 1) => OF_VALUE_OF_ONE,
        _ => OF_VALUE,
    };
    let pair = if sharing > 1 { PAIR } else { 0.0 };
    let first = BEFORE_FIRST_STAGE + copied(tile.channels);
    first + pair + rounds(busiest, pipeline.blocks, of_round) + busiest as f64 * area(tile) * value
}

/// Clocks of tiles whose blocks keep their filters. The two teams of a block take turns at its tensor cores.
fn kept_clocks(sum: &[S8Conv], tile: S8Tile, pipeline: &S8Pipeline, limits: &Limits) -> f64 {
    let (steps, channel_tiles) = (steps(sum, tile), channel_tiles(sum, tile));
    let (units, teams) = (limits.units.max(1), tile.teams());
    let blocks = (units / channel_tiles).max(1); // of the same channels
    let busiest = pixels(sum).div_ceil(tile.pixels).div_ceil(blocks) * channel_tiles.div_ceil(units);
    let filters = steps * tile.channels / tile.pixels; // in stages
    let latency = LATENCY / (pipeline.stages.saturating_sub(filters) / teams).saturating_sub(1).max(1) as f64;
    let step = products(tile).max((tile.pixels * tile.row_bytes) as f64 / BYTES_A_CLOCK);
    let of_round = |tiles: usize| steps as f64 * (tiles as f64 * step).max(latency);
    let value = if busiest > 1 { OF_VALUE_KEPT } else { OF_VALUE_ALONE };
    let late = LATE_FILTERS * (steps * tile.channels * tile.row_bytes) as f64 / BYTES_A_CLOCK;
    STARTUP + late + rounds(busiest, teams, of_round) + busiest as f64 * area(tile) * value
}

/// Clocks of tiles that `sharing` blocks share. If all blocks run at once, the filters of their first stages are there
/// early; a later step waits until its stage is free, and then for the copy.
fn shared_clocks(sum: &[S8Conv], tile: S8Tile, pipeline: &S8Pipeline, sharing: usize, limits: &Limits) -> f64 {
    let tiles = pixels(sum).div_ceil(tile.pixels) * channel_tiles(sum, tile);
    let busiest = (tiles * sharing).div_ceil(limits.units.max(1));
    let steps = steps(sum, tile).div_ceil(sharing);
    let late = if busiest > pipeline.blocks { steps } else { steps.saturating_sub(pipeline.stages) };
    let copied = ((steps * tile.pixels + late * tile.channels) * tile.row_bytes) as f64 / BYTES_A_CLOCK;
    let latency = late.div_ceil(pipeline.stages - 1) as f64 * LATENCY;
    let step = copied.max(steps as f64 * products(tile));
    let exchange = if sharing > 1 { EXCHANGE + area(tile) * EXCHANGE_OF_VALUE } else { 0.0 };
    let of_round = |blocks: usize| (blocks as f64 * step).max(latency) + OF_SHARED + exchange;
    STARTUP + rounds(busiest, pipeline.blocks, of_round) + busiest as f64 * area(tile) * OF_VALUE
}

/// Clocks of the `tiles` tiles of a multiprocessor, of which it computes `at_once` at a time; `of_round` gives the
/// clocks of so many tiles.
fn rounds(tiles: usize, at_once: usize, of_round: impl Fn(usize) -> f64) -> f64 {
    let rest = tiles % at_once;
    (tiles / at_once) as f64 * of_round(at_once) + if rest > 0 { of_round(rest) } else { 0.0 }
}

/// The number of pixels of the result.
fn pixels(sum: &[S8Conv]) -> usize {
    sum[0].batch * sum[0].output.pixels()
}

fn channel_tiles(sum: &[S8Conv], tile: S8Tile) -> usize {
    sum[0].output.channels.div_ceil(tile.channels)
}

fn steps(sum: &[S8Conv], tile: S8Tile) -> usize {
    sum.iter().map(|of| of.steps(tile)).sum()
}

/// The number of output values of a tile.
fn area(tile: S8Tile) -> f64 {
    (tile.pixels * tile.channels) as f64
}

/// Clocks of the products of a step.
fn products(tile: S8Tile) -> f64 {
    area(tile) * tile.row_bytes as f64 / PRODUCTS_A_CLOCK
}

/// Whether pixels are copied more than once, for several taps.
fn has_windows(sum: &[S8Conv]) -> bool {
    sum.iter().any(|of| of.window.size != [1; 2])
}

fn halo_clocks(layer: &S8Conv, limits: &Limits) -> f64 {
    let shape = layer.shape();
    let Some(tile) = HaloTile::of_bytes(&shape, limits) else { return f64::INFINITY };
    let channel_tiles = layer.output.channels.div_ceil(HALO_CHANNELS);
    let blocks = (limits.units / channel_tiles).max(1);
    let values = (2 * HALO_CHANNELS * tile.pixels) as f64;
    let products = values * (9 * tile.stored()) as f64 / PRODUCTS_A_CLOCK;
    let waves = tile.count(&shape).div_ceil(blocks) as f64;
    let first = ((9 * HALO_CHANNELS + tile.band_rows() * tile.line()) * tile.stored()) as f64 / BYTES_A_CLOCK;
    HALO_STARTUP + first + waves * (products + HALO_TILE)
}

/// Multiply-adds of bytes that a multiprocessor does in a clock.
const PRODUCTS_A_CLOCK: f64 = 4096.0 / 1.06;
/// Bytes that a multiprocessor gets from the L2 cache in a clock, while other blocks copy the same data: in rows of 128
/// bytes, and in rows of 64.
const BYTES_A_CLOCK: f64 = 58.5;
const NARROW_BYTES_A_CLOCK: f64 = 44.0;
/// Clocks of an output value: with two blocks on a multiprocessor; with one block that has several tiles; during the
/// products of the other team of a block that keeps filters; and of a multiprocessor's only tile.
const OF_VALUE: f64 = 0.11;
const OF_VALUE_OF_ONE: f64 = 0.112;
const OF_VALUE_KEPT: f64 = 0.105;
const OF_VALUE_ALONE: f64 = 0.12;
/// The part of kept filters that a block waits for: the rest comes while earlier launches end.
const LATE_FILTERS: f64 = 0.5;
/// Clocks of the launch, the barriers and the first load.
const STARTUP: f64 = 1500.0;
/// Clocks of the launch, the barriers and the latency of the first load, without its bytes.
const BEFORE_FIRST_STAGE: f64 = 1100.0;
/// Clocks that the blocks of a pair wait for each other.
const PAIR: f64 = 450.0;
/// Clocks from the moment when a stage is free until its copy has arrived.
const LATENCY: f64 = 1800.0;
/// Extra clocks of each step of pairs if windows have several taps: they wait for each other.
const OF_STEP_OF_PAIR: f64 = 180.0;
/// Clocks of a tile that blocks may share, whatever its size.
const OF_SHARED: f64 = 500.0;
/// Clocks until a block has the sums that the others send: of each shared tile, and of each of its values.
const EXCHANGE: f64 = 1100.0;
const EXCHANGE_OF_VALUE: f64 = 0.2;
/// Clocks of the halo kernel's launch besides the copies of filters and first band, and of each of its tiles besides
/// the products. The first is below what was measured, so that the halo kernel has the layers in which it was faster
/// than the best other kernel, whose waits for windows are predicted too short.
const HALO_STARTUP: f64 = 1000.0;
const HALO_TILE: f64 = 500.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Window;
    use crate::tensor::Shape;

    /// Layers of a ResNet at batch 256, and their times on an H200 in microseconds, from the notes in `benches/notes`.
    #[test]
    fn the_model_is_near_what_was_measured() {
        let single = Window::square(1, 1, 0);
        let of = |side: usize, stride: usize, channels: [usize; 2], window| S8Conv {
            batch: 256,
            input: Shape::new(side * stride, side * stride, channels[0]),
            output: Shape::new(side, side, channels[1]),
            window,
        };
        let (three, shortcut) = (Window::square(3, 1, 1), Window::square(1, 2, 0));
        let measured = [
            (vec![of(56, 1, [64, 64], three)], 41.3),
            (vec![of(28, 1, [128, 128], three)], 39.0),
            (vec![of(28, 1, [128, 512], single)], 65.2),
            (vec![of(14, 1, [256, 256], three)], 40.4),
            (vec![of(14, 1, [256, 1024], single)], 42.2),
            (vec![of(14, 2, [256, 256], Window::square(3, 2, 1))], 41.8),
            (vec![of(7, 1, [512, 512], three)], 37.2),
            (vec![of(7, 1, [512, 2048], single)], 30.0),
            (vec![of(56, 1, [64, 256], single), of(56, 1, [64, 256], single)], 106.3),
            (vec![of(28, 1, [128, 512], single), of(28, 2, [256, 512], shortcut)], 75.6),
            (vec![of(14, 1, [256, 1024], single), of(14, 2, [512, 1024], shortcut)], 62.5),
            (vec![of(7, 1, [512, 2048], single), of(7, 2, [1024, 2048], shortcut)], 54.6),
        ];
        let limits = Limits::h200();
        for (sum, microseconds) in measured {
            let least = kernels(&sum, &limits).map(|kernel| clocks(&sum, kernel, &limits));
            let predicted = least.fold(f64::INFINITY, f64::min) / 1830.0;
            let factor = predicted / microseconds;
            assert!((0.7..1.4).contains(&factor), "{sum:?}: {predicted} instead of {microseconds}");
        }
    }

    /// At small batches, the layers of a ResNet get the kernel that was fastest on an H200, or one within 4 % of it.
    #[test]
    fn layers_have_the_kernel_that_was_fastest() {
        let best = |batch: usize, side: usize, channels: [usize; 2], taps: usize| {
            let [input, output] = channels.map(|channels| Shape::new(side, side, channels));
            let sum = [S8Conv { batch, input, output, window: Window::square(taps, 1, taps / 2) }];
            let limits = Limits::h200();
            let all = kernels(&sum, &limits);
            let best = all.min_by(|a, b| clocks(&sum, *a, &limits).total_cmp(&clocks(&sum, *b, &limits))).unwrap();
            best.to_string().replace("sm90 s8 conv ", "")
        };
        assert_eq!(best(1, 56, [64, 64], 3), "32x64/128");
        assert_eq!(best(1, 28, [128, 128], 3), "32x64/128");
        assert_eq!(best(1, 14, [256, 256], 3), "32x64/128, 4 blocks");
        assert_eq!(best(1, 14, [1024, 256], 1), "32x64/128");
        assert_eq!(best(1, 7, [512, 512], 3), "64x64/128, 8 blocks");
        assert_eq!(best(1, 7, [2048, 512], 1), "32x64/128, 4 blocks");
        assert_eq!(best(4, 56, [128, 128], 3), "128x64/128");
        assert_eq!(best(8, 56, [64, 64], 3), "halo");
        assert_eq!(best(8, 28, [128, 128], 3), "64x64/128");
        assert_eq!(best(16, 28, [128, 128], 3), "128x64/128");
        assert_eq!(best(32, 28, [128, 128], 3), "halo");
        assert_eq!(best(64, 14, [128, 128], 3), "128x64/128");
        assert_eq!(best(128, 14, [128, 128], 3), "192x128/128");
        assert_eq!(best(32, 14, [256, 256], 3), "128x64/128");
        assert_eq!(best(32, 14, [1024, 256], 1), "64x128/128, pairs");
        assert_eq!(best(32, 7, [512, 512], 3), "64x64/128");
        assert_eq!(best(32, 7, [2048, 512], 1), "64x64/128");
    }

    #[test]
    fn the_halo_kernel_has_the_layers_of_up_to_128_channels() {
        let of = |shape| S8Conv { batch: 256, input: shape, output: shape, window: Window::square(3, 1, 1) };
        let limits = Limits::h200();
        let best = |layer: &S8Conv| {
            let all = layer.kernels(&limits).into_iter();
            let clocks = |kernel| clocks(&[*layer], kernel, &limits);
            all.min_by(|a, b| clocks(*a).total_cmp(&clocks(*b))).unwrap()
        };
        for shape in [Shape::new(56, 56, 64), Shape::new(28, 28, 96), Shape::new(28, 28, 128)] {
            assert_eq!(best(&of(shape)), S8Kernel::Halo, "{shape}");
        }
    }

    /// Of a ResNet's layers, those whose filters fit and that have many outputs and many tiles keep them; the others were
    /// faster by other tiles on an H200.
    #[test]
    fn layers_of_many_outputs_keep_their_filters() {
        let limits = Limits::h200();
        let best = |batch: usize, side: usize, channels: [usize; 2], second: Option<(usize, usize)>| {
            let of = |channels, stride, output| S8Conv {
                batch,
                input: Shape::new(side * stride, side * stride, channels),
                output: Shape::new(side, side, output),
                window: Window::square(1, stride, 0),
            };
            let mut sum = vec![of(channels[0], 1, channels[1])];
            sum.extend(second.map(|(input, stride)| of(input, stride, channels[1])));
            let all = kernels(&sum, &limits);
            let best = all.min_by(|a, b| clocks(&sum, *a, &limits).total_cmp(&clocks(&sum, *b, &limits))).unwrap();
            best.to_string().replace("sm90 s8 conv ", "")
        };
        for batch in [32, 256] {
            assert_eq!(best(batch, 56, [64, 256], None), "64x256/64 kept");
            assert_eq!(best(batch, 56, [64, 256], Some((64, 1))), "64x256/64 kept");
            assert_eq!(best(batch, 28, [128, 512], None), "64x256/128 kept");
        }
        assert_eq!(best(256, 28, [128, 512], Some((256, 2))), "64x256/128 kept");
        assert_eq!(best(256, 28, [512, 256], None), "64x256/128 kept");
        assert_eq!(best(32, 7, [512, 2048], None), "128x128/128");
        assert_eq!(best(8, 14, [256, 1024], None), "64x128/128, pairs");
        assert_eq!(best(256, 14, [256, 1024], None), "64x256/128 kept");
        assert_eq!(best(256, 56, [256, 64], None), "128x64/128, pairs");
    }

    /// Sums of many steps were faster, or as fast, by one block of five stages on a multiprocessor than by two of three.
    #[test]
    fn sums_of_many_steps_have_many_stages() {
        let limits = Limits::h200();
        let best = |side: usize, stride: usize, channels: [usize; 2], taps: usize| {
            let sum = [S8Conv {
                batch: 256,
                input: Shape::new(side * stride, side * stride, channels[0]),
                output: Shape::new(side, side, channels[1]),
                window: Window::square(taps, stride, taps / 2),
            }];
            let all = kernels(&sum, &limits);
            all.min_by(|a, b| clocks(&sum, *a, &limits).total_cmp(&clocks(&sum, *b, &limits))).unwrap().to_string()
        };
        let layers = [best(14, 1, [1024, 256], 1), best(7, 1, [2048, 512], 1), best(28, 2, [128, 128], 3)];
        assert_eq!(layers, ["sm90 s8 conv 192x128/128"; 3]);
    }

    /// With windows of several taps, pairs were slower than single blocks.
    #[test]
    fn windows_of_several_taps_are_for_no_pairs() {
        let limits = Limits::h200();
        let best = |side: usize, channels: usize| {
            let shape = Shape::new(side, side, channels);
            let sum = [S8Conv { batch: 256, input: shape, output: shape, window: Window::square(3, 1, 1) }];
            let all = kernels(&sum, &limits);
            all.min_by(|a, b| clocks(&sum, *a, &limits).total_cmp(&clocks(&sum, *b, &limits))).unwrap().to_string()
        };
        assert_eq!([best(14, 256), best(7, 512)], ["sm90 s8 conv 192x128/128"; 2]);
    }
}
