// Products with stored weights of any format in f32: a warp takes one row of the weight and up to eight rows of `x`, and
// sums in an order that depends on neither. Also rows of any format as plain numbers.
#include "linear.cuh"

template <class T> DEVICE void load8(const T* x, u32 left, bool aligned, float* out) {
    if (aligned && left >= 8) {
        if (sizeof(T) == 4) {
            const float4* p = (const float4*)x;
            float4 a = p[0], b = p[1];
            out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w, out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        } else {
            uint4 raw = *(const uint4*)x;
            const T* v = (const T*)&raw;
#pragma unroll
            for (int i = 0; i < 8; i++) out[i] = to_float(v[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = i < left ? to_float(x[i]) : 0.f;
}

template <class T> DEVICE void rows(const Linear& p) {
    u32 lane = threadIdx.x % 32;
    u64 n = (u64)blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (n >= p.n) return;
    u64 first = (u64)blockIdx.y * 8, row = n, from = first;
    u32 count = p.ids ? 1 : min(8u, (u32)(p.m - first));
    if (p.ids) {
        first = blockIdx.y;
        u64 matrix;
        chosen(p, blockIdx.y, matrix, from);
        row = matrix * p.n + n;
    }
    const T* x = (const T*)p.x + from * p.x_stride;
    bool aligned = (p.x_stride * sizeof(T)) % 16 == 0 && ((u64)p.x & 15) == 0;
    float sum[8] = {};
    for (u32 k = lane * 8; k < p.k; k += 256) {
        float w[8];
        decode8(p.w, row, k, w);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            if (t >= count) break;
            float v[8];
            load8(x + t * p.x_stride + k, p.k - k, aligned, v);
#pragma unroll
            for (int i = 0; i < 8; i++) sum[t] = fmaf(w[i], v[i], sum[t]);
        }
    }
    float bias = p.bias ? load_main(p.bias, p.bias_type, row) : 0.f;
#pragma unroll
    for (int t = 0; t < 8; t++) {
        if (t >= count) break;
        float v = warp_sum(sum[t]);
        // The bias is added to the rounded product, as its own op would.
        if (p.bias) v = to_float(from_float<T>(v)) + to_float(from_float<T>(bias));
        if (lane == 0) ((T*)p.y)[(first + t) * p.y_stride + n] = from_float<T>(v);
    }
}

KERNEL linear_rows_f32(const __grid_constant__ Linear p) { rows<float>(p); }
KERNEL linear_rows_bf16(const __grid_constant__ Linear p) { rows<bf16>(p); }
KERNEL linear_rows_f16(const __grid_constant__ Linear p) { rows<f16>(p); }

struct Decode {
    Weight w;
    void* to;
    // If not null, which rows.
    const void* ids;
    u32 type, id_type;
    u64 rows;
    u64 limit;
};

// Rows of a weight as plain numbers: all of them, or those that are named.
KERNEL decode_rows(const __grid_constant__ Decode p) {
    wait_for_previous();
    u32 pieces = (p.w.cols + 7) / 8;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < p.rows * pieces; at += (u64)gridDim.x * blockDim.x) {
        u64 to = at / pieces, row = to;
        u32 k = (u32)(at % pieces) * 8;
        if (p.ids) {
            i64 id = load_int(p.ids, p.id_type, to);
            row = id < 0 ? 0 : id >= (i64)p.limit ? p.limit - 1 : id;
        }
        float v[8];
        decode8(p.w, row, k, v);
        for (u32 i = 0; i < 8 && k + i < p.w.cols; i++) store_float(p.to, p.type, to * p.w.cols + k + i, v[i]);
    }
}
