//! Loops as PTX: every case of `tests/support/loops.rs` is written out, some as `tests/golden/ptx` has them.
//!
//! With `TREFOIL_PTX=FOLDER` all texts are put there as modules, for an assembler. With `TREFOIL_BLESS=1` the kept texts
//! are written anew; `kernels/build.py --check` assembles them.

mod support;

use std::fs;
use std::path::Path;

use support::loops::{Case, all};
use trefoil::loops::ptx::{Target, kernel, module};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ptx");

/// The cases whose texts are kept, and the files.
const KEPT: [(&str, &str); 12] = [
    ("swish of a large value", "map"),
    ("cast of f64 to bf16", "cast"),
    ("Mod of any i8", "modulo"),
    ("transpose of f16 [512, 768] to [1, 0]", "transpose"),
    ("gather along 0 by i64", "gather"),
    ("concatenation of u8", "concatenation"),
    ("Softmax { axis: 1, log: false } of f16 [33, 1024]", "softmax"),
    ("Norm(Norm { axis: 1, eps: 1e-5, centred: true }) of f32 [130, 1000]", "norm"),
    ("sum of [4099, 40] along [0]", "columns"),
    ("extreme of f32, ArgReduce(ArgReduce { largest: false, axis: 1, keep: false, last: false })", "extreme"),
    ("product of f32 [200, 129] and [129, 136]", "product"),
    ("convolution of f16 [2, 14, 13, 24] by [3, 3]", "convolution"),
];

fn text(case: &Case) -> String {
    let written = kernel(&case.of, &Target::ANY).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    module([&written], &Target::ANY)
}

#[test]
fn every_loop_is_written_and_some_are_as_they_were_kept() {
    let (all, bless) = (all(), std::env::var_os("TREFOIL_BLESS").is_some());
    let mut different = Vec::new();
    for (name, file) in KEPT {
        let case = all.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case {name}"));
        let path = Path::new(GOLDEN).join(format!("{file}.ptx"));
        let text = text(case);
        if bless {
            fs::write(&path, text).expect("the folder is writable");
        } else if fs::read_to_string(&path).unwrap_or_default() != text {
            different.push(file);
        }
    }
    assert!(different.is_empty(), "{different:?} are written in another way: look, then run with TREFOIL_BLESS=1");
}

#[test]
fn all_loops_make_modules() {
    let kernels: Vec<_> = all().iter().map(|case| (case.name.clone(), kernel(&case.of, &Target::ANY))).collect();
    let failed: Vec<_> = kernels.iter().filter(|(_, written)| written.is_err()).collect();
    assert!(failed.is_empty() && kernels.len() > 1000, "{} cases, {failed:?}", kernels.len());
    let Some(folder) = std::env::var_os("TREFOIL_PTX") else { return };
    fs::create_dir_all(&folder).expect("a folder that can be made");
    for (number, part) in kernels.chunks(100).enumerate() {
        let text = module(part.iter().filter_map(|(_, written)| written.as_ref().ok()), &Target::ANY);
        fs::write(Path::new(&folder).join(format!("{number}.ptx")), text).expect("the folder is writable");
    }
}
