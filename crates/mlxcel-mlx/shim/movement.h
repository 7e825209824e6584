// Instructions that move, index, reduce and order elements.
#pragma once

#include "build.h"

namespace mlxcel {

inline array iota(const Builder& b, mx::Dtype t, mx::Shape shape, int axis) {
  mx::Shape line(shape.size(), 1);
  line[axis] = shape[axis];
  auto count = mx::arange(0, shape[axis], 1, b.s);
  return mx::broadcast_to(b.reshape(b.cast(count, t), line), shape, b.s);
}

// Starts [rank], clamped so that the part fits.
inline array clamped_starts(const Builder& b, const array& starts, const mx::Shape& whole, const mx::Shape& part) {
  std::vector<int> most;
  for (size_t i = 0; i < whole.size(); i++) most.push_back(whole[i] - part[i]);
  auto low = mx::maximum(b.cast(starts, mx::int32), array(0), b.s);
  return mx::minimum(low, b.of(most), b.s);
}

inline std::vector<int> all_axes(size_t rank) {
  std::vector<int> axes(rank);
  for (size_t i = 0; i < rank; i++) axes[i] = static_cast<int>(i);
  return axes;
}

inline array dynamic_slice(const Builder& b, const array& x, const array& starts, const mx::Shape& sizes) {
  if (sizes.empty()) return x;
  return mx::slice(x, clamped_starts(b, starts, x.shape(), sizes), all_axes(x.ndim()), sizes, b.s);
}

inline array update_slice(const Builder& b, const array& x, const array& update, const array& starts) {
  if (x.ndim() == 0) return update;
  return mx::slice_update(
      x, update, clamped_starts(b, starts, x.shape(), update.shape()), all_axes(x.ndim()), b.s);
}

// Updates of which those to one row are all the last of them, since GPUs write them in any order.
inline array later_wins(const Builder& b, int rows, const array& index, const array& updates) {
  if (rows == 0 || updates.size() == 0) return updates;
  auto order = mx::arange(0, static_cast<int>(index.size()), 1, b.s);
  auto wide = b.cast(index, mx::int64);
  auto kept = mx::logical_and(
      mx::greater_equal(wide, array(int64_t(0)), b.s), mx::less(wide, array(int64_t(rows)), b.s), b.s);
  auto at = b.clamped(b.cast(index, mx::int32), rows);
  auto numbers = b.reshape(b.where(kept, order, array(-1)), {static_cast<int>(index.size()), 1});
  auto last = mx::scatter_max(mx::full({rows}, -1, mx::int32, b.s), {at}, numbers, {0}, b.s);
  return b.take(updates, mx::maximum(b.take(last, at, 0), array(0), b.s), 0);
}

inline array scatter(const Builder& b, const array& x, const array& index, const array& updates, bool add) {
  if (!add) {
    bool known = !b.tracing && index.is_available() && index.dtype() == mx::int32;
    auto numbers = known ? b.numbers(index) : std::vector<int>();
    auto inside = known ? Builder::inside_of(numbers, x.shape(0)) : Inside::unknown;
    bool distinct =
        index.size() < 2 || (known && std::set<int>(numbers.begin(), numbers.end()).size() == numbers.size());
    return b.put_rows(x, index, distinct ? updates : later_wins(b, x.shape(0), index, updates), inside);
  }
  auto at = b.cast(index, mx::int64);
  auto inside = mx::logical_and(
      mx::greater_equal(at, array(int64_t(0)), b.s), mx::less(at, array(int64_t(x.shape(0))), b.s), b.s);
  at = b.where(inside, at, array(int64_t(0)));
  auto value = b.where(b.along_rows(inside, updates.ndim()), updates, b.like(0, updates));
  auto shape = updates.shape();
  shape.insert(shape.begin() + 1, 1);
  return mx::scatter_add(x, {b.cast(at, mx::int32)}, b.reshape(value, shape), {0}, b.s);
}

// Sums and products of narrow floats are kept in f32 until the end.
inline array reduce(const Builder& b, const array& x, int kind, const std::vector<int>& axes) {
  if (axes.empty()) return x;
  auto in = is_narrow(x.dtype()) && kind < 2 ? b.f32(x) : x;
  auto out = kind == 0 ? mx::sum(in, axes, false, b.s)
      : kind == 1      ? mx::prod(in, axes, false, b.s)
      : kind == 2      ? mx::max(in, axes, false, b.s)
                       : mx::min(in, axes, false, b.s);
  return b.cast(out, x.dtype());
}

inline array cumulative(const Builder& b, const array& x, int kind, int axis) {
  auto in = is_narrow(x.dtype()) ? b.f32(x) : x;
  auto out = kind == 0 ? mx::cumsum(in, axis, false, true, std::nullopt, b.s)
      : kind == 1      ? mx::cumprod(in, axis, false, true, std::nullopt, b.s)
      : kind == 2      ? mx::cummax(in, axis, false, true, b.s)
                       : mx::cummin(in, axis, false, true, b.s);
  return b.cast(out, x.dtype());
}

// Stable in both directions: to fall, the keys are turned around, not the result. NaN counts as the largest.
inline Arrays sort(const Builder& b, const array& x, int axis, bool falling) {
  auto key = x.dtype() == mx::bool_ ? b.cast(x, mx::uint8) : x;
  if (falling && is_float(key.dtype())) {
    key = mx::negative(b.where(mx::isnan(key, b.s), b.like(INFINITY, key), key), b.s);
  } else if (falling) {
    key = mx::bitwise_invert(key, b.s);
  }
  auto order = mx::argsort(key, axis, b.s);
  return {mx::take_along_axis(x, order, axis, b.s), b.cast(order, mx::int32)};
}

} // namespace mlxcel
