//! Candidates: the few kernels that tuning times for a step, with their predictions.

use std::fmt;

use super::kernels::{self, Variant};
use super::roofline::LAUNCH;
use super::{Kernel, Plan, Rates, Step};

/// A kernel that can compute a step, with its predicted cost.
///
/// ```
/// use trefoil::plan::{Candidate, ConvTile, Kernel, Limits, Rates};
/// let rates = Rates::of(&Limits::h200()).expect("an H200 is known");
/// let kernel = Kernel::Sm80Gemm(ConvTile { m: 128, n: 64 });
/// let candidate = Candidate { kernel, clocks: 8_400.0, bytes: 100 << 20 };
/// assert_eq!(candidate.to_string(), "sm80 128x64 (8.4 kclk)");
/// // Memory takes longer than the clocks; and there is a launch, as in the rooflines.
/// assert_eq!(candidate.seconds(&rates), (100 << 20) as f64 / rates.memory_bytes + 2.5e-6);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The kernel.
    pub kernel: Kernel,
    /// Clocks of the busiest multiprocessor.
    pub clocks: f64,
    /// Bytes through device memory, including residual and weights; the same for every kernel.
    pub bytes: u64,
}

impl Candidate {
    /// The time of the clocks or of the bytes through device memory, whichever is longer, plus the launch, which is
    /// that of a [`Roofline`](super::Roofline).
    pub fn seconds(&self, rates: &Rates) -> f64 {
        (self.clocks / rates.clock_hz).max(self.bytes as f64 / rates.memory_bytes) + LAUNCH
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:.1} kclk)", self.kernel, self.clocks / 1e3)
    }
}

/// The largest number of candidates of a step.
const MOST: usize = 4;

/// The largest ratio of a candidate's predicted clocks to those of the first.
const WITHIN: f64 = 1.5;

impl Plan {
    /// The kernels that tuning times for a step: at most four, the planner's first choice first, then in the order of
    /// their predictions. Empty for a step whose operation has only one kernel.
    ///
    /// ```
    /// use trefoil::plan::{Choices, Limits, Request, plan};
    /// # use trefoil::{InputFormat, OutputKind, model::Model};
    /// # let model = Model::open("weights/efficientnet-lite0")?;
    /// # let (preprocessing, output) = (model.preprocessing()?, OutputKind::Logits);
    /// let (limits, choices) = (Limits::h200(), Choices::new());
    /// let request =
    ///     Request { limits: &limits, batch: 32, input: InputFormat::U8Nhwc, preprocessing, output, choices: &choices };
    /// let plan = plan(model.image_network()?, &request)?;
    /// for (index, step) in plan.steps.iter().enumerate() {
    ///     let candidates = plan.candidates(index);
    ///     assert!(candidates.len() <= 4 && candidates.first().is_none_or(|first| first.kernel == step.kernel));
    /// }
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no such step.
    pub fn candidates(&self, step: usize) -> Vec<Candidate> {
        let mut kernels: Vec<Candidate> = self.modelled(&self.steps[step]).collect();
        kernels.sort_by(|a, b| a.clocks.total_cmp(&b.clocks));
        let most = kernels.first().map_or(0.0, |first| WITHIN * first.clocks);
        kernels.retain(|candidate| candidate.clocks <= most);
        kernels.truncate(MOST);
        kernels
    }

    /// The prediction for a step with its kernel; `None` if the planner has no prediction for the kernel.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn predicted(&self, step: usize) -> Option<Candidate> {
        let step = &self.steps[step];
        self.modelled(step).find(|candidate| candidate.kernel == step.kernel)
    }

    /// The shape of a step as text, which is the same for all steps of one shape and type, in any model: all that
    /// decides the times of its kernels. It does not contain the place of the result in a concatenation.
    ///
    /// # Panics
    /// If there is no such step.
    pub fn shape_of(&self, step: usize) -> String {
        self.work(&self.steps[step]).key()
    }

    /// Every kernel of a step that the tile model knows, with its clocks.
    fn modelled(&self, step: &Step) -> impl Iterator<Item = Candidate> {
        let bytes = step.bytes;
        let candidate = move |Variant { kernel, clocks }| Some(Candidate { kernel, clocks: clocks?, bytes });
        kernels::variants(&self.work(step), &self.limits).into_iter().filter_map(candidate)
    }
}
