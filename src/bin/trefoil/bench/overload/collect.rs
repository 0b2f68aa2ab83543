//! Threads that take the answers for many clients, each answer when it is there.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::Result;
use trefoil::{Error, RowTicket};

use super::account::Account;
use super::run::{Request, Run};

/// After so long without any news, what is not answered yet counts as unanswered.
const SILENCE: Duration = Duration::from_secs(60);

/// A message to a collector.
pub enum News {
    /// A client made a request, and has a ticket or an error for each row, and the time of the errors.
    Asked(Request, Vec<Result<RowTicket, Error>>, Instant),
    /// The answer to this row of this request has been there since then.
    Answered(u64, usize, Instant),
    /// No request follows.
    Over,
}

pub struct Collector<'a> {
    run: &'a Run<'a>,
    to: mpsc::Sender<News>,
    requests: HashMap<u64, Pending>,
    /// The number of the next request.
    next: u64,
    /// The times at which clients give requests up.
    given_up: BinaryHeap<Reverse<(Instant, u64)>>,
    accounts: Vec<Account>,
}

/// A request that is not over.
struct Pending {
    request: Request,
    /// The tickets of the rows without an answer.
    tickets: Vec<Option<RowTicket>>,
}

/// The waker of a row: it sends the time of the answer.
struct Bell {
    to: mpsc::Sender<News>,
    request: u64,
    row: usize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        let _ = self.to.send(News::Answered(self.request, self.row, Instant::now()));
    }
}

impl<'a> Collector<'a> {
    /// A collector for `clients` clients, to which `to` sends.
    pub fn new(run: &'a Run<'a>, to: mpsc::Sender<News>, clients: usize) -> Self {
        let accounts = vec![Account::default(); clients];
        Self { run, to, requests: HashMap::new(), next: 0, given_up: BinaryHeap::new(), accounts }
    }

    /// Takes answers until all requests are over; returns the clients' accounts.
    pub fn collect(mut self, news: mpsc::Receiver<News>) -> Result<Vec<Account>> {
        let (mut is_over, mut heard) = (false, Instant::now());
        while !(is_over && self.requests.is_empty()) {
            let next = self.given_up.peek().map_or(SILENCE, |next| next.0.0.saturating_duration_since(Instant::now()));
            match news.recv_timeout(next.min(SILENCE)) {
                Ok(message) => {
                    heard = Instant::now();
                    match message {
                        News::Asked(request, tickets, told) => self.asked(request, tickets, told)?,
                        News::Answered(request, row, at) => self.answered(request, row, at)?,
                        News::Over => is_over = true,
                    }
                }
                Err(_) if is_over && heard.elapsed() > SILENCE => break,
                Err(_) => {}
            }
            self.give_up(Instant::now());
        }
        let numbers: Vec<u64> = self.requests.keys().copied().collect();
        for number in numbers {
            self.end(number, |request, left| request.counts.unanswered += left);
        }
        Ok(self.accounts)
    }

    fn asked(&mut self, request: Request, rows: Vec<Result<RowTicket, Error>>, told: Instant) -> Result<()> {
        let number = self.next;
        self.next += 1;
        if let Some(at) = request.given_up() {
            self.given_up.push(Reverse((at, number)));
        }
        let mut pending = Pending { request, tickets: Vec::with_capacity(rows.len()) };
        for (row, ticket) in rows.into_iter().enumerate() {
            pending.tickets.push(match ticket {
                Ok(ticket) => Some(ticket),
                Err(error) => {
                    pending.request.settle(self.run, row, Err(error), told)?;
                    None
                }
            });
        }
        let rows = pending.tickets.len();
        self.requests.insert(number, pending);
        // An answer that is there already counts from now on.
        (0..rows).try_for_each(|row| self.answered(number, row, Instant::now()))?;
        self.end_if_over(number);
        Ok(())
    }

    /// Takes the answer to a row, if it is there, and listens for it otherwise.
    fn answered(&mut self, number: u64, row: usize, at: Instant) -> Result<()> {
        let Some(pending) = self.requests.get_mut(&number) else { return Ok(()) }; // given up
        let Some(ticket) = &mut pending.tickets[row] else { return Ok(()) };
        let bell = Waker::from(Arc::new(Bell { to: self.to.clone(), request: number, row }));
        if let Poll::Ready(answer) = Pin::new(ticket).poll(&mut Context::from_waker(&bell)) {
            pending.tickets[row] = None;
            pending.request.settle(self.run, row, answer, at)?;
            self.end_if_over(number);
        }
        Ok(())
    }

    /// Drops the tickets of clients that give up by now.
    fn give_up(&mut self, now: Instant) {
        while let Some(&Reverse((at, number))) = self.given_up.peek()
            && at <= now
        {
            self.given_up.pop();
            self.end(number, |request, left| request.counts.given_up += left);
        }
    }

    fn end_if_over(&mut self, number: u64) {
        if self.requests.get(&number).is_some_and(|pending| pending.tickets.iter().all(Option::is_none)) {
            self.end(number, |_, _| {});
        }
    }

    /// Ends a request, if it is not over; `left` gets the number of rows without an answer.
    fn end(&mut self, number: u64, left: impl FnOnce(&mut Request, u64)) {
        let Some(Pending { mut request, tickets }) = self.requests.remove(&number) else { return };
        left(&mut request, tickets.iter().flatten().count() as u64);
        self.accounts[request.client].add(request.counts);
    }
}
