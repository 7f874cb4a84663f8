// One line to stderr, when AXON_LOG lets it through: "axon[rank 3]: warn: …". Not for the message path.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace axon::log {

enum class Level : uint8_t { kError, kWarn, kInfo, kDebug };

std::optional<Level> parse(std::string_view name) noexcept;

// The level of AXON_LOG, read at the first line.
bool enabled(Level level);

void write(Level level, const std::string& message);
inline void warn(const std::string& message) {
  write(Level::kWarn, message);
}
inline void info(const std::string& message) {
  write(Level::kInfo, message);
}

// For what a peer can cause as often as it likes: lets ten lines through in ten seconds. For any thread.
class Limit {
 public:
  // How many have been held back since the last that was let through; none: hold this one back, too.
  std::optional<uint64_t> pass() noexcept;

 private:
  std::atomic<int64_t> window_ns_{0};  // when the latest ten seconds began; 0: never
  std::atomic<uint32_t> num_passed_{0};
  std::atomic<uint64_t> num_held_back_{0};
};

// What lines are signed with: this process's rank in the job, once it has joined a group. Before: its process id.
void set_rank(int rank) noexcept;

}  // namespace axon::log
