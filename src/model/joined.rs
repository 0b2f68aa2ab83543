//! One model of two models, and parts of a model of values.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use super::names::nearest;
use super::values::Values;
use super::{Model, Network};
use crate::error::Error;
use crate::graph::{Graph, Names, NodeId, Op, Port, ValueId, ValueType, cut, joined, up_to};
use crate::tensor::{Dims, InputFormat, OutputKind, Size};

impl Model {
    /// One model of values of this model and `next`, which reads values of this one: each of `links` names an output or
    /// an input of this model, and the input of `next` that has the same value. So a recogniser reads what a detector
    /// cuts out, in one graph; [`EngineBuilder::then`](crate::EngineBuilder::then) instead gives each model a stream of
    /// its own.
    ///
    /// The inputs of the new model are those of this model, then those of `next` that no link names. Its outputs are
    /// those of this model that no link names, then those of `next`. A name of `next` that this model has too gets the
    /// name of `next` and a slash in front. If both models have a free dimension of the same name, it is one dimension
    /// of the new model. The new model has no [`metadata`](Self::metadata).
    ///
    /// ```
    /// use trefoil::{Device, Engine, Target, model::Model, onnx::Sizes};
    /// let detector = Model::open("tests/data/onnx/boxes.onnx")?;
    /// # use trefoil::{Dtype, graph::{GraphBuilder, Reduce, ReduceOp, Op}, model::Weights};
    /// # let best = Model::of_graphs(Weights::from_tensors::<String>([])?, |rows| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let x = g.input("columns", Dtype::F32, &[rows, 6, 64]);
    /// #     let best = g.node("best", Op::Reduce(Reduce { op: ReduceOp::Max, axes: vec![2], keep: false }), &[x]);
    /// #     g.output("best", best);
    /// #     g.finish()
    /// # })?;
    /// let both = detector.join(&best, &[("output0", "columns")])?; // `best` is another model of values
    /// let engine = Engine::builder(&both).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.input().to_string(), "`images` of f32[3,64,64]");
    /// assert_eq!(engine.output().to_string(), "`best` of f32[6]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a link whose names the models do not have, for an input that is linked twice, for models of
    /// which one computes several rows at once and the other does not, and for different sizes of a free dimension of
    /// both; [`Error::Graph`] for a link of values of different types or dimensions; [`Error::Unsupported`] for a
    /// network of images, see [`Model::to_values`], and for a model with state.
    pub fn join(&self, next: &Self, links: &[(&str, &str)]) -> Result<Self, Error> {
        let [first, second] = [self.part_of_others("join")?, next.part_of_others("join")?];
        if first.is_batched() != second.is_batched() {
            let rows = |is_batched| if is_batched { "several rows at once" } else { "one row at a time" };
            let found = format!("`{}`, which computes {}", next.name(), rows(second.is_batched()));
            let expected = format!("a model that computes {}, as `{}`", rows(first.is_batched()), self.name());
            return Err(Error::option("join", found, expected));
        }
        let links =
            links.iter().map(|&(from, to)| Link::new(first, second, from, to)).collect::<Result<Vec<_>, _>>()?;
        if let Some(twice) =
            links.iter().enumerate().find(|(index, link)| links[..*index].iter().any(|l| l.to == link.to))
        {
            let name = &second.input().ports()[twice.1.to].name;
            return Err(Error::option("join", format!("two links of `{name}`"), "one link for each input"));
        }
        let dims = joined_dims(first, second)?;
        let (weights, renamed) = match Arc::ptr_eq(self.weights(), next.weights()) {
            true => (self.weights().clone(), BTreeMap::new()),
            false => {
                let (weights, renamed) = self.weights().joined(next.weights(), next.name());
                (weights.into(), renamed)
            }
        };
        let names = |of: &Graph| of.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
        let (taken, own) = (names(&first.graph(1)?), names(&second.graph(1)?));
        let [taken, own] = [&taken, &own].map(|names| names.iter().map(String::as_str).collect::<HashSet<_>>());
        let prefix = next.name().to_owned();
        let in_f32 = second.in_f32.iter().map(|name| {
            let names = Names { prefix: &prefix, weights: &renamed };
            names.distinct(name, &taken, &own)
        });
        let in_f32 = first.in_f32.iter().cloned().chain(in_f32).collect();
        let name = format!("{} + {prefix}", self.name());
        let (first, second, is_batched) = (first.clone(), second.clone(), first.is_batched());
        let build = move |size: &Size| {
            let [first, second] = [first.at(size.dims())?, second.at(size.dims())?];
            let [first, second] = [first.graph(size.batch())?, second.graph(size.batch())?];
            let links: Vec<_> = links.iter().map(|link| (link.value(&first), link.to)).collect();
            joined(&first, &second, &links, &Names { prefix: &prefix, weights: &renamed })
        };
        let model = Self::of_values(Values::of_parts(dims, is_batched, in_f32, build)?, weights)?;
        Ok(Self { pictures: self.pictures.clone(), ..model.with_name(&name) })
    }

    /// The model on `count` rows in place of each row: each input and output has a further dimension of this size in
    /// front. So a recogniser computes all crops of a photo at once.
    ///
    /// ```
    /// use trefoil::{Device, Engine, Target, model::Model};
    /// let detector = Model::open("tests/data/onnx/boxes.onnx")?;
    /// let engine = Engine::builder(&detector.each(5)?).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.input().to_string(), "`images` of f32[5,3,64,64]");
    /// assert_eq!(engine.output().to_string(), "`output0` of f32[5,6,64]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for a count of 0 or above 65,536; [`Error::Unsupported`] for a network of images, see
    /// [`Model::to_values`], for a model that computes one row at a time, and for a model with state.
    pub fn each(&self, count: usize) -> Result<Self, Error> {
        const MOST: usize = 1 << 16;
        let values = self.part_of_others("several rows of")?;
        if !(1..=MOST).contains(&count) {
            return Err(Error::option("each", count, format!("1 to {MOST}")));
        }
        if !values.is_batched() {
            return Err(Error::Unsupported {
                what: format!("{count} rows of `{}`, which computes one row at a time", self.name()),
                instead: "export it with a free dimension for the batch in all inputs and outputs".into(),
            });
        }
        let of = values.clone();
        let build = move |size: &Size| {
            let rows = size.batch();
            let mut graph = of.at(size.dims())?.graph(rows * count)?;
            for index in 0..graph.inputs.len() {
                let ValueType { dtype, dims } = graph.value(graph.inputs[index].value).clone();
                let each = ValueType::new(dtype, &[&[rows, count], &dims[1..]].concat());
                graph = graph.with_input_made(index, each, &[Op::Reshape(dims)]);
            }
            for index in 0..graph.outputs.len() {
                let dims = &graph.value(graph.outputs[index].value).dims;
                let each = Op::Reshape([&[rows, count], &dims[1..]].concat());
                graph = graph.with_output_made(index, each);
            }
            Ok(graph)
        };
        let values = Values::of_parts(values.dims().clone(), true, values.in_f32.clone(), build)?;
        self.with_part(values)
    }

    /// The model with an input as a further output, of the same name, behind the others. So the next model of a
    /// [flow](crate::EngineBuilder::then) reads what this one has read, such as the image that a detector has looked at.
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// let detector = Model::open("tests/data/onnx/boxes.onnx")?.passing("images")?;
    /// let engine = Engine::builder(&detector).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.output().to_string(), "`output0` of f32[6,64], `images` of f32[3,64,64]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Option`] for an input that the model does not have, or whose name an output has; [`Error::Unsupported`]
    /// for a network of images, see [`Model::to_values`], and for a model with state.
    pub fn passing(&self, input: &str) -> Result<Self, Error> {
        let values = self.part_of_others("passing on an input of")?;
        values.input().port(input)?;
        if values.output().ports().iter().any(|port| &*port.name == input) {
            return Err(Error::option("passing", format!("`{input}`"), "an input whose name no output has"));
        }
        let (of, name) = (values.clone(), input.to_owned());
        let build = move |size: &Size| {
            let mut graph = of.at(size.dims())?.graph(size.batch())?;
            let port = graph.inputs.iter().find(|port| port.name == name).expect("an input at every size").clone();
            graph.outputs.push(port);
            Ok(graph)
        };
        let (dims, in_f32) = (values.dims().clone(), values.in_f32.clone());
        self.with_part(Values::of_parts(dims, values.is_batched(), in_f32, build)?)
    }

    /// A network of images at its present sizes as a model of values, which may be [joined](Self::join) with others. A
    /// model of values is returned as it is.
    ///
    /// The input `image` and the output `result` are those of an engine of the network of images with this input format
    /// and output kind; the result has the dimensions of an image, which is one pixel for scores of classes. Batch norms
    /// are folded into filters. The model has no labels and no free dimensions; its plans are those of models of values.
    ///
    /// ```
    /// use trefoil::{Device, Engine, InputFormat, OutputKind, Target, model::Model};
    /// let model = Model::open("weights/convnet28")?.to_values(InputFormat::F32Nchw, OutputKind::Probabilities)?;
    /// let engine = Engine::builder(&model.each(3)?).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.input().to_string(), "`image` of f32[3,1,28,28]");
    /// assert_eq!(engine.output().to_string(), "`result` of f32[3,1,1,10]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network in bytes; the errors of reading weights.
    pub fn to_values(&self, input: InputFormat, output: OutputKind) -> Result<Self, Error> {
        let Network::Images(images) = self.network() else { return Ok(self.clone()) };
        let (shaped, weights) = images.shaped().folded(self.weights())?;
        let build = move |size: &Size| shaped.graph(size.batch(), input, output);
        let values = Values::of_parts(Dims::new(), true, BTreeSet::new(), build)?;
        Ok(Self::of_values(values, weights)?.with_name(self.name()))
    }

    /// A model of values cut at a node: its result is what the node writes.
    pub(super) fn values_up_to(&self, node: &str) -> Result<Self, Error> {
        let values = self.part_of_others("a part of")?;
        find(&values.graph(1)?, node)?;
        let (of, node) = (values.clone(), node.to_owned());
        let build = move |size: &Size| {
            let graph = of.at(size.dims())?.graph(size.batch())?;
            Ok(up_to(&graph, find(&graph, &node)?))
        };
        let (dims, in_f32) = (values.dims().clone(), values.in_f32.clone());
        self.with_part(Values::of_parts(dims, values.is_batched(), in_f32, build)?)
    }

    /// A model of values cut in two behind a node.
    pub(super) fn values_split_at(&self, node: &str) -> Result<(Self, Self), Error> {
        let values = self.part_of_others("a part of")?;
        find(&values.graph(1)?, node)?;
        let part = |index: usize| {
            let (of, node) = (values.clone(), node.to_owned());
            let build = move |size: &Size| {
                let graph = of.at(size.dims())?.graph(size.batch())?;
                let [first, second] = cut(&graph, find(&graph, &node)?);
                Ok(if index == 0 { first } else { second })
            };
            let (dims, in_f32) = (values.dims().clone(), values.in_f32.clone());
            self.with_part(Values::of_parts(dims, values.is_batched(), in_f32, build)?)
        };
        Ok((part(0)?, part(1)?))
    }

    /// The network of a model of values without state, of which another model is made.
    fn part_of_others(&self, what: &str) -> Result<&Values, Error> {
        self.refuse_states(what)?;
        self.values().map_err(|_| Error::Unsupported {
            what: format!("{what} `{}`, a network of images", self.name()),
            instead: "make it a model of values by `Model::to_values`".into(),
        })
    }

    /// The model with a network that reads the same weights.
    fn with_part(&self, values: Values) -> Result<Self, Error> {
        let model = Self::of_values(values, self.weights().clone())?;
        Ok(Self { network: model.network, weights: model.weights, ..self.clone() })
    }
}

/// A value of one network that is an input of another one.
struct Link {
    /// The number of the port of the first network, and whether it is an output.
    from: (usize, bool),
    /// The number of the input of the second network.
    to: usize,
}

impl Link {
    fn new(first: &Values, second: &Values, from: &str, to: &str) -> Result<Self, Error> {
        let (input, output) = (first.input(), first.output());
        let [outputs, inputs, of_second] = [output, input, second.input()].map(|row| row.ports());
        let place = |ports: &[crate::tensor::RowPort], name: &str| ports.iter().position(|port| &*port.name == name);
        let from = match (place(outputs, from), place(inputs, from)) {
            (Some(output), _) => (output, true),
            (None, Some(input)) => (input, false),
            (None, None) => {
                let known: Vec<String> = outputs.iter().chain(inputs).map(|port| format!("`{}`", port.name)).collect();
                let expected = format!("an output or an input of the first model: {}", known.join(", "));
                return Err(Error::option("join", format!("a link from `{from}`"), expected));
            }
        };
        let Some(to) = place(of_second, to) else {
            let known: Vec<String> = of_second.iter().map(|port| format!("`{}`", port.name)).collect();
            let expected = format!("an input of the second model: {}", known.join(", "));
            return Err(Error::option("join", format!("a link to `{to}`"), expected));
        };
        Ok(Self { from, to })
    }

    /// The linked value of a graph of the first network.
    fn value(&self, first: &Graph) -> ValueId {
        let (index, is_output) = self.from;
        let ports: &[Port] = if is_output { &first.outputs } else { &first.inputs };
        ports[index].value
    }
}

/// The free dimensions of both networks.
fn joined_dims(first: &Values, second: &Values) -> Result<Dims, Error> {
    let mut dims: BTreeMap<String, usize> = first.dims().clone();
    for (name, &size) in second.dims() {
        let known = *dims.entry(name.clone()).or_insert(size);
        if known != size {
            let expected = format!("one size of `{name}` for both models: they have {known} and {size}");
            return Err(Error::option("join", "two sizes", expected));
        }
    }
    Ok(dims)
}

/// The node of this name.
fn find(graph: &Graph, node: &str) -> Result<NodeId, Error> {
    graph.find(node).ok_or_else(|| {
        let near = nearest(node, graph.nodes.iter().map(|node| node.name.as_str()), 5);
        let near = if near.is_empty() { String::new() } else { format!(": {}", near.join(", ")) };
        Error::option("features_at", format_args!("`{node}`"), format!("a node's name{near}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Expr, GraphBuilder, Tensor};
    use crate::loops;
    use crate::tensor::Dtype;

    fn numbers(graph: &Graph, inputs: &[[f32; 2]]) -> Vec<Vec<f32>> {
        graph.check().unwrap();
        let inputs: Vec<Tensor> = inputs.iter().map(|numbers| Tensor::of(&[1, 2], numbers)).collect();
        let outputs = loops::evaluate(graph, &mut |name, _| unreachable!("no weight {name}"), &inputs).unwrap();
        outputs.iter().map(|output| output.elems::<f32>().to_vec()).collect()
    }

    /// s = x + y, and p = s x y; both are outputs.
    fn sums() -> Graph {
        let mut g = GraphBuilder::new();
        let [x, y] = ["x", "y"].map(|name| g.input(name, Dtype::F32, &[1, 2]));
        let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, y]);
        let two = g.constant(Dtype::F32, &[2], 2.0_f32.to_le_bytes().repeat(2));
        let four = g.map("four", Expr::arg(0) * Expr::arg(0), &[two]);
        let product = g.map("product", Expr::arg(0) * Expr::arg(1) * Expr::arg(2), &[sum, y, four]);
        g.output("s", sum);
        g.output("p", product);
        g.finish().unwrap()
    }

    fn names(ports: &[Port]) -> Vec<&str> {
        ports.iter().map(|port| &*port.name).collect()
    }

    #[test]
    fn joined_graphs_compute_one_after_the_other() {
        let graph = sums();
        let weights = BTreeMap::new();
        let names_of_next = Names { prefix: "next", weights: &weights };
        let links = [(graph.outputs[1].value, 0)]; // p is the second graph's x
        let both = joined(&graph, &graph, &links, &names_of_next).unwrap();
        assert_eq!(names(&both.inputs), ["x", "y", "next/y"]);
        assert_eq!(names(&both.outputs), ["s", "next/s", "p"]);
        let nodes: Vec<&str> = both.nodes.iter().map(|node| &*node.name).collect();
        assert_eq!(nodes, ["sum", "four", "product", "next/sum", "next/four", "next/product"]);
        let found = numbers(&both, &[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]);
        assert_eq!(found, [vec![4.0, 6.0], vec![53.0, 102.0], vec![1060.0, 2448.0]]);
        let shared = joined(&graph, &graph, &[(graph.inputs[0].value, 0), (graph.inputs[1].value, 1)], &names_of_next);
        let shared = shared.unwrap();
        assert_eq!(
            (names(&shared.inputs), names(&shared.outputs)),
            (vec!["x", "y"], vec!["s", "p", "next/s", "next/p"])
        );
    }

    #[test]
    fn values_that_do_not_fit_are_refused() {
        let mut g = GraphBuilder::new();
        let x = g.input("wide", Dtype::F32, &[1, 3]);
        let y = g.node("half", Op::Map(Expr::arg(0).cast(Dtype::F16)), &[x]);
        g.output("y", y);
        let (graph, weights) = (sums(), BTreeMap::new());
        let names = Names { prefix: "next", weights: &weights };
        let error = joined(&graph, &g.finish().unwrap(), &[(graph.outputs[0].value, 0)], &names).unwrap_err();
        assert!(error.to_string().contains("an input of f32[1,3] is linked to a value of f32[1,2]"), "{error}");
    }

    #[test]
    fn parts_of_a_graph_hand_over_all_that_is_read() {
        let graph = sums();
        let [first, second] = cut(&graph, graph.find("sum").unwrap());
        assert_eq!(names(&first.outputs), ["y", "sum"]);
        assert_eq!((names(&second.inputs), names(&second.outputs)), (vec!["y", "sum"], vec!["s", "p"]));
        assert_eq!((first.nodes.len(), second.nodes.len()), (1, 2));
        let between = numbers(&first, &[[1.0, 2.0], [3.0, 4.0]]);
        let between: Vec<[f32; 2]> = between.iter().map(|of| [of[0], of[1]]).collect();
        assert_eq!(numbers(&second, &between), numbers(&graph, &[[1.0, 2.0], [3.0, 4.0]]));
        let up_to = up_to(&graph, graph.find("sum").unwrap());
        assert_eq!((up_to.nodes.len(), names(&up_to.outputs)), (1, vec!["sum"]));
        // Behind a node that depends on no input, and behind the last one.
        let [first, second] = cut(&graph, graph.find("four").unwrap());
        assert_eq!((names(&first.outputs), second.nodes.len()), (vec!["y", "sum"], 2));
        let [_, nothing] = cut(&graph, graph.find("product").unwrap());
        assert_eq!((nothing.nodes.len(), names(&nothing.inputs)), (0, vec!["sum", "product"]));
    }
}
