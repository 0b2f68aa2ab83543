//! Models: graphs with their weights, and the preprocessing of pictures. This module uses no device.
//!
//! A [`Model`] is opened from files or made from a [graph](crate::graph) built in code. [`images`] has networks of
//! images, which are graphs of one image that the kernels for images compute.
//!
//! The file is long because a third of it or more is the documentation of what is public.

mod byte_filter;
mod bytes;
mod config;
mod encoders;
mod families;
mod first_layers;
mod fold;
mod graph_of_images;
pub mod images;
mod in_e4m3;
mod in_f32;
#[cfg(test)]
mod interpreter;
mod joined;
mod mixing;
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
#[cfg(test)]
pub(crate) use encoders::network as network_of_encoder;
pub use encoders::{Embedding, Pooling, Tower};
pub use families::{architecture, architectures, build};
pub(crate) use first_layers::overlaps_its_neighbour;
#[cfg(feature = "cuda")]
pub(crate) use fold::fold_norm_of_rows;
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

/// A graph with its weights, preprocessing and labels. The graph and the weights have been checked. Cheap to clone.
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
    /// The texts of an ONNX file by key; see [`Model::metadata`].
    metadata: Arc<[(String, String)]>,
    /// The preprocessing of pictures, for a model of values that reads pictures.
    pictures: Option<Arc<Preprocessing>>,
}

/// The network of a model.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// A network of images, which the kernels for images compute.
    Images(Images),
    /// A model of values.
    Values(Arc<Values>),
}

impl Model {
    /// Opens a folder with `model.safetensors` and `config.json`, a `.safetensors` file, or an `.onnx` file.
    ///
    /// An ONNX file of one input of f32 images, as planes or pixels, and one output is a network of images if the kernels for
    /// images compute all of it and the result of an image is a vector. Its labels and the preprocessing are those of the
    /// `config.json` beside it; without one there are no labels, and bytes become numbers from 0 to 1. Any other file is a
    /// model of values: the rows of its engines have the file's inputs and outputs as ports. [`Model::open_at`] gives sizes
    /// to free dimensions, and [`Model::open_values`] opens any file as a model of values.
    ///
    /// The configuration of a `.safetensors` file is in its own header, under `config` (the text of a `config.json`) or
    /// key by key (`architecture`, `num_classes`, `input_size`, …); without one, it is the `config.json` beside the
    /// file.
    ///
    /// The call does not read the weights yet, but checks that every tensor is there, with the right shape and type.
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
            return onnx::open(path, &Sizes::new(), true);
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

    /// A model of a supported architecture, for images of any height and width.
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

    /// Opens a model at these sizes of its free dimensions: an `.onnx` file, also with constants for some of its
    /// inputs; the folder of an encoder, with `sequence`, with `tokens` and `rows`, or with `height` and `width`; or
    /// another model of safetensors, with `height` and `width`. One dimension of an ONNX file's inputs may stay free:
    /// the first one, or the one whose name contains `batch`. It is the batch, whose sizes the engine's builder sets.
    /// The builder may also set [other sizes](crate::EngineBuilder::sizes) for the other dimensions.
    ///
    /// ```no_run
    /// use trefoil::{model::Model, onnx::Sizes};
    /// let model = Model::open_at("bert.onnx", &Sizes::new().dim("sequence", 128))?;
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Model::open`]; [`Error::Option`] for a size that is missing, and for one that the model does not use.
    pub fn open_at(path: impl AsRef<Path>, sizes: &Sizes) -> Result<Self, Error> {
        let path = path.as_ref();
        if !path.is_dir() && path.extension().is_none_or(|extension| extension != "safetensors") {
            return onnx::open(path, sizes, true);
        }
        if path.is_dir() && encoders::is_one(path)? {
            return Self::open_encoder(path, &Embedding::of_sizes(sizes)?);
        }
        Self::open(path)?.at(&Size::of(1, sizes.dims().clone()))
    }

    /// Opens an ONNX file as a model of values, also where it is a network of images: the ports of an engine's rows are
    /// the inputs and outputs of the file.
    ///
    /// ```
    /// use trefoil::{Device, Engine, Target, model::Model, onnx::Sizes};
    /// let model = Model::open_values("tests/data/onnx/images.onnx", &Sizes::new())?;
    /// let engine = Engine::builder(&model).on(&Device::open(Target::Cpu)?).build()?;
    /// assert_eq!(engine.input().to_string(), "`image` of f32[3,20,16]");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Model::open_at`].
    pub fn open_values(path: impl AsRef<Path>, sizes: &Sizes) -> Result<Self, Error> {
        onnx::open(path.as_ref(), sizes, false)
    }

    /// Opens a folder with an encoder of texts, images or sounds: `model.safetensors` and `config.json` of Hugging
    /// Face's BERT, RoBERTa, DistilBERT, MPNet, ModernBERT, ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP, Swin, ConvNeXt or
    /// Whisper, or of a vision transformer, Swin or ConvNeXt of timm. If `sentence-transformers` has written files
    /// beside them, these are read too.
    ///
    /// An encoder of texts has the inputs `input_ids`, `attention_mask` and, for BERT, `token_type_ids`, all i64; rows
    /// are padded behind their last token. SigLIP has no mask: it reads its padding, so its rows always have their full
    /// length. An encoder of images has the input `pixels` of bytes, channels innermost, which
    /// [`preprocessing`](Self::preprocessing) describes; Whisper's encoder has `input_features` of f32, bands by
    /// frames. The output is `embedding`, or `tokens` if tokens are not pooled; an encoder of images with a classifier
    /// has `logits` too.
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
    /// [`Error::Io`]; [`Error::Format`] with everything that is wrong in the configuration, or with every tensor that
    /// is missing, misshapen, or of a layer that the configuration does not have; [`Error::Option`] for an impossible
    /// size; [`Error::Unsupported`] for another model, or a module of `sentence-transformers` that is not supported.
    pub fn open_encoder(folder: impl AsRef<Path>, asked: &Embedding) -> Result<Self, Error> {
        let folder = folder.as_ref();
        let opened = if folder.is_file() { None } else { encoders::open(folder, asked)? };
        opened.ok_or_else(|| encoders::unknown(folder))
    }

    /// A network of images from a graph with one input, [an image](crate::graph::GraphBuilder::image) `[1, H, W, C]` of
    /// f32, and one output. The kernels for images compute it: convolutions, batch norms behind them, ReLU, sums,
    /// pools, concatenations and linear layers. A softmax at the end of the graph is removed, because
    /// [`OutputKind`](crate::OutputKind) selects logits or probabilities. There is one label for each class, or none.
    /// [`Model::of_graphs`] takes any other graph.
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

    /// A model of values from graphs that are built in code. `build` gives the graph for a number of rows, which must
    /// be one dimension of each input and output, the first or another one. The ports of an engine's rows are these
    /// inputs and outputs without that dimension.
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
    /// The errors of `build`; [`Error::Graph`] if no dimension of an input or output is the number of rows, or if
    /// another one depends on it; [`Error::Tensor`] if a weight is missing or has other dimensions.
    pub fn of_graphs(
        weights: impl Into<Arc<Weights>>,
        build: impl Fn(usize) -> Result<crate::graph::Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let build = move |size: &Size| build(size.batch());
        Self::of_values(Values::built(Dims::new(), build)?, weights.into())
    }

    /// A model of values with free dimensions, from graphs that are built in code. `build` gives the graph for a size:
    /// a number of rows, and sizes of the free dimensions. `at` names the free dimensions and their default sizes; an
    /// engine's builder may set [others](crate::EngineBuilder::sizes). The number of rows in `at` is ignored.
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

    /// A model of values from one graph. It computes one row at a time, and the ports of the row have all dimensions of
    /// the graph's inputs and outputs.
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

    /// A model of values, with the weights that its graphs name.
    fn of_values(values: Values, weights: Arc<Weights>) -> Result<Self, Error> {
        let weights = padding::with_layers(weights, &values)?;
        let (network, labels) = (Network::Values(values.into()), Arc::from([]));
        Ok(Self { network, weights, labels, name: "model".into(), metadata: Arc::default(), pictures: None })
    }

    /// The model with another network of values and other weights.
    fn with_values(&self, values: Arc<Values>, weights: Arc<Weights>) -> Self {
        Self { network: Network::Values(values), weights, ..self.clone() }
    }

    /// The same model under another name.
    pub fn with_name(self, name: &str) -> Self {
        Self { name: name.into(), ..self }
    }

    /// The model with its weight file in memory. The file is read once, however often the model is built.
    pub(crate) fn in_memory(&self) -> Result<Self, Error> {
        Ok(Self { weights: Weights::in_memory(&self.weights)?, ..self.clone() })
    }

    /// The model cut before its classifier: its result is the input of the last linear layer. If the model does not end
    /// in a linear layer, or has been cut before, the call returns the same model.
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

    /// The model cut at a node: its result is the value of that node, and nodes that are not needed for it are removed.
    ///
    /// In a network of images, the name of a module, such as `layer4` or `layer4.1`, means the last node of that module.
    /// In a model of values, the outputs are all values that the node writes.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] if there is no such node, with similar names; [`Error::Graph`] if a value of a model of values
    /// has no dimension that is the number of rows; [`Error::Unsupported`] for a model with state.
    pub fn features_at(&self, node: &str) -> Result<Self, Error> {
        if let Network::Values(_) = self.network {
            return self.values_up_to(node);
        }
        let (own, name) = (self.images()?, node.to_owned());
        let cut = own.edited(move |shaped| shaped.cut(&name))?;
        let Shaped { network, output, .. } = cut.shaped();
        let is_whole = Arc::ptr_eq(network, &own.shaped().network);
        let labels = if is_whole { self.labels.clone() } else { numbered(output.channels) };
        Ok(Self { labels, ..self.with(cut) })
    }

    /// The model cut in two at a node, with shared weights: the second part reads the result of the first, see
    /// [`EngineBuilder::then`](crate::EngineBuilder::then).
    ///
    /// The first part of a model of values has all nodes up to this one, in the order of its [graph](Self::graph), and
    /// its outputs are all values that the second part reads. So any model of values may be cut at any node at which all
    /// of these values have a dimension that is the number of rows.
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
    /// As [`Model::features_at`]; [`Error::Graph`] if something after the node of a network of images reads something
    /// before it.
    pub fn split_at(&self, node: &str) -> Result<(Self, Self), Error> {
        if let Network::Values(_) = self.network {
            return self.values_split_at(node);
        }
        let (first, name) = (self.features_at(node)?, node.to_owned());
        let second = self.images()?.edited(move |shaped| shaped.rest(&name))?;
        Ok((first, self.with(second)))
    }

    /// The model with the same weights whose dense convolutions are computed in bytes, with these scales. Earlier
    /// scales of the model are removed.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] with everything that is wrong: scales that are missing, out of range, or that name no node.
    /// [`Error::Unsupported`] for a model that is no network of images.
    pub fn quantized(&self, quantization: &Quantization) -> Result<Self, Error> {
        let quantization = quantization.clone();
        Ok(self.with(self.images()?.edited(move |shaped| shaped.quantized(&quantization, quantization::refused))?))
    }

    /// The model without scales.
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

    /// The network of images that was found in the model's graph, with the changes of
    /// [`features_at`](Self::features_at) or [`quantized`](Self::quantized), and before any rewrite.
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

    /// The graph of a model of values for a number of rows. A model that computes one row at a time has only the graph
    /// for 1 row.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a network of images, which has an [`image_network`](Self::image_network); as for
    /// [`Model::of_graphs`] or [`Model::open_at`].
    pub fn graph(&self, rows: usize) -> Result<crate::graph::Graph, Error> {
        self.values()?.graph(rows)
    }

    /// The weights that the graph reads.
    pub fn weights(&self) -> &Arc<Weights> {
        &self.weights
    }

    /// How a picture becomes the input, at the model's current sizes; use [`Model::at`] for other sizes. An encoder of
    /// images normalises bytes in its graph, so the mean here is 0 and the deviation 1.
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

    /// The length of the result, or its number of channels if it is not a vector; 0 for a model that is no network of
    /// images.
    pub fn classes(&self) -> usize {
        self.labels.len()
    }

    /// One label for each class; `class 0`, `class 1`, … if the model has no labels.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// The label of one class; `no such class` beyond the last.
    pub fn label(&self, class: usize) -> &str {
        self.labels.get(class).map_or("no such class", String::as_str)
    }

    /// The name of the architecture in the configuration; `model` if there is none.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text that an ONNX file has under `key`: exporters write the names of classes there, or the characters that a
    /// text recogniser distinguishes. `None` for a model from another kind of file.
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

/// The input for which an architecture was designed. The configuration at `path` names the architecture.
fn default_input(path: &Path, architecture: &str) -> Result<Shape, Error> {
    let unknown = || Error::UnknownArchitecture {
        path: path.to_owned(),
        found: architecture.to_owned(),
        known: architectures().into_iter().chain(encoders::known()).collect(),
    };
    families::find(architecture).map(families::Architecture::default_input).ok_or_else(unknown)
}

/// The largest number of characters that a model's name takes from its configuration.
const MOST_OF_A_NAME: usize = 200;

/// Labels for the classes of a model without labels.
fn numbered(classes: usize) -> Arc<[String]> {
    (0..classes).map(|class| format!("class {class}")).collect()
}
