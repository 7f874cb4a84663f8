// What both ends of a connection know and nobody else: never sent, never logged, wiped when it is gone.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace axon::rpc {

class Secret {
 public:
  static constexpr size_t kFewestBytes = 16;  // who hears a handshake may try secrets at leisure
  static constexpr size_t kMostBytes = 1024;

  static Result<Secret> from(std::span<const std::byte> bytes);
  // 32 bytes from the kernel's source of randomness. Throws std::system_error where it has none.
  static Secret random();
  // Another secret for this purpose, always the same one, from which this one cannot be found.
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
