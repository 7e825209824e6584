// What every product with a stored weight is told.
#pragma once
#include "weight.cuh"

struct Linear {
    const void* x;
    void* y;
    // Added to the result after it was rounded, if not null; of the result's type.
    const void* residual;
    const void* bias;
    // Which matrix of a stack each row takes, if not null: one row of the grid for each.
    const void* ids;
    Weight w;
    i64 x_stride, y_stride, residual_stride;
    u32 m, n, k;
    u32 x_type, bias_type, id_type;
    // Matrices of the stack, choices of a token, and whether they share its row.
    u32 experts, choices, shared;
    // Not null: rows of `x` are normed by their root mean square and this weight before they are multiplied.
    const void* norm;
    u32 norm_type;
    float eps;
    // Whether rows of `x` are brought to shared memory first.
    u32 staged;
    // Not zero: the rows from `n` on are factors of the activated rows before, and this less one is the activation.
    u32 gated;
};

DEVICE float gate(u32 kind, float v) {
    switch (kind) {
    case 0: return v > 0 ? v : 0.f;
    case 1: return v > 0 ? v * v : 0.f;
    case 2: return v / (1.f + __expf(-v));
    case 3: return v * 0.5f * (erff(v * 0.70710678118654752440f) + 1.f);
    case 4: return v * 0.5f * (tanhf((v + v * v * v * 0.044715f) * 0.79788456080286535588f) + 1.f);
    case 5: return v / (1.f + expf(-1.702f * v));
    default: return fmaxf(v, 0.f) + log1pf(expf(-fabsf(v)));
    }
}

// The number of the matrix that a row takes, and the row of `x` it multiplies.
DEVICE void chosen(const Linear& p, u32 row, u64& matrix, u64& from) {
    i64 id = load_int(p.ids, p.id_type, row);
    matrix = id < 0 ? 0 : id >= p.experts ? p.experts - 1 : id;
    from = p.shared ? row / p.choices : row;
}
