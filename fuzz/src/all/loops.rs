//! Runs the loops of graphs of any operators as PTX in the stand-in for the driver, and compares the results with the
//! CPU.

use trefoil::graph::{Constant, Graph, Origin, Tensor, ValueId};
use trefoil::loops::ptx::{PtxTarget, kernel, module};
use trefoil::loops::{self, Kernel, Loop};
use trefoil::onnx::File;

use super::operators::{imported, inputs};
use super::support::loops::Case;
use crate::ptx::{Grid, Program};

pub fn run(bytes: &[u8]) {
    let Some((graph, file)) = imported(bytes) else { return };
    let mut values: Vec<Option<Tensor>> = sources(&graph, &file);
    for step in loops::schedule(&graph).steps {
        let operands: Option<Vec<&Tensor>> = step.reads.iter().map(|id| values[id.0].as_ref()).collect();
        let (Some(operands), Kernel::Loop(of)) = (operands, step.kernel) else { continue };
        let to = graph.value(step.writes[0]).clone();
        let operands: Vec<Tensor> = operands.into_iter().cloned().collect();
        let case = Case { name: format!("{:?}", step.nodes), scale: largest(&operands), of, operands, to };
        values[step.writes[0].0] = Some(case.expected());
        compare(&case);
    }
}

/// The values that no node writes: inputs and constants.
fn sources(graph: &Graph, file: &File) -> Vec<Option<Tensor>> {
    let inputs = inputs(graph);
    let of = |(id, value): (usize, &trefoil::graph::Value)| match &value.origin {
        Origin::Input(number) => Some(inputs[*number].clone()),
        Origin::Constant(Constant::Bytes(bytes)) => Some(Tensor::from_bytes(graph.value(ValueId(id)).clone(), bytes)),
        Origin::Constant(Constant::Weight(name)) => file.weight(name).ok(),
        Origin::Node(..) => None,
    };
    graph.values.iter().enumerate().map(of).collect()
}

fn compare(case: &Case) {
    let written = match kernel(&case.of, &PtxTarget::ANY) {
        Ok(written) => written,
        Err(error) => return assert!(adds_bools(&case.of), "{error}"),
    };
    if written.blocks == 0 {
        return;
    }
    let text = module([&written], &PtxTarget::ANY);
    let program = Program::read(&text).unwrap_or_else(|failure| panic!("{failure}\n{text}"));
    let mut memory: Vec<Vec<u128>> = written.operands.iter().map(|&number| words(&case.operands[number])).collect();
    memory.push(vec![0xA5; case.to.bytes().div_ceil(16)]);
    let ranges: Vec<_> = memory.iter_mut().map(|words| words.as_mut_ptr_range()).collect();
    let live: Vec<_> = ranges.iter().map(|range| range.start as usize..range.end as usize).collect();
    let arguments: Vec<u8> = live.iter().flat_map(|range| range.start.to_le_bytes()).collect();
    let grid = Grid { blocks: [written.blocks, 1, 1], threads: [written.threads, 1, 1], shared_bytes: 0 };
    // SAFETY: the live ranges are of `memory`, which lives until below and which nobody else touches.
    let done = unsafe { program.run(&program.entries[&written.entry], &grid, &arguments, &live) };
    done.unwrap_or_else(|fault| panic!("{}: {}\n{text}", case.name, fault.what));
    let found: Vec<u8> = memory.pop().expect("the result").into_iter().flat_map(u128::to_le_bytes).collect();
    let found = Tensor::from_bytes(case.to.clone(), &found[..case.to.bytes()]);
    case.check(&found).unwrap_or_else(|wrong| panic!("{wrong}\n{:#?}\n{text}", case.of));
}

fn adds_bools(of: &Loop) -> bool {
    of.terms.iter().any(|term| term.dtype == trefoil::Dtype::Bool)
}

/// The bytes of a value in words of 16 bytes, as kernels read them, with zeros after the last byte.
fn words(of: &Tensor) -> Vec<u128> {
    let word = |bytes: &[u8]| {
        let mut padded = [0; 16];
        padded[..bytes.len()].copy_from_slice(bytes);
        u128::from_le_bytes(padded)
    };
    of.bytes().chunks(16).map(word).collect()
}

/// The largest magnitude of a finite number in these values, at least 1.
fn largest(of: &[Tensor]) -> f64 {
    let all = of.iter().flat_map(Tensor::to_f64s).filter(|number| number.is_finite());
    all.fold(1.0, |most, number| most.max(number.abs()))
}
