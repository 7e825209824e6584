// Names that `std::async` is written with. Nothing calls it, so they are only declared.
#pragma once

namespace Concurrency {
template <typename T>
struct task {
  void wait() const;
};
template <typename F>
task<void> create_task(F&&);
}  // namespace Concurrency
