//! What is known of the batches of one size.

use std::time::Duration;

use super::estimate::Estimate;

/// Batches of a size to one whose upload is measured.
pub(super) const SAMPLE: u32 = 16;
/// Batches of other sizes after which a size's run is not known any more, and runs alone after which those beside others are
/// not.
pub(super) const FORGET: u32 = 256;

/// The part of a run by which [`Size::soonest`] follows a longer one.
const FOLLOWS: u32 = 32;

pub(super) struct Size {
    pub rows: usize,
    /// A run with nothing beside it.
    pub alone: Estimate,
    /// What few such runs are shorter than; it follows a shorter one at once, and a longer one slowly.
    pub soonest: Option<Duration>,
    /// A run with another of the size beside it all the time.
    side_by_side: Estimate,
    /// Runs alone since the last one beside another.
    runs_alone: u32,
    /// Of a row.
    upload: Estimate,
    /// Batches until an upload is measured again.
    unmeasured: u32,
    /// Batches of other sizes since the last of this one.
    unused: u32,
}

impl Size {
    /// Of which nothing is known.
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

    /// A batch of this size was sent; whether its upload is to be measured.
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

    /// A batch of another size was sent. What was slow once is tried again: a size that is not used for long forgets.
    pub fn passed(&mut self) {
        self.unused += 1;
        if self.unused == FORGET {
            (self.alone, self.soonest, self.side_by_side, self.unused) = Default::default();
        }
    }

    /// The upload of so many rows took so long.
    pub fn uploaded(&mut self, rows: usize, took: Duration) {
        self.upload.add(took.div_f64(rows as f64));
        self.unmeasured = SAMPLE;
    }

    /// What the upload of so many rows takes; nothing before it was measured.
    pub fn upload(&self, rows: usize, of: fn(&Estimate) -> Option<Duration>) -> Duration {
        of(&self.upload).map_or(Duration::ZERO, |row| row.mul_f64(rows as f64))
    }

    /// What is known of the upload is too long: the next one is measured.
    pub fn forget_upload(&mut self) {
        (self.upload, self.unmeasured) = Default::default();
    }

    /// A run took so long, of it `alone` with nothing beside it. From one that was mostly beside others of its size follows
    /// what it takes beside one all the time, if it is known what it takes alone. Smaller ones slow it down less.
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

    /// How fast it runs beside another, a half to 1, as if it was alone; 1 where that is not known.
    pub fn speed_beside(&self) -> f64 {
        let both = self.alone.mean().zip(self.side_by_side.mean());
        both.map_or(1.0, |(alone, side_by_side)| alone.div_duration_f64(side_by_side).clamp(0.5, 1.0))
    }

    /// Whether two runs side by side do clearly more than one after the other, a quarter: what is gained has to outweigh
    /// that both are over later. What a run takes alone has to be known, and that it does not gain has to be seen.
    pub fn gains_side_by_side(&self) -> bool {
        self.alone
            .mean()
            .is_some_and(|alone| self.side_by_side.mean().is_none_or(|side_by_side| 5 * side_by_side < 8 * alone))
    }
}
