//! Tests of when a batch leaves, and with which rows, by the books alone.

use super::*;

const MS: fn(u64) -> Duration = Duration::from_millis;
const BOUNDS: Bounds = Bounds { full: 4, in_flight: 3, max_delay: Duration::from_millis(2) };

/// Books that know that a run of the device takes 10 ms.
fn books(start: Instant) -> BatcherState {
    let mut state = BatcherState::new(16, &[1, 4], 1);
    for at in [start, start + MS(50)] {
        send(&mut state, 1, at);
        done(&mut state, at + MS(10));
    }
    state
}

fn commit(state: &mut BatcherState, deadline: Option<Instant>, now: Instant) {
    let row = state.claim().unwrap();
    state.commit(row, RowPriority::Normal, deadline, now);
}

fn send(state: &mut BatcherState, rows: usize, now: Instant) {
    (0..rows).for_each(|_| commit(state, None, now));
    assert_eq!(state.next(&BOUNDS, now), Next::Leave);
    let rows = state.pick(&BOUNDS, now);
    state.sent(&rows, now);
}

fn done(state: &mut BatcherState, now: Instant) {
    state.land(Vec::new(), now, &mut Vec::new());
}

#[test]
fn while_the_device_is_busy_the_delay_bounds_the_wait() {
    let start = Instant::now();
    let mut state = books(start);
    let now = start + MS(100);
    send(&mut state, 1, now);
    commit(&mut state, None, now + MS(1));
    assert_eq!(state.next(&BOUNDS, now + MS(1)), Next::LookAt(now + MS(3)), "2 ms after its commit");
    let patient = Bounds { max_delay: MS(1_000), ..BOUNDS };
    let Next::LookAt(at) = state.next(&patient, now + MS(1)) else { panic!("the device is busy") };
    assert!(at > now + MS(9) && at <= now + MS(10), "when the run is over: {:?}", at - now);
    assert_eq!(state.next(&patient, now + MS(10)), Next::Leave);
}

#[test]
fn half_of_the_time_to_a_deadline_is_for_company() {
    let start = Instant::now();
    let mut state = books(start);
    let now = start + MS(100);
    send(&mut state, 1, now);
    let patient = Bounds { max_delay: MS(1_000), ..BOUNDS };
    commit(&mut state, Some(now + MS(4)), now);
    assert_eq!(state.next(&patient, now), Next::LookAt(now + MS(2)));
    assert_eq!(state.next(&patient, now + MS(2)), Next::Leave);
}

#[test]
fn a_row_that_may_not_wait_goes_along() {
    let start = Instant::now();
    let bounds = Bounds { full: 16, ..BOUNDS };
    let now = start + MS(1_000);
    // Nine rows, of which the last has a deadline. A batch of 16 takes nine times as long as one of 8.
    let picked = |after: Duration| {
        let mut state = BatcherState::new(64, &[8, 16], 1);
        for (rows, run) in [(8, 10), (16, 90)] {
            (0..rows).for_each(|_| commit(&mut state, None, start));
            let rows = state.take_rows(rows);
            state.sent(&rows, start);
            done(&mut state, start + MS(run));
        }
        (0..8).for_each(|_| commit(&mut state, None, now));
        commit(&mut state, Some(now + MS(3)), now);
        state.pick(&bounds, now + after).len()
    };
    assert_eq!(picked(MS(1)), 8);
    assert_eq!(picked(Duration::from_micros(1_600)), 9, "half of its time is gone");
}

#[test]
fn a_full_batch_queues_deeper_than_another() {
    let now = Instant::now();
    let mut state = BatcherState::new(16, &[1, 4], 1);
    send(&mut state, 1, now);
    send(&mut state, 1, now);
    commit(&mut state, None, now);
    assert_eq!(state.next(&BOUNDS, now + MS(50)), Next::Sleep, "two are in flight");
    (0..3).for_each(|_| commit(&mut state, None, now));
    assert_eq!(state.next(&BOUNDS, now), Next::Leave);
    send(&mut state, 0, now);
    (0..4).for_each(|_| commit(&mut state, None, now));
    assert_eq!(state.next(&BOUNDS, now), Next::Sleep, "three are all that may be in flight");
}

#[test]
fn of_a_batch_that_never_reached_the_device_nothing_is_learnt() {
    let start = Instant::now();
    let mut state = books(start);
    let now = start + MS(100);
    let patient = Bounds { max_delay: MS(1_000), ..BOUNDS };
    send(&mut state, 1, now);
    commit(&mut state, None, now + MS(1));
    let rows = state.pick(&patient, now + MS(1));
    state.sent(&rows, now + MS(1));
    state.take_back(rows, &Error::Closed, &mut Vec::new());
    done(&mut state, now + MS(10));
    let mut at = now + MS(100);
    for _ in 0..3 {
        send(&mut state, 1, at);
        commit(&mut state, None, at);
        let Next::LookAt(looks) = state.next(&patient, at) else { panic!("the device is busy") };
        assert!(looks > at + MS(9) && looks <= at + MS(10), "when the run is over: {:?}", looks - at);
        done(&mut state, at + MS(10));
        assert_eq!(state.next(&patient, at + MS(10)), Next::Leave, "nothing is in flight");
        send(&mut state, 0, at + MS(10));
        done(&mut state, at + MS(20));
        at += MS(100);
    }
}

/// The effect of each of the next commits.
fn news_of(state: &mut BatcherState, before: std::ops::Range<usize>, bounds: &Bounds, now: Instant) -> Vec<News> {
    let news = |before| {
        commit(state, None, now);
        state.news(before, false, bounds, now)
    };
    before.map(news).collect()
}

#[test]
fn news_is_what_changes_when_a_batch_leaves() {
    let start = Instant::now();
    let mut state = books(start);
    let now = start + MS(100);
    send(&mut state, 1, now);
    let patient = Bounds { max_delay: MS(1_000), ..BOUNDS };
    assert_eq!(
        news_of(&mut state, 0..4, &patient, now),
        [News::Look, News::Look, News::Nothing, News::Look],
        "the first, one that takes the next size, a full batch that is to be measured"
    );
    send(&mut state, 0, now);
    send(&mut state, 4, now);
    let none_may_leave = [News::Look, News::Look, News::Nothing, News::Nothing, News::Nothing];
    assert_eq!(news_of(&mut state, 0..5, &patient, now), none_may_leave);
    assert_eq!(state.news(5, false, &patient, now), News::Nothing, "nothing came");
}

#[test]
fn who_commits_sends_a_batch_with_none_beside_it() {
    let start = Instant::now();
    let mut state = books(start);
    let now = start + MS(100);
    assert_eq!(news_of(&mut state, 0..1, &BOUNDS, now), [News::Look], "its upload is to be measured");
    send(&mut state, 0, now);
    state.uploaded(1, MS(0));
    done(&mut state, now + MS(10));
    assert_eq!(news_of(&mut state, 0..1, &BOUNDS, now + MS(20)), [News::Leave]);
    send(&mut state, 0, now + MS(20));
    assert_eq!(news_of(&mut state, 0..1, &BOUNDS, now + MS(29)), [News::Look], "one is in flight");
}

/// Clients that come back 3 ms after their answers. Each runs alone on a stream of its own.
#[test]
fn who_completes_a_group_sends_it_beside_another() {
    let mut now = Instant::now();
    let mut state = BatcherState::new(64, &[1, 4], 2);
    let bounds = Bounds { max_delay: MS(1_000), ..BOUNDS };
    for _ in 0..40 {
        send(&mut state, 1, now);
        state.uploaded(1, MS(0));
        done(&mut state, now + MS(10));
        now += MS(13);
    }
    send(&mut state, 1, now);
    let comes = |state: &mut BatcherState, at| news_of(state, 0..1, &bounds, now + MS(at));
    assert_eq!(comes(&mut state, 5), [News::Leave], "a stream is free, and nobody is due");
    send(&mut state, 0, now + MS(5));
    assert_eq!(comes(&mut state, 9), [News::Look], "no stream is free");
    done(&mut state, now + MS(10));
    send(&mut state, 0, now + MS(10));
    done(&mut state, now + MS(12));
    assert_eq!(comes(&mut state, 12), [News::Look], "two were answered, and one of them is due");
    assert_eq!(state.next(&bounds, now + MS(12)), Next::Leave);
}

/// Who waits for a row gets it in turn, high priority first, and nobody who comes later takes it.
#[test]
fn free_rows_are_kept_for_those_who_wait() {
    let mut state = BatcherState::new(2, &[2], 1);
    let rows = [state.claim().unwrap(), state.claim().unwrap()];
    let mut join = |priority| state.wait_in_line(priority, crate::sync::thread::current());
    let [first, second] = [(); 2].map(|()| join(RowPriority::Normal));
    let high = join(RowPriority::High);
    state.unclaim(rows[0]);
    assert!(state.next_asleep().is_some() && state.next_asleep().is_none(), "one row wakes one thread");
    assert_eq!((state.claim(), state.claim_kept(first)), (None, None));
    assert_eq!(state.claim_kept(high), Some(rows[0]));
    state.leave_line(first);
    state.unclaim(rows[1]);
    assert!(state.next_asleep().is_some());
    state.unclaim(rows[0]);
    assert!(state.next_asleep().is_none(), "nobody else waits");
    assert!(state.claim().is_some() && state.claim().is_none(), "the other row is kept");
    assert!(state.claim_kept(second).is_some());
    let waits = state.wait_in_line(RowPriority::Normal, crate::sync::thread::current());
    state.close(Close::Drain, &mut Vec::new());
    assert!(state.next_asleep().is_some(), "who waits is told");
    assert_eq!((state.claim_kept(waits), state.open().is_err()), (None, true));
}
