//! The kinds of engines that are built where calls fail, hang or are late.

use std::sync::Arc;
use std::time::Duration;

use trefoil::{Batch, Close, Device, Engine, Error, Fleet, Output, Precision, Target, Waiting};

use crate::engine::{POISON, small_model};
use crate::harness::{ChildReport, Scenario};
use crate::many::head;
use crate::support::records::{self, joined};

/// How long a test waits for an event that should come.
pub const LONG: Duration = Duration::from_secs(20);
/// How long a test waits for an event that should not come.
pub const MOMENT: Duration = Duration::from_millis(50);

/// In a child process: whether a call never returns. Limits are then short, and the hazard checker, which holds its own
/// lock during calls, is off.
pub fn hangs() -> bool {
    std::env::var_os("HANGS").is_some()
}

/// In a child process: whether the stand-in's log says that a call does not return.
pub fn hang_is_logged() -> bool {
    let log = std::env::var("FAKE_CUDA_LOG").unwrap();
    std::fs::read_to_string(log).unwrap_or_default().lines().any(|line| line.starts_with("late "))
}

/// The kind of engine: of one model; of several models, recorded, whose results may stay on the device; a fleet; or of
/// a model of values, whose kernels are generated when it is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    OneModel,
    SeveralModels,
    Fleet,
    Values,
}

impl What {
    pub const ALL: [Self; 4] = [Self::OneModel, Self::SeveralModels, Self::Fleet, Self::Values];

    /// In a child process: the kind that the parent chose.
    pub fn chosen() -> Self {
        let name = std::env::var("WHAT").unwrap();
        Self::ALL.into_iter().find(|what| format!("{what:?}") == name).unwrap()
    }

    /// Opens the devices for this kind.
    pub fn open(self) -> Result<Vec<Device>, Error> {
        let devices = if let Self::Fleet = self { 2 } else { 1 };
        (0..devices).map(|ordinal| Device::open(Target::Cuda(ordinal))).collect()
    }

    pub fn build(self, devices: &[Device], waiting: Waiting) -> Result<Built, Error> {
        let model = small_model();
        let (features, head) = (model.features()?, head(&model));
        let values = joined();
        let builder = match self {
            Self::OneModel | Self::Fleet => Engine::builder(&model),
            Self::Values => Engine::builder(&values).precision(Precision::F32),
            Self::SeveralModels => Engine::builder(&features).then(&head).beside(&head).average(),
        };
        let (limit, is_checked) = if hangs() { (MOMENT, false) } else { (LONG, true) };
        let builder = builder.batch_sizes(&[1, 4]).waiting(waiting).acquire_limit(limit).check(is_checked);
        match self {
            Self::OneModel | Self::Values => {
                builder.on(&devices[0]).staging(2).results(6).build().map(Arc::new).map(Built::Engine)
            }
            Self::SeveralModels => {
                let builder = builder.on(&devices[0]).slots(2).staging(2).results(6);
                builder.device_results(true).trace_batches(6).build().map(Arc::new).map(Built::Engine)
            }
            // As many results as all tickets together: in the end one device may have them all.
            Self::Fleet => builder.slots(2).staging(3).results(16).build_on(devices).map(Built::Fleet),
        }
    }

    pub fn fill(self, batch: &mut Batch, rows: usize) {
        if let Self::Values = self {
            (0..rows).for_each(|row| records::fill(batch, row));
        }
    }

    /// Checks that the first row has been answered.
    pub fn check(self, output: &Output) {
        match self {
            Self::Values => {
                records::check(output.port(0, "features").unwrap(), output.port(0, "best").unwrap(), 0);
            }
            _ => assert_eq!(output.values(0)[0], POISON),
        }
    }

    pub fn runs(self, scenario: &Scenario, variables: &[(&str, &str)]) -> ChildReport {
        let (what, devices) = (format!("{self:?}"), ["1", "2"][usize::from(matches!(self, Self::Fleet))]);
        scenario.run(&[&[("WHAT", &*what), ("FAKE_CUDA_DEVICES", devices)], variables].concat())
    }
}

pub enum Built {
    Engine(Arc<Engine>),
    Fleet(Fleet),
}

impl Built {
    pub fn engines(&self) -> Vec<Arc<Engine>> {
        match self {
            Self::Engine(engine) => vec![engine.clone()],
            Self::Fleet(fleet) => fleet.engines(),
        }
    }

    pub fn acquire(&self) -> Result<Batch, Error> {
        match self {
            Self::Engine(engine) => engine.acquire(),
            Self::Fleet(fleet) => fleet.acquire(),
        }
    }

    pub fn acquire_within(&self, limit: Duration) -> Result<Batch, Error> {
        match self {
            Self::Engine(engine) => engine.acquire_within(limit),
            Self::Fleet(fleet) => fleet.acquire_within(limit),
        }
    }

    pub fn close(&self, limit: Duration) -> Result<(), Error> {
        match self {
            Self::Engine(engine) => engine.close(Close::Drain, limit),
            Self::Fleet(fleet) => fleet.close(Close::Drain, limit),
        }
    }
}
