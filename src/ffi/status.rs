//! The result of a call: a status, and a message that is kept for the calling thread.

use std::any::Any;
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, FaultClass};

/// The status that a call returns. The numbers never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum trefoil_status {
    /// Done.
    Ok = 0,
    /// The result is not there yet. Nothing failed, and every handle stays valid. There is no message.
    NotReady = 1,

    /// The handle is 0, or a number that this library never gave out.
    InvalidHandle = 10,
    /// The handle belongs to another kind of object.
    WrongKind = 11,
    /// The handle was released, or consumed by a call such as trefoil_submit().
    Released = 12,
    /// Another thread is in a call that consumes or changes the object, or waits for it, such as trefoil_wait_for().
    Busy = 13,
    /// A pointer that must not be null is null.
    NullPointer = 14,
    /// An argument or option is out of its range; the message has the range.
    InvalidArgument = 15,
    /// Program and library do not match: the program was compiled for another version of the interface, or did not set
    /// the size of a struct.
    AbiMismatch = 16,
    /// There are already a million handles of this kind.
    TooManyHandles = 17,
    /// A call in a callback would have to wait. It returns at once instead, because what it waits for may depend on
    /// later callbacks.
    InCallback = 18,

    /// A file cannot be opened, read or written.
    Io = 20,
    /// The content of a file violates its format, or does not match the model.
    Format = 21,
    /// A valid request that trefoil does not support, or does not support on this device.
    Unsupported = 22,

    /// There is no device of the kind that was asked for.
    NoDevice = 30,
    /// There is not enough memory, or a thread cannot be started; the message names the batch that would fit, or the
    /// thread.
    OutOfMemory = 31,
    /// A driver call failed; the message names it and its status.
    Driver = 32,
    /// The device failed earlier and is out of use.
    Fault = 33,

    /// A wait reached its limit; the message has the state of the batches.
    Timeout = 40,
    /// A row's deadline passed in the queue; it was not computed.
    Deadline = 41,
    /// No row of the batcher is free, and its option is TREFOIL_WHEN_FULL_REJECT.
    Full = 42,
    /// The engine or batcher was closed.
    Closed = 43,
    /// A row of a result is invalid: a value is not finite, a probability is not within 0 to 1, or the model has no
    /// such class.
    Output = 44,

    /// A bug in trefoil; please report it.
    Internal = 50,
}

/// How far a failure reaches, which decides how to recover from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum trefoil_fault_class {
    /// Only this call or this request failed; everything else continues.
    Request = 0,
    /// Every handle of the device is out of use. Opening the device again and building a new engine may work.
    Device = 1,
    /// No GPU works in this process any more; the process must be restarted.
    Process = 2,
}

impl From<FaultClass> for trefoil_fault_class {
    fn from(class: FaultClass) -> Self {
        match class {
            FaultClass::Request => Self::Request,
            FaultClass::Device => Self::Device,
            FaultClass::Process => Self::Process,
        }
    }
}

/// The result of a body: a value, or the reason of a failure.
pub(super) type Answer<T = ()> = Result<T, Failure>;

/// A status other than OK, with its message.
#[derive(Debug)]
pub(super) struct Failure {
    pub status: trefoil_status,
    pub message: Cow<'static, str>,
    class: trefoil_fault_class,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
    static LAST_CLASS: Cell<trefoil_fault_class> = const { Cell::new(trefoil_fault_class::Request) };
}

/// Runs the body of a function of the interface. A failure or a panic becomes a status and this thread's last error.
pub(super) fn guard(body: impl FnOnce() -> Answer) -> trefoil_status {
    // Guards drop or put back what a panicking body leaves behind; locks here ignore poison.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => trefoil_status::Ok,
        Ok(Err(failure)) => failure.tell(),
        Err(panic) => Failure::panicked(panic).tell(),
    }
}

impl Failure {
    pub fn new(status: trefoil_status, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, message: message.into(), class: trefoil_fault_class::Request }
    }

    pub fn argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(trefoil_status::InvalidArgument, message)
    }

    pub fn null(name: &str) -> Self {
        Self::new(trefoil_status::NullPointer, format!("{name} is null"))
    }

    pub fn not_ready() -> Self {
        Self::new(trefoil_status::NotReady, "")
    }

    fn panicked(panic: Box<dyn Any + Send>) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without text");
        let failure = Self::new(trefoil_status::Internal, format!("internal error, please report it: {text}"));
        std::mem::forget(panic); // its drop is anybody's code and may panic itself
        failure
    }

    /// Keeps the message for this thread, and returns the status.
    pub fn tell(self) -> trefoil_status {
        if self.status != trefoil_status::NotReady {
            let text = CString::new(self.message.replace('\0', "?")).unwrap_or_default();
            // A thread that is ending keeps no message.
            let _ = LAST.try_with(|last| last.replace(text));
            LAST_CLASS.set(self.class);
        }
        self.status
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        use trefoil_status as status;
        let status = match &error {
            Error::Io { .. } => status::Io,
            Error::Format { .. }
            | Error::Tensor { .. }
            | Error::UnknownArchitecture { .. }
            | Error::Graph { .. }
            | Error::Import { .. }
            | Error::Image { .. } => status::Format,
            Error::Option { .. } => status::InvalidArgument,
            Error::Unsupported { .. } => status::Unsupported,
            Error::NoDevice { .. } => status::NoDevice,
            Error::OutOfMemory { .. } | Error::Thread { .. } => status::OutOfMemory,
            Error::Driver { .. } => status::Driver,
            Error::Fault { .. } => status::Fault,
            Error::Timeout { .. } => status::Timeout,
            Error::Deadline { .. } => status::Deadline,
            Error::Full { .. } => status::Full,
            Error::Closed => status::Closed,
            Error::Output { .. } => status::Output,
            Error::Hazard { .. } | Error::Internal { .. } => status::Internal,
        };
        Self { class: error.class().into(), ..Self::new(status, error.to_string()) }
    }
}

/// The message of the last failed call on this thread, in English; empty if none has failed. NOT_READY is no failure:
/// it leaves the message of the last one. The text lives until the next call on this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_last_error() -> *const c_char {
    // The string in the cell stays where it is until `tell` replaces it, on this thread.
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// How far the last failure on this thread reaches; REQUEST if none has failed. NOT_READY is no failure.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_last_error_class() -> trefoil_fault_class {
    LAST_CLASS.get()
}

/// The name of a status, such as `TREFOIL_STATUS_TIMEOUT`; `unknown status` for another number. Lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_status_name(status: i32) -> *const c_char {
    use trefoil_status as s;
    let names = [
        (s::Ok, c"TREFOIL_STATUS_OK"),
        (s::NotReady, c"TREFOIL_STATUS_NOT_READY"),
        (s::InvalidHandle, c"TREFOIL_STATUS_INVALID_HANDLE"),
        (s::WrongKind, c"TREFOIL_STATUS_WRONG_KIND"),
        (s::Released, c"TREFOIL_STATUS_RELEASED"),
        (s::Busy, c"TREFOIL_STATUS_BUSY"),
        (s::NullPointer, c"TREFOIL_STATUS_NULL_POINTER"),
        (s::InvalidArgument, c"TREFOIL_STATUS_INVALID_ARGUMENT"),
        (s::AbiMismatch, c"TREFOIL_STATUS_ABI_MISMATCH"),
        (s::TooManyHandles, c"TREFOIL_STATUS_TOO_MANY_HANDLES"),
        (s::InCallback, c"TREFOIL_STATUS_IN_CALLBACK"),
        (s::Io, c"TREFOIL_STATUS_IO"),
        (s::Format, c"TREFOIL_STATUS_FORMAT"),
        (s::Unsupported, c"TREFOIL_STATUS_UNSUPPORTED"),
        (s::NoDevice, c"TREFOIL_STATUS_NO_DEVICE"),
        (s::OutOfMemory, c"TREFOIL_STATUS_OUT_OF_MEMORY"),
        (s::Driver, c"TREFOIL_STATUS_DRIVER"),
        (s::Fault, c"TREFOIL_STATUS_FAULT"),
        (s::Timeout, c"TREFOIL_STATUS_TIMEOUT"),
        (s::Deadline, c"TREFOIL_STATUS_DEADLINE"),
        (s::Full, c"TREFOIL_STATUS_FULL"),
        (s::Closed, c"TREFOIL_STATUS_CLOSED"),
        (s::Output, c"TREFOIL_STATUS_OUTPUT"),
        (s::Internal, c"TREFOIL_STATUS_INTERNAL"),
    ];
    let name = names.iter().find(|(known, _)| *known as i32 == status);
    name.map_or(c"unknown status".as_ptr(), |(_, name)| name.as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn last() -> String {
        // SAFETY: a string that lives until this thread's next failure.
        unsafe { CStr::from_ptr(trefoil_last_error()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_and_a_message() {
        assert_eq!(guard(|| panic!("out of cheese")), trefoil_status::Internal);
        assert!(last().ends_with("out of cheese"), "{}", last());
        assert_eq!(guard(|| std::panic::panic_any(7)), trefoil_status::Internal);
    }

    #[test]
    fn messages_are_of_the_thread_and_stay_after_a_success() {
        let failed = guard(|| Err(Failure::argument("a\0b")));
        assert_eq!((failed, guard(|| Ok(()))), (trefoil_status::InvalidArgument, trefoil_status::Ok));
        assert_eq!(guard(|| Err(Failure::not_ready())), trefoil_status::NotReady);
        assert_eq!(last(), "a?b");
        assert_eq!(std::thread::spawn(last).join().unwrap(), "");
    }
}
