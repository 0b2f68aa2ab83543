//! Loops as PTX: every case of `tests/support/loops.rs` is generated, and some are compared with the texts in
//! `tests/golden/ptx`.
//!
//! `TREFOIL_PTX=FOLDER` writes all texts there as modules, for an assembler. `TREFOIL_BLESS=1` writes the kept texts
//! anew; `kernels/build.py --check` assembles them.

mod support;

use std::fs;
use std::path::Path;

use support::loops::{Case, all};
use trefoil::loops::ptx::{PtxTarget, kernel, module};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/ptx");

/// A GPU that has clusters.
const H200: PtxTarget = PtxTarget { compute_capability: [9, 0], units: 132 };

/// The cases whose texts are kept, with their files; files whose names contain `sm90` are for a GPU with clusters.
const KEPT: [(&str, &str); 15] = [
    ("swish of a large value", "map"),
    ("cast of f64 to bf16", "cast"),
    ("Mod of any i8", "modulo"),
    ("transpose of f16 [512, 768] to [1, 0]", "transpose"),
    ("gather along 0 by i64", "gather"),
    ("concatenation of u8", "concatenation"),
    ("Softmax { axis: 1, log: false } of f16 [33, 1024]", "softmax"),
    ("Norm(Norm { axis: 1, eps: 1e-5, centred: true }) of f32 [130, 1000]", "norm"),
    ("sum of [4099, 40] along [0]", "columns"),
    ("mean of swish of f16 [1, 12544, 32]", "mean_sm90"),
    ("swish of [16, 32, 8] of f16 side by side", "side_by_side"),
    ("softmax of rows of 16", "short_rows"),
    ("extreme of f32, ArgReduce(ArgReduce { largest: false, axis: 1, keep: false, last: false })", "extreme"),
    ("product of f32 [200, 129] and [129, 136]", "product"),
    ("convolution of f16 [2, 14, 13, 24] by [3, 3]", "convolution"),
];

fn text(case: &Case, target: &PtxTarget) -> String {
    let written = kernel(&case.of, target).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    module([&written], target)
}

#[test]
fn every_loop_is_written_and_some_are_as_they_were_kept() {
    let (all, bless) = (all(), std::env::var_os("TREFOIL_BLESS").is_some());
    let mut different = Vec::new();
    for (name, file) in KEPT {
        let case = all.iter().find(|case| case.name == name).unwrap_or_else(|| panic!("no case {name}"));
        let path = Path::new(GOLDEN).join(format!("{file}.ptx"));
        let text = text(case, if file.ends_with("sm90") { &H200 } else { &PtxTarget::ANY });
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
    [("any", PtxTarget::ANY), ("sm90", H200)].iter().for_each(|(name, target)| make_modules(name, target));
}

fn make_modules(name: &str, target: &PtxTarget) {
    let kernels: Vec<_> = all().iter().map(|case| (case.name.clone(), kernel(&case.of, target))).collect();
    let failed: Vec<_> = kernels.iter().filter(|(_, written)| written.is_err()).collect();
    assert!(failed.is_empty() && kernels.len() > 1000, "{} cases, {failed:?}", kernels.len());
    for (name, written) in &kernels {
        let written = written.as_ref().expect("it is none of those that failed");
        let text = &written.text;
        assert_eq!(text.contains("griddepcontrol.wait"), written.waits_itself, "{name}");
        let shared =
            text.split_once(".b8 shared[").and_then(|(_, behind)| behind.split_once(']')?.0.parse::<u32>().ok());
        assert!(shared.unwrap_or(0) <= 48 << 10, "{name} shares {shared:?} bytes");
    }
    let Some(folder) = std::env::var_os("TREFOIL_PTX") else { return };
    fs::create_dir_all(&folder).expect("a folder that can be made");
    for (number, part) in kernels.chunks(100).enumerate() {
        let text = module(part.iter().filter_map(|(_, written)| written.as_ref().ok()), target);
        fs::write(Path::new(&folder).join(format!("{name}_{number}.ptx")), text).expect("the folder is writable");
    }
}
