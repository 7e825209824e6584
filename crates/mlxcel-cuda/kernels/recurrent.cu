// Recurrent layers: one thread for each channel goes through the tokens of the step in order; each token reads and writes
// the state of its slot.
#include "base.cuh"

struct Recurrent {
    const void* x;
    const void* dt;
    const void* a;
    const void* b;
    const void* c;
    const void* d;
    void* state;
    void* y;
    const void* positions;
    const void* slots;
    u32 type, position_type, slot_type;
    u32 tokens, channels, width;
    u32 slot_count;
};

DEVICE i64 slot_of(const Recurrent& p, u32 t) { return load_int(p.slots, p.slot_type, t); }

// Reading a slot clamps; writing to one that does not exist is dropped.
DEVICE u64 read_slot(const Recurrent& p, i64 s) { return s < 0 ? 0 : s >= p.slot_count ? p.slot_count - 1 : s; }

// One warp for each channel, lanes along the state.
KERNEL selective_scan(const __grid_constant__ Recurrent p) {
    wait_for_previous();
    u32 lane = threadIdx.x % 32, ch = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (ch >= p.channels) return;
    for (u32 t = 0; t < p.tokens; t++) {
        i64 slot = slot_of(p, t);
        bool start = load_int(p.positions, p.position_type, t) == 0, kept = slot >= 0 && slot < p.slot_count;
        u64 state = (read_slot(p, slot) * p.channels + ch) * p.width;
        float x = load_main(p.x, p.type, (u64)t * p.channels + ch), dt = load_main(p.dt, p.type, (u64)t * p.channels + ch);
        float y = 0.f;
        for (u32 n = lane; n < p.width; n += 32) {
            float h = start ? 0.f : load_main(p.state, p.type, state + n);
            h = h * expf(dt * load_main(p.a, p.type, (u64)ch * p.width + n)) + dt * load_main(p.b, p.type, (u64)t * p.width + n) * x;
            if (kept) store_main(p.state, p.type, state + n, h);
            y += h * load_main(p.c, p.type, (u64)t * p.width + n);
        }
        y = warp_sum(y);
        if (lane == 0) store_main(p.y, p.type, (u64)t * p.channels + ch, y + load_main(p.d, p.type, ch) * x);
    }
}

// `width` is the length of the kernel; `a` the kernel, `b` the bias.
KERNEL causal_conv(const __grid_constant__ Recurrent p) {
    wait_for_previous();
    u32 ch = blockIdx.x * blockDim.x + threadIdx.x;
    if (ch >= p.channels) return;
    u32 past = p.width - 1;
    for (u32 t = 0; t < p.tokens; t++) {
        i64 slot = slot_of(p, t);
        bool start = load_int(p.positions, p.position_type, t) == 0, kept = slot >= 0 && slot < p.slot_count;
        u64 state = (read_slot(p, slot) * p.channels + ch) * past;
        float x = load_main(p.x, p.type, (u64)t * p.channels + ch), y = 0.f;
        for (u32 i = 0; i < past; i++) {
            float v = start ? 0.f : load_main(p.state, p.type, state + i);
            y += v * load_main(p.a, p.type, (u64)ch * p.width + i);
            if (kept && i > 0) store_main(p.state, p.type, state + i - 1, v);
        }
        if (kept && past > 0) store_main(p.state, p.type, state + past - 1, x);
        y += x * load_main(p.a, p.type, (u64)ch * p.width + past) + load_main(p.b, p.type, ch);
        store_main(p.y, p.type, (u64)t * p.channels + ch, y);
    }
}
