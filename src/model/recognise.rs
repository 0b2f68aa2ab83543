//! A network of images, recognised in a graph of values: convolutions, batch norms, activations, sums, pools and linear
//! layers, in whatever pieces they were written.

use std::collections::HashMap;

use super::affine::affine;
use super::graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pad, Pool, Window};
use super::shape::infer;
use super::weights::Weights;
use crate::error::Error;
use crate::graph::{
    self as values, Binary, Constant, Expr, Number, Origin, PoolOp, ReduceOp, Tensor, ValueId, ValueType,
};
use crate::loops;
use crate::tensor::{Activation, Dtype, Shape};

/// A network of images that computes what a graph of values does.
pub(super) struct Network {
    /// The network, without softmax.
    pub graph: Graph,
    /// Weights that are computed from those of the graph, by new names.
    pub computed: Vec<(String, Tensor)>,
}

/// The order that makes pixels of planes.
const TO_PIXELS: [usize; 4] = [0, 2, 3, 1];

/// The network of images that `graph`, of one image, computes.
///
/// # Errors
/// [`Error::Unsupported`] with every node that is none of a network of images; [`Error::Tensor`] and [`Error::Io`] for
/// weights that cannot be read.
pub(super) fn network(graph: &values::Graph, weights: &Weights) -> Result<Network, Error> {
    let mut least: Option<Vec<String>> = None;
    // What is done to planes before the first convolution can as well be done to pixels.
    for graph in [values::simplify(graph), values::simplify(&of_pixels(graph))] {
        match Recogniser::new(&graph, weights)?.run()? {
            Ok(network) => return Ok(network),
            Err(refused) if least.as_ref().is_none_or(|least| refused.len() < least.len()) => least = Some(refused),
            Err(_) => {}
        }
    }
    let refused = least.unwrap_or_default();
    let (count, nodes) = (refused.len(), refused.join("; "));
    Err(Error::Unsupported {
        what: format!("a model with {count} nodes that no kernel for images computes ({nodes})"),
        instead:
            "use one of convolutions, batch norms, ReLU, sums, pools, concatenations, a linear layer and softmax, \
                  or evaluate it on the CPU by `trefoil::loops`"
                .into(),
    })
}

/// The graph that reads pixels in place of planes, where its input may be planes.
fn of_pixels(graph: &values::Graph) -> values::Graph {
    let [port] = &graph.inputs[..] else { return graph.clone() };
    if graph.value(port.value).rank() != TO_PIXELS.len() {
        return graph.clone();
    }
    graph.with_input_transposed(&TO_PIXELS)
}

struct Recogniser<'a> {
    from: &'a values::Graph,
    weights: &'a Weights,
    nodes: Vec<Node>,
    /// The node that computes each value.
    of_value: HashMap<ValueId, NodeId>,
    computed: Vec<(String, Tensor)>,
    softmax: Option<ValueId>,
    input: Shape,
}

/// Why a node is none of a network of images.
type Why = &'static str;

/// What a node of the graph is.
type Found = Result<Option<NodeId>, Failed>;

enum Failed {
    Why(Why),
    Error(Error),
}

impl From<Why> for Failed {
    fn from(why: Why) -> Self {
        Self::Why(why)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<'a> Recogniser<'a> {
    fn new(from: &'a values::Graph, weights: &'a Weights) -> Result<Self, Error> {
        let refused =
            |what: String| Error::Unsupported { what, instead: "one input of f32 images and one output".into() };
        let ([input], [_]) = (&from.inputs[..], &from.outputs[..]) else {
            return Err(refused(format!(
                "a network of {} inputs and {} outputs",
                from.inputs.len(),
                from.outputs.len()
            )));
        };
        let of = from.value(input.value);
        let turned = from.nodes.iter().find(|node| {
            node.inputs[..] == [Some(input.value)] && node.op == values::Op::Transpose(TO_PIXELS.to_vec())
        });
        let first = turned.map_or(input.value, |node| node.outputs[0]);
        let [1, height, width, channels] = from.value(first).dims[..] else {
            return Err(refused(format!("input `{}` of {of}", input.name)));
        };
        if of.dtype != Dtype::F32 {
            return Err(refused(format!("input `{}` of {of}", input.name)));
        }
        let node = Node { name: "input".into(), op: Op::Input, inputs: Vec::new() };
        Ok(Self {
            from,
            weights,
            nodes: vec![node],
            of_value: HashMap::from([(first, NodeId(0))]),
            computed: Vec::new(),
            softmax: None,
            input: Shape::new(height, width, channels),
        })
    }

    /// The network, or the nodes that are none of one.
    fn run(mut self) -> Result<Result<Network, Vec<String>>, Error> {
        let mut refused = Vec::new();
        for node in &self.from.nodes {
            if self.of_value.contains_key(&node.outputs[0]) || node.outputs.iter().all(|&id| self.is_constant(id)) {
                continue;
            }
            match self.recognise(node) {
                Ok(Some(id)) => drop(self.of_value.insert(node.outputs[0], id)),
                Ok(None) => {} // what it reads was refused
                Err(Failed::Error(error)) => return Err(error),
                Err(Failed::Why(why)) => {
                    let of = self.from.value(node.outputs[0]);
                    refused.push(format!("node `{}` ({} to {of}): {why}", node.name, node.op.kind()));
                }
            }
        }
        let last = self.from.outputs[0].value;
        let Some(&output) = self.of_value.get(&self.softmax.unwrap_or(last)).filter(|_| refused.is_empty()) else {
            return Ok(Err(refused));
        };
        let graph = Graph { nodes: self.nodes, output, input: self.input }.cut(output);
        infer(&graph)?;
        Ok(Ok(Network { graph, computed: self.computed }))
    }

    fn recognise(&mut self, node: &values::Node) -> Found {
        let runs = node.inputs.iter().flatten().filter(|id| !self.is_constant(**id));
        let images: Option<Vec<NodeId>> = runs.map(|id| self.of_value.get(id).copied()).collect();
        let Some(images) = images else { return Ok(None) };
        if let Some(id) = self.softmax
            && node
                .inputs
                .iter()
                .flatten()
                .any(|&input| self.from.values[input.0].origin == self.from.values[id.0].origin)
        {
            return Err("something reads the softmax's operand too".into());
        }
        match &node.op {
            values::Op::Conv(conv) => self.conv(node, conv, images[0]).map(Some),
            values::Op::Pool(pool) => self.pool(node, pool, images[0]).map(Some),
            values::Op::Reduce(of) => self.mean(node, of, images[0]).map(Some),
            values::Op::Map(expr) => self.map(node, expr, &images).map(Some),
            values::Op::Concat(axis) => self.concat(node, *axis, &images).map(Some),
            values::Op::Contract(of) => self.linear(node, of, &images).map(Some),
            values::Op::Reshape(_) => self.reshape(node, images[0]).map(Some),
            values::Op::Softmax { axis, log: false } => self.end(node, *axis, images[0]).map(Some),
            values::Op::Transpose(_) => Err("it moves pixels between channels".into()),
            _ => Err("no kernel computes it".into()),
        }
    }

    fn conv(&mut self, node: &values::Node, conv: &values::Conv, x: NodeId) -> Result<NodeId, Failed> {
        let [_, filter, ..] = node.inputs[..] else { return Err("it has no filter".into()) };
        let filter = filter.filter(|&id| self.is_constant(id)).ok_or(Failed::Why("its filter is no constant"))?;
        let bias = node.inputs.get(2).copied().flatten();
        if bias.is_some_and(|id| !self.is_constant(id)) {
            return Err("its bias is no constant".into());
        }
        let op = Op::Conv2d(Conv2d {
            groups: conv.groups,
            filter: self.named(node, "filter", filter)?,
            bias: bias.map(|bias| self.named(node, "bias", bias)).transpose()?,
            ..Conv2d::named(&node.name, self.from.value(filter).dims[0], window(&conv.window)?)
        });
        Ok(self.push(node, op, vec![x]))
    }

    fn pool(&mut self, node: &values::Node, pool: &values::Pool, x: NodeId) -> Result<NodeId, Failed> {
        let window = window(&pool.window)?;
        if node.outputs.len() > 1 {
            return Err("the places of its maxima are asked for".into());
        }
        let is_even = pool.window.pad.iter().all(|[before, behind]| before == behind);
        let op = match pool.op {
            PoolOp::Max => Op::MaxPool(Pool { window, count_pad: false }),
            PoolOp::Mean => Op::AvgPool(Pool { window, count_pad: false }),
            PoolOp::MeanOfTaps if is_even => Op::AvgPool(Pool { window, count_pad: true }),
            PoolOp::MeanOfTaps | PoolOp::Sum => return Err("no kernel computes such windows".into()),
        };
        Ok(self.push(node, op, vec![x]))
    }

    fn mean(&mut self, node: &values::Node, of: &values::Reduce, x: NodeId) -> Result<NodeId, Failed> {
        match (of.op, &of.axes[..], self.from.value(read(node)).rank()) {
            (ReduceOp::Mean, [1, 2], 4) => Ok(self.push(node, Op::GlobalAvgPool, vec![x])),
            _ => Err("it is no mean over all pixels".into()),
        }
    }

    fn concat(&mut self, node: &values::Node, axis: usize, images: &[NodeId]) -> Result<NodeId, Failed> {
        if images.len() != node.inputs.len() || axis + 1 != self.from.value(read(node)).rank() || axis == 0 {
            return Err("it does not put channels beside channels".into());
        }
        Ok(self.push(node, Op::Concat, images.to_vec()))
    }

    fn linear(&mut self, node: &values::Node, of: &values::Contract, images: &[NodeId]) -> Result<NodeId, Failed> {
        let (&[x], [_, Some(weight)]) = (images, &node.inputs[..]) else {
            return Err("it has no constant operand".into());
        };
        let is_product =
            of.result.len() == 2 && of.left.len() == 2 && of.right.len() == 2 && of.left[0] == of.result[0];
        if !is_product || !self.is_constant(*weight) {
            return Err("it is no linear layer".into());
        }
        let (out_features, weight) = match of.right[..] {
            [k, c] if [k, c] == [of.result[1], of.left[1]] => {
                (self.from.value(*weight).dims[0], self.named(node, "weight", *weight)?)
            }
            [c, k] if [k, c] == [of.result[1], of.left[1]] => {
                let dims = [self.from.value(*weight).dims[1], self.from.value(*weight).dims[0]];
                let turned = values::Op::Transpose(vec![1, 0]);
                let tensor = self.tensor(*weight)?;
                let of = ValueType::new(tensor.value_type().dtype, &dims);
                let tensor = loops::compute(&turned, &[Some(&tensor)], &[of])?.remove(0);
                (dims[0], self.keep(node, "weight", tensor))
            }
            _ => return Err("it is no linear layer".into()),
        };
        Ok(self.push(node, Op::Linear(Linear { out_features, weight, bias: None }), vec![x]))
    }

    /// A vector seen as an image of one pixel, or the other way round.
    fn reshape(&mut self, node: &values::Node, x: NodeId) -> Result<NodeId, Failed> {
        let long = |of: &ValueType| of.dims.iter().copied().filter(|&dim| dim != 1).collect::<Vec<_>>();
        let [from, to] = [read(node), node.outputs[0]].map(|id| self.from.value(id));
        let ends = |of: &ValueType| of.dims.last().copied();
        if long(from).len() > 1 || ends(from) != ends(to) {
            return Err("it makes channels of pixels".into());
        }
        Ok(x)
    }

    fn end(&mut self, node: &values::Node, axis: usize, x: NodeId) -> Result<NodeId, Failed> {
        let of = self.from.value(read(node));
        let is_last = node.outputs[0] == self.from.outputs[0].value && axis + 1 == of.rank();
        if !is_last || of.elems() != of.dims[axis] {
            return Err("it is no softmax of the result".into());
        }
        self.softmax = Some(read(node));
        Ok(x)
    }

    fn map(&mut self, node: &values::Node, expr: &Expr, images: &[NodeId]) -> Result<NodeId, Failed> {
        if let ([a, b], true) = (images, is_sum(expr)) {
            let types = node.inputs.iter().flatten().map(|&id| self.from.value(id));
            let same = types.clone().all(|of| *of == *self.from.value(node.outputs[0]));
            return if same {
                Ok(self.push(node, Op::Add(Activation::None), vec![*a, *b]))
            } else {
                Err("its operands differ in shape".into())
            };
        }
        let &[x] = images else { return Err("no kernel computes it of several images".into()) };
        let at =
            node.inputs.iter().position(|id| id.is_some_and(|id| !self.is_constant(id))).expect("an image is read");
        if let Some(bound) = self.bound(node, expr, at)? {
            return self.activation(node, bound, x);
        }
        let (slope, offset) = affine(expr, at).ok_or(Failed::Why("no kernel computes this expression"))?;
        let [slope, offset] = [self.vector(node, &slope)?, self.vector(node, &offset)?];
        self.scaled(node, slope, offset, x)
    }

    /// The bound that an expression of one image is, if it is one: whether from above, and where.
    fn bound(&mut self, node: &values::Node, expr: &Expr, at: usize) -> Result<Option<(bool, f64)>, Failed> {
        let Expr::Binary(op @ (Binary::Max | Binary::Min), of) = expr else { return Ok(None) };
        let limit = match (&of[0], &of[1]) {
            (Expr::Arg(x), limit) | (limit, Expr::Arg(x)) if *x == at => limit,
            _ => return Ok(None),
        };
        let limit = match limit {
            Expr::Const(_, Number::Float(limit)) => *limit,
            Expr::Arg(other) => {
                let id = node.inputs[*other].expect("an expression reads what is there");
                match self.from.value(id).elems() {
                    1 => self.tensor(id)?.to_f64s()[0],
                    _ => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        Ok(Some((*op == Binary::Min, limit)))
    }

    fn activation(&mut self, node: &values::Node, bound: (bool, f64), x: NodeId) -> Result<NodeId, Failed> {
        match (bound, &self.nodes[x.0]) {
            ((false, 0.0), _) => Ok(self.push(node, Op::Activation(Activation::Relu), vec![x])),
            ((true, 6.0), Node { op: Op::Activation(Activation::Relu), inputs, .. }) => {
                let inputs = inputs.clone();
                Ok(self.push(node, Op::Activation(Activation::Relu6), inputs))
            }
            _ => Err("it bounds its operand by other numbers than 0 and 6".into()),
        }
    }

    /// slope * x + offset, for each channel: a linear layer's bias, or a batch norm.
    fn scaled(&mut self, node: &values::Node, slope: Tensor, offset: Tensor, x: NodeId) -> Result<NodeId, Failed> {
        let is_one = slope.elems::<f32>().iter().all(|&slope| slope == 1.0);
        let is_read_once = self.from.nodes.iter().filter(|n| n.inputs.contains(&Some(self.image(node)))).count() == 1;
        let bias = match &self.nodes[x.0].op {
            Op::Linear(Linear { bias: None, .. }) if is_one && is_read_once => {
                Some(self.keep(node, "bias", offset.clone()))
            }
            _ => None,
        };
        if let (Some(name), Op::Linear(linear)) = (bias, &mut self.nodes[x.0].op) {
            linear.bias = Some(name);
            return Ok(x);
        }
        let channels = [offset.value_type().dims[0]];
        let constant = |value: f32| Tensor::of(&channels, &vec![value; channels[0]]);
        let norm = BatchNorm {
            gamma: self.keep(node, "slope", slope),
            beta: self.keep(node, "offset", offset),
            mean: self.keep(node, "mean", constant(0.0)),
            var: self.keep(node, "variance", constant(1.0)),
            eps: 0.0,
        };
        Ok(self.push(node, Op::BatchNorm(norm), vec![x]))
    }

    /// The one value of a map that is no constant.
    fn image(&self, node: &values::Node) -> ValueId {
        *node.inputs.iter().flatten().find(|id| !self.is_constant(**id)).expect("an image is read")
    }

    /// An expression of a map's constants, f64, as one f32 for each channel.
    fn vector(&mut self, node: &values::Node, expr: &Expr) -> Result<Tensor, Failed> {
        let of = self.from.value(node.outputs[0]);
        let channels = *of.dims.last().ok_or(Failed::Why("it has no channels"))?;
        let mut tensors = Vec::new();
        for id in &node.inputs {
            let id = id.expect("an expression reads what is there");
            // The image itself is in neither expression.
            tensors.push(if self.is_constant(id) { self.tensor(id)? } else { Tensor::of(&[], &[0.0_f32]) });
        }
        let per_channel = |tensor: &Tensor| tensor.value_type().dims.iter().rev().skip(1).all(|&dim| dim == 1);
        if !tensors.iter().all(per_channel) {
            return Err("its constants differ between pixels".into());
        }
        let dims = vec![1; of.rank() - 1].into_iter().chain([channels]).collect::<Vec<_>>();
        let spread = Tensor::of(&dims, &vec![0.0_f64; channels]);
        let all: Vec<Option<&Tensor>> = tensors.iter().chain([&spread]).map(Some).collect();
        let whole = (expr.clone() + Expr::arg(tensors.len())).cast(Dtype::F32);
        let result = loops::compute(&values::Op::Map(whole), &all, &[ValueType::new(Dtype::F32, &dims)])?.remove(0);
        Ok(result.cast(ValueType::new(Dtype::F32, &[channels])))
    }

    fn is_constant(&self, id: ValueId) -> bool {
        match self.from.values[id.0].origin {
            Origin::Input(_) => false,
            Origin::Constant(_) => true,
            Origin::Node(node, _) => self.from.nodes[node.0].inputs.iter().flatten().all(|&id| self.is_constant(id)),
        }
    }

    /// The name of a constant among the weights; one that is computed is kept under a new one.
    fn named(&mut self, node: &values::Node, part: &str, id: ValueId) -> Result<String, Failed> {
        match self.from.constant(id) {
            Some(Constant::Weight(name)) => Ok(name.clone()),
            _ => {
                let tensor = self.tensor(id)?;
                Ok(self.keep(node, part, tensor))
            }
        }
    }

    fn keep(&mut self, node: &values::Node, part: &str, tensor: Tensor) -> String {
        let name = format!("{} ({part})", node.name);
        self.computed.push((name.clone(), tensor));
        name
    }

    fn tensor(&self, id: ValueId) -> Result<Tensor, Error> {
        let outputs = vec![values::Port { name: "constant".into(), value: id }];
        let alone = values::simplify(&values::Graph { inputs: Vec::new(), outputs, ..self.from.clone() });
        Ok(loops::evaluate(&alone, &mut |name, of| self.weights.read_as(name, of), &[])?.remove(0))
    }

    fn push(&mut self, node: &values::Node, op: Op, inputs: Vec<NodeId>) -> NodeId {
        self.nodes.push(Node { name: node.name.clone(), op, inputs });
        NodeId(self.nodes.len() - 1)
    }
}

fn read(node: &values::Node) -> ValueId {
    node.inputs[0].expect("its first operand is there")
}

fn is_sum(expr: &Expr) -> bool {
    matches!(expr, Expr::Binary(Binary::Add, of) if matches!(&**of, [Expr::Arg(0), Expr::Arg(1)] | [Expr::Arg(1), Expr::Arg(0)]))
}

fn window(window: &values::Window) -> Result<Window, Failed> {
    let pair = |of: &[usize]| <[usize; 2]>::try_from(of).map_err(|_| Failed::Why("its window has other axes than two"));
    let [size, stride, dilation] = [pair(&window.size)?, pair(&window.stride)?, pair(&window.dilation)?];
    let [[top, bottom], [left, right]] = window.pad[..] else {
        return Err("its window has other axes than two".into());
    };
    Ok(Window { size, stride, dilation, pad: Pad { top, bottom, left, right } })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Contract, Conv, GraphBuilder, Reduce, Unary};
    use crate::model::interpreter::{Tensors, Xorshift, evaluate};

    const F32: Dtype = Dtype::F32;
    const TO_PLANES: [usize; 4] = [0, 3, 1, 2];

    /// A convolution as importers of planes write it.
    fn conv(g: &mut GraphBuilder, name: &str, x: ValueId, [k, c, r]: [usize; 3], groups: usize) -> ValueId {
        let filter = g.weight(&format!("{name}.weight"), F32, &[k, c, r, r]);
        let pixels = g.node(&format!("{name}.in"), values::Op::Transpose(TO_PIXELS.to_vec()), &[x]);
        let window = values::Window::all(2, r, 1, r / 2);
        let y = g.node(name, values::Op::Conv(Conv { window, groups }), &[pixels, filter]);
        g.node(&format!("{name}.out"), values::Op::Transpose(TO_PLANES.to_vec()), &[y])
    }

    fn scalar(g: &mut GraphBuilder, value: f32) -> ValueId {
        g.constant(F32, &[], value.to_le_bytes().to_vec())
    }

    fn bounded(g: &mut GraphBuilder, name: &str, x: ValueId, (op, at): (Binary, f32)) -> ValueId {
        let at = scalar(g, at);
        g.map(name, Expr::arg(1).binary(op, Expr::arg(0)), &[x, at])
    }

    /// (x - mean) / sqrt(var + eps) * gamma + beta, of planes.
    fn batch_norm(g: &mut GraphBuilder, name: &str, x: ValueId, channels: usize) -> ValueId {
        let vector = |part: &str| (format!("{name}.{part}"), format!("{name}.{part}.column"));
        let mut inputs = vec![x];
        for part in ["mean", "var", "gamma", "beta"] {
            let (name, column) = vector(part);
            let weight = g.weight(&name, F32, &[channels]);
            inputs.push(g.node(&column, values::Op::Reshape(vec![channels, 1, 1]), &[weight]));
        }
        let [x, mean, var, gamma, beta] = [0, 1, 2, 3, 4].map(Expr::arg);
        let spread = (var + Expr::float(F32, 1e-5)).unary(Unary::Sqrt);
        g.map(name, (x - mean) / spread * gamma + beta, &inputs)
    }

    /// A network with everything that is recognised.
    fn network_of_planes() -> values::Graph {
        let mut g = GraphBuilder::new();
        let image = g.input("image", F32, &[1, 3, 9, 7]);
        let half = scalar(&mut g, 0.5);
        let x = g.map("centred", Expr::arg(0) - Expr::arg(1), &[image, half]);
        let x = conv(&mut g, "stem", x, [8, 3, 3], 1);
        let x = batch_norm(&mut g, "bn", x, 8);
        let x = bounded(&mut g, "relu", x, (Binary::Max, 0.0));
        let x = bounded(&mut g, "six", x, (Binary::Min, 6.0));
        let y = conv(&mut g, "depthwise", x, [8, 1, 3], 8);
        let y = g.map("relu2", Expr::arg(0).binary(Binary::Max, Expr::float(F32, 0.0)), &[y]);
        let y = conv(&mut g, "pointwise", y, [8, 8, 1], 1);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        let pixels = g.node("pool.in", values::Op::Transpose(TO_PIXELS.to_vec()), &[sum]);
        let window = values::Window::all(2, 3, 2, 1);
        let pool = values::Pool { op: PoolOp::Max, window };
        let pooled = g.node("pool", values::Op::Pool(pool), &[pixels]);
        let planes = g.node("pool.out", values::Op::Transpose(TO_PLANES.to_vec()), &[pooled]);
        let both = g.node("both", values::Op::Concat(1), &[planes, planes]);
        let mean = Reduce { op: ReduceOp::Mean, axes: vec![2, 3], keep: true };
        let mean = g.node("mean", values::Op::Reduce(mean), &[both]);
        let flat = g.node("flat", values::Op::Reshape(vec![1, 16]), &[mean]);
        let weight = g.weight("fc.weight", F32, &[16, 5]);
        let bias = g.weight("fc.bias", F32, &[5]);
        let fc = g.node("fc", values::Op::Contract(Contract::matmul(2, 2)), &[flat, weight]);
        let logits = g.map("logits", Expr::arg(0) + Expr::arg(1), &[fc, bias]);
        let result = g.node("softmax", values::Op::Softmax { axis: 1, log: false }, &[logits]);
        g.output("probabilities", result);
        g.finish().unwrap()
    }

    fn random_weights(graph: &values::Graph, random: &mut Xorshift) -> Weights {
        let named = graph.values.iter().filter_map(|value| match &value.origin {
            Origin::Constant(Constant::Weight(name)) => Some((name.clone(), value.of.clone())),
            _ => None,
        });
        let values = named.map(|(name, of)| {
            let var = name.ends_with("var");
            let value = |_| if var { 0.5 + random.signed().abs() } else { random.signed() } as f32;
            (name, of.dims.clone(), (0..of.elems()).map(value).collect())
        });
        Weights::from_tensors(values.collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_network_of_planes_in_pieces_is_one_of_images() {
        let graph = network_of_planes();
        let mut random = Xorshift(9);
        let weights = random_weights(&graph, &mut random);
        let found = network(&graph, &weights).unwrap();
        let kinds: Vec<_> = found.graph.nodes.iter().map(|node| node.op.kind()).collect();
        let of = |kind| kinds.iter().filter(|found| **found == kind).count();
        assert_eq!((of("conv2d"), of("batch_norm"), of("activation"), of("add"), of("linear")), (3, 2, 2, 1, 1));

        let pixels: Vec<f32> = (0..9 * 7 * 3).map(|_| random.signed() as f32).collect();
        let turned = values::Op::Transpose(TO_PLANES.to_vec());
        let planes = ValueType::new(F32, &[1, 3, 9, 7]);
        let x = loops::compute(&turned, &[Some(&Tensor::of(&[1, 9, 7, 3], &pixels))], &[planes]).unwrap();
        let expected = loops::evaluate(&graph, &mut |name, of| weights.read_as(name, of), &x).unwrap();

        let weights = weights.with(found.computed).unwrap();
        let all: Tensors =
            weights.names().map(|name| (name.to_owned(), weights.read(name).unwrap().to_f64s())).collect();
        let pixels: Vec<f64> = pixels.into_iter().map(f64::from).collect();
        let logits = evaluate(&found.graph, &all, &pixels)[found.graph.output.0].clone();
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        for (logit, expected) in logits.iter().zip(expected[0].to_f64s()) {
            assert!((logit.exp() / sum - expected).abs() < 1e-5, "{logits:?}, {expected}");
        }
    }

    #[test]
    fn everything_that_is_not_of_a_network_of_images_is_told_at_once() {
        let mut g = GraphBuilder::new();
        let x = g.input("image", F32, &[1, 3, 8, 8]);
        let x = conv(&mut g, "stem", x, [4, 3, 3], 1);
        let a = g.map("erf", Expr::arg(0).unary(Unary::Erf), &[x]);
        let b = bounded(&mut g, "five", x, (Binary::Min, 5.0));
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[a, b]);
        g.output("y", sum);
        let graph = g.finish().unwrap();
        let weights = random_weights(&graph, &mut Xorshift(1));
        let error = network(&graph, &weights).err().unwrap().to_string();
        assert!(error.contains("`erf`") && error.contains("`five`") && !error.contains("`sum`"), "{error}");
    }
}
