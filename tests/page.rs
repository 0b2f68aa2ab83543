//! The timeline page in a browser: it draws, zooms, shows details and fits, on narrow and wide screens, light and dark.
//! Pictures of it are written to `target/tmp/page-*.png`, to be looked at.
//!
//! Without a Chromium the tests are reported as ignored; with `TREFOIL_REQUIRE_BROWSER=1` they fail.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use trefoil::model::Model;
use trefoil::{Device, Engine, EngineBuilder, Target};

const BROWSERS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
const BATCHES: usize = 40;

/// The script that acts as a reader and checks what the page shows.
const READER: &str = r##"
const said = {}, key = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key, cancelable: true }));
const painted = () => {
  const pixels = chart.getContext("2d").getImageData(0, 0, chart.width, chart.height).data, seen = new Set();
  for (let at = 0; at < pixels.length; at += 4) if (pixels[at + 3] === 255) seen.add(pixels.slice(at, at + 3).join());
  return seen;
};
const span = () => view.to - view.from;
drawChart();
said.overflow = document.documentElement.scrollWidth - innerWidth;
said.width = innerWidth;
said.paper = getComputedStyle(document.documentElement).backgroundColor;
said.figures = [...document.querySelectorAll(".figure b")].map((b) => b.textContent);
said.names = [...document.querySelectorAll("#names div:not(.group)")].map((div) => div.textContent);
said.slots = ["c0", "c1", "c2"].map((name) => painted().has([1, 3, 5].map((at) => parseInt(colours[name].slice(at, at + 2), 16)).join()));
said.few = span();
key("0"); said.all = span();
key("w"); said.closer = span();
const left = view.from; key("d"); said.moved = view.from > left;
key("m"); said.middle = span() / last;
key("."); said.batch = document.querySelector("#batch h2").textContent;
said.layers = document.querySelectorAll("#batch details tr").length - 1;
key("."); said.next = document.querySelector("#batch h2").textContent;
key("Escape"); said.closed = byId("batch").hidden;
key("0"); drawChart();
const box = chart.getBoundingClientRect(), at = streams[1].of[3];
const on = (begin[at] + end[at]) / 2;
show(on - 1e5, on + 1e5);
hover({ clientX: box.left + box.width / 2, clientY: box.top + places()[1] + 5 });
said.tip = tip.textContent;
key("0");
const point = (type, x, more) => chart.dispatchEvent(new PointerEvent(type,
  { clientX: box.left + x, clientY: box.top + places()[1] + 5, pointerId: 1, button: 0, cancelable: true, ...more }));
chart.setPointerCapture = () => {}; // of a pointer that is not there
chart.dispatchEvent(new WheelEvent("wheel", { deltaY: -400, clientX: box.left + box.width / 2, cancelable: true }));
said.wheel = span() < said.all;
const before = view.from;
point("pointerdown", 150); point("pointermove", 50); point("pointerup", 50);
said.dragged = view.from > before && byId("batch").hidden;
show(on - 1e5, on + 1e5);
point("pointerdown", box.width / 2); point("pointerup", box.width / 2);
said.clicked = document.querySelector("#batch h2")?.textContent;
key("Escape");
point("pointerdown", 100, { pointerId: 1 }); point("pointerdown", 200, { pointerId: 2 });
const unpinched = span();
point("pointermove", 300, { pointerId: 2 });
said.pinched = unpinched / span();
key("t"); said.theme = document.documentElement.dataset.theme;
said.light = getComputedStyle(document.documentElement).backgroundColor;
tell(said);
"##;

fn main() {
    let arguments = Arguments::from_args();
    let browser = BROWSERS.into_iter().find(|name| {
        let version = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    });
    let required = env::var("TREFOIL_REQUIRE_BROWSER").is_ok_and(|value| value == "1");
    if browser.is_none() {
        println!("ignored: the page's tests, for want of a Chromium");
    }
    let read = move || browser.map_or_else(|| Err("no Chromium was found".into()), read_the_page);
    let pictures = move || browser.map_or_else(|| Err("no Chromium was found".into()), take_pictures);
    let empty = move || browser.map_or_else(|| Err("no Chromium was found".into()), show_nothing);
    let several = move || browser.map_or_else(|| Err("no Chromium was found".into()), show_several_models);
    let trials = vec![
        Trial::test("a_reader_finds_the_way_on_narrow_and_wide_screens", read),
        Trial::test("pictures_are_taken_on_narrow_and_wide_screens_in_both_themes", pictures),
        Trial::test("a_page_of_nothing_says_so", empty),
        Trial::test("a_page_of_several_models_has_a_row_for_each", several),
    ];
    let ignored = browser.is_none() && !required;
    let trials = trials.into_iter().map(|trial| trial.with_ignored_flag(ignored)).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn read_the_page(browser: &str) -> Result<(), Failed> {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("page.html");
    fs::write(&path, page(BATCHES)? + &script(READER))?;
    for (width, dark) in [(360, true), (1280, false), (3840, true)] {
        let said = visit(browser, &path, width, dark)?;
        let is = |holds: bool, what: &str| assert!(holds, "{what} at {width}: {said:#}");
        let number = |name: &str| said[name].as_f64().unwrap();
        is(said["width"] == width && said["overflow"] == 0, "the page fits");
        is(said["paper"] == if dark { "rgb(13, 17, 23)" } else { "rgb(255, 255, 255)" }, "the paper");
        is(said["theme"] == "light" && said["light"] == "rgb(255, 255, 255)", "the toggle");
        is(said["figures"].as_array().unwrap().len() == 5, "the figures");
        let names = said["names"].as_array().unwrap();
        is(
            ["copy-in", "compute", "copy-out", "slot 0", "slot 2"].iter().all(|name| names.contains(&(*name).into())),
            "rows",
        );
        is(said["slots"] == serde_json::json!([true, true, true]), "each slot is drawn in its colour");
        is(number("few") < number("all") && number("closer") < number("all"), "zoom");
        is(said["moved"] == true && (number("middle") - 0.5).abs() < 1e-6, "moving");
        is(said["batch"] == "Batch 20: slot 2, 2 rows" && said["next"] == "Batch 21: slot 0, 2 rows", "batches");
        is(number("layers") > 3.0 && said["closed"] == true, "layers");
        is(said["wheel"] == true && said["dragged"] == true, "wheel and drag");
        is(said["clicked"] == "Batch 3: slot 0, 2 rows" && (number("pinched") - 2.0).abs() < 1e-6, "click and pinch");
        let tip = said["tip"].as_str().unwrap();
        is(
            tip.starts_with("compute of batch 3") && tip.contains("slot 0, 2 rows") && tip.contains("TFLOP/s"),
            "the tip",
        );
    }
    Ok(())
}

fn take_pictures(browser: &str) -> Result<(), Failed> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("picture.html");
    fs::write(&path, page(BATCHES)?)?;
    for (width, height) in [(360, 800), (3840, 2160)] {
        let mut pictures = Vec::new();
        for (dark, theme) in [(false, "light"), (true, "dark")] {
            let picture = folder.join(format!("page-{width}-{theme}.png"));
            let _ = fs::remove_file(&picture);
            let more = ["--virtual-time-budget=1000".into(), format!("--screenshot={}", picture.display())];
            let output = open(browser, &path, width, height, dark, &more)?;
            let png = fs::read(&picture).map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())?;
            let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
            assert_eq!((&png[1..4], number(16), number(20)), (&b"PNG"[..], width as u32, height as u32));
            pictures.push(png);
        }
        assert!(pictures[0] != pictures[1], "the themes look alike at {width}");
    }
    Ok(())
}

/// A page without recorded batches has its figures and an empty timeline.
fn show_nothing(browser: &str) -> Result<(), Failed> {
    const LOOKER: &str = r##"
drawChart();
const said = { figures: document.querySelectorAll(".figure").length, about: byId("about").textContent, rows: lanes.length };
tell(said);
"##;
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nothing.html");
    fs::write(&path, page(0)? + &script(LOOKER))?;
    let said = visit(browser, &path, 1280, false)?;
    assert!(said["rows"] == 0 && said["figures"] == 4, "{said:#}");
    assert!(said["about"].as_str().unwrap().starts_with("cpu: 0 batches"), "{said:#}");
    Ok(())
}

/// A page of two models and their mean has, for each, a row of the timeline, a line of the figures and a line of a
/// batch.
fn show_several_models(browser: &str) -> Result<(), Failed> {
    const LOOKER: &str = r##"
drawChart();
select(batches[1]);
const texts = (of) => [...document.querySelectorAll(of)].map((node) => node.textContent);
const computed = byBatch.get(batches[1]).filter((at) => stage[at] === COMPUTE);
const said = {
  names: texts("#names div:not(.group)"), figures: texts("#stages tr td:first-child"), of: computed.map(called),
  layers: computed.map((at) => facts(at).filter((fact) => fact.includes(" layers "))[0]?.split(" ")[0] ?? null),
  all: texts("#batch details tr").length - 1,
};
tell(said);
"##;
    let model = Model::open("weights/convnet28")?;
    let builder = Engine::builder(&model).beside(&model).average().on(&Device::open(Target::Cpu)?);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("several.html");
    fs::write(&path, page_of(builder, 5)? + &script(LOOKER))?;
    let said = visit(browser, &path, 1280, false)?;
    let name = model.name();
    let models = [name.to_owned(), format!("{name} #2"), "mean".into()];
    assert_eq!(said["of"], serde_json::json!(models), "{said:#}");
    for (index, name) in models.iter().enumerate() {
        let stream = if index == 0 { "compute".to_owned() } else { format!("compute-{index}") };
        let has = |list: &str, text: String| said[list].as_array().unwrap().contains(&text.into());
        assert!(has("names", format!("{stream}: {name}")) && has("figures", format!("– {name}")), "{said:#}");
    }
    let [first, second, mean] =
        [0, 1, 2].map(|index| said["layers"][index].as_str().map(|of| of.parse::<u64>().unwrap()));
    assert!(first.is_some() && first == second && mean.is_none(), "{said:#}");
    assert_eq!(said["all"].as_u64(), first.map(|layers| 2 * layers), "{said:#}");
    Ok(())
}

/// The page of a short run on the CPU.
fn page(batches: usize) -> Result<String, Failed> {
    let model = Model::open("weights/convnet28")?;
    page_of(Engine::builder(&model).on(&Device::open(Target::Cpu)?), batches)
}

fn page_of(builder: EngineBuilder<'_>, batches: usize) -> Result<String, Failed> {
    let engine = builder.batch_sizes(&[2]).slots(3).check(true).trace(true).build()?;
    for _ in 0..batches {
        drop(engine.acquire()?.submit(2)?.wait()?);
    }
    Ok(engine.trace().ok_or("the engine records")?.to_html())
}

/// A script at the end of a page, which reports its findings by `tell`.
fn script(what: &str) -> String {
    format!(
        r##"<script>
const tell = (said) => parent.document.body.append("RESULT" + JSON.stringify(said) + "END");
{what}</script>"##
    )
}

/// Opens the page in a frame of this size: a browser limits how narrow a window is, but not a frame. The browser has a
/// profile of its own, so that it does not meet another one.
fn open(
    browser: &str,
    page: &Path,
    width: usize,
    height: usize,
    dark: bool,
    more: &[String],
) -> Result<Output, Failed> {
    let (frame, profile) = (page.with_extension("frame.html"), page.with_extension("profile"));
    let src = page.file_name().ok_or("a page has a name")?.to_string_lossy();
    let style = format!("display: block; border: 0; width: {width}px; height: {height}px");
    fs::write(&frame, format!(r#"<!doctype html><body style="margin: 0"><iframe src="{src}" style="{style}">"#))?;
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--hide-scrollbars",
        "--allow-file-access-from-files",
    ]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("--blink-settings=preferredColorScheme={}", i32::from(!dark)));
    command.arg(format!("--window-size={width},{height}")).args(more).arg(format!("file://{}", frame.display()));
    let output = command.output();
    let _ = fs::remove_dir_all(&profile);
    Ok(output?)
}

/// The findings of the reader's script.
fn visit(browser: &str, page: &Path, width: usize, dark: bool) -> Result<Value, Failed> {
    let output = open(browser, page, width, 900, dark, &["--dump-dom".into()])?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.rsplit_once("RESULT").and_then(|(_, rest)| Some(rest.split_once("END")?.0));
    let told = || format!("{}\n{}", String::from_utf8_lossy(&output.stderr), &text[text.len().saturating_sub(400)..]);
    Ok(serde_json::from_str(&found.ok_or_else(told)?.replace("&lt;", "<").replace("&amp;", "&"))?)
}
