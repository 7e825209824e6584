// A step as the engine encodes it, and its decoded form. The encoding is a stream of 64-bit words:
//   block  := registers, arguments n, n registers, instructions n, n instructions, results n, n registers
//   instruction := tag, label, inputs n, n registers, outputs n, n registers, words n, n words, blocks n, n blocks
// Register numbers are local to their block. Floats among the words are the bits of a double.
#pragma once

#include <bit>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "mlx/mlx.h"

namespace mlxcel {

namespace mx = mlx::core;
using mx::array;
using Arrays = std::vector<array>;

// In the order of the engine's table of instructions, which is checked by name when the shim is loaded.
#define MLXCEL_OPS(X)                                                                                              \
  X(integer) X(zeros) X(iota) X(unary) X(binary) X(compare) X(select) X(cast) X(decode_f8) X(encode_f8)            \
  X(reshape) X(broadcast) X(transpose) X(slice) X(concat) X(pad) X(dynamic_slice) X(update_slice) X(gather)        \
  X(take_along) X(scatter) X(reduce) X(cumulative) X(sort) X(argmax) X(dot) X(conv) X(linear) X(quantized_linear)  \
  X(expert_linear) X(quantized_expert_linear) X(dequantize) X(dequantize_grouped) X(activation) X(softmax)         \
  X(rms_norm) X(layer_norm) X(rope) X(attention) X(paged_attention) X(sample) X(selective_scan) X(causal_conv)     \
  X(fft) X(rfft) X(irfft) X(branch) X(loop) X(scan) X(all_reduce) X(all_gather)

enum class Tag : int64_t {
#define X(name) name,
  MLXCEL_OPS(X)
#undef X
      count
};

inline const char* const TAG_NAMES[] = {
#define X(name) #name,
    MLXCEL_OPS(X)
#undef X
};

// Element types by the engine's numbers; 8-bit floats travel as bytes.
inline mx::Dtype dtype_of(int64_t code) {
  switch (code) {
    case 0: return mx::bool_;
    case 1: return mx::uint8;
    case 2: return mx::uint16;
    case 3: return mx::uint32;
    case 4: return mx::uint64;
    case 5: return mx::int8;
    case 6: return mx::int16;
    case 7: return mx::int32;
    case 8: return mx::int64;
    case 9: return mx::uint8;
    case 10: return mx::uint8;
    case 11: return mx::float16;
    case 12: return mx::bfloat16;
    case 13: return mx::float32;
    case 14: return mx::float64;
    default: throw std::invalid_argument("element type " + std::to_string(code) + " is unknown");
  }
}

inline bool is_float(mx::Dtype t) { return mx::issubdtype(t, mx::floating); }
inline bool is_narrow(mx::Dtype t) { return t == mx::float16 || t == mx::bfloat16; }
inline bool is_signed(mx::Dtype t) { return mx::issubdtype(t, mx::signedinteger); }

struct Block;

struct Instruction {
  Tag tag;
  int64_t label;
  std::vector<int> inputs, outputs;
  std::vector<int64_t> words;
  std::vector<std::unique_ptr<Block>> blocks;
  // Registers that nothing reads afterwards.
  std::vector<int> last;
};

struct Block {
  int registers = 0;
  std::vector<int> arguments, results;
  std::vector<Instruction> body;
  // What MLX made of the block, in compiled mode.
  std::function<Arrays(const Arrays&)> compiled;

  bool has_control() const {
    for (auto& i : body)
      if (!i.blocks.empty()) return true;
    return false;
  }
};

// Reads the attributes of an instruction one after the other.
struct Words {
  const std::vector<int64_t>& all;
  size_t at = 0;

  explicit Words(const Instruction& i) : all(i.words) {}

  int64_t next() {
    if (at >= all.size()) throw std::invalid_argument("the instruction lacks an attribute");
    return all[at++];
  }
  int number() { return static_cast<int>(next()); }
  bool flag() { return next() != 0; }
  double real() { return std::bit_cast<double>(next()); }
  mx::Dtype dtype() { return dtype_of(next()); }
  std::optional<double> maybe_real() {
    bool there = flag();
    double value = real();
    return there ? std::optional(value) : std::nullopt;
  }
  std::vector<int> numbers() {
    std::vector<int> out(next());
    for (auto& n : out) n = number();
    return out;
  }
  mx::Shape shape() {
    auto n = numbers();
    return mx::Shape(n.begin(), n.end());
  }
};

// Reads a stream of words into blocks; a stream that breaks off or names a register that is not there is refused.
class Decoder {
 public:
  Decoder(const int64_t* words, size_t count) : words_(words), count_(count) {}

  std::unique_ptr<Block> block() {
    auto block = std::make_unique<Block>();
    block->registers = static_cast<int>(size());
    block->arguments = registers(*block);
    for (size_t n = size(); n > 0; n--) block->body.push_back(instruction(*block));
    block->results = registers(*block);
    mark_last_uses(*block);
    return block;
  }

 private:
  int64_t next() {
    if (at_ >= count_) throw std::invalid_argument("the encoded step breaks off");
    return words_[at_++];
  }
  // A count of things that take at least a word each, or of registers.
  size_t size() {
    int64_t n = next();
    if (n < 0 || n > (int64_t(1) << 24)) throw std::invalid_argument("the encoded step has an impossible count");
    return static_cast<size_t>(n);
  }
  std::vector<int> registers(const Block& block) {
    std::vector<int> out(size());
    for (auto& r : out) {
      int64_t n = next();
      if (n < 0 || n >= block.registers) throw std::invalid_argument("the encoded step names an unknown register");
      r = static_cast<int>(n);
    }
    return out;
  }
  Instruction instruction(const Block& block) {
    Instruction i{};
    int64_t tag = next();
    if (tag < 0 || tag >= static_cast<int64_t>(Tag::count)) throw std::invalid_argument("unknown instruction");
    i.tag = static_cast<Tag>(tag);
    i.label = next();
    i.inputs = registers(block);
    i.outputs = registers(block);
    i.words.resize(size());
    for (auto& w : i.words) w = next();
    for (size_t n = size(); n > 0; n--) i.blocks.push_back(this->block());
    return i;
  }
  static void mark_last_uses(Block& block) {
    std::vector<char> needed(block.registers, 0);
    for (int r : block.results) needed[r] = 1;
    for (auto i = block.body.rbegin(); i != block.body.rend(); ++i) {
      for (auto* side : {&i->inputs, &i->outputs})
        for (int r : *side)
          if (!needed[r]) {
            needed[r] = 1;
            i->last.push_back(r);
          }
    }
  }

  const int64_t* words_;
  size_t count_, at_ = 0;
};

} // namespace mlxcel
