// Other processes' memory, read by one copy in the kernel (cross-memory attach), where the kernel permits it.
#pragma once

#include <cstdint>
#include <span>

#include "memory/buffer.hpp"
#include "transport/rings/doorbell.hpp"

namespace axon::transport {

enum class ReadOutcome : uint8_t {
  kRead,
  kForbidden,   // to this process, and later, too
  kUnreadable,  // this memory, by the kernel
  kGone,        // the process has ended
};

// `num_bytes` at `from` in the memory of the process with this address into `to`. Its identity is read in the same
// call: a process that has come into its place is not taken for it.
ReadOutcome read_process(const RingAddress& process, uint64_t from, std::byte* to, size_t num_bytes) noexcept;

}  // namespace axon::transport
