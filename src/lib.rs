//! trefoil is an inference engine on the raw CUDA driver. Three leaves: copy in, compute, copy out, all at the same time.
//!
//! ```no_run
//! use trefoil::{Engine, model::Model};
//!
//! let model = Model::open("weights/efficientnet-lite0")?;
//! let engine = Engine::builder(&model).build()?; // a GPU if there is one, else the CPU
//! let mut batch = engine.acquire()?; // page-locked memory
//! # #[cfg(feature = "image")]
//! trefoil::image::load("cat.jpg", model.preprocessing()?, batch.row_mut(0))?;
//! for (class, p) in batch.submit(1)?.wait()?.top_k(0, 5)? {
//!     println!("{:5.1} % {}", 100.0 * p, model.label(class));
//! }
//! # Ok::<(), trefoil::Error>(())
//! ```
//!
//! A batch takes these steps:
//!
//! 1. [`Engine::acquire`] lends a [`Batch`] of page-locked rows.
//! 2. A producer, which is a thread of the program, writes pixels into the rows.
//! 3. [`Batch::submit`] enqueues upload, compute and download on three streams and returns a [`Ticket`] at once.
//! 4. [`Ticket::wait`] blocks until this submission is done, and waits for nothing else. It returns an [`Output`],
//!    whose values are read in place.
//! 5. Dropping the output frees its memory for a later batch.
//!
//! Any number of threads may submit batches at the same time.
//!
//! A program with CUDA code of its own can keep pixels and results on the device: [`Batch::read_from`],
//! [`Batch::submit_to_device`], [`Device::in_context`].
//!
//! [`EngineBuilder::trace`] records when each stage of each batch ran; [`Trace`] computes the overlap and writes timelines:
//!
//! ```
//! # use trefoil::{Device, Engine, Target, model::Model};
//! # let (model, cpu) = (Model::open("weights/convnet28")?, Device::open(Target::Cpu)?);
//! let engine = Engine::builder(&model).on(&cpu).trace(true).build()?;
//! drop(engine.acquire()?.submit(1)?.wait()?);
//! let trace = engine.trace().expect("this engine records");
//! println!("{}", trace.report());
//! # Ok::<(), trefoil::Error>(())
//! ```
//!
//! # Where to find what
//!
//! | task | items |
//! |---|---|
//! | running a model on batches | [`model::Model`], [`Engine`], [`Batch`], [`Ticket`], [`Output`], [`Error`] |
//! | choosing device, sizes and types | [`EngineBuilder`], [`Device`], [`Target`], [`Size`], [`InputFormat`], [`OutputKind`] |
//! | submitting single rows from many threads | [`Batcher`], [`RowTicket`], [`RowOutput`] |
//! | decoding photos, and reading inputs ahead | the feature `image`, [`prefetch()`] |
//! | using several GPUs | [`Fleet`] |
//! | seeing what an engine did and how it is, and closing it | [`Trace`], [`Health`], [`Close`] |
//! | predicting throughput on other hardware | [`mod@simulate`] |
//! | reading ONNX files; building and evaluating any graph | [`onnx`], [`graph`], [`loops`] |
//! | computing a network in bytes (int8) | [`Calibrator`], [`model::Quantization`] |
//! | building networks in code | [`graph::GraphBuilder`], [`model`] |
//! | choosing kernels, and measuring steps against their rooflines | [`plan`], [`Tuning`], [`StepTimes`] |
//!
//! # Versions
//!
//! trefoil uses semantic versioning. Until 1.0 a minor version may change the public interface, and CHANGELOG.md says how;
//! a patch version does not. Types that will grow are `#[non_exhaustive]`. The enums and structs of [`plan`] describe
//! kernels, and change when the kernels do. The C interface has a version of its own, `TREFOIL_ABI_MAJOR` in `trefoil.h`.
//!
//! # Environment variables
//!
//! | variable | read by | meaning |
//! |---|---|---|
//! | `TREFOIL_NVCC` | the build | compile the kernels with this nvcc instead of embedding the kept PTX |
//! | `TREFOIL_WEIGHTS` | the program | a folder with models, or a model |
//! | `TREFOIL_CACHE` | the library | the folder for measurements of kernels; default `trefoil` in `XDG_CACHE_HOME` or `~/.cache` |
//! | `TREFOIL_DECODE_MEMORY` | the library | MiB that all photos being decoded share; default half of the free memory, see `image` |
//! | `TREFOIL_CHECK` | the library | `1`: engines run behind the hazard checker unless told otherwise, see [`EngineBuilder::check`] |
//! | `TREFOIL_REQUIRE_GPU` | the tests | `1`: a missing GPU is a failure instead of a skip; `2`: a missing second one too |
//! | `TREFOIL_REQUIRE_C` | the tests | `1`: a missing C compiler or valgrind is a failure instead of a skip |
//! | `TREFOIL_REQUIRE_BROWSER` | the tests | `1`: a missing Chromium is a failure instead of a skip |
//! | `TREFOIL_BLESS` | the tests | `1`: write the kept plans, call logs and the list of ONNX's node tests anew |
//! | `TREFOIL_ONNX_NODES` | the tests | the folder that `tests/onnx/nodes.py` wrote ONNX's node tests to |
//! | `TREFOIL_ALL` | the tests | set: each call to the driver fails in turn, which takes minutes; else each fifth one |
//! | `TREFOIL_SAMPLE` | the tests | how many of each kernel's cases run on a GPU; default all |
//! | `TREFOIL_PART` | the tests | `I/N`: part I, counted from 0, of N parts of all cases on a GPU; default all |
//! | `TREFOIL_EXCEPT` | the tests | a file of names, one a line: cases on a GPU that do not run |
//! | `TREFOIL_SCHEDULES` | the tests | how many different schedules of the ring are played |
//! | `TREFOIL_SCHEDULE_SEED` | the tests | play the schedule of this seed alone |
//! | `TREFOIL_COMMIT` | the program, `benches/` | the commit that measurement records name; default the checkout's |
//! | `NVTX_INJECTION64_PATH` | the library | set by a profiler: the profiler's library, which receives names |
//! | `RUST_LOG` | the program | what to log: `warn` (default), `info`, `debug` |
//! | `NO_COLOR` | the program | no colours |

mod device;
mod engine;
mod error;
mod exec;
#[cfg(any(feature = "ffi", test))]
mod ffi;
pub mod files;
mod fnv;
pub mod graph;
#[cfg(feature = "image")]
pub mod image;
pub mod loops;
mod memory;
pub mod model;
pub mod onnx;
mod phases;
pub mod plan;
mod ring;
pub mod simulate;
mod sync;
mod tensor;
pub mod trace;

/// The programs in the guides compile and run.
#[cfg(doctest)]
#[doc = include_str!("../docs/adding-a-model-family.md")]
struct Guides;

#[cfg(doctest)]
#[doc = include_str!("../docs/graphs.md")]
struct GraphGuide;

#[cfg(doctest)]
#[doc = include_str!("../docs/onnx.md")]
struct OnnxGuide;

#[cfg(doctest)]
#[doc = include_str!("../docs/embed.md")]
struct EmbedGuide;

/// The programs in the README compile.
#[cfg(all(doctest, feature = "image"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub use device::{CallerStream, Device, DeviceInfo, DeviceRows, MemoryUse, Target};
pub use engine::{Engine, EngineBuilder, Fleet, NotFinite, Pack, Packed, PackedRow, PackedTicket, Packer};
pub use error::{Credits, Error, FaultClass, printable};
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use exec::{
    AttentionOperands, AttentionRun, ConvRun, DepthwiseRun, E4m3ProductOperands, E4m3ProductRun, HalfOperands,
    LoopModule, LoopRun, PackedAttentionOperands, PackedAttentionRun, ProductNormOperands, ProductOperands, ProductRun,
    RowNormCodes, RowNormOperands, RowNormRun, RowSumOperands, S8DepthwiseOperands, S8MeanOperands, S8MeanRun,
    S8Operands, S8StemOperands, S8StemRun,
};
pub use exec::{Audit, NotHeld};
pub use exec::{CalibrationMethod, Calibrator, Sensitivity};
pub use exec::{StepTimes, Tuning, TuningCache, TuningProgress};
pub use phases::Phase;
pub use ring::{
    Batch, Batcher, BatcherBuilder, BatcherStats, Close, DeviceOutput, DeviceStats, Health, Output, OutputPart,
    Prefetch, Request, Row, RowOutput, RowPriority, RowTicket, Stage, Ticket, Waiting, WhenFull, prefetch,
    prefetch_scoped,
};
pub use tensor::{
    Activation, Dtype, Element, InputFormat, OutputKind, Packing, Padding, PortKey, Precision, ROW_ALIGN, RowPort,
    RowSpec, Shape, Size,
};
pub use trace::Trace;
