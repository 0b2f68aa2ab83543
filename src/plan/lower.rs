//! The lowering of a rewritten graph to steps. A step is one launch for nodes that are computed together.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use super::context::{Context, Match, PlanTarget};
use super::tensors::{Draft, Growing};
use super::{PartOf, Plan, Request, StepOp, concat, cover, kernels, rows};
use crate::error::Error;
use crate::model::images::Network;
use crate::model::{self, Node, NodeId, Op};
use crate::tensor::{Activation, Shape};

/// Rewrites `graph` and lowers it. The steps of the plan have no lanes yet, and the tensors no offsets.
pub(super) fn lower(graph: &Network, request: &Request<'_>) -> Result<Plan, Error> {
    if !(1..=MAX_BATCH).contains(&request.batch) {
        return Err(Error::option("batch", request.batch, format!("1 to {MAX_BATCH}")));
    }
    let is_of_plans = |node: &&Node| matches!(node.op, Op::Given(_) | Op::Rows(..) | Op::Normalize(..) | Op::Emit(_));
    if let Some(node) = graph.nodes.iter().find(is_of_plans) {
        return Err(Error::Unsupported {
            what: format!("node `{}`: an operation of plans ({})", node.name, node.op.kind()),
            instead: "let an input be the first node, and all others be computed from it".into(),
        });
    }
    let graph = model::optimize(graph);
    let shapes = model::infer(&graph)?;
    let graph = model::in_bytes(&graph, &shapes, |of| kernels::take_bytes(of, request));
    let shapes = model::infer(&graph)?;
    let Request { limits, batch, input, output, choices, .. } = *request;
    rows::check(&graph, &shapes, output)?;
    let result = shapes[graph.output.0];
    let ends = [rows::input(graph.input, input), rows::output(result, output)];
    let shapes: Vec<Shape> = [&[graph.input], &shapes[..], &[output.of(result)]].concat();
    let graph = with_rows(graph, request);
    let parts = concat::parts(&graph, &shapes, limits.family)?;
    let context = Context::new(&graph, &shapes, PlanTarget { limits, batch, choices }, parts);
    let mut lowering = Lowering::new(&context, cover::cover(&context)?, Plan::new(limits, batch, ends));
    lowering.growing.push_rows(NodeId(0), 0);
    (0..graph.nodes.len()).map(NodeId).try_for_each(|id| lowering.at(id))?;
    Ok(lowering.growing.plan)
}

/// The network with its input rows as the first node and its output rows as the last one. The normalisation of the
/// input rows replaces the input.
fn with_rows(graph: Network, request: &Request<'_>) -> Network {
    let node = |name: &str, op, inputs| Node { name: name.into(), op, inputs, scale: None };
    let mut nodes = vec![node("rows", Op::Rows(graph.input, request.input.dtype()), Vec::new())];
    for of in graph.nodes {
        let inputs = of.inputs.iter().map(|id| NodeId(id.0 + 1)).collect();
        nodes.push(match of.op {
            Op::Input => {
                let preprocessing = Arc::new(request.preprocessing.clone());
                Node { op: Op::Normalize(request.input, preprocessing), inputs: vec![NodeId(0)], ..of }
            }
            _ => Node { inputs, ..of },
        });
    }
    let output = NodeId(nodes.len());
    nodes.push(node("output", Op::Emit(request.output), vec![NodeId(graph.output.0 + 1)]));
    Network { nodes, output, input: graph.input }
}

/// The steps of a network, added to a plan node by node.
pub(super) struct Lowering<'a> {
    context: &'a Context<'a>,
    /// The plan to which steps are added.
    pub growing: Growing<'a>,
    /// The steps that are not yet in the plan.
    steps: Peekable<vec::IntoIter<Match>>,
}

impl<'a> Lowering<'a> {
    /// Begins to add `steps`, which [`cover`](cover::cover) has found, to a plan.
    pub fn new(context: &'a Context<'a>, steps: Vec<Match>, plan: Plan) -> Self {
        Self { context, growing: Growing::new(context, &steps, plan), steps: steps.into_iter().peekable() }
    }

    /// Adds the steps whose place is node `id`, or the copies of a concatenation. All nodes before it must have been
    /// added, and all given values before it bound to tensors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for an operation that no kernel computes.
    pub fn at(&mut self, id: NodeId) -> Result<(), Error> {
        while let Some(step) = self.steps.next_if(|step| step.place == id) {
            push(self.context, &mut self.growing, step)?;
        }
        match self.context.node(id).op {
            Op::Concat => push_concat(self.context, &mut self.growing, id),
            _ => Ok(()),
        }
    }
}

/// Adds the step of a match.
fn push(context: &Context<'_>, plan: &mut Growing<'_>, step: Match) -> Result<(), Error> {
    check_types(context, &step)?;
    let draft = draft(context, &step)?;
    let inputs = step.reads.iter().map(|&id| plan.of(id)).collect();
    plan.push(&step, draft, inputs);
    Ok(())
}

/// The step of a match with its kernel and its work, without its tensors.
fn draft(context: &Context<'_>, step: &Match) -> Result<Draft, Error> {
    let work = context.work(step);
    let kernel = step.kernel.map_or_else(|| kernels::choose(&work, context.limits(), context.target.choices), Ok)?;
    let (flops, weight_bytes) = (work.flops(), work.weight_bytes(context.limits().family.dtype()));
    Ok(Draft { op: step.op.clone(), kernel, outputs: work.outputs, flops, weight_bytes })
}

/// Adds a copy for each operand of a concatenation that no step writes into the concatenation's tensor directly.
fn push_concat(context: &Context<'_>, plan: &mut Growing<'_>, id: NodeId) -> Result<(), Error> {
    let node = &context.graph.nodes[id.0];
    let of = plan.holder(id);
    let firsts = concat::first_channels(context.graph, context.shapes, id.0);
    for (operand, (&input, first_channel)) in node.inputs.iter().zip(firsts).enumerate() {
        if !plan.is_part(input, id) {
            let copy = Match {
                name: format!("{}.{operand}", node.name),
                op: StepOp::Add(Activation::None),
                kernel: None,
                place: id,
                covers: Vec::new(),
                reads: vec![input],
                writes: vec![input],
                saved: 0.0,
            };
            check_types(context, &copy)?;
            let (draft, copied) = (draft(context, &copy)?, plan.of(input));
            plan.push_into(&copy.name, draft, vec![copied], Some(PartOf { of, first_channel }));
        }
    }
    plan.bind(id, of);
    Ok(())
}

/// Checks the types of a step's inputs. Every step but the last one reads bytes or activations of the family's type; a
/// linear layer's result is f32.
fn check_types(context: &Context<'_>, step: &Match) -> Result<(), Error> {
    let wanted = context.limits().family.dtype();
    if step.writes.iter().any(|&id| matches!(context.node(id).op, Op::Emit(_))) {
        return Ok(());
    }
    let activations = step.reads.iter().filter(|id| !matches!(context.node(**id).op, Op::Rows(..)));
    let mut types = activations.map(|&id| context.operand(id).dtype);
    match types.find(|&found| found.is_float() && found != wanted) {
        None => Ok(()),
        Some(found) => Err(Error::Unsupported {
            what: format!("node `{}`: reading the {found} result of a linear layer", step.name),
            instead: "let the linear layer be the last node, or run it with `--device cpu`".into(),
        }),
    }
}

/// The largest batch that a plan is made for.
const MAX_BATCH: usize = 1 << 20;
