//! GoogLeNet on the CPU against torchvision's, with weights that a formula gives. `tests/data/make_googlenet.py` has the
//! same formula.

use std::fs;

use trefoil::model::{Model, Preprocessing, Weights, architecture, build};
use trefoil::{Device, Engine, InputFormat, OutputKind, Shape};

const IMAGE: Shape = Shape { height: 75, width: 66, channels: 3 };
const CLASSES: usize = 10;

/// Numbers from -1 to 1 by a formula; equal names give equal numbers.
fn numbers(name: &str, count: usize) -> Vec<f32> {
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    let number = |i: u64| {
        let z = seed.wrapping_add(i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let z = z ^ (z >> 31);
        ((z >> 40) as f32 - (1 << 23) as f32) / (1 << 23) as f32
    };
    (1..=count as u64).map(number).collect()
}

fn tensor(name: &str, dims: &[usize]) -> (String, Vec<usize>, Vec<f32>) {
    let mut values = numbers(name, dims.iter().product());
    let fan_in = dims[1..].iter().product::<usize>() as f64;
    let change: &dyn Fn(f32) -> f32 = match dims.len() {
        2.. => &|value| value * (6.0 / fan_in).sqrt() as f32,
        _ if name.ends_with("running_var") || name.ends_with("bn.weight") => &|value| value * 0.5 + 1.0,
        _ => &|value| value * 0.25,
    };
    values.iter_mut().for_each(|value| *value = change(*value));
    (name.to_owned(), dims.to_vec(), values)
}

#[test]
fn logits_are_those_of_torchvision() {
    let graph = architecture("googlenet", CLASSES, Some(IMAGE)).unwrap();
    let mut tensors: Vec<_> = graph.weights().map(|(name, of)| tensor(name, &of.dims)).collect();
    // Tensors that are needed only for training are ignored.
    for name in ["aux1.conv.conv.weight", "aux2.fc2.bias", "inception4e.branch2.1.bn.num_batches_tracked"] {
        tensors.push((name.to_owned(), vec![1], vec![f32::NAN]));
    }
    let graph = build("googlenet", None, IMAGE, &Weights::from_tensors(tensors.clone()).unwrap()).unwrap();
    let weights = Weights::from_tensors(tensors).unwrap();
    let model = Model::new(graph, weights, Preprocessing::new(IMAGE), Vec::new()).unwrap();

    let kept = fs::read_to_string("tests/data/googlenet.txt").unwrap();
    let row = |line: &str| line.split(' ').map(|value| value.parse().unwrap()).collect();
    let expected: Vec<Vec<f64>> = kept.lines().map(row).collect();
    let engine = Engine::builder(&model)
        .on(&Device::cpu(2))
        .input(InputFormat::F32Nhwc)
        .output(OutputKind::Logits)
        .batch_sizes(&[expected.len()])
        .check(true)
        .build()
        .unwrap();
    let mut batch = engine.acquire().unwrap();
    let pixels = numbers("images", expected.len() * IMAGE.elems());
    for (row, pixels) in batch.rows_mut().zip(pixels.chunks(IMAGE.elems())) {
        row.chunks_exact_mut(4).zip(pixels).for_each(|(bytes, pixel)| bytes.copy_from_slice(&pixel.to_le_bytes()));
    }
    let output = batch.submit(expected.len()).unwrap().wait().unwrap();
    // At most 22 sums follow one another, each of up to 1728 terms, whose roundings to f32 add up like random ones.
    let largest = expected.iter().flatten().fold(0.0_f64, |largest, value| largest.max(value.abs()));
    let limit = 22.0 * 1728_f64.sqrt() * f64::from(f32::EPSILON) / 2.0 * largest;
    for (number, expected) in expected.iter().enumerate() {
        assert_eq!(output.values(number).len(), CLASSES);
        for (class, (found, expected)) in output.values(number).iter().zip(expected).enumerate() {
            let error = (f64::from(*found) - expected).abs();
            assert!(error <= limit, "image {number}, class {class}: {found} instead of {expected}, limit {limit:.1e}");
        }
    }
}
