/* trefoil: copy in, compute, copy out, all at once. The C interface; trefoil.hpp wraps it for C++17.
 *
 * Made from src/ffi/ by scripts/header.sh: not to be edited.
 *
 * The way of a batch: trefoil_acquire() lends page-locked memory; any threads write rows at trefoil_batch_row();
 * trefoil_submit() enqueues upload, forward pass and download and returns at once; trefoil_wait() blocks on that
 * submission alone, or trefoil_on_ready() calls back; trefoil_output_row() is read in place; trefoil_release() frees
 * the memory for a later batch. Single rows from many threads go through a batcher instead.
 *
 * A row holds one or several ports, each a value with a name, a type and dimensions. A network of images has one on each
 * side; any other has those of its inputs and outputs: trefoil_engine_input_port() describes them,
 * trefoil_engine_find_input() finds one by its name, trefoil_batch_port() and trefoil_output_port() tell where its elements
 * are. Every call that gives out memory tells its length in bytes.
 *
 * Handles are numbers, never pointers; 0 is none. Every function may be called from any thread at any time, with any
 * handle: one that was released, that never was, or that names something else is answered with a status. An object
 * that a call uses up, as trefoil_submit() does the batch, is gone for every thread. No function may be called from a
 * signal handler, from a trefoil_log_callback, or in a child after fork().
 *
 * This is version 2 of the interface, as TREFOIL_ABI_MAJOR says: a program compiled for version 1 is to be compiled anew.
 * trefoil_check_abi() tells whether the library is of the version that the program was compiled for.
 *
 * Every function that can fail gives a trefoil_status; trefoil_last_error() tells more. What a failing call would have
 * written is left as it was. Nothing here throws, and nothing aborts unless malloc() fails.
 *
 * Structs begin with `size`, to be set to sizeof the struct; other members of options are 0 for the default. They
 * grow at their end, and programs compiled with an older header keep working.
 *
 * What cannot be checked is what the pointers given to the library are good for, and what is done with those that it
 * gives out: rows of a batch must not be written after trefoil_submit() or trefoil_release(), rows of an output not
 * be read after trefoil_release(). The memory stays mapped while its engine or anything of it lives, so that doing so
 * damages another batch's pixels, or reads another's results.
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
#define TREFOIL_ABI_MINOR 2

/* What a call answers. The numbers never change. */
enum trefoil_status
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Done. */
    TREFOIL_STATUS_OK = 0,
    /* Not yet: nothing failed, and every handle is as it was. No message. */
    TREFOIL_STATUS_NOT_READY = 1,
    /* The handle is 0, or no number that this library ever gave out. */
    TREFOIL_STATUS_INVALID_HANDLE = 10,
    /* The handle is one of another kind of object. */
    TREFOIL_STATUS_WRONG_KIND = 11,
    /* The handle was released, or given up to a call such as trefoil_submit(). */
    TREFOIL_STATUS_RELEASED = 12,
    /* Another thread is in a call that uses the object up, such as trefoil_wait(). */
    TREFOIL_STATUS_BUSY = 13,
    /* A pointer is null that must not be. */
    TREFOIL_STATUS_NULL_POINTER = 14,
    /* An argument or option is out of its range; the message tells the range. */
    TREFOIL_STATUS_INVALID_ARGUMENT = 15,
    /* Program and library do not fit: compiled for another interface, or a struct without its size. */
    TREFOIL_STATUS_ABI_MISMATCH = 16,
    /* There are a million handles of this kind. */
    TREFOIL_STATUS_TOO_MANY_HANDLES = 17,
    /* A callback waited for a result that is not there: it may need the callbacks that come after this one. */
    TREFOIL_STATUS_IN_CALLBACK = 18,
    /* A file cannot be opened, read or written. */
    TREFOIL_STATUS_IO = 20,
    /* A file's content is not what its format or the model demands. */
    TREFOIL_STATUS_FORMAT = 21,
    /* Something legal that trefoil does not do, or not on this device. */
    TREFOIL_STATUS_UNSUPPORTED = 22,
    /* There is no device of the kind asked for. */
    TREFOIL_STATUS_NO_DEVICE = 30,
    /* Memory or threads are not to be had; the message tells the batch that would fit, or the thread. */
    TREFOIL_STATUS_OUT_OF_MEMORY = 31,
    /* A driver call failed; the message names it and its status. */
    TREFOIL_STATUS_DRIVER = 32,
    /* The device failed earlier and is out of use. */
    TREFOIL_STATUS_FAULT = 33,
    /* A wait ran out of time; the message tells where the batches are. */
    TREFOIL_STATUS_TIMEOUT = 40,
    /* A row's deadline passed in the queue; it was not computed. */
    TREFOIL_STATUS_DEADLINE = 41,
    /* A batcher that does not wait for room has none. */
    TREFOIL_STATUS_FULL = 42,
    /* The engine or batcher was closed. */
    TREFOIL_STATUS_CLOSED = 43,
    /*
     A row of a result is no answer: a value is not finite, a probability not within 0 to 1, or a class none of the
     model's.
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

/* How far a failure reaches, and so what is to be done about it. */
enum trefoil_fault_class
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* This call or this request failed; everything else goes on. */
    TREFOIL_FAULT_CLASS_REQUEST = 0,
    /* The device is out of use for whoever has it open; to open it anew and build anew may work. */
    TREFOIL_FAULT_CLASS_DEVICE = 1,
    /* Nothing works on any GPU in this process any more: it has to be started anew. */
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

/* How the rows that a producer writes are laid out. */
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

/* What comes out for each row. */
enum trefoil_result
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Softmax of the logits: a float for each class. */
    TREFOIL_RESULT_PROBABILITIES = 0,
    /* The classifier's sums: a float for each class. */
    TREFOIL_RESULT_LOGITS = 1,
    /*
     The `top_k` most probable classes, best first, ties by the lower index: trefoil_scored_class each, the value
     before the index.
     */
    TREFOIL_RESULT_TOP_K = 2,
    /* The features before the classifier: floats. */
    TREFOIL_RESULT_FEATURES = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_result trefoil_result;
#else
typedef uint32_t trefoil_result;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* What trefoil_batcher_submit() and trefoil_batcher_row() do when every row is taken. */
enum trefoil_when_full
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* They wait for a free row. */
    TREFOIL_WHEN_FULL_WAIT = 0,
    /* They wait for `full_limit_ns`, then fail with TIMEOUT. */
    TREFOIL_WHEN_FULL_WAIT_FOR = 1,
    /* They fail at once with FULL. */
    TREFOIL_WHEN_FULL_REJECT = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_when_full trefoil_when_full;
#else
typedef uint32_t trefoil_when_full;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* How threads of the host learn that the device is done. */
enum trefoil_waiting
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* They sleep in the driver. */
    TREFOIL_WAITING_BLOCK = 0,
    /* They ask again and again, and keep a core busy with it: the lowest latency. */
    TREFOIL_WAITING_SPIN = 1,
    /* The driver wakes them with a callback of the library's own. For threads that may not sleep in the driver. */
    TREFOIL_WAITING_CALLBACK = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trefoil_waiting trefoil_waiting;
#else
typedef uint32_t trefoil_waiting;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/* How much is logged. */
enum trefoil_log_level
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    /* Nothing. */
    TREFOIL_LOG_LEVEL_OFF = 0,
    /* Faults. */
    TREFOIL_LOG_LEVEL_ERROR = 1,
    /* And what is not as it was meant, such as the CPU in place of a missing GPU. */
    TREFOIL_LOG_LEVEL_WARN = 2,
    /* And what was chosen. */
    TREFOIL_LOG_LEVEL_INFO = 3,
    /* And details. */
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

/* What a device says of itself. */
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
    /* Memory in all; 0 where it is the host's. */
    uint64_t memory_bytes;
    /* Device memory that trefoil holds: weights, activations, slots. */
    uint64_t device_bytes_used;
    /* Page-locked host memory that trefoil holds: staging, results, rows of batchers. */
    uint64_t page_locked_bytes_used;
} trefoil_device_info;

/* A model: graph, weights, labels. */
typedef uint64_t trefoil_model;

/*
 What a model takes and gives. One that is no network of images has zeros for all but its name: what it takes and gives
 is told by the ports of an engine of it.
 */
typedef struct trefoil_model_info {
    /* sizeof(trefoil_model_info), set by the caller. */
    size_t size;
    /* The architecture's name. */
    char name[96];
    /* Height of its input in pixels. */
    uint32_t height;
    /* Width of its input in pixels. */
    uint32_t width;
    /* Channels of its input. */
    uint32_t channels;
    /* Pictures are to be resized so that their shorter side has so many pixels, then the middle is cut out. */
    uint32_t resize;
    /* Length of the result, or its channels if it is not a vector. */
    size_t classes;
} trefoil_model_info;

/*
 A size of an engine, or one that is asked for: rows of a batch, and sizes of free dimensions by name. A dimension that is
 not named has the size that the model was opened at.
 */
typedef struct trefoil_size {
    /* sizeof(trefoil_size). */
    size_t size;
    /* Rows of a batch. */
    size_t batch;
    /* Names of dimensions, `count` of them. */
    const char *const *names;
    /* Their sizes. */
    const size_t *values;
    /* How many they are. */
    size_t count;
} trefoil_size;

/* How an engine is to be built. Zeros are the defaults: `trefoil_engine_options options = { .size = sizeof options }`. */
typedef struct trefoil_engine_options {
    /* sizeof(trefoil_engine_options). */
    size_t size;
    /* The device; without it a GPU if there is one, else the CPU. */
    trefoil_device device;
    /* The largest batch. A GPU gets a graph for each power of two below it as well. Default: 32 on a GPU, 8 on a CPU. */
    size_t batch;
    /* Exactly these batch sizes, instead of `batch`. */
    const size_t *batch_sizes;
    /* How many they are. */
    size_t batch_size_count;
    /* Batches on the device at once. Default 3; 1 is the serial baseline. */
    size_t slots;
    /* Staging buffers. Default slots + 3; advised: producers + slots. */
    size_t staging;
    /* Result buffers. Default 4 x staging. */
    size_t results;
    /* What producers write: a trefoil_input. */
    uint32_t input;
    /* What consumers read: a trefoil_result. */
    uint32_t result;
    /* Classes of a result of TREFOIL_RESULT_TOP_K. */
    size_t top_k;
    /* How long trefoil_acquire() waits for a free batch. Default 10 s. */
    uint64_t acquire_limit_ns;
    /* 1: this engine's streams go before those of normal priority. */
    uint32_t high_priority;
    /* 1: every access is checked to be ordered after those that it conflicts with. For tests. */
    uint32_t check;
    /* How threads learn that the device is done: a trefoil_waiting. */
    uint32_t waiting;
    /* 1: there is room for results that stay on the device, for trefoil_submit_to_device(). */
    uint32_t device_results;
    /* Batches that the recorder remembers, for trefoil_trace_write(); 0: there is none. */
    size_t trace_batches;
    /* Batches that are computed side by side, of which `slots` is a multiple. Default 1. */
    size_t compute_streams;
    /*
     Exactly these sizes, instead of `batch` and `batch_sizes`. Functions that ask for none take the first one's
     dimensions.
     */
    const struct trefoil_size *const *sizes;
    /* How many they are. */
    size_t size_count;
} trefoil_engine_options;

/* A model on a device behind a ring. */
typedef uint64_t trefoil_engine;

/*
 Shape, type and size of the rows on one side of an engine. Rows of several ports have the shape and type of the first
 one here; trefoil_port has those of each.
 */
typedef struct trefoil_tensor {
    /* sizeof(trefoil_tensor), set by the caller. */
    size_t size;
    /* Element type: a trefoil_dtype. */
    uint32_t dtype;
    /* Rows of pixels. */
    uint32_t height;
    /* Pixels in a row. */
    uint32_t width;
    /* Values in a pixel. */
    uint32_t channels;
    /* Bytes of one row of a batch, without padding. */
    size_t row_bytes;
    /* Distance of two rows of a batch in bytes. */
    size_t row_pitch;
} trefoil_tensor;

/*
 What state an engine is in. Each batch buffer is in exactly one of the states that are counted; but a result that was
 handed back on the device counts as in flight until it is there, and may be lent again meanwhile.
 */
typedef struct trefoil_health {
    /* sizeof(trefoil_health), set by the caller. */
    size_t size;
    /*
     1 if a fault put the device out of use: everything is answered with it, and trefoil_device_health() has its
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
    /* Results that are there, held by a ticket or output. */
    size_t unread;
    /* Buffers out of use because a fault left it unknown whether the device still accesses them. */
    size_t quarantined;
    /* Staging buffers in all. */
    size_t staging;
    /* Result buffers in all. */
    size_t results;
} trefoil_health;

/* A port: one of the values that a row holds one behind the other, and where it is. */
typedef struct trefoil_port {
    /* sizeof(trefoil_port), set by the caller. */
    size_t size;
    /* Its name, which no other port of the row has, cut to what fits with a NUL. */
    char name[128];
    /* Bytes of the whole name, without NUL. */
    size_t name_bytes;
    /* Element type: a trefoil_dtype. */
    uint32_t dtype;
    /* How many dimensions there are; 0 for one number. The batch is not among them. */
    uint32_t rank;
    /* The first dimensions, the innermost last; zeros behind them. A `rank` above 8 has more than fit. */
    size_t dims[8];
    /* Elements in all. */
    size_t elements;
    /* Bytes in all. */
    size_t bytes;
    /* Where it begins in a row, in bytes. */
    size_t offset;
} trefoil_port;

/* A batch being filled. */
typedef uint64_t trefoil_batch;

/* A submission in flight: of a batch, or of a row. */
typedef uint64_t trefoil_ticket;

/* A result: of a batch, or of a row. */
typedef uint64_t trefoil_output;

/*
 What trefoil_on_ready() calls: with an output to be released if `status` is TREFOIL_STATUS_OK, else with 0;
 trefoil_last_error() has the message.
 */
typedef void (*trefoil_callback)(void *user, trefoil_status status, trefoil_output output);

/* A class with its probability, logit or feature. */
typedef struct trefoil_scored_class {
    /* Its value. */
    float value;
    /* Its index. */
    uint32_t index;
} trefoil_scored_class;

/* How a batcher is to be built. Zeros are the defaults. */
typedef struct trefoil_batcher_options {
    /* sizeof(trefoil_batcher_options). */
    size_t size;
    /* How long a batch that is not full waits after its first commit while the device is busy. Default 5 ms. */
    uint64_t max_delay_ns;
    /* Rows of page-locked memory. Default: as many as may be in flight, and four batches more. */
    size_t rows;
    /* Batches handed to the ring at once. Default: the slots and one. */
    size_t in_flight;
    /* What happens when every row is taken: a trefoil_when_full. */
    uint32_t when_full;
    /* Zero. */
    uint32_t reserved;
    /* The limit of TREFOIL_WHEN_FULL_WAIT_FOR. */
    uint64_t full_limit_ns;
} trefoil_batcher_options;

/* What makes batches of single rows from many threads. */
typedef uint64_t trefoil_batcher;

/* What can be said of one row. Zeros are the defaults. */
typedef struct trefoil_row_options {
    /* sizeof(trefoil_row_options). */
    size_t size;
    /*
     How long after the call the row may wait to be uploaded, also for memory; past that it is answered with
     DEADLINE. 0: for ever.
     */
    uint64_t deadline_ns;
    /* 1: it goes before waiting and queued rows of normal priority. */
    uint32_t high_priority;
    /* Zero. */
    uint32_t reserved;
    /*
     The size that it is for, whose `batch` is 1: the smallest of the engine that holds it. Null: the first one's
     dimensions.
     */
    const struct trefoil_size *at;
} trefoil_row_options;

/* A row of a batcher being written. */
typedef uint64_t trefoil_row;

/* What a batcher did since it was built. */
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

/* What the rows of a batch are. */
typedef struct trefoil_batch_info {
    /* sizeof(trefoil_batch_info), set by the caller. */
    size_t size;
    /* The most rows of it. */
    size_t capacity;
    /* Bytes of one row, without padding. */
    size_t row_bytes;
    /* Distance of two rows in bytes. */
    size_t row_pitch;
    /* How many ports a row has. */
    size_t ports;
} trefoil_batch_info;

/* Rows in device memory, and the stream whose work so far writes them. */
typedef struct trefoil_device_rows {
    /* sizeof(trefoil_device_rows). */
    size_t size;
    /* Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host. */
    const void *address;
    /* From the beginning of one row to that of the next. Default: `row_bytes` of trefoil_engine_input(), no gap. */
    size_t row_pitch;
    /*
     A CUstream or cudaStream_t that lives until the batch is submitted or released, or null for the default stream; on
     the CPU null, which is the calling thread.
     */
    void *stream;
} trefoil_device_rows;

/* A result that stays on the device. */
typedef uint64_t trefoil_device_output;

/* Where a result on the device is, and what tells when. */
typedef struct trefoil_device_output_info {
    /* sizeof(trefoil_device_output_info), set by the caller. */
    size_t size;
    /* Where the first row begins: a CUdeviceptr as a pointer; on the CPU memory of the host. */
    void *address;
    /* Rows submitted. */
    size_t rows;
    /* Bytes of a row. */
    size_t row_bytes;
    /* From the beginning of one row to that of the next. */
    size_t row_pitch;
    /*
     The CUevent behind the result: to be waited for and asked until the output is released, not to be recorded or
     destroyed. Null on the CPU.
     */
    void *event;
} trefoil_device_output_info;

/*
 What trefoil_log() calls with each message, from any thread. `level` is a trefoil_log_level; `message` lives until
 the call returns. A message may come from within any call and with a lock of the library held, so that this must
 make no call of the library, and must not throw or jump out.
 */
typedef void (*trefoil_log_callback)(void *user, uint32_t level, const char *message);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Whether this library runs a program compiled with a header of this version. To be called first, as
 `trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR)`.
 */
trefoil_status trefoil_check_abi(uint32_t major, uint32_t minor);

/* The library's version, such as `0.1.0`. Lives for ever. */
const char *trefoil_version(void);

/*
 What the last call of this thread that failed has to say, in English; empty before the first. Lives until the next
 call of this thread that fails.
 */
const char *trefoil_last_error(void);

/* How far that failure reaches. */
trefoil_fault_class trefoil_last_error_class(void);

/* The name of a status, such as `TREFOIL_STATUS_TIMEOUT`; `unknown status` for another number. Lives for ever. */
const char *trefoil_status_name(int32_t status);

/*
 Releases any handle; it names nothing afterwards. Never waits for the device: work that is submitted is finished,
 and batches, tickets and outputs outlive the engine they came from.

 A batch that is released is not computed; so is a row. A ticket that is released abandons its result. An output's
 memory is used for later batches at once, so that its rows must not be read any more. A batcher takes no more rows,
 also of calls that wait for room; those committed are computed. A device output's memory is used for later batches when
 all is done that trefoil_device_output_read_on() was told of.

 The last handle of an engine's, be it its own or one of its batches, tickets and outputs, frees the engine's memory
 once no work is in flight on it; the driver may take its time for that while other engines keep the GPU busy.
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
 Opens the CPU with a number of compute threads.

 Pointers:
 `device` can be written or is null.
 */
trefoil_status trefoil_device_open_cpu(size_t threads, trefoil_device *device);

/*
 What a device says of itself, and the memory that trefoil holds there.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_device_get_info(trefoil_device device, struct trefoil_device_info *info);

/*
 Whether the device is in use: OK, or FAULT with the first failure as the message. After a fault everything on the
 device is answered with it; open another device, or end the process.
 */
trefoil_status trefoil_device_health(trefoil_device device);

/*
 Opens a folder with `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file of any network. A path
 is any bytes on Unix, and UTF-8 elsewhere.

 Pointers:
 `path` is a C string or null, `model` can be written or is null.
 */
trefoil_status trefoil_model_open(const char *path,
                                  trefoil_model *model);

/*
 Opens an `.onnx` file at sizes of its free dimensions: `count` names, as the file has them or `input:axis`, and as many
 values. The first dimension of the inputs may stay free: it is the batch. Of a folder with safetensors the names are
 `height` and `width`, or `sequence` of an encoder of texts.

 Pointers:
 `path` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values` is
 null or has `count` numbers; `model` can be written or is null.
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
 What a model takes and gives.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_model_get_info(trefoil_model model, struct trefoil_model_info *info);

/*
 Copies the label of a class into `text`, cut to `capacity` bytes with its final NUL. `length` is null, or gets the
 bytes of the whole label without NUL.

 Pointers:
 `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
 */
trefoil_status trefoil_model_label(trefoil_model model, size_t index, char *text, size_t capacity, size_t *length);

/*
 Copies the text that the model's ONNX file has under `key` into `text`, cut to `capacity` bytes with its final NUL.
 `length` is null, or gets the bytes of the whole text without NUL. An argument error if there is none.

 Pointers:
 `key` is a C string or null; `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
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
 `options` is null, or has its `size` set and so many bytes, and its `batch_sizes` and `sizes` are as many as it says, the
 latter each as trefoil_acquire_for() has it; `engine` can be written or is null.
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
 The rows that producers write; where there are several sizes, at the dimensions of the first.

 Pointers:
 `tensor` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_input(trefoil_engine engine, struct trefoil_tensor *tensor);

/*
 The rows that consumers read; where there are several sizes, at the dimensions of the first.

 Pointers:
 `tensor` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_output(trefoil_engine engine, struct trefoil_tensor *tensor);

/*
 The batch sizes that an engine was built for, at the dimensions of its first size, ascending: as many as fit are written
 to `sizes`, `count` gets how many there are. The last one is the most rows of a batch.

 Pointers:
 `sizes` has room for `capacity`, or is null where that is 0; `count` can be written or is null.
 */
trefoil_status trefoil_engine_batch_sizes(trefoil_engine engine,
                                          size_t *sizes,
                                          size_t capacity,
                                          size_t *count);

/*
 The most rows of a batch, at the dimensions of the first size.

 Pointers:
 `rows` can be written or is null.
 */
trefoil_status trefoil_engine_capacity(trefoil_engine engine, size_t *rows);

/*
 What state an engine is in: faulted, closed, where its batches are. Does not fail after a fault, and never waits for
 the device.

 Pointers:
 `health` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_engine_health(trefoil_engine engine, struct trefoil_health *health);

/*
 Takes no more work and waits, up to `limit_ns`, until the device has finished what is in flight. With `abort`,
 tickets are answered with CLOSED instead of their results. Then it waits until the callbacks of its tickets have
 returned, also those of its batchers' rows; a call from within a callback does not. The handle stays;
 trefoil_acquire() and trefoil_submit() answer CLOSED.
 */
trefoil_status trefoil_engine_close(trefoil_engine engine, uint32_t abort, uint64_t limit_ns);

/*
 How many ports a row has that producers write.

 Pointers:
 `count` can be written or is null.
 */
trefoil_status trefoil_engine_input_ports(trefoil_engine engine, size_t *count);

/*
 How many ports a row has that consumers read.

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
 Where row `index` of a batch is, in page-locked memory, and how many bytes of it are to be written, at most: `bytes` is
 null, or gets the length, `row_bytes` of trefoil_batch_get_info(). The rows of a batch are `row_pitch` bytes apart. They
 may be written by several threads, until the batch is submitted or released; nothing can tell a write after that, or
 beyond the row, and what it does to another.

 Pointers:
 `row` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_batch_row(trefoil_batch batch,
                                 size_t index,
                                 void **row,
                                 size_t *bytes);

/*
 Where a port of row `index` of a batch is, by its number, to be written as the row is: `dtype` is a trefoil_dtype, the
 type of the elements that the program writes, and it is an error if the port has others. `bytes` is null, or gets the
 length of the port.

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
 Submits the first `rows` rows: upload, forward, download. Returns at once; it never waits for the device. Only
 those rows are uploaded, and the smallest batch size that holds them runs.

 The batch's handle is given up, and its rows must not be written any more, unless the answer is INVALID_HANDLE,
 WRONG_KIND, BUSY, NULL_POINTER or INVALID_ARGUMENT, which leave it as it was.

 Pointers:
 `ticket` can be written or is null.
 */
trefoil_status trefoil_submit(trefoil_batch batch, size_t rows, trefoil_ticket *ticket);

/*
 Blocks until the result of this submission is there; it waits for nothing else. The ticket's handle is given up,
 be the answer a result or a failure, unless it is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or IN_CALLBACK.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_wait(trefoil_ticket ticket, trefoil_output *output);

/*
 The same for at most `limit_ns`: past that it answers NOT_READY, and the ticket is as it was.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_wait_for(trefoil_ticket ticket, uint64_t limit_ns, trefoil_output *output);

/*
 Whether trefoil_wait() would return at once, with the result or, also after a fault or a close, with the failure: OK
 or NOT_READY. Never blocks, and the ticket is as it was.
 */
trefoil_status trefoil_is_ready(trefoil_ticket ticket);

/*
 Has `callback` called once, with `user`, when the result is there, or its failure. If the answer is OK, the ticket's
 handle is given up to it; else the ticket is as it was, and the callback is never called.

 All callbacks are called by one thread of the library, `trefoil-callback`, one after the other, never within a call
 of the program's, perhaps before this call returns; the library holds no lock meanwhile, and its other threads go
 on. A callback may make any call of this interface. None waits there: trefoil_wait() answers IN_CALLBACK if the
 result is not there, and every limit is 0. It may take a lock, but not one that a thread holds while it waits in
 this library. The callbacks behind it wait for it, so that it had better be short. It must not throw or jump out.

 `user` has to live until its own callback has returned. It is called whatever becomes of the engine: also after
 trefoil_release() of it, and after a fault or a close with the failure. When trefoil_engine_close() or
 trefoil_batcher_close() has answered OK, every callback that was registered before has returned.

 Pointers:
 `callback` may be called with `user`, from another thread.
 */
trefoil_status trefoil_on_ready(trefoil_ticket ticket, trefoil_callback callback, void *user);

/*
 How many rows an output has: as many as were submitted; 1 of a batcher's single row.

 Pointers:
 `rows` can be written or is null.
 */
trefoil_status trefoil_output_rows(trefoil_output output, size_t *rows);

/*
 What the rows of an output are: a trefoil_result, as its engine was built for.

 Pointers:
 `result` can be written or is null.
 */
trefoil_status trefoil_output_result(trefoil_output output, uint32_t *result);

/*
 Where row `index` of an output is, in page-locked memory: `row_bytes` of trefoil_engine_output() to be read, which of
 a network of images are floats, or trefoil_scored_class for TREFOIL_RESULT_TOP_K, and of any other its ports. It may be
 read by several threads until the output is released. `bytes` is null, or gets the length.

 Pointers:
 `row` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_output_row(trefoil_output output, size_t index, const void **row, size_t *bytes);

/*
 Where a port of row `index` of an output is, by its number, to be read as the row is: `dtype` is a trefoil_dtype, the type
 of the elements that the program reads, and it is an error if the port has others. `bytes` is null, or gets the length
 of the port.

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
 Copies rows of an output, `count` from row `first` on, to `values`, without padding; `bytes` is their length, `count`
 times `row_bytes` of trefoil_engine_output().

 Pointers:
 `bytes` bytes can be written at `values`, or it is null, which is an error.
 */
trefoil_status trefoil_output_copy(trefoil_output output, size_t first, size_t count, void *values, size_t bytes);

/*
 The `capacity` largest values of row `index`, largest first, ties by the lower class; `count` gets how many there
 are. It allocates nothing. An engine built for TREFOIL_RESULT_TOP_K has no more than it was built for. OUTPUT if any
 value of the row is not finite or, of probabilities, not within 0 to 1, or if the model has no such class.

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
 Submits one row: a copy of `bytes` bytes at `pixels` into page-locked memory. The ticket is that of
 trefoil_submit(), with an output of one row.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `pixels` is
 null or can be read; `ticket` can be written or is null.
 */
trefoil_status trefoil_batcher_submit(trefoil_batcher batcher,
                                      const struct trefoil_row_options *options,
                                      const void *pixels,
                                      size_t bytes,
                                      trefoil_ticket *ticket);

/*
 Submits `count` rows in one call: a copy of `bytes` bytes, one row, at each of `rows`. One ticket and one output are
 for all of them, in order. The output is there when every row has its answer. A row without a result, for a
 deadline or for lack of room, has its failure in place of what trefoil_output_row() and others say of it; if no row
 has a result, trefoil_wait() answers with the first row's failure.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `rows` is
 null or has `count` pointers, of which each is null or can be read; `ticket` can be written or is null.
 */
trefoil_status trefoil_batcher_submit_rows(trefoil_batcher batcher,
                                           const struct trefoil_row_options *options,
                                           const void *const *rows,
                                           size_t count,
                                           size_t bytes,
                                           trefoil_ticket *ticket);

/*
 Lends a row to be written in place. It delays nobody, however long it is held.

 Pointers:
 `options` is null, or has its `size` set and so many bytes, and its `at` is as trefoil_acquire_for() has it; `row` can be
 written or is null.
 */
trefoil_status trefoil_batcher_row(trefoil_batcher batcher,
                                   const struct trefoil_row_options *options,
                                   trefoil_row *row);

/*
 Where a row is, in page-locked memory, to be written until it is submitted or released; nothing can tell a write
 after that, and what it does to the row of somebody else. `bytes` is null, or gets its length.

 Pointers:
 `memory` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_row_memory(trefoil_row row, void **memory, size_t *bytes);

/*
 Where a port of a row is, by its number, as trefoil_batch_port() has it.

 Pointers:
 `elements` can be written or is null, and so is `bytes`.
 */
trefoil_status trefoil_row_port(trefoil_row row, size_t port, uint32_t dtype, void **elements, size_t *bytes);

/*
 Commits a row to the queue. Never waits. The row's handle is given up, and its memory must not be written any
 more, unless the answer is INVALID_HANDLE, WRONG_KIND, BUSY or NULL_POINTER.

 Pointers:
 `ticket` can be written or is null.
 */
trefoil_status trefoil_row_submit(trefoil_row row, trefoil_ticket *ticket);

/*
 Takes no more rows and waits, up to `limit_ns`, until those committed have their answers. With `abort`, those still
 in the queue are answered with CLOSED and not computed. Then it waits until the callbacks of its tickets have
 returned; a call from within a callback does not. The handle stays; submissions are answered with CLOSED.
 */
trefoil_status trefoil_batcher_close(trefoil_batcher batcher, uint32_t abort, uint64_t limit_ns);

/*
 What a batcher did so far. It allocates, so it is for now and then.

 Pointers:
 `stats` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_batcher_get_stats(trefoil_batcher batcher, struct trefoil_batcher_stats *stats);

/*
 The model at other sizes of its free dimensions: an engine of it has them, unless its options name others. A network of
 images from a folder has `height` and `width`. The `batch` of `wanted` does not count. INVALID_ARGUMENT for a dimension that
 the model does not have, and for sizes that it cannot have, with the reason.

 Pointers:
 `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `sized` can
 be written or is null.
 */
trefoil_status trefoil_model_at(trefoil_model model,
                                const struct trefoil_size *wanted,
                                trefoil_model *sized);

/*
 A model whose rows may be shorter than an engine's size along the free dimension `dim`: `count` inputs by their names,
 each with the number that it is filled up with, as trefoil_batch_write_port() does it. The caller vouches that the model
 leaves what is filled up aside, say by a mask. Every input that has the dimension is to be named.

 Pointers:
 `dim` is a C string or null; `names` is null or has `count` pointers, of which each is a C string or null; `values` is
 null or has `count` numbers; `padded` can be written or is null.
 */
trefoil_status trefoil_model_padded(trefoil_model model,
                                    const char *dim,
                                    const char *const *names,
                                    const double *values,
                                    size_t count,
                                    trefoil_model *padded);

/*
 Lends a batch for rows of a size: of the smallest size of the engine that holds them. What its rows are,
 trefoil_batch_get_info() and trefoil_batch_describe_port() tell. INVALID_ARGUMENT if there is no such size, with those
 that there are; else as trefoil_acquire_within().

 Pointers:
 `wanted` is null, or has its `size` set and so many bytes, and its names and values are as many as it says; `batch` can
 be written or is null.
 */
trefoil_status trefoil_acquire_for(trefoil_engine engine,
                                   const struct trefoil_size *wanted,
                                   uint64_t limit_ns,
                                   trefoil_batch *batch);

/*
 What the rows of a batch are.

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
 Copies the elements of a port of row `index` of a batch, `bytes` of them: `dtype` is a trefoil_dtype, their type. Fewer
 than the port has are a value that is shorter along the dimension that trefoil_model_padded() has named, and the padding
 follows.

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
 The same of a batcher's row.

 Pointers:
 `elements` is null or has `bytes` bytes; nobody else writes the row meanwhile.
 */
trefoil_status trefoil_row_write_port(trefoil_row row, size_t port, uint32_t dtype, const void *elements, size_t bytes);

/*
 A model whose input `input` is a state, which stays on the device: its value is what the output `output` gave in the batch
 before, zeros at first. Rows have neither of them. Each row of a batch goes on with the state of the same row, so that
 batches have as many rows as one of the engine's sizes. A batcher of such a model is refused, and several compute streams.

 Pointers:
 `input` and `output` are C strings or null; `with_state` can be written or is null.
 */
trefoil_status trefoil_model_with_state(trefoil_model model,
                                        const char *input,
                                        const char *output,
                                        trefoil_model *with_state);

/*
 Has all states of the engine be zeros from the next batch on, or from the next call that reads or writes a state. Does not
 wait.
 */
trefoil_status trefoil_engine_reset_states(trefoil_engine engine);

/*
 Copies a state, known by the name of its input, to `elements`, as the batches and resets so far leave it: the rows
 of the largest batch, one behind the other, in `bytes` bytes; `dtype` is a trefoil_dtype, the type of its elements. Waits
 for those batches; in a callback it answers IN_CALLBACK.

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
 trefoil_engine_read_state(). Waits for the batches that were submitted before; in a callback it answers IN_CALLBACK.

 Pointers:
 `name` is a C string or null; `elements` is null or has `bytes` bytes.
 */
trefoil_status trefoil_engine_write_state(trefoil_engine engine,
                                          const char *name,
                                          uint32_t dtype,
                                          const void *elements,
                                          size_t bytes);

/*
 Opens the GPU of a CUDA context that the program made, a CUcontext: engines live there, in place of the device's primary
 context. For programs that call cuCtxCreate(); what is built on the CUDA runtime, such as torch, lives in the primary
 context, which trefoil_device_open() shares.

 The context must not be destroyed before all that trefoil has in it is gone: release everything but the device, and wait
 until trefoil_device_is_unused().

 Pointers:
 `context` is a live CUcontext or null, `device` can be written or is null.
 */
trefoil_status trefoil_device_open_context(void *context,
                                           trefoil_device *device);

/*
 Whether nothing is left of what was made on a device, but this handle: OK or NOT_READY. What the GPU still works on, and
 the library's threads, may outlast the last handle of an engine's a moment. After a fault it may be NOT_READY for ever.
 */
trefoil_status trefoil_device_is_unused(trefoil_device device);

/*
 Has a batch take its rows from device memory, whichever way it is submitted; what was written into the batch itself is
 left aside. The submission copies them on the stream of `rows`, on the device: after all that the stream was given
 before, and before what it is given later, which may overwrite them. No thread waits for the stream.

 That copy waits for an earlier batch to have been read, and the stream with it. On the CPU, where the stream is the
 calling thread, the submission copies the rows before it returns. A stream of another context, one that captures a
 graph, and memory that is not the device's are answered with INVALID_ARGUMENT.

 Pointers:
 `rows` is null, or has its `size` set and so many bytes; its stream lives until the batch is submitted or released;
 when the stream comes to the copy, there are as many rows as are submitted, which nothing writes until it is over.
 */
trefoil_status trefoil_batch_read_from(trefoil_batch batch, const struct trefoil_device_rows *rows);

/*
 Submits the first `rows` rows as trefoil_submit() does, and the result stays on the device. There is no ticket: `output`
 says at once where the result will be. The engine has to be built with `device_results`.

 The batch's handle is given up, unless the answer is INVALID_HANDLE, WRONG_KIND, BUSY, NULL_POINTER or
 INVALID_ARGUMENT, which leave it as it was.

 Pointers:
 `output` can be written or is null.
 */
trefoil_status trefoil_submit_to_device(trefoil_batch batch,
                                        size_t rows,
                                        trefoil_device_output *output);

/*
 Where the result is, and its event.

 Pointers:
 `info` is null, or has its `size` set and so many bytes.
 */
trefoil_status trefoil_device_output_get_info(trefoil_device_output output, struct trefoil_device_output_info *info);

/*
 Makes what is enqueued on `stream` from now on wait until the result is there; null is the default stream. On the CPU,
 where it is the calling thread, the call blocks, and in a callback answers IN_CALLBACK if the result is not there.

 Pointers:
 `stream` is a live stream or null.
 */
trefoil_status trefoil_device_output_wait_on(trefoil_device_output output, void *stream);

/*
 Tells that what was enqueued on `stream` so far reads the result: after trefoil_release() of the output, its memory is
 not overwritten before that is done, of each stream that was told. A stream that was not made to wait for the result
 is made to now.

 Pointers:
 `stream` is a live stream or null.
 */
trefoil_status trefoil_device_output_read_on(trefoil_device_output output, void *stream);

/* Blocks until the result is there. In a callback it answers IN_CALLBACK if it is not. */
trefoil_status trefoil_device_output_wait(trefoil_device_output output);

/* Whether the result is there, or, after a fault or a close, its failure: OK or NOT_READY. Never blocks. */
trefoil_status trefoil_device_output_is_ready(trefoil_device_output output);

/*
 Writes the timeline of the batches that the recorder remembers: to a path that ends in `.html` a page for any
 browser, which needs nothing else; to another what Perfetto and chrome://tracing read. A file that is there is
 replaced as a whole. The engine was built with `trace_batches`; batches go on meanwhile. The path is any bytes on
 Unix, and UTF-8 elsewhere.

 Pointers:
 `path` is a C string or null.
 */
trefoil_status trefoil_trace_write(trefoil_engine engine, const char *path);

/*
 Copies the recorder's report, how much copies and compute overlapped, into `text`, cut to `capacity` bytes with its
 final NUL. `length` is null, or gets the bytes of the whole report without NUL.

 Pointers:
 `text` has `capacity` bytes, or is null where that is 0; `length` can be written or is null.
 */
trefoil_status trefoil_trace_report(trefoil_engine engine, char *text, size_t capacity, size_t *length);

/*
 Has every message of the process up to `level`, a trefoil_log_level, passed to `callback`; null ends it. Without a
 call of it nothing is logged. A message that is on its way may still reach the callback that was set before.
 UNSUPPORTED, and nothing is changed, where a Rust program around this library has a logger of its own.

 Pointers:
 `callback` may be called with `user`, from any thread.
 */
trefoil_status trefoil_log(uint32_t level, trefoil_log_callback callback, void *user);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TREFOIL_H */
