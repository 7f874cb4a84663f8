// Reads another process's memory with one copy in the kernel (cross-memory attach), where the kernel permits it. Any
// thread.
//
//   if (read_process(address, from, to, num_bytes) == ReadOutcome::kRead) …
#pragma once

#include <cstdint>
#include <span>

#include "memory/buffer.hpp"
#include "transport/rings/doorbell.hpp"

namespace axon::transport {

enum class ReadOutcome : uint8_t {
  kRead,
  kForbidden,   // this process may not read that one, now or later
  kUnreadable,  // the kernel cannot read this memory
  kGone,        // the process has ended
};

// Copies `num_bytes` at `from` in the memory of the process with this address into `to`. The same call reads the
// process's identity, so that a new process with the same pid is not mistaken for it.
ReadOutcome read_process(const RingAddress& process, uint64_t from, std::byte* to, size_t num_bytes) noexcept;

}  // namespace axon::transport
