// The kernel of shim/decode.cuh on threads of the processor, one for each thread of a block, against attention in doubles.
// `kernel_body.h` is its text.
#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#define __shared__ static

using std::max;
using std::min;

struct uint4 {
  uint32_t x, y, z, w;
};

struct Place {
  int x, y;
};

thread_local Place threadIdx, blockIdx;
float exchanged[256];
std::vector<std::unique_ptr<std::barrier<>>> warps;
std::unique_ptr<std::barrier<>> block;

float __shfl_xor_sync(unsigned, float value, int by) {
  int me = threadIdx.x;
  exchanged[me] = value;
  warps[me / 32]->arrive_and_wait();
  float other = exchanged[me ^ by];
  warps[me / 32]->arrive_and_wait();
  return other;
}

void __syncthreads() { block->arrive_and_wait(); }

float __int_as_float(int bits) { return std::bit_cast<float>(bits); }

// bf16, as CUDA's type converts.
struct Half {
  uint16_t bits = 0;
  Half() = default;
  Half(float x) : bits((std::bit_cast<uint32_t>(x) + 0x7fff + (std::bit_cast<uint32_t>(x) >> 16 & 1)) >> 16) {}
  operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

constexpr int BLOCK = 16, PAGES = 9, SEQUENCES = 4, BLOCKS = 60;

template <class T, class C, int D, int HEADS, int KV_HEADS, int GROUP, int WARPS, int WINDOW, int CAP, bool SINKS>
struct Case {
  static constexpr int SCALE = std::bit_cast<int>(0.125f);

  static void kernel(
      const T* q, const C* keys, const C* values, const int* table, const int* table_shape, const int* positions,
      const int* sequences, const float* sinks, T* out) {
#include "kernel_body.h"
  }

  static bool agrees(double allowed) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<int> positions{0, 37, 143, 7, 100, -1, 150, 9}, sequences{2, 0, 3, -1, 1, 1, 2, SEQUENCES}, order(BLOCKS), shape{SEQUENCES, PAGES};
    for (int i = 0; i < BLOCKS; i++) order[i] = i;
    std::shuffle(order.begin(), order.end(), random);
    int tokens = static_cast<int>(positions.size());
    std::vector<T> q(tokens * HEADS * D), out(q.size(), T(7.0f));
    std::vector<C> keys(BLOCKS * BLOCK * KV_HEADS * D), values(keys.size());
    std::vector<float> sinks(HEADS);
    for (auto& x : q) x = T(2 * normal(random));
    for (auto& x : keys) x = C(normal(random));
    for (auto& x : values) x = C(normal(random));
    for (auto& x : sinks) x = normal(random);

    warps.clear();
    for (int w = 0; w < WARPS; w++) warps.push_back(std::make_unique<std::barrier<>>(32));
    for (int token = 0; token < tokens; token++) {
      for (int group = 0; group < HEADS / GROUP; group++) {
        block = std::make_unique<std::barrier<>>(WARPS * 32);
        std::vector<std::thread> threads;
        for (int t = 0; t < WARPS * 32; t++)
          threads.emplace_back([&, t] {
            threadIdx = {t, 0};
            blockIdx = {token, group};
            kernel(q.data(), keys.data(), values.data(), order.data(), shape.data(), positions.data(), sequences.data(),
                   sinks.data(), out.data());
          });
        for (auto& t : threads) t.join();
      }
    }

    double worst = 0, cap = __int_as_float(CAP);
    for (int token = 0; token < tokens; token++) {
      for (int head = 0; head < HEADS; head++) {
        std::vector<double> expected(D, 0.0);
        double sum = 0;
        bool is_stray = sequences[token] < 0 || sequences[token] >= SEQUENCES;
        int after = is_stray ? 0 : positions[token] + 1;
        if (SINKS && !is_stray) sum = std::exp(double(sinks[head]));
        for (int at = WINDOW > 0 ? max(0, after - WINDOW) : 0; at < min(after, PAGES * BLOCK); at++) {
          int page = order[sequences[token] * PAGES + at / BLOCK];
          size_t row = ((size_t(page) * BLOCK + at % BLOCK) * KV_HEADS + head / (HEADS / KV_HEADS)) * D;
          double score = 0;
          for (int i = 0; i < D; i++) score += 0.125 * float(q[(token * HEADS + head) * D + i]) * float(keys[row + i]);
          if (CAP) score = std::tanh(score / cap) * cap;
          sum += std::exp(score);
          for (int i = 0; i < D; i++) expected[i] += std::exp(score) * float(values[row + i]);
        }
        for (int i = 0; i < D; i++) {
          double told = float(out[(token * HEADS + head) * D + i]);
          worst = std::max(worst, std::abs(told - (sum > 0 ? expected[i] / sum : 0.0)));
        }
      }
    }
    std::printf("rows of %d, heads %d of %d, %d warps, window %d, cap %g, sinks %d: off by %.1e\n", D, GROUP, HEADS, WARPS, WINDOW,
                cap, SINKS, worst);
    return worst <= allowed;
  }
};

int main() {
  constexpr int five = std::bit_cast<int>(5.0f);
  bool all = true;
  all &= Case<float, Half, 128, 8, 2, 4, 4, 0, 0, false>::agrees(5e-6);
  all &= Case<Half, Half, 80, 6, 2, 3, 2, 0, 0, true>::agrees(1.6e-2);
  all &= Case<float, Half, 8, 4, 2, 1, 8, 0, 0, false>::agrees(5e-6);
  all &= Case<float, float, 64, 4, 4, 1, 2, 33, 0, true>::agrees(5e-6);
  all &= Case<float, float, 256, 2, 1, 2, 2, 0, five, false>::agrees(5e-6);
  all &= Case<float, float, 16, 4, 1, 4, 8, 8, 0, false>::agrees(5e-6);
  return all ? 0 : 1;
}
