//! Products, convolutions and pooling.

use super::{Operation, lowest, wide, zero};
use crate::graph::{Binary, Contract, Conv, Number, Pool, PoolOp, ValueType, Window};
use crate::loops::build::LoopBuilder;
use crate::loops::ir::{Loop, Monoid, TermId};
use crate::tensor::Dtype;

impl Operation<'_> {
    pub fn contract(&self, of: &Contract) -> Loop {
        let operands = [self.operand(0), self.operand(1)];
        let mut b = self.each();
        let size = |label: usize| {
            let along = |(labels, operand): (&Vec<usize>, usize)| {
                labels.iter().position(|&l| l == label).map(|axis| operands[operand].dims[axis])
            };
            let sizes = [(&of.left, 0), (&of.right, 1)].map(along);
            sizes.into_iter().flatten().find(|&size| size != 1).unwrap_or(1)
        };
        let right = of.right.iter().filter(|label| !of.left.contains(label));
        let summed: Vec<usize> =
            of.left.iter().chain(right).copied().filter(|label| !of.result.contains(label)).collect();
        let extents: Vec<usize> = summed.iter().map(|&label| size(label)).collect();
        let point = b.point();
        let result = b.reduce(Monoid::Sum, &extents, |b, at| {
            let all: Vec<(usize, TermId)> =
                of.result.iter().copied().zip(point).chain(summed.iter().copied().zip(at.to_vec())).collect();
            let [x, y] = [(&of.left, 0), (&of.right, 1)].map(|(labels, operand)| {
                let index: Vec<TermId> = labels
                    .iter()
                    .map(|label| all.iter().find(|(l, _)| l == label).expect("a label of the result or a sum").1)
                    .collect();
                let x = self.broadcast_load(b, operand, &index);
                b.cast(inner(self.to.dtype), x)
            });
            b.binary(Binary::Mul, x, y)
        });
        let result = b.cast(self.to.dtype, result);
        b.finish(result)
    }

    pub fn conv(&self, of: &Conv) -> Loop {
        let (x, filter) = (self.operand(0), self.operand(1));
        let (channels, window) = (filter.dims[1], &of.window);
        let (mut b, grouped) = self.over_groups(of.groups);
        let extents = [&window.size[..], &[channels]].concat();
        let sum = b.reduce(Monoid::Sum, &extents, |b, at| {
            let (taps, c) = at.split_at(window.size.len());
            let (at, inside) = slid(b, window, x, &grouped.spatial, taps);
            let first = b.scaled(grouped.group, channels as i64);
            let channel = b.binary(Binary::Add, first, c[0]);
            let x = self.tap(b, &[&[grouped.image], &at[..], &[channel]].concat(), inside);
            let filter = b.load(1, &[&[grouped.channel, c[0]], taps].concat());
            self.product(b, [x, filter])
        });
        self.with_bias(b, sum, grouped.channel)
    }

    /// The element at y is the sum of weighted elements x over taps r with x * stride + r * dilation - padding = y.
    pub fn conv_transpose(&self, of: &Conv) -> Loop {
        let (x, window) = (self.operand(0), &of.window);
        if are_apart(window, &x.dims[1..], &self.to.dims[1..]) {
            return self.conv_transpose_apart(of);
        }
        let channels = x.dims[x.rank() - 1] / of.groups;
        let (mut b, grouped) = self.over_groups(of.groups);
        let extents = [&window.size[..], &[channels]].concat();
        let sum = b.reduce(Monoid::Sum, &extents, |b, at| {
            let (taps, c) = at.split_at(window.size.len());
            let (at, inside) = unslid(b, window, &x.dims[1..], &grouped.spatial, taps);
            let first = b.scaled(grouped.group, channels as i64);
            let channel = b.binary(Binary::Add, first, c[0]);
            let x = self.tap(b, &[&[grouped.image], &at[..], &[channel]].concat(), inside);
            let filter = b.load(1, &[&[channel, grouped.in_group], taps].concat());
            self.product(b, [x, filter])
        });
        self.with_bias(b, sum, grouped.channel)
    }

    /// The transposed convolution if each element of y has only one tap. The loop has an axis for the elements of x
    /// along each spatial axis, followed by one for the taps.
    fn conv_transpose_apart(&self, of: &Conv) -> Loop {
        let x = self.operand(0);
        let [images, sizes @ .., channels] = &x.dims[..] else { unreachable!("[N, spatial…, C]") };
        let filters = self.to.dims[self.to.rank() - 1] / of.groups;
        let spatial = sizes.iter().zip(&of.window.size).flat_map(|(&size, &taps)| [size, taps]);
        let extents: Vec<usize> = [*images].into_iter().chain(spatial).chain([of.groups, filters]).collect();
        let mut b = self.over(&extents);
        let point = b.point();
        let [image, spatial @ .., group, in_group] = &point[..] else { unreachable!("as it was made") };
        let (at, taps): (Vec<TermId>, Vec<TermId>) = spatial.chunks_exact(2).map(|both| (both[0], both[1])).unzip();
        let in_x = channels / of.groups;
        let sum = b.reduce(Monoid::Sum, &[in_x], |b, c| {
            let first = b.scaled(*group, in_x as i64);
            let channel = b.binary(Binary::Add, first, c[0]);
            let x = b.load(0, &[&[*image], &at[..], &[channel]].concat());
            let filter = b.load(1, &[&[channel, *in_group], &taps[..]].concat());
            self.product(b, [x, filter])
        });
        let first = b.scaled(*group, filters as i64);
        let channel = b.binary(Binary::Add, first, *in_group);
        self.with_bias(b, sum, channel)
    }

    pub fn pool(&self, of: &Pool, with_indices: bool) -> Vec<Loop> {
        match of.op {
            PoolOp::Max if with_indices => vec![self.pool_max(&of.window), self.pool_index(&of.window)],
            PoolOp::Max => vec![self.pool_max(&of.window)],
            PoolOp::Sum | PoolOp::Mean | PoolOp::MeanOfTaps => vec![self.pool_sum(of)],
        }
    }

    fn pool_max(&self, window: &Window) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let result = b
            .reduce(Monoid::Max, &window.size, |b, taps| self.pooled(b, window, &point, taps, lowest(self.to.dtype)).0);
        b.finish(result)
    }

    /// The index of the first maximum. Padding never wins: if all elements are as low as padding, the first tap wins,
    /// which stands for the first one that is not padding.
    fn pool_index(&self, window: &Window) -> Loop {
        let x = self.operand(0);
        let mut b = self.each();
        let point = b.point();
        let result = b.arg_reduce([true, false], &window.size, |b, taps| {
            let (value, at) = self.pooled(b, window, &point, taps, lowest(x.dtype));
            let mut plane = b.index(0);
            for (axis, (&index, &size)) in at.iter().zip(&x.dims[1..]).enumerate() {
                let index = nearest_tap(b, index, window.dilation[axis], size);
                let row = b.scaled(plane, size as i64);
                plane = b.binary(Binary::Add, row, index);
            }
            [value, plane]
        });
        b.finish(result)
    }

    fn pool_sum(&self, of: &Pool) -> Loop {
        let mut b = self.each();
        let point = b.point();
        let inner = inner(self.to.dtype);
        let sum = b.reduce(Monoid::Sum, &of.window.size, |b, taps| {
            let x = self.pooled(b, &of.window, &point, taps, zero(self.to.dtype)).0;
            b.cast(inner, x)
        });
        let result = match of.op {
            PoolOp::Mean => {
                let count = self.taps_inside(&mut b, &of.window, &point, inner);
                b.binary(Binary::Div, sum, count)
            }
            PoolOp::MeanOfTaps => {
                let count = b.float(inner, of.window.size.iter().product::<usize>() as f64);
                b.binary(Binary::Div, sum, count)
            }
            PoolOp::Sum | PoolOp::Max => sum,
        };
        let result = b.cast(self.to.dtype, result);
        b.finish(result)
    }

    /// The element at a tap, or `padding` outside of the operand; and the tap's index along each spatial axis.
    fn pooled(
        &self,
        b: &mut LoopBuilder,
        window: &Window,
        point: &[TermId],
        taps: &[TermId],
        padding: Number,
    ) -> (TermId, Vec<TermId>) {
        let [image, spatial @ .., channel] = point else { unreachable!("[N, spatial…, C]") };
        let (at, inside) = slid(b, window, self.operand(0), spatial, taps);
        let otherwise = b.number(self.to.dtype, padding);
        let index = [&[*image], &at[..], &[*channel]].concat();
        (b.load_if(0, &index, inside, otherwise), at)
    }

    /// The number of taps that are not in padding.
    fn taps_inside(&self, b: &mut LoopBuilder, window: &Window, point: &[TermId], inner: Dtype) -> TermId {
        let mut count = b.float(inner, 1.0);
        for axis in 0..window.size.len() {
            let along = b.reduce(Monoid::Sum, &[window.size[axis]], |b, tap| {
                let at = slid_along(b, window, axis, point[axis + 1], tap[0]);
                let inside = b.within(at, self.operand(0).dims[axis + 1]);
                match inside {
                    Some(inside) => b.cast(inner, inside),
                    None => b.float(inner, 1.0),
                }
            });
            count = b.binary(Binary::Mul, count, along);
        }
        count
    }

    /// A builder of a loop over a convolution's result, whose channels are divided into groups.
    fn over_groups(&self, groups: usize) -> (LoopBuilder, Grouped) {
        let [outer @ .., channels] = &self.to.dims[..] else { unreachable!("[N, spatial…, K]") };
        let mut b = self.over(&[outer, &[groups, channels / groups]].concat());
        let point = b.point();
        let [image, spatial @ .., group, in_group] = &point[..] else { unreachable!("as it was made") };
        let first = b.scaled(*group, (channels / groups) as i64);
        let channel = b.binary(Binary::Add, first, *in_group);
        let grouped = Grouped { image: *image, spatial: spatial.to_vec(), group: *group, in_group: *in_group, channel };
        (b, grouped)
    }

    /// The element of the first operand at these indices, or 0 if they are not inside.
    fn tap(&self, b: &mut LoopBuilder, at: &[TermId], inside: Option<TermId>) -> TermId {
        let dtype = self.operand(0).dtype;
        let padding = b.number(dtype, zero(dtype));
        b.load_if(0, at, inside, padding)
    }

    fn product(&self, b: &mut LoopBuilder, of: [TermId; 2]) -> TermId {
        let [x, y] = of.map(|of| b.cast(inner(self.to.dtype), of));
        b.binary(Binary::Mul, x, y)
    }

    fn with_bias(&self, mut b: LoopBuilder, sum: TermId, channel: TermId) -> Loop {
        let mut result = sum;
        if self.input(2).is_some() {
            let bias = b.load(2, &[channel]);
            let bias = b.cast(inner(self.to.dtype), bias);
            result = b.binary(Binary::Add, result, bias);
        }
        let result = b.cast(self.to.dtype, result);
        b.finish(result)
    }
}

/// A point of a convolution's result.
struct Grouped {
    image: TermId,
    spatial: Vec<TermId>,
    group: TermId,
    /// The channel, counted within its group.
    in_group: TermId,
    /// The channel, counted in all groups.
    channel: TermId,
}

/// The type in which products of elements of this type are summed.
fn inner(dtype: Dtype) -> Dtype {
    if dtype.is_float() { wide(&[dtype]) } else { dtype }
}

/// The index of a window's tap along an axis.
fn slid_along(b: &mut LoopBuilder, window: &Window, axis: usize, at: TermId, tap: TermId) -> TermId {
    let start = b.scaled(at, window.stride[axis] as i64);
    let start = b.shifted(start, -(window.pad[axis][0] as i64));
    let offset = b.scaled(tap, window.dilation[axis] as i64);
    b.binary(Binary::Add, start, offset)
}

/// The indices of a tap along all spatial axes of `x`, and the condition that they are inside.
fn slid(
    b: &mut LoopBuilder,
    window: &Window,
    x: &ValueType,
    spatial: &[TermId],
    taps: &[TermId],
) -> (Vec<TermId>, Option<TermId>) {
    let at: Vec<TermId> = (0..taps.len()).map(|axis| slid_along(b, window, axis, spatial[axis], taps[axis])).collect();
    let inside: Vec<Option<TermId>> = at.iter().zip(&x.dims[1..]).map(|(&at, &size)| b.within(at, size)).collect();
    (at, b.all(inside))
}

/// The indices of the element of a transposed convolution's operand, of these sizes, that contributes at a tap, and the
/// condition that there is one.
fn unslid(
    b: &mut LoopBuilder,
    window: &Window,
    sizes: &[usize],
    spatial: &[TermId],
    taps: &[TermId],
) -> (Vec<TermId>, Option<TermId>) {
    let (mut all, mut inside) = (Vec::new(), Vec::new());
    for (axis, (&at, &tap)) in spatial.iter().zip(taps).enumerate() {
        let offset = b.scaled(tap, -(window.dilation[axis] as i64));
        let shifted = b.shifted(at, window.pad[axis][0] as i64);
        let sum = b.binary(Binary::Add, shifted, offset);
        let [stride, zero] = [window.stride[axis] as i64, 0].map(|number| b.index(number));
        let rest = b.binary(Binary::Mod, sum, stride);
        let index = b.binary(Binary::Div, sum, stride);
        if window.stride[axis] > 1 {
            inside.push(Some(b.binary(Binary::Equal, rest, zero)));
        }
        inside.push(b.within(index, sizes[axis]));
        all.push(index);
    }
    (all, b.all(inside))
}

/// Whether a transposed convolution between these sizes has only one tap for each element of its result.
fn are_apart(window: &Window, from: &[usize], to: &[usize]) -> bool {
    let along = |axis: usize| {
        let size = window.size[axis];
        [window.stride[axis], window.dilation[axis], to[axis]] == [size, 1, from[axis] * size]
            && window.pad[axis] == [0; 2]
    };
    (0..window.size.len()).all(along)
}

/// The index of the window's first tap that is not before the axis, if `index` is before it. The result is not after
/// the axis.
fn nearest_tap(b: &mut LoopBuilder, index: TermId, dilation: usize, size: usize) -> TermId {
    if b.within(index, size).is_none() {
        return index;
    }
    let [zero, last, step] = [0, size as i64 - 1, dilation as i64].map(|number| b.index(number));
    let before = b.binary(Binary::Less, index, zero);
    let first = b.binary(Binary::Mod, index, step);
    let index = b.select(before, first, index);
    b.binary(Binary::Min, index, last)
}
