//! Objects that a failed device may still use are never freed.

use std::mem;
use std::ops::{Deref, DerefMut};

use crate::device::Device;

/// Code or graphs, freed when dropped, unless the device has faulted: then nothing proves that it has stopped running
/// them, and they are left to it, as its buffers are.
pub(super) struct UntilFault<T> {
    device: Device,
    /// There until self is dropped.
    value: Option<T>,
}

impl<T> UntilFault<T> {
    pub fn new(device: &Device, value: T) -> Self {
        Self { device: device.clone(), value: Some(value) }
    }
}

impl<T> Deref for UntilFault<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("there until dropped")
    }
}

impl<T> DerefMut for UntilFault<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("there until dropped")
    }
}

impl<T> Drop for UntilFault<T> {
    fn drop(&mut self) {
        if self.device.fault().is_some() {
            mem::forget(self.value.take());
        }
    }
}
