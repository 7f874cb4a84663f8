// One line to stderr, when AXON_LOG lets it through: "axon[rank 3]: warn: …". Not for the message path.
#pragma once

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

// What lines are signed with: this process's rank in the job, once it has joined a group. Before: its process id.
void set_rank(int rank) noexcept;

}  // namespace axon::log
