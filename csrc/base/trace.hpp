// A Chrome trace of this process, one file a rank, where AXON_TRACE names one: for ui.perfetto.dev or chrome://tracing.
//
//   AXON_TRY(trace::open(rank));                       // once; does nothing without AXON_TRACE
//   if (trace::is_on()) trace::write({.phase = trace::Phase::kBegin, .name = "all_reduce", .id = …, …});
//
// Off, it costs a look at one word. On, an event costs a lock and a line in a buffer, which flush() writes out without
// that lock; the engine's background thread does so every 10 ms. A file that was not closed, since its process was
// killed, lacks the last bracket, which viewers do without. Any thread.
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
  kBegin = 'b',  // of what kEnd of the same id ends; may overlap with others
  kEnd = 'e',
  kInstant = 'n',
};

// The members of a JSON object: what a viewer shows of an event.
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

// Relaxed: set before the first group is formed, cleared when the last one is gone; a late event is dropped.
inline std::atomic<bool> on{false};
inline bool is_on() noexcept {
  return on.load(std::memory_order_relaxed);
}

// The file of a rank: "trace.json" is trace.rank3.json, and "%r.json" is 3.json.
std::string file_of(std::string_view pattern, int rank);

// Takes the place of an earlier job's file. Where another process is writing that file, this one's has its pid in the
// name: trace.rank3.pid77.json.
Status open(int rank);
// A row of the viewer's, for a group.
uint32_t add_track(std::string_view name);
void write(const Event& event);
void flush() noexcept;
void close() noexcept;

}  // namespace axon::trace
