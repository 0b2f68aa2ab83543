//! Tensors in other files: which places are allowed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use trefoil::Error;
use trefoil::onnx::File;

use super::write::{bytes, external, initializer, int, message, model};
use super::{Folder, refused};

/// Three elements of f32.
const DATA: [u8; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// The elements of the only tensor of a file.
fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let file = File::open(path)?;
    let tensor = &file.model().graph.initializers[0];
    let mut out = vec![0; tensor.bytes()];
    file.read(tensor, &mut out).map(|()| out)
}

fn said(path: &Path) -> String {
    read(path).unwrap_err().to_string()
}

/// A model with three elements in the file at `location`.
fn at(folder: &Folder, location: &str) -> std::path::PathBuf {
    folder.write("model/m.onnx", model(&[external(&[3], &[("location", location)])]))
}

#[test]
fn files_below_the_models_folder_are_read() {
    let folder = Folder::new();
    for location in ["w.data", "./w.data", "weights/deep/w.data", "ü w"] {
        folder.write(&format!("model/{location}"), DATA);
        assert_eq!(read(&at(&folder, location)).unwrap(), DATA, "{location}");
    }
    let part = [("location", "w.data"), ("offset", "4"), ("length", "8"), ("checksum", "00"), ("key", "")];
    let path = folder.write("model/m.onnx", model(&[external(&[2], &part)]));
    assert_eq!(read(&path).unwrap(), DATA[4..]);
}

#[test]
fn a_model_beside_the_process_is_read() {
    let folder = Folder::new();
    folder.write("model/w.data", DATA);
    at(&folder, "w.data");
    let test = "external::a_model_beside_the_process_is_read";
    if std::env::var_os("TREFOIL_ONNX_BESIDE").is_some() {
        assert_eq!(read(Path::new("m.onnx")).unwrap(), DATA);
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([test, "--exact"]).env("TREFOIL_ONNX_BESIDE", "1").current_dir(folder.0.join("model"));
    let output = child.output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
}

#[test]
fn paths_out_of_the_folder_are_refused() {
    let folder = Folder::new();
    folder.write("w.data", DATA);
    folder.write("model/w.data", DATA);
    let absolute = folder.0.join("model/w.data");
    for location in
        ["../w.data", "a/../../w.data", "a/../w.data", "..", ".", "", "/etc/passwd", absolute.to_str().unwrap()]
    {
        let said = said(&at(&folder, location));
        let refused = said.contains("expected a path that begins in the model's folder and has no `..`");
        assert!(refused || location == "." && said.ends_with("found a folder"), "{location}: {said}");
    }
    let said = said(&at(&folder, "none\0.data"));
    assert!(said.starts_with("cannot open the external data "), "{said}");
}

#[test]
fn links_out_of_the_folder_are_refused() {
    let folder = Folder::new();
    folder.write("outside/w.data", DATA);
    folder.write("model-2/w.data", DATA);
    let path = at(&folder, "w.data");
    symlink("../outside/w.data", folder.0.join("model/w.data")).unwrap();
    symlink("../outside", folder.0.join("model/inside")).unwrap();
    symlink("../model-2", folder.0.join("model/2")).unwrap();
    symlink("loop", folder.0.join("model/loop")).unwrap();
    for location in ["w.data", "inside/w.data", "2/w.data"] {
        let said = said(&at(&folder, location));
        let what = format!("external data `{location}` links to ");
        assert!(said.contains(&what) && said.ends_with("w.data, which is not in the model's folder"), "{said}");
    }
    at(&folder, "loop");
    assert!(said(&path).starts_with("cannot open the external data "));
}

/// A cache's layout is read: files named after their content in one folder, and links to them by name in another.
#[test]
fn a_cache_of_links_is_read() {
    let folder = Folder::new();
    folder.write("blobs/11", model(&[external(&[3], &[("location", "w.data")])]));
    folder.write("blobs/22", DATA);
    folder.write("elsewhere/33", DATA);
    let snapshot = folder.0.join("snapshots/main");
    fs::create_dir_all(&snapshot).unwrap();
    symlink("../../blobs/11", snapshot.join("m.onnx")).unwrap();
    symlink("../../blobs/22", snapshot.join("w.data")).unwrap();
    assert_eq!(read(&snapshot.join("m.onnx")).unwrap(), DATA);
    fs::remove_file(snapshot.join("w.data")).unwrap();
    symlink("../../elsewhere/33", snapshot.join("w.data")).unwrap();
    assert!(said(&snapshot.join("m.onnx")).ends_with("elsewhere/33, which is not in the model's folder"));
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let folder = Folder::new();
    let path = at(&folder, "w.data");
    let data = folder.0.join("model/w.data");
    assert!(said(&path).contains("cannot open the external data") && said(&path).contains("os error 2"));
    fs::create_dir(&data).unwrap();
    assert!(said(&path).ends_with("expected a file, found a folder"));
    fs::remove_dir(&data).unwrap();
    assert!(Command::new("mkfifo").arg(&data).status().unwrap().success());
    assert!(said(&path).ends_with("expected a file, found a pipe"));
    fs::remove_file(&data).unwrap();
    // The data is a link to a device, outside of the model's folder.
    symlink("/dev/zero", &data).unwrap();
    assert!(said(&path).ends_with("links to /dev/zero, which is not in the model's folder"));
    assert!(File::open(&data).unwrap_err().to_string().ends_with("expected a file, found a device"));
    assert!(File::open(folder.0.join("model")).unwrap_err().to_string().ends_with("expected a file, found a folder"));
}

#[test]
fn offsets_and_lengths_are_checked() {
    let folder = Folder::new();
    folder.write("w.data", DATA);
    for (dims, offset, length, what) in [
        (&[3][..], "0", "8", "tensor `w`: external data: expected 12 bytes, found a length of 8"),
        (&[3], "4", "12", "expected 12 bytes at offset 4, found a file of 12 bytes; is it cut short?"),
        (&[0], "13", "0", "expected 0 bytes at offset 13, found a file of 12 bytes"),
        (&[1], "18446744073709551615", "4", "expected 4 bytes at offset 18446744073709551615"),
        (&[1], "18446744073709551616", "4", "expected numbers, found offset `18446744073709551616`, length `4`"),
        (&[1], "-4", "4", "expected numbers, found offset `-4`, length `4`"),
        (&[1], "0", "four", "offset `0`, length `four`"),
        (&[1 << 40], "0", "4398046511104", "expected 4398046511104 bytes at offset 0, found a file of 12 bytes"),
    ] {
        let entries = [("location", "w.data"), ("offset", offset), ("length", length)];
        let said = said(&folder.write("m.onnx", model(&[external(dims, &entries)])));
        assert!(said.contains(what) && said.contains("TensorProto: "), "{said}");
    }
    let said = said(&folder.write("m.onnx", model(&[external(&[3], &[("offset", "0")])])));
    assert!(said.ends_with("tensor `w`: external data without a location"), "{said}");
    let both = initializer(1, &[1], &[bytes(9, [0; 4]), int(14, 1)]);
    assert!(refused(model(&[both])).ends_with("tensor `w`: elements in external data and in raw_data"));
    let memory = refused(model(&[external(&[3], &[("location", "w.data")])]));
    assert!(memory.ends_with("of a model in memory; open the model by its path"), "{memory}");
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let folder = Folder::new();
    let data = folder.write("w.data", DATA);
    let file = File::open(folder.write("m.onnx", model(&[external(&[3], &[("location", "w.data")])]))).unwrap();
    fs::File::options().write(true).open(&data).unwrap().set_len(11).unwrap();
    let tensor = &file.model().graph.initializers[0];
    let said = file.read(tensor, &mut [0; 12]).unwrap_err().to_string();
    assert!(said.starts_with("cannot read the external data ") && said.contains("w.data: "), "{said}");
}

/// Number of open files of this process that lie in a folder.
#[cfg(target_os = "linux")]
fn open_in(folder: &Folder) -> usize {
    let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
    files.filter(|file| fs::read_link(file.path()).is_ok_and(|path| path.starts_with(&folder.0))).count()
}

#[cfg(target_os = "linux")]
#[test]
fn each_file_is_opened_once() {
    let folder = Folder::new();
    folder.write("w.data", DATA);
    symlink("w.data", folder.0.join("same.data")).unwrap();
    let named = |name: &str, location: &str| {
        let entry = message(13, &[bytes(1, "location"), bytes(2, location)]);
        message(5, &[bytes(8, name), int(1, 3), int(2, 1), int(14, 1), entry])
    };
    let tensors = [named("a", "w.data"), named("b", "./w.data"), named("c", "same.data"), named("d", "w.data")];
    let file = File::open(folder.write("m.onnx", model(&tensors))).unwrap();
    assert_eq!(open_in(&folder), 2, "the model and its data");
    drop(file);
    assert_eq!(open_in(&folder), 0);
}
