//! Weights as the kernels want them: folded, halved, channels innermost and padded, all in one buffer.

use std::collections::{BTreeMap, BTreeSet};

use half::f16;

use crate::error::Error;
use crate::model::{Conv2d, Linear, Model, fold_conv, read_linear};
use crate::plan::{Plan, Stem, StemLayers, Step, StepOp, TensorId};

/// Every filter and bias starts at a multiple of this.
const ALIGN: usize = 256;

/// Where the weights of all steps of all plans of a model lie in the buffer. What plans share is there once.
pub(super) struct Layout {
    places: BTreeMap<Part, Placed>,
    bytes: usize,
}

/// Where a part lies, and what it is made of: with the weights' source, all that its bytes depend on.
struct Placed {
    offset: usize,
    /// The layers in it: what each computes, its input's channels and stored channels, its output's stored channels.
    of: Vec<(StepOp, [usize; 3])>,
}

/// What has a place of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    /// A node's filter: f16, padding included.
    Filter(String),
    /// The same as the stem kernel wants it, with the bias in it.
    Stem(String),
    /// The sum of some nodes' biases: f32, one for each stored output channel.
    Bias(Vec<String>),
}

/// A node with weights, of a step that computes one or more.
struct Layer<'a> {
    name: &'a str,
    weights: Weights<'a>,
    input: TensorId,
}

enum Weights<'a> {
    Stem(&'a Stem),
    Dense(&'a Conv2d),
    Depthwise(&'a Conv2d),
    Linear(&'a Linear),
}

impl Layer<'_> {
    /// What its weights in a plan depend on.
    fn made_of(&self, plan: &Plan, step: &Step) -> (StepOp, [usize; 3]) {
        let op = match self.weights {
            Weights::Stem(stem) => StepOp::Stem(stem.clone()),
            Weights::Dense(conv) => StepOp::Conv(conv.clone()),
            Weights::Depthwise(conv) => StepOp::Depthwise(conv.clone()),
            Weights::Linear(linear) => StepOp::Linear(linear.clone()),
        };
        let input = &plan.tensors[self.input.0];
        (op, [input.shape.channels, input.stored_channels, stored(plan, step.output)])
    }

    fn part(&self) -> Part {
        match self.weights {
            Weights::Stem(_) => Part::Stem(self.name.to_owned()),
            _ => Part::Filter(self.name.to_owned()),
        }
    }
}

impl Layout {
    /// Lays out the weights of `plans`.
    pub(super) fn new(plans: &[Plan]) -> Self {
        let mut this = Self { places: BTreeMap::new(), bytes: 0 };
        for (plan, step) in steps(plans) {
            let made_of = |layers: &[Layer<'_>]| layers.iter().map(|layer| layer.made_of(plan, step)).collect();
            for layers in sums(step) {
                for layer in &layers {
                    this.place(layer.part(), 2 * filter_elems(plan, step, layer), made_of(std::slice::from_ref(layer)));
                }
                if let Some(bias) = bias_of(&layers) {
                    this.place(bias, 4 * stored(plan, step.output), made_of(&layers));
                }
            }
        }
        this
    }

    fn place(&mut self, part: Part, bytes: usize, of: Vec<(StepOp, [usize; 3])>) {
        if let std::collections::btree_map::Entry::Vacant(entry) = self.places.entry(part) {
            entry.insert(Placed { offset: self.bytes, of });
            self.bytes = (self.bytes + bytes).next_multiple_of(ALIGN);
        }
    }

    /// Whether all that `other` places is here, made of the same, wherever it lies.
    pub(super) fn covers(&self, other: &Self) -> bool {
        other.places.iter().all(|(part, theirs)| self.places.get(part).is_some_and(|mine| mine.of == theirs.of))
    }

    /// Bytes in all.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Byte offset of a node's filter.
    pub(super) fn filter(&self, node: &str) -> usize {
        self.places[&Part::Filter(node.to_owned())].offset
    }

    /// Byte offset of a stem's weights.
    pub(super) fn stem(&self, node: &str) -> usize {
        self.places[&Part::Stem(node.to_owned())].offset
    }

    /// Byte offset of the bias of one of a step's sums; most have one.
    pub(super) fn bias(&self, step: &Step, sum: usize) -> usize {
        self.places[&bias_of(&sums(step)[sum]).expect("the step has a bias")].offset
    }

    /// Reads, folds and repacks the weights of `plans` into `bytes`, the whole buffer, which is zeros before.
    pub(super) fn fill(&self, model: &Model, plans: &[Plan], bytes: &mut [u8]) -> Result<(), Error> {
        let mut filled = BTreeSet::new();
        for (plan, step) in steps(plans) {
            for layers in sums(step) {
                if filled.insert(layers.iter().map(Layer::part).collect::<Vec<_>>()) {
                    self.fill_sum(model, plan, step, &layers, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn fill_sum(
        &self,
        model: &Model,
        plan: &Plan,
        step: &Step,
        layers: &[Layer<'_>],
        bytes: &mut [u8],
    ) -> Result<(), Error> {
        let mut sum = vec![0.0; stored(plan, step.output)];
        for layer in layers {
            let bias = fill_layer(model, plan, step, layer, &mut bytes[self.places[&layer.part()].offset..])?;
            sum.iter_mut().zip(&bias).for_each(|(sum, value)| *sum += value);
        }
        if let Some(bias) = bias_of(layers) {
            for (target, value) in bytes[self.places[&bias].offset..].chunks_exact_mut(4).zip(&sum) {
                target.copy_from_slice(&value.to_le_bytes());
            }
        }
        Ok(())
    }
}

fn steps(plans: &[Plan]) -> impl Iterator<Item = (&Plan, &Step)> {
    plans.iter().flat_map(|plan| plan.steps.iter().map(move |step| (plan, step)))
}

/// The nodes with weights that `step` computes: those that go into one sum together.
fn sums(step: &Step) -> Vec<Vec<Layer<'_>>> {
    let layer = |name, weights, input: usize| Layer { name, weights, input: step.inputs[input] };
    match &step.op {
        StepOp::Stem(stem) => vec![vec![layer(&step.name, Weights::Stem(stem), 0)]],
        StepOp::Conv(conv) => vec![vec![layer(&step.name, Weights::Dense(conv), 0)]],
        StepOp::ConvSum { conv, joined } => {
            vec![vec![layer(&step.name, Weights::Dense(conv), 0), layer(&joined.name, Weights::Dense(&joined.conv), 1)]]
        }
        StepOp::Depthwise(conv) => vec![vec![layer(&step.name, Weights::Depthwise(conv), 0)]],
        StepOp::ExpandDepthwise { expand, conv } => vec![
            vec![layer(&step.name, Weights::Depthwise(conv), 0)],
            vec![layer(&expand.name, Weights::Dense(&expand.conv), 0)],
        ],
        StepOp::Linear(linear) => vec![vec![layer(&step.name, Weights::Linear(linear), 0)]],
        _ => Vec::new(),
    }
}

/// The bias that is read beside the filters, if there is one.
fn bias_of(layers: &[Layer<'_>]) -> Option<Part> {
    let apart = |layer: &Layer<'_>| !matches!(layer.weights, Weights::Stem(_));
    let names = || layers.iter().map(|layer| layer.name.to_owned()).collect();
    (!layers.is_empty() && layers.iter().all(apart)).then(|| Part::Bias(names()))
}

/// Elements of the filter, padding included.
fn filter_elems(plan: &Plan, step: &Step, layer: &Layer<'_>) -> usize {
    let (c, k) = (stored(plan, layer.input), stored(plan, step.output));
    match layer.weights {
        Weights::Stem(stem) => stem_layers(stem).filter_elems(),
        Weights::Dense(conv) => k * taps(conv.window.size) * c,
        Weights::Depthwise(conv) => taps(conv.window.size) * k,
        Weights::Linear(_) => k * c,
    }
}

/// Writes the filter of `layer` at the start of `target`, which is zeros before or the same; gives the bias.
fn fill_layer(
    model: &Model,
    plan: &Plan,
    step: &Step,
    layer: &Layer<'_>,
    target: &mut [u8],
) -> Result<Vec<f32>, Error> {
    let input = &plan.tensors[layer.input.0];
    let (c, c_stored) = (input.shape.channels, input.stored_channels);
    let k_stored = stored(plan, step.output);
    let (filter, bias, shape) = match layer.weights {
        Weights::Depthwise(conv) => {
            let folded = fold_conv(model.weights(), conv, conv.groups)?;
            (folded.filter, folded.bias, [conv.out_channels, 1, taps(conv.window.size)])
        }
        Weights::Dense(conv) | Weights::Stem(Stem { conv, .. }) => {
            let folded = fold_conv(model.weights(), conv, c)?;
            (folded.filter, folded.bias, [conv.out_channels, c, taps(conv.window.size)])
        }
        Weights::Linear(linear) => {
            let (weight, bias) = read_linear(model.weights(), linear, c)?;
            (weight, bias, [linear.out_features, c, 1])
        }
    };
    let target = &mut target[..2 * filter_elems(plan, step, layer)];
    let [_, _, taps] = shape;
    let place = |k: usize, c: usize, tap: usize| match layer.weights {
        Weights::Stem(stem) => {
            let [_, s] = stem.conv.window.size;
            stem_layers(stem).filter_index([tap / s, tap % s], k, c)
        }
        // [K, 1, taps] → [taps][k_stored]
        Weights::Depthwise(_) => tap * k_stored + k,
        // [K, C, taps] → [K][taps][c_stored]
        _ => (k * taps + tap) * c_stored + c,
    };
    let mut put = |index: usize, value: f16| target[2 * index..][..2].copy_from_slice(&value.to_le_bytes());
    let mut source = filter.iter();
    for k in 0..shape[0] {
        for channel in 0..shape[1] {
            for tap in 0..taps {
                put(place(k, channel, tap), half(*source.next().expect("the filter has this shape"), layer.name)?);
            }
        }
    }
    if let Weights::Stem(_) = layer.weights {
        for (k, value) in bias.iter().enumerate() {
            let parts = parts(*value, layer.name)?;
            parts.into_iter().enumerate().for_each(|(tap, part)| put(place(k, BIAS_CHANNEL, tap), part));
        }
    }
    Ok(bias)
}

/// The channel that is one in every pixel of a stem's input: the weights of its first taps are the bias.
const BIAS_CHANNEL: usize = 3;

/// Three halves whose sum is `value`, to within 2^-25.
fn parts(value: f32, step: &str) -> Result<[f16; 3], Error> {
    let mut rest = value;
    let mut part = || {
        let part = half(rest, step)?;
        rest -= part.to_f32();
        Ok(part)
    };
    Ok([part()?, part()?, part()?])
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
