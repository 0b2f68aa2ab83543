//! Tests with many more clients than rows: every refusal is counted, every accepted row is answered once with its own
//! answer, and every row and credit is free in the end. `tests/simulate.rs` tests how well the device is used
//! meanwhile.

use std::ops::AddAssign;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use super::tests::{all_credits_return, answer, batcher, ring};
use super::*;

const CLIENTS: usize = 256;
/// The number of requests of each client, each of one to three rows.
const REQUESTS: usize = 20;
/// The number of the batcher's rows: far fewer than clients.
const ROWS: usize = 24;
const RESULTS: usize = 64;

/// Counts of the answers to rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told {
    asked: u64,
    answered: u64,
    refused: u64,
    expired: u64,
    cancelled: u64,
}

impl AddAssign for Told {
    fn add_assign(&mut self, other: Self) {
        self.asked += other.asked;
        self.answered += other.answered;
        self.refused += other.refused;
        self.expired += other.expired;
        self.cancelled += other.cancelled;
    }
}

/// Makes one request; in turn they have deadlines, have high priority, and are given up.
fn request(batcher: &Batcher, client: usize, turn: usize) -> Told {
    let (rows, number) = (1 + (client + turn) % 3, (client + 7 * turn) as u8);
    let mut request = batcher.request();
    if turn.is_multiple_of(2) {
        request = request.deadline(Duration::from_micros(100 * (client as u64 % 8)));
    }
    if (client + turn).is_multiple_of(4) {
        request = request.priority(RowPriority::High);
    }
    let mut told = Told { asked: rows as u64, ..Told::default() };
    let tickets = request.submit_rows(&vec![&[number; 8][..]; rows]);
    assert!(batcher.queued() <= ROWS, "{} rows are queued", batcher.queued());
    for ticket in tickets {
        match ticket.and_then(|ticket| if turn % 5 == 3 { Ok(None) } else { answer(ticket).map(Some) }) {
            Ok(Some(output)) => {
                assert_eq!(output.bytes(), [number; 8], "another's answer");
                told.answered += 1;
            }
            Ok(None) => told.cancelled += 1,
            Err(Error::Full { rows: ROWS }) => told.refused += 1,
            Err(Error::Deadline { .. }) => told.expired += 1,
            Err(error) => panic!("{error}"),
        }
    }
    told
}

#[test]
fn a_crowd_of_clients_is_answered_or_refused_and_all_of_it_counted() {
    let (core, held) = ring(RESULTS);
    let batcher = batcher(&core, Duration::from_millis(1)).rows(ROWS).when_full(WhenFull::Reject).build().unwrap();
    // The device gets no batch before all rows are taken.
    let taken = (0..ROWS).map(|_| batcher.row().unwrap()).collect::<Vec<_>>();
    let (start, told) = (Barrier::new(CLIENTS + 1), Mutex::new(Told::default()));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (batcher, start, told) = (&batcher, &start, &told);
            scope.spawn(move || {
                let first = request(batcher, client, 1);
                start.wait();
                assert_eq!(first.refused, first.asked, "no row was free");
                start.wait(); // rows are free
                *lock(told) += first;
                (2..REQUESTS).for_each(|turn| *lock(told) += request(batcher, client, turn));
            });
        }
        start.wait();
        drop(taken);
        held.permit(usize::MAX);
        start.wait();
    });
    let (told, stats) = (*lock(&told), batcher.stats());
    assert_eq!(told.asked, told.answered + told.refused + told.expired + told.cancelled, "{told:?}");
    assert!(told.answered > 0 && told.expired > 0 && told.cancelled > 0, "{told:?}");
    assert_eq!(stats.rejected, told.refused, "{told:?}");
    assert!((told.expired..=told.expired + told.cancelled).contains(&stats.expired), "{told:?}, {stats:?}");
    drop(batcher);
    all_credits_return(&core);
}
