//! Times every kernel and tile of every distinct convolution of a model inside the whole graph. The planner's
//! predictions are fitted to this table.
//!
//! usage: tile_sweep MODEL BATCH [REPETITIONS [PART [KERNEL]]]
//!
//! For each group of convolutions of one shape and each tile it builds an engine in which the group has this tile and
//! all other steps are as planned. It prints how many microseconds longer than the planned graph this graph takes,
//! divided by the number of layers in the group: the median of rounds in which both graphs run in turn. The planner's
//! own choice is marked. PART selects groups whose line contains this text, KERNEL selects kernels by a part of their
//! name. Layers that are computed in one step (the first layers, the last layers, or two 1x1 convolutions) are a group
//! too; choosing a kernel of a single layer for them makes them separate steps.

use std::collections::BTreeMap;

use trefoil::model::Model;
use trefoil::model::images::{Conv2d, Window};
use trefoil::plan::{
    ChainTile, Choices, ConvTile, DepthwiseTile, Kernel, LinearTile, Plan, StemTile, StepOp, TailTile, TensorId,
};
use trefoil::{Device, Engine, Error, Shape, Stage, Target, Tuning};

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, batch, rest @ ..] = &arguments[..] else {
        eprintln!("usage: tile_sweep MODEL BATCH [REPETITIONS [PART [KERNEL]]]");
        std::process::exit(64);
    };
    let batch: usize = batch.parse().expect("BATCH is a number");
    let repetitions: usize = rest.first().map_or(10, |r| r.parse().expect("REPETITIONS is a number"));
    let [part, only] = [1, 2].map(|index| rest.get(index).map_or("", String::as_str));
    let model = Model::open(model)?;
    let device = Device::open(Target::Cuda(0))?;
    let planned = build(&model, &device, batch, Choices::new())?;
    let baseline = time(&planned, batch, repetitions)?;
    println!("{} batch {batch}: {baseline:.1} us as planned", model.name());
    for (shape, Group { steps, chosen, mut kernels }) in groups(&planned.plans()[0]) {
        if !shape.contains(part) {
            continue;
        }
        kernels.retain(|&kernel| kernel == chosen || kernel.to_string().contains(only));
        print!("{:2}x {shape:<60}", steps.len());
        // Building takes longer than timing: all engines are built at once, then timed one after the other.
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
            // A tile may need too much shared memory, and not every convolution is followed by a 1x1 convolution.
            let engine = match engine {
                Err(Error::Unsupported { .. }) => continue,
                engine => engine?,
            };
            let mut longer = [0.0; ROUNDS];
            for longer in &mut longer {
                let planned = time(&planned, batch, repetitions)?;
                *longer = (time(&engine, batch, repetitions)? - planned) / steps.len() as f64;
            }
            longer.sort_by(f64::total_cmp);
            let mark = if *kernel == chosen { "*" } else { "" };
            print!("  {kernel} {:+.1}{mark}", longer[ROUNDS / 2]);
        }
        println!();
    }
    Ok(())
}

/// Number of rounds in which the graph with a group in one kernel and the planned graph run in turn: changes of the
/// clocks have a larger effect than the differences to be found.
const ROUNDS: usize = 5;

fn build(model: &Model, device: &Device, batch: usize, choices: Choices) -> Result<Engine, Error> {
    let engine = Engine::builder(model).on(device).batch_sizes(&[batch]).slots(1).staging(1).results(1);
    engine.tuning(Tuning::Off).choices(choices).build()
}

/// Median microseconds of the graph.
fn time(engine: &Engine, batch: usize, repetitions: usize) -> Result<f64, Error> {
    let mut seconds = engine.measure(Stage::Compute, batch, repetitions)?;
    seconds.sort_by(f64::total_cmp);
    Ok(1e6 * seconds[repetitions / 2])
}

/// A group of convolutions of one shape.
struct Group {
    steps: Vec<String>,
    /// The planner's choice for the group.
    chosen: Kernel,
    /// The kernels that can compute the group.
    kernels: Vec<Kernel>,
}

/// The convolutions grouped by shape, and the first and last layers.
fn groups(plan: &Plan) -> BTreeMap<String, Group> {
    let mut groups = BTreeMap::<String, Group>::new();
    for step in &plan.steps {
        if let StepOp::Stem(_) = &step.op {
            let tiles = StemTile::COLUMNS.into_iter().flat_map(|columns| {
                [1, 2, 4, 5, 7, 8, 14, 19, 28, 56].map(|rows| Kernel::Sm90Stem(StemTile { columns, rows }))
            });
            let kernels = tiles.chain(ConvTile::ALL.map(Kernel::Sm80Gemm)).collect();
            let group = Group { steps: vec![step.name.clone()], chosen: step.kernel, kernels };
            groups.insert(step.op.label(1), group);
            continue;
        }
        if let StepOp::Tail(_) | StepOp::Linear(_) = &step.op {
            let tiles = TailTile::BLOCKS
                .into_iter()
                .flat_map(|blocks| [1, 2, 4, 8, 16].map(|images| Kernel::Sm90Tail(TailTile { images, blocks })));
            let linear =
                LinearTile::ALL.map(Kernel::Sm90Linear).into_iter().chain(ConvTile::LINEAR.map(Kernel::Sm80Gemm));
            let kernels = tiles.chain(linear).chain([Kernel::Sm90MeanLinear]).collect();
            groups.insert("mean+fc".into(), Group { steps: vec![step.name.clone()], chosen: step.kernel, kernels });
            continue;
        }
        if let Some(window) = depthwise_window(&step.op)
            && plan.limits.has_sm90_kernels()
        {
            let Window { size: [r, s], stride: [stride, _], .. } = window;
            let [input, output] = [step.inputs[0], step.outputs[0]].map(|id| plan.tensors[id.0].shape);
            let name = format!("{input} -> {output} {} dw{r}x{s}/{stride}", step.op.label(1));
            let kernels = depthwise_kernels(output, step.kernel);
            let group = groups.entry(name).or_insert(Group { steps: Vec::new(), chosen: step.kernel, kernels });
            group.steps.push(step.name.clone());
            continue;
        }
        let (conv, joined) = match &step.op {
            StepOp::Conv(conv) => (conv, None),
            StepOp::ConvSum { conv, joined } => (conv, Some(joined)),
            StepOp::Chain { conv, joined, .. } => (conv, joined.as_ref()),
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
        let next = step.outputs.get(1).map_or_else(String::new, |&id| format!(" -> {}", shape(id)));
        let name = format!("{} -> {} {}{more}{next}", shape(step.inputs[0]), shape(step.outputs[0]), window(conv));
        let mut kernels = Kernel::of_convolutions(&plan.limits);
        kernels.extend(ChainTile::ALL.map(Kernel::Sm90Chain).into_iter().filter(|_| conv.window.size == [1; 2]));
        let has_halo = conv.window == Window::square(3, 1, 1) && shape(step.inputs[0]).channels <= 64;
        kernels.extend(Some(Kernel::Sm90Halo).filter(|_| has_halo && plan.limits.has_sm90_kernels()));
        let group = groups.entry(name).or_insert(Group { steps: Vec::new(), chosen: step.kernel, kernels });
        group.steps.push(step.name.clone());
    }
    groups
}

fn depthwise_window(op: &StepOp) -> Option<Window> {
    match op {
        StepOp::Depthwise(conv) | StepOp::ExpandDepthwise { conv, .. } => Some(conv.window),
        _ => None,
    }
}

/// The depthwise kernels for an output: the planner's choice, the one for any GPU, and tiles of some units along each
/// axis, up to all of them, alone and with the 1x1 convolution in front.
fn depthwise_kernels(output: Shape, chosen: Kernel) -> Vec<Kernel> {
    let along = |outputs: usize, unit: usize| {
        let all = outputs.div_ceil(unit);
        let mut counts: Vec<usize> = [1, 2, 4, 7].into_iter().filter(|&count| count < all).collect();
        counts.push(all);
        counts.into_iter().map(move |count| count * unit)
    };
    let tiles = DepthwiseTile::UNITS.into_iter().flat_map(|unit| {
        let columns = along(output.width, unit[1]);
        along(output.height, unit[0])
            .flat_map(move |rows| columns.clone().map(move |columns| DepthwiseTile { rows, columns, unit }))
    });
    let sm90 = tiles.flat_map(|tile| [Kernel::Sm90Depthwise(tile), Kernel::Sm90Expand(tile)]);
    let others = sm90.filter(|&kernel| kernel != chosen);
    [chosen, Kernel::Sm80].into_iter().chain(others).collect()
}
