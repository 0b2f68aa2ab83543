//! Any operation as loops over elements, and their evaluation on the CPU.
//!
//! A [`Loop`] describes how a value is computed: for each point of an iteration space, a scalar from loads, functions,
//! and reductions over further axes; the indices of loads are terms themselves. [`lower`] gives the loops of one
//! operation, and [`schedule`] the few fused loops that compute a whole [`Graph`](crate::graph::Graph). [`compute`] and
//! [`evaluate`] compute one operation and a whole graph on the CPU. Some operations are no loops, because their
//! elements are sorted, or written in an order that matters, or are many loops one behind the other; functions over
//! values compute these: [`Lowered::ByHand`].
//!
//! ```
//! use trefoil::{Dtype, graph::{Op, Tensor, ValueType}, loops};
//! let x = Tensor::of(&[2, 2], &[0.0_f32, 0.0, 1.0, 1.0]);
//! let softmax = Op::Softmax { axis: 1, log: false };
//! let y = loops::compute(&softmax, &[Some(&x)], &[ValueType::new(Dtype::F32, &[2, 2])])?;
//! assert_eq!(y[0].elems::<f32>(), [0.5; 4]);
//! # Ok::<(), trefoil::Error>(())
//! ```

mod affine;
mod build;
mod eval;
mod evaluate;
mod fuse;
mod hand;
mod ir;
mod isa;
mod lower;
pub mod ptx;
mod rewrite;
mod scalar;
mod schedule;
mod team;
mod work;

pub use build::LoopBuilder;
pub(crate) use eval::{View, in_parts};
pub use evaluate::{compute, evaluate, run};
pub(crate) use evaluate::{compute_by, run_into};
pub use fuse::inline;
pub use ir::{Guard, Loop, Monoid, Term, TermId, TermKind};
pub(crate) use isa::{BASELINE_FMA, Isa, vectorized};
pub use lower::{Lowered, lower};
pub(crate) use scalar::bits;
pub use schedule::{Kernel, Schedule, Step, schedule};
pub(crate) use schedule::{Machine, schedule_apart};
pub(crate) use team::{Alone, Lines, Team};
pub(crate) use work::operations;

#[cfg(test)]
mod tests;
