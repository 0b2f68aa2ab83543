//! Handles: numbers that name objects of the library, so that no number from outside can do harm.
//!
//! A handle has 4 bits of kind, 40 bits of generation and 20 bits of place, and is never 0. Each kind has a table of
//! places. When a place is given up, its generation is increased, so that an old handle differs from a new one; a place
//! whose generations are used up is not used again. To find an object takes only the lock of its own place; the list of
//! free places is locked to push or pop one number. No lock is held during a wait or during code of the caller. A table
//! grows to the most objects that existed at the same time, and allocates nothing after that.

use std::marker::PhantomData;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::status::{Answer, Failure, guard, trefoil_status};
use crate::device::Device;
use crate::engine::{Engine, Fleet};
use crate::model::Model;
use crate::ring::{Batcher, DeviceOutput};
use crate::sync::{Mutex, lock};

/// A device that engines run on.
pub type trefoil_device = u64;
/// A model: graph, weights, labels.
pub type trefoil_model = u64;
/// A model on a device behind a ring.
pub type trefoil_engine = u64;
/// A batch being filled.
pub type trefoil_batch = u64;
/// A submission in flight: of a batch, or of a row.
pub type trefoil_ticket = u64;
/// A result: of a batch, or of a row.
pub type trefoil_output = u64;
/// A batcher: it forms batches of single rows from many threads.
pub type trefoil_batcher = u64;
/// A row of a batcher being written.
pub type trefoil_row = u64;
/// A result that stays on the device.
pub type trefoil_device_output = u64;
/// The same engine on several devices.
pub type trefoil_fleet = u64;

/// Releases any handle; it names nothing afterwards. Does not wait for work in flight: work that is submitted is
/// finished, and batches, tickets and outputs outlive the engine or fleet that they came from. The handle of a device,
/// a model or a fleet may be released at any time: engines keep what they use, and a fleet's batches and tickets are
/// used as before.
///
/// A batch or row that is released is not computed. A ticket that is released abandons its result. An output's memory
/// is used for later batches at once, so that its rows must not be read any more. A batcher takes no more rows, also of
/// calls that wait for a free row; those committed are computed. A device output's memory is used for later batches
/// when all is done that trefoil_device_output_read_on() was told of.
///
/// The last release of an engine's objects, which are the engine itself, its batches, tickets, outputs, device outputs,
/// batchers and rows, frees the engine's memory once no work is in flight on it. The driver may then wait until the GPU
/// is idle, also of the work of other engines: make that call where such a wait does no harm.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_release(handle: u64) -> trefoil_status {
    guard(|| {
        match Kind::of(handle)? {
            Kind::Device => drop(take::<Device>(handle)?),
            Kind::Model => drop(take::<Model>(handle)?),
            Kind::Engine => drop(take::<Arc<Engine>>(handle)?),
            Kind::Batch => drop(take::<super::batch::Filling>(handle)?),
            Kind::Ticket => drop(take::<super::ticket::Flying>(handle)?),
            Kind::Output => drop(take::<super::output::Landed>(handle)?),
            // Other calls may still hold the batcher, and may wait in it for room.
            Kind::Batcher => take::<Arc<Batcher>>(handle)?.object().stop(),
            Kind::Row => drop(take::<super::batcher::Writing>(handle)?),
            Kind::DeviceOutput => drop(take::<DeviceOutput>(handle)?),
            Kind::Fleet => drop(take::<Arc<Fleet>>(handle)?),
            Kind::Pending => return Err(invalid(handle)), // never given out
        }
        Ok(())
    })
}

/// The kind of an object. Its number is the topmost bits of a handle, and is never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device = 1,
    Model = 2,
    Engine = 3,
    Batch = 4,
    Ticket = 5,
    Output = 6,
    Batcher = 7,
    Row = 8,
    /// A ticket with a callback; its handle is never given out.
    Pending = 9,
    DeviceOutput = 10,
    Fleet = 11,
}

const PLACE_BITS: u32 = 20;
const GENERATION_BITS: u32 = 40;
const LAST_GENERATION: u64 = (1 << GENERATION_BITS) - 1;

impl Kind {
    const ALL: [Self; 11] = [
        Self::Device,
        Self::Model,
        Self::Engine,
        Self::Batch,
        Self::Ticket,
        Self::Output,
        Self::Batcher,
        Self::Row,
        Self::Pending,
        Self::DeviceOutput,
        Self::Fleet,
    ];

    fn of(handle: u64) -> Answer<Self> {
        let bits = handle >> (GENERATION_BITS + PLACE_BITS);
        Self::ALL.into_iter().find(|kind| *kind as u64 == bits).ok_or_else(|| invalid(handle))
    }
}

fn invalid(handle: u64) -> Failure {
    Failure::new(trefoil_status::InvalidHandle, format!("{handle:#x} is not a handle"))
}

/// An object that a handle can name.
pub(super) trait Object: Send + Sync + Sized + 'static {
    const KIND: Kind;
    fn table() -> &'static Table<Self>;
}

macro_rules! object {
    ($type:ty, $kind:ident) => {
        impl $crate::ffi::handles::Object for $type {
            const KIND: $crate::ffi::handles::Kind = $crate::ffi::handles::Kind::$kind;

            fn table() -> &'static $crate::ffi::handles::Table<Self> {
                static TABLE: $crate::ffi::handles::Table<$type> = $crate::ffi::handles::Table::new();
                &TABLE
            }
        }
    };
}
pub(super) use object;

object!(Device, Device);
object!(Model, Model);
object!(Arc<Engine>, Engine);
object!(Arc<Batcher>, Batcher);
object!(DeviceOutput, DeviceOutput);
object!(Arc<Fleet>, Fleet);

/// The places of one kind, in chunks of doubling sizes, so that no place ever moves.
pub(super) struct Table<T> {
    chunks: [OnceLock<Box<[Place<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

const FIRST_CHUNK: usize = 64;
const CHUNKS: usize = 14;
const PLACES: usize = FIRST_CHUNK * ((1 << CHUNKS) - 1);
const _: () = assert!(PLACES <= 1 << PLACE_BITS);

struct Free {
    /// The places that were given up.
    vacant: Vec<usize>,
    /// All places below this one were used at some time.
    used: usize,
}

/// A place. Its lock is held for a few instructions, or while an object is read.
struct Place<T>(RwLock<HandleState<T>>);

struct HandleState<T> {
    /// The generation of the object here, or of the next one.
    generation: u64,
    content: Content<T>,
}

enum Content<T> {
    Vacant,
    Held(T),
    /// The object is in use by a call that will give it up or put it back.
    Busy,
}

impl<T> Table<T> {
    pub const fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], free: Mutex::new(Free { vacant: Vec::new(), used: 0 }) }
    }

    /// Takes a free place; `None` if all are taken.
    fn claim(&self) -> Option<usize> {
        let mut free = lock(&self.free);
        if let Some(place) = free.vacant.pop() {
            return Some(place);
        }
        let place = free.used;
        if place == PLACES {
            return None;
        }
        let (chunk, offset) = chunk_of(place);
        if offset == 0 {
            let places = FIRST_CHUNK << chunk;
            let fresh = || Place(RwLock::new(HandleState { generation: 1, content: Content::Vacant }));
            self.chunks[chunk].get_or_init(|| (0..places).map(|_| fresh()).collect());
            free.vacant.reserve(place + places); // giving up never allocates
        }
        free.used += 1;
        Some(place)
    }

    fn place(&self, place: usize) -> Option<&Place<T>> {
        let (chunk, offset) = chunk_of(place);
        self.chunks.get(chunk)?.get()?.get(offset)
    }

    /// Frees a place that the caller has emptied, with its generation increased.
    fn give_up(&self, place: usize, generation: u64) {
        if generation <= LAST_GENERATION {
            lock(&self.free).vacant.push(place);
        }
    }
}

fn chunk_of(place: usize) -> (usize, usize) {
    let chunk = (place / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, place - FIRST_CHUNK * ((1 << chunk) - 1))
}

/// Gives `object` a handle.
pub(super) fn insert<T: Object>(object: T) -> Answer<u64> {
    place(object).map_err(|(_, failure)| failure)
}

/// Gives `object` a handle; if there is no place, returns the object.
pub(super) fn place<T: Object>(object: T) -> Result<u64, (T, Failure)> {
    let table = T::table();
    let Some(place) = table.claim() else {
        let what = format!("{PLACES} handles of a {:?}", T::KIND).to_lowercase();
        return Err((object, Failure::new(trefoil_status::TooManyHandles, what)));
    };
    let mut state = table.place(place).expect("claimed places are there").write();
    state.content = Content::Held(object);
    Ok((T::KIND as u64) << (GENERATION_BITS + PLACE_BITS) | state.generation << PLACE_BITS | place as u64)
}

/// The place that a handle names, with its index and the handle's generation.
fn locate<T: Object>(handle: u64) -> Answer<(usize, &'static Place<T>, u64)> {
    let kind = Kind::of(handle)?;
    if kind != T::KIND {
        let what = format!("{handle:#x} is a handle of a {kind:?}, not of a {:?}", T::KIND).to_lowercase();
        return Err(Failure::new(trefoil_status::WrongKind, what));
    }
    let place = (handle & ((1 << PLACE_BITS) - 1)) as usize;
    let generation = handle >> PLACE_BITS & LAST_GENERATION;
    let found = T::table().place(place).ok_or_else(|| invalid(handle))?;
    Ok((place, found, generation))
}

impl<T> HandleState<T> {
    /// The reason why there is no object of `generation` here.
    fn missing(&self, generation: u64, handle: u64) -> Failure {
        match &self.content {
            _ if generation > self.generation || generation == 0 => invalid(handle),
            Content::Busy if generation == self.generation => {
                let what = format!("another thread is in a call that consumes or changes {handle:#x}, or waits for it");
                Failure::new(trefoil_status::Busy, what)
            }
            // The next generation of an empty place was never given out.
            Content::Vacant if generation == self.generation => invalid(handle),
            _ => {
                let what = format!("{handle:#x} was released, or consumed by a call");
                Failure::new(trefoil_status::Released, what)
            }
        }
    }
}

/// Calls `look` with an object; several threads may do so at the same time. `look` is short and does not wait.
pub(super) fn look<T: Object, R>(handle: u64, look: impl FnOnce(&T) -> R) -> Answer<R> {
    let (_, place, generation) = locate::<T>(handle)?;
    let state = place.read();
    match &state.content {
        Content::Held(object) if state.generation == generation => Ok(look(object)),
        _ => Err(state.missing(generation, handle)),
    }
}

/// A clone of a shared object.
pub(super) fn shared<T: Object + Clone>(handle: u64) -> Answer<T> {
    look(handle, T::clone)
}

/// Takes an object out of its place. The handle is [busy](Content::Busy) until the result is dropped; then it names
/// nothing.
pub(super) fn take<T: Object>(handle: u64) -> Answer<Taken<T>> {
    take_if(handle, |_| Ok(()))
}

/// Takes an object out of its place if `check` succeeds; otherwise the object stays.
pub(super) fn take_if<T: Object>(handle: u64, check: impl FnOnce(&T) -> Answer) -> Answer<Taken<T>> {
    let (_, place, generation) = locate::<T>(handle)?;
    let mut state = place.write();
    match &state.content {
        Content::Held(object) if state.generation == generation => check(object)?,
        _ => return Err(state.missing(generation, handle)),
    }
    let Content::Held(object) = std::mem::replace(&mut state.content, Content::Busy) else { unreachable!("as seen") };
    Ok(Taken { object: Some(object), busy: Busy::new(handle) })
}

/// Takes an object out of its place, calls `call` with it, and puts it back: for calls that may take long. The handle
/// is [busy](Content::Busy) meanwhile.
pub(super) fn with<T: Object, R>(handle: u64, call: impl FnOnce(&mut T) -> R) -> Answer<R> {
    let mut taken = take(handle)?;
    let mut object = taken.object();
    let result = call(&mut object);
    taken.put_back(object);
    Ok(result)
}

/// Calls `attempt` with an object while its place is locked, so that attempts exclude each other. If `attempt` returns
/// a value, takes the object out of its place, and the handle names nothing. `attempt` is short and does not wait.
pub(super) fn resolve<T: Object, R>(
    handle: u64,
    attempt: impl FnOnce(&mut T) -> Option<R>,
) -> Answer<Option<(Taken<T>, R)>> {
    let (_, place, generation) = locate::<T>(handle)?;
    let mut state = place.write();
    let current = state.generation == generation;
    let resolved = match &mut state.content {
        Content::Held(object) if current => attempt(object),
        _ => return Err(state.missing(generation, handle)),
    };
    let Some(resolved) = resolved else { return Ok(None) };
    let Content::Held(object) = std::mem::replace(&mut state.content, Content::Busy) else { unreachable!("as seen") };
    Ok(Some((Taken { object: Some(object), busy: Busy::new(handle) }, resolved)))
}

/// An object that is out of its place. The drop first drops the object, without a lock, and then gives the place up,
/// even if the object's drop panics.
pub(super) struct Taken<T: Object> {
    object: Option<T>,
    busy: Busy<T>,
}

/// A place whose object is out. The drop gives the place up.
struct Busy<T: Object> {
    handle: u64,
    of: PhantomData<fn() -> T>,
}

impl<T: Object> Taken<T> {
    /// Takes the object; the handle is given up when `self` is dropped.
    pub fn object(&mut self) -> T {
        self.object.take().expect("taken once")
    }

    /// Puts an object back into the place, under the same handle.
    pub fn put_back(self, object: T) {
        let (_, place, _) = self.busy.locate();
        place.write().content = Content::Held(object);
        std::mem::forget(self.busy);
    }
}

impl<T: Object> Busy<T> {
    fn new(handle: u64) -> Self {
        Self { handle, of: PhantomData }
    }

    fn locate(&self) -> (usize, &'static Place<T>, u64) {
        locate::<T>(self.handle).expect("it was taken there")
    }
}

impl<T: Object> Drop for Busy<T> {
    fn drop(&mut self) {
        let (place, found, generation) = self.locate();
        let mut state = found.write();
        state.content = Content::Vacant;
        state.generation = generation + 1;
        drop(state);
        T::table().give_up(place, generation + 1);
    }
}

impl<T> Place<T> {
    /// Poison is ignored: no code here leaves a place half-changed when it panics.
    fn read(&self) -> RwLockReadGuard<'_, HandleState<T>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HandleState<T>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
