//! Bytes as an ONNX file: its messages, its tensors, its graph.

use trefoil::onnx::{AttributeValue, File, GraphProto, NodeProto, Sizes, Tensor};

use super::check_error;

/// The largest number of bytes of a tensor that is read.
const MOST_BYTES: usize = 1 << 20;

pub fn run(bytes: &[u8]) {
    let file = match File::from_bytes(bytes.to_vec()) {
        Ok(file) => file,
        Err(error) => return check_error(&error),
    };
    let model = file.model();
    read_graph(&file, &model.graph);
    model.functions.iter().for_each(|function| read_nodes(&file, &function.nodes));
    let sizes = file.free_dims().iter().fold(Sizes::new(), |sizes, name| sizes.dim(name, 2));
    if let Err(error) = file.graph(&sizes) {
        check_error(&error);
    }
}

fn read_graph(file: &File, graph: &GraphProto) {
    graph.initializers.iter().for_each(|tensor| read(file, tensor));
    read_nodes(file, &graph.nodes);
}

fn read_nodes(file: &File, nodes: &[NodeProto]) {
    for attribute in nodes.iter().flat_map(|node| &node.attributes) {
        match &attribute.value {
            AttributeValue::Tensor(tensor) => read(file, tensor),
            AttributeValue::Tensors(tensors) => tensors.iter().for_each(|tensor| read(file, tensor)),
            AttributeValue::Graph(graph) => read_graph(file, graph),
            AttributeValue::Graphs(graphs) => graphs.iter().for_each(|graph| read_graph(file, graph)),
            _ => {}
        }
    }
}

fn read(file: &File, tensor: &Tensor) {
    assert!(tensor.bytes() <= MOST_BYTES, "{} bytes of a small file", tensor.bytes());
    if let Err(error) = file.read(tensor, &mut vec![0; tensor.bytes()]) {
        check_error(&error);
    }
}
