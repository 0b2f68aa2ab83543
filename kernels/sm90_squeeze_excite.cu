// Squeeze and excitation of images, on Hopper, in one launch: means over pixels, two layers of them, and each pixel times
// the gates that come out.
//
// A cluster has an image at a time. Its blocks share the channels and the pixels, and a block keeps its part of the image in
// registers from the means to the product with the gates. The first layer is linear in the sums over pixels, so each block
// computes it of its own sums and gives what comes out to all blocks, which add it up: one exchange. Each then has
// the whole hidden vector, and computes the gates of its own channels.
#include "element.cuh"
#include "product_epilogue.cuh"
#include "sm90_ptx.cuh"

struct SqueezeExciteArgs {
  const uint4 *x;             // [images][pixels][chunks] chunks of 8 elements
  const uint4 *squeeze;       // [hidden][chunks] chunks
  const float *squeeze_bias;  // [hidden]
  const uint4 *excite;        // [8 chunks][hidden / 8] chunks
  const float *excite_bias;   // [8 chunks]
  uint4 *y;                   // as x
  int32_t images;
  int32_t pixels;
  int32_t chunks;
  int32_t hidden;          // a multiple of 8
  int32_t channel_parts;   // of an image; block rank has channel part rank % channel_parts
  int32_t parts;           // of channels times pixels: blocks of the cluster that work
  int32_t part_chunks;     // of a block, at most
  int32_t part_pixels;
  int32_t rows;            // pixels of a block side by side: kThreads / part_chunks
  int32_t groups;          // threads that share the rows of a channel
  int32_t squeeze_lanes;   // that compute a value of the hidden vector together: a power of two
  int32_t excite_lanes;    // and a gate
  int32_t activation;      // of x, one of kPlain to kRamped
  int32_t hidden_activation;
  int32_t gate;            // kGateSigmoid or kGateRamp
  float activation_a;
  float activation_b;
  float hidden_a;
  float hidden_b;
  float gate_slope;
  float gate_offset;
  float per_pixel;         // 1 / pixels
  FastDivide by_part_chunks;
  FastDivide by_hidden_chunks;
  FastDivide by_channel_parts;
  FastDivide by_rows;
  int32_t squeeze_pitch;   // chunks of shared memory from one row of a filter to the next: odd, so that rows begin in
  int32_t excite_pitch;    // different banks
  int32_t excite_at;       // bytes of shared memory before the second filter, and before what follows it
  int32_t sums_at;
  int32_t groups_at;
  int32_t means_at;
  int32_t parts_at;
  int32_t hidden_at;
  int32_t gates_at;
  int32_t biases_at;
  int32_t clusters;        // of the grid
  int32_t padding;
};
static_assert(sizeof(SqueezeExciteArgs) == 216, "mirrored in sm90_squeeze_excite.rs");
static_assert(offsetof(SqueezeExciteArgs, images) == 48 && offsetof(SqueezeExciteArgs, by_part_chunks) == 136,
              "mirrored in sm90_squeeze_excite.rs");

// Kinds of activations and of gates, as sm90_squeeze_excite.rs numbers them.
enum : int32_t { kPlain = 0, kBounded = 1, kSigmoidal = 2, kRamped = 3 };
enum : int32_t { kGateSigmoid = 0, kGateRamp = 1 };

constexpr int kThreads = 512;
// Sums of each thread, its first four channels and its last four: both halves of neighbours are in different banks.
constexpr uint32_t kHighSums = kThreads * 16 + 64;

// A block's part of the image. Its shared memory has filters of both layers, sums of threads, sums of groups, means, what
// the parts have of the hidden vector, the hidden vector, gates, and two biases of each thread.
struct Part {
  int32_t rank;
  int32_t chunk_first, chunks;
  int32_t pixel_first, pixel_end;
  uint32_t smem;

  static __device__ __forceinline__ Part of(const SqueezeExciteArgs &args, uint32_t smem) {
    Part part;
    part.smem = smem;
    part.rank = cluster_rank();
    const int32_t pixel_part = divide(part.rank, args.by_channel_parts);
    part.chunk_first = (part.rank - pixel_part * args.channel_parts) * args.part_chunks;
    part.chunks = min(args.part_chunks, args.chunks - part.chunk_first);
    part.pixel_first = pixel_part * args.part_pixels;
    part.pixel_end = min(part.pixel_first + args.part_pixels, args.pixels);
    return part;
  }
};

// Channels of a block, those beyond the last one of the image included.
TREFOIL_DEVICE int32_t part_channels(const SqueezeExciteArgs &args) { return args.part_chunks * kChunkElems; }

// ---- filters -----------------------------------------------------------------------------------------------------

// The block's columns of the first layer's filter and its rows of the second one's; zeros beyond the last channel.
TREFOIL_DEVICE void copy_filters(const SqueezeExciteArgs &args, const Part &part) {
  for (int32_t i = threadIdx.x; i < args.hidden * args.part_chunks; i += kThreads) {
    const int32_t row = divide(i, args.by_part_chunks), chunk = i - row * args.part_chunks;
    const bool exists = chunk < part.chunks;
    const uint4 *from = args.squeeze + (exists ? row * args.chunks + part.chunk_first + chunk : 0);
    cp_async_16(part.smem + (row * args.squeeze_pitch + chunk) * 16, from, exists);
  }
  const int32_t hidden_chunks = args.hidden / kChunkElems;
  const uint4 *excite = args.excite + part.chunk_first * args.hidden;  // 8 channels of hidden / 8 chunks each
  for (int32_t i = threadIdx.x; i < part_channels(args) * hidden_chunks; i += kThreads) {
    const int32_t row = divide(i, args.by_hidden_chunks), chunk = i - row * hidden_chunks;
    const bool exists = row < part.chunks * kChunkElems;
    cp_async_16(part.smem + args.excite_at + (row * args.excite_pitch + chunk) * 16, exists ? excite + i : args.excite,
                exists);
  }
  cp_async_commit();
}

// The biases that the thread adds, to its own places in shared memory.
TREFOIL_DEVICE uint32_t biases_of_thread(const SqueezeExciteArgs &args, const Part &part) {
  return part.smem + args.biases_at + threadIdx.x * 8;
}

TREFOIL_DEVICE void copy_biases(const SqueezeExciteArgs &args, const Part &part) {
  const int32_t channel = threadIdx.x / args.excite_lanes;
  float2 biases = {};
  if (threadIdx.x < args.hidden) biases.x = __ldg(args.squeeze_bias + threadIdx.x);
  if (channel < part.chunks * kChunkElems)
    biases.y = __ldg(args.excite_bias + part.chunk_first * kChunkElems + channel);
  store_shared_f32x2(biases_of_thread(args, part), biases);
}

// Eight floats in shared memory.
TREFOIL_DEVICE Chunk load_shared_chunk(uint32_t smem) {
  const uint4 low = load_shared_u32x4(smem), high = load_shared_u32x4(smem + 16);
  return Chunk{{__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z), __uint_as_float(low.w),
                __uint_as_float(high.x), __uint_as_float(high.y), __uint_as_float(high.z), __uint_as_float(high.w)}};
}

// A row of a filter times a vector, both in shared memory, by `lanes` neighbouring lanes, each of which gets the sum. All
// lanes of a warp call it; `exists` is the same for lanes of one row.
TREFOIL_DEVICE float product(uint32_t smem_row, uint32_t smem_vector, int32_t chunks, int32_t lanes, bool exists) {
  float sum = 0.0f;
  if (exists) {
    for (int32_t chunk = threadIdx.x & (lanes - 1); chunk < chunks; chunk += lanes) {
      const Chunk w = unpack_chunk<Element>(load_shared_u32x4(smem_row + chunk * 16));
      const Chunk v = load_shared_chunk(smem_vector + chunk * 32);
#pragma unroll
      for (int i = 0; i < kChunkElems; ++i) sum = fmaf(w.v[i], v.v[i], sum);
    }
  }
  for (int32_t distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xffffffff, sum, distance);
  return sum;
}

// ---- pixels ------------------------------------------------------------------------------------------------------

// A thread's chunks of the image, of one place among the channels and of every args.rows-th pixel.
template <int kLoads> struct Pixels {
  uint4 x[kLoads];
  int32_t chunk;  // of the block
  int32_t count;  // of them that exist
  int32_t first;  // of the image, and the distance to the next
  int32_t step;

  __device__ __forceinline__ Pixels(const SqueezeExciteArgs &args, const Part &part) {
    const int32_t row = divide(threadIdx.x, args.by_part_chunks), pixel = part.pixel_first + row;
    chunk = threadIdx.x - row * args.part_chunks;
    first = pixel * args.chunks + part.chunk_first + chunk, step = args.rows * args.chunks;
    const bool exists = row < args.rows && chunk < part.chunks && pixel < part.pixel_end;
    count = exists ? 1 + divide(part.pixel_end - 1 - pixel, args.by_rows) : 0;
  }
};

// Applies the activation to the thread's chunks, rounded, and adds them to `sum`. An activation of 0 is 0.
template <int kLoads, class Activation>
TREFOIL_DEVICE void activate_all(Pixels<kLoads> &pixels, const Activation &activation, Chunk &sum) {
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    keep_order(pixels.x[i]);  // one chunk after the other: there are no registers for several
    uint32_t words[4] = {pixels.x[i].x, pixels.x[i].y, pixels.x[i].z, pixels.x[i].w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      float2 z = unpack_elements(words[j]);
      words[j] = pack_elements(activation(z.x), activation(z.y));
      z = unpack_elements(words[j]);
      sum.v[2 * j] += z.x, sum.v[2 * j + 1] += z.y;
    }
    pixels.x[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

template <int kLoads>
TREFOIL_DEVICE Chunk sums_of_thread(const SqueezeExciteArgs &args, Pixels<kLoads> &pixels) {
  const float a = args.activation_a, b = args.activation_b;
  Chunk sum = {};
  switch (args.activation) {
    case kBounded: activate_all(pixels, Clamped(a, b), sum); break;
    case kSigmoidal: activate_all(pixels, Sigmoid(a, b), sum); break;
    case kRamped: activate_all(pixels, Ramp(a, b), sum); break;
    default:
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        keep_order(pixels.x[i]);
        const Chunk z = unpack_chunk<Element>(pixels.x[i]);
#pragma unroll
        for (int j = 0; j < kChunkElems; ++j) sum.v[j] += z.v[j];
      }
  }
  return sum;
}

// The block's share of the means of its channels, from the sums of its threads. Ends without a barrier.
TREFOIL_DEVICE void mean(const SqueezeExciteArgs &args, const Part &part, const Chunk &sum) {
  const auto bits = [&](int i) { return __float_as_uint(sum.v[i]); };
  const uint32_t own = part.smem + args.sums_at + threadIdx.x * 16;
  store_shared_u32x4(own, make_uint4(bits(0), bits(1), bits(2), bits(3)));
  store_shared_u32x4(own + kHighSums, make_uint4(bits(4), bits(5), bits(6), bits(7)));
  __syncthreads();
  const int32_t group = divide(threadIdx.x / kChunkElems, args.by_part_chunks);
  const int32_t channel = threadIdx.x - group * part_channels(args);
  if (group < args.groups) {
    const uint32_t of_channel =
        part.smem + args.sums_at + channel % 8 / 4 * kHighSums + channel / 8 * 16 + channel % 4 * 4;
    float total = 0.0f;
#pragma unroll 4
    for (int32_t row = group; row < args.rows; row += args.groups)
      total += __uint_as_float(load_shared_u32(of_channel + row * args.part_chunks * 16));
    store_shared_u32(part.smem + args.groups_at + (group * part_channels(args) + channel) * 4, __float_as_uint(total));
  }
  __syncthreads();
  if (threadIdx.x < part_channels(args)) {
    float total = 0.0f;
#pragma unroll 4
    for (int32_t group = 0; group < args.groups; ++group) {
      const uint32_t at = part.smem + args.groups_at + (group * part_channels(args) + threadIdx.x) * 4;
      total += __uint_as_float(load_shared_u32(at));
    }
    store_shared_u32(part.smem + args.means_at + threadIdx.x * 4, __float_as_uint(total * args.per_pixel));
  }
}

// ---- layers ------------------------------------------------------------------------------------------------------

// The activation of the hidden vector.
TREFOIL_DEVICE float activate_hidden(const SqueezeExciteArgs &args, float x) {
  const float a = args.hidden_a, b = args.hidden_b;
  switch (args.hidden_activation) {
    case kBounded: return Clamped(a, b)(x);
    case kSigmoidal: return Sigmoid(a, b)(x);
    case kRamped: return Ramp(a, b)(x);
    default: return x;
  }
}

// 1 / (1 + 2^(slope x)), or slope x + offset between 0 and 1. NaN stays NaN.
TREFOIL_DEVICE float gate_of(const SqueezeExciteArgs &args, float x) {
  return args.gate == kGateSigmoid ? reciprocal_approximate(1.0f + exp2_approximate(x * args.gate_slope))
                                   : min_or_nan(max_or_nan(fmaf(x, args.gate_slope, args.gate_offset), 0.0f), 1.0f);
}

// What the first layer makes of the block's share of the means, to every block that works.
TREFOIL_DEVICE void squeeze(const SqueezeExciteArgs &args, const Part &part) {
  const int32_t lanes = args.squeeze_lanes, row = threadIdx.x / lanes;
  const float sum = product(part.smem + row * args.squeeze_pitch * 16, part.smem + args.means_at, args.part_chunks, lanes,
                            row < args.hidden);
  if (row < args.hidden) {
    for (int32_t to = threadIdx.x & (lanes - 1); to < args.parts; to += lanes)
      store_u32_at(part.smem + args.parts_at + (part.rank * args.hidden + row) * 4, to, __float_as_uint(sum));
  }
}

// The hidden vector, from what all parts have sent.
TREFOIL_DEVICE void add_parts(const SqueezeExciteArgs &args, const Part &part) {
  if (threadIdx.x < args.hidden) {
    float sum = load_shared_f32x2(biases_of_thread(args, part)).x;
#pragma unroll 4
    for (int32_t from = 0; from < args.parts; ++from)
      sum += __uint_as_float(load_shared_u32(part.smem + args.parts_at + (from * args.hidden + threadIdx.x) * 4));
    store_shared_u32(part.smem + args.hidden_at + threadIdx.x * 4, __float_as_uint(activate_hidden(args, sum)));
  }
}

// The gates of the block's channels.
TREFOIL_DEVICE void excite(const SqueezeExciteArgs &args, const Part &part) {
  const int32_t lanes = args.excite_lanes, row = threadIdx.x / lanes;
  const uint32_t smem_row = part.smem + args.excite_at + row * args.excite_pitch * 16;
  const float sum = product(smem_row, part.smem + args.hidden_at, args.hidden / kChunkElems, lanes,
                            row < part_channels(args));
  if (row < part_channels(args) && (threadIdx.x & (lanes - 1)) == 0) {
    const float bias = load_shared_f32x2(biases_of_thread(args, part)).y;
    store_shared_u32(part.smem + args.gates_at + row * 4, __float_as_uint(gate_of(args, sum + bias)));
  }
}

// ---- the kernel body ---------------------------------------------------------------------------------------------

template <int kLoads> TREFOIL_DEVICE void squeeze_excite(const SqueezeExciteArgs &args) {
  extern __shared__ __align__(16) uint8_t shared_bytes[];
  const Part part = Part::of(args, shared_address(shared_bytes));
  const int32_t image_first = blockIdx.x / cluster_blocks();
  cluster_arrive();
  allow_next_launch();
  if (part.rank >= args.parts) {  // a block without a part
    wait_for_earlier_launches();
    for (int32_t image = image_first; image < args.images; image += args.clusters) {
      cluster_wait();
      cluster_arrive_written();
      cluster_wait();
      if (image + args.clusters < args.images) cluster_arrive();
    }
    return;
  }
  // Filters and biases depend on no launch: they come while earlier launches end.
  copy_filters(args, part);
  copy_biases(args, part);
  Pixels<kLoads> pixels(args, part);
  wait_for_earlier_launches();
#pragma unroll 1
  for (int32_t image = image_first; image < args.images; image += args.clusters) {
    const int64_t first = static_cast<int64_t>(image) * args.pixels * args.chunks + pixels.first;
#pragma unroll
    for (int i = 0; i < kLoads; ++i)
      pixels.x[i] = load_written_or_zero(args.x + first + i * pixels.step, i < pixels.count);
    mean(args, part, sums_of_thread(args, pixels));
    cp_async_wait<0>();
    // All blocks have begun, and have read what they were sent of the image before: their shared memory can be written.
    cluster_wait();
    __syncthreads();
    squeeze(args, part);
    cluster_arrive_written();
    cluster_wait();
    add_parts(args, part);
    __syncthreads();
    // This block has read what it was sent, so that the others may send what they have of the next image. It has written
    // nothing for them: the arrival releases nothing, which would wait for all accesses to global memory.
    if (image + args.clusters < args.images) cluster_arrive();
    excite(args, part);
    __syncthreads();
    const Chunk gates = load_shared_chunk(part.smem + args.gates_at + pixels.chunk * 32);
    uint4 *y = args.y + first;
#pragma unroll
    for (int i = 0; i < kLoads; ++i, y += pixels.step) {
      if (i >= pixels.count) break;
      keep_order(pixels.x[i]);
      Chunk z = unpack_chunk<Element>(pixels.x[i]);
#pragma unroll
      for (int j = 0; j < kChunkElems; ++j) z.v[j] *= gates.v[j];
      *y = pack_chunk<Element>(z);
    }
  }
}

// Purpose    y[i][p][c] = z[i][p][c] * gate(sum over h of hidden[i][h] * excite[c][h] + excite_bias[c]), with
//            hidden[i][h] = hidden_act(sum over c of mean over p of z[i][p][c] * squeeze[h][c] + squeeze_bias[h]) and
//            z = act(x), rounded to an element
// Operands   x             read   elements [images][pixels][8 chunks]
//            squeeze       read   elements [hidden][8 chunks]
//            squeeze_bias  read   floats [hidden]
//            excite        read   elements [8 chunks][hidden]
//            excite_bias   read   floats [8 chunks]
//            y             write  elements as x; disjoint from the others
//            All at multiples of 16 bytes. Elements are f16, or bf16 by entries *_bf16.
// Arithmetic sums over pixels, means, both layers, the hidden vector and gates in float, in a fixed order; one rounding of z
//            and one of y to an element, to nearest even; overflow becomes infinity. The activations of x and of the
//            hidden vector are 0 at 0; product_epilogue.cuh has their errors, and a gate by sigmoid is off by less
//            than 2^-16 of itself, or 2^-30. NaN and infinity in a channel may make the whole image NaN.
// Launch     grid of `clusters`, each of which takes every clusters-th image, best as many as run at once; a cluster has
//            any number of blocks from parts up to 16; block kThreads. channel_parts times pixel parts are `parts`;
//            part_chunks = ceil(chunks / channel_parts), at most kThreads / 8, and part_pixels likewise, so that no
//            part is empty. rows = kThreads / part_chunks; ceil(part_pixels / rows) is at most the entry's number.
//            groups is 1 to kThreads / (8 part_chunks); squeeze_lanes * hidden and excite_lanes * 8 part_chunks are at
//            most kThreads, lanes a power of two up to 32. Dynamic shared memory, in this order and at multiples of 16:
//            both filters, [hidden] rows of squeeze_pitch chunks and [8 part_chunks] of excite_pitch; sums, kHighSums +
//            16 kThreads bytes; floats [groups][8 part_chunks], [8 part_chunks], [parts][hidden], [hidden],
//            [8 part_chunks] and [kThreads][2]. Compute capability 9.0 exactly.
// Limits     hidden a multiple of 8 up to kThreads; pixels, chunks * hidden and chunks of an image below 2^31.
// Ordering   may be launched before its predecessor has ended, and lets its successor be: reads x and writes y only after
//            griddepcontrol.wait, but filters and biases, which are of no launch, before. Deterministic, no atomics.
// Source     Hu et al., Squeeze-and-Excitation Networks (2018).
#define TREFOIL_SM90_SQUEEZE_EXCITE(loads, resident)                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, resident)                                 \
      TREFOIL_ENTRY(sm90_squeeze_excite_##loads)(const __grid_constant__ SqueezeExciteArgs args) { \
    squeeze_excite<loads>(args);                                                                   \
  }

TREFOIL_SM90_SQUEEZE_EXCITE(2, 2)
TREFOIL_SM90_SQUEEZE_EXCITE(4, 2)
TREFOIL_SM90_SQUEEZE_EXCITE(7, 2)
TREFOIL_SM90_SQUEEZE_EXCITE(9, 1)
