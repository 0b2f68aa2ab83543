//! The ring on the CPU device: credits, order, drops, waits, and a long run from many threads.

#[path = "support/echo.rs"]
mod echo;

use std::collections::HashSet;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use echo::{builder_on_cpu, echo, read, submit};
use trefoil::graph::{GraphBuilder, Op};
use trefoil::model::{Model, Weights};
use trefoil::{Batch, Close, Device, Dtype, Engine, Error, Output, OutputKind, Target, Ticket};

#[test]
fn producers_hold_unread_tickets_up_to_the_credits() {
    const PRODUCERS: usize = 4;
    const HELD: usize = 3;
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[2]).results(PRODUCERS * HELD).build().unwrap();
    let tickets: Vec<Ticket> = thread::scope(|scope| {
        let producers: Vec<_> = (0..PRODUCERS)
            .map(|p| {
                let engine = &engine;
                scope.spawn(move || {
                    (0..HELD).map(|i| submit(engine, 2, (p * HELD + i) as u32).unwrap()).collect::<Vec<_>>()
                })
            })
            .collect();
        producers.into_iter().flat_map(|p| p.join().unwrap()).collect()
    });
    while !tickets.iter().all(|t| t.is_ready().unwrap()) {
        thread::yield_now();
    }
    let error = engine.acquire_within(Duration::from_millis(200)).unwrap_err();
    let Error::Timeout { operation: "acquire", credits, .. } = &error else { panic!("{error:?}") };
    assert_eq!((credits.unread, credits.in_flight, credits.filling), (PRODUCERS * HELD, 0, 0));
    assert!(error.to_string().contains("12 finished and unread"), "{error}");
    let numbers: HashSet<u32> = tickets.into_iter().map(|t| read(&t.wait().unwrap())).collect();
    assert_eq!(numbers.len(), PRODUCERS * HELD);
    engine.acquire().unwrap();
}

#[test]
fn every_credit_comes_back() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1]).staging(2).results(2).build().unwrap();
    drop(engine.acquire().unwrap()); // never submitted
    drop(submit(&engine, 1, 1).unwrap()); // abandoned
    drop(submit(&engine, 1, 2).unwrap().wait().unwrap()); // read
    let wrong = engine.acquire().unwrap().submit(2).unwrap_err();
    assert!(matches!(wrong, Error::Option { option: "rows", .. }), "{wrong}");
    assert!(engine.acquire().unwrap().submit(0).is_err());
    let panicked = thread::scope(|scope| {
        scope
            .spawn(|| {
                let _held = engine.acquire().unwrap();
                panic!("a producer's own");
            })
            .join()
    });
    assert!(panicked.is_err());
    let held = (engine.acquire().unwrap(), engine.acquire().unwrap());
    assert!(engine.try_acquire().unwrap().is_none());
    drop(held);
    assert!(engine.try_acquire().unwrap().is_some());
}

#[test]
fn results_come_in_the_order_of_submission() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1, 2, 4, 8]).results(64).staging(64).build().unwrap();
    for round in 0..50 {
        let mut tickets: Vec<Ticket> =
            (0..32).map(|i| submit(&engine, 1 + (i * 7 + round) % 8, i as u32).unwrap()).collect();
        while let Some(ticket) = tickets.pop() {
            let output = ticket.wait().unwrap();
            assert_eq!(read(&output) as usize, tickets.len());
            assert!(tickets.iter().all(|t| t.is_ready().unwrap()), "a later submission was ready first");
        }
    }
}

#[test]
fn a_ticket_can_be_looked_at_waited_for_a_while_and_awaited() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1]).build().unwrap();
    let mut ticket = submit(&engine, 1, 7).unwrap();
    let output = loop {
        match ticket.wait_for(Duration::from_micros(1)).unwrap() {
            Ok(output) => break output,
            Err(again) => ticket = again,
        }
    };
    assert_eq!(read(&output), 7);

    let mut tickets: Vec<_> = (0..8).map(|i| Box::pin(submit(&engine, 1, i).unwrap())).collect();
    let waker = Waker::from(std::sync::Arc::new(Unpark(thread::current())));
    let deadline = Instant::now() + Duration::from_secs(10);
    for (index, ticket) in tickets.iter_mut().enumerate() {
        loop {
            match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(output) => break assert_eq!(read(&output.unwrap()), index as u32),
                Poll::Pending => thread::park_timeout(deadline - Instant::now()),
            }
        }
    }
}

struct Unpark(thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.unpark();
    }
}

/// A waker that uses its engine and then panics.
struct Asks {
    engine: Engine,
    submitted: std::sync::Mutex<Vec<Ticket>>,
}

impl std::task::Wake for Asks {
    fn wake(self: std::sync::Arc<Self>) {
        let ticket = submit(&self.engine, 1, 9).unwrap();
        let _ = (ticket.is_ready().unwrap(), self.engine.credits().unwrap(), self.engine.health());
        self.submitted.lock().unwrap().push(ticket);
        panic!("a waker's own");
    }
}

#[test]
fn a_waker_may_use_the_engine_and_its_panic_harms_nobody() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1]).staging(8).results(8).build().unwrap();
    let asks = std::sync::Arc::new(Asks { engine, submitted: std::sync::Mutex::default() });
    let poll = |ticket: &mut Ticket, waker: &Waker| std::pin::Pin::new(ticket).poll(&mut Context::from_waker(waker));
    let in_time = |done: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(20);
        while !done() {
            if Instant::now() > end {
                eprintln!("the completion thread hangs, or is gone");
                std::process::abort(); // a panic would drop the ticket, and wait for the lock that the thread may have
            }
            thread::yield_now();
        }
    };
    let mut calls = 0;
    while calls < 2 {
        let mut awaited = submit(&asks.engine, 1, 7).unwrap();
        if poll(&mut awaited, &asks.clone().into()).is_pending() {
            calls += 1; // twice, as the thread that calls wakers outlives the first panic
            in_time(&|| asks.submitted.lock().unwrap().len() == calls);
            assert_eq!(read(&awaited.wait().unwrap()), 7);
        }
    }
    for ticket in asks.submitted.lock().unwrap().drain(..) {
        assert_eq!(read(&ticket.wait().unwrap()), 9);
    }
}

#[test]
fn tickets_and_outputs_outlive_the_engine() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[1]).build().unwrap();
    let (kept, dropped) = (submit(&engine, 1, 5).unwrap(), submit(&engine, 1, 6).unwrap());
    let batch = engine.acquire().unwrap();
    drop(engine);
    drop(dropped);
    let output = kept.wait().unwrap();
    drop(batch);
    assert_eq!(read(&output), 5);
}

#[test]
fn a_closed_engine_finishes_what_it_has_and_takes_no_more() {
    let model = echo();
    for how in [Close::Drain, Close::Abort] {
        let engine = builder_on_cpu(&model).batch_sizes(&[1]).staging(8).build().unwrap();
        let tickets: Vec<Ticket> = (0..4).map(|i| submit(&engine, 1, i).unwrap()).collect();
        let late = engine.acquire().unwrap();
        engine.close(how, Duration::from_secs(10)).unwrap();
        assert!(matches!(late.submit(1), Err(Error::Closed)));
        assert!(matches!(engine.acquire(), Err(Error::Closed)));
        for (index, ticket) in tickets.into_iter().enumerate() {
            match (how, ticket.wait()) {
                (Close::Drain, Ok(output)) => assert_eq!(read(&output), index as u32),
                (Close::Abort, Err(Error::Closed)) => {}
                other => panic!("{other:?}"),
            }
        }
        let credits = engine.credits().unwrap();
        assert_eq!((credits.filling, credits.in_flight, credits.unread), (0, 0, 0));
        engine.close(how, Duration::ZERO).unwrap();
    }
}

#[test]
fn zero_counts_are_errors_that_name_the_option() {
    let model = echo();
    let cpu = Device::open(Target::Cpu).unwrap();
    let builder = || Engine::builder(&model).on(&cpu).output(OutputKind::Features).check(true);
    for (name, built) in [
        ("slots", builder().slots(0).build()),
        ("batch", builder().batch(0).build()),
        ("batch", builder().batch_sizes(&[]).build()),
        ("staging", builder().staging(0).build()),
        ("results", builder().results(0).build()),
    ] {
        match built {
            Err(Error::Option { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn one_slot_one_staging_one_result_still_works() {
    let model = echo();
    let engine = builder_on_cpu(&model).batch_sizes(&[3]).slots(1).staging(1).results(1).build().unwrap();
    for number in 0..100 {
        assert_eq!(read(&submit(&engine, 1 + number as usize % 3, number).unwrap().wait().unwrap()), number);
    }
}

#[test]
fn the_public_types_are_send_and_sync_as_said() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    sync::<Engine>();
    sync::<Device>();
    sync::<Model>();
    sync::<Output>();
    sync::<Error>();
    send::<Batch>();
    send::<Ticket>();
}

#[test]
fn two_engines_share_a_device() {
    let model = echo();
    let device = Device::open(Target::Cpu).unwrap();
    let build = || {
        let builder = Engine::builder(&model).on(&device).output(OutputKind::Features);
        builder.batch_sizes(&[2]).check(true).build().unwrap()
    };
    let engines = [build(), build()];
    thread::scope(|scope| {
        for (index, engine) in engines.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..500 {
                    let number = (index as u32) << 24 | number;
                    assert_eq!(read(&submit(engine, 2, number).unwrap().wait().unwrap()), number);
                }
            });
        }
    });
    drop(engines);
    assert!(device.fault().is_none());
}

/// Rows of no bytes are rows all the same.
#[test]
fn rows_may_have_no_bytes() {
    let model = Model::of_graphs(Weights::from_tensors::<String>([]).unwrap(), |rows| {
        let mut g = GraphBuilder::new();
        let x = g.input("x", Dtype::F32, &[rows, 0]);
        let c = g.constant(Dtype::F32, &[rows, 1], 7.0_f32.to_le_bytes().repeat(rows));
        let y = g.node("y", Op::Concat(1), &[x, c]);
        g.output("y", y);
        g.finish()
    });
    let engine = Engine::builder(&model.unwrap()).on(&Device::cpu(1)).batch(3).build().unwrap();
    let mut batch = engine.acquire().unwrap();
    assert_eq!(batch.rows_mut().map(|row| row.len()).collect::<Vec<_>>(), [0; 3]);
    let output = batch.submit(3).unwrap().wait().unwrap();
    for row in 0..3 {
        assert_eq!(output.row(row), 7.0_f32.to_le_bytes());
    }
    // Their places take memory too: more than there is of it is an error.
    let refused = engine.batcher().rows(1 << 36).build().map(drop).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
}
