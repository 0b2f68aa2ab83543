//! Architectures by name: each builds its graph, with the names of a PyTorch state dict, and is checked against the
//! weights.
//!
//! A node's name is its module's name in torchvision or timm, so that layers can be compared with PyTorch's. Nodes
//! without a module of their own are named `relu1`, `relu2`, … and `add` in their block.

mod convnet28;
mod efficientnet_lite;
mod googlenet;
mod resnet;

use std::collections::HashSet;

use super::weights::{Weights, filter_of};
use crate::error::Error;
use crate::graph::Graph;
use crate::tensor::Shape;

/// An architecture that can be built.
pub(super) trait Architecture: Sync {
    /// The architecture's name, without a tag.
    fn name(&self) -> &'static str;

    /// The input for which it was designed.
    fn default_input(&self) -> Shape;

    /// The name of the architecture's last, fully connected layer.
    fn classifier(&self) -> &'static str;

    /// The beginnings of the names of tensors that are only needed for training.
    fn training_only(&self) -> &'static [&'static str] {
        &[]
    }

    /// The architecture's graph for this number of classes and this input.
    fn graph(&self, num_classes: usize, input: Shape) -> Result<Graph, Error>;
}

/// The graph of an architecture, for input images of a shape.
///
/// The name is that of timm or torchvision. A tag after a dot, as in `resnet50.a1_in1k`, names the origin of weights
/// and is ignored. Without `num_classes`, the classifier's weights give the number of classes.
///
/// # Errors
///
/// [`Error::UnknownArchitecture`]; [`Error::Tensor`] if a tensor is missing, has another shape or type, or is there
/// without being part of the architecture; [`Error::Graph`] if the input is too small.
///
/// ```
/// use trefoil::{Error, Shape, model::{Weights, build}};
/// let weights = Weights::from_tensors([("fc.bias", vec![10], vec![0.0; 10])])?;
/// let missing = build("trefoil_convnet28", Some(10), Shape::new(28, 28, 1), &weights);
/// assert!(matches!(missing, Err(Error::Tensor { tensor, .. }) if tensor == "conv1.weight"));
/// # Ok::<(), trefoil::Error>(())
/// ```
pub fn build(architecture: &str, num_classes: Option<usize>, input: Shape, weights: &Weights) -> Result<Graph, Error> {
    let known = find(architecture).ok_or_else(|| Error::UnknownArchitecture {
        path: weights.path().to_owned(),
        found: architecture.to_owned(),
        known: architectures(),
    })?;
    let num_classes = match num_classes {
        Some(n) => n,
        None => stored_classes(known, weights)?,
    };
    let graph = known.graph(num_classes, input)?;
    check_weights(&graph, weights)?;
    check_nothing_left(known, &graph, weights)?;
    Ok(graph)
}

/// The graph of an architecture without any weights, for images of a shape or of the one that it was designed for.
///
/// ```
/// let graph = trefoil::model::architecture("googlenet", 1000, None)?;
/// let (name, of) = graph.weights().next().unwrap();
/// assert_eq!((name, &of.dims[..]), ("conv1.conv.weight", &[64, 3, 7, 7][..]));
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Option`] for a name that is not one of [`architectures`]; [`Error::Graph`] if the input is too small.
pub fn architecture(name: &str, num_classes: usize, input: Option<Shape>) -> Result<Graph, Error> {
    let unknown = || Error::option("architecture", name, format!("one of {}", architectures().join(", ")));
    let known = find(name).ok_or_else(unknown)?;
    known.graph(num_classes, input.unwrap_or_else(|| known.default_input()))
}

/// The names that [`build`] knows.
///
/// ```
/// assert!(trefoil::model::architectures().contains(&"resnet50".to_string()));
/// ```
pub fn architectures() -> Vec<String> {
    all().map(|architecture| architecture.name().to_owned()).collect()
}

/// The architecture of this name; a tag is ignored.
pub(super) fn find(name: &str) -> Option<&'static dyn Architecture> {
    let plain = name.split_once('.').map_or(name, |(plain, _tag)| plain);
    all().find(|architecture| architecture.name() == plain)
}

/// Checks that every tensor that the graph reads exists, with its shape and a usable type.
fn check_weights(graph: &Graph, weights: &Weights) -> Result<(), Error> {
    graph.weights().try_for_each(|(name, of)| weights.check(name, &of.dims))
}

fn all() -> impl Iterator<Item = &'static dyn Architecture> {
    fn family<A: Architecture>(members: &'static [A]) -> impl Iterator<Item = &'static dyn Architecture> {
        members.iter().map(|member| member as &dyn Architecture)
    }
    family(&resnet::ALL)
        .chain(family(&efficientnet_lite::ALL))
        .chain(family(&googlenet::ALL))
        .chain(family(&convnet28::ALL))
}

/// The number of rows of the classifier's weight.
fn stored_classes(architecture: &dyn Architecture, weights: &Weights) -> Result<usize, Error> {
    let name = format!("{}.weight", architecture.classifier());
    match weights.dims(&name) {
        Some(&[classes, _]) => Ok(classes),
        Some(dims) => Err(weights.error(&name, "[classes, features]", format!("{dims:?}"))),
        None => Err(weights.missing(&name, "[classes, features]")),
    }
}

/// Checks that no tensor is left over. A tensor that no node reads means that the weights belong to another
/// architecture and fit only by chance, such as one with more blocks, or with a further layer in each block.
fn check_nothing_left(architecture: &dyn Architecture, graph: &Graph, weights: &Weights) -> Result<(), Error> {
    let used: HashSet<&str> = graph.weights().map(|(name, _)| name).collect();
    // Once a network has been found, each matrix also exists as a filter.
    let filters: HashSet<String> = used.iter().map(|name| filter_of(name, false)).collect();
    let for_training = |name: &str| {
        name.ends_with(".num_batches_tracked") || architecture.training_only().iter().any(|part| name.starts_with(part))
    };
    match weights.names().find(|name| !used.contains(name) && !filters.contains(*name) && !for_training(name)) {
        None => Ok(()),
        Some(name) => {
            let expected = format!("only the tensors of a {}", architecture.name());
            Err(weights.error(name, expected, "one that it does not have"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::images::Network;
    use crate::model::{Op, fold_conv, optimize, read_linear, shape};

    /// The number of trainable parameters, as PyTorch counts them.
    fn trainable(graph: &Graph) -> usize {
        let learned =
            graph.weights().filter(|(name, _)| !name.ends_with("running_mean") && !name.ends_with("running_var"));
        learned.map(|(_, of)| of.elems()).sum()
    }

    fn graph(name: &str) -> Graph {
        let architecture = find(name).unwrap();
        architecture.graph(1000, architecture.default_input()).unwrap()
    }

    /// Weights of zeros for a graph.
    fn zeros(graph: &Graph) -> Vec<(String, Vec<usize>, Vec<f32>)> {
        graph.weights().map(|(name, of)| (name.to_owned(), of.dims.clone(), vec![0.0; of.elems()])).collect()
    }

    /// The counts that torchvision and timm publish.
    #[test]
    fn parameter_counts() {
        let published = [
            ("resnet18", 11_689_512),
            ("resnet34", 21_797_672),
            ("resnet50", 25_557_032),
            ("resnet101", 44_549_160),
            ("resnet152", 60_192_808),
            ("efficientnet_lite0", 4_652_008),
            ("tf_efficientnet_lite0", 4_652_008),
            ("tf_efficientnet_lite1", 5_416_680),
            ("tf_efficientnet_lite2", 6_092_072),
            ("tf_efficientnet_lite3", 8_197_096),
            ("tf_efficientnet_lite4", 13_006_568),
            ("googlenet", 6_624_904),
        ];
        for (name, expected) in published {
            assert_eq!(trainable(&graph(name)), expected, "{name}");
        }
    }

    #[test]
    fn every_architecture_fuses_to_convolutions_pools_and_a_classifier() {
        for architecture in all() {
            let graph = Network::of(&graph(architecture.name())).unwrap();
            let optimized = optimize(&graph);
            for node in &optimized.nodes {
                let kind = node.op.kind();
                assert!(!["batch_norm", "activation"].contains(&kind), "{}: {}", architecture.name(), node.name);
            }
            let shapes = shape::infer(&optimized).unwrap();
            assert_eq!(shapes[optimized.output.0], Shape::vector(1000));
            assert!(graph.find(architecture.classifier()) == Some(graph.output));
        }
    }

    /// The order in which a planner and a loader work: the rewritten graph finds all its weights.
    #[test]
    fn the_weights_of_rewritten_graphs_are_read() {
        for name in
            ["resnet18", "resnet50", "tf_efficientnet_lite0", "efficientnet_lite2", "googlenet", "trefoil_convnet28"]
        {
            let weights = Weights::from_tensors(zeros(&graph(name))).unwrap();
            let input = find(name).unwrap().default_input();
            let optimized = optimize(&Network::of(&build(name, None, input, &weights).unwrap()).unwrap());
            let shapes = shape::infer(&optimized).unwrap();
            for node in &optimized.nodes {
                let channels = node.inputs.first().map_or(0, |id| shapes[id.0].channels);
                match &node.op {
                    Op::Conv2d(conv) => drop(fold_conv(&weights, conv, channels).unwrap()),
                    Op::Linear(linear) => drop(read_linear(&weights, linear, channels).unwrap()),
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn tags_are_ignored() {
        assert_eq!(find("resnet50.a1_in1k").unwrap().name(), "resnet50");
        assert!(find("resnet51").is_none() && find("").is_none() && find(".resnet50").is_none());
    }

    #[test]
    fn weights_are_checked_in_both_directions() {
        let input = Shape::new(32, 32, 3);
        let graph = find("resnet18").unwrap().graph(7, input).unwrap();
        let good = zeros(&graph);
        let build = |tensors: Vec<_>, classes| build("resnet18", classes, input, &Weights::from_tensors(tensors)?);
        assert_eq!(build(good.clone(), None).unwrap(), graph);
        let tensor_error = |result: Result<Graph, Error>, name: &str| match result {
            Err(Error::Tensor { tensor, .. }) => assert_eq!(tensor, name),
            other => panic!("{other:?}"),
        };
        tensor_error(build(good.clone(), Some(8)), "fc.weight");
        tensor_error(build(good[1..].to_vec(), None), &good[0].0);
        let with = |name: &str| [&good[..], &[(name.to_owned(), vec![1], vec![0.0])]].concat();
        tensor_error(build(with("layer1.2.conv1.weight"), None), "layer1.2.conv1.weight");
        build(with("bn1.num_batches_tracked"), None).unwrap();
        let gray = find("resnet18").unwrap().graph(7, Shape::new(32, 32, 1)).unwrap();
        tensor_error(build(zeros(&gray), None), "conv1.weight");
        let headless = good.into_iter().filter(|(name, ..)| !name.starts_with("fc")).collect();
        tensor_error(build(headless, None), "fc.weight");
    }
}
