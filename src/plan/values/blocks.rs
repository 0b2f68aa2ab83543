//! The blocks of tiles of rows that lie end to end, as the kernel of attention reads them. Loops compute them once for
//! all layers, from the places where rows begin and end.

use super::layered::Split;
#[cfg(feature = "cuda")]
use crate::error::Error;
#[cfg(feature = "cuda")]
use crate::graph::Tensor;
use crate::graph::{
    Binary, Expr, Graph, GraphBuilder, Node, Number, Op, Origin, Pad, PadMode, Reduce, ReduceOp, Slice, ValueId,
    ValueType,
};
#[cfg(feature = "cuda")]
use crate::loops;
use crate::plan::PackedAttentionOp;
use crate::tensor::Dtype;

/// All that the blocks of packed rows depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Blocks {
    /// The value with the places where rows begin and end.
    pub starts: ValueId,
    /// The largest number of tokens and of tokens of a row, and the number of rows of a block.
    pub tokens: usize,
    pub longest: usize,
    pub block_rows: usize,
    /// The largest number of blocks.
    pub most: usize,
}

impl Blocks {
    pub fn of(op: &PackedAttentionOp, starts: ValueId) -> Self {
        let (tokens, longest) = (op.sizes.tokens, op.sizes.longest);
        Self { starts, tokens, longest, block_rows: op.block_rows(), most: op.sizes.most_blocks(op.block_tiles) }
    }

    /// The graph that computes `i32[1 + most, 4]` from `starts`. Line 0 has the number of blocks with keys and the
    /// number of all blocks, including those of tokens in no row. Each other line is a block: its first token, the end
    /// of its row, and the first token and the number of tokens of its row. Blocks of longer rows come first. Blocks of
    /// tokens in no row come last and have no keys.
    ///
    /// Rows are as [`PackedAttention`](crate::graph::PackedAttention) says. Tokens in no row, possibly zero of them,
    /// follow each number at which no row begins or that is repeated, and a number 0 that is added in front.
    fn graph(&self, starts: &ValueType) -> Graph {
        let mut w = Writer { g: GraphBuilder::new(), rows: int(self.block_rows as i64) };
        let (tokens, count) = (int(self.tokens as i64), starts.elems() + 1);
        let x = w.g.input("starts", starts.dtype, &starts.dims);
        let x = w.g.map("numbers", arg(0).cast(Dtype::I64), &[x]);
        let pad = Pad { before: vec![1], after: vec![0], mode: PadMode::Constant(Number::Int(0)) };
        let x = w.g.node("from 0", Op::Pad(pad), &[x]);
        let is_one = int(0).is(Binary::LessEqual, arg(0)).is(Binary::And, arg(0).is(Binary::LessEqual, tokens.clone()));
        let begin = w.g.map("begin", is_one.select(arg(0), int(-1)), &[x]);

        let [down, along] = [w.apart("begin.down", begin, 0), w.apart("begin.along", begin, 1)];
        let is_later = arg(0).is(Binary::Equal, arg(1)).is(Binary::And, Expr::Axis(0).is(Binary::Less, Expr::Axis(1)));
        let is_behind = arg(0).is(Binary::Less, arg(1)).is(Binary::Or, is_later);
        let behind = is_behind.select(arg(1), int(i64::MAX));
        let next = w.reduced("next", ReduceOp::Min, behind, &[down, along]);

        let is_there = || int(0).is(Binary::LessEqual, arg(0));
        let is_row = is_there().is(Binary::And, arg(1).is(Binary::LessEqual, tokens.clone()));
        let is_row = is_row.is(Binary::And, int(0).is(Binary::Less, Expr::Axis(0)));
        let length = (arg(1) - arg(0)).is(Binary::Min, int(self.longest as i64));
        let length = w.g.map("length", is_row.select(length, int(0)), &[begin, next]);
        let rest = arg(1).is(Binary::Min, tokens) - arg(0) - arg(2);
        let rest = w.g.map("rest", is_there().select(rest, int(0)), &[begin, next, length]);

        let of_down = w.apart("length.down", length, 0);
        let [lengths, rests] = [w.apart("lengths", length, 1), w.apart("rests", rest, 1)];
        let is_first = || Expr::Axis(1).is(Binary::Less, Expr::Axis(0));
        let is_longer = arg(0).is(Binary::Less, arg(1));
        let is_before = is_longer.is(Binary::Or, arg(0).is(Binary::Equal, arg(1)).is(Binary::And, is_first()));
        let before = is_before.select(w.blocks(arg(1)), int(0));
        let row_at = w.reduced("row.at", ReduceOp::Sum, before, &[of_down, lengths]);
        let before = w.blocks(arg(1)) + is_first().select(w.blocks(arg(2)), int(0));
        let rest_at = w.reduced("rest.at", ReduceOp::Sum, before, &[of_down, lengths, rests]);

        let last = |from| Slice { start: vec![from], step: vec![1], dims: vec![1] };
        let with_keys = w.g.node("with keys", Op::Slice(last(0)), &[rest_at]);
        let [at, rest_of] = [("last.at", rest_at), ("last.rest", rest)]
            .map(|(name, of)| w.g.node(name, Op::Slice(last(count - 1)), &[of]));
        let columns = w.counted(&[1, 4]);
        let [with_keys, at, rest_of] =
            [("a", with_keys), ("b", at), ("c", rest_of)].map(|(name, of)| w.apart(&format!("count.{name}"), of, 0));
        let all = arg(2) + w.blocks(arg(3));
        let counts = column(0).select(arg(1), column(1).select(all, int(0)));
        let counts = w.g.map("counts", counts.cast(Dtype::I32), &[columns, with_keys, at, rest_of]);

        // Twice the index of a row, plus one for the tokens in no row that follow it.
        let number = w.counted(&[self.most, 1]);
        let [row_along, rest_along] = [w.apart("row.along", row_at, 1), w.apart("rest.along", rest_at, 1)];
        let is_in = |at: usize, blocks: Expr| {
            arg(at).is(Binary::LessEqual, arg(0)).is(Binary::And, arg(0).is(Binary::Less, arg(at) + blocks))
        };
        let which = || Expr::Axis(1) * int(2);
        let of_rest = is_in(2, w.blocks(arg(4))).select(which() + int(1), int(-1));
        let of_row = is_in(1, w.blocks(arg(3))).select(which(), of_rest);
        let which = w.reduced("which", ReduceOp::Max, of_row, &[number, row_along, rest_along, lengths, rests]);

        let item = arg(0).is(Binary::Max, int(0)).is(Binary::Div, int(2));
        let item = w.g.map("item", item, &[which]);
        let mut of_item = |name: &str, of| {
            let of = w.g.node(&format!("{name}.of"), Op::Gather(0), &[of, item]);
            w.apart(&format!("{name}.of.down"), of, 0)
        };
        let items = [("begin", begin), ("length", length), ("rest", rest), ("row.at", row_at), ("rest.at", rest_at)]
            .map(|(name, of)| of_item(name, of));
        let which = w.apart("which.down", which, 0);
        let [begin, length, rest] = [3, 4, 5].map(arg);
        let within = |at: usize| (arg(2) - arg(at)) * w.rows.clone();
        let end = begin.clone() + length.clone();
        let first = begin.clone() + within(6);
        let of_row = column(0).select(first, column(1).select(end.clone(), column(2).select(begin, length)));
        let first = column(0).select(end.clone() + within(7), column(1).select(end + rest, int(0)));
        let is_rest = arg(1).is(Binary::Rem, int(2)).is(Binary::Equal, int(1));
        let block = arg(1).is(Binary::Less, int(0)).select(int(0), is_rest.select(first, of_row));
        let operands = [&[columns, which, number][..], &items].concat();
        let each = w.g.map("each", block.cast(Dtype::I32), &operands);
        let table = w.g.node("blocks", Op::Concat(0), &[counts, each]);
        w.g.output("blocks", table);
        w.g.finish().expect("a graph without a mistake")
    }
}

/// The blocks of these starts, computed on the host.
///
/// # Errors
/// [`Error::OutOfMemory`].
#[cfg(feature = "cuda")]
pub(crate) fn blocks_of(op: &PackedAttentionOp, starts: &[i64]) -> Result<Vec<i32>, Error> {
    let graph = Blocks::of(op, ValueId(0)).graph(&ValueType::new(Dtype::I64, &[starts.len()]));
    let inputs = [Tensor::of(&[starts.len()], starts)];
    let table = loops::evaluate(&graph, &mut |_, _| unreachable!("it has no weights"), &inputs)?;
    Ok(table[0].elems().to_vec())
}

/// The builder of the graph, with short forms of its operations.
struct Writer {
    g: GraphBuilder,
    /// The number of rows of a block.
    rows: Expr,
}

impl Writer {
    /// Reshapes a vector to two axes, so that it lies along one of them.
    fn apart(&mut self, name: &str, x: ValueId, axis: usize) -> ValueId {
        let mut dims = vec![1; 2];
        dims[axis] = self.g.value(x).elems();
        self.g.node(name, Op::Reshape(dims), &[x])
    }

    /// Computes an expression of two axes and combines its values along the second axis.
    fn reduced(&mut self, name: &str, op: ReduceOp, expr: Expr, operands: &[ValueId]) -> ValueId {
        let pairs = self.g.map(&format!("{name}.pairs"), expr, operands);
        self.g.node(name, Op::Reduce(Reduce { op, axes: vec![1], keep: false }), &[pairs])
    }

    /// The number of blocks of a number of rows.
    fn blocks(&self, rows: Expr) -> Expr {
        (rows + self.rows.clone() - int(1)).is(Binary::Div, self.rows.clone())
    }

    /// A constant of these dimensions with the numbers 0, 1, 2, and so on.
    fn counted(&mut self, dims: &[usize]) -> ValueId {
        let all: Vec<i64> = (0..dims.iter().product::<usize>() as i64).collect();
        self.g.constant(Dtype::I64, dims, bytemuck::cast_slice::<i64, u8>(&all).to_vec())
    }
}

/// A short form of [`Expr::binary`].
trait Is {
    fn is(self, op: Binary, other: Expr) -> Expr;
}

impl Is for Expr {
    fn is(self, op: Binary, other: Expr) -> Expr {
        self.binary(op, other)
    }
}

fn arg(number: usize) -> Expr {
    Expr::arg(number)
}

fn int(value: i64) -> Expr {
    Expr::int(Dtype::I64, value.into())
}

/// Whether operand 0, the index of a column, is this number.
fn column(number: i64) -> Expr {
    arg(0).is(Binary::Equal, int(number))
}

impl Split<'_> {
    /// Adds the nodes that compute the blocks, or returns those that an earlier step has added.
    pub fn push_blocks(&mut self, of: &Blocks, name: &str) -> ValueId {
        if let Some(&(_, there)) = self.blocks.iter().find(|(known, _)| known == of) {
            return there;
        }
        let graph = of.graph(self.from.value(of.starts));
        let mut ids = vec![of.starts; graph.values.len()];
        for (id, value) in ids.iter_mut().zip(&graph.values) {
            if let Origin::Constant(_) = value.origin {
                *id = self.add_from(value.origin.clone(), value.of.clone());
            }
        }
        for node in &graph.nodes {
            for &output in &node.outputs {
                ids[output.0] = self.add(graph.value(output).clone());
            }
            let new = |id: &ValueId| ids[id.0];
            let inputs = node.inputs.iter().map(|id| id.as_ref().map(new)).collect();
            let outputs = node.outputs.iter().map(new).collect();
            self.push(Node { name: format!("{name} ({})", node.name), op: node.op.clone(), inputs, outputs });
        }
        let made = ids[graph.outputs[0].value.0];
        self.blocks.push((*of, made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(feature = "cuda"))]
    use crate::graph::Tensor;
    use crate::loops;

    /// The blocks with keys, and the blocks of tokens in no row, computed by plain loops; the same table as that of
    /// `graph`.
    fn expected(of: &Blocks, starts: &[i64]) -> [Vec<[i32; 4]>; 2] {
        let mut places: Vec<usize> = starts
            .iter()
            .filter_map(|&start| usize::try_from(start).ok().filter(|&start| start <= of.tokens))
            .collect();
        places.sort_unstable();
        places.dedup();
        let rows: Vec<_> = places.windows(2).map(|row| row[0]..row[1].min(row[0] + of.longest)).collect();
        let mut others = Vec::new();
        let mut last = 0;
        for row in rows.iter().cloned().chain(std::iter::once(of.tokens..of.tokens)) {
            others.push(last..row.start);
            last = row.end;
        }
        // A place at which no row begins divides the tokens in no row around it.
        let cut = |other: std::ops::Range<usize>| {
            let ends: Vec<usize> = places.iter().copied().filter(|at| other.start < *at && *at < other.end).collect();
            let from = [vec![other.start], ends.clone()].concat();
            from.into_iter().zip([ends, vec![other.end]].concat()).map(|(from, end)| from..end).collect::<Vec<_>>()
        };
        let others: Vec<_> = others.into_iter().flat_map(cut).collect();
        let parts = |row: std::ops::Range<usize>, keys: [usize; 2]| {
            let part = move |from| [from, row.end, keys[0], keys[1]].map(|of| of as i32);
            row.clone().step_by(of.block_rows).map(part).collect::<Vec<_>>()
        };
        let with_keys = rows.into_iter().flat_map(|row| parts(row.clone(), [row.start, row.len()])).collect();
        [with_keys, others.into_iter().flat_map(|row| parts(row, [0; 2])).collect()]
    }

    /// Random lengths; numbers that are out of order, repeated, negative or behind all tokens.
    #[test]
    fn every_token_is_in_one_block_whatever_starts_are() {
        let mut state = 7_u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for round in 0..60 {
            let (tokens, rows) = ([1, 70, 300, 900][below(4) as usize], below(9) as usize);
            let sizes = crate::plan::PackedSizes {
                tokens,
                rows,
                longest: 1 + below(tokens as u64) as usize,
                heads: 1,
                dims: 8,
            };
            let block_tiles = 1 + below(3) as usize;
            let (longest, block_rows, most) = (sizes.longest, 64 * block_tiles, sizes.most_blocks(block_tiles));
            let of = Blocks { starts: ValueId(0), tokens, longest, block_rows, most };
            let mut starts: Vec<i64> = (0..=rows).map(|_| below(tokens as u64 + 1) as i64).collect();
            match round % 3 {
                0 => starts.sort_unstable(),
                1 => starts
                    .iter_mut()
                    .for_each(|start| *start = [i64::MIN, i64::MAX, -1, *start, *start][below(5) as usize]),
                _ => {}
            }
            let value = ValueType::new(Dtype::I64, &[starts.len()]);
            let inputs = [Tensor::of(&[starts.len()], &starts)];
            let table = loops::evaluate(&of.graph(&value), &mut |_, _| unreachable!(), &inputs).unwrap();
            assert_eq!(table[0].value_type(), &ValueType::new(Dtype::I32, &[1 + most, 4]));
            let table: Vec<[i32; 4]> = table[0].elems().chunks_exact(4).map(|row| row.try_into().unwrap()).collect();
            let [with_keys, all] = [0, 1].map(|at| table[0][at] as usize);
            let [mut rows, mut others] = [&table[1..=with_keys], &table[1 + with_keys..=all]].map(<[_]>::to_vec);
            assert!(rows.is_sorted_by_key(|row| -row[3]), "{starts:?} of {of:?}");
            assert!(table[1 + all..].iter().all(|row| *row == [0; 4]), "{starts:?} of {of:?}");
            rows.sort_unstable();
            others.sort_unstable();
            assert_eq!(
                [rows, others],
                expected(&of, &starts).map(|mut of| {
                    of.sort_unstable();
                    of
                }),
                "{starts:?} of {of:?}"
            );
        }
    }
}
