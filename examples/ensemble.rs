//! One input, uploaded once, and several models on it at the same time; their outputs come back together, or averaged on
//! the device.
//!
//! ```sh
//! cargo run --release --example ensemble
//! ```

use trefoil::{Engine, Error, model::Model};

/// Runs the models.
pub fn main() -> Result<(), Error> {
    let model = Model::open("weights/convnet28")?;
    let others = [&model, &model]; // in earnest: others
    let together = Engine::builder(&model).beside(others[0]).beside(others[1]).build()?;
    let averaged = Engine::builder(&model).beside(others[0]).beside(others[1]).average().build()?;
    for number in 0..20 {
        let fill = |row: &mut [u8]| row.iter_mut().zip(0_u8..).for_each(|(pixel, i)| *pixel = i.wrapping_mul(number));
        let mut batch = together.acquire()?;
        fill(batch.row_mut(0));
        let outputs = batch.submit(1)?.wait()?;
        assert_eq!(outputs.parts(), 3);

        let mut batch = averaged.acquire()?;
        fill(batch.row_mut(0));
        let mean = batch.submit(1)?.wait()?;
        for (class, mean) in mean.values(0).iter().enumerate() {
            let sum: f32 = (0..3).map(|part| outputs.part(part).values(0)[class]).sum();
            assert!((sum / 3.0 - mean).abs() <= 2.0 * f32::EPSILON, "class {class}: {sum} / 3 is not {mean}");
        }
    }
    println!("three models on each input; their mean is what the device made of it");
    Ok(())
}
