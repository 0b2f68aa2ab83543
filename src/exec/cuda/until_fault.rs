//! Objects that a failed device may still use are never freed.

use std::mem;
use std::ops::{Deref, DerefMut};

use crate::device::Device;

/// Kernels or graphs, which are freed when dropped, unless the device has faulted. Then nothing proves that the device
/// has stopped running them, and they are never freed, like the device's buffers.
pub(super) struct UntilFault<T> {
    device: Device,
    /// The object; `None` only after the drop.
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
