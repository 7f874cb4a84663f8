#include "base/log.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "base/config.hpp"

namespace axon::log {

static constexpr std::array<std::string_view, 4> kNames{"error", "warn", "info", "debug"};

static std::atomic<int> signing_rank{-1};  // relaxed: only a label

// A forked child is not the rank that its parent was.
[[maybe_unused]] static const int registered =
    pthread_atfork(nullptr, nullptr, [] { signing_rank.store(-1, std::memory_order_relaxed); });

std::optional<Level> parse(std::string_view name) noexcept {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Level>(i);
  }
  return std::nullopt;
}

bool enabled(Level level) {
  static const Level limit = parse(config::text("AXON_LOG")).value_or(Level::kWarn);
  return level <= limit;
}

void write(Level level, const std::string& message) {
  if (!enabled(level)) return;
  const int rank = signing_rank.load(std::memory_order_relaxed);
  std::string line = rank >= 0 ? "axon[rank " + std::to_string(rank) : "axon[pid " + std::to_string(getpid());
  line += "]: " + std::string(kNames[static_cast<size_t>(level)]) + ": " + message + "\n";
  // One call, so that the lines of several processes do not mix. Where stderr is closed there is nobody to tell.
  [[maybe_unused]] const ssize_t num_written = ::write(STDERR_FILENO, line.data(), line.size());
}

void set_rank(int rank) noexcept {
  int unset = -1;
  signing_rank.compare_exchange_strong(unset, rank, std::memory_order_relaxed);
}

}  // namespace axon::log
