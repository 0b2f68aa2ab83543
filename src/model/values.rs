//! A network of any values: a graph for each number of rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::weights::{Weights, name_of};
use crate::error::Error;
use crate::graph::{Constant, Graph, Op, Port, Tensor, ValueType, simplify};
use crate::onnx::{File, Sizes};
use crate::tensor::{Dtype, RowSpec};

/// A network as a function from a number of rows to a graph, and the rows that it reads and writes.
pub(crate) struct Values {
    source: Source,
    /// The source's graph for one row.
    one: Graph,
    is_batched: bool,
    input: RowSpec,
    output: RowSpec,
}

/// What kernels read as weights of a network's layers.
pub(super) struct LayerWeights {
    /// Constants that its graphs have themselves.
    pub computed: BTreeMap<String, Tensor>,
    /// Matrices of products, each with whether the sum goes over its first axis.
    pub matrices: BTreeSet<(String, bool)>,
}

/// Where its graphs come from.
enum Source {
    /// A file, at these sizes, with dimensions that are the batch.
    File(Box<File>, Sizes, Vec<String>),
    /// Code.
    Code(Box<Build>),
}

type Build = dyn Fn(usize) -> Result<Graph, Error> + Send + Sync;

impl Source {
    fn graph(&self, rows: usize) -> Result<Graph, Error> {
        match self {
            Self::File(file, sizes, batch) => {
                file.graph(&batch.iter().fold(sizes.clone(), |sizes, name| sizes.dim(name, rows)))
            }
            Self::Code(build) => build(rows),
        }
    }
}

impl Values {
    /// Of a file at these sizes. These free dimensions are the batch, if every input and output has it as its first.
    ///
    /// # Errors
    /// Those of [`File::graph`].
    pub(super) fn of_file(file: File, sizes: Sizes, batch: Vec<String>) -> Result<Self, Error> {
        let is_free = !batch.is_empty();
        let source = Source::File(file.into(), sizes, batch);
        let one = source.graph(1)?;
        let is_batched = is_free && not_batched(&one, &source.graph(2)?).is_none();
        Self::new(source, one, is_batched)
    }

    /// Of code.
    ///
    /// # Errors
    /// What the code answers; [`Error::Graph`] for a port whose first dimension is not the number of rows.
    pub(super) fn built(build: impl Fn(usize) -> Result<Graph, Error> + Send + Sync + 'static) -> Result<Self, Error> {
        let source = Source::Code(Box::new(build));
        let one = source.graph(1)?;
        match not_batched(&one, &source.graph(2)?) {
            None => Self::new(source, one, true),
            Some(port) => Err(Error::graph(port, "its dimensions are not the number of rows and others that stay")),
        }
    }

    /// Of one graph, which computes one row.
    ///
    /// # Errors
    /// [`Error::Graph`] for a row that no memory can hold.
    pub(super) fn fixed(graph: Graph) -> Result<Self, Error> {
        let one = graph.clone();
        Self::new(Source::Code(Box::new(move |_| Ok(graph.clone()))), one, false)
    }

    fn new(source: Source, one: Graph, is_batched: bool) -> Result<Self, Error> {
        let rows = |ports: &[Port]| {
            let port = |port: &Port| -> (Arc<str>, Dtype, Vec<usize>) {
                let ValueType { dtype, dims } = one.value(port.value);
                (port.name.as_str().into(), *dtype, dims[usize::from(is_batched)..].to_vec())
            };
            RowSpec::checked(ports.iter().map(port)).ok_or_else(|| Error::graph("", "a row that no memory can hold"))
        };
        let (input, output) = (rows(&one.inputs)?, rows(&one.outputs)?);
        Ok(Self { source, one, is_batched, input, output })
    }

    /// What kernels read as weights of the layers.
    pub(super) fn layer_weights(&self) -> Result<LayerWeights, Error> {
        let graph = self.graph(1)?;
        let (mut computed, mut matrices) = (BTreeMap::new(), BTreeSet::new());
        for node in &graph.nodes {
            let sums_first = match &node.op {
                Op::Contract(of) => of.sums_first(),
                Op::Conv(_) => None,
                _ => continue,
            };
            for &id in node.inputs[1..].iter().flatten() {
                let (of, Some(constant)) = (graph.value(id), graph.constant(id)) else { continue };
                let name = name_of(constant, of);
                if let Constant::Bytes(bytes) = constant {
                    computed.insert(name.clone(), Tensor::from_bytes(of.clone(), bytes));
                }
                matrices.extend(sums_first.map(|sums_first| (name, sums_first)));
            }
        }
        Ok(LayerWeights { computed, matrices })
    }

    /// The graph for so many rows; only one if it [is not batched](Self::is_batched).
    ///
    /// # Errors
    /// As for the first one.
    pub fn graph(&self, rows: usize) -> Result<Graph, Error> {
        match rows {
            1 => Ok(simplify(&self.one)),
            _ => Ok(simplify(&self.source.graph(rows)?)),
        }
    }

    /// Whether it computes several rows at once: every input and output has the batch as its first dimension.
    pub const fn is_batched(&self) -> bool {
        self.is_batched
    }

    /// What a request brings.
    pub const fn input(&self) -> &RowSpec {
        &self.input
    }

    /// What it gets.
    pub const fn output(&self) -> &RowSpec {
        &self.output
    }

    /// Whether the weights have what the graph names.
    pub(super) fn check(&self, weights: &Weights) -> Result<(), Error> {
        for value in &self.one.values {
            if let crate::graph::Origin::Constant(Constant::Weight(name)) = &value.origin {
                match weights.dims(name) {
                    Some(dims) if dims == value.of.dims => {}
                    Some(dims) => return Err(weights.error(name, value.of.to_string(), format!("{dims:?}"))),
                    None => return Err(weights.missing(name, value.of.to_string())),
                }
            }
        }
        Ok(())
    }
}

/// The first port whose dimensions are not the number of rows and others that stay, if there is one.
fn not_batched<'a>(one: &'a Graph, two: &Graph) -> Option<&'a str> {
    let ports = |graph: &'a Graph| graph.inputs.iter().chain(&graph.outputs);
    let is_batched = |(a, b): (&Port, &Port)| match (&one.value(a.value).dims[..], &two.value(b.value).dims[..]) {
        ([1, a @ ..], [2, b @ ..]) => a == b,
        _ => false,
    };
    let of_two = two.inputs.iter().chain(&two.outputs);
    ports(one).zip(of_two).find(|&(a, b)| !is_batched((a, b))).map(|(port, _)| port.name.as_str())
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("input", &self.input).field("output", &self.output).finish_non_exhaustive()
    }
}
