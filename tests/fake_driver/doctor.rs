//! `trefoil doctor` on a driver: what it says of GPUs, and that it tells wrong answers.
#![cfg(feature = "cli")]

use std::process::Command;

use serde_json::Value;

use super::harness::library_folder;

fn doctor(variables: &[(&str, &str)]) -> (Option<i32>, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.args(["doctor", "--json"]).env("LD_LIBRARY_PATH", library_folder()).envs(variables.iter().copied());
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
