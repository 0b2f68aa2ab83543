use std::collections::HashMap;

use super::*;
use crate::graph::{Contract, Conv, Expr, GraphBuilder, Window};
use crate::plan::Kernel;

/// Rows with these ports, for a graph of one row.
fn rows(ports: &[(&str, Dtype, &[usize])]) -> RowSpec {
    RowSpec::new(ports.iter().map(|&(name, dtype, dims)| (name, dtype, dims.to_vec())))
}

/// The plan of a graph without states, as the planner chooses.
pub(crate) fn planned(graph: &Graph, limits: &Limits, batch: usize, rows: [&RowSpec; 2], precision: Dtype) -> Plan {
    planned_by(graph, limits, batch, rows, precision, &Choices::new())
}

/// The plan of a graph without states, with these choices.
pub(crate) fn planned_by(
    graph: &Graph,
    limits: &Limits,
    batch: usize,
    rows: [&RowSpec; 2],
    precision: Dtype,
    choices: &Choices,
) -> Plan {
    let (states, in_f32) = (&[][..], &BTreeSet::new());
    plan(graph, &ValuesRequest { limits, batch, rows, states, precision, in_f32, choices }).unwrap()
}

/// A graph that computes a convolution of images of 5 channels, a depthwise convolution, and a product of each pixel
/// with a matrix.
fn network(batch: usize) -> Graph {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[batch, 9, 9, 5]);
    let [filter, bias] = [g.weight("f", Dtype::F32, &[24, 5, 3, 3]), g.weight("b", Dtype::F32, &[24])];
    let x = g.node("conv", Op::Conv(Conv { window: Window::all(2, 3, 2, 1), groups: 1 }), &[x, filter, bias]);
    let filter = g.weight("d", Dtype::F32, &[24, 1, 3, 3]);
    let x = g.node("depthwise", Op::Conv(Conv { window: Window::all(2, 3, 1, 1), groups: 24 }), &[x, filter]);
    let x = g.map("twice", Expr::arg(0) + Expr::arg(0), &[x]);
    let matrix = g.weight("m", Dtype::F32, &[24, 7]);
    let x = g.node("product", Op::Contract(Contract::matmul(4, 2)), &[x, matrix]);
    g.output("y", x);
    g.finish().unwrap()
}

fn kernels_of(plan: &Plan) -> HashMap<&str, Kernel> {
    plan.steps.iter().map(|step| (step.name.as_str(), step.kernel)).collect()
}

#[test]
fn layers_have_the_kernels_for_images_on_a_gpu_and_in_f16_alone() {
    let [input, output] = [rows(&[("x", Dtype::F32, &[9, 9, 5])]), rows(&[("y", Dtype::F32, &[5, 5, 7])])];
    for limits in [Limits::a100(), Limits::h200()] {
        for batch in [1, 6] {
            let plan = planned(&network(batch), &limits, batch, [&input, &output], Dtype::F16);
            let kernels = kernels_of(&plan);
            for layer in ["conv", "depthwise", "product"] {
                assert!(!matches!(kernels[layer], Kernel::Loop | Kernel::Hand), "{limits}: {layer}\n{plan}");
            }
            let of = |name: &str| plan.steps.iter().find(|step| step.name == name).unwrap();
            let read = &plan.tensors[of("conv").inputs[0].0];
            assert_eq!((read.shape, read.stored_channels, read.dtype), (Shape::new(9, 9, 5), 8, Dtype::F16));
            assert_eq!(plan.tensors[of("product").outputs[0].0].stored_channels, 8);
            plan.check().unwrap();
            let loops = planned(&network(batch), &limits, batch, [&input, &output], Dtype::F32);
            assert!(loops.steps.iter().all(|step| step.kernel == Kernel::Loop), "{loops}");
        }
    }
    let cpu = planned(&network(1), &Limits::cpu(2), 1, [&input, &output], Dtype::F16);
    assert!(cpu.steps.iter().all(|step| step.kernel == Kernel::Loop), "{cpu}");
}

/// On a CPU, packed attention is a step of its own. On a GPU it is a kernel, or a few loops for each layer that read
/// keys and values in place: no tensor has an element for each token, key and feature. The places of keys are computed
/// once for all layers.
#[test]
fn packed_attention_reads_keys_where_they_lie() {
    let (dims, longest) = ([256, 4, 32], 64);
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &dims);
    let starts = g.input("starts", Dtype::I64, &[9]);
    let y = g.packed_attention("first", [x; 3], starts, None, longest);
    let y = g.packed_attention("second", [y; 3], starts, None, longest);
    g.output("y", y);
    let graph = g.finish().unwrap();
    let [input, output] = [&graph.inputs, &graph.outputs].map(|ports| {
        let port = |port: &crate::graph::Port| (port.name.clone(), graph.value(port.value).clone());
        RowSpec::new(ports.iter().map(port).map(|(name, of)| (name, of.dtype, of.dims)))
    });
    let cpu = planned(&graph, &Limits::cpu(2), 1, [&input, &output], Dtype::F32);
    assert!(cpu.steps.len() == 2 && cpu.steps.iter().all(|step| step.kernel == Kernel::Hand), "{cpu}");
    let plan = planned(&graph, &Limits::h200(), 1, [&input, &output], Dtype::F16);
    plan.check().unwrap();
    let kernels: Vec<_> = plan.steps.iter().filter(|step| step.kernel != Kernel::Loop).collect();
    let is_packed = |step: &&&Step| matches!(step.op, StepOp::PackedAttention(_));
    assert_eq!((kernels.len(), kernels.iter().filter(is_packed).count()), (2, 2), "{plan}");
    assert_eq!(kernels[0].inputs[3], kernels[1].inputs[3], "blocks are those of both layers");
    assert!(plan.steps.len() <= 16, "{plan}");
    let in_f32 = &BTreeSet::from(["first".to_owned()]);
    let request = ValuesRequest {
        limits: &Limits::h200(),
        batch: 1,
        rows: [&input, &output],
        states: &[],
        precision: Dtype::F16,
        in_f32,
        choices: &Choices::new(),
    };
    let plan = super::plan(&graph, &request).unwrap();
    assert_eq!(plan.steps.iter().filter(|step| step.kernel != Kernel::Loop).count(), 1, "one is in f32\n{plan}");
    for (limits, precision) in [(Limits::h200(), Dtype::F32), (Limits::a100(), Dtype::F16)] {
        let plan = planned(&graph, &limits, 1, [&input, &output], precision);
        plan.check().unwrap();
        assert!(plan.steps.iter().all(|step| step.kernel == Kernel::Loop), "{plan}");
        let most = plan.tensors.iter().map(|tensor| tensor.bytes).max().unwrap();
        assert!(most <= 8 * dims[0] * longest * dims[1], "{most} bytes\n{plan}");
        let counts = plan.steps.iter().filter(|step| step.name.starts_with("second")).count();
        assert!(counts <= 3 && plan.steps.len() - counts <= 8, "{plan}");
    }
}

/// A kernel computes packed attention of inputs in rows of several ports, at any offset within a row.
#[test]
fn packed_attention_reads_inputs_in_rows() {
    for (starts, begin) in [(8, 64), (9, 80)] {
        let mut g = GraphBuilder::new();
        let ports = [g.input("starts", Dtype::I64, &[2, starts]), g.input("x", Dtype::F32, &[2, 256, 128])];
        let rows = [0, 1].map(|row| {
            let cut = Slice { start: vec![row, 0], step: vec![1; 2], dims: vec![1, starts] };
            let at = g.node(&format!("starts {row}, cut"), Op::Slice(cut), &ports[..1]);
            let at = g.node(&format!("starts {row}"), Op::Reshape(vec![starts]), &[at]);
            let cut = Slice { start: vec![row, 0, 0], step: vec![1; 3], dims: vec![1, 256, 128] };
            let x = g.node(&format!("x {row}, cut"), Op::Slice(cut), &ports[1..]);
            let x = g.node(&format!("x {row}"), Op::Reshape(vec![256, 4, 32]), &[x]);
            let y = g.packed_attention(&format!("attention {row}"), [x; 3], at, None, 64);
            g.node(&format!("tokens {row}"), Op::Reshape(vec![1, 256, 128]), &[y])
        });
        let y = g.node("rows", Op::Concat(0), &rows);
        g.output("y", y);
        let graph = g.finish().unwrap();
        let input = RowSpec::new([
            ("starts".to_owned(), Dtype::I64, vec![starts]),
            ("x".to_owned(), Dtype::F32, vec![256, 128]),
        ]);
        let output = RowSpec::new([("y".to_owned(), Dtype::F32, vec![256, 128])]);
        let plan = planned(&graph, &Limits::h200(), 2, [&input, &output], Dtype::F16);
        plan.check().unwrap();
        let found = plan.steps.iter().filter(|step| matches!(step.op, StepOp::PackedAttention(_))).count();
        assert_eq!((input.ports()[1].offset, found), (begin, 2), "{plan}");
    }
}

/// Queries, keys and values are read in place, side by side, and a factor of the queries becomes one of the scores.
/// Loops compute attention with a bias by distance, with values of another width than keys, or with a factor of the
/// values.
#[test]
fn the_kernel_of_packed_attention_reads_views() {
    let plan = |has_bias: bool, values: usize, factor_at: usize| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[128, 192]);
        let starts = g.input("starts", Dtype::I32, &[9]);
        let bias = has_bias.then(|| g.input("bias", Dtype::F32, &[1, 99]));
        let mut part = |name: &str, index: usize, dims: usize| {
            let cut = Slice { start: vec![0, 64 * index], step: vec![1; 2], dims: vec![128, 2 * dims] };
            let cut = g.node(&format!("{name}.cut"), Op::Slice(cut), &[x]);
            let apart = g.node(name, Op::Reshape(vec![128, 2, dims]), &[cut]);
            let half = Expr::arg(0) * Expr::float(Dtype::F32, 0.5);
            if factor_at == index { g.map(&format!("{name}.half"), half, &[apart]) } else { apart }
        };
        let qkv = [part("q", 0, 32), part("k", 1, 32), part("v", 2, values)];
        let y = g.packed_attention("attention", qkv, starts, bias, 50);
        g.output("y", y);
        let graph = g.finish().unwrap();
        let [input, output] = [&graph.inputs, &graph.outputs].map(|ports| {
            let port = |port: &crate::graph::Port| (port.name.clone(), graph.value(port.value).clone());
            RowSpec::new(ports.iter().map(port).map(|(name, of)| (name, of.dtype, of.dims)))
        });
        planned(&graph, &Limits::h200(), 1, [&input, &output], Dtype::F16)
    };
    let op = |plan: &Plan| {
        plan.steps.iter().find_map(|step| match step.op {
            StepOp::PackedAttention(of) => Some(of),
            _ => None,
        })
    };
    let of = op(&plan(false, 32, 0)).unwrap();
    assert_eq!(
        of.qkv.map(|at| (at.first, at.pitches[0], at.pitches[1])),
        [(0, 32, 192), (64, 32, 192), (128, 32, 192)]
    );
    assert_eq!((of.out.first, of.out.pitches[0], of.out.pitches[1]), (0, 32, 64));
    assert_eq!((of.scale, of.sizes.rows, of.sizes.longest), (0.5 / 32_f32.sqrt(), 8, 50));
    for (has_bias, values, factor_at) in [(true, 32, 3), (false, 24, 3), (false, 32, 2)] {
        assert_eq!(op(&plan(has_bias, values, factor_at)), None);
    }
}

/// Operands of layers, including weights, are in memory in the layers' type, and loops compute the layers on every
/// device; biases are in f32.
#[test]
fn operands_of_layers_are_values_in_their_type() {
    let [input, output] = [rows(&[("x", Dtype::F32, &[9, 9, 5])]), rows(&[("y", Dtype::F32, &[5, 5, 7])])];
    let of_loops = [(Limits::cpu(2), Dtype::F16), (Limits::cpu(2), Dtype::Bf16), (Limits::h200(), Dtype::Bf16)];
    for (limits, precision) in of_loops {
        let plan = planned(&network(1), &limits, 1, [&input, &output], precision);
        assert!(plan.is_of_values(), "{plan}");
        let between = plan.tensors.iter().filter(|tensor| matches!(tensor.place, Place::Arena(_)));
        assert!(between.clone().count() >= 3 && between.into_iter().all(|tensor| tensor.dtype == precision), "{plan}");
        let constants = plan.constants.iter().map(|constant| (constant.of.rank() > 1, constant.of.dtype));
        let mut constants: Vec<_> = constants.collect();
        constants.sort_by_key(|&(is_filter, _)| is_filter);
        assert_eq!(constants, [(false, Dtype::F32), (true, precision), (true, precision), (true, precision)]);
    }
}

/// Each word of a row is that of its port; zeros lie between ports.
#[test]
fn rows_are_packed_word_by_word() {
    let spec = rows(&[("a", Dtype::F16, &[3]), ("b", Dtype::U32, &[2]), ("c", Dtype::U8, &[5])]);
    let of = packing(2, &spec);
    let ports: Vec<crate::graph::Tensor> = (1..)
        .zip(spec.ports())
        .map(|(seed, port)| {
            let bytes: Vec<u8> = (0..2 * port.bytes()).map(|i| (i * 7 + 50 * seed) as u8).collect();
            crate::graph::Tensor::of(&[2, port.bytes()], &bytes)
        })
        .collect();
    let to = ValueType::new(Dtype::U8, &[2, spec.row_pitch]);
    let packed = loops::run(&of, &ports.iter().collect::<Vec<_>>(), to).unwrap();
    for row in 0..2 {
        let mut wanted = vec![0; spec.row_pitch];
        for (port, value) in spec.ports().iter().zip(&ports) {
            wanted[port.range()].copy_from_slice(&value.elems::<u8>()[row * port.bytes()..][..port.bytes()]);
        }
        assert_eq!(&packed.elems::<u8>()[row * spec.row_pitch..][..spec.row_pitch], wanted);
    }
}
