//! Loops as PTX text, which the driver compiles, so that a GPU runs any operation without a compiler on the machine.
//!
//! The module contains only text and numbers. [`kernel`] writes one loop, [`module`] joins kernels and the functions
//! that they call.
//!
//! A loop's shape decides how threads share it. A thread computes some neighbouring results; or several threads compute
//! a row, which they hold in registers if it fits, or neighbouring rows side by side, also with the blocks of a
//! cluster. Tiles of sums of products, and of operands whose axes lie in another order, go through shared memory.
//!
//! # What is emitted
//!
//! - Directives: `.version`, `.target`, `.address_size`, `.visible .entry` with one `.param .align 8 .b8 args[N]`,
//!   `.maxntid`, `.reg` (`.pred %c`, `.b16 %h`, `.b32 %w`, `.b64 %l`), `.shared .align 16 .b8 shared[N]`, and in
//!   braces around a call `.param`.
//! - Moves: `ld.param`, `st.param`, `cvta.to.global.u64`, `mov` (`.pred .b16 .b32 .b64 .u32 .f32 .f64`, of `%tid.x`,
//!   `%ctaid.x`, numbers, and pairs of halves), `selp`, `ld.global` and `st.global` (`.u8 .s8 .u16 .s16 .b16 .b32 .b64`,
//!   `.v2 .v4` of `.b32` and `.v2` of `.b64`, with offsets, under a predicate).
//! - Integers (`.s32 .u32 .s64 .u64`): `add sub mul.lo mul.hi mul.wide mad.lo mad.wide div rem min max neg`,
//!   `and or xor not shl shr`, `bfe bfi`; predicates: `setp` and `and or xor not`.
//! - Floats (`.f32 .f64`): `add.rn sub.rn mul.rn div.rn fma.rn sqrt.rn neg abs copysign`, `min.NaN max.NaN` (f32);
//!   `div.full` and `rcp.approx.ftz` (f32) where a side of a quotient is computed from a transcendental function or a
//!   power of floats; a choice, an index or a bool that hangs on one is exact.
//! - `cvt` between all of them, with `.rn .rz .rzi .rmi .rpi .rni`.
//! - Between threads: `shfl.sync.bfly.b32`, `ld.shared` and `st.shared` (`.b16 .b32 .b64`, `.v4` of
//!   `.b32`), `bar.sync 0`; from compute capability 9.0 on between blocks of a cluster: `mapa.shared::cluster.u32`,
//!   `ld.shared::cluster`, `barrier.cluster.arrive.release.aligned` and `.wait.acquire.aligned`.
//! - Between launches, from compute capability 9.0 on: `griddepcontrol.launch_dependents` and `griddepcontrol.wait`.
//! - `bra` under predicates and without, `ret`, `call`.
//! - The instructions of the functions in `kernels/functions/math.ptx`, in place or called.

mod choose;
mod columns;
mod emit;
mod fold;
mod function;
mod math;
mod memory;
mod nest;
mod number;
mod point;
mod product;
mod reduce;
mod rows;
mod sum;
mod team;
mod text;
mod turn;
mod unify;

use std::collections::{BTreeMap, BTreeSet};

use super::ir::{Loop, Monoid, TermKind};
use crate::error::Error;
use crate::fnv::fnv1a64;
use crate::tensor::Dtype;
use emit::Emitter;
use nest::Nest;
use product::Product;
use rows::Rows;
use turn::Turn;

/// The GPU that PTX is generated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PtxTarget {
    /// The compute capability, 8.0 or more, for `.target`.
    pub compute_capability: [u32; 2],
    /// The number of multiprocessors. Work is divided so that all of them have some.
    pub units: usize,
}

impl PtxTarget {
    /// A target whose PTX runs on every supported GPU.
    pub const ANY: Self = Self { compute_capability: [8, 0], units: 108 };
}

/// A loop written as an entry point.
///
/// Its one argument is a struct of addresses, 8 bytes each: the operands that it loads in the order of
/// [`operands`](Self::operands), then the result. Each is a multiple of 16. The result overlaps no operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The name of the entry point, a hash of its text.
    pub entry: String,
    /// The entry point.
    pub text: String,
    /// The functions that the entry point calls.
    functions: BTreeSet<String>,
    /// The indices of the loop's operands that the entry point loads.
    pub operands: Vec<usize>,
    /// The number of blocks; 0 if there is nothing to write, and then the kernel must not be launched.
    pub blocks: u32,
    /// The number of threads of a block.
    pub threads: u32,
    /// The number of blocks of a cluster; 1 if blocks share nothing.
    pub cluster: u32,
    /// Whether the kernel itself waits for the launches before it, so that it may be launched before they have ended
    /// (programmatic dependent launch).
    pub waits_itself: bool,
}

/// The largest number of operands of a loop. A kernel has the address of each in its argument.
pub(crate) const MOST_OPERANDS: usize = 128;

/// Writes a loop as PTX.
///
/// ```
/// use trefoil::{Dtype, graph::{Expr, Op, Unary, ValueType}, loops::{Lowered, lower, ptx}};
/// let x = ValueType::new(Dtype::F32, &[4, 1000]);
/// let root = Op::Map(Expr::arg(0).unary(Unary::Sqrt));
/// let Lowered::Loops(loops) = lower(&root, &[Some(&x)], &[x.clone()]) else { panic!() };
/// let kernel = ptx::kernel(&loops[0], &ptx::PtxTarget::ANY)?;
/// assert_eq!((kernel.operands.as_slice(), kernel.blocks), (&[0][..], 16));
/// assert!(ptx::module([&kernel], &ptx::PtxTarget::ANY).contains("sqrt.rn.f32"));
/// # Ok::<(), trefoil::Error>(())
/// ```
///
/// # Errors
/// [`Error::Unsupported`] for a loop that sums or multiplies bools, that has more than 128 operands, or that has more
/// results than a GPU has threads.
pub fn kernel(of: &Loop, target: &PtxTarget) -> Result<Kernel, Error> {
    check(of)?;
    let (nest, schedule) = schedule(of, target);
    let cluster = if let Schedule::Rows(rows) = &schedule { rows.cluster() } else { 1 };
    let mut emitter = Emitter::new(&nest);
    emitter.parameters();
    let can_wait = target.compute_capability >= [9, 0];
    if can_wait {
        emitter.text.put(format_args!("griddepcontrol.launch_dependents"));
    }
    // Blocks that begin early begin where there is room: several on one multiprocessor, while the launch before them has
    // the others. A product takes as long as its busiest multiprocessor, so it begins when all are free.
    let waits_itself = can_wait && !matches!(schedule, Schedule::Product(_));
    if waits_itself {
        emitter.text.put(format_args!("griddepcontrol.wait"));
    }
    let [blocks, threads] = match schedule {
        Schedule::Nothing => [0, point::THREADS],
        Schedule::Points => [point::write(&mut emitter, target.units).div_ceil(point::THREADS), point::THREADS],
        Schedule::Rows(rows) => rows.write(&mut emitter),
        Schedule::Product(product) => product.write(&mut emitter),
        Schedule::Turn(turn) => turn.write(&mut emitter),
    };
    let blocks = u32::try_from(blocks).ok().filter(|&blocks| blocks < 1 << 31);
    let blocks =
        blocks.ok_or_else(|| unsupported(format!("a loop of {} results", of.elems()), "divide the operation"))?;
    Ok(finished(&emitter, [blocks, threads as u32, cluster as u32], waits_itself))
}

/// The division of a loop among threads.
enum Schedule {
    /// There is no result to write.
    Nothing,
    /// Each thread computes some neighbouring results.
    Points,
    /// Several threads compute a row of results, or one result.
    Rows(Rows),
    /// Blocks compute tiles of results.
    Product(Product),
    /// Blocks compute tiles of results whose operands lie in another order of axes.
    Turn(Turn),
}

/// The division of a loop among threads, and the loop in the form that fits it.
fn schedule(of: &Loop, target: &PtxTarget) -> (Nest, Schedule) {
    let of = &choose::inside(of);
    let nest = Nest::new(of.clone());
    if of.elems() == 0 {
        return (nest, Schedule::Nothing);
    }
    if let Some(product) = Product::find(&nest, target.units) {
        return (nest, Schedule::Product(product));
    }
    let unified = Nest::new(unify::unified(of));
    match Rows::plan(&unified, target) {
        Some(rows) => (unified, Schedule::Rows(rows)),
        None => match Turn::find(&nest) {
            Some(turn) => (nest, Schedule::Turn(turn)),
            None => (nest, Schedule::Points),
        },
    }
}

/// Checks that a loop can be written as PTX.
///
/// # Errors
/// [`Error::Unsupported`] with the reason.
pub(crate) fn check(of: &Loop) -> Result<(), Error> {
    if of.operands.len() > MOST_OPERANDS {
        return Err(unsupported(
            format!("a loop of {} operands", of.operands.len()),
            "divide the operation into several",
        ));
    }
    let adds = |kind: &TermKind| matches!(kind, TermKind::Reduce { op: Monoid::Sum | Monoid::Prod, .. });
    match of.terms.iter().any(|term| term.dtype == Dtype::Bool && adds(&term.kind)) {
        true => Err(unsupported("a sum or product of bools".into(), "convert them to integers first")),
        false => Ok(()),
    }
}

fn unsupported(what: String, instead: &str) -> Error {
    Error::Unsupported { what, instead: instead.into() }
}

fn finished(emitter: &Emitter<'_>, [blocks, threads, cluster]: [u32; 3], waits_itself: bool) -> Kernel {
    let bytes = 8 * (emitter.operands().len() + 1);
    let body = format!(
        "(\n\t.param .align 8 .b8 args[{bytes}]\n)\n.maxntid {threads}, 1, 1\n{{\n{}\tret;\n}}\n",
        emitter.text.finish()
    );
    let entry = format!("loop_{}", fnv1a64(body.as_bytes()));
    let text = format!(".visible .entry {entry}{body}");
    let (functions, operands) = (emitter.text.functions().clone(), emitter.operands().to_vec());
    Kernel { entry, text, functions, operands, blocks, threads, cluster, waits_itself }
}

/// The text of a module with these kernels, each only once, and the functions that they call.
pub fn module<'k>(kernels: impl IntoIterator<Item = &'k Kernel>, target: &PtxTarget) -> String {
    let kernels: BTreeMap<&str, &Kernel> = kernels.into_iter().map(|kernel| (kernel.entry.as_str(), kernel)).collect();
    let functions = kernels.values().flat_map(|kernel| kernel.functions.iter().cloned()).collect();
    let [major, minor] = target.compute_capability;
    let header = format!(".version 9.0\n.target sm_{major}{minor}\n.address_size 64\n\n");
    let entries: Vec<&str> = kernels.values().map(|kernel| kernel.text.as_str()).collect();
    header + &math::text(&functions) + &entries.join("\n")
}
