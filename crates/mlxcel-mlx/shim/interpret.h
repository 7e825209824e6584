// Runs decoded blocks: builds MLX's graph instruction by instruction, in eager mode evaluates after each of them, and
// lets MLX trace whole blocks in compiled mode. Branches and loops are control flow of the host, over compiled bodies in
// compiled mode.
#pragma once

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#include "abi.h"
#include "elementwise.h"
#include "group.h"
#include "recurrent.h"

namespace mlxcel {

struct Code {
  std::unique_ptr<Block> main;
  std::vector<std::string> labels;
  int mode = 0;
  uint64_t traces = 0;
};

// Builds on another stream for as long as it lives.
class StreamScope {
 public:
  StreamScope(Builder& b, mx::Stream s) : b_(b), s_(b.s) { b.s = s; }
  ~StreamScope() { b_.s = s_; }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Builder& b_;
  mx::Stream s_;
};

inline bool has_doubles(const Instruction& i, const Arrays& x) {
  for (auto& a : x)
    if (a.dtype() == mx::float64) return true;
  constexpr int64_t wide = 14;
  switch (i.tag) {
    case Tag::integer:
    case Tag::zeros:
    case Tag::iota:
    case Tag::cast: return !i.words.empty() && i.words.front() == wide;
    case Tag::dot:
    case Tag::dequantize:
    case Tag::dequantize_grouped: return !i.words.empty() && i.words.back() == wide;
    default: return false;
  }
}

// An error with the instruction that it happened in.
struct StepError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Interpreter {
 public:
  // `begin` is called before anything runs that uses up a state, while the rest of the step is still built; without it
  // nothing does.
  Interpreter(Builder& b, Code& code, std::function<void()> begin = {}) : b_(b), code_(code), begin_(std::move(begin)) {}

  Arrays run(Block& block, Arrays arguments) {
    b_.choose_fusing();
    if (block.compiled && !b_.tracing) return block.compiled(arguments);
    if (arguments.size() != block.arguments.size()) throw std::invalid_argument("the block has other arguments");
    std::vector<std::optional<array>> regs(block.registers);
    for (size_t i = 0; i < arguments.size(); i++) regs[block.arguments[i]] = std::move(arguments[i]);
    arguments.clear();
    for (auto& i : block.body) step(i, regs);
    Arrays results;
    for (int r : block.results) results.push_back(regs[r].value());
    return results;
  }

 private:
  void step(Instruction& i, std::vector<std::optional<array>>& regs) {
    try {
      Arrays x;
      for (int r : i.inputs) x.push_back(regs[r].value());
      for (int r : i.last) regs[r].reset();
      StreamScope scope(b_, has_doubles(i, x) ? b_.doubles : b_.s);
      auto results = apply(i, x);
      x.clear();
      if (b_.on_cpu() && i.tag != Tag::broadcast) check_room(results);
      if (code_.mode == MLXCEL_EAGER) mx::eval(results);
      if (begin_ && i.tag == Tag::paged_attention) {
        begin_();
        mx::async_eval(results);
      }
      if (results.size() < i.outputs.size()) throw std::logic_error("the instruction gave too few results");
      bool kept = false;
      for (size_t n = 0; n < i.outputs.size(); n++) {
        kept = std::find(i.last.begin(), i.last.end(), i.outputs[n]) == i.last.end();
        if (kept) regs[i.outputs[n]] = results[n];
      }
    } catch (const StepError&) {
      throw;
    } catch (const std::exception& e) {
      std::string label = static_cast<size_t>(i.label) < code_.labels.size() ? code_.labels[i.label] : "";
      throw StepError(label + ": " + e.what());
    }
  }

  // MLX's processor device does not notice that memory could not be had, and dies.
  static void check_room(const Arrays& results) {
    static const uint64_t room = machine_memory();
    for (auto& r : results)
      if (r.nbytes() > room)
        throw std::runtime_error("a result of " + std::to_string(r.nbytes()) + " bytes exceeds this machine's memory");
  }

  static uint64_t machine_memory() {
#if defined(_SC_PHYS_PAGES)
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    if (pages > 0 && size > 0) return uint64_t(pages) * uint64_t(size);
#endif
    return uint64_t(1) << 46;
  }

  static std::optional<array> maybe(const Arrays& x, size_t at, bool there) {
    return there ? std::optional(x.at(at)) : std::nullopt;
  }

  Arrays apply(Instruction& i, const Arrays& x) {
    Words a(i);
    switch (i.tag) {
      case Tag::integer: {
        auto t = a.dtype();
        return {array(a.next(), t)};
      }
      case Tag::zeros: {
        auto t = a.dtype();
        return {mx::zeros(a.shape(), t, b_.s)};
      }
      case Tag::iota: {
        auto t = a.dtype();
        int axis = a.number();
        return {iota(b_, t, a.shape(), axis)};
      }
      case Tag::unary: return {unary(b_, x[0], a.number())};
      case Tag::binary: return {binary(b_, x[0], x[1], a.number())};
      case Tag::compare: return {compare(b_, x[0], x[1], a.number())};
      case Tag::select: return {b_.where(x[0], x[1], x[2])};
      case Tag::cast: return {b_.cast(x[0], a.dtype())};
      case Tag::decode_f8: return {decode_f8(b_, x[0], a.flag())};
      case Tag::encode_f8: return {encode_f8(b_, x[0], a.flag())};
      case Tag::activation: return {activation(b_, x, a.number())};
      case Tag::reshape: return {b_.reshape(x[0], a.shape())};
      case Tag::broadcast: return {mx::broadcast_to(x[0], a.shape(), b_.s)};
      case Tag::transpose: return {b_.transpose(x[0], a.numbers())};
      case Tag::slice: {
        int axis = a.number(), from = a.number(), to = a.number();
        return {b_.cut(x[0], axis, from, to, a.number())};
      }
      case Tag::concat: return {mx::concatenate(x, a.number(), b_.s)};
      case Tag::pad: {
        auto low = a.shape(), high = a.shape();
        return {mx::pad(x[0], all_axes(x[0].ndim()), low, high, x[1], "constant", b_.s)};
      }
      case Tag::dynamic_slice: return {dynamic_slice(b_, x[0], x[1], a.shape())};
      case Tag::update_slice: return {update_slice(b_, x[0], x[1], x[2])};
      case Tag::gather: {
        int axis = a.number();
        return {b_.take(x[0], b_.clamped(x[1], x[0].shape(axis)), axis)};
      }
      case Tag::take_along: {
        int axis = a.number();
        return {mx::take_along_axis(x[0], b_.clamped(x[1], x[0].shape(axis)), axis, b_.s)};
      }
      case Tag::scatter: return {scatter(b_, x[0], x[1], x[2], a.flag())};
      case Tag::reduce: {
        int kind = a.number();
        return {reduce(b_, x[0], kind, a.numbers())};
      }
      case Tag::cumulative: {
        int kind = a.number();
        return {cumulative(b_, x[0], kind, a.number())};
      }
      case Tag::sort: {
        int axis = a.number();
        return sort(b_, x[0], axis, a.flag());
      }
      case Tag::argmax: return {b_.cast(mx::argmax(x[0], a.number(), false, b_.s), mx::int32)};
      default: return product(i, x, a);
    }
  }

  Arrays product(Instruction& i, const Arrays& x, Words& a) {
    switch (i.tag) {
      case Tag::dot: {
        auto batch = a.numbers(), sum = a.numbers();
        return {dot(b_, x[0], x[1], batch, sum, a.dtype())};
      }
      case Tag::conv: return {conv(b_, x[0], x[1], a)};
      case Tag::linear: return {linear(b_, x[0], x[1], maybe(x, 2, a.flag()))};
      case Tag::expert_linear: return {expert_linear(b_, x[0], x[1], x[2], maybe(x, 3, a.flag()))};
      case Tag::quantized_linear: {
        Packing p(a);
        Packed w{x[1], x[2], maybe(x, 3, !p.fp4)};
        return {quantized_linear(b_, x[0], w, maybe(x, p.fp4 ? 3 : 4, a.flag()), p)};
      }
      case Tag::quantized_expert_linear: {
        Packing p(a);
        Packed w{x[1], x[2], maybe(x, 3, !p.fp4)};
        size_t ids = p.fp4 ? 3 : 4;
        return {quantized_expert_linear(b_, x[0], w, x.at(ids), maybe(x, ids + 1, a.flag()), p)};
      }
      case Tag::dequantize: {
        Packing p(a);
        return {dequantize(b_, {x[0], x[1], maybe(x, 2, !p.fp4)}, p, a.dtype())};
      }
      case Tag::dequantize_grouped: {
        int group = a.number();
        return {dequantize_grouped(b_, {x[0], x[1], maybe(x, 2, x.size() > 2)}, group, a.dtype())};
      }
      case Tag::softmax: return {b_.cast(mx::softmax(b_.wide(x[0]), a.number(), true, b_.s), x[0].dtype())};
      case Tag::rms_norm: {
        double eps = a.real();
        return {rms_norm(b_, x[0], maybe(x, 1, a.flag()), eps)};
      }
      case Tag::layer_norm: {
        double eps = a.real();
        bool weight = a.flag(), bias = a.flag();
        return {layer_norm(b_, x[0], maybe(x, 1, weight), maybe(x, 1 + weight, bias), eps)};
      }
      case Tag::rope: {
        bool pairs = a.flag();
        return {rope(b_, x[0], x[1], x[2], pairs, a.real())};
      }
      case Tag::attention: return {attention(b_, x, a)};
      case Tag::paged_attention: return paged_attention(b_, x, a);
      case Tag::sample: return {sample(b_, x, a.flag())};
      case Tag::selective_scan: return selective_scan(b_, x, static_cast<Layout>(a.number()));
      case Tag::causal_conv: return causal_conv(b_, x, static_cast<Layout>(a.number()));
      case Tag::fft: return fft(b_, x, a.flag());
      case Tag::rfft: return rfft(b_, x[0]);
      case Tag::irfft: return {irfft(b_, x, a.number())};
      case Tag::all_reduce: return {all_reduce(b_, x[0])};
      case Tag::all_gather: return {all_gather(b_, x[0], a.number())};
      default: return control(i, x, a);
    }
  }

  bool is_true(array condition) const {
    condition.eval();
    return condition.item<bool>();
  }

  Arrays control(Instruction& i, const Arrays& x, Words& a) {
    switch (i.tag) {
      case Tag::branch: return run(*i.blocks.at(is_true(x[0]) ? 0 : 1), Arrays(x.begin() + 1, x.end()));
      case Tag::loop: {
        int carried = a.number();
        Arrays now(x.begin(), x.begin() + carried), captures(x.begin() + carried, x.end());
        auto with = [&] {
          Arrays all = now;
          all.insert(all.end(), captures.begin(), captures.end());
          return all;
        };
        while (is_true(run(*i.blocks.at(0), with()).at(0))) now = run(*i.blocks.at(1), with());
        return now;
      }
      case Tag::scan: return scan(i, x, a);
      default: throw std::invalid_argument("unknown instruction");
    }
  }

  // (carried…, scanned…, captures…); the region maps carried, a slice of each scanned, and captures.
  Arrays scan(Instruction& i, const Arrays& x, Words& a) {
    int carried = a.number(), scanned = a.number(), length = x.at(carried).shape(0);
    Arrays now(x.begin(), x.begin() + carried);
    std::vector<Arrays> stacked;
    for (int t = 0; t < length; t++) {
      Arrays arguments = now;
      for (int k = carried; k < carried + scanned; k++)
        arguments.push_back(mx::squeeze(b_.rows(x[k], t, t + 1), 0, b_.s));
      arguments.insert(arguments.end(), x.begin() + carried + scanned, x.end());
      auto results = run(*i.blocks.at(0), std::move(arguments));
      stacked.resize(results.size() - carried);
      for (size_t k = carried; k < results.size(); k++) stacked[k - carried].push_back(results[k]);
      now.assign(results.begin(), results.begin() + carried);
    }
    // A scan over nothing stacks nothing; the engine gives the shapes of its rows.
    for (size_t k = 0; length == 0 && k + carried < i.outputs.size(); k++) {
      auto t = a.dtype();
      now.push_back(mx::zeros(a.shape(), t, b_.stream_of(t)));
    }
    for (auto& rows : stacked) now.push_back(mx::stack(rows, 0, b_.stream_of(rows.at(0).dtype())));
    return now;
  }

  Builder& b_;
  Code& code_;
  std::function<void()> begin_;
};

// Lets MLX trace the block when it is first run, and again only for arguments of other shapes.
inline void compile_block(Block& block, Builder& b, Code& code) {
  if (block.has_control()) {
    for (auto& i : block.body)
      for (auto& inner : i.blocks) compile_block(*inner, b, code);
    return;
  }
  auto traced = [&block, &b, &code](const Arrays& arguments) {
    code.traces++;
    b.tracing = true;
    auto memo = std::exchange(b.memo, {});
    auto kept = std::exchange(b.kept, {});
    try {
      auto results = Interpreter(b, code).run(block, arguments);
      // A view at the end of a trace is read back wrongly, so results are whole.
      for (auto& r : results) r = mx::contiguous(r, false, b.stream_of(r.dtype()));
      b.tracing = false;
      b.memo = std::move(memo);
      b.kept = std::move(kept);
      return results;
    } catch (...) {
      b.tracing = false;
      b.memo = std::move(memo);
      b.kept = std::move(kept);
      throw;
    }
  };
  block.compiled = mx::detail::compile(traced, Builder::compile_id());
}

} // namespace mlxcel
