//! A graph as few kernels: which values exist, and which are computed where they are read.

mod draft;
mod planner;

use super::ir::Loop;
use crate::graph::{Graph, NodeId, ValueId};

/// How a graph is computed: one step after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The steps. What a step reads is an input, a constant, or written by a step before it.
    pub steps: Vec<Step>,
    /// The value whose bytes each value of the graph has.
    views: Vec<ValueId>,
}

/// What is computed at once.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// How.
    pub kernel: Kernel,
    /// The values that it reads, none of which is a [view](Schedule::view_of): those of a loop in the order of its operands,
    /// each once; those of a node in the order of its inputs.
    pub reads: Vec<ValueId>,
    /// The values that it writes.
    pub writes: Vec<ValueId>,
    /// The nodes whose operations it computes, ascending. A node may be computed by several steps.
    pub nodes: Vec<NodeId>,
}

/// How a step computes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kernel {
    /// By this loop.
    Loop(Loop),
    /// This node by itself: its operation is [no loop](super::Lowered::ByHand), or it was to be apart.
    Apart(NodeId),
}

/// What computes a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    /// Operations that take as long as a byte that is moved.
    ops_of_a_byte: f64,
    /// Whether dear functions may be computed again where that takes no longer than to keep what they gave.
    repeats_functions: bool,
}

impl Machine {
    /// The evaluator on a CPU.
    pub const CPU: Self = Self { ops_of_a_byte: 4.0, repeats_functions: false };
    /// A GPU: loops on an H200 that move 3.5 TB/s compute 33 Tops/s besides.
    pub const GPU: Self = Self { ops_of_a_byte: 9.0, repeats_functions: true };
}

impl Schedule {
    /// The value whose bytes a value is: itself, if a step writes it or nothing does; else the one that it is a view of,
    /// which has as many elements of the same type in the same order.
    ///
    /// # Panics
    /// If the value is of another graph.
    pub fn view_of(&self, id: ValueId) -> ValueId {
        self.views[id.0]
    }
}

/// The steps that compute a graph on a CPU.
///
/// An operation is computed where its value is read, if that takes fewer operations and bytes than a value between two
/// steps: expressions are computed by what reads them or follows them, layout changes by their readers, reductions of a row
/// together with what is done to the row. Reductions are computed once, on a CPU dear functions too, and nothing but layout
/// changes is computed within a reduction that reads it more than once. A reshape is a view.
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

/// The steps that compute a graph on a machine, some of whose nodes are steps by themselves.
pub(crate) fn schedule_apart(graph: &Graph, machine: Machine, is_apart: &dyn Fn(NodeId) -> bool) -> Schedule {
    planner::Planner::new(graph, machine, is_apart).schedule()
}
