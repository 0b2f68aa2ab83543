//! The cover: among all matches of kernels, those that save the most clocks together.

use super::context::{Context, Match};
use super::kernels::KERNELS;
use crate::error::Error;
use crate::model::NodeId;

/// The steps of a graph, in order. Every node is in one of them, except concatenations and given values, which have no
/// step.
///
/// # Errors
/// [`Error::Unsupported`] for a node that no kernel computes, or for a chosen kernel that cannot compute its node.
pub(super) fn cover(context: &Context<'_>) -> Result<Vec<Match>, Error> {
    let ids = (0..context.graph.nodes.len()).map(NodeId);
    let mut found = Vec::new();
    for id in ids.clone() {
        for def in KERNELS.iter().filter(|def| def.runs_on(context.limits())) {
            let applies = |found: &Match| context.work(found).activations().all(|of| def.applies(of));
            found.extend(def.matches(context, id)?.into_iter().filter(applies));
        }
    }
    found.retain(|found| found.saved > 0.0 && context.is_sound(found));
    let mut steps = most_saving(found);
    let covered: Vec<NodeId> = steps.iter().flat_map(|step| step.covers.clone()).collect();
    for id in ids.filter(|id| !covered.contains(id)) {
        steps.extend(context.single(id)?);
    }
    steps.sort_by_key(|step| step.place);
    Ok(steps)
}

/// The matches without a common node that save the most clocks together. Of equal sets, the one found first.
fn most_saving(found: Vec<Match>) -> Vec<Match> {
    groups(found).into_iter().flat_map(|group| Search::new(group).run()).collect()
}

/// Groups of matches that have nodes in common, directly or through other matches.
fn groups(found: Vec<Match>) -> Vec<Vec<Match>> {
    let mut groups: Vec<Vec<Match>> = Vec::new();
    for next in found {
        let (touched, mut rest): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|group| group.iter().any(|other| overlap(other, &next)));
        rest.push(touched.into_iter().flatten().chain([next]).collect());
        groups = rest;
    }
    groups
}

fn overlap(a: &Match, b: &Match) -> bool {
    a.covers.iter().any(|id| b.covers.contains(id))
}

/// The largest number of steps of the search in a group. It begins with the greedy choice, so it always has a result.
const MOST_TRIED: usize = 1 << 14;

/// A search for the matches of a group that save the most together. It takes or leaves each, the one that saves most
/// first.
struct Search {
    group: Vec<Match>,
    /// The clocks that all matches from each index on save together.
    rest: Vec<f64>,
    taken: Vec<usize>,
    best: (f64, Vec<usize>),
    tried: usize,
}

impl Search {
    fn new(mut group: Vec<Match>) -> Self {
        group.sort_by(|a, b| b.saved.total_cmp(&a.saved));
        let mut rest = vec![0.0; group.len() + 1];
        for (index, of) in group.iter().enumerate().rev() {
            rest[index] = rest[index + 1] + of.saved;
        }
        Self { group, rest, taken: Vec::new(), best: (0.0, Vec::new()), tried: 0 }
    }

    fn run(mut self) -> Vec<Match> {
        self.from(0, 0.0);
        let taken = self.best.1;
        let kept = self.group.into_iter().enumerate().filter(|(index, _)| taken.contains(index));
        kept.map(|(_, of)| of).collect()
    }

    fn from(&mut self, index: usize, saved: f64) {
        if saved > self.best.0 {
            self.best = (saved, self.taken.clone());
        }
        self.tried += 1;
        if index == self.group.len() || saved + self.rest[index] <= self.best.0 || self.tried > MOST_TRIED {
            return;
        }
        if !self.taken.iter().any(|&other| overlap(&self.group[other], &self.group[index])) {
            self.taken.push(index);
            self.from(index + 1, saved + self.group[index].saved);
            self.taken.pop();
        }
        self.from(index + 1, saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::StepOp;

    fn found(name: &str, covers: &[usize], saved: f64) -> Match {
        let covers: Vec<NodeId> = covers.iter().copied().map(NodeId).collect();
        Match {
            name: name.into(),
            op: StepOp::GlobalAvgPool,
            kernel: None,
            place: covers[0],
            reads: Vec::new(),
            writes: covers.clone(),
            covers,
            saved,
        }
    }

    fn names(found: Vec<Match>) -> Vec<String> {
        let mut names: Vec<String> = most_saving(found).into_iter().map(|of| of.name).collect();
        names.sort();
        names
    }

    #[test]
    fn what_saves_the_most_together_is_taken() {
        // The match in the middle saves more than either neighbour, and in the first row less than both together.
        let row = |middle| vec![found("a", &[1, 2], 5.0), found("b", &[2, 3], middle), found("c", &[3, 4], 4.0)];
        assert_eq!(names(row(8.0)), ["a", "c"]);
        assert_eq!(names(row(10.0)), ["b"]);
        let apart = found("d", &[7, 8], 0.5);
        assert_eq!(names(row(8.0).into_iter().chain([apart]).collect()), ["a", "c", "d"]);
    }

    #[test]
    fn the_first_of_equals_is_taken() {
        assert_eq!(names(vec![found("a", &[1, 2], 5.0), found("b", &[2, 3], 5.0)]), ["a"]);
        assert_eq!(names(vec![found("b", &[2, 3], 5.0), found("a", &[1, 2], 5.0)]), ["b"]);
    }

    /// In a row of 400 matches, each overlaps the next: the search ends, and no node is in two of the taken matches.
    #[test]
    fn a_search_that_would_take_long_ends() {
        let row = (0..400).map(|at| found(&at.to_string(), &[at, at + 1], 1.0 + (at * 7 % 13) as f64)).collect();
        let taken = most_saving(row);
        let mut nodes: Vec<NodeId> = taken.iter().flat_map(|of| of.covers.clone()).collect();
        nodes.sort_unstable();
        assert!(nodes.windows(2).all(|pair| pair[0] != pair[1]) && taken.len() > 130, "{}", taken.len());
    }
}
