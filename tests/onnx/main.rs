//! ONNX files: the reader compared with Python's `onnx` and on hostile files; and models made of ONNX files.

mod classifier;
mod corners;
mod e4m3;
mod elements;
mod external;
mod graphs;
mod hostile;
mod hostile_graphs;
mod image_sizes;
mod import;
mod memory;
mod mutations;
mod onnxruntime;
mod oracle;
mod quantised;
#[path = "../support/splitmix.rs"]
mod splitmix;
mod write;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use trefoil::onnx::{AttributeValue, File, GraphProto, ModelProto, NodeProto, Tensor};

/// The files that tests/data/make_onnx.py writes.
const FILES: [&str; 10] =
    ["graph", "tensors", "external", "images", "values", "records", "tokens", "boxes", "text", "recurrent"];

/// The path of a file of `FILES`.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/onnx").join(name)
}

/// The error of opening these bytes as a file.
fn refused(bytes: Vec<u8>) -> String {
    File::from_bytes(bytes).unwrap_err().to_string()
}

/// A folder that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("trefoil-onnx-{}-{count}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file, and makes the folders that it needs.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Every tensor of a model, including those in branches and functions.
fn tensors(model: &ModelProto) -> Vec<&Tensor> {
    let mut found = Vec::new();
    graph_tensors(&model.graph, &mut found);
    model.functions.iter().for_each(|function| node_tensors(&function.nodes, &mut found));
    found
}

fn graph_tensors<'m>(graph: &'m GraphProto, found: &mut Vec<&'m Tensor>) {
    found.extend(&graph.initializers);
    node_tensors(&graph.nodes, found);
}

fn node_tensors<'m>(nodes: &'m [NodeProto], found: &mut Vec<&'m Tensor>) {
    for attribute in nodes.iter().flat_map(|node| &node.attributes) {
        match &attribute.value {
            AttributeValue::Tensor(tensor) => found.push(tensor),
            AttributeValue::Tensors(tensors) => found.extend(tensors),
            AttributeValue::Graph(graph) => graph_tensors(graph, found),
            AttributeValue::Graphs(graphs) => graphs.iter().for_each(|graph| graph_tensors(graph, found)),
            _ => {}
        }
    }
}
