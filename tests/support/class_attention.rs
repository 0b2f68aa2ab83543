//! Attention of one row with the norm and the product before it, by plain loops in f64, with the error that a kernel of f16
//! or bf16 may have, and problems for it, each a network of values.

use half::{bf16, f16};
use trefoil::graph::{Expr, Graph, GraphBuilder, Linear, Norm, Op, Slice, ValueId};
use trefoil::model::{Model, Weights};
use trefoil::plan::{Choices, Kernel, StepOp};
use trefoil::{Device, Dtype, Engine, Error, Precision, Shape};

use super::convolution::number;
use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth, Storage, U32};

/// Random rows, of which one attends to all.
#[derive(Clone, Debug)]
pub struct Problem {
    precision: Precision,
    images: usize,
    heads: usize,
    tokens: usize,
    /// The row that attends.
    query: usize,
    /// The places of queries, keys and values beside each other.
    order: [usize; 3],
    has_bias: bool,
    /// The largest absolute value of the matrix, times the root of its terms.
    most: f64,
    /// Whether an element of image `SPOILED` is NaN: its result is, and no other image's.
    is_spoiled: bool,
    /// The norm of the rows, if there is one.
    norm: Option<Normed>,
}

/// A norm, and rows for it.
#[derive(Clone, Copy, Debug)]
struct Normed {
    centred: bool,
    has_bias: bool,
    /// The mean of the rows' values, which lie up to 2 to either side.
    mean: f64,
}

/// How large the values of rows are that are normed, in turns.
const SIZES: [f64; 5] = [1.0, 0.25, 3.0, 0.5, 2.0];
/// The number that norms add to variances.
const EPSILON: f64 = 1e-5;

/// The image of which an element is NaN, where one is.
const SPOILED: usize = 1;
/// The number of values of a head.
const DIMS: usize = 64;

/// Norms of different kinds, and rows whose mean is up to ten times their deviation.
const KINDS: [Normed; 5] = [
    Normed { centred: true, has_bias: true, mean: 0.25 },
    Normed { centred: true, has_bias: false, mean: -0.5 },
    Normed { centred: false, has_bias: true, mean: 0.25 },
    Normed { centred: false, has_bias: false, mean: 1.0 },
    Normed { centred: true, has_bias: true, mean: 12.0 },
];

/// A problem of each kind of norm, and one without.
pub fn small(precision: Precision) -> Vec<Problem> {
    let of = |norm| Problem { norm, ..Problem::of(precision, 1, 2, 6) };
    KINDS.into_iter().map(Some).chain([None]).map(of).collect()
}

/// All problems in f16 or bf16.
pub fn all(precision: Precision) -> Vec<Problem> {
    let of = |images, heads, tokens| Problem::of(precision, images, heads, tokens);
    // As in ViT-B/16, CLIP L/14, DINOv2 B/14, ViT-S/16 and DeiT-Ti/16.
    let mut all = vec![of(3, 12, 197), of(2, 16, 257), of(9, 12, 257), of(2, 6, 197), of(5, 3, 197)];
    // One row, and numbers of rows around those that are multiplied at a time and that a block has.
    all.extend(
        [1, 2, 15, 16, 17, 31, 32, 33, 48, 64, 65, 79, 80, 81, 96, 97, 128, 577, 1025].map(|tokens| of(2, 4, tokens)),
    );
    all.extend([80, 81].map(|tokens| of(2, 16, tokens)));
    // Any number of heads, and images: clusters of one, of several, of eight, of more, and of as many as there are blocks.
    all.extend((2..=16).map(|heads| of(1, heads, 50)));
    all.extend([1, 2, 3, 7, 8, 9, 16, 17].map(|images| of(images, 2, 21)));
    let in_clusters = [(71, 3), (43, 5), (36, 7), (22, 9), (22, 11), (22, 13), (22, 15), (56, 16), (57, 16), (64, 16)];
    all.extend(in_clusters.map(|(images, heads)| of(images, heads, 9)));
    all.extend([(112, 16), (113, 16), (93, 12), (85, 12), (120, 8)].map(|(images, heads)| of(images, heads, 9)));
    all.push(of(1100, 2, 10));
    all.extend([5, 36].map(|query| Problem { query, ..of(2, 5, 37) }));
    all.extend([[2, 0, 1], [1, 2, 0]].map(|order| Problem { order, ..of(2, 5, 37) }));
    all.push(Problem { has_bias: false, ..of(3, 6, 50) });
    all.extend([of(3, 12, 50), of(17, 16, 9)].map(|of| Problem { is_spoiled: true, ..of }));
    // Scores far apart, and scores that are almost the same.
    all.extend([0.01, 8.0].map(|most| Problem { most, ..of(2, 12, 50) }));
    // The same with norms.
    let normed: Vec<_> = all
        .iter()
        .zip(KINDS.into_iter().cycle())
        .map(|(problem, norm)| Problem { norm: Some(norm), ..problem.clone() })
        .collect();
    all.extend(normed);
    all
}

impl Problem {
    fn of(precision: Precision, images: usize, heads: usize, tokens: usize) -> Self {
        Self {
            precision,
            images,
            heads,
            tokens,
            query: 0,
            order: [0, 1, 2],
            has_bias: true,
            most: 2.0,
            is_spoiled: false,
            norm: None,
        }
    }

    fn columns(&self) -> usize {
        self.heads * DIMS
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.images * self.columns()
    }

    /// Runs the problem on a device of compute capability 9.0, with its kernel, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.precision {
            Precision::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let operands = self.operands::<T>();
        let (columns, own) = (self.columns(), self.clone());
        let tensors = [
            ("qkv.weight", vec![3 * columns, columns], operands.matrix.clone()),
            ("qkv.bias", vec![3 * columns], operands.bias.clone()),
            ("norm.weight", vec![columns], operands.norm_weight.clone()),
            ("norm.bias", vec![columns], operands.norm_bias.clone()),
        ];
        let is_there = |name: &str| match name {
            "qkv.bias" => self.has_bias,
            "norm.weight" => self.norm.is_some(),
            "norm.bias" => self.norm.is_some_and(|norm| norm.has_bias),
            _ => true,
        };
        let tensors = tensors.into_iter().filter(|(name, ..)| is_there(name));
        let told = |error: Error| error.to_string();
        let weights = Weights::from_tensors(tensors);
        let model = weights.and_then(|weights| Model::of_graphs(weights, move |rows| own.graph(rows))).map_err(told)?;
        let engine = Engine::builder(&model).on(device).precision(self.precision).batch_sizes(&[self.images]);
        let choices = Choices::from([("attention".into(), Kernel::Sm90ClassAttention)]);
        let engine = engine.choices(choices).check(true).build().map_err(told)?;
        let plan = &engine.plans()[0];
        let is_kernel = |op: &StepOp| match op {
            StepOp::ClassAttention(of) => of.norm.is_some() == self.norm.is_some(),
            _ => false,
        };
        if !plan.steps.iter().any(|step| is_kernel(&step.op)) {
            return Err(format!("the kernel with all that it can compute is not in the plan:\n{plan}"));
        }
        let mut batch = engine.acquire().map_err(told)?;
        for (row, image) in operands.images.iter().enumerate() {
            batch.port_mut::<f32>(row, "x").map_err(told)?.copy_from_slice(image);
        }
        let output = batch.submit(self.images).and_then(|ticket| ticket.wait()).map_err(told)?;
        for (row, image) in operands.images.iter().enumerate().filter(|(row, _)| self.is_compared(*row)) {
            let actual = output.port::<f32>(row, "y").map_err(told)?;
            if self.is_spoiled && row == SPOILED {
                let are_nan = actual.iter().all(|y| y.is_nan());
                are_nan.then_some(()).ok_or("the image with NaN has numbers")?;
                continue;
            }
            let expected = self.expected(image, &operands);
            expected.check(GROWTH, actual).map_err(|error| format!("image {row}: {error}"))?;
        }
        Ok(())
    }

    /// The reference has no time for many images: the first and last eight are compared.
    fn is_compared(&self, image: usize) -> bool {
        image < 8 || image + 8 >= self.images
    }

    /// Rows and matrix are values of the type, so their conversion is exact.
    fn operands<T: Half>(&self) -> Operands {
        let mut random = Random::new(&format!("{} {} {}", self.heads, self.tokens, self.most));
        let columns = self.columns();
        let mut halves = |count: usize, most: f64, mean: f64| {
            let values = random.singles(count, most);
            values.into_iter().map(|value| T::of(mean + f64::from(value)).value() as f32).collect::<Vec<f32>>()
        };
        // Of rows that are normed each has a mean and a deviation of its own.
        let size = |token: usize| self.norm.map_or((1.0, 0.0), |norm| (SIZES[token % SIZES.len()], norm.mean));
        let mut image = || -> Vec<f32> {
            let rows = (0..self.tokens).map(size);
            rows.flat_map(|(size, mean)| halves(columns, 2.0 * size, mean * size)).collect()
        };
        let mut images: Vec<_> = (0..self.images).map(|_| image()).collect();
        if self.is_spoiled {
            images[SPOILED][columns + 3] = f32::NAN;
        }
        let matrix = halves(3 * columns * columns, self.most / (columns as f64).sqrt(), 0.0);
        let bias = if self.has_bias { halves(3 * columns, 0.5, 0.0) } else { vec![0.0; 3 * columns] };
        let norm_weight = if self.norm.is_some() { halves(columns, 0.5, 1.0) } else { vec![1.0; columns] };
        let has_bias = self.norm.is_some_and(|norm| norm.has_bias);
        let norm_bias = if has_bias { halves(columns, 0.5, 0.0) } else { vec![0.0; columns] };
        Operands { images, matrix, bias, norm_weight, norm_bias }
    }

    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        let mut g = GraphBuilder::new();
        let columns = self.columns();
        let x = g.input("x", Dtype::F32, &[rows, self.tokens, columns]);
        let mut of = Linear::named("qkv", 3 * columns);
        of.bias = of.bias.filter(|_| self.has_bias);
        let rows_of_product = self.norm.map_or(x, |norm| {
            let weight = g.weight("norm.weight", Dtype::F32, &[columns]);
            let bias = norm.has_bias.then(|| g.weight("norm.bias", Dtype::F32, &[columns]));
            let inputs: Vec<ValueId> = [Some(x), Some(weight), bias].into_iter().flatten().collect();
            g.node("norm", Op::Norm(Norm { axis: 2, centred: norm.centred, eps: EPSILON }), &inputs)
        });
        let qkv = g.linear_with("qkv", rows_of_product, of);
        let part = |g: &mut GraphBuilder, name: &str, part: usize, [first, tokens]: [usize; 2]| -> ValueId {
            let slice = Slice {
                start: vec![0, first, self.order[part] * columns],
                step: vec![1; 3],
                dims: vec![rows, tokens, columns],
            };
            let cut = g.node(&format!("{name}.cut"), Op::Slice(slice), &[qkv]);
            g.node(name, Op::Reshape(vec![rows, tokens, self.heads, DIMS]), &[cut])
        };
        let q = part(&mut g, "q", 0, [self.query, 1]);
        let [k, v] = [("k", 1), ("v", 2)].map(|(name, index)| part(&mut g, name, index, [0, self.tokens]));
        let y = g.attention("attention", [q, k, v], None);
        let y = g.node("together", Op::Reshape(vec![rows, columns]), &[y]);
        // Not the step's own result, which is in 16 bits.
        let y = g.map("result", Expr::arg(0) * number(1.0), &[y]);
        g.output("y", y);
        g.finish()
    }

    /// What the norm makes of a row. The kernel makes the mean of the squares less the square of the mean.
    fn row_norm(&self, row: &[f32]) -> RowNorm {
        let Some(norm) = self.norm else { return RowNorm { mean: (0.0, 0.0), scale: (1.0, 0.0) } };
        let count = row.len() as f64;
        let sum = |of: fn(f64) -> f64| row.iter().map(|&x| of(x.into())).sum::<f64>();
        let off = |magnitude: f64| GROWTH.sum(Storage::F16, row.len() + 16, magnitude) / count;
        let mean = if norm.centred { sum(|x| x) / count } else { 0.0 };
        let of_mean = if norm.centred { off(sum(f64::abs)) + U32 * mean.abs() } else { 0.0 };
        let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let squares = sum(|x| x * x);
        let of_variance = off(squares) + 2.0 * mean.abs() * of_mean + of_mean.powi(2) + 4.0 * U32 * (squares / count);
        let scale = (variance + EPSILON).sqrt().recip();
        let part = of_variance / (variance + EPSILON);
        assert!(part < 0.1, "the bound needs rows that differ from their mean");
        RowNorm { mean: (mean, of_mean), scale: (scale, scale * ((1.0 - part).sqrt().recip() - 1.0 + 8.0 * U32)) }
    }

    /// The expected result of an image, with the deviation of each value. Deviations of roundings go through each product of
    /// the kernel; its exponentials, logarithms and roots are off by 2^-22 of themselves, as `exp2_approximate` says.
    fn expected(&self, image: &[f32], operands: &Operands) -> Expected {
        let columns = self.columns();
        let dtype = if self.precision == Precision::Bf16 { Dtype::Bf16 } else { Dtype::F16 };
        let rounded = |value: f64, error: f64| GROWTH.read(Storage::Operands(dtype), value, error);
        let row = |token: usize| image[token * columns..][..columns].iter().map(|&x| f64::from(x));
        let norms: Vec<RowNorm> =
            (0..self.tokens).map(|token| self.row_norm(&image[token * columns..][..columns])).collect();
        let gain = |i: usize| (f64::from(operands.norm_weight[i]), f64::from(operands.norm_bias[i]));
        // The row that asks: as it is, or the norm of it rounded.
        let asks: Vec<(f64, f64)> = row(self.query)
            .enumerate()
            .map(|(i, x)| {
                let RowNorm { mean: (mean, of_mean), scale: (scale, of_scale) } = norms[self.query];
                let (x, (weight, bias)) = (x - mean, gain(i));
                let value = weight * x * scale + bias;
                let off = 4.0 * U32 * (value.abs() + bias.abs());
                let error = weight.abs() * (of_mean * scale + x.abs() * of_scale) + off;
                (value, if self.norm.is_some() { rounded(value, error) } else { 0.0 })
            })
            .collect();
        let weights = |part: usize, head: usize, d: usize| {
            let of = self.order[part] * columns + head * DIMS + d;
            (&operands.matrix[of * columns..][..columns], f64::from(operands.bias[of]))
        };
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for head in 0..self.heads {
            let scale = 1.0 / (DIMS as f64).sqrt();
            let query = (0..DIMS).map(|d| {
                let (matrix, bias) = weights(0, head, d);
                let (sum, error) = sum_of(matrix.iter().zip(&asks).map(|(&w, &x)| (w.into(), x)), bias);
                (scale * sum, rounded(scale * sum, scale * error))
            });
            let query: Vec<(f64, f64)> = query.collect();
            let turned = (0..columns).map(|i| {
                let terms = query.iter().enumerate().map(|(d, &q)| (f64::from(weights(1, head, d).0[i]), q));
                let ((sum, error), (gain, _)) = (sum_of(terms, 0.0), gain(i));
                (sum * gain, rounded(sum * gain, error * gain.abs()))
            });
            let turned: Vec<(f64, f64)> = turned.collect();
            let of_ones: f64 = turned.iter().map(|(u, _)| u.abs()).sum();
            // Products with the norm's biases are the same for all rows, and left out. To a score comes the logarithm of its
            // row's scale, so that the weight of a row is one over its deviation as well.
            let score = |token: usize| {
                let RowNorm { mean: (mean, of_mean), scale: (scale, of_scale) } = norms[token];
                let terms = || row(token).zip(&turned);
                let sum: f64 = terms().map(|(x, (u, _))| (x - mean) * u).sum();
                let of_turned = GROWTH.join(terms().map(|(x, (_, error))| (x - mean) * error));
                let magnitude: f64 = terms().map(|(x, (u, _))| x.abs() * u.abs()).sum();
                let own = GROWTH.sum(Storage::F16, columns + 16, magnitude + mean.abs() * of_ones);
                let error = GROWTH.join([of_turned, own, of_mean * of_ones].into_iter()) * scale;
                let of_scale = of_scale / scale * (1.0 + (sum * scale).abs());
                let score = sum * scale + scale.ln();
                (score, error + of_scale + 8.0 * U32 * (score.abs() + 1.0))
            };
            let scores: Vec<(f64, f64)> = (0..self.tokens).map(score).collect();
            let top = scores.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
            // Weights times deviations are the weights of a softmax; their sum divides all weights, which are off by as
            // much as it is. Each weight is rounded before it is divided.
            let parts =
                scores.iter().zip(&norms).map(|(&(score, error), norm)| ((score - top).exp() / norm.scale.0, error));
            let parts: Vec<(f64, f64)> = parts.collect();
            let total: f64 = parts.iter().map(|(part, _)| part).sum();
            let of_total: f64 = parts.iter().map(|(part, error)| part / total * error).sum();
            let share = |&(score, error): &(f64, f64)| {
                let weight = (score - top).exp();
                let off = error + of_total + 8.0 * U32 * ((score - top).abs() + 1.0);
                (weight / total, rounded(weight, weight * off) / total)
            };
            let shares: Vec<(f64, f64)> = scores.iter().map(share).collect();
            let mixed = (0..columns).map(|i| {
                let terms = || {
                    let x = (0..self.tokens).map(|token| f64::from(image[token * columns + i]));
                    x.zip(&norms).zip(&shares).map(|((x, norm), &share)| (x - norm.mean.0, norm, share))
                };
                let sum: f64 = terms().map(|(x, _, (p, _))| p * x).sum();
                let of_shares = GROWTH.join(terms().map(|(x, _, (_, error))| error * x));
                let of_means: f64 = terms().map(|(_, norm, (p, _))| p * norm.mean.1).sum();
                // A turned query takes all shares off in the way that the sum of its own column follows.
                let of_turned: f64 = terms().map(|(x, norm, (p, _))| p * norm.scale.0 * x * x).sum();
                let magnitude: f64 = terms().map(|(x, norm, (p, _))| p * (x.abs() + 2.0 * norm.mean.0.abs())).sum();
                let own = GROWTH.sum(Storage::F16, self.tokens + 16, magnitude);
                let error = GROWTH.join([of_shares, of_means, of_turned * turned[i].1, own].into_iter());
                let (weight, bias) = gain(i);
                let value = sum * weight + bias;
                (value, rounded(value, error * weight.abs() + 2.0 * U32 * (value.abs() + bias.abs())))
            });
            let mixed: Vec<(f64, f64)> = mixed.collect();
            for d in 0..DIMS {
                let (matrix, bias) = weights(2, head, d);
                let (sum, error) = sum_of(matrix.iter().zip(&mixed).map(|(&w, &z)| (w.into(), z)), bias);
                values.push(sum);
                errors.push(rounded(sum, error));
            }
        }
        Expected { shape: Shape::vector(columns), values, errors }
    }

    /// Results that are wrong in one way each, of an image without anything infinite, by what is wrong.
    pub fn wrong(&self) -> Vec<(&'static str, Result<(), String>)> {
        match self.precision {
            Precision::Bf16 => self.wrong_of::<bf16>(),
            _ => self.wrong_of::<f16>(),
        }
    }

    fn wrong_of<T: Half>(&self) -> Vec<(&'static str, Result<(), String>)> {
        let operands = self.operands::<T>();
        let image = &operands.images[0];
        let expected = self.expected(image, &operands);
        let told = |what, values: Vec<f64>| {
            let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
            (what, expected.check(GROWTH, &values))
        };
        let of = |what, problem: &Problem, image: &[f32], operands: &Operands| {
            told(what, problem.expected(image, operands).values)
        };
        let changed = |change: &dyn Fn(&mut Operands)| {
            let mut operands = self.operands::<T>();
            change(&mut operands);
            operands
        };
        let columns = self.columns();
        let keys = (self.order[1] * columns * columns, (self.order[1] + 1) * columns * columns);
        let without_keys = changed(&|operands| operands.matrix[keys.0..keys.1].fill(0.0));
        let fewer = Problem { tokens: self.tokens - 1, ..self.clone() };
        let other = Problem { query: (self.query + 1) % self.tokens, ..self.clone() };
        let swapped = [&image[columns..2 * columns], &image[..columns], &image[2 * columns..]].concat();
        let mut all = vec![
            of("equal weights", self, image, &without_keys),
            of("no last key", &fewer, image, &operands),
            of("another query", &other, image, &operands),
            of("no biases", self, image, &changed(&|operands| operands.bias.fill(0.0))),
            of("rows in another order", self, &swapped, &operands),
        ];
        if let Some(norm) = self.norm {
            let with = |norm| Problem { norm, ..self.clone() };
            all.extend([
                of("no norm", &with(None), image, &operands),
                of("another mean", &with(Some(Normed { centred: !norm.centred, ..norm })), image, &operands),
                of("no factors", self, image, &changed(&|operands| operands.norm_weight.fill(1.0))),
            ]);
            if norm.has_bias {
                let without = changed(&|operands| operands.norm_bias.fill(0.0));
                all.push(of("no biases of the norm", self, image, &without));
            }
        }
        all
    }
}

/// How deviations grow: those of roundings are independent of each other.
const GROWTH: Growth = Growth::Quadrature;

/// The sum of products of exact numbers with numbers that have deviations, and of a bias, with its deviation as tensor cores
/// add products; warps' sums are added once more.
fn sum_of(terms: impl Iterator<Item = (f64, (f64, f64))>, bias: f64) -> (f64, f64) {
    let (mut sum, mut squares, mut magnitude, mut count) = (bias, 0.0, bias.abs(), 16);
    for (exact, (value, error)) in terms {
        sum += exact * value;
        squares += (exact * error).powi(2);
        magnitude += (exact * value).abs();
        count += 1;
    }
    (sum, GROWTH.join([squares.sqrt(), GROWTH.sum(Storage::F16, count, magnitude)].into_iter()))
}

/// What a norm takes from a row, and what it multiplies it by, each with its error.
#[derive(Clone, Copy)]
struct RowNorm {
    mean: (f64, f64),
    scale: (f64, f64),
}

/// Rows, matrix and biases of a problem, and the vectors of its norm: ones and zeros where there is none.
struct Operands {
    images: Vec<Vec<f32>>,
    matrix: Vec<f32>,
    bias: Vec<f32>,
    norm_weight: Vec<f32>,
    norm_bias: Vec<f32>,
}
