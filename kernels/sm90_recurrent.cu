// Recurrent layers on Hopper, all steps in one launch: LSTM, GRU and RNN.
//
// A cluster has one direction of the layer and some rows of the batch. Its blocks share the hidden units, and a block keeps
// the recurrent weights of its units in registers, as fragments of products, from the first step to the last. In each step a
// block multiplies the whole state by its weights, adds the inputs' products, which an earlier launch computed for all
// steps, applies the gates, and sends the new state of its units to all blocks of the cluster. Two buffers and two barriers
// take turns: no block waits for anything but the parts of the state that it reads next.
#include "element.cuh"
#include "sm90_ptx.cuh"

struct RecurrentArgs {
  const uint16_t *inputs;   // [steps][rows][directions][gates][hidden] elements
  const uint16_t *weights;  // [directions][gates][hidden][hidden] elements
  const float *bias;        // [directions][hidden]: GRU alone
  const float *h_first;     // [directions][rows][hidden]; null: zeros
  const float *c_first;     // the same: LSTM alone
  uint16_t *y;              // [steps][rows][directions][hidden] elements
  float *h_last;            // [directions][rows][hidden]
  float *c_last;            // the same: LSTM alone
  int32_t steps;
  int32_t rows;
  int32_t directions;
  int32_t hidden;           // a multiple of 8
  int32_t gates;
  int32_t cell;             // kLstm to kRnnRelu
  int32_t reverse;          // bit d: direction d begins with the last step
  int32_t parts;            // of the hidden units: blocks of the cluster that work
  int32_t part_hidden;      // units of a block, at most: a multiple of 8
  int32_t row_tiles;        // tiles of 16 rows of a block's weights
  int32_t column_parts;     // of these rows; warp w has row tile w % row_tiles and column part w / row_tiles
  int32_t column_steps;     // of 16 columns of a part, at most
  int32_t h_pitch;          // bytes from one row of the state to the next
  int32_t h_bytes;          // of a buffer of the state
  int32_t sums_at;          // bytes of shared memory before the buffers of warps' sums, and before those of inputs
  int32_t inputs_at;
  int32_t inputs_pitch;     // bytes from one row of the batch to the next in such a buffer
  int32_t inputs_bytes;     // of a buffer of inputs
  FastDivide by_part_chunks;  // part_hidden / 8
};
static_assert(sizeof(RecurrentArgs) == 144, "mirrored in sm90_recurrent.rs");
static_assert(offsetof(RecurrentArgs, steps) == 64 && offsetof(RecurrentArgs, by_part_chunks) == 136,
              "mirrored in sm90_recurrent.rs");

// Kinds of cells, as sm90_recurrent.rs numbers them.
enum : int32_t { kLstm = 0, kGru = 1, kRnnTanh = 2, kRnnRelu = 3 };

constexpr int kMostThreads = 512;
constexpr int kMostGates = 4;
// Rows of the batch that a product has side by side.
constexpr int kTileRows = 8;
// Two barriers lie before the buffers of the state.
constexpr uint32_t kBarrierBytes = 16;
// Inputs of the step that is computed and of the two steps behind it.
constexpr int kInputBuffers = 3;

// A block's share of a layer. Its shared memory has two barriers, two buffers of the state, sums of warps, and buffers of
// inputs.
template <int kTiles> struct Share {
  static constexpr int kRows = kTileRows * kTiles;
  // Floats from one row of sums to the next: eight units of four rows of the batch lie in 32 banks.
  static constexpr int kSumPitch = kRows + 4;

  uint32_t smem;
  int32_t rank;
  int32_t direction;
  int32_t row_first, rows;    // of the batch
  int32_t unit_first, units;  // of the hidden units

  __device__ __forceinline__ Share(const RecurrentArgs &args, uint32_t smem) : smem(smem) {
    const int32_t cluster = blockIdx.x / cluster_blocks();
    rank = cluster_rank();
    direction = cluster % args.directions;
    row_first = cluster / args.directions * kRows;
    rows = min(kRows, args.rows - row_first);
    unit_first = rank * args.part_hidden;
    units = min(args.part_hidden, args.hidden - unit_first);
  }

  __device__ __forceinline__ uint32_t barrier(int32_t step) const { return smem + (step & 1) * 8; }
  __device__ __forceinline__ uint32_t state(const RecurrentArgs &args, int32_t step) const {
    return smem + kBarrierBytes + (step & 1) * args.h_bytes;
  }
  __device__ __forceinline__ uint32_t inputs(const RecurrentArgs &args, int32_t buffer) const {
    return smem + args.inputs_at + buffer * args.inputs_bytes;
  }
};

// ---- weights -----------------------------------------------------------------------------------------------------

// A warp's rows and columns of the block's weights, as the first operands of products.
template <int kSteps> struct Weights {
  uint32_t a[kSteps][4];
  int32_t row_tile, column_part;
  int32_t first, steps;  // of 16 columns

  template <class Share> __device__ __forceinline__ Weights(const RecurrentArgs &args, const Share &share) {
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    column_part = warp / args.row_tiles, row_tile = warp - column_part * args.row_tiles;
    first = column_part * args.column_steps;
    const int32_t all = (args.hidden + 15) / 16;
    steps = column_part < args.column_parts ? max(min(args.column_steps, all - first), 0) : 0;
    const uint16_t *rows[2];
    bool exists[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t row = row_tile * 16 + half * 8 + lane / 4;
      const int32_t gate = row / args.part_hidden, unit = row - gate * args.part_hidden;
      exists[half] = gate < args.gates && unit < share.units;
      const int64_t at = (share.direction * args.gates + gate) * args.hidden + share.unit_first + unit;
      rows[half] = args.weights + (exists[half] ? at * args.hidden : 0);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t column = (first + i) * 16 + j / 2 * 8 + lane % 4 * 2;
        const bool loads = exists[j % 2] && i < steps && column < args.hidden;
        a[i][j] = loads ? __ldg(reinterpret_cast<const uint32_t *>(rows[j % 2] + column)) : 0;
      }
    }
  }

  // The warp's sums of the state at `state` to its place among the sums at `sums`.
  template <class Share>
  __device__ __forceinline__ void multiply(const RecurrentArgs &args, const Share &share, uint32_t state,
                                           uint32_t sums) const {
    constexpr int kTiles = Share::kRows / kTileRows;
    // With one tile, odd steps have sums of their own: half as many products wait for one another.
    constexpr int kChains = kTiles == 1 ? 2 : 1;
    const int32_t lane = thread_idx_x() % 32;
    float d[kTiles][kChains][4] = {};
    const uint32_t from = state + lane % 8 * args.h_pitch + (first * 2 + lane / 8) * 16;
#pragma unroll
    for (int i = 0; i < kSteps; i += 2) {
      if (i < steps) {
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          uint32_t b[4];
          ldmatrix_x4(b, from + tile * kTileRows * args.h_pitch + i * 32);
          Element::multiply(d[tile][0], a[i], b[0], b[1]);
          if (i + 1 < steps) Element::multiply(d[tile][kChains - 1], a[i + 1], b[2], b[3]);
        }
      }
    }
    const uint32_t row = (column_part * args.row_tiles + row_tile) * 16 + lane / 4;
    const uint32_t to = sums + (row * Share::kSumPitch + lane % 4 * 2) * 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      if (kChains == 2) {
#pragma unroll
        for (int j = 0; j < 4; ++j) d[tile][0][j] += d[tile][kChains - 1][j];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        store_shared_f32x2(to + (half * 8 * Share::kSumPitch + tile * kTileRows) * 4,
                           make_float2(d[tile][0][2 * half], d[tile][0][2 * half + 1]));
      }
    }
  }
};

// ---- inputs ------------------------------------------------------------------------------------------------------

// Starts the copy of the inputs' products of the block's units at this time into a buffer [gates][kRows] of rows. Closes a
// group of copies in any case.
template <class Share>
TREFOIL_DEVICE void copy_inputs(const RecurrentArgs &args, const Share &share, int32_t time, int32_t buffer, bool copies) {
  if (copies) {
    const int32_t chunks = args.gates * Share::kRows * (args.part_hidden / kChunkElems);
    for (int32_t i = threadIdx.x; i < chunks; i += blockDim.x) {
      const int32_t line = divide(i, args.by_part_chunks);
      const int32_t unit = i * kChunkElems - line * args.part_hidden;
      const int32_t gate = line / Share::kRows, row = line % Share::kRows;
      if (row >= share.rows || unit >= share.units) continue;
      const int64_t of_row = static_cast<int64_t>(time) * args.rows + share.row_first + row;
      const int64_t at = ((of_row * args.directions + share.direction) * args.gates + gate) * args.hidden;
      cp_async_16(share.inputs(args, buffer) + line * args.inputs_pitch + unit * 2,
                  args.inputs + at + share.unit_first + unit, true);
    }
  }
  cp_async_commit();
}

// ---- cells -------------------------------------------------------------------------------------------------------

constexpr float kLog2E = 1.4426950408889634f;

TREFOIL_DEVICE float sigmoid(float x) { return reciprocal_approximate(1.0f + exp2_approximate(-kLog2E * x)); }

TREFOIL_DEVICE float tanh_of(float x) {
  return fmaf(2.0f, reciprocal_approximate(1.0f + exp2_approximate(-2.0f * kLog2E * x)), -1.0f);
}

// The new h of a unit. `x` has what the inputs make of each gate, `sums` what the state does; `kept` is c of an LSTM and h,
// not rounded, of a GRU.
TREFOIL_DEVICE float next_of(int32_t cell, const float (&x)[kMostGates], const float (&sums)[kMostGates], float bias,
                             float &kept) {
  switch (cell) {
    case kLstm: {  // the gates are i, o, f, c
      const float in = sigmoid(x[0] + sums[0]), out = sigmoid(x[1] + sums[1]), forget = sigmoid(x[2] + sums[2]);
      kept = fmaf(forget, kept, in * tanh_of(x[3] + sums[3]));
      return out * tanh_of(kept);
    }
    case kGru: {  // z, r, h
      const float update = sigmoid(x[0] + sums[0]), reset = sigmoid(x[1] + sums[1]);
      const float fresh = tanh_of(fmaf(reset, sums[2] + bias, x[2]));
      kept = fmaf(update, kept - fresh, fresh);
      return kept;
    }
    case kRnnTanh: return tanh_of(x[0] + sums[0]);
    default: return max_or_nan(x[0] + sums[0], 0.0f);
  }
}

// One of the units of a block, of one row of the batch. Eight neighbouring lanes have eight units of one row.
struct Unit {
  int32_t row, unit;
  bool exists;

  // The unit that a thread has at place `number`. Computed anew at each call, since there are no registers for all.
  template <class Share> __device__ __forceinline__ Unit(const Share &share, int number) {
    const int32_t thread = thread_idx_x(), item = thread + number * blockDim.x;
    row = item / 8 % Share::kRows;
    unit = item / (8 * Share::kRows) * 8 + thread % 8;
    exists = row < share.rows && unit < share.units;
  }

  // Its place in a state [directions][rows][hidden].
  template <class Share>
  __device__ __forceinline__ int64_t in_state(const RecurrentArgs &args, const Share &share) const {
    const int64_t line = static_cast<int64_t>(share.direction) * args.rows + share.row_first + row;
    return line * args.hidden + share.unit_first + unit;
  }

  // The place of its direction at this time in values [steps][rows][directions].
  template <class Share>
  __device__ __forceinline__ int64_t line(const RecurrentArgs &args, const Share &share, int32_t time) const {
    const int64_t of_row = static_cast<int64_t>(time) * args.rows + share.row_first + row;
    return of_row * args.directions + share.direction;
  }
};

// The units that a thread computes.
template <int kTiles> struct Units {
  float kept[kTiles];

  __device__ __forceinline__ Units(const RecurrentArgs &args, const Share<kTiles> &share) {
    const float *of_kept = args.cell == kLstm ? args.c_first : args.cell == kGru ? args.h_first : nullptr;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const Unit unit(share, i);
      kept[i] = unit.exists && of_kept != nullptr ? __ldcg(of_kept + unit.in_state(args, share)) : 0.0f;
    }
  }

  // The new h of a unit, from its inputs and from what the warps have summed, at `all_sums`.
  __device__ __forceinline__ float advance(const RecurrentArgs &args, const Share<kTiles> &share, int number,
                                           int32_t buffer, uint32_t all_sums) {
    const Unit unit(share, number);
    float x[kMostGates] = {}, sums[kMostGates] = {};
    if (unit.exists) {
      const int32_t of_part = args.row_tiles * 16 * Share<kTiles>::kSumPitch * 4;
      uint32_t from = all_sums + (unit.unit * Share<kTiles>::kSumPitch + unit.row) * 4;
      uint32_t from_inputs = share.inputs(args, buffer) + unit.row * args.inputs_pitch + unit.unit * 2;
#pragma unroll
      for (int gate = 0; gate < kMostGates; ++gate) {
        if (gate >= args.gates) break;
        x[gate] = unpack_elements(load_shared_u16(from_inputs)).x;
        for (int32_t part = 0; part < args.column_parts; ++part)
          sums[gate] += __uint_as_float(load_shared_u32(from + part * of_part));
        from += args.part_hidden * Share<kTiles>::kSumPitch * 4;
        from_inputs += Share<kTiles>::kRows * args.inputs_pitch;
      }
    }
    const int32_t of_layer = share.direction * args.hidden + share.unit_first + unit.unit;
    const float bias = args.cell == kGru && unit.exists ? __ldg(args.bias + of_layer) : 0.0f;
    return next_of(args.cell, x, sums, bias, kept[number]);
  }

  // Writes the new h of a unit to y, and sends it to all blocks; behind the last step it writes the states instead. All
  // lanes of a warp call it.
  __device__ __forceinline__ void store(const RecurrentArgs &args, const Share<kTiles> &share, int number, float h,
                                        int32_t step, int32_t time) {
    // Lanes with an even unit have it and the next one, and all eight lanes get what those four have.
    const uint32_t pair = pack_elements(h, __shfl_down_sync(0xffffffff, h, 1, 8));
    int32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) words[j] = __shfl_sync(0xffffffff, pair, 2 * j, 8);
    const Unit unit(share, number);
    if (!unit.exists) return;
    const int32_t lane = unit.unit % 8, chunk = share.unit_first + unit.unit - lane;
    if (step + 1 < args.steps) {
      const uint32_t to = share.state(args, step + 1) + unit.row * args.h_pitch + chunk * 2;
      for (int32_t rank = lane; rank < args.parts; rank += 8) send_four(to, share.barrier(step + 1), rank, words);
    } else {
      args.h_last[unit.in_state(args, share)] = unpack_elements(pack_elements(h, h)).x;
      if (args.cell == kLstm) args.c_last[unit.in_state(args, share)] = kept[number];
    }
    if (lane == 0) {
      uint16_t *y = args.y + unit.line(args, share, time) * args.hidden + chunk;
      *reinterpret_cast<uint4 *>(y) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
};

// ---- the kernel body ---------------------------------------------------------------------------------------------

// Zeros in both buffers: columns behind the last unit and rows behind the last one are multiplied too.
template <class Share> TREFOIL_DEVICE void clear_states(const RecurrentArgs &args, const Share &share) {
  for (int32_t at = threadIdx.x * 16; at < 2 * args.h_bytes; at += blockDim.x * 16)
    store_shared_u32x4(share.state(args, 0) + at, make_uint4(0, 0, 0, 0));
}

// The first state of the rows, rounded, into the first buffer; all of it in every block.
template <class Share> TREFOIL_DEVICE void load_first_state(const RecurrentArgs &args, const Share &share) {
  const int64_t first = (static_cast<int64_t>(share.direction) * args.rows + share.row_first) * args.hidden;
  for (int32_t i = threadIdx.x; i < share.rows * args.hidden / 2; i += blockDim.x) {
    const float2 pair = __ldcg(reinterpret_cast<const float2 *>(args.h_first + first) + i);
    const int32_t row = i / (args.hidden / 2), column = i - row * (args.hidden / 2);
    store_shared_u32(share.state(args, 0) + row * args.h_pitch + column * 4, pack_elements(pair.x, pair.y));
  }
}

template <int kTiles, int kSteps> TREFOIL_DEVICE void recurrent(const RecurrentArgs &args) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  const Share<kTiles> share(args, shared_address(shared_bytes));
  allow_next_launch();
  if (share.rank >= args.parts) {  // a block without a part
    cluster_arrive();
    wait_for_earlier_launches();
    cluster_wait();
    cluster_arrive();
    cluster_wait();
    return;
  }
  // A barrier's phase ends when all parts of a state have come.
  const uint32_t state_bytes = share.rows * args.hidden * 2;
  if (threadIdx.x == 0) {
    barrier_init(share.barrier(0), 1);
    barrier_init(share.barrier(1), 1);
    fence_barrier_init();
  }
  clear_states(args, share);
  __syncthreads();
  // Behind the barrier: racecheck takes the initialisation for that of the warp's last lane, and would report a race.
  if (threadIdx.x == 0) {
    barrier_arrive_expect(share.barrier(1), state_bytes);
    barrier_arrive_expect(share.barrier(0), state_bytes);
  }
  cluster_arrive_written();
  const Weights<kSteps> weights(args, share);  // of no launch: they come while earlier launches end
  wait_for_earlier_launches();
  if (args.h_first != nullptr) load_first_state(args, share);
  Units<kTiles> units(args, share);
  const bool reverse = args.reverse >> share.direction & 1;
  const auto time_of = [&](int32_t step) { return reverse ? args.steps - 1 - step : step; };
  copy_inputs(args, share, time_of(0), 0, true);
  copy_inputs(args, share, time_of(1), 1, args.steps > 1);
  // All blocks have begun, and their barriers and buffers can be sent to.
  cluster_wait();
  __syncthreads();
  int32_t buffer = 0, next_buffer = 2;  // of inputs: of this step, and of the second one behind it
  // Sums have two buffers in turn: the barrier behind a step's products is between reads of one and the next writes to it.
  const uint32_t first_sums = share.smem + args.sums_at;
  const uint32_t both_sums = 2 * first_sums + static_cast<uint32_t>(args.inputs_at - args.sums_at) / 2;
  uint32_t sums = first_sums;
#pragma unroll 1
  for (int32_t step = 0; step < args.steps; ++step) {
    if (step > 0) {
      barrier_wait_cluster_phase(share.barrier(step), (step - 1) >> 1 & 1);
      // The next phase of this barrier is of the step after the next one, which no block computes before this one has sent.
      if (threadIdx.x == 0) barrier_arrive_expect(share.barrier(step), state_bytes);
    }
    if (weights.steps > 0) weights.multiply(args, share, share.state(args, step), sums);
    cp_async_wait<1>();
    // The sums and inputs are there, and no warp reads this state any more: what is sent from here on lets other blocks
    // overwrite it.
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const float h = units.advance(args, share, i, buffer, sums);
      units.store(args, share, i, h, step, time_of(step));
    }
    copy_inputs(args, share, time_of(step + 2), next_buffer, step + 2 < args.steps);
    sums = both_sums - sums;
    buffer = buffer == kInputBuffers - 1 ? 0 : buffer + 1;
    next_buffer = next_buffer == kInputBuffers - 1 ? 0 : next_buffer + 1;
  }
  cluster_arrive();
  cluster_wait();
}

// Purpose    for each direction d and row b of the batch, with t from the first step to the last, or from the last to the
//            first where bit d of `reverse` is set, and with s = inputs[t][b][d] and p = weights[d] h:
//            LSTM   c = sigmoid(s_f + p_f) c + sigmoid(s_i + p_i) tanh(s_c + p_c), h = sigmoid(s_o + p_o) tanh(c); the gates
//                   are i, o, f, c
//            GRU    z = sigmoid(s_z + p_z), r = sigmoid(s_r + p_r), n = tanh(s_h + r (p_h + bias[d])), h = n + z (h - n);
//                   the gates are z, r, h
//            RNN    h = tanh(s + p), or max(s + p, 0)
//            and y[t][b][d] = h
// Operands   inputs   read   elements [steps][rows][directions][gates][hidden]
//            weights  read   elements [directions][gates][hidden][hidden], the terms of a sum innermost
//            bias     read   floats [directions][hidden]: GRU alone
//            h_first  read   floats [directions][rows][hidden], or null for zeros
//            c_first  read   the same: LSTM alone
//            y        write  elements [steps][rows][directions][hidden]
//            h_last   write  floats [directions][rows][hidden]: h after the last step, as it is in y
//            c_last   write  the same, c: LSTM alone
//            All at multiples of 16 bytes; written ones disjoint from all others. Elements are f16, or bf16 by entries
//            *_bf16.
// Arithmetic products of elements with float sums, in a fixed order; everything else in float. h is rounded to an element,
//            to nearest even, once a step: for y, and for the products of the next step. c, and in a GRU the h that z
//            multiplies, stay floats from step to step. A sigmoid is off by less than 2^-16 of itself, or 2^-30, and tanh
//            by less than 2^-20. Overflow becomes infinity, and NaN stays NaN.
// Launch     grid of clusters times directions times ceil(rows / kRows), kRows being the entry's first number; a cluster
//            has any number of blocks from `parts`, but at least 2 (alone, st.async is an illegal instruction), up to 16, and
//            parts = ceil(hidden / part_hidden). row_tiles =
//            ceil(gates * part_hidden / 16). Block of a multiple of 32 threads up to kMostThreads, at least
//            32 row_tiles * column_parts and 8 part_hidden. column_parts parts of column_steps have the ceil(hidden / 16)
//            steps of 16 columns; column_steps is at most the entry's second number. h_pitch is an odd multiple of 16 and
//            at least 32 ceil(hidden / 16) + 16; h_bytes = kRows * h_pitch + 16, because two steps of columns are read at
//            once. inputs_pitch is a multiple of 16 and at least 2 part_hidden; inputs_bytes = gates * kRows *
//            inputs_pitch. Dynamic shared memory, in this order: 16 bytes; two buffers of h_bytes; at sums_at
//            two of 64 row_tiles * column_parts * (kRows + 4) bytes; at inputs_at three of inputs_bytes. Compute
//            capability 9.0 exactly.
// Limits     steps, rows and hidden from 1; hidden and part_hidden multiples of 8; directions 1 or 2; gates 4, 3, 1 and 1
//            for the four kinds of cells; kRows * hidden below 2^19; directions * gates * hidden below 2^31.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads and writes all but the
//            weights and bias only after griddepcontrol.wait; those two are of no launch. Deterministic, no atomics.
// Source     the layers of ONNX; persistent kernels for them: Diamos et al., Persistent RNNs (2016).
#define TREFOIL_SM90_RECURRENT(rows, steps)                                                    \
  extern "C" __global__ void __launch_bounds__(kMostThreads, 1)                                \
      TREFOIL_ENTRY(sm90_recurrent_##rows##x##steps)(const __grid_constant__ RecurrentArgs args) { \
    recurrent<rows / kTileRows, steps>(args);                                                  \
  }

TREFOIL_SM90_RECURRENT(8, 4)
TREFOIL_SM90_RECURRENT(8, 8)
TREFOIL_SM90_RECURRENT(8, 16)
TREFOIL_SM90_RECURRENT(16, 4)
TREFOIL_SM90_RECURRENT(16, 8)
TREFOIL_SM90_RECURRENT(16, 16)
TREFOIL_SM90_RECURRENT(32, 4)
TREFOIL_SM90_RECURRENT(32, 8)
TREFOIL_SM90_RECURRENT(32, 16)
