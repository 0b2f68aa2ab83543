//! What to compute: the graph as a value, and where its weights and labels come from. Pure: no device is touched.

mod builder;
mod fold;
mod graph;
#[cfg(test)]
mod interpreter;
mod names;
mod rewrite;
mod safetensors_header;
mod shape;
mod weights;

pub use builder::GraphBuilder;
pub use fold::{FoldedConv, fold_conv, read_linear};
pub use graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pad, Pool, Window};
pub use rewrite::optimize;
pub use shape::{infer, params};
pub use weights::{WeightDtype, Weights};
