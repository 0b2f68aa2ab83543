//! The graph in which kernels look for their operations, and the matches that they find.

use super::concat::ConcatPart;
use super::work::{Operand, Work};
use super::{Choices, Kernel, Limits, QuantizedConv, QuantizedDepthwise, StepOp, kernels, rows};
use crate::error::Error;
use crate::model::images::Network;
use crate::model::{Conv2d, Node, NodeId, Op, Pool, Preprocessing, never_negative};
use crate::tensor::{Activation, Dtype, InputFormat, Shape};

/// A rewritten graph, whose rows are nodes, and the target of its plan.
pub(crate) struct Context<'a> {
    pub(crate) graph: &'a Network,
    pub(crate) shapes: &'a [Shape],
    pub(crate) target: PlanTarget<'a>,
    /// The part of a concatenation that each node writes; `None` for a node that writes none.
    pub(super) parts: Vec<Option<ConcatPart>>,
    /// The nodes that read each node's value.
    readers: Vec<Vec<NodeId>>,
    /// Whether each node's value is never negative.
    never_negative: Vec<bool>,
}

/// The device, the batch and the chosen kernels for which a network is planned.
#[derive(Clone, Copy)]
pub(crate) struct PlanTarget<'a> {
    pub(crate) limits: &'a Limits,
    pub(crate) batch: usize,
    pub(crate) choices: &'a Choices,
}

/// Nodes that one step would compute.
#[derive(Clone, Debug)]
pub(crate) struct Match {
    /// The name of the step, which is that of one of the nodes.
    pub(crate) name: String,
    /// The operation that the step computes.
    pub(crate) op: StepOp,
    /// The kernel; `None` for the kernel that the program chose, or else the best one.
    pub(crate) kernel: Option<Kernel>,
    /// The node whose place in the order the step takes.
    pub(crate) place: NodeId,
    /// The nodes that the step computes.
    pub(crate) covers: Vec<NodeId>,
    /// The nodes whose values the step reads.
    pub(crate) reads: Vec<NodeId>,
    /// The covered nodes whose values the step writes.
    pub(crate) writes: Vec<NodeId>,
    /// The clocks that the step saves against the best kernel of each node.
    pub(crate) saved: f64,
}

/// The clocks that a match chosen by the program counts as saving: more than all other matches together.
pub(crate) const CHOSEN: f64 = 1e15;
/// The clocks that a match counts as saving if it was faster in every measurement and its nodes have no prediction.
pub(crate) const ALWAYS: f64 = 1e12;

impl<'a> Context<'a> {
    pub(super) fn new(
        graph: &'a Network,
        shapes: &'a [Shape],
        target: PlanTarget<'a>,
        parts: Vec<Option<ConcatPart>>,
    ) -> Self {
        let mut readers = vec![Vec::new(); graph.nodes.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            node.inputs.iter().for_each(|input| readers[input.0].push(NodeId(index)));
        }
        Self { graph, shapes, target, parts, readers, never_negative: never_negative(graph) }
    }

    pub(crate) fn limits(&self) -> &'a Limits {
        self.target.limits
    }

    /// The node with this number.
    pub(crate) fn node(&self, id: NodeId) -> &'a Node {
        &self.graph.nodes[id.0]
    }

    /// The rows that the normalisation at node `id` reads, their format, and the preprocessing; `None` for any other
    /// operation.
    pub(crate) fn normalized(&self, id: NodeId) -> Option<(NodeId, InputFormat, &'a Preprocessing)> {
        match self.node(id) {
            Node { op: Op::Normalize(format, preprocessing), inputs, .. } => Some((inputs[0], *format, preprocessing)),
            _ => None,
        }
    }

    /// The nodes that read a node's value.
    pub(crate) fn readers(&self, id: NodeId) -> &[NodeId] {
        &self.readers[id.0]
    }

    /// The dense convolution of floats at node `id`, and its inputs; `None` for any other operation.
    pub(crate) fn dense(&self, id: NodeId) -> Option<(&'a Conv2d, &'a [NodeId])> {
        match self.node(id) {
            Node { op: Op::Conv2d(conv), inputs, scale: None, .. } if conv.groups == 1 => Some((conv, inputs)),
            _ => None,
        }
    }

    /// The dense convolution of bytes at node `id`, its inputs, and the scale of its result; `None` for any other
    /// operation.
    pub(crate) fn dense_in_bytes(&self, id: NodeId) -> Option<(&'a Conv2d, &'a [NodeId], f32)> {
        match self.node(id) {
            Node { op: Op::Conv2d(conv), inputs, scale: Some(scale), .. } if conv.groups == 1 => {
                Some((conv, inputs, *scale))
            }
            _ => None,
        }
    }

    /// The maximum over windows at node `id`; `None` for any other operation.
    pub(crate) fn max_pool(&self, id: NodeId) -> Option<&'a Pool> {
        match self.node(id) {
            Node { op: Op::MaxPool(pool), .. } => Some(pool),
            _ => None,
        }
    }

    /// The depthwise convolution of floats at node `id`, and its inputs; `None` for any other operation.
    pub(crate) fn depthwise(&self, id: NodeId) -> Option<(&'a Conv2d, &'a [NodeId])> {
        match self.node(id) {
            Node { op: Op::Conv2d(conv), inputs, scale: None, .. }
                if conv.is_depthwise(self.shapes[inputs[0].0].channels) =>
            {
                Some((conv, inputs))
            }
            _ => None,
        }
    }

    /// The kernel that the program has chosen for a node.
    pub(crate) fn chosen(&self, id: NodeId) -> Option<Kernel> {
        self.target.choices.get(&self.node(id).name).copied()
    }

    /// The operand that holds a node's value.
    pub(crate) fn operand(&self, id: NodeId) -> Operand {
        let (node, family) = (self.node(id), self.limits().family);
        if let Op::Rows(..) | Op::Emit(_) = node.op {
            return Operand::rows(self.shapes[id.0], rows::dtype(&node.op, family));
        }
        let dtype = match node.scale {
            None => rows::dtype(&node.op, family),
            Some(_) if self.never_negative[id.0] => Dtype::U8,
            Some(_) => Dtype::I8,
        };
        Operand::activations(self.shapes[id.0], dtype, family)
    }

    /// The work of a match, by which kernels judge it.
    pub(crate) fn work<'m>(&self, of: &'m Match) -> Work<'m> {
        let operands = |ids: &[NodeId]| ids.iter().map(|&id| self.operand(id)).collect::<Vec<_>>();
        let [inputs, outputs] = [&of.reads, &of.writes].map(|ids| operands(ids));
        Work { name: &of.name, op: &of.op, batch: self.target.batch, inputs, outputs }
    }

    /// The match of a single node; `None` for a concatenation, a given value and input rows, which have no step of
    /// their own.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation that no kernel computes.
    pub(crate) fn single(&self, id: NodeId) -> Result<Option<Match>, Error> {
        let node = self.node(id);
        let op = match &node.op {
            Op::Normalize(format, preprocessing) => {
                let [mean, std] = [&preprocessing.mean, &preprocessing.std].map(Clone::clone);
                StepOp::Normalize { format: *format, mean, std }
            }
            Op::Emit(kind) => StepOp::Emit(*kind),
            Op::Conv2d(conv) => match node.scale {
                Some(output_scale) => self.quantized_conv(node, conv, output_scale),
                None => self.conv(node, conv)?,
            },
            Op::Linear(linear) => StepOp::Linear(linear.clone()),
            Op::MaxPool(pool) => StepOp::MaxPool(*pool),
            Op::AvgPool(pool) => StepOp::AvgPool(*pool),
            Op::GlobalAvgPool => match self.scale(node.inputs[0]) {
                Some(scale) => StepOp::QuantizedMean(scale),
                None => StepOp::GlobalAvgPool,
            },
            Op::Activation(Activation::None) => match (self.scale(node.inputs[0]), node.scale) {
                (None, Some(scale)) => StepOp::Quantize(scale),
                (Some(scale), None) => StepOp::Dequantize(scale),
                _ => StepOp::Add(Activation::None),
            },
            Op::Add(activation) | Op::Activation(activation) => StepOp::Add(*activation),
            Op::Concat | Op::Given(_) | Op::Rows(..) => return Ok(None),
            Op::Input => unreachable!("a plan normalises rows"),
            Op::BatchNorm(_) => {
                return Err(Error::Unsupported {
                    what: format!("node `{}`: a batch norm that no convolution feeds alone", node.name),
                    instead: "let each batch norm follow its own convolution".into(),
                });
            }
        };
        Ok(Some(self.alone(&node.name, op, id, node.inputs.clone())))
    }

    fn alone(&self, name: &str, op: StepOp, id: NodeId, reads: Vec<NodeId>) -> Match {
        Match { name: name.into(), op, kernel: None, place: id, covers: vec![id], reads, writes: vec![id], saved: 0.0 }
    }

    /// The number that byte 1 of a node's value stands for; `None` for a value of floats.
    pub(crate) fn scale(&self, id: NodeId) -> Option<f32> {
        self.graph.nodes[id.0].scale
    }

    fn quantized_conv(&self, node: &Node, conv: &Conv2d, output_scale: f32) -> StepOp {
        let input_scale = self.scale(node.inputs[0]).expect("what a convolution of bytes reads is in bytes");
        if conv.is_depthwise(self.shapes[node.inputs[0].0].channels) {
            return StepOp::QuantizedDepthwise(QuantizedDepthwise { conv: conv.clone(), input_scale, output_scale });
        }
        let residual_scale = node.inputs.get(1).and_then(|&id| self.scale(id));
        StepOp::QuantizedConv(QuantizedConv {
            conv: conv.clone(),
            input_scale,
            residual_scale,
            joined: None,
            output_scale,
        })
    }

    fn conv(&self, node: &Node, conv: &Conv2d) -> Result<StepOp, Error> {
        let (name, input) = (&node.name, self.shapes[node.inputs[0].0]);
        if !conv.is_depthwise(input.channels) {
            return Ok(StepOp::Conv(conv.clone()));
        }
        if node.inputs.len() > 1 {
            return Err(Error::Unsupported {
                what: format!("node `{name}`: a residual added by a depthwise convolution"),
                instead: "add it after the convolution".into(),
            });
        }
        Ok(StepOp::Depthwise(conv.clone()))
    }

    /// The predicted clocks of a match's best kernel, if there is a prediction.
    pub(crate) fn clocks(&self, of: &Match) -> Option<f64> {
        kernels::best(&self.work(of), self.limits())?.clocks
    }

    /// The best kernel of a match, and the clocks that it saves against a separate step for each node. `None` if one of
    /// these has no prediction.
    pub(crate) fn saved(&self, of: &Match) -> Result<Option<(Kernel, f64)>, Error> {
        let mut apart = 0.0;
        for &id in &of.covers {
            let alone = self.single(id)?.and_then(|alone| self.clocks(&alone));
            let Some(clocks) = alone else { return Ok(None) };
            apart += clocks;
        }
        let best = kernels::best(&self.work(of), self.limits());
        Ok(best.and_then(|best| Some((best.kernel, apart - best.clocks?))))
    }

    /// Whether the steps can be ordered with this match among them, whatever other matches are taken. Its inputs are
    /// computed before its place, its outputs are read after its place, and no other step reads the values that it does
    /// not write.
    pub(super) fn is_sound(&self, of: &Match) -> bool {
        let is_inside = |id: &NodeId| of.covers.contains(id);
        let kept = of.covers.iter().filter(|id| !of.writes.contains(id));
        let is_behind = |id: &NodeId| self.readers(*id).iter().all(|reader| is_inside(reader) || *reader > of.place);
        of.reads.iter().all(|read| *read < of.place && !is_inside(read))
            && of.writes.iter().all(is_behind)
            && kept.copied().all(|id| self.readers(id).iter().all(is_inside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphBuilder, Window};
    use crate::model::infer;
    use crate::plan::Choices;
    use crate::tensor::OutputKind;

    #[test]
    fn what_others_read_is_written_and_what_is_read_is_there() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 16));
        let a = g.conv2d("a", image, 16, Window::square(1, 1, 0));
        let b = g.conv2d("b", a, 16, Window::square(1, 1, 0));
        let c = g.max_pool("c", a, Window::square(3, 1, 1));
        let sum = g.add("sum", b, c);
        g.output("y", sum);
        let mut graph = Network::of(&g.finish().unwrap()).unwrap();
        let [a, b, c, sum] = ["a", "b", "c", "sum"].map(|name| graph.find(name).unwrap());
        let rows = NodeId(graph.nodes.len());
        let op = Op::Emit(OutputKind::Features);
        graph.nodes.push(Node { name: "output".into(), op, inputs: vec![sum], scale: None });
        graph.output = rows;
        let shapes = infer(&graph).unwrap();
        let target = PlanTarget { limits: &Limits::h200(), batch: 1, choices: &Choices::new() };
        let context = Context::new(&graph, &shapes, target, vec![None; graph.nodes.len()]);
        let is_sound = |place, covers: &[NodeId], reads: &[NodeId], writes: &[NodeId]| {
            let alone = context.single(a).unwrap().unwrap();
            let [covers, reads, writes] = [covers, reads, writes].map(<[NodeId]>::to_vec);
            context.is_sound(&Match { place, covers, reads, writes, ..alone })
        };
        let x = NodeId(0);
        assert!(is_sound(a, &[a, b], &[x], &[a, b]));
        assert!(!is_sound(a, &[a, b], &[x], &[b]), "the pooling reads a");
        assert!(is_sound(sum, &[b, sum], &[a, c], &[sum]));
        assert!(!is_sound(b, &[b, sum], &[a, c], &[sum]), "c comes after b");
        assert!(is_sound(sum, &[a, b, c, sum], &[x], &[sum]));
        assert!(is_sound(rows, &[sum, rows], &[b, c], &[rows]));
        assert!(!is_sound(sum, &[a, sum], &[x, a, b, c], &[a, sum]), "it reads what it writes itself");
        assert!(!is_sound(c, &[a, c], &[x], &[a, c]), "b comes before c");
    }
}
