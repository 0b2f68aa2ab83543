//! The states of programs: values that a run reads as the previous run has left them.

use super::{BuildSpec, Needs};
use crate::device::{Device, StateBuffer};
use crate::error::Error;
use crate::plan::Plan;
use crate::tensor::{Bucket, ROW_ALIGN};

/// Memory for the states of a program of these plans, for as many rows as its largest batch. Its contents are
/// undefined.
pub(super) fn new(device: &Device, plans: &[Plan], spec: &BuildSpec) -> Result<Vec<StateBuffer>, Error> {
    let states = plans.iter().take(1).flat_map(|plan| &plan.states); // those of every plan
    states.map(|row| StateBuffer::new(device, row.clone(), rows(spec))).collect()
}

/// The memory that states take: on the device, and on the host for zeros and for a buffer to read and write states by.
pub(super) fn needs(plans: &[Plan], spec: &BuildSpec) -> Needs {
    let bytes = |row: usize| row.saturating_mul(rows(spec)).max(ROW_ALIGN) as u64;
    let states = || plans.iter().take(1).flat_map(|plan| &plan.states).map(|row| bytes(row.bytes()));
    let device = states().fold(0, u64::saturating_add);
    Needs { device, host: states().max().unwrap_or(0).saturating_mul(2), passing: 0 }
}

fn rows(spec: &BuildSpec) -> usize {
    spec.buckets.iter().map(Bucket::most).max().unwrap_or(0)
}
