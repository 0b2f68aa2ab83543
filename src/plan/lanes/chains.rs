//! Steps in chains, in which each step reads a result of the one before it.

use std::collections::BTreeSet;

/// The steps in chains, the longest chain first, given the clocks of each step, which are positive, and its sources.
pub(super) fn chains(clocks: Vec<f64>, sources: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut left = Left::new(clocks, sources);
    std::iter::from_fn(|| left.take_longest()).collect()
}

/// The steps that are in no chain yet.
struct Left<'a> {
    clocks: Vec<f64>,
    sources: &'a [Vec<usize>],
    /// The steps of which each step is a source.
    readers: Vec<Vec<usize>>,
    /// For each step that is left, the longest chain of such steps that ends in it.
    longest: Vec<Option<Longest>>,
    /// The steps that are left, the end of the longest chain last.
    ends: BTreeSet<(u64, usize)>,
}

/// The longest chain that ends in a step.
#[derive(Clone, Copy, PartialEq)]
struct Longest {
    clocks: f64,
    /// The step before.
    before: Option<usize>,
}

impl Longest {
    /// The order of chains that end in a step: positive numbers are in the order of their bits.
    fn key(&self, step: usize) -> (u64, usize) {
        (self.clocks.to_bits(), step)
    }
}

impl<'a> Left<'a> {
    fn new(clocks: Vec<f64>, sources: &'a [Vec<usize>]) -> Self {
        let mut readers = vec![Vec::new(); sources.len()];
        for (step, sources) in sources.iter().enumerate() {
            sources.iter().for_each(|&source| readers[source].push(step));
        }
        let longest = vec![None; sources.len()];
        let mut left = Self { clocks, sources, readers, longest, ends: BTreeSet::new() };
        (0..sources.len()).for_each(|step| left.measure(step));
        left
    }

    /// Finds the longest chain that ends in a step, again if one of its sources has changed.
    fn measure(&mut self, step: usize) {
        let before = self.sources[step].iter().filter_map(|&source| Some((self.longest[source]?.clocks, source)));
        let before = before.max_by(|a, b| a.0.total_cmp(&b.0));
        let clocks = self.clocks[step] + before.map_or(0.0, |(sum, _)| sum);
        let longest = Longest { clocks, before: before.map(|(_, source)| source) };
        if let Some(known) = self.longest[step].replace(longest) {
            self.ends.remove(&known.key(step));
        }
        self.ends.insert(longest.key(step));
    }

    /// Takes the longest chain; `None` if no steps are left.
    fn take_longest(&mut self) -> Option<Vec<usize>> {
        let (mut next, mut chain) = (Some(self.ends.last()?.1), Vec::new());
        while let Some((step, longest)) = next.and_then(|step| Some((step, self.longest[step].take()?))) {
            self.ends.remove(&longest.key(step));
            chain.push(step);
            next = longest.before;
        }
        chain.reverse();
        self.measure_readers(&chain);
        Some(chain)
    }

    /// Finds the longest chains anew that went through steps that are taken.
    fn measure_readers(&mut self, taken: &[usize]) {
        let mut changed: BTreeSet<usize> = taken.iter().flat_map(|&step| &self.readers[step]).copied().collect();
        while let Some(step) = changed.pop_first() {
            let Some(known) = self.longest[step] else { continue };
            self.measure(step);
            if self.longest[step] != Some(known) {
                changed.extend(&self.readers[step]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The chains, found by measuring all that is left again for each.
    fn one_by_one(clocks: &[f64], sources: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let mut left: Vec<usize> = (0..sources.len()).collect();
        let mut chains = Vec::new();
        while !left.is_empty() {
            let mut longest: Vec<Option<(f64, Option<usize>)>> = vec![None; sources.len()];
            for &step in &left {
                let before = sources[step].iter().filter_map(|&source| Some((longest[source]?.0, source)));
                let before = before.max_by(|a, b| a.0.total_cmp(&b.0));
                let sum = clocks[step] + before.map_or(0.0, |(sum, _)| sum);
                longest[step] = Some((sum, before.map(|(_, source)| source)));
            }
            let sum = |step: usize| longest[step].map_or(0.0, |(sum, _)| sum);
            let mut end = left.iter().copied().max_by(|&a, &b| sum(a).total_cmp(&sum(b)));
            let mut chain = Vec::new();
            while let Some(step) = end {
                chain.insert(0, step);
                end = longest[step].and_then(|(_, before)| before);
            }
            left.retain(|step| !chain.contains(step));
            chains.push(chain);
        }
        chains
    }

    #[test]
    fn chains_are_those_found_by_measuring_all_that_is_left_again() {
        let mut state = 1_u64;
        let mut below = |n: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            (state >> 33) as usize % n
        };
        for _ in 0..500 {
            let steps = 1 + below(40);
            let recent = 1 + below(8);
            let clocks: Vec<f64> = (0..steps).map(|_| 4000.0 + 0.1 * below(4) as f64).collect();
            let mut sources = |step: usize| -> Vec<usize> {
                let of: BTreeSet<usize> = (0..below(4)).map(|_| step - 1 - below(recent.min(step))).collect();
                of.into_iter().collect()
            };
            let sources: Vec<Vec<usize>> =
                (0..steps).map(|step| if step == 0 { vec![] } else { sources(step) }).collect();
            assert_eq!(chains(clocks.clone(), &sources), one_by_one(&clocks, &sources), "{sources:?}");
        }
    }

    #[test]
    fn a_long_chain_with_many_branches_takes_no_longer_than_its_steps() {
        let sources = |step: usize| match step {
            0 => vec![],
            _ if step.is_multiple_of(2) => vec![step - 2],
            _ => vec![step - 1],
        };
        let sources: Vec<Vec<usize>> = (0..100_000).map(sources).collect();
        let chains = chains(vec![1.0; 100_000], &sources);
        assert_eq!((chains.len(), chains[0].len(), chains[1].len()), (50_000, 50_001, 1));
    }
}
