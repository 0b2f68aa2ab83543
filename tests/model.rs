//! Models as values: the checks when a model is made, and models that are cut at a node.

use trefoil::graph::{Graph, GraphBuilder, ValueType, Window};
use trefoil::model::images::infer;
use trefoil::model::{Model, Preprocessing, Weights};
use trefoil::{Error, Shape};

const INPUT: Shape = Shape::new(6, 6, 3);

/// Two residual blocks and a classifier of four classes.
fn graph() -> Graph {
    let mut g = GraphBuilder::new();
    let mut x = g.image("image", INPUT);
    for block in ["layer1.0", "layer1.1"] {
        let y = g.conv2d(&format!("{block}.conv"), x, 3, Window::square(3, 1, 1));
        let y = g.batch_norm(&format!("{block}.bn"), y, 1e-5);
        let y = g.add(&format!("{block}.add"), y, x);
        x = g.relu(&format!("{block}.relu"), y);
    }
    let x = g.global_avg_pool("avgpool", x);
    let x = g.linear("fc", x, 4);
    g.output("y", x);
    g.finish().unwrap()
}

/// Weights of ones for every parameter of a graph.
fn ones(graph: &Graph) -> Weights {
    let ones = |(name, of): (&str, &ValueType)| (name.to_owned(), of.dims.clone(), vec![1.0; of.elems()]);
    Weights::from_tensors(graph.weights().map(ones)).unwrap()
}

fn model() -> Model {
    let labels = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
    Model::new(graph(), ones(&graph()), Preprocessing::new(INPUT), labels).unwrap()
}

fn last(model: &Model) -> &str {
    &model.image_network().unwrap().nodes[model.image_network().unwrap().output.0].name
}

#[test]
fn a_model_can_be_shared() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    let model = model();
    shared(&model);
    let clone = model.clone().with_name("again");
    assert!(std::sync::Arc::ptr_eq(model.weights(), clone.weights()));
    assert_eq!((model.name(), clone.name()), ("model", "again"));
}

#[test]
fn labels_have_a_fallback() {
    let model = model();
    assert_eq!((model.label(2), model.label(4)), ("c", "no such class"));
    let unlabelled = Model::new(graph(), ones(&graph()), Preprocessing::new(INPUT), vec![]).unwrap();
    assert_eq!((unlabelled.classes(), unlabelled.label(3)), (4, "class 3"));
    assert_eq!(unlabelled.labels().len(), 4);
}

#[test]
fn what_does_not_fit_the_graph_is_refused() {
    let new = |weights: Weights, preprocessing, labels| Model::new(graph(), weights, preprocessing, labels);
    let labels = new(ones(&graph()), Preprocessing::new(INPUT), vec!["one".into()]);
    assert!(matches!(labels, Err(Error::Option { option: "labels", .. })));
    let input = new(ones(&graph()), Preprocessing::new(Shape::new(6, 7, 3)), vec![]);
    assert!(matches!(input, Err(Error::Option { option: "preprocessing.input", .. })));
    let empty = Weights::from_tensors(Vec::<(String, _, _)>::new()).unwrap();
    let missing = new(empty, Preprocessing::new(INPUT), vec![]);
    assert!(matches!(missing, Err(Error::Tensor { tensor, .. }) if tensor == "layer1.0.conv.weight"));
    let mut malformed = graph();
    malformed.nodes[2].inputs.pop();
    let malformed = Model::new(malformed, ones(&graph()), Preprocessing::new(INPUT), vec![]);
    assert!(matches!(malformed, Err(Error::Graph { node, .. }) if node == "layer1.0.add"));
}

#[test]
fn a_model_is_cut_at_a_node_or_module() {
    let model = model();
    for (name, node, output) in [
        ("layer1.0.bn", "layer1.0.bn", INPUT),
        ("layer1.0", "layer1.0.relu", INPUT),
        ("layer1", "layer1.1.relu", INPUT),
        ("avgpool", "avgpool", Shape::vector(3)),
        ("input", "input", INPUT),
    ] {
        let features = model.features_at(name).unwrap();
        assert_eq!((last(&features), features.output().unwrap()), (node, output));
        assert_eq!(features.classes(), 3);
        assert_eq!(features.label(0), "class 0");
        assert!(features.image_network().unwrap().nodes.len() < model.image_network().unwrap().nodes.len());
        infer(features.image_network().unwrap()).unwrap();
    }
    assert_eq!(model.features_at("fc").unwrap().label(0), "a");
}

#[test]
fn a_node_that_is_not_there_lists_near_names() {
    for name in ["layer1.0.conx", "", "layer", "layer1."] {
        match model().features_at(name) {
            Err(Error::Option { option: "features_at", value, expected }) => {
                assert_eq!(value, format!("`{name}`"));
                assert!(name != "layer1.0.conx" || expected.contains("`layer1.0.conv`"), "{expected}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A model is split in two only where a single value passes from one part to the other.
#[test]
fn a_model_is_split_where_one_value_passes() {
    let model = model();
    let (front, back) = model.split_at("layer1.0").unwrap();
    let names =
        |model: &Model| model.image_network().unwrap().nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&front).last().unwrap(), "layer1.0.relu");
    let rest = ["layer1.1.conv", "layer1.1.bn", "layer1.1.add", "layer1.1.relu", "avgpool", "fc"];
    assert_eq!(names(&back)[1..], rest);
    assert_eq!(
        (front.output().unwrap(), back.image_network().unwrap().input, back.output().unwrap()),
        (INPUT, INPUT, model.output().unwrap())
    );
    assert_eq!(back.labels(), model.labels());
    let error = model.split_at("layer1.1.bn").unwrap_err().to_string();
    assert_eq!(error, "node `layer1.1.add`: reads something before the place where the network is cut");
    assert!(matches!(model.split_at("nowhere"), Err(Error::Option { .. })));
}
