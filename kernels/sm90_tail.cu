// A classifier in one launch, on Hopper: mean over the pixels, fully connected layer, rows of the result.
//
// A cluster has some images to itself. Its blocks share the channels of the mean, and give each other what they have
// of it; then they share the outputs, each over all channels; then each has the logits of some of the images, and
// writes their rows. So nothing between the layers is in global memory, and no cluster waits for another.
//
// The filters do not fit the shared memory, and what takes the time is their way to it: from the start on each lane
// copies the operands of its own products into its own places there, as many ahead as there is room.
#include "emit.cuh"
#include "sm90_tail.cuh"

struct TailArgs {
  const uint8_t *x;     // [images][pixels][c_chunks] chunks of 8 halves or bytes
  const uint4 *filter;  // [k_stored][c_chunks] chunks of halves
  const float *bias;    // [k_stored]
  uint8_t *y;           // rows, `row_pitch_bytes` apart
  uint64_t row_pitch_bytes;
  int32_t images;
  int32_t pixels;
  int32_t c_chunks;
  int32_t channels;        // outputs that count
  int32_t k_stored;
  int32_t cluster_images;  // images of a cluster
  int32_t share_chunks;    // of a block's share of the mean
  int32_t share_units;     // units of outputs of a block
  int32_t rows;            // what a row of y is: kRowsLogits and so on
  int32_t top_k;
  FastDivide by_share_chunks;
  float scale;             // what sums of bytes are multiplied by
  uint32_t flip;           // what makes four bytes unsigned: 0x80808080 if they are signed, else 0
};
static_assert(sizeof(TailArgs) == 96, "mirrored in sm90_tail.rs");
static_assert(offsetof(TailArgs, images) == 40 && offsetof(TailArgs, by_share_chunks) == 80, "mirrored in sm90_tail.rs");

enum : int32_t { kRowsLogits = 0, kRowsSoftmax = 1, kRowsTopK = 2 };

constexpr int kUnit = 32;                    // outputs that a warp computes at a time: two fragments of 16
constexpr int kLoads = kUnit / 8;            // chunks of them that a lane has, of its 8 channels
constexpr int kGroupChunks = 4;              // that the lanes of an output load together: 32 channels
constexpr int kTurnChunks = kWarps * kGroupChunks;  // of all warps
constexpr int kPlaceBytes = kThreads * 16;   // a chunk of every thread

// For up to so many images of a cluster: fragments of 8. What their pixels are: halves, or bytes.
template <int kImages_, int kStages_, class Pixels_> struct Tail {
  using Pixels = Pixels_;
  static constexpr int kImages = kImages_, kFrags = kImages / 8;
  static constexpr int kStages = kStages_;  // units times groups of channels in flight
  static constexpr int kRingBytes = kStages * kLoads * kPlaceBytes;
  static constexpr int kUnitSums = kUnit * kImages;
  // Partial sums of the mean, later those of a unit.
  static constexpr int kSumsBytes = kWarps * kUnitSums * 4 > kMeanBytes ? kWarps * kUnitSums * 4 : kMeanBytes;
  static_assert(kImages % 8 == 0, "whole fragments");
};

// Where a block works, and its shared memory: ring, sums, means [images][mean_pitch] chunks, logits [rows][k_stored].
struct Place {
  int32_t rank, blocks;  // of the cluster
  int32_t image_first, images;
  int32_t k_first, k_end;  // its outputs
  int32_t mean_pitch;      // chunks: what the lanes of a fragment read lies in different banks
  uint32_t smem_ring, smem_sums, smem_means, smem_logits;
};

template <class T> TREFOIL_DEVICE Place place_of(const TailArgs &args, uint32_t smem) {
  Place place;
  place.rank = cluster_rank(), place.blocks = cluster_blocks();
  place.image_first = static_cast<int32_t>(blockIdx.x) / place.blocks * args.cluster_images;
  place.images = min(args.cluster_images, args.images - place.image_first);
  place.k_first = place.rank * args.share_units * kUnit;
  place.k_end = min(place.k_first + args.share_units * kUnit, args.k_stored);
  place.mean_pitch = (args.c_chunks + 7) / 8 * 8 + 4;
  place.smem_ring = smem;
  place.smem_sums = smem + T::kRingBytes;
  place.smem_means = place.smem_sums + T::kSumsBytes;
  place.smem_logits = place.smem_means + args.cluster_images * place.mean_pitch * 16;
  return place;
}

// ---- filters: each lane's own, in the order in which it needs them ----------------------------------------------

// The lane's chunk of what the warps load in a turn.
TREFOIL_DEVICE int32_t chunk_of_lane() { return threadIdx.x / 32 * kGroupChunks + threadIdx.x % kGroupChunks; }

struct Filters {
  const uint4 *row;  // of the lane's first output of the unit
  int32_t unit, chunk, k;
  uint32_t stage;
};

// Copies a unit's operands of a group of channels; what is beyond the last is zeros.
template <class T> TREFOIL_DEVICE void copy_filters(const TailArgs &args, const Place &place, Filters &next) {
  const uint32_t places = place.smem_ring + next.stage * kLoads * kPlaceBytes + threadIdx.x * 16;
  if (next.unit < args.share_units) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool exists = next.k + i * 8 < place.k_end && next.chunk < args.c_chunks;
      const uint4 *source = next.row + static_cast<int64_t>(i) * 8 * args.c_chunks + next.chunk;
      cp_async_16(places + i * kPlaceBytes, exists ? source : args.filter, exists);
    }
  }
  cp_async_commit();
  next.stage = next.stage + 1 == T::kStages ? 0 : next.stage + 1;
  next.chunk += kTurnChunks;
  if (next.chunk - chunk_of_lane() >= args.c_chunks) {
    next.chunk = chunk_of_lane();
    next.k += kUnit, next.row += static_cast<int64_t>(kUnit) * args.c_chunks, ++next.unit;
  }
}

// ---- fully connected layer ---------------------------------------------------------------------------------------

// Adds a unit's products of a group of channels. A lane's 16 bytes are k 2t, 2t + 1, 2t + 8, 2t + 9 of two products, of
// both operands alike: the order of the sum is free.
template <class T>
TREFOIL_DEVICE void multiply(const TailArgs &args, const Place &place, uint32_t places, int32_t chunk,
                             float (&acc)[2][T::kFrags][4]) {
  uint4 filter[kLoads], x[T::kFrags];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) filter[i] = load_shared_u32x4(places + i * kPlaceBytes);
#pragma unroll
  for (int i = 0; i < T::kFrags; ++i) {
    const int32_t image = i * 8 + threadIdx.x % 32 / 4;
    const bool exists = image < place.images && chunk < args.c_chunks;
    x[i] = exists ? load_shared_u32x4(place.smem_means + (image * place.mean_pitch + chunk) * 16) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 &low = filter[2 * i], &high = filter[2 * i + 1];
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
    for (int j = 0; j < T::kFrags; ++j) {
      mma_m16n8k16(acc[i][j], first, x[j].x, x[j].y);
      mma_m16n8k16(acc[i][j], second, x[j].z, x[j].w);
    }
  }
}

// A logit goes to its row, or to the block that writes the row.
TREFOIL_DEVICE void give(const TailArgs &args, const Place &place, int32_t image, int32_t k, float logit) {
  if (args.rows == kRowsLogits) {
    uint8_t *row = args.y + static_cast<uint64_t>(place.image_first + image) * args.row_pitch_bytes;
    if (k < args.channels) reinterpret_cast<float *>(row)[k] = logit;
  } else {
    const uint32_t turn = image / place.blocks;
    store_u32_at(place.smem_logits + (turn * args.k_stored + k) * 4, image - turn * place.blocks, __float_as_uint(logit));
  }
}

// The block's outputs of all images of the cluster. The warps share the channels; their sums are added in order.
template <class T> TREFOIL_DEVICE void linear(const TailArgs &args, const Place &place, Filters &next) {
  const int32_t warp = threadIdx.x / 32, lane_row = threadIdx.x % 32 / 4, lane_chunk = threadIdx.x % 4;
  uint32_t stage = 0;
  for (int32_t unit = 0; unit < args.share_units; ++unit) {
    float acc[2][T::kFrags][4] = {};
    for (int32_t first = 0; first < args.c_chunks; first += kTurnChunks) {
      cp_async_wait<T::kStages - 1>();
      const uint32_t places = place.smem_ring + stage * kLoads * kPlaceBytes + threadIdx.x * 16;
      multiply<T>(args, place, places, first + chunk_of_lane(), acc);
      copy_filters<T>(args, place, next);
      stage = stage + 1 == T::kStages ? 0 : stage + 1;
    }
    if (unit > 0) __syncthreads();  // the sums before were read
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < T::kFrags; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int32_t elem = (i * 16 + half * 8 + lane_row) * T::kImages + j * 8 + lane_chunk * 2;
          store_shared_f32x2(place.smem_sums + (warp * T::kUnitSums + elem) * 4,
                             make_float2(acc[i][j][half * 2], acc[i][j][half * 2 + 1]));
        }
    __syncthreads();
    for (int32_t elem = threadIdx.x; elem < T::kUnitSums; elem += kThreads) {
      const int32_t image = elem % T::kImages, k = place.k_first + unit * kUnit + elem / T::kImages;
      float sum = 0.0f;
#pragma unroll
      for (int of = 0; of < kWarps; ++of)
        sum += __uint_as_float(load_shared_u32(place.smem_sums + (of * T::kUnitSums + elem) * 4));
      if (image < place.images && k < place.k_end) give(args, place, image, k, sum + __ldg(args.bias + k));
    }
  }
}

// ---- kernel ------------------------------------------------------------------------------------------------------

template <class T> TREFOIL_DEVICE void tail(const TailArgs &args, float (&shared)[kWarps], uint64_t (&shared_keys)[kWarps]) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const Place place = place_of<T>(args, shared_address(shared_bytes));
  cluster_arrive();  // waited for before a block writes to another

  // Filters that are on their way while earlier launches end.
  const int32_t lane_row = threadIdx.x % 32 / 4, k = place.k_first + lane_row;
  Filters next{args.filter + static_cast<int64_t>(k) * args.c_chunks, 0, chunk_of_lane(), k, 0};
#pragma unroll
  for (int i = 0; i < T::kStages; ++i) copy_filters<T>(args, place, next);

  wait_for_earlier_launches();
  mean<typename T::Pixels>(args, place);
  cluster_arrive_written();
  cluster_wait();
  linear<T>(args, place, next);
  if (args.rows == kRowsLogits) return;

  // Rows of the result: those that others gave this block the logits of.
  cluster_arrive_written();
  cluster_wait();
  const uint8_t *logits_bytes = shared_bytes + (place.smem_logits - place.smem_ring);
  for (int32_t turn = 0; turn * place.blocks + place.rank < place.images; ++turn) {
    const SharedLogits logits{reinterpret_cast<const float *>(logits_bytes) + turn * args.k_stored};
    const int32_t image = place.image_first + turn * place.blocks + place.rank;
    uint8_t *row = args.y + static_cast<uint64_t>(image) * args.row_pitch_bytes;
    const Softmax softmax = Softmax::of(logits, args.channels, shared);
    if (args.rows == kRowsTopK) {
      emit_top_k(logits, args.channels, args.top_k, softmax, shared_keys, reinterpret_cast<Ranked *>(row));
    } else {
      for (int32_t c = threadIdx.x; c < args.channels; c += kThreads)
        reinterpret_cast<float *>(row)[c] = softmax(logits[c]);
    }
  }
}

// Purpose    m[i][c] = (sum over pixels of x[i][pixel][c]) / pixels, rounded to half; in entry points _bytes
//            half(float(sum over pixels of x[i][pixel][c]) * scale);
//            logits[i][k] = sum over c of m[i][c] * filter[k][c] + bias[k]; row i of y, by args.rows:
//            kRowsLogits: logits[i]; kRowsSoftmax: its softmax; kRowsTopK: the top_k largest, best first, ties by the
//            lower index, each as a pair of its softmax probability and its index.
// Operands   x       read   halves [images][pixels][8 * c_chunks], 16-byte aligned; in _bytes bytes, signed where flip is
//                           not 0
//            filter  read   halves [k_stored][8 * c_chunks], zeros in padded channels, 16-byte aligned
//            bias    read   floats [k_stored]
//            y       write  row i at i * row_pitch_bytes: floats [channels] or pairs [top_k] of a float and a u32;
//                           address and pitch multiples of 8, disjoint from the others; the rest of a row is left alone
// Arithmetic float sums of halves for the mean, of bytes exact sums, one rounding to half; half products, float sums in
//            a fixed order, no rounding to half after that. Softmax and order of the best as sm80_emit_softmax and sm80_emit_top_k.
// Launch     clusters of 1 to 16 blocks along the grid (16: not on every GPU): grid ceil(images / cluster_images) *
//            blocks of a cluster; block kThreads; dynamic shared memory kRingBytes + kSumsBytes + cluster_images *
//            (round_up(c_chunks, 8) + 4) * 16, and for rows that are not logits ceil(cluster_images / blocks) * k_stored
//            * 4 more. compute capability 9.0 exactly.
// Limits     1 <= cluster_images <= kImages; share_chunks >= ceil(c_chunks / blocks) and share_units >=
//            ceil(k_stored / 32 / blocks), both at least 1; 1 <= channels <= k_stored < 2^20; top_k <= min(64,
//            channels); images, pixels, c_chunks and kImages * share_chunks below 2^28, in _bytes pixels up to 2^23. Any
//            tail. Deterministic, no atomics.
// Ordering   may be launched before its predecessors have ended, waits for them itself; filter and bias are read before.
// Source     fragments of mma.m16n8k16 and distributed shared memory as in PTX ISA 9.0.
#define TREFOIL_SM90_TAIL(name, images, stages, pixels)                                                         \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                                     \
      sm90_tail_##name(const __grid_constant__ TailArgs args) {                                                 \
    __shared__ float shared[kWarps];                                                                            \
    __shared__ uint64_t shared_keys[kWarps];                                                                    \
    tail<Tail<images, stages, pixels>>(args, shared, shared_keys);                                              \
  }

TREFOIL_SM90_TAIL(8, 8, 5, HalfPixels)
TREFOIL_SM90_TAIL(16, 16, 3, HalfPixels)
TREFOIL_SM90_TAIL(bytes_8, 8, 5, BytePixels)
TREFOIL_SM90_TAIL(bytes_16, 16, 3, BytePixels)
