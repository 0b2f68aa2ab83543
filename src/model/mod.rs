
mod builder;
mod graph;
#[cfg(test)]
mod interpreter;
mod rewrite;
mod shape;

pub use builder::GraphBuilder;
pub use graph::{BatchNorm, Conv2d, Graph, Linear, Node, NodeId, Op, Pad, Pool, Window};
pub use rewrite::optimize;
pub use shape::{infer, params};
