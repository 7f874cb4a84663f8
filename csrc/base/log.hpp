// Writes a line to stderr if AXON_LOG permits: "axon[rank 3]: warn: …". Any thread. Not for the message path.
//
//   log::warn("the end of process 7 will show as a timeout");
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace axon::log {

enum class Level : uint8_t { kError, kWarn, kInfo, kDebug };

std::optional<Level> parse(std::string_view name) noexcept;

// Compares the level with AXON_LOG, which is read for the first line.
bool enabled(Level level);

void write(Level level, const std::string& message);
inline void warn(const std::string& message) {
  write(Level::kWarn, message);
}
inline void info(const std::string& message) {
  write(Level::kInfo, message);
}

// Limits lines that a peer can cause as often as it likes: permits ten lines per ten seconds. Any thread.
class Limit {
 public:
  // Returns how many lines have been suppressed since the last permitted one; empty: suppress this one, too.
  std::optional<uint64_t> pass() noexcept;

 private:
  std::atomic<int64_t> window_ns_{0};  // when the latest ten seconds began; 0: never
  std::atomic<uint32_t> num_passed_{0};
  std::atomic<uint64_t> num_held_back_{0};
};

// Sets the rank that lines show: this process's rank in the job, after it has joined a group. Before, they show its
// pid.
void set_rank(int rank) noexcept;

}  // namespace axon::log
