// Tests the turns of transfers that wait for slots of host memory.
#include "rpc/core/one_sided/staging_slots.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace axon::rpc {
namespace {

// Takes a slot in its turn and gives it back at once, as a transfer does that fails.
class EndsAtOnce final : public StagingSlots::Waiter {
 public:
  explicit EndsAtOnce(StagingSlots& slots) noexcept : slots_(slots) {}

  static inline size_t depth = 0;  // of the calls on the stack
  static inline size_t most_depth = 0;
  static inline size_t num_served = 0;

 private:
  void on_slot() noexcept override {
    most_depth = std::max(most_depth, ++depth);
    const std::optional<Buffer> slot = slots_.take(*this);
    ASSERT_TRUE(slot.has_value());
    ++num_served;
    slots_.give_back(*slot);
    --depth;
  }
  StagingSlots& slots_;
};

TEST(StagingSlots, waiters_that_end_at_once_do_not_nest) {
  std::vector<std::byte> memory(kSegmentNumBytes);
  StagingSlots slots({{.data = memory.data(), .num_bytes = memory.size()}}, {});
  constexpr size_t kNumWaiters = 1000;
  std::vector<std::unique_ptr<EndsAtOnce>> waiters;
  EndsAtOnce first(slots);
  const std::optional<Buffer> slot = slots.take(first);
  ASSERT_TRUE(slot.has_value());
  for (size_t i = 0; i < kNumWaiters; ++i) {
    waiters.push_back(std::make_unique<EndsAtOnce>(slots));
    EXPECT_FALSE(slots.take(*waiters.back()).has_value());
  }
  slots.give_back(*slot);
  EXPECT_EQ(EndsAtOnce::num_served, kNumWaiters);
  EXPECT_EQ(EndsAtOnce::most_depth, 1u);
}

}  // namespace
}  // namespace axon::rpc
