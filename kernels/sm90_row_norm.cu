// LayerNorm and RMSNorm of rows, on Hopper: a warp has two rows in registers, or a block one.
#include "element.cuh"
#include "sm90_ptx_e4m3.cuh"

struct RowNormArgs {
  const uint4 *x;       // chunks of 8 elements
  uint4 *y;             // of floats two for a chunk
  const float *weight;  // [columns]
  const float *bias;    // [columns]; null: zeros
  int64_t x_pitch;      // chunks from one row to the next
  int64_t y_pitch;
  int32_t rows;
  int32_t chunks;       // of a row
  int32_t centred;      // 0: the mean is left as it is
  float epsilon;
  float per_column;     // 1 / columns
  float to_codes;       // what values are multiplied by before they are rounded to codes
  uint2 *codes;         // chunks of 8 codes
  int64_t codes_pitch;
  int32_t first_block;  // blocks take rows from its rows on: from 0 up, or from the last down

  // Of norms of sums, whose rows are those of images: some that all images have in front, and their own, which x has.
  int32_t image_rows;
  const float *prefix;        // [prefix_rows][columns]
  const float *positions;     // [image_rows - first_placed][columns]; null: there are none
  uint4 *sum;                 // what the norm is of: the sum, or its first norm
  int64_t sum_pitch;          // chunks from one row to the next
  const float *first_weight;  // [columns]; of a norm before the norm
  const float *first_bias;    // [columns]; null: zeros
  int32_t prefix_rows;
  int32_t first_placed;       // the first row of an image to which a position is added
  int32_t first_centred;
  float first_epsilon;
  FastDivide by_image_rows;
};
static_assert(sizeof(RowNormArgs) == 168 && offsetof(RowNormArgs, rows) == 48, "mirrored in sm90_row_norm.rs");

constexpr int kNormThreads = 64;
constexpr int kWarpRows = 2;  // that a warp has at a time, so that it reads weights and biases half as often
constexpr int kFewThreads = 256;                          // of a block that has a row, at most

TREFOIL_DEVICE float warp_sum(float x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffff, x, distance);
  return x;
}

// The sums of a warp's rows, side by side, so that none waits for the other.
TREFOIL_DEVICE void warp_sums(float (&x)[kWarpRows]) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
#pragma unroll
    for (float &each : x) each += __shfl_xor_sync(0xffffffff, each, distance);
  }
}

// Takes the mean of each row from its values, if told, and gives what they are to be multiplied by. A lane has every 32nd
// chunk of a row, kChunks at most; those behind it are zeros, and stay so. Sums are made for RMSNorm too: a branch around them
// takes registers, and fewer warps run at a time.
template <int kChunks>
TREFOIL_DEVICE void centre(const RowNormArgs &args, bool centred, float epsilon, Chunk (&values)[kWarpRows][kChunks],
                           float (&scale)[kWarpRows]) {
  float sums[kWarpRows] = {}, squares[kWarpRows] = {};
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
      for (float value : values[r][i].v) sums[r] += value;
    }
  }
  warp_sums(sums);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    const float mean = centred ? sums[r] * args.per_column : 0.0f;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const bool inside = static_cast<int32_t>(threadIdx.x % 32) + 32 * i < args.chunks;
      const float of_values = inside ? mean : 0.0f;
#pragma unroll
      for (float &value : values[r][i].v) value -= of_values;
    }
  }
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
      for (float value : values[r][i].v) squares[r] = fmaf(value, value, squares[r]);
    }
  }
  warp_sums(squares);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) scale[r] = rsqrtf(squares[r] * args.per_column + epsilon);
}

// What a norm writes: elements, codes of e4m3, both, or floats.
enum class Writes { kElements, kCodes, kBoth, kFloats };

// Stores a chunk of floats of each lane, all lanes of a warp together: neighbours have halves of the same chunk, so that
// they write sectors of the L2 cache whole.
TREFOIL_DEVICE void store_floats(const RowNormArgs &args, int64_t row, int32_t chunk, const Chunk &values) {
  const bool odd = chunk % 2 == 1;
  float4 *of_pair = reinterpret_cast<float4 *>(args.y + (row * args.y_pitch + chunk - odd) * 2) + odd;
  float other[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) other[i] = __shfl_xor_sync(0xffffffff, values.v[odd ? i : 4 + i], 1);
  const float4 received = make_float4(other[0], other[1], other[2], other[3]);
  if (chunk - odd < args.chunks)
    of_pair[0] = odd ? received : make_float4(values.v[0], values.v[1], values.v[2], values.v[3]);
  if (chunk - odd + 1 < args.chunks)
    of_pair[2] = odd ? make_float4(values.v[4], values.v[5], values.v[6], values.v[7]) : received;
}

template <Writes kWrites>
TREFOIL_DEVICE void store_chunk(const RowNormArgs &args, int64_t row, int32_t chunk, const Chunk &values) {
  static_assert(kWrites != Writes::kFloats, "stored by all lanes together");
  if constexpr (kWrites != Writes::kCodes) args.y[row * args.y_pitch + chunk] = pack_chunk<Element>(values);
  if constexpr (kWrites != Writes::kElements) {
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      pairs[i] = pack_e4m3(values.v[2 * i] * args.to_codes, values.v[2 * i + 1] * args.to_codes);
    args.codes[row * args.codes_pitch + chunk] = make_uint2(pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16);
  }
}

// Eight floats that no launch writes, or zeros. By loads that the compiler does not move behind a wait that follows, as it
// does with those of constants.
TREFOIL_DEVICE Chunk load_early_f32(const float *values, bool valid) {
  const uint4 *chunks = reinterpret_cast<const uint4 *>(values);
  const uint4 low = load_written_or_zero(chunks, valid), high = load_written_or_zero(chunks + 1, valid);
  return Chunk{{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z), __uint_as_float(low.w),
                __uint_as_float(high.x), __uint_as_float(high.y), __uint_as_float(high.z), __uint_as_float(high.w)}};
}

// The number of a warp among those of all blocks, in the order of their rows, times a factor.
TREFOIL_DEVICE int32_t warp_number(const RowNormArgs &args, int32_t factor) {
  const int32_t block = abs(args.first_block - static_cast<int32_t>(blockIdx.x));
  return block * (kNormThreads / 32 * factor) + threadIdx.x / 32 * factor;
}

// Centred values times the scale of their row, with weights and biases.
TREFOIL_DEVICE void scale_chunk(Chunk &values, float scale, const Chunk &weight, const Chunk &bias) {
#pragma unroll
  for (int j = 0; j < kChunkElems; ++j) values.v[j] = fmaf(values.v[j] * scale, weight.v[j], bias.v[j]);
}

// The results of a warp's rows from their centred values and their scales. The rows are neighbours, or kOfImages rows of
// neighbouring images.
template <int kChunks, Writes kWrites, bool kOfImages = false>
TREFOIL_DEVICE void store_rows(const RowNormArgs &args, int32_t row, Chunk (&values)[kWarpRows][kChunks],
                               const float (&scale)[kWarpRows]) {
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int32_t chunk = static_cast<int32_t>(threadIdx.x % 32) + 32 * i;
    if (chunk >= args.chunks) break;
    const Chunk weight = load_chunk_f32(args.weight + chunk * kChunkElems);
    const Chunk bias = args.bias != nullptr ? load_chunk_f32(args.bias + chunk * kChunkElems) : Chunk{};
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const int32_t to = kOfImages ? row + r * args.image_rows : row + r;
      if (to >= args.rows) break;
      scale_chunk(values[r][i], scale[r], weight, bias);
      store_chunk<kWrites>(args, to, chunk, values[r][i]);
    }
  }
}

// The kernel body.
template <int kChunks, Writes kWrites> TREFOIL_DEVICE void row_norm(const RowNormArgs &args) {
  const int32_t row = warp_number(args, kWarpRows), lane = threadIdx.x % 32;
  allow_next_launch();
  wait_for_earlier_launches();
  uint4 bits[kWarpRows][kChunks];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i)
      bits[r][i] = load_written_or_zero(args.x + (row + r) * args.x_pitch + lane + 32 * i,
                                        row + r < args.rows && lane + 32 * i < args.chunks);
  }
  Chunk values[kWarpRows][kChunks];
  float scale[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) values[r][i] = unpack_chunk<Element>(bits[r][i]);
  }
  centre(args, args.centred, args.epsilon, values, scale);
  store_rows<kChunks, kWrites>(args, row, values, scale);
}

// Eight values of an image's own row that is summed in row `in_image` of the image, as they are in memory; zeros in a row
// in front.
TREFOIL_DEVICE uint4 load_own(const RowNormArgs &args, int32_t image, int32_t in_image, int32_t chunk, bool valid) {
  const int64_t first = static_cast<int64_t>(image) * (args.image_rows - args.prefix_rows);
  const int64_t row = first + in_image - args.prefix_rows;
  return load_written_or_zero(args.x + row * args.x_pitch + chunk, valid && in_image >= args.prefix_rows);
}

// Eight values of the row in front that row `in_image` of an image is; zeros if it is none.
TREFOIL_DEVICE Chunk load_prefix(const RowNormArgs &args, int32_t in_image, int32_t chunk, bool valid) {
  const int64_t at = static_cast<int64_t>(in_image) * args.chunks + chunk;
  return load_early_f32(args.prefix + at * kChunkElems, valid && in_image < args.prefix_rows);
}

// Eight values of the position of row `in_image` of an image; zeros if it has none.
TREFOIL_DEVICE Chunk load_position(const RowNormArgs &args, int32_t in_image, int32_t chunk, bool valid) {
  const int64_t at = static_cast<int64_t>(in_image - args.first_placed) * args.chunks + chunk;
  const bool has_position = args.positions != nullptr && in_image >= args.first_placed;
  return load_early_f32(args.positions + at * kChunkElems, valid && has_position);
}

TREFOIL_DEVICE void add_chunk(Chunk &to, const Chunk &values) {
#pragma unroll
  for (int j = 0; j < kChunkElems; ++j) to.v[j] += values.v[j];
}

// Stores a chunk of the sum, or of its first norm, if it is inside, and gives its values as they are stored.
TREFOIL_DEVICE Chunk store_sum(const RowNormArgs &args, int64_t row, int32_t chunk, bool inside, const Chunk &values) {
  const uint4 bits = pack_chunk<Element>(values);
  if (inside) args.sum[row * args.sum_pitch + chunk] = bits;
  return unpack_chunk<Element>(bits);
}

// The kernel body of norms of sums. A warp has the same row of two images, which have the same row in front and the same
// position. kTwice: a norm of the sum comes before the norm.
template <int kChunks, bool kTwice> TREFOIL_DEVICE void row_norm_of_sum(const RowNormArgs &args) {
  const int32_t number = warp_number(args, 1), lane = threadIdx.x % 32;
  const int32_t pair = divide(number, args.by_image_rows), in_image = number - pair * args.image_rows;
  const int32_t image = pair * kWarpRows, apart = args.image_rows, row = image * apart + in_image;
  const bool is_front = in_image < args.prefix_rows;
  allow_next_launch();
  Chunk added[kChunks];
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int32_t chunk = lane + 32 * i;
    added[i] = load_position(args, in_image, chunk, chunk < args.chunks);
  }
  wait_for_earlier_launches();
  uint4 bits[kWarpRows][kChunks];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const bool inside = row + r * apart < args.rows && lane + 32 * i < args.chunks;
      bits[r][i] = load_own(args, image + r, in_image, lane + 32 * i, inside);
    }
  }
  if (is_front) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int32_t chunk = lane + 32 * i;
      add_chunk(added[i], load_prefix(args, in_image, chunk, chunk < args.chunks));
    }
  }
  Chunk values[kWarpRows][kChunks];
  float scale[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      values[r][i] = unpack_chunk<Element>(bits[r][i]);
      add_chunk(values[r][i], added[i]);
    }
  }
  if constexpr (kTwice) centre(args, args.first_centred, args.first_epsilon, values, scale);
#pragma unroll
  for (int i = 0; i < kChunks; ++i) {
    const int32_t chunk = lane + 32 * i;
    const bool inside = chunk < args.chunks, has_bias = args.first_bias != nullptr;
    Chunk weight{}, bias{};
    if (kTwice && inside) weight = load_chunk_f32(args.first_weight + chunk * kChunkElems);
    if (kTwice && inside && has_bias) bias = load_chunk_f32(args.first_bias + chunk * kChunkElems);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      if constexpr (kTwice) scale_chunk(values[r][i], scale[r], weight, bias);  // zeros behind the row
      const int32_t to = row + r * apart;
      values[r][i] = store_sum(args, to, chunk, inside && to < args.rows, values[r][i]);
    }
  }
  centre(args, args.centred, args.epsilon, values, scale);
  store_rows<kChunks, Writes::kElements, true>(args, row, values, scale);
}

constexpr int kFewWarps = kFewThreads / 32;
static_assert(kFewWarps == 8, "block_sum reads twice four");

// Over a block of up to eight warps. `sums`: places in shared memory, one for each of eight warps, zeros for those that the
// block does not have. The sum before this one has other places.
TREFOIL_DEVICE float block_sum(float x, uint32_t sums, bool has_second_four) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) store_shared_u32(sums + threadIdx.x / 32 * 4, __float_as_uint(x));
  __syncthreads();
  const float4 first = load_shared_four(sums);
  float sum = 0.0f + first.x + first.y + first.z + first.w;
  if (has_second_four) {
    const float4 second = load_shared_four(sums + 16);
    sum = sum + second.x + second.y + second.z + second.w;
  }
  return sum;
}

// Sums over a block. Zeros have to be in both places of warps that the block does not have, before the first sum.
struct BlockSums {
  uint32_t places;
  bool has_second_four;

  static constexpr uint32_t kBytes = kFewWarps * 4;

  __device__ __forceinline__ BlockSums(float (&of_warps)[2][kFewWarps], int32_t chunks)
      : places(uniform(shared_address(of_warps))), has_second_four(chunks > kFewThreads / 2) {
    const int32_t place = threadIdx.x;
    if (place < 2 * kFewWarps && place % kFewWarps >= static_cast<int32_t>(blockDim.x / 32))
      store_shared_u32(places + place * 4, 0);
  }

  __device__ __forceinline__ float of(float x) {
    x = block_sum(x, places, has_second_four);
    places ^= kBytes;
    return x;
  }

  // Takes the mean of the block's row from its values, if told, and gives what they are to be multiplied by.
  __device__ __forceinline__ float centre(Chunk &values, bool inside, bool centred, float per_column, float epsilon) {
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) sum += values.v[i];
    const float mean = centred ? of(sum) * per_column : 0.0f;
#pragma unroll
    for (int i = 0; i < kChunkElems; ++i) {
      values.v[i] -= mean;
      if (inside) squares = fmaf(values.v[i], values.v[i], squares);
    }
    return rsqrtf(of(squares) * per_column + epsilon);
  }
};

// The kernel body for few rows, and for floats: a block has one row at a time, a thread a chunk of it. Weights and biases
// come while earlier launches end, for nothing has read them before in a run; places are found before that too. Of floats a
// block has every gridDim.x-th row, and the next one comes while it computes.
template <Writes kWrites> TREFOIL_DEVICE void row_norm_few(const RowNormArgs &args) {
  __shared__ __align__(2 * BlockSums::kBytes) float sums_of_warps[2][kFewWarps];  // of every other sum
  const int32_t chunk = threadIdx.x;
  const bool inside = chunk < args.chunks;
  allow_next_launch();
  const Chunk weight = load_early_f32(args.weight + chunk * kChunkElems, inside);
  const Chunk bias = load_early_f32(args.bias + chunk * kChunkElems, inside && args.bias != nullptr);
  const uint4 *const x = args.x + chunk;
  int64_t row = blockIdx.x;
  BlockSums sums(sums_of_warps, args.chunks);
  wait_for_earlier_launches();
  uint4 bits = load_written_or_zero(x + row * args.x_pitch, inside);
  for (;;) {
    Chunk values = unpack_chunk<Element>(bits);
    const int64_t next = row + gridDim.x;
    const bool has_next = kWrites == Writes::kFloats && next < args.rows;
    if (has_next) bits = load_written_or_zero(x + next * args.x_pitch, inside);
    const float scale = sums.centre(values, inside, args.centred, args.per_column, args.epsilon);
    if (kWrites != Writes::kFloats && !inside) return;
    scale_chunk(values, scale, weight, bias);
    if constexpr (kWrites == Writes::kFloats) store_floats(args, row, chunk, values);
    else store_chunk<kWrites>(args, row, chunk, values);
    if (!has_next) return;
    row = next;
  }
}

// The same of norms of sums: a block has one row.
template <bool kTwice> TREFOIL_DEVICE void row_norm_of_sum_few(const RowNormArgs &args) {
  __shared__ __align__(2 * BlockSums::kBytes) float sums_of_warps[2][kFewWarps];  // of every other sum
  const int32_t chunk = threadIdx.x, row = blockIdx.x;
  const bool inside = chunk < args.chunks;
  allow_next_launch();
  const auto load = [&](const float *of) { return load_early_f32(of + chunk * kChunkElems, inside && of != nullptr); };
  const Chunk weight = load(args.weight), bias = load(args.bias);
  const int32_t image = divide(row, args.by_image_rows), in_image = row - image * args.image_rows;
  const Chunk prefix = load_prefix(args, in_image, chunk, inside), position = load_position(args, in_image, chunk, inside);
  Chunk first_weight{}, first_bias{};
  if constexpr (kTwice) {
    first_weight = load(args.first_weight);
    first_bias = load(args.first_bias);
  }
  BlockSums sums(sums_of_warps, args.chunks);
  wait_for_earlier_launches();
  Chunk values = unpack_chunk<Element>(load_own(args, image, in_image, chunk, inside));
  add_chunk(values, prefix);
  add_chunk(values, position);
  if constexpr (kTwice) {
    const float scale = sums.centre(values, inside, args.first_centred, args.per_column, args.first_epsilon);
    scale_chunk(values, scale, first_weight, first_bias);  // zeros behind the row
  }
  values = store_sum(args, row, chunk, inside, values);
  const float scale = sums.centre(values, inside, args.centred, args.per_column, args.epsilon);
  if (!inside) return;
  scale_chunk(values, scale, weight, bias);
  store_chunk<Writes::kElements>(args, row, chunk, values);
}

// Purpose    y[row][c] = (x[row][c] - mean) / sqrt(variance + epsilon) * weight[c] + bias[c], with mean and variance of
//            the row (LayerNorm); centred 0: mean 0 (RMSNorm). By *_few_f32 as floats; by *_both also codes, by
//            *_e4m3 only codes:
//            codes[row][c] = e4m3(y[row][c] * to_codes)
// Operands   x         read   elements [rows][columns], rows x_pitch chunks of 8 apart
//            weight    read   floats [columns]
//            bias      read   floats [columns], null: zeros
//            y         write  elements [rows][columns], rows y_pitch chunks apart; may be x. Not by *_e4m3. By *_few_f32
//                             floats, in chunks of 8 too; overlaps nothing
//            codes     write  by *_both and *_e4m3 [rows][columns], rows codes_pitch chunks of 8 apart, at multiples of 8
//                             bytes; overlaps nothing
//            All others at multiples of 16 bytes; columns a multiple of 8. Elements are f16, or bf16 by entries *_bf16.
// Arithmetic sums, mean and the variance of the centred row in float, in a fixed order; one rounding to an element at the
//            end, to nearest even (overflow becomes infinity), none by *_few_f32. For a code the float that is rounded to an
//            element is multiplied by to_codes, rounded to a float, and rounded to a code, to nearest even (overflow becomes
//            448 with its sign, NaN the code 0x7f): it is no element in between. A row with NaN or infinity becomes NaN; of
//            a row of bf16 whose squares add up to more than a float holds the bias is left.
// Launch     grid ceil(rows / 4), block kNormThreads; the entry's number is ceil(columns / 256). Or, faster
//            for few rows, _few, and for any number _few_f32: block columns / 8 rounded up to a multiple of 32, grid rows,
//            or of _few_f32 fewer. No dynamic shared memory. Compute capability 9.0 exactly.
// Limits     columns up to 2048; rows below 2^31 - 4.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and writes y only
//            after griddepcontrol.wait; weight and bias are of no launch, and _few reads them before.
// Source     Ba et al., Layer Normalization (2016); Zhang and Sennrich, Root Mean Square Layer Normalization (2019).
#define TREFOIL_SM90_ROW_NORM_OF(name, chunks, writes)                                                            \
  extern "C" __global__ void __launch_bounds__(kNormThreads) TREFOIL_ENTRY(name)(const RowNormArgs args) {        \
    row_norm<chunks, writes>(args);                                                                               \
  }
#define TREFOIL_SM90_ROW_NORM_FEW(name, writes)                                                                   \
  extern "C" __global__ void __launch_bounds__(kFewThreads) TREFOIL_ENTRY(name)(const RowNormArgs args) {         \
    row_norm_few<writes>(args);                                                                                   \
  }

#ifdef TREFOIL_BF16
#define TREFOIL_SM90_ROW_NORM(chunks) TREFOIL_SM90_ROW_NORM_OF(sm90_row_norm_##chunks, chunks, Writes::kElements)
#else
#define TREFOIL_SM90_ROW_NORM(chunks)                                                                             \
  TREFOIL_SM90_ROW_NORM_OF(sm90_row_norm_##chunks, chunks, Writes::kElements)                                     \
  TREFOIL_SM90_ROW_NORM_OF(sm90_row_norm_##chunks##_e4m3, chunks, Writes::kCodes)                                 \
  TREFOIL_SM90_ROW_NORM_OF(sm90_row_norm_##chunks##_both, chunks, Writes::kBoth)

TREFOIL_SM90_ROW_NORM_FEW(sm90_row_norm_few_e4m3, Writes::kCodes)
TREFOIL_SM90_ROW_NORM_FEW(sm90_row_norm_few_both, Writes::kBoth)
#endif

TREFOIL_SM90_ROW_NORM(1)
TREFOIL_SM90_ROW_NORM(2)
TREFOIL_SM90_ROW_NORM(3)
TREFOIL_SM90_ROW_NORM(4)
TREFOIL_SM90_ROW_NORM(5)
TREFOIL_SM90_ROW_NORM(6)
TREFOIL_SM90_ROW_NORM(7)
TREFOIL_SM90_ROW_NORM(8)
TREFOIL_SM90_ROW_NORM_FEW(sm90_row_norm_few, Writes::kElements)
TREFOIL_SM90_ROW_NORM_FEW(sm90_row_norm_few_f32, Writes::kFloats)

// Purpose    sum[row][c] = x[own][c] + positions[in_image - first_placed][c], or in the first prefix_rows rows of an image
//            prefix[in_image][c] in place of x, where row = image * image_rows + in_image; and y = the norm of sum, as above.
//            By *_sum_twice: sum = the first norm of that, and y = the norm of sum.
// Operands   as above, but that x has the images' own rows, image_rows - prefix_rows of each, and overlaps nothing written
//            prefix     read   floats [prefix_rows][columns]
//            positions  read   floats [image_rows - first_placed][columns], null: zeros; no row before first_placed has one
//            sum        write  elements [rows][columns], rows sum_pitch chunks apart; overlaps nothing
//            first_*    read   by *_sum_twice, as weight and bias above
// Arithmetic sums in float, rounded to an element, to nearest even; norms as above, of what is stored. By *_sum_twice the
//            first norm is of floats that are not rounded.
// Launch     up to 1,024 columns grid ceil(pairs of images * image_rows / 2), block kNormThreads; for few rows, and for
//            longer ones, _few_sum and _few_sum_twice as above.
// Limits     as above; rows and those of two more images below 2^31.
// Ordering   as above; prefix, positions and the first norm's weights are of no launch.
#define TREFOIL_SM90_ROW_NORM_OF_SUM(chunks)                                                                      \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                                                      \
      TREFOIL_ENTRY(sm90_row_norm_##chunks##_sum)(const RowNormArgs args) {                      \
    row_norm_of_sum<chunks, false>(args);                                                                         \
  }                                                                                                               \
  extern "C" __global__ void __launch_bounds__(kNormThreads)                                                      \
      TREFOIL_ENTRY(sm90_row_norm_##chunks##_sum_twice)(const RowNormArgs args) {                \
    row_norm_of_sum<chunks, true>(args);                                                                          \
  }

TREFOIL_SM90_ROW_NORM_OF_SUM(1)
TREFOIL_SM90_ROW_NORM_OF_SUM(2)
TREFOIL_SM90_ROW_NORM_OF_SUM(3)
TREFOIL_SM90_ROW_NORM_OF_SUM(4)

extern "C" __global__ void __launch_bounds__(kFewThreads)
    TREFOIL_ENTRY(sm90_row_norm_few_sum)(const RowNormArgs args) {
  row_norm_of_sum_few<false>(args);
}
extern "C" __global__ void __launch_bounds__(kFewThreads)
    TREFOIL_ENTRY(sm90_row_norm_few_sum_twice)(const RowNormArgs args) {
  row_norm_of_sum_few<true>(args);
}
