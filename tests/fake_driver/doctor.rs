//! `trefoil doctor` on the stand-in driver: its findings about GPUs, and that it detects wrong answers.
#![cfg(feature = "cli")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::harness::{for_each_number, library_folder};

fn doctor(variables: &[(&str, &str)]) -> (Option<i32>, Value) {
    // `timeout` kills the program if it does not end.
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", "100", env!("CARGO_BIN_EXE_trefoil"), "doctor", "--json"]);
    command.env("LD_LIBRARY_PATH", library_folder()).envs(variables.iter().copied());
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    (output.status.code(), serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Verdict and finding of a check.
fn check<'a>(findings: &'a Value, name: &str) -> (&'a str, &'a str) {
    let checks = findings["checks"].as_array().unwrap();
    let found = checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{name}: {findings:#}"));
    assert_eq!(found["verdict"] == "ok", found["advice"].is_null(), "{found}");
    (found["verdict"].as_str().unwrap(), found["found"].as_str().unwrap())
}

#[test]
fn every_gpu_is_looked_at_and_wrong_answers_are_told() {
    let (code, findings) = doctor(&[("FAKE_CUDA_DEVICES", "2")]);
    assert_eq!(code, Some(1));
    assert!(check(&findings, "driver").1.contains("for CUDA 13.0"));
    for gpu in ["cuda:0", "cuda:1"] {
        assert!(check(&findings, gpu).1.contains("compute capability 9.0"));
        assert!(check(&findings, &format!("{gpu} kernels")).1.contains("sm_90a"));
        assert_eq!(check(&findings, &format!("{gpu} page-locking")).0, "ok");
        assert!(check(&findings, &format!("{gpu} link")).1.contains("GB/s"));
        // The stand-in computes nothing.
        assert_eq!(check(&findings, &format!("{gpu} answers")).0, "bad");
    }
}

#[test]
fn a_driver_that_does_not_do_is_bad_and_says_what_to_do() {
    for (variable, value, part) in
        [("FAKE_CUDA_VERSION", "12020", "an NVIDIA driver for CUDA 12.2"), ("FAKE_CUDA_DEVICES", "0", "finds no GPU")]
    {
        let (_, findings) = doctor(&[(variable, value)]);
        let (verdict, found) = check(&findings, "GPU");
        assert!(found.contains(part) && verdict != "ok", "{findings:#}");
    }
}

/// The first call of each name fails, with all later calls or alone. The checks end in time, and the findings are
/// printed.
#[test]
fn a_driver_that_fails_anywhere_ends_no_round_too_late() {
    let log = std::env::temp_dir().join(format!("trefoil-doctor-{}.log", std::process::id()));
    let _ = fs::remove_file(&log);
    doctor(&[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_LOG", log.to_str().unwrap())]);
    let text = fs::read_to_string(&log).unwrap();
    fs::remove_file(&log).unwrap();
    let calls = text.lines().filter(|line| line.starts_with("cu")).filter_map(|line| line.split(' ').next());
    let mut names = BTreeSet::new();
    let first: Vec<usize> = (1..).zip(calls).filter(|(_, name)| names.insert(*name)).map(|(call, _)| call).collect();
    assert!(first.len() > 30 && first.last() > Some(&300), "{first:?}");
    let alone = first.iter().step_by(5).map(|call| (call, "0"));
    let fails: Vec<(&usize, &str)> = first.iter().map(|call| (call, "1")).chain(alone).collect();
    for_each_number(fails.len(), |number| {
        let (call, sticky) = fails[number - 1];
        let which = [("FAKE_CUDA_FAIL_CALL", &*call.to_string()), ("FAKE_CUDA_FAIL_STICKY", sticky)];
        let variables = [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_FAIL_CODE", "700")];
        let (code, findings) = doctor(&[variables, which].concat());
        let checks = findings["checks"].as_array().unwrap();
        assert!(code == Some(1) && checks.len() < 40, "call {call}, sticky {sticky}: {findings:#}");
    });
}

/// Other processes hold the memory of a GPU: the program names them, as far as nvidia-smi knows them.
#[cfg(unix)]
#[test]
fn who_has_the_memory_of_a_full_gpu_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("trefoil-smi-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let smi = folder.join("nvidia-smi");
    fs::write(&smi, "#!/bin/sh\ncase \"$*\" in *compute-apps*) echo '4242, 70000 MiB, python3';; *) exit 1;; esac\n")
        .unwrap();
    fs::set_permissions(&smi, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let full = [("FAKE_CUDA_FAIL_CALL", "cuDevicePrimaryCtxRetain"), ("FAKE_CUDA_FAIL_CODE", "2"), ("PATH", &*path)];
    let findings = doctor(&full).1;
    let (verdict, found) = check(&findings, "GPU");
    let holder = "python3 (process 4242) has 70000 MiB";
    assert!(verdict == "bad" && found.contains(holder), "{found}");
    let mut inspect = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    inspect.args(["inspect", "weights/convnet28", "--device", "cuda:0"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = inspect.env("LD_LIBRARY_PATH", library_folder()).envs(full).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("CUDA_ERROR_OUT_OF_MEMORY") && error.contains(holder), "{error}");
}

#[test]
fn measurements_that_are_kept_are_counted() {
    let cache = std::env::temp_dir().join(format!("trefoil-doctor-{}", std::process::id()));
    let _ = fs::remove_dir_all(&cache);
    let variables = [("TREFOIL_CACHE", cache.to_str().unwrap())];
    let told = || {
        let findings = doctor(&variables).1;
        let (verdict, found) = check(&findings, "cuda:0 tuning");
        (verdict.to_owned(), found.replace(cache.to_str().unwrap(), "CACHE"))
    };
    assert_eq!(told(), ("ok".into(), "nothing was measured; answers would be kept in CACHE/tuning".into()));

    // The stand-in computes nothing, so the benchmark ends with wrong results, after the measurement.
    let mut tune = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    tune.args(["bench", "--model", "weights/convnet28", "--batch", "4", "--only", "compute", "--seconds", "0.1"]);
    tune.args(["--tune", "full"]).envs(variables).env("LD_LIBRARY_PATH", library_folder());
    tune.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let own = files(&cache.join("tuning")).remove(0);
    let answers = files(&own);
    let count = answers.len();
    assert!(count > 1, "{answers:?}");
    assert_eq!(told(), ("ok".into(), format!("{count} answers in CACHE/tuning")));

    // The folder of another driver version, as an update leaves it.
    let older = cache.join("tuning/older");
    fs::create_dir(&older).unwrap();
    for answer in &answers {
        let text = fs::read_to_string(answer).unwrap().replace("CUDA 13.0", "CUDA 12.9");
        fs::write(older.join(answer.file_name().unwrap()), text).unwrap();
    }
    let outdated = format!("; of another driver or version: {count}");
    assert_eq!(told(), ("ok".into(), format!("{count} answers in CACHE/tuning{outdated}")));
    fs::write(&answers[0], "{").unwrap();
    let found = format!("{} answers in CACHE/tuning{outdated}; ignored: 1", count - 1);
    assert_eq!(told(), ("warn".into(), found));
    fs::remove_dir_all(&own).unwrap();
    assert_eq!(told(), ("warn".into(), format!("0 answers in CACHE/tuning{outdated}")));
    fs::remove_dir_all(&cache).unwrap();
}

/// The paths in a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
