//! Models of values: a graph for each number of rows, at sizes of their free dimensions.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::mixing::mixes;
use super::padding::Declared;
use super::weights::{Weights, name_of};
use crate::error::Error;
use crate::graph::e4m3::Coded;
use crate::graph::{Constant, Graph, Op, Port, Tensor, ValueType, batch_first, simplify};
use crate::onnx::{File, Sizes};
use crate::tensor::{Dims, Dtype, RowPort, RowSpec, Size};

/// A network as a function from a number of rows to a graph, with the rows that it reads and writes. In its graphs, the
/// ports of states follow those of rows.
#[derive(Clone)]
pub(crate) struct Values {
    source: Arc<Source>,
    /// The free dimensions except the batch.
    dims: Dims,
    /// The graph for one row.
    one: Graph,
    /// The axis of each port that is the batch; `None` if the network computes one row at a time.
    batch: Option<BatchAxes>,
    input: RowSpec,
    output: RowSpec,
    /// The declared padding of rows.
    pub(super) padding: Vec<Declared>,
    states: States,
    /// Nodes that are computed in f32 on every device, by name.
    pub(super) in_f32: BTreeSet<String>,
}

/// The states: inputs whose values are those of outputs in the run before.
#[derive(Clone, Default)]
struct States {
    /// The names of the inputs.
    inputs: Vec<Arc<str>>,
    /// The names of the outputs, in the same order.
    outputs: Vec<Arc<str>>,
    /// For each state, the port of a row that has nothing else.
    rows: Vec<RowPort>,
}

/// For each input and each output, the axis that is the batch.
#[derive(Clone)]
struct BatchAxes([Vec<usize>; 2]);

/// The constants and matrices that kernels read as weights of layers.
pub(super) struct LayerWeights {
    /// Constants that are part of the graphs.
    pub computed: BTreeMap<String, Tensor>,
    /// Matrices of products by name, each with whether the sum goes over its first axis.
    pub matrices: BTreeSet<(String, bool)>,
}

/// The source of graphs.
enum Source {
    /// A file, with constants for some inputs, and the names of the dimensions that are the batch.
    File(Box<File>, Sizes, Vec<String>),
    /// A function of the program.
    Code(Box<Build>),
}

type Build = dyn Fn(&Size) -> Result<Graph, Error> + Send + Sync;

impl Source {
    fn graph(&self, dims: &Dims, rows: usize) -> Result<Graph, Error> {
        match self {
            Self::File(file, constants, batch) => {
                let sizes = batch.iter().map(|name| (name, rows)).chain(dims.iter().map(|(name, &size)| (name, size)));
                file.graph(&sizes.fold(constants.clone(), |sizes, (name, size)| sizes.dim(name, size)))
            }
            Self::Code(build) => build(&Size::of(rows, dims.clone())),
        }
    }
}

impl Values {
    /// The network in a file at these sizes. The dimensions `batch` are the batch, if every input and output has such
    /// an axis.
    ///
    /// # Errors
    /// The errors of [`File::graph`]; [`Error::Graph`] for rows of the batch that depend on each other.
    pub(super) fn of_file(file: File, sizes: Sizes, batch: Vec<String>) -> Result<Self, Error> {
        let (dims, may_be_batched) = (sizes.dims().clone(), !batch.is_empty());
        let names = batch.iter().map(|name| format!("`{name}`")).collect::<BTreeSet<_>>();
        let source = Source::File(file.into(), sizes, batch);
        let one = source.graph(&dims, 1)?;
        let mut axes = None;
        if may_be_batched {
            let two = source.graph(&dims, 2)?;
            axes = batch_axes(&one, &two).ok();
            if let Some(BatchAxes([inputs, outputs])) = &axes {
                let three = source.graph(&dims, 3)?;
                if let Some(node) = mixes([&one, &two, &three], [inputs, outputs]) {
                    let names = names.into_iter().collect::<Vec<_>>().join(", ");
                    return Err(Error::graph(
                        node,
                        format!(
                            "it computes indices along {names} from each other, so that these cannot be rows of a batch: \
                             give the dimension a size (`--size NAME=N`, `Sizes::dim`)"
                        ),
                    ));
                }
            }
        }
        Self::new(source.into(), dims, one, axes)
    }

    /// The network of a function, with these free dimensions.
    ///
    /// # Errors
    /// The errors of `build`; [`Error::Graph`] for a port without a dimension that is the number of rows.
    pub(super) fn built(
        dims: Dims,
        build: impl Fn(&Size) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::batched(Arc::new(Source::Code(Box::new(build))), dims)
    }

    /// The network of a function whose graphs compute one row with any ports.
    ///
    /// # Errors
    /// The errors of `build`; [`Error::Graph`] for a row that no memory can hold.
    pub(super) fn unbatched(
        dims: Dims,
        build: impl Fn(&Size) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let source = Arc::new(Source::Code(Box::new(build)));
        let one = source.graph(&dims, 1)?;
        Self::new(source, dims, one, None)
    }

    /// The network of a function that makes graphs of other networks; some of its nodes may be computed in f32.
    ///
    /// # Errors
    /// The errors of `build`; [`Error::Graph`] for a batched network with a port without a dimension that is the number
    /// of rows, and for a row that no memory can hold.
    pub(super) fn of_parts(
        dims: Dims,
        is_batched: bool,
        in_f32: BTreeSet<String>,
        build: impl Fn(&Size) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let mut values = if is_batched { Self::built(dims, build)? } else { Self::unbatched(dims, build)? };
        values.in_f32 = in_f32;
        values.in_f32.retain(|name| values.one.find(name).is_some());
        Ok(values)
    }

    fn batched(source: Arc<Source>, dims: Dims) -> Result<Self, Error> {
        let one = source.graph(&dims, 1)?;
        match batch_axes(&one, &source.graph(&dims, 2)?) {
            Ok(axes) => Self::new(source, dims, one, Some(axes)),
            Err(port) => Err(Error::graph(
                &port,
                "expected one dimension that is the number of rows, and others that do not depend on it",
            )),
        }
    }

    /// The network of one graph, which computes one row.
    ///
    /// # Errors
    /// [`Error::Graph`] for a row that no memory can hold.
    pub(super) fn fixed(graph: Graph) -> Result<Self, Error> {
        Self::unbatched(Dims::new(), move |_| Ok(graph.clone()))
    }

    fn new(source: Arc<Source>, dims: Dims, one: Graph, batch: Option<BatchAxes>) -> Result<Self, Error> {
        let (one, empty) = (first(one, batch.as_ref()), RowSpec::new::<&str>([]));
        let (input, output) = (empty.clone(), empty);
        let (padding, states, in_f32) = (Vec::new(), States::default(), BTreeSet::new());
        Self { source, dims, one, batch, input, output, padding, states, in_f32 }.with_states(&[], &[])
    }

    /// The network with these inputs as states. Each state takes the value of the output at the same index, which has
    /// the same type and dimensions.
    ///
    /// # Errors
    /// [`Error::Graph`] for a row that no memory can hold.
    fn with_states(&self, inputs: &[Arc<str>], outputs: &[Arc<str>]) -> Result<Self, Error> {
        let one = self.one.clone().with_last(inputs, outputs);
        let [read, written] =
            [&one.inputs[..], &one.outputs[..]].map(|ports| ports.split_at(ports.len() - inputs.len()));
        let (input, output) = (self.rows(&one, read.0)?, self.rows(&one, written.0)?);
        let state = |port: &Port| self.rows(&one, std::slice::from_ref(port)).map(|row| row.ports()[0].clone());
        let rows = read.1.iter().map(state).collect::<Result<_, _>>()?;
        let states = States { inputs: inputs.to_vec(), outputs: outputs.to_vec(), rows };
        Ok(Self { one, input, output, states, ..self.clone() })
    }

    /// The rows of these ports of the graph for one row.
    fn rows(&self, one: &Graph, ports: &[Port]) -> Result<RowSpec, Error> {
        let port = |port: &Port| -> (Arc<str>, Dtype, Vec<usize>) {
            let ValueType { dtype, dims } = one.value(port.value);
            (port.name.as_str().into(), *dtype, dims[usize::from(self.is_batched())..].to_vec())
        };
        RowSpec::checked(ports.iter().map(port)).ok_or_else(|| Error::graph("", "a row that no memory can hold"))
    }

    /// The network with an input as a state: its value is that of an output in the run before.
    ///
    /// # Errors
    /// [`Error::Option`] for an input or an output that the network does not have, or its only one; for two of
    /// different types; for an input that may be padded.
    pub(super) fn with_state(&self, input: &str, output: &str) -> Result<Self, Error> {
        let [read, written] = [self.input.port(input)?, self.output.port(output)?];
        if (read.dtype, &read.dims) != (written.dtype, &written.dims) {
            return Err(Error::option("state", written, format!("an output as the input is, {read}")));
        }
        if self.padding.iter().any(|declared| declared.port == read.name) {
            return Err(Error::option("state", read, "an input that rows do not pad"));
        }
        if self.input.ports().len() == 1 || self.output.ports().len() == 1 {
            return Err(Error::option("state", read, "a model with another input, and another output"));
        }
        let with = |names: &[Arc<str>], port: &RowPort| [names, std::slice::from_ref(&port.name)].concat();
        self.with_states(&with(&self.states.inputs, read), &with(&self.states.outputs, written))
    }

    /// The states: for each, the port of a row that has nothing else, under the name of the input.
    pub fn states(&self) -> &[RowPort] {
        &self.states.rows
    }

    /// The network at other sizes of its free dimensions. Sizes of other dimensions are ignored.
    ///
    /// # Errors
    /// The errors of its construction.
    pub(super) fn at(&self, dims: &Dims) -> Result<Self, Error> {
        let size = |(name, size): (&String, &usize)| (name.clone(), *dims.get(name).unwrap_or(size));
        let (source, dims) = (self.source.clone(), self.dims.iter().map(size).collect());
        if dims == self.dims {
            return Ok(self.clone());
        }
        let mut values = match &self.batch {
            Some(_) => Self::batched(source, dims)?,
            None => {
                let one = source.graph(&dims, 1)?;
                Self::new(source, dims, one, None)?
            }
        };
        values.padding.clone_from(&self.padding);
        values.in_f32.clone_from(&self.in_f32);
        values.with_states(&self.states.inputs, &self.states.outputs)
    }

    /// The network with this change of each graph, which leaves inputs and outputs as they are.
    ///
    /// # Errors
    /// The errors of its construction.
    pub(super) fn edited(&self, edit: impl Fn(&Graph) -> Graph + Send + Sync + 'static) -> Result<Self, Error> {
        let from = self.source.clone();
        let build = move |size: &Size| from.graph(size.dims(), size.batch()).map(|graph| edit(&simplify(&graph)));
        let source = Arc::new(Source::Code(Box::new(build)));
        let one = source.graph(&self.dims, 1)?;
        let mut values = Self::new(source, self.dims.clone(), one, self.batch.clone())?;
        values.padding.clone_from(&self.padding);
        values.in_f32.clone_from(&self.in_f32);
        values.with_states(&self.states.inputs, &self.states.outputs)
    }

    /// The names of the nodes that are computed in f32 on every device.
    pub const fn in_f32(&self) -> &BTreeSet<String> {
        &self.in_f32
    }

    /// The sizes of the free dimensions.
    pub(super) const fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The network with another description of its input rows, which have the same ports.
    pub(super) fn with_input(self, input: RowSpec) -> Self {
        assert!(self.input.is_like(&input), "rows of the same ports");
        Self { input, ..self }
    }

    /// The constants and matrices that kernels read as weights of layers.
    pub(super) fn layer_weights(&self) -> Result<LayerWeights, Error> {
        let graph = self.graph(1)?;
        let (mut computed, mut matrices) = (BTreeMap::new(), BTreeSet::new());
        for node in &graph.nodes {
            let (sums_first, read) = match &node.op {
                Op::Contract(of) => (of.sums_first(), &node.inputs[1..]),
                Op::Conv(_) => (None, &node.inputs[1..]),
                Op::Recurrent(_) => (Some(false), &node.inputs[1..2]),
                Op::Map(_) => (None, &node.inputs[..]), // which may add the bias of a layer
                _ => continue,
            };
            for &id in read.iter().flatten() {
                let (of, Some(constant)) = (graph.value(id), graph.constant(id)) else { continue };
                if matches!(node.op, Op::Map(_)) && (of.rank() != 1 || of.dtype != Dtype::F32) {
                    continue;
                }
                let name = name_of(constant, of);
                if let Constant::Bytes(bytes) = constant {
                    computed.insert(name.clone(), Tensor::from_bytes(of.clone(), bytes));
                }
                matrices.extend(sums_first.map(|sums_first| (name, sums_first)));
            }
            // A matrix of codes is read as it is.
            let coded = node.inputs.get(1).copied().flatten().and_then(|id| Coded::of(&graph, id));
            if let (Some(of), Some(sums_first), Op::Contract(_)) = (coded, sums_first, &node.op)
                && let (value, Some(constant)) = (graph.value(of.codes), graph.constant(of.codes))
                && value.rank() == 2
            {
                let name = name_of(constant, value);
                if let Constant::Bytes(bytes) = constant {
                    computed.insert(name.clone(), Tensor::from_bytes(value.clone(), bytes));
                }
                matrices.insert((name, sums_first != of.transposed));
            }
        }
        Ok(LayerWeights { computed, matrices })
    }

    /// The graph for a number of rows, which is 1 if the model [is not batched](Self::is_batched).
    ///
    /// # Errors
    /// The errors of the network's construction.
    pub fn graph(&self, rows: usize) -> Result<Graph, Error> {
        match rows {
            1 => Ok(simplify(&self.one)),
            _ => {
                let graph = first(self.source.graph(&self.dims, rows)?, self.batch.as_ref());
                Ok(simplify(&graph.with_last(&self.states.inputs, &self.states.outputs)))
            }
        }
    }

    /// Whether the network computes several rows at once: every input and output has the batch as an axis.
    pub const fn is_batched(&self) -> bool {
        self.batch.is_some()
    }

    /// The rows of requests.
    pub const fn input(&self) -> &RowSpec {
        &self.input
    }

    /// The rows of results.
    pub const fn output(&self) -> &RowSpec {
        &self.output
    }

    /// Checks that the weights have all tensors that the graph names, with their dimensions.
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

/// The graph with the batch as the first axis of each port.
fn first(graph: Graph, axes: Option<&BatchAxes>) -> Graph {
    match axes {
        Some(BatchAxes([inputs, outputs])) => batch_first(graph, inputs, outputs),
        None => graph,
    }
}

/// The axes that are the batch. If there are none, the name of the first port with other differences than one axis of 1
/// and 2.
fn batch_axes(one: &Graph, two: &Graph) -> Result<BatchAxes, String> {
    let of_port = |(a, b): (&Port, &Port)| {
        let [one, two] = [&one.value(a.value).dims, &two.value(b.value).dims];
        let mut differing = one.iter().zip(two).enumerate().filter(|(_, (a, b))| a != b);
        match (differing.next(), differing.next()) {
            (Some((axis, (1, 2))), None) if one.len() == two.len() => Ok(axis),
            _ => Err(a.name.clone()),
        }
    };
    let of_ports = |one: &[Port], two: &[Port]| one.iter().zip(two).map(of_port).collect::<Result<_, _>>();
    Ok(BatchAxes([of_ports(&one.inputs, &two.inputs)?, of_ports(&one.outputs, &two.outputs)?]))
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Values").field("input", &self.input).field("output", &self.output).finish_non_exhaustive()
    }
}
