//! Norms of rows within the products before and behind them: products behind a norm read its operand, and the product
//! that writes this operand writes statistics of its rows too.
//!
//! The mean is taken from sums in f32. Where it is R times as large as the standard deviation, each element of x has been
//! rounded by up to R * 2^-12 standard deviations in f16, which changes a sum by up to that times the sum of |w|. Sums of
//! f32 lose up to R * 2^-24 times the sum of |w| for each group of 16 terms that is added, of which there are 128 at
//! most: by these bounds a thirtieth of the other, for every R. So no mean is refused. The factors of the norm are in the
//! matrix, which is rounded once; a factor that takes a weight beyond f16 is an error when the weights are packed, like a
//! batch norm's.

use std::collections::HashMap;

use super::product::pass_clocks;
use super::{Context, Found, Read, covered};
use crate::graph::{Constant, NodeId, Op, ValueId};
use crate::plan::{NormWithin, ProductActivation, ProductSizes, RowNormOp, RowNormResult, RowsAt, StepOp};

/// A norm, the step that writes its operand, and the steps that read its result.
struct Place {
    norm: NodeId,
    writer: NodeId,
    readers: Vec<NodeId>,
}

/// Brings each norm into the products before and behind it if they can compute it, and if that is sooner.
pub(super) fn bring(context: &Context<'_>, all: &mut HashMap<NodeId, Found>) {
    let mut norms: Vec<NodeId> = all.keys().copied().filter(|at| matches!(all[at].op, StepOp::RowNorm(_))).collect();
    norms.sort();
    for norm in norms {
        if let Some((place, within)) = place(context, all, norm) {
            place.bring(all, within);
        }
    }
}

impl Place {
    fn bring(self, all: &mut HashMap<NodeId, Found>, within: HashMap<NodeId, NormWithin>) {
        let Some(norm) = all.remove(&self.norm) else { return };
        let x = norm.reads[0].clone();
        let writer = all.get_mut(&self.writer).expect("found before");
        let statistics = Read::Statistics(writer.writes);
        if let StepOp::Product(of) = &mut writer.op {
            of.statistics = true;
        }
        for (at, within) in within {
            let reader = all.get_mut(&at).expect("found before");
            let StepOp::Product(of) = &mut reader.op else { continue };
            let others = reader.reads.drain(1 + usize::from(of.bias)..).collect::<Vec<_>>();
            reader.reads = [x.clone(), statistics.clone()].into_iter().chain(others).collect();
            (of.bias, of.norm) = (false, Some(within));
        }
    }

    /// Whether the products with the norm take less time than without it and the norm. Kernels for few rows leave room on a
    /// multiprocessor for blocks of the next launch, and norm in little time. Blocks of other tiles have all of its shared
    /// memory: a product behind them begins when they have ended, while beside a norm it copies its first weights, which
    /// takes about as long as the norm.
    fn is_sooner(&self, context: &Context<'_>, all: &HashMap<NodeId, Found>, norm: &RowNormOp) -> bool {
        let limits = context.limits;
        let more = |at: &NodeId| {
            let StepOp::Product(of) = &all[at].op else { unreachable!("products are before and behind") };
            let sizes = of.sizes(context.batch);
            let kernels = sizes.kernels(limits);
            let few = kernels.iter().copied().find(|kernel| kernel.tile.is_split())?;
            Some(sizes.clocks(few, limits) - sizes.clocks(*kernels.first()?, limits))
        };
        let more = [&self.writer].into_iter().chain(&self.readers).map(more).sum::<Option<f64>>();
        let saved = pass_clocks(norm.rows * norm.columns, limits);
        more.is_some_and(|more| saved.is_none_or(|saved| more < saved))
    }
}

/// The place of a norm whose products can compute it sooner, and what each product behind it has of it.
fn place(
    context: &Context<'_>,
    all: &HashMap<NodeId, Found>,
    at: NodeId,
) -> Option<(Place, HashMap<NodeId, NormWithin>)> {
    let norm = all.get(&at)?;
    let StepOp::RowNorm(of) = &norm.op else { return None };
    if of.result != RowNormResult::Rows || of.sum.is_some() {
        return None; // codes are of numbers that are not rounded
    }
    let Read::Half(x) = norm.reads[0] else { return None };
    let writer = writer_of(context, all, x).filter(|at| leaves_statistics(&all[at], of, context.batch))?;
    let readers = readers_of(context, all, norm.writes)?;
    let names = norm.reads[1..].iter().map(|read| name(context, read)).collect::<Option<Vec<_>>>()?;
    let (weight, bias) = (names.first()?.clone(), names.get(1).cloned());
    let (centred, epsilon) = (of.centred, of.epsilon);
    let within = NormWithin { centred, epsilon, weight, bias, product_bias: None };
    let of_reader = |at: &NodeId| {
        let product_bias = own_bias(context, &all[at], of, norm.writes)?;
        Some((*at, NormWithin { product_bias, ..within.clone() }))
    };
    let within = readers.iter().map(of_reader).collect::<Option<HashMap<_, _>>>()?;
    let place = Place { norm: at, writer, readers };
    place.is_sooner(context, all, of).then_some((place, within))
}

/// The step whose result is a value, or the value before it was given other dimensions.
fn writer_of(context: &Context<'_>, all: &HashMap<NodeId, Found>, mut x: ValueId) -> Option<NodeId> {
    loop {
        if let Some((at, _)) = all.iter().find(|(_, found)| found.writes == x) {
            return Some(*at);
        }
        let node = super::writer(context.graph, x).filter(|node| matches!(node.op, Op::Reshape(_)))?;
        let from = node.inputs[0]?;
        let last = |id: ValueId| context.graph.value(id).dims.last();
        x = Some(from).filter(|&from| last(from) == last(x))?;
    }
}

/// Whether a product can write the statistics of the rows that a norm reads.
fn leaves_statistics(found: &Found, norm: &RowNormOp, batch: usize) -> bool {
    let StepOp::Product(of) = &found.op else { return false };
    let ProductSizes { m, n, .. } = of.sizes(batch);
    let is_plain = matches!(of.activation, ProductActivation::None | ProductActivation::Relu);
    is_plain && of.norm.is_none() && [m, n] == [norm.rows, norm.columns]
}

/// The steps that read a value, if nothing else does.
fn readers_of(context: &Context<'_>, all: &HashMap<NodeId, Found>, y: ValueId) -> Option<Vec<NodeId>> {
    let reads_it = |found: &Found| found.reads.iter().any(|read| read.values().contains(&y));
    let mut readers: Vec<NodeId> = all.keys().copied().filter(|at| reads_it(&all[at])).collect();
    readers.sort();
    let nodes: Vec<_> = readers.iter().map(|at| covered(context.graph, &all[at])).collect();
    let is_read = |reader: &NodeId| nodes.iter().any(|nodes| nodes.contains(reader));
    let is_all = !context.shown.contains(&y) && context.readers[y.0].iter().all(is_read);
    (is_all && !readers.is_empty()).then_some(readers)
}

/// The name of the bias of a product that can norm its rows, which are the result `y` of a norm; `Some(None)` if it has no
/// bias. A residual is read as it is.
fn own_bias(context: &Context<'_>, found: &Found, norm: &RowNormOp, y: ValueId) -> Option<Option<String>> {
    let StepOp::Product(of) = &found.op else { return None };
    let is_of_rows = of.x == RowsAt { first: 0, pitch: norm.columns } && of.weights.window.size == [1, 1];
    let is_whole = is_of_rows && of.sizes(context.batch).m == norm.rows && of.terms == norm.columns;
    let reads_once = found.reads[0] == Read::Half(y) && found.reads[1..].iter().all(|read| !read.values().contains(&y));
    if !is_whole || !reads_once || of.statistics || of.norm.is_some() || of.activation == ProductActivation::HardSwish {
        return None;
    }
    if of.bias { name(context, &found.reads[1]).map(Some) } else { Some(None) }
}

/// The name of a constant vector among the weights of the model.
fn name(context: &Context<'_>, read: &Read) -> Option<String> {
    let &Read::Own(id) = read else { return None };
    match context.graph.constant(id)? {
        Constant::Weight(name) if context.graph.value(id).rank() == 1 => Some(name.clone()),
        _ => None,
    }
}
