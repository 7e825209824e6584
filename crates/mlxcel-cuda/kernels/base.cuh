// Numbers of every type, read and written by the code of their type. No header of the toolkit is needed: conversions
// are instructions. What an op means is in the files that include this one.
#pragma once
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;
typedef long long i64;

// The order of the plain types in the graph.
enum { BOOL, U8, U16, U32, U64, I8, I16, I32, I64, F8E4M3, F8E5M2, F16, BF16, F32, F64 };

#define DEVICE __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define INF __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fc00000)

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

DEVICE float to_float(float v) { return v; }
DEVICE float to_float(bf16 v) { return __uint_as_float((u32)v.bits << 16); }
DEVICE float to_float(f16 v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v.bits));
    return r;
}
template <class T> DEVICE T from_float(float v);
template <> DEVICE float from_float<float>(float v) { return v; }
template <> DEVICE bf16 from_float<bf16>(float v) {
    bf16 r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}
template <> DEVICE f16 from_float<f16>(float v) {
    f16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
    return r;
}

// Two floats as one word of two narrow ones, the first in the low half.
DEVICE u32 pack_bf16(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEVICE u32 pack_f16(float low, float high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

template <int MANTISSA, int BIAS, bool INFINITY_> DEVICE float decode_f8(u8 code) {
    u32 sign = (u32)(code & 0x80) << 24, rest = code & 0x7f;
    u32 exponent = rest >> MANTISSA, mantissa = rest & ((1 << MANTISSA) - 1);
    if (INFINITY_ && exponent == (0x7f >> MANTISSA)) return mantissa ? NAN_F : __uint_as_float(sign | 0x7f800000);
    if (!INFINITY_ && rest == 0x7f) return NAN_F;
    if (exponent == 0) {
        float v = (float)mantissa * __uint_as_float((u32)(127 - MANTISSA + 1 - BIAS) << 23);
        return sign ? -v : v;
    }
    return __uint_as_float(sign | (exponent + 127 - BIAS) << 23 | mantissa << (23 - MANTISSA));
}

// The nearest code, ties to the even one; what exceeds the range becomes NaN or infinity.
template <int MANTISSA, int BIAS, bool INFINITY_> __device__ __noinline__ u8 encode_f8(double v) {
    u8 sign = __double2hiint(v) < 0 ? 0x80 : 0;
    if (v != v) return sign | 0x7f;
    double m = fabs(v);
    int largest = INFINITY_ ? 0x7b : 0x7e, overflow = INFINITY_ ? 0x7c : 0x7f;
    int low = 0, high = largest;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if ((double)decode_f8<MANTISSA, BIAS, INFINITY_>(middle) <= m) low = middle;
        else high = middle - 1;
    }
    double below = decode_f8<MANTISSA, BIAS, INFINITY_>(low);
    if (low == largest) {
        double step = below - decode_f8<MANTISSA, BIAS, INFINITY_>(low - 1);
        return sign | (m < below + step / 2 ? low : overflow);
    }
    double above = decode_f8<MANTISSA, BIAS, INFINITY_>(low + 1);
    if (m - below < above - m) return sign | low;
    if (m - below > above - m) return sign | (low + 1);
    return sign | (low + (low & 1));
}

DEVICE bool is_float(int type) { return type >= F8E4M3; }

DEVICE float load_float(const void* p, int type, u64 i) {
    switch (type) {
    case F8E4M3: return decode_f8<3, 7, false>(((const u8*)p)[i]);
    case F8E5M2: return decode_f8<2, 15, true>(((const u8*)p)[i]);
    case F16: return to_float(((const f16*)p)[i]);
    case BF16: return to_float(((const bf16*)p)[i]);
    case F32: return ((const float*)p)[i];
    default: return (float)((const double*)p)[i];
    }
}
DEVICE double load_double(const void* p, int type, u64 i) {
    return type == F64 ? ((const double*)p)[i] : (double)load_float(p, type, i);
}
__device__ __noinline__ i64 load_int_of(const void* p, int type, u64 i) {
    switch (type) {
    case BOOL:
    case U8: return ((const u8*)p)[i];
    case U16: return ((const u16*)p)[i];
    case U32: return ((const u32*)p)[i];
    case I8: return ((const i8*)p)[i];
    case I16: return ((const short*)p)[i];
    case I32: return ((const int*)p)[i];
    default: return ((const i64*)p)[i];
    }
}
DEVICE i64 load_int(const void* p, int type, u64 i) { return type == I32 ? ((const int*)p)[i] : load_int_of(p, type, i); }

// The floats that models compute with.
DEVICE float load_main(const void* p, int type, u64 i) {
    return type == BF16 ? to_float(((const bf16*)p)[i]) : type == F32 ? ((const float*)p)[i] : to_float(((const f16*)p)[i]);
}
DEVICE void store_main(void* p, int type, u64 i, float v) {
    if (type == BF16) ((bf16*)p)[i] = from_float<bf16>(v);
    else if (type == F32) ((float*)p)[i] = v;
    else ((f16*)p)[i] = from_float<f16>(v);
}
DEVICE void store_float(void* p, int type, u64 i, float v) {
    switch (type) {
    case F8E4M3: ((u8*)p)[i] = encode_f8<3, 7, false>(v); break;
    case F8E5M2: ((u8*)p)[i] = encode_f8<2, 15, true>(v); break;
    case F16: ((f16*)p)[i] = from_float<f16>(v); break;
    case BF16: ((bf16*)p)[i] = from_float<bf16>(v); break;
    case F32: ((float*)p)[i] = v; break;
    default: ((double*)p)[i] = v; break;
    }
}
DEVICE void store_double(void* p, int type, u64 i, double v) {
    switch (type) {
    case F8E4M3: ((u8*)p)[i] = encode_f8<3, 7, false>(v); break;
    case F8E5M2: ((u8*)p)[i] = encode_f8<2, 15, true>(v); break;
    case F64: ((double*)p)[i] = v; break;
    default: store_float(p, type, i, (float)v);
    }
}
DEVICE void store_int(void* p, int type, u64 i, i64 v) {
    switch (type) {
    case BOOL: ((u8*)p)[i] = v != 0; break;
    case U8:
    case I8: ((u8*)p)[i] = (u8)v; break;
    case U16:
    case I16: ((u16*)p)[i] = (u16)v; break;
    case U32:
    case I32: ((u32*)p)[i] = (u32)v; break;
    default: ((i64*)p)[i] = v;
    }
}

DEVICE int size_of(int type) {
    switch (type) {
    case BOOL:
    case U8:
    case I8:
    case F8E4M3:
    case F8E5M2: return 1;
    case U16:
    case I16:
    case F16:
    case BF16: return 2;
    case U32:
    case I32:
    case F32: return 4;
    default: return 8;
    }
}

DEVICE float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}
DEVICE float warp_max(float v) {
#pragma unroll
    for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, o));
    return v;
}
// The sum over a block of up to 1024 threads, the same in every thread. `shared` holds 32 floats.
DEVICE float block_sum(float v, float* shared) {
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float all = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? shared[threadIdx.x % 32] : 0.f;
    return warp_sum(all);
}
DEVICE float block_max(float v, float* shared) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    float all = threadIdx.x % 32 < (blockDim.x + 31) / 32 ? shared[threadIdx.x % 32] : -INF;
    return warp_max(all);
}

// The squares of eight 16-bit numbers, added to a sum one after the other.
template <class T> DEVICE float add_squares(uint4 eight, float sum) {
    const T* v = (const T*)&eight;
#pragma unroll
    for (int e = 0; e < 8; e++) sum = fmaf(to_float(v[e]), to_float(v[e]), sum);
    return sum;
}
// Eight 16-bit numbers times a scale and the weights of a norm from the `i`th on, if there are any.
template <class T> DEVICE uint4 normed(uint4 eight, float scale, const void* weight, u32 type, u32 i) {
    T* v = (T*)&eight;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        float y = to_float(v[e]) * scale;
        if (weight) y *= load_main(weight, type, i + e);
        v[e] = from_float<T>(y);
    }
    return eight;
}

// Lets the next kernel come to the device and start what does not depend on this one. What it does after it has waited
// still comes after everything that this one does.
DEVICE void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// A kernel may start while the ones before are still running: waits until everything before is written.
DEVICE void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    let_next_start();
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
