//! What to compute: graphs with their weights, and how pictures become their input. No device is touched here.
//!
//! A [`Model`] is opened from files or made from a [graph](crate::graph) built in code. [`images`] has what a planner finds in
//! a graph of one image.

mod byte_filter;
mod bytes;
mod config;
mod encoders;
mod families;
mod first_layers;
mod fold;
pub mod images;
mod in_f32;
#[cfg(test)]
mod interpreter;
mod names;
mod onnx;
mod padding;
mod preprocessing;
mod quantization;
mod recognise;
mod rewrite;
mod safetensors_header;
mod shape;
mod shaped;
mod shown;
mod sizes;
mod states;
mod values;
mod weights;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use self::config::Config;
use crate::error::{Error, printable};
use crate::onnx::Sizes;
use crate::tensor::{Dims, Shape, Size};

pub(crate) use byte_filter::{ByteFilter, ByteSource, byte_filter, byte_filter_of_photos, outside};
pub(crate) use bytes::{ByteWork, in_bytes};
pub use encoders::{Embedding, Pooling, Tower};
pub use families::{architecture, architectures, build};
pub(crate) use first_layers::overlaps_its_neighbour;
pub(crate) use fold::read_linear;
pub(crate) use fold::{FoldedConv, fold_conv};
pub(crate) use images::{Conv2d, Linear, Node, NodeId, Op, Pad, Pool, Window};
pub use preprocessing::{Interpolation, Preprocessing};
pub use quantization::Quantization;
pub(crate) use quantization::{ByteLayer, byte_layers, never_negative};
pub(crate) use recognise::{is_sum, pool_of, window_of};
pub(crate) use rewrite::optimize;
pub(crate) use shape::infer;
pub(crate) use shaped::{Images, Shaped};
pub(crate) use sizes::check_dims;
pub(crate) use values::Values;
pub use weights::{WeightDtype, Weights};
pub(crate) use weights::{filter_of, name_of};

/// A graph with its weights, preprocessing and labels. Checked, and cheap to clone.
///
/// ```
/// use trefoil::{Shape, graph::GraphBuilder, model::{Model, Preprocessing, Weights}};
/// let input = Shape::new(4, 4, 2);
/// let mut g = GraphBuilder::new();
/// let x = g.image("image", input);
/// let x = g.global_avg_pool("pool", x);
/// let x = g.linear("fc", x, 2);
/// g.output("scores", x);
/// let weights = Weights::from_tensors([
///     ("fc.weight", vec![2, 2], vec![1.0, 0.0, 0.0, 1.0]),
///     ("fc.bias", vec![2], vec![0.0, 0.0]),
/// ])?;
/// let labels = vec!["dark".to_string(), "bright".to_string()];
/// let model = Model::new(g.finish()?, weights, Preprocessing::new(input), labels)?;
/// assert_eq!((model.classes(), model.label(1)), (2, "bright"));
/// # Ok::<(), trefoil::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Model {
    network: Network,
    weights: Arc<Weights>,
    labels: Arc<[String]>,
    name: Arc<str>,
    /// See [`Model::metadata`].
    metadata: Arc<[(String, String)]>,
    /// How pictures become rows of a network of any values, where they do.
    pictures: Option<Arc<Preprocessing>>,
}

/// What a model computes.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// Classes or features of an image, by the kernels for images.
    Images(Images),
    /// Any values of any values.
    Values(Arc<Values>),
}

impl Model {
    /// Opens a folder that holds `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file.
    ///
    /// An ONNX file of one input of f32 images, as planes or pixels, and one output is a network of images if the kernels for
    /// images compute all of it. Its labels and the preprocessing are those of the `config.json` beside it; without one
    /// there are no labels, and bytes become numbers from 0 to 1. Any other file is a model of values: the rows of its
    /// engines have the file's inputs and outputs as ports. [`Model::open_at`] gives sizes to free dimensions.
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
    /// done here; [`Error::Import`] with every node of an ONNX file that is no operation here; [`Error::Option`] for a free
    /// dimension without a size; [`Error::Graph`] if the input is too small.
    ///
    /// ```no_run
    /// let model = trefoil::model::Model::open("weights/efficientnet-lite0")?;
    /// println!("{}: {} classes", model.name(), model.classes());
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        if path.extension().is_some_and(|extension| extension == "onnx") {
            return onnx::open(path, &Sizes::new());
        }
        let about = fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
        let (weights, config) = if about.is_dir() {
            if let Some(encoder) = encoders::open(path, &Embedding::new())? {
                return Ok(encoder);
            }
            let config = open_config(&path.join("config.json"))?;
            (Weights::open(path.join("model.safetensors"))?, config)
        } else {
            let weights = Weights::open(path)?;
            let inside = Config::from_metadata(path, weights.metadata(), |name| default_input(path, name));
            let config = inside.unwrap_or_else(|| open_config(&path.with_file_name("config.json")))?;
            (weights, config)
        };
        Self::of_family(config, weights.into())
    }

    /// A model of an architecture that is built here, for images of any height and width.
    fn of_family(config: Config, weights: Arc<Weights>) -> Result<Self, Error> {
        let Config { path, architecture, num_classes, labels, preprocessing, quantization } = config;
        let (input, name) = (preprocessing.input, printable(&architecture, MOST_OF_A_NAME));
        let build = move |size: &Size, weights: &Weights| {
            let side = |name: &str| size.get(name).expect("a dimension that it has");
            let input = Shape { height: side("height"), width: side("width"), ..input };
            build(&architecture, num_classes, input, weights)
        };
        let at = Size::new(1).dim("height", input.height).dim("width", input.width);
        let model = Self::of_built(weights, &at, preprocessing, labels, build)?.with_name(&name);
        let Some(quantization) = quantization else { return Ok(model) };
        let in_bytes = move |shaped: Shaped| {
            shaped.quantized(&quantization, |problems| {
                Error::format(&path, format!("configuration: `quantization`: {}", problems.join("; ")))
            })
        };
        Ok(model.with(model.images()?.edited(in_bytes)?))
    }

    /// Opens an `.onnx` file at these sizes of its free dimensions, and with these constants for some of its inputs, the
    /// folder of an encoder at its `sequence`, or its `height` and `width`, or another model of safetensors at its `height` and
    /// `width`. The first dimension of an ONNX file's inputs may stay free, or one whose name has `batch` in it: it is the
    /// batch, whose sizes the engine's builder names. The builder may also have [other sizes](crate::EngineBuilder::sizes) for
    /// the other ones.
    ///
    /// ```no_run
    /// use trefoil::{model::Model, onnx::Sizes};
    /// let model = Model::open_at("bert.onnx", &Sizes::new().dim("sequence", 128))?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Model::open`]; [`Error::Option`] for a size that is missing, and for one that the model has no use for.
    pub fn open_at(path: impl AsRef<Path>, sizes: &Sizes) -> Result<Self, Error> {
        let path = path.as_ref();
        if !path.is_dir() && path.extension().is_none_or(|extension| extension != "safetensors") {
            return onnx::open(path, sizes);
        }
        if path.is_dir() && encoders::is_one(path)? {
            return Self::open_encoder(path, &Embedding::of_sizes(sizes)?);
        }
        Self::open(path)?.at(&Size::of(1, sizes.dims().clone()))
    }

    /// Opens a folder with an encoder of texts, images or sounds: `model.safetensors` and `config.json` of Hugging Face's
    /// BERT, RoBERTa, DistilBERT, MPNet, ModernBERT, ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, Swin, ConvNeXt or Whisper, or of a
    /// vision transformer, Swin or ConvNeXt of timm. What `sentence-transformers` writes beside it is read too.
    ///
    /// An encoder of texts has the inputs `input_ids`, `attention_mask` and, of BERT, `token_type_ids`, all i64; rows are
    /// padded behind their last token. SigLIP has no mask: it sees its padding, and its rows have their full length. One of
    /// images has the input `pixels` of bytes, channels innermost, which [`preprocessing`](Self::preprocessing) describes;
    /// Whisper's encoder has `input_features` of f32, bands by frames. The output is `embedding`, or `tokens` where none are
    /// pooled; a classifier of images that is there adds `logits`.
    ///
    /// ```no_run
    /// use trefoil::{Engine, model::{Embedding, Model}};
    /// let model = Model::open_encoder("all-MiniLM-L6-v2", &Embedding::new().sequence(128))?;
    /// let engine = Engine::builder(&model).build()?;
    /// let mut batch = engine.acquire()?;
    /// batch.port_mut::<i64>(0, "input_ids")?[..3].copy_from_slice(&[101, 7592, 102]);
    /// batch.port_mut::<i64>(0, "attention_mask")?[..3].fill(1);
    /// let output = batch.submit(1)?.wait()?;
    /// assert_eq!(output.port::<f32>(0, "embedding")?.len(), 384);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Format`] with everything that is wrong in the configuration, or with every tensor that is
    /// missing, misshapen, or of a layer that the configuration does not have; [`Error::Option`] for a size that it cannot
    /// have; [`Error::Unsupported`] for another model, or a module of `sentence-transformers` that is not built here.
    pub fn open_encoder(folder: impl AsRef<Path>, asked: &Embedding) -> Result<Self, Error> {
        let folder = folder.as_ref();
        encoders::open(folder, asked)?.ok_or_else(|| Error::Unsupported {
            what: format!("an encoder, or sizes of free dimensions, of {}", folder.display()),
            instead: format!(
                "open an ONNX file, or a folder of one of {}",
                encoders::known().collect::<Vec<_>>().join(", ")
            ),
        })
    }

    /// A network of images: of a graph of one input, [an image](crate::graph::GraphBuilder::image) `[1, H, W, C]` of f32, and
    /// one output. It is computed by the kernels for images: convolutions, batch norms behind them, ReLU, sums, pools,
    /// concatenations, linear layers, and a softmax at the end, which is [an output](crate::OutputKind) of its own and left
    /// out. Labels are one for each class, or none. [`Model::of_graphs`] takes any other graph.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] with every node that no kernel for images computes; [`Error::Graph`] if a window lies in padding
    /// alone; [`Error::Tensor`] if a tensor that it reads is missing or has another shape or type; [`Error::Option`] if
    /// preprocessing or labels do not fit it.
    pub fn new(
        graph: crate::graph::Graph,
        weights: impl Into<Arc<Weights>>,
        preprocessing: Preprocessing,
        labels: Vec<String>,
    ) -> Result<Self, Error> {
        let weights = weights.into();
        let (shaped, weights) = Shaped::of(&graph, preprocessing, &weights)?;
        Self::of_shaped(Images::fixed(shaped), weights, labels)
    }

    /// A model of graphs of values, built in code: `build` gives the graph for a number of rows, which is a dimension of each
    /// of its inputs and outputs, the first or another one. An engine's rows have these as their ports, without that
    /// dimension.
    ///
    /// ```
    /// use trefoil::{Device, Dtype, Engine, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// let weights = Weights::from_tensors([("bias", vec![3], vec![0.5, 1.0, 2.0])])?;
    /// let model = Model::of_graphs(weights, |rows| {
    ///     let mut g = GraphBuilder::new();
    ///     let [x, y] = ["x", "y"].map(|name| g.input(name, Dtype::F32, &[rows, 3]));
    ///     let bias = g.weight("bias", Dtype::F32, &[3]);
    ///     let sum = g.map("sum", Expr::arg(0) * Expr::arg(1) + Expr::arg(2), &[x, y, bias]);
    ///     g.output("sum", sum);
    ///     g.finish()
    /// })?;
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).build()?;
    /// let mut batch = engine.acquire()?;
    /// batch.port_mut::<f32>(0, "x")?.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// batch.port_mut::<f32>(0, "y")?.copy_from_slice(&[4.0, 5.0, 6.0]);
    /// assert_eq!(batch.submit(1)?.wait()?.port::<f32>(0, "sum")?, [4.5, 11.0, 20.0]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `build` answers; [`Error::Graph`] if none of an input's or output's dimensions is the number of rows, or another one
    /// depends on it; [`Error::Tensor`] if a weight is missing or has other dimensions.
    pub fn of_graphs(
        weights: impl Into<Arc<Weights>>,
        build: impl Fn(usize) -> Result<crate::graph::Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let build = move |size: &Size| build(size.batch());
        Self::of_values(Values::built(Dims::new(), build)?, weights.into())
    }

    /// A model of graphs of values with free dimensions, built in code: `build` gives the graph for a size, its rows and
    /// its free dimensions, which are those that `at` names, and where `at` has the sizes unless an engine's builder has
    /// [others](crate::EngineBuilder::sizes). The rows of `at` do not count.
    ///
    /// ```
    /// use trefoil::{Device, Dtype, Engine, Size, Target, graph::{Expr, GraphBuilder}, model::{Model, Weights}};
    /// let weights = Weights::from_tensors([("bias", vec![1], vec![0.5])])?;
    /// let model = Model::of_sizes(weights, &Size::new(1).dim("length", 4), |size| {
    ///     let length = size.get("length").expect("it is named");
    ///     let mut g = GraphBuilder::new();
    ///     let x = g.input("x", Dtype::F32, &[size.batch(), length]);
    ///     let bias = g.weight("bias", Dtype::F32, &[1]);
    ///     let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[x, bias]);
    ///     g.output("sum", sum);
    ///     g.finish()
    /// })?;
    /// let sizes = [Size::new(8).dim("length", 2), Size::new(1).dim("length", 3)];
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).sizes(&sizes).build()?;
    /// let mut batch = engine.acquire_for(&sizes[1])?;
    /// batch.port_mut::<f32>(0, "x")?.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// assert_eq!(batch.submit(1)?.wait()?.port::<f32>(0, "sum")?, [1.5, 2.5, 3.5]);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Model::of_graphs`].
    pub fn of_sizes(
        weights: impl Into<Arc<Weights>>,
        at: &Size,
        build: impl Fn(&Size) -> Result<crate::graph::Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::of_values(Values::built(at.dims().clone(), build)?, weights.into())
    }

    /// A model of one graph of values: it computes one row at once, whose ports have all dimensions of the graph's inputs
    /// and outputs.
    ///
    /// ```
    /// use trefoil::{Device, Engine, Target, graph::Graph, model::Model};
    /// # use trefoil::{Dtype, graph::{Expr, GraphBuilder}, model::Weights};
    /// # let model = Model::of_graphs(Weights::from_tensors([("one", vec![1], vec![1.0])])?, |rows| {
    /// #     let mut g = GraphBuilder::new();
    /// #     let x = g.input("x", Dtype::F32, &[rows, 3]);
    /// #     let square = g.map("square", Expr::arg(0) * Expr::arg(0), &[x]);
    /// #     let sum = g.map("sum", Expr::arg(0) + Expr::arg(1), &[square, x]);
    /// #     g.output("sum", sum);
    /// #     g.finish()
    /// # })?;
    /// let graph = model.graph(1)?; // another model, whose result is what the node `square` writes
    /// let square = graph.nodes[graph.find("square").unwrap().0].outputs[0];
    /// let cut = Graph { outputs: vec![trefoil::graph::Port { name: "square".into(), value: square }], ..graph };
    /// let engine = Engine::builder(&Model::of_graph(model.weights().clone(), cut)?).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.output().to_string(), "`square` of f32[1,3]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Graph`] if a row would be larger than memory can be; [`Error::Tensor`] if a weight is missing or has other
    /// dimensions.
    pub fn of_graph(weights: impl Into<Arc<Weights>>, graph: crate::graph::Graph) -> Result<Self, Error> {
        Self::of_values(Values::fixed(graph)?, weights.into())
    }

    /// A model of any values, with the weights that its graphs name.
    fn of_values(values: Values, weights: Arc<Weights>) -> Result<Self, Error> {
        let weights = padding::with_layers(weights, &values)?;
        let (network, labels) = (Network::Values(values.into()), Arc::from([]));
        Ok(Self { network, weights, labels, name: "model".into(), metadata: Arc::default(), pictures: None })
    }

    /// The same of other graphs.
    fn with_values(&self, values: Arc<Values>, weights: Arc<Weights>) -> Self {
        Self { network: Network::Values(values), weights, ..self.clone() }
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
        let Shaped { network, is_cut, .. } = self.images()?.shaped();
        let last = &network.nodes[network.output.0];
        match (&last.op, &last.inputs[..]) {
            (Op::Linear(_), [NodeId(before)]) if !is_cut => self.features_at(&network.nodes[*before].name),
            _ => Ok(self.clone()),
        }
    }

    /// The model cut at a node: its result is that node's value, and what is not needed for it is gone.
    ///
    /// A name that is no node's but a module's, such as `layer4` or `layer4.1`, means the last node of that module.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if there is no such node; it tells names that are near. [`Error::Unsupported`] for a model that
    /// is no network of images.
    pub fn features_at(&self, node: &str) -> Result<Self, Error> {
        let (own, name) = (self.images()?, node.to_owned());
        let cut = own.edited(move |shaped| shaped.cut(&name))?;
        let Shaped { network, output, .. } = cut.shaped();
        let is_whole = Arc::ptr_eq(network, &own.shaped().network);
        let labels = if is_whole { self.labels.clone() } else { numbered(output.channels) };
        Ok(Self { labels, ..self.with(cut) })
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
        let (first, name) = (self.features_at(node)?, node.to_owned());
        let second = self.images()?.edited(move |shaped| shaped.rest(&name))?;
        Ok((first, self.with(second)))
    }

    /// The model with some of its values in bytes, of the same weights: those of its dense convolutions. Scales that it had
    /// before are gone.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] with everything that is wrong: a scale that is missing, that is none, or of no node.
    /// [`Error::Unsupported`] for a model that is no network of images.
    pub fn quantized(&self, quantization: &Quantization) -> Result<Self, Error> {
        let quantization = quantization.clone();
        Ok(self.with(self.images()?.edited(move |shaped| shaped.quantized(&quantization, quantization::refused))?))
    }

    /// The model without the scales that it may have.
    pub(crate) fn in_floats(&self) -> Result<Self, Error> {
        Ok(self.with(self.images()?.edited(|shaped| Ok(shaped.without_scales()))?))
    }

    fn with(&self, images: Images) -> Self {
        Self { network: Network::Images(images), ..self.clone() }
    }

    pub(crate) const fn network(&self) -> &Network {
        &self.network
    }

    fn images(&self) -> Result<&Images, Error> {
        match &self.network {
            Network::Images(images) => Ok(images),
            Network::Values(values) => Err(Error::Unsupported {
                what: format!("`{}`, which reads {}, as a network of images", self.name, values.input()),
                instead: "build an engine of it, and read and write the ports of its rows".into(),
            }),
        }
    }

    /// The network of images that was found in the model's graph, or what [`features_at`](Self::features_at) or
    /// [`quantized`](Self::quantized) made of it: no rewrite has been applied.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that is no network of images.
    pub fn image_network(&self) -> Result<&images::Network, Error> {
        Ok(&self.images()?.shaped().network)
    }

    /// The layers that are computed in floats although the model's file has values in bytes, each with the reason: a value
    /// without a scale, or one whose 0 is another byte than 0.
    ///
    /// ```
    /// # use trefoil::model::Model;
    /// let model = Model::open("weights/convnet28")?;
    /// assert!(model.layers_in_floats().is_empty()); // a file of floats
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn layers_in_floats(&self) -> &[String] {
        match &self.network {
            Network::Images(images) => &images.shaped().in_floats,
            Network::Values(_) => &[],
        }
    }

    /// The graph of a model of any values for so many rows; one that computes one row at once has a graph for 1 alone.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network of images, which has an [`image_network`](Self::image_network); as for
    /// [`Model::of_graphs`] or [`Model::open_at`].
    pub fn graph(&self, rows: usize) -> Result<crate::graph::Graph, Error> {
        self.values()?.graph(rows)
    }

    /// Where the graph's tensors are.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// How a picture becomes the input, at the sizes that the model has; [`Model::at`] gives those of another. An encoder of
    /// images normalises bytes in its graph: its mean and deviation are 0 and 1.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that reads no pictures.
    pub fn preprocessing(&self) -> Result<&Preprocessing, Error> {
        match &self.pictures {
            Some(pictures) => Ok(pictures),
            None => Ok(&self.images()?.shaped().preprocessing),
        }
    }

    /// The shape of the result for one image.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that is no network of images.
    pub fn output(&self) -> Result<Shape, Error> {
        Ok(self.images()?.shaped().output)
    }

    /// The length of the result, or its channels if it is not a vector; 0 of a model that is no network of images.
    pub fn classes(&self) -> usize {
        self.labels.len()
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

    /// The text that an ONNX file has under `key`: exporters write the names of classes there, or the characters that a
    /// recogniser of text tells apart. Nothing for a model from another file.
    ///
    /// ```
    /// let model = trefoil::model::Model::open("tests/data/onnx/boxes.onnx")?;
    /// assert_eq!(model.metadata("names"), Some("{0: 'bright', 1: 'red'}"));
    /// assert_eq!(model.metadata("licence"), None);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, text)| text.as_str())
    }
}

fn open_config(path: &Path) -> Result<Config, Error> {
    Config::open(path, |name| default_input(path, name))
}

/// The input for which an architecture, named by the configuration at `path`, was designed.
fn default_input(path: &Path, architecture: &str) -> Result<Shape, Error> {
    let unknown = || Error::UnknownArchitecture {
        path: path.to_owned(),
        found: architecture.to_owned(),
        known: architectures().into_iter().chain(encoders::known()).collect(),
    };
    families::find(architecture).map(families::Architecture::default_input).ok_or_else(unknown)
}

/// Characters of a model's name, which is shown, that are taken from its configuration.
const MOST_OF_A_NAME: usize = 200;

/// Labels for classes that have none.
fn numbered(classes: usize) -> Arc<[String]> {
    (0..classes).map(|class| format!("class {class}")).collect()
}
