//! Tests of when a batch leaves, and with how many rows, depending on the times of earlier batches.

use super::size::{FORGET, SAMPLE};
use super::*;

const US: fn(u64) -> Duration = Duration::from_micros;

/// Sends a batch of `rows` with no other beside it: uploaded after `upload`, done `run` later.
fn alone(pace: &mut Pace, at: Instant, rows: usize, upload: Duration, run: Duration) -> Instant {
    pace.sent(rows, at);
    pace.uploaded(rows, upload);
    let done = at + pace.upload(rows, Estimate::mean) + run;
    pace.done(done);
    done
}

#[test]
fn a_batch_leaves_when_its_upload_ends_with_the_run_before_it() {
    let mut pace = Pace::new(&[1, 2, 4], 1);
    let start = Instant::now();
    assert_eq!(pace.leaves_at(1, start), start, "the device is idle");
    pace.sent(1, start);
    assert_eq!(pace.leaves_at(1, start), start, "nothing is known of the run");
    pace.done(start + US(100));
    let mut at = start + US(1_000);
    for _ in 0..50 {
        at = alone(&mut pace, at, 1, US(20), US(100)) + US(500);
    }
    pace.sent(1, at);
    let leaves = |pace: &Pace, rows| pace.leaves_at(rows, at).duration_since(at);
    let near = |found: Duration, wanted: Duration| found.abs_diff(wanted) < US(1);
    assert!(near(leaves(&pace, 1), US(100)), "{:?}: 20 up and 100 of run, less 20 up", leaves(&pace, 1));
    assert_eq!(
        leaves(&pace, 2),
        leaves(&pace, 1) + pace.upload(1, Estimate::mean),
        "an upload that was never measured takes nothing"
    );
    pace.overslept(US(40));
    assert!(near(leaves(&pace, 1), US(60)), "{:?}: 40 us earlier, as it oversleeps by them", leaves(&pace, 1));
    let late = at + US(400);
    assert_eq!(pace.leaves_at(1, late), late, "a run that is late is over at any moment");
}

#[test]
fn one_upload_in_some_is_measured() {
    let mut pace = Pace::new(&[4], 1);
    let start = Instant::now();
    assert!(pace.sent(2, start).is_measured);
    assert!(pace.sent(2, start).is_measured, "the first one's upload may have waited for another");
    pace.uploaded(2, US(20));
    let measured: Vec<bool> = (0..SAMPLE + 1).map(|_| pace.sent(2, start).is_measured).collect();
    assert_eq!(measured.iter().position(|&measured| measured), Some(SAMPLE as usize - 1));
    assert_eq!(pace.upload(4, Estimate::mean), US(40));
}

#[test]
fn runs_are_measured_from_the_end_of_the_one_before() {
    let mut pace = Pace::new(&[1], 1);
    let start = Instant::now();
    pace.sent(1, start);
    pace.sent(1, start);
    pace.done(start + US(50));
    pace.done(start + US(100));
    assert_eq!(pace.sizes[0].alone.mean(), Some(US(50)));
}

#[test]
fn rows_that_do_not_pay_wait() {
    let mut pace = Pace::new(&[1, 8, 16], 1);
    let mut at = Instant::now();
    assert_eq!(pace.worth(9, at), 9, "nothing is known");
    for (rows, run) in [(1, US(160)), (8, US(333)), (16, US(450))] {
        at = alone(&mut pace, at, rows, Duration::ZERO, run);
    }
    assert_eq!([1, 7, 8, 9, 10, 11, 15, 16].map(|rows| pace.worth(rows, at)), [1, 7, 8, 8, 8, 11, 15, 16]);
}

#[test]
fn a_size_that_was_slow_once_is_used_again() {
    let mut pace = Pace::new(&[8, 12], 1);
    let mut at = Instant::now();
    at = alone(&mut pace, at, 8, Duration::ZERO, US(300));
    at = alone(&mut pace, at, 12, Duration::ZERO, US(90_000));
    assert_eq!(pace.worth(12, at), 8);
    for _ in 0..FORGET {
        at = alone(&mut pace, at, 8, Duration::ZERO, US(300));
    }
    assert_eq!(pace.worth(12, at), 12);
}

#[test]
fn a_thread_that_overslept_once_waits_again() {
    let mut pace = Pace::new(&[1], 1);
    let mut at = Instant::now();
    for _ in 0..50 {
        at = alone(&mut pace, at, 1, US(20), US(300)) + US(500);
    }
    pace.overslept(US(50_000));
    pace.sent(1, at);
    let waits = pace.leaves_at(1, at).duration_since(at);
    assert!(waits > US(140), "{waits:?}: half of a run, less an upload, of 320 us");
}

/// A pace with two streams that knows the times of runs alone: 300 us for 8 rows, 400 for 16.
fn two_streams() -> (Pace, Instant) {
    let mut pace = Pace::new(&[1, 8, 16], 2);
    let mut at = Instant::now();
    for (rows, run) in [(8, 300), (16, 400)] {
        at = alone(&mut pace, at, rows, Duration::ZERO, US(run)) + US(500);
    }
    (pace, at)
}

#[test]
fn large_batches_leave_for_a_free_stream_and_other_rows_gather() {
    let (mut pace, at) = two_streams();
    let leaves = |pace: &Pace, rows| pace.leaves_at(rows, at).duration_since(at);
    assert_eq!(leaves(&pace, 1), Duration::ZERO, "the device is idle");
    pace.sent(8, at);
    let pays = [1, 5, 7, 8, 9, 12].map(|rows| leaves(&pace, rows).is_zero());
    assert_eq!(pays, [false, false, false, true, true, false], "as many rows as run, and a full size");
    assert_eq!(leaves(&pace, 1), US(300), "when the device is idle");
    assert!(!pace.sent(8, at + US(100)).in_turn);
    assert_eq!([1, 8].map(|rows| leaves(&pace, rows)), [US(400); 2], "no stream is free before the device is");
}

#[test]
fn a_small_run_holds_no_large_batch_back() {
    let (mut pace, at) = two_streams();
    pace.sent(2, at);
    let pays = [2, 3, 4, 5].map(|rows| pace.pays_beside(rows, at));
    assert_eq!(pays, [false, false, true, true], "twice as large pays");
}

/// Sends two batches, `apart` from each other, each done `took` after it was sent; the device is idle afterwards.
fn side_by_side(pace: &mut Pace, at: Instant, rows: usize, took: Duration, apart: Duration) -> Instant {
    pace.sent(rows, at);
    pace.sent(rows, at + apart);
    pace.done(at + took);
    pace.done(at + took + apart);
    at + took + apart + US(1_000)
}

#[test]
fn from_a_run_partly_beside_another_follows_what_it_takes_beside_one_all_the_time() {
    let (mut pace, mut at) = two_streams();
    for _ in 0..60 {
        // 100 us alone, then at two thirds of the speed: 200 us' worth takes 300.
        at = side_by_side(&mut pace, at, 8, US(400), US(100));
    }
    let size = &pace.sizes[1];
    assert_eq!(size.alone.mean(), Some(US(300)));
    assert!((size.speed_beside() - 2.0 / 3.0).abs() < 0.01, "{}", size.speed_beside());
    // The first run ends after 400 us again; from then on the second one runs alone, at full speed.
    pace.sent(8, at);
    pace.sent(8, at + US(100));
    let ends: Vec<_> = pace.flights.iter().map(|flight| flight.ends.unwrap().duration_since(at).as_micros()).collect();
    assert!(ends[0].abs_diff(400) <= 2 && ends[1].abs_diff(500) <= 2, "{ends:?}");
}

#[test]
fn a_run_that_may_have_been_over_before_says_nothing() {
    let (mut pace, at) = two_streams();
    let at = side_by_side(&mut pace, at, 8, US(400), US(50));
    let before = pace.sizes[1].speed_beside();
    side_by_side(&mut pace, at, 8, US(400), US(1));
    let first_alone = pace.sizes[1].speed_beside();
    assert_ne!(before, first_alone, "the first of both is measured");
    pace.sent(8, at + US(9_000));
    pace.sent(8, at + US(9_000));
    pace.done(at + US(9_400));
    let before = pace.sizes[1].speed_beside();
    pace.done(at + US(9_401));
    assert_eq!(pace.sizes[1].speed_beside(), before, "behind which the second was heard of");
}

/// Two runs of 8 rows take 440 us side by side and 600 one after the other. Later they take 520 side by side, and run
/// in turn until this is forgotten.
#[test]
fn sizes_are_computed_side_by_side_as_long_as_they_gain_and_in_turn_else() {
    let (mut pace, mut at) = two_streams();
    for (took, gains) in [(440, true), (520, false)] {
        for _ in 0..40 {
            at = if pace.gains_side_by_side(1) { side_by_side(&mut pace, at, 8, US(took), US(30)) } else { at };
        }
        assert_eq!(pace.gains_side_by_side(1), gains);
    }
    assert!(pace.sent(8, at).in_turn && pace.sent(8, at).in_turn);
    pace.done(at + US(300));
    pace.done(at + US(600));
    assert_eq!(pace.sizes[1].alone.mean(), Some(US(300)), "in turn is alone");
    for _ in 2..FORGET {
        assert!(!pace.gains_side_by_side(1));
        at = alone(&mut pace, at + US(1_000), 8, Duration::ZERO, US(300));
    }
    assert!(pace.gains_side_by_side(1));
}

#[test]
fn full_batches_that_gain_are_computed_side_by_side() {
    let (mut pace, at) = two_streams();
    assert!(pace.sent(1, at).in_turn, "what a run of one row takes alone is not known");
    pace.done(at + US(150));
    assert!(!pace.sent(16, at + US(500)).in_turn && !pace.sent(16, at + US(500)).in_turn);
}

/// Plays eight clients that come back 100 us after their answers.
fn closed_loop(pace: &mut Pace, mut at: Instant) -> Instant {
    for _ in 0..30 {
        at = alone(pace, at, 8, Duration::ZERO, US(300));
        (0..8).for_each(|_| pace.came(at + US(100)));
        at += US(500);
    }
    at
}

#[test]
fn rows_that_are_due_are_waited_for_if_that_shortens_the_round() {
    let (mut pace, mut at) = two_streams();
    at = closed_loop(&mut pace, at);
    pace.sent(8, at);
    pace.sent(8, at + US(150));
    pace.done(at + US(300));
    let now = at + US(350);
    (0..5).for_each(|_| pace.came(now));
    let leaves = pace.leaves_at(5, now).duration_since(now);
    assert!(leaves.abs_diff(US(50)) < US(5), "{leaves:?}: three of eight are due 100 us after the answers");
    assert_eq!(pace.leaves_at(5, now + US(60)), now + US(60), "three are late: nobody waits for them any more");
    (0..3).for_each(|_| pace.came(now));
    assert_eq!(pace.leaves_at(8, now), now, "all are there");
}

/// Half of the time the last of eight clients comes back 20 us after the answers, otherwise 500 us after them: after
/// 260 us on average, and rarely after 700.
#[test]
fn what_is_lost_by_waiting_is_judged_by_when_clients_are_usually_back() {
    let (mut pace, mut at) = two_streams();
    for round in 0..100 {
        at = alone(&mut pace, at, 8, Duration::ZERO, US(300));
        let back = at + US(if round % 2 == 0 { 20 } else { 500 });
        (0..8).for_each(|_| pace.came(back));
        at = back + US(100);
    }
    pace.sent(8, at);
    pace.sent(8, at + US(290));
    pace.done(at + US(300));
    let now = at + US(320);
    (0..5).for_each(|_| pace.came(now));
    let due: Vec<_> = pace.returns.due(now).map(|(rows, expected)| (rows, expected.latest - now)).collect();
    assert!(matches!(due[..], [(3, latest)] if latest > US(600)), "{due:?}");
    let leaves = pace.leaves_at(5, now).duration_since(now);
    assert!(leaves > US(200), "{leaves:?}: three batches of 300 us would be two if the others were back in 260");
}

#[test]
fn whoever_completes_a_group_sends_it_if_a_stream_is_free() {
    let (mut pace, mut at) = two_streams();
    at = closed_loop(&mut pace, at);
    assert!(pace.waits_for_nobody(at), "all are back");
    pace.sent(8, at);
    assert!(pace.waits_for_nobody(at), "one stream is free");
    pace.sent(8, at);
    assert!(!pace.waits_for_nobody(at), "none is");
    pace.done(at + US(300));
    let now = at + US(350);
    let free = [0, 7, 1].map(|rows| {
        (0..rows).for_each(|_| pace.came(now));
        pace.waits_for_nobody(now)
    });
    assert_eq!(free, [false, false, true], "eight are due, one is, none");
}

#[test]
fn the_earliest_end_follows_shorter_runs_at_once_and_longer_ones_slowly() {
    let mut pace = Pace::new(&[8], 1);
    let mut at = Instant::now();
    let mut soonest = |run| {
        at = alone(&mut pace, at, 8, Duration::ZERO, run) + US(500);
        pace.sent(8, at);
        let soonest = pace.looks_out(at).map(|[from, _]| from + EARLY - at);
        pace.done(at + run);
        at += run + US(500);
        soonest
    };
    assert_eq!(soonest(US(320)), Some(US(320)));
    assert_eq!(soonest(US(90_000)), Some(US(330)), "one that took long makes no answer late");
    assert_eq!(soonest(US(300)), Some(US(300)));
    let last = (0..100).map(|_| soonest(US(640))).last();
    assert_eq!(last, Some(Some(US(640))));
    assert_eq!(pace.looks_out(at), None, "nothing is in flight");
}

#[test]
fn an_answer_is_late_once_where_runs_became_shorter() {
    let mut pace = Pace::new(&[8], 1);
    let mut at = Instant::now();
    let mut late = |run: Duration| {
        pace.sent(8, at);
        let end = at + run;
        let heard = match pace.looks_out(at) {
            Some([from, _]) if end < from => {
                pace.was_early();
                from
            }
            _ => end,
        };
        pace.done(heard);
        at = heard + US(500);
        heard - end
    };
    assert_eq!([0; 5].map(|_| late(US(4_000))), [Duration::ZERO; 5]);
    assert_eq!(late(US(1_000)), US(3_000) - EARLY);
    assert_eq!([0; 5].map(|_| late(US(1_000))), [Duration::ZERO; 5]);
    assert_eq!([20_000, 1_000].map(|run| late(US(run))), [Duration::ZERO; 2]);
}

#[test]
fn what_a_run_takes_is_known_again_also_beside_others() {
    let (mut pace, mut at) = two_streams();
    for _ in 0..40 {
        at = side_by_side(&mut pace, at, 8, US(400), US(100));
    }
    pace.sent(8, at);
    pace.was_early();
    pace.done(at + US(300));
    at += US(1_000);
    pace.sent(8, at);
    assert_eq!(pace.looks_out(at), None, "it was done before it was looked for");
    pace.sent(8, at + US(100));
    pace.done(at + US(400));
    pace.done(at + US(500));
    at += US(1_000);
    pace.sent(8, at);
    let soonest = pace.looks_out(at).unwrap()[0] + EARLY - at;
    assert!(soonest.abs_diff(US(300)) < US(20), "{soonest:?}");
}

#[test]
fn an_upload_that_is_known_too_long_is_measured_again() {
    let mut pace = Pace::new(&[8], 1);
    let mut at = Instant::now();
    for _ in 0..20 {
        at = alone(&mut pace, at, 8, US(30), US(300)) + US(500);
    }
    pace.sent(8, at);
    pace.uploaded(8, US(40_000)); // the thread was stopped meanwhile
    pace.done(at + US(330));
    assert!(pace.measures(8));
    for _ in 0..3 {
        at = alone(&mut pace, at + US(1_000), 8, US(30), US(300));
        assert_eq!(pace.sizes[0].alone.mean(), Some(US(300)));
        assert_eq!(pace.upload(8, Estimate::mean), US(30));
    }
}

#[test]
fn what_is_done_long_from_now_is_not_looked_for() {
    let mut pace = Pace::new(&[8], 1);
    let at = alone(&mut pace, Instant::now(), 8, Duration::ZERO, US(20_000));
    pace.sent(8, at);
    assert_eq!(pace.looks_out(at + US(14_900)), None);
    assert_eq!(pace.looks_out(at + US(15_000)), Some([at + US(20_000) - EARLY, at + US(20_000) - EARLY + LOOK_OUT]));
}

#[test]
fn a_round_is_shared_between_those_that_run_and_those_that_wait() {
    let (mut pace, mut at) = two_streams();
    at = closed_loop(&mut pace, at);
    pace.sent(4, at);
    assert_eq!([7, 8, 11, 12].map(|rows| pace.worth(rows, at)), [7, 8, 8, 8], "of 16 clients eight are a share");
    assert_eq!(pace.worth(13, at), 13, "of 17 clients more");
}

/// Of nine rows, a batch may take eight, a size that gains side by side. The size for nine does not gain, and took
/// twice as long beside others before it became faster alone.
#[test]
fn a_size_that_became_faster_alone_loses_no_less_than_nothing_by_waiting() {
    let (mut pace, mut at) = two_streams();
    for _ in 0..40 {
        at = if pace.gains_side_by_side(2) { side_by_side(&mut pace, at, 16, US(790), US(30)) } else { at };
    }
    for _ in 0..20 {
        at = alone(&mut pace, at + US(1_000), 16, Duration::ZERO, US(350));
    }
    at = closed_loop(&mut pace, at);
    pace.sent(8, at);
    pace.sent(8, at + US(150));
    pace.done(at + US(300));
    assert_eq!(pace.worth(9, at + US(350)), 8);
    assert!(pace.leaves_at(9, at + US(350)) >= at + US(350));
}
