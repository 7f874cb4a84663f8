// The progress of a TCP connection, as the kernel counts it. Apart from tcp_socket.hpp, because the kernel's header
// and the C library's cannot be included together.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/file_descriptor.hpp"

namespace axon {

struct TcpProgress {
  uint64_t num_acknowledged = 0;        // bytes
  std::chrono::microseconds sending{};  // for how long bytes were on their way
};

// Empty if the kernel does not count this (Linux before 4.10).
std::optional<TcpProgress> tcp_progress(const FileDescriptor& socket) noexcept;

}  // namespace axon
