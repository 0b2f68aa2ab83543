//! Clients that ask for twice what the device can do: the queue is bounded, every refusal is counted, what is accepted is
//! answered once, and the device does not do less for it.

use std::thread;
use std::time::{Duration, Instant};

use super::tests::{all_credits_return, batcher, ring};
use super::*;

/// What a batch takes on the device, so long that a loaded machine adds little to it.
const BATCH: Duration = Duration::from_millis(20);
const CAPACITY: usize = 4;
const CLIENTS: usize = 4;
const ROWS: usize = 24;
/// More than clients leave unread while they sleep.
const RESULTS: usize = 256;

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// What became of a client's requests.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    asked: u64,
    answered: u64,
    refused: u64,
    expired: u64,
    cancelled: u64,
}

impl Told {
    fn plus(self, other: Self) -> Self {
        Self {
            asked: self.asked + other.asked,
            answered: self.answered + other.answered,
            refused: self.refused + other.refused,
            expired: self.expired + other.expired,
            cancelled: self.cancelled + other.cancelled,
        }
    }

    fn count(&mut self, answer: Result<RowOutput, Error>, number: u8) {
        match answer {
            Ok(output) => {
                assert_eq!(output.bytes(), [number; 8], "another's answer");
                self.answered += 1;
            }
            Err(Error::Deadline { .. }) => self.expired += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Asks for groups of one to three rows at random times, of any deadline and priority, and gives some of them up.
fn client(batcher: &Batcher, seed: u64, each: Duration, until: Instant) -> Told {
    let (mut random, mut told) = (Random(seed), Told::default());
    let (mut tickets, mut next) = (Vec::new(), Instant::now());
    while next < until {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        let (rows, number) = (1 + random.below(3) as usize, random.below(256) as u8);
        next += each.mul_f64(rows as f64 * (0.5 + random.below(1000) as f64 / 1000.0));
        let mut request = batcher.request();
        if random.below(2) == 0 {
            request = request.deadline(BATCH * (1 + random.below(10) as u32));
        }
        if random.below(4) == 0 {
            request = request.priority(RowPriority::High);
        }
        told.asked += rows as u64;
        for ticket in request.submit_rows(&vec![&[number; 8][..]; rows]) {
            match ticket {
                Err(Error::Full { rows: ROWS }) => told.refused += 1,
                Err(error) => panic!("{error}"),
                Ok(_) if random.below(10) == 0 => told.cancelled += 1,
                Ok(ticket) => tickets.push((ticket, number)),
            }
        }
        assert!(batcher.queued() <= ROWS, "{} rows are queued", batcher.queued());
        for (ticket, number) in tickets.extract_if(.., |(ticket, _): &mut (RowTicket, u8)| ticket.is_ready()) {
            told.count(ticket.wait(), number);
        }
    }
    for (ticket, number) in tickets {
        told.count(super::tests::answer(ticket), number);
    }
    told
}

/// Lets clients ask at a rate for a while; what became of it, and the rows that were answered for each batch's time.
fn load(rows_a_batch: f64, lasts: Duration) -> (Told, f64) {
    let (core, held) = ring(RESULTS);
    held.takes(BATCH);
    let batcher = batcher(&core, BATCH).rows(ROWS).in_flight(2).when_full(WhenFull::Reject).build().unwrap();
    let each = BATCH.mul_f64(CLIENTS as f64 / rows_a_batch);
    let begin = Instant::now();
    let told = thread::scope(|scope| {
        let batcher = &batcher;
        let clients = (0..CLIENTS as u64).map(|seed| scope.spawn(move || client(batcher, seed, each, begin + lasts)));
        let clients: Vec<_> = clients.collect();
        clients.into_iter().map(|client| client.join().unwrap()).fold(Told::default(), Told::plus)
    });
    let batches = begin.elapsed().as_secs_f64() / BATCH.as_secs_f64();
    let stats = batcher.stats();
    assert_eq!(told.asked, told.answered + told.refused + told.expired + told.cancelled, "{told:?}");
    assert_eq!(stats.rejected, told.refused, "{told:?}");
    assert!((told.expired..=told.expired + told.cancelled).contains(&stats.expired), "{told:?}, {stats:?}");
    drop(batcher);
    all_credits_return(&core);
    (told, told.answered as f64 / batches)
}

/// At the rate that the device can do, and at twice that.
fn compare(lasts: Duration) {
    let (_, most) = load(CAPACITY as f64, lasts);
    let (told, goodput) = load(2.0 * CAPACITY as f64, lasts);
    println!("{most:.3} rows a batch, at twice the rate {goodput:.3}: {told:?}");
    assert!(told.refused + told.expired > told.asked / 4, "no overload: {told:?}");
    assert!(goodput >= 0.95 * most, "{goodput:.3} rows a batch instead of {most:.3}");
}

#[test]
fn twice_the_rate_is_answered_as_fast_or_refused() {
    compare(Duration::from_secs(2));
}

/// The same for a minute each.
#[test]
#[ignore = "takes two minutes"]
fn twice_the_rate_for_a_minute() {
    compare(Duration::from_secs(60));
}
