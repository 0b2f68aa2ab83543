//! Leaves out rows that nothing reads. A vision transformer that classifies by its first token reads one row of its last
//! layer's result, so that the products of this layer need to compute that row alone.

use super::rebuild::{Change, Draft, Rebuild, needed};
use crate::graph::op::{Contract, Op, Slice};
use crate::graph::value::{Graph, Node, Origin, ValueId};

/// Neighbouring indices along one axis of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    axis: usize,
    start: usize,
    count: usize,
}

/// What the readers of a value read of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Nothing,
    Part(Cut),
    All,
}

impl Need {
    fn and(&mut self, other: Self) {
        *self = match (*self, other) {
            (Self::Nothing, need) | (need, Self::Nothing) => need,
            (own, need) if own == need => own,
            _ => Self::All,
        };
    }
}

/// The graph in which nodes that compute row by row compute only the rows that others read; `None` if no product then has
/// fewer rows. Rows are neighbouring indices along any axis of a value but the last. If several nodes read a value, all of
/// them have to read the same rows. Nodes keep their names.
pub(crate) fn narrowed(graph: &Graph) -> Option<Graph> {
    let cuts = cuts(graph);
    let is_product = |node: &Node| matches!(node.op, Op::Contract(_)) && cuts[node.outputs[0].0].is_some();
    if !graph.nodes.iter().any(is_product) {
        return None;
    }
    let mut nodes = graph.nodes.iter();
    let rewritten = Rebuild::new(graph).with(|rebuild, mut draft| {
        let node = nodes.next().expect("each node once");
        let cut = |id: ValueId| cuts[id.0];
        let Some(of) = node.outputs.first().and_then(|&id| cut(id)) else {
            return match (read_cut(graph, node), node.inputs.first().copied().flatten().and_then(cut)) {
                (Some(_), Some(_)) => {
                    let dims = graph.value(node.outputs[0]).dims.clone();
                    let inputs = draft.inputs[..1].to_vec();
                    simplified(rebuild, Draft { op: Op::Reshape(dims), inputs, ..draft })
                }
                _ => rebuild.add(draft),
            };
        };
        let operands = operands(graph, node, of.axis).expect("only such nodes have cuts");
        for ((old, new), axis) in node.inputs.iter().zip(&mut draft.inputs).zip(operands) {
            if let (Some(old), Some(new), Some(axis)) = (old, new, axis)
                && cut(*old).is_none()
            {
                *new = rebuild.part(&node.name, sliced(&graph.value(*old).dims, Cut { axis, ..of }), &[*new]);
            }
        }
        narrow(&mut draft.op, of);
        simplified(rebuild, draft)
    });
    Some(needed(&rewritten, &rewritten.inputs, &rewritten.outputs))
}

fn simplified(rebuild: &mut Rebuild<'_>, draft: Draft) -> Vec<ValueId> {
    match rebuild.simpler(draft) {
        Change::Same(values) => values,
        Change::Become(draft) => rebuild.add(*draft),
    }
}

/// For each value the rows that are computed, if they are not all.
fn cuts(graph: &Graph) -> Vec<Option<Cut>> {
    let mut needs = vec![Need::Nothing; graph.values.len()];
    graph.outputs.iter().for_each(|port| needs[port.value.0] = Need::All);
    for of in graph.values.iter().filter_map(|value| value.quantization.as_ref()) {
        [Some(of.scale), of.zero_point].into_iter().flatten().for_each(|id| needs[id.0] = Need::All);
    }
    for node in graph.nodes.iter().rev() {
        let need = match node.outputs[..] {
            [output] => needs[output.0],
            _ => Need::All,
        };
        let by_axes = match need {
            Need::Part(of) => operands(graph, node, of.axis).map(|axes| (of, axes)),
            Need::Nothing | Need::All => None,
        };
        if by_axes.is_none() {
            // It is computed whole, and its readers select.
            node.outputs.iter().for_each(|output| needs[output.0] = Need::All);
        }
        for (index, input) in node.inputs.iter().enumerate() {
            let Some(input) = input else { continue };
            needs[input.0].and(match &by_axes {
                Some((of, axes)) => axes[index].map_or(Need::All, |axis| Need::Part(Cut { axis, ..*of })),
                None if index == 0 => read_cut(graph, node).map_or(Need::All, Need::Part),
                None => Need::All,
            });
        }
    }
    let is_written = |index: usize| matches!(graph.values[index].origin, Origin::Node(..));
    let cut = |(index, need)| match need {
        Need::Part(of) if is_written(index) => Some(of),
        _ => None,
    };
    needs.into_iter().enumerate().map(cut).collect()
}

/// The rows that a node selects of its operand: a slice of neighbours along one axis, or a gather at one constant index.
fn read_cut(graph: &Graph, node: &Node) -> Option<Cut> {
    let x = (*node.inputs.first()?)?;
    let dims = &graph.value(x).dims;
    let cut = match &node.op {
        Op::Slice(of) => {
            let mut cut = (0..dims.len()).filter(|&axis| of.dims[axis] != dims[axis] || of.step[axis] != 1);
            let (Some(axis), None) = (cut.next(), cut.next()) else { return None };
            (of.step[axis] == 1).then_some(Cut { axis, start: of.start[axis], count: of.dims[axis] })
        }
        &Op::Gather(axis) => {
            let start = graph.constant_place(node.inputs[1]?, dims[axis])?;
            Some(Cut { axis, start, count: 1 })
        }
        _ => None,
    }?;
    (cut.axis + 1 < dims.len() && (1..dims[cut.axis]).contains(&cut.count)).then_some(cut)
}

/// For each operand of a node, the axis along which row i of the node's result along `axis` reads row i of the operand alone;
/// `None` for an operand that every row reads whole. The result is `None` if the node does not compute row by row. Channels,
/// the last axis, are no rows.
fn operands(graph: &Graph, node: &Node, axis: usize) -> Option<Vec<Option<usize>>> {
    let [output] = node.outputs[..] else { return None };
    let result = &graph.value(output).dims;
    if axis + 1 == result.len() {
        return None;
    }
    let dims = |index: usize| Some(&graph.value((*node.inputs.get(index)?)?).dims);
    // Axes are counted from the last, and one of a single element is the same for all rows.
    let broadcast = |input: &Option<ValueId>| {
        let own = &graph.value((*input)?).dims;
        let place = (axis + own.len()).checked_sub(result.len())?;
        (own[place] != 1 || result[axis] == 1).then_some(place)
    };
    let of_all = |of: &dyn Fn(&Option<ValueId>) -> Option<usize>| Some(node.inputs.iter().map(of).collect());
    match &node.op {
        Op::Map(expr) if !expr.reads_index(axis) => of_all(&broadcast),
        Op::Broadcast(_) => of_all(&broadcast),
        Op::Norm(of) if axis < of.axis => of_all(&broadcast),
        Op::Softmax { axis: along, .. } if axis != *along => Some(vec![Some(axis)]),
        Op::Concat(along) if axis != *along => of_all(&|_| Some(axis)),
        Op::Transpose(order) => Some(vec![Some(order[axis])]),
        Op::Quantize { axis: along, .. } | Op::Dequantize { axis: along } if *along != Some(axis) => {
            Some((0..node.inputs.len()).map(|index| (index == 0).then_some(axis)).collect())
        }
        Op::Reduce(of) => {
            let rank = dims(0)?.len();
            let mut left = (0..rank).filter(|place| of.keep || !of.axes.contains(place));
            let place = left.nth(axis)?;
            (!of.axes.contains(&place)).then(|| vec![Some(place)])
        }
        Op::Reshape(to) => {
            let from = dims(0)?;
            let before: usize = to[..axis].iter().product();
            let place = (0..from.len())
                .find(|&place| from[place] == to[axis] && from[..place].iter().product::<usize>() == before)?;
            Some(vec![Some(place)])
        }
        Op::Slice(of) => {
            let is_whole = of.start[axis] == 0 && of.step[axis] == 1 && of.dims[axis] == dims(0)?[axis];
            is_whole.then(|| vec![Some(axis)])
        }
        Op::Gather(along) => {
            let rank = graph.value(node.inputs[1]?).dims.len();
            let place =
                if axis < *along { axis } else { (axis + 1).checked_sub(rank).filter(|place| place > along)? };
            Some(vec![Some(place), None])
        }
        Op::Contract(Contract { left, right, result: labels }) => {
            let label = labels[axis];
            let of = |labels: &[usize], index: usize| {
                let place = labels.iter().position(|&other| other == label)?;
                (dims(index)?[place] != 1 || result[axis] == 1).then_some(place)
            };
            Some(vec![of(left, 0), of(right, 1)])
        }
        _ => None,
    }
}

/// The slice of a value of these dimensions.
fn sliced(dims: &[usize], of: Cut) -> Op {
    let (mut start, mut dims) = (vec![0; dims.len()], dims.to_vec());
    (start[of.axis], dims[of.axis]) = (of.start, of.count);
    Op::Slice(Slice { step: vec![1; dims.len()], start, dims })
}

/// Changes the dimensions that an operation has as an attribute.
fn narrow(op: &mut Op, of: Cut) {
    match op {
        Op::Reshape(dims) | Op::Broadcast(dims) => dims[of.axis] = of.count,
        Op::Slice(slice) => slice.dims[of.axis] = of.count,
        _ => {}
    }
}
