//! Models with state on any device: each batch reads the state that the one before has left. The hazard checker is
//! always on, and more batches are in flight than slots.

use trefoil::graph::{Contract, Expr, GraphBuilder, Op, Reduce, ReduceOp, Slice, Unary, ValueId};
use trefoil::model::{Model, Weights};
use trefoil::{Device, Dtype, Engine, EngineBuilder, Error, Precision, Size};

/// Number of features of a step, and of each of the two states of the LSTM.
const IN: usize = 3;
const HIDDEN: usize = 4;
/// Number of steps of a sequence.
const STEPS: usize = 6;

fn builder<'a>(builder: EngineBuilder<'a>, device: &Device) -> EngineBuilder<'a> {
    builder.on(device).precision(Precision::F32).check(true).trace(true)
}

/// A model whose state is the sum of all numbers that a row has had; chunks may have any length.
pub fn running_sum() -> Model {
    let build = |size: &Size| {
        let (rows, length) = (size.batch(), size.get("length").expect("it is named"));
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::I32, &[rows, length]);
        let before = g.input("before", Dtype::I32, &[rows]);
        let sum = g.node("chunk", Op::Reduce(Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false }), &[x]);
        let sum = g.map("add", Expr::arg(0) + Expr::arg(1), &[sum, before]);
        g.output("after", sum);
        g.output("sum", sum);
        g.finish()
    };
    let none = Weights::from_tensors::<String>([]).unwrap();
    Model::of_sizes(none, &Size::new(1).dim("length", 1), build).unwrap().with_state("before", "after").unwrap()
}

fn size(batch: usize, length: usize) -> Size {
    Size::new(batch).dim("length", length)
}

/// Submits a chunk for each row, all of whose elements are the row's number.
fn submit(engine: &Engine, length: usize, rows: &[i32]) -> trefoil::Ticket {
    let mut batch = engine.acquire_for(&size(rows.len(), length)).unwrap();
    rows.iter().enumerate().for_each(|(row, &x)| batch.port_mut::<i32>(row, "x").unwrap().fill(x));
    batch.submit(rows.len()).unwrap()
}

/// The sums of each row.
fn sums(ticket: trefoil::Ticket) -> Vec<i32> {
    let output = ticket.wait().unwrap();
    (0..output.rows()).map(|row| output.port::<i32>(row, "sum").unwrap()[0]).collect()
}

pub fn a_batch_goes_on_where_the_one_before_ended(device: &Device) {
    let model = running_sum();
    let engine = builder(Engine::builder(&model), device).build().unwrap();
    assert_eq!((engine.capacity(), engine.input().to_string()), (1, "`x` of i32[1]".into()));
    assert_eq!(engine.output().to_string(), "`sum` of i32[]");
    let tickets: Vec<_> = (1..=9).map(|x| submit(&engine, 1, &[x])).collect();
    let found: Vec<i32> = tickets.into_iter().flat_map(sums).collect();
    assert_eq!(found, [1, 3, 6, 10, 15, 21, 28, 36, 45]);
    assert_eq!(engine.read_state::<i32>("before").unwrap(), [45]);
    let (last, _) = (submit(&engine, 1, &[5]), engine.reset_states());
    let next = submit(&engine, 1, &[7]);
    assert_eq!([sums(last), sums(next)], [[50], [7]], "a reset concerns what is submitted behind it");
    engine.write_state("before", &[1000]).unwrap();
    assert_eq!(sums(submit(&engine, 1, &[1])), [1001]);
    engine.reset_states();
    assert_eq!(engine.read_state::<i32>("before").unwrap(), [0]);
    let other = builder(Engine::builder(&model), device).build().unwrap();
    assert_eq!([sums(submit(&engine, 1, &[3])), sums(submit(&other, 1, &[4]))], [[3], [4]], "each has its own");
}

/// Rows come in chunks of several lengths, which share the rows' states.
pub fn each_row_has_a_state_of_its_own(device: &Device) {
    let model = running_sum();
    let sizes = [size(1, 2), size(3, 2), size(3, 5)];
    let engine = builder(Engine::builder(&model), device).sizes(&sizes).build().unwrap();
    let tickets = [
        submit(&engine, 2, &[1, 2, 3]),
        submit(&engine, 2, &[10]), // the first row alone
        submit(&engine, 5, &[1, 1, 1]),
        submit(&engine, 2, &[0, 1, 2]),
    ];
    assert_eq!(tickets.map(sums), [vec![2, 4, 6], vec![22], vec![27, 9, 11], vec![27, 11, 15]]);
    assert_eq!(engine.read_state::<i32>("before").unwrap(), [27, 11, 15]);
    match engine.acquire_for(&size(2, 2)).unwrap().submit(2) {
        Err(Error::Option { option: "rows", value, expected }) => {
            assert!(value == "2" && expected.starts_with("one of the batch sizes, [1, 3]"), "{value}: {expected}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(sums(submit(&engine, 2, &[1, 0, 0])), [29, 11, 15], "what was refused has left nothing");
}

/// Fibonacci numbers: one state takes the old value of another one, and the output is an old state.
pub fn states_may_be_what_others_were(device: &Device) {
    let none = Weights::from_tensors::<String>([]).unwrap();
    let model = Model::of_graphs(none, |rows| {
        let mut g = GraphBuilder::new();
        let [x, a, b] = ["x", "a", "b"].map(|name| g.input(name, Dtype::I64, &[rows, 1]));
        let kept = g.input("kept", Dtype::I64, &[rows, 1]);
        let next = g.map("next", Expr::arg(0) + Expr::arg(1) + Expr::arg(2), &[a, b, x]);
        g.output("a'", b);
        g.output("b'", next);
        g.output("was", a);
        g.output("kept'", kept);
        g.finish()
    });
    let model = model.unwrap().with_state("b", "b'").unwrap().with_state("a", "a'").unwrap();
    let model = model.with_state("kept", "kept'").unwrap();
    let engine = builder(Engine::builder(&model), device).batch_sizes(&[2]).build().unwrap();
    engine.write_state("kept", &[8_i64, 9]).unwrap();
    let submit = |x: i64| {
        let mut batch = engine.acquire().unwrap();
        batch.port_mut::<i64>(0, "x").unwrap().fill(x);
        batch.port_mut::<i64>(1, "x").unwrap().fill(2 * x);
        batch.submit(2).unwrap()
    };
    let tickets: Vec<_> = [1, 0, 0, 0, 0, 0, 0, 0].map(submit).into();
    for (ticket, wanted) in tickets.into_iter().zip([0, 0, 1, 1, 2, 3, 5, 8]) {
        let output = ticket.wait().unwrap();
        let found = [0, 1].map(|row| output.port::<i64>(row, "was").unwrap()[0]);
        assert_eq!(found, [wanted, 2 * wanted]);
    }
    assert_eq!(engine.read_state::<i64>("b").unwrap(), [21, 42]);
    assert_eq!(engine.read_state::<i64>("a").unwrap(), [13, 26]);
    assert_eq!(engine.read_state::<i64>("kept").unwrap(), [8, 9]);
}

fn sigmoid(x: Expr) -> Expr {
    let one = || Expr::float(Dtype::F32, 1.0);
    one() / (one() + (Expr::float(Dtype::F32, 0.0) - x).unary(Unary::Exp))
}

fn weight(i: usize) -> f32 {
    ((i * 29) % 17) as f32 / 16.0 - 0.5
}

/// The next h and c `[rows, HIDDEN]` of an LSTM with gates in the order i, f, g, o.
fn lstm(g: &mut GraphBuilder, name: &str, x: ValueId, [h, c]: [ValueId; 2], rows: usize) -> [ValueId; 2] {
    let w = g.weight("w", Dtype::F32, &[IN, 4 * HIDDEN]);
    let u = g.weight("u", Dtype::F32, &[HIDDEN, 4 * HIDDEN]);
    let x = g.node(&format!("{name}.x"), Op::Contract(Contract::matmul(2, 2)), &[x, w]);
    let h = g.node(&format!("{name}.h"), Op::Contract(Contract::matmul(2, 2)), &[h, u]);
    let gates = g.map(&format!("{name}.gates"), Expr::arg(0) + Expr::arg(1), &[x, h]);
    let mut gate = |index: usize| {
        let of = Slice { start: vec![0, index * HIDDEN], step: vec![1; 2], dims: vec![rows, HIDDEN] };
        g.node(&format!("{name}.{index}"), Op::Slice(of), &[gates])
    };
    let [i, f, new, o] = [0, 1, 2, 3].map(&mut gate);
    let next = sigmoid(Expr::arg(0)) * Expr::arg(3) + sigmoid(Expr::arg(1)) * Expr::arg(2).unary(Unary::Tanh);
    let c = g.map(&format!("{name}.c"), next, &[f, i, new, c]);
    let h = g.map(&format!("{name}.out"), sigmoid(Expr::arg(0)) * Expr::arg(1).unary(Unary::Tanh), &[o, c]);
    [h, c]
}

fn weights() -> Weights {
    let tensor = |name: &str, rows: usize| {
        (name.to_owned(), vec![rows, 4 * HIDDEN], (0..rows * 4 * HIDDEN).map(weight).collect())
    };
    Weights::from_tensors([tensor("w", IN), tensor("u", HIDDEN)]).unwrap()
}

/// A model of one step; h and c are one state, whose second axis is the batch, as exporters write it.
fn one_step() -> Model {
    let model = Model::of_graphs(weights(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, IN]);
        let state = g.input("state", Dtype::F32, &[2, rows, HIDDEN]);
        let [h, c] = [0, 1].map(|index| {
            let of = Slice { start: vec![index, 0, 0], step: vec![1; 3], dims: vec![1, rows, HIDDEN] };
            let part = g.node(&format!("state.{index}"), Op::Slice(of), &[state]);
            g.node(&format!("flat.{index}"), Op::Reshape(vec![rows, HIDDEN]), &[part])
        });
        let next = lstm(&mut g, "cell", x, [h, c], rows);
        g.output("h", next[0]);
        let parts =
            [0, 1].map(|index| g.node(&format!("part.{index}"), Op::Reshape(vec![1, rows, HIDDEN]), &[next[index]]));
        let both = g.node("both", Op::Concat(0), &parts);
        g.output("stateN", both);
        g.finish()
    });
    model.unwrap().with_state("state", "stateN").unwrap()
}

/// A model of all steps of a sequence, beginning with zeros.
fn sequence() -> Model {
    let model = Model::of_graphs(weights(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, STEPS, IN]);
        let zeros = g.constant(Dtype::F32, &[rows, HIDDEN], vec![0; 4 * rows * HIDDEN]);
        let mut state = [zeros; 2];
        let mut all = Vec::new();
        for step in 0..STEPS {
            let of = Slice { start: vec![0, step, 0], step: vec![1; 3], dims: vec![rows, 1, IN] };
            let x = g.node(&format!("x.{step}"), Op::Slice(of), &[x]);
            let x = g.node(&format!("flat.{step}"), Op::Reshape(vec![rows, IN]), &[x]);
            state = lstm(&mut g, &format!("step{step}"), x, state, rows);
            all.push(g.node(&format!("h.{step}"), Op::Reshape(vec![rows, 1, HIDDEN]), &[state[0]]));
        }
        let all = g.node("all", Op::Concat(1), &all);
        g.output("h", all);
        g.finish()
    });
    model.unwrap()
}

/// The inputs of row `row`.
fn signal(row: usize) -> Vec<f32> {
    (0..STEPS * IN).map(|i| ((i * 5 + row * 7) % 11) as f32 / 4.0 - 1.25).collect()
}

/// The LSTM's results by plain loops, in f64.
fn reference(x: &[f32]) -> Vec<f64> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let (mut h, mut c, mut all) = ([0.0; HIDDEN], [0.0; HIDDEN], Vec::new());
    for x in x.chunks(IN) {
        let gate = |k: usize| -> f64 {
            let of_x = x.iter().enumerate().map(|(i, &x)| f64::from(x) * f64::from(weight(i * 4 * HIDDEN + k)));
            let of_h = h.iter().enumerate().map(|(i, &h)| h * f64::from(weight(i * 4 * HIDDEN + k)));
            of_x.sum::<f64>() + of_h.sum::<f64>()
        };
        let gates: Vec<f64> = (0..4 * HIDDEN).map(gate).collect();
        for k in 0..HIDDEN {
            let [i, f, new, o] = [0, 1, 2, 3].map(|index| gates[index * HIDDEN + k]);
            c[k] = sigmoid(f) * c[k] + sigmoid(i) * new.tanh();
            h[k] = sigmoid(o) * f64::tanh(c[k]);
        }
        all.extend(h);
    }
    all
}

/// The tolerance: values lie between -1 and 1; in each step some twenty operations in f32 are rounded, functions by a
/// few units in the last place, and the errors of steps add up.
const TOLERANCE: f64 = STEPS as f64 * 64.0 * f32::EPSILON as f64;

pub fn an_lstm_step_by_step_is_the_sequence_in_one_go(device: &Device) {
    const ROWS: usize = 2;
    let (one, all) = (one_step(), sequence());
    let whole = builder(Engine::builder(&all), device).batch_sizes(&[ROWS]).build().unwrap();
    let steps = builder(Engine::builder(&one), device).batch_sizes(&[ROWS]).build().unwrap();
    let mut batch = whole.acquire().unwrap();
    (0..ROWS).for_each(|row| batch.port_mut(row, "x").unwrap().copy_from_slice(&signal(row)));
    let whole = batch.submit(ROWS).unwrap().wait().unwrap();
    for _again in 0..2 {
        let submit = |step: usize| {
            let mut batch = steps.acquire().unwrap();
            let of_step = |row: usize| signal(row)[step * IN..][..IN].to_vec();
            (0..ROWS).for_each(|row| batch.port_mut(row, "x").unwrap().copy_from_slice(&of_step(row)));
            batch.submit(ROWS).unwrap()
        };
        let tickets: Vec<_> = (0..STEPS).map(submit).collect();
        for (step, ticket) in tickets.into_iter().enumerate() {
            let output = ticket.wait().unwrap();
            for row in 0..ROWS {
                let part = step * HIDDEN..(step + 1) * HIDDEN;
                let wanted = &reference(&signal(row))[part.clone()];
                let [found, other]: [&[f32]; 2] =
                    [output.port(row, "h").unwrap(), &whole.port::<f32>(row, "h").unwrap()[part]];
                for (k, wanted) in wanted.iter().enumerate() {
                    let errors = [found[k], other[k]].map(|found| (f64::from(found) - wanted).abs());
                    assert!(errors.iter().all(|error| *error <= TOLERANCE), "step {step}, row {row}: {errors:?}");
                }
            }
        }
        let state = steps.read_state::<f32>("state").unwrap(); // of each row h and c
        assert_eq!(state.len(), ROWS * 2 * HIDDEN);
        let h = |row: usize| whole.port::<f32>(row, "h").unwrap()[(STEPS - 1) * HIDDEN..].to_vec();
        for (found, wanted) in (0..ROWS).flat_map(|row| state[row * 2 * HIDDEN..][..HIDDEN].iter().zip(h(row))) {
            assert!(f64::from((found - wanted).abs()) <= 2.0 * TOLERANCE, "{found} {wanted}");
        }
        steps.reset_states();
    }
}

/// A running sum of running sums: each model has a state of its own, and both run at the same time on successive
/// batches.
pub fn models_that_read_one_another_have_states_each(device: &Device) {
    let none = || Weights::from_tensors::<String>([]).unwrap();
    let model = |state: &'static str, input: &'static str, output: &'static str| {
        let build = move |rows: usize| {
            let mut g = GraphBuilder::new();
            let [x, before] = [input, state].map(|name| g.input(name, Dtype::I32, &[rows, 1]));
            let sum = g.map("add", Expr::arg(0) + Expr::arg(1), &[x, before]);
            g.output(output, sum);
            g.output("after", sum);
            g.finish()
        };
        Model::of_graphs(none(), build).unwrap().with_state(state, "after").unwrap()
    };
    let (first, second) = (model("once", "x", "sum"), model("twice", "sum", "sums"));
    let engine = builder(Engine::builder(&first).then(&second), device).build().unwrap();
    let submit = |x: i32| {
        let mut batch = engine.acquire().unwrap();
        batch.port_mut::<i32>(0, "x").unwrap().fill(x);
        batch.submit(1).unwrap()
    };
    let tickets: Vec<_> = [1, 2, 3, 4, 5, 6].map(submit).into();
    let found: Vec<i32> = tickets.into_iter().map(|t| t.wait().unwrap().port::<i32>(0, "sums").unwrap()[0]).collect();
    assert_eq!(found, [1, 4, 10, 20, 35, 56]);
    assert_eq!([engine.read_state::<i32>("once").unwrap(), engine.read_state("twice").unwrap()], [[21], [56]]);
    engine.reset_states();
    assert_eq!(submit(5).wait().unwrap().port::<i32>(0, "sums").unwrap(), [5]);
    let same = builder(Engine::builder(&first).beside(&first), device).build().unwrap_err().to_string();
    assert!(same.contains("`once` of i32[1]") && same.contains("a name that no state"), "{same}");
}

pub fn what_states_cannot_do_is_refused(device: &Device) {
    let model = running_sum();
    let engine = builder(Engine::builder(&model), device).build().unwrap();
    let unsupported = |error: Error, wanted: &str| match error {
        Error::Unsupported { what, .. } => assert!(what.contains(wanted), "{what}"),
        other => panic!("{other:?}"),
    };
    unsupported(engine.batcher().build().unwrap_err(), "a batcher of a model with state");
    let fleet = builder(Engine::builder(&model), device).build_on(std::slice::from_ref(device));
    unsupported(fleet.map(drop).unwrap_err(), "a fleet of a model with state");
    let streams = builder(Engine::builder(&model), device).compute_streams(2).build().unwrap_err().to_string();
    assert!(streams.contains("compute_streams is 2: expected 1"), "{streams}");
    for (name, wanted) in [("x", "one of `before`"), ("after", "one of `before`")] {
        let refused = engine.read_state::<i32>(name).unwrap_err().to_string();
        assert!(refused.contains(wanted), "{refused}");
    }
    assert!(engine.read_state::<f32>("before").unwrap_err().to_string().contains("elements of f32"));
    let refused = engine.write_state("before", &[1, 2]).unwrap_err().to_string();
    assert!(refused.contains("4: 1 rows of `before` of i32[]"), "{refused}");
    assert!(model.with_state("before", "sum").unwrap_err().to_string().contains("`x`"), "it is no input now");
    assert!(model.with_state("x", "sum").unwrap_err().to_string().contains("as the input is"));
    let long = Size::new(1).dim("length", 3);
    let grows = Model::of_sizes(Weights::from_tensors::<String>([]).unwrap(), &long, |size: &Size| {
        let dims = [size.batch(), size.get("length").expect("it is named")];
        let mut g = GraphBuilder::new();
        let [x, before] = ["x", "before"].map(|name| g.input(name, Dtype::I32, &dims));
        let sum = g.map("add", Expr::arg(0) + Expr::arg(1), &[x, before]);
        ["after", "sum"].into_iter().for_each(|name| g.output(name, sum));
        g.finish()
    });
    let grows = grows.unwrap();
    let padded = grows.padded("length", &[("x", 0.0), ("before", 0.0)]).unwrap();
    assert!(padded.with_state("before", "after").unwrap_err().to_string().contains("rows do not pad"));
    let grows = grows.with_state("before", "after").unwrap();
    assert!(grows.with_state("x", "sum").unwrap_err().to_string().contains("another input"));
    let sizes = [long, size(1, 4)];
    let refused = builder(Engine::builder(&grows), device).sizes(&sizes).build().unwrap_err().to_string();
    assert!(refused.contains("`before` of i32[4]") && refused.contains("`before` of i32[3]"), "{refused}");
    let images = Model::open("weights/convnet28").unwrap();
    unsupported(images.with_state("input", "output").unwrap_err(), "a network of images");
    let without = Engine::builder(&images).on(device).build().unwrap().read_state::<f32>("h").unwrap_err();
    assert!(without.to_string().contains("with_state"), "{without}");
}

/// The name of a case, and the case, which runs on a device.
type Case = (&'static str, fn(&Device));

/// All cases with their names.
pub const ALL: [Case; 6] = [
    ("a_batch_goes_on_where_the_one_before_ended", a_batch_goes_on_where_the_one_before_ended),
    ("each_row_has_a_state_of_its_own", each_row_has_a_state_of_its_own),
    ("states_may_be_what_others_were", states_may_be_what_others_were),
    ("an_lstm_step_by_step_is_the_sequence_in_one_go", an_lstm_step_by_step_is_the_sequence_in_one_go),
    ("models_that_read_one_another_have_states_each", models_that_read_one_another_have_states_each),
    ("what_states_cannot_do_is_refused", what_states_cannot_do_is_refused),
];
