// The order of an operation whose segments pass through the slots twice. Pure.
//
//   const TwoStepOrder order(5, 2);     // 5 segments, 2 slots
//   order[2];                           // segment 0, for the second time
//
// The first segments, one for each slot, come first. Then second steps alternate with first steps of later segments. So
// a second step is at least as many positions after its first step as there are slots, when the Relay has taken the
// results of the first one.
#pragma once

#include <cstddef>

namespace axon::gpu_comm {

class TwoStepOrder {
 public:
  struct Step {
    size_t segment;
    bool is_second;

    friend bool operator==(const Step&, const Step&) = default;
  };

  // `num_slots` is at most `num_segments`.
  TwoStepOrder(size_t num_segments, size_t num_slots) noexcept
      : num_first_(num_slots), num_later_(num_segments - num_slots) {}

  size_t count() const noexcept { return 2 * (num_first_ + num_later_); }
  Step operator[](size_t position) const noexcept {
    if (position < num_first_) return {position, false};
    const size_t index = position - num_first_;
    if (index >= 2 * num_later_) return {index - num_later_, true};
    return index % 2 == 0 ? Step{index / 2, true} : Step{num_first_ + index / 2, false};
  }

 private:
  size_t num_first_;
  size_t num_later_;
};

}  // namespace axon::gpu_comm
