//! A problem: a graph of one or a few operations, weights, rows, and how to run and compare it on a device.

use std::sync::OnceLock;

use half::f16;
use trefoil::graph::Graph;
use trefoil::model::images::{Conv2d, Network, Node, NodeId, Op, Window, infer, optimize};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::plan::{
    ChainTile, Choices, ConvTile, DepthwiseTile, Family, Kernel, Limits, LinearTile, Request, StemTile, StepOp,
    TailTile, plan as plan_with,
};
use trefoil::{Activation, Batch, Device, Dtype, Engine, InputFormat, Output, OutputKind, Precision, Tuning};

use super::reference::{Arithmetic, emit, run_graph};
use super::tolerance::{Expected, Growth, Storage, U32};

/// A graph with weights and rows that can be run and compared.
pub struct Case {
    pub name: String,
    /// The graph of values.
    pub graph: Graph,
    /// The network of images that is found in the graph.
    pub network: Network,
    pub weights: Weights,
    pub preprocessing: Preprocessing,
    pub input: InputFormat,
    pub output: OutputKind,
    pub growth: Growth,
    /// Each row's values in NHWC: bytes for `U8Nhwc`, else numbers that f16 represents exactly.
    pub rows: Vec<Vec<f64>>,
    /// The reference's result of each row, for f32, f16, and operands of f16 and of bf16: computed by the first run
    /// that is compared.
    pub expected: [OnceLock<Vec<Expected>>; 4],
}

/// An operation with its sizes, from which a case is made.
pub trait Problem {
    fn case(&self) -> Case;
}

impl Case {
    /// A case of float inputs whose output is the graph's value.
    pub fn new(name: String, graph: Graph, tensors: Tensors, rows: Vec<Vec<f64>>) -> Self {
        let network = Network::of(&graph).expect("a problem's graph is a network of images");
        Self {
            name,
            preprocessing: Preprocessing::new(network.input),
            graph,
            network,
            weights: Weights::from_tensors(tensors).expect("a test's tensors are well-formed"),
            input: InputFormat::F16Nhwc,
            output: OutputKind::Features,
            growth: Growth::Worst,
            rows,
            expected: Default::default(),
        }
    }

    /// A choice of `kernel` for every step whose operation satisfies `of`; `None` if there is none.
    fn choices_of(&self, kernel: Kernel, of: impl Fn(&Op) -> bool) -> Option<Choices> {
        let graph = optimize(&self.network);
        let steps = graph.nodes.iter().filter(|node| of(&node.op));
        let choices: Choices = steps.map(|node| (node.name.clone(), kernel)).collect();
        (!choices.is_empty()).then_some(choices)
    }

    /// A choice of `kernel` for every dense convolution; `None` if there is none.
    pub fn choices(&self, kernel: Kernel) -> Option<Choices> {
        self.choices_of(kernel, |op| matches!(op, Op::Conv2d(conv) if conv.groups == 1))
    }

    /// A choice of an sm90 kernel for every dense convolution, with each convolution joined to the one that adds its
    /// result; `None` if no convolution can be joined, or for other kernels.
    fn joined_choices(&self, kernel: Kernel) -> Option<Choices> {
        let graph = optimize(&self.network);
        let mut choices = self.choices(kernel)?;
        let mut any = false;
        for (host, added) in joinable(&graph) {
            any = true;
            choices.insert(graph.nodes[host].name.clone(), kernel);
            choices.insert(graph.nodes[added].name.clone(), Kernel::Joined);
        }
        (any && matches!(kernel, Kernel::Sm90Conv { .. })).then_some(choices)
    }

    /// A choice of the halo kernel for every convolution of 3x3 windows of few channels; empty if there is none.
    fn halo_choices(&self) -> Choices {
        let graph = optimize(&self.network);
        let shapes = infer(&graph).expect("a case's graph has shapes");
        let computes = |node: &&Node| match &node.op {
            Op::Conv2d(Conv2d { window, groups: 1, .. }) => {
                let channels = shapes[node.inputs[0].0].channels;
                window.size == [3; 2] && window.stride == [1; 2] && window.dilation == [1; 2] && channels <= 64
            }
            _ => false,
        };
        graph.nodes.iter().filter(computes).map(|node| (node.name.clone(), Kernel::Sm90Halo)).collect()
    }

    /// A choice of the chain kernel for every pair of 1x1 convolutions where the second is the only reader of the
    /// first, with the convolutions that they add joined; empty if there is no pair.
    fn chain_choices(&self, tile: ChainTile) -> Choices {
        let graph = optimize(&self.network);
        let single = |index: usize| match &graph.nodes[index].op {
            Op::Conv2d(conv) => conv.groups == 1 && conv.window == Window::square(1, 1, 0),
            _ => false,
        };
        let joinable: Vec<(usize, usize)> = joinable(&graph);
        let mut nexts = Vec::new();
        let mut choices = Choices::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            let &[NodeId(first)] = &node.inputs[..] else { continue };
            let is_added = |of: usize| joinable.iter().any(|&(_, added)| added == of);
            let is_first = single(index) && single(first) && !nexts.contains(&first);
            let name = &graph.nodes[first].name;
            if !is_first || is_added(index) || is_added(first) || choices.contains_key(name) {
                continue;
            }
            nexts.push(index);
            choices.insert(name.clone(), Kernel::Sm90Chain(tile));
            let added = joinable.iter().filter(|&&(host, _)| host == first);
            choices.extend(added.map(|&(_, added)| (graph.nodes[added].name.clone(), Kernel::Joined)));
        }
        choices
    }

    /// Every choice of kernels on `limits`, by name: first the planner's choice, with an empty name.
    pub fn all_choices(&self, limits: &Limits) -> Vec<(String, Choices)> {
        let mut all = vec![(String::new(), Choices::new())];
        for kernel in Kernel::of_convolutions(limits) {
            all.extend(self.choices(kernel).map(|choices| (format!(", kernel {kernel}"), choices)));
            all.extend(self.joined_choices(kernel).map(|choices| (format!(", joined, kernel {kernel}"), choices)));
        }
        let halo = self.halo_choices();
        all.extend((!halo.is_empty() && limits.has_sm90_kernels()).then(|| (format!(", {}", Kernel::Sm90Halo), halo)));
        let request = Request {
            limits,
            batch: self.rows.len(),
            input: self.input,
            preprocessing: &self.preprocessing,
            output: self.output,
            choices: &Choices::new(),
        };
        for kernel in ConvTile::LINEAR.map(Kernel::Sm80Gemm).into_iter().filter(|_| limits.family == Family::Sm80) {
            let choices = self.choices_of(kernel, |op| matches!(op, Op::Linear(_)));
            all.extend(choices.map(|choices| (format!(", linear kernel {kernel}"), choices)));
        }
        for tile in LinearTile::ALL.into_iter().filter(|_| limits.has_sm90_kernels()) {
            let kernel = Kernel::Sm90Linear(tile);
            let Some(choices) = self.choices_of(kernel, |op| matches!(op, Op::Linear(_))) else { continue };
            // A layer of many channels does not fit into shared memory.
            let fits = plan_with(&self.network, &Request { choices: &choices, ..request.clone() }).is_ok();
            all.extend(fits.then(|| (format!(", kernel {kernel}"), choices)));
        }
        let plan =
            plan_with(&without_classifier_for(self.output, &self.network), &request).expect("a case can be planned");
        if let StepOp::Stem(_) = &plan.steps[0].op {
            let rows = [1, 2, 5, 1 << 13];
            let tiles = StemTile::COLUMNS.into_iter().flat_map(|columns| rows.map(|rows| StemTile { columns, rows }));
            all.extend(
                tiles.map(Kernel::Sm90Stem).map(|kernel| {
                    (format!(", kernel {kernel}"), Choices::from([(plan.steps[0].name.clone(), kernel)]))
                }),
            );
        }
        let most = self.rows.len().min(TailTile::IMAGES[1]);
        let images = [1, 3, 8, 9, 16].into_iter().filter(|&images| images <= most);
        for tile in images.flat_map(|images| TailTile::BLOCKS.map(|blocks| TailTile { images, blocks })) {
            let kernel = Kernel::Sm90Tail(tile);
            let Some(choices) = self.choices_of(kernel, |op| matches!(op, Op::Linear(_))) else { continue };
            // Some networks do not end in a classifier, and many images of many channels do not fit into shared memory.
            let fits = plan_with(&self.network, &Request { choices: &choices, ..request.clone() }).is_ok();
            all.extend(fits.then(|| (format!(", kernel {kernel}"), choices)));
        }
        if let Some(choices) = self.choices_of(Kernel::Sm90MeanLinear, |op| matches!(op, Op::Linear(_))) {
            // It is for few images.
            let fits = plan_with(&self.network, &Request { choices: &choices, ..request.clone() }).is_ok();
            all.extend(fits.then(|| (format!(", kernel {}", Kernel::Sm90MeanLinear), choices)));
        }
        for tile in ChainTile::ALL.into_iter().filter(|_| limits.has_sm90_kernels()) {
            let choices = self.chain_choices(tile);
            // Large tiles do not fit into shared memory if there are many channels.
            let graph = without_classifier_for(self.output, &self.network);
            let fits = plan_with(&graph, &Request { choices: &choices, ..request.clone() }).is_ok();
            all.extend((!choices.is_empty() && fits).then(|| (format!(", chain {tile}"), choices)));
        }
        let is_sm90 = |kernel| matches!(kernel, Kernel::Sm90Depthwise(_) | Kernel::Sm90Expand(_));
        let depthwise = plan.steps.iter().filter(|step| is_sm90(step.kernel)).map(|step| &step.name);
        let depthwise: Vec<&String> = depthwise.collect();
        let expandable = expandable(&optimize(&self.network));
        for kernel in depthwise_kernels() {
            let has = |name: &&&String| !matches!(kernel, Kernel::Sm90Expand(_)) || expandable.contains(**name);
            let choices: Choices = depthwise.iter().filter(has).map(|name| ((*name).clone(), kernel)).collect();
            // Large tiles do not fit into shared memory if a convolution of many channels is in front.
            let graph = without_classifier_for(self.output, &self.network);
            let fits = plan_with(&graph, &Request { choices: &choices, ..request.clone() }).is_ok();
            all.extend((!choices.is_empty() && fits).then(|| (format!(", kernel {kernel}"), choices)));
        }
        all
    }

    /// Runs the case on `device` and compares every row with the reference, and with another run bit by bit. Before
    /// that, the device's memory holds the values of a run on other rows: NaN for float inputs, so that a wrong read
    /// gives NaN.
    pub fn run(&self, device: &Device, choices: Choices) -> Result<(), String> {
        self.run_in(Precision::Auto, device, choices)
    }

    /// Runs the case in this precision, like `run`.
    pub fn run_in(&self, precision: Precision, device: &Device, choices: Choices) -> Result<(), String> {
        let tell = |e: trefoil::Error| format!("{}, {precision:?}: {e}", self.name);
        let engine = self.build(precision, device, choices).map_err(tell)?;
        let computed = || self.submit(&engine, |batch| self.fill(batch)).map_err(tell);
        let output = if runs_once() {
            computed()?
        } else {
            self.submit(&engine, |batch| batch.rows_mut().for_each(|row| row.fill(0xff))).map_err(tell)?;
            let (output, again) = (computed()?, computed()?);
            if let Some(row) = (0..self.rows.len()).find(|&row| output.row(row) != again.row(row)) {
                return Err(format!("{}, row {row}: another run gives other bits", self.name));
            }
            output
        };
        let storage = match (precision, device.info().target == "cpu") {
            (Precision::F32, _) | (Precision::Auto, true) => Storage::F32,
            (Precision::F16 | Precision::Auto, false) => Storage::F16,
            (Precision::F16, true) => Storage::Operands(Dtype::F16),
            (Precision::Bf16, _) => Storage::Operands(Dtype::Bf16),
            (Precision::Checkpoint, _) => unreachable!("its weights are f32, which is a precision"),
        };
        for row in 0..self.rows.len() {
            self.check(storage, row, &output).map_err(|e| format!("{}, row {row}: {e}", self.name))?;
        }
        Ok(())
    }

    /// Builds an engine for all rows at once.
    pub fn build(&self, precision: Precision, device: &Device, choices: Choices) -> Result<Engine, trefoil::Error> {
        let model = Model::new(self.graph.clone(), self.weights_again(), self.preprocessing.clone(), Vec::new())?;
        Engine::builder(&model)
            .on(device)
            .batch_sizes(&[self.rows.len()])
            .tuning(Tuning::Off)
            .slots(1)
            .staging(1)
            .results(2)
            .input(self.input)
            .output(self.output)
            .choices(choices)
            .precision(precision)
            .check(true)
            .build()
    }

    /// Checks that the reference for f16 is near the one for f32: within 2 % of the largest value and within the
    /// tolerance.
    pub fn check_references(&self) -> Result<(), String> {
        let values = |storage| {
            let how = Arithmetic { storage, growth: self.growth };
            let values = run_graph(&self.network, &self.weights, &self.normalized(0), how);
            let at = if storage == Storage::F32 { self.network.output } else { optimize(&self.network).output };
            values[at.0].clone()
        };
        let (exact, halves) = (values(Storage::F32), values(Storage::F16));
        let largest = exact.values.iter().fold(0.0_f64, |largest, v| largest.max(v.abs()));
        for (i, (a, b)) in exact.values.iter().zip(&halves.values).enumerate() {
            let limit = 0.02 * largest + self.growth.limit(halves.errors[i]);
            if exact.shape != halves.shape || (a - b).abs() > limit {
                return Err(format!("{}, element {i}: {a:e} in f32, {b:e} in f16", self.name));
            }
        }
        Ok(())
    }

    fn submit(&self, engine: &Engine, fill: impl Fn(&mut Batch)) -> Result<Output, trefoil::Error> {
        let mut batch = engine.acquire()?;
        fill(&mut batch);
        batch.submit(self.rows.len())?.wait()
    }

    /// A copy of the weights: a model takes its weights, and the reference reads them too.
    fn weights_again(&self) -> Weights {
        let tensors = self.weights.names().map(|name| {
            let dims = self.weights.dims(name).expect("a name has dimensions").to_vec();
            let mut values = vec![0.0; dims.iter().product()];
            self.weights.read_f32(name, &dims, &mut values).expect("a test's weights can be read");
            (name.to_owned(), dims, values)
        });
        Weights::from_tensors(tensors.collect::<Vec<_>>()).expect("they were well-formed")
    }

    fn fill(&self, batch: &mut Batch) {
        let shape = self.network.input;
        for (bytes, values) in batch.rows_mut().zip(&self.rows) {
            match self.input {
                InputFormat::U8Nhwc => bytes.iter_mut().zip(values).for_each(|(byte, v)| *byte = *v as u8),
                InputFormat::F16Nhwc => {
                    for (bytes, value) in bytes.chunks_exact_mut(2).zip(values) {
                        bytes.copy_from_slice(&f16::from_f64(*value).to_le_bytes());
                    }
                }
                InputFormat::F32Nhwc => {
                    for (bytes, value) in bytes.chunks_exact_mut(4).zip(values) {
                        bytes.copy_from_slice(&(*value as f32).to_le_bytes());
                    }
                }
                InputFormat::F32Nchw => {
                    for (i, bytes) in bytes.chunks_exact_mut(4).enumerate() {
                        let (c, pixel) = (i / shape.pixels(), i % shape.pixels());
                        let value = values[pixel * shape.channels + c] as f32;
                        bytes.copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
    }

    /// The exact result of the first step, with its rounding error.
    fn normalized(&self, row: usize) -> Expected {
        let shape = self.network.input;
        let values = self.rows[row].clone();
        let Preprocessing { mean, std, .. } = &self.preprocessing;
        if self.input != InputFormat::U8Nhwc {
            return Expected { shape, errors: vec![0.0; values.len()], values };
        }
        let of = |(i, byte): (usize, &f64)| {
            let (mean, std) = (f64::from(mean[i % shape.channels]), f64::from(std[i % shape.channels]));
            // A term has four roundings: 1 / 255, the product, the difference, and the quotient or factor; and one
            // more.
            ((byte / 255.0 - mean) / std, 5.0 * U32 * (byte / 255.0 + mean.abs()) / std.abs())
        };
        let (values, errors) = values.iter().enumerate().map(of).unzip();
        Expected { shape, values, errors }
    }

    fn expected(&self, storage: Storage) -> &[Expected] {
        let of_row = |row| {
            let how = Arithmetic { storage, growth: self.growth };
            let graph = without_classifier_for(self.output, &self.network);
            let mut values = run_graph(&graph, &self.weights, &self.normalized(row), how);
            let result = match storage {
                Storage::F32 | Storage::Operands(_) => graph.output,
                Storage::F16 => optimize(&graph).output,
            };
            values.swap_remove(result.0)
        };
        let kept = &self.expected[match storage {
            Storage::F32 => 0,
            Storage::F16 => 1,
            Storage::Operands(Dtype::F16) => 2,
            Storage::Operands(_) => 3,
        }];
        kept.get_or_init(|| (0..self.rows.len()).map(of_row).collect())
    }

    fn check(&self, storage: Storage, row: usize, output: &Output) -> Result<(), String> {
        let result = &self.expected(storage)[row];
        match self.output {
            OutputKind::TopK(k) => {
                let pairs = output.top_k(row, k).map_err(|error| error.to_string())?;
                check_top_k(k, self.growth, result, &pairs)
            }
            kind => emit(kind, result).check(self.growth, output.values(row)),
        }
    }
}

/// Whether cases run as little as they can, for a tool that is slow: by the variable TREFOIL_ONCE.
pub fn runs_once() -> bool {
    std::env::var_os("TREFOIL_ONCE").is_some()
}

/// The depthwise kernel for any GPU, and those of Hopper with small and large tiles of both units, alone and with the
/// 1x1 convolution in front.
fn depthwise_kernels() -> impl Iterator<Item = Kernel> {
    let tiles = [[2, 7], [1, 4]].into_iter().flat_map(|[rows, columns]| {
        [[1, 1], [3, 2], [8, 1], [5, 4]].map(|[down, right]| DepthwiseTile {
            rows: down * rows,
            columns: right * columns,
            unit: [rows, columns],
        })
    });
    let sm90 = tiles.flat_map(|tile| [Kernel::Sm90Depthwise(tile), Kernel::Sm90Expand(tile)]);
    [Kernel::Sm80].into_iter().chain(sm90)
}

/// Names of depthwise convolutions of a rewritten graph that are the only readers of a dense 1x1 convolution's result.
fn expandable(graph: &Network) -> Vec<String> {
    let uses = graph.use_counts();
    let dense = |index: usize| match &graph.nodes[index].op {
        Op::Conv2d(Conv2d { window, groups, .. }) => *groups == 1 && *window == Window::square(1, 1, 0),
        _ => false,
    };
    let reads_it = |node: &&Node| match (&node.op, &node.inputs[..]) {
        (Op::Conv2d(conv), &[NodeId(from)]) => {
            conv.groups > 1 && dense(from) && uses[from] == 1 && graph.nodes[from].inputs.len() == 1
        }
        _ => false,
    };
    graph.nodes.iter().filter(reads_it).map(|node| node.name.clone()).collect()
}

/// Pairs of dense convolutions of a rewritten graph: one that adds another's result as its only reader, and the other.
pub fn joinable(graph: &Network) -> Vec<(usize, usize)> {
    let uses = graph.use_counts();
    let dense = |index: usize| match &graph.nodes[index].op {
        Op::Conv2d(conv) => conv.groups == 1,
        _ => false,
    };
    let plain = |index: usize| match &graph.nodes[index].op {
        Op::Conv2d(conv) => conv.activation == Activation::None && graph.nodes[index].inputs.len() == 1,
        _ => false,
    };
    let added = |host: usize| Some(graph.nodes[host].inputs.get(1)?.0);
    let pairs = (0..graph.nodes.len()).filter(|&host| dense(host)).filter_map(|host| Some((host, added(host)?)));
    pairs.filter(|&(_, added)| dense(added) && plain(added) && uses[added] == 1).collect()
}

/// Tensors by name, as [`Weights::from_tensors`] takes them.
pub type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn without_classifier_for(output: OutputKind, graph: &Network) -> Network {
    match output {
        OutputKind::Features => without_classifier(graph),
        _ => graph.clone(),
    }
}

/// The network without the classifier at its end: its result is the features.
fn without_classifier(graph: &Network) -> Network {
    let last = &graph.nodes[graph.output.0];
    let NodeId(output) = if matches!(last.op, Op::Linear(_)) { last.inputs[0] } else { graph.output };
    graph.cut(NodeId(output))
}

/// Checks that the pairs are k different classes, each with its probability, in an order that errors of the logits
/// allow, ties by the lower index, and that no class that is left out is better than one that is there.
fn check_top_k(k: usize, growth: Growth, logits: &Expected, pairs: &[(usize, f32)]) -> Result<(), String> {
    if pairs.len() != k {
        return Err(format!("{} pairs instead of {k}", pairs.len()));
    }
    let probabilities = emit(OutputKind::Probabilities, logits);
    let mut listed: Vec<usize> = pairs.iter().map(|pair| pair.0).collect();
    for &(class, p) in pairs {
        let Some(expected) = probabilities.values.get(class) else { return Err(format!("class {class} of {pairs:?}")) };
        let limit = growth.limit(probabilities.errors[class]);
        if !p.is_finite() || (f64::from(p) - expected).abs() > limit {
            return Err(format!("class {class} has probability {p:e}, expected {expected:e} +- {limit:.1e}"));
        }
    }
    let out_of_order = |a: usize, b: usize| {
        let margin = growth.limit(logits.errors[a]) + growth.limit(logits.errors[b]);
        let (x, y) = (logits.values[a], logits.values[b]);
        // Logits that are equal sums are equal on a device too.
        x < y - margin || (x == y && a > b)
    };
    let left_out = (0..logits.values.len()).filter(|class| !listed.contains(class));
    let last = *listed.last().ok_or("no pairs")?;
    if let Some(better) = left_out.into_iter().find(|&class| out_of_order(last, class)) {
        return Err(format!("class {better} is missing from {pairs:?}"));
    }
    if let Some(pair) = listed.windows(2).find(|pair| out_of_order(pair[0], pair[1])) {
        return Err(format!("classes {pair:?} are out of order in {pairs:?}"));
    }
    listed.sort_unstable();
    listed.dedup();
    if listed.len() < k { Err(format!("a class is there twice: {pairs:?}")) } else { Ok(()) }
}
