//! The rings of a fleet, one for each device. A ring whose device failed is rebuilt, as often as `rebuild_on_fault`
//! says.
//!
//! Whoever meets the fault calls for a new ring ([`Rings::is_coming`]). A thread of the fleet for each device takes the
//! calls ([`Rings::next_due`]) and puts what it builds in the failed one's place ([`Rings::put`]). Only those wait for it
//! who wait for a batch, up to their own limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Core;
use crate::device::{Device, Signal};
use crate::error::{Error, FaultClass};
use crate::sync::{Condvar, Mutex, lock, wait, wait_until};

/// How long the second attempt at a ring waits after it is called for. Each later one waits twice as long as the one
/// before, [`LONGEST_PAUSE`] at most; the first does not wait.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub(crate) struct Rings {
    books: Mutex<Books>,
    /// Tells the threads that build of calls, and of the end.
    changed: Condvar,
    /// Fired for each credit that a ring has free, and for each ring that was put in place or given up.
    pub(super) freed: Arc<Signal>,
}

struct Books {
    rings: Arc<[Arc<Core>]>,
    /// In the rings' order.
    places: Vec<Place>,
    /// Whether no ring is built any more.
    ended: bool,
}

#[derive(Clone, Default)]
struct Place {
    /// How many attempts at a new ring are left.
    left: usize,
    /// When the next one is made, or was begun, if a new ring is called for.
    due: Option<Instant>,
    /// How long the next one but that waits.
    pause: Duration,
    /// Whether a ring is being built for it now.
    is_building: bool,
    past: Past,
}

/// What has become of a ring's place.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// How often its ring was rebuilt.
    pub rebuilt: u64,
    /// Whether it is to be now.
    pub is_rebuilding: bool,
    /// The fault of the ring before, if there was one.
    pub last_fault: Option<Error>,
}

impl Place {
    /// Calls for a new ring, if an attempt is left.
    fn call(&mut self) {
        self.due = self.left.checked_sub(1).map(|left| {
            let pause = self.pause;
            self.left = left;
            self.pause = (2 * pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            Instant::now() + pause
        });
    }
}

impl Books {
    /// Whether a ring is being built now.
    fn is_building(&self) -> bool {
        self.places.iter().any(|place| place.is_building)
    }
}

impl Rings {
    /// Rings that were all built with `freed`, and how many attempts there are to build each anew.
    pub fn new(rings: Vec<Arc<Core>>, freed: Arc<Signal>, attempts: usize) -> Arc<Self> {
        let places = vec![Place { left: attempts, ..Place::default() }; rings.len()];
        let books = Mutex::new(Books { rings: rings.into(), places, ended: false });
        Arc::new(Self { books, changed: Condvar::new(), freed })
    }

    /// Those that are in place now.
    pub fn now(&self) -> Arc<[Arc<Core>]> {
        lock(&self.books).rings.clone()
    }

    /// Those that are in place now, and what has become of each place.
    pub(super) fn with_past(&self) -> (Arc<[Arc<Core>]>, Vec<Past>) {
        let past = |place: &Place| Past { is_rebuilding: place.due.is_some(), ..place.past.clone() };
        let books = lock(&self.books);
        (books.rings.clone(), books.places.iter().map(past).collect())
    }

    /// Whether a ring that failed has a successor, or will have: calls for one, if its fault is no more than the device's
    /// and an attempt is left.
    pub(super) fn is_coming(&self, index: usize, failed: &Arc<Core>) -> bool {
        let mut books = lock(&self.books);
        if !Arc::ptr_eq(&books.rings[index], failed) {
            return true;
        }
        let may_be = !books.ended && failed.device.fault().is_some_and(|fault| fault.class() == FaultClass::Device);
        let place = &mut books.places[index];
        if place.due.is_none() && may_be {
            place.call();
            self.changed.notify_all();
        }
        place.due.is_some()
    }

    /// For the thread that builds for a place: waits until a new ring is due there. The device of the failed one; nothing at
    /// the end.
    pub fn next_due(&self, index: usize) -> Option<Device> {
        let mut books = lock(&self.books);
        while !books.ended {
            books = match books.places[index].due {
                None => wait(&self.changed, books),
                Some(due) if due <= Instant::now() => {
                    books.places[index].is_building = true;
                    return Some(books.rings[index].device.clone());
                }
                Some(due) => wait_until(&self.changed, books, due).0,
            };
        }
        None
    }

    /// Puts a new ring in a failed one's place, unless none is wanted any more; whether it did.
    pub fn put(&self, index: usize, ring: Arc<Core>) -> bool {
        let mut books = lock(&self.books);
        books.places[index].due = None;
        books.places[index].is_building = false;
        self.changed.notify_all();
        if books.ended {
            return false;
        }
        let mut rings = books.rings.to_vec();
        let failed = std::mem::replace(&mut rings[index], ring);
        let past = &mut books.places[index].past;
        (past.rebuilt, past.last_fault) = (past.rebuilt + 1, failed.device.fault());
        let before = std::mem::replace(&mut books.rings, rings.into());
        drop(books);
        self.freed.fire();
        drop((failed, before)); // with no lock held: it may be the end of a ring
        true
    }

    /// A new ring could not be built: that is tried again later, if an attempt is left and the failure is no more than the
    /// device's.
    pub fn failed(&self, index: usize, error: &Error) {
        let mut books = lock(&self.books);
        let is_wanted = !books.ended;
        let place = &mut books.places[index];
        place.due = None;
        place.is_building = false;
        if error.class() == FaultClass::Process {
            place.left = 0;
        }
        if is_wanted {
            place.call();
        }
        let then = if place.due.is_some() { "it will be tried again" } else { "it stays out of use" };
        let target = books.rings[index].device.info().target.clone();
        drop(books);
        self.changed.notify_all();
        self.freed.fire();
        log::error!("{target}: the engine of a failed device was not rebuilt, {then}: {error}");
    }

    /// Waits until no ring is being built, behind [`end`](Self::end); whether that came by the deadline.
    pub fn await_builders(&self, deadline: Instant) -> bool {
        let mut books = lock(&self.books);
        while books.is_building() && Instant::now() < deadline {
            books = wait_until(&self.changed, books, deadline).0;
        }
        !books.is_building()
    }

    /// Whether a ring is being built now.
    #[cfg(test)]
    pub fn is_building(&self) -> bool {
        lock(&self.books).is_building()
    }

    /// The thread that builds for a place is no more: what is called for there does not come.
    pub fn builder_ended(&self, index: usize) {
        let place = &mut lock(&self.books).places[index];
        *place = Place { past: std::mem::take(&mut place.past), ..Place::default() };
        self.changed.notify_all();
        self.freed.fire();
    }

    /// Whether no ring is built any more.
    pub fn has_ended(&self) -> bool {
        lock(&self.books).ended
    }

    /// Builds no more: what is called for does not come.
    pub fn end(&self) {
        let mut books = lock(&self.books);
        books.ended = true;
        books.places.iter_mut().for_each(|place| place.due = None);
        drop(books);
        self.changed.notify_all();
        self.freed.fire();
    }
}
