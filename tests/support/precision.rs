//! The type in which layers read their operands, on any device: a number of which each type holds a different part.

use trefoil::graph::{Contract, Conv, GraphBuilder, Op, Tensor, Window};
use trefoil::model::{Model, Weights};
use trefoil::{Device, Dtype, Engine, Precision};

/// The number 1 + 2^-9 + 2^-13: bf16 holds its first term, f16 the first two, and f32 all.
const X: f32 = 1.0 + 1.0 / 512.0 + 1.0 / 8192.0;

/// The number after a layer has multiplied it by 1.
fn held(precision: Precision) -> f32 {
    match precision {
        Precision::Bf16 => 1.0,
        Precision::F16 => 1.0 + 1.0 / 512.0,
        Precision::F32 => X,
        Precision::Auto | Precision::Checkpoint => unreachable!("it depends on a device, or on a model"),
    }
}

/// A model with a product, a convolution and a transposed convolution, each of the number by a weight of 1 of this
/// type; the number is an output too.
fn model(weights: Dtype) -> Model {
    let one = |dims: &[usize]| match weights {
        Dtype::Bf16 => Tensor::of(dims, &[half::bf16::ONE]),
        _ => Tensor::of(dims, &[1.0_f32]),
    };
    let tensors = [("matrix", one(&[1, 1])), ("filter", one(&[1, 1, 1, 1]))];
    let weights = Weights::from_tensors::<String>([]).and_then(|none| none.with(tensors)).unwrap();
    Model::of_graphs(weights, |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 1, 1, 1]);
        let matrix = g.weight("matrix", Dtype::F32, &[1, 1]);
        let filter = g.weight("filter", Dtype::F32, &[1, 1, 1, 1]);
        let conv = Conv { window: Window::square(1, 1, 0), groups: 1 };
        let layers = [
            ("product", Op::Contract(Contract::matmul(4, 2)), matrix),
            ("conv", Op::Conv(conv.clone()), filter),
            ("transposed", Op::ConvTranspose(conv, vec![1, 1]), filter),
        ];
        for (name, op, weight) in layers {
            let y = g.node(name, op, &[x, weight]);
            g.output(name, y);
        }
        g.output("x", x);
        g.finish()
    })
    .unwrap()
}

/// Each output of the model for the number.
fn run(model: &Model, precision: Precision, device: &Device) -> [f32; 4] {
    let engine = Engine::builder(model).on(device).precision(precision).batch_sizes(&[1]).check(true).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.port_mut::<f32>(0, "x").unwrap()[0] = X;
    let output = batch.submit(1).unwrap().wait().unwrap();
    ["product", "conv", "transposed", "x"].map(|name| output.port::<f32>(0, name).unwrap()[0])
}

/// Layers read the precision that is asked for, on any device; values outside of layers keep their type.
pub fn layers_read_the_type_that_is_asked_for(device: &Device, precisions: &[Precision]) {
    for &precision in precisions {
        let [layers @ .., x] = run(&model(Dtype::F32), precision, device);
        assert_eq!((layers, x), ([held(precision); 3], X), "{precision:?}");
    }
}

/// Layers read bf16 if weights are in bf16, and f32 if weights are in f32.
pub fn a_checkpoint_has_a_precision_of_its_own(device: &Device) {
    for (stored, precision) in [(Dtype::Bf16, Precision::Bf16), (Dtype::F32, Precision::F32)] {
        let [layers @ .., _] = run(&model(stored), Precision::Checkpoint, device);
        assert_eq!(layers, [held(precision); 3], "{stored}");
    }
}

/// Nodes that a model lists as in f32 read f32.
pub fn nodes_in_f32_read_f32(device: &Device) {
    let model = model(Dtype::F32).with_f32(["conv"]).unwrap();
    let [product, conv, ..] = run(&model, Precision::Bf16, device);
    assert_eq!([product, conv], [held(Precision::Bf16), X]);
}
