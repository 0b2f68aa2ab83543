//! Inputs to classify: files that are named, and the photos in named folders, sorted.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use trefoil::image;
use walkdir::WalkDir;

/// The path of a photo, or a path that cannot be read.
#[derive(Debug)]
pub struct Input {
    pub path: PathBuf,
    /// The reason why the path cannot be read; `None` for a photo.
    pub problem: Option<String>,
}

/// The inputs in order, and the number of pictures in folders that were skipped because of their format.
#[derive(Debug, Default)]
pub struct Inputs {
    pub list: Vec<Input>,
    pub skipped: usize,
}

impl Inputs {
    /// Collects the photos that `paths` name. A folder gives its photos at any depth, sorted by name in each folder;
    /// links are followed. A file that is named itself is taken whatever its name.
    pub fn collect(paths: &[PathBuf]) -> Self {
        let mut inputs = Self::default();
        for path in paths {
            if path.is_dir() { inputs.walk(path) } else { inputs.add(path.clone(), None) }
        }
        inputs
    }

    fn add(&mut self, path: PathBuf, problem: Option<String>) {
        self.list.push(Input { path, problem });
    }

    fn walk(&mut self, folder: &Path) {
        let before = self.list.len();
        for entry in WalkDir::new(folder).follow_links(true).sort_by_key(|entry| OsString::from(entry.file_name())) {
            match entry {
                Ok(entry) if !entry.file_type().is_file() => {}
                Ok(entry) if image::is_image(entry.path()) => self.add(entry.into_path(), None),
                Ok(entry) => self.skipped += usize::from(is_foreign_image(entry.path())),
                Err(error) if leads_nowhere(&error) && !error.path().is_some_and(image::is_image) => {}
                Err(error) => {
                    let path = error.path().unwrap_or(folder).to_owned();
                    self.add(path, Some(format!("cannot be searched: {error}")));
                }
            }
        }
        if self.list.len() == before {
            self.add(
                folder.to_owned(),
                Some("no photos in this folder: expected files named like a JPEG or PNG".into()),
            );
        }
    }
}

/// Whether the error is of a link to a missing file, to a path below a file, or to itself.
fn leads_nowhere(error: &walkdir::Error) -> bool {
    const TOO_MANY_LINKS: i32 = 40; // ELOOP on Linux, whose kind has no stable name
    let is_it = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
            || error.raw_os_error() == Some(TOO_MANY_LINKS)
    };
    error.depth() > 0 && error.io_error().is_some_and(is_it)
}

/// Whether a path is named like a picture in a format that is not read.
fn is_foreign_image(path: &Path) -> bool {
    const EXTENSIONS: [&str; 12] =
        ["gif", "webp", "heic", "heif", "avif", "tif", "tiff", "bmp", "jxl", "jp2", "dng", "ppm"];
    let extension = path.extension().and_then(OsStr::to_str).map(str::to_ascii_lowercase);
    extension.is_some_and(|e| EXTENSIONS.contains(&e.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn folders_are_walked_in_order() {
        let root = std::env::temp_dir().join(format!("trefoil-inputs-{}", std::process::id()));
        for name in ["b.png", "a.JPG", "notes.txt", "d.GIF", "sub/c.jpeg", "empty/x.txt"] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"").unwrap();
        }
        for name in ["current", "gone.heic", "e.jpg"] {
            std::os::unix::fs::symlink("nowhere", root.join(name)).unwrap();
        }
        for (to, name) in [("loop", "loop"), ("notes.txt/within", "within")] {
            std::os::unix::fs::symlink(to, root.join(name)).unwrap();
        }
        let inputs = Inputs::collect(&[root.clone(), root.join("notes.txt"), root.join("empty"), root.join("missing")]);
        let names: Vec<String> = inputs
            .list
            .iter()
            .map(|input| input.path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/"))
            .collect();
        assert_eq!(names, ["a.JPG", "b.png", "e.jpg", "sub/c.jpeg", "notes.txt", "empty", "missing"]);
        let problems: Vec<bool> = inputs.list.iter().map(|input| input.problem.is_some()).collect();
        assert_eq!(problems, [false, false, true, false, false, true, false]);
        assert_eq!(inputs.skipped, 1);
        fs::remove_dir_all(root).unwrap();
    }
}
