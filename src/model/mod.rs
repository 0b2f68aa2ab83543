
mod builder;
mod graph;
mod shape;

pub use builder::GraphBuilder;
pub use graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pad, Pool, Window};
pub use shape::{infer, params};
