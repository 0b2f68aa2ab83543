//! LayerNorm and RMSNorm by plain loops in f64, with the error that a kernel of f16 or bf16 may have, and problems for
//! them.

use half::{bf16, f16};
use trefoil::plan::{JoinedNorm, RowSum, RowsAt};
use trefoil::{Device, Dtype, RowNormCodes, RowNormOperands, RowNormRun, RowSumOperands, Shape};

use super::codes;
use super::halves::Half;
use super::random::Random;
use super::tolerance::{Expected, Growth, Rounding, Storage, U32};

/// Random rows, or rows that lie far from zero.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The type of operands and result: f16 or bf16.
    pub dtype: Dtype,
    pub sizes: [usize; 2],
    pub centred: bool,
    has_bias: bool,
    /// The mean of the rows' values, and their largest distance from it.
    offset: f64,
    spread: f64,
}

/// All problems of a type.
pub fn all(dtype: Dtype) -> Vec<Problem> {
    let of = |rows, columns| {
        let sizes = [rows, columns];
        Problem { dtype, sizes, centred: true, has_bias: true, offset: 0.0, spread: 1.0 }
    };
    let mut all: Vec<Problem> = [8, 64, 256, 264, 384, 768, 1024, 1160, 1280, 1536, 1664, 2048]
        .into_iter()
        .map(|columns| of(13, columns))
        .collect();
    // Above 1024 rows a block computes several of them.
    all.extend([1, 7, 8, 1000, 1025].map(|rows| of(rows, 776)));
    all.extend([8, 64, 256, 264, 1024, 1280, 1536, 1664, 2048].map(|columns| of(1027, columns)));
    // Above 2112 rows a block of those that write floats does.
    all.push(of(4500, 72));
    all.extend([false, true].map(|centred| Problem { centred, ..of(4300, 264) }));
    all.extend([false, true].map(|centred| Problem { centred, ..of(2300, 2048) }));
    all.extend([-3.0, 100.0].map(|offset| Problem { offset, ..of(1030, 768) }));
    all.push(Problem { centred: false, has_bias: false, ..of(1100, 2040) });
    all.extend([-3.0, 100.0].map(|offset| Problem { offset, ..of(50, 768) }));
    all.push(Problem { has_bias: false, ..of(50, 768) });
    all.extend([64, 768, 2040].map(|columns| Problem { centred: false, has_bias: false, ..of(50, columns) }));
    all.push(Problem { centred: false, offset: 2.0, ..of(50, 512) });
    if dtype == Dtype::Bf16 {
        // Some values are too large for f16.
        all.extend([50, 1100].map(|rows| Problem { offset: 1e7, spread: 1e8, ..of(rows, 768) }));
    }
    all
}

/// Problems whose results are codes, with scales: some numbers are beyond what a code holds, or lie below the least one.
pub fn to_codes() -> Vec<(Problem, f32)> {
    let scales = [0.02, 1.0 / 448.0, 0.011_7, 1e-3, 0.5].into_iter().cycle();
    all(Dtype::F16).into_iter().zip(scales).collect()
}

impl Problem {
    /// Whether the last rows are computed first.
    fn is_backward(&self) -> bool {
        self.sizes[0] % 2 == 1
    }

    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.sizes[0] * self.sizes[1]
    }

    /// Runs the problem, into a buffer of NaN that is longer than the result, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.dtype {
            Dtype::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let inputs = Inputs::<T>::of(self, "");
        let poisoned = vec![T::POISON; self.buffer()];
        let operands = RowNormOperands { result: (&poisoned, self.result_at()), ..inputs.operands(self) };
        let ran = RowNormRun::new(device, &operands, 1).and_then(|mut run| {
            run.run(2)?;
            run.result()
        });
        let result = ran.map_err(|error| error.to_string())?;
        self.check_places(|i| result[i].is_poison())?;
        let result: Vec<f32> = result.iter().map(|value| value.value() as f32).collect();
        self.check_rows(&inputs, &result, Some(T::ROUNDING))
    }

    /// Runs the problem with a result in f32, into a buffer of NaN that is longer, and compares.
    pub fn run_to_f32(&self, device: &Device) -> Result<(), String> {
        match self.dtype {
            Dtype::Bf16 => self.run_to_f32_of::<bf16>(device),
            _ => self.run_to_f32_of::<f16>(device),
        }
    }

    fn run_to_f32_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let inputs = Inputs::<T>::of(self, " to f32");
        let (halves, poisoned) = (vec![T::POISON; self.buffer()], vec![f32::NAN; self.buffer()]);
        let at = self.result_at();
        let operands =
            RowNormOperands { result: (&halves, at), floats: Some((&poisoned, at)), ..inputs.operands(self) };
        let ran = RowNormRun::new(device, &operands, 1).and_then(|mut run| {
            run.run(2)?;
            Ok((run.floats()?, run.result()?))
        });
        let (result, halves) = ran.map_err(|error| error.to_string())?;
        self.check_places(|i| result[i].is_nan())?;
        if halves.iter().any(|value| !value.is_poison()) {
            return Err("a result in 16 bits was written too".into());
        }
        self.check_rows(&inputs, &result, None)
    }

    /// Where the result lies in its buffer.
    fn result_at(&self) -> RowsAt {
        RowsAt { first: GUARD, pitch: self.sizes[1] + 16 }
    }

    /// The number of values of the buffer, with guards on both sides.
    fn buffer(&self) -> usize {
        self.sizes[0] * self.result_at().pitch + 2 * GUARD
    }

    /// Checks that values of the result are written, and no others of the buffer.
    fn check_places(&self, is_poison: impl Fn(usize) -> bool) -> Result<(), String> {
        let ([rows, columns], RowsAt { pitch, .. }) = (self.sizes, self.result_at());
        let is_result = |i: usize| i >= GUARD && i - GUARD < rows * pitch && (i - GUARD) % pitch < columns;
        match (0..self.buffer()).find(|&i| is_result(i) == is_poison(i)) {
            Some(i) => Err(format!("value {i} was written, or was not, where it is {} to be", is_result(i))),
            None => Ok(()),
        }
    }

    /// Compares the rows of a buffer.
    fn check_rows<T: Half>(
        &self,
        inputs: &Inputs<T>,
        result: &[f32],
        rounding: Option<Rounding>,
    ) -> Result<(), String> {
        let [rows, columns] = self.sizes;
        for row in 0..rows {
            let of_row = |at: RowsAt| at.first + row * at.pitch..at.first + row * at.pitch + columns;
            let bias = |column: usize| if self.has_bias { f64::from(inputs.bias[column]) } else { 0.0 };
            let x: Vec<f64> = inputs.x[of_row(inputs.at)].iter().map(|x| x.value()).collect();
            let expected = Norm { centred: self.centred, weight: &inputs.weight, bias }.of(&x, 0.0, rounding);
            let actual = &result[of_row(self.result_at())];
            expected.check(Growth::Worst, actual).map_err(|error| format!("row {row}: {error}"))?;
        }
        Ok(())
    }

    /// Runs the problem with codes of e4m3 beside the result in f16, and compares: codes are those of the floats that the result is
    /// rounded from. Codes alone are the same. In every fourth column the weight is zero, so that this float is the bias, which has any size and
    /// may be NaN.
    pub fn run_to_codes(&self, device: &Device, scale: f32) -> Result<(), String> {
        let ([rows, columns], at) = (self.sizes, self.result_at());
        let mut inputs = Inputs::<f16>::of(self, &format!(" to codes of {scale}"));
        for column in (1..columns).step_by(4) {
            inputs.weight[column] = 0.0;
            inputs.bias[column] = codes::sample(&mut inputs.random, scale);
        }
        let (poisoned, halves) = (vec![codes::POISON; self.buffer()], vec![f16::NAN; self.buffer()]);
        let [alone, both] = [true, false].map(|alone| {
            let operands = RowNormOperands {
                result: (&halves, at),
                codes: Some(RowNormCodes { values: (&poisoned, at), scale, alone }),
                ..inputs.operands(self)
            };
            let mut run = RowNormRun::new(device, &operands, 1)?;
            run.run(2)?;
            Ok::<_, trefoil::Error>((run.result()?, run.codes()?))
        });
        let ([untouched, halves], [of_alone, result]) = match (alone, both) {
            (Ok(alone), Ok(both)) => ([alone.0, both.0], [alone.1, both.1]),
            (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
        };
        if of_alone != result || untouched.iter().any(|value| value.to_bits() != f16::NAN.to_bits()) {
            return Err("codes alone are not those beside rows, or rows were written too".into());
        }
        for (i, &code) in result.iter().enumerate() {
            let (row, column) = (i.wrapping_sub(GUARD) / at.pitch, i.wrapping_sub(GUARD) % at.pitch);
            let of = || format!("row {row}, column {column}: ");
            if i < GUARD || row >= rows || column >= columns {
                if code != codes::POISON {
                    return Err(of() + "it was written, outside of the result");
                }
            } else if column % 4 == 1 && self.has_bias {
                codes::check_exact(code, inputs.bias[column], scale).map_err(|error| of() + &error)?;
            } else {
                codes::check(code, halves[i], scale).map_err(|error| of() + &error)?;
            }
        }
        Ok(())
    }
}

/// A norm of a row.
struct Norm<'a, B> {
    centred: bool,
    weight: &'a [f32],
    bias: B,
}

impl<B: Fn(usize) -> f64> Norm<'_, B> {
    /// One normalised row, whose values have an error of `given` at most. The mean's error is in each centred value, and their
    /// errors are in the variance; the root halves a relative error, and is approximated to two units of the last place. A
    /// result in f32 is not rounded.
    fn of(&self, x: &[f64], given: f64, rounding: Option<Rounding>) -> Expected {
        let columns = x.len() as f64;
        let sum = |terms: &[f64]| {
            let magnitude = terms.iter().map(|term| term.abs()).sum::<f64>();
            (terms.iter().sum::<f64>() / columns, Growth::Worst.sum(Storage::F32, x.len() + 1, magnitude) / columns)
        };
        let (mean, of_mean) = if self.centred { sum(x) } else { (0.0, 0.0) };
        let of_mean = of_mean + given * if self.centred { 2.0 } else { 1.0 };
        let centred: Vec<f64> = x.iter().map(|x| x - mean).collect();
        let off = |value: f64| of_mean + U32 * (value.abs() + of_mean);
        let squares: Vec<f64> = centred.iter().map(|value| value * value).collect();
        let from_mean =
            centred.iter().map(|value| off(*value) * (2.0 * value.abs() + off(*value))).sum::<f64>() / columns;
        let (variance, of_variance) = sum(&squares);
        let scale = (variance + f64::from(EPSILON)).sqrt().recip();
        let relative = (of_variance + from_mean) / (variance + f64::from(EPSILON)) + 6.0 * U32;
        let finished = |(column, value): (usize, &f64)| {
            let (weight, bias) = (f64::from(self.weight[column]), (self.bias)(column));
            let exact = value * scale * weight + bias;
            let error = (off(*value) + value.abs() * relative) * scale * weight.abs() * (1.0 + 2.0 * relative);
            let error = error + 2.0 * U32 * (exact.abs() + bias.abs());
            (exact, rounding.map_or(error, |rounding| rounding.rounded(exact, error)))
        };
        let (values, errors) = centred.iter().enumerate().map(finished).unzip();
        Expected { shape: Shape::vector(x.len()), values, errors }
    }
}

/// What a norm reads.
struct Inputs<T> {
    x: Vec<T>,
    at: RowsAt,
    weight: Vec<f32>,
    bias: Vec<f32>,
    random: Random,
}

impl<T: Half> Inputs<T> {
    /// Random ones of a problem and a result that is told by a text.
    fn of(problem: &Problem, result: &str) -> Self {
        let ([rows, columns], mut random) = (problem.sizes, Random::new(&format!("{problem:?}{result}")));
        let at = RowsAt { first: 0, pitch: columns + 8 };
        let x = T::all((0..rows * at.pitch).map(|_| problem.offset + problem.spread * random.signed()));
        let (weight, bias) = (random.singles(columns, 2.0), random.singles(columns, 1.0));
        Self { x, at, weight, bias, random }
    }

    /// The operands of a norm that writes nothing yet.
    fn operands(&self, problem: &Problem) -> RowNormOperands<'_, T> {
        RowNormOperands {
            sizes: problem.sizes,
            centred: problem.centred,
            epsilon: EPSILON,
            x: (&self.x, self.at),
            weight: &self.weight,
            bias: problem.has_bias.then_some(&self.bias[..]),
            result: (&[], RowsAt { first: 0, pitch: 0 }),
            codes: None,
            floats: None,
            backward: problem.is_backward(),
            sum: None,
        }
    }
}

/// A norm of a sum, or two of them one behind the other.
#[derive(Clone, Debug)]
pub struct Summed {
    norm: Problem,
    of: RowSum,
}

/// All problems of sums of a type.
pub fn sums(dtype: Dtype) -> Vec<Summed> {
    let of = |images, columns, [rows, prefix]: [usize; 2], positions, twice: Option<JoinedNorm>| {
        let sizes = [images * rows, columns];
        let norm = Problem { dtype, sizes, centred: true, has_bias: true, offset: 0.0, spread: 1.0 };
        Summed { norm, of: RowSum { rows, prefix, positions, first: twice } }
    };
    let first = |centred, bias| Some(JoinedNorm { centred, epsilon: EPSILON, bias });
    let sizes = [
        (1, 768, [197, 1]),
        (7, 1024, [257, 1]),
        (3, 384, [5, 4]),
        (700, 72, [2, 1]),
        (301, 384, [5, 4]),
        (2, 1280, [261, 5]),
    ];
    let mut all = Vec::new();
    for (images, columns, rows) in sizes {
        for positions in [None, Some(0), Some(rows[1])] {
            for twice in [None, first(true, true)] {
                all.push(of(images, columns, rows, positions, twice));
            }
        }
    }
    for columns in [8, 256, 264, 512, 520, 776, 1032, 2048] {
        let twice = first(columns % 16 == 0, columns % 3 == 0);
        all.extend([31, 1027].map(|images| of(images, columns, [3, 0], Some(0), twice)));
        all.extend([31, 1027].map(|images| of(images, columns, [1, 0], Some(0), None)));
    }
    let plain = of(6, 776, [200, 1], Some(0), first(false, false));
    all.push(Summed { norm: Problem { centred: false, has_bias: false, ..plain.norm.clone() }, ..plain.clone() });
    all.push(Summed { norm: Problem { offset: 100.0, ..plain.norm.clone() }, ..plain });
    all
}

impl Summed {
    /// Number of values of the result.
    pub fn values(&self) -> usize {
        self.norm.values()
    }

    /// Runs the problem, into buffers of NaN that are longer than the results, and compares.
    pub fn run(&self, device: &Device) -> Result<(), String> {
        match self.norm.dtype {
            Dtype::Bf16 => self.run_of::<bf16>(device),
            _ => self.run_of::<f16>(device),
        }
    }

    fn run_of<T: Half>(&self, device: &Device) -> Result<(), String> {
        let (norm, [rows, columns]) = (&self.norm, self.norm.sizes);
        let mut inputs = Inputs::<T>::of(norm, &format!(" of {:?}", self.of));
        let placed = self.of.positions.map_or(0, |from| self.of.rows - from);
        let prefix = inputs.random.singles(self.of.prefix * columns, 2.0);
        let positions = inputs.random.singles(placed * columns, 0.5);
        let [weights, biases] = [self.of.first.is_some(), self.of.first.is_some_and(|first| first.bias)]
            .map(|is_there| if is_there { columns } else { 0 });
        let first = [inputs.random.singles(weights, 2.0), inputs.random.singles(biases, 1.0)];
        let (poisoned, at) = (vec![T::POISON; norm.buffer()], norm.result_at());
        let sum = RowSumOperands {
            of: self.of,
            prefix: &prefix,
            positions: &positions,
            first: [&first[0], &first[1]],
            sum: (&poisoned, at),
        };
        let operands = RowNormOperands { result: (&poisoned, at), sum: Some(sum), ..inputs.operands(norm) };
        let ran = RowNormRun::new(device, &operands, 1).and_then(|mut run| {
            run.run(2)?;
            Ok((run.sum()?, run.result()?))
        });
        let (stored, result) = ran.map_err(|error| error.to_string())?;
        norm.check_places(|i| stored[i].is_poison()).map_err(|error| format!("of the sum: {error}"))?;
        norm.check_places(|i| result[i].is_poison())?;
        for row in 0..rows {
            let (image, place) = (row / self.of.rows, row % self.of.rows);
            let mut given = 0.0_f64;
            let sums: Vec<f64> = (0..columns)
                .map(|column| {
                    let own = match place.checked_sub(self.of.prefix) {
                        Some(own) => {
                            let row = image * (self.of.rows - self.of.prefix) + own;
                            inputs.x[inputs.at.first + row * inputs.at.pitch + column].value()
                        }
                        None => f64::from(prefix[place * columns + column]),
                    };
                    let from = self.of.positions.and_then(|from| place.checked_sub(from));
                    let position = from.map_or(0.0, |place| f64::from(positions[place * columns + column]));
                    given = given.max(U32 * (own + position).abs());
                    own + position
                })
                .collect();
            let there = at.first + row * at.pitch..at.first + row * at.pitch + columns;
            let stored: Vec<f64> = stored[there.clone()].iter().map(|value| value.value()).collect();
            let expected = match self.of.first {
                Some(of) => {
                    let bias = |column: usize| if of.bias { f64::from(first[1][column]) } else { 0.0 };
                    Norm { centred: of.centred, weight: &first[0], bias }.of(&sums, given, Some(T::ROUNDING))
                }
                None => {
                    let errors = sums.iter().map(|&sum| T::ROUNDING.rounded(sum, U32 * sum.abs())).collect();
                    Expected { shape: Shape::vector(columns), values: sums, errors }
                }
            };
            let singles = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
            expected.check(Growth::Worst, &singles(&stored)).map_err(|error| format!("sum, row {row}: {error}"))?;
            let bias = |column: usize| if norm.has_bias { f64::from(inputs.bias[column]) } else { 0.0 };
            let expected =
                Norm { centred: norm.centred, weight: &inputs.weight, bias }.of(&stored, 0.0, Some(T::ROUNDING));
            let result: Vec<f64> = result[there].iter().map(|value| value.value()).collect();
            expected.check(Growth::Worst, &singles(&result)).map_err(|error| format!("row {row}: {error}"))?;
        }
        Ok(())
    }
}

/// Number of values before and behind the result that no kernel may write.
const GUARD: usize = 1024;
/// The epsilon of ViT.
const EPSILON: f32 = 1e-6;
