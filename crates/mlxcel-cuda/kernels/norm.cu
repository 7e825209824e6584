// Norms, softmax and rotations: one block for each row, statistics in f32.
#include "rope.cuh"

struct Norm {
    const void* x;
    // Added to `x` first, if not null; the sum goes to `sum`.
    const void* residual;
    void* sum;
    const void* weight;
    const void* bias;
    void* y;
    i64 x_stride, residual_stride;
    u32 rows, width;
    u32 type, weight_type, bias_type;
    float eps;
};

// The row as floats.
extern __shared__ __align__(16) float row_values[];

template <class T> DEVICE void rms(const Norm& p) {
    __shared__ float shared[32];
    wait_for_previous();
    const T* x = (const T*)p.x + (u64)blockIdx.x * p.x_stride;
    const T* residual = p.residual ? (const T*)p.residual + (u64)blockIdx.x * p.residual_stride : 0;
    float squares = 0.f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = to_float(x[i]);
        if (residual) {
            T s = from_float<T>(v + to_float(residual[i]));
            ((T*)p.sum)[(u64)blockIdx.x * p.width + i] = s;
            v = to_float(s);
        }
        row_values[i] = v;
        squares = fmaf(v, v, squares);
    }
    float scale = 1.f / sqrtf(block_sum(squares, shared) / (float)p.width + p.eps);
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = row_values[i] * scale;
        if (p.weight) v *= load_main(p.weight, p.weight_type, i);
        ((T*)p.y)[(u64)blockIdx.x * p.width + i] = from_float<T>(v);
    }
}

// Whether rows at these distances can be read eight 16-bit numbers at a time.
DEVICE bool in_eights(const void* at, i64 stride) { return ((u64)at & 15) == 0 && stride % 8 == 0; }

// The same for 16-bit numbers, eight at a time. Products that norm their rows themselves sum in the same order.
template <class T> DEVICE void rms_narrow(const Norm& p) {
    if (p.width % 8 || !in_eights(p.x, p.x_stride) || !in_eights(p.residual, p.residual_stride)) {
        rms<T>(p);
        return;
    }
    __shared__ float shared[32];
    uint4* row = (uint4*)row_values;
    u32 pieces = p.width / 8;
    wait_for_previous();
    const uint4* x = (const uint4*)((const T*)p.x + (u64)blockIdx.x * p.x_stride);
    float squares = 0.f;
    for (u32 i = threadIdx.x; i < pieces; i += blockDim.x) {
        uint4 v = x[i];
        if (p.residual) {
            uint4 other = ((const uint4*)((const T*)p.residual + (u64)blockIdx.x * p.residual_stride))[i];
            T *a = (T*)&v, *b = (T*)&other;
#pragma unroll
            for (int e = 0; e < 8; e++) a[e] = from_float<T>(to_float(a[e]) + to_float(b[e]));
            ((uint4*)((T*)p.sum + (u64)blockIdx.x * p.width))[i] = v;
        }
        row[i] = v;
        squares = add_squares<T>(v, squares);
    }
    float scale = 1.f / sqrtf(block_sum(squares, shared) / (float)p.width + p.eps);
    for (u32 i = threadIdx.x; i < pieces; i += blockDim.x)
        ((uint4*)((T*)p.y + (u64)blockIdx.x * p.width))[i] = normed<T>(row[i], scale, p.weight, p.weight_type, i * 8);
}

KERNEL rms_norm(const __grid_constant__ Norm p) {
    switch (p.type) {
    case F32: rms<float>(p); break;
    case BF16: rms_narrow<bf16>(p); break;
    default: rms_narrow<f16>(p);
    }
}

KERNEL layer_norm(const __grid_constant__ Norm p) {
    __shared__ float shared[32];
    wait_for_previous();
    float total = 0.f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        row_values[i] = load_main(p.x, p.type, (u64)blockIdx.x * p.x_stride + i);
        total += row_values[i];
    }
    float mean = block_sum(total, shared) / (float)p.width, squares = 0.f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = row_values[i] - mean;
        squares = fmaf(v, v, squares);
    }
    float scale = 1.f / sqrtf(block_sum(squares, shared) / (float)p.width + p.eps);
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = (row_values[i] - mean) * scale;
        if (p.weight) v *= load_main(p.weight, p.weight_type, i);
        if (p.bias) v += load_main(p.bias, p.bias_type, i);
        store_main(p.y, p.type, (u64)blockIdx.x * p.width + i, v);
    }
}

KERNEL softmax(const __grid_constant__ Norm p) {
    __shared__ float shared[32];
    wait_for_previous();
    u64 base = (u64)blockIdx.x * p.x_stride;
    float top = -INF;
    bool nan = false;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) {
        float v = load_main(p.x, p.type, base + i);
        nan |= v != v;
        top = fmaxf(top, v);
    }
    top = block_max(top, shared);
    if (__syncthreads_or(nan)) top = NAN_F;
    float total = 0.f;
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x) total += expf(load_main(p.x, p.type, base + i) - top);
    total = block_sum(total, shared);
    for (u32 i = threadIdx.x; i < p.width; i += blockDim.x)
        store_main(p.y, p.type, (u64)blockIdx.x * p.width + i, expf(load_main(p.x, p.type, base + i) - top) / total);
}

// A block for each token; threads take pairs of any head.
KERNEL rope(const __grid_constant__ Rope p) {
    wait_for_previous();
    u32 t = blockIdx.x, per_head = p.width - p.half;
    float position = (float)load_int(p.positions, p.position_type, t);
    for (u32 i = threadIdx.x; i < p.heads * per_head; i += blockDim.x) {
        u32 head = i / per_head, j = i % per_head, first, second;
        u64 to = ((u64)t * p.heads + head) * p.width;
        if (j >= p.half) {
            u32 e = j + p.half;
            store_main(p.y, p.type, to + e, load_main(p.x, p.type, (u64)t * p.token_stride + head * p.width + e));
            continue;
        }
        float a, b;
        rotated(p, t, head, j, position, first, second, a, b);
        store_main(p.y, p.type, to + first, a);
        store_main(p.y, p.type, to + second, b);
    }
}

struct Gated {
    const void* gate;
    const void* factor;
    void* y;
    i64 gate_stride, factor_stride;
    u32 rows, width;
    u32 type, activation;
};

DEVICE float activated(u32 kind, float v) {
    switch (kind) {
    case 0: return v > 0 ? v : 0.f;
    case 1: return v > 0 ? v * v : 0.f;
    case 2: return v / (1.f + expf(-v));
    case 3: return v * 0.5f * (erff(v * 0.70710678118654752440f) + 1.f);
    case 4: return v * 0.5f * (tanhf((v + v * v * v * 0.044715f) * 0.79788456080286535588f) + 1.f);
    case 5: return v / (1.f + expf(-1.702f * v));
    default: return fmaxf(v, 0.f) + log1pf(expf(-fabsf(v)));
    }
}

// Activated gates times factors: 16-bit numbers eight at a time, a row of the grid for each row.
template <class T> DEVICE void multiply_gated(const Gated& p) {
    wait_for_previous();
    u64 row = blockIdx.y;
    for (u32 i = (blockIdx.x * blockDim.x + threadIdx.x) * 8; i < p.width; i += gridDim.x * blockDim.x * 8) {
        uint4 a = *(const uint4*)((const T*)p.gate + row * p.gate_stride + i), b = *(const uint4*)((const T*)p.factor + row * p.factor_stride + i), c;
        const T *g = (const T*)&a, *f = (const T*)&b;
        T* y = (T*)&c;
#pragma unroll
        for (int e = 0; e < 8; e++) y[e] = from_float<T>(to_float(from_float<T>(activated(p.activation, to_float(g[e])))) * to_float(f[e]));
        *(uint4*)((T*)p.y + row * p.width + i) = c;
    }
}
KERNEL gated(const __grid_constant__ Gated p) {
    if (p.type == BF16) multiply_gated<bf16>(p);
    else multiply_gated<f16>(p);
}
