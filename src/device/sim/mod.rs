//! A device in virtual time: copies and programs take the time they are told to, and nothing is computed.
//!
//! It has two copy engines on one link, a compute engine that may run several programs side by side, streams and events
//! with CUDA's semantics, and injected delays and faults, so that a ring runs on it unchanged. Time stands still while
//! host code runs. It advances
//! - when a host thread blocks on an event ([`Backend::event_wait`]), up to that event;
//! - when the driver of the simulation says so ([`Sim::advance_to`]);
//! - with [`SimOptions::polls_advance`], by one step with every look at an event that is not done, so that threads that
//!   poll make progress without a driver.
//!
//! A run from one host thread is therefore the same each time, to the last picosecond. Every copy really moves its
//! bytes, half when it starts and half when it ends, and so does a program, from its input to its output: a test that
//! stamps the rows sees whether a buffer was used too early.

mod program;
mod timeline;
mod units;

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Backend, DeviceInfo, Priority, RowCopy, Signal, cpu};
use crate::error::Error;
use crate::sync::{Mutex, lock};

pub(crate) use program::SimProgram;
use timeline::{Op, Timeline};
use units::{Moves, Work};

/// Virtual time and durations, in picoseconds.
pub(crate) type Picos = u64;

/// Converts seconds to picoseconds, to the nearest.
pub(crate) fn picos(seconds: f64) -> Picos {
    (seconds * 1e12).round() as Picos
}

/// The hardware units; a unit works on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    CopyIn,
    Compute,
    CopyOut,
}

/// The host link. Rates are bytes per second; a duplex rate holds while both directions move bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub in_alone: f64,
    pub in_duplex: f64,
    pub out_alone: f64,
    pub out_duplex: f64,
    /// The time of a copy before its first byte moves: the engine is busy, the link is not.
    pub overhead: Picos,
}

/// How the compute engine runs several programs at the same time.
///
/// A run that is alone takes its given time. Its batch size has a part of the highest rate that its program reaches at
/// any size, where it fills the device. Runs side by side do together `1 + gain * (1 - part)` times the work that they
/// do one after the other, with the mean of their parts, and none is faster than alone. With a gain of 0.5, two runs of
/// 8, 32 and 256 images of ResNet-50 on an H200 do 1.30, 1.10 and 1.00 times the work; measured were 1.34, 1.07 and
/// 1.00.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SideBySide {
    /// The most programs that run at the same time.
    pub most: usize,
    /// The gain of runs side by side that leave nearly all of the device idle.
    pub gain: f64,
}

impl SideBySide {
    /// The speed of each of `runs` runs, relative to a run alone; `parts` is the sum of their [`Work::part`]s.
    pub fn speed(self, runs: usize, parts: f64) -> f64 {
        let runs = runs.max(1) as f64;
        ((1.0 + self.gain * (1.0 - parts / runs)) / runs).min(1.0)
    }
}

impl Default for SideBySide {
    /// Programs run one after the other.
    fn default() -> Self {
        Self { most: 1, gain: 0.0 }
    }
}

/// A failure or delay of one operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub unit: Unit,
    /// The number of the operation among those of the unit, in the order of their calls, from 1.
    pub nth: usize,
    pub effect: Effect,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Effect {
    /// The call that enqueues the operation fails; nothing is enqueued.
    RefuseCall,
    /// The operation fails at its end; after that the device answers every call with an error.
    FailRun,
    /// The operation takes longer by this time.
    Delay(Picos),
}

/// The properties of a simulated device.
#[derive(Clone, Debug)]
pub(crate) struct SimOptions {
    pub link: Link,
    pub side_by_side: SideBySide,
    pub injections: Vec<Injection>,
    /// Whether a look at an event that is not done advances the time by a step.
    pub polls_advance: bool,
}

/// The simulated device.
pub(crate) struct Sim {
    timeline: Mutex<Timeline>,
    polls_advance: bool,
}

impl Sim {
    pub fn new(options: SimOptions) -> (Self, DeviceInfo) {
        let info = DeviceInfo {
            target: "sim".into(),
            name: "simulated device".into(),
            compute_capability: [0, 0],
            units: 1,
            shared_bytes: 0,
            memory_bytes: 0,
            driver_version: 0,
        };
        let SimOptions { link, side_by_side, injections, polls_advance } = options;
        (Self { timeline: Mutex::new(Timeline::new(link, side_by_side, injections)), polls_advance }, info)
    }

    /// The virtual time.
    pub fn now(&self) -> Picos {
        lock(&self.timeline).now()
    }

    /// The time of the device's next step; `None` if it is idle.
    pub fn next_step(&self) -> Option<Picos> {
        lock(&self.timeline).next_step()
    }

    /// Runs all steps up to `time`, and sets the time.
    pub fn advance_to(&self, time: Picos) {
        lock(&self.timeline).advance_to(time);
    }

    /// Runs all steps of the enqueued work.
    pub fn drain(&self) {
        let mut timeline = lock(&self.timeline);
        while timeline.step() {}
    }

    /// The numbers of finished operations of the three units, 21 bits each.
    #[cfg(test)]
    pub fn finished(&self) -> u64 {
        lock(&self.timeline).finished()
    }

    /// The time for which a unit has worked, up to the end of its last finished operation.
    pub fn busy(&self, unit: Unit) -> Picos {
        lock(&self.timeline).busy(unit)
    }

    /// Enqueues the run of a program: alone it takes `duration` and uses a `part` of the compute engine. It moves
    /// `bytes` from `src` to `dst`.
    ///
    /// # Safety
    /// As for [`Backend::copy_in`], with both addresses on the device.
    unsafe fn launch(&self, stream: u64, (duration, part): (Picos, f64), moves: Moves) -> Result<(), Error> {
        lock(&self.timeline).work(stream, Work { unit: Unit::Compute, moves, fixed: duration, part, fails: None })
    }

    fn copy(&self, unit: Unit, stream: u64, moves: Moves) -> Result<(), Error> {
        let mut timeline = lock(&self.timeline);
        let fixed = timeline.link().overhead;
        timeline.work(stream, Work { unit, moves, fixed, part: 0.0, fails: None })
    }
}

impl Backend for Sim {
    fn stream_create(&self, priority: Priority, _name: &str) -> Result<u64, Error> {
        Ok(lock(&self.timeline).stream_create(priority))
    }

    unsafe fn stream_destroy(&self, stream: u64) -> Result<(), Error> {
        lock(&self.timeline).stream_destroy(stream)
    }

    fn event_create(&self, _timing: bool) -> Result<u64, Error> {
        Ok(lock(&self.timeline).event_create())
    }

    unsafe fn event_destroy(&self, event: u64) -> Result<(), Error> {
        lock(&self.timeline).event_destroy(event)
    }

    unsafe fn event_record(&self, event: u64, stream: u64) -> Result<(), Error> {
        let mut timeline = lock(&self.timeline);
        timeline.healthy()?;
        let sequence = timeline.recorded(event)? + 1;
        timeline.push(stream, Op::Record { event, sequence })?;
        timeline.set_recorded(event, sequence)?;
        timeline.settle();
        Ok(())
    }

    unsafe fn stream_wait(&self, stream: u64, event: u64) -> Result<(), Error> {
        let mut timeline = lock(&self.timeline);
        timeline.healthy()?;
        let sequence = timeline.recorded(event)?;
        timeline.push(stream, Op::Wait { event, sequence })?;
        timeline.settle();
        Ok(())
    }

    unsafe fn event_query(&self, event: u64) -> Result<bool, Error> {
        let mut timeline = lock(&self.timeline);
        timeline.healthy()?;
        let sequence = timeline.recorded(event)?;
        if self.polls_advance && !timeline.is_reached(event, sequence) {
            timeline.step();
            timeline.healthy()?;
        }
        Ok(timeline.is_reached(event, sequence))
    }

    unsafe fn event_wait(&self, event: u64) -> Result<(), Error> {
        let mut timeline = lock(&self.timeline);
        let sequence = timeline.recorded(event)?;
        loop {
            timeline.healthy()?;
            if timeline.is_reached(event, sequence) {
                return Ok(());
            }
            // All that the event depends on was enqueued before it, so there is a next step.
            if !timeline.step() {
                return Err(Error::Internal { what: format!("simulated event {event} can never be done") });
            }
        }
    }

    unsafe fn elapsed_ms(&self, start: u64, end: u64) -> Result<f32, Error> {
        let timeline = lock(&self.timeline);
        let (start, end) = (timeline.reached_at(start)?, timeline.reached_at(end)?);
        Ok((end.saturating_sub(start) as f64 * 1e-9) as f32)
    }

    unsafe fn notify(&self, stream: u64, signal: &Arc<Signal>) -> Result<(), Error> {
        let mut timeline = lock(&self.timeline);
        timeline.healthy()?;
        timeline.push(stream, Op::Notify(signal.clone()))?;
        timeline.settle();
        Ok(())
    }

    fn host_alloc(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        cpu::alloc("sim", bytes)
    }

    unsafe fn host_free(&self, ptr: NonNull<u8>, bytes: usize) -> Result<(), Error> {
        // SAFETY: the caller passes what `host_alloc` returned for `bytes`, once.
        unsafe { cpu::free(ptr, bytes) };
        Ok(())
    }

    fn device_alloc(&self, bytes: usize) -> Result<u64, Error> {
        Ok(cpu::alloc("sim", bytes)?.as_ptr() as u64)
    }

    unsafe fn device_free(&self, addr: u64, bytes: usize) -> Result<(), Error> {
        let ptr = NonNull::new(addr as *mut u8).expect("device_alloc returns no null");
        // SAFETY: the caller passes what `device_alloc` returned for `bytes`, once.
        unsafe { cpu::free(ptr, bytes) };
        Ok(())
    }

    unsafe fn copy_in(&self, dst: u64, src: *const u8, bytes: usize, stream: u64) -> Result<(), Error> {
        self.copy(Unit::CopyIn, stream, Moves { dst: dst as usize, src: src as usize, bytes })
    }

    unsafe fn copy_out(&self, dst: *mut u8, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.copy(Unit::CopyOut, stream, Moves { dst: dst as usize, src: src as usize, bytes })
    }

    /// A copy that does not cross the link is a kernel that takes no longer than a copy's overhead.
    unsafe fn copy_rows(&self, dst: u64, dst_pitch: usize, rows: &RowCopy) -> Result<(), Error> {
        let RowCopy { from, row_bytes, rows } = *rows;
        (0..rows as u64).try_for_each(|row| {
            let (dst, src) = (dst + row * dst_pitch as u64, from.addr + row * from.pitch as u64);
            // SAFETY: by the caller.
            unsafe { self.copy_on_device(dst, src, row_bytes, from.stream.raw()) }
        })
    }

    unsafe fn copy_on_device(&self, dst: u64, src: u64, bytes: usize, stream: u64) -> Result<(), Error> {
        self.copy(Unit::Compute, stream, Moves { dst: dst as usize, src: src as usize, bytes })
    }

    unsafe fn admit_stream(&self, stream: u64) -> Result<(), Error> {
        lock(&self.timeline).admit(stream)
    }

    fn admit_memory(&self, _addr: u64) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
