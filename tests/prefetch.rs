//! Prefetch: order, bounds, errors and panics at their places, and a clean early end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use trefoil::{Error, prefetch, prefetch_scoped};

/// Sleeps for a time that depends on the number.
fn dawdle(number: usize) {
    thread::sleep(Duration::from_micros((number * 7919 % 13) as u64 * 20));
}

#[test]
fn results_come_in_order_with_errors_in_their_places() {
    for (threads, ahead) in [(1, 1), (1, 8), (4, 1), (4, 4), (8, 3), (3, 100)] {
        let load = |number: usize| {
            dawdle(number);
            if number % 10 == 3 { Err(number) } else { Ok(number * 2) }
        };
        let mut loaded = prefetch(0..200, threads, ahead, load).unwrap();
        for number in 0..200 {
            let expected = if number % 10 == 3 { Err(number) } else { Ok(number * 2) };
            assert_eq!(loaded.next(), Some(expected));
        }
        assert_eq!((loaded.next(), loaded.next()), (None, None));
    }
    assert_eq!(prefetch(0..0, 2, 2, Ok::<i32, ()>).unwrap().count(), 0);
}

#[test]
fn no_more_than_ahead_is_loaded_and_not_consumed() {
    const AHEAD: usize = 5;
    let started = AtomicUsize::new(0);
    thread::scope(|scope| {
        let load = |number: usize| {
            started.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ()>(number)
        };
        let mut loaded = prefetch_scoped(scope, 0.., 3, AHEAD, load).unwrap();
        for consumed in 0..50 {
            if consumed % 10 == 0 {
                thread::sleep(Duration::from_millis(10));
                assert_eq!(started.load(Ordering::SeqCst), consumed + AHEAD, "loaders do not run ahead as far as told");
            }
            assert!(started.load(Ordering::SeqCst) <= consumed + AHEAD);
            assert_eq!(loaded.next(), Some(Ok(consumed)));
        }
    });
}

#[test]
fn threads_are_named_and_as_many_as_asked() {
    let names = prefetch(0..40, 4, 8, |_| {
        thread::sleep(Duration::from_millis(2));
        Ok::<_, ()>(thread::current().name().unwrap().to_owned())
    });
    let mut names: Vec<String> = names.unwrap().map(Result::unwrap).collect();
    names.sort();
    names.dedup();
    assert_eq!(names, ["trefoil-load-0", "trefoil-load-1", "trefoil-load-2", "trefoil-load-3"]);
}

#[test]
fn a_panic_resumes_in_the_consumer_in_its_place() {
    let mut loaded = prefetch(0..100, 4, 8, |number| {
        dawdle(number);
        assert_ne!(number, 20, "a loader's own");
        Ok::<_, ()>(number)
    })
    .unwrap();
    for number in 0..20 {
        assert_eq!(loaded.next(), Some(Ok(number)));
    }
    let panic = catch_unwind(AssertUnwindSafe(|| loaded.next())).unwrap_err();
    assert!(panic.downcast_ref::<String>().unwrap().contains("a loader's own"));
    assert_eq!(loaded.next(), None);

    let inputs = (0..10).inspect(|&number| assert!(number < 4, "the inputs' own"));
    let mut loaded = prefetch(inputs, 3, 2, Ok::<usize, ()>).unwrap();
    assert_eq!(loaded.by_ref().take(4).collect::<Result<Vec<_>, _>>(), Ok(vec![0, 1, 2, 3]));
    let panic = catch_unwind(AssertUnwindSafe(|| loaded.next())).unwrap_err();
    assert!(panic.downcast_ref::<&str>().is_some_and(|what| what.contains("the inputs' own")));
}

#[test]
fn dropped_early_it_finishes_what_is_in_progress_and_no_more() {
    let (held, loads) = (Arc::new(()), Arc::new(AtomicUsize::new(0)));
    for consumed in 0..30 {
        loads.store(0, Ordering::SeqCst);
        let (inputs, closure, counted) = (held.clone(), held.clone(), loads.clone());
        let inputs = (0..1_000_000).inspect(move |_| assert!(Arc::strong_count(&inputs) > 1));
        let mut loaded = prefetch(inputs, 4, 6, move |number: usize| {
            counted.fetch_add(1, Ordering::SeqCst);
            dawdle(number);
            Ok::<_, ()>((number, closure.clone()))
        })
        .unwrap();
        for number in 0..consumed {
            assert_eq!(loaded.next().unwrap().unwrap().0, number);
        }
        drop(loaded);
        let after = loads.load(Ordering::SeqCst);
        assert!(after <= consumed + 6, "{after} loaded of {consumed} consumed");
        assert_eq!(Arc::strong_count(&held), 1, "a loader is still there");
        thread::sleep(Duration::from_micros(200));
        assert_eq!(loads.load(Ordering::SeqCst), after);
    }
}

#[test]
fn slow_inputs_do_not_hold_back_what_is_loaded() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let mut loaded = prefetch(receiver, 2, 8, Ok::<usize, ()>).unwrap();
    for number in 0..10 {
        sender.send(number).unwrap();
        assert_eq!(loaded.next(), Some(Ok(number)));
    }
    drop(sender);
    assert_eq!(loaded.next(), None);
}

#[test]
fn a_scope_ends_with_an_iterator_half_consumed() {
    let words = [String::from("in"), String::from("compute"), String::from("out")];
    let first = thread::scope(|scope| {
        let load = |word: &String| Ok::<_, ()>(word.len());
        prefetch_scoped(scope, words.iter().cycle(), 2, 4, load).unwrap().next()
    });
    assert_eq!(first, Some(Ok(2)));
}

#[test]
fn zero_counts_are_errors_that_name_the_option() {
    for (threads, ahead, name) in [(0, 1, "threads"), (1, 0, "ahead")] {
        let error = prefetch(0..1, threads, ahead, Ok::<i32, ()>).unwrap_err();
        assert!(matches!(error, Error::Option { option, .. } if option == name));
    }
}
