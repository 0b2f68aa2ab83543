//! Products, convolutions, pooling and interpolation.

use super::{close, counted, elems, output, outputs, signed};
use crate::graph::{Contract, Conv, Nearest, Op, Pool, PoolOp, Resize, ResizeCoordinates, ResizeMode, Tensor, Window};

fn index(dims: &[usize], at: &[usize]) -> usize {
    dims.iter().zip(at).fold(0, |index, (dim, i)| index * dim + i)
}

/// All points of a value with these dimensions.
fn points(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![vec![]], |all, &dim| {
        all.into_iter().flat_map(|at| (0..dim).map(move |i| [&at[..], &[i]].concat())).collect()
    })
}

/// A product by plain loops over all labels, whose sizes are given.
fn contracted(of: &Contract, sizes: &[usize], left: &Tensor, right: &Tensor) -> Vec<f64> {
    let dims: Vec<usize> = of.result.iter().map(|&label| sizes[label]).collect();
    let mut result = vec![0.0; dims.iter().product()];
    let at = |of: &Tensor, labels: &[usize], point: &[usize]| {
        let dims = &of.value_type().dims;
        let place: Vec<usize> =
            labels.iter().zip(dims).map(|(&label, &dim)| if dim == 1 { 0 } else { point[label] }).collect();
        index(dims, &place)
    };
    let [x, y] = [left.to_f64s(), right.to_f64s()];
    for point in points(sizes) {
        let to: Vec<usize> = of.result.iter().map(|&label| point[label]).collect();
        result[index(&dims, &to)] += x[at(left, &of.left, &point)] * y[at(right, &of.right, &point)];
    }
    result
}

#[test]
fn products_sum_over_what_the_result_has_not() {
    for (of, sizes, left, right) in [
        (Contract::matmul(2, 2), vec![7, 33, 19], vec![7, 19], vec![19, 33]),
        (Contract::matmul(3, 2), vec![3, 5, 6, 20], vec![3, 5, 20], vec![20, 6]),
        (Contract::matmul(4, 3), vec![2, 3, 4, 5, 18], vec![2, 1, 4, 18], vec![3, 18, 5]),
        (Contract::matmul(1, 1), vec![0, 0, 40], vec![40], vec![40]),
        (Contract::matmul(1, 2), vec![1, 9, 4], vec![4], vec![4, 9]),
        (
            Contract { left: vec![0, 2], right: vec![1, 2], result: vec![1, 0] },
            vec![70, 9, 65],
            vec![70, 65],
            vec![9, 65],
        ),
        (Contract { left: vec![0, 1], right: vec![2], result: vec![2, 0] }, vec![3, 4, 5], vec![3, 4], vec![5]),
        (Contract { left: vec![0, 1], right: vec![1, 0], result: vec![0] }, vec![6, 50], vec![6, 50], vec![50, 6]),
        (Contract::matmul(2, 2), vec![130, 70, 300], vec![130, 300], vec![300, 70]),
    ] {
        let sizes: Vec<usize> = sizes.iter().map(|&size| size.max(1)).collect();
        let (x, y) = (signed(&left, 5), signed(&right, 6));
        close(&output(&Op::Contract(of.clone()), &[&x, &y]), &contracted(&of, &sizes, &x, &y), 300.0);
    }
    let (x, y) = (Tensor::of(&[1, 2], &[100_i8, 100]), Tensor::of(&[2, 1], &[1_i8, 1]));
    assert_eq!(elems::<i8>(&Op::Contract(Contract::matmul(2, 2)), &[&x, &y]), [-56]);
    let (x, y) = (Tensor::of::<f32>(&[2, 0], &[]), Tensor::of::<f32>(&[0, 3], &[]));
    assert_eq!(elems::<f32>(&Op::Contract(Contract::matmul(2, 2)), &[&x, &y]), [0.0; 6]);
}

/// A convolution `[N, spatial…, C]` by plain loops over all products.
fn convolved(of: &Conv, x: &Tensor, filter: &Tensor, spatial: &[usize]) -> Vec<f64> {
    let (xs, fs) = (&x.value_type().dims, &filter.value_type().dims);
    let dims = [&[xs[0]], spatial, &[fs[0]]].concat();
    let (a, f) = (x.to_f64s(), filter.to_f64s());
    let per_group = fs[0] / of.groups;
    let at = |point: &[usize], tap: &[usize]| -> f64 {
        let (channel, mut place) = (point[point.len() - 1], vec![point[0]]);
        for axis in 0..spatial.len() {
            let i = point[axis + 1] * of.window.stride[axis] + tap[axis + 1] * of.window.dilation[axis];
            match i.checked_sub(of.window.pad[axis][0]) {
                Some(i) if i < xs[axis + 1] => place.push(i),
                _ => return 0.0,
            }
        }
        place.push(channel / per_group * fs[1] + tap[0]);
        a[index(xs, &place)] * f[index(fs, &[&[channel], tap].concat())]
    };
    let taps = points(&fs[1..]);
    points(&dims).iter().map(|point| taps.iter().map(|tap| at(point, tap)).sum()).collect()
}

fn window(size: &[usize], stride: &[usize], dilation: &[usize], pad: &[[usize; 2]]) -> Window {
    Window { size: size.to_vec(), stride: stride.to_vec(), dilation: dilation.to_vec(), pad: pad.to_vec() }
}

#[test]
fn convolutions_of_any_window_are_those_of_plain_loops() {
    for (xs, k, groups, of) in [
        (vec![2, 9, 7, 4], 6, 1, window(&[3, 3], &[1, 1], &[1, 1], &[[1, 1], [1, 1]])),
        (vec![1, 11, 10, 6], 9, 3, window(&[3, 2], &[2, 3], &[2, 1], &[[0, 2], [3, 0]])),
        (vec![1, 8, 8, 5], 5, 5, window(&[5, 5], &[1, 2], &[1, 1], &[[2, 2], [2, 1]])),
        (vec![2, 7, 6, 90], 90, 90, window(&[3, 3], &[1, 2], &[1, 1], &[[1, 1], [1, 1]])),
        (vec![3, 13, 3], 4, 1, window(&[4], &[2], &[3], &[[5, 4]])),
        (vec![1, 4, 5, 3, 2], 3, 1, window(&[2, 3, 1], &[1, 1, 1], &[1, 1, 2], &[[0, 1], [1, 1], [0, 0]])),
        (vec![2, 6, 6, 17], 19, 1, window(&[1, 1], &[1, 1], &[1, 1], &[[0, 0], [0, 0]])),
        (vec![2, 3, 4], 2, 1, window(&[1], &[1], &[1], &[[0, 0]])),
        (vec![2, 7, 6, 8], 14, 2, window(&[3, 3], &[1, 1], &[1, 1], &[[1, 1], [1, 1]])),
        (vec![1, 5, 5, 150], 9, 1, window(&[2, 2], &[1, 1], &[1, 1], &[[0, 1], [1, 0]])),
    ] {
        let x = signed(&xs, 7);
        let filter = signed(&[&[k, xs[xs.len() - 1] / groups], &of.size[..]].concat(), 8);
        let bias = signed(&[k], 9);
        let conv = Conv { window: of, groups };
        let found = output(&Op::Conv(conv.clone()), &[&x, &filter]);
        let expected = convolved(&conv, &x, &filter, &found.value_type().dims[1..xs.len() - 1]);
        close(&found, &expected, 100.0);
        let biased: Vec<f64> = expected.iter().zip(bias.to_f64s().iter().cycle()).map(|(x, b)| x + b).collect();
        close(&output(&Op::Conv(conv), &[&x, &filter, &bias]), &biased, 100.0);
    }
}

#[test]
fn transposed_convolutions_are_the_adjoints_of_convolutions() {
    for (xs, k, groups, of, spatial) in [
        (vec![1, 4, 5, 4], 6, 2, window(&[3, 2], &[2, 3], &[1, 1], &[[1, 1], [0, 0]]), vec![7, 14]),
        (vec![2, 5, 3], 4, 1, window(&[4], &[1], &[2], &[[2, 1]]), vec![8]),
        (vec![1, 3, 3, 1], 1, 1, window(&[3, 3], &[2, 2], &[1, 1], &[[0, 0], [0, 0]]), vec![8, 7]),
        (vec![2, 3, 5, 4], 6, 2, window(&[3, 2], &[3, 2], &[1, 1], &[[0, 0], [0, 0]]), vec![9, 10]),
        (vec![1, 6, 3], 5, 1, window(&[2], &[2], &[1], &[[0, 0]]), vec![12]),
    ] {
        let x = signed(&xs, 10);
        let channels = xs[xs.len() - 1];
        let filter = signed(&[&[channels, k / groups], &of.size[..]].concat(), 11);
        let dims = [&xs[..1], &spatial, &[k]].concat();
        let mut expected = vec![0.0; dims.iter().product()];
        let fs = &filter.value_type().dims;
        for point in points(&xs) {
            for tap in points(&fs[1..]) {
                let channel = point[point.len() - 1];
                let mut place = vec![point[0]];
                for axis in 0..spatial.len() {
                    let i = point[axis + 1] * of.stride[axis] + tap[axis + 1] * of.dilation[axis];
                    place.extend(i.checked_sub(of.pad[axis][0]).filter(|&i| i < spatial[axis]));
                }
                place.push(channel / (channels / groups) * (k / groups) + tap[0]);
                if place.len() == dims.len() {
                    let product =
                        x.to_f64s()[index(&xs, &point)] * filter.to_f64s()[index(fs, &[&[channel], &tap[..]].concat())];
                    expected[index(&dims, &place)] += product;
                }
            }
        }
        let op = Op::ConvTranspose(Conv { window: of, groups }, spatial);
        close(&output(&op, &[&x, &filter]), &expected, 50.0);
    }
}

#[test]
fn pooling_leaves_padding_out() {
    let x = Tensor::of(&[1, 2, 3, 1], &[-1.0_f32, -2.0, -3.0, -4.0, -5.0, -6.0]);
    let of = |op| Op::Pool(Pool { op, window: window(&[2, 2], &[1, 2], &[1, 1], &[[1, 0], [1, 0]]) });
    assert_eq!(elems::<f32>(&of(PoolOp::Max), &[&x]), [-1.0, -2.0, -1.0, -2.0]);
    assert_eq!(elems::<f32>(&of(PoolOp::Sum), &[&x]), [-1.0, -5.0, -5.0, -16.0]);
    assert_eq!(elems::<f32>(&of(PoolOp::Mean), &[&x]), [-1.0, -2.5, -2.5, -4.0]);
    assert_eq!(elems::<f32>(&of(PoolOp::MeanOfTaps), &[&x]), [-0.25, -1.25, -1.25, -4.0]);
    let indices = outputs(&of(PoolOp::Max), &[Some(&x)], 2).remove(1);
    assert_eq!(indices.elems::<i64>(), [0, 1, 0, 1]);
    let lowest = Tensor::of(&[1, 2, 3, 1], &[f32::NEG_INFINITY; 6]);
    assert_eq!(outputs(&of(PoolOp::Max), &[Some(&lowest)], 2)[1].elems::<i64>(), [0, 1, 0, 1]);
    let zeros = Tensor::of(&[1, 5, 1], &[0_u8; 5]);
    let dilated = Op::Pool(Pool { op: PoolOp::Max, window: window(&[2], &[1], &[3], &[[2, 1]]) });
    assert_eq!(outputs(&dilated, &[Some(&zeros)], 2)[1].elems::<i64>(), [1, 2, 0, 1, 2]);
    let nan = Tensor::of(&[1, 3, 1], &[1.0_f32, f32::NAN, 2.0]);
    let pairs = Op::Pool(Pool { op: PoolOp::Max, window: Window::all(1, 2, 1, 0) });
    assert!(elems::<f32>(&pairs, &[&nan]).iter().all(|x| x.is_nan()));
}

#[test]
fn pooling_of_many_channels_is_that_of_plain_loops() {
    let x = signed(&[2, 9, 8, 100], 12);
    let all = x.to_f64s();
    let found = output(&Op::Pool(Pool { op: PoolOp::Max, window: Window::all(2, 3, 2, 1) }), &[&x]);
    let dims = &found.value_type().dims;
    assert_eq!(dims[..], [2, 5, 4, 100]);
    let expected: Vec<f64> = points(dims)
        .iter()
        .map(|at| {
            let mut most = f64::NEG_INFINITY;
            for tap in points(&[3, 3]) {
                let [y, x] = [0, 1].map(|axis| (at[axis + 1] * 2 + tap[axis]).wrapping_sub(1));
                if y < 9 && x < 8 {
                    most = most.max(all[index(&[2, 9, 8, 100], &[at[0], y, x, at[3]])]);
                }
            }
            most
        })
        .collect();
    assert_eq!(found.to_f64s(), expected);
}

fn resize(mode: ResizeMode, coordinates: ResizeCoordinates, scale: f64, dim: usize) -> Resize {
    Resize {
        mode,
        coordinates,
        dims: vec![dim],
        scales: vec![scale],
        crop: vec![[0.0, 1.0]],
        antialias: false,
        exclude_outside: false,
        outside: None,
    }
}

#[test]
fn interpolation_is_that_of_its_formulas() {
    let x = Tensor::of(&[4], &[1.0_f32, 2.0, 3.0, 4.0]);
    let of = |op: Resize| output(&Op::Resize(op), &[&x]);
    let nearest = |nearest, coordinates| of(resize(ResizeMode::Nearest(nearest), coordinates, 2.0, 8)).to_f64s();
    assert_eq!(nearest(Nearest::Floor, ResizeCoordinates::Asymmetric), [1., 1., 2., 2., 3., 3., 4., 4.]);
    assert_eq!(nearest(Nearest::Ceil, ResizeCoordinates::Asymmetric), [1., 2., 2., 3., 3., 4., 4., 4.]);
    assert_eq!(nearest(Nearest::PreferFloor, ResizeCoordinates::Asymmetric), [1., 1., 2., 2., 3., 3., 4., 4.]);
    assert_eq!(nearest(Nearest::PreferCeil, ResizeCoordinates::Asymmetric), [1., 2., 2., 3., 3., 4., 4., 4.]);
    let linear = |coordinates, scale, dim| of(resize(ResizeMode::Linear, coordinates, scale, dim));
    close(&linear(ResizeCoordinates::HalfPixel, 2.0, 8), &[1., 1.25, 1.75, 2.25, 2.75, 3.25, 3.75, 4.], 4.0);
    close(&linear(ResizeCoordinates::AlignCorners, 1.75, 7), &[1., 1.5, 2., 2.5, 3., 3.5, 4.], 4.0);
    close(&linear(ResizeCoordinates::PytorchHalfPixel, 0.25, 1), &[1.0], 4.0);
    close(&linear(ResizeCoordinates::HalfPixel, 0.5, 2), &[1.5, 3.5], 4.0);
    close(
        &linear(ResizeCoordinates::HalfPixelSymmetric, 0.6, 2),
        &[1.0 + 2.0 * (1.0 - 2.0 / 2.4) + 0.5 / 0.6 - 0.5, 1.0 + 2.0 * (1.0 - 2.0 / 2.4) + 1.5 / 0.6 - 0.5],
        4.0,
    );
    let cubic = of(resize(ResizeMode::Cubic(-0.75), ResizeCoordinates::Asymmetric, 2.0, 8));
    close(&cubic, &[1.0, 1.40625, 2.0, 2.5, 3.0, 3.59375, 4.0, 4.09375], 8.0);
    let half = resize(ResizeMode::Linear, ResizeCoordinates::HalfPixel, 0.5, 2);
    close(&of(Resize { antialias: true, ..half.clone() }), &[1.625, 3.375], 4.0);
    close(
        &of(Resize { antialias: true, exclude_outside: true, ..half }),
        &[(3.0 * 1.0 + 3.0 * 2.0 + 3.0) / 7.0, (2.0 + 3.0 * 3.0 + 3.0 * 4.0) / 7.0],
        4.0,
    );
    let crop = Resize {
        crop: vec![[-0.5, 1.0]],
        outside: Some(-9.0),
        ..resize(ResizeMode::Linear, ResizeCoordinates::Crop, 1.0, 4)
    };
    close(&of(crop), &[-9.0, 1.0, 2.5, 4.0], 4.0);
}

#[test]
fn interpolation_of_two_axes_is_that_of_one_after_the_other() {
    let x = counted(&[3, 4, 2]);
    let x = output(&Op::Map(crate::graph::Expr::arg(0).cast(crate::tensor::Dtype::F32)), &[&x]);
    let both = Resize {
        dims: vec![6, 6, 2],
        scales: vec![2.0, 1.5, 1.0],
        crop: vec![[0.0, 1.0]; 3],
        ..resize(ResizeMode::Linear, ResizeCoordinates::HalfPixel, 1.0, 1)
    };
    let first = Resize { dims: vec![6, 4, 2], scales: vec![2.0, 1.0, 1.0], ..both.clone() };
    let second = Resize { scales: vec![1.0, 1.5, 1.0], ..both.clone() };
    let one_by_one = output(&Op::Resize(second), &[&output(&Op::Resize(first), &[&x])]);
    close(&output(&Op::Resize(both), &[&x]), &one_by_one.to_f64s(), 24.0);
}
