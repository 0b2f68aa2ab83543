//! Samples images at positions between their elements.

use super::Operator::One;
use super::conv::{each, spatial};
use super::{Outcome, Table};
use crate::graph::{Binary, Contract, Expr, Op, ReduceOp, Tensor, Unary, ValueId};
use crate::onnx::import::{Call, Context, number, product, size_of_dim};
use crate::tensor::Dtype;

pub(super) const TABLE: Table = &[
    ("GridSample", One(grid_sample)),
    ("AffineGrid", One(affine_grid)),
    ("RoiAlign", One(roi_align)),
    ("DeformConv", One(deform_conv)),
];

/// The value at positions outside of an axis.
#[derive(Clone, Copy, PartialEq)]
enum Outside {
    Zero,
    /// The nearest element.
    Border,
    /// The axis is mirrored at these ends.
    Mirror([f64; 2]),
}

/// The index along an axis for each position, and its weight.
type Tap = [ValueId; 2];

/// A coordinate moved inside an axis of this size, with these ends.
fn inside(x: Expr, size: usize, outside: Outside, k: &dyn Fn(f64) -> Expr) -> Expr {
    match outside {
        Outside::Zero => x,
        Outside::Border => x.binary(Binary::Max, k(0.0)).binary(Binary::Min, k(size as f64 - 1.0)),
        Outside::Mirror([low, high]) if high <= low => x * k(0.0),
        Outside::Mirror([low, high]) => {
            let range = high - low;
            let turned = || (x.clone() - k(low)).binary(Binary::Mod, k(2.0 * range));
            k(range).binary(Binary::Less, turned()).select(k(2.0 * range) - turned(), turned()) + k(low)
        }
    }
}

/// The tap at a whole coordinate, with its weight. An index outside has weight 0, or is moved inside.
fn tap(c: &mut Context<'_>, at: Expr, weight: Expr, from: ValueId, size: usize, outside: Outside) -> Outcome<Tap> {
    let dtype = c.dtype(from);
    let k = |value| number(dtype, value);
    let last = || k(size as f64 - 1.0);
    let nearest = inside(at.clone(), size, outside, &k).binary(Binary::Max, k(0.0)).binary(Binary::Min, last());
    let valid = k(0.0).binary(Binary::LessEqual, at.clone()).binary(Binary::And, at.binary(Binary::LessEqual, last()));
    let weight = if outside == Outside::Zero { valid.select(weight, k(0.0)) } else { weight };
    Ok([c.map(nearest.unary(Unary::Round).cast(Dtype::I64), &[from])?, c.map(weight, &[from])?])
}

/// The taps of an interpolation along an axis, at the coordinates in a value.
fn taps(c: &mut Context<'_>, mode: &str, from: ValueId, size: usize, outside: Outside) -> Outcome<Vec<Tap>> {
    let dtype = c.dtype(from);
    let k = |value| number(dtype, value);
    let floor = || Expr::arg(0).unary(Unary::Floor);
    let t = || Expr::arg(0) - floor();
    match mode {
        "nearest" => Ok(vec![tap(c, Expr::arg(0).unary(Unary::Round), k(1.0), from, size, outside)?]),
        "linear" | "bilinear" => Ok(vec![
            tap(c, floor(), k(1.0) - t(), from, size, outside)?,
            tap(c, floor() + k(1.0), t(), from, size, outside)?,
        ]),
        "cubic" | "bicubic" => {
            let near = |x: Expr| ((k(1.25) * x.clone() - k(2.25)) * x.clone()) * x + k(1.0);
            let far = |x: Expr| ((k(-0.75) * x.clone() + k(3.75)) * x.clone() - k(6.0)) * x + k(3.0);
            let weights = [far(t() + k(1.0)), near(t()), near(k(1.0) - t()), far(k(2.0) - t())];
            let at = |(index, weight)| tap(c, floor() + k(f64::from(index) - 1.0), weight, from, size, outside);
            (0_u8..).zip(weights).map(at).collect()
        }
        other => Err(format!("mode: expected nearest, linear or cubic, found `{other}`")),
    }
}

/// Samples data `[B, plane, C]`, with a plane of these dimensions, at positions `[B, P]`: `[B, P, C]`.
fn read(c: &mut Context<'_>, data: ValueId, dims: &[usize], axes: &[Vec<Tap>]) -> Outcome<ValueId> {
    let mut combined: Vec<Tap> = axes[0].clone();
    for (taps, &size) in axes[1..].iter().zip(&dims[1..]) {
        let mut next = Vec::with_capacity(combined.len() * taps.len());
        for ([outer, by], [inner, weight]) in
            combined.iter().flat_map(|outer| taps.iter().map(move |inner| (outer, inner)))
        {
            let at = c.map(Expr::arg(0) * number(Dtype::I64, size as f64) + Expr::arg(1), &[*outer, *inner])?;
            next.push([at, c.mul(*by, *weight)?]);
        }
        combined = next;
    }
    let mut sum = None;
    for [at, weight] in combined {
        let [at, weight] = [c.unsqueeze(at, 2)?, c.unsqueeze(weight, 2)?];
        let elems = c.op(Op::GatherNd(1), &[data, at])?;
        let part = c.mul(elems, weight)?;
        sum = Some(match sum {
            None => part,
            Some(sum) => c.add(sum, part)?,
        });
    }
    sum.ok_or_else(|| "nothing is read".into())
}

fn grid_sample(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, grid) = (c.x(0)?, c.x(1)?);
    let (dims, places, dtype) = (spatial(c, x)?, c.dims(grid), c.dtype(x));
    let rank = dims.len();
    if places.len() != rank + 2 || places.last() != Some(&rank) || rank == 0 {
        return Err(format!("a grid of {} does not fit {}", c.of(grid), c.of(x)));
    }
    let (n, channels) = (c.dim(x, 0)?, c.dim(x, 1)?);
    let align = c.flag("align_corners");
    let mode = c.text_or("mode", "linear");
    let grid = c.cast(grid, dtype)?;
    let flat = c.reshape(grid, &[n, places[1..=rank].iter().product(), rank])?;
    let mut axes = Vec::with_capacity(rank);
    for (axis, &size) in dims.iter().enumerate() {
        let outside = match (c.text_or("padding_mode", "zeros"), align) {
            ("zeros", _) => Outside::Zero,
            ("border", _) => Outside::Border,
            ("reflection", true) => Outside::Mirror([0.0, size as f64 - 1.0]),
            ("reflection", false) => Outside::Mirror([-0.5, size as f64 - 0.5]),
            (other, _) => return Err(format!("padding_mode: unknown value `{other}`")),
        };
        let k = |value| number(dtype, value);
        let along = c.at(flat, 2, rank - 1 - axis)?;
        let place = match align {
            true => (Expr::arg(0) + k(1.0)) * k((size as f64 - 1.0) / 2.0),
            false => ((Expr::arg(0) + k(1.0)) * k(size as f64) - k(1.0)) * k(0.5),
        };
        let place = if mode == "nearest" { place.unary(Unary::Round) } else { place };
        let cubic = mode.ends_with("cubic");
        let place = if cubic { place } else { inside(place, size, outside, &k) };
        let place = c.map(place, &[along])?;
        axes.push(taps(c, mode, place, size, outside)?);
    }
    let inner = c.channels_last(x)?;
    let data = c.reshape(inner, &[n, dims.iter().product(), channels])?;
    let y = read(c, data, &dims, &axes)?;
    let y = c.reshape(y, &[&[n], &places[1..=rank], &[channels]].concat())?;
    c.channels_first(y)
}

/// For each position of an image, its coordinates before a linear map: from -1 to 1, the last axis first.
fn affine_grid(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let theta = c.x(0)?;
    let size = c.ints_at(1, "the size")?.ok_or("expected a size")?;
    let dims = size.iter().map(|&dim| size_of_dim(dim, "size")).collect::<Outcome<Vec<_>>>()?;
    let [n, _, spatial @ ..] = &dims[..] else { return Err(format!("size: expected three or more, found {size:?}")) };
    let (rank, places, align) = (spatial.len(), product(spatial)?, c.flag("align_corners"));
    c.step(places)?;
    let mut coordinates = Vec::with_capacity(places * (rank + 1));
    for place in 0..places {
        let mut inner = place;
        for &dim in spatial.iter().rev() {
            let (at, dim) = ((inner % dim) as f64, dim as f64);
            inner /= dim as usize;
            let along = match align {
                true if dim > 1.0 => 2.0 * at / (dim - 1.0) - 1.0,
                true => -1.0,
                false => (2.0 * at + 1.0) / dim - 1.0,
            };
            coordinates.push(along);
        }
        coordinates.push(1.0);
    }
    let dtype = c.dtype(theta);
    let base = c.constant(&Tensor::of(&[places, rank + 1], &coordinates));
    let base = c.cast(base, dtype)?;
    let contract = Contract { left: vec![0, 1], right: vec![2, 3, 1], result: vec![2, 0, 3] };
    let y = c.op(Op::Contract(contract), &[base, theta])?;
    c.reshape(y, &[&[*n], spatial, &[rank]].concat())
}

/// The samples of the regions along one axis: their taps `[R, places x samples]`, and the number of samples of each
/// region `[R, 1]`.
struct Samples {
    taps: [Tap; 2],
    each: usize,
    count: ValueId,
    used: ValueId,
}

/// Without a ratio, a place of a region has one sample for each element that it covers, but not more than the image has
/// elements.
fn samples(
    c: &mut Call<'_, '_>,
    [low, high]: [ValueId; 2],
    places: usize,
    size: usize,
    half: bool,
) -> Outcome<Samples> {
    let dtype = c.dtype(low);
    let k = |value| number(dtype, value);
    let int = |value: usize| number(Dtype::I64, value as f64);
    let scale = c.float_or("spatial_scale", 1.0);
    let shift = if half { 0.5 } else { 0.0 };
    let start = c.map(Expr::arg(0) * k(scale) - k(shift), &[low])?;
    let extent = (Expr::arg(1) - Expr::arg(0)) * k(scale);
    let extent = c.map(if half { extent } else { extent.binary(Binary::Max, k(1.0)) }, &[low, high])?;
    let ratio = c.size("sampling_ratio")?.unwrap_or(0);
    let each = if ratio > 0 { ratio } else { size.div_ceil(places).max(1) };
    let count = match ratio {
        0 => {
            let count = (Expr::arg(0) / k(places as f64)).unary(Unary::Ceil);
            c.map(count.binary(Binary::Max, k(1.0)).binary(Binary::Min, k(each as f64)), &[extent])?
        }
        ratio => c.map(Expr::arg(0) * k(0.0) + k(ratio as f64), &[extent])?,
    };
    let index = c.indices(&[1, places * each], 1)?;
    let sample = || Expr::arg(0).binary(Binary::Rem, int(each)).cast(dtype);
    let place = (Expr::arg(0) / int(each)).cast(dtype);
    let step = Expr::arg(2) / k(places as f64);
    let at = Expr::arg(1) + place * step.clone() + (sample() + k(0.5)) * step / Expr::arg(3);
    let at = c.map(at, &[index, start, extent, count])?;
    let valid = k(-1.0).binary(Binary::LessEqual, Expr::arg(0));
    let valid = valid.binary(Binary::And, Expr::arg(0).binary(Binary::LessEqual, k(size as f64)));
    let used = c.map(
        Expr::arg(0).binary(Binary::Rem, int(each)).cast(dtype).binary(Binary::Less, Expr::arg(1)),
        &[index, count],
    )?;
    let weight = c.map(valid.binary(Binary::And, Expr::arg(1)).cast(dtype), &[at, used])?;
    let last = size as f64 - 1.0;
    let at = c.map(Expr::arg(0).binary(Binary::Max, k(0.0)).binary(Binary::Min, k(last)), &[at])?;
    let mut both = taps(c, "linear", at, size, Outside::Border)?;
    for [_, by] in &mut both {
        *by = c.mul(*by, weight)?;
    }
    let taps = <[Tap; 2]>::try_from(both).map_err(|_| "two taps")?;
    Ok(Samples { taps, each, count, used })
}

fn roi_align(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, rois, batch) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let [n, channels, h, w] = c.dims(x)[..] else { return Err(format!("expected four axes, found {}", c.of(x))) };
    let regions = c.dim(rois, 0)?;
    let places = [c.size("output_height")?.unwrap_or(1).max(1), c.size("output_width")?.unwrap_or(1).max(1)];
    let half = c.version >= 16 && c.text_or("coordinate_transformation_mode", "half_pixel") == "half_pixel";
    let mut edges = Vec::new();
    for index in 0..4 {
        edges.push(c.slice(rois, 1, index, 1)?);
    }
    let rows = samples(c, [edges[1], edges[3]], places[0], h, half)?;
    let columns = samples(c, [edges[0], edges[2]], places[1], w, half)?;
    let inner = c.channels_last(x)?;
    let data = c.reshape(inner, &[n * h * w, channels])?;
    let batch = c.cast(batch, Dtype::I64)?;
    let batch = c.reshape(batch, &[regions, 1, 1])?;
    let mut parts = Vec::new();
    for ([row, by_row], [column, by_column]) in
        rows.taps.iter().flat_map(|row| columns.taps.iter().map(move |column| (row, column)))
    {
        let (row, by_row) = (c.unsqueeze(*row, 2)?, c.unsqueeze(*by_row, 2)?);
        let (column, by_column) = (c.unsqueeze(*column, 1)?, c.unsqueeze(*by_column, 1)?);
        let int = |value: usize| number(Dtype::I64, value as f64);
        let at = (Expr::arg(0) * int(h) + Expr::arg(1)) * int(w) + Expr::arg(2);
        let at = c.map(at, &[batch, row, column])?;
        let elems = c.op(Op::Gather(0), &[data, at])?;
        let weight = c.mul(by_row, by_column)?;
        let weight = c.unsqueeze(weight, 3)?;
        parts.push(c.mul(elems, weight)?);
    }
    let average = match c.text_or("mode", "avg") {
        "avg" => true,
        "max" => false,
        other => return Err(format!("mode: expected avg or max, found `{other}`")),
    };
    let join = if average { Binary::Add } else { Binary::Max };
    let expr = (1..4).fold(Expr::arg(0), |expr, index| expr.binary(join, Expr::arg(index)));
    let mut all = c.map(expr, &parts)?;
    let dtype = c.dtype(x);
    if !average {
        let [rows, columns] = [c.unsqueeze(rows.used, 2)?, c.unsqueeze(columns.used, 1)?];
        let used = c.cx.binary(Binary::And, rows, columns)?;
        let used = c.unsqueeze(used, 3)?;
        all = c.map(Expr::arg(1).select(Expr::arg(0), number(dtype, f64::NEG_INFINITY)), &[all, used])?;
    }
    let apart = c.reshape(all, &[regions, places[0], rows.each, places[1], columns.each, channels])?;
    let mut y = c.reduce(apart, if average { ReduceOp::Sum } else { ReduceOp::Max }, &[2, 4], false)?;
    if average {
        let count = c.mul(rows.count, columns.count)?;
        let count = c.reshape(count, &[regions, 1, 1, 1])?;
        y = c.cx.binary(Binary::Div, y, count)?;
    }
    c.channels_first(y)
}

/// A convolution whose taps are moved by offsets and weighted by a mask.
fn deform_conv(c: &mut Call<'_, '_>) -> Outcome<ValueId> {
    let (x, filter, offset) = (c.x(0)?, c.x(1)?, c.x(2)?);
    let [n, channels, h, w] = c.dims(x)[..] else { return Err(format!("expected four axes, found {}", c.of(x))) };
    let [k, depth, kh, kw] = c.dims(filter)[..] else {
        return Err(format!("expected four axes, found {}", c.of(filter)));
    };
    let [_, _, oh, ow] = c.dims(offset)[..] else { return Err(format!("expected four axes, found {}", c.of(offset))) };
    let (groups, parts) = (c.size("group")?.unwrap_or(1).max(1), c.size("offset_group")?.unwrap_or(1).max(1));
    let (stride, dilation) = (each(c, "strides", 2, 1)?, each(c, "dilations", 2, 1)?);
    let pads = each(c, "pads", 4, 0)?;
    let (dtype, count, places) = (c.dtype(x), kh * kw, oh * ow);
    let offset = c.reshape(offset, &[n * parts, count, 2, oh, ow])?;
    let mut axes = Vec::new();
    for (axis, size) in [h, w].into_iter().enumerate() {
        let moved = c.at(offset, 2, axis)?;
        let int = |value: usize| Expr::int(Dtype::I64, value as i128);
        let tap = if axis == 0 { Expr::Axis(1) / int(kw) } else { Expr::Axis(1).binary(Binary::Rem, int(kw)) };
        let base = Expr::Axis(2 + axis) * int(stride[axis]) + tap * int(dilation[axis]) - int(pads[axis]);
        let at = c.map(base.cast(dtype) + Expr::arg(0), &[moved])?;
        let at = c.reshape(at, &[n * parts, count * places])?;
        axes.push(taps(c, "linear", at, size, Outside::Zero)?);
    }
    let data = c.reshape(x, &[n * parts, channels / parts, h * w])?;
    let data = c.cx.transpose(data, &[0, 2, 1])?;
    let mut read = read(c, data, &[h, w], &axes)?;
    if let Some(mask) = c.maybe(4) {
        let mask = c.reshape(mask, &[n * parts, count * places, 1])?;
        read = c.mul(read, mask)?;
    }
    let read = c.reshape(read, &[n, parts, count, places, channels / parts])?;
    let read = c.cx.transpose(read, &[0, 2, 3, 1, 4])?;
    let read = c.reshape(read, &[n, count, places, groups, depth])?;
    let filter = c.reshape(filter, &[groups, k / groups, depth, count])?;
    let [batch, tap, place, group, channel, out] = [0, 1, 2, 3, 4, 5];
    let contract = Contract {
        left: vec![batch, tap, place, group, channel],
        right: vec![group, out, channel, tap],
        result: vec![batch, group, out, place],
    };
    let y = c.op(Op::Contract(contract), &[read, filter])?;
    let y = c.reshape(y, &[n, k, oh, ow])?;
    match c.maybe(3) {
        None => Ok(y),
        Some(bias) => {
            let bias = c.reshape(bias, &[k, 1, 1])?;
            c.add(y, bias)
        }
    }
}
