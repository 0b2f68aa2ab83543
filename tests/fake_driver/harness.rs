//! Runs a test's body in a process of its own, whose driver library is the stand-in of `tests/fake_cuda/`.

use std::env;
use std::ffi::{CString, c_char, c_void};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

/// The environment variable that names the scenario of a child process.
const SCENARIO: &str = "TREFOIL_SCENARIO";

/// A test of at most so many numbers, see [`for_each_number`], always has all of them.
const FEW: usize = 64;

/// A test whose body runs in child processes: `Scenario::new("name of the test", || body)`.
pub struct Scenario {
    name: &'static str,
}

/// The results of a child process.
#[derive(Debug)]
pub struct ChildReport {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The log, with one line for each driver call.
    pub log: Vec<String>,
    /// Forbidden actions, see `tests/fake_cuda/lib.rs`.
    pub violations: Vec<String>,
    /// Objects that were alive when the context was released.
    pub leaks: Vec<String>,
}

impl Scenario {
    /// In the test's own process, returns the scenario, whose children can be run; in a child process, runs the body
    /// and ends the process. `name` is the name of the test.
    pub fn new(name: &'static str, body: impl FnOnce()) -> Self {
        if env::var(SCENARIO).is_ok_and(|scenario| scenario == name) {
            body();
            std::process::exit(0);
        }
        Self { name }
    }

    /// Runs the body in a child process with these variables for the stand-in.
    pub fn run(&self, variables: &[(&str, &str)]) -> ChildReport {
        self.run_in(library_folder(), variables)
    }

    /// Runs the body where no driver library is found.
    pub fn without_driver(&self) -> ChildReport {
        self.run_in(Path::new("/nonexistent"), &[])
    }

    /// Runs the body where driver libraries are searched in this folder.
    pub fn run_in(&self, folder: &Path, variables: &[(&str, &str)]) -> ChildReport {
        static RUNS: AtomicUsize = AtomicUsize::new(0);
        let run = RUNS.fetch_add(1, Ordering::Relaxed);
        let log = env::temp_dir().join(format!("trefoil-{}-{run}.log", std::process::id()));
        let _ = fs::remove_file(&log);
        let output = Command::new(env::current_exe().unwrap())
            .args([self.name, "--exact", "--nocapture", "--test-threads=1"])
            .env(SCENARIO, self.name)
            .env("LD_LIBRARY_PATH", folder)
            .env("FAKE_CUDA_LOG", &log)
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(&log);
        let of = |prefix: &str| text.lines().filter_map(|l| l.strip_prefix(prefix)).map(str::to_owned).collect();
        ChildReport {
            status: output.status,
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            violations: of("VIOLATION "),
            leaks: of("LEAK "),
            log: text.lines().map(str::to_owned).collect(),
        }
    }
}

impl ChildReport {
    /// Asserts that the body ran to its end, broke no rule, and freed everything that it made.
    pub fn assert_clean(&self) -> &Self {
        self.assert_sound();
        assert_eq!(self.leaks, [""; 0], "{self}");
        self
    }

    /// Asserts that the body ran to its end and broke no rule.
    pub fn assert_sound(&self) -> &Self {
        assert!(self.status.success(), "{}\n{self}", self.status);
        assert_eq!(self.violations, [""; 0], "{self}");
        self
    }

    /// The driver calls between two [`mark`]s, or after the last one.
    pub fn between(&self, start: &str, end: &str) -> Vec<&str> {
        let is = |line: &&str, name: &str| line.strip_prefix("# ") == Some(name);
        let lines = self.log.iter().map(String::as_str);
        let after: Vec<&str> = lines.skip_while(|line| !is(line, start)).skip(1).collect();
        assert!(after.iter().any(|line| is(line, end)), "no marks {start} and {end}:\n{self}");
        after.into_iter().take_while(|line| !is(line, end)).filter(|line| !line.starts_with('#')).collect()
    }

    /// Number of all driver calls.
    pub fn calls(&self) -> usize {
        self.log.iter().filter(|line| line.starts_with("cu")).count()
    }
}

impl std::fmt::Display for ChildReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tail = self.log.len().saturating_sub(30);
        write!(f, "{}\n{}\nlast calls:\n{}", self.stdout, self.stderr, self.log[tail..].join("\n"))
    }
}

/// In a child process: writes a line into the log, by which the calls around it can be found, and tells the stand-in,
/// which counts the calls after it.
pub fn mark(name: &str) {
    let name = CString::new(name).unwrap();
    // SAFETY: the stand-in's initialisers do nothing; its function is of this type, and the text ends with a NUL.
    unsafe {
        let library = libc::dlopen(c"libcuda.so".as_ptr(), libc::RTLD_NOW);
        let mark = libc::dlsym(library, c"fake_cuda_mark".as_ptr());
        assert!(!library.is_null() && !mark.is_null(), "the driver library is not the stand-in");
        let mark = std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char)>(mark);
        mark(name.as_ptr());
    }
}

/// In a child process: waits until a ring's own thread, which may hold the device longest, has released it.
pub fn wait_for_release() {
    let log = env::var("FAKE_CUDA_LOG").unwrap();
    let count = |text: &str, call: &str| text.lines().filter(|line| line.starts_with(call)).count();
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        let text = fs::read_to_string(&log).unwrap();
        if count(&text, "cuDevicePrimaryCtxRetain") == count(&text, "cuDevicePrimaryCtxRelease") {
            return;
        }
        assert!(Instant::now() < deadline, "the context is never released");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs `each` for the numbers from 1 to `last`, on a few threads: for all of them if `TREFOIL_ALL` is set, as it is in
/// CI, and else for each fifth one of more than [`FEW`], so that tests may alternate between 2, 3 or 4 ways. Returns for
/// how many.
pub fn for_each_number(last: usize, each: impl Fn(usize) + Sync) -> usize {
    let step = if last > FEW && env::var_os("TREFOIL_ALL").is_none() { 5 } else { 1 };
    let next = AtomicUsize::new(1);
    let workers = thread::available_parallelism().map_or(2, |n| n.get());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(number) = Some(next.fetch_add(step, Ordering::Relaxed)).filter(|&number| number <= last)
                {
                    each(number);
                }
            });
        }
    });
    last.div_ceil(step)
}

/// A folder that contains the stand-in as `libcuda.so`.
pub fn library_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = profile().join("fake_driver");
        fs::create_dir_all(&folder).unwrap();
        match std::os::unix::fs::symlink(library("fake_cuda"), folder.join("libcuda.so")) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => panic!("{error}"),
            _ => folder,
        }
    })
}

/// The folder into which this binary was built.
fn profile() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

/// The library `tests/NAME/`; it is built if it is missing or older than its source.
pub fn library(name: &str) -> PathBuf {
    static BUILDING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = BUILDING.lock().unwrap();
    let built = profile().join(format!("examples/lib{name}.so"));
    if !is_fresh(&built, name) {
        build(&profile(), name);
    }
    built
}

fn is_fresh(library: &Path, name: &str) -> bool {
    let age = fs::metadata(library).and_then(|meta| meta.modified()).ok();
    age > newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name))
}

/// The time of the last change of a file, or of the newest file in a folder.
fn newest(path: &Path) -> Option<SystemTime> {
    match fs::read_dir(path) {
        Ok(entries) => entries.filter_map(|entry| newest(&entry.unwrap().path())).max(),
        Err(_) => fs::metadata(path).and_then(|meta| meta.modified()).ok(),
    }
}

/// Builds a library: `cargo test` builds it with the other examples, `cargo test --test fake_driver` does not.
fn build(profile: &Path, name: &str) {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--example", name, "--manifest-path"]);
    cargo.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    match profile.file_name().unwrap().to_str().unwrap() {
        "debug" => {}
        name => drop(cargo.args(["--profile", name])),
    }
    assert!(cargo.status().unwrap().success(), "tests/{name} does not build");
}
