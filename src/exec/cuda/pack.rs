//! Weights as the kernels want them: folded, halved, channels innermost and padded, all in one buffer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::thread;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::Error;
use crate::model::{Conv2d, Linear, Model, fold_conv, read_linear};
use crate::plan::{Plan, Stem, StemLayers, Step, StepOp, Tail, TensorId};
use crate::sync::{Mutex, lock};
use crate::tensor::Dtype;

/// Every filter and bias starts at a multiple of this.
const ALIGN: usize = 256;

/// Where the weights of all steps of all plans of a model lie in the buffer. What plans share is there once.
pub(super) struct Layout {
    places: HashMap<Part, Placed>,
    bytes: usize,
}

/// Where a part lies, and what it is made of: with the weights' source and the part, all that its bytes depend on.
struct Placed {
    offset: usize,
    /// The layers in it: what each computes, its input's channels and stored channels, its output's stored channels.
    of: Vec<(StepOp, [usize; 3])>,
}

/// What has a place of its own: a node that kernels want in several ways has several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Part {
    /// A node's filter, padding included.
    Filter { node: String, order: FilterOrder, dtype: Dtype },
    /// The sum of some nodes' biases, one value for each stored output channel.
    Bias { nodes: Vec<String>, dtype: Dtype },
}

/// How a filter's values follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FilterOrder {
    /// `[K][taps][C]`, of a dense convolution or a linear layer.
    Dense,
    /// `[taps][K]`.
    Depthwise,
    /// As the stem kernel reads them, with the bias in f32 behind.
    Stem,
}

/// A node with weights, of a step that computes one or more.
struct Layer<'a> {
    name: &'a str,
    weights: Weights<'a>,
    input: TensorId,
    output: TensorId,
}

enum Weights<'a> {
    Stem(&'a Stem),
    Dense(&'a Conv2d),
    Depthwise(&'a Conv2d),
    Linear(&'a Linear),
    Tail(&'a Tail),
}

impl Layer<'_> {
    /// Input channels that each output channel has a weight of, and as how many they are stored.
    fn channels(&self, plan: &Plan) -> [usize; 2] {
        let input = &plan.tensors[self.input.0];
        match self.weights {
            Weights::Depthwise(_) => [1; 2],
            Weights::Stem(_) | Weights::Dense(_) | Weights::Linear(_) | Weights::Tail(_) => {
                [input.shape.channels, input.stored_channels]
            }
        }
    }

    /// What its weights in a plan depend on.
    fn made_of(&self, plan: &Plan) -> (StepOp, [usize; 3]) {
        let op = match self.weights {
            Weights::Stem(stem) => StepOp::Stem(stem.clone()),
            Weights::Dense(conv) => StepOp::Conv(conv.clone()),
            Weights::Depthwise(conv) => StepOp::Depthwise(conv.clone()),
            Weights::Linear(linear) | Weights::Tail(Tail { linear, .. }) => StepOp::Linear(linear.clone()),
        };
        let [c, c_stored] = self.channels(plan);
        (op, [c, c_stored, self.k_stored(plan)])
    }

    fn part(&self) -> Part {
        Part::Filter { node: self.name.to_owned(), order: self.order(), dtype: Dtype::F16 }
    }

    fn order(&self) -> FilterOrder {
        match self.weights {
            Weights::Stem(_) => FilterOrder::Stem,
            Weights::Depthwise(_) => FilterOrder::Depthwise,
            Weights::Dense(_) | Weights::Linear(_) | Weights::Tail(_) => FilterOrder::Dense,
        }
    }

    /// Output channels as they are stored.
    fn k_stored(&self, plan: &Plan) -> usize {
        match self.weights {
            Weights::Tail(tail) => tail.k_stored(),
            Weights::Stem(_) | Weights::Dense(_) | Weights::Depthwise(_) | Weights::Linear(_) => {
                stored(plan, self.output)
            }
        }
    }

    /// Bytes of the filter, padding included, and of a stem's bias.
    fn weight_bytes(&self, plan: &Plan) -> usize {
        let ([_, c], k) = (self.channels(plan), self.k_stored(plan));
        match self.weights {
            Weights::Stem(stem) => stem_layers(stem).weight_bytes(),
            Weights::Dense(conv) => 2 * k * taps(conv.window.size) * c,
            Weights::Depthwise(conv) => 2 * taps(conv.window.size) * k,
            Weights::Linear(_) | Weights::Tail(_) => 2 * k * c,
        }
    }
}

impl Layout {
    /// Lays out the weights of `plans`.
    ///
    /// # Errors
    /// [`Error::Internal`] if plans store a layer in different ways: the kernels of one would read what another's want.
    pub(super) fn new(plans: &[Plan]) -> Result<Self, Error> {
        let mut this = Self { places: HashMap::new(), bytes: 0 };
        for (plan, step) in steps(plans) {
            for layers in sums(step) {
                let made_of = |layers: &[Layer<'_>]| layers.iter().map(|layer| layer.made_of(plan)).collect();
                for layer in &layers {
                    this.place(layer.part(), layer.weight_bytes(plan), made_of(std::slice::from_ref(layer)))?;
                }
                if let Some(bias) = bias_of(&layers) {
                    this.place(bias, 4 * layers[0].k_stored(plan), made_of(&layers))?;
                }
            }
        }
        Ok(this)
    }

    /// Gives a part its place. What plans have in common is made of the same in all of them.
    fn place(&mut self, part: Part, bytes: usize, of: Vec<(StepOp, [usize; 3])>) -> Result<(), Error> {
        match self.places.entry(part) {
            Entry::Vacant(entry) => {
                entry.insert(Placed { offset: self.bytes, of });
                self.bytes = (self.bytes + bytes).next_multiple_of(ALIGN);
            }
            Entry::Occupied(entry) if entry.get().of != of => {
                let (part, there) = (entry.key(), &entry.get().of);
                return Err(Error::Internal {
                    what: format!("{part:?} is made of {there:?} in one plan, of {of:?} in another"),
                });
            }
            Entry::Occupied(_) => (),
        }
        Ok(())
    }

    /// Whether all that `other` places is here, made of the same, wherever it lies.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.places.iter().all(|(part, theirs)| self.places.get(part).is_some_and(|mine| mine.of == theirs.of))
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Byte offset of the filter of a node that a step computes.
    pub(super) fn filter(&self, step: &Step, node: &str) -> usize {
        let layer = sums(step).into_iter().flatten().find(|layer| layer.name == node);
        self.places[&layer.expect("the step has such a filter").part()].offset
    }

    /// Byte offset of the bias of one of a step's sums; most have one.
    pub(super) fn bias(&self, step: &Step, sum: usize) -> usize {
        self.places[&bias_of(&sums(step)[sum]).expect("the step has a bias")].offset
    }

    /// Reads, folds and repacks the weights of `plans` into `bytes`, the whole buffer, which is zeros before. Layers are
    /// packed on several threads.
    pub(super) fn fill(&self, model: &Model, plans: &[Plan], bytes: &mut [u8]) -> Result<(), Error> {
        let mut targets = self.split(bytes);
        let mut filters = HashMap::new();
        for (plan, step) in steps(plans) {
            for layer in sums(step).into_iter().flatten() {
                if let Some(target) = targets.remove(&layer.part()) {
                    filters.insert(layer.part(), Filter { plan, layer, target });
                }
            }
        }
        let biases = fill_filters(model, filters.into_values().collect())?;
        for (plan, step) in steps(plans) {
            for layers in sums(step) {
                let Some(target) = bias_of(&layers).and_then(|bias| targets.remove(&bias)) else { continue };
                let mut sum = vec![0.0; layers[0].k_stored(plan)];
                for layer in &layers {
                    sum.iter_mut().zip(&biases[&layer.part()]).for_each(|(sum, value)| *sum += value);
                }
                for (target, value) in target.chunks_exact_mut(4).zip(&sum) {
                    target.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
        Ok(())
    }

    /// The place of each part.
    fn split<'a>(&self, mut bytes: &'a mut [u8]) -> HashMap<Part, &'a mut [u8]> {
        let mut parts: Vec<(usize, &Part)> = self.places.iter().map(|(part, place)| (place.offset, part)).collect();
        parts.sort_unstable_by_key(|(offset, _)| *offset);
        let mut split = HashMap::new();
        for (offset, part) in parts.into_iter().rev() {
            let (before, of_part) = bytes.split_at_mut(offset);
            split.insert(part.clone(), of_part);
            bytes = before;
        }
        split
    }
}

/// A filter that is to be packed into its place.
struct Filter<'a> {
    plan: &'a Plan,
    layer: Layer<'a>,
    target: &'a mut [u8],
}

/// Packs the filters, the largest first, on as many threads as there are cores; gives each one's bias.
fn fill_filters(model: &Model, mut filters: Vec<Filter<'_>>) -> Result<HashMap<Part, Vec<f32>>, Error> {
    filters.sort_by_key(|filter| std::cmp::Reverse(filter.target.len()));
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(filters.len());
    let filters = Mutex::new(filters.into_iter());
    let next = || lock(&filters).next();
    let work = || -> Result<Vec<(Part, Vec<f32>)>, Error> {
        let mut biases = Vec::new();
        while let Some(Filter { plan, layer, target }) = next() {
            biases.push((layer.part(), fill_layer(model, plan, &layer, target)?));
        }
        Ok(biases)
    };
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut biases: HashMap<_, _> = work()?.into_iter().collect();
        for other in others {
            biases.extend(other.join().expect("packing does not panic")?);
        }
        Ok(biases)
    })
}

/// Beyond so many threads the memory is what takes the time.
const MOST_THREADS: usize = 16;

fn steps(plans: &[Plan]) -> impl Iterator<Item = (&Plan, &Step)> {
    plans.iter().flat_map(|plan| plan.steps.iter().map(move |step| (plan, step)))
}

/// The nodes with weights that `step` computes: those that go into one sum together.
fn sums(step: &Step) -> Vec<Vec<Layer<'_>>> {
    let layer = |name, weights, input: usize| Layer { name, weights, input: step.inputs[input], output: step.output };
    match &step.op {
        StepOp::Stem(stem) => vec![vec![layer(&step.name, Weights::Stem(stem), 0)]],
        StepOp::Conv(conv) => vec![vec![layer(&step.name, Weights::Dense(conv), 0)]],
        StepOp::ConvSum { conv, joined } => {
            vec![vec![layer(&step.name, Weights::Dense(conv), 0), layer(&joined.name, Weights::Dense(&joined.conv), 1)]]
        }
        StepOp::Chain { conv, joined, next } => {
            let joined = joined.iter().map(|joined| layer(&joined.name, Weights::Dense(&joined.conv), 1));
            let first = [layer(&step.name, Weights::Dense(conv), 0)].into_iter().chain(joined);
            let also = step.also.expect("a chain has a second result");
            let next =
                Layer { name: &next.name, weights: Weights::Dense(&next.conv), input: step.output, output: also };
            vec![first.collect(), vec![next]]
        }
        StepOp::Depthwise(conv) => vec![vec![layer(&step.name, Weights::Depthwise(conv), 0)]],
        StepOp::ExpandDepthwise { expand, conv } => vec![
            vec![layer(&step.name, Weights::Depthwise(conv), 0)],
            vec![layer(&expand.name, Weights::Dense(&expand.conv), 0)],
        ],
        StepOp::Linear(linear) => vec![vec![layer(&step.name, Weights::Linear(linear), 0)]],
        StepOp::Tail(tail) => vec![vec![layer(&step.name, Weights::Tail(tail), 0)]],
        StepOp::Normalize { .. }
        | StepOp::MaxPool(_)
        | StepOp::AvgPool(_)
        | StepOp::GlobalAvgPool
        | StepOp::Add(_)
        | StepOp::Emit(_) => Vec::new(),
    }
}

/// The bias that is read beside the filters, if there is one.
fn bias_of(layers: &[Layer<'_>]) -> Option<Part> {
    let apart = |layer: &Layer<'_>| layer.order() != FilterOrder::Stem;
    let nodes = || layers.iter().map(|layer| layer.name.to_owned()).collect();
    let bias = || Part::Bias { nodes: nodes(), dtype: Dtype::F32 };
    (!layers.is_empty() && layers.iter().all(apart)).then(bias)
}

/// Writes the filter of `layer` at the start of `target`, which is zeros before or the same; gives the bias.
fn fill_layer(model: &Model, plan: &Plan, layer: &Layer<'_>, target: &mut [u8]) -> Result<Vec<f32>, Error> {
    let [c, c_stored] = layer.channels(plan);
    let k_stored = layer.k_stored(plan);
    let (filter, bias, shape) = match layer.weights {
        Weights::Depthwise(conv) => {
            let folded = fold_conv(model.weights(), conv, conv.groups)?;
            (folded.filter, folded.bias, [conv.out_channels, 1, taps(conv.window.size)])
        }
        Weights::Dense(conv) | Weights::Stem(Stem { conv, .. }) => {
            let folded = fold_conv(model.weights(), conv, c)?;
            (folded.filter, folded.bias, [conv.out_channels, c, taps(conv.window.size)])
        }
        Weights::Linear(linear) | Weights::Tail(Tail { linear, .. }) => {
            let (weight, bias) = read_linear(model.weights(), linear, c)?;
            (weight, bias, [linear.out_features, c, 1])
        }
    };
    let target = &mut target[..layer.weight_bytes(plan)];
    let [_, _, taps] = shape;
    let place = |k: usize, c: usize, tap: usize| match layer.weights {
        Weights::Stem(stem) => {
            let [_, s] = stem.conv.window.size;
            stem_layers(stem).filter_index([tap / s, tap % s], k, c)
        }
        // [K, 1, taps] → [taps][k_stored]
        Weights::Depthwise(_) => tap * k_stored + k,
        // [K, C, taps] → [K][taps][c_stored]
        Weights::Dense(_) | Weights::Linear(_) | Weights::Tail(_) => (k * taps + tap) * c_stored + c,
    };
    let mut halves = vec![f16::ZERO; filter.len()]; // [K][C][taps]
    halves.convert_from_f32_slice(&filter);
    if let Some(at) = halves.iter().position(|value| value.is_infinite()) {
        half(filter[at], layer.name)?;
    }
    let mut put = |index: usize, value: f16| target[2 * index..][..2].copy_from_slice(&value.to_le_bytes());
    let is_in_order = matches!(layer.weights, Weights::Dense(_) | Weights::Linear(_)) && taps == 1 && c == c_stored;
    if is_in_order {
        halves.iter().enumerate().for_each(|(index, value)| put(index, *value));
    } else {
        let mut source = halves.into_iter();
        for k in 0..shape[0] {
            for channel in 0..shape[1] {
                for tap in 0..taps {
                    put(place(k, channel, tap), source.next().expect("the filter has this shape"));
                }
            }
        }
    }
    if let Weights::Stem(stem) = layer.weights {
        let behind = target[2 * stem_layers(stem).filter_elems()..].chunks_exact_mut(4);
        behind.zip(&bias).for_each(|(target, value)| target.copy_from_slice(&value.to_le_bytes()));
    }
    Ok(bias)
}

fn stem_layers(stem: &Stem) -> StemLayers {
    stem.layers().expect("planned for what the kernel does")
}

/// Rounds a folded weight; one beyond the range of f16 would become infinity and is an error.
fn half(value: f32, node: &str) -> Result<f16, Error> {
    let rounded = f16::from_f32(value);
    if rounded.is_infinite() {
        return Err(Error::Unsupported {
            what: format!("node `{node}`: a weight of {value} after folding, beyond the range of f16,"),
            instead: "run it with `--device cpu`, which computes in f32".into(),
        });
    }
    Ok(rounded)
}

fn stored(plan: &Plan, id: TensorId) -> usize {
    plan.tensors[id.0].stored_channels
}

fn taps([r, s]: [usize; 2]) -> usize {
    r * s
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{GraphBuilder, Preprocessing, Weights, Window};
    use crate::plan::{Choices, Kernel, Limits, Request, plan};
    use crate::tensor::{InputFormat, OutputKind, Shape};

    /// A block whose shortcut is a convolution: joined to the last one in one plan, by itself in the other.
    #[test]
    fn every_part_is_in_its_place_whatever_the_plans_share() {
        let mut g = GraphBuilder::new(Shape::new(8, 8, 20));
        let x = g.conv2d("first", g.input(), 24, Window::square(3, 1, 1));
        let with_bias = |name: &str| Conv2d {
            bias: Some(format!("{name}.bias")),
            ..Conv2d::named(name, 16, Window::square(1, 1, 0))
        };
        let shortcut = g.conv2d_with("shortcut", g.input(), with_bias("shortcut"));
        let y = g.conv2d_with("last", x, with_bias("last"));
        let sum = g.add("sum", y, shortcut);
        let graph = g.finish(sum).unwrap();
        let value = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 64.0 - 0.75;
        let tensor = |name: &str, dims: Vec<usize>, seed| {
            (name.to_owned(), dims.clone(), (0..dims.iter().product()).map(value(seed)).collect::<Vec<f32>>())
        };
        let tensors = crate::model::params(&graph).unwrap();
        let tensors = tensors.iter().enumerate().map(|(seed, (name, dims))| tensor(name, dims.clone(), seed));
        let tensors: Vec<_> = tensors.collect();
        let read = |name: &str, index: usize| {
            let (_, _, values) = tensors.iter().find(|(tensor, ..)| tensor == name).unwrap();
            values[index]
        };
        let weights = Weights::from_tensors(tensors.clone()).unwrap();
        let model = Model::new(graph.clone(), weights, Preprocessing::new(graph.input), Vec::new()).unwrap();
        let limits = Limits::h200();
        let of = |shortcut: Option<Kernel>| {
            let choices: Choices = shortcut.map(|kernel| ("shortcut".to_owned(), kernel)).into_iter().collect();
            let request = Request {
                limits: &limits,
                batch: 2,
                input: InputFormat::F16Nhwc,
                preprocessing: model.preprocessing(),
                output: OutputKind::Features,
                choices: &choices,
            };
            plan(model.graph(), &request).unwrap()
        };
        let apart = Kernel::Sm80Gemm(crate::plan::ConvTile { m: 64, n: 64 });
        let plans = [of(Some(Kernel::Joined)), of(Some(apart))];
        assert_eq!(plans[0].steps.len() + 1, plans[1].steps.len());
        let layout = Layout::new(&plans).unwrap();
        let mut bytes = vec![0; layout.bytes()];
        layout.fill(&model, &plans, &mut bytes).unwrap();

        let half_at = |at: usize| f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32();
        let float_at = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let step = |plan: &Plan, name: &str| plan.steps.iter().position(|step| step.name == name).unwrap();
        let filter = |name: &str| layout.filter(&plans[0].steps[step(&plans[0], name)], name);
        // [24][20][3][3] → [24][9][24], the last four channels zeros.
        for (k, tap, c) in (0..24).flat_map(|k| (0..9).flat_map(move |tap| (0..24).map(move |c| (k, tap, c)))) {
            let expected =
                if c < 20 { f16::from_f32(read("first.weight", (k * 20 + c) * 9 + tap)).to_f32() } else { 0.0 };
            assert_eq!(half_at(filter("first") + 2 * ((k * 9 + tap) * 24 + c)), expected, "{k} {tap} {c}");
        }
        // [16][24], as it is stored.
        for index in 0..16 * 24 {
            let expected = f16::from_f32(read("last.weight", index)).to_f32();
            assert_eq!(half_at(filter("last") + 2 * index), expected, "{index}");
        }
        let bias = |plan: &Plan, name: &str, k: usize| float_at(layout.bias(&plan.steps[step(plan, name)], 0) + 4 * k);
        for k in 0..16 {
            let [last, shortcut] = ["last.bias", "shortcut.bias"].map(|name| read(name, k));
            assert_eq!(bias(&plans[0], "last", k), last + shortcut);
            assert_eq!([bias(&plans[1], "last", k), bias(&plans[1], "shortcut", k)], [last, shortcut]);
        }
    }

    #[test]
    fn plans_that_store_a_layer_in_different_ways_have_no_layout() {
        let (limits, choices) = (Limits::h200(), Choices::new());
        let of = |channels, window| {
            let mut g = GraphBuilder::new(Shape::new(8, 8, channels));
            let x = g.conv2d("conv", g.input(), 8, window);
            let graph = g.finish(x).unwrap();
            let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
            let preprocessing = &Preprocessing::new(graph.input);
            let request = Request { limits: &limits, batch: 2, input, preprocessing, output, choices: &choices };
            plan(&graph, &request).unwrap()
        };
        let square = Window::square(3, 1, 1);
        assert!(Layout::new(&[of(16, square), of(16, square)]).is_ok());
        let refused = |plans: [Plan; 2]| match Layout::new(&plans) {
            Err(Error::Internal { what }) => assert!(what.contains(r#"node: "conv""#), "{what}"),
            _ => panic!("one place for both"),
        };
        refused([of(16, square), of(24, square)]);
        // As many bytes: the last channels are padding in one, a row is as long as a column in the other.
        refused([of(17, square), of(24, square)]);
        let row = Window { size: [1, 9], ..square };
        refused([of(16, square), of(16, row)]);
    }

    /// A depthwise convolution has the same weights by itself and with the convolution in front of it.
    #[test]
    fn plans_that_want_the_same_in_different_steps_share_it() {
        let mut g = GraphBuilder::new(Shape::new(56, 56, 24));
        let expand = g.conv2d("expand", g.input(), 144, Window::square(1, 1, 0));
        let depthwise = Conv2d { groups: 144, ..Conv2d::named("depthwise", 144, Window::square(3, 1, 1)) };
        let y = g.conv2d_with("depthwise", expand, depthwise);
        let graph = g.finish(y).unwrap();
        let of = |choices: &Choices| {
            let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
            let preprocessing = &Preprocessing::new(graph.input);
            plan(&graph, &Request { limits: &Limits::h200(), batch: 64, input, preprocessing, output, choices })
                .unwrap()
        };
        let [both, apart] = [of(&Choices::new()), of(&Choices::from([("depthwise".to_owned(), Kernel::Sm80)]))];
        assert_eq!(both.steps.len() + 1, apart.steps.len());
        let layouts = [vec![both.clone(), apart], vec![both]].map(|plans| Layout::new(&plans).unwrap());
        assert_eq!(layouts[0].bytes(), layouts[1].bytes());
        assert!(layouts[1].covers(&layouts[0]));
    }

    #[test]
    fn a_weight_beyond_f16_is_named() {
        let mut g = GraphBuilder::new(Shape::new(8, 8, 8));
        let x = g.conv2d("conv", g.input(), 8, Window::square(1, 1, 0));
        let graph = g.finish(x).unwrap();
        let tensors = crate::model::params(&graph).unwrap().into_iter().map(|(name, dims)| {
            let mut values = vec![0.5; dims.iter().product()];
            *values.last_mut().unwrap() = if name == "conv.weight" { 70_000.0 } else { 1.0 };
            (name.to_owned(), dims, values)
        });
        let weights = Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap();
        let model = Model::new(graph.clone(), weights, Preprocessing::new(graph.input), Vec::new()).unwrap();
        let request = Request {
            limits: &Limits::a100(),
            batch: 1,
            input: InputFormat::F16Nhwc,
            preprocessing: model.preprocessing(),
            output: OutputKind::Features,
            choices: &Choices::new(),
        };
        let plans = [plan(model.graph(), &request).unwrap()];
        let layout = Layout::new(&plans).unwrap();
        let error = layout.fill(&model, &plans, &mut vec![0; layout.bytes()]).unwrap_err().to_string();
        assert!(error.contains("`conv`") && error.contains("70000"), "{error}");
    }
}
