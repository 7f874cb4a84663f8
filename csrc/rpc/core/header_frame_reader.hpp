// Parses a header frame from a peer, which is untrusted input.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "rpc/core/inbound.hpp"

namespace axon::rpc {

struct HeaderFrame {
  std::string_view name;
  std::span<const std::byte> values;
  size_t num_payload_frames = 0;
};

// Returns null, or what is wrong with the frame. `bytes` is aligned to 8. The result and `tensors`, which is
// overwritten, refer to it.
const char* read_header_frame(std::span<std::byte> bytes, uint64_t max_message_num_bytes, HeaderFrame& header_frame,
                              std::vector<Inbound::Tensor>& tensors);

}  // namespace axon::rpc
