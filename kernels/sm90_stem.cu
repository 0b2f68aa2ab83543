// A network's first layers in one pass, on Hopper: bytes to activations, convolution, maximum.
//
// Two neighbouring pixels are in the 16 bytes that a warpgroup product reads at a time. With a stride of two pixels the
// windows of neighbouring outputs begin 16 bytes apart: the product reads overlapping windows straight from the image
// rows, and nothing is copied to make a matrix of them. Two pixels are six halves. A window's last column has no
// neighbour in it: two of its three channels are the other two halves of the pair that the window's row begins with, and
// the third channel of all its rows are 16 bytes more.
#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kMaxMeans = 8;  // of which three are used

struct StemArgs {
  const uint8_t *x;      // [height][width][3], images `row_pitch_bytes` apart; read by words of 4
  const uint4 *filter;   // [blocks][64] chunks of 8 halves, then [64] floats of bias
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
  static constexpr int kPairs = kTaps / 2;                     // of a window's row, but for its last column
  static constexpr int kRowPairs = kColumns + kPairs - 1;      // of an image row
  static constexpr int kWarpPairs = 32 - kPairs;               // that a warp stores of a row: it sees what is ahead
  static constexpr int kRingRows = (kTaps + 3) / 2 * 2;        // kept: a window's, and two to come; an even number
  static constexpr int kRing = kRingRows * kRowPairs;          // pairs
  static constexpr int kBlocks = kTaps * kPairs + 1;           // of 8 terms: a window's pairs, and its last column's rest
  static constexpr int kRestWords = kTaps / 2 + 1;             // of that
  static constexpr int kOutColumns = kPools ? kColumns / 2 : kColumns;
  static constexpr int kNextTile = kPools ? kOutColumns - 1 : kOutColumns;  // a pooled column needs its left neighbour
  static constexpr int kFilterBytes = kBlocks * kSlabChannels * 16;
  static constexpr int kStagedBytes = kOutColumns * kPixelBytes;  // of a warp
  static constexpr int kSharedBytes = kFilterBytes + (kRing + 2 * kColumns) * kPairBytes + kThreads / 32 * kStagedBytes;

  static_assert(kTaps % 2 == 1 && kBlocks % 2 == 0, "a last column, and whole products");
  static_assert(kRowPairs <= kWarpPairs * (kThreads / 32), "a thread for each pair of pixels");
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
  bool stores;       // whether the pair is the thread's to store
  bool has_window;   // whether a window begins with it
  uint32_t smem;     // of the ring's first row
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

// Normalises and stores; padding is zero. Gives the third channel of the first pixel behind the window's pairs.
template <class S>
TREFOIL_DEVICE uint32_t store_row(const StemArgs &args, Pairs &pairs, const uint32_t (&loaded)[kWords], uint32_t ring) {
  const bool inside = pairs.h_store >= 0 && pairs.h_store < pairs.h_end;
  const uint32_t shift = pairs.at_store * 8;  // modulo 32
  const uint32_t bytes[2] = {__funnelshift_r(loaded[0], loaded[1], shift), __funnelshift_r(loaded[1], loaded[2], shift)};
  float v[6];
#pragma unroll
  for (int i = 0; i < 6; ++i) {
    const uint32_t x = bytes[i / 4] >> i % 4 * 8 & 0xff;
    v[i] = fmaf(static_cast<float>(x), args.scale[i % 3], args.shift[i % 3]);
  }
  const uint32_t masks[2] = {inside && pairs.valid[0] ? ~0u : 0, inside && pairs.valid[1] ? ~0u : 0};
  const uint32_t words[3] = {pack_half2(v[0], v[1]) & masks[0],
                             pack_half2(v[2], v[3]) & __byte_perm(masks[0], masks[1], 0x5410),
                             pack_half2(v[4], v[5]) & masks[1]};
  const uint32_t ahead[2] = {__shfl_down_sync(0xffffffff, words[0], S::kPairs),
                             __shfl_down_sync(0xffffffff, words[1], S::kPairs)};
  if (pairs.stores)
    store_shared_u32x4(pairs.smem + ring * kPairBytes, make_uint4(words[0], words[1], words[2], ahead[0]));
  pairs.at_store += args.width * 3;
  ++pairs.h_store;
  return ahead[1];
}

// To one of two places behind the ring.
template <class S> TREFOIL_DEVICE void store_rest(const Pairs &pairs, const Rest<S> &rest, uint32_t place) {
  const auto word = [&](int i) { return i < S::kRestWords ? rest.v[i] : 0; };
  if (pairs.has_window)
    store_shared_u32x4(pairs.smem + (S::kRing + place * S::kColumns) * kPairBytes,
                       make_uint4(word(0), word(1), word(2), word(3)));
}

// A place in the ring, in pairs, that may have run over its end once.
template <class S> TREFOIL_DEVICE uint32_t wrap(uint32_t ring) { return ring < S::kRing ? ring : ring - S::kRing; }

// ---- a row of the convolution ------------------------------------------------------------------------------------

// What the rows of the convolution go on with.
template <class S> struct Rows {
  Pairs pairs;
  Bytes bytes;     // loaded for the next row
  Rest<S> rest;    // of this row's windows
  uint32_t place;  // where that is stored
  uint32_t ring;   // where the windows begin: an even row
};

// A block of terms of two rows, from where the first begins, in pairs.
template <class S> TREFOIL_DEVICE int block_at(int block) { return block / S::kPairs * S::kRowPairs + block % S::kPairs; }

// The sums of one row. While the products run, the image rows that were loaded before are stored for the next row, and
// those for the one after it are loaded.
template <class S>
TREFOIL_DEVICE void convolve_row(const StemArgs &args, Rows<S> &rows, uint64_t filter, uint64_t windows,
                                 float (&d)[S::kColumns / 2]) {
  const uint32_t ring = rows.ring;
  __syncthreads();
  wgmma_fence();
  // Two rows are never apart in the ring. A product reads two blocks, the second so many pairs from the first.
#pragma unroll
  for (int r = 0; r < S::kTaps; r += 2) {
    const uint32_t at = wrap<S>(ring + r * S::kRowPairs);
    const int blocks = r + 1 < S::kTaps ? 2 * S::kPairs : S::kPairs + 1;
#pragma unroll
    for (int block = 0; block < blocks; block += 2) {
      const int first = block_at<S>(block);
      const bool is_last = r + 1 == S::kTaps && block + 1 == S::kPairs;
      const uint32_t apart =
          is_last ? S::kRing + rows.place * S::kColumns - at - first : block_at<S>(block + 1) - first;
      Wgmma<S::kColumns>::multiply(d, filter + (r * S::kPairs + block) * kSlabChannels,
                                   windows + at + first + (static_cast<uint64_t>(apart) << 16), r + block > 0);
    }
  }
  wgmma_commit();
  const uint32_t before_last = store_row<S>(args, rows.pairs, rows.bytes.v[0], wrap<S>(ring + S::kTaps * S::kRowPairs));
  const uint32_t last = store_row<S>(args, rows.pairs, rows.bytes.v[1], wrap<S>(ring + (S::kTaps + 1) * S::kRowPairs));
  rows.rest.advance(before_last, last);
  rows.place ^= 1;
  store_rest<S>(rows.pairs, rows.rest, rows.place);
  fence_shared_for_copies();
  load_row(args, rows.pairs, rows.bytes.v[0]);
  load_row(args, rows.pairs, rows.bytes.v[1]);
  rows.ring = wrap<S>(ring + 2 * S::kRowPairs);
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
  float2 bias;          // of its channels: one, and the eighth after it
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
TREFOIL_DEVICE void pack_row(const Out &out, const float (&d)[S::kColumns / 2], uint32_t (&row)[S::kColumns / 4]) {
#pragma unroll
  for (int j = 0; j < S::kColumns / 4; ++j) {
    const int i = j / 2 * 4 + j % 2;
    row[j] = pack_half2(d[i] + out.bias.x, d[i + 2] + out.bias.y);
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
    const uint32_t pixels[2] = {activate_half2(out, pack_half2(of[0] + out.bias.x, of[1] + out.bias.x)),
                                activate_half2(out, pack_half2(of[2] + out.bias.y, of[3] + out.bias.y))};
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
  const int32_t pair = warp * S::kWarpPairs + lane;
  const int32_t w = 2 * (place.column_first * (S::kPools ? 2 : 1) + pair) - args.pad_left;
  const int32_t h = 2 * place.conv_first - args.pad_top;
  const auto valid = [&](int32_t w) { return pair <= S::kRowPairs && w >= 0 && w < args.width; };
  const int32_t at = (h * args.width + w) * 3;
  Rows<S> rows{{args.x + place.image * args.row_pitch_bytes,
                at,
                at,
                h,
                h,
                min(args.height, h + 2 * (place.conv_end - place.conv_first - 1) + S::kTaps),
                {valid(w), valid(w + 1)},
                lane < S::kWarpPairs && pair < S::kRowPairs,
                lane < S::kWarpPairs && pair < S::kColumns,
                smem_rows + pair * kPairBytes},
               {},
               {},
               0,
               0};
  {
    uint32_t first[S::kTaps][kWords];
#pragma unroll
    for (int row = 0; row < S::kTaps; ++row) load_row(args, rows.pairs, first[row]);
    load_row(args, rows.pairs, rows.bytes.v[0]);
    load_row(args, rows.pairs, rows.bytes.v[1]);
    rows.rest.v[S::kRestWords - 1] = store_row<S>(args, rows.pairs, first[0], 0);
#pragma unroll
    for (int row = 1; row < S::kTaps; row += 2) {
      const uint32_t before_last = store_row<S>(args, rows.pairs, first[row], row * S::kRowPairs);
      rows.rest.advance(before_last, store_row<S>(args, rows.pairs, first[row + 1], (row + 1) * S::kRowPairs));
    }
    store_rest<S>(rows.pairs, rows.rest, rows.place);
  }
  Out out;
  const float *bias = reinterpret_cast<const float *>(args.filter + S::kFilterBytes / 16) + warp * 16 + lane / 4;
  out.bias = make_float2(__ldg(bias), __ldg(bias + 8));
  out.low = args.activation == kActivationNone ? kLowest : 0;
  out.high = args.activation == kActivationRelu6 ? 0x46004600u : 0x7c007c00u;  // 6 or infinity
  const uint32_t smem_staged = smem_rows + (S::kRing + 2 * S::kColumns) * kPairBytes + warp * S::kStagedBytes;
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
  const uint64_t windows = wgmma_operand_plain(smem_rows, 0, 8 * kPairBytes);
  cp_async_wait<0>();
  fence_shared_for_copies();

  // Main loop: rows of the result.
  float d[S::kColumns / 2];
  const auto convolve = [&] { convolve_row<S>(args, rows, filter, windows, d); };
  if constexpr (S::kPools) {
    uint32_t best[S::kColumns / 4], row[S::kColumns / 4];
#pragma unroll
    for (uint32_t &b : best) b = kLowest;
    // The odd row above the first even one belongs to the first result too.
    bool above = place.conv_first % 2 == 1;
    for (int32_t p = place.conv_first / 2 * 2; p < place.conv_end; p += 2) {
      if (!above) {
        convolve();
        pack_row<S>(out, d, row);
#pragma unroll
        for (int j = 0; j < S::kColumns / 4; ++j) best[j] = max_half2(best[j], row[j]);
      }
      if (p + 1 < place.conv_end) {
        convolve();
        pack_row<S>(out, d, row);
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
//            conv[i][p][q][k] = sum over r, s, c of n[i][2p - pad_top + r][2q - pad_left + s][c] * filter[k][r][s][c]
//            + bias[k]; n[i][h][w][c] = x[i][h][w][c] * scale[c] + shift[c], and 0 outside the image.
// Operands   x       read   bytes [height][width][3] of an image, images row_pitch_bytes apart; both multiples of 4, as
//                           whole words are read
//            filter  read   halves [blocks][64][8], 16-byte aligned: block r * (taps / 2) + s / 2 has terms s % 2 * 3 + c
//                           of tap row r, for s but the last; terms 6 and 7 of its first are c = 0 and 1 of the last s;
//                           the last block has terms r, c = 2 of that. The rest is zeros, as for channels beyond the
//                           output's. Then 64 floats of bias
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
