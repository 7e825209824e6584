// Products of a few rows with weights of any other format.
#include "linear_mma.cuh"

// Formats without a way of their own: a call, so that the kernels stay small.
template <class N> __device__ __noinline__ uint4 decoded(const Weight& w, u64 row, u32 k) {
    float v[8];
    decode8(w, row, k, v);
    return make_uint4(N::pack(v[0], v[1]), N::pack(v[2], v[3]), N::pack(v[4], v[5]), N::pack(v[6], v[7]));
}

template <class N> struct AnyRow {
    static const bool STRIDED = false, SPREAD = false;
    static const int AHEAD = 1;
    u32 words[16];
    DEVICE void load(const Weight& w, u64 row, u32 k, u32 width, u32 part) {
        k += 32 * part;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 v = k + 8 * i < width ? decoded<N>(w, row, k + 8 * i) : make_uint4(0, 0, 0, 0);
            words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
        }
    }
    DEVICE void pairs(u32* out) const {
#pragma unroll
        for (int i = 0; i < 16; i++) out[i] = words[i];
    }
};

PRODUCT(bf16_any, B16, AnyRow<B16>)
PRODUCT(f16_any, H16, AnyRow<H16>)
