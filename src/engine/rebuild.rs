//! The engines of a fleet: the first build, and the rebuild for a device that failed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;

use super::budget::LeftMemory;
use super::builder::{Member, Options};
use super::{Engine, EngineBuilder};
use crate::device::{Device, Signal};
use crate::error::Error;
use crate::exec::Tuning;
use crate::model::Model;
use crate::ring::Rings;
use crate::sync::{self, Mutex, lock};

/// The engines that are in use, in the order of the devices.
pub(super) type Engines = Mutex<Vec<Arc<Engine>>>;

impl EngineBuilder<'_> {
    /// Sets how often a [`Fleet`](crate::Fleet), also a fleet of one device, rebuilds the engine of a failed device.
    /// Default 0.
    ///
    /// After a fault of class [`Device`](crate::FaultClass::Device), a thread that the fleet has for this device opens
    /// the device again and builds an engine on it. The batches that the failed engine had not answered run again there,
    /// or on another device, from their page-locked rows. Meanwhile producers wait for a batch, and tickets for their
    /// answer, up to [`acquire_limit`](Self::acquire_limit); then they get an [`Error::Timeout`] that says why.
    /// [`Ticket::wait_for`](crate::Ticket::wait_for) with a smaller limit gives the ticket back instead. A failed
    /// attempt counts as one of `times`. The first attempt is made at once, the second after 0.1 s, and each later one
    /// after twice the previous delay, at most 10 s. Several devices are rebuilt side by side. When no attempt is left,
    /// every request is answered with the fault. A fault of class [`Process`](crate::FaultClass::Process) is answered at
    /// once, because no new engine would work. An engine that is closed is not rebuilt, whether it was closed before its
    /// device failed or while a new one was on its way. [`Fleet::stats`](crate::Fleet::stats) counts rebuilds.
    ///
    /// The memory of the failed engine is not freed, because its device may still access it, so each new engine needs
    /// as much memory again. If the content of a batch makes its device fail, it makes the new engine fail too.
    /// Engines, batchers and [`Device`]s that the program holds from before the fault stay failed.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let fleet = Engine::builder(&model).rebuild_on_fault(3).build_on(&[Device::cpu(1)])?;
    /// fleet.acquire()?.submit(1)?.wait()?;
    /// assert_eq!(fleet.stats()[0].rebuilt, 0); // nothing failed
    /// assert!(Engine::builder(&model).rebuild_on_fault(3).build().is_err());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn rebuild_on_fault(mut self, times: usize) -> Self {
        self.options.rebuild_on_fault = times;
        self
    }
}

/// All that each engine of a fleet is built from.
pub(super) struct Blueprint {
    /// The models, each with the index of the model that it reads from.
    models: Vec<(Model, Option<usize>)>,
    options: Options,
    devices: usize,
    freed: Arc<Signal>,
}

impl Blueprint {
    /// The blueprint of a builder, with the weights of its models read into memory.
    pub fn new(builder: EngineBuilder<'_>, devices: usize, freed: Arc<Signal>) -> Result<Self, Error> {
        let EngineBuilder { models, options } = builder;
        let in_memory = |member: &Member<'_>| Ok((member.model.in_memory()?, member.after));
        let models = models.iter().map(in_memory).collect::<Result<_, Error>>()?;
        Ok(Self { models, options: Options { rebuild_on_fault: 0, ..options }, devices, freed })
    }

    /// Builds an engine on each device, all at the same time. Each is built on the CPUs next to its device, where its
    /// threads then run.
    pub fn build_on(&self, devices: &[Device]) -> Result<Vec<Engine>, Error> {
        let models = self.models.iter().map(|(model, after)| Member { model, after: *after }).collect();
        let builder = &EngineBuilder { models, options: self.options.clone() };
        let left = &LeftMemory::default();
        let build = |device: &Device| {
            device.place_thread(); // and the threads that it starts
            builder.build_ring(device, self.devices, Some(self.freed.clone()), left)
        };
        thread::scope(|scope| {
            let spawn = |(number, device)| {
                let build = move || build(device);
                sync::start(format!("trefoil-build-{number}"), |builder| builder.spawn_scoped(scope, build))
            };
            let builds: Vec<_> = devices.iter().enumerate().map(spawn).collect();
            let panicked = |_| Err(Error::Internal { what: "a build panicked".into() });
            let built = builds.into_iter().map(|started| started?.join().unwrap_or_else(panicked));
            built.collect()
        })
    }

    /// Starts a thread `trefoil-mend-N-I` for each device. It rebuilds the rings that fail, until nothing uses `rings`
    /// any more.
    pub fn mend(mut self, rings: &Arc<Rings>, engines: &Weak<Engines>) -> Result<(), Error> {
        static FLEETS: AtomicUsize = AtomicUsize::new(0);
        if self.options.tuning.mode == Tuning::Full {
            self.options.tuning.mode = Tuning::Cached; // it was measured
        }
        let (fleet, this) = (FLEETS.fetch_add(1, Ordering::Relaxed), Arc::new(self));
        let mend = |index: usize| {
            let (this, rings, engines) = (this.clone(), rings.clone(), engines.clone());
            let mend = move || this.mend_one(index, &rings, &engines);
            sync::spawn(format!("trefoil-mend-{fleet}-{index}"), mend).map(drop)
        };
        (0..this.devices).try_for_each(mend)
    }

    fn mend_one(&self, index: usize, rings: &Rings, engines: &Weak<Engines>) {
        let _ended = EndsWithIt(rings, index);
        while let Some(failed) = rings.next_due(index) {
            match self.rebuild(&failed, rings, index) {
                Ok(engine) => replace(rings, engines, index, engine),
                Err(error) => rings.failed(index, &error),
            }
        }
    }

    fn rebuild(&self, failed: &Device, rings: &Rings, index: usize) -> Result<Engine, Error> {
        let is_wanted = || if rings.is_wanted(index) { Ok(()) } else { Err(Error::Closed) };
        is_wanted()?;
        let device = failed.reopened()?;
        is_wanted()?;
        log::warn!("{}: opened again after a fault; the engine is rebuilt", device.info().target);
        let built = self.build_on(&[device])?.pop();
        built.ok_or_else(|| Error::Internal { what: "a build on one device gave no engine".into() })
    }
}

/// Its drop at the end of a building thread, also after a panic, tells waiting threads that no ring will come.
struct EndsWithIt<'a>(&'a Rings, usize);

impl Drop for EndsWithIt<'_> {
    fn drop(&mut self) {
        self.0.builder_ended(self.1);
    }
}

/// Puts a new engine in the place of a failed one, unless it is no longer wanted. A thread that finds the new ring also
/// finds the new engine.
fn replace(rings: &Rings, engines: &Weak<Engines>, index: usize, engine: Engine) {
    let ring = engine.core.clone();
    let Some(engines) = engines.upgrade() else {
        rings.put(index, ring); // for tickets that outlive the fleet
        return;
    };
    let mut engines = lock(&engines);
    let unused = match rings.put(index, ring) {
        true => std::mem::replace(&mut engines[index], Arc::new(engine)),
        false => Arc::new(engine),
    };
    drop(engines);
    drop(unused); // with no lock held
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::Fleet;
    use crate::error::FaultClass;
    use crate::tensor::OutputKind;

    const BATCHES: usize = 8;

    fn model() -> Model {
        Model::open("weights/convnet28").unwrap()
    }

    /// Builders of one model, and of two with their mean.
    fn builders(model: &Model) -> [EngineBuilder<'_>; 2] {
        let builder = || Engine::builder(model).batch_sizes(&[1, 4]).output(OutputKind::Logits).slots(2).check(true);
        [builder(), builder().beside(model).average()]
    }

    /// The answers to some batches. During the first `faults` of them, the first device in use is made to fail.
    fn answers(fleet: &Fleet, faults: usize) -> Vec<Result<Vec<f32>, Error>> {
        let submit = |number: usize| {
            let mut batch = fleet.acquire()?;
            batch.row_mut(0).iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * (number + 3)) as u8);
            batch.submit(1)
        };
        let answer = |number: usize| {
            let ticket = submit(number)?;
            if number < faults {
                fail(fleet, FaultClass::Device);
            }
            Ok(ticket.wait()?.values(0).to_vec())
        };
        (0..BATCHES).map(answer).collect()
    }

    fn fail(fleet: &Fleet, class: FaultClass) {
        let (device, status) = ("cpu".into(), "CUDA_ERROR_UNKNOWN".into());
        let error = Error::Driver { device, operation: "cuTest", status, code: 999, class };
        let _latched = fleet.engines()[0].device().latch(Err::<(), _>(error));
    }

    #[test]
    fn a_rebuilt_engine_gives_the_same_bits() {
        let model = model();
        for builder in builders(&model) {
            let device = Device::cpu(2);
            let fleet = builder.rebuild_on_fault(2).build_on(std::slice::from_ref(&device)).unwrap();
            let expected: Vec<_> = answers(&fleet, 0).into_iter().map(Result::unwrap).collect();
            let (one, first) = (device.memory_use(), fleet.engines().remove(0));
            let found: Vec<_> = answers(&fleet, 2).into_iter().map(Result::unwrap).collect();
            assert_eq!(found, expected);
            let stats = &fleet.stats()[0];
            assert!(stats.rebuilt == 2 && stats.fault.is_none(), "{stats:?}");
            assert!(stats.last_fault.as_ref().is_some_and(|fault| fault.to_string().contains("cuTest")), "{stats:?}");
            assert!(first.device().fault().is_some() && first.acquire().is_err(), "the failed engine stays failed");
            assert!(fleet.engines()[0].health().is_ok());
            assert!(device.memory_use().device_bytes > one.device_bytes, "what is left to a failed device counts");
        }
    }

    #[test]
    fn the_third_fault_of_two_rebuilds_and_that_of_the_process_end() {
        let model = model();
        let [one, _] = builders(&model);
        let fleet = one.clone().rebuild_on_fault(2).build_on(&[Device::cpu(1)]).unwrap();
        let found = answers(&fleet, 3);
        assert!(found[..2].iter().all(Result::is_ok) && fleet.stats()[0].rebuilt == 2);
        assert!(found[2..].iter().all(|answer| matches!(answer, Err(Error::Fault { .. }) | Ok(_))), "{found:?}");
        assert!(fleet.acquire().unwrap_err().to_string().contains("cuTest"));

        let fleet = one.rebuild_on_fault(2).build_on(&[Device::cpu(1)]).unwrap();
        fail(&fleet, FaultClass::Process);
        assert_eq!(fleet.acquire().unwrap_err().class(), FaultClass::Process);
        assert_eq!(fleet.stats()[0].rebuilt, 0);
    }

    #[test]
    fn a_rebuild_that_finds_no_memory_ends_in_the_fault() {
        let (model, device) = (model(), Device::cpu(1));
        let [one, _] = builders(&model);
        let fleet = one.rebuild_on_fault(2).build_on(std::slice::from_ref(&device)).unwrap();
        device.limit_memory(device.memory_use().device_bytes);
        fail(&fleet, FaultClass::Device);
        let begin = Instant::now();
        assert!(fleet.acquire().unwrap_err().to_string().contains("cuTest"));
        assert!(begin.elapsed() >= Duration::from_millis(100), "two attempts: the second waits");
        assert_eq!(fleet.stats()[0].rebuilt, 0);
    }

    #[test]
    fn a_fleet_that_is_closed_is_not_rebuilt() {
        let model = model();
        let [one, _] = builders(&model);
        let fleet = one.rebuild_on_fault(2).build_on(&[Device::cpu(1)]).unwrap();
        fleet.close(crate::ring::Close::Drain, Duration::from_secs(20)).unwrap();
        fail(&fleet, FaultClass::Device);
        assert!(matches!(fleet.acquire(), Err(Error::Fault { .. })));
        assert_eq!(fleet.stats()[0].rebuilt, 0);
    }

    #[test]
    fn an_engine_that_is_closed_is_not_rebuilt() {
        let model = model();
        let [one, _] = builders(&model);
        let fleet = one.rebuild_on_fault(2).build_on(&[Device::cpu(1), Device::cpu(1)]).unwrap();
        fleet.engines()[0].close(crate::ring::Close::Drain, Duration::from_secs(20)).unwrap();
        fail(&fleet, FaultClass::Device);
        assert!(answers(&fleet, 0).iter().all(Result::is_ok), "by the other engine");
        let stats = &fleet.stats()[0];
        assert!(stats.rebuilt == 0 && !stats.is_rebuilding && stats.batches == 0, "{stats:?}");
        assert!(fleet.engines()[0].health().closed.is_some());
    }

    #[test]
    fn an_engine_that_is_closed_before_it_is_rebuilt_stays_closed() {
        let model = model();
        let [one, _] = builders(&model);
        let devices = [Device::cpu(1), Device::cpu(1)];
        let fleet = one.rebuild_on_fault(8).build_on(&devices).unwrap();
        let failed = fleet.engines().remove(0);
        devices[0].limit_memory(devices[0].memory_use().device_bytes); // the first attempt fails
        fail(&fleet, FaultClass::Device);
        assert!(answers(&fleet, 0).iter().all(Result::is_ok), "by the other engine");
        assert!(fleet.stats()[0].is_rebuilding);
        assert!(failed.close(crate::ring::Close::Drain, Duration::from_secs(20)).is_err(), "its device failed");
        devices[0].limit_memory(u64::MAX); // a later one would not
        let begin = Instant::now();
        while fleet.stats()[0].is_rebuilding && begin.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stats = &fleet.stats()[0];
        assert!(stats.rebuilt == 0 && !stats.is_rebuilding, "{stats:?}");
        assert!(Arc::ptr_eq(&fleet.engines()[0], &failed) && failed.health().closed.is_some());
        assert!(answers(&fleet, 0).iter().all(Result::is_ok), "by the other engine");
    }
}
