//! Engines of several sizes on any device: rows of tokens of several lengths.

use trefoil::graph::{Contract, Expr, GraphBuilder, Op, Reduce, ReduceOp};
use trefoil::model::{Model, Weights};
use trefoil::trace::TraceStage;
use trefoil::{Batch, Batcher, Device, Dtype, Engine, EngineBuilder, Error, OutputPart, Precision, RowTicket, Size};

/// Number of features of a token at the input and at the output.
const IN: usize = 3;
const OUT: usize = 2;
/// The number that pads tokens.
const PADDING: f32 = 5.0;

fn size(batch: usize, length: usize) -> Size {
    Size::new(batch).dim("length", length)
}

fn sizes() -> [Size; 4] {
    [size(2, 4), size(1, 7), size(3, 7), size(4, 2)]
}

/// A product for each token, and the sum of the products of the tokens that the mask counts. If `is_turned`, the first
/// axis is the sequence, and the second one the batch.
fn tokens(is_turned: bool) -> Model {
    let weights = Weights::from_tensors([("w", vec![IN, OUT], (0..IN * OUT).map(weight).collect())]).unwrap();
    let build = move |size: &Size| {
        let (rows, length) = (size.batch(), size.get("length").expect("it is named"));
        let mut g = GraphBuilder::new();
        let dims = if is_turned { [length, rows, IN] } else { [rows, length, IN] };
        let x = g.input("tokens", Dtype::F32, &dims);
        let mask = g.input("mask", Dtype::F32, &[&dims[..2], &[1]].concat());
        let w = g.weight("w", Dtype::F32, &[IN, OUT]);
        let y = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
        let counted = g.map("counted", Expr::arg(0) * Expr::arg(1), &[y, mask]);
        let sum = Reduce { op: ReduceOp::Sum, axes: vec![usize::from(!is_turned)], keep: false };
        let sum = g.node("sum", Op::Reduce(sum), &[counted]);
        g.output("tokens", y);
        g.output("sum", sum);
        g.finish()
    };
    Model::of_sizes(weights, &size(1, 4), build).unwrap()
}

fn padded() -> Model {
    tokens(false).padded("length", &[("tokens", f64::from(PADDING)), ("mask", 0.0)]).unwrap()
}

fn weight(i: usize) -> f32 {
    i as f32 / 4.0 - 0.5
}

/// The tokens of a row.
fn row(seed: usize, length: usize) -> Vec<f32> {
    (0..length * IN).map(|i| ((i * 7 + seed * 5) % 9) as f32 / 2.0 - 2.0).collect()
}

fn product(tokens: &[f32]) -> Vec<f32> {
    let of = |token: &[f32], k: usize| token.iter().enumerate().map(|(c, x)| x * weight(c * OUT + k)).sum();
    tokens.chunks(IN).flat_map(|token| (0..OUT).map(move |k| of(token, k))).collect()
}

fn fill(batch: &mut Batch, index: usize, seed: usize) {
    let length = batch.spec().port("mask").unwrap().elems();
    batch.port_mut::<f32>(index, "tokens").unwrap().copy_from_slice(&row(seed, length));
    batch.port_mut::<f32>(index, "mask").unwrap().fill(1.0);
}

/// Checks the results of a row with this many tokens; the tokens behind them are padding.
fn check(answer: &OutputPart<'_>, index: usize, seed: usize, length: usize) {
    let wanted = product(&row(seed, length));
    let sum = |k: usize| wanted.chunks(OUT).map(|token| token[k]).sum::<f32>();
    let found: &[f32] = answer.port(index, "tokens").unwrap();
    assert_eq!(found[..wanted.len()], wanted, "row {seed} of {length} tokens");
    assert_eq!(answer.port::<f32>(index, "sum").unwrap(), [sum(0), sum(1)], "row {seed} of {length} tokens");
    let padding = product(&[PADDING; IN]);
    assert!(found[wanted.len()..].chunks(OUT).all(|token| token == padding), "{found:?}");
}

fn engine(model: &Model, device: &Device) -> Engine {
    builder(Engine::builder(model), device).build().unwrap()
}

fn builder<'a>(builder: EngineBuilder<'a>, device: &Device) -> EngineBuilder<'a> {
    builder.on(device).sizes(&sizes()).precision(Precision::F32).check(true).trace(true)
}

pub fn every_size_has_rows_of_its_own(device: &Device) {
    let engine = engine(&tokens(false), device);
    let told: Vec<String> = engine.sizes().iter().map(ToString::to_string).collect();
    assert_eq!(told, ["batch=2,length=4", "batch=1,length=7", "batch=3,length=7", "batch=4,length=2"]);
    assert_eq!((engine.capacity(), engine.batch_sizes()), (2, &[2][..]));
    assert_eq!(engine.acquire().unwrap().spec(), engine.input());
    let mut tickets = Vec::new();
    for (number, (rows, length, capacity)) in [(2, 4, 2), (1, 7, 3), (2, 7, 3), (4, 2, 4), (1, 2, 4)].iter().enumerate()
    {
        let mut batch = engine.acquire_for(&size(*rows, *length)).unwrap();
        assert_eq!(batch.capacity(), *capacity);
        assert_eq!(batch.spec().to_string(), format!("`tokens` of f32[{length},3], `mask` of f32[{length},1]"));
        (0..*rows).for_each(|index| fill(&mut batch, index, 10 * number + index));
        tickets.push((batch.submit(*rows).unwrap(), *rows, *length));
    }
    for (number, (ticket, rows, length)) in tickets.into_iter().enumerate() {
        let output = ticket.wait().unwrap();
        assert_eq!(output.spec(), engine.rows_for(&size(1, length)).unwrap().1);
        assert_eq!(output.port::<f32>(0, "tokens").unwrap().len(), length * OUT);
        (0..rows).for_each(|index| check(&output.part(0), index, 10 * number + index, length));
    }
    let trace = engine.trace().unwrap();
    let ran: Vec<usize> = trace.stage(TraceStage::Compute).map(|interval| interval.size).collect();
    assert_eq!(ran, [0, 1, 2, 3, 3]);
}

pub fn rows_of_no_size_name_the_sizes(device: &Device) {
    let engine = engine(&tokens(false), device);
    for wrong in [size(3, 4), size(1, 3), size(1, 8), Size::new(1).dim("width", 4), size(0, 4)] {
        match engine.acquire_for(&wrong) {
            Err(Error::Option { option: "size", value, expected }) => {
                assert_eq!(value, wrong.to_string());
                let all = "batch=2,length=4; batch=1,length=7; batch=3,length=7; batch=4,length=2";
                assert!(expected.ends_with(all), "{expected}");
            }
            other => panic!("{wrong}: {other:?}"),
        }
    }
    let mut batch = engine.acquire_for(&size(1, 7)).unwrap();
    let refused = batch.write_port(0, "tokens", &row(0, 4)).unwrap_err().to_string();
    assert_eq!(refused, "port is 12 elements for `tokens` of f32[7,3]: expected 21");
    let model = tokens(false);
    let build = |sizes: &[Size]| Engine::builder(&model).on(device).sizes(sizes).build().unwrap_err().to_string();
    assert_eq!(build(&[size(1, 4).dim("x", 1)]), "sizes is x: expected sizes of the model's free dimensions: `length`");
    assert!(build(&[]).contains("at least one"));
    assert!(build(&[size(0, 4)]).contains("1 to "));
}

/// Rows take the smallest size that holds them, and are padded to it.
pub fn shorter_rows_are_padded(device: &Device) {
    let engine = engine(&padded(), device);
    for (rows, length, of) in [(1, 1, 2), (4, 2, 2), (2, 3, 4), (3, 3, 7), (3, 5, 7), (1, 7, 7)] {
        let mut batch = engine.acquire_for(&size(rows, length)).unwrap();
        assert_eq!(batch.spec().port("mask").unwrap().dims, [of, 1], "{rows} rows of {length}");
        for index in 0..rows {
            let length = length - usize::from(index == 1 && length > 1); // rows of a batch need not be alike
            batch.write_port(index, "tokens", &row(index, length)).unwrap();
            batch.write_port(index, "mask", &vec![1.0_f32; length]).unwrap();
        }
        let output = batch.submit(rows).unwrap().wait().unwrap();
        for index in 0..rows {
            check(&output.part(0), index, index, length - usize::from(index == 1 && length > 1));
        }
    }
    assert!(engine.acquire_for(&size(1, 8)).unwrap_err().to_string().contains("or less of length"));
    let mut batch = engine.acquire().unwrap();
    let refused = batch.write_port(0, "tokens", &[0.0_f32; 4]).unwrap_err().to_string();
    assert!(refused.contains("whole slices along axis 0"), "{refused}");
}

pub fn padding_is_told_of_every_input(device: &Device) {
    let model = tokens(false);
    let padded = |dim: &str, inputs: &[(&str, f64)]| {
        let model = model.padded(dim, inputs)?;
        Engine::builder(&model).on(device).sizes(&sizes()).build().map(drop)
    };
    let refused = |dim: &str, inputs: &[(&str, f64)]| padded(dim, inputs).unwrap_err().to_string();
    assert!(padded("length", &[("tokens", 0.0), ("mask", 0.0)]).is_ok());
    assert!(refused("length", &[("tokens", 0.0)]).contains("that `mask` is padded with"));
    assert!(refused("width", &[]).contains("`length`"));
    assert!(refused("length", &[("ids", 0.0)]).contains("`tokens`"));
}

/// Submits a row of some length, which is padded; returns the length too.
fn submit_padded(batcher: &Batcher, seed: usize) -> (RowTicket, usize) {
    let length = 1 + seed % 7;
    let mut row_of = batcher.request().size(&size(1, length)).unwrap().row().unwrap();
    row_of.write_port("tokens", &row(seed, length)).unwrap();
    row_of.write_port("mask", &vec![1.0_f32; length]).unwrap();
    (row_of.submit().unwrap(), length)
}

pub fn a_batcher_has_rows_of_every_size(device: &Device) {
    let engine = engine(&padded(), device);
    let batcher = engine.batcher().build().unwrap();
    let send = |seed: usize| submit_padded(&batcher, seed);
    let tickets: Vec<_> = (0..30).map(send).collect();
    for (seed, (ticket, length)) in tickets.into_iter().enumerate() {
        let answer = ticket.wait().unwrap();
        let of = [2, 4, 7].into_iter().find(|of| length <= *of).unwrap();
        assert_eq!(answer.spec(), engine.rows_for(&size(1, of)).unwrap().1);
        let wanted = product(&row(seed, length));
        assert_eq!(answer.port::<f32>("tokens").unwrap()[..wanted.len()], wanted);
        let sum = [0, 1].map(|k| wanted.chunks(OUT).map(|token| token[k]).sum::<f32>());
        assert_eq!(answer.port::<f32>("sum").unwrap(), sum);
    }
    assert_eq!(batcher.stats().rows(), 30);
    assert!(matches!(batcher.request().size(&size(1, 8)), Err(Error::Option { option: "size", .. })));
    batcher.close(trefoil::Close::Drain, std::time::Duration::from_secs(20)).unwrap();
}

pub fn a_fleet_has_batches_of_every_size(device: &Device) {
    let model = tokens(false);
    let fleet = builder(Engine::builder(&model), device).build_on(std::slice::from_ref(device)).unwrap();
    let submit = |(rows, length): (usize, usize)| {
        let mut batch = fleet.acquire_for(&size(rows, length)).unwrap();
        (0..rows).for_each(|index| fill(&mut batch, index, index + length));
        (batch.submit(rows).unwrap(), rows, length)
    };
    let tickets = [(2, 4), (3, 7), (1, 2)].map(submit);
    for (ticket, rows, length) in tickets {
        let output = ticket.wait().unwrap();
        (0..rows).for_each(|index| check(&output.part(0), index, index + length, length));
    }
    assert!(fleet.acquire_for(&size(1, 3)).is_err());
}

/// Checks every part of the results of an engine of two models, at every size.
fn check_parts(engine: &Engine, parts: usize) {
    for (rows, length) in [(3, 7), (2, 4), (1, 7), (4, 2)] {
        let mut batch = engine.acquire_for(&size(rows, length)).unwrap();
        (0..rows).for_each(|index| fill(&mut batch, index, index));
        let output = batch.submit(rows).unwrap().wait().unwrap();
        assert_eq!(output.parts(), parts);
        for part in 0..parts {
            (0..rows).for_each(|index| check(&output.part(part), index, index, length));
        }
    }
}

pub fn models_side_by_side_have_the_same_sizes(device: &Device) {
    let (model, other) = (tokens(false), tokens(false));
    check_parts(&builder(Engine::builder(&model).beside(&other), device).build().unwrap(), 2);
}

pub fn a_mean_is_there_at_every_size(device: &Device) {
    let (model, other) = (tokens(false), tokens(false));
    check_parts(&builder(Engine::builder(&model).beside(&other).average(), device).build().unwrap(), 1);
}

/// A model that reads the results of `tokens`: twice each product plus the sum, and the sum of the products.
fn after(dim: &'static str) -> Model {
    let build = move |size: &Size| {
        let (rows, length) = (size.batch(), size.get(dim).expect("it is named"));
        let mut g = GraphBuilder::new();
        let x = g.input("products", Dtype::F32, &[rows, length, OUT]);
        let sum = g.input("sums", Dtype::F32, &[rows, OUT]);
        let of_each = g.node("each", Op::Reshape(vec![rows, 1, OUT]), &[sum]);
        let added = g.map("added", Expr::arg(0) + Expr::arg(0) + Expr::arg(1), &[x, of_each]);
        let total = g.node("total", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false }), &[x]);
        g.output("added", added);
        g.output("total", total);
        g.finish()
    };
    let none = Weights::from_tensors::<String>([]).unwrap();
    Model::of_sizes(none, &Size::new(1).dim(dim, 4), build).unwrap()
}

/// Checks the results of `after` for a row with this many tokens that is padded to `all`.
fn check_after(found: [&[f32]; 2], seed: usize, length: usize, all: usize) {
    let products = product(&row(seed, length));
    let [sum, padding] = [&products, &product(&[PADDING; IN])]
        .map(|products: &Vec<f32>| [0, 1].map(|k: usize| products.chunks(OUT).map(|token| token[k]).sum::<f32>()));
    let added: Vec<f32> = products.iter().enumerate().map(|(i, x)| 2.0 * x + sum[i % OUT]).collect();
    assert_eq!(found[0][..added.len()], added, "row {seed} of {length} tokens");
    assert_eq!(found[0].len(), all * OUT);
    assert_eq!(found[1], [0, 1].map(|k| sum[k] + (all - length) as f32 * padding[k]), "row {seed} of {length} tokens");
}

/// More batches than slots, of all sizes in turn, through two models and through one with two readers.
pub fn models_that_read_one_another_have_the_same_sizes(device: &Device) {
    let (first, second, third) = (tokens(false), after("length"), after("length"));
    let flow = Engine::builder(&first).then(&second);
    for (builder_of, parts) in [(flow.clone(), 1), (flow.beside(&third), 2)] {
        let engine = builder(builder_of, device).build().unwrap();
        let mut tickets = Vec::new();
        for (number, (rows, length)) in [(3, 7), (2, 4), (1, 7), (4, 2), (1, 4), (2, 7), (3, 2)].into_iter().enumerate()
        {
            let mut batch = engine.acquire_for(&size(rows, length)).unwrap();
            (0..rows).for_each(|index| fill(&mut batch, index, 10 * number + index));
            tickets.push((batch.submit(rows).unwrap(), 10 * number, rows, length));
        }
        for (ticket, seed, rows, length) in tickets {
            let output = ticket.wait().unwrap();
            assert_eq!(output.parts(), parts);
            for (part, index) in (0..parts).flat_map(|part| (0..rows).map(move |index| (part, index))) {
                let part = output.part(part);
                let found = ["added", "total"].map(|name| part.port::<f32>(index, name).unwrap().to_vec());
                check_after([&found[0], &found[1]], seed + index, length, length);
            }
        }
        let trace = engine.trace().unwrap();
        let ran: Vec<usize> = trace.stage(TraceStage::Compute).map(|interval| interval.size).collect();
        assert_eq!(ran.len(), 7 * (1 + parts), "each model ran each batch");
        assert!((0..4).all(|size| ran.contains(&size)), "{ran:?}");
    }
    let other = after("width");
    let refused = builder(Engine::builder(&first).then(&other), device).build().unwrap_err().to_string();
    assert!(refused.contains("then is a model that reads") && refused.contains("`products` of f32[4,2]"), "{refused}");
}

/// Rows of any length, padded to the size of the first model, go through two models and come from many owners.
pub fn a_batcher_feeds_models_that_read_one_another(device: &Device) {
    let (first, second) = (padded(), after("length"));
    let engine = builder(Engine::builder(&first).then(&second), device).build().unwrap();
    let batcher = engine.batcher().build().unwrap();
    let send = |seed: usize| submit_padded(&batcher, seed);
    // Only some rows at a time are submitted: each may take a result buffer, and the ring has as many.
    for first in (0..40).step_by(8) {
        let tickets: Vec<_> = (first..first + 8).map(send).collect();
        for (seed, (ticket, length)) in (first..).zip(tickets) {
            let answer = ticket.wait().unwrap();
            let all = [2, 4, 7].into_iter().find(|all| length <= *all).unwrap();
            check_after([answer.port("added").unwrap(), answer.port("total").unwrap()], seed, length, all);
        }
    }
    batcher.close(trefoil::Close::Drain, std::time::Duration::from_secs(20)).unwrap();
}

/// The batch is the second axis of the ports, and rows are slices along it.
pub fn the_batch_may_be_another_axis(device: &Device) {
    let engine = engine(&tokens(true), device);
    for (rows, length) in [(1, 7), (3, 7), (2, 4)] {
        let mut batch = engine.acquire_for(&size(rows, length)).unwrap();
        assert_eq!(batch.spec().port("tokens").unwrap().dims, [length, IN]);
        (0..rows).for_each(|index| fill(&mut batch, index, index));
        let output = batch.submit(rows).unwrap().wait().unwrap();
        (0..rows).for_each(|index| check(&output.part(0), index, index, length));
    }
}

/// Weights, activations and rows are not allocated once for each size. The device has no other engine.
#[allow(dead_code, reason = "on a device that others use nobody can tell")]
pub fn sizes_share_their_memory(device: &Device) {
    let model = tokens(false);
    let held = |sizes: &[Size]| {
        let builder = Engine::builder(&model).on(device).sizes(sizes).precision(Precision::F32);
        let engine = builder.staging(3).results(3).build().unwrap();
        let held = device.memory_use();
        drop(engine);
        held
    };
    assert_eq!(held(&[size(1, 40), size(8, 80), size(2, 3)]), held(&[size(8, 80)]));
}

/// The name of a case, and the case, which runs on a device.
type Case = (&'static str, fn(&Device));

/// All cases with their names.
pub const ALL: [Case; 11] = [
    ("every_size_has_rows_of_its_own", every_size_has_rows_of_its_own),
    ("rows_of_no_size_name_the_sizes", rows_of_no_size_name_the_sizes),
    ("shorter_rows_are_padded", shorter_rows_are_padded),
    ("padding_is_told_of_every_input", padding_is_told_of_every_input),
    ("a_batcher_has_rows_of_every_size", a_batcher_has_rows_of_every_size),
    ("a_fleet_has_batches_of_every_size", a_fleet_has_batches_of_every_size),
    ("models_side_by_side_have_the_same_sizes", models_side_by_side_have_the_same_sizes),
    ("a_mean_is_there_at_every_size", a_mean_is_there_at_every_size),
    ("models_that_read_one_another_have_the_same_sizes", models_that_read_one_another_have_the_same_sizes),
    ("a_batcher_feeds_models_that_read_one_another", a_batcher_feeds_models_that_read_one_another),
    ("the_batch_may_be_another_axis", the_batch_may_be_another_axis),
];
