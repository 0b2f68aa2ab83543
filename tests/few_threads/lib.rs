//! Preloaded into a program, this library refuses the thread whose number, from 1, is in `REFUSED_THREAD`, with the
//! status of a limit that is reached, and prints that it did. The system's own limits do not apply to root, or limit
//! memory as well.

use std::env;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

type Start = extern "C" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;

static ASKED: AtomicUsize = AtomicUsize::new(0);

/// # Safety
/// As for the system's own.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let number = ASKED.fetch_add(1, Ordering::Relaxed) + 1;
    if env::var("REFUSED_THREAD").is_ok_and(|refused| refused == number.to_string()) {
        eprintln!("refused thread {number}");
        return libc::EAGAIN;
    }
    // SAFETY: the next library with this name is the system's, whose function has this type; the arguments are the caller's.
    unsafe {
        let create = libc::dlsym(libc::RTLD_NEXT, c"pthread_create".as_ptr());
        assert!(!create.is_null(), "the system's pthread_create is not found");
        std::mem::transmute::<*mut c_void, Create>(create)(thread, attributes, start, argument)
    }
}
