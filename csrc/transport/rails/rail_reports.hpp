// Reports of other threads to the progress owner. Any thread pushes; the progress owner takes. A report tells whether a
// stranger can cause it, because those are bounded.
//
//   RailReports<RailEvent> events;
//   AXON_TRY(events.open());
//   events.push({.kind = RailEvent::Kind::kArrived, .ticket = ticket});
//   if (events.any()) for (RailEvent& event : events.take()) …
#pragma once

#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "base/event_descriptor.hpp"
#include "base/resources.hpp"

namespace axon::transport {

template <typename Report>
class RailReports {
 public:
  // No more reports that strangers cause are kept while the progress owner takes none.
  static constexpr size_t kMostOfStrangers = 1024;

  // Fails without a free file descriptor.
  Status open() {
    wake_event_ = open_event();
    return wake_event_.valid() ? Status() : out_of("eventfd", errno);
  }

  void push(Report report) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (report.is_of_a_stranger() && reports_.size() >= kMostOfStrangers) return;
      reports_.push_back(std::move(report));
      any_.store(true);
    }
    if (armed_.exchange(false)) set_event(wake_event_);
  }
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  std::vector<Report> take() noexcept {
    const std::lock_guard lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    return std::exchange(reports_, {});
  }

  // Becomes readable when a report is pushed after arm() has returned true.
  const FileDescriptor& event() const noexcept { return wake_event_; }
  bool arm() noexcept {
    clear_event(wake_event_);
    armed_.store(true);
    return !any_.load();
  }

 private:
  FileDescriptor wake_event_;
  std::mutex mutex_;
  std::vector<Report> reports_;     // guarded by mutex_
  std::atomic<bool> any_{false};    // whether reports_ has any; release in push(), acquire in any()
  std::atomic<bool> armed_{false};  // seq_cst, as any_ in arm() and push(): one of the two threads sees the other
};

}  // namespace axon::transport
