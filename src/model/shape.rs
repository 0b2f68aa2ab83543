//! Shape inference, which is also the check that a network is well-formed, and the parameters that a network needs.

use std::collections::HashMap;

use super::images::{BatchNorm, Conv2d, Linear, Network, Op, Pool, Window};
use super::quantization;
use crate::error::Error;
use crate::tensor::Shape;

/// The shape of each node's value, in the order of [`Network::nodes`].
///
/// # Errors
///
/// [`Error::Graph`] with the node's name if the network is not well-formed: a repeated name, an input that does not
/// come before its reader, a wrong number of inputs, a zero size, stride or dilation, a window larger than the padded
/// image, a pooling window that can lie in the padding alone, groups that do not divide the channels, operands of
/// different shapes (in a concatenation: of different height or width), a linear layer on more than one pixel, sizes
/// whose product overflows, or an invalid scale.
///
/// ```
/// use trefoil::{Shape, graph::{GraphBuilder, Window}, model::images::{Network, infer}};
/// let mut g = GraphBuilder::new();
/// let x = g.image("image", Shape::new(224, 224, 3));
/// let x = g.conv2d("conv1", x, 64, Window::square(7, 2, 3));
/// g.output("y", x);
/// let network = Network::of(&g.finish()?)?;
/// assert_eq!(infer(&network)?, [Shape::new(224, 224, 3), Shape::new(112, 112, 64)]);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn infer(graph: &Network) -> Result<Vec<Shape>, Error> {
    check_structure(graph)?;
    let mut shapes: Vec<Shape> = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        let inputs: Vec<Shape> = node.inputs.iter().map(|id| shapes[id.0]).collect();
        let shape = match &node.op {
            Op::Input => Ok(graph.input),
            op => op.shape(&inputs),
        };
        let shape = shape.map_err(|what| Error::graph(&node.name, what))?;
        let fits = product(&[shape.height, shape.width, shape.channels]).is_ok();
        if !fits || shape.elems() == 0 {
            return Err(Error::graph(&node.name, format!("a value of {shape} elements: expected 1 to {MAX_ELEMS}")));
        }
        quantization::check(node).map_err(|what| Error::graph(&node.name, what))?;
        shapes.push(shape);
    }
    Ok(shapes)
}

/// The tensors that a network reads, with their dimensions: filters `[K, C / groups, R, S]`, biases and batch norm
/// vectors `[channels]`, linear weights `[out, in]`. They are in the order of the nodes; a tensor that is read twice
/// occurs twice.
///
/// # Errors
///
/// As [`infer`].
///
/// ```
/// use trefoil::{Shape, graph::GraphBuilder, model::images::{Network, params}};
/// let mut g = GraphBuilder::new();
/// let x = g.image("vector", Shape::vector(5));
/// let x = g.linear("fc", x, 3);
/// g.output("y", x);
/// let network = Network::of(&g.finish()?)?;
/// assert_eq!(params(&network)?, [("fc.weight", vec![3, 5]), ("fc.bias", vec![3])]);
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn params(graph: &Network) -> Result<Vec<(&str, Vec<usize>)>, Error> {
    let shapes = infer(graph)?;
    let mut params = Vec::new();
    for node in &graph.nodes {
        let channels = node.inputs.first().map_or(0, |id| shapes[id.0].channels);
        match &node.op {
            Op::Conv2d(conv) => conv_params(conv, channels, &mut params),
            Op::BatchNorm(norm) => norm_params(norm, channels, &mut params),
            Op::Linear(linear) => linear_params(linear, channels, &mut params),
            _ => {}
        }
    }
    Ok(params)
}

/// The largest number of elements of one row's value or of one parameter: as many f64 still fit the address space.
const MAX_ELEMS: usize = isize::MAX as usize / 8;

/// Checks names, order and numbers of inputs. After it, every [`NodeId`](super::NodeId) in the graph is in range.
fn check_structure(graph: &Network) -> Result<(), Error> {
    let Some(first) = graph.nodes.first() else {
        return Err(Error::graph("", "the graph is empty: expected an input node"));
    };
    if !matches!(first.op, Op::Input | Op::Given(_) | Op::Rows(..)) {
        return Err(Error::graph(&first.name, format!("the first node: expected input, found {}", first.op.kind())));
    }
    let mut seen = HashMap::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        let fail = |what: String| Err(Error::graph(&node.name, what));
        if node.name.is_empty() {
            return fail(format!("node {i} has an empty name"));
        }
        if let Some(earlier) = seen.insert(node.name.as_str(), i) {
            return fail(format!("nodes {earlier} and {i} have the same name"));
        }
        let (least, most) = arity(&node.op);
        if !(least..=most).contains(&node.inputs.len()) {
            let expected = match most {
                usize::MAX => format!("{least} or more"),
                _ if least == most => least.to_string(),
                _ => format!("{least} or {most}"),
            };
            return fail(format!("{}: expected {expected} inputs, found {}", node.op.kind(), node.inputs.len()));
        }
        if node.op == Op::Input && i != 0 {
            return fail(format!("a second input node: `{}` is the first", first.name));
        }
        if let Some(late) = node.inputs.iter().find(|id| id.0 >= i) {
            return fail(format!("node {i} reads node {}: expected one that comes before it", late.0));
        }
    }
    if graph.output.0 >= graph.nodes.len() {
        let what = format!("expected one of {} nodes, found node {}", graph.nodes.len(), graph.output.0);
        return Err(Error::graph("output", what));
    }
    Ok(())
}

/// The least and the largest number of inputs.
const fn arity(op: &Op) -> (usize, usize) {
    match op {
        Op::Input | Op::Rows(..) => (0, 0),
        Op::Given(_) => (0, usize::MAX),
        Op::Conv2d(_) => (1, 2),
        Op::Add(_) => (2, 2),
        Op::Concat => (1, usize::MAX),
        _ => (1, 1),
    }
}

impl Op {
    /// The shape of the operation's result for inputs of these shapes. There are as many inputs as the operation has.
    ///
    /// # Errors
    /// A text that says what does not fit.
    pub(crate) fn shape(&self, inputs: &[Shape]) -> Result<Shape, String> {
        match self {
            Self::Input => Err("an input has the graph's shape".into()),
            Self::Given(shape) | Self::Rows(shape, _) => Ok(*shape),
            Self::Normalize(..) => Ok(inputs[0]),
            Self::Emit(kind) => Ok(kind.of(inputs[0])),
            Self::Conv2d(conv) => conv_shape(conv, inputs[0], inputs.get(1).copied()),
            Self::BatchNorm(norm) => check_eps(norm).map(|()| inputs[0]),
            Self::Activation(_) => Ok(inputs[0]),
            Self::Add(_) if inputs[0] != inputs[1] => {
                Err(format!("operands of one shape expected, found {} and {}", inputs[0], inputs[1]))
            }
            Self::Add(_) => Ok(inputs[0]),
            Self::MaxPool(pool) | Self::AvgPool(pool) => pool_shape(pool, inputs[0]),
            Self::GlobalAvgPool => Ok(Shape::vector(inputs[0].channels)),
            Self::Linear(linear) => linear_shape(linear, inputs[0]),
            Self::Concat => concat_shape(inputs),
        }
    }
}

fn conv_shape(conv: &Conv2d, x: Shape, residual: Option<Shape>) -> Result<Shape, String> {
    let Conv2d { out_channels, window, groups, norm, .. } = conv;
    if *groups == 0 || !x.channels.is_multiple_of(*groups) || !out_channels.is_multiple_of(*groups) {
        return Err(format!(
            "groups: expected a divisor of {} and {out_channels} channels, found {groups}",
            x.channels
        ));
    }
    norm.as_ref().map_or(Ok(()), check_eps)?;
    product(&[*out_channels, x.channels / groups, window.size[0], window.size[1]])?;
    let shape = windowed(window, x, *out_channels)?;
    match residual {
        Some(found) if found != shape => Err(format!("residual: expected {shape}, found {found}")),
        _ => Ok(shape),
    }
}

fn pool_shape(pool: &Pool, x: Shape) -> Result<Shape, String> {
    let shape = windowed(&pool.window, x, x.channels)?;
    let Window { size, pad, dilation, .. } = pool.window;
    let axes = [("height", x.height, [pad.top, pad.bottom]), ("width", x.width, [pad.left, pad.right])];
    for (axis, (name, pixels, pads)) in axes.into_iter().enumerate() {
        let reach = extent(size[axis], dilation[axis])?;
        if let Some(found) = pads.into_iter().find(|pad| *pad >= reach) {
            return Err(format!("padding along {name}: expected less than the window's {reach}, found {found}"));
        }
        if size[axis] > 1 && dilation[axis] > pixels {
            return Err(format!("dilation along {name}: expected {pixels} at most, found {}", dilation[axis]));
        }
    }
    Ok(shape)
}

fn linear_shape(linear: &Linear, x: Shape) -> Result<Shape, String> {
    if [x.height, x.width] != [1, 1] {
        return Err(format!("linear: expected an input of 1x1x{}, found {x}; pool it before", x.channels));
    }
    product(&[linear.out_features, x.channels])?;
    Ok(Shape::vector(linear.out_features))
}

fn concat_shape(inputs: &[Shape]) -> Result<Shape, String> {
    let first = inputs[0];
    let differs = |other: &&Shape| [other.height, other.width] != [first.height, first.width];
    if let Some(other) = inputs.iter().find(differs) {
        return Err(format!("operands of one height and width expected, found {first} and {other}"));
    }
    let channels = inputs.iter().try_fold(0_usize, |sum, x| sum.checked_add(x.channels)).ok_or("channels overflow")?;
    Ok(Shape { channels, ..first })
}

/// The shape of the result of sliding `window` over `x`, with `channels` channels.
fn windowed(window: &Window, x: Shape, channels: usize) -> Result<Shape, String> {
    let Window { size, stride, pad, dilation } = *window;
    let height = slide("height", x.height, [pad.top, pad.bottom], size[0], stride[0], dilation[0])?;
    let width = slide("width", x.width, [pad.left, pad.right], size[1], stride[1], dilation[1])?;
    Ok(Shape { height, width, channels })
}

/// The number of positions of a window along one axis.
fn slide(
    axis: &str,
    pixels: usize,
    pads: [usize; 2],
    size: usize,
    stride: usize,
    dilation: usize,
) -> Result<usize, String> {
    for (name, value) in [("window size", size), ("stride", stride), ("dilation", dilation)] {
        if value == 0 {
            return Err(format!("{name} along {axis}: expected at least 1, found 0"));
        }
    }
    let reach = extent(size, dilation)?;
    let padded = pixels.checked_add(pads[0]).and_then(|n| n.checked_add(pads[1])).ok_or("the padded size overflows")?;
    match padded.checked_sub(reach) {
        Some(room) => Ok(room / stride + 1),
        None => Err(format!("window along {axis}: expected {padded} pixels at most (with padding), found {reach}")),
    }
}

/// The number of pixels from a window's first tap to its last one, including both.
fn extent(size: usize, dilation: usize) -> Result<usize, String> {
    let overflow = || "the window's extent overflows".to_owned();
    (size.saturating_sub(1)).checked_mul(dilation).and_then(|n| n.checked_add(1)).ok_or_else(overflow)
}

fn product(sizes: &[usize]) -> Result<usize, String> {
    sizes
        .iter()
        .try_fold(1_usize, |product, &size| product.checked_mul(size))
        .filter(|&elems| elems <= MAX_ELEMS)
        .ok_or_else(|| format!("the product of {sizes:?} overflows: expected {MAX_ELEMS} at most"))
}

fn check_eps(norm: &BatchNorm) -> Result<(), String> {
    match norm.eps {
        eps if eps.is_finite() && eps >= 0.0 => Ok(()),
        eps => Err(format!("eps: expected a finite number from 0 up, found {eps}")),
    }
}

fn conv_params<'a>(conv: &'a Conv2d, channels: usize, params: &mut Vec<(&'a str, Vec<usize>)>) {
    let [r, s] = conv.window.size;
    params.push((&conv.filter, vec![conv.out_channels, channels / conv.groups, r, s]));
    params.extend(conv.bias.iter().map(|bias| (bias.as_str(), vec![conv.out_channels])));
    if let Some(norm) = &conv.norm {
        norm_params(norm, conv.out_channels, params);
    }
}

fn norm_params<'a>(norm: &'a BatchNorm, channels: usize, params: &mut Vec<(&'a str, Vec<usize>)>) {
    let BatchNorm { gamma, beta, mean, var, eps: _ } = norm;
    params.extend([gamma, beta, mean, var].map(|name| (name.as_str(), vec![channels])));
}

fn linear_params<'a>(linear: &'a Linear, channels: usize, params: &mut Vec<(&'a str, Vec<usize>)>) {
    params.push((&linear.weight, vec![linear.out_features, channels]));
    params.extend(linear.bias.iter().map(|bias| (bias.as_str(), vec![linear.out_features])));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::{Node, NodeId, Pad};
    use crate::tensor::Activation;

    fn graph(input: Shape, ops: &[(&str, Op, &[usize])]) -> Network {
        let mut nodes = vec![Node { name: "input".into(), op: Op::Input, inputs: vec![], scale: None }];
        for (name, op, inputs) in ops {
            let inputs = inputs.iter().map(|&i| NodeId(i)).collect();
            nodes.push(Node { name: (*name).into(), op: op.clone(), inputs, scale: None });
        }
        let output = NodeId(nodes.len() - 1);
        Network { nodes, output, input }
    }

    fn one(input: Shape, op: Op) -> Result<Shape, Error> {
        infer(&graph(input, &[("x", op, &[0])])).map(|shapes| shapes[1])
    }

    fn conv(out_channels: usize, groups: usize, window: Window) -> Op {
        Op::Conv2d(Conv2d { groups, ..Conv2d::named("x", out_channels, window) })
    }

    fn max_pool(window: Window) -> Op {
        Op::MaxPool(Pool { window, count_pad: false })
    }

    #[track_caller]
    fn rejects(result: Result<impl std::fmt::Debug, Error>, node: &str, part: &str) {
        match result {
            Err(Error::Graph { node: n, what }) if n == node && what.contains(part) => {}
            other => panic!("expected an error at `{node}` with {part:?}, found {other:?}"),
        }
    }

    #[test]
    fn windows_slide_as_in_pytorch() {
        let x = Shape::new(9, 12, 4);
        let window = Window {
            size: [3, 2],
            stride: [2, 3],
            pad: Pad { top: 1, left: 0, bottom: 2, right: 1 },
            dilation: [2, 1],
        };
        assert_eq!(one(x, conv(6, 2, window)).unwrap(), Shape::new((12 - 5) / 2 + 1, (13 - 2) / 3 + 1, 6));
        assert_eq!(one(x, max_pool(Window::square(3, 2, 1))).unwrap(), Shape::new(5, 6, 4));
        assert_eq!(one(x, Op::GlobalAvgPool).unwrap(), Shape::vector(4));
        assert_eq!(one(Shape::vector(4), Op::Linear(Linear::named("x", 7))).unwrap(), Shape::vector(7));
    }

    #[test]
    fn bad_attributes_are_named() {
        let x = Shape::new(8, 8, 4);
        let square = Window::square(3, 1, 1);
        rejects(one(x, conv(4, 1, Window { stride: [0, 1], ..square })), "x", "stride along height");
        rejects(one(x, conv(4, 1, Window { dilation: [1, 0], ..square })), "x", "dilation along width");
        rejects(one(x, conv(4, 1, Window { size: [0, 1], ..square })), "x", "window size along height");
        rejects(one(x, conv(4, 1, Window::square(11, 1, 1))), "x", "expected 10 pixels at most");
        rejects(one(x, conv(4, 3, square)), "x", "groups");
        rejects(one(x, conv(4, 0, square)), "x", "groups");
        rejects(one(x, conv(0, 1, square)), "x", "expected 1 to");
        rejects(one(x, max_pool(Window::square(2, 1, 2))), "x", "padding along height");
        rejects(one(x, Op::Linear(Linear::named("x", 2))), "x", "pool it before");
        rejects(one(x, Op::BatchNorm(BatchNorm::named("x", f64::NAN))), "x", "eps");
        rejects(one(Shape::new(0, 8, 4), Op::GlobalAvgPool), "input", "expected 1 to");
        // Every tap of this window can lie in the padding: a mean that does not count padding would divide by zero.
        let apart =
            Window { size: [2, 1], stride: [1, 1], pad: Pad { top: 2, bottom: 2, ..Pad::default() }, dilation: [4, 1] };
        rejects(one(Shape::new(1, 1, 1), max_pool(apart)), "x", "dilation along height");
    }

    #[test]
    fn channels_are_put_side_by_side() {
        let x = Shape::new(8, 8, 4);
        let concat = |inputs| {
            infer(&graph(x, &[("down", conv(6, 1, Window::square(1, 2, 0)), &[0]), ("cat", Op::Concat, inputs)]))
        };
        assert_eq!(concat(&[1, 1]).unwrap()[2], Shape::new(4, 4, 12));
        assert_eq!(concat(&[0]).unwrap()[2], x);
        rejects(concat(&[0, 1]), "cat", "8x8x4 and 4x4x6");
        rejects(concat(&[]), "cat", "expected 1 or more inputs, found 0");
    }

    #[test]
    fn overflow_is_an_error() {
        let huge = usize::MAX;
        let x = Shape::new(8, 8, 4);
        rejects(infer(&graph(Shape::new(huge, 2, 1), &[])), "input", "");
        rejects(one(x, conv(huge, 1, Window::square(1, 1, 0))), "x", "overflows");
        rejects(one(x, conv(1, 1, Window::square(huge, 1, 0))), "x", "overflows");
        rejects(one(x, conv(1, 1, Window::square(1, 1, huge))), "x", "overflows");
        rejects(one(x, conv(1, 1, Window { dilation: [huge; 2], ..Window::square(3, 1, 0) })), "x", "overflows");
        rejects(one(Shape::vector(4), Op::Linear(Linear::named("x", huge))), "x", "overflows");
        rejects(one(x, conv(1, 1, Window::square(1, 1, 1 << 40))), "x", "expected 1 to");
    }

    #[test]
    fn structure_is_checked() {
        let x = Shape::new(8, 8, 4);
        let relu = || Op::Activation(Activation::Relu);
        rejects(infer(&Network { nodes: vec![], output: NodeId(0), input: x }), "", "empty");
        rejects(infer(&graph(x, &[("input", relu(), &[0])])), "input", "same name");
        rejects(infer(&graph(x, &[("", relu(), &[0])])), "", "empty name");
        rejects(infer(&graph(x, &[("a", relu(), &[1])])), "a", "comes before");
        rejects(infer(&graph(x, &[("a", relu(), &[9])])), "a", "comes before");
        rejects(infer(&graph(x, &[("a", relu(), &[])])), "a", "expected 1 inputs, found 0");
        rejects(infer(&graph(x, &[("a", conv(4, 1, Window::square(1, 1, 0)), &[0, 0, 0])])), "a", "expected 1 or 2");
        rejects(infer(&graph(x, &[("a", Op::Input, &[])])), "a", "second input");
        rejects(infer(&Network { output: NodeId(1), ..graph(x, &[]) }), "output", "found node 1");
        let down = conv(4, 1, Window::square(1, 2, 0));
        let add = ("add", Op::Add(Activation::None), &[0, 1][..]);
        rejects(infer(&graph(x, &[("down", down.clone(), &[0]), add])), "add", "8x8x4 and 4x4x4");
        rejects(infer(&graph(x, &[("down", down, &[0, 0])])), "down", "residual: expected 4x4x4");
    }
}
