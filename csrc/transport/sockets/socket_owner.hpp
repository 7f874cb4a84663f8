// What the parts of SocketTransport tell it. Only SocketTransport implements it; the calls are within its progress().
#pragma once

#include "base/status.hpp"

namespace axon::transport {

struct SocketLink;

class SocketOwner {
 public:
  // The process cannot be reached any more. Its rails are closed, and its transfers end.
  virtual void lose(SocketLink& link, Status why) noexcept = 0;
  // No transport of ours sends this.
  virtual void on_refused(const char* what) noexcept = 0;
  // The timer of the rails has run out.
  virtual void on_tick() noexcept = 0;

 protected:
  ~SocketOwner() = default;
};

}  // namespace axon::transport
