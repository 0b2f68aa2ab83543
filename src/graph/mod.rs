//! The computation as data: a graph of typed values of any rank, with named inputs and outputs.
//!
//! A [`Graph`] is concrete: every dimension is a number. A model with free dimensions, such as a batch or a sequence,
//! has one graph for each size. A graph contains no device, file or stream; a weight is a constant that is known by its
//! name.
//!
//! A [`GraphBuilder`] writes graphs, operation by operation or layer by layer. A graph of one image is opened as a network of
//! images by [`Model::new`](crate::model::Model::new), any other one by [`Model::of_graphs`](crate::model::Model::of_graphs).
//!
//! Every operation has one meaning, which its documentation states and its lowering to loops computes. Images have
//! their channels innermost: `[batch, height, width, channels]`; importers of other layouts transpose.
//!
//! ```
//! use trefoil::{Dtype, graph::{Expr, GraphBuilder, Op, Reduce, ReduceOp}};
//! let mut g = GraphBuilder::new();
//! let x = g.input("x", Dtype::F32, &[8, 16]);
//! let square = g.node("square", Op::Map(Expr::arg(0) * Expr::arg(0)), &[x]);
//! let mean = Reduce { op: ReduceOp::Mean, axes: vec![1], keep: false };
//! let mean = g.node("mean", Op::Reduce(mean), &[square]);
//! g.output("energy", mean);
//! let graph = g.finish()?;
//! assert_eq!(graph.value(graph.outputs[0].value).dims, [8]);
//! # Ok::<(), trefoil::Error>(())
//! ```

mod builder;
pub(crate) mod e4m3;
mod expr;
mod infer;
mod layers;
mod op;
mod passes;
mod tensor;
mod value;

pub(crate) use crate::tensor::Element;
pub use builder::GraphBuilder;
pub use e4m3::MOST_E4M3;
pub use expr::{Binary, Expr, Number, Unary};
pub(crate) use infer::slide;
pub(crate) use layers::eps_of_batch_norm;
pub use layers::{BatchNorm, Conv2d, Linear};
pub(crate) use op::place;
pub use op::{
    ArgReduce, Contract, Conv, Cumulate, Nearest, Norm, Op, PackedAttention, Pad, PadMode, Pool, PoolOp, Recurrent,
    RecurrentCell, Reduce, ReduceOp, Resize, ResizeCoordinates, ResizeMode, Scatter, Slice, TopK, Window,
};
pub(crate) use passes::{Names, batch_first, computing, cut, expand_but, joined, narrowed, unrolled, up_to};
pub use passes::{expand, simplify};
pub use tensor::Tensor;
pub use value::{Constant, Graph, Node, NodeId, Origin, Port, Quantization, Value, ValueId, ValueType};
