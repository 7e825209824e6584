// Copies between any two strided places, and what is a copy with indices: gathers, scatters, fills.
#include "base.cuh"

struct Copy {
    void* to;
    const void* from;
    // If not null, where the part begins, one number for each axis, clamped to the limits.
    const int* starts;
    u32 count;
    u32 rank;
    // Bytes of an element: 1, 2, 4, 8 or 16.
    u32 size;
    // Whether the starts belong to the destination.
    u32 starts_in_destination;
    u32 shape[8];
    i64 to_strides[8];
    i64 from_strides[8];
    i64 start_strides[8];
    u32 limits[8];
    u32 start_rank;
};

template <class T> DEVICE void copy(const Copy& p) {
    wait_for_previous();
    i64 start = 0;
    if (p.starts)
        for (u32 d = 0; d < p.start_rank; d++) {
            i64 s = p.starts[d];
            start += (s < 0 ? 0 : s > p.limits[d] ? p.limits[d] : s) * p.start_strides[d];
        }
    T* to = (T*)p.to + (p.starts_in_destination ? start : 0);
    const T* from = (const T*)p.from + (p.starts_in_destination ? 0 : start);
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < p.count; at += (u64)gridDim.x * blockDim.x) {
        u32 rest = (u32)at;
        i64 a = 0, b = 0;
        for (int d = p.rank - 1; d > 0; d--) {
            u32 q = rest / p.shape[d], r = rest - q * p.shape[d];
            a += r * p.to_strides[d];
            b += r * p.from_strides[d];
            rest = q;
        }
        to[a + rest * p.to_strides[0]] = from[b + rest * p.from_strides[0]];
    }
}

KERNEL copy_strided(const __grid_constant__ Copy p) {
    switch (p.size) {
    case 1: copy<u8>(p); break;
    case 2: copy<u16>(p); break;
    case 4: copy<u32>(p); break;
    case 8: copy<u64>(p); break;
    default: copy<uint4>(p);
    }
}

// Every element the scalar at `value`, or the number given if that is null.
KERNEL fill(u8* to, const u8* value, u64 bits, u32 count, u32 size) {
    wait_for_previous();
    u64 v = 0;
    if (value)
        for (u32 b = 0; b < size; b++) v |= (u64)value[b] << (8 * b);
    else v = bits;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        switch (size) {
        case 1: to[i] = (u8)v; break;
        case 2: ((u16*)to)[i] = (u16)v; break;
        case 4: ((u32*)to)[i] = (u32)v; break;
        default: ((u64*)to)[i] = v;
        }
    }
}

KERNEL iota(void* to, u32 type, u32 count, u32 inner, u32 n) {
    wait_for_previous();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        u32 v = (u32)(i / inner) % n;
        if (is_float(type)) store_double(to, type, i, v);
        else store_int(to, type, i, v);
    }
}

DEVICE i64 clamped(i64 i, i64 n) { return i < 0 ? 0 : i >= n ? n - 1 : i; }

DEVICE void move(u8* to, const u8* from, u32 size) {
    switch (size) {
    case 1: *to = *from; break;
    case 2: *(u16*)to = *(const u16*)from; break;
    case 4: *(u32*)to = *(const u32*)from; break;
    case 8: *(u64*)to = *(const u64*)from; break;
    default: *(uint4*)to = *(const uint4*)from;
    }
}

struct Gather {
    u8* to;
    const u8* from;
    const void* indices;
    u32 index_type;
    u32 count;
    // How many indices, the length of the axis, the elements after it.
    u32 taken, n, inner;
    u32 size;
};

KERNEL gather(const __grid_constant__ Gather p) {
    wait_for_previous();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (u64)gridDim.x * blockDim.x) {
        u32 at = (u32)i, j = at % p.inner, rest = at / p.inner;
        u32 k = rest % p.taken, outer = rest / p.taken;
        i64 index = clamped(load_int(p.indices, p.index_type, k), p.n);
        move(p.to + i * p.size, p.from + (((u64)outer * p.n + index) * p.inner + j) * p.size, p.size);
    }
}

struct TakeAlong {
    u8* to;
    const u8* from;
    const void* indices;
    u32 index_type;
    u32 count;
    u32 rank, axis, n;
    u32 size;
    u32 shape[8];
    i64 strides[8];
};

KERNEL take_along(const __grid_constant__ TakeAlong p) {
    wait_for_previous();
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (u64)gridDim.x * blockDim.x) {
        u32 rest = (u32)i;
        i64 place = 0;
        for (int d = p.rank - 1; d >= 0; d--) {
            u32 q = rest / p.shape[d], r = rest - q * p.shape[d];
            i64 index = d == (int)p.axis ? clamped(load_int(p.indices, p.index_type, i), p.n) : r;
            place += index * p.strides[d];
            rest = q;
        }
        move(p.to + i * p.size, p.from + place * p.size, p.size);
    }
}

struct Scatter {
    void* to;
    const void* indices;
    const void* updates;
    u32 index_type, type;
    // Rows of the destination, elements of a row, how many updates.
    u32 rows, row, n;
    u32 add;
};

// One thread for each element of a row goes through the updates in order, so the later one wins and sums are taken in
// the order of the updates.
KERNEL scatter(const __grid_constant__ Scatter p) {
    wait_for_previous();
    u32 size = size_of(p.type);
    for (u64 j = (u64)blockIdx.x * blockDim.x + threadIdx.x; j < p.row; j += (u64)gridDim.x * blockDim.x)
        for (u32 u = 0; u < p.n; u++) {
            i64 index = load_int(p.indices, p.index_type, u);
            if (index < 0 || index >= p.rows) continue;
            u64 to = (u64)index * p.row + j, from = (u64)u * p.row + j;
            if (!p.add) move((u8*)p.to + to * size, (const u8*)p.updates + from * size, size);
            else if (is_float(p.type))
                store_double(p.to, p.type, to, load_double(p.to, p.type, to) + load_double(p.updates, p.type, from));
            else store_int(p.to, p.type, to, load_int(p.to, p.type, to) + load_int(p.updates, p.type, from));
        }
}
