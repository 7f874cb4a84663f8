// Measures the delay of messages with clocks that disagree.
#include <gtest/gtest.h>

#include "rpc/core/delay_gauge.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;
using sync::Clock;

class DelayGaugeTest : public testing::TestWithParam<std::chrono::milliseconds> {
 protected:
  // Returns the measured delay of a message, from its send time since the start and its time on the way. The sender's
  // clock is ahead by a fixed offset.
  std::chrono::milliseconds delay(std::chrono::milliseconds sent, std::chrono::milliseconds took) {
    const Clock::time_point there = kStart + GetParam() + sent;
    return gauge_.delay_of(time_stamp(there), kStart + sent + took);
  }

  static constexpr Clock::time_point kStart{1h};
  DelayGauge gauge_;
};

INSTANTIATE_TEST_SUITE_P(Clocks, DelayGaugeTest, testing::Values(0ms, 500h, -1h, 1193h, 24h * 100));

TEST_P(DelayGaugeTest, what_took_longer_than_the_quickest_is_late_by_the_difference) {
  EXPECT_EQ(delay(0ms, 7ms), 0ms);
  EXPECT_EQ(delay(10ms, 5ms), 0ms);
  EXPECT_EQ(delay(20ms, 6ms), 1ms);
  EXPECT_EQ(delay(30ms, 5005ms), 4999ms);  // which makes 1 ms of drift possible
  EXPECT_EQ(delay(40ms, 5ms), 0ms);
}

TEST_P(DelayGaugeTest, clocks_that_drift_apart_make_nothing_late) {
  for (int64_t minute = 0; minute < 10'000; ++minute) {
    const int64_t drift_ms = minute * 60'000 / 10'000;  // 100 parts in a million
    EXPECT_EQ(delay(minute * 1min, std::chrono::milliseconds(drift_ms)), 0ms) << minute;
  }
}

}  // namespace
}  // namespace axon::rpc
