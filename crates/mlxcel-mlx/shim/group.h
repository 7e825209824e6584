// What members of a group exchange. A process belongs to one group at most, for as long as it lives: MLX keeps its
// connections in one place.
#pragma once

#include <optional>

#include "build.h"
#include "mlx/distributed/distributed.h"
#include "mlx/distributed/ops.h"

namespace mlxcel {

inline std::optional<mx::distributed::Group>& group() {
  static std::optional<mx::distributed::Group> joined;
  return joined;
}

inline mx::distributed::Group& joined_group() {
  if (!group()) throw std::logic_error("the process has joined no group");
  return *group();
}

inline array all_reduce(Builder& b, const array& x) { return mx::distributed::all_sum(x, joined_group(), b.s); }

// MLX gathers along the first axis: the members become a new one, which is then moved.
inline array all_gather(Builder& b, const array& x, int axis) {
  mx::Shape one = x.shape(), all = x.shape();
  one.insert(one.begin(), 1);
  auto gathered = mx::distributed::all_gather(b.reshape(x, one), joined_group(), b.s);
  std::vector<int> order;
  for (int i = 1; i <= static_cast<int>(x.ndim()); i++) {
    if (i == axis + 1) order.push_back(0);
    order.push_back(i);
  }
  all[axis] *= gathered.shape(0);
  return b.reshape(b.transpose(gathered, order), all);
}

} // namespace mlxcel
