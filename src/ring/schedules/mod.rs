//! Runs many schedules of the ring, each determined by a seed: a host that plays all producers at random, and a
//! simulated device that moves when the host's dice say so.
//!
//! Each schedule checks that every submission is answered once, in order, with its own rows; that there is no deadlock
//! and no credit is lost; and that there is no hazard, because the device is checked ([`crate::device::check`]). In
//! some schedules the device fails.
//!
//! `TREFOIL_SCHEDULES` sets how many different schedules are run; `TREFOIL_SCHEDULE_SEED` repeats one.

mod producer;
mod world;

use std::collections::HashSet;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread;

use world::{Outcome, World};

/// The least numbers of producers, slots and submissions of a schedule.
const LEAST_PRODUCERS: usize = 2;
const LEAST_SLOTS: usize = 3;
const LEAST_SUBMISSIONS: usize = 20;

/// The default number of schedules; continuous integration runs a million.
const SCHEDULES: usize = if cfg!(debug_assertions) { 5_000 } else { 50_000 };
const FAULTS: usize = if cfg!(debug_assertions) { 1_000 } else { 5_000 };

/// Plays one schedule; a failure names its seed.
fn play(seed: u64, faults: bool) -> Outcome {
    let played = catch_unwind(AssertUnwindSafe(|| World::new(seed, faults).play()));
    played.unwrap_or_else(|panic| {
        eprintln!("schedule {seed} failed (faults: {faults}); TREFOIL_SCHEDULE_SEED={seed} plays it again");
        resume_unwind(panic)
    })
}

/// Plays the schedules of some seeds on all cores; returns their outcomes in any order.
fn play_all(seeds: std::ops::Range<u64>, faults: bool) -> Vec<Outcome> {
    let workers = thread::available_parallelism().map_or(1, usize::from) as u64;
    thread::scope(|scope| {
        let work = |first: u64| {
            let mine = (seeds.start + first..seeds.end).step_by(workers as usize);
            scope.spawn(move || mine.map(|seed| play(seed, faults)).collect::<Vec<_>>())
        };
        let running: Vec<_> = (0..workers).map(work).collect();
        running.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn setting(name: &str) -> Option<u64> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is `{text}`: expected a number")))
}

#[test]
fn schedules_all_different_and_all_right() {
    if let Some(seed) = setting("TREFOIL_SCHEDULE_SEED") {
        println!("{:?}", play(seed, false));
        return;
    }
    let wanted = setting("TREFOIL_SCHEDULES").map_or(SCHEDULES, |count| count as usize);
    let (mut seen, mut played, mut total) = (HashSet::with_capacity(wanted), 0_u64, Outcome::default());
    while seen.len() < wanted {
        let more = (wanted - seen.len()) as u64;
        for outcome in play_all(played..played + more, false) {
            assert!(outcome.submitted >= LEAST_SUBMISSIONS && outcome.errors == 0, "{outcome:?}");
            seen.insert(outcome.hash);
            total.add(&outcome);
        }
        played += more;
        assert!(played <= 2 * wanted as u64, "only {} of {played} schedules are different", seen.len());
    }
    println!(
        "{} different schedules of {played} (seeds 0 to {}), each with {LEAST_PRODUCERS} producers, {LEAST_SLOTS} slots \
         and {LEAST_SUBMISSIONS} submissions or more: {total:?}",
        seen.len(),
        played - 1,
    );
    // Each kind of event must occur often enough to be tested.
    let each = wanted as u64 / 100;
    for (what, count) in [("timeouts", total.timeouts), ("abandoned", total.abandoned), ("woken", total.woken)] {
        assert!(count as u64 > each, "hardly any {what}: {total:?}");
    }
    assert!(total.given_back as u64 > each && total.closed > 0 && total.blocked as u64 > each, "{total:?}");
}

#[test]
fn schedules_with_a_fault_answer_everybody() {
    let outcomes = play_all(0..FAULTS as u64, true);
    let (mut total, mut faulted) = (Outcome::default(), 0);
    for outcome in &outcomes {
        faulted += usize::from(outcome.errors > 0);
        total.add(outcome);
    }
    println!("{} schedules, {faulted} of them answered with the fault: {total:?}", outcomes.len());
    assert!(faulted * 4 > outcomes.len() * 3, "most faults are to be met");
}
