// A network's first layers in one pass, on Hopper, from bytes to bytes: convolution by 7x7 windows, maximum.
//
// A window's row is 21 bytes of an image row. The first 16 lie as the warpgroup product reads them, for each column of the
// convolution: a line of blocks of 16 bytes. The other five are in a line of their own with those of the rows before and
// after: a stage is two image rows and that line, and a window ten lines of four stages, whose products read two at a time.
// The filter is in registers. sm90_stem_s8_runs.cu computes usual photos in large batches, from the same filter.
//
// One warpgroup of a block stores lines. The other multiplies, takes the maximum of the exact sums, and requantises what
// is left: a scale that is not negative keeps their order.
#include "sm90_requantise.cuh"
#include "sm90_stem.cuh"

struct StemS8Args {
  const uint8_t *x;      // [height][width][3], images `row_pitch_bytes` apart; read by words of 4
  const uint4 *filter;   // [kProducts][kGroupThreads] chunks of 16 bytes
  uint8_t *y;            // [images][out_height][out_width][k_stored]
  const int32_t *bias;   // [k_stored]
  const float *scale;    // [k_stored]
  uint64_t row_pitch_bytes;
  int32_t height;
  int32_t width;
  int32_t conv_height;
  int32_t conv_width;
  int32_t out_height;
  int32_t out_width;
  int32_t pad_top;
  int32_t pad_left;
  int32_t k_stored;
  int32_t band_rows;     // output rows of a block
  int32_t column_tiles;  // blocks side by side
  int32_t bands;         // blocks of different rows, of an image
  FastDivide by_column_tiles;
  FastDivide by_bands;
  uint32_t outside[3];   // four pixels outside of the image
  S8Output output;
  int32_t padding;
};
static_assert(sizeof(StemS8Args) == 152, "mirrored in sm90_stem_s8.rs");
static_assert(offsetof(StemS8Args, height) == 48 && offsetof(StemS8Args, output) == 124, "mirrored in sm90_stem_s8.rs");

constexpr int kTaps = 7;
constexpr int kBlockBytes = 16;                            // of a window's row, that a product reads
constexpr int kRowWords = (3 * kTaps + 3) / 4;             // that the window's row lies in
constexpr int kLines = 3;                                  // of a stage: what is left of rows, and two rows
constexpr int kBefore = (kTaps - 1) / 2;                   // stages of a window before its last
constexpr int kProducts = 5;                               // of a row
constexpr int kMostChannels = 64;
constexpr uint32_t kStagedBarrier = 1;                     // of the threads that multiply

// Everything that follows from the convolution's columns of a block.
template <int kColumns_> struct StemS8 {
  static constexpr int kColumns = kColumns_;
  static constexpr bool kPools = true;
  static constexpr int kGroups = kColumns / 8;             // of columns, of which a thread has two
  static constexpr int kStages = 4;                        // rows of the convolution that are handed over ahead
  static constexpr int kSlots = kStages + kBefore;
  static constexpr int kLineBytes = kColumns * kBlockBytes;
  // The first line is also behind the last: a product's second line is never before its first.
  static constexpr int kRingBytes = (kSlots * kLines + 1) * kLineBytes;
  static constexpr int kOutColumns = kColumns / 2;
  static constexpr int kNextTile = kOutColumns - 1;        // a pooled column needs its left neighbour
  static constexpr int kStagedBytes = kOutColumns * kMostChannels;
  static constexpr int kSharedBytes = kRingBytes + 2 * kStagedBytes;

  static_assert(kColumns <= kGroupThreads, "a thread for each column");
  static_assert(kColumns % 16 == 0, "whole matrices of pooled pixels");
};

template <class S> TREFOIL_DEVICE uint32_t next_slot(uint32_t slot) { return slot + 1 < S::kSlots ? slot + 1 : 0; }

// ---- image rows: each thread has a column of the convolution -----------------------------------------------------

// Where the bytes of a thread's windows come from.
struct Source {
  const uint8_t *image;
  int32_t at;                // the window's first byte in the next image row to load
  int32_t h;                 // that row's index
  int32_t h_end;             // of the rows that the block needs
  uint32_t mask[kRowWords];  // of bytes in the image's columns
};

// Bytes of a window in an image row: 21, and three that no product counts.
struct WindowRow {
  uint32_t v[kRowWords];
};

TREFOIL_DEVICE bool is_inside(const Source &source, int32_t h) { return h >= 0 && h < source.h_end; }

template <class S> TREFOIL_DEVICE Source source_of(const StemS8Args &args, const Place &place) {
  const int32_t column = threadIdx.x % kGroupThreads;
  // Columns behind the convolution's last are like it: that changes no maximum.
  const int32_t conv_column = min(2 * place.column_first + column, args.conv_width - 1);
  const int32_t h = 2 * place.conv_first - args.pad_top, w = 2 * conv_column - args.pad_left;
  Source source;
  source.image = args.x + place.image * args.row_pitch_bytes;
  // A stage begins with a row that is the second of a window's pair.
  source.h = h - 1;
  source.at = (source.h * args.width + w) * 3;
  const int32_t h_end = min(args.height, h + 2 * (place.conv_end - place.conv_first - 1) + kTaps);
  source.h_end = column < S::kColumns ? h_end : 0;
#pragma unroll
  for (int i = 0; i < kRowWords; ++i) {
    source.mask[i] = 0;
#pragma unroll
    for (int byte = 0; byte < 4; ++byte) {
      const int32_t pixel = w + (4 * i + byte) / 3;
      if (pixel >= 0 && pixel < args.width) source.mask[i] |= 0xffu << 8 * byte;
    }
  }
  return source;
}

// Words may hold bytes of neighbours, but lie within the image's pitch.
TREFOIL_DEVICE void load_row(const StemS8Args &args, Source &source, uint32_t (&words)[kRowWords]) {
  const bool inside = is_inside(source, source.h);
  const int32_t first = source.at & ~3;
  const uint32_t pitch_bytes = static_cast<uint32_t>(args.row_pitch_bytes);
#pragma unroll
  for (int i = 0; i < kRowWords; ++i)
    load_word_if(inside && static_cast<uint32_t>(first + i * 4) < pitch_bytes, words[i], source.image + first + i * 4);
  source.at += args.width * 3;
  ++source.h;
}

// The window's row of what was loaded so many rows before the next one to load.
TREFOIL_DEVICE WindowRow row_of(const StemS8Args &args, const Source &source, const uint32_t (&words)[kRowWords],
                                int32_t before) {
  const bool inside = is_inside(source, source.h - before);
  const uint32_t shift = (source.at - before * args.width * 3) * 8;  // modulo 32
  WindowRow row;
#pragma unroll
  for (int i = 0; i < kRowWords; ++i) {
    const uint32_t bytes = __funnelshift_r(words[i], i + 1 < kRowWords ? words[i + 1] : 0, shift);
    const uint32_t mask = inside ? source.mask[i] : 0;
    row.v[i] = (bytes & mask) | (args.outside[i % 3] & ~mask);
  }
  return row;
}

// Stores the lines of all rows of the block's convolution, stage by stage.
template <class S>
TREFOIL_DEVICE void store_lines(const StemS8Args &args, const Place &place, uint32_t smem_ring, Stages<S> stages) {
  const bool stores = threadIdx.x % kGroupThreads < S::kColumns;
  const uint32_t smem = smem_ring + threadIdx.x % kGroupThreads * kBlockBytes;
  const int32_t conv_rows = place.conv_end - place.conv_first;
  Source source = source_of<S>(args, place);
  uint32_t words[2][kRowWords] = {};
  load_row(args, source, words[0]);
  load_row(args, source, words[1]);
  WindowRow before = {};  // the row before the stage's
  uint32_t slot = 0;
  for (int32_t stage = 0; stage < conv_rows + kBefore; ++stage, slot = next_slot<S>(slot)) {
    const WindowRow first = row_of(args, source, words[0], 2), second = row_of(args, source, words[1], 1);
    load_row(args, source, words[0]);
    load_row(args, source, words[1]);
    const int32_t row = stage - kBefore;  // of the convolution, whose windows end with the stage
    if (row > 0) barrier_wait(stages.read(row), stages.parity(row) ^ 1);
    if (stores) {
      const uint32_t line = smem + slot * kLines * S::kLineBytes;
      const uint32_t lasts = __byte_perm(__byte_perm(before.v[5], first.v[5], 0x0040), second.v[5], 0x0410);
      const uint4 left = make_uint4(before.v[4], first.v[4], second.v[4], lasts);
      store_shared_u32x4(line, left);
      if (slot == 0) store_shared_u32x4(smem + S::kSlots * kLines * S::kLineBytes, left);
      store_shared_u32x4(line + S::kLineBytes, make_uint4(first.v[0], first.v[1], first.v[2], first.v[3]));
      store_shared_u32x4(line + 2 * S::kLineBytes, make_uint4(second.v[0], second.v[1], second.v[2], second.v[3]));
    }
    before = second;
    if (row >= 0) {
      fence_shared_for_copies();
      barrier_arrive_once(stages.stored(row));
    }
  }
}

// ---- a row of the convolution ------------------------------------------------------------------------------------

// A thread's part of the products' filter.
struct Filter {
  uint32_t v[kProducts][4];
};

// What the rows of the convolution go on with.
template <class S> struct Rows {
  Stages<S> stages;
  uint32_t begun;    // so many
  uint32_t slot;     // of the first stage of the next one
  uint64_t windows;  // a descriptor of the ring
};

// A thread's sums of a row, or maxima of some rows': a group's even and odd column of its first channel, then of the next.
template <class S> struct Sums {
  int32_t v[S::kGroups * 4];
};

// Two lines of a slot or behind it, so many from each other.
template <class S> TREFOIL_DEVICE uint64_t lines_of(uint64_t windows, uint32_t slot, int line, int apart) {
  return windows + (slot * kLines + line) * S::kColumns + (static_cast<uint64_t>(apart * S::kColumns) << 16);
}

// The sums of the next row.
template <class S> TREFOIL_DEVICE void multiply_row(Rows<S> &rows, const Filter &filter, Sums<S> &sums) {
  using Product = WgmmaBytesFrom<S::kColumns>;
  barrier_wait(rows.stages.stored(rows.begun), rows.stages.parity(rows.begun));
  // Where operands lie is computed anew: kept for all products, it takes registers that sums need.
  uint64_t windows = rows.windows;
  asm volatile("" : "+l"(windows));
  const uint32_t second = next_slot<S>(rows.slot), third = next_slot<S>(second), last = next_slot<S>(third);
  wgmma_fence();
  Product::multiply(sums.v, filter.v[0], lines_of<S>(windows, second, 1, 1), false);     // rows 1 and 2
  Product::multiply(sums.v, filter.v[1], lines_of<S>(windows, third, 1, 1), true);       // 3 and 4
  Product::multiply(sums.v, filter.v[2], lines_of<S>(windows, last, 1, 1), true);        // 5 and 6
  Product::multiply(sums.v, filter.v[3], lines_of<S>(windows, rows.slot, 2, 1), true);   // 0, and what is left of 0 to 2
  Product::multiply(sums.v, filter.v[4], lines_of<S>(windows, third, 0, kLines), true);  // what is left of 3, of 4 to 6
  wgmma_commit();
  wgmma_wait<0>();
  wgmma_use(sums.v);
  barrier_arrive_once(rows.stages.read(rows.begun));
  rows.slot = second;
  ++rows.begun;
}

// ---- output ------------------------------------------------------------------------------------------------------

constexpr int32_t kNone = INT32_MIN;  // of what is outside of the convolution: less than all sums

// What the block's rows become, and where they go.
struct Out {
  Requantiser requantiser;
  uint32_t smem_staged;    // two rows of staged pixels, k_stored bytes each
  uint32_t lane_offset;    // of the pixel whose channels this lane's matrix row has
  uint32_t turn;           // of the next staged row
  uint8_t *row;            // of the image's result: the first pixel that is stored
  int32_t skipped;         // staged pixels before it
  int32_t pixels;          // that are stored
  bool has_channels;       // that are stored, of the warp
};

template <class S> TREFOIL_DEVICE Out out_of(const StemS8Args &args, const Place &place, uint32_t smem_staged) {
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  Out out;
  out.requantiser.load(args, warp * 16 + lane / 4 * 2);
  out.smem_staged = smem_staged;
  out.lane_offset = (lane % 8 / 2 + lane % 2 * 4) * args.k_stored + warp * 16;
  out.turn = 0;
  // The first pooled column of a tile that has a left neighbour is the neighbour's last.
  out.skipped = place.column_first > 0 ? 1 : 0;
  const int32_t column = place.column_first + out.skipped;
  const int64_t pixel =
      (static_cast<int64_t>(place.image) * args.out_height + place.out_first) * args.out_width + column;
  out.row = args.y + pixel * args.k_stored;
  out.pixels = min(args.out_width, place.column_first + S::kOutColumns) - column;
  out.has_channels = static_cast<int32_t>(uniform(warp)) * 16 < args.k_stored;
  return out;
}

template <class S> TREFOIL_DEVICE void take_row(Sums<S> &best, const Sums<S> &sums) {
#pragma unroll
  for (int i = 0; i < 4 * S::kGroups; ++i) best.v[i] = max(best.v[i], sums.v[i]);
}

// Stages the maxima of rows before a result's last one and of that, over the columns of its windows.
template <class S>
TREFOIL_DEVICE void stage_pooled(const StemS8Args &args, const Out &out, const Sums<S> &best, const Sums<S> &odd) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t smem = out.smem_staged + out.turn * S::kStagedBytes + out.lane_offset;
  int32_t before[2] = {kNone, kNone};  // the odd column left of the lane's in a group
#pragma unroll
  for (int j = 0; j < S::kGroups; j += 2) {
    int32_t pooled[4];  // two pixels of the first channel, then of the next
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int32_t *above = best.v + (j + i) * 4 + 2 * c, *below = odd.v + (j + i) * 4 + 2 * c;
        const int32_t right = max(above[1], below[1]);
        const int32_t left = __shfl_sync(0xffffffff, lane % 4 == 3 ? before[c] : right, (lane & 28) | ((lane + 3) & 3));
        before[c] = right;
        pooled[2 * c + i] = max(max(max(above[0], below[0]), right), left);
      }
    uint32_t word = out.requantiser.operator()<false>(args.output, pooled, 0);
    if (args.output.result_is_low) word = low_bytes(word);
    stmatrix_x1_trans(smem, word);
    smem += 8 * args.k_stored;
  }
}

// Writes the staged row that all warps have a part of.
template <class S> TREFOIL_DEVICE void store_row(const StemS8Args &args, Out &out) {
  const bool stores = threadIdx.x % kGroupThreads == 0;
  fence_shared_for_copies();
  // What was stored before has been read: the next row is staged there.
  if (stores) wait_stores_read<0>();
  barrier_sync(kStagedBarrier, kGroupThreads);
  if (stores)
    store_bytes(out.row, out.smem_staged + out.turn * S::kStagedBytes + out.skipped * args.k_stored,
                out.pixels * args.k_stored);
  out.row += static_cast<int64_t>(args.out_width) * args.k_stored;
  out.turn ^= 1;
}

// Multiplies lines with the filter, and writes what becomes of the block's rows.
template <class S>
TREFOIL_DEVICE void multiply_rows(const StemS8Args &args, const Place &place, uint32_t smem_ring, Stages<S> stages) {
  Filter filter;
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const uint4 of = __ldg(args.filter + i * kGroupThreads + threadIdx.x % kGroupThreads);
    filter.v[i][0] = of.x, filter.v[i][1] = of.y, filter.v[i][2] = of.z, filter.v[i][3] = of.w;
  }
  Out out = out_of<S>(args, place, smem_ring + S::kRingBytes);
  Rows<S> rows{stages, 0, 0, wgmma_operand_plain(smem_ring, 0, 8 * kBlockBytes)};

  // An odd row is below one result and above the next. Other blocks multiply while this one takes maxima.
  Sums<S> even, odd;
  multiply_row(rows, filter, odd);
#pragma unroll
  for (int i = 0; i < 4 * S::kGroups; ++i) odd.v[i] = place.out_first == 0 ? kNone : odd.v[i];
  for (int32_t row = place.out_first; row < place.out_end; ++row) {
    multiply_row(rows, filter, even);
    take_row(even, odd);
    if (2 * row + 1 < args.conv_height) multiply_row(rows, filter, odd);
    else odd = even;
    if (out.has_channels) stage_pooled(args, out, even, odd);
    store_row<S>(args, out);
  }
  if (threadIdx.x % kGroupThreads == 0) wait_stores_read<0>();
}

// ---- kernel ------------------------------------------------------------------------------------------------------

template <class S, int kImageRegisters, int kProductRegisters> TREFOIL_DEVICE void sm90_stem_s8(const StemS8Args &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[2 * S::kStages];
  const uint32_t smem_ring = shared_address(shared_bytes);
  const Stages<S> stages{shared_address(barriers)};
  if (threadIdx.x == 0)
    for (int i = 0; i < 2 * S::kStages; ++i) barrier_init(stages.barriers + i * kBarrierBytes, kGroupWarps);
  allow_next_launch();
  const Place place = place_of<S>(args);
  __syncthreads();
  const uint32_t group = uniform(threadIdx.x / kGroupThreads);
  if (group == 0) {
    give_registers_up<kImageRegisters>();
    store_lines<S>(args, place, smem_ring, stages);
  } else {
    take_registers<kProductRegisters>();
    multiply_rows<S>(args, place, smem_ring, stages);
  }
}

// Purpose    y[i][u][v][k] = max over p, q of q(conv[i][p][q][k]), the maximum over 3 x 3 windows from (2u - 1, 2v - 1) on,
//            those of their pixels that conv has; q is what sm90_conv2d_s8.cu makes of a sum without a residual.
//            conv[i][p][q][k] = bias[k] + sum over r, s, c of x[i][2p - pad_top + r][2q - pad_left + s][c] *
//            filter[k][r][s][c], r and s from 0 to 6; outside the image x is `outside`, of each channel.
// Operands   x       read   bytes [height][width][3] of an image, images row_pitch_bytes apart; both multiples of 4, as
//                           whole words are read
//            filter  read   signed bytes [5][4][8][4][2][2][4], 16-byte aligned: product, channel / 16, channel % 16 / 2,
//                           term / 4, which line of the product's two, channel % 2, term % 4. Lines: tap rows 1 and 2, 3
//                           and 4, 5 and 6, 0 and what is left of rows 0 to 2, what is left of row 3 and of rows 4 to 6. A
//                           row's terms are 3 s + c up to 15; of what is left of three rows each has 3 s + c = 16 to 19,
//                           then each has the last, then a zero; row 3 is a second one. Channels beyond the output's: zeros
//            bias    read   int32 [k_stored]
//            scale   read   floats [k_stored], finite, not negative
//            y       write  bytes [images][out_height][out_width][k_stored], disjoint from the others
//            S8Output says whether results are signed. All but x are at multiples of 16 bytes.
// Arithmetic as that of sm90_conv2d_s8.cu: the same bytes.
// Launch     grid images * bands * column_tiles, bands = ceil(out_height / band_rows); block and dynamic shared memory
//            kThreads and kSharedBytes. A block computes band_rows rows of kOutColumns columns; blocks overlap by a column
//            and by the row of conv above their first, and compute rows above and below conv for nothing. column_tiles:
//            one, and those of kNextTile columns after the first kOutColumns. compute capability 9.0 exactly.
// Limits     k_stored a multiple of 16, up to 64. Both sizes of x, conv and y, and padding below 2^14; row_pitch_bytes
//            below 2^32. y is as large as conv's windows, whose last may lack one row and column. Deterministic, no
//            atomics.
// Ordering   lets its successor be launched early; is not launched early itself.
// Source     as sm90_stem.cu and sm90_conv2d_s8.cu.
#define TREFOIL_SM90_STEM_S8(columns, resident, image_registers, product_registers)                             \
  static_assert(image_registers + product_registers == 65536 / kGroupThreads / resident, "a warpgroup waits for more"); \
  extern "C" __global__ void __launch_bounds__(kThreads, resident)                                              \
      sm90_stem_u8_7x7_pool_##columns(const __grid_constant__ StemS8Args args) {                                \
    sm90_stem_s8<StemS8<columns>, image_registers, product_registers>(args);                                    \
  }

TREFOIL_SM90_STEM_S8(112, 2, 64, 192)
