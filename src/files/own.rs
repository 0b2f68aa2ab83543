//! Files that belong to this process's user: a file is read only if no other user can write it, and written so that no
//! other user can read it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::read::Opened;
use super::write::through;
use crate::error::Error;

/// The content of the regular file at `path`, of at most `limit` bytes, that belongs to this process's user or to root, and
/// that neither its group nor others may write.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, is no regular file, holds more, or may be written by somebody else.
pub(crate) fn read(operation: &'static str, path: &Path, limit: u64) -> Result<Vec<u8>, Error> {
    let mut opened = Opened::new(operation, path, limit)?;
    let about = opened.file.metadata().and_then(|about| check(about.uid(), about.mode()));
    about.map_err(|source| Error::io(operation, path, source))?;
    opened.read(limit)
}

fn check(owner: u32, mode: u32) -> io::Result<()> {
    // SAFETY: the call reads nothing and cannot fail.
    let own = unsafe { libc::geteuid() };
    if mode & 0o022 != 0 {
        let what = format!("expected a file that nobody else can write, found mode {:o}", mode & 0o777);
        return Err(io::Error::other(what + ": `chmod go-w` it, or remove it"));
    }
    if owner != 0 && owner != own {
        let what = format!("expected a file of user {own}, found one of user {owner}: remove it");
        return Err(io::Error::other(what));
    }
    Ok(())
}

/// Writes a file as [`write()`](super::write()) does, which this process's user alone may read and write; the folders
/// around it that are not there yet are this user's alone, too.
///
/// # Errors
/// [`Error::Io`] with the path.
pub(crate) fn write(path: &Path, contents: &[u8]) -> Result<(), Error> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let made = folder.map_or(Ok(()), |folder| DirBuilder::new().recursive(true).mode(0o700).create(folder));
    let written = made.and_then(|()| {
        through(path, |beside| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(beside)?;
            file.write_all(contents)?;
            fs::rename(beside, path)
        })
    });
    written.map_err(|error| Error::io("write", path, error))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_others_can_write_is_not_read() {
        let path = std::env::temp_dir().join(format!("trefoil-own-{}", std::process::id()));
        write(&path, b"text").unwrap();
        for (mode, own) in [(0o600, true), (0o644, true), (0o664, false), (0o646, false), (0o777, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            match read("open", &path, 9) {
                Ok(text) => assert!(own && text == b"text", "{mode:o}"),
                Err(error) => {
                    let said = format!("that nobody else can write, found mode {mode:o}");
                    assert!(!own && error.to_string().contains(&said), "{error}");
                }
            }
        }
        let own = fs::metadata(&path).unwrap().uid();
        fs::remove_file(path).unwrap();
        assert!(check(0, 0o644).is_ok() && check(own, 0o644).is_ok());
        let said = check(own + 1, 0o600).unwrap_err().to_string();
        assert!(said.contains(&format!("found one of user {}", own + 1)), "{said}");
    }

    #[test]
    fn what_is_written_is_nobody_elses() {
        let folder = std::env::temp_dir().join(format!("trefoil-own-folder-{}", std::process::id()));
        let path = folder.join("deep/er/file");
        write(&path, b"first").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        write(&path, b"second").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&folder.join("deep"))), (0o600, 0o700));
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        fs::remove_dir_all(folder).unwrap();
    }
}
