// What a runtime is asked to be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace axon::rpc {

struct RuntimeOptions {
  std::string name;                                     // what peers know it by
  uint64_t max_message_num_bytes = uint64_t{16} << 30;  // of a header frame, and of all tensors of a message
  size_t max_waiting_calls = 65'536;                    // a connection; beyond those that the peer has
  size_t max_running_calls = 65'536;                    // of peers: functions that have not answered
  size_t max_connections = 1024;
  size_t max_early_num_bytes = size_t{1} << 30;  // of payload frames that have come before it is known where they go
  bool accepts_exposed = false;  // the door reads tensors that are exposed, see Inbound::Tensor::exposure
};

}  // namespace axon::rpc
