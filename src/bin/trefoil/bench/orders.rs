//! Orders in which threads may share an engine, and threads that follow one of them.

use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use serde::Serialize;
use trefoil::{Batch, Engine, InputFormat, Output, Ticket};

use super::load::{on_threads, steady};
use super::sources::Sources;
use crate::stop;

/// The part of a batch's work that is done under the lock that all threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IssueOrder {
    /// Filling is outside; submitting, waiting and reading are under the lock.
    FillOutside,
    /// Filling and reading are outside; submitting and waiting are under the lock.
    FillAndReadOutside,
    /// Everything is under the lock.
    AllInside,
    /// Only the submission is under the lock.
    SubmitInside,
    /// There is no lock; each thread waits at once for the batch that it submitted.
    NoLock,
    /// There is no lock; each thread fills its next batch while its last one is in flight.
    Recommended,
}

const ORDERS: [IssueOrder; 6] = [
    IssueOrder::FillOutside,
    IssueOrder::FillAndReadOutside,
    IssueOrder::AllInside,
    IssueOrder::SubmitInside,
    IssueOrder::NoLock,
    IssueOrder::Recommended,
];

/// Where the pixels of a batch are when a thread begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// In the thread's own memory, from which they are copied.
    Pageable,
    /// In the acquired batch, as if a camera or decoder had written them there.
    PageLocked,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Case {
    pub format: InputFormat,
    pub start: Start,
    pub order: IssueOrder,
}

/// The rows of the table: all orders from ordinary memory, then the recommended order with pixels in other places.
pub fn cases() -> Vec<Case> {
    let forum = ORDERS.map(|order| Case { format: InputFormat::F32Nchw, start: Start::Pageable, order });
    let more = [
        (InputFormat::F32Nchw, Start::PageLocked),
        (InputFormat::U8Nhwc, Start::Pageable),
        (InputFormat::U8Nhwc, Start::PageLocked),
    ];
    let more = more.map(|(format, start)| Case { format, start, order: IssueOrder::Recommended });
    forum.into_iter().chain(more).collect()
}

impl IssueOrder {
    /// A short name; a bar marks where the lock is taken or released.
    pub fn name(self) -> &'static str {
        match self {
            Self::FillOutside => "1 fill | lock: submit, wait, read",
            Self::FillAndReadOutside => "2 fill | lock: submit, wait | read",
            Self::AllInside => "3 lock: fill, submit, wait, read",
            Self::SubmitInside => "4 fill | lock: submit | wait, read",
            Self::NoLock => "5 no lock: fill, submit, wait, read",
            Self::Recommended => "the ring as recommended, one ahead",
        }
    }
}

impl Start {
    /// The name in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pageable => "pageable",
            Self::PageLocked => "page-locked",
        }
    }
}

impl Case {
    /// The steps that a figure includes.
    pub fn includes(self) -> String {
        let copied = match self.start {
            Start::Pageable => "copying pixels from ordinary into page-locked memory, ",
            Start::PageLocked => "",
        };
        let converted = match self.format {
            InputFormat::U8Nhwc => "normalisation",
            _ => "conversion of f32 NCHW to the network's type and layout",
        };
        format!("{copied}upload, {converted}, network, probabilities, download, comparing the answers")
    }
}

/// Threads that share an engine in one order.
pub struct Turns<'a> {
    pub engine: &'a Engine,
    pub sources: &'a Sources,
    pub case: &'a Case,
    pub batch: usize,
    pub threads: usize,
    pub seconds: f64,
}

impl Turns<'_> {
    /// Images a second in the steady state; every answer is compared.
    pub fn images_per_second(&self) -> Result<f64> {
        let (lock, answered) = (Mutex::new(()), Mutex::new(Vec::new()));
        let start = Instant::now();
        let read = |number: usize, output: &Output| -> Result<()> {
            answered.lock().map_err(|_| anyhow!("another thread panicked"))?.push(start.elapsed().as_secs_f64());
            self.sources.check_all(number, output)
        };
        on_threads(self.threads, |thread| {
            let mut last: Option<(usize, Ticket)> = None;
            while start.elapsed().as_secs_f64() < self.seconds && !stop::requested() {
                last = self.turn(thread, &lock, last, &read)?;
            }
            last.map_or(Ok(()), |(number, ticket)| read(number, &ticket.wait()?))
        })?;
        let answered = answered.into_inner().map_err(|_| anyhow!("a thread panicked"))?;
        let under_way = (2 * self.threads + self.engine.slots()).min(answered.len().saturating_sub(2) / 2);
        Ok(self.batch as f64 / steady(answered, under_way)?)
    }

    /// Runs one batch of one thread. Returns a ticket that was left unanswered, with the number of its batch.
    fn turn(
        &self,
        thread: usize,
        lock: &Mutex<()>,
        last: Option<(usize, Ticket)>,
        read: &impl Fn(usize, &Output) -> Result<()>,
    ) -> Result<Option<(usize, Ticket)>> {
        let locked = || -> Result<MutexGuard<'_, ()>> { lock.lock().map_err(|_| anyhow!("another thread panicked")) };
        let outside = if self.case.order == IssueOrder::AllInside { Some(locked()?) } else { None };
        let (number, batch) = self.filled(thread)?;
        match self.case.order {
            IssueOrder::FillOutside => {
                let _held = locked()?;
                read(number, &batch.submit(self.batch)?.wait()?)?;
            }
            IssueOrder::FillAndReadOutside => {
                let held = locked()?;
                let output = batch.submit(self.batch)?.wait()?;
                drop(held);
                read(number, &output)?;
            }
            IssueOrder::AllInside => {
                read(number, &batch.submit(self.batch)?.wait()?)?;
                drop(outside);
                thread::yield_now(); // or the thread that has the lock would take it again and again
            }
            IssueOrder::SubmitInside => {
                let held = locked()?;
                let ticket = batch.submit(self.batch)?;
                drop(held);
                read(number, &ticket.wait()?)?;
            }
            IssueOrder::NoLock => read(number, &batch.submit(self.batch)?.wait()?)?,
            IssueOrder::Recommended => {
                let ticket = batch.submit(self.batch)?;
                if let Some((number, before)) = last {
                    read(number, &before.wait()?)?;
                }
                return Ok(Some((number, ticket)));
            }
        }
        Ok(None)
    }

    /// A batch with pixels in it, and its number: the thread's own pixels are copied, or those already there are used.
    fn filled(&self, thread: usize) -> Result<(usize, Batch)> {
        let mut batch = self.engine.acquire()?;
        if self.case.start == Start::PageLocked {
            return Ok((self.sources.number(&mut batch)?, batch));
        }
        self.sources.fill(&mut batch, thread);
        Ok((thread, batch))
    }
}
