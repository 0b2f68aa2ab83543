//! The tests, files and commands that the documents name: each exists, and the program's commands are run.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(feature = "cli")]
use std::process::Command;

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
fn the_tests_that_documents_name_are_there() {
    let tests = tests();
    assert!(tests.len() > 100, "only {} tests found", tests.len());
    for document in ["docs/semantics.md", "docs/reliability.md"] {
        let text = fs::read_to_string(Path::new(ROOT).join(document)).unwrap();
        // Code spans of four and more words joined by underscores are names of tests.
        let spans = text.split('`').skip(1).step_by(2);
        let named: Vec<&str> =
            spans.filter(|span| span.split('_').count() >= 4 && !span.contains(['(', '/', ' '])).collect();
        assert!(named.len() >= 15, "{named:?}");
        let missing: Vec<&&str> = named.iter().filter(|name| !tests.iter().any(|test| test == *name)).collect();
        assert!(missing.is_empty(), "{document} names tests that are not there: {missing:?}");
    }
}

/// Rates in the README, such as 44,378, are those of the notes that it links to.
#[test]
fn the_readme_has_the_rates_of_its_notes() {
    let text = guide("README.md");
    let linked = text.split("](benches/notes/").skip(1).map(|after| after.split(')').next().unwrap());
    let notes: String = linked.map(|note| guide(&format!("benches/notes/{note}"))).collect();
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let is_rate = |word: &&str| {
        word.contains(',') && digits(&word.replace(',', "")) && word.split(',').skip(1).all(|part| part.len() == 3)
    };
    let words = text.split(|c: char| c.is_whitespace() || c == '|').map(|word| word.trim_end_matches(','));
    let rates: Vec<&str> = words.filter(is_rate).collect();
    assert!(rates.len() >= 5, "{rates:?}");
    let missing: Vec<&&str> = rates.iter().filter(|rate| !notes.contains(**rate)).collect();
    assert!(missing.is_empty(), "no note that the README links to has {missing:?}");
}

/// The documents for people who use trefoil or work on it; another test runs the commands of docs/linking.md.
const GUIDES: [&str; 12] = [
    "README.md",
    "docs/profiling.md",
    "docs/precision.md",
    "docs/graphs.md",
    "docs/onnx.md",
    "docs/embed.md",
    "docs/tuning.md",
    "docs/adding-a-model-family.md",
    "docs/adding-a-kernel.md",
    "benches/README.md",
    "benches/mlperf/README.md",
    "benches/peers/README.md",
];

fn guide(name: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The lines of all code blocks of a language, without comments: `sh` is run here, `console` needs a GPU or minutes.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let blocks = text.split("```").skip(1).step_by(2);
    let of_language = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    let lines = of_language.flat_map(str::lines).map(|line| line.split(" #").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn what_the_guides_name_is_there() {
    let tests = tests();
    for name in GUIDES {
        let text = guide(name);
        let outside: String = text.split("```").step_by(2).collect();
        for span in outside.split('`').skip(1).step_by(2) {
            let is_path = span.contains('/') && !span.contains([' ', '*', '<', '~']) && !span.starts_with('-');
            // Some paths are relative to the document's own folder, and files that a script makes do not exist yet.
            let beside = Path::new(ROOT).join(name).with_file_name(span);
            let made = span.starts_with(".gpu/") && guide("scripts/gpu_bundle.sh").contains(&format!(">{span}"));
            assert!(!is_path || made || beside.exists() || Path::new(ROOT).join(span).exists(), "{name}: no {span}");
        }
        for line in blocks(&text, "sh").iter().chain(&blocks(&text, "console")) {
            for word in
                line.split_whitespace().filter(|word| word.starts_with("benches/") || word.starts_with("kernels/"))
            {
                assert!(Path::new(ROOT).join(word).exists(), "{name}: no {word}");
            }
            let Some((_, arguments)) = line.split_once("cargo test --release ") else { continue };
            let there = match arguments.split_whitespace().collect::<Vec<_>>()[..] {
                ["--test", file] => {
                    ["", "/main"].iter().any(|end| Path::new(ROOT).join(format!("tests/{file}{end}.rs")).is_file())
                }
                ["--lib", folder] => Path::new(ROOT).join("src/model").join(folder).is_dir(),
                _ => false,
            };
            assert!(there, "{name}: {line}");
        }
    }
    for name in ["parameter_counts", "every_architecture_fuses_to_convolutions_pools_and_a_classifier"] {
        assert!(
            guide("docs/adding-a-model-family.md").contains(name) && tests.iter().any(|test| test == name),
            "{name}"
        );
    }
}

/// The words of a command, with the shortest measurements that its options allow.
#[cfg(feature = "cli")]
fn quick(command: &str) -> Vec<&str> {
    let mut words: Vec<&str> = command.split_whitespace().collect();
    words.iter_mut().filter(|word| **word == "MODEL").for_each(|word| *word = "weights/convnet28");
    match words[..] {
        ["bench", "overlap", ..] => words.extend(["--quick", "--repetitions", "1", "--batches", "2"]),
        ["bench", "cold", ..] => words.extend(["--runs", "1"]),
        ["bench", ..] => words.extend(["--seconds", "0.5"]),
        _ => {}
    }
    words
}

#[cfg(feature = "cli")]
#[test]
fn the_program_does_what_the_guides_tell_it() {
    let mut ran = 0;
    // Files that commands write lie in a folder of their own.
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("guides");
    fs::create_dir_all(work.join("target")).unwrap();
    let _ = fs::remove_file(work.join("weights"));
    std::os::unix::fs::symlink(Path::new(ROOT).join("weights"), work.join("weights")).unwrap();
    let ci = guide(".ci/run");
    for name in GUIDES {
        for line in blocks(&guide(name), "sh") {
            let Some(arguments) = line.strip_prefix("trefoil ") else {
                let readme = format!("readme_command \"{line}\"");
                let by_ci = ci.lines().any(|step| step == line || name == "README.md" && step.ends_with(&readme));
                assert!(by_ci || line.starts_with("cargo test --release --"), "{name}: who runs `{line}`?");
                continue;
            };
            let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
            command.args(quick(arguments)).current_dir(&work).env("TREFOIL_WEIGHTS", "weights/convnet28");
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !output.stdout.is_empty(), "{name}: {line}: {said}");
            ran += 1;
        }
    }
    assert!(ran >= 16, "the guides lost their commands: {ran}");
}
