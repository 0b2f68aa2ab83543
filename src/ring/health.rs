//! The state of a ring.

use std::fmt;

use super::{Close, Core};
use crate::error::{Credits, Error, FaultClass};
use crate::sync::lock;

/// The state of an engine. [`Engine::health`](crate::Engine::health) gives it at any time, and never fails.
///
/// ```
/// # fn f(engine: &trefoil::Engine) {
/// use trefoil::FaultClass;
/// let health = engine.health();
/// println!("{health}"); // "ok: 1 being filled, 2 in flight, 0 finished and unread (of 6 staging and 24 result buffers)"
/// match health.class() {
///     None => {}
///     Some(FaultClass::Process) => std::process::exit(1), // and let it be started anew
///     Some(_) => eprintln!("open the device anew: {}", health.fault.unwrap()),
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Health {
    /// The fault that put the device out of use, if there was one: an [`Error::Fault`] that names the operation. Every
    /// later call returns it.
    pub fault: Option<Error>,
    /// The ring's credits in each state. After a fault, submissions that are not answered yet count as in flight.
    pub credits: Credits,
    /// The number of staging and result buffers that are out of use, because after a fault it is unknown whether the
    /// device still accesses them.
    pub quarantined: usize,
    /// How the engine was closed, if it was.
    pub closed: Option<Close>,
}

impl Health {
    /// Whether the engine accepts work: it has no fault and is not closed.
    pub fn is_ok(&self) -> bool {
        self.fault.is_none() && self.closed.is_none()
    }

    /// How far the fault reaches, if there is one.
    pub fn class(&self) -> Option<FaultClass> {
        self.fault.as_ref().map(Error::class)
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.fault, self.closed) {
            (Some(fault), _) => write!(f, "faulted ({}): {fault}", fault.class())?,
            (None, Some(Close::Drain)) => write!(f, "closed, drained")?,
            (None, Some(Close::Abort)) => write!(f, "closed, aborted")?,
            (None, None) => write!(f, "ok")?,
        }
        write!(f, ": {}", self.credits)?;
        match self.quarantined {
            0 => Ok(()),
            buffers => write!(f, "; {buffers} buffers quarantined"),
        }
    }
}

impl Core {
    /// The state of the ring. Asks the device which submissions have finished.
    pub fn health(&self) -> Health {
        let asked = self.device.healthy().and_then(|()| self.credits());
        let mut state = lock(&self.state);
        if asked.is_err() {
            state.quarantine_unseen();
        }
        let credits = asked.unwrap_or_else(|_| state.count().0);
        let fault = self.device.fault();
        let staging = state.quarantined_staging(fault.is_some());
        Health { fault, quarantined: credits.quarantined + staging, credits, closed: state.closed }
    }
}
