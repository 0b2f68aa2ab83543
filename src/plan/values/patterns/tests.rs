//! Tests of blocks of transformers as exporters write them, and of the steps that they become.

use std::collections::BTreeSet;

use crate::graph::{
    Binary, Contract, Conv, Expr, Graph, GraphBuilder, Norm, Op, Reduce, ReduceOp, Slice, Unary, ValueId, Window,
    simplify,
};
use crate::plan::context::PlanTarget;
use crate::plan::values::rounded::rounded;
use crate::plan::values::tests::planned_by;
use crate::plan::{Choices, HeadsAt, JoinedNorm, Kernel, Limits, Plan, RowSum, StepOp};
use crate::tensor::{Dtype, RowSpec};

/// The sizes of a block: images, tokens, heads and values of a head.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    tokens: usize,
    heads: usize,
    dims: usize,
}

impl Sizes {
    fn width(self) -> usize {
        self.heads * self.dims
    }
}

fn number(value: f64) -> Expr {
    Expr::float(Dtype::F32, value)
}

/// A graph to which nodes are added. Its weights are named after their nodes.
struct Block {
    g: GraphBuilder,
    of: Sizes,
}

impl Block {
    fn new(of: Sizes) -> (Self, ValueId) {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[of.batch, of.tokens, of.width()]);
        (Self { g, of }, x)
    }

    fn weight(&mut self, name: &str, dims: &[usize]) -> ValueId {
        self.g.weight(name, Dtype::F32, dims)
    }

    fn product(&mut self, name: &str, x: ValueId, n: usize) -> ValueId {
        let k = *self.g.value(x).dims.last().unwrap();
        let w = self.weight(&format!("{name}.w"), &[k, n]);
        let rank = self.g.value(x).rank();
        let y = self.g.node(name, Op::Contract(Contract::matmul(rank, 2)), &[x, w]);
        let b = self.weight(&format!("{name}.b"), &[n]);
        self.g.map(&format!("{name}.bias"), Expr::arg(0) + Expr::arg(1), &[b, y])
    }

    fn norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let [w, b] = ["w", "b"].map(|part| self.weight(&format!("{name}.{part}"), &[self.of.width()]));
        self.g.node(name, Op::Norm(Norm { axis: 2, eps: 1e-6, centred: true }), &[x, w, b])
    }

    fn scaled(&mut self, name: &str, x: ValueId, by: f64) -> ValueId {
        let by = self.g.constant(Dtype::F32, &[], (by as f32).to_le_bytes().to_vec());
        self.g.map(name, Expr::arg(0) * Expr::arg(1), &[x, by])
    }

    /// Attention as several nodes, as torch.onnx writes scaled_dot_product_attention.
    fn attention(&mut self, [q, k, v]: [ValueId; 3], mask: Option<ValueId>) -> ValueId {
        let Sizes { batch, tokens, dims, .. } = self.of;
        let scale = (dims as f64).powf(-0.25);
        let q = self.scaled("q.scaled", q, scale);
        let k = self.g.node("k.turned", Op::Transpose(vec![0, 1, 3, 2]), &[k]);
        let k = self.scaled("k.scaled", k, scale);
        let mut scores = self.g.node("scores", Op::Contract(Contract::matmul(4, 4)), &[q, k]);
        if let Some(mask) = mask {
            scores = self.g.map("masked", Expr::arg(0) + Expr::arg(1), &[scores, mask]);
        }
        let weights = self.g.node("softmax", Op::Softmax { axis: 3, log: false }, &[scores]);
        let mixed = self.g.node("mixed", Op::Contract(Contract::matmul(4, 4)), &[weights, v]);
        let turned = self.g.node("turned", Op::Transpose(vec![0, 2, 1, 3]), &[mixed]);
        self.g.node("together", Op::Reshape(vec![batch, tokens, self.of.width()]), &[turned])
    }

    /// Queries, keys and values from one product, as timm cuts them.
    fn joined(&mut self, x: ValueId) -> [ValueId; 3] {
        let Sizes { batch, tokens, heads, dims } = self.of;
        let qkv = self.product("qkv", x, 3 * self.of.width());
        let apart = self.g.node("apart", Op::Reshape(vec![batch, tokens, 3, heads, dims]), &[qkv]);
        let turned = self.g.node("qkv.turned", Op::Transpose(vec![2, 0, 3, 1, 4]), &[apart]);
        [0, 1, 2].map(|part| {
            let slice =
                Slice { start: vec![part, 0, 0, 0, 0], step: vec![1; 5], dims: vec![1, batch, heads, tokens, dims] };
            let cut = self.g.node(&format!("cut{part}"), Op::Slice(slice), &[turned]);
            self.g.node(&format!("part{part}"), Op::Reshape(vec![batch, heads, tokens, dims]), &[cut])
        })
    }

    /// Queries, keys and values, each from its own product, as in exports of BERT.
    fn separate(&mut self, x: ValueId) -> [ValueId; 3] {
        let Sizes { batch, tokens, heads, dims } = self.of;
        ["query", "key", "value"].map(|name| {
            let y = self.product(name, x, self.of.width());
            let apart = self.g.node(&format!("{name}.apart"), Op::Reshape(vec![batch, tokens, heads, dims]), &[y]);
            self.g.node(&format!("{name}.turned"), Op::Transpose(vec![0, 2, 1, 3]), &[apart])
        })
    }

    fn gelu(&mut self, x: ValueId) -> ValueId {
        let root = self.g.constant(Dtype::F32, &[], std::f32::consts::SQRT_2.to_le_bytes().to_vec());
        let y = self.g.map("gelu.divided", Expr::arg(0) / Expr::arg(1), &[x, root]);
        let y = self.g.map("gelu.erf", Expr::arg(0).unary(Unary::Erf), &[y]);
        let y = self.g.map("gelu.one", Expr::arg(0) + number(1.0), &[y]);
        let y = self.g.map("gelu.x", Expr::arg(0) * Expr::arg(1), &[x, y]);
        self.scaled("gelu.half", y, 0.5)
    }

    /// A norm as several nodes, as written by exporters without an operation for norms.
    fn norm_in_pieces(&mut self, x: ValueId, is_centred: bool) -> ValueId {
        self.norm_by(x, is_centred, Expr::arg(0) + number(1e-5))
    }

    /// The same, with this expression of the mean square under the root.
    fn norm_by(&mut self, x: ValueId, is_centred: bool, under_root: Expr) -> ValueId {
        let mean = || Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![2], keep: true });
        let deviation = match is_centred {
            true => {
                let m = self.g.node("mean", mean(), &[x]);
                self.g.map("deviation", Expr::arg(0) - Expr::arg(1), &[x, m])
            }
            false => x,
        };
        let squares = self.g.map("squares", Expr::arg(0).binary(Binary::Pow, number(2.0)), &[deviation]);
        let v = self.g.node("variance", mean(), &[squares]);
        let v = self.g.map("epsilon", under_root, &[v]);
        let v = self.g.map("root", Expr::arg(0).unary(Unary::Sqrt), &[v]);
        let y = self.g.map("divided", Expr::arg(0) / Expr::arg(1), &[deviation, v]);
        let [w, b] = ["w", "b"].map(|name| self.weight(name, &[self.of.width()]));
        let y = self.g.map("weighted", Expr::arg(0) * Expr::arg(1), &[y, w]);
        if is_centred { self.sum("biased", y, b) } else { y }
    }

    fn sum(&mut self, name: &str, x: ValueId, y: ValueId) -> ValueId {
        self.g.map(name, Expr::arg(0) + Expr::arg(1), &[x, y])
    }

    fn finish(mut self, y: ValueId) -> Graph {
        self.g.output("y", y);
        simplify(&self.g.finish().unwrap())
    }
}

/// A block of a vision transformer.
fn vision(of: Sizes) -> Graph {
    let (mut block, x) = Block::new(of);
    let y = block.norm("norm1", x);
    let qkv = block.joined(y);
    let y = block.attention(qkv, None);
    let y = block.product("proj", y, of.width());
    let gamma = block.weight("gamma", &[of.width()]);
    let y = block.g.map("scale", Expr::arg(0) * Expr::arg(1), &[y, gamma]);
    let x = block.sum("sum1", x, y);
    let y = block.norm("norm2", x);
    let y = block.product("fc1", y, 4 * of.width());
    let y = block.gelu(y);
    let y = block.product("fc2", y, of.width());
    let y = block.sum("sum2", x, y);
    block.finish(y)
}

/// A block of a text encoder, with a mask of keys that are padding.
fn text(of: Sizes) -> Graph {
    let (mut block, x) = Block::new(of);
    let seen = block.g.input("seen", Dtype::I64, &[of.batch, of.tokens]);
    let seen = block.g.node("seen.apart", Op::Reshape(vec![of.batch, 1, 1, of.tokens]), &[seen]);
    let hidden = (number(1.0) - Expr::arg(0).cast(Dtype::F32)) * number(-3.4e38);
    let mask = block.g.map("mask", hidden, &[seen]);
    let qkv = block.separate(x);
    let y = block.attention(qkv, Some(mask));
    let y = block.product("proj", y, of.width());
    let y = block.sum("sum", y, x);
    let y = block.norm("norm", y);
    block.finish(y)
}

fn plan_of(graph: &Graph, limits: &Limits, batch: usize) -> Plan {
    chosen_plan_of(graph, limits, batch, &Choices::new())
}

fn chosen_plan_of(graph: &Graph, limits: &Limits, batch: usize, choices: &Choices) -> Plan {
    let spec = |ports: &[crate::graph::Port]| {
        let port = |port: &crate::graph::Port| {
            let of = graph.value(port.value);
            (port.name.clone(), of.dtype, of.dims[1..].to_vec())
        };
        RowSpec::new(ports.iter().map(port))
    };
    let rows = [&spec(&graph.inputs), &spec(&graph.outputs)];
    let plan = planned_by(graph, limits, batch, rows, Dtype::F16, choices);
    plan.check().unwrap();
    plan
}

/// The labels of the steps that are no loops.
fn labels(plan: &Plan) -> Vec<String> {
    let of_kernels = plan.steps.iter().filter(|step| step.kernel != Kernel::Loop);
    of_kernels.map(|step| step.op.label(step.inputs.len())).collect()
}

const SIZES: Sizes = Sizes { batch: 3, tokens: 197, heads: 3, dims: 64 };

#[test]
fn a_block_of_a_vision_transformer_is_six_steps() {
    for (batch, tokens, dims) in [(1, 1, 64), (3, 77, 32), (3, 197, 64), (2, 257, 128)] {
        let of = Sizes { batch, tokens, dims, ..SIZES };
        let plan = plan_of(&vision(of), &Limits::h200(), batch);
        let expected = [
            "layer-norm",
            "product",
            "attention",
            "product+scale+res+statistics",
            "layer-norm+product+gelu",
            "product+res",
        ];
        assert_eq!(labels(&plan), expected, "{plan}");
        // One loop converts the block's input to f16; others convert its result to f32 and write rows.
        assert!(plan.steps.len() <= 10, "{plan}");
    }
}

#[test]
fn attention_reads_the_product_of_all_three_where_they_are() {
    let plan = plan_of(&vision(SIZES), &Limits::h200(), 3);
    let step = plan.steps.iter().find(|step| matches!(step.op, StepOp::Attention(_))).unwrap();
    let StepOp::Attention(of) = step.op else { unreachable!() };
    let at = |part: usize| HeadsAt { first: 192 * part, pitches: [64, 576, 197 * 576] };
    assert_eq!(of.qkv, [at(0), at(1), at(2)]);
    assert_eq!(of.out, HeadsAt { first: 0, pitches: [64, 192, 197 * 192] });
    assert!((of.scale - 0.125).abs() < 1e-6 && of.mask.is_none());
    let qkv = plan.steps.iter().find(|step| step.name == "qkv").unwrap();
    assert_eq!(step.inputs, [qkv.outputs[0]; 3]);
}

#[test]
fn separate_products_and_a_mask_are_read_by_one_step() {
    for tokens in [1, 77, 128] {
        let of = Sizes { tokens, ..SIZES };
        let plan = plan_of(&text(of), &Limits::h200(), 3);
        let expected = ["product", "product", "product", "attention+mask", "product+res", "layer-norm to f32"];
        assert_eq!(labels(&plan), expected, "{plan}");
        let found = plan.steps.iter().find_map(|step| match step.op {
            StepOp::Attention(of) => Some(of),
            _ => None,
        });
        let stored = tokens + tokens % 2;
        assert_eq!(found.unwrap().mask, Some([0, 0, stored]));
    }
}

#[test]
fn other_hardware_and_other_widths_keep_the_steps_that_they_had() {
    let without = |plan: &Plan| {
        plan.steps.iter().all(|step| !matches!(step.op, StepOp::Product(_) | StepOp::Attention(_) | StepOp::RowNorm(_)))
    };
    for limits in [Limits::a100(), Limits::cpu(2)] {
        assert!(without(&plan_of(&vision(SIZES), &limits, 3)));
    }
    let narrow = Sizes { heads: 1, dims: 20, ..SIZES };
    assert!(without(&plan_of(&text(narrow), &Limits::h200(), 3)));
}

/// Each activation in pieces, after a product with a bias, and the kernel's name for it.
#[test]
fn activations_are_told_apart_whatever_their_pieces_are() {
    let x = || Expr::arg(0);
    let sigmoid = |of: Expr| number(1.0) / (number(1.0) + (-of).unary(Unary::Exp));
    let cubed = x().binary(Binary::Pow, number(3.0));
    let inner = (x() + cubed * number(0.044_715)) * number(0.797_884_56);
    let relu = || x().binary(Binary::Max, number(0.0));
    let gelu = || number(0.5) * (x() * (number(1.0) + (x() * number(0.707_106_77)).unary(Unary::Erf)));
    let above = |bound: f64| number(bound).binary(Binary::Less, x());
    let cases = [
        // A bound that no number in f32 exceeds is none; any other one is kept, and so is rounding.
        (relu().binary(Binary::Min, number(f32::MAX.into())), "product+relu"),
        (relu().binary(Binary::Min, number(1000.0)), "product"),
        (relu().binary(Binary::Min, number(30_000.0)), "product"),
        (relu().binary(Binary::Min, number(1.0e9)), "product"),
        (gelu().binary(Binary::Max, number(-1000.0)).binary(Binary::Min, number(1000.0)), "product"),
        ((relu() * number(16.0)).unary(Unary::Round) / number(16.0), "product"),
        (above(0.1).select(x(), number(0.0)), "product"),
        (above(0.001).select(x(), number(0.0)), "product"),
        (above(7.0 / 3.0).select(number(7.0) / number(3.0), relu()), "product"),
        (gelu(), "product+gelu"),
        (x().binary(Binary::Max, number(0.0)), "product+relu"),
        (number(0.5) * (x() * (number(1.0) + (x() * number(0.707_106_77)).unary(Unary::Erf))), "product+gelu"),
        ((x() * number(0.5)) * (inner.unary(Unary::Tanh) + number(1.0)), "product+gelu(tanh)"),
        (x() * sigmoid(x() * number(1.702)), "product+quick-gelu"),
        (x() * sigmoid(x()), "product+silu"),
        (x().unary(Unary::Tanh), "product"),
        (x().binary(Binary::Max, number(0.0)).binary(Binary::Min, number(6.0)), "product"),
        (x().binary(Binary::Less, number(0.0)).select(x() * number(0.01), x()), "product"),
    ];
    for (expr, label) in cases {
        let (mut block, x) = Block::new(SIZES);
        let y = block.product("fc", x, 64);
        let y = block.g.map("activation", expr, &[y]);
        let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
        assert_eq!(labels(&plan), [label], "{plan}");
    }
}

/// A product's step ends at a value that another node reads too, so that the value is written.
#[test]
fn a_product_ends_where_somebody_else_reads_its_value() {
    let (mut block, x) = Block::new(SIZES);
    let y = block.product("fc", x, 192);
    let z = block.gelu(y);
    let sum = block.sum("sum", z, x);
    block.g.output("before", y);
    let plan = plan_of(&block.finish(sum), &Limits::h200(), 3);
    assert_eq!(labels(&plan), ["product"], "{plan}");
}

impl Block {
    /// A product of x in codes of e4m3 with a matrix of codes, and a bias.
    fn product_of_codes(&mut self, name: &str, x: ValueId, n: usize) -> ValueId {
        self.product_of(name, x, Expr::arg(0) / number(0.02), n)
    }

    /// The same, of codes of an expression of x.
    fn product_of(&mut self, name: &str, x: ValueId, expr: Expr, n: usize) -> ValueId {
        let (k, rank) = (*self.g.value(x).dims.last().unwrap(), self.g.value(x).rank());
        let codes = self.g.map(&format!("{name}.x"), expr.unary(Unary::ToE4m3), &[x]);
        let x = self.g.map(&format!("{name}.of x"), Expr::arg(0).unary(Unary::OfE4m3) * number(0.02), &[codes]);
        let codes = self.g.weight(&format!("{name}.codes"), Dtype::U8, &[k, n]);
        let unit = self.weight(&format!("{name}.unit"), &[1, n]);
        let w = self.g.map(&format!("{name}.of w"), Expr::arg(0).unary(Unary::OfE4m3) * Expr::arg(1), &[codes, unit]);
        let y = self.g.node(name, Op::Contract(Contract::matmul(rank, 2)), &[x, w]);
        let b = self.weight(&format!("{name}.b"), &[n]);
        self.g.map(&format!("{name}.bias"), Expr::arg(0) + Expr::arg(1), &[y, b])
    }
}

/// The first product writes the codes that the second one reads, and the norm those that the first one reads.
#[test]
fn products_of_codes_are_steps_that_read_and_write_codes() {
    let (mut block, x) = Block::new(SIZES);
    let y = block.norm("norm", x);
    let y = block.product_of_codes("fc1", y, 768);
    let y = block.gelu(y);
    let y = block.product_of_codes("fc2", y, 192);
    let sum = block.sum("sum", x, y);
    let plan = plan_of(&block.finish(sum), &Limits::h200(), 3);
    assert_eq!(labels(&plan), ["layer-norm to e4m3", "e4m3 product+gelu to e4m3", "e4m3 product+res"], "{plan}");
    let is_of_codes = |of: &StepOp| matches!(of, StepOp::Loop(of) if of.nodes.iter().any(|name| name.ends_with(".x")));
    assert!(!plan.steps.iter().any(|step| is_of_codes(&step.op)), "{plan}");
    let StepOp::E4m3Product(of) = &plan.steps.iter().find(|step| step.name == "fc1").unwrap().op else {
        panic!("{plan}")
    };
    assert!(of.has_units && (of.factor, of.result) == (0.02, Some(0.02)), "{of:?}");
    assert_eq!(of.product.weights.filter, "fc1.codes (transposed, 1x1)");
}

/// A norm writes f16 where something else reads its value too, and where codes are of anything but its value over a scale.
#[test]
fn norms_write_codes_where_only_these_are_read() {
    type Behind = fn(&mut Block, ValueId) -> ValueId;
    let codes_of = |by: Expr| move |block: &mut Block, y: ValueId| block.product_of("fc", y, by.clone(), 192);
    let plain: Behind = |block, y| block.product_of_codes("fc", y, 192);
    let flat: Behind = |block, y| {
        let y = block.g.node("flat", Op::Reshape(vec![3 * 197, 192]), &[y]);
        let y = block.product_of_codes("fc", y, 192);
        block.g.node("rows", Op::Reshape(vec![3, 197, 192]), &[y])
    };
    let residual: Behind = |block, y| {
        let z = block.product_of_codes("fc", y, 192);
        block.sum("sum", y, z)
    };
    let shown: Behind = |block, y| {
        block.g.output("norm", y);
        block.product_of_codes("fc", y, 192)
    };
    let in_pieces: Behind = |block, y| {
        let y = block.norm_in_pieces(y, false);
        block.product_of_codes("fc", y, 192)
    };
    let of = |behind: &dyn Fn(&mut Block, ValueId) -> ValueId| {
        let (mut block, x) = Block::new(SIZES);
        let y = block.norm("norm", x);
        let y = behind(&mut block, y);
        labels(&plan_of(&block.finish(y), &Limits::h200(), 3))
    };
    assert_eq!([of(&plain), of(&flat)], [["layer-norm to e4m3", "e4m3 product"]; 2]);
    assert_eq!(of(&in_pieces), ["layer-norm", "rms-norm to e4m3", "e4m3 product"]);
    assert_eq!(of(&residual), ["layer-norm and e4m3", "e4m3 product+res"]);
    assert_eq!(of(&shown), ["layer-norm and e4m3", "e4m3 product"]);
    let x = || Expr::arg(0);
    for by in [x() * number(50.0), x(), x() / number(0.02)] {
        assert_eq!(of(&codes_of(by)), ["layer-norm to e4m3", "e4m3 product"]);
    }
    // Two products are rounded twice, and 0.99 is the reciprocal of no number in f32.
    for by in
        [x() * number(2.0) / number(0.02), x() * number(f64::from(0.99_f32)), x() + number(1.0), x() / number(-0.02)]
    {
        assert_eq!(of(&codes_of(by)), ["layer-norm", "e4m3 product"]);
    }
}

/// Among the roundings of a GPU, codes beside a norm's result are of its numbers in f32.
#[test]
fn codes_beside_a_result_are_of_what_is_not_rounded() {
    let (mut block, x) = Block::new(Sizes { batch: 1, ..SIZES });
    let y = block.norm("norm", x);
    let z = block.product_of_codes("fc", y, 192);
    let sum = block.sum("sum", y, z);
    let graph = block.finish(sum);
    let rounded = rounded(&graph, &Limits::h200(), &BTreeSet::new());
    let node = |name: &str| rounded.graph.nodes.iter().find(|node| node.name == name).unwrap();
    let norm = Some(node("norm").outputs[0]);
    assert_eq!(node("fc.x").inputs, [norm]);
    assert!(!node("sum").inputs.contains(&norm));
}

/// Attention writes codes where only these are read, and heads of codes begin at multiples of 16 bytes.
#[test]
fn attention_writes_codes_where_only_these_are_read() {
    for (dims, label) in [(64, "attention to e4m3"), (24, "attention")] {
        let of = Sizes { heads: 2, dims, ..SIZES };
        let (mut block, x) = Block::new(of);
        let qkv = block.separate(x);
        let y = block.attention(qkv, None);
        let y = block.product_of_codes("fc", y, 192);
        let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
        assert!(labels(&plan).iter().any(|found| found == label), "{plan}");
    }
}

/// A file's zero points and transposed matrices make no difference.
#[test]
fn products_of_a_file_in_codes_are_the_same_steps() {
    let model = crate::model::Model::open("tests/data/onnx/e4m3.onnx").unwrap();
    let plan = plan_of(&model.graph(3).unwrap(), &Limits::h200(), 3);
    assert_eq!(labels(&plan), ["e4m3 product+gelu to e4m3", "e4m3 product+res"], "{plan}");
    let filters = plan.steps.iter().filter_map(|step| match &step.op {
        StepOp::E4m3Product(of) => Some((of.has_units, &*of.product.weights.filter)),
        _ => None,
    });
    let expected = [(true, "w1.codes (transposed, 1x1)"), (true, "w2.codes (1x1)")];
    assert_eq!(filters.collect::<Vec<_>>(), expected);
}

/// Codes that something else reads too are written by a loop, and so are those that no kernel multiplies.
#[test]
fn products_of_codes_end_where_somebody_else_reads_their_value() {
    let (mut block, x) = Block::new(SIZES);
    let y = block.product_of_codes("fc1", x, 192);
    let z = block.product_of_codes("fc2", y, 192);
    let sum = block.sum("sum", y, z);
    let plan = plan_of(&block.finish(sum), &Limits::h200(), 3);
    assert_eq!(labels(&plan), ["e4m3 product", "e4m3 product+res"], "{plan}");
    let (mut block, x) = Block::new(SIZES);
    let y = block.product_of_codes("fc", x, 72);
    let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
    assert_eq!(labels(&plan), <[&str; 0]>::default(), "{plan}");
}

/// Rows of a value in f16 are read in place: the first token of each image.
#[test]
fn a_product_of_the_first_tokens_reads_rows_at_a_distance() {
    let (mut block, x) = Block::new(SIZES);
    let y = block.norm("norm", x);
    let first = Slice { start: vec![0; 3], step: vec![1; 3], dims: vec![3, 1, 192] };
    let y = block.g.node("first", Op::Slice(first), &[y]);
    let y = block.g.node("flat", Op::Reshape(vec![3, 192]), &[y]);
    let y = block.product("head", y, 1000);
    let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
    let found = plan.steps.iter().find_map(|step| match &step.op {
        StepOp::Product(of) => Some(of.x.pitch),
        _ => None,
    });
    assert_eq!(found, Some(197 * 192), "{plan}");
}

/// The last layer of a network that answers by one token: the query of `token` attends, and the graph's other outputs are
/// `more` of what the block has.
fn of_one_token(of: Sizes, token: usize, more: impl Fn(&Block) -> Option<ValueId>) -> Graph {
    let (block, x) = Block::new(of);
    one_token(block, x, token, more)
}

/// The same behind what the block has.
fn one_token(mut block: Block, x: ValueId, token: usize, more: impl Fn(&Block) -> Option<ValueId>) -> Graph {
    let of = block.of;
    let y = block.norm("norm", x);
    let [q, k, v] = block.joined(y);
    let cut = Slice { start: vec![0, 0, token, 0], step: vec![1; 4], dims: vec![of.batch, of.heads, 1, of.dims] };
    let q = block.g.node("query", Op::Slice(cut), &[q]);
    block.of.tokens = 1;
    let y = block.attention([q, k, v], None);
    let y = block.product("proj", y, of.width());
    if let Some(more) = more(&block) {
        block.g.output("more", more);
    }
    block.finish(y)
}

#[test]
fn attention_of_one_token_takes_the_product_with_it_where_that_is_sooner() {
    let of = |batch| Sizes { batch, tokens: 197, heads: 12, dims: 64 };
    let plan = plan_of(&of_one_token(of(32), 3, |_| None), &Limits::h200(), 32);
    assert_eq!(labels(&plan), ["layer-norm+class-attention", "product"], "{plan}");
    let step = plan.steps.iter().find(|step| step.kernel == Kernel::Sm90ClassAttention).unwrap();
    let StepOp::ClassAttention(op) = &step.op else { panic!("{plan}") };
    assert_eq!((op.query, op.parts, op.bias), (3, [0, 768, 1536], true));
    assert_eq!((&*op.product.name, op.product.conv.out_channels, step.inputs.len()), ("qkv", 2304, 4));
    assert_eq!(op.norm, Some(JoinedNorm { centred: true, epsilon: 1e-6, bias: true }));
    assert!((op.scale - 0.125).abs() < 1e-6);
    // Few images take as long as many.
    let plan = plan_of(&of_one_token(of(4), 3, |_| None), &Limits::h200(), 4);
    assert_eq!(labels(&plan), ["layer-norm", "product", "attention", "product"], "{plan}");
}

/// The norm that the product reads is a step of its own where something else reads its result, and where it stays in f32; and
/// the product is where it stays in f32.
#[test]
fn the_norm_in_front_of_one_token_is_in_the_step_where_nothing_else_reads_it() {
    let of = Sizes { batch: 32, tokens: 197, heads: 12, dims: 64 };
    let named = |block: &Block, name: &str| {
        let node = block.g.graph().nodes.iter().find(|node| node.name == name);
        node.map(|node| node.outputs[0])
    };
    let shown = plan_of(&of_one_token(of, 0, |block| named(block, "norm")), &Limits::h200(), of.batch);
    assert_eq!(labels(&shown), ["layer-norm", "class-attention", "product"], "{shown}");
    let graph = of_one_token(of, 0, |_| None);
    let chosen = Choices::from([("norm".to_owned(), Kernel::Sm90RowNorm)]);
    let chosen = chosen_plan_of(&graph, &Limits::h200(), of.batch, &chosen);
    assert_eq!(labels(&chosen), ["layer-norm", "class-attention", "product"], "{chosen}");
    let (limits, choices) = (Limits::h200(), Choices::new());
    let target = PlanTarget { limits: &limits, batch: of.batch, choices: &choices };
    let found = |in_f32: &str| {
        let in_f32 = BTreeSet::from([in_f32.to_owned()]);
        let found = super::find(&graph, Dtype::F16, target, &in_f32);
        found.values().find_map(|found| match &found.op {
            StepOp::Attention(_) => Some("attention"),
            StepOp::ClassAttention(op) => Some(if op.norm.is_some() { "with a norm" } else { "with a product" }),
            _ => None,
        })
    };
    let all = ["", "norm", "qkv", "mixed"].map(found);
    assert_eq!(all, [Some("with a norm"), Some("with a product"), Some("attention"), None]);
}

/// A product in front of a norm that is within the step of one token writes no statistics, which nothing would read.
#[test]
fn a_product_in_front_of_one_token_writes_no_statistics() {
    let of = Sizes { batch: 1, tokens: 197, heads: 12, dims: 64 };
    let (mut block, x) = Block::new(of);
    let y = block.product("fc", x, of.width());
    let y = block.sum("sum", x, y);
    let graph = one_token(block, y, 0, |_| None);
    let labels_of = |choices: &[(&str, Kernel)]| {
        let choices = choices.iter().map(|(name, kernel)| ((*name).to_owned(), *kernel)).collect();
        labels(&chosen_plan_of(&graph, &Limits::h200(), 1, &choices))
    };
    let together = labels_of(&[("mixed", Kernel::Sm90ClassAttention)]);
    assert_eq!(together, ["product+res", "layer-norm+class-attention", "product"]);
    assert!(labels_of(&[]).contains(&"product+res+statistics".to_owned()), "{:?}", labels_of(&[]));
}

#[test]
fn keys_that_are_read_elsewhere_and_other_heads_keep_the_product() {
    let apart = |of: Sizes, more: &dyn Fn(&Block) -> Option<ValueId>| {
        let plan = plan_of(&of_one_token(of, 0, more), &Limits::h200(), of.batch);
        assert!(labels(&plan).contains(&"attention".to_owned()), "{plan}");
    };
    let of = Sizes { batch: 32, tokens: 197, heads: 12, dims: 64 };
    let named = |block: &Block, name: &str| {
        let node = block.g.graph().nodes.iter().find(|node| node.name == name);
        node.map(|node| node.outputs[0])
    };
    for name in ["qkv.bias", "qkv.turned", "part1", "cut2", "scores", "softmax"] {
        apart(of, &|block| named(block, name));
    }
    apart(Sizes { dims: 32, heads: 24, ..of }, &|_| None);
    apart(Sizes { heads: 17, ..of }, &|_| None);
}

/// A choice for the attention decides, and one for the product keeps it a step of its own.
#[test]
fn a_choice_says_whether_the_product_is_in_the_step_of_one_token() {
    let of = |batch| Sizes { batch, tokens: 197, heads: 12, dims: 64 };
    let chosen = |batch: usize, choices: &[(&str, Kernel)]| {
        let choices: Choices = choices.iter().map(|(name, kernel)| ((*name).to_owned(), *kernel)).collect();
        chosen_plan_of(&of_one_token(of(batch), 0, |_| None), &Limits::h200(), batch, &choices)
    };
    let has = |plan: &Plan| plan.steps.iter().any(|step| step.kernel == Kernel::Sm90ClassAttention);
    let apart = chosen(4, &[]);
    assert!(!has(&apart) && has(&chosen(4, &[("mixed", Kernel::Sm90ClassAttention)])));
    for step in apart.steps.iter().filter(|step| ["mixed", "qkv"].contains(&&*step.name)) {
        assert!(has(&chosen(32, &[])) && !has(&chosen(32, &[(&step.name, step.kernel)])), "{}", step.name);
    }
}

/// Patches of 3 channels: a loop puts them side by side, and the product adds the convolution's bias.
#[test]
fn a_convolution_of_patches_is_a_product() {
    let mut g = GraphBuilder::new();
    let x = g.input("x", Dtype::F32, &[2, 32, 32, 3]);
    let [filter, bias] = [g.weight("filter", Dtype::F32, &[64, 3, 16, 16]), g.weight("bias", Dtype::F32, &[64])];
    let conv = Conv { window: Window::all(2, 16, 16, 0), groups: 1 };
    let y = g.node("patches", Op::Conv(conv), &[x, filter, bias]);
    g.output("y", y);
    let plan = plan_of(&g.finish().unwrap(), &Limits::h200(), 2);
    assert_eq!(labels(&plan), ["product"], "{plan}");
    let step = plan.steps.iter().find(|step| step.name == "patches").unwrap();
    let StepOp::Product(of) = &step.op else { panic!("{plan}") };
    assert!(of.bias && (of.rows, of.terms) == (4, 768));
    assert_eq!((step.flops, step.inputs.len()), (2 * 8 * 768 * 64, 2));
}

/// Frames of few channels followed by GELU: a loop copies the windows of a line side by side, up to whole steps of a
/// product, which applies GELU. Windows of many channels, of both axes, or of few rows stay convolutions, and so do those
/// that only a bound follows.
#[test]
fn windows_of_frames_are_products() {
    let plan = |rows: usize, [height, width, channels]: [usize; 3], window: Window, gelu: Option<fn(Expr) -> Expr>| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, height, width, channels]);
        let filter = g.weight("filter", Dtype::F32, &[512, channels, window.size[0], window.size[1]]);
        let y = g.node("first", Op::Conv(Conv { window, groups: 1 }), &[x, filter]);
        let y = match gelu {
            Some(gelu) => g.map("active", gelu(Expr::arg(0)), &[y]),
            None => g.relu("active", y),
        };
        g.output("y", y);
        plan_of(&g.finish().unwrap(), &Limits::h200(), rows)
    };
    let along = |taps: usize, stride: usize, pad: [usize; 2], dilation: usize| Window {
        size: vec![1, taps],
        stride: vec![1, stride],
        dilation: vec![1, dilation],
        pad: vec![[0, 0], pad],
    };
    let products = [
        (8, [1, 3000, 80], along(3, 1, [1, 1], 1), Expr::gelu as fn(Expr) -> Expr, 256),
        (4, [1, 3000, 40], along(3, 1, [1, 1], 1), Expr::gelu, 128),
        (4, [1, 3001, 40], along(3, 1, [2, 0], 1), Expr::gelu_tanh, 128),
        (4, [1, 6001, 16], along(5, 2, [1, 3], 1), Expr::gelu, 128),
        (4, [1, 3003, 24], along(3, 1, [0, 2], 2), Expr::gelu, 128),
    ];
    for (rows, image, window, gelu, k) in products {
        let plan = plan(rows, image, window.clone(), Some(gelu));
        let step = plan.steps.iter().find(|step| step.name == "first").unwrap();
        let StepOp::Product(of) = &step.op else { panic!("{image:?} by {window:?}: {plan}") };
        let terms = window.size[1] * image[2];
        assert_eq!((of.terms, of.x.pitch, of.sizes(rows).k), (terms, k, k), "{plan}");
        assert_eq!(step.flops as usize, 2 * rows * of.rows * terms * 512, "{plan}");
    }
    let gelu: Option<fn(Expr) -> Expr> = Some(Expr::gelu);
    let line = || along(3, 1, [1, 1], 1);
    let others = [
        (8, [1, 3000, 80], line(), None, "conv1x3+relu"),
        (1, [1, 3000, 80], line(), gelu, "conv1x3+gelu"),
        (8, [1, 3000, 768], line(), gelu, "conv1x3+gelu"),
        (8, [50, 60, 80], Window::all(2, 3, 1, 1), gelu, "conv3x3+gelu"),
    ];
    for (rows, image, window, gelu, label) in others {
        let plan = plan(rows, image, window, gelu);
        let step = plan.steps.iter().find(|step| step.name == "first").unwrap();
        assert_eq!(step.op.label(step.inputs.len()), label, "{plan}");
    }
}

/// Patches of 14x14 pixels of 3 channels are 588 values; two rows of zeros make them 672.
#[test]
fn zeros_follow_patches_that_are_no_multiple_of_8() {
    let plan = |size: usize| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[2, 2 * size, 2 * size, 3]);
        let filter = g.weight("filter", Dtype::F32, &[64, 3, size, size]);
        let conv = Conv { window: Window::all(2, size, size, 0), groups: 1 };
        let y = g.node("patches", Op::Conv(conv), &[x, filter]);
        g.output("y", y);
        plan_of(&g.finish().unwrap(), &Limits::h200(), 2)
    };
    let of_14 = plan(14);
    let step = of_14.steps.iter().find(|step| step.name == "patches").unwrap();
    let StepOp::Product(of) = &step.op else { panic!("{of_14}") };
    assert_eq!((of.terms, of.x.pitch, of.sizes(2).k, step.flops), (588, 672, 672, 2 * 8 * 588 * 64));
    assert_eq!(of_14.tensors[step.inputs[0].0].bytes, 8 * 672 * 2, "{of_14}");
    // 27 values would become 72.
    assert!(!labels(&plan(3)).contains(&"product".into()), "{}", plan(3));
}

#[test]
fn norms_in_pieces_are_norms() {
    for (is_centred, label) in [(true, "layer-norm to f32"), (false, "rms-norm to f32")] {
        let (mut block, x) = Block::new(SIZES);
        let y = block.norm_in_pieces(x, is_centred);
        let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
        assert_eq!(labels(&plan), [label], "{plan}");
        let found = plan.steps.iter().find_map(|step| match step.op {
            StepOp::RowNorm(of) => Some(of),
            _ => None,
        });
        let of = found.unwrap();
        assert!((of.epsilon - 1e-5).abs() < 1e-9 && (of.rows, of.columns) == (3 * 197, 192), "{of:?}");
    }
}

/// Roots of anything but the mean square and a number are no norms, however small the difference is for usual rows.
#[test]
fn bounds_of_a_mean_square_are_kept() {
    let v = || Expr::arg(0);
    let kept = [
        v().binary(Binary::Min, number(31.0)) + number(1e-5),
        v().binary(Binary::Min, number(1e6)) + number(1e-5),
        v().binary(Binary::Max, number(1e-5)),
        (v() + number(1e-5)).binary(Binary::Max, number(1e-3)),
        (v() * number(4096.0)).unary(Unary::Round) / number(4096.0) + number(1e-5),
    ];
    for under_root in kept {
        let (mut block, x) = Block::new(SIZES);
        let y = block.norm_by(x, false, under_root);
        let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
        assert!(!plan.steps.iter().any(|step| matches!(step.op, StepOp::RowNorm(_))), "{plan}");
    }
}

/// A norm writes f32 if its result is an output that nothing else reads; else a loop converts it.
#[test]
fn a_norm_that_is_an_output_is_written_in_f32() {
    for is_read in [false, true] {
        let (mut block, x) = Block::new(SIZES);
        let y = block.norm("norm", x);
        if is_read {
            let twice = block.g.map("twice", Expr::arg(0) + Expr::arg(0), &[y]);
            block.g.output("twice", twice);
        }
        let plan = plan_of(&block.finish(y), &Limits::h200(), 3);
        let step = plan.steps.iter().find(|step| step.name == "norm").unwrap();
        let written = &plan.tensors[step.outputs[0].0];
        assert_eq!(step.op.label(3), if is_read { "layer-norm" } else { "layer-norm to f32" }, "{plan}");
        assert_eq!(written.dtype, if is_read { Dtype::F16 } else { Dtype::F32 }, "{plan}");
        assert!(is_read || written.place == crate::plan::Place::Output(0), "{plan}");
    }
}

#[test]
fn a_norm_is_within_the_products_before_and_behind_it() {
    let labels_of = |build: &dyn Fn(&mut Block, ValueId) -> ValueId| {
        let (mut block, x) = Block::new(SIZES);
        let width = SIZES.width();
        let first = block.product("first", x, width);
        let first = block.sum("first.sum", x, first);
        let y = build(&mut block, first);
        labels(&plan_of(&block.finish(y), &Limits::h200(), 3))
    };
    let width = SIZES.width();
    let one = labels_of(&|block, x| {
        let y = block.norm("norm", x);
        block.product("behind", y, 2 * width)
    });
    assert_eq!(one, ["product+res+statistics", "layer-norm+product"]);
    // The product's residual is the norm's operand.
    let several = labels_of(&|block, x| {
        let y = block.norm_in_pieces(x, false);
        let [a, b] = ["a", "b"].map(|name| block.product(name, y, width));
        let a = block.sum("sum", a, x);
        block.sum("sum.of.both", a, b)
    });
    assert_eq!(several, ["product+res+statistics", "rms-norm+product+res", "rms-norm+product+res"]);
    // Where anything else reads the norm, it is a step.
    let residual = labels_of(&|block, x| {
        let y = block.norm("norm", x);
        let z = block.product("behind", y, width);
        block.sum("sum", y, z)
    });
    assert_eq!(residual, ["product+res", "layer-norm", "product+res"]);
    let other = labels_of(&|block, x| {
        let y = block.norm("norm", x);
        let z = block.product("behind", y, width);
        let rows = block.g.node("rows", Op::Reduce(Reduce { op: ReduceOp::Mean, axes: vec![1], keep: true }), &[y]);
        block.sum("sum", z, rows)
    });
    assert!(other.contains(&"layer-norm".to_owned()) && other.contains(&"product+res".to_owned()), "{other:?}");
    // A product whose activation is not clamped leaves no statistics.
    let active = labels_of(&|block, x| {
        let y = block.product("active", x, width);
        let y = block.gelu(y);
        let y = block.norm("norm", y);
        block.product("behind", y, width)
    });
    assert_eq!(active, ["product+res", "product+gelu", "layer-norm", "product"]);
}

/// The beginning of a vision transformer as exporters and as this library's encoders write it: rows in front, positions,
/// and what `behind` adds.
fn beginning(
    of: Sizes,
    prefix: usize,
    positions_first: bool,
    behind: impl Fn(&mut Block, ValueId) -> ValueId,
) -> (Plan, Vec<String>) {
    let (mut block, x) = Block::new(of);
    let width = of.width();
    let x = block.product("patches", x, width);
    let apart = block.g.node("apart", Op::Reshape(vec![of.batch, of.tokens, 1, width]), &[x]);
    let mut x = block.g.node("together", Op::Reshape(vec![of.batch, of.tokens, width]), &[apart]);
    let placed = |block: &mut Block, x, rows| {
        let positions = block.weight("positions", &[1, rows, width]);
        block.sum("placed", x, positions)
    };
    if positions_first {
        x = placed(&mut block, x, of.tokens);
    }
    if prefix > 0 {
        let mut front = block.weight("front", &[1, prefix, width]);
        if of.batch > 1 {
            front = block.g.node("front.each", Op::Broadcast(vec![of.batch, prefix, width]), &[front]);
        }
        x = block.g.node("tokens", Op::Concat(1), &[front, x]);
    }
    if !positions_first {
        x = placed(&mut block, x, of.tokens + prefix);
    }
    let y = behind(&mut block, x);
    let plan = plan_of(&block.finish(y), &Limits::h200(), of.batch);
    let labels = labels(&plan);
    (plan, labels)
}

/// The sums of a plan's norms, each with the elements of what the step reads.
fn sums_of(plan: &Plan) -> Vec<(RowSum, Vec<usize>)> {
    let elems = |id: &crate::plan::TensorId| plan.tensors[id.0].bytes / plan.tensors[id.0].dtype.bytes();
    let sum = |step: &crate::plan::Step| match step.op {
        StepOp::RowNorm(of) => of.sum.map(|sum| (sum, step.inputs.iter().map(elems).collect())),
        _ => None,
    };
    plan.steps.iter().filter_map(sum).collect()
}

#[test]
fn a_norm_makes_the_sum_that_it_reads() {
    let Sizes { batch, tokens, .. } = SIZES;
    let width = SIZES.width();
    let once = |block: &mut Block, x| {
        let y = block.norm("norm", x);
        let y = block.product("behind", y, width);
        block.sum("sum", x, y)
    };
    let expected = ["product", "sum+layer-norm", "product+res"];
    for (positions_first, prefix) in [true, false].into_iter().flat_map(|first| [0, 1, 3].map(|prefix| (first, prefix)))
    {
        let (plan, labels) = beginning(SIZES, prefix, positions_first, once);
        assert_eq!(labels, expected, "{plan}");
        let positions = Some(if positions_first { prefix } else { 0 });
        let sum = RowSum { rows: tokens + prefix, prefix, positions, first: None };
        let placed = tokens + if positions_first { 0 } else { prefix };
        let constants = [prefix, placed].into_iter().filter(|&rows| rows > 0).map(|rows| rows * width);
        let reads = [batch * tokens * width].into_iter().chain(constants).chain([width; 2]).collect();
        assert_eq!(sums_of(&plan), [(sum, reads)]);
    }
    let in_pieces = |block: &mut Block, x| {
        let y = block.norm_in_pieces(x, true);
        let y = block.product("behind", y, width);
        block.sum("sum", x, y)
    };
    assert_eq!(beginning(SIZES, 1, false, in_pieces).1, expected);
    // The residual is the result of a first norm.
    let twice = |block: &mut Block, x| {
        let x = block.norm("before", x);
        once(block, x)
    };
    let (plan, labels) = beginning(SIZES, 1, true, twice);
    assert_eq!(labels, ["product", "sum+layer-norm+layer-norm", "product+res"]);
    let first = Some(JoinedNorm { centred: true, epsilon: 1e-6, bias: true });
    let reads = vec![batch * tokens * width, width, tokens * width, width, width, width, width];
    assert_eq!(sums_of(&plan), [(RowSum { rows: tokens + 1, prefix: 1, positions: Some(1), first }, reads)]);
    // Of one image nothing is repeated.
    let one = Sizes { batch: 1, ..SIZES };
    let (plan, _) = beginning(one, 1, false, once);
    assert_eq!(sums_of(&plan).len(), 1, "{plan}");
    let (plan, labels) = beginning(one, 0, false, once);
    assert_eq!((sums_of(&plan).len(), &*labels[0]), (0, "product+res+statistics"), "{plan}");
    // A sum that is an output is written for both.
    let shown = |block: &mut Block, x| {
        block.g.output("shown", x);
        once(block, x)
    };
    let (plan, labels) = beginning(SIZES, 1, false, shown);
    assert!(labels.contains(&"sum+layer-norm".to_owned()) && !labels.contains(&"layer-norm".to_owned()), "{plan}");
}

#[test]
fn a_sum_that_others_read_first_stays_a_loop() {
    let width = SIZES.width();
    let early = |block: &mut Block, x| {
        let z = block.product("early", x, width);
        let y = block.norm("norm", x);
        let y = block.product("behind", y, width);
        block.sum("sum", y, z)
    };
    let (plan, labels) = beginning(SIZES, 1, false, early);
    assert!(labels.contains(&"layer-norm".to_owned()) && sums_of(&plan).is_empty(), "{plan}");
    // The sum of a first norm is read by more than the norm, or is an output.
    let read = |block: &mut Block, x| {
        let y = block.norm("before", x);
        let y = block.norm("norm", y);
        let y = block.product("behind", y, width);
        block.sum("sum", x, y)
    };
    let shown = |block: &mut Block, x| {
        block.g.output("shown", x);
        let x = block.norm("before", x);
        let y = block.norm("norm", x);
        let y = block.product("behind", y, width);
        block.sum("sum", x, y)
    };
    // Two norms of one sum: the second reads what the first one wrote.
    let two = |block: &mut Block, x| {
        let y = block.norm("first", x);
        let y = block.product("behind", y, width);
        let z = block.norm("second", x);
        block.sum("sum", z, y)
    };
    let all = [beginning(SIZES, 1, false, read), beginning(SIZES, 1, false, shown), beginning(SIZES, 1, false, two)];
    for (plan, labels) in all {
        assert!(labels.contains(&"sum+layer-norm".to_owned()) && labels.contains(&"layer-norm".to_owned()), "{plan}");
    }
}

/// A norm whose sum or first norm stays in f32 is a step without it.
#[test]
fn a_norm_makes_no_sum_that_stays_in_f32() {
    let (mut block, x) = Block::new(SIZES);
    let x = block.product("patches", x, SIZES.width());
    let positions = block.weight("positions", &[1, SIZES.tokens, SIZES.width()]);
    let x = block.sum("placed", x, positions);
    let x = block.norm("before", x);
    let y = block.norm("norm", x);
    let y = block.product("behind", y, SIZES.width());
    let y = block.sum("sum", x, y);
    let graph = block.finish(y);
    let (limits, choices) = (Limits::h200(), Choices::new());
    let target = PlanTarget { limits: &limits, batch: SIZES.batch, choices: &choices };
    let sums = |in_f32: &[&str]| {
        let in_f32 = in_f32.iter().map(|name| (*name).to_owned()).collect();
        let found = super::find(&graph, Dtype::F16, target, &in_f32);
        let mut sums: Vec<(&str, bool)> = found
            .values()
            .filter(|found| matches!(found.op, StepOp::RowNorm(_)))
            .map(|found| (&*graph.nodes[found.named.0].name, found.beside.is_some()))
            .collect();
        sums.sort_unstable();
        sums
    };
    assert_eq!(sums(&[]), [("norm", true)]);
    assert_eq!(sums(&["before"]), [("norm", false)]);
    assert_eq!(sums(&["placed"]), [("before", false), ("norm", false)]);
}
