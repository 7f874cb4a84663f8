// What a listener has met, and what it has dropped for which reason.
#pragma once

#include <cstdint>

namespace axon::rpc {

struct ListenerCounts {
  uint64_t num_met = 0;
  uint64_t num_malformed = 0;
  uint64_t num_other_version = 0;
  uint64_t num_wrong_secret = 0;
  uint64_t num_refused = 0;  // by whoever is told of them
  uint64_t num_late = 0;
  uint64_t num_hung_up = 0;
  uint64_t num_exhausted = 0;  // times that somebody had to wait for want of a descriptor
};

}  // namespace axon::rpc
