//! The library's one error type: what failed, where, what was expected, and what to do.

mod class;
mod printable;
mod problem;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use class::FaultClass;
pub use printable::printable;
pub use problem::Problem;
use problem::Problems;

/// Every error of the library.
///
/// Cheap to clone: after a fault, many requests get the same error.
///
/// ```
/// use trefoil::{Error, model::Model};
/// match Model::open("no/such/folder") {
///     Err(Error::Io { path, .. }) => assert!(path.ends_with("folder")),
///     other => panic!("{other:?}"),
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    Io {
        /// The operation, with the purpose of the file if its name does not show it: `"open"`, `"read the
        /// configuration"`, …
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The operating system's answer.
        source: Arc<io::Error>,
    },
    /// A file was read, but its content is not what its format demands.
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, with the expected and the found value.
        what: String,
    },
    /// A tensor of a weight file is missing, or of the wrong type or shape, or holds a NaN or infinity.
    Tensor {
        /// The weight file.
        path: PathBuf,
        /// The tensor's name in the file.
        tensor: String,
        /// The type or shape that the model needs.
        expected: String,
        /// The type or shape in the file.
        found: String,
    },
    /// A configuration names an architecture that no family of trefoil builds.
    UnknownArchitecture {
        /// The configuration that names it.
        path: PathBuf,
        /// The name found.
        found: String,
        /// The names known.
        known: Vec<String>,
    },
    /// A graph is not well-formed: the node, and what is wrong with its inputs or attributes.
    Graph {
        /// The node's name.
        node: String,
        /// What is wrong.
        what: String,
    },
    /// Nodes of a model's file that cannot be imported.
    Import {
        /// The file.
        path: PathBuf,
        /// Every node concerned, and why.
        problems: Arc<[Problem]>,
    },
    /// An option or argument is out of its range.
    Option {
        /// The option's name, as the caller writes it.
        option: &'static str,
        /// The value given.
        value: String,
        /// The values that are accepted.
        expected: String,
    },
    /// A valid request that trefoil does not support, or does not support on this device.
    Unsupported {
        /// The request.
        what: String,
        /// What is supported instead, or what to do.
        instead: String,
    },
    /// There is no device of the kind that was asked for.
    NoDevice {
        /// The target asked for: `"cuda:3"`.
        target: String,
        /// The reason why there is none.
        why: String,
    },
    /// Device or host memory is not enough for the build, or ran out.
    OutOfMemory {
        /// The device.
        device: String,
        /// The purpose of the allocation.
        what: String,
        /// The bytes that the whole build needs.
        needed_bytes: u64,
        /// The bytes that were free on the device before the build.
        free_bytes: u64,
        /// The largest batch that would fit, 0 if not even one row would; `None` if the memory does not depend on the
        /// batch.
        fitting_batch: Option<usize>,
    },
    /// A driver call failed.
    Driver {
        /// The device.
        device: String,
        /// The call: `"cuMemcpyHtoDAsync"`.
        operation: &'static str,
        /// The status by name: `"CUDA_ERROR_ILLEGAL_ADDRESS"`.
        status: String,
        /// The status as a number.
        code: i32,
        /// How far the failure reaches, by the driver's documentation of the status.
        class: FaultClass,
    },
    /// A driver call for enqueued work failed, now or earlier, which put the device out of use. Every later call
    /// returns this fault.
    Fault {
        /// The first failure.
        cause: Arc<Error>,
        /// The batch that was being enqueued or waited for when the fault was found, if there was one, counted from 0
        /// in its ring. The failed operation may belong to an earlier batch in flight.
        batch: Option<u64>,
    },
    /// The hazard checker found two conflicting accesses that nothing orders; a bug in trefoil.
    Hazard {
        /// The memory, the two accesses, and the streams or threads that made them.
        what: String,
    },
    /// The system starts no more threads.
    Thread {
        /// The thread's name, which shows its purpose: `"trefoil-cpu-3"`.
        name: String,
        /// The system's answer.
        source: Arc<io::Error>,
    },
    /// A wait ran out of time.
    Timeout {
        /// The call that waited: `"acquire"`, `"wait"`.
        operation: &'static str,
        /// How long it waited.
        waited: Duration,
        /// The driver call of another thread's submission that did not return in all that time, if there was one.
        behind: Option<&'static str>,
        /// The state of the ring's credits at that moment.
        credits: Credits,
    },
    /// A row was still in its batcher's queue when its deadline passed; it was not uploaded.
    Deadline {
        /// The time from the deadline to the moment when this was found.
        late: Duration,
    },
    /// A batcher that does not wait for free rows has no free row.
    Full {
        /// The number of its page-locked rows, all of which are in use.
        rows: usize,
    },
    /// A row of a result is invalid: a value is not finite, a probability is not within 0 to 1, or the model has no
    /// such class. The other rows of its batch may be valid.
    Output {
        /// The row in its batch.
        row: usize,
        /// What is wrong with it.
        what: String,
    },
    /// A picture could not be decoded.
    Image {
        /// The file.
        path: PathBuf,
        /// The reason.
        what: String,
    },
    /// The engine or batcher was closed.
    Closed,
    /// A panic in code that ran on the device's behalf; a bug in trefoil.
    Internal {
        /// What happened.
        what: String,
    },
}

/// The number of a ring's credits in each state. Each staging or result buffer is in exactly one of these states, with
/// one exception: the buffer of a dropped [`DeviceOutput`](crate::DeviceOutput) counts as in flight until its result is
/// computed, and may be lent again meanwhile, because the next copy into it waits on the device.
///
/// ```
/// # use trefoil::{Device, Engine, Target, model::Model};
/// # let model = Model::open("weights/convnet28")?;
/// # let cpu = Device::open(Target::Cpu)?;
/// # let engine = Engine::builder(&model).on(&cpu).build()?;
/// let batch = engine.acquire()?;
/// assert_eq!(engine.credits()?.filling, 1);
/// let output = batch.submit(1)?.wait()?;
/// let credits = engine.credits()?;
/// assert_eq!((credits.filling, credits.in_flight, credits.unread), (0, 0, 1), "{credits}");
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credits {
    /// Staging buffers lent to producers, not yet submitted.
    pub filling: usize,
    /// Submissions whose result is not there yet.
    pub in_flight: usize,
    /// Finished results that a `Ticket` or `Output` still holds.
    pub unread: usize,
    /// Buffers that are out of use, because after a fault it is unknown whether the device still accesses them.
    pub quarantined: usize,
    /// Staging buffers in all.
    pub staging: usize,
    /// Result buffers in all.
    pub results: usize,
}

impl fmt::Display for Credits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { filling, in_flight, unread, quarantined, staging, results } = self;
        write!(
            f,
            "{filling} being filled, {in_flight} in flight, {unread} finished and unread \
             (of {staging} staging and {results} result buffers)"
        )?;
        if *quarantined > 0 {
            write!(f, ", {quarantined} quarantined after a fault")?;
        }
        Ok(())
    }
}

impl Error {
    /// An [`Error::Io`] for `operation` on `path`.
    pub(crate) fn io(operation: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { operation, path: path.to_owned(), source: Arc::new(source) }
    }

    /// An [`Error::Format`] of `path`.
    pub(crate) fn format(path: &Path, what: impl Into<String>) -> Self {
        Self::Format { path: path.to_owned(), what: what.into() }
    }

    /// An [`Error::Graph`] at `node`.
    pub(crate) fn graph(node: &str, what: impl Into<String>) -> Self {
        Self::Graph { node: node.to_owned(), what: what.into() }
    }

    /// An [`Error::Option`].
    pub(crate) fn option(option: &'static str, value: impl fmt::Display, expected: impl Into<String>) -> Self {
        Self::Option { option, value: value.to_string(), expected: expected.into() }
    }
}

/// The longest message, in characters: names in it come from outside.
const MESSAGE: usize = 2000;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&Message(self).to_string(), MESSAGE))
    }
}

/// The message with the names in it unchanged.
struct Message<'a>(&'a Error);

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::Io { operation, path, source } => write!(f, "cannot {operation} {}: {source}", path.display()),
            Error::Format { path, what } => write!(f, "{}: {what}", path.display()),
            Error::Tensor { path, tensor, expected, found } => {
                write!(f, "{}: tensor `{tensor}`: expected {expected}, found {found}", path.display())
            }
            Error::UnknownArchitecture { path, found, known } => {
                write!(f, "{}: unknown architecture `{found}`; known: {}", path.display(), known.join(", "))
            }
            Error::Graph { node, what } if node.is_empty() => write!(f, "{what}"),
            Error::Graph { node, what } => write!(f, "node `{node}`: {what}"),
            Error::Import { path, problems } => write!(f, "{}: {}", path.display(), Problems(problems)),
            Error::Option { option, value, expected } => write!(f, "{option} is {value}: expected {expected}"),
            Error::Unsupported { what, instead } => write!(f, "{what} is not supported: {instead}"),
            Error::NoDevice { target, why } => write!(f, "no device for `{target}`: {why}"),
            Error::OutOfMemory { device, what, needed_bytes, free_bytes, fitting_batch } => {
                let mib = |b: &u64| *b as f64 / (1 << 20) as f64;
                write!(
                    f,
                    "{device}: out of memory for {what}: {:.1} MiB needed, {:.1} MiB free",
                    mib(needed_bytes),
                    mib(free_bytes)
                )?;
                match fitting_batch {
                    Some(0) => write!(f, "; not even a batch of 1 would fit"),
                    Some(n) => write!(f, "; a batch of {n} would fit"),
                    None if needed_bytes <= free_bytes => write!(f, "; another limit refused the memory"),
                    None => Ok(()),
                }
            }
            Error::Driver { device, operation, status, code, .. } => {
                write!(f, "{device}: {operation} failed with {status} ({code})")
            }
            Error::Hazard { what } => write!(f, "hazard, please report it: {what}"),
            Error::Fault { cause, batch: None } => write!(f, "the device is out of use: {cause}"),
            Error::Fault { cause, batch: Some(batch) } => {
                write!(f, "the device is out of use since batch {batch}: {cause}")
            }
            Error::Thread { name, source } => write!(
                f,
                "cannot start the thread {name}: {source}; raise the limit of threads (`ulimit -u`; in a \
                 container, its limit of processes), or use fewer threads"
            ),
            Error::Timeout { operation, waited, behind, credits } => {
                write!(f, "{operation} timed out after {:.3} s: ", waited.as_secs_f64())?;
                if let Some(call) = behind {
                    write!(f, "{call}, which another thread has called, did not return; ")?;
                }
                write!(f, "{credits}")?;
                if credits.unread > 0 && credits.unread + credits.in_flight + credits.filling >= credits.results {
                    write!(f, "; wait for or drop the unread tickets and outputs, or ask for more results")?;
                }
                Ok(())
            }
            Error::Deadline { late } => {
                write!(f, "the row was not uploaded: its deadline passed {:.3} ms ago", late.as_secs_f64() * 1e3)
            }
            Error::Full { rows } => {
                write!(f, "all {rows} rows of the batcher are taken; try again later, wait, or build it with more rows")
            }
            Error::Output { row, what } => {
                write!(f, "row {row} of the result is invalid: {what}; check the model's weights and preprocessing")
            }
            Error::Image { path, what } => write!(f, "{}: {what}", path.display()),
            Error::Closed => write!(f, "the engine or batcher is closed"),
            Error::Internal { what } => write!(f, "internal error, please report it: {what}"),
        }
    }
}

/// The message contains that of the cause, so that there is no `source`: a program that prints a chain of errors would
/// print it twice.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_printable_and_keeps_its_end() {
        let tensor = "\x1b[2J".to_owned() + &"x".repeat(5_000_000);
        let (expected, found) = ("[64]".to_owned(), "[32]".to_owned());
        let said = Error::Tensor { path: "w.safetensors".into(), tensor, expected, found }.to_string();
        assert!(
            said.starts_with(r"w.safetensors: tensor `\u{1b}[2Jxxx") && said.ends_with("expected [64], found [32]")
        );
        assert!(said.len() < 3000, "{} bytes", said.len());
    }
}
