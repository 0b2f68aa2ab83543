//! Log messages: the chosen device, fallbacks and their reasons, faults, and handles that could not be freed.

use std::ffi::{CString, c_char, c_void};
use std::sync::{OnceLock, PoisonError, RwLock};

use log::{Level, LevelFilter, Log, Metadata, Record};

use super::status::{Failure, guard, trefoil_status};

/// The messages that are logged. Each level includes the levels before it.
#[repr(u32)]
pub enum trefoil_log_level {
    /// Nothing.
    Off = 0,
    /// Faults.
    Error = 1,
    /// Fallbacks, such as the CPU in place of a missing GPU.
    Warn = 2,
    /// Choices, such as the device.
    Info = 3,
    /// Details.
    Debug = 4,
}

/// The callback of trefoil_log(), which gets each message, on any thread. `level` is a trefoil_log_level; `message`
/// lives until the callback returns. The library may log within any call and while it holds a lock, so the callback
/// must not call the library, and must not throw or jump out.
pub type trefoil_log_callback = Option<unsafe extern "C" fn(user: *mut c_void, level: u32, message: *const c_char)>;

#[derive(Clone, Copy)]
struct LogTarget {
    function: unsafe extern "C" fn(*mut c_void, u32, *const c_char),
    user: *mut c_void,
}

// SAFETY: `user` is only passed to the callback, which may be called from any thread by trefoil_log's contract.
unsafe impl Send for LogTarget {}
// SAFETY: the same.
unsafe impl Sync for LogTarget {}

static TARGET: RwLock<Option<LogTarget>> = RwLock::new(None);

struct ToTarget;

impl Log for ToTarget {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let target = *TARGET.read().unwrap_or_else(PoisonError::into_inner); // called without the lock
        let Some(LogTarget { function, user }) = target else { return };
        let level = match record.level() {
            Level::Error => trefoil_log_level::Error,
            Level::Warn => trefoil_log_level::Warn,
            Level::Info => trefoil_log_level::Info,
            Level::Debug | Level::Trace => trefoil_log_level::Debug,
        };
        let text = CString::new(record.args().to_string().replace('\0', "?")).unwrap_or_default();
        // SAFETY: by trefoil_log's contract; the text is a C string that outlives the call.
        unsafe { function(user, level as u32, text.as_ptr()) };
    }

    fn flush(&self) {}
}

/// Passes every log message of the process up to `level`, a trefoil_log_level, to `callback`; a null callback ends
/// that. Without this call nothing is logged. A message that is on its way may still reach the previous callback at any
/// later time, so each callback and its `user` must stay valid until the process ends. Returns UNSUPPORTED, and changes
/// nothing, if a Rust program around this library has a logger of its own.
///
/// # Safety
/// `callback` may be called with `user`, from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trefoil_log(level: u32, callback: trefoil_log_callback, user: *mut c_void) -> trefoil_status {
    guard(|| {
        let is = |wanted: trefoil_log_level| level == wanted as u32;
        let level = match level {
            _ if is(trefoil_log_level::Off) => LevelFilter::Off,
            _ if is(trefoil_log_level::Error) => LevelFilter::Error,
            _ if is(trefoil_log_level::Warn) => LevelFilter::Warn,
            _ if is(trefoil_log_level::Info) => LevelFilter::Info,
            _ if is(trefoil_log_level::Debug) => LevelFilter::Debug,
            _ => return Err(Failure::argument(format!("level is {level}: expected a trefoil_log_level"))),
        };
        static INSTALLED: OnceLock<bool> = OnceLock::new();
        if !INSTALLED.get_or_init(|| log::set_logger(&ToTarget).is_ok()) {
            let what = "the process logs through the Rust crate `log` to a logger of its own, which stays";
            return Err(Failure::new(trefoil_status::Unsupported, what));
        }
        let mut target = TARGET.write().unwrap_or_else(PoisonError::into_inner);
        *target = callback.map(|function| LogTarget { function, user });
        // The lock is held, so that of two calls at the same time one sets both the callback and the level.
        log::set_max_level(if callback.is_some() { level } else { LevelFilter::Off });
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Other;

    impl Log for Other {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            false
        }
        fn log(&self, _: &Record<'_>) {}
        fn flush(&self) {}
    }

    #[test]
    fn a_logger_that_is_there_stays_and_keeps_its_level() {
        unsafe extern "C" fn never(_: *mut c_void, _: u32, _: *const c_char) {}
        log::set_logger(&Other).expect("no other test sets one");
        log::set_max_level(LevelFilter::Error);
        // SAFETY: the callback takes anything.
        let status = unsafe { trefoil_log(trefoil_log_level::Debug as u32, Some(never), std::ptr::null_mut()) };
        assert_eq!((status, log::max_level()), (trefoil_status::Unsupported, LevelFilter::Error));
    }
}
