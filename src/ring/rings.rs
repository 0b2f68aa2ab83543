//! The rings of a fleet, one for each device. A ring whose device failed is rebuilt, as often as `rebuild_on_fault`
//! says.
//!
//! A thread that meets a fault calls for a new ring ([`Rings::is_coming`]). A thread of the fleet for each device takes
//! the calls ([`Rings::next_due`]) and puts the new ring in the place of the failed one ([`Rings::put`]). Only threads
//! that wait for a batch wait for the new ring, up to their own limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Core;
use crate::device::{Device, Signal};
use crate::error::{Error, FaultClass};
use crate::sync::{Condvar, Mutex, lock, wait, wait_until};

/// The pause before the second attempt at a ring. Each later one has twice the pause of the previous one, at most
/// [`LONGEST_PAUSE`]; the first attempt has none.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

pub(crate) struct Rings {
    books: Mutex<Books>,
    /// Notifies the building threads of calls, and of the end.
    changed: Condvar,
    /// Fired for each credit that becomes free in a ring, and for each ring that is put in place or given up.
    pub(super) freed: Arc<Signal>,
}

struct Books {
    rings: Arc<[Arc<Core>]>,
    /// The places, in the order of the devices.
    places: Vec<Place>,
    /// Whether no more rings are built.
    ended: bool,
}

#[derive(Clone, Default)]
struct Place {
    /// The number of attempts at a new ring that are left.
    left: usize,
    /// The time at which the next attempt begins, or has begun; `None` if no ring is called for.
    due: Option<Instant>,
    /// The pause before the attempt after the next one.
    pause: Duration,
    /// Whether a ring is being built for this place now.
    is_building: bool,
    past: Past,
}

/// The history of a ring's place.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// The number of times that its ring was rebuilt.
    pub rebuilt: u64,
    /// Whether its ring is being rebuilt now, or will be.
    pub is_rebuilding: bool,
    /// The fault of the previous ring, if there was one.
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
    /// Whether a ring is being built for any place.
    fn is_building(&self) -> bool {
        self.places.iter().any(|place| place.is_building)
    }

    /// Whether a new ring is wanted for a place whose ring failed: until the end, and unless the failed ring was closed.
    /// This locks the ring's state while the books are locked; a ring knows no books, so nobody locks them the other way
    /// round.
    fn want(&self, index: usize) -> bool {
        !self.ended && !self.rings[index].is_closed()
    }
}

impl Rings {
    /// Rings that were all built with `freed`, each with `attempts` attempts at rebuilding it.
    pub fn new(rings: Vec<Arc<Core>>, freed: Arc<Signal>, attempts: usize) -> Arc<Self> {
        let places = vec![Place { left: attempts, ..Place::default() }; rings.len()];
        let books = Mutex::new(Books { rings: rings.into(), places, ended: false });
        Arc::new(Self { books, changed: Condvar::new(), freed })
    }

    /// The rings that are in place now.
    pub fn now(&self) -> Arc<[Arc<Core>]> {
        lock(&self.books).rings.clone()
    }

    /// The rings that are in place now, and the history of each place.
    pub(super) fn with_past(&self) -> (Arc<[Arc<Core>]>, Vec<Past>) {
        let past = |place: &Place| Past { is_rebuilding: place.due.is_some(), ..place.past.clone() };
        let books = lock(&self.books);
        (books.rings.clone(), books.places.iter().map(past).collect())
    }

    /// Whether a failed ring has a successor, or will have one. Calls for one if the fault is of class device, an attempt
    /// is left, and the failed ring was not closed.
    pub(super) fn is_coming(&self, index: usize, failed: &Arc<Core>) -> bool {
        let mut books = lock(&self.books);
        if !Arc::ptr_eq(&books.rings[index], failed) {
            return true;
        }
        let is_wanted = books.want(index);
        let may_be = is_wanted && failed.device.fault().is_some_and(|fault| fault.class() == FaultClass::Device);
        let place = &mut books.places[index];
        if place.due.is_none() && may_be {
            place.call();
            self.changed.notify_all();
        }
        place.due.is_some() && is_wanted
    }

    /// Called by the thread that builds for a place: waits until a new ring is due there. Returns the failed ring's
    /// device, or `None` at the end.
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

    /// Whether a new ring is still wanted for a place.
    pub fn is_wanted(&self, index: usize) -> bool {
        lock(&self.books).want(index)
    }

    /// Puts a new ring in the place of a failed one, unless it is no longer wanted; returns whether it did.
    pub fn put(&self, index: usize, ring: Arc<Core>) -> bool {
        let mut books = lock(&self.books);
        books.places[index].due = None;
        books.places[index].is_building = false;
        self.changed.notify_all();
        if !books.want(index) {
            drop(books);
            self.freed.fire();
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

    /// Records that a new ring could not be built. There is another attempt later, if one is left and the failure is of
    /// class device, and a ring is still wanted.
    pub fn failed(&self, index: usize, error: &Error) {
        let mut books = lock(&self.books);
        let is_wanted = books.want(index);
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
        let level = if matches!(error, Error::Closed) { log::Level::Info } else { log::Level::Error };
        let target = books.rings[index].device.info().target.clone();
        drop(books);
        self.changed.notify_all();
        self.freed.fire();
        log::log!(level, "{target}: the engine of a failed device was not rebuilt, {then}: {error}");
    }

    /// Waits, after [`end`](Self::end), until no ring is being built; returns whether this was so by the deadline.
    pub fn await_builders(&self, deadline: Instant) -> bool {
        let mut books = lock(&self.books);
        while books.is_building() && Instant::now() < deadline {
            books = wait_until(&self.changed, books, deadline).0;
        }
        !books.is_building()
    }

    /// Whether a ring is being built for any place.
    #[cfg(test)]
    pub fn is_building(&self) -> bool {
        lock(&self.books).is_building()
    }

    /// Records that the building thread of a place has ended: no ring will come there.
    pub fn builder_ended(&self, index: usize) {
        let place = &mut lock(&self.books).places[index];
        *place = Place { past: std::mem::take(&mut place.past), ..Place::default() };
        self.changed.notify_all();
        self.freed.fire();
    }

    /// Stops building: rings that were called for will not come.
    pub fn end(&self) {
        let mut books = lock(&self.books);
        books.ended = true;
        books.places.iter_mut().for_each(|place| place.due = None);
        drop(books);
        self.changed.notify_all();
        self.freed.fire();
    }
}
