// A network's first layers in one pass, on Hopper, from bytes to bytes: convolution by 7x7 windows, maximum. The kernel of
// usual photos: widths that are multiples of 16, up to 224, and 64 channels. sm90_stem_s8.cu has all others.
//
// The rows of all images' results are one list, of which each of a block's three groups that multiply has a run. A fourth
// group has a warp for each of them, which stores from image rows what products read: for each column of the convolution
// 16 of the 21 bytes of its window's row, and the other five in a line of their own with those of the rows before and
// after. A stage is two image rows and that line, and a window ten lines of four stages. The same warp has the copy engine
// bring the image rows: the four of a strip, two stages, by one copy, and one barrier for two strips. A row of the result
// needs the strip behind those of the row before, so that groups wait once for each row of theirs.
//
// The four threads that have a pixel's sums have columns side by side: a thread takes maxima over columns of its own, and
// only one value comes from its neighbour.
#include "sm90_requantise.cuh"

struct StemS8RunsArgs {
  TensorMap y;           // pairs of pixels: [images * out_height * out_width / 2][128], boxes of a row of an image
  TensorMap x;           // thirds of rows: [images][height][3][row_bytes / 3], boxes of the four rows of a strip
  const uint4 *filter;   // [kProducts][kGroupThreads] chunks of 16 bytes
  const int32_t *bias;   // [k_stored]
  const float *scale;    // [k_stored]
  int32_t row_bytes;
  int32_t height;
  int32_t out_height;
  int32_t pairs;         // of pixels, of a row of the result
  int32_t pad_top;
  int32_t k_stored;
  int32_t run_rows;      // of the result, of each run
  int32_t longer_runs;   // the first so many have one more
  FastDivide by_out_height;
  uint32_t outside[3];   // four pixels outside of the image
  S8Output output;
  int32_t padding[7];
};
static_assert(sizeof(StemS8RunsArgs) == 384, "mirrored in sm90_stem_s8_runs.rs");
static_assert(offsetof(StemS8RunsArgs, row_bytes) == 280 && offsetof(StemS8RunsArgs, output) == 332,
              "mirrored in sm90_stem_s8_runs.rs");

constexpr int kGroupThreads = 128;
constexpr int kGroupWarps = kGroupThreads / 32;
constexpr int kGroups = 3;                                 // that multiply
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
// Of a thread of the warps that store lines, and of one that multiplies.
constexpr int kLineRegisters = 80, kProductRegisters = 144;
static_assert((kLineRegisters + kGroups * kProductRegisters) * kGroupThreads == 65536, "a warpgroup waits for more");
constexpr int kColumns = 112;                              // of the convolution
constexpr int kPadLeft = 3;
constexpr int kTaps = 7;
constexpr int kBlockBytes = 16;                            // of a window's row, that a product reads
constexpr int kLines = 3;                                  // of a stage: what is left of rows, and two rows
constexpr int kBefore = (kTaps - 1) / 2;                   // stages of a window before its last
constexpr int kSlots = 8;                                  // stages in shared memory
constexpr int kStripStages = 2;                            // with which a row of the result goes on
constexpr int kStrips = kSlots / kStripStages;             // in shared memory, of stages and of image rows
constexpr int kCopyStrips = 2;                             // that a barrier of copies tells of
constexpr int kCopies = kStrips / kCopyStrips;
constexpr int kProducts = 5;                               // of a row
constexpr int kOwnColumns = kColumns / 4;                  // of a thread
constexpr int kOwnPixels = kOwnColumns / 2;                // of a thread's results
constexpr int kBarrierBytes = 8;

// Shared memory of a group that multiplies.
constexpr int kLineBytes = kColumns * kBlockBytes;
// The first line is also behind the last: a product's second line is never before its first.
constexpr int kRingBytes = (kSlots * kLines + 1) * kLineBytes;
constexpr int kStagedBytes = 4096;                         // a row of the result, at whole periods of the copy engine's order
constexpr int kStripRows = 2 * kStripStages;               // of the image
constexpr int kStripBytes = kStripRows * 2 * kColumns * 3;
constexpr int kGroupBarriers = 2 * kStrips + kCopies;
static_assert(kStripBytes % 128 == 0, "where boxes are copied to");

// A block's: staged rows, rings, image rows, and what is outside of the image.
constexpr int kRingsAt = kGroups * 2 * kStagedBytes;
constexpr int kImagesAt = kRingsAt + kGroups * kRingBytes;
constexpr int kOutsideAt = kImagesAt + kGroups * kStrips * kStripBytes;
constexpr int kOutsideWords = 12;
constexpr int kSharedBytes = kOutsideAt + kGroups * kOutsideWords * 4;
static_assert(kImagesAt % 128 == 0, "where boxes are copied to");
static_assert(kSharedBytes <= 227 * 1024 - 1024, "of a multiprocessor, with the barriers");

constexpr int kImageStart = 16;                            // of the image's first column, from the first lane's words on
constexpr int kLaneColumns = 4;                            // of the convolution, that a lane stores
constexpr int kLaneBytes = kLaneColumns * 2 * 3;           // from a lane's first window to the next lane's
constexpr int kLaneWords = 12;                             // from whole 8 bytes on, that its windows lie in
static_assert((kImageStart - kPadLeft * 3) / 8 == 0, "the first lane's windows begin in its first 8 bytes");
static_assert(kLaneBytes % 12 == 0 && kLaneWords == kOutsideWords, "outside of the image all lanes read the same");
static_assert(kImageStart - kPadLeft * 3 + (kLaneColumns - 1) * 6 + 3 * kTaps <= kLaneWords * 4,
              "all windows of a lane");

// Barriers of a group: strips are stored, have been read; image rows of copies have come.
struct Barriers {
  uint32_t first;
  __device__ __forceinline__ uint32_t stored(uint32_t strip) const { return first + strip % kStrips * kBarrierBytes; }
  __device__ __forceinline__ uint32_t read(uint32_t strip) const { return stored(strip) + kStrips * kBarrierBytes; }
  __device__ __forceinline__ uint32_t copied(uint32_t copy) const {
    return first + (2 * kStrips + copy % kCopies) * kBarrierBytes;
  }
};

TREFOIL_DEVICE uint32_t parity_of(uint32_t of, uint32_t turns) { return of / turns % 2; }

// Rows of the result, of all images together.
struct Run {
  int32_t row, end;
};

TREFOIL_DEVICE Run run_of(const StemS8RunsArgs &args, uint32_t group) {
  const int32_t run = group * gridDim.x + blockIdx.x;
  const int32_t row = run * args.run_rows + min(run, args.longer_runs);
  return Run{row, row + args.run_rows + (run < args.longer_runs ? 1 : 0)};
}

// A run's rows of one image.
struct Part {
  int32_t image, first, rows;
};

TREFOIL_DEVICE Part next_part(const StemS8RunsArgs &args, Run &run) {
  Part part;
  part.image = divide(run.row, args.by_out_height);
  part.first = run.row - part.image * args.out_height;
  part.rows = min(args.out_height - part.first, run.end - run.row);
  run.row += part.rows;
  return part;
}

// ---- image rows: a warp for each group that multiplies -----------------------------------------------------------------

// The strips of a run, one after the other.
struct Walk {
  Run run;
  int32_t left;          // strips of the image
  int32_t h;             // the strip's first image row
  int32_t image;

  __device__ __forceinline__ bool next(const StemS8RunsArgs &args) {
    if (left == 0) {
      if (run.row == run.end) return false;
      const Part part = next_part(args, run);
      left = part.rows + kBefore - 1;
      // The first window is that of the row of the convolution above the first result, also where there is none. A stage
      // begins with a row that is the second of a window's pair.
      h = 2 * (2 * part.first - 1) - args.pad_top - 1 - kStripRows;
      image = part.image;
    }
    --left;
    h += kStripRows;
    return true;
  }
};

// Has the copy engine bring the next image rows of a run, if there are any; all lanes of the warp.
TREFOIL_DEVICE void copy_strips(const StemS8RunsArgs &args, Walk &walk, uint32_t copy, uint32_t smem_images,
                              Barriers barriers) {
  if (!walk.next(args)) return;
  const int32_t image = walk.image, h = walk.h;
  const bool two = walk.next(args);
  const uint32_t barrier = barriers.copied(copy), smem = smem_images + copy % kCopies * kCopyStrips * kStripBytes;
  // Boxes count whole, also where rows are outside.
  const uint32_t bytes = kStripRows * args.row_bytes;
  if (is_elected()) {
    barrier_arrive_expect(barrier, two ? 2 * bytes : bytes);
    copy_box_4d(smem, &args.x, barrier, 0, 0, h, image);
    if (two) copy_box_4d(smem + kStripBytes, &args.x, barrier, 0, 0, walk.h, walk.image);
  }
}

// Bytes of a lane's windows in an image row.
struct Words {
  uint32_t v[kLaneWords];
};

// Where a lane reads the words of an image row: the first four, the last two, and the others.
struct Places {
  uint32_t first, last, others;
};

TREFOIL_DEVICE Words load_words(Places at) {
  Words words;
#pragma unroll
  for (int i = 0; i < kLaneWords; i += 2) {
    const uint2 two = load_shared_u32x2((i < kImageStart / 4 ? at.first : i < kLaneWords - 2 ? at.others : at.last) + i * 4);
    words.v[i] = two.x;
    words.v[i + 1] = two.y;
  }
  return words;
}

// Where a lane's window of this number begins in its words.
TREFOIL_DEVICE constexpr int first_byte(int column) { return kImageStart - kPadLeft * 3 + column * 6; }

// Four bytes of a window from byte `at` on.
TREFOIL_DEVICE uint32_t window_word(const Words &words, int column, int at) {
  const int byte = first_byte(column) + at;
  return permute_bytes(words.v[byte / 4], words.v[byte / 4 + 1], 0x3210 + byte % 4 * 0x1111);
}

TREFOIL_DEVICE uint4 window_block(const Words &words, int column) {
  return make_uint4(window_word(words, column, 0), window_word(words, column, 4), window_word(words, column, 8),
                    window_word(words, column, 12));
}

// What is left of a lane's windows in a row: four bytes, and words that have the last one.
struct Left {
  uint32_t four[kLaneColumns], last[kLaneColumns];
};

TREFOIL_DEVICE Left left_of(const Words &words) {
  Left left;
#pragma unroll
  for (int i = 0; i < kLaneColumns; ++i) {
    left.four[i] = window_word(words, i, 16);
    left.last[i] = words.v[(first_byte(i) + 20) / 4];
  }
  return left;
}

// The last bytes of three rows, and one that no product counts.
TREFOIL_DEVICE uint32_t last_bytes_of(const Left &before, const Left &first, const Left &second, int column) {
  const int byte = (first_byte(column) + 20) % 4;
  const uint32_t two = permute_bytes(before.last[column], first.last[column], byte + (byte + 4) * 16);
  return permute_bytes(two, second.last[column], 0x0010 + (byte + 4) * 0x100);
}

// Where the block of a thread's column lies in a line. The threads that have sums of a row of the product have eight
// bytes of each 32, one after the other: two columns. Any two could be a thread's; this choice lets lanes store without
// bank conflicts.
TREFOIL_DEVICE constexpr int column_pair(int own) { return own < 24 ? own / 8 * 4 + own % 4 : 12 + own % 2; }
TREFOIL_DEVICE constexpr int column_of_pair(int own) { return own < 24 ? own / 4 % 2 : own % 4 / 2; }

// Initialises a group's barriers and what is outside of its images, and begins the first copies. What is left to copy.
TREFOIL_DEVICE Walk begin_lines(const StemS8RunsArgs &args, Run run, uint32_t smem_images, uint32_t smem_outside,
                                Barriers barriers) {
  const uint32_t lane = threadIdx.x % 32;
  if (is_elected()) {
    for (uint32_t strip = 0; strip < kStrips; ++strip)
      barrier_init(barriers.stored(strip), 32), barrier_init(barriers.read(strip), kGroupWarps);
    for (uint32_t copy = 0; copy < kCopies; ++copy) barrier_init(barriers.copied(copy), 1);
  }
  if (lane < kOutsideWords) store_shared_u32(smem_outside + lane * 4, args.outside[(lane + 2) % 3]);
  fence_barrier_init();
  __syncwarp();
  Walk ahead{run, 0, 0, 0};
#pragma unroll
  for (uint32_t copy = 0; copy < kCopies; ++copy) copy_strips(args, ahead, copy, smem_images, barriers);
  return ahead;
}

// Stores the lines of all rows of the convolution of a run, strip by strip.
TREFOIL_DEVICE void store_lines(const StemS8RunsArgs &args, Run run, Walk ahead, uint32_t smem_images,
                                uint32_t smem_outside, uint32_t smem_ring, Barriers barriers) {
  const uint32_t lane = threadIdx.x % 32;
  const bool stores = lane < kColumns / kLaneColumns;
  // The thread that has the columns, and which of its fours: eight lanes store, and 16 load, without bank conflicts.
  const uint32_t thread = lane % 4, four = stores ? ((thread + 2) % 4 + lane / 4) % 7 : 0;
  // Lanes behind the image load what its last one loads.
  const uint32_t last_at = args.row_bytes - kLaneBytes;
  const uint32_t at = min((thread * (kOwnColumns / kLaneColumns) + four) * kLaneBytes, last_at);
  const bool is_first = at == 0, is_last = at == last_at;
  uint32_t place[2];  // of the first two columns, and of the last two
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t own = four * 4 + 2 * i;
    place[i] = (column_pair(own) * 8 + thread * 2 + column_of_pair(own)) * kBlockBytes;
  }

  Walk walk{run, 0, 0, 0};
  Left before = {};  // of the row before the stage's
#pragma unroll 1
  for (uint32_t strip = 0; walk.next(args); ++strip) {
    const uint32_t copy = strip / kCopyStrips;
    const bool begins_copy = strip % kCopyStrips == 0;
    if (begins_copy) barrier_wait(barriers.copied(copy), parity_of(copy, kCopies));
    const uint32_t smem_strip = smem_images + strip % kStrips * kStripBytes + at - kImageStart;
    const auto words_of = [&](int row) {
      const bool inside = static_cast<uint32_t>(walk.h + row) < static_cast<uint32_t>(args.height);
      const uint32_t others = inside ? smem_strip + row * args.row_bytes : smem_outside;
      return load_words({is_first ? smem_outside : others, is_last ? smem_outside : others, others});
    };
#pragma unroll
    for (int stage = 0; stage < kStripStages; ++stage) {
      const Words first = words_of(2 * stage), second = words_of(2 * stage + 1);
      if (stage == 0) barrier_wait(barriers.read(strip), parity_of(strip, kStrips) ^ 1);
      const Left left_first = left_of(first), left_second = left_of(second);
      if (stores) {
        const uint32_t slot = strip % kStrips * kStripStages + stage;
        const uint32_t line = smem_ring + slot * kLines * kLineBytes;
#pragma unroll
        for (int i = 0; i < kLaneColumns; ++i) {
          const uint32_t smem = line + place[i / 2] + i % 2 * 8 * kBlockBytes;
          store_shared_u32x4(smem + kLineBytes, window_block(first, i));
          store_shared_u32x4(smem + 2 * kLineBytes, window_block(second, i));
          const uint32_t lasts = last_bytes_of(before, left_first, left_second, i);
          const uint4 left = make_uint4(before.four[i], left_first.four[i], left_second.four[i], lasts);
          store_shared_u32x4(smem, left);
          if (slot == 0) store_shared_u32x4(smem + kSlots * kLines * kLineBytes, left);
        }
      }
      before = left_second;
      // The strips before have been loaded by all lanes, which have said so long ago: the next but one come there.
      if (stage == 0 && begins_copy && strip > 0) {
        barrier_wait(barriers.stored(strip - 1), parity_of(strip - 1, kStrips));
        copy_strips(args, ahead, copy + kCopies - 1, smem_images, barriers);
      }
    }
    fence_shared_for_copies();
    barrier_arrive(barriers.stored(strip));
  }
}

// ---- a row of the convolution ------------------------------------------------------------------------------------

// A thread's part of the products' filter.
struct Filter {
  uint32_t v[kProducts][4];
};

// What the rows of the convolution go on with.
struct Rows {
  Barriers barriers;
  uint32_t strip;     // the first of the next row of the result
  uint32_t smem;      // the ring, and the distance of a product's two lines, as descriptors have them
};

// A thread's sums of a row.
struct Sums {
  int32_t v[kColumns / 2];

  // The one of a column of its own and one of its two channels.
  __device__ __forceinline__ int32_t of(int own, int channel) const {
    return v[column_pair(own) * 4 + channel * 2 + column_of_pair(own)];
  }
};

// Maxima over columns: of each pixel both channels.
struct Maxima {
  int32_t v[2 * kOwnPixels];
};

// Two lines of a stage or behind it, so many from each other.
TREFOIL_DEVICE uint64_t lines_of(const Rows &rows, uint32_t stage, int line, int apart) {
  const uint32_t low = rows.smem + (stage % kSlots * kLines + line) * kColumns + (apart * kColumns << 16);
  return static_cast<uint64_t>(8 * kBlockBytes >> 4) << 32 | low;
}

// Begins the products of the row whose windows begin with this stage.
TREFOIL_DEVICE void begin_row(const Rows &rows, uint32_t stage, const Filter &filter, Sums &sums) {
  using Product = WgmmaBytesFrom<kColumns>;
  wgmma_fence();
  Product::multiply(sums.v, filter.v[0], lines_of(rows, stage + 1, 1, 1), false);        // rows 1 and 2
  Product::multiply(sums.v, filter.v[1], lines_of(rows, stage + 2, 1, 1), true);         // 3 and 4
  Product::multiply(sums.v, filter.v[2], lines_of(rows, stage + kBefore, 1, 1), true);   // 5 and 6
  Product::multiply(sums.v, filter.v[3], lines_of(rows, stage, 2, 1), true);             // 0, and what is left of 0 to 2
  Product::multiply(sums.v, filter.v[4], lines_of(rows, stage + 2, 0, kLines), true);    // what is left of 3, of 4 to 6
  wgmma_commit();
}

// Waits for the row's sums.
TREFOIL_DEVICE void end_row(Sums &sums) {
  wgmma_wait<0>();
  wgmma_use(sums.v);
}

TREFOIL_DEVICE void multiply_row(const Rows &rows, uint32_t stage, const Filter &filter, Sums &sums) {
  begin_row(rows, stage, filter, sums);
  end_row(sums);
}

TREFOIL_DEVICE void wait_for_strip(const Rows &rows, uint32_t strip) {
  barrier_wait(rows.barriers.stored(strip), parity_of(strip, kStrips));
}

// ---- output ------------------------------------------------------------------------------------------------------

constexpr int32_t kNone = INT32_MIN;  // of what is outside of the convolution: less than all sums

// Maxima over the columns of each pixel's windows.
TREFOIL_DEVICE Maxima over_columns(const Sums &sums) {
  const uint32_t lane = threadIdx.x % 32;
  Maxima maxima;
#pragma unroll
  for (int channel = 0; channel < 2; ++channel) {
    const int32_t last = __shfl_sync(0xffffffff, sums.of(kOwnColumns - 1, channel), (lane & 28) | ((lane + 3) & 3));
#pragma unroll
    for (int i = 1; i < kOwnPixels; ++i)
      maxima.v[2 * i + channel] =
          __vimax3_s32(sums.of(2 * i - 1, channel), sums.of(2 * i, channel), sums.of(2 * i + 1, channel));
    // Left of the first thread's columns is nothing.
    maxima.v[channel] = __vimax3_s32(lane % 4 == 0 ? kNone : last, sums.of(0, channel), sums.of(1, channel));
  }
  return maxima;
}

// What a group's rows become, and where they go.
struct Out {
  Requantiser requantiser;
  uint32_t group;
  uint32_t smem_staged;    // two rows of staged pixels
  uint32_t lane_offset[2]; // of the pixels whose channels this lane's matrix rows have: of the first words, of the last
  uint32_t turn;           // of the next staged row
};

// Where a pixel of a staged row has these 16 channels: pairs of pixels in the copy engine's order.
TREFOIL_DEVICE uint32_t staged_at(uint32_t pixel, uint32_t chunk) {
  const uint32_t pair = pixel / 2;
  return pair * 128 + ((pixel % 2 * 4 + chunk) ^ pair % 8) * 16;
}

TREFOIL_DEVICE Out out_of(const StemS8RunsArgs &args, uint32_t group, uint32_t smem_staged) {
  const uint32_t warp = threadIdx.x % kGroupThreads / 32, lane = threadIdx.x % 32;
  Out out;
  out.requantiser.load(args, warp * 16 + lane / 4 * 2);
  out.group = group;
  out.smem_staged = smem_staged;
  // Of matrix i a row is pixel 2i or the next of a thread.
  const uint32_t first = lane % 8 / 2 * kOwnPixels + lane % 2;
  out.lane_offset[0] = staged_at(first + lane / 8 * 2, warp);
  out.lane_offset[1] = staged_at(first + 12, warp);
  // Kept, where the compiler would rather compute them for each row.
  asm volatile("" : "+r"(out.lane_offset[0]), "+r"(out.lane_offset[1]));
  out.turn = 0;
  return out;
}

// Stages the bytes of a row of the result.
TREFOIL_DEVICE void stage_row(const StemS8RunsArgs &args, const Out &out, const Maxima &maxima) {
  constexpr int kWords = kOwnPixels / 2;
  uint32_t words[kWords];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    const int32_t *of = maxima.v + 4 * i;
    const int32_t sums[4] = {of[0], of[2], of[1], of[3]};
    words[i] = out.requantiser.operator()<false>(args.output, sums, 0);
  }
  if (args.output.result_is_low) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = low_bytes(words[i]);
  }
  const uint32_t smem = out.smem_staged + out.turn * kStagedBytes;
  stmatrix_x4_trans(smem + out.lane_offset[0], {words[0], words[1], words[2], words[3]});
  // Four pairs on, the copy engine's order has the other half of 128 bytes.
  stmatrix_x2_trans((smem + out.lane_offset[0] + 4 * 128) ^ 64, {words[4], words[5]});
  stmatrix_x1_trans(smem + out.lane_offset[1], words[6]);
}

// Writes the staged row that all warps have a part of.
TREFOIL_DEVICE void store_row(const StemS8RunsArgs &args, Out &out, int32_t row) {
  const bool stores = threadIdx.x % kGroupThreads == 0;
  fence_shared_for_copies();
  // What was stored before has been read: the next row is staged there.
  if (stores) wait_stores_read<0>();
  barrier_sync(1 + out.group, kGroupThreads);
  if (stores) store_box_2d(&args.y, 0, row * args.pairs, out.smem_staged + out.turn * kStagedBytes);
  out.turn ^= 1;
}

// Multiplies lines with the filter, and writes what becomes of the run's rows.
TREFOIL_DEVICE void multiply_rows(const StemS8RunsArgs &args, uint32_t group, uint32_t smem_ring, uint32_t smem_staged,
                                  Barriers barriers) {
  Run run = run_of(args, group);
  Filter filter;
#pragma unroll
  for (int i = 0; i < kProducts; ++i) {
    const uint4 of = __ldg(args.filter + i * kGroupThreads + threadIdx.x % kGroupThreads);
    filter.v[i][0] = of.x, filter.v[i][1] = of.y, filter.v[i][2] = of.z, filter.v[i][3] = of.w;
  }
  Out out = out_of(args, group, smem_staged);
  Rows rows{barriers, 0, (smem_ring & 0x3ffff) >> 4};
  Sums sums;
#pragma unroll 1
  while (run.row < run.end) {
    int32_t row = run.row;
    const Part part = next_part(args, run);
    wait_for_strip(rows, rows.strip);
    wait_for_strip(rows, rows.strip + 1);
    Maxima odd;  // of the row above a result and below the one before
    if (part.first > 0) {
      multiply_row(rows, kStripStages * rows.strip, filter, sums);
      odd = over_columns(sums);
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kOwnPixels; ++i) odd.v[i] = kNone;
    }
    Maxima best = {};
    bool is_next = false;  // of the part
#pragma unroll 1
    for (; row < run.row; ++row, ++rows.strip) {
      wait_for_strip(rows, rows.strip + 2);
      begin_row(rows, kStripStages * rows.strip + 1, filter, sums);
      // Beside these products and the next, what became of the row before.
      if (is_next) stage_row(args, out, best);
      end_row(sums);
      barrier_arrive_once(barriers.read(rows.strip));
      best = over_columns(sums);
      // Sums of their own: with the same, ptxas 13.0 takes these maxima for those above, and drops the first products.
      Sums next;
      begin_row(rows, kStripStages * rows.strip + 2, filter, next);
      if (is_next) store_row(args, out, row - 1);
      end_row(next);
      const Maxima below = over_columns(next);
#pragma unroll
      for (int i = 0; i < 2 * kOwnPixels; ++i) best.v[i] = __vimax3_s32(best.v[i], odd.v[i], below.v[i]);
      odd = below;
      is_next = true;
    }
    stage_row(args, out, best);
    store_row(args, out, row - 1);
    // The last windows' other strips.
    barrier_arrive_once(barriers.read(rows.strip));
    barrier_arrive_once(barriers.read(rows.strip + 1));
    rows.strip += 2;
  }
  if (threadIdx.x % kGroupThreads == 0) wait_stores_read<0>();
}

// ---- kernel ------------------------------------------------------------------------------------------------------

// Purpose    as sm90_stem_s8.cu, the same bytes: y[i][u][v][k] = max over p, q of
//            requantised(conv[i][p][q][k]).
// Operands   y       write  bytes [images][out_height][out_width][64] at a multiple of 16 bytes, by the map; disjoint from
//                           the others
//            x       read   bytes [height][width][3] of an image, by the map; x and the distance of images are multiples of
//                           16; row_bytes = 3 * width, a multiple of 48
//            filter  read   as of sm90_stem_s8.cu, at a multiple of 16 bytes
//            bias    read   int32 [64]; scale: read, floats [64], finite, not negative; both at multiples of 16 bytes
//            run_rows, longer_runs: runs are 3 for each block, the first `longer_runs` of run_rows + 1 rows of the result,
//            the others of run_rows; together images * out_height. Run r is of group r / grid of block r % grid.
// Launch     grid up to the number of multiprocessors; block and dynamic shared memory kThreads and kSharedBytes. Compute
//            capability 9.0 exactly.
// Limits     k_stored 64; width a multiple of 16, up to 224; padding of 3 pixels on the left, any above; conv has
//            2 * out_height rows and 2 * out_width columns, at most width / 2; out_width even. images * out_height *
//            out_width below 2^31. A run begins with a row of conv that the run before has computed too, unless it begins
//            with an image. Deterministic, no atomics.
// Ordering   lets its successor be launched early; is not launched early itself.
// Source     as sm90_stem_s8.cu.
extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sm90_stem_u8_7x7_pool_runs(const __grid_constant__ StemS8RunsArgs args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  __shared__ uint64_t barriers[kGroups * kGroupBarriers];
  const uint32_t smem = shared_address(shared_bytes);
  allow_next_launch();
  const uint32_t group = uniform(threadIdx.x / kGroupThreads);
  const uint32_t warp = uniform(threadIdx.x % kGroupThreads / 32);
  const bool brings = group == kGroups, is_idle = brings && warp == kGroups;
  const uint32_t of = brings ? warp : group;  // the group that multiplies
  const uint32_t smem_images = smem + kImagesAt + of * kStrips * kStripBytes;
  const uint32_t smem_outside = smem + kOutsideAt + of * kOutsideWords * 4;
  const uint32_t smem_ring = smem + kRingsAt + of * kRingBytes;
  const Barriers own{shared_address(barriers + of * kGroupBarriers)};
  Walk ahead = {};
  if (brings && !is_idle) ahead = begin_lines(args, run_of(args, of), smem_images, smem_outside, own);
  __syncthreads();
  if (brings) {
    give_registers_up<kLineRegisters>();
    if (!is_idle) store_lines(args, run_of(args, of), ahead, smem_images, smem_outside, smem_ring, own);
  } else {
    take_registers<kProductRegisters>();
    multiply_rows(args, group, smem_ring, smem + group * 2 * kStagedBytes, own);
  }
}
