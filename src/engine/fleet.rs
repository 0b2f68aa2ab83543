//! Fleets: the same engine on several devices, used as one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::rebuild::{Blueprint, Engines};
use super::{Engine, EngineBuilder};
use crate::device::{Device, Signal};
use crate::error::{Credits, Error};
use crate::ring::{Batch, Close, DeviceStats, Peers};
use crate::sync::{Mutex, after, lock};
use crate::tensor::{RowSpec, Size};

/// The same engine on each of several devices. A batch goes to the device that has the fewest batches; a device that
/// fails gets no more.
///
/// When a device fails, the other devices run its unanswered batches again, from their page-locked rows, which a fleet
/// keeps until the answer is there. [`Ticket::wait`](crate::Ticket::wait) only takes longer; polling a ticket as a
/// future may block its thread meanwhile. If the fleet is built with fewer results than the default, and all results of
/// the other devices are held past the builder's limit, the wait ends in [`Error::Timeout`], and the rows are lost.
/// When the last device fails, every request is answered with the fault, unless [`EngineBuilder::rebuild_on_fault`] is
/// set: then the fleet opens the device again, so that even a fleet of one device survives a fault. No fleet survives a
/// fault of class [`Process`](crate::FaultClass::Process), such as a kernel's bad address: after it, CUDA refuses the
/// calls for all GPUs of the process. Other processes are not affected.
///
/// Tickets of one device become ready in the order of submission. Tickets of several devices may become ready in any
/// order. A producer that waits for its own tickets in the order of submission has its answers in that order.
///
/// Place producers evenly next to the devices, with [`Device::place_thread`].
///
/// A [`Batcher`](crate::Batcher) belongs to one engine of a fleet, and fails with that engine's device.
///
/// A fleet is `Send` and `Sync`. [`Fleet::engines`] gives the single engines, with their traces, health and
/// measurements.
///
/// ```
/// # use trefoil::{Device, Engine, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// let devices = [Device::cpu(1), Device::cpu(1)]; // or `Device::open(Target::Cuda(n))` for each GPU
/// let fleet = Engine::builder(&model).build_on(&devices)?;
/// let tickets = (0..4).map(|_| fleet.acquire()?.submit(1)).collect::<Result<Vec<_>, _>>()?;
/// for ticket in tickets {
///     assert_eq!(ticket.wait()?.rows(), 1);
/// }
/// assert_eq!(fleet.stats().iter().map(|device| device.batches).sum::<u64>(), 4);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Debug)]
pub struct Fleet {
    engines: Arc<Engines>,
    peers: Arc<Peers>,
    acquire_limit: Duration,
    input: RowSpec,
    output: RowSpec,
}

impl EngineBuilder<'_> {
    /// Builds the same engine on each of `devices`, on all at the same time; weight files are read once. Each engine is
    /// built on the CPUs next to its GPU, so its threads and its page-locked memory are there too. By default each
    /// engine has 2 x slots + 3 staging buffers, and 4 x staging x devices result buffers: enough for the tickets of
    /// all devices, should it be the last one left.
    ///
    /// # Errors
    /// [`Error::Option`] for no device; [`Error::Unsupported`] for a model [with state](crate::model::Model::with_state), and
    /// for a device that is to be rebuilt in a context of the program's; as for [`EngineBuilder::build`].
    pub fn build_on(self, devices: &[Device]) -> Result<Fleet, Error> {
        if devices.is_empty() {
            return Err(Error::option("devices", "an empty list", "at least one"));
        }
        if self.has_states() {
            return Err(Error::Unsupported {
                what: "a fleet of a model with state: batches of one sequence would be computed on several devices"
                    .into(),
                instead: "build an engine on each device, and give it sequences of its own".into(),
            });
        }
        let rebuilds = self.options.rebuild_on_fault;
        if rebuilds > 0 {
            devices.iter().try_for_each(Device::can_be_reopened)?;
        }
        let (acquire_limit, freed) = (self.options.acquire_limit, Arc::<Signal>::default());
        let blueprint = Blueprint::new(self, devices.len(), freed.clone())?;
        let engines: Vec<_> = blueprint.build_on(devices)?.into_iter().map(Arc::new).collect();
        let [input, output] = [engines[0].input(), engines[0].output()].map(RowSpec::clone);
        let peers = Peers::new(engines.iter().map(|engine| engine.core.clone()).collect(), freed, rebuilds);
        let engines = Arc::new(Mutex::new(engines));
        if rebuilds > 0 {
            blueprint.mend(peers.rings(), &Arc::downgrade(&engines))?;
        }
        Ok(Fleet { engines, peers, acquire_limit, input, output })
    }
}

impl Fleet {
    /// Lends a batch of the least loaded device, waiting for a free one up to the builder's limit.
    ///
    /// # Errors
    /// [`Error::Timeout`] past the limit, with the counts of all devices; [`Error::Fault`] if no device is left;
    /// [`Error::Closed`].
    pub fn acquire(&self) -> Result<Batch, Error> {
        self.peers.acquire(self.acquire_limit)
    }

    /// Like [`Fleet::acquire`] with a limit of its own.
    ///
    /// # Errors
    /// As for [`Fleet::acquire`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Batch, Error> {
        self.peers.acquire(limit)
    }

    /// Lends a batch of the least loaded device for rows of the dimensions in `size`, see [`Engine::acquire_for`].
    ///
    /// # Errors
    /// As for [`Engine::acquire_for`] and [`Fleet::acquire`].
    pub fn acquire_for(&self, size: &Size) -> Result<Batch, Error> {
        self.acquire_for_within(size, self.acquire_limit)
    }

    /// Like [`Fleet::acquire_for`] with a limit of its own.
    ///
    /// # Errors
    /// As for [`Fleet::acquire_for`].
    pub fn acquire_for_within(&self, size: &Size, limit: Duration) -> Result<Batch, Error> {
        let bucket = self.peers.rings().now()[0].spec().buckets.holding(size)?;
        Ok(self.peers.acquire(limit)?.in_bucket(bucket))
    }

    /// The fleet that its tickets belong to.
    #[cfg(any(feature = "ffi", test))]
    pub(crate) fn origin(&self) -> crate::ring::Origin {
        crate::ring::Origin::of_ring(&self.peers.rings().now()[0])
    }

    /// The engines that are in use now, in the order of the devices. When an engine is rebuilt, a new one takes its
    /// place. A batch that is acquired from one of these engines runs on that engine. If one of them is closed, the
    /// fleet goes on with the others.
    pub fn engines(&self) -> Vec<Arc<Engine>> {
        lock(&self.engines).clone()
    }

    /// The number of batches that each device has had, and the state of each device.
    pub fn stats(&self) -> Vec<DeviceStats> {
        self.peers.stats()
    }

    /// The number of rows of the largest batch, at the first size's dimensions.
    pub fn capacity(&self) -> usize {
        self.peers.rings().now()[0].capacity()
    }

    /// The layout of the rows that producers write, at the first size's dimensions.
    pub fn input(&self) -> &RowSpec {
        &self.input
    }

    /// The layout of the rows that consumers read, at the first size's dimensions.
    pub fn output(&self) -> &RowSpec {
        &self.output
    }

    /// Closes all engines, even if closing one of them fails, see [`Engine::close`]; `limit` is for all together.
    /// Failed devices have nothing to wait for, and are not rebuilt any more. If an engine is being rebuilt now, the
    /// call waits for that; a drop does not.
    ///
    /// # Errors
    /// [`Error::Timeout`] past the limit; [`Error::Fault`] if no device is left.
    pub fn close(&self, how: Close, limit: Duration) -> Result<(), Error> {
        let start = Instant::now();
        self.peers.rings().end();
        let (mut closed, mut fault, mut late) = (0, None, None);
        for engine in self.engines() {
            match engine.close(how, limit.saturating_sub(start.elapsed())) {
                Ok(()) => closed += 1,
                Err(error @ Error::Fault { .. }) => fault = Some(error),
                Err(error) => late = late.or(Some(error)),
            }
        }
        if !self.peers.rings().await_builders(after(limit.saturating_sub(start.elapsed()))) {
            let credits = Credits::default(); // those of the engine that is being built are nobody's
            late = late.or(Some(Error::Timeout { operation: "close", waited: start.elapsed(), behind: None, credits }));
        }
        late.or(fault.filter(|_| closed == 0)).map_or(Ok(()), Err)
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use std::{fs, thread};

    use super::*;
    use crate::device::cuda::near::{place_near, tests};
    use crate::model::Model;

    /// The names of this process's threads that may run only on one CPU, `cpu`.
    fn kept_on(cpu: usize) -> Vec<String> {
        let mut names = Vec::new();
        for task in fs::read_dir("/proc/self/task").unwrap() {
            let read = |file| fs::read_to_string(task.as_ref().unwrap().path().join(file)).unwrap_or_default();
            if read("status").contains(&format!("Cpus_allowed_list:\t{cpu}\n")) {
                names.push(read("comm").trim().to_owned());
            }
        }
        names
    }

    #[test]
    fn the_threads_of_an_engine_are_where_the_thread_that_builds_it_is() {
        let all = tests::allowed();
        if all.len() < 2 {
            return println!("skipped: one CPU leaves no choice");
        }
        let cpu = all[0];
        let build = move || {
            let root = tests::sys("engine", Some(&cpu.to_string()));
            assert_eq!(place_near(&root, "0000:1b:00.0"), Ok(true));
            fs::remove_dir_all(root).unwrap();
            let model = Model::open("weights/convnet28").unwrap();
            let engine = Engine::builder(&model).on(&Device::cpu(1)).build().unwrap();
            engine.acquire().unwrap().submit(1).unwrap().wait().unwrap();
            kept_on(cpu)
        };
        let names = thread::spawn(build).join().unwrap();
        for name in ["trefoil-done", "trefoil-up"] {
            assert!(names.iter().any(|thread| thread.starts_with(name)), "no {name} of {all:?} on {cpu}: {names:?}");
        }
    }
}
