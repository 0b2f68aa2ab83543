//! Files that a user names: they must be regular files, are opened without blocking, and are read up to a limit.
//!
//! A pipe may never send data, a device may never end, and a file below `/proc` has no size. None of them is a model, a
//! photo or a kept measurement, and a reader could hang on them.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// A regular file that is open for reading, with its size.
#[derive(Debug)]
pub(crate) struct Opened {
    /// The file, at its beginning.
    pub file: File,
    /// The size in bytes when the file was opened.
    pub bytes: u64,
    path: PathBuf,
    operation: &'static str,
}

impl Opened {
    /// Opens the file at `path`, which must be a regular one of at most `limit` bytes. `operation` says in errors what is
    /// tried, such as `"open the weights"`.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened, is no regular file, or holds more.
    pub fn new(operation: &'static str, path: &Path, limit: u64) -> Result<Self, Error> {
        let opened = open_regular(path).and_then(|(file, bytes)| match bytes <= limit {
            true => Ok((file, bytes)),
            false => Err(io::Error::other(format!("expected at most {limit} bytes, found {bytes}"))),
        });
        let (file, bytes) = opened.map_err(|source| Error::io(operation, path, source))?;
        Ok(Self { file, bytes, path: path.to_owned(), operation })
    }

    /// The first `most` bytes of the file, or all if there are fewer; never more than it had when it was opened.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, or memory for it is not to be had.
    pub fn read(&mut self, most: u64) -> Result<Vec<u8>, Error> {
        let length = self.bytes.min(most);
        let mut bytes = Vec::new();
        let read = bytes.try_reserve_exact(length as usize).map_err(io::Error::other).and_then(|()| {
            self.file.rewind()?;
            self.file.by_ref().take(length).read_to_end(&mut bytes)
        });
        read.map_err(|source| Error::io(self.operation, &self.path, source))?;
        Ok(bytes)
    }
}

/// The content of the regular file at `path`, of at most `limit` bytes. `operation` says in errors what is tried.
///
/// # Errors
/// [`Error::Io`] if the file cannot be opened or read, is no regular file, holds more than `limit` bytes, or does not fit
/// into memory.
///
/// ```
/// # fn main() -> Result<(), trefoil::Error> {
/// let config = trefoil::files::read("read the configuration", "weights/convnet28/config.json", 1 << 20)?;
/// assert_eq!(config[0], b'{');
/// let pipe = trefoil::files::read("read the configuration", "/dev/null", 1 << 20);
/// assert!(pipe.is_err());
/// # Ok(())
/// # }
/// ```
pub fn read(operation: &'static str, path: impl AsRef<Path>, limit: u64) -> Result<Vec<u8>, Error> {
    let path = path.as_ref();
    Opened::new(operation, path, limit)?.read(limit)
}

fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(NON_BLOCKING).open(path)?;
    let about = file.metadata()?;
    match about.is_file() {
        true => Ok((file, about.len())),
        false => Err(io::Error::other(format!("expected a file, found {}", kind(about.file_type())))),
    }
}

/// `O_NONBLOCK`: a pipe without a writer opens at once. On a regular file it has no effect.
#[cfg(any(target_os = "linux", target_os = "android"))]
const NON_BLOCKING: i32 = 0o4000;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const NON_BLOCKING: i32 = 0x4;

/// The kind of what is at the path instead of a file, for the error.
fn kind(found: FileType) -> &'static str {
    match found {
        _ if found.is_dir() => "a folder",
        _ if found.is_fifo() => "a pipe",
        _ if found.is_char_device() || found.is_block_device() => "a device",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn said(path: &Path, limit: u64) -> String {
        read("open", path, limit).unwrap_err().to_string()
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = std::env::temp_dir().join(format!("trefoil-files-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (pipe, text) = (folder.join("pipe"), folder.join("text"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        fs::write(&text, "four").unwrap();
        assert!(said(&pipe, 9).ends_with("expected a file, found a pipe"), "{}", said(&pipe, 9));
        assert!(said(&folder, 9).ends_with("expected a file, found a folder"));
        assert!(said(Path::new("/dev/zero"), 9).ends_with("expected a file, found a device"));
        assert!(said(&folder.join("none"), 9).contains("os error 2"));
        assert!(said(&text, 3).ends_with("expected at most 3 bytes, found 4"));
        assert_eq!(read("open", &text, 4).unwrap(), b"four");
        let mut opened = Opened::new("open", &text, 9).unwrap();
        assert_eq!((opened.read(2).unwrap(), opened.read(9).unwrap()), (b"fo".to_vec(), b"four".to_vec()));
        fs::remove_dir_all(folder).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_file_is_read_as_far_as_its_size_says() {
        assert_eq!(read("open", Path::new("/proc/self/stat"), 9).unwrap(), b"");
    }
}
