// Events that the threads of rails report to the progress owner.
#pragma once

#include <string>

#include "base/status.hpp"
#include "transport/rails/rail_reports.hpp"
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

  bool is_of_a_stranger() const noexcept { return kind == Kind::kRefused; }
};

using RailEvents = RailReports<RailEvent>;

}  // namespace axon::transport
