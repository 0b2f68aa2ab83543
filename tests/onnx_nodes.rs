//! The node tests of ONNX, which `tests/onnx/nodes.py` writes into the folder that `TREFOIL_ONNX_NODES` names.
//!
//! Each test is a model of one node, or of the nodes of a function, which is imported and evaluated on the CPU. Inputs
//! that shapes depend on are bound as constants: first integers with at most one dimension, then all inputs.
//! `tests/onnx/left_out.tsv` lists the tests that do not pass, with the reasons; a listed test that passes is a
//! failure. `TREFOIL_BLESS=1` writes the list anew.

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use support::nodes::{Bound, graph, values};
use trefoil::graph::{Graph, Op, Slice, Tensor, expand};
use trefoil::onnx::File;
use trefoil::{Dtype, loops};

const VARIABLE: &str = "TREFOIL_ONNX_NODES";
const LEFT_OUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/onnx/left_out.tsv");

fn main() {
    let arguments = Arguments::from_args();
    let Some(root) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        let name = format!("node tests of ONNX (none without a folder in {VARIABLE})");
        let trial = Trial::test(name, || Ok(())).with_ignored_flag(true);
        libtest_mimic::run(&arguments, vec![trial]).exit();
    };
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&root)
        .unwrap_or_else(|e| panic!("{VARIABLE}={}: {e}", root.display()))
        .map(|entry| entry.expect("the folder is readable").path())
        .collect();
    folders.sort();
    if std::env::var("TREFOIL_BLESS").is_ok_and(|value| value == "1") {
        return bless(&folders);
    }
    let left_out = left_out();
    let trial = |folder: PathBuf| {
        let name = name_of(&folder);
        let listed = left_out.get(&name).cloned();
        Trial::test(name, move || judge(run(&folder), listed))
    };
    libtest_mimic::run(&arguments, folders.into_iter().map(trial).collect()).exit();
}

fn name_of(folder: &Path) -> String {
    folder.file_name().expect("a folder in a folder").to_string_lossy().into_owned()
}

/// The tests that do not pass, with the reasons.
fn left_out() -> BTreeMap<String, String> {
    let lines = std::fs::read_to_string(LEFT_OUT).expect("it is in the repository");
    lines.lines().filter_map(|line| line.split_once('\t')).map(|(name, why)| (name.into(), why.into())).collect()
}

fn judge(result: Result<Bound, String>, listed: Option<String>) -> Result<(), Failed> {
    match (result, listed) {
        (Ok(_), None) | (Err(_), Some(_)) => Ok(()),
        (Err(why), None) => Err(why.into()),
        (Ok(_), Some(why)) => Err(format!("it passes, but is listed as left out: {why}").into()),
    }
}

/// Writes the list of tests that do not pass.
fn bless(folders: &[PathBuf]) {
    let (mut lines, mut passed) = (String::new(), BTreeMap::<Bound, usize>::new());
    for folder in folders {
        match run(folder) {
            Ok(bound) => *passed.entry(bound).or_default() += 1,
            Err(why) => lines += &format!("{}\t{}\n", name_of(folder), one_line(&why)),
        }
    }
    std::fs::write(LEFT_OUT, &lines).expect("the list is writable");
    println!("{} tests, {passed:?} pass, {} do not", folders.len(), lines.lines().count());
}

fn one_line(why: &str) -> String {
    let said = why.split_once("model.onnx: ").map_or(why, |(_, said)| said);
    let words: Vec<&str> = said.split_whitespace().collect();
    words.join(" ").chars().take(240).collect()
}

/// Runs one test; returns which inputs it needed as constants, or an error.
fn run(folder: &Path) -> Result<Bound, String> {
    let all = AssertUnwindSafe(|| {
        let file = File::open(folder.join("model.onnx")).map_err(|e| e.to_string())?;
        let inputs = values(folder, "input", file.model().graph.inputs.len())?;
        let wanted = values(folder, "output", file.model().graph.outputs.len())?;
        let mut why = String::new();
        for bound in [Bound::Nothing, Bound::Integers, Bound::Everything] {
            match answers(&file, &inputs, &wanted, bound) {
                Ok(all) => {
                    all.iter().try_for_each(|found| compare(found, &wanted))?;
                    return Ok(bound);
                }
                Err(said) if why.is_empty() => why = said,
                Err(_) => {}
            }
        }
        Err(why)
    });
    catch_unwind(all).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", said.unwrap_or("of another kind")))
    })
}

/// The answers of a model's graph, and those of its loops if it has any.
fn answers(file: &File, inputs: &[Tensor], wanted: &[Tensor], bound: Bound) -> Result<Vec<Vec<Tensor>>, String> {
    let (graph, fed) = graph(file, inputs, bound)?;
    let mut weight = |name: &str, _: &trefoil::graph::ValueType| file.weight(name);
    let found = loops::evaluate(&graph, &mut weight, &fed).map_err(|e| e.to_string())?;
    let mut all = vec![counted(&graph, found, wanted)?];
    let by_hand = |op: &Op| matches!(op, Op::TopK(_) | Op::Cumulate(_) | Op::ScatterElements(..) | Op::ScatterNd(_));
    if graph.nodes.iter().any(|node| by_hand(&node.op)) {
        let found = loops::evaluate(&expand(&graph), &mut weight, &fed).expect("the same graph is evaluated");
        all.push(counted(&graph, found, wanted)?);
    }
    Ok(all)
}

/// The outputs of a model, each cut to the number of elements that its count says; the counts are outputs, too.
fn counted(graph: &Graph, mut found: Vec<Tensor>, wanted: &[Tensor]) -> Result<Vec<Tensor>, String> {
    let counts = found.split_off(wanted.len());
    for (port, count) in graph.outputs[wanted.len()..].iter().zip(&counts) {
        let output = graph.outputs.iter().position(|output| format!("{}.count", output.name) == port.name);
        let output = output.expect("the other outputs are counts");
        let (value, to) = (&found[output], wanted[output].value_type());
        let mut dims = value.value_type().dims.clone();
        if let Some(axis) = (0..dims.len()).find(|&axis| to.dims.get(axis) != Some(&dims[axis])) {
            dims[axis] = count.elems::<i64>()[0] as usize;
        }
        let slice = Slice { start: vec![0; dims.len()], step: vec![1; dims.len()], dims };
        let op = Op::Slice(slice);
        let of = op.infer(&[Some(value.value_type())], 1)?;
        found[output] = loops::compute(&op, &[Some(value)], &of).map_err(|e| e.to_string())?.remove(0);
    }
    Ok(found)
}

/// Compares results with the tolerances of ONNX's own runner.
fn compare(found: &[Tensor], wanted: &[Tensor]) -> Result<(), String> {
    if found.len() != wanted.len() {
        return Err(format!("{} outputs: expected {}", found.len(), wanted.len()));
    }
    for (output, (found, wanted)) in found.iter().zip(wanted).enumerate() {
        if found.value_type() != wanted.value_type() {
            return Err(format!("output {output} is {}: expected {}", found.value_type(), wanted.value_type()));
        }
        let relative = if found.value_type().dtype == Dtype::Bf16 { 0.015_625 } else { 1e-3 };
        let close =
            |(a, b): (f64, f64)| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= 1e-7 + relative * b.abs();
        let pairs = found.to_f64s().into_iter().zip(wanted.to_f64s());
        let wrong: Vec<_> = pairs.enumerate().filter(|(_, pair)| !close(*pair)).collect();
        if let Some((at, (a, b))) = wrong.first() {
            let worst = wrong.iter().map(|(_, (a, b))| (a - b).abs()).fold(0.0, f64::max);
            return Err(format!(
                "output {output}: {} of {} differ, by {worst:e} at most; element {at} is {a}: expected {b}",
                wrong.len(),
                found.value_type()
            ));
        }
    }
    Ok(())
}
