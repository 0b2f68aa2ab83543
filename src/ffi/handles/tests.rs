use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use trefoil_status as s;

/// An object that counts how many of its kind exist.
struct Thing(Arc<AtomicUsize>, usize);
object!(Thing, Pending);

impl Thing {
    fn new(alive: &Arc<AtomicUsize>, number: usize) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self(alive.clone(), number)
    }
}

impl Drop for Thing {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn status<R>(answer: Answer<R>) -> trefoil_status {
    answer.map_or_else(|failure| failure.status, |_| s::Ok)
}

fn number(handle: u64) -> Answer<usize> {
    look(handle, |thing: &Thing| thing.1)
}

#[test]
fn a_handle_names_its_object_until_it_is_given_up() {
    let alive = Arc::default();
    let first = insert(Thing::new(&alive, 7)).unwrap();
    assert_eq!(number(first).unwrap(), 7);
    let mut taken = take::<Thing>(first).unwrap();
    assert_eq!(status(number(first)), s::Busy);
    assert_eq!(status(take::<Thing>(first)), s::Busy);
    let thing = taken.object();
    taken.put_back(thing);
    assert_eq!(number(first).unwrap(), 7);
    assert_eq!(status(take_if::<Thing>(first, |_| Err(Failure::argument("no")))), s::InvalidArgument);
    assert_eq!(number(first).unwrap(), 7);
    drop(take::<Thing>(first).unwrap());
    assert_eq!(alive.load(Ordering::Relaxed), 0);
    assert_eq!(status(number(first)), s::Released);
    assert_eq!(status(take::<Thing>(first)), s::Released);
    let resolved = insert(Thing::new(&alive, 8)).unwrap();
    assert!(resolve(resolved, |_: &mut Thing| None::<()>).unwrap().is_none());
    assert_eq!(resolve(resolved, |thing: &mut Thing| Some(thing.1)).unwrap().unwrap().1, 8);
    assert_eq!(status(number(resolved)), s::Released);
}

#[test]
fn an_object_whose_drop_panics_leaves_its_place() {
    struct Bomb;
    object!(Bomb, Pending);
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("as it is meant to");
        }
    }
    let handle = insert(Bomb).unwrap();
    assert_eq!(guard(|| take::<Bomb>(handle).map(drop)), s::Internal);
    assert_eq!(status(take::<Bomb>(handle)), s::Released);
}

#[test]
fn numbers_that_are_no_handles_are_told() {
    let alive = Arc::default();
    let handle = insert(Thing::new(&alive, 1)).unwrap();
    let generation = 1 << PLACE_BITS;
    for number_of_none in [0, 1, u64::MAX, handle + (generation << 20), handle | ((1 << PLACE_BITS) - 1), 15 << 60] {
        assert_eq!(status(number(number_of_none)), s::InvalidHandle, "{number_of_none:#x}");
    }
    let other_kind = handle & ((1 << 60) - 1) | (Kind::Engine as u64) << 60;
    assert_eq!(status(number(other_kind)), s::WrongKind);
    assert_eq!(trefoil_release(handle), s::InvalidHandle, "nobody outside has a handle of a pending ticket");
    drop(take::<Thing>(handle).unwrap());
}

#[test]
fn chunks_follow_each_other() {
    assert_eq!([0, 63, 64, 191, 192].map(chunk_of), [(0, 0), (0, 63), (1, 0), (1, 127), (2, 0)]);
    assert_eq!(chunk_of(PLACES - 1).0, CHUNKS - 1);
    assert_eq!(chunk_of(PLACES).0, CHUNKS);
}

#[test]
fn a_place_out_of_generations_is_not_used_again() {
    static TABLE: Table<()> = Table::new();
    let place = TABLE.claim().unwrap();
    TABLE.give_up(place, LAST_GENERATION);
    assert_eq!(TABLE.claim(), Some(place));
    TABLE.give_up(place, LAST_GENERATION + 1);
    assert_ne!(TABLE.claim(), Some(place));
}

#[test]
fn threads_that_fight_over_handles_lose_no_object() {
    const THREADS: usize = 8;
    let alive: Arc<AtomicUsize> = Arc::default();
    let handles: Vec<u64> = (0..500).map(|number| insert(Thing::new(&alive, number)).unwrap()).collect();
    assert_eq!(handles.iter().collect::<HashSet<_>>().len(), handles.len());
    let (taken, start) = (AtomicUsize::new(0), std::sync::Barrier::new(THREADS));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for (expected, &handle) in handles.iter().enumerate() {
                    if let Ok(found) = number(handle) {
                        assert_eq!(found, expected);
                    }
                    if let Ok(thing) = take::<Thing>(handle) {
                        taken.fetch_add(1, Ordering::Relaxed);
                        drop(thing);
                        drop(take::<Thing>(insert(Thing::new(&alive, 0)).unwrap()).unwrap());
                    }
                    // The thread that took the object may still be giving its place up.
                    assert!(matches!(status(number(handle)), s::Busy | s::Released));
                }
            });
        }
    });
    assert!(handles.iter().all(|&handle| status(number(handle)) == s::Released));
    assert_eq!((taken.into_inner(), alive.load(Ordering::Relaxed)), (handles.len(), 0));
}
