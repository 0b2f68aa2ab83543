// Mean over the pixels and fully connected layer of few images in one launch, on Hopper, spread over the GPU.
//
// Every cluster computes the means of all images, as sm90_tail.cu does, and each of its blocks 8 outputs of its own,
// over all channels. So each multiprocessor reads a hundredth of the filters, and does so while earlier launches end:
// they are in registers before the first pixel is.
#include "sm90_tail.cuh"

struct MeanLinearArgs {
  const uint8_t *x;     // [images][pixels][c_chunks] chunks of 8 halves or bytes
  const uint4 *filter;  // [outputs][c_chunks] chunks of halves
  const float *bias;    // [outputs]
  float *y;             // [images], y_pitch apart: [outputs]
  int32_t images;
  int32_t pixels;
  int32_t c_chunks;
  int32_t outputs;
  int32_t share_chunks;  // of a block's share of the mean
  float scale;           // what sums of bytes are multiplied by
  uint32_t flip;         // what makes four bytes unsigned: 0x80808080 if they are signed, else 0
  int32_t y_pitch;       // floats
  FastDivide by_share_chunks;
};
static_assert(sizeof(MeanLinearArgs) == 72, "mirrored in sm90_mean_linear.rs");
static_assert(offsetof(MeanLinearArgs, images) == 32 && offsetof(MeanLinearArgs, by_share_chunks) == 64,
              "mirrored in sm90_mean_linear.rs");

constexpr int kImages = 8;   // at most: columns of a fragment
constexpr int kOutputs = 8;  // of a block: half the rows of a fragment
constexpr int kTurns = 4;    // in which the warps load all channels
constexpr int kGroupChunks = 4;  // that the lanes of an output load together: 32 channels
constexpr int kTurnChunks = kWarps * kGroupChunks;  // of all warps
constexpr int kSums = kOutputs * kImages;
static_assert(kWarps * kSums * 4 <= kMeanBytes, "they lie where the sums of the mean lay");

// What `mean` needs to know of the block.
struct Place {
  int32_t rank, blocks;  // of the cluster
  int32_t image_first, images;
  int32_t mean_pitch;    // chunks: what the lanes of a fragment read lies in different banks
  uint32_t smem_sums, smem_means;
};

// 16 bytes, zeros if not `valid`, by a load that stays where it is: ptxas moves loads of memory that nobody writes
// behind the wait for earlier launches.
TREFOIL_DEVICE uint4 load_early_or_zero(const uint4 *src, bool valid) {
  uint4 value{};
  asm volatile("{\n.reg .pred valid;\nsetp.ne.b32 valid, %5, 0;\n@valid ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(value.x), "+r"(value.y), "+r"(value.z), "+r"(value.w)
               : "l"(src), "r"(static_cast<int32_t>(valid)) : "memory");
  return value;
}

template <class Pixels> TREFOIL_DEVICE void mean_linear(const MeanLinearArgs &args) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  const uint32_t smem = shared_address(shared_bytes);
  const int32_t mean_pitch = (args.c_chunks + 7) / 8 * 8 + 4;
  const Place place{static_cast<int32_t>(cluster_rank()), static_cast<int32_t>(cluster_blocks()), 0, args.images,
                    mean_pitch, smem, smem + kMeanBytes};
  cluster_arrive();  // waited for before a block writes to another

  // The lane's part of the filters, while earlier launches end. Outputs and channels beyond the last are zeros.
  const int32_t warp = threadIdx.x / 32, lane_row = threadIdx.x % 32 / 4, lane_chunk = threadIdx.x % 4;
  const int32_t k_first = static_cast<int32_t>(blockIdx.x) * kOutputs, k = k_first + lane_row;
  const int32_t chunk = warp * kGroupChunks + lane_chunk;
  const uint4 *row = args.filter + static_cast<int64_t>(k) * args.c_chunks;
  uint4 filter[kTurns];
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t of = chunk + turn * kTurnChunks;
    filter[turn] = load_early_or_zero(row + of, k < args.outputs && of < args.c_chunks);
  }
  const int32_t k_of_sum = k_first + static_cast<int32_t>(threadIdx.x) / kImages;
  uint32_t bias = 0;
  load_word_if(threadIdx.x < kSums && k_of_sum < args.outputs, bias,
               reinterpret_cast<const uint8_t *>(args.bias + k_of_sum));

  wait_for_earlier_launches();
  allow_next_launch();
  mean<Pixels>(args, place);
  cluster_arrive_written();
  cluster_wait();

  // A lane's 16 bytes are k 2t, 2t + 1, 2t + 8, 2t + 9 of two products, of both operands alike: the order of the sum is
  // free. Rows 8 to 15 of the fragments are zeros.
  float acc[4] = {};
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int32_t of = chunk + turn * kTurnChunks;
    const bool exists = lane_row < args.images && of < args.c_chunks;
    const uint4 x = exists ? load_shared_u32x4(place.smem_means + (lane_row * mean_pitch + of) * 16) : uint4{};
    const uint32_t first[4] = {filter[turn].x, 0, filter[turn].y, 0}, second[4] = {filter[turn].z, 0, filter[turn].w, 0};
    mma_m16n8k16(acc, first, x.x, x.y);
    mma_m16n8k16(acc, second, x.z, x.w);
  }
  store_shared_f32x2(place.smem_sums + (warp * kSums + lane_row * kImages + lane_chunk * 2) * 4,
                     make_float2(acc[0], acc[1]));
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  const int32_t image = threadIdx.x % kImages;
  float sum = 0.0f;
#pragma unroll
  for (int of = 0; of < kWarps; ++of)
    sum += __uint_as_float(load_shared_u32(place.smem_sums + (of * kSums + threadIdx.x) * 4));
  if (image < args.images && k_of_sum < args.outputs)
    args.y[static_cast<int64_t>(image) * args.y_pitch + k_of_sum] = sum + __uint_as_float(bias);
}

// Purpose    m[i][c] = (sum over pixels of x[i][pixel][c]) / pixels, rounded to half; in _bytes
//            half(float(sum over pixels of x[i][pixel][c]) * scale);
//            y[i][k] = sum over c of m[i][c] * filter[k][c] + bias[k].
// Operands   x       read   halves [images][pixels][8 * c_chunks], 16-byte aligned; in _bytes bytes, signed where flip is
//                           not 0
//            filter  read   halves [outputs][8 * c_chunks], zeros in padded channels, 16-byte aligned
//            bias    read   floats [outputs]
//            y       write  floats [outputs] of each image, y_pitch floats apart, 4-byte aligned, disjoint from the others
// Arithmetic float sums of halves for the mean, of bytes exact sums, one rounding to half; half products, float sums in
//            a fixed order, no rounding to half after that.
// Launch     clusters of 1 to 16 blocks along the grid (16: not on every GPU): grid ceil(outputs / 8), rounded up to
//            whole clusters; block kThreads; dynamic shared memory kMeanBytes + images * (round_up(c_chunks, 8) + 4) *
//            16. compute capability 9.0 exactly.
// Limits     1 <= images <= 8; 1 <= c_chunks <= 256; share_chunks = ceil(c_chunks / blocks of a cluster); 1 <= outputs <=
//            y_pitch, outputs below 2^20; images * pixels below 2^28, in _bytes pixels up to 2^23. Deterministic, no atomics.
// Ordering   may be launched before its predecessors have ended, waits for them itself; filter and bias are read before.
//            Lets the next launch start behind that wait.
// Source     fragments of mma.m16n8k16 and distributed shared memory as in PTX ISA 9.0.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sm90_mean_linear(const __grid_constant__ MeanLinearArgs args) {
  mean_linear<HalfPixels>(args);
}

// As sm90_mean_linear with x in bytes.
extern "C" __global__ void __launch_bounds__(kThreads, 2)
    sm90_mean_linear_bytes(const __grid_constant__ MeanLinearArgs args) {
  mean_linear<BytePixels>(args);
}
