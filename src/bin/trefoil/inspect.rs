//! `trefoil inspect`: a model's graph as a table, and its plan for a device with what each step takes.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};
use std::path::Path;

use anyhow::Result;
use trefoil::model::{self, BatchNorm, Graph, Model, Op, Preprocessing, Window};
use trefoil::plan::{self, Choices, Family, Limits, Plan, Request};
use trefoil::{Error, InputFormat, OutputKind};

use crate::cli::{InspectArgs, KnownGpu};
use crate::setup::{self, Ring, Sizes};
use crate::steps::Steps;
use crate::{Outcome, models, onnx_file, report};

/// Classes of an architecture without weights: ImageNet's.
const CLASSES: usize = 1000;

pub fn run(args: &InspectArgs) -> Result<Outcome> {
    let mut is_images = true;
    let (plan, steps) = match (args.gpu, without_weights(args)?) {
        (Some(gpu), Some((name, graph))) => {
            let preprocessing = Preprocessing::new(graph.input);
            if !args.json {
                let mut out = io::stdout();
                writeln!(
                    out,
                    "{name}, the architecture: there is no model of that name here, and a plan needs no weights"
                )?;
                writeln!(out, "input {}, {CLASSES} classes\n", graph.input)?;
                print_graph(&graph)?;
            }
            planned(args, gpu, &graph, &preprocessing)?
        }
        (gpu, _) => {
            let (model, path) = match args.at.open(&args.model) {
                Ok(opened) => opened,
                Err(error) => return not_opened(args, error),
            };
            is_images = model.graph().is_ok();
            if !args.json {
                print_model(&model, &path)?;
            }
            match gpu {
                Some(gpu) => planned(args, gpu, model.graph()?, model.preprocessing()?)?,
                None => on_device(args, &model)?,
            }
        }
    };
    let mut out = io::stdout();
    if args.json {
        writeln!(out, "{}", serde_json::to_string(&steps)?)?;
        return Ok(Outcome::AllGood);
    }
    writeln!(out)?;
    plan.to_string().lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
    if plan.limits.family != Family::Cpu {
        writeln!(out)?;
        steps.print()?;
    }
    if !is_images {
        onnx_file::print_moves(&plan)?;
    }
    if args.candidates {
        writeln!(out)?;
        steps.print_candidates()?;
    }
    Ok(Outcome::AllGood)
}

/// The architecture that is meant where no model is found: its name may be written with dashes.
fn without_weights(args: &InspectArgs) -> Result<Option<(String, Graph)>> {
    let name = args.model.to_string_lossy().replace('-', "_");
    if models::find(Some(&args.model)).is_ok() || !model::architectures().contains(&name) {
        return Ok(None);
    }
    let graph = model::architecture(&name, CLASSES, None)?;
    Ok(Some((name, graph)))
}

/// What can be told of a file that is no model here: what it holds, and what of it is not supported.
fn not_opened(args: &InspectArgs, error: anyhow::Error) -> Result<Outcome> {
    let said = if args.json { None } else { error.downcast_ref::<Error>() };
    match said {
        Some(Error::Import { path, problems }) => {
            onnx_file::print(path)?;
            onnx_file::print_problems(problems)?;
            Ok(Outcome::NothingDone)
        }
        Some(Error::Option { option: "sizes", .. }) => {
            onnx_file::print(&models::find(Some(&args.model))?)?;
            Err(error)
        }
        _ => Err(error),
    }
}

fn print_model(model: &Model, path: &Path) -> Result<()> {
    if model.graph().is_err() {
        onnx_file::print(path)?;
        return onnx_file::print_graph(&model.values_graph(1)?);
    }
    let mut out = io::stdout();
    let preprocessing = model.preprocessing()?;
    writeln!(out, "{} from {}", model.name(), report::path(path))?;
    writeln!(out, "input {}, {} classes", preprocessing.input, model.classes())?;
    writeln!(
        out,
        "preprocessing: shorter side to {}, {:?}; centre crop; mean {:?}, std {:?}\n",
        preprocessing.resize, preprocessing.interpolation, preprocessing.mean, preprocessing.std
    )?;
    for reason in model.layers_in_floats() {
        writeln!(out, "in floats: {reason}")?;
    }
    print_graph(model.graph()?)
}

/// The plan for a GPU that need not be there.
fn planned(args: &InspectArgs, gpu: KnownGpu, graph: &Graph, preprocessing: &Preprocessing) -> Result<(Plan, Steps)> {
    let limits = match gpu {
        KnownGpu::A100 => Limits::a100(),
        KnownGpu::H100 => Limits::h100(),
        KnownGpu::H100Pcie => Limits::h100_pcie(),
        KnownGpu::H200 => Limits::h200(),
        KnownGpu::B200 => Limits::b200(),
        KnownGpu::L4 => Limits::l4(),
        KnownGpu::L40s => Limits::l40s(),
        KnownGpu::Rtx4090 => Limits::rtx4090(),
        KnownGpu::Rtx5090 => Limits::rtx5090(),
    };
    let (batch, input, output) =
        (args.at.batch().unwrap_or(args.batch), InputFormat::default(), OutputKind::Probabilities);
    let choices = Choices::new();
    let plan = plan::plan(graph, &Request { limits: &limits, batch, input, preprocessing, output, choices: &choices })?;
    let plan = match args.kernels.lanes {
        Some(lanes) => plan.with_lanes(lanes),
        None => plan,
    };
    let steps = Steps::planned(&plan);
    Ok((plan, steps))
}

/// The plan for a device that is there, measured on a GPU.
fn on_device(args: &InspectArgs, model: &Model) -> Result<(Plan, Steps)> {
    let device = setup::open_device(args.device)?;
    let ring = Ring {
        sizes: Sizes::Exactly(vec![args.at.batch().unwrap_or(args.batch)]),
        slots: 1,
        compute_streams: 1,
        producers: 1,
        output: OutputKind::Probabilities,
        kernels: args.kernels,
    };
    let builder = setup::engine_builder(model, &device, &ring);
    if setup::is_cpu(&device) {
        let plan = builder.plans()?.swap_remove(0);
        let steps = Steps::planned(&plan);
        return Ok((plan, steps));
    }
    let times = setup::seen("steps    building and timing: {elapsed}", || builder.measure_steps(args.runs))?;
    let steps = if times.steps.is_empty() { Steps::planned(&times.plan) } else { Steps::measured(&times) };
    Ok((times.plan, steps))
}

/// The graph before any rewrite, one node a line.
fn print_graph(graph: &Graph) -> Result<()> {
    let shapes = model::infer(graph)?;
    let params = model::params(graph)?;
    let elems: HashMap<&str, usize> = params.iter().map(|(name, dims)| (*name, dims.iter().product())).collect();
    let mut out = io::stdout();
    let (mut total, mut counted) = (0, HashSet::new());
    writeln!(out, "{:>4}  {:<32} {:<28} {:>14} {:>12}  reads", "#", "node", "operation", "output", "parameters")?;
    for (index, (node, shape)) in graph.nodes.iter().zip(&shapes).enumerate() {
        let tensors = tensors(&node.op);
        let parameters: usize = tensors.iter().filter_map(|name| elems.get(name)).sum();
        total += tensors.iter().filter(|name| counted.insert(**name)).filter_map(|name| elems.get(name)).sum::<usize>();
        let reads: Vec<String> = node.inputs.iter().map(|id| id.0.to_string()).collect();
        let (name, op, shape) = (&node.name, operation(&node.op), shape.to_string());
        let line = format!("{index:>4}  {name:<32} {op:<28} {shape:>14} {parameters:>12}  {}", reads.join(", "));
        writeln!(out, "{}", line.trim_end())?;
    }
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

/// The operation with what matters of its attributes.
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
