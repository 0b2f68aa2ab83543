//! The time of each step of a plan inside the whole graph.

use crate::plan::Plan;

/// The measured times of a plan's steps, in seconds.
///
/// The time of a step is the time between two marks, which are timing events in the captured graph before and behind
/// the step. In the graph without marks, a step may start before the previous one has ended; a mark prevents that, and
/// takes time itself. So the sum of the steps is larger than the time of the graph without marks, which
/// [`StepTimes::graph`] has.
///
/// ```no_run
/// # use trefoil::{Engine, model::Model};
/// # let model = Model::open("weights/efficientnet-lite0")?;
/// let times = Engine::builder(&model).batch_sizes(&[128]).measure_steps(50)?;
/// assert_eq!(times.steps.len(), times.plan.steps.len());
/// let alone: f64 = times.steps.iter().map(|step| step - times.mark).sum();
/// println!("{:.1} us step by step, {:.1} us as a graph", 1e6 * alone, 1e6 * times.graph);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct StepTimes {
    /// The plan that was measured.
    pub plan: Plan,
    /// One time for each step; empty if the measurement was [ended](crate::EngineBuilder::tune_while) before it began.
    pub steps: Vec<f64>,
    /// The time between two marks with nothing in between. It is a part of every step's time.
    pub mark: f64,
    /// The time of one run of the graph without marks, with runs one directly after the other.
    pub graph: f64,
}

impl StepTimes {
    /// The times of a plan that was not measured: no steps, and zeros.
    pub(crate) fn none(plan: Plan) -> Self {
        Self { plan, steps: Vec::new(), mark: 0.0, graph: 0.0 }
    }
}

#[cfg(feature = "cuda")]
impl StepTimes {
    /// The times from seconds `[step][run]`, with a last row for two marks with nothing in between, and from the
    /// seconds of runs of the whole graph.
    pub(super) fn new(mut runs: Vec<Vec<f64>>, graph: Vec<f64>, plan: Plan) -> Self {
        let mark = runs.pop().map_or(0.0, middle);
        Self { steps: runs.into_iter().map(middle).collect(), mark, graph: middle(graph), plan }
    }
}

/// The mean of the middle half: an event's clock is too coarse for a median of short times.
#[cfg(feature = "cuda")]
fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let quarter = values.len() / 4;
    let half = &values[quarter..values.len() - quarter];
    half.iter().sum::<f64>() / half.len().max(1) as f64
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn the_middle_half_counts() {
        assert_eq!(middle(vec![9.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(middle(vec![7.0]), 7.0);
        assert_eq!(middle(Vec::new()), 0.0);
    }
}
