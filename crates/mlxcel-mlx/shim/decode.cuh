// The body of a CUDA kernel that MLX compiles: attention of single tokens to the pages of their sequences. Constants are given
// by `paged.h`.
//
// A block has one token and the heads that share a head of keys, or some of them. Its warps take keys in turn, LANES lanes
// each, with 16 bytes a lane, so that a key is read once for all those heads. Sums are of f32, and every lane group has its own
// until the end.
//
// Checked by tests/decode.cpp on threads of the processor, and on a GPU by the conformance suite. Measured in docs/mlx.md.
R"(
  constexpr int WIDTH = 16 / sizeof(C), PIECES = D / WIDTH, CHUNKS = (PIECES + 31) / 32;
  constexpr int LANES = PIECES > 16 ? 32 : PIECES > 8 ? 16 : PIECES > 4 ? 8 : PIECES > 2 ? 4 : PIECES;
  constexpr int AT_ONCE = 32 / LANES, UNROLLED = 2, OWN = CHUNKS * WIDTH;
  constexpr float LOWEST = -1e30f;
  const float scale = __int_as_float(SCALE), cap = __int_as_float(CAP);
  __shared__ float shared_top[WARPS], shared_sum[WARPS], shared_out[WARPS][D];

  const int token = blockIdx.x, head = blockIdx.y * GROUP, kv_head = head / (HEADS / KV_HEADS);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, piece = lane % LANES;
  T* result = out + (size_t(token) * HEADS + head) * D;
  const int sequence = sequences[token];
  if (sequence < 0 || sequence >= table_shape[0]) {
    for (int i = threadIdx.x; i < GROUP * D; i += WARPS * 32) result[i] = T(0.0f);
    return;
  }
  const int after = positions[token] + 1, end = min(after, table_shape[1] * BLOCK);
  const int begin = WINDOW > 0 ? max(0, after - WINDOW) : 0;
  const int* pages = table + size_t(sequence) * table_shape[1];

  float query[GROUP][OWN], sums[GROUP][OWN], top[GROUP], sum[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; g++) {
    top[g] = LOWEST;
    sum[g] = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
      int at = piece * WIDTH + i / WIDTH * 32 * WIDTH + i % WIDTH;
      query[g][i] = at < D ? float(q[(size_t(token) * HEADS + head + g) * D + at]) * scale : 0.0f;
      sums[g][i] = 0.0f;
    }
  }

  for (int base = begin + warp * AT_ONCE * UNROLLED; base < end; base += WARPS * AT_ONCE * UNROLLED) {
    uint4 key[UNROLLED][CHUNKS], value[UNROLLED][CHUNKS];
    bool seen[UNROLLED];
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      int at = base + u * AT_ONCE + lane / LANES;
      seen[u] = at < end;
      size_t row = 0;
      if (seen[u]) row = (size_t(pages[at / BLOCK]) * BLOCK + at % BLOCK) * KV_HEADS + kv_head;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        int part = piece + c * 32;
        bool mine = seen[u] && part < PIECES;
        key[u][c] = mine ? reinterpret_cast<const uint4*>(keys + row * D)[part] : uint4{0, 0, 0, 0};
        value[u][c] = mine ? reinterpret_cast<const uint4*>(values + row * D)[part] : uint4{0, 0, 0, 0};
      }
    }
    float score[UNROLLED][GROUP];
#pragma unroll
    for (int u = 0; u < UNROLLED; u++) {
      const C* numbers = reinterpret_cast<const C*>(key[u]);
#pragma unroll
      for (int g = 0; g < GROUP; g++) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; i++) dot += query[g][i] * float(numbers[i]);
#pragma unroll
        for (int by = LANES / 2; by > 0; by /= 2) dot += __shfl_xor_sync(0xffffffff, dot, by);
        score[u][g] = CAP ? tanhf(dot / cap) * cap : dot;
      }
    }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
      float highest = top[g];
#pragma unroll
      for (int u = 0; u < UNROLLED; u++) highest = seen[u] ? fmaxf(highest, score[u][g]) : highest;
      float less = expf(top[g] - highest);
      top[g] = highest;
      sum[g] *= less;
#pragma unroll
      for (int i = 0; i < OWN; i++) sums[g][i] *= less;
#pragma unroll
      for (int u = 0; u < UNROLLED; u++) {
        float weight = seen[u] ? expf(score[u][g] - highest) : 0.0f;
        const C* numbers = reinterpret_cast<const C*>(value[u]);
        sum[g] += weight;
#pragma unroll
        for (int i = 0; i < OWN; i++) sums[g][i] += weight * float(numbers[i]);
      }
    }
  }

#pragma unroll
  for (int g = 0; g < GROUP; g++) {
#pragma unroll
    for (int by = LANES; by < 32; by *= 2) {
      float other = __shfl_xor_sync(0xffffffff, top[g], by), highest = fmaxf(top[g], other);
      float mine = expf(top[g] - highest), theirs = expf(other - highest);
      top[g] = highest;
      sum[g] = sum[g] * mine + __shfl_xor_sync(0xffffffff, sum[g], by) * theirs;
#pragma unroll
      for (int i = 0; i < OWN; i++)
        sums[g][i] = sums[g][i] * mine + __shfl_xor_sync(0xffffffff, sums[g][i], by) * theirs;
    }
    if (lane < LANES) {
#pragma unroll
      for (int i = 0; i < OWN; i++) {
        int at = piece * WIDTH + i / WIDTH * 32 * WIDTH + i % WIDTH;
        if (at < D) shared_out[warp][at] = sums[g][i];
      }
    }
    if (lane == 0) {
      shared_top[warp] = top[g];
      shared_sum[warp] = sum[g];
    }
    __syncthreads();
    float highest = SINKS ? sinks[head + g] : LOWEST;
    for (int w = 0; w < WARPS; w++) highest = fmaxf(highest, shared_top[w]);
    float all = SINKS ? expf(sinks[head + g] - highest) : 0.0f;
    for (int w = 0; w < WARPS; w++) all += shared_sum[w] * expf(shared_top[w] - highest);
    for (int i = threadIdx.x; i < D; i += WARPS * 32) {
      float mixed = 0.0f;
      for (int w = 0; w < WARPS; w++) mixed += shared_out[w][i] * expf(shared_top[w] - highest);
      result[g * D + i] = T(all == 0.0f ? 0.0f : mixed / all);
    }
    __syncthreads();
  }
)"
