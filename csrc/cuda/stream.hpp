// Streams and events, as owners and views.
//
// A view does not own its handle, which other code (torch, or one of the owners here) keeps alive. Owners are move-only
// and belong to the device that was current when they were created. Their destruction does not wait: CUDA lets queued
// work finish.
#pragma once

#include <driver_types.h>

#include <memory>
#include <type_traits>

#include "base/status.hpp"

namespace axon::cuda {

class EventView {
 public:
  explicit EventView(cudaEvent_t event) noexcept : event_(event) {}
  cudaEvent_t get() const noexcept { return event_; }

  // Blocks the host until the recorded work is done.
  Status synchronize() const;
  // Returns whether all recorded work is done; true if nothing was recorded.
  bool has_passed() const noexcept;
  Result<float> microseconds_since(EventView earlier) const;

 private:
  cudaEvent_t event_;
};

class StreamView {
 public:
  explicit StreamView(cudaStream_t stream) noexcept : stream_(stream) {}
  cudaStream_t get() const noexcept { return stream_; }

  Status record(EventView event) const;
  // Later work of this stream waits for the work recorded by the event.
  Status wait(EventView event) const;
  // Blocks the host until all queued work is done.
  Status synchronize() const;
  // Returns whether all queued work is done.
  bool is_idle() const noexcept;
  // Fails if the device has failed, so that the work will not be done.
  Status check() const;

 private:
  cudaStream_t stream_;
};

struct StreamDeleter {
  void operator()(cudaStream_t stream) const noexcept;
};
struct EventDeleter {
  void operator()(cudaEvent_t event) const noexcept;
};

class Stream {
 public:
  // Does not synchronise with the legacy default stream.
  static Result<Stream> create();
  StreamView view() const noexcept { return StreamView(stream_.get()); }
  operator StreamView() const noexcept { return view(); }

 private:
  explicit Stream(cudaStream_t stream) noexcept : stream_(stream) {}
  std::unique_ptr<std::remove_pointer_t<cudaStream_t>, StreamDeleter> stream_;
};

class Event {
 public:
  // Creates an event with time stamps, for measurements.
  static Result<Event> create();
  // Creates an event for ordering only, which is cheaper.
  static Result<Event> create_untimed();
  EventView view() const noexcept { return EventView(event_.get()); }
  operator EventView() const noexcept { return view(); }

 private:
  explicit Event(cudaEvent_t event) noexcept : event_(event) {}
  std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, EventDeleter> event_;
};

}  // namespace axon::cuda
