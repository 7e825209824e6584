// Products of many rows, each with the matrix of a stack that it chose. One block puts the rows in the order of their
// matrices; then every tile of rows that chose the same one is multiplied like any product: both sides go through shared
// memory, a few steps ahead, and packed weights are decoded on their way there. A row's sums do not depend on the tile
// it lands in, so the order among rows of one matrix does not matter.
#include "linear_mma.cuh"
#include "pieces.cuh"

struct Experts {
    Linear p;
    // Before each matrix, and after the last: how many rows, and how many tiles of rows.
    u32 *rows, *tiles;
    // The rows in the order of their matrices.
    u32* order;
};

const u32 STACK = 1024, TOKENS = 64, FEATURES = 128, STEP = 64, STAGES = 3, STAGE = (TOKENS + FEATURES) * 2 * STEP;

// Sums of all entries before each, in place; the threads are as many as the entries. Returns the sum of all.
DEVICE u32 sums_before(u32* entries) {
    u32 own = entries[threadIdx.x];
    for (u32 distance = 1; distance < STACK; distance *= 2) {
        __syncthreads();
        u32 other = threadIdx.x >= distance ? entries[threadIdx.x - distance] : 0;
        __syncthreads();
        entries[threadIdx.x] += other;
    }
    __syncthreads();
    u32 all = entries[STACK - 1];
    __syncthreads();
    entries[threadIdx.x] -= own;
    __syncthreads();
    return all;
}

KERNEL __launch_bounds__(STACK) experts_sort(const __grid_constant__ Experts e) {
    __shared__ u32 rows[STACK], tiles[STACK];
    u32 at = threadIdx.x;
    u64 matrix, from;
    rows[at] = 0;
    __syncthreads();
    wait_for_previous();
    for (u32 i = at; i < e.p.m; i += STACK) chosen(e.p, i, matrix, from), atomicAdd(rows + matrix, 1);
    __syncthreads();
    tiles[at] = (rows[at] + TOKENS - 1) / TOKENS;
    u32 all_tiles = sums_before(tiles), all_rows = sums_before(rows);
    if (at < e.p.experts) e.rows[at] = rows[at], e.tiles[at] = tiles[at];
    if (at == 0) e.rows[e.p.experts] = all_rows, e.tiles[e.p.experts] = all_tiles;
    __syncthreads();
    for (u32 i = at; i < e.p.m; i += STACK) chosen(e.p, i, matrix, from), e.order[atomicAdd(rows + matrix, 1)] = i;
}

// Where piece `piece` of 16 bytes of a row of 64 elements lies in shared memory: rows are exchanged so that eight of them
// never meet in a bank.
DEVICE u32 place(u32 row, u32 piece) { return row * 128 + (piece ^ (row & 7)) * 16; }

template <class N, bool PACKED> DEVICE void expert_tiles(const Experts& e) {
    typedef typename N::T T;
    const Linear& p = e.p;
    extern __shared__ __align__(128) u8 memory[];
    __shared__ u32 pairs[TOKENS];
    u32 memory_at = shared_address(memory);
    wait_for_previous();
    if (blockIdx.y >= e.tiles[p.experts]) return;
    // The last matrix that begins at this tile or before.
    u32 matrix = 0;
    for (u32 after = p.experts; after - matrix > 1;) {
        u32 middle = (matrix + after) / 2;
        if (e.tiles[middle] <= blockIdx.y) matrix = middle;
        else after = middle;
    }
    u32 first = e.rows[matrix] + (blockIdx.y - e.tiles[matrix]) * TOKENS, count = min(TOKENS, e.rows[matrix + 1] - first);
    if (threadIdx.x < TOKENS) pairs[threadIdx.x] = e.order[first + min(threadIdx.x, count - 1)];
    __syncthreads();

    // Eight threads bring a row, 32 rows at once.
    u32 row = threadIdx.x / 8, piece = threadIdx.x % 8, feature = blockIdx.x * FEATURES;
    const u16* x[TOKENS / 32];
#pragma unroll
    for (u32 i = 0; i < TOKENS / 32; i++) x[i] = (const u16*)p.x + (u64)(p.shared ? pairs[row + 32 * i] / p.choices : pairs[row + 32 * i]) * p.x_stride;
    u64 base = (u64)matrix * p.n;
    auto fill = [&](u32 step) {
        u32 left = memory_at + step % STAGES * STAGE, right = left + TOKENS * 128;
        u32 k = step * STEP + piece * 8;
#pragma unroll
        for (u32 i = 0; i < TOKENS / 32; i++) {
            bool is_there = k < p.k && row + 32 * i < count;
            copy16(left + place(row + 32 * i, piece), x[i] + (is_there ? k : 0), is_there);
        }
#pragma unroll(PACKED ? 1 : FEATURES / 32)
        for (u32 i = 0; i < FEATURES / 32; i++) {
            u32 r = row + 32 * i;
            bool is_there = k < p.k && feature + r < p.n;
            u32 to = right + place(r, piece);
            if (!PACKED) {
                copy16(to, p.w.codes + (is_there ? (base + feature + r) * p.k + k : 0) * 2, is_there);
                continue;
            }
            float v[8] = {};
            if (is_there) decode8(p.w, base + feature + r, k, v);
            *(uint4*)(memory + (to - memory_at)) = make_uint4(N::pack(v[0], v[1]), N::pack(v[2], v[3]), N::pack(v[4], v[5]), N::pack(v[6], v[7]));
        }
    };

    u32 steps = (p.k + STEP - 1) / STEP, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 token_at = warp % 2 * 32, feature_at = warp / 2 * 32;
    float sum[2][4][4] = {};
#pragma unroll
    for (u32 step = 0; step < STAGES - 1; step++) {
        if (step < steps) fill(step);
        copies_end();
    }
    for (u32 step = 0; step < steps; step++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) fill(step + STAGES - 1);
        copies_end();
        u32 left = memory_at + step % STAGES * STAGE, right = left + TOKENS * 128;
#pragma unroll
        for (u32 k = 0; k < STEP / 16; k++) {
            u32 a[2][4], b[2][4];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                load_matrices(a[i], left + place(token_at + 16 * i + lane % 16, 2 * k + lane / 16));
                load_matrices(b[i], right + place(feature_at + 16 * i + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            }
#pragma unroll
            for (u32 i = 0; i < 2; i++)
#pragma unroll
                for (u32 j = 0; j < 4; j++) N::mma(sum[i][j], a[i], b[j / 2] + 2 * (j % 2));
        }
    }
#pragma unroll
    for (u32 i = 0; i < 2; i++)
#pragma unroll
        for (u32 j = 0; j < 4; j++)
#pragma unroll
            for (u32 c = 0; c < 4; c++) {
                u32 t = token_at + 16 * i + lane / 4 + c / 2 * 8, n = feature + feature_at + 8 * j + lane % 4 * 2 + c % 2;
                if (t >= count || n >= p.n) continue;
                T v = from_float<T>(sum[i][j][c]);
                if (p.bias) v = from_float<T>(to_float(v) + to_float(from_float<T>(load_main(p.bias, p.bias_type, base + n))));
                ((T*)p.y)[pairs[t] * (u64)p.y_stride + n] = v;
            }
}

#define EXPERTS(name, N, PACKED) \
    KERNEL __launch_bounds__(256) experts_##name(const __grid_constant__ Experts e) { expert_tiles<N, PACKED>(e); }

EXPERTS(bf16_plain, B16, false)
EXPERTS(f16_plain, H16, false)
EXPERTS(bf16_packed, B16, true)
EXPERTS(f16_packed, H16, true)
