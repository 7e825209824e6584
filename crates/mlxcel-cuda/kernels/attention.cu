// Attention over the paged cache in f32, a key at a time for a whole warp. Keys are taken in chunks that lie at fixed
// places of the sequence, a block for each; what chunks give is joined in their order. So a token's result is the same
// alone and in company.
#include "paged.cuh"
#include "rope.cuh"

const u32 CHUNK = 256, WARPS = 8;
// Chunks whose factors are held at once when they are joined, and parts of a value that a thread follows.
const u32 JOINED = 256;
const int JOINED_PARTS = 5;

// New keys and values to their slots: one block for each token.
KERNEL write_cache(const __grid_constant__ Write p) {
    wait_for_previous();
    i64 slot = load_int(p.slots, p.slot_type, blockIdx.x);
    if (slot >= 0 && (u64)slot < p.slot_count) {
        for (u32 i = threadIdx.x; i < p.k_row; i += blockDim.x)
            store_main(p.k_cache, p.k_type, (u64)slot * p.k_row + i, load_main(p.k, p.type, (u64)blockIdx.x * p.k_stride + i));
        for (u32 i = threadIdx.x; i < p.v_row; i += blockDim.x)
            store_main(p.v_cache, p.v_type, (u64)slot * p.v_row + i, load_main(p.v, p.type, (u64)blockIdx.x * p.v_stride + i));
    }
}

DEVICE float rounded(u32 type, float v) {
    return type == BF16 ? to_float(from_float<bf16>(v)) : type == F16 ? to_float(from_float<f16>(v)) : v;
}

// Rotates queries and keys, keys straight to the cache, and writes the values there: a row of blocks for each token.
KERNEL rope_write(const __grid_constant__ RopeWrite p) {
    wait_for_previous();
    u32 t = blockIdx.x, per_head = p.q.width - p.q.half, width = p.q.width;
    float position = (float)load_int(p.q.positions, p.q.position_type, t);
    i64 slot = load_int(p.w.slots, p.w.slot_type, t);
    bool kept = slot >= 0 && (u64)slot < p.w.slot_count;
    u32 heads = p.q.heads + p.k.heads, known = 0xffffffff;
    float sine = 0.f, cosine = 1.f;
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < heads * per_head; i += gridDim.y * blockDim.x) {
        u32 head = i / per_head, j = i % per_head, first, second;
        bool is_key = head >= p.q.heads;
        const Rope& r = is_key ? p.k : p.q;
        head -= is_key ? p.q.heads : 0;
        float a, b;
        if (j < r.half) {
            // Threads mostly stay with one pair.
            if (j != known) angle(r, t, j, position, sine, cosine), known = j;
            turned(r, t, head, j, sine, cosine, first, second, a, b);
        } else {
            first = second = j + r.half;
            a = b = load_main(r.x, r.type, (u64)t * r.token_stride + head * width + first);
        }
        if (!is_key) {
            u64 to = ((u64)t * r.heads + head) * width;
            store_main(r.y, r.type, to + first, a);
            store_main(r.y, r.type, to + second, b);
        } else if (kept) {
            u64 to = (u64)slot * p.w.k_row + head * width;
            store_main(p.w.k_cache, p.w.k_type, to + first, rounded(r.type, a));
            store_main(p.w.k_cache, p.w.k_type, to + second, rounded(r.type, b));
        }
    }
    if (kept)
        for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < p.w.v_row; i += gridDim.y * blockDim.x)
            store_main(p.w.v_cache, p.w.v_type, (u64)slot * p.w.v_row + i, load_main(p.w.v, p.w.type, (u64)t * p.w.v_stride + i));
}

template <class C, int E> struct __align__(sizeof(C) * E > 16 ? 16 : sizeof(C) * E) Piece {
    C v[E];
};

// The part of a row that a lane holds: E in a row if the width is 32 * E, else every 32nd.
template <class C, int E, bool EXACT> DEVICE void load_part(const C* row, u32 width, u32 lane, float* out) {
    if (EXACT) {
        Piece<C, E> piece = *(const Piece<C, E>*)(row + lane * E);
#pragma unroll
        for (int i = 0; i < E; i++) out[i] = to_float(piece.v[i]);
    } else {
#pragma unroll
        for (int i = 0; i < E; i++) out[i] = lane + 32 * i < width ? to_float(row[lane + 32 * i]) : 0.f;
    }
}

// Joins (m2, l2, a2) to (m, l, a); returns the factors for both.
DEVICE void join(float& m, float& l, float m2, float l2, float& f, float& f2) {
    float top = fmaxf(m, m2);
    f = m == -INF ? 0.f : expf(m - top), f2 = m2 == -INF ? 0.f : expf(m2 - top);
    l = l * f + l2 * f2;
    m = top;
}

template <class C, int E, int HEADS, bool EXACT> DEVICE void attend(const Paged& p) {
    const int KEYS = 4;
    extern __shared__ float memory[];
    u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = blockIdx.x;
    u32 group = p.heads / p.kv_heads, sets = (group + HEADS - 1) / HEADS;
    u32 kv = blockIdx.y / sets, head = kv * group + blockIdx.y % sets * HEADS, heads = min((u32)HEADS, (kv + 1) * group - head);
    u32 room = HEADS * p.value_width;
    // What each warp gives.
    float *warp_values = memory, *warp_m = memory + WARPS * room, *warp_l = warp_m + WARPS * HEADS;
    wait_for_previous();
    i64 seq = load_int(p.seq_ids, p.seq_type, t), position = load_int(p.positions, p.position_type, t);
    i64 last = min(position, (i64)p.pages * p.block - 1), first = p.window && position >= p.window ? position - p.window + 1 : 0;
    bool there = seq >= 0 && seq < p.sequences && last >= first;
    u32 chunk = there ? (u32)first / CHUNK : 0, chunks = there ? (u32)last / CHUNK + 1 : 0;
    if (p.partial) {
        u32 mine = blockIdx.z + chunk;
        if (mine >= chunks) {
            return;
        }
        chunk = mine, chunks = mine + 1;
    }
    float q[HEADS][E];
#pragma unroll
    for (int h = 0; h < HEADS; h++)
#pragma unroll
        for (int i = 0; i < E; i++) {
            u32 e = EXACT ? lane * E + i : lane + 32 * i;
            q[h][i] = h < heads && e < p.width ? load_main(p.q, p.q_type, (u64)t * p.q_stride + (head + h) * p.width + e) * p.scale : 0.f;
        }
    for (; chunk < chunks; chunk++) {
        float m[HEADS], l[HEADS], a[HEADS][E];
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            m[h] = -INF, l[h] = 0.f;
#pragma unroll
            for (int i = 0; i < E; i++) a[h][i] = 0.f;
        }
        u32 begin = chunk * CHUNK, end = min(begin + CHUNK, (u32)last + 1);
        // Each lane looks up one of the warp's keys, in the order they are taken.
        u32 own = min(begin + (lane / KEYS * WARPS + warp) * KEYS + lane % KEYS, end - 1), taken = 0;
        u64 own_row = (u64)load_int(p.table, p.table_type, (u64)seq * p.pages + own / p.block) * p.block + own % p.block;
        for (u32 key0 = begin + warp * KEYS; key0 < end; key0 += WARPS * KEYS, taken += KEYS) {
            float s[HEADS][KEYS], value[KEYS][E];
#pragma unroll
            for (int j = 0; j < KEYS; j++) {
                u64 row = __shfl_sync(0xffffffff, own_row, taken + j) * p.kv_heads + kv;
                float part[E];
                load_part<C, E, EXACT>((const C*)p.k_cache + row * p.width, p.width, lane, part);
                load_part<C, E, EXACT>((const C*)p.v_cache + row * p.value_stride, p.value_width, lane, value[j]);
#pragma unroll
                for (int h = 0; h < HEADS; h++) {
                    s[h][j] = 0.f;
#pragma unroll
                    for (int i = 0; i < E; i++) s[h][j] = fmaf(q[h][i], part[i], s[h][j]);
                }
            }
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float top = m[h];
#pragma unroll
                for (int j = 0; j < KEYS; j++) {
                    s[h][j] = warp_sum(s[h][j]);
                    if (p.softcap > 0.f) s[h][j] = tanhf(s[h][j] / p.softcap) * p.softcap;
                    if (key0 + j >= end || key0 + j < first) s[h][j] = -INF;
                    top = fmaxf(top, s[h][j]);
                }
                float f = m[h] == -INF ? 0.f : __expf(m[h] - top);
                l[h] *= f;
#pragma unroll
                for (int i = 0; i < E; i++) a[h][i] *= f;
#pragma unroll
                for (int j = 0; j < KEYS; j++) {
                    float weight = s[h][j] == -INF ? 0.f : __expf(s[h][j] - top);
                    l[h] += weight;
#pragma unroll
                    for (int i = 0; i < E; i++) a[h][i] = fmaf(weight, value[j][i], a[h][i]);
                }
                m[h] = top;
            }
        }
        __syncthreads();
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            if (lane == 0) warp_m[warp * HEADS + h] = m[h], warp_l[warp * HEADS + h] = l[h];
#pragma unroll
            for (int i = 0; i < E; i++) {
                u32 e = EXACT ? lane * E + i : lane + 32 * i;
                if (e < p.value_width) warp_values[warp * room + h * p.value_width + e] = a[h][i];
            }
        }
        __syncthreads();
        // Every thread follows the sums of all heads; the values are shared out.
        for (u32 h = 0; h < heads; h++) {
            float cm = -INF, cl = 0.f, factor[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) cm = fmaxf(cm, warp_m[w * HEADS + h]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                float wm = warp_m[w * HEADS + h];
                factor[w] = wm == -INF ? 0.f : expf(wm - cm);
                cl += warp_l[w * HEADS + h] * factor[w];
            }
            for (u32 e = threadIdx.x; e < p.value_width; e += blockDim.x) {
                float v = 0.f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) v += warp_values[w * room + h * p.value_width + e] * factor[w];
                if (p.partial) {
                    float* to = p.partial + (((u64)t * p.heads + head + h) * p.splits + blockIdx.z) * (p.value_width + 2);
                    to[2 + e] = v;
                    if (e == 0) to[0] = cm, to[1] = cl;
                } else {
                    float f = 1.f, f2, m = cm, l = cl;
                    if (p.has_sinks) join(m, l, load_main(p.sinks, p.sink_type, head + h), 1.f, f, f2);
                    store_main(p.out, p.q_type, ((u64)t * p.heads + head + h) * p.value_width + e, l == 0.f ? 0.f : v * f / l);
                }
            }
        }
        __syncthreads();
    }
    // A token that sees nothing.
    if (!there && !p.partial)
        for (u32 i = threadIdx.x; i < heads * p.value_width; i += blockDim.x)
            store_main(p.out, p.q_type, ((u64)t * p.heads + head) * p.value_width + i, 0.f);
}

// Joins the chunks of each token and head: one block for each.
KERNEL attention_join(const __grid_constant__ Paged p) {
    wait_for_previous();
    u32 t = blockIdx.x, head = blockIdx.y;
    i64 seq = load_int(p.seq_ids, p.seq_type, t), position = load_int(p.positions, p.position_type, t);
    i64 last = min(position, (i64)p.pages * p.block - 1), first = p.window && position >= p.window ? position - p.window + 1 : 0;
    bool there = seq >= 0 && seq < p.sequences && last >= first;
    u32 count = there ? (u32)last / CHUNK + 1 - (u32)first / CHUNK : 0;
    const float* from = p.partial + ((u64)t * p.heads + head) * p.splits * (p.value_width + 2);
    // The largest score of all, the factor of each chunk, and the sum, which every thread follows.
    __shared__ float factors[JOINED];
    __shared__ float shared[32];
    u32 room = p.value_width + 2;
    float m = -INF, l = 0.f, f = 1.f;
    for (u32 c = threadIdx.x; c < count; c += blockDim.x) m = fmaxf(m, from[(u64)c * room]);
    m = block_max(m, shared);
    float sink = p.has_sinks ? load_main(p.sinks, p.sink_type, head) : -INF;
    float v[JOINED_PARTS] = {};
    for (u32 first_chunk = 0; first_chunk < count; first_chunk += JOINED) {
        u32 n = min(JOINED, count - first_chunk);
        __syncthreads();
        for (u32 c = threadIdx.x; c < n; c += blockDim.x) factors[c] = expf(from[(u64)(first_chunk + c) * room] - m);
        __syncthreads();
        const float* part = from + (u64)first_chunk * room;
#pragma unroll 8
        for (u32 c = 0; c < n; c++) l = fmaf(part[(u64)c * room + 1], factors[c], l);
#pragma unroll
        for (int i = 0; i < JOINED_PARTS; i++) {
            u32 e = threadIdx.x + i * blockDim.x;
            if (e >= p.value_width) break;
#pragma unroll 8
            for (u32 c = 0; c < n; c++) v[i] = fmaf(part[(u64)c * room + 2 + e], factors[c], v[i]);
        }
    }
    if (p.has_sinks) {
        float top = fmaxf(m, sink);
        f = m == -INF ? 0.f : expf(m - top);
        l = l * f + expf(sink - top);
    }
#pragma unroll
    for (int i = 0; i < JOINED_PARTS; i++) {
        u32 e = threadIdx.x + i * blockDim.x;
        if (e < p.value_width) store_main(p.out, p.q_type, ((u64)t * p.heads + head) * p.value_width + e, l == 0.f ? 0.f : v[i] * f / l);
    }
}

#define ATTEND(name, E, HEADS, EXACT) \
    KERNEL attend_f32_##name(const __grid_constant__ Paged p) { attend<float, E, HEADS, EXACT>(p); } \
    KERNEL attend_bf16_##name(const __grid_constant__ Paged p) { attend<bf16, E, HEADS, EXACT>(p); } \
    KERNEL attend_f16_##name(const __grid_constant__ Paged p) { attend<f16, E, HEADS, EXACT>(p); }

ATTEND(64_grouped, 2, 4, true)
ATTEND(128_grouped, 4, 4, true)
ATTEND(small, 4, 4, false)
ATTEND(large, 8, 2, false)
ATTEND(largest, 18, 1, false)
