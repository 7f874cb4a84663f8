#include "base/copy_threads.hpp"

#include <pthread.h>

#include <algorithm>
#include <system_error>

#include "base/blocked_signals.hpp"
#include "base/config.hpp"
#include "base/forks.hpp"
#include "base/log.hpp"
#include "base/resources.hpp"

namespace axon {

static constexpr const char* kName = "axon-copy";
static constexpr size_t kMostByDefault = 4;
// Waking a thread takes some 50 µs, in which one core copies half of this.
static constexpr size_t kLeastNumBytes = size_t{2} << 20;
static constexpr size_t kPartNumBytes = size_t{512} << 10;

CopyThreads& CopyThreads::instance() {
  static OnePerProcess<CopyThreads> threads;
  return threads.get();
}

CopyThreads::CopyThreads() : num_wanted_(config::number("AXON_COPY_THREADS")), size_(num_wanted_.value_or(1)) {}

void CopyThreads::set_num_processes(size_t num_processes) noexcept {
  if (num_wanted_) return;
  size_.store(std::clamp<size_t>(num_cores() / num_processes, 1, kMostByDefault), std::memory_order_relaxed);
}

size_t CopyThreads::num_bytes_of_step(size_t num_bytes, size_t step) const noexcept {
  return std::min(num_bytes, num_bytes < kLeastNumBytes ? step : step * size());
}

size_t CopyThreads::num_parts_for(size_t num_bytes) const noexcept {
  if (size() == 1 || num_bytes < kLeastNumBytes) return 1;
  return (num_bytes + kPartNumBytes - 1) / kPartNumBytes;
}

void CopyThreads::run_parts(size_t num_parts, Call call, const void* copy) noexcept {
  if (num_parts == 1 || size() == 1 || is_busy_.exchange(true, std::memory_order_acquire)) {
    for (size_t part = 0; part < num_parts; ++part) call(copy, part);
    return;
  }
  start_threads();
  call_ = call;
  copy_ = copy;
  num_left_.store(num_parts, std::memory_order_relaxed);
  const Ticket latest = ticket_.load(std::memory_order_relaxed);
  ticket_.store({.job = latest.job + 1, .num_parts = static_cast<uint16_t>(num_parts), .next_part = 0},
                std::memory_order_release);
  ticket_.notify_all();
  while (take_part()) {
  }
  for (size_t left = num_left_.load(std::memory_order_acquire); left != 0;
       left = num_left_.load(std::memory_order_acquire)) {
    num_left_.wait(left, std::memory_order_acquire);
  }
  is_busy_.store(false, std::memory_order_release);
}

// Returns whether there was one. The job goes on until the part is copied, so its function is there.
bool CopyThreads::take_part() noexcept {
  Ticket ticket = ticket_.load(std::memory_order_acquire);
  Ticket taken;
  do {
    if (ticket.next_part == ticket.num_parts) return false;
    taken = ticket;
    ++taken.next_part;
  } while (!ticket_.compare_exchange_weak(ticket, taken, std::memory_order_acquire));
  call_(copy_, ticket.next_part);
  if (num_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) num_left_.notify_one();
  return true;
}

// Without those that cannot be started, the others have more to do.
void CopyThreads::start_threads() noexcept {
  if (helpers_.size() + 1 >= size()) return;
  const BlockedSignals blocked;
  try {
    while (helpers_.size() + 1 < size()) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error& failure) {
    log::warn(describe_thread_failure(kName, failure) + "; copies use fewer threads");
    size_.store(helpers_.size() + 1, std::memory_order_relaxed);
  }
}

void CopyThreads::help() noexcept {
  pthread_setname_np(pthread_self(), kName);
  while (true) {
    const Ticket seen = ticket_.load(std::memory_order_acquire);
    if (seen.next_part == seen.num_parts) {
      ticket_.wait(seen, std::memory_order_acquire);
    } else {
      take_part();
    }
  }
}

}  // namespace axon
