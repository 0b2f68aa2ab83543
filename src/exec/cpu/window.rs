//! Which taps of a sliding window lie in the image, for each output coordinate, worked out once.

use std::ops::Range;

use crate::model::Window;
use crate::tensor::Shape;

/// The taps of a window that lie in the image along one axis; they are consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Input coordinate under the first of them; 0 if there is none.
    pub first: usize,
    /// The taps.
    pub taps: Range<usize>,
}

/// A window over an image: the spans of each output row and column.
#[derive(Clone, Debug)]
pub(super) struct Spans {
    /// For each output row.
    pub rows: Vec<Span>,
    /// For each output column.
    pub cols: Vec<Span>,
    /// R, S.
    pub size: [usize; 2],
    /// Along height and width.
    pub stride: [usize; 2],
    /// Along height and width.
    pub dilation: [usize; 2],
}

impl Spans {
    /// The spans of `window` over an image of shape `x` that gives one of shape `y`.
    pub fn new(window: &Window, x: Shape, y: Shape) -> Self {
        let Window { size, stride, pad, dilation } = *window;
        Self {
            rows: axis(y.height, x.height, size[0], stride[0], pad.top, dilation[0]),
            cols: axis(y.width, x.width, size[1], stride[1], pad.left, dilation[1]),
            size,
            stride,
            dilation,
        }
    }
}

fn axis(out_len: usize, in_len: usize, size: usize, stride: usize, pad: usize, dilation: usize) -> Vec<Span> {
    let span = |out: usize| {
        let inside = |tap: usize| (out * stride + tap * dilation).checked_sub(pad).filter(|&at| at < in_len);
        let mut taps = (0..size).filter(|&tap| inside(tap).is_some());
        match taps.next() {
            Some(start) => Span { first: inside(start).expect("just seen"), taps: start..start + 1 + taps.count() },
            None => Span { first: 0, taps: 0..0 },
        }
    };
    (0..out_len).map(span).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_clipped_at_both_ends() {
        let span = |first, taps| Span { first, taps };
        assert_eq!(axis(3, 3, 3, 1, 1, 1), [span(0, 1..3), span(0, 0..3), span(1, 0..2)]);
        assert_eq!(axis(2, 4, 3, 3, 2, 2), [span(0, 1..3), span(1, 0..2)]);
        assert_eq!(axis(4, 1, 2, 1, 2, 1), [span(0, 0..0), span(0, 1..2), span(0, 0..1), span(0, 0..0)]);
    }
}
