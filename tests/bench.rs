//! `trefoil bench` and its subcommands as they are run, on the CPU device: exit codes, records whose figures agree with
//! each other, plots, and the errors of bad options. Speed is not tested.
#![cfg(feature = "cli")]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use trefoil::model::Model;
use trefoil::{Device, Engine, Error, Stage};

const MODEL: [&str; 4] = ["--model", "weights/convnet28", "--device", "cpu"];

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

fn command(args: &[&str]) -> Command {
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from);
    let mut command = Command::new(env!("CARGO_BIN_EXE_trefoil"));
    command
        .current_dir(root)
        .env_remove("TREFOIL_WEIGHTS")
        .env_remove("RUST_LOG")
        .env_remove("COLUMNS")
        .env("TREFOIL_COMMIT", "abc");
    command.arg("bench").args(args);
    command
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

fn expect_code(output: &Output, code: i32) {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "stdout:\n{out}\nstderr:\n{err}");
}

/// Runs a benchmark with `--json`, `--record` and `--plot`; checks the fields that all records have, and returns the
/// figures.
fn figures(name: &str, unit: &str, args: &[&str]) -> Value {
    let folder = std::env::temp_dir().join(format!("trefoil-bench-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let [record, plot] = ["record.json", "plot.svg"].map(|file| folder.join(file));
    let files = ["--record", record.to_str().unwrap(), "--plot", plot.to_str().unwrap(), "--json"];
    let output = run(&[&[name], args, &files].concat());
    expect_code(&output, 0);
    assert_eq!(text(&output.stderr), "");
    let printed: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    let kept: Value = serde_json::from_str(&fs::read_to_string(record).unwrap()).unwrap();
    assert_eq!(printed, kept);
    assert_eq!(kept["benchmark"], name);
    assert_eq!((&kept["commit"], &kept["device"], &kept["gpu"]), (&"abc".into(), &"cpu".into(), &Value::Null));
    assert!(kept["model"].is_string() && kept["options"].is_object() && number(&kept, "/seconds") > 0.0);
    let date = kept["date"].as_str().unwrap();
    assert!(date.len() == 20 && date.starts_with("20") && date.ends_with('Z'), "{date}");
    check_plot(&fs::read_to_string(plot).unwrap(), unit);
    fs::remove_dir_all(folder).unwrap();
    kept["figures"].clone()
}

/// Checks a plot: every element is closed, no coordinate is NaN or infinite, and the unit is named.
fn check_plot(svg: &str, unit: &str) {
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let mut open = Vec::new();
    for tag in svg.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
    assert!(svg.contains("prefers-color-scheme: dark") && svg.contains(unit));
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("{pointer} in {value}"))
}

fn rows<'a>(figures: &'a Value, name: &str) -> &'a [Value] {
    figures[name].as_array().unwrap()
}

fn assert_same(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-9 * a.abs().max(b.abs()), "{a} is not {b}");
}

#[test]
fn overlap_on_the_cpu_has_times_and_gains_and_nothing_to_compare_with() {
    let small = ["--device", "cpu", "--batch", "2", "--slots", "1,3", "--repetitions", "2", "--batches", "5"];
    let figures = figures("overlap", "images/s", &[&small[..], &["--regime", "copy-bound,compute-bound"]].concat());
    assert!(figures["shows"].as_str().unwrap().starts_with("On the CPU copies and compute share the cores"));
    let rows = rows(&figures, "rows");
    let order: Vec<_> = rows.iter().map(|row| (row["regime"].as_str().unwrap(), number(row, "/slots"))).collect();
    assert_eq!(order, [("copy-bound", 1.0), ("copy-bound", 3.0), ("compute-bound", 1.0), ("compute-bound", 3.0)]);
    for (index, row) in rows.iter().enumerate() {
        let of = |pointer: &str| number(row, pointer);
        let alone = ["copy_in", "compute", "copy_out"].map(|stage| of(&format!("/alone_seconds/{stage}")));
        assert!(alone.iter().all(|seconds| *seconds > 0.0));
        assert_same(of("/images_per_second"), 2.0 / of("/ring_seconds"));
        let all: Vec<f64> = row["ring_seconds_all"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
        assert_eq!(all.len(), 2);
        assert_same(of("/ring_seconds"), all[0].min(all[1]));
        assert_same(of("/compute_in_copies"), alone[1] / alone[0].max(alone[2]));
        let one = &rows[index / 2 * 2];
        assert_same(of("/gain"), of("/images_per_second") / number(one, "/images_per_second"));
        assert_eq!(row["alone_seconds"], one["alone_seconds"]);
        // Copies and compute share the cores: no engine is a bound of the ring, and there is no prediction.
        for name in ["slowest", "ratio", "predicted_images_per_second", "deviation_percent", "predicted_gain"] {
            assert!(row.get(name).is_none(), "{name}: {row}");
        }
        let off = (of("/compute_in_copies") / of("/compute_in_copies_wanted") - 1.0).abs();
        assert_eq!((&row["upload"], &row["regime_reached"]), (&true.into(), &(off <= 0.15).into()));
    }
    // Both depths are the least possible where even one convolution takes longer than four copies, as on the CPU.
    assert!(number(&rows[2], "/depth") >= number(&rows[0], "/depth"));
}

#[test]
fn overlap_measures_a_given_model() {
    let model = ["--device", "cpu", "--model", "tests/data/onnx/text.onnx", "--size", "width=64", "--batch", "2,4"];
    let small = ["--slots", "1,2", "--repetitions", "1", "--batches", "5", "--json"];
    let output = run(&[&["overlap"], &model[..], &small].concat());
    expect_code(&output, 0);
    let record: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert_eq!(record["model"], "text");
    let rows = rows(&record["figures"], "rows");
    let order: Vec<_> = rows.iter().map(|row| (number(row, "/batch"), number(row, "/slots"))).collect();
    assert_eq!(order, [(2.0, 1.0), (2.0, 2.0), (4.0, 1.0), (4.0, 2.0)]);
    for row in rows {
        assert_eq!((&row["regime"], &row["regime_reached"]), (&"model".into(), &true.into()));
        assert_eq!((&row["depth"], &row["compute_in_copies_wanted"]), (&Value::Null, &Value::Null));
        assert!(number(row, "/images_per_second") > 0.0 && number(row, "/alone_seconds/compute") > 0.0);
    }
    let regime = run(&[&["overlap"], &model[..], &["--regime", "balanced"]].concat());
    expect_code(&regime, 64);
}

#[test]
fn forum_runs_five_orders_and_the_ring() {
    let small = ["--batch", "2", "--threads", "3", "--rounds", "1", "--seconds", "0.2"];
    let figures = figures("forum", "images/s", &[&MODEL[..], &small].concat());
    let rows = rows(&figures, "rows");
    let of = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
    let kinds: Vec<_> = rows.iter().map(|row| [of(row, "format"), of(row, "start"), of(row, "order")]).collect();
    assert_eq!(kinds.len(), 9);
    let five = ["fill-outside", "fill-and-read-outside", "all-inside", "submit-inside", "no-lock", "recommended"];
    for (kind, order) in kinds.iter().zip(five) {
        assert_eq!(kind, &["f32 NCHW", "pageable", order]);
    }
    assert_eq!(kinds[6], ["f32 NCHW", "page-locked", "recommended"]);
    assert_eq!(kinds[7], ["u8 NHWC", "pageable", "recommended"]);
    assert_eq!(kinds[8], ["u8 NHWC", "page-locked", "recommended"]);
    for row in rows {
        let same = |compute: &&Value| compute["format"] == row["format"];
        let compute = figures["compute"].as_array().unwrap().iter().find(same).unwrap();
        assert_eq!((&compute["upload"], &row["upload"]), (&false.into(), &true.into()));
        let (rate, alone) = (number(row, "/images_per_second"), number(compute, "/images_per_second"));
        assert!(rate > 0.0 && alone > 0.0);
        assert_same(number(row, "/ratio"), rate / alone);
        let copies = of(row, "includes").contains("copying pixels");
        assert_eq!(copies, row["start"] == "pageable");
        assert!(of(row, "includes").contains("upload"));
    }
}

#[test]
fn clients_count_images_and_keep_books() {
    let small = ["--threads", "1,6", "--batch", "4", "--seconds", "0.3", "--max-delay", "500"];
    let figures = figures("clients", "latency, ms", &[&MODEL[..], &small].concat());
    let (ring, bound) = (number(&figures, "/ring/images_per_second"), number(&figures, "/p99_bound_seconds"));
    assert_same(bound, 4.0 * 4.0 / ring);
    let rows = rows(&figures, "rows");
    assert_eq!(rows.iter().map(|row| number(row, "/threads")).collect::<Vec<_>>(), [1.0, 6.0]);
    for row in rows {
        let of = |key: &str| number(row, &format!("/{key}"));
        assert!(of("images") > 0.0);
        assert_same(of("images_per_second"), of("images") / 0.3);
        assert_same(of("ratio"), of("images_per_second") / ring);
        assert!(of("p50_seconds") > 0.0 && of("p50_seconds") <= of("p95_seconds"));
        assert!(of("p95_seconds") <= of("p99_seconds"));
        assert_eq!(row["within_bound"], of("p99_seconds") <= bound);
        let most = of("threads").min(4.0);
        assert!((1.0..=most).contains(&of("mean_batch")), "{row}");
        assert!((1.0..=of("mean_batch")).contains(&of("copies_a_batch")), "{row}");
        assert_eq!(row["upload"], true);
    }
    // A single client finds the device idle every time, so its rows do not wait for others.
    assert!(number(&rows[0], "/p99_seconds") < 0.5);
}

#[test]
fn server_finds_a_rate_between_those_that_keep_the_limit_and_those_that_do_not() {
    let server = |more: &[&str]| {
        let small = ["--batch", "4", "--seconds", "0.4", "--steps", "3"];
        figures("server", "latency, ms", &[&MODEL[..], &small, more].concat())
    };
    let easy = server(&["--limit", "60000", "--most", "50"]);
    assert_eq!(rows(&easy, "ladder").len(), 1);
    assert_eq!(number(&easy, "/best_images_per_second"), 50.0);
    assert_same(number(&easy, "/ratio"), 50.0 / number(&easy, "/ring/images_per_second"));
    let step = &easy["ladder"][0];
    // 20 images are due in the mean, with a deviation of 4.5; the seed is fixed.
    assert!((5.0..=40.0).contains(&number(step, "/images")), "{step}");
    assert!(number(step, "/p50_seconds") <= number(step, "/p99_seconds"));
    assert!(number(step, "/p99_seconds") <= number(step, "/max_seconds"));

    let impossible = server(&["--limit", "0", "--most", "80"]);
    assert!(impossible["best_images_per_second"].is_null() && impossible["ratio"].is_null());
    let rates: Vec<f64> = rows(&impossible, "ladder").iter().map(|s| number(s, "/images_per_second")).collect();
    assert_eq!(rates, [80.0, 40.0, 20.0]);
    for step in rows(&impossible, "ladder") {
        assert_eq!(step["within_limit"], false);
    }
}

#[test]
fn soaks_are_flat_or_say_what_grew() {
    let small = ["--threads", "4", "--batch", "4", "--seconds", "1", "--periods", "4", "--json"];
    let output = run(&[&["soak"], &MODEL[..], &small].concat());
    let record: Value = serde_json::from_str(text(&output.stdout)).unwrap_or_else(|_| panic!("{output:?}"));
    let figures = &record["figures"];
    let (grown, flat) = (rows(figures, "grown"), figures["flat"].as_bool().unwrap());
    expect_code(&output, if flat { 0 } else { 2 });
    assert_eq!(flat, grown.is_empty());
    let rows = rows(figures, "rows");
    assert_eq!(rows.len(), 4);
    let sum = |key: &str| rows.iter().map(|row| number(row, &format!("/{key}"))).sum::<f64>();
    assert!(sum("answers") > 0.0 && sum("opened") > 0.0, "{figures}");
    for (index, row) in rows.iter().enumerate() {
        let of = |key: &str| number(row, &format!("/{key}"));
        assert!(of("seconds") >= 0.25 * (index + 1) as f64 && of("p50_seconds") <= of("p99_seconds"), "{row}");
        // The open descriptors are those of the first period: no model is open beside the engine when they are counted.
        for key in ["threads", "descriptors", "page_locked_bytes"] {
            assert!(of(key) > 0.0 && of(key) == number(&rows[0], &format!("/{key}")), "{key}: {row}");
        }
    }
}

/// Only the goodput depends on what else the machine does; rows are accounted for in any case.
#[test]
fn rows_of_an_overload_are_accounted_for() {
    let plot = std::env::temp_dir().join(format!("trefoil-bench-overload-{}.svg", std::process::id()));
    let small = ["--clients", "12", "--batch", "4", "--seconds", "2", "--json", "--plot", plot.to_str().unwrap()];
    let output = run(&[&["overload"], &MODEL[..], &small].concat());
    let record: Value = serde_json::from_str(text(&output.stdout)).unwrap_or_else(|_| panic!("{output:?}"));
    check_plot(&fs::read_to_string(&plot).unwrap(), "answered rows, %");
    fs::remove_file(plot).unwrap();
    let figures = &record["figures"];
    let (failed, good) = (rows(figures, "failed"), figures["good"].as_bool().unwrap());
    expect_code(&output, if good { 0 } else { 2 });
    assert_eq!(good, failed.is_empty());
    assert!(failed.iter().all(|what| what.as_str().unwrap().contains("goodput")), "{failed:?}");
    let most = number(figures, "/most_queued");
    assert_eq!(most, 8.0 * 4.0);
    let names = rows(figures, "rows").iter().map(|row| row["run"].as_str().unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["saturated", "reject", "saturated", "wait", "saturated"]);
    for row in rows(figures, "rows") {
        let of = |key: &str| number(row, &format!("/{key}"));
        let fates = ["answered", "refused", "expired", "given_up"].map(|fate| of(&format!("counts/{fate}")));
        assert_eq!(of("counts/asked"), fates.iter().sum::<f64>(), "{row}");
        assert_eq!((of("counts/wrong"), of("counts/unanswered")), (0.0, 0.0), "{row}");
        assert_eq!(of("batcher/rejected"), of("counts/refused"), "{row}");
        assert!(of("counts/counted") <= of("counts/answered") && of("most_queued") <= most, "{row}");
        assert!(of("normal/p50_seconds") <= of("normal/p99_seconds"), "{row}");
        assert_eq!(row["load"].is_null(), row["run"] == "saturated");
        if row["run"] != "saturated" && of("counts/answered") > 0.0 {
            assert!((1.0 / 12.0 - 1e-9..=1.0 + 1e-9).contains(&of("fairness/jain")), "{row}");
            assert!(of("fairness/least_share") <= of("fairness/most_share"), "{row}");
        }
    }
}

/// A process that is stopped and continued during a run, as by a shell or a debugger, is late but gives every answer.
#[cfg(unix)]
#[test]
fn a_process_that_is_stopped_for_a_while_answers_everything() {
    let mut command = command(&[&["clients"], &MODEL[..], &["--threads", "4", "--seconds", "2", "--json"]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        for signal in [libc::SIGSTOP, libc::SIGCONT] {
            // SAFETY: a number of a process that was not waited for, so that nobody else has it.
            assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
            std::thread::sleep(Duration::from_millis(150));
        }
    }
    let output = child.wait_with_output().unwrap();
    expect_code(&output, 0);
    let record: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    assert!(number(&record, "/figures/rows/0/images") > 0.0);
}

#[test]
fn tables_say_what_is_in_the_figures() {
    let small = ["--batch", "2", "--slots", "1,2", "--repetitions", "1", "--batches", "2", "--regime", "copy-bound"];
    let overlap = run(&[&["overlap", "--device", "cpu"], &small[..]].concat());
    expect_code(&overlap, 0);
    let table = text(&overlap.stdout);
    assert!(table.contains("gain") && table.contains("no engine alone is a bound of the ring"), "{table}");
    let [one, two] = [1, 2].map(|slots| {
        let is_row = |line: &&str| line.split_whitespace().nth(2) == Some(if slots == 1 { "1" } else { "2" });
        table
            .lines()
            .find(is_row)
            .unwrap_or_else(|| panic!("{table}"))
            .split_whitespace()
            .rev()
            .take(4)
            .collect::<Vec<_>>()
    });
    assert_eq!((&one[0], &one[1..]), (&"-", &["1.00x", "-", "-"][..]), "{table}");
    assert!(two[1].ends_with('x') && two[0] == "-" && two[2..] == ["-"; 2], "{table}");
    let clients = run(&[&["clients"], &MODEL[..], &["--threads", "2", "--batch", "2", "--seconds", "0.5"]].concat());
    expect_code(&clients, 0);
    for part in ["commit abc", "With the upload", "copying an image", "p99", "ratio", "bound"] {
        assert!(text(&clients.stdout).contains(part), "no `{part}` in:\n{}", text(&clients.stdout));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn figures_are_printed_though_the_record_cannot_be_written() {
    let small = ["--batch", "2", "--slots", "1", "--repetitions", "1", "--batches", "2", "--regime", "copy-bound"];
    let full = run(&[&["overlap", "--device", "cpu"], &small[..], &["--record", "/dev/full"]].concat());
    expect_code(&full, 1);
    assert!(text(&full.stdout).contains("1.00x") && text(&full.stderr).contains("cannot write /dev/full"), "{full:?}");
}

#[test]
fn wrong_options_are_told_before_anything_is_measured() {
    let cases: [(&[&str], &str); 16] = [
        (&["overlap", "--slots", "0"], "--slots"),
        (&["overlap", "--regime", "fast"], "--regime"),
        (&["overlap", "--batches", "0"], "--batches"),
        (&["overlap", "--batch", "2,x"], "--batch"),
        (&["forum", "--threads", "0"], "--threads"),
        (&["forum", "--rounds", "0"], "--rounds"),
        (&["clients", "--threads", "1,0"], "--threads"),
        (&["clients", "--max-delay", "soon"], "--max-delay"),
        (&["server", "--limit", "nan"], "--limit"),
        (&["server", "--most", "0"], "--most"),
        (&["soak", "--periods", "3"], "--periods"),
        (&["overload", "--load", "0"], "--load"),
        (&["overload", "--least", "2"], "--least"),
        (&["overload", "--when-full", "drop"], "--when-full"),
        (&["--batch", "1", "clients"], "clients"),
        (&["sprint"], "sprint"),
    ];
    for (args, named) in cases {
        let output = run(args);
        expect_code(&output, 64);
        let said = text(&output.stderr);
        assert!(said.contains(named) && output.stdout.is_empty(), "{args:?}: {said}");
    }
    let nowhere = run(&[&["clients"], &MODEL[..], &["--record", "no/such/folder/r.json"]].concat());
    expect_code(&nowhere, 1);
    assert!(text(&nowhere.stderr).contains("no/such/folder/r.json"), "{}", text(&nowhere.stderr));
    let model = run(&["forum", "--model", "no/such/model", "--device", "cpu"]);
    expect_code(&model, 1);
    assert!(text(&model.stderr).contains("no/such/model"));
}

#[test]
fn every_subcommand_has_help_with_an_example() {
    for name in ["overlap", "forum", "clients", "server", "soak", "overload"] {
        let output = run(&[name, "--help"]);
        expect_code(&output, 0);
        assert!(text(&output.stdout).contains(&format!("trefoil bench {name}")), "{}", text(&output.stdout));
    }
    let output = run(&["--help"]);
    expect_code(&output, 0);
    for name in ["overlap", "forum", "clients", "server", "soak", "overload", "--only"] {
        assert!(text(&output.stdout).contains(name), "{}", text(&output.stdout));
    }
}

#[test]
fn stages_are_measured_with_the_others_beside_them() {
    let model = Model::open("weights/convnet28").unwrap();
    for slots in 1..=3 {
        let engine = Engine::builder(&model).on(&Device::cpu(1)).batch_sizes(&[2, 4]).slots(slots);
        let engine = engine.check(true).build().unwrap(); // every access ordered, or the device is at fault
        for stage in [Stage::CopyIn, Stage::Compute, Stage::CopyOut] {
            for batch in [2, 4] {
                assert!(engine.measure_loaded(stage, batch, 5).unwrap() > 0.0);
            }
            assert!(matches!(engine.measure_loaded(stage, 3, 5), Err(Error::Option { option: "batch", .. })));
            assert!(matches!(engine.measure_loaded(stage, 4, 0), Err(Error::Option { option: "repetitions", .. })));
        }
        // All credits have returned.
        assert_eq!(engine.acquire().unwrap().submit(1).unwrap().wait().unwrap().rows(), 1);
        assert!(engine.device().fault().is_none());
    }
}
