//! Embeds the kernels: the PTX and cubins kept in `kernels/`, or what `TREFOIL_NVCC` compiles now.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// For kernels that are compiled more than once: the include directive that tells them, the suffix of the further module,
/// and its flag.
const TWINS: [(&str, &str, &str); 3] = [
    ("#include \"element.cuh\"", "_bf16", "-DTREFOIL_BF16"),
    ("#include \"activation.cuh\"", "_silu", "-DTREFOIL_SILU"),
    ("#include \"gelu.cuh\"", "_gelu", "-DTREFOIL_GELU"),
];

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

/// The PTX and the cubins in the repository.
fn kept(kernels: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed=kernels/ptx");
    println!("cargo::rerun-if-changed=kernels/cubin");
    let mut kept = files(&kernels.join("ptx"), "ptx");
    kept.extend(files(&kernels.join("cubin"), "cubin"));
    kept
}

/// Compiles every kernel with the flags that the kept files were compiled with.
fn compile(nvcc: &OsString, kernels: &Path, out: &Path) -> Vec<PathBuf> {
    println!("cargo::rerun-if-changed=kernels");
    let flags = |name: &str| fs::read_to_string(kernels.join(name)).unwrap_or_else(|e| panic!("kernels/{name}: {e}"));
    let (ptx_flags, cubin_flags) = (flags("flags.txt"), flags("flags_sm90.txt"));
    let compile = |source: &Path, suffix: &str, define: Option<&str>| {
        let stem = source.file_stem().and_then(|name| name.to_str()).expect("kernel names are ASCII");
        let flags = if stem.starts_with("sm90_") { &cubin_flags } else { &ptx_flags };
        let image = out.join(format!("{stem}{suffix}.nvcc"));
        let flags = flags.split_whitespace().chain(define);
        let status = Command::new(nvcc).args(flags).arg(source).arg("-o").arg(&image).status();
        match status {
            Ok(status) if status.success() => image,
            other => panic!("TREFOIL_NVCC ({}) failed on {}: {other:?}", nvcc.display(), source.display()),
        }
    };
    let mut images = Vec::new();
    for source in files(kernels, "cu") {
        images.push(compile(&source, "", None));
        // As in `kernels/build.py`: a kernel is compiled once more for each of these includes.
        let text = fs::read_to_string(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
        for (include, suffix, flag) in TWINS {
            if text.contains(include) {
                images.push(compile(&source, suffix, Some(flag)));
            }
        }
    }
    images
}

/// Writes `kernels.rs`, a list of (stem, PTX or cubin). Each image is aligned as a cubin needs it, and ends with the
/// NUL that the driver needs after PTX.
fn embed(modules: &[PathBuf], out: &Path) {
    assert!(!modules.is_empty(), "no kernels found: is kernels/ptx there?");
    let mut list = String::from(
        "#[repr(C, align(64))]\nstruct Aligned<T: ?Sized>(T);\n\npub(crate) const MODULES: &[(&str, &[u8])] = &[\n",
    );
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for image in modules {
        let name = image.file_name().and_then(|n| n.to_str()).expect("kernel names are ASCII");
        let stem = name.split('.').next().expect("a stem");
        let mut bytes = fs::read(image).unwrap_or_else(|e| panic!("{}: {e}", image.display()));
        bytes.push(0);
        // An FNV-1a hash of all images, which a change of any kernel changes.
        hash = bytes.iter().fold(hash, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
        let copy = out.join(format!("{stem}.image"));
        fs::write(&copy, bytes).unwrap_or_else(|e| panic!("{}: {e}", copy.display()));
        list += &format!("    ({stem:?}, &Aligned(*include_bytes!({copy:?})).0),\n");
    }
    list += &format!("];\n\n/// A hash of all of them.\npub(crate) const KERNELS_HASH: u64 = {hash:#x};\n");
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
