//! The batcher on the CPU device: every thread gets its own rows back, and every credit returns. Tests that need a
//! program which can be held or broken are beside the code.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use trefoil::graph::{Conv2d, GraphBuilder, Window};
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{
    Batcher, Credits, Device, Engine, Error, OutputKind, Row, RowOutput, RowPriority, RowTicket, Shape, Target,
    WhenFull,
};

const SIDE: usize = 4;

/// One convolution that multiplies by 255: with input bytes scaled to 0-1, outputs are the bytes that went in.
fn echo() -> Engine {
    let mut graph = GraphBuilder::new();
    let image = graph.image("image", Shape::new(SIDE, SIDE, 1));
    let x = graph.conv2d_with("echo", image, Conv2d::named("echo", 1, Window::square(1, 1, 0)));
    graph.output("y", x);
    let graph = graph.finish().unwrap();
    let weights = Weights::from_tensors([("echo.weight", vec![1, 1, 1, 1], vec![255.0])]).unwrap();
    let input = Shape::new(SIDE, SIDE, 1);
    let preprocessing = Preprocessing { mean: vec![0.0], std: vec![1.0], ..Preprocessing::new(input) };
    let model = Model::new(graph, weights, preprocessing, Vec::new()).unwrap();
    let cpu = Device::open(Target::Cpu).unwrap();
    Engine::builder(&model).on(&cpu).batch_sizes(&[4, 16]).output(OutputKind::Features).check(true).build().unwrap()
}

/// Sixteen bytes that differ for different numbers.
fn pixels(number: u32) -> [u8; SIDE * SIDE] {
    let mut bytes = [0; SIDE * SIDE];
    let hash = u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..12].copy_from_slice(&hash.to_le_bytes());
    bytes
}

fn check(output: &RowOutput, number: u32) {
    let bytes: Vec<u8> = output.values().iter().map(|value| value.round() as u8).collect();
    assert_eq!(bytes, pixels(number), "row {number} got another's result");
}

fn all_credits_return(engine: &Engine) {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let Credits { filling, in_flight, unread, .. } = engine.credits().unwrap();
        if (filling, in_flight, unread) == (0, 0, 0) {
            return;
        }
        assert!(Instant::now() < end, "credits lost: {:?}", engine.credits());
        thread::yield_now();
    }
}

#[test]
fn sixty_four_threads_get_exactly_their_own_rows() {
    const THREADS: u32 = 64;
    const EACH: u32 = 300;
    let engine = echo();
    let batcher = engine.batcher().max_delay(Duration::from_micros(200)).build().unwrap();
    let expired: u32 = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let batcher = &batcher;
                    move || client(batcher, thread, EACH)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let stats = batcher.stats();
    assert_eq!(stats.expired, u64::from(expired));
    assert!(stats.rows() + stats.expired <= u64::from(THREADS * EACH));
    assert!(stats.batches() < stats.rows(), "no batch had two rows: {stats:?}");
    assert!(stats.runs < stats.rows(), "no two neighbours went up in one copy: {stats:?}");
    assert!(stats.queue_time(0.5) <= stats.queue_time(0.99));
    assert_eq!(batcher.queued(), 0);
    println!("{} rows in {} batches by {} copies", stats.rows(), stats.batches(), stats.runs);
    all_credits_return(&engine);
}

/// Submits rows in every possible way; returns how many of them expired.
fn client(batcher: &Batcher, thread: u32, rows: u32) -> u32 {
    let mut expired = 0;
    for index in 0..rows {
        let number = thread << 16 | index;
        let ticket = match index % 7 {
            0 => in_place(batcher.row().unwrap(), number),
            1 => batcher.request().priority(RowPriority::High).submit(&pixels(number)).unwrap(),
            2 => {
                drop(batcher.row().unwrap());
                batcher.submit(&pixels(number)).unwrap()
            }
            3 => {
                drop(batcher.submit(&pixels(number)).unwrap()); // abandoned
                continue;
            }
            4 => match batcher.request().deadline(Duration::from_micros(100)).submit(&pixels(number)) {
                Ok(ticket) => ticket,
                Err(Error::Deadline { .. }) => {
                    expired += 1;
                    continue;
                }
                Err(error) => panic!("{error}"),
            },
            _ => batcher.submit(&pixels(number)).unwrap(),
        };
        match if index % 2 == 0 { ticket.wait() } else { block_on(ticket) } {
            Ok(output) => check(&output, number),
            Err(Error::Deadline { .. }) if index % 7 == 4 => expired += 1,
            Err(error) => panic!("{error}"),
        }
    }
    expired
}

fn in_place(mut row: Row, number: u32) -> RowTicket {
    row.bytes_mut().copy_from_slice(&pixels(number));
    row.submit().unwrap()
}

fn block_on(mut ticket: RowTicket) -> Result<RowOutput, Error> {
    struct Unpark(thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match std::pin::Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn a_held_row_outlives_engine_and_batcher_and_delays_nobody() {
    let engine = echo();
    let batcher = engine.batcher().max_delay(Duration::from_millis(1)).build().unwrap();
    let mut held = batcher.row().unwrap();
    for number in 0..100 {
        check(&batcher.submit(&pixels(number)).unwrap().wait().unwrap(), number);
    }
    held.bytes_mut().fill(1);
    let kept = batcher.submit(&pixels(7)).unwrap();
    drop((engine, batcher));
    held.bytes_mut().fill(2);
    check(&kept.wait().unwrap(), 7);
    assert!(matches!(held.submit(), Err(Error::Closed)));
}

#[test]
fn a_ticket_is_looked_at_and_waited_for_a_while() {
    let engine = echo();
    let batcher = engine.batcher().build().unwrap();
    let mut ticket = batcher.submit(&pixels(3)).unwrap();
    let output = loop {
        match ticket.wait_for(Duration::from_millis(1)).unwrap() {
            Ok(output) => break output,
            Err(again) => ticket = again,
        }
    };
    check(&output, 3);
    check(&output.clone(), 3);
}

#[test]
fn two_batchers_and_plain_batches_share_an_engine() {
    let engine = echo();
    let batchers = [engine.batcher().build().unwrap(), engine.batcher().rows(3).build().unwrap()];
    thread::scope(|scope| {
        for (index, batcher) in (0..).zip(&batchers) {
            for thread in 0..4 {
                scope.spawn(move || client(batcher, index << 8 | thread, 200));
            }
        }
        for number in 0..200 {
            let mut batch = engine.acquire().unwrap();
            batch.row_mut(0).copy_from_slice(&pixels(number));
            let output = batch.submit(1).unwrap().wait().unwrap();
            assert_eq!(output.values(0)[0].round() as u8, pixels(number)[0]);
        }
    });
    drop(batchers);
    all_credits_return(&engine);
    engine.measure(trefoil::Stage::Compute, 4, 2).unwrap();
}

#[test]
fn bad_arguments_are_errors_that_name_them() {
    let engine = echo();
    for wrong in [0, usize::MAX, usize::MAX / SIDE] {
        let batcher = || engine.batcher();
        for (name, builder) in [("rows", batcher().rows(wrong)), ("in_flight", batcher().in_flight(wrong))] {
            assert!(matches!(builder.build(), Err(Error::Option { option, .. }) if option == name));
        }
    }
    let batcher = engine.batcher().when_full(WhenFull::Reject).build().unwrap();
    let error = batcher.submit(&[0; 3]).unwrap_err();
    assert_eq!(error.to_string(), "pixels is 3 bytes long: expected 16 bytes, one row");
}

#[test]
fn the_public_types_are_send_and_sync_as_said() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    sync::<Batcher>();
    sync::<RowOutput>();
    send::<Row>();
    send::<RowTicket>();
}
