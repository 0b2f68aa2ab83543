// LayerNorm and RMSNorm within the matrix products before and behind them, for sm90_product_few.cu.
//
//   norm(x)[m] . w[n] + bias[n] = rsqrt(variance[m] + epsilon) * (x[m] . v[n] - mean[m] * sum of v[n]) + shift[n],
//
// where v is w times the norm's weight, rounded to elements, its sums are of the rounded values, and shift is the bias and
// the product of w with the norm's bias. So the product behind a norm reads x itself, and the norm is two numbers of each
// row in its epilogue. The product that writes x leaves what they are made of: of each row, for each slab of channels, the
// mean of the elements that it has rounded, and the sum of the squares of their distances from it. Neither loses anything
// where a mean is large.
#pragma once

#include "element.cuh"
#include "sm90_ptx.cuh"

// What a product does of a norm of rows.
enum class Norm { kNone, kOfX, kOfY };

// Rows of which there are statistics, and the norm that is made of them. Mirrored in sm90_product.rs.
struct NormedRows {
  int32_t last;      // columns of a row's last slab
  int32_t centred;   // 0: the mean is left as it is
  float epsilon;
  float per_column;  // 1 / columns
};
static_assert(sizeof(NormedRows) == 16, "mirrored in sm90_product.rs");

constexpr int kPartColumns = 64;
constexpr int kPartsAtOnce = 16;  // of a row that are under way together
constexpr int kNormBytes = 8;     // of a row: what its sums are multiplied by, then what sums of weights are

// Rows from one part to the next: an even number, so that two rows are read at once.
TREFOIL_DEVICE int32_t statistics_pitch(int32_t rows) { return rows + rows % 2; }

// A row's parts as they are added up, by what their means are more than the first one's. These distances are no larger than
// the row's own spread allows: to take the first mean for the row's loses as many units of the last place as there are parts.
struct RowSums {
  float first, means, squares, within;

  __device__ __forceinline__ explicit RowSums(float first) : first(first), means(0.0f), squares(0.0f), within(0.0f) {}
  __device__ __forceinline__ void add(float mean, float part) {
    const float distance = mean - first;
    means += distance;
    squares = fmaf(distance, distance, squares);
    within += part;
  }
  // The factor of the row's sums, and that of the sums of weights, with the last part.
  __device__ __forceinline__ float2 norm(const NormedRows &of, float mean, float part) const {
    const float last = static_cast<float>(of.last), distance = mean - first, of_last = last * distance;
    const float sum = fmaf(static_cast<float>(kPartColumns), means, of_last);
    const float total = fmaf(static_cast<float>(kPartColumns), squares, fmaf(of_last, distance, within + part));
    const float by = sum * of.per_column, centre = first + by;
    const float variance = max_or_nan(fmaf(-sum, by, total), 0.0f) * of.per_column;
    const float factor = rsqrtf((of.centred ? variance : fmaf(centre, centre, variance)) + of.epsilon);
    return make_float2(factor, of.centred ? -centre * factor : 0.0f);
  }
};

// The norms of two rows of so many parts, of which `statistics` are those of the first; they are added in their order.
TREFOIL_DEVICE float4 norms_of_rows(const NormedRows &of, int32_t parts, const float2 *statistics, int32_t pitch) {
  const float4 *at = reinterpret_cast<const float4 *>(statistics);
  const int64_t step = pitch / 2;
  const int32_t whole = parts - 1;
  const float4 first = __ldcg(at), last = __ldcg(at + whole * step);
  RowSums sums[2] = {RowSums(first.x), RowSums(first.z)};
  for (int32_t part = 0; part < whole; part += kPartsAtOnce, at += kPartsAtOnce * step) {
    float4 some[kPartsAtOnce];
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) some[i] = part + i < whole ? __ldcg(at + i * step) : float4{};
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (part + i >= whole) break;
      sums[0].add(some[i].x, some[i].y);
      sums[1].add(some[i].z, some[i].w);
    }
  }
  const float2 norms[2] = {sums[0].norm(of, last.x, last.y), sums[1].norm(of, last.z, last.w)};
  return make_float4(norms[0].x, norms[0].y, norms[1].x, norms[1].y);
}

// The statistics of a row of a slab of which `columns` are there, a multiple of 8. The slab's elements lie in shared
// memory, 128 bytes of each row, swizzled like a tensor map's box. Two lanes share a row, half each, and both get both.
TREFOIL_DEVICE float2 statistics_of_row(uint32_t smem, uint32_t row, uint32_t half, int32_t columns) {
  uint4 eights[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) eights[i] = load_shared_u32x4(smem + row * 128 + (half * 4 + i ^ row % 8) * 16);
  const int32_t inside = columns / 8 - static_cast<int32_t>(half) * 4;
  const auto add = [](float sum, float2 two) { return sum + (two.x + two.y); };
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= inside) break;
    for (uint32_t two : {eights[i].x, eights[i].y, eights[i].z, eights[i].w}) sum = add(sum, unpack_elements(two));
  }
  sum += __shfl_xor_sync(0xffffffff, sum, 1);
  const float mean = __fdividef(sum, static_cast<float>(columns));
  const auto square = [mean](float sum, float2 two) {
    return fmaf(two.x - mean, two.x - mean, fmaf(two.y - mean, two.y - mean, sum));
  };
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i >= inside) break;
    for (uint32_t two : {eights[i].x, eights[i].y, eights[i].z, eights[i].w})
      squares = square(squares, unpack_elements(two));
  }
  squares += __shfl_xor_sync(0xffffffff, squares, 1);
  return make_float2(mean, squares);
}

// Stores the statistics of `count` rows of a slab, which begins at row m and channel n of [rows][channels], with two threads
// for each row: all of a warp, one or more.
TREFOIL_DEVICE void store_statistics(float2 *statistics, uint32_t smem, uint32_t thread, uint32_t count, int32_t m,
                                     int32_t rows, int32_t n, int32_t channels) {
  const uint32_t row = min(thread / 2, count - 1), half = thread % 2;
  const float2 of_row = statistics_of_row(smem, row, half, min(channels - n, kPartColumns));
  const int32_t at = m + static_cast<int32_t>(row);
  if (half == 0 && thread / 2 < count && at < rows)
    statistics[static_cast<int64_t>(n / kPartColumns) * statistics_pitch(rows) + at] = of_row;
}
