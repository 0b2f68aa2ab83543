//! A host thread that plays a batcher's clients and its two threads, with the state machine of the real batcher.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::arrivals::{Arrivals, Request};
use super::driver::{Answer, Log, is_stamped, stamp};
use super::random::Random;
use super::{Arrival, SimBatcher, SimSpec};
use crate::device::sim::{Picos, Sim, picos};
use crate::error::Error;
use crate::ring::{Books, Bounds, Core, News, Next, Queued, RowPriority, Ticket, Wake};

/// A client that fills a row.
struct Client {
    request: Request,
    place: usize,
    /// The time at which the row is filled.
    until: Picos,
}

/// A row that is committed and not answered.
struct Waiting {
    request: Request,
    entry: usize,
}

/// A batch on the ring.
struct Flight {
    ticket: Ticket,
    rows: Vec<Queued>,
    staging: usize,
    sent: Picos,
    /// Whether its upload is measured and not known to be done.
    measures_upload: bool,
    /// The time at which the delivering thread learns of the result.
    heard: Option<Picos>,
}

struct Player<'a> {
    sim: &'a Sim,
    core: &'a Arc<Core>,
    arrivals: Arrivals<'a>,
    /// Whether a client asks for its next row when it has the answer to the previous one.
    is_closed: bool,
    books: Books,
    bounds: Bounds,
    rejects: bool,
    deadline: Option<Duration>,
    fill: Picos,
    wake: Picos,
    /// The mean of the random time that is added to each fill and each wake-up.
    jitter: Picos,
    random: Random,
    /// The time in the books that stands for virtual time 0.
    start: Instant,
    /// The times at which idle clients of a closed loop ask for their next rows.
    idle: Vec<Picos>,
    /// Requests that found no free row.
    blocked: VecDeque<Request>,
    filling: Vec<Client>,
    waiting: Vec<Waiting>,
    flights: VecDeque<Flight>,
    /// The staging of the last batch sent.
    last_upload: Option<usize>,
    /// The time at which the batching thread looks at the queue because of a change.
    looks: Option<Picos>,
    /// The time at which it should look at the queue without a change, and the time at which it wakes for that.
    timer: Option<[Picos; 2]>,
    log: Log,
}

/// The bytes of host memory that [`run`] takes for each row of the largest batch: those of the batcher's rows in the
/// books, and of the clients that have them.
pub(super) fn bytes_per_row(batcher: &SimBatcher) -> u64 {
    const CLIENT_BYTES: usize = size_of::<Client>() + size_of::<Waiting>();
    const PLACE_BYTES: usize = 2 * size_of::<Queued>() + 160; // two queues; the place, the ticket's entry, a thread
    (batches_of_rows(batcher) as u64).saturating_mul((CLIENT_BYTES + PLACE_BYTES) as u64)
}

/// The number of largest batches for which the batcher has rows.
fn batches_of_rows(batcher: &SimBatcher) -> usize {
    batcher.in_flight.saturating_add(4)
}

/// Plays the whole schedule.
pub(super) fn run(spec: &SimSpec, batcher: &SimBatcher, sim: &Sim, core: &Arc<Core>) -> Result<Log, Error> {
    let rows = batches_of_rows(batcher).saturating_mul(core.capacity());
    let max_delay = Duration::from_secs_f64(batcher.max_delay_us * 1e-6);
    let is_closed = spec.arrival == Arrival::Closed;
    let mut player = Player {
        sim,
        core,
        arrivals: Arrivals::new(spec),
        is_closed,
        books: Books::new(rows, core.batch_sizes(), core.compute_streams()),
        bounds: Bounds { full: core.capacity(), in_flight: batcher.in_flight, max_delay },
        rejects: batcher.rejects,
        deadline: Duration::try_from_secs_f64(batcher.deadline_us * 1e-6).ok(),
        fill: picos(spec.fill_us * 1e-6),
        wake: picos(batcher.wake_us * 1e-6),
        jitter: picos(batcher.jitter_us * 1e-6),
        random: Random::new(batcher.seed),
        start: Instant::now(),
        idle: vec![0; if is_closed { spec.producers } else { 0 }],
        blocked: VecDeque::new(),
        filling: Vec::new(),
        waiting: Vec::new(),
        flights: VecDeque::new(),
        last_upload: None,
        looks: None,
        timer: None,
        log: Log::default(),
    };
    loop {
        let freed = player.turn()?;
        if player.log.told() == spec.batches {
            break;
        }
        player.advance(freed)?;
    }
    player.log.credits = core.credits()?;
    Ok(player.log)
}

impl Player<'_> {
    /// Does what happens now, once. What follows from it at the same instant is left to the next turn. Returns whether
    /// rows came free.
    fn turn(&mut self) -> Result<bool, Error> {
        self.ask();
        self.commit();
        let freed = self.hear()?;
        let now = self.sim.now();
        let overslept = self.timer.filter(|&[_, wakes]| wakes <= now);
        if let Some([at, wakes]) = overslept {
            self.books.overslept(Duration::from_nanos((wakes - at) / 1_000));
        }
        if !self.waits_for_upload() && (overslept.is_some() || self.looks.is_some_and(|at| at <= now)) {
            self.look()?;
        }
        Ok(freed)
    }

    /// Whether the batching thread waits for the upload of the last batch; then it looks at nothing else.
    fn waits_for_upload(&self) -> bool {
        self.flights.back().is_some_and(|last| last.measures_upload)
    }

    fn instant(&self) -> Instant {
        self.instant_of(self.sim.now())
    }

    fn instant_of(&self, time: Picos) -> Instant {
        self.start + Duration::from_nanos(time / 1_000)
    }

    /// The virtual time of an instant, exactly: a time that is rounded down would be before the instant.
    fn picos_of(&self, instant: Instant) -> Picos {
        let nanos = instant.duration_since(self.start).as_nanos();
        Picos::try_from(nanos.saturating_mul(1_000)).unwrap_or(Picos::MAX)
    }

    /// The time until which a request's row has to be uploaded, if there is a deadline.
    fn deadline(&self, request: Request) -> Option<Instant> {
        self.deadline.and_then(|deadline| self.instant_of(request.asked).checked_add(deadline))
    }

    /// A time with random jitter added.
    fn late(&mut self, takes: Picos) -> Picos {
        takes.saturating_add(self.random.picos(self.jitter))
    }

    /// Clients with something to ask for claim a row and begin to fill it.
    fn ask(&mut self) {
        let now = self.sim.now();
        if self.is_closed {
            let mut idle = std::mem::take(&mut self.idle);
            idle.retain(|&at| {
                let asks = (at <= now).then(|| self.arrivals.take(now)).flatten();
                self.blocked.extend(asks.map(|request| Request { asked: at, ..request }));
                asks.is_none()
            });
            self.idle = idle;
        } else {
            self.blocked.extend(std::iter::from_fn(|| self.arrivals.take(now)));
        }
        while let Some(&request) = self.blocked.front() {
            if self.deadline(request).is_some_and(|deadline| deadline <= self.instant()) {
                self.blocked.pop_front();
                self.expired(now);
                continue;
            }
            let Some(place) = self.books.claim() else { break };
            self.blocked.pop_front();
            let until = now + self.late(self.fill);
            self.filling.push(Client { request, place, until });
        }
        if self.rejects {
            self.log.refused += self.blocked.drain(..).len();
        }
    }

    /// Counts a row that passed its deadline; its client learns of this at `at`.
    fn expired(&mut self, at: Picos) {
        self.log.expired += 1;
        self.idle.extend(self.is_closed.then_some(at));
    }

    /// Commits the rows that are filled.
    fn commit(&mut self) {
        let now = self.sim.now();
        let filled = self.filling.extract_if(.., |client| client.until <= now).collect::<Vec<_>>();
        for Client { request, place, .. } in filled {
            let (before, deadline) = (self.books.queued(), self.deadline(request));
            let entry = self.books.commit(place, RowPriority::Normal, deadline, self.instant());
            self.waiting.push(Waiting { request, entry });
            match self.books.news(before, deadline.is_some(), &self.bounds, self.instant()) {
                News::Nothing => {}
                News::Look => self.wake_up(),
                News::Leave => self.looks = Some(now), // no thread has to wake
            }
        }
    }

    /// Wakes the batching thread for a change of the queue.
    fn wake_up(&mut self) {
        let at = self.sim.now() + self.late(self.wake);
        self.looks = Some(self.looks.map_or(at, |looks| looks.min(at)));
    }

    /// Does the work of the batching thread when it is awake.
    fn look(&mut self) -> Result<(), Error> {
        (self.looks, self.timer) = (None, None);
        loop {
            if self.books.expire(self.instant(), &mut Vec::new()) {
                self.tell()?;
                self.ask();
            }
            match self.books.next(&self.bounds, self.instant()) {
                Next::Sleep => return Ok(()),
                Next::LookAt(at) => {
                    let at = self.picos_of(at);
                    self.timer = Some([at, at.saturating_add(self.late(self.wake))]);
                    return Ok(());
                }
                Next::Leave if !self.send()? || self.waits_for_upload() => return Ok(()),
                Next::Leave => {}
            }
        }
    }

    /// Submits a batch; returns whether the ring had credits for it.
    fn send(&mut self) -> Result<bool, Error> {
        let mut batch = match self.core.acquire(Duration::ZERO) {
            Ok(batch) => batch,
            Err(Error::Timeout { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let rows = self.books.pick(&self.bounds, self.instant());
        let told = self.books.sent(&rows, self.instant());
        let staging = batch.staging();
        let last = self.last_upload.replace(staging);
        for (index, row) in rows.iter().enumerate() {
            stamp(batch.row_mut(index), row.entry);
        }
        let measures_upload = told.is_measured && self.core.would_upload_at_once(last);
        batch.compute_in_turn(told.in_turn);
        let ticket = batch.submit(rows.len())?;
        self.log.submitted.push(rows.len());
        let sent = self.sim.now();
        self.flights.push_back(Flight { ticket, rows, staging, sent, measures_upload, heard: None });
        Ok(true)
    }

    /// Tells the batcher's threads about the device: the end of an upload, and results. Returns whether rows came free.
    fn hear(&mut self) -> Result<bool, Error> {
        let now = self.sim.now();
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            if flight.measures_upload && self.core.is_uploaded(flight.staging)? {
                flight.measures_upload = false;
                let wakes = now + self.late(self.wake);
                self.looks = Some(wakes);
                self.books.uploaded(flight.rows.len(), Duration::from_nanos((wakes - flight.sent) / 1_000));
            }
        }
        for (index, flight) in flights.iter_mut().enumerate() {
            if flight.heard.is_none() && flight.ticket.is_ready()? {
                let at = self.instant();
                flight.heard = Some(match self.books.looks_out(at).filter(|_| index == 0) {
                    Some([from, until]) if (from..until).contains(&at) => now,
                    Some([from, _]) if at < from => {
                        self.books.was_early();
                        now + (from - at).as_nanos() as Picos * 1_000 + self.late(self.wake)
                    }
                    _ => now + self.late(self.wake),
                });
            }
        }
        self.flights = flights;
        let mut freed = false;
        while self.flights.front().is_some_and(|flight| flight.heard.is_some_and(|heard| heard <= now)) {
            let Some(flight) = self.flights.pop_front() else { break };
            self.deliver(flight)?;
            self.wake_up();
            freed = true;
        }
        Ok(freed)
    }

    /// Answers the clients of a batch.
    fn deliver(&mut self, Flight { ticket, rows, .. }: Flight) -> Result<(), Error> {
        let output = Arc::new(ticket.wait()?);
        self.books.deliver(rows, &output, self.instant(), &mut Vec::new());
        drop(output);
        self.tell()
    }

    /// Gives clients the answers to their rows.
    fn tell(&mut self) -> Result<(), Error> {
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut wrong = None;
        let mut woken: Vec<Picos> = Vec::new();
        waiting.retain(|client| {
            if !self.books.is_done(client.entry) {
                return true;
            }
            // A client that has its answer wakes two others that have theirs.
            let waker = woken.len().checked_sub(1).map_or(self.sim.now(), |others| woken[others / 2]);
            let at = waker + self.late(self.wake);
            woken.push(at);
            match self.books.take(client.entry, Wake::Nobody).0 {
                Some(Ok(output)) if is_stamped(output.bytes(), client.entry) => {
                    self.log.answers.push(Answer { at, latency: at - client.request.asked, rows: 1 });
                    self.idle.extend(self.is_closed.then_some(at));
                }
                Some(Err(Error::Deadline { .. })) => self.expired(at),
                _ => wrong = wrong.or(Some(client.request.number)),
            }
            false
        });
        self.waiting = waiting;
        match wrong {
            Some(number) => Err(Error::Internal { what: format!("row {number} was answered with another's") }),
            None => Ok(()),
        }
    }

    /// Moves the time to the next event. The time stays where it is if something else happens now: a client asks again, a
    /// row is filled, the device takes a step without a duration.
    fn advance(&mut self, freed: bool) -> Result<(), Error> {
        let now = self.sim.now();
        let arrival = match self.is_closed {
            true => self.idle.iter().copied().min().filter(|_| self.arrivals.is_there(now)),
            false => self.arrivals.next(now),
        };
        let claims = (freed && !self.blocked.is_empty()).then_some(now);
        let filled = self.filling.iter().map(|client| client.until).min();
        let heard = self.flights.front().and_then(|flight| flight.heard);
        let timer = self.timer.map(|[_, wakes]| wakes);
        let looks = self.looks.into_iter().chain(timer).min().filter(|_| !self.waits_for_upload());
        let next = [arrival, claims, filled, heard, looks, self.sim.next_step()];
        let Some(next) = next.into_iter().flatten().min() else {
            return Err(Error::Internal { what: format!("deadlock at {now} ps: nothing can happen") });
        };
        self.sim.advance_to(next.max(now));
        Ok(())
    }
}
