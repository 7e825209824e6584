// Reductions, running reductions, sorting and the largest of a line. A line is the elements along the reduced axes.
#include "base.cuh"

enum { SUM, PROD, MAX, MIN };

struct Reduce {
    void* to;
    const void* from;
    u32 type, op;
    // Lines, and elements of each.
    u32 lines, length;
    u32 kept_rank, reduced_rank;
    u32 kept_shape[6], reduced_shape[6];
    i64 kept_strides[6], reduced_strides[6];
};

DEVICE i64 place_of(u32 i, u32 rank, const u32* shape, const i64* strides) {
    i64 place = 0;
    for (int d = (int)rank - 1; d >= 0; d--) {
        u32 q = i / shape[d];
        place += (i64)(i - q * shape[d]) * strides[d];
        i = q;
    }
    return place;
}

template <class F> DEVICE F join_floats(int op, F a, F b) {
    switch (op) {
    case SUM: return a + b;
    case PROD: return a * b;
    case MAX: return a != a ? a : b != b ? b : a > b ? a : b;
    default: return a != a ? a : b != b ? b : a < b ? a : b;
    }
}
DEVICE i64 join_ints(int op, int type, i64 a, i64 b) {
    bool less = type == U64 ? (u64)a < (u64)b : a < b;
    switch (op) {
    case SUM: return a + b;
    case PROD: return a * b;
    case MAX: return less ? b : a;
    default: return less ? a : b;
    }
}
template <class F> DEVICE F neutral_float(int op) { return op == SUM ? (F)0 : op == PROD ? (F)1 : op == MAX ? -(F)INF : (F)INF; }
DEVICE i64 neutral_int(int op, int type) {
    if (op == SUM) return 0;
    if (op == PROD) return 1;
    const i64 largest = 0x7fffffffffffffffll;
    bool high = op == MIN;
    switch (type) {
    case BOOL: return high ? largest : -largest - 1;
    case U8: return high ? 255 : 0;
    case U16: return high ? 65535 : 0;
    case U32: return high ? 0xffffffffll : 0;
    case U64: return high ? -1 : 0;
    case I8: return high ? 127 : -128;
    case I16: return high ? 32767 : -32768;
    case I32: return high ? 0x7fffffff : -0x80000000ll;
    default: return high ? largest : -largest - 1;
    }
}
DEVICE i64 shuffle(i64 v, int lane_mask) { return __shfl_xor_sync(0xffffffff, v, lane_mask); }

// One warp for each line.
KERNEL reduce(const __grid_constant__ Reduce p) {
    wait_for_previous();
    u32 lane = threadIdx.x % 32;
    for (u32 line = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; line < p.lines; line += gridDim.x * (blockDim.x / 32)) {
        i64 base = place_of(line, p.kept_rank, p.kept_shape, p.kept_strides);
        if (p.type == F64) {
            double v = neutral_float<double>(p.op);
            for (u32 i = lane; i < p.length; i += 32)
                v = join_floats(p.op, v, load_double(p.from, p.type, base + place_of(i, p.reduced_rank, p.reduced_shape, p.reduced_strides)));
            for (int o = 16; o; o >>= 1) v = join_floats(p.op, v, __shfl_xor_sync(0xffffffff, v, o));
            if (lane == 0) store_double(p.to, p.type, line, v);
        } else if (is_float(p.type)) {
            float v = neutral_float<float>(p.op);
            for (u32 i = lane; i < p.length; i += 32)
                v = join_floats(p.op, v, load_float(p.from, p.type, base + place_of(i, p.reduced_rank, p.reduced_shape, p.reduced_strides)));
            for (int o = 16; o; o >>= 1) v = join_floats(p.op, v, __shfl_xor_sync(0xffffffff, v, o));
            if (lane == 0) store_float(p.to, p.type, line, v);
        } else {
            i64 v = neutral_int(p.op, p.type);
            for (u32 i = lane; i < p.length; i += 32)
                v = join_ints(p.op, p.type, v, load_int(p.from, p.type, base + place_of(i, p.reduced_rank, p.reduced_shape, p.reduced_strides)));
            for (int o = 16; o; o >>= 1) v = join_ints(p.op, p.type, v, shuffle(v, o));
            if (lane == 0) store_int(p.to, p.type, line, v);
        }
    }
}

// Lines of a dense tensor along one axis: element `i` of line `l` is at `(l / inner * length + i) * inner + l % inner`.
struct Lines {
    void* to;
    const void* from;
    u32 type, op;
    u32 lines, length, inner;
    int* indices;
    u64* keys;
    u32* order;
    u32 padded;
};

DEVICE u64 line_start(const Lines& p, u32 line) { return (u64)(line / p.inner) * p.length * p.inner + line % p.inner; }

// One warp for each line, 32 elements at a time.
KERNEL cumulative(const __grid_constant__ Lines p) {
    wait_for_previous();
    u32 lane = threadIdx.x % 32;
    u32 line = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (line >= p.lines) return;
    u64 base = line_start(p, line);
    double carry = neutral_float<double>(p.op);
    i64 carry_int = neutral_int(p.op, p.type);
    for (u32 first = 0; first < p.length; first += 32) {
        u32 i = first + lane;
        u64 at = base + (u64)i * p.inner;
        if (is_float(p.type)) {
            double v = i < p.length ? load_double(p.from, p.type, at) : neutral_float<double>(p.op);
            for (int o = 1; o < 32; o <<= 1) {
                double before = __shfl_up_sync(0xffffffff, v, o);
                if (lane >= o) v = join_floats(p.op, before, v);
            }
            v = join_floats(p.op, carry, v);
            if (i < p.length) store_double(p.to, p.type, at, v);
            carry = __shfl_sync(0xffffffff, v, 31);
        } else {
            i64 v = i < p.length ? load_int(p.from, p.type, at) : neutral_int(p.op, p.type);
            for (int o = 1; o < 32; o <<= 1) {
                i64 before = __shfl_up_sync(0xffffffff, v, o);
                if (lane >= o) v = join_ints(p.op, p.type, before, v);
            }
            v = join_ints(p.op, p.type, carry_int, v);
            if (i < p.length) store_int(p.to, p.type, at, v);
            carry_int = __shfl_sync(0xffffffff, v, 31);
        }
    }
}

// A number whose order is that of the element; NaN is the largest, and the two zeros are equal.
DEVICE u64 key_of(const void* p, int type, u64 i) {
    if (is_float(type)) {
        double v = load_double(p, type, i);
        if (v != v) return ~1ull;
        if (v == 0) v = 0;
        u64 bits = (u64)__double_as_longlong(v);
        return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
    }
    i64 v = load_int(p, type, i);
    return type == U64 ? (u64)v : (u64)v ^ 0x8000000000000000ull;
}

// Keys of every line, padded to a power of two with what sorts last. `op` says descending.
KERNEL sort_keys(const __grid_constant__ Lines p) {
    wait_for_previous();
    u64 count = (u64)p.lines * p.padded;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        u32 line = (u32)(at / p.padded), i = (u32)(at % p.padded);
        u64 key = ~0ull;
        if (i < p.length) {
            key = key_of(p.from, p.type, line_start(p, line) + (u64)i * p.inner);
            if (p.op) key = ~key;
        }
        p.keys[at] = key;
        p.order[at] = i;
    }
}

DEVICE bool before(u64 ka, u32 a, u64 kb, u32 b) { return ka < kb || (ka == kb && a < b); }

// One comparison of every pair at distance `j` in runs of `k`.
KERNEL sort_step(u64* keys, u32* order, u64 pairs, u32 j, u32 k, u32 padded) {
    wait_for_previous();
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < pairs; at += (u64)gridDim.x * blockDim.x) {
        u64 low = at / j * 2 * j + at % j, high = low + j;
        bool rising = (low % padded & k) == 0;
        if (before(keys[high], order[high], keys[low], order[low]) == rising) {
            u64 key = keys[low];
            u32 index = order[low];
            keys[low] = keys[high], order[low] = order[high];
            keys[high] = key, order[high] = index;
        }
    }
}

// All steps with runs and distances up to 1024 elements, in shared memory; `first` is the run to begin with.
KERNEL sort_block(u64* keys, u32* order, u64 count, u32 first, u32 last, u32 padded) {
    __shared__ u64 key[1024];
    __shared__ u32 index[1024];
    wait_for_previous();
    u64 base = (u64)blockIdx.x * 1024;
    u32 n = count - base < 1024 ? (u32)(count - base) : 1024;
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) key[i] = keys[base + i], index[i] = order[base + i];
    __syncthreads();
    for (u32 k = first; k <= last; k <<= 1)
        for (u32 j = (k < 1024 ? k : 1024) / 2; j; j >>= 1) {
            for (u32 at = threadIdx.x; at < n / 2; at += blockDim.x) {
                u32 low = at / j * 2 * j + at % j, high = low + j;
                bool rising = ((base + low) % padded & k) == 0;
                if (before(key[high], index[high], key[low], index[low]) == rising) {
                    u64 kk = key[low];
                    u32 ii = index[low];
                    key[low] = key[high], index[low] = index[high];
                    key[high] = kk, index[high] = ii;
                }
            }
            __syncthreads();
        }
    for (u32 i = threadIdx.x; i < n; i += blockDim.x) keys[base + i] = key[i], order[base + i] = index[i];
}

KERNEL sort_results(const __grid_constant__ Lines p) {
    wait_for_previous();
    u64 count = (u64)p.lines * p.length;
    u32 size = size_of(p.type);
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        u32 line = (u32)(at / p.length), i = (u32)(at % p.length);
        u32 from = p.order[(u64)line * p.padded + i];
        u64 start = line_start(p, line), to = start + (u64)i * p.inner;
        p.indices[to] = from;
        const u8* source = (const u8*)p.from + (start + (u64)from * p.inner) * size;
        for (u32 b = 0; b < size; b++) ((u8*)p.to)[to * size + b] = source[b];
    }
}

// The first of the largest, one block for each line.
KERNEL argmax(const __grid_constant__ Lines p) {
    __shared__ u64 keys[32];
    __shared__ u32 places[32];
    wait_for_previous();
    u64 base = line_start(p, blockIdx.x), best = 0;
    u32 place = 0xffffffff;
    for (u32 i = threadIdx.x; i < p.length; i += blockDim.x) {
        u64 key = key_of(p.from, p.type, base + (u64)i * p.inner);
        if (place == 0xffffffff || key > best) best = key, place = i;
    }
    for (int stage = 0; stage < 2; stage++) {
        for (int o = 16; o; o >>= 1) {
            u64 key = __shfl_xor_sync(0xffffffff, best, o);
            u32 other = __shfl_xor_sync(0xffffffff, place, o);
            if (other != 0xffffffff && (place == 0xffffffff || key > best || (key == best && other < place))) best = key, place = other;
        }
        if (stage) break;
        if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = best, places[threadIdx.x / 32] = place;
        __syncthreads();
        bool there = threadIdx.x < blockDim.x / 32;
        best = there ? keys[threadIdx.x % 32] : 0;
        place = there ? places[threadIdx.x % 32] : 0xffffffff;
        if (threadIdx.x >= 32) return;
    }
    if (threadIdx.x == 0) ((int*)p.to)[blockIdx.x] = (int)place;
}
