//! Models of any values: rows from files, the results, and the errors of wrong rows.

use std::fs;
use std::path::PathBuf;

use super::write::{attribute, bytes, initializer, int, message, model, node};
use super::{Folder, expect_code, run, stderr, stdout};

const FLOAT: i64 = 1;
const INT64: i64 = 7;
const FLOAT16: i64 = 10;

/// An input (field 11) or output (field 12) with these dimensions, each a size or a name.
fn port(field: u32, name: &str, dtype: i64, dims: &[&str]) -> Vec<u8> {
    let dim = |dim: &&str| match dim.parse() {
        Ok(size) => message(1, &[int(1, size)]),
        Err(_) => message(1, &[bytes(2, dim)]),
    };
    let shape = message(2, &dims.iter().map(dim).collect::<Vec<_>>());
    message(field, &[bytes(1, name), message(2, &[message(1, &[int(1, dtype), shape])])])
}

/// A node named after its output.
fn op(op_type: &str, inputs: &[&str], output: &str, more: &[Vec<u8>]) -> Vec<u8> {
    let inputs = inputs.iter().map(|name| bytes(1, name)).collect::<Vec<_>>().concat();
    node(op_type, &[inputs, bytes(2, output), bytes(3, output), more.concat()])
}

/// A network: `scores` is `x` [batch, 3] times a matrix, `half` is `scores` in f16; `sums` [batch, sequence] is `ids`
/// doubled.
fn network(more: &[Vec<u8>]) -> Vec<u8> {
    let matrix: Vec<u8> = [1.0_f32, 0.5, -1.0, 2.0, 0.0, 4.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let to_half = attribute("to", &[int(3, FLOAT16), int(20, 2)]);
    let graph = [
        port(11, "x", FLOAT, &["batch", "3"]),
        port(11, "ids", INT64, &["batch", "sequence"]),
        initializer(FLOAT, &[3, 2], &[bytes(9, matrix)]),
        op("MatMul", &["x", "w"], "scores", &[]),
        op("Cast", &["scores"], "half", &[to_half]),
        op("Add", &["ids", "ids"], "sums", &[]),
        port(12, "scores", FLOAT, &["batch", "2"]),
        port(12, "half", FLOAT16, &["batch", "2"]),
        port(12, "sums", INT64, &["batch", "sequence"]),
    ];
    [model(&[&graph[..], more].concat()), message(8, &[int(2, 18)])].concat()
}

/// A .npy file written by hand.
fn npy(descr: &str, shape: &str, elems: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    [&b"\x93NUMPY\x01\0"[..], &(header.len() as u16).to_le_bytes(), header.as_bytes(), elems].concat()
}

fn f32s(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn i64s(numbers: &[i64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The names and contents of the files in an archive without compression.
fn unzip(archive: &[u8]) -> Vec<(String, Vec<u8>)> {
    let number = |at: usize, length: usize| archive[at..][..length].iter().rev().fold(0, |n, &b| n << 8 | b as usize);
    let end = archive.len() - 22;
    assert_eq!(&archive[end..][..4], b"PK\x05\x06");
    let mut entry = number(end + 16, 4);
    let files = (0..number(end + 10, 2)).map(|_| {
        assert_eq!((&archive[entry..][..4], number(entry + 10, 2)), (&b"PK\x01\x02"[..], 0));
        let ([sum, length, name], at) = ([16, 24, 28].map(|field| number(entry + field, 4)), number(entry + 42, 4));
        let name = name & 0xffff;
        assert_eq!((&archive[at..][..4], number(at + 14, 4), number(at + 26, 2)), (&b"PK\x03\x04"[..], sum, name));
        let content = archive[at + 30 + name..][..length].to_vec();
        let mut hash = flate2::Crc::new();
        hash.update(&content);
        assert_eq!(hash.sum() as usize, sum);
        let named = String::from_utf8(archive[entry + 46..][..name].to_vec()).unwrap();
        entry += 46 + name;
        (named, content)
    });
    files.collect()
}

/// The header and the elements of a .npy file.
fn parts(file: &[u8]) -> (String, Vec<u8>) {
    let start = 10 + u16::from_le_bytes([file[8], file[9]]) as usize;
    assert_eq!((&file[..8], start % 64), (&b"\x93NUMPY\x01\0"[..], 0));
    (String::from_utf8(file[10..start].to_vec()).unwrap(), file[start..].to_vec())
}

/// A folder with the network, and the network's path.
struct Files(Folder, PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = Folder::new(test);
        let path = folder.0.join("network.onnx");
        fs::write(&path, network(&[])).unwrap();
        Self(folder, path)
    }

    /// Writes an array to a file; returns `NAME=PATH` for `--input`.
    fn input(&self, name: &str, content: Vec<u8>) -> String {
        let path = self.0.0.join(format!("{name}.npy"));
        fs::write(&path, content).unwrap();
        format!("{name}={}", path.display())
    }

    /// Runs a command with the network on the CPU.
    fn run(&self, command: &str, more: &[&str]) -> std::process::Output {
        run(&[&[command, self.1.to_str().unwrap(), "--device", "cpu"], more].concat())
    }
}

#[test]
fn rows_from_files_give_arrays() {
    let files = Files::new("run-files");
    let x = files.input("x", npy("<f4", "3, 3", &f32s(&[1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 1.0, 1.0, 1.0])));
    let ids = files.input("ids", npy("<i8", "3, 2", &i64s(&[1, 2, 3, 4, 5, -6])));
    let (to, size) = (files.0.0.join("out.npz"), "sequence=2,batch=2");
    let output = files.run("run", &["--size", size, "--input", &x, "--input", &ids, "--output", to.to_str().unwrap()]);
    expect_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("x.npy") && said.contains("rows    3") && !said.contains("random"), "{said}");
    let arrays = unzip(&fs::read(&to).unwrap());
    let halves = [1.0_f32, 0.5, -2.0, 4.0, 0.0, 6.5].map(|number| half::f16::from_f32(number).to_le_bytes()).concat();
    let expected = [
        ("scores", "'<f4'", "(3, 2,)", f32s(&[1.0, 0.5, -2.0, 4.0, 0.0, 6.5])),
        ("half", "'<f2'", "(3, 2,)", halves),
        ("sums", "'<i8'", "(3, 2,)", i64s(&[2, 4, 6, 8, 10, -12])),
    ];
    assert_eq!(arrays.len(), expected.len());
    for ((name, file), (port, descr, shape, elems)) in arrays.iter().zip(expected) {
        let (header, found) = parts(file);
        assert!(*name == format!("{port}.npy") && header.contains(descr) && header.contains(shape), "{name}: {header}");
        assert_eq!(found, elems, "{port}");
    }
    let before = fs::read(&to).unwrap();
    let again = files.run("run", &["--size", size, "--input", &x, "--input", &ids, "--output", to.to_str().unwrap()]);
    expect_code(&again, 0);
    assert_eq!(fs::read(&to).unwrap(), before);
    assert_eq!(fs::read_dir(&files.0.0).unwrap().count(), 4, "something is left beside the files");
}

#[test]
fn what_has_no_file_is_random_and_the_same_again() {
    let files = Files::new("run-random");
    let ids = files.input("ids", npy("<i8", "2,", &i64s(&[7, 8])));
    let table = |more: &[&str]| {
        let output = files.run("run", &[&["--size", "sequence=2"], more].concat());
        expect_code(&output, 0);
        let said = stdout(&output);
        assert!(said.lines().all(|line| line.chars().count() <= 80 || line.starts_with("model")), "{said}");
        said
    };
    let one = table(&["--input", &ids, "--repeat", "3"]);
    assert!(one.contains("`x` of f32[3], random") && one.contains("rows    3 "), "{one}");
    assert!(one.contains("i64[1,2]: 14, 16\n"), "{one}");
    let results =
        |text: &str| text.lines().skip_while(|line| !line.starts_with("output")).collect::<Vec<_>>().join("\n");
    let many = table(&["--rows", "20"]);
    assert!(many.contains("f32[20,2]: ") && many.contains("`ids` of i64[2], random"), "{many}");
    assert_eq!(results(&many), results(&table(&["--rows", "20", "--size", "batch=3"])));
}

#[test]
fn a_file_of_images_has_its_own_ports() {
    let output = run(&["run", "tests/data/onnx/images.onnx", "--device", "cpu", "--rows", "3"]);
    expect_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("`image` of f32[3,20,16], random") && said.contains("f32[3,10]: "), "{said}");
}

#[test]
fn a_network_of_images_runs_on_bytes() {
    let output = run(&["run", "weights/convnet28", "--device", "cpu", "--rows", "3"]);
    expect_code(&output, 0);
    let said = stdout(&output);
    assert!(said.contains("`image` of u8[28,28,1], random") && said.contains("f32[3,10]: "), "{said}");
}

#[test]
fn images_have_the_sizes_that_are_asked_for() {
    let sizes = ["--size", "height=20,width=36,batch=2", "--size", "height=28,width=28"];
    let output = run(&[&["run", "weights/convnet28", "--device", "cpu"], &sizes[..]].concat());
    expect_code(&output, 0);
    let said = stdout(&output);
    let parts =
        ["batch=2,height=20,width=36", "u8[20,36,1]", "batch=1,height=28,width=28", "u8[28,28,1]", "f32[2,10]: "];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    let classify = |size: &str| run(&["classify", "weights/photos/rocket.jpg", "--device", "cpu", "--size", size]);
    let small = classify("height=160,width=128");
    expect_code(&small, 0);
    assert!(stdout(&small).contains("rocket.jpg"), "{}", stdout(&small));
    let wrong = classify("depth=3");
    expect_code(&wrong, 1);
    assert!(stderr(&wrong).contains("`height`, `width`"), "{}", stderr(&wrong));
}

/// In 1 + 2^-9 + 2^-13 bf16 holds the first term, and f16 the first two.
#[test]
fn layers_have_the_precision_that_is_asked_for() {
    let (files, third) = (Files::new("run-precision"), 1.0 + 1.0 / 512.0 + 1.0 / 8192.0);
    let x = files.input("x", npy("<f4", "1, 3", &f32s(&[third, 0.0, 0.0])));
    let to = files.0.0.join("out.npz");
    for (precision, held) in [("auto", third), ("f32", third), ("f16", 1.0 + 1.0 / 512.0), ("bf16", 1.0)] {
        let more = ["--size", "sequence=2", "--input", &x, "--precision", precision, "--output", to.to_str().unwrap()];
        expect_code(&files.run("run", &more), 0);
        let arrays = unzip(&fs::read(&to).unwrap());
        assert_eq!(parts(&arrays[0].1).1, f32s(&[held, held / 2.0]), "{precision}");
    }
}

#[test]
fn wrong_rows_say_what_is_expected() {
    let files = Files::new("run-wrong");
    let x = files.input("x", npy("<f4", "2, 3", &f32s(&[0.0; 6])));
    let ids = files.input("ids", npy("<i8", "3, 2", &i64s(&[0; 6])));
    let nowhere = "x=nowhere.npy".to_owned();
    let wrong = |more: &[&str]| {
        let output = files.run("run", &[&["--size", "sequence=2"], more].concat());
        expect_code(&output, 1);
        assert!(stdout(&output).is_empty(), "{}", stdout(&output));
        stderr(&output)
    };
    let named = wrong(&["--input", &x.replace("x=", "y=")]);
    assert!(named.contains("`x`, `ids`") && named.contains("`y`"), "{named}");
    let rows = wrong(&["--input", &x, "--input", &ids]);
    assert!(rows.contains("ids.npy has 3 rows") && rows.contains("x.npy has 2"), "{rows}");
    assert!(wrong(&["--input", &nowhere]).contains("nowhere.npy"));
    assert!(wrong(&["--input", &x, "--input", &x]).contains("twice"));
    for (descr, shape, bytes) in [("<f8", "3,", 24), ("<f4", "4,", 16), ("<f4", "1, 1, 3", 12), ("<f4", "0, 3", 0)] {
        let said = wrong(&["--input", &files.input("x", npy(descr, shape, &vec![0; bytes]))]);
        assert!(said.contains("x.npy holds") && said.contains("`x` of f32[3]"), "{said}");
    }
    let cut = wrong(&["--input", &files.input("x", npy("<f4", "3,", &[0; 11]))]);
    assert!(cut.contains("x.npy") && cut.contains("cut short"), "{cut}");
    assert!(wrong(&["--output", "/no/such/folder/out.npz"]).contains("/no/such/folder"));
    for (args, named) in
        [(["--size", "batch=0"], "--size"), (["--input", "x.npy"], "--input"), (["--rows", "0"], "--rows")]
    {
        let output = files.run("run", &args);
        expect_code(&output, 64);
        assert!(stderr(&output).contains(named), "{}", stderr(&output));
    }
}

#[test]
fn a_missing_size_is_named() {
    let files = Files::new("run-sizes");
    let said = |more: &[&str]| {
        let output = files.run("run", more);
        expect_code(&output, 1);
        stderr(&output)
    };
    assert!(said(&[]).contains("--size") && said(&[]).contains("`sequence`"), "{}", said(&[]));
    assert!(said(&["--size", "sequence=2,length=3"]).contains("length"));
    let other = run(&["run", "weights/convnet28", "--device", "cpu", "--size", "sequence=2"]);
    expect_code(&other, 1);
    assert!(stderr(&other).contains("`height`, `width`"), "{}", stderr(&other));
}

#[test]
fn an_engine_of_several_sizes_runs_each() {
    let files = Files::new("run-several");
    let sizes = ["--size", "batch=4,sequence=2", "--size", "batch=1,sequence=5"];
    let output = files.run("run", &sizes);
    expect_code(&output, 0);
    let said = stdout(&output);
    let parts = ["size    batch=4,sequence=2", "`ids` of i64[2], random", "rows    4 in batches of up to 4"];
    let more =
        ["size    batch=1,sequence=5", "`ids` of i64[5], random", "rows    1 in batches of up to 1", "i64[1,5]: "];
    for part in parts.into_iter().chain(more) {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }

    // Rows of a file go to the size that has their dimensions.
    let ids = files.input("ids", npy("<i8", "2, 5", &i64s(&[1, 2, 3, 4, 5, -1, -2, -3, -4, -5])));
    let to = files.0.0.join("out.npz");
    let output = files.run("run", &[&sizes[..], &["--input", &ids, "--output", to.to_str().unwrap()]].concat());
    expect_code(&output, 0);
    assert!(!stdout(&output).contains("sequence=2"), "{}", stdout(&output));
    let arrays = unzip(&fs::read(&to).unwrap());
    let (header, sums) = self::parts(&arrays.iter().find(|(name, _)| name == "sums.npy").unwrap().1);
    assert!(header.contains("(2, 5,)"), "{header}");
    assert_eq!(sums, i64s(&[2, 4, 6, 8, 10, -2, -4, -6, -8, -10]));

    let output = ["--output", to.to_str().unwrap()];
    for (command, more, said) in [
        ("run", &output[..], "takes arrays of one size"),
        ("run", &["--check-finite"], "give one size"),
        ("check", &[], "give one size to check at"),
    ] {
        let refused = files.run(command, &[&sizes[..], more].concat());
        expect_code(&refused, 64);
        assert!(stderr(&refused).contains(said), "{}", stderr(&refused));
    }
    let unknown = files.run("run", &[&sizes[..], &["--size", "batch=2,length=3"]].concat());
    expect_code(&unknown, 1);
    assert!(stderr(&unknown).contains("`sequence`"), "{}", stderr(&unknown));

    let plans = files.run("inspect", &sizes);
    expect_code(&plans, 0);
    for rows in ["`ids` of i64[2] ->", "`ids` of i64[5] ->"] {
        assert!(stdout(&plans).contains(rows), "no `{rows}` in:\n{}", stdout(&plans));
    }
}

/// Rows are slices along the batch, which may be the second axis, as in recurrent networks.
#[test]
fn the_batch_may_be_the_second_axis() {
    let files = Files::new("run-second");
    let graph = [
        port(11, "x", FLOAT, &["sequence", "batch_size", "2"]),
        op("Add", &["x", "x"], "twice", &[]),
        op("ReduceSum", &["twice"], "sum", &[attribute("keepdims", &[int(3, 0), int(20, 2)])]),
        op("Mul", &["twice", "twice"], "y", &[]),
        port(12, "y", FLOAT, &["sequence", "batch_size", "2"]),
    ];
    let without_sum = [&graph[..2], &graph[3..]].concat();
    fs::write(&files.1, [model(&without_sum), message(8, &[int(2, 18)])].concat()).unwrap();
    let rows = f32s(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    let x = files.input("x", npy("<f4", "2, 3, 2", &rows)); // two rows of three tokens
    let to = files.0.0.join("out.npz");
    let size = ["--size", "sequence=3,batch=2"];
    let output = files.run("run", &[&size[..], &["--input", &x, "--output", to.to_str().unwrap()]].concat());
    expect_code(&output, 0);
    assert!(stdout(&output).contains("`x` of f32[3,2]") && stdout(&output).contains("up to 2"), "{}", stdout(&output));
    let arrays = unzip(&fs::read(&to).unwrap());
    let (header, found) = parts(&arrays[0].1);
    assert!(header.contains("(2, 3, 2,)"), "{header}");
    let squares = [4.0, 16.0, 36.0, 64.0, 100.0, 144.0];
    assert_eq!(found, f32s(&[squares, squares].concat()));

    // With an output without a batch axis, rows run one at a time and have all dimensions.
    let with_sum = [&graph[..], &[port(12, "sum", FLOAT, &[])]].concat();
    fs::write(&files.1, [model(&with_sum), message(8, &[int(2, 18)])].concat()).unwrap();
    let output = files.run("run", &["--size", "sequence=3"]);
    expect_code(&output, 0);
    assert!(stdout(&output).contains("`x` of f32[3,1,2]"), "{}", stdout(&output));
}

#[test]
fn a_check_needs_another_device_than_the_cpu() {
    let files = Files::new("check-cpu");
    let output = files.run("check", &["--size", "sequence=2", "--rows", "2"]);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("nothing to compare") && stdout(&output).is_empty(), "{}", stderr(&output));
    expect_code(&files.run("check", &["--tolerance", "nan"]), 64);
    let missing = files.run("check", &[]);
    expect_code(&missing, 1);
    assert!(stderr(&missing).contains("`sequence`"), "{}", stderr(&missing));
}

/// Nodes that f16 does not hold are named and written beside the file; everyone who opens it computes them in f32.
#[test]
fn an_audit_lets_the_file_be_in_f32() {
    let files = Files::new("audit");
    let large: Vec<u8> = [3e4_f32; 6].iter().flat_map(|number| number.to_le_bytes()).collect();
    let graph = [
        port(11, "x", FLOAT, &["batch", "3"]),
        initializer(FLOAT, &[3, 2], &[bytes(9, large)]),
        op("MatMul", &["x", "w"], "scores", &[]),
        port(12, "scores", FLOAT, &["batch", "2"]),
    ];
    fs::write(&files.1, [model(&graph), message(8, &[int(2, 18)])].concat()).unwrap();
    let input = files.input("x", npy("<f4", "1, 3", &f32s(&[1.0, 1.0, 1.0])));
    let audit = |more: &[&str]| run(&[&["audit", files.1.to_str().unwrap(), "--input", &input], more].concat());
    let output = audit(&["--save"]);
    expect_code(&output, 0);
    assert!(
        stdout(&output).contains("in f32: `scores` (contract), largest number 90000, error inf"),
        "{}",
        stdout(&output)
    );
    let config = fs::read_to_string(files.0.0.join("config.json")).unwrap();
    assert_eq!(config, "{\n  \"nodes_in_f32\": [\n    \"scores\"\n  ]\n}\n");
    let again = audit(&[]);
    assert!(
        stdout(&again).contains("nodes moved to f32: 0, in f32 before: 1; largest error of the outputs: 0"),
        "{}",
        stdout(&again)
    );
    fs::write(files.0.0.join("config.json"), r#"{"nodes_in_f32": ["scor"]}"#).unwrap();
    let wrong = files.run("run", &[]);
    expect_code(&wrong, 1);
    assert!(stderr(&wrong).contains("`scores`"), "{}", stderr(&wrong));
}

#[test]
fn values_that_are_not_finite_are_named() {
    let files = Files::new("finite");
    let graph = [
        port(11, "x", FLOAT, &["batch", "3"]),
        op("Log", &["x"], "log", &[]),
        op("Add", &["log", "x"], "sum", &[]),
        port(12, "sum", FLOAT, &["batch", "3"]),
    ];
    fs::write(&files.1, [model(&graph), message(8, &[int(2, 18)])].concat()).unwrap();
    for (numbers, code, said) in [
        ([1.0, 2.0, 0.0], 2, "row 0: `log` (map) as map: f32[1, 3], not finite: 1 of 3, the first is -inf at 2"),
        ([1.0, 2.0, 3.0], 0, "rows: 1; values that are not finite: 0"),
    ] {
        let input = files.input("x", npy("<f4", "1, 3", &f32s(&numbers)));
        let output = files.run("run", &["--input", &input, "--check-finite"]);
        expect_code(&output, code);
        assert!(stdout(&output).starts_with(said), "{}", stdout(&output));
    }
}

#[test]
fn inspect_tells_of_any_file_what_it_is_made_of() {
    let files = Files::new("inspect-values");
    let output = files.run("inspect", &["--size", "sequence=5"]);
    expect_code(&output, 0);
    let said = stdout(&output);
    let parts = ["opset 18, 3 nodes", "`ids` of INT64[batch,sequence]", "for --size: batch, sequence", "1 MatMul"];
    for part in parts.into_iter().chain(["as a graph of one row", "1 contract", "plan for", "steps only move elements"])
    {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
    let json = files.run("inspect", &["--size", "sequence=5", "--json"]);
    expect_code(&json, 0);
    assert!(super::json_lines(&json)[0]["steps"].as_array().is_some_and(|steps| !steps.is_empty()));

    let unsized_ = files.run("inspect", &[]);
    expect_code(&unsized_, 1);
    assert!(stdout(&unsized_).contains("1 MatMul") && stderr(&unsized_).contains("`sequence`"), "{unsized_:?}");
}

#[test]
fn inspect_lists_what_is_not_supported_by_operator() {
    let files = Files::new("inspect-unsupported");
    let odd = |output: &str| op("Odd", &["scores"], output, &[]);
    let more: Vec<Vec<u8>> = ["a", "b", "c", "d", "e", "f", "g"].map(odd).into();
    fs::write(&files.1, network(&[&more[..], &[op("Rare", &["x"], "places", &[])]].concat())).unwrap();
    let output = files.run("inspect", &["--size", "sequence=5"]);
    expect_code(&output, 1);
    let said = stdout(&output);
    for part in ["nodes that are not supported: 8", "Odd (version 18): 7\n", "`a` of f32[1,2]: ", "and 2 more", "Rare"]
    {
        assert!(said.contains(part), "no `{part}` in:\n{said}");
    }
    assert!(!said.contains("`f` of"), "{said}");
}
