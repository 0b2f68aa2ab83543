//! Launches of `kernels/conv2d_depthwise_s8.cu`.

use super::conv2d_depthwise::{DepthwiseGeometry, THREADS, kernel_of};
#[cfg(test)]
use super::entries::Arguments;
use super::entries::{EntryPoint, Launcher};
use super::launch::{Launch, aligned, kernel_args};
use super::requantise::ByteResult;
use super::sm90_conv2d_depthwise_s8::DepthwiseS8Problem;
use super::steps::Operands;
use crate::error::Error;
use crate::plan::S8Conv;

kernel_args! {
    /// `DepthwiseS8Args`.
    DepthwiseS8Args, 144 bytes {
        x: u64,
        filter: u64,
        bias: u64,
        scale: u64,
        y: u64,
        sizes: DepthwiseGeometry,
        x_signed: i32,
        bytes: ByteResult,
    }
}

/// Depthwise convolutions of bytes on any GPU.
pub(super) struct Conv2dDepthwiseS8;

impl Launcher for Conv2dDepthwiseS8 {
    fn name(&self) -> &'static str {
        "conv2d_depthwise_s8"
    }

    fn entries(&self) -> Vec<EntryPoint> {
        EntryPoint::flat("conv2d_depthwise_s8", &ENTRIES, THREADS)
    }

    fn launch(&self, step: &Operands<'_>) -> Result<Launch, Error> {
        launch(&DepthwiseS8Problem::of(step)?)
    }

    #[cfg(test)]
    fn arguments(&self) -> Vec<Arguments> {
        vec![Arguments::of::<DepthwiseS8Args>("conv2d_depthwise_s8.cu", "DepthwiseS8Args", DepthwiseS8Args::FIELDS)]
    }
}

/// All kernels, in the order of those of halves.
const ENTRIES: [&str; 5] = [
    "sm80_conv2d_depthwise_s8_3x3_stride1",
    "sm80_conv2d_depthwise_s8_3x3_stride2",
    "sm80_conv2d_depthwise_s8_5x5_stride1",
    "sm80_conv2d_depthwise_s8_5x5_stride2",
    "sm80_conv2d_depthwise_s8_any",
];

/// The launch of `problem`.
pub(crate) fn launch(problem: &DepthwiseS8Problem) -> Result<Launch, Error> {
    problem.check_channels()?;
    let S8Conv { batch, input, output, window } = problem.conv;
    let sizes = DepthwiseGeometry::of(batch, input, [output.height, output.width], &window)?;
    let args = DepthwiseS8Args {
        x: aligned("x", problem.x, 16)?,
        filter: aligned("filter", problem.filter, 16)?,
        bias: aligned("bias", problem.bias, 16)?,
        scale: aligned("scale", problem.scale, 16)?,
        y: aligned("y", problem.y, 16)?,
        sizes,
        x_signed: i32::from(problem.x_signed),
        bytes: ByteResult::of(None, problem.y_signed, problem.relu),
    };
    Ok(Launch::flat(ENTRIES[kernel_of(&window)], sizes.blocks(), THREADS, &args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Window;
    use crate::tensor::Shape;

    fn problem() -> DepthwiseS8Problem {
        let window = Window::square(5, 2, 2);
        let conv = S8Conv { batch: 3, input: Shape::new(30, 40, 48), output: Shape::new(15, 20, 48), window };
        DepthwiseS8Problem {
            conv,
            x: 0x100,
            x_signed: true,
            filter: 0x200,
            bias: 0x300,
            scale: 0x400,
            y: 0x500,
            y_signed: true,
            relu: false,
        }
    }

    #[test]
    fn every_field_gets_its_own_value() {
        let launch = launch(&problem()).unwrap();
        let args: DepthwiseS8Args = launch.args.read();
        assert_eq!([args.x, args.filter, args.bias, args.scale, args.y], [0x100, 0x200, 0x300, 0x400, 0x500]);
        assert_eq!((args.sizes.threads, args.sizes.c_chunks, args.x_signed), (3 * 15 * 5 * 6, 6, 1));
        assert_eq!([args.bytes.lowest, args.bytes.highest], [-128, 127]);
        assert_eq!((launch.grid, launch.block), ([11, 1, 1], [128, 1, 1]));
        assert_eq!(launch.entry, "sm80_conv2d_depthwise_s8_5x5_stride2");
    }

    #[test]
    fn other_channels_are_refused() {
        for [input, output] in [[24, 24], [48, 96], [0, 0]] {
            let mut problem = problem();
            (problem.conv.input.channels, problem.conv.output.channels) = (input, output);
            assert!(matches!(launch(&problem), Err(Error::Unsupported { .. })));
        }
    }
}
