//! What works on the device: two copy engines on one link, and a compute engine.

use super::{Link, Picos, Unit, picos};
use crate::error::{Error, FaultClass};

pub(super) const UNITS: [Unit; 3] = [Unit::CopyIn, Unit::Compute, Unit::CopyOut];

/// An operation of a unit. A copy's bytes pass the link after its fixed part.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub unit: Unit,
    pub moves: Moves,
    pub fixed: Picos,
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
    pub active: Option<Active>,
    pub busy: Picos,
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
    pub transfer: Option<Transfer>,
}

/// The part of a copy in which bytes pass the link.
pub(super) struct Transfer {
    pub left: f64,
    pub rate: f64,
    pub since: Picos,
}

/// Gives each direction its rate: duplex while both move bytes.
pub(super) fn share_link(units: &mut [UnitState; 3], link: Link, now: Picos) {
    let moving = |unit: &UnitState| unit.active.as_ref().is_some_and(|active| active.transfer.is_some());
    let [copy_in, _, copy_out] = &*units;
    let duplex = moving(copy_in) && moving(copy_out);
    for unit in [Unit::CopyIn, Unit::CopyOut] {
        let rate = match (unit, duplex) {
            (Unit::CopyIn, false) => link.in_alone,
            (Unit::CopyIn, true) => link.in_duplex,
            (_, false) => link.out_alone,
            (_, true) => link.out_duplex,
        };
        let Some(active) = &mut units[unit as usize].active else { continue };
        if let Some(transfer) = active.transfer.as_mut().filter(|transfer| transfer.rate != rate) {
            let moved = transfer.rate * (now - transfer.since) as f64 * 1e-12;
            *transfer = Transfer { left: (transfer.left - moved).max(0.0), rate, since: now };
            active.until = now + picos(transfer.left / rate);
        }
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
