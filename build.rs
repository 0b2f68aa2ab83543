//! Embeds the kernels: the PTX kept in `kernels/ptx`, or what `TREFOIL_NVCC` compiles now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=TREFOIL_NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    let kernels = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("kernels");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("set by cargo"));
    let modules = match env::var_os("TREFOIL_NVCC").filter(|nvcc| !nvcc.is_empty()) {
        Some(nvcc) => compile(&nvcc, &kernels, &out),
        None => kept(&kernels),
    };
    embed(&modules, &out);
}

/// The PTX in the repository.
fn kept(kernels: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed=kernels/ptx");
    files(&kernels.join("ptx"), "ptx")
}

/// Compiles every kernel with the flags that the kept PTX was compiled with.
fn compile(nvcc: &OsString, kernels: &Path, out: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed=kernels");
    let flags = fs::read_to_string(kernels.join("flags.txt")).expect("kernels/flags.txt");
    let compile = |source: PathBuf| {
        let ptx = out.join(source.file_name().expect("a file")).with_extension("nvcc.ptx");
        let status = Command::new(nvcc).args(flags.split_whitespace()).arg(&source).arg("-o").arg(&ptx).status();
        match status {
            Ok(status) if status.success() => ptx,
            other => panic!("TREFOIL_NVCC ({}) failed on {}: {other:?}", nvcc.display(), source.display()),
        }
    };
    files(kernels, "cu").into_iter().map(compile).collect()
}

/// Writes `kernels.rs`: a list of (stem, PTX with the final NUL that the driver wants).
fn embed(modules: &[PathBuf], out: &Path) {
    assert!(!modules.is_empty(), "no kernels found: is kernels/ptx there?");
    let mut list = String::from("pub(crate) const MODULES: &[(&str, &[u8])] = &[\n");
    for ptx in modules {
        let name = ptx.file_name().and_then(|n| n.to_str()).expect("kernel names are ASCII");
        let stem = name.split('.').next().expect("a stem");
        let mut text = fs::read(ptx).unwrap_or_else(|e| panic!("{}: {e}", ptx.display()));
        text.push(0);
        let copy = out.join(format!("{stem}.ptx0"));
        fs::write(&copy, text).unwrap_or_else(|e| panic!("{}: {e}", copy.display()));
        list += &format!("    ({stem:?}, include_bytes!({copy:?})),\n");
    }
    list += "];\n";
    fs::write(out.join("kernels.rs"), list).expect("OUT_DIR is writable");
}

/// The files of `folder` with `extension`, by name.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .collect();
    files.sort();
    files
}
