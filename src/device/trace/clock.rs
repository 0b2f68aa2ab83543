//! The host's clock, and the mapping of a device's event times to it.

use std::sync::Arc;
use std::time::Instant;

use super::Events;
use crate::device::sim::Sim;
use crate::device::{Device, Kind, Priority};
use crate::error::Error;

/// A clock that gives the seconds since it was made; on a simulated device, seconds of virtual time.
pub(super) enum Clock {
    Wall(Instant),
    Virtual(Arc<Sim>),
}

/// How often the base event is recorded; the attempt that took the host the least time counts.
const ATTEMPTS: usize = 8;

impl Clock {
    pub fn of(device: &Device) -> Self {
        match device.kind() {
            Kind::Sim(sim) => Self::Virtual(sim.clone()),
            _ => Self::Wall(Instant::now()),
        }
    }

    pub fn now(&self) -> f64 {
        match self {
            Self::Wall(start) => start.elapsed().as_secs_f64(),
            Self::Virtual(sim) => sim.now() as f64 * 1e-12,
        }
    }

    /// Makes the base event, waits until the device has reached it, and returns the event and the time: the middle of
    /// the interval in which the device must have reached it. Waits only for this event, on a stream of its own; a
    /// failure there faults the device.
    pub fn set_base(&self, device: &Device, events: &mut Events<'_>) -> Result<(u64, f64), Error> {
        let inner = events.inner;
        let stream = inner.stream_create(Priority::Normal, "trefoil-trace")?;
        let best = (0..ATTEMPTS).try_fold(None, |best: Option<(u64, f64, f64)>, _| {
            let event = events.add()?;
            let before = self.now();
            // SAFETY: event and stream were just made and live until the end of this function at least.
            unsafe {
                device.latch(inner.event_record(event, stream))?;
                while !device.latch(inner.event_query(event))? {
                    std::hint::spin_loop();
                }
            }
            let took = self.now() - before;
            let better = best.is_none_or(|(.., least)| took < least);
            Ok(if better { Some((event, before + took / 2.0, took)) } else { best })
        });
        // SAFETY: made above, destroyed once; all that was enqueued on it is done, or the device failed.
        let destroyed = unsafe { inner.stream_destroy(stream) };
        let (base, at, _) = best?.expect("there is an attempt");
        destroyed?;
        let attempts = events.made.split_off(events.made.len() - ATTEMPTS);
        super::destroy(inner, attempts.into_iter().filter(|&event| event != base));
        events.made.push(base); // destroyed with the others if the recorder cannot be made
        Ok((base, at))
    }
}
