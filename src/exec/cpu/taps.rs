//! The terms of a convolution's sums: for each output pixel, the input's values under its window, one after the other.

use std::ops::Range;

use super::window::Spans;
use crate::model::Window;
use crate::tensor::Shape;

/// A window over an image whose taps are copied.
#[derive(Debug)]
pub(super) struct Taps {
    x: Shape,
    spans: Spans,
    /// The number of output pixels of a row.
    width: usize,
}

impl Taps {
    /// The taps of `window`, which makes an image of shape `y` of one of shape `x`.
    pub fn new(window: &Window, x: Shape, y: Shape) -> Self {
        Self { x, spans: Spans::new(window, x, y), width: y.width }
    }

    /// Copies the terms `depth` of each output pixel of `block` to `scratch`, a row of `depth.len()` for each pixel. Taps in
    /// the padding are zeros.
    #[inline(always)]
    pub fn gather<T: Copy>(
        &self,
        x: &[T],
        block: Range<usize>,
        depth: &Range<usize>,
        scratch: &mut [f32],
        value: impl Fn(T) -> f32,
    ) {
        let (channels, width) = (self.x.channels, self.x.width);
        let Spans { rows, cols, size: [_, s_size], dilation, .. } = &self.spans;
        let run = s_size * channels; // terms of one r
        let [mut p, mut q] = [block.start / self.width, block.start % self.width];
        for target in scratch.chunks_exact_mut(depth.len()).take(block.len()) {
            let (row, col) = (&rows[p], &cols[q]);
            let mut row_terms = Terms { target, depth };
            for r in depth.start / run..depth.end.div_ceil(run) {
                if !row.taps.contains(&r) {
                    row_terms.zero(r * run..(r + 1) * run);
                    continue;
                }
                let h = row.first + (r - row.taps.start) * dilation[0];
                let line = &x[h * width * channels..][..width * channels];
                let first = r * run + col.taps.start * channels;
                row_terms.zero(r * run..first);
                if dilation[1] == 1 {
                    row_terms.copy(first, &line[col.first * channels..][..col.taps.len() * channels], &value);
                } else {
                    for i in 0..col.taps.len() {
                        let w = col.first + i * dilation[1];
                        row_terms.copy(first + i * channels, &line[w * channels..][..channels], &value);
                    }
                }
                row_terms.zero(first + col.taps.len() * channels..(r + 1) * run);
            }
            q += 1;
            if q == self.width {
                (p, q) = (p + 1, 0);
            }
        }
    }
}

/// A pixel's row of scratch, which holds the terms `depth`.
struct Terms<'a> {
    target: &'a mut [f32],
    depth: &'a Range<usize>,
}

impl Terms<'_> {
    /// The part of `terms` that the row holds, as a range of the row.
    #[inline(always)]
    fn held(&self, terms: &Range<usize>) -> Range<usize> {
        let clip = |term: usize| term.clamp(self.depth.start, self.depth.end) - self.depth.start;
        clip(terms.start)..clip(terms.end)
    }

    #[inline(always)]
    fn zero(&mut self, terms: Range<usize>) {
        let held = self.held(&terms);
        self.target[held].fill(0.0);
    }

    /// Copies `values`, of which the first is the term `first`, as far as the row holds them.
    #[inline(always)]
    fn copy<T: Copy>(&mut self, first: usize, values: &[T], value: &impl Fn(T) -> f32) {
        let held = self.held(&(first..first + values.len()));
        let skipped = (held.start + self.depth.start).saturating_sub(first);
        let count = held.len();
        if count > 0 {
            let values = &values[skipped..][..count];
            self.target[held].iter_mut().zip(values).for_each(|(target, from)| *target = value(*from));
        }
    }
}
