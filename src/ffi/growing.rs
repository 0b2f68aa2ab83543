//! Structs that programs share with the library. New members are added at the end: `size` says which members a program
//! knows.
//!
//! For options, a struct ages better than one function for each option: there is one call, a designated initialiser of
//! C names only the members that differ from the default, and zeros mean the default, also for members that the program
//! does not know. So an old program may use a new library, and a new program an old library: only an option that the
//! old library does not have is an error, and only if the program sets it.

use std::mem::{MaybeUninit, size_of};

use super::pointers::Out;
use super::status::{Answer, Failure, trefoil_status};

/// A struct whose later versions have more members at the end.
///
/// # Safety
/// It is `repr(C)`, its first member is `size: usize`, all others are integers, raw pointers or arrays of them, and
/// there is no padding at its end.
pub(super) unsafe trait Growing: Copy {}

/// Declares growing structs, with the offset of each member and the size of the struct on a machine of 64 bits:
/// released members keep their offsets for ever, and new ones come after them.
macro_rules! growing {
    ($($type:ident { $($member:ident: $offset:literal,)* } $size:literal)*) => { $(
        // SAFETY: as its definition shows; the assertions see the first member.
        unsafe impl $crate::ffi::growing::Growing for $type {}
        const _: () = assert!(std::mem::offset_of!($type, size) == 0);
        #[cfg(target_pointer_width = "64")]
        const _: () = {
            $(assert!(std::mem::offset_of!($type, $member) == $offset);)*
            assert!(size_of::<$type>() == $size);
            let $type { $($member: _,)* }: $type; // no member is missing above
        };
    )* };
}
pub(super) use growing;

/// The largest size that is accepted, so that an uninitialised size is an error.
const MOST_BYTES: usize = 1 << 12;

/// Reads options; null means the defaults.
///
/// # Safety
/// `from` is null, or its first `size` bytes can be read, where `size` is its first member.
pub(super) unsafe fn read<T: Growing>(from: *const T) -> Answer<T> {
    let mut options = MaybeUninit::<T>::zeroed();
    if !from.is_null() {
        // SAFETY: the first member is there by the caller.
        let size = checked_size::<T>(unsafe { from.cast::<usize>().read() })?;
        let known = size.min(size_of::<T>());
        for at in known..size {
            // SAFETY: below the size that the caller vouches for.
            if unsafe { from.cast::<u8>().add(at).read() } != 0 {
                let what = format!("an option at byte {at} is set, which this library does not know");
                return Err(Failure::new(trefoil_status::AbiMismatch, what));
            }
        }
        // SAFETY: `known` bytes can be read by the caller, and fit into a T.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), options.as_mut_ptr().cast(), known) };
    }
    // SAFETY: zeros and any other bits are legal in every member by the trait's contract.
    Ok(unsafe { options.assume_init() })
}

/// Writes as much as the caller's struct has room for, and zeros to members that this library does not know.
///
/// # Safety
/// `to` is null, or its first `size` bytes can be read and written, where `size` is its first member.
pub(super) unsafe fn write<T: Growing>(to: *mut T, name: &str, value: impl FnOnce(usize) -> Answer<T>) -> Answer {
    // SAFETY: the first member is there by the caller.
    let _not_null = unsafe { Out::new(to, name)? };
    // SAFETY: the same.
    let size = checked_size::<T>(unsafe { to.cast::<usize>().read() })?;
    let value = value(size)?;
    let known = size.min(size_of::<T>());
    // SAFETY: `size` bytes can be written by the caller, and `known` can be read of a T.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), to.cast(), known);
        to.cast::<u8>().add(known).write_bytes(0, size - known);
    }
    Ok(())
}

fn checked_size<T>(size: usize) -> Answer<usize> {
    if !(size_of::<usize>()..=MOST_BYTES).contains(&size) {
        let name = std::any::type_name::<T>().rsplit(':').next().unwrap_or_default();
        let what = format!("`size` of a {name} is {size}: expected sizeof({name}), {} here", size_of::<T>());
        return Err(Failure::new(trefoil_status::AbiMismatch, what));
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::layout::trefoil_row_options;

    /// A newer version of a struct, with a member that this library does not know.
    #[repr(C)]
    struct Newer {
        known: trefoil_row_options,
        added: u64,
    }

    fn options(size: usize) -> trefoil_row_options {
        trefoil_row_options { size, deadline_ns: 5, high_priority: 1, reserved: 0, at: std::ptr::null() }
    }

    #[test]
    fn options_of_older_and_newer_headers() {
        let full = size_of::<trefoil_row_options>();
        // SAFETY: null, and structs of the sizes that they tell.
        let read = |from: *const trefoil_row_options| unsafe { read(from) }.map(|o| (o.deadline_ns, o.high_priority));
        assert_eq!(read(std::ptr::null()).unwrap(), (0, 0));
        assert_eq!(read(&options(full)).unwrap(), (5, 1));
        assert_eq!(read(&options(16)).unwrap(), (5, 0), "an older header has no priority");
        let mut newer = Newer { known: options(full + 8), added: 0 };
        assert_eq!(read((&raw const newer).cast()).unwrap(), (5, 1));
        newer.added = 1;
        assert_eq!(read((&raw const newer).cast()).unwrap_err().status, trefoil_status::AbiMismatch);
        for size in [0, 7, 1 << 30] {
            let failure = read(&options(size)).unwrap_err();
            assert!(failure.message.contains("sizeof(trefoil_row_options), 32 here"), "{}", failure.message);
        }
    }

    #[test]
    fn answers_for_older_and_newer_headers() {
        let answer = |size| Ok(options(size));
        let mut newer = Newer { known: options(40), added: 9 };
        // SAFETY: a struct of the size that it tells.
        unsafe { write((&raw mut newer).cast::<trefoil_row_options>(), "options", answer) }.unwrap();
        assert_eq!((newer.known.size, newer.known.high_priority, newer.added), (40, 1, 0));
        let mut older =
            trefoil_row_options { size: 16, deadline_ns: 0, high_priority: 7, reserved: 7, at: std::ptr::null() };
        // SAFETY: the same.
        unsafe { write(&raw mut older, "options", answer) }.unwrap();
        assert_eq!((older.size, older.deadline_ns, older.high_priority, older.reserved), (16, 5, 7, 7));
    }
}
