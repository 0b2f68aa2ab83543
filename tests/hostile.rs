//! The program with hostile files: too large, endless, or with names that control a terminal.
#![cfg(feature = "cli")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// A time that no command here exceeds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

/// A folder of its own for a test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("trefoil-hostile-{test}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn pipe(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    }

    fn copy(&self, from: &str, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::copy(root().join(from), &path).unwrap();
        path
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

/// Runs the program; one that does not end is killed, and the test fails.
fn finish(mut command: Command) -> Output {
    command.current_dir(root()).env_remove("TREFOIL_WEIGHTS").env_remove("RUST_LOG");
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("{command:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// `trefoil classify` with the smallest model.
fn classify(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.args(["classify", "--device", "cpu", "--model", "weights/convnet28", "--top", "1"]).args(arguments);
    command
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json_lines(output: &Output) -> Vec<Value> {
    said(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect()
}

/// Writes a black square image with one bit for each pixel.
fn write_png(path: &Path, side: u32) {
    let mut encoder = png::Encoder::new(fs::File::create(path).unwrap(), side, side);
    encoder.set_color(png::ColorType::Grayscale);
    encoder.set_depth(png::BitDepth::One);
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(&vec![0; (side * side.div_ceil(8)) as usize]).unwrap();
    writer.finish().unwrap();
}

/// Writes a progressive JPEG with a few bits for each block, whose decoder keeps all coefficients in memory.
fn write_jpeg(path: &Path, side: u16) {
    let mut bytes = vec![0xFF, 0xD8];
    let mut segment = |marker: u8, content: &[u8]| {
        bytes.extend([0xFF, marker]);
        bytes.extend(u16::try_from(content.len() + 2).unwrap().to_be_bytes());
        bytes.extend(content);
    };
    let [high, low] = side.to_be_bytes();
    let one_code = |table: u8| [&[table, 0, 1][..], &[0; 15]].concat(); // of two bits, for the value 0
    segment(0xDB, &[&[0][..], &[1; 64]].concat());
    segment(0xC2, &[8, high, low, high, low, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    segment(0xC4, &one_code(0));
    segment(0xC4, &one_code(0x10));
    segment(0xDA, &[3, 1, 0, 2, 0, 3, 0, 0, 0, 0]);
    let blocks = usize::from(side).div_ceil(8).pow(2) * 3;
    bytes.resize(bytes.len() + (2 * blocks).div_ceil(8), 0);
    bytes.extend([0xFF, 0xD9]);
    fs::write(path, bytes).unwrap();
}

/// Checks that only the second of three photos fails, with an error that contains `part`.
fn expect_only_the_second_to_fail(output: &Output, part: &str) {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let lines = json_lines(output);
    assert_eq!(lines.len(), 3);
    assert!(lines[0]["top"].is_array() && lines[2]["top"].is_array(), "{lines:?}");
    assert!(lines[1]["error"].as_str().is_some_and(|error| error.contains(part)), "{}", lines[1]);
}

#[test]
fn a_photo_that_takes_more_than_the_budget_fails_alone() {
    let folder = Folder::new("budget");
    folder.copy("weights/photos/rocket.jpg", "a.jpg");
    folder.copy("weights/photos/rocket.jpg", "c.jpg");
    write_png(&folder.0.join("b.png"), 6000);
    let mut command = classify(&[folder.path(), "--json"]);
    command.env("TREFOIL_DECODE_MEMORY", "50");
    let what = "a picture of 6000 x 6000 takes 138 MiB to decode, and all photos in decoding share 50 MiB";
    expect_only_the_second_to_fail(&finish(command), what);
}

/// Each photo takes more than half of the budget: they are decoded one after the other, and none fails.
#[test]
fn photos_wait_for_one_another() {
    let folder = Folder::new("wait");
    write_png(&folder.0.join("0.png"), 3000);
    for number in 1..6 {
        fs::hard_link(folder.0.join("0.png"), folder.0.join(format!("{number}.png"))).unwrap();
    }
    let mut command = classify(&[folder.path(), "--json", "--threads", "6"]);
    command.env("TREFOIL_DECODE_MEMORY", "40");
    let output = finish(command);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(json_lines(&output).len(), 6);
}

#[test]
fn an_address_space_that_is_too_small_for_one_photo_keeps_the_answers_of_the_others() {
    let folder = Folder::new("ulimit");
    folder.copy("weights/photos/rocket.jpg", "a.jpg");
    folder.copy("weights/photos/rocket.jpg", "c.jpg");
    write_png(&folder.0.join("b.png"), 16_384);
    let classify = classify(&[folder.path(), "--json", "--threads", "2"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1000000; exec \"$@\"", "sh"]).arg(classify.get_program()).args(classify.get_args());
    expect_only_the_second_to_fail(&finish(command), "a picture of 16384 x 16384 takes");
}

/// The variable cannot promise memory that the process does not get: photos wait or are refused, and none aborts.
#[test]
fn an_address_space_that_is_smaller_than_the_budget_that_is_asked_for_keeps_all_answers() {
    let folder = Folder::new("asked");
    for number in 0..6 {
        write_jpeg(&folder.0.join(format!("{number}.jpg")), 8192);
    }
    let classify = classify(&[folder.path(), "--json", "--threads", "6"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 1600000; exec \"$@\"", "sh"]).arg(classify.get_program()).args(classify.get_args());
    command.env("TREFOIL_DECODE_MEMORY", "100000");
    let output = finish(command);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{output:?}");
    assert_eq!(json_lines(&output).len(), 6);
}

#[test]
fn what_is_no_regular_file_is_refused_at_once() {
    let folder = Folder::new("pipes");
    folder.copy("weights/photos/rocket.jpg", "a.jpg");
    let (pipe, photo) = (folder.pipe("b.jpg"), folder.0.join("a.jpg"));
    let [photo, pipe] = [&photo, &pipe].map(|path| path.to_str().unwrap());
    expect_only_the_second_to_fail(&finish(classify(&[photo, pipe, photo, "--json"])), "expected a file, found a pipe");
    let zero = finish(classify(&[photo, "/dev/zero", photo, "--json"]));
    expect_only_the_second_to_fail(&zero, "expected a file, found a device");
    // In a folder a pipe is no photo, and neither is a link to nowhere without a photo's name: both are skipped.
    std::os::unix::fs::symlink("nowhere", folder.0.join("latest")).unwrap();
    let output = finish(classify(&[folder.path()]));
    assert_eq!((output.status.code(), said(&output.stderr).as_str()), (Some(0), ""));
}

/// Whether a text contains no characters that control a terminal.
fn is_plain(text: &str) -> bool {
    text.chars().all(|character| character == '\n' || !character.is_control())
}

#[test]
fn names_from_files_do_not_steer_the_terminal() {
    let folder = Folder::new("names");
    let photo = folder.copy("weights/photos/rocket.jpg", "a\x1b[2J\nb.jpg");
    let missing = folder.0.join("\x1b]0;gone\x07.jpg");
    folder.copy("weights/convnet28/model.safetensors", "model.safetensors");
    let mut config: Value =
        serde_json::from_slice(&fs::read(root().join("weights/convnet28/config.json")).unwrap()).unwrap();
    let label = format!("\x1b[31mred\u{202e}{}", "x".repeat(20_000));
    config["label_names"] = vec![label.clone(); 10].into();
    config["architecture"] = "trefoil_convnet28.\x1b[2J".into();
    fs::write(folder.0.join("config.json"), config.to_string()).unwrap();
    let paths = [&photo, &missing].map(|path| path.to_str().unwrap());
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
        command.args(["classify", "--device", "cpu", "--model", folder.path(), "--top", "1"]).args(paths).args(more);
        command.env("RUST_LOG", "info");
        finish(command)
    };
    let text = run(&[]);
    assert_eq!((text.status.code(), said(&text.stdout).lines().count()), (Some(2), 2));
    for said in [said(&text.stdout), said(&text.stderr)] {
        assert!(is_plain(&said) && said.len() < 3000 && said.contains(r"\u{1b}"), "{said:?}");
    }
    let lines = json_lines(&run(&["--json"]));
    assert_eq!((lines[0]["path"].as_str(), lines[0]["top"][0]["label"].as_str()), (Some(paths[0]), Some(&label[..])));
    assert_eq!(lines[1]["path"].as_str(), Some(paths[1]));
}

#[test]
fn a_name_of_megabytes_is_cut_in_errors() {
    let folder = Folder::new("long");
    folder.copy("weights/convnet28/config.json", "config.json");
    let name = "\\u001b[2J".to_owned() + &"n".repeat(5 << 20);
    let json = format!(r#"{{"{name}":{{"dtype":"F32","shape":[1],"data_offsets":[0,8]}}}}"#);
    let file = [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), &[0; 8]].concat();
    fs::write(folder.0.join("model.safetensors"), file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command.args(["inspect", folder.path(), "--device", "cpu"]);
    let output = finish(command);
    let message = said(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.len() < 5000 && is_plain(&message), "{} bytes", message.len());
    assert!(message.contains("expected 4 bytes, found 8"), "{message}");
}

#[test]
fn a_model_of_pipes_is_refused_at_once() {
    for name in ["config.json", "model.safetensors"] {
        let folder = Folder::new(name);
        folder.copy("weights/convnet28/config.json", "config.json");
        folder.copy("weights/convnet28/model.safetensors", "model.safetensors");
        fs::remove_file(folder.0.join(name)).unwrap();
        folder.pipe(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
        command.args(["inspect", folder.path(), "--device", "cpu"]);
        let output = finish(command);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output.stderr).starts_with("error: "), "{output:?}");
    }
}
