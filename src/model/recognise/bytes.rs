//! Values that a file rounds to integers and back: scales of a network in bytes.

use std::collections::HashMap;

use super::{Failed, Recogniser, constants};
use crate::error::Error;
use crate::graph::{self as values, Binary, Expr, Op, Origin, Tensor, ValueId};
use crate::loops;
use crate::model::images::{Network, Node, NodeId, Op as Layer};
use crate::model::quantization::{check, missing};
use crate::model::weights::Weights;
use crate::tensor::{Activation, Dtype};

/// The bytes to which a pair of `QuantizeLinear` and `DequantizeLinear` rounds a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kept {
    /// Bytes of this scale for negative numbers too: signed with the zero point 0, or unsigned with 128.
    Signed(f32),
    /// Bytes of this scale whose zero point is the lowest byte: negative numbers become 0.
    Unsigned(f32),
    /// Bytes with this other zero point.
    Asymmetric(i64),
}

/// The graph in which each such pair with one scale is replaced by a bound that has the same effect apart from rounding
/// and the name of the second node; and for each of these bounds, the bytes of its pair.
pub(super) fn without_pairs(
    graph: &values::Graph,
    weights: &Weights,
) -> Result<(values::Graph, HashMap<String, Kept>), Error> {
    let pairs: Vec<Pair<'_>> = graph.nodes.iter().enumerate().filter_map(|(at, node)| pair(graph, at, node)).collect();
    let numbers = if pairs.is_empty() { HashMap::new() } else { numbers(graph, weights, &pairs)? };
    let (mut without, mut kept) = (graph.clone(), HashMap::new());
    for Pair { x, quantize, at } in pairs {
        let node = &mut without.nodes[at];
        let [first, second] = [quantize, &*node].map(|node| grid(graph, &numbers, node));
        let Some(of) = first.filter(|first| Some(*first) == second).map(Grid::kept) else { continue };
        // A bound of the smallest float has no effect.
        let least = if matches!(of, Kept::Unsigned(_)) { 0.0 } else { f64::from(f32::MIN) };
        node.op = Op::Map(Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, least)));
        node.inputs = vec![Some(x)];
        kept.insert(node.name.clone(), of);
    }
    Ok((without, kept))
}

/// A value that is rounded to integers and converted back, both with one scale for all channels.
struct Pair<'a> {
    /// The value that is rounded, in floats.
    x: ValueId,
    quantize: &'a values::Node,
    /// The index of the node that converts back to floats.
    at: usize,
}

fn pair<'a>(graph: &'a values::Graph, at: usize, node: &values::Node) -> Option<Pair<'a>> {
    let (Op::Dequantize { axis: None }, [Some(bytes), ..]) = (&node.op, &node.inputs[..]) else { return None };
    let Origin::Node(writer, _) = &graph.values[bytes.0].origin else { return None };
    let quantize = &graph.nodes[writer.0];
    let (Op::Quantize { axis: None, .. }, &[Some(x), ..]) = (&quantize.op, &quantize.inputs[..]) else { return None };
    let is_of_floats = graph.value(x).dtype == Dtype::F32 && graph.value(x) == graph.value(node.outputs[0]);
    is_of_floats.then_some(Pair { x, quantize, at })
}

/// The scales and zero points of pairs, if they are constants of one element.
fn numbers(graph: &values::Graph, weights: &Weights, pairs: &[Pair<'_>]) -> Result<HashMap<ValueId, f64>, Error> {
    let is_constant = constants(graph);
    let nodes = pairs.iter().flat_map(|pair| [pair.quantize, &graph.nodes[pair.at]]);
    let parameters = nodes.flat_map(|node| node.inputs[1..].iter().flatten().copied());
    let mut ids: Vec<ValueId> = parameters.filter(|id| is_constant[id.0] && graph.value(*id).elems() == 1).collect();
    ids.sort_unstable();
    ids.dedup();
    let tensors = constants_of(graph, weights, &ids)?;
    Ok(ids.into_iter().zip(tensors.iter().map(|tensor| tensor.to_f64s()[0])).collect())
}

/// The meaning of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Grid {
    is_signed: bool,
    scale: f32,
    zero: i64,
}

/// The meaning of the bytes of one node of a pair; `None` if its parameters are no constants, or its integers no bytes.
fn grid(graph: &values::Graph, numbers: &HashMap<ValueId, f64>, node: &values::Node) -> Option<Grid> {
    let dtype = match node.op {
        Op::Quantize { dtype, .. } => dtype,
        _ => graph.value(node.inputs[0]?).dtype,
    };
    let is_signed = match dtype {
        Dtype::I8 => true,
        Dtype::U8 => false,
        _ => return None,
    };
    let given = |at: usize| node.inputs.get(at).copied().flatten();
    let zero = given(2).map_or(Some(&0.0), |zero| numbers.get(&zero))?;
    Some(Grid { is_signed, scale: *numbers.get(&given(1)?)? as f32, zero: *zero as i64 })
}

impl Grid {
    fn kept(self) -> Kept {
        match (self.is_signed, self.zero) {
            (true, 0) | (false, 128) => Kept::Signed(self.scale),
            (false, 0) | (true, -128) => Kept::Unsigned(self.scale),
            _ => Kept::Asymmetric(self.zero),
        }
    }
}

/// Makes the dense convolutions that lack a scale compute in floats, in a network with scales; returns which layers
/// those are and why.
pub(super) fn leave_in_floats(graph: &mut Network, asymmetric: &HashMap<String, i64>) -> Vec<String> {
    if graph.nodes.iter().all(|node| node.scale.is_none()) && asymmetric.is_empty() {
        return Vec::new();
    }
    let mut told = Vec::new();
    for (layer, value) in missing(graph) {
        let id = graph.find(&layer).expect("a layer has the name of its convolution");
        if let Layer::Conv2d(conv) = &mut graph.nodes[id.0].op {
            conv.in_floats = true;
        }
        told.push(match asymmetric.get(&value) {
            Some(zero) => format!("`{layer}`: `{value}` has the zero point {zero}"),
            None => format!("`{layer}`: the file has no scale of `{value}`"),
        });
    }
    told
}

/// Computes constant values.
pub(super) fn constants_of(graph: &values::Graph, weights: &Weights, ids: &[ValueId]) -> Result<Vec<Tensor>, Error> {
    let alone = values::simplify(&values::computing(graph, ids));
    loops::evaluate(&alone, &mut |name, of| weights.read_as(name, of), &[])
}

impl Recogniser<'_> {
    /// The image as bytes with a scale. If negative numbers become 0, this is an activation.
    pub(super) fn kept(&mut self, node: &values::Node, kept: Kept, x: NodeId) -> Result<NodeId, Failed> {
        let (x, scale) = match kept {
            Kept::Signed(scale) => (x, scale),
            Kept::Unsigned(scale) if self.is_never_negative(x) => (x, scale),
            Kept::Unsigned(scale) => {
                let is_six = (255.0 * scale - 6.0).abs() < 1e-3;
                let activation = Layer::Activation(if is_six { Activation::Relu6 } else { Activation::Relu });
                let there = self.nodes.iter().position(|node| node.op == activation && node.inputs == [x]);
                (there.map(NodeId).unwrap_or_else(|| self.push(node, activation, vec![x])), scale)
            }
            Kept::Asymmetric(zero) => {
                let name = &self.nodes[x.0].name;
                self.asymmetric.insert(name.clone(), zero);
                return Ok(x);
            }
        };
        let most = match self.nodes[x.0].op {
            Layer::Activation(Activation::Relu6) => 6.0 / 255.0,
            _ => f32::INFINITY,
        };
        let kept = &mut self.nodes[x.0];
        let scale = Some(kept.scale.unwrap_or(scale).min(most));
        kept.scale = scale.filter(|_| check(&Node { scale, ..kept.clone() }).is_ok());
        Ok(x)
    }

    fn is_never_negative(&self, x: NodeId) -> bool {
        let node = &self.nodes[x.0];
        match &node.op {
            Layer::Activation(activation) => *activation != Activation::None,
            Layer::MaxPool(_) | Layer::AvgPool(_) | Layer::GlobalAvgPool | Layer::Concat => {
                node.inputs.iter().all(|&input| self.is_never_negative(input))
            }
            _ => false,
        }
    }
}
