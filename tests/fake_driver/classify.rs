//! `trefoil classify` on a driver whose kernels do nothing: the content of device memory must not become an answer.
#![cfg(feature = "cli")]

use std::process::Command;

use super::harness::library_folder;

/// Checks that the photos are refused for this reason when memory is filled with this byte.
fn refused(top: &str, byte: u8, why: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.args(["classify", "weights/photos", "--device", "cuda:0", "--tune", "off", "--top", top]);
    command.env("LD_LIBRARY_PATH", library_folder()).env("FAKE_CUDA_POISON", byte.to_string());
    let output = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), out.as_ref()), (Some(1), ""), "{said}");
    for photo in ["chelsea.png", "coffee.png", "rocket.jpg"] {
        let line = said.lines().find(|line| line.contains(photo)).unwrap_or_else(|| panic!("{said}"));
        assert!(line.contains(why), "{line}");
    }
}

#[test]
fn classes_that_the_model_does_not_have_are_errors_of_their_photos() {
    refused("5", 0xCD, "it names class 3452816845, and the model has 1000");
}

/// All probabilities are downloaded where more classes are asked for than the device chooses.
#[test]
fn a_probability_above_1_is_an_error_of_its_photo() {
    refused("100", 0x40, "the probability of class 0 is 3.003");
}
