//! Patterns of several nodes that one kernel computes, such as products with the operations that follow, attention and
//! norms. Patterns find nodes of a graph of values by what they compute, whichever operations an exporter uses.

mod attention;
mod class_attention;
mod convolution;
mod e4m3;
mod epilogue;
mod expr;
mod few;
mod first;
mod norm;
mod packed;
mod pieces;
mod product;
mod recurrent;
mod squeeze_excite;
mod strided;
mod sum;
#[cfg(test)]
mod tests;
mod within;

use std::collections::{BTreeSet, HashMap, HashSet};

use super::blocks::Blocks;
use crate::graph::{Expr, Graph, Node, NodeId, Op, Origin, ValueId, Window};
use crate::plan::context::PlanTarget;
use crate::plan::{Choices, Limits, RowNormResult, StepOp};
use crate::tensor::{Dtype, Shape};

pub(super) use expr::{float, inlined};

/// A step that computes several nodes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    /// The operation of the step.
    pub op: StepOp,
    /// The node after which the step is named.
    pub named: NodeId,
    /// The values that the step reads.
    pub reads: Vec<Read>,
    /// The value that the step writes, in the type of kernels.
    pub writes: ValueId,
    /// What the step writes beside that.
    pub beside: Option<Beside>,
}

/// A second value that a step writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Beside {
    /// Codes of e4m3, as they are in the graph.
    Codes(ValueId),
    /// A value in the type of kernels.
    Half(ValueId),
}

/// A value as a step reads it: in the type of kernels, which is f16 or bf16, or in its own type.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Read {
    /// A value in its own layout, in the type of kernels.
    Half(ValueId),
    /// A value in its own layout and type: a constant in f32, or images in f32.
    Own(ValueId),
    /// The statistics of the rows of a value that a step writes.
    Statistics(ValueId),
    /// Images of this shape, as they lie in the rows that a run reads.
    Rows(ValueId, Shape),
    /// The pixels of an image, window by window, for windows of this size side by side.
    Patches {
        /// The image.
        value: ValueId,
        /// The size of a window.
        size: [usize; 2],
        /// Its height with the rows of zeros that follow.
        stored: usize,
    },
    /// The pixels of an image, window by window, for windows that overlap.
    Windows {
        /// The image.
        value: ValueId,
        /// The windows.
        window: Window,
        /// The number of elements of a window with the zeros that follow.
        stored: usize,
    },
    /// The mask that is added to scores.
    Mask(Mask),
    /// The blocks of packed rows.
    Blocks(Blocks),
}

/// The mask of an attention: an expression of values, with some dimensions.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mask {
    /// The expression of the values, which are broadcast.
    pub expr: Expr,
    /// The values that the expression reads.
    pub values: Vec<ValueId>,
    /// The dimensions of the mask.
    pub dims: Vec<usize>,
    /// Whether each row is stored with one more element.
    pub is_odd: bool,
}

impl Found {
    /// Whether the step is a layer of a network of images, which stores channels with padding.
    pub fn is_image(&self) -> bool {
        matches!(self.op, StepOp::Conv(_))
    }

    /// Whether the value that the step writes is as it is in the graph: codes of e4m3, or f32.
    pub fn writes_its_own(&self) -> bool {
        match &self.op {
            StepOp::E4m3Product(of) => of.result.is_some(),
            StepOp::RowNorm(of) => matches!(of.result, RowNormResult::Codes(_) | RowNormResult::F32),
            StepOp::Attention(of) => of.result.is_some(),
            _ => false,
        }
    }
}

impl Beside {
    pub fn value(self) -> ValueId {
        let (Self::Codes(value) | Self::Half(value)) = self;
        value
    }
}

impl Read {
    /// The values of the graph that are read.
    pub fn values(&self) -> &[ValueId] {
        match self {
            Self::Half(value)
            | Self::Own(value)
            | Self::Statistics(value)
            | Self::Rows(value, _)
            | Self::Windows { value, .. }
            | Self::Patches { value, .. } => std::slice::from_ref(value),
            Self::Mask(mask) => &mask.values,
            Self::Blocks(blocks) => std::slice::from_ref(&blocks.starts),
        }
    }
}

/// A graph with all that patterns need to know of it and of the device.
struct Context<'a> {
    graph: &'a Graph,
    /// The type in which kernels read and write.
    dtype: Dtype,
    limits: &'a Limits,
    batch: usize,
    /// The kernels that the program chose.
    choices: &'a Choices,
    /// The nodes that read each value.
    readers: Vec<Vec<NodeId>>,
    /// The values that are outputs of the graph.
    shown: HashSet<ValueId>,
}

impl<'a> Context<'a> {
    fn new(graph: &'a Graph, dtype: Dtype, PlanTarget { limits, batch, choices }: PlanTarget<'a>) -> Self {
        let shown = graph.outputs.iter().map(|port| port.value).collect();
        Self { graph, dtype, limits, batch, choices, readers: graph.readers(), shown }
    }

    /// The only node that reads a value; `None` if there are more readers or the value is an output.
    fn reader(&self, id: ValueId) -> Option<NodeId> {
        match self.readers[id.0][..] {
            [only] if !self.shown.contains(&id) => Some(only),
            _ => None,
        }
    }
}

/// The steps in which one kernel computes several nodes of a graph, by the last node of each step. No step computes a node
/// that is to stay in f32.
pub(super) fn find(
    graph: &Graph,
    dtype: Dtype,
    target: PlanTarget<'_>,
    in_f32: &BTreeSet<String>,
) -> HashMap<NodeId, Found> {
    let mut all = HashMap::new();
    if !target.limits.has_sm90_kernels() {
        return all;
    }
    let context = Context::new(graph, dtype, target);
    let (mut halves, mut photos) = (HashSet::new(), HashMap::new());
    // A step with those before it in one, if that computes no node that stays in f32; else as it was found.
    let taken = |found: Found, joined: Option<Found>| {
        joined.filter(|joined| is_in_halves(graph, joined, in_f32)).unwrap_or(found)
    };
    for index in 0..graph.nodes.len() {
        let at = NodeId(index);
        let found = attention::find(&context, at);
        let found = found.map(|(last, found)| {
            let joined = class_attention::joined(&context, &found, &all);
            let found = taken(found, joined);
            let normed = class_attention::with_norm(&context, &found, &all);
            (last, taken(found, normed))
        });
        let found = found.or_else(|| packed::find(&context, at));
        let found = found.or_else(|| recurrent::find(&context, at));
        let norm = || {
            let (last, found) = norm::find(&context, at)?;
            let joined = sum::joined(&context, (last, &found), &halves, &all);
            Some((last, taken(found, joined)))
        };
        let found = found.or_else(norm).or_else(|| product::find(&context, at, &halves));
        let found = found.or_else(|| e4m3::find(&context, at));
        let found = found.or_else(|| first::find(&context, at).filter(|(_, found)| has_its_shape(&mut photos, found)));
        let found = found.or_else(|| few::find(&context, at)).or_else(|| convolution::find(&context, at));
        let found = found.or_else(|| squeeze_excite::find(&context, at, &all));
        if let Some((last, found)) = found.filter(|(_, found)| is_in_halves(graph, found, in_f32)) {
            if !found.is_image() && !found.writes_its_own() {
                halves.insert(found.writes);
            }
            if let Some(Beside::Half(value)) = found.beside {
                halves.insert(value);
            }
            all.insert(last, found);
        }
    }
    // A step that another step computes too does not run, and reads nothing.
    let needed = needed(graph, &all);
    all.retain(|node, _| needed[node.0]);
    within::bring(&context, &mut all);
    all
}

/// Whether the images that a step reads from rows have the shape that other steps read in the same input.
fn has_its_shape(photos: &mut HashMap<ValueId, Shape>, found: &Found) -> bool {
    found.reads.iter().all(|read| match read {
        Read::Rows(port, image) => photos.entry(*port).or_insert(*image) == image,
        _ => true,
    })
}

/// The names of the nodes of packed attention and of recurrent layers that a kernel computes.
pub(super) fn kept(graph: &Graph, dtype: Dtype, target: PlanTarget<'_>, in_f32: &BTreeSet<String>) -> HashSet<String> {
    let may_be_kept = |node: &Node| matches!(node.op, Op::PackedAttention(_) | Op::Recurrent(_));
    if !target.limits.has_sm90_kernels() || !graph.nodes.iter().any(may_be_kept) {
        return HashSet::new();
    }
    let context = Context::new(graph, dtype, target);
    let find = |at| packed::find(&context, at).or_else(|| recurrent::find(&context, at));
    let nodes = (0..graph.nodes.len()).filter_map(|index| find(NodeId(index)));
    let in_halves = nodes.filter(|(_, found)| is_in_halves(graph, found, in_f32));
    in_halves.map(|(_, found)| graph.nodes[found.named.0].name.clone()).collect()
}

fn is_in_halves(graph: &Graph, found: &Found, in_f32: &BTreeSet<String>) -> bool {
    covered(graph, found).iter().all(|id| !in_f32.contains(&graph.nodes[id.0].name))
}

/// The nodes that a step computes: all nodes that its result depends on, up to the values that it reads.
pub(super) fn covered(graph: &Graph, found: &Found) -> HashSet<NodeId> {
    let reads: HashSet<ValueId> = found.reads.iter().flat_map(Read::values).copied().collect();
    let mut values: Vec<ValueId> =
        [Some(found.writes), found.beside.map(Beside::value)].into_iter().flatten().collect();
    let mut nodes = HashSet::new();
    while let Some(value) = values.pop() {
        if let Origin::Node(node, _) = graph.values[value.0].origin
            && !reads.contains(&value)
            && nodes.insert(node)
        {
            values.extend(graph.nodes[node.0].inputs.iter().flatten());
        }
    }
    nodes
}

/// For each node, whether it is to be computed, in the place of the step that ends at it if there is one: whether an output
/// depends on it if these steps compute their nodes.
pub(super) fn needed(graph: &Graph, found: &HashMap<NodeId, Found>) -> Vec<bool> {
    let mut values = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|port| values[port.value.0] = true);
    let (mut nodes, mut beside) = (vec![false; graph.nodes.len()], HashSet::new());
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        nodes[index] = node.outputs.iter().any(|output| values[output.0] && !beside.contains(output));
        match found.get(&NodeId(index)) {
            _ if !nodes[index] => {}
            Some(found) => {
                found.reads.iter().flat_map(Read::values).for_each(|read| values[read.0] = true);
                beside.extend(found.beside.map(Beside::value));
            }
            None => node.inputs.iter().flatten().for_each(|read| values[read.0] = true),
        }
    }
    // Codes come behind the node of the step that writes them.
    for value in beside {
        if let Origin::Node(node, _) = graph.values[value.0].origin {
            nodes[node.0] = false;
        }
    }
    nodes
}

/// The node whose first result is this value.
pub(super) fn writer(graph: &Graph, id: ValueId) -> Option<&Node> {
    match graph.values[id.0].origin {
        Origin::Node(node, 0) => Some(&graph.nodes[node.0]),
        _ => None,
    }
}

/// Whether the last axis of a value is a multiple of 8, so that its rows are at multiples of 16 bytes in f16 and bf16.
pub(super) fn ends_in_eights(graph: &Graph, id: ValueId) -> bool {
    graph.value(id).dims.last().is_some_and(|dim| dim.is_multiple_of(8))
}
