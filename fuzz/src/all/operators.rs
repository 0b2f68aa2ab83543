//! Graphs of any operators with any attributes: imported, and computed on the CPU if they are small.

use trefoil::graph::{Graph, Op, Tensor};
use trefoil::onnx::{File, Sizes};
use trefoil::{graph, loops};

use super::check_error;
use super::graphs;
use super::source::Source;
use super::support::loops::signed;

/// The largest number of elements of a value in a graph that is computed.
const MOST_ELEMS: usize = 1 << 10;

pub fn run(bytes: &[u8]) {
    let Some((graph, file)) = imported(bytes) else { return };
    let inputs = inputs(&graph);
    let weight = &mut |name: &str, _: &_| file.weight(name);
    let whole = loops::evaluate(&graph, weight, &inputs);
    let rewritten = loops::evaluate(&graph::expand(&graph::simplify(&graph)), weight, &inputs);
    match (whole, rewritten) {
        (Ok(a), Ok(b)) => a.iter().zip(&b).for_each(|(a, b)| assert_eq!(a.value_type(), b.value_type())),
        (a, b) => assert!(a.is_err() && b.is_err(), "{a:?}, rewritten {b:?}"),
    }
}

/// The graph that is made from these bytes, if it can be imported and is small.
pub fn imported(bytes: &[u8]) -> Option<(Graph, File)> {
    let file = File::from_bytes(graphs::file(&mut Source(bytes))).map_err(|error| check_error(&error)).ok()?;
    let graph = file.graph(&Sizes::new()).map_err(|error| check_error(&error)).ok()?;
    let small = graph.values.iter().all(|value| value.of.elems() <= MOST_ELEMS) && graph.nodes.len() < 1000;
    (small && graph.nodes.iter().all(|node| is_quick(&node.op))).then_some((graph, file))
}

/// Whether the time of an operation is bounded by its elements: a pooling window must not be too large.
fn is_quick(op: &Op) -> bool {
    match op {
        Op::Pool(pool) => pool.window.size.iter().product::<usize>() <= MOST_ELEMS,
        _ => true,
    }
}

pub fn inputs(graph: &Graph) -> Vec<Tensor> {
    let of = |port: &graph::Port| {
        let of = graph.value(port.value);
        signed(of.dtype, &of.dims, &port.name)
    };
    graph.inputs.iter().map(of).collect()
}
