//! A network of blocks with four branches. The branches run side by side on a GPU, and the results do not change by a
//! bit.
//!
//! ```sh
//! cargo run --release --example branches
//! ```

use trefoil::graph::{Graph, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::{Choices, Limits, Request, plan};
use trefoil::{Engine, Error, InputFormat, OutputKind, Shape, Stage};

/// The shape of the network's input.
const IMAGE: Shape = Shape::new(14, 14, 3);
/// Number of blocks of the network.
const BLOCKS: usize = 6;

/// Plans the network for a GPU, then runs it with its branches side by side and one after the other.
pub fn main() -> Result<(), Error> {
    let model = model()?;
    let (limits, input, output, choices) =
        (Limits::h200(), InputFormat::U8Nhwc, OutputKind::Probabilities, Choices::new());
    let preprocessing = model.preprocessing()?;
    let request = Request { limits: &limits, batch: 1, input, preprocessing, output, choices: &choices };
    let planned = plan(model.image_network()?, &request)?;
    assert_eq!((planned.lanes(), planned.clone().with_lanes(false).lanes()), (4, 1));
    planned.check()?; // whatever the lanes' speeds, nothing is read too early or overwritten too soon

    let engine = |lanes| Engine::builder(&model).batch_sizes(&[1]).lanes(lanes).build();
    let (beside, in_turn) = (engine(true)?, engine(false)?);
    for number in 0..20_u8 {
        let answer = |engine: &Engine| {
            let mut batch = engine.acquire()?;
            let pixels = batch.row_mut(0).iter_mut().zip((0_u8..=255).cycle());
            pixels.for_each(|(pixel, i)| *pixel = i.wrapping_mul(number));
            batch.submit(1)?.wait()
        };
        assert_eq!(answer(&beside)?.row(0), answer(&in_turn)?.row(0));
    }
    let seconds = |engine: &Engine| -> Result<f64, Error> {
        let mut runs = engine.measure(Stage::Compute, 1, 100)?;
        runs.sort_by(f64::total_cmp);
        Ok(runs[runs.len() / 2])
    };
    let [beside_us, in_turn_us] = [1e6 * seconds(&beside)?, 1e6 * seconds(&in_turn)?];
    let lanes = beside.plans()[0].lanes();
    println!("{lanes} lanes: {beside_us:.1} us a run, one after the other {in_turn_us:.1} us");
    assert!(lanes == 1 || beside_us < in_turn_us, "branches side by side are no faster");
    Ok(())
}

/// The network, with weights by a formula.
fn model() -> Result<Model, Error> {
    let graph = graph()?;
    let mut state = 1_u32;
    let mut number = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut tensors = Vec::new();
    for (name, of) in graph.weights() {
        let scale = (6.0 / of.dims[1..].iter().product::<usize>() as f32).sqrt();
        let values = (0..of.elems()).map(|_| scale * number()).collect();
        tensors.push((name.to_owned(), of.dims.clone(), values));
    }
    let preprocessing = Preprocessing::new(IMAGE);
    Model::new(graph, Weights::from_tensors(tensors)?, preprocessing, Vec::new())
}

/// A graph of blocks; in each a 1x1 convolution, two 3x3 convolutions behind 1x1 ones, and a 1x1 convolution of maxima
/// are side by side.
fn graph() -> Result<Graph, Error> {
    let (one, three) = (&Window::square(1, 1, 0), &Window::square(3, 1, 1));
    let mut g = GraphBuilder::new();
    let image = g.image("image", IMAGE);
    let mut x = g.conv2d("stem", image, 128, three);
    for block in 0..BLOCKS {
        let name = |part: &str| format!("block{block}.{part}");
        let mut conv = |part: &str, x, channels, window| {
            let y = g.conv2d(&name(part), x, channels, window);
            g.relu(&name(&format!("{part}.relu")), y)
        };
        let first = conv("1", x, 32, one);
        let second = conv("2.0", x, 64, one);
        let second = conv("2.1", second, 48, three);
        let third = conv("3.0", x, 16, one);
        let third = conv("3.1", third, 24, three);
        let fourth = g.max_pool(&name("4.0"), x, three);
        let fourth = g.conv2d(&name("4.1"), fourth, 24, one);
        x = g.concat(&name("all"), &[first, second, third, fourth]);
    }
    let x = g.global_avg_pool("mean", x);
    let x = g.linear("classifier", x, 10);
    g.output("logits", x);
    g.finish()
}
