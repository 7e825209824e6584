// Products of a few rows of 16-bit numbers with a stored weight, at the speed of memory. A block takes 16 rows of the
// weight; its eight warps take turns along them, 128 elements at a time, and hand them to the tensor cores as they come
// from memory: which elements a thread holds is chosen so that every load is 16 bytes, for weight and `x` alike. The
// order of the sums depends on the width alone, so a row's result does not depend on the rows beside it.
#pragma once
#include "linear.cuh"

struct B16 {
    typedef bf16 T;
    DEVICE static void mma(float* c, const u32* a, const u32* b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    DEVICE static u32 pack(float low, float high) { return pack_bf16(low, high); }
};
struct H16 {
    typedef f16 T;
    DEVICE static void mma(float* c, const u32* a, const u32* b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
    DEVICE static u32 pack(float low, float high) { return pack_f16(low, high); }
};

DEVICE uint4 stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE u32 stream_word(const void* p) {
    u32 v;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}
DEVICE u32 fma_bf16x2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// The low or the high halves of two words as one.
DEVICE u32 low_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x5410); }
DEVICE u32 high_halves(u32 a, u32 b) { return __byte_perm(a, b, 0x7632); }

DEVICE u32 bf16_twice(float v) { return pack_bf16(v, v); }

// A format: what a thread holds of 128 elements of a row, and its 16 pairs as numbers; `AHEAD` says how many of these are
// on their way at once. `STRIDED` formats pair element
// `i` of eight with `i + 4`, which costs them one shift less. `SPREAD` ones hold eight elements of every 32, the others
// 32 in a row.
template <class N> struct PlainRow {
    static const bool STRIDED = false, SPREAD = true;
    static const int AHEAD = 1;
    uint4 raw[4];
    DEVICE void load(const Weight& w, u64 row, u32 k, u32 width, u32 part) {
        const u8* p = w.codes + (row * width + k) * 2;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 at = 32 * i + 8 * part;
            raw[i] = k + at < width ? stream(p + at * 2) : make_uint4(0, 0, 0, 0);
        }
    }
    DEVICE void pairs(u32* out) const {
#pragma unroll
        for (int i = 0; i < 4; i++) out[4 * i] = raw[i].x, out[4 * i + 1] = raw[i].y, out[4 * i + 2] = raw[i].z, out[4 * i + 3] = raw[i].w;
    }
};

template <int BITS> struct AffineRow {
    static const bool STRIDED = BITS == 4, SPREAD = false;
    static const int AHEAD = BITS <= 4 ? 4 : 2;
    u32 raw[BITS];
    // As they are stored, so that nothing waits for them before it must.
    u32 raw_scale, raw_bias, type;
    DEVICE void load(const Weight& w, u64 row, u32 k, u32 width, u32 part) {
        k += 32 * part;
        raw_scale = raw_bias = 0, type = w.type;
        if (k >= width) {
#pragma unroll
            for (int i = 0; i < BITS; i++) raw[i] = 0;
            return;
        }
        u64 at = row * width + k;
        const u8* p = w.codes + at / 32 * (4 * BITS);
        if (BITS % 4 == 0) {
#pragma unroll
            for (int i = 0; i < BITS / 4; i++) {
                uint4 v = stream(p + 16 * i);
                raw[4 * i] = v.x, raw[4 * i + 1] = v.y, raw[4 * i + 2] = v.z, raw[4 * i + 3] = v.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < BITS; i++) raw[i] = stream_word(p + 4 * i);
        }
        u64 group = w.group == 64 ? at / 64 : w.group == 32 ? at / 32 : at / w.group;
        raw_scale = w.type == F32 ? ((const u32*)w.scales)[group] : ((const u16*)w.scales)[group];
        raw_bias = w.type == F32 ? ((const u32*)w.biases)[group] : ((const u16*)w.biases)[group];
    }
    DEVICE float number(u32 bits) const {
        f16 half;
        half.bits = (u16)bits;
        return type == BF16 ? __uint_as_float(bits << 16) : type == F32 ? __uint_as_float(bits) : to_float(half);
    }
    DEVICE u32 code(int e) const {
        const int bit = e * BITS, word = bit / 32, shift = bit % 32;
        u32 v = shift + BITS > 32 ? __funnelshift_r(raw[word], raw[word + 1 < BITS ? word + 1 : word], shift) : raw[word] >> shift;
        return v & ((1u << BITS) - 1);
    }
    DEVICE void pairs(u32* out) const {
        float scale = number(raw_scale), bias = number(raw_bias);
        if (BITS == 8) {
#pragma unroll
            for (int i = 0; i < 16; i++) out[i] = pack_bf16(scaled(scale, (float)code(2 * i), bias), scaled(scale, (float)code(2 * i + 1), bias));
            return;
        }
        // A code below 128 under the exponent of 128 is the number 128 + code.
        const u32 magic = 0x43004300, minus = 0xc300c300, one = 0x3f803f80;
        u32 s = bf16_twice(scale), b = bf16_twice(bias);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            u32 two = BITS == 4 ? raw[i / 4] >> (4 * (i % 4)) & 0x000f000f : code(2 * i) | code(2 * i + 1) << 16;
            out[i] = fma_bf16x2(fma_bf16x2(two | magic, one, minus), s, b);
        }
    }
};

struct MxRow {
    static const bool STRIDED = true, SPREAD = false;
    static const int AHEAD = 4;
    uint4 raw;
    u32 scale;
    DEVICE void load(const Weight& w, u64 row, u32 k, u32 width, u32 part) {
        k += 32 * part;
        raw = make_uint4(0, 0, 0, 0);
        scale = 0;
        if (k >= width) return;
        u64 at = (row * width + k) / 32;
        raw = stream(w.codes + at * 16);
        scale = w.scales[at];
    }
    // The bits of E2M1 under a narrow exponent are its value times 2^-126.
    DEVICE void pairs(u32* out) const {
        u32 s = bf16_twice(scale == 255 ? NAN_F : half_scale(scale) * 2.f), up = 0x7e807e80;
        u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (int i = 0; i < 16; i++) {
            u32 q = words[i / 4] >> (4 * (i % 4));
            u32 v = (q & 0x00070007) << 6 | (q & 0x00080008) << 12;
            out[i] = fma_bf16x2(fma_bf16x2(v, up, 0x80008000), s, 0x80008000);
        }
    }
};

// The 16 pairs of a row of `x` that go with a thread's part of a weight's row.
template <class Row> DEVICE void x_pairs(const u16* x, u32 k, u32 width, u32 part, u32* out) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 at = Row::SPREAD ? 32 * i + 8 * part : 32 * part + 8 * i;
        uint4 v = k + at < width ? *(const uint4*)(x + k + at) : make_uint4(0, 0, 0, 0);
        if (Row::STRIDED) {
            out[4 * i] = low_halves(v.x, v.z), out[4 * i + 1] = high_halves(v.x, v.z);
            out[4 * i + 2] = low_halves(v.y, v.w), out[4 * i + 3] = high_halves(v.y, v.w);
        } else {
            out[4 * i] = v.x, out[4 * i + 1] = v.y, out[4 * i + 2] = v.z, out[4 * i + 3] = v.w;
        }
    }
}

// Rows of `x` in shared memory, normed if asked: the same sums in the same order as the norm's own kernel.
template <class T> DEVICE const u16* staged(const Linear& p, const u16* x, u32 count) {
    extern __shared__ __align__(16) u8 rows[];
    __shared__ float shared[32];
    for (u32 t = 0; t < count; t++) {
        T* row = (T*)rows + t * (p.k + 32);
        float squares = 0.f;
        for (u32 i = threadIdx.x * 8; i < p.k; i += 2048) {
            uint4 v = *(const uint4*)(x + t * p.x_stride + i);
            *(uint4*)(row + i) = v;
            squares = add_squares<T>(v, squares);
        }
        if (!p.norm) continue;
        float scale = 1.f / sqrtf(block_sum(squares, shared) / (float)p.k + p.eps);
        for (u32 i = threadIdx.x * 8; i < p.k; i += 2048) *(uint4*)(row + i) = normed<T>(*(const uint4*)(row + i), scale, p.norm, p.norm_type, i);
    }
    __syncthreads();
    return (const u16*)rows;
}

// Where a warp is: which 16 rows of the weight, of gates or of factors, and how far along them.
struct Place {
    u64 tile;
    u32 set, round;
};

// Up to 8 * TILES rows of `x`. A block goes through its share of the weight's rows, 16 at a time; what it multiplies next is
// on its way while it multiplies. With `gated`, 16 rows of gates and their 16 factors belong together.
template <class N, class Row, int TILES, bool GATED> DEVICE void product(const Linear& p) {
    typedef typename N::T T;
    const int SETS = GATED ? 2 : 1, AHEAD = Row::AHEAD;
    __shared__ float partial[2][8][SETS][16][8 * TILES + 1];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, part = lane % 4;
    u64 first = (u64)blockIdx.y * (8 * TILES), from = first, base = 0, tiles = (p.n + 15) / 16;
    u32 count = min((u32)(8 * TILES), (u32)(p.m - first));
    u32 rounds = p.k > warp * 128 ? (p.k - warp * 128 + AHEAD * 1024 - 1) / (AHEAD * 1024) : 0;
    if (p.ids) {
        wait_for_previous();
        first = blockIdx.y, count = 1;
        u64 matrix;
        chosen(p, blockIdx.y, matrix, from);
        base = matrix * (GATED ? 2 * p.n : p.n);
    }
    Row low[AHEAD], high[AHEAD];
    auto load = [&](const Place& at, int d) {
        u64 row = at.tile * 16 + g, rows = base + at.set * (u64)p.n, end = p.n - 1;
        u32 k = warp * 128 + (at.round * AHEAD + d) * 1024;
        low[d].load(p.w, rows + min(row, end), k, p.k, part);
        high[d].load(p.w, rows + min(row + 8, end), k, p.k, part);
    };
    Place next = {blockIdx.x, 0, 0};
    auto advance = [&]() {
        if (++next.round < rounds) return;
        next.round = 0;
        if (++next.set < SETS) return;
        next.set = 0, next.tile += gridDim.x;
    };
    if (rounds) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) load(next, d);
    }
    if (!p.ids) wait_for_previous();
    const u16* x = (const u16*)p.x + from * p.x_stride;
    u64 x_stride = p.x_stride;
    if (p.staged) x = staged<T>(p, x, count), x_stride = p.k + 32;
    u32 turn = 0;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        float sum[SETS][TILES][4] = {};
#pragma unroll
        for (int s = 0; s < SETS; s++)
            for (u32 round = 0; round < rounds; round++) {
                advance();
                bool more = next.tile < tiles;
#pragma unroll
                for (int d = 0; d < AHEAD; d++) {
                    u32 here = warp * 128 + (round * AHEAD + d) * 1024, a_low[16], a_high[16];
                    low[d].pairs(a_low), high[d].pairs(a_high);
                    if (more) load(next, d);
#pragma unroll
                    for (int t = 0; t < TILES; t++) {
                        u32 b[16] = {};
                        if (t * 8 + g < count) x_pairs<Row>(x + (t * 8 + g) * x_stride, here, p.k, part, b);
#pragma unroll
                        for (int i = 0; i < 8; i++) {
                            u32 a[4] = {a_low[2 * i], a_high[2 * i], a_low[2 * i + 1], a_high[2 * i + 1]};
                            N::mma(sum[s][t], a, b + 2 * i);
                        }
                    }
                }
            }
#pragma unroll
        for (int s = 0; s < SETS; s++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) partial[turn][warp][s][g + i / 2 * 8][t * 8 + part * 2 + i % 2] = sum[s][t][i];
        __syncthreads();
        for (u32 i = threadIdx.x; i < 16 * count; i += 256) {
            u32 r = i % 16, t = i / 16;
            u64 n = tile * 16 + r;
            if (n >= p.n) continue;
            float v[SETS];
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                v[s] = 0.f;
#pragma unroll
                for (int w = 0; w < 8; w++) v[s] += partial[turn][w][s][r][t];
                v[s] = to_float(from_float<T>(v[s]));
                if (p.bias) v[s] = to_float(from_float<T>(v[s] + to_float(from_float<T>(load_main(p.bias, p.bias_type, base + n + s * p.n)))));
            }
            float y = v[0];
            if (GATED) y = to_float(from_float<T>(gate(p.gated - 1, v[0]))) * v[1];
            if (p.residual) y = to_float(from_float<T>(y)) + to_float(((const T*)p.residual)[(first + t) * p.residual_stride + n]);
            ((T*)p.y)[(first + t) * p.y_stride + n] = from_float<T>(y);
        }
    }
}

#define PRODUCT(name, N, Row) \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_##name##_8(const __grid_constant__ Linear p) { product<N, Row, 1, false>(p); }

#define PRODUCT16(name, N, Row) \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_##name##_16(const __grid_constant__ Linear p) { product<N, Row, 2, false>(p); }

#define GATED(name, N, Row) \
    extern "C" __global__ void __launch_bounds__(256, 2) linear_##name##_gated_8(const __grid_constant__ Linear p) { product<N, Row, 1, true>(p); }
