//! Loops on a GPU, generated as PTX, compared with the CPU.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use trefoil::graph::{Constant, Graph, Origin, Tensor, ValueType};
use trefoil::loops::{Loop, compute};
use trefoil::onnx::File;
use trefoil::{Device, LoopModule};

use super::loops::Case;
use super::nodes::{Bound, graph, values};

/// Runs all cases in one module, and compares.
pub fn run(device: &Device, cases: &[Case]) -> Result<(), String> {
    let loops: Vec<&Loop> = cases.iter().map(|case| &case.of).collect();
    let module = LoopModule::new(device, &loops).map_err(|error| format!("{}: {error}", cases[0].name))?;
    let failed: Vec<String> =
        cases.iter().enumerate().filter_map(|(number, case)| run_one(&module, number, case).err()).collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{} of {} fail:\n{}", failed.len(), cases.len(), failed.join("\n"))),
    }
}

fn run_one(module: &LoopModule, number: usize, case: &Case) -> Result<(), String> {
    let operands: Vec<&Tensor> = case.operands.iter().collect();
    let told = |error: trefoil::Error| format!("{}: {error}", case.name);
    let mut run = module.run(number, &case.of, &operands, &case.to, 1).map_err(told)?;
    run.run(2).map_err(told)?;
    case.check(&run.result().map_err(told)?)
}

/// The distinct loops of ONNX's node tests in the folder that `TREFOIL_ONNX_NODES` names.
pub fn of_nodes() -> Vec<Case> {
    let Some(root) = std::env::var_os("TREFOIL_ONNX_NODES").map(PathBuf::from) else { return Vec::new() };
    let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("the folder is readable").path()).collect();
    folders.sort();
    let mut known = HashSet::new();
    let cases = folders.iter().flat_map(|folder| of_folder(folder));
    cases.filter(|case| known.insert(format!("{:?}", case.of))).collect()
}

/// The loops of a node test; none if it cannot be imported.
fn of_folder(folder: &Path) -> Vec<Case> {
    let Ok(file) = File::open(folder.join("model.onnx")) else { return Vec::new() };
    let Ok(inputs) = values(folder, "input", file.model().graph.inputs.len()) else { return Vec::new() };
    let name = folder.file_name().expect("a folder in a folder").to_string_lossy();
    let found = [Bound::Nothing, Bound::Integers].into_iter().find_map(|bound| graph(&file, &inputs, bound).ok());
    let Some((graph, fed)) = found else { return Vec::new() };
    of_graph(&name, &graph, &file, &fed).unwrap_or_default()
}

/// The loops of a graph's nodes with their operands, which the CPU computes.
fn of_graph(name: &str, graph: &Graph, file: &File, fed: &[Tensor]) -> Result<Vec<Case>, trefoil::Error> {
    let mut known: Vec<Option<Tensor>> = vec![None; graph.values.len()];
    for (value, of) in known.iter_mut().zip(&graph.values) {
        *value = match &of.origin {
            Origin::Input(number) => Some(fed[*number].clone()),
            Origin::Constant(Constant::Bytes(bytes)) => Some(Tensor::from_bytes(of.of.clone(), bytes)),
            Origin::Constant(Constant::Weight(weight)) => Some(file.weight(weight)?),
            Origin::Node(..) => None,
        };
    }
    let mut cases = Vec::new();
    for node in &graph.nodes {
        let inputs: Vec<Option<&Tensor>> =
            node.inputs.iter().map(|id| id.and_then(|id| known[id.0].as_ref())).collect();
        let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| graph.value(id).clone()).collect();
        let types: Vec<Option<&ValueType>> = inputs.iter().map(|input| input.map(Tensor::value_type)).collect();
        let operands: Vec<&Tensor> = inputs.iter().copied().flatten().collect();
        let title = format!("{name}, {}", node.op.kind());
        cases.extend(Case::of_types(&title, &node.op, &operands, &types, &outputs));
        for (id, value) in node.outputs.iter().zip(compute(&node.op, &inputs, &outputs)?) {
            known[id.0] = Some(value);
        }
    }
    Ok(cases)
}
