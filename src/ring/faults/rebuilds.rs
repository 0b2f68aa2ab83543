//! Tests of a fleet that opens failed devices again: while an attempt is left, no batch is lost; when none is left,
//! every call gets the fault.

use std::sync::Barrier;

use super::peers::{cpu, member, sim, use_peers};
use super::*;
use crate::device::Signal;
use crate::device::sim::{Effect, Injection, Unit};
use crate::ring::Peers;

type Made = Result<(Device, Arc<dyn Program>), Error>;

/// A fleet of one ring, and the thread that builds the next rings. `make` makes the device of each attempt, from number
/// 0.
fn mended(
    attempts: usize,
    waiting: Waiting,
    make: impl Fn(usize) -> Made + Send + 'static,
) -> (Arc<Peers>, thread::JoinHandle<usize>) {
    let freed = Arc::<Signal>::default();
    let peers = Peers::new(vec![member(make(0).unwrap(), waiting, &freed)], freed.clone(), attempts);
    let rings = peers.rings().clone();
    let mend = move || {
        let mut made = 0;
        while rings.next_due(0).is_some() {
            made += 1;
            match make(made) {
                Ok(made) => drop(rings.put(0, member(made, waiting, &freed))),
                Err(error) => rings.failed(0, &error),
            }
        }
        made
    };
    (peers, thread::spawn(mend))
}

/// The number of attempts that the thread has made, which it returns at its end.
fn attempts_of(peers: Arc<Peers>, mend: thread::JoinHandle<usize>) -> usize {
    drop(peers);
    mend.join().unwrap()
}

fn driver(class: FaultClass) -> Error {
    let (device, status) = ("cuda:0".into(), "CUDA_ERROR_UNKNOWN".into());
    Error::Driver { device, operation: "cuTest", status, code: 999, class }
}

#[test]
fn every_operation_may_fail_and_all_is_answered() {
    for (unit, operation) in [(Unit::CopyIn, "copy_in"), (Unit::Compute, "launch"), (Unit::CopyOut, "copy_out")] {
        for effect in [Effect::RefuseCall, Effect::FailRun] {
            for nth in 1..=4 {
                let waiting = [Waiting::Block, Waiting::Spin][nth % 2];
                in_time("one that is rebuilt", move || {
                    let inject = move |made| if made < 2 { vec![Injection { unit, nth, effect }] } else { Vec::new() };
                    let (peers, mend) = mended(2, waiting, move |made| Ok(sim(inject(made))));
                    let errors = use_peers(&peers);
                    assert!(errors.is_empty(), "{errors:?}");
                    let stats = &peers.stats()[0];
                    assert!(stats.fault.is_none() && stats.rebuilt == 2 && !stats.is_rebuilding, "{stats:?}");
                    let last = stats.last_fault.as_ref().unwrap().to_string();
                    assert!(last.contains(operation), "{last}");
                    assert_eq!(attempts_of(peers, mend), 2);
                });
            }
        }
    }
}

#[test]
fn programs_that_panic_are_answered_by_the_next_ring() {
    for waiting in WAYS {
        for panics_at in 0..6 {
            in_time("a program that panics", move || {
                let (peers, mend) =
                    mended(1, waiting, move |made| Ok(cpu(if made == 0 { panics_at } else { usize::MAX })));
                let errors = use_peers(&peers);
                assert!(errors.is_empty(), "{errors:?}");
                let stats = &peers.stats()[0];
                assert!(stats.rebuilt == 1 && stats.run_again > 0, "{stats:?}");
                assert_eq!(attempts_of(peers, mend), 1);
            });
        }
    }
}

#[test]
fn when_no_attempt_is_left_everybody_hears_the_fault() {
    for attempts in 0..3 {
        in_time("devices that all fail", move || {
            let (peers, mend) = mended(attempts, Waiting::Block, move |made| Ok(cpu(1 + made)));
            let errors = use_peers(&peers);
            assert!(!errors.is_empty());
            assert!(errors.iter().all(|error| matches!(error, Error::Fault { .. })), "{errors:?}");
            assert!(matches!(peers.acquire(LONG), Err(Error::Fault { .. })));
            assert_eq!(peers.stats()[0].rebuilt, attempts as u64);
            assert_eq!(attempts_of(peers, mend), attempts);
        });
    }
}

#[test]
fn an_attempt_that_fails_counts_and_the_next_one_waits() {
    for succeeds_at in [2, 9] {
        in_time("attempts that fail", move || {
            let make = move |made| match made {
                0 => Ok(cpu(1)),
                _ if made == succeeds_at => Ok(cpu(usize::MAX)),
                _ => Err(driver(FaultClass::Device)),
            };
            let begin = Instant::now();
            let (peers, mend) = mended(3, Waiting::Block, make);
            let errors = use_peers(&peers);
            let stats = &peers.stats()[0];
            if succeeds_at == 2 {
                assert!(errors.is_empty() && stats.rebuilt == 1, "{errors:?}, {stats:?}");
                assert!(begin.elapsed() >= Duration::from_millis(100));
            } else {
                assert!(stats.rebuilt == 0 && stats.fault.is_some() && !stats.is_rebuilding, "{stats:?}");
                let is_first =
                    |error: &Error| matches!(error, Error::Fault { .. }) && !error.to_string().contains("cuTest");
                assert!(!errors.is_empty() && errors.iter().all(is_first), "{errors:?}");
                assert!(begin.elapsed() >= Duration::from_millis(300));
            }
            assert_eq!(attempts_of(peers, mend), succeeds_at.min(3));
        });
    }
}

/// A fault of class process ends the fleet as without rebuilds, also if a rebuild meets it.
#[test]
fn a_fault_of_the_process_is_not_rebuilt() {
    let (peers, mend) = mended(3, Waiting::Block, |_| Ok(cpu(usize::MAX)));
    let _latched = peers.rings.now()[0].device.latch(Err::<(), _>(driver(FaultClass::Process)));
    assert_eq!(peers.acquire(LONG).unwrap_err().class(), FaultClass::Process);
    assert_eq!(attempts_of(peers, mend), 0);

    let make = |made| if made == 0 { Ok(cpu(usize::MAX)) } else { Err(driver(FaultClass::Process)) };
    let (peers, mend) = mended(3, Waiting::Block, make);
    let _latched = peers.rings.now()[0].device.latch(Err::<(), _>(driver(FaultClass::Device)));
    assert_eq!(peers.acquire(LONG).unwrap_err().class(), FaultClass::Device);
    assert_eq!(attempts_of(peers, mend), 1);
}

/// A fleet whose ring has failed with a batch unanswered. The next ring is made when the test sends on the channel.
fn held_up() -> (Arc<Peers>, thread::JoinHandle<usize>, mpsc::Sender<()>, Ticket) {
    let (release, released) = mpsc::channel();
    let (peers, mend) = mended(1, Waiting::Block, move |made| {
        if made > 0 {
            released.recv().unwrap();
        }
        Ok(cpu(if made == 0 { 0 } else { usize::MAX }))
    });
    let mut batch = peers.acquire(LONG).unwrap();
    batch.row_mut(0).fill(7);
    let ticket = batch.submit(1).unwrap();
    while peers.stats()[0].fault.is_none() {
        thread::yield_now();
    }
    (peers, mend, release, ticket)
}

#[test]
fn limits_are_kept_while_a_ring_is_rebuilt() {
    in_time("limits", || {
        const LIMIT: Duration = Duration::from_millis(150);
        let (peers, mend, release, mut ticket) = held_up();
        let begin = Instant::now();
        for _ in 0..3 {
            ticket = ticket.wait_for(LIMIT).unwrap().expect_err("answered by nobody");
        }
        assert!(begin.elapsed() < LONG / 2, "{:?}", begin.elapsed());
        let late = peers.acquire(LIMIT).unwrap_err();
        assert!(late.to_string().contains("while a failed device is rebuilt"), "{late}");
        assert!(peers.stats()[0].is_rebuilding && ticket.is_ready().unwrap());
        release.send(()).unwrap();
        let output = ticket.wait().unwrap();
        assert!(output.row(0).iter().all(|&byte| byte == 7), "another batch's answer");
        drop(output);
        assert_eq!(attempts_of(peers, mend), 1);
    });
}

#[test]
fn a_ticket_dropped_while_its_ring_is_rebuilt_leaves_nothing() {
    in_time("a dropped ticket", || {
        let (peers, mend, release, ticket) = held_up();
        drop(ticket.wait_for(Duration::from_millis(50)).unwrap());
        release.send(()).unwrap();
        let held: Vec<_> = (0..3).map(|_| peers.acquire(LONG).unwrap()).collect();
        drop(held);
        let credits = peers.rings.now()[0].credits().unwrap();
        assert_eq!((credits.filling, credits.in_flight, credits.unread, credits.quarantined), (0, 0, 0, 0));
        assert_eq!(attempts_of(peers, mend), 1);
    });
}

#[test]
fn who_waits_for_a_ring_hears_that_none_comes() {
    in_time("the end of rebuilding", || {
        let (peers, mend, release, ticket) = held_up();
        let others: Vec<_> = (0..2)
            .map(|_| {
                thread::spawn({
                    let peers = peers.clone();
                    move || peers.acquire(LONG).map(drop)
                })
            })
            .collect();
        let waits = thread::spawn(move || ticket.wait().map(drop));
        while !peers.rings().is_building() {
            thread::yield_now();
        }
        peers.rings().end();
        for waited in others.into_iter().chain([waits]) {
            assert!(matches!(waited.join().unwrap(), Err(Error::Fault { .. })));
        }
        release.send(()).unwrap(); // what was begun is not put in place
        assert_eq!(mend.join().unwrap(), 1);
        assert_eq!(peers.stats()[0].rebuilt, 0);
    });
}

#[test]
fn a_ring_that_is_closed_while_the_next_is_built_stays_in_place() {
    in_time("closed while it is rebuilt", || {
        let (peers, mend, release, ticket) = held_up();
        let other = thread::spawn({
            let peers = peers.clone();
            move || peers.acquire(LONG).map(drop)
        });
        let waits = thread::spawn(move || ticket.wait().map(drop));
        while !peers.rings().is_building() {
            thread::yield_now();
        }
        let failed = peers.rings().now()[0].clone();
        assert!(failed.close(Close::Drain, LONG).is_err(), "its device failed");
        for waited in [other, waits] {
            let answer = waited.join().unwrap();
            assert!(matches!(answer, Err(Error::Fault { .. } | Error::Closed)), "{answer:?}");
        }
        assert!(peers.rings().is_building(), "who waited did not wait for the build");
        release.send(()).unwrap();
        while peers.rings().is_building() {
            thread::yield_now();
        }
        let stats = &peers.stats()[0];
        assert!(stats.rebuilt == 0 && !stats.is_rebuilding, "{stats:?}");
        assert!(Arc::ptr_eq(&peers.rings().now()[0], &failed));
        drop(failed);
        assert_eq!(attempts_of(peers, mend), 1);
    });
}

/// Uses two devices twice, whose programs panic in these runs; each has a thread that builds its next ring after
/// `before`. Every batch must be answered. Returns how often each was rebuilt.
fn rebuilt_of_two(panic_at: [usize; 2], before: impl Fn() + Send + Clone + 'static) -> [u64; 2] {
    let freed = Arc::<Signal>::default();
    let rings = panic_at.map(|run| member(cpu(run), Waiting::Block, &freed));
    let peers = Peers::new(rings.into(), freed.clone(), 1);
    let mend = |index| {
        let (rings, freed, before) = (peers.rings().clone(), freed.clone(), before.clone());
        thread::spawn(move || {
            while rings.next_due(index).is_some() {
                before();
                rings.put(index, member(cpu(usize::MAX), Waiting::Block, &freed));
            }
        })
    };
    let threads = [0, 1].map(mend);
    for _ in 0..2 {
        let errors = use_peers(&peers);
        assert!(errors.is_empty(), "{errors:?}");
    }
    let stats = peers.stats();
    assert!(stats.iter().all(|device| device.fault.is_none() && device.batches > 4), "{stats:?}");
    drop(peers);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    [stats[0].rebuilt, stats[1].rebuilt]
}

/// The batches that the failed device has not answered may run on the other one before the rebuild; both are used in
/// the end.
#[test]
fn a_device_of_two_that_fails_comes_back() {
    in_time("one of two", || assert_eq!(rebuilt_of_two([2, usize::MAX], || {}), [1, 0]));
}

/// Neither ring is put in place before both are being built.
#[test]
fn devices_that_fail_together_are_rebuilt_side_by_side() {
    in_time("two of two", || {
        let both = Arc::new(Barrier::new(2));
        let meet = move || {
            both.wait();
        };
        assert_eq!(rebuilt_of_two([0, 0], meet), [1, 1]);
    });
}
