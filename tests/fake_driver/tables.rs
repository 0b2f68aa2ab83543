//! The tables of the program on a GPU keep to the width of the terminal.
#![cfg(feature = "cli")]

use std::process::Command;

use super::harness::library_folder;

const WIDTH: usize = 80;
const INSPECT: &str = "inspect weights/efficientnet-lite0 --batch 4 --runs 1";

fn printed(command: &str, columns: Option<usize>) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    program.args(command.split(' ')).current_dir(env!("CARGO_MANIFEST_DIR")).env("LD_LIBRARY_PATH", library_folder());
    program.env("TREFOIL_CACHE", "/nonexistent").env_remove("TREFOIL_WEIGHTS").env_remove("COLUMNS");
    if let Some(columns) = columns {
        program.env("COLUMNS", columns.to_string());
    }
    String::from_utf8(program.output().unwrap().stdout).unwrap()
}

/// The stand-in does not compute kernels for images, so a check finds differences.
#[test]
fn tables_keep_to_the_width_of_the_terminal() {
    let check = "check weights/convnet28 --rows 1";
    for (command, part) in [(INSPECT, "sum of times"), ("doctor", " checks, "), (check, "beyond it")] {
        let text = printed(command, Some(WIDTH));
        assert!(text.contains(part), "trefoil {command}\n{text}");
        let line = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(line.chars().count() <= WIDTH, "trefoil {command}\n{line}\nin\n{text}");
    }
}

/// A step is on one line, with its whole name, in the plan and in the table of times.
#[test]
fn tables_are_whole_where_nobody_says_how_wide_they_may_be() {
    let text = printed(INSPECT, None);
    let is_of_step = |line: &&str| line.contains("blocks.2.0.conv_dw ") && line.contains("1x1+dw5x5+relu6");
    assert_eq!((text.lines().filter(is_of_step).count(), text.contains('…')), (2, false), "{text}");
}
