//! Attention within rows that lie end to end, by a GPU's kernel compared with plain loops in f64: queries, keys and
//! values side by side as one product writes them, arbitrary starts, and neighbours that are not finite.

use std::ops::Range;

use half::{bf16, f16};
use trefoil::graph::{GraphBuilder, Op, Slice, ValueId};
use trefoil::model::{Model, Weights};
use trefoil::plan::StepOp;
use trefoil::{Device, Dtype, Engine, Error, Precision, Shape};

use super::attention::{Scores, attend};
use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth};

/// Sizes of attention, and packs with these sizes.
#[derive(Clone, Debug)]
pub struct Problem {
    name: &'static str,
    heads: usize,
    dims: usize,
    tokens: usize,
    longest: usize,
    /// For each pack the numbers that say where rows begin and end, equally many for all packs.
    packs: Vec<Vec<i64>>,
}

/// All problems.
pub fn all() -> Vec<Problem> {
    let odd = [1, 63, 64, 65, 128, 200, 512, 1025, 104, 105, 111, 112, 113, 2];
    let of = |name, heads, dims, lengths: &[usize], spare: usize| {
        let (pack, tokens) = (starts(lengths), lengths.iter().sum::<usize>() + spare);
        let longest = lengths.iter().copied().max().unwrap_or(1).max(1);
        Problem { name, heads, dims, tokens, longest, packs: vec![pack] }
    };
    let mut all: Vec<Problem> = [32, 64, 96, 128].map(|dims| of("rows of all lengths", 3, dims, &odd, 77)).to_vec();
    all.extend([8, 40, 72].map(|dims| of("heads of other widths", 2, dims, &[70, 1, 33], 5)));
    all.push(of("one row alone", 5, 64, &[200], 0));
    all.push(of("one token alone", 1, 64, &[1], 0));
    all.push(of("one long row", 2, 128, &[1025], 0));
    all.push(of("many rows of one token", 4, 64, &[1; 700], 3));
    all.push(of("many rows, wide heads", 3, 96, &[17; 90], 0));
    let mut random = Random::new("many lengths");
    let lengths: Vec<usize> = (0..60).map(|_| random.between(1, 384)).collect();
    all.push(of("many lengths", 16, 64, &lengths, 300));
    let [mut few, mut any] = [of("packs that are not full", 3, 64, &odd[..8], 0), of("any starts", 2, 64, &[90; 7], 0)];
    few.packs = [&[][..], &[1], &[0, 5, 0, 0], &[1025, 1024, 9], &odd[..3]]
        .map(|lengths| [starts(lengths), vec![lengths.iter().sum::<usize>() as i64; 8 - lengths.len()]].concat())
        .to_vec();
    any.longest = 200;
    let tokens = any.tokens;
    let mut number = || {
        let near = random.between(0, tokens + 40) as i64;
        random.pick(&[near, near, near, -1 - near, i64::MIN, i64::MAX])
    };
    any.packs = (0..12).map(|_| (0..8).map(|_| number()).collect()).collect();
    all.extend([few, any]);
    all
}

/// The starts of rows with these lengths, and the end of the last one.
fn starts(lengths: &[usize]) -> Vec<i64> {
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + *length as i64);
    }
    starts
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} heads of {}, {} tokens", self.name, self.heads, self.dims, self.tokens)
    }
}

impl Problem {
    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.packs.len() * self.tokens * self.heads * self.dims
    }

    /// Runs the packs in f16 or bf16 and compares: all rows with plain loops, and some rows with their bits at other
    /// places.
    pub fn run(&self, device: &Device, dtype: Dtype) -> Result<(), String> {
        match dtype {
            Dtype::Bf16 => self.run_of::<bf16>(device, Precision::Bf16),
            _ => self.run_of::<f16>(device, Precision::F16),
        }
    }

    fn run_of<T: Half>(&self, device: &Device, precision: Precision) -> Result<(), String> {
        let model = self.model().map_err(|error| error.to_string())?;
        let builder = Engine::builder(&model).on(device).batch(1).precision(precision).check(true);
        let engine = builder.build().map_err(|error| error.to_string())?;
        let has_kernel = engine.plans()[0].steps.iter().any(|step| matches!(step.op, StepOp::PackedAttention(_)));
        if device.info().compute_capability == [9, 0] && !has_kernel {
            return Err("loops compute it on a GPU that has a kernel for it".into());
        }
        let mut random = Random::new(&self.to_string());
        let width = self.heads * self.dims;
        let qkv: Vec<f32> = (0..self.tokens * 3 * width)
            .map(|i| T::of(random.signed() * if i / width % 3 == 2 { 1.0 } else { 2.0 }).value() as f32)
            .collect();
        for pack in &self.packs {
            let rows = rows(pack, self.tokens, self.longest);
            let found = run(&engine, &qkv, pack)?;
            self.compare::<T>(&qkv, &rows, &found)?;
            if let Some(row) = rows.get(random.between(0, rows.len().max(1) - 1)) {
                self.is_the_same_elsewhere(&engine, &qkv, pack, row, &found)?;
            }
        }
        Ok(())
    }

    /// A model with the operation on views of one value, for each row of a batch.
    fn model(&self) -> Result<Model, Error> {
        let Self { heads, dims, tokens, longest, .. } = *self;
        let (width, count) = (heads * dims, self.packs[0].len());
        Model::of_graphs(Weights::from_tensors::<String>([])?, move |rows| {
            let mut g = GraphBuilder::new();
            let qkv = g.input("qkv", Dtype::F32, &[rows, tokens, 3 * width]);
            let starts = g.input("starts", Dtype::I64, &[rows, count]);
            let mixed: Vec<ValueId> = (0..rows)
                .map(|row| {
                    let part =
                        |g: &mut GraphBuilder, name: &str, x, at: [usize; 3], dims: Vec<usize>, to: Vec<usize>| {
                            let rank = dims.len();
                            let slice = Slice { start: at[..rank].to_vec(), step: vec![1; rank], dims };
                            let cut = g.node(&format!("{name} {row} cut"), Op::Slice(slice), &[x]);
                            g.node(&format!("{name} {row}"), Op::Reshape(to), &[cut])
                        };
                    let qkv = [("q", 0), ("k", 1), ("v", 2)].map(|(name, at)| {
                        let to = vec![tokens, heads, dims];
                        part(&mut g, name, qkv, [row, 0, at * width], vec![1, tokens, width], to)
                    });
                    let starts = part(&mut g, "starts", starts, [row, 0, 0], vec![1, count], vec![count]);
                    let y = g.packed_attention(&format!("attention {row}"), qkv, starts, None, longest);
                    g.node(&format!("row {row}"), Op::Reshape(vec![1, tokens, width]), &[y])
                })
                .collect();
            let all = g.node("all", Op::Concat(0), &mixed);
            g.output("mixed", all);
            g.finish()
        })
    }

    fn compare<T: Half>(&self, qkv: &[f32], rows: &[Range<usize>], found: &[f32]) -> Result<(), String> {
        let Self { heads, dims, tokens, .. } = *self;
        let width = heads * dims;
        let halves = T::all(qkv.iter().map(|&x| f64::from(x)));
        let products: usize = rows.iter().map(|row| row.len() * row.len() * width).sum();
        let step = products.div_ceil(MOST_PRODUCTS) | 1;
        let scale = (dims as f64).sqrt().recip();
        let places = (0..tokens * heads).map(|index| (index / heads, index % heads));
        for (place, (token, head)) in places.enumerate() {
            let result = &found[token * width + head * dims..][..dims];
            let Some(row) = rows.iter().find(|row| row.contains(&token)) else {
                match result.iter().all(|x| *x == 0.0) {
                    true => continue,
                    false => return Err(format!("token {token}, which is in no row, head {head}: {result:?}")),
                }
            };
            if place % step != 0 {
                continue;
            }
            let of = |token: usize, part: usize| &halves[(token * 3 + part) * width + head * dims..][..dims];
            let key = |key: usize| (of(row.start + key, 1), of(row.start + key, 2));
            let pairs = attend(of(token, 0), key, |_| 0.0, row.len(), scale, Scores::Floats);
            let (values, errors) = pairs.into_iter().unzip();
            let check = Expected { shape: Shape::vector(dims), values, errors }.check(Growth::Worst, result);
            check.map_err(|error| format!("row {row:?}, token {token}, head {head}: {error}"))?;
        }
        Ok(())
    }

    /// Checks that a row keeps its bits beside tokens that are not finite, and alone at the last possible place.
    fn is_the_same_elsewhere(
        &self,
        engine: &Engine,
        qkv: &[f32],
        pack: &[i64],
        row: &Range<usize>,
        found: &[f32],
    ) -> Result<(), String> {
        let (of_token, width) = (3 * self.heads * self.dims, self.heads * self.dims);
        let own = &qkv[row.start * of_token..row.end * of_token];
        let place = self.tokens - row.len();
        let mut alone = vec![0; pack.len()];
        let last = alone.len() - 1;
        (alone[last - 1], alone[last]) = (place as i64, self.tokens as i64);
        for (what, starts, at) in [("beside others", pack, row.start), ("alone", &alone, place)] {
            let mut values: Vec<f32> = (0..qkv.len()).map(|i| [f32::NAN, f32::INFINITY][i / 3 % 2]).collect();
            values[at * of_token..][..own.len()].copy_from_slice(own);
            let result = run(engine, &values, starts)?;
            let bits = |of: &[f32], at: usize| -> Vec<u32> {
                of[at * width..][..row.len() * width].iter().map(|x| x.to_bits()).collect()
            };
            if bits(&result, at) != bits(found, row.start) {
                return Err(format!("row {row:?} has other bits {what}"));
            }
        }
        Ok(())
    }
}

fn run(engine: &Engine, qkv: &[f32], starts: &[i64]) -> Result<Vec<f32>, String> {
    let told = |error: Error| error.to_string();
    let mut batch = engine.acquire().map_err(told)?;
    batch.port_mut::<f32>(0, "qkv").map_err(told)?.copy_from_slice(qkv);
    batch.port_mut::<i64>(0, "starts").map_err(told)?.copy_from_slice(starts);
    let output = batch.submit(1).and_then(|ticket| ticket.wait()).map_err(told)?;
    Ok(output.port::<f32>(0, "mixed").map_err(told)?.to_vec())
}

/// The rows between these numbers, by the rules of `Op::PackedAttention`.
fn rows(starts: &[i64], tokens: usize, longest: usize) -> Vec<Range<usize>> {
    let mut places: Vec<usize> =
        starts.iter().filter_map(|&start| usize::try_from(start).ok()).filter(|&start| start <= tokens).collect();
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|row| row[0]..row[1].min(row[0] + longest)).collect()
}

/// The most products of queries, keys and values that plain loops have time for.
const MOST_PRODUCTS: usize = 4 << 20;
