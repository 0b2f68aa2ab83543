//! Models of any values through the engine, on any device: several ports of different types.

pub use super::beyond_f16::nodes_in_f32_hold_what_f16_does_not;
pub use super::photos::photos_are_classified_beside_numbers;
use super::records::{check, fill, image, joined};
pub use super::whole_numbers::images_between_loops_are_exact;
use trefoil::graph::{Binary, Contract, Expr, GraphBuilder, Op, TopK};
use trefoil::model::{Model, Weights};
use trefoil::{Batch, Device, Dtype, Engine, Error};

pub fn rows_have_ports_of_their_own_types(device: &Device) {
    let model = joined();
    let engine = Engine::builder(&model).on(device).batch(4).check(true).build().unwrap();
    let names = |spec: &trefoil::RowSpec| spec.ports().iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(engine.input()), ["`image` of u8[5,7,3]", "`numbers` of f32[2]"]);
    assert_eq!(names(engine.output()), ["`features` of f16[6]", "`best` of u32[2]"]);
    for rows in 1..=4 {
        let mut batch = engine.acquire().unwrap();
        for row in 0..rows {
            fill(&mut batch, row);
        }
        let output = batch.submit(rows).unwrap().wait().unwrap();
        for row in 0..rows {
            check(output.port(row, "features").unwrap(), output.port(row, "best").unwrap(), row);
        }
        assert!(matches!(output.port::<f32>(0, "features"), Err(Error::Option { option: "port", .. })));
        assert!(output.port::<f32>(0, 2).unwrap_err().to_string().contains("`best`"));
    }
}

pub fn a_batcher_takes_single_records(device: &Device) {
    let engine = Engine::builder(&joined()).on(device).check(true).build().unwrap();
    let batcher = engine.batcher().build().unwrap();
    let send = |seed: usize| {
        let mut row = batcher.row().unwrap();
        row.port_mut::<u8>("image").unwrap().copy_from_slice(&image(seed));
        row.port_mut::<f32>("numbers").unwrap().copy_from_slice(&[seed as f32 / 4.0, -1.0]);
        row.submit().unwrap()
    };
    let tickets: Vec<_> = (0..20).map(send).collect();
    for (seed, ticket) in tickets.into_iter().enumerate() {
        let row = ticket.wait().unwrap();
        check(row.port("features").unwrap(), row.port("best").unwrap(), seed);
    }
}

/// Outputs are complete even if later steps read them, or if one step writes several.
pub fn every_output_is_there_whoever_reads_it(device: &Device) {
    let model = Model::of_graphs(Weights::from_tensors([("w", vec![3, 4], vec![0.5; 12])]).unwrap(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 3]);
        let w = g.weight("w", Dtype::F32, &[3, 4]);
        let y = g.node("product", Op::Contract(Contract::matmul(2, 2)), &[x, w]);
        let half = g.map("half", Expr::arg(0).cast(Dtype::F16), &[y]);
        let top = g.node_with("top", Op::TopK(TopK { axis: 1, k: 2, largest: true }), &[Some(x)], 2);
        for (name, value) in [("product", y), ("half", half), ("best", top[0]), ("places", top[1])] {
            g.output(name, value);
        }
        g.finish()
    })
    .unwrap();
    let engine = Engine::builder(&model).on(device).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.port_mut::<f32>(0, "x").unwrap().copy_from_slice(&[1.0, 4.0, 3.0]);
    let output = batch.submit(1).unwrap().wait().unwrap();
    assert_eq!(output.port::<f32>(0, "product").unwrap(), [4.0; 4]);
    assert_eq!(output.port::<half::f16>(0, "half").unwrap(), [half::f16::from_f32(4.0); 4]);
    assert_eq!(output.port::<f32>(0, "best").unwrap(), [4.0, 3.0]);
    assert_eq!(output.port::<i64>(0, "places").unwrap(), [1, 2]);
}

/// A fleet, and two models that read one upload, take records as a single engine does.
pub fn fleets_and_several_models_take_records(device: &Device) {
    let model = joined();
    let fleet = Engine::builder(&model).batch(3).check(true).build_on(std::slice::from_ref(device)).unwrap();
    let both = Engine::builder(&model).beside(&model).on(device).batch(3).check(true).build().unwrap();
    for (mut batch, parts) in [(fleet.acquire().unwrap(), 1), (both.acquire().unwrap(), 2)] {
        (0..3).for_each(|row| fill(&mut batch, row));
        let output = batch.submit(3).unwrap().wait().unwrap();
        assert_eq!(output.parts(), parts);
        for (row, part) in (0..3).flat_map(|row| (0..parts).map(move |part| (row, part))) {
            let part = output.part(part);
            check(part.port(row, "features").unwrap(), part.port(row, "best").unwrap(), row);
        }
    }
}

/// A residual MLP on tokens.
fn mlp() -> Model {
    let weights = [("up", vec![8, 16]), ("down", vec![16, 8])];
    let weights = weights.map(|(name, dims)| (name, dims, (0..8 * 16).map(mlp_weight).collect::<Vec<_>>()));
    Model::of_graphs(Weights::from_tensors(weights).unwrap(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("tokens", Dtype::F32, &[rows, 5, 8]);
        let [up, down] = [("up", [8, 16]), ("down", [16, 8])].map(|(name, dims)| g.weight(name, Dtype::F32, &dims));
        let y = g.node("up", Op::Contract(Contract::matmul(3, 2)), &[x, up]);
        let y = g.map("relu", Expr::arg(0).binary(Binary::Max, Expr::float(Dtype::F32, 0.0)), &[y]);
        let y = g.node("down", Op::Contract(Contract::matmul(3, 2)), &[y, down]);
        let y = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        g.output("tokens", y);
        g.finish()
    })
    .unwrap()
}

fn mlp_weight(index: usize) -> f32 {
    (index % 11) as f32 / 16.0 - 0.3
}

/// The MLP's result for a row, by plain loops.
fn of_mlp(row: &[f32]) -> Vec<f32> {
    let token = |x: &[f32]| {
        let sum = |of: &[f32], column: usize, columns: usize| -> f32 {
            of.iter().enumerate().map(|(i, value)| value * mlp_weight(i * columns + column)).sum()
        };
        let up: Vec<f32> = (0..16).map(|column| sum(x, column, 16).max(0.0)).collect();
        (0..8).map(|column| x[column] + sum(&up, column, 8)).collect::<Vec<_>>()
    };
    row.chunks(8).flat_map(token).collect()
}

/// Checks a row, except for roundings to f16: like `trefoil check` it allows a hundredth of the largest number.
fn check_mlp(found: &[f32], wanted: &[f32]) {
    let largest = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let is_near = found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1e-2 * largest);
    assert!(is_near && found.len() == wanted.len(), "{found:?}, expected {wanted:?}");
}

/// A residual MLP on tokens runs in an engine, a batcher and a fleet, and then a model reads its result on the device.
pub fn models_read_one_another(device: &Device) {
    let row: Vec<f32> = (0..40).map(|i| (i % 7) as f32 / 4.0 - 0.5).collect();
    let run = |mut batch: Batch| {
        batch.port_mut::<f32>(0, 0).unwrap().copy_from_slice(&row);
        batch.submit(1).unwrap().wait().unwrap().values(0).to_vec()
    };
    let (model, once) = (mlp(), of_mlp(&row));
    let engine = Engine::builder(&model).on(device).check(true).build().unwrap();
    check_mlp(&run(engine.acquire().unwrap()), &once);
    let batcher = engine.batcher().build().unwrap();
    let mut one = batcher.row().unwrap();
    one.port_mut::<f32>("tokens").unwrap().copy_from_slice(&row);
    check_mlp(one.submit().unwrap().wait().unwrap().port("tokens").unwrap(), &once);
    let fleet = Engine::builder(&model).check(true).build_on(std::slice::from_ref(device)).unwrap();
    check_mlp(&run(fleet.acquire().unwrap()), &once);
    let twice = run(Engine::builder(&model).then(&model).on(device).check(true).build().unwrap().acquire().unwrap());
    check_mlp(&twice, &of_mlp(&once));
    let mut batch = engine.acquire().unwrap();
    batch.port_mut::<f32>(0, 0).unwrap().copy_from_slice(&run(engine.acquire().unwrap()));
    assert_eq!(twice, batch.submit(1).unwrap().wait().unwrap().values(0));
}

/// A graph's outputs may be an input, a constant, and one value twice.
pub fn outputs_are_whatever_the_graph_says(device: &Device) {
    let model = Model::of_graphs(Weights::from_tensors([("w", vec![1], vec![0.0])]).unwrap(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 3]);
        let twice = g.map("twice", Expr::arg(0) + Expr::arg(0), &[x]);
        let constant: Vec<u8> = (0..rows).flat_map(|_| [7_i32, 8].map(i32::to_le_bytes)).flatten().collect();
        let constant = g.constant(Dtype::I32, &[rows, 2], constant);
        for (name, value) in [("as it is", x), ("first", twice), ("second", twice), ("constant", constant)] {
            g.output(name, value);
        }
        g.finish()
    });
    for batch in [1, 2] {
        let engine = Engine::builder(model.as_ref().unwrap()).on(device).batch_sizes(&[batch]).build().unwrap();
        let mut rows = engine.acquire().unwrap();
        for row in 0..batch {
            rows.port_mut::<f32>(row, "x").unwrap().copy_from_slice(&[1.0, 2.0 + row as f32, 3.0]);
        }
        let output = rows.submit(batch).unwrap().wait().unwrap();
        for row in 0..batch {
            let x = [1.0, 2.0 + row as f32, 3.0];
            assert_eq!(output.port::<f32>(row, "as it is").unwrap(), x);
            for name in ["first", "second"] {
                assert_eq!(output.port::<f32>(row, name).unwrap(), x.map(|x| 2.0 * x));
            }
            assert_eq!(output.port::<i32>(row, "constant").unwrap(), [7, 8]);
        }
    }
}

/// The name of a case, and the case, which runs on a device.
type Case = (&'static str, fn(&Device));

/// All cases with their names.
pub const ALL: [Case; 9] = [
    ("rows_have_ports_of_their_own_types", rows_have_ports_of_their_own_types),
    ("a_batcher_takes_single_records", a_batcher_takes_single_records),
    ("every_output_is_there_whoever_reads_it", every_output_is_there_whoever_reads_it),
    ("fleets_and_several_models_take_records", fleets_and_several_models_take_records),
    ("models_read_one_another", models_read_one_another),
    ("outputs_are_whatever_the_graph_says", outputs_are_whatever_the_graph_says),
    ("images_between_loops_are_exact", images_between_loops_are_exact),
    ("nodes_in_f32_hold_what_f16_does_not", nodes_in_f32_hold_what_f16_does_not),
    ("photos_are_classified_beside_numbers", photos_are_classified_beside_numbers),
];
