//! The last step: logits or features → an output row. Softmax subtracts the largest logit; top-k breaks ties by the
//! lower index and ranks NaN below every number.

use crate::tensor::OutputKind;

/// One row of results; `x` is [C], or [H][W][C] for features.
pub(super) fn run(kind: OutputKind, x: &[f32], row: &mut [u8]) {
    let words: &mut [f32] = bytemuck::cast_slice_mut(row);
    match kind {
        OutputKind::Logits | OutputKind::Features => words.copy_from_slice(x),
        OutputKind::Probabilities => {
            let softmax = Softmax::of(x);
            words.iter_mut().zip(x).for_each(|(y, x)| *y = softmax.of_logit(*x));
        }
        OutputKind::TopK(_) => {
            let softmax = Softmax::of(x);
            let mut below = None;
            for pair in words.chunks_exact_mut(2) {
                let best = best_below(x, below).expect("k is at most the number of classes");
                pair[0] = softmax.of_logit(x[best]);
                pair[1] = f32::from_bits(best as u32);
                below = Some(best);
            }
        }
    }
}

struct Softmax {
    max: f32,
    sum: f32,
}

impl Softmax {
    fn of(logits: &[f32]) -> Self {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Self { max, sum: logits.iter().map(|x| (x - max).exp()).sum() }
    }

    fn of_logit(&self, logit: f32) -> f32 {
        (logit - self.max).exp() / self.sum
    }
}

/// Whether logit `a` ranks before logit `b`.
fn before(x: &[f32], a: usize, b: usize) -> bool {
    match (x[a].is_nan(), x[b].is_nan()) {
        (false, true) => true,
        (true, false) => false,
        (true, true) => a < b,
        (false, false) => x[a] > x[b] || (x[a] == x[b] && a < b),
    }
}

/// The best-ranked class that ranks after `limit`.
fn best_below(x: &[f32], limit: Option<usize>) -> Option<usize> {
    let candidates = (0..x.len()).filter(|&c| limit.is_none_or(|limit| before(x, limit, c)));
    candidates.reduce(|best, c| if before(x, c, best) { c } else { best })
}
