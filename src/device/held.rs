//! The memory of a device that live buffers hold, and its limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Memory that trefoil holds on a device, in bytes.
///
/// ```
/// use trefoil::MemoryUse;
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// assert_eq!(cpu.memory_use(), MemoryUse::default()); // nothing yet
/// let engine = Engine::builder(&model).on(&cpu).build()?;
/// let MemoryUse { device_bytes, page_locked_bytes } = cpu.memory_use();
/// assert!(device_bytes > 0 && page_locked_bytes > 0);
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Device memory: weights, activations, slots. It does not include code and graphs, which the driver keeps.
    pub device_bytes: u64,
    /// Page-locked host memory: staging, results, rows of batchers.
    pub page_locked_bytes: u64,
}

/// The bytes that live buffers hold, over all handles of a device. The counters order no other memory accesses.
pub(super) struct Held {
    device: AtomicU64,
    page_locked: AtomicU64,
    /// The most device memory that they may hold.
    limit: AtomicU64,
    /// Every stream, event and buffer holds a clone of it until it is freed.
    handles: Arc<()>,
}

impl Default for Held {
    fn default() -> Self {
        let none = || AtomicU64::new(0);
        Self { device: none(), page_locked: none(), limit: AtomicU64::new(u64::MAX), handles: Arc::default() }
    }
}

impl Held {
    pub fn now(&self) -> MemoryUse {
        let now = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        MemoryUse { device_bytes: now(&self.device), page_locked_bytes: now(&self.page_locked) }
    }

    /// A clone for a handle's last field, which is dropped after the device has freed the handle.
    pub fn handle(&self) -> Arc<()> {
        self.handles.clone()
    }

    /// Whether no handle is left; then the thread that dropped the last one has made its last call to the device.
    pub fn has_no_handles(&self) -> bool {
        let none = Arc::strong_count(&self.handles) == 1;
        fence(Ordering::Acquire);
        none
    }

    pub fn limit(&self, device_bytes: u64) {
        self.limit.store(device_bytes, Ordering::Relaxed);
    }

    /// The bytes of device memory that the limit leaves.
    pub fn left(&self) -> u64 {
        self.limit.load(Ordering::Relaxed).saturating_sub(self.device.load(Ordering::Relaxed))
    }

    /// Takes device memory; if the limit leaves too little, the error has the bytes that it leaves.
    pub fn take_device(&self, bytes: usize) -> Result<(), u64> {
        let limit = self.limit.load(Ordering::Relaxed);
        let within = |held: u64| held.checked_add(bytes as u64).filter(|&held| held <= limit);
        let taken = self.device.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within);
        taken.map(drop).map_err(|held| limit.saturating_sub(held))
    }

    pub fn give_device(&self, bytes: usize) {
        self.device.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    pub fn take_page_locked(&self, bytes: usize) {
        self.page_locked.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub fn give_page_locked(&self, bytes: usize) {
        self.page_locked.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_kept_to_the_byte() {
        let held = Held::default();
        held.limit(100);
        assert_eq!(held.take_device(60), Ok(()));
        assert_eq!(held.take_device(41), Err(40));
        assert_eq!((held.take_device(40), held.left()), (Ok(()), 0));
        held.give_device(60);
        assert_eq!((held.now().device_bytes, held.left()), (40, 60));
        held.limit(10);
        assert_eq!((held.take_device(1), held.left()), (Err(0), 0), "a limit below what is held takes nothing away");
    }
}
