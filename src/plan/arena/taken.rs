//! The memory that tensors take while a program runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes that are taken at each place of a line of steps: a tree of ranges of the line, each with two halves.
pub(super) struct Taken {
    /// The root is node 1; the halves of node n are nodes 2n and 2n + 1. There are as many leaves as nodes before them.
    nodes: Vec<Node>,
}

/// A range of the line.
#[derive(Clone, Default)]
struct Node {
    /// The bytes that are taken at some of its places.
    somewhere: Bytes,
    /// Bytes that are taken at all of its places, without those that are known of a node that it is a half of.
    everywhere: Bytes,
}

impl Taken {
    /// Nothing is taken on a line of this length.
    pub fn new(length: usize) -> Self {
        Self { nodes: vec![Node::default(); 2 * length.next_power_of_two()] }
    }

    /// Bytes are taken at these ranges of the line.
    pub fn add(&mut self, line: &[Range<usize>], bytes: Range<usize>) {
        if !bytes.is_empty() {
            line.iter().for_each(|range| self.add_within(1, self.line(), range, &bytes));
        }
    }

    /// The lowest offset of so many bytes that are free at all places in these ranges of the line.
    pub fn lowest_gap(&self, line: &[Range<usize>], bytes: usize) -> usize {
        let mut taken = Vec::new();
        line.iter().for_each(|range| self.find(1, self.line(), range, &mut taken));
        let mut offset = 0;
        while let Some(end) = taken.iter().filter_map(|taken| taken.end_within(offset..offset + bytes)).max() {
            offset = end;
        }
        offset
    }

    fn line(&self) -> Range<usize> {
        0..self.nodes.len() / 2
    }

    fn add_within(&mut self, node: usize, places: Range<usize>, range: &Range<usize>, bytes: &Range<usize>) {
        if range.end <= places.start || places.end <= range.start {
            return;
        }
        self.nodes[node].somewhere.add(bytes.clone());
        if range.start <= places.start && places.end <= range.end {
            self.nodes[node].everywhere.add(bytes.clone());
            return;
        }
        let middle = places.start.midpoint(places.end);
        self.add_within(2 * node, places.start..middle, range, bytes);
        self.add_within(2 * node + 1, middle..places.end, range, bytes);
    }

    /// Finds the bytes that are taken at places that are both in a node and in a range.
    fn find<'a>(&'a self, node: usize, places: Range<usize>, range: &Range<usize>, taken: &mut Vec<&'a Bytes>) {
        let Node { somewhere, everywhere } = &self.nodes[node];
        if range.end <= places.start || places.end <= range.start || somewhere.0.is_empty() {
            return;
        }
        if range.start <= places.start && places.end <= range.end {
            taken.push(somewhere);
            return;
        }
        if !everywhere.0.is_empty() {
            taken.push(everywhere);
        }
        let middle = places.start.midpoint(places.end);
        self.find(2 * node, places.start..middle, range, taken);
        self.find(2 * node + 1, middle..places.end, range, taken);
    }
}

/// A set of bytes: the ends of its ranges by their starts. Between two ranges is a gap.
#[derive(Clone, Default)]
struct Bytes(BTreeMap<usize, usize>);

impl Bytes {
    fn add(&mut self, mut bytes: Range<usize>) {
        while let Some((&start, &end)) = self.0.range(..=bytes.end).next_back()
            && end >= bytes.start
        {
            self.0.remove(&start);
            bytes = bytes.start.min(start)..bytes.end.max(end);
        }
        self.0.insert(bytes.start, bytes.end);
    }

    /// The end of the last range that has some of these bytes.
    fn end_within(&self, bytes: Range<usize>) -> Option<usize> {
        let (_, &end) = self.0.range(..bytes.end).next_back()?;
        (end > bytes.start).then_some(end)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "places are lists of ranges")]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut bytes = Bytes::default();
        for range in [0..2, 6..8, 2..3, 10..12, 5..11, 20..21] {
            bytes.add(range);
        }
        assert_eq!(bytes.0, BTreeMap::from([(0, 3), (5, 12), (20, 21)]));
        assert_eq!([0..1, 3..5, 4..6, 2..30].map(|range| bytes.end_within(range)), [Some(3), None, Some(12), Some(21)]);
    }

    #[test]
    fn a_gap_is_free_at_all_places_of_a_range() {
        let mut taken = Taken::new(5);
        taken.add(&[0..2, 4..5], 0..4);
        taken.add(&[1..3], 6..8);
        taken.add(&[2..3], 2..2);
        let gaps = |line: &[Range<usize>]| [1, 2, 3].map(|bytes| taken.lowest_gap(line, bytes));
        assert_eq!((gaps(&[0..1]), gaps(&[1..2]), gaps(&[2..3])), ([4; 3], [4, 4, 8], [0; 3]));
        assert_eq!((gaps(&[2..5]), gaps(&[3..4]), gaps(&[2..3, 4..5])), ([4, 4, 8], [0; 3], [4, 4, 8]));
        assert_eq!(taken.lowest_gap(&[1..2], 0), 0);
    }

    #[test]
    fn long_lines_and_many_tensors_take_little_memory() {
        // A chain of steps beside tensors that are alive until its end.
        let (steps, mut taken) = (20_000, Taken::new(20_000));
        for step in 0..steps {
            assert_eq!(taken.lowest_gap(&[step..steps], 2), 2 * step);
            taken.add(&[step..steps], 2 * step..2 * step + 2);
        }
        for step in 0..steps - 1 {
            let offset = taken.lowest_gap(&[step..step + 2], 1);
            taken.add(&[step..step + 2], offset..offset + 1);
        }
        let ranges: usize = taken.nodes.iter().map(|node| node.somewhere.0.len() + node.everywhere.0.len()).sum();
        assert!(ranges < 4 * taken.nodes.len(), "{ranges} ranges");
    }
}
