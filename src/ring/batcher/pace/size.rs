//! The measurements of the batches of one size.

use std::time::Duration;

use super::estimate::Estimate;

/// One of this many batches of a size has its upload measured.
pub(super) const SAMPLE: u32 = 16;
/// After this many batches of other sizes, the times of a size's runs are forgotten. After this many runs alone, the
/// time of runs side by side is forgotten.
pub(super) const FORGET: u32 = 256;

/// The part of a run by which [`Size::soonest`] follows a longer one.
const FOLLOWS: u32 = 32;

pub(super) struct Size {
    pub rows: usize,
    /// The time of a run with no other beside it.
    pub alone: Estimate,
    /// A time that few such runs are shorter than. It follows a shorter run at once, and a longer one slowly.
    pub soonest: Option<Duration>,
    /// The time of a run with another of this size beside it all the time.
    side_by_side: Estimate,
    /// The number of runs alone since the last one beside another.
    runs_alone: u32,
    /// The time of the upload of a row.
    upload: Estimate,
    /// The number of batches until an upload is measured again.
    unmeasured: u32,
    /// The number of batches of other sizes since the last one of this size.
    unused: u32,
}

impl Size {
    /// A size without measurements.
    pub fn new(rows: usize) -> Self {
        Self {
            rows,
            alone: Estimate::default(),
            soonest: None,
            side_by_side: Estimate::default(),
            runs_alone: 0,
            upload: Estimate::default(),
            unmeasured: 0,
            unused: 0,
        }
    }

    /// Records that a batch of this size was sent; returns whether its upload should be measured.
    pub fn sent(&mut self) -> bool {
        let is_measured = self.measures();
        self.unused = 0;
        self.unmeasured = self.unmeasured.saturating_sub(1);
        is_measured
    }

    /// Whether the upload of the next batch of this size is to be measured.
    pub fn measures(&self) -> bool {
        self.unmeasured <= 1
    }

    /// Records that a batch of another size was sent. A size that is not used for long forgets its times, so that a
    /// size that was once slow is tried again.
    pub fn passed(&mut self) {
        self.unused += 1;
        if self.unused == FORGET {
            (self.alone, self.soonest, self.side_by_side, self.unused) = Default::default();
        }
    }

    /// Records the time of the upload of `rows` rows.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        self.upload.add(took.div_f64(rows as f64));
        self.unmeasured = SAMPLE;
    }

    /// The time of the upload of `rows` rows; zero before the first measurement.
    pub fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        of(&self.upload).map_or(Duration::ZERO, |row| row.mul_f64(rows as f64))
    }

    /// Forgets the time of uploads because it is too long, so that the next upload is measured.
    pub fn forget_upload(&mut self) {
        (self.upload, self.unmeasured) = Default::default();
    }

    /// Records the time of a run, of which it was `alone` for a part. If it was mostly beside others of its size, and
    /// the time of a run alone is known, this gives the time of a run that is beside another all the time. Smaller ones
    /// would slow it down less.
    pub fn took(&mut self, took: Duration, alone: Duration, others_alike: bool) {
        if 8 * alone >= 7 * took {
            self.alone.add(took);
            self.soonest = Some(self.soonest.map_or(took, |soonest| took.min(soonest + soonest / FOLLOWS)));
            self.runs_alone = self.runs_alone.saturating_add(1);
            if self.runs_alone == FORGET {
                self.side_by_side = Estimate::default();
            }
            return;
        }
        let Some(run) = self.alone.mean() else { return };
        if self.soonest.is_none() {
            self.soonest = Some(alone + (took - alone).mul_f64(self.speed_beside()));
        }
        if others_alike && 2 * alone <= took {
            let speed = run.saturating_sub(alone).div_duration_f64(took - alone);
            self.side_by_side.add(run.div_f64(speed.clamp(0.5, 1.0)));
            self.runs_alone = 0;
        }
    }

    /// The speed of a run beside another one, relative to a run alone: a half to 1; 1 if it is not known.
    pub fn speed_beside(&self) -> f64 {
        let both = self.alone.mean().zip(self.side_by_side.mean());
        both.map_or(1.0, |(alone, side_by_side)| alone.div_duration_f64(side_by_side).clamp(0.5, 1.0))
    }

    /// Whether two runs side by side do clearly more than one after the other, by a quarter: the gain has to outweigh
    /// that both end later. True if only the time of a run alone is known, so that the size is tried.
    pub fn gains_side_by_side(&self) -> bool {
        self.alone
            .mean()
            .is_some_and(|alone| self.side_by_side.mean().is_none_or(|side_by_side| 5 * side_by_side < 8 * alone))
    }
}
