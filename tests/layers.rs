//! Modules import only the modules that ARCHITECTURE.md's table of layers allows.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The table of ARCHITECTURE.md: each module with the modules that it may import.
fn table() -> BTreeMap<String, Vec<String>> {
    let text = fs::read_to_string(Path::new(ROOT).join("ARCHITECTURE.md")).unwrap();
    let section = text.split("## Layers").nth(1).unwrap().split("\n## ").next().unwrap();
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut table = BTreeMap::new();
    for row in section.lines().filter(|l| l.starts_with("| `")) {
        let cells: Vec<&str> = row.split('|').collect();
        for module in names(cells[1]) {
            table.insert(module, names(cells[3]));
        }
    }
    table
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("bin") {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// The modules that paths behind `crate::` name, for `crate::a::b` and each of `crate::{a, b}`.
fn imported(text: &str) -> Vec<String> {
    let code: String = text.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let mut modules = Vec::new();
    for rest in code.split("crate::").skip(1) {
        assert!(!rest.starts_with('{'), "write one `use crate::module::...` a module, the test reads them");
        modules.push(rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect());
    }
    modules
}

#[test]
fn modules_import_what_the_architecture_says() {
    let table = table();
    assert!(table.len() >= 10, "ARCHITECTURE.md lost its table: {table:?}");
    let src = Path::new(ROOT).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    let mut edges = 0;
    for file in files {
        let relative = file.strip_prefix(&src).unwrap();
        let module = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let allowed = table.get(module).unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for `{module}`"));
        for import in imported(&fs::read_to_string(&file).unwrap()) {
            edges += 1;
            if import != module && !allowed.contains(&import) {
                wrong.push(format!("{} imports {import}", relative.display()));
            }
        }
    }
    assert!(edges > 30, "found only {edges} imports: the test no longer sees them");
    assert!(wrong.is_empty(), "not in ARCHITECTURE.md's table: {wrong:#?}");
}

#[test]
fn only_the_cuda_modules_name_cuda() {
    let src = Path::new(ROOT).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let relative = file.strip_prefix(&src).unwrap();
        if relative.starts_with("device/cuda") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        assert!(!text.contains("cudarc"), "{} names cudarc", relative.display());
    }
}
