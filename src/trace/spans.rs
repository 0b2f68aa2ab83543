//! Sets of times, as disjoint spans in order.

/// The beginning and the end of a span.
pub(super) type Span = (f64, f64);

/// The parts of the window that the spans cover, as disjoint spans in order.
pub(super) fn covered(spans: impl Iterator<Item = Span>, (low, high): Span) -> Vec<Span> {
    let clipped = spans.map(|(begin, end)| (begin.max(low), end.min(high))).filter(|(begin, end)| begin < end);
    let mut sorted: Vec<Span> = clipped.collect();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut merged: Vec<Span> = Vec::new();
    for (begin, end) in sorted {
        match merged.last_mut() {
            Some(last) if begin <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((begin, end)),
        }
    }
    merged
}

/// The length of all spans together.
pub(super) fn total(spans: &[Span]) -> f64 {
    spans.iter().map(|(begin, end)| end - begin).sum()
}

/// The length of the common parts of two sets of disjoint spans in order.
pub(super) fn common(a: &[Span], b: &[Span]) -> f64 {
    let (mut i, mut j, mut sum) = (0, 0, 0.0);
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        sum += (x.1.min(y.1) - x.0.max(y.0)).max(0.0);
        if x.1 < y.1 { i += 1 } else { j += 1 }
    }
    sum
}

/// The parts of the window that disjoint spans in order do not cover.
pub(super) fn gaps(spans: &[Span], (low, high): Span) -> Vec<Span> {
    let begins = std::iter::once(low).chain(spans.iter().map(|span| span.1));
    let ends = spans.iter().map(|span| span.0).chain([high]);
    begins.zip(ends).filter(|(begin, end)| begin < end).collect()
}
