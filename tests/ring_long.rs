//! A long run of the ring: every submission is answered once and in order, and memory does not grow. The test has a
//! process of its own, so that no other test changes its memory.

#[path = "support/echo.rs"]
mod echo;

use std::sync::Mutex;
use std::thread;

use echo::{builder_on_cpu, echo, read, submit};
use trefoil::Ticket;

/// Resident memory of this process in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    1024 * line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
}

#[test]
fn a_hundred_thousand_submissions_from_eight_threads() {
    const PRODUCERS: u32 = 8;
    const EACH: u32 = 12_500;
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1, 4]).staging(PRODUCERS as usize + 3).build().unwrap();
    let early = Mutex::new(None);
    thread::scope(|scope| {
        for producer in 0..PRODUCERS {
            let (engine, early) = (&engine, &early);
            scope.spawn(move || {
                let mut last: Option<(u32, Ticket)> = None;
                for index in 0..EACH {
                    let number = producer << 24 | index;
                    let ticket = submit(engine, 1 + (index as usize) % 4, number).unwrap();
                    if let Some((expected, ticket)) = last.replace((number, ticket)) {
                        assert_eq!(read(&ticket.wait().unwrap()), expected);
                    }
                    if producer == 0 && index == EACH / 10 {
                        *early.lock().unwrap() = Some(resident());
                    }
                }
                let (expected, ticket) = last.unwrap();
                assert_eq!(read(&ticket.wait().unwrap()), expected);
            });
        }
    });
    let growth = resident().saturating_sub(early.lock().unwrap().unwrap());
    println!("memory growth from 10 % to 100 %: {} KiB", growth / 1024);
    assert!(growth < 1 << 20, "memory grew by {growth} bytes");
    let credits = engine.credits().unwrap();
    assert_eq!((credits.filling, credits.in_flight, credits.unread), (0, 0, 0));
}
