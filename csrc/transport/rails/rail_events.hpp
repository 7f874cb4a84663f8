// Events that the threads of rails report to the progress owner. Any thread pushes; the progress owner takes.
//
//   events.push({.kind = RailEvent::Kind::kArrived, .ticket = ticket});
//   if (events.any()) for (RailEvent& event : events.take()) …
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

struct RailEvent {
  enum class Kind : uint8_t {
    kConnected,  // a rail to the peer: route. It opens soon.
    kArrived,    // all stripes of the message with this ticket are in place
    kOpened,     // a rail to the peer
    kIsFast,     // the link of the rail (link_speed.hpp)
    kIsSlow,     // the link of the rail
    kNotOpened,  // a rail to the peer: why
    kBroken,     // an open rail to the peer: why
    kRefused,    // bytes that no rail of ours sends
  };

  Kind kind{};
  uint64_t ticket = 0;
  PeerId peer = 0;
  size_t rail = 0;
  std::string route{};
  Status why;
};

class RailEvents {
 public:
  // Fails without a free file descriptor.
  Status open();

  void push(RailEvent event) noexcept;
  bool any() const noexcept { return any_.load(std::memory_order_acquire); }
  std::vector<RailEvent> take() noexcept;

  // Becomes readable when an event is pushed after arm() has returned true.
  int descriptor() const noexcept { return wake_event_.get(); }
  bool arm() noexcept;

 private:
  FileDescriptor wake_event_;
  std::mutex mutex_;
  std::vector<RailEvent> events_;   // guarded by mutex_
  std::atomic<bool> any_{false};    // whether events_ has any; release in push(), acquire in any()
  std::atomic<bool> armed_{false};  // seq_cst, as any_ in arm() and push(): one of the two threads sees the other
};

}  // namespace axon::transport
