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

/// The number that norms add to variances.
const EPSILON: f64 = 1e-5;

/// The image of which an element is NaN, where one is.
const SPOILED: usize = 1;
/// The number of values of a head.
const DIMS: usize = 64;

/// All problems in f16 or bf16.
pub fn all(precision: Precision) -> Vec<Problem> {
    let of = |images, heads, tokens| Problem {
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
    };
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
    // The same with norms of different kinds, and rows whose mean is up to ten times their deviation.
    let kinds = [(true, true, 0.25), (true, false, -0.5), (false, true, 0.25), (false, false, 1.0), (true, true, 12.0)];
    let normed: Vec<_> = all
        .iter()
        .enumerate()
        .map(|(index, problem)| {
            let (centred, has_bias, mean) = kinds[index % kinds.len()];
            Problem { norm: Some(Normed { centred, has_bias, mean }), ..problem.clone() }
        })
        .collect();
    all.extend(normed);
    all
}

impl Problem {
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
            let expected = self.expected::<T>(image, &operands);
            expected.check(Growth::Worst, actual).map_err(|error| format!("image {row}: {error}"))?;
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
        let mean = self.norm.map_or(0.0, |norm| norm.mean);
        let mut images: Vec<_> = (0..self.images).map(|_| halves(self.tokens * columns, 2.0, mean)).collect();
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
        let off = |magnitude: f64| Growth::Worst.sum(Storage::F16, row.len() + 16, magnitude) / count;
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

    /// The expected result of an image, with the error of each value. A value with its error goes through each product and
    /// each rounding of the kernel; its exponentials, logarithms and roots are off by 2^-22 of themselves, as
    /// `exp2_approximate` says.
    fn expected<T: Half>(&self, image: &[f32], operands: &Operands) -> Expected {
        let (columns, rounding) = (self.columns(), T::ROUNDING);
        let row = |token: usize| &image[token * columns..][..columns];
        let norms: Vec<RowNorm> = (0..self.tokens).map(|token| self.row_norm(row(token))).collect();
        let gain = |i: usize| (f64::from(operands.norm_weight[i]), f64::from(operands.norm_bias[i]));
        // The row that asks: as it is, or the norm of it rounded.
        let asks: Vec<(f64, f64)> = row(self.query)
            .iter()
            .enumerate()
            .map(|(i, &x)| {
                let RowNorm { mean: (mean, of_mean), scale: (scale, of_scale) } = norms[self.query];
                let (x, (weight, bias)) = (f64::from(x) - mean, gain(i));
                let value = weight * x * scale + bias;
                let error = weight.abs() * (of_mean * (scale + of_scale) + x.abs() * of_scale);
                let error = error + 4.0 * U32 * (value.abs() + 2.0 * bias.abs() + error);
                (value, if self.norm.is_some() { rounding.rounded(value, error) } else { 0.0 })
            })
            .collect();
        let weights = |part: usize, head: usize, d: usize| {
            let of = self.order[part] * columns + head * DIMS + d;
            (&operands.matrix[of * columns..][..columns], f64::from(operands.bias[of]))
        };
        let scale = 1.0 / (DIMS as f64).sqrt();
        let (mut values, mut errors) = (Vec::new(), Vec::new());
        for head in 0..self.heads {
            let query = (0..DIMS).map(|d| {
                let (matrix, bias) = weights(0, head, d);
                let sum = Sum::of(matrix.iter().zip(&asks).map(|(&w, &(x, error))| (w.into(), x, error)));
                let (sum, error) = sum.plus(bias);
                let error = scale * (error + 4.0 * U32 * (sum.abs() + error));
                (scale * sum, rounding.rounded(scale * sum, error))
            });
            let query: Vec<(f64, f64)> = query.collect();
            let turned: Vec<(f64, f64)> = (0..columns)
                .map(|i| {
                    let terms = query
                        .iter()
                        .enumerate()
                        .map(|(d, &(q, error))| (f64::from(weights(1, head, d).0[i]), q, error));
                    let (sum, error) = Sum::of(terms).plus(0.0);
                    let (weight, _) = gain(i);
                    let (turned, error) = (sum * weight, error * weight.abs());
                    (turned, rounding.rounded(turned, error + U32 * (turned.abs() + error)))
                })
                .collect();
            // Products with the norm's biases are the same for all rows, and left out. To a score comes the logarithm of its
            // row's scale, so that the weight of a row is one over its deviation as well.
            let scores: Vec<(f64, f64)> = (0..self.tokens)
                .map(|token| {
                    let RowNorm { mean: (mean, of_mean), scale: (scale, of_scale) } = norms[token];
                    let terms = || row(token).iter().map(|&x| f64::from(x)).zip(turned.iter().copied());
                    let sum: f64 = terms().map(|(x, (u, _))| (x - mean) * u).sum();
                    let of_sum: f64 = terms().map(|(x, (_, error))| (x - mean).abs() * error).sum();
                    let magnitude: f64 = terms().map(|(x, (u, error))| x.abs() * (u.abs() + error)).sum();
                    let of_ones: f64 = terms().map(|(_, (u, error))| u.abs() + error).sum();
                    let own = Growth::Worst.sum(Storage::F16, columns + 16, magnitude + mean.abs() * of_ones);
                    let error = of_sum + own + of_mean * of_ones;
                    let logarithm = scale.ln();
                    let error = error * (scale + of_scale) + sum.abs() * of_scale + of_scale / (scale - of_scale);
                    let score = sum * scale + logarithm;
                    (score, error + 8.0 * U32 * (score.abs() + logarithm.abs() + error))
                })
                .collect();
            let top = scores.iter().map(|(score, _)| *score).fold(f64::NEG_INFINITY, f64::max);
            let of_top = scores.iter().map(|(_, error)| *error).fold(0.0, f64::max);
            let exps: Vec<(f64, f64)> = scores
                .iter()
                .map(|&(score, error)| {
                    let off = error + of_top + 8.0 * U32 * ((score - top).abs() + of_top + error) + 4.0 * U32;
                    ((score - top).exp(), off.exp_m1())
                })
                .collect();
            // Of weights times deviations, which are the weights that a softmax has.
            let deviation = |token: usize| norms[token].scale.0.recip();
            let of_deviation = |token: usize| norms[token].scale.1 / (norms[token].scale.0 - norms[token].scale.1);
            let totals =
                || exps.iter().enumerate().map(|(token, &(weight, off))| (token, weight * deviation(token), off));
            let total: f64 = totals().map(|(_, part, _)| part).sum();
            let of_total = totals().map(|(token, part, off)| part * ((1.0 + off) * (1.0 + of_deviation(token)) - 1.0));
            let of_total = of_total.sum::<f64>() / total + (self.tokens + 8) as f64 * U32;
            let shares: Vec<(f64, f64)> = exps
                .iter()
                .enumerate()
                .map(|(token, &(weight, off))| {
                    let share = weight / total;
                    // A quotient of two numbers that are off by these parts, and at most one over a deviation.
                    let error = share * ((1.0 + off) / (1.0 - of_total).max(f64::EPSILON) - 1.0);
                    let error = error.min(norms[token].scale.0 + norms[token].scale.1);
                    // Weights are rounded before they are divided.
                    let tiny = rounding.tiny * (1.0 / total / (1.0 - of_total).max(f64::EPSILON)).max(1.0);
                    (share, rounding.rounded(share, error) + tiny)
                })
                .collect();
            let mixed: Vec<(f64, f64)> = (0..columns)
                .map(|i| {
                    let (weight, bias) = gain(i);
                    let terms =
                        || shares.iter().zip(&norms).zip((0..self.tokens).map(|token| f64::from(row(token)[i])));
                    let sum: f64 = terms().map(|(((p, _), norm), x)| p * (x - norm.mean.0)).sum();
                    let of_sum: f64 = terms().map(|(((_, error), norm), x)| error * (x - norm.mean.0).abs()).sum();
                    let of_means: f64 = terms().map(|(((p, error), norm), _)| (p + error) * norm.mean.1).sum();
                    let magnitude: f64 =
                        terms().map(|(((p, error), norm), x)| (p + error) * (x.abs() + norm.mean.0.abs())).sum();
                    let own = Growth::Worst.sum(Storage::F16, self.tokens + 16, magnitude);
                    let error = of_sum + of_means + own + 4.0 * U32 * magnitude;
                    let (value, error) = (sum * weight + bias, error * weight.abs());
                    (value, rounding.rounded(value, error + 2.0 * U32 * (value.abs() + error)))
                })
                .collect();
            for d in 0..DIMS {
                let (matrix, bias) = weights(2, head, d);
                let terms = matrix.iter().zip(&mixed).map(|(&w, &(z, error))| (f64::from(w), z, error));
                let (sum, error) = Sum::of(terms).plus(bias);
                // The weights add up to 1 with the error of their roundings, which the bias is not multiplied by.
                values.push(sum);
                errors.push(rounding.rounded(sum, error));
            }
        }
        Expected { shape: Shape::vector(columns), values, errors }
    }
}

/// A sum of products of exact numbers with numbers that have errors.
#[derive(Default)]
struct Sum {
    value: f64,
    error: f64,
    magnitude: f64,
    terms: usize,
}

impl Sum {
    fn of(terms: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        terms.fold(Self::default(), |sum, (exact, value, error)| Self {
            value: sum.value + exact * value,
            error: sum.error + exact.abs() * error,
            magnitude: sum.magnitude + exact.abs() * (value.abs() + error),
            terms: sum.terms + 1,
        })
    }

    /// The sum and a bias, with the error of both as tensor cores add products; warps' sums are added once more.
    fn plus(self, bias: f64) -> (f64, f64) {
        let own = Growth::Worst.sum(Storage::F16, self.terms + 16, self.magnitude + bias.abs());
        (self.value + bias, self.error + own)
    }
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
