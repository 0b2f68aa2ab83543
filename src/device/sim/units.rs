//! The units of the simulated device: two copy engines on one link, and a compute engine.

use super::{Link, Picos, SideBySide, Unit, picos};
use crate::error::{Error, FaultClass};

pub(super) const UNITS: [Unit; 3] = [Unit::CopyIn, Unit::Compute, Unit::CopyOut];

/// An operation of a unit. A copy's bytes pass the link after its fixed part.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub unit: Unit,
    pub moves: Moves,
    pub fixed: Picos,
    /// Of the highest rate that the compute engine has, what this run makes use of when it is alone: 0 to 1.
    pub part: f64,
    /// The operation's number, if it is to fail.
    pub fails: Option<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct Moves {
    pub dst: usize,
    pub src: usize,
    pub bytes: usize,
}

#[derive(Default)]
pub(super) struct UnitState {
    /// Streams whose first operation is for this unit, as (whether of normal priority, order of getting ready, stream).
    pub ready: Vec<(bool, u64, u64)>,
    /// In the order of their start: a copy engine does one at a time.
    pub active: Vec<Active>,
    /// How long at least one was active, up to `counted`.
    pub busy: Picos,
    pub counted: Picos,
    /// Operations enqueued so far.
    pub calls: usize,
    /// Operations finished so far.
    pub finished: u64,
}

/// What a unit is doing.
pub(super) struct Active {
    pub stream: u64,
    pub work: Work,
    pub started: Picos,
    pub until: Picos,
    /// While bytes of a copy pass the link, and while a program runs.
    pub progress: Option<Progress>,
}

/// What is left, bytes or seconds of a run alone, and how much of it is done in a second.
pub(super) struct Progress {
    pub left: f64,
    pub rate: f64,
    pub since: Picos,
}

impl Active {
    /// It goes on at another rate.
    fn goes_on_at(&mut self, rate: f64, now: Picos) {
        let Some(progress) = self.progress.as_mut().filter(|progress| progress.rate != rate) else { return };
        let done = progress.rate * (now - progress.since) as f64 * 1e-12;
        *progress = Progress { left: (progress.left - done).max(0.0), rate, since: now };
        self.until = now + picos(progress.left / rate);
    }
}

impl UnitState {
    /// An operation has ended, and is not among the active ones any more.
    pub fn ended(&mut self, operation: &Active, now: Picos) {
        let since = self.active.iter().map(|other| other.started).fold(operation.started, Picos::min);
        self.busy += now - since.max(self.counted);
        self.counted = now;
        self.finished += 1;
    }
}

/// Gives programs that run side by side their speed; see [`SideBySide`].
pub(super) fn share_compute(units: &mut [UnitState; 3], side_by_side: SideBySide, now: Picos) {
    let running = &mut units[Unit::Compute as usize].active;
    let parts: f64 = running.iter().map(|active| active.work.part).sum();
    let speed = side_by_side.speed(running.len(), parts);
    running.iter_mut().for_each(|active| active.goes_on_at(speed, now));
}

/// Gives each direction its rate: duplex while both move bytes.
pub(super) fn share_link(units: &mut [UnitState; 3], link: Link, now: Picos) {
    let moving = |unit: &UnitState| unit.active.iter().any(|active| active.progress.is_some());
    let [copy_in, _, copy_out] = &*units;
    let duplex = moving(copy_in) && moving(copy_out);
    for unit in [Unit::CopyIn, Unit::CopyOut] {
        let rate = match (unit, duplex) {
            (Unit::CopyIn, false) => link.in_alone,
            (Unit::CopyIn, true) => link.in_duplex,
            (_, false) => link.out_alone,
            (_, true) => link.out_duplex,
        };
        units[unit as usize].active.iter_mut().for_each(|active| active.goes_on_at(rate, now));
    }
}

impl Moves {
    pub fn first_half(self) {
        self.part(0, self.bytes / 2);
    }

    pub fn second_half(self) {
        self.part(self.bytes / 2, self.bytes);
    }

    fn part(self, from: usize, to: usize) {
        // SAFETY: who enqueued it keeps both ranges alive and unshared until an event behind it is done (the contract
        // of `Backend`), and it is called before that only; they are different allocations.
        unsafe {
            std::ptr::copy_nonoverlapping((self.src + from) as *const u8, (self.dst + from) as *mut u8, to - from)
        }
    }
}

/// The error of an operation that was told to fail.
pub(super) fn injected(unit: Unit, nth: usize) -> Error {
    let operation = match unit {
        Unit::CopyIn => "copy_in",
        Unit::Compute => "launch",
        Unit::CopyOut => "copy_out",
    };
    Error::Driver {
        device: "sim".into(),
        operation,
        status: "INJECTED".into(),
        code: nth.min(i32::MAX as usize) as i32,
        class: FaultClass::Device,
    }
}
