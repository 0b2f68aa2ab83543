//! Times every tile of every distinct convolution of a model inside the whole graph: the table behind the planner's
//! tile model.
//!
//! usage: tile_sweep MODEL BATCH [REPETITIONS]
//!
//! For each group of convolutions of one shape it builds the engine with that group forced to one tile, the others as
//! planned, and prints the whole graph's median time in microseconds, with the planner's own choice marked.

use std::collections::BTreeMap;

use trefoil::model::Model;
use trefoil::plan::{Choices, ConvTile, Kernel, Plan, StepOp};
use trefoil::{Device, Engine, Error, Stage, Target};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, rest @ ..] = &arguments[..] else {
        eprintln!("usage: tile_sweep MODEL BATCH [REPETITIONS]");
        std::process::exit(64);
    };
    let batch: usize = batch.parse().expect("BATCH is a number");
    let repetitions: usize = rest.first().map_or(20, |r| r.parse().expect("REPETITIONS is a number"));
    let model = Model::open(model)?;
    let device = Device::open(Target::Cuda(0))?;
    let (planned, plan) = time(&model, &device, batch, repetitions, Choices::new())?;
    println!("{} batch {batch}: {planned:.1} us as planned", model.name());
    for (shape, (steps, chosen)) in groups(&plan) {
        print!("{:2}x {shape:<44}", steps.len());
        for tile in ConvTile::ALL {
            let choices = steps.iter().map(|step| (step.clone(), tile)).collect();
            let (us, _) = time(&model, &device, batch, repetitions, choices)?;
            let mark = if tile == chosen { "*" } else { "" };
            print!("  {tile} {:+.1}{mark}", (us - planned) / steps.len() as f64);
        }
        println!();
    }
    Ok(())
}

/// Median microseconds of the graph, and its plan.
fn time(
    model: &Model,
    device: &Device,
    batch: usize,
    repetitions: usize,
    choices: Choices,
) -> Result<(f64, Plan), Error> {
    let engine = Engine::builder(model).on(device).batch_sizes(&[batch]).slots(1).staging(1).results(1);
    let engine = engine.choices(choices).build()?;
    let mut seconds = engine.measure(Stage::Compute, batch, repetitions)?;
    seconds.sort_by(f64::total_cmp);
    Ok((1e6 * seconds[repetitions / 2], engine.plans()[0].clone()))
}

/// The convolutions by shape: their names, and the tile that the planner gave them.
fn groups(plan: &Plan) -> BTreeMap<String, (Vec<String>, ConvTile)> {
    let mut groups = BTreeMap::<String, (Vec<String>, ConvTile)>::new();
    for step in &plan.steps {
        if let (StepOp::Conv(conv), Kernel::Sm80Gemm(tile)) = (&step.op, step.kernel) {
            let input = plan.tensors[step.inputs[0].0].shape;
            let output = plan.tensors[step.output.0].shape;
            let [r, s] = conv.window.size;
            let residual = if step.inputs.len() > 1 { " +res" } else { "" };
            let shape = format!("{input} -> {output} {r}x{s}/{}{residual}", conv.window.stride[0]);
            groups.entry(shape).or_insert((Vec::new(), tile)).0.push(step.name.clone());
        }
    }
    groups
}
