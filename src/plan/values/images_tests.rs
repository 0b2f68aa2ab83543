use super::*;
use crate::graph::{Binary, Contract, Conv, Expr, GraphBuilder, Pool, PoolOp, Reduce, ReduceOp, Unary, Window};

/// A graph of values that grows by layers.
pub(super) struct Network(pub GraphBuilder, pub usize);

impl Network {
    pub fn new(batch: usize, dims: [usize; 3]) -> (Self, ValueId) {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[batch, dims[0], dims[1], dims[2]]);
        (Self(g, batch), x)
    }

    /// A convolution of one group from and to so many channels.
    pub fn conv(&mut self, name: &str, x: ValueId, [c, k, size]: [usize; 3]) -> ValueId {
        let filter = self.0.weight(&format!("{name}.weight"), Dtype::F32, &[k, c, size, size]);
        self.0.node(name, Op::Conv(Conv { window: Window::all(2, size, 1, size / 2), groups: 1 }), &[x, filter])
    }

    pub fn bound(&mut self, name: &str, x: ValueId, op: Binary, limit: f64) -> ValueId {
        self.0.map(name, Expr::arg(0).binary(op, Expr::float(Dtype::F32, limit)), &[x])
    }

    pub fn relu(&mut self, name: &str, x: ValueId) -> ValueId {
        self.bound(name, x, Binary::Max, 0.0)
    }

    pub fn tanh(&mut self, name: &str, x: ValueId) -> ValueId {
        self.0.map(name, Expr::arg(0).unary(Unary::Tanh), &[x])
    }

    /// x * sigmoid(x), in two nodes.
    pub fn silu(&mut self, name: &str, x: ValueId) -> ValueId {
        self.gated(name, x, 1.0)
    }

    /// x * sigmoid(factor x), in two nodes.
    pub fn gated(&mut self, name: &str, x: ValueId, factor: f64) -> ValueId {
        let one = || Expr::float(Dtype::F32, 1.0);
        let gate = one() / (one() + (Expr::arg(0) * Expr::float(Dtype::F32, -factor)).unary(Unary::Exp));
        let gate = self.0.map(&format!("{name}.gate"), gate, &[x]);
        self.0.map(name, Expr::arg(0) * Expr::arg(1), &[x, gate])
    }

    pub fn mean(&mut self, name: &str, x: ValueId) -> ValueId {
        let of = Reduce { op: ReduceOp::Mean, axes: vec![1, 2], keep: true };
        self.0.node(name, Op::Reduce(of), &[x])
    }

    pub fn depthwise(&mut self, name: &str, x: ValueId, [c, size]: [usize; 2]) -> ValueId {
        let filter = self.0.weight(&format!("{name}.weight"), Dtype::F32, &[c, 1, size, size]);
        self.0.node(name, Op::Conv(Conv { window: Window::all(2, size, 1, size / 2), groups: c }), &[x, filter])
    }

    /// A product of vectors with a matrix of this many columns and rows.
    pub fn linear(&mut self, name: &str, x: ValueId, [c, k]: [usize; 2]) -> ValueId {
        let matrix = self.0.weight(&format!("{name}.weight"), Dtype::F32, &[k, c]);
        let product = Contract { left: vec![0, 1], right: vec![2, 1], result: vec![0, 2] };
        self.0.node(name, Op::Contract(product), &[x, matrix])
    }

    pub fn sum(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        self.0.map(name, Expr::arg(0) + Expr::arg(1), &[a, b])
    }

    /// The plan with these outputs, checked.
    pub fn planned(self, limits: &Limits, outputs: &[ValueId]) -> Plan {
        self.planned_with(limits, outputs, &[])
    }

    /// The same with some nodes in f32.
    pub fn planned_with(mut self, limits: &Limits, outputs: &[ValueId], in_f32: &[&str]) -> Plan {
        for (index, &value) in outputs.iter().enumerate() {
            self.0.output(&format!("y{index}"), value);
        }
        let (graph, batch) = (self.0.finish().unwrap(), self.1);
        let rows = |ports: &[crate::graph::Port]| {
            RowSpec::new(ports.iter().map(|port| {
                let of = graph.value(port.value);
                (port.name.clone(), of.dtype, of.dims[1..].to_vec())
            }))
        };
        let (rows, choices) = ([rows(&graph.inputs), rows(&graph.outputs)], Choices::new());
        let rows = [&rows[0], &rows[1]];
        let (in_f32, states) = (&in_f32.iter().map(|&name| name.to_owned()).collect(), &[][..]);
        let (precision, choices) = (Dtype::F16, &choices);
        let request = ValuesRequest { limits, batch, rows, states, precision, in_f32, choices };
        let plan = plan(&graph, &request).unwrap();
        plan.check().unwrap();
        are_in_order(&plan);
        plan
    }
}

/// Checks that each tensor in the arena is written by a step before those that read it.
fn are_in_order(plan: &Plan) {
    for (index, step) in plan.steps.iter().enumerate() {
        for &input in step.inputs.iter().filter(|id| matches!(plan.tensors[id.0].place, Place::Arena(_))) {
            let writes = |step: &Step| step.outputs.iter().any(|&id| plan.holder(id) == plan.holder(input));
            assert!(plan.steps[..index].iter().any(writes), "step {index} `{}`\n{plan}", step.name);
        }
    }
}

/// The steps that are no loops, by name and operation.
fn images(plan: &Plan) -> Vec<(&str, String)> {
    let steps = plan.steps.iter().filter(|step| step.kernel != Kernel::Loop);
    steps.map(|step| (step.name.as_str(), step.op.label(step.inputs.len()))).collect()
}

fn loops(plan: &Plan) -> usize {
    plan.steps.iter().filter(|step| step.kernel == Kernel::Loop).count()
}

fn named<'a>(steps: &[(&'a str, &str)]) -> Vec<(&'a str, String)> {
    steps.iter().map(|&(name, label)| (name, label.to_owned())).collect()
}

#[test]
fn a_residual_block_has_its_sum_and_activations_in_its_convolutions() {
    for limits in [Limits::a100(), Limits::h200()] {
        let (mut g, x) = Network::new(1, [9, 7, 3]);
        let a = g.conv("a", x, [3, 13, 3]);
        let a = g.relu("a.relu", a);
        let b = g.conv("b", a, [13, 13, 3]);
        let sum = g.sum("sum", a, b);
        let sum = g.relu("sum.relu", sum);
        let c = g.conv("c", sum, [13, 40, 1]);
        let low = g.relu("c.low", c);
        let c = g.bound("c.high", low, Binary::Min, 6.0);
        let plan = g.planned(&limits, &[c]);
        assert_eq!(images(&plan), named(&[("a", "conv3x3+relu"), ("b", "conv3x3+res+relu"), ("c", "conv1x1+relu6")]));
        // The loops convert a row's input and output.
        assert_eq!(loops(&plan), 2, "{plan}");
        let between = plan.tensors[plan.steps[1].outputs[0].0].clone();
        assert_eq!((between.shape.channels, between.stored_channels, between.dtype), (13, 16, Dtype::F16));
    }
}

#[test]
fn what_others_read_is_written() {
    let (mut g, x) = Network::new(1, [9, 7, 24]);
    let a = g.conv("a", x, [24, 24, 3]);
    let b = g.conv("b", a, [24, 24, 3]);
    let twice = g.tanh("tanh", b);
    let sum = g.sum("sum", a, b);
    let relu = g.relu("relu", sum);
    let c = g.conv("c", relu, [24, 24, 1]);
    let d = g.relu("c.relu", c);
    let plan = g.planned(&Limits::h200(), &[twice, relu, c, d]);
    let all = [("a", "conv3x3"), ("b", "conv3x3"), ("sum", "add+relu"), ("c", "conv1x1"), ("c.relu", "act+relu")];
    assert_eq!(images(&plan), named(&all));
}

/// A loop reads a convolution's result, and another layer adds the loop's result.
#[test]
fn loops_between_layers_have_their_place() {
    let (mut g, x) = Network::new(2, [8, 8, 16]);
    let a = g.conv("a", x, [16, 16, 1]);
    let t = g.tanh("tanh", a);
    let b = g.conv("b", t, [16, 16, 1]);
    let sum = g.sum("sum", b, t);
    let u = g.tanh("again", sum);
    let c = g.conv("c", u, [16, 24, 1]);
    let d = g.conv("d", a, [16, 24, 1]);
    let last = g.sum("last", d, c);
    let plan = g.planned(&Limits::h200(), &[last]);
    let all = [("a", "conv1x1"), ("b", "conv1x1"), ("c", "conv1x1"), ("d", "conv1x1+res")];
    let mut found = images(&plan);
    found.sort();
    // The two summands may be one step: a convolution with a second one that joins it.
    assert!(found == named(&all) || found.iter().any(|(_, label)| label == "conv1x1+1x1"), "{plan}");
}

#[test]
fn a_concatenation_of_images_is_written_in_place() {
    for (channels, copies) in [(16, 0), (13, 1)] {
        let (mut g, x) = Network::new(1, [8, 8, 16]);
        let a = g.conv("a", x, [16, channels, 1]);
        let b = g.conv("b", a, [channels, 24, 3]);
        let pool = Pool { op: PoolOp::Max, window: Window::all(2, 3, 1, 1) };
        let c = g.0.node("c", Op::Pool(pool), &[a]);
        let both = g.0.node("both", Op::Concat(3), &[c, b]);
        let d = g.conv("d", both, [channels + 24, 8, 1]);
        let plan = g.planned(&Limits::h200(), &[d]);
        assert_eq!(loops(&plan), 2 + copies, "{plan}");
        let parts = plan.tensors.iter().filter(|tensor| tensor.part_of.is_some()).count();
        assert_eq!(parts, if copies == 0 { 2 } else { 0 }, "{plan}");
    }
}

/// Squares may exceed f16, and so may numbers that no layer has computed.
#[test]
fn what_is_no_image_stays_a_loop() {
    let (mut g, x) = Network::new(1, [8, 8, 8]);
    let pool = Pool { op: PoolOp::Max, window: Window::all(2, 3, 1, 1) };
    let pooled = g.0.node("pool", Op::Pool(pool), &[x]);
    let a = g.conv("a", pooled, [8, 8, 3]);
    let square = g.0.map("square", Expr::arg(0) * Expr::arg(0), &[a]);
    let variance = g.mean("variance", square);
    let sum = g.sum("sum", x, a);
    let relu = g.relu("relu", x);
    let plan = g.planned(&Limits::h200(), &[variance, sum, relu]);
    assert_eq!(images(&plan), named(&[("a", "conv3x3")]));
}

/// 1x1 convolutions, each reading the result of the one before, with a residual: the chain kernel can compute them.
#[test]
fn networks_of_images_within_values_have_the_kernels_of_several_layers() {
    let (mut g, x) = Network::new(32, [56, 56, 64]);
    let mut x = g.conv("first", x, [64, 256, 1]);
    for block in ["a", "b", "c"] {
        let y = g.conv(&format!("{block}.1"), x, [256, 64, 1]);
        let y = g.relu(&format!("{block}.1.relu"), y);
        let y = g.conv(&format!("{block}.2"), y, [64, 64, 3]);
        let y = g.relu(&format!("{block}.2.relu"), y);
        let y = g.conv(&format!("{block}.3"), y, [64, 256, 1]);
        let y = g.sum(&format!("{block}.sum"), y, x);
        x = g.relu(&format!("{block}.relu"), y);
    }
    let plan = g.planned(&Limits::h200(), &[x]);
    let has = |of: fn(&Kernel) -> bool| plan.steps.iter().any(|step| of(&step.kernel));
    assert!(
        has(|kernel| matches!(kernel, Kernel::Sm90Chain(_))) && has(|kernel| *kernel == Kernel::Sm90Halo),
        "{plan}"
    );
}

/// Each way to write an activation after a convolution, and an expression that only looks like one.
#[test]
fn activations_are_found_in_whatever_pieces() {
    type Write = fn(&mut Network, ValueId) -> ValueId;
    let ways: [(&str, Write); 4] = [
        ("conv1x1+relu6", |g, x| {
            let [low, high] = [0.0_f32, 6.0].map(|of| g.0.constant(Dtype::F32, &[], of.to_le_bytes().to_vec()));
            let x = g.0.map("low", Expr::arg(1).binary(Binary::Max, Expr::arg(0)), &[x, low]);
            g.0.map("high", Expr::arg(0).binary(Binary::Min, Expr::arg(1)), &[x, high])
        }),
        ("conv1x1+relu6", |g, x| {
            let low = g.relu("low", x);
            g.bound("high", low, Binary::Min, 6.0)
        }),
        ("conv1x1", |g, x| g.bound("five", x, Binary::Min, 5.0)),
        ("conv1x1", |g, x| {
            let gate = g.tanh("gate", x);
            g.0.map("gated", Expr::arg(1) * Expr::arg(0), &[x, gate])
        }),
    ];
    for (label, write) in ways {
        let (mut g, x) = Network::new(1, [8, 8, 16]);
        let a = g.conv("a", x, [16, 24, 1]);
        let y = write(&mut g, a);
        let plan = g.planned(&Limits::h200(), &[y]);
        assert_eq!(images(&plan), named(&[("a", label)]));
        assert_eq!(loops(&plan), 2, "{plan}");
    }
}

/// A mean, two layers of it and an activation between them. Any dimensions of a vector are found.
#[test]
fn a_vector_in_other_dimensions_stays_an_image() {
    let (mut g, x) = Network::new(2, [8, 8, 16]);
    let a = g.conv("a", x, [16, 24, 1]);
    let x = g.mean("mean", a);
    let x = g.conv("squeeze", x, [24, 8, 1]);
    let x = g.0.node("planes", Op::Reshape(vec![2, 8, 1, 1]), &[x]);
    let x = g.relu("relu", x);
    let x = g.0.node("pixels", Op::Reshape(vec![2, 1, 1, 8]), &[x]);
    let x = g.conv("excite", x, [8, 24, 1]);
    let gate = g.tanh("gate", x);
    let y = g.0.map("gated", Expr::arg(0) * Expr::arg(1), &[a, gate]);
    let y = g.conv("b", y, [24, 16, 1]);
    let plan = g.planned(&Limits::h200(), &[y]);
    let all = [("a", "conv1x1"), ("squeeze", "conv1x1+relu"), ("excite", "conv1x1"), ("b", "conv1x1")];
    assert_eq!(images(&plan), named(&all));
}

/// With 1x1 convolutions, products apply gates, and kernels for images apply bounds. The result of a product is an
/// image.
#[test]
fn a_gate_behind_single_pixels_makes_a_product_of_them() {
    let network = |limits: &Limits| {
        let (mut g, x) = Network::new(32, [28, 28, 24]);
        let a = g.conv("a", x, [24, 144, 1]);
        let a = g.silu("a.silu", a);
        let b = g.depthwise("b", a, [144, 5]);
        let b = g.relu("b.relu", b);
        let c = g.conv("c", b, [144, 24, 1]);
        let ramp = Expr::arg(0) * Expr::float(Dtype::F32, 1.0 / 6.0) + Expr::float(Dtype::F32, 0.5);
        let [zero, one] = [0.0, 1.0].map(|bound| Expr::float(Dtype::F32, bound));
        let gate = g.0.map("c.gate", ramp.binary(Binary::Max, zero).binary(Binary::Min, one), &[c]);
        let c = g.0.map("c.swish", Expr::arg(0) * Expr::arg(1), &[c, gate]);
        let d = g.conv("d", c, [24, 144, 1]);
        let d = g.relu("d.relu", d);
        g.planned(limits, &[d])
    };
    let plan = network(&Limits::h200());
    let all = [("a", "product+silu"), ("b", "dw5x5+relu"), ("c", "product+hard-swish"), ("d", "conv1x1+relu")];
    assert_eq!(images(&plan), named(&all));
    assert_eq!(loops(&plan), 2, "{plan}"); // conversions of the input and the output
    let all = [("a", "conv1x1"), ("b", "dw5x5+relu"), ("c", "conv1x1"), ("d", "conv1x1+relu")];
    assert_eq!(images(&network(&Limits::a100())), named(&all));
}

/// A GPU computes a gate again in each of its readers, a mean and a product, instead of storing it in f32. But it does
/// not compute the gate within a mean of few results, because only few threads would compute it.
#[test]
fn a_gate_that_is_read_twice_is_computed_twice() {
    for (channels, count) in [(240, 4), (24, 5)] {
        let (mut g, x) = Network::new(1, [28, 28, channels]);
        let a = g.depthwise("a", x, [channels, 3]);
        let a = g.gated("of no kernel", a, 1.25);
        let mean = g.mean("mean", a);
        let gated = g.0.map("gated", Expr::arg(0) * Expr::arg(1), &[a, mean]);
        let b = g.conv("b", gated, [channels, 8, 1]);
        let plan = g.planned(&Limits::h200(), &[b]);
        assert_eq!(images(&plan), named(&[("a", "dw3x3"), ("b", "conv1x1")]));
        // The loops: conversions of input and output, the mean, the product, and in one case the gate.
        assert_eq!(loops(&plan), count, "{plan}");
    }
}

/// A product of vectors that no other layer reads is a linear layer. Its results stay in f32 until the nodes after it
/// have read them.
#[test]
fn a_classifier_is_not_rounded() {
    for limits in [Limits::a100(), Limits::h200()] {
        for (outputs, stored) in [(1000, 1000), (13, 16)] {
            let (mut g, x) = Network::new(3, [8, 8, 16]);
            let a = g.conv("a", x, [16, 24, 3]);
            let x = g.mean("mean", a);
            let x = g.0.node("flat", Op::Reshape(vec![3, 24]), &[x]);
            let hidden = g.linear("hidden", x, [24, 40]);
            let hidden = g.relu("relu", hidden);
            let y = g.linear("y", hidden, [40, outputs]);
            let y = g.relu("y.relu", y);
            let plan = g.planned(&limits, &[y]);
            let step = plan.steps.iter().find(|step| step.name == "y").unwrap();
            assert_eq!(step.op.label(1), "linear", "{plan}");
            let result = &plan.tensors[step.outputs[0].0];
            assert_eq!((result.dtype, result.shape.channels, result.stored_channels), (Dtype::F32, outputs, stored));
            assert!(images(&plan).iter().all(|(name, label)| *name == "y" || label != "linear"), "{plan}");
        }
    }
}

/// A product of several vectors for each row is no linear layer, but a product or a 1x1 convolution.
#[test]
fn a_product_of_tokens_is_no_classifier() {
    for (limits, batch) in [(Limits::h200(), 3), (Limits::h200(), 1)] {
        let (mut g, x) = Network::new(batch, [8, 8, 16]);
        let a = g.conv("a", x, [16, 64, 3]);
        let x = g.0.node("tokens", Op::Reshape(vec![batch * 64, 64]), &[a]);
        let y = g.linear("y", x, [64, 128]);
        let y = g.0.node("rows", Op::Reshape(vec![batch, 64 * 128]), &[y]);
        let plan = g.planned(&limits, &[y]);
        let is_layer = |step: &crate::plan::Step| step.name == "y" && !matches!(step.op, StepOp::Loop(_));
        assert!(plan.steps.iter().any(is_layer), "{plan}");
    }
}

/// Where rows of results lie without gaps, a classifier writes them itself.
#[test]
fn a_classifier_writes_the_output() {
    for (batch, outputs) in [(1, 32), (3, 64)] {
        let (mut g, x) = Network::new(batch, [8, 8, 16]);
        let a = g.conv("a", x, [16, 24, 3]);
        let x = g.mean("mean", a);
        let x = g.0.node("flat", Op::Reshape(vec![batch, 24]), &[x]);
        let y = g.linear("y", x, [24, outputs]);
        let plan = g.planned(&Limits::h200(), &[y]);
        let last = plan.steps.last().unwrap();
        assert_eq!((&last.name[..], &last.op.label(1)[..]), ("y", "linear"), "{plan}");
        assert_eq!(plan.tensors[last.outputs[0].0].place, Place::Output(0), "{plan}");
    }
}

/// The kernel of a convolution applies SiLU if no other node reads the sums and the device has such a kernel.
#[test]
fn silu_is_in_its_convolution() {
    for (limits, is_read_twice, label) in
        [(Limits::h200(), false, "conv3x3+silu"), (Limits::h200(), true, "conv3x3"), (Limits::a100(), false, "conv3x3")]
    {
        let (mut g, x) = Network::new(32, [28, 28, 64]);
        let sums = g.conv("a", x, [64, 64, 3]);
        let a = g.silu("a.silu", sums);
        let outputs = if is_read_twice { vec![a, sums] } else { vec![a] };
        let plan = g.planned(&limits, &outputs);
        assert_eq!(images(&plan), named(&[("a", label)]), "{plan}");
    }
}

/// The kernel of a dense convolution applies GELU by erf too; no other kernel for images does, nor any that by tanh.
#[test]
fn gelu_is_in_a_dense_convolution() {
    let [erf, tanh] = [Expr::gelu as fn(Expr) -> Expr, Expr::gelu_tanh];
    let dense =
        [(erf, Limits::h200(), "conv3x3+gelu"), (erf, Limits::a100(), "conv3x3"), (tanh, Limits::h200(), "conv3x3")];
    for (gelu, limits, label) in dense {
        let (mut g, x) = Network::new(32, [28, 28, 64]);
        let sums = g.conv("a", x, [64, 64, 3]);
        let a = g.0.map("a.gelu", gelu(Expr::arg(0)), &[sums]);
        let plan = g.planned(&limits, &[a]);
        assert_eq!(images(&plan), named(&[("a", label)]), "{plan}");
        let is_tiles = |step: &Step| matches!(step.kernel, Kernel::Sm90Conv { .. });
        assert_eq!(plan.steps.iter().any(is_tiles), label == "conv3x3+gelu", "{plan}");
    }
    let (mut g, x) = Network::new(32, [28, 28, 64]);
    let sums = g.depthwise("a", x, [64, 3]);
    let a = g.0.gelu("a.gelu", sums);
    let plan = g.planned(&Limits::h200(), &[a]);
    assert_eq!(images(&plan), named(&[("a", "dw3x3")]), "{plan}");
}

/// The kernel of a depthwise convolution applies SiLU too; that of both convolutions applies it to both or to none.
#[test]
fn silu_is_in_a_depthwise_convolution() {
    for (limits, batch, label) in
        [(Limits::h200(), 32, "dw3x3+silu"), (Limits::h100(), 1, "dw3x3+silu"), (Limits::a100(), 32, "dw3x3")]
    {
        let (mut g, x) = Network::new(batch, [28, 28, 64]);
        let a = g.depthwise("a", x, [64, 3]);
        let a = g.silu("a.silu", a);
        let plan = g.planned(&limits, &[a]);
        assert_eq!(images(&plan), named(&[("a", label)]), "{plan}");
    }
    for both in [false, true] {
        let (mut g, x) = Network::new(1, [56, 56, 16]);
        let a = g.conv("a", x, [16, 60, 1]); // no product: its columns are no multiple of 8
        let a = if both { g.silu("a.silu", a) } else { g.relu("a.relu", a) };
        let b = g.depthwise("b", a, [60, 3]);
        let b = g.silu("b.silu", b);
        let plan = g.planned(&Limits::h200(), &[b]);
        let of_both = |step: &Step| matches!(step.op, StepOp::ExpandDepthwise { .. });
        assert!(both || !plan.steps.iter().any(of_both), "{plan}");
        let last = images(&plan).pop().map(|(_, label)| label);
        assert!(last.is_some_and(|label| label.ends_with("dw3x3+silu")), "{plan}");
    }
}

/// The kernel of a chain applies only bounds: a convolution with SiLU is a step of its own.
#[test]
fn a_chain_takes_no_silu() {
    for with_silu in [false, true] {
        let (mut g, x) = Network::new(32, [56, 56, 64]);
        let a = g.conv("a", x, [64, 64, 3]);
        let b = g.conv("b", a, [64, 256, 1]);
        let b = g.relu("b.relu", b);
        let c = g.conv("c", b, [256, 60, 1]); // no product: its columns are no multiple of 8
        let c = if with_silu { g.silu("c.silu", c) } else { g.relu("c.relu", c) };
        let d = g.conv("d", c, [60, 64, 3]);
        let plan = g.planned(&Limits::h200(), &[d]);
        plan.check().unwrap();
        assert_eq!(plan.steps.iter().any(|step| matches!(step.op, StepOp::Chain { .. })), !with_silu, "{plan}");
    }
}

/// Nodes in f32 are loops, and no step computes one of them together with others.
#[test]
fn nodes_in_f32_are_loops() {
    let network = |in_f32: &[&str]| {
        let (mut g, x) = Network::new(32, [28, 28, 24]);
        let a = g.conv("a", x, [24, 24, 3]);
        let a = g.relu("a.relu", a);
        let b = g.conv("b", a, [24, 144, 1]);
        let b = g.silu("b.silu", b);
        let c = g.conv("c", b, [144, 24, 3]);
        g.planned_with(&Limits::h200(), &[c], in_f32)
    };
    let [a, b, c] = [("a", "conv3x3+relu"), ("b", "product+silu"), ("c", "conv3x3")];
    assert_eq!(images(&network(&[])), named(&[a, b, c]));
    let plan = network(&["a", "c"]);
    assert_eq!(images(&plan), named(&[b]));
    assert!(["a", "c"].iter().all(|name| computes(&plan, name)), "{plan}");
    assert_eq!(images(&network(&["b.silu"])), named(&[a, ("b", "conv1x1"), c]));
    let plan = network(&["b"]);
    assert_eq!(images(&plan), named(&[a, c]));
    assert!(computes(&plan, "b"), "{plan}");
}

/// Whether a loop computes a node.
fn computes(plan: &Plan, node: &str) -> bool {
    let has = |step: &Step| matches!(&step.op, StepOp::Loop(of) if of.nodes.iter().any(|name| name == node));
    plan.steps.iter().any(has)
}

/// A convolution of groups has a kernel for images, as one group with zeros between.
#[test]
fn groups_are_one_with_zeros_between() {
    let (mut g, x) = Network::new(2, [14, 14, 48]);
    let a = g.conv("a", x, [48, 48, 1]);
    let filter = g.0.weight("groups.weight", Dtype::F32, &[48, 16, 3, 3]);
    let conv = Conv { window: Window::all(2, 3, 2, 1), groups: 3 };
    let b = g.0.node("groups", Op::Conv(conv), &[a, filter]);
    let b = g.relu("relu", b);
    let plan = g.planned(&Limits::h200(), &[b]);
    assert_eq!(images(&plan), named(&[("a", "conv1x1"), ("groups", "conv3x3+relu")]));
    let step = plan.steps.iter().find(|step| step.name == "groups").unwrap();
    assert_eq!(step.flops, 2 * 2 * 7 * 7 * 48 * 16 * 9);
}
