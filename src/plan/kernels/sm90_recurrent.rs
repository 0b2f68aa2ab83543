//! Recurrent layers on sm90 hardware: what the kernel can compute, its tiles and their predicted time.

use std::fmt;

use super::{Kernel, KernelDef, Variant};
use crate::error::Error;
use crate::graph::RecurrentCell;
use crate::model::Conv2d;
#[cfg(feature = "cuda")]
use crate::plan::packing::{PackedSum, Packing, usual};
use crate::plan::roofline::LAUNCH;
use crate::plan::work::Work;
use crate::plan::{Limits, Rates, StepOp};
use crate::tensor::Dtype;

/// The kernel in `kernels/sm90_recurrent.cu`.
pub(super) struct Sm90Recurrent;

impl KernelDef for Sm90Recurrent {
    fn name(&self) -> &'static str {
        "sm90_recurrent"
    }

    fn takes(&self, work: &Work<'_>) -> bool {
        let StepOp::Recurrent(of) = work.op else { return false };
        let [inputs, states @ ..] = &work.inputs[..] else { return false };
        let [y, last @ ..] = &work.outputs[..] else { return false };
        let is_half = matches!(inputs.dtype, Dtype::F16 | Dtype::Bf16) && y.dtype == inputs.dtype;
        let are_f32 = states.iter().chain(last).all(|state| state.dtype == Dtype::F32);
        is_half && are_f32 && states.len() == of.reads().len() && last.len() == of.cell.states()
    }

    fn has(&self, kernel: Kernel) -> bool {
        matches!(kernel, Kernel::Sm90Recurrent(_))
    }

    fn variants(&self, work: &Work<'_>, limits: &Limits) -> Vec<Variant> {
        let StepOp::Recurrent(of) = work.op else { return Vec::new() };
        let variant =
            |tile| Variant { kernel: Kernel::Sm90Recurrent(tile), clocks: of.clocks(tile, work.batch, limits) };
        of.tiles(work.batch, limits).into_iter().map(variant).collect()
    }

    fn check(&self, work: &Work<'_>, kernel: Kernel, limits: &Limits) -> Result<(), Error> {
        match (work.op, kernel) {
            (StepOp::Recurrent(of), Kernel::Sm90Recurrent(tile)) if of.layout(tile, work.batch, limits).is_some() => {
                Ok(())
            }
            _ => Err(super::not_a_choice(work.name, kernel)),
        }
    }

    /// The recurrent weights without a bias, in the type of the inputs: biases are tensors.
    #[cfg(feature = "cuda")]
    fn packing<'a>(&self, work: &Work<'a>) -> Vec<PackedSum<'a>> {
        let in_type = |filter| Packing { dtype: work.inputs[0].dtype, ..filter };
        let alone =
            |PackedSum { filters, .. }| PackedSum { filters: filters.into_iter().map(in_type).collect(), bias: None };
        usual(work).into_iter().map(alone).collect()
    }
}

/// All steps of a recurrent layer. Its step reads the inputs' products of all steps in f16 or bf16, then in f32 the bias
/// of a GRU, and the first states that it has. It writes what each step shows, and the last states in f32.
///
/// ```
/// use trefoil::model::images::{Conv2d, Window};
/// use trefoil::plan::{RecurrentKind, RecurrentOp, StepOp};
/// let of = RecurrentOp {
///     cell: RecurrentKind::Lstm,
///     backwards: vec![false, true],
///     steps: 50,
///     rows: 1,
///     hidden: 256,
///     weights: Conv2d::named("lstm", 2 * 4 * 256, Window::square(1, 1, 0)),
///     first: [false; 2],
/// };
/// assert_eq!(StepOp::Recurrent(of).label(1), "lstm");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RecurrentOp {
    /// What computes a step.
    pub cell: RecurrentKind,
    /// For each direction, whether it begins with the last step.
    pub backwards: Vec<bool>,
    /// The number of steps.
    pub steps: usize,
    /// The number of sequences for each row of a batch.
    pub rows: usize,
    /// The number of hidden units.
    pub hidden: usize,
    /// The recurrent weights of all directions and gates as the filter of a convolution with one tap.
    pub weights: Conv2d,
    /// Whether the step reads the first h, and the first c of an LSTM; otherwise they are zeros.
    pub first: [bool; 2],
}

/// The cells that the kernel has, with the default activations of ONNX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecurrentKind {
    /// LSTM: the gates i, o, f, c.
    Lstm,
    /// GRU whose reset gate is applied after the product: the gates z, r, h.
    Gru,
    /// A simple cell with tanh.
    RnnTanh,
    /// A simple cell with max(x, 0).
    RnnRelu,
}

/// The share of a layer that a thread block has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecurrentTile {
    /// The number of blocks that share the hidden units.
    pub blocks: usize,
    /// The number of sequences that a cluster computes side by side: 8, 16 or 32.
    pub rows: usize,
}

impl fmt::Display for RecurrentTile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.blocks, self.rows)
    }
}

/// How a tile's blocks share a layer, as in `kernels/sm90_recurrent.cu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecurrentLayout {
    /// The number of blocks of a cluster, at least two: in a launch without clusters `st.async` is an illegal instruction.
    /// Blocks beyond the parts do nothing.
    pub(crate) cluster: usize,
    /// The number of clusters.
    pub(crate) clusters: usize,
    /// The number of hidden units of a block.
    pub(crate) part_hidden: usize,
    /// The number of tiles of 16 rows of a block's weights.
    pub(crate) row_tiles: usize,
    /// The number of parts of their columns, and of 16 columns of a part.
    pub(crate) columns: [usize; 2],
    /// The number of 16 columns that a warp's registers hold: one of `RECURRENT_STEPS`.
    pub(crate) held: usize,
    /// The number of threads of a block.
    pub(crate) threads: usize,
    /// Bytes from one row of the state to the next, and of a buffer of the state: products read 16 bytes behind its rows.
    pub(crate) h_bytes: [usize; 2],
    /// Bytes of shared memory before the two buffers of warps' sums.
    pub(crate) sums_at: usize,
    /// Bytes of shared memory before the buffers of inputs.
    pub(crate) inputs_at: usize,
    /// Bytes from one row of inputs to the next, and of a buffer of inputs.
    pub(crate) inputs_bytes: [usize; 2],
    /// Bytes of shared memory of a block.
    pub(crate) shared_bytes: usize,
}

/// The numbers of sequences of a tile.
pub(crate) const RECURRENT_ROWS: [usize; 3] = [8, 16, 32];
/// The numbers of 16 columns of a warp for which there are kernels.
pub(crate) const RECURRENT_STEPS: [usize; 3] = [4, 8, 16];
/// The largest number of blocks of a cluster.
pub(crate) const MOST_RECURRENT_BLOCKS: usize = 16;
/// The largest number of threads of a block.
pub(crate) const MOST_RECURRENT_THREADS: usize = 512;
/// The largest number of warps of a block.
const MOST_WARPS: usize = MOST_RECURRENT_THREADS / 32;
/// Units of a 16-byte access.
const CHUNK: usize = 8;
/// Rows and columns of weights of a product.
const SIDE: usize = 16;
/// The number of buffers of inputs.
const INPUT_BUFFERS: usize = 3;
/// Bytes of barriers.
const BARRIER_BYTES: usize = 16;
/// The limits of the kernel's counts.
const MOST_STATE: usize = 1 << 19;
const MOST: usize = 1 << 31;

impl RecurrentKind {
    /// The cell of a graph that it is, with certain activations.
    const fn cell(self) -> RecurrentCell {
        match self {
            Self::Lstm => RecurrentCell::Lstm { coupled: false },
            Self::Gru => RecurrentCell::Gru { reset_after: true },
            Self::RnnTanh | Self::RnnRelu => RecurrentCell::Rnn,
        }
    }

    /// The number of gates.
    pub(crate) const fn gates(self) -> usize {
        self.cell().gates()
    }

    /// The number of values of the state.
    pub(crate) const fn states(self) -> usize {
        self.cell().states()
    }

    /// The number of launches of a step without the kernel, at least: products, and what follows them.
    const fn launches(self) -> usize {
        match self {
            Self::Lstm | Self::Gru => 2,
            Self::RnnTanh | Self::RnnRelu => 1,
        }
    }
}

impl RecurrentOp {
    /// A short text of the operation.
    pub(crate) fn label(&self) -> String {
        match self.cell {
            RecurrentKind::Lstm => "lstm",
            RecurrentKind::Gru => "gru",
            RecurrentKind::RnnTanh => "rnn",
            RecurrentKind::RnnRelu => "rnn+relu",
        }
        .into()
    }

    /// All that decides the time of the step besides its operands, as text.
    pub(crate) fn detail(&self) -> String {
        let Self { steps, rows, hidden, backwards, .. } = self;
        format!("{steps} steps of {rows}x{hidden} in {} directions", backwards.len())
    }

    /// The operands that the step reads behind the inputs, in their order: the bias, the first h, the first c.
    pub(crate) fn reads(&self) -> Vec<RecurrentRead> {
        let [h, c] = self.first;
        let all = [
            (self.cell == RecurrentKind::Gru, RecurrentRead::Bias),
            (h, RecurrentRead::FirstH),
            (c, RecurrentRead::FirstC),
        ];
        all.into_iter().filter_map(|(is_read, of)| is_read.then_some(of)).collect()
    }

    /// Bytes of the kernel's weights.
    const fn weight_bytes(&self) -> usize {
        2 * self.backwards.len() * self.cell.gates() * self.hidden * self.hidden
    }

    /// How the blocks of a cluster share the layer in a tile; `None` if they cannot.
    pub(crate) fn layout(&self, tile: RecurrentTile, batch: usize, limits: &Limits) -> Option<RecurrentLayout> {
        let &Self { cell, steps, hidden, ref backwards, .. } = self;
        let (gates, directions, rows) = (cell.gates(), backwards.len(), self.rows.checked_mul(batch)?);
        let is_tile = RECURRENT_ROWS.contains(&tile.rows) && (1..=MOST_RECURRENT_BLOCKS).contains(&tile.blocks);
        let is_counted = (1..MOST).contains(&steps) && (1..MOST).contains(&rows) && hidden < MOST_STATE / tile.rows;
        let is_layer = hidden > 0 && hidden.is_multiple_of(CHUNK) && (1..=2).contains(&directions);
        if !is_tile || !is_counted || !is_layer || directions * gates * hidden >= MOST {
            return None;
        }
        let part_hidden = (hidden / CHUNK).div_ceil(tile.blocks) * CHUNK;
        let (row_tiles, steps_of_all) = ((gates * part_hidden).div_ceil(SIDE), hidden.div_ceil(SIDE));
        if hidden.div_ceil(part_hidden) != tile.blocks || CHUNK * part_hidden > MOST_RECURRENT_THREADS {
            return None;
        }
        // As many warps as have a few products each.
        let column_parts = (MOST_WARPS.checked_div(row_tiles)?).min(steps_of_all.div_ceil(RECURRENT_STEPS[0]));
        let column_steps = steps_of_all.checked_div(column_parts)? + usize::from(steps_of_all % column_parts > 0);
        let column_parts = steps_of_all.div_ceil(column_steps);
        let held = RECURRENT_STEPS.into_iter().find(|&held| column_steps <= held)?;
        let warps = (row_tiles * column_parts).max((CHUNK * part_hidden).div_ceil(32));
        let h_pitch = 2 * SIDE * steps_of_all + 16;
        let h_bytes = [h_pitch, tile.rows * h_pitch + 16];
        let inputs_pitch = 2 * part_hidden + 16;
        let inputs_bytes = [inputs_pitch, gates * tile.rows * inputs_pitch];
        let sums_at = BARRIER_BYTES + 2 * h_bytes[1];
        let inputs_at = sums_at + 2 * 4 * SIDE * row_tiles * column_parts * (tile.rows + 4);
        let shared_bytes = inputs_at + INPUT_BUFFERS * inputs_bytes[1];
        let layout = RecurrentLayout {
            cluster: tile.blocks.next_power_of_two().max(2),
            clusters: directions * rows.div_ceil(tile.rows),
            part_hidden,
            row_tiles,
            columns: [column_parts, column_steps],
            held,
            threads: 32 * warps,
            h_bytes,
            sums_at,
            inputs_at,
            inputs_bytes,
            shared_bytes,
        };
        (shared_bytes <= limits.shared_bytes && layout.cluster <= limits.most_cluster_blocks()).then_some(layout)
    }

    /// The tiles in which the kernel can compute the layer; empty if it cannot.
    pub(crate) fn tiles(&self, batch: usize, limits: &Limits) -> Vec<RecurrentTile> {
        let useful = |rows: &usize| *rows == RECURRENT_ROWS[0] || *rows < 2 * self.rows * batch;
        let of_rows = |rows| (1..=MOST_RECURRENT_BLOCKS).map(move |blocks| RecurrentTile { blocks, rows });
        let all = RECURRENT_ROWS.into_iter().filter(useful).flat_map(of_rows);
        all.filter(|&tile| self.layout(tile, batch, limits).is_some()).collect()
    }

    /// The clocks of the best tile; `None` if there is none.
    pub(in crate::plan) fn best_clocks(&self, batch: usize, limits: &Limits) -> Option<f64> {
        let clocks = self.tiles(batch, limits).into_iter().filter_map(|tile| self.clocks(tile, batch, limits));
        clocks.min_by(f64::total_cmp)
    }

    /// Clocks of the layer without the kernel: launches that follow each other.
    pub(in crate::plan) fn clocks_of_steps(&self, limits: &Limits) -> f64 {
        let launches = self.steps * self.backwards.len() * self.cell.launches();
        launches as f64 * LAUNCH * clock_hz(limits)
    }

    /// Clocks of a tile: of its steps one after the other, for each set of clusters that run at the same time. `None` if
    /// the kernel does not have the tile.
    pub(crate) fn clocks(&self, tile: RecurrentTile, batch: usize, limits: &Limits) -> Option<f64> {
        let layout = self.layout(tile, batch, limits)?;
        let RecurrentLayout { cluster, clusters, part_hidden, row_tiles, columns, .. } = layout;
        let at_a_time = ((NEIGHBOURS * limits.units as f64 / cluster as f64) as usize).max(1);
        let sets = clusters.div_ceil(at_a_time) as f64;
        let tiles = (tile.rows / CHUNK) as f64;
        let rows = tile.rows.min(self.rows * batch);
        let products = (row_tiles * columns[0] * columns[1]) as f64 * PRODUCT * tiles;
        let chain = columns[1] as f64 * CHAIN * if tiles > 1.0 { 1.0 } else { 0.5 };
        let units = (rows * part_hidden) as f64 * UNIT;
        let sends = (rows * part_hidden / CHUNK * tile.blocks) as f64 * SEND;
        let exchange = if tile.blocks == 1 { OWN_EXCHANGE } else { EXCHANGE + BLOCK * tile.blocks as f64 };
        let step = STEP + exchange + products.max(chain) + units + sends;
        let weights = (self.weight_bytes() / self.backwards.len() / tile.blocks) as f64 / CACHE_BYTES;
        Some(LAUNCH * clock_hz(limits) + sets * (BEGIN + weights + self.steps as f64 * step))
    }
}

/// An operand of a recurrent layer's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrentRead {
    /// The bias of a GRU's last gate.
    Bias,
    /// The first h.
    FirstH,
    /// The first c.
    FirstC,
}

fn clock_hz(limits: &Limits) -> f64 {
    Rates::of(limits).map_or(CLOCK_HZ, |rates| rates.clock_hz)
}

/// The clock frequency of unknown hardware.
const CLOCK_HZ: f64 = 1.8e9;
/// The part of the multiprocessors that clusters use, as for squeeze and excitation.
const NEIGHBOURS: f64 = 0.72;
/// Clocks of a launch's first loads and barriers. What follows is predicted from latencies, not fitted.
const BEGIN: f64 = 3000.0;
/// Clocks of a step: a barrier, sums of warps, and the functions of a cell, which follow each other.
const STEP: f64 = 450.0;
/// Clocks until what a block sends to itself can be read; until what it sends to others can, and for each of them.
const OWN_EXCHANGE: f64 = 150.0;
const EXCHANGE: f64 = 400.0;
const BLOCK: f64 = 10.0;
/// Clocks of a multiprocessor for a product of 16 rows and columns with 8 sequences, and of a warp until its next one.
const PRODUCT: f64 = 2.5;
const CHAIN: f64 = 33.0;
/// Clocks of a multiprocessor for a unit of a sequence, and to send eight of them to a block.
const UNIT: f64 = 0.7;
const SEND: f64 = 1.0;
/// Bytes that a multiprocessor reads from the L2 cache in a clock, with latencies.
const CACHE_BYTES: f64 = 21.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Window;

    fn layer(cell: RecurrentKind, hidden: usize) -> RecurrentOp {
        let weights = Conv2d::named("layer", cell.gates() * hidden, Window::square(1, 1, 0));
        RecurrentOp { cell, backwards: vec![false], steps: 50, rows: 1, hidden, weights, first: [false; 2] }
    }

    #[test]
    fn layers_have_tiles_as_far_as_registers_hold_their_weights() {
        let limits = Limits::h200();
        let most =
            |cell| (1..200).map(|i| 8 * i).filter(|&hidden| !layer(cell, hidden).tiles(1, &limits).is_empty()).max();
        let all = [RecurrentKind::Lstm, RecurrentKind::Gru, RecurrentKind::RnnTanh, RecurrentKind::RnnRelu];
        assert_eq!(all.map(most), [Some(512), Some(512), Some(1024), Some(1024)]);
        for cell in all {
            for hidden in (1..=64).map(|i| 8 * i) {
                let of = layer(cell, hidden);
                assert!(!of.tiles(3, &limits).is_empty(), "{of:?}");
            }
            assert!(layer(cell, 12).tiles(1, &limits).is_empty());
        }
    }

    #[test]
    fn a_part_of_a_gpu_has_clusters_of_eight_at_most() {
        let part = Limits { units: 60, ..Limits::h200() };
        let most = |cell, limits: &Limits| {
            let tiles = |hidden| layer(cell, hidden).tiles(1, limits);
            (1..=128).flat_map(|i| tiles(8 * i)).map(|tile| tile.blocks).max()
        };
        for cell in [RecurrentKind::Lstm, RecurrentKind::Gru, RecurrentKind::RnnTanh] {
            assert!(most(cell, &Limits::h200()) == Some(16) && most(cell, &part) == Some(8), "{cell:?}");
        }
        let large = layer(RecurrentKind::Lstm, 512);
        assert!(!large.tiles(1, &Limits::h200()).is_empty() && large.tiles(1, &part).is_empty());
    }

    /// Every product of the weights is some warp's, and every unit some thread's.
    #[test]
    fn a_layout_has_all_of_a_layer() {
        let limits = Limits::h200();
        for cell in [RecurrentKind::Lstm, RecurrentKind::Gru, RecurrentKind::RnnTanh] {
            for (hidden, rows) in (1..=128).map(|i| 8 * i).flat_map(|hidden| [(hidden, 1), (hidden, 33)]) {
                let of = layer(cell, hidden);
                for tile in of.tiles(rows, &limits) {
                    let layout = of.layout(tile, rows, &limits).unwrap();
                    let [parts, steps] = layout.columns;
                    assert!(parts * steps * SIDE >= hidden && (parts - 1) * steps * SIDE < hidden);
                    assert!(layout.row_tiles * SIDE >= cell.gates() * layout.part_hidden);
                    assert!(layout.part_hidden * tile.blocks >= hidden);
                    assert!(layout.part_hidden * (tile.blocks - 1) < hidden);
                    assert!(
                        layout.threads >= 32 * layout.row_tiles * parts && layout.threads <= MOST_RECURRENT_THREADS
                    );
                    assert!(layout.threads * (tile.rows / CHUNK) >= layout.part_hidden * tile.rows);
                    assert!(steps <= layout.held && layout.cluster <= 16);
                    assert!((layout.h_bytes[0] / 16) % 2 == 1 && layout.inputs_at.is_multiple_of(16));
                    assert!(layout.clusters * tile.rows >= rows);
                }
            }
        }
    }

    #[test]
    fn large_batches_have_more_sequences_side_by_side() {
        let limits = Limits::h200();
        let chosen = |hidden: usize, rows: usize| {
            let of = layer(RecurrentKind::Lstm, hidden);
            let clocks = |tile: &RecurrentTile| of.clocks(*tile, rows, &limits).unwrap();
            of.tiles(rows, &limits).into_iter().min_by(|a, b| clocks(a).total_cmp(&clocks(b))).unwrap()
        };
        assert_eq!(chosen(8, 1), RecurrentTile { blocks: 1, rows: 8 });
        assert_eq!(chosen(512, 1), RecurrentTile { blocks: 16, rows: 8 });
        assert!(chosen(256, 256).rows > 8);
        let of = layer(RecurrentKind::Lstm, 256);
        let (own, steps) = (of.best_clocks(1, &limits).unwrap(), of.clocks_of_steps(&limits));
        assert!(own < steps / 4.0, "{own} {steps}");
    }
}
