//! Weight files and configurations from outside, most of them broken: errors say what is wrong and where, and nothing
//! panics.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil::graph::GraphBuilder;
use trefoil::model::{Model, Preprocessing, Weights, build};
use trefoil::{Error, Shape};

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trefoil-model-files-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// The content of a safetensors file with this header and data.
fn file(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), data].concat()
}

/// One entry of a header.
fn entry(name: &str, dtype: &str, dims: &[usize], offsets: Range<usize>) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{dims:?},"data_offsets":[{},{}]}}"#, offsets.start, offsets.end)
}

/// A file of f32 tensors.
fn f32_file(tensors: &[(&str, Vec<usize>, Vec<f32>)], metadata: &str) -> Vec<u8> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dims, values) in tensors {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        entries.push(entry(name, "F32", dims, start..data.len()));
    }
    if !metadata.is_empty() {
        entries.insert(0, format!(r#""__metadata__":{metadata}"#));
    }
    file(&format!("{{{}}}", entries.join(",")), &data)
}

/// Every tensor of the architecture `trefoil_convnet28`; its weights repeat a short pattern.
fn convnet28() -> Vec<(&'static str, Vec<usize>, Vec<f32>)> {
    const NAMES: [[&str; 5]; 5] = [
        ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"],
        ["conv2.weight", "bn2.weight", "bn2.bias", "bn2.running_mean", "bn2.running_var"],
        ["conv3.weight", "bn3.weight", "bn3.bias", "bn3.running_mean", "bn3.running_var"],
        ["conv4.weight", "bn4.weight", "bn4.bias", "bn4.running_mean", "bn4.running_var"],
        ["conv5.weight", "bn5.weight", "bn5.bias", "bn5.running_mean", "bn5.running_var"],
    ];
    let mut tensors = Vec::new();
    let mut push = |name, dims: Vec<usize>| {
        let values = (0..dims.iter().product()).map(|i: usize| (i % 7) as f32 / 8.0 + 0.125).collect();
        tensors.push((name, dims, values));
    };
    let channels = [1, 32, 32, 64, 64, 128];
    for (i, [filter, norms @ ..]) in NAMES.into_iter().enumerate() {
        push(filter, vec![channels[i + 1], channels[i], 3, 3]);
        norms.into_iter().for_each(|name| push(name, vec![channels[i + 1]]));
    }
    push("fc.weight", vec![10, 128]);
    push("fc.bias", vec![10]);
    tensors
}

const CONVNET28_CONFIG: &str = r#"{"architecture": "trefoil_convnet28", "num_classes": 10,
    "pretrained_cfg": {"input_size": [1, 28, 28], "mean": [0.286], "std": [0.353], "crop_pct": 1.0}}"#;

#[track_caller]
fn format_error<T: std::fmt::Debug>(result: Result<T, Error>, part: &str) {
    match result {
        Err(Error::Format { what, .. }) if what.contains(part) => {}
        other => panic!("expected a format error with {part:?}, found {other:?}"),
    }
}

#[track_caller]
fn tensor_error<T: std::fmt::Debug>(result: Result<T, Error>, name: &str, expected_part: &str, found_part: &str) {
    match result {
        Err(Error::Tensor { tensor, expected, found, .. })
            if tensor == name && expected.contains(expected_part) && found.contains(found_part) => {}
        other => panic!("expected an error of `{name}`: {expected_part}, {found_part}; found {other:?}"),
    }
}

#[track_caller]
fn io_error<T: std::fmt::Debug>(result: Result<T, Error>, path: &Path) {
    match result {
        Err(Error::Io { path: found, .. }) => assert_eq!(found, path),
        other => panic!("expected an error of {}, found {other:?}", path.display()),
    }
}

#[track_caller]
fn no_file<T: std::fmt::Debug>(result: Result<T, Error>, found: &str) {
    match result {
        Err(Error::Io { source, .. }) if source.to_string() == format!("expected a file, found {found}") => {}
        other => panic!("expected that {found} is no file, found {other:?}"),
    }
}

#[test]
fn files_that_are_not_there() {
    let folder = Folder::new();
    let nothing = folder.0.join("nothing");
    io_error(Weights::open(&nothing), &nothing);
    io_error(Model::open(&nothing), &nothing);
    io_error(Model::open(&folder.0), &folder.0.join("config.json"));
    folder.write("config.json", CONVNET28_CONFIG);
    io_error(Model::open(&folder.0), &folder.0.join("model.safetensors"));
    no_file(Weights::open(&folder.0), "a folder");
    fs::create_dir(folder.0.join("model.safetensors")).unwrap();
    no_file(Model::open(&folder.0), "a folder");
    let pipe = folder.0.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    no_file(Weights::open(&pipe), "a pipe");
    // A file that the kernel generates has no size: nothing is read of it, however long its content is.
    fs::remove_file(folder.0.join("config.json")).unwrap();
    std::os::unix::fs::symlink("/proc/self/maps", folder.0.join("config.json")).unwrap();
    format_error(Model::open(&folder.0), "EOF while parsing");
}

#[test]
fn a_folder_and_a_lone_file_open() {
    let folder = Folder::new();
    folder.write("config.json", CONVNET28_CONFIG);
    let path = folder.write("model.safetensors", f32_file(&convnet28(), ""));
    for path in [&folder.0, &path] {
        let model = Model::open(path).unwrap();
        assert_eq!((model.name(), model.classes(), model.label(9)), ("trefoil_convnet28", 10, "class 9"));
        assert_eq!(model.preprocessing().unwrap().resize, 28);
    }
    // If the weight file contains the configuration, the file beside it is not read.
    folder.write("config.json", "no JSON");
    let text = CONVNET28_CONFIG.replace('\n', " ").replace('"', r#"\""#);
    let flat = r#""architecture": "trefoil_convnet28", "input_size": "[1, 32, 28]", "mean": "[0]", "std": "[1]""#;
    for (metadata, height) in [(format!(r#"{{"config": "{text}"}}"#), 28), (format!("{{{flat}}}"), 32)] {
        let path = folder.write("inside.safetensors", f32_file(&convnet28(), &metadata));
        let model = Model::open(&path).unwrap();
        assert_eq!((model.classes(), model.image_network().unwrap().input), (10, Shape::new(height, 28, 1)));
    }
    format_error(Model::open(&path), "configuration: ");
}

#[test]
fn headers_that_are_cut_short_or_too_long() {
    let folder = Folder::new();
    format_error(Weights::open(folder.write("empty", "")), "expected at least 8 bytes, found 0");
    format_error(Weights::from_bytes(vec![0; 7]), "expected at least 8 bytes, found 7");
    for length in [1, 1 << 32, u64::MAX - 8, u64::MAX] {
        format_error(Weights::from_bytes(length.to_le_bytes().to_vec()), &format!("found {length}"));
    }
    let whole = f32_file(&[("w", vec![2], vec![1.0, 2.0])], "");
    for bytes in 0..whole.len() {
        let result = Weights::open(folder.write("cut", &whole[..bytes]));
        assert!(matches!(result, Err(Error::Format { .. })), "{bytes} of {} bytes: {result:?}", whole.len());
    }
    Weights::from_bytes(whole.clone()).unwrap();
    format_error(Weights::from_bytes([&whole[..], &[0; 3]].concat()), "found 3 more");
    format_error(Weights::from_bytes(whole[..whole.len() - 1].to_vec()), "expected 7 at most");
    // The file is sparse: it needs no disk, and no memory is taken for a header that it could hold but does not.
    let huge = fs::File::create(folder.0.join("huge")).unwrap();
    huge.set_len(1 << 33).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&huge, &(1_u64 << 32).to_le_bytes(), 0).unwrap();
    format_error(Weights::open(folder.0.join("huge")), "expected 100000000 bytes at most, found 4294967296");
}

#[test]
fn headers_that_are_no_tensor_table() {
    let cases = [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "expected an object of tensors"),
        ("\u{0}", "expected value"),
        (r#"{"w":3}"#, "`w`: "),
        (r#"{"w":{"dtype":"F32","shape":[0]}}"#, "data_offsets"),
        (r#"{"w":{"dtype":"F31","shape":[0],"data_offsets":[0,0]}}"#, "`w`: unknown variant `F31`"),
        (r#"{"w":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#, "`w`: invalid value: integer `-1`"),
        (r#"{"w":{"dtype":"F32","shape":[0.5],"data_offsets":[0,0]}}"#, "`w`: "),
        (r#"{"w":{"dtype":"F32","shape":[0],"shape":[0],"data_offsets":[0,0]}}"#, "duplicate field `shape`"),
        (r#"{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,0,0]}}"#, "`w`: "),
        (r#"{"w":{"dtype":"F32","shape":[0],"data_offsets":[0,18446744073709551616]}}"#, "`w`: "),
        (r#"{"__metadata__":{"a":1}}"#, "`__metadata__`: "),
        (r#"{"__metadata__":{"a":"1","a":"2"}}"#, "`a` is there twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#, "`__metadata__` is there twice"),
        ("{} {}", "trailing characters"),
    ];
    for (json, part) in cases {
        format_error(Weights::from_bytes(file(json, &[])), part);
    }
    format_error(Weights::from_bytes([&2_u64.to_le_bytes()[..], &[b'"', 0xff]].concat()), "not a safetensors file");
    format_error(Weights::from_bytes(file(&"[".repeat(1 << 16), &[])), "safetensors header");
    format_error(Weights::from_bytes(file(&format!(r#"{{"w":{}"#, "[".repeat(1 << 16)), &[])), "`w`: ");
    assert_eq!(Weights::from_bytes(file(r#"{"__metadata__":null}  "#, &[])).unwrap().names().count(), 0);
}

#[test]
fn offsets_that_contradict_each_other() {
    let (a, b) = (entry("a", "F32", &[2], 0..8), entry("b", "F32", &[1], 8..12));
    let table = |entries: &[&str]| Weights::from_bytes(file(&format!("{{{}}}", entries.join(",")), &[0; 12]));
    let weights = table(&[&b, &a]).unwrap();
    assert_eq!(weights.names().collect::<Vec<_>>(), ["a", "b"]);
    format_error(table(&[&a, &b, &a]), "`a` is there twice");
    format_error(table(&[&a, &entry("b", "F32", &[1], 4..8)]), "tensor `b` overlaps `a`: expected offset 8, found 4");
    format_error(table(&[&a, &entry("b", "F32", &[2], 0..8)]), "tensor `b` overlaps `a`");
    format_error(table(&[&entry("a", "F32", &[1], 0..4), &b]), "tensor `b` leaves a gap after `a`");
    format_error(table(&[&entry("a", "F32", &[1], 8..12)]), "tensor `a` leaves a gap after the header");
    format_error(table(&[&a, &entry("b", "F32", &[2], 8..16)]), "offsets [8, 16]: expected 12 at most");
    format_error(table(&[&a]), "expected 8 bytes of data, found 4 more");
    let reversed = r#""b":{"dtype":"F32","shape":[1],"data_offsets":[12,8]}"#;
    format_error(table(&[&a, reversed]), "tensor `b`: offsets [12, 8] are reversed");
    format_error(table(&[&a, &entry("b", "F32", &[2], 8..12)]), "`b`: F32 of shape [2]: expected 8 bytes, found 4");
    format_error(table(&[&a, &entry("b", "F4", &[1], 8..12)]), "do not fill whole bytes");
    let most = usize::MAX;
    format_error(table(&[&a, &entry("b", "F32", &[most, 2], 8..12)]), "overflows");
    format_error(table(&[&a, &entry("b", "F32", &[1 << 62], 8..12)]), "overflows");
    format_error(table(&[&a, &entry("b", "U8", &[1 << 60], 8..8 + (1 << 60))]), "cut short");
    format_error(
        table(&[&a, &entry("b", "U8", &[0], most..most)]),
        "tensor `b`: offset 18446744073709551615 overflows",
    );
}

#[test]
fn weights_that_do_not_fit_the_architecture() {
    let input = Shape::new(28, 28, 1);
    let open = |bytes: Vec<u8>| {
        let weights = Weights::from_bytes(bytes)?;
        let graph = build("trefoil_convnet28", Some(10), input, &weights)?;
        Model::new(graph, weights, Preprocessing::new(input), vec![])
    };
    open(f32_file(&convnet28(), "")).unwrap();

    let mut tensors = convnet28();
    tensors.retain(|(name, ..)| *name != "bn3.running_var");
    tensor_error(open(f32_file(&tensors, "")), "bn3.running_var", "[64]", "running_var");

    let mut tensors = convnet28();
    tensors[5].1 = vec![32, 32, 9, 1];
    tensor_error(open(f32_file(&tensors, "")), "conv2.weight", "[32, 32, 3, 3]", "[32, 32, 9, 1]");

    tensors = convnet28();
    tensors.push(("conv6.weight", vec![1], vec![0.0]));
    tensor_error(open(f32_file(&tensors, "")), "conv6.weight", "trefoil_convnet28", "");

    let bytes = f32_file(&convnet28(), "");
    let header_bytes = u64::from_le_bytes(*bytes.first_chunk().unwrap()) as usize;
    let (json, data) = bytes[8..].split_at(header_bytes);
    let json = std::str::from_utf8(json).unwrap();
    let integers = json.replace(r#""fc.weight":{"dtype":"F32""#, r#""fc.weight":{"dtype":"I32""#);
    let replaced = file(&integers, data);
    tensor_error(open(replaced), "fc.weight", "f16, bf16, f32 or f64", "i32");
}

#[test]
fn a_weight_that_is_not_a_number_is_found_when_it_is_read() {
    let folder = Folder::new();
    folder.write("config.json", CONVNET28_CONFIG);
    let mut tensors = convnet28();
    tensors[5].2[77] = f32::NAN;
    folder.write("model.safetensors", f32_file(&tensors, ""));
    let model = Model::open(&folder.0).unwrap();
    let result = model.weights().read_f32("conv2.weight", &[32, 32, 3, 3], &mut vec![0.0; 32 * 32 * 9]);
    tensor_error(result, "conv2.weight", "finite", "NaN at element 77");
}

#[test]
fn a_file_cut_short_after_opening_is_an_error() {
    let folder = Folder::new();
    let path = folder.write("w.safetensors", f32_file(&[("w", vec![4], vec![1.0; 4])], ""));
    let weights = Weights::open(&path).unwrap();
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_len(fs::metadata(&path).unwrap().len() - 1).unwrap();
    io_error(weights.read_f32("w", &[4], &mut [0.0; 4]), &path);
    io_error(weights.read_into("w", &mut [0; 16]), &path);
}

#[test]
fn configurations_from_elsewhere() {
    let folder = Folder::new();
    folder.write("model.safetensors", f32_file(&convnet28(), ""));
    let open = |config: &str| {
        folder.write("config.json", config);
        Model::open(&folder.0)
    };
    for (config, name) in [
        (r#"{"architecture": "coatnet_0_rw_224"}"#, "coatnet_0_rw_224"),
        (
            r#"{"architectures": ["ResNetForImageClassification"], "model_type": "resnet"}"#,
            "ResNetForImageClassification",
        ),
    ] {
        match open(config) {
            Err(Error::UnknownArchitecture { path, found, known }) => {
                assert_eq!((path, found.as_str()), (folder.0.join("config.json"), name));
                assert!(known.contains(&"resnet50".into()) && known.contains(&"trefoil_convnet28".into()));
            }
            other => panic!("{other:?}"),
        }
    }
    format_error(open(r#"{"architecture": 3}"#), "`architecture`: expected a name, found 3");
    format_error(open(r#"{"architecture": "trefoil_convnet28", "num_classes": "10"}"#), "`num_classes`");
    format_error(open("\u{feff}{}"), "configuration: ");
    tensor_error(open(&CONVNET28_CONFIG.replace("10", "11")), "fc.weight", "[11, 128]", "[10, 128]");
    // The size is legal, but too small to be halved twice.
    let small = open(&CONVNET28_CONFIG.replace("28, 28", "28, 1"));
    assert!(matches!(small, Err(Error::Graph { node, .. }) if node == "pool2"));
    // The weights are those of another model than the architecture.
    tensor_error(open(r#"{"architecture": "resnet18"}"#), "conv1.weight", "[64, 3, 7, 7]", "[32, 1, 3, 3]");
}

/// A small file with every kind of entry, for the tests that break it.
fn victim() -> Vec<u8> {
    let entries = [
        r#""__metadata__":{"format":"pt"}"#.to_owned(),
        entry("fc.bias", "F16", &[2], 0..4),
        entry("fc.weight", "F32", &[2, 3], 4..28),
        entry("steps", "I64", &[], 28..36),
        entry("void", "F32", &[0, 4], 36..36),
    ];
    file(&format!("{{{}}}", entries.join(",")), &[0x3c; 36])
}

/// Opens a file and uses it in every way; a file that is accepted must be accepted by the crate `safetensors` too, with
/// the same content.
fn open_and_use(bytes: &[u8]) -> Result<(), Error> {
    let weights = Weights::from_bytes(bytes.to_vec())?;
    let reference = safetensors::SafeTensors::deserialize(bytes).expect("accepted what safetensors refuses");
    assert_eq!(weights.names().count(), reference.len());
    for (name, tensor) in reference.tensors() {
        assert_eq!(weights.dims(&name), Some(tensor.shape()));
        let mut raw = vec![0; tensor.data().len()];
        weights.read_into(&name, &mut raw)?;
        assert_eq!(raw, tensor.data());
        let elems = tensor.shape().iter().product();
        if elems <= raw.len() {
            let _ = weights.read_f32(&name, tensor.shape(), &mut vec![0.0; elems]);
        }
    }
    let mut g = GraphBuilder::new();
    let image = g.image("image", Shape::vector(3));
    let x = g.linear("fc", image, 2);
    g.output("y", x);
    Model::new(g.finish()?, weights, Preprocessing::new(Shape::vector(3)), vec![]).map(|_| ())
}

#[test]
fn every_flipped_bit_of_a_file_gives_an_answer() {
    let bytes = victim();
    open_and_use(&bytes).unwrap();
    let mut refused = 0;
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            refused += usize::from(open_and_use(&flipped).is_err());
        }
    }
    assert!(refused > bytes.len(), "only {refused} were refused");
}

#[test]
fn mutated_headers_give_an_answer() {
    let whole = victim();
    let (data, json) = (whole[whole.len() - 36..].to_vec(), whole[8..whole.len() - 36].to_vec());
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = move |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % n
    };
    let words: [&[u8]; 16] = [
        b"0",
        b"1",
        b"-",
        b".",
        b"e9",
        b"36",
        b"18446744073709551615",
        b"9223372036854775808",
        b"null",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b"\"",
        b"\\u0000",
    ];
    let mut accepted = 0;
    for _ in 0..30_000 {
        let mut json = json.clone();
        for _ in 0..=below(3) {
            let at = below(json.len());
            let end = (at + 1 + below(12)).min(json.len());
            match below(5) {
                0 => json[at] = below(256) as u8,
                1 => drop(json.splice(at..at, words[below(words.len())].iter().copied())),
                2 => drop(json.splice(at..end.min(at + 2), words[below(words.len())].iter().copied())),
                3 => drop(json.drain(at..end)),
                _ => {
                    let piece = json[at..end].to_vec();
                    let to = below(json.len());
                    json.splice(to..to, piece);
                }
            }
            if json.is_empty() {
                json.push(b' ');
            }
        }
        let bytes = [&(json.len() as u64).to_le_bytes()[..], &json, &data].concat();
        accepted += usize::from(open_and_use(&bytes).is_ok());
    }
    assert!(accepted > 100, "only {accepted} were accepted: the mutations are too rough to reach deep");
}
