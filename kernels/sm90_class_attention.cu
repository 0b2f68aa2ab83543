// Attention of one row of each image, with the products that make queries, keys and values, on Hopper, in one launch.
//
// No key and no value is computed. A score is a product of the key's row with the query that the matrix of keys has turned,
// q (K x) = (q K) x, and the sum of values by weights is the matrix of values times the sum of rows, V x p = V (x p). So a
// query costs as much as its image's rows are long, and not the two products of all rows.
//
// A cluster has a block for each head, and up to as many images. Where weights are read, block h computes head h of all its
// images, so that a weight is read once for them: queries, turned queries, results. Where rows are read, block i computes
// all heads of image i, so that a row is read once. Between the two divisions blocks send each other turned queries and
// sums of rows.
#include "element.cuh"
#include "sm90_ptx.cuh"

struct ClassAttentionArgs {
  const uint8_t *x;         // elements [images][tokens][64 heads]
  const uint8_t *queries;   // elements [64 heads][64 heads]: the matrix of queries; a row makes one value
  const uint8_t *keys;      // the same of keys
  const uint8_t *values;    // and of values
  const float *query_bias;  // [64 heads]; zeros if it is null
  const float *value_bias;  // likewise
  uint8_t *y;               // elements [images][64 heads]
  int32_t images;
  int32_t heads;            // blocks of a cluster
  int32_t tokens;           // rows of an image: the keys
  int32_t query;            // the row that asks
  int32_t each;             // images of a cluster, at most as many as heads
  float scale;              // of scores, times log2(e)
};
static_assert(sizeof(ClassAttentionArgs) == 80, "mirrored in sm90_class_attention.rs");
static_assert(offsetof(ClassAttentionArgs, images) == 56, "mirrored in sm90_class_attention.rs");

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kDims = 64;     // values of a head
constexpr int kImages = 16;   // of a cluster, at most; products are made of eight and eight
constexpr int kKeys = 16;     // rows of an image that are multiplied at a time
constexpr int kStages = 5;    // parts of so many rows that a block has
// Rows begin in different banks: floats of a warp's sums and of its scores, and bytes of queries and of weights of keys.
constexpr int kSumPitch = 72, kScorePitch = 24;
constexpr int kQueryPitch = 144, kWeightPitch = 48;

// A kernel for up to 2 kUnits heads: a warp has kUnits times 16 columns of an image's rows. The bytes of a block's shared
// memory: rows, in a part for each stage and warp; scores of two stages, or sums of warps; weights of the keys of two stages and
// a factor for each head, or queries of all images. The last stage is first the place of the turned queries of the block's
// image, and at last that of its sums of rows, before they are sent; the first stage is then that of the sums that the block is
// sent, those of its head.
template <int kUnits> struct Shared {
  static constexpr int kRowPitch = 32 * kUnits + 16, kPartBytes = kKeys * kRowPitch, kStageBytes = kWarps * kPartBytes;
  static constexpr int kScoreBytes = kWarps * kImages * kScorePitch * 4, kWeightBytes = kImages * (kWeightPitch + 4);
  static constexpr int kScores = kStages * kStageBytes, kSmall = kScores + 2 * kScoreBytes;
  static constexpr int kBarriers = kSmall + kImages * kQueryPitch, kBytes = kBarriers + 16;
  static constexpr int kHeads = 2 * kUnits, kWidest = kHeads * kDims * 2 + 64;
  static_assert(kWarps * 8 * kSumPitch * 4 <= 2 * kScoreBytes, "sums of eight images");
  static_assert(2 * kWeightBytes <= kImages * kQueryPitch, "weights and factors");
  static_assert(kHeads * kWidest <= kStageBytes, "turned queries, and sums of rows");

  uint32_t x, scores, small, turned, mixed, mixing, has_turned, has_mixed;
  int32_t turned_pitch, mixed_pitch;

  __device__ __forceinline__ Shared(uint32_t smem, int32_t heads) {
    x = smem, scores = smem + kScores, small = smem + kSmall;
    turned_pitch = heads * kDims * 2 + 16, mixed_pitch = heads * kDims * 2 + 64;
    turned = x + (kStages - 1) * kStageBytes;  // elements [heads][64 heads]
    mixed = x;                                 // elements [each][64 heads]
    mixing = turned;                           // elements [heads][64 heads], which the block sends
    has_turned = smem + kBarriers, has_mixed = has_turned + 8;
  }
  __device__ __forceinline__ uint32_t part(int32_t stage) const {
    return x + (stage * kWarps + threadIdx.x / 32) * kPartBytes;
  }
  __device__ __forceinline__ uint32_t score(int32_t step, int32_t warp, int32_t head) const {
    return scores + step % 2 * kScoreBytes + (warp * kImages + head) * kScorePitch * 4;
  }
  __device__ __forceinline__ uint32_t weights(int32_t step, int32_t head) const {
    return small + step % 2 * kWeightBytes + head * kWeightPitch;
  }
  __device__ __forceinline__ uint32_t factor(int32_t step, int32_t head) const {
    return small + step % 2 * kWeightBytes + kImages * kWeightPitch + head * 4;
  }
};

// Sends 16 bytes to a block of the cluster, whose barrier counts them.
TREFOIL_DEVICE void send(uint32_t shared_dst, uint32_t barrier, int32_t rank, uint4 chunk) {
  const int32_t words[4] = {static_cast<int32_t>(chunk.x), static_cast<int32_t>(chunk.y), static_cast<int32_t>(chunk.z),
                            static_cast<int32_t>(chunk.w)};
  send_four(shared_dst, barrier, rank, words);
}

// ---- products of images with a head's rows of a matrix -----------------------------------------------------------

// A warp's share of a head's 64 rows: every eighth 32 terms.
template <int kUnits> struct HeadRows {
  static constexpr int kSteps = kUnits / 2;
  uint4 w[kSteps][8];

  __device__ __forceinline__ HeadRows(const uint8_t *matrix, int32_t head, int32_t terms) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint8_t *of_lane = matrix + (static_cast<int64_t>(head * kDims + lane / 4) * terms + lane % 4 * 8) * 2;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int32_t first = (warp + i * kWarps) * 32;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        w[i][j] = load_u32x4_or_zero(reinterpret_cast<const uint4 *>(of_lane + (8 * j * terms + first) * 2), first < terms);
    }
  }

  // Adds the products with rows of images; `row(image, chunk, exists)` gives 16 bytes of one. The lane gets sums [j][0..1] of
  // image lane / 4 and of matrix rows 8 j + 2 (lane % 4) and the next, and sums [j][2..3] of the image 8 further.
  template <class Row> __device__ __forceinline__ void multiply(float (&sums)[8][4], int32_t terms, const Row &row) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint4 x[kSteps][2];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int32_t first = (warp + i * kWarps) * 32;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        x[i][half] = row(lane / 4 + 8 * half, first / 8 + lane % 4, first < terms);
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint32_t low[4] = {x[i][0].x, x[i][1].x, x[i][0].y, x[i][1].y};
      const uint32_t high[4] = {x[i][0].z, x[i][1].z, x[i][0].w, x[i][1].w};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        Element::multiply(sums[j], low, w[i][j].x, w[i][j].y);
        Element::multiply(sums[j], high, w[i][j].z, w[i][j].w);
      }
    }
  }
};

// Adds up the sums of all warps. `take(image, sum)` gets those of one image and of matrix rows 2 (threadIdx.x % 32) and the
// next.
template <class Take>
TREFOIL_DEVICE void add_up(const float (&sums)[8][4], uint32_t smem, int32_t images, const Take &take) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (8 * half >= images) break;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      store_shared_f32x2(smem + ((warp * 8 + lane / 4) * kSumPitch + 8 * j + lane % 4 * 2) * 4,
                         make_float2(sums[j][2 * half], sums[j][2 * half + 1]));
    __syncthreads();
    float2 total = {};
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      const float2 part = load_shared_f32x2(smem + ((from * 8 + warp) * kSumPitch + 2 * lane) * 4);
      total.x += part.x, total.y += part.y;
    }
    take(warp + 8 * half, total);
  }
}

// Two neighbours of the head for each lane; zeros without biases.
TREFOIL_DEVICE float2 biases(const float *all, int32_t head) {
  if (all == nullptr) return float2{};
  return __ldg(reinterpret_cast<const float2 *>(all + head * kDims) + threadIdx.x % 32);
}

// ---- turned queries ----------------------------------------------------------------------------------------------

// A head's 64 rows of the matrix of keys, 64 columns of them. The lane has eight columns, of which the first is
// 8 ((lane / 4) % 2 * 4 + lane / 8), of rows 16 s + 2 (lane % 4), the next, and both 8 further.
struct HeadColumns {
  uint4 w[4][4];
  int32_t first;

  __device__ __forceinline__ HeadColumns(const uint8_t *matrix, int32_t head, int32_t terms, int32_t sixty_four)
      : first(sixty_four * kDims) {
    const int32_t lane = threadIdx.x % 32;
    const int32_t column = first + (lane / 4 % 2 * 4 + lane / 8) * 8;
    const uint8_t *of_lane = matrix + (static_cast<int64_t>(head * kDims + lane % 4 * 2) * terms + column) * 2;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t row = 16 * s + i / 2 * 8 + i % 2;
        w[s][i] = load_u32x4_or_zero(reinterpret_cast<const uint4 *>(of_lane + row * terms * 2), first < terms);
      }
    }
  }

  // The head's queries of all images by these rows; what comes out of an image goes to its block.
  template <class Of>
  __device__ __forceinline__ void turn(const Of &shared, int32_t head, int32_t terms, int32_t images) const {
    const int32_t lane = threadIdx.x % 32;
    if (first >= terms) return;
    float sums[8][4] = {};
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t image = lane / 4 + i % 2 * 8, word = 8 * s + i / 2 * 4 + lane % 4;
        a[i] = image < images ? load_shared_u32(shared.small + image * kQueryPitch + word * 4) : 0;
      }
      const uint32_t words[4][4] = {{w[s][0].x, w[s][0].y, w[s][0].z, w[s][0].w}, {w[s][1].x, w[s][1].y, w[s][1].z, w[s][1].w},
                                    {w[s][2].x, w[s][2].y, w[s][2].z, w[s][2].w}, {w[s][3].x, w[s][3].y, w[s][3].z, w[s][3].w}};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t order = j % 2 ? 0x7632 : 0x5410;
        Element::multiply(sums[j], a, permute_bytes(words[0][j / 2], words[1][j / 2], order),
                          permute_bytes(words[2][j / 2], words[3][j / 2], order));
      }
    }
    // Sums [j][0] and [j][2] are of columns 8 (lane % 4) + j, sums [j][1] and [j][3] of those 32 further.
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t image = lane / 4 + i / 2 * 8;
      const uint4 chunk = make_uint4(pack_elements(sums[0][i], sums[1][i]), pack_elements(sums[2][i], sums[3][i]),
                                     pack_elements(sums[4][i], sums[5][i]), pack_elements(sums[6][i], sums[7][i]));
      if (image < images)
        send(shared.turned + head * shared.turned_pitch + (first + i % 2 * 32 + lane % 4 * 8) * 2, shared.has_turned, image, chunk);
    }
  }
};

// ---- rows of an image --------------------------------------------------------------------------------------------

// All heads of an image, by the columns of a warp.
template <int kUnits> struct Image {
  const uint8_t *rows;  // the first of this warp's columns
  int32_t tokens, terms, units;
  uint32_t turned[kUnits][4];
  float mixed[kUnits][2][4];
  float most, sum;  // of head threadIdx.x / 16

  __device__ __forceinline__ Image(const ClassAttentionArgs &args, int32_t image) {
    const int32_t warp = thread_idx_x() / 32;  // read anew, so that no register is kept since the first copies
    tokens = args.tokens, terms = args.heads * kDims;
    units = max(0, min(kUnits, terms / 16 - warp * kUnits));
    rows = args.x + (static_cast<int64_t>(image) * tokens * terms + warp * kUnits * 16) * 2;
  }

  // Asks for the warp's columns of a step's rows; zeros behind the last row.
  __device__ __forceinline__ void copy(const Shared<kUnits> &shared, int32_t step, int32_t stage) const {
    constexpr int kLanes = kUnits > 4 ? 16 : 2 * kUnits, kRows = 32 / kLanes;  // lanes of a row, and rows at a time
    const int32_t first = step * kKeys;
    if (first < tokens) {
      const int32_t lane = threadIdx.x % 32, row = lane / kLanes, chunk = lane % kLanes;
      const bool is_column = chunk < 2 * units;
      uint32_t to = shared.part(stage) + row * Shared<kUnits>::kRowPitch + chunk * 16;
      const uint8_t *from = rows + static_cast<int64_t>(first + row) * terms * 2 + chunk * 16;
#pragma unroll
      for (int i = 0; i < kKeys; i += kRows) {
        const bool exists = is_column && first + row + i < tokens;
        if (chunk < 2 * kUnits) cp_async_16(to, exists ? from : rows, exists);
        to += kRows * Shared<kUnits>::kRowPitch, from += kRows * terms * 2;
      }
    }
    cp_async_commit();
  }

  // The turned queries of the warp's columns, before the first step; zeros where the image has no such columns.
  __device__ __forceinline__ void load_turned(const Shared<kUnits> &shared, int32_t heads) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row = shared.turned + min(lane % 16, heads - 1) * shared.turned_pitch + lane / 16 * 16;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit < units)
        ldmatrix_x4(turned[unit], row + (warp * kUnits + unit) * 32);
      else  // its columns are zeros too
        turned[unit][0] = turned[unit][1] = turned[unit][2] = turned[unit][3] = 0;
      for (int i = 0; i < 4; ++i) mixed[unit][0][i] = mixed[unit][1][i] = 0.0f;
    }
    most = -INFINITY, sum = 0.0f;
  }

  // What the warp's columns add to the scores of a step's keys.
  __device__ __forceinline__ void score(const Shared<kUnits> &shared, int32_t step, int32_t stage) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t part = shared.part(stage) + lane % 8 * Shared<kUnits>::kRowPitch + lane / 8 * 16;
    float sums[kKeys / 8][4] = {};
#pragma unroll
    for (int unit = 0; unit < kUnits; unit += 2) {
#pragma unroll
      for (int eight = 0; eight < kKeys / 8; ++eight) {
        uint32_t b[4];
        ldmatrix_x4(b, part + eight * 8 * Shared<kUnits>::kRowPitch + unit * 32);
        Element::multiply(sums[eight], turned[unit], b[0], b[1]);
        Element::multiply(sums[eight], turned[unit + 1], b[2], b[3]);
      }
    }
#pragma unroll
    for (int eight = 0; eight < kKeys / 8; ++eight) {
      const uint32_t to = shared.score(step, warp, lane / 4) + (eight * 8 + lane % 4 * 2) * 4;
      store_shared_f32x2(to, make_float2(sums[eight][0], sums[eight][1]));
      store_shared_f32x2(to + 8 * kScorePitch * 4, make_float2(sums[eight][2], sums[eight][3]));
    }
  }

  // The parts of the score of one of a step's keys for head threadIdx.x / 16.
  static __device__ __forceinline__ void load_scores(const Shared<kUnits> &shared, int32_t step, float (&parts)[kWarps]) {
#pragma unroll
    for (int from = 0; from < kWarps; ++from)
      parts[from] =
          __uint_as_float(load_shared_u32(shared.score(step, from, threadIdx.x / 16) + threadIdx.x % 16 * 4));
  }

  // The weight of this key, relative to the largest score so far; and the factor of what was summed before. Behind the last
  // key weights are 0.
  __device__ __forceinline__ void weigh(const Shared<kUnits> &shared, int32_t step, const float (&parts)[kWarps]) {
    const int32_t head = threadIdx.x / 16, key = threadIdx.x % 16;
    float score = 0.0f;
#pragma unroll
    for (int from = 0; from < kWarps; ++from) score += parts[from];
    if (step * kKeys + key >= tokens) score = -INFINITY;
    float top = score;
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) top = max_or_nan(top, __shfl_xor_sync(0xffffffff, top, distance));
    top = max_or_nan(top, most);
    const float factor = exp2_approximate(most - top), weight = exp2_approximate(score - top);
    most = top;
    sum = sum * factor + weight;
    const float next = __shfl_down_sync(0xffffffff, weight, 1);
    if (key % 2 == 0) store_shared_u32(shared.weights(step, head) + key * 2, pack_elements(weight, next));
    if (key == 0) store_shared_u32(shared.factor(step, head), __float_as_uint(factor));
  }

  // The factors of the heads whose sums the lane has.
  static __device__ __forceinline__ float2 factors(const Shared<kUnits> &shared, int32_t step) {
    const uint32_t of_head = shared.factor(step, threadIdx.x % 32 / 4);
    return make_float2(__uint_as_float(load_shared_u32(of_head)), __uint_as_float(load_shared_u32(of_head + 8 * 4)));
  }

  __device__ __forceinline__ void scale(float2 factors) {
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        mixed[unit][i][0] *= factors.x, mixed[unit][i][1] *= factors.x;
        mixed[unit][i][2] *= factors.y, mixed[unit][i][3] *= factors.y;
      }
    }
  }

  // Adds a step's rows by their weights.
  __device__ __forceinline__ void mix(const Shared<kUnits> &shared, int32_t step, int32_t stage) {
    const int32_t lane = threadIdx.x % 32;
    const float2 of_before = factors(shared, step);
    uint32_t a[4];
    ldmatrix_x4(a, shared.weights(step, lane % 16) + lane / 16 * 16);
    if (__any_sync(0xffffffff, of_before.x != 1.0f || of_before.y != 1.0f)) scale(of_before);
    const uint32_t part = shared.part(stage) + lane % 16 * Shared<kUnits>::kRowPitch + lane / 16 * 16;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      uint32_t b[4];
      ldmatrix_x4_trans(b, part + unit * 32);
      Element::multiply(mixed[unit][0], a, b[0], b[1]);
      Element::multiply(mixed[unit][1], a, b[2], b[3]);
    }
  }

  // The sums of rows divided by the sums of weights, to `mixing` in the block's own shared memory.
  __device__ __forceinline__ void finish(const Shared<kUnits> &shared, int32_t heads) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
    __syncthreads();
    if (threadIdx.x % 16 == 0) store_shared_u32(shared.factor(0, threadIdx.x / 16), __float_as_uint(1.0f / sum));
    __syncthreads();
    scale(factors(shared, 0));
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit >= units) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t head = lane / 4 + 8 * half;
        if (head >= heads) continue;
        const uint32_t to = shared.mixing + head * shared.turned_pitch + (warp * kUnits + unit) * 32 + lane % 4 * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i)
          store_shared_u32(to + i * 16, pack_elements(mixed[unit][i][2 * half], mixed[unit][i][2 * half + 1]));
      }
    }
  }
};

// ---- the kernel body ---------------------------------------------------------------------------------------------

template <int kUnits> TREFOIL_DEVICE void class_attention(const ClassAttentionArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const Shared<kUnits> shared(shared_address(shared_bytes), args.heads);
  // The block's head, and which of the cluster's images it has.
  const int32_t rank = cluster_rank(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t terms = args.heads * kDims;
  const int32_t first = blockIdx.x / args.heads * args.each, images = min(args.each, args.images - first);
  const bool has_image = rank < images;
  if (threadIdx.x == 0) {
    barrier_init(shared.has_turned, 1), barrier_init(shared.has_mixed, 1);
    fence_barrier_init();
    barrier_arrive_expect(shared.has_turned, has_image ? args.heads * terms * 2 : 0);
    barrier_arrive_expect(shared.has_mixed, images * terms * 2);
  }
  cluster_arrive();
  allow_next_launch();
  const HeadRows<kUnits> queries(args.queries, rank, terms);  // weights are of no launch
  wait_for_earlier_launches();
  if (has_image) {
    const Image<kUnits> image(args, first + rank);
#pragma unroll
    for (int stage = 0; stage + 1 < kStages; ++stage) image.copy(shared, stage, stage);
  }
  {
    float sums[8][4] = {};
    const uint8_t *asks = args.x + (static_cast<int64_t>(first) * args.tokens + args.query) * terms * 2;
    queries.multiply(sums, terms, [&](int32_t image, int32_t chunk, bool exists) {
      const int64_t row = image < images ? static_cast<int64_t>(image) * args.tokens * terms * 2 : 0;
      return load_written_or_zero(reinterpret_cast<const uint4 *>(asks + row) + chunk, exists && image < images);
    });
    const HeadColumns low(args.keys, rank, terms, warp);
    const float2 bias = biases(args.query_bias, rank);
    add_up(sums, shared.scores, images, [&](int32_t image, float2 sum) {
      store_shared_u32(shared.small + image * kQueryPitch + lane * 4,
                       pack_elements((sum.x + bias.x) * args.scale, (sum.y + bias.y) * args.scale));
    });
    __syncthreads();
    cluster_wait();  // all blocks have begun: their shared memory can be written
    low.turn(shared, rank, terms, images);
    const HeadColumns high(args.keys, rank, terms, warp + kWarps);
    high.turn(shared, rank, terms, images);
  }
  if (has_image) {
    barrier_wait_cluster(shared.has_turned);
    Image<kUnits> image(args, first + rank);
    image.load_turned(shared, args.heads);
    __syncthreads();
    image.copy(shared, kStages - 1, kStages - 1);
    // A step's rows are mixed while the next one's keys are weighed and scores of the one behind it are made.
    float parts[kWarps];
    cp_async_wait<kStages - 1>();
    __syncwarp();
    image.score(shared, 0, 0);
    __syncthreads();
    image.load_scores(shared, 0, parts);
    cp_async_wait<kStages - 2>();
    __syncwarp();
    image.score(shared, 1, 1);
    image.weigh(shared, 0, parts);
    __syncthreads();
    for (int32_t step = 0, stage = 0; step * kKeys < args.tokens; ++step) {
      image.load_scores(shared, step + 1, parts);
      cp_async_wait<kStages - 3>();
      __syncwarp();
      image.mix(shared, step, stage);
      image.score(shared, step + 2, stage < kStages - 2 ? stage + 2 : stage + 2 - kStages);
      image.weigh(shared, step + 1, parts);
      __syncwarp();
      image.copy(shared, step + kStages, stage);
      __syncthreads();
      stage = stage + 1 < kStages ? stage + 1 : 0;
    }
    cp_async_wait<0>();
    image.finish(shared, args.heads);
  }
  const HeadRows<kUnits> values(args.values, rank, terms);
  // All blocks have read their rows: their place can be written. Other warps send what this one has written.
  cluster_arrive_written();
  cluster_wait();
  if (has_image) {
    for (int32_t head = warp; head < args.heads; head += kWarps) {
      for (int32_t chunk = lane; chunk < terms / 8; chunk += 32)
        send(shared.mixed + rank * shared.mixed_pitch + chunk * 16, shared.has_mixed, head,
             load_shared_u32x4(shared.mixing + head * shared.turned_pitch + chunk * 16));
    }
  }
  barrier_wait_cluster(shared.has_mixed);
  float sums[8][4] = {};
  values.multiply(sums, terms, [&](int32_t image, int32_t chunk, bool exists) {
    if (image >= images || !exists) return make_uint4(0, 0, 0, 0);
    return load_shared_u32x4(shared.mixed + image * shared.mixed_pitch + chunk * 16);
  });
  const float2 bias = biases(args.value_bias, rank);
  add_up(sums, shared.scores, images, [&](int32_t image, float2 sum) {
    if (image >= images) return;
    uint32_t *y = reinterpret_cast<uint32_t *>(args.y + (static_cast<int64_t>(first + image) * terms + rank * kDims) * 2);
    y[lane] = pack_elements(sum.x + bias.x, sum.y + bias.y);
  });
}

// Purpose    y[i][h] = V[h] (sum over t of p[i][h][t] x[i][t]) + value_bias[h], with p[i][h] = softmax over t of
//            scale (K[h]^T (Q[h] x[i][query] + query_bias[h])) x[i][t]: attention of one row of each image to all, by heads of
//            64 values whose queries, keys and values are products of the rows. What a bias of keys would add to the scores
//            is the same for all keys of a head, and leaves the softmax as it is.
// Operands   x                       read   elements [images][tokens][64 heads]
//            queries, keys, values   read   elements [64 heads][64 heads]: Q, K and V; 64 rows of a head
//            query_bias, value_bias  read   floats [64 heads], or null for zeros
//            y                       write  elements [images][64 heads]; disjoint from the others
//            All at multiples of 16 bytes. Elements are f16, or bf16 by the entries *_bf16.
// Arithmetic sums of products in float, in a fixed order; queries times scale and log2(e), turned queries, weights and sums of
//            rows are rounded to elements, to nearest even; weights are relative to the largest score so far, and
//            exponentials off by about two units of the last place of a float; one rounding of y. NaN in a row makes y of
//            its image NaN; a score of infinity or NaN, or none above minus infinity, makes y of the image's head NaN.
// Launch     grid of ceil(images / each) clusters; a cluster has `heads` blocks; block kThreads; dynamic shared memory
//            Shared::kBytes. Compute capability 9.0 exactly. Entry sm90_class_attention_N has up to N heads.
// Limits     each 1 to heads; heads 2 up to the entry's, because a block without a cluster cannot send; tokens at least 1,
//            and query below it.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and writes y only after
//            griddepcontrol.wait, but weights, which are of no launch, before. Deterministic, no atomics: y of an image does
//            not depend on the others.
// Source     Touvron et al., Going deeper with Image Transformers (2021), for attention of one row; Milakov and Gimelshein,
//            Online normalizer calculation for softmax (2018).
#define TREFOIL_SM90_CLASS_ATTENTION(heads)                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                                           \
      TREFOIL_ENTRY(sm90_class_attention_##heads)(const __grid_constant__ ClassAttentionArgs args) { \
    class_attention<heads / 2>(args);                                                                 \
  }

TREFOIL_SM90_CLASS_ATTENTION(4)
TREFOIL_SM90_CLASS_ATTENTION(8)
TREFOIL_SM90_CLASS_ATTENTION(12)
TREFOIL_SM90_CLASS_ATTENTION(16)
