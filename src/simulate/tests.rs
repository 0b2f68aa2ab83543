//! The ring on the simulated device with real threads: blocking waits, polls and looks of the completion thread all
//! move the time, in whatever order the threads run.

use std::thread;
use std::time::Duration;

use super::*;
use crate::ring::{Batch, Output, Ticket};

fn fill(batch: &mut Batch, rows: usize, number: usize) {
    batch.rows_mut().take(rows).for_each(|row| row.fill(number as u8 | 1));
}

fn is_own(output: &Output, number: usize) -> bool {
    (0..output.rows()).all(|index| output.row(index).iter().all(|&byte| byte == number as u8 | 1))
}

/// Plays one producer, which waits for some batches, polls some, drops some, and gives some up before submission.
/// Returns how many it read.
fn produce(core: &Arc<Core>, producer: usize, each: usize) -> Result<usize, Error> {
    let mut read = 0;
    let mut last: Option<(usize, Ticket)> = None;
    let mut look = |number: usize, mut ticket: Ticket| -> Result<(), Error> {
        let output = loop {
            if number.is_multiple_of(2) {
                break ticket.wait()?;
            }
            match ticket.wait_for(Duration::ZERO)? {
                Ok(output) => break output,
                Err(again) => ticket = again,
            }
        };
        assert!(is_own(&output, number));
        read += 1;
        Ok(())
    };
    for index in 0..each {
        let number = 31 * producer + index;
        let rows = 1 + index % core.capacity();
        let mut batch = core.acquire(Duration::from_secs(10))?;
        fill(&mut batch, rows, number);
        match index % 8 {
            3 => drop(batch),
            5 => drop(batch.submit(rows)?),
            _ => {
                if let Some((number, ticket)) = last.replace((number, batch.submit(rows)?)) {
                    look(number, ticket)?;
                }
            }
        }
    }
    if let Some((number, ticket)) = last {
        look(number, ticket)?;
    }
    Ok(read)
}

/// Runs the producers of a spec with the hazard checker.
fn run(spec: SimSpec, each: usize) -> (Device, Arc<Core>, Vec<Result<usize, Error>>) {
    let spec = SimSpec { checked: true, ..spec };
    let (_, device, core) = build(&spec, true).unwrap();
    let results = thread::scope(|scope| {
        let start = |producer| {
            let core = &core;
            scope.spawn(move || produce(core, producer, each))
        };
        let producers: Vec<_> = (0..spec.producers).map(start).collect();
        producers.into_iter().map(|producer| producer.join().unwrap()).collect()
    });
    (device, core, results)
}

#[test]
fn threads_wait_poll_drop_and_give_up() {
    for (slots, staging, results) in [(1, 1, 5), (2, 3, 8), (3, 7, 28), (4, 2, 6)] {
        let spec = SimSpec { slots, staging, results, ..SimSpec::new(vec![(1, 10.0), (4, 30.0)]) };
        let (device, core, read) = run(spec, 400);
        assert!(read.iter().all(|read| *read.as_ref().unwrap() == 300), "{read:?}");
        // The completion thread settles the tickets that were dropped.
        while core.credits().unwrap().in_flight > 0 {
            thread::yield_now();
        }
        let held: Vec<_> = (0..staging.min(results)).map(|_| core.acquire(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!(core.credits().unwrap().filling, held.len());
        assert!(device.fault().is_none(), "{:?}", device.fault());
    }
}

#[test]
fn threads_hear_of_a_fault() {
    for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
        for effect in [Effect::RefuseCall, Effect::FailRun] {
            let injections = vec![Injection { stage, nth: 100, effect }];
            let spec = SimSpec { injections, ..SimSpec::new(vec![(1, 10.0), (4, 30.0)]) };
            let (_, core, read) = run(spec, 400);
            assert!(read.iter().all(Result::is_err), "{read:?}");
            let fault = core.acquire(Duration::ZERO).unwrap_err();
            assert!(matches!(fault, Error::Fault { .. }) && !is_hazard(&fault), "{fault}");
        }
    }
}

#[test]
fn more_than_the_memory_there_is_is_refused_with_the_batch_that_fits() {
    let many = SimSpec { producers: 1024, staging: 1027, results: 4108, ..SimSpec::new(vec![(1 << 40, 1e3)]) };
    let spec = SimSpec { input_bytes_per_row: 1, output_bytes_per_row: 1, batches: 100, ..many };
    let error = simulate(&spec).unwrap_err();
    let Error::OutOfMemory { needed_bytes, free_bytes, fitting_batch: Some(fitting), .. } = error else {
        panic!("{error}")
    };
    assert_eq!(needed_bytes, super::needed_bytes(&spec, 1 << 40));
    assert!(super::needed_bytes(&spec, fitting) <= free_bytes, "{fitting}");
    assert!(super::needed_bytes(&spec, fitting + 1) > free_bytes, "{fitting}");
    let with_batcher = |in_flight, largest| {
        let batcher = SimBatcher { in_flight, ..SimBatcher::default() };
        SimSpec { batcher: Some(batcher), ..SimSpec::new(vec![(largest, 1e3)]) }
    };
    let Err(Error::OutOfMemory { free_bytes, fitting_batch: Some(fitting), .. }) =
        simulate(&with_batcher(1 << 20, 1 << 30))
    else {
        panic!("the rows of the batcher take more memory than there is")
    };
    assert!(super::needed_bytes(&with_batcher(1 << 20, fitting), fitting) <= free_bytes, "{fitting}");
    for spec in [
        SimSpec { staging: 1 << 50, ..SimSpec::new(vec![(1, 1e3)]) },
        SimSpec { producers: 1 << 50, ahead: 0, ..SimSpec::new(vec![(1, 1e3)]) },
        SimSpec { slots: usize::MAX, ..SimSpec::new(vec![(1, 1e3)]) },
        SimSpec { batches: 1 << 36, compute_us: vec![(1, 1.0)], ..SimSpec::new(Vec::new()) },
        with_batcher(1 << 40, 1),
        with_batcher(usize::MAX, 1 << 16),
    ] {
        assert!(matches!(simulate(&spec), Err(Error::OutOfMemory { .. })), "{spec:?}");
    }
}

/// The clock counts 213 days. A batch here takes an hour.
#[test]
fn more_time_than_the_clock_counts_is_refused_with_the_batches_that_fit() {
    let spec = SimSpec { batches: 2_500, ..SimSpec::new(vec![(1, MOST_US)]) };
    let told = spec.check().unwrap_err().to_string();
    assert!(told.contains("at most 2362"), "{told}");
    let fits = SimSpec { batches: 2_362, ..spec };
    assert!(simulate(&fits).unwrap().images_per_s < 1.0 / 3_599.0);
    let slow = Arrival::Poisson { images_per_s: 1e-3, seed: 1 };
    assert!(SimSpec { arrival: slow, batches: 8_640, ..SimSpec::new(vec![(1, 1.0)]) }.check().is_err());
}
