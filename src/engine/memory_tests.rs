//! Builds whose memory runs out at each allocation in turn: the error says so, nothing of the build is left, and the
//! next build gives the same bits.

use std::time::{Duration, Instant};

use super::{Engine, EngineBuilder};
use crate::device::{Device, MemoryUse, shortage};
use crate::error::Error;
use crate::exec::Tuning;
use crate::model::Model;
use crate::tensor::{OutputKind, Size};

/// Builds an engine on a device and returns its answer.
type Built = fn(&Device) -> Result<Vec<u8>, Error>;

const BUILT: [(&str, Built); 4] = [
    ("a network of images", |device| images(Engine::builder(&convnet()).slots(2).batch_sizes(&[1, 8]), device)),
    ("sizes of images", |device| {
        let size = |side: usize| Size::new(4).dim("height", side).dim("width", side);
        images(Engine::builder(&convnet()).sizes(&[size(28), size(20)]), device)
    }),
    ("two models and their mean, left on the device", |device| {
        let (first, second) = (convnet(), convnet());
        images(Engine::builder(&first).beside(&second).average().device_results(true).batch(4), device)
    }),
    ("a model of values", |device| {
        let model = Model::open("tests/data/onnx/boxes.onnx")?;
        let engine = quick(Engine::builder(&model).batch(2), device).build()?;
        answer(&engine)
    }),
];

fn convnet() -> Model {
    Model::open("weights/convnet28").unwrap()
}

fn quick<'a>(builder: EngineBuilder<'a>, device: &Device) -> EngineBuilder<'a> {
    builder.on(device).tuning(Tuning::Off)
}

fn images(builder: EngineBuilder<'_>, device: &Device) -> Result<Vec<u8>, Error> {
    answer(&quick(builder, device).output(OutputKind::Logits).build()?)
}

/// The answer to one row, which is always the same.
fn answer(engine: &Engine) -> Result<Vec<u8>, Error> {
    let mut batch = engine.acquire()?;
    batch.rows_mut().flatten().for_each(|byte| *byte = 1);
    let output = batch.submit(1)?.wait()?;
    Ok((0..output.parts()).flat_map(|part| output.part(part).row(0).to_vec()).collect())
}

/// Waits until nothing uses the device: the threads of dropped rings end by themselves.
fn assert_unused(device: &Device, what: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while !device.is_unused() {
        assert!(Instant::now() < end, "{what}: something of a failed build is kept");
        std::thread::yield_now();
    }
    assert_eq!(device.memory_use(), MemoryUse::default(), "{what}");
}

/// Builds with `take` before each allocation in turn, then calls `give_back`. Returns the number of allocations of a
/// build.
fn run_out(what: &str, built: Built, device: &Device, take: fn(&Device), give_back: fn(&Device)) -> usize {
    let expected = built(device).unwrap();
    for nth in 0.. {
        let taken_from = device.clone();
        let (found, ran_out) = shortage::before(nth, move || take(&taken_from), || built(device));
        give_back(device);
        assert_unused(device, what);
        let told = match (found, ran_out) {
            (Ok(found), _) => {
                assert!(found == expected, "{what}: other bits with no memory after allocation {nth}");
                "was built".to_owned()
            }
            (Err(error), true) if tells_it(&error) => error.to_string(),
            (Err(error), _) => panic!("{what}: no memory before allocation {nth}: {error}"),
        };
        println!("{what}, allocation {nth}: {told}");
        assert!(device.fault().is_none(), "{what}: {:?}", device.fault());
        assert!(built(device).unwrap() == expected, "{what}: other bits in the build after the one that failed");
        assert_unused(device, what);
        if !ran_out {
            return nth;
        }
    }
    unreachable!("a build has an end")
}

/// Whether a build may return this error when memory runs out.
fn tells_it(error: &Error) -> bool {
    const OUT_OF_MEMORY: i32 = 2; // CUDA_ERROR_OUT_OF_MEMORY
    match error {
        Error::OutOfMemory { .. } => true,
        Error::Driver { code, .. } => *code == OUT_OF_MEMORY,
        _ => false,
    }
}

#[test]
fn memory_that_runs_out_at_any_allocation_is_told() {
    let device = Device::cpu(2);
    for (what, built) in BUILT {
        let allocations = run_out(
            what,
            built,
            &device,
            |device| device.limit_memory(device.memory_use().device_bytes),
            |device| device.limit_memory(u64::MAX),
        );
        assert!(allocations >= 3, "{what} makes {allocations} allocations");
    }
}

/// Runs the test on a GPU, whose memory another owner takes before each allocation.
#[cfg(feature = "cuda")]
#[test]
#[ignore = "takes all memory of cuda:0, which no other test must use meanwhile"]
fn memory_of_a_gpu_that_is_full_at_any_allocation_is_told() {
    use std::cell::RefCell;

    use crate::device::{DeviceBuffer, Target};

    thread_local! {
        static TAKEN: RefCell<Vec<DeviceBuffer>> = const { RefCell::new(Vec::new()) };
    }
    /// Allocates pieces of every size, so that no hole is left.
    fn take_all(_device: &Device) {
        let other = Device::open(Target::Cuda(0)).unwrap();
        for piece in (8..37).rev().map(|bits| 1_usize << bits) {
            while let Ok(memory) = DeviceBuffer::new(&other, piece) {
                TAKEN.with_borrow_mut(|taken| taken.push(memory));
            }
        }
    }
    let device = match Device::open(Target::Cuda(0)) {
        Ok(device) => device,
        Err(Error::NoDevice { why, .. }) if std::env::var_os("TREFOIL_REQUIRE_GPU").is_none() => {
            return println!("skipped: no CUDA device: {why}");
        }
        Err(error) => panic!("cuda:0 cannot be used: {error}"),
    };
    for (what, built) in BUILT {
        let allocations = run_out(what, built, &device, take_all, |_| TAKEN.with_borrow_mut(Vec::clear));
        println!("{what}: {allocations} allocations");
        assert!(allocations >= 3, "{what} makes {allocations} allocations");
    }
}
