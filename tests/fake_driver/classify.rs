//! `trefoil classify` on a driver whose kernels do nothing: what it finds in device memory is no answer.
#![cfg(feature = "cli")]

use std::process::Command;

use super::harness::library_folder;

#[test]
fn classes_that_the_model_does_not_have_are_errors_of_their_photos() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.args(["classify", "weights/photos", "--device", "cuda:0", "--tune", "off"]);
    command.env("LD_LIBRARY_PATH", library_folder()).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), out.as_ref()), (Some(1), ""), "{said}");
    for photo in ["chelsea.png", "coffee.png", "rocket.jpg"] {
        let line = said.lines().find(|line| line.contains(photo)).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains("it names class 3452816845, and the model has 1000"), "{line}");
    }
}
