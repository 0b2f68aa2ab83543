//! Whether the rows of a batch depend on each other.

use crate::graph::{Contract, Graph, Node, Op, ReduceOp, Slice, ValueId};

/// What is known of how a value depends on the rows of a graph for two rows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    /// It depends on no row.
    None,
    /// An element depends on one row: on row `place / inner % 2`, where `place` counts the value's elements.
    OneRow { inner: usize },
    /// Nothing is known.
    Unknown,
}

/// An axis of which each index depends on one row: on row `index / inner % 2`.
#[derive(Clone, Copy, PartialEq)]
struct Along {
    axis: usize,
    inner: usize,
}

/// The first node of a graph for two rows that computes one row from the other, if one surely does; `inputs` has the axis of
/// each input that is the batch. What a minimum or maximum of all elements becomes is not followed: numbers are quantized
/// by it, and rows that share its scale depend on each other by their roundings alone.
pub(super) fn mixes<'a>(two: &'a Graph, inputs: &[usize]) -> Option<&'a str> {
    let mut of = vec![Of::None; two.values.len()];
    for (port, &axis) in two.inputs.iter().zip(inputs) {
        of[port.value.0] = Rows(two).of_axis(port.value, Along { axis, inner: 1 });
    }
    for node in &two.nodes {
        let Ok(found) = Rows(two).of_node(node, &of) else { return Some(&node.name) };
        let found = found.into_iter().chain(std::iter::repeat(Of::Unknown));
        node.outputs.iter().zip(found).for_each(|(output, found)| of[output.0] = found);
    }
    None
}

/// The operand of [`Op::Recurrent`] that has the lengths of sequences.
const LENGTHS: usize = 6;
/// Those that have weights, which all rows read.
const WEIGHTS: [usize; 3] = [1, 2, 5];

/// A node computes one row from the other.
struct Mixed;

struct Rows<'a>(&'a Graph);

impl Rows<'_> {
    fn dims(&self, id: ValueId) -> &[usize] {
        &self.0.value(id).dims
    }

    fn of_axis(&self, id: ValueId, along: Along) -> Of {
        let dims = self.dims(id);
        match dims.get(along.axis) {
            Some(_) => Of::OneRow { inner: along.inner * dims[along.axis + 1..].iter().product::<usize>() },
            None => Of::Unknown,
        }
    }

    /// The axis of a value that the rows are along; `None` if they are along no single axis.
    fn along(&self, id: ValueId, inner: usize) -> Option<Along> {
        let dims = self.dims(id);
        let mut stride = 1;
        for axis in (0..dims.len()).rev() {
            let next = stride * dims[axis];
            if next > inner {
                let of_axis = inner / stride;
                let is_whole = inner.is_multiple_of(stride) && dims[axis].is_multiple_of(2 * of_axis);
                return is_whole.then_some(Along { axis, inner: of_axis });
            }
            stride = next;
        }
        None
    }

    /// The axes of a node's operands along which rows are, with `None` for an operand that depends on no row; nothing if it
    /// is unknown for one of them.
    fn operands(&self, node: &Node, of: &[Of]) -> Option<Vec<Option<Along>>> {
        let along = |input: &Option<ValueId>| match input.map(|id| (id, of[id.0])) {
            None | Some((_, Of::None)) => Some(None),
            Some((id, Of::OneRow { inner })) => self.along(id, inner).map(Some),
            Some((_, Of::Unknown)) => None,
        };
        node.inputs.iter().map(along).collect()
    }

    /// What is known of a node's results.
    fn of_node(&self, node: &Node, of: &[Of]) -> Result<Vec<Of>, Mixed> {
        if node.inputs.iter().flatten().all(|id| of[id.0] == Of::None) {
            return Ok(vec![Of::None; node.outputs.len()]);
        }
        if let (Op::Reshape(_), Some(Some(id))) = (&node.op, node.inputs.first()) {
            return Ok(vec![of[id.0]]); // the same elements at the same places
        }
        let Some(operands) = self.operands(node, of) else { return Ok(Vec::new()) };
        let first = operands.first().copied().flatten();
        let is_alone = operands.iter().skip(1).all(Option::is_none);
        let results = match (&node.op, first) {
            (Op::Map(_), _) => self.broadcast(node, &operands)?,
            (Op::Contract(contract), _) => contracted(contract, operands[0], operands[1])?,
            (Op::Concat(axis), _) => {
                let mut found = operands.iter().flatten();
                let one = found.next().copied();
                let is_same = found.all(|other| Some(*other) == one);
                one.filter(|one| is_same && one.axis != *axis).into_iter().collect()
            }
            (Op::Gather(axis), _) => self.gathered(node, *axis, operands[0], operands[1])?,
            (_, None) => Vec::new(),
            (Op::Reduce(reduce), Some(along)) => {
                if reduce.axes.contains(&along.axis) {
                    let is_of_all = reduce.axes.len() == self.dims(input(node)).len();
                    return if is_of_all && matches!(reduce.op, ReduceOp::Min | ReduceOp::Max) {
                        Ok(Vec::new())
                    } else {
                        Err(Mixed)
                    };
                }
                let before = reduce.axes.iter().filter(|&&axis| axis < along.axis).count();
                vec![Along { axis: along.axis - if reduce.keep { 0 } else { before }, ..along }]
            }
            (Op::ArgReduce(reduce), Some(along)) => {
                unmixed(along, |axis| axis == reduce.axis)?;
                vec![Along { axis: along.axis - usize::from(!reduce.keep && reduce.axis < along.axis), ..along }]
            }
            (Op::Cumulate(cumulate), Some(along)) => vec![unmixed(along, |axis| axis == cumulate.axis)?],
            (Op::Softmax { axis: of, .. }, Some(along)) => vec![unmixed(along, |axis| axis == *of)?],
            (Op::TopK(top), Some(along)) => vec![unmixed(along, |axis| axis == top.axis)?; 2],
            (Op::Norm(norm), Some(along)) => {
                unmixed(along, |axis| axis >= norm.axis)?;
                if is_alone { vec![along] } else { Vec::new() }
            }
            (Op::Transpose(axes), Some(along)) => {
                let axis = axes.iter().position(|&axis| axis == along.axis);
                axis.map(|axis| Along { axis, ..along }).into_iter().collect()
            }
            (Op::Slice(slice), Some(along)) => self.sliced(node, slice, along)?,
            (Op::Broadcast(dims), Some(along)) => {
                vec![Along { axis: along.axis + dims.len() - self.dims(input(node)).len(), ..along }]
            }
            (Op::Pad(pad), Some(along)) if pad.before[along.axis] == 0 && pad.after[along.axis] == 0 => vec![along],
            (Op::Resize(resize), Some(along)) => {
                let is_kept = resize.dims[along.axis] == self.dims(input(node))[along.axis];
                unmixed(along, |_| !is_kept)?;
                vec![along]
            }
            (Op::Conv(conv), Some(along)) if is_alone => windows(along, &conv.window.size)?,
            (Op::ConvTranspose(conv, _), Some(along)) if is_alone => windows(along, &conv.window.size)?,
            (Op::Pool(pool), Some(along)) => match along.axis + 1 == self.dims(input(node)).len() {
                true => vec![along], // each channel by itself
                false => windows(along, &pool.window.size)?,
            },
            (Op::Quantize { .. } | Op::Dequantize { .. }, Some(along)) if is_alone => vec![along],
            (Op::Recurrent(_), Some(along)) => {
                unmixed(along, |axis| axis == 0)?;
                // The batch is the second axis of inputs, states and results, the only one of lengths, and none of weights.
                let of_rows = |number: usize| match number {
                    LENGTHS => Some(Along { axis: 0, inner: 1 }),
                    number if WEIGHTS.contains(&number) => None,
                    _ => Some(Along { axis: 1, inner: 1 }),
                };
                let mut all = operands.iter().enumerate();
                let is_kept = all.all(|(number, found)| found.is_none() || *found == of_rows(number));
                if is_kept { vec![along; node.outputs.len()] } else { Vec::new() }
            }
            _ => Vec::new(),
        };
        Ok(node.outputs.iter().zip(results).map(|(&output, along)| self.of_axis(output, along)).collect())
    }

    /// Of an operation whose operands are broadcast to its result.
    fn broadcast(&self, node: &Node, operands: &[Option<Along>]) -> Result<Vec<Along>, Mixed> {
        let rank = self.dims(node.outputs[0]).len();
        let of_result = |(along, id): (&Option<Along>, &Option<ValueId>)| {
            let (along, id) = ((*along)?, (*id)?);
            Some(Along { axis: along.axis + rank - self.dims(id).len(), ..along })
        };
        let found: Vec<Along> = operands.iter().zip(&node.inputs).filter_map(of_result).collect();
        match found.iter().all(|other| *other == found[0]) {
            true => Ok(vec![found[0]; node.outputs.len()]),
            false if found.iter().any(|other| other.axis != found[0].axis) => Err(Mixed),
            false => Ok(Vec::new()),
        }
    }

    fn gathered(
        &self,
        node: &Node,
        axis: usize,
        data: Option<Along>,
        indices: Option<Along>,
    ) -> Result<Vec<Along>, Mixed> {
        let added = node.inputs[1].map_or(0, |id| self.dims(id).len());
        match (data, indices) {
            (Some(data), None) if data.axis < axis => Ok(vec![data]),
            (Some(data), None) if data.axis > axis => Ok(vec![Along { axis: data.axis + added - 1, ..data }]),
            (None, Some(indices)) => Ok(vec![Along { axis: axis + indices.axis, ..indices }]),
            (Some(data), Some(_)) if data.axis != axis => Err(Mixed), // each row's places in each row
            _ => Ok(Vec::new()),
        }
    }

    fn sliced(&self, node: &Node, slice: &Slice, along: Along) -> Result<Vec<Along>, Mixed> {
        let size = self.dims(input(node))[along.axis];
        let is_kept = slice.start[along.axis] == 0 && slice.step[along.axis] == 1 && slice.dims[along.axis] == size;
        match is_kept {
            true => Ok(vec![along]),
            false if slice.step[along.axis] < 0 && slice.dims[along.axis] == size && size == 2 => Err(Mixed),
            false => Ok(Vec::new()),
        }
    }
}

/// A node's first operand.
fn input(node: &Node) -> ValueId {
    node.inputs[0].expect("rows are along its axis")
}

/// # Errors
/// Rows that are along an axis of which a node mixes the elements.
fn unmixed(along: Along, mixes: impl Fn(usize) -> bool) -> Result<Along, Mixed> {
    if mixes(along.axis) { Err(Mixed) } else { Ok(along) }
}

/// Of windows over the axes behind the first one, with these numbers of taps.
fn windows(along: Along, taps: &[usize]) -> Result<Vec<Along>, Mixed> {
    match along.axis {
        0 => Ok(vec![along]),
        axis if taps.get(axis - 1).is_some_and(|&taps| taps > 1) => Err(Mixed),
        _ => Ok(Vec::new()),
    }
}

/// Of products with rows along axes of their operands.
fn contracted(of: &Contract, left: Option<Along>, right: Option<Along>) -> Result<Vec<Along>, Mixed> {
    let label = |labels: &[usize], along: Option<Along>| along.map(|along| (labels[along.axis], along.inner));
    let (label, inner) = match (label(&of.left, left), label(&of.right, right)) {
        (Some(one), Some(other)) if one.0 != other.0 => return Err(Mixed), // each row by each row
        (Some(one), Some(other)) if one.1 != other.1 => return Ok(Vec::new()),
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => return Ok(Vec::new()),
    };
    match of.result.iter().position(|&of| of == label) {
        Some(axis) => Ok(vec![Along { axis, inner }]),
        None => Err(Mixed), // a sum over rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binary, Cumulate, Expr, GraphBuilder, Norm, Reduce};
    use crate::tensor::Dtype;

    /// The node that mixes the rows of `x` of f32 `[2, 3, 4]`, whose first axis is the batch.
    fn found(build: impl FnOnce(&mut GraphBuilder, ValueId) -> ValueId) -> Option<String> {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 3, 4]);
        let y = build(&mut g, x);
        g.output("y", y);
        mixes(&g.finish().expect("a graph"), &[0]).map(str::to_owned)
    }

    fn one(op: Op) -> Option<String> {
        found(|g, x| g.node("of", op, &[x]))
    }

    fn reduce(op: ReduceOp, axes: &[usize]) -> Op {
        Op::Reduce(Reduce { op, axes: axes.to_vec(), keep: false })
    }

    #[test]
    fn what_goes_along_the_batch_mixes_its_rows() {
        let cumulate = |axis| Op::Cumulate(Cumulate { op: ReduceOp::Sum, axis, exclusive: false, reverse: false });
        let norm = |axis| Op::Norm(Norm { axis, eps: 1e-5, centred: true });
        let reversed = Slice { start: vec![1, 0, 0], step: vec![-1, 1, 1], dims: vec![2, 3, 4] };
        for op in [
            reduce(ReduceOp::Mean, &[0]),
            reduce(ReduceOp::Sum, &[0, 1, 2]),
            Op::Softmax { axis: 0, log: false },
            cumulate(0),
            norm(0),
            Op::Slice(reversed),
        ] {
            assert_eq!(one(op.clone()).as_deref(), Some("of"), "{op:?}");
        }
        for op in [
            reduce(ReduceOp::Mean, &[1, 2]),
            reduce(ReduceOp::Max, &[0, 1, 2]),
            Op::Softmax { axis: 1, log: false },
            cumulate(2),
            norm(1),
            Op::Slice(Slice { start: vec![0, 1, 3], step: vec![1, 1, -1], dims: vec![2, 1, 4] }),
            Op::Reshape(vec![6, 4]),
        ] {
            assert_eq!(one(op.clone()), None, "{op:?}");
        }
    }

    #[test]
    fn rows_are_followed_through_other_dimensions() {
        let softmax = |axis| Op::Softmax { axis, log: false };
        // [2, 3, 4] -> [6, 4] -> [4, 6] -> [2, 2, 6] -> [2, 6, 2] -> [2, 2, 3, 2]: the batch is the second axis then.
        let of_axis = |axis| {
            found(|g, x| {
                let x = g.node("flat", Op::Reshape(vec![6, 4]), &[x]);
                let x = g.node("turned", Op::Transpose(vec![1, 0]), &[x]);
                let x = g.node("parts", Op::Reshape(vec![2, 2, 6]), &[x]);
                let x = g.node("behind", Op::Transpose(vec![0, 2, 1]), &[x]);
                let x = g.node("apart", Op::Reshape(vec![2, 2, 3, 2]), &[x]);
                g.node("of", softmax(axis), &[x])
            })
        };
        assert_eq!([0, 1, 2, 3].map(|axis| of_axis(axis).is_some()), [false, true, false, false]);
    }

    #[test]
    fn products_and_maps_of_rows_with_other_rows_mix_them() {
        let by_rows = |left: &[usize], right: &[usize], result: &[usize]| {
            let [left, right, result] = [left, right, result].map(<[usize]>::to_vec);
            found(|g, x| g.node("of", Op::Contract(Contract { left, right, result }), &[x, x]))
        };
        assert_eq!(by_rows(&[0, 1, 2], &[0, 3, 2], &[0, 1, 3]), None); // attention within a row
        assert!(by_rows(&[0, 1, 2], &[3, 1, 2], &[0, 3]).is_some()); // each row by each row
        assert!(by_rows(&[0, 1, 2], &[0, 1, 3], &[1, 2, 3]).is_some()); // a sum over rows
        let outer = |dims: Vec<usize>| {
            found(|g, x| {
                let x = g.node("sum", reduce(ReduceOp::Sum, &[1, 2]), &[x]);
                let other = g.node("other", Op::Reshape(dims), &[x]);
                g.map("of", Expr::arg(0).binary(Binary::Sub, Expr::arg(1)), &[x, other])
            })
        };
        assert_eq!((outer(vec![2]), outer(vec![2, 1])), (None, Some("of".into())));
    }
}
