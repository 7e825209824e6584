// Sampling without sorting: one block for each row of logits. The order of tokens by logit is never written down; which
// token has a given share of the mass before it is found digit by digit of its logit. Masses are whole numbers, so that
// sums do not depend on the order they are taken in.
#include "base.cuh"

struct Sample {
    const void* logits;
    const float* temperature;
    const int* top_k;
    const float* top_p;
    const float* min_p;
    const u32* seed;
    const u32* step;
    int* out;
    i64 stride;
    u32 type, vocabulary;
};

// A number whose order is that of the logit; NaN is the largest, and the two zeros are equal.
DEVICE u32 key_of(float v) {
    if (v != v) return 0xffffffff;
    u32 bits = __float_as_uint(v == 0.f ? 0.f : v);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

DEVICE u32 mix(u32 h) {
    h = (h ^ h >> 16) * 0x7feb352d;
    h = (h ^ h >> 15) * 0x846ca68b;
    return h ^ h >> 16;
}

// The last token that is kept: larger logits come first, and of equal ones the earlier.
struct Cut {
    u32 key, index;
};

struct Row {
    const Sample* p;
    u64 base;
    float top, temperature, min_p;
    Cut cut;
    u32 first;
    DEVICE float logit(u32 i) const { return load_main(p->logits, p->type, base + i); }
    // Zero for tokens that are cut off.
    DEVICE u64 mass(u32 i, float v, u32 key) const {
        if (key < cut.key || (key == cut.key && i > cut.index)) return 0;
        float weight = expf(v / temperature - top);
        if (weight < min_p && i != first) return 0;
        return (u64)((double)weight * 1099511627776.0);
    }
};

__shared__ u64 bins[256];
__shared__ u64 found[2];
__shared__ u32 counts[33];

// The token with at most `target` before it and more once it is counted; by number of tokens or by mass. All of them are
// passed if there is no such token, and then `whole` tells how much there is.
DEVICE bool select(const Row& row, bool by_mass, u64 target, Cut& cut, u64& whole) {
    u32 prefix = 0, n = row.p->vocabulary;
    whole = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (u32 b = threadIdx.x; b < 256; b += blockDim.x) bins[b] = 0;
        __syncthreads();
        u32 mask = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
        for (u32 i = threadIdx.x; i < n; i += blockDim.x) {
            float v = row.logit(i);
            u32 key = key_of(v);
            if ((key & mask) != prefix) continue;
            u64 m = row.mass(i, v, key);
            if (m || !by_mass) atomicAdd(&bins[key >> shift & 255], by_mass ? m : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 before = 0;
            int bin = 255;
            while (bin >= 0 && before + bins[bin] <= target) before += bins[bin--];
            found[0] = bin < 0 ? ~0ull : (u64)bin;
            found[1] = before;
        }
        __syncthreads();
        if (found[0] == ~0ull) {
            whole = found[1];
            return false;
        }
        target -= found[1];
        prefix |= (u32)found[0] << shift;
    }
    // Tokens of this very logit, in order.
    __syncthreads();
    if (threadIdx.x == 0) found[0] = 0;
    __syncthreads();
    for (u32 first = 0; first < n; first += blockDim.x) {
        u32 i = first + threadIdx.x;
        float v = i < n ? row.logit(i) : 0.f;
        u32 key = i < n ? key_of(v) : 0;
        u64 m = i < n && key == prefix ? (by_mass ? row.mass(i, v, key) : 1ull) : 0;
        u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        u32 votes = __ballot_sync(0xffffffff, m != 0);
        if (lane == 0) counts[warp] = __popc(votes);
        __syncthreads();
        u32 rank = 0, all = 0;
        for (u32 w = 0; w < blockDim.x / 32; w++) {
            if (w < warp) rank += counts[w];
            all += counts[w];
        }
        rank += __popc(votes & ((1u << lane) - 1));
        u64 seen = found[0];
        __syncthreads();
        if (m && (seen + rank) * m <= target && target < (seen + rank + 1) * m) found[1] = i;
        if (threadIdx.x == 0) found[0] = seen + all;
        __syncthreads();
    }
    cut.key = prefix, cut.index = (u32)found[1];
    return true;
}

// The largest logit of those that a thread looks at, the first of equals and of what is no number, with its place turned
// round below it. EACH of them are 16 bytes.
template <class T, int EACH> DEVICE u64 largest(const Sample& p, u64 base) {
    const T* row = (const T*)p.logits + base;
    float best = -INF;
    u32 at = 0xffffffff, n = p.vocabulary, whole = ((u64)row & 15) ? 0 : n / EACH * EACH;
    auto look = [&](float v, u32 i) {
        if (best == best && (at == 0xffffffff || !(v <= best))) best = v, at = i;
    };
#pragma unroll 8
    for (u32 i = threadIdx.x * EACH; i < whole; i += blockDim.x * EACH) {
        uint4 piece = *(const uint4*)(row + i);
#pragma unroll
        for (int e = 0; e < EACH; e++) look(to_float(((const T*)&piece)[e]), i + e);
    }
    for (u32 i = whole + threadIdx.x; i < n; i += blockDim.x) look(to_float(row[i]), i);
    return at == 0xffffffff ? 0 : (u64)key_of(best) << 32 | ~at;
}

KERNEL sample(const __grid_constant__ Sample p) {
    __shared__ u64 best[32];
    wait_for_previous();
    u32 r = blockIdx.x;
    Row row;
    row.p = &p, row.base = (u64)r * p.stride, row.min_p = -INF, row.cut.key = 0, row.cut.index = 0xffffffff;
    // The largest logit, the first of equals: in one number, since the order of places is turned round.
    u64 mine = p.type == F32 ? largest<float, 4>(p, row.base) : p.type == BF16 ? largest<bf16, 8>(p, row.base) : largest<f16, 8>(p, row.base);
    for (int o = 16; o; o >>= 1) {
        u64 other = __shfl_xor_sync(0xffffffff, mine, o);
        mine = mine > other ? mine : other;
    }
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = mine;
    __syncthreads();
    for (u32 w = 0; w < blockDim.x / 32; w++) mine = mine > best[w] ? mine : best[w];
    row.first = ~(u32)mine;
    // What is not a number is the largest: nothing is drawn of such a row.
    if (mine >> 32 == 0xffffffff) {
        if (threadIdx.x == 0) p.out[r] = -1;
        return;
    }
    float temperature = p.temperature[r];
    if (temperature <= 0.f) {
        if (threadIdx.x == 0) p.out[r] = (int)row.first;
        return;
    }
    row.temperature = temperature;
    row.top = row.logit(row.first) / temperature;
    Cut cut;
    u64 whole;
    int k = p.top_k[r];
    if (k > 0 && (u32)k < p.vocabulary && select(row, false, k - 1, cut, whole)) row.cut = cut;
    u64 total;
    select(row, true, ~0ull >> 1, cut, total);
    float top_p = p.top_p[r];
    double limit = (double)top_p * (double)total;
    u64 last = limit <= 1. ? 0 : (u64)ceil(limit) - 1;
    if (last < total && select(row, true, last, cut, whole)) row.cut = cut;
    row.min_p = p.min_p[r];
    select(row, true, ~0ull >> 1, cut, total);
    u32 drawn = mix(mix(p.seed[r] + 0x9e3779b9) ^ p.step[r]) >> 8;
    double target = (double)drawn * (1. / 16777216.) * (double)total;
    u64 place = (u64)target < total ? (u64)target : total - 1;
    u32 token = row.first;
    if (select(row, true, place, cut, whole)) token = cut.index;
    if (threadIdx.x == 0) p.out[r] = (int)token;
}
