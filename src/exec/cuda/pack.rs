//! Weights as the kernels read them: folded, rounded, channels innermost and padded, all in one buffer.

use std::collections::HashMap;

use bytemuck::Pod;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::error::Error;
use crate::model::{Conv2d, Linear, Model, fold_conv, fold_norm_of_rows, read_linear};
use crate::plan::packing::{ByteWeights, FilterOrder, PackedSum, Packing};
use crate::plan::work::Weights;
use crate::plan::{Constant, NormWithin, Plan, Step, StepOp, kernels};
use crate::sync::share;
use crate::tensor::Dtype;

/// Every filter and bias starts at a multiple of this.
const ALIGN: usize = 256;

/// The places of the weights of all steps of all plans of a model in the buffer. Weights that plans share have one
/// place; weights that plans store in different ways have a place for each way.
pub(super) struct Layout {
    /// All places, in the order of the buffer.
    places: Vec<Placed>,
    /// The indices of a part's places: one for each way in which the part is made.
    of_part: HashMap<WeightPart, Vec<usize>>,
    bytes: usize,
}

/// The place of a part and the layers that it is made of. Its bytes depend on nothing else but the model's weights and
/// the part.
struct Placed {
    offset: usize,
    of: Vec<Source>,
}

/// A part and the layers that it is made of.
type Made = (WeightPart, Vec<Source>);

/// A layer that a part contains.
#[derive(Clone, Debug, PartialEq)]
struct Source {
    layer: LayerOp,
    /// Output channels, the number of input channels that each of them has weights for, and taps.
    dims: [usize; 3],
    /// Stored output channels, and stored input channels.
    stored: [usize; 2],
    /// If the layer is rounded to bytes: the step that it is rounded for, and the channels of each input of that step.
    bytes: Option<(StepOp, Vec<usize>)>,
    /// The norm of the rows that the layer multiplies, if the step computes it.
    norm: Option<NormWithin>,
}

/// The operation of a layer.
#[derive(Clone, Debug, PartialEq)]
enum LayerOp {
    Conv(Box<Conv2d>),
    Linear(Linear),
}

/// Weights that have a place of their own. A node has several parts if kernels read it in several orders or types.
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
    fn filter(packing: &Packing<'_>) -> Made {
        let part = Self::Filter { node: packing.layer.node.to_owned(), order: packing.order, dtype: packing.dtype };
        (part, vec![Source::of(packing)])
    }

    /// The bias of `sum` as a part of its own; `None` if it has no bias, or has it behind a filter.
    fn bias(sum: &PackedSum<'_>) -> Option<Made> {
        let nodes = || sum.filters.iter().map(|filter| filter.layer.node.to_owned()).collect();
        let made = |dtype| (Self::Bias { nodes: nodes(), dtype }, sum.filters.iter().map(Source::of).collect());
        sum.bias.map(made)
    }

    /// A constant as a part, which is made of no layers.
    fn constant(constant: &Constant) -> Made {
        (Self::Constant(constant.clone()), Vec::new())
    }
}

impl Source {
    fn of(packing: &Packing<'_>) -> Self {
        let layer = match packing.layer.weights {
            Weights::Conv(conv) => LayerOp::Conv(conv.for_weights().into()),
            Weights::Linear(linear) => LayerOp::Linear(linear.clone()),
        };
        let bytes = packing.bytes.as_ref().map(|of| (of.op.of_any_size(), of.channels.clone()));
        let stored = [packing.k_stored(), packing.c_stored()];
        Self { layer, dims: packing.dims(), stored, bytes, norm: packing.norm.cloned() }
    }
}

impl Layout {
    /// Lays out the weights of `plans`.
    ///
    /// # Errors
    /// [`Error::Internal`] if a step is planned for a kernel that does not take it.
    pub(super) fn new(plans: &[Plan]) -> Result<Self, Error> {
        let mut this = Self { places: Vec::new(), of_part: HashMap::new(), bytes: 0 };
        for constant in plans.iter().flat_map(|plan| &plan.constants) {
            this.place(WeightPart::constant(constant), constant.of.bytes());
        }
        for (plan, step) in steps(plans) {
            for sum in sums(plan, step)? {
                for filter in &sum.filters {
                    this.place(WeightPart::filter(filter), filter.bytes());
                }
                if let Some((bias, dtype)) = WeightPart::bias(&sum).zip(sum.bias) {
                    this.place(bias, sum.filters[0].k_stored() * dtype.bytes());
                }
            }
        }
        Ok(this)
    }

    /// Gives a part a place, unless it already has one that is made of the same layers.
    fn place(&mut self, (part, of): Made, bytes: usize) {
        if self.find(&part, &of).is_none() {
            self.of_part.entry(part).or_default().push(self.places.len());
            self.places.push(Placed { offset: self.bytes, of });
            self.bytes = (self.bytes + bytes).next_multiple_of(ALIGN);
        }
    }

    /// The index of the place of `part` that is made of these layers.
    fn find(&self, part: &WeightPart, of: &[Source]) -> Option<usize> {
        self.of_part.get(part)?.iter().copied().find(|&place| self.places[place].of == of)
    }

    /// The byte offset of a part that was laid out.
    fn offset(&self, (part, of): &Made) -> usize {
        self.places[self.find(part, of).expect("laid out before")].offset
    }

    /// Whether this layout has a place for all parts of `other`, made of the same layers, at any offset.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has = |part, theirs: &usize| self.find(part, &other.places[*theirs].of).is_some();
        other.of_part.iter().all(|(part, places)| places.iter().all(|theirs| has(part, theirs)))
    }

    /// The size of the buffer in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Byte offset of a constant.
    pub(super) fn constant(&self, constant: &Constant) -> usize {
        self.offset(&WeightPart::constant(constant))
    }

    /// Byte offset of the filter of a node that a step computes.
    pub(super) fn filter(&self, plan: &Plan, step: &Step, node: &str) -> usize {
        let filters = self.sums(plan, step).into_iter().flat_map(|sum| sum.filters);
        let filter = filters.into_iter().find(|filter| filter.layer.node == node);
        self.offset(&WeightPart::filter(&filter.expect("the step has such a filter")))
    }

    /// Byte offset of the bias of one of a step's sums, which must have one.
    pub(super) fn bias(&self, plan: &Plan, step: &Step, sum: usize) -> usize {
        self.offset(&WeightPart::bias(&self.sums(plan, step)[sum]).expect("the step has a bias"))
    }

    fn sums<'a>(&self, plan: &Plan, step: &'a Step) -> Vec<PackedSum<'a>> {
        sums(plan, step).expect("laid out before")
    }

    /// Reads, folds and repacks the weights of `plans` into `bytes`, the whole buffer, which is zeros before. Layers are
    /// packed on several threads.
    pub(super) fn fill(&self, model: &Model, plans: &[Plan], bytes: &mut [u8]) -> Result<(), Error> {
        let mut targets = self.split(bytes);
        let find = |(part, of): &Made| self.find(part, of);
        let mut target = |made: &Made| {
            let place = find(made)?;
            targets[place].take().map(|target| (place, target))
        };
        for constant in plans.iter().flat_map(|plan| &plan.constants) {
            if let Some((_, target)) = target(&WeightPart::constant(constant)) {
                target[..constant.of.bytes()].copy_from_slice(constant.read(model.weights())?.bytes());
            }
        }
        let mut filters = Vec::new();
        let mut biases = Vec::new();
        for (plan, step) in steps(plans) {
            for sum in sums(plan, step)? {
                if let Some((_, target)) = WeightPart::bias(&sum).and_then(|bias| target(&bias)) {
                    let of_filters = sum.filters.iter().map(|filter| find(&WeightPart::filter(filter)));
                    biases.push((target, of_filters.flatten().collect::<Vec<_>>()));
                }
                for packing in sum.filters {
                    if let Some((place, target)) = target(&WeightPart::filter(&packing)) {
                        filters.push((place, Filter { packing, target }));
                    }
                }
            }
        }
        let of_filters = fill_filters(model, filters)?;
        for (target, filters) in biases {
            for (channel, target) in target.chunks_exact_mut(4).enumerate() {
                let of_filter = |filter: &usize| of_filters[filter].get(channel).copied().unwrap_or(0.0);
                let sum = filters.iter().map(of_filter).fold(0.0, |sum, value| sum + value);
                target.copy_from_slice(&sum.to_le_bytes());
            }
        }
        Ok(())
    }

    /// Splits the buffer into the memory of each place.
    fn split<'a>(&self, mut bytes: &'a mut [u8]) -> Vec<Option<&'a mut [u8]>> {
        let mut split = Vec::with_capacity(self.places.len());
        for place in self.places.iter().rev() {
            let (before, of_place) = bytes.split_at_mut(place.offset);
            split.push(Some(of_place));
            bytes = before;
        }
        split.reverse();
        split
    }
}

/// A filter to pack, and its memory.
struct Filter<'a> {
    packing: Packing<'a>,
    target: &'a mut [u8],
}

/// Packs filters, numbered by their places, on as many threads as there are cores, the largest first. Returns the bias
/// of each.
fn fill_filters(model: &Model, mut filters: Vec<(usize, Filter<'_>)>) -> Result<HashMap<usize, Vec<f32>>, Error> {
    filters.sort_by_key(|(_, filter)| std::cmp::Reverse(filter.packing.bytes()));
    let fill = |(place, Filter { packing, target }): (usize, Filter<'_>)| {
        fill_filter(model, &packing, target).map(|bias| (place, bias))
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

/// Writes a filter at the start of `target`, which is zeros or already holds this filter. Returns the bias.
fn fill_filter(model: &Model, packing: &Packing<'_>, target: &mut [u8]) -> Result<Vec<f32>, Error> {
    if let Some(of) = &packing.bytes {
        return fill_bytes(model, packing, of, target);
    }
    if packing.dtype == Dtype::U8 {
        return fill_codes(model, packing, target);
    }
    let [k, c, taps] = packing.dims();
    let (mut filter, mut bias) = match packing.layer.weights {
        Weights::Conv(conv) => {
            let folded = fold_conv(model.weights(), conv, packing.layer.input.shape.channels)?;
            (folded.filter, folded.bias)
        }
        Weights::Linear(linear) => read_linear(model.weights(), linear, c)?,
    };
    if let Some(NormWithin { weight, bias: norm_bias, product_bias, .. }) = packing.norm {
        let names = [Some(&**weight), norm_bias.as_deref(), product_bias.as_deref()];
        bias = fold_norm_of_rows(model.weights(), names, &mut filter, [k, c])?;
    }
    let target = &mut target[..packing.bytes()];
    let halves = match packing.dtype {
        Dtype::Bf16 => halves::<bf16>(&filter, packing)?,
        Dtype::F16 => halves::<f16>(&filter, packing)?,
        other => {
            return Err(Error::Internal { what: format!("the filter of node `{}` in {other}", packing.layer.node) });
        }
    }; // [K][C][taps]
    let mut put = |index: usize, value: u16| target[2 * index..][..2].copy_from_slice(&value.to_le_bytes());
    if packing.is_in_order() {
        halves.iter().enumerate().for_each(|(index, value)| put(index, *value));
    } else {
        let mut source = halves.iter().copied();
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
        let sums = packing.norm.map_or(Vec::new(), |_| sums_of_rows(packing.dtype, &halves, c));
        let behind = target[behind..].chunks_exact_mut(4);
        behind.zip(sums.iter().chain(&bias)).for_each(|(target, value)| target.copy_from_slice(&value.to_le_bytes()));
    }
    Ok(bias)
}

/// The sums of each row of `columns` values in f16 or bf16, from their bits.
fn sums_of_rows(dtype: Dtype, bits: &[u16], columns: usize) -> Vec<f32> {
    let value = |bits: &u16| match dtype {
        Dtype::Bf16 => bf16::from_bits(*bits).to_f64(),
        _ => f16::from_bits(*bits).to_f64(),
    };
    bits.chunks_exact(columns).map(|row| row.iter().map(value).sum::<f64>() as f32).collect()
}

/// Writes a filter that is rounded to bytes. Biases and scales lie behind the first filter of a sum and nowhere else,
/// so that the returned bias is empty.
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
        let (biases, factors) = target[behind..packing.bytes()].split_at_mut(packing.k_stored() * size_of::<i32>());
        biases[..k * size_of::<i32>()].copy_from_slice(bytemuck::cast_slice(&bytes.bias));
        factors[..k * size_of::<f32>()].copy_from_slice(bytemuck::cast_slice(&bytes.scale));
    }
    Ok(Vec::new())
}

/// Writes the codes of a matrix, row by row. They have no bias.
fn fill_codes(model: &Model, packing: &Packing<'_>, target: &mut [u8]) -> Result<Vec<f32>, Error> {
    let Weights::Conv(conv) = packing.layer.weights else {
        return Err(Error::Internal { what: format!("the codes of node `{}` as a layer", packing.layer.node) });
    };
    let codes = model.weights().read_codes(&conv.filter)?;
    let [k, c, taps] = packing.dims();
    for k in 0..k {
        let first = packing.places(k)(0, 0);
        target[first..][..c * taps].copy_from_slice(&codes[k * c * taps..][..c * taps]);
    }
    Ok(Vec::new())
}

/// A folded filter, rounded to f16 or bf16, as bits. A weight that would become infinity is an error.
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
#[path = "pack_tests.rs"]
mod tests;
