// Attention of single tokens over the paged cache for 16-bit numbers: a block takes a chunk of 1024 keys of one token and up
// to four heads that share them; a warp takes 16 keys at a time, which come to shared memory while it computes with those
// before. Scores come from tensor cores; values are weighted in f32. Chunks lie at fixed places of the sequence and are joined in their order, so a token's
// result is the same alone and in company.
#include "paged.cuh"
#include "pieces.cuh"
#include "rope.cuh"

const u32 CHUNK = 1024, WARPS = 8, HEADS = 4, ROUND = 16 * WARPS;

template <bool BRAIN> DEVICE void multiply(float* c, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    if (BRAIN)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The keys that a token sees: from `first` to `last`, none if `there` is false.
struct Seen {
    i64 seq;
    u32 first, last;
    bool there;
};
DEVICE Seen seen_by(const Paged& p, u32 t) {
    Seen s;
    s.seq = load_int(p.seq_ids, p.seq_type, t);
    i64 position = load_int(p.positions, p.position_type, t);
    i64 last = min(position, (i64)p.pages * p.block - 1), first = p.window && position >= p.window ? position - p.window + 1 : 0;
    s.there = s.seq >= 0 && s.seq < p.sequences && last >= first;
    s.first = (u32)first, s.last = (u32)last;
    return s;
}

// The rotated queries of a block, and the new key and value of its token.
template <class T, int WIDTH> struct __align__(16) Fresh {
    T q[HEADS][WIDTH], k[WIDTH], v[WIDTH];
};

// Rotates the queries of a block and, where `writes`, the new key, which goes to the cache with its value. What can be done
// before the kernels before have ended is done first.
template <class T, int WIDTH> DEVICE void refresh(const RopeWrite& p, Fresh<T, WIDTH>& fresh, u32 t, u32 head, u32 heads, u32 kv, bool writes) {
    const Rope& r = p.q;
    u32 per_head = WIDTH - r.half, known = threadIdx.x % per_head;
    float position = (float)load_int(r.positions, r.position_type, t), sine = 0.f, cosine = 1.f;
    if (known < r.half) angle(r, t, known, position, sine, cosine);
    u64 slot = writes ? (u64)load_int(p.w.slots, p.w.slot_type, t) * p.w.k_row + kv * WIDTH : 0;
    wait_for_previous();
    for (u32 i = threadIdx.x; i < (heads + writes) * per_head; i += blockDim.x) {
        u32 h = i / per_head, j = i % per_head, first, second;
        const Rope& of = h == heads ? p.k : r;
        const T* x = (const T*)of.x + (u64)t * of.token_stride + (h == heads ? kv : head + h) * WIDTH;
        T* to = h == heads ? fresh.k : fresh.q[h];
        if (j < r.half) {
            if (j != known) angle(r, t, j, position, sine, cosine), known = j;
            first = r.interleaved ? 2 * j : j, second = r.interleaved ? 2 * j + 1 : j + r.half;
            float u = to_float(x[first]), v = to_float(x[second]);
            to[first] = from_float<T>(u * cosine - v * sine), to[second] = from_float<T>(v * cosine + u * sine);
        } else {
            first = second = j + r.half;
            to[first] = x[first];
        }
        if (h == heads) ((T*)p.w.k_cache)[slot + first] = to[first], ((T*)p.w.k_cache)[slot + second] = to[second];
    }
    if (writes && threadIdx.x < WIDTH / 8) {
        uint4 eight = *(const uint4*)((const T*)p.w.v + (u64)t * p.w.v_stride + kv * WIDTH + threadIdx.x * 8);
        ((uint4*)fresh.v)[threadIdx.x] = eight;
        *(uint4*)((T*)p.w.v_cache + slot + threadIdx.x * 8) = eight;
    }
    __syncthreads();
}

// With `FUSED`, every sequence has one token, whose queries and key are still to be rotated and whose key and value are still
// to be written; `r` says how. What the cache has already is then on its way before the kernels before have ended.
template <bool BRAIN, class T, int WIDTH, bool FUSED> DEVICE void decode(const Paged& p, const RopeWrite* r) {
    const int PIECES = WIDTH / 32, LANES = WIDTH / 8, AT_ONCE = 32 / LANES, LOADS = 16 / AT_ONCE;
    // For each warp 16 keys and 16 values; later what each warp gives.
    extern __shared__ __align__(128) u8 memory[];
    __shared__ __align__(16) float weights[WARPS][16][HEADS];
    __shared__ __align__(16) float factors[WARPS][HEADS];
    __shared__ float warp_m[WARPS][HEADS], warp_l[WARPS][HEADS];
    __shared__ Fresh<T, FUSED ? WIDTH : 8> fresh_room;
    Fresh<T, WIDTH>* fresh = (Fresh<T, WIDTH>*)&fresh_room;
    float(*warp_values)[HEADS][WIDTH] = (float(*)[HEADS][WIDTH])memory;
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, part = lane % 4, t = blockIdx.x;
    u32 group = p.heads / p.kv_heads, sets = (group + HEADS - 1) / HEADS;
    u32 kv = blockIdx.y / sets, head = kv * group + blockIdx.y % sets * HEADS, heads = min(HEADS, (kv + 1) * group - head);
    if (p.early) let_next_start();
    else wait_for_previous();
    Seen see = seen_by(p, t);
    u32 chunk = see.there ? see.first / CHUNK + blockIdx.z : 0;
    bool mine = see.there && chunk <= see.last / CHUNK;
    u32 begin = chunk * CHUNK, end = min(begin + CHUNK, see.last + 1);
    // Rounds that lie before the window are left out.
    if (see.first > begin) begin += (see.first - begin) / ROUND * ROUND;
    // Each lane looks up one of the warp's keys of two rounds.
    auto look_up = [&](u32 pair) {
        u32 key = min(begin + (pair * 2 + lane / 16) * ROUND + warp * 16 + lane % 16, end - 1);
        return (u32)((load_int(p.table, p.table_type, (u64)see.seq * p.pages + key / p.block) * p.block + key % p.block) * p.kv_heads + kv);
    };
    u32 rows = mine ? look_up(0) : 0, ahead = mine ? look_up(1) : 0;
    bool writes = false;
    if (FUSED) {
        i64 slot = load_int(r->w.slots, r->w.slot_type, t);
        writes = slot >= 0 && (u64)slot < r->w.slot_count && (see.there ? chunk == see.last / CHUNK : blockIdx.z == 0);
    } else if (p.early) wait_for_previous();
    if (!mine) {
        if (FUSED) refresh(*r, fresh[0], t, head, heads, kv, writes);
        // A token that sees nothing.
        if (!p.partial)
            for (u32 i = threadIdx.x; i < heads * WIDTH; i += blockDim.x) ((T*)p.out)[((u64)t * p.heads + head) * WIDTH + i] = from_float<T>(0.f);
        return;
    }
    // A piece of 16 bytes of a row lies so that two rows side by side can be read at once.
    auto place = [](u32 row, u32 piece) { return row * (WIDTH * 2) + (piece ^ (row & 1) << 2) * 16; };
    const u8 *keys = memory + warp * (64 * WIDTH), *values = keys + 32 * WIDTH;
    u32 keys_at = (u32)__cvta_generic_to_shared(keys), values_at = keys_at + 32 * WIDTH;
    auto load = [&](u32 to, const void* cache, u32 from, u32 half) {
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            u32 row = j * AT_ONCE + lane / LANES;
            u64 at = __shfl_sync(0xffffffff, from, half * 16 + row);
            copy16(to + place(row, lane % LANES), (const T*)cache + at * WIDTH + lane % LANES * 8);
        }
    };
    u32 key0 = begin + warp * 16;
    if (key0 < end) load(keys_at, p.k_cache, rows, 0);
    copies_end();
    if (key0 < end) load(values_at, p.v_cache, rows, 0);
    copies_end();
    if (FUSED) refresh(*r, fresh[0], t, head, heads, kv, writes);
    // The new key and value of the token take the place of what the cache had there.
    auto renew = [&](const u8* to, const T* from) {
        u32 row = see.last - key0;
        if (FUSED && writes && row < 16) {
            if (lane < LANES) *(uint4*)(to + place(row, lane)) = *(const uint4*)(from + lane * 8);
            __syncwarp();
        }
    };
    uint4 q[PIECES];
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const T* from = FUSED ? fresh[0].q[g % HEADS] : (const T*)p.q + (u64)t * p.q_stride + (head + g) * WIDTH;
        q[i] = g < heads ? *(const uint4*)(from + 32 * i + 8 * part) : make_uint4(0, 0, 0, 0);
    }
    float m[2] = {-INF, -INF}, l[2] = {0.f, 0.f}, out[HEADS][8] = {};
    for (u32 round = 0; key0 < end; round++, key0 += ROUND) {
        bool more = key0 + ROUND < end, odd = round % 2;
        copies_wait<1>();
        __syncwarp();
        renew(keys, fresh[0].k);
        float s[4] = {};
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            uint4 low = *(const uint4*)(keys + place(g, 4 * i + part)), high = *(const uint4*)(keys + place(g + 8, 4 * i + part));
            multiply<BRAIN>(s, low.x, high.x, low.y, high.y, q[i].x, q[i].y);
            multiply<BRAIN>(s, low.z, high.z, low.w, high.w, q[i].z, q[i].w);
        }
        __syncwarp();
        if (more) load(keys_at, p.k_cache, odd ? ahead : rows, !odd);
        copies_end();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            u32 key = key0 + g + i / 2 * 8;
            s[i] *= p.scale;
            if (p.softcap > 0.f) s[i] = tanhf(s[i] / p.softcap) * p.softcap;
            if (key >= end || key < see.first) s[i] = -INF;
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = fmaxf(s[h], s[h + 2]);
#pragma unroll
            for (int o = 4; o < 32; o *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, o));
            top = fmaxf(top, m[h]);
            float f = m[h] == -INF ? 0.f : __expf(m[h] - top);
            float a = s[h] == -INF ? 0.f : __expf(s[h] - top), b = s[h + 2] == -INF ? 0.f : __expf(s[h + 2] - top);
            l[h] = l[h] * f + (a + b);
            m[h] = top;
            if (part < HEADS / 2) {
                weights[warp][g][part * 2 + h] = a, weights[warp][g + 8][part * 2 + h] = b;
                if (g == 0) factors[warp][part * 2 + h] = f;
            }
        }
        copies_wait<1>();
        __syncwarp();
        renew(values, fresh[0].v);
        float4 f = *(const float4*)factors[warp];
#pragma unroll
        for (int e = 0; e < 8; e++) out[0][e] *= f.x, out[1][e] *= f.y, out[2][e] *= f.z, out[3][e] *= f.w;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            u32 row = j * AT_ONCE + lane / LANES;
            uint4 value = *(const uint4*)(values + place(row, lane % LANES));
            float4 w = *(const float4*)weights[warp][row];
            const T* v = (const T*)&value;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                float each = to_float(v[e]);
                out[0][e] = fmaf(w.x, each, out[0][e]), out[1][e] = fmaf(w.y, each, out[1][e]);
                out[2][e] = fmaf(w.z, each, out[2][e]), out[3][e] = fmaf(w.w, each, out[3][e]);
            }
        }
        __syncwarp();
        if (more) load(values_at, p.v_cache, odd ? ahead : rows, !odd);
        copies_end();
        if (odd) rows = ahead, ahead = look_up(round / 2 + 2);
    }
    copies_wait<0>();
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int o = 4; o < 32; o *= 2) l[h] += __shfl_xor_sync(0xffffffff, l[h], o);
        if (g == 0 && part < HEADS / 2) warp_m[warp][part * 2 + h] = m[h], warp_l[warp][part * 2 + h] = l[h];
    }
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int e = 0; e < 8; e++)
#pragma unroll
            for (int o = LANES; o < 32; o *= 2) out[h][e] += __shfl_xor_sync(0xffffffff, out[h][e], o);
        if (lane < LANES) {
            float4* to = (float4*)&warp_values[warp][h][lane * 8];
            to[0] = make_float4(out[h][0], out[h][1], out[h][2], out[h][3]), to[1] = make_float4(out[h][4], out[h][5], out[h][6], out[h][7]);
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < heads * WIDTH; i += blockDim.x) {
        u32 h = i / WIDTH, e = i % WIDTH;
        float top = -INF, sum = 0.f, v = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, warp_m[w][h]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float f = warp_m[w][h] == -INF ? 0.f : __expf(warp_m[w][h] - top);
            sum += warp_l[w][h] * f, v += warp_values[w][h][e] * f;
        }
        if (p.partial) {
            float* to = p.partial + (((u64)t * p.heads + head + h) * p.splits + blockIdx.z) * (WIDTH + 2);
            to[2 + e] = v;
            if (e == 0) to[0] = top, to[1] = sum;
            continue;
        }
        if (p.has_sinks) {
            float sink = load_main(p.sinks, p.sink_type, head + h), most = fmaxf(top, sink), f = top == -INF ? 0.f : __expf(top - most);
            sum = sum * f + __expf(sink - most), v *= f;
        }
        ((T*)p.out)[((u64)t * p.heads + head + h) * WIDTH + e] = from_float<T>(sum == 0.f ? 0.f : v / sum);
    }
}

// Joins the chunks of each token and head: one block of 512 threads for each, in as many parts as there are rows of WIDTH.
template <class T, int WIDTH> DEVICE void join(const Paged& p) {
    const u32 PARTS = 512 / WIDTH, ROOM = WIDTH + 2;
    __shared__ float part_values[PARTS][WIDTH], part_sums[PARTS], shared[32];
    u32 t = blockIdx.x, head = blockIdx.y, part = threadIdx.x / WIDTH, e = threadIdx.x % WIDTH;
    wait_for_previous();
    Seen see = seen_by(p, t);
    u32 count = see.there ? see.last / CHUNK + 1 - see.first / CHUNK : 0;
    const float* from = p.partial + ((u64)t * p.heads + head) * p.splits * ROOM;
    float top = -INF;
    for (u32 c = threadIdx.x; c < count; c += blockDim.x) top = fmaxf(top, from[(u64)c * ROOM]);
    top = block_max(top, shared);
    float sum = 0.f, v = 0.f;
#pragma unroll 8
    for (u32 c = part; c < count; c += PARTS) {
        const float* one = from + (u64)c * ROOM;
        float f = __expf(one[0] - top);
        sum = fmaf(one[1], f, sum), v = fmaf(one[2 + e], f, v);
    }
    part_values[part][e] = v;
    if (e == 0) part_sums[part] = sum;
    __syncthreads();
    if (part) return;
    for (u32 i = 1; i < PARTS; i++) sum += part_sums[i], v += part_values[i][e];
    if (p.has_sinks) {
        float sink = load_main(p.sinks, p.sink_type, head), most = fmaxf(top, sink), f = top == -INF ? 0.f : __expf(top - most);
        sum = sum * f + __expf(sink - most), v *= f;
    }
    ((T*)p.out)[((u64)t * p.heads + head) * WIDTH + e] = from_float<T>(sum == 0.f ? 0.f : v / sum);
}

struct Turned {
    Paged p;
    RopeWrite r;
};

#define DECODE(name, BRAIN, T, WIDTH) \
    extern "C" __global__ void __launch_bounds__(256, 3) decode_##name(const __grid_constant__ Paged p) { decode<BRAIN, T, WIDTH, false>(p, nullptr); } \
    extern "C" __global__ void __launch_bounds__(256, 3) decode_turned_##name(const __grid_constant__ Turned p) { decode<BRAIN, T, WIDTH, true>(p.p, &p.r); } \
    extern "C" __global__ void __launch_bounds__(512) decode_join_##name(const __grid_constant__ Paged p) { join<T, WIDTH>(p); }

DECODE(bf16_64, true, bf16, 64)
DECODE(bf16_128, true, bf16, 128)
DECODE(f16_64, false, f16, 64)
DECODE(f16_128, false, f16, 128)
