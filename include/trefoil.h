/* The C interface of trefoil: copy in, compute, copy out, all at the same time. trefoil.hpp wraps it for C++17.
 *
 * scripts/header.sh writes this file from src/ffi/; do not edit it.
 *
 * The way of a batch: trefoil_acquire() lends a batch of page-locked memory. Any number of threads write its rows, at the
 * addresses that trefoil_batch_row() gives. trefoil_submit() enqueues upload, compute and download, and returns at
 * once. trefoil_wait() blocks until this submission is done; trefoil_on_ready() registers a callback instead. The program
 * reads the result in place, at the addresses that trefoil_output_row() gives. trefoil_release() frees the memory for a
 * later batch. Single rows from many threads go through a batcher instead.
 *
 * A row holds one or several ports, each a value with a name, a type and dimensions. The rows of a network of images have
 * one port; those of any other model have a port for each input or output. trefoil_engine_input_port() describes a port,
 * trefoil_engine_find_input() finds one by its name, trefoil_batch_port() and trefoil_output_port() give the address of its
 * elements. Every call that gives out memory also gives its length in bytes.
 *
 * Handles are numbers, never pointers; 0 is no handle. Every function may be called from any thread at any time, with any
 * handle: for a handle that was released, that never existed, or that names another kind of object, it returns a status.
 * An object that a call consumes, such as the batch of trefoil_submit(), is gone for every thread. No function may be
 * called from a signal handler, from a trefoil_log_callback, or in a child after fork().
 *
 * This is version 2 of the interface, see TREFOIL_ABI_MAJOR; a program compiled for version 1 must be compiled again.
 * trefoil_check_abi() tells whether the library can run a program that was compiled with this header.
 *
 * Every function that can fail returns a trefoil_status; trefoil_last_error() has the message. A call that fails writes
 * none of its results. No function throws, and none aborts unless malloc() fails.
 *
 * Structs begin with `size`, which the program sets to sizeof the struct. For all other members of options, 0 is the
 * default, unless the comment of the member says otherwise. Structs grow at their end, and programs compiled with an older header keep working.
 *
 * The library cannot check that the pointers given to it are valid, and how a program uses the pointers that it gives
 * out: do not write rows of a batch after trefoil_submit() or trefoil_release(), and do not read rows of an output after
 * trefoil_release(). The memory stays mapped while an object of its engine lives, so such a write damages another batch,
 * and such a read sees the results of another batch.
 */

#ifndef TREFOIL_H
#define TREFOIL_H

#include <stddef.h>
#include <stdint.h>

/*
 The interface's version that this header describes. It grows when something changes so that an old program must
 be compiled anew; then the library's file gets another name too.
 */
#define TREFOIL_ABI_MAJOR 2

/* Grows when something is added. A library runs every program that was compiled for a minor version up to its own. */
#define TREFOIL_ABI_MINOR 3

/* The status that a call returns. The numbers never change. */
enum trefoil_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Done. */
    TREFOIL_STATUS_OK = 0,
    /* The result is not there yet. Nothing failed, and every handle stays valid. There is no message. */
    TREFOIL_STATUS_NOT_READY = 1,
    /* The handle is 0, or a number that this library never gave out. */
    TREFOIL_STATUS_INVALID_HANDLE = 10,
    /* The handle belongs to another kind of object. */
    TREFOIL_STATUS_WRONG_KIND = 11,
    /* The handle was released, or consumed by a call such as trefoil_submit(). */
    TREFOIL_STATUS_RELEASED = 12,
    /* Another thread is in a call that consumes or changes the object, or waits for it, such as trefoil_wait_for(). */
    TREFOIL_STATUS_BUSY = 13,
    /* A pointer that must not be null is null. */
    TREFOIL_STATUS_NULL_POINTER = 14,
    /* An argument or option is out of its range; the message has the range. */
    TREFOIL_STATUS_INVALID_ARGUMENT = 15,
    /*
     Program and library do not match: the program was compiled for another version of the interface, or did not set
     the size of a struct.
     */
    TREFOIL_STATUS_ABI_MISMATCH = 16,
    /* There are already a million handles of this kind. */
    TREFOIL_STATUS_TOO_MANY_HANDLES = 17,
    /*
     A call in a callback would have to wait. It returns at once instead, because what it waits for may depend on
     later callbacks.
     */
    TREFOIL_STATUS_IN_CALLBACK = 18,
    /* A file cannot be opened, read or written. */
    TREFOIL_STATUS_IO = 20,
    /* The content of a file violates its format, or does not match the model. */
    TREFOIL_STATUS_FORMAT = 21,
    /* A valid request that trefoil does not support, or does not support on this device. */
    TREFOIL_STATUS_UNSUPPORTED = 22,
    /* There is no device of the kind that was asked for. */
    TREFOIL_STATUS_NO_DEVICE = 30,
    /*
     There is not enough memory, or a thread cannot be started; the message names the batch that would fit, or the
     thread.
     */
    TREFOIL_STATUS_OUT_OF_MEMORY = 31,
    /* A driver call failed; the message names it and its status. */
    TREFOIL_STATUS_DRIVER = 32,
    /* The device failed earlier and is out of use. */
    TREFOIL_STATUS_FAULT = 33,
    /* A wait reached its limit; the message has the state of the batches. */
    TREFOIL_STATUS_TIMEOUT = 40,
    /* A row's deadline passed in the queue; it was not computed. */
    TREFOIL_STATUS_DEADLINE = 41,
    /* No row of the batcher is free, and its option is TREFOIL_WHEN_FULL_REJECT. */
    TREFOIL_STATUS_FULL = 42,
    /* The engine or batcher was closed. */
    TREFOIL_STATUS_CLOSED = 43,
    /*
     A row of a result is invalid: a value is not finite, a probability is not within 0 to 1, or the model has no
     such class.
     */
    TREFOIL_STATUS_OUTPUT = 44,
    /* A bug in trefoil; please report it. */
    TREFOIL_STATUS_INTERNAL = 50,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_status trefoil_status;
#else
typedef int32_t trefoil_status;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* How far a failure reaches, which decides how to recover from it. */
enum trefoil_fault_class
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Only this call or this request failed; everything else continues. */
    TREFOIL_FAULT_CLASS_REQUEST = 0,
    /* Every handle of the device is out of use. Opening the device again and building a new engine may work. */
    TREFOIL_FAULT_CLASS_DEVICE = 1,
    /* No GPU works in this process any more; the process must be restarted. */
    TREFOIL_FAULT_CLASS_PROCESS = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_fault_class trefoil_fault_class;
#else
typedef uint32_t trefoil_fault_class;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* The type of one tensor element. */
enum trefoil_dtype
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Unsigned byte. */
    TREFOIL_DTYPE_U8 = 0,
    /* IEEE half precision. */
    TREFOIL_DTYPE_F16 = 1,
    /* IEEE single precision. */
    TREFOIL_DTYPE_F32 = 2,
    /* A byte that is 0 or 1. */
    TREFOIL_DTYPE_BOOL = 3,
    /* Unsigned, 16 bits. */
    TREFOIL_DTYPE_U16 = 4,
    /* Unsigned, 32 bits. */
    TREFOIL_DTYPE_U32 = 5,
    /* Unsigned, 64 bits. */
    TREFOIL_DTYPE_U64 = 6,
    /* Signed byte, two's complement. */
    TREFOIL_DTYPE_I8 = 7,
    /* Signed, 16 bits. */
    TREFOIL_DTYPE_I16 = 8,
    /* Signed, 32 bits. */
    TREFOIL_DTYPE_I32 = 9,
    /* Signed, 64 bits. */
    TREFOIL_DTYPE_I64 = 10,
    /* The upper half of an IEEE single. */
    TREFOIL_DTYPE_BF16 = 11,
    /* IEEE double precision. */
    TREFOIL_DTYPE_F64 = 12,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_dtype trefoil_dtype;
#else
typedef uint32_t trefoil_dtype;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 How the rows that a producer writes are laid out, for a network of images. A model of values ignores the option: its
 rows hold its inputs.
 */
enum trefoil_input
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Bytes 0-255, channels innermost, as decoders give them; normalised on the device. */
    TREFOIL_INPUT_U8_NHWC = 0,
    /* Floats already normalised, one plane for each channel. */
    TREFOIL_INPUT_F32_NCHW = 1,
    /* Halves already normalised, channels innermost. */
    TREFOIL_INPUT_F16_NHWC = 2,
    /* Floats already normalised, channels innermost. */
    TREFOIL_INPUT_F32_NHWC = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_input trefoil_input;
#else
typedef uint32_t trefoil_input;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/*
 What a row of a network of images gives. All but FEATURES need a result that is a vector; the build returns
 UNSUPPORTED for any other. A model of values ignores the option: its rows hold its outputs.
 */
enum trefoil_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Softmax of the logits: a float for each class. */
    TREFOIL_RESULT_PROBABILITIES = 0,
    /* The network's result, without a softmax at its end: a float for each class. */
    TREFOIL_RESULT_LOGITS = 1,
    /*
     The `top_k` most probable classes, best first, ties by the lower index: trefoil_scored_class each, the
     probability before the index.
     */
    TREFOIL_RESULT_TOP_K = 2,
    /*
     Floats, channels innermost: what the last layer reads, if it is a linear layer; otherwise, and for a model of
     trefoil_model_cut(), the network's result.
     */
    TREFOIL_RESULT_FEATURES = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_result trefoil_result;
#else
typedef uint32_t trefoil_result;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* What trefoil_batcher_submit(), trefoil_batcher_submit_rows() and trefoil_batcher_row() do when no row is free. */
enum trefoil_when_full
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* They wait for a free row. */
    TREFOIL_WHEN_FULL_WAIT = 0,
    /* They wait for a free row for at most `full_limit_ns`; past that the row fails with TIMEOUT. */
    TREFOIL_WHEN_FULL_WAIT_FOR = 1,
    /* They do not wait: the row fails with FULL. */
    TREFOIL_WHEN_FULL_REJECT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_when_full trefoil_when_full;
#else
typedef uint32_t trefoil_when_full;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* How host threads learn that the device is done. */
enum trefoil_waiting
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* They sleep in the driver. */
    TREFOIL_WAITING_BLOCK = 0,
    /* They poll, which keeps a core busy and has the lowest latency. */
    TREFOIL_WAITING_SPIN = 1,
    /* The driver runs a callback of the library, which wakes them. For threads that may not sleep in the driver. */
    TREFOIL_WAITING_CALLBACK = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_waiting trefoil_waiting;
#else
typedef uint32_t trefoil_waiting;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* The type in which layers read their operands: convolutions and products of matrices. Their sums are F32. */
enum trefoil_precision
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* The device's own: F16 on a GPU, F32 on the CPU. */
    TREFOIL_PRECISION_AUTO = 0,
    /* IEEE half precision. */
    TREFOIL_PRECISION_F16 = 1,
    /* The upper half of an IEEE single. */
    TREFOIL_PRECISION_BF16 = 2,
    /* IEEE single precision. */
    TREFOIL_PRECISION_F32 = 3,
    /* The one that most elements of the model's weights are stored in. */
    TREFOIL_PRECISION_CHECKPOINT = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_precision trefoil_precision;
#else
typedef uint32_t trefoil_precision;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* The messages that are logged. Each level includes the levels before it. */
enum trefoil_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Nothing. */
    TREFOIL_LOG_LEVEL_OFF = 0,
    /* Faults. */
    TREFOIL_LOG_LEVEL_ERROR = 1,
    /* Fallbacks, such as the CPU in place of a missing GPU. */
    TREFOIL_LOG_LEVEL_WARN = 2,
    /* Choices, such as the device. */
    TREFOIL_LOG_LEVEL_INFO = 3,
    /* Details. */
    TREFOIL_LOG_LEVEL_DEBUG = 4,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_log_level trefoil_log_level;
#else
typedef uint32_t trefoil_log_level;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* A device that engines run on. */
typedef uint64_t trefoil_device;

/* A description of a device. */
typedef struct trefoil_device_info {
    /* sizeof(trefoil_device_info), set by the caller. */
    size_t size;
    /* `cpu`, `cuda:0`, and so on. */
    char target[32];
    /* The name, as the driver gives it. */
    char name[96];
    /* Major compute capability; 0 for a CPU. */
    uint32_t capability_major;
    /* Minor compute capability. */
    uint32_t capability_minor;
    /* The driver's CUDA version, as 1000 x major + 10 x minor; 0 for a CPU. */
    uint32_t driver_version;
    /* Streaming multiprocessors; for a CPU, compute threads. */
    uint32_t units;
    /* The size of the device's memory in bytes; 0 for a CPU. */
    uint64_t memory_bytes;
    /* Device memory that trefoil holds: weights, activations, slots. */
    uint64_t device_bytes_used;
    /* Page-locked host memory that trefoil holds: staging, results, rows of batchers. */
    uint64_t page_locked_bytes_used;
} trefoil_device_info;

/* A model: graph, weights, labels. */
typedef uint64_t trefoil_model;

/*
 The input and the result of a model. For a model that is no network of images, all members except the name are
 zeros: the ports of its engine describe its inputs and outputs.
 */
typedef struct trefoil_model_info {
    /* sizeof(trefoil_model_info), set by the caller. */
    size_t size;
    /* The architecture's name, or an ONNX file's name without `.onnx`. */
    char name[96];
    /* Height of its input in pixels. */
    uint32_t height;
    /* Width of its input in pixels. */
    uint32_t width;
    /* Channels of its input. */
    uint32_t channels;
    /* Preprocessing resizes an image so that its shorter side has this many pixels, and then crops its centre. */
    uint32_t resize;
    /* Length of the result, or its channels if it is not a vector. */
    size_t classes;
} trefoil_model_info;

/*
 A size of an engine, or of a request: the number of rows in a batch, and sizes of free dimensions by name. A
 dimension that is not named has the size that the model has; in a request to an engine, fleet or batcher, that of
 the engine's first size.
 */
typedef struct trefoil_size {
    /* sizeof(trefoil_size). */
    size_t size;
    /*
     Rows of a batch, at least 1: among the `sizes` of an engine, so many are computed together; in
     trefoil_acquire_for(), the batch has to hold so many; in trefoil_row_options, 1. trefoil_model_at() ignores it.
     */
    size_t batch;
    /* Names of dimensions, `count` of them. */
    const char *const *names;
    /* Their sizes. */
    const size_t *values;
    /* How many they are. */
    size_t count;
} trefoil_size;

/*
 The options of an engine. Zeros are the defaults: `trefoil_engine_options options = { .size = sizeof options }`.
 Only TREFOIL_RESULT_TOP_K needs a second member, `top_k`.
 */
typedef struct trefoil_engine_options {
    /* sizeof(trefoil_engine_options). */
    size_t size;
    /* The device. Default: the first GPU, or the CPU if there is no GPU. */
    trefoil_device device;
    /*
     The largest batch. For a GPU the engine also has a captured graph for each smaller power of two. Default: 32 on
     a GPU, 8 on a CPU; 1 for a model with state, and for a model of values whose rows hold whole inputs.
     */
    size_t batch;
    /* Exactly these batch sizes, instead of `batch`. */
    const size_t *batch_sizes;
    /* How many they are. */
    size_t batch_size_count;
    /*
     Slots: batches that are on the device at the same time. Default 3; with several compute streams, the smallest
     multiple of their number that exceeds it by two or more. With 1 slot nothing overlaps except copies.
     */
    size_t slots;
    /* Staging buffers. Default: slots + 3; for each engine of a fleet, 2 x slots + 3. Recommended: producers + slots. */
    size_t staging;
    /* Result buffers. Default: 4 x staging; for each engine of a fleet, 4 x staging x devices. */
    size_t results;
    /* The format of the rows that producers write: a trefoil_input. */
    uint32_t input;
    /* The kind of result that consumers read: a trefoil_result. */
    uint32_t result;
    /*
     For TREFOIL_RESULT_TOP_K the number of classes in a result, 1 to 64, and no more than the model has; for any
     other result 0. The build returns INVALID_ARGUMENT for any other number.
     */
    size_t top_k;
    /* How long trefoil_acquire() waits for a free batch. Default 10 s; the shortest limit is 1. */
    uint64_t acquire_limit_ns;
    /* 1: this engine's streams have priority over streams of normal priority. */
    uint32_t high_priority;
    /* 1: the hazard checker checks every access. For tests. */
    uint32_t check;
    /* How threads learn that the device is done: a trefoil_waiting. */
    uint32_t waiting;
    /* 1: the engine has buffers for results that stay on the device, for trefoil_submit_to_device(). */
    uint32_t device_results;
    /* The number of batches that the recorder remembers, for trefoil_trace_write(); 0: the engine does not record. */
    size_t trace_batches;
    /* The number of batches that are computed side by side; `slots` must be a multiple of it. Default 1. */
    size_t compute_streams;
    /*
     Exactly these sizes, instead of `batch` and `batch_sizes`. Functions without a size use the dimensions of the
     first one.
     */
    const struct trefoil_size *const *sizes;
    /* How many they are. */
    size_t size_count;
    /* The type in which layers read their operands: a trefoil_precision. */
    uint32_t precision;
    /* Zero. */
    uint32_t reserved;
} trefoil_engine_options;

/* A model on a device behind a ring. */
typedef uint64_t trefoil_engine;

/*
 Shape, type and size of an engine's input rows or output rows. If rows have several ports, shape and type are those
 of the first one; trefoil_port describes each port. If that port does not have three dimensions, `height` and
 `width` are 1, and `channels` is the number of its elements.
 */
typedef struct trefoil_tensor {
    /* sizeof(trefoil_tensor), set by the caller. */
    size_t size;
    /* Element type: a trefoil_dtype. */
    uint32_t dtype;
    /* Height in pixels. */
    uint32_t height;
    /* Width in pixels. */
    uint32_t width;
    /* Values of a pixel. */
    uint32_t channels;
    /* Bytes of one row, from its first port to the end of its last. */
    size_t row_bytes;
    /*
     From the beginning of one row of a batch to that of the next, in bytes: a multiple of 256. The first row begins
     at an address that is a multiple of 256.
     */
    size_t row_pitch;
} trefoil_tensor;

/*
 The state of an engine. Each staging or result buffer is counted in exactly one state, with one exception: the
 buffer of a released trefoil_device_output counts as in flight until its result is computed, and may be lent again
 meanwhile.
 */
typedef struct trefoil_health {
    /* sizeof(trefoil_health), set by the caller. */
    size_t size;
    /*
     1 if a fault put the device out of use. Every later call returns this fault, and trefoil_device_health() has its
     message.
     */
    uint32_t faulted;
    /* How far the fault reaches: a trefoil_fault_class. */
    uint32_t fault_class;
    /* 1 if the engine was closed. */
    uint32_t closed;
    /* Zero. */
    uint32_t reserved;
    /* Batches lent to producers, not yet submitted. */
    size_t filling;
    /* Submissions whose result is not there yet. */
    size_t in_flight;
    /* Finished results that a ticket or output still holds. */
    size_t unread;
    /* Buffers that are out of use, because after a fault it is unknown whether the device still accesses them. */
    size_t quarantined;
    /* Staging buffers in all. */
    size_t staging;
    /* Result buffers in all. */
    size_t results;
} trefoil_health;

/* A port: one of the values in a row, and its place in the row. */
typedef struct trefoil_port {
    /* sizeof(trefoil_port), set by the caller. */
    size_t size;
    /* Its name, which no other port of the row has, with a final NUL; a longer name is cut. */
    char name[128];
    /* Bytes of the whole name, without NUL. */
    size_t name_bytes;
    /* Element type: a trefoil_dtype. */
    uint32_t dtype;
    /* The number of dimensions; 0 for a single number. The batch is not among them. */
    uint32_t rank;
    /* The first 8 dimensions, the innermost last, followed by zeros. If `rank` is above 8, the others are left out. */
    size_t dims[8];
    /* Elements in all. */
    size_t elements;
    /* Bytes in all. */
    size_t bytes;
    /* The offset of the port in a row, in bytes: a multiple of 16. */
    size_t offset;
} trefoil_port;

/* A batch being filled. */
typedef uint64_t trefoil_batch;

/* A submission in flight: of a batch, or of a row. */
typedef uint64_t trefoil_ticket;

/* A result: of a batch, or of a row. */
typedef uint64_t trefoil_output;

/*
 The callback of trefoil_on_ready(). If `status` is TREFOIL_STATUS_OK, it gets an output, which it must release;
 otherwise it gets 0, and trefoil_last_error() has the message.
 */
typedef void (*trefoil_callback)(void *user, trefoil_status status, trefoil_output output);

/* A class with its probability, logit or feature. */
typedef struct trefoil_scored_class {
    /* Its value. */
    float value;
    /* Its index. */
    uint32_t index;
} trefoil_scored_class;

/* The options of a batcher. Zeros are the defaults. */
typedef struct trefoil_batcher_options {
    /* sizeof(trefoil_batcher_options). */
    size_t size;
    /*
     How long a batch that is not full waits after its first commit while the device is busy. Default 5 ms; the
     shortest delay is 1.
     */
    uint64_t max_delay_ns;
    /* Rows of page-locked memory. Default: as many as may be in flight, and four batches more. */
    size_t rows;
    /* The number of batches that the ring has at the same time. Default: the slots and one. */
    size_t in_flight;
    /* What a submission does when no row is free: a trefoil_when_full. */
    uint32_t when_full;
    /* Zero. */
    uint32_t reserved;
    /* The limit of TREFOIL_WHEN_FULL_WAIT_FOR; 0 is a limit too. */
    uint64_t full_limit_ns;
} trefoil_batcher_options;

/* A batcher: it forms batches of single rows from many threads. */
typedef uint64_t trefoil_batcher;

/* The options of one row. Zeros are the defaults. */
typedef struct trefoil_row_options {
    /* sizeof(trefoil_row_options). */
    size_t size;
    /*
     How long after the call the row may wait for memory and for its upload; after that it is answered with DEADLINE.
     0: no limit.
     */
    uint64_t deadline_ns;
    /* 1: it goes before waiting and queued rows of normal priority. */
    uint32_t high_priority;
    /* Zero. */
    uint32_t reserved;
    /*
     The dimensions of the row, with a `batch` of 1: the row gets the smallest size of the engine that holds them.
     Null: the dimensions of the engine's first size.
     */
    const struct trefoil_size *at;
} trefoil_row_options;

/* A row of a batcher being written. */
typedef uint64_t trefoil_row;

/* Counts of a batcher's work since it was built. */
typedef struct trefoil_batcher_stats {
    /* sizeof(trefoil_batcher_stats), set by the caller. */
    size_t size;
    /* Batches submitted. */
    uint64_t batches;
    /* Rows submitted in them. */
    uint64_t rows;
    /* Rows refused because there was no room. */
    uint64_t rejected;
    /* Rows answered with DEADLINE. */
    uint64_t expired;
    /* Upload copies: one for each run of neighbouring rows. */
    uint64_t runs;
    /* Rows committed and not yet in a batch. */
    uint64_t queued;
    /* Half of the rows stayed in the queue no longer than this. */
    uint64_t queue_p50_ns;
    /* 99 of 100 rows stayed in the queue no longer than this. */
    uint64_t queue_p99_ns;
} trefoil_batcher_stats;

/* A description of a batch and its rows. */
typedef struct trefoil_batch_info {
    /* sizeof(trefoil_batch_info), set by the caller. */
    size_t size;
    /* The number of rows that fit. */
    size_t capacity;
    /* Bytes of one row, from its first port to the end of its last. */
    size_t row_bytes;
    /* From the beginning of one row to that of the next, in bytes: a multiple of 256. */
    size_t row_pitch;
    /* How many ports a row has. */
    size_t ports;
} trefoil_batch_info;

/* Rows in device memory, and the stream whose earlier work writes these rows. */
typedef struct trefoil_device_rows {
    /* sizeof(trefoil_device_rows). */
    size_t size;
    /* Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host. */
    const void *address;
    /*
     From the beginning of one row to that of the next, in bytes. Default: `row_bytes` of trefoil_batch_get_info(),
     no gap.
     */
    size_t row_pitch;
    /*
     A CUstream or cudaStream_t that lives until the batch is submitted or released, or null for the default stream;
     on the CPU null, which is the calling thread.
     */
    void *stream;
} trefoil_device_rows;

/* A result that stays on the device. */
typedef uint64_t trefoil_device_output;

/* The address of a result on the device, and the event behind the result. */
typedef struct trefoil_device_output_info {
    /* sizeof(trefoil_device_output_info), set by the caller. */
    size_t size;
    /* Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host. */
    void *address;
    /* Rows submitted. */
    size_t rows;
    /* Bytes of a row. */
    size_t row_bytes;
    /* From the beginning of one row to that of the next, in bytes: a multiple of 256. */
    size_t row_pitch;
    /*
     The CUevent behind the result. The program may wait for it and query it until the output is released, and must
     not record or destroy it. Null on the CPU.
     */
    void *event;
} trefoil_device_output_info;

/*
 The callback of trefoil_log(), which gets each message, on any thread. `level` is a trefoil_log_level; `message`
 lives until the callback returns. The library may log within any call and while it holds a lock, so the callback
 must not call the library, and must not throw or jump out.
 */
typedef void (*trefoil_log_callback)(void *user, uint32_t level, const char *message);

/* The same engine on several devices. */
typedef uint64_t trefoil_fleet;

/* What one device of a fleet has done, and how it is. */
typedef struct trefoil_fleet_stats {
    /* sizeof(trefoil_fleet_stats), set by the caller. */
    size_t size;
    /* Batches submitted to the device. */
    uint64_t batches;
    /* Rows of these batches. */
    uint64_t rows;
    /*
     Batches that ran here because another device, or this one before its engine was built again, did not answer
     them.
     */
    uint64_t run_again;
    /* How often its engine was built again after a fault. */
    uint64_t rebuilt;
    /* Batches that it has now, in flight or being filled. */
    size_t load;
    /* 1 if the device takes no more batches. */
    uint32_t faulted;
    /* 1 if its engine is being built again now, or will be. */
    uint32_t rebuilding;
    /*
     How far its fault reaches, or else the one after which its engine was last built again: a trefoil_fault_class.
     REQUEST if there was none.
     */
    uint32_t fault_class;
    /* Zero. */
    uint32_t reserved;
} trefoil_fleet_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Whether this library can run a program that was compiled with a header of this version. Call it first, as
 `trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR)`.
 */
trefoil_status trefoil_check_abi(uint32_t major, uint32_t minor);

/* The library's version, such as `0.1.0`. Lives for ever. */
const char *trefoil_version(void);

/*
 The message of the last failed call on this thread, in English; empty if none has failed. NOT_READY is no failure:
 it leaves the message of the last one. The text lives until the next call on this thread fails.
 */
const char *trefoil_last_error(void);

/* How far the last failure on this thread reaches; REQUEST if none has failed. NOT_READY is no failure. */
trefoil_fault_class trefoil_last_error_class(void);

/* The name of a status, such as `TREFOIL_STATUS_TIMEOUT`; `unknown status` for another number. Lives for ever. */
const char *trefoil_status_name(int32_t status);

/*
 Releases any handle; it names nothing afterwards. Does not wait for work in flight: work that is submitted is
 finished, and batches, tickets and outputs outlive the engine or fleet that they came from. The handle of a device,
 a model or a fleet may be released at any time: engines keep what they use, and a fleet's batches and tickets are
 used as before.

 A batch or row that is released is not computed. A ticket that is released abandons its result. An output's memory
 is used for later batches at once, so that its rows must not be read any more. A batcher takes no more rows, also of
 calls that wait for a free row; those committed are computed. A device output's memory is used for later batches
 when all is done that trefoil_device_output_read_on() was told of.

 The last release of an engine's objects, which are the engine itself, its batches, tickets, outputs, device outputs,
 batchers and rows, frees the engine's memory once no work is in flight on it. The driver may then wait until the GPU
 is idle, also of the work of other engines: make that call where such a wait does no harm.
 */
trefoil_status trefoil_release(uint64_t handle);

/*
 Opens a device: `auto` (the first GPU, or the CPU where there is none), `cpu`, or `cuda:N`. Engines on the same
 handle share it.

 Pointers:
 `target` is a C string or null, `device` can be written or is null.
 */
trefoil_status trefoil_device_open(const char *target, trefoil_device *device);

/*
 Opens the CPU with a number of compute threads, 1 to 1024.

 Pointers:
 `device` can be written or is null.
 */
trefoil_status trefoil_device_open_cpu(size_t threads, trefoil_device *device);

/*
 Describes a device, and the memory that trefoil holds on it.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_device_get_info(trefoil_device device, struct trefoil_device_info *info);

/*
 Whether the device works: OK, or FAULT with the first failure as the message. After a fault, every call that uses
 the device returns it; open another device, or end the process.
 */
trefoil_status trefoil_device_health(trefoil_device device);

/*
 Opens a folder with `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file of any network.
 A path is any bytes on Unix, and UTF-8 elsewhere.

 Pointers:
 `path` is a C string or null, `model` can be written or is null.
 */
trefoil_status trefoil_model_open(const char *path, trefoil_model *model);

/*
 Opens an `.onnx` file at sizes of its free dimensions: `count` names, as the file has them or `input:axis`, and as
 many values. One free dimension of each input may stay without a size, and is the batch: the one whose name contains
 `batch`, or else that of the first axis. Of a folder with safetensors the names are `height` and `width`, or, of an
 encoder of texts, `sequence`, or `tokens` and `rows` for packed texts.

 Pointers:
 `path` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values`
 is null or has `count` numbers; `model` can be written or is null.
 */
trefoil_status trefoil_model_open_at(const char *path,
                                     const char *const *names,
                                     const size_t *values,
                                     size_t count,
                                     trefoil_model *model);

/*
 The model cut at a node or module, such as `layer4`: its result is that node's value.

 Pointers:
 `node` is a C string or null, `cut` can be written or is null.
 */
trefoil_status trefoil_model_cut(trefoil_model model, const char *node, trefoil_model *cut);

/*
 Describes the input and the result of a model.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_model_get_info(trefoil_model model, struct trefoil_model_info *info);

/*
 Copies the label of a class into `text`, cut to `capacity` bytes with its final NUL. The label of class 3 is
 `class 3` if the model has no labels. `length` is null, or gets the bytes of the whole label without NUL. A model of
 values has no classes: then the call returns INVALID_ARGUMENT.

 Pointers:
 `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
 */
trefoil_status trefoil_model_label(trefoil_model model, size_t index, char *text, size_t capacity, size_t *length);

/*
 Copies the text that the model's ONNX file has under `key` into `text`, cut to `capacity` bytes with its final NUL.
 `length` is null, or gets the bytes of the whole text without NUL. An argument error if there is none.

 Pointers:
 `key` is a C string or null; `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is
 null.
 */
trefoil_status trefoil_model_metadata(trefoil_model model,
                                      const char *key,
                                      char *text,
                                      size_t capacity,
                                      size_t *length);

/*
 Builds an engine: plans, uploads weights, allocates everything. `options` is null for the defaults. The model's
 handle may be released afterwards.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `batch_sizes` and `sizes` are as many as it
 says, the latter each as trefoil_acquire_for() has it; `engine` can be written or is null.
 */
trefoil_status trefoil_engine_build(trefoil_model model,
                                    const struct trefoil_engine_options *options,
                                    trefoil_engine *engine);

/*
 The device that an engine runs on, under a handle of its own.

 Pointers:
 `device` can be written or is null.
 */
trefoil_status trefoil_engine_device(trefoil_engine engine, trefoil_device *device);

/*
 The rows that producers write; if there are several sizes, at the dimensions of the first one.

 Pointers:
 `tensor` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_input(trefoil_engine engine, struct trefoil_tensor *tensor);

/*
 The rows that consumers read; if there are several sizes, at the dimensions of the first one.

 Pointers:
 `tensor` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_output(trefoil_engine engine, struct trefoil_tensor *tensor);

/*
 The batch sizes that an engine was built for, at the dimensions of its first size, ascending. The call writes as
 many as fit to `sizes`, and the number of all to `count`. The last one is the largest batch.

 Pointers:
 `sizes` has room for `capacity`, or is null where that is 0; `count` can be written or is null.
 */
trefoil_status trefoil_engine_batch_sizes(trefoil_engine engine, size_t *sizes, size_t capacity, size_t *count);

/*
 The number of rows in the largest batch, at the dimensions of the first size.

 Pointers:
 `rows` can be written or is null.
 */
trefoil_status trefoil_engine_capacity(trefoil_engine engine, size_t *rows);

/*
 The state of an engine: whether it is faulted or closed, and the state of its batches. Does not fail after a fault,
 and never waits for the device.

 Pointers:
 `health` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_health(trefoil_engine engine, struct trefoil_health *health);

/*
 Closes an engine to new work and waits, up to `limit_ns`, until the device has finished the work in flight. With
 `abort`, tickets are answered with CLOSED instead of their results. Then the call waits, up to the same limit, until
 the callbacks of the engine's tickets have returned, including those of its batchers' rows; a call from within a
 callback does not wait. The handle stays valid; trefoil_acquire() and trefoil_submit() return CLOSED.

 Past the limit the call returns TIMEOUT, and after a fault FAULT. Then the engine is closed to new work all the
 same, and callbacks may still run. A second call waits again; one with `abort` overrules an earlier one without.
 */
trefoil_status trefoil_engine_close(trefoil_engine engine, uint32_t abort, uint64_t limit_ns);

/*
 The number of ports in the rows that producers write.

 Pointers:
 `count` can be written or is null.
 */
trefoil_status trefoil_engine_input_ports(trefoil_engine engine, size_t *count);

/*
 The number of ports in the rows that consumers read.

 Pointers:
 `count` can be written or is null.
 */
trefoil_status trefoil_engine_output_ports(trefoil_engine engine, size_t *count);

/*
 A port of the rows that producers write, by its number from 0 on.

 Pointers:
 `port` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_input_port(trefoil_engine engine, size_t index, struct trefoil_port *port);

/*
 A port of the rows that consumers read, by its number from 0 on.

 Pointers:
 `port` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_output_port(trefoil_engine engine, size_t index, struct trefoil_port *port);

/*
 The number of the port of this name, of the rows that producers write.

 Pointers:
 `name` is a C string or null, `index` can be written or is null.
 */
trefoil_status trefoil_engine_find_input(trefoil_engine engine, const char *name, size_t *index);

/*
 The number of the port of this name, of the rows that consumers read.

 Pointers:
 `name` is a C string or null, `index` can be written or is null.
 */
trefoil_status trefoil_engine_find_output(trefoil_engine engine, const char *name, size_t *index);

/*
 Lends a batch to fill, waiting for a free one up to the engine's limit: then TIMEOUT, with the counts of what is
 being filled, in flight, and finished but unread.

 Pointers:
 `batch` can be written or is null.
 */
trefoil_status trefoil_acquire(trefoil_engine engine, trefoil_batch *batch);

/*
 The same with a limit of its own.

 Pointers:
 `batch` can be written or is null.
 */
trefoil_status trefoil_acquire_within(trefoil_engine engine, uint64_t limit_ns, trefoil_batch *batch);

/*
 Lends a batch if one is free now, else answers NOT_READY.

 Pointers:
 `batch` can be written or is null.
 */
trefoil_status trefoil_try_acquire(trefoil_engine engine, trefoil_batch *batch);

/*
 The address of row `index` of a batch, in page-locked memory: a multiple of 256. `bytes` is null, or gets the length
 of the row, which is `row_bytes` of trefoil_batch_get_info(). The beginnings of neighbouring rows are `row_pitch`
 bytes apart. Several threads may write the rows until the batch is submitted or released. The library cannot detect
 a write after that, or beyond the end of the row; it may damage another batch.

 Pointers:
 `row` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_batch_row(trefoil_batch batch, size_t index, void **row, size_t *bytes);

/*
 The address of a port of row `index` of a batch, by the port's number; the same rules hold as for
 trefoil_batch_row(). The address is a multiple of 16. `dtype` is a trefoil_dtype, the type of the elements that the
 program writes; if the port has elements of another type, the call fails. `bytes` is null, or gets the length of the
 port.

 Pointers:
 `elements` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_batch_port(trefoil_batch batch,
                                  size_t index,
                                  size_t port,
                                  uint32_t dtype,
                                  void **elements,
                                  size_t *bytes);

/*
 Submits the first `rows` rows: upload, compute, download. Returns at once, and never waits for the device; only
 with a fleet's batch, after a fault, it may wait for another device, see trefoil_fleet_build(). Only those rows are
 uploaded, and the smallest batch size that holds them runs.

 The call consumes the batch's handle, and its rows must not be written any more. Only if the status is
 INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or INVALID_ARGUMENT, the batch stays as it was.

 Pointers:
 `ticket` can be written or is null.
 */
trefoil_status trefoil_submit(trefoil_batch batch, size_t rows, trefoil_ticket *ticket);

/*
 Blocks until the result of this submission is there; it waits for nothing else. The call consumes the ticket's
 handle, also if the submission failed, unless the status is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or
 IN_CALLBACK.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_wait(trefoil_ticket ticket, trefoil_output *output);

/*
 As trefoil_wait(), for at most `limit_ns`; after that it returns NOT_READY, and the ticket stays valid.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_wait_for(trefoil_ticket ticket, uint64_t limit_ns, trefoil_output *output);

/*
 OK if trefoil_wait() would return at once, with the result or, for example after a fault or a close, with a failure;
 otherwise NOT_READY. Also OK if a fleet's device has failed and trefoil_wait() will make another one run the rows
 again, for which it waits. BUSY while another thread waits for the ticket. Never blocks, and the ticket stays valid.
 */
trefoil_status trefoil_is_ready(trefoil_ticket ticket);

/*
 Registers `callback`, which is called once, with `user`, when the result is there or the submission has failed. If
 the status is OK, the call has consumed the ticket's handle; otherwise the ticket stays valid, and the callback is
 never called.

 One thread of the library, `trefoil-callback`, runs all callbacks one after the other, never within a call of the
 program. A callback may run before this call returns. The library holds no lock meanwhile, and its other threads
 continue. A callback may make any call of this interface, but no call waits there: trefoil_wait() returns
 IN_CALLBACK if the result is not there, and every limit is 0. For calls after a fault in a fleet see
 trefoil_fleet_build(). A callback may take a lock, but not one that a thread holds while it waits in this library.
 Later callbacks wait until it returns, so it should be short. It must not throw or jump out.

 `user` must live until its callback has returned. The callback is always called, also after trefoil_release() of the
 engine, and with a failure after a fault or a close. When trefoil_engine_close(), trefoil_batcher_close() or
 trefoil_fleet_close() has returned OK, every callback that was registered before has returned.

 Pointers:
 `callback` may be called with `user`, from another thread.
 */
trefoil_status trefoil_on_ready(trefoil_ticket ticket, trefoil_callback callback, void *user);

/*
 The number of rows in an output: as many as were submitted; 1 for a single row of a batcher.

 Pointers:
 `rows` can be written or is null.
 */
trefoil_status trefoil_output_rows(trefoil_output output, size_t *rows);

/*
 The kind of result in the rows of an output: a trefoil_result, an option of its engine. For a model of values it is
 TREFOIL_RESULT_FEATURES, whatever the option says.

 Pointers:
 `result` can be written or is null.
 */
trefoil_status trefoil_output_result(trefoil_output output, uint32_t *result);

/*
 The address of row `index` of an output, in page-locked memory: a multiple of 256. For a network of images the row
 is floats, or trefoil_scored_class for TREFOIL_RESULT_TOP_K; for any other model it is the ports. Several threads
 may read the row until the output is released. `bytes` is null, or gets the length of the row.

 Pointers:
 `row` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_output_row(trefoil_output output, size_t index, const void **row, size_t *bytes);

/*
 The address of a port of row `index` of an output, by the port's number; the same rules hold as for
 trefoil_output_row(). The address is a multiple of 16. `dtype` is a trefoil_dtype, the type of the elements that the
 program reads; if the port has elements of another type, the call fails. `bytes` is null, or gets the length of the
 port.

 Pointers:
 `elements` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_output_port(trefoil_output output,
                                   size_t index,
                                   size_t port,
                                   uint32_t dtype,
                                   const void **elements,
                                   size_t *bytes);

/*
 Copies rows of an output, `count` from row `first` on, to `values`, one behind the other without gaps. `bytes` is
 the sum of the lengths that trefoil_output_row() gives for these rows.

 Pointers:
 `bytes` bytes can be written at `values`, or it is null, which is an error.
 */
trefoil_status trefoil_output_copy(trefoil_output output, size_t first, size_t count, void *values, size_t bytes);

/*
 The `capacity` largest values of row `index`, largest first, ties by the lower class; `count` gets the number of
 values written. The call allocates nothing. An engine built for TREFOIL_RESULT_TOP_K gives at most `top_k` values.
 For a model of values the values are the elements of the first port, numbered in the order in which they lie; the
 call returns INVALID_ARGUMENT if they are not of TREFOIL_DTYPE_F32. Returns OUTPUT if a value of the row is not
 finite, if a probability is not within 0 to 1, or if the model has no such class.

 Pointers:
 `classes` has room for `capacity`; `count` can be written. They may be null, which is an error.
 */
trefoil_status trefoil_output_top_k(trefoil_output output,
                                    size_t index,
                                    struct trefoil_scored_class *classes,
                                    size_t capacity,
                                    size_t *count);

/*
 Builds a batcher on an engine: single rows from many threads become its batches. `options` is null for the
 defaults. The engine's handle may be released afterwards.

 Pointers:
 `options` is null, or has its `size` set and so many bytes; `batcher` can be written or is null.
 */
trefoil_status trefoil_batcher_build(trefoil_engine engine,
                                     const struct trefoil_batcher_options *options,
                                     trefoil_batcher *batcher);

/*
 Submits one row: copies `bytes` bytes at `row` into page-locked memory, and commits the row. `bytes` is one row:
 `row_bytes` of trefoil_engine_input(), or of a row of the size in `at`. The ticket is used as one of
 trefoil_submit(); its output has one row.

 If no row of page-locked memory is free, the call waits as `when_full` of the batcher says: past its limit it
 returns TIMEOUT, with TREFOIL_WHEN_FULL_REJECT at once FULL, and past the row's deadline DEADLINE. A call that waits
 returns CLOSED if the batcher is closed or released. In a callback the call does not wait: it returns FULL or
 TIMEOUT.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `row`
 is null or can be read; `ticket` can be written or is null.
 */
trefoil_status trefoil_batcher_submit(trefoil_batcher batcher,
                                      const struct trefoil_row_options *options,
                                      const void *row,
                                      size_t bytes,
                                      trefoil_ticket *ticket);

/*
 Submits `count` rows in one call: copies `bytes` bytes, which is one row, from each of `rows`. One ticket and one
 output are for all rows, in order. The output is there when every row has its answer. If a row has no result,
 because of a deadline or because no row was free, trefoil_output_row() and other calls for this row return its
 failure; if no row has a result, trefoil_wait() returns the failure of the first row.

 If no row of page-locked memory is free, the call waits for each row as trefoil_batcher_submit() does, and the
 status is that row's failure; the limit of `when_full` is for each row, the deadline for all together. A call that
 waits holds the results of its earlier rows. If such calls together hold all result buffers of the engine, rows fail
 with TIMEOUT: do not submit more rows at once than the batcher has.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `rows`
 is null or has `count` pointers, of which each is null or can be read; `ticket` can be written or is null.
 */
trefoil_status trefoil_batcher_submit_rows(trefoil_batcher batcher,
                                           const struct trefoil_row_options *options,
                                           const void *const *rows,
                                           size_t count,
                                           size_t bytes,
                                           trefoil_ticket *ticket);

/*
 Lends a row to be written in place. It delays no other row, however long it is held. If no row is free, the call
 waits, with the statuses of trefoil_batcher_submit().

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `row`
 can be written or is null.
 */
trefoil_status trefoil_batcher_row(trefoil_batcher batcher,
                                   const struct trefoil_row_options *options,
                                   trefoil_row *row);

/*
 The address of a row, in page-locked memory: a multiple of 256. The program may write the row until it is submitted
 or released. The library cannot detect a write after that; it may damage another row. `bytes` is null, or gets the
 length of the row.

 Pointers:
 `memory` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_row_memory(trefoil_row row, void **memory, size_t *bytes);

/*
 The address of a port of a row, by the port's number, as trefoil_batch_port() gives it.

 Pointers:
 `elements` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_row_port(trefoil_row row, size_t port, uint32_t dtype, void **elements, size_t *bytes);

/*
 Commits a row to the queue. Never waits. The call consumes the row's handle, and its memory must not be written any
 more, unless the status is INVALID_HANDLE, WRONG_KIND, BUSY or NULL_POINTER.

 Pointers:
 `ticket` can be written or is null.
 */
trefoil_status trefoil_row_submit(trefoil_row row, trefoil_ticket *ticket);

/*
 Closes a batcher to new rows and waits, up to `limit_ns`, until committed rows have their answers. With `abort`,
 rows still in the queue are answered with CLOSED and not computed, and so are those in flight once the device has
 finished them. Then the call waits, up to the same limit, until the callbacks of the batcher's tickets have
 returned; a call from within a callback does not wait. The handle stays valid; submissions return CLOSED, also of
 rows that were lent before. The engine stays open.

 Past the limit the call returns TIMEOUT, and after a fault FAULT. Then the batcher is closed to new rows all the
 same, and callbacks may still run. A second call waits again; one with `abort` overrules an earlier one without.
 */
trefoil_status trefoil_batcher_close(trefoil_batcher batcher, uint32_t abort, uint64_t limit_ns);

/*
 Counts of a batcher's work so far. The call allocates, so do not make it for every row.

 Pointers:
 `stats` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_batcher_get_stats(trefoil_batcher batcher, struct trefoil_batcher_stats *stats);

/*
 The model at other sizes of its free dimensions. Its engines have these sizes unless their options name others. A
 network of images from a folder has the dimensions `height` and `width`. The `batch` of `wanted` is ignored. Returns
 INVALID_ARGUMENT for a dimension that the model does not have, and for sizes that it cannot have, with the reason.

 Pointers:
 `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `sized`
 can be written or is null.
 */
trefoil_status trefoil_model_at(trefoil_model model, const struct trefoil_size *wanted, trefoil_model *sized);

/*
 The model with a declaration that rows may be shorter than an engine's size along the free dimension `dim`. `names`
 has every input with this dimension, `count` of them, and `values` the numbers that fill up shorter values;
 trefoil_batch_write_port() writes this padding. The caller guarantees that the model ignores padded elements, for
 example by a mask.

 Pointers:
 `dim` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values`
 is null or has `count` numbers; `padded` can be written or is null.
 */
trefoil_status trefoil_model_padded(trefoil_model model,
                                    const char *dim,
                                    const char *const *names,
                                    const double *values,
                                    size_t count,
                                    trefoil_model *padded);

/*
 Lends a batch for rows of the dimensions in `wanted`, at the smallest size of the engine that holds such rows, and
 `batch` of them. Waits up to `limit_ns`, whatever limit the engine was built with. trefoil_batch_get_info() and
 trefoil_batch_describe_port() describe its rows. Returns INVALID_ARGUMENT, with a list of the sizes, if no size
 holds them; otherwise as trefoil_acquire_within().

 Pointers:
 `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `batch`
 can be written or is null.
 */
trefoil_status trefoil_acquire_for(trefoil_engine engine,
                                   const struct trefoil_size *wanted,
                                   uint64_t limit_ns,
                                   trefoil_batch *batch);

/*
 Describes a batch and its rows.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_batch_get_info(trefoil_batch batch, struct trefoil_batch_info *info);

/*
 A port of the rows of a batch, by its number from 0 on.

 Pointers:
 `port` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_batch_describe_port(trefoil_batch batch, size_t index, struct trefoil_port *port);

/*
 A port of a batcher's row, by its number from 0 on.

 Pointers:
 `port` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_row_describe_port(trefoil_row row, size_t index, struct trefoil_port *port);

/*
 A port of the rows of an output, by its number from 0 on.

 Pointers:
 `port` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_output_describe_port(trefoil_output output, size_t index, struct trefoil_port *port);

/*
 Copies `bytes` bytes of elements to a port of row `index` of a batch. `dtype` is a trefoil_dtype, the type of the
 elements. If there are fewer elements than the port has, they are a value that is shorter along the dimension that
 trefoil_model_padded() has named, and the call adds the padding.

 Pointers:
 `elements` is null or has `bytes` bytes; nobody else writes the row meanwhile.
 */
trefoil_status trefoil_batch_write_port(trefoil_batch batch,
                                        size_t index,
                                        size_t port,
                                        uint32_t dtype,
                                        const void *elements,
                                        size_t bytes);

/*
 As trefoil_batch_write_port(), for a batcher's row.

 Pointers:
 `elements` is null or has `bytes` bytes; nobody else writes the row meanwhile.
 */
trefoil_status trefoil_row_write_port(trefoil_row row, size_t port, uint32_t dtype, const void *elements, size_t bytes);

/*
 The model with the input `input` as a state, which stays on the device: its value is the value of the output
 `output` in the previous batch, and zeros at first. Rows have neither this input nor this output. Each row of a
 batch continues with the state of the same row, so a batch must have as many rows as one of the engine's sizes. Such
 a model cannot have a batcher or several compute streams.

 Pointers:
 `input` and `output` are C strings or null; `with_state` can be written or is null.
 */
trefoil_status trefoil_model_with_state(trefoil_model model,
                                        const char *input,
                                        const char *output,
                                        trefoil_model *with_state);

/*
 Sets all states of the engine to zeros for the next batch, or for the next call that reads or writes a state. Does
 not wait.
 */
trefoil_status trefoil_engine_reset_states(trefoil_engine engine);

/*
 Copies the state whose input has this name to `elements`, after all batches and resets so far: the rows of the
 largest batch, one behind the other, in `bytes` bytes. `dtype` is a trefoil_dtype, the type of its elements. Waits
 for these batches; in a callback it returns IN_CALLBACK.

 Pointers:
 `name` is a C string or null; `bytes` bytes can be written at `elements`, or it is null.
 */
trefoil_status trefoil_engine_read_state(trefoil_engine engine,
                                         const char *name,
                                         uint32_t dtype,
                                         void *elements,
                                         size_t bytes);

/*
 Writes all elements of a state for the batches that are submitted from now on; the arguments are as for
 trefoil_engine_read_state(). Waits for the batches that were submitted before; in a callback it returns IN_CALLBACK.

 Pointers:
 `name` is a C string or null; `elements` is null or has `bytes` bytes.
 */
trefoil_status trefoil_engine_write_state(trefoil_engine engine,
                                          const char *name,
                                          uint32_t dtype,
                                          const void *elements,
                                          size_t bytes);

/*
 Opens the GPU of a CUDA context that the program made, a CUcontext: engines are in this context, in place of the
 device's primary context. This is for programs that call cuCtxCreate(); programs that are built on the CUDA runtime,
 such as torch, use the primary context, which trefoil_device_open() shares.

 Do not destroy the context while trefoil has anything in it: release everything except the device, and wait until
 trefoil_device_is_unused() returns OK.

 Pointers:
 `context` is a live CUcontext or null, `device` can be written or is null.
 */
trefoil_status trefoil_device_open_context(void *context, trefoil_device *device);

/*
 OK if nothing is left on a device except this handle, otherwise NOT_READY. Work of the GPU, and threads of the
 library, may end a moment after the last handle of an engine is released. After a fault it may stay NOT_READY for
 ever.
 */
trefoil_status trefoil_device_is_unused(trefoil_device device);

/*
 Makes a batch take its rows from device memory; rows that were written into the batch itself are ignored. The
 submission enqueues a copy of the rows, from device memory to device memory, on the stream of `rows`: after all work
 that is already on this stream, and before its later work, which may overwrite the rows. No thread waits for the
 stream.

 The copy, and so the stream, waits until an earlier batch has been read. On the CPU, where the calling thread takes
 the place of the stream, the submission copies the rows before it returns. Returns INVALID_ARGUMENT for a stream of
 another context, a stream that captures a graph, memory that is not the device's, and a fleet's batch.

 Pointers:
 `rows` is null, or has its `size` set and so many bytes; its stream lives until the batch is submitted or released;
 while the stream runs the copy, the memory has as many rows as are submitted, and nothing writes them.
 */
trefoil_status trefoil_batch_read_from(trefoil_batch batch, const struct trefoil_device_rows *rows);

/*
 Submits the first `rows` rows as trefoil_submit() does, but the result stays on the device. There is no ticket:
 `output` has at once the address at which the result will be. The engine must be built with `device_results`, and
 the batch must not be a fleet's; otherwise the call returns INVALID_ARGUMENT.

 The call consumes the batch's handle. Only if the status is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or
 INVALID_ARGUMENT, the batch stays as it was.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_submit_to_device(trefoil_batch batch, size_t rows, trefoil_device_output *output);

/*
 Gives the address of the result, and its event. BUSY while another thread waits for the output.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_device_output_get_info(trefoil_device_output output, struct trefoil_device_output_info *info);

/*
 Makes work that is enqueued on `stream` from now on wait until the result is there; null is the default stream. On
 the CPU, where the calling thread takes the place of the stream, the call blocks; in a callback it returns
 IN_CALLBACK if the result is not there.

 Pointers:
 `stream` is a live stream or null.
 */
trefoil_status trefoil_device_output_wait_on(trefoil_device_output output, void *stream);

/*
 Declares that work that is enqueued on `stream` so far reads the result. After trefoil_release() of the output, its
 memory is overwritten only when this work is done, on every stream that was declared. If `stream` was not made to
 wait for the result, it is made to wait now.

 Pointers:
 `stream` is a live stream or null.
 */
trefoil_status trefoil_device_output_read_on(trefoil_device_output output, void *stream);

/* Blocks until the result is there. In a callback it returns IN_CALLBACK if the result is not there. */
trefoil_status trefoil_device_output_wait(trefoil_device_output output);

/*
 OK if trefoil_device_output_wait() would return at once, with the result or with a failure; otherwise NOT_READY.
 BUSY while another thread waits for the output. Never blocks.
 */
trefoil_status trefoil_device_output_is_ready(trefoil_device_output output);

/*
 Writes the timeline of the batches that the recorder remembers. If the path ends in `.html`, in lower case, the file
 is a page for any browser; otherwise it is a file for Perfetto and chrome://tracing. An existing file is replaced as
 a whole. The engine must be built with `trace_batches`; batches continue meanwhile. The path is any bytes on Unix,
 and UTF-8 elsewhere.

 Pointers:
 `path` is a C string or null.
 */
trefoil_status trefoil_trace_write(trefoil_engine engine, const char *path);

/*
 Copies the recorder's report on the overlap of copies and compute into `text`, cut to `capacity` bytes with its
 final NUL. `length` is null, or gets the length of the whole report in bytes, without NUL.

 Pointers:
 `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
 */
trefoil_status trefoil_trace_report(trefoil_engine engine, char *text, size_t capacity, size_t *length);

/*
 Passes every log message of the process up to `level`, a trefoil_log_level, to `callback`; a null callback ends
 that. Without this call nothing is logged. A message that is on its way may still reach the previous callback at any
 later time, so each callback and its `user` must stay valid until the process ends. Returns UNSUPPORTED, and changes
 nothing, if a Rust program around this library has a logger of its own.

 Pointers:
 `callback` may be called with `user`, from any thread.
 */
trefoil_status trefoil_log(uint32_t level, trefoil_log_callback callback, void *user);

/*
 Builds the same engine on each of `count` devices, as trefoil_engine_build() builds one; `device` of the options has
 to be 0. A batch goes to the device that has the fewest. If a device fails, the others run its unanswered batches
 again, and their tickets get results as if nothing had happened.

 With `rebuilds`, a device that fails is opened again and its engine built again, up to so many times for each
 device, so that even a fleet of one device survives a fault. The devices then must not be in contexts of the
 program's own. A fault of class PROCESS is not survived.

 Batches, tickets, callbacks and outputs are used as those of an engine, with one exception:
 trefoil_batch_read_from() and trefoil_submit_to_device() refuse a fleet's batch with INVALID_ARGUMENT, because it
 may run on any device. Tickets of several devices may become ready in any order. After a fault a call that hands
 over a ticket or a batch of the failed device (trefoil_submit(), trefoil_on_ready(), the waits) also waits until
 another device has room for its rows, at most the acquire limit of the options. In a callback only trefoil_submit()
 and trefoil_on_ready() wait so.

 Pointers:
 As for trefoil_engine_build(), and `devices` has `count` handles; `fleet` can be written or is null.
 */
trefoil_status trefoil_fleet_build(trefoil_model model,
                                   const struct trefoil_engine_options *options,
                                   const trefoil_device *devices,
                                   size_t count,
                                   size_t rebuilds,
                                   trefoil_fleet *fleet);

/*
 Lends a batch of the least loaded device, as trefoil_acquire() does of an engine.

 Pointers:
 `batch` can be written or is null.
 */
trefoil_status trefoil_fleet_acquire(trefoil_fleet fleet, trefoil_batch *batch);

/*
 The same with a limit of its own.

 Pointers:
 `batch` can be written or is null.
 */
trefoil_status trefoil_fleet_acquire_within(trefoil_fleet fleet, uint64_t limit_ns, trefoil_batch *batch);

/*
 The same for rows of the dimensions in `wanted`, as trefoil_acquire_for() does of an engine.

 Pointers:
 As for trefoil_acquire_for().
 */
trefoil_status trefoil_fleet_acquire_for(trefoil_fleet fleet,
                                         const struct trefoil_size *wanted,
                                         uint64_t limit_ns,
                                         trefoil_batch *batch);

/*
 The number of devices.

 Pointers:
 `count` can be written or is null.
 */
trefoil_status trefoil_fleet_devices(trefoil_fleet fleet, size_t *count);

/*
 The engine that device `index` has now, under a handle of its own: for its ports, health, trace, or a batcher. When
 it is built again, a new engine takes its place, and the handle stays that of the failed one. Close the fleet, not
 this engine: a closed engine makes the fleet refuse new batches.

 Pointers:
 `engine` can be written or is null.
 */
trefoil_status trefoil_fleet_engine(trefoil_fleet fleet, size_t index, trefoil_engine *engine);

/*
 What device `index` has done and how it is. Never waits for a device, and does not fail after a fault.

 Pointers:
 `stats` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_fleet_get_stats(trefoil_fleet fleet, size_t index, struct trefoil_fleet_stats *stats);

/*
 Closes all engines, as trefoil_engine_close() closes one; `limit_ns` is for all together. No engine is built again
 any more. If the call returns OK, the callbacks of the fleet's tickets have returned, also of engines that failed.
 Past the limit the call returns TIMEOUT, and if all devices have failed FAULT; then all engines are closed to new
 work all the same. A second call waits again.
 */
trefoil_status trefoil_fleet_close(trefoil_fleet fleet, uint32_t abort, uint64_t limit_ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TREFOIL_H */
