//! Finds the candidates that are faster than the planner's first choices from times of whole graphs. The caller
//! measures the times.

use crate::error::Error;
use crate::plan::{Candidate, Choices, Kernel};

/// The steps of one shape.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// The shape of the steps.
    pub shape: String,
    /// The names of the steps.
    pub steps: Vec<String>,
    /// The kernel of the steps now. The planner's first choice is the first candidate.
    pub kernel: Kernel,
    /// The kernels that the steps may have.
    pub candidates: Vec<Candidate>,
}

/// The kernel that was found for a group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Found {
    pub shape: String,
    pub kernel: Kernel,
    pub planned: Kernel,
    /// The seconds that it saves in a run of the graph, for each step.
    pub gain: f64,
}

/// Rounds in which candidates are compared, and rounds in which the best one is compared again, because the best of
/// several measurements is also the luckiest.
pub(super) const ROUNDS: [usize; 2] = [15, 31];

/// The least gain of a change: in standard errors of the measurement, and as a part of the predicted time of its steps,
/// because runs of another process differ by more than runs of the same process.
const ERRORS: f64 = 3.0;
const PART: f64 = 0.02;

/// Goes through `groups`, those with the most work first, and returns what it found for each of them, while `goes_on`
/// returns true. Each group is measured with the kernels found for the groups before. `time` returns the seconds of
/// runs with each of some choices, `[choice][round]`, measured in turns. `told` gets the number of groups done, the
/// number of all groups, and the next shape, which is empty at the end.
pub(super) fn search(
    mut groups: Vec<Group>,
    clock_hz: f64,
    goes_on: impl Fn() -> bool,
    mut time: impl FnMut(&[Choices], usize) -> Result<Vec<Vec<f64>>, Error>,
    mut told: impl FnMut(usize, usize, &str),
) -> Result<Vec<Found>, Error> {
    let work = |group: &Group| group.candidates[0].clocks * group.steps.len() as f64;
    groups.sort_by(|a, b| work(b).total_cmp(&work(a)));
    let mut found = Vec::new();
    for index in 0..groups.len() {
        if !goes_on() {
            break;
        }
        told(index, groups.len(), &groups[index].shape);
        let group = &groups[index];
        let (planned, steps) = (group.candidates[0].kernel, group.steps.len() as f64);
        let others: Vec<Kernel> = group
            .candidates
            .iter()
            .map(|candidate| candidate.kernel)
            .filter(|kernel| *kernel != group.kernel)
            .collect();
        let enough = PART * work(group) / clock_hz;
        let mut against = |kernels: &[Kernel], rounds| -> Result<Vec<Gain>, Error> {
            let kernels = std::iter::once(group.kernel).chain(kernels.iter().copied());
            let sets: Vec<Choices> = kernels.map(|kernel| choices(&groups, index, kernel)).collect();
            let seconds = time(&sets, rounds)?;
            Ok(seconds[1..].iter().map(|other| Gain::of(&seconds[0], other)).collect())
        };
        let mut best = (group.kernel, 0.0);
        if !others.is_empty() {
            let gains = against(&others, ROUNDS[0])?;
            let luckiest = (0..others.len()).max_by(|&a, &b| gains[a].seconds.total_cmp(&gains[b].seconds));
            let luckiest = luckiest.expect("there are others");
            if gains[luckiest].is_clear(enough) {
                let again = against(&others[luckiest..=luckiest], ROUNDS[1])?[0];
                if again.is_clear(enough) {
                    best = (others[luckiest], again.seconds / steps);
                }
            }
        }
        let (kernel, gain) = best;
        found.push(Found { shape: group.shape.clone(), kernel, planned, gain });
        groups[index].kernel = kernel;
    }
    told(found.len(), groups.len(), "");
    let all = |kernel: fn(&Group) -> Kernel| -> Choices {
        let of = |group: &Group| group.steps.iter().map(|step| (step.clone(), kernel(group))).collect::<Vec<_>>();
        groups.iter().flat_map(of).collect()
    };
    // All changes together must be clearly faster too; otherwise each of them was luck.
    let sets = [all(|group| group.candidates[0].kernel), all(|group| group.kernel)];
    if sets[0] != sets[1] {
        let seconds = time(&sets, ROUNDS[1])?;
        if !Gain::of(&seconds[0], &seconds[1]).is_clear(0.0) {
            found.iter_mut().for_each(|found| (found.kernel, found.gain) = (found.planned, 0.0));
        }
    }
    Ok(found)
}

/// The index of the fastest of several, and the seconds that it saves. The first one stays unless another is clearly
/// faster. `seconds` is `[which][round]`, measured in turns.
pub(super) fn fastest(seconds: &[Vec<f64>]) -> (usize, f64) {
    let enough = PART * median(seconds[0].clone());
    let gains = (1..seconds.len()).map(|which| (which, Gain::of(&seconds[0], &seconds[which])));
    let clear = gains.filter(|(_, gain)| gain.is_clear(enough)).map(|(which, gain)| (which, gain.seconds));
    clear.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, 0.0))
}

/// The kernels of all groups, with another one for the group at `index`.
fn choices(groups: &[Group], index: usize, kernel: Kernel) -> Choices {
    let of = |(at, group): (usize, &Group)| {
        let kernel = if at == index { kernel } else { group.kernel };
        group.steps.iter().map(move |step| (step.clone(), kernel)).collect::<Vec<_>>()
    };
    groups.iter().enumerate().flat_map(of).collect()
}

/// The time that one choice saves against another, measured in the same rounds.
#[derive(Clone, Copy, Debug)]
struct Gain {
    /// The median over the rounds.
    seconds: f64,
    /// The median's standard error.
    error: f64,
}

impl Gain {
    fn of(before: &[f64], after: &[f64]) -> Self {
        let gains: Vec<f64> = before.iter().zip(after).map(|(before, after)| before - after).collect();
        let seconds = median(gains.clone());
        let spread = median(gains.iter().map(|gain| (gain - seconds).abs()).collect());
        // For a normal distribution the deviation is 1.48 times the median distance, and the standard error of a median
        // is 1.25 times that of a mean.
        Self { seconds, error: 1.25 * 1.48 * spread / (gains.len() as f64).sqrt() }
    }

    fn is_clear(self, enough: f64) -> bool {
        self.seconds > enough && self.seconds > ERRORS * self.error
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ConvTile;

    const TILES: [ConvTile; 3] = [ConvTile { m: 128, n: 128 }, ConvTile { m: 64, n: 64 }, ConvTile { m: 32, n: 64 }];

    fn group(shape: &str, steps: &[&str], clocks: f64) -> Group {
        let candidates = TILES.map(|tile| Candidate { kernel: Kernel::Sm80Gemm(tile), clocks, bytes: 0 }).to_vec();
        let steps = steps.iter().map(|step| (*step).to_owned()).collect();
        Group { shape: shape.into(), steps, kernel: candidates[0].kernel, candidates }
    }

    /// A graph whose steps take given times, with noise that grows and shrinks for all steps together, and a little
    /// noise of each step alone.
    struct Graph {
        random: u64,
        measured: usize,
    }

    impl Graph {
        fn new() -> Self {
            Self { random: 7, measured: 0 }
        }

        fn unit(&mut self) -> f64 {
            self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 11) as f64 / (1_u64 << 53) as f64
        }

        fn rounds(
            &mut self,
            sets: &[Choices],
            rounds: usize,
            noise: f64,
            step: impl Fn(&str, Kernel) -> f64,
        ) -> Vec<Vec<f64>> {
            let mut seconds = vec![Vec::new(); sets.len()];
            for _ in 0..rounds {
                self.measured += 1;
                let heat = 1.0 + 0.02 * self.unit();
                for (set, seconds) in sets.iter().zip(&mut seconds) {
                    let sum: f64 = set.iter().map(|(name, kernel)| step(name, *kernel)).sum();
                    seconds.push(heat * sum + noise * (self.unit() - 0.5));
                }
            }
            seconds
        }
    }

    fn sm80(index: usize) -> Kernel {
        Kernel::Sm80Gemm(TILES[index])
    }

    fn run(groups: Vec<Group>, noise: f64, step: impl Fn(&str, Kernel) -> f64) -> Vec<Found> {
        let mut graph = Graph::new();
        let time = |sets: &[Choices], rounds| Ok(graph.rounds(sets, rounds, noise, &step));
        search(groups, 1e9, || true, time, |_, _, _| {}).unwrap()
    }

    /// Shape `a`: the second candidate saves 20 of 100 us in each of three steps. `b`: all candidates are equal. `c`:
    /// the first is the fastest.
    fn step(name: &str, kernel: Kernel) -> f64 {
        let us = match (name.as_bytes()[0], TILES.iter().position(|&tile| Kernel::Sm80Gemm(tile) == kernel).unwrap()) {
            (b'a', 1) => 80.0,
            (b'a' | b'b', _) => 100.0,
            (_, index) => 30.0 + 5.0 * index as f64,
        };
        1e-6 * us
    }

    fn groups() -> Vec<Group> {
        vec![group("c", &["c1"], 30e3), group("a", &["a1", "a2", "a3"], 100e3), group("b", &["b1", "b2"], 100e3)]
    }

    #[test]
    fn what_is_clearly_faster_is_found_and_the_rest_stays() {
        let found = run(groups(), 2e-6, step);
        let kernels: Vec<(&str, Kernel)> = found.iter().map(|found| (&found.shape[..], found.kernel)).collect();
        // Groups with the most work come first.
        assert_eq!(kernels, [("a", sm80(1)), ("b", sm80(0)), ("c", sm80(0))]);
        assert!((found[0].gain - 20e-6).abs() < 1e-6 && found[1].gain == 0.0, "{found:?}");
        assert!(found.iter().all(|found| found.planned == sm80(0)));
    }

    #[test]
    fn gains_that_noise_could_be_are_not_believed() {
        // Runs of 600 us with noise of 60 us, and nothing to gain.
        let worse = |_: &str, kernel| if kernel == sm80(0) { 1e-4 } else { 1.01e-4 };
        let found = run(groups(), 60e-6, worse);
        assert!(found.iter().all(|found| found.kernel == sm80(0) && found.gain == 0.0), "{found:?}");
        // A gain of 1 % of the steps is clearly measured, but too small to hold in another process.
        let little = |_: &str, kernel| if kernel == sm80(1) { 99e-6 } else { 1e-4 };
        let found = run(vec![group("a", &["a1"], 100e3)], 0.0, little);
        assert_eq!(found[0].kernel, sm80(0));
    }

    #[test]
    fn a_group_is_measured_with_what_was_found_before() {
        // The second candidate of `b` is fast only beside the second of `a`.
        let time = |sets: &[Choices], rounds: usize| {
            let of = |set: &Choices| match (set["a1"] == sm80(1), set["b1"] == sm80(1)) {
                (true, true) => 50e-6,
                (true, false) => 150e-6,
                (false, _) => 200e-6,
            };
            Ok(sets.iter().map(|set| vec![of(set); rounds]).collect())
        };
        let groups = vec![group("a", &["a1"], 200e3), group("b", &["b1"], 100e3)];
        let found = search(groups, 1e9, || true, time, |_, _, _| {}).unwrap();
        assert_eq!([found[0].kernel, found[1].kernel], [sm80(1), sm80(1)]);
    }

    #[test]
    fn it_can_be_ended_and_progress_is_told() {
        for (most, shapes) in [(0, vec![""]), (1, vec!["a", ""]), (3, vec!["a", "b", "c", ""])] {
            let mut graph = Graph::new();
            let time = |sets: &[Choices], rounds| Ok(graph.rounds(sets, rounds, 0.0, step));
            let (asked, mut heard) = (std::cell::Cell::new(0), Vec::new());
            let goes_on = || asked.replace(asked.get() + 1) < most;
            let told = |done, of, shape: &str| heard.push((done, of, shape.to_owned()));
            let found = search(groups(), 1e9, goes_on, time, told).unwrap();
            // The groups that were measured until then count.
            let expected: Vec<_> =
                shapes.into_iter().enumerate().map(|(at, shape)| (at, 3, shape.to_owned())).collect();
            assert_eq!((found.len(), heard), (most, expected));
            assert!(found.iter().all(|found| found.kernel == sm80(usize::from(found.shape == "a"))));
        }
        let failing = |_: &[Choices], _| Err(Error::Internal { what: "no device".into() });
        assert!(search(groups(), 1e9, || true, failing, |_, _, _| {}).is_err());
    }

    #[test]
    fn the_first_stays_unless_another_is_clearly_faster() {
        let rounds = |us: f64| (0..31).map(|round| 1e-6 * (us + f64::from(round % 3))).collect::<Vec<_>>();
        assert_eq!(fastest(&[rounds(100.0), rounds(99.5), rounds(120.0)]), (0, 0.0));
        let (which, gain) = fastest(&[rounds(100.0), rounds(90.0), rounds(80.0)]);
        assert!(which == 2 && (gain - 20e-6).abs() < 1e-9, "{which}: {gain}");
        assert_eq!(fastest(&[rounds(100.0)]), (0, 0.0));
    }

    #[test]
    fn one_candidate_needs_no_measurement() {
        let mut alone = group("a", &["a1"], 1e3);
        alone.candidates.truncate(1);
        let time = |_: &[Choices], _| -> Result<Vec<Vec<f64>>, Error> { panic!("nothing to compare") };
        let found = search(vec![alone], 1e9, || true, time, |_, _, _| {}).unwrap();
        assert_eq!((found[0].kernel, found[0].gain), (sm80(0), 0.0));
    }
}
