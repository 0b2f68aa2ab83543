//! Whether the rows of a batch depend on each other.
//!
//! The graphs for two and for three rows are walked side by side. A value is known to be the same in both, or to have
//! rows, each of which depends on its own row of the inputs alone and in the same way as the others. Whatever is not
//! known to be so mixes rows: an operation that goes along them or picks some of them, one that this module does not
//! follow, a constant that differs from row to row, and a node that only one of the graphs has. It matters only if an
//! output depends on it. The graph for one row is compared too, though not as strictly, since it may have fewer nodes:
//! what repeats rows or gives them other dimensions does nothing for a single one.
//!
//! The file is long because it has a rule for each operation.

use std::collections::HashSet;

use crate::graph::{
    Constant, Contract, Conv, Expr, Graph, Node, Number, Op, Origin, Pool, Reduce, ReduceOp, Resize, ResizeCoordinates,
    Slice, Tensor, ValueId, ValueType, Window,
};
use crate::tensor::Dtype;

/// How a value depends on the rows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    /// It is the same for any number of rows.
    Same,
    /// All its elements are one number, the same for any number of rows; or it has no elements.
    Filled,
    /// An element depends on one row: on row `place / inner % rows`, where `place` counts the value's elements.
    Rows { inner: usize },
    /// An element is the number of its row, which is found as for `Rows`.
    Numbers { inner: usize },
    /// As `Rows`, but elements at the index `at` of the last axis are the numbers of their rows.
    Numbered { inner: usize, at: usize },
    /// Nothing is known of it, since the node of this number; `None` for a constant.
    Mixed(Option<usize>),
}

/// An axis of which each index depends on one row: on row `index / inner % rows`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Along {
    axis: usize,
    inner: usize,
}

/// A result of which nothing is known.
struct Mixed;

/// The operand of [`Op::Recurrent`] that has the lengths of sequences.
const LENGTHS: usize = 6;
/// Those that have weights, which all rows read.
const WEIGHTS: [usize; 3] = [1, 2, 5];

/// The name of the first node by which rows depend on each other, or depend on how many or the how-manieth they are, if
/// there is one. The graphs are those for one, two and three rows, and `axes` has the axis of each input and of each
/// output that is the batch.
///
/// [`Op::Quantize`] by the minimum and maximum of all rows is no such node: they depend on each other by their
/// roundings alone.
pub(super) fn mixes<'a>([one, two, three]: [&'a Graph; 3], axes: [&[usize]; 2]) -> Option<&'a str> {
    let mut rows = Rows::new(two, three, axes[0]);
    for (number, node) in two.nodes.iter().enumerate() {
        rows.walk(number, node);
    }
    let mixed = two.outputs.iter().zip(axes[1]).find_map(|(port, &axis)| rows.fault(&port.name, port.value, axis));
    mixed.or_else(|| Single { one, two }.differs())
}

/// The graphs for two and for three rows.
struct Rows<'a> {
    graphs: [&'a Graph; 2],
    /// For each value of the first graph the value of the second one, as far as an output depends on it and the graphs
    /// are alike.
    twins: Vec<Option<ValueId>>,
    /// For each value of the first graph.
    of: Vec<Of>,
    /// The nodes of the first graph that find the minimum or maximum by which a tensor is quantized.
    ranges: HashSet<usize>,
}

impl<'a> Rows<'a> {
    fn new(two: &'a Graph, three: &'a Graph, inputs: &[usize]) -> Self {
        let of = vec![Of::Mixed(None); two.values.len()];
        let mut rows = Self { graphs: [two, three], twins: twins(two, three), of, ranges: ranges(two) };
        for (number, value) in two.values.iter().enumerate() {
            let (id, Some(twin)) = (ValueId(number), rows.twins[number]) else { continue };
            let of = match (&value.origin, &three.values[twin.0].origin) {
                (Origin::Constant(a), Origin::Constant(b)) => {
                    of_constants([(&value.of, a), (three.value(twin), b)]).unwrap_or(Of::Mixed(None))
                }
                (Origin::Input(a), Origin::Input(b)) if a == b => {
                    rows.of_axis(id, Along { axis: inputs[*a], inner: 1 }).unwrap_or(Of::Mixed(None))
                }
                _ => Of::Mixed(None),
            };
            rows.of[number] = rows.settled(id, of);
        }
        rows
    }

    /// Finds out what is known of the results of a node.
    fn walk(&mut self, number: usize, node: &Node) {
        let known = node.inputs.iter().flatten().map(|id| self.of[id.0]);
        let earlier = known.clone().find_map(|of| if let Of::Mixed(Some(node)) = of { Some(node) } else { None });
        let found = match earlier {
            Some(_) => Err(Mixed),
            None => self.of_node(number, node),
        };
        let mixed = || Of::Mixed(Some(earlier.unwrap_or(number)));
        let found = found.unwrap_or_else(|Mixed| node.outputs.iter().map(|_| mixed()).collect());
        node.outputs.iter().zip(found).for_each(|(&output, of)| self.of[output.0] = self.settled(output, of));
    }

    /// What is known of a value, where its dimensions alone say more.
    fn settled(&self, id: ValueId, of: Of) -> Of {
        match self.dims(id) {
            Some([two, three]) if of == Of::Filled || two.contains(&0) && three.contains(&0) => {
                if two == three {
                    Of::Same
                } else {
                    Of::Filled
                }
            }
            _ => of,
        }
    }

    /// The name of the node to blame if this output does not have a row for each row along this axis.
    fn fault(&self, port: &'a str, id: ValueId, axis: usize) -> Option<&'a str> {
        let two = self.graphs[0];
        let name = |node: usize| two.nodes[node].name.as_str();
        match (self.of[id.0], &two.values[id.0].origin) {
            (Of::Mixed(Some(node)), _) => Some(name(node)),
            (of, origin) => match (self.seen(id, of, None), origin) {
                (Ok(Some(along)), _) if along == (Along { axis, inner: 1 }) => None,
                (_, Origin::Node(node, _)) => Some(name(node.0)),
                (_, Origin::Input(_) | Origin::Constant(_)) => Some(port),
            },
        }
    }

    /// The dimensions of a value for two and for three rows; `None` if it has no twin, or one of another rank.
    fn dims(&self, id: ValueId) -> Option<[&[usize]; 2]> {
        let [two, three] = self.graphs;
        let all = [&two.value(id).dims[..], &three.value(self.twins[id.0]?).dims[..]];
        (all[0].len() == all[1].len()).then_some(all)
    }

    /// The dimensions of a value for two rows.
    fn first_dims(&self, id: ValueId) -> &'a [usize] {
        &self.graphs[0].value(id).dims
    }

    /// The node of the graph for three rows that is like this one.
    fn twin(&self, node: &Node) -> Option<&'a Node> {
        let three = self.graphs[1];
        let Origin::Node(twin, _) = three.values[self.twins[node.outputs[0].0]?.0].origin else { return None };
        Some(&three.nodes[twin.0])
    }

    /// A value with rows along an axis: all other dimensions are the same for two and for three rows.
    fn of_axis(&self, id: ValueId, along: Along) -> Result<Of, Mixed> {
        let inner = |dims: &[usize]| along.inner * dims[along.axis + 1..].iter().product::<usize>();
        let [two, _] = self.dims(id).ok_or(Mixed)?;
        two.get(along.axis).ok_or(Mixed)?;
        match self.along(id, inner(two)) {
            Some(found) if found == along => Ok(Of::Rows { inner: inner(two) }),
            _ => Err(Mixed),
        }
    }

    /// The axis of a value that the rows are along; `None` if they are along no single axis, or another dimension
    /// depends on their number.
    fn along(&self, id: ValueId, inner: usize) -> Option<Along> {
        let [two, three] = self.dims(id)?;
        let along = split(two, inner, 2)?;
        let is_alike = differing(two, three).eq([along.axis]) && two[along.axis] / 2 == three[along.axis] / 3;
        (is_alike && split(three, inner, 3) == Some(along)).then_some(along)
    }

    /// The axis of a value that the rows are along; `None` if it is the same for any number of rows. Where equal
    /// elements can be rows in several ways, `like` says how other operands have them.
    fn seen(&self, id: ValueId, of: Of, like: Option<usize>) -> Result<Option<Along>, Mixed> {
        match of {
            Of::Same => Ok(None),
            Of::Rows { inner } => self.along(id, inner).map(Some).ok_or(Mixed),
            Of::Filled => {
                let [two, three] = self.dims(id).ok_or(Mixed)?;
                let mut axes = differing(two, three);
                match (axes.next(), axes.next()) {
                    (None, _) => Ok(None),
                    (Some(axis), None) if two[axis] % 2 == 0 && two[axis] / 2 * 3 == three[axis] => {
                        let most = two[axis] / 2;
                        let inner = like.filter(|&inner| inner > 0 && most % inner == 0).unwrap_or(most);
                        Ok(Some(Along { axis, inner }))
                    }
                    _ => Err(Mixed),
                }
            }
            Of::Numbers { .. } | Of::Numbered { .. } | Of::Mixed(_) => Err(Mixed),
        }
    }

    /// The axes of a node's operands that the rows are along.
    fn operands(&self, node: &Node) -> Result<Vec<Option<Along>>, Mixed> {
        let all = |like| {
            let seen = |id: &Option<ValueId>| id.map_or(Ok(None), |id| self.seen(id, self.of[id.0], like));
            node.inputs.iter().map(seen).collect::<Result<Vec<_>, _>>()
        };
        let is_rows = |id: &&ValueId| matches!(self.of[id.0], Of::Rows { .. });
        let like =
            node.inputs.iter().flatten().find(is_rows).map(|&id| self.seen(id, self.of[id.0], None)).transpose()?;
        all(like.flatten().map(|along| along.inner))
    }

    /// What is known of a node's results.
    fn of_node(&self, number: usize, node: &Node) -> Result<Vec<Of>, Mixed> {
        let twin = self.twin(node).ok_or(Mixed)?;
        if self.ranges.contains(&number) {
            return Ok(vec![Of::Same]);
        }
        let mut known = node.inputs.iter().flatten().map(|id| self.of[id.0]);
        let is_same = known.clone().all(|of| of == Of::Same);
        let has_same_dims = |&id: &ValueId| self.dims(id).is_some_and(|[two, three]| two == three);
        if is_same && node.op == twin.op && node.outputs.iter().all(has_same_dims) {
            return Ok(vec![Of::Same; node.outputs.len()]);
        }
        if known.any(|of| matches!(of, Of::Numbers { .. } | Of::Numbered { .. })) {
            return self.of_numbers(node).map(|of| vec![of]);
        }
        if let Some(of) = self.of_places(node) {
            return Ok(vec![of]);
        }
        let operands = self.operands(node)?;
        let along = if let (Op::Slice(one), Op::Slice(other)) = (&node.op, &twin.op) {
            vec![self.sliced(node, [one, other], operands[0])?]
        } else if let (Op::Conv(one) | Op::ConvTranspose(one, _), Op::Conv(other) | Op::ConvTranspose(other, _)) =
            (&node.op, &twin.op)
            && one.groups != other.groups
        {
            self.by_groups(node, [one, other], &operands)?
        } else {
            self.by_axes(node, &operands)?
        };
        node.outputs.iter().zip(along).map(|(&output, along)| self.of_axis(output, along)).collect()
    }

    /// Of a node whose result has the elements of operands at the same places, or one number everywhere.
    fn of_places(&self, node: &Node) -> Option<Of> {
        let output = node.outputs[0];
        let of = |id: ValueId| self.of[id.0];
        match (&node.op, node.inputs.first().copied().flatten()) {
            (Op::Reshape(_), Some(id)) if of(id) != Of::Same => Some(of(id)),
            (Op::Broadcast(_) | Op::Slice(_) | Op::Gather(_), Some(id)) if of(id) == Of::Filled => Some(Of::Filled),
            (Op::Broadcast(_), Some(id)) if of(id) == Of::Same && self.graphs[0].value(id).elems() == 1 => {
                Some(Of::Filled)
            }
            (Op::Map(expr), Some(_)) if expr.axes() == 0 => {
                let is_one = |id: &ValueId| of(*id) == Of::Same && self.graphs[0].value(*id).elems() == 1;
                let mut all = node.inputs.iter().flatten().filter(|id| !is_one(id));
                let first = *all.clone().next()?;
                let is_at_same_places = |id: &ValueId| of(*id) == of(first) && self.dims(*id) == self.dims(output);
                match of(first) {
                    Of::Filled => all.all(|id| of(*id) == Of::Filled).then_some(Of::Filled),
                    Of::Rows { .. } => all.all(is_at_same_places).then_some(of(first)),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Of a node that reads the numbers of rows.
    fn of_numbers(&self, node: &Node) -> Result<Of, Mixed> {
        let of = |index: usize| node.inputs.get(index).copied().flatten().map(|id| (id, self.of[id.0]));
        let along = |id: ValueId, inner| self.along(id, inner).ok_or(Mixed);
        match (&node.op, of(0)) {
            (Op::Map(expr), Some((_, numbers))) if passes_indices_on(expr) => Ok(numbers),
            (Op::Reshape(_), Some((_, numbers @ Of::Numbers { .. }))) => Ok(numbers),
            (Op::Reshape(dims), Some((id, numbers))) if dims.last() == self.first_dims(id).last() => Ok(numbers),
            (Op::Broadcast(_) | Op::Transpose(_), Some((id, Of::Numbers { inner }))) => {
                let moved = self.by_axes(node, &[Some(along(id, inner)?)])?;
                match self.of_axis(node.outputs[0], moved[0])? {
                    Of::Rows { inner } => Ok(Of::Numbers { inner }),
                    _ => Err(Mixed),
                }
            }
            (Op::Concat(axis), _) => self.numbered(node, *axis),
            (Op::Gather(0), Some((data, Of::Rows { inner }))) => match (along(data, inner)?, of(1)) {
                (Along { axis: 0, inner: 1 }, Some((id, Of::Numbers { inner }))) if self.counts_rows(data, 0) => {
                    self.of_axis(node.outputs[0], along(id, inner)?)
                }
                _ => Err(Mixed),
            },
            (Op::GatherNd(0), Some((data, of_data))) => {
                let places = self.own_places(node, data, of_data)?;
                self.of_axis(node.outputs[0], places)
            }
            (Op::ScatterNd(_), Some((data, of_data))) => {
                let places = self.own_places(node, data, of_data)?;
                let (updates, of_updates) = of(2).ok_or(Mixed)?;
                match (self.seen(updates, of_updates, Some(places.inner))?, self.seen(data, of_data, None)?) {
                    (Some(along), Some(rows)) if along == places => self.of_axis(node.outputs[0], rows),
                    _ => Err(Mixed),
                }
            }
            _ => Err(Mixed),
        }
    }

    /// Whether a value has as many indices along an axis as there are rows.
    fn counts_rows(&self, id: ValueId, axis: usize) -> bool {
        self.dims(id).is_some_and(|[two, three]| (two[axis], three[axis]) == (2, 3))
    }

    /// The axis of indices of slices along which they are rows, if each names its own row of the data alone.
    fn own_places(&self, node: &Node, data: ValueId, of_data: Of) -> Result<Along, Mixed> {
        let indices = node.inputs[1].ok_or(Mixed)?;
        let dims = self.first_dims(indices);
        let (inner, at) = match self.of[indices.0] {
            Of::Numbers { inner } if dims.last() == Some(&1) => (inner, 0),
            Of::Numbered { inner, at } => (inner, at),
            _ => return Err(Mixed),
        };
        let is_own =
            self.seen(data, of_data, None)? == Some(Along { axis: at, inner: 1 }) && self.counts_rows(data, at);
        self.along(indices, inner).filter(|along| is_own && along.axis + 1 < dims.len()).ok_or(Mixed)
    }

    /// Of numbers of rows and other indices, joined along the last axis.
    fn numbered(&self, node: &Node, axis: usize) -> Result<Of, Mixed> {
        let (mut places, mut number, mut index) = (Vec::new(), None, 0);
        for &id in node.inputs.iter().flatten() {
            match self.of[id.0] {
                Of::Numbers { inner } if number.is_none() && self.first_dims(id).get(axis) == Some(&1) => {
                    number = Some(index);
                    places.push(self.along(id, inner));
                }
                of => places.push(self.seen(id, of, None)?),
            }
            index += self.first_dims(id)[axis];
        }
        let (along, at) = (places[0].ok_or(Mixed)?, number.ok_or(Mixed)?);
        let is_last = axis + 1 == self.first_dims(node.outputs[0]).len() && along.axis != axis;
        match (is_last && places.iter().all(|place| *place == places[0]), self.of_axis(node.outputs[0], along)?) {
            (true, Of::Rows { inner }) => Ok(Of::Numbered { inner, at }),
            _ => Err(Mixed),
        }
    }

    /// The axes of a node's results that the rows are along, from those of its operands.
    fn by_axes(&self, node: &Node, operands: &[Option<Along>]) -> Result<Vec<Along>, Mixed> {
        let first = operands.first().copied().flatten();
        let is_alone = operands.iter().skip(1).all(Option::is_none);
        match (&node.op, first) {
            (Op::Map(expr), _) => self.mapped(node, expr, operands),
            (Op::Contract(contract), _) => contracted(contract, operands[0], operands[1]),
            (Op::Concat(axis), Some(along)) => {
                // Whole rows behind whole rows along their own axis are rows again.
                let is_whole = along.axis != *axis || operands.iter().all(Option::is_some);
                let is_same = operands.iter().all(|other| *other == first);
                if is_same && is_whole { Ok(vec![along]) } else { Err(Mixed) }
            }
            (Op::Gather(axis), _) => self.gathered(node, *axis, operands[0], operands[1]).map(|along| vec![along]),
            (Op::GatherElements(axis), Some(along)) => {
                unmixed(along, |of| of == *axis || operands[1] != first || !self.are_as_long(node, of))
            }
            (Op::GatherNd(batch), _) => self.gathered_nd(node, *batch, operands[0], operands[1]),
            (Op::ScatterElements(axis, _), Some(along)) => {
                let is_same = operands.iter().all(|other| *other == first);
                unmixed(along, |of| of == *axis || !is_same || !self.are_as_long(node, of))
            }
            (Op::ScatterNd(_), Some(along)) => {
                let indices = self.first_dims(node.inputs[1].ok_or(Mixed)?);
                let (&indexed, outer) = indices.split_last().ok_or(Mixed)?;
                let of_updates = Along { axis: (along.axis + outer.len()).wrapping_sub(indexed), ..along };
                unmixed(along, |of| of < indexed || operands[1].is_some() || operands[2] != Some(of_updates))
            }
            (Op::Reduce(reduce), Some(along)) => reduced(reduce, along),
            (Op::ArgReduce(reduce), Some(along)) => {
                unmixed(along, |axis| axis == reduce.axis)?;
                Ok(vec![Along { axis: along.axis - usize::from(!reduce.keep && reduce.axis < along.axis), ..along }])
            }
            (Op::Cumulate(cumulate), Some(along)) => unmixed(along, |axis| axis == cumulate.axis),
            (Op::Softmax { axis: of, .. }, Some(along)) => unmixed(along, |axis| axis == *of),
            (Op::TopK(top), Some(along)) => unmixed(along, |axis| axis == top.axis).map(|found| found.repeat(2)),
            (Op::Norm(norm), Some(along)) => {
                unmixed(along, |axis| axis >= norm.axis)?;
                self.broadcast(node, operands)
            }
            (Op::Transpose(axes), Some(along)) => {
                let axis = axes.iter().position(|&axis| axis == along.axis).ok_or(Mixed)?;
                Ok(vec![Along { axis, ..along }])
            }
            (Op::Broadcast(_), Some(_)) => self.broadcast(node, operands),
            (Op::Broadcast(_), None) => self.repeated(node).map(|along| vec![along]),
            (Op::Pad(pad), Some(along)) => unmixed(along, |axis| pad.before[axis] != 0 || pad.after[axis] != 0),
            (Op::Resize(resize), Some(along)) => self.resized(node, resize, along),
            (Op::Conv(conv), Some(along)) if is_alone => match along.axis {
                0 => Ok(vec![along]),
                _ => unmixed(along, |axis| !leaves(&conv.window, axis)),
            },
            (Op::ConvTranspose(..), Some(along)) if is_alone => unmixed(along, |axis| axis != 0),
            (Op::Pool(pool), Some(along)) => self.pooled(node, pool, along),
            (Op::Quantize { axis, .. } | Op::Dequantize { axis }, Some(along)) => {
                let of_scales = |(axis, inner)| Some(Along { axis, inner });
                let is_own = |found: &Option<Along>| {
                    found.is_none() || *axis == Some(along.axis) && *found == of_scales((0, along.inner))
                };
                unmixed(along, |_| !operands[1..].iter().all(is_own))
            }
            (Op::Recurrent(_), Some(along)) => recurrent(node, operands, along),
            _ => Err(Mixed),
        }
    }

    /// Whether all operands of a node are as long as its first one along an axis.
    fn are_as_long(&self, node: &Node, axis: usize) -> bool {
        let mut sizes = node.inputs.iter().flatten().map(|&id| self.dims(id).map(|all| all.map(|dims| dims[axis])));
        let first = sizes.next().flatten();
        first.is_some() && sizes.all(|size| size == first)
    }

    fn mapped(&self, node: &Node, expr: &Expr, operands: &[Option<Along>]) -> Result<Vec<Along>, Mixed> {
        let found = self.broadcast(node, operands)?;
        if expr.reads_index(found[0].axis) { Err(Mixed) } else { Ok(found) }
    }

    /// Of an operation whose operands are broadcast to its result.
    fn broadcast(&self, node: &Node, operands: &[Option<Along>]) -> Result<Vec<Along>, Mixed> {
        let rank = self.first_dims(node.outputs[0]).len();
        let of_result = |(along, id): (&Option<Along>, &Option<ValueId>)| {
            let (along, id) = ((*along)?, (*id)?);
            Some(Along { axis: along.axis + rank - self.first_dims(id).len(), ..along })
        };
        let mut found = operands.iter().zip(&node.inputs).filter_map(of_result);
        let first = found.next().ok_or(Mixed)?;
        if found.all(|other| other == first) { Ok(vec![first]) } else { Err(Mixed) }
    }

    /// Of a value without rows that is repeated along one axis for each row.
    fn repeated(&self, node: &Node) -> Result<Along, Mixed> {
        let output = node.outputs[0];
        let along = self.seen(output, Of::Filled, None)?.ok_or(Mixed)?;
        let from = self.first_dims(node.inputs[0].ok_or(Mixed)?);
        let added = self.first_dims(output).len() - from.len();
        let is_repeated = along.axis < added || from[along.axis - added] == 1;
        if is_repeated { Ok(along) } else { Err(Mixed) }
    }

    fn gathered(&self, node: &Node, axis: usize, data: Option<Along>, indices: Option<Along>) -> Result<Along, Mixed> {
        let added = node.inputs[1].map_or(0, |id| self.first_dims(id).len());
        match (data, indices) {
            (Some(data), None) if data.axis < axis => Ok(data),
            (Some(data), None) if data.axis > axis => Ok(Along { axis: data.axis + added - 1, ..data }),
            (None, Some(indices)) => Ok(Along { axis: axis + indices.axis, ..indices }),
            _ => Err(Mixed), // some rows for all, or each row's places in each row
        }
    }

    fn gathered_nd(
        &self,
        node: &Node,
        batch: usize,
        data: Option<Along>,
        indices: Option<Along>,
    ) -> Result<Vec<Along>, Mixed> {
        let dims = self.first_dims(node.inputs[1].ok_or(Mixed)?);
        let (&indexed, outer) = dims.split_last().ok_or(Mixed)?;
        match (data, indices) {
            (Some(data), Some(indices)) => unmixed(data, |axis| axis >= batch || indices != data),
            (None, Some(indices)) => unmixed(indices, |axis| axis >= outer.len()),
            (Some(data), None) if data.axis >= batch + indexed => {
                Ok(vec![Along { axis: data.axis + outer.len() - batch - indexed, ..data }])
            }
            _ => Err(Mixed),
        }
    }

    /// Of a slice that keeps all rows, or some of several times all rows.
    fn sliced(&self, node: &Node, slices: [&Slice; 2], along: Option<Along>) -> Result<Along, Mixed> {
        let along = along.ok_or(Mixed)?;
        let axis = along.axis;
        let rest = |slice: &Slice| {
            let others = (0..slice.dims.len()).filter(|&other| other != axis);
            others.map(|other| (slice.start[other], slice.step[other], slice.dims[other])).collect::<Vec<_>>()
        };
        let sizes = self.dims(input(node)).ok_or(Mixed)?.map(|dims| dims[axis]);
        let part = |of: usize| {
            let (slice, unit) = (slices[of], along.inner * (2 + of));
            let (start, len) = (slice.start[axis], slice.dims[axis]);
            let is_whole = start == 0 && len == sizes[of] || start.is_multiple_of(unit) && len.is_multiple_of(unit);
            (slice.step[axis] == 1 && is_whole && len > 0).then(|| (start / unit, len / unit))
        };
        let is_kept = part(0).is_some() && part(0) == part(1) && rest(slices[0]) == rest(slices[1]);
        if is_kept { Ok(along) } else { Err(Mixed) }
    }

    fn resized(&self, node: &Node, resize: &Resize, along: Along) -> Result<Vec<Along>, Mixed> {
        let [from, to] = [input(node), node.outputs[0]].map(|id| self.dims(id));
        let (from, to) = (from.ok_or(Mixed)?, to.ok_or(Mixed)?);
        unmixed(along, |axis| {
            let is_as_long = (0..2).all(|of| from[of][axis] == to[of][axis]);
            let is_cropped = resize.coordinates == ResizeCoordinates::Crop && resize.crop[axis] != [0.0, 1.0];
            !is_as_long || resize.scales[axis] != 1.0 || is_cropped
        })
    }

    fn pooled(&self, node: &Node, pool: &Pool, along: Along) -> Result<Vec<Along>, Mixed> {
        let last = self.first_dims(input(node)).len() - 1;
        match along.axis {
            axis if axis == 0 || axis == last => Ok(vec![along; node.outputs.len()]), // each channel by itself
            axis if node.outputs.len() == 1 && leaves(&pool.window, axis) => Ok(vec![along]),
            _ => Err(Mixed),
        }
    }

    /// Of a convolution with a group of channels, and a filter, for each row.
    fn by_groups(&self, node: &Node, convs: [&Conv; 2], operands: &[Option<Along>]) -> Result<Vec<Along>, Mixed> {
        let (Some(pixels), Some(filter)) = (operands[0], operands[1]) else { return Err(Mixed) };
        let x = self.first_dims(input(node));
        let filters = self.first_dims(node.inputs[1].ok_or(Mixed)?);
        let channels = self.first_dims(node.outputs[0]).last().ok_or(Mixed)? / 2;
        let is_split = convs[0].groups.is_multiple_of(2) && convs[0].groups / 2 * 3 == convs[1].groups;
        let has_bias = node.inputs.get(2).is_some_and(Option::is_some);
        let is_own = pixels == (Along { axis: x.len() - 1, inner: x[x.len() - 1] / 2 })
            && filter == (Along { axis: 0, inner: filters[0] / 2 })
            && (!has_bias || operands[2] == Some(Along { axis: 0, inner: channels }));
        match is_split && is_own {
            true => Ok(vec![Along { axis: x.len() - 1, inner: channels }]),
            false => Err(Mixed),
        }
    }
}

/// A node's first operand.
fn input(node: &Node) -> ValueId {
    node.inputs[0].expect("rows are along its axis")
}

/// # Errors
/// Rows that are along an axis of which a node mixes the elements.
fn unmixed(along: Along, mixes: impl Fn(usize) -> bool) -> Result<Vec<Along>, Mixed> {
    if mixes(along.axis) { Err(Mixed) } else { Ok(vec![along]) }
}

/// The axis of these dimensions that so many rows are along, if each is `inner` elements in one piece.
fn split(dims: &[usize], inner: usize, rows: usize) -> Option<Along> {
    let mut stride = 1;
    for axis in (0..dims.len()).rev() {
        let next = stride * dims[axis];
        if next > inner {
            let of_axis = inner / stride;
            let is_whole = inner.is_multiple_of(stride) && dims[axis].is_multiple_of(rows * of_axis);
            return is_whole.then_some(Along { axis, inner: of_axis });
        }
        stride = next;
    }
    None
}

/// The axes with other sizes in one list of dimensions than in the other.
fn differing<'a>(one: &'a [usize], other: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    one.iter().zip(other).enumerate().filter(|(_, (a, b))| a != b).map(|(axis, _)| axis)
}

/// Whether windows leave each index along an axis by itself.
fn leaves(window: &Window, axis: usize) -> bool {
    let is = |of: &[usize], expected| axis.checked_sub(1).and_then(|axis| of.get(axis)) == Some(&expected);
    is(&window.size, 1) && is(&window.stride, 1) && window.pad[axis - 1] == [0, 0]
}

/// Whether a map passes indices on, perhaps in another type.
fn passes_indices_on(expr: &Expr) -> bool {
    match expr {
        Expr::Arg(0) => true,
        Expr::Cast(Dtype::I32 | Dtype::I64, of) => passes_indices_on(of),
        _ => false,
    }
}

fn reduced(reduce: &Reduce, along: Along) -> Result<Vec<Along>, Mixed> {
    unmixed(along, |axis| reduce.axes.contains(&axis))?;
    let before = reduce.axes.iter().filter(|&&axis| axis < along.axis).count();
    Ok(vec![Along { axis: along.axis - if reduce.keep { 0 } else { before }, ..along }])
}

/// Of products with rows along axes of their operands.
fn contracted(of: &Contract, left: Option<Along>, right: Option<Along>) -> Result<Vec<Along>, Mixed> {
    let label = |labels: &[usize], along: Option<Along>| along.map(|along| (labels[along.axis], along.inner));
    let (label, inner) = match (label(&of.left, left), label(&of.right, right)) {
        (Some(one), Some(other)) if one != other => return Err(Mixed), // each row by each row
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => return Err(Mixed),
    };
    let axis = of.result.iter().position(|&of| of == label).ok_or(Mixed)?; // else a sum over rows
    Ok(vec![Along { axis, inner }])
}

/// The batch is the second axis of inputs, states and results, the only one of lengths, and none of weights.
fn recurrent(node: &Node, operands: &[Option<Along>], along: Along) -> Result<Vec<Along>, Mixed> {
    let of_rows = |number: usize| match number {
        LENGTHS => Some(Along { axis: 0, ..along }),
        number if WEIGHTS.contains(&number) => None,
        _ => Some(Along { axis: 1, ..along }),
    };
    let mut all = operands.iter().enumerate().zip(&node.inputs).filter(|(_, id)| id.is_some());
    let is_kept = all.all(|((number, found), _)| *found == of_rows(number));
    if is_kept { Ok(vec![along; node.outputs.len()]) } else { Err(Mixed) }
}

/// For each value of a graph the value of another one that stands for it: outputs for outputs, and what like nodes read
/// for each other.
fn twins(two: &Graph, three: &Graph) -> Vec<Option<ValueId>> {
    let mut twins = Twins { of: vec![None; two.values.len()], torn: vec![false; two.values.len()] };
    two.outputs.iter().zip(&three.outputs).for_each(|(a, b)| twins.pair(a.value, b.value));
    for node in two.nodes.iter().rev() {
        match twins.node(node, three) {
            Some(twin) => {
                node.outputs.iter().zip(&twin.outputs).for_each(|(a, b)| twins.pair(*a, *b));
                let read = node.inputs.iter().zip(&twin.inputs).filter_map(|(a, b)| a.zip(*b));
                read.for_each(|(a, b)| twins.pair(a, b));
            }
            None => node.outputs.iter().for_each(|output| twins.of[output.0] = None),
        }
    }
    twins.of.into_iter().zip(twins.torn).map(|(twin, is_torn)| twin.filter(|_| !is_torn)).collect()
}

struct Twins {
    of: Vec<Option<ValueId>>,
    /// Whether several values stand for it.
    torn: Vec<bool>,
}

impl Twins {
    fn pair(&mut self, a: ValueId, b: ValueId) {
        self.torn[a.0] |= self.of[a.0].is_some_and(|other| other != b);
        self.of[a.0] = Some(b);
    }

    /// The node that writes the values that stand for those of this node, if it is like it.
    fn node<'a>(&self, node: &Node, graph: &'a Graph) -> Option<&'a Node> {
        let paired = || node.outputs.iter().enumerate().filter_map(|(index, id)| Some((index, self.of[id.0]?, id)));
        let Origin::Node(number, _) = graph.values[paired().next()?.1.0].origin else { return None };
        let twin = &graph.nodes[number.0];
        let is_written = paired().all(|(index, of, id)| !self.torn[id.0] && twin.outputs.get(index) == Some(&of));
        let reads_as_many = node.inputs.iter().map(Option::is_some).eq(twin.inputs.iter().map(Option::is_some));
        (is_written && reads_as_many && are_alike(&node.op, &twin.op)).then_some(twin)
    }
}

/// Whether operations are the same but for sizes. The parts of axes that slices take, and groups of channels, are
/// compared elsewhere.
fn are_alike(one: &Op, other: &Op) -> bool {
    match (one, other) {
        (Op::Reshape(_), Op::Reshape(_)) | (Op::Broadcast(_), Op::Broadcast(_)) | (Op::Slice(_), Op::Slice(_)) => true,
        (Op::Resize(one), Op::Resize(other)) => *one == Resize { dims: one.dims.clone(), ..other.clone() },
        (Op::Conv(one), Op::Conv(other)) => one.window == other.window,
        (Op::ConvTranspose(one, dims), Op::ConvTranspose(other, of)) => one.window == other.window && dims == of,
        // NaN is no equal of itself.
        _ => one == other || one.kind() == other.kind() && format!("{one:?}") == format!("{other:?}"),
    }
}

/// What is known of a constant of the graphs for two and for three rows.
fn of_constants([(two, a), (three, b)]: [(&ValueType, &Constant); 2]) -> Option<Of> {
    if two == three {
        return (a == b).then_some(Of::Same);
    }
    let (Constant::Bytes(a), Constant::Bytes(b)) = (a, b) else { return None };
    let size = two.dtype.bytes();
    if let Some(first) = a.chunks(size).next()
        && a.chunks(size).chain(b.chunks(size)).all(|elem| elem == first)
    {
        return Some(Of::Filled);
    }
    let mut axes = differing(&two.dims, &three.dims);
    let (axis, None) = (axes.next()?, axes.next()) else { return None };
    let most = two.dims[axis] / 2;
    if two.dtype != three.dtype
        || two.rank() != three.rank()
        || [2 * most, 3 * most] != [two.dims[axis], three.dims[axis]]
    {
        return None;
    }
    let behind = two.dims[axis + 1..].iter().product::<usize>();
    let inners = || (1..=most).rev().filter(|inner| most % inner == 0).map(|inner| inner * behind);
    let is_repeated = |&inner: &usize| are_equal([a, b], inner * size);
    if let Some(inner) = inners().find(is_repeated) {
        return Some(Of::Rows { inner });
    }
    let elems = [(two, a), (three, b)].map(|(of, bytes)| Tensor::from_bytes(of.clone(), bytes).to_i64s());
    let [Some(a), Some(b)] = elems else { return None };
    inners().find_map(|inner| of_indices([&a, &b], inner, *two.dims.last()?))
}

/// Of indices of which some are the numbers of rows.
fn of_indices(elems: [&[i64]; 2], inner: usize, last: usize) -> Option<Of> {
    let less_own = |is_own: &dyn Fn(usize) -> bool| {
        let of = |rows: usize| {
            let own = |place: usize| if is_own(place) { (place / inner % rows) as i64 } else { 0 };
            elems[rows - 2].iter().enumerate().map(|(place, elem)| elem - own(place)).collect::<Vec<_>>()
        };
        [of(2), of(3)]
    };
    let [a, b] = less_own(&|_| true);
    if a.iter().chain(&b).all(|&left| left == 0) {
        return Some(Of::Numbers { inner });
    }
    (0..last).find_map(|at| {
        let [a, b] = less_own(&|place| place % last == at);
        let is_zero = |all: &[i64]| all.iter().skip(at).step_by(last).all(|&left| left == 0);
        (is_zero(&a) && is_zero(&b) && are_equal([&a, &b], inner)).then_some(Of::Numbered { inner, at })
    })
}

/// Whether all rows are equal, of two rows in the first list and three in the second one, with pieces of `inner`
/// elements.
fn are_equal<T: PartialEq>(elems: [&[T]; 2], inner: usize) -> bool {
    let row = |rows: usize, number: usize| elems[rows - 2].chunks(inner).skip(number).step_by(rows);
    [2, 3].into_iter().all(|rows| (0..rows).all(|number| row(rows, number).eq(row(2, 0))))
}

/// The nodes that find the minimum and the maximum of a tensor that is then quantized by them.
fn ranges(graph: &Graph) -> HashSet<usize> {
    let writer = |id: ValueId| if let Origin::Node(node, _) = graph.values[id.0].origin { Some(node.0) } else { None };
    let mut ranges = HashSet::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Quantize { .. })) {
        let (Some(Some(x)), Some(Some(scale))) = (node.inputs.first(), node.inputs.get(1)) else { continue };
        // The scale is (max(maximum, 0) - min(minimum, 0)) / 255.
        let above = |id: ValueId| {
            let node = &graph.nodes[writer(id)?];
            matches!(node.op, Op::Map(_)).then(|| node.inputs.iter().copied().flatten().collect::<Vec<_>>())
        };
        let ends = above(*scale).into_iter().flatten().filter_map(above).flatten().filter_map(writer);
        let is_range = |&end: &usize| {
            let (Op::Reduce(of), from) = (&graph.nodes[end].op, graph.nodes[end].inputs[0]) else { return false };
            from == Some(*x)
                && matches!(of.op, ReduceOp::Min | ReduceOp::Max)
                && of.axes.len() == graph.value(*x).rank()
        };
        let ends: Vec<usize> = ends.filter(is_range).collect();
        if ends.len() == 2 && graph.nodes[ends[0]].op != graph.nodes[ends[1]].op {
            ranges.extend(ends);
        }
    }
    ranges
}

/// The graphs for one and for two rows.
struct Single<'a> {
    one: &'a Graph,
    two: &'a Graph,
}

impl<'a> Single<'a> {
    /// The name of the first node from the outputs that computes something else for one row than for two.
    fn differs(&self) -> Option<&'a str> {
        let outputs = self.one.outputs.iter().zip(&self.two.outputs);
        let mut left: Vec<_> = outputs.map(|(a, b)| (a.value, b.value, b.name.as_str())).collect();
        let mut seen = HashSet::new();
        while let Some((a, b, reader)) = left.pop() {
            let (a, b) = (viewed(self.one, a), viewed(self.two, b));
            if !seen.insert((a, b)) {
                continue;
            }
            match (&self.one.values[a.0].origin, &self.two.values[b.0].origin) {
                (Origin::Input(a), Origin::Input(b)) if a == b => {}
                (Origin::Constant(of), Origin::Constant(other))
                    if of == other || self.one.value(a) != self.two.value(b) => {}
                (Origin::Node(a, of), Origin::Node(b, other)) => {
                    let (a, b) = (&self.one.nodes[a.0], &self.two.nodes[b.0]);
                    let [(op, read), (other_op, other_read)] = [plain(self.one, a), plain(self.two, b)];
                    if of != other || !are_alike(&op, &other_op) || read.len() != other_read.len() {
                        return Some(&b.name);
                    }
                    left.extend(read.into_iter().zip(other_read).map(|(one, two)| (one, two, b.name.as_str())));
                }
                (_, Origin::Node(node, _)) => return Some(&self.two.nodes[node.0].name),
                _ => return Some(reader),
            }
        }
        None
    }
}

/// The value whose elements a value has, in other dimensions or repeated: for one row such nodes may do nothing.
fn viewed(graph: &Graph, mut id: ValueId) -> ValueId {
    while let Origin::Node(node, _) = graph.values[id.0].origin
        && let Node { op: Op::Reshape(_) | Op::Broadcast(_), inputs, .. } = &graph.nodes[node.0]
        && let Some(Some(from)) = inputs.first()
    {
        id = *from;
    }
    id
}

/// The operation of a node and the values that it reads. A map has numbers instead of constants whose elements are all
/// the same.
fn plain(graph: &Graph, node: &Node) -> (Op, Vec<ValueId>) {
    let Op::Map(expr) = &node.op else { return (node.op.clone(), node.inputs.iter().flatten().copied().collect()) };
    let mut read = Vec::new();
    let args = node.inputs.iter().flatten().map(|&id| {
        number(graph, viewed(graph, id)).unwrap_or_else(|| {
            read.push(id);
            Expr::arg(read.len() - 1)
        })
    });
    let args: Vec<Expr> = args.collect();
    (Op::Map(expr.clone().with_args(&args)), read)
}

/// The number that all elements of a constant are.
fn number(graph: &Graph, id: ValueId) -> Option<Expr> {
    let (of, Some(Constant::Bytes(bytes))) = (graph.value(id), graph.constant(id)) else { return None };
    let mut elems = bytes.chunks(of.dtype.bytes());
    let first = elems.next()?;
    if !elems.all(|elem| elem == first) {
        return None;
    }
    let first = Tensor::from_bytes(ValueType::new(of.dtype, &[]), first);
    let number = match of.dtype {
        Dtype::U64 => Number::Int(first.elems::<u64>()[0].into()),
        dtype if dtype.is_float() => Number::Float(first.to_f64s()[0]),
        _ => Number::Int(first.to_i64s()?[0].into()),
    };
    Some(Expr::Const(of.dtype, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{ArgReduce, Binary, Cumulate, GraphBuilder, Norm, Pad, PadMode, RecurrentCell, Scatter, TopK};

    /// The node that mixes the rows of `x` of f32 `[rows, 3, 4]`, in graphs that are built for so many rows.
    fn found(build: impl Fn(&mut GraphBuilder, ValueId, usize) -> ValueId) -> Option<String> {
        let graphs = [1, 2, 3].map(|rows| {
            let mut g = GraphBuilder::new();
            let x = g.input("x", Dtype::F32, &[rows, 3, 4]);
            let y = build(&mut g, x, rows);
            g.output("y", y);
            g.finish().expect("a graph")
        });
        mixes(graphs.each_ref(), [&[0], &[0]]).map(str::to_owned)
    }

    fn one(op: impl Fn(usize) -> Op) -> Option<String> {
        found(|g, x, rows| g.node("of", op(rows), &[x]))
    }

    /// The sum of x and of the operation's result, which is broadcast.
    fn added(op: impl Fn(usize) -> Op) -> Option<String> {
        found(|g, x, rows| {
            let y = g.node("of", op(rows), &[x]);
            g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y])
        })
    }

    fn with_constant(dims: impl Fn(usize) -> Vec<usize>, elem: impl Fn(usize, usize) -> f32) -> Option<String> {
        found(|g, x, rows| {
            let dims = dims(rows);
            let elems: Vec<f32> = (0..dims.iter().product()).map(|at| elem(at, rows)).collect();
            let constant = g.constant(Dtype::F32, &dims, bytemuck::cast_slice(&elems).to_vec());
            g.map("of", Expr::arg(0) + Expr::arg(1), &[x, constant])
        })
    }

    fn reduce(op: ReduceOp, axes: &[usize]) -> Op {
        Op::Reduce(Reduce { op, axes: axes.to_vec(), keep: true })
    }

    #[test]
    fn what_goes_along_the_batch_mixes_its_rows() {
        let cumulate = |axis| Op::Cumulate(Cumulate { op: ReduceOp::Sum, axis, exclusive: false, reverse: false });
        let norm = |axis| Op::Norm(Norm { axis, eps: 1e-5, centred: true });
        let softmax = |axis| Op::Softmax { axis, log: false };
        let slice = |start: [usize; 3], step, dims: [usize; 3]| {
            Op::Slice(Slice { start: start.to_vec(), step, dims: dims.to_vec() })
        };
        for of in [softmax(0), cumulate(0), norm(0)] {
            assert_eq!(one(|_| of.clone()).as_deref(), Some("of"), "{of:?}");
        }
        for of in [softmax(1), cumulate(2), norm(1)] {
            assert_eq!(one(|_| of.clone()), None, "{of:?}");
        }
        for of in [reduce(ReduceOp::Mean, &[0]), reduce(ReduceOp::Sum, &[0, 1, 2]), reduce(ReduceOp::Max, &[0])] {
            assert!(added(|_| of.clone()).is_some(), "{of:?}");
        }
        assert_eq!(added(|_| reduce(ReduceOp::Mean, &[1, 2])), None);
        assert!(one(|rows| slice([rows - 1, 0, 0], vec![-1, 1, 1], [rows, 3, 4])).is_some()); // the other way round
        assert!(added(|_| slice([0, 0, 0], vec![1, 1, 1], [1, 3, 4])).is_some()); // the first row for all
        assert_eq!(added(|rows| slice([0, 2, 3], vec![1, 1, -1], [rows, 1, 4])), None);
    }

    #[test]
    fn rows_are_followed_through_other_dimensions() {
        // [n, 3, 4] -> [3n, 4] -> [4, 3n] -> [2, 2, 3n] -> [2, 3n, 2] -> [2, n, 3, 2]: the batch is then the second.
        let of_axis = |axis| {
            found(|g, x, rows| {
                let x = g.node("flat", Op::Reshape(vec![3 * rows, 4]), &[x]);
                let x = g.node("turned", Op::Transpose(vec![1, 0]), &[x]);
                let x = g.node("parts", Op::Reshape(vec![2, 2, 3 * rows]), &[x]);
                let x = g.node("behind", Op::Transpose(vec![0, 2, 1]), &[x]);
                let x = g.node("apart", Op::Reshape(vec![2, rows, 3, 2]), &[x]);
                let x = g.node("of", Op::Softmax { axis, log: false }, &[x]);
                g.node("first", Op::Transpose(vec![1, 0, 2, 3]), &[x])
            })
        };
        assert_eq!([0, 1, 2, 3].map(|axis| of_axis(axis).is_some()), [false, true, false, false]);
        // Dimensions in which the rows lie across each other.
        let across = found(|g, x, rows| {
            let x = g.node("flat", Op::Reshape(vec![3, rows, 4]), &[x]);
            g.node("turned", Op::Transpose(vec![1, 0, 2]), &[x])
        });
        assert!(across.is_some());
    }

    #[test]
    fn products_and_maps_of_rows_with_other_rows_mix_them() {
        let by_rows = |left: &[usize], right: &[usize], result: &[usize]| {
            let [left, right, result] = [left, right, result].map(<[usize]>::to_vec);
            let of = Op::Contract(Contract { left, right, result });
            found(|g, x, _| g.node("of", of.clone(), &[x, x]))
        };
        assert_eq!(by_rows(&[0, 1, 2], &[0, 3, 2], &[0, 1, 3]), None); // attention within a row
        assert!(by_rows(&[0, 1, 2], &[3, 1, 2], &[0, 3]).is_some()); // each row by each row
        assert!(by_rows(&[0, 1, 2], &[0, 1, 3], &[1, 2, 3]).is_some()); // a sum over rows
        let outer = |dims: fn(usize) -> Vec<usize>| {
            found(|g, x, rows| {
                let sum = Reduce { op: ReduceOp::Sum, axes: vec![1, 2], keep: false };
                let x = g.node("sum", Op::Reduce(sum), &[x]);
                let other = g.node("other", Op::Reshape(dims(rows)), &[x]);
                g.map("of", Expr::arg(0).binary(Binary::Sub, Expr::arg(1)), &[x, other])
            })
        };
        assert_eq!((outer(|rows| vec![rows]), outer(|rows| vec![rows, 1])), (None, Some("of".into())));
    }

    #[test]
    fn constants_are_the_same_for_every_row_and_number_of_rows() {
        assert_eq!(with_constant(|_| vec![3, 4], |at, _| at as f32), None); // a table for each row
        assert_eq!(with_constant(|rows| vec![rows, 3, 4], |at, _| (at % 12) as f32), None); // the same, repeated
        assert!(with_constant(|rows| vec![rows, 1, 1], |at, _| at as f32).is_some()); // numbers of rows
        assert!(with_constant(|rows| vec![rows, 3, 4], |at, _| at as f32).is_some()); // positions along the batch
        assert!(with_constant(|_| vec![], |_, rows| rows as f32).is_some()); // how many rows there are
    }

    #[test]
    fn padding_and_joining_along_the_batch_mixes_rows() {
        let pad = |before: [isize; 3], after: [isize; 3]| {
            let [before, after] = [before, after].map(|of| of.to_vec());
            Op::Pad(Pad { before, after, mode: PadMode::Constant(Number::Float(0.0)) })
        };
        assert!(one(|_| pad([1, 0, 0], [-1, 0, 0])).is_some());
        assert_eq!(one(|_| pad([0, 1, 0], [0, 0, 1])), None);
        let part_of_two = |start: fn(usize) -> usize| {
            found(|g, x, rows| {
                let both = g.node("both", Op::Concat(0), &[x, x]);
                let part = Slice { start: vec![start(rows), 0, 0], step: vec![1; 3], dims: vec![rows, 3, 4] };
                g.node("of", Op::Slice(part), &[both])
            })
        };
        assert_eq!(part_of_two(|rows| rows), None); // all rows of the second half
        assert!(part_of_two(|_| 1).is_some());
    }

    #[test]
    fn a_node_that_only_some_numbers_of_rows_have_mixes_them() {
        let several = found(|g, x, rows| match rows {
            3.. => g.map("of", Expr::arg(0) + Expr::arg(0), &[x]),
            _ => g.map("of", Expr::arg(0) * Expr::arg(0), &[x]),
        });
        assert!(several.is_some());
    }

    /// A constant of indices with these dimensions.
    fn indices(g: &mut GraphBuilder, dims: &[usize], index: impl Fn(usize) -> i64) -> ValueId {
        let elems: Vec<i64> = (0..dims.iter().product()).map(index).collect();
        g.constant(Dtype::I64, dims, Tensor::of(dims, &elems).bytes())
    }

    /// An operation on x and constant indices.
    fn indexed(op: &Op, dims: fn(usize) -> Vec<usize>, index: impl Fn(usize, usize) -> i64) -> Option<String> {
        found(|g, x, rows| {
            let at = indices(g, &dims(rows), |place| index(place, rows));
            let y = g.node("of", op.clone(), &[x, at]);
            let sum = Op::Reduce(Reduce { op: ReduceOp::Sum, axes: (1..g.value(y).rank()).collect(), keep: false });
            let y = g.node("total", sum, &[y]);
            let y = g.node("column", Op::Reshape(vec![g.value(y).elems(), 1, 1]), &[y]);
            g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y])
        })
    }

    #[test]
    fn indices_along_other_axes_keep_rows_and_those_along_the_batch_pick_some() {
        assert_eq!(indexed(&Op::Gather(1), |_| vec![2], |at, _| at as i64), None); // the first tokens of each row
        assert!(indexed(&Op::Gather(0), |_| vec![1], |_, _| 0).is_some()); // the first row for all
        assert_eq!(indexed(&Op::Gather(0), |rows| vec![rows], |at, _| at as i64), None); // each row itself
        assert!(indexed(&Op::Gather(0), |rows| vec![rows], |at, rows| (rows - 1 - at) as i64).is_some());
        let tokens = |rows| vec![rows, 2, 4];
        assert_eq!(indexed(&Op::GatherElements(1), tokens, |_, _| 1), None);
        assert!(indexed(&Op::GatherElements(0), tokens, |_, _| 0).is_some());
        assert!(indexed(&Op::GatherElements(1), |_| vec![1, 2, 4], |_, _| 1).is_some());
    }

    #[test]
    fn slices_at_places_that_name_their_own_row_keep_it() {
        let own = |at: usize| if at.is_multiple_of(2) { at as i64 / 2 } else { 1 };
        assert_eq!(indexed(&Op::GatherNd(0), |rows| vec![rows, 2], |at, _| own(at)), None);
        assert_eq!(indexed(&Op::GatherNd(0), |rows| vec![rows, 1], |at, _| at as i64), None);
        assert!(indexed(&Op::GatherNd(0), |rows| vec![rows, 2], |_, _| 0).is_some());
        assert!(indexed(&Op::GatherNd(0), |rows| vec![rows, 2], |at, _| at as i64 % 2).is_some());
        assert_eq!(indexed(&Op::GatherNd(1), |rows| vec![rows, 1], |_, _| 2), None);
        // Numbers of rows beside an index that a row computes.
        let computed = |number: fn(usize, usize) -> i64| {
            found(|g, x, rows| {
                let rows_own = indices(g, &[rows, 1], |at| number(at, rows));
                let last = ArgReduce { largest: true, axis: 1, keep: false, last: false };
                let last = g.node("last", Op::ArgReduce(last), &[x]);
                let first = Slice { start: vec![0, 0], step: vec![1, 1], dims: vec![rows, 1] };
                let last = g.node("first", Op::Slice(first), &[last]);
                let at = g.node("at", Op::Concat(1), &[rows_own, last]);
                g.node("of", Op::GatherNd(0), &[x, at])
            })
        };
        assert_eq!(computed(|at, _| at as i64), None);
        assert!(computed(|at, rows| ((at + 1) % rows) as i64).is_some());
    }

    #[test]
    fn what_is_scattered_into_rows_goes_to_its_own_row() {
        let nd = |number: fn(usize) -> i64| {
            found(|g, x, rows| {
                let at = indices(g, &[rows, 2], |at| if at.is_multiple_of(2) { number(at / 2) } else { 1 });
                let first = Slice { start: vec![0, 0, 0], step: vec![1; 3], dims: vec![rows, 1, 4] };
                let first = g.node("first", Op::Slice(first), &[x]);
                let first = g.node("flat", Op::Reshape(vec![rows, 4]), &[first]);
                g.node("of", Op::ScatterNd(Scatter::Replace), &[x, at, first])
            })
        };
        assert_eq!((nd(|row| row as i64), nd(|_| 0)), (None, Some("of".into())));
        let elements = |axis| {
            found(|g, x, rows| {
                let at = indices(g, &[rows, 3, 4], |_| 0);
                g.node("of", Op::ScatterElements(axis, Scatter::Add), &[x, at, x])
            })
        };
        assert_eq!((elements(1), elements(0)), (None, Some("of".into())));
        let fixed = found(|g, x, _| {
            let (at, nine) = (indices(g, &[1, 1], |_| 0), g.weight("nine", Dtype::F32, &[1, 3, 4]));
            g.node("of", Op::ScatterNd(Scatter::Replace), &[x, at, nine])
        });
        assert_eq!(fixed.as_deref(), Some("of"));
    }

    #[test]
    fn the_largest_of_each_row_are_its_own() {
        let top = |axis| {
            found(|g, x, _| {
                let top = g.node_with("of", Op::TopK(TopK { axis, k: 1, largest: true }), &[Some(x)], 2);
                g.map("sum", Expr::arg(0) + Expr::arg(1).cast(Dtype::F32) + Expr::arg(2), &[top[0], top[1], x])
            })
        };
        assert_eq!((top(2), top(0)), (None, Some("of".into())));
        let most = |axis| added_index(Op::ArgReduce(ArgReduce { largest: true, axis, keep: true, last: false }));
        assert_eq!((most(1), most(0)), (None, Some("of".into())));
    }

    /// As [`added`], for an operation whose results are indices.
    fn added_index(op: Op) -> Option<String> {
        found(|g, x, _| {
            let y = g.node("of", op.clone(), &[x]);
            g.map("sum", Expr::arg(0) + Expr::arg(1).cast(Dtype::F32), &[x, y])
        })
    }

    #[test]
    fn what_is_the_same_for_each_row_may_be_repeated() {
        let repeated = |dims: fn(usize) -> Vec<usize>, to: fn(usize) -> Vec<usize>| {
            found(|g, x, rows| {
                let table = g.weight("table", Dtype::F32, &dims(rows));
                let table = g.node("of", Op::Broadcast(to(rows)), &[table]);
                g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, table])
            })
        };
        assert_eq!(repeated(|_| vec![3, 4], |rows| vec![rows, 3, 4]), None);
        assert_eq!(repeated(|_| vec![1, 1, 1], |rows| vec![rows, 3, 1]), None);
        // A part of a table that is as long as there are rows.
        let part = found(|g, x, rows| {
            let table = g.weight("table", Dtype::F32, &[9, 1, 1]);
            let part = Slice { start: vec![0; 3], step: vec![1; 3], dims: vec![rows, 1, 1] };
            let part = g.node("of", Op::Slice(part), &[table]);
            g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, part])
        });
        assert_eq!(part.as_deref(), Some("of"));
    }

    #[test]
    fn a_map_may_read_indices_along_other_axes() {
        let index = |axis| found(|g, x, _| g.map("of", Expr::arg(0) + Expr::Axis(axis).cast(Dtype::F32), &[x]));
        assert_eq!((index(1), index(0)), (None, Some("of".into())));
    }

    #[test]
    fn a_recurrent_layer_has_the_batch_on_its_second_axis() {
        let layer = |turn: bool| {
            found(|g, x, rows| {
                let x = if turn { g.node("turned", Op::Transpose(vec![1, 0, 2]), &[x]) } else { x };
                let weights = g.weight("w", Dtype::F32, &[4, 4]);
                let sequences = g.value(x).dims[1];
                let zero = g.constant(Dtype::F32, &[], [0_u8; 4]);
                let first = g.node("first", Op::Broadcast(vec![1, sequences, 4]), &[zero]);
                let (cell, activations) = (RecurrentCell::Rnn, vec![vec![Expr::arg(0)]]);
                let of = Op::Recurrent(crate::graph::Recurrent { cell, backwards: vec![false], activations });
                let y = g.node_with("of", of, &[Some(x), Some(weights), None, Some(first)], 2)[0];
                let y = if turn { g.node("back", Op::Transpose(vec![1, 0, 2]), &[y]) } else { y };
                g.node("same", Op::Reshape(vec![rows, 3, 4]), &[y])
            })
        };
        assert_eq!((layer(true), layer(false)), (None, Some("of".into())));
    }

    #[test]
    fn a_convolution_may_have_a_group_of_channels_for_each_row() {
        let convolved = |turn: bool| {
            found(|g, x, rows| {
                let filters = Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![1], keep: false });
                let filters = g.node("filters", filters, &[x]);
                let order = if turn { vec![1, 0, 2] } else { vec![1, 2, 0] };
                let pixels = g.node("turned", Op::Transpose(order), &[x]);
                let pixels = g.node("pixels", Op::Reshape(vec![1, 3, 4 * rows]), &[pixels]);
                let filters = g.node("filter", Op::Reshape(vec![4 * rows, 1, 1]), &[filters]);
                let conv = Conv { window: Window::all(1, 1, 1, 0), groups: 4 * rows };
                let y = g.node("of", Op::Conv(conv), &[pixels, filters]);
                let y = g.node("apart", Op::Reshape(vec![3, rows, 4]), &[y]);
                g.node("back", Op::Transpose(vec![1, 0, 2]), &[y])
            })
        };
        assert_eq!((convolved(true), convolved(false)), (None, Some("of".into())));
    }

    #[test]
    fn rows_that_are_quantized_by_their_common_range_stay_rows() {
        let quantized = |both: bool| {
            found(|g, x, _| {
                let end = |g: &mut GraphBuilder, name: &str, op| {
                    let end = Reduce { op, axes: vec![0, 1, 2], keep: false };
                    let end = g.node(name, Op::Reduce(end), &[x]);
                    g.map(&format!("{name} or 0"), Expr::arg(0), &[end])
                };
                let high = end(g, "high", ReduceOp::Max);
                let low = if both { end(g, "low", ReduceOp::Min) } else { high };
                let scale = g.map("scale", Expr::arg(0) - Expr::arg(1), &[high, low]);
                let codes = g.node("codes", Op::Quantize { dtype: Dtype::U8, axis: None }, &[x, scale]);
                g.map("of", Expr::arg(0).cast(Dtype::F32) * Expr::arg(1), &[codes, scale])
            })
        };
        assert_eq!((quantized(true), quantized(false)), (None, Some("high".into())));
    }

    #[test]
    fn what_no_output_depends_on_mixes_nothing() {
        let unread = found(|g, x, _| {
            g.node("unread", Op::Softmax { axis: 0, log: false }, &[x]);
            g.map("of", Expr::arg(0) + Expr::arg(0), &[x])
        });
        assert_eq!(unread, None);
    }

    #[test]
    fn a_single_row_is_computed_as_several_are() {
        let single = |plus: f64| {
            found(|g, x, rows| {
                let plus = if rows == 1 { plus } else { 1.0 };
                g.map("of", Expr::arg(0) + Expr::float(Dtype::F32, plus), &[x])
            })
        };
        assert_eq!((single(1.0), single(2.0)), (None, Some("of".into())));
        // For one row a repetition does nothing, and a constant of one element is a number.
        let viewed = found(|g, x, rows| match rows {
            1 => g.map("of", Expr::arg(0) + Expr::float(Dtype::F32, 1.0), &[x]),
            _ => {
                let ones = g.constant(Dtype::F32, &[rows, 1, 1], Tensor::of(&[rows], &vec![1.0_f32; rows]).bytes());
                g.map("of", Expr::arg(0) + Expr::arg(1), &[x, ones])
            }
        });
        assert_eq!(viewed, None);
    }
}
