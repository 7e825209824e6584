// Products of many rows of 16-bit numbers on Hopper: tiles of both sides come to shared memory a few steps ahead and go
// from there to the tensor cores, 64 rows of `x` for each group of four warps. On other architectures the kernels are
// empty and never started.
#include "linear.cuh"

#if __CUDA_ARCH_FEAT_SM90_ALL

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Rows of 64 elements, eight of them a pattern of 1024 bytes whose pieces of 16 are exchanged by the row's number.
DEVICE u64 descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

DEVICE void copy16(u32 to, const void* from, bool inside) {
    u32 bytes = inside ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}

// 64 rows by as many columns as twice the numbers that a thread holds.
#define OPERANDS64 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
#define RESULTS64 \
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),  \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
        "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
template <bool BRAIN> DEVICE void multiply(float (&d)[32], u64 a, u64 b) {
    if (BRAIN) asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " OPERANDS64 : RESULTS64 : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " OPERANDS64 : RESULTS64 : "l"(a), "l"(b));
}
#define OPERANDS128 \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, 0, 0;"
#define RESULTS128 \
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),  \
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]),  \
        "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),  \
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]),  \
        "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),  \
        "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),  \
        "+f"(d[63])
template <bool BRAIN> DEVICE void multiply(float (&d)[64], u64 a, u64 b) {
    if (BRAIN) asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " OPERANDS128 : RESULTS128 : "l"(a), "l"(b));
    else asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " OPERANDS128 : RESULTS128 : "l"(a), "l"(b));
}

// GROUPS times 64 rows of `x` by COLS rows of the weight, 64 or 128.
template <bool BRAIN, class T, int GROUPS, int COLS, int STAGES> DEVICE void gemm(const Linear& p) {
    const int ROWS = 64 * GROUPS, THREADS = 128 * GROUPS, STAGE = (ROWS + COLS) * 128;
    extern __shared__ __align__(1024) u8 memory[];
    u32 base = (shared_address(memory) + 1023) & ~1023u;
    u32 group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    u64 m0 = (u64)blockIdx.x * ROWS, n0 = (u64)blockIdx.y * COLS;
    const T* x = (const T*)p.x;
    const T* w = (const T*)p.w.codes;
    u32 tiles = (p.k + 63) / 64;
    auto load_weights = [&](u32 tile, u32 stage) {
#pragma unroll
        for (int i = 0; i < COLS * 8 / THREADS; i++) {
            u32 piece = threadIdx.x + i * THREADS, row = piece / 8, c = piece % 8, k = tile * 64 + c * 8;
            bool inside = n0 + row < p.n && k < p.k;
            copy16(base + stage * STAGE + ROWS * 128 + row * 128 + ((c ^ row % 8) * 16), inside ? w + (n0 + row) * p.k + k : w, inside);
        }
    };
    auto load_rows = [&](u32 tile, u32 stage) {
#pragma unroll
        for (int i = 0; i < ROWS * 8 / THREADS; i++) {
            u32 piece = threadIdx.x + i * THREADS, row = piece / 8, c = piece % 8, k = tile * 64 + c * 8;
            bool inside = m0 + row < p.m && k < p.k;
            copy16(base + stage * STAGE + row * 128 + ((c ^ row % 8) * 16), inside ? x + (m0 + row) * p.x_stride + k : x, inside);
        }
    };
    float d[COLS / 2] = {};
    // Weights do not depend on what runs before.
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        if (s < tiles) load_weights(s, s);
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < tiles) load_rows(s, s);
        asm volatile("cp.async.commit_group;");
    }
    for (u32 tile = 0; tile < tiles; tile++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
        u32 stage = tile % STAGES, at = base + stage * STAGE;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < 4; k++) {
            multiply<BRAIN>(d, descriptor(at + group * 64 * 128 + k * 32), descriptor(at + ROWS * 128 + k * 32));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        u32 next = tile + STAGES - 1;
        if (next < tiles) load_weights(next, next % STAGES), load_rows(next, next % STAGES);
        asm volatile("cp.async.commit_group;");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    let_next_start();
#pragma unroll
        for (int i = 0; i < COLS / 2; i += 2) {
            u64 m = m0 + group * 64 + warp * 16 + lane / 4 + (i / 2 % 2) * 8, n = n0 + i / 4 * 8 + lane % 4 * 2;
            if (m >= p.m) continue;
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (n + e >= p.n) continue;
                float v = to_float(from_float<T>(d[i + e]));
                if (p.bias) v = to_float(from_float<T>(v + to_float(from_float<T>(load_main(p.bias, p.bias_type, n + e)))));
                if (p.residual) v = v + to_float(((const T*)p.residual)[m * p.residual_stride + n + e]);
                ((T*)p.y)[m * p.y_stride + n + e] = from_float<T>(v);
            }
        }
}
#define GEMM(name, BRAIN, T, GROUPS, COLS, STAGES, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(128 * GROUPS, BLOCKS) gemm_##name(const __grid_constant__ Linear p) { gemm<BRAIN, T, GROUPS, COLS, STAGES>(p); }
#else
#define GEMM(name, BRAIN, T, GROUPS, COLS, STAGES, BLOCKS) \
    extern "C" __global__ void gemm_##name(const __grid_constant__ Linear p) {}
#endif

GEMM(bf16_64, true, bf16, 1, 64, 6, 2)
GEMM(bf16_128, true, bf16, 2, 64, 4, 2)
GEMM(bf16_many, true, bf16, 2, 128, 3, 2)
GEMM(f16_64, false, f16, 1, 64, 6, 2)
GEMM(f16_128, false, f16, 2, 64, 4, 2)
GEMM(f16_many, false, f16, 2, 128, 3, 2)
