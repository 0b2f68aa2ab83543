//! A GPU whose memory somebody else takes while an engine is being built: the build succeeds or tells that there is too
//! little, leaves nothing, and the next one succeeds. A binary of its own, because cargo runs no other beside it.
#![cfg(feature = "cuda")]

#[path = "support/cuda.rs"]
mod cuda;

use std::thread;
use std::time::{Duration, Instant};

use cuda::{Memory, Primary, cuda};
use trefoil::model::Model;
use trefoil::{Device, Engine, Error, Target, Tuning};

/// Moments of a build, at equal distances, at which all memory is taken.
const MOMENTS: u32 = 24;
/// The smallest piece that is taken.
const LEAST: usize = 1 << 20;
/// CUDA_ERROR_OUT_OF_MEMORY.
const OUT_OF_MEMORY: i32 = 2;

/// Takes all free memory.
fn take_all(device: &Device) -> Vec<Memory> {
    let _current = Primary::of(device);
    let (mut taken, mut piece) = (Vec::new(), 1_usize << 36);
    while piece >= LEAST {
        match Memory::new(piece) {
            Ok(memory) => taken.push(memory),
            Err(_) => piece /= 2,
        }
    }
    taken
}

fn build(model: &Model) -> Result<Engine, Error> {
    // A device of its own: no weights are there from another build.
    let device = Device::open(Target::Cuda(0))?;
    Engine::builder(model).on(&device).batch(8).tuning(Tuning::Off).build()
}

fn answer(engine: Engine) -> Result<Vec<u8>, Error> {
    let mut batch = engine.acquire()?;
    batch.rows_mut().flatten().enumerate().for_each(|(at, byte)| *byte = (at * 31 % 251) as u8);
    let output = batch.submit(8)?.wait()?;
    Ok((0..8).flat_map(|row| output.row(row)).copied().collect())
}

fn free_bytes(device: &Device) -> usize {
    let _current = Primary::of(device);
    let (mut free, mut total) = (0, 0);
    cuda!(cuMemGetInfo_v2(&mut free, &mut total)).unwrap();
    free
}

/// Whether this is what a build may be answered with when memory runs out.
fn tells_it(error: &Error) -> bool {
    match error {
        Error::OutOfMemory { .. } => true,
        Error::Driver { code, .. } => *code == OUT_OF_MEMORY,
        Error::Fault { cause, .. } => tells_it(cause),
        _ => false,
    }
}

#[test]
fn memory_that_is_taken_during_a_build_is_told_and_nothing_is_left() {
    let device = match Device::open(Target::Cuda(0)) {
        Ok(device) => device,
        Err(Error::NoDevice { why, .. }) if std::env::var_os("TREFOIL_REQUIRE_GPU").is_none() => {
            return println!("skipped: no CUDA device: {why}");
        }
        Err(error) => panic!("cuda:0 cannot be used: {error}"),
    };
    let model = Model::open("weights/efficientnet-lite0").unwrap();
    drop(build(&model).unwrap()); // what the driver keeps from a first build
    let start = Instant::now();
    let expected = build(&model).and_then(answer).unwrap();
    let takes = start.elapsed();
    let (free, mut refused, mut failed) = (free_bytes(&device), 0, 0);
    for moment in 0..MOMENTS {
        let taken_at = (takes * moment / MOMENTS).saturating_sub(Duration::from_millis(2));
        let built = thread::scope(|scope| {
            let taken = scope.spawn(|| {
                thread::sleep(taken_at);
                take_all(&device)
            });
            let built = build(&model).and_then(answer);
            let _current = Primary::of(&device);
            drop(taken.join().unwrap());
            built
        });
        match built {
            Ok(found) => assert!(found == expected, "other bits, memory was taken after {taken_at:?}"),
            Err(Error::OutOfMemory { .. }) => refused += 1,
            Err(error) if tells_it(&error) => {
                println!("after {taken_at:?}: {error}");
                failed += 1;
            }
            Err(error) => panic!("memory was taken after {taken_at:?}: {error}"),
        }
        assert!(
            build(&model).and_then(answer).unwrap() == expected,
            "other bits in the next build, after {taken_at:?}"
        );
        let (now, until) = (|| free_bytes(&device), Instant::now() + Duration::from_secs(5));
        while now() + (4 << 20) < free && Instant::now() < until {
            thread::sleep(Duration::from_millis(1)); // the ring's own threads end
        }
        assert!(now() + (4 << 20) >= free, "{} bytes are left of {free}, after {taken_at:?}", now());
    }
    println!("{MOMENTS} builds: {refused} refused, {failed} failed in the middle");
    assert!(refused + failed > 0, "memory was never short");
}
