//! The threads of a block: each runs up to where it waits; those whose wait is over then go on.

use super::thread::{State, Thread};
use super::{Kind, Problem, Shared, warp};
use crate::ptx::program::{Barrier, Entry, Op};

const WARP: usize = 32;

pub struct Block<'p> {
    shared: Shared<'p>,
    function: usize,
    arguments: &'p [u8],
    threads: Vec<Thread>,
}

impl<'p> Block<'p> {
    pub fn new(shared: Shared<'p>, entry: &Entry, arguments: &'p [u8]) -> Self {
        let count: u32 = shared.grid.threads.iter().product();
        let threads = (0..count).map(|_| Thread::default()).collect();
        Self { shared, function: entry.function, arguments, threads }
    }

    pub fn run(&mut self, place: [u32; 3]) -> Result<(), Problem> {
        self.shared.block = place;
        self.shared.memory.forget();
        let [across, down, _] = self.shared.grid.threads;
        for (number, thread) in (0..).zip(&mut self.threads) {
            let place = [number % across, number / across % down, number / across / down];
            thread.start(self.shared.program, self.function, self.arguments, number, place);
        }
        loop {
            for thread in &mut self.threads {
                thread.run(&mut self.shared)?;
            }
            let met = self.meet_in_warps()? | self.meet_at_barriers();
            match self.threads.iter().find(|thread| thread.state != State::Ended) {
                None => return Ok(()),
                Some(_) if met => {}
                Some(thread) => return Err(waits_for_ever(thread)),
            }
        }
    }

    /// Resumes lanes whose warp operation all members have reached; returns whether there were any.
    fn meet_in_warps(&mut self) -> Result<bool, Problem> {
        let mut met = false;
        for lanes in self.threads.chunks_mut(WARP) {
            met |= warp::meet(self.shared.program, lanes)?;
        }
        Ok(met)
    }

    /// Resumes threads at barriers that enough threads have reached; returns whether there were any.
    fn meet_at_barriers(&mut self) -> bool {
        let alive = self.threads.iter().filter(|thread| thread.state != State::Ended).count();
        let mut met = false;
        for number in 0..16 {
            let is_there = |thread: &Thread| {
                self.barrier_of(thread).is_some_and(|barrier| thread.get(barrier.number) & 15 == number)
            };
            let waiting: Vec<usize> = (0..self.threads.len()).filter(|&i| is_there(&self.threads[i])).collect();
            let Some(first) = waiting.first().map(|&index| &self.threads[index]) else { continue };
            let threads = self.barrier_of(first).and_then(|barrier| barrier.threads);
            if waiting.len() == threads.map_or(alive, |threads| first.get(threads) as u32 as usize) {
                self.pass_barrier(&waiting);
                met = true;
            }
        }
        met
    }

    /// The barrier at which a thread waits; `None` if it does not.
    fn barrier_of(&self, thread: &Thread) -> Option<&'p Barrier> {
        let State::AtBarrier(op) = thread.state else { return None };
        match &self.shared.program.code[op] {
            Op::Barrier(barrier) => Some(barrier),
            _ => unreachable!("a thread waits there"),
        }
    }

    fn pass_barrier(&mut self, waiting: &[usize]) {
        let reduce_of = |block: &Self, index: usize| {
            block.barrier_of(&block.threads[index]).and_then(|barrier| barrier.reduce.as_ref())
        };
        let holds = |&&index: &&usize| {
            reduce_of(self, index).is_some_and(|reduce| self.threads[index].get(reduce.predicate) != 0)
        };
        let holding = waiting.iter().filter(holds).count() as u64;
        for &index in waiting {
            if let Some(reduce) = reduce_of(self, index) {
                self.threads[index].set(reduce.to, (reduce.function)(holding, waiting.len() as u64));
            }
            self.threads[index].state = State::Runs;
        }
    }
}

fn waits_for_ever(thread: &Thread) -> Problem {
    let op = match thread.state {
        State::AtBarrier(op) | State::AtWarp(op) => op,
        _ => unreachable!("it waits"),
    };
    Problem { kind: Kind::Endless, what: "threads wait for ever for others".into(), op, thread: thread.place }
}
