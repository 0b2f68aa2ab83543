//! Times every kernel and tile of every distinct convolution of a model inside the whole graph: the table behind the
//! planner's tile model.
//!
//! usage: tile_sweep MODEL BATCH [REPETITIONS]
//!
//! For each group of convolutions of one shape it builds the engine with that group forced to one tile, the others as
//! planned, and prints the whole graph's median time in microseconds, with the planner's own choice marked.

use std::collections::BTreeMap;

use trefoil::model::{Conv2d, Model};
use trefoil::plan::{Choices, Kernel, Plan, StepOp, TensorId};
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
    let planned = build(&model, &device, batch, Choices::new())?;
    let kernels = Kernel::of_convolutions(&planned.plans()[0].limits);
    let baseline = time(&planned, batch, repetitions)?;
    println!("{} batch {batch}: {baseline:.1} us as planned", model.name());
    for (shape, (steps, chosen)) in groups(&planned.plans()[0]) {
        print!("{:2}x {shape:<60}", steps.len());
        // Building takes longer than timing: all at once, then one after the other.
        let engines = std::thread::scope(|scope| {
            let building: Vec<_> = kernels
                .iter()
                .map(|&kernel| {
                    let choices = steps.iter().map(|step| (step.clone(), kernel)).collect();
                    scope.spawn(|| build(&model, &device, batch, choices))
                })
                .collect();
            building.into_iter().map(|thread| thread.join().expect("building does not panic")).collect::<Vec<_>>()
        });
        for (kernel, engine) in kernels.iter().zip(engines) {
            let us = time(&engine?, batch, repetitions)?;
            let mark = if *kernel == chosen { "*" } else { "" };
            print!("  {kernel} {:+.1}{mark}", (us - baseline) / steps.len() as f64);
        }
        println!();
    }
    Ok(())
}

fn build(model: &Model, device: &Device, batch: usize, choices: Choices) -> Result<Engine, Error> {
    let engine = Engine::builder(model).on(device).batch_sizes(&[batch]).slots(1).staging(1).results(1);
    engine.choices(choices).build()
}

/// Median microseconds of the graph.
fn time(engine: &Engine, batch: usize, repetitions: usize) -> Result<f64, Error> {
    let mut seconds = engine.measure(Stage::Compute, batch, repetitions)?;
    seconds.sort_by(f64::total_cmp);
    Ok(1e6 * seconds[repetitions / 2])
}

/// The convolutions by shape: their names, and the kernel that the planner gave them.
fn groups(plan: &Plan) -> BTreeMap<String, (Vec<String>, Kernel)> {
    let mut groups = BTreeMap::<String, (Vec<String>, Kernel)>::new();
    for step in &plan.steps {
        let (conv, joined) = match &step.op {
            StepOp::Conv(conv) => (conv, None),
            StepOp::ConvSum { conv, joined } => (conv, Some(joined)),
            _ => continue,
        };
        let shape = |id: TensorId| plan.tensors[id.0].shape;
        let window =
            |conv: &Conv2d| format!("{}x{}/{}", conv.window.size[0], conv.window.size[1], conv.window.stride[0]);
        let more = match (joined, &step.inputs[..]) {
            (Some(joined), &[_, id]) => format!(" +{} {}", shape(id), window(&joined.conv)),
            (None, &[_, _]) => " +res".into(),
            _ => String::new(),
        };
        let group = format!("{} -> {} {}{more}", shape(step.inputs[0]), shape(step.output), window(conv));
        groups.entry(group).or_insert((Vec::new(), step.kernel)).0.push(step.name.clone());
    }
    groups
}
