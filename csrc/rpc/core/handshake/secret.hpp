// Secret that only the two ends of a connection know: never sent, never logged, wiped on destruction.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace axon::rpc {

class Secret {
 public:
  static constexpr size_t kFewestBytes = 16;  // an eavesdropper on a handshake can try secrets offline
  static constexpr size_t kMostBytes = 1024;

  static Result<Secret> from(std::span<const std::byte> bytes);
  // Returns 32 bytes from the kernel's random source. Throws std::system_error if that fails.
  static Secret random();
  // Returns another secret for this purpose. It is always the same, and does not reveal this one.
  Secret derive(std::string_view purpose) const;

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = delete;
  Secret(Secret&&) noexcept = default;
  ~Secret();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  explicit Secret(std::vector<std::byte> bytes) noexcept : bytes_(std::move(bytes)) {}

  std::vector<std::byte> bytes_;
};

}  // namespace axon::rpc
