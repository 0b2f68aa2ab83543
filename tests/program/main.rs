//! The program as it is run: its answers for photos, its exit codes, and its errors for bad input. It runs on the CPU
//! device, with the models and photos of `weights/`. The file is as long as the list of subcommands.
#![cfg(feature = "cli")]

mod calibrate;
mod embed;
#[allow(dead_code, reason = "other tests compare results")]
#[path = "../support/embedding/mod.rs"]
mod embedding;
mod likeness;
#[allow(dead_code, reason = "other tests draw other numbers")]
#[path = "../support/random.rs"]
mod random;
#[allow(dead_code, reason = "other tests compare results")]
#[path = "../support/tolerance.rs"]
mod tolerance;
mod values;
mod width;
#[allow(dead_code, reason = "the tests of hostile files use all of it")]
#[path = "../onnx/write.rs"]
mod write;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The top three classes with their probabilities, computed in f32 by ONNX Runtime with the original weights, on photos
/// that Pillow decoded and resized.
const EXPECTED: [(&str, [(u64, f64); 3]); 3] = [
    ("chelsea.png", [(282, 0.383), (285, 0.370), (281, 0.161)]),
    ("coffee.png", [(967, 0.957), (968, 0.014), (925, 0.007)]),
    ("rocket.jpg", [(657, 0.381), (744, 0.253), (540, 0.051)]),
];
/// The tolerance for filters in f16, another JPEG decoder, and three digits in the table.
const TOLERANCE: f64 = 0.01;

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.current_dir(root()).env_remove("TREFOIL_WEIGHTS").env_remove("RUST_LOG").env_remove("COLUMNS");
    command
}

fn run(args: &[&str]) -> Output {
    program().args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Checks the exit code; a failure shows the program's output.
fn expect_code(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "stdout:\n{}\nstderr:\n{}", stdout(output), stderr(output));
}

fn json_lines(output: &Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

/// A folder of its own for a test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trefoil-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn copy(&self, photo: &str, name: &str) {
        let target = self.0.join(name);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(root().join("weights/photos").join(photo), target).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn check_top(line: &Value, expected: &[(u64, f64)]) {
    let top = line["top"].as_array().unwrap_or_else(|| panic!("{line}"));
    for (class, &(index, probability)) in top.iter().zip(expected) {
        assert_eq!(class["index"].as_u64(), Some(index), "{line}");
        let got = class["probability"].as_f64().unwrap();
        assert!((got - probability).abs() <= TOLERANCE, "class {index}: got {got}, want {probability}");
        assert!(class["label"].as_str().is_some_and(|label| !label.is_empty()), "{line}");
    }
}

#[test]
fn photos_have_the_known_probabilities() {
    let output = run(&["classify", "weights/photos", "--device", "cpu", "--json", "--top", "3"]);
    expect_code(&output, 0);
    let lines = json_lines(&output);
    assert_eq!(lines.len(), EXPECTED.len());
    for (line, (name, expected)) in lines.iter().zip(&EXPECTED) {
        assert_eq!(Path::new(line["path"].as_str().unwrap()).file_name().unwrap().to_str(), Some(*name));
        assert_eq!(line["top"].as_array().unwrap().len(), 3);
        check_top(line, expected);
    }
}

#[test]
fn answers_come_in_the_order_of_the_inputs_whatever_the_threads() {
    let folder = Folder::new("order");
    for i in 0..23 {
        let (photo, _) = EXPECTED[i % 3];
        let extension = Path::new(photo).extension().unwrap().to_str().unwrap();
        folder.copy(photo, &format!("{}/{i:02}.{extension}", i % 2));
    }
    let mut all = Vec::new();
    for options in [
        ["--threads", "1", "--batch", "1", "--slots", "1"],
        ["--threads", "5", "--batch", "4", "--slots", "2"],
        ["--threads", "3", "--batch", "16", "--slots", "3"],
    ] {
        let mut args = vec!["classify", "--device", "cpu", "--json", "--top", "1", "weights/photos/rocket.jpg"];
        args.push(folder.path());
        args.extend(options);
        let output = run(&args);
        expect_code(&output, 0);
        let lines = json_lines(&output);
        let paths: Vec<String> = lines.iter().map(|line| line["path"].as_str().unwrap().to_owned()).collect();
        assert_eq!(paths.len(), 24);
        assert!(paths[0].ends_with("rocket.jpg"));
        assert!(paths[1..].is_sorted(), "{paths:?}");
        lines.iter().zip(&paths).for_each(|(line, path)| {
            let number: usize = Path::new(path).file_stem().unwrap().to_str().unwrap().parse().unwrap_or(2);
            check_top(line, &EXPECTED[number % 3].1[..1]);
        });
        all.push(paths);
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_broken_photo_is_reported_and_the_rest_is_classified() {
    let folder = Folder::new("broken");
    folder.copy("chelsea.png", "a.png");
    folder.copy("rocket.jpg", "c.jpg");
    let rocket = fs::read(root().join("weights/photos/rocket.jpg")).unwrap();
    fs::write(folder.0.join("b.jpg"), &rocket[..rocket.len() / 2]).unwrap();
    fs::write(folder.0.join("d.png"), "no picture").unwrap();

    let output = run(&["classify", folder.path(), "no/such/file.jpg", "--device", "cpu", "--json", "--top", "1"]);
    expect_code(&output, 2);
    let lines = json_lines(&output);
    assert_eq!(lines.len(), 5);
    check_top(&lines[0], &EXPECTED[0].1[..1]);
    check_top(&lines[2], &EXPECTED[2].1[..1]);
    for (index, name, why) in [(1, "b.jpg", "cut off"), (3, "d.png", "JPEG and PNG"), (4, "file.jpg", "cannot open")] {
        assert!(lines[index]["path"].as_str().unwrap().ends_with(name), "{}", lines[index]);
        let error = lines[index]["error"].as_str().unwrap();
        assert!(error.contains(why) && error.contains(name), "{error}");
        assert!(lines[index].get("top").is_none());
    }

    let output = run(&["classify", folder.path(), "--device", "cpu"]);
    expect_code(&output, 2);
    assert!(stderr(&output).contains("b.jpg") && stderr(&output).contains("cut off"));
    assert!(stdout(&output).contains("a.png") && !stdout(&output).contains("b.jpg"));
}

/// The model of `weights/convnet28` with a tensor of f32 set to one value.
fn spoilt_model(folder: &Folder, tensor: &str, value: f32) {
    let model = root().join("weights/convnet28");
    let mut bytes = fs::read(model.join("model.safetensors")).unwrap();
    let header = 8..8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let entry = serde_json::from_slice::<Value>(&bytes[header.clone()]).unwrap()[tensor].take();
    assert_eq!(entry["dtype"], "F32");
    let [from, to] = [0, 1].map(|end| header.end + entry["data_offsets"][end].as_u64().unwrap() as usize);
    bytes[from..to].chunks_exact_mut(4).for_each(|number| number.copy_from_slice(&value.to_le_bytes()));
    fs::write(folder.0.join("model.safetensors"), bytes).unwrap();
    fs::copy(model.join("config.json"), folder.0.join("config.json")).unwrap();
}

#[test]
fn an_answer_that_is_not_finite_is_an_error_of_its_photo() {
    let folder = Folder::new("overflow");
    spoilt_model(&folder, "bn5.bias", 3e38);
    let classify = ["classify", "weights/photos", "--device", "cpu", "--model", folder.path()];
    for top in ["1", "10"] {
        let output = run(&[&classify[..], &["--json", "--top", top]].concat());
        expect_code(&output, 1);
        let lines = json_lines(&output);
        assert_eq!(lines.len(), EXPECTED.len());
        for (line, (name, _)) in lines.iter().zip(&EXPECTED) {
            let error = line["error"].as_str().unwrap_or_else(|| panic!("{line}"));
            assert!(error.contains(name) && error.contains("is NaN") && error.contains("weights"), "{error}");
        }
    }
    let output = run(&classify);
    expect_code(&output, 1);
    assert!(stdout(&output).is_empty() && stderr(&output).contains("chelsea.png: row "), "{}", stderr(&output));
}

#[test]
fn preprocessing_out_of_bounds_is_told_when_the_model_is_opened() {
    let folder = Folder::new("preprocessing");
    spoilt_model(&folder, "fc.bias", 0.0);
    let config = fs::read_to_string(folder.0.join("config.json")).unwrap();
    assert!(config.contains("0.353024"), "{config}");
    for std in ["1e-38", "58.395e3"] {
        fs::write(folder.0.join("config.json"), config.replace("0.353024", std)).unwrap();
        let output = run(&["classify", "weights/photos", "--device", "cpu", "--model", folder.path()]);
        expect_code(&output, 1);
        let (said, expected) = (stderr(&output), "std`: expected a number from 0.001 to 1000");
        assert!(said.contains("config.json") && said.contains(expected), "{said}");
    }
}

#[test]
fn exit_code_1_where_nothing_could_be_done() {
    let empty = Folder::new("empty");
    let nothing = run(&["classify", empty.path(), "no/such.jpg", "--device", "cpu"]);
    expect_code(&nothing, 1);
    assert!(stderr(&nothing).contains("no photos in this folder") && stderr(&nothing).contains("no/such.jpg"));

    let device = run(&["classify", "weights/photos", "--device", "cuda:99"]);
    expect_code(&device, 1);
    assert!(stderr(&device).starts_with("error: ") && stdout(&device).is_empty(), "{}", stderr(&device));

    let model = run(&["bench", "--model", "no/such/model"]);
    expect_code(&model, 1);
    assert!(stderr(&model).contains("no/such/model"), "{}", stderr(&model));
}

#[test]
fn a_missing_model_says_where_it_was_looked_for() {
    let folder = Folder::new("elsewhere");
    let photo = root().join("weights/photos/coffee.png");
    let nowhere = program().current_dir(&folder.0).args(["classify", photo.to_str().unwrap()]).output().unwrap();
    expect_code(&nowhere, 1);
    for place in ["--model", "TREFOIL_WEIGHTS", "weights"] {
        assert!(stderr(&nowhere).contains(place), "{}", stderr(&nowhere));
    }
    let named = run(&["inspect", "no-such-net"]);
    expect_code(&named, 1);
    assert!(stderr(&named).contains("config.json"), "how to get one: {}", stderr(&named));
    assert!(stderr(&named).contains("no-such-net") && stderr(&named).contains("weights"), "{}", stderr(&named));

    let wrong =
        program().env("TREFOIL_WEIGHTS", folder.path()).args(["inspect", "efficientnet-lite0"]).output().unwrap();
    expect_code(&wrong, 0); // by name, and ./weights has it
    let wrong = program().env("TREFOIL_WEIGHTS", folder.path()).args(["bench"]).output().unwrap();
    expect_code(&wrong, 1);
    assert!(stderr(&wrong).contains("TREFOIL_WEIGHTS") && stderr(&wrong).contains("model.safetensors"));

    for weights in [root().join("weights"), root().join("weights/efficientnet-lite0")] {
        let mut command = program();
        command.current_dir(&folder.0).env("TREFOIL_WEIGHTS", weights);
        let found = command.args(["classify", photo.to_str().unwrap(), "--device", "cpu"]).output().unwrap();
        expect_code(&found, 0);
        assert!(stdout(&found).contains("espresso"));
    }
}

#[test]
fn a_broken_model_is_told_once_and_by_what_is_missing() {
    let folder = Folder::new("model");
    let inspect = || {
        let output = run(&["inspect", folder.path()]);
        expect_code(&output, 1);
        stderr(&output)
    };
    fs::copy(root().join("weights/convnet28/model.safetensors"), folder.0.join("model.safetensors")).unwrap();
    let said = inspect();
    assert!(said.contains("cannot open the model's configuration") && said.contains("config.json"), "{said}");
    assert_eq!(said.matches("os error 2").count(), 1, "{said}");
    fs::copy(root().join("weights/convnet28/config.json"), folder.0.join("config.json")).unwrap();
    for garbage in ["garbage!", "\0\0\0\0\0\0\0\0", "short"] {
        fs::write(folder.0.join("model.safetensors"), garbage).unwrap();
        let said = inspect();
        assert!(said.contains("model.safetensors: not a safetensors file"), "{said}");
    }
}

#[test]
fn wrong_command_lines_are_usage_errors_that_name_the_option() {
    let cases: [(&[&str], &str); 24] = [
        (&["classify", "x.jpg", "--batch", "0"], "--batch"),
        (&["classify", "x.jpg", "--slots", "0"], "--slots"),
        (&["classify", "x.jpg", "--threads", "0"], "--threads"),
        (&["classify", "x.jpg", "--top", "0"], "--top"),
        (&["classify", "x.jpg", "--batch", "many"], "--batch"),
        (&["classify", "x.jpg", "--device", "gpu"], "--device"),
        (&["classify"], "PATH"),
        (&["inspect"], "MODEL"),
        (&["bench", "--batch", "8,0"], "--batch"),
        (&["bench", "--only", "nothing"], "--only"),
        (&["bench", "--seconds", "nan"], "--seconds"),
        (&["bench", "--producers", "0"], "--producers"),
        (&["simulate"], "--compute"),
        (&["simulate", "--compute", "8"], "--compute"),
        (&["simulate", "--compute", "8=1,4=1"], "--compute"),
        (&["simulate", "--compute", "8=1", "--rows", "9"], "--rows"),
        (&["simulate", "--compute", "8=1", "--results", "4"], "--results"),
        (&["simulate", "--compute", "8=1", "--h2d", "0"], "--h2d"),
        (&["simulate", "--compute", "8=1", "--arrival", "poisson"], "--rate"),
        (&["trace", "--batches", "0"], "--batches"),
        (&["trace", "--batches", "5", "--seconds", "1"], "--seconds"),
        (&["trace", "--slots", "0"], "--slots"),
        (&["simulate", "--compute", "8=1,4=1"], "Usage: trefoil simulate"),
        (&["fly"], "fly"),
    ];
    for (args, named) in cases {
        let output = run(args);
        expect_code(&output, 64);
        assert!(stderr(&output).contains(named) && stdout(&output).is_empty(), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn help_and_version_are_no_errors() {
    let commands =
        ["", "classify", "run", "check", "audit", "inspect", "bench", "simulate", "trace", "doctor", "completions"];
    let benchmarks = ["overlap", "forum", "clients", "server"].map(|name| format!("bench {name}"));
    for command in commands.into_iter().chain(benchmarks.iter().map(String::as_str)) {
        let output = run(&command.split_whitespace().chain(["--help"]).collect::<Vec<_>>());
        expect_code(&output, 0);
        assert!(stdout(&output).contains("Example"), "{}", stdout(&output));
    }
    let version = run(&["--version"]);
    expect_code(&version, 0);
    assert_eq!(stdout(&version).trim(), format!("trefoil {}", env!("CARGO_PKG_VERSION")));
}

#[cfg(target_os = "linux")]
#[test]
fn help_that_cannot_be_printed_is_an_error() {
    for question in ["--help", "--version"] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().arg(question).stdout(full).output().unwrap();
        expect_code(&output, 1);
        assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
    }
}

#[test]
fn nothing_but_results_is_written_where_there_is_no_terminal() {
    let output = run(&["classify", "weights/photos/coffee.png", "--device", "cpu", "--top", "1"]);
    expect_code(&output, 0);
    assert_eq!(stderr(&output), "");
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0], "weights/photos/coffee.png");
    assert!(lines[1].contains("967 espresso") && lines[1].contains(" %"), "{lines:?}");
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let mut args = vec!["classify", "--device", "cpu", "--threads", "2"];
    args.extend(std::iter::repeat_n("weights/photos/coffee.png", 40));
    let mut child = program().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{said}");
    assert_eq!(said, "");
}

#[test]
fn inspect_prints_graph_and_plan() {
    let output = run(&["inspect", "weights/efficientnet-lite0", "--device", "cpu"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    for part in ["conv_stem", "conv2d 3x3 /2", "112x112x32", "classifier", "million parameters", "plan for", "arena"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
}

#[test]
fn inspect_plans_for_a_gpu_that_is_not_there() {
    let inspect = ["inspect", "weights/efficientnet-lite0", "--batch", "32", "--for"];
    let output = run(&[&inspect[..], &["h200", "--candidates"]].concat());
    expect_code(&output, 0);
    let text = stdout(&output);
    for part in
        ["plan for NVIDIA H200", "rooflines at 780 TFLOP/s", "(measured)", "sum of times - us", "conv_head: sm90"]
    {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    for gpu in ["a100", "h100", "h100-pcie", "h200", "b200", "l4", "l40s", "rtx4090", "rtx5090"] {
        let output = run(&[&inspect[..], &[gpu, "--json"]].concat());
        expect_code(&output, 0);
        let plan = &json_lines(&output)[0];
        let steps = plan["steps"].as_array().unwrap();
        let rooflines: f64 = steps.iter().map(|step| step["roofline"]["us"].as_f64().unwrap()).sum();
        assert!((plan["sum_of_rooflines_us"].as_f64().unwrap() / rooflines - 1.0).abs() < 1e-9, "{plan}");
        assert_eq!((&plan["batch"], plan["sum_of_times_us"].is_null()), (&32.into(), true));
        for step in steps {
            assert!(step["time_us"].is_null() && step["roofline"]["us"].as_f64().unwrap() > 2.5, "{step}");
            assert!(step["predicted_us"].as_f64().is_none_or(|predicted| predicted > 2.5), "{step}");
            let candidates = step["candidates"].as_array().unwrap();
            let first = candidates.first().map_or(&step["kernel"], |first| &first["kernel"]);
            assert!(first == &step["kernel"] && candidates.len() <= 4, "{step}");
            assert_eq!(candidates.is_empty(), step["predicted_us"].is_null(), "{step}");
        }
    }
    let both = run(&[&inspect[..], &["h200", "--device", "cpu"]].concat());
    expect_code(&both, 64);
}

#[test]
fn an_architecture_without_weights_is_planned_for() {
    for name in ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "googlenet", "efficientnet-lite4"] {
        let output = run(&["inspect", name, "--for", "h100", "--batch", "8", "--json"]);
        expect_code(&output, 0);
        let plan = &json_lines(&output)[0];
        assert!(plan["steps"].as_array().unwrap().len() > 10 && plan["sum_of_rooflines_us"].is_number(), "{plan}");
    }
    let output = run(&["inspect", "resnet50", "--for", "l4", "--candidates"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    let said = "resnet50, the architecture: there is no model of that name here, and a plan needs no weights";
    for part in
        [said, "input 224x224x3, 1000 classes", "25.61 million parameters", "plan for NVIDIA L4 (sm_89, 58 SMs)"]
    {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    for (args, part) in [(["--size", "tokens=2"], "has one size"), (["--precision", "f32"], "is planned in f16")] {
        let wrong = run(&[&["inspect", "resnet50", "--for", "l4"][..], &args].concat());
        expect_code(&wrong, 64);
        assert!(stderr(&wrong).contains(part), "{}", stderr(&wrong));
    }
    // Architectures are planned neither for a device nor where a model is found, even a broken one.
    let missing = run(&["inspect", "resnet50", "--device", "cpu"]);
    expect_code(&missing, 1);
    assert!(stderr(&missing).contains("no model `resnet50`"), "{}", stderr(&missing));
    let unknown = run(&["inspect", "resnet49", "--for", "h200"]);
    expect_code(&unknown, 1);
    assert!(stderr(&unknown).contains("no model `resnet49`"), "{}", stderr(&unknown));
    let found = run(&["inspect", "efficientnet-lite0", "--for", "h200"]);
    expect_code(&found, 0);
    assert!(stdout(&found).contains("tf_efficientnet_lite0 from "), "{}", stdout(&found));
}

#[test]
fn there_is_nothing_to_tune_on_the_cpu() {
    let inspect = run(&[
        "bench",
        "--model",
        "weights/convnet28",
        "--device",
        "cpu",
        "--batch",
        "1",
        "--seconds",
        "0.05",
        "--tune",
        "full",
    ]);
    expect_code(&inspect, 0);
    assert!(stderr(&inspect).contains("cpu: nothing to tune"), "{}", stderr(&inspect));
    let steps = run(&["inspect", "weights/convnet28", "--device", "cpu", "--json"]);
    expect_code(&steps, 0);
    let plan = &json_lines(&steps)[0];
    assert!(
        plan["rates"].is_null()
            && plan["graph_us"].is_null()
            && plan["steps"][0]["candidates"] == serde_json::json!([])
    );
}

#[test]
fn a_cold_start_is_told_phase_by_phase() {
    let cold = ["bench", "cold", "--model", "weights/convnet28", "--device", "cpu", "--runs", "2"];
    let output = run(&[&cold[..], &["--json"]].concat());
    expect_code(&output, 0);
    let starts = json_lines(&output)[0].as_array().unwrap().clone();
    assert_eq!(starts.len(), 2);
    for start in &starts {
        let phases = start["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|phase| phase[0].as_str().unwrap()).collect();
        assert!(
            ["process", "plans", "weights", "ring", "first batch"].iter().all(|name| names.contains(name)),
            "{names:?}"
        );
        let sum: f64 = phases.iter().map(|phase| phase[1].as_f64().unwrap()).sum();
        let seconds = start["seconds"].as_f64().unwrap();
        assert!(
            phases.iter().all(|phase| phase[1].as_f64().unwrap() >= 0.0) && (sum / seconds - 1.0).abs() < 1e-6,
            "{start}"
        );
    }
    let table = run(&cold);
    expect_code(&table, 0);
    assert!(stdout(&table).contains("above driver and context"), "{}", stdout(&table));
    let failing = run(&["bench", "cold", "--model", "weights/photos", "--device", "cpu"]);
    expect_code(&failing, 1);
    assert!(stderr(&failing).contains("a start failed"), "{}", stderr(&failing));
}

#[test]
fn bench_measures_every_stage() {
    let bench = ["bench", "--model", "weights/convnet28", "--device", "cpu", "--batch", "1,4", "--seconds", "0.05"];
    let output = run(&[&bench[..], &["--json"]].concat());
    expect_code(&output, 0);
    let lines = json_lines(&output);
    let stages: Vec<&str> = lines.iter().map(|line| line["stage"].as_str().unwrap()).collect();
    assert_eq!(stages[..4], ["upload", "compute", "download", "end-to-end"]);
    assert_eq!(stages[..4], stages[4..]);
    for line in &lines {
        let number = |key: &str| line[key].as_f64().unwrap_or_else(|| panic!("{key}: {line}"));
        assert!(number("seconds_median") > 0.0 && number("images_per_second") > 0.0, "{line}");
        assert!(number("seconds_p10") <= number("seconds_median"), "{line}");
        assert!(number("seconds_median") <= number("seconds_p90"), "{line}");
        assert_eq!(
            line["gigabytes_per_second"].is_number(),
            ["upload", "download"].contains(&line["stage"].as_str().unwrap())
        );
        assert!(line["includes"].is_string());
    }
    let only = run(&[&bench[..], &["--only", "end-to-end", "--producers", "3", "--json"]].concat());
    expect_code(&only, 0);
    assert_eq!(json_lines(&only).len(), 2);
    assert!(json_lines(&only).iter().all(|line| line["stage"] == "end-to-end" && line["producers"] == 3));
    let table = run(&bench);
    expect_code(&table, 0);
    assert!(stdout(&table).contains("images/s") && stdout(&table).contains("compute"));
}

#[test]
fn simulate_predicts_and_says_what_bounds_it() {
    let simulate = ["simulate", "--compute", "32=1300,256=9200", "--producers", "8", "--batches", "200"];
    let output = run(&[&simulate[..], &["--json"]].concat());
    expect_code(&output, 0);
    let report = &json_lines(&output)[0];
    let number =
        |pointer: &str| report.pointer(pointer).and_then(|n| n.as_f64()).unwrap_or_else(|| panic!("{pointer}"));
    assert!((number("/images_per_second") / (256.0 / 9.2e-3) - 1.0).abs() < 1e-6, "{report}");
    assert_eq!(report["bound"]["stage"], "compute");
    assert!(number("/stages/2/utilisation") < 0.01 && number("/stages/1/utilisation") > 0.99, "{report}");
    assert!(number("/latency_seconds/p50") <= number("/latency_seconds/max"), "{report}");
    let again = run(&[&simulate[..], &["--json"]].concat());
    assert_eq!(stdout(&again), stdout(&output));
    let load = ["--rows", "32", "--arrival", "poisson", "--rate", "5000", "--seed", "7"];
    let table = run(&[&simulate[..], &load].concat());
    expect_code(&table, 0);
    for part in ["upload", "compute", "download", "images/s", "p99", "bound"] {
        assert!(stdout(&table).contains(part), "no `{part}` in:\n{}", stdout(&table));
    }
    assert_eq!(stderr(&table), "");
}

#[test]
fn trace_writes_a_timeline_and_reports_the_overlap() {
    let folder = Folder::new("trace");
    let file = folder.0.join("timeline.json");
    let trace = ["trace", "--model", "weights/convnet28", "--device", "cpu", "--batch", "4", "--producers", "2"];
    let out = ["--out", file.to_str().unwrap()];
    let text = run(&[&trace[..], &out, &["--batches", "25"]].concat());
    expect_code(&text, 0);
    for part in ["cpu: 25 batches, 100 rows", "copy-in", "middle", "copy time under compute", "perfetto"] {
        assert!(stdout(&text).contains(part), "no `{part}` in:\n{}", stdout(&text));
    }
    assert_eq!(stderr(&text), "");
    let timeline: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let events = timeline["traceEvents"].as_array().unwrap();
    let computed = events.iter().filter(|event| event["cat"] == "compute" && event["pid"] == 1);
    assert_eq!(computed.count(), 25);
    assert!(events.iter().any(|event| event["args"]["name"] == "trefoil-producer-1"));

    let json = run(&[&trace[..], &out, &["--seconds", "0.1", "--json"]].concat());
    expect_code(&json, 0);
    let report = &json_lines(&json)[0];
    assert!(report["batches"].as_u64().is_some_and(|batches| batches > 0), "{report}");
    assert!(report["copy_under_compute_middle"].is_number() && report["latency"]["p99"].is_number(), "{report}");
    assert_eq!(report["stages"][3]["stage"], "compute");

    let page = folder.0.join("timeline.html");
    let html = run(&[&trace[..], &["--html", page.to_str().unwrap(), "--batches", "5", "--json"]].concat());
    expect_code(&html, 0);
    let report = &json_lines(&html)[0];
    assert!(report["out"].is_null() && report["html"] == page.to_str().unwrap(), "{report}");
    assert!(fs::read_to_string(&page).unwrap().contains("<canvas"));

    let nowhere = run(&[&trace[..], &["--batches", "2", "--out", "/nonexistent/trace.json"]].concat());
    expect_code(&nowhere, 1);
    assert!(stderr(&nowhere).contains("/nonexistent/trace.json"), "{}", stderr(&nowhere));
}

const TRACE: [&str; 9] =
    ["trace", "--device", "cpu", "--batch", "4", "--producers", "2", "--model", "weights/convnet28"];

#[cfg(unix)]
#[test]
fn a_report_takes_the_place_of_a_file_as_a_whole() {
    let folder = Folder::new("replaced");
    let [page, link] = ["page.html", "link.html"].map(|name| folder.0.join(name));
    fs::write(&page, "good").unwrap();
    fs::hard_link(&page, &link).unwrap();
    let (mut child, _) = start(&[&TRACE[..], &["--seconds", "600", "--html", page.to_str().unwrap()]].concat());
    std::thread::sleep(std::time::Duration::from_millis(300));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_to_string(&page).unwrap(), "good", "of a run that was killed");
    expect_code(&run(&[&TRACE[..], &["--batches", "3", "--html", page.to_str().unwrap()]].concat()), 0);
    assert!(fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    assert_eq!(fs::read_to_string(&link).unwrap(), "good", "the file was written over, which a kill may cut short");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 2, "something is left beside the report");
}

#[test]
fn a_run_that_fails_leaves_no_report() {
    let folder = Folder::new("no-report");
    spoilt_model(&folder, "bn5.bias", f32::NAN);
    let page = folder.0.join("page.html");
    let output = run(&[
        "trace",
        "--device",
        "cpu",
        "--model",
        folder.path(),
        "--batches",
        "3",
        "--html",
        page.to_str().unwrap(),
    ]);
    expect_code(&output, 1);
    assert!(stderr(&output).contains("bn5.bias") && !page.exists(), "{}", stderr(&output));
}

#[cfg(target_os = "linux")]
#[test]
fn figures_are_printed_before_files_are_written() {
    let full = run(&[&TRACE[..], &["--batches", "3", "--html", "/dev/full"]].concat());
    expect_code(&full, 1);
    assert!(stdout(&full).contains("copy time under compute"), "{}", stdout(&full));
    assert!(stderr(&full).contains("cannot write /dev/full: No space left"), "{}", stderr(&full));
    let printed = run(&[&TRACE[..], &["--batches", "3", "--html", "/dev/stdout"]].concat());
    expect_code(&printed, 0);
    assert!(stdout(&printed).contains("copy time under compute") && stdout(&printed).contains("<canvas"));
}

#[test]
fn two_reports_are_not_written_to_one_file() {
    let folder = Folder::new("one-file");
    let [file, again] = ["x", "./x"].map(|name| folder.0.join(name));
    let (file, again) = (file.to_str().unwrap(), again.to_str().unwrap());
    for (command, first, second) in [(&["trace"][..], "--out", "--html"), (&["bench", "overlap"], "--record", "--plot")]
    {
        let output = run(&[command, &["--device", "cpu", first, file, second, again]].concat());
        expect_code(&output, 64);
        let said = stderr(&output);
        assert!(said.contains(first) && said.contains(second) && stdout(&output).is_empty(), "{said}");
        assert!(said.contains(&format!("Usage: trefoil {}", command.join(" "))), "{said}");
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
}

/// Starts the program and waits until it has opened its model; also returns the thread that reads its errors.
#[cfg(unix)]
fn start(args: &[&str]) -> (std::process::Child, std::thread::JoinHandle<Vec<u8>>) {
    use std::io::{BufRead, BufReader};
    let mut command = program();
    command.args(args).env("RUST_LOG", "info").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("info: "), "{line}");
    let read = move || {
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).unwrap();
        rest
    };
    (child, std::thread::spawn(read)) // so that the program never waits for a reader
}

/// Sends Ctrl-C to the program.
#[cfg(unix)]
fn interrupt(child: &std::process::Child) {
    // SAFETY: a number of a process that was not waited for, so that nobody else has it.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
}

/// Runs the program and interrupts it `after_ms` milliseconds after it has opened its model.
#[cfg(unix)]
fn interrupted(args: &[&str], after_ms: u64) -> Output {
    let (child, said) = start(args);
    std::thread::sleep(std::time::Duration::from_millis(after_ms));
    interrupt(&child);
    let mut output = child.wait_with_output().unwrap();
    output.stderr = said.join().unwrap();
    output
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_reports_what_was_done() {
    let folder = Folder::new("interrupted");
    let file = folder.0.join("timeline.html");
    let trace = ["trace", "--model", "weights/convnet28", "--device", "cpu", "--batch", "4", "--seconds", "600"];
    let output = interrupted(&[&trace[..], &["--html", file.to_str().unwrap()]].concat(), 1000);
    expect_code(&output, 130);
    assert!(stdout(&output).contains("copy time under compute"), "{}", stdout(&output));
    assert!(file.is_file());

    let photos = folder.0.join("photos");
    fs::create_dir(&photos).unwrap();
    for number in 0..2000 {
        std::os::unix::fs::symlink(root().join("weights/photos/coffee.png"), photos.join(format!("{number}.png")))
            .unwrap();
    }
    let classify = ["classify", photos.to_str().unwrap(), "--device", "cpu", "--top", "1", "--json", "--batch", "2"];
    let output = interrupted(&classify, 1000);
    expect_code(&output, 130);
    let answers = json_lines(&output);
    assert!((1..2000).contains(&answers.len()) && answers.iter().all(|line| line["top"][0]["index"] == 967));
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_that_has_nothing_says_so() {
    let of = ["--device", "cpu", "--model", "weights/convnet28", "--seconds", "600"];
    let output = interrupted(&[&["bench", "forum"], &of[..]].concat(), 700);
    expect_code(&output, 130);
    assert_eq!(stdout(&output), "");

    let output = interrupted(&[&["bench", "--batch", "4"], &of[..]].concat(), 700);
    expect_code(&output, 130);
    assert!(stderr(&output).contains("interrupted before a stage was over: nothing was measured"), "{output:?}");
    let text = stdout(&output);
    assert!(text.starts_with("device ") && !text.contains("images/s") && !text.contains("upload"), "{text}");
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_quits() {
    let (mut child, _) = start(&["bench", "--device", "cpu", "--batch", "2048", "--seconds", "600"]);
    std::thread::sleep(std::time::Duration::from_millis(500));
    interrupt(&child);
    std::thread::sleep(std::time::Duration::from_millis(200));
    let asked = std::time::Instant::now();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(asked.elapsed() < std::time::Duration::from_secs(5));
}

#[test]
fn the_doctor_says_what_is_there_and_what_is_not() {
    let output = run(&["doctor", "--device", "cpu"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("processor") && text.contains("memory") && text.contains("tf_efficientnet_lite0"), "{text}");
    assert!(!text.contains('\x1b'), "colours in a pipe: {text}");
    let findings = &json_lines(&run(&["doctor", "--device", "cpu", "--json"]))[0];
    let checks = findings["checks"].as_array().unwrap();
    assert!(findings["ok"] == true && checks.len() >= 4, "{findings}");
    let output = run(&["doctor", "--device", "cpu", "--model", "no-such-net"]);
    expect_code(&output, 1);
    assert!(stdout(&output).contains("bad   weights") && stdout(&output).contains(", 1 bad"), "{output:?}");
    // A GPU that is asked for and not there is bad, and there is advice.
    let output = run(&["doctor", "--device", "cuda:77", "--json"]);
    expect_code(&output, 1);
    let findings = &json_lines(&output)[0];
    let gpu = findings["checks"].as_array().unwrap().iter().find(|check| check["check"] == "GPU").unwrap();
    assert!(findings["ok"] == false && gpu["verdict"] == "bad" && gpu["advice"].is_string(), "{gpu}");
}

#[test]
fn shells_get_completions() {
    for (shell, part) in
        [("bash", "complete -F _trefoil"), ("zsh", "#compdef trefoil"), ("fish", "complete -c trefoil")]
    {
        let output = run(&["completions", shell]);
        expect_code(&output, 0);
        let script = stdout(&output);
        assert!(script.contains(part) && script.contains("classify") && script.contains("max-delay"), "{shell}");
    }
    expect_code(&run(&["completions", "cmd"]), 64);
}

#[test]
fn the_demonstration_shows_device_model_photos_and_throughput() {
    let start = std::time::Instant::now();
    let output = run(&["--device", "cpu"]);
    expect_code(&output, 0);
    let text = stdout(&output);
    for part in ["device", "cpu", "efficientnet", "tiger cat", "espresso", "missile", "images/s"] {
        assert!(text.contains(part), "no `{part}` in:\n{text}");
    }
    assert_eq!(stderr(&output), "");
    println!("the demonstration took {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn a_home_folder_is_not_needed() {
    for home in [None, Some("/dev/null"), Some("/proc/nope")] {
        let mut command = program();
        for name in ["HOME", "XDG_CACHE_HOME", "TREFOIL_CACHE"] {
            command.env_remove(name);
        }
        let output = command.args(["--device", "cpu"]).envs(home.map(|home| ("HOME", home))).output().unwrap();
        expect_code(&output, 0);
        assert!(stdout(&output).contains("images/s"), "{home:?}: {}", stdout(&output));
        assert_eq!(stderr(&output), "", "{home:?}");
    }
}
