//! The free memory of a device and of the host.

use super::{DEVICE_MEMORY, Device};
use crate::error::Error;
use crate::memory;

impl Device {
    /// The free bytes of [`DEVICE_MEMORY`] or [`HOST_MEMORY`](super::HOST_MEMORY); `u64::MAX` if no source gives a
    /// figure.
    pub(crate) fn free_bytes(&self, what: &str) -> Result<u64, Error> {
        let left = if what == DEVICE_MEMORY { self.0.held.left() } else { u64::MAX };
        #[cfg(feature = "cuda")]
        if let (super::Kind::Cuda(cuda), DEVICE_MEMORY) = (&self.0.kind, what) {
            return Ok(left.min(cuda.free_bytes()?));
        }
        Ok(left.min(free_on_host()))
    }

    /// An error if more bytes of a kind of memory are needed than are free.
    pub(crate) fn afford(&self, what: &str, needed_bytes: u64) -> Result<(), Error> {
        within(&self.info().target, what, needed_bytes, self.free_bytes(what)?)
    }

    /// Adds the free bytes to the error of an allocation that was refused.
    pub(crate) fn with_free(&self, error: Error) -> Error {
        let Error::OutOfMemory { device, what, needed_bytes, fitting_batch, .. } = error else { return error };
        match self.free_bytes(&what) {
            Ok(free_bytes) => Error::OutOfMemory { device, what, needed_bytes, free_bytes, fitting_batch },
            Err(failing) => failing,
        }
    }
}

/// An error if more bytes of host memory are needed than are free; for calls without a device.
pub(crate) fn afford_on_host(what: &str, needed_bytes: u64) -> Result<(), Error> {
    within("cpu", what, needed_bytes, free_on_host())
}

/// The free bytes of host memory; `u64::MAX` if no source gives a figure.
pub(crate) fn free_on_host() -> u64 {
    memory::free_bytes().unwrap_or(u64::MAX)
}

fn within(device: &str, what: &str, needed_bytes: u64, free_bytes: u64) -> Result<(), Error> {
    if needed_bytes <= free_bytes {
        return Ok(());
    }
    let (device, what) = (device.into(), what.into());
    Err(Error::OutOfMemory { device, what, needed_bytes, free_bytes, fitting_batch: None })
}

#[cfg(test)]
mod tests {
    use super::super::HOST_MEMORY;
    use super::*;

    #[test]
    fn what_is_refused_says_how_much_there_is() {
        let device = Device::cpu(1);
        device.limit_memory(1000);
        assert!(device.afford(DEVICE_MEMORY, 1000).is_ok() && device.afford(HOST_MEMORY, 1).is_ok());
        match device.afford(DEVICE_MEMORY, 1001) {
            Err(Error::OutOfMemory { needed_bytes: 1001, free_bytes: 1000, .. }) => {}
            other => panic!("{other:?}"),
        }
        match device.afford(HOST_MEMORY, u64::MAX - 1) {
            Err(Error::OutOfMemory { what, free_bytes, .. }) => assert!(what == HOST_MEMORY && free_bytes > 0),
            other => panic!("{other:?}"),
        }
    }
}
