//! Pointers from outside. Null is an error; the caller guarantees that other pointers are as the header requires.

#[cfg(unix)]
use std::ffi::OsStr;
use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr::NonNull;

use super::status::{Answer, Failure};

/// A place for a result.
pub(super) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `to` is null, or valid to write a `T` until the call at hand returns.
    pub unsafe fn new(to: *mut T, name: &str) -> Answer<Self> {
        NonNull::new(to).map(Self).ok_or_else(|| Failure::null(name))
    }

    pub fn set(&self, value: T) {
        // SAFETY: not null, and valid to write by the contract of `new`.
        unsafe { self.0.as_ptr().write(value) }
    }
}

/// Writes a length, if it was asked for.
///
/// # Safety
/// `to` is null, or valid to write.
pub(super) unsafe fn tell_length(to: *mut usize, length: usize) {
    if let Some(to) = NonNull::new(to) {
        // SAFETY: valid to write by the caller.
        unsafe { to.write(length) };
    }
}

/// An array from outside.
///
/// # Safety
/// `from` is null, or `count` elements can be read there as long as it is used.
pub(super) unsafe fn slice<'a, T>(from: *const T, count: usize, name: &str) -> Answer<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not null, so there are `count` by the caller.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

/// A text from outside.
///
/// # Safety
/// `text` is null, or a C string that lives as long as it is used.
pub(super) unsafe fn text<'a>(text: *const c_char, name: &str) -> Answer<&'a str> {
    if text.is_null() {
        return Err(Failure::null(name));
    }
    // SAFETY: not null, so a C string by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// A path from outside: any bytes on Unix, UTF-8 elsewhere.
///
/// # Safety
/// As for [`text`].
pub(super) unsafe fn path<'a>(path: *const c_char, name: &str) -> Answer<&'a Path> {
    #[cfg(unix)]
    if !path.is_null() {
        // SAFETY: not null, so a C string by the caller.
        let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
        return Ok(Path::new(<OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)));
    }
    // SAFETY: by the caller.
    unsafe { text(path, name) }.map(Path::new)
}

/// Copies as much of `text` as fits, with a final NUL, and writes its length.
///
/// # Safety
/// `to` is valid to write `capacity` bytes, or null where that is 0; `length` is null or valid to write.
pub(super) unsafe fn copy_text(text: &str, to: *mut c_char, capacity: usize, length: *mut usize) -> Answer {
    if to.is_null() && capacity > 0 {
        return Err(Failure::null("text"));
    }
    if capacity > 0 {
        let fits = text.floor_char_boundary_of(capacity - 1);
        // SAFETY: `fits` bytes and the NUL are within `capacity`, all valid to write by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast::<u8>(), fits);
            to.add(fits).write(0);
        }
    }
    // SAFETY: by the caller.
    unsafe { tell_length(length, text.len()) };
    Ok(())
}

/// Copies as much of `text` as fits into an array of a struct, followed by NULs.
pub(super) fn array<const N: usize>(text: &str) -> [c_char; N] {
    let mut array = [0; N];
    let fits = text.floor_char_boundary_of(N - 1);
    array.iter_mut().zip(&text.as_bytes()[..fits]).for_each(|(to, &from)| *to = from as c_char);
    array
}

trait CharBoundary {
    /// The largest length up to `most` at which the text may be cut without splitting a character.
    fn floor_char_boundary_of(&self, most: usize) -> usize;
}

impl CharBoundary for str {
    fn floor_char_boundary_of(&self, most: usize) -> usize {
        (0..=most.min(self.len())).rev().find(|&at| self.is_char_boundary(at)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        let (mut buffer, mut length) = ([1; 4], 0);
        // SAFETY: the buffer has the capacity told.
        unsafe { copy_text("aéé", buffer.as_mut_ptr(), 4, &raw mut length) }.unwrap();
        assert_eq!((buffer.map(|c| c as u8), length), ([b'a', 0xc3, 0xa9, 0], 5));
        // SAFETY: a capacity of 0 asks for the length alone.
        unsafe { copy_text("abc", std::ptr::null_mut(), 0, &raw mut length) }.unwrap();
        assert_eq!(length, 3);
        assert_eq!(array::<3>("aé"), [b'a' as c_char, 0, 0]);
    }
}
