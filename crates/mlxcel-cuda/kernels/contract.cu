// Products of any two tensors and convolutions, the plain way. Products with stored weights are in linear.cu.
#include "base.cuh"

struct Dot {
    void* to;
    const void* a;
    const void* b;
    u32 type, to_type;
    u32 batches, m, n, k;
    // Of batch, free and contracted axis.
    i64 a_strides[3], b_strides[3];
};

// Tiles of 64 by 64, in f32.
KERNEL dot_float(const __grid_constant__ Dot p) {
    __shared__ float a[16][68], b[16][68];
    wait_for_previous();
    u32 m0 = blockIdx.x * 64, n0 = blockIdx.y * 64, tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    for (u32 batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
        i64 ab = batch * p.a_strides[0], bb = batch * p.b_strides[0];
        float sum[4][4] = {};
        for (u32 k0 = 0; k0 < p.k; k0 += 16) {
            for (u32 i = threadIdx.x; i < 1024; i += 256) {
                u32 r = i / 16, k = i % 16;
                bool inside = k0 + k < p.k;
                a[k][r] = inside && m0 + r < p.m ? load_float(p.a, p.type, ab + (m0 + r) * p.a_strides[1] + (k0 + k) * p.a_strides[2]) : 0.f;
                b[k][r] = inside && n0 + r < p.n ? load_float(p.b, p.type, bb + (n0 + r) * p.b_strides[1] + (k0 + k) * p.b_strides[2]) : 0.f;
            }
            __syncthreads();
#pragma unroll
            for (u32 k = 0; k < 16; k++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) sum[i][j] = fmaf(a[k][ty * 4 + i], b[k][tx * 4 + j], sum[i][j]);
            __syncthreads();
        }
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                u32 m = m0 + ty * 4 + i, n = n0 + tx * 4 + j;
                if (m >= p.m || n >= p.n) continue;
                u64 to = ((u64)batch * p.m + m) * p.n + n;
                if (is_float(p.to_type)) store_float(p.to, p.to_type, to, sum[i][j]);
                else store_int(p.to, p.to_type, to, (i64)sum[i][j]);
            }
    }
}

// One thread for each result, in f64 or in whole numbers.
KERNEL dot_exact(const __grid_constant__ Dot p) {
    wait_for_previous();
    u64 count = (u64)p.batches * p.m * p.n;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += (u64)gridDim.x * blockDim.x) {
        u32 n = (u32)(at % p.n), m = (u32)(at / p.n % p.m), batch = (u32)(at / p.n / p.m);
        i64 a = batch * p.a_strides[0] + m * p.a_strides[1], b = batch * p.b_strides[0] + n * p.b_strides[1];
        if (is_float(p.type)) {
            double sum = 0;
            for (u32 k = 0; k < p.k; k++) sum += load_double(p.a, p.type, a + k * p.a_strides[2]) * load_double(p.b, p.type, b + k * p.b_strides[2]);
            if (is_float(p.to_type)) store_double(p.to, p.to_type, at, sum);
            else store_int(p.to, p.to_type, at, (i64)sum);
        } else {
            i64 sum = 0;
            for (u32 k = 0; k < p.k; k++) sum += load_int(p.a, p.type, a + k * p.a_strides[2]) * load_int(p.b, p.type, b + k * p.b_strides[2]);
            if (is_float(p.to_type)) store_double(p.to, p.to_type, at, (double)sum);
            else store_int(p.to, p.to_type, at, sum);
        }
    }
}

struct Conv {
    void* to;
    const void* x;
    const void* w;
    u32 type, count;
    u32 c_out, channels, groups, c_in;
    // Of the three spatial axes, missing ones being 1.
    u32 out[3], in[3], kernel[3], stride[3], dilation[3], low[3];
};

KERNEL conv(const __grid_constant__ Conv p) {
    wait_for_previous();
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < p.count; at += (u64)gridDim.x * blockDim.x) {
        u32 rest = (u32)at, o[3];
        for (int d = 2; d >= 0; d--) o[d] = rest % p.out[d], rest /= p.out[d];
        u32 co = rest % p.c_out, n = rest / p.c_out, group = co / (p.c_out / p.groups);
        double sum = 0;
        for (u32 c = 0; c < p.channels; c++)
            for (u32 a = 0; a < p.kernel[0]; a++)
                for (u32 b = 0; b < p.kernel[1]; b++)
                    for (u32 d = 0; d < p.kernel[2]; d++) {
                        u32 i0 = o[0] * p.stride[0] + a * p.dilation[0] - p.low[0];
                        u32 i1 = o[1] * p.stride[1] + b * p.dilation[1] - p.low[1];
                        u32 i2 = o[2] * p.stride[2] + d * p.dilation[2] - p.low[2];
                        if (i0 >= p.in[0] || i1 >= p.in[1] || i2 >= p.in[2]) continue;
                        u64 x = ((((u64)n * p.c_in + group * p.channels + c) * p.in[0] + i0) * p.in[1] + i1) * p.in[2] + i2;
                        u64 w = ((((u64)co * p.channels + c) * p.kernel[0] + a) * p.kernel[1] + b) * p.kernel[2] + d;
                        sum += load_double(p.x, p.type, x) * load_double(p.w, p.type, w);
                    }
        store_double(p.to, p.type, at, sum);
    }
}
