//! Networks of images whose file rounds values to bytes and back: an engine computes these values in bytes.

use trefoil::graph::Tensor;
use trefoil::model::Model;
use trefoil::onnx::{File, Sizes};
use trefoil::plan::StepOp;
use trefoil::{Device, Engine, InputFormat, OutputKind, Target, loops};

use super::Folder;
use super::write::{attribute, bytes, int, message};

const CHANNELS: usize = 16;
const SIDE: usize = 9;
const ELEMS: usize = CHANNELS * SIDE * SIDE;

/// ONNX's numbers of the types f32, u8 and i8.
const F32: i64 = 1;
const U8: i64 = 2;
const I8: i64 = 3;

/// A file to which nodes are added one by one.
#[derive(Default)]
struct Growing {
    fields: Vec<Vec<u8>>,
}

impl Growing {
    fn tensor(&mut self, name: &str, dtype: i64, dims: &[usize], raw: &[u8]) {
        let dims: Vec<u8> = dims.iter().flat_map(|&dim| int(1, dim as i64)).collect();
        self.fields.push(message(5, &[dims, int(2, dtype), bytes(8, name), bytes(9, raw)]));
    }

    fn node(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Vec<u8>]) {
        let inputs: Vec<u8> = inputs.iter().flat_map(|name| bytes(1, name)).collect();
        self.fields.push(message(1, &[inputs, bytes(2, output), bytes(3, output), bytes(4, op), attributes.concat()]));
    }

    /// Adds the rounding of `x` to integers and back; returns the name of the result, `x.dq`.
    fn rounded(&mut self, x: &str, scale: f32, dtype: i64, zero: u8) -> String {
        let [s, z, q, dq] = ["scale", "zero", "q", "dq"].map(|part| format!("{x}.{part}"));
        self.tensor(&s, F32, &[], &scale.to_le_bytes());
        self.tensor(&z, dtype, &[], &[zero]);
        self.node("QuantizeLinear", &[x, &s, &z], &q, &[]);
        self.node("DequantizeLinear", &[&q, &s, &z], &dq, &[]);
        dq
    }

    /// Adds a dense convolution.
    fn conv(&mut self, name: &str, x: &str, side: usize) {
        self.grouped(name, x, side, 1);
    }

    /// Adds a convolution whose filter consists of bytes, with a scale for each output channel.
    fn grouped(&mut self, name: &str, x: &str, side: usize, groups: usize) {
        let terms = CHANNELS / groups * side * side;
        // The first weight of each channel is the largest byte, so that the quantised weights keep their scale.
        let weight = |at: usize| if at.is_multiple_of(terms) { 127 } else { (at * 89 % 211) as i32 - 105 } as i8 as u8;
        let weights: Vec<u8> = (0..CHANNELS * terms).map(weight).collect();
        let scales: Vec<u8> = (0..CHANNELS)
            .flat_map(|k| ((1.0 + k as f32 / 16.0) / (90.0 * (terms as f32).sqrt())).to_le_bytes())
            .collect();
        let [w, s, dq] = ["weight", "weight.scale", "weight.dq"].map(|part| format!("{name}.{part}"));
        self.tensor(&w, I8, &[CHANNELS, CHANNELS / groups, side, side], &weights);
        self.tensor(&s, F32, &[CHANNELS], &scales);
        let axis = attribute("axis", &[int(3, 0), int(20, 2)]);
        self.node("DequantizeLinear", &[&w, &s], &dq, &[axis]);
        let pads: Vec<u8> = [side / 2; 4].iter().flat_map(|&pad| int(8, pad as i64)).collect();
        let group = attribute("group", &[int(3, groups as i64), int(20, 2)]);
        self.node("Conv", &[x, &dq], name, &[attribute("pads", &[pads, int(20, 7)]), group]);
    }

    /// Finishes the file; its result is the mean of each channel of `last`.
    fn finish(mut self, last: &str) -> Vec<u8> {
        self.node("GlobalAveragePool", &[last], "mean", &[]);
        self.node("Flatten", &["mean"], "means", &[]);
        let port = |number, name: &str, dims: &[usize]| {
            let dims: Vec<u8> = dims.iter().flat_map(|&dim| message(1, &[int(1, dim as i64)])).collect();
            let tensor = message(1, &[int(1, F32), bytes(2, dims)]);
            message(number, &[bytes(1, name), bytes(2, tensor)])
        };
        let ports = [port(11, "image", &[1, CHANNELS, SIDE, SIDE]), port(12, "means", &[1, CHANNELS])];
        let graph = [self.fields.concat(), bytes(2, "g"), ports.concat()];
        [int(1, 10), message(7, &graph), message(8, &[int(2, 21)])].concat()
    }
}

/// Three layers with a shortcut, the second of them depthwise, in each way of writing symmetric bytes; and a layer of a value that is not symmetric.
fn file() -> Vec<u8> {
    let mut g = Growing::default();
    let image = g.rounded("image", 1.0 / 100.0, I8, 0);
    g.conv("a", &image, 3);
    let a = g.rounded("a", 1.0 / 120.0, U8, 0); // negative numbers become 0: a ReLU
    g.grouped("w", &a, 3, CHANNELS);
    let w = g.rounded("w", 1.0 / 60.0, I8, 0);
    g.conv("b", &w, 1);
    let b = g.rounded("b", 1.0 / 80.0, U8, 128);
    g.node("Add", &[&b, &image], "sum", &[]);
    g.node("Relu", &["sum"], "relu", &[]);
    let relu = g.rounded("relu", 1.0 / 64.0, U8, 0);
    g.conv("c", &relu, 1);
    let c = g.rounded("c", 1.0 / 50.0, U8, 100);
    g.conv("d", &c, 1);
    g.finish("d")
}

fn image() -> Vec<f32> {
    (0..ELEMS).map(|i| ((i * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0).collect()
}

/// The planes that the engine gives at a node, and those that the file's own graph gives at a value.
fn both(path: &std::path::Path, node: &str, value: &str) -> (Vec<f32>, Vec<f32>) {
    let model = Model::open(path).unwrap().features_at(node).unwrap();
    let device = Device::open(Target::Cpu).unwrap();
    let builder = Engine::builder(&model).on(&device).input(InputFormat::F32Nchw).output(OutputKind::Features);
    let engine = builder.batch(1).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    batch.row_mut(0).copy_from_slice(bytemuck::cast_slice(&image()));
    let output = batch.submit(1).unwrap().wait().unwrap();
    let pixels = output.values(0);
    let planes = (0..ELEMS).map(|at| pixels[at % (SIDE * SIDE) * CHANNELS + at / (SIDE * SIDE)]).collect();

    let file = File::open(path).unwrap();
    let mut graph = file.graph(&Sizes::new()).unwrap();
    let writer = graph.nodes.iter().find(|of| of.name == value).unwrap_or_else(|| panic!("no node {value}"));
    graph.outputs[0].value = writer.outputs[0];
    let input = Tensor::of(&[1, CHANNELS, SIDE, SIDE], &image());
    let expected = loops::evaluate(&graph, &mut |name, _| file.weight(name), &[input]).unwrap();
    (planes, expected[0].elems::<f32>().to_vec())
}

#[test]
fn a_file_of_bytes_is_a_network_in_bytes() {
    let folder = Folder::new();
    let path = folder.write("quantised.onnx", file());
    let model = Model::open(&path).unwrap();
    let told = [
        "`c#1`: `c#1` has the zero point 100",
        "`d#1`: `c#1` has the zero point 100",
        "`d#1`: the file has no scale of `d#1`",
    ];
    assert_eq!(model.layers_in_floats(), told);
    let engine = Engine::builder(&model).on(&Device::cpu(1)).input(InputFormat::F32Nchw).output(OutputKind::Features);
    let plans = engine.batch(1).plans().unwrap();
    let plan = &plans[0];
    let in_bytes: Vec<&str> = plan
        .steps
        .iter()
        .filter(|step| matches!(step.op, StepOp::QuantizedConv(_) | StepOp::QuantizedDepthwise(_)))
        .map(|step| step.name.as_str())
        .collect();
    assert_eq!(in_bytes, ["a#1", "w#1", "b#1"], "{plan}");

    // A layer gives the file's integers, except for quotients near a half. A sum differs by at most one step: the file
    // rounds the second layer's result before the addition, the engine does not.
    for (node, value, scale, most) in
        [("a.dq", "a.dq", 1.0 / 120.0, ELEMS / 200), ("relu", "relu.dq", 1.0 / 64.0, ELEMS)]
    {
        let (found, expected) = both(&path, node, value);
        let steps: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / scale).collect();
        let other = steps.iter().filter(|steps| **steps > 0.01).count();
        assert!(other <= most, "{node}: {other} values differ");
        let largest = steps.iter().copied().fold(0.0, f32::max);
        assert!(largest < 1.01, "{node}: by {largest} steps");
        assert!(expected.iter().filter(|value| **value > 0.0).count() > ELEMS / 4, "{node}: hardly any value");
    }
}
