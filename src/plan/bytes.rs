//! Operations in bytes that every device computes in one step, so that all devices give the same bytes.

use super::context::{ALWAYS, Context, Match};
use super::conv_s8::MOST_PRODUCTS;
use super::kernels::not_a_choice;
use super::work::taps;
use super::{Joined, JoinedBytes, Kernel, QuantizedConv, QuantizedStem, Stem, StepOp};
use crate::error::Error;
use crate::model::{Conv2d, NodeId, Pool, Preprocessing};
use crate::tensor::{Activation, InputFormat, Shape};

/// A convolution of bytes in one step with a second convolution, whose result it would add. The products of both go
/// into the same sums, so the second result is not rounded. The second convolution has no activation and no residual,
/// no other node reads it, and both inputs have the same type, signed or not.
///
/// # Errors
/// [`Error::Unsupported`] if the program has chosen a kernel for the second convolution, which has no step of its own.
pub(super) fn joined(context: &Context<'_>, host: NodeId) -> Result<Option<Match>, Error> {
    let Some((conv, &[x, added], output_scale)) = context.dense_in_bytes(host) else { return Ok(None) };
    let Some((other, &[other_x], _)) = context.dense_in_bytes(added) else { return Ok(None) };
    let terms = |conv: &Conv2d, x: NodeId| taps(conv) * context.shapes[x.0].channels;
    let is_one = other.activation == Activation::None
        && context.readers(added) == [host]
        && context.operand(x).dtype == context.operand(other_x).dtype
        && terms(conv, x) + terms(other, other_x) <= MOST_PRODUCTS;
    let (Some(input_scale), Some(other_scale), true) = (context.scale(x), context.scale(other_x), is_one) else {
        return Ok(None);
    };
    let name = context.graph.nodes[added.0].name.clone();
    if let Some(kernel) = context.chosen(added).filter(|kernel| ![Kernel::Joined, Kernel::Cpu].contains(kernel)) {
        return Err(not_a_choice(&name, kernel));
    }
    let joined = JoinedBytes { of: Joined { name, conv: other.clone() }, input_scale: other_scale };
    let (joined, residual_scale) = (Some(Box::new(joined)), None);
    Ok(Some(Match {
        name: context.graph.nodes[host.0].name.clone(),
        op: StepOp::QuantizedConv(QuantizedConv {
            conv: conv.clone(),
            input_scale,
            residual_scale,
            joined,
            output_scale,
        }),
        kernel: None,
        place: host,
        covers: vec![host, added],
        reads: vec![x, other_x],
        writes: vec![host],
        saved: ALWAYS,
    }))
}

/// The first layers in one step, if `at` is their convolution: it is in bytes, and its input, the image, is not.
pub(super) fn first(context: &Context<'_>, at: NodeId) -> Option<Match> {
    let (conv, &[image], scale) = context.dense_in_bytes(at)? else { return None };
    let (rows, format, preprocessing) = context.normalized(image)?;
    let &[pool] = context.readers(at) else { return None };
    let max = context.max_pool(pool).filter(|_| context.scale(image).is_none())?;
    let op = stem(conv, max, context.shapes[at.0], scale, (format, preprocessing))?;
    Some(Match {
        name: context.graph.nodes[at.0].name.clone(),
        op: StepOp::QuantizedStem(op),
        kernel: None,
        place: pool,
        covers: vec![image, at, pool],
        reads: vec![rows],
        writes: vec![pool],
        saved: ALWAYS,
    })
}

/// The first layers with a result of scale `output_scale`. `None` unless the rows are bytes of photos and each
/// channel's mean is within 0 to 1, the range of the bytes.
pub(super) fn stem(
    conv: &Conv2d,
    pool: &Pool,
    conv_shape: Shape,
    output_scale: f32,
    (format, preprocessing): (InputFormat, &Preprocessing),
) -> Option<QuantizedStem> {
    let [mean, std] = [&preprocessing.mean, &preprocessing.std].map(Clone::clone);
    let is_photo = format == InputFormat::U8Nhwc && mean.iter().all(|mean| (0.0..=1.0).contains(mean));
    let stem = Stem { mean, std, conv: conv.clone(), conv_shape, pool: Some(*pool) };
    is_photo.then_some(QuantizedStem { stem, output_scale })
}
