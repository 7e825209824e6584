// Products of a few rows of 16-bit numbers with a stored weight on architectures with bulk copies. One warp of a block keeps
// a ring of shared memory full of the weight, 16 rows at a time, and begins before the kernels before have ended; the other
// warps multiply what has come in tensor cores, each its own elements of every part, and one adds up what they give at the
// end of 16 rows. The order of the sums depends on the width alone, so a row's result does not depend on the rows beside it.
#include "async.cuh"
#include "linear_mma.cuh"

struct Streamed {
    TensorMap codes, scales, biases;
    Linear p;
    // Parts that the ring holds.
    u32 stages, unused;
    // What the next product reads first, brought to the cache while this one ends.
    struct {
        const u8* at;
        u64 bytes;
    } ahead[6];
};

#if __CUDA_ARCH__ >= 900

const int STAGES_MAX = 16;

// The threads that multiply, without the warp that copies.
template <int WARPS> DEVICE void together() { asm volatile("bar.sync 1, %0;" ::"n"(WARPS * 32) : "memory"); }

// The weights of a norm that a thread will multiply with, as far as they are fetched before they are needed.
const u32 EARLY = 2;
struct NormWeights {
    uint4 v[EARLY];
    bool is_early;
    DEVICE void load(const Linear& p) {
        is_early = p.norm && p.norm_type == BF16 && ((u64)p.norm & 15) == 0;
#pragma unroll
        for (u32 j = 0; j < EARLY; j++) {
            u32 i = threadIdx.x * 8 + j * 2048;
            v[j] = is_early && threadIdx.x < 256 && i < p.k ? *(const uint4*)((const u16*)p.norm + i) : make_uint4(0, 0, 0, 0);
        }
    }
};

// Rows of `x` in shared memory, normed if asked: by 256 threads, in the order in which the norm's own kernel sums. `PIECES`
// are on their way at once; rows that are normed have no more.
template <u32 PIECES, class T, class Part> DEVICE void stage_normed(const Linear& p, const u16* x, u32 count, T* rows, float* sums, const NormWeights& weights) {
    __shared__ float shared[8];
    u32 own = threadIdx.x * 8, end = threadIdx.x < 256 ? p.k : 0;
    for (u32 t = 0; t < count; t++) {
        uint4 v[PIECES];
#pragma unroll
        for (u32 j = 0; j < PIECES; j++) v[j] = own + j * 2048 < end ? *(const uint4*)(x + t * p.x_stride + own + j * 2048) : make_uint4(0, 0, 0, 0);
        float squares = 0.f;
#pragma unroll
        for (u32 j = 0; j < PIECES; j++) squares = add_squares<T>(v[j], squares);
        squares = warp_sum(squares);
        if (t) together<Part::WARPS>();
        if (threadIdx.x % 32 == 0 && threadIdx.x < 256) shared[threadIdx.x / 32] = squares;
        together<Part::WARPS>();
        squares = warp_sum(threadIdx.x % 32 < 8 ? shared[threadIdx.x % 32] : 0.f);
        float scale = 1.f / sqrtf(squares / (float)p.k + p.eps);
#pragma unroll
        for (u32 j = 0; j < PIECES; j++) {
            if (own + j * 2048 >= end) break;
            bool early = weights.is_early && j < EARLY;
            v[j] = early ? normed<T>(v[j], scale, &weights.v[j < EARLY ? j : 0], BF16, 0) : normed<T>(v[j], scale, p.norm, p.norm_type, own + j * 2048);
            Part::template put<T>(rows + t * (p.k + 32), own + j * 2048, v[j], sums, t);
        }
    }
    together<Part::WARPS>();
}
// The same for rows that stay as they are: by all threads.
template <class T, class Part> DEVICE void stage_plain(const Linear& p, const u16* x, u32 count, T* rows, float* sums) {
    const u32 PIECES = 8, STEP = Part::WARPS * 256;
    for (u32 t = 0; t < count; t++)
        for (u32 own = threadIdx.x * 8; own < p.k; own += PIECES * STEP) {
            uint4 v[PIECES];
#pragma unroll
            for (u32 j = 0; j < PIECES; j++)
                if (own + j * STEP < p.k) v[j] = *(const uint4*)(x + t * p.x_stride + own + j * STEP);
#pragma unroll
            for (u32 j = 0; j < PIECES; j++)
                if (own + j * STEP < p.k) Part::template put<T>(rows + t * (p.k + 32), own + j * STEP, v[j], sums, t);
        }
    together<Part::WARPS>();
}
template <class T, class Part> DEVICE void stage_rows(const Linear& p, const u16* x, u32 count, T* rows, float* sums, const NormWeights& weights) {
    if (!p.norm) stage_plain<T, Part>(p, x, count, rows, sums);
    else if (p.k <= 4096) stage_normed<2, T, Part>(p, x, count, rows, sums, weights);
    else stage_normed<8, T, Part>(p, x, count, rows, sums, weights);
}

// Where piece `piece` of 16 bytes of row `row` lies in a warp's tile of 16 rows of 128 bytes: pieces are exchanged by the
// row's number.
DEVICE u32 place(u32 warp, u32 row, u32 piece) { return warp * 2048 + row * 128 + (piece ^ row % 8) * 16; }

// How a weight of 16-bit numbers lies in the ring: for each warp a tile of 64 elements of each of 16 rows.
template <class N> struct PlainPart {
    static const u32 WIDTH = 512, BYTES = 16384, SUMS = 0, WARPS = 8;
    static const u32 UNIT = 0x3f800000;
    // Which of eight rows the lanes with this number multiply: such that those which load at once meet in no bank.
    DEVICE static u32 row_of(u32 g) { return g % 2 * 4 + g / 2; }
    DEVICE static void copy(u32 to, const Streamed& s, u32 row, u32 round, u32 barrier) { copy_tile(to, &s.codes, 0, row, round * 8, barrier); }
    template <class T> DEVICE static void put(T* row, u32 i, uint4 v, float*, u32) { *(uint4*)(row + i) = v; }
    template <int TILES> struct Held {
        u32 tile[2], g, lane4, first;
        uint4 low[2], high[2], b[TILES][2];
        DEVICE Held(const u8* memory, const u16*, u64, u32, u32 warp, u32 lane, const float*) {
            g = lane / 4, lane4 = lane % 4, first = warp * 64;
            ring = memory - shared_address(memory);
#pragma unroll
            for (int i = 0; i < 2; i++) tile[i] = place(warp, row_of(g), 4 * i + lane4);
        }
        const u8* ring;
        // Rows that are not there are the last one again: their columns go nowhere.
        DEVICE void load_rows(const u16* x, u64 stride, u32 round, u32 count) {
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const u16* from = x + min(t * 8 + g, count - 1) * stride + round * WIDTH + first + lane4 * 8;
                b[t][0] = *(const uint4*)from, b[t][1] = *(const uint4*)(from + 32);
            }
        }
        DEVICE void load(u32 part) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const u8* at = ring + (part + tile[i]);
                low[i] = *(const uint4*)at, high[i] = *(const uint4*)(at + 1024);
            }
        }
        DEVICE void multiply(float (*sum)[4], u32) const {
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

// What is loaded at once.
template <int COUNT> struct __align__(4 * COUNT) Words {
    u32 v[COUNT];
};

// A number that the compiler has to keep in a register.
DEVICE u32 kept(u32 v) {
    asm volatile("" : "+r"(v));
    return v;
}

// Loads by address in shared memory, which need not be found out from a pointer. They stay behind barriers.
DEVICE void load_shared(u32 (&v)[1], u32 at) { asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v[0]) : "r"(at)); }
DEVICE void load_shared(u32 (&v)[2], u32 at) { asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at)); }
DEVICE void load_shared(u32 (&v)[4], u32 at) { asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at)); }

// Free to be moved among others, unlike those of the formats.
DEVICE void multiply_add(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The first of a sum.
DEVICE void multiply(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}

// Four bits with a bf16 scale and bias for each GROUP elements: for each warp a tile of 256 elements of each of 16 rows.
// The bits of a code as they lie in the lower half of a 16-bit number are the number code * 2^-133, or 2^-129 if they lie
// four bits higher, since the smallest numbers are evenly spaced. Elements of `x` are staged times 2^64 or 2^60 to match, and
// sums are 2^-69 of what they stand for until the end.
template <int GROUP> struct Affine4Part {
    static const u32 WIDTH = 2048, SCALES = WIDTH / GROUP * 2, BYTES = 16384 + 32 * SCALES, SUMS = GROUP, WARPS = 8, PER_WARP = WIDTH / WARPS;
    static const u32 UNIT = (127 + 69) << 23;
    DEVICE static u32 row_of(u32 g) { return GROUP == 128 ? g % 2 * 4 + g / 2 : g % 4 * 2 + g / 4; }
    DEVICE static void copy(u32 to, const Streamed& s, u32 row, u32 round, u32 barrier) {
        copy_tile(to, &s.codes, 0, row, round * 8, barrier);
        copy_tile(to + 16384, &s.scales, round * (WIDTH / GROUP), row, barrier);
        copy_tile(to + 16384 + 16 * SCALES, &s.biases, round * (WIDTH / GROUP), row, barrier);
    }
    // Elements `i` and `i + 4` of eight side by side, as the codes give them, and the sums over groups, by whole warps.
    template <class T> DEVICE static void put(T* row, u32 i, uint4 v, float* sums, u32 t) {
        const T* each = (const T*)&v;
        float sum = 0.f;
        u32 words[4];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float low = to_float(each[e]), high = to_float(each[e + 4]), scale = e % 2 ? 0x1p60f : 0x1p64f;
            sum += low, sum += high;
            words[e] = pack_bf16(low * scale, high * scale);
        }
        *(uint4*)(row + i) = make_uint4(words[0], words[1], words[2], words[3]);
#pragma unroll
        for (int o = 1; o < GROUP / 8; o *= 2) sum += __shfl_xor_sync(0xffffffff, sum, o);
        if (i % GROUP == 0) sums[i / GROUP * 8 + t] = sum * 0x1p-69f;
    }
    template <int TILES> struct Held {
        static const int GROUPS = PER_WARP / GROUP, WORDS = GROUP / 32;
        // Where this lane finds its words, scales, rows and sums, in shared memory; all of it kept, since computing it again
        // takes longer than the work itself.
        u32 words[GROUPS], scales, row, totals;
        Words<WORDS> low[GROUPS], high[GROUPS];
        Words<GROUPS / 2> scale[2], bias[2];
        DEVICE Held(const u8*, const u16* x, u64 stride, u32 count, u32 warp, u32 lane, const float* sums) {
            u32 g = lane / 4, lane4 = lane % 4, r = row_of(g);
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                // The words of a group that this lane takes lie in one piece of 16 bytes.
                u32 byte = i * (GROUP / 2) + lane4 * (4 * WORDS);
                words[i] = kept(place(warp, r, byte / 16) + byte % 16);
            }
            // Rows of scales have their pieces exchanged too, by the number of the 128 bytes they lie in.
            u32 piece = warp * GROUPS * 2, turned = piece ^ (r * SCALES / 128 % (SCALES / 16)) * 16;
            scales = kept(16384 + r * SCALES + turned);
            // Rows that are not there are the last one again: their columns go nowhere.
            row = kept(shared_address(x) + (u32)(min(g, count - 1) * stride + warp * PER_WARP + lane4 * (WORDS * 8)) * 2);
            totals = kept(shared_address(sums) + (warp * GROUPS * 8 + lane4 * 2) * 4);
        }
        DEVICE void load_rows(const u16*, u64, u32, u32) {}
        DEVICE void load(u32 part) {
#pragma unroll
            for (int i = 0; i < GROUPS; i++) load_shared(low[i].v, part + words[i]), load_shared(high[i].v, part + words[i] + 1024);
#pragma unroll
            for (int r = 0; r < 2; r++) load_shared(scale[r].v, part + scales + 8 * r * SCALES), load_shared(bias[r].v, part + scales + (16 + 8 * r) * SCALES);
        }
        // Number `i` of pairs of bf16.
        DEVICE static float half(const Words<GROUPS / 2>& v, int i) { return __uint_as_float(i % 2 ? v.v[i / 2] & 0xffff0000 : v.v[i / 2] << 16); }
        DEVICE void multiply(float (*sum)[4], u32 round) const {
            float part[GROUPS][4];
#pragma unroll
            for (int j = 0; j < WORDS; j++)
#pragma unroll
                for (int i = 0; i < GROUPS; i++) {
                    const u32 LOW = 0x000f000f, HIGH = 0x00f000f0;
                    u32 b[4], l = low[i].v[j], h = high[i].v[j], l8 = l >> 8, h8 = h >> 8;
                    load_shared(b, row + round * (WIDTH * 2) + (i * GROUP + j * 8) * 2);
                    if (j == 0) ::multiply(part[i], l & LOW, h & LOW, l & HIGH, h & HIGH, b[0], b[1]);
                    else multiply_add(part[i], l & LOW, h & LOW, l & HIGH, h & HIGH, b[0], b[1]);
                    multiply_add(part[i], l8 & LOW, h8 & LOW, l8 & HIGH, h8 & HIGH, b[2], b[3]);
                }
#pragma unroll
            for (int i = 0; i < GROUPS; i++) {
                u32 total[2];
                load_shared(total, totals + (round * (WIDTH / GROUP) + i) * 32);
                float first = __uint_as_float(total[0]), second = __uint_as_float(total[1]);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float s = half(scale[r], i), b = half(bias[r], i);
                    sum[0][2 * r] = fmaf(s, part[i][2 * r], fmaf(b, first, sum[0][2 * r]));
                    sum[0][2 * r + 1] = fmaf(s, part[i][2 * r + 1], fmaf(b, second, sum[0][2 * r + 1]));
                }
            }
        }
    };
};

// Brings a share of what the next product reads first to the cache.
DEVICE void bring_ahead(const Streamed& s) {
    const u32 PIECE = 4096;
    for (int i = 0; i < 6; i++)
        for (u64 at = blockIdx.x * PIECE; at < s.ahead[i].bytes; at += gridDim.x * PIECE)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(s.ahead[i].at + at), "r"((u32)min((u64)PIECE, s.ahead[i].bytes - at)) : "memory");
}

template <class N, class Part, int TILES, bool GATED> DEVICE void stream_product(const Streamed& s) {
    typedef typename N::T T;
    const Linear& p = s.p;
    const u32 SETS = GATED ? 2 : 1, WARPS = Part::WARPS, PER_WARP = Part::WIDTH / WARPS;
    extern __shared__ u8 unaligned[];
    u8* memory = unaligned + (-shared_address(unaligned) & 1023);
    u32 base = shared_address(memory);
    // Parts that have arrived and that were taken; sums of 16 rows that are given and that were added up.
    __shared__ __align__(8) u64 arrived[STAGES_MAX], taken[STAGES_MAX], given[2], added[2];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, rounds = (p.k + Part::WIDTH - 1) / Part::WIDTH;
    u64 tiles = (p.n + 15) / 16;
    if (threadIdx.x == 0) {
        for (u32 i = 0; i < s.stages; i++) barrier_init(shared_address(&arrived[i]), 1), barrier_init(shared_address(&taken[i]), WARPS);
        for (u32 i = 0; i < 2; i++) barrier_init(shared_address(&given[i]), WARPS * 32), barrier_init(shared_address(&added[i]), 32);
        barriers_made();
    }
    let_next_start();
    __syncthreads();
    // Warps that only take registers, so that no two blocks of a kernel meet.
    if (warp > WARPS + 1) return;
    if (warp == WARPS) {
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
        if (blockIdx.y == 0) bring_ahead(s);
        return;
    }
    u64 first = (u64)blockIdx.y * (8 * TILES);
    u32 count = min((u32)(8 * TILES), (u32)(p.m - first));
    float* partial = (float*)(memory + s.stages * Part::BYTES);
    float* sums = partial + 2 * WARPS * SETS * 16 * count;
    T* rows = (T*)(sums + (Part::SUMS ? p.k / (Part::SUMS ? Part::SUMS : 1) * 8 : 0));
    if (warp == WARPS + 1) {
        // Adds up what the others give and finishes it; they go on meanwhile.
        wait_for_previous();
        u32 turn = 0, parity = 0;
        for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            float residual[4 * TILES];
            u64 n = tile * 16 + lane % 16;
#pragma unroll
            for (int j = 0; j < 4 * TILES; j++) {
                u32 column = lane / 16 + 2 * j;
                residual[j] = p.residual && column < count && n < p.n ? to_float(((const T*)p.residual)[(first + column) * p.residual_stride + n]) : 0.f;
            }
            barrier_wait(shared_address(&given[turn]), parity);
#pragma unroll
            for (int j = 0; j < 4 * TILES; j++) {
                u32 column = lane / 16 + 2 * j;
                if (column >= count || n >= p.n) continue;
                float v[SETS];
#pragma unroll
                for (u32 set = 0; set < SETS; set++) {
                    v[set] = 0.f;
#pragma unroll
                    for (u32 w = 0; w < WARPS; w++) v[set] += partial[(((turn * WARPS + w) * SETS + set) * count + column) * 16 + lane % 16];
                    v[set] = to_float(from_float<T>(v[set] * __uint_as_float(Part::UNIT)));
                    if (p.bias) v[set] = to_float(from_float<T>(v[set] + to_float(from_float<T>(load_main(p.bias, p.bias_type, n + set * p.n)))));
                }
                float y = v[0];
                if (GATED) y = to_float(from_float<T>(gate(p.gated - 1, v[0]))) * v[SETS - 1];
                if (p.residual) y = to_float(from_float<T>(y)) + residual[j];
                ((T*)p.y)[(first + column) * p.y_stride + n] = from_float<T>(y);
            }
            barrier_arrive(shared_address(&added[turn]));
            turn ^= 1;
            if (!turn) parity ^= 1;
        }
        return;
    }
    u32 g = lane / 4, part = lane % 4;
    NormWeights norm;
    norm.load(p);
    wait_for_previous();
    const u16* x = (const u16*)p.x + first * p.x_stride;
    u64 x_stride = p.x_stride;
    if (p.staged) {
        stage_rows<T, Part>(p, x, count, rows, sums, norm);
        x = (const u16*)rows, x_stride = p.k + 32;
    }
    typename Part::template Held<TILES> held(memory, Part::SUMS ? (const u16*)rows : x, x_stride, count, warp, lane, sums);
    u32 stage = 0, parity = 0, turn = 0, free = 1, come = kept(shared_address(arrived)), gone = kept(shared_address(taken));
    for (u64 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        float sum[SETS][TILES][4] = {};
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
            for (u32 round = 0; round < rounds; round++) {
                bool mine = round * Part::WIDTH + warp * PER_WARP < p.k;
                if (mine) held.load_rows(x, x_stride, round, count);
                barrier_wait(come + stage * 8, parity);
                if (mine) held.load(base + stage * Part::BYTES);
                __syncwarp();
                if (lane == 0) barrier_arrive(gone + stage * 8);
                if (mine) held.multiply(sum[set], round);
                if (++stage == s.stages) stage = 0, parity ^= 1;
            }
        barrier_wait(shared_address(&added[turn]), free);
#pragma unroll
        for (u32 set = 0; set < SETS; set++)
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 column = t * 8 + part * 2 + i % 2;
                    if (column < count) partial[(((turn * WARPS + warp) * SETS + set) * count + column) * 16 + Part::row_of(g) + i / 2 * 8] = sum[set][t][i];
                }
        barrier_arrive(shared_address(&given[turn]));
        turn ^= 1;
        if (!turn) free ^= 1;
    }
}
#define STREAM(name, N, TILES, GATED, ...) \
    extern "C" __global__ void __launch_bounds__(64 + 32 * __VA_ARGS__::WARPS, 1) stream_##name(const __grid_constant__ Streamed p) { stream_product<N, __VA_ARGS__, TILES, GATED>(p); }
// Few enough registers that a block with more than half of them has another one beside it.
#define STREAM_BESIDE(name, N, TILES, GATED, ...) \
    extern "C" __global__ void __maxnreg__(96) stream_##name(const __grid_constant__ Streamed p) { stream_product<N, __VA_ARGS__, TILES, GATED>(p); }
#else
#define STREAM(name, N, TILES, GATED, ...) \
    extern "C" __global__ void stream_##name(const __grid_constant__ Streamed p) {}
#define STREAM_BESIDE STREAM
#endif

STREAM(bf16_8, B16, 1, false, PlainPart<B16>)
STREAM(bf16_16, B16, 2, false, PlainPart<B16>)
STREAM(bf16_gated_8, B16, 1, true, PlainPart<B16>)
STREAM(f16_8, H16, 1, false, PlainPart<H16>)
STREAM(f16_16, H16, 2, false, PlainPart<H16>)
STREAM_BESIDE(bf16_affine4_32_8, B16, 1, false, Affine4Part<32>)
STREAM_BESIDE(bf16_affine4_64_8, B16, 1, false, Affine4Part<64>)
STREAM_BESIDE(bf16_affine4_128_8, B16, 1, false, Affine4Part<128>)
STREAM_BESIDE(bf16_affine4_32_gated_8, B16, 1, true, Affine4Part<32>)
STREAM_BESIDE(bf16_affine4_64_gated_8, B16, 1, true, Affine4Part<64>)
STREAM_BESIDE(bf16_affine4_128_gated_8, B16, 1, true, Affine4Part<128>)
