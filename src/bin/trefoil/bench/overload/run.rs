//! A run of clients on a batcher: in a closed loop, each waiting for its answers, or in an open loop.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use trefoil::{Batcher, Error, RowOutput, RowPriority, RowTicket};

use super::account::{Account, Counts};
use super::ask::{Ask, Client, Mix};
use super::collect::{Collector, News};
use crate::bench::latencies::Latencies;
use crate::bench::load::on_threads;
use crate::bench::sources::Images;
use crate::stop;
use crate::threads::{join, spawn};

/// What all threads of a run share.
pub struct Run<'a> {
    pub images: &'a Images,
    pub batcher: &'a Batcher,
    pub mix: Mix,
    pub seed: u64,
    pub start: Instant,
    /// The time within which answers count for the goodput. Requests are made until its end.
    pub counts: Range<Instant>,
    pub gauges: Gauges,
}

/// What is measured beside the counts.
pub struct Gauges {
    /// From the request to the answer: normal and high priority.
    pub latencies: [Latencies; 2],
    /// From the deadline to an answer after it.
    pub late: Latencies,
    /// From the deadline to the error that tells of it.
    pub told: Latencies,
    /// From the time when a request was due to the request.
    pub sent: Latencies,
    /// The most rows that were queued.
    pub queued: AtomicUsize,
    /// The first wrong answer.
    pub wrong: Mutex<Option<String>>,
}

impl Gauges {
    pub fn new() -> Self {
        let latencies = || Latencies::new();
        Self {
            latencies: [latencies(), latencies()],
            late: latencies(),
            told: latencies(),
            sent: latencies(),
            queued: AtomicUsize::new(0),
            wrong: Mutex::new(None),
        }
    }
}

/// A request that was made.
pub struct Request {
    pub client: usize,
    pub counts: Counts,
    ask: Ask,
    at: Instant,
}

impl Request {
    fn new(client: usize, ask: Ask, at: Instant) -> Self {
        let counts = Counts { asked: ask.rows as u64, ..Counts::default() };
        Self { client, counts, ask, at }
    }

    /// When its client gives it up.
    pub fn given_up(&self) -> Option<Instant> {
        self.ask.given_up.map(|after| self.at + after)
    }

    /// Counts the answer to one of its rows, which came at `at`. An error that is not meant for the row alone ends the
    /// run.
    pub fn settle(&mut self, run: &Run, row: usize, answer: Result<RowOutput, Error>, at: Instant) -> Result<()> {
        let (counts, gauges) = (&mut self.counts, &run.gauges);
        let deadline = self.ask.deadline.map(|after| self.at + after);
        match answer {
            Ok(output) => {
                counts.answered += 1;
                counts.counted += u64::from(run.counts.contains(&at));
                gauges.latencies[usize::from(self.ask.is_high)].add(at - self.at);
                if let Some(late) = deadline.and_then(|deadline| at.checked_duration_since(deadline)) {
                    counts.late += 1;
                    gauges.late.add(late);
                }
                if let Err(error) = run.images.check(self.ask.image + row, output.bytes()) {
                    counts.wrong += 1;
                    let mut first = gauges.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert_with(|| error.to_string());
                }
            }
            Err(Error::Full { .. }) => counts.refused += 1,
            Err(Error::Deadline { .. }) => {
                counts.expired += 1;
                deadline.into_iter().for_each(|deadline| gauges.told.add(at.saturating_duration_since(deadline)));
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Run<'_> {
    /// Runs clients that wait for their answers before they ask again, each on a thread.
    pub fn closed_loop(&self, clients: usize) -> Result<Vec<Account>> {
        let accounts = Mutex::new(Vec::new());
        on_threads(clients, |number| {
            let mut client = Client::new(self.seed, number, 1.0);
            let mut account = Account::default();
            while self.goes_on() {
                let mut request = Request::new(number, client.ask(&self.mix), Instant::now());
                for (row, ticket) in self.submit(&request.ask).into_iter().enumerate() {
                    match ticket.and_then(|ticket| wait_until(ticket, request.given_up())).transpose() {
                        Some(answer) => request.settle(self, row, answer, Instant::now())?,
                        None => request.counts.given_up += 1,
                    }
                }
                account.add(request.counts);
            }
            accounts.lock().unwrap_or_else(PoisonError::into_inner).push(account);
            Ok(())
        })?;
        Ok(accounts.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs clients that ask whether or not they are answered, at random times, `rate` rows a second in all. Each of
    /// the senders acts for some of the clients, and each of the collectors takes answers for some.
    pub fn open_loop(&self, clients: usize, rate: f64, senders: usize, collectors: usize) -> Result<Vec<Account>> {
        let (to, news): (Vec<_>, Vec<_>) = (0..collectors).map(|_| mpsc::channel()).unzip();
        let rate = rate / self.mix.mean_rows() / clients as f64;
        thread::scope(|scope| {
            let start = |(number, (news, to)): (usize, (mpsc::Receiver<News>, &mpsc::Sender<News>))| {
                let collector = Collector::new(self, to.clone(), clients);
                spawn(scope, format!("trefoil-collect-{number}"), move || collector.collect(news))
            };
            let started: Vec<_> = news.into_iter().zip(&to).enumerate().map(start).collect();
            let sent = on_threads(senders, |sender| {
                let clients = (sender..clients).step_by(senders).map(|number| Client::new(self.seed, number, rate));
                self.send(clients.collect(), &to)
            });
            to.iter().for_each(|to| drop(to.send(News::Over)));
            let ended: Vec<_> = started.into_iter().map(|thread| thread.and_then(join)).collect();
            let mut accounts = vec![Account::default(); clients];
            for collected in ended {
                accounts.iter_mut().zip(collected?).for_each(|(account, more)| *account += more);
            }
            sent.map(|()| accounts)
        })
    }

    /// Makes the requests of some clients, each when it is due, or as soon as possible after that.
    fn send(&self, mut clients: Vec<Client>, to: &[mpsc::Sender<News>]) -> Result<()> {
        let next = |client: &mut Client| self.start + Duration::from_secs_f64(client.next_due());
        let mut due: BinaryHeap<_> =
            clients.iter_mut().enumerate().map(|(index, client)| Reverse((next(client), index))).collect();
        while let Some(Reverse((at, index))) = due.pop()
            && at < self.counts.end
            && !stop::requested()
        {
            thread::sleep(at.saturating_duration_since(Instant::now()));
            let client = &mut clients[index];
            let (ask, now) = (client.ask(&self.mix), Instant::now());
            let mut request = Request::new(client.number, ask, now);
            let rows = if now < self.counts.end {
                self.gauges.sent.add(now - at);
                self.submit(&ask)
            } else {
                request.counts = Counts { held_back: ask.rows as u64, ..Counts::default() };
                Vec::new()
            };
            due.push(Reverse((next(client), index)));
            if to[client.number % to.len()].send(News::Asked(request, rows, Instant::now())).is_err() {
                break; // the collector's own error counts
            }
        }
        Ok(())
    }

    fn goes_on(&self) -> bool {
        Instant::now() < self.counts.end && !stop::requested()
    }

    /// Submits the rows of a request.
    fn submit(&self, ask: &Ask) -> Vec<Result<RowTicket, Error>> {
        let mut request = self.batcher.request();
        if let Some(deadline) = ask.deadline {
            request = request.deadline(deadline);
        }
        if ask.is_high {
            request = request.priority(RowPriority::High);
        }
        let rows: Vec<&[u8]> = (0..ask.rows).map(|row| self.images.pixels(ask.image + row)).collect();
        let tickets = request.submit_rows(&rows);
        self.gauges.queued.fetch_max(self.batcher.queued(), Ordering::Relaxed);
        tickets
    }
}

/// Waits for an answer; `None` if there is none by the time at which the client gives up.
fn wait_until(ticket: RowTicket, given_up: Option<Instant>) -> Result<Option<RowOutput>, Error> {
    match given_up {
        None => ticket.wait().map(Some),
        Some(at) => Ok(ticket.wait_for(at.saturating_duration_since(Instant::now()))?.ok()),
    }
}
