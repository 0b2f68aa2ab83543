//! Numbers that are too large for f16, and numbers for which it has too few digits.

use trefoil::graph::{Contract, Expr, GraphBuilder, Op, ValueId};
use trefoil::model::{Model, Weights};
use trefoil::{Device, Dtype, Engine};

const WIDTH: usize = 16;
/// The value of each element of a row.
const ELEM: f32 = 8.0;

fn product(g: &mut GraphBuilder, name: &str, x: ValueId) -> ValueId {
    let w = g.weight(&format!("{name}.w"), Dtype::F32, &[WIDTH, WIDTH]);
    g.node(name, Op::Contract(Contract::matmul(2, 2)), &[x, w])
}

fn weights() -> Weights {
    let of = |name: &str, elems: Vec<f32>| (name.to_owned(), vec![WIDTH; 2], elems);
    let same = |name: &str, number: f32| of(name, vec![number; WIDTH * WIDTH]);
    let one = (0..WIDTH * WIDTH).map(|at| if at % (WIDTH + 1) == 0 { 1.0 } else { 0.0 }).collect();
    Weights::from_tensors([same("large.w", 1000.0), same("small.w", 0.5), of("kept.w", one)]).unwrap()
}

/// A model whose product of 128,000 is too large for f16; it is scaled to 125, and another product gives 1000.
fn beyond() -> Model {
    let scale = || Expr::arg(0) * Expr::float(Dtype::F32, 1.0 / 1024.0);
    Model::of_graphs(weights(), move |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, WIDTH]);
        let large = product(&mut g, "large", x);
        let scaled = g.map("scaled", scale(), &[large]);
        let small = product(&mut g, "small", scaled);
        g.output("y", small);
        g.finish()
    })
    .unwrap()
}

/// A model whose value of 60,008, which f16 rounds to 60,000, is reduced by 60,000; a product of the rest gives 64.
fn cancelled() -> Model {
    let number = || Expr::float(Dtype::F32, 60_000.0);
    Model::of_graphs(weights(), move |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, WIDTH]);
        let raised = g.map("raised", Expr::arg(0) + number(), &[x]);
        let kept = product(&mut g, "kept", raised);
        let lowered = g.map("lowered", Expr::arg(0) - number(), &[kept]);
        let small = product(&mut g, "small", lowered);
        g.output("y", small);
        g.finish()
    })
    .unwrap()
}

fn row() -> Vec<u8> {
    [ELEM; WIDTH].map(f32::to_le_bytes).concat()
}

fn result(model: &Model, device: &Device) -> Vec<f32> {
    let engine = Engine::builder(model).on(device).batch_sizes(&[1]).check(true).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.row_mut(0).copy_from_slice(&row());
    batch.submit(1).unwrap().wait().unwrap().port::<f32>(0, "y").unwrap().to_vec()
}

pub fn nodes_in_f32_hold_what_f16_does_not(device: &Device) {
    let model = beyond();
    let is_in_f16 = device.info().target != "cpu";
    let not_finite = Engine::builder(&model).on(device).not_finite(&row()).unwrap();
    let nodes: Vec<&str> = not_finite.iter().map(|value| &*value.node).collect();
    assert_eq!(nodes, if is_in_f16 { vec!["large", "scaled", "small"] } else { vec![] });
    let found = result(&model, device);
    assert!(found.iter().all(|number| number.is_finite() != is_in_f16), "{found:?}");
    let model = model.with_f32(["large"]).unwrap();
    assert_eq!(result(&model, device), [1000.0; WIDTH]);
    assert!(Engine::builder(&model).on(device).not_finite(&row()).unwrap().is_empty());
}

pub fn an_audit_names_what_is_beyond_f16() {
    let model = beyond();
    let audit = model.audit(&[row()], 1e-2).unwrap();
    let [found] = &audit.nodes[..] else { panic!("{audit:?}") };
    assert_eq!((&*found.node, found.kind, found.largest, found.error), ("large", "contract", 128_000.0, f64::INFINITY));
    assert_eq!(audit.error, 0.0);
    let again = model.with_f32(audit.names()).unwrap().audit(&[row()], 1e-2).unwrap();
    assert!(again.nodes.is_empty() && again.error == 0.0, "{again:?}");
    let zeros = [vec![0; 4 * WIDTH]];
    assert!(model.audit(&zeros, 1e-2).unwrap().nodes.is_empty());
    assert!(model.audit(&[[0_u8; 3]], 1e-2).unwrap_err().to_string().contains("64 bytes"));
}

pub fn an_audit_names_where_digits_are_lost() {
    let model = cancelled();
    let audit = model.audit(&[row()], 1e-2).unwrap();
    assert_eq!((audit.names().collect::<Vec<_>>(), audit.error), (vec!["kept"], 0.0));
    assert!((1e-4..2e-4).contains(&audit.nodes[0].error), "{audit:?}");
    let coarse = model.audit(&[row()], 1.0).unwrap();
    assert!(coarse.nodes.is_empty() && coarse.error == 1.0, "{coarse:?}");
}

pub fn what_is_not_finite_is_named_first_one_first(device: &Device) {
    let number = |number| Expr::float(Dtype::F32, number);
    let model = Model::of_graphs(weights(), move |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, WIDTH]);
        let zero = g.map("zero", Expr::arg(0) - number(f64::from(ELEM)), &[x]);
        let inverse = g.map("inverse", number(1.0) / Expr::arg(0), &[zero]);
        let nan = g.map("nan", Expr::arg(0) - Expr::arg(0), &[inverse]);
        g.output("y", nan);
        g.finish()
    })
    .unwrap();
    let found = Engine::builder(&model).on(device).not_finite(&row()).unwrap();
    let told: Vec<_> = found.iter().map(|value| (&*value.node, value.count, value.first.0)).collect();
    assert_eq!(told, [("inverse", WIDTH, 0), ("nan", WIDTH, 0)]);
    assert!(found[0].first.1.is_infinite() && found[1].first.1.is_nan(), "{found:?}");
    assert!(Engine::builder(&model).on(device).not_finite(&[0; 3]).is_err());
    let images = Model::open("weights/convnet28").unwrap();
    let pixels = Engine::builder(&images).on(device).build().unwrap().input().row_bytes;
    assert!(Engine::builder(&images).on(device).not_finite(&vec![100; pixels]).unwrap().is_empty());
}

/// Loops on a device that computes nothing else: numbers that are too large for f16, and for every type.
pub fn loops_hold_what_f16_does_not(device: &Device) {
    let model = beyond().with_f32(["large", "small"]).unwrap();
    assert_eq!(result(&model, device), [1000.0; WIDTH]);
    assert!(Engine::builder(&model).on(device).not_finite(&row()).unwrap().is_empty());
    let infinite = [f32::INFINITY; WIDTH].map(f32::to_le_bytes).concat();
    let found = Engine::builder(&model).on(device).not_finite(&infinite).unwrap();
    assert_eq!(found.iter().map(|value| &*value.node).collect::<Vec<_>>(), ["large", "scaled", "small"]);
}
