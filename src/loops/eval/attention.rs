//! Attention within rows that lie end to end, by the tiles of products. It is computed row by row, so that tokens in no
//! row take no time.
//!
//! Each sum goes over the keys of the row in their order, so that a row's result does not depend on where it lies.

use std::ops::Range;

use super::runs::Places;
use super::tiles::{Panels, multiply};
use crate::error::Error;
use crate::graph::{PackedAttention, Tensor};
use crate::loops::Isa;
use crate::loops::team::{Lines, Team};

/// The number of queries for which scores are computed at a time: the scores fit a core's caches.
const QUERIES: usize = 48;

/// The result of packed attention of these operands.
///
/// # Errors
/// [`Error::OutOfMemory`].
///
/// # Panics
/// If the operation does not take the operands.
pub fn packed_attention(of: &PackedAttention, inputs: &[Option<&Tensor>], team: &dyn Team) -> Result<Tensor, Error> {
    let input = |number: usize| inputs[number].expect("an operand that was checked to be there");
    let dims = |number: usize| -> [usize; 3] {
        input(number).value_type().dims[..].try_into().expect("an operand that was checked to have three axes")
    };
    let ([tokens, heads, features], [.., values]) = (dims(0), dims(2));
    let starts = input(3).to_i64s().expect("indices that were checked to be whole");
    let rows = rows(&starts, tokens, of.longest);
    let attention = Attention {
        of: *of,
        qkv: [0, 1, 2].map(|number| input(number).elems()),
        bias: inputs.get(4).copied().flatten().map(|bias| (bias.elems(), bias.value_type().dims[0])),
        heads,
        features,
        values,
    };
    let mut result = Tensor::zeros(input(2).value_type().clone())?;
    let pitch = heads * values;
    let ops = of.longest.min(tokens / rows.len().max(1)) * heads * (features + values);
    let lines = Lines { count: tokens, pitch, together: QUERIES, least: 1, ops };
    lines.share(team, result.elems_mut::<f32>(), &|_, part, y| {
        for row in rows.iter().filter(|row| row.start < part.end && part.start < row.end) {
            let queries = row.start.max(part.start)..row.end.min(part.end);
            let y = &mut y[(queries.start - part.start) * pitch..(queries.end - part.start) * pitch];
            (0..heads).for_each(|head| attention.head(row, queries.clone(), head, y));
        }
    });
    Ok(result)
}

/// The rows between neighbouring numbers from 0 to `tokens`, which may be in any order. Longer rows are cut to
/// `longest` tokens.
fn rows(starts: &[i64], tokens: usize, longest: usize) -> Vec<Range<usize>> {
    let place = |&start: &i64| usize::try_from(start).ok().filter(|&start| start <= tokens);
    let mut places: Vec<usize> = starts.iter().filter_map(place).collect();
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|row| row[0]..row[1].min(row[0] + longest)).collect()
}

/// Attention with its operands.
struct Attention<'a> {
    of: PackedAttention,
    qkv: [&'a [f32]; 3],
    /// The table of biases, with the number of its heads.
    bias: Option<(&'a [f32], usize)>,
    heads: usize,
    features: usize,
    /// The number of values of a head.
    values: usize,
}

impl Attention<'_> {
    /// Writes the results of one head for the tokens `queries` of a row to y `[queries, heads, values]`.
    fn head(&self, row: &Range<usize>, queries: Range<usize>, head: usize, y: &mut [f32]) {
        let &Self { heads, features, values, .. } = self;
        let keys = row.len();
        let at = |token: usize| token * heads + head;
        let key = |key: usize, feature: usize| self.qkv[1][at(row.start + key) * features + feature];
        let turned: Vec<f32> = (0..features).flat_map(|i| (0..keys).map(move |of| key(of, i))).collect();
        let mixed: Vec<f32> = row.clone().flat_map(|key| &self.qkv[2][at(key) * values..][..values]).copied().collect();
        let [turned, mixed] = [Panels::new(&turned, keys), Panels::new(&mixed, values)];
        for first in queries.clone().step_by(QUERIES) {
            let tokens = first..queries.end.min(first + QUERIES);
            let mut scores =
                product(self.qkv[0], tokens.clone().map(|token| at(token) * features), &turned, [features, keys]);
            for (token, scores) in tokens.clone().zip(scores.chunks_exact_mut(keys)) {
                self.weigh(token - row.start, head, scores);
            }
            let sums = product(&scores, (0..tokens.len()).map(|query| query * keys), &mixed, [keys, values]);
            for (token, sums) in tokens.zip(sums.chunks_exact(values)) {
                y[at(token - queries.start) * values..][..values].copy_from_slice(sums);
            }
        }
    }

    /// Turns the products of a query with all keys into weights. `place` is the position of the query in its row.
    fn weigh(&self, place: usize, head: usize, scores: &mut [f32]) {
        let scale = self.of.scale as f32;
        scores.iter_mut().for_each(|score| *score *= scale);
        if let Some((bias, heads)) = self.bias {
            let of_head = &bias[head.min(heads - 1) * (2 * self.of.longest - 1)..];
            let added = &of_head[self.of.longest - 1 - place..];
            scores.iter_mut().zip(added).for_each(|(score, added)| *score += added);
        }
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - most).exp());
        let sum: f32 = scores.iter().sum();
        scores.iter_mut().for_each(|score| *score /= sum);
    }
}

/// The product of rows of `terms` elements, which begin at the places `at`, with a matrix of `columns` columns.
fn product(
    from: &[f32],
    at: impl ExactSizeIterator<Item = usize>,
    panels: &Panels<f32>,
    [terms, columns]: [usize; 2],
) -> Vec<f32> {
    let (outside, at): (_, Vec<usize>) = (vec![0.0; terms], at.collect());
    let mut sums = vec![0.0; at.len() * columns];
    multiply(Isa::detect(), &Places { from, outside: &outside, at: &at, taps: 1 }, panels, &mut sums);
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_between_numbers_whatever_these_are() {
        assert_eq!(rows(&[0, 2, 2, 5, 5], 8, 3), [0..2, 2..5]);
        assert_eq!(rows(&[0, 2, 7], 8, 3), [0..2, 2..5]); // a row that is too long
        assert_eq!(rows(&[5, 0, -1, i64::MAX, 9, 8, i64::MIN, 2], 8, 3), [0..2, 2..5, 5..8]);
        assert_eq!(rows(&[3], 8, 3), Vec::<Range<usize>>::new());
        assert_eq!(rows(&[], 0, 1), Vec::<Range<usize>>::new());
    }
}
