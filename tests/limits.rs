//! The program where the system gives it less than it asks for: it reports what is missing and what to do, and ends.
#![cfg(feature = "cli")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_trefoil");

fn run(command: &mut Command) -> Output {
    command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("RUST_LOG").output().unwrap()
}

/// The error line of a run that did nothing.
fn refused(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(!text.contains("panicked") && !text.contains("internal error"), "{text}");
    let line = text.lines().find_map(|line| line.strip_prefix("error: "));
    line.unwrap_or_else(|| panic!("no error: {text}")).to_owned()
}

/// No thread can have this stack size, so the system refuses every thread, with the status of a limit that is reached.
#[test]
fn without_threads_it_says_which_and_what_to_do() {
    let commands: [&[&str]; 3] = [
        &["classify", "weights/photos", "--device", "cpu"],
        &["bench", "--device", "cpu", "--model", "weights/convnet28", "--seconds", "0.1"],
        &["simulate", "--compute", "8=100", "--batches", "10"],
    ];
    for args in commands {
        let error = refused(&run(Command::new(PROGRAM).args(args).env("RUST_MIN_STACK", (1_u64 << 60).to_string())));
        assert!(error.starts_with("cannot start the thread trefoil-"), "{args:?}: {error}");
        assert!(error.contains("(os error 11)") && error.contains("`ulimit -u`"), "{args:?}: {error}");
    }
}

#[test]
fn more_memory_than_it_may_have_is_refused_with_the_batch_that_fits() {
    let engine = "bench --device cpu --model weights/efficientnet-lite0 --batch 65536 --seconds 0.1";
    let simulated = "simulate --compute 65536=1000 --producers 1024";
    for args in [engine, simulated] {
        let error =
            refused(&run(Command::new("sh").args(["-c", &format!("ulimit -v 1500000; exec {PROGRAM} {args}")])));
        assert!(
            error.contains("out of memory for host memory: ") && error.contains("; a batch of "),
            "{args}: {error}"
        );
        let free = error.split(" needed, ").nth(1).and_then(|rest| rest.split(" MiB").next()).unwrap();
        assert!((1.0..1500.0).contains(&free.parse::<f64>().unwrap()), "{args}: {error}");
    }
}

#[test]
fn a_configuration_of_images_that_no_machine_holds_is_refused() {
    let folder = std::env::temp_dir().join(format!("trefoil-limits-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("weights/efficientnet-lite0");
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let (small, large) = ("\"input_size\": [3, 224, 224]", "\"input_size\": [3, 65536, 65536]");
    assert!(config.contains(small));
    fs::write(folder.join("config.json"), config.replace(small, large)).unwrap();
    fs::copy(model.join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    // Only work that was not refused touches more memory than this.
    let limited = |command: &str| {
        let command =
            format!("ulimit -v 4000000; exec {PROGRAM} {command}").replace("MODEL", &folder.to_string_lossy());
        refused(&run(Command::new("sh").args(["-c", &command])))
    };
    let error = limited("bench --device cpu --batch 1 --seconds 0.1 --model MODEL");
    assert!(error.contains("out of memory for host memory: ") && error.contains("not even a batch of 1"), "{error}");
    let photos = "weights/photos ".repeat(8);
    let error = limited(&format!("calibrate MODEL {photos} -o MODEL-s8"));
    assert!(error.contains("out of memory for a thread that calibrates: ") && !error.contains(" 0.0 MiB"), "{error}");
    fs::remove_dir_all(&folder).unwrap();
    assert!(!Path::new(&format!("{}-s8", folder.display())).exists());
}
