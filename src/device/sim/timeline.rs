//! The discrete-event simulation: streams, events, and the times at which operations begin and end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::units::{Active, Progress, UNITS, UnitState, Work, injected, share_compute, share_link};
use super::{Effect, Injection, Link, Picos, SideBySide, Unit};
use crate::device::{Priority, Signal};
use crate::error::Error;

/// The state of the device, and the time.
pub(super) struct Timeline {
    now: Picos,
    link: Link,
    side_by_side: SideBySide,
    injections: Vec<Injection>,
    /// The next number for handles and ready operations.
    next: u64,
    streams: BTreeMap<u64, Queue>,
    events: BTreeMap<u64, EventState>,
    units: [UnitState; 3],
    /// The fault that stopped the device, if one did; no step comes after it.
    broken: Option<Error>,
}

/// A stream: its operations, in order.
struct Queue {
    priority: Priority,
    ops: VecDeque<Op>,
    /// Whether the first operation was handed to its unit.
    handed: bool,
    closed: bool,
}

pub(super) enum Op {
    Record { event: u64, sequence: u64 },
    Wait { event: u64, sequence: u64 },
    Work(Work),
    Notify(Arc<Signal>),
}

#[derive(Default)]
struct EventState {
    /// The number of times that the event was recorded.
    recorded: u64,
    /// The number of the newest record that a stream has reached.
    reached: u64,
    at: Option<Picos>,
}

impl Timeline {
    pub fn new(link: Link, side_by_side: SideBySide, injections: Vec<Injection>) -> Self {
        Self {
            now: 0,
            link,
            side_by_side,
            injections,
            next: 0,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            units: Default::default(),
            broken: None,
        }
    }

    pub fn now(&self) -> Picos {
        self.now
    }

    pub fn link(&self) -> Link {
        self.link
    }

    #[cfg(test)]
    pub fn finished(&self) -> u64 {
        self.units.iter().fold(0, |all, unit| all << 21 | unit.finished)
    }

    pub fn busy(&self, unit: Unit) -> Picos {
        self.units[unit as usize].busy
    }

    pub fn healthy(&self) -> Result<(), Error> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn stream_create(&mut self, priority: Priority) -> u64 {
        let id = self.id();
        self.streams.insert(id, Queue { priority, ops: VecDeque::new(), handed: false, closed: false });
        id
    }

    pub fn stream_destroy(&mut self, stream: u64) -> Result<(), Error> {
        self.streams.get_mut(&stream).ok_or_else(|| dead("stream", stream))?.closed = true;
        self.streams.retain(|_, queue| !queue.closed || !queue.ops.is_empty());
        Ok(())
    }

    /// Checks that the device made a stream.
    pub fn admit(&self, stream: u64) -> Result<(), Error> {
        let unknown = || Error::option("stream", format!("{stream:#x}"), "a stream of the device");
        self.streams.contains_key(&stream).then_some(()).ok_or_else(unknown)
    }

    pub fn event_create(&mut self) -> u64 {
        let id = self.id();
        self.events.insert(id, EventState::default());
        id
    }

    pub fn event_destroy(&mut self, event: u64) -> Result<(), Error> {
        self.events.remove(&event).map(drop).ok_or_else(|| dead("event", event))
    }

    fn event(&self, event: u64) -> Result<&EventState, Error> {
        self.events.get(&event).ok_or_else(|| dead("event", event))
    }

    pub fn recorded(&self, event: u64) -> Result<u64, Error> {
        Ok(self.event(event)?.recorded)
    }

    pub fn set_recorded(&mut self, event: u64, sequence: u64) -> Result<(), Error> {
        self.events.get_mut(&event).ok_or_else(|| dead("event", event))?.recorded = sequence;
        Ok(())
    }

    pub fn reached_at(&self, event: u64) -> Result<Picos, Error> {
        let at = self.event(event)?.at;
        at.ok_or_else(|| Error::Internal { what: "elapsed_ms of an event never reached".into() })
    }

    /// Whether a record was reached. A wait for a destroyed event does not block.
    pub fn is_reached(&self, event: u64, sequence: u64) -> bool {
        is_reached(&self.events, event, sequence)
    }

    pub fn push(&mut self, stream: u64, op: Op) -> Result<(), Error> {
        self.streams.get_mut(&stream).ok_or_else(|| dead("stream", stream))?.ops.push_back(op);
        Ok(())
    }

    /// Enqueues work, with the injections for it.
    pub fn work(&mut self, stream: u64, mut work: Work) -> Result<(), Error> {
        self.healthy()?;
        let calls = &mut self.units[work.unit as usize].calls;
        *calls += 1;
        let nth = *calls;
        for injection in self.injections.iter().filter(|i| i.unit == work.unit && i.nth == nth) {
            match injection.effect {
                Effect::RefuseCall => return Err(injected(work.unit, nth)),
                Effect::FailRun => work.fails = Some(nth),
                Effect::Delay(delay) => work.fixed += delay,
            }
        }
        self.push(stream, Op::Work(work))?;
        self.settle();
        Ok(())
    }

    /// The time of the next step, if there is one.
    pub fn next_step(&self) -> Option<Picos> {
        self.units.iter().flat_map(|unit| &unit.active).map(|active| active.until).min()
    }

    /// Runs all steps up to `time`, and sets the time.
    pub fn advance_to(&mut self, time: Picos) {
        while self.next_step().is_some_and(|next| next <= time) {
            self.step();
        }
        self.now = self.now.max(time);
    }

    /// Runs the next step; returns whether there was one.
    pub fn step(&mut self) -> bool {
        let Some(next) = self.next_step() else { return false };
        self.now = next;
        for unit in UNITS {
            let ended = self.units[unit as usize].active.extract_if(.., |active| active.until == next);
            for active in ended.collect::<Vec<_>>() {
                if active.progress.is_none() {
                    let progress = Progress { left: active.work.moves.bytes as f64, rate: 0.0, since: next };
                    self.units[unit as usize].active.push(Active { progress: Some(progress), ..active });
                } else {
                    self.finish(&active);
                }
            }
        }
        self.settle();
        true
    }

    /// Ends an operation.
    fn finish(&mut self, active: &Active) {
        self.units[active.work.unit as usize].ended(active, self.now);
        if let Some(nth) = active.work.fails {
            self.broken = Some(injected(active.work.unit, nth));
            return;
        }
        active.work.moves.second_half();
        if let Some(queue) = self.streams.get_mut(&active.stream) {
            queue.ops.pop_front();
            queue.handed = false;
        }
    }

    /// Does all that takes no time: passes records and waits, starts work that can start, and shares the link and the
    /// compute engine.
    pub fn settle(&mut self) {
        if self.broken.is_some() {
            self.units.iter_mut().for_each(|unit| unit.active.clear());
            self.streams.values_mut().for_each(|queue| queue.ops.clear());
            return;
        }
        while self.pass_events() {}
        UNITS.into_iter().for_each(|unit| self.start(unit));
        share_link(&mut self.units, self.link, self.now);
        share_compute(&mut self.units, self.side_by_side, self.now);
        self.streams.retain(|_, queue| !queue.closed || !queue.ops.is_empty());
    }

    /// Takes records and finished waits off the streams and hands work to its unit; returns whether an event was
    /// reached.
    fn pass_events(&mut self) -> bool {
        let mut reached = false;
        for (&stream, queue) in &mut self.streams {
            while let Some(op) = queue.ops.front() {
                match *op {
                    Op::Notify(ref signal) => signal.fire(),
                    Op::Record { event, sequence } => {
                        if let Some(state) = self.events.get_mut(&event) {
                            state.reached = state.reached.max(sequence);
                            state.at = Some(self.now);
                        }
                        reached = true;
                    }
                    Op::Wait { event, sequence } if is_reached(&self.events, event, sequence) => {}
                    Op::Wait { .. } => break,
                    Op::Work(work) => {
                        if !queue.handed {
                            queue.handed = true;
                            self.next += 1;
                            let normal = queue.priority == Priority::Normal;
                            self.units[work.unit as usize].ready.push((normal, self.next, stream));
                        }
                        break;
                    }
                }
                queue.ops.pop_front();
            }
        }
        reached
    }

    /// Starts a unit's ready operations, as many as it runs at the same time: high priority first, then in the order in
    /// which they became ready.
    fn start(&mut self, unit: Unit) {
        let state = &mut self.units[unit as usize];
        let most = if unit == Unit::Compute { self.side_by_side.most } else { 1 };
        while state.active.len() < most {
            let Some(first) = (0..state.ready.len()).min_by_key(|&index| state.ready[index]) else { return };
            let (_, _, stream) = state.ready.remove(first);
            let Some(&Op::Work(work)) = self.streams.get(&stream).and_then(|queue| queue.ops.front()) else { continue };
            work.moves.first_half();
            let left = work.fixed as f64 * 1e-12;
            let progress = (unit == Unit::Compute).then_some(Progress { left, rate: 1.0, since: self.now });
            let until = self.now + work.fixed;
            state.active.push(Active { stream, work, started: self.now, until, progress });
        }
    }
}

fn is_reached(events: &BTreeMap<u64, EventState>, event: u64, sequence: u64) -> bool {
    events.get(&event).is_none_or(|state| state.reached >= sequence)
}

fn dead(what: &str, handle: u64) -> Error {
    Error::Internal { what: format!("simulated {what} {handle} is not alive") }
}
