//! Files that commands write: what a user did not mean to replace stays.

use std::path::Path;

use anyhow::{Result, ensure};
use trefoil::files;

use crate::models;

/// An error if this file cannot be written, or is one that the command reads, belongs to a model, or does not end as
/// files of its kind do. Called before the work whose result it is to hold.
pub fn check<'a>(path: &Path, ending: &str, read: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let shown = path.display();
    for other in read {
        ensure!(
            !(path.exists() && is_same(path, other)),
            "{shown} is read by this command: name another file to write"
        );
    }
    if path.is_file() {
        let is_of_kind = path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending));
        ensure!(is_of_kind, "{shown} exists and is no .{ending} file: name another file to write, or remove it first");
        ensure!(!models::is_part(path), "{shown} is a file of a model: name another file to write");
    }
    Ok(files::check(path)?)
}

/// Whether two paths name the same file or folder, which need not exist.
pub fn is_same(a: &Path, b: &Path) -> bool {
    let whole = |path: &Path| {
        path.canonicalize().ok().or_else(|| Some(folder_of(path).canonicalize().ok()?.join(path.file_name()?)))
    };
    a == b || whole(a).is_some_and(|a| whole(b) == Some(a))
}

/// The folder that a file is in.
pub fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{env, fs};

    #[test]
    fn what_is_not_of_the_commands_own_kind_is_not_replaced() {
        let folder = env::temp_dir().join(format!("trefoil-outputs-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let at = |name: &str| folder.join(name);
        for name in ["model.safetensors", "config.json", "texts.txt", "old.npy", "linked.NPY"] {
            fs::write(at(name), b"").unwrap();
        }
        let told = |name: &str, ending: &str, read: &str| {
            check(&at(name), ending, [&*at(read)])
                .err()
                .map(|error| error.to_string().replace(&at("").display().to_string(), ""))
        };
        assert_eq!(told("new", "npy", "texts.txt"), None);
        assert_eq!(told("old.npy", "npy", "texts.txt"), None);
        assert_eq!(told("linked.NPY", "npy", "texts.txt"), None);
        assert!(told("old.npy", "npy", "old.npy").unwrap().contains("is read by this command"));
        assert!(told("texts.txt", "npy", "old.npy").unwrap().contains("is no .npy file"));
        assert!(told("config.json", "json", "old.npy").unwrap().contains("is a file of a model"));
        assert!(told("no/such/folder.npy", "npy", "old.npy").is_some());
        fs::remove_dir_all(folder).unwrap();
    }
}
