// Attention of single tokens to the pages of their sequences, for MLX's CUDA backend: its own kernels want the keys of each
// sequence side by side, which costs a copy of everything that is read, and none of them takes lengths that differ.
#pragma once

#include <bit>

#include "build.h"

namespace mlxcel {

struct Scores {
  double scale;
  std::optional<double> softcap;
  std::optional<array> sinks;
};

// Heads of a block: those that share a head of keys, or some of them, since a lane keeps its numbers of the query and of the sum
// for each.
inline int heads_of_block(const array& q, const array& keys) {
  int shared = q.shape(1) / keys.shape(2), heads = shared;
  int width = 16 / static_cast<int>(mx::size_of(keys.dtype())), own = (q.shape(2) / width + 31) / 32 * width;
  while (heads * own > 32 || shared % heads != 0) heads--;
  return heads;
}

// Whether tokens that see up to so many keys are the kernel's: rows are whole 16 bytes, constants positive, since they are a part of
// its name, and keys not so many for so few tokens that most of the device would wait, since a block reads all of its token's.
inline bool decodes_in_place(
    const Builder& b, const array& q, const array& keys, const std::optional<array>& values, const Scores& spec,
    int tokens, int seen) {
  auto is_float = [](mx::Dtype t) { return t == mx::float32 || t == mx::float16 || t == mx::bfloat16; };
  int dim = keys.shape(3);
  bool has_shape = values && values->shape() == keys.shape() && values->dtype() == keys.dtype() && is_float(q.dtype()) &&
      is_float(keys.dtype()) && dim * mx::size_of(keys.dtype()) % 16 == 0 && dim <= 256;
  return has_shape && spec.scale > 0 && spec.softcap.value_or(1) > 0 && !b.on_cpu() && mx::cu::is_available() &&
      (seen <= 2048 || tokens * (q.shape(1) / heads_of_block(q, keys)) >= 32);
}

// q [tokens, heads, dim] to the caches [blocks, block, heads, dim]; positions and sequences of each token, and the table of
// blocks, are in i32. A token of no sequence gets zeros.
inline array decoded_in_place(
    const Builder& b, const array& q, const array& keys, const array& values, const array& positions,
    const array& sequences, const array& table, const Scores& spec, int window) {
  static const char* const body =
#include "decode.cuh"
      ;
  static const auto kernel = mx::fast::cuda_kernel(
      "mlxcel_decode", {"q", "keys", "values", "table", "positions", "sequences", "sinks"}, {"out"}, body);
  int tokens = q.shape(0), heads = q.shape(1), dim = q.shape(2), kv_heads = keys.shape(2);
  int group = heads_of_block(q, keys);
  // Few blocks have many warps, so that the device is busy.
  int warps = int64_t(tokens) * (heads / group) >= 512 ? 4 : 8;
  auto bits = [](double x) { return std::bit_cast<int>(static_cast<float>(x)); };
  std::vector<std::pair<std::string, mx::fast::TemplateArg>> constants{
      {"T", q.dtype()}, {"C", keys.dtype()}, {"D", dim}, {"HEADS", heads}, {"KV_HEADS", kv_heads}, {"GROUP", group},
      {"BLOCK", keys.shape(1)}, {"WARPS", warps}, {"WINDOW", window}, {"SCALE", bits(spec.scale)},
      {"CAP", bits(spec.softcap.value_or(0))}, {"SINKS", spec.sinks.has_value()}};
  Arrays inputs{q, keys, values, table, positions, sequences, spec.sinks ? b.f32(*spec.sinks) : array(0.0f)};
  std::vector<mx::Shape> shapes{mx::Shape{tokens, heads, dim}};
  std::vector<mx::Dtype> types{q.dtype()};
  // Never so; said, it spares the shim a name of the C++ library that macOS 14 does not have.
  if (!kernel) throw std::logic_error("MLX made no kernel");
  return kernel(inputs, shapes, types, {tokens * warps * 32, heads / group, 1}, {warps * 32, 1, 1}, std::move(constants),
                std::nullopt, false, b.s)[0];
}

} // namespace mlxcel
