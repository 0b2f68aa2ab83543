// A network's first layers in one pass, on Hopper: bytes to activations, convolution, maximum.
//
// A pixel is stored as four halves, the fourth zero, so two neighbours are the 16 bytes that a warpgroup product reads
// at a time. With a stride of two pixels the windows of neighbouring outputs begin 16 bytes apart: the product reads
// overlapping windows straight from the image rows, and nothing is copied to make a matrix of them.
#include "common.cuh"
#include "sm90_ptx.cuh"

constexpr int kMaxMeans = 8;

struct StemArgs {
  const uint8_t *x;      // [height][width][3], images `row_pitch_bytes` apart
  const uint4 *filter;   // [taps * pairs][64] chunks of 8 halves: what 2 pixels of a tap row give each channel
  const float *bias;     // [k_stored]
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
  float mean[kMaxMeans];
  float inv_std[kMaxMeans];
};
static_assert(sizeof(StemArgs) == 176, "mirrored in sm90_stem.rs");
static_assert(offsetof(StemArgs, height) == 40 && offsetof(StemArgs, mean) == 112, "mirrored in sm90_stem.rs");

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
  static constexpr int kRowBytes = kRowPairs * kPairBytes;
  static constexpr int kRows = kTaps + 2;                      // image rows kept: a window's, and two to come
  static constexpr int kOutColumns = kPools ? kColumns / 2 : kColumns;
  static constexpr int kNextTile = kPools ? kOutColumns - 1 : kOutColumns;  // a pooled column needs its left neighbour
  static constexpr int kFilterBytes = kTaps * kPairs * kSlabChannels * 16;
  static constexpr int kStagedBytes = kOutColumns * kPixelBytes;  // of a warp
  static constexpr int kSharedBytes = kFilterBytes + kRows * kRowBytes + kThreads / 32 * kStagedBytes;

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

// A thread's pair in the image.
struct Pair {
  const uint8_t *x;  // of image row 0
  int32_t h_first;   // image row of the block's row 0
  bool valid[2];     // whether its pixels are in the image's columns
  uint32_t smem;     // of ring row 0
};

struct Bytes {
  uint32_t v[6];
  bool valid[2];
};

TREFOIL_DEVICE Bytes load_pair(const StemArgs &args, const Pair &pair, int32_t row) {
  const int32_t h = pair.h_first + row;
  const bool inside = static_cast<uint32_t>(h) < static_cast<uint32_t>(args.height);
  const uint8_t *x = pair.x + static_cast<int64_t>(h) * args.width * 3;
  Bytes bytes;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    bytes.valid[i] = inside && pair.valid[i];
#pragma unroll
    for (int c = 0; c < 3; ++c) bytes.v[i * 3 + c] = bytes.valid[i] ? __ldg(x + i * 3 + c) : 0;
  }
  return bytes;
}

// Normalises and stores; padding is zero.
template <class S>
TREFOIL_DEVICE void store_pair(const StemArgs &args, const Pair &pair, const Bytes &bytes, uint32_t ring_row) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float v[3];
#pragma unroll
    for (int c = 0; c < 3; ++c)
      v[c] = bytes.valid[i] ? normalize_byte(bytes.v[i * 3 + c], args.mean[c], args.inv_std[c]) : 0.0f;
    words[2 * i] = pack_half2(v[0], v[1]), words[2 * i + 1] = pack_half2(v[2], 0.0f);
  }
  if (threadIdx.x < S::kRowPairs)
    store_shared_u32x4(pair.smem + ring_row * S::kRowBytes, make_uint4(words[0], words[1], words[2], words[3]));
}

template <class S> TREFOIL_DEVICE uint32_t ring_row(uint32_t row) { return row < S::kRows ? row : row - S::kRows; }

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

// Writes a warp's staged pixels, 16 channels of each, to output row `row`.
template <class S>
TREFOIL_DEVICE void store_row(const StemArgs &args, const Place &place, uint32_t smem_staged, int32_t row) {
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t k_chunks = args.k_stored / kChunkElems, k_chunk = warp * 2 + lane % 2;
  uint4 *y = args.y + (static_cast<int64_t>(place.image) * args.out_height + row) * args.out_width * k_chunks + k_chunk;
  __syncwarp();
#pragma unroll
  for (int first = 0; first < S::kOutColumns; first += 16) {
    const int32_t pixel = first + lane / 2, column = place.column_first + pixel;
    // The first pooled column of a tile that has a left neighbour is the neighbour's last.
    const bool whole = !S::kPools || pixel > 0 || column == 0;
    if (pixel < S::kOutColumns && whole && column < args.out_width && k_chunk < k_chunks)
      y[static_cast<int64_t>(column) * k_chunks] =
          load_shared_u32x4(smem_staged + pixel * kPixelBytes + (lane % 2 ^ pixel / 4 % 2) * 16);
  }
}

template <class S> TREFOIL_DEVICE void sm90_stem(const StemArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t smem_filter = shared_address(shared_bytes);
  const uint32_t smem_rows = smem_filter + S::kFilterBytes;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t smem_staged = smem_rows + S::kRows * S::kRowBytes + warp * S::kStagedBytes;
  const Place place = place_of<S>(args);
  allow_next_launch();

  // Setup: the filter, and the image rows of the first windows.
  for (int i = threadIdx.x; i < S::kFilterBytes / 16; i += kThreads) cp_async_16(smem_filter + i * 16, args.filter + i, true);
  cp_async_commit();
  const int32_t w = 2 * (place.column_first * (S::kPools ? 2 : 1) + static_cast<int32_t>(threadIdx.x)) - args.pad_left;
  const auto in_width = [&](int32_t w) { return static_cast<uint32_t>(w) < static_cast<uint32_t>(args.width); };
  const Pair pair{args.x + place.image * args.row_pitch_bytes + static_cast<int64_t>(w) * 3,
                  2 * place.conv_first - args.pad_top,
                  {in_width(w) && threadIdx.x < S::kRowPairs, in_width(w + 1) && threadIdx.x < S::kRowPairs},
                  smem_rows + threadIdx.x * kPairBytes};
  {
    Bytes bytes[S::kTaps];
#pragma unroll
    for (int row = 0; row < S::kTaps; ++row) bytes[row] = load_pair(args, pair, row);
#pragma unroll
    for (int row = 0; row < S::kTaps; ++row) store_pair<S>(args, pair, bytes[row], row);
  }
  const int32_t k_lane = warp * 16 + lane / 4;  // and eight more
  const float bias[2] = {k_lane < args.k_stored ? __ldg(args.bias + k_lane) : 0.0f,
                         k_lane + 8 < args.k_stored ? __ldg(args.bias + k_lane + 8) : 0.0f};
  const uint32_t low = args.activation == kActivationNone ? kLowest : 0;
  const uint32_t high = args.activation == kActivationRelu6 ? 0x46004600u : 0x7c007c00u;  // 6 or infinity
  // This lane's row of two 8x8 matrices of 8 pixels: 8 channels, then 8 more.
  const uint32_t in_eight = S::kPools ? lane % 8 / 2 + lane % 2 * 4 : lane % 8;
  const uint32_t smem_lane = smem_staged + in_eight * kPixelBytes + (lane / 8 % 2 ^ in_eight / 4) * 16;
  const uint64_t filter_operand = wgmma_operand_plain(smem_filter, kSlabChannels * 16, 128);
  cp_async_wait<0>();
  fence_shared_for_copies();
  __syncthreads();

  // Main loop: a row of the convolution. The image rows of the next come while the products run.
  uint32_t best[S::kPools ? S::kColumns / 4 : 1];
#pragma unroll
  for (uint32_t &b : best) b = kLowest;
  uint32_t first_row = 0;  // of the windows, in the ring
  for (int32_t p = place.conv_first; p < place.conv_end; ++p) {
    const bool more = p + 1 < place.conv_end;
    Bytes bytes[2];
    const int32_t next_row = 2 * (p - place.conv_first) + S::kTaps;
    if (more) bytes[0] = load_pair(args, pair, next_row), bytes[1] = load_pair(args, pair, next_row + 1);

    float d[S::kColumns / 2];
    wgmma_fence();
#pragma unroll
    for (int r = 0; r < S::kTaps; ++r) {
      const uint32_t smem_row = smem_rows + ring_row<S>(first_row + r) * S::kRowBytes;
      const uint64_t windows = wgmma_operand_plain(smem_row, kPairBytes, 8 * kPairBytes);
#pragma unroll
      for (int s = 0; s < S::kPairs; s += 2)
        Wgmma<S::kColumns>::multiply(d, filter_operand + (r * S::kPairs + s) * kSlabChannels, windows + s, r + s > 0);
    }
    wgmma_commit();
    if (more) {
      store_pair<S>(args, pair, bytes[0], ring_row<S>(first_row + S::kTaps));
      store_pair<S>(args, pair, bytes[1], ring_row<S>(first_row + S::kTaps + 1));
      fence_shared_for_copies();
    }
    first_row = ring_row<S>(first_row + 2);
    wgmma_wait<0>();
    wgmma_use(d);

    if constexpr (S::kPools) {
      // Even and odd columns, this lane's two channels together.
      uint32_t row[S::kColumns / 4];
#pragma unroll
      for (int j = 0; j < S::kColumns / 4; ++j) {
        const int i = j / 2 * 4 + j % 2;
        row[j] = pack_half2(d[i] + bias[0], d[i + 2] + bias[1]);
        best[j] = max_half2(best[j], row[j]);
      }
      const bool last = p % 2 == 1 || p + 1 == args.conv_height;
      if (last && p >= 2 * place.out_first) {
        uint32_t before = kLowest;  // the odd column left of the lane's first
#pragma unroll
        for (int group = 0; group < S::kOutColumns / 8; ++group) {
          uint32_t pooled[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int j = group * 2 + i;
            const uint32_t even = best[2 * j], odd = best[2 * j + 1];
            const int32_t q = 2 * place.column_first + j * 8 + lane % 4 * 2 + 1;
            const uint32_t left = __shfl_sync(0xffffffff, lane % 4 == 3 ? before : odd, (lane & 28) | ((lane + 3) & 3));
            before = odd;
            const uint32_t pair_max = max_half2(even, q < args.conv_width ? odd : kLowest);
            pooled[i] = min_half2(max_half2(max_half2(pair_max, left), low), high);
          }
          const uint32_t out[2] = {__byte_perm(pooled[0], pooled[1], 0x5410), __byte_perm(pooled[0], pooled[1], 0x7632)};
          stmatrix_x2_trans(smem_lane + group * 8 * kPixelBytes, out);
        }
        store_row<S>(args, place, smem_staged, p / 2);
      }
      if (p % 2 == 1) {
#pragma unroll
        for (int j = 0; j < S::kColumns / 4; ++j) best[j] = row[j];
      }
    } else {
#pragma unroll
      for (int group = 0; group < S::kOutColumns / 8; ++group) {
        uint32_t out[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = group * 4 + i * 2;
          out[i] = min_half2(max_half2(pack_half2(d[at] + bias[i], d[at + 1] + bias[i]), low), high);
        }
        stmatrix_x2_trans(smem_lane + group * 8 * kPixelBytes, out);
      }
      store_row<S>(args, place, smem_staged, p);
    }
    __syncthreads();
  }
}

#define TREFOIL_SM90_STEM(name, taps, columns, pools, blocks)                                                   \
  extern "C" __global__ void __launch_bounds__(kThreads, blocks)                                                \
      sm90_stem_##name(const __grid_constant__ StemArgs args) {                                                 \
    sm90_stem<Stem<taps, columns, pools>>(args);                                                                \
  }

TREFOIL_SM90_STEM(7x7_pool_112, 7, 112, true, 4)
TREFOIL_SM90_STEM(7x7_pool_64, 7, 64, true, 4)
TREFOIL_SM90_STEM(3x3_112, 3, 112, false, 4)
TREFOIL_SM90_STEM(3x3_64, 3, 64, false, 5)
