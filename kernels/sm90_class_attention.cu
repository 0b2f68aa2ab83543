// Attention of one row of each image, with the norm and the products that make queries, keys and values, on Hopper, in one
// launch.
//
// No key and no value is computed. A score is a product of the key's row with the query that the matrix of keys has turned,
// q (K x) = (q K) x, and the sum of values by weights is the matrix of values times the sum of rows, V x p = V (x p). So a
// query costs as much as its image's rows are long, and not the two products of all rows.
//
// No row is normed but those that ask. Of a norm w (x - m) / d + b the weight w goes to the turned query, whose products with
// b are the same for all rows; m and d, which come from the row's sums of values and squares, go to its score and to the
// weight of the row in the sum of rows; w and b once more to that sum.
//
// A cluster has a block for each head, and up to as many images. Where weights are read, block h computes head h of all its
// images, so that a weight is read once for them: queries, turned queries, results. Where rows are read, block i computes
// all heads of image i, so that a row is read once. Between the two divisions blocks send each other turned queries and
// sums of rows. All of it is in this file, because its four phases (queries, turned queries, rows, results) share memory,
// barriers and the layout of a lane's registers.
#include "element.cuh"
#include "sm90_ptx.cuh"

struct ClassAttentionArgs {
  TensorMap rows;           // x as {64, tokens, heads, images}, boxes {64, kKeys, the kernel's most heads, 1}
  const uint8_t *x;         // elements [images][tokens][64 heads]
  const uint8_t *queries;   // elements [64 heads][64 heads]: the matrix of queries; a row makes one value
  const uint8_t *keys;      // the same of keys
  const uint8_t *values;    // and of values
  const float *query_bias;  // [64 heads]; zeros if it is null
  const float *value_bias;  // likewise
  const float *norm_weight; // [64 heads]; rows are as they are if it is null
  const float *norm_bias;   // [64 heads]; zeros if it is null
  uint8_t *y;               // elements [images][64 heads]
  int32_t images;
  int32_t heads;            // blocks of a cluster
  int32_t tokens;           // rows of an image: the keys
  int32_t query;            // the row that asks
  int32_t each;             // images of a cluster, at most as many as heads
  float scale;              // of scores, times log2(e)
  int32_t centred;          // 0: the norm leaves the mean as it is
  float epsilon;            // of the norm
  float per_column;         // 1 / (64 heads)
  int32_t padding[5];
};
static_assert(sizeof(ClassAttentionArgs) == 256, "mirrored in sm90_class_attention.rs");
static_assert(offsetof(ClassAttentionArgs, images) == 200, "mirrored in sm90_class_attention.rs");

// Warps that do products, and as many threads beside them as weigh the keys of rows: a warpgroup.
constexpr int kWarps = 8, kProductThreads = kWarps * 32, kWeightWarps = 4;
constexpr int kThreads = kProductThreads + kWeightWarps * 32;
constexpr int kProductRegisters = 224, kWeightRegisters = 56;
constexpr int kFirstOfGains = kProductThreads + 32;  // the warp before has the thread that copies
constexpr int kDims = 64;     // values of a head
constexpr int kImages = 16;   // of a cluster, at most; products are made of eight and eight
constexpr int kKeys = 16;     // rows of an image that are multiplied at a time
constexpr int kStages = 6;    // parts of so many rows that a block has
// Rows begin in different banks: floats of a warp's sums and of its scores, and bytes of queries and of weights of keys.
constexpr int kSumPitch = 72, kScorePitch = 20;
constexpr int kQueryPitch = 144, kWeightPitch = 48;

// A kernel for up to 2 kUnits heads: a warp has kUnits times 16 columns of an image's rows. The bytes of a block's shared
// memory: rows, in a box for each stage; scores of two steps, or sums of warps; weights of the keys of two steps with a factor
// for each head, sums of turned queries of each warp and what becomes of the heads' sums of rows, or queries of all images;
// what the norm multiplies columns by, and adds; and each warp's sums of values and squares of rows. The last stage is first
// the place of the turned queries of the block's image, and at last that of its sums of rows, before they are sent; the first
// stages are then that of the sums that the block is sent, those of its head.
template <int kUnits> struct Shared {
  static constexpr int kHeads = 2 * kUnits, kWidest = kHeads * kDims * 2 + 64, kColumns = kHeads * kDims;
  static constexpr int kBoxBytes = kKeys * kDims * 2, kStageBytes = kHeads * kBoxBytes;
  static constexpr int kLastBytes =  // of the last stage
      kStageBytes > kHeads * kWidest ? kStageBytes : (kHeads * kWidest + 1023) / 1024 * 1024;
  static constexpr int kScoreBytes = kWarps * kImages * kScorePitch * 4, kWeightBytes = kImages * (kWeightPitch + 4);
  static constexpr int kScores = (kStages - 1) * kStageBytes + kLastBytes, kSmall = kScores + 2 * kScoreBytes;
  static constexpr int kGains = kSmall + kImages * kQueryPitch, kMoments = kGains + 2 * kColumns * 4;
  static constexpr int kMomentBytes = kImages * 8;  // of a warp and a stage
  static constexpr int kBarriers = kMoments + 2 * kWarps * kMomentBytes, kBytes = kBarriers + 8 * (8 + kStages);
  static_assert(kWarps * 8 * kSumPitch * 4 <= 2 * kScoreBytes, "sums of eight images");
  static_assert(2 * kWeightBytes + (kWarps + 2) * kImages * 4 <= kImages * kQueryPitch, "all that is small");
  static_assert(kHeads * kWidest <= (kStages - 1) * kStageBytes && kBytes <= 227 << 10, "sums of rows, and all");

  uint32_t x, scores, small, turned, mixed, mixing, has_turned, has_mixed, has_begun, has_finished;
  int32_t turned_pitch, mixed_pitch;

  __device__ __forceinline__ Shared(uint32_t smem, int32_t heads) {
    x = smem, scores = smem + kScores, small = smem + kSmall;
    turned_pitch = heads * kDims * 2 + 16, mixed_pitch = heads * kDims * 2 + 64;
    turned = x + (kStages - 1) * kStageBytes;  // elements [heads][64 heads]
    mixed = x;                                 // elements [each][64 heads]
    mixing = turned;                           // elements [heads][64 heads], which the block sends
    has_turned = smem + kBarriers, has_mixed = has_turned + 8, has_begun = has_mixed + 8, has_finished = has_begun + 8;
  }
  __device__ __forceinline__ uint32_t stage(int32_t stage) const { return x + stage * kStageBytes; }
  // Barriers of a step's scores, of its weights, and of a stage's rows.
  __device__ __forceinline__ uint32_t scored(int32_t step) const { return has_finished + 8 + step % 2 * 8; }
  __device__ __forceinline__ uint32_t weighed(int32_t step) const { return scored(step) + 16; }
  __device__ __forceinline__ uint32_t full(int32_t stage) const { return has_finished + 40 + 8 * stage; }
  static __device__ __forceinline__ uint32_t parity(int32_t step) { return step / 2 & 1; }
  // Where a lane finds 16 bytes of row `row`, of 16 columns `unit` those that are `half`: 128 bytes of 16 rows lie together,
  // and the 16 bytes of a row in an order that its number changes.
  static __device__ __forceinline__ uint32_t within(uint32_t stage, int32_t row, int32_t unit, int32_t half) {
    return stage + unit / 4 * kBoxBytes + row * 128 + ((unit % 4 * 2 + half) ^ row % 8) * 16;
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
  // A warp's sum of a head's turned query.
  __device__ __forceinline__ uint32_t of_ones(int32_t warp, int32_t head) const {
    return small + 2 * kWeightBytes + (warp * kImages + head) * 4;
  }
  // Two floats: what a head's sums of rows are multiplied by, and what is then taken from them.
  __device__ __forceinline__ uint32_t last(int32_t head) const { return of_ones(kWarps, 0) + head * 8; }
  // Floats: what the norm multiplies a column by, and, kColumns further, what it adds.
  __device__ __forceinline__ uint32_t gain(int32_t column) const { return x + kGains + column * 4; }
  __device__ __forceinline__ uint32_t offset(int32_t column) const { return gain(column) + kColumns * 4; }
  // Two floats: a warp's sum of values of a row, and of their squares.
  __device__ __forceinline__ uint32_t moments(int32_t step, int32_t warp, int32_t row) const {
    return x + kMoments + (step % 2 * kWarps + warp) * kMomentBytes + row * 8;
  }
};

// Waits for all threads of the warps that do products.
TREFOIL_DEVICE void sync_products() { barrier_sync(1, kProductThreads); }

// Sends 16 bytes to a block of the cluster, whose barrier counts them.
TREFOIL_DEVICE void send(uint32_t shared_dst, uint32_t barrier, int32_t rank, uint4 chunk) {
  const int32_t words[4] = {static_cast<int32_t>(chunk.x), static_cast<int32_t>(chunk.y), static_cast<int32_t>(chunk.z),
                            static_cast<int32_t>(chunk.w)};
  send_four(shared_dst, barrier, rank, words);
}

// ---- the norm ----------------------------------------------------------------------------------------------------

// What the norm takes from a row's values and divides them by, and 1 / deviation.
struct RowNorm {
  float mean, deviation, scale;
};

// The norm of a row by the sums of its values and of their squares.
TREFOIL_DEVICE RowNorm norm_of(const ClassAttentionArgs &args, float2 moments) {
  if (args.norm_weight == nullptr) return {0.0f, 1.0f, 1.0f};
  const float mean = args.centred ? moments.x * args.per_column : 0.0f;
  const float variance = max_or_nan(fmaf(-mean, mean, moments.y * args.per_column), 0.0f) + args.epsilon;
  const float scale = rsqrtf(variance);
  return {mean, variance * scale, scale};
}

// All warps' sums for a row.
template <class Of> TREFOIL_DEVICE float2 add_moments(const Of &shared, int32_t step, int32_t row) {
  float2 total = {};
#pragma unroll
  for (int from = 0; from < kWarps; ++from) {
    const float2 part = load_shared_f32x2(shared.moments(step, from, row));
    total.x += part.x, total.y += part.y;
  }
  return total;
}

// The norm's weights and biases for the columns of all heads that the kernel can have, by the last warps of a block.
template <class Of> TREFOIL_DEVICE void load_gains(const ClassAttentionArgs &args, const Of &shared) {
  for (int32_t column = threadIdx.x - kFirstOfGains; column < Of::kColumns; column += kThreads - kFirstOfGains) {
    const bool exists = column < args.heads * kDims;
    const float none = exists ? 1.0f : 0.0f;
    const float gain = exists && args.norm_weight != nullptr ? __ldg(args.norm_weight + column) : none;
    const float offset = exists && args.norm_bias != nullptr ? __ldg(args.norm_bias + column) : 0.0f;
    store_shared_u32(shared.gain(column), __float_as_uint(gain));
    store_shared_u32(shared.offset(column), __float_as_uint(offset));
  }
}

TREFOIL_DEVICE void load_eight(uint32_t shared_src, float (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 four = load_shared_four(shared_src + 16 * i);
    values[4 * i] = four.x, values[4 * i + 1] = four.y, values[4 * i + 2] = four.z, values[4 * i + 3] = four.w;
  }
}

// ---- products of images with a head's rows of a matrix -----------------------------------------------------------

// A warp's share of a row of each image: every eighth 32 terms. The lane has eight of each 32, from 8 (lane % 4) on, of image
// lane / 4 and of the image 8 further.
template <int kUnits> struct ImageRows {
  static constexpr int kSteps = kUnits / 2;
  uint4 x[kSteps][2];

  // `row(image, chunk, exists)` gives 16 bytes of an image's row.
  template <class Row> __device__ __forceinline__ ImageRows(int32_t terms, const Row &row) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int32_t first = (warp + i * kWarps) * 32;
#pragma unroll
      for (int half = 0; half < 2; ++half) x[i][half] = row(lane / 4 + 8 * half, first / 8 + lane % 4, first < terms);
    }
  }

  // The warp's sums for the rows.
  __device__ __forceinline__ void store_moments(const Shared<kUnits> &shared) const {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 moments = {};
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        for (float value : unpack_chunk<Element>(x[i][half]).v) moments.x += value, moments.y = fmaf(value, value, moments.y);
      }
#pragma unroll
      for (int distance = 1; distance < 4; distance *= 2) {
        moments.x += __shfl_xor_sync(0xffffffff, moments.x, distance);
        moments.y += __shfl_xor_sync(0xffffffff, moments.y, distance);
      }
      if (lane % 4 == 0) store_shared_f32x2(shared.moments(0, warp, lane / 4 + 8 * half), moments);
    }
  }

  // Norms the rows, whose sums all warps have stored. Columns behind a row's last become zeros, or NaN if the row has NaN
  // or infinity.
  __device__ __forceinline__ void norm(const ClassAttentionArgs &args, const Shared<kUnits> &shared) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const RowNorm norms[2] = {norm_of(args, add_moments(shared, 0, lane / 4)), norm_of(args, add_moments(shared, 0, lane / 4 + 8))};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int32_t column = (warp + i * kWarps) * 32 + lane % 4 * 8;
      float gains[8], offsets[8];
      load_eight(shared.gain(column), gains);
      load_eight(shared.offset(column), offsets);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Chunk values = unpack_chunk<Element>(x[i][half]);
#pragma unroll
        for (int j = 0; j < 8; ++j) values.v[j] = fmaf((values.v[j] - norms[half].mean) * norms[half].scale, gains[j], offsets[j]);
        x[i][half] = pack_chunk<Element>(values);
      }
    }
  }
};

// A warp's share of a head's 64 rows: every eighth 32 terms.
template <int kUnits> struct HeadRows {
  static constexpr int kSteps = kUnits / 2;
  uint4 w[kSteps][8];

  __device__ __forceinline__ HeadRows(const uint8_t *matrix, int32_t head, int32_t terms) {
    const int32_t lane = thread_idx_x() % 32, warp = thread_idx_x() / 32;  // read anew: no address is kept for the last matrix
    const uint8_t *of_lane = matrix + (static_cast<int64_t>(head * kDims + lane / 4) * terms + lane % 4 * 8) * 2;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int32_t first = (warp + i * kWarps) * 32;
#pragma unroll
      for (int j = 0; j < 8; ++j)
        w[i][j] = load_u32x4_or_zero(reinterpret_cast<const uint4 *>(of_lane + (8 * j * terms + first) * 2), first < terms);
    }
  }

  // Adds the products with rows of images. The lane gets sums [j][0..1] of image lane / 4 and of matrix rows
  // 8 j + 2 (lane % 4) and the next, and sums [j][2..3] of the image 8 further.
  __device__ __forceinline__ void multiply(float (&sums)[8][4], const ImageRows<kUnits> &images) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const uint4 of[2] = {images.x[i][0], images.x[i][1]};
      const uint32_t low[4] = {of[0].x, of[1].x, of[0].y, of[1].y};
      const uint32_t high[4] = {of[0].z, of[1].z, of[0].w, of[1].w};
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
    sync_products();
#pragma unroll
    for (int j = 0; j < 8; ++j)
      store_shared_f32x2(smem + ((warp * 8 + lane / 4) * kSumPitch + 8 * j + lane % 4 * 2) * 4,
                         make_float2(sums[j][2 * half], sums[j][2 * half + 1]));
    sync_products();
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

  // The head's queries of all images by these rows, times the norm's weights; what comes out of an image goes to its block.
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
    for (int side = 0; side < 2; ++side) {
      const int32_t column = first + side * 32 + lane % 4 * 8;
      float gains[8];
      load_eight(shared.gain(column), gains);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t image = lane / 4 + half * 8;
        Chunk turned;
#pragma unroll
        for (int j = 0; j < 8; ++j) turned.v[j] = sums[j][2 * half + side] * gains[j];
        if (image < images)
          send(shared.turned + head * shared.turned_pitch + column * 2, shared.has_turned, image, pack_chunk<Element>(turned));
      }
    }
  }
};

// ---- rows of an image --------------------------------------------------------------------------------------------

// All heads of an image, by the columns of a warp.
template <int kUnits> struct Image {
  int32_t units;  // of 16 columns that the warp has
  uint32_t turned[kUnits][4];
  float mixed[kUnits][2][4];

  // The turned queries of the warp's columns, before the first step, and what these add to their sums; zeros where the image
  // has no such columns.
  __device__ __forceinline__ Image(const Shared<kUnits> &shared, int32_t heads) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    units = max(0, min(kUnits, heads * 4 - warp * kUnits));
    const uint32_t row = shared.turned + min(lane % 16, heads - 1) * shared.turned_pitch + lane / 16 * 16;
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit < units)
        ldmatrix_x4(turned[unit], row + (warp * kUnits + unit) * 32);
      else  // its columns are zeros too
        turned[unit][0] = turned[unit][1] = turned[unit][2] = turned[unit][3] = 0;
      for (int i = 0; i < 4; ++i) mixed[unit][0][i] = mixed[unit][1][i] = 0.0f;
    }
    float of_ones[4] = {};
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) Element::multiply(of_ones, turned[unit], ones(), ones());
    if (lane % 4 == 0) {
      store_shared_u32(shared.of_ones(warp, lane / 4), __float_as_uint(of_ones[0]));
      store_shared_u32(shared.of_ones(warp, lane / 4 + 8), __float_as_uint(of_ones[2]));
    }
  }

  static __device__ __forceinline__ uint32_t ones() { return pack_elements(1.0f, 1.0f); }

  // What the warp's columns add to a step's scores, and to the sums of values and of squares of its rows.
  struct Scores {
    float of_heads[kKeys / 8][4] = {};
    float values[4] = {};
    float squares[kKeys / 8][4] = {};  // of rows with each other: those on the diagonal are asked for

    // Adds those of two units.
    __device__ __forceinline__ void add(const Image &image, uint32_t stage, int unit) {
      const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      uint32_t b[kKeys / 8][4];
#pragma unroll
      for (int eight = 0; eight < kKeys / 8; ++eight)
        ldmatrix_x4(b[eight], Shared<kUnits>::within(stage, eight * 8 + lane % 8, warp * kUnits + unit + lane / 16, lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t rows[4] = {b[0][2 * i], b[1][2 * i], b[0][2 * i + 1], b[1][2 * i + 1]};
#pragma unroll
        for (int eight = 0; eight < kKeys / 8; ++eight) {
          Element::multiply(of_heads[eight], image.turned[unit + i], b[eight][2 * i], b[eight][2 * i + 1]);
          Element::multiply(squares[eight], rows, b[eight][2 * i], b[eight][2 * i + 1]);
        }
        Element::multiply(values, rows, ones(), ones());
      }
    }

    __device__ __forceinline__ void store(const Shared<kUnits> &shared, int32_t step) const {
      const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
      for (int eight = 0; eight < kKeys / 8; ++eight) {
        const uint32_t to = shared.score(step, warp, lane / 4) + (eight * 8 + lane % 4 * 2) * 4;
        store_shared_f32x2(to, make_float2(of_heads[eight][0], of_heads[eight][1]));
        store_shared_f32x2(to + 8 * kScorePitch * 4, make_float2(of_heads[eight][2], of_heads[eight][3]));
      }
      if (lane % 4 == lane / 8) {  // sums of row lane / 4 with itself are here
        const int odd = lane / 4 % 2;
        store_shared_f32x2(shared.moments(step, warp, lane / 4), make_float2(values[0], odd ? squares[0][1] : squares[0][0]));
        store_shared_f32x2(shared.moments(step, warp, lane / 4 + 8), make_float2(values[2], odd ? squares[1][3] : squares[1][2]));
      }
      barrier_arrive_once(shared.scored(step));
    }
  };

  __device__ __forceinline__ void score(const Shared<kUnits> &shared, int32_t step, int32_t stage) const {
    Scores scores;
#pragma unroll
    for (int unit = 0; unit < kUnits; unit += 2) scores.add(*this, shared.stage(stage), unit);
    scores.store(shared, step);
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

  // Adds a step's rows by their weights, and makes scores of the step two further.
  __device__ __forceinline__ void advance(const Shared<kUnits> &shared, int32_t step, int32_t stage, int32_t stage_to_score) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float2 of_before = factors(shared, step);
    uint32_t a[4];
    ldmatrix_x4(a, shared.weights(step, lane % 16) + lane / 16 * 16);
    if (__any_sync(0xffffffff, of_before.x != 1.0f || of_before.y != 1.0f)) scale(of_before);
    Scores scores;
#pragma unroll
    for (int unit = 0; unit < kUnits; unit += 2) {
      uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i)
        ldmatrix_x4_trans(b[i], Shared<kUnits>::within(shared.stage(stage), lane % 16, warp * kUnits + unit + i, lane / 16));
      scores.add(*this, shared.stage(stage_to_score), unit);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Element::multiply(mixed[unit + i][0], a, b[i][0], b[i][1]);
        Element::multiply(mixed[unit + i][1], a, b[i][2], b[i][3]);
      }
    }
    scores.store(shared, step + 2);
  }

  // What the norm makes of the sums of rows, divided by the sums of weights, to `mixing` in the block's own shared memory.
  __device__ __forceinline__ void finish(const Shared<kUnits> &shared, int32_t heads) {
    const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float2 of_heads[2] = {load_shared_f32x2(shared.last(lane / 4)), load_shared_f32x2(shared.last(lane / 4 + 8))};
#pragma unroll
    for (int unit = 0; unit < kUnits; ++unit) {
      if (unit >= units) break;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int32_t head = lane / 4 + 8 * half;
        if (head >= heads) continue;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int32_t column = (warp * kUnits + unit) * 16 + i * 8 + lane % 4 * 2;
          const float2 gains = load_shared_f32x2(shared.gain(column)), offsets = load_shared_f32x2(shared.offset(column));
          const auto normed = [&](float sum, float gain, float offset) {
            return fmaf(fmaf(sum, of_heads[half].x, -of_heads[half].y), gain, offset);
          };
          store_shared_u32(shared.mixing + head * shared.turned_pitch + column * 2,
                           pack_elements(normed(mixed[unit][i][2 * half], gains.x, offsets.x),
                                         normed(mixed[unit][i][2 * half + 1], gains.y, offsets.y)));
        }
      }
    }
  }
};

// The weights of an image's keys, step by step: two keys of a head for each thread.
template <int kUnits> struct Weights {
  int32_t tokens, head, key;  // the first of the thread's keys within a step
  float of_ones;              // the sum of the head's turned query
  float most, sum, means;     // the largest score so far, and the thread's sums of weights times deviations and times means

  // When the first scores are there.
  __device__ __forceinline__ Weights(const Shared<kUnits> &shared, int32_t tokens)
      : tokens(tokens), of_ones(0.0f), most(-INFINITY), sum(0.0f), means(0.0f) {
    const int32_t thread = threadIdx.x - kProductThreads;
    head = thread / 8, key = thread % 8 * 2;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) of_ones += __uint_as_float(load_shared_u32(shared.of_ones(warp, head)));
  }

  // Weights over the rows' deviations, relative to the largest so far; and the factor of what was summed before. Behind the
  // last key weights are 0.
  __device__ __forceinline__ void weigh(const ClassAttentionArgs &args, const Shared<kUnits> &shared, int32_t step) {
    float2 parts[kWarps];
    float4 moments[kWarps];
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      parts[from] = load_shared_f32x2(shared.score(step, from, head) + key * 4);
      moments[from] = load_shared_four(shared.moments(step, from, key));
    }
    float scores[2] = {};
    float2 of_rows[2] = {};
#pragma unroll
    for (int from = 0; from < kWarps; ++from) {
      scores[0] += parts[from].x, of_rows[0].x += moments[from].x, of_rows[0].y += moments[from].y;
      scores[1] += parts[from].y, of_rows[1].x += moments[from].z, of_rows[1].y += moments[from].w;
    }
    RowNorm norms[2];
    float top = most;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool exists = step * kKeys + key + i < tokens;
      norms[i] = exists ? norm_of(args, of_rows[i]) : RowNorm{0.0f, 1.0f, 1.0f};
      scores[i] = fmaf(fmaf(-norms[i].mean, of_ones, scores[i]), norms[i].scale, __log2f(norms[i].scale));
      scores[i] = exists ? scores[i] : -INFINITY;
      top = max_or_nan(top, scores[i]);
    }
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) top = max_or_nan(top, __shfl_xor_sync(0xffffffff, top, distance));
    const float factor = exp2_approximate(most - top);
    const float weights[2] = {exp2_approximate(scores[0] - top), exp2_approximate(scores[1] - top)};
    most = top;
    sum = fmaf(weights[1], norms[1].deviation, fmaf(weights[0], norms[0].deviation, sum * factor));
    // What is taken from the sum of rows is weighted as they are: by elements.
    const uint32_t packed = pack_elements(weights[0], weights[1]);
    const float2 rounded = unpack_elements(packed);
    means = fmaf(rounded.y, norms[1].mean, fmaf(rounded.x, norms[0].mean, means * factor));
    store_shared_u32(shared.weights(step, head) + key * 2, packed);
    if (key == 0) store_shared_u32(shared.factor(step, head), __float_as_uint(factor));
    barrier_arrive_once(shared.weighed(step));
  }

  // What the head's sums of rows are multiplied by, and what is then taken from them.
  __device__ __forceinline__ void finish(const Shared<kUnits> &shared) {
#pragma unroll
    for (int distance = 4; distance > 0; distance /= 2) {
      sum += __shfl_xor_sync(0xffffffff, sum, distance);
      means += __shfl_xor_sync(0xffffffff, means, distance);
    }
    if (key == 0) store_shared_f32x2(shared.last(head), make_float2(1.0f / sum, means / sum));
    barrier_arrive_once(shared.has_finished);
  }
};

// ---- the kernel body ---------------------------------------------------------------------------------------------

// What the threads do that weigh, beside the products, and one of which copies rows.
template <int kUnits>
TREFOIL_DEVICE void weigh_keys(const ClassAttentionArgs &args, const Shared<kUnits> &shared, int32_t image, bool has_image) {
  const bool copies = has_image && threadIdx.x == kProductThreads;
  // Asks for a step's rows, by the thread that has made the barriers; zeros behind the last row and beside the last column.
  const auto copy = [&](int32_t step) {
    if (!copies || step * kKeys >= args.tokens) return;
    const int32_t stage = step % kStages;
    barrier_arrive_expect(shared.full(stage), Shared<kUnits>::kStageBytes);
    copy_box_4d(shared.stage(stage), &args.rows, shared.full(stage), 0, step * kKeys, 0, image);
  };
  if (threadIdx.x < kFirstOfGains) {
    if (copies) wait_for_earlier_launches();
    for (int32_t step = 0; step + 1 < kStages; ++step) copy(step);
  } else {
    load_gains(args, shared);  // of no launch
  }
  barrier_arrive_once(shared.has_begun);
  cluster_wait();
  if (has_image) {
    barrier_wait(shared.scored(0), 0);
    copy(kStages - 1);  // where turned queries were, which all warps have loaded
    Weights<kUnits> weights(shared, args.tokens);
    for (int32_t step = 0; step * kKeys < args.tokens; ++step) {
      barrier_wait(shared.scored(step), Shared<kUnits>::parity(step));
      if (step > 1) copy(step - 2 + kStages);  // whoever has scored these keys has done with those two steps before
      weights.weigh(args, shared, step);
    }
    weights.finish(shared);
  }
  cluster_arrive_written();
  cluster_wait();
}

template <int kUnits>
TREFOIL_DEVICE void multiply(const ClassAttentionArgs &args, const Shared<kUnits> &shared, int32_t rank, int32_t first,
                             int32_t images) {
  const int32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int32_t terms = args.heads * kDims;
  const bool has_image = rank < images;
  const HeadRows<kUnits> queries(args.queries, rank, terms);  // weights are of no launch
  wait_for_earlier_launches();
  {
    float sums[8][4] = {};
    const uint8_t *asks = args.x + (static_cast<int64_t>(first) * args.tokens + args.query) * terms * 2;
    ImageRows<kUnits> rows(terms, [&](int32_t image, int32_t chunk, bool exists) {
      const int64_t row = image < images ? static_cast<int64_t>(image) * args.tokens * terms * 2 : 0;
      return load_written_or_zero(reinterpret_cast<const uint4 *>(asks + row) + chunk, exists && image < images);
    });
    rows.store_moments(shared);
    barrier_arrive_once(shared.has_begun);
    barrier_wait(shared.has_begun, 0);
    if (args.norm_weight != nullptr) rows.norm(args, shared);
    queries.multiply(sums, rows);
    const HeadColumns low(args.keys, rank, terms, warp), high(args.keys, rank, terms, warp + kWarps);
    const float2 bias = biases(args.query_bias, rank);
    add_up(sums, shared.scores, images, [&](int32_t image, float2 sum) {
      store_shared_u32(shared.small + image * kQueryPitch + lane * 4,
                       pack_elements((sum.x + bias.x) * args.scale, (sum.y + bias.y) * args.scale));
    });
    sync_products();
    cluster_wait();  // all blocks have begun: their shared memory can be written
    low.turn(shared, rank, terms, images);
    high.turn(shared, rank, terms, images);
  }
  if (has_image) {
    barrier_wait_cluster(shared.has_turned);
    Image<kUnits> image(shared, args.heads);
    fence_shared_for_copies();
    barrier_wait(shared.full(0), 0);
    image.score(shared, 0, 0);
    if (kKeys < args.tokens) barrier_wait(shared.full(1), 0);
    image.score(shared, 1, 1);
    uint32_t parity = 0;  // of the stage whose rows are scored next
    for (int32_t step = 0, stage = 0, to_score = 2; step * kKeys < args.tokens; ++step) {
      if ((step + 2) * kKeys < args.tokens) barrier_wait(shared.full(to_score), parity);
      barrier_wait(shared.weighed(step), Shared<kUnits>::parity(step));
      image.advance(shared, step, stage, to_score);
      stage = stage + 1 < kStages ? stage + 1 : 0;
      if (++to_score == kStages) to_score = 0, parity ^= 1;
    }
    sync_products();  // all have read the last rows
    barrier_wait(shared.has_finished, 0);
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
  const ImageRows<kUnits> rows(terms, [&](int32_t image, int32_t chunk, bool exists) {
    if (image >= images || !exists) return make_uint4(0, 0, 0, 0);
    return load_shared_u32x4(shared.mixed + image * shared.mixed_pitch + chunk * 16);
  });
  values.multiply(sums, rows);
  const float2 bias = biases(args.value_bias, rank);
  add_up(sums, shared.scores, images, [&](int32_t image, float2 sum) {
    if (image >= images) return;
    uint32_t *y = reinterpret_cast<uint32_t *>(args.y + (static_cast<int64_t>(first + image) * terms + rank * kDims) * 2);
    y[lane] = pack_elements(sum.x + bias.x, sum.y + bias.y);
  });
}

template <int kUnits> TREFOIL_DEVICE void class_attention(const ClassAttentionArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Shared<kUnits> shared(shared_address(shared_bytes), args.heads);
  // The block's head, and which of the cluster's images it has.
  const int32_t rank = cluster_rank(), terms = args.heads * kDims;
  const int32_t first = blockIdx.x / args.heads * args.each, images = min(args.each, args.images - first);
  if (threadIdx.x == kProductThreads) {
    barrier_init(shared.has_turned, 1), barrier_init(shared.has_mixed, 1);
    barrier_init(shared.has_begun, kWarps + kWeightWarps), barrier_init(shared.has_finished, kWeightWarps);
    for (int step = 0; step < 2; ++step)
      barrier_init(shared.scored(step), kWarps), barrier_init(shared.weighed(step), kWeightWarps);
    for (int stage = 0; stage < kStages; ++stage) barrier_init(shared.full(stage), 1);
    fence_barrier_init();
    barrier_arrive_expect(shared.has_turned, rank < images ? args.heads * terms * 2 : 0);
    barrier_arrive_expect(shared.has_mixed, images * terms * 2);
  }
  __syncthreads();
  cluster_arrive();
  allow_next_launch();
  if (threadIdx.x < kProductThreads) {
    take_registers<kProductRegisters>();
    multiply<kUnits>(args, shared, rank, first, images);
  } else {
    give_registers_up<kWeightRegisters>();
    weigh_keys<kUnits>(args, shared, first + rank, rank < images);
  }
}

// Purpose    y[i][h] = V[h] (sum over t of p[i][h][t] n[i][t]) + value_bias[h], with p[i][h] = softmax over t of
//            scale (K[h]^T (Q[h] n[i][query] + query_bias[h])) n[i][t]: attention of one row of each image to all, by heads of
//            64 values whose queries, keys and values are products of rows n, which are x or the norm of x by rows:
//            n = (x - mean) / sqrt(variance + epsilon) norm_weight + norm_bias, or, if it is not centred, without the mean and
//            with the mean of squares as the variance. What a bias of keys would add to the scores is the same for all keys of
//            a head, and leaves the softmax as it is.
// Operands   x, and rows by its map  read   elements [images][tokens][64 heads]
//            queries, keys, values   read   elements [64 heads][64 heads]: Q, K and V; 64 rows of a head
//            query_bias, value_bias  read   floats [64 heads], or null for zeros
//            norm_weight, norm_bias  read   floats [64 heads], or null: there is no norm; zeros
//            y                       write  elements [images][64 heads]; disjoint from the others
//            All at multiples of 16 bytes. Elements are f16, or bf16 by the entries *_bf16.
// Arithmetic sums of products in float, in a fixed order; the norm of a row that asks, queries times scale and log2(e), turned
//            queries times the norm's weight, weights of keys over the deviations of their rows, and what the norm makes of
//            sums of rows are rounded to elements, to nearest even; rows themselves are not rounded. Weights are relative to
//            the largest of their head so far. The variance is the mean of squares less the square of the mean, in float: off
//            by some 2^-20 (mean^2 + variance). Exponentials, logarithms and roots are off by about two units of the last
//            place of a float; one rounding of y. NaN in a row makes y of its image NaN, and so do squares of a row of bf16
//            that add up to more than a float holds; a score of infinity or NaN, or none above minus infinity, makes y of
//            the image's head NaN.
// Launch     grid of ceil(images / each) clusters; a cluster has `heads` blocks; block kThreads; dynamic shared memory
//            Shared::kBytes. Compute capability 9.0 exactly. Entry sm90_class_attention_N has up to N heads.
// Limits     epsilon above 0 if there is a norm; each 1 to heads; heads 2 up to the entry's, because a block without a cluster
//            cannot send; tokens at least 1, and query below it.
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
