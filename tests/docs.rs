//! The documents name tests; each of them is there.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Every test function of the repository, by name.
fn tests() -> Vec<String> {
    let mut folders = vec![PathBuf::from(ROOT).join("src"), PathBuf::from(ROOT).join("tests")];
    let mut names = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(path).unwrap();
                for after in text.split("#[test]").skip(1) {
                    let name = after.split("fn ").nth(1).and_then(|rest| rest.split('(').next());
                    names.push(name.unwrap().to_owned());
                }
            }
        }
    }
    names
}

#[test]
fn the_tests_that_semantics_names_are_there() {
    let tests = tests();
    assert!(tests.len() > 100, "only {} tests found", tests.len());
    let text = fs::read_to_string(Path::new(ROOT).join("docs/semantics.md")).unwrap();
    // Code spans of four and more words joined by underscores are names of tests.
    let spans = text.split('`').skip(1).step_by(2);
    let named: Vec<&str> =
        spans.filter(|span| span.split('_').count() >= 4 && !span.contains(['(', '/', ' '])).collect();
    assert!(named.len() >= 15, "{named:?}");
    let missing: Vec<&&str> = named.iter().filter(|name| !tests.iter().any(|test| test == *name)).collect();
    assert!(missing.is_empty(), "docs/semantics.md names tests that are not there: {missing:?}");
}
