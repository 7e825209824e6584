// Products of a few rows of 16-bit numbers with a stored weight on architectures with bulk copies. One warp of a block keeps
// a ring of shared memory full of the weight, 16 rows at a time, and begins before the kernels before have ended; the other
// eight multiply what has come in tensor cores, each its own elements of every part, and add up at the end of 16 rows. The
// order of the sums depends on the width alone, so a row's result does not depend on the rows beside it.
#include "async.cuh"
#include "linear_mma.cuh"

struct Streamed {
    TensorMap codes, scales, biases;
    Linear p;
    // Parts that the ring holds.
    u32 stages, unused;
};

#if __CUDA_ARCH__ >= 900

const int CONSUMERS = 256, STAGES_MAX = 16;

// The threads that multiply, without the warp that copies.
DEVICE void together() { asm volatile("bar.sync 1, 256;" ::: "memory"); }

// Rows of `x` in shared memory, normed if asked; see `normed` for the order of the sums.
template <class T> DEVICE void stage_rows(const Linear& p, const u16* x, u32 count, T* rows) {
    __shared__ float shared[32];
    for (u32 t = 0; t < count; t++) {
        T* row = rows + t * (p.k + 32);
        float squares = 0.f;
        for (u32 i = threadIdx.x * 8; i < p.k; i += 2048) {
            uint4 v = *(const uint4*)(x + t * p.x_stride + i);
            *(uint4*)(row + i) = v;
            squares = add_squares<T>(v, squares);
        }
        if (!p.norm) continue;
        squares = warp_sum(squares);
        together();
        if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = squares;
        together();
        squares = warp_sum(threadIdx.x % 32 < 8 ? shared[threadIdx.x % 32] : 0.f);
        float scale = 1.f / sqrtf(squares / (float)p.k + p.eps);
        for (u32 i = threadIdx.x * 8; i < p.k; i += 2048) *(uint4*)(row + i) = normed<T>(*(const uint4*)(row + i), scale, p.norm, p.norm_type, i);
    }
    together();
}

// Where piece `piece` of 16 bytes of row `row` lies in a warp's tile of 16 rows of 128 bytes: pieces are exchanged by the
// row's number.
DEVICE u32 place(u32 warp, u32 row, u32 piece) { return warp * 2048 + row * 128 + (piece ^ row % 8) * 16; }

// How a weight of 16-bit numbers lies in the ring: for each warp a tile of 64 elements of each of 16 rows.
template <class N> struct PlainPart {
    static const u32 WIDTH = 512, BYTES = 16384, SUMS = 0;
    DEVICE static void copy(u32 to, const Streamed& s, u32 row, u32 round, u32 barrier) { copy_tile(to, &s.codes, 0, row, round * 8, barrier); }
    template <class T> DEVICE static void prepare(const Linear& p, T* rows, u32 count, float* sums) {}
    template <int TILES> struct Held {
        uint4 low[2], high[2], b[TILES][2];
        // Rows that are not there are the last one again: their columns go nowhere.
        DEVICE void load_rows(const u16* x, u64 stride, u32 k, u32 count, u32 g, u32 lane4) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const u16* from = x + min(t * 8 + g, count - 1) * stride + k + lane4 * 8;
                b[t][0] = *(const uint4*)from, b[t][1] = *(const uint4*)(from + 32);
            }
        }
        DEVICE void load(const u8* part, u32 warp, u32 g, u32 lane4) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u8* at = part + place(warp, g, 4 * i + lane4);
                low[i] = *(const uint4*)at, high[i] = *(const uint4*)(at + 1024);
            }
        }
        DEVICE void multiply(float (*sum)[4], const u16*, u64, u32, u32, u32, u32, const float*, const Weight&) const {
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    u32 a[4] = {low[i].x, high[i].x, low[i].y, high[i].y}, c[4] = {low[i].z, high[i].z, low[i].w, high[i].w};
                    u32 first[2] = {b[t][i].x, b[t][i].y}, second[2] = {b[t][i].z, b[t][i].w};
                    N::mma(sum[t], a, first);
                    N::mma(sum[t], c, second);
                }
        }
    };
};

// Free to be moved among others, unlike those of the formats.
DEVICE void multiply_add(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// What is loaded at once.
template <int COUNT> struct __align__(4 * COUNT) Words {
    u32 v[COUNT];
};
template <int COUNT> struct __align__(2 * COUNT) Halves {
    u16 v[COUNT];
};

// Four bits with a scale and a bias for each GROUP elements: for each warp a tile of 256 elements of each of 16 rows. Codes
// are multiplied as 128 + code, which 16-bit numbers hold exactly; what that adds goes out with the bias, by the sums of `x`
// over each group.
template <int GROUP> struct Affine4Part {
    static const u32 WIDTH = 2048, SCALES = WIDTH / GROUP * 2, BYTES = 16384 + 32 * SCALES, SUMS = GROUP;
    DEVICE static void copy(u32 to, const Streamed& s, u32 row, u32 round, u32 barrier) {
        copy_tile(to, &s.codes, 0, row, round * 8, barrier);
        copy_tile(to + 16384, &s.scales, round * (WIDTH / GROUP), row, barrier);
        copy_tile(to + 16384 + 16 * SCALES, &s.biases, round * (WIDTH / GROUP), row, barrier);
    }
    // Elements `i` and `i + 4` of eight side by side, as the codes give them, and the sums over groups.
    template <class T> DEVICE static void prepare(const Linear& p, T* rows, u32 count, float* sums) {
        for (u32 t = 0; t < count; t++)
            for (u32 first = 0; first < p.k; first += 2048) {
                u32 i = first + threadIdx.x * 8;
                float sum = 0.f;
                if (i < p.k) {
                    uint4* at = (uint4*)(rows + t * (p.k + 32) + i);
                    uint4 v = *at;
                    const T* each = (const T*)&v;
#pragma unroll
                    for (int e = 0; e < 8; e++) sum += to_float(each[e]);
                    *at = make_uint4(low_halves(v.x, v.z), high_halves(v.x, v.z), low_halves(v.y, v.w), high_halves(v.y, v.w));
                }
#pragma unroll
                for (int o = 1; o < GROUP / 8; o *= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
                if (i < p.k && i % GROUP == 0) sums[i / GROUP * 8 + t] = sum;
            }
        together();
    }
    DEVICE static float number(u32 type, u32 bits) {
        f16 half;
        half.bits = (u16)bits;
        return type == BF16 ? __uint_as_float(bits << 16) : to_float(half);
    }
    template <int TILES> struct Held {
        static const int GROUPS = 256 / GROUP, WORDS = GROUP / 32;
        Words<WORDS> low[GROUPS], high[GROUPS];
        Halves<GROUPS> scale[2], bias[2];
        DEVICE void load_rows(const u16*, u64, u32, u32, u32, u32) {}
        DEVICE void load(const u8* part, u32 warp, u32 g, u32 lane4) {
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                // The words of a group that this lane takes lie in one piece of 16 bytes.
                u32 byte = i * (GROUP / 2) + lane4 * (4 * WORDS);
                const u8* at = part + place(warp, g, byte / 16) + byte % 16;
                low[i] = *(const Words<WORDS>*)at, high[i] = *(const Words<WORDS>*)(at + 1024);
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u8* at = part + 16384 + (g + 8 * r) * SCALES + warp * GROUPS * 2;
                scale[r] = *(const Halves<GROUPS>*)at, bias[r] = *(const Halves<GROUPS>*)(at + 16 * SCALES);
            }
        }
        DEVICE void multiply(float (*sum)[4], const u16* x, u64 stride, u32 k, u32 count, u32 g, u32 lane4, const float* sums, const Weight& w) const {
            const u32 magic = 0x43004300, mask = 0x000f000f;
            // Rows that are not there are the last one again: their columns go nowhere.
            const u16* row = x + min(g, count - 1) * stride + k + lane4 * (WORDS * 8);
            // Sums that do not wait for each other.
            float even[GROUPS][4] = {}, odd[GROUPS][4] = {};
#pragma unroll
            for (int j = 0; j < WORDS; j++)
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
                    uint4 b = *(const uint4*)(row + i * GROUP + j * 8);
                    u32 l = low[i].v[j], h = high[i].v[j];
                    multiply_add(even[i], (l & mask) | magic, (h & mask) | magic, (l >> 4 & mask) | magic, (h >> 4 & mask) | magic, b.x, b.y);
                    multiply_add(odd[i], (l >> 8 & mask) | magic, (h >> 8 & mask) | magic, (l >> 12 & mask) | magic, (h >> 12 & mask) | magic, b.z, b.w);
                }
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                float2 total = *(const float2*)(sums + (k / GROUP + i) * 8 + lane4 * 2);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float s = number(w.type, scale[r].v[i]), less = fmaf(-128.f, s, number(w.type, bias[r].v[i]));
                    sum[0][2 * r] = fmaf(s, even[i][2 * r] + odd[i][2 * r], fmaf(less, total.x, sum[0][2 * r]));
                    sum[0][2 * r + 1] = fmaf(s, even[i][2 * r + 1] + odd[i][2 * r + 1], fmaf(less, total.y, sum[0][2 * r + 1]));
                }
            }
        }
    };
};

template <class N, class Part, int TILES, bool GATED> DEVICE void stream_product(const Streamed& s) {
    typedef typename N::T T;
    const Linear& p = s.p;
    const u32 SETS = GATED ? 2 : 1, PER_WARP = Part::WIDTH / 8;
    extern __shared__ u8 unaligned[];
    u8* memory = unaligned + (-shared_address(unaligned) & 1023);
    u32 base = shared_address(memory);
    __shared__ __align__(8) u64 arrived[STAGES_MAX], taken[STAGES_MAX];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rounds = (p.k + Part::WIDTH - 1) / Part::WIDTH;
    u64 tiles = (p.n + 15) / 16;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < s.stages; i++) barrier_init(shared_address(&arrived[i]), 1), barrier_init(shared_address(&taken[i]), 8);
        barriers_made();
    }
    let_next_start();
    __syncthreads();
    if (warp == 8) {
        if (lane) return;
        u32 stage = 0, parity = 1;
        for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x)
            for (u32 set = 0; set < SETS; set++)
                for (u32 round = 0; round < rounds; round++) {
                    u32 barrier = shared_address(&arrived[stage]);
                    barrier_wait(shared_address(&taken[stage]), parity);
                    barrier_expect(barrier, Part::BYTES);
                    Part::copy(base + stage * Part::BYTES, s, set * p.n + (u32)tile * 16, round, barrier);
                    if (++stage == s.stages) stage = 0, parity ^= 1;
                }
        return;
    }
    u32 g = lane / 4, part = lane % 4;
    u64 first = (u64)blockIdx.y * (8 * TILES);
    u32 count = min((u32)(8 * TILES), (u32)(p.m - first));
    float* partial = (float*)(memory + s.stages * Part::BYTES);
    float* sums = partial + 2 * 8 * SETS * 16 * count;
    T* rows = (T*)(sums + (Part::SUMS ? p.k / (Part::SUMS ? Part::SUMS : 1) * 8 : 0));
    wait_for_previous();
    const u16* x = (const u16*)p.x + first * p.x_stride;
    u64 x_stride = p.x_stride;
    if (p.staged) {
        stage_rows<T>(p, x, count, rows);
        Part::template prepare<T>(p, rows, count, sums);
        x = (const u16*)rows, x_stride = p.k + 32;
    }
    u32 stage = 0, parity = 0, turn = 0;
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        float sum[SETS][TILES][4] = {};
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
            for (u32 round = 0; round < rounds; round++) {
                u32 k = round * Part::WIDTH + warp * PER_WARP;
                typename Part::template Held<TILES> held;
                if (k < p.k) held.load_rows(x, x_stride, k, count, g, part);
                barrier_wait(shared_address(&arrived[stage]), parity);
                if (k < p.k) held.load(memory + stage * Part::BYTES, warp, g, part);
                __syncwarp();
                if (lane == 0) barrier_arrive(shared_address(&taken[stage]));
                if (k < p.k) held.multiply(sum[set], x, x_stride, k, count, g, part, sums, p.w);
                if (++stage == s.stages) stage = 0, parity ^= 1;
            }
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 column = t * 8 + part * 2 + i % 2;
                    if (column < count) partial[(((turn * 8 + warp) * SETS + set) * count + column) * 16 + g + i / 2 * 8] = sum[set][t][i];
                }
        together();
        for (u32 i = threadIdx.x; i < 16 * count; i += CONSUMERS) {
            u32 r = i % 16, t = i / 16;
            u64 n = tile * 16 + r;
            if (n >= p.n) continue;
            float v[SETS];
#pragma unroll
            for (u32 set = 0; set < SETS; set++) {
                v[set] = 0.f;
#pragma unroll
                for (int w = 0; w < 8; w++) v[set] += partial[(((turn * 8 + w) * SETS + set) * count + t) * 16 + r];
                v[set] = to_float(from_float<T>(v[set]));
                if (p.bias) v[set] = to_float(from_float<T>(v[set] + to_float(from_float<T>(load_main(p.bias, p.bias_type, n + set * p.n)))));
            }
            float y = v[0];
            if (GATED) y = to_float(from_float<T>(gate(p.gated - 1, v[0]))) * v[SETS - 1];
            if (p.residual) y = to_float(from_float<T>(y)) + to_float(((const T*)p.residual)[(first + t) * p.residual_stride + n]);
            ((T*)p.y)[(first + t) * p.y_stride + n] = from_float<T>(y);
        }
    }
}
#define STREAM(name, N, TILES, GATED, ...) \
    extern "C" __global__ void __launch_bounds__(288, 1) stream_##name(const __grid_constant__ Streamed p) { stream_product<N, __VA_ARGS__, TILES, GATED>(p); }
#else
#define STREAM(name, N, TILES, GATED, ...) \
    extern "C" __global__ void stream_##name(const __grid_constant__ Streamed p) {}
#endif

STREAM(bf16_8, B16, 1, false, PlainPart<B16>)
STREAM(bf16_16, B16, 2, false, PlainPart<B16>)
STREAM(bf16_gated_8, B16, 1, true, PlainPart<B16>)
STREAM(f16_8, H16, 1, false, PlainPart<H16>)
STREAM(f16_16, H16, 2, false, PlainPart<H16>)
STREAM(bf16_affine4_32_8, B16, 1, false, Affine4Part<32>)
STREAM(bf16_affine4_64_8, B16, 1, false, Affine4Part<64>)
STREAM(bf16_affine4_128_8, B16, 1, false, Affine4Part<128>)
STREAM(bf16_affine4_32_gated_8, B16, 1, true, Affine4Part<32>)
STREAM(bf16_affine4_64_gated_8, B16, 1, true, Affine4Part<64>)
STREAM(bf16_affine4_128_gated_8, B16, 1, true, Affine4Part<128>)
