//! Weights as the kernels want them: folded, halved, channels innermost and padded, all in one buffer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::Error;
use crate::model::{Conv2d, Linear, Model, fold_conv, read_linear};
use crate::plan::packing::{ByteWeights, FilterOrder, PackedSum, Packing};
use crate::plan::work::Weights;
use crate::plan::{Constant, Plan, Step, StepOp, kernels};
use crate::sync::share;
use crate::tensor::Dtype;

/// Every filter and bias starts at a multiple of this.
const ALIGN: usize = 256;

/// Where the weights of all steps of all plans of a model lie in the buffer. What plans share is there once.
pub(super) struct Layout {
    places: HashMap<WeightPart, Placed>,
    bytes: usize,
}

/// Where a part lies, and what it is made of: with the weights' source and the part, all that its bytes depend on.
struct Placed {
    offset: usize,
    of: Vec<Source>,
}

/// A layer in a part.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    layer: LayerOp,
    /// Output channels, input channels that each has weights of, and taps.
    dims: [usize; 3],
    /// Output channels as they are stored, and input channels.
    stored: [usize; 2],
    /// The step that it is rounded to bytes for, if it is, and the channels of what that reads.
    bytes: Option<(StepOp, Vec<usize>)>,
}

/// What a layer computes.
#[derive(Clone, Debug, PartialEq)]
enum LayerOp {
    Conv(Box<Conv2d>),
    Linear(Linear),
}

/// What has a place of its own: a node that kernels want in several ways has several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WeightPart {
    /// A node's filter, padding included.
    Filter { node: String, order: FilterOrder, dtype: Dtype },
    /// The sum of some nodes' biases, one value for each stored output channel.
    Bias { nodes: Vec<String>, dtype: Dtype },
    /// A constant that is read as it is.
    Constant(Constant),
}

impl WeightPart {
    fn filter(packing: &Packing<'_>) -> Self {
        Self::Filter { node: packing.layer.node.to_owned(), order: packing.order, dtype: packing.dtype }
    }

    /// The bias that is read beside the filters, if there is one.
    fn bias(sum: &PackedSum<'_>) -> Option<Self> {
        let nodes = || sum.filters.iter().map(|filter| filter.layer.node.to_owned()).collect();
        sum.bias.map(|dtype| Self::Bias { nodes: nodes(), dtype })
    }
}

impl Source {
    fn of(packing: &Packing<'_>) -> Self {
        let layer = match packing.layer.weights {
            Weights::Conv(conv) => LayerOp::Conv(conv.for_weights().into()),
            Weights::Linear(linear) => LayerOp::Linear(linear.clone()),
        };
        let bytes = packing.bytes.as_ref().map(|of| (of.op.of_any_size(), of.channels.clone()));
        Self { layer, dims: packing.dims(), stored: [packing.k_stored(), packing.c_stored()], bytes }
    }
}

impl Layout {
    /// Lays out the weights of `plans`.
    ///
    /// # Errors
    /// [`Error::Internal`] if plans store a layer in different ways: the kernels of one would read what another's want.
    pub(super) fn new(plans: &[Plan]) -> Result<Self, Error> {
        let mut this = Self { places: HashMap::new(), bytes: 0 };
        for constant in plans.iter().flat_map(|plan| &plan.constants) {
            this.place(WeightPart::Constant(constant.clone()), constant.of.bytes(), Vec::new())?;
        }
        for (plan, step) in steps(plans) {
            for sum in sums(plan, step)? {
                for filter in &sum.filters {
                    this.place(WeightPart::filter(filter), filter.bytes(), vec![Source::of(filter)])?;
                }
                if let Some((bias, dtype)) = WeightPart::bias(&sum).zip(sum.bias) {
                    let bytes = sum.filters[0].k_stored() * dtype.bytes();
                    this.place(bias, bytes, sum.filters.iter().map(Source::of).collect())?;
                }
            }
        }
        Ok(this)
    }

    /// Gives a part its place. What plans have in common is made of the same in all of them.
    fn place(&mut self, part: WeightPart, bytes: usize, of: Vec<Source>) -> Result<(), Error> {
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

    /// Byte offset of a constant.
    pub(super) fn constant(&self, constant: &Constant) -> usize {
        self.places[&WeightPart::Constant(constant.clone())].offset
    }

    /// Byte offset of the filter of a node that a step computes.
    pub(super) fn filter(&self, plan: &Plan, step: &Step, node: &str) -> usize {
        let filters = self.sums(plan, step).into_iter().flat_map(|sum| sum.filters);
        let filter = filters.into_iter().find(|filter| filter.layer.node == node);
        self.places[&WeightPart::filter(&filter.expect("the step has such a filter"))].offset
    }

    /// Byte offset of the bias of one of a step's sums; most have one.
    pub(super) fn bias(&self, plan: &Plan, step: &Step, sum: usize) -> usize {
        self.places[&WeightPart::bias(&self.sums(plan, step)[sum]).expect("the step has a bias")].offset
    }

    fn sums<'a>(&self, plan: &Plan, step: &'a Step) -> Vec<PackedSum<'a>> {
        sums(plan, step).expect("laid out before")
    }

    /// Reads, folds and repacks the weights of `plans` into `bytes`, the whole buffer, which is zeros before. Layers are
    /// packed on several threads.
    pub(super) fn fill(&self, model: &Model, plans: &[Plan], bytes: &mut [u8]) -> Result<(), Error> {
        let mut targets = self.split(bytes);
        for constant in plans.iter().flat_map(|plan| &plan.constants) {
            if let Some(target) = targets.remove(&WeightPart::Constant(constant.clone())) {
                target[..constant.of.bytes()].copy_from_slice(constant.read(model.weights())?.bytes());
            }
        }
        let mut filters = HashMap::new();
        let mut biases = Vec::new();
        for (plan, step) in steps(plans) {
            for sum in sums(plan, step)? {
                let bias = WeightPart::bias(&sum).and_then(|bias| targets.remove(&bias));
                biases.extend(
                    bias.map(|target| (target, sum.filters.iter().map(WeightPart::filter).collect::<Vec<_>>())),
                );
                for packing in sum.filters {
                    let part = WeightPart::filter(&packing);
                    if let Some(target) = targets.remove(&part) {
                        filters.insert(part, Filter { packing, target });
                    }
                }
            }
        }
        let of_filters = fill_filters(model, filters)?;
        for (target, parts) in biases {
            for (channel, target) in target.chunks_exact_mut(4).enumerate() {
                let of_part = |part: &WeightPart| of_filters[part].get(channel).copied().unwrap_or(0.0);
                let sum = parts.iter().map(of_part).fold(0.0, |sum, value| sum + value);
                target.copy_from_slice(&sum.to_le_bytes());
            }
        }
        Ok(())
    }

    /// The place of each part.
    fn split<'a>(&self, mut bytes: &'a mut [u8]) -> HashMap<WeightPart, &'a mut [u8]> {
        let mut parts: Vec<(usize, &WeightPart)> =
            self.places.iter().map(|(part, place)| (place.offset, part)).collect();
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
    packing: Packing<'a>,
    target: &'a mut [u8],
}

/// Packs the filters, the largest first, on as many threads as there are cores; gives each one's bias.
fn fill_filters(
    model: &Model,
    filters: HashMap<WeightPart, Filter<'_>>,
) -> Result<HashMap<WeightPart, Vec<f32>>, Error> {
    let mut filters: Vec<_> = filters.into_iter().collect();
    filters.sort_by_key(|(_, filter)| std::cmp::Reverse(filter.packing.bytes()));
    let fill = |(part, Filter { packing, target }): (WeightPart, Filter<'_>)| {
        fill_filter(model, &packing, target).map(|bias| (part, bias))
    };
    Ok(share("trefoil-pack", filters, fill)?.into_iter().collect())
}

fn steps(plans: &[Plan]) -> impl Iterator<Item = (&Plan, &Step)> {
    plans.iter().flat_map(|plan| plan.steps.iter().map(move |step| (plan, step)))
}

/// The weights of `step` as its kernel reads them.
fn sums<'a>(plan: &Plan, step: &'a Step) -> Result<Vec<PackedSum<'a>>, Error> {
    let work = plan.work(step);
    match kernels::of(&work, step.kernel) {
        Some(def) => Ok(def.packing(&work)),
        None => Err(Error::Internal { what: format!("step {} planned for {:?}", step.name, step.kernel) }),
    }
}

/// Writes a filter at the start of `target`, which is zeros before or the same; gives the bias.
fn fill_filter(model: &Model, packing: &Packing<'_>, target: &mut [u8]) -> Result<Vec<f32>, Error> {
    if let Some(of) = &packing.bytes {
        return fill_bytes(model, packing, of, target);
    }
    let [k, c, taps] = packing.dims();
    let (filter, bias) = match packing.layer.weights {
        Weights::Conv(conv) => {
            let folded = fold_conv(model.weights(), conv, packing.layer.input.shape.channels)?;
            (folded.filter, folded.bias)
        }
        Weights::Linear(linear) => read_linear(model.weights(), linear, c)?,
    };
    let target = &mut target[..packing.bytes()];
    let halves = match packing.dtype {
        Dtype::Bf16 => halves::<bf16>(&filter, packing)?,
        _ => halves::<f16>(&filter, packing)?,
    }; // [K][C][taps]
    let mut put = |index: usize, value: u16| target[2 * index..][..2].copy_from_slice(&value.to_le_bytes());
    if packing.is_in_order() {
        halves.iter().enumerate().for_each(|(index, value)| put(index, *value));
    } else {
        let mut source = halves.into_iter();
        for k in 0..k {
            let place = packing.places(k);
            for c in 0..c {
                for tap in 0..taps {
                    put(place(c, tap), source.next().expect("the filter has this shape"));
                }
            }
        }
    }
    if let Some(behind) = packing.bias_behind() {
        let behind = target[behind..].chunks_exact_mut(4);
        behind.zip(&bias).for_each(|(target, value)| target.copy_from_slice(&value.to_le_bytes()));
    }
    Ok(bias)
}

/// The same in bytes, with biases and scales behind the first filter of a sum; they are in no other place.
fn fill_bytes(
    model: &Model,
    packing: &Packing<'_>,
    of: &ByteWeights<'_>,
    target: &mut [u8],
) -> Result<Vec<f32>, Error> {
    let [k, c, taps] = packing.dims();
    let bytes = of.op.byte_filter(model.weights(), &of.channels)?;
    for (of_k, filter) in bytes.filters[of.index].chunks_exact(c * taps).enumerate() {
        let place = packing.places(of_k);
        for (of_c, values) in filter.chunks_exact(taps).enumerate() {
            values.iter().enumerate().for_each(|(tap, &value)| target[place(of_c, tap)] = value as u8);
        }
    }
    if let Some(behind) = packing.bias_behind() {
        let (biases, factors) = target[behind..packing.bytes()].split_at_mut(k * size_of::<i32>());
        biases.copy_from_slice(bytemuck::cast_slice(&bytes.bias));
        factors.copy_from_slice(bytemuck::cast_slice(&bytes.scale));
    }
    Ok(Vec::new())
}

/// A folded filter, rounded to f16 or bf16, as bits; a weight beyond that range would become infinity and is an error.
fn halves<T: Pod>(filter: &[f32], packing: &Packing<'_>) -> Result<Vec<u16>, Error>
where
    [T]: HalfFloatSliceExt,
{
    let mut bits = vec![0_u16; filter.len()];
    bytemuck::cast_slice_mut::<u16, T>(&mut bits).convert_from_f32_slice(filter);
    let infinity = if packing.dtype == Dtype::Bf16 { bf16::INFINITY.to_bits() } else { f16::INFINITY.to_bits() };
    match bits.iter().position(|bits| bits & 0x7fff == infinity) {
        None => Ok(bits),
        Some(at) => {
            let (node, value, dtype) = (packing.layer.node, filter[at], packing.dtype);
            let instead = match dtype {
                Dtype::Bf16 => "run it in f32",
                _ => "run it with `--device cpu`, which computes in f32",
            };
            let what = format!("node `{node}`: a weight of {value} after folding, beyond the range of {dtype},");
            Err(Error::Unsupported { what, instead: instead.into() })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::graph::{Contract, Conv2d, GraphBuilder, Op, ValueId, Window};
    use crate::model::images::Network;
    use crate::model::{Preprocessing, Weights};
    use crate::plan::values::{self, ValuesRequest};
    use crate::plan::{Choices, Kernel, Limits, Request, plan};
    use crate::tensor::{InputFormat, OutputKind, RowSpec, Shape};

    fn found(mut g: GraphBuilder, y: ValueId) -> Network {
        g.output("y", y);
        Network::of(&g.finish().unwrap()).unwrap()
    }

    /// A block whose shortcut is a convolution: joined to the last one in one plan, by itself in the other.
    #[test]
    fn every_part_is_in_its_place_whatever_the_plans_share() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 20));
        let x = g.conv2d("first", image, 24, Window::square(3, 1, 1));
        let with_bias = |name: &str| Conv2d {
            bias: Some(format!("{name}.bias")),
            ..Conv2d::named(name, 16, Window::square(1, 1, 0))
        };
        let shortcut = g.conv2d_with("shortcut", image, with_bias("shortcut"));
        let y = g.conv2d_with("last", x, with_bias("last"));
        let sum = g.add("sum", y, shortcut);
        g.output("y", sum);
        let graph = g.finish().unwrap();
        let value = |seed: usize| move |i: usize| ((i * 37 + seed) % 101) as f32 / 64.0 - 0.75;
        let tensor = |name: &str, dims: Vec<usize>, seed| {
            (name.to_owned(), dims.clone(), (0..dims.iter().product()).map(value(seed)).collect::<Vec<f32>>())
        };
        let tensors = graph.weights().enumerate().map(|(seed, (name, of))| tensor(name, of.dims.clone(), seed));
        let tensors: Vec<_> = tensors.collect();
        let read = |name: &str, index: usize| {
            let (_, _, values) = tensors.iter().find(|(tensor, ..)| tensor == name).unwrap();
            values[index]
        };
        let weights = Weights::from_tensors(tensors.clone()).unwrap();
        let preprocessing = Preprocessing::new(Shape::new(8, 8, 20));
        let model = Model::new(graph, weights, preprocessing, Vec::new()).unwrap();
        let limits = Limits::h200();
        let of = |shortcut: Option<Kernel>| {
            let choices: Choices = shortcut.map(|kernel| ("shortcut".to_owned(), kernel)).into_iter().collect();
            let request = Request {
                limits: &limits,
                batch: 2,
                input: InputFormat::F16Nhwc,
                preprocessing: model.preprocessing().unwrap(),
                output: OutputKind::Features,
                choices: &choices,
            };
            plan(model.image_network().unwrap(), &request).unwrap()
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
        let filter = |name: &str| layout.filter(&plans[0], &plans[0].steps[step(&plans[0], name)], name);
        // [24][20][3][3] → [24][9][24], the last four channels zeros.
        for (k, tap, c) in (0..24).flat_map(|k| (0..9).flat_map(move |tap| (0..24).map(move |c| (k, tap, c)))) {
            let expected =
                if c < 20 { f16::from_f32(read("first.weight", (k * 20 + c) * 9 + tap)).to_f32() } else { 0.0 };
            assert_eq!(half_at(filter("first") + 2 * ((k * 9 + tap) * 24 + c)), expected, "{k} {tap} {c}");
        }
        // [16][24] → [16][64], a step of its kernel, zeros behind the channels.
        for (k, c) in (0..16).flat_map(|k| (0..64).map(move |c| (k, c))) {
            let expected = if c < 24 { f16::from_f32(read("last.weight", k * 24 + c)).to_f32() } else { 0.0 };
            assert_eq!(half_at(filter("last") + 2 * (k * 64 + c)), expected, "{k} {c}");
        }
        let bias =
            |plan: &Plan, name: &str, k: usize| float_at(layout.bias(plan, &plan.steps[step(plan, name)], 0) + 4 * k);
        for k in 0..16 {
            let [last, shortcut] = ["last.bias", "shortcut.bias"].map(|name| read(name, k));
            assert_eq!(bias(&plans[0], "last", k), last + shortcut);
            assert_eq!([bias(&plans[1], "last", k), bias(&plans[1], "shortcut", k)], [last, shortcut]);
        }
    }

    #[test]
    fn plans_that_store_a_layer_in_different_ways_have_no_layout() {
        let (limits, choices) = (Limits::h200(), Choices::new());
        let of = |channels, window: &Window| {
            let mut g = GraphBuilder::new();
            let image = g.image("image", Shape::new(8, 8, channels));
            let x = g.conv2d("conv", image, 8, window);
            let graph = found(g, x);
            let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
            let preprocessing = &Preprocessing::new(graph.input);
            let request = Request { limits: &limits, batch: 2, input, preprocessing, output, choices: &choices };
            plan(&graph, &request).unwrap()
        };
        let square = &Window::square(3, 1, 1);
        assert!(Layout::new(&[of(16, square), of(16, square)]).is_ok());
        let refused = |plans: [Plan; 2]| match Layout::new(&plans) {
            Err(Error::Internal { what }) => assert!(what.contains(r#"node: "conv""#), "{what}"),
            _ => panic!("one place for both"),
        };
        refused([of(16, square), of(24, square)]);
        // As many bytes: the last channels are padding in one, a row is as long as a column in the other.
        refused([of(17, square), of(24, square)]);
        let row = Window { size: vec![1, 9], ..square.clone() };
        refused([of(16, square), of(16, &row)]);
    }

    /// A depthwise convolution has the same weights by itself and with the convolution in front of it.
    #[test]
    fn plans_that_want_the_same_in_different_steps_share_it() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(56, 56, 64));
        let expand = g.conv2d("expand", image, 144, Window::square(1, 1, 0));
        let depthwise = Conv2d { groups: 144, ..Conv2d::named("depthwise", 144, Window::square(3, 1, 1)) };
        let y = g.conv2d_with("depthwise", expand, depthwise);
        let graph = found(g, y);
        let of = |choices: &Choices| {
            let (input, output) = (InputFormat::F16Nhwc, OutputKind::Features);
            let preprocessing = &Preprocessing::new(graph.input);
            plan(&graph, &Request { limits: &Limits::h200(), batch: 64, input, preprocessing, output, choices })
                .unwrap()
        };
        let [both, apart] = [of(&Choices::new()), of(&Choices::from([("depthwise".to_owned(), Kernel::Sm80)]))];
        assert_eq!(both.steps.len() + 1, apart.steps.len());
        let layouts = [vec![both.clone()], vec![apart.clone()], vec![apart, both]];
        let layouts = layouts.map(|plans| Layout::new(&plans).unwrap());
        assert!(layouts.iter().all(|layout| layout.bytes() == layouts[0].bytes()));
        assert!(layouts.iter().all(|layout| layouts.iter().all(|other| layout.covers(other))));
    }

    #[test]
    fn a_weight_beyond_f16_is_named() {
        let mut g = GraphBuilder::new();
        let image = g.image("image", Shape::new(8, 8, 8));
        let x = g.conv2d("conv", image, 8, Window::square(1, 1, 0));
        g.output("y", x);
        let graph = g.finish().unwrap();
        let tensors = graph.weights().map(|(name, of)| {
            let mut values = vec![0.5; of.elems()];
            *values.last_mut().unwrap() = if name == "conv.weight" { 70_000.0 } else { 1.0 };
            (name.to_owned(), of.dims.clone(), values)
        });
        let weights = Weights::from_tensors(tensors.collect::<Vec<_>>()).unwrap();
        let model = Model::new(graph, weights, Preprocessing::new(Shape::new(8, 8, 8)), Vec::new()).unwrap();
        let request = Request {
            limits: &Limits::a100(),
            batch: 1,
            input: InputFormat::F16Nhwc,
            preprocessing: model.preprocessing().unwrap(),
            output: OutputKind::Features,
            choices: &Choices::new(),
        };
        let plans = [plan(model.image_network().unwrap(), &request).unwrap()];
        let layout = Layout::new(&plans).unwrap();
        let error = layout.fill(&model, &plans, &mut vec![0; layout.bytes()]).unwrap_err().to_string();
        assert!(error.contains("`conv`") && error.contains("70000"), "{error}");
    }

    /// A product's matrix, once for kernels of f16 and once for those of bf16; 10^5 is a number of the second type alone.
    #[test]
    fn a_matrix_is_packed_in_the_type_of_its_rows() {
        let [first, second] = [1.0 + 1.0 / 256.0 + 1.0 / 1024.0, 1e5_f32];
        let weights = |value| Weights::from_tensors([("w", vec![16, 8], vec![value; 128])]).unwrap();
        let graph = |rows| {
            let mut g = GraphBuilder::new();
            let x = g.input("x", Dtype::F32, &[rows, 4, 16]);
            let w = g.weight("w", Dtype::F32, &[16, 8]);
            let y = g.node("product", Op::Contract(Contract::matmul(3, 2)), &[x, w]);
            g.output("y", y);
            g.finish()
        };
        let models = [first, second].map(|value| Model::of_graphs(weights(value), graph).unwrap());
        let [x, y] = [("x", 16), ("y", 8)].map(|(name, columns)| RowSpec::new([(name, Dtype::F32, vec![4, columns])]));
        let planned = |precision| {
            let request = ValuesRequest {
                limits: &Limits::h200(),
                batch: 1,
                rows: [&x, &y],
                states: &[],
                precision,
                in_f32: &BTreeSet::new(),
                choices: &Choices::new(),
            };
            values::plan(&graph(1).unwrap(), &request).unwrap()
        };
        let plans = [Dtype::F16, Dtype::Bf16].map(planned);
        let layout = Layout::new(&plans).unwrap();
        let places = plans.each_ref().map(|plan| {
            let step = plan.steps.iter().find(|step| step.name == "product").unwrap();
            assert!(matches!(step.kernel, Kernel::Sm90Product(_)), "{plan}");
            layout.filter(plan, step, "product")
        });
        let mut bytes = vec![0; layout.bytes()];
        layout.fill(&models[0], &plans, &mut bytes).unwrap();
        let bits = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        for index in 0..128 {
            let [of_f16, of_bf16] = places.map(|at| bits(at + 2 * index));
            assert_eq!([of_f16, of_bf16], [f16::from_f32(first).to_bits(), bf16::from_f32(1.007_812_5).to_bits()]);
        }
        let fill = |plan: &Plan| {
            let plans = std::slice::from_ref(plan);
            let layout = Layout::new(plans).unwrap();
            layout.fill(&models[1], plans, &mut vec![0; layout.bytes()])
        };
        let [of_f16, of_bf16] = plans.each_ref().map(fill);
        assert!(of_bf16.is_ok() && of_f16.unwrap_err().to_string().contains("beyond the range of f16"));
    }
}
