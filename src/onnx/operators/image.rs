//! Interpolation of images, and windows that are taken apart and put together.

use super::Operator::One;
use super::conv::{each, spatial};
use super::{Outcome, Table};
use crate::graph::{Nearest, Op, Resize, ResizeCoordinates, ResizeMode, Scatter, Tensor, ValueId};
use crate::onnx::import::{Call, axis_of, product, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table =
    &[("Resize", One(resize)), ("Upsample", One(upsample)), ("Col2Im", One(col2im)), ("MaxUnpool", One(max_unpool))];

/// The axes that a node resizes, with their sizes or scales.
struct Wanted {
    axes: Vec<usize>,
    scales: Option<Vec<f64>>,
    sizes: Option<Vec<i64>>,
    roi: Vec<f64>,
}

fn wanted(c: &Call<'_, '_>, rank: usize) -> Outcome<Wanted> {
    let floats = |index, what| -> Outcome<Option<Vec<f64>>> {
        let found = c.maybe(index).map(|value| c.floats(value, what)).transpose()?;
        Ok(found.filter(|found| !found.is_empty()))
    };
    let axes = match c.ints_attr("axes") {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Outcome<Vec<_>>>()?,
        None => (0..rank).collect(),
    };
    Ok(match c.version < 11 {
        true => Wanted { axes, scales: floats(1, "scales")?, sizes: None, roi: Vec::new() },
        false => Wanted {
            axes,
            scales: floats(2, "scales")?,
            sizes: c.ints_at(3, "sizes")?.filter(|sizes| !sizes.is_empty()),
            roi: if c.text_or("coordinate_transformation_mode", "") == "tf_crop_and_resize" {
                floats(1, "the region")?.unwrap_or_default()
            } else {
                Vec::new()
            },
        },
    })
}

fn mode(c: &Call<'_, '_>) -> Outcome<ResizeMode> {
    let nearest = match c.text_or("nearest_mode", "round_prefer_floor") {
        _ if c.version < 11 => Nearest::Floor,
        "round_prefer_floor" => Nearest::PreferFloor,
        "round_prefer_ceil" => Nearest::PreferCeil,
        "floor" => Nearest::Floor,
        "ceil" => Nearest::Ceil,
        other => return Err(format!("nearest_mode: unknown value `{other}`")),
    };
    match c.text_or("mode", "nearest") {
        "nearest" => Ok(ResizeMode::Nearest(nearest)),
        "linear" | "bilinear" => Ok(ResizeMode::Linear),
        "cubic" => Ok(ResizeMode::Cubic(c.float_or("cubic_coeff_a", -0.75))),
        other => Err(format!("mode: expected nearest, linear or cubic, found `{other}`")),
    }
}

fn coordinates(c: &Call<'_, '_>) -> Outcome<ResizeCoordinates> {
    Ok(match c.text_or("coordinate_transformation_mode", "half_pixel") {
        _ if c.version < 11 => ResizeCoordinates::Asymmetric,
        "half_pixel" => ResizeCoordinates::HalfPixel,
        "half_pixel_symmetric" => ResizeCoordinates::HalfPixelSymmetric,
        "pytorch_half_pixel" => ResizeCoordinates::PytorchHalfPixel,
        "align_corners" => ResizeCoordinates::AlignCorners,
        "asymmetric" => ResizeCoordinates::Asymmetric,
        "tf_crop_and_resize" => ResizeCoordinates::Crop,
        other => return Err(format!("coordinate_transformation_mode: unknown value `{other}`")),
    })
}

/// Up to version 7 scales are an attribute, later an input; from version 11 on sizes may be given instead.
fn resize(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let dims = c.dims(x);
    let told = wanted(c, dims.len())?;
    let attribute = c.floats_attr("scales").filter(|_| c.version < 9);
    let scales = told.scales.clone().or_else(|| Some(attribute?.iter().map(|&scale| f64::from(scale)).collect()));
    let crop = coordinates(c)? == ResizeCoordinates::Crop;
    let mut of = Resize {
        mode: mode(c)?,
        coordinates: coordinates(c)?,
        dims: dims.clone(),
        scales: vec![1.0; dims.len()],
        crop: vec![[0.0, 1.0]; dims.len()],
        antialias: c.flag("antialias"),
        exclude_outside: c.flag("exclude_outside"),
        outside: crop.then(|| c.float_or("extrapolation_value", 0.0)),
    };
    let count = told.axes.len();
    let lengths = [scales.as_ref().map(Vec::len), told.sizes.as_ref().map(Vec::len)];
    if let Some(length) = lengths.into_iter().flatten().find(|&length| length != count) {
        return Err(format!("scales or sizes: expected {count}, found {length}"));
    }
    let kept = kept_aspect(c, &dims, &told)?;
    for (index, &axis) in told.axes.iter().enumerate() {
        if let (Some(&low), Some(&high)) = (told.roi.get(index), told.roi.get(index + count)) {
            of.crop[axis] = [low, high];
        }
        let part = if crop { of.crop[axis][1] - of.crop[axis][0] } else { 1.0 };
        (of.dims[axis], of.scales[axis]) = match (&scales, &told.sizes, kept) {
            (_, Some(_), Some(scale)) => ((scale * dims[axis] as f64 + 0.5).floor() as usize, scale),
            (_, Some(sizes), None) => {
                let size = size_of_dim(sizes[index], "sizes")?;
                (size, size as f64 / dims[axis] as f64)
            }
            (Some(scales), None, _) => ((dims[axis] as f64 * part * scales[index]).floor() as usize, scales[index]),
            (None, None, _) => return Err("expected scales or sizes".into()),
        };
    }
    c.op(Op::Resize(of), &[x])
}

/// The scale for all axes if the sizes are bounds that keep the aspect ratio.
fn kept_aspect(c: &Call<'_, '_>, dims: &[usize], told: &Wanted) -> Outcome<Option<f64>> {
    let Some(sizes) = &told.sizes else { return Ok(None) };
    let scales = told.axes.iter().zip(sizes).map(|(&axis, &size)| size as f64 / dims[axis] as f64);
    match c.text_or("keep_aspect_ratio_policy", "stretch") {
        "stretch" => Ok(None),
        "not_larger" => Ok(scales.reduce(f64::min)),
        "not_smaller" => Ok(scales.reduce(f64::max)),
        other => Err(format!("keep_aspect_ratio_policy: unknown value `{other}`")),
    }
}

fn upsample(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    resize(c)
}

/// Sums columns, which are windows, into an image where they overlap.
fn col2im(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let x = c.x(0)?;
    let sizes = |all: Vec<i64>| all.into_iter().map(|size| size_of_dim(size, "shape")).collect::<Outcome<Vec<_>>>();
    let image = sizes(c.ints_at(1, "the image's shape")?.ok_or("expected the image's shape")?)?;
    let block = sizes(c.ints_at(2, "the block's shape")?.ok_or("expected the block's shape")?)?;
    let axes = image.len();
    if block.len() != axes || block.contains(&0) {
        return Err(format!("a block of {block:?} in an image of {image:?}: expected as many sizes, from 1 up"));
    }
    let (stride, dilation) = (each(c, "strides", axes, 1)?, each(c, "dilations", axes, 1)?);
    let pads = each(c, "pads", 2 * axes, 0)?;
    let taps = product(&block)?;
    let [n, columns, places] = c.dims(x)[..] else { return Err(format!("expected three axes, found {}", c.of(x))) };
    let channels = columns / taps.max(1);
    let reach = |axis: usize| (block[axis] - 1) * dilation[axis] + 1;
    let along: Vec<usize> = (0..axes)
        .map(|axis| {
            (image[axis] + pads[axis] + pads[axis + axes]).saturating_sub(reach(axis)) / stride[axis].max(1) + 1
        })
        .collect();
    if product(&along)? != places || channels * taps != columns {
        return Err(format!("{} does not fit blocks {block:?} of an image of {image:?}", c.of(x)));
    }
    // Each column's tap goes to an element of the image, or to an element behind the image if it is padding.
    let plane = product(&image)?;
    c.step(product(&[taps, places])?)?;
    let mut at = Vec::with_capacity(taps * places);
    for (tap, place) in (0..taps).flat_map(|tap| (0..places).map(move |place| (tap, place))) {
        let (mut tap, mut place, mut inner, mut index) = (tap, place, 1, Some(0));
        for axis in (0..axes).rev() {
            let along_axis = (place % along[axis]) * stride[axis] + (tap % block[axis]) * dilation[axis];
            let inside = along_axis.checked_sub(pads[axis]).filter(|&at| at < image[axis]);
            index = index.zip(inside).map(|(index, at)| index + at * inner);
            (tap, place, inner) = (tap / block[axis], place / along[axis], inner * image[axis]);
        }
        at.push(index.unwrap_or(plane) as i64);
    }
    let at = c.constant(&Tensor::of(&[1, taps * places], &at));
    let at = c.broadcast(at, &[n * channels, taps * places])?;
    let dtype = c.dtype(x);
    let zeros = c.filled(dtype, &[n * channels, plane.saturating_add(1)], 0.0)?;
    let from = c.reshape(x, &[n * channels, taps * places])?;
    let sums = c.op(Op::ScatterElements(1, Scatter::Add), &[zeros, at, from])?;
    let inside = c.slice(sums, 1, 0, plane)?;
    c.reshape(inside, &[&[n, channels], &image[..]].concat())
}

/// Zeros, except for the maxima, which return to their places.
fn max_unpool(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, at) = (c.x(0)?, c.x(1)?);
    let dims = spatial(c, x)?;
    let axes = dims.len();
    let (size, stride) = (each(c, "kernel_shape", axes, 1)?, each(c, "strides", axes, 1)?);
    let pads = each(c, "pads", 2 * axes, 0)?;
    let own = |axis: usize| {
        ((dims[axis].max(1) - 1) * stride[axis] + size[axis]).saturating_sub(pads[axis] + pads[axis + axes])
    };
    let own: Vec<usize> = c.dims(x)[..2].iter().copied().chain((0..axes).map(own)).collect();
    let dims = match c.ints_at(2, "the output's shape")? {
        Some(dims) => dims.iter().map(|&dim| size_of_dim(dim, "shape")).collect::<Outcome<Vec<_>>>()?,
        None => own.clone(),
    };
    if dims.len() != own.len() {
        return Err(format!("shape {dims:?}: expected {} sizes", own.len()));
    }
    let (dtype, elems) = (c.dtype(x), c.of(x).elems());
    let zeros = c.filled(dtype, &[product(&own)?], 0.0)?;
    let at = c.cast(at, Dtype::I64)?;
    let at = c.reshape(at, &[elems])?;
    let flat = c.reshape(x, &[elems])?;
    let placed = c.op(Op::ScatterElements(0, Scatter::Replace), &[zeros, at, flat])?;
    let mut y = c.reshape(placed, &own)?;
    for (axis, &dim) in dims.iter().enumerate() {
        let missing = dim.saturating_sub(own[axis]);
        if missing > 0 {
            let mut more = c.dims(y);
            more[axis] = missing;
            let zeros = c.filled(dtype, &more, 0.0)?;
            y = c.concat(&[y, zeros], axis)?;
        }
    }
    Ok(y)
}
