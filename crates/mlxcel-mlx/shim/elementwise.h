// Elementwise instructions, as the graph defines them where MLX differs: integers divide towards zero and by zero to
// zero, remainders take the sign of the dividend, wide shifts empty the number.
#pragma once

#include "build.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/primitives.h"

namespace mlxcel {

// Functions of doubles, which MLX computes in f32.
class ExactUnary : public mx::UnaryPrimitive {
 public:
  ExactUnary(mx::Stream s, int kind) : mx::UnaryPrimitive(s), kind_(kind) {}

  void eval_cpu(const Arrays& inputs, array& out) override {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    auto& encoder = mx::cpu::get_command_encoder(stream());
    encoder.set_input_array(inputs[0]);
    encoder.set_output_array(out);
    encoder.dispatch([from = inputs[0].data<double>(), to = out.data<double>(), n = out.size(), kind = kind_] {
      for (size_t i = 0; i < n; i++) to[i] = value(from[i], kind);
    });
  }
  void eval_gpu(const Arrays&, array&) override { throw std::runtime_error("doubles are for the processor"); }
  const char* name() const override { return "ExactUnary"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return kind_ == static_cast<const ExactUnary&>(other).kind_;
  }

  static bool has(int kind) { return kind >= 3 && kind <= 12; }

 private:
  static double value(double x, int kind) {
    switch (kind) {
      case 3: return std::exp(x);
      case 4: return std::log(x);
      case 5: return std::log1p(x);
      case 6: return std::sqrt(x);
      case 7: return 1.0 / std::sqrt(x);
      case 8: return std::sin(x);
      case 9: return std::cos(x);
      case 10: return std::tanh(x);
      case 11: return std::erf(x);
      default: return 1.0 / (1.0 + std::exp(-x));
    }
  }

  int kind_;
};

inline array unary(const Builder& b, const array& x, int kind) {
  auto s = b.s;
  if (x.dtype() == mx::float64 && ExactUnary::has(kind)) {
    auto whole = mx::contiguous(x, false, s);
    return array(x.shape(), mx::float64, std::make_shared<ExactUnary>(s, kind), {whole});
  }
  switch (kind) {
    case 0: return x.dtype() == mx::bool_ ? x : mx::negative(x, s);
    case 1: return mx::abs(x, s);
    case 2: return mx::sign(x, s);
    case 3: return mx::exp(x, s);
    case 4: return mx::log(x, s);
    case 5: return mx::log1p(x, s);
    case 6: return mx::sqrt(x, s);
    case 7: return mx::rsqrt(x, s);
    case 8: return mx::sin(x, s);
    case 9: return mx::cos(x, s);
    case 10: return mx::tanh(x, s);
    case 11: return mx::erf(x, s);
    case 12: return mx::sigmoid(x, s);
    case 13: return mx::floor(x, s);
    case 14: return mx::ceil(x, s);
    case 15: return mx::round(x, 0, s);
    case 16: return x.dtype() == mx::bool_ ? mx::logical_not(x, s) : mx::bitwise_invert(x, s);
    default: throw std::invalid_argument("unknown unary op");
  }
}

inline array int_divide(const Builder& b, const array& x, const array& y) {
  auto s = b.s;
  auto zero = mx::equal(y, b.like(0, y), s);
  auto odd = zero;
  if (is_signed(y.dtype())) odd = mx::logical_or(odd, mx::equal(y, array(-1, y.dtype()), s), s);
  auto by = b.where(odd, b.like(1, y), y);
  auto quotient = mx::floor_divide(x, by, s);
  if (is_signed(y.dtype())) {
    // MLX rounds down. The most negative number by minus one wraps to itself, as its negation does.
    auto is_inexact = mx::not_equal(b.mul(quotient, by), x, s);
    auto is_below = mx::not_equal(mx::less(x, b.like(0, x), s), mx::less(by, b.like(0, y), s), s);
    quotient = b.add(quotient, b.cast(mx::logical_and(is_inexact, is_below, s), quotient.dtype()));
    quotient = b.where(odd, mx::negative(x, s), quotient);
  }
  return b.where(zero, b.like(0, quotient), quotient);
}

inline array shifted(const Builder& b, const array& x, const array& by, bool left) {
  auto s = b.s;
  int width = static_cast<int>(8 * mx::size_of(x.dtype()));
  auto inside = mx::less(by, array(width, by.dtype()), s);
  if (is_signed(by.dtype())) inside = mx::logical_and(inside, mx::greater_equal(by, b.like(0, by), s), s);
  auto safe = b.where(inside, by, b.like(0, by));
  auto moved = left ? mx::left_shift(x, safe, s) : mx::right_shift(x, safe, s);
  auto beyond = b.like(0, x);
  if (!left && is_signed(x.dtype()))
    beyond = b.where(mx::less(x, b.like(0, x), s), array(-1, x.dtype()), beyond);
  return b.where(inside, moved, beyond);
}

inline array binary(const Builder& b, const array& x, const array& y, int kind) {
  auto s = b.s;
  bool real = is_float(x.dtype());
  switch (kind) {
    case 0: return mx::add(x, y, s);
    case 1: return mx::subtract(x, y, s);
    case 2: return mx::multiply(x, y, s);
    case 3: return real ? mx::divide(x, y, s) : int_divide(b, x, y);
    case 4: {
      if (!real) {
        auto rest = b.sub(x, b.mul(int_divide(b, x, y), y));
        return b.where(mx::equal(y, b.like(0, y), s), b.like(0, y), rest);
      }
      auto rest = mx::remainder(mx::abs(x, s), mx::abs(y, s), s);
      return b.where(mx::less(x, b.like(0, x), s), mx::negative(rest, s), rest);
    }
    case 5: return mx::power(x, y, s);
    case 6: return mx::maximum(x, y, s);
    case 7: return mx::minimum(x, y, s);
    case 8: return mx::bitwise_and(x, y, s);
    case 9: return mx::bitwise_or(x, y, s);
    case 10: return mx::bitwise_xor(x, y, s);
    case 11: return shifted(b, x, y, true);
    case 12: return shifted(b, x, y, false);
    default: throw std::invalid_argument("unknown binary op");
  }
}

inline array compare(const Builder& b, const array& x, const array& y, int kind) {
  switch (kind) {
    case 0: return mx::equal(x, y, b.s);
    case 1: return mx::not_equal(x, y, b.s);
    case 2: return mx::less(x, y, b.s);
    case 3: return mx::less_equal(x, y, b.s);
    case 4: return mx::greater(x, y, b.s);
    case 5: return mx::greater_equal(x, y, b.s);
    default: throw std::invalid_argument("unknown comparison");
  }
}

// In at least f32 for narrow types on the processor, like every product there.
inline array activation_by_ops(const Builder& b, const array& narrow, int kind) {
  auto s = b.s;
  auto x = b.wide(narrow);
  auto y = [&]() -> array {
    switch (kind) {
      case 0: return mx::maximum(x, b.like(0, x), s);
      case 1: return mx::square(mx::maximum(x, b.like(0, x), s), s);
      case 2: return b.mul(x, mx::sigmoid(x, s));
      case 3: {
        auto half = b.times(x, 0.5);
        return b.mul(half, b.add(b.like(1, x), mx::erf(b.times(x, 0.70710678118654752), s)));
      }
      case 4: {
        auto cube = b.mul(x, b.mul(x, x));
        auto inner = b.times(b.add(x, b.times(cube, 0.044715)), 0.79788456080286536);
        return b.mul(b.times(x, 0.5), b.add(b.like(1, x), mx::tanh(inner, s)));
      }
      case 5: return b.mul(x, mx::sigmoid(b.times(x, 1.702), s));
      case 6: return mx::logaddexp(x, b.like(0, x), s);
      default: throw std::invalid_argument("unknown activation");
    }
  }();
  return b.cast(y, narrow.dtype());
}

// On a GPU each op by itself is a pass over memory, so that MLX is let make one kernel of them.
// With two operands the second is multiplied by the activation of the first.
inline array activation(Builder& b, const Arrays& x, int kind) {
  auto ops = [&b, kind](const Arrays& x) {
    auto y = activation_by_ops(b, x[0], kind);
    return Arrays{x.size() > 1 ? b.mul(y, x[1]) : y};
  };
  if (b.on_cpu() || b.tracing) return ops(x)[0];
  b.choose_fusing();
  auto& fused = b.activations[{kind, x.size()}];
  if (!fused) fused = mx::detail::compile(ops, Builder::compile_id(), true);
  // Asked, so that no call of an empty function is compiled: the C++ library of macOS 14 has no such exception.
  return fused ? fused(x)[0] : ops(x)[0];
}

// ---- 8-bit floats, which MLX has no type for: e4m3 without infinities, e5m2 with them ----

inline float f8_value(int code, bool e5m2) {
  int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code & 0x7f) >> mantissa_bits;
  float sign = code & 0x80 ? -1.0f : 1.0f;
  if (e5m2 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (!e5m2 && (code & 0x7f) == 0x7f) return NAN;
  float unit = std::ldexp(1.0f, -mantissa_bits);
  return exponent == 0 ? sign * std::ldexp(mantissa * unit, 1 - bias)
                       : sign * std::ldexp(1.0f + mantissa * unit, exponent - bias);
}

inline array decode_f8(const Builder& b, const array& codes, bool e5m2) {
  std::vector<float> table(256);
  for (int i = 0; i < 256; i++) table[i] = f8_value(i, e5m2);
  return b.take(array(table.begin(), {256}, mx::float32), b.cast(codes, mx::int32), 0);
}

// The code is the number of thresholds that the magnitude reaches; a tie goes to the even code.
inline array encode_f8(const Builder& b, const array& values, bool e5m2) {
  auto s = b.s;
  int largest = e5m2 ? 0x7b : 0x7e;
  std::vector<float> thresholds;
  for (int c = 0; c <= largest; c++) {
    float low = f8_value(c, e5m2), step = c == largest ? low - f8_value(c - 1, e5m2) : 0;
    float middle = c == largest ? low + step / 2 : (low + f8_value(c + 1, e5m2)) / 2;
    bool up_on_tie = c == largest || c % 2 == 1;
    thresholds.push_back(up_on_tie ? middle : std::nextafter(middle, INFINITY));
  }
  int n = static_cast<int>(thresholds.size());
  auto x = b.f32(values);
  auto magnitude = mx::expand_dims(mx::abs(x, s), -1, s);
  auto reached = mx::greater_equal(magnitude, array(thresholds.begin(), {n}, mx::float32), s);
  auto code = mx::sum(b.cast(reached, mx::int32), -1, false, s);
  code = b.where(mx::isnan(x, s), array(0x7f), code);
  // The sign of zero counts too, and only the bit tells it.
  auto sign = mx::right_shift(mx::view(x, mx::uint32, s), array(uint32_t(31)), s);
  code = mx::bitwise_or(code, mx::left_shift(b.cast(sign, mx::int32), array(7), s), s);
  return b.cast(code, mx::uint8);
}

} // namespace mlxcel
