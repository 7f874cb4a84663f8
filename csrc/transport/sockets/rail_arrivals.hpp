// Reports of the thread that runs handshakes, about connections for messages, to the progress owner.
#pragma once

#include "transport/rails/rail_handshakes.hpp"
#include "transport/rails/rail_reports.hpp"

namespace axon::transport {

struct RailArrival {
  enum class Kind : uint8_t {
    kConnected,
    kAccepted,
    kNotConnected,
    kStranger,
  };

  Kind kind{};
  uint64_t name = 0;    // kAccepted: the other transport's
  RailRequest request;  // kConnected, kNotConnected
  FileDescriptor socket;
  Status why;

  bool is_of_a_stranger() const noexcept { return kind == Kind::kStranger; }
};

using RailArrivals = RailReports<RailArrival>;

}  // namespace axon::transport
