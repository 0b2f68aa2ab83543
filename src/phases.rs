//! The phases of work that is done once, with their times, as plain data.

use std::fmt;
use std::time::{Duration, Instant};

/// A part of opening a device or of building an engine, and its time.
///
/// ```
/// use trefoil::{Device, Target};
/// for phase in Device::open(Target::Cpu)?.opening() {
///     println!("{phase}");
/// }
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// The name of the phase.
    pub name: &'static str,
    /// The time that it took on the calling thread.
    pub took: Duration,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:.2} ms", self.name, 1e3 * self.took.as_secs_f64())
    }
}

/// Cuts the time since its start into phases.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    last: Instant,
    phases: Vec<Phase>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { last: Instant::now(), phases: Vec::new() }
    }

    /// Ends the phase `name`; the next begins.
    pub(crate) fn lap(&mut self, name: &'static str) {
        let now = Instant::now();
        self.phases.push(Phase { name, took: now - self.last });
        self.last = now;
    }

    /// The phases that have ended, in order.
    pub(crate) fn phases(self) -> Vec<Phase> {
        self.phases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_follow_each_other_without_a_gap() {
        let start = Instant::now();
        let mut watch = Stopwatch::start();
        std::thread::sleep(Duration::from_millis(2));
        watch.lap("sleep");
        watch.lap("nothing");
        let (last, phases) = (watch.last, watch.phases());
        assert_eq!(phases.iter().map(|phase| phase.name).collect::<Vec<_>>(), ["sleep", "nothing"]);
        assert!(phases[0].took >= Duration::from_millis(2));
        assert!(phases.iter().map(|phase| phase.took).sum::<Duration>() <= last - start);
        assert_eq!(Phase { name: "plan", took: Duration::from_micros(1500) }.to_string(), "plan: 1.50 ms");
    }
}
