// Counts of the connections that a listener accepted, and of those that it dropped, by reason.
#pragma once

#include <cstdint>

namespace axon::rpc {

struct ListenerCounts {
  uint64_t num_met = 0;
  uint64_t num_malformed = 0;
  uint64_t num_other_version = 0;
  uint64_t num_wrong_secret = 0;
  uint64_t num_refused = 0;  // by the OnAccept callback
  uint64_t num_late = 0;
  uint64_t num_hung_up = 0;
  uint64_t num_exhausted = 0;  // times that a connection had to wait because the process had no free descriptor
};

}  // namespace axon::rpc
