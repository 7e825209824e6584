// Attention of many tokens over the paged cache in tensor cores: a block takes 64 tokens of the step and one head, four
// warps with 16 tokens each, and goes through the keys 64 at a time. Tokens of several sequences may lie in a block; each
// sequence's keys are gone through once, and rows of other sequences see none of them.
#include "paged.cuh"

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void load_matrices(u32* r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
DEVICE void load_matrices_turned(u32* r, u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}

DEVICE void copy16(u32 to, const void* from, bool inside) {
    u32 bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

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

template <bool BRAIN, class T, int WIDTH> DEVICE void flash(const Paged& p) {
    // Keys and values, each twice: one is read while the other is on its way.
    extern __shared__ __align__(128) u8 memory[];
    const u32 TILE = 64 * WIDTH * 2;
    __shared__ int row_seq[64], row_position[64];
    const int PIECES = WIDTH / 8, DEPTH = WIDTH / 16;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, kv = head / (p.heads / p.kv_heads);
    // The last tokens have the most keys: they go first.
    u32 first = (gridDim.x - 1 - blockIdx.x) * 64, g = lane / 4, part = lane % 4;
    wait_for_previous();
    if (threadIdx.x < 64) {
        u32 t = first + threadIdx.x;
        bool there = t < p.tokens;
        i64 seq = there ? load_int(p.seq_ids, p.seq_type, t) : -1;
        row_seq[threadIdx.x] = seq >= 0 && seq < p.sequences ? (int)seq : -1;
        row_position[threadIdx.x] = there ? (int)load_int(p.positions, p.position_type, t) : -1;
    }
    u32 base = shared_address(memory);
    u8* keys = memory;
    for (u32 i = threadIdx.x; i < 64 * PIECES; i += 128) {
        u32 row = i / PIECES, piece = i % PIECES;
        uint4 v = first + row < p.tokens ? *(const uint4*)((const T*)p.q + (u64)(first + row) * p.q_stride + head * WIDTH + piece * 8) : make_uint4(0, 0, 0, 0);
        *(uint4*)(keys + place<WIDTH>(row, piece)) = v;
    }
    __syncthreads();
    u32 q[DEPTH][4];
#pragma unroll
    for (int k = 0; k < DEPTH; k++) load_matrices(q[k], base + place<WIDTH>(warp * 16 + lane % 16, k * 2 + lane / 16));
    int seq[2] = {row_seq[warp * 16 + g], row_seq[warp * 16 + g + 8]}, position[2] = {row_position[warp * 16 + g], row_position[warp * 16 + g + 8]};
    float out[WIDTH / 8][4] = {}, top[2] = {-INF, -INF}, sum[2] = {0.f, 0.f};
    for (u32 begin = 0; begin < 64;) {
        int now = row_seq[begin], last = -1, least = 0x7fffffff;
        u32 end = begin;
        for (; end < 64 && row_seq[end] == now; end++) last = max(last, row_position[end]), least = min(least, row_position[end]);
        begin = end;
        if (now < 0) continue;
        last = min(last, (int)(p.pages * p.block) - 1);
        u32 start = p.window && least >= (int)p.window ? (u32)(least - (int)p.window + 1) / 64 * 64 : 0;
        auto load = [&](u32 key0, u32 stage) {
            for (u32 i = threadIdx.x; i < 64 * PIECES; i += 128) {
                u32 row = i / PIECES, piece = i % PIECES, key = key0 + row;
                bool inside = (int)key <= last;
                u64 block = inside ? load_int(p.table, p.table_type, (u64)now * p.pages + key / p.block) : 0;
                u64 at = ((block * p.block + key % p.block) * p.kv_heads + kv) * WIDTH + piece * 8;
                u32 to = base + stage * 2 * TILE + place<WIDTH>(row, piece);
                copy16(to, (const T*)p.k_cache + (inside ? at : 0), inside);
                copy16(to + TILE, (const T*)p.v_cache + (inside ? at : 0), inside);
            }
            asm volatile("cp.async.commit_group;");
        };
        __syncthreads();
        load(start, 0);
        u32 stage = 0;
        for (u32 key0 = start; (int)key0 <= last; key0 += 64, stage ^= 1) {
            if ((int)key0 + 64 <= last) {
                load(key0 + 64, stage ^ 1);
                asm volatile("cp.async.wait_group 1;");
            } else asm volatile("cp.async.wait_group 0;");
            __syncthreads();
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
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float most = top[r];
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        int key = (int)key0 + n * 8 + (int)part * 2 + e;
                        float v = s[n][r * 2 + e] * p.scale;
                        if (p.softcap > 0.f) v = tanhf(v / p.softcap) * p.softcap;
                        bool seen = seq[r] == now && key <= position[r] && (!p.window || key > position[r] - (int)p.window);
                        v = seen ? v : -INF;
                        s[n][r * 2 + e] = v;
                        most = fmaxf(most, v);
                    }
                most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, 2));
                float f = top[r] == -INF ? 0.f : __expf(top[r] - most);
                sum[r] *= f;
#pragma unroll
                for (int n = 0; n < WIDTH / 8; n++) out[n][r * 2] *= f, out[n][r * 2 + 1] *= f;
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float weight = s[n][r * 2 + e] == -INF ? 0.f : __expf(s[n][r * 2 + e] - most);
                        s[n][r * 2 + e] = weight;
                        sum[r] += weight;
                    }
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
            __syncthreads();
        }
    }
    let_next_start();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float l = sum[r] + __shfl_xor_sync(0xffffffff, sum[r], 1);
        l += __shfl_xor_sync(0xffffffff, l, 2);
        float f = 1.f;
        if (p.has_sinks) {
            float sink = load_main(p.sinks, p.sink_type, head), most = fmaxf(top[r], sink);
            f = top[r] == -INF ? 0.f : __expf(top[r] - most);
            l = l * f + __expf(sink - most);
        }
        u32 t = first + warp * 16 + g + r * 8;
        if (t >= p.tokens) continue;
        float scale = l == 0.f ? 0.f : f / l;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            u32 two = BRAIN ? pack_bf16(out[n][r * 2] * scale, out[n][r * 2 + 1] * scale) : pack_f16(out[n][r * 2] * scale, out[n][r * 2 + 1] * scale);
            *(u32*)((T*)p.out + ((u64)t * p.heads + head) * WIDTH + n * 8 + part * 2) = two;
        }
    }
}

#define FLASH(name, BRAIN, T, WIDTH) \
    extern "C" __global__ void __launch_bounds__(128) flash_##name(const __grid_constant__ Paged p) { flash<BRAIN, T, WIDTH>(p); }

FLASH(bf16_64, true, bf16, 64)
FLASH(bf16_128, true, bf16, 128)
FLASH(f16_64, false, f16, 64)
FLASH(f16_128, false, f16, 128)
