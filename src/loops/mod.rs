//! Any operation as loops over elements, and their evaluation on the CPU.
//!
//! A [`Loop`] is one description of what an operation computes: for each point of an iteration space a scalar, made of
//! loads at indices that are terms themselves, functions, and reductions over further axes. [`lower`] gives that of each
//! operation of a [`Graph`](crate::graph::Graph), and [`schedule`] the few loops that compute all of it; [`compute`] and
//! [`evaluate`] compute one operation and a whole graph.
//! What is in no loop, because elements depend on one another in an order or on how they compare, is a function over
//! values: [`Lowered::ByHand`].
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
mod lower;
pub mod ptx;
mod rewrite;
mod scalar;
mod schedule;
mod team;
mod work;

pub use build::LoopBuilder;
pub(crate) use evaluate::run_by;
pub use evaluate::{compute, evaluate, run};
pub use fuse::inline;
pub use ir::{Guard, Loop, Monoid, Term, TermId, TermKind};
pub use lower::{Lowered, lower};
pub(crate) use scalar::bits;
pub use schedule::{Kernel, Schedule, Step, schedule};
pub(crate) use schedule::{Machine, schedule_apart};
pub(crate) use team::{Alone, Lines, Team};
pub(crate) use work::operations;

#[cfg(test)]
mod tests;
