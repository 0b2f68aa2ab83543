//! The rows that a program reads and writes. They depend on the graph and the requested formats, not on a plan.

use super::Family;
use crate::error::Error;
use crate::model::images::Network;
use crate::model::{Op, infer};
use crate::tensor::{Dtype, InputFormat, OutputKind, RowSpec, Shape};

/// The input and output rows of a graph.
///
/// # Errors
/// [`Error::Graph`] for a graph that is not well-formed; those of [`check`].
pub(crate) fn specs(graph: &Network, (format, kind): (InputFormat, OutputKind)) -> Result<(RowSpec, RowSpec), Error> {
    let shapes = infer(graph)?;
    check(graph, &shapes, kind)?;
    Ok((input(graph.input, format), output(shapes[graph.output.0], kind)))
}

/// The input rows for images of a shape.
pub(super) fn input(image: Shape, format: InputFormat) -> RowSpec {
    RowSpec::image("image", format.dtype(), image)
}

/// The output rows for results of a shape.
pub(super) fn output(shape: Shape, kind: OutputKind) -> RowSpec {
    let name = match kind {
        OutputKind::Logits => "logits",
        OutputKind::Probabilities => "probabilities",
        OutputKind::TopK(_) => "top_k",
        OutputKind::Features => "features",
    };
    RowSpec::image(name, Dtype::F32, kind.of(shape))
}

/// The type in which a node's value is stored.
pub(super) const fn dtype(op: &Op, family: Family) -> Dtype {
    match op {
        Op::Rows(_, dtype) => *dtype,
        Op::Linear(_) | Op::Emit(_) => Dtype::F32,
        _ => family.dtype(),
    }
}

/// Checks that the graph's result can be written as this kind of output.
///
/// # Errors
/// [`Error::Unsupported`] for classes of a result that is no vector; [`Error::Option`] for a number of top
/// classes that is zero or too large.
pub(super) fn check(graph: &Network, shapes: &[Shape], kind: OutputKind) -> Result<(), Error> {
    let shape = shapes[graph.output.0];
    if kind != OutputKind::Features && shape.pixels() != 1 {
        return Err(Error::Unsupported {
            what: format!("output {kind:?} of a graph whose result has {} pixels", shape.pixels()),
            instead: "ask for features".into(),
        });
    }
    let (classes, most) = (shape.channels, MAX_TOP_K.min(shape.channels));
    match kind {
        OutputKind::TopK(k) if !(1..=most).contains(&k) => {
            Err(Error::option("top-k", k, format!("1 to {most} (the model has {classes} classes)")))
        }
        OutputKind::TopK(_) | OutputKind::Logits | OutputKind::Probabilities | OutputKind::Features => Ok(()),
    }
}

/// The largest number of classes of a top-k output.
const MAX_TOP_K: usize = 64;
