// Products of many rows of 16-bit numbers on Hopper. One warp brings tiles of both sides to shared memory, some steps ahead;
// two groups of four warps multiply them in tensor cores. Weights are on their way before the kernels before have ended.
// Tiles go to the blocks one by one; those that do not fill a round may be cut along the width into equal shares, whose
// sums go through memory and are added in their order. On other architectures the kernels are empty
// and never started.
#include "async.cuh"
#include "linear.cuh"

struct Gemm {
    TensorMap x, w;
    Linear p;
    // Shares of sums: two for each block; and how many of a tile's have come.
    float* shares;
    u32* come;
    // The tiles that are cut, the first ones.
    u32 cut, unused;
};

#if __CUDA_ARCH_FEAT_SM90_ALL

// Rows of 64 elements, eight of them a pattern of 1024 bytes whose pieces of 16 are exchanged by the row's number.
DEVICE u64 descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// 64 rows by as many columns as twice the numbers that a thread holds.
#define OPERANDS64 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
#define RESULTS64 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
template <bool BRAIN> DEVICE void multiply(float (&d)[32], u64 a, u64 b) {
    if (BRAIN) asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OPERANDS64 : RESULTS64 : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " OPERANDS64 : RESULTS64 : "l"(a), "l"(b));
}
#define OPERANDS128 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
#define RESULTS128 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
template <bool BRAIN> DEVICE void multiply(float (&d)[64], u64 a, u64 b) {
    if (BRAIN) asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " OPERANDS128 : RESULTS128 : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " OPERANDS128 : RESULTS128 : "l"(a), "l"(b));
}
#define OPERANDS256 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, %128, %129, 1, 1, 1, 0, 0;"
#define RESULTS256 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
template <bool BRAIN> DEVICE void multiply(float (&d)[128], u64 a, u64 b) {
    if (BRAIN) asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " OPERANDS256 : RESULTS256 : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 " OPERANDS256 : RESULTS256 : "l"(a), "l"(b));
}

// What a block does next: steps `from` to `to` of a tile.
struct Piece {
    u32 tile, from, to;
};

// The pieces of a block, in order: first its equal share of the tiles that are cut, then whole tiles.
struct Pieces {
    u64 next, end;
    u32 steps, first, tiles;
    DEVICE Pieces(u32 all, u32 steps_, u32 cut) {
        steps = steps_;
        u64 total = (u64)cut * steps;
        next = total * blockIdx.x / gridDim.x, end = total * (blockIdx.x + 1) / gridDim.x;
        first = cut + blockIdx.x, tiles = all;
    }
    DEVICE bool take(Piece& p) {
        if (next < end) {
            p.tile = (u32)(next / steps), p.from = (u32)(next % steps);
            p.to = (u32)min((u64)steps, p.from + (end - next));
            next += p.to - p.from;
            return true;
        }
        if (first >= tiles) return false;
        p.tile = first, p.from = 0, p.to = steps;
        first += gridDim.x;
        return true;
    }
};

// Two results side by side, with what is to be added to them.
template <bool BRAIN, class T> DEVICE void put(const Linear& p, u64 m, u64 n, float first, float second) {
    if (m >= p.m || n >= p.n) return;
    float v[2] = {to_float(from_float<T>(first)), to_float(from_float<T>(second))};
    bool both = n + 1 < p.n;
    if (p.bias) {
        v[0] = to_float(from_float<T>(v[0] + to_float(from_float<T>(load_main(p.bias, p.bias_type, n)))));
        if (both) v[1] = to_float(from_float<T>(v[1] + to_float(from_float<T>(load_main(p.bias, p.bias_type, n + 1)))));
    }
    if (p.residual) {
        const T* r = (const T*)p.residual + m * p.residual_stride + n;
        v[0] += to_float(r[0]);
        if (both) v[1] += to_float(r[1]);
    }
    T* y = (T*)p.y + m * p.y_stride + n;
    if (p.y_stride % 2 == 0 && both) *(u32*)y = BRAIN ? pack_bf16(v[0], v[1]) : pack_f16(v[0], v[1]);
    else {
        y[0] = from_float<T>(v[0]);
        if (both) y[1] = from_float<T>(v[1]);
    }
}

DEVICE void consumers() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// TOKENS rows of `x` by FEATURES rows of the weight: both groups of warps take half of the one or, if there are only 64
// rows of `x`, of the other. What a thread holds goes by 64 rows, then by pairs of columns.
template <bool BRAIN, class T, int TOKENS, int FEATURES, int STAGES> DEVICE void gemm(const Gemm& q) {
    const Linear& p = q.p;
    const u32 COLS = TOKENS == 64 ? FEATURES / 2 : FEATURES, X = TOKENS * 128, STAGE = (TOKENS + FEATURES) * 128, ROWS = TOKENS == 256 ? 2 : 1, EACH = COLS / 2, HELD = ROWS * EACH, AT_ONCE = HELD / 16;
    extern __shared__ __align__(1024) u8 memory[];
    __shared__ __align__(8) u64 arrived[STAGES], taken[STAGES];
    u32 base = (shared_address(memory) + 1023) & ~1023u, lane = threadIdx.x % 32;
    u32 steps = (p.k + 63) / 64, across = (p.m + TOKENS - 1) / TOKENS, all = across * ((p.n + FEATURES - 1) / FEATURES);
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < STAGES; i++) barrier_init(shared_address(&arrived[i]), 1), barrier_init(shared_address(&taken[i]), 8);
        barriers_made();
    }
    let_next_start();
    __syncthreads();
    Pieces pieces(all, steps, q.cut);
    Piece piece;
    u32 stage = 0;
    if (threadIdx.x / 32 == 8) {
        if (lane) return;
        u32 parity = 1, waiting = 0;
        // Rows of `x` that are still to come to stages whose weights are on their way.
        u32 x_k[STAGES], x_row[STAGES];
        bool waited = false;
        while (pieces.take(piece)) {
            u32 row = piece.tile % across * TOKENS, n = piece.tile / across * FEATURES;
            for (u32 step = piece.from; step < piece.to; step++) {
                if (!waited && waiting == STAGES) {
                    wait_for_previous();
                    waited = true;
                    for (u32 i = 0; i < STAGES; i++) copy_tile(base + i * STAGE, &q.x, x_k[i], x_row[i], shared_address(&arrived[i]));
                }
                u32 barrier = shared_address(&arrived[stage]);
                barrier_wait(shared_address(&taken[stage]), parity);
                barrier_expect(barrier, STAGE);
                copy_tile(base + stage * STAGE + X, &q.w, step * 64, n, barrier);
                if (waited) copy_tile(base + stage * STAGE, &q.x, step * 64, row, barrier);
                else x_k[waiting] = step * 64, x_row[waiting] = row, waiting++;
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
        }
        if (!waited) {
            wait_for_previous();
            for (u32 i = 0; i < waiting; i++) copy_tile(base + i * STAGE, &q.x, x_k[i], x_row[i], shared_address(&arrived[i]));
        }
        return;
    }
    wait_for_previous();
    u32 group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, parity = 0;
    u32 rows_at = (TOKENS == 64 ? 0 : group * (TOKENS / 2)) + warp * 16 + lane / 4, cols_at = (TOKENS == 64 ? group * COLS : 0) + lane % 4 * 2;
    // Tiles that this block has shares of: at most the one it begins with and the one it ends with.
    u32 shared_tiles[2], shared_count = 0;
    u32 a_at = TOKENS == 64 ? 0 : group * (TOKENS / 2) * 128, b_at = X + (TOKENS == 64 ? group * COLS * 128 : 0);
    while (pieces.take(piece)) {
        float d[ROWS][EACH];
#pragma unroll
        for (u32 i = 0; i < HELD; i++) d[i / EACH][i % EACH] = 0.f;
        for (u32 step = piece.from; step < piece.to; step++) {
            barrier_wait(shared_address(&arrived[stage]), parity);
            u32 at = base + stage * STAGE;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) multiply<BRAIN>(d[r], descriptor(at + a_at + r * 64 * 128 + k * 32), descriptor(at + b_at + k * 32));
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            // The step before is done: its stage may be filled again.
            asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
            if (step > piece.from && lane == 0) barrier_arrive(shared_address(&taken[stage ? stage - 1 : STAGES - 1]));
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        if (lane == 0) barrier_arrive(shared_address(&taken[stage ? stage - 1 : STAGES - 1]));
        u64 m0 = (u64)(piece.tile % across) * TOKENS + rows_at, n0 = (u64)(piece.tile / across) * FEATURES + cols_at;
        if (piece.from == 0 && piece.to == steps) {
#pragma unroll
            for (u32 i = 0; i < HELD; i += 2) {
                u32 r = i / EACH, j = i % EACH;
                put<BRAIN, T>(p, m0 + r * 64 + j / 2 % 2 * 8, n0 + j / 4 * 8, d[r][j], d[r][j + 1]);
            }
            continue;
        }
        float* mine = q.shares + (u64)(2 * blockIdx.x + (piece.from == 0)) * (HELD * 256);
#pragma unroll
        for (u32 i = 0; i < HELD; i += 4) {
            const float* four = &d[i / EACH][i % EACH];
            *(float4*)(mine + i * 256 + threadIdx.x * 4) = make_float4(four[0], four[1], four[2], four[3]);
        }
        __threadfence();
        consumers();
        if (threadIdx.x == 0) atomicAdd(q.come + 2 * piece.tile, 1);
        shared_tiles[shared_count++] = piece.tile;
    }
    // Every block that has a share of a tile adds up its own part of it, once all shares are there.
    for (u32 j = 0; j < shared_count; j++) {
        u32 tile = shared_tiles[j];
        u64 total = (u64)q.cut * steps, begin = (u64)tile * steps;
        u32 low = (u32)(((begin + 1) * gridDim.x - 1) / total), high = (u32)(((begin + steps) * gridDim.x - 1) / total), count = high - low + 1;
        u32* come = q.come + 2 * tile;
        if (threadIdx.x == 0) {
            while (*(volatile u32*)come < count) __nanosleep(32);
            __threadfence();
        }
        consumers();
        // The last to have seen it leaves both counts as they were.
        if (threadIdx.x == 0 && atomicAdd(come + 1, 1) == count - 1) come[0] = 0, come[1] = 0;
        u64 m0 = (u64)(tile % across) * TOKENS + rows_at, n0 = (u64)(tile / across) * FEATURES + cols_at;
        // Several at a time, so that many are on their way at once.
        for (u32 i = (blockIdx.x - low) * 4; i < HELD; i += 4 * AT_ONCE * count) {
            float4 sum[AT_ONCE] = {};
#pragma unroll 4
            for (u32 block = low; block <= high; block++) {
                const float* share = q.shares + (u64)(2 * block + (block == low)) * (HELD * 256) + threadIdx.x * 4;
#pragma unroll
                for (u32 u = 0; u < AT_ONCE; u++) {
                    float4 more = __ldcg((const float4*)(share + min(i + 4 * count * u, HELD - 4) * 256));
                    sum[u].x += more.x, sum[u].y += more.y, sum[u].z += more.z, sum[u].w += more.w;
                }
            }
#pragma unroll
            for (u32 u = 0; u < AT_ONCE; u++) {
                u32 at = i + 4 * count * u;
                if (at >= HELD) break;
                u64 m = m0 + at / EACH * 64, n = n0 + at % EACH / 4 * 8;
                put<BRAIN, T>(p, m, n, sum[u].x, sum[u].y);
                put<BRAIN, T>(p, m + 8, n, sum[u].z, sum[u].w);
            }
        }
    }
}
#define GEMM(name, BRAIN, T, TOKENS, FEATURES, STAGES) \
    extern "C" __global__ void __launch_bounds__(288, 1) gemm_##name(const __grid_constant__ Gemm p) { gemm<BRAIN, T, TOKENS, FEATURES, STAGES>(p); }
#else
#define GEMM(name, BRAIN, T, TOKENS, FEATURES, STAGES) \
    extern "C" __global__ void gemm_##name(const __grid_constant__ Gemm p) {}
#endif

GEMM(bf16_64, true, bf16, 64, 128, 6)
GEMM(bf16_128, true, bf16, 128, 128, 6)
GEMM(bf16_256, true, bf16, 256, 128, 4)
GEMM(bf16_many, true, bf16, 128, 256, 4)
GEMM(f16_64, false, f16, 64, 128, 6)
GEMM(f16_128, false, f16, 128, 128, 6)
GEMM(f16_256, false, f16, 256, 128, 4)
GEMM(f16_many, false, f16, 128, 256, 4)
