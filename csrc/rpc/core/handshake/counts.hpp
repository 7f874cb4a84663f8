// Counts of the connections that a listener accepted, and of those that it dropped, by reason.
#pragma once

#include <cstdint>

namespace axon::rpc {

/// Counts since the runtime began to listen.
struct ListenerCounts {
  uint64_t num_met = 0;            // became connections
  uint64_t num_malformed = 0;      // did not send a handshake of torch_axon
  uint64_t num_other_version = 0;  // have another version of the wire format
  uint64_t num_wrong_secret = 0;   // did not know the secret
  uint64_t num_refused = 0;        // by the runtime, for example because it has max_connections already
  uint64_t num_late = 0;           // did not finish the handshake in time
  uint64_t num_hung_up = 0;        // closed the connection before they had proved that they know the secret
  uint64_t num_exhausted = 0;      // times that a connection had to wait because the process had no free descriptor
};

}  // namespace axon::rpc
