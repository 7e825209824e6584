// Products: matrices plain and packed, experts, convolutions, Fourier transforms.
#pragma once

#include <array>

#include "movement.h"

namespace mlxcel {

// Sums of products of numbers that MLX multiplies no matrices of.
inline array integer_matmul(const Builder& b, const array& x, const array& y, mx::Dtype t) {
  auto left = mx::expand_dims(b.cast(x, t), -1, b.s);   // [batch, m, k, 1]
  auto right = mx::expand_dims(b.cast(y, t), -3, b.s);  // [batch, 1, k, n]
  return b.cast(mx::sum(b.mul(left, right), -2, false, b.s), t);
}

// Axes as pairs; the result has the batch axes, then the free axes of each side.
inline array dot(
    const Builder& b, const array& x, const array& y, const std::vector<int>& batch, const std::vector<int>& sum,
    mx::Dtype t) {
  auto side = [&](const array& a, int which) {
    std::vector<int> bs, ks, free;
    for (size_t i = which; i < batch.size(); i += 2) bs.push_back(batch[i]);
    for (size_t i = which; i < sum.size(); i += 2) ks.push_back(sum[i]);
    for (int i = 0; i < static_cast<int>(a.ndim()); i++)
      if (std::find(bs.begin(), bs.end(), i) == bs.end() && std::find(ks.begin(), ks.end(), i) == ks.end())
        free.push_back(i);
    return std::array{bs, free, ks};
  };
  auto size = [](const array& a, const std::vector<int>& axes) {
    int n = 1;
    for (int i : axes) n *= a.shape(i);
    return n;
  };
  auto [xb, xf, xk] = side(x, 0);
  auto [yb, yf, yk] = side(y, 1);
  mx::Shape shape;
  for (int i : xb) shape.push_back(x.shape(i));
  for (int i : xf) shape.push_back(x.shape(i));
  for (int i : yf) shape.push_back(y.shape(i));
  int nb = size(x, xb), m = size(x, xf), n = size(y, yf), k = size(x, xk);
  auto order = [](std::vector<int> a, const std::vector<int>& c, const std::vector<int>& d) {
    a.insert(a.end(), c.begin(), c.end());
    a.insert(a.end(), d.begin(), d.end());
    return a;
  };
  auto left = b.reshape(b.transpose(x, order(xb, xf, xk)), {nb, m, k});
  auto right = b.reshape(b.transpose(y, order(yb, yk, yf)), {nb, k, n});
  bool real = is_float(x.dtype());
  auto inner = !real ? (is_float(t) ? mx::int64 : t) : b.on_cpu() || t == mx::float32 ? mx::float32 : x.dtype();
  if (x.dtype() == mx::float64) inner = mx::float64;
  auto product = real ? matmul(b, b.cast(left, inner), b.cast(right, inner)) : integer_matmul(b, left, right, inner);
  return b.reshape(b.cast(product, t), shape);
}

inline array linear(const Builder& b, const array& x, const array& w, const std::optional<array>& bias) {
  auto t = x.dtype();
  auto inner = b.on_cpu() || w.dtype() != t ? (t == mx::float64 ? mx::float64 : mx::float32) : t;
  auto y = matmul(b, b.cast(x, inner), mx::swapaxes(b.cast(w, inner), -1, -2, b.s));
  if (bias) y = b.add(y, b.cast(*bias, y.dtype()));
  return b.cast(y, t);
}

// How a packed matrix lies: bits and group of MLX's own kernels; 0 affine, 1 mxfp4.
struct Packing {
  int bits, group;
  bool fp4;

  explicit Packing(Words& w) : bits(w.number()), group(w.number()), fp4(w.flag()) {}
  const char* mode() const { return fp4 ? "mxfp4" : "affine"; }
};

struct Packed {
  const array& codes;
  const array& scales;
  std::optional<array> biases;
};

inline array quantized_linear(
    const Builder& b, const array& x, const Packed& w, const std::optional<array>& bias, const Packing& p) {
  auto in = b.wide(x);
  // MLX has a kernel for Hopper that rows of a single group alone go to, with wrong results in f32, and one for all GPUs of
  // NVIDIA that has no room for more than 64 numbers of f32 in a group. Smaller groups of the same scales go elsewhere; as
  // kernels read them, they must lie in memory and not be strides of nothing.
  bool affine = !p.fp4, f32 = mx::promote_types(in.dtype(), w.scales.dtype()) == mx::float32;
  int parts = 1;
  if (affine && (p.bits == 4 || p.bits == 8) && p.group > 32 && p.group == in.shape(-1)) parts = 2;
  if (affine && !b.on_cpu() && f32 && p.group > 64) parts = p.group / 64;
  auto cut = [&](const array& a) {
    return parts > 1 ? mx::contiguous(mx::repeat(a, parts, -1, b.s), false, b.s) : a;
  };
  auto biases = w.biases ? std::optional(cut(*w.biases)) : std::nullopt;
  auto y = mx::quantized_matmul(in, w.codes, cut(w.scales), biases, true, p.group / parts, p.bits, p.mode(), b.s);
  if (bias) y = b.add(y, b.cast(*bias, y.dtype()));
  return b.cast(y, x.dtype());
}

// Which token each of the chosen experts reads: x is [tokens, 1 or k, in], ids [tokens, k].
inline array expert_rows(const Builder& b, const array& x, const array& ids) {
  auto count = mx::arange(0, x.shape(0) * x.shape(1), 1, mx::uint32, b.s);
  return mx::broadcast_to(b.reshape(count, {x.shape(0), x.shape(1)}), ids.shape(), b.s);
}

inline array expert_result(
    const Builder& b, const array& y, const array& ids, const std::optional<array>& bias, mx::Dtype t) {
  auto out = b.reshape(y, {ids.shape(0), ids.shape(1), y.shape(-1)});
  if (bias) out = b.add(out, b.take(b.cast(*bias, out.dtype()), ids, 0));
  return b.cast(out, t);
}

inline array
expert_linear(const Builder& b, const array& x, const array& w, const array& ids, const std::optional<array>& bias) {
  auto inner = b.on_cpu() || w.dtype() != x.dtype() ? mx::float32 : x.dtype();
  auto chosen = b.clamped(ids, w.shape(0));
  auto in = b.reshape(b.cast(x, inner), {x.shape(0) * x.shape(1), 1, x.shape(2)});
  auto y = mx::gather_mm(
      in, mx::swapaxes(b.cast(w, inner), -1, -2, b.s), expert_rows(b, x, ids), b.cast(chosen, mx::uint32), false, b.s);
  return expert_result(b, y, chosen, bias, x.dtype());
}

inline array quantized_expert_linear(
    const Builder& b, const array& x, const Packed& w, const array& ids, const std::optional<array>& bias,
    const Packing& p) {
  auto chosen = b.clamped(ids, w.codes.shape(0));
  auto in = b.reshape(b.wide(x), {x.shape(0) * x.shape(1), 1, x.shape(2)});
  auto y = mx::gather_qmm(
      in, w.codes, w.scales, w.biases, expert_rows(b, x, ids), b.cast(chosen, mx::uint32), true, p.group, p.bits,
      p.mode(), std::nullopt, false, b.s);
  return expert_result(b, y, chosen, bias, x.dtype());
}

inline array dequantize(const Builder& b, const Packed& w, const Packing& p, mx::Dtype t) {
  auto inner = p.fp4 && !b.on_cpu() ? mx::bfloat16 : mx::float32;
  auto scales = p.fp4 ? w.scales : b.f32(w.scales);
  auto biases = w.biases ? std::optional(b.f32(*w.biases)) : std::nullopt;
  return b.cast(mx::dequantize(w.codes, scales, biases, p.group, p.bits, p.mode(), std::nullopt, inner, b.s), t);
}

// Codes of a byte each with a scale, and perhaps a bias, for every group: what MLX's kernels do not hold.
inline array dequantize_grouped(const Builder& b, const Packed& w, int group, mx::Dtype t) {
  auto shape = w.codes.shape();
  auto split = shape;
  split.back() /= group;
  split.push_back(group);
  auto values = b.mul(b.f32(b.reshape(w.codes, split)), mx::expand_dims(w.scales, -1, b.s));
  if (w.biases) values = b.add(values, mx::expand_dims(*w.biases, -1, b.s));
  return b.cast(b.reshape(values, shape), t);
}

// x [n, c, …], w [c_out, c/groups, …]; MLX keeps channels last.
inline array conv(const Builder& b, const array& x, const array& w, Words& a) {
  auto strides = a.numbers(), low = a.numbers(), high = a.numbers(), dilation = a.numbers();
  int groups = a.number(), rank = static_cast<int>(x.ndim());
  std::vector<int> last{0}, first{0, rank - 1};
  for (int i = 2; i < rank; i++) last.push_back(i);
  last.push_back(1);
  for (int i = 1; i < rank - 1; i++) first.push_back(i);
  auto in = b.transpose(b.wide(x), last), kernel = b.transpose(b.wide(w), last);
  std::vector<int> once(strides.size(), 1);
  auto one = [&](const array& i, const array& k, int g) {
    return mx::conv_general(i, k, strides, low, high, dilation, once, g, false, b.s);
  };
  // MLX has groups in one and two dimensions only.
  if (groups == 1 || rank < 5) return b.cast(b.transpose(one(in, kernel, groups), first), x.dtype());
  Arrays parts;
  int ci = in.shape(-1) / groups, co = kernel.shape(0) / groups;
  for (int g = 0; g < groups; g++)
    parts.push_back(one(b.cut(in, rank - 1, g * ci, (g + 1) * ci), b.rows(kernel, g * co, (g + 1) * co), 1));
  return b.cast(b.transpose(mx::concatenate(parts, rank - 1, b.s), first), x.dtype());
}

// ---- Fourier transforms: complex numbers are pairs in the graph ----

inline array joined(const Builder& b, const array& re, const array& im) {
  auto i = array(std::complex<float>(0, 1));
  return b.add(b.cast(b.f32(re), mx::complex64), b.mul(b.cast(b.f32(im), mx::complex64), i));
}

inline Arrays parted(const Builder& b, const array& z, mx::Dtype t) {
  return {b.cast(mx::real(z, b.s), t), b.cast(mx::imag(z, b.s), t)};
}

inline Arrays fft(const Builder& b, const Arrays& x, bool inverse) {
  auto z = joined(b, x[0], x[1]);
  auto norm = mx::fft::FFTNorm::Backward;
  return parted(b, inverse ? mx::fft::ifft(z, -1, norm, b.s) : mx::fft::fft(z, -1, norm, b.s), x[0].dtype());
}

inline Arrays rfft(const Builder& b, const array& x) {
  return parted(b, mx::fft::rfft(b.f32(x), -1, mx::fft::FFTNorm::Backward, b.s), x.dtype());
}

// What a real signal makes redundant does not count: the imaginary parts of the first and, for even n, the last bin.
inline array irfft(const Builder& b, const Arrays& x, int n) {
  int bins = n / 2 + 1;
  std::vector<float> counts(bins, 1.0f);
  counts[0] = 0;
  if (n % 2 == 0) counts[bins - 1] = 0;
  auto im = b.mul(b.f32(x[1]), array(counts.begin(), {bins}, mx::float32));
  return b.cast(mx::fft::irfft(joined(b, x[0], im), n, -1, mx::fft::FFTNorm::Backward, b.s), x[0].dtype());
}

} // namespace mlxcel
