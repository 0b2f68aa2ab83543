//! The C interface as C and C++ programs see it: built, linked and run as docs/linking.md says, misused in every way
//! that can be detected, used from many threads, and checked by valgrind.
//!
//! Without a compiler or valgrind the tests that need it are reported as ignored; with `TREFOIL_REQUIRE_C=1` they fail.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libtest_mimic::{Arguments, Failed, Trial};
use trefoil::image;
use trefoil::model::Model;

type Outcome = Result<(), Failed>;

fn main() {
    let arguments = Arguments::from_args();
    let required = env::var("TREFOIL_REQUIRE_C").is_ok_and(|value| value == "1");
    let trial = |name: &str, tools: &'static [&'static str], run: fn() -> Outcome| {
        let missing: Vec<&str> = tools.iter().copied().filter(|tool| !is_there(tool)).collect();
        let ignored = !missing.is_empty() && !required;
        if ignored {
            println!("ignored: {name}, for want of {}", missing.join(", "));
        }
        Trial::test(name, run).with_ignored_flag(ignored)
    };
    const C: &[&str] = &["gcc", "g++", "pkg-config", "bash"];
    const VALGRIND: &[&str] = &["gcc", "g++", "pkg-config", "bash", "valgrind"];
    let trials = vec![
        trial("the_header_declares_what_the_sources_define", &[], header_and_sources),
        trial("every_function_is_guarded", &[], every_function_is_guarded),
        trial("every_function_is_misused", &[], every_function_is_misused),
        trial("the_library_exports_what_the_header_declares", &["gcc", "nm", "readelf", "bash"], exports),
        trial("the_headers_stand_alone_in_c99_and_cpp17", C, headers_stand_alone),
        trial("the_documented_commands_make_programs_that_are_right", C, documented_commands),
        trial("a_package_is_staged_in_destdir", &["gcc", "bash"], staged),
        trial("every_misuse_is_told", C, misuse),
        trial("rows_have_ports_of_their_own_types", C, values),
        trial("records_are_answered_by_engine_batcher_and_fleet", C, records),
        trial("the_cpp_wrapper_does_what_it_says", C, wrapper),
        trial("threads_get_the_answers_of_their_own_submissions", C, threads),
        trial("boxes_are_found_and_text_is_read", C, boxes_and_text),
        trial("valgrind_finds_nothing_in_a_misused_library", VALGRIND, valgrind_misuse),
        trial("valgrind_finds_nothing_in_rows_of_ports", VALGRIND, valgrind_values),
        trial("valgrind_finds_nothing_in_records", VALGRIND, valgrind_records),
        trial("valgrind_finds_nothing_in_a_library_used_by_threads", VALGRIND, valgrind_threads),
        trial("valgrind_finds_nothing_where_rows_and_results_stay_on_the_device", VALGRIND, valgrind_interop),
        trial("valgrind_finds_nothing_in_the_program_of_one_picture", VALGRIND, valgrind_classify),
        trial("valgrind_finds_nothing_in_decoder_threads", VALGRIND, valgrind_decoder_threads),
        trial("valgrind_finds_nothing_in_the_cpp_wrapper", VALGRIND, valgrind_wrapper),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

fn is_there(tool: &str) -> bool {
    Command::new(tool).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

fn root() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

/// The folder for programs that this test builds.
fn work() -> PathBuf {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_abi");
    fs::create_dir_all(&work).unwrap();
    work
}

/// Cargo's target folder, so that the dependencies compiled for this test are used again.
fn target() -> PathBuf {
    let this = env::current_exe().unwrap();
    this.ancestors().nth(3).unwrap().to_owned()
}

/// Runs a command to its end and returns its output; a failure shows the command's output.
fn run(command: &mut Command) -> Result<String, Failed> {
    let Output { status, stdout, stderr } = command.current_dir(root()).stdin(Stdio::null()).output()?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    if !status.success() {
        return Err(format!("{command:?}: {status}\n{stdout}\n{stderr}").into());
    }
    Ok(stdout.into_owned())
}

/// The prefix that scripts/install_c.sh has installed into; the first call installs.
fn installed() -> Result<PathBuf, Failed> {
    static INSTALLED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let install = || {
        let prefix = work().join("prefix");
        let mut command = Command::new("bash");
        command.args(["scripts/install_c.sh"]).arg(&prefix).env("CARGO_TARGET_DIR", target());
        run(&mut command).map(|_| prefix).map_err(|failed| failed.message().unwrap_or("failed").to_owned())
    };
    INSTALLED.get_or_init(install).clone().map_err(Failed::from)
}

/// A C or C++ program, compiled with every warning as an error; its file is removed at the end.
struct Program(PathBuf);

impl Program {
    /// A program of a file of `tests/c/`.
    fn new(file: &str) -> Result<Self, Failed> {
        Self::of("tests/c", file)
    }

    fn of(folder: &str, file: &str) -> Result<Self, Failed> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let (prefix, program) = (installed()?, work().join(format!("{file}-{}-{number}", std::process::id())));
        let (compiler, standard) = if file.ends_with(".c") { ("gcc", "-std=c11") } else { ("g++", "-std=c++17") };
        let mut command = Command::new(compiler);
        command.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-pedantic", "-Werror"]);
        command.arg(root().join(folder).join(file)).arg("-o").arg(&program);
        run(command.args(pkg_config(&prefix)?).args(["-lpthread", "-lm"]).arg(rpath(&prefix)))?;
        Ok(Self(program))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pkg_config(prefix: &Path) -> Result<Vec<String>, Failed> {
    let mut command = Command::new("pkg-config");
    command.args(["--cflags", "--libs", "trefoil"]).env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    Ok(run(&mut command)?.split_whitespace().map(str::to_owned).collect())
}

fn rpath(prefix: &Path) -> String {
    format!("-Wl,-rpath,{}", prefix.join("lib").display())
}

/// The functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = fs::read_to_string(root().join("include/trefoil.h")).unwrap();
    let begins =
        |line: &&str| ["trefoil_status ", "trefoil_fault_class ", "const char *"].iter().any(|t| line.starts_with(t));
    let before_arguments = |line: &str| line.split_once('(').map(|(before, _)| before.to_owned());
    let names = header.lines().filter(begins).filter_map(before_arguments);
    names.filter_map(|before| before.rsplit([' ', '*']).next().map(str::to_owned)).collect()
}

/// The sources of the interface, joined.
fn sources() -> String {
    let files = fs::read_dir(root().join("src/ffi")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.is_file()).map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn header_and_sources() -> Outcome {
    let sources = sources();
    let defined = sources.split("extern \"C\" fn ").skip(1).filter(|after| after.starts_with("trefoil_"));
    let defined: BTreeSet<String> = defined.map(|after| after.split('(').next().unwrap().to_owned()).collect();
    assert!(defined.len() >= 40, "{defined:?}");
    assert_eq!(declared(), defined, "run scripts/header.sh");
    let header = fs::read_to_string(root().join("include/trefoil.h")).unwrap();
    let statuses = header.lines().map(str::trim).filter(|line| line.starts_with("TREFOIL_STATUS_"));
    let names: Vec<&str> = statuses.filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() >= 20, "{names:?}");
    for name in names {
        assert!(sources.contains(&format!("c\"{name}\"")), "trefoil_status_name does not know {name}");
    }
    Ok(())
}

/// Functions that return a text and cannot fail.
const TEXTS: [&str; 4] = ["trefoil_version", "trefoil_last_error", "trefoil_last_error_class", "trefoil_status_name"];

fn every_function_is_guarded() -> Outcome {
    let sources = sources();
    for after in sources.split("extern \"C\" fn ").skip(1).filter(|after| after.starts_with("trefoil_")) {
        let name = after.split('(').next().unwrap();
        let body = after.split("-> trefoil_status {").nth(1).map(str::trim_start);
        let guarded = body.is_some_and(|body| body.starts_with("guard(||"));
        assert!(guarded || TEXTS.contains(&name), "{name} does not begin with `guard(`");
    }
    Ok(())
}

fn every_function_is_misused() -> Outcome {
    let files = ["misuse.c", "values.c"].map(|file| fs::read_to_string(root().join("tests/c").join(file)).unwrap());
    let misuse = files.concat();
    let never: Vec<String> = declared()
        .into_iter()
        .filter(|name| !TEXTS.contains(&&name[..]) && !misuse.contains(&format!("EXPECT({name}(")))
        .collect();
    assert!(never.is_empty(), "tests/c/misuse.c and values.c never misuse {never:?}");
    Ok(())
}

fn exports() -> Outcome {
    let library = installed()?.join("lib/libtrefoil.so");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library))?;
    let exported: BTreeSet<String> =
        symbols.lines().filter_map(|line| line.split(' ').next_back()).map(str::to_owned).collect();
    assert_eq!(declared(), exported);
    let dynamic = run(Command::new("readelf").arg("-d").arg(&library))?;
    assert!(dynamic.contains("[libtrefoil.so.2]") && dynamic.contains("NODELETE"), "{dynamic}");
    Ok(())
}

fn headers_stand_alone() -> Outcome {
    let include = root().join("include");
    let check = |compiler: &str, standard: &str, header: &str, language: &str| {
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", language]);
        run(command.arg(include.join(header))).map(drop)
    };
    check("gcc", "-std=c99", "trefoil.h", "c")?;
    check("g++", "-std=c++17", "trefoil.h", "c++")?;
    check("g++", "-std=c++17", "trefoil.hpp", "c++")
}

/// The commands of docs/linking.md, with a prefix of the test's own.
fn documented_commands() -> Outcome {
    let prefix = installed()?;
    let text = fs::read_to_string(root().join("docs/linking.md"))?;
    let blocks: Vec<&str> = text.split("```sh\n").skip(1).map(|after| after.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 5, "docs/linking.md lost its commands");
    fs::create_dir_all(root().join("target"))?;
    let script = format!("set -e\n{}", blocks.concat()).replace("$HOME/.local", prefix.to_str().unwrap());
    let said = run(Command::new("bash").args(["-c", &script]).env("CARGO_TARGET_DIR", target()))?;
    assert!(said.contains("coffee.png: 967 ") && said.contains("rocket.jpg: 657 "), "{said}");

    assert!(said.contains("0 of 16 results differ from those of page-locked memory"), "{said}");

    let (coffee, rocket) = (ppm("coffee.png")?, ppm("rocket.jpg")?);
    let weights = "weights/efficientnet-lite0";
    let label = Model::open(root().join(weights))?.label(967).to_owned();
    for program in ["target/classify", "target/classify-static"] {
        let said = run(Command::new(root().join(program)).arg(weights).arg(&coffee).arg("cpu"))?;
        let first = said.lines().next().unwrap_or_default();
        assert!(first.contains("%  967  ") && first.ends_with(&label), "{program}: {said}");
        assert_eq!(said.lines().count(), 5, "{said}");
        for (arguments, code, message) in [
            (vec![], 64, "usage"),
            (vec![weights, "README.md", "cpu"], 1, "README.md: not a binary PPM of 224 x 224 pixels"),
            (vec!["no/such/model", "x.ppm", "cpu"], 1, "TREFOIL_STATUS_IO: cannot open no/such/model"),
            (vec![weights, "x.ppm", "gpu"], 1, "TREFOIL_STATUS_INVALID_ARGUMENT: device is `gpu`"),
        ] {
            let output = Command::new(root().join(program)).args(arguments).current_dir(root()).output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.code() == Some(code) && said.contains(message), "{said}");
        }
    }
    let program = root().join("target/decoder_threads");
    let pictures = [&coffee, &rocket].repeat(15);
    let said = run(Command::new(&program).args([weights, "4"]).args(&pictures))?;
    let of = |picture: &Path, class: &str| {
        let start = format!("{}: {class} ", picture.display());
        said.lines().filter(|line| line.starts_with(&start)).count()
    };
    assert_eq!((of(&coffee, "967"), of(&rocket, "657"), said.lines().count()), (15, 15, 30), "{said}");
    let colour = pnm("colour28.ppm", "P6", 28)?;
    for (model, picture, message) in [
        (weights, "README.md", "README.md: not a binary PPM"),
        ("weights/convnet28", colour.to_str().unwrap(), "a binary PPM has 3 channels, and the model takes 1"),
    ] {
        let output = Command::new(&program).args([model, "2", picture]).current_dir(root()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(message), "{said}");
    }
    Ok(())
}

/// A photo as a PPM of the model's size.
fn ppm(photo: &str) -> Result<PathBuf, Failed> {
    let model = Model::open(root().join("weights/efficientnet-lite0"))?;
    let input = model.preprocessing().unwrap().input;
    let mut pixels = vec![0; input.elems()];
    image::load(root().join("weights/photos").join(photo), model.preprocessing().unwrap(), &mut pixels)?;
    let path = work().join(photo).with_extension("ppm");
    let head = format!("P6\n{} {}\n255\n", input.width, input.height);
    fs::write(&path, [head.as_bytes(), &pixels].concat())?;
    Ok(path)
}

/// With DESTDIR nothing is written into the prefix itself, which the pkg-config file names.
fn staged() -> Outcome {
    installed()?; // builds the same library
    let (to, prefix) = (work().join("staged"), Path::new("/no/such prefix & more"));
    let mut command = Command::new("bash");
    command.arg("scripts/install_c.sh").arg(prefix).env("DESTDIR", &to).env("CARGO_TARGET_DIR", target());
    run(&mut command)?;
    let at = to.join(prefix.strip_prefix("/")?);
    for file in
        ["lib/libtrefoil.so", "lib/libtrefoil.so.2", "lib/libtrefoil.a", "include/trefoil.h", "include/trefoil.hpp"]
    {
        assert!(at.join(file).exists(), "{file}");
    }
    let described = fs::read_to_string(at.join("lib/pkgconfig/trefoil.pc"))?;
    assert!(described.starts_with("prefix=/no/such prefix & more\n") && !prefix.exists(), "{described}");
    Ok(())
}

fn wrapper() -> Outcome {
    let (program, timeline) = (Program::new("wrapper.cpp")?, work().join("wrapper.json"));
    let said = run(Command::new(&program.0).args(["weights/convnet28", "conv3"]).arg(timeline).arg(VALUES[0]))?;
    assert!(said.contains("the wrapper holds"), "{said}");
    Ok(())
}

/// Arguments of tests/c/values.c.
const VALUES: [&str; 2] = ["tests/data/onnx/values.onnx", "weights/convnet28"];

fn values() -> Outcome {
    let said = run(Command::new(&Program::new("values.c")?.0).args(VALUES))?;
    assert!(said.contains("the ports hold"), "{said}");
    Ok(())
}

fn valgrind_values() -> Outcome {
    valgrind(&Program::new("values.c")?, &VALUES)
}

const RECORDS: [&str; 2] = ["tests/data/onnx/records.onnx", "tests/data/onnx/tokens.onnx"];

fn records() -> Outcome {
    let said = run(Command::new(&Program::new("records.c")?.0).args(RECORDS))?;
    assert!(said.contains("the records hold"), "{said}");
    Ok(())
}

fn valgrind_records() -> Outcome {
    valgrind(&Program::new("records.c")?, &RECORDS)
}

fn misuse() -> Outcome {
    let program = Program::new("misuse.c")?;
    let said = run(Command::new(&program.0).arg("weights/convnet28"))?;
    assert!(said.contains("every misuse was told"), "{said}");
    Ok(())
}

fn threads() -> Outcome {
    let program = Program::new("threads.c")?;
    run(Command::new(&program.0).args(["weights/convnet28", "weights/efficientnet-lite0", "8", "60"])).map(drop)
}

/// Runs the examples that find an object and read a text, on painted pictures; the letters of the text are colours.
fn boxes_and_text() -> Outcome {
    let photo = painted("photo.ppm", [128, 64], |x, y| match ((32..48).contains(&x), (16..32).contains(&y)) {
        (true, true) => [255; 3],
        _ => [0; 3],
    })?;
    let line = painted("line.ppm", [56, 24], |x, _| [0, 1, 2].map(|bit| 255 * ((x / 8) as u8 >> bit & 1)))?;
    let program = |name: &str| Program::of("examples/cpp", name);
    let found = run(Command::new(&program("detect.cpp")?.0).arg("tests/data/onnx/boxes.onnx").arg(photo))?;
    assert_eq!(found, "class 0 0.99 at 8,0 to 72,56\n");
    let reader = program("read_text.cpp")?;
    let text = run(Command::new(&reader.0).arg("tests/data/onnx/text.onnx").arg(line).arg("width=160"))?;
    assert_eq!(text, "trefoil\n");
    Ok(())
}

/// Runs a program under valgrind: definitely lost memory and every wrong access are errors; memory that std keeps for
/// the life of a thread is not.
fn valgrind(program: &Program, arguments: &[&str]) -> Outcome {
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--fair-sched=yes"]);
    command.args(["--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"]);
    run(command.arg(&program.0).args(arguments)).map(drop)
}

fn valgrind_misuse() -> Outcome {
    valgrind(&Program::new("misuse.c")?, &["weights/convnet28"])
}

fn valgrind_threads() -> Outcome {
    valgrind(&Program::new("threads.c")?, &["weights/convnet28", "weights/convnet28", "3", "5"])
}

fn valgrind_interop() -> Outcome {
    valgrind(&Program::of("examples/c", "interop.c")?, &["weights/convnet28", "cpu", "4"])
}

/// The side of a picture for programs under valgrind.
const SMALL: usize = 32;

/// A picture with a pattern: `P5` for gray or `P6` for colour.
fn pnm(name: &str, magic: &str, side: usize) -> Result<PathBuf, Failed> {
    let channels = if magic == "P6" { 3 } else { 1 };
    let pixels = (0..side * side * channels).map(|at| (at * 7 % 251) as u8).collect::<Vec<_>>();
    let path = work().join(name);
    fs::write(&path, [format!("{magic}\n{side} {side}\n255\n").as_bytes(), &pixels].concat())?;
    Ok(path)
}

/// A picture whose colours a function gives.
fn painted(
    name: &str,
    [width, height]: [usize; 2],
    colour: impl Fn(usize, usize) -> [u8; 3],
) -> Result<PathBuf, Failed> {
    let pixels = (0..width * height).flat_map(|at| colour(at % width, at / width)).collect::<Vec<_>>();
    let path = work().join(name);
    fs::write(&path, [format!("P6\n{width} {height}\n255\n").as_bytes(), &pixels].concat())?;
    Ok(path)
}

/// EfficientNet-Lite0 for pictures of 32 x 32 pixels: a fiftieth of the work.
fn small_colour_model() -> Result<PathBuf, Failed> {
    let (of, to) = (root().join("weights/efficientnet-lite0"), work().join("small"));
    let mut config: serde_json::Value = serde_json::from_str(&fs::read_to_string(of.join("config.json"))?)?;
    config["pretrained_cfg"]["input_size"] = serde_json::json!([3, SMALL, SMALL]);
    fs::create_dir_all(&to)?;
    fs::write(to.join("config.json"), config.to_string())?;
    fs::copy(of.join("model.safetensors"), to.join("model.safetensors"))?;
    Ok(to)
}

fn valgrind_classify() -> Outcome {
    let picture = pnm("gray.pgm", "P5", 28)?;
    valgrind(&Program::of("examples/c", "classify.c")?, &["weights/convnet28", picture.to_str().unwrap(), "cpu"])
}

/// Each thread has more than one batch of eight.
fn valgrind_decoder_threads() -> Outcome {
    let (model, picture) = (small_colour_model()?, pnm("colour.ppm", "P6", SMALL)?);
    let mut arguments = vec![model.to_str().unwrap(), "2"];
    arguments.extend([picture.to_str().unwrap(); 40]);
    valgrind(&Program::of("examples/cpp", "decoder_threads.cpp")?, &arguments)
}

fn valgrind_wrapper() -> Outcome {
    let timeline = work().join("valgrind.json");
    valgrind(&Program::new("wrapper.cpp")?, &["weights/convnet28", "conv3", timeline.to_str().unwrap(), VALUES[0]])
}
