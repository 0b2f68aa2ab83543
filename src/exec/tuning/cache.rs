//! The answers of measurements, on disk: a small file for each shape.
//!
//! No other user can write a file that is read here, or read a file that is written here. A reader never sees half of a
//! file: if two processes tune the same shape, each writes a whole answer, and one of the two stays. Shapes never share
//! a file, so that no answer is lost. A file names its key and shape; a file with another key or shape, or one that
//! cannot be read, is ignored with a warning.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::device::DeviceInfo;
use crate::error::Error;
use crate::files;
use crate::fnv::fnv1a64;
use crate::sync::{Mutex, lock};

/// All that an answer depends on besides the shape.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The GPU's name, compute capability and multiprocessors.
    pub gpu: String,
    /// The driver, and the CUDA version that it is for.
    pub driver: String,
    /// A hash of all kernels.
    pub kernels: String,
}

/// A kernel that was found the fastest for a shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    /// The displayed form of the kernel.
    pub kernel: String,
    /// The kernel that the planner would have taken.
    pub planned: String,
    /// The time that the kernel saves in a run of the measured graph, in microseconds for each step of the shape.
    pub gain_us: f64,
}

/// The contents of a file.
#[derive(Serialize, Deserialize)]
struct CacheEntry {
    format: u32,
    #[serde(flatten)]
    key: Key,
    shape: String,
    #[serde(flatten)]
    answer: Answer,
}

/// Counts of the answers in the folder of a cache and in the folders beside it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Answers of this cache.
    pub answers: usize,
    /// Answers for the same GPU, of another driver, other kernels or another format.
    pub outdated: usize,
    /// Files that every cache ignores.
    pub unreadable: Vec<PathBuf>,
}

/// The number of the format. It changes with [`CacheEntry`] and with the names of shapes or kernels: format 2 has the
/// types of tensors in shapes.
const FORMAT: u32 = 2;
/// The largest file that is read, more than a thousand times an entry's size.
const MAX_ENTRY_BYTES: u64 = 1 << 20;
/// The action in error messages about a file that is read.
const READ: &str = "read an answer in";

/// The answers of one GPU, driver and set of kernels.
#[derive(Debug)]
pub(super) struct Cache {
    key: Key,
    /// The folder of the files; `None` if answers are kept only in memory.
    folder: Option<PathBuf>,
    /// The answers for shapes that were asked for or kept; `None` where there is no answer.
    known: Mutex<BTreeMap<String, Option<Answer>>>,
}

impl Key {
    pub fn new(info: &DeviceInfo, kernels: u64) -> Self {
        let [major, minor] = info.compute_capability;
        let (cuda, version) = (info.driver_version, fs::read_to_string("/sys/module/nvidia/version"));
        Self {
            gpu: format!("{}, sm_{major}{minor}, {} multiprocessors", info.name, info.units),
            driver: format!("{}, CUDA {}.{}", version.unwrap_or_default().trim(), cuda / 1000, cuda % 1000 / 10),
            kernels: format!("{kernels:016x}"),
        }
    }
}

impl Cache {
    /// The cache of answers for `key` below `folder`.
    pub fn new(key: Key, folder: Option<&Path>) -> Self {
        let of = format!("{} / {} / {} / format {FORMAT}", key.gpu, key.driver, key.kernels);
        let name = fnv1a64(of.as_bytes());
        Self { key, folder: folder.map(|folder| folder.join("tuning").join(name)), known: Mutex::default() }
    }

    /// The answer for a shape, if there is one.
    pub fn get(&self, shape: &str) -> Option<Answer> {
        let read = || self.path(shape).and_then(|path| self.read(&path, shape));
        lock(&self.known).entry(shape.to_owned()).or_insert_with(read).clone()
    }

    /// Whether there is no answer for any shape.
    pub fn is_empty(&self) -> bool {
        let is_on_disk = self.folder.as_ref().is_some_and(|folder| folder.exists());
        !is_on_disk && lock(&self.known).values().all(Option::is_none)
    }

    /// Looks at every answer on disk, also at those of other GPUs, drivers and kernels.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        let Some(own) = &self.folder else { return census };
        for folder in entries(own.parent().expect("answers lie in a folder of their own")) {
            for path in entries(&folder).into_iter().filter(|path| path.extension().is_some_and(|kind| kind == "json"))
            {
                let text = files::own::read(READ, &path, MAX_ENTRY_BYTES).ok();
                let entry = text.and_then(|text| serde_json::from_slice::<CacheEntry>(&text).ok());
                let of_this_gpu = |entry: &CacheEntry| usize::from(entry.key.gpu == self.key.gpu);
                match entry.filter(|entry| path.ends_with(file_name(&entry.shape))) {
                    Some(entry) if entry.format != FORMAT => census.outdated += of_this_gpu(&entry),
                    Some(entry) if (&folder == own) != (entry.key == self.key) => census.unreadable.push(path),
                    Some(entry) if entry.key == self.key => census.answers += 1,
                    Some(entry) => census.outdated += of_this_gpu(&entry),
                    None => census.unreadable.push(path),
                }
            }
        }
        census
    }

    /// Keeps an answer. If it cannot be written to the folder, a warning is logged and the answer is kept only in
    /// memory.
    pub fn put(&self, shape: &str, answer: Answer) {
        if let Some(path) = self.path(shape)
            && let Err(error) = self.write(&path, shape, &answer)
        {
            log::warn!("tuning: an answer is not kept: {error}");
        }
        lock(&self.known).insert(shape.to_owned(), Some(answer));
    }

    fn path(&self, shape: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(file_name(shape)))
    }

    fn read(&self, path: &Path, shape: &str) -> Option<Answer> {
        let passed_over = |why: String| log::warn!("tuning: {} is ignored: {why}", path.display());
        let text = match files::own::read(READ, path, MAX_ENTRY_BYTES) {
            Ok(text) => text,
            Err(Error::Io { source, .. }) if is_missing(&source) => return None,
            Err(error) => {
                passed_over(error.to_string());
                return None;
            }
        };
        match serde_json::from_slice::<CacheEntry>(&text) {
            Ok(entry) if entry.format == FORMAT && entry.key == self.key && entry.shape == shape => Some(entry.answer),
            Ok(_) => {
                passed_over("it holds another tuning key".into());
                None
            }
            Err(error) => {
                passed_over(format!("it cannot be read: {error}"));
                None
            }
        }
    }

    fn write(&self, path: &Path, shape: &str, answer: &Answer) -> Result<(), Error> {
        let entry =
            CacheEntry { format: FORMAT, key: self.key.clone(), shape: shape.to_owned(), answer: answer.clone() };
        let text = serde_json::to_string_pretty(&entry).map_err(|error| Error::io("write", path, error.into()))?;
        files::own::write(path, (text + "\n").as_bytes())
    }
}

/// The folder of answers if the program names none: `TREFOIL_CACHE`, else `trefoil` in `XDG_CACHE_HOME` or in `.cache`
/// of the home folder.
pub(super) fn default_folder() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    // By the XDG convention a relative path is ignored.
    let xdg = folder("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    folder("TREFOIL_CACHE").or_else(|| Some(xdg.or_else(|| Some(folder("HOME")?.join(".cache")))?.join("trefoil")))
}

fn file_name(shape: &str) -> String {
    format!("{}.json", fnv1a64(shape.as_bytes()))
}

/// Whether an error says that there is no such file. A home that is `/dev/null` cannot hold a folder.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The paths in a folder, sorted; empty if the folder cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Key {
        Key {
            gpu: "NVIDIA Test, sm_90, 132 multiprocessors".into(),
            driver: "1, CUDA 13.0".into(),
            kernels: "ab".into(),
        }
    }

    fn answer(kernel: &str) -> Answer {
        Answer { kernel: kernel.into(), planned: "sm90 128x256".into(), gain_us: 1.25 }
    }

    /// A new folder, which is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("trefoil-cache-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn files(&self) -> Vec<PathBuf> {
            let folders = fs::read_dir(self.0.join("tuning")).into_iter().flatten().flatten();
            let files = folders.flat_map(|folder| fs::read_dir(folder.path()).unwrap().flatten());
            files.map(|file| file.path()).collect()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn an_answer_comes_back_in_another_process() {
        let folder = Folder::new("back");
        let cache = Cache::new(key(), Some(&folder.0));
        assert_eq!(cache.get("conv"), None);
        cache.put("conv", answer("sm90 64x256"));
        assert_eq!(cache.get("conv"), Some(answer("sm90 64x256")));
        let later = Cache::new(key(), Some(&folder.0));
        assert_eq!((later.get("conv"), later.get("other")), (Some(answer("sm90 64x256")), None));
        later.put("conv", answer("sm90 128x64"));
        assert_eq!(Cache::new(key(), Some(&folder.0)).get("conv"), Some(answer("sm90 128x64")));
        assert_eq!(folder.files().len(), 1);
    }

    #[test]
    fn another_gpu_driver_or_kernel_knows_nothing_of_it() {
        let folder = Folder::new("key");
        Cache::new(key(), Some(&folder.0)).put("conv", answer("sm90 64x256"));
        let others = [
            Key { gpu: "NVIDIA Test, sm_90, 114 multiprocessors".into(), ..key() },
            Key { driver: "2, CUDA 13.0".into(), ..key() },
            Key { kernels: "ac".into(), ..key() },
        ];
        for other in others {
            assert_eq!(Cache::new(other, Some(&folder.0)).get("conv"), None);
        }
    }

    #[test]
    fn what_is_corrupt_or_foreign_is_passed_over_and_replaced() {
        let folder = Folder::new("corrupt");
        Cache::new(key(), Some(&folder.0)).put("conv", answer("sm90 64x256"));
        let file = folder.files().remove(0);
        let whole = fs::read_to_string(&file).unwrap();
        let foreign = [
            whole[..whole.len() / 2].to_owned(),
            String::new(),
            "[1, 2]".to_owned(),
            "\u{0}\u{1}".to_owned(),
            whole.replace("\"format\": 2", "\"format\": 1"),
            whole.replace("\"conv\"", "\"another shape with the same hash\""),
            whole.replace("132", "133"),
        ];
        for text in foreign {
            assert_ne!(text, whole);
            fs::write(&file, &text).unwrap();
            let cache = Cache::new(key(), Some(&folder.0));
            assert_eq!(cache.get("conv"), None, "{text}");
            cache.put("conv", answer("sm90 128x64"));
            assert_eq!(Cache::new(key(), Some(&folder.0)).get("conv"), Some(answer("sm90 128x64")));
        }
    }

    #[test]
    fn what_others_can_write_is_passed_over_and_replaced() {
        use std::os::unix::fs::PermissionsExt;

        let folder = Folder::new("others");
        let cache = || Cache::new(key(), Some(&folder.0));
        cache().put("conv", answer("sm90 64x256"));
        let file = folder.files().remove(0);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert_eq!(cache().get("conv"), None);
        assert_eq!(cache().census(), Census { unreadable: vec![file.clone()], ..Census::default() });
        cache().put("conv", answer("sm90 128x64"));
        assert_eq!((cache().get("conv"), mode(&file)), (Some(answer("sm90 128x64")), 0o600));
    }

    /// Changes each byte, removes each byte, and cuts the file at each byte.
    #[test]
    fn a_file_that_is_damaged_anywhere_is_passed_over_or_an_answer_for_the_shape() {
        let folder = Folder::new("damaged");
        Cache::new(key(), Some(&folder.0)).put("conv", answer("sm90 64x256"));
        let file = folder.files().remove(0);
        let (whole, mut answers) = (fs::read(&file).unwrap(), 0);
        let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
        for at in 0..whole.len() {
            let changed = [&whole[..at], &[whole[at] ^ 1], &whole[at + 1..]].concat();
            let shorter = [&whole[..at], &whole[at + 1..]].concat();
            for bytes in [changed, shorter, whole[..at].to_vec()] {
                fs::write(&file, &bytes).unwrap();
                if Cache::new(key(), Some(&folder.0)).get("conv").is_none() {
                    continue;
                }
                let (mut said, original) = (value(&bytes), value(&whole));
                for of_answer in ["kernel", "planned", "gain_us"] {
                    said[of_answer] = original[of_answer].clone();
                }
                assert_eq!(said, original, "byte {at}");
                answers += 1;
            }
        }
        assert!(answers > 0, "not even without the last line end");
    }

    #[test]
    fn a_census_tells_what_is_of_use() {
        let folder = Folder::new("census");
        let census = || Cache::new(key(), Some(&folder.0)).census();
        assert_eq!((census(), Cache::new(key(), None).census()), Default::default());
        let newer = Key { driver: "2, CUDA 13.1".into(), ..key() };
        let elsewhere = Key { gpu: "NVIDIA Other, sm_80, 108 multiprocessors".into(), ..key() };
        for (key, shapes) in [(key(), ["a", "b"].as_slice()), (newer, &["a"]), (elsewhere, &["a", "b", "c"])] {
            let cache = Cache::new(key, Some(&folder.0));
            shapes.iter().for_each(|shape| cache.put(shape, answer("sm90 64x256")));
        }
        assert_eq!(census(), Census { answers: 2, outdated: 1, unreadable: Vec::new() });
        let own = Cache::new(key(), Some(&folder.0)).path("a").unwrap();
        let whole = fs::read_to_string(&own).unwrap();
        for text in [String::new(), whole.replace("132", "133"), whole.replace("\"a\"", "\"c\""), whole[..9].into()] {
            fs::write(&own, text).unwrap();
            assert_eq!(census(), Census { answers: 1, outdated: 1, unreadable: vec![own.clone()] });
        }
        // The temporary file of a writer that was killed is not counted and disturbs no reader.
        fs::rename(&own, own.with_extension("1-0.new")).unwrap();
        assert_eq!(census(), Census { answers: 1, outdated: 1, unreadable: Vec::new() });
    }

    /// Answers of an older library are in a folder of their own, or in this one's.
    #[test]
    fn answers_of_an_older_format_are_outdated_and_nobody_takes_them() {
        let folder = Folder::new("older");
        let cache = || Cache::new(key(), Some(&folder.0));
        cache().put("a", answer("sm90 64x256"));
        let own = cache().path("a").unwrap();
        let older = fs::read_to_string(&own).unwrap().replace("\"format\": 2", "\"format\": 1");
        fs::write(&own, &older).unwrap();
        let elsewhere = folder.0.join("tuning").join("0123456789abcdef");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join(own.file_name().unwrap()), &older).unwrap();
        assert_eq!(cache().get("a"), None);
        assert_eq!(cache().census(), Census { answers: 0, outdated: 2, unreadable: Vec::new() });
        cache().put("a", answer("sm90 128x64"));
        assert_eq!(cache().census(), Census { answers: 1, outdated: 1, unreadable: Vec::new() });
    }

    #[test]
    fn writers_at_the_same_time_lose_nothing_and_readers_see_whole_files() {
        let folder = Folder::new("writers");
        let shapes: Vec<String> = (0..8).map(|shape| format!("conv {shape}")).collect();
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (folder, shapes) = (&folder.0, &shapes);
                scope.spawn(move || {
                    // Each thread has a cache of its own, as a process would: they share only the folder.
                    let cache = Cache::new(key(), Some(folder));
                    for round in 0..20 {
                        for shape in shapes {
                            cache.put(shape, answer(&format!("writer {writer} round {round}")));
                            let seen = Cache::new(key(), Some(folder)).get(shape);
                            assert!(seen.is_some_and(|seen| seen.kernel.starts_with("writer")), "half a file");
                        }
                    }
                });
            }
        });
        let cache = Cache::new(key(), Some(&folder.0));
        assert!(shapes.iter().all(|shape| cache.get(shape).is_some_and(|found| found.kernel.ends_with("round 19"))));
        assert_eq!(folder.files().len(), shapes.len(), "something is left beside the answers");
    }

    #[test]
    fn an_answer_that_is_no_file_is_passed_over() {
        let folder = Folder::new("pipe");
        Cache::new(key(), Some(&folder.0)).put("conv", answer("sm90 64x256"));
        let file = folder.files().remove(0);
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        let cache = Cache::new(key(), Some(&folder.0));
        assert_eq!(cache.get("conv"), None); // and at once
        assert_eq!(cache.census(), Census { unreadable: vec![file], ..Census::default() });
    }

    #[test]
    fn without_a_folder_answers_stay_in_memory() {
        let cache = Cache::new(key(), None);
        cache.put("conv", answer("sm90 64x256"));
        assert_eq!(cache.get("conv"), Some(answer("sm90 64x256")));
        // The folder cannot be made, because a file has its name.
        let folder = Folder::new("file");
        fs::write(&folder.0, b"").unwrap();
        let cache = Cache::new(key(), Some(&folder.0));
        cache.put("conv", answer("sm90 64x256"));
        assert_eq!(cache.get("conv"), Some(answer("sm90 64x256")));
        fs::remove_file(&folder.0).unwrap();
    }
}
