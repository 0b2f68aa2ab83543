//! The recognition of a network of images in a graph of values: convolutions, batch norms, activations, sums, pools and
//! linear layers, whichever operations they are written in.

mod affine;
mod bytes;
mod layers;
mod maps;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::images::{Conv2d, Network, Node, NodeId, Op, Window};
use super::shape::infer;
use super::weights::{Weights, filter_of};
use crate::error::Error;
use crate::graph::{self as values, Constant, Origin, Tensor, ValueId};
use crate::tensor::{Dtype, Shape};

pub(crate) use layers::{pool_of, window_of};
pub(crate) use maps::is_sum;

/// A network of images that computes the same as a graph.
pub(super) struct Recognised {
    /// The network, without a softmax at the end.
    pub network: Network,
    /// Weights that are computed from those of the graph, by new names.
    pub computed: Vec<(String, Tensor)>,
    /// Weights that are also read with other dimensions: the new name, the weight's name and the dimensions.
    pub views: Vec<(String, String, Vec<usize>)>,
    /// In a network in bytes, the layers that are computed in floats because a scale is missing, each with the reason.
    pub in_floats: Vec<String>,
}

impl Recognised {
    /// Whether the result is one pixel, as that of a classifier is.
    ///
    /// # Errors
    /// [`Error::Graph`] for a network that is not well-formed.
    pub fn is_vector(&self) -> Result<bool, Error> {
        Ok(infer(&self.network)?[self.network.output.0].pixels() == 1)
    }

    /// The weights that the network reads: those of the graph and its own, which `weights` may already have from
    /// another size.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if one of its own weights differs between sizes; [`Error::Tensor`] if a name exists
    /// already.
    pub fn weights(&mut self, weights: &Arc<Weights>) -> Result<Arc<Weights>, Error> {
        let (mut computed, mut views) = (std::mem::take(&mut self.computed), std::mem::take(&mut self.views));
        for (name, tensor) in computed.iter().filter(|(name, _)| weights.dims(name).is_some()) {
            if weights.read_as(name, tensor.value_type())?.bytes() != tensor.bytes() {
                return Err(Error::Unsupported {
                    what: format!("a network of images whose `{name}` differs between sizes"),
                    instead: "build an engine for each size, of the model opened at it".into(),
                });
            }
        }
        computed.retain(|(name, _)| weights.dims(name).is_none());
        views.retain(|(name, of, dims)| !weights.has_view(name, of, dims));
        match computed.is_empty() && views.is_empty() {
            true => Ok(weights.clone()),
            false => Ok(weights.with(computed)?.with_views(views)?.into()),
        }
    }
}

impl Network {
    /// The network of images that a graph computes. Its weights need not exist.
    /// [`Model::new`](crate::model::Model::new) finds every network that this function finds, and also those in graphs
    /// with constants that have to be computed first.
    ///
    /// ```
    /// use trefoil::model::{architecture, images::Network};
    /// let network = Network::of(&architecture("googlenet", 1000, None)?)?;
    /// assert_eq!(network.nodes[network.output.0].name, "fc");
    /// # Ok::<(), trefoil::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] with every node that no kernel for images computes; [`Error::Graph`] if a window lies in padding
    /// alone; [`Error::Tensor`] if the network depends on the elements of a weight.
    pub fn of(graph: &values::Graph) -> Result<Self, Error> {
        graph.check()?;
        Ok(network(graph, &Weights::from_tensors::<String>([])?)?.network)
    }
}

/// The order of axes that turns planes into pixels.
const TO_PIXELS: [usize; 4] = [0, 2, 3, 1];
/// The order of axes that turns pixels into planes.
const TO_PLANES: [usize; 4] = [0, 3, 1, 2];

/// The network of images that `graph` computes, whose rows are one image.
///
/// # Errors
/// [`Error::Unsupported`] with every node that no network of images has; [`Error::Tensor`] and [`Error::Io`] for
/// weights that cannot be read.
pub(super) fn network(graph: &values::Graph, weights: &Weights) -> Result<Recognised, Error> {
    let mut least: Option<Vec<String>> = None;
    let named: HashSet<String> = graph.weights().map(|(name, _)| name.to_owned()).collect();
    let (graph, kept) = bytes::without_pairs(graph, weights)?;
    // Operations on planes before the first convolution can also be applied to pixels.
    let ways: [fn(&values::Graph) -> values::Graph; 2] = [values::Graph::clone, of_pixels];
    for read in ways {
        let graph = values::simplify(&read(&graph));
        match Recogniser::new(&graph, weights, &kept, named.clone())?.run()? {
            Ok(network) => return Ok(network),
            Err(refused) if least.as_ref().is_none_or(|least| refused.len() < least.len()) => least = Some(refused),
            Err(_) => {}
        }
    }
    let refused = least.unwrap_or_default();
    Err(Error::Unsupported {
        what: format!("a model with nodes that no kernel for images computes ({})", refused.join("; ")),
        instead: "open the graph with `Model::of_graphs`, which takes any operation; kernels for images compute \
                  convolutions, batch norms, ReLU, sums, pools, concatenations, a linear layer and softmax"
            .into(),
    })
}

/// The graph with an input of pixels instead of planes, if its input may be planes.
fn of_pixels(graph: &values::Graph) -> values::Graph {
    let [port] = &graph.inputs[..] else { return graph.clone() };
    if graph.value(port.value).rank() != TO_PIXELS.len() {
        return graph.clone();
    }
    let planes = graph.value(port.value);
    let dims = TO_PIXELS.map(|axis| planes.dims[axis]);
    graph.with_input_made(0, values::ValueType::new(planes.dtype, &dims), &[values::Op::Transpose(TO_PLANES.to_vec())])
}

struct Recogniser<'a> {
    from: &'a values::Graph,
    weights: &'a Weights,
    nodes: Vec<Node>,
    /// The node that computes each value.
    of_value: HashMap<ValueId, NodeId>,
    /// Values that are an image as planes, in any dimensions. Only a linear layer can read them.
    planes: HashMap<ValueId, NodeId>,
    /// For each value, whether it is the same for all requests.
    is_constant: Vec<bool>,
    /// The nodes that read each value.
    readers: Vec<Vec<values::NodeId>>,
    computed: Vec<(String, Tensor)>,
    views: Vec<(String, String, Vec<usize>)>,
    /// The names of the graph's weights and of those above.
    taken: HashSet<String>,
    softmax: Option<ValueId>,
    input: Shape,
    /// The bytes of pairs, by the names of the bounds that replace them.
    kept: &'a HashMap<String, bytes::Kept>,
    /// The zero points of values in bytes that have no scale, by the names of their nodes.
    asymmetric: HashMap<String, i64>,
}

/// The reason why a network of images cannot have a node.
pub(crate) type Why = &'static str;

/// The network's node for a node of the graph; `None` if one of its inputs was refused.
type Found = Result<Option<NodeId>, Failed>;

enum Failed {
    Why(Why),
    Error(Error),
}

impl From<Why> for Failed {
    fn from(why: Why) -> Self {
        Self::Why(why)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl<'a> Recogniser<'a> {
    fn new(
        from: &'a values::Graph,
        weights: &'a Weights,
        kept: &'a HashMap<String, bytes::Kept>,
        taken: HashSet<String>,
    ) -> Result<Self, Error> {
        let refused =
            |what: String| Error::Unsupported { what, instead: "one input of f32 images and one output".into() };
        let ([input], [_]) = (&from.inputs[..], &from.outputs[..]) else {
            return Err(refused(format!(
                "a network of {} inputs and {} outputs",
                from.inputs.len(),
                from.outputs.len()
            )));
        };
        let of = from.value(input.value);
        let turned = from.nodes.iter().find(|node| {
            node.inputs[..] == [Some(input.value)] && node.op == values::Op::Transpose(TO_PIXELS.to_vec())
        });
        let first = turned.map_or(input.value, |node| node.outputs[0]);
        let [1, height, width, channels] = from.value(first).dims[..] else {
            return Err(refused(format!("input `{}` of {of}", input.name)));
        };
        if of.dtype != Dtype::F32 {
            return Err(refused(format!("input `{}` of {of}", input.name)));
        }
        let node = Node { name: "input".into(), op: Op::Input, inputs: Vec::new(), scale: None };
        Ok(Self {
            from,
            weights,
            nodes: vec![node],
            of_value: HashMap::from([(first, NodeId(0))]),
            planes: HashMap::new(),
            is_constant: constants(from),
            readers: from.readers(),
            computed: Vec::new(),
            views: Vec::new(),
            taken,
            softmax: None,
            input: Shape::new(height, width, channels),
            kept,
            asymmetric: HashMap::new(),
        })
    }

    /// The network, or a text for each node that a network of images cannot have.
    fn run(mut self) -> Result<Result<Recognised, Vec<String>>, Error> {
        let mut refused = Vec::new();
        for node in &self.from.nodes {
            if self.of_value.contains_key(&node.outputs[0]) || node.outputs.iter().all(|&id| self.is_constant(id)) {
                continue;
            }
            match self.recognise(node) {
                Ok(Some(id)) => drop(self.of_value.insert(node.outputs[0], id)),
                Ok(None) => {} // an input was refused
                Err(Failed::Error(error)) => return Err(error),
                Err(Failed::Why(why)) => {
                    let of = self.from.value(node.outputs[0]);
                    refused.push(format!("node `{}` ({} to {of}): {why}", node.name, node.op.kind()));
                }
            }
        }
        let last = self.from.outputs[0].value;
        let Some(&output) = self.of_value.get(&self.softmax.unwrap_or(last)).filter(|_| refused.is_empty()) else {
            return Ok(Err(refused));
        };
        let mut network = Network { nodes: std::mem::take(&mut self.nodes), output, input: self.input }.cut(output);
        let channels: Vec<usize> = infer(&network)?.iter().map(|shape| shape.channels).collect();
        let last = network.output.0;
        for (_, node) in network.nodes.iter_mut().enumerate().filter(|(index, _)| *index != last) {
            // A layer before the last becomes a 1x1 convolution, into which kernels fuse the operations that follow.
            if let Op::Linear(linear) = &node.op {
                let dims = [linear.out_features, channels[node.inputs[0].0], 1, 1];
                let filter = self.view(filter_of(&linear.weight, false), linear.weight.clone(), dims.to_vec());
                let window = Window::square(1, 1, 0);
                let conv = Conv2d { filter, bias: linear.bias.clone(), ..Conv2d::named(&node.name, dims[0], window) };
                node.op = Op::Conv2d(conv);
            }
        }
        let in_floats = bytes::leave_in_floats(&mut network, &self.asymmetric);
        Ok(Ok(Recognised { network, computed: self.computed, views: self.views, in_floats }))
    }

    fn recognise(&mut self, node: &values::Node) -> Found {
        let runs = node.inputs.iter().flatten().filter(|id| !self.is_constant(**id));
        let images: Option<Vec<NodeId>> = runs.map(|id| self.of_value.get(id).copied()).collect();
        let Some(images) = images else { return self.of_planes(node) };
        if let Some(id) = self.softmax
            && node
                .inputs
                .iter()
                .flatten()
                .any(|&input| self.from.values[input.0].origin == self.from.values[id.0].origin)
        {
            return Err("another node reads the softmax's operand too".into());
        }
        match &node.op {
            values::Op::Conv(conv) => self.conv(node, conv, images[0]).map(Some),
            values::Op::Pool(pool) => self.pool(node, pool, images[0]).map(Some),
            values::Op::Reduce(of) => self.mean(node, of, images[0]).map(Some),
            values::Op::Map(expr) => match self.kept.get(&node.name) {
                Some(&kept) => self.kept(node, kept, images[0]).map(Some),
                None => self.map(node, expr, &images).map(Some),
            },
            values::Op::Concat(axis) => self.concat(node, *axis, &images).map(Some),
            values::Op::Contract(of) => self.linear(node, of, &images).map(Some),
            values::Op::Reshape(_) => self.reshape(node, images[0]).map(Some),
            values::Op::Softmax { axis, log: false } => self.end(node, *axis, images[0]).map(Some),
            values::Op::Transpose(order) if order[..] == TO_PLANES => {
                self.planes.insert(node.outputs[0], images[0]);
                Ok(None)
            }
            values::Op::Transpose(_) => Err("it moves pixels between channels".into()),
            _ => Err("no kernel computes it".into()),
        }
    }

    /// Adds a node that reads an image as planes: a view of them, or a linear layer of all of them, which is a
    /// convolution with a window of the image's size.
    fn of_planes(&mut self, node: &values::Node) -> Found {
        let Some(&x) = node.inputs.first().copied().flatten().and_then(|id| self.planes.get(&id)) else {
            return if node.inputs.iter().flatten().any(|id| self.planes.contains_key(id)) {
                Err("it reads an image as planes".into())
            } else {
                Ok(None) // an input was refused
            };
        };
        match (&node.op, &node.inputs[..]) {
            (values::Op::Reshape(_), _) => {
                self.planes.insert(node.outputs[0], x);
                Ok(None)
            }
            (values::Op::Contract(of), [_, Some(weight)]) if self.is_constant(*weight) => {
                let (out_features, weight) = self.linear_weight(node, of, *weight)?;
                let image = infer(&Network { nodes: self.nodes.clone(), output: x, input: self.input })?[x.0];
                let planes = [image.channels, image.height, image.width];
                let name = format!("{weight} (planes of {}x{}x{})", planes[0], planes[1], planes[2]);
                let shape = [&[out_features], &planes[..]].concat();
                let filter = self.view(name, weight, shape);
                let window = Window { size: [image.height, image.width], ..Window::square(1, 1, 0) };
                let conv = Conv2d { filter, ..Conv2d::named(&node.name, out_features, window) };
                Ok(Some(self.push(node, Op::Conv2d(conv), vec![x])))
            }
            _ => Err("it reads an image as planes".into()),
        }
    }

    fn is_constant(&self, id: ValueId) -> bool {
        self.is_constant[id.0]
    }

    /// The name of the weight that a constant is. A computed constant becomes a weight with a new name.
    fn named(&mut self, node: &values::Node, part: &str, id: ValueId) -> Result<String, Failed> {
        match self.from.constant(id) {
            Some(Constant::Weight(name)) => Ok(name.clone()),
            _ => {
                let tensor = self.tensor(id)?;
                Ok(self.keep(node, part, tensor))
            }
        }
    }

    fn keep(&mut self, node: &values::Node, part: &str, tensor: Tensor) -> String {
        let name = self.unused(format!("{} ({part})", node.name));
        self.computed.push((name.clone(), tensor));
        name
    }

    /// The name of a weight that is also read with other dimensions. Of equal views there is one.
    fn view(&mut self, name: String, of: String, dims: Vec<usize>) -> String {
        match self.views.iter().find(|(_, known, shape)| *known == of && *shape == dims) {
            Some((known, ..)) => known.clone(),
            None => {
                let name = self.unused(name);
                self.views.push((name.clone(), of, dims));
                name
            }
        }
    }

    /// This name, or one that begins with it, that no other weight has.
    fn unused(&mut self, name: String) -> String {
        let mut free = name.clone();
        let mut others = (2..).map(|number| format!("{name} {number}"));
        while !self.taken.insert(free.clone()) {
            free = others.next().expect("there are more numbers than weights");
        }
        free
    }

    fn tensor(&self, id: ValueId) -> Result<Tensor, Error> {
        if let Some(values::Constant::Bytes(bytes)) = self.from.constant(id) {
            return Ok(Tensor::from_bytes(self.from.value(id).clone(), bytes));
        }
        Ok(bytes::constants_of(self.from, self.weights, &[id])?.remove(0))
    }

    fn push(&mut self, node: &values::Node, op: Op, inputs: Vec<NodeId>) -> NodeId {
        self.nodes.push(Node { name: node.name.clone(), op, inputs, scale: None });
        NodeId(self.nodes.len() - 1)
    }
}

/// For each value, whether it is a constant or computed only from constants.
fn constants(graph: &values::Graph) -> Vec<bool> {
    let given = |value: &values::Value| matches!(value.origin, Origin::Constant(_));
    let mut is_constant: Vec<bool> = graph.values.iter().map(given).collect();
    for node in &graph.nodes {
        let all = node.inputs.iter().flatten().all(|input| is_constant[input.0]);
        node.outputs.iter().for_each(|output| is_constant[output.0] = all);
    }
    is_constant
}

fn read(node: &values::Node) -> ValueId {
    node.inputs[0].expect("its first operand is there")
}
