// Attention of many tokens over the paged cache in tensor cores: a block takes 128 tokens of the step and one head, eight
// warps with 16 tokens each, and goes through the keys 64 at a time. Tokens of several sequences may lie in a block; each
// sequence's keys are gone through once, and rows of other sequences see none of them.
#include "paged.cuh"
#include "pieces.cuh"

template <bool BRAIN> DEVICE void multiply(float* c, const u32* a, u32 b0, u32 b1) {
    if (BRAIN)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows of WIDTH elements of 16 bits in pieces of 16 bytes, exchanged by the row's number.
template <int WIDTH> DEVICE u32 place(u32 row, u32 piece) { return (row * (WIDTH / 8) + (piece ^ row % 8)) * 16; }

// The base of the exponents is two: scores are multiplied by this once.
const float LOG2E = 1.4426950408889634f;

DEVICE float power(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

template <bool BRAIN, class T, int WIDTH> DEVICE void flash(const Paged& p) {
    // Keys and values, each twice: one is read while the other is on its way.
    extern __shared__ __align__(128) u8 memory[];
    const u32 TILE = 64 * WIDTH * 2, TOKENS = 128, THREADS = 256;
    __shared__ int row_seq[TOKENS], row_position[TOKENS];
    const int PIECES = WIDTH / 8, DEPTH = WIDTH / 16, ROWS = 64 * PIECES / THREADS;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, kv = head / (p.heads / p.kv_heads);
    // The last tokens have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * TOKENS, g = lane / 4, part = lane % 4;
    u32 own_piece = threadIdx.x % PIECES, own_row = threadIdx.x / PIECES;
    wait_for_previous();
    if (threadIdx.x < TOKENS) {
        u32 t = first + threadIdx.x;
        bool there = t < p.tokens;
        i64 seq = there ? load_int(p.seq_ids, p.seq_type, t) : -1;
        row_seq[threadIdx.x] = seq >= 0 && seq < p.sequences ? (int)seq : -1;
        row_position[threadIdx.x] = there ? (int)load_int(p.positions, p.position_type, t) : -1;
    }
    u32 base = shared_address(memory);
    for (u32 i = threadIdx.x; i < TOKENS * PIECES; i += THREADS) {
        u32 row = i / PIECES, piece = i % PIECES;
        uint4 v = first + row < p.tokens ? *(const uint4*)((const T*)p.q + (u64)(first + row) * p.q_stride + head * WIDTH + piece * 8) : make_uint4(0, 0, 0, 0);
        *(uint4*)(memory + place<WIDTH>(row, piece)) = v;
    }
    __syncthreads();
    u32 q[DEPTH][4];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) load_matrices(q[k], base + place<WIDTH>(warp * 16 + lane % 16, k * 2 + lane / 16));
    int seq[2] = {row_seq[warp * 16 + g], row_seq[warp * 16 + g + 8]}, position[2] = {row_position[warp * 16 + g], row_position[warp * 16 + g + 8]};
    int low = min(position[0], position[1]), high = max(position[0], position[1]);
    float out[WIDTH / 8][4] = {}, top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f}, scale = p.scale * LOG2E;
    // Blocks of keys are a power of two nearly always.
    u32 shift = 31 - __clz(p.block);
    bool even = (p.block & (p.block - 1)) == 0;
    for (u32 begin = 0; begin < TOKENS;) {
        int now = row_seq[begin], last = -1, least = 0x7fffffff;
        u32 end = begin;
        for (; end < TOKENS && row_seq[end] == now; end++) last = max(last, row_position[end]), least = min(least, row_position[end]);
        begin = end;
        if (now < 0) continue;
        last = min(last, (int)(p.pages * p.block) - 1);
        u32 start = p.window && least >= (int)p.window ? (u32)(least - (int)p.window + 1) / 64 * 64 : 0;
        u64 rows[ROWS];
        auto look_up = [&](u32 key0) {
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                u32 key = min(key0 + own_row + j * (THREADS / PIECES), (u32)last);
                u32 page = even ? key >> shift : key / p.block, inside = even ? key & (p.block - 1) : key % p.block;
                rows[j] = (((u64)load_int(p.table, p.table_type, (u64)now * p.pages + page) * p.block + inside) * p.kv_heads + kv) * WIDTH + own_piece * 8;
            }
        };
        auto load = [&](u32 key0, u32 stage) {
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                u32 row = own_row + j * (THREADS / PIECES), to = base + stage * 2 * TILE + place<WIDTH>(row, own_piece);
                bool inside = (int)(key0 + row) <= last;
                copy16(to, (const T*)p.k_cache + rows[j], inside);
                copy16(to + TILE, (const T*)p.v_cache + rows[j], inside);
            }
            copies_end();
        };
        look_up(start);
        __syncthreads();
        load(start, 0);
        look_up(start + 64);
        u32 stage = 0;
        for (u32 key0 = start; (int)key0 <= last; key0 += 64, stage ^= 1) {
            if ((int)key0 + 64 <= last) {
                load(key0 + 64, stage ^ 1);
                look_up(key0 + 128);
                copies_wait<1>();
            } else copies_wait<0>();
            __syncthreads();
            // Warps whose tokens see none of these keys, and those that see all of them, need not look at each.
            bool mine = seq[0] == now || seq[1] == now;
            if (__any_sync(0xffffffff, mine && (int)key0 <= high)) {
                bool whole = __all_sync(0xffffffff, seq[0] == now && seq[1] == now && (int)key0 + 63 <= low && !p.window);
                u32 k_at = base + stage * 2 * TILE, v_at = k_at + TILE;
                float s[8][4] = {};
#pragma unroll
                for (int k = 0; k < DEPTH; k++)
#pragma unroll
                    for (int n = 0; n < 8; n += 2) {
                        u32 b[4];
                        load_matrices(b, k_at + place<WIDTH>(n * 8 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
                        multiply<BRAIN>(s[n], q[k], b[0], b[1]);
                        multiply<BRAIN>(s[n + 1], q[k], b[2], b[3]);
                    }
                if (p.softcap > 0.f) {
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) s[n][e] = tanhf(s[n][e] * p.scale / p.softcap) * p.softcap * LOG2E;
                } else {
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) s[n][e] *= scale;
                }
                if (!whole) {
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            int key = (int)key0 + n * 8 + (int)part * 2 + e % 2, r = e / 2;
                            bool seen = seq[r] == now && key <= position[r] && (!p.window || key > position[r] - (int)p.window);
                            s[n][e] = seen ? s[n][e] : -INF;
                        }
                }
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float most = top[r];
#pragma unroll
                    for (int n = 0; n < 8; n++) most = fmaxf(most, fmaxf(s[n][r * 2], s[n][r * 2 + 1]));
                    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
                    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
                    float least_power = most == -INF ? 0.f : most, f = power(top[r] - least_power);
                    sum[r] *= f;
#pragma unroll
                    for (int n = 0; n < WIDTH / 8; n++) out[n][r * 2] *= f, out[n][r * 2 + 1] *= f;
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = r * 2; e < r * 2 + 2; e++) s[n][e] = power(s[n][e] - least_power), sum[r] += s[n][e];
                    top[r] = most;
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    u32 a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float* c = s[2 * k + i / 2] + i % 2 * 2;
                        a[i] = BRAIN ? pack_bf16(c[0], c[1]) : pack_f16(c[0], c[1]);
                    }
#pragma unroll
                    for (int n = 0; n < WIDTH / 8; n += 2) {
                        u32 b[4];
                        load_matrices_turned(b, v_at + place<WIDTH>(k * 16 + lane % 16, n + lane / 16));
                        multiply<BRAIN>(out[n], a, b[0], b[1]);
                        multiply<BRAIN>(out[n + 1], a, b[2], b[3]);
                    }
                }
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = sum[r] + __shfl_xor_sync(0xffffffff, sum[r], 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        float f = 1.f;
        if (p.has_sinks) {
            float sink = load_main(p.sinks, p.sink_type, head) * LOG2E, most = fmaxf(top[r], sink);
            f = power(top[r] - most);
            l = l * f + power(sink - most);
        }
        u32 t = first + warp * 16 + g + r * 8;
        if (t >= p.tokens) continue;
        float norm = l == 0.f ? 0.f : f / l;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            u32 two = BRAIN ? pack_bf16(out[n][r * 2] * norm, out[n][r * 2 + 1] * norm) : pack_f16(out[n][r * 2] * norm, out[n][r * 2 + 1] * norm);
            *(u32*)((T*)p.out + ((u64)t * p.heads + head) * WIDTH + n * 8 + part * 2) = two;
        }
    }
}

#define FLASH(name, BRAIN, T, WIDTH) \
    extern "C" __global__ void __launch_bounds__(256, 1) flash_##name(const __grid_constant__ Paged p) { flash<BRAIN, T, WIDTH>(p); }

FLASH(bf16_64, true, bf16, 64)
FLASH(bf16_128, true, bf16, 128)
FLASH(f16_64, false, f16, 64)
FLASH(f16_128, false, f16, 128)
