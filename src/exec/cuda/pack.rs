//! Weights as the kernels want them: folded, halved, channels innermost and padded, all in one buffer.

use half::f16;

use crate::error::Error;
use crate::model::{Model, fold_conv, read_linear};
use crate::plan::{Plan, Stem, StemLayers, Step, StepOp};

/// Every filter and bias starts at a multiple of this.
const ALIGN: usize = 256;

/// Where a step's weights lie in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Byte offset of the filter: f16, `filter_elems` of them.
    pub filter: usize,
    /// Elements of the filter, padding included.
    pub filter_elems: usize,
    /// Byte offset of the bias: f32, `bias_elems` of them.
    pub bias: usize,
    /// Stored output channels; none if the filter has the bias in it.
    pub bias_elems: usize,
}

/// Lays out the weights of all steps; gives the regions, by step, and the bytes in all. It depends on the graph
/// only, so every batch size of a model has the same.
pub(super) fn regions(plan: &Plan) -> (Vec<Option<Region>>, usize) {
    let mut end = 0;
    let mut take = |bytes: usize| {
        let start = end;
        end = (end + bytes).next_multiple_of(ALIGN);
        start
    };
    let regions = plan.steps.iter().map(|step| {
        let (c, k) = (stored(plan, step.inputs[0]), stored(plan, step.output));
        let filter_elems = match &step.op {
            StepOp::Stem(stem) => stem_layers(stem).filter_elems(),
            StepOp::Conv(conv) => k * taps(conv.window.size) * c,
            StepOp::Depthwise(conv) => taps(conv.window.size) * c,
            StepOp::Linear(_) => k * c,
            _ => return None,
        };
        let bias_elems = if matches!(step.op, StepOp::Stem(_)) { 0 } else { k };
        Some(Region { filter: take(2 * filter_elems), filter_elems, bias: take(4 * bias_elems), bias_elems })
    });
    let regions = regions.collect();
    (regions, end)
}

/// Reads, folds and repacks the weights of `step` into `bytes`, the whole buffer, which is zeros before.
pub(super) fn fill(model: &Model, plan: &Plan, step: &Step, region: &Region, bytes: &mut [u8]) -> Result<(), Error> {
    let input = &plan.tensors[step.inputs[0].0];
    let (c, c_stored) = (input.shape.channels, input.stored_channels);
    let (filter, bias, shape) = match &step.op {
        StepOp::Stem(Stem { conv, .. }) | StepOp::Conv(conv) | StepOp::Depthwise(conv) => {
            let folded = fold_conv(model.weights(), conv, c)?;
            (folded.filter, folded.bias, [conv.out_channels, c / conv.groups, taps(conv.window.size)])
        }
        StepOp::Linear(linear) => {
            let (weight, bias) = read_linear(model.weights(), linear, c)?;
            (weight, bias, [linear.out_features, c, 1])
        }
        _ => unreachable!("a step with a region has weights"),
    };
    let target = &mut bytes[region.filter..][..2 * region.filter_elems];
    let [_, _, taps] = shape;
    let place = |k: usize, c: usize, tap: usize| match &step.op {
        StepOp::Stem(stem) => {
            let [_, s] = stem.conv.window.size;
            stem_layers(stem).filter_index([tap / s, tap % s], k, c)
        }
        // [C, 1, taps] → [taps][c_stored]
        StepOp::Depthwise(_) => tap * c_stored + k,
        // [K, C, taps] → [K][taps][c_stored]
        _ => (k * taps + tap) * c_stored + c,
    };
    let mut put = |index: usize, value: f16| target[2 * index..][..2].copy_from_slice(&value.to_le_bytes());
    let mut source = filter.iter();
    for k in 0..shape[0] {
        for channel in 0..shape[1] {
            for tap in 0..taps {
                let value = half(*source.next().expect("the filter has this shape"), &step.name)?;
                put(place(k, channel, tap), value);
            }
        }
    }
    if let StepOp::Stem(_) = &step.op {
        for (k, value) in bias.iter().enumerate() {
            let parts = parts(*value, &step.name)?;
            parts.into_iter().enumerate().for_each(|(tap, part)| put(place(k, BIAS_CHANNEL, tap), part));
        }
    }
    for (target, value) in bytes[region.bias..][..4 * region.bias_elems].chunks_exact_mut(4).zip(&bias) {
        target.copy_from_slice(&value.to_le_bytes());
    }
    Ok(())
}

/// The channel that is one in every pixel of a stem's input: the weights of its first taps are the bias.
const BIAS_CHANNEL: usize = 3;

/// Three halves whose sum is `value`, to within 2^-25.
fn parts(value: f32, step: &str) -> Result<[f16; 3], Error> {
    let mut rest = value;
    let mut part = || {
        let part = half(rest, step)?;
        rest -= part.to_f32();
        Ok(part)
    };
    Ok([part()?, part()?, part()?])
}

fn stem_layers(stem: &Stem) -> StemLayers {
    stem.layers().expect("planned for what the kernel does")
}

/// Rounds a folded weight; one beyond the range of f16 would become infinity and is an error.
fn half(value: f32, step: &str) -> Result<f16, Error> {
    let rounded = f16::from_f32(value);
    if rounded.is_infinite() {
        return Err(Error::Unsupported {
            what: format!("node `{step}`: a weight of {value} after folding, beyond the range of f16,"),
            instead: "run it with `--device cpu`, which computes in f32".into(),
        });
    }
    Ok(rounded)
}

fn stored(plan: &Plan, id: crate::plan::TensorId) -> usize {
    plan.tensors[id.0].stored_channels
}

fn taps([r, s]: [usize; 2]) -> usize {
    r * s
}
