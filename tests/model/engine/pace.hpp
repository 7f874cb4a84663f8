// Replaces csrc/engine/pace.hpp: the fewest rounds that tell the cases apart, for a clock that advances when it is
// read.
#pragma once

#include <chrono>

namespace axon::pace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

inline constexpr microseconds kSpinBudget{3};
inline constexpr unsigned kRoundsBeforeYield = 2;
inline constexpr unsigned kRoundsBeforePause = 0;
inline constexpr unsigned kRoundsBetweenClockReads = 1;
inline constexpr microseconds kContended{2};
inline constexpr microseconds kShortestOversubscribed{10};
inline constexpr microseconds kLongestOversubscribed{40};

inline constexpr microseconds kHot{2};
inline constexpr microseconds kHotAlone{3};
inline constexpr microseconds kWarm{4};
inline constexpr microseconds kShortSleep{10};
inline constexpr microseconds kLongSleep{20};
inline constexpr int kFlagSleepFraction = 2;
inline constexpr std::chrono::seconds kDeepSleepRunning{10};
inline constexpr std::chrono::seconds kLongestSleepRunning{50};
inline constexpr int kDeepSleepFraction = 8;
inline constexpr std::chrono::seconds kIdle{10};
inline constexpr std::chrono::seconds kDeepSleepIdle{1000};
inline constexpr unsigned kRoundsBetweenLooks = 3;

}  // namespace axon::pace
