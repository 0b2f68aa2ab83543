//! Values that are views of others: the elements of another value, with strides. Slices, transposes, reshapes and
//! factors may lie between.

use crate::graph::{Graph, Op, Origin, Slice, ValueId};

use super::expr::factor_of;

/// Elements of a value, by strides, multiplied by a number.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Strided {
    /// The value that has the elements.
    pub root: ValueId,
    /// The index of the first element.
    pub first: usize,
    /// The size of each dimension with its stride in elements; the stride is 0 for a dimension of size 1.
    pub axes: Vec<[usize; 2]>,
    /// The factor of the elements.
    pub factor: f64,
}

impl Strided {
    /// A value as elements of the earliest value of which it is a view.
    pub fn of(graph: &Graph, id: ValueId) -> Self {
        Self::through(graph, id).unwrap_or_else(|| Self::identity(graph, id))
    }

    /// A value as its own elements.
    pub fn identity(graph: &Graph, id: ValueId) -> Self {
        Self { root: id, first: 0, axes: dense(&graph.value(id).dims), factor: 1.0 }
    }

    /// The value as a view of its operation's operand; `None` if the operation does more than select, order and scale
    /// elements.
    fn through(graph: &Graph, id: ValueId) -> Option<Self> {
        let Origin::Node(node, 0) = graph.values[id.0].origin else { return None };
        let node = &graph.nodes[node.0];
        if let Op::Map(_) = node.op {
            let (from, factor) = factor_of(graph, node)?;
            let of = Self::of(graph, from);
            return (graph.value(from).dims == graph.value(id).dims)
                .then_some(Self { factor: of.factor * factor, ..of });
        }
        let from = |first: usize| node.inputs.get(first).copied().flatten().map(|id| Self::of(graph, id));
        match &node.op {
            Op::Transpose(order) => from(0).map(|of| of.transposed(order)),
            Op::Slice(slice) => from(0)?.sliced(slice),
            Op::Reshape(dims) => from(0)?.reshaped(dims),
            Op::Gather(axis) => from(0)?.gathered(*axis, graph, node.inputs[1]?),
            _ => None,
        }
    }

    fn transposed(self, order: &[usize]) -> Self {
        Self { axes: order.iter().map(|&axis| self.axes[axis]).collect(), ..self }
    }

    fn sliced(self, slice: &Slice) -> Option<Self> {
        let first = self.axes.iter().zip(&slice.start).map(|([_, stride], start)| stride * start).sum::<usize>();
        let axis = |((&dim, &step), [_, stride]): ((&usize, &isize), &[usize; 2])| {
            let step = if dim == 1 { 0 } else { usize::try_from(step).ok()? };
            Some([dim, stride * step])
        };
        let axes = slice.dims.iter().zip(&slice.step).zip(&self.axes).map(axis).collect::<Option<_>>()?;
        Some(Self { first: self.first + first, axes, ..self })
    }

    /// The slice at a constant index along an axis.
    fn gathered(mut self, axis: usize, graph: &Graph, index: ValueId) -> Option<Self> {
        let [size, stride] = self.axes[axis];
        let place = graph.constant_place(index, size)?;
        self.axes.splice(axis..=axis, vec![[1, 0]; graph.value(index).rank()]);
        Some(Self { first: self.first + stride * place, ..self })
    }

    /// The elements in other dimensions, if each of these has one stride.
    pub fn reshaped(self, dims: &[usize]) -> Option<Self> {
        let mut runs = self.runs();
        let [mut left, mut stride] = runs.pop().unwrap_or([1, 1]);
        let mut axes = vec![[1, 0]; dims.len()];
        for (axis, &dim) in dims.iter().enumerate().rev().filter(|(_, dim)| **dim != 1) {
            if left == 1 {
                [left, stride] = runs.pop()?;
            }
            if dim == 0 || left % dim != 0 {
                return None;
            }
            axes[axis] = [dim, stride];
            (left, stride) = (left / dim, stride * dim);
        }
        Some(Self { axes, ..self })
    }

    /// The dimensions, of which neighbours are joined if they have one stride together.
    fn runs(&self) -> Vec<[usize; 2]> {
        let mut runs: Vec<[usize; 2]> = Vec::new();
        for &[dim, stride] in self.axes.iter().filter(|[dim, _]| *dim != 1) {
            match runs.last_mut() {
                Some([elems, last]) if *last == dim * stride => (*elems, *last) = (*elems * dim, stride),
                _ => runs.push([dim, stride]),
            }
        }
        runs
    }
}

/// The axes of a value whose elements lie without gaps.
pub(super) fn dense(dims: &[usize]) -> Vec<[usize; 2]> {
    let stride = |axis: usize| dims[axis + 1..].iter().product();
    dims.iter().enumerate().map(|(axis, &dim)| [dim, if dim == 1 { 0 } else { stride(axis) }]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Expr, GraphBuilder};
    use crate::tensor::Dtype;

    /// Views in rows of 72: queries, keys and values of 3 heads with 8 values each, as exports cut them.
    #[test]
    fn views_of_views_are_elements_of_the_first_value() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 5, 72]);
        let apart = g.node("apart", Op::Reshape(vec![2, 5, 3, 3, 8]), &[x]);
        let turned = g.node("turned", Op::Transpose(vec![2, 0, 3, 1, 4]), &[apart]);
        let cut = Slice { start: vec![1, 0, 0, 0, 0], step: vec![1; 5], dims: vec![1, 2, 3, 5, 8] };
        let cut = g.node("cut", Op::Slice(cut), &[turned]);
        let heads = g.node("heads", Op::Reshape(vec![2, 3, 5, 8]), &[cut]);
        let half = g.map("half", Expr::arg(0) * Expr::float(Dtype::F32, 0.5), &[heads]);
        let index = g.constant(Dtype::I64, &[], (-1_i64).to_le_bytes().to_vec());
        let values = g.node("values", Op::Gather(0), &[turned, index]);
        let together = g.node("together", Op::Reshape(vec![6, 40]), &[heads]);
        [half, together, values].iter().zip(["half", "together", "values"]).for_each(|(&id, name)| g.output(name, id));
        let graph = g.finish().unwrap();
        let axes = vec![[2, 360], [3, 8], [5, 72], [8, 1]];
        assert_eq!(Strided::of(&graph, half), Strided { root: x, first: 24, axes: axes.clone(), factor: 0.5 });
        assert_eq!(Strided::of(&graph, values), Strided { root: x, first: 48, axes, factor: 1.0 });
        assert_eq!(Strided::of(&graph, together), Strided::identity(&graph, together));
    }

    #[test]
    fn dimensions_are_split_and_joined_where_they_have_one_stride() {
        let of = |axes: &[[usize; 2]]| Strided { root: ValueId(0), first: 0, axes: axes.to_vec(), factor: 1.0 };
        let reshaped = |axes: &[[usize; 2]], dims: &[usize]| of(axes).reshaped(dims).map(|of| of.axes);
        assert_eq!(reshaped(&[[4, 20], [10, 2]], &[2, 20]), Some(vec![[2, 40], [20, 2]]));
        assert_eq!(reshaped(&[[4, 20], [10, 1]], &[40]), None);
        assert_eq!(reshaped(&[[4, 20], [10, 1]], &[2, 1, 2, 10]), Some(vec![[2, 40], [1, 0], [2, 20], [10, 1]]));
        assert_eq!(reshaped(&[[1, 0]], &[1, 1]), Some(vec![[1, 0]; 2]));
    }
}
