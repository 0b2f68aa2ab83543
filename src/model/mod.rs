//! What to compute: the graph as a value, its weights, and how pictures become its input. No device is touched here.
//!
//! A [`Model`] is opened from files or made from a graph built in code. [`optimize`] and [`infer`] are what a planner
//! asks of its graph; [`fold_conv`] reads the weights of a convolution as kernels want them.

mod builder;
mod config;
mod families;
mod fold;
mod graph;
#[cfg(test)]
mod interpreter;
mod names;
mod onnx;
mod preprocessing;
mod recognise;
mod rewrite;
mod safetensors_header;
mod shape;
mod weights;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use self::config::Config;
use self::names::nearest;
use crate::error::{Error, printable};
use crate::tensor::Shape;

pub use builder::GraphBuilder;
pub use families::{architecture, architectures, build};
pub(crate) use fold::read_linear;
pub use fold::{FoldedConv, fold_conv};
pub use graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pad, Pool, Window};
pub use preprocessing::{Interpolation, Preprocessing};
pub use rewrite::optimize;
pub use shape::{infer, params};
pub use weights::{WeightDtype, Weights};

/// A graph with its weights, preprocessing and labels. Checked, and cheap to clone.
///
/// ```
/// use trefoil::{Shape, model::{GraphBuilder, Model, Preprocessing, Weights}};
/// let input = Shape::new(4, 4, 2);
/// let mut g = GraphBuilder::new(input);
/// let x = g.global_avg_pool("pool", g.input());
/// let x = g.linear("fc", x, 2);
/// let weights = Weights::from_tensors([
///     ("fc.weight", vec![2, 2], vec![1.0, 0.0, 0.0, 1.0]),
///     ("fc.bias", vec![2], vec![0.0, 0.0]),
/// ])?;
/// let labels = vec!["dark".to_string(), "bright".to_string()];
/// let model = Model::new(g.finish(x)?, weights, Preprocessing::new(input), labels)?;
/// assert_eq!((model.classes(), model.label(1)), (2, "bright"));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    graph: Arc<Graph>,
    weights: Arc<Weights>,
    preprocessing: Arc<Preprocessing>,
    labels: Arc<[String]>,
    name: Arc<str>,
    output: Shape,
    /// Whether it was cut, so that its result is the features asked for.
    is_cut: bool,
}

impl Model {
    /// Opens a folder that holds `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file of a
    /// network of images.
    ///
    /// An ONNX file has one input of f32 images, as planes or pixels, and one output. Its labels and the preprocessing are
    /// those of the `config.json` beside it; without one there are no labels, and bytes become numbers from 0 to 1.
    ///
    /// A file's configuration is the one in its own header, under `config` (the text of a `config.json`) or key by
    /// key (`architecture`, `num_classes`, `input_size`, …); otherwise the `config.json` beside it.
    ///
    /// The weights are not read yet, but every tensor's presence, shape and type is checked.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file cannot be read; [`Error::Format`] if its content is wrong;
    /// [`Error::UnknownArchitecture`] if no family here builds it; [`Error::Tensor`] if a tensor is missing, has
    /// another shape or type, or belongs to another architecture; [`Error::Unsupported`] for a way to crop that is not
    /// done here, and with every node of an ONNX file that is none of a network of images; [`Error::Import`] with every node
    /// that is no operation here at all; [`Error::Graph`] if the input is too small.
    ///
    /// ```no_run
    /// let model = trefoil::model::Model::open("weights/efficientnet-lite0")?;
    /// println!("{}: {} classes", model.name(), model.classes());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.extension().is_some_and(|extension| extension == "onnx") {
            return onnx::open(path);
        }
        let about = fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
        let (weights, config) = if about.is_dir() {
            let config = open_config(&path.join("config.json"))?;
            (Weights::open(path.join("model.safetensors"))?, config)
        } else {
            let weights = Weights::open(path)?;
            let inside = Config::from_metadata(path, weights.metadata(), |name| default_input(path, name));
            let config = inside.unwrap_or_else(|| open_config(&path.with_file_name("config.json")))?;
            (weights, config)
        };
        let Config { architecture, num_classes, labels, preprocessing } = config;
        let graph = build(&architecture, num_classes, preprocessing.input, &weights)?;
        Ok(Self::new(graph, weights, preprocessing, labels)?.with_name(&printable(&architecture, MOST_OF_A_NAME)))
    }

    /// A model of a graph built in code. Labels are one for each class, or none.
    ///
    /// # Errors
    ///
    /// [`Error::Graph`] if the graph is not well-formed; [`Error::Tensor`] if a tensor that it reads is missing or has
    /// another shape or type; [`Error::Option`] if preprocessing or labels do not fit it.
    pub fn new(
        graph: Graph,
        weights: impl Into<Arc<Weights>>,
        preprocessing: Preprocessing,
        labels: Vec<String>,
    ) -> Result<Self, Error> {
        let weights = weights.into();
        let output = infer(&graph)?[graph.output.0];
        families::check_weights(&graph, &weights)?;
        preprocessing.check(graph.input)?;
        if !labels.is_empty() && labels.len() != output.channels {
            let expected = format!("one for each of {} classes, or none", output.channels);
            return Err(Error::option("labels", format_args!("a list of {}", labels.len()), expected));
        }
        Ok(Self {
            graph: graph.into(),
            weights,
            preprocessing: preprocessing.into(),
            labels: if labels.is_empty() { numbered(output.channels) } else { labels.into() },
            name: "model".into(),
            output,
            is_cut: false,
        })
    }

    /// The same under another name.
    pub fn with_name(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The same with its weight file read into memory, once, however often it is built.
    pub(crate) fn in_memory(&self) -> Result<Self, Error> {
        Ok(Self { weights: Weights::in_memory(&self.weights)?, ..self.clone() })
    }

    /// The model cut before its classifier: its result is what the last linear layer reads. A model that ends
    /// otherwise, or was cut before, is its own features.
    ///
    /// # Errors
    ///
    /// As for [`Model::features_at`].
    pub fn features(&self) -> Result<Self, Error> {
        let last = &self.graph.nodes[self.graph.output.0];
        match (&last.op, &last.inputs[..]) {
            (Op::Linear(_), [NodeId(before)]) if !self.is_cut => self.features_at(&self.graph.nodes[*before].name),
            _ => Ok(self.clone()),
        }
    }

    /// The model cut at a node: its result is that node's value, and what is not needed for it is gone.
    ///
    /// A name that is no node's but a module's, such as `layer4` or `layer4.1`, means the last node of that module.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if there is no such node; it tells names that are near.
    pub fn features_at(&self, node: &str) -> Result<Self, Error> {
        let at = self.find(node)?;
        if at == self.graph.output {
            return Ok(Self { is_cut: true, ..self.clone() });
        }
        let graph = self.graph.cut(at);
        let output = infer(&graph)?[graph.output.0];
        Ok(Self { graph: graph.into(), labels: numbered(output.channels), output, is_cut: true, ..self.clone() })
    }

    /// The model cut in two at a node, of the same weights: the second reads what the first gives, see
    /// [`EngineBuilder::then`](crate::EngineBuilder::then).
    ///
    /// ```
    /// # use trefoil::{Device, Engine, Target, model::Model};
    /// # let model = Model::open("weights/convnet28")?;
    /// let (backbone, head) = model.split_at("avgpool")?;
    /// let engine = Engine::builder(&backbone).then(&head).on(&Device::open(Target::Cpu)?).build()?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Option`] as [`Model::features_at`]; [`Error::Graph`] if something after the node reads something before
    /// it.
    pub fn split_at(&self, node: &str) -> Result<(Self, Self), Error> {
        let first = self.features_at(node)?;
        let rest = self.graph.rest(self.find(node)?, first.output)?;
        let preprocessing = Preprocessing::new(first.output).into();
        let second = Self { graph: rest.into(), preprocessing, ..self.clone() };
        Ok((first, second))
    }

    /// The node of a name, or the last one of the module of that name.
    fn find(&self, node: &str) -> Result<NodeId, Error> {
        let nodes = &self.graph.nodes;
        let in_module = |name: &str| name.strip_prefix(node).is_some_and(|rest| rest.starts_with('.'));
        let last_of_module = || nodes.iter().rposition(|node| in_module(&node.name)).map(NodeId);
        self.graph.find(node).or_else(last_of_module).ok_or_else(|| {
            let near = nearest(node, nodes.iter().map(|node| node.name.as_str()), 5);
            let near = if near.is_empty() { String::new() } else { format!(": {}", near.join(", ")) };
            Error::option("features_at", format_args!("`{node}`"), format!("a node's name{near}"))
        })
    }

    /// What is computed, as it was built: no rewrite has been applied.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Where the graph's tensors are.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// How a picture becomes the input.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.preprocessing
    }

    /// The shape of the result for one image.
    pub fn output(&self) -> Shape {
        self.output
    }

    /// The length of the result, or its channels if it is not a vector.
    pub fn classes(&self) -> usize {
        self.output.channels
    }

    /// One label for each class; `class 0`, `class 1`, … where none are known.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The label of one class; `no such class` beyond the last.
    pub fn label(&self, class: usize) -> &str {
        self.labels.get(class).map_or("no such class", String::as_str)
    }

    /// The architecture's name as configured; `model` where there is none.
    pub fn name(&self) -> &str {
        &self.name
    }
}

fn open_config(path: &Path) -> Result<Config, Error> {
    Config::open(path, |name| default_input(path, name))
}

/// The input for which an architecture, named by the configuration at `path`, was designed.
fn default_input(path: &Path, architecture: &str) -> Result<Shape, Error> {
    let unknown =
        || Error::UnknownArchitecture { path: path.to_owned(), found: architecture.to_owned(), known: architectures() };
    families::find(architecture).map(families::Architecture::default_input).ok_or_else(unknown)
}

/// Characters of a model's name, which is shown, that are taken from its configuration.
const MOST_OF_A_NAME: usize = 200;

/// Labels for classes that have none.
fn numbered(classes: usize) -> Arc<[String]> {
    (0..classes).map(|class| format!("class {class}")).collect()
}
