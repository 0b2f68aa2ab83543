//! Graphs as few loops: some values are stored in memory, and the loops that read the others compute them.

mod draft;
mod planner;

use super::ir::Loop;
use crate::graph::{Graph, NodeId, ValueId};

/// The steps that compute a graph, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The steps. Each value that a step reads is an input, a constant, or written by an earlier step.
    pub steps: Vec<Step>,
    /// The value whose bytes each value of the graph has.
    views: Vec<ValueId>,
}

/// A step: one loop, or one node that is no loop.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The loop or function that computes the step.
    pub kernel: Kernel,
    /// The values that it reads, none of which is a [view](Schedule::view_of): for a loop in the order of its operands,
    /// each once; for a node in the order of its inputs.
    pub reads: Vec<ValueId>,
    /// The values that it writes.
    pub writes: Vec<ValueId>,
    /// The nodes whose operations it computes, ascending. A node may be computed by several steps.
    pub nodes: Vec<NodeId>,
}

/// The loop or function that computes a step.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// This loop.
    Loop(Loop),
    /// A function for this node alone, because its operation is [no loop](super::Lowered::ByHand), or because it was
    /// excluded from loops.
    Apart(NodeId),
}

/// The speeds and limits of the machine for which loops are fused.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// The number of operations that take as long as moving a byte.
    ops_of_a_byte: f64,
    /// Whether expensive functions may be computed again if that takes no longer than storing their results.
    repeats_functions: bool,
}

impl Machine {
    /// The evaluator on a CPU.
    pub const CPU: Self = Self { ops_of_a_byte: 4.0, repeats_functions: false };
    /// A GPU. Loops on an H200 move 3.5 TB/s and compute 33 Tops/s at the same time.
    pub const GPU: Self = Self { ops_of_a_byte: 9.0, repeats_functions: true };
}

impl Schedule {
    /// The value that has a value's bytes. If the value is a view, this is the value that it is a view of, which has
    /// the same number of elements of the same type in the same order; otherwise it is the value itself.
    ///
    /// # Panics
    /// If the value is of another graph.
    pub fn view_of(&self, id: ValueId) -> ValueId {
        self.views[id.0]
    }
}

/// The steps that compute a graph on a CPU.
///
/// Operations are fused into the step that reads their value if that takes fewer operations and bytes than storing the
/// value: expressions into the steps before or behind them, layout changes into their readers, and reductions of a row
/// into the steps that process the row. A reduction is computed only once, and on a CPU a transcendental function too.
/// If a reduction reads a value more than once, only layout changes are fused into it. A reshape is a view.
///
/// ```
/// use trefoil::{Dtype, graph::{Contract, Expr, GraphBuilder, Op, Unary}, loops::schedule};
/// let mut g = GraphBuilder::new();
/// let [x, w] = [g.input("x", Dtype::F32, &[8, 64]), g.weight("w", Dtype::F32, &[64, 32])];
/// let b = g.weight("b", Dtype::F32, &[32]);
/// let y = g.node("product", Op::Contract(Contract::matmul(2, 2)), &[x, w]);
/// let y = g.map("bias", Expr::arg(0) + Expr::arg(1), &[y, b]);
/// let y = g.map("tanh", Expr::arg(0).unary(Unary::Tanh), &[y]);
/// let heads = g.node("heads", Op::Reshape(vec![8, 4, 8]), &[y]);
/// g.output("heads", heads);
/// let of = schedule(&g.finish()?);
/// assert_eq!((of.steps.len(), of.steps[0].nodes.len()), (1, 3));
/// assert_eq!((&of.steps[0].reads[..], &of.steps[0].writes[..]), (&[b, x, w][..], &[y][..]));
/// assert_eq!(of.view_of(heads), y);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Panics
/// If the graph is not well-formed.
pub fn schedule(graph: &Graph) -> Schedule {
    schedule_apart(graph, Machine::CPU, &|_| false)
}

/// The steps that compute a graph on a machine. Nodes for which `is_apart` is true are steps of their own.
pub(crate) fn schedule_apart(graph: &Graph, machine: Machine, is_apart: &dyn Fn(NodeId) -> bool) -> Schedule {
    planner::Planner::new(graph, machine, is_apart).schedule()
}
