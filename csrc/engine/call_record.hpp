// Describes a call of this rank in errors and traces, also after the operation itself is gone. Owns nothing; any
// thread.
//
//   latest_ = operation.record();
//   latest_.describe();            // "all_reduce #5 (float32[4, 256], SUM)"
//   latest_.describe_with_age();   // "all_reduce #5 (float32[4, 256], SUM), 3.2 s ago, at train.py:12, in step"
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/data_type.hpp"
#include "engine/progress.hpp"
#include "transport/message.hpp"

namespace axon::engine {

// The shape of the user's tensor; used only in error messages and traces.
struct Shape {
  static constexpr size_t kMostDimensions = 8;
  std::array<int64_t, kMostDimensions> sizes{};
  uint8_t num_dimensions = 0;
};

enum class Direction : uint8_t { kCollective, kSend, kReceive };

// Identifies a replay: a call that a CUDA graph holds, and a launch of the graph. The ranks capture their calls in the
// same order, but may launch graphs in different orders, so replays match by these numbers.
struct Replay {
  uint32_t call = 0;  // from 1: among the group's captured collectives, or the messages of its direction, ranks and tag
  uint32_t launch = 0;  // from 1: of the graph

  // A message's sequence number holds the call in this many bits, and the launch in the others.
  static constexpr int kBitsOfCall = 18;
  static constexpr uint32_t kMostCalls = (uint32_t{1} << kBitsOfCall) - 1;

  // The sequence number of a collective's messages. It wraps, but flow control stops a rank that is as many launches
  // ahead.
  constexpr uint32_t sequence() const noexcept { return launch << kBitsOfCall | call; }
  explicit operator bool() const noexcept { return call != 0; }
};

// Copied with every call, so it owns nothing.
struct CallRecord {
  transport::OperationKind kind{};
  Direction direction = Direction::kCollective;
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  int root = -1;
  int peer = -1;          // point to point
  uint32_t tag = 0;       // point to point
  uint32_t sequence = 0;  // of collectives, from 1; 0: the collective has not begun, or is a replay
  Replay replay;
  Shape shape;
  sync::Clock::time_point called_at{};
  std::string_view call_site;  // the line of the program that made the call; the text is never freed

  std::string describe() const;
  std::string describe_with_age() const;
};

}  // namespace axon::engine
