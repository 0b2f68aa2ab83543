//! Versions: of the interface, and of the library.

use std::ffi::c_char;

use super::status::{Failure, guard, trefoil_status};

/// The interface's version that this header describes. It grows when something changes so that an old program must
/// be compiled anew; then the library's file gets another name too.
pub const TREFOIL_ABI_MAJOR: u32 = 2;
/// Grows when something is added. A library runs every program that was compiled for a minor version up to its own.
pub const TREFOIL_ABI_MINOR: u32 = 3;

/// Whether this library can run a program that was compiled with a header of this version. Call it first, as
/// `trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR)`.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_check_abi(major: u32, minor: u32) -> trefoil_status {
    guard(|| {
        if major == TREFOIL_ABI_MAJOR && (0..=TREFOIL_ABI_MINOR).contains(&minor) {
            return Ok(());
        }
        let library = format!("{TREFOIL_ABI_MAJOR}.{TREFOIL_ABI_MINOR}");
        let what = format!("the program was compiled for interface {major}.{minor}, the library has {library}");
        Err(Failure::new(trefoil_status::AbiMismatch, what))
    })
}

/// The library's version, such as `0.1.0`. Lives for ever.
#[unsafe(no_mangle)]
pub extern "C" fn trefoil_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}
