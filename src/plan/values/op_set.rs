//! One set of operations: a plan for a GPU has kernels for all that a CPU computes, for every operation and element
//! type.

use super::*;
use crate::graph::{
    ArgReduce, Contract, Conv, Cumulate, Expr, GraphBuilder, Nearest, Norm, PackedAttention, Pad, PadMode, Pool,
    PoolOp, Recurrent, RecurrentCell, Reduce, ReduceOp, Resize, ResizeCoordinates, ResizeMode, Scatter, TopK, Unary,
    Window,
};
use crate::loops::ptx;

/// The number of kinds of operations; the last kind is a concatenation of more operands than a kernel can read.
const KINDS: usize = 28;

/// The index of an operation's kind. A new operation needs a sample.
const fn kind(op: &Op) -> usize {
    match op {
        Op::Map(_) => 0,
        Op::Reduce(_) => 1,
        Op::ArgReduce(_) => 2,
        Op::Cumulate(_) => 3,
        Op::Softmax { .. } => 4,
        Op::Norm(_) => 5,
        Op::Reshape(_) => 6,
        Op::Transpose(_) => 7,
        Op::Slice(_) => 8,
        Op::Broadcast(_) => 9,
        Op::Pad(_) => 10,
        Op::Concat(_) => 11,
        Op::Gather(_) => 12,
        Op::GatherElements(_) => 13,
        Op::GatherNd(_) => 14,
        Op::ScatterElements(..) => 15,
        Op::ScatterNd(_) => 16,
        Op::TopK(_) => 17,
        Op::Contract(_) => 18,
        Op::Conv(_) => 19,
        Op::ConvTranspose(..) => 20,
        Op::Pool(_) => 21,
        Op::Resize(_) => 22,
        Op::Quantize { .. } => 23,
        Op::Dequantize { .. } => 24,
        Op::PackedAttention(_) => 25,
        Op::Recurrent(_) => 26,
    }
}

/// Operations with their operands. Elements have the given type if the operation has no type of its own.
fn samples(dtype: Dtype) -> Vec<(Op, Vec<ValueType>)> {
    let of = |dims: &[usize]| ValueType::new(dtype, dims);
    let [x, image, index] = [of(&[4, 6]), of(&[1, 5, 5, 4]), ValueType::new(Dtype::I64, &[4, 6])];
    let mut all = vec![
        (Op::Map(Expr::arg(0) * Expr::arg(1) + Expr::arg(0)), vec![x.clone(), x.clone()]),
        (Op::Map(Expr::arg(0).cast(Dtype::F32).cast(dtype)), vec![x.clone()]),
        (Op::Softmax { axis: 1, log: false }, vec![x.clone()]),
        (Op::Softmax { axis: 0, log: true }, vec![x.clone()]),
        (Op::Norm(Norm { axis: 1, eps: 1e-5, centred: true }), vec![x.clone(), of(&[6]), of(&[6])]),
        (Op::Reshape(vec![3, 8]), vec![x.clone()]),
        (Op::Transpose(vec![1, 0]), vec![x.clone()]),
        (Op::Slice(Slice { start: vec![3, 1], step: vec![-1, 2], dims: vec![3, 2] }), vec![x.clone()]),
        (Op::Broadcast(vec![2, 4, 6]), vec![x.clone()]),
        (Op::Concat(0), vec![x.clone(), x.clone(), of(&[1, 6])]),
        (Op::Concat(1), vec![of(&[4, 1]); 300]),
        (Op::Gather(1), vec![x.clone(), index.clone()]),
        (Op::GatherElements(1), vec![x.clone(), index.clone()]),
        (Op::GatherNd(0), vec![x.clone(), ValueType::new(Dtype::I64, &[3, 2])]),
        (Op::TopK(TopK { axis: 1, k: 3, largest: true }), vec![x.clone()]),
        (Op::Contract(Contract::matmul(2, 2)), vec![x.clone(), of(&[6, 5])]),
        (
            Op::Conv(Conv { window: Window::all(2, 3, 1, 1), groups: 2 }),
            vec![image.clone(), of(&[6, 2, 3, 3]), of(&[6])],
        ),
        (
            Op::ConvTranspose(Conv { window: Window::all(2, 2, 2, 0), groups: 1 }, vec![10, 10]),
            vec![image.clone(), of(&[4, 3, 2, 2])],
        ),
        (Op::Dequantize { axis: None }, vec![x.clone(), ValueType::new(Dtype::F32, &[])]),
    ];
    for (starts, bias) in [(Dtype::I32, None), (Dtype::I64, Some(of(&[2, 9])))] {
        let mut operands = vec![of(&[6, 2, 8]); 3];
        operands.push(ValueType::new(starts, &[4]));
        operands.extend(bias);
        all.push((Op::PackedAttention(PackedAttention { longest: 5, scale: 0.5 }), operands));
    }
    let cells = [RecurrentCell::Rnn, RecurrentCell::Gru { reset_after: false }, RecurrentCell::Lstm { coupled: false }];
    for cell in cells {
        let of_recurrent = Recurrent {
            cell,
            backwards: vec![false, true],
            activations: vec![vec![Expr::arg(0).unary(Unary::Tanh); cell.activations()]; 2],
        };
        let rows = 2 * 8 * cell.gates();
        let mut operands = vec![of(&[3, 1, rows]), of(&[rows, 8])];
        operands.extend((cell.gates() == 3).then(|| of(&[2, 8])));
        all.push((Op::Recurrent(of_recurrent), operands));
    }
    for integers in [Dtype::U8, Dtype::I8, Dtype::I32] {
        all.push((Op::Quantize { dtype: integers, axis: None }, vec![x.clone(), of(&[])]));
    }
    for op in [ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Mean] {
        all.push((Op::Reduce(Reduce { op, axes: vec![0], keep: true }), vec![x.clone()]));
        all.push((Op::Cumulate(Cumulate { op, axis: 1, exclusive: true, reverse: true }), vec![x.clone()]));
    }
    for largest in [true, false] {
        all.push((Op::ArgReduce(ArgReduce { largest, axis: 1, keep: false, last: largest }), vec![x.clone()]));
    }
    for mode in [PadMode::Constant(Number::Int(1)), PadMode::Reflect, PadMode::Edge, PadMode::Wrap] {
        all.push((Op::Pad(Pad { before: vec![1, -1], after: vec![2, 0], mode }), vec![x.clone()]));
    }
    for how in [Scatter::Replace, Scatter::Add, Scatter::Mul, Scatter::Min, Scatter::Max] {
        all.push((Op::ScatterElements(1, how), vec![x.clone(), index.clone(), x.clone()]));
        let rows = vec![x.clone(), ValueType::new(Dtype::I64, &[3, 1]), of(&[3, 6])];
        all.push((Op::ScatterNd(how), rows));
    }
    for op in [PoolOp::Max, PoolOp::Sum, PoolOp::Mean, PoolOp::MeanOfTaps] {
        all.push((Op::Pool(Pool { op, window: Window::all(2, 3, 2, 1) }), vec![image.clone()]));
    }
    for mode in [ResizeMode::Nearest(Nearest::Floor), ResizeMode::Linear, ResizeMode::Cubic(-0.75)] {
        let resize = Resize {
            mode,
            coordinates: ResizeCoordinates::HalfPixel,
            dims: vec![1, 8, 3, 4],
            scales: vec![1.0, 1.6, 0.6, 1.0],
            crop: vec![[0.0, 1.0]; 4],
            antialias: false,
            exclude_outside: false,
            outside: None,
        };
        all.push((Op::Resize(resize), vec![image.clone()]));
    }
    all
}

/// The graph of one operation, with its operands as inputs and its results as outputs, and the rows of the graph.
fn graph_of(op: &Op, operands: &[ValueType], outputs: usize) -> (Graph, [RowSpec; 2]) {
    let mut g = GraphBuilder::new();
    let inputs: Vec<Option<ValueId>> =
        operands.iter().enumerate().map(|(i, of)| Some(g.input(&format!("x{i}"), of.dtype, &of.dims))).collect();
    let written = g.node_with("node", op.clone(), &inputs, outputs);
    written.iter().enumerate().for_each(|(i, &value)| g.output(&format!("y{i}"), value));
    let graph = g.finish().unwrap_or_else(|error| panic!("{op:?}: {error}"));
    let rows = [&graph.inputs, &graph.outputs].map(|ports| {
        let port = |port: &crate::graph::Port| {
            let ValueType { dtype, dims } = graph.value(port.value);
            (port.name.clone(), *dtype, dims.clone())
        };
        RowSpec::new(ports.iter().map(port).collect::<Vec<_>>())
    });
    (graph, rows)
}

#[test]
fn what_a_cpu_computes_a_gpu_has_kernels_for() {
    let mut accepted = [0; KINDS];
    for (op, operands) in Dtype::ALL.into_iter().flat_map(samples) {
        let outputs = match &op {
            Op::TopK(_) => 2,
            Op::Recurrent(of) => 1 + of.cell.states(),
            _ => 1,
        };
        if op.infer(&operands.iter().map(Some).collect::<Vec<_>>(), outputs).is_err() {
            continue; // no graph can have it, on any device
        }
        accepted[kind(&op)] += 1;
        accepted[KINDS - 1] += usize::from(operands.len() > ptx::MOST_OPERANDS);
        let (graph, [input, output]) = graph_of(&op, &operands, outputs);
        for limits in [Limits::cpu(2), Limits::a100(), Limits::h200(), Limits::rtx4090()] {
            for precision in [Dtype::F16, Dtype::Bf16, Dtype::F32] {
                let request = ValuesRequest {
                    limits: &limits,
                    batch: 1,
                    rows: [&input, &output],
                    states: &[],
                    precision,
                    in_f32: &BTreeSet::new(),
                    choices: &Choices::new(),
                };
                let plan = plan(&graph, &request).unwrap_or_else(|error| panic!("{limits}: {op:?}: {error}"));
                plan.check().unwrap_or_else(|error| panic!("{limits}: {op:?}: {error}"));
                if limits.family != Family::Cpu {
                    written(&plan, &op);
                }
            }
        }
    }
    assert!(accepted.iter().all(|&count| count > 0), "no type has a sample of a kind of operation: {accepted:?}");
}

/// Checks that every loop of a plan can be compiled for a GPU.
fn written(plan: &Plan, op: &Op) {
    let target = ptx::PtxTarget { compute_capability: plan.limits.compute_capability, units: plan.limits.units };
    for step in &plan.steps {
        match &step.op {
            StepOp::Loop(of) => {
                ptx::kernel(&of.of, &target).unwrap_or_else(|error| panic!("{op:?}: {error}"));
            }
            StepOp::Hand(_) => panic!("{op:?} by hand on a GPU"),
            _ => {}
        }
    }
}

/// A single error lists all nodes that no kernel computes, before anything is built.
#[test]
fn a_plan_lists_all_that_a_gpu_does_not_compute() {
    let outputs = ptx::MOST_OPERANDS + 1;
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[2, 3]);
    for i in 0..outputs {
        let y = g.map(&format!("n{i}"), Expr::arg(0) + Expr::float(Dtype::F32, i as f64), &[x]);
        g.output(&format!("y{i}"), y);
    }
    let graph = g.finish().unwrap();
    let input = RowSpec::new([("x", Dtype::F32, vec![3])]);
    let output = RowSpec::new((0..outputs).map(|i| (format!("y{i}"), Dtype::F32, vec![3])));
    let plan = |limits: &Limits| {
        let (rows, in_f32, choices) = ([&input, &output], &BTreeSet::new(), &Choices::new());
        let (states, precision) = (&[][..], Dtype::F16);
        plan(&graph, &ValuesRequest { limits, batch: 2, rows, states, precision, in_f32, choices })
    };
    let refused = plan(&Limits::h200()).unwrap_err().to_string();
    assert!(refused.contains("node `output` (pack)") && refused.contains("operands"), "{refused}");
}
