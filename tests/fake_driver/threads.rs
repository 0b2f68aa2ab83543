//! The program when the system refuses one of its threads, each in turn.
#![cfg(all(feature = "cli", target_os = "linux"))]

use std::fs::File;
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::ptr::{null, null_mut};

use crate::harness::library;

/// Runs the program and refuses it the thread with this number; returns the exit code and the text on its terminal.
fn without_thread(number: usize, args: &str) -> (Option<i32>, String) {
    let (mut terminal, mut end) = (-1, -1);
    // SAFETY: the call writes two descriptors, and reads neither a name nor settings.
    assert_eq!(unsafe { libc::openpty(&raw mut terminal, &raw mut end, null_mut(), null(), null()) }, 0);
    // SAFETY: both were opened just now, and belong to nobody else.
    let [terminal, end] = [terminal, end].map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", env!("CARGO_BIN_EXE_trefoil")]).args(args.split(' '));
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.env("LD_PRELOAD", library("few_threads")).env("REFUSED_THREAD", number.to_string());
    command.env("RUST_LOG", "trefoil=debug").stdout(Stdio::null()).stderr(end);
    let mut child = command.spawn().unwrap();
    drop(command); // and with it this end
    let mut said = Vec::new();
    let _ = File::from(terminal).read_to_end(&mut said); // ends with an error once nobody has the other end
    (child.wait().unwrap().code(), String::from_utf8_lossy(&said).into_owned())
}

/// Runs a program once for each of its threads, which is refused; returns the names of the threads that it needs, and
/// its output without the other ones. A run without a thread that it can do without, and the run with all threads, end
/// with one of these exit codes.
fn without_each_thread(args: &str, codes: &[i32]) -> (Vec<String>, String) {
    let (mut named, mut done_without) = (Vec::new(), String::new());
    for number in 1.. {
        let (code, said) = without_thread(number, args);
        assert!(!said.contains("panicked") && !said.contains("internal error"), "thread {number}: {said}");
        if !said.contains("refused thread") {
            assert!(code.is_some_and(|code| codes.contains(&code)), "{code:?}, {said}");
            break; // there are no more
        }
        match code {
            Some(code) if codes.contains(&code) => done_without += &said,
            Some(1) => {
                let (_, why) = said.split_once("error: cannot start the thread ").unwrap_or_else(|| panic!("{said}"));
                assert!(why.contains("(os error 11)") && why.contains("`ulimit -u`"), "{said}");
                named.push(why.to_owned());
            }
            _ => panic!("thread {number}: {code:?}, {said}"),
        }
    }
    (named, done_without)
}

#[test]
fn a_thread_that_is_refused_is_named_or_done_without() {
    let args = "bench server --device cpu --model weights/convnet28 --batch 4 --seconds 0.1 --steps 1 --most 40";
    let (named, done_without) = without_each_thread(args, &[0]);
    for name in ["cpu-1", "done", "up", "compute", "batch", "rows", "load-0", "collect"] {
        assert!(named.iter().any(|why| why.starts_with(&format!("trefoil-{name}"))), "{name}: {named:?}");
    }
    assert!(done_without.contains("the progress bar moves with the work alone"), "{done_without}");
}

/// A soak ends when one of its threads is refused, a client or one that runs beside the clients. It ends with 2 where it
/// reports growth, which it may if the machine does other work.
#[test]
fn a_soak_without_one_of_its_threads_ends() {
    let args = "bench soak --device cpu --model weights/convnet28 --batch 2 --seconds 0.2 --periods 4 --threads 3";
    let (named, _) = without_each_thread(args, &[0, 2]);
    for name in ["load-0", "load-2"] {
        assert!(named.iter().any(|why| why.starts_with(&format!("trefoil-{name}"))), "{name}: {named:?}");
    }
}
