//! The width of output for people: that of the terminal, or of COLUMNS; without both, lines stay whole.

use super::{Folder, expect_code, program, stdout};

const WIDTH: usize = 80;

/// Commands with the shortest possible work; they print every table that needs no GPU.
const COMMANDS: [&str; 18] = [
    "--help",
    "inspect weights/efficientnet-lite0 --device cpu",
    "inspect weights/efficientnet-lite0 --for h200 --candidates",
    "inspect resnet50 --for l4",
    "inspect tests/data/onnx/values.onnx --size n=3 --device cpu",
    "inspect tests/data/onnx/text.onnx --size width=64 --device cpu",
    "run tests/data/onnx/values.onnx --size n=3 --device cpu",
    "audit tests/data/onnx/values.onnx --size n=3",
    "simulate --compute 1=20,32=320 --batches 50 --batcher",
    "doctor --device cpu",
    "bench --model weights/convnet28 --device cpu --batch 1 --seconds 0.05",
    "bench cold --model weights/convnet28 --device cpu --runs 1",
    "bench overlap --device cpu --batch 2 --slots 1,2 --repetitions 1 --batches 2",
    "bench forum --model weights/convnet28 --device cpu --batch 2 --threads 2 --rounds 1 --seconds 0.1",
    "bench clients --model weights/convnet28 --device cpu --threads 1,2 --batch 2 --seconds 0.1",
    "bench server --model weights/convnet28 --device cpu --batch 2 --seconds 0.2 --steps 2",
    "bench soak --model weights/convnet28 --device cpu --threads 2 --batch 2 --seconds 0.4 --periods 4",
    "bench overload --model weights/convnet28 --device cpu --clients 4 --batch 2 --seconds 2",
];

fn printed(command: &str, columns: Option<usize>) -> String {
    let mut program = program();
    program.args(command.split(' ')).env("TREFOIL_COMMIT", "abc").env_remove("COLUMNS");
    if let Some(columns) = columns {
        program.env("COLUMNS", columns.to_string());
    }
    let output = program.output().unwrap();
    // A soak may report growth, and an overload low goodput, if the machine does other work.
    let code = if ["soak", "overload"].iter().any(|name| command.contains(name)) {
        output.status.code().unwrap_or(1) & 2
    } else {
        0
    };
    expect_code(&output, code);
    stdout(&output)
}

fn widest(text: &str) -> &str {
    text.lines().max_by_key(|line| line.chars().count()).unwrap_or_default()
}

#[test]
fn what_is_printed_keeps_to_the_width_of_the_terminal() {
    for command in COMMANDS {
        let text = printed(command, Some(WIDTH));
        let line = widest(&text);
        assert!(line.chars().count() <= WIDTH, "trefoil {command}\n{line}\nin\n{text}");
    }
    let folder = Folder::new("width");
    let trace = format!("trace --model weights/convnet28 --device cpu --seconds 0.1 --out {}/t.json", folder.path());
    let text = printed(&trace, Some(WIDTH));
    let lines = text.lines().filter(|line| !line.contains(folder.path()));
    lines.for_each(|line| assert!(line.chars().count() <= WIDTH, "{line}\nin\n{text}"));
}

/// Output for scripts has whole names, and each figure on the line of its row.
#[test]
fn what_is_printed_elsewhere_is_whole() {
    let inspect = "inspect weights/efficientnet-lite0 --for h200";
    let (whole, wide) = (printed(inspect, None), printed(inspect, Some(1000)));
    assert!(whole == wide && !whole.contains('…'), "{whole}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let one = whole.lines().map(words).find(|line| line.get(1).is_some_and(|name| name == "blocks.0.0.conv_dw"));
    assert_eq!(one.unwrap()[2..4], ["conv2d", "3x3"], "{whole}");
    let narrow = printed(inspect, Some(60));
    assert!(narrow.contains('…') && narrow.lines().count() > whole.lines().count(), "{narrow}");
    let json = format!("{inspect} --json");
    assert_eq!(printed(&json, None), printed(&json, Some(40)));
    // Values of the variable that do not count: an empty one, one that is no number, and 0.
    for odd in ["", "wide", "0"] {
        let output = program().args(inspect.split(' ')).env("COLUMNS", odd).output().unwrap();
        assert_eq!(stdout(&output), whole);
    }
}
