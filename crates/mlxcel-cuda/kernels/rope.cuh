// Rotations, alone or together with what is written to the cache.
#pragma once
#include "base.cuh"

struct Rope {
    const void* x;
    void* y;
    const void* positions;
    const float* frequencies;
    i64 token_stride;
    // Of the frequencies: zero if all tokens share them.
    i64 frequency_stride;
    u32 tokens, heads, width, half;
    u32 type, position_type;
    u32 interleaved;
    float scale;
};

// The angle of pair `j` of a token, as what both elements are multiplied by.
DEVICE void angle(const Rope& p, u32 t, u32 j, float position, float& sine, float& cosine) {
    sincosf(position * p.frequencies[t * p.frequency_stride + j], &sine, &cosine);
    sine *= p.scale, cosine *= p.scale;
}

// The two elements of pair `j` of a head, turned by an angle.
DEVICE void turned(const Rope& p, u32 t, u32 head, u32 j, float sine, float cosine, u32& first, u32& second, float& a, float& b) {
    first = p.interleaved ? 2 * j : j, second = p.interleaved ? 2 * j + 1 : j + p.half;
    u64 from = (u64)t * p.token_stride + head * p.width;
    float u = load_main(p.x, p.type, from + first), v = load_main(p.x, p.type, from + second);
    a = u * cosine - v * sine, b = v * cosine + u * sine;
}

// The two elements of pair `j` of a head, rotated.
DEVICE void rotated(const Rope& p, u32 t, u32 head, u32 j, float position, u32& first, u32& second, float& a, float& b) {
    float sine, cosine;
    angle(p, t, j, position, sine, cosine);
    turned(p, t, head, j, sine, cosine, first, second, a, b);
}

// New keys and values, and where in the cache they go.
struct Write {
    void* k_cache;
    void* v_cache;
    const void* k;
    const void* v;
    const void* slots;
    i64 k_stride, v_stride;
    u32 type, k_type, v_type, slot_type;
    u32 k_row, v_row;
    u64 slot_count;
};

struct RopeWrite {
    Rope q, k;
    Write w;
};
