//! The evaluation of operations and graphs.

use super::eval::{self, View};
use super::hand;
use super::ir::Loop;
use super::lower::{Lowered, lower};
use super::schedule::{Kernel, Step, schedule};
use super::team::{Alone, Team};
use crate::error::Error;
use crate::graph::{Constant, Graph, Node, Op, Origin, Port, Tensor, ValueId, ValueType};

/// The results of an operation.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, Op, Tensor, ValueType}, loops};
/// let [a, b] = [Tensor::of(&[3], &[1_i32, 2, 3]), Tensor::of(&[], &[10_i32])];
/// let sum = Op::Map(Expr::arg(0) + Expr::arg(1));
/// let sums = loops::compute(&sum, &[Some(&a), Some(&b)], &[ValueType::new(Dtype::I32, &[3])])?;
/// assert_eq!(sums[0].elems::<i32>(), [11, 12, 13]);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Graph`] if the operation does not take these operands or writes other types than `outputs`,
/// [`Error::OutOfMemory`] if there is no room for them.
pub fn compute(op: &Op, inputs: &[Option<&Tensor>], outputs: &[ValueType]) -> Result<Vec<Tensor>, Error> {
    compute_by(&Alone(0), op, inputs, outputs)
}

/// The results of an operation, computed by a team.
pub(crate) fn compute_by(
    team: &dyn Team,
    op: &Op,
    inputs: &[Option<&Tensor>],
    outputs: &[ValueType],
) -> Result<Vec<Tensor>, Error> {
    let types: Vec<Option<&ValueType>> = inputs.iter().map(|input| input.map(Tensor::value_type)).collect();
    let wrong = |what: String| Error::graph(op.kind(), what);
    let written = op.infer(&types, outputs.len()).map_err(wrong)?;
    if written != outputs {
        return Err(wrong(format!("it writes {}, not {}", list(&written), list(outputs))));
    }
    match lower(op, &types, outputs) {
        Lowered::Loops(loops) => {
            let operands: Vec<&Tensor> = inputs.iter().copied().flatten().collect();
            loops.iter().zip(outputs).map(|(of, output)| run_by(team, of, &operands, output.clone())).collect()
        }
        Lowered::ByHand => hand::compute(op, inputs, outputs, team),
    }
}

/// The result of a loop, as a value of type `to`.
///
/// # Errors
/// [`Error::OutOfMemory`] if there is no room for it.
///
/// # Panics
/// If operands have other types than those of the loop, if `to` has another type or number of elements than the result,
/// or if a load leaves its operand.
pub fn run(of: &Loop, operands: &[&Tensor], to: ValueType) -> Result<Tensor, Error> {
    run_by(&Alone(0), of, operands, to)
}

/// The result of a loop, computed by a team.
pub(super) fn run_by(team: &dyn Team, of: &Loop, operands: &[&Tensor], to: ValueType) -> Result<Tensor, Error> {
    assert_eq!((of.elems(), of.dtype()), (to.elems(), to.dtype), "what a loop writes");
    let operands: Vec<View<'_>> = operands.iter().map(|&operand| operand.into()).collect();
    let mut result = Tensor::zeros(to)?;
    eval::run(eval::in_parts(of).as_ref().unwrap_or(of), &operands, result.bytes_mut(), team)?;
    Ok(result)
}

/// Writes every element of a loop's result; the threads of a team share the work.
///
/// # Errors
/// [`Error::OutOfMemory`] if there is no room for intermediate results.
///
/// # Panics
/// As [`run`].
pub(crate) fn run_into(team: &dyn Team, of: &Loop, operands: &[View<'_>], to: &mut [u8]) -> Result<(), Error> {
    eval::run(of, operands, to, team)
}

/// The outputs of a graph. `weight` gives weights by their names, in the types that they have in the graph. A value is
/// dropped after its last read; most values are never stored, as in the graph's [`schedule`](super::schedule).
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, GraphBuilder, Tensor}, loops};
/// let mut g = GraphBuilder::new();
/// let [x, w] = [g.input("x", Dtype::F32, &[2]), g.weight("w", Dtype::F32, &[2])];
/// let y = g.map("scale", Expr::arg(0) * Expr::arg(1), &[x, w]);
/// g.output("y", y);
/// let x = Tensor::of(&[2], &[3.0_f32, 4.0]);
/// let y = loops::evaluate(&g.finish()?, &mut |_, _| Ok(Tensor::of(&[2], &[0.5_f32, -1.0])), &[x])?;
/// assert_eq!(y[0].elems::<f32>(), [1.5, -4.0]);
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Option`] if `inputs` do not have the types of the graph's inputs, [`Error::Graph`] if a weight does not
/// have its type, [`Error::OutOfMemory`], or an error of `weight`.
pub fn evaluate(
    graph: &Graph,
    weight: &mut dyn FnMut(&str, &ValueType) -> Result<Tensor, Error>,
    inputs: &[Tensor],
) -> Result<Vec<Tensor>, Error> {
    check_inputs(graph, inputs)?;
    let schedule = schedule(graph);
    let mut readers = vec![0; graph.values.len()];
    let shown = graph.outputs.iter().map(|port| schedule.view_of(port.value));
    schedule.steps.iter().flat_map(|step| step.reads.iter().copied()).chain(shown).for_each(|id| readers[id.0] += 1);
    let mut values = Values { graph, weight, inputs, there: vec![None; graph.values.len()], readers };
    schedule.steps.iter().try_for_each(|step| values.compute(step))?;
    let answer = |port: &Port| {
        let value = values.taken(schedule.view_of(port.value))?;
        Ok(value.cast(graph.value(port.value).clone()))
    };
    graph.outputs.iter().map(answer).collect()
}

/// The values of a graph that exist at present.
struct Values<'a> {
    graph: &'a Graph,
    weight: &'a mut dyn FnMut(&str, &ValueType) -> Result<Tensor, Error>,
    inputs: &'a [Tensor],
    there: Vec<Option<Tensor>>,
    /// For each value, the number of reads that are left.
    readers: Vec<usize>,
}

impl Values<'_> {
    fn compute(&mut self, step: &Step) -> Result<(), Error> {
        for &id in &step.reads {
            if self.there[id.0].is_none() {
                self.there[id.0] = Some(self.source(id)?);
            }
        }
        let written = computed(self.graph, step, &self.there)?;
        for (id, value) in step.writes.iter().zip(written) {
            self.there[id.0] = Some(value).filter(|_| self.readers[id.0] > 0);
        }
        step.reads.iter().for_each(|&id| self.read(id));
        Ok(())
    }

    /// Counts a read of a value, and drops the value after the last one.
    fn read(&mut self, id: ValueId) {
        self.readers[id.0] -= 1;
        if self.readers[id.0] == 0 {
            self.there[id.0] = None;
        }
    }

    /// The value of an output.
    fn taken(&mut self, id: ValueId) -> Result<Tensor, Error> {
        let value = match &self.there[id.0] {
            Some(value) => value.clone(),
            None => self.source(id)?,
        };
        self.read(id);
        Ok(value)
    }

    /// The value of an input or a constant.
    fn source(&mut self, id: ValueId) -> Result<Tensor, Error> {
        let of = self.graph.value(id);
        match &self.graph.values[id.0].origin {
            Origin::Input(number) => Ok(self.inputs[*number].clone()),
            Origin::Constant(Constant::Bytes(bytes)) => Ok(Tensor::from_bytes(of.clone(), bytes)),
            Origin::Constant(Constant::Weight(name)) => {
                let found = (self.weight)(name, of)?;
                match found.value_type() == of {
                    true => Ok(found),
                    false => Err(Error::graph(name, format!("expected {of}, found {}", found.value_type()))),
                }
            }
            Origin::Node(node, _) => unreachable!("steps are in order, and node {} comes before its readers", node.0),
        }
    }
}

fn check_inputs(graph: &Graph, inputs: &[Tensor]) -> Result<(), Error> {
    let expected: Vec<&ValueType> = graph.inputs.iter().map(|port| graph.value(port.value)).collect();
    let found: Vec<&ValueType> = inputs.iter().map(Tensor::value_type).collect();
    match expected == found {
        true => Ok(()),
        false => Err(Error::option("inputs", list(&found), list(&expected))),
    }
}

fn list(types: &[impl ToString]) -> String {
    types.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn computed(graph: &Graph, step: &Step, values: &[Option<Tensor>]) -> Result<Vec<Tensor>, Error> {
    let operands = step.reads.iter().map(|id| values[id.0].as_ref().expect("it was written or brought"));
    match &step.kernel {
        Kernel::Loop(of) => {
            let to = graph.value(step.writes[0]).clone();
            Ok(vec![run(of, &operands.collect::<Vec<_>>(), to)?])
        }
        Kernel::Apart(id) => by_hand(graph, &graph.nodes[id.0], operands),
    }
}

fn by_hand<'v>(
    graph: &Graph,
    node: &Node,
    mut operands: impl Iterator<Item = &'v Tensor>,
) -> Result<Vec<Tensor>, Error> {
    let mut input = |id: ValueId| operands.next().map(|value| value.clone().cast(graph.value(id).clone()));
    let inputs: Vec<Option<Tensor>> = node.inputs.iter().map(|id| id.and_then(&mut input)).collect();
    let outputs: Vec<ValueType> = node.outputs.iter().map(|&id| graph.value(id).clone()).collect();
    compute(&node.op, &inputs.iter().map(Option::as_ref).collect::<Vec<_>>(), &outputs).map_err(|error| match error {
        Error::Graph { what, .. } => Error::graph(&node.name, format!("{}: {what}", node.op.kind())),
        other => other,
    })
}
