//! The first layers of a network: the normalisation of photos, a convolution, and perhaps a maximum over windows.

use super::epilogue::Epilogue;
use super::product::behind;
use super::strided::{Strided, dense};
use super::{Context, Found, Read, inlined};
use crate::graph::{Binary, Constant, Expr, Graph, NodeId, Number, Op, Origin, Tensor, Unary, ValueId};
use crate::model::{Conv2d, Op as ImageOp, pool_of};
use crate::plan::values::layers::{image, layer};
use crate::plan::{ProductActivation, Stem, StepOp};
use crate::tensor::{Activation, Dtype, Shape};

/// The last node of the first layers whose convolution is node `at`, and the step that computes them from bytes; `None`
/// if no kernel does.
pub(super) fn find(context: &Context<'_>, at: NodeId) -> Option<(NodeId, Found)> {
    let Context { graph, dtype, batch, .. } = *context;
    let node = &graph.nodes[at.0];
    let (Op::Conv(_), Dtype::F16, Some(conv)) = (&node.op, dtype, layer(graph, node)) else { return None };
    let (x, y) = (node.inputs[0]?, node.outputs[0]);
    let photos = Photos::of(context, x, batch)?;
    let of_kernel = |of: &Epilogue, _| {
        let is_bound = matches!(of.activation, ProductActivation::None | ProductActivation::Relu);
        is_bound && [of.bias, of.scale, of.residual] == [None; 3]
    };
    let own = node.inputs.get(2).copied().flatten();
    let (last, writes, epilogue) = behind(context, at, conv.out_channels, own, of_kernel);
    if graph.value(writes).dims != graph.value(y).dims {
        return None; // a reshape shows other pixels
    }
    let activation = match epilogue.activation {
        ProductActivation::Relu => Activation::Relu,
        _ => Activation::None,
    };
    let stem = Stem {
        mean: photos.mean,
        std: photos.std,
        conv: Conv2d { activation, ..conv },
        conv_shape: image(&graph.value(y).dims),
        pool: None,
    };
    let pooled = context.reader(writes).and_then(|reader| {
        let node = &graph.nodes[reader.0];
        let Op::Pool(pool) = &node.op else { return None };
        match pool_of(node, pool) {
            Ok(ImageOp::MaxPool(pool)) => Some((Stem { pool: Some(pool), ..stem.clone() }, reader, node.outputs[0])),
            _ => None,
        }
    });
    let ways = pooled.into_iter().chain([(stem, last, writes)]);
    let (stem, last, writes) = ways.into_iter().find(|(stem, ..)| stem.takes(photos.image))?;
    let of = graph.value(writes);
    let fits = of.dtype == Dtype::F32 && of.rank() == 4 && of.dims[3].is_multiple_of(8);
    let reads = vec![Read::Rows(photos.port, photos.image)];
    fits.then_some((last, Found { op: StepOp::Stem(stem), named: at, reads, writes, beside: None }))
}

/// Photos that an input has as bytes, and the constants that normalise them.
struct Photos {
    port: ValueId,
    image: Shape,
    mean: Vec<f32>,
    std: Vec<f32>,
}

impl Photos {
    /// The photos whose normalised pixels a value has; `None` if it has none, or unless exactly one node reads the
    /// value.
    fn of(context: &Context<'_>, id: ValueId, batch: usize) -> Option<Self> {
        let graph = context.graph;
        let &[rows, height, width, channels] = &graph.value(id).dims[..] else { return None };
        context.reader(id)?;
        let (bytes, factors) = normalised(context, id, channels)?;
        let view = Strided::of(graph, bytes);
        let is_port = matches!(graph.values[view.root.0].origin, Origin::Input(_));
        let is_dense = view.axes.get(1..) == dense(&graph.value(id).dims).get(1..);
        // Each photo is a row's first pixels; where an input is a state, its rows lie end to end.
        let is_of_rows = batch == 1 || view.axes.first() == Some(&[batch, graph.value(view.root).elems() / batch]);
        let in_words = batch == 1 || (height * width * channels).is_multiple_of(4);
        // A row has one photo.
        let is_one = graph.value(view.root).dims.first() == Some(&batch);
        if !is_port || !is_dense || !is_of_rows || !is_one || !in_words || view.first > 0 || rows != batch {
            return None;
        }
        // A byte b becomes factor x b + term, which is (b / 255 - mean) / std.
        let std: Vec<f64> = factors.iter().map(|[factor, _]| 1.0 / (255.0 * factor)).collect();
        let mean = factors.iter().zip(&std).map(|([_, term], std)| (-term * std) as f32).collect();
        let std: Vec<f32> = std.into_iter().map(|std| std as f32).collect();
        let image = Shape::new(height, width, channels);
        std.iter().all(|std| std.is_finite() && *std > 0.0).then_some(Self { port: view.root, image, mean, std })
    }
}

/// The bytes from which maps compute a value, and the factor and term by which each channel maps a byte b to factor x b
/// + term.
fn normalised(context: &Context<'_>, id: ValueId, channels: usize) -> Option<(ValueId, Vec<[f64; 2]>)> {
    let graph = context.graph;
    let Origin::Node(node, 0) = graph.values[id.0].origin else { return None };
    let node = &graph.nodes[node.0];
    let expr = inlined(graph, node)?;
    let inputs: Vec<ValueId> = node.inputs.iter().copied().collect::<Option<_>>()?;
    let mut varying = inputs.iter().copied().filter(|&input| graph.constant(input).is_none());
    let (from, None) = (varying.next()?, varying.next()) else { return None };
    let is_bytes = graph.value(from).dtype == Dtype::U8;
    let of_channel = |channel: usize| {
        let arg = |(number, &input): (usize, &ValueId)| match graph.constant(input) {
            None => Some(Expr::arg(number)),
            Some(_) => Some(Expr::float(Dtype::F32, constant(graph, input, channel, channels)?)),
        };
        let args = inputs.iter().enumerate().map(arg).collect::<Option<Vec<_>>>()?;
        affine(&expr.clone().with_args(&args), is_bytes)
    };
    let own = (0..channels).map(of_channel).collect::<Option<Vec<_>>>()?;
    if is_bytes {
        return Some((from, own));
    }
    context.reader(from)?;
    let (bytes, before) = normalised(context, from, channels)?;
    let both = before.iter().zip(own).map(|([a, b], [factor, term])| [a * factor, b * factor + term]);
    Some((bytes, both.collect()))
}

/// The number that an f32 constant has for a channel: its only element, or the channel's element of a vector; else
/// `None`.
fn constant(graph: &Graph, id: ValueId, channel: usize, channels: usize) -> Option<f64> {
    let (of, Constant::Bytes(bytes)) = (graph.value(id), graph.constant(id)?) else { return None };
    let is_vector = of.elems() == channels && of.dims.last() == Some(&channels);
    if of.dtype != Dtype::F32 || !(is_vector || of.elems() == 1) {
        return None;
    }
    let numbers = Tensor::from_bytes(of.clone(), bytes);
    Some(numbers.elems::<f32>()[if is_vector { channel } else { 0 }].into())
}

/// The factor and the term of an expression that is factor x operand + term, where the operand may be bytes; `None` for any other expression.
fn affine(expr: &Expr, is_bytes: bool) -> Option<[f64; 2]> {
    let of = |expr: &Expr| affine(expr, is_bytes);
    match expr {
        Expr::Cast(Dtype::F32 | Dtype::F64, arg) if matches!(**arg, Expr::Arg(_)) => Some([1.0, 0.0]),
        Expr::Arg(_) if !is_bytes => Some([1.0, 0.0]), // operations of bytes wrap around
        Expr::Const(dtype, Number::Float(number)) if dtype.is_float() => Some([0.0, *number]),
        Expr::Cast(Dtype::F32 | Dtype::F64, float) => of(float),
        Expr::Unary(Unary::Neg, float) => of(float).map(|of| of.map(|number| -number)),
        Expr::Binary(op, sides) => {
            let [[a, b], [c, d]] = [of(&sides[0])?, of(&sides[1])?];
            match op {
                Binary::Add => Some([a + c, b + d]),
                Binary::Sub => Some([a - c, b - d]),
                Binary::Mul if c == 0.0 => Some([a * d, b * d]),
                Binary::Mul if a == 0.0 => Some([c * b, d * b]),
                Binary::Div if c == 0.0 => Some([a / d, b / d]),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Pool, PoolOp, Window};
    use crate::plan::values::images_tests::Network;
    use crate::plan::{Kernel, Limits, Place, Plan};

    /// The number of maps that normalise photos.
    #[derive(Clone, Copy)]
    enum Pieces {
        One,
        Several,
    }

    const MEAN: [f32; 3] = [0.5, 0.25, 0.125];
    const STD: [f32; 3] = [0.25, 0.5, 0.2];

    fn photos(g: &mut Network, batch: usize, size: usize, pieces: Pieces) -> ValueId {
        let x = g.0.input("photo", Dtype::U8, &[batch, size, size, 3]);
        let mut vector = |of: [f32; 3]| {
            g.0.constant(Dtype::F32, &[3], of.iter().flat_map(|of| of.to_le_bytes()).collect::<Vec<_>>())
        };
        let (mean, std) = (vector(MEAN), vector(STD));
        let unit = Expr::arg(0).cast(Dtype::F32) / Expr::float(Dtype::F32, 255.0);
        match pieces {
            Pieces::One => g.0.map("normalised", (unit - Expr::arg(1)) / Expr::arg(2), &[x, mean, std]),
            Pieces::Several => {
                let x = g.0.map("unit", unit, &[x]);
                let x = g.0.map("centred", Expr::arg(0) - Expr::arg(1), &[x, mean]);
                g.0.map("normalised", Expr::arg(0) / Expr::arg(1), &[x, std])
            }
        }
    }

    /// The plan of first layers as in a ResNet, a mean over pixels, and its sum with a numeric input.
    fn plan_of(batch: usize, pieces: Pieces, pools: bool, other_reads: bool) -> Plan {
        let (mut g, vector) = Network::new(batch, [1, 1, 16]);
        let x = photos(&mut g, batch, 64, pieces);
        let (size, window) = if pools { (7, Window::square(7, 2, 3)) } else { (3, Window::square(3, 2, 1)) };
        let filter = g.0.weight("conv.weight", Dtype::F32, &[16, 3, size, size]);
        let mut y = g.0.node("conv", Op::Conv(crate::graph::Conv { window, groups: 1 }), &[x, filter]);
        y = g.relu("relu", y);
        if pools {
            let pool = Pool { op: PoolOp::Max, window: Window::square(3, 2, 1) };
            y = g.0.node("pool", Op::Pool(pool), &[y]);
        }
        let y = g.conv("next", y, [16, 16, 1]);
        let mean = g.mean("mean", y);
        let sum = g.sum("sum", mean, vector);
        let outputs = if other_reads { vec![sum, x] } else { vec![sum] };
        g.planned(&Limits::h200(), &outputs)
    }

    #[test]
    fn photos_are_normalised_by_the_kernel_of_the_first_layers() {
        for pieces in [Pieces::One, Pieces::Several] {
            for (batch, pools) in [(1, true), (3, true), (1, false), (3, false)] {
                let plan = plan_of(batch, pieces, pools, false);
                let step = plan.steps.iter().find(|step| matches!(step.kernel, Kernel::Sm90Stem(_)));
                let step = step.unwrap_or_else(|| panic!("{plan}"));
                let StepOp::Stem(stem) = &step.op else { panic!("{plan}") };
                let near = |a: &[f32], b: [f32; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
                assert!(near(&stem.mean, MEAN) && near(&stem.std, STD), "{stem:?}");
                assert_eq!((stem.conv.activation, stem.pool.is_some()), (Activation::Relu, pools));
                let read = &plan.tensors[step.inputs[0].0];
                assert_eq!((read.shape, read.dtype, read.stored_channels), (Shape::new(64, 64, 3), Dtype::U8, 3));
                assert_eq!(read.place, Place::Input(plan.input.ports()[1].offset), "{plan}");
            }
        }
    }

    #[test]
    fn photos_that_something_else_reads_are_normalised_apart() {
        let plan = plan_of(1, Pieces::One, true, true);
        assert!(!plan.steps.iter().any(|step| matches!(step.op, StepOp::Stem(_))), "{plan}");
    }

    /// A plan of one 3x3 convolution for each of these pixels, with what is behind it.
    fn plan_with(batch: usize, build: impl Fn(&mut Network, ValueId) -> Vec<ValueId>) -> Plan {
        let (mut g, _) = Network::new(batch, [1, 1, 16]);
        let photo = g.0.input("photo", Dtype::U8, &[batch, 64, 64, 3]);
        let outputs = build(&mut g, photo);
        g.planned(&Limits::h200(), &outputs)
    }

    fn conv(g: &mut Network, name: &str, x: ValueId) -> ValueId {
        let filter = g.0.weight(&format!("{name}.weight"), Dtype::F32, &[16, 3, 3, 3]);
        g.0.node(name, Op::Conv(crate::graph::Conv { window: Window::square(3, 2, 1), groups: 1 }), &[x, filter])
    }

    fn unit(g: &mut Network, name: &str, x: ValueId) -> ValueId {
        g.0.map(name, Expr::arg(0).cast(Dtype::F32) / Expr::float(Dtype::F32, 255.0), &[x])
    }

    fn stems(plan: &Plan) -> usize {
        plan.steps.iter().filter(|step| matches!(step.op, StepOp::Stem(_))).count()
    }

    #[test]
    fn pixels_in_other_dimensions_are_of_no_stem() {
        let plan = |reshaped: bool| {
            plan_with(2, |g, photo| {
                let x = unit(g, "unit", photo);
                let y = conv(g, "conv", x);
                let y = if reshaped { g.0.node("shown", Op::Reshape(vec![2, 1, 32 * 32, 16]), &[y]) } else { y };
                vec![g.tanh("tanh", y)]
            })
        };
        assert_eq!(
            [false, true].map(plan).map(|plan| {
                let stem = plan.steps.iter().find(|step| matches!(step.op, StepOp::Stem(_)));
                stem.map(|step| plan.tensors[step.outputs[0].0].shape.height)
            }),
            [Some(32), None]
        );
        // Every second photo of twice as many, and photos that begin behind a row's first pixel.
        let pixels = |dims: [usize; 4], start: [usize; 4]| {
            plan_with(2, move |g, photo| {
                let all = g.0.node("all", Op::Reshape(dims.to_vec()), &[photo]);
                let cut = crate::graph::Slice { start: start.to_vec(), step: vec![1; 4], dims: vec![2, 32, 64, 3] };
                let x = g.0.node("cut", Op::Slice(cut), &[all]);
                let x = unit(g, "unit", x);
                vec![conv(g, "conv", x)]
            })
        };
        assert_eq!(stems(&pixels([4, 32, 64, 3], [0; 4])), 0);
        assert_eq!(stems(&pixels([2, 64, 64, 3], [0, 32, 0, 0])), 0);
        assert_eq!(stems(&pixels([2, 64, 64, 3], [0; 4])), 1);
    }

    #[test]
    fn an_input_has_photos_of_one_shape() {
        let plan = |top: usize| {
            plan_with(1, move |g, photo| {
                let x = unit(g, "unit", photo);
                let cut = crate::graph::Slice { start: vec![0; 4], step: vec![1; 4], dims: vec![1, top, 64, 3] };
                let part = g.0.node("cut", Op::Slice(cut), &[photo]);
                let part = unit(g, "part", part);
                vec![conv(g, "a", x), conv(g, "b", part)]
            })
        };
        assert_eq!(stems(&plan(32)), 1, "{}", plan(32));
    }

    /// The map broadcasts the byte, which has no axes.
    #[test]
    fn a_single_byte_is_no_photo() {
        let plan = plan_with(2, |g, photo| {
            let cut = crate::graph::Slice { start: vec![0; 4], step: vec![1; 4], dims: vec![1; 4] };
            let byte = g.0.node("cut", Op::Slice(cut), &[photo]);
            let byte = g.0.node("byte", Op::Reshape(Vec::new()), &[byte]);
            let mean = g.0.constant(Dtype::F32, &[1, 1, 1, 3], vec![0; 12]);
            let x = g.0.map("pixel", Expr::arg(0).cast(Dtype::F32) - Expr::arg(1), &[byte, mean]);
            let y = conv(g, "conv", x);
            vec![g.0.node("rows", Op::Reshape(vec![2, 8]), &[y])]
        });
        assert_eq!(stems(&plan), 0, "{plan}");
    }

    #[test]
    fn operations_of_bytes_are_no_normalisation() {
        let plan = plan_with(1, |g, photo| {
            let x = g.0.map("twice", (Expr::arg(0) + Expr::arg(0)).cast(Dtype::F32), &[photo]);
            vec![conv(g, "conv", x)]
        });
        assert_eq!(stems(&plan), 0, "{plan}");
    }
}
