// A network's first layers in one pass, on Hopper: bytes to activations, convolution, maximum.
//
// Two neighbouring pixels are in the 16 bytes that a warpgroup product reads at a time. With a stride of two pixels the
// windows of neighbouring outputs begin 16 bytes apart: the product reads overlapping windows straight from the image
// rows, and nothing is copied to make a matrix of them. Two pixels are six halves. A window's last column has no
// neighbour in it: two of its three channels are the other two halves of the pair that the window's row begins with, and
// the third channel of all its rows are 16 bytes more.
//
// One warpgroup of a block loads, normalises and stores image rows. The other multiplies, with the filter in registers,
// so that products read windows alone, and where it pools it does so beside the products of the next row. Both follow
// from one layout, so this file is longer than others.
#include "sm90_stem.cuh"

constexpr int kMaxMeans = 8;  // of which three are used

struct StemArgs {
  const uint8_t *x;      // [height][width][3], images `row_pitch_bytes` apart; read by words of 4
  const uint4 *filter;   // [products][kGroupThreads] chunks of 8 halves, then [64] floats of bias
  uint4 *y;              // [images][out_height][out_width][k_stored] halves
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
  uint32_t low;          // bounds of the activation, each as two halves
  uint32_t high;
  int32_t band_rows;     // output rows of a block
  int32_t column_tiles;  // blocks side by side
  int32_t bands;         // blocks of different rows, of an image
  FastDivide by_column_tiles;
  FastDivide by_bands;
  float scale[kMaxMeans];  // a byte times this, plus that, is normalised
  float shift[kMaxMeans];
};
static_assert(sizeof(StemArgs) == 168, "mirrored in sm90_stem.rs");
static_assert(offsetof(StemArgs, height) == 32 && offsetof(StemArgs, scale) == 104, "mirrored in sm90_stem.rs");

constexpr int kPairBytes = 16;       // two pixels of an image row
constexpr int kPixelBytes = 32;      // of a staged output pixel: the 16 channels of a warp

// Everything that follows from the filter's taps along each axis, the convolution's columns of a block, whether its
// result is pooled, and the registers of a thread of each warpgroup.
template <int kTaps_, int kColumns_, bool kPools_, int kImageRegisters_, int kProductRegisters_> struct Stem {
  static constexpr int kTaps = kTaps_, kColumns = kColumns_;
  static constexpr bool kPools = kPools_;
  static constexpr int kImageRegisters = kImageRegisters_, kProductRegisters = kProductRegisters_;
  static constexpr int kGroups = kColumns / 8;                 // of columns, of which a thread has two
  static constexpr int kStages = 4;                            // rows of the convolution whose image rows are kept
  static constexpr int kPairs = kTaps / 2;                     // of a window's row, but for its last column
  static constexpr int kRowPairs = kColumns + kPairs - 1;      // of an image row
  static constexpr int kWarpPairs = 32 - kPairs;               // that a warp stores of a row: it sees what is ahead
  static constexpr int kRingRows = kTaps - 1 + 2 * kStages;    // of all their windows; even
  static constexpr int kRing = kRingRows * kRowPairs;          // pairs
  static constexpr int kBlocks = kTaps * kPairs + 1;           // of 8 terms: a window's pairs, and its last column's rest
  static constexpr int kProducts = kBlocks / 2;                // of a row
  static constexpr int kRestWords = kTaps / 2 + 1;             // of the last block
  static constexpr int kOutColumns = kPools ? kColumns / 2 : kColumns;
  static constexpr int kNextTile = kPools ? kOutColumns - 1 : kOutColumns;  // a pooled column needs its left neighbour
  static constexpr int kStagedBytes = kOutColumns * kPixelBytes;  // of a warp
  static constexpr int kSharedBytes = (kRing + kStages * kColumns) * kPairBytes + kGroupWarps * kStagedBytes;

  static_assert(kTaps % 2 == 1 && kBlocks % 2 == 0, "a last column, and whole products");
  static_assert(kRowPairs <= kWarpPairs * kGroupWarps, "a thread for each pair of pixels");
  static_assert(kRingRows % 2 == 0, "rows that are read together are not apart");
  static_assert(!kPools || kColumns % 16 == 0, "whole matrices of pooled pixels");
};

// A place in the ring, in pairs, that may have run over its end once.
template <class S> TREFOIL_DEVICE uint32_t wrap(uint32_t ring) { return ring < S::kRing ? ring : ring - S::kRing; }

// ---- image rows: each thread has a pair of pixels of every row ---------------------------------------------------

constexpr int kWords = 3;  // that a pair's 6 bytes may lie in

// Where a thread's pairs come from and go to.
struct Pairs {
  const uint8_t *image;
  int32_t at;         // the pair's first byte in the next image row to load
  int32_t h;          // that row's index
  int32_t h_end;      // of the rows that the block needs
  uint32_t mask;      // 16 bits for each pixel in the image's columns
  bool stores;        // whether the pair is the thread's to store
  bool has_window;    // whether a window begins with it
  uint32_t smem;      // of the ring's first row
};

// The third channel of the last column of the window that begins with a thread's pair, in halves, row by row.
template <class S> struct Rest {
  uint32_t v[S::kRestWords];

  // Two rows on: these two, in lower halves, are the last.
  __device__ __forceinline__ void advance(uint32_t before_last, uint32_t last) {
#pragma unroll
    for (int i = 0; i + 2 < S::kRestWords; ++i) v[i] = v[i + 1];
    v[S::kRestWords - 2] = __byte_perm(v[S::kRestWords - 1], before_last, 0x5410);
    v[S::kRestWords - 1] = last & 0xffff;
  }
};

TREFOIL_DEVICE bool is_inside(const Pairs &pairs, int32_t h) { return h >= 0 && h < pairs.h_end; }

// A byte takes as long as a word on its way. Words may hold bytes of neighbours, but lie within the image's pitch.
TREFOIL_DEVICE void load_row(const StemArgs &args, Pairs &pairs, uint32_t (&words)[kWords]) {
  const bool inside = is_inside(pairs, pairs.h) && pairs.mask != 0;
  const int32_t first = pairs.at & ~3;
  const uint32_t pitch_bytes = static_cast<uint32_t>(args.row_pitch_bytes);
  const uint8_t *src = pairs.image + first;
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const bool needed = i < 2 || (pairs.at & 3) == 3;
    load_word_if(inside && needed && static_cast<uint32_t>(first + i * 4) < pitch_bytes, words[i], src + i * 4);
  }
  pairs.at += args.width * 3;
  ++pairs.h;
}

// Behind the exponent of 2^23 a byte is a float's last digits.
TREFOIL_DEVICE float byte_to_float(uint32_t word, int byte) {
  return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 | byte)) - 8388608.0f;
}

// Normalises and stores the row so many before the next one to load; padding is zero. Gives the third channel of the
// first pixel behind the window's pairs.
template <class S>
TREFOIL_DEVICE uint32_t store_row(const StemArgs &args, const Pairs &pairs, const uint32_t (&loaded)[kWords],
                                  int32_t before, uint32_t ring) {
  const uint32_t mask = is_inside(pairs, pairs.h - before) ? pairs.mask : 0;
  const uint32_t masks[3] = {__byte_perm(mask, 0, 0x1010), mask, __byte_perm(mask, 0, 0x3232)};
  const uint32_t shift = (pairs.at - before * args.width * 3) * 8;  // modulo 32
  const uint32_t bytes[2] = {__funnelshift_r(loaded[0], loaded[1], shift), __funnelshift_r(loaded[1], loaded[2], shift)};
  uint32_t words[3];
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    float v[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int at = i * 2 + j;
      v[j] = fmaf(byte_to_float(bytes[at / 4], at % 4), args.scale[at % 3], args.shift[at % 3]);
    }
    words[i] = pack_half2(v[0], v[1]) & masks[i];
  }
  const uint32_t ahead[2] = {__shfl_down_sync(0xffffffff, words[0], S::kPairs),
                             __shfl_down_sync(0xffffffff, words[1], S::kPairs)};
  if (pairs.stores)
    store_shared_u32x4(pairs.smem + ring * kPairBytes, make_uint4(words[0], words[1], words[2], ahead[0]));
  return ahead[1];
}

// Stores a thread's rest to its stage's place behind the ring.
template <class S> TREFOIL_DEVICE void store_rest(const Pairs &pairs, const Rest<S> &rest, uint32_t stage) {
  const auto word = [&](int i) { return i < S::kRestWords ? rest.v[i] : 0; };
  if (pairs.has_window)
    store_shared_u32x4(pairs.smem + (S::kRing + stage * S::kColumns) * kPairBytes,
                       make_uint4(word(0), word(1), word(2), word(3)));
}

// Stores the image rows of all rows of the block's convolution, stage by stage.
template <class S>
TREFOIL_DEVICE void store_image_rows(const StemArgs &args, const Place &place, uint32_t smem_rows, Stages<S> stages) {
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  const int32_t pair = warp * S::kWarpPairs + lane;
  const int32_t w = 2 * (place.column_first * (S::kPools ? 2 : 1) + pair) - args.pad_left;
  const int32_t h = 2 * place.conv_first - args.pad_top;
  const int32_t conv_rows = place.conv_end - place.conv_first;
  const auto valid = [&](int32_t w) { return pair <= S::kRowPairs && w >= 0 && w < args.width ? 0xffffu : 0; };
  Pairs pairs{args.x + place.image * args.row_pitch_bytes,
              (h * args.width + w) * 3,
              h,
              min(args.height, h + 2 * (conv_rows - 1) + S::kTaps),
              valid(w) | valid(w + 1) << 16,
              lane < S::kWarpPairs && pair < S::kRowPairs,
              lane < S::kWarpPairs && pair < S::kColumns,
              smem_rows + pair * kPairBytes};
  // Image rows that are loaded while others are stored: a row of three taps takes less time than loads do.
  constexpr int kNext = S::kTaps > 3 ? 2 : 4;
  uint32_t next[kNext][kWords] = {};
  Rest<S> rest;  // of the stage's windows
  const auto end_stage = [&](uint32_t row) {
    store_rest<S>(pairs, rest, stages.index(row));
    fence_shared_for_copies();
    barrier_arrive_once(stages.stored(row));
  };
  {
    constexpr int kAhead = 5;  // image rows under way
    uint32_t first[S::kTaps][kWords] = {};
    const auto load = [&](int row) { load_row(args, pairs, row < S::kTaps ? first[row] : next[row - S::kTaps]); };
    const auto store = [&](int row) {
      const int before = min(kAhead, S::kTaps + kNext - row);
      const uint32_t stored = store_row<S>(args, pairs, first[row], before, row * S::kRowPairs);
      if (row + kAhead < S::kTaps + kNext) load(row + kAhead);
      return stored;
    };
#pragma unroll
    for (int row = 0; row < kAhead; ++row) load(row);
    rest.v[S::kRestWords - 1] = store(0);
#pragma unroll
    for (int row = 1; row < S::kTaps; row += 2) {
      const uint32_t before_last = store(row);
      rest.advance(before_last, store(row + 1));
    }
    end_stage(0);
  }
  uint32_t ring = S::kTaps * S::kRowPairs;  // an odd row: the one after it may be the first again
  const auto store_stage = [&](uint32_t row, uint32_t (&first)[kWords], uint32_t (&second)[kWords]) {
    barrier_wait(stages.read(row), stages.parity(row) ^ 1);
    const uint32_t before_last = store_row<S>(args, pairs, first, kNext, ring);
    ring = wrap<S>(ring + S::kRowPairs);
    rest.advance(before_last, store_row<S>(args, pairs, second, kNext - 1, ring));
    ring += S::kRowPairs;
    end_stage(row);
    load_row(args, pairs, first);
    load_row(args, pairs, second);
  };
  for (int32_t row = 1; row < conv_rows; row += kNext / 2) {
    store_stage(row, next[0], next[1]);
    if (kNext > 2 && row + 1 < conv_rows) store_stage(row + 1, next[kNext - 2], next[kNext - 1]);
  }
}

// ---- a row of the convolution ------------------------------------------------------------------------------------

// A thread's part of the products' filter.
template <class S> struct Filter {
  uint32_t v[S::kProducts][4];
};

// What the rows of the convolution go on with.
template <class S> struct Rows {
  Stages<S> stages;
  uint32_t begun;    // so many
  uint32_t ring;     // where the windows of the next one are: an even row
  uint64_t windows;  // a descriptor of the ring
};

// A thread's sums of a row: a group's even and odd column of its first channel, then of its second.
template <class S> struct Sums {
  float v[S::kGroups * 4];
};

// A block of terms of two rows, from where the first begins, in pairs.
template <class S> TREFOIL_DEVICE int block_at(int block) { return block / S::kPairs * S::kRowPairs + block % S::kPairs; }

// Begins the products of the next row.
template <class S> TREFOIL_DEVICE void begin_row(Rows<S> &rows, const Filter<S> &filter, Sums<S> &sums) {
  barrier_wait(rows.stages.stored(rows.begun), rows.stages.parity(rows.begun));
  // Where operands lie is computed anew: kept for all products, it takes registers that sums need.
  uint64_t windows = rows.windows;
  asm volatile("" : "+l"(windows));
  wgmma_fence();
  // Two rows are never apart in the ring. A product reads two blocks, the second so many pairs from the first.
#pragma unroll
  for (int r = 0; r < S::kTaps; r += 2) {
    const uint32_t at = wrap<S>(rows.ring + r * S::kRowPairs);
    const int blocks = r + 1 < S::kTaps ? 2 * S::kPairs : S::kPairs + 1;
#pragma unroll
    for (int block = 0; block < blocks; block += 2) {
      const int first = block_at<S>(block);
      const bool is_last = r + 1 == S::kTaps && block + 1 == S::kPairs;
      const uint32_t apart =
          is_last ? S::kRing + rows.stages.index(rows.begun) * S::kColumns - at - first : block_at<S>(block + 1) - first;
      WgmmaFrom<S::kColumns>::multiply(sums.v, filter.v[(r * S::kPairs + block) / 2],
                                       windows + at + first + (static_cast<uint64_t>(apart) << 16), r + block > 0);
    }
  }
  wgmma_commit();
  rows.ring = wrap<S>(rows.ring + 2 * S::kRowPairs);
  ++rows.begun;
}

// Waits for the sums of a row after which `kBegun` were begun.
template <int kBegun, class S> TREFOIL_DEVICE void end_row(const Rows<S> &rows, Sums<S> &sums) {
  wgmma_wait<kBegun>();
  wgmma_use(sums.v);
  barrier_arrive_once(rows.stages.read(rows.begun - 1 - kBegun));
}

// ---- output ------------------------------------------------------------------------------------------------------

// What a thread does with its sums.
struct Out {
  float2 bias;          // of its channels: one, and the eighth after it
  uint32_t smem_write;  // its row of two 8x8 matrices of 8 staged pixels: 8 channels, then 8 more
  uint32_t smem_read;   // its 8 channels of every 16th staged pixel
  uint4 *row;           // the next row of the image's result
  uint32_t at;          // where they go in it
  int32_t columns;      // of the row from there on
  int32_t conv_columns;  // of the convolution from the block's first on, if one is even and the last; else 0
  bool first;           // whether the first is stored
};

// Writes a warp's staged pixels, 16 channels of each.
template <class S> TREFOIL_DEVICE void store_pixels(const StemArgs &args, Out &out) {
  constexpr int kPixels = 16, kTimes = (S::kOutColumns + kPixels - 1) / kPixels;
  const uint32_t k_chunks = args.k_stored / kChunkElems;
  uint32_t smem = out.smem_read;
  uint4 *y = out.row + out.at;
  asm volatile("" : "+r"(smem), "+l"(y));  // computed once, not for each access
  uint4 chunks[kTimes] = {};
  __syncwarp();
#pragma unroll
  for (int i = 0; i < kTimes; ++i)
    if (S::kOutColumns >= (i + 1) * kPixels || threadIdx.x % 32 < 16)
      chunks[i] = load_shared_u32x4(smem + i * kPixels * kPixelBytes);
  if (args.high != kHighestHalf2)
#pragma unroll
    for (uint4 &chunk : chunks)
      chunk = make_uint4(min_half2_or_nan(chunk.x, args.high), min_half2_or_nan(chunk.y, args.high),
                         min_half2_or_nan(chunk.z, args.high), min_half2_or_nan(chunk.w, args.high));
#pragma unroll
  for (int i = 0; i < kTimes; ++i)
    if (i * kPixels < out.columns && (i > 0 || out.first)) y[i * kPixels * k_chunks] = chunks[i];
  out.row += args.out_width * k_chunks;
}

// This lane's columns of a group, of a row or of rows' maxima: its two channels together.
struct Group {
  uint32_t even, odd;
};

template <class S> struct Columns {
  Group groups[S::kGroups];
};

template <class S> TREFOIL_DEVICE Group round_sums(const Sums<S> &sums, int group, float2 bias) {
  const float *of = sums.v + group * 4;
  return {pack_half2(of[0] + bias.x, of[2] + bias.y), pack_half2(of[1] + bias.x, of[3] + bias.y)};
}

// The last odd column of a convolution that has one column more than pairs of them is none.
template <class S> TREFOIL_DEVICE void hide_column(const Out &out, Sums<S> &sums) {
  if (out.conv_columns == 0) return;
  const int32_t hidden = out.conv_columns - 2 * static_cast<int32_t>(threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < S::kGroups; ++j)
    if (j * 8 + 1 == hidden) sums.v[j * 4 + 1] = sums.v[j * 4 + 3] = -INFINITY;
}

// A row that is none has sums as well: they are less than all others.
TREFOIL_DEVICE float2 bias_of_row(const Out &out, bool is_none) {
  return is_none ? make_float2(-INFINITY, -INFINITY) : out.bias;
}

// An odd row above a result.
template <class S> TREFOIL_DEVICE Columns<S> above_result(const Out &out, const Sums<S> &sums, bool is_none) {
  const float2 bias = bias_of_row(out, is_none);
  Columns<S> best;
#pragma unroll
  for (int j = 0; j < S::kGroups; ++j) best.groups[j] = round_sums(sums, j, bias);
  return best;
}

// Takes the even row of a result into the maxima, and the activation's lower bound.
template <class S>
TREFOIL_DEVICE void take_row(const StemArgs &args, const Out &out, const Sums<S> &sums, Columns<S> &best) {
#pragma unroll
  for (int j = 0; j < S::kGroups; ++j) {
    const Group row = round_sums(sums, j, out.bias);
    Group &of = best.groups[j];
    of = {max_half2_or_nan(max_half2_or_nan(of.even, row.even), args.low),
          max_half2_or_nan(max_half2_or_nan(of.odd, row.odd), args.low)};
  }
}

// Takes the odd row below a result into the maxima and stages those over the columns of its windows. The row is above
// the next result: it is what is left in `best`.
template <class S> TREFOIL_DEVICE void stage_pooled(const Out &out, const Sums<S> &sums, bool is_none, Columns<S> &best) {
  const uint32_t lane = threadIdx.x % 32;
  const float2 bias = bias_of_row(out, is_none);
  uint32_t before = kLowestHalf2;  // the odd column left of the lane's in a group
#pragma unroll
  for (int j = 0; j < S::kGroups; j += 2) {
    uint32_t pooled[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const Group row = round_sums(sums, j + i, bias);
      Group &of = best.groups[j + i];
      const uint32_t even = max_half2_or_nan(of.even, row.even), odd = max_half2_or_nan(of.odd, row.odd);
      const uint32_t left = __shfl_sync(0xffffffff, lane % 4 == 3 ? before : odd, (lane & 28) | ((lane + 3) & 3));
      before = odd;
      pooled[i] = max_half2_or_nan(max_half2_or_nan(even, odd), left);
      of = row;
    }
    const uint32_t pixels[2] = {__byte_perm(pooled[0], pooled[1], 0x5410), __byte_perm(pooled[0], pooled[1], 0x7632)};
    stmatrix_x2_trans(out.smem_write + j / 2 * 8 * kPixelBytes, pixels);
  }
}

template <class S> TREFOIL_DEVICE void stage_row(const StemArgs &args, const Out &out, const Sums<S> &sums) {
#pragma unroll
  for (int group = 0; group < S::kGroups; ++group) {
    const float *of = sums.v + group * 4;
    const uint32_t pixels[2] = {max_half2_or_nan(pack_half2(of[0] + out.bias.x, of[1] + out.bias.x), args.low),
                                max_half2_or_nan(pack_half2(of[2] + out.bias.y, of[3] + out.bias.y), args.low)};
    stmatrix_x2_trans(out.smem_write + group * 8 * kPixelBytes, pixels);
  }
}

// Multiplies image rows with the filter, and writes what becomes of the block's rows.
template <class S>
TREFOIL_DEVICE void multiply_rows(const StemArgs &args, const Place &place, uint32_t smem_rows, Stages<S> stages) {
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  Filter<S> filter;
#pragma unroll
  for (int i = 0; i < S::kProducts; ++i) {
    const uint4 of = __ldg(args.filter + i * kGroupThreads + threadIdx.x % kGroupThreads);
    filter.v[i][0] = of.x, filter.v[i][1] = of.y, filter.v[i][2] = of.z, filter.v[i][3] = of.w;
  }
  Out out;
  const float *bias = reinterpret_cast<const float *>(args.filter + S::kProducts * kGroupThreads) + warp * 16 + lane / 4;
  out.bias = make_float2(__ldg(bias), __ldg(bias + 8));
  const uint32_t smem_staged = smem_rows + (S::kRing + S::kStages * S::kColumns) * kPairBytes + warp * S::kStagedBytes;
  const uint32_t in_eight = S::kPools ? lane % 8 / 2 + lane % 2 * 4 : lane % 8;
  out.smem_write = smem_staged + in_eight * kPixelBytes + (lane / 8 % 2 ^ in_eight / 4) * 16;
  out.smem_read = smem_staged + lane / 2 * kPixelBytes + (lane % 2 ^ lane / 8 % 2) * 16;
  const int32_t column = place.column_first + lane / 2;
  const int32_t k_chunks = args.k_stored / kChunkElems, k_chunk = warp * 2 + lane % 2;
  const int64_t first_row = static_cast<int64_t>(place.image) * args.out_height + place.out_first;
  out.row = args.y + first_row * args.out_width * k_chunks;
  out.at = column * k_chunks + k_chunk;
  const int32_t end = min(args.out_width, place.column_first + S::kOutColumns);
  out.columns = k_chunk < k_chunks ? end - column : 0;
  out.conv_columns = args.conv_width % 2 != 0 ? args.conv_width - 2 * place.column_first : 0;
  // The first pooled column of a tile that has a left neighbour is the neighbour's last.
  out.first = !S::kPools || lane >= 2 || column == 0;
  Rows<S> rows{stages, 0, 0, wgmma_operand_plain(smem_rows, 0, 8 * kPairBytes)};

  if constexpr (S::kPools) {
    // What is done with the sums of one row is done beside the products of the next. An odd row is below one result and
    // above the next.
    Sums<S> even, odd;
    const bool none_above = place.out_first == 0, none_below = 2 * place.out_end - 1 == args.conv_height;
    begin_row(rows, filter, odd);
    end_row<0>(rows, odd);
    hide_column(out, odd);
    Columns<S> best = above_result(out, odd, none_above);
    for (int32_t row = place.out_first; row < place.out_end; ++row) {
      begin_row(rows, filter, even);
      if (row > place.out_first) {
        stage_pooled(out, odd, false, best);
        store_pixels<S>(args, out);
      }
      begin_row(rows, filter, odd);
      end_row<1>(rows, even);
      hide_column(out, even);
      take_row(args, out, even, best);
      end_row<0>(rows, odd);
      hide_column(out, odd);
    }
    stage_pooled(out, odd, none_below, best);
    store_pixels<S>(args, out);
  } else {
    const bool has_channels = static_cast<int32_t>(uniform(k_chunk)) < k_chunks;  // that are stored
    Sums<S> sums;
    for (int32_t row = place.out_first; row < place.out_end; ++row) {
      begin_row(rows, filter, sums);
      end_row<0>(rows, sums);
      if (has_channels) {
        stage_row(args, out, sums);
        store_pixels<S>(args, out);
      }
    }
  }
}

// ---- kernel ------------------------------------------------------------------------------------------------------

template <class S> TREFOIL_DEVICE void sm90_stem(const StemArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[2 * S::kStages];
  const uint32_t smem_rows = shared_address(shared_bytes);
  const Stages<S> stages{shared_address(barriers)};
  if (threadIdx.x == 0)
    for (int i = 0; i < 2 * S::kStages; ++i) barrier_init(stages.barriers + i * kBarrierBytes, kGroupWarps);
  allow_next_launch();
  const Place place = place_of<S>(args);
  __syncthreads();
  const uint32_t group = uniform(threadIdx.x / kGroupThreads);
  if (group == 0) {
    give_registers_up<S::kImageRegisters>();
    store_image_rows<S>(args, place, smem_rows, stages);
  } else {
    take_registers<S::kProductRegisters>();
    multiply_rows<S>(args, place, smem_rows, stages);
  }
}

// Purpose    y[i][u][v][k] = act(max over p, q of conv[i][p][q][k]), the maximum over 3 x 3 windows from
//            (2u - 1, 2v - 1) on, those of their pixels that conv has; or y = act(conv).
//            conv[i][p][q][k] = sum over r, s, c of n[i][2p - pad_top + r][2q - pad_left + s][c] * filter[k][r][s][c]
//            + bias[k]; n[i][h][w][c] = x[i][h][w][c] * scale[c] + shift[c], and 0 outside the image.
// Operands   x       read   bytes [height][width][3] of an image, images row_pitch_bytes apart; both multiples of 4, as
//                           whole words are read
//            filter  read   halves [blocks / 2][4][8][4][2][2][2], 16-byte aligned: two blocks of terms, channel / 16,
//                           channel % 8, term / 2, which block of the two, channel / 8 % 2, term % 2. Block
//                           r * (taps / 2) + s / 2 has terms s % 2 * 3 + c of tap row r, for s but the last; terms 6 and
//                           7 of its first are c = 0 and 1 of the last s; the last block has terms r, c = 2 of that. The
//                           rest is zeros, as for channels beyond the output's. Then 64 floats of bias
//            y       write  halves [images][out_height][out_width][k_stored], 16-byte aligned, disjoint from the others
// Arithmetic n in float by one multiply-add, rounded to half; half products, float sums in a fixed order, one rounding
//            to half at the end (overflow becomes infinity). NaN stays NaN, through maximum and activation. Padded
//            channels of y are zero.
// Launch     grid images * bands * column_tiles, bands = ceil(out_height / band_rows); block and dynamic shared memory
//            kThreads and kSharedBytes. A block computes band_rows rows of kOutColumns columns; pooling blocks overlap
//            by a column and by the row of conv above their first, and compute rows above and below conv for nothing.
//            column_tiles: one, and those of kNextTile columns after the first kOutColumns. compute capability 9.0
//            exactly.
// Limits     every byte is a finite half once normalised. k_stored a multiple of 8, up to 64. Both sizes of x, conv and
//            y, padding, and taps below 2^14; row_pitch_bytes below 2^32. y is as large as conv, or as its windows, whose
//            last may lack one row and column. Deterministic, no atomics.
// Ordering   lets its successor be launched early; is not launched early itself.
// Source     the windows' overlap in shared memory: matrix descriptors as in PTX ISA 9.0, without swizzle.
#define TREFOIL_SM90_STEM(name, taps, columns, pools, resident, image_registers, product_registers)             \
  static_assert((image_registers + product_registers) * kGroupThreads * resident <= 65536, "of a multiprocessor"); \
  extern "C" __global__ void __launch_bounds__(kThreads, resident)                                              \
      sm90_stem_##name(const __grid_constant__ StemArgs args) {                                                 \
    sm90_stem<Stem<taps, columns, pools, image_registers, product_registers>>(args);                            \
  }

TREFOIL_SM90_STEM(7x7_pool_112, 7, 112, true, 2, 40, 216)
TREFOIL_SM90_STEM(7x7_pool_64, 7, 64, true, 2, 72, 184)
TREFOIL_SM90_STEM(3x3_112, 3, 112, false, 2, 88, 168)
TREFOIL_SM90_STEM(3x3_64, 3, 64, false, 4, 48, 80)
