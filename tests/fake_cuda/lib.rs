//! A stand-in for the NVIDIA driver library, so that the real CUDA device runs, and is checked, without a GPU.
//!
//! It has the driver functions that trefoil calls, in the driver's own ABI, and nothing else. Memory is the host's,
//! filled with 0xCD, so copies really copy. The kernels of `kernels/`, whose names begin with `sm80_` or which are
//! cubins, do nothing; those of other PTX are interpreted, see `ptx/`, and what one does that it must not is a fault
//! that lasts, as a real device's. What a program must not do is written to the log as a
//! line `VIOLATION ...` (a handle used after its end, a copy out of bounds or of pageable memory, memory freed while
//! enqueued work still names it, a captured graph that outlives a buffer it addresses, ...) or `LEAK ...` (what is
//! alive when the context is released).
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `FAKE_CUDA_LOG` | file that gets one line a call, with names for handles: `cuEventRecord event3 stream0` | none |
//! | `FAKE_CUDA_VERSION` | what cuDriverGetVersion says | 13000 |
//! | `FAKE_CUDA_DEVICES` | number of GPUs | 1 |
//! | `FAKE_CUDA_CAPABILITY` | compute capability, as 10 x major + minor | 90 |
//! | `FAKE_CUDA_MEMORY` | bytes of device memory | 1 GiB |
//! | `FAKE_CUDA_POISON` | each byte of new memory | 205, which is 0xCD |
//! | `FAKE_CUDA_EVENTS` | `instant`: work is done when enqueued; `held`: as late as it may be, a step a query; `own`: by a thread of the driver's own, a step at a time; `stuck`: kernels never end | `instant` |
//! | `FAKE_CUDA_SEED` | which of the ready streams goes first, where work is held | 1 |
//! | `FAKE_CUDA_FAIL_CALL` | the call that fails: its number, from 1, or several, `7,12`; or a name, `cuInit`, from the first of that name on, or `cuInit#2` from the second on; or `use:cuInit`, the first of that name behind the test's mark `use` | none |
//! | `FAKE_CUDA_FAIL_CODE` | with which status | 719 |
//! | `FAKE_CUDA_FAIL_STICKY` | `1`: and every call after the last of these too, as after a real fault | |
//! | `FAKE_CUDA_LATE_CALL` | the calls that do their work and return late, chosen as those of `FAKE_CUDA_FAIL_CALL`; the log has `late cuInit` before each | none |
//! | `FAKE_CUDA_LATE_MS` | how late | 30 |
//! | `FAKE_CUDA_SLOW` | kernels with this in their name take 0.1 ms by the events' clock, others 0.01 ms; a copy takes 1 ms | none |
//! | `FAKE_CUDA_JOIN_US` | by that clock branches of a graph run at the same time, and a kernel that waits for another branch begins so many us after its end | one after the other |
//! | `FAKE_CUDA_PTX_ERROR` | modules do not load, and the compiler's log says this | none |

mod capture;
mod cubin;
mod driver;
mod entry;
mod ffi;
mod memory;
mod module;
mod ptx;
mod stream;
mod table;
mod tensor;
