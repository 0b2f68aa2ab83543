//! Last step: logits or features to an output row.
//!
//! - Logits, features: the values as they are.
//! - Probabilities: y[c] = exp(x[c] - max) / sum over c of exp(x[c] - max).
//! - Top k: pairs (f32 probability, u32 index) of the k largest logits, best first, ties by the lower index. A NaN
//!   ranks below every number.
//! - x: read, f32, at least one and at least k of them. The row: written, 32-bit words, disjoint from x: as many as x
//!   has, or 2 * k.
//! - Exponentials are f32, their sum f64. A NaN or +infinity, or nothing but -infinity, makes all probabilities NaN.

use std::cmp::Ordering;

use crate::tensor::OutputKind;

/// Writes the output row of one image.
pub(super) fn run(output: OutputKind, x: &[f32], row: &mut [u32]) {
    match output {
        OutputKind::Logits | OutputKind::Features => {
            assert_eq!(x.len(), row.len());
            for (word, x) in row.iter_mut().zip(x) {
                *word = x.to_bits();
            }
        }
        OutputKind::Probabilities => {
            assert_eq!(x.len(), row.len());
            let softmax = Softmax::of(x);
            for (word, x) in row.iter_mut().zip(x) {
                *word = softmax.probability(*x).to_bits();
            }
        }
        OutputKind::TopK(k) => {
            assert!(k <= x.len() && row.len() == 2 * k);
            top_k(x, row.as_chunks_mut::<2>().0);
        }
    }
}

/// The largest logit and the sum of exponentials, which turn logits into probabilities.
struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    fn of(x: &[f32]) -> Self {
        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = x.iter().map(|x| f64::from((x - max).exp())).sum();
        Self { max, sum: sum as f32 }
    }

    fn probability(&self, x: f32) -> f32 {
        (x - self.max).exp() / self.sum
    }
}

/// Orders the better logit first; a NaN comes after every number.
fn better_first(a: f32, b: f32) -> Ordering {
    b.partial_cmp(&a).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// Keeps the best in `pairs`, sorted, while it goes through `x`; then turns logits into probabilities.
fn top_k(x: &[f32], pairs: &mut [[u32; 2]]) {
    let mut count = 0;
    for (index, &logit) in x.iter().enumerate() {
        // An equal logit stays in front of this one, so that ties go to the lower index.
        let behind = |pair: &[u32; 2]| better_first(f32::from_bits(pair[0]), logit) != Ordering::Greater;
        if count == pairs.len() {
            if pairs.last().is_none_or(behind) {
                continue;
            }
            count -= 1;
        }
        let place = pairs[..count].partition_point(behind);
        pairs.copy_within(place..count, place + 1);
        pairs[place] = [logit.to_bits(), index as u32];
        count += 1;
    }
    let softmax = Softmax::of(x);
    for pair in pairs {
        pair[0] = softmax.probability(f32::from_bits(pair[0])).to_bits();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(x: &[f32], k: usize) -> Vec<(u32, f32)> {
        let mut row = vec![u32::MAX; 2 * k];
        run(OutputKind::TopK(k), x, &mut row);
        row.chunks(2).map(|pair| (pair[1], f32::from_bits(pair[0]))).collect()
    }

    #[test]
    fn ties_go_to_the_lower_index() {
        let x = [1.0, 3.0, -0.0, 3.0, 0.0, 1.0];
        let order: Vec<u32> = top(&x, 6).iter().map(|pair| pair.0).collect();
        assert_eq!(order, [1, 3, 0, 5, 2, 4]);
        for k in 1..6 {
            assert_eq!(top(&x, k), top(&x, 6)[..k]);
        }
    }

    #[test]
    fn nan_ranks_last_and_no_index_comes_twice() {
        let x = [f32::NAN, -5.0, f32::NAN, f32::INFINITY];
        let order: Vec<u32> = top(&x, 4).iter().map(|pair| pair.0).collect();
        assert_eq!(order, [3, 1, 0, 2]);
        assert!(top(&x, 4).iter().all(|pair| pair.1.is_nan()));
    }

    #[test]
    fn probabilities_add_to_one_for_large_logits() {
        let x = [1000.0, 999.0, -1000.0, 1000.0];
        let mut row = [0; 4];
        run(OutputKind::Probabilities, &x, &mut row);
        let p = row.map(f32::from_bits);
        assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-6 && p[0] == p[3] && p[2] == 0.0, "{p:?}");
        assert_eq!(top(&x, 2), [(0, p[0]), (3, p[3])]);
    }

    #[test]
    fn values_are_passed_on() {
        let x = [-0.0, f32::NAN, 1.5];
        for output in [OutputKind::Logits, OutputKind::Features] {
            let mut row = [0; 3];
            run(output, &x, &mut row);
            assert_eq!(row, x.map(f32::to_bits));
        }
    }
}
