//! A network of images: a graph for each size of its free dimensions, which are mostly the image's height and width.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::images::{self, NodeId};
use super::names::nearest;
use super::preprocessing::Preprocessing;
use super::quantization::{self, Quantization};
use super::recognise::{self, Recognised};
use super::shape::{infer, params};
use super::weights::{Weights, filter_of};
use super::{Model, Network, numbered};
use crate::error::Error;
use crate::graph::Graph;
use crate::tensor::{Dims, Shape, Size};

/// A network of images as a function of its free dimensions, with its value at the present sizes.
#[derive(Clone)]
pub(crate) struct Images {
    source: Source,
    dims: Dims,
    shaped: Shaped,
}

/// A network of images at one size.
#[derive(Clone, Debug)]
pub(crate) struct Shaped {
    pub network: Arc<images::Network>,
    pub preprocessing: Arc<Preprocessing>,
    /// The shape of the result.
    pub output: Shape,
    /// Whether the network was cut, so that its result is the requested features.
    pub is_cut: bool,
    /// The layers of a file in bytes that are computed in floats, with the reasons.
    pub in_floats: Arc<[String]>,
}

/// A function from sizes of the free dimensions and weights to the network at these sizes, and to the weights together
/// with those that the network needs in addition.
#[derive(Clone)]
struct Source(Arc<At>);

type At = dyn Fn(&Dims, &Arc<Weights>) -> Result<(Shaped, Arc<Weights>), Error> + Send + Sync;

impl Model {
    /// A network of images with free dimensions, from graphs that are built in code. `build` gives the graph of one
    /// image for sizes of the free dimensions. `at` names the free dimensions and their default sizes; an engine's
    /// builder may set [others](crate::EngineBuilder::sizes). `preprocessing` is for the default sizes; at other sizes
    /// the crop takes the same share of the picture. The number of rows in a size is ignored.
    ///
    /// ```
    /// use trefoil::{Device, Engine, OutputKind, Shape, Size, Target};
    /// use trefoil::graph::{GraphBuilder, Window};
    /// use trefoil::model::{Model, Preprocessing, Weights};
    /// let weights = Weights::from_tensors([("conv.weight", vec![8, 3, 3, 3], vec![0.5; 216])])?;
    /// let side = |side: usize| Size::new(4).dim("side", side);
    /// let input = |size: &Size| Shape::new(size.get("side").expect("it is named"), 10, 3);
    /// let preprocessing = Preprocessing::new(input(&side(10)));
    /// let model = Model::of_images(weights, &side(10), preprocessing, Vec::new(), move |size| {
    ///     let mut g = GraphBuilder::new();
    ///     let x = g.image("image", input(size));
    ///     let x = g.conv2d("conv", x, 8, Window::square(3, 1, 1));
    ///     let x = g.global_avg_pool("pool", x);
    ///     g.output("features", x);
    ///     g.finish()
    /// })?;
    /// let builder = Engine::builder(&model).on(&Device::open(Target::Cpu)?).output(OutputKind::Features);
    /// let engine = builder.sizes(&[side(10), side(6)]).build()?;
    /// assert_eq!(engine.acquire_for(&side(6))?.row_mut(0).len(), 6 * 10 * 3);
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of `build`; as for [`Model::new`].
    pub fn of_images(
        weights: impl Into<Arc<Weights>>,
        at: &Size,
        preprocessing: Preprocessing,
        labels: Vec<String>,
        build: impl Fn(&Size) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Self::of_built(weights.into(), at, preprocessing, labels, move |size, _| build(size))
    }

    /// A network of images with free dimensions, from graphs that also depend on the weights.
    pub(super) fn of_built(
        weights: Arc<Weights>,
        at: &Size,
        preprocessing: Preprocessing,
        labels: Vec<String>,
        build: impl Fn(&Size, &Weights) -> Result<Graph, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (shaped, weights) = Shaped::of(&build(at, &weights)?, preprocessing.clone(), &weights)?;
        let other = move |dims: &Dims, weights: &Arc<Weights>| {
            let graph = build(&Size::of(1, dims.clone()), weights)?;
            graph.check()?;
            let found = recognise::network(&graph, weights)?;
            let preprocessing = preprocessing.for_input(found.network.input);
            Shaped::found(found, preprocessing, weights)
        };
        Self::of_shaped(Images::new(at.dims().clone(), shaped, other), weights, labels)
    }

    /// The model of a network of images, with one label for each class or without labels.
    pub(super) fn of_shaped(images: Images, weights: Arc<Weights>, labels: Vec<String>) -> Result<Self, Error> {
        let classes = images.shaped.output.channels;
        if !labels.is_empty() && labels.len() != classes {
            let expected = format!("one for each of {classes} classes, or none");
            return Err(Error::option("labels", format_args!("a list of {}", labels.len()), expected));
        }
        let labels = if labels.is_empty() { numbered(classes) } else { labels.into() };
        let (network, name) = (Network::Images(images), "model".into());
        Ok(Self { network, weights, labels, name, metadata: Arc::default(), pictures: None })
    }
}

/// The weights, with the matrix of the last layer also as a filter of one tap. The network as a graph of values reads
/// the filter.
fn with_last_layer(weights: Arc<Weights>, network: &images::Network) -> Result<Arc<Weights>, Error> {
    match &network.nodes[network.output.0].op {
        images::Op::Linear(last) if weights.dims(&filter_of(&last.weight, false)).is_none() => {
            Ok(weights.with_filters(&BTreeSet::from([(last.weight.clone(), false)]))?.into())
        }
        _ => Ok(weights),
    }
}

impl Images {
    /// A network that is `shaped` at the sizes `dims`; `at` gives it at other sizes.
    pub fn new(
        dims: Dims,
        shaped: Shaped,
        at: impl Fn(&Dims, &Arc<Weights>) -> Result<(Shaped, Arc<Weights>), Error> + Send + Sync + 'static,
    ) -> Self {
        Self { source: Source(Arc::new(at)), dims, shaped }
    }

    /// A network without free dimensions.
    pub fn fixed(shaped: Shaped) -> Self {
        let same = shaped.clone();
        Self::new(Dims::new(), shaped, move |_, weights| Ok((same.clone(), weights.clone())))
    }

    /// The network at other sizes of its free dimensions, and the weights with those that it needs there in addition.
    /// Sizes of other dimensions are ignored.
    ///
    /// # Errors
    /// The errors of its construction.
    pub fn at(&self, dims: &Dims, weights: &Arc<Weights>) -> Result<(Self, Arc<Weights>), Error> {
        let size = |(name, size): (&String, &usize)| (name.clone(), *dims.get(name).unwrap_or(size));
        let dims: Dims = self.dims.iter().map(size).collect();
        if dims == self.dims {
            return Ok((self.clone(), weights.clone()));
        }
        let (shaped, weights) = (self.source.0)(&dims, weights)?;
        Ok((Self { source: self.source.clone(), dims, shaped }, weights))
    }

    /// The network with a change that applies at every size.
    ///
    /// # Errors
    /// The errors of the change at the present sizes.
    pub fn edited(
        &self,
        edit: impl Fn(Shaped) -> Result<Shaped, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (shaped, source) = (edit(self.shaped.clone())?, self.source.clone());
        let at = move |dims: &Dims, weights: &Arc<Weights>| {
            let (shaped, weights) = (source.0)(dims, weights)?;
            Ok((edit(shaped)?, weights))
        };
        Ok(Self::new(self.dims.clone(), shaped, at))
    }

    /// The sizes of the free dimensions.
    pub const fn dims(&self) -> &Dims {
        &self.dims
    }

    /// The network at these sizes.
    pub const fn shaped(&self) -> &Shaped {
        &self.shaped
    }
}

impl Shaped {
    /// The network in a graph of one image, with its preprocessing, and the weights with those that are computed for
    /// it.
    ///
    /// # Errors
    /// The errors of [`Model::new`](super::Model::new).
    pub fn of(
        graph: &Graph,
        preprocessing: Preprocessing,
        weights: &Arc<Weights>,
    ) -> Result<(Self, Arc<Weights>), Error> {
        graph.check()?;
        Self::found(recognise::network(graph, weights)?, preprocessing, weights)
    }

    /// A recognised network with its preprocessing, and the weights with those that are computed for it.
    ///
    /// # Errors
    /// The errors of [`Model::new`](super::Model::new).
    pub(super) fn found(
        mut found: Recognised,
        preprocessing: Preprocessing,
        weights: &Arc<Weights>,
    ) -> Result<(Self, Arc<Weights>), Error> {
        let weights = found.weights(weights)?;
        let Recognised { network, in_floats, .. } = found;
        let output = infer(&network)?[network.output.0];
        params(&network)?.into_iter().try_for_each(|(name, dims)| weights.check(name, &dims))?;
        preprocessing.check(network.input)?;
        let weights = with_last_layer(weights, &network)?;
        let (network, preprocessing, in_floats) = (network.into(), preprocessing.into(), in_floats.into());
        Ok((Self { network, preprocessing, output, is_cut: false, in_floats }, weights))
    }

    /// The network cut at a node, or at the last node of a module: its result is the value of that node.
    ///
    /// # Errors
    /// [`Error::Option`] if there is no such node.
    pub fn cut(self, node: &str) -> Result<Self, Error> {
        let at = self.find(node)?;
        if at == self.network.output {
            return Ok(Self { is_cut: true, ..self });
        }
        let network = self.network.cut(at);
        let output = infer(&network)?[network.output.0];
        Ok(Self { network: network.into(), output, is_cut: true, ..self })
    }

    /// The network that computes the result from the value of a node.
    ///
    /// # Errors
    /// As for [`cut`](Self::cut); [`Error::Graph`] if something after the node reads something before it.
    pub fn rest(self, node: &str) -> Result<Self, Error> {
        let between = self.clone().cut(node)?.output;
        let network = self.network.rest(self.find(node)?, between)?.into();
        Ok(Self { network, preprocessing: Preprocessing::new(between).into(), ..self })
    }

    /// The network with some of its values in bytes.
    ///
    /// # Errors
    /// The error that `refused` makes of all problems.
    pub fn quantized(self, quantization: &Quantization, refused: impl Fn(&[String]) -> Error) -> Result<Self, Error> {
        let network = quantization.apply(&self.network).map_err(|problems| refused(&problems))?;
        Ok(Self { network: network.into(), ..self })
    }

    /// The network without scales.
    pub fn without_scales(self) -> Self {
        Self { network: quantization::without_scales(&self.network).into(), ..self }
    }

    /// The node of this name, or the last node of the module of this name.
    fn find(&self, node: &str) -> Result<NodeId, Error> {
        let nodes = &self.network.nodes;
        let in_module = |name: &str| name.strip_prefix(node).is_some_and(|rest| rest.starts_with('.'));
        let last_of_module = || nodes.iter().rposition(|node| in_module(&node.name)).map(NodeId);
        self.network.find(node).or_else(last_of_module).ok_or_else(|| {
            let near = nearest(node, nodes.iter().map(|node| node.name.as_str()), 5);
            let near = if near.is_empty() { String::new() } else { format!(": {}", near.join(", ")) };
            Error::option("features_at", format_args!("`{node}`"), format!("a node's name{near}"))
        })
    }
}

impl fmt::Debug for Images {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Images").field("dims", &self.dims).field("shaped", &self.shaped).finish_non_exhaustive()
    }
}
