//! `trefoil inspect`: prints a model's graph as a table, and its plan for a device with the time of each step.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use trefoil::graph as values;
use trefoil::model::images::{BatchNorm, Network, Op, Window, infer, params};
use trefoil::model::{self, Model, Preprocessing};
use trefoil::plan::{self, Choices, Family, Limits, Plan, PlanTable, Request};
use trefoil::{Device, Error, InputFormat, OutputKind};

use crate::cli::{self, InspectArgs, KnownGpu, PrecisionArg};
use crate::setup::{self, Ring, Sizes};
use crate::steps::Steps;
use crate::table::Column::{Figure, Text, Word};
use crate::table::Table;
use crate::{Outcome, models, onnx_file, out, report};

/// Number of classes of an architecture without weights: ImageNet's.
const CLASSES: usize = 1000;

pub fn run(args: &InspectArgs) -> Result<Outcome> {
    let mut is_images = true;
    let plans = match (args.gpu, without_weights(args)?) {
        (Some(gpu), Some((name, graph))) => {
            let preprocessing = Preprocessing::new(graph.input);
            let planned = planned_network(args, gpu, &graph, &preprocessing)?;
            if !args.json {
                let mut out = out::stdout();
                writeln!(
                    out,
                    "{name}, the architecture: there is no model of that name here, and a plan needs no weights"
                )?;
                writeln!(out, "input {}, {CLASSES} classes\n", graph.input)?;
                print_graph(&graph)?;
            }
            vec![planned]
        }
        (gpu, _) => {
            let (model, path) = match args.at.open(&args.model) {
                Ok(opened) => opened,
                Err(error) => return not_opened(args, error),
            };
            is_images = model.image_network().is_ok();
            if !args.json {
                print_model(&model, &path)?;
            }
            match gpu {
                Some(gpu) => planned(args, gpu, &model)?,
                None => on_device(args, &model)?,
            }
        }
    };
    plans.iter().try_for_each(|(plan, steps)| print(args, plan, steps, is_images))?;
    Ok(Outcome::AllGood)
}

/// Prints a plan with its steps.
fn print(args: &InspectArgs, plan: &Plan, steps: &Steps, is_images: bool) -> Result<()> {
    if args.json {
        writeln!(io::stdout(), "{}", serde_json::to_string(steps)?)?;
        return Ok(());
    }
    let mut out = out::stdout();
    writeln!(out)?;
    print_plan(plan, &mut out)?;
    if plan.limits.family != Family::Cpu {
        writeln!(out)?;
        steps.print()?;
    }
    if !is_images {
        writeln!(
            out,
            "rows: {} -> {}",
            report::message(&plan.input.to_string()),
            report::message(&plan.output.to_string())
        )?;
        onnx_file::print_moves(plan)?;
    }
    if args.candidates {
        writeln!(out)?;
        steps.print_candidates()?;
    }
    Ok(())
}

fn print_plan(plan: &Plan, out: &mut dyn Write) -> Result<()> {
    let PlanTable { title, heads, rows, totals } = plan.table();
    let [index, step, operation, kernel, output, flops, bytes, place, lane] = heads;
    let mut table = Table::new(&[
        Figure(index),
        Text(step),
        Text(operation),
        Text(kernel),
        Figure(output),
        Figure(flops),
        Figure(bytes),
        Word(place),
        Text(lane),
    ]);
    rows.into_iter().for_each(|row| table.row(row));
    writeln!(out, "{}", report::message(&title))?;
    table.print(out)?;
    writeln!(out, "{totals}")?;
    Ok(())
}

/// The architecture that the argument names if it names no model; dashes stand for underscores. `None` otherwise.
fn without_weights(args: &InspectArgs) -> Result<Option<(String, Network)>> {
    let name = args.model.to_string_lossy().replace('-', "_");
    if models::find(Some(&args.model)).is_ok() || !model::architectures().contains(&name) {
        return Ok(None);
    }
    let graph = Network::of(&model::architecture(&name, CLASSES, None)?)?;
    Ok(Some((name, graph)))
}

/// Describes a file that cannot be opened as a model: its content, and what is not supported.
fn not_opened(args: &InspectArgs, error: anyhow::Error) -> Result<Outcome> {
    let said = if args.json { None } else { error.downcast_ref::<Error>() };
    match said {
        Some(Error::Import { path, problems }) => {
            onnx_file::print(path)?;
            onnx_file::print_problems(problems)?;
            Ok(Outcome::NothingDone)
        }
        Some(Error::Option { option: "sizes", .. }) => {
            let path = models::find(Some(&args.model))?;
            if models::is_onnx(&path) {
                onnx_file::print(&path)?;
            }
            Err(error)
        }
        _ => Err(error),
    }
}

fn print_model(model: &Model, path: &Path) -> Result<()> {
    if model.image_network().is_err() {
        let graph = model.graph(1)?;
        if models::is_onnx(path) { onnx_file::print(path) } else { print_ports(model, &graph, path) }?;
        return onnx_file::print_graph(&graph);
    }
    let mut out = out::stdout();
    let preprocessing = model.preprocessing()?;
    writeln!(out, "{} from {}", model.name(), report::path(path))?;
    writeln!(out, "input {}, {} classes", preprocessing.input, model.classes())?;
    writeln!(
        out,
        "preprocessing: shorter side to {}, {}; centre crop; mean {:?}, std {:?}\n",
        preprocessing.resize,
        format!("{:?}", preprocessing.interpolation).to_lowercase(),
        preprocessing.mean,
        preprocessing.std
    )?;
    for reason in model.layers_in_floats() {
        writeln!(out, "in floats: {reason}")?;
    }
    print_graph(model.image_network()?)
}

/// Prints the inputs and outputs of an encoder.
fn print_ports(model: &Model, graph: &values::Graph, path: &Path) -> Result<()> {
    let mut out = out::stdout();
    writeln!(out, "{} from {}", model.name(), report::path(path))?;
    for (kind, ports) in [("input ", &graph.inputs), ("output", &graph.outputs)] {
        for port in ports {
            writeln!(out, "{kind}  `{}` of {}", port.name, graph.value(port.value))?;
        }
    }
    Ok(())
}

fn limits(gpu: KnownGpu) -> Limits {
    match gpu {
        KnownGpu::A100 => Limits::a100(),
        KnownGpu::H100 => Limits::h100(),
        KnownGpu::H100Pcie => Limits::h100_pcie(),
        KnownGpu::H200 => Limits::h200(),
        KnownGpu::B200 => Limits::b200(),
        KnownGpu::L4 => Limits::l4(),
        KnownGpu::L40s => Limits::l40s(),
        KnownGpu::Rtx4090 => Limits::rtx4090(),
        KnownGpu::Rtx5090 => Limits::rtx5090(),
    }
}

/// The plan of an architecture, without weights, for a GPU that the machine need not have.
fn planned_network(
    args: &InspectArgs,
    gpu: KnownGpu,
    graph: &Network,
    preprocessing: &Preprocessing,
) -> Result<(Plan, Steps)> {
    let limits = limits(gpu);
    let Some(batch) = args.at.batch_alone(args.batch) else {
        let what = "--size: an architecture without weights has one size, that it was designed for, and one batch";
        return Err(cli::wrong(&["inspect"], what.into()).into());
    };
    if !matches!(args.kernels.precision, PrecisionArg::Auto | PrecisionArg::F16) {
        let what = "--precision: an architecture without weights is planned in f16; give a model for another type";
        return Err(cli::wrong(&["inspect"], what.into()).into());
    }
    let (input, output) = (InputFormat::default(), OutputKind::Probabilities);
    let choices = Choices::new();
    let plan = plan::plan(graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
    let plan = match args.kernels.lanes {
        Some(lanes) => plan.with_lanes(lanes),
        None => plan,
    };
    let steps = Steps::planned(&plan);
    Ok((plan, steps))
}

/// The plans of a model for a GPU that the machine need not have, one for each size.
fn planned(args: &InspectArgs, gpu: KnownGpu, model: &Model) -> Result<Vec<(Plan, Steps)>> {
    let limits = limits(gpu);
    let at_size = |ring: Ring| {
        let plan = setup::builder(model, &ring).plans_for(&limits)?.swap_remove(0);
        let steps = Steps::planned(&plan);
        Ok((plan, steps))
    };
    rings(args).into_iter().map(at_size).collect()
}

/// The plans for a device of this machine, one for each size; on a GPU with measured times.
fn on_device(args: &InspectArgs, model: &Model) -> Result<Vec<(Plan, Steps)>> {
    let device = setup::open_device(args.device)?;
    rings(args).iter().map(|ring| at_size(args, model, &device, ring)).collect()
}

/// A ring for each requested size.
fn rings(args: &InspectArgs) -> Vec<Ring> {
    let exactly = |batch| Sizes::Exactly(vec![batch]);
    let sizes = match args.at.sizes(exactly(args.batch), exactly) {
        Sizes::Each(each) => each.into_iter().map(|size| Sizes::Each(vec![size])).collect(),
        one => vec![one],
    };
    sizes.into_iter().map(|sizes| Ring { slots: 1, ..Ring::new(sizes, args.kernels) }).collect()
}

fn at_size(args: &InspectArgs, model: &Model, device: &Device, ring: &Ring) -> Result<(Plan, Steps)> {
    let builder = setup::engine_builder(model, device, ring);
    if setup::is_cpu(device) {
        let plan = builder.plans()?.swap_remove(0);
        let steps = Steps::planned(&plan);
        return Ok((plan, steps));
    }
    let times = setup::seen("steps    building and timing: {elapsed}", || builder.measure_steps(args.runs))?;
    let steps = if times.steps.is_empty() { Steps::planned(&times.plan) } else { Steps::measured(&times) };
    Ok((times.plan, steps))
}

/// Prints the graph before any rewrite, one node on each line.
fn print_graph(graph: &Network) -> Result<()> {
    let shapes = infer(graph)?;
    let params = params(graph)?;
    let elems: HashMap<&str, usize> = params.iter().map(|(name, dims)| (*name, dims.iter().product())).collect();
    let mut out = out::stdout();
    let (mut total, mut counted) = (0, HashSet::new());
    let columns = [Figure("#"), Text("node"), Text("operation"), Figure("output"), Figure("parameters"), Text("reads")];
    let mut table = Table::new(&columns);
    for (index, (node, shape)) in graph.nodes.iter().zip(&shapes).enumerate() {
        let tensors = tensors(&node.op);
        let parameters: usize = tensors.iter().filter_map(|name| elems.get(name)).sum();
        total += tensors.iter().filter(|name| counted.insert(**name)).filter_map(|name| elems.get(name)).sum::<usize>();
        let reads: Vec<String> = node.inputs.iter().map(|id| id.0.to_string()).collect();
        table.row([
            index.to_string(),
            node.name.clone(),
            operation(&node.op),
            shape.to_string(),
            parameters.to_string(),
            reads.join(", "),
        ]);
    }
    table.print(&mut out)?;
    writeln!(out, "{} nodes, {:.2} million parameters", graph.nodes.len(), total as f64 / 1e6)?;
    Ok(())
}

/// Names of the tensors that an operation reads.
fn tensors(op: &Op) -> Vec<&str> {
    match op {
        Op::Conv2d(conv) => {
            let own = [Some(&conv.filter), conv.bias.as_ref()];
            own.into_iter().flatten().map(String::as_str).chain(conv.norm.iter().flat_map(norm_tensors)).collect()
        }
        Op::BatchNorm(norm) => norm_tensors(norm).to_vec(),
        Op::Linear(linear) => {
            [Some(&linear.weight), linear.bias.as_ref()].into_iter().flatten().map(String::as_str).collect()
        }
        _ => Vec::new(),
    }
}

fn norm_tensors(norm: &BatchNorm) -> [&str; 4] {
    [&norm.gamma, &norm.beta, &norm.mean, &norm.var].map(String::as_str)
}

/// The operation with its important attributes.
fn operation(op: &Op) -> String {
    match op {
        Op::Conv2d(conv) if conv.groups > 1 => format!("conv2d {} of {} groups", window(&conv.window), conv.groups),
        Op::Conv2d(conv) => format!("conv2d {}", window(&conv.window)),
        Op::Activation(activation) => activation.to_string(),
        Op::MaxPool(pool) | Op::AvgPool(pool) => format!("{} {}", op.kind(), window(&pool.window)),
        _ => op.kind().to_owned(),
    }
}

fn window(window: &Window) -> String {
    let [r, s] = window.size;
    let [down, right] = window.stride;
    if down == right { format!("{r}x{s} /{down}") } else { format!("{r}x{s} /{down}x{right}") }
}
