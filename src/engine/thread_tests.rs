//! Builds for which the system refuses each thread in turn: the error names the thread, and nothing of the build is
//! left.

use std::time::{Duration, Instant};

use super::Engine;
use crate::device::{Device, MemoryUse};
use crate::error::Error;
use crate::model::Model;
use crate::ring::prefetch;
use crate::sync::{refused, thread};

fn model() -> Model {
    Model::open("weights/convnet28").unwrap()
}

/// Waits until nothing uses the device: the threads of dropped objects end by themselves.
fn assert_unused(device: &Device) {
    let end = Instant::now() + Duration::from_secs(20);
    while !device.is_unused() {
        assert!(Instant::now() < end, "something of a failed build is kept");
        thread::yield_now();
    }
    assert_eq!(device.memory_use(), MemoryUse::default());
}

#[test]
fn every_thread_of_an_engine_and_a_batcher_may_be_refused() {
    let (model, device) = (model(), Device::cpu(3));
    let build = || {
        let engine = Engine::builder(&model).on(&device).batch(4).build()?;
        let batcher = engine.batcher().rows(4).build()?;
        Ok::<_, Error>((engine, batcher))
    };
    let mut names = Vec::new();
    loop {
        let (built, was_refused) = refused::after(names.len(), build);
        match built {
            Ok(built) => {
                assert!(!was_refused);
                drop(built.0.acquire().unwrap().submit(1).unwrap().wait().unwrap());
                break;
            }
            Err(error) => {
                let text = error.to_string();
                let Error::Thread { name, .. } = error else { panic!("{error}") };
                assert!(was_refused && text.contains(&name) && text.contains("`ulimit -u`"), "{text}");
                names.push(name);
            }
        }
        assert_unused(&device);
    }
    assert_unused(&device);
    for name in ["cpu-1", "cpu-2", "done", "up", "copy-in", "compute", "copy-out", "batch", "rows"] {
        assert!(names.iter().any(|thread| thread.starts_with(&format!("trefoil-{name}"))), "{name}: {names:?}");
    }
    assert_eq!(names.len(), 9, "{names:?}");
}

#[test]
fn threads_that_build_a_fleet_and_those_that_load_may_be_refused() {
    let (model, devices) = (model(), [Device::cpu(1), Device::cpu(1)]);
    let build = || Engine::builder(&model).build_on(&devices);
    match refused::after(1, build).0 {
        Err(Error::Thread { name, .. }) => assert_eq!(name, "trefoil-build-1"),
        other => panic!("{other:?}"),
    }
    devices.iter().for_each(assert_unused);
    let rebuilt = || Engine::builder(&model).rebuild_on_fault(1).build_on(&devices);
    match refused::after(2, rebuilt).0 {
        Err(Error::Thread { name, .. }) => assert!(name.starts_with("trefoil-mend-"), "{name}"),
        other => panic!("{other:?}"),
    }
    devices.iter().for_each(assert_unused);
    match refused::after(1, || prefetch(0..10, 3, 3, Ok::<i32, Error>)).0.map(drop) {
        Err(Error::Thread { name, .. }) => assert_eq!(name, "trefoil-load-1"),
        other => panic!("{other:?}"),
    }
}
