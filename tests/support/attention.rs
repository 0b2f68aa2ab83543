//! Attention by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};
use trefoil::plan::{AttentionKernel, AttentionSizes, AttentionTile, HeadsAt, Limits};
use trefoil::{AttentionOperands, AttentionRun, Device, Dtype, Shape};

use super::codes;
use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth, Rounding, Storage, U16, U32};

/// One attention operation on random operands.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The type of operands and result: f16 or bf16.
    pub dtype: Dtype,
    pub name: &'static str,
    pub sizes: AttentionSizes,
    /// The numbers of queries and keys lie between -spread and spread.
    spread: f64,
    /// Whether all numbers of queries and keys are positive, and those of keys grow from 0 at the first one to `spread` at
    /// the last.
    grows: bool,
    /// The largest absolute number of the values.
    most: f64,
    causal: bool,
    /// The number of keys of each image that count; `None` if all count.
    lengths: Option<Vec<i32>>,
    mask: MaskOf,
    /// Whether queries, keys and values of a row lie side by side, as one layer writes them; otherwise each has a place
    /// of its own.
    packed: bool,
    /// The expected rows of each kind of scores, computed by the first kernel that is compared.
    expected: [Arc<OnceLock<Vec<ExpectedRow>>>; 2],
}

/// How a kernel adds up scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scores {
    Floats,
    /// Sums of halves behind the first chunk, which has this number of keys.
    Halves {
        first: usize,
    },
}

/// The expected result of one row.
#[derive(Debug)]
struct ExpectedRow {
    image: usize,
    row: usize,
    head: usize,
    expected: Expected,
}

/// The mask that is added to scores.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MaskOf {
    Nothing,
    /// A value for each head, row and key, some of them -infinity.
    Each,
    /// The first keys are hidden for all rows of an image, by a large number.
    FirstKeys,
    /// All keys of some rows are hidden, by -infinity.
    WholeRows,
    /// A value for each head and key, some of them -infinity, which applies to all rows.
    EachKey,
    /// The same keys are hidden for all rows of an image: in the first image none, by zeros; in the second the last
    /// ones, by a large number; in the third all, by -infinity; in the fourth all, by a large number.
    LastKeys,
}

/// All problems of a type.
pub fn all(dtype: Dtype) -> Vec<Problem> {
    let plain = |name, rows, dims| Problem {
        dtype,
        name,
        sizes: AttentionSizes { images: 2, heads: 3, rows, keys: rows, dims },
        spread: 2.0,
        grows: false,
        most: 1.0,
        causal: false,
        lengths: None,
        mask: MaskOf::Nothing,
        packed: true,
        expected: Default::default(),
    };
    let of = |problem: Problem, images, heads, keys| Problem {
        sizes: AttentionSizes { images, heads, keys, ..problem.sizes },
        packed: keys == problem.sizes.rows,
        ..problem
    };
    // A first chunk has 96 keys where the last would have as few, and else 128: both have each kind of problem.
    let mut all: Vec<Problem> = [1, 5, 64, 65, 72, 88, 104, 112, 128, 129, 176, 197, 209, 224, 257, 264, 360, 384, 385]
        .into_iter()
        .map(|rows| plain("rows of all lengths", rows, 64))
        .collect();
    all.extend([8, 32, 40, 72, 80, 96, 128].map(|dims| plain("heads of all widths", 77, dims)));
    all.push(of(plain("many heads", 197, 64), 13, 12, 197));
    all.push(of(plain("many heads of long rows", 705, 64), 3, 25, 705));
    all.push(of(plain("wide heads of long rows", 705, 128), 2, 3, 705));
    all.push(of(plain("few queries, many keys", 3, 64), 2, 3, 701));
    all.push(of(plain("many queries, few keys", 300, 64), 2, 3, 9));
    for rows in [1, 70, 257, 384, 520] {
        all.push(Problem { causal: true, ..plain("causal", rows, 64) });
    }
    // Where all scores are zeros, weights are exact, so that a missing key shows.
    for rows in [257, 384] {
        all.push(Problem { spread: 0.0, causal: true, ..plain("scores of zero, causal", rows, 64) });
    }
    for rows in [640, 700] {
        let lengths = Some(vec![0, rows as i32 - 1, 113, 1, rows as i32]);
        let named = |name| Problem { lengths: lengths.clone(), ..of(plain(name, rows, 64), 5, 2, rows) };
        all.push(named("lengths"));
        all.push(Problem { causal: true, ..named("lengths, causal") });
        all.push(Problem { spread: 0.0, ..named("scores of zero, lengths") });
    }
    let lengths = Some(vec![0, 699, 113, 1, 700]);
    all.push(Problem { lengths: lengths.clone(), ..of(plain("lengths, few rows left", 712, 64), 5, 2, 712) });
    all.push(Problem { lengths, ..of(plain("lengths of keys", 90, 128), 5, 2, 700) });
    for (mask, name) in [
        (MaskOf::Each, "a mask"),
        (MaskOf::FirstKeys, "a mask of the first keys"),
        (MaskOf::WholeRows, "a mask of whole rows"),
    ] {
        all.extend([49, 197, 451].map(|rows| Problem { mask, ..plain(name, rows, 64) }));
        all.push(Problem { mask, causal: true, ..plain(name, 333, 96) });
    }
    for rows in [1, 128, 197, 384] {
        all.push(Problem { mask: MaskOf::EachKey, ..plain("a mask of keys", rows, 64) });
        all.push(Problem { mask: MaskOf::LastKeys, ..of(plain("a mask of the last keys", rows, 64), 5, 3, rows) });
    }
    all.push(Problem { mask: MaskOf::EachKey, causal: true, ..plain("a mask of keys, causal", 333, 96) });
    let lengths = Some(vec![0, 699, 113, 1, 700]);
    let many = Problem { lengths, mask: MaskOf::EachKey, ..plain("a mask of keys, lengths", 700, 64) };
    all.push(of(many, 5, 2, 700));
    let few = Problem { mask: MaskOf::EachKey, ..plain("a mask of an odd number of keys", 70, 64) };
    all.push(of(few, 50, 7, 301));
    for rows in [450, 490] {
        all.extend([16.0, 60.0].map(|spread| Problem { spread, ..plain("scores far apart", rows, 64) }));
        // Some weights of later chunks are beyond what f16 holds, and not all scores are too large for sums of halves.
        all.push(Problem { spread: 3.0, grows: true, ..plain("scores that grow", rows, 64) });
    }
    if dtype == Dtype::Bf16 {
        all.extend([69, 450].map(|rows| Problem { most: 1e30, ..plain("values beyond f16", rows, 64) }));
        all.push(Problem { most: 1e30, mask: MaskOf::Each, ..plain("values beyond f16, a mask", 200, 128) });
    }
    all
}

/// Problems whose results are codes, with scales: of some a few numbers are beyond what a code holds.
pub fn to_codes() -> Vec<(Problem, f32)> {
    let problems = all(Dtype::F16).into_iter().filter(|problem| problem.sizes.dims.is_multiple_of(16));
    problems.zip([1.0 / 448.0, 0.02, 0.000_7].into_iter().cycle()).collect()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {:?}", self.dtype, self.name, self.sizes)
    }
}

impl Problem {
    /// The kernels that can compute the problem on `limits`.
    pub fn kernels(&self, limits: &Limits) -> Vec<AttentionKernel> {
        self.sizes.kernels(limits)
    }

    /// Whether a kernel computes the last heads first: about half of the problems of each kernel.
    fn is_backward(&self, kernel: AttentionKernel) -> bool {
        (self.sizes.rows + self.sizes.heads + kernel.block_tiles) % 2 == 1
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        let AttentionSizes { images, heads, rows, dims, .. } = self.sizes;
        images * heads * rows * dims
    }

    /// How `kernel` adds up scores.
    fn scores(&self, kernel: AttentionKernel) -> Scores {
        let AttentionTile { dims, keys } = kernel.tile;
        match (self.dtype, self.mask, dims, keys) {
            (Dtype::F16, MaskOf::Nothing, 64, 128) => {
                let has_room = self.sizes.keys > keys && (1..=96).contains(&(self.sizes.keys % keys)); // in the last chunk
                Scores::Halves { first: if has_room { 96 } else { keys } }
            }
            _ => Scores::Floats,
        }
    }

    /// Runs the problem, into a buffer of NaN that is longer than the result, and compares.
    pub fn run(&self, device: &Device, kernel: AttentionKernel) -> Result<(), String> {
        match self.dtype {
            Dtype::Bf16 => self.run_of::<bf16>(device, kernel),
            _ => self.run_of::<f16>(device, kernel),
        }
    }

    fn run_of<T: Half>(&self, device: &Device, kernel: AttentionKernel) -> Result<(), String> {
        let AttentionSizes { heads, rows, dims, .. } = self.sizes;
        let mut random = Random::new(&format!("{} {:?}", self.name, self.sizes));
        let (values, qkv) = self.operands::<T>(&mut random);
        let mask = self.mask_values::<T>(&mut random);
        let out = HeadsAt { first: GUARD, pitches: [dims, heads * dims, rows * heads * dims] };
        let poisoned = vec![T::POISON; self.values() + 2 * GUARD];
        let ahead = self.causal.then_some(0);
        let scale = (dims as f32).sqrt().recip();
        let operands = AttentionOperands {
            sizes: self.sizes,
            scale,
            ahead,
            values: &values,
            qkv,
            lengths: self.lengths.as_deref(),
            mask: mask.as_ref().map(|(values, pitches)| (&values[..], *pitches)),
            result: &poisoned,
            out,
            result_scale: None,
            backward: self.is_backward(kernel),
        };
        let mut run = AttentionRun::new(device, &operands, kernel, 1).map_err(|error| error.to_string())?;
        run.run(2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        let written = GUARD..GUARD + self.values();
        let is_poison = |i: usize| result[i].is_poison();
        if let Some(at) = (0..poisoned.len()).find(|i| !written.contains(i) && !is_poison(*i)) {
            return Err(format!("value {at} outside of the result was written"));
        }
        if let Some(at) = written.clone().find(|i| is_poison(*i)) {
            return Err(format!("value {} of the result was not written", at - GUARD));
        }
        let scores = self.scores(kernel);
        let expected = &self.expected[usize::from(scores != Scores::Floats)];
        for row in expected.get_or_init(|| self.expected_rows(&operands, scores)) {
            let first = GUARD + ((row.image * rows + row.row) * heads + row.head) * dims;
            let actual: Vec<f32> = result[first..first + dims].iter().map(|value| value.value() as f32).collect();
            let check = row.expected.check(Growth::Worst, &actual);
            check.map_err(|error| format!("image {}, row {}, head {}: {error}", row.image, row.row, row.head))?;
        }
        Ok(())
    }

    /// Runs the problem in f16 and with a result in codes of e4m3, and compares: codes are those of the floats that the results in
    /// f16 are rounded from.
    pub fn run_to_codes(&self, device: &Device, kernel: AttentionKernel, result_scale: f32) -> Result<(), String> {
        let AttentionSizes { heads, rows, dims, .. } = self.sizes;
        let mut random = Random::new(&format!("{} {:?} to codes", self.name, self.sizes));
        let (values, qkv) = self.operands::<f16>(&mut random);
        let mask = self.mask_values::<f16>(&mut random);
        let len = self.values() + 2 * GUARD;
        let (of_f16, poisoned) = (vec![f16::NAN; len], vec![codes::POISON; len]);
        let operands = AttentionOperands {
            sizes: self.sizes,
            scale: (dims as f32).sqrt().recip(),
            ahead: self.causal.then_some(0),
            values: &values,
            qkv,
            lengths: self.lengths.as_deref(),
            mask: mask.as_ref().map(|(values, pitches)| (&values[..], *pitches)),
            result: &of_f16,
            out: HeadsAt { first: GUARD, pitches: [dims, heads * dims, rows * heads * dims] },
            result_scale: None,
            backward: self.is_backward(kernel),
        };
        let mut run = AttentionRun::new(device, &operands, kernel, 1).map_err(|error| error.to_string())?;
        run.run(1).map_err(|error| error.to_string())?;
        let halves = run.result().map_err(|error| error.to_string())?;
        let operands = AttentionOperands {
            sizes: operands.sizes,
            scale: operands.scale,
            ahead: operands.ahead,
            values: operands.values,
            qkv: operands.qkv,
            lengths: operands.lengths,
            mask: operands.mask,
            result: &poisoned[..],
            out: operands.out,
            result_scale: Some(result_scale),
            backward: operands.backward,
        };
        let mut run = AttentionRun::new(device, &operands, kernel, 1).map_err(|error| error.to_string())?;
        run.run(2).map_err(|error| error.to_string())?;
        let result = run.result().map_err(|error| error.to_string())?;
        for (i, (&code, &half)) in result.iter().zip(&halves).enumerate() {
            if (GUARD..GUARD + self.values()).contains(&i) {
                codes::check(code, half, result_scale).map_err(|error| format!("value {}: {error}", i - GUARD))?;
            } else if code != codes::POISON {
                return Err(format!("value {i} outside of the result was written"));
            }
        }
        Ok(())
    }

    /// The expected rows that are compared: all, or as many as plain loops have time for, evenly spread.
    fn expected_rows<T: Half>(&self, operands: &AttentionOperands<'_, T>, scores: Scores) -> Vec<ExpectedRow> {
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        let step = (images * heads * rows * keys * dims).div_ceil(MOST_PRODUCTS);
        let [q, k, v] = operands.qkv;
        let all = (0..images * rows * heads).step_by(step | 1);
        let expected = |index: usize| {
            let (image, row, head) = (index / heads / rows, index / heads % rows, index % heads);
            let at = |operand: HeadsAt, row: usize| {
                let [of_head, of_row, of_image] = operand.pitches;
                let start = operand.first + head * of_head + row * of_row + image * of_image;
                &operands.values[start..start + dims]
            };
            let added = |key: usize| {
                operands.mask.map_or(0.0, |(values, [of_head, of_row, of_image])| {
                    values[head * of_head + row * of_row + image * of_image + key].value()
                })
            };
            let seen = operands.lengths.map_or(keys, |lengths| lengths[image] as usize);
            let seen = if self.causal { seen.min(row + 1) } else { seen };
            let kv = |key: usize| (at(k, key), at(v, key));
            let pairs = attend(at(q, row), kv, added, seen, f64::from(operands.scale), scores);
            let (values, errors) = pairs.into_iter().unzip();
            ExpectedRow { image, row, head, expected: Expected { shape: Shape::vector(dims), values, errors } }
        };
        all.map(expected).collect()
    }

    /// The numbers of queries, keys and values in one buffer, and their places.
    fn operands<T: Half>(&self, random: &mut Random) -> (Vec<T>, [HeadsAt; 3]) {
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        let width = heads * dims;
        if self.packed {
            let at = |which: usize| HeadsAt { first: which * width, pitches: [dims, 3 * width, 3 * width * rows] };
            let number = |i: usize| {
                let (row, which) = (i / width / 3, i / width % 3);
                self.number(which, row / rows, row % rows, random.signed())
            };
            let values = T::all((0..images * rows * 3 * width).map(number));
            return (values, [at(0), at(1), at(2)]);
        }
        // Rows are longer than necessary, images follow one another: first queries, then keys, then values.
        let pitch = width + 8;
        let firsts = [0, images * rows * pitch, images * (rows + keys) * pitch];
        let at = |which: usize, rows: usize| HeadsAt { first: firsts[which], pitches: [dims, pitch, pitch * rows] };
        let end = images * (rows + 2 * keys) * pitch;
        let number = |i: usize| {
            let which = firsts.iter().filter(|first| **first <= i).count() - 1;
            let (row, rows) = ((i - firsts[which]) / pitch, [rows, keys, keys][which]);
            self.number(which, row / rows, row % rows, random.signed())
        };
        let values = T::all((0..end).map(number));
        (values, [at(0, rows), at(1, keys), at(2, keys)])
    }

    /// A number of a query, a key or a value, by `which`, from a random one between -1 and 1.
    fn number(&self, which: usize, image: usize, row: usize, random: f64) -> f64 {
        match which {
            0 if self.grows => random.abs() * self.spread,
            1 if self.grows => random.abs() * self.spread * row as f64 / self.sizes.keys as f64,
            2 => random * self.most * self.hidden_by(image, row),
            _ => random * self.spread,
        }
    }

    /// What the values of a key are multiplied by: a key behind its image's length must show if it is not hidden.
    fn hidden_by(&self, image: usize, key: usize) -> f64 {
        let is_hidden = self.lengths.as_ref().is_some_and(|lengths| key >= lengths[image] as usize);
        if is_hidden { 1000.0 } else { 1.0 }
    }

    /// The mask, and its distances from one head, row and image to the next.
    fn mask_values<T: Half>(&self, random: &mut Random) -> Option<(Vec<T>, [usize; 3])> {
        let AttentionSizes { images, heads, rows, keys, .. } = self.sizes;
        let pitch = keys.next_multiple_of(2);
        let mut some =
            |chance: f64, value: f64| if random.signed().abs() < chance { value } else { 4.0 * random.signed() };
        match self.mask {
            MaskOf::Nothing => None,
            MaskOf::Each => {
                let values = (0..images * heads * rows * pitch).map(|_| some(0.2, f64::NEG_INFINITY));
                Some((T::all(values), [rows * pitch, pitch, heads * rows * pitch]))
            }
            MaskOf::FirstKeys => {
                let hidden = |i: usize| if i % pitch < keys * 2 / 3 { -10_000.0 } else { 0.0 };
                Some((T::all((0..images * pitch).map(hidden)), [0, 0, pitch]))
            }
            MaskOf::WholeRows => {
                let mut value = |i: usize| if i / pitch % 3 == 1 { f64::NEG_INFINITY } else { some(0.0, 0.0) };
                Some((T::all((0..rows * pitch).map(&mut value)), [0, pitch, 0]))
            }
            MaskOf::EachKey => {
                let values = (0..images * heads * pitch).map(|_| some(0.2, f64::NEG_INFINITY));
                Some((T::all(values), [pitch, 0, heads * pitch]))
            }
            MaskOf::LastKeys => {
                let hidden = |i: usize| match i / pitch % 4 {
                    1 if i % pitch >= keys * 2 / 3 => -10_000.0,
                    2 => f64::NEG_INFINITY,
                    3 => -10_000.0,
                    _ => 0.0,
                };
                Some((T::all((0..images * pitch).map(hidden)), [0, 0, pitch]))
            }
        }
    }
}

/// Number of values before and behind the result that no kernel may write.
const GUARD: usize = 1024;
/// The most products of queries and keys that the reference has time for.
const MOST_PRODUCTS: usize = 8 << 20;

/// The result of one row, each value with the error that it may have; zeros where no key is seen.
///
/// A score is a sum of products as tensor cores add them, with some more roundings: of the score, of the added value,
/// and of the reference score that is subtracted; its error changes a weight by that factor. A weight has two errors of
/// the exponential and is rounded; in f16 it may be subnormal below 2^-14 of the reference, which is part of the sum.
/// Numerator and denominator use weights of the same scores.
///
/// What halves add is in [`of_halves`].
pub fn attend<'a, T: Half>(
    q: &[T],
    kv: impl Fn(usize) -> (&'a [T], &'a [T]),
    added: impl Fn(usize) -> f64,
    seen: usize,
    scale: f64,
    scores: Scores,
) -> Vec<(f64, f64)> {
    let (dims, Rounding { unit, tiny }) = (q.len(), T::ROUNDING);
    let score = |key: usize| {
        let products = q.iter().zip(kv(key).0).map(|(q, k)| q.value() * k.value());
        let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, all), p| (sum + p, all + p.abs()));
        let error = scale * Growth::Worst.sum(Storage::F16, dims, magnitude);
        let error = error + 8.0 * U32 * (scale * sum).abs() + 8.0 * U32 * finite(added(key)).abs();
        Score { value: scale * sum + added(key), error, magnitude: scale * magnitude }
    };
    let mut row: Vec<Score> = (0..seen).map(score).collect();
    let top = row.iter().map(|score| score.value).fold(f64::NEG_INFINITY, f64::max);
    if top == f64::NEG_INFINITY {
        return vec![(0.0, 0.0); dims];
    }
    let of_top = 8.0 * U32 * top.abs() + row.iter().map(|score| score.error).fold(0.0, f64::max);
    let mut of_sum = (seen + 4) as f64 * U32;
    if let Scores::Halves { first } = scores {
        of_sum += of_halves(&mut row, first, top);
    }
    let weights: Vec<(f64, f64)> =
        row.iter().map(|score| ((score.value - top).exp(), (score.error + of_top + 8.0 * U32).exp_m1())).collect();
    let sum: f64 = weights.iter().map(|(weight, _)| weight).sum();
    of_sum += weights.iter().map(|(weight, error)| weight * error).sum::<f64>() / sum;
    let value = |d: usize| {
        let terms =
            weights.iter().enumerate().map(|(key, &(weight, error))| (weight / sum, error, kv(key).1[d].value()));
        let (mut exact, mut magnitude, mut error) = (0.0, 0.0, 0.0);
        for (weight, off, v) in terms {
            exact += weight * v;
            magnitude += weight * v.abs();
            error += (weight * (off + unit + off * unit) + tiny) * v.abs();
        }
        error += Growth::Worst.sum(Storage::F16, seen, magnitude) + (magnitude + error) * of_sum;
        (exact, T::ROUNDING.rounded(exact, error))
    };
    (0..dims).map(value).collect()
}

/// A score, natural, with its error and the sum of its products' magnitudes.
struct Score {
    value: f64,
    error: f64,
    magnitude: f64,
}

/// Adds the errors of scores that are sums of halves, those behind the `first` keys, and returns that of a sum of weights.
///
/// A sum of 64 products is rounded behind each sixteen, perhaps towards zero: by a unit of the last place, 2 * U16. The
/// scale is rounded; so is the score times it, less the reference, which the kernel raises before the largest weight is
/// 2^16. The reference is the same half for all keys. The exponential of a half is off by 2^-9.9. Weights are added in
/// eights of halves, whose sums are added once more. Where the exponent of the reference is beyond 128, a kernel computes
/// scores in floats; the reference is near the largest of the first scores, or above. Where all products are 0, so are
/// all scores and exponents, all weights are 1, and their sums are exact.
fn of_halves(row: &mut [Score], first: usize, top: f64) -> f64 {
    const SIXTEENS: f64 = 4.0;
    const MOST_REFERENCE: f64 = 128.0;
    let ln2 = std::f64::consts::LN_2;
    let begin = row.iter().take(first).map(|score| score.value).fold(f64::NEG_INFINITY, f64::max);
    let is_exact = row.iter().all(|score| score.magnitude == 0.0);
    if row.len() <= first || begin > (MOST_REFERENCE + 1.0) * ln2 || is_exact {
        return 0.0;
    }
    for score in &mut row[first..] {
        let of_exponent = (top - score.value + 16.0 * ln2) * U16;
        let of_exponential = 2.0_f64.powf(-9.9).ln_1p();
        score.error += (SIXTEENS * 2.0 + 1.0) * U16 * score.magnitude + of_exponent + of_exponential;
    }
    9.0 * U16
}

fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}
