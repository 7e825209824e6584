// What attention over the paged cache is told.
#pragma once
#include "base.cuh"

struct Paged {
    const void* q;
    void* out;
    const void* k_cache;
    const void* v_cache;
    const void* positions;
    const void* seq_ids;
    const void* table;
    const void* sinks;
    // What each chunk gives: for each token, head and chunk the largest score, the sum, and the weighted values.
    float* partial;
    i64 q_stride;
    u32 q_type, position_type, seq_type, table_type, sink_type;
    u32 tokens, heads, kv_heads, width, value_width;
    // Elements from one value to that of the next head.
    u32 value_stride;
    u32 block, pages, sequences;
    u32 window, splits;
    float scale, softcap;
    u32 has_sinks;
    // Whether positions, sequences and the table are there before the kernels before have ended.
    u32 early;
};
