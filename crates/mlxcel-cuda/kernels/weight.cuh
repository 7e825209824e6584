// Stored weights: plain numbers and every packed format, decoded eight elements at a time.
#pragma once
#include "base.cuh"

enum { PLAIN, AFFINE, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K, IQ4NL, IQ4XS, IQ2XXS, IQ3XXS, GGUF_MXFP4 };

struct Weight {
    // Codes or numbers, scales, biases.
    const u8* codes;
    const u8* scales;
    const u8* biases;
    // 256 times eight magnitudes of IQ2_XXS, then 256 times four of IQ3_XXS.
    const u8* tables;
    u32 format;
    // The type of plain numbers, or of scales.
    u32 type;
    u32 bits, group;
    u32 cols;
    u32 unused;
};

DEVICE float half_at(const u8* p) {
    f16 h;
    h.bits = (u16)(p[0] | p[1] << 8);
    return to_float(h);
}

// Products and sums that are not joined, so that every engine decodes to the same numbers.
DEVICE float scaled(float scale, float code, float bias) { return __fadd_rn(__fmul_rn(scale, code), bias); }

// Twice an E2M1 code.
DEVICE float e2m1_doubled(u32 code) {
    u32 m = code & 7;
    float v = m < 2 ? (float)m : __uint_as_float((m << 22) + (127u << 23));
    return code & 8 ? -v : v;
}
// Half of 2^(code - 127).
DEVICE float half_scale(u32 code) { return __uint_as_float(code < 2 ? 0x00200000u << code : (code - 1) << 23); }

DEVICE float iq4_step(u32 code) {
    const u64 low = 0xf6eaddcfbfad9881ull, high = 0x7159453526190d01ull;
    return (float)(i8)((code < 8 ? low >> (8 * code) : high >> (8 * (code - 8))) & 0xff);
}

// Scale and minimum `i` of Q4_K and Q5_K.
DEVICE void k_scale(const u8* packed, int i, u32& scale, u32& min) {
    if (i < 4) scale = packed[i] & 63, min = packed[i + 4] & 63;
    else {
        scale = (packed[i + 4] & 15) | (packed[i - 4] >> 6) << 4;
        min = (packed[i + 4] >> 4) | (packed[i] >> 6) << 4;
    }
}

DEVICE void signed_eight(float scale, const u8* grid, u32 field, float* out) {
    u32 signs = field | (__popc(field) & 1) << 7;
    for (int i = 0; i < 8; i++) {
        float v = scale * (float)grid[i];
        out[i] = signs >> i & 1 ? -v : v;
    }
}

// Elements `k` to `k + 7` of a row, `k` a multiple of eight.
DEVICE void decode8(const Weight& w, u64 row, u32 k, float* out) {
    u64 at = row * w.cols + k;
    if (w.format == PLAIN) {
        if (w.type == BF16 && (at & 7) == 0 && k + 8 <= w.cols) {
            uint4 v = *(const uint4*)(w.codes + at * 2);
            u32 words[4] = {v.x, v.y, v.z, v.w};
            for (int i = 0; i < 4; i++) out[2 * i] = __uint_as_float(words[i] << 16), out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000);
            return;
        }
        for (int i = 0; i < 8; i++) out[i] = k + i < w.cols ? load_float(w.codes, w.type, at + i) : 0.f;
        return;
    }
    if (w.format == AFFINE) {
        const u8* p = w.codes + at * w.bits / 8;
        u64 word = 0;
        for (u32 b = 0; b < w.bits; b++) word |= (u64)p[b] << (8 * b);
        float scale = load_main(w.scales, w.type, at / w.group), bias = load_main(w.biases, w.type, at / w.group);
        for (int i = 0; i < 8; i++) out[i] = scaled(scale, (float)(word >> (i * w.bits) & ((1u << w.bits) - 1)), bias);
        return;
    }
    if (w.format == MXFP4) {
        u32 codes = *(const u32*)(w.codes + at / 2), code = w.scales[at / 32];
        float scale = code == 255 ? NAN_F : half_scale(code);
        for (int i = 0; i < 8; i++) out[i] = scale * e2m1_doubled(codes >> (4 * i) & 15);
        return;
    }
    u32 o = k % 32;
    bool high = o >= 16;
    if (w.format <= Q8_0 || w.format == IQ4NL || w.format == GGUF_MXFP4) {
        const u8 bytes[] = {18, 20, 22, 24, 34};
        u32 size = w.format == IQ4NL ? 18 : w.format == GGUF_MXFP4 ? 17 : bytes[w.format - Q4_0];
        const u8* b = w.codes + at / 32 * size;
        float d = w.format == GGUF_MXFP4 ? half_scale(b[0]) : half_at(b);
        float m = w.format == Q4_1 || w.format == Q5_1 ? half_at(b + 2) : 0.f;
        const u8* codes = b + (w.format == Q4_0 || w.format == IQ4NL || w.format == Q8_0 ? 2 : w.format == Q4_1 ? 4 : w.format == Q5_0 ? 6 : w.format == Q5_1 ? 8 : 1);
        const u8* fifth = b + (w.format == Q5_0 ? 2 : 4);
        for (int i = 0; i < 8; i++) {
            u32 nibble = high ? codes[o - 16 + i] >> 4 : codes[o % 16 + i] & 15;
            u32 fifth_bit = (fifth[o / 8] >> i & 1) << 4;
            switch (w.format) {
            case Q4_0: out[i] = d * ((int)nibble - 8); break;
            case Q4_1: out[i] = scaled(d, nibble, m); break;
            case Q5_0: out[i] = d * ((int)(nibble | fifth_bit) - 16); break;
            case Q5_1: out[i] = scaled(d, nibble | fifth_bit, m); break;
            case Q8_0: out[i] = d * (i8)codes[o + i]; break;
            case IQ4NL: out[i] = d * iq4_step(nibble); break;
            default: out[i] = d * e2m1_doubled(nibble);
            }
        }
        return;
    }
    u32 inner = (u32)(at % 256), pair = inner / 32, side = high ? 1 : 0;
    u64 block = at / 256;
    switch (w.format) {
    case Q2K: {
        const u8* b = w.codes + block * 84;
        float d = half_at(b + 80), dmin = half_at(b + 82);
        u32 packed = b[pair * 2 + side];
        float scale = d * (packed & 15), min = dmin * (packed >> 4);
        const u8* codes = b + 16 + pair / 4 * 32 + o;
        for (int i = 0; i < 8; i++) out[i] = scaled(scale, codes[i] >> (pair % 4 * 2) & 3, -min);
        break;
    }
    case Q3K: {
        const u8* b = w.codes + block * 110;
        const u8* packed = b + 96;
        u32 sub = pair * 2 + side, half = sub / 8, shift = sub % 8 / 2 * 2, in_side = o % 16;
        u32 low = packed[sub % 8] >> (sub / 8 * 4) & 15, top = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
        float scale = half_at(b + 108) * ((int)(low | top << 4) - 32);
        const u8 *hi = b + side * 16 + in_side, *lo = b + 32 + half * 32 + side * 16 + in_side;
        for (int i = 0; i < 8; i++) out[i] = scale * ((int)((lo[i] >> shift & 3) | (hi[i] >> (sub / 2) & 1) << 2) - 4);
        break;
    }
    case Q4K:
    case Q5K: {
        bool five = w.format == Q5K;
        const u8* b = w.codes + block * (five ? 176 : 144);
        u32 scale, min;
        k_scale(b + 4, pair, scale, min);
        float s = half_at(b) * scale, m = half_at(b + 2) * min;
        const u8* codes = b + (five ? 48 : 16) + pair / 2 * 32 + o;
        for (int i = 0; i < 8; i++) {
            u32 code = codes[i] >> (pair % 2 * 4) & 15;
            if (five) code |= (b[16 + o + i] >> pair & 1) << 4;
            out[i] = scaled(s, code, -m);
        }
        break;
    }
    case Q6K: {
        const u8* b = w.codes + block * 210;
        u32 half = pair / 4, quarter = pair % 4;
        float scale = half_at(b + 208) * (i8)b[192 + pair * 2 + side];
        const u8 *lo = b + half * 64 + quarter % 2 * 32 + o, *hi = b + 128 + half * 32 + o;
        for (int i = 0; i < 8; i++) out[i] = scale * ((int)((lo[i] >> (quarter / 2 * 4) & 15) | (hi[i] >> (quarter * 2) & 3) << 4) - 32);
        break;
    }
    case IQ4XS: {
        const u8* b = w.codes + block * 136;
        u32 top = b[2] | b[3] << 8;
        u32 low = b[4 + pair / 2] >> (pair % 2 * 4) & 15;
        float scale = half_at(b) * ((int)(low | (top >> (pair * 2) & 3) << 4) - 32);
        const u8* codes = b + 8 + pair * 16 + o % 16;
        for (int i = 0; i < 8; i++) out[i] = scale * iq4_step(high ? codes[i] >> 4 : codes[i] & 15);
        break;
    }
    case IQ2XXS: {
        const u8* b = w.codes + block * 66;
        const u8* p = b + 2 + pair * 8;
        u32 word = p[4] | p[5] << 8 | p[6] << 16 | (u32)p[7] << 24;
        float scale = __fmul_rn(__fmul_rn(half_at(b), 0.5f + (float)(word >> 28)), 0.25f);
        signed_eight(scale, w.tables + p[o / 8] * 8, word >> (o / 8 * 7) & 127, out);
        break;
    }
    default: {
        const u8* b = w.codes + block * 98;
        const u8* p = b + 66 + pair * 4;
        u32 word = p[0] | p[1] << 8 | p[2] << 16 | (u32)p[3] << 24;
        float scale = __fmul_rn(__fmul_rn(half_at(b), 0.5f + (float)(word >> 28)), 0.5f);
        const u8* index = b + 2 + (pair * 4 + o / 8) * 2;
        u8 grid[8];
        for (int i = 0; i < 4; i++) grid[i] = w.tables[2048 + index[0] * 4 + i], grid[4 + i] = w.tables[2048 + index[1] * 4 + i];
        signed_eight(scale, grid, word >> (o / 8 * 7) & 127, out);
    }
    }
}
