//! Attention apart from any model, on operands that the caller brings: what its tests and its benchmark run.

use std::marker::PhantomData;

use half::f16;

use super::alone::{Alone, check_lengths};
use super::sm90_attention::{AttentionProblem, Mask, launch};
use super::sm90_attention_packed;
use crate::device::Device;
use crate::error::Error;
use crate::plan::values::blocks_of;
use crate::plan::{AttentionKernel, AttentionSizes, HeadsAt, Limits, PackedAttentionOp, PackedSizes};
use crate::tensor::{Dtype, Element};

/// An attention operation and its operands, of f16 or bf16, in host memory. Its result is of the same type, or bytes: codes
/// of e4m3.
#[derive(Clone, Debug)]
pub struct AttentionOperands<'a, T = f16, Y = T> {
    /// The sizes of the operation.
    pub sizes: AttentionSizes,
    /// The positive factor of the scores.
    pub scale: f32,
    /// Row i sees the keys up to i + `ahead`; all keys if `None`.
    pub ahead: Option<usize>,
    /// The buffer with queries, keys and values.
    pub values: &'a [T],
    /// The places of queries, keys and values in their buffer.
    pub qkv: [HeadsAt; 3],
    /// The number of keys of each image that count; all keys if `None`.
    pub lengths: Option<&'a [i32]>,
    /// The values added to scaled scores, and the distances from one head, row and image to the next.
    pub mask: Option<(&'a [T], [usize; 3])>,
    /// The buffer for the result.
    pub result: &'a [Y],
    /// The place of the result in its buffer.
    pub out: HeadsAt,
    /// The scale of the result if it is codes.
    pub result_scale: Option<f32>,
    /// Whether the last heads are computed first.
    pub backward: bool,
}

/// Attention on a GPU, ready to run: several copies of its operands in turns, so that none stays in a cache.
pub struct AttentionRun<Y = f16>(Alone, PhantomData<Y>);

impl<Y: Element> AttentionRun<Y> {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new<T: Element>(
        device: &Device,
        operands: &AttentionOperands<'_, T, Y>,
        kernel: AttentionKernel,
        copies: usize,
    ) -> Result<Self, Error> {
        operands.check()?;
        let bytes = [
            bytemuck::cast_slice(operands.values),
            bytemuck::cast_slice(operands.lengths.unwrap_or_default()),
            bytemuck::cast_slice(operands.mask.map_or(&[] as &[T], |(values, _)| values)),
            bytemuck::cast_slice(operands.result),
        ];
        let units = device.info().units;
        let launched = |addresses| Ok(vec![launch(&operands.problem(addresses), kernel, units)?]);
        Alone::new(device, "attention", bytes, copies, launched).map(|alone| Self(alone, PhantomData))
    }

    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        // SAFETY: `check` and the launcher held the sizes and pitches against the operands.
        unsafe { self.0.run(0, times) }
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<Y>, Error> {
        self.0.result()
    }
}

/// Attention within rows that lie end to end, and its operands, in host memory.
#[derive(Clone, Debug)]
pub struct PackedAttentionOperands<'a> {
    /// The sizes of the operation.
    pub sizes: PackedSizes,
    /// The positive factor of the scores.
    pub scale: f32,
    /// The buffer with queries, keys and values.
    pub values: &'a [f16],
    /// The places of queries, keys and values in their buffer.
    pub qkv: [HeadsAt; 3],
    /// Where rows begin and end, in any order: see [`PackedAttention`](crate::graph::PackedAttention).
    pub starts: &'a [i64],
    /// The buffer for the result.
    pub result: &'a [f16],
    /// The place of the result in its buffer.
    pub out: HeadsAt,
}

/// Attention within rows that lie end to end, on a GPU, ready to run.
pub struct PackedAttentionRun(Alone);

impl PackedAttentionRun {
    /// Uploads `copies` of the operands, one or more, and loads the kernel.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the device or the kernel cannot; [`Error::Option`] where an operand is not as
    /// long as its sizes; any of the device.
    pub fn new(device: &Device, operands: &PackedAttentionOperands<'_>, copies: usize) -> Result<Self, Error> {
        let &PackedAttentionOperands { sizes, scale, values, qkv, starts, result, out } = operands;
        let PackedSizes { tokens, rows, heads, dims, .. } = sizes;
        let [q, k, v] = qkv.map(|at| end(at, [heads, tokens, 1], dims));
        check_lengths([
            ("q", values.len(), q),
            ("k", values.len(), k),
            ("v", values.len(), v),
            ("result", result.len(), end(out, [heads, tokens, 1], dims)),
        ])?;
        if starts.len() != rows + 1 {
            return Err(Error::option(
                "starts",
                format!("{} numbers", starts.len()),
                format!("{} of {rows} rows", rows + 1),
            ));
        }
        let info = device.info();
        let limits = Limits::gpu(&info.name, info.compute_capability, info.units, info.shared_bytes);
        let kernel = sizes.kernel(&limits)?;
        let op = PackedAttentionOp { sizes, block_tiles: kernel.block_tiles, scale, qkv, out };
        let blocks = blocks_of(&op, starts)?;
        let bytes = [bytemuck::cast_slice(values), bytemuck::cast_slice(&blocks), bytemuck::cast_slice(result)];
        let launched = |[values, blocks, result]: [u64; 3]| {
            let launch = sm90_attention_packed::launch(
                &op,
                Dtype::F16,
                [values, values, values, blocks],
                result,
                kernel,
                info.units,
            );
            Ok(vec![launch?])
        };
        Alone::new(device, "attention of packed rows", bytes, copies, launched).map(Self)
    }

    /// Runs it `times` times, on one copy after the other, and waits. Returns the seconds that all runs took together.
    ///
    /// # Errors
    /// Any of the device.
    pub fn run(&mut self, times: usize) -> Result<f64, Error> {
        // SAFETY: `new` and the launcher held the sizes and pitches against the operands, and the blocks are of these sizes.
        unsafe { self.0.run(0, times) }
    }

    /// The buffer that the first copy's result is written into.
    ///
    /// # Errors
    /// Any of the device.
    pub fn result(&self) -> Result<Vec<f16>, Error> {
        self.0.result()
    }
}

/// The index behind the last value of all heads, rows and images, if it fits a `usize`.
fn end(at: HeadsAt, counts: [usize; 3], dims: usize) -> Option<usize> {
    let last = counts.into_iter().zip(at.pitches).map(|(count, pitch)| count.saturating_sub(1).checked_mul(pitch));
    last.chain([Some(at.first), Some(dims)]).try_fold(0_usize, |sum, part| sum.checked_add(part?))
}

impl<T: Element, Y: Element> AttentionOperands<'_, T, Y> {
    /// Checks that every operand is as long as the part of it that is read or written, and the type of the result.
    fn check(&self) -> Result<(), Error> {
        let written = if self.result_scale.is_some() { Dtype::U8 } else { T::DTYPES[0] };
        if Y::DTYPES[0] != written {
            return Err(Error::option("result", Y::DTYPES[0], written.to_string()));
        }
        let AttentionSizes { images, heads, rows, keys, dims } = self.sizes;
        let end = |at: HeadsAt, rows: usize, dims: usize| end(at, [heads, rows, images], dims);
        let [q, k, v] = self.qkv;
        let mask = self.mask.map(|(values, pitches)| (values.len(), HeadsAt { first: 0, pitches }));
        check_lengths([
            ("q", self.values.len(), end(q, rows, dims)),
            ("k", self.values.len(), end(k, keys, dims)),
            ("v", self.values.len(), end(v, keys, dims)),
            ("result", self.result.len(), end(self.out, rows, dims)),
            ("lengths", self.lengths.map_or(images, <[i32]>::len), Some(images)),
            (
                "mask",
                mask.map_or(0, |(len, _)| len),
                mask.map_or(Some(0), |(_, at)| end(at, rows, keys.next_multiple_of(2))),
            ),
        ])
    }

    /// The operation on the copy at these addresses.
    fn problem(&self, [values, lengths, mask, result]: [u64; 4]) -> AttentionProblem {
        let [q, k, v] = self.qkv.map(|at| at.on(values));
        AttentionProblem {
            dtype: T::DTYPES[0],
            sizes: self.sizes,
            scale: self.scale,
            ahead: self.ahead,
            q,
            k,
            v,
            out: if self.result_scale.is_some() { self.out.of_codes_on(result) } else { self.out.on(result) },
            lengths: self.lengths.map(|_| lengths),
            mask: self.mask.map(|(_, pitches)| Mask { address: mask, pitches }),
            result: self.result_scale,
            backward: self.backward,
        }
    }
}
