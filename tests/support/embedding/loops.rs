//! The layers of encoders by plain loops, in f64.

use super::folder::Tensors;
use super::style::Style;
use super::{HEADS, Row, WIDTH};

/// Rows of values.
#[derive(Clone, Debug)]
pub struct Matrix {
    pub columns: usize,
    pub values: Vec<f64>,
}

impl Matrix {
    pub fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    pub fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    pub fn of(rows: impl Iterator<Item = Vec<f64>>) -> Self {
        let rows: Vec<Vec<f64>> = rows.collect();
        Self { columns: rows[0].len(), values: rows.concat() }
    }

    pub fn plus(&self, other: &Self) -> Self {
        let values = self.values.iter().zip(&other.values).map(|(a, b)| a + b).collect();
        Self { columns: self.columns, values }
    }

    /// The root mean square of all values.
    pub fn size(&self) -> f64 {
        (self.values.iter().map(|x| x * x).sum::<f64>() / self.values.len() as f64).sqrt()
    }
}

/// A network with these tensors, computed by plain loops.
pub struct Net<'a>(pub &'a Tensors);

impl Net<'_> {
    pub fn tensor(&self, name: &str) -> Vec<f64> {
        self.0.get(name).unwrap_or_else(|| panic!("no {name}")).1.iter().map(|&x| f64::from(x)).collect()
    }

    pub fn table(&self, name: &str, columns: usize) -> Matrix {
        Matrix { columns, values: self.tensor(name) }
    }

    pub fn linear(&self, x: &Matrix, name: &str) -> Matrix {
        let weight = self.table(&format!("{name}.weight"), x.columns);
        let bias = self.0.get(&format!("{name}.bias")).map(|_| self.tensor(&format!("{name}.bias")));
        let of_row = |row: usize| {
            let dot = |n: usize| x.row(row).iter().zip(weight.row(n)).map(|(a, b)| a * b).sum::<f64>();
            (0..weight.rows()).map(|n| dot(n) + bias.as_ref().map_or(0.0, |bias| bias[n])).collect()
        };
        Matrix::of((0..x.rows()).map(of_row))
    }

    pub fn norm(&self, x: &Matrix, name: &str, eps: f64) -> Matrix {
        let [weight, bias] = ["weight", "bias"].map(|part| self.tensor(&format!("{name}.{part}")));
        let of_row = |row: usize| {
            let x = x.row(row);
            let mean = x.iter().sum::<f64>() / x.len() as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
            let value = |i: usize| (x[i] - mean) / (variance + eps).sqrt() * weight[i] + bias[i];
            (0..x.len()).map(value).collect()
        };
        Matrix::of((0..x.rows()).map(of_row))
    }

    /// A layer. `added` is added to the score of a head, a token and a key; minus infinity hides the key.
    pub fn layer(&self, at: &str, style: &Style, x: &Matrix, added: &dyn Fn(usize, usize, usize) -> f64) -> Matrix {
        let name = |part: &str| format!("{at}.{part}");
        let scaled = |y: Matrix, index: usize| match style.scales {
            None => y,
            Some(scales) => {
                let scale = self.tensor(&name(scales[index]));
                Matrix::of((0..y.rows()).map(|row| y.row(row).iter().zip(&scale).map(|(y, s)| y * s).collect()))
            }
        };
        let attention = |x: &Matrix| self.linear(&self.mixed(at, style, x, added), &name(style.out));
        let products = |x: &Matrix| {
            let mut inner = self.linear(x, &name(style.fc[0]));
            inner.values.iter_mut().for_each(|x| *x = (style.activation)(*x));
            self.linear(&inner, &name(style.fc[1]))
        };
        let norm = |x: &Matrix, index: usize| self.norm(x, &name(style.norms[index]), style.eps);
        if style.norm_first {
            let x = x.plus(&scaled(attention(&norm(x, 0)), 0));
            return x.plus(&scaled(products(&norm(&x, 1)), 1));
        }
        let x = norm(&x.plus(&attention(x)), 0);
        norm(&x.plus(&products(&x)), 1)
    }

    /// Attention: the values of all heads side by side, weighted by the softmax of the scores.
    pub fn mixed(&self, at: &str, style: &Style, x: &Matrix, added: &dyn Fn(usize, usize, usize) -> f64) -> Matrix {
        let [q, k, v] = [0, 1, 2].map(|part| {
            let all = self.linear(x, &format!("{at}.{}", style.qkv[part]));
            let first = if all.columns == 3 * WIDTH { part * WIDTH } else { 0 };
            Matrix::of((0..all.rows()).map(|row| all.row(row)[first..first + WIDTH].to_vec()))
        });
        let dims = WIDTH / HEADS;
        let of_token = |token: usize| {
            let of_head = |head: usize| {
                let columns = head * dims..(head + 1) * dims;
                let score = |key: usize| {
                    let [q, k] = [&q.row(token)[columns.clone()], &k.row(key)[columns.clone()]];
                    let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                    dot / (dims as f64).sqrt() + added(head, token, key)
                };
                let scores: Vec<f64> = (0..k.rows()).map(score).collect();
                let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let value = |column: usize| (0..k.rows()).map(|key| weights[key] / sum * v.row(key)[column]).sum();
                columns.clone().map(value).collect::<Vec<f64>>()
            };
            (0..HEADS).flat_map(of_head).collect()
        };
        Matrix::of((0..x.rows()).map(of_token))
    }

    /// The sum of the embeddings of tokens, positions and types, as far as there are such tables.
    pub fn embedded(&self, row: &Row, tables: [&str; 3], first_place: usize) -> Matrix {
        let [words, places, types] = tables.map(|name| self.0.get(name).map(|_| self.table(name, WIDTH)));
        let (words, places) = (words.expect("words"), places.expect("places"));
        let of_token = |token: usize| {
            let of = |table: &Matrix, index: usize| table.row(index).to_vec();
            let mut sum = of(&words, row.ids[token] as usize);
            let typed =
                types.as_ref().map(|types| of(types, if types.rows() == 1 { 0 } else { row.types[token] as usize }));
            for other in [Some(of(&places, first_place + token)), typed].into_iter().flatten() {
                sum.iter_mut().zip(other).for_each(|(sum, other)| *sum += other);
            }
            sum
        };
        Matrix::of((0..row.ids.len()).map(of_token))
    }

    /// Vectors of patches, of pixels that are normalised with this mean and deviation.
    pub fn patches(&self, row: &Row, name: &str, patch: usize, mean: [f64; 3], std: [f64; 3]) -> Matrix {
        let filter = self.tensor(&format!("{name}.weight"));
        let bias = self.0.get(&format!("{name}.bias")).map(|_| self.tensor(&format!("{name}.bias")));
        let [height, width] = row.sides;
        let value = |n: usize, y: usize, x: usize| {
            let mut sum = bias.as_ref().map_or(0.0, |bias| bias[n]);
            for (c, r, s) in (0..3).flat_map(|c| (0..patch).flat_map(move |r| (0..patch).map(move |s| (c, r, s)))) {
                let pixel = row.pixels[((y * patch + r) * width + x * patch + s) * 3 + c];
                sum += (f64::from(pixel) / 255.0 - mean[c]) / std[c] * filter[((n * 3 + c) * patch + r) * patch + s];
            }
            sum
        };
        let grid = (0..height / patch).flat_map(|y| (0..width / patch).map(move |x| (y, x)));
        Matrix::of(grid.map(|(y, x)| (0..WIDTH).map(|n| value(n, y, x)).collect()))
    }

    /// The tokens before the patches, then the patches, each with its position; `placed` of the tokens have one. For
    /// other sizes the table of positions is interpolated, with or without a filter.
    pub fn tokens(
        &self,
        before: &[&str],
        (places, is_filtered): (&str, bool),
        placed: usize,
        patches: &Matrix,
        grid: [usize; 2],
    ) -> Matrix {
        let places = self.table(places, WIDTH);
        let mut all: Vec<f64> = before.iter().flat_map(|name| self.tensor(name)).collect();
        all.iter_mut().zip(&places.values[..placed * WIDTH]).for_each(|(token, place)| *token += place);
        let stored = Matrix { columns: WIDTH, values: places.values[placed * WIDTH..].to_vec() };
        let side = stored.rows().isqrt();
        let places = if grid == [side, side] { stored } else { larger(&stored, side, grid, is_filtered) };
        all.extend(patches.plus(&places).values);
        Matrix { columns: WIDTH, values: all }
    }
}

/// Enlarges a square grid of vectors by cubic interpolation at the centres of pixels, as PyTorch does it. With a filter
/// the cubic is another one and positions outside of the grid count nothing; a larger grid needs no wider filter.
pub fn larger(stored: &Matrix, side: usize, to: [usize; 2], is_filtered: bool) -> Matrix {
    let a = if is_filtered { -0.5 } else { -0.75 };
    let weight = |x: f64| match x.abs() {
        x if x <= 1.0 => (a + 2.0) * x.powi(3) - (a + 3.0) * x.powi(2) + 1.0,
        x if x < 2.0 => a * (x.powi(3) - 5.0 * x.powi(2) + 8.0 * x - 4.0),
        _ => 0.0,
    };
    let taps = |index: usize, to: usize| {
        let at = (index as f64 + 0.5) * side as f64 / to as f64 - 0.5;
        let (first, last) = (at.floor() as i64 - 1, side as i64 - 1);
        let inside = (first..first + 4).filter(|tap| !is_filtered || (0..=last).contains(tap));
        let taps: Vec<(usize, f64)> =
            inside.map(|tap| (tap.clamp(0, last) as usize, weight(at - tap as f64))).collect();
        let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
        taps.into_iter().map(move |(tap, weight)| (tap, weight / sum))
    };
    let of = |y: usize, x: usize| {
        let mut sum = vec![0.0; stored.columns];
        for (from_y, a) in taps(y, to[0]) {
            for (from_x, b) in taps(x, to[1]) {
                let from = stored.row(from_y * side + from_x);
                sum.iter_mut().zip(from).for_each(|(sum, from)| *sum += a * b * from);
            }
        }
        sum
    };
    Matrix::of((0..to[0]).flat_map(|y| (0..to[1]).map(move |x| (y, x))).map(|(y, x)| of(y, x)))
}
