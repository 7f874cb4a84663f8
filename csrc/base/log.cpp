#include "base/log.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>

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
  // One call, so that lines of several processes do not mix. An error is ignored: stderr may be closed.
  [[maybe_unused]] const ssize_t num_written = ::write(STDERR_FILENO, line.data(), line.size());
}

// Threads that call it at the same time may pass a few lines more.
std::optional<uint64_t> Limit::pass() noexcept {
  static constexpr std::chrono::nanoseconds kWindow = std::chrono::seconds(10);
  static constexpr uint32_t kMostLines = 10;
  const int64_t now_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  int64_t began_ns = window_ns_.load(std::memory_order_relaxed);
  const bool is_over = began_ns == 0 || now_ns - began_ns >= kWindow.count();
  if (is_over && window_ns_.compare_exchange_strong(began_ns, now_ns, std::memory_order_relaxed)) {
    num_passed_.store(0, std::memory_order_relaxed);
  }
  if (num_passed_.fetch_add(1, std::memory_order_relaxed) < kMostLines) {
    return num_held_back_.exchange(0, std::memory_order_relaxed);
  }
  num_held_back_.fetch_add(1, std::memory_order_relaxed);
  return std::nullopt;
}

void set_rank(int rank) noexcept {
  int unset = -1;
  signing_rank.compare_exchange_strong(unset, rank, std::memory_order_relaxed);
}

}  // namespace axon::log
