// A network's first layers in one pass, on Hopper: bytes to activations, convolution, maximum.
//
// A pixel is stored as four halves, the fourth 1, so two neighbours are the 16 bytes that a warpgroup product reads at
// a time. With a stride of two pixels the windows of neighbouring outputs begin 16 bytes apart: the product reads
// overlapping windows straight from the image rows, and nothing is copied to make a matrix of them. The fourth
// channel's weights are the bias.
#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kMaxMeans = 8;  // of which three are used

struct StemArgs {
  const uint8_t *x;      // [height][width][3], images `row_pitch_bytes` apart; read by words of 4
  const uint4 *filter;   // [taps * pairs][64] chunks of 8 halves: what 2 pixels of a tap row give each channel
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
  int32_t activation;
  int32_t band_rows;     // output rows of a block
  int32_t column_tiles;  // blocks side by side
  int32_t bands;         // blocks of different rows, of an image
  int32_t reserved;
  FastDivide by_column_tiles;
  FastDivide by_bands;
  float scale[kMaxMeans];  // a byte times this, plus that, is normalised
  float shift[kMaxMeans];
};
static_assert(sizeof(StemArgs) == 168, "mirrored in sm90_stem.rs");
static_assert(offsetof(StemArgs, height) == 32 && offsetof(StemArgs, scale) == 104, "mirrored in sm90_stem.rs");

constexpr int kThreads = 128;        // a warpgroup
constexpr int kSlabChannels = 64;    // output channels of a product
constexpr int kPairBytes = 16;       // two pixels of an image row
constexpr int kPixelBytes = 32;      // of a staged output pixel: the 16 channels of a warp

// Everything that follows from the filter's taps along each axis, the convolution's columns of a block, and whether
// its result is pooled.
template <int kTaps_, int kColumns_, bool kPools_> struct Stem {
  static constexpr int kTaps = kTaps_, kColumns = kColumns_;
  static constexpr bool kPools = kPools_;
  static constexpr int kPairs = (kTaps + 3) / 4 * 2;           // of a window's row, as many as whole products read
  static constexpr int kRowPairs = kColumns + kPairs - 1;      // of an image row
  static constexpr int kRing = (kTaps + 2) * kRowPairs;        // pairs kept: a window's rows, and two rows to come
  static constexpr int kOutColumns = kPools ? kColumns / 2 : kColumns;
  static constexpr int kNextTile = kPools ? kOutColumns - 1 : kOutColumns;  // a pooled column needs its left neighbour
  static constexpr int kFilterBytes = kTaps * kPairs * kSlabChannels * 16;
  static constexpr int kStagedBytes = kOutColumns * kPixelBytes;  // of a warp
  static constexpr int kSharedBytes = kFilterBytes + kRing * kPairBytes + kThreads / 32 * kStagedBytes;

  static_assert(kRowPairs <= kThreads, "a thread for each pair of pixels");
  static_assert(kColumns % 16 == 0, "whole matrices of pooled pixels");
};

// Where a block works.
struct Place {
  int32_t image, out_first, out_end, conv_first, conv_end, column_first;
};

template <class S> TREFOIL_DEVICE Place place_of(const StemArgs &args) {
  const uint32_t band_index = divide(blockIdx.x, args.by_column_tiles);
  const int32_t image = divide(band_index, args.by_bands);
  Place place;
  place.image = image;
  place.column_first = (blockIdx.x - band_index * args.column_tiles) * S::kNextTile;
  place.out_first = (band_index - image * args.bands) * args.band_rows;
  place.out_end = min(place.out_first + args.band_rows, args.out_height);
  place.conv_first = S::kPools ? max(2 * place.out_first - 1, 0) : place.out_first;
  place.conv_end = S::kPools ? min(2 * place.out_end, args.conv_height) : place.out_end;
  return place;
}

// ---- image rows: each thread has a pair of pixels of every row ---------------------------------------------------

constexpr int kWords = 3;  // that a pair's 6 bytes may lie in

// The words that a thread's pair of pixels lies in, of two image rows.
struct Bytes {
  uint32_t v[2][kWords];
};

// Where a thread's pairs come from and go to.
struct Pairs {
  const uint8_t *image;
  int32_t at_load;   // the pair's first byte in the next image row to load, and in the next to store
  int32_t at_store;
  int32_t h_load;    // those rows' indices
  int32_t h_store;
  int32_t h_end;     // of the rows that the block needs
  bool valid[2];     // whether the pixels are in the image's columns
  uint32_t smem;     // of the ring's first row
};

// A byte takes as long as a word on its way. Words may hold bytes of neighbours, but lie within the image's pitch.
TREFOIL_DEVICE void load_row(const StemArgs &args, Pairs &pairs, uint32_t (&words)[kWords]) {
  const bool inside = pairs.h_load >= 0 && pairs.h_load < pairs.h_end && (pairs.valid[0] || pairs.valid[1]);
  const int32_t first = pairs.at_load & ~3;
  const uint32_t pitch_bytes = static_cast<uint32_t>(args.row_pitch_bytes);
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const bool needed = i < 2 || (pairs.at_load & 3) == 3;
    const bool loads = inside && needed && static_cast<uint32_t>(first + i * 4) < pitch_bytes;
    words[i] = loads ? __ldg(reinterpret_cast<const uint32_t *>(pairs.image + first) + i) : 0;
  }
  pairs.at_load += args.width * 3;
  ++pairs.h_load;
}

// Normalises and stores; padding is zero. The fourth channel is one.
template <class S>
TREFOIL_DEVICE void store_row(const StemArgs &args, Pairs &pairs, const uint32_t (&loaded)[kWords], uint32_t ring) {
  constexpr uint32_t kOne = 0x3c000000u;  // in the upper half
  const bool inside = pairs.h_store >= 0 && pairs.h_store < pairs.h_end;
  const uint32_t shift = pairs.at_store * 8;  // modulo 32
  const uint32_t bytes[2] = {__funnelshift_r(loaded[0], loaded[1], shift), __funnelshift_r(loaded[1], loaded[2], shift)};
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float v[3];
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      const int byte = i * 3 + c;
      const uint32_t x = bytes[byte / 4] >> byte % 4 * 8 & 0xff;
      v[c] = fmaf(static_cast<float>(x), args.scale[c], args.shift[c]);
    }
    const uint32_t mask = inside && pairs.valid[i] ? ~0u : 0;
    words[2 * i] = pack_half2(v[0], v[1]) & mask, words[2 * i + 1] = pack_half2(v[2], 0.0f) & mask | kOne;
  }
  if (threadIdx.x < S::kRowPairs)
    store_shared_u32x4(pairs.smem + ring * kPairBytes, make_uint4(words[0], words[1], words[2], words[3]));
  pairs.at_store += args.width * 3;
  ++pairs.h_store;
}

// A place in the ring, in pairs, that may have run over its end once.
template <class S> TREFOIL_DEVICE uint32_t wrap(uint32_t ring) { return ring < S::kRing ? ring : ring - S::kRing; }

// ---- a row of the convolution ------------------------------------------------------------------------------------

// The sums of one row, whose windows begin at `ring`. While the products run, the image rows that were loaded before
// are stored for the next row, and those for the one after it are loaded.
template <class S>
TREFOIL_DEVICE void convolve_row(const StemArgs &args, Pairs &pairs, Bytes &bytes, uint64_t filter, uint64_t windows,
                                 uint32_t &ring, float (&d)[S::kColumns / 2]) {
  __syncthreads();
  wgmma_fence();
#pragma unroll
  for (int r = 0; r < S::kTaps; ++r) {
    const uint64_t row = windows + wrap<S>(ring + r * S::kRowPairs);
#pragma unroll
    for (int s = 0; s < S::kPairs; s += 2)
      Wgmma<S::kColumns>::multiply(d, filter + (r * S::kPairs + s) * kSlabChannels, row + s, r + s > 0);
  }
  wgmma_commit();
  store_row<S>(args, pairs, bytes.v[0], wrap<S>(ring + S::kTaps * S::kRowPairs));
  store_row<S>(args, pairs, bytes.v[1], wrap<S>(ring + (S::kTaps + 1) * S::kRowPairs));
  fence_shared_for_copies();
  load_row(args, pairs, bytes.v[0]);
  load_row(args, pairs, bytes.v[1]);
  ring = wrap<S>(ring + 2 * S::kRowPairs);
  wgmma_wait<0>();
  wgmma_use(d);
}

// ---- output ------------------------------------------------------------------------------------------------------

TREFOIL_DEVICE uint32_t max_half2(uint32_t a, uint32_t b) {
  const __half2 d = __hmax2_nan(*reinterpret_cast<const __half2 *>(&a), *reinterpret_cast<const __half2 *>(&b));
  return *reinterpret_cast<const uint32_t *>(&d);
}

TREFOIL_DEVICE uint32_t min_half2(uint32_t a, uint32_t b) {
  const __half2 d = __hmin2_nan(*reinterpret_cast<const __half2 *>(&a), *reinterpret_cast<const __half2 *>(&b));
  return *reinterpret_cast<const uint32_t *>(&d);
}

constexpr uint32_t kLowest = 0xfc00fc00u;  // two halves of -infinity

// What a thread does with its sums.
struct Out {
  uint32_t low, high;   // of the activation
  uint32_t smem_write;  // its row of two 8x8 matrices of 8 staged pixels: 8 channels, then 8 more
  uint32_t smem_read;   // its 8 channels of every 16th staged pixel
  uint4 *y;             // where they go, in the next row
  int32_t columns;      // of the row from there on
  bool first;           // whether the first is stored
};

TREFOIL_DEVICE uint32_t activate_half2(const Out &out, uint32_t x) {
  return min_half2(max_half2(x, out.low), out.high);
}

// Writes a warp's staged pixels, 16 channels of each.
template <class S> TREFOIL_DEVICE void store_pixels(const StemArgs &args, Out &out) {
  const uint32_t k_chunks = args.k_stored / kChunkElems;
  __syncwarp();
#pragma unroll
  for (int first = 0; first < S::kOutColumns; first += 16) {
    const bool whole = S::kOutColumns - first >= 16 || threadIdx.x % 32 < 16;
    if (first < out.columns && whole && (first > 0 || out.first))
      out.y[first * k_chunks] = load_shared_u32x4(out.smem_read + first * kPixelBytes);
  }
  out.y += args.out_width * k_chunks;
}

// Even and odd columns of a row, this lane's two channels together.
template <class S>
TREFOIL_DEVICE void pack_row(const float (&d)[S::kColumns / 2], uint32_t (&row)[S::kColumns / 4]) {
#pragma unroll
  for (int j = 0; j < S::kColumns / 4; ++j) {
    const int i = j / 2 * 4 + j % 2;
    row[j] = pack_half2(d[i], d[i + 2]);
  }
}

// Pools the columns of the three rows' maximum.
template <class S>
TREFOIL_DEVICE void pool_columns(const StemArgs &args, const Place &place, const Out &out,
                                 uint32_t (&best)[S::kColumns / 4]) {
  const uint32_t lane = threadIdx.x % 32;
  if (args.conv_width % 2 == 1) {  // the last odd column is none
    const int32_t j_none = args.conv_width / 2 - place.column_first - static_cast<int32_t>(lane % 4);
#pragma unroll
    for (int j = 0; j < S::kColumns / 8; ++j)
      if (j * 4 == j_none) best[2 * j + 1] = kLowest;
  }
  uint32_t before = kLowest;  // the odd column left of the lane's first
#pragma unroll
  for (int group = 0; group < S::kOutColumns / 8; ++group) {
    uint32_t pooled[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t even = best[group * 4 + i * 2], odd = best[group * 4 + i * 2 + 1];
      const uint32_t left = __shfl_sync(0xffffffff, lane % 4 == 3 ? before : odd, (lane & 28) | ((lane + 3) & 3));
      before = odd;
      pooled[i] = activate_half2(out, max_half2(max_half2(even, odd), left));
    }
    const uint32_t pixels[2] = {__byte_perm(pooled[0], pooled[1], 0x5410), __byte_perm(pooled[0], pooled[1], 0x7632)};
    stmatrix_x2_trans(out.smem_write + group * 8 * kPixelBytes, pixels);
  }
}

template <class S> TREFOIL_DEVICE void stage_row(const Out &out, const float (&d)[S::kColumns / 2]) {
#pragma unroll
  for (int group = 0; group < S::kOutColumns / 8; ++group) {
    const float *of = d + group * 4;
    const uint32_t pixels[2] = {activate_half2(out, pack_half2(of[0], of[1])),
                                activate_half2(out, pack_half2(of[2], of[3]))};
    stmatrix_x2_trans(out.smem_write + group * 8 * kPixelBytes, pixels);
  }
}

// ---- kernel ------------------------------------------------------------------------------------------------------

template <class S> TREFOIL_DEVICE void sm90_stem(const StemArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t smem_filter = shared_address(shared_bytes);
  const uint32_t smem_rows = smem_filter + S::kFilterBytes;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place place = place_of<S>(args);
  allow_next_launch();

  // Setup: the filter, and the image rows of the first windows; those of the next row are on their way after it.
  for (int i = threadIdx.x; i < S::kFilterBytes / 16; i += kThreads)
    cp_async_16(smem_filter + i * 16, args.filter + i, true);
  cp_async_commit();
  const int32_t w = 2 * (place.column_first * (S::kPools ? 2 : 1) + static_cast<int32_t>(threadIdx.x)) - args.pad_left;
  const int32_t h = 2 * place.conv_first - args.pad_top;
  const auto valid = [&](int32_t w) { return threadIdx.x < S::kRowPairs && w >= 0 && w < args.width; };
  const int32_t at = (h * args.width + w) * 3;
  Pairs pairs{args.x + place.image * args.row_pitch_bytes,
              at,
              at,
              h,
              h,
              min(args.height, h + 2 * (place.conv_end - place.conv_first - 1) + S::kTaps),
              {valid(w), valid(w + 1)},
              smem_rows + threadIdx.x * kPairBytes};
  Bytes bytes;
  {
    uint32_t rows[S::kTaps][kWords];
#pragma unroll
    for (int row = 0; row < S::kTaps; ++row) load_row(args, pairs, rows[row]);
    load_row(args, pairs, bytes.v[0]);
    load_row(args, pairs, bytes.v[1]);
#pragma unroll
    for (int row = 0; row < S::kTaps; ++row) store_row<S>(args, pairs, rows[row], row * S::kRowPairs);
  }
  Out out;
  out.low = args.activation == kActivationNone ? kLowest : 0;
  out.high = args.activation == kActivationRelu6 ? 0x46004600u : 0x7c007c00u;  // 6 or infinity
  const uint32_t smem_staged = smem_rows + S::kRing * kPairBytes + warp * S::kStagedBytes;
  const uint32_t in_eight = S::kPools ? lane % 8 / 2 + lane % 2 * 4 : lane % 8;
  out.smem_write = smem_staged + in_eight * kPixelBytes + (lane / 8 % 2 ^ in_eight / 4) * 16;
  out.smem_read = smem_staged + lane / 2 * kPixelBytes + (lane % 2 ^ lane / 8 % 2) * 16;
  const int32_t column = place.column_first + lane / 2;
  const int32_t k_chunks = args.k_stored / kChunkElems, k_chunk = warp * 2 + lane % 2;
  const int64_t first_row = static_cast<int64_t>(place.image) * args.out_height + place.out_first;
  out.y = args.y + (first_row * args.out_width + column) * k_chunks + k_chunk;
  out.columns = k_chunk < k_chunks ? args.out_width - column : 0;
  // The first pooled column of a tile that has a left neighbour is the neighbour's last.
  out.first = !S::kPools || lane >= 2 || column == 0;
  const uint64_t filter = wgmma_operand_plain(smem_filter, kSlabChannels * 16, 128);
  const uint64_t windows = wgmma_operand_plain(smem_rows, kPairBytes, 8 * kPairBytes);
  cp_async_wait<0>();
  fence_shared_for_copies();

  // Main loop: rows of the result.
  uint32_t ring = 0;  // where the windows begin
  float d[S::kColumns / 2];
  const auto convolve = [&] { convolve_row<S>(args, pairs, bytes, filter, windows, ring, d); };
  if constexpr (S::kPools) {
    uint32_t best[S::kColumns / 4], row[S::kColumns / 4];
#pragma unroll
    for (uint32_t &b : best) b = kLowest;
    // The odd row above the first even one belongs to the first result too.
    bool above = place.conv_first % 2 == 1;
    for (int32_t p = place.conv_first / 2 * 2; p < place.conv_end; p += 2) {
      if (!above) {
        convolve();
        pack_row<S>(d, row);
#pragma unroll
        for (int j = 0; j < S::kColumns / 4; ++j) best[j] = max_half2(best[j], row[j]);
      }
      if (p + 1 < place.conv_end) {
        convolve();
        pack_row<S>(d, row);
      }
#pragma unroll
      for (int j = 0; j < S::kColumns / 4; ++j) best[j] = max_half2(best[j], row[j]);
      if (!above) {
        pool_columns<S>(args, place, out, best);
        store_pixels<S>(args, out);
      }
#pragma unroll
      for (int j = 0; j < S::kColumns / 4; ++j) best[j] = row[j];
      above = false;
    }
  } else {
    for (int32_t p = place.conv_first; p < place.conv_end; ++p) {
      convolve();
      stage_row<S>(out, d);
      store_pixels<S>(args, out);
    }
  }
}

// Purpose    y[i][u][v][k] = act(max over p, q of conv[i][p][q][k]), the maximum over 3 x 3 windows from
//            (2u - 1, 2v - 1) on, those of their pixels that conv has; or y = act(conv).
//            conv[i][p][q][k] = sum over r, s, c of n[i][2p - pad_top + r][2q - pad_left + s][c] * filter[k][r][s][c];
//            n[i][h][w][c] = x[i][h][w][c] * scale[c] + shift[c] for c < 3, and 1 for c = 3; outside the image it is
//            (0, 0, 0, 1).
// Operands   x       read   bytes [height][width][3] of an image, images row_pitch_bytes apart; both multiples of 4, as
//                           whole words are read
//            filter  read   halves [taps][pairs][64][2][4]: tap row, pair of taps along the width, output channel, tap
//                           of the pair, c; zeros beyond the taps and output channels. 16-byte aligned
//            y       write  halves [images][out_height][out_width][k_stored], 16-byte aligned, disjoint from the others
// Arithmetic n in float by one multiply-add, rounded to half; half products, float sums in a fixed order, one rounding
//            to half at the end (overflow becomes infinity). NaN stays NaN, through maximum and activation. Padded
//            channels of y are zero.
// Launch     grid images * bands * column_tiles, bands = ceil(out_height / band_rows); block and dynamic shared memory
//            kThreads and kSharedBytes. A block computes band_rows rows of kOutColumns columns; pooling blocks overlap
//            by a column and compute the row of conv above their first twice. column_tiles: one, and those of kNextTile
//            columns after the first kOutColumns. compute capability 9.0 exactly.
// Limits     k_stored a multiple of 8, up to 64. Both sizes of x, conv and y, padding, and taps below 2^14;
//            row_pitch_bytes below 2^32. y is as large as conv, or as its windows, whose last may lack one row and
//            column. Deterministic, no atomics.
// Ordering   lets its successor be launched early; is not launched early itself.
// Source     the windows' overlap in shared memory: matrix descriptors as in PTX ISA 9.0, without swizzle.
#define TREFOIL_SM90_STEM(name, taps, columns, pools, blocks)                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads, blocks)                                                \
      sm90_stem_##name(const __grid_constant__ StemArgs args) {                                                 \
    sm90_stem<Stem<taps, columns, pools>>(args);                                                                \
  }

TREFOIL_SM90_STEM(7x7_pool_112, 7, 112, true, 4)
TREFOIL_SM90_STEM(7x7_pool_64, 7, 64, true, 4)
TREFOIL_SM90_STEM(3x3_112, 3, 112, false, 4)
TREFOIL_SM90_STEM(3x3_64, 3, 64, false, 5)
