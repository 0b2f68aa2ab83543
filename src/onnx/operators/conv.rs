//! Convolutions.

use super::Operator::One;
use super::{Outcome, Table};
use crate::graph::{Conv, Op, ValueId, Window};
use crate::onnx::import::{Call, Context, size_of_dim};

pub(super) const TABLE: Table = &[("Conv", One(conv)), ("ConvTranspose", One(conv_transpose))];

/// The attributes of a window over the spatial axes.
pub(super) struct Sliding {
    pub window: Window,
    pub ceil: bool,
}

/// The numbers of an attribute for each spatial axis, or a default.
pub(super) fn each(c: &Call<'_, '_>, name: &str, axes: usize, default: usize) -> Outcome<Vec<usize>> {
    let Some(all) = c.ints_attr(name) else { return Ok(vec![default; axes]) };
    if all.len() != axes {
        return Err(format!("{name}: expected {axes}, found {all:?}"));
    }
    all.iter().map(|&value| size_of_dim(value, name)).collect()
}

/// The window of a node over these spatial dimensions. Its size is an attribute, or that of the filter.
pub(super) fn sliding(c: &Call<'_, '_>, spatial: &[usize], filter: Option<&[usize]>) -> Outcome<Sliding> {
    let axes = spatial.len();
    let size = match (c.ints_attr("kernel_shape"), filter) {
        (None, Some(filter)) => filter.to_vec(),
        (None, None) => return Err("kernel_shape: expected one".into()),
        (Some(_), _) => each(c, "kernel_shape", axes, 1)?,
    };
    let (stride, dilation) = (each(c, "strides", axes, 1)?, each(c, "dilations", axes, 1)?);
    if size.iter().chain(&stride).chain(&dilation).any(|&n| n == 0) || size.len() != axes {
        return Err(format!("expected window sizes, strides and dilations from 1 up for {axes} axes"));
    }
    let mut window = Window { size, stride, dilation, pad: Vec::new() };
    window.pad = padding(c, &window, spatial)?;
    Ok(Sliding { window, ceil: c.flag("ceil_mode") })
}

fn padding(c: &Call<'_, '_>, window: &Window, spatial: &[usize]) -> Outcome<Vec<[usize; 2]>> {
    let axes = spatial.len();
    let upper = match c.text_or("auto_pad", "NOTSET") {
        "NOTSET" | "" => return explicit(c, axes),
        "VALID" => return Ok(vec![[0; 2]; axes]),
        "SAME_UPPER" => true,
        "SAME_LOWER" => false,
        other => return Err(format!("auto_pad: expected NOTSET, VALID or SAME_…, found `{other}`")),
    };
    let pad = |axis: usize| {
        let reach = (window.size[axis] - 1) * window.dilation[axis] + 1;
        let places = spatial[axis].div_ceil(window.stride[axis]);
        let total = (places.saturating_sub(1) * window.stride[axis] + reach).saturating_sub(spatial[axis]);
        if upper { [total / 2, total - total / 2] } else { [total - total / 2, total / 2] }
    };
    Ok((0..axes).map(pad).collect())
}

fn explicit(c: &Call<'_, '_>, axes: usize) -> Outcome<Vec<[usize; 2]>> {
    let pads = each(c, "pads", 2 * axes, 0)?;
    Ok((0..axes).map(|axis| [pads[axis], pads[axis + axes]]).collect())
}

/// The spatial dimensions of `[N, C, spatial…]`.
pub(super) fn spatial(c: &Context<'_>, x: ValueId) -> Outcome<Vec<usize>> {
    match &c.of(x).dims[..] {
        [_, _, spatial @ ..] => Ok(spatial.to_vec()),
        _ => Err(format!("expected [N, C, spatial…], found {}", c.of(x))),
    }
}

fn conv(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, filter, bias) = (c.x(0)?, c.x(1)?, c.maybe(2));
    convolve(c, x, filter, bias)
}

/// The convolution of these operands with a node's attributes.
pub(super) fn convolve(c: &mut Call<'_, '_>, x: ValueId, filter: ValueId, bias: Option<ValueId>) -> Outcome<ValueId> {
    let (dims, taps) = (spatial(c, x)?, spatial(c, filter)?);
    let window = sliding(c, &dims, Some(&taps))?.window;
    let groups = c.size("group")?.unwrap_or(1);
    let inner = c.channels_last(x)?;
    let y = c.emit(Op::Conv(Conv { window, groups }), &[Some(inner), Some(filter), bias], 1)?[0];
    c.channels_first(y)
}

/// Each size of the result is (size - 1) x stride + reach + output padding - padding, or an attribute, which then
/// determines the padding.
fn conv_transpose(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, filter, bias) = (c.x(0)?, c.x(1)?, c.maybe(2));
    let (dims, taps) = (spatial(c, x)?, spatial(c, filter)?);
    let axes = dims.len();
    if taps.len() != axes {
        return Err(format!("a filter of {} for {}", c.of(filter), c.of(x)));
    }
    let mut window = Window {
        size: each(c, "kernel_shape", axes, 1)?,
        stride: each(c, "strides", axes, 1)?,
        dilation: each(c, "dilations", axes, 1)?,
        pad: Vec::new(),
    };
    if c.ints_attr("kernel_shape").is_none() {
        window.size = taps;
    }
    let extra = each(c, "output_padding", axes, 0)?;
    let auto = c.text_or("auto_pad", "NOTSET");
    let wanted = match c.ints_attr("output_shape") {
        // Some exporters write the whole shape, with batch and channels.
        Some(all) if all.len() == axes + 2 => {
            Some(all[2..].iter().map(|&size| size_of_dim(size, "output_shape")).collect::<Outcome<Vec<_>>>()?)
        }
        Some(_) => Some(each(c, "output_shape", axes, 0)?),
        None if auto.starts_with("SAME") => Some((0..axes).map(|axis| dims[axis] * window.stride[axis]).collect()),
        None => None,
    };
    let full = |axis: usize| {
        (dims[axis].max(1) - 1) * window.stride[axis]
            + extra[axis]
            + (window.size[axis].max(1) - 1) * window.dilation[axis]
            + 1
    };
    let (pad, result) = match wanted {
        Some(wanted) => {
            let cut = |axis: usize| {
                let total = full(axis).saturating_sub(wanted[axis]);
                if auto == "SAME_UPPER" { [total / 2, total - total / 2] } else { [total - total / 2, total / 2] }
            };
            ((0..axes).map(cut).collect(), wanted.clone())
        }
        None => {
            let pad = if auto == "VALID" { vec![[0; 2]; axes] } else { explicit(c, axes)? };
            let result = (0..axes).map(|axis| full(axis).saturating_sub(pad[axis][0] + pad[axis][1])).collect();
            (pad, result)
        }
    };
    window.pad = pad;
    let conv = Conv { window, groups: c.size("group")?.unwrap_or(1) };
    let inner = c.channels_last(x)?;
    let y = c.emit(Op::ConvTranspose(conv, result), &[Some(inner), Some(filter), bias], 1)?[0];
    c.channels_first(y)
}
