// What the lowerings share: the stream they build on, small expressions, and what a step's inputs say about its
// sequences, which is read on the host once a step rather than once a layer.
#pragma once

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "code.h"
#include "mlx/compile_impl.h"

namespace mlxcel {

// How the tokens of a step belong to sequences. Ragged is found out from the inputs; the others are promised by the
// engine, which cuts steps for compiled code.
enum class Layout { ragged = 0, decode = 1, one = 2 };

// What is known of the rows that an index names.
enum class Inside { all, some, unknown };

class Builder {
 public:
  mx::Stream s;
  // Where doubles are computed, which GPUs of MLX do not have; the stream itself, if that is the processor's.
  mx::Stream doubles;
  bool tracing = false;

  explicit Builder(mx::Stream stream)
      : s(stream), doubles(stream.device == mx::Device::cpu ? stream : mx::new_stream(mx::Device::cpu)) {}

  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;

  bool on_cpu() const { return s.device == mx::Device::cpu; }
  mx::Stream stream_of(mx::Dtype t) const { return t == mx::float64 ? doubles : s; }

  // ---- small expressions ----
  array cast(const array& a, mx::Dtype t) const { return a.dtype() == t ? a : mx::astype(a, t, s); }
  array like(double value, const array& a) const { return array(value, a.dtype()); }
  array add(const array& a, const array& b) const { return mx::add(a, b, s); }
  array sub(const array& a, const array& b) const { return mx::subtract(a, b, s); }
  array mul(const array& a, const array& b) const { return mx::multiply(a, b, s); }
  array times(const array& a, double k) const { return k == 1.0 ? a : mul(a, like(k, a)); }
  array where(const array& c, const array& a, const array& b) const { return mx::where(c, a, b, s); }
  array reshape(const array& a, mx::Shape shape) const { return mx::reshape(a, std::move(shape), s); }
  array transpose(const array& a, std::vector<int> axes) const { return mx::transpose(a, std::move(axes), s); }
  array rows(const array& a, int start, int stop) const { return cut(a, 0, start, stop); }
  array cut(const array& a, int axis, int start, int stop, int step = 1) const {
    mx::Shape from(a.ndim(), 0), to = a.shape(), by(a.ndim(), 1);
    from[axis] = start;
    to[axis] = stop;
    by[axis] = step;
    return mx::slice(a, from, to, by, s);
  }
  // MLX's kernels for narrow floats on the processor round too early or do not exist.
  array wide(const array& a) const { return is_narrow(a.dtype()) && on_cpu() ? cast(a, mx::float32) : a; }
  array f32(const array& a) const { return cast(a, mx::float32); }

  // ---- indices ----
  // Into [0, n), as signed numbers.
  array clamped(const array& index, int n) const {
    auto i = index.dtype() == mx::int32 ? index : cast(index, mx::int64);
    return mx::minimum(mx::maximum(i, like(0, i), s), like(n - 1, i), s);
  }
  array take(const array& a, const array& index, int axis) const { return mx::take(a, index, axis, s); }
  // Rows of a matrix. GPUs of MLX take them one number at a time, so that they are given the widest numbers there are.
  array take_wide(const array& a, const array& index) const {
    bool fits = a.shape(1) * mx::size_of(a.dtype()) % 8 == 0 && mx::size_of(a.dtype()) < 8;
    return fits ? mx::view(take(mx::view(a, mx::uint64, s), index, 0), a.dtype(), s) : take(a, index, 0);
  }

  // The numbers of an integer array, on the host. Not while tracing.
  std::vector<int> numbers(const array& a) const {
    if (tracing) throw std::logic_error("a traced step cannot read the numbers of an array");
    // A fed input is there already; asking MLX would wake its thread for nothing.
    auto flat = a;
    if (a.dtype() != mx::int32 || !a.is_available() || !a.flags().row_contiguous) {
      flat = mx::contiguous(cast(a, mx::int32), false, s);
      flat.eval();
    }
    return std::vector<int>(flat.data<int32_t>(), flat.data<int32_t>() + flat.size());
  }
  array of(const std::vector<int>& n) const { return array(n.begin(), {static_cast<int>(n.size())}, mx::int32); }

  // Writes updates [n, …] to rows of a; an index outside drops its row. MLX has no such index, so a dropped row repeats
  // what the last kept one writes or, if there is none, what the first row holds. Only then is `a` read a second time,
  // which keeps MLX from writing it where it lies.
  array put_rows(const array& a, const array& index, const array& updates, Inside inside) const {
    auto at = cast(index, mx::int32);
    auto value = updates;
    if (inside != Inside::all) {
      auto wide_index = cast(index, mx::int64);
      auto kept = mx::logical_and(
          mx::greater_equal(wide_index, array(int64_t(0)), s),
          mx::less(wide_index, array(int64_t(a.shape(0))), s), s);
      auto order = mx::arange(0, static_cast<int>(at.size()), 1, s);
      auto last = mx::max(where(kept, order, array(-1)), false, s);
      auto pick = mx::maximum(last, array(0), s);
      auto spare_at = take(at, pick, 0), spare = take(updates, pick, 0);
      if (inside == Inside::unknown) {
        auto any = mx::greater_equal(last, array(0), s);
        spare_at = where(any, spare_at, array(0));
        spare = where(any, spare, take(a, array(0), 0));
      }
      at = where(kept, at, spare_at);
      value = where(along_rows(kept, updates.ndim()), updates, spare);
    }
    auto shape = updates.shape();
    shape.insert(shape.begin() + 1, 1);
    return mx::scatter(a, {at}, reshape(value, shape), {0}, s);
  }
  // The same for rows that lie side by side.
  array put_run(const array& a, int first, const array& updates) const {
    mx::Shape start(a.ndim(), 0), stop = a.shape();
    start[0] = first;
    stop[0] = first + updates.shape(0);
    return mx::slice_update(a, updates, start, stop, s);
  }
  // How many of these rows there are among n.
  static Inside inside_of(const std::vector<int>& rows, int n) {
    auto is_inside = [n](int i) { return i >= 0 && i < n; };
    if (std::all_of(rows.begin(), rows.end(), is_inside)) return Inside::all;
    return std::any_of(rows.begin(), rows.end(), is_inside) ? Inside::some : Inside::unknown;
  }
  array along_rows(const array& flags, size_t rank) const {
    mx::Shape shape(rank, 1);
    shape[0] = flags.shape(0);
    return reshape(flags, shape);
  }

  // MLX knows functions by number. Numbers are never given twice, since it may keep what it made of one.
  static uintptr_t compile_id() {
    static std::atomic<uintptr_t> next{uintptr_t(1) << 48};
    return next++;
  }
  // MLX asks when it traces, and for all devices at once. On the processor fusing would call a C++ compiler for each kernel,
  // for seconds each.
  void choose_fusing() const {
    mx::set_compile_mode(on_cpu() ? mx::CompileMode::no_fuse : mx::CompileMode::enabled);
  }

  // Fused activations by kind and number of operands. They know this builder by its place.
  std::map<std::pair<int, size_t>, std::function<Arrays(const Arrays&)>> activations;

  // Values that depend on a step's inputs alone and are asked for by every layer.
  std::map<std::vector<uintptr_t>, std::shared_ptr<void>> memo;
  // Inputs whose identity the memo uses; kept so that no later array takes their place.
  Arrays kept;
};

inline array matmul(const Builder& b, const array& x, const array& y) { return mx::matmul(x, y, b.s); }

} // namespace mlxcel
