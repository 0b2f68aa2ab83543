//! Types that cross the border between caller and driver: statuses, handles, pointers to results, and the launch
//! configuration.

/// A driver status.
pub type Code = u32;

pub const SUCCESS: Code = 0;
pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const NOT_INITIALIZED: Code = 3;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_CONTEXT: Code = 201;
pub const NO_BINARY_FOR_GPU: Code = 209;
pub const INVALID_PTX: Code = 218;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const ILLEGAL_ADDRESS: Code = 700;
pub const LAUNCH_TIMEOUT: Code = 702;
pub const MISALIGNED_ADDRESS: Code = 716;
pub const LAUNCH_FAILED: Code = 719;
pub const CAPTURE_UNSUPPORTED: Code = 900;
pub const CAPTURE_INVALIDATED: Code = 901;
pub const CAPTURE_UNJOINED: Code = 904;

/// The handle of a stream, event, module, ...: a number that no real pointer has.
pub type Handle = usize;

/// Where a call leaves a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    pub fn set(&self, value: T) {
        assert!(!self.0.is_null(), "a null pointer for a result");
        // SAFETY: the driver's contract: the caller passes a pointer to a T that it may write; not null, just checked.
        unsafe { self.0.write(value) }
    }
}

/// The driver's `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Copy2d {
    src_x: usize,
    src_y: usize,
    src_type: u32,
    src_host: usize,
    src_device: usize,
    src_array: usize,
    src_pitch: usize,
    dst_x: usize,
    dst_y: usize,
    dst_type: u32,
    dst_host: usize,
    dst_device: usize,
    dst_array: usize,
    dst_pitch: usize,
    width: usize,
    height: usize,
}

impl Copy2d {
    /// Source, destination and bytes of each row; `None` unless the copy is from the device to the device.
    pub fn rows(&self) -> Option<impl Iterator<Item = (usize, usize, usize)>> {
        const DEVICE: u32 = 2;
        let is_plain = self.src_type == DEVICE
            && self.dst_type == DEVICE
            && [self.src_x, self.src_y, self.dst_x, self.dst_y, self.src_array, self.dst_array] == [0; 6]
            && [self.src_host, self.dst_host] == [0; 2]
            && self.width <= self.src_pitch.min(self.dst_pitch);
        let row = |y| (self.dst_device + y * self.dst_pitch, self.src_device + y * self.src_pitch, self.width);
        is_plain.then(|| (0..self.height).map(row))
    }
}

/// The driver's `CUtensorMap`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u64; 16]);

/// The driver's `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub stream: Handle,
    pub attributes: *const LaunchAttribute,
    pub attribute_count: u32,
}

/// The driver's `CUlaunchAttribute`.
#[repr(C)]
pub struct LaunchAttribute {
    id: u32,
    pad: u32,
    value: [u32; 16],
}

impl LaunchConfig {
    /// Whether the only attributes are the permission to start before the predecessor has ended, and a cluster of no
    /// more blocks than the function may have, of which the grid is a multiple.
    pub fn attributes_are_known(&self, most_cluster: u32) -> bool {
        const CLUSTER_DIMENSION: u32 = 4;
        self.attributes().iter().all(|a| match (a.id, &a.value) {
            (PROGRAMMATIC_STREAM_SERIALIZATION, value) => a.pad == 0 && value[0] == 1,
            (CLUSTER_DIMENSION, [x, 1, 1, ..]) if (2..=most_cluster).contains(x) => {
                a.pad == 0 && self.grid[0].is_multiple_of(*x)
            }
            _ => false,
        })
    }

    /// Whether the kernel may start before its predecessor has ended.
    pub fn is_early(&self) -> bool {
        self.attributes().iter().any(|a| a.id == PROGRAMMATIC_STREAM_SERIALIZATION)
    }

    fn attributes(&self) -> &[LaunchAttribute] {
        // SAFETY: the driver's contract: there are as many attributes as the count says.
        unsafe { list(self.attributes, self.attribute_count) }
    }
}

/// A slice of `count` values; with a count of 0 the pointer is not used.
///
/// # Safety
/// So many live there.
pub unsafe fn list<'a, T>(start: *const T, count: u32) -> &'a [T] {
    match count {
        0 => &[],
        // SAFETY: by the caller.
        count => unsafe { std::slice::from_raw_parts(start, count as usize) },
    }
}

const PROGRAMMATIC_STREAM_SERIALIZATION: u32 = 6;
