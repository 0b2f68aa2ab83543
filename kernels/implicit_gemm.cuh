// Convolution as a matrix product that never materialises its left operand: the main loop of conv2d_fprop.cu and
// conv2d_s8.cu.
//
//   sum[m][n] = sum over k of X[m][k] * F[n][k]
//
// GEMM M = output pixels (image, p, q), N = output channels, K = (r, s, c). Both operands have K contiguous. The unit
// of every copy is a chunk: 16 bytes, 8 channels of halves or 16 of bytes. One thread copies the same chunk column of every k tile, so it
// keeps one position (r, s, c) and advances it by mixed-radix addition: no division in the main loop, and a k tile
// may straddle filter taps wherever it likes.
#pragma once

#include "common.cuh"

// A convolution whose products go into the sums. Mirrored in implicit_gemm.rs.
struct GemmSource {
  const uint4 *x;         // [images][height][width][c_chunks] chunks
  const uint4 *filter;    // [k_stored][filter_h][filter_w][c_chunks] chunks
  int32_t height;
  int32_t width;
  int32_t c_chunks;
  int32_t filter_h;
  int32_t filter_w;
  int32_t stride_h;
  int32_t stride_w;
  int32_t pad_top;
  int32_t pad_left;
  int32_t dilation_h;
  int32_t dilation_w;
  int32_t k_chunks;       // filter_h * filter_w * c_chunks; 0 if there is no such source
  int32_t step_r;         // one k tile as a mixed-radix number: step_r * (S * C) + step_s * C + step_c chunks
  int32_t step_s;
  int32_t step_c;
  int32_t reserved;
};
static_assert(sizeof(GemmSource) == 80, "mirrored in implicit_gemm.rs");

// The pixels and channels of the result. Mirrored in implicit_gemm.rs.
struct GemmResult {
  int32_t m_pixels;       // images * out_pixels
  int32_t out_pixels;     // P * Q
  int32_t out_width;      // Q
  int32_t k_stored;
  FastDivide by_out_pixels;
  FastDivide by_out_width;
  FastDivide by_n_tiles;
};
static_assert(sizeof(GemmResult) == 40, "mirrored in implicit_gemm.rs");

// Pixels and filters of halves, whose products are summed in floats.
struct Halves {
  using Sum = float;
  static constexpr int kBytes = 2;
  static __device__ __forceinline__ void multiply(Sum (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_m16n8k16(d, a, b0, b1);
  }
};

// Everything that follows from a tile's shape. `kMinBlocks` is the occupancy that registers are limited for, `Of` the type
// of pixels and filters, and `kChannelBytes` what each output channel has in shared memory: its bias, for bytes its scale.
template <int kTileM_, int kTileN_, int kTileK_, int kWarpsM, int kWarpsN, int kStages_, int kMinBlocks_,
          class Of_ = Halves, int kChannelBytes = 4>
struct GemmTile {
  using Of = Of_;
  using Sum = typename Of::Sum;
  static constexpr int kTileM = kTileM_, kTileN = kTileN_, kTileK = kTileK_;
  static constexpr int kStages = kStages_, kMinBlocks = kMinBlocks_;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;
  static constexpr int kWarpRows = kWarpsM;
  static constexpr int kWarpM = kTileM / kWarpsM, kWarpN = kTileN / kWarpsN;
  static constexpr int kRowBytes = kTileK * Of::kBytes;
  static constexpr int kFragsM = kWarpM / 16, kFragsN = kWarpN / 8, kSteps = kRowBytes / 32;

  // Operands in shared memory: [row][k chunk], 16-byte chunks swizzled.
  static constexpr int kChunkChannels = 16 / Of::kBytes;
  static constexpr int kRowChunks = kRowBytes / 16;
  static constexpr int kRowsPerPass = kThreads / kRowChunks;
  static constexpr int kPassesX = kTileM / kRowsPerPass, kPassesF = kTileN / kRowsPerPass;
  static constexpr int kBytesX = kTileM * kRowBytes, kBytesF = kTileN * kRowBytes;
  static constexpr int kStageBytes = kBytesX + kBytesF;

  // The output tile, [row][channel chunk], swizzled: it takes over the stages that the main loop freed last but one
  // and earlier, `kOutRows` rows in each.
  static constexpr int kOutRowChunks = kTileN / kChunkChannels;
  static constexpr int kOutRowBytes = kTileN * Of::kBytes;
  static constexpr int kOutStages = kTileM * kOutRowBytes <= kStageBytes ? 1 : 2;
  static constexpr int kOutRows = kTileM / kOutStages;
  static constexpr int kOutRowsPerPass = kThreads / kOutRowChunks;

  static constexpr int kSharedBytes = kStages * kStageBytes + kTileN * kChannelBytes;

  static_assert(kRowChunks == 4 || kRowChunks == 8, "the swizzles below");
  static_assert(kOutRowChunks == 4 || kOutRowChunks % 8 == 0, "the swizzles below");
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "whole fragments");
  static_assert(kRowsPerPass % 8 == 0 && kTileM % kRowsPerPass == 0 && kTileN % kRowsPerPass == 0, "whole passes");
  static_assert(kOutRows * kOutRowBytes <= kStageBytes && kOutStages <= kStages - 1, "the output tile fits");
  static_assert(kOutRows % kWarpM == 0 && kOutRows % kOutRowsPerPass == 0, "an output stage holds whole warps");
  static_assert(kStageBytes % 128 == 0, "swizzled addresses are xor-ed");
};

// Where chunk `chunk` of row `row` lies in its row of `kChunks` chunks, so that eight rows at one chunk column touch
// all 32 banks.
template <int kChunks> TREFOIL_DEVICE uint32_t swizzle(uint32_t row, uint32_t chunk) {
  return kChunks == 4 ? chunk ^ ((row >> 1) & 3) : chunk ^ (row & 7);
}

// The first pixel and output channel of this block's tile. Channel tiles of one pixel tile run side by side, so that
// all but the first read the pixels from the L2 cache.
struct TileOrigin {
  int32_t m, n;
};

template <class Tile> TREFOIL_DEVICE TileOrigin tile_origin(const GemmResult &result) {
  const uint32_t block = block_idx_x();
  const uint32_t m_tile = divide(block, result.by_n_tiles);
  const uint32_t n_tiles = (result.k_stored + Tile::kTileN - 1) / Tile::kTileN;
  return {static_cast<int32_t>(m_tile * Tile::kTileM), static_cast<int32_t>((block - m_tile * n_tiles) * Tile::kTileN)};
}

// ---- load ----------------------------------------------------------------------------------------------------

// A pixel position (h, w) in one word, h in the upper half, both biased by 2^14 so that a sum of positions never
// carries from one half to the other: coordinates, padding and image sizes stay below 2^14.
constexpr uint32_t kPositionBias = 0x4000;
constexpr uint32_t kNowhere = kPositionBias;  // so far above the image that no tap reaches it

TREFOIL_DEVICE uint32_t pack_position(int32_t h, int32_t w) {
  return (static_cast<uint32_t>(h) + kPositionBias) << 16 | (static_cast<uint32_t>(w) + kPositionBias);
}

// Whether a position, moved by a tap, is inside an image: bit 15 of each half tells whether a sum reached 2^15.
struct InsideTest {
  uint32_t lower, upper;

  // For a tap at (tap_h, tap_w), or for none at all: no position reaches 2^15 by itself.
  static __device__ __forceinline__ InsideTest make(int32_t height, int32_t width, int32_t tap_h, int32_t tap_w,
                                                    bool exists) {
    const uint32_t tap = (static_cast<uint32_t>(tap_h) << 16) + tap_w;
    const uint32_t size = (static_cast<uint32_t>(height) << 16) + width;
    return {exists ? 0x40004000u + tap : 0, 0x40004000u - size + tap};
  }

  __device__ __forceinline__ bool operator()(uint32_t position) const {
    return ((position + lower) & ~(position + upper) & 0x80008000u) == 0x80008000u;
  }
};

// One thread's share of the operand copies: one chunk column, every kRowsPerPass-th row.
template <class Tile> struct OperandLoader {
  int32_t pixel_chunk[Tile::kPassesX];  // chunk index of each pixel's tap (0, 0); negative above the first image
  uint32_t position[Tile::kPassesX];    // where that tap lies, packed
  int32_t filter_chunk;                 // chunk index of the next chunk of the first filter row
  int32_t filter_rows_left;             // filter rows from the first one to the end of the tensor
  int32_t r, s, c;                      // position of this thread's chunk column in the next k tile, c in chunks
  uint32_t shared_offset;               // of the first row's chunk in an operand tile

  static __device__ __forceinline__ OperandLoader start(const GemmSource &source, const GemmResult &result) {
    OperandLoader self;
    const TileOrigin origin = tile_origin<Tile>(result);
    const int32_t row = threadIdx.x / Tile::kRowChunks;
    const int32_t column = threadIdx.x % Tile::kRowChunks;
    self.shared_offset = row * Tile::kRowBytes + swizzle<Tile::kRowChunks>(row, column) * 16;
#pragma unroll
    for (int pass = 0; pass < Tile::kPassesX; ++pass)
      self.locate_pixel(source, result, pass, origin.m + row + pass * Tile::kRowsPerPass);
    self.c = column % source.c_chunks;
    self.s = column / source.c_chunks % source.filter_w;
    self.r = column / source.c_chunks / source.filter_w;
    self.filter_rows_left = result.k_stored - (origin.n + row);
    self.filter_chunk = (origin.n + row) * source.k_chunks + column;
    return self;
  }

  __device__ __forceinline__ void locate_pixel(const GemmSource &source, const GemmResult &result, int pass,
                                               int32_t m) {
    const int32_t image = divide(m, result.by_out_pixels);
    const int32_t in_image = m - image * result.out_pixels;
    const int32_t p = divide(in_image, result.by_out_width);
    const int32_t q = in_image - p * result.out_width;
    const int32_t h = p * source.stride_h - source.pad_top;
    const int32_t w = q * source.stride_w - source.pad_left;
    const bool exists = m < result.m_pixels;
    pixel_chunk[pass] = exists ? ((image * source.height + h) * source.width + w) * source.c_chunks : 0;
    position[pass] = exists ? pack_position(h, w) : kNowhere;
  }

  // Copies this thread's chunks of the pixels; taps outside the image and k past the end become zeros.
  __device__ __forceinline__ void load_x(const GemmSource &source, uint32_t smem_x) const {
    const int32_t tap_h = r * source.dilation_h, tap_w = s * source.dilation_w;
    const int32_t tap_chunk = (tap_h * source.width + tap_w) * source.c_chunks + c;
    const InsideTest inside = InsideTest::make(source.height, source.width, tap_h, tap_w, r < source.filter_h);
#pragma unroll
    for (int pass = 0; pass < Tile::kPassesX; ++pass) {
      const bool valid = inside(position[pass]);
      const uint32_t chunk = pixel_chunk[pass] + tap_chunk;  // meaningless and unused if not valid
      cp_async_16(smem_x + shared_offset + pass * Tile::kRowsPerPass * Tile::kRowBytes, source.x + chunk, valid);
    }
  }

  // Copies this thread's chunks of the filters; rows and k past the end become zeros.
  __device__ __forceinline__ void load_filter(const GemmSource &source, uint32_t smem_f) const {
    const bool in_filter = r < source.filter_h;
    const int32_t pass_chunks = Tile::kRowsPerPass * source.k_chunks;
#pragma unroll
    for (int pass = 0; pass < Tile::kPassesF; ++pass) {
      const bool valid = in_filter && pass * Tile::kRowsPerPass < filter_rows_left;
      const uint32_t chunk = filter_chunk + pass * pass_chunks;
      cp_async_16(smem_f + shared_offset + pass * Tile::kRowsPerPass * Tile::kRowBytes, source.filter + chunk, valid);
    }
  }

  // Moves to the next k tile.
  __device__ __forceinline__ void advance(const GemmSource &source) {
    filter_chunk += Tile::kRowChunks;
    c += source.step_c;
    s += source.step_s;
    r += source.step_r;
    if (c >= source.c_chunks) c -= source.c_chunks, ++s;
    if (s >= source.filter_w) s -= source.filter_w, ++r;
  }
};

// The output tile's place in shared memory: stage `first_stage` and, where it needs two, the one after it.
template <class Tile> struct OutTile {
  uint32_t smem;
  uint32_t first_stage;

  // Address of the chunk `chunk` of row `row`.
  __device__ __forceinline__ uint32_t chunk_address(uint32_t row, uint32_t chunk) const {
    uint32_t stage = first_stage + row / Tile::kOutRows;
    if (stage >= Tile::kStages) stage -= Tile::kStages;
    return smem + stage * Tile::kStageBytes + row % Tile::kOutRows * Tile::kOutRowBytes +
           swizzle<Tile::kOutRowChunks>(row, chunk) * 16;
  }

  // Calls `visit(shared address, chunk index)` for this thread's chunks of rows [first_row, first_row + rows) of a tensor
  // of y's shape whose pixels are `pitch` chunks apart, with whether the chunk exists.
  template <class Visit>
  __device__ __forceinline__ void for_chunks(const GemmResult &result, TileOrigin origin, uint32_t first_row,
                                             int32_t pitch, Visit visit) const {
    const uint32_t chunk = threadIdx.x % Tile::kOutRowChunks;
    const int32_t k_stored_chunks = result.k_stored / Tile::kChunkChannels;
    const int32_t n_chunk = origin.n / Tile::kChunkChannels + static_cast<int32_t>(chunk);
#pragma unroll
    for (int pass = 0; pass < Tile::kOutRows / Tile::kOutRowsPerPass; ++pass) {
      const uint32_t row = first_row + pass * Tile::kOutRowsPerPass + threadIdx.x / Tile::kOutRowChunks;
      const int32_t m = origin.m + static_cast<int32_t>(row);
      const bool exists = m < result.m_pixels && n_chunk < k_stored_chunks;
      visit(chunk_address(row, chunk), static_cast<int64_t>(m) * pitch + n_chunk, exists);
    }
  }
};

// ---- main loop -------------------------------------------------------------------------------------------------

// One warp's fragments of one k step.
template <class Tile> struct Fragments {
  uint32_t a[Tile::kFragsM][4];
  uint32_t b[Tile::kFragsN / 2][4];

  // `smem_a`, `smem_b`: this lane's ldmatrix rows of the stage, already swizzled for step 0.
  __device__ __forceinline__ void load(uint32_t smem_a, uint32_t smem_b, int step) {
    // Two chunks a step: the xor reaches only the chunk bits, because rows and stages are multiples of the row size.
    const uint32_t flip = step * 32;
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i) ldmatrix_x4(a[i], (smem_a ^ flip) + i * 16 * Tile::kRowBytes);
#pragma unroll
    for (int i = 0; i < Tile::kFragsN / 2; ++i) ldmatrix_x4(b[i], (smem_b ^ flip) + i * 16 * Tile::kRowBytes);
  }

  __device__ __forceinline__ void multiply(typename Tile::Sum (&acc)[Tile::kFragsM][Tile::kFragsN][4]) const {
#pragma unroll
    for (int i = 0; i < Tile::kFragsM; ++i)
#pragma unroll
      for (int j = 0; j < Tile::kFragsN; ++j)
        Tile::Of::multiply(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
  }
};

template <class Tile> TREFOIL_DEVICE int32_t next_stage(int32_t stage) {
  return stage + 1 == Tile::kStages ? 0 : stage + 1;
}

// The kernel body. `Args` has sources, a result and the addresses of residual and y; `Epilogue` loads what each channel
// has, and makes results of sums.
template <class Tile, class Args, class Epilogue> TREFOIL_DEVICE void implicit_gemm(const Args &args) {
  constexpr int kSources = sizeof(Args::source) / sizeof(GemmSource);
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t smem = shared_address(shared_bytes);
  const uint32_t smem_channels = smem + Tile::kStages * Tile::kStageBytes;
  const auto k_tiles_of = [&](int source) {
    return (args.source[source].k_chunks + Tile::kRowChunks - 1) / Tile::kRowChunks;
  };

  // Setup: this thread's copies, this lane's fragments.
  const int32_t first_k_tiles = k_tiles_of(0);
  const int32_t k_tiles = kSources == 1 ? first_k_tiles : first_k_tiles + k_tiles_of(kSources - 1);
  const uint32_t warp_idx = threadIdx.x / 32, lane_idx = threadIdx.x % 32;
  const uint32_t warp_row = warp_idx % Tile::kWarpRows * Tile::kWarpM;
  const uint32_t warp_col = warp_idx / Tile::kWarpRows * Tile::kWarpN;

  auto loader = OperandLoader<Tile>::start(args.source[0], args.result);
  int loads = 0;  // the source that is being loaded
  const bool has_residual = args.residual != nullptr;

  // ldmatrix rows. A: lanes 0-15 rows 0-15 of chunk 0, lanes 16-31 of chunk 1. B: lanes 0-7 rows 0-7 of chunk 0,
  // 8-15 of chunk 1, 16-31 the same for rows 8-15.
  const uint32_t a_row = warp_row + lane_idx % 16, a_chunk = lane_idx / 16;
  const uint32_t b_row = warp_col + lane_idx % 8 + lane_idx / 16 * 8, b_chunk = lane_idx / 8 % 2;
  const uint32_t lane_a = a_row * Tile::kRowBytes + swizzle<Tile::kRowChunks>(a_row, a_chunk) * 16;
  const uint32_t lane_b =
      Tile::kBytesX + b_row * Tile::kRowBytes + swizzle<Tile::kRowChunks>(b_row, b_chunk) * 16;

  typename Tile::Sum acc[Tile::kFragsM][Tile::kFragsN][4];  // [m fragment][n fragment][register]
#pragma unroll
  for (int i = 0; i < Tile::kFragsM; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kFragsN; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0;

  // Load: after the last k tile come kOutStages more "tiles", the residual's, into the stages of the output tile.
  const auto load_x = [&](int32_t k_tile, int32_t stage) {
    if (kSources > 1 && k_tile == first_k_tiles && k_tile < k_tiles) {
      loads = kSources - 1;
      loader = OperandLoader<Tile>::start(args.source[kSources - 1], args.result);
    }
    if (k_tile < k_tiles) loader.load_x(args.source[loads], smem + stage * Tile::kStageBytes);
  };
  const auto load_filter_and_commit = [&](int32_t k_tile, int32_t stage) {
    if (k_tile < k_tiles) {
      loader.load_filter(args.source[loads], smem + stage * Tile::kStageBytes + Tile::kBytesX);
      loader.advance(args.source[loads]);
    } else if (has_residual && k_tile < k_tiles + Tile::kOutStages) {
      const uint32_t first_row = (k_tile - k_tiles) * Tile::kOutRows;
      const OutTile<Tile> out{smem, static_cast<uint32_t>(k_tiles) % Tile::kStages};
      const auto load = [&](uint32_t address, int64_t chunk, bool exists) {
        cp_async_16(address, args.residual + (exists ? chunk : 0), exists);
      };
      const int32_t pitch = args.result.k_stored / Tile::kChunkChannels;
      out.for_chunks(args.result, tile_origin<Tile>(args.result), first_row, pitch, load);
    }
    cp_async_commit();
  };

#pragma unroll
  for (int i = 0; i < Tile::kStages - 1; ++i) load_x(i, i), load_filter_and_commit(i, i);
  for (int32_t i = threadIdx.x; i < Tile::kTileN; i += Tile::kThreads) {
    const int32_t n = tile_origin<Tile>(args.result).n + i;
    Epilogue::template load_channel<Tile>(args, smem_channels, i, n, n < args.result.k_stored);
  }

  // Main loop: fragments of the next step are read while the tensor cores work on this one. The barrier before the
  // last step proves both that the next tile has come and that nobody reads this one again.
  Fragments<Tile> fragments[2];
  cp_async_wait<Tile::kStages - 2>();
  __syncthreads();
  fragments[0].load(smem + lane_a, smem + lane_b, 0);
  int32_t stage = 0;
  for (int32_t k_tile = 0; k_tile < k_tiles; ++k_tile) {
    const int32_t load_tile = k_tile + Tile::kStages - 1;
    const int32_t load_stage = stage == 0 ? Tile::kStages - 1 : stage - 1;  // k_tile - 1 lay there
#pragma unroll
    for (int step = 0; step < Tile::kSteps; ++step) {
      if (step == Tile::kSteps - 1) {
        cp_async_wait<Tile::kStages - 2>();
        __syncthreads();
        stage = next_stage<Tile>(stage);
      }
      const uint32_t smem_stage = smem + stage * Tile::kStageBytes;
      if (step == 0) load_x(load_tile, load_stage);
      if (step == (Tile::kSteps > 2 ? 1 : 0)) load_filter_and_commit(load_tile, load_stage);
      fragments[(step + 1) % 2].load(smem_stage + lane_a, smem_stage + lane_b, (step + 1) % Tile::kSteps);
      fragments[step % 2].multiply(acc);
    }
  }
  cp_async_wait<0>();
  __syncthreads();

  // Epilogue: results take the place of the residual in shared memory.
  const OutTile<Tile> out{smem, static_cast<uint32_t>(k_tiles) % Tile::kStages};
  Epilogue::template finish<Tile>(args, acc, out, smem_channels, warp_row + lane_idx / 4, warp_col);
  __syncthreads();
#pragma unroll
  for (int part = 0; part < Tile::kOutStages; ++part) {
    const auto store = [&](uint32_t address, int64_t chunk, bool exists) {
      if (exists) args.y[chunk] = load_shared_u32x4(address);
    };
    out.for_chunks(args.result, tile_origin<Tile>(args.result), part * Tile::kOutRows, args.y_chunks, store);
  }
}
