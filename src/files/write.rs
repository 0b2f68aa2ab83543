//! Files that are written completely or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::Error;

/// Writes a new file beside `path` and renames it to `path`, so that no reader sees half of a file. If the call fails,
/// the old file stays; a process that is killed may leave a file that ends in `.new`.
///
/// If `path` exists and is no regular file, such as `/dev/stdout`, a pipe or a symbolic link, the call writes to it
/// directly.
///
/// # Errors
/// [`Error::Io`] with the path.
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> Result<(), Error> {
    let (path, contents) = (path.as_ref(), contents.as_ref());
    let written = match replaced(path) {
        true => through(path, |temporary| {
            fs::write(temporary, contents)?;
            if let Ok(before) = fs::metadata(path) {
                fs::set_permissions(temporary, before.permissions())?;
            }
            fs::rename(temporary, path)
        }),
        false => fs::write(path, contents),
    };
    written.map_err(|error| Error::io("write", path, error))
}

/// Copies a file, with its permissions, so that no reader sees half of it, as [`write()`] does.
///
/// # Errors
/// [`Error::Io`] with the path that is written, also if both are the same file or the first cannot be read.
pub fn copy(from: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<(), Error> {
    let (from, path) = (from.as_ref(), path.as_ref());
    let is_same = from.canonicalize().is_ok_and(|from| path.canonicalize().is_ok_and(|to| from == to));
    let copied = match replaced(path) {
        _ if is_same => Err(io::Error::new(io::ErrorKind::InvalidInput, "it would be copied to itself")),
        true => through(path, |temporary| fs::copy(from, temporary).and_then(|_| fs::rename(temporary, path))),
        false => fs::copy(from, path).map(drop),
    };
    copied.map_err(|error| Error::io("write", path, error))
}

/// Checks that [`write()`] can succeed, as far as that is known beforehand, and changes nothing.
///
/// # Errors
/// As for [`write()`].
pub fn check(path: impl AsRef<Path>) -> Result<(), Error> {
    let path = path.as_ref();
    let checked = match replaced(path) {
        true if path.exists() => File::options().append(true).open(path).and_then(|_| through(path, touch)),
        true => through(path, touch),
        false if path.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        false => Ok(()), // to open a pipe would wait for its reader
    };
    checked.map_err(|error| Error::io("write", path, error))
}

/// Whether a new file will replace what is at `path`.
fn replaced(path: &Path) -> bool {
    fs::symlink_metadata(path).map_or(true, |there| there.is_file())
}

fn touch(temporary: &Path) -> io::Result<()> {
    File::create(temporary)?;
    fs::remove_file(temporary)
}

/// Calls `something` with a temporary path beside `path`; after a failure nothing is left there.
pub(super) fn through(path: &Path, something: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let temporary = temporary(path)?;
    something(&temporary).inspect_err(|_| drop(fs::remove_file(&temporary)))
}

fn temporary(path: &Path) -> io::Result<PathBuf> {
    static FILES: AtomicUsize = AtomicUsize::new(0);
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut name = name.to_owned();
    name.push(format!(".{}-{}.new", process::id(), FILES.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new folder, which is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("trefoil-file-{name}-{}", process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(&self.0).unwrap().flatten();
            let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_check_changes_nothing_and_a_file_is_replaced_as_a_whole() {
        let folder = Folder::new("whole");
        let path = folder.0.join("report.html");
        check(&path).unwrap();
        assert_eq!(folder.names(), [""; 0]);
        write(&path, "first").unwrap();
        let mut reader = File::open(&path).unwrap();
        check(&path).unwrap();
        write(&path, "second").unwrap();
        assert_eq!(io::read_to_string(&mut reader).unwrap(), "first", "whoever has it open goes on reading");
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), folder.names()),
            ("second", vec!["report.html".into()])
        );
    }

    #[test]
    fn what_cannot_be_written_is_told_with_its_path() {
        let folder = Folder::new("refused");
        for path in [folder.0.join("no/such/folder/r.json"), folder.0.clone(), PathBuf::from("/")] {
            for answer in [check(&path), write(&path, "x")] {
                let said = answer.unwrap_err().to_string();
                assert!(said.starts_with(&format!("cannot write {}: ", path.display())), "{said}");
            }
        }
        assert_eq!(folder.names(), [""; 0]);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_are_written_to_as_they_are() {
        let folder = Folder::new("links");
        let [link, target] = ["link", "target"].map(|name| folder.0.join(name));
        std::os::unix::fs::symlink(&target, &link).unwrap();
        check(&link).unwrap();
        write(&link, "through").unwrap();
        assert!(link.is_symlink() && fs::read_to_string(&target).unwrap() == "through");
        write("/dev/null", "nothing").unwrap();
        assert_eq!(folder.names(), ["link", "target"]);
    }

    #[cfg(unix)]
    #[test]
    fn permissions_stay() {
        use std::os::unix::fs::PermissionsExt;

        let folder = Folder::new("mode");
        let path = folder.0.join("private");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        write(&path, "still private").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
