// A Chrome trace of this process, one file per rank, if AXON_TRACE names one: for ui.perfetto.dev or chrome://tracing.
//
//   AXON_TRY(trace::open(rank));   // once; does nothing without AXON_TRACE
//   if (trace::is_on()) trace::write({.phase = trace::Phase::kBegin, .name = "all_reduce", .at = Clock::now()});
//
// When off, it costs one relaxed load. When on, an event costs a lock and a line in a buffer. flush() writes the buffer
// out without that lock; the engine's background thread calls it every 10 ms. If the process is killed, the file lacks
// its last bracket, which viewers tolerate. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace axon::trace {

using TimePoint = std::chrono::steady_clock::time_point;

enum class Phase : char {
  kBegin = 'b',  // the event lasts until the kEnd of the same id; may overlap with others
  kEnd = 'e',
  kInstant = 'n',
};

// The members of a JSON object: the details of an event that a viewer shows.
class Details {
 public:
  Details& add(std::string_view name, std::string_view value);
  Details& add(std::string_view name, int64_t value);
  const std::string& text() const noexcept { return text_; }

 private:
  void add_name(std::string_view name);

  std::string text_;
};

struct Event {
  Phase phase;
  std::string_view name;
  uint64_t id = 0;
  uint32_t track = 0;
  TimePoint at;
  Details details;
};

// Relaxed: set before the first group is formed, cleared after the last one is gone; a late event is dropped.
inline std::atomic<bool> on{false};
inline bool is_on() noexcept {
  return on.load(std::memory_order_relaxed);
}

// Returns the file of a rank: "trace.json" becomes trace.rank3.json, and "%r.json" becomes 3.json.
std::string file_of(std::string_view pattern, int rank);

// Replaces an earlier job's file. If another process is writing that file, this one's name contains its pid:
// trace.rank3.pid77.json.
Status open(int rank);
// Adds a row to the viewer, for a group.
uint32_t add_track(std::string_view name);
void write(const Event& event);
void flush() noexcept;
void close() noexcept;

}  // namespace axon::trace
