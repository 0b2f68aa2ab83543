//! Opening a device: what is refused, with which error, and that nothing is left behind.

use std::fs;

use trefoil::{Device, Error, Target};

use crate::harness::{Scenario, for_each_number};

/// In a child process: prints the result of opening `target`, for the parent to compare.
fn open(target: Target) {
    match Device::open(target) {
        Ok(device) => println!("{target}: opened {:?}", device.info()),
        Err(error) => {
            let kind = match error {
                Error::NoDevice { .. } => "NoDevice",
                Error::Unsupported { .. } => "Unsupported",
                Error::Driver { .. } => "Driver",
                Error::Io { .. } => "Io",
                _ => "another error",
            };
            println!("{target}: {kind}: {error}");
        }
    }
}

fn open_both() {
    open(Target::Cuda(0));
    open(Target::Auto);
}

#[test]
fn without_a_driver_auto_is_the_cpu() {
    let report = Scenario::new("open::without_a_driver_auto_is_the_cpu", open_both).without_driver();
    report.assert_clean();
    if report.stdout.contains("cuda:0: opened") {
        println!("skipped: this machine has a driver of its own");
        return;
    }
    assert!(report.stdout.contains("cuda:0: NoDevice: no device for `cuda:0`"), "{report}");
    assert!(report.stdout.contains("auto: opened DeviceInfo { target: \"cpu\""), "{report}");
}

/// The header of a library for a class of machines and a processor, by their numbers in ELF.
fn elf(class: u8, machine: u16) -> Vec<u8> {
    let (mut header, [low, high]) = (vec![0; 4096], machine.to_le_bytes());
    header[..8].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1, 0]);
    header[16..24].copy_from_slice(&[3, 0, low, high, 1, 0, 0, 0]);
    header
}

#[test]
fn a_library_that_cannot_be_loaded_is_an_error_with_the_loaders_words() {
    let scenario = Scenario::new("open::a_library_that_cannot_be_loaded_is_an_error_with_the_loaders_words", open_both);
    const I386: u16 = 3;
    const MIPS: u16 = 8;
    for (number, (name, bytes, words)) in [
        ("libcuda.so.1", b"no library".to_vec(), "file too short"),
        ("libcuda.so", vec![b'x'; 4096], "invalid ELF header"),
        ("libcuda.so.1", elf(1, I386), "wrong ELF class: ELFCLASS32"),
        ("libcuda.so.1", elf(2, MIPS), "libraries for another processor"),
    ]
    .into_iter()
    .enumerate()
    {
        let folder = std::env::temp_dir().join(format!("trefoil-library-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), bytes).unwrap();
        let report = scenario.run_in(&folder, &[]);
        fs::remove_dir_all(&folder).unwrap();
        report.assert_clean();
        if report.stdout.contains("cuda:0: opened") {
            return println!("skipped: this machine has a driver of its own");
        }
        for target in ["cuda:0", "auto"] {
            let start = format!("{target}: Io: cannot load the NVIDIA driver library ");
            let line = report.stdout.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{report}"));
            assert!([name, words, "--device cpu"].iter().all(|part| line.contains(part)), "{line}");
        }
    }
}

#[test]
fn a_gpu_without_room_and_a_limit_of_files_are_told() {
    let scenario = Scenario::new("open::a_gpu_without_room_and_a_limit_of_files_are_told", open_both);
    for (call, code, parts) in [
        (
            "cuDevicePrimaryCtxRetain",
            "2",
            ["CUDA_ERROR_OUT_OF_MEMORY: there is no memory for a context in its 1.0 GiB", "`nvidia-smi`"],
        ),
        ("cuInit", "304", ["CUDA_ERROR_OPERATING_SYSTEM, ", " (`ulimit -n`)"]),
    ] {
        let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", call), ("FAKE_CUDA_FAIL_CODE", code)]);
        report.assert_clean();
        for target in ["cuda:0", "auto"] {
            let start = format!("{target}: Driver: cuda:0: {call} failed with {}", parts[0]);
            let line = report.stdout.lines().find(|line| line.contains(&start)).unwrap_or_else(|| panic!("{report}"));
            assert!(line.contains(parts[1]), "{line}");
        }
    }
}

#[test]
fn an_old_driver_is_an_error_that_says_what_to_do() {
    let scenario = Scenario::new("open::an_old_driver_is_an_error_that_says_what_to_do", open_both);
    for (version, text) in [("12080", "12.8"), ("0", "0.0"), ("12090", "12.9")] {
        let report = scenario.run(&[("FAKE_CUDA_VERSION", version)]);
        report.assert_clean();
        for target in ["cuda:0: Unsupported", "auto: Unsupported"] {
            let line = report.stdout.lines().find(|l| l.contains(target)).unwrap_or_else(|| panic!("{report}"));
            assert!([text, "13.0", "580", "--device cpu"].iter().all(|part| line.contains(part)), "{line}");
        }
        assert!(report.log.iter().all(|call| call.starts_with("cuDriverGetVersion")), "a newer symbol: {report}");
    }
    scenario.run(&[("FAKE_CUDA_VERSION", "13020")]).assert_clean();
}

#[test]
fn without_a_gpu_auto_is_the_cpu() {
    let scenario = Scenario::new("open::without_a_gpu_auto_is_the_cpu", open_both);
    let no_device = [("FAKE_CUDA_FAIL_CALL", "cuInit"), ("FAKE_CUDA_FAIL_CODE", "100")];
    for variables in [&[("FAKE_CUDA_DEVICES", "0")][..], &no_device] {
        let report = scenario.run(variables);
        report.assert_clean();
        assert!(report.stdout.contains("cuda:0: NoDevice"), "{report}");
        assert!(report.stdout.contains("auto: opened DeviceInfo { target: \"cpu\""), "{report}");
    }
}

#[test]
fn a_failing_driver_is_an_error_with_its_status() {
    let scenario = Scenario::new("open::a_failing_driver_is_an_error_with_its_status", open_both);
    let mismatch = ("FAKE_CUDA_FAIL_CODE", "803");
    let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", "cuInit"), mismatch]);
    report.assert_clean();
    for target in ["cuda:0", "auto"] {
        let line = format!("{target}: Driver: cuda:0: cuInit failed with CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)");
        assert!(report.stdout.contains(&line), "{report}");
    }
}

#[test]
fn an_old_gpu_is_refused_by_name() {
    let scenario = Scenario::new("open::an_old_gpu_is_refused_by_name", open_both);
    let report = scenario.run(&[("FAKE_CUDA_CAPABILITY", "75")]);
    report.assert_clean();
    for part in ["cuda:0: Unsupported", "auto: Unsupported", "Fake GPU", "7.5", "8.0", "--device cpu"] {
        assert!(report.stdout.contains(part), "{part}: {report}");
    }
}

#[test]
fn ordinals_that_are_not_there_are_refused_with_the_count() {
    let scenario = Scenario::new("open::ordinals_that_are_not_there_are_refused_with_the_count", || {
        [0, 1, 2, usize::MAX].into_iter().for_each(|ordinal| open(Target::Cuda(ordinal)));
    });
    let report = scenario.run(&[("FAKE_CUDA_DEVICES", "2")]);
    report.assert_clean();
    for part in ["cuda:0: opened", "cuda:1: opened", "cuda:2: NoDevice", "there are 2 GPUs, cuda:0 to cuda:1"] {
        assert!(report.stdout.contains(part), "{part}: {report}");
    }
    assert!(report.stdout.contains(&format!("cuda:{}: NoDevice", usize::MAX)), "{report}");
}

#[test]
fn what_the_device_says_of_itself() {
    let scenario = Scenario::new("open::what_the_device_says_of_itself", || {
        for _ in 0..3 {
            let device = Device::open(Target::Cuda(0)).unwrap();
            let info = device.clone().info().clone();
            assert_eq!((info.target.as_str(), info.name.as_str()), ("cuda:0", "Fake GPU"));
            assert_eq!((info.compute_capability, info.units), ([9, 0], 8));
            assert_eq!((info.shared_bytes, info.memory_bytes), (227 << 10, 1 << 30));
            assert_eq!(info.driver_version, 13000);
        }
    });
    let report = scenario.run(&[]);
    report.assert_clean();
    let count = |call: &str| report.log.iter().filter(|line| line.starts_with(call)).count();
    assert_eq!((count("cuDevicePrimaryCtxRetain"), count("cuDevicePrimaryCtxRelease")), (3, 3));
}

#[test]
fn every_call_may_fail() {
    let scenario = Scenario::new("open::every_call_may_fail", || {
        if let Err(error) = Device::open(Target::Cuda(0)) {
            assert!(matches!(error, Error::Driver { code: 719, .. }), "{error:?}");
            println!("{error}");
        }
    });
    let calls = scenario.run(&[]).assert_clean().calls();
    assert!(calls > 10, "only {calls} calls");
    for_each_number(calls, |call| {
        for sticky in ["0", "1"] {
            let number = call.to_string();
            let report = scenario.run(&[("FAKE_CUDA_FAIL_CALL", &number), ("FAKE_CUDA_FAIL_STICKY", sticky)]);
            report.assert_clean();
            // The last two calls leave and release the context; their failures are logged.
            let failed = report.stdout.contains("failed with CUDA_ERROR_LAUNCH_FAILED (719)");
            assert_eq!(failed, call <= calls - 2, "call {call}: {report}");
        }
    });
}
