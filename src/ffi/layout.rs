//! The structs and numbers that programs share with the library; [`super::growing`] describes how structs grow.
//!
//! The file is long because it has every struct of the header, with its documentation.

use std::ffi::{c_char, c_void};

use super::growing::growing;
use super::handles::trefoil_device;
use super::pointers::array;
use super::status::{Answer, Failure};
use crate::tensor::{Dtype, RowPort, RowSpec};

/// The type of one tensor element.
#[repr(u32)]
pub enum trefoil_dtype {
    /// Unsigned byte.
    U8 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// IEEE single precision.
    F32 = 2,
    /// A byte that is 0 or 1.
    Bool = 3,
    /// Unsigned, 16 bits.
    U16 = 4,
    /// Unsigned, 32 bits.
    U32 = 5,
    /// Unsigned, 64 bits.
    U64 = 6,
    /// Signed byte, two's complement.
    I8 = 7,
    /// Signed, 16 bits.
    I16 = 8,
    /// Signed, 32 bits.
    I32 = 9,
    /// Signed, 64 bits.
    I64 = 10,
    /// The upper half of an IEEE single.
    Bf16 = 11,
    /// IEEE double precision.
    F64 = 12,
}

impl From<Dtype> for trefoil_dtype {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bool => Self::Bool,
            Dtype::U8 => Self::U8,
            Dtype::U16 => Self::U16,
            Dtype::U32 => Self::U32,
            Dtype::U64 => Self::U64,
            Dtype::I8 => Self::I8,
            Dtype::I16 => Self::I16,
            Dtype::I32 => Self::I32,
            Dtype::I64 => Self::I64,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::F32 => Self::F32,
            Dtype::F64 => Self::F64,
        }
    }
}

/// The type that a number from outside stands for.
pub(super) fn dtype_of(number: u32) -> Answer<Dtype> {
    let found = Dtype::ALL.into_iter().find(|&dtype| trefoil_dtype::from(dtype) as u32 == number);
    found.ok_or_else(|| Failure::argument(format!("dtype is {number}: expected a trefoil_dtype")))
}

/// How the rows that a producer writes are laid out, for a network of images. A model of values ignores the option: its
/// rows hold its inputs.
#[repr(u32)]
pub enum trefoil_input {
    /// Bytes 0-255, channels innermost, as decoders give them; normalised on the device.
    U8Nhwc = 0,
    /// Floats already normalised, one plane for each channel.
    F32Nchw = 1,
    /// Halves already normalised, channels innermost.
    F16Nhwc = 2,
    /// Floats already normalised, channels innermost.
    F32Nhwc = 3,
}

/// What a row of a network of images gives. All but FEATURES need a result that is a vector; the build returns
/// UNSUPPORTED for any other. A model of values ignores the option: its rows hold its outputs.
#[repr(u32)]
pub enum trefoil_result {
    /// Softmax of the logits: a float for each class.
    Probabilities = 0,
    /// The network's result, without a softmax at its end: a float for each class.
    Logits = 1,
    /// The `top_k` most probable classes, best first, ties by the lower index: trefoil_scored_class each, the
    /// probability before the index.
    TopK = 2,
    /// Floats, channels innermost: what the last layer reads, if it is a linear layer; otherwise, and for a model of
    /// trefoil_model_cut(), the network's result.
    Features = 3,
}

/// What trefoil_batcher_submit(), trefoil_batcher_submit_rows() and trefoil_batcher_row() do when no row is free.
#[repr(u32)]
pub enum trefoil_when_full {
    /// They wait for a free row.
    Wait = 0,
    /// They wait for a free row for at most `full_limit_ns`; past that the row fails with TIMEOUT.
    WaitFor = 1,
    /// They do not wait: the row fails with FULL.
    Reject = 2,
}

/// How host threads learn that the device is done.
#[repr(u32)]
pub enum trefoil_waiting {
    /// They sleep in the driver.
    Block = 0,
    /// They poll, which keeps a core busy and has the lowest latency.
    Spin = 1,
    /// The driver runs a callback of the library, which wakes them. For threads that may not sleep in the driver.
    Callback = 2,
}

/// The type in which layers read their operands: convolutions and products of matrices. Their sums are F32.
#[repr(u32)]
pub enum trefoil_precision {
    /// The device's own: F16 on a GPU, F32 on the CPU.
    Auto = 0,
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of an IEEE single.
    Bf16 = 2,
    /// IEEE single precision.
    F32 = 3,
    /// The one that most elements of the model's weights are stored in.
    Checkpoint = 4,
}

/// A class with its probability, logit or feature.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_scored_class {
    /// Its value.
    pub value: f32,
    /// Its index.
    pub index: u32,
}

/// Shape, type and size of an engine's input rows or output rows. If rows have several ports, shape and type are those
/// of the first one; trefoil_port describes each port. If that port does not have three dimensions, `height` and
/// `width` are 1, and `channels` is the number of its elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_tensor {
    /// sizeof(trefoil_tensor), set by the caller.
    pub size: usize,
    /// Element type: a trefoil_dtype.
    pub dtype: u32,
    /// Height in pixels.
    pub height: u32,
    /// Width in pixels.
    pub width: u32,
    /// Values of a pixel.
    pub channels: u32,
    /// Bytes of one row, from its first port to the end of its last.
    pub row_bytes: usize,
    /// From the beginning of one row of a batch to that of the next, in bytes: a multiple of 256. The first row begins
    /// at an address that is a multiple of 256.
    pub row_pitch: usize,
}

/// A port: one of the values in a row, and its place in the row.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_port {
    /// sizeof(trefoil_port), set by the caller.
    pub size: usize,
    /// Its name, which no other port of the row has, with a final NUL; a longer name is cut.
    pub name: [c_char; 128],
    /// Bytes of the whole name, without NUL.
    pub name_bytes: usize,
    /// Element type: a trefoil_dtype.
    pub dtype: u32,
    /// The number of dimensions; 0 for a single number. The batch is not among them.
    pub rank: u32,
    /// The first 8 dimensions, the innermost last, followed by zeros. If `rank` is above 8, the others are left out.
    pub dims: [usize; 8],
    /// Elements in all.
    pub elements: usize,
    /// Bytes in all.
    pub bytes: usize,
    /// The offset of the port in a row, in bytes: a multiple of 16.
    pub offset: usize,
}

/// A size of an engine, or of a request: the number of rows in a batch, and sizes of free dimensions by name. A
/// dimension that is not named has the size that the model has; in a request to an engine, fleet or batcher, that of
/// the engine's first size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_size {
    /// sizeof(trefoil_size).
    pub size: usize,
    /// Rows of a batch, at least 1: among the `sizes` of an engine, so many are computed together; in
    /// trefoil_acquire_for(), the batch has to hold so many; in trefoil_row_options, 1. trefoil_model_at() ignores it.
    pub batch: usize,
    /// Names of dimensions, `count` of them.
    pub names: *const *const c_char,
    /// Their sizes.
    pub values: *const usize,
    /// How many they are.
    pub count: usize,
}

/// A description of a batch and its rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_batch_info {
    /// sizeof(trefoil_batch_info), set by the caller.
    pub size: usize,
    /// The number of rows that fit.
    pub capacity: usize,
    /// Bytes of one row, from its first port to the end of its last.
    pub row_bytes: usize,
    /// From the beginning of one row to that of the next, in bytes: a multiple of 256.
    pub row_pitch: usize,
    /// How many ports a row has.
    pub ports: usize,
}

/// A description of a device.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_device_info {
    /// sizeof(trefoil_device_info), set by the caller.
    pub size: usize,
    /// `cpu`, `cuda:0`, and so on.
    pub target: [c_char; 32],
    /// The name, as the driver gives it.
    pub name: [c_char; 96],
    /// Major compute capability; 0 for a CPU.
    pub capability_major: u32,
    /// Minor compute capability.
    pub capability_minor: u32,
    /// The driver's CUDA version, as 1000 x major + 10 x minor; 0 for a CPU.
    pub driver_version: u32,
    /// Streaming multiprocessors; for a CPU, compute threads.
    pub units: u32,
    /// The size of the device's memory in bytes; 0 for a CPU.
    pub memory_bytes: u64,
    /// Device memory that trefoil holds: weights, activations, slots.
    pub device_bytes_used: u64,
    /// Page-locked host memory that trefoil holds: staging, results, rows of batchers.
    pub page_locked_bytes_used: u64,
}

/// The input and the result of a model. For a model that is no network of images, all members except the name are
/// zeros: the ports of its engine describe its inputs and outputs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_model_info {
    /// sizeof(trefoil_model_info), set by the caller.
    pub size: usize,
    /// The architecture's name, or an ONNX file's name without `.onnx`.
    pub name: [c_char; 96],
    /// Height of its input in pixels.
    pub height: u32,
    /// Width of its input in pixels.
    pub width: u32,
    /// Channels of its input.
    pub channels: u32,
    /// Preprocessing resizes an image so that its shorter side has this many pixels, and then crops its centre.
    pub resize: u32,
    /// Length of the result, or its channels if it is not a vector.
    pub classes: usize,
}

/// The options of an engine. Zeros are the defaults: `trefoil_engine_options options = { .size = sizeof options }`.
/// Only TREFOIL_RESULT_TOP_K needs a second member, `top_k`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_engine_options {
    /// sizeof(trefoil_engine_options).
    pub size: usize,
    /// The device. Default: the first GPU, or the CPU if there is no GPU.
    pub device: trefoil_device,
    /// The largest batch. For a GPU the engine also has a captured graph for each smaller power of two. Default: 32 on
    /// a GPU, 8 on a CPU; 1 for a model with state, and for a model of values whose rows hold whole inputs.
    pub batch: usize,
    /// Exactly these batch sizes, instead of `batch`.
    pub batch_sizes: *const usize,
    /// How many they are.
    pub batch_size_count: usize,
    /// Slots: batches that are on the device at the same time. Default 3; with several compute streams, the smallest
    /// multiple of their number that exceeds it by two or more. With 1 slot nothing overlaps except copies.
    pub slots: usize,
    /// Staging buffers. Default: slots + 3; for each engine of a fleet, 2 x slots + 3. Recommended: producers + slots.
    pub staging: usize,
    /// Result buffers. Default: 4 x staging; for each engine of a fleet, 4 x staging x devices.
    pub results: usize,
    /// The format of the rows that producers write: a trefoil_input.
    pub input: u32,
    /// The kind of result that consumers read: a trefoil_result.
    pub result: u32,
    /// For TREFOIL_RESULT_TOP_K the number of classes in a result, 1 to 64, and no more than the model has; for any
    /// other result 0. The build returns INVALID_ARGUMENT for any other number.
    pub top_k: usize,
    /// How long trefoil_acquire() waits for a free batch. Default 10 s; the shortest limit is 1.
    pub acquire_limit_ns: u64,
    /// 1: this engine's streams have priority over streams of normal priority.
    pub high_priority: u32,
    /// 1: the hazard checker checks every access. For tests.
    pub check: u32,
    /// How threads learn that the device is done: a trefoil_waiting.
    pub waiting: u32,
    /// 1: the engine has buffers for results that stay on the device, for trefoil_submit_to_device().
    pub device_results: u32,
    /// The number of batches that the recorder remembers, for trefoil_trace_write(); 0: the engine does not record.
    pub trace_batches: usize,
    /// The number of batches that are computed side by side; `slots` must be a multiple of it. Default 1.
    pub compute_streams: usize,
    /// Exactly these sizes, instead of `batch` and `batch_sizes`. Functions without a size use the dimensions of the
    /// first one.
    pub sizes: *const *const trefoil_size,
    /// How many they are.
    pub size_count: usize,
    /// The type in which layers read their operands: a trefoil_precision.
    pub precision: u32,
    /// Zero.
    pub reserved: u32,
}

/// Rows in device memory, and the stream whose earlier work writes these rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_device_rows {
    /// sizeof(trefoil_device_rows).
    pub size: usize,
    /// Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host.
    pub address: *const c_void,
    /// From the beginning of one row to that of the next, in bytes. Default: `row_bytes` of trefoil_batch_get_info(),
    /// no gap.
    pub row_pitch: usize,
    /// A CUstream or cudaStream_t that lives until the batch is submitted or released, or null for the default stream;
    /// on the CPU null, which is the calling thread.
    pub stream: *mut c_void,
}

/// The address of a result on the device, and the event behind the result.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_device_output_info {
    /// sizeof(trefoil_device_output_info), set by the caller.
    pub size: usize,
    /// Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host.
    pub address: *mut c_void,
    /// Rows submitted.
    pub rows: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// From the beginning of one row to that of the next, in bytes: a multiple of 256.
    pub row_pitch: usize,
    /// The CUevent behind the result. The program may wait for it and query it until the output is released, and must
    /// not record or destroy it. Null on the CPU.
    pub event: *mut c_void,
}

/// The state of an engine. Each staging or result buffer is counted in exactly one state, with one exception: the
/// buffer of a released trefoil_device_output counts as in flight until its result is computed, and may be lent again
/// meanwhile.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_health {
    /// sizeof(trefoil_health), set by the caller.
    pub size: usize,
    /// 1 if a fault put the device out of use. Every later call returns this fault, and trefoil_device_health() has its
    /// message.
    pub faulted: u32,
    /// How far the fault reaches: a trefoil_fault_class.
    pub fault_class: u32,
    /// 1 if the engine was closed.
    pub closed: u32,
    /// Zero.
    pub reserved: u32,
    /// Batches lent to producers, not yet submitted.
    pub filling: usize,
    /// Submissions whose result is not there yet.
    pub in_flight: usize,
    /// Finished results that a ticket or output still holds.
    pub unread: usize,
    /// Buffers that are out of use, because after a fault it is unknown whether the device still accesses them.
    pub quarantined: usize,
    /// Staging buffers in all.
    pub staging: usize,
    /// Result buffers in all.
    pub results: usize,
}

/// What one device of a fleet has done, and how it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_fleet_stats {
    /// sizeof(trefoil_fleet_stats), set by the caller.
    pub size: usize,
    /// Batches submitted to the device.
    pub batches: u64,
    /// Rows of these batches.
    pub rows: u64,
    /// Batches that ran here because another device, or this one before its engine was built again, did not answer
    /// them.
    pub run_again: u64,
    /// How often its engine was built again after a fault.
    pub rebuilt: u64,
    /// Batches that it has now, in flight or being filled.
    pub load: usize,
    /// 1 if the device takes no more batches.
    pub faulted: u32,
    /// 1 if its engine is being built again now, or will be.
    pub rebuilding: u32,
    /// How far its fault reaches, or else the one after which its engine was last built again: a trefoil_fault_class.
    /// REQUEST if there was none.
    pub fault_class: u32,
    /// Zero.
    pub reserved: u32,
}

/// The options of a batcher. Zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_batcher_options {
    /// sizeof(trefoil_batcher_options).
    pub size: usize,
    /// How long a batch that is not full waits after its first commit while the device is busy. Default 5 ms; the
    /// shortest delay is 1.
    pub max_delay_ns: u64,
    /// Rows of page-locked memory. Default: as many as may be in flight, and four batches more.
    pub rows: usize,
    /// The number of batches that the ring has at the same time. Default: the slots and one.
    pub in_flight: usize,
    /// What a submission does when no row is free: a trefoil_when_full.
    pub when_full: u32,
    /// Zero.
    pub reserved: u32,
    /// The limit of TREFOIL_WHEN_FULL_WAIT_FOR; 0 is a limit too.
    pub full_limit_ns: u64,
}

/// The options of one row. Zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_row_options {
    /// sizeof(trefoil_row_options).
    pub size: usize,
    /// How long after the call the row may wait for memory and for its upload; after that it is answered with DEADLINE.
    /// 0: no limit.
    pub deadline_ns: u64,
    /// 1: it goes before waiting and queued rows of normal priority.
    pub high_priority: u32,
    /// Zero.
    pub reserved: u32,
    /// The dimensions of the row, with a `batch` of 1: the row gets the smallest size of the engine that holds them.
    /// Null: the dimensions of the engine's first size.
    pub at: *const trefoil_size,
}

/// Counts of a batcher's work since it was built.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct trefoil_batcher_stats {
    /// sizeof(trefoil_batcher_stats), set by the caller.
    pub size: usize,
    /// Batches submitted.
    pub batches: u64,
    /// Rows submitted in them.
    pub rows: u64,
    /// Rows refused because there was no room.
    pub rejected: u64,
    /// Rows answered with DEADLINE.
    pub expired: u64,
    /// Upload copies: one for each run of neighbouring rows.
    pub runs: u64,
    /// Rows committed and not yet in a batch.
    pub queued: u64,
    /// Half of the rows stayed in the queue no longer than this.
    pub queue_p50_ns: u64,
    /// 99 of 100 rows stayed in the queue no longer than this.
    pub queue_p99_ns: u64,
}

growing! {
    trefoil_tensor {
        size: 0,
        dtype: 8,
        height: 12,
        width: 16,
        channels: 20,
        row_bytes: 24,
        row_pitch: 32,
    } 40
    trefoil_port {
        size: 0,
        name: 8,
        name_bytes: 136,
        dtype: 144,
        rank: 148,
        dims: 152,
        elements: 216,
        bytes: 224,
        offset: 232,
    } 240
    trefoil_size {
        size: 0,
        batch: 8,
        names: 16,
        values: 24,
        count: 32,
    } 40
    trefoil_batch_info {
        size: 0,
        capacity: 8,
        row_bytes: 16,
        row_pitch: 24,
        ports: 32,
    } 40
    trefoil_device_info {
        size: 0,
        target: 8,
        name: 40,
        capability_major: 136,
        capability_minor: 140,
        driver_version: 144,
        units: 148,
        memory_bytes: 152,
        device_bytes_used: 160,
        page_locked_bytes_used: 168,
    } 176
    trefoil_model_info {
        size: 0,
        name: 8,
        height: 104,
        width: 108,
        channels: 112,
        resize: 116,
        classes: 120,
    } 128
    trefoil_engine_options {
        size: 0,
        device: 8,
        batch: 16,
        batch_sizes: 24,
        batch_size_count: 32,
        slots: 40,
        staging: 48,
        results: 56,
        input: 64,
        result: 68,
        top_k: 72,
        acquire_limit_ns: 80,
        high_priority: 88,
        check: 92,
        waiting: 96,
        device_results: 100,
        trace_batches: 104,
        compute_streams: 112,
        sizes: 120,
        size_count: 128,
        precision: 136,
        reserved: 140,
    } 144
    trefoil_device_rows {
        size: 0,
        address: 8,
        row_pitch: 16,
        stream: 24,
    } 32
    trefoil_device_output_info {
        size: 0,
        address: 8,
        rows: 16,
        row_bytes: 24,
        row_pitch: 32,
        event: 40,
    } 48
    trefoil_health {
        size: 0,
        faulted: 8,
        fault_class: 12,
        closed: 16,
        reserved: 20,
        filling: 24,
        in_flight: 32,
        unread: 40,
        quarantined: 48,
        staging: 56,
        results: 64,
    } 72
    trefoil_fleet_stats {
        size: 0,
        batches: 8,
        rows: 16,
        run_again: 24,
        rebuilt: 32,
        load: 40,
        faulted: 48,
        rebuilding: 52,
        fault_class: 56,
        reserved: 60,
    } 64
    trefoil_batcher_options {
        size: 0,
        max_delay_ns: 8,
        rows: 16,
        in_flight: 24,
        when_full: 32,
        reserved: 36,
        full_limit_ns: 40,
    } 48
    trefoil_row_options {
        size: 0,
        deadline_ns: 8,
        high_priority: 16,
        reserved: 20,
        at: 24,
    } 32
    trefoil_batcher_stats {
        size: 0,
        batches: 8,
        rows: 16,
        rejected: 24,
        expired: 32,
        runs: 40,
        queued: 48,
        queue_p50_ns: 56,
        queue_p99_ns: 64,
    } 72
}

const _: () = assert!(size_of::<trefoil_scored_class>() == 8 && std::mem::offset_of!(trefoil_scored_class, index) == 4);

impl trefoil_tensor {
    pub(super) fn new(size: usize, spec: &RowSpec) -> Self {
        let port = spec.ports().first();
        let dtype = trefoil_dtype::from(port.map_or(Dtype::U8, |port| port.dtype));
        let [height, width, channels] = match port.map(|port| &port.dims[..]) {
            Some(&[height, width, channels]) => [height, width, channels],
            _ => [1, 1, port.map_or(0, |port| port.elems())],
        };
        let [height, width, channels] = [height, width, channels].map(narrow);
        Self {
            size,
            dtype: dtype as u32,
            height,
            width,
            channels,
            row_bytes: spec.row_bytes,
            row_pitch: spec.row_pitch,
        }
    }
}

impl trefoil_port {
    pub(super) fn new(size: usize, port: &RowPort) -> Self {
        let mut dims = [0; 8];
        dims.iter_mut().zip(&port.dims).for_each(|(to, &dim)| *to = dim);
        Self {
            size,
            name: array(&port.name),
            name_bytes: port.name.len(),
            dtype: trefoil_dtype::from(port.dtype) as u32,
            rank: narrow(port.dims.len()),
            dims,
            elements: port.elems(),
            bytes: port.bytes(),
            offset: port.offset,
        }
    }
}

/// A count as 32 bits, which suffice for every count that a machine can hold.
pub(super) fn narrow(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_of_types_are_0_to_12_each_its_own() {
        let numbers = Dtype::ALL.map(|dtype| trefoil_dtype::from(dtype) as u32);
        assert_eq!(BTreeSet::from(numbers), (0..13).collect());
        assert!(Dtype::ALL.iter().zip(numbers).all(|(&dtype, number)| dtype_of(number).unwrap() == dtype));
        assert!(dtype_of(13).is_err());
    }
}
