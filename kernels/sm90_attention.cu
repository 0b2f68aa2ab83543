// Attention on compute capability 9.0: softmax(q k^T * scale) v of each head; the scores never leave registers.
//
// A block of the grid walks over blocks of tiles: some tiles of 64 rows of one head, and that head's keys and values in
// chunks, which come through a ring of stages in shared memory once for all of these tiles. Each warpgroup that
// multiplies takes every kGroups-th tile, so that the exponentials of one run beside the products of the others. Where
// scores are floats, a chunk's values are added while the weights of the next are made, or those of the next tile's
// first. One more warpgroup loads, and a warp of it has the few rows that a head has behind its tiles.
#include "element.cuh"
#include "sm90_attention_scores.cuh"

// ---- loading -----------------------------------------------------------------------------------------------------

// Tells a group, or a tail's warp, of rows, and brings them; or that there are no more.
template <class Tile>
TREFOIL_DEVICE void load_tile(const Sm90AttentionArgs &args, const Shared<Tile> &shared, uint32_t reader, uint32_t use,
                              const Record &record, int32_t end = 0) {
  barrier_wait(shared.q_empty(reader, use), (use / Tile::kQs & 1) ^ 1);
  write_record(shared.record(reader, use), record);
  if constexpr (Tile::kPacked) write_end(shared.record(reader, use), end);
  const uint32_t full = shared.q_full(reader, use);
  const int32_t batch = batch_of<Tile>(args, record.head), head = record.head - batch * args.heads;
  if (!Tile::kPacked && use == 0) {  // all of the above does not depend on earlier launches
    wait_for_earlier_launches();
    if (reader == 0) allow_next_launch();  // not before: the next launch's weights would come beside this one's rows
  }
  if (record.chunks == 0)
    barrier_arrive(full);
  else if (reader < Tile::kGroups)
    copy_boxes<Tile>(shared.q(reader, use), kTileRows * kRowBytes, args.q, full, head, record.row, batch);
  else
    copy_boxes<Tile>(shared.tail_q(reader, use), Tile::kTailQBytes, args.tail_q, full, head, record.row, batch);
}

// The rows of each tile, of which each group in its turn has one, and of each tail: one thread.
template <class Tile> TREFOIL_DEVICE void load_rows(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
  uint32_t last[Tile::kGroups] = {};  // chunk of each group's tile before, of that group first whose turn it is
  uint32_t tile = 0, tail = 0;
#pragma unroll 1
  for (Walk<Tile> walk(args); !walk.is_over(); walk.next_tile(), ++tile) {
    const uint32_t chunks = walk.chunks();
    const bool is_near = static_cast<int32_t>(walk.ring - last[0]) <= Tile::kStages;
#pragma unroll
    for (int i = 1; i < Tile::kGroups; ++i) last[i - 1] = last[i];
    last[Tile::kGroups - 1] = walk.ring + chunks - 1;
    load_tile(args, shared, tile % Tile::kGroups, tile / Tile::kGroups,
              {chunks, walk.ring, is_near, walk.keys, walk.head, walk.row()}, walk.end());
    if (Tile::kTails && walk.has_tail() && walk.is_last_tile()) {
      load_tile(args, shared, Tile::kGroups + tail % 2, tail / 2,
                {static_cast<uint32_t>(walk.block_chunks()), walk.ring, 0, walk.keys, walk.head,
                 args.row_tiles * kTileRows});
      ++tail;
    }
  }
#pragma unroll 1
  for (int i = 0; i < Tile::kGroups; ++i, ++tile)
    load_tile(args, shared, tile % Tile::kGroups, tile / Tile::kGroups, {});
#pragma unroll 1
  for (int i = 0; i < Tile::kTailWarps; ++i, ++tail)
    if (args.tail > 0) load_tile(args, shared, Tile::kGroups + tail % 2, tail / 2, {});
}

// The chunks of each block: one thread. It arrives for tiles that a block has not, and for those that see fewer keys;
// and for the tail where the block has none.
template <class Tile> TREFOIL_DEVICE void load_chunks(const Sm90AttentionArgs &args, const Shared<Tile> &shared) {
#pragma unroll 1
  for (Walk<Tile> walk(args); !walk.is_over(); walk.next_block()) {
    const int32_t batch = divide(walk.head, args.by_heads), head = walk.head - batch * args.heads;
    const int32_t chunks = walk.block_chunks();
    int32_t first = 0;  // the first tile that sees a chunk: later rows see more
    int32_t missing = 4 * (args.block_tiles - walk.tiles()) + (args.tail > 0 && !walk.has_tail() ? 1 : 0);
#pragma unroll 1
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      while (walk.chunks_of(first) <= chunk) ++first, missing += 4;
      const uint32_t at = walk.ring + chunk, free = Shared<Tile>::parity(at) ^ 1;
      const int32_t key = Tile::first_key(chunk);
      barrier_wait(shared.k_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.k_empty(at), missing * Tile::kLeaving);
      if (at == 0) wait_for_earlier_launches();  // all of the above does not depend on them
      copy_boxes<Tile>(shared.k(at), Tile::kKeyBoxBytes, args.k, shared.k_full(at), head, key, batch);
      barrier_wait(shared.v_empty(at), free);
      if (missing > 0) barrier_arrive_many(shared.v_empty(at), missing);
      copy_boxes<Tile>(shared.v(at), Tile::kValueBoxBytes, args.v, shared.v_full(at), head, key, batch);
      tell_shared_u32(shared.started(), at + 1);
      if (at == 0) barrier_wait(shared.k_full(0), 0);  // what is needed first does not share its way with the rest
    }
  }
}

// ---- products ----------------------------------------------------------------------------------------------------

// o += p v of a chunk, or o = p v.
template <class Tile>
TREFOIL_DEVICE void multiply_values(float (&o)[Tile::kDims / 2], const uint32_t (&p)[Tile::kValues / 16][4], uint32_t v,
                                    bool add) {
  const uint64_t b = wgmma_operand_rows(v, Tile::kValueBoxBytes);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < Tile::kValues / 16; ++i)
    WgmmaFromRows<Tile::kDims, Element>::multiply(o, p[i], b + i * (16 * kRowBytes / 16), add || i > 0);
  wgmma_commit();
}

// The quotients of a warp's 16 rows as codes, into shared memory. Of every sixteen of its row a lane has two neighbours in
// either half; it gives those in one half to the lane beside it, for that lane's in the other.
template <class Tile>
TREFOIL_DEVICE void put_codes(const float (&o)[Tile::kDims / 2], const float (&factor)[2], float to_codes,
                              uint32_t shared_dst) {
  const uint32_t lane = thread_idx_x() % 32, in = lane % 2 * 8 + lane % 4 / 2 * 4;
#pragma unroll
  for (int i = 0; i < Tile::kDims / 16; ++i) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float quotients[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) quotients[j] = o[8 * i + j / 2 * 4 + 2 * r + j % 2] * factor[r] * to_codes;
      const uint32_t own = pack_e4m3(quotients[0], quotients[1]) | pack_e4m3(quotients[2], quotients[3]) << 16;
      const uint32_t other = __shfl_xor_sync(0xffffffff, own, 1);
      const uint32_t four = lane % 2 == 0 ? __byte_perm(own, other, 0x5410) : __byte_perm(other, own, 0x7632);
      store_shared_u32(sixteen_codes(shared_dst, kTileRows * kRowBytes, lane / 4 + 8 * r, i) + in, four);
    }
  }
}

// What a warp has to know to store its 16 rows of a tile, other than sums: what can be found beside the last products.
struct Results {
  float factor[2];  // of a thread's two rows
  int32_t head, batch, row, end;
};

// What sums of a thread's two rows are multiplied by, for this thread's sums of weights.
TREFOIL_DEVICE float2 factors_of(const float (&sums)[2]) {
  const auto factor = [](float sum) { return sum == 0.0f ? 0.0f : __fdividef(1.0f, sum); };
  return {factor(row_sum(sums[0])), factor(row_sum(sums[1]))};
}

template <class Tile>
TREFOIL_DEVICE Results prepare_results(const Sm90AttentionArgs &args, float2 factors, int32_t head, int32_t row,
                                       int32_t end) {
  Results of = {{factors.x, factors.y}, head, batch_of<Tile>(args, head), row, end};
  of.head -= of.batch * args.heads;
  if (is_elected()) wait_stores_read<0>();  // of the tile before
  __syncwarp();
  return of;
}

// The quotients of a warp's 16 rows by way of shared memory.
template <class Tile>
TREFOIL_DEVICE void store_rows(const Sm90AttentionArgs &args, const float (&o)[Tile::kDims / 2], const Results &of,
                               uint32_t shared_dst) {
  if (of.row >= end_of_rows<Tile>(args, of.end)) return;
  const int32_t lane = thread_idx_x() % 32;
  if constexpr (Tile::kCodes) {
    put_codes<Tile>(o, of.factor, args.to_codes, shared_dst);
  } else {
    const uint32_t to = shared_dst + lane % 16 * kRowBytes;
#pragma unroll
    for (int i = 0; i < Tile::kDims / 16; ++i) {
      uint32_t pairs[4];
#pragma unroll
      for (int j = 0; j < 4; ++j)
        pairs[j] = pack_elements(o[8 * i + 2 * j] * of.factor[j % 2], o[8 * i + 2 * j + 1] * of.factor[j % 2]);
      const int box = i / 4, chunk = i % 4 * 2 + lane / 16;
      stmatrix_x4(to + box * kTileRows * kRowBytes + (chunk ^ lane % 8) * 16, pairs);
    }
  }
  if (Tile::kPacked && of.end - of.row < kStoreRows) {
    __syncwarp();
    store_some_rows<Tile>(args, shared_dst, of.head, of.row, of.end - of.row);
    return;
  }
  fence_shared_for_copies();
  __syncwarp();
  if (is_elected()) {  // the lane whose stores are waited for
#pragma unroll
    for (int box = 0; box < Tile::kBoxes; ++box)
      store_result_box<Tile>(args, box, of.head, of.row, of.batch, shared_dst + box * kTileRows * kRowBytes);
  }
}

// Chunks of a tile that all rows of this warp see whole; -1: of the last tile some warps have no rows.
template <class Tile> TREFOIL_DEVICE int32_t whole_chunks(const Sm90AttentionArgs &args, const Record &tile, int32_t end) {
  const int32_t row = tile.row + warp_row();
  if constexpr (Tile::kPacked) return whole_chunks_packed<Tile>(row, end, tile.keys);
  const int32_t keys = max(min(tile.keys, row + args.ahead + 1), 0);
  return row < args.rows ? Tile::whole_chunks(keys) : -1;
}

// Every kGroups-th tile: one warpgroup. A chunk's values are added beside the product of the next chunk's scores, also
// over the end of a tile. Scores that are floats come first, and weights of some are made while the values are added.
// Those that are halves come last, and weights of all are made behind both: fewer instructions, and faster.
template <class Tile>
TREFOIL_DEVICE void multiply(const Sm90AttentionArgs &args, const Shared<Tile> &shared, int32_t group) {
  using Scores = std::conditional_t<Tile::kHalfScores, HalfScores<Tile>, FloatScores<Tile>>;
  FloatScores<Tile, Tile::kFirstKeys> first;  // of a tile's first chunk
  Scores scores;                              // of the others
  float o[Tile::kDims / 2];
  uint32_t p[Tile::kValues / 16][4] = {};  // zeros of keys that a chunk has not
  Rows rows;
  uint32_t use = 0;          // tiles so far
  uint32_t chunks, at;       // of this tile; the chunk whose weights are there
  int32_t whole;

  // This tile's rows, or that there is none, have come.
  auto await_tile = [&] {
    barrier_wait(shared.q_full(group, use), use / Tile::kQs & 1);
    const Record tile = read_record(shared.record(group, use));
    chunks = tile.chunks;
    return tile;
  };
  // Weights of this tile's first chunk, whose scores are there.
  auto begin_tile = [&](const Record &tile) {
    const uint32_t record = shared.record(group, use);
    at = tile.ring;
    if constexpr (Tile::kMask != MaskOf::kKeys) leave_keys<Tile>(shared, at);
    if (chunks == 1) barrier_arrive(shared.q_empty(group, use));
    whole = whole_chunks<Tile>(args, tile, end_of<Tile>(record));
    if (whole >= 0) first.finish(args, shared, record, at, 0, whole);
    if constexpr (Tile::kMask == MaskOf::kKeys) leave_keys<Tile>(shared, at);  // and their mask
    if (whole < 0) return;
    first.weigh_first(rows);
    scores.refer(rows);
  };
  auto prepare_tile = [&](uint32_t use, float2 factors) {
    const Record tile = read_record(shared.record(group, use));
    return prepare_results<Tile>(args, factors, tile.head, tile.row + warp_row(), end_of<Tile>(shared.record(group, use)));
  };
  auto store_tile = [&](const Results &of) {
    store_rows<Tile>(args, o, of, shared.result(group) + warp_row() * kRowBytes);
  };

  Record tile = await_tile();
#pragma unroll 1
  while (chunks > 0) {
    await_start(shared, tile.ring);  // a tile without one before it
    barrier_wait(shared.k_full(tile.ring), shared.parity(tile.ring));
    first.multiply(uniform(shared.q(group, use)), uniform(shared.k(tile.ring)));
    wgmma_wait<0>();
    first.use();
    begin_tile(tile);
    first.put(p);

#pragma unroll 1
    for (;;) {
      // The chunks of a tile.
#pragma unroll 1
      for (uint32_t chunk = 1; chunk < chunks; ++chunk, ++at) {
        const uint32_t q = uniform(shared.q(group, use)), k = uniform(shared.k(at + 1)), v = uniform(shared.v(at));
        auto add_values = [&] {
          barrier_wait(shared.v_full(at), shared.parity(at));
          multiply_values<Tile>(o, p, v, chunk > 1);
        };
        if constexpr (!Scores::kBesideValues) add_values();
        barrier_wait(shared.k_full(at + 1), shared.parity(at + 1));
        scores.multiply(q, k);
        if constexpr (Scores::kBesideValues) add_values();
        wgmma_wait<Scores::kBesideValues ? 1 : 0>();
        scores.use();
        const uint32_t record = shared.record(group, use);
        if (whole >= 0) {
          scores.finish(args, shared, record, at + 1, chunk, whole);
          scores.weigh_some(args, rows);
        }
        wgmma_wait<0>();
        wgmma_use(o);
        barrier_arrive_once(shared.v_empty(at));
        if (whole >= 0 && !scores.weigh_rest(args, rows, p)) {
          const float2 shrink = scores.weigh_again(args, shared, record, shared.q(group, use), shared.k(at + 1), at + 1,
                                                   chunk, whole, rows, p);
#pragma unroll
          for (int i = 0; i < Tile::kDims / 2; ++i) o[i] *= i / 2 % 2 == 0 ? shrink.x : shrink.y;
        }
        leave_keys<Tile>(shared, at + 1);
        if (chunk + 1 == chunks) barrier_arrive(shared.q_empty(group, use));
      }

      // Its last values and the next tile's first scores.
      const bool adds = chunks > 1;
      const uint32_t before = at;
      const float sums[2] = {rows.sum[0], rows.sum[1]};
      ++use;
      tile = await_tile();
      const uint32_t v = uniform(shared.v(at));
      if (chunks == 0 || !tile.is_near) {
        barrier_wait(shared.v_full(at), shared.parity(at));
        multiply_values<Tile>(o, p, v, adds);
        const Results of = prepare_tile(use - 1, factors_of(sums));
        wgmma_wait<0>();
        wgmma_use(o);
        barrier_arrive_once(shared.v_empty(at));
        store_tile(of);
        break;
      }
      const uint32_t q = uniform(shared.q(group, use)), k = uniform(shared.k(tile.ring));
      barrier_wait(shared.k_full(tile.ring), shared.parity(tile.ring));
      first.multiply(q, k);
      barrier_wait(shared.v_full(at), shared.parity(at));
      multiply_values<Tile>(o, p, v, adds);
      const float2 factors = Tile::kEarlyFactors ? factors_of(sums) : float2{};
      wgmma_wait<1>();
      first.use();
      begin_tile(tile);
      wgmma_wait<0>();
      wgmma_use(o);
      barrier_arrive_once(shared.v_empty(before));
      store_tile(prepare_tile(use - 1, Tile::kEarlyFactors ? factors : factors_of(sums)));
      first.put(p);
    }
  }
  if (is_elected()) wait_stores_read<0>();
}

template <class Tile> TREFOIL_DEVICE void attention(const Sm90AttentionArgs &args) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const Shared<Tile> shared = {shared_address(shared_bytes)};
  const int32_t group = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32 % 4);
  if (threadIdx.x == 0) {
    if (shared.base % 1024 != 0) __trap();  // the swizzle is of addresses
    store_shared_u32(shared.started(), 0);
    for (const TensorMap *map : {&args.q, &args.k, &args.v, &args.out, &args.tail_q}) prefetch_tensor_map(map);
    for (int stage = 0; stage < Tile::kStages; ++stage) {
      barrier_init(shared.k_full(stage), Tile::kMask == MaskOf::kKeys ? 1 + 32 : 1), barrier_init(shared.v_full(stage), 1);
      if constexpr (Tile::kPacked) barrier_init(shared.v_landed(stage), 1);
      const int32_t warps = 4 * args.block_tiles + (args.tail > 0 ? 1 : 0);  // that read a chunk
      barrier_init(shared.k_empty(stage), warps * Tile::kLeaving), barrier_init(shared.v_empty(stage), warps);
    }
    for (int q = 0; q < Tile::kReaders * Tile::kQs; ++q) {
      const int32_t lanes = q < Tile::kGroups * Tile::kQs ? 128 : 32;  // that read these rows' record
      barrier_init(shared.q_full(0, 0) + 16 * q, 1), barrier_init(shared.q_empty(0, 0) + 16 * q, lanes);
    }
    fence_barrier_init();
  }
  __syncthreads();
  if (group == Tile::kGroups) {
    give_registers_up<Tile::kLoadRegisters>();
    if constexpr (Tile::kPacked) {
      wait_for_earlier_launches();
      if (warp == 0 && is_elected()) {
        allow_next_launch();  // not before: the next launch's weights would come beside this one's rows
        load_rows(args, shared);
      }
      if (warp == 1 && is_elected()) load_packed_chunks<Tile>(args, shared);
      if (warp == 2) clear_others<Tile>(args, shared);
      if (warp == 3) clear_rows<Tile>(args);
    } else {
      if (warp == 0 && is_elected()) load_rows(args, shared);
      if (warp == 1 && is_elected()) load_chunks(args, shared);
      if (warp == 2 && Tile::kMask == MaskOf::kKeys) load_key_masks(args, shared);
    }
    if (warp >= 2 && Tile::kTails && args.tail > 0) {
      wait_for_earlier_launches();
      attend_tails(args, shared, Tile::kGroups + warp - 2);
    }
  } else {
    take_registers<Tile::kProductRegisters>();
    wait_for_earlier_launches();
    multiply(args, shared, group);
  }
}

// Purpose    out[b][i][h] = sum over j of w[j] * v[b][j][h], w being the softmax over j of
//            scale * (q[b][i][h] . k[b][j][h]) + mask[b][h][i][j], over keys j < lengths[b] with j <= i + ahead. Zeros
//            where a row sees no key.
// Operands   q        read   elements {dims, heads, rows, batch}, any strides, by its map
//            k, v     read   elements {dims, heads, keys, batch}, any strides, by their maps
//            out      write  as q, by its map; overlaps nothing. By entries *_e4m3 codes of e4m3 of these values times
//                            to_codes, in the same order
//            lengths  read   int32 [batch], or null: all keys count
//            mask     read   by *_masked entries: elements, a row's keys next to each other, rows at multiples of 4 bytes
//                            with room for an even number of keys; strides of 0 share rows. Entries *_key_masked read a
//                            head's first row for all.
//            The maps swizzle by 128 bytes and fill with zeros; their boxes are {64, 1, 64, 1} for q, {64, 1, kKeys, 1}
//            for k, {64, 1, kValues, 1} for v, {64, 1, 16, 1} for out, {64, 1, 8, 1} for tail_q, which is of q. A map of
//            codes has pairs of them as elements, swizzles by 64 bytes, and has boxes {32, 1, 16, 1}; strides of codes are
//            multiples of 16. Values are finite, also those behind a length. Elements are f16, or bf16 by entries *_bf16.
// Arithmetic products of elements, float sums. Weights in float relative to a power of two: of a row's first chunk the
//            largest score, raised where a chunk has weights of 2^15 or more; of a tail's row the largest score so far;
//            rounded to elements for the second product, to nearest even; their sums before rounding. Exponentials by
//            the unit for special functions. NaN in q or k stays NaN.
//            By 64/128 of f16 without a mask scores behind a head's first chunk are sums of halves, rounded behind
//            each sixteen products; one below -65,504 is -infinity. The exponent of a reference up to 128, of either
//            sign, is a half. A score times the scale, rounded to a half, less that exponent is rounded to a half; its
//            exponential is a half, off by 2^-9.9 of itself. A thread adds its weights of a row in a chunk as halves,
//            in four chains; two halves remain, which it adds as floats. Where that is not finite, and in each chunk of
//            a row whose reference has a larger exponent, a warp's 16 rows have scores and weights in float, relative
//            to a row's largest score so far.
//            By *_e4m3 the float that would be rounded to an element is multiplied by to_codes, rounded to a float, and
//            rounded to a code, to nearest even (overflow becomes 448 with its sign, NaN the code 0x7f): it is no
//            element in between.
// Launch     grid min(blocks, multiprocessors), blocks = batch * heads * ceil(row_tiles / block_tiles); block kThreads;
//            dynamic shared memory kDynamicBytes. compute capability 9.0 exactly.
// Limits     dims up to the entry's, a multiple of 8; counts positive; rows, keys and ahead below 2^28; batch * heads *
//            row_tiles below 2^31; scale positive; pair_order 0x5410. block_tiles up to 4,096: with a mask of keys 128
//            threads of each tile arrive at k_empty, which counts to 2^20 - 1; above kGroups only where all chunks of a
//            head fit the stages. tail: rows behind row_tiles tiles, up to 8, by 64/88 and 64/104 without a mask; else
//            0, and row_tiles has all rows. What is beyond the operands is read as zero and not written.
//            Deterministic, no atomics.
// Ordering   may be launched before its predecessors have ended, and lets its successor be, but only after
//            griddepcontrol.wait: reads and writes only after that too.
// Source     online softmax: FlashAttention-2 (arXiv 2307.08691); products beside it: FlashAttention-3 (2407.08608).
#define TREFOIL_SM90_ATTENTION_OF(name, Tile)                                                                      \
  extern "C" __global__ void __launch_bounds__(Tile::kThreads, 1)                                                  \
      TREFOIL_ENTRY(name)(const __grid_constant__ Sm90AttentionArgs args) {                                        \
    attention<Tile>(args);                                                                                         \
  }
#define TREFOIL_SM90_ATTENTION(dims, keys, groups, tails)                                                          \
  template <MaskOf kMask> using Tile_##dims##_##keys = AttentionTile<dims, keys, groups, tails, kMask>;            \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys, Tile_##dims##_##keys<MaskOf::kNothing>)                \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_key_masked, Tile_##dims##_##keys<MaskOf::kKeys>)      \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_masked, Tile_##dims##_##keys<MaskOf::kRows>)          \
  TREFOIL_SM90_ATTENTION_TO_CODES(dims, keys, groups, tails)

#ifdef TREFOIL_BF16
#define TREFOIL_SM90_ATTENTION_TO_CODES(dims, keys, groups, tails)
#else
#define TREFOIL_SM90_ATTENTION_TO_CODES(dims, keys, groups, tails)                                                 \
  template <MaskOf kMask> using ToCodes_##dims##_##keys = AttentionTile<dims, keys, groups, tails, kMask, false, true>; \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_e4m3, ToCodes_##dims##_##keys<MaskOf::kNothing>)      \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_key_masked_e4m3, ToCodes_##dims##_##keys<MaskOf::kKeys>) \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_masked_e4m3, ToCodes_##dims##_##keys<MaskOf::kRows>)
#endif

TREFOIL_SM90_ATTENTION(64, 88, 3, true)
TREFOIL_SM90_ATTENTION(64, 104, 3, true)
TREFOIL_SM90_ATTENTION(64, 128, 3, false)
TREFOIL_SM90_ATTENTION(128, 112, 2, false)

// The same with 96 keys in a head's first chunk, for heads whose last chunk would have 96 keys or fewer: it takes the other
// 32, and hides as many keys less.
#ifndef TREFOIL_BF16
template <bool kCodes> using First96 = AttentionTile<64, 128, 3, false, MaskOf::kNothing, false, kCodes, 96>;
TREFOIL_SM90_ATTENTION_OF(sm90_attention_64_128_first_96, First96<false>)
TREFOIL_SM90_ATTENTION_OF(sm90_attention_64_128_first_96_e4m3, First96<true>)
#endif

// Purpose    the same within rows of different lengths that lie end to end: out[i][h] = sum over j of w[j] * v[j][h], w
//            being the softmax over j of scale * (q[i][h] . k[j][h]), over the tokens j of token i's row; zeros for a token
//            in no row.
// Operands   q, k, v, out  as above, of one image whose rows are the tokens. What lies in no row or in another
//                     one may have any bits.
//            table    read   int4 [1 + blocks], see PackedBlock: first the counts, then the blocks. Of a packed row a block
//                     has block_tiles tiles, of its last maybe fewer, and of tokens in no row as many.
//            result   write  what `out` shows: rows that a box would go beyond, and zeros
// Arithmetic as above. A row's result depends on its own tokens alone, bit for bit.
// Launch     as above; grid up to the blocks that the table has room for times the heads; dynamic shared memory with a
//            barrier more for each stage.
// Limits     as above, without mask, lengths, ahead and tail; rows of any length.
// Ordering   as above.
#define TREFOIL_SM90_ATTENTION_PACKED(dims, keys, groups)                                                        \
  using Packed_##dims##_##keys = AttentionTile<dims, keys, groups, false, MaskOf::kNothing, true>;               \
  TREFOIL_SM90_ATTENTION_OF(sm90_attention_##dims##_##keys##_packed, Packed_##dims##_##keys)

TREFOIL_SM90_ATTENTION_PACKED(64, 104, 3)
TREFOIL_SM90_ATTENTION_PACKED(128, 112, 2)
