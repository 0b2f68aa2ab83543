//! Several models run at the same time on one input, which is uploaded once. Their outputs come back together, or
//! averaged on the device.
//!
//! ```sh
//! cargo run --release --example ensemble
//! ```

use trefoil::model::{Model, Weights, architecture};
use trefoil::{Device, Engine, EngineBuilder, Error, Target};

/// Runs the models.
pub fn main() -> Result<(), Error> {
    let device = Device::open(Target::Auto)?;
    let model = Model::open("weights/convnet28")?;
    let (second, third) = (turned(&model, 1)?, turned(&model, 2)?); // in earnest: others
    let build = |builder: EngineBuilder<'_>| builder.on(&device).batch_sizes(&[4]).build();
    let held = |engine: &Engine| engine.device().memory_use().device_bytes;
    let alone = [&model, &second, &third].map(|model| Ok::<_, Error>(held(&build(Engine::builder(model))?)));
    let [first_bytes, second_bytes, third_bytes] = alone;
    let together = build(Engine::builder(&model).beside(&second).beside(&third))?;
    // Three engines together would need as much memory, except that two of the three inputs in each slot are saved.
    let inputs = (together.slots() * together.capacity() * together.input().row_pitch) as u64;
    assert_eq!(held(&together) + 2 * inputs, first_bytes? + second_bytes? + third_bytes?, "the input is there once");

    let averaged = build(Engine::builder(&model).beside(&second).beside(&third).average())?;
    let mut most_apart = 0.0_f32;
    for number in 1..20 {
        let submit = |engine: &Engine| {
            let mut batch = engine.acquire()?;
            let pixels = batch.row_mut(0).iter_mut().zip((0_u8..=255).cycle());
            pixels.for_each(|(pixel, i)| *pixel = i.wrapping_mul(number));
            batch.submit(1)?.wait()
        };
        let (outputs, mean) = (submit(&together)?, submit(&averaged)?);
        assert_eq!((outputs.parts(), mean.parts()), (3, 1));
        let [one, two, three] = [0, 1, 2].map(|part| outputs.part(part).values(0).to_vec());
        for (class, mean) in mean.values(0).iter().enumerate() {
            let sum = one[class] + two[class] + three[class];
            assert!((sum / 3.0 - mean).abs() <= 2.0 * f32::EPSILON, "class {class}: {sum} / 3 is not {mean}");
            let turned = [two[(class + 1) % 10] - one[class], three[(class + 2) % 10] - one[class]];
            assert!(turned.iter().all(|off| off.abs() < 1e-4), "class {class}: each model has its own weights");
            most_apart = most_apart.max((one[class] - mean).abs());
        }
    }
    assert!(most_apart > 0.1, "the mean is the first model's answer");
    println!(
        "three models on each input; their mean is what the device made of it, up to {most_apart:.2} from the first"
    );
    Ok(())
}

/// A model with other weights: its answers are those of `model`, rotated by `by` classes.
fn turned(model: &Model, by: usize) -> Result<Model, Error> {
    let weights = model.weights();
    let read = |name: &str| {
        let dims = weights.dims(name).expect("it is one of the names").to_vec();
        let mut values = vec![0.0; dims.iter().product()];
        weights.read_f32(name, &dims, &mut values)?;
        if name.starts_with("fc.") {
            values.rotate_right(by * dims[1..].iter().product::<usize>());
        }
        Ok((name.to_owned(), dims, values))
    };
    let floats = weights.names().filter(|name| !name.ends_with("num_batches_tracked"));
    let weights = Weights::from_tensors(floats.map(read).collect::<Result<Vec<_>, Error>>()?)?;
    let preprocessing = model.preprocessing()?.clone();
    let graph = architecture(model.name(), model.classes(), Some(preprocessing.input))?;
    Model::new(graph, weights, preprocessing, Vec::new())
}
