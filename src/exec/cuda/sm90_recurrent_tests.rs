//! The kernel of recurrent layers, emulated: its places in memory, its fragments, and the exchange between the blocks of a
//! cluster, which take their turns at random.

use half::f16;

use super::sm90_recurrent::RecurrentArgs;
use super::sm90_recurrent::tests::{launched, layer};
use crate::plan::{Limits, RecurrentKind, RecurrentOp, RecurrentTile};

/// Numbers from -1 to 1, and choices.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn halves(&mut self, count: usize, most: f32) -> Vec<f16> {
        (0..count).map(|_| f16::from_f32(most * (self.next() as f32 / (1_u64 << 30) as f32 - 1.0))).collect()
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        self.halves(count, 1.0).into_iter().map(f16::to_f32).collect()
    }
}

/// The operands of a layer, as the kernel has them in memory.
struct Layer {
    args: RecurrentArgs,
    threads: usize,
    cluster: usize,
    clusters: usize,
    tile_rows: usize,
    inputs: Vec<f16>,
    weights: Vec<f16>,
    bias: Vec<f32>,
    h_first: Vec<f32>,
    c_first: Vec<f32>,
    y: Vec<f16>,
    last: [Vec<f32>; 2],
}

/// A block of a cluster.
struct Block {
    rank: usize,
    shared: Vec<u8>,
    /// For each barrier: the phases that have ended, the arrivals that are left, and the bytes that are expected.
    barriers: [(usize, i64, i64); 2],
    /// The state that a thread keeps of each of its items.
    kept: Vec<Vec<f32>>,
    step: usize,
    has_sums: bool,
}

fn get<const N: usize>(shared: &[u8], at: usize) -> [u8; N] {
    shared[at..at + N].try_into().unwrap()
}

fn half_at(shared: &[u8], at: usize) -> f16 {
    f16::from_le_bytes(get(shared, at))
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The place of a cluster: its direction, its first row, and how many rows it has.
struct Place {
    direction: usize,
    row_first: usize,
    rows: usize,
}

impl Layer {
    fn new(of: &RecurrentOp, tile: RecurrentTile, batch: usize, random: &mut Random) -> Self {
        let (launch, args) = launched(of, tile, batch, [Some(0x400), (of.cell.states() == 2).then_some(0x500)]);
        let (gates, directions) = (of.cell.gates(), of.backwards.len());
        let states = directions * batch * of.hidden;
        Self {
            threads: launch.block[0] as usize,
            cluster: launch.cluster as usize,
            clusters: (launch.grid[0] / launch.cluster) as usize,
            tile_rows: tile.rows,
            inputs: random.halves(of.steps * batch * directions * gates * of.hidden, 1.0),
            weights: random.halves(directions * gates * of.hidden * of.hidden, 2.0 / (of.hidden as f32).sqrt()),
            bias: random.floats(directions * of.hidden),
            h_first: random.floats(states),
            c_first: random.floats(states),
            y: vec![f16::NAN; of.steps * batch * directions * of.hidden],
            last: [vec![f32::NAN; states], vec![f32::NAN; states]],
            args,
        }
    }

    fn size(&self) -> [usize; 5] {
        let RecurrentArgs { steps, rows, directions, gates, hidden, .. } = self.args;
        [steps, rows, directions, gates, hidden].map(|of| of as usize)
    }

    fn units(&self, rank: usize) -> (usize, usize) {
        let (first, part) = (rank * self.args.part_hidden as usize, self.args.part_hidden as usize);
        (first, part.min(self.args.hidden as usize - first))
    }

    fn time(&self, place: &Place, step: usize) -> usize {
        let is_reverse = (self.args.reverse >> place.direction) & 1 == 1;
        if is_reverse { self.args.steps as usize - 1 - step } else { step }
    }

    fn state_at(&self, step: usize) -> usize {
        16 + (step & 1) * self.args.h_bytes as usize
    }

    fn sums_at(&self, step: usize) -> usize {
        let [first, end] = [self.args.sums_at, self.args.inputs_at].map(|at| at as usize);
        first + (step & 1) * (end - first) / 2
    }

    /// Runs every cluster, one after the other.
    fn run(&mut self, random: &mut Random) {
        for cluster in 0..self.clusters {
            let [_, rows, directions, ..] = self.size();
            let row_first = cluster / directions * self.tile_rows;
            let place =
                Place { direction: cluster % directions, row_first, rows: self.tile_rows.min(rows - row_first) };
            assert!(self.cluster >= self.args.parts as usize);
            let mut blocks: Vec<Block> = (0..self.args.parts as usize).map(|rank| self.begin(&place, rank)).collect();
            let steps = self.args.steps as usize;
            while blocks.iter().any(|block| block.step < steps) {
                let able: Vec<usize> = (0..blocks.len()).filter(|&i| self.is_able(&blocks[i])).collect();
                let next = able[random.next() as usize % able.len()]; // or all blocks wait for one another
                match blocks[next].has_sums {
                    false => self.multiply(&place, &mut blocks[next]),
                    true => self.advance(&place, &mut blocks, next),
                }
            }
        }
    }

    fn is_able(&self, block: &Block) -> bool {
        let phases = if block.step == 0 { 0 } else { (block.step - 1) / 2 + 1 };
        let (ended, ..) = block.barriers[block.step & 1];
        assert!(ended <= phases, "a phase that its waiters have missed");
        block.step < self.args.steps as usize && (block.has_sums || block.step == 0 || ended >= phases)
    }

    fn begin(&self, place: &Place, rank: usize) -> Block {
        let [_, rows, _, _, hidden] = self.size();
        let bytes = (place.rows * hidden * 2) as i64;
        let mut shared = vec![0xff; self.args.inputs_at as usize + 3 * self.args.inputs_bytes as usize];
        shared[16..16 + 2 * self.args.h_bytes as usize].fill(0);
        let first = (place.direction * rows + place.row_first) * hidden;
        for (i, pair) in self.h_first[first..first + place.rows * hidden].chunks(2).enumerate() {
            let (row, column) = (i / (hidden / 2), i % (hidden / 2));
            let at = self.state_at(0) + row * self.args.h_pitch as usize + column * 4;
            shared[at..at + 2].copy_from_slice(&f16::from_f32(pair[0]).to_le_bytes());
            shared[at + 2..at + 4].copy_from_slice(&f16::from_f32(pair[1]).to_le_bytes());
        }
        let first = if self.args.cell == 0 { &self.c_first } else { &self.h_first };
        let kept = (0..self.threads).map(|thread| {
            let item = |number| {
                let (row, unit, exists) = self.item(place, rank, thread, number);
                if exists && self.args.cell < 2 { first[self.in_state(place, rank, row, unit)] } else { 0.0 }
            };
            (0..self.tile_rows / 8).map(item).collect()
        });
        // Both barriers expect their first phases.
        let mut block =
            Block { rank, shared, barriers: [(0, 0, bytes); 2], kept: kept.collect(), step: 0, has_sums: false };
        self.copy_inputs(place, &mut block, 0, 0);
        self.copy_inputs(place, &mut block, 1, 1);
        block
    }

    fn copy_inputs(&self, place: &Place, block: &mut Block, step: usize, buffer: usize) {
        let [steps, rows, directions, gates, hidden] = self.size();
        if step >= steps {
            return;
        }
        let time = self.time(place, step);
        let (first, units) = self.units(block.rank);
        let part_hidden = self.args.part_hidden as usize;
        for i in 0..gates * self.tile_rows * (part_hidden / 8) {
            let line = self.args.by_part_chunks.divide(i as u32) as usize;
            let unit = i * 8 - line * part_hidden;
            let (gate, row) = (line / self.tile_rows, line % self.tile_rows);
            if row >= place.rows || unit >= units {
                continue;
            }
            let of_row = time * rows + place.row_first + row;
            let at = ((of_row * directions + place.direction) * gates + gate) * hidden + first + unit;
            let to = self.args.inputs_at as usize
                + buffer * self.args.inputs_bytes as usize
                + line * self.args.inputs_pitch as usize
                + unit * 2;
            assert!(line * (self.args.inputs_pitch as usize) + unit * 2 + 16 <= self.args.inputs_bytes as usize);
            for (index, elem) in self.inputs[at..at + 8].iter().enumerate() {
                block.shared[to + 2 * index..to + 2 * index + 2].copy_from_slice(&elem.to_le_bytes());
            }
        }
    }

    /// The fragment of a warp's weights: register `j` of step `i` of each lane.
    fn fragment(&self, place: &Place, rank: usize, warp: usize, i: usize, lane: usize, j: usize) -> [f16; 2] {
        let [_, _, _, gates, hidden] = self.size();
        let (row_tiles, part_hidden) = (self.args.row_tiles as usize, self.args.part_hidden as usize);
        let (part, tile) = (warp / row_tiles, warp % row_tiles);
        let (first, units) = self.units(rank);
        let row = tile * 16 + j % 2 * 8 + lane / 4;
        let (gate, unit) = (row / part_hidden, row % part_hidden);
        let column = (part * self.args.column_steps as usize + i) * 16 + j / 2 * 8 + lane % 4 * 2;
        if gate >= gates || unit >= units || column >= hidden {
            return [f16::ZERO; 2];
        }
        let at = ((place.direction * gates + gate) * hidden + first + unit) * hidden + column;
        [self.weights[at], self.weights[at + 1]]
    }

    fn multiply(&self, place: &Place, block: &mut Block) {
        let [steps, _, _, _, hidden] = self.size();
        if block.step > 0 {
            let barrier = &mut block.barriers[block.step & 1];
            assert_eq!(barrier.1, 1, "a barrier that has been told of its next phase already");
            (barrier.1, barrier.2) = (0, barrier.2 + (place.rows * hidden * 2) as i64);
        }
        assert!(block.step < steps);
        let (row_tiles, column_parts) = (self.args.row_tiles as usize, self.args.column_parts as usize);
        let all = hidden.div_ceil(16);
        for warp in 0..row_tiles * column_parts {
            let (part, tile) = (warp / row_tiles, warp % row_tiles);
            let first = part * self.args.column_steps as usize;
            let count = (self.args.column_steps as usize).min(all - first);
            for rows in 0..self.tile_rows / 8 {
                let mut d = [[0.0_f32; 8]; 16];
                for i in 0..count {
                    // A pair of steps is loaded at once: matrices 0 and 1 are of the even one.
                    let even = i & !1;
                    let row_of = |matrix: usize, row: usize| {
                        let chunk = (first * 2 + matrix) * 16 + even * 32;
                        self.state_at(block.step) + (rows * 8 + row) * self.args.h_pitch as usize + chunk
                    };
                    let (mut a, mut b) = ([[0.0_f32; 16]; 16], [[0.0_f32; 8]; 16]);
                    for lane in 0..32 {
                        let (g, t) = (lane / 4, lane % 4);
                        for j in 0..4 {
                            let pair = self.fragment(place, block.rank, warp, i, lane, j);
                            for (k, elem) in pair.into_iter().enumerate() {
                                a[g + j % 2 * 8][2 * t + k + j / 2 * 8] = elem.to_f32();
                            }
                        }
                        for half in 0..2 {
                            let from = row_of(2 * (i - even) + half, g) + 4 * t;
                            for k in 0..2 {
                                b[2 * t + k + 8 * half][g] = half_at(&block.shared, from + 2 * k).to_f32();
                            }
                        }
                    }
                    for (m, n, k) in (0..16).flat_map(|m| (0..8).flat_map(move |n| (0..16).map(move |k| (m, n, k)))) {
                        d[m][n] += a[m][k] * b[k][n];
                    }
                }
                let pitch = self.tile_rows + 4;
                for lane in 0..32 {
                    let row = (part * row_tiles + tile) * 16 + lane / 4;
                    let to = self.sums_at(block.step) + (row * pitch + lane % 4 * 2) * 4;
                    for (half, k) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        let at = to + (half * 8 * pitch + rows * 8 + k) * 4;
                        let sum = d[lane / 4 + 8 * half][lane % 4 * 2 + k];
                        assert!(at + 4 <= self.sums_at(1) + (self.sums_at(1) - self.sums_at(0)) * (block.step & 1));
                        block.shared[at..at + 4].copy_from_slice(&sum.to_le_bytes());
                    }
                }
            }
        }
        block.has_sums = true;
    }

    fn item(&self, place: &Place, rank: usize, thread: usize, number: usize) -> (usize, usize, bool) {
        let item = thread + number * self.threads;
        let (row, unit) = (item / 8 % self.tile_rows, item / (8 * self.tile_rows) * 8 + thread % 8);
        (row, unit, row < place.rows && unit < self.units(rank).1)
    }

    fn in_state(&self, place: &Place, rank: usize, row: usize, unit: usize) -> usize {
        let [_, rows, _, _, hidden] = self.size();
        (place.direction * rows + place.row_first + row) * hidden + self.units(rank).0 + unit
    }

    fn advance(&mut self, place: &Place, blocks: &mut [Block], index: usize) {
        let [steps, rows, directions, gates, hidden] = self.size();
        let (rank, step) = (blocks[index].rank, blocks[index].step);
        let (unit_first, units) = self.units(rank);
        let time = self.time(place, step);
        let (pitch, part_hidden) = (self.tile_rows + 4, self.args.part_hidden as usize);
        let mut seen = vec![false; place.rows * units];
        for number in 0..self.tile_rows / 8 {
            let mut h = vec![f16::ZERO; self.threads];
            for (thread, h) in h.iter_mut().enumerate() {
                let (row, unit, exists) = self.item(place, rank, thread, number);
                if !exists {
                    continue;
                }
                assert!(!std::mem::replace(&mut seen[row * units + unit], true));
                let block = &mut blocks[index];
                let (mut x, mut sums) = ([0.0; 4], [0.0; 4]);
                for gate in 0..gates {
                    let buffer = self.args.inputs_at as usize + step % 3 * self.args.inputs_bytes as usize;
                    let line = gate * self.tile_rows + row;
                    x[gate] =
                        half_at(&block.shared, buffer + line * self.args.inputs_pitch as usize + unit * 2).to_f32();
                    for part in 0..self.args.column_parts as usize {
                        let line = part * self.args.row_tiles as usize * 16 + gate * part_hidden + unit;
                        let at = self.sums_at(step) + (line * pitch + row) * 4;
                        sums[gate] += f32::from_le_bytes(get(&block.shared, at));
                    }
                }
                let kept = &mut block.kept[thread][number];
                let new = match self.args.cell {
                    0 => {
                        *kept = sigmoid(x[2] + sums[2]) * *kept + sigmoid(x[0] + sums[0]) * (x[3] + sums[3]).tanh();
                        sigmoid(x[1] + sums[1]) * kept.tanh()
                    }
                    1 => {
                        let [z, r] = [0, 1].map(|gate| sigmoid(x[gate] + sums[gate]));
                        let bias = self.bias[place.direction * hidden + unit_first + unit];
                        let fresh = (x[2] + r * (sums[2] + bias)).tanh();
                        *kept = fresh + z * (*kept - fresh);
                        *kept
                    }
                    2 => (x[0] + sums[0]).tanh(),
                    _ => (x[0] + sums[0]).max(0.0),
                };
                *h = f16::from_f32(new);
                if step + 1 == steps {
                    let at = self.in_state(place, rank, row, unit);
                    self.last[0][at] = h.to_f32();
                    self.last[1][at] = blocks[index].kept[thread][number];
                }
            }
            for thread in 0..self.threads {
                let (row, unit, exists) = self.item(place, rank, thread, number);
                if !exists {
                    continue;
                }
                let (lane, of_lanes) = (unit % 8, thread - thread % 8);
                let chunk = unit_first + unit - lane;
                let bytes: Vec<u8> = h[of_lanes..of_lanes + 8].iter().flat_map(|h| h.to_le_bytes()).collect();
                if step + 1 < steps {
                    let to = self.state_at(step + 1) + row * self.args.h_pitch as usize + chunk * 2;
                    for rank in (lane..self.args.parts as usize).step_by(8) {
                        blocks[rank].shared[to..to + 16].copy_from_slice(&bytes);
                        let barrier = &mut blocks[rank].barriers[(step + 1) & 1];
                        barrier.2 -= 16;
                        if (barrier.1, barrier.2) == (0, 0) {
                            *barrier = (barrier.0 + 1, 1, 0);
                        }
                    }
                }
                if lane == 0 {
                    let line = time * rows + place.row_first + row;
                    let at = (line * directions + place.direction) * hidden + chunk;
                    self.y[at..at + 8].copy_from_slice(&h[of_lanes..of_lanes + 8]);
                }
            }
        }
        assert!(seen.into_iter().all(|seen| seen));
        let block = &mut blocks[index];
        self.copy_inputs(place, block, step + 2, (step + 2) % 3);
        (block.step, block.has_sums) = (step + 1, false);
    }

    /// The layer by plain loops, in f64; h is rounded once a step.
    fn expected(&self) -> (Vec<f64>, [Vec<f64>; 2]) {
        let [steps, rows, directions, gates, hidden] = self.size();
        let (mut y, mut last) =
            (vec![0.0; self.y.len()], [vec![0.0; self.last[0].len()], vec![0.0; self.last[0].len()]]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for (direction, row) in (0..directions).flat_map(|d| (0..rows).map(move |row| (d, row))) {
            let state = (direction * rows + row) * hidden;
            let mut h: Vec<f64> = self.h_first[state..state + hidden].iter().map(|&h| h.into()).collect();
            let from = if self.args.cell == 0 { &self.c_first } else { &self.h_first };
            let mut kept: Vec<f64> = from[state..state + hidden].iter().map(|&c| c.into()).collect();
            for step in 0..steps {
                let time = if direction == 1 { steps - 1 - step } else { step };
                let before = h.clone();
                for unit in 0..hidden {
                    let of = |gate: usize| {
                        let line = ((time * rows + row) * directions + direction) * gates + gate;
                        let of_weights = ((direction * gates + gate) * hidden + unit) * hidden;
                        let weights = &self.weights[of_weights..of_weights + hidden];
                        let sum: f64 = weights.iter().zip(&before).map(|(w, h)| w.to_f64() * h).sum();
                        (self.inputs[line * hidden + unit].to_f64(), sum)
                    };
                    let sum = |gate: usize| of(gate).0 + of(gate).1;
                    let new = match self.args.cell {
                        0 => {
                            kept[unit] = sigmoid(sum(2)) * kept[unit] + sigmoid(sum(0)) * sum(3).tanh();
                            sigmoid(sum(1)) * kept[unit].tanh()
                        }
                        1 => {
                            let (z, r, (x, product)) = (sigmoid(sum(0)), sigmoid(sum(1)), of(2));
                            let fresh = (x + r * (product + f64::from(self.bias[direction * hidden + unit]))).tanh();
                            kept[unit] = (1.0 - z) * fresh + z * kept[unit];
                            kept[unit]
                        }
                        2 => sum(0).tanh(),
                        _ => sum(0).max(0.0),
                    };
                    h[unit] = f16::from_f64(new).to_f64();
                    y[((time * rows + row) * directions + direction) * hidden + unit] = h[unit];
                }
            }
            last[0][state..state + hidden].copy_from_slice(&h);
            last[1][state..state + hidden].copy_from_slice(&kept);
        }
        (y, last)
    }
}

/// Whether numbers are as expected but for roundings to f16 that went the other way, and what follows from those.
fn check(what: &str, found: &[f64], expected: &[f64]) {
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let error = (found - expected).abs();
        assert!(error <= 0.01 * (1.0 + expected.abs()), "{what} {at}: {found}, expected {expected}");
    }
}

/// Every tile of layers of odd sizes.
#[test]
fn the_kernel_computes_the_layer_whatever_order_its_blocks_run_in() {
    let mut random = Random(11);
    let limits = Limits::h200();
    let cells = [RecurrentKind::Lstm, RecurrentKind::Gru, RecurrentKind::RnnTanh, RecurrentKind::RnnRelu];
    for (cell, (hidden, batch, steps, directions)) in cells
        .into_iter()
        .flat_map(|cell| [(8, 1, 5, 2), (24, 3, 6, 1), (40, 11, 3, 2), (72, 9, 2, 1)].map(move |sizes| (cell, sizes)))
    {
        let of = layer(cell, directions, steps, hidden);
        for tile in of.tiles(batch, &limits) {
            let mut layer = Layer::new(&of, tile, batch, &mut random);
            layer.run(&mut random);
            let (y, [h, c]) = layer.expected();
            let what = format!("{} {tile}", of.label());
            check(&what, &layer.y.iter().map(|y| y.to_f64()).collect::<Vec<_>>(), &y);
            check(&what, &layer.last[0].iter().map(|&h| h.into()).collect::<Vec<_>>(), &h);
            if cell == RecurrentKind::Lstm {
                check(&what, &layer.last[1].iter().map(|&c| c.into()).collect::<Vec<_>>(), &c);
            }
        }
    }
}
