//! From a rewritten graph to steps: one launch for each node that no other computes too, normalisation before them,
//! output rows after them.

use super::tensors::{Draft, Growing};
use super::{
    ChainTile, HaloTile, Joined, Kernel, PartOf, Plan, Request, Stem, StemTile, StepOp, Tail, TailTile, Tensor,
    TensorId, chain, concat, expand, join, select, stem, tail,
};
use crate::error::Error;
use crate::model::{self, Conv2d, Graph, Linear, Node, NodeId, Op, Window};
use crate::plan::Family;
use crate::plan::depthwise::{self, DepthwiseShape, DepthwiseTile};
use crate::plan::linear::{self, LinearShape};
use crate::plan::sm90::{self, ConvShape};
use crate::tensor::{Activation, Dtype, OutputKind, Shape, TensorSpec};

/// Rewrites `graph` and lowers it. Steps have no lanes yet, tensors no offsets.
pub(super) fn lower(graph: &Graph, request: &Request<'_>) -> Result<Plan, Error> {
    if !(1..=MAX_BATCH).contains(&request.batch) {
        return Err(Error::option("batch", request.batch, format!("1 to {MAX_BATCH}")));
    }
    let graph = model::optimize(graph);
    let shapes = model::infer(&graph)?;
    let joined = join::joined(&graph, &shapes, request)?;
    let expanded = expand::expanded(&graph, &shapes, request);
    let taken = |id| joined.values().any(|&added| added == id) || expanded.values().any(|&(expand, _)| expand == id);
    let stem = stem::find(&graph, &shapes, request);
    let tail = tail::find(&graph, &shapes, request);
    let parts = concat::parts(&graph, &shapes, request)?;
    let is_taken = |id: NodeId| taken(id) || parts[id.0].is_some();
    let chained = chain::chained(&graph, &shapes, request, &joined, is_taken);
    let plan = Growing::new(request, &shapes, parts);
    let mut lowering = Lowering { request, shapes: &shapes, plan };
    if let Some((nodes, stem, tile)) = stem {
        lowering.stem(&graph.nodes[..nodes], stem, tile);
    }
    let lowered = lowering.plan.nodes();
    for (index, node) in graph.nodes.iter().enumerate().skip(lowered) {
        let inputs: Vec<TensorId> = node.inputs.iter().map(|&id| lowering.plan.of(id)).collect();
        lowering.check_types(&node.name, &inputs)?;
        let is_in_tail = tail.as_ref().is_some_and(|(mean, ..)| [*mean, graph.output].contains(&NodeId(index)));
        if taken(NodeId(index)) || is_in_tail {
            // What the node that computes it reads in its place.
            lowering.plan.pass(inputs[0]);
            continue;
        }
        if let Some((first, _)) = chained.iter().find(|(_, (next, _))| *next == NodeId(index)) {
            let z = lowering.plan.also_of(lowering.plan.of(*first));
            lowering.plan.pass(z);
            continue;
        }
        if node.op == Op::Concat {
            lowering.concat(&graph, index);
            continue;
        }
        let step = match &node.op {
            Op::Input => lowering.normalize(index),
            Op::Conv2d(conv) if expanded.contains_key(&NodeId(index)) => {
                let (expand, tile) = expanded[&NodeId(index)];
                lowering.expand_depthwise(index, conv, &graph.nodes[expand.0], tile, inputs[0])
            }
            Op::Conv2d(conv) if chained.contains_key(&NodeId(index)) => {
                let (next, tile) = chained[&NodeId(index)];
                let joined = joined.get(&NodeId(index)).map(|added| &graph.nodes[added.0]);
                lowering.chain(index, conv, joined, &graph.nodes[next.0], tile, &inputs)
            }
            Op::Conv2d(conv) if joined.contains_key(&NodeId(index)) => {
                let added = &graph.nodes[joined[&NodeId(index)].0];
                lowering.conv_sum(index, &node.name, conv, added, &inputs)?
            }
            Op::Conv2d(conv) => lowering.conv(index, &node.name, conv, &inputs)?,
            Op::Linear(linear) => lowering.linear(index, &node.name, linear, &inputs)?,
            Op::MaxPool(pool) => lowering.simple(index, StepOp::MaxPool(*pool), window_ops(pool.window.size)),
            Op::AvgPool(pool) => lowering.simple(index, StepOp::AvgPool(*pool), window_ops(pool.window.size)),
            Op::GlobalAvgPool => {
                let pixels = lowering.tensor(inputs[0]).shape.pixels();
                lowering.simple(index, StepOp::GlobalAvgPool, pixels as u64)
            }
            Op::Add(activation) => lowering.simple(index, StepOp::Add(*activation), inputs.len() as u64),
            Op::Activation(activation) => lowering.simple(index, StepOp::Add(*activation), 1),
            Op::Concat => unreachable!("no step of its own, as was just seen"),
            Op::BatchNorm(_) => {
                return Err(Error::Unsupported {
                    what: format!("node `{}`: a batch norm that no convolution feeds alone", node.name),
                    instead: "let each batch norm follow its own convolution".into(),
                });
            }
        };
        lowering.plan.push(&node.name, step, inputs);
    }
    let last = lowering.plan.of(graph.output);
    match tail {
        Some((_, tail, tile)) => lowering.tail(&graph.nodes[graph.output.0].name, tail, tile, last)?,
        None => lowering.emit(last)?,
    }
    Ok(lowering.plan.finish())
}

/// Makes a draft of each step; the tensors are the growing plan's.
struct Lowering<'a> {
    request: &'a Request<'a>,
    shapes: &'a [Shape],
    plan: Growing<'a>,
}

impl Lowering<'_> {
    fn family(&self) -> Family {
        self.request.limits.family
    }

    fn tensor(&self, id: TensorId) -> &Tensor {
        self.plan.tensor(id)
    }

    /// Every kernel but the last reads activations of the family's type; a linear layer's result is f32.
    fn check_types(&self, name: &str, inputs: &[TensorId]) -> Result<(), Error> {
        let wanted = self.family().dtype();
        match inputs.iter().map(|&id| self.tensor(id).dtype).find(|&found| found != wanted) {
            None => Ok(()),
            Some(found) => Err(Error::Unsupported {
                what: format!("node `{name}`: reading the {found} result of a linear layer"),
                instead: "let the linear layer be the last node, or run it with `--device cpu`".into(),
            }),
        }
    }

    /// The family's one kernel of an operation that has no variants.
    fn only_kernel(&self) -> Kernel {
        match self.family() {
            Family::Cpu => Kernel::Cpu,
            Family::Sm80 => Kernel::Sm80,
        }
    }

    /// The step of the first `nodes`, by the convolution's name.
    fn stem(&mut self, nodes: &[Node], stem: Stem, tile: StemTile) {
        let last = nodes.len() - 1;
        let terms = stem.conv.window.size.iter().product::<usize>() * self.shapes[0].channels;
        let elems = |shape: Shape| (self.request.batch * shape.elems()) as u64;
        let max = stem.pool.map_or(0, |pool| window_ops(pool.window.size) * elems(self.shapes[last]));
        let draft = Draft {
            kernel: Kernel::Sm90Stem(tile),
            shape: self.shapes[last],
            also: None,
            dtype: self.family().dtype(),
            flops: 2 * elems(self.shapes[0]) + 2 * terms as u64 * elems(stem.conv_shape) + max,
            weight_bytes: (stem.conv.out_channels * (terms * self.family().dtype().bytes() + 4)) as u64,
            op: StepOp::Stem(stem),
        };
        self.plan.push_first(nodes.len(), &nodes[1].name, draft);
    }

    fn normalize(&self, node: usize) -> Draft {
        let Request { preprocessing, .. } = self.request;
        let op = StepOp::Normalize { mean: preprocessing.mean.clone(), std: preprocessing.std.clone() };
        self.simple(node, op, 2)
    }

    /// A step without weights, `ops` operations for each element of its result.
    fn simple(&self, node: usize, op: StepOp, ops: u64) -> Draft {
        let shape = self.shapes[node];
        Draft {
            op,
            kernel: self.only_kernel(),
            shape,
            also: None,
            dtype: self.family().dtype(),
            flops: self.request.batch as u64 * shape.elems() as u64 * ops,
            weight_bytes: 0,
        }
    }

    fn conv(&self, node: usize, name: &str, conv: &Conv2d, inputs: &[TensorId]) -> Result<Draft, Error> {
        let shape = self.shapes[node];
        let channels = self.tensor(inputs[0]).shape.channels;
        let taps = conv.window.size.iter().product::<usize>();
        let k_gemm = taps * channels / conv.groups;
        let m_gemm = self.request.batch * shape.pixels();
        let depthwise = conv.groups > 1 && conv.groups == channels && conv.out_channels == channels;
        if conv.groups > 1 && !depthwise {
            return Err(Error::Unsupported {
                what: format!("node `{name}`: a convolution of {} groups over {channels} channels", conv.groups),
                instead: "one group, or depthwise with as many output as input channels".into(),
            });
        }
        if depthwise && inputs.len() > 1 {
            return Err(Error::Unsupported {
                what: format!("node `{name}`: a residual added by a depthwise convolution"),
                instead: "add it after the convolution".into(),
            });
        }
        let (op, kernel) = if depthwise {
            (
                StepOp::Depthwise(conv.clone()),
                self.depthwise_kernel(name, self.tensor(inputs[0]).shape, shape, conv.window)?,
            )
        } else {
            let whole = ConvShape::stored(self.request, self.tensor(inputs[0]).shape, shape, conv.window);
            (StepOp::Conv(conv.clone()), self.conv_kernel(name, &whole, [m_gemm, conv.out_channels, k_gemm])?)
        };
        Ok(Draft {
            op,
            kernel,
            shape,
            also: None,
            dtype: self.family().dtype(),
            flops: 2 * m_gemm as u64 * conv.out_channels as u64 * k_gemm as u64,
            weight_bytes: (conv.out_channels * (k_gemm * self.family().dtype().bytes() + 4)) as u64,
        })
    }

    /// A dense convolution and the one joined to it: the step's two inputs are theirs.
    fn conv_sum(
        &self,
        node: usize,
        name: &str,
        conv: &Conv2d,
        added: &Node,
        inputs: &[TensorId],
    ) -> Result<Draft, Error> {
        let Op::Conv2d(joined) = &added.op else { unreachable!("only convolutions are joined") };
        let (limits, shape) = (self.request.limits, self.shapes[node]);
        let windows = [conv.window, joined.window];
        let [own, other] =
            [0, 1].map(|i| ConvShape::stored(self.request, self.tensor(inputs[i]).shape, shape, windows[i]));
        let kernel = match self.request.choices.get(name) {
            Some(&kernel @ Kernel::Sm90Conv { .. }) => kernel,
            Some(&kernel) => return Err(not_a_choice(name, kernel)),
            None => select::sm90_kernel(limits, &[own, other]).ok_or_else(|| not_a_choice(name, Kernel::Joined))?.0,
        };
        let taps = windows.map(|window| window.size.iter().product::<usize>());
        let k_gemm: usize = [0, 1].map(|i| taps[i] * self.tensor(inputs[i]).shape.channels).iter().sum();
        let joined = Box::new(Joined { name: added.name.clone(), conv: joined.clone() });
        Ok(Draft {
            op: StepOp::ConvSum { conv: conv.clone(), joined },
            kernel,
            shape,
            also: None,
            dtype: self.family().dtype(),
            flops: 2 * (self.request.batch * shape.pixels() * conv.out_channels) as u64 * k_gemm as u64,
            weight_bytes: (conv.out_channels * (k_gemm * self.family().dtype().bytes() + 4)) as u64,
        })
    }

    /// A 1x1 convolution, or the sum of two, and another of its result.
    fn chain(
        &self,
        node: usize,
        conv: &Conv2d,
        joined: Option<&Node>,
        next: &Node,
        tile: ChainTile,
        inputs: &[TensorId],
    ) -> Draft {
        let of = |node: &Node| match &node.op {
            Op::Conv2d(conv) => Box::new(Joined { name: node.name.clone(), conv: conv.clone() }),
            _ => unreachable!("only convolutions are chained"),
        };
        let (shape, next) = (self.shapes[node], of(next));
        let sources = if joined.is_some() { 2 } else { 1 };
        let channels: usize = inputs[..sources].iter().map(|&id| self.tensor(id).shape.channels).sum();
        let weights = [(conv.out_channels, channels), (next.conv.out_channels, conv.out_channels)];
        let elem_bytes = self.family().dtype().bytes();
        Draft {
            kernel: Kernel::Sm90Chain(tile),
            shape,
            also: Some(Shape { channels: next.conv.out_channels, ..shape }),
            dtype: self.family().dtype(),
            flops: weights.map(|(k, c)| 2 * (self.request.batch * shape.pixels() * k * c) as u64).iter().sum(),
            weight_bytes: weights.map(|(k, c)| (k * (c * elem_bytes + 4)) as u64).iter().sum(),
            op: StepOp::Chain { conv: conv.clone(), joined: joined.map(of), next },
        }
    }

    fn linear(&self, node: usize, name: &str, linear: &Linear, inputs: &[TensorId]) -> Result<Draft, Error> {
        let k_gemm = self.tensor(inputs[0]).shape.channels;
        let n_gemm = linear.out_features;
        let Request { limits, batch, choices, .. } = *self.request;
        let [channels, outputs] = [k_gemm, n_gemm].map(|count| count.next_multiple_of(self.family().channel_align()));
        let shape = LinearShape { batch, channels, outputs };
        let kernel = match (self.family(), choices.get(name)) {
            (Family::Cpu, _) => Kernel::Cpu,
            (Family::Sm80, None) => linear::kernel(&shape, limits),
            (Family::Sm80, Some(&kernel @ Kernel::Sm80Gemm(_))) => kernel,
            (Family::Sm80, Some(&kernel @ Kernel::Sm90Linear(tile))) if limits.has_sm90_kernels() => {
                linear::check(&shape, tile, limits).map(|()| kernel)?
            }
            (Family::Sm80, Some(&other)) => return Err(not_a_choice(name, other)),
        };
        Ok(Draft {
            op: StepOp::Linear(linear.clone()),
            kernel,
            shape: self.shapes[node],
            also: None,
            dtype: Dtype::F32,
            flops: 2 * (batch * n_gemm) as u64 * k_gemm as u64,
            weight_bytes: (n_gemm * (k_gemm * self.family().dtype().bytes() + 4)) as u64,
        })
    }

    fn conv_kernel(&self, name: &str, conv: &ConvShape, mnk: [usize; 3]) -> Result<Kernel, Error> {
        let limits = self.request.limits;
        match (self.family(), self.request.choices.get(name)) {
            (Family::Cpu, _) => Ok(Kernel::Cpu),
            (Family::Sm80, None) => Ok(select::conv_kernel(limits, conv, mnk).0),
            (Family::Sm80, Some(&kernel @ Kernel::Sm80Gemm(_))) => Ok(kernel),
            (Family::Sm80, Some(&kernel @ Kernel::Sm90Conv { .. })) if limits.has_sm90_kernels() => {
                sm90::check(conv).map(|()| kernel)
            }
            (Family::Sm80, Some(&kernel @ Kernel::Sm90Halo)) if HaloTile::of(conv, limits).is_some() => Ok(kernel),
            (Family::Sm80, Some(&other)) => Err(not_a_choice(name, other)),
        }
    }

    /// A depthwise convolution and the 1x1 convolution whose result it reads.
    fn expand_depthwise(
        &self,
        node: usize,
        conv: &Conv2d,
        expand: &Node,
        tile: DepthwiseTile,
        input: TensorId,
    ) -> Draft {
        let Op::Conv2d(first) = &expand.op else { unreachable!("only convolutions are expanded") };
        let (input, shape, channels) = (self.tensor(input).shape, self.shapes[node], conv.out_channels);
        let taps = conv.window.size.iter().product::<usize>();
        let products = input.pixels() * input.channels + shape.pixels() * taps;
        let expand = Box::new(Joined { name: expand.name.clone(), conv: first.clone() });
        Draft {
            op: StepOp::ExpandDepthwise { expand, conv: conv.clone() },
            kernel: Kernel::Sm90Expand(tile),
            shape,
            also: None,
            dtype: self.family().dtype(),
            flops: 2 * (self.request.batch * channels * products) as u64,
            weight_bytes: (channels * ((input.channels + taps) * self.family().dtype().bytes() + 8)) as u64,
        }
    }

    fn depthwise_kernel(&self, name: &str, input: Shape, output: Shape, window: Window) -> Result<Kernel, Error> {
        let Request { limits, choices, .. } = *self.request;
        let shape = DepthwiseShape::stored(self.request, input, output, window, false);
        match (self.family(), choices.get(name)) {
            (Family::Cpu, _) => Ok(Kernel::Cpu),
            (Family::Sm80, None) => {
                Ok(depthwise::tile(&shape, limits).map_or(Kernel::Sm80, |(tile, _)| Kernel::Sm90Depthwise(tile)))
            }
            (Family::Sm80, Some(Kernel::Sm80)) => Ok(Kernel::Sm80),
            (Family::Sm80, Some(&kernel @ Kernel::Sm90Depthwise(tile)))
                if limits.has_sm90_kernels() && shape.grid(tile, limits).is_some() =>
            {
                Ok(kernel)
            }
            (Family::Sm80, Some(&other)) => Err(not_a_choice(name, other)),
        }
    }

    /// The last step: writes the output rows.
    fn emit(&mut self, result: TensorId) -> Result<(), Error> {
        let Tensor { shape, dtype, .. } = *self.tensor(result);
        let output = self.request.output;
        let is_vector = dtype == Dtype::F32 && shape.pixels() == 1;
        if output != OutputKind::Features && !is_vector {
            return Err(Error::Unsupported {
                what: format!("output {output:?} of a graph that does not end in a linear layer"),
                instead: "ask for features".into(),
            });
        }
        check_top_k(output, shape.channels)?;
        let spec = output_spec(output, shape);
        let draft = Draft {
            op: StepOp::Emit(output),
            kernel: self.only_kernel(),
            shape: spec.shape,
            also: None,
            dtype: spec.dtype,
            flops: 0,
            weight_bytes: 0,
        };
        self.plan.push_last("output", draft, result, &spec);
        Ok(())
    }

    /// The last step with the mean and the linear layer, by whose name it is called.
    fn tail(&mut self, name: &str, tail: Tail, tile: TailTile, input: TensorId) -> Result<(), Error> {
        let (x, classes) = (self.tensor(input).shape, tail.linear.out_features);
        check_top_k(tail.output, classes)?;
        let spec = output_spec(tail.output, Shape::vector(classes));
        let draft = Draft {
            kernel: Kernel::Sm90Tail(tile),
            shape: spec.shape,
            dtype: spec.dtype,
            flops: (self.request.batch * (x.elems() + 2 * x.channels * classes)) as u64,
            weight_bytes: (classes * (x.channels * self.family().dtype().bytes() + 4)) as u64,
            op: StepOp::Tail(tail),
            also: None,
        };
        self.plan.push_last(name, draft, input, &spec);
        Ok(())
    }

    /// The operands of a concatenation are written into its tensor; what could not be is copied there.
    fn concat(&mut self, graph: &Graph, index: usize) {
        let node = &graph.nodes[index];
        let whole = self.plan.whole(NodeId(index));
        let firsts = concat::first_channels(graph, self.shapes, index);
        for (operand, (&input, first_channel)) in node.inputs.iter().zip(firsts).enumerate() {
            if !self.plan.is_part(input, NodeId(index)) {
                let (draft, copied) = (self.simple(input.0, StepOp::Add(Activation::None), 0), self.plan.of(input));
                let part = PartOf { of: whole, first_channel };
                self.plan.push_into(&format!("{}.{operand}", node.name), draft, vec![copied], Some(part));
            }
        }
        self.plan.pass(whole);
    }
}

pub(super) fn not_a_choice(name: &str, kernel: Kernel) -> Error {
    Error::Unsupported {
        what: format!("node `{name}`: the chosen kernel {kernel:?}"),
        instead: "choose one of the operation, for this device".into(),
    }
}

fn check_top_k(output: OutputKind, classes: usize) -> Result<(), Error> {
    let most = MAX_TOP_K.min(classes);
    match output {
        OutputKind::TopK(k) if !(1..=most).contains(&k) => {
            Err(Error::option("top-k", k, format!("1 to {most} (the model has {classes} classes)")))
        }
        _ => Ok(()),
    }
}

/// The largest batch that a plan is made for.
const MAX_BATCH: usize = 1 << 20;

/// The most classes that a top-k output gives.
const MAX_TOP_K: usize = 64;

/// The rows that an output of a result of `shape` has. Top-k pairs count as two f32-sized channels each.
fn output_spec(output: OutputKind, shape: Shape) -> TensorSpec {
    match output {
        OutputKind::TopK(k) => TensorSpec::new(Dtype::F32, Shape::vector(2 * k)),
        _ => TensorSpec::new(Dtype::F32, shape),
    }
}

fn window_ops([r, s]: [usize; 2]) -> u64 {
    (r * s) as u64
}
