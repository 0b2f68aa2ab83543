//! Describes the content of an ONNX file and the graph that it becomes, as `inspect` prints it.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use trefoil::graph::Graph;
use trefoil::onnx::{Dim, File, Problem, ValueInfo, ValueType};
use trefoil::plan::{Plan, Step};
use trefoil::printable;

use crate::{out, report};

/// Characters of a line where the width of the terminal is not known.
const WIDTH: usize = 80;
/// The most characters of a name.
const MOST_OF_A_NAME: usize = 48;
/// The most nodes that are listed of each operator.
const LISTED: usize = 5;

/// Prints the content of the file: versions, inputs, outputs and operators.
pub fn print(path: &Path) -> Result<()> {
    let file = File::open(path)?;
    let (model, mut out) = (file.model(), out::stdout());
    let graph = &model.graph;
    let opset = |(domain, version): (&str, i64)| match domain {
        "" => version.to_string(),
        domain => format!("{} {version}", printable(domain, MOST_OF_A_NAME)),
    };
    let opsets: Vec<String> = model.opsets.iter().map(opset).collect();
    let weights: usize = graph.initializers.iter().map(|tensor| tensor.elems()).sum();
    writeln!(out, "{}", report::path(path))?;
    let (nodes, millions) = (graph.nodes.len(), weights as f64 / 1e6);
    writeln!(out, "opset {}, {nodes} nodes, {millions:.2} million weights", opsets.join(", "))?;
    let is_constant = |info: &&ValueInfo| !graph.initializers.iter().any(|tensor| tensor.name == info.name);
    for (kind, infos) in [("input ", &graph.inputs), ("output", &graph.outputs)] {
        for info in infos.iter().filter(is_constant) {
            writeln!(out, "{kind}  {}", report::message(&port(info)))?;
        }
    }
    let free = file.free_dims();
    if !free.is_empty() {
        writeln!(out, "free dimensions, for --size: {}", report::message(&free.join(", ")))?;
    }
    writeln!(out, "\noperators of the file")?;
    print_counts(graph.nodes.iter().map(|node| match &node.domain[..] {
        "" => node.op_type.clone(),
        domain => format!("{domain}.{}", node.op_type),
    }))
}

/// Describes an input or output by the file's declaration.
fn port(info: &ValueInfo) -> String {
    let kind = match &info.kind {
        ValueType::Tensor { dtype, dims } => {
            let dtype = dtype.map_or_else(|| "unknown".to_owned(), |dtype| dtype.to_string());
            let dim = |dim: &Dim| match dim {
                Dim::Fixed(size) => size.to_string(),
                Dim::Named(name) => name.clone(),
                Dim::Unknown => "?".into(),
            };
            let dims = dims.iter().map(|dims| dims.iter().map(dim).collect::<Vec<_>>().join(","));
            format!("{dtype}{}", dims.map(|dims| format!("[{dims}]")).collect::<String>())
        }
        ValueType::Other(what) => (*what).to_owned(),
        _ => "unknown type".into(),
    };
    format!("`{}` of {kind}", info.name)
}

/// Prints the operations of the graph that the file becomes.
pub fn print_graph(graph: &Graph) -> Result<()> {
    writeln!(out::stdout(), "\nas a graph of one row: {} operations", graph.nodes.len())?;
    print_counts(graph.nodes.iter().map(|node| node.op.kind().to_owned()))
}

/// Prints the nodes that cannot be imported, by operator.
pub fn print_problems(problems: &[Problem]) -> Result<()> {
    let mut out = out::stdout();
    let mut groups = BTreeMap::<String, Vec<&Problem>>::new();
    problems.iter().for_each(|problem| groups.entry(problem.kind()).or_default().push(problem));
    writeln!(out, "\nnodes that are not supported: {}", problems.len())?;
    for (kind, problems) in groups {
        writeln!(out, "  {}: {}", printable(&kind, MOST_OF_A_NAME), problems.len())?;
        for problem in problems.iter().take(LISTED) {
            let Problem { node, operands, reason, .. } = problem;
            writeln!(out, "    {}", report::message(&format!("`{node}` of {operands}: {reason}")))?;
        }
        if let Some(more) = problems.len().checked_sub(LISTED).filter(|more| *more > 0) {
            writeln!(out, "    and {more} more")?;
        }
    }
    Ok(())
}

/// Prints the steps of a plan that only move elements: transposes and copies that were not fused into other steps.
pub fn print_moves(plan: &Plan) -> Result<()> {
    const MOVES: [&str; 6] = ["copy", "transpose", "reshape", "slice", "broadcast", "concat"];
    let moves = |step: &&Step| step.op.label(step.inputs.len()).split('+').all(|kind| MOVES.contains(&kind));
    let names: Vec<String> =
        plan.steps.iter().filter(moves).map(|step| printable(&step.name, MOST_OF_A_NAME)).collect();
    let said = format!("{} of {} steps only move elements", names.len(), plan.steps.len());
    match &names[..] {
        [] => writeln!(out::stdout(), "{said}")?,
        names => writeln!(out::stdout(), "{said}: {}", names.join(", "))?,
    }
    Ok(())
}

/// Prints the number of occurrences of each name, in columns, the most frequent first.
fn print_counts(names: impl Iterator<Item = String>) -> Result<()> {
    let mut counts = BTreeMap::<String, usize>::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    for line in columns(counts, out::width().unwrap_or(WIDTH)) {
        writeln!(out::stdout(), "{line}")?;
    }
    Ok(())
}

fn columns(counts: BTreeMap<String, usize>, width: usize) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count)); // stable: equal ones stay in the order of their names
    let cells: Vec<String> =
        counts.iter().map(|(name, count)| format!("  {count:>5} {}", printable(name, MOST_OF_A_NAME))).collect();
    let wide = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(1);
    let line = |cells: &[String]| cells.iter().map(|cell| format!("{cell:<wide$}")).collect::<String>();
    cells.chunks((width / wide).max(1)).map(|cells| line(cells).trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_stand_in_columns_of_a_line() {
        let counts = (0..23).map(|i| (format!("Operator{i}"), i % 3 + 1)).chain([("X".repeat(200), 9)]);
        let lines = columns(counts.collect(), WIDTH);
        assert!(lines.iter().all(|line| line.chars().count() <= WIDTH), "{lines:?}");
        assert!(lines[0].starts_with("      9 XXX") && lines.last().unwrap().contains("    1 "), "{lines:?}");
        let few = columns([("Add".to_owned(), 2), ("Relu".to_owned(), 12)].into(), WIDTH);
        assert_eq!(few, ["     12 Relu      2 Add"]);
    }
}
