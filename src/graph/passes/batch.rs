//! Moves the batch to the first axis of every port.

use crate::graph::op::Op;
use crate::graph::value::{Graph, ValueType};

/// The graph with the axis of these numbers in front of the others in each input and output; its computation is the
/// same.
pub(crate) fn batch_first(graph: Graph, inputs: &[usize], outputs: &[usize]) -> Graph {
    let inputs = inputs.iter().enumerate().filter(|(_, axis)| **axis > 0);
    let graph = inputs.fold(graph, |graph, (index, &axis)| {
        let of = graph.value(graph.inputs[index].value);
        let mut dims = of.dims.clone();
        dims[..=axis].rotate_right(1);
        let back: Vec<usize> = (1..=axis).chain([0]).chain(axis + 1..dims.len()).collect();
        let dtype = of.dtype;
        graph.with_input_made(index, ValueType::new(dtype, &dims), &[Op::Transpose(back)])
    });
    let outputs = outputs.iter().enumerate().filter(|(_, axis)| **axis > 0);
    outputs.fold(graph, |graph, (index, &axis)| {
        let rank = graph.value(graph.outputs[index].value).dims.len();
        let to_front = [axis].into_iter().chain(0..axis).chain(axis + 1..rank).collect();
        graph.with_output_made(index, Op::Transpose(to_front))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Expr, GraphBuilder};
    use crate::tensor::Dtype;

    #[test]
    fn ports_have_the_batch_in_front_and_the_nodes_stay() {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[3, 2, 4]);
        let y = g.input("y", Dtype::F32, &[2, 4]);
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        let turned = g.node("turned", Op::Transpose(vec![2, 0, 1]), &[sum]);
        g.output("sum", sum);
        g.output("turned", turned);
        let graph = batch_first(g.finish().unwrap(), &[1, 0], &[1, 2]);
        let dims = |ports: &[crate::graph::Port]| -> Vec<Vec<usize>> {
            ports.iter().map(|port| graph.value(port.value).dims.clone()).collect()
        };
        assert_eq!(dims(&graph.inputs), [vec![2, 3, 4], vec![2, 4]]);
        assert_eq!(dims(&graph.outputs), [vec![2, 3, 4], vec![2, 4, 3]]);
        let names: Vec<&str> = graph.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(names[1..], ["sum", "turned", "sum (output transpose)", "turned (output transpose)"]);
    }
}
