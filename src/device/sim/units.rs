//! The units of the simulated device: two copy engines on one link, and a compute engine.

use super::{Link, Picos, SideBySide, Unit, picos};
use crate::error::{Error, FaultClass};

pub(super) const UNITS: [Unit; 3] = [Unit::CopyIn, Unit::Compute, Unit::CopyOut];

/// An operation of a unit. A copy's bytes cross the link after its fixed part.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub unit: Unit,
    pub moves: Moves,
    pub fixed: Picos,
    /// The part of the compute engine's highest rate that this run reaches when it is alone: 0 to 1.
    pub part: f64,
    /// The operation's number if it is to fail, else `None`.
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
    /// Streams whose first operation is for this unit: (whether of normal priority, order of becoming ready, stream).
    pub ready: Vec<(bool, u64, u64)>,
    /// The operations that run, in the order of their start. A copy engine runs one at a time.
    pub active: Vec<Active>,
    /// The time for which at least one operation ran, up to `counted`.
    pub busy: Picos,
    pub counted: Picos,
    /// The number of operations enqueued so far.
    pub calls: usize,
    /// The number of operations finished so far.
    pub finished: u64,
}

/// An operation that runs.
pub(super) struct Active {
    pub stream: u64,
    pub work: Work,
    pub started: Picos,
    pub until: Picos,
    /// `None` during the fixed part of a copy; `Some` while a copy's bytes cross the link, and while a program runs.
    pub progress: Option<Progress>,
}

/// The work that is left, in bytes or in seconds of a run alone, and the work done per second.
pub(super) struct Progress {
    pub left: f64,
    pub rate: f64,
    pub since: Picos,
}

impl Active {
    /// Continues the operation at another rate.
    fn goes_on_at(&mut self, rate: f64, now: Picos) {
        let Some(progress) = self.progress.as_mut().filter(|progress| progress.rate != rate) else { return };
        let done = progress.rate * (now - progress.since) as f64 * 1e-12;
        *progress = Progress { left: (progress.left - done).max(0.0), rate, since: now };
        self.until = now + picos(progress.left / rate);
    }
}

impl UnitState {
    /// Counts an operation that has ended and is no longer among the active ones.
    pub fn ended(&mut self, operation: &Active, now: Picos) {
        let since = self.active.iter().map(|other| other.started).fold(operation.started, Picos::min);
        self.busy += now - since.max(self.counted);
        self.counted = now;
        self.finished += 1;
    }
}

/// Sets the speed of programs that run side by side; see [`SideBySide`].
pub(super) fn share_compute(units: &mut [UnitState; 3], side_by_side: SideBySide, now: Picos) {
    let running = &mut units[Unit::Compute as usize].active;
    let parts: f64 = running.iter().map(|active| active.work.part).sum();
    let speed = side_by_side.speed(running.len(), parts);
    running.iter_mut().for_each(|active| active.goes_on_at(speed, now));
}

/// Sets the rate of each direction: the duplex rate while both move bytes.
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

/// The error of an operation that was injected to fail.
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
