// Options of a runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace axon::rpc {

/// Options of a runtime. All limits are for one runtime unless they say otherwise.
struct RuntimeOptions {
  std::string name;                                     // the name that peers see
  uint64_t max_message_num_bytes = uint64_t{16} << 30;  // for a header frame, and for all tensors of a message
  size_t max_waiting_calls = 65'536;                    // per connection; in addition to those that the peer has
  size_t max_running_calls = 65'536;                    // for calls from peers: functions that have not answered
  size_t max_connections = 1024;
  size_t max_early_num_bytes = size_t{1} << 30;  // of payload frames that arrive before their destination is known
  bool accepts_exposed = false;                  // the client reads exposed tensors, see Inbound::Tensor::exposure
};

}  // namespace axon::rpc
